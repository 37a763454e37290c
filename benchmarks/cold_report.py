"""Figures of cold.py: medians of the rounds, ratios within each round, targets, and the printed table."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING

import report
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

# The limit of a cold epoch is at least the data's transfer time over so many connections.
CONNECTIONS = 8
# Rounds are reported as disturbed in which other programs used a larger share of the machine.
MAX_OTHERS_SHARE = 0.05
MARKS = {None: "not measured", True: "[green]met[/green]", False: "[red]MISSED[/red]"}


def summarise(rounds: dict[str, list[dict]], data_bytes: int, bytes_per_second: float) -> dict:
    """Compute medians of all figures by case, ratios to ``local`` by case, the targets, and the disturbed rounds.

    Args:
        rounds: for each case the figures of each round, in the order of the rounds.
        data_bytes: of all shards together.
        bytes_per_second: of one connection.
    """
    medians = {name: _medians(figures) for name, figures in rounds.items() if figures}
    against = {"mix": "mix-local"}
    ratios = {name: _ratio(rounds, name, against.get(name, "local")) for name in rounds if name != "local"}
    floor_seconds = data_bytes / (CONNECTIONS * bytes_per_second)
    cold_limit = 1.15
    if "local" in medians:
        cold_limit = max(cold_limit, floor_seconds / medians["local"]["epoch"])
    targets = [
        _at_most("cold epoch, of the local one", ratios.get("ours"), cold_limit),
        _at_most("with a cache of a quarter, of the local one", ratios.get("quarter"), 1.3),
        _at_most("with a cache of 5 shards, window + 1, of the local one", ratios.get("limit5"), 1.25),
        _at_most("with a cache of 3 shards, window - 1, of the local one", ratios.get("limit3"), 2.0),
        _at_most("with 3 shards, without published tables, of the local one", ratios.get("bare3"), 2.0),
        _at_most("likewise, next epoch", ratios.get("bare3-second"), 1.5),
        _at_most("with 2 shards, without published tables, of the local one", ratios.get("bare2"), 2.2),
        _at_most("likewise, next epoch", ratios.get("bare2-second"), 1.5),
        _at_most("from the Hub, of the same without a hub", _ratio(rounds, "hub", "ours"), 1.1),
        _at_most("from the Hub by name, of the same without a hub", _ratio(rounds, "hub-name", "ours"), 1.1),
        _at_most("by byte ranges alone, of the local one", ratios.get("range"), 2.0),
        _at_most("bytes by byte ranges alone, of the data", _fetched(rounds.get("range")), 1.5),
        _at_most("a mixture, of the same from local shards", ratios.get("mix"), 1.25),
        _at_most("bytes for a mixture, of the data", _fetched(rounds.get("mix")), 1.05),
        _at_most("next epoch, of the local one", ratios.get("second"), 1.05),
        _at_least("faster than the original", _ratio(rounds, "original", "ours"), 2.0),
        _at_most("bytes in the cache of a quarter, of the data", _peak(rounds.get("quarter"), data_bytes), 0.25),
    ]
    return {
        "medians": medians,
        "ratios": {name: ratio for name, ratio in ratios.items() if ratio is not None},
        "floor_seconds": floor_seconds,
        "disturbed": disturbed(rounds, os.cpu_count() or 1),
        "targets": targets,
    }


def disturbed(rounds: dict[str, list[dict]], cores: int) -> dict[str, list[int]]:
    """Find, by case, the rounds (from 1) in which other programs used more than their share of ``cores`` cores."""
    found = {
        name: [
            number
            for number, one in enumerate(figures, 1)
            if one["others"] is not None and one["others"] > MAX_OTHERS_SHARE * cores * one["epoch"]
        ]
        for name, figures in rounds.items()
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def _medians(figures: list[dict]) -> dict:
    flat = [{**one, **{f"server_{name}": value for name, value in one["server"].items()}} for one in figures]
    found = {name: _median([one[name] for one in flat]) for name in flat[0] if name != "server"}
    found["speed"] = median(one["samples"] / one["epoch"] for one in flat)
    return found | {"epoch_min": min(one["epoch"] for one in flat), "epoch_max": max(one["epoch"] for one in flat)}


def _median(values: list[float | None]) -> float | None:
    return None if None in values else median(values)


def _ratio(rounds: dict[str, list[dict]], name: str, against: str) -> float | None:
    """Divide one case's epoch time by another's: the median of the rounds' own ratios; None if not measured."""
    ours, theirs = rounds.get(name), rounds.get(against)
    if not ours or not theirs:
        return None
    return median(one["epoch"] / other["epoch"] for one, other in zip(ours, theirs, strict=True))


