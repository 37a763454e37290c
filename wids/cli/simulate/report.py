"""The report of ``wids simulate``: built from a simulation, and printed as tables or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.cli.format import count_of, format_size, print_json, print_table, print_text, printable
from wids.files.terminal import progress
from wids.simulate import figures
from wids.simulate.job import MAX_EXACT, is_exact, read_epochs
from wids.simulate.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.order.batching import BatchRule
    from wids.simulate.job import Epoch, TrainingJob
    from wids.simulate.run import SimulationResult

_MAX_ROWS = 24
_OPEN_POINTS = 8


@dataclass(frozen=True)
class Report:
    """A job, and its figures.

    Attributes:
        values: everything for programs, by name.
        lines: (what, how much) for people.
    """

    job: TrainingJob
    title: str
    found: SimulationResult
    curves: figures.Curves
    values: dict[str, Any]
    lines: list[tuple[str, str]]
    notes: list[str]

    @property
    def is_equal(self) -> bool:
        """Whether all ranks have equally many batches."""
        return bool(self.values["ranks_are_equal"])


def build(job: TrainingJob, *, name: str | None) -> Report:
    """Simulate a job.

    Raises:
        ValueError: it cannot be simulated so.
    """
    courses = job.courses()
    epochs = read_epochs(job, courses)
    total = sum(max(epoch.steps) for epoch in epochs)
    with progress() as bar:
        found = Simulation(job, epochs, on_step=lambda step: bar.update(step, total=total, words="steps")).run()
    counts = figures.count_samples(job, courses, epochs)
    batching = figures.measure_batches(job, epochs)
    splits = figures.find_splits(job, epochs)
    mixing = figures.measure_mixing(job, courses, epochs)
    opened = [figures.open_at_a_time(job, epochs, rank) for rank in range(job.world)]
    batches = [[epoch.steps[rank] for epoch in epochs] for rank in range(job.world)]
    compute = [max(epoch.steps) * job.step_seconds for epoch in epochs]
    stalled = sum(found.waits.values())
    values: dict[str, Any] = {
        "index": name,
        "shards": len(job.lengths),
        "samples": asdict(counts),
        "size_bytes": int(job.sizes.sum()),
        "world_size": job.world,
        "nodes": job.nodes,
        "batches": batches,
        "batching": batching and {name: value for name, value in asdict(batching).items() if name != "costs"},
        "ranks_are_equal": all(of_rank == batches[0] for of_rank in batches),
        "splits": {**asdict(splits), "shards": {str(k): ranks for k, ranks in splits.shards.items()}},
        "open": {
            "mean": float(np.mean([own.mean() for own in opened if len(own)] or [0.0])),
            "most": max((int(own.max(initial=0)) for own in opened), default=0),
            "by_rank": [_thin(own) for own in opened],
        },
        "mixing": asdict(mixing),
        "cache": {
            "size_bytes": job.cache_size,
            "needed_in_an_epoch": max(figures.needed_bytes(job, [epoch]) for epoch in epochs),
            "needed_over_all_epochs": figures.needed_bytes(job, epochs),
            "smallest_without_downloads_again": figures.smallest_cache(job, epochs),
        },
        "traffic": [[asdict(traffic) for traffic in nodes] for nodes in found.traffic],
        "first_batch_seconds": found.first_seconds,
        "epoch_seconds": found.epoch_seconds,
        "compute_seconds": compute,
        "stalled_seconds": stalled,
        "stalled_steps": len(found.waits),
        "steps": total,
        "stopped_at_step": found.stopped_at,
    }
    notes = _notes(job, found, needed=values["cache"]["needed_in_an_epoch"])
    values["approximated"] = notes
    title = f"{count_of(len(job.lengths), 'shard')}, {count_of(counts.samples, 'sample')}, "
    title += f"{format_size(values['size_bytes'])}; "
    title += f"{count_of(job.world, 'rank')} on {count_of(job.nodes, 'node')}, batches of {_bound_of(job)}, "
    title += count_of(job.epochs, "epoch")
    if name is not None:
        title = f"{printable(name)}: {title}"
    lines = _lines(job, values, epochs)
    if batching is not None and job.rule is not None:
        lines[1:1] = _batch_lines(batching, job.rule, job.world)
    curves = figures.draw(found, costs=None if batching is None else batching.costs)
    return Report(job, title, found, curves, values, lines, notes)


def _bound_of(job: TrainingJob) -> str:
    """What a batch may have."""
    rule = job.rule
    if rule is None:
        return f"{job.batch_size:,}"
    bounds = [] if rule.max_cost is None else [f"at most {rule.max_cost:,.10g} tokens"]
    if rule.sizes is not None:
        least, most = min(rule.sizes), max(rule.sizes)
        bounds.append(f"at most {most:,} samples" if least == most else f"at most {least:,} to {most:,} samples")
    if len(rule.names) > 1:
        bounds.append(f"one of {len(rule.names):,} buckets")
    return " and ".join(bounds)


def _batch_lines(batching: figures.Batching, rule: BatchRule, world: int) -> list[tuple[str, str]]:
    """What batches of like length consist of, for people."""
    samples = f"{batching.smallest:,} to {batching.largest:,} samples, median {batching.median:,.10g}"
    lines = [("a batch", samples)]
    if batching.padding is not None:
        words = "with it, batches have" if rule.is_padded else "none if they are packed; with it, batches would have"
        lines.append(("padding", f"{words} {batching.padding:.3f} x the tokens of their samples"))
    mean, worst = batching.imbalance_mean, batching.imbalance_worst
    if world > 1:
        words = f"the costliest batch is {mean:.3f} x the mean of the ranks, {worst:.3f} x at worst"
        lines.append(("balance of a step", words))
    if batching.used_mean is not None:
        lines.append(("budget used", f"{batching.used_mean:.0%} on average, {batching.used_least:.0%} at least"))
    if batching.too_long:
        lines.append(
            (
                "too long",
                f"{count_of(batching.too_long, 'sample')} of more than {batching.max_tokens:,.10g} tokens, left out",
            )
        )
    return lines


def _lines(job: TrainingJob, values: dict[str, Any], epochs: list[Epoch]) -> list[tuple[str, str]]:
    counts, splits, mixing, cache = (values[name] for name in ("samples", "splits", "mixing", "cache"))
    totals = sorted({sum(own) for own in values["batches"]})
    equal = (
        f"{totals[0]:,}, the same on all"
        if values["ranks_are_equal"]
        else f"{totals[0]:,} to {totals[-1]:,}: NOT EQUAL"
    )
    lines = [
        ("batches of a rank", equal),
        ("samples read", f"{counts['read']:,} ({_how_often(job, counts)})"),
        (
            "shards split",
            f"{splits['by_ranks']:,} read by several ranks, {splits['by_nodes']:,} by several nodes",
        ),
        ("shards open at a time", f"{values['open']['mean']:.1f} on a rank, {values['open']['most']} at most"),
        (
            "mixing",
            f"{mixing['in_global_batch']:,.0f} shards in a global batch, {mixing['in_batch']:.1f} in a rank's",
        ),
        (
            "",
            f"the next sample of a rank is of the same shard in {mixing['neighbours']:.0%} of cases",
        ),
    ]
    bounds = f"at least {format_size(cache['needed_in_an_epoch'])} on a node"
    if job.epochs > 1:
        bounds += f" ({format_size(cache['needed_over_all_epochs'])} over all epochs)"
    bounds += " to avoid repeated downloads"
    smallest = cache["smallest_without_downloads_again"]
    if smallest is not None:
        bounds += f"; {format_size(smallest)} is enough here"
    lines.append(("cache size", bounds))
    if values["stopped_at_step"] is not None:
        lines.append(
            (
                "cache too small",
                f"given up at step {values['stopped_at_step']:,} of {values['steps']:,}; more is read at a time",
            )
        )
        return lines
    first = values["first_batch_seconds"]
    has_ranges = any(traffic["range_requests"] for nodes in values["traffic"] for traffic in nodes)
    how = ", its samples by byte ranges" if has_ranges and job.has_tables else ""
    lines.append(("first batch", f"after {_seconds(first[0])}{how}" if first else "there is none"))
    epoch, compute = sum(values["epoch_seconds"]) / len(epochs), sum(values["compute_seconds"]) / len(epochs)
    ratio = f", {epoch / compute:.2f} x" if compute else ""
    lines.append(("an epoch", f"{_seconds(epoch)}; {_seconds(compute)} of computing{ratio}"))
    what = f", for {waited_for(job)}"
    lines.append(
        (
            "stalls",
            f"{_seconds(values['stalled_seconds'])} in {values['stalled_steps']:,} of {values['steps']:,} steps{what}",
        )
    )
    return lines


def waited_for(job: TrainingJob) -> str:
    """What steps wait for."""
    return "shards" if not job.reads_early else "samples" if job.has_tables else "shards and samples"


def _how_often(job: TrainingJob, counts: dict[str, int]) -> str:
    """What became of the samples; where passes have no seam between them, there is no such thing as a repeated one."""
    least, more = divmod(counts["read"], max(counts["samples"], 1))
    if least and job.rule is None and (job.passes > 1 or job.nominal is not None):
        return f"each {least:,} to {least + 1:,} times" if more else f"each {least:,} times"
    return f"left out {counts['left_out']:,}, repeated {counts['repeated']:,}"


def _notes(job: TrainingJob, found: SimulationResult, *, needed: int) -> list[str]:
    notes = [
        "a node's link carries one shard at a time, in turn for its ranks; nothing fails",
        "all steps take the same time",
    ]
    if job.reads_early:
        if job.has_tables:
            notes.append("member tables lie beside the shards (if not: --no-tables)")
        else:
            notes.append("tables of all evicted shards are remembered")
        notes.append("the byte ranges of a node's batch come together, and before shards")
    if not is_exact(job):
        notes.append(f"beyond {MAX_EXACT:,} samples a shard counts as read for as long as the slots of its chunk last")
    is_too_small = job.cache_size is not None and job.cache_size < needed and not job.reads_early
    if found.stopped_at is not None or is_too_small:
        notes.append(
            "shards go while they are read: how often they come again depends on moments that are not modelled"
        )
    return notes


def show(report: Report, *, is_json: bool, has_splits: bool, has_open: bool) -> None:
    """Print a report."""
    if is_json:
        values = dict(report.values)
        if not has_splits:
            values["splits"] = {k: v for k, v in values["splits"].items() if k != "shards"}
        if not has_open:
            values["open"] = {k: v for k, v in values["open"].items() if k != "by_rank"}
        print_json({**values, "curves": asdict(report.curves)})
        return
    print_text(report.title)
    print_table(("", ""), report.lines)
    print_table(*traffic_table(report))
    if has_splits:
        rows = [(k, ", ".join(map(str, ranks))) for k, ranks in report.values["splits"]["shards"].items()]
        if rows:
            print_table((">shard", "ranks"), rows[:_MAX_ROWS])
            _say_more(rows, "shards")
        else:
            print("No shard is read by several ranks.")
    if has_open:
        open_by_rank = report.values["open"]["by_rank"]
        table = [(str(rank), *map(str, own)) for rank, own in enumerate(open_by_rank)]
        steps = np.linspace(0, max(report.values["steps"] - 1, 0), _OPEN_POINTS + 1).astype(int)[1:]
        count = max((len(row) - 1 for row in table), default=0)
        print_table((">rank", *(f">to step {step:,}" for step in steps[:count])), table[:_MAX_ROWS])
        _say_more(table, "ranks")
    print_text(f"Approximated: {'; '.join(report.notes)}.")


def traffic_table(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows of the nodes' downloads, epoch by epoch; nodes together where there are too many."""
    columns: tuple[str, ...] = (">epoch", ">node", ">shards fetched", ">bytes", ">again", ">again bytes", ">evicted")
    is_early = report.job.reads_early
    columns += (">samples by ranges", ">range bytes") if is_early else (">waited for",)
    epochs, nodes = len(report.found.traffic), report.job.nodes
    rows: list[tuple[str, ...]] = []
    for epoch in range(epochs):
        own = report.values["traffic"][epoch]
        if epochs * nodes > _MAX_ROWS:
            own = [{name: sum(of_node[name] for of_node in own) for name in own[0]}]
        for number, traffic in enumerate(own):
            rows.append(
                (
                    str(epoch),
                    str(number) if len(own) == nodes else f"all {nodes}",
                    f"{traffic['shards']:,}",
                    format_size(traffic["size_bytes"]),
                    f"{traffic['again']:,}",
                    format_size(traffic["again_bytes"]),
                    f"{traffic['evicted']:,}",
                    *(
                        (f"{traffic['range_requests']:,}", format_size(traffic["range_bytes"]))
                        if is_early
                        else (f"{traffic['waited']:,}",)
                    ),
                )
            )
    return columns, rows


def _say_more(rows: Sequence[object], noun: str) -> None:
    if len(rows) > _MAX_ROWS:
        print(f"and {len(rows) - _MAX_ROWS:,} more {noun}; --json lists them all")


def _thin(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
    """The largest of each of some stretches of a row."""
    return [int(part.max()) for part in np.array_split(values, _OPEN_POINTS) if len(part)]


def _seconds(seconds: float) -> str:
    """``0.3 s``, ``12 min``, ``3.4 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:,.3g} h"
