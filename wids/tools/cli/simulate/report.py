"""The report of ``wids simulate``: built from a simulation, and printed as tables or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.files.terminal import progress
from wids.core.order.batching import BatchRule
from wids.core.order.packing import PackRule
from wids.tools.cli.format import count_of, format_size, print_json, print_table, print_text, printable
from wids.tools.simulate import figures
from wids.tools.simulate.job import MAX_EXACT, is_exact, read_epochs
from wids.tools.simulate.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from wids.tools.simulate.job import Epoch, TrainingJob
    from wids.tools.simulate.result import SimulationResult
    from wids.tools.simulate.trace import Course

    Contents: TypeAlias = figures.Batching | figures.Packing

_MAX_ROWS = 24
_OPEN_POINTS = 8
# Columns of the nodes' downloads: what each is called, and the figure of `wids.tools.simulate.run.Traffic`.
_TRAFFIC = {
    "shards fetched": "shards",
    "bytes": "size_bytes",
    "again": "again",
    "again bytes": "again_bytes",
    "evicted": "evicted",
}
# GET and HEAD requests in a second that S3 answers for each prefix, as Amazon says.
STORE_REQUESTS = 5_500
_RANGES = {"samples by ranges": "range_requests", "range bytes": "range_bytes"}
_WAITED = {"waited for": "waited"}


class ReportRow(NamedTuple):
    """One figure.

    Attributes:
        name: for programs; without one it is for people alone.
        value: for programs.
        label: for people.
        words: for people; without them it is for programs alone.
    """

    name: str
    value: Any = None
    label: str = ""
    words: str = ""


@dataclass(frozen=True)
class Report:
    """A job, and its figures.

    Attributes:
        rows: the figures, in order.
        notes: the approximations.
    """

    job: TrainingJob
    title: str
    found: SimulationResult
    curves: figures.Curves
    rows: list[ReportRow]
    notes: list[str]

    @property
    def values(self) -> dict[str, Any]:
        """Everything for programs, by name."""
        return {row.name: row.value for row in self.rows if row.name}

    @property
    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for people."""
        return [(row.label, row.words) for row in self.rows if row.words]

    @property
    def is_equal(self) -> bool:
        """True if all ranks have equally many batches."""
        return bool(self.values["ranks_are_equal"])


def build(job: TrainingJob, *, name: str | None) -> Report:
    """Simulate a job.

    Raises:
        ValueError: it cannot be simulated so.
    """
    courses = job.courses()
    epochs = read_epochs(job, courses)
    steps = sum(max(epoch.steps) for epoch in epochs)
    with progress() as bar:
        found = Simulation(job, epochs, on_step=lambda step: bar.update(step, total=steps, words="steps")).run()
    batching: Contents | None = figures.measure_batches(job, epochs) or figures.measure_packs(job, epochs)
    needed = max(figures.needed_bytes(job, [epoch]) for epoch in epochs)
    notes = _notes(job, found, needed=needed)
    rows = [
        ReportRow("index", name),
        *_order_rows(job, courses, epochs, batching),
        *_cache_rows(job, epochs, needed),
        *_time_rows(job, found, epochs, steps),
        ReportRow("approximated", notes),
    ]
    title = f"{count_of(len(job.lengths), 'shard')}, {count_of(int(job.lengths.sum()), 'sample')}, "
    title += f"{format_size(int(job.sizes.sum()))}; "
    title += f"{count_of(job.world, 'rank')} on {count_of(job.nodes, 'node')}, batches of {_bound_of(job)}, "
    title += count_of(job.epochs, "epoch")
    if name is not None:
        title = f"{printable(name)}: {title}"
    curves = figures.draw(found, costs=None if batching is None else batching.costs)
    return Report(job, title, found, curves, rows, notes)


def _bound_of(job: TrainingJob) -> str:
    """Words for the bounds of a batch."""
    rule = job.rule
    if isinstance(rule, PackRule):
        return f"{count_of(rule.batch_size, 'pack')} of {rule.pack_tokens:,} tokens"
    if not isinstance(rule, BatchRule):
        return f"{job.batch_size:,}"
    bounds = [] if rule.max_cost is None else [f"at most {rule.max_cost:,.10g} tokens"]
    bounds += [f"at most {limit.most:,.10g} {printable(limit.name)}" for limit in rule.limits]
    if rule.sizes is not None:
        least, most = min(rule.sizes), max(rule.sizes)
        bounds.append(f"at most {most:,} samples" if least == most else f"at most {least:,} to {most:,} samples")
    if len(rule.names) > 1:
        bounds.append(f"one of {len(rule.names):,} buckets")
    return " and ".join(bounds)


