"""Speed of training on remote shards, from the first batch on: 30 ms to the first byte, 40 MB/s a connection.

    python benchmarks/cold.py --data DIR                      everything, five to ten minutes; DIR keeps the data (1 GB)
    python benchmarks/cold.py --data DIR --only ours,local --rounds 1     half a minute: for tuning
    python benchmarks/cold.py --quick --only ours,local,second,quarter    seconds; the figures are meaningless

Each contender is a process of its own in each round, with an empty cache directory; see README.md beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import cold_report
import envs
import jpegs
import report
import typer
from children import REPLY_SECONDS, Child, ChildError
from choices import choose
from cold_cases import Case, list_cases
from cold_watch import CachePeak, busy_seconds, wait_for_idle
from forks import ForkServer
from rich.console import Console
from slow_server import SlowServer

if TYPE_CHECKING:
    from collections.abc import Iterator


HUB_NAME = "bench/jpegs"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The parameters that all contenders share; an epoch waits up to ``patience_seconds`` for an idle machine.

    Of the servers, ``hub`` is the Hub's stand-in, where a case needs it: its data set ``HUB_NAME`` has the same files.
    """

    data: dict
    server: SlowServer
    hub: SlowServer | None
    index: str
    batch: int
    workers: int
    batches: int | None
    step_seconds: float
    patience_seconds: float
    reply_seconds: float
    scratch: str
    interpreters: dict[str, str]
    forks: ForkServer | None


