"""The curves of a simulation as a picture; needs matplotlib."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from wids.errors import WidsError
from wids.osfiles.atomic import write_atomically

if TYPE_CHECKING:
    from wids.cli.simulate.report import Report

MOST_NAMED = 8


def panels(report: Report) -> list[tuple[str, list[list[float]], float | None]]:
    """(what, a line for each node, a bound or None) of each panel, in units that are easily read."""
    found, limit = report.curves, report.job.cache_size
    used = [[value / 1e9 for value in line] for line in found.used_bytes]
    rate = [[value / 1e6 for value in line] for line in found.bandwidth]
    return [
        ("cache, GB", used, None if limit is None else limit / 1e9),
        ("bandwidth, MB/s", rate, report.job.bandwidth / 1e6),
        ("stalls, s", [list(line) for line in found.stall_seconds], None),
    ]


def check_picture(path: str) -> None:
    """See to it that there is matplotlib, and that it draws such a picture.

    Raises:
        WidsError: it cannot be drawn.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise WidsError("--plot needs matplotlib; install wids[bench], or write a page with --html") from error
    ending, known = _ending(path), FigureCanvasAgg.get_supported_filetypes()
    if ending not in known:
        raise WidsError(
            f"{path}: the picture cannot be written as {ending}; choose another file, like job.png, or one of "
            f"{', '.join(sorted(known))}"
        )


def save(report: Report, path: str) -> None:
    """Write the picture; the file's ending says of which kind.

    Raises:
        WidsError: as `check_picture`, or the file cannot be written. OSError: likewise.
    """
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (name, lines, bound) in zip(axes, panels(report), strict=True):
        for number, line in enumerate(lines):
            steps, values = [0, *report.curves.steps], [*line[:1], *line]
            axis.plot(steps, values, linewidth=1.2, label=f"node {number}", drawstyle="steps-pre")
        if bound is not None:
            axis.axhline(bound, color="0.4", linewidth=0.8, linestyle="--")
        axis.set_ylabel(name)
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.25)
    axes[-1].set_xlabel("step")
    axes[0].set_title(report.title, fontsize=9, wrap=True)
    if 1 < report.job.nodes <= MOST_NAMED:
        axes[0].legend(loc="best", fontsize=8, ncols=min(report.job.nodes, 4))
    data = io.BytesIO()
    figure.savefig(data, dpi=120, format=_ending(path))
    write_atomically(os.path.abspath(path), data.getvalue())


def _ending(path: str) -> str:
    """What kind of picture a file's name asks for."""
    return os.path.splitext(path)[1].removeprefix(".").lower() or "png"
