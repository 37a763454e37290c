"""A simulation as one page that needs nothing else: tables, and curves as SVG; no scripts."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from wids.cli.simulate.picture import MOST_NAMED, panels
from wids.cli.simulate.report import traffic_table
from wids.osfiles.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.cli.simulate.report import Report

# Of lines on a light page, and on a dark one.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98000", "#3d9bd0", "#7a5195", "#555555")
_DARK_COLOURS = ("#4aa8e0", "#f0803c", "#2fc79b", "#e19ac4", "#e69f00", "#8ccbf2", "#b08fd0", "#b5b5b5")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 860, 214, 76, 24, 50, 12
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --words: #222; --less: #5c5c5c; --grid: #ddd; --axis: #888; LIGHT }
@media (prefers-color-scheme: dark) {
:root { --page: #17191c; --words: #e4e4e4; --less: #a8a8a8; --grid: #3a3d42; --axis: #8a8a8a; DARK } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em;
background: var(--page); color: var(--words); overflow-wrap: anywhere; }
h1 { font-size: 1.25em; } h2 { font-size: 1.05em; margin: 1.6em 0 .1em; }
.wide { overflow-x: auto; overflow-wrap: normal; } table { border-collapse: collapse; }
td, th { padding: .2em 1.2em .2em 0; text-align: left; vertical-align: top; }
table.figures td, table.figures th { text-align: right; vertical-align: bottom; white-space: nowrap;
border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; } text { font: 12px system-ui, sans-serif; fill: var(--less); }
.grid { stroke: var(--grid); } .axis { stroke: var(--axis); } .bound { stroke: var(--words); stroke-dasharray: 5 4; }
polyline { fill: none; stroke-width: 1.5; stroke-opacity: .9; }
.keys span { display: inline-block; margin-right: 1.4em; } .keys i { display: inline-block; width: 1.4em;
margin-right: .45em; border-top: 3px solid; vertical-align: middle; } .keys i.dashed { border-top: 2px dashed; }
p { margin: .6em 0; } .wide { margin-bottom: 1em; } p.note { color: var(--less); font-size: .9em; margin: 0 0 .3em; }
@media (max-width: 620px) { text { font-size: 21px; } polyline { stroke-width: 2.4; }
table.figures th, table.figures td { white-space: normal; padding-right: .7em; font-size: .88em; } }
"""

_FETCHED = (
    "again: had been fetched before, in this epoch or another; evicted: left the cache; waited for: a loader already "
    "waited when the fetch began."
)


def write(report: Report, path: str) -> None:
    """Write the page, whole or not at all.

    Raises:
        CacheError: the file cannot be written.
    """
    write_atomically(os.path.abspath(path), render(report).encode("utf-8", "backslashreplace"))


def render(report: Report) -> str:
    """The page."""
    columns, rows = traffic_table(report)
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>wids simulate</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_style()}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        _table(report.lines),
    ]
    for (name, lines, bound), words in zip(panels(report), _explanations(report), strict=True):
        parts += [f"<h2>{escape(name)}</h2>", f'<p class="note">{escape(words)}</p>']
        # A bound far above all lines would press them flat.
        near = bound if bound is not None and bound <= 4 * max(map(max, filter(None, lines)), default=0.0) else None
        parts += [draw(name, report.curves.steps, lines, near), _keys(report.job.nodes, _bound_words(name, near))]
    parts += ["<h2>fetched</h2>", f'<p class="note">{_FETCHED}</p>']
    parts += [f'<div class="wide">{_table(rows, [name.removeprefix(">") for name in columns])}</div>']
    parts += [f'<p class="note">Approximated: {escape("; ".join(report.notes))}.</p>', "</body></html>\n"]
    return "\n".join(parts)


def draw(name: str, steps: Sequence[int], lines: Sequence[Sequence[float]], bound: float | None) -> str:
    """One panel: lines over steps, each constant up to its step, and a dashed bound."""
    highest = max([value for line in lines for value in line] + [0.0])
    ticks = nice_ticks(highest if bound is None else max(highest, bound))
    top, last = ticks[-1], max(steps[-1] if steps else 1, 1)

    right = _WIDTH - _RIGHT

    def x(step: float) -> float:
        return _LEFT + step / last * (right - _LEFT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)} over steps">']
    for tick in ticks:
        kind = "grid" if tick else "axis"
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="{kind}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.10g}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{_HEIGHT - 29}" text-anchor="middle">{tick:,.10g}</text>'
        for tick in nice_ticks(last)
        if tick <= last and tick == int(tick)
    ]
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">step, over all epochs</text>')
    for number, line in enumerate(lines):
        way, before = [], 0
        for step, value in zip(steps, line, strict=True):
            way += [f"{x(before):.1f},{y(value):.1f}", f"{x(step):.1f},{y(value):.1f}"]
            before = step
        colour = f"var(--c{number % len(_COLOURS)})"
        parts.append(f'<polyline points="{" ".join(way)}" style="stroke: {colour}"/>')
    if bound is not None:
        at = f'y1="{y(bound):.1f}" y2="{y(bound):.1f}"'
        parts.append(f'<line x1="{_LEFT}" x2="{right}" {at} class="bound"/>')
    return "\n".join([*parts, "</svg>"])


def nice_ticks(highest: float) -> list[float]:
    """0 and up to 5 round numbers, the last at ``highest`` or above it."""
    if highest <= 0:
        return [0.0, 1.0]
    scale = 10.0 ** (len(str(int(highest))) - 1 if highest >= 1 else -12)
    while scale * 10 <= highest:
        scale *= 10
    each = next(step * scale for step in (0.2, 0.5, 1.0, 2.0, 2.5) if 5 * step * scale >= highest)
    count = int(-(-highest // each))
    return [round(each * k, 14) for k in range(count + 1)]


def _style() -> str:
    light, dark = (
        " ".join(f"--c{k}: {colour};" for k, colour in enumerate(colours)) for colours in (_COLOURS, _DARK_COLOURS)
    )
    return _STYLE.replace("LIGHT", light).replace("DARK", dark)


def _explanations(report: Report) -> tuple[str, str, str]:
    """What each panel shows."""
    steps = report.curves.steps
    stretch = (
        f"each stretch of {-(-steps[-1] // len(steps)):,} steps" if steps and steps[-1] > len(steps) else "each step"
    )
    return (
        f"Bytes that a node's cache holds at the end of {stretch}, with what is on its way.",
        f"What a node's link carries, the mean of {stretch}.",
        f"For how long steps wait for a node's shards, the sum of {stretch}.",
    )


def _bound_words(name: str, bound: float | None) -> str:
    """What the dashed line is; nothing where there is none."""
    if bound is None:
        return ""
    what, _, unit = name.partition(", ")
    return f"{'--cache-size' if what == 'cache' else '--' + what}: {bound:,.4g} {unit}"


def _keys(nodes: int, bound: str) -> str:
    """Which line is what."""
    found = []
    if 1 < nodes <= MOST_NAMED:
        found += [(f'<i style="color: var(--c{k})"></i>', f"node {k}") for k in range(nodes)]
    elif nodes > 1:
        found.append(("", f"a line for each of {nodes:,} nodes"))
    if bound:
        found.append(('<i class="dashed"></i>', bound))
    keys = "".join(f"<span>{mark}{escape(words)}</span>" for mark, words in found)
    return f'<p class="keys">{keys}</p>' if keys else ""


def _table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    kind = ' class="figures"' if columns else ""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table{kind}>{head}{body}</table>"