def run_process(setting: Setting, case: Case, epochs: int, versions: dict) -> list[dict]:
    """Run one contender's process, beginning with an empty cache; returns the figures of each epoch.

    Raises:
        ChildError: it failed, or did not yield each sample once.
    """
    home = os.path.join(setting.scratch, "turn")
    cache = os.path.join(home, "cache")
    server = setting.hub if case.hub else setting.server
    where = server.url if case.is_remote else setting.data["directory"]
    if case.hub:
        where = f"hf://datasets/{HUB_NAME}"
    if not case.has_tables:
        where = f"{where}/{jpegs.BARE}"
    options = dict(case.options)
    size = setting.data["bytes"]
    if case.cache_share is not None:
        options["dataset"] = {"cache_size": int(size * case.cache_share)}
    if case.cache_shards is not None:
        options["dataset"] = {"cache_size": int(size / len(setting.data["urls"]) * (case.cache_shards + 0.1))}
    with open(os.path.join(setting.data["directory"], setting.index), encoding="utf-8") as stream:
        shards = json.load(stream)["shardlist"]
    given = {
        "index": where if case.hub == "name" else f"{where}/{setting.index}",
        "urls": [f"{where}/{name}" for name in setting.data["urls"]],
        "shards": [{**shard, "url": f"{where}/{shard['url']}"} for shard in shards],
        "cache_dir": cache,
        "batch": setting.batch,
        "workers": setting.workers,
        "batches": setting.batches,
        "step_seconds": setting.step_seconds,
        "options": options,
    }
    os.makedirs(home)
    job = os.path.join(home, "job.json")
    with open(job, "w", encoding="utf-8") as stream:
        json.dump(given, stream)
    # curl and others would use a proxy for loopback addresses too.
    own = {"no_proxy": "127.0.0.1,localhost", "HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0"}
    entry = replace(case.contender, environ={**case.contender.environ, **own})
    try:
        about = {"reply_seconds": setting.reply_seconds, "forks": setting.forks}
        with Child(entry, setting.interpreters[entry.name], job, home, **about) as child:
            child.greet()
            versions[entry.name] = child.versions
            return [_run_epoch(setting, server, child, cache, epoch) for epoch in range(epochs)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.sync()  # else this contender's files would be flushed in the turn of the next


def _run_epoch(setting: Setting, server: SlowServer, child: Child, cache: str, epoch: int) -> dict:
    wait_for_idle(setting.patience_seconds)
    server.stats()
    busy_begin = busy_seconds()
    with CachePeak(cache) as seen:
        reply = child.ask("epoch", epoch=epoch)
    busy_end = busy_seconds()
    sent = server.stats()
    count = setting.data["samples"]
    if setting.batches is None and (reply["samples"], reply["labels"]) != (count, count * (count - 1) // 2):
        raise ChildError(f"{child.name} yielded {reply['samples']} samples of {count}, or some twice")
    others = None
    if busy_begin is not None and busy_end is not None:
        others = max(0.0, busy_end - busy_begin - reply["cpu"] - sent["cpu_seconds"])
    fetched = sent["bytes"] / setting.data["bytes"]
    return {**reply, "others": others, "fetched": fetched, "peak": seen.peak_bytes, "server": sent}


def run_rounds(setting: Setting, cases: list[Case], known: list[Case], rounds: int) -> tuple[dict, dict, dict]:
    """Run all rounds; a contender that fails is left out of the remaining rounds.

    Args:
        setting: the parameters that all contenders share.
        cases: the cases to measure.
        known: all cases; one of ``cases`` may run in the process of another of them.
        rounds: their number; in each, every contender has one turn.

    Returns:
        the rounds' figures by case, errors by case, versions by contender.
    """
    names = [case.name for case in cases]
    found: dict[str, list[dict]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    versions: dict[str, dict] = {}
    # A case that was not asked for, but has to run before one that was, runs without being reported.
    turns = [[case, *case.followers(known)] for case in known if not case.follows]
    turns = [turn for turn in turns if {case.name for case in turn} & set(names)]
    for number in range(rounds):
        first = number % len(turns)  # each round begins with another case, so that none always follows the same one
        for lead, *followers in turns[first:] + turns[:first]:
            all_names = [lead.name, *(case.name for case in followers)]
            turn = [name for name in all_names if name in names]
            if errors.keys() & set(turn):
                continue
            epochs = 2 if set(turn) - {lead.name} else 1
            print(f"round {number + 1} of {rounds}: {', '.join(turn)} ...", file=sys.stderr, flush=True)
            try:
                epoch_figures = run_process(setting, lead, epochs, versions)
            except ChildError as failure:
                print(failure, file=sys.stderr)
                errors.update(dict.fromkeys(turn, str(failure)))
                continue
            for name, figures in zip(all_names, epoch_figures, strict=False):
                if name in names:
                    found[name].append(figures)
                    print(f"    {name}: {figures['epoch']:.2f} s", file=sys.stderr, flush=True)
    return {name: figures for name, figures in found.items() if name not in errors}, errors, versions


@contextmanager
def _start_hub(data: dict, cases: list[Case], **speed: float) -> Iterator[SlowServer | None]:
    """The Hub with shards, tables and indexes, if a case needs it. The index of its split has no checksums."""
    if not any(case.hub for case in cases):
        yield None
        return
    with tempfile.TemporaryDirectory(dir=data["directory"]) as root:
        for name in [*data["urls"], *(f"{url}.widx" for url in data["urls"]), *data["indexes"].values()]:
            os.link(os.path.join(data["directory"], name), os.path.join(root, name))
        os.link(os.path.join(root, data["indexes"]["none"]), os.path.join(root, "train.json"))
        with SlowServer(root, hub=HUB_NAME, **speed) as hub:
            yield hub


def main(
    *,
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, every contender has one turn.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, one round: tests the benchmark only.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    data: Annotated[str, typer.Option(help="Keep the shards in this directory, for other runs.")] = "",
    environments: Annotated[
        str, typer.Option("--envs", help="The directory for environments, kept for other runs.")
    ] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
    before: Annotated[str, typer.Option(help="Another checkout of wids, as cases before-NAME.")] = "",
    wait: Annotated[float, typer.Option(help="Maximal seconds to wait for an idle machine before each epoch.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards.")] = jpegs.FULL.shards,
    samples: Annotated[int, typer.Option(min=1, help="Samples in a shard, of about 62 kB.")] = jpegs.FULL.samples,
    checksums: Annotated[
        str, typer.Option(help="Of the index: crc32 (and md5, as wids writes them), md5 (as widsindex does) or none.")
    ] = "crc32",
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Workers of the DataLoader.")] = 2,
    batches: Annotated[int, typer.Option(min=0, help="End an epoch after so many batches; 0: none.")] = 0,
    step_ms: Annotated[float, typer.Option(min=0, help="Sleep of the training loop for each batch.")] = 0,
    delay_ms: Annotated[float, typer.Option(min=0, help="From a request to its reply's first byte.")] = 30,
    mbps: Annotated[float, typer.Option(min=0.1, help="Megabytes (1e6) a second for each connection.")] = 40,
) -> None:
    """Measure epochs over remote shards, and print medians, ratios and targets with the machine."""
    known = list_cases(before)
    names = choose(only, [case.name for case in known], "contender")
    cases = [case for case in known if case.name in names]
    given = dict(pair.split("=", 1) for pair in python or [])
    contenders = {case.contender.name: case.contender for case in cases}
    interpreters = {
        name: given.get(name) or envs.interpreter(contender, environments or envs.default_directory())
        for name, contender in contenders.items()
    }
    about: dict = {"machine": report.machine(), "revision": report.revision(envs.REPOSITORY)}
    about |= {"argv": sys.argv[1:], "quick": quick, "delay_ms": delay_ms, "mbps": mbps}
    scratch = tempfile.mkdtemp(prefix="wids-benchmarks-")
    begin = time.perf_counter()
    try:
        shape = jpegs.QUICK if quick else replace(jpegs.FULL, shards=shards, samples=samples)
        made = jpegs.make(data or os.path.join(scratch, "data"), shape)
        with (
            SlowServer(made["directory"], delay_ms=delay_ms, mbps=mbps) as server,
            _start_hub(made, cases, delay_ms=delay_ms, mbps=mbps) as hub,
            ForkServer() if quick else nullcontext() as forks,
        ):
            setting = Setting(
                data=made,
                server=server,
                hub=hub,
                index=made["indexes"][choose(checksums, list(jpegs.INDEXES), "kind of index")[0]],
                batch=8 if quick else batch,
                workers=workers,
                batches=batches or None,
                step_seconds=step_ms / 1e3,
                patience_seconds=wait,
                reply_seconds=60 if quick else REPLY_SECONDS,
                scratch=scratch,
                interpreters=interpreters,
                forks=forks,
            )
            found, errors, about["versions"] = run_rounds(setting, cases, known, 1 if quick else rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    about |= {"load_after": os.getloadavg()[0], "seconds": time.perf_counter() - begin}
    about |= {"data": {"samples": made["samples"], "bytes": made["bytes"], "shards": len(made["urls"])}}
    summary = cold_report.summarise(found, made["bytes"], mbps * 1e6)
    titles = {case.name: case.title for case in cases}
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    cold_report.show(console, titles, summary, errors, about)
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump({**about, "rounds": found, "errors": errors, **summary}, stream, indent=1)
    if errors or (check and any(target["met"] is False for target in summary["targets"])):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
