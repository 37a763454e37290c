"""A simulation as one page that needs nothing else: tables, and curves as SVG; no scripts."""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from wids.cache.files import write_atomically
from wids.cli.simulate.picture import MOST_NAMED, panels
from wids.cli.simulate.report import traffic_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.cli.simulate.report import Report

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#555555")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 214, 70, 40, 12
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.25em; } h2 { font-size: 1.05em; margin: 1.6em 0 .3em; }
table { border-collapse: collapse; } td, th { padding: .2em .9em .2em 0; text-align: left; vertical-align: top; }
table.figures td, table.figures th { text-align: right; border-bottom: 1px solid #ddd; }
svg { width: 100%; height: auto; } text { font: 12px system-ui, sans-serif; fill: #444; }
.keys span { margin-right: 1.2em; } .keys i { display: inline-block; width: 1.2em; height: .25em; margin-right: .4em;
vertical-align: middle; } p.note { color: #666; font-size: .9em; }
"""


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
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        _table(report.lines),
        _keys(report.job.nodes),
    ]
    for name, lines, bound in panels(report):
        parts += [f"<h2>{escape(name)}</h2>", draw(name, report.curves.steps, lines, bound)]
    parts += ["<h2>fetched</h2>", _table(rows, [name.removeprefix(">") for name in columns])]
    parts += [f'<p class="note">Approximated: {escape("; ".join(report.notes))}.</p>', "</body></html>\n"]
    return "\n".join(parts)


def draw(name: str, steps: Sequence[int], lines: Sequence[Sequence[float]], bound: float | None) -> str:
    """One panel: lines over steps, each constant up to its step, and a dashed bound."""
    highest = max([value for line in lines for value in line] + [0.0])
    # A bound far above all lines would press them flat.
    is_near = bound is not None and bound <= 4 * highest
    ticks = nice_ticks(max(highest, bound or 0.0) if is_near else highest)
    top, last = ticks[-1], max(steps[-1] if steps else 1, 1)

    def x(step: float) -> float:
        return _LEFT + step / last * (_WIDTH - _LEFT - 12)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - _TOP)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)} over steps">']
    for tick in ticks:
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.10g}</text>')
    parts += [
        f'<text x="{x(tick):.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{tick:,.10g}</text>'
        for tick in nice_ticks(last)
        if tick <= last
    ]
    parts.append(f'<text x="{_WIDTH - 12}" y="{_HEIGHT - 5}" text-anchor="end">step</text>')
    for number, line in enumerate(lines):
        way, before = [], 0
        for step, value in zip(steps, line, strict=True):
            way += [f"{x(before):.1f},{y(value):.1f}", f"{x(step):.1f},{y(value):.1f}"]
            before = step
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<polyline points="{" ".join(way)}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
    if bound is not None and is_near:
        at = f'y1="{y(bound):.1f}" y2="{y(bound):.1f}"'
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 12}" {at} stroke="#444" stroke-dasharray="5 4"/>')
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


def _keys(nodes: int) -> str:
    """Which colour is which node."""
    if not 1 < nodes <= MOST_NAMED:
        return f"<p>A line for each of {nodes} nodes.</p>" if nodes > 1 else ""
    names = (f'<span><i style="background:{_COLOURS[k]}"></i>node {k}</span>' for k in range(nodes))
    return f'<p class="keys">{"".join(names)}</p>'


def _table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    kind = ' class="figures"' if columns else ""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table{kind}>{head}{body}</table>"
