"""Figures of peers.py: medians, ratios, the printed table, a page in Markdown and a picture.

python benchmarks/peer_report.py FIGURES.json                     the tables of README.md
python benchmarks/peer_report.py FIGURES.json --png peers.png     the picture
python benchmarks/peer_report.py FIGURES.json --against OTHER.json   how far the ratios of two runs agree
"""

from __future__ import annotations

import io
import json
import sys
from statistics import median
from typing import TYPE_CHECKING, Annotated

import report
import typer
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from peer_cases import Row
    from rich.console import Console

OURS = "wids"
# Figures that say nothing about speed, and those of one round: they are no part of the agreement of two runs.
_COUNTS = {"bytes-cold", "requests-cold", "bytes-hub", "requests-hub", "prepare-bytes", "memory", "open-memory"}
_PICTURE_ROWS = {
    "random-jpeg20": "one sample of 20 kB, random (µs)",
    "epoch2-text": "epoch of texts, 2 workers (µs a sample)",
    "decode2": "epoch of decoded JPEG, 2 workers (µs a sample)",
    "first-cold": "first batch, remote, nothing cached (s)",
    "epoch-cold": "epoch, remote, nothing cached (s)",
    "memory": "memory of an epoch, 2 workers (MB)",
    "prepare": "from tars to its format (s)",
    "open-again": "open 100,000 shards (s)",
}
_TEXT_TITLES = {
    "resume-same": "the rest of the epoch, resumed on the same 2 ranks",
    "resume-other": "the same, saved on 2 ranks and resumed on 4",
}
_OURS_COLOUR, _PEERS_COLOUR = "#0072b2", "#a8b0b8"


def summarise(rows: list[Row], figures: dict, texts: dict, errors: dict) -> dict:
    """Compute medians, ranges and ratios.

    Args:
        rows: those that were run.
        figures: by row and contender, of each round, in the row's unit.
        texts: by row and contender, what is not a figure.
        errors: by row and contender.

    Returns:
        ``rows``: name, title, unit, and by contender ``figures`` (median, min, max, rounds) and ``ratios`` (to ours:
        the median of the rounds' own); ``texts`` and ``errors`` as given.
    """
    found = []
    for row in rows:
        given = {name: values for name, values in figures.get(row.name, {}).items() if values}
        found.append(
            {
                "name": row.name,
                "title": row.title,
                "unit": row.unit,
                "figures": {
                    name: {"median": median(values), "min": min(values), "max": max(values), "rounds": values}
                    for name, values in given.items()
                },
                "ratios": _ratios(given),
            }
        )
    return {"rows": found, "texts": texts, "errors": {name: told for name, told in errors.items() if told}}


def _ratios(given: dict[str, list[float]]) -> dict[str, float]:
    """To ours: the median of the rounds' own; of the medians where one has fewer rounds."""
    ours = given.get(OURS, [])
    if not ours or not all(ours):
        return {}
    return {
        name: median(theirs / mine for theirs, mine in zip(values, ours, strict=True))
        if len(values) == len(ours)
        else median(values) / median(ours)
        for name, values in given.items()
        if name != OURS
    }


def show(console: Console, results: dict) -> None:
    """Print the machine, the versions, a table of figures with ratios, answers in words, and what failed."""
    report.show_machine(console, results)
    for name, one in results["contenders"].items():
        versions = ", ".join(f"{package} {version}" for package, version in one["versions"].items())
        console.print(escape(f"{name}: {versions}\n    {one['settings']}"))
    names = list(results["contenders"])
    table = Table(caption="medians of the rounds; below, of ours: the median of the rounds' ratios")
    table.add_column("row")
    table.add_column("unit")
    for name in names:
        table.add_column(name, justify="right")
    for row in results["rows"]:
        cells = [_cell(row, name, results["errors"].get(row["name"], {})) for name in names]
        table.add_row(escape(row["title"]), row["unit"], *cells, end_section=True)
    console.print(table)
    for row_name, told in results["texts"].items():
        for name, text in told.items():
            console.print(escape(f"{row_name}: {name}: {text}"))
    for row_name, failed in results["errors"].items():
        for text in failed.values():
            console.print(escape(f"failed, {row_name}: {text}"))
    for name, one in results["contenders"].items():
        for kind, why in one["notes"].items():
            console.print(escape(f"not measured: {name}, {kind}: {why}"))


def _cell(row: dict, name: str, errors: dict) -> str:
    if name in errors:
        return "[red]failed[/red]"
    if name not in row["figures"]:
        return "-"
    text = number(row["figures"][name]["median"])
    ratio = row["ratios"].get(name)
    return text if ratio is None else f"{text}\n{number(ratio)}x"


