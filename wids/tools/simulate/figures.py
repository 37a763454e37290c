"""Figures that the order alone decides: counts, splits, shards open at a time, the cache that is needed, mixing.

No time and no cache here; see `wids.tools.simulate.run`, of whose result there are curves: cache use, bandwidth and
stalls over steps, in few enough points to be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from wids.core.order.batching import BatchRule
from wids.core.order.epoch import Plan
from wids.core.order.packing import PackRule
from wids.tools.simulate.run import Simulation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices
    from wids.tools.simulate.job import Epoch, RankBatches, TrainingJob
    from wids.tools.simulate.result import SimulationResult
    from wids.tools.simulate.trace import Course, Visits

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Over steps, counted over all epochs.

    Attributes:
        steps: where each stretch ends; (n,).
        used_bytes: of each node, in its cache at the end of each stretch, shards on their way included.
        bandwidth: of each node, bytes a second in the stretch.
        stall_seconds: of each node, how long steps waited for it in the stretch.
        costs: of each rank, of a batch of like length or of packs, the mean of the stretch; None: it is of a number of
            samples.
    """

    steps: list[int]
    used_bytes: list[list[int]]
    bandwidth: list[list[float]]
    stall_seconds: list[list[float]]
    costs: list[list[float]] | None = None


def draw(found: SimulationResult, *, points: int = 200, costs: list[Floats] | None = None) -> Curves:
    """The curves of a simulation, in ``points`` stretches or fewer."""
    marks = np.array(found.marks or [(0.0, 0)])
    last = int(marks[-1, 1])
    edges = np.unique(np.linspace(0, max(last, 1), points + 1).astype(np.int64))
    # A step that waited has two times; the later one is when it began.
    steps, first = np.unique(marks[::-1, 1], return_index=True)
    times = np.interp(edges, steps, marks[::-1, 0][first])
    used, bandwidth, stalls = [], [], []
    for number, log in enumerate(found.log):
        table = np.array(log)
        at = np.searchsorted(table[:, 0], times, side="right") - 1
        used.append(table[at, 1][1:].astype(np.int64).tolist())
        fetched = np.interp(times, table[:, 0], table[:, 2])  # a shard comes evenly while it has the link
        fetched[0] = 0.0  # shards that came before the first step count to it
        spans = np.diff(np.append(0.0, times[1:]))
        bandwidth.append((np.diff(fetched) / np.maximum(spans, 1e-9)).tolist())
        stalls.append(_sum_within(edges, [(s.step, s.seconds) for s in found.stalls if s.node == number]).tolist())
    means = None
    if costs is not None:
        sums = [np.concatenate([[0.0], np.cumsum(own)]) for own in costs]
        means = [(np.diff(of_rank[np.minimum(edges, len(of_rank) - 1)]) / np.diff(edges)).tolist() for of_rank in sums]
    return Curves(edges[1:].tolist(), used, bandwidth, stalls, means)