def _fetched(figures: list[dict] | None) -> float | None:
    return median(one["fetched"] for one in figures) if figures else None


def _peak(figures: list[dict] | None, data_bytes: int) -> float | None:
    return max(one["peak"] for one in figures) / data_bytes if figures else None


def _at_most(text: str, value: float | None, limit: float) -> dict:
    return {"text": text, "limit": f"<= {limit:.3g}x", "value": value, "met": None if value is None else value <= limit}


def _at_least(text: str, value: float | None, limit: float) -> dict:
    return {"text": text, "limit": f">= {limit:.3g}x", "value": value, "met": None if value is None else value >= limit}


COLUMNS = (
    "first\nbatch, s",
    "epoch, s\nmin - max",
    "samples\n/ s",
    "worst\nstall, s",
    "fetched\nx data",
    "re-\nquests",
    "at\nonce",
    "cache,\nMB",
    "CPU, s",
    "server\nCPU, s",
    "others'\nCPU, s",
    "x local",
)


def show(console: Console, titles: dict[str, str], summary: dict, errors: dict[str, str], about: dict) -> None:
    """Print the machine, the setting, one line for each case, and the targets."""
    report.show_machine(console, about)
    data = about["data"]
    console.print(
        f"{data['samples']:,} samples in {data['shards']} shards, {data['bytes'] / 1e6:,.0f} MB; first byte after "
        f"{about['delay_ms']:g} ms, {about['mbps']:g} MB/s a connection: "
        f"{summary['floor_seconds']:.2f} s for {CONNECTIONS} connections"
    )
    table = Table(caption="medians of the rounds; ratios are medians of the rounds' ratios")
    table.add_column("contender", no_wrap=True)
    for title in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for name, title in titles.items():
        table.add_row(title, *_cells(name, summary, errors))
    console.print(table)
    if summary["disturbed"]:
        where = "; ".join(f"{name} {', '.join(map(str, numbers))}" for name, numbers in summary["disturbed"].items())
        console.print(f"other programs took more than {MAX_OTHERS_SHARE:.0%} of the machine in the rounds of {where}")
    for target in summary["targets"]:
        value = "" if target["value"] is None else f"{target['value']:.3g}x "
        console.print(f"{MARKS[target['met']]}  {value}{target['text']} ({target['limit']})")


def _cells(name: str, summary: dict, errors: dict[str, str]) -> list[str]:
    if name in errors:
        return ["[red]failed[/red]"]
    f = summary["medians"][name]
    ratio = summary["ratios"].get(name)
    return [
        f"{f['first']:.2f}",
        f"{f['epoch']:.2f}\n{f['epoch_min']:.1f} - {f['epoch_max']:.1f}",
        f"{f['speed']:,.0f}",
        f"{f['worst']:.2f}",
        f"{f['fetched']:.2f}",
        f"{f['server_requests']:.0f}",
        f"{f['server_at_once']:.0f}",
        f"{f['peak'] / 1e6:,.0f}",
        f"{f['cpu']:.1f}",
        f"{f['server_cpu_seconds']:.1f}",
        "?" if f["others"] is None else f"{f['others']:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
    ]
