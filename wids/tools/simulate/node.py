"""One node while time goes on: its cache, its link, the prefetchers of its ranks, and what its loaders wait for.

How a shard is read is said by `wids.core.readers.access`, space is found by `wids.core.cache.reservation`, and
prefetchers choose shards by `PrefetchWindow`. A shard that is on its way is not asked for again.

Samples are read by byte ranges where their shard is not cached and its member table is known. What the ranks of a node
read so for one batch is asked for at once, when they draw it, and comes as one delivery; the batch waits for that, and
for no shard.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from wids.core.cache import reservation
from wids.core.order.layout import Visit
from wids.core.prefetch import distance
from wids.core.prefetch.window import AheadLimits, Life, PlannedDownload, PrefetchWindow
from wids.core.readers.access import Access, begins_download, choose
from wids.core.transport import concurrency
from wids.core.transport.pace import Pace
from wids.tools.simulate.job import shards_of_batches
from wids.tools.simulate.link import Clock, Delivery, Link
from wids.tools.simulate.node_cache import NodeCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wids.core.readers.access import AccessMode
    from wids.tools.simulate.job import Epoch, TrainingJob
    from wids.tools.simulate.link import Process
    from wids.tools.simulate.result import SimulationResult, Traffic


# (rank, shard) -> how many of a batch's samples.
_Samples = dict[tuple[int, int], float]


class WaitingStep(NamedTuple):
    """A step that cannot begin: its number in the epoch, and when it was due."""

    step: int
    due: float


@dataclass
class SimulationProgress:
    """The progress of the job, over all of its nodes.

    Attributes:
        outcome: its figures so far.
        downloads_left: after so many more it is given up.
        is_strict: give up when the first shard is downloaded again.
        clock: the time.
        offset: positions of the epochs before this one.
        past_steps: steps of the epochs before this one.
        step: of this epoch.
        position: the position up to which the ranks have drawn, over all epochs.
        waiting: the step that waits; None: none does.
    """

    outcome: SimulationResult
    downloads_left: int
    is_strict: bool
    clock: Clock = field(default_factory=Clock)
    offset: int = 0
    past_steps: int = 0
    step: int = 0
    position: int = 0
    waiting: WaitingStep | None = None

    @property
    def is_given_up(self) -> bool:
        """True if the simulation ends here."""
        return self.outcome.stopped_at is not None

    def give_up(self) -> None:
        """Shards are evicted while they are read, without end."""
        self.outcome.stopped_at = self.past_steps + self.step


class _Waiter(NamedTuple):
    """A loader that waits for space."""

    rank: int
    shard: int
    since: float


class _SimulatedDownload(PlannedDownload):
    """A shard that a simulated rank comes to."""

    __slots__ = ("_node", "_shard")

    def __init__(self, node: Node, shard: int) -> None:
        super().__init__()
        self._node, self._shard = node, shard

    @property
    def size(self) -> int:
        return self._node.sizes[self._shard]

    @property
    def slots(self) -> int:
        return self._node.slots(self.size)

    @property
    def reads_early(self) -> bool:
        return self._node.has_table(self._shard)

    def needs_download(self) -> bool:
        cache = self._node.cache
        return self._shard not in cache.cached and self._shard not in cache.coming


class _SimulatedShard:
    """A shard as `wids.core.readers.access` sees it: nothing fails, and ranges cost nothing but their bytes."""

    __slots__ = ("has_room", "has_table", "is_cached", "is_downloading", "may_ask")

    mode: AccessMode = "fetch"
    has_early_reads = will_arrive = has_ranges = True
    is_in_place = has_failed = is_spent = is_own = is_planned = False  # plans: `begins_download` is asked without any
    retry_at = since = 0.0

    def __init__(self, node: Node, shard: int, *, has_room: bool = False) -> None:
        self.has_table = node.has_table(shard)
        self.is_cached, self.is_downloading = shard in node.cache.cached, shard in node.cache.coming
        self.has_room = has_room
        self.may_ask = node.may_ask()


class Node:
    """One node of a job.

    Args:
        job: the job.
        number: of the node.
        progress: of the job.

    Attributes:
        ranks: those of the node.
        sizes: bytes of each shard.
        cache: of the node.
        pending: needs of the step that waits: shards, and ``~step`` for its own batch's ranges.
        arrived_at: time at which the last of them came.
        has_ended: visits have ended at this step.
        has_looked: prefetchers have looked at their ranks at this step.
    """

    job: TrainingJob
    cache: NodeCache
    ranks: range
    sizes: list[int]
    has_ended: bool

    def __init__(self, job: TrainingJob, number: int, progress: SimulationProgress) -> None:
        self.job, self._number, self._progress, self._clock = job, number, progress, progress.clock
        self._lengths, self.sizes, footprints = job.shard_lists
        self._slots: dict[int, int] = {}  # by size
        self._grace = reservation.grace(job.latency + float(job.sizes.mean()) / job.bandwidth)
        self.cache = NodeCache(job.cache_size, footprints, is_busy=self._is_busy)
        self._link = Link(
            self._clock,
            bandwidth=job.bandwidth,
            latency=job.latency,
            on_carried=self._note_bytes,
            on_arrival=self._arrive,
        )
        self.ranks = range(number * job.ranks_per_node, min((number + 1) * job.ranks_per_node, job.world))
        self._windows: dict[int, PrefetchWindow[_SimulatedDownload]] = {}
        self._waiters: deque[_Waiter] = deque()
        self.pending: set[int] = set()
        self.arrived_at: float | None = None
        self.has_ended = self.has_looked = False
        self._is_planned = job.cache_size is not None
        self._half_seen: set[tuple[int, Visit]] = set()
        self._downloaded: dict[int, int] = {}  # of each shard, the epoch in which it was downloaded last
        self._carried_bytes = 0
        # For early reads.
        self._has_tables = job.reads_early and job.has_tables
        self._tables: set[int] = set()  # shards whose tables are known, where none are published
        self._batches: dict[int, Callable[[int], dict[int, float]]] = {}
        self._under_way: set[int] = set()  # batches of which some ranges are still to come
        self._unread: dict[int, _Samples] = {}  # batch -> what it waits for
        self._pace, self._rate_of_requests = Pace(), Pace.limits.job_rate / job.nodes
        self._own: set[tuple[int, int]] = set()  # downloads that who reads has begun: (rank, shard)

    # --- an epoch

    def begin_epoch(self, epoch: Epoch) -> None:
        """The ranks' loaders and prefetchers begin."""
        job, offset = self.job, self._progress.offset
        if job.reads_early:
            self._batches = {rank: shards_of_batches(epoch, job, self._lengths, rank) for rank in self.ranks}
        for rank in self.ranks if job.prefetch != 0 else ():
            self._windows[rank] = PrefetchWindow(
                ([Visit(offset + first, offset + last, 0, shard)] for first, last, shard in epoch.coming[rank].rows()),
                [self],
                connections=job.connections,
                mixed=sum(need.mixed.needed - 1 for need in job.needs),
            )
            self.look(rank)
        self.pump()

    @property
    def limits(self) -> AheadLimits:
        """The limits of each rank's reading ahead."""
        job = self.job
        return AheadLimits(job.prefetch, job.cache_size, min(job.ranks_per_node, job.world))

    def slots(self, size: int) -> int:
        """Number of connections that a shard keeps busy."""
        if size not in self._slots:
            self._slots[size] = concurrency.slots(size, self._length(size), self.job.connections)
        return self._slots[size]

    def _length(self, size: int) -> int:
        """Bytes of a request for a part of a shard."""
        job = self.job
        wanted = 10 * job.latency * job.bandwidth / job.connections
        return concurrency.range_bytes(size, wanted=wanted, connections=job.connections)

    def plan(self, shard: int) -> _SimulatedDownload:
        """A new download of a shard; see `PrefetchWindow`."""
        return _SimulatedDownload(self, shard)

    def end_epoch(self) -> None:
        """Plans are withdrawn, and no loader waits any more."""
        for rank, window in self._windows.items():
            self._unplan(rank, window.forget_all())
        self._half_seen.clear()
        self._windows.clear()
        self._waiters.clear()
        self.cache.end_epoch()

    def look(self, rank: int) -> None:
        """The prefetcher of a rank takes note of where its rank is."""
        position = self._progress.position
        entered, forgotten = self._windows[rank].advance(
            position, rate=self._rate, read_before=position - self.job.burst
        )
        for visit in entered if self._is_planned else ():
            if self._is_first((rank, visit)):
                self.cache.plan(visit.shard, visit.first)
        self._unplan(rank, forgotten)

    def _unplan(self, rank: int, visits: Iterable[Visit]) -> None:
        for visit in visits if self._is_planned else ():
            if not self._is_first((rank, visit)):
                self.cache.unplan(visit.shard, visit.first)

    def _is_first(self, visit: tuple[int, Visit]) -> bool:
        """True if a visit of a rank has not yet entered its window, or been forgotten; for it does both once.

        It may be forgotten first: entered since the prefetcher looked, and over while a step waited.
        """
        self._half_seen ^= {visit}
        return visit in self._half_seen

    # --- loaders

    def has_table(self, shard: int) -> bool:
        """True if a shard's samples can be read by byte ranges."""
        return self._has_tables or shard in self._tables

    def may_ask(self) -> bool:
        """True if the node's processes may ask for more ranges of shards that are on their way."""
        return self._pace.may_ask(self._clock.now, self._rate_of_requests)

    def access(self, shard: int) -> Access:
        """The present access to a shard."""
        return choose(_SimulatedShard(self, shard), self._clock.now)

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
        """A batch is drawn: samples whose shards are not cached are asked for, or their shards are waited for."""
        missing, found, unread = self.cache.missing, _Samples(), _Samples()
        for rank, shards_of in self._batches.items() if missing else ():
            for shard, count in shards_of(batch).items():
                if shard not in missing:
                    continue
                access = self.access(shard)
                if access is Access.RANGES:
                    found[rank, shard] = count
                    self._pace.spend(count)  # before the next one is looked at
                elif access is Access.TURN:
                    unread[rank, shard] = count
        if found:
            self._bring(batch, found)
        if unread:
            self._unread[batch] = unread

    def _wait_for_turn(self, step: int, waits: _Samples) -> None:
        """A step needs samples that were not asked for, or their shards, whichever comes first."""
        found = self._still_missing(waits)
        if not found:
            return
        self.pending.update(shard for _, shard in found)
        seconds = self._pace.seconds_left(self._clock.now, self._rate_of_requests)
        self._clock.start(self._take_turn(step, found, self._clock.now + seconds))

    def _still_missing(self, samples: _Samples) -> _Samples:
        return {(rank, shard): count for (rank, shard), count in samples.items() if shard in self.cache.missing}

    def _take_turn(self, step: int, waits: _Samples, when: float) -> Process:
        """A process that asks for what has not come by its turn, if the step still waits."""
        yield when
        found = self._still_missing(waits)
        waiting = self._progress.waiting
        if not found or waiting is None or waiting.step != step:
            return
        self.pending.difference_update(shard for _, shard in found)
        self.pending.add(~step)
        self._pace.spend(sum(found.values()))
        self._bring(step, found)

    def _bring(self, batch: int, found: _Samples) -> None:
        """Ask for samples of a batch."""
        samples = sum(found.values())
        size = sum(count * self.sizes[shard] / self._lengths[shard] for (_, shard), count in found.items())
        rank = next(iter(found))[0]
        self._under_way.add(batch)
        self._clock.start(self._link.bring(Delivery(rank, -1, round(size), is_urgent=True, batch=batch)))
        self._traffic.range_requests += round(samples)
        self._progress.outcome.note_requests(self._clock.now, round(samples))
        self._traffic.range_bytes += round(size)
        if not self._windows:
            self._download_read(found)

    def finish(self, key: tuple[int, int], shard: int, last: int, *, is_read: bool) -> None:
        """A visit's last batch is handed out; or, with ``is_read``, it was read by now, if all of it could be."""
        is_open = key in self.cache.open.get(shard, ())
        if not is_read or (is_open and self._can_read(key[0], shard, last)):
            self.cache.finish(key, shard, is_read=is_read)
            self.has_ended = True

    def _can_read(self, rank: int, shard: int, last: int) -> bool:
        if (batch := last // self.job.batch_size) in self._under_way or batch in self._unread:
            return False
        return self.has_table(shard) or self.cache.can_read(rank, shard, last)

    @property
    def is_watched(self) -> bool:
        """True if batches that the order says nothing special of may have to wait."""
        is_reading = self.cache.missing or self._under_way or self._unread
        return bool(is_reading if self.job.reads_early else self.cache.again)

    def need_batch(self, step: int) -> None:
        """A step is due: it needs its own ranges, and shards that were evicted while they were being read."""
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
        self._wait_for_turn(step, self._unread.pop(step, {}))
        if step in self._under_way:
            self.pending.add(~step)

    def wait(self) -> None:
        """A step begins to wait."""
        self.arrived_at = None
        if self._waiters:
            self._clock.start(self._look_again(self._clock.now + self.job.burst / self._rate))
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
            is_new = self._clock.now < waiter.since + self._grace
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
        now = self._clock.now
        if self.access(shard) is not Access.DOWNLOAD:
            return
        begun = now if since is None else since
        waited = now - begun if now < begun + self._grace else math.inf
        if self._reserve(shard, waited=waited):
            self._download(rank, shard, is_urgent=True)
        else:
            self._waiters.append(_Waiter(rank, shard, begun))
            if since is None:
                self._clock.start(self._look_again(now + self._grace))
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
        return self._has_tables or self._progress.waiting is None  # with all tables, their release is never asked for

    def _look_again(self, when: float) -> Process:
        """A process that then looks whether there is space for loaders that wait."""
        yield when
        self.ask_again()
        self.pump()

    def _read_on(self, step: int, due: float) -> None:
        """A step waits: loaders read what they have drawn, as far as they can, and plans count that they do."""
        job, least = self.job, step * self.job.batch_size
        self.cache.finish_read(self.cache.unread(least), least + job.drawn_samples)
        read = least + job.drawn_samples - job.burst + (self._clock.now - due) * self._rate
        for rank, window in self._windows.items():
            self._unplan(rank, window.forget(self._progress.offset + read))

    # --- downloads

    def pump(self) -> None:
        """Let the prefetchers begin what they may."""
        position = self._progress.position
        for rank, window in self._windows.items():
            while not self._progress.is_given_up and (download := window.take()) is not None:
                visit = download.upcoming[0]
                use = reservation.with_margin(max(visit.first, position), position)
                if not self._reserve(visit.shard, use=use):
                    window.end(download, retry_at=0.0)
                    window.plan_again(download)
                    break
                self._download(rank, visit.shard, is_urgent=False)
                self._report_evicted()

    def _download_read(self, found: Iterable[tuple[int, int]]) -> None:
        """Download shards that are read by ranges, where nothing prefetches."""
        for rank, shard in found:
            has_room = sum(own == rank for own, _ in self._own) < concurrency.LIMITS.min_under_way
            simulated = _SimulatedShard(self, shard, has_room=has_room)
            if begins_download(simulated, self._clock.now) and self._reserve(shard, use=self._progress.position):
                self._own.add((rank, shard))
                self._download(rank, shard, is_urgent=False)
                self._report_evicted()

    def _download(self, rank: int, shard: int, *, is_urgent: bool) -> None:
        progress, size, traffic = self._progress, self.sizes[shard], self._traffic
        self._clock.start(self._link.bring(Delivery(rank, shard, size, is_urgent)))
        progress.downloads_left -= 1
        if progress.downloads_left < 0 and not progress.is_given_up:
            progress.give_up()
        traffic.shards += 1
        traffic.size_bytes += size
        progress.outcome.note_requests(self._clock.now, -(-size // max(self._length(size), 1)))
        traffic.waited += is_urgent
        epoch, before = len(progress.outcome.traffic) - 1, self._downloaded.get(shard)
        if before is not None:
            traffic.again += 1
            traffic.again_bytes += size
            traffic.again_within += before == epoch
            if progress.is_strict:
                progress.give_up()
        self._downloaded[shard] = epoch

    @property
    def _traffic(self) -> Traffic:
        return self._progress.outcome.traffic[-1][self._number]

    def _note_bytes(self, carried: int) -> None:
        self._carried_bytes += carried
        self._progress.outcome.log[self._number].append((self._clock.now, self.cache.used, self._carried_bytes))

    def _arrive(self, delivery: Delivery) -> None:
        if delivery.batch is None:
            self._arrive_whole(delivery)
            return
        self._under_way.discard(delivery.batch)
        self._have_arrived(~delivery.batch)
        self._link.serve()

    def _arrive_whole(self, delivery: Delivery) -> None:
        """A shard is here; when it is evicted, its table stays."""
        shard = delivery.shard
        self._own.discard((delivery.rank, shard))
        if self.job.reads_early:
            self._tables.add(shard)
        self.cache.arrive(shard, self._progress.position)
        self._have_arrived(shard)
        window = self._windows.get(delivery.rank)
        download = None if window is None or delivery.is_urgent else window.find((0, shard))
        if window is not None and download is not None and download.life is Life.RUNNING:
            window.end(download, is_complete=True)
        self.ask_again()
        self._link.serve()
        self.pump()

    def _have_arrived(self, what: int) -> None:
        if what in self.pending:
            self.pending.discard(what)
            self.arrived_at = self._clock.now

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
        now = self._clock.now
        return self._progress.position / now if now > 0 else distance.LIMITS.first_rate

    def _is_busy(self) -> bool:
        return any(window.is_busy for window in self._windows.values())


def _is_refused(cache: NodeCache, shard: int, refused: int | None, *, is_exact: bool) -> bool:
    """True if a shard that is still to come finds no space, as (``is_exact``: just) ``refused`` bytes found none."""
    if refused is None or shard in cache.coming or shard in cache.cached or cache.limit is None:
        return False
    footprint = cache.footprint(shard)
    return refused <= footprint <= (min(refused, cache.limit) if is_exact else cache.limit)
