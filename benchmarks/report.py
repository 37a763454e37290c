"""Figures of the rounds: medians, ranges, ratios and verdicts, printed as a table with the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from rows import Row, Target

OURS = "ours"


def summarise(row: Row, seconds: dict[str, list[float]], facts: dict, errors: dict[str, str]) -> dict:
    """Compute one row's result.

    Args:
        row: what was measured.
        seconds: for each contender, seconds per unit of work of each round, in the order of the rounds.
        facts: facts that ``ours`` reported beside the timing.
        errors: contenders that failed, with the reason.
    """
    figures = {
        name: {
            "median": median(values) * row.scale,
            "min": min(values) * row.scale,
            "max": max(values) * row.scale,
            "rounds": [value * row.scale for value in values],
        }
        for name, values in seconds.items()
    }
    return {
        "name": row.name,
        "title": row.title,
        "unit": row.unit,
        "figures": figures,
        "ratios": _ratios(seconds),
        "facts": facts,
        "errors": errors,
        "targets": [_verdict(target, seconds, figures, facts) for target in row.targets],
    }


def _ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Divide each other contender's cost by ours: the median of the rounds' own ratios.

    A round's contenders run within a second or so of each other, so a slow phase of the machine affects both.
    """
    ours = seconds.get(OURS, [])
    return {
        name: median(theirs / mine for theirs, mine in zip(values, ours, strict=True))
        for name, values in seconds.items()
        if name != OURS and len(values) == len(ours) and ours
    }


def _verdict(target: Target, seconds: dict, figures: dict, facts: dict) -> dict:
    """Return the target with the value reached and whether it is met; None for both if it was not measured."""
    value: float | bool | None = None
    if target.kind == "absent":
        value = facts.get(target.against)
        met = None if value is None else not value
    elif target.kind == "at_most":
        value = figures.get(OURS, {}).get("median")
        met = None if value is None else value <= target.value
    else:
        ratio = _ratios(seconds).get(target.against)
        if target.kind == "faster":
            value, met = ratio, None if ratio is None else ratio >= target.value
        else:
            value = None if ratio is None else 1 / ratio
            met = None if value is None else value <= target.value
    return {"kind": target.kind, "against": target.against, "target": target.value, "text": str(target)} | {
        "value": value,
        "met": met,
    }


def machine() -> dict:
    """Describe the machine."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            model = next((line.split(":")[1].strip() for line in stream if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "load": os.getloadavg()[0],
    }


def revision(repository: str) -> str:
    """Return the measured commit, with "-dirty" if files differ from it; empty outside a checkout."""
    command = ["git", "-C", repository, "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()


def show_machine(console: Console, about: dict) -> None:
    """Print the machine, its load, the revision and the versions, if ``about`` has those of all contenders together."""
    spec = about["machine"]
    console.print(
        f"{spec['cpu']}, {spec['cores']} cores, {spec['kernel']} {spec['architecture']}, "
        f"load {spec['load']:.2f} before and {about['load_after']:.2f} after"
    )
    console.print(f"revision {about['revision'] or 'unknown'}, {about['seconds']:.0f} s in all")
    for name, versions in about.get("versions", {}).items():
        console.print(f"{name}: " + ", ".join(f"{package} {version}" for package, version in versions.items()))


def show(console: Console, results: list[dict], contenders: list[str], about: dict) -> None:
    """Print the machine, the versions and one line for each row."""
    show_machine(console, about)
    table = Table(caption="median (min - max) of the rounds; ratios are medians of the rounds' ratios")
    table.add_column("row")
    table.add_column("unit")
    for name in contenders:
        table.add_column(name, justify="right")
    table.add_column("ours against")
    for result in results:
        cells = [_cell(result, name) for name in contenders]
        table.add_row(escape(result["title"]), result["unit"], *cells, _comparison(result), end_section=True)
    console.print(table)


def _cell(result: dict, name: str) -> str:
    if name in result["errors"]:
        return "[red]failed[/red]"
    if name not in result["figures"]:
        return "-"
    figure = result["figures"][name]
    return f"{figure['median']:.3g}\n({figure['min']:.3g} - {figure['max']:.3g})"


def _comparison(result: dict) -> str:
    """Return every ratio, with the verdict where there is a target."""
    lines, shown_ratios = [], set()
    for target in result["targets"]:
        shown_ratios.add(target["against"])
        mark = {None: "not measured", True: "[green]met[/green]", False: "[red]MISSED[/red]"}[target["met"]]
        value = target["value"]
        shown = "" if value is None or isinstance(value, bool) else f"{value:.3g}"
        if target["kind"] == "faster":
            lines.append(f"{target['against']}: {shown}x faster ({target['text']}) {mark}")
        elif target["kind"] == "within":
            lines.append(f"{target['against']}: {shown}x its cost ({target['text']}) {mark}")
        else:
            lines.append(f"{shown} ({target['text']}) {mark}".strip())
    for name, ratio in result["ratios"].items():
        if name not in shown_ratios:
            lines.append(f"{name}: {ratio:.3g}x faster" if ratio >= 1 else f"{name}: {1 / ratio:.3g}x its cost")
    return "\n".join(lines)


def show_table(table: Table, about: str, *, repository: str, is_quick: bool) -> None:
    """Print a table with the machine, the revision and ``about``; as wide as the terminal, else 120 columns."""
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(", ".join(str(value) for value in machine().values()))
    console.print(f"revision {revision(repository)}; {about}")
    console.print(table)
    if is_quick:
        console.print("quick: the data are too small for these figures to mean anything")
