"""One node while time goes on: its cache, its link, the prefetchers of its ranks, and loaders that wait for space.

Loaders and prefetchers find space by `wids.policy.reservation`, prefetchers choose shards by `PrefetchWindow`. A shard
that is on its way is not asked for again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wids.order.layout import Visit
from wids.policy import prefetching
from wids.policy.access import Access, choose
from wids.policy.prefetch_window import AheadLimits, Life, PlannedDownload, PrefetchWindow
from wids.simulate.link import Delivery, Link
from wids.simulate.node_cache import NodeCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.policy.access import AccessMode
    from wids.simulate.job import Epoch, TrainingJob
    from wids.simulate.loop import EventLoop
    from wids.simulate.outcome import SimulationResult
    from wids.simulate.trace import Visits


class WaitingStep(NamedTuple):
    """A step that cannot begin: its number in the epoch, and when it was due."""

    step: int
    due: float


@dataclass
class SimulationProgress:
    """How far the job is, for all of its nodes.

    Attributes:
        outcome: its figures so far.
        downloads_left: after so many more it is given up. is_strict: give up when the first shard is downloaded again.
        offset, past_steps: positions and steps of the epochs before this one. step: of this epoch.
        position: what the ranks have drawn up to, over all epochs.
        waiting: the step that waits; None: none does.
    """

    outcome: SimulationResult
    downloads_left: int
    is_strict: bool
    offset: int = 0
    past_steps: int = 0
    step: int = 0
    position: int = 0
    waiting: WaitingStep | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether the simulation ends here."""
        return self.outcome.stopped_at is not None

    def give_up(self) -> None:
        """Shards are evicted while they are read, without end."""
        self.outcome.stopped_at = self.past_steps + self.step


class _Waiter(NamedTuple):
    """A loader that waits for space."""

    rank: int
    shard: int
    since: float


class _Meter:
    """What one node has downloaded."""

    def __init__(self, number: int, progress: SimulationProgress) -> None:
        self._number, self._progress = number, progress
        self._size_bytes = 0
        self._epochs: dict[int, int] = {}  # of each shard, when it was downloaded last

    def note_download(self, shard: int, size: int, *, is_urgent: bool) -> None:
        """A download begins."""
        progress, epoch = self._progress, len(self._progress.outcome.traffic) - 1
        progress.downloads_left -= 1
        if progress.downloads_left < 0 and not progress.is_given_up:
            progress.give_up()
        traffic = progress.outcome.traffic[-1][self._number]
        traffic.shards += 1
        traffic.size_bytes += size
        traffic.waited += is_urgent
        if shard in self._epochs:
            traffic.again += 1
            traffic.again_bytes += size
            traffic.again_within += self._epochs[shard] == epoch
            if progress.is_strict:
                progress.give_up()
        self._epochs[shard] = epoch

    def note_ranges(self, size: int, requests: int) -> None:
        """Samples are asked for."""
        traffic = self._progress.outcome.traffic[-1][self._number]
        traffic.range_requests += requests
        traffic.range_bytes += size

    def note_use(self, now: float, used: int, *, arrived: int = 0) -> None:
        """So many bytes are in the cache, of which some have just arrived."""
        self._size_bytes += arrived
        self._progress.outcome.log[self._number].append((now, used, self._size_bytes))


class _SimulatedDownload(PlannedDownload):
    """A shard that a simulated rank comes to."""

    __slots__ = ("_node", "_shard")

    def __init__(self, node: SimulatedNode, shard: int) -> None:
        super().__init__()
        self._node, self._shard = node, shard

    @property
    def size(self) -> int:
        return self._node.sizes[self._shard]

    @property
    def slots(self) -> int:
        return _slots(self.size, self._node.job)

    @property
    def reads_early(self) -> bool:
        return self._node.has_table(self._shard)

    def needs_download(self) -> bool:
        cache = self._node.cache
        return self._shard not in cache.cached and self._shard not in cache.coming


