"""A simulation as one page that needs nothing else: tables, and curves as SVG; no scripts.

Without matplotlib, which draws the curves, the page has the tables alone.
"""

from __future__ import annotations

import os
from html import escape
from typing import TYPE_CHECKING

from wids.cli.simulate.picture import can_draw, draw_svg, panels
from wids.cli.simulate.report import traffic_table
from wids.files.atomic import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.cli.simulate.report import Report

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --words: #222; --less: #5c5c5c; --grid: #ddd; }
@media (prefers-color-scheme: dark) {
:root { --page: #17191c; --words: #e4e4e4; --less: #a8a8a8; --grid: #3a3d42; }
svg { filter: invert(1) hue-rotate(180deg); } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em;
background: var(--page); color: var(--words); overflow-wrap: anywhere; }
h1 { font-size: 1.25em; } h2 { font-size: 1.05em; margin: 1.6em 0 .1em; }
.wide { overflow-x: auto; overflow-wrap: normal; } table { border-collapse: collapse; }
td, th { padding: .2em 1.2em .2em 0; text-align: left; vertical-align: top; }
table.figures td, table.figures th { text-align: right; vertical-align: bottom; white-space: nowrap;
border-bottom: 1px solid var(--grid); font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
p { margin: .6em 0; } .wide { margin-bottom: 1em; } p.note { color: var(--less); font-size: .9em; margin: 0 0 .3em; }
@media (max-width: 620px) {
table.figures th, table.figures td { white-space: normal; padding-right: .7em; font-size: .88em; } }
"""
_NO_CURVES = "Curves are drawn by matplotlib, which is not installed: pip install 'wids[bench]'"

_FETCHED = (
    "again: had been fetched before, in this epoch or another; evicted: left the cache; waited for: a loader already "
    "waited when the fetch began; by ranges: read before their shard was cached."
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
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(report.title)}</h1>",
        _table(report.lines),
    ]
    for panel in panels(report) if can_draw() else ():
        parts += [
            f"<h2>{escape(panel.name)}</h2>",
            f'<p class="note">{escape(panel.note)}</p>',
            draw_svg(report, panel),
        ]
    if not can_draw():
        parts.append(f'<p class="note">{escape(_NO_CURVES)}</p>')
    parts += ["<h2>fetched</h2>", f'<p class="note">{_FETCHED}</p>']
    parts += [f'<div class="wide">{_table(rows, [name.removeprefix(">") for name in columns])}</div>']
    parts += [f'<p class="note">Approximated: {escape("; ".join(report.notes))}.</p>', "</body></html>\n"]
    return "\n".join(parts)


def _table(rows: Iterable[Sequence[str]], columns: Sequence[str] = ()) -> str:
    kind = ' class="figures"' if columns else ""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table{kind}>{head}{body}</table>"