def _order_rows(
    job: TrainingJob, courses: Sequence[Course], epochs: Sequence[Epoch], batching: Contents | None
) -> Iterator[ReportRow]:
    """The figures that depend on the order alone."""
    counts, splits = figures.count_samples(job, courses, epochs), figures.find_splits(job, epochs)
    yield ReportRow("shards", len(job.lengths))
    yield ReportRow("samples", asdict(counts))
    yield ReportRow("size_bytes", int(job.sizes.sum()))
    yield ReportRow("world_size", job.world)
    yield ReportRow("nodes", job.nodes)
    batches = [[epoch.steps[rank] for epoch in epochs] for rank in range(job.world)]
    is_equal = all(own == batches[0] for own in batches)
    totals = sorted({sum(own) for own in batches})
    many = f"{totals[0]:,}, the same on all" if is_equal else f"{totals[0]:,} to {totals[-1]:,}: NOT EQUAL"
    yield ReportRow("batches", batches, "batches of a rank", many)
    told = batching and {name: value for name, value in asdict(batching).items() if name != "costs"}
    yield ReportRow("batching", told if isinstance(batching, figures.Batching) else None)
    yield ReportRow("packing", told if isinstance(batching, figures.Packing) else None)
    if isinstance(batching, figures.Batching) and isinstance(job.rule, BatchRule):
        yield from _batch_rows(batching, job.rule, job.world)
    elif isinstance(batching, figures.Packing) and isinstance(job.rule, PackRule):
        yield from _pack_rows(batching, job.rule, job.world)
    yield ReportRow("ranks_are_equal", is_equal)
    yield ReportRow("", None, "samples read", f"{counts.read:,} ({_how_often(job, counts)})")
    words = f"{splits.by_ranks:,} read by several ranks, {splits.by_nodes:,} by several nodes"
    shards = {str(shard): ranks for shard, ranks in splits.shards.items()}
    yield ReportRow("splits", {**asdict(splits), "shards": shards}, "shards split", words)
    opened = [figures.open_at_a_time(job, epochs, rank) for rank in range(job.world)]
    mean = float(np.mean([own.mean() for own in opened if len(own)] or [0.0]))
    most = max((int(own.max(initial=0)) for own in opened), default=0)
    value = {"mean": mean, "most": most, "by_rank": [_thin(own) for own in opened]}
    yield ReportRow("open", value, "shards open at a time", f"{mean:.1f} on a rank, {most} at most")
    mixing = figures.measure_mixing(job, courses, epochs)
    words = f"{mixing.in_global_batch:,.0f} shards in a global batch, {mixing.in_batch:.1f} in a rank's"
    yield ReportRow("mixing", asdict(mixing), "mixing", words)
    yield ReportRow("", None, "", f"the next sample of a rank is of the same shard in {mixing.neighbours:.0%} of cases")


def _batch_rows(batching: figures.Batching, rule: BatchRule, world: int) -> Iterator[ReportRow]:
    """Contents of batches of like length, for people; their value is that of `batching`."""
    samples = f"{batching.smallest:,} to {batching.largest:,} samples, median {batching.median:,.10g}"
    yield ReportRow("", None, "a batch", samples)
    if batching.padding is not None:
        words = "with it, batches have" if rule.is_padded else "none if they are packed; with it, batches would have"
        yield ReportRow("", None, "padding", f"{words} {batching.padding:.3f} x the tokens of their samples")
    if world > 1:
        yield _balance_row("costliest", batching)
    if batching.used_mean is not None:
        words = f"{batching.used_mean:.0%} on average, {batching.used_least:.0%} at least"
        yield ReportRow("", None, "budget used", words)
    for limit in rule.limits:
        words = f"{batching.limits[limit.name]:.0%} of {limit.most:,.10g} {printable(limit.name)} on average"
        yield ReportRow("", None, "limit used", words)
    if rule.limits and batching.fullest_mean is not None:
        words = f"{batching.fullest_mean:.0%} on average, of the budget that is fullest in a batch"
        yield ReportRow("", None, "fullest budget", words)
    if batching.too_long:
        budgets = [] if batching.max_tokens is None else [f"{batching.max_tokens:,.10g} tokens"]
        budgets += [f"{limit.most:,.10g} {printable(limit.name)}" for limit in rule.limits]
        words = f"{count_of(batching.too_long, 'sample')} of more than {' or '.join(budgets)}, left out"
        yield ReportRow("", None, "too long", words)


def _pack_rows(packing: figures.Packing, rule: PackRule, world: int) -> Iterator[ReportRow]:
    """Contents of packs, for people; their value is that of `packing`."""
    words = f"{packing.packs:,} in {count_of(packing.batches, 'batch', 'batches')}"
    words += f"; {100 * (1 - packing.fill):.2g}% of their room is empty"
    if packing.short:
        words += f", {packing.short:,} are not full, the emptiest to {packing.fill_least:.0%}"
    yield ReportRow("", None, "packs", words)
    words = f"{packing.pieces_mean:,.3g} on average, {packing.pieces_most:,} at most"
    yield ReportRow("", None, "pieces in a pack", words)
    if rule.is_cut:
        yield ReportRow("", None, "documents cut", f"{packing.cut:,}")
    words = f"{packing.tokens:,}, {packing.step_tokens:,.0f} in a step of all ranks"
    if packing.repeated_tokens:
        words += f"; {packing.repeated_tokens:,} of an epoch again, to fill up the tail"
    yield ReportRow("", None, "tokens", words)
    if world > 1:
        yield _balance_row("fullest", packing)
    if packing.skipped:
        longer = "" if rule.is_cut else f", or with more than {rule.pack_tokens - rule.separators:,}"
        yield ReportRow("", None, "left out", f"{count_of(packing.skipped, 'sample')} without a token{longer}")