def _sum_within(edges: Indices, values: list[tuple[int, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    sums = np.zeros(len(edges) - 1)
    for step, seconds in values:
        sums[min(max(int(np.searchsorted(edges, step, side="right")) - 1, 0), len(sums) - 1)] += seconds
    return sums


# Batches of which the shards are counted, spread over an epoch; each costs a window of every lane.
_LOOKS = 8
_MAX_SEARCHED = 20_000
_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Samples of a job.

    Attributes:
        samples: of the dataset.
        read: by all ranks, in all epochs; in packs, those whose first token is read.
        left_out: of an epoch; where passes follow each other without a seam, of the whole job; of a mixture, of its
            sources, and with weights, in batches of like length or in packs of its samples.
        repeated: likewise.
    """

    samples: int
    read: int
    left_out: int
    repeated: int


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Shards that several read, in all epochs together.

    Attributes:
        by_ranks: number of shards that more than one rank reads.
        by_nodes: number of shards that more than one node reads.
        most_ranks: the maximum of ranks that read one shard.
        shards: shard that several ranks read -> these ranks.
    """

    by_ranks: int
    by_nodes: int
    most_ranks: int
    shards: dict[int, list[int]]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """The mixing of the order, over some batches of the first epoch; see benchmarks/shuffle.py.

    Attributes:
        in_global_batch: distinct shards in the batches of all ranks together.
        in_batch: distinct shards in the batch of one rank.
        neighbours: probability that a rank's next sample is of the same shard.
    """

    in_global_batch: float
    in_batch: float
    neighbours: float


def count_samples(job: TrainingJob, courses: Sequence[Course], epochs: Sequence[Epoch]) -> Counts:
    """Samples that are read, left out and repeated."""
    n = int(job.lengths.sum())
    first = courses[0]
    if epochs[0].batches is not None or job.weights is not None:
        drawn = [_samples_of(courses, epoch, number) for number, epoch in enumerate(epochs)]
        some = np.concatenate(drawn) if first.epochs.is_stream else drawn[0]
        distinct = int(np.count_nonzero(np.bincount(some, minlength=n)))
        return Counts(samples=n, read=sum(map(len, drawn)), left_out=n - distinct, repeated=len(some) - distinct)
    if job.is_by_shards:
        return Counts(samples=n, read=n * job.epochs, left_out=0, repeated=0)
    if not isinstance(first.plan, Plan):
        begin, end = first.span(0)[0], first.span(job.epochs - 1)[1]
        read, before, counts = end - begin, *map(first.plan.order().counts, (begin, end))
        names = {source.name: len(source.plan) for source in first.plan.sources}
        beyond = [counts[name] - before[name] - size for name, size in names.items()]
        return Counts(
            samples=n,
            read=read,
            left_out=-sum(count for count in beyond if count < 0),
            repeated=sum(count for count in beyond if count > 0),
        )
    if first.epochs.is_stream:
        read = first.span(job.epochs - 1)[1] - first.span(0)[0]
        return Counts(samples=n, read=read, left_out=max(n - read, 0), repeated=max(read - n, 0))
    stop = first.span(0)[1]
    read = sum(end - begin for begin, end in map(first.span, range(job.epochs)))
    return Counts(samples=n, read=read, left_out=max(n - stop, 0), repeated=max(stop - n, 0))


def _samples_of(courses: Sequence[Course], epoch: Epoch, number: int) -> Indices:
    """The samples that all ranks read in an epoch."""
    blocks = (block for course in courses for block in course.blocks(number))
    if epoch.batches is not None:
        blocks = (of_rank.begun for of_rank in epoch.batches)
    return np.concatenate([np.zeros(0, np.int64), *blocks])


def find_splits(job: TrainingJob, epochs: Sequence[Epoch]) -> Splits:
    """The shards that several ranks read."""
    total = len(job.lengths)
    pairs = [np.unique(visits.shard) + rank * total for epoch in epochs for rank, visits in enumerate(epoch.visits)]
    ranks, shards = np.divmod(np.unique(np.concatenate(pairs)), total)
    counts = np.bincount(shards, minlength=total)
    nodes = np.bincount(np.unique(ranks // job.ranks_per_node * total + shards) % total, minlength=total)
    split = np.isin(shards, np.flatnonzero(counts > 1))
    found: dict[int, list[int]] = {}
    for shard, rank in sorted(zip(shards[split].tolist(), ranks[split].tolist(), strict=True)):
        found.setdefault(shard, []).append(rank)
    return Splits(
        by_ranks=len(found), by_nodes=int((nodes > 1).sum()), most_ranks=int(counts.max(initial=0)), shards=found
    )


def open_at_a_time(job: TrainingJob, epochs: Sequence[Epoch], rank: int) -> Indices:
    """Number of shards that a rank reads from at each of n steps, over all epochs: (n,)."""
    return np.concatenate([_overlap(epoch.visits[rank], epoch.steps[rank], job.batch_size) for epoch in epochs])


def _overlap(visits: Visits, steps: int, batch_size: int) -> Indices:
    begins = np.bincount(visits.first // batch_size, minlength=steps + 1)
    ends = np.bincount(visits.last // batch_size + 1, minlength=steps + 1)
    return np.cumsum(begins[:steps] - ends[:steps])


def needed_bytes(job: TrainingJob, epochs: Sequence[Epoch]) -> int:
    """The largest set of shards that a node has used and will use again: no smaller cache does without re-downloads.

    To the sample, not the batch: when a batch goes on with the next window, that of the last one has been read.

    Args:
        job: whose.
        epochs: taken together: a shard that is used in two of them is needed in between.
    """
    offsets = np.cumsum([0, *(max(epoch.counts) for epoch in epochs)])
    most = 0
    for node in range(job.nodes):
        ranks = range(node * job.ranks_per_node, min((node + 1) * job.ranks_per_node, job.world))
        first = np.full(len(job.lengths), int(offsets[-1]) + 1, np.int64)
        last = np.full(len(job.lengths), -1, np.int64)
        for epoch, offset in zip(epochs, offsets[:-1].tolist(), strict=True):
            for visits in (epoch.visits[rank] for rank in ranks):
                np.minimum.at(first, visits.shard, offset + visits.first)
                np.maximum.at(last, visits.shard, offset + visits.last)
        used = last >= 0
        times = np.concatenate([first[used], last[used] + 1])
        changes = np.concatenate([job.footprints[used], -job.footprints[used]])
        order = np.lexsort((changes, times))  # of one position, shards that are done leave before new ones come
        most = max(most, int(np.cumsum(changes[order]).max(initial=0)))
    return most


def smallest_cache(job: TrainingJob, epochs: list[Epoch]) -> int | None:
    """The smallest cache, to a few hundredths, with which no shard is downloaded again; None: too long a search.

    By simulating with one size after another; so what prefetching and eviction do at their own pace is in it. Shards
    are waited for: read early, they might come once because they never come in time.
    """
    if sum(len(visits.first) for epoch in epochs for visits in epoch.coming) > _MAX_SEARCHED:
        return None
    lo, hi = needed_bytes(job, epochs), int(job.footprints.sum())

    def is_enough(size: int) -> bool:
        found = Simulation(replace(job, cache_size=size, early_reads=False), epochs, is_strict=True).run()
        return found.stopped_at is None and not found.total("again")

    if lo >= hi or is_enough(lo):
        return lo
    size = lo
    while size * 2 < hi:
        size *= 2
        if is_enough(size):
            hi = size
            break
        lo = size
    for _ in range(_ROUNDS):
        middle = (lo + hi) // 2
        if is_enough(middle):
            hi = middle
        else:
            lo = middle
    return hi


def measure_mixing(job: TrainingJob, courses: Sequence[Course], epochs: Sequence[Epoch]) -> Mixing:
    """Look at some batches, spread evenly over the first epoch."""
    steps = min(epochs[0].steps)
    if not steps:
        return Mixing(in_global_batch=0.0, in_batch=0.0, neighbours=0.0)
    chosen = sorted(set(np.linspace(0, steps - 1, _LOOKS).astype(int).tolist()))
    everywhere, own, same = [], [], []
    for step in chosen:
        batches = [_shards_of(job, course, epochs[0], rank, step) for rank, course in enumerate(courses)]
        batches = [batch for batch in batches if len(batch)]
        everywhere.append(len(np.unique(np.concatenate([np.zeros(0, np.int64), *batches]))))
        own += [len(np.unique(batch)) for batch in batches]
        same += [float((np.diff(batch) == 0).mean()) for batch in batches if len(batch) > 1]
    return Mixing(in_global_batch=_mean(everywhere), in_batch=_mean(own), neighbours=_mean(same))


def _shards_of(job: TrainingJob, course: Course, epoch: Epoch, rank: int, step: int) -> Indices:
    """The shard of each sample of a batch."""
    if epoch.batches is not None and epoch.shards is not None:
        edges = epoch.batches[rank].edges
        return epoch.shards[rank][edges[step] : edges[step + 1]]
    return course.shards(0, step * job.batch_size, min((step + 1) * job.batch_size, epoch.counts[rank]))


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Batches of like length, of all ranks and epochs. None: there are no lengths, or is no budget.

    Attributes:
        batches: their number.
        smallest: samples in the smallest one.
        median: the median of their samples.
        largest: samples in the largest one.
        padding: tokens with the padding of each batch to its longest sample, as a multiple of those without.
        imbalance_mean: mean over the steps of the cost of the costliest rank's batch, as a multiple of the mean of all
            ranks; without lengths a sample costs 1.
        imbalance_worst: likewise, the maximum over the steps.
        used_mean: mean of the costs of batches, as a share of the budget.
        used_least: likewise, the minimum.
        limits: the mean share of each limit that a batch uses, by its name.
        fullest_mean: mean of the largest share of a budget that a batch uses; by it, steps are balanced under limits.
        max_tokens: the budget.
        too_long: samples of the dataset that are longer than it, and are left out.
        repeated_in_tail: samples that were read again, in an epoch, so that all ranks have as many batches.
        costs: of each rank, of its batch at each step over all epochs: (steps,).
    """

    batches: int
    smallest: int
    median: float
    largest: int
    padding: float | None
    imbalance_mean: float
    imbalance_worst: float
    used_mean: float | None
    used_least: float | None
    limits: dict[str, float]
    fullest_mean: float | None
    max_tokens: float | None
    too_long: int
    repeated_in_tail: int
    costs: list[Floats]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Packs, of all ranks and epochs.

    Attributes:
        packs: their number.
        batches: number of batches that they are in.
        tokens: in them, separators included.
        pack_tokens: the most tokens of a pack.
        fill: tokens, as a share of the room of all packs.
        fill_least: of the emptiest pack, likewise.
        short: number of packs that are not full.
        pieces_mean: documents, or pieces of them, of a pack, on average.
        pieces_most: likewise, the maximum.
        cut: number of documents whose first piece is not all of them.
        step_tokens: of all ranks in a step, on average.
        imbalance_mean: mean over the steps of the tokens of the rank that has most, as a multiple of the mean of all
            ranks.
        imbalance_worst: likewise, the maximum over the steps.
        skipped: samples of the dataset that are left out: without a token, or longer than a pack and not to be cut.
        repeated_tokens: that were read again, in an epoch, so that all ranks have as many batches.
        costs: tokens of each rank, of its batch at each step over all epochs: (steps,).
    """

    packs: int
    batches: int
    tokens: int
    pack_tokens: int
    fill: float
    fill_least: float
    short: int
    pieces_mean: float
    pieces_most: int
    cut: int
    step_tokens: float
    imbalance_mean: float
    imbalance_worst: float
    skipped: int
    repeated_tokens: int
    costs: list[Floats]


def measure_packs(job: TrainingJob, epochs: Sequence[Epoch]) -> Packing | None:
    """The contents of packs; None: batches are of other kinds."""
    rule = job.rule
    if not isinstance(rule, PackRule):
        return None
    costs, sizes, counts, cut, repeated = [], [], [], 0, 0
    for rank in range(job.world):
        own = [epoch.batches[rank] for epoch in epochs if epoch.batches is not None]
        tokens = [one.tokens for one in own]
        costs.append(np.concatenate([sum_batches(t, one.edges) for t, one in zip(tokens, own, strict=True)]))
        for t, one in zip(tokens, own, strict=True):
            if one.pieces is not None:
                begins = np.append(True, np.diff(one.pieces.packs) != 0)
                begins[one.edges[:-1]] = True
                edges = np.append(np.flatnonzero(begins), len(t))
                sizes.append(sum_batches(t, edges))
                counts.append(np.diff(edges))
                starts = one.pieces.first == 0
                cut += int(np.count_nonzero(starts & (one.pieces.last < one.pieces.lengths + rule.separators)))
        repeated += int(tokens[0][own[0].fills].sum())
    none = np.zeros(0, np.int64)
    table, filled, each = np.stack(costs), np.concatenate([none, *sizes]), np.concatenate([none, *counts])
    total, packs, most = int(filled.sum()), len(filled), rule.pack_tokens
    mean, worst = _imbalance(table)
    return Packing(
        packs=packs,
        batches=table.size,
        tokens=total,
        pack_tokens=most,
        fill=total / (packs * most) if packs else 0.0,
        fill_least=float(filled.min()) / most if packs else 0.0,
        short=int(np.count_nonzero(filled < most)),
        pieces_mean=_mean(each.tolist()),
        pieces_most=int(each.max(initial=0)),
        cut=cut,
        step_tokens=_mean(table.sum(axis=0).tolist()),
        imbalance_mean=mean,
        imbalance_worst=worst,
        skipped=rule.skipped,
        repeated_tokens=repeated,
        costs=list(table),
    )


def _imbalance(costs: Floats) -> tuple[float, float]:
    """The most of a step, as a multiple of the mean of its ranks, over the steps: (mean, maximum) of (ranks, steps)."""
    means = costs.mean(axis=0)
    ratios = costs.max(axis=0, initial=0)[means > 0] / means[means > 0]
    return _mean(ratios.tolist()), float(ratios.max(initial=0))


def measure_batches(job: TrainingJob, epochs: Sequence[Epoch]) -> Batching | None:
    """The contents of batches of like length; None: batches are of other kinds."""
    rule = job.rule
    if not isinstance(rule, BatchRule):
        return None
    costs, sizes, shares, padded, real = [], [], [], 0.0, 0.0
    for rank in range(job.world):
        own = [epoch.batches[rank] for epoch in epochs if epoch.batches is not None]
        longest, sums, counts = (
            np.concatenate(columns) for columns in zip(*(add_up(rule, o) for o in own), strict=True)
        )
        limits = [np.concatenate([sum_batches(limit.of(o.samples), o.edges) for o in own]) for limit in rule.limits]
        shares.append(rule.shares_of(longest, sums, counts, limits))
        padded, real = padded + float((longest * counts).sum()), real + float(sums.sum())
        costs.append(rule.cost_of(longest, sums, counts))
        sizes.append(counts)
    table, flat = np.stack(costs), np.concatenate(sizes)
    used_by_rank = np.stack(shares)  # (ranks, budgets, steps)
    fullest = used_by_rank.max(axis=1) if used_by_rank.shape[1] else table
    mean, worst = _imbalance(fullest if rule.limits else table)
    used = None if rule.max_cost is None else table.ravel() / rule.max_cost
    has_batches = bool(len(flat))
    return Batching(
        batches=len(flat),
        smallest=int(flat.min()) if has_batches else 0,
        median=float(np.median(flat)) if has_batches else 0.0,
        largest=int(flat.max(initial=0)),
        padding=padded / real if rule.lengths is not None and real else None,
        imbalance_mean=mean,
        imbalance_worst=worst,
        used_mean=None if used is None or not has_batches else float(used.mean()),
        used_least=None if used is None or not has_batches else float(used.min()),
        limits={
            limit.name: _mean(used_by_rank[:, k - len(rule.limits)].ravel().tolist())
            for k, limit in enumerate(rule.limits)
        },
        fullest_mean=float(fullest.mean()) if used_by_rank.shape[1] and has_batches else None,
        max_tokens=rule.max_cost,
        too_long=rule.skipped,
        repeated_in_tail=sum(int(own.fills.sum()) for own in epochs[0].batches or ()),
        costs=list(table),
    )


def add_up(rule: BatchRule, own: RankBatches) -> tuple[Floats, Floats, Indices]:
    """The longest sample of each batch, the sum of its lengths, and its count: (steps,) each."""
    counts = np.diff(own.edges)
    longest = np.zeros(len(counts))
    some, lengths = counts > 0, rule.lengths_of(own.samples)
    if some.any():
        longest[some] = np.maximum.reduceat(lengths, own.edges[:-1][some])
    return longest, sum_batches(lengths, own.edges), counts


def sum_batches(values: Floats | Indices, edges: Indices) -> Floats:
    """The sums of the values of each batch: (steps,).

    Args:
        values: of the samples of all batches, in turn.
        edges: the beginning of each batch among them, and the end of the last one: (steps + 1,).
    """
    sums, some = np.zeros(len(edges) - 1), np.diff(edges) > 0
    if some.any():
        sums[some] = np.add.reduceat(values, edges[:-1][some])
    return sums


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(sum(found) / len(found)) if found else 0.0
