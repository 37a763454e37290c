"""The simulated job: its shards, order and machines, and what each rank reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.order.batch import Pieces
from wids.core.order.batch_epochs import BatchEpochs
from wids.core.order.layout import ShardCounts, SourceSpan
from wids.core.order.packing import PackRule, mean_tokens
from wids.core.order.permutation import Indices  # noqa: TC001 - dataclasses look at their annotations
from wids.core.order.population import ChunkPopulation, sampler_epochs
from wids.core.order.settings import SamplerSettings
from wids.core.prefetch import distance
from wids.core.transport import concurrency
from wids.tools.simulate.trace import Course, Visits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from wids.core.order.batch import Batch, Rule
    from wids.core.order.epoch import Reshuffle, Tail
    from wids.core.order.rank_epochs import RankEpochs
    from wids.tools.simulate.resume import Resume

# Up to so many samples are looked at one by one; beyond, visits are taken from windows of chunks.
MAX_EXACT = 4_000_000
_MAX_VISITS = 4_000_000
# Each epoch of a rank is looked at by itself, which takes most of a millisecond.
_MAX_EPOCHS = 50_000
_MAX_SAMPLES = 10**15


class ShardLists(NamedTuple):
    """The samples of each shard, its bytes, and those that it takes in a cache; items of lists are read faster."""

    lengths: list[int]
    sizes: list[int]
    footprints: list[int]


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """All that a simulation depends on.

    Attributes:
        lengths: samples in each shard.
        sizes: bytes of each.
        footprints: bytes that each takes in a cache, with its member table.
        parts: the sources of a mixture, whose epochs are nominal; None: it is none.
        source_batch: of a mixture: samples in turn that a rank reads of one source.
        world: number of its ranks.
        ranks_per_node: number of ranks of a node.
        epochs: number of epochs.
        batch_size: samples in a rank's batch.
        workers: those of a rank's loader.
        chunksize: of the sampler.
        window: of the sampler.
        lanes: of the sampler.
        seed: of the sampler.
        shuffle: of the sampler.
        reshuffle: of the sampler.
        tail: of the sampler.
        weights: frequencies of the samples, (nsamples,); None: each comes once in a pass.
        passes: passes in an epoch, without a tail between them.
        nbatches: instead, batches of each rank in an epoch.
        epoch_size: instead, samples of all ranks in an epoch.
        rule: of batches of like length, or of packs; then ``batch_size`` is about that of a batch. None: batches are of
            ``batch_size`` samples.
        block: of these; see `wids.core.order.batch_epochs.BatchEpochs.of`.
        resume: a state that it goes on from, in its epoch; None: it begins.
        is_by_shards: instead, each rank has every ``world``-th shard to itself (`ShardListSampler`).
        cache_size: bytes of a node's cache; None: no limit.
        bandwidth: bytes a second that a node gets.
        latency: seconds to a shard's first byte.
        step_seconds: seconds of computing, once all ranks have their batches.
        decode_seconds: a worker's seconds for a batch.
        prefetch: bytes ahead at most, for a rank; None: as prefetching itself decides, 0: none.
        connections: byte ranges of a rank under way at a time.
        has_tables: member tables are published; else a node has those of the shards that it has downloaded.
        early_reads: samples are read by byte ranges where member tables are known: see `reads_early`.

    Raises:
        ValueError: there is nothing to simulate so, or too much.
    """

    lengths: Indices
    sizes: Indices
    footprints: Indices
    parts: tuple[SourceSpan, ...] | None = None
    source_batch: int = 1
    world: int = 1
    ranks_per_node: int = 8
    epochs: int = 1
    batch_size: int = 32
    workers: int = 0
    chunksize: int = 10_000
    window: int = 4
    lanes: int | None = None
    seed: int = 0
    shuffle: bool = True
    reshuffle: Reshuffle = "fixed"
    tail: Tail = "pad"
    weights: Any = None
    passes: int = 1
    nbatches: int | None = None
    epoch_size: int | None = None
    rule: Rule | None = None
    block: int | None = None
    resume: Resume | None = None
    is_by_shards: bool = False
    cache_size: int | None = None
    bandwidth: float = 1e9
    latency: float = 0.03
    step_seconds: float = 0.1
    decode_seconds: float = 0.0
    prefetch: int | None = None
    connections: int = concurrency.LIMITS.connections
    has_tables: bool = True
    early_reads: bool = True

    def __post_init__(self) -> None:
        self._check_ends()
        if self.source_batch != 1 and self.parts is None:
            raise ValueError(f"source_batch is {self.source_batch}, and the index has no sub-datasets with weights")
        if self.is_by_shards and self.parts is not None:
            raise ValueError(
                "the shards of a mixture have no common order that ranks could have shards of their own of"
            )
        # In floats: they cannot overflow, and the rounding error is irrelevant here.
        n = float(self.lengths.sum(dtype=np.float64))
        if n == 0:
            raise ValueError("the shards hold no sample")
        if n > _MAX_SAMPLES or float(self.sizes.sum(dtype=np.float64)) >= 2.0**62:
            raise ValueError(f"more than {_MAX_SAMPLES:,} samples, or 4 EB of shards, cannot be simulated")
        if self.epochs * self.world > _MAX_EPOCHS:
            raise ValueError(
                f"{self.epochs:,} epochs of {self.world:,} ranks are more than the {_MAX_EPOCHS:,} that can be "
                "simulated; simulate fewer epochs, an epoch is much like the next"
            )
        kinds = {"a mixture is": self.parts, "samples with weights are": self.weights}
        kinds[f"{self._kind} are"] = self.rule
        what = next((words for words, value in kinds.items() if value is not None), None)
        if what is not None and not is_exact(self):
            fewer = "batches (nbatches)" if self.rule is None else "samples (epoch_size)"
            raise ValueError(
                f"{what} looked at sample by sample, and these are more than {MAX_EXACT:,}; simulate fewer {fewer} or "
                "epochs, they are much like the next"
            )
        passes = self.epochs * (self.passes if self.nominal is None else self.nominal / n)
        chunks = 0.0 if self.is_by_shards else n / self.chunksize
        if passes * max(chunks, float(np.count_nonzero(self.lengths))) > _MAX_VISITS:
            raise ValueError(
                f"ranks come to shards, or chunks of them, more than {_MAX_VISITS:,} times, too often here; "
                "simulate fewer epochs or batches, fewer shards or larger chunks"
            )

    def _check_ends(self) -> None:
        ends = {"nbatches": self.nbatches, "epoch_size": self.epoch_size, "repeat": None if self.passes == 1 else 1}
        given = [name for name, value in ends.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both given; one of them says when an epoch ends")
        if self.is_by_shards and given:
            raise ValueError(f"ranks that read shards of their own read them once; {given[0]} does not go with it")
        if self.weights is not None and self.is_by_shards:
            raise ValueError("ranks that read shards of their own read each sample once; weights do not go with it")
        if self.rule is not None and self.is_by_shards:
            raise ValueError(f"{self._kind} are cut in lanes; ranks with shards of their own have none")
        if self.rule is not None and self.nbatches is not None:
            raise ValueError(f"how many samples so many {self._kind} have is not known before: say epoch_size")

    @property
    def _kind(self) -> str:
        return "packs" if isinstance(self.rule, PackRule) else "batches of like length"

    @property
    def nominal(self) -> int | None:
        """Samples of all ranks in an epoch; None: its passes say so."""
        return self.epoch_size if self.nbatches is None else self.nbatches * self.batch_size * self.world

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.world // self.ranks_per_node)

    @cached_property
    def shard_lists(self) -> ShardLists:
        """Shared by all nodes, each of which would take 100 MB for a million shards."""
        return ShardLists(self.lengths.tolist(), self.sizes.tolist(), self.footprints.tolist())

    @cached_property
    def needs(self) -> list[distance.ShardNeed]:
        """The shards that a rank needs at a time, of each source."""
        course, rule = self.courses()[0], self.rule
        epochs: RankEpochs | BatchEpochs = course.epochs
        if rule is not None:
            epochs = BatchEpochs.of(course.epochs, rule, seed=self.seed, block=self.block)
        ends, needs = course.ends, []
        for mixed in epochs.mixed_ranges(epochs.first_place(course.first)):
            first, last = np.searchsorted(ends, (mixed.first, mixed.last - 1), side="right")
            sizes = self.sizes[first : last + 1]
            needs.append(distance.ShardNeed(mixed, len(sizes), int(sizes.mean()) if len(sizes) else 0))
        return needs

    @property
    def shortage(self) -> str | None:
        """Words for a cache that is too small, as a training job warns of it; None: it is large enough."""
        ranks = min(self.ranks_per_node, self.world)
        return None if self.cache_size is None else distance.describe_shortage(self.cache_size, self.needs, ranks=ranks)

    @property
    def reads_early(self) -> bool:
        """True if samples may be read by byte ranges until their shards are cached, or again.

        Workers do so only where prefetching brings the shards; without published tables only what was evicted is.
        """
        is_of_use = self.has_tables or self.cache_size is not None
        return self.early_reads and is_of_use and (self.prefetch != 0 or not self.workers)

    @property
    def drawn_ahead(self) -> int:
        """Batches that a loader draws ahead of what it hands out."""
        return 2 * self.workers  # torch's prefetch_factor

    @property
    def step(self) -> float:
        """Seconds from one step to the next if no shard is waited for."""
        if not self.workers:
            return self.step_seconds + self.decode_seconds
        return max(self.step_seconds, self.decode_seconds / self.workers)

    @property
    def drawn_samples(self) -> int:
        """Samples that a rank has drawn beyond those of the batches before this step."""
        return max(self.drawn_ahead, 1) * self.batch_size

    @property
    def burst(self) -> int:
        """Number of the drawn samples that may not have been read, as far as a prefetcher knows."""
        return min(max(self.drawn_samples, distance.LIMITS.min_burst), distance.LIMITS.max_burst)

    @property
    def steps_read_ahead(self) -> int:
        """Number of steps from the reading of a batch to its delivery."""
        if not self.workers or self.decode_seconds >= self.workers * self.step_seconds:
            return 0
        return max(self.drawn_ahead - ceil(self.decode_seconds / self.step_seconds) - 1, 0)

    @property
    def settings(self) -> SamplerSettings:
        """The settings of the sampler of the first rank."""
        return SamplerSettings(
            num_replicas=self.world,
            chunksize=self.chunksize,
            window=self.window,
            lanes=self.lanes or self.world,
            seed=self.seed,
            shuffle=self.shuffle,
            reshuffle=self.reshuffle,
            tail=self.tail,
            epochs=self.passes,
            epoch_size=self.nominal,
            source_batch=self.source_batch,
        )

    def courses(self) -> list[Course]:
        """The reading of each rank."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        if self.is_by_shards:
            chunks = np.stack([ends - self.lengths, ends], axis=1)
            own = (ChunkPopulation(chunks[rank :: self.world]).epochs(self.settings) for rank in range(self.world))
            return [Course(epochs=epochs, ends=ends) for epochs in own]
        first = 0
        if self.resume is None:
            counts, means = ShardCounts(self.lengths), mean_tokens(self.rule, self.parts)
            epochs = sampler_epochs(counts, self.parts, self.settings, weights=self.weights, means=means)
        else:
            epochs, first = self.resume.begin(self.settings, weights=self.weights, rule=self.rule, block=self.block)
        by_rank = (msgspec.structs.replace(epochs, rank=rank) for rank in range(self.world))
        return [Course(epochs=each, ends=ends, first=first) for each in by_rank]