def _balance_row(most: str, contents: Contents) -> ReportRow:
    mean, worst = contents.imbalance_mean, contents.imbalance_worst
    words = f"the {most} batch is {mean:.3f} x the mean of the ranks, {worst:.3f} x at worst"
    return ReportRow("", None, "balance of a step", words)


def _cache_rows(job: TrainingJob, epochs: list[Epoch], needed: int) -> Iterator[ReportRow]:
    """The cache that is needed, and what is warned of a smaller one."""
    overall, smallest = figures.needed_bytes(job, epochs), figures.smallest_cache(job, epochs)
    words = f"at least {format_size(needed)} on a node"
    if job.epochs > 1:
        words += f" ({format_size(overall)} over all epochs)"
    words += " to avoid repeated downloads"
    if smallest is not None:
        words += f"; {format_size(smallest)} is enough here"
    value = {
        "size_bytes": job.cache_size,
        "needed_in_an_epoch": needed,
        "needed_over_all_epochs": overall,
        "smallest_without_downloads_again": smallest,
    }
    yield ReportRow("cache", value, "cache size", words)
    yield ReportRow("cache_shortage", job.shortage, "", job.shortage or "")


def _time_rows(job: TrainingJob, found: SimulationResult, epochs: Sequence[Epoch], steps: int) -> Iterator[ReportRow]:
    """Downloads of nodes and their times; of a job that was given up, people see no times."""
    traffic, first, compute = (
        found.traffic,
        found.first_seconds,
        [max(each.steps) * job.step_seconds for each in epochs],
    )
    stalled, has_ranges = sum(found.waits.values()), found.total("range_requests") and job.has_tables
    begin = epoch = stalls = ""
    if found.stopped_at is None:
        begin = f"after {_seconds(first[0])}{', its samples by byte ranges' if has_ranges else ''}"
        mean, computing = sum(found.epoch_seconds) / len(epochs), sum(compute) / len(epochs)
        epoch = (
            f"{_seconds(mean)}; {_seconds(computing)} of computing{f', {mean / computing:.2f} x' if computing else ''}"
        )
        stalls = f"{_seconds(stalled)} in {len(found.waits):,} of {steps:,} steps, for {waited_for(job)}"
    yield ReportRow("traffic", [[asdict(own) for own in nodes] for nodes in traffic])
    yield ReportRow("first_batch_seconds", first, "first batch", begin)
    yield ReportRow("epoch_seconds", found.epoch_seconds, "an epoch", epoch)
    yield ReportRow("compute_seconds", compute)
    yield ReportRow("stalled_seconds", stalled, "stalls", stalls)
    yield ReportRow("stalled_steps", len(found.waits))
    most = max(found.requests.values(), default=0)
    asked = {"most_a_second": most, "total": sum(found.requests.values())}
    words = f"at most {most:,} in a second, {asked['total']:,} in all"
    if most > STORE_REQUESTS:
        words += (
            f"; a store as S3 answers {STORE_REQUESTS:,} in a second for one prefix: spread the shards over several"
        )
    yield ReportRow("requests", asked, "requests", words if most else "")
    yield ReportRow("steps", steps)
    given_up = (
        found.stopped_at is not None and f"given up at step {found.stopped_at:,} of {steps:,}; more is read at a time"
    )
    yield ReportRow("stopped_at_step", found.stopped_at, "cache too small", given_up or "")


def waited_for(job: TrainingJob) -> str:
    """Words for the causes of waits."""
    return "shards" if not job.reads_early else "samples" if job.has_tables else "shards and samples"


def _how_often(job: TrainingJob, counts: figures.Counts) -> str:
    """The samples' fates; where passes have no seam between them, there is no such thing as a repeated one."""
    least, more = divmod(counts.read, max(counts.samples, 1))
    if least and job.rule is None and job.weights is None and (job.passes > 1 or job.nominal is not None):
        return f"each {least:,} to {least + 1:,} times" if more else f"each {least:,} times"
    return f"left out {counts.left_out:,}, repeated {counts.repeated:,}"


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
    columns = _TRAFFIC | (_RANGES if report.job.reads_early else _WAITED)
    traffic, nodes = report.found.traffic, report.job.nodes
    rows: list[tuple[str, ...]] = []
    for epoch, each in enumerate(traffic):
        groups = (
            [("all " + str(nodes), each)]
            if len(traffic) * nodes > _MAX_ROWS and nodes > 1
            else [(str(number), [own]) for number, own in enumerate(each)]
        )
        for words, group in groups:
            sums = [(name, sum(getattr(own, name) for own in group)) for name in columns.values()]
            rows.append((str(epoch), words, *(format_size(n) if "bytes" in name else f"{n:,}" for name, n in sums)))
    return (">epoch", ">node", *(f">{name}" for name in columns)), rows


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
