"""The benchmark of reading: every contender in its own process, taking turns within each round; one table at the end.

    python benchmarks/run.py                      everything (one to two minutes, after the environments are made)
    python benchmarks/run.py --quick --only ours,bare

README.md beside this file explains the rows.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Annotated

import envs
import report
import shards
import typer
from children import Child, ChildError
from choices import choose
from forks import ForkServer
from measure import measure, verify
from rich.console import Console
from rows import ROWS


def main(
    *,
    rows: Annotated[str, typer.Option(help="Rows to run, separated by commas; all without it.")] = "",
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each row.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, two rounds: tests the benchmark only.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    data: Annotated[str, typer.Option(help="Keep the shards in this directory, for other runs.")] = "",
    environments: Annotated[
        str, typer.Option("--envs", help="The directory for environments, kept for other runs.")
    ] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
    before: Annotated[str, typer.Option(help="Another checkout of wids, as the contender `before`.")] = "",
) -> None:
    """Measure the rows and print medians, ratios and targets with the machine."""
    chosen = choose(rows, [row.name for row in ROWS], "row")
    contenders = dict(envs.CONTENDERS)
    if before:
        contenders["before"] = envs.CONTENDERS["ours"].of_checkout(before)
    names = choose(only, list(contenders), "contender")
    given = dict(pair.split("=", 1) for pair in python or [])
    scratch = tempfile.mkdtemp(prefix="wids-benchmarks-")
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    begin = time.perf_counter()
    try:
        manifest = shards.make(data or os.path.join(scratch, "data"), shards.QUICK if quick else shards.FULL)
        with open(manifest, encoding="utf-8") as stream:
            sets = json.load(stream)["sets"]
        about: dict = {"machine": report.machine(), "revision": report.revision(envs.REPOSITORY)}
        about |= {"argv": sys.argv[1:], "quick": quick}
        with ExitStack() as stack:
            forks = stack.enter_context(ForkServer()) if quick else None
            children = []
            for name in names:
                entry = contenders[name]
                interpreter = given.get(name) or envs.interpreter(entry, environments or envs.default_directory())
                child = stack.enter_context(Child(entry, interpreter, manifest, scratch, forks=forks))
                child.greet()
                children.append(child)
            about["versions"] = {child.name: child.versions for child in children}
            about["verified"] = verify(children, sets)
            results = [
                measure(row, children, sets, min(2 if quick else rounds, row.max_rounds), is_quick=quick)
                for row in ROWS
                if row.name in chosen
            ]
        about["load_after"] = os.getloadavg()[0]
        about["seconds"] = time.perf_counter() - begin
    except ChildError as failure:
        raise SystemExit(str(failure)) from failure
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.show(console, results, names, about)
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump({**about, "rows": results}, stream, indent=1)
    broken = any(result["errors"] for result in results)
    missed = any(target["met"] is False for result in results for target in result["targets"])
    if broken or (check and missed):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
