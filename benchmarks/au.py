"""Accelerators that a loader keeps at work: the utilisation of MLPerf Storage, of wids and of the peers of peers.py.

    python benchmarks/au.py --data DIR                      all workloads, local and remote, 3 rounds
    python benchmarks/au.py --data DIR --brief              ResNet-50, wids, webdataset and bare, one round
    python benchmarks/au.py --quick --only wids,bare        tiny data: tests the benchmark itself

An accelerator is emulated: it computes for a fixed time after it has received a batch. All accelerators of a run are
fed by one loader. README.md beside this file has the settings and the scaling.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import envs
import peer_data
import peer_measure
import report
import typer
from children import Child, ChildError
from choices import choose
from peer_cases import ALL, Row
from slow_server import SlowServer

WORKERS = 2
TARGET = 0.90
_PLACES = ("local", "remote", "cached")
DEFAULT = ("wids", "wids-threads", "webdataset", "bare", "mosaicml", "litdata", "energon", "hf-arrow", "hf-stream")
_BRIEF = ("wids", "webdataset", "bare")
# The search for the largest number of accelerators ends after so many numbers.
_TRIES = 2
_LARGE = 16  # of U-Net3D: a sample and a step are so many times smaller


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training job of MLPerf Storage, with an H100, or as its title says.

    Attributes:
        name, title: for ``--rows`` and the table.
        shape: its data.
        batch: samples in a batch.
        step: seconds of computing in a step.
        taken: bytes of a sample that the loader hands out, as MLPerf Storage "resizes" it.
    """

    name: str
    title: str
    shape: peer_data.Shape
    batch: int
    step: float
    taken: int