@dataclass(frozen=True)
class Epoch:
    """The reading of all ranks in one epoch.

    Positions are such that step ``s`` begins at ``s * job.batch_size``, also where batches have other sizes.

    Attributes:
        visits: of each rank, as it reads.
        coming: visits of each rank, as its prefetcher sees them.
        counts: positions of each rank.
        steps: batches of each rank.
        shards: of each rank, the shard of each sample; None: not looked at, or needed.
        batches: of each rank; None: they are of ``job.batch_size`` samples.
    """

    visits: list[Visits]
    coming: list[Visits]
    counts: list[int]
    steps: list[int]
    shards: list[Indices] | None = None
    batches: list[RankBatches] | None = None

    def edges(self, rank: int, size: int) -> Indices:
        """Beginnings of the batches of a rank in its samples, and the end of the last of n: (n + 1,)."""
        if self.batches is not None:
            return self.batches[rank].edges
        return np.minimum(np.arange(self.steps[rank] + 1) * size, self.counts[rank])


@dataclass(frozen=True)
class RankBatches:
    """The reading of a rank in an epoch of batches of like length, or of packs.

    Attributes:
        samples: in the order in which they are read: (nsamples,).
        fills: those of them that fill up the tail: (nsamples,).
        edges: where batches begin, and the last one ends: (steps + 1,).
        pieces: of the samples, in packs: (nsamples,) each; None: all of each is read.
    """

    samples: Indices
    fills: NDArray[np.bool_]
    edges: Indices
    pieces: Pieces | None = None

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Self:
        """The reading of batches in turn."""
        none, parts = np.zeros(0, np.int64), [batch.pieces for batch in batches if batch.pieces is not None]
        return cls(
            samples=np.concatenate([none, *(batch.samples for batch in batches)]),
            fills=np.concatenate([none.astype(bool), *(batch.fills for batch in batches)]),
            edges=np.cumsum([0, *(len(batch.samples) for batch in batches)]),
            pieces=Pieces(*map(np.concatenate, zip(*parts, strict=True))) if parts else None,
        )

    @property
    def begun(self) -> Indices:
        """The samples whose first token is read, or all of them: (n,)."""
        return self.samples if self.pieces is None else self.samples[self.pieces.first == 0]

    @property
    def tokens(self) -> Indices:
        """Tokens of each piece, separators included: (nsamples,)."""
        return self.edges[:0] if self.pieces is None else self.pieces.last - self.pieces.first

    def to_positions(self, visits: Visits, size: int) -> Visits:
        """Visits whose positions are such that batches are of ``size``."""

        def move(at: Indices) -> Indices:
            step = np.searchsorted(self.edges, at, side="right") - 1
            within, count = at - self.edges[step], self.edges[step + 1] - self.edges[step]
            return np.asarray(step * size + within * size // count)

        return Visits(move(visits.first), move(visits.last), visits.shard)


def shards_of_batches(
    epoch: Epoch, job: TrainingJob, lengths: Sequence[int], rank: int
) -> Callable[[int], dict[int, float]]:
    """A function of a batch's number, never less than before: shard -> samples of it in that batch of a rank."""
    if epoch.shards is not None:
        return count_shards(epoch.shards[rank], epoch.edges(rank, job.batch_size))
    return spread_shards(epoch.visits[rank], lengths, count=epoch.counts[rank], size=job.batch_size)


def count_shards(shards: Indices, edges: Indices) -> Callable[[int], dict[int, float]]:
    """`shards_of_batches` from the shard of each sample, the beginnings of batches and the end of the last one."""
    return lambda batch: dict(Counter(shards[edges[batch] : edges[batch + 1]].tolist()))


def spread_shards(
    visits: Visits, lengths: Sequence[int], *, count: int, size: int
) -> Callable[[int], dict[int, float]]:
    """`shards_of_batches` where a visit's samples are spread evenly over its span, and fill batches with the others'.

    Args:
        visits: of the rank.
        lengths: samples of each shard.
        count: samples of the rank.
        size: samples of a batch.
    """
    opened: list[tuple[int, ...]] = []
    rows = visits.rows()
    coming = next(rows, None)

    def share(batch: int) -> dict[int, float]:
        nonlocal coming
        begin, end = batch * size, min((batch + 1) * size, count)
        while coming is not None and coming[0] < end:
            opened.append(coming)
            coming = next(rows, None)
        opened[:] = [row for row in opened if row[1] >= begin]
        found: dict[int, float] = {}
        for first, last, shard in opened:
            span, within = last + 1 - first, min(last + 1, end) - max(first, begin)
            found[shard] = found.get(shard, 0.0) + within * min(lengths[shard] / span, 1.0)
        total = sum(found.values())
        return {shard: part * (end - begin) / total for shard, part in found.items()} if total else {}

    return share


def is_exact(job: TrainingJob) -> bool:
    """True if every index of the job is looked at."""
    n = int(job.lengths.sum())
    total = n * job.passes if job.nominal is None else job.nominal
    return total * job.epochs <= MAX_EXACT


def read_epochs(job: TrainingJob, courses: Sequence[Course]) -> list[Epoch]:
    """The epochs of a job.

    Raises:
        ValueError: there are too many visits.
    """
    found, total = [], 0
    for number in range(job.epochs):
        epoch = _read_epoch(job, courses, number) if job.rule is None else _cut_epoch(job, courses, number)
        total += sum(len(visits.first) for visits in epoch.visits)
        if total > _MAX_VISITS:
            raise ValueError(
                f"ranks come to shards more than {_MAX_VISITS:,} times; simulate fewer epochs, or larger chunks"
            )
        found.append(epoch)
    return found


def _read_epoch(job: TrainingJob, courses: Sequence[Course], number: int) -> Epoch:
    """An epoch of batches of as many samples each."""
    exact = is_exact(job)
    visits, coming = [], []
    for course in courses:
        visits.append(course.visits(number, is_exact=exact))
        coming.append(course.coming(number) if exact and job.prefetch != 0 else visits[-1])
    counts = [course.count(number) for course in courses]
    steps = [-(-count // job.batch_size) for count in counts]
    shards = None
    if exact and job.reads_early:
        shards = [course.shards(number, 0, count) for course, count in zip(courses, counts, strict=True)]
    return Epoch(visits, coming, counts, steps, shards)


def _cut_epoch(job: TrainingJob, courses: Sequence[Course], number: int) -> Epoch:
    """An epoch of batches of like length, or of packs: cut once, and dealt to all ranks."""
    assert job.rule is not None  # noqa: S101 - for the type checker: it has such batches
    epochs, none = BatchEpochs.of(courses[0].epochs, job.rule, seed=job.seed, block=job.block), np.zeros(0, np.int64)
    course = Course(epochs=epochs.lane_epochs, ends=courses[0].ends, first=courses[0].first)
    chunks = list(epochs.deal(epochs.first_place(course.first + number), range(job.world)))
    epoch, shards, read = Epoch([], [], [], []), [], []
    for rank in range(job.world):
        blocks = [of_ranks[rank].samples for of_ranks in chunks]
        own = [batch for of_ranks in chunks for batch in of_ranks[rank].batches]
        found = RankBatches.of(own)
        times = np.concatenate([none, *(batch.positions for batch in own)])
        visits = course.reordered(number, times, found.samples)
        coming = visits if job.prefetch == 0 else course.coming_of(iter(blocks))
        epoch.visits.append(found.to_positions(visits, job.batch_size))
        epoch.coming.append(found.to_positions(coming, job.batch_size))
        epoch.steps.append(len(own))
        epoch.counts.append(len(own) * job.batch_size)
        shards.append(np.searchsorted(course.ends, found.samples, side="right"))
        read.append(found)
    return replace(epoch, shards=shards, batches=read)
