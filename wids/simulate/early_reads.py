"""Samples that loaders read by byte ranges, because their shards are not cached yet.

What the ranks of a node read for one batch is asked for at once, when they draw it, and comes as one delivery; the
batch waits for that, and for no shard. How many samples of a shard a batch holds is counted where every index is looked
at; else a visit's are spread evenly.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from wids.policy import prefetching
from wids.policy.access import Access
from wids.simulate.link import Delivery
from wids.simulate.node import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wids.order.permutation import Indices
    from wids.simulate.job import Epoch, TrainingJob
    from wids.simulate.loop import EventLoop
    from wids.simulate.node import SimulationProgress
    from wids.simulate.trace import Visits


class BatchShards(Protocol):
    """What the batches of one rank consist of; they are asked for in ascending order."""

    def of(self, batch: int) -> dict[int, float]:
        """Shard -> samples of it in a batch."""


class Counted:
    """Every sample is looked at.

    Args:
        shards: of each sample.
        edges: where batches begin, and the last one ends.
    """

    def __init__(self, shards: Indices, edges: Indices) -> None:
        self._shards, self._edges = shards, edges

    def of(self, batch: int) -> dict[int, float]:
        """See `BatchShards.of`."""
        return dict(Counter(self._shards[self._edges[batch] : self._edges[batch + 1]].tolist()))


class Spread:
    """A visit's samples are spread evenly over its span, and fill each batch together with those of the others.

    Args:
        visits: of the rank.
        lengths: samples of each shard.
        count: samples of the rank. size: of a batch.
    """

    def __init__(self, visits: Visits, lengths: Sequence[int], *, count: int, size: int) -> None:
        self._rows = _rows(visits)
        self._lengths, self._count, self._size = lengths, count, size
        self._next = next(self._rows, None)
        self._open: list[tuple[int, int, int]] = []

    def of(self, batch: int) -> dict[int, float]:
        """See `BatchShards.of`."""
        begin, end = batch * self._size, min((batch + 1) * self._size, self._count)
        while self._next is not None and self._next[0] < end:
            self._open.append(self._next)
            self._next = next(self._rows, None)
        self._open = [row for row in self._open if row[1] >= begin]
        found: dict[int, float] = {}
        for first, last, shard in self._open:
            span, within = last + 1 - first, min(last + 1, end) - max(first, begin)
            found[shard] = found.get(shard, 0.0) + within * min(self._lengths[shard] / span, 1.0)
        total = sum(found.values())
        return {shard: share * (end - begin) / total for shard, share in found.items()} if total else {}


def _rows(visits: Visits) -> Iterator[tuple[int, int, int]]:
    for at in range(len(visits.first)):
        yield int(visits.first[at]), int(visits.last[at]), int(visits.shard[at])


def batches_of(epoch: Epoch, job: TrainingJob, lengths: Sequence[int], rank: int) -> BatchShards:
    """What the batches of a rank consist of."""
    if epoch.shards is not None:
        return Counted(epoch.shards[rank], epoch.edges(rank, job.batch_size))
    return Spread(epoch.visits[rank], lengths, count=epoch.counts[rank], size=job.batch_size)


class EarlyReadingNode(SimulatedNode):
    """A node whose loaders wait for samples, and for shards only whose member tables are not known.

    Shards are downloaded ahead as far as there is space. Where there is no prefetching, who reads a shard downloads it
    meanwhile, as `wids.cache.arrivals` does. A shard that was downloaded has left its table when it is evicted.
    """

    def __init__(self, job: TrainingJob, number: int, loop: EventLoop, progress: SimulationProgress) -> None:
        super().__init__(job, number, loop, progress)
        self._lengths: list[int] = job.lengths.tolist()
        self._batches: dict[int, BatchShards] = {}
        self._under_way: set[int] = set()  # batches of which some ranges are still to come
        self._own: set[tuple[int, int]] = set()  # downloads that who reads has begun: (rank, shard)
        self._tables: set[int] = set()  # shards whose tables are known, where none are published

    def has_table(self, shard: int) -> bool:
        """See `SimulatedNode.has_table`."""
        return self.job.has_tables or shard in self._tables

    def begin_epoch(self, epoch: Epoch) -> None:
        """See `SimulatedNode.begin_epoch`."""
        self._batches = {rank: batches_of(epoch, self.job, self._lengths, rank) for rank in self._ranks}
        super().begin_epoch(epoch)

    def draw(self, rank: int, visit: int, shard: int, first: int, last: int) -> None:
        """See `SimulatedNode.draw`."""
        if self.access(shard) in (Access.WAIT, Access.DOWNLOAD):
            super().draw(rank, visit, shard, first, last)
            return
        self.cache.begin((rank, visit), shard, (first, last))
        self.cache.touch(shard, self._progress.offset + last)

    def read(self, batch: int) -> None:
        """See `SimulatedNode.read`: asks for the samples whose shards are not cached."""
        missing, size, samples = self.cache.missing, 0.0, 0.0
        found = []
        for rank, batches in self._batches.items() if missing else ():
            for shard, count in batches.of(batch).items():
                if shard in missing and self.access(shard) is Access.RANGES:
                    samples += count
                    size += count * self.sizes[shard] / self._lengths[shard]
                    found.append((rank, shard))
        if not found:
            return
        self._under_way.add(batch)
        self._link.request(Delivery(found[0][0], -1, round(size), is_urgent=True, batch=batch))
        self._meter.note_ranges(round(size), round(samples))
        if not self._windows:
            self._download_read(found)

    def need_batch(self, step: int) -> None:
        """See `SimulatedNode.need_batch`."""
        if not self.job.has_tables:
            super().need_batch(step)
        if step in self._under_way:
            self.pending.add(~step)

    def can_read(self, rank: int, shard: int, last: int) -> bool:
        """See `SimulatedNode.can_read`."""
        if last // self.job.batch_size in self._under_way:
            return False
        return self.has_table(shard) or super().can_read(rank, shard, last)

    @property
    def is_watched(self) -> bool:
        """See `SimulatedNode.is_watched`."""
        return bool(self.cache.missing or self._under_way)

    @property
    def _has_leases(self) -> bool:
        return self.job.has_tables or super()._has_leases  # where all have tables, their release is never asked for

    def _download_read(self, found: Iterable[tuple[int, int]]) -> None:
        """Download the shards that ranks read by ranges."""
        for rank, shard in found:
            has_room = sum(own == rank for own, _ in self._own) < prefetching.LIMITS.min_under_way
            if has_room and shard not in self.cache.coming and self._reserve(shard, use=self._progress.position):
                self._own.add((rank, shard))
                self._download(rank, shard, is_urgent=False)
                self._report_evicted()

    def _arrive(self, delivery: Delivery) -> None:
        if delivery.batch is None:
            self._own.discard((delivery.rank, delivery.shard))
            if not self.job.has_tables:
                self._tables.add(delivery.shard)
            super()._arrive(delivery)
            return
        self._under_way.discard(delivery.batch)
        if ~delivery.batch in self.pending:
            self.pending.discard(~delivery.batch)
            self.arrived_at = self._loop.now
        self._link.serve()