FULL = (
    Workload(
        name="resnet50",
        title="ResNet-50",
        shape=peer_data.Shape(name="resnet50", field="jpg", shards=16, samples=500, sizes=(114_660, 0)),
        batch=400,
        step=0.224,
        taken=150_528,
    ),
    Workload(
        name="unet3d",
        title=f"U-Net3D / {_LARGE}",
        shape=peer_data.Shape(
            name="unet3d", field="jpg", shards=16, samples=7, sizes=(146_600_628 // _LARGE, 68_341_808 // _LARGE)
        ),
        batch=7,
        step=0.323 / _LARGE,
        taken=2_097_152 // _LARGE,
    ),
    Workload(
        name="retinanet",
        title="RetinaNet, B200",
        shape=peer_data.Shape(name="retinanet", field="jpg", shards=16, samples=192, sizes=(322_957, 0)),
        batch=24,
        step=0.04755,
        taken=322_957,
    ),
)
QUICK = (
    Workload(
        name="resnet50",
        title="ResNet-50, tiny",
        shape=peer_data.Shape(name="resnet50", field="jpg", shards=4, samples=20, sizes=(2_000, 0)),
        batch=5,
        step=0.005,
        taken=3_000,
    ),
)


def main(
    *,
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas.")] = "",
    rows: Annotated[str, typer.Option(help="Workloads to run, separated by commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each figure.")] = 3,
    places: Annotated[
        str, typer.Option(help="local, remote (over the slow server), cached (remote, a second epoch); all without it.")
    ] = "",
    brief: Annotated[bool, typer.Option("--brief", help="ResNet-50, three contenders, one round.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, one round: tests the benchmark only.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    data: Annotated[str, typer.Option(help="Keep data and formats in this directory, for other runs.")] = "",
    environments: Annotated[
        str, typer.Option("--envs", help="The directory for environments, kept for other runs.")
    ] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
    delay_ms: Annotated[float, typer.Option(min=0, help="From a request to its reply's first byte.")] = 30,
    mbps: Annotated[float, typer.Option(min=0.1, help="Megabytes (1e6) a second for each connection.")] = 40,
) -> None:
    """Measure how many accelerators each loader keeps at work, and print medians with the machine."""
    names = choose(only or ",".join(_BRIEF if brief else DEFAULT), list(ALL), "contender")
    workloads = QUICK if quick else FULL[:1] if brief else FULL
    chosen = choose(rows, [each.name for each in workloads], "workload")
    where = choose(places, list(_PLACES), "place")
    rounds = 1 if quick or brief else rounds
    given = dict(pair.split("=", 1) for pair in python or [])
    interpreters = {name: given.get(name) or envs.interpreter(ALL[name], _directory(environments)) for name in names}
    about: dict = {"machine": report.machine(), "revision": report.revision(envs.REPOSITORY)}
    found: list[dict] = []
    scratch = tempfile.mkdtemp(prefix="wids-benchmarks-")
    try:
        root = os.path.abspath(data or os.path.join(scratch, "data"))
        with SlowServer(root, delay_ms=delay_ms, mbps=mbps) as server:
            for workload in (each for each in workloads if each.name in chosen):
                bench = peer_measure.Bench(
                    speed={"delay_ms": delay_ms, "mbps": mbps},
                    sets=peer_data.make(root, (workload.shape,)),
                    root=root,
                    scratch=scratch,
                    server=server,
                    batch=workload.batch,
                    other_world=1,
                    entries=ALL,
                    interpreters=interpreters,
                    reply_seconds=300,
                    forks=None,
                )
                row = Row(name=workload.name, title=workload.title, unit="", kind="loader", data=workload.name)
                peer_measure.set_up(bench, names, [row])
                about.setdefault("contenders", {}).update(bench.about)
                for place in where:
                    found.append(_Feeding(bench, workload, row, place=place).measure(rounds))
                    results = {**about, "argv": sys.argv[1:], "rounds": rounds, "rows": found}
                    if json_file:  # after each row, because all of them take an hour
                        with open(json_file, "w", encoding="utf-8") as stream:
                            json.dump(results, stream, indent=1)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    show(results)
    if any(row["errors"] for row in found):
        raise typer.Exit(1)


def _directory(given: str) -> str:
    return given or envs.default_directory()


class _Feeding:
    """The loaders on one workload: first as fast as they can, then with the number of accelerators that follows."""

    def __init__(self, bench: peer_measure.Bench, workload: Workload, row: Row, *, place: str):
        self.bench, self.workload, self.row, self.place = bench, workload, row, place
        self.is_remote = place != "local"
        self.children: dict[str, Child] = {}
        self.errors: dict[str, str] = {}
        self.seed = 0

    def measure(self, rounds: int) -> dict:
        """By contender: samples a second, accelerators for 90 %, the largest measured number, its utilisation."""
        names = [
            name for name in self.bench.about if self.bench.can(name, "remote_loader" if self.is_remote else "loader")
        ]
        with ExitStack() as stack:
            for name in () if self.is_remote else names:
                self.children[name] = stack.enter_context(self.bench.child(name, **self._environ))
            epochs = self._take_turns(dict.fromkeys(names, 0), rounds)
            rates = {name: [reply["units"] / reply["seconds"] for reply in own] for name, own in epochs.items()}
            used: dict[str, dict[int, list[float]]] = {name: {} for name in rates}
            asked = {name: max(int(self._accelerators(own)), 1) for name, own in rates.items()}
            for _ in range(_TRIES):
                for name, own in self._take_turns(asked, rounds).items():
                    used[name][asked[name]] = [reply["utilisation"] for reply in own]
                asked = {name: count for name, own in used.items() if own and (count := _next(own)) is not None}
        place = {"remote": "remote, nothing cached", "cached": "remote, all cached"}.get(self.place, self.place)
        about = {"name": self.workload.name, "title": f"{self.workload.title}, {place}", "place": self.place}
        found = {name: self._summarise(rates[name], used[name]) for name in rates if name not in self.errors}
        return {**about, "contenders": found, "errors": self.errors}

    def _take_turns(self, accelerators: dict[str, int], rounds: int) -> dict[str, list[dict]]:
        """Replies of each contender that does not fail, for its number of accelerators."""
        found: dict[str, list[dict]] = {name: [] for name in accelerators}
        for _ in range(rounds):
            for name, count in accelerators.items():
                if (reply := self._ask(name, count)) is not None:
                    found[name].append(reply)
        return {name: replies for name, replies in found.items() if replies}

    def _summarise(self, rates: list[float], used: dict[int, list[float]]) -> dict:
        medians = {count: median(values) for count, values in used.items()}
        most = max((count for count, value in medians.items() if value >= TARGET), default=0)
        return {
            "samples_per_second": median(rates),
            "accelerators": self._accelerators(rates),
            "most": most,
            "utilisation": medians[most or min(medians)],
            "rates": rates,
            "utilisations": used,
        }

    @property
    def _environ(self) -> dict[str, str]:
        return {"TAKEN_BYTES": str(self.workload.taken)}

    def _accelerators(self, rates: list[float]) -> float:
        """That a rate of samples keeps at 90 %."""
        return median(rates) * self.workload.step / self.workload.batch / TARGET

    def _ask(self, name: str, accelerators: int) -> dict | None:
        """A timed epoch; None: the contender fails, and is left out from then on."""
        if name in self.errors:
            return None
        print(f"{self.workload.name}, {self.place}: {name}, {accelerators} ...", file=sys.stderr, flush=True)
        self.seed += 1
        request = {"set": self.workload.name, "workers": WORKERS, "seed": self.seed, "step": self.workload.step}
        try:
            if self.is_remote:
                cache = os.path.join(self.bench.scratch, "turn", "cache")
                shutil.rmtree(os.path.dirname(cache), ignore_errors=True)
                os.makedirs(os.path.dirname(cache))
                try:
                    # The first ones fill the cache: an epoch may end before the last of its downloads.
                    for count in (accelerators,) if self.place == "remote" else (0, 0, accelerators):
                        with self.bench.child(name, **self._environ) as child:
                            child.greet()
                            reply = child.ask("feed", accelerators=count, cache=cache, **request)
                finally:
                    shutil.rmtree(os.path.dirname(cache), ignore_errors=True)
                    os.sync()  # else these files would be flushed in the turn of the next
            else:
                # The first one is untimed: pages may leave the page cache while others have their turn.
                for count in (0, accelerators):
                    reply = self.children[name].ask("feed", accelerators=count, cache="", **request)
            peer_measure.check_round(self.bench, self.row, name, reply)
        except ChildError as failure:
            print(failure, file=sys.stderr, flush=True)
            self.errors[name] = str(failure).split("\n", 1)[0]
            return None
        return reply


def _next(used: dict[int, list[float]]) -> int | None:
    """The next number of accelerators to try; None: the largest one that is kept at work is known."""
    good = [count for count, values in used.items() if median(values) >= TARGET]
    bad = [count for count, values in used.items() if median(values) < TARGET]
    candidate = max(good) + 1 if good else min(bad) - 1
    return candidate if candidate >= 1 and candidate not in used else None


def show(results: dict) -> None:
    """Print tables in Markdown: accelerators for each core, and the largest measured number with its utilisation."""
    names = list(dict.fromkeys(name for row in results["rows"] for name in row["contenders"]))
    machine = results["machine"]
    print(f"\n{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}; load {machine['load']:.1f}")
    versions = {name: about["versions"].get("torch") for name, about in results["contenders"].items()}
    print(f"torch: {', '.join(f'{name} {version}' for name, version in versions.items())}\n")
    print(f"| | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    for row in results["rows"]:
        found = row["contenders"]
        for words, cell in (
            ("samples/s", lambda one: f"{one['samples_per_second']:,.0f}"),
            ("accelerators for each core at 90 %", lambda one: f"{one['accelerators'] / machine['cores']:.3g}"),
            ("most accelerators, AU measured", _reached),
        ):
            cells = [cell(found[name]) if name in found else "-" for name in names]
            print(f"| {row['title']}: {words} | {' | '.join(cells)} |")
    for row in results["rows"]:
        for name, words in row["errors"].items():
            print(f"{row['title']}: {name} failed: {words}")


def _reached(one: dict) -> str:
    """``4, 93.1 %``; where no number was kept at work: the least that was tried, as ``< 1, 45.2 %``."""
    count = one["most"] or min(one["utilisations"])
    return f"{'' if one['most'] else '< '}{count}, {100 * one['utilisation']:.1f} %"


if __name__ == "__main__":
    typer.run(main)