def number(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.4f}"


def as_markdown(results: dict) -> str:
    """The tables of the page of results."""
    names = list(results["contenders"])
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in results["rows"]:
        unit = f", {row['unit']}" if row["unit"] else ""
        lines.append(f"| {row['title']}{unit} | " + " | ".join(_mark(row, name, results) for name in names) + " |")
    for row_name, told in results["texts"].items():
        title = _TEXT_TITLES.get(row_name, row_name)
        lines.append(f"| {title} | " + " | ".join(_shorten(told.get(name, "-")) for name in names) + " |")
    return "\n".join(lines)


def _shorten(text: str) -> str:
    """An answer in a few words; the whole of it is in the figures."""
    return text.split(":", 1)[0] if text.startswith("refused") else text


def _mark(row: dict, name: str, results: dict) -> str:
    if name in results["errors"].get(row["name"], {}):
        return "failed"
    if name not in row["figures"]:
        return "-"
    values = {other: one["median"] for other, one in row["figures"].items() if other != "bare"}
    text = number(row["figures"][name]["median"])
    return f"**{text}**" if values and row["figures"][name]["median"] == min(values.values()) else text


def draw(results: dict, path: str) -> None:
    """Draw one panel for each of the main rows: bars from 0, the best one on top."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    rows = [row for row in results["rows"] if row["name"] in _PICTURE_ROWS and OURS in row["figures"]]
    columns = min(3, max(1, len(rows)))
    lines = -(-len(rows) // columns) or 1
    # 800 pixels wide at half of the file's size, as the READMEs are shown.
    figure, axes = plt.subplots(
        lines, columns, figsize=(8 / 3 * columns, 2.05 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(rows) :]:
        axis.set_axis_off()
    for axis, row in zip(axes.flat, rows, strict=False):
        bars = sorted(row["figures"].items(), key=lambda pair: -pair[1]["median"])
        names = [name for name, _ in bars]
        values = [one["median"] for _, one in bars]
        axis.barh(names, values, color=[_OURS_COLOUR if name == OURS else _PEERS_COLOUR for name in names])
        for place, value in enumerate(values):
            axis.annotate(
                number(value), (value, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5
            )
        title = _PICTURE_ROWS[row["name"]]
        axis.set_title(title if len(title) < 33 else title.replace(" (", "\n("), fontsize=8, loc="left")
        axis.tick_params(labelsize=7.5)
        axis.tick_params(axis="x", which="both", labelbottom=False, length=0)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_xlim(0, 1.3 * max(values))
    figure.suptitle("Shorter bars are better", fontsize=9)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=200)
    plt.close(figure)
    # Few colours: a quarter of the bytes.
    Image.open(drawn).convert("RGB").quantize(32).save(path, "PNG", optimize=True)


def agreement(one: dict, other: dict) -> list[tuple[str, str, float]]:
    """Row, contender, and the quotient of the two runs' ratios, at least 1, the largest first."""
    others = {row["name"]: row["ratios"] for row in other["rows"]}
    found = []
    for row in one["rows"]:
        for name, ratio in row["ratios"].items():
            if row["name"] not in _COUNTS and name in others.get(row["name"], {}):
                quotient = ratio / others[row["name"]][name]
                found.append((row["name"], name, max(quotient, 1 / quotient)))
    return sorted(found, key=lambda item: -item[2])


def main(
    figures: Annotated[str, typer.Argument(help="What peers.py --json wrote.")],
    *,
    png: Annotated[str, typer.Option(help="Draw the picture to this file.")] = "",
    against: Annotated[str, typer.Option(help="The figures of another run: compare the ratios.")] = "",
) -> None:
    """Print the tables of a run in Markdown, draw its picture, or compare it with another run."""
    with open(figures, encoding="utf-8") as stream:
        results = json.load(stream)
    if png:
        draw(results, png)
    if against:
        with open(against, encoding="utf-8") as stream:
            pairs = agreement(results, json.load(stream))
        within = sum(quotient <= 1.15 for _, _, quotient in pairs)
        print(f"{within} of {len(pairs)} ratios agree within 15 %; the others:")
        for row, name, quotient in pairs:
            if quotient > 1.15:
                print(f"    {row}, {name}: {quotient:.2f}")
    if not png and not against:
        sys.stdout.write(as_markdown(results) + "\n")


if __name__ == "__main__":
    typer.run(main)
