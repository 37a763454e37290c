"""How fast training begins and goes on when its shards are far away: 30 ms to the first byte, 40 MB/s a connection.

    python benchmarks/cold.py --data DIR                      everything, five to ten minutes; DIR keeps the data (1 GB)
    python benchmarks/cold.py --data DIR --only ours,local --rounds 1     half a minute: for tuning
    python benchmarks/cold.py --quick --only ours,local,second,quarter    seconds; the figures mean nothing

Each contender is a process of its own in each round, with an empty cache directory; see README.md beside this file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Annotated

import cold_report
import envs
import jpegs
import report
import typer
from children import REPLY_SECONDS, Child, ChildError
from cold_cases import CASES, Case
from cold_watch import CachePeak, busy_seconds, wait_for_quiet
from rich.console import Console
from slow_server import SlowServer


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all contenders have in common; each epoch waits ``patience_seconds`` at most for others to be quiet."""

    data: dict
    server: SlowServer
    index: str
    batch: int
    workers: int
    step_seconds: float
    patience_seconds: float
    reply_seconds: float
    scratch: str
    interpreters: dict[str, str]


def run_process(setting: Setting, case: Case, epochs: int, versions: dict) -> list[dict]:
    """One contender's process, from an empty cache on; the figures of each of its epochs.

    Raises:
        ChildError: it failed, or did not yield each sample once.
    """
    home = os.path.join(setting.scratch, "turn")
    cache = os.path.join(home, "cache")
    where = setting.server.url if case.is_remote else setting.data["directory"]
    options = dict(case.options)
    if case.bound is not None:
        options["dataset"] = {"cache_size": int(setting.data["bytes"] * case.bound)}
    given = {
        "index": f"{where}/{setting.index}",
        "urls": [f"{where}/{name}" for name in setting.data["urls"]],
        "cache_dir": cache,
        "batch": setting.batch,
        "workers": setting.workers,
        "step_seconds": setting.step_seconds,
        "options": options,
    }
    os.makedirs(home)
    job = os.path.join(home, "job.json")
    with open(job, "w", encoding="utf-8") as stream:
        json.dump(given, stream)
    # curl and others would ask a proxy for loopback addresses too.
    entry = replace(case.contender, environ={**case.contender.environ, "no_proxy": "127.0.0.1"})
    try:
        limit = setting.reply_seconds
        with Child(entry, setting.interpreters[entry.name], job, home, reply_seconds=limit) as child:
            child.greet()
            versions[entry.name] = child.versions
            return [_run_epoch(setting, child, cache, epoch) for epoch in range(epochs)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.sync()  # what one contender wrote is not to be flushed in the turn of the next


def _run_epoch(setting: Setting, child: Child, cache: str, epoch: int) -> dict:
    wait_for_quiet(setting.patience_seconds)
    setting.server.stats()
    busy_begin = busy_seconds()
    with CachePeak(cache) as seen:
        told = child.ask("epoch", epoch=epoch)
    busy_end = busy_seconds()
    sent = setting.server.stats()
    count = setting.data["samples"]
    if (told["samples"], told["labels"]) != (count, count * (count - 1) // 2):
        raise ChildError(f"{child.name} yielded {told['samples']} samples of {count}, or some twice")
    others = None
    if busy_begin is not None and busy_end is not None:
        others = max(0.0, busy_end - busy_begin - told["cpu"] - sent["cpu_seconds"])
    fetched = sent["bytes"] / setting.data["bytes"]
    return {**told, "others": others, "fetched": fetched, "peak": seen.peak_bytes, "server": sent}


def run_rounds(setting: Setting, cases: list[Case], rounds: int) -> tuple[dict, dict, dict]:
    """All rounds; a contender that fails is left out of those that are left.

    Args:
        setting: what all have in common.
        cases: who takes part.
        rounds: in each, everyone has one turn.

    Returns:
        the rounds' figures by case, errors by case, versions by contender.
    """
    names = [case.name for case in cases]
    found: dict[str, list[dict]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    versions: dict[str, dict] = {}
    # Whoever is not asked for, but has to run first, runs and is not told.
    leads = [case for case in CASES if not case.follows and {case.name, *case.followers()} & set(names)]
    for number in range(rounds):
        first = number % len(leads)  # each round begins with another, so that none always follows the same
        for lead in leads[first:] + leads[:first]:
            turn = [name for name in (lead.name, *lead.followers()) if name in names]
            if errors.keys() & set(turn):
                continue
            epochs = 2 if set(turn) - {lead.name} else 1
            print(f"round {number + 1} of {rounds}: {', '.join(turn)} ...", file=sys.stderr, flush=True)
            try:
                told = run_process(setting, lead, epochs, versions)
            except ChildError as failure:
                print(failure, file=sys.stderr)
                errors.update(dict.fromkeys(turn, str(failure)))
                continue
            for name, figures in zip((lead.name, *lead.followers()), told, strict=False):
                if name in names:
                    found[name].append(figures)
    return {name: figures for name, figures in found.items() if name not in errors}, errors, versions


def main(
    *,
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; in each, every contender has one turn.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, one round: tests the benchmark only.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    data: Annotated[str, typer.Option(help="Keep the shards in this directory, for other runs.")] = "",
    environments: Annotated[str, typer.Option("--envs", help="Where environments are made and found again.")] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
    wait: Annotated[float, typer.Option(help="Before each epoch, seconds to wait at most for an idle machine.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Number of shards.")] = jpegs.FULL.shards,
    samples: Annotated[int, typer.Option(min=1, help="Samples in a shard, of about 62 kB.")] = jpegs.FULL.samples,
    md5: Annotated[bool, typer.Option(help="Whether the index has md5 sums, as widsindex writes them.")] = True,
    batch: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Workers of the DataLoader.")] = 2,
    step_ms: Annotated[float, typer.Option(min=0, help="What the training loop sleeps for each batch.")] = 0,
    delay_ms: Annotated[float, typer.Option(min=0, help="From a request to its reply's first byte.")] = 30,
    mbps: Annotated[float, typer.Option(min=0.1, help="Megabytes (1e6) a second for each connection.")] = 40,
) -> None:
    """Measure epochs over remote shards, and print medians, ratios and targets with the machine."""
    cases = _choose(only)
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
        with SlowServer(made["directory"], delay_ms=delay_ms, mbps=mbps) as server:
            setting = Setting(
                data=made,
                server=server,
                index=made["indexes"]["md5" if md5 else "plain"],
                batch=8 if quick else batch,
                workers=workers,
                step_seconds=step_ms / 1e3,
                patience_seconds=wait,
                reply_seconds=60 if quick else REPLY_SECONDS,
                scratch=scratch,
                interpreters=interpreters,
            )
            found, errors, about["versions"] = run_rounds(setting, cases, 1 if quick else rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    about |= {"load_after": os.getloadavg()[0], "seconds": time.perf_counter() - begin}
    about |= {"data": {"samples": made["samples"], "bytes": made["bytes"], "shards": len(made["urls"])}}
    told = cold_report.summarise(found, made["bytes"], mbps * 1e6)
    titles = {case.name: case.title for case in cases}
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    cold_report.show(console, titles, told, errors, about)
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump({**about, "rounds": found, "errors": errors, **told}, stream, indent=1)
    if errors or (check and any(target["met"] is False for target in told["targets"])):
        raise typer.Exit(1)


def _choose(text: str) -> list[Case]:
    """The cases named in ``text``, in the order of the table; all if it is empty."""
    asked = {name.strip() for name in text.split(",") if name.strip()}
    known = [case.name for case in CASES]
    if unknown := asked.difference(known):
        raise typer.BadParameter(f"no contender is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [case for case in CASES if not asked or case.name in asked]


if __name__ == "__main__":
    typer.run(main)