class _SimulatedShard(NamedTuple):
    """A shard as `wids.policy.access` sees it: nothing fails, and ranges cost nothing but their bytes."""

    has_table: bool
    is_cached: bool
    is_downloading: bool
    mode: AccessMode = "fetch"
    has_early_reads: bool = True
    will_arrive: bool = True
    has_ranges: bool = True
    is_in_place: bool = False
    has_failed: bool = False
    is_spent: bool = False
    retry_at: float = 0.0


class SimulatedNode:
    """One node of a job, whose loaders wait for shards.

    Attributes:
        job: as given. sizes: bytes of each shard. cache: of the node.
        pending: what the step that waits cannot begin without: shards, and ``~step`` for its own batch's ranges.
        arrived_at: when the last of it came.
    """

    def __init__(self, job: TrainingJob, number: int, loop: EventLoop, progress: SimulationProgress) -> None:
        self.job, self._number, self._loop, self._progress = job, number, loop, progress
        self.sizes: list[int] = job.sizes.tolist()
        self._grace = prefetching.grace(job.latency + float(job.sizes.mean()) / job.bandwidth)
        self.cache = NodeCache(job.cache_size, job.footprints.tolist(), is_busy=self._is_busy)
        self._link = Link(
            loop,
            bandwidth=job.bandwidth,
            latency=job.latency,
            on_begin=lambda: self._meter.note_use(loop.now, self.cache.used),
            on_arrival=lambda delivery: self._arrive(delivery),  # noqa: PLW0108 - it may be another class's
            on_carried=lambda size: self._meter.note_use(loop.now, self.cache.used, arrived=size),
        )
        self._ranks = range(number * job.ranks_per_node, min((number + 1) * job.ranks_per_node, job.world))
        self._windows: dict[int, PrefetchWindow[_SimulatedDownload]] = {}
        self._waiters: deque[_Waiter] = deque()
        self.pending: set[int] = set()
        self.arrived_at: float | None = None
        self._meter = _Meter(number, progress)
        self._is_planned = job.cache_size is not None

    # --- an epoch

    def begin_epoch(self, epoch: Epoch) -> None:
        """The ranks' loaders and prefetchers begin."""
        job = self.job
        if job.prefetch == 0:
            return
        for rank in self._ranks:
            self._windows[rank] = PrefetchWindow(
                _upcoming(epoch.coming[rank], self._progress.offset),
                [self],
                connections=job.connections,
                mixed=job.mixed_shards,
            )
            self.look(rank)
        self.pump()

    @property
    def limits(self) -> AheadLimits:
        """How far ahead each rank may be."""
        job = self.job
        return AheadLimits(job.prefetch, job.cache_size, min(job.ranks_per_node, job.world))

    def plan(self, shard: int) -> _SimulatedDownload:
        """A new download of a shard; see `PrefetchWindow`."""
        return _SimulatedDownload(self, shard)

    def end_epoch(self) -> None:
        """Plans are withdrawn, and no loader waits any more."""
        for window in self._windows.values():
            self._unplan(window.forget_all())
        self._windows.clear()
        self._waiters.clear()
        self.cache.end_epoch()

    def look(self, rank: int) -> None:
        """The prefetcher of a rank takes note of where its rank is."""
        progress, window = self._progress, self._windows.get(rank)
        if window is not None:
            entered, forgotten = window.advance(
                progress.position, rate=self._rate, read_before=progress.position - self.job.burst
            )
            if self._is_planned:
                for visit in entered:
                    self.cache.plan(visit.shard, visit.first)
            self._unplan(forgotten)

    def _unplan(self, visits: Iterable[Visit]) -> None:
        if self._is_planned:
            for visit in visits:
                self.cache.unplan(visit.shard, visit.first)

    # --- loaders

    def has_table(self, shard: int) -> bool:  # noqa: ARG002 - for all shards alike
        """Whether a shard's samples can be read by byte ranges."""
        return False

    def access(self, shard: int) -> Access:
        """How a shard is read now."""
        cache = self.cache
        return choose(
            _SimulatedShard(self.has_table(shard), shard in cache.cached, shard in cache.coming), self._loop.now
        )

    def draw(self, rank: int, visit: int, shard: int, first: int, last: int) -> None:
        """A loader draws the first batch that a shard is needed for."""
        self.cache.begin((rank, visit), shard, (first, last))
        self.cache.touch(shard, self._progress.offset + last)
        self._demand(rank, shard)

    def need(self, rank: int, shard: int) -> None:
        """The step that is due cannot begin without a shard."""
        if self.access(shard) in (Access.WAIT, Access.DOWNLOAD):
            self.pending.add(shard)
            self._demand(rank, shard)

    def read(self, batch: int) -> None:
        """A batch is drawn, and begins to be read."""

    def can_read(self, rank: int, shard: int, last: int) -> bool:
        """Whether a loader has read a visit that it has drawn."""
        return self.cache.can_read(rank, shard, last)

    @property
    def is_watched(self) -> bool:
        """Whether batches that the order says nothing special of may have to wait."""
        return bool(self.cache.again)

    def need_batch(self, step: int) -> None:
        """A step is due: shards that were evicted while they were being read are needed for the next batch."""
        cache, least = self.cache, step * self.job.batch_size
        for shard in sorted(cache.again):
            readers = [key for key, (first, _) in cache.open.get(shard, {}).items() if first < least]
            if not cache.open.get(shard):
                cache.again.discard(shard)
            elif readers:
                cache.again.discard(shard)
                self.need(readers[0][0], shard)
        if cache.again and all(first >= least for shard in cache.again for first, _ in cache.open[shard].values()):
            cache.again.clear()  # these are needed when their first batches are

    def wait(self) -> None:
        """A step begins to wait."""
        self.arrived_at = None
        if self._waiters:
            self._look_again_at(self._loop.now + self.job.burst / self._rate)
        self.ask_again()

    def admit_pending(self) -> None:
        """Nothing can happen any more: all space was promised to others. A limit that cannot be kept is none."""
        for shard in sorted(shard for shard in self.pending - self.cache.coming if shard >= 0):
            self.cache.admit(shard)
            self._download(self._number * self.job.ranks_per_node, shard, is_urgent=True)

    def ask_again(self) -> None:
        """Something has changed for loaders that wait for space."""
        cache = self.cache
        if not self._waiters:
            return
        if self._progress.waiting is not None:
            self._read_on(*self._progress.waiting)
        # Where one finds no space, others that need as much find none either. There may be hundreds, and each would go
        # through all that is cached and planned.
        refused: dict[bool, int] = {}
        for _ in range(len(self._waiters)):
            waiter = self._waiters.popleft()
            is_new = self._loop.now < waiter.since + self._grace
            footprint = cache.footprint(waiter.shard)
            # Whether a new one finds space depends on whose lease is met: only just as many bytes find none either.
            is_exact = is_new and self._progress.waiting is None
            if _is_refused(cache, waiter.shard, refused.get(is_new), is_exact=is_exact):
                self._waiters.append(waiter)
                continue
            before = len(cache.coming), cache.evicted
            self._demand(waiter.rank, waiter.shard, waiter.since)
            if (len(cache.coming), cache.evicted) != before:
                refused.clear()
            elif waiter.shard not in cache.coming and waiter.shard not in cache.cached:
                refused[is_new] = min(footprint, refused.get(is_new, footprint))

    def _demand(self, rank: int, shard: int, since: float | None = None) -> None:
        """A loader cannot go on without a shard."""
        now = self._loop.now
        if self.access(shard) is not Access.DOWNLOAD:
            return
        begun = now if since is None else since
        waited = now - begun if now < begun + self._grace else math.inf
        if self._reserve(shard, waited=waited):
            self._download(rank, shard, is_urgent=True)
        else:
            self._waiters.append(_Waiter(rank, shard, begun))
            if since is None:
                self._look_again_at(now + self._grace)
        self._report_evicted()

    def _reserve(self, shard: int, *, use: float | None = None, waited: float = math.inf) -> bool:
        return self.cache.reserve(
            shard,
            now=self._progress.position,
            second=self._rate,
            use=use,
            waited=waited,
            has_leases=self._has_leases,
        )

    @property
    def _has_leases(self) -> bool:
        return self._progress.waiting is None

    def _look_again_at(self, when: float) -> None:
        """Look then whether there is space for loaders that wait."""

        def look() -> None:
            self.ask_again()
            self.pump()

        self._loop.schedule(when, look)

    def _read_on(self, step: int, due: float) -> None:
        """A step waits: loaders read what they have drawn, as far as they can, and plans count that they do."""
        job, least = self.job, step * self.job.batch_size
        self.cache.finish_read(self.cache.unread(least), least + job.drawn_samples)
        read = least + job.drawn_samples - job.burst + (self._loop.now - due) * self._rate
        for window in self._windows.values():
            self._unplan(window.forget(self._progress.offset + read))

    # --- downloads

    def pump(self) -> None:
        """Let the prefetchers begin what they may."""
        position = self._progress.position
        for rank, window in self._windows.items():
            while not self._progress.is_given_up and (download := window.take()) is not None:
                visit = download.upcoming[0]
                use = prefetching.with_margin(max(visit.first, position), position)
                if not self._reserve(visit.shard, use=use):
                    window.end(download, retry_at=0.0)
                    window.plan_again(download)
                    break
                self._download(rank, visit.shard, is_urgent=False)
                self._report_evicted()

    def _download(self, rank: int, shard: int, *, is_urgent: bool) -> None:
        size = self.sizes[shard]
        self._link.request(Delivery(rank, shard, size, is_urgent))
        self._meter.note_download(shard, size, is_urgent=is_urgent)

    def _arrive(self, delivery: Delivery) -> None:
        shard = delivery.shard
        self.cache.arrive(shard, self._progress.position)
        if shard in self.pending:
            self.pending.discard(shard)
            self.arrived_at = self._loop.now
        window = self._windows.get(delivery.rank)
        download = None if window is None or delivery.is_urgent else window.find((0, shard))
        if window is not None and download is not None and download.life is Life.RUNNING:
            window.end(download, is_complete=True)
        self.ask_again()
        self._link.serve()
        self.pump()

    def _report_evicted(self) -> None:
        gone, self.cache.gone = self.cache.gone, []
        for window in self._windows.values():
            for shard in gone:
                if (download := window.find((0, shard))) is not None:
                    window.plan_again(download)

    @property
    def _rate(self) -> float:
        """Samples of a rank in a second."""
        if self.job.step > 0:
            return self.job.batch_size / self.job.step
        return self._progress.position / self._loop.now if self._loop.now > 0 else prefetching.LIMITS.first_rate

    def _is_busy(self) -> bool:
        return any(window.is_busy for window in self._windows.values())


def _is_refused(cache: NodeCache, shard: int, refused: int | None, *, is_exact: bool) -> bool:
    """Whether a shard that is still to come finds no space, as (``is_exact``: just) ``refused`` bytes found none."""
    if refused is None or shard in cache.coming or shard in cache.cached or cache.limit is None:
        return False
    footprint = cache.footprint(shard)
    return refused <= footprint <= (min(refused, cache.limit) if is_exact else cache.limit)


def _slots(size: int, job: TrainingJob) -> int:
    """How many connections a shard keeps busy."""
    wanted = 10 * job.latency * job.bandwidth / job.connections
    length = prefetching.range_bytes(size, wanted=wanted, connections=job.connections)
    return prefetching.slots(size, length, job.connections)


def _upcoming(visits: Visits, offset: int) -> Iterator[list[Visit]]:
    """The visits one by one, in positions over all epochs."""
    for lo in range(0, len(visits.first), prefetching.LIMITS.block):
        rows = (column[lo : lo + prefetching.LIMITS.block].tolist() for column in visits)
        for first, last, shard in zip(*rows, strict=True):
            yield [Visit(offset + first, offset + last, 0, shard)]
