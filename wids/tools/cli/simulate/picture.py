"""A simulation for people: its curves, drawn by matplotlib, as one picture; or all of it as one page.

The page needs nothing else: tables, and curves as SVG; no scripts. Without matplotlib it has the tables alone.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from wids.core.files.atomic import write_atomically
from wids.core.order.batching import BatchRule
from wids.core.order.packing import PackRule
from wids.errors import DependencyError, OutputError
from wids.tools.cli.simulate.report import traffic_table, waited_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

    from wids.tools.cli.simulate.report import Report

# More nodes than this have no name in the legend.
_MAX_NAMED = 8
# Pictures that can have a title within.
_TITLED = ("png", "svg", "pdf")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98000", "#3d9bd0", "#7a5195", "#555555")
# A bound that is further above all lines would press them flat.
_NEAR = 4

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


class Panel(NamedTuple):
    """One quantity over steps.

    Attributes:
        name: the quantity, with its unit.
        note: its meaning, in words.
        lines: for each node (or rank), a value for each step of the curves.
        bound: of the quantity, if there is one that is not far above; option: the one that gave it.
    """

    name: str
    note: str
    lines: list[list[float]]
    bound: float | None = None
    option: str = ""
    of: str = "node"

    @property
    def bound_words(self) -> str:
        """Words for the dashed line."""
        bound = self.bound or 0.0
        words = f"{bound:,.4g}" if bound < 1000 else f"{bound:,.0f}"
        return f"{self.option}: {words} {self.name.partition(', ')[2]}"


def panels(report: Report) -> list[Panel]:
    """The curves, in units that are easily read."""
    found, steps, nodes = report.curves, report.curves.steps, report.job.nodes
    is_thinned = bool(steps) and steps[-1] > len(steps)
    stretch = f"each stretch of {-(-steps[-1] // len(steps)):,} steps" if is_thinned else "each step"
    each = f" A line for each of {nodes:,} nodes." if nodes > _MAX_NAMED else ""
    used = [[value / 1e9 for value in line] for line in found.used_bytes]
    rate = [[value / 1e6 for value in line] for line in found.bandwidth]
    stalls = [list(line) for line in found.stall_seconds]
    limit = None if report.job.cache_size is None else report.job.cache_size / 1e9
    held = f"Bytes that a node's cache holds at the end of {stretch}, with those of downloads under way.{each}"
    carried = f"What a node's link carries, the mean of {stretch}.{each}"
    waited = f"For how long steps wait for a node's {waited_for(report.job)}, the sum of {stretch}.{each}"
    found_panels = [
        Panel("cache, GB", held, used, _near(limit, used), "--cache-size"),
        Panel("bandwidth, MB/s", carried, rate, _near(report.job.bandwidth / 1e6, rate), "--bandwidth"),
        Panel("stalls, s", waited, stalls),
    ]
    costs, rule = found.costs, report.job.rule
    of_ranks = f" A line for each of {len(costs):,} ranks." if costs is not None and len(costs) > _MAX_NAMED else ""
    if costs is not None and isinstance(rule, PackRule):
        tokens = f"Tokens of a rank's batch, the mean of {stretch}."
        bound = _near(rule.batch_size * rule.pack_tokens, costs)
        found_panels.append(Panel("batch, tokens", f"{tokens}{of_ranks}", costs, bound, "full", "rank"))
    elif costs is not None and isinstance(rule, BatchRule):
        unit = "tokens" if rule.lengths is not None else "samples"
        cost = f"What a rank's batch costs{', with its padding' if rule.is_padded else ''}, the mean of {stretch}."
        bound = _near(rule.max_cost, costs)
        found_panels.append(Panel(f"batch, {unit}", f"{cost}{of_ranks}", costs, bound, "--max-tokens", "rank"))
    return found_panels


def _near(bound: float | None, lines: list[list[float]]) -> float | None:
    highest = max(map(max, filter(None, lines)), default=0.0)
    return bound if bound is not None and bound <= _NEAR * highest else None


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def check_picture(path: str) -> None:
    """Check that matplotlib is installed, and that it draws such a picture.

    Raises:
        DependencyError: it is not. OutputError: it does not.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise DependencyError("--plot needs matplotlib; install it with: pip install 'wids[bench]'") from error
    ending, known = _ending(path), FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise OutputError(
            f"{path}: the picture cannot be written as {ending}; choose another file, like job.png, or one of "
            f"{', '.join(sorted(known))}",
            path=path,
        )


def save(report: Report, path: str) -> None:
    """Write the picture; the file's ending says of which kind.

    Raises:
        DependencyError, OutputError: as `check_picture`. CacheError: the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    drawn = panels(report)
    figure = Figure(figsize=(9, 1 + 2 * len(drawn)), layout="constrained")
    axes = figure.subplots(len(drawn), 1, sharex=True)
    for axis, panel in zip(axes, drawn, strict=True):
        _draw(axis, panel, report)
        axis.set_ylabel(panel.name)
    axes[-1].set_xlabel("step, over all epochs")
    axes[0].set_title(report.title, fontsize=9, wrap=True)
    data = io.BytesIO()
    ending = _ending(path)
    title = {"Title": "wids simulate"} if ending in _TITLED else None  # by which it may be replaced
    figure.savefig(data, dpi=120, format=ending, metadata=title)
    write_atomically(os.path.abspath(path), data.getvalue())


def draw_svg(report: Report, panel: Panel) -> str:
    """One panel as an element of a page, which scales with it; without ids or addresses that only a file needs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axis = figure.subplots()
    _draw(axis, panel, report)
    axis.set_xlabel("step, over all epochs")
    data = io.StringIO()
    # Text stays text. The salt makes equal reports equal pages, and ids of clip paths differ between panels.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": panel.name}):
        unwanted = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(data, format="svg", transparent=True, metadata=unwanted)
    drawn = data.getvalue()
    [box] = re.findall(r'viewBox="([^"]*)"', drawn)
    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 :].replace("xlink:href", "href")
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(panel.name)} over steps">{inside.strip()}'


def _draw(axis: Axes, panel: Panel, report: Report) -> None:
    """Lines over steps, each constant up to its step, and a dashed bound."""
    steps = [0, *report.curves.steps]
    is_named = 1 < len(panel.lines) <= _MAX_NAMED
    for number, line in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        label = f"{panel.of} {number}" if is_named else None
        axis.plot(steps, [*line[:1], *line], color=colour, linewidth=1.2, label=label, drawstyle="steps-pre")
    if panel.bound is not None:
        axis.axhline(panel.bound, color="0.4", linewidth=0.8, linestyle="--", label=panel.bound_words)
    axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.25)
    if is_named or panel.bound is not None:
        axis.legend(loc="best", fontsize=8, ncols=4)


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].removeprefix(".").lower() or "png"


# --- a page


def write_page(report: Report, path: str) -> None:
    """Write the page, whole or not at all.

    Raises:
        CacheError: the file cannot be written.
    """
    write_atomically(os.path.abspath(path), render_page(report).encode("utf-8", "backslashreplace"))


def render_page(report: Report) -> str:
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
