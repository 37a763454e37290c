"""wids beside the loaders that people would use instead, on the same samples, in one run.

    python benchmarks/peers.py --data DIR                        everything; DIR keeps data and formats
    python benchmarks/peers.py --data DIR --only wids,webdataset --rounds 1   two minutes
    python benchmarks/peers.py --quick --only wids,bare          seconds; the figures are meaningless

Environments are made with pip, once (``--envs``). README.md beside this file explains the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from typing import Annotated

import envs
import peer_data
import peer_measure
import peer_report
import report
import typer
from choices import choose
from forks import ForkServer
from peer_cases import ALL, PEERS, ROWS, Row
from rich.console import Console
from slow_server import SlowServer


def main(
    *,
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas; all without it.")] = "",
    rows: Annotated[str, typer.Option(help="Rows to run, separated by commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a row; at most 3 of the long ones.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, one round: tests the benchmark only.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    png: Annotated[str, typer.Option(help="Draw the figures to this file.")] = "",
    data: Annotated[str, typer.Option(help="Keep data and formats in this directory, for other runs.")] = "",
    environments: Annotated[
        str, typer.Option("--envs", help="The directory for environments, kept for other runs.")
    ] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
    delay_ms: Annotated[float, typer.Option(min=0, help="From a request to its reply's first byte.")] = 30,
    mbps: Annotated[float, typer.Option(min=0.1, help="Megabytes (1e6) a second for each connection.")] = 40,
    reply_seconds: Annotated[float, typer.Option(min=1, help="A contender that takes longer is left out.")] = 300,
) -> None:
    """Measure the rows, check what is yielded, and print medians and ratios with the machine."""
    names = choose(only or ",".join(PEERS), list(ALL), "contender")
    chosen = [row for row in ROWS if row.name in choose(rows, [row.name for row in ROWS], "row")]
    given = dict(pair.split("=", 1) for pair in python or [])
    given = {name: os.path.abspath(shutil.which(path) or path) for name, path in given.items()}
    interpreters, errors = _install(names, given, environments or envs.default_directory())
    about: dict = {"machine": report.machine(), "revision": report.revision(envs.REPOSITORY)}
    about |= {"argv": sys.argv[1:], "quick": quick, "delay_ms": delay_ms, "mbps": mbps, "batch": 8 if quick else 64}
    begin = time.perf_counter()
    scratch = tempfile.mkdtemp(prefix="wids-benchmarks-")
    try:
        root = os.path.abspath(data or os.path.join(scratch, "data"))
        sets = peer_data.make(root, peer_data.QUICK if quick else peer_data.FULL)
        with (
            SlowServer(root, delay_ms=delay_ms, mbps=mbps) as server,
            ForkServer() if quick else nullcontext() as forks,
        ):
            bench = peer_measure.Bench(
                speed={"delay_ms": delay_ms, "mbps": mbps},
                sets=sets,
                root=root,
                scratch=scratch,
                server=server,
                batch=about["batch"],
                other_world=1 if quick else 4,
                entries=ALL,
                interpreters=interpreters,
                reply_seconds=min(reply_seconds, 60) if quick else reply_seconds,
                forks=forks,
                errors={"start": errors},
            )
            _measure(bench, chosen, 1 if quick else rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    about |= {"load_after": os.getloadavg()[0], "seconds": time.perf_counter() - begin, "contenders": bench.about}
    about |= {"sets": {name: {key: one[key] for key in ("samples", "bytes")} for name, one in sets.items()}}
    results = {**about, **peer_report.summarise(chosen, bench.figures, bench.texts, bench.errors)}
    console = Console(width=None if sys.stdout.isatty() else 250, highlight=False)
    peer_report.show(console, results)
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump(results, stream, indent=1)
    if png:
        peer_report.draw(results, png)
    if any(bench.errors.values()):
        raise typer.Exit(1)


def _install(names: list[str], given: dict[str, str], directory: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the interpreters by contender, and why others have none."""
    found, errors = {}, {}
    for name in names:
        try:
            found[name] = given.get(name) or envs.interpreter(ALL[name], directory)
        except SystemExit as failure:
            errors[name] = f"cannot be installed: {failure}"
            print(errors[name], file=sys.stderr)
    return found, errors


def _measure(bench: peer_measure.Bench, rows: list[Row], rounds: int) -> None:
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    peer_measure.set_up(bench, list(bench.interpreters), rows)
    timed = [row for row in rows if row.kind in {"items", "loader"}]
    for workers in sorted({row.workers for row in timed}):
        peer_measure.run_timed(bench, [row for row in timed if row.workers == workers], rounds)
    for row in kinds.get("memory", []):
        peer_measure.run_memory(bench, row, min(rounds, 2))
    for row in kinds.get("resume", []):
        peer_measure.run_resume(bench, row)
    if "cold" in kinds:
        peer_measure.run_cold(bench, kinds["cold"], min(rounds, 3))
    if "hub" in kinds:
        peer_measure.run_hub(bench, kinds["hub"], min(rounds, 3))
    if "open" in kinds:
        peer_measure.run_open(bench, kinds["open"], min(rounds, 3))


if __name__ == "__main__":
    typer.run(main)
