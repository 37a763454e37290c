"""The samples that a rank reads at a step of an epoch, and the rank and step at which a sample is read.

The order is computed by `wids.core.order.epoch` and `wids.core.order.mixture` alone. A batch and a sample are found by
seeking: no more than the windows that mix their chunks is read. Steps are those of a DataLoader with a ``batch_size``.

Batches of like length, and packs, are those of `wids.core.order.batch_epochs`. How many there are before a step only
cutting them tells: each block of the epoch is cut once. The batches of an epoch that the ranks do not divide are those
of the sampler's last round.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from wids.core.order.batch import PACKS
from wids.core.order.batch_epochs import BatchEpochs
from wids.core.order.epoch import Plan
from wids.core.order.lane import matches
from wids.core.order.packing import mean_tokens
from wids.core.order.population import sampler_epochs
from wids.core.order.search import find_in_pass, find_in_stream, lanes_of
from wids.core.order.state import EpochPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wids.core.order.batch import Batch, CutBlock, Rule
    from wids.core.order.epoch import EpochOrder, PassSpan
    from wids.core.order.layout import ShardCounts, SourceSpan
    from wids.core.order.mixture import MixturePlan
    from wids.core.order.permutation import Indices
    from wids.core.order.rank_epochs import RankEpochs
    from wids.core.order.settings import SamplerSettings
    from wids.tools.simulate.resume import Resume


def make_timetable(
    counts: ShardCounts,
    parts: Sequence[SourceSpan] | None,
    settings: SamplerSettings,
    *,
    epoch: int,
    batch_size: int = 1,
    rule: Rule | None = None,
    block: int | None = None,
    on_block: Callable[[int, int], object] = lambda *_: None,
    span: tuple[int, int] | None = None,
    weights: Any = None,
    resume: Resume | None = None,
) -> Timetable | BatchTimetable:
    """The readings of an epoch of a job: samples, ranks and steps.

    Args:
        counts: the shards of the index.
        parts: its sources, if it is a mixture.
        settings: of the sampler.
        epoch: see `Timetable`.
        batch_size: the same.
        rule: of batches of like length, or of packs; None: they are of ``batch_size``.
        block: of those, see `BatchEpochs.of`.
        on_block: see `BatchTimetable`; called with how many samples of how many have been cut.
        span: see `wids.core.order.population.sampler_epochs`.
        weights: the same.
        resume: a state that the job goes on from, in its epoch; None: it begins.

    Raises:
        ValueError: settings that exclude each other. StateError: the state does not fit.
    """
    if resume is None:
        means = mean_tokens(rule, parts)
        epochs = sampler_epochs(counts, parts, settings, span=span, weights=weights, means=means)
    else:
        epochs, epoch = resume.begin(settings, span=span, weights=weights, rule=rule, block=block)
    if rule is None:
        return Timetable(epochs, epoch=epoch, batch_size=batch_size)
    batches = BatchEpochs.of(epochs, rule, seed=settings.seed, block=block)
    first = batches.first_place(epoch)
    total = (batches.end(first) or 0) - first.position
    return BatchTimetable(batches, epoch=epoch, on_block=lambda at: on_block(at - first.position, total))


class Piece(NamedTuple):
    """Tokens of a document in a pack.

    Attributes:
        pack: counted from 0 in the batch.
        first: the first token.
        last: one past the last one, a separator included.
        length: tokens of the document, without a separator.
    """

    pack: int
    first: int
    last: int
    length: int

    def told(self) -> dict[str, Any]:
        """The piece for programs, named as in a sample: ``__pack__``, ``__piece__``, ``__length__``."""
        return {"pack": self.pack, "piece": [self.first, self.last], "length": self.length}


class Reading(NamedTuple):
    """A sample being read.

    Attributes:
        rank: by which rank.
        step: in which of its batches, from 0.
        place: at which place in the batch, from 0.
        is_repeated: some rank has read it before in this epoch, and it fills up the tail; of a nominal one none does.
        piece: that is read, in a pack; None: all of it.
    """

    rank: int
    step: int
    place: int
    is_repeated: bool
    piece: Piece | None = None

    def told(self) -> dict[str, Any]:
        """The reading for programs."""
        values = {name: value for name, value in self._asdict().items() if name != "piece"}
        return values if self.piece is None else {**values, **self.piece.told()}


class Timetable:
    """The readings of one epoch: samples, ranks and steps.

    Args:
        epochs: of the samples, of any rank; that of a mixture has nominal epochs.
        epoch: any integer; a nominal one from 0 on.
        batch_size: samples in a rank's batch, at least 1.

    Attributes:
        epochs: the argument.
        epoch: the argument.
        batch_size: the argument.
        plan: of the order.
        world: number of ranks.
        samples: number that each rank reads in the epoch.
        steps: batches of each rank; the last one may be smaller.
        has_packs: False: samples are read whole.

    Raises:
        ValueError: no such nominal epoch exists, or it has less than a sample for each rank.
    """

    plan: Plan | MixturePlan
    epochs: RankEpochs
    epoch: int
    batch_size: int
    world: int
    samples: int
    steps: int
    has_packs: ClassVar[bool] = False

    def __init__(self, epochs: RankEpochs, *, epoch: int, batch_size: int) -> None:
        self.epochs, self.epoch, self.batch_size = epochs, epoch, batch_size
        self.plan, self.world = epochs.plan, epochs.world
        self._start, self._end = _span(epochs, epoch)
        self._is_stream = epochs.is_stream
        self._pass: PassSpan | None = None  # made once: of many shards, that takes a while
        self.samples = (self._end - self._start) // self.world
        self.steps = -(-self.samples // batch_size)

    def batch(self, rank: int, step: int) -> tuple[Indices, list[bool]]:
        """A batch of a rank: its samples in order, (n,), and which of them are repeated; 0 <= step < steps."""
        first, last = step * self.batch_size, min((step + 1) * self.batch_size, self.samples)
        start = self._start + rank + first * self.world
        blocks = self._blocks(start, self._start + last * self.world, self.world)
        found = np.concatenate([np.zeros(0, np.int64), *blocks])
        return found, [self._is_repeated(start + k * self.world) for k in range(len(found))]

    def pieces(self, rank: int, step: int) -> list[Piece]:  # noqa: ARG002 - see `BatchTimetable`
        """None: samples are read whole."""
        return []

    def counts(self, step: int) -> dict[str, int]:
        """Samples that all ranks read of each source of a mixture before a step, by name; 0 <= step <= steps."""
        plan = self.plan
        assert not isinstance(plan, Plan)  # noqa: S101 - for the type checker: it is a mixture's
        end = self._start + min(step * self.batch_size, self.samples) * self.world
        order = plan.order()
        before, found = order.counts(self._start), order.counts(end)
        return {name: count - before.get(name, 0) for name, count in found.items()}

    def read(self, rank: int, first: int, last: int) -> tuple[Indices, Indices, Indices]:
        """(samples, their positions in the epoch, where each batch begins and the last one ends) of some steps.

        Args:
            rank: whose.
            first: step.
            last: one past the last step; first <= last <= steps.

        Returns:
            (n,), (n,), (last - first + 1,).
        """
        edges = np.minimum(np.arange(first, last + 1) * self.batch_size, self.samples)
        start = self._start + rank
        blocks = self._blocks(start + int(edges[0]) * self.world, start + int(edges[-1]) * self.world, self.world)
        found = np.concatenate([np.zeros(0, np.int64), *blocks])
        return found, start + (edges[0] + np.arange(len(found))) * self.world, edges - edges[0]

    def find(self, indices: Iterable[int]) -> dict[int, list[Reading]]:
        """The readings of each sample; ``[]``: none.

        An epoch reads a sample once, and once more if it fills up the tail; by weights, or a nominal one, any number of
        times.

        Memory: a window of each of 64 lanes at most.
        """
        readings: dict[int, list[Reading]] = {index: [] for index in indices}
        wanted = np.array(sorted(readings), np.int64)
        for position, sample in sorted(_find(self.epochs, self.epoch, wanted)):
            readings[sample].append(self._reading(position))
        return readings

    def _blocks(self, start: int, stop: int, step: int = 1) -> Iterator[Indices]:
        if isinstance(self.plan, Plan) and not self._is_stream:
            if self._pass is None:
                self._pass = self.epochs.epoch_span(self.epoch)
            return self._pass.order.blocks(start - self._pass.first, stop - self._pass.first, step)
        return (block.samples for block in self.epochs.read(self.epoch, start, stop, step))

    def _reading(self, position: int) -> Reading:
        at, rank = divmod(position - self._start, self.world)
        step, place = divmod(at, self.batch_size)
        return Reading(rank, step, place, self._is_repeated(position))

    def _is_repeated(self, position: int) -> bool:
        return not self._is_stream and position >= len(self.plan)


def _span(epochs: RankEpochs, epoch: int) -> tuple[int, int]:
    """From which position to which all ranks read in an epoch."""
    start, end = epochs.span(epochs.first_place(epoch))
    assert end is not None  # noqa: S101 - for the type checker: the epoch has a size
    return start, end


def _find(epochs: RankEpochs, epoch: int, wanted: Indices) -> Iterator[tuple[int, int]]:
    """(position, sample) of samples in an epoch, in no order: (n,), ascending, each once."""
    plan, (start, end) = epochs.plan, _span(epochs, epoch)
    if not isinstance(plan, Plan):
        found = plan.order().find(wanted, start, end)
    elif epochs.is_stream:
        found = find_in_stream(plan, wanted, start, end)
    else:
        span = epochs.epoch_span(epoch)
        readings = chain(
            find_in_pass(lambda: epochs.epoch_span(epoch).order, wanted),
            _find_repeated(span.order, wanted, end - span.first),
        )
        found = ((span.first + position, sample) for position, sample in readings)
    return (one for one in found if one[0] < end)


def _find_repeated(order: EpochOrder, wanted: Indices, end: int) -> Iterator[tuple[int, int]]:
    """Readings past the end of an order, of which there are fewer than ranks, in some lanes."""
    n, of, plan = len(order), order.plan.lanes, order.plan
    # Lanes without samples repeat those of others.
    lanes = range(of) if n < of else lanes_of(plan, order.places_of(wanted), shift=order.shift)
    columns = [(lane - order.shift) % of for lane in lanes]
    for position in [t for column in columns for t in range(n + (column - n) % of, end, of)]:
        for block in order.blocks(position, position + 1):
            if len(matches(block, wanted)):
                yield position, int(block[0])


class BatchTimetable:
    """The readings of one epoch in batches of like length, or of packs: batches, ranks and steps.

    Args:
        epochs: of the batches.
        epoch: as of `Timetable`.
        on_block: called with the position of each block that is cut; if it returns something true, the rest of the
            epoch is left to `go_on`.

    Attributes:
        epochs: the argument.
        epoch: the argument.
        world: number of ranks.
        is_whole: all of the epoch has been cut.
        done: the position up to which it has.
        too_long: samples of the dataset that are in no batch, for they are longer than the budget, or a pack; of packs
            also those without a token.
        has_packs: batches are of pieces of samples.

    Raises:
        ValueError: no such nominal epoch exists, or it has less than a sample for each rank.
    """

    epochs: BatchEpochs
    epoch: int
    world: int
    too_long: int
    has_packs: bool
    done: int
    is_whole: bool

    def __init__(self, epochs: BatchEpochs, *, epoch: int, on_block: Callable[[int], object] = lambda _: None) -> None:
        self.epochs, self.epoch, self.world, self.too_long = epochs, epoch, epochs.world, epochs.rule.skipped
        self.has_packs = epochs.rule.kind == PACKS
        self._starts, self._before = list[int](), [0]  # of the blocks: positions, and the batches before each and all
        first = epochs.first_place(epoch)
        self._uncut, self.done, self.is_whole = epochs.cut(first), first.position, False
        self._last: tuple[int, CutBlock] | None = None  # that was looked at: its number, and itself
        self._round: list[Batch] = []  # of all ranks, the last one, once it was asked for
        self.go_on(on_block)

    def go_on(self, on_block: Callable[[int], object] = lambda _: None) -> None:
        """Cut more of the epoch, to its end or until ``on_block`` returns something true."""
        for block in self._uncut:
            self._starts.append(block.position)
            self._before.append(self._before[-1] + len(block))
            if self._last is None:  # which is looked at first: of many lanes, to cut it again takes as long
                self._last = 0, block
            self.done = block.position + block.size
            if on_block(block.position):
                return
        self.is_whole = True

    @property
    def steps(self) -> int:
        """Batches of each rank; of an epoch that is not cut to its end, those that are known."""
        total = self._before[-1]
        if self.epochs.tail == "drop" or not self.is_whole:
            return total // self.world
        return -(-total // self.world)

    def batch(self, rank: int, step: int) -> tuple[Indices, list[bool]]:
        """A batch; see `Timetable.batch`."""
        batch = self.contents(rank, step)
        return batch.samples, batch.fills.tolist()

    def pieces(self, rank: int, step: int) -> list[Piece]:
        """The pieces of the samples of a batch of packs; of other batches none."""
        return pieces_of(self.contents(rank, step))

    def read(self, rank: int, first: int, last: int) -> tuple[Indices, Indices, Indices]:
        """The samples of a rank's steps; see `Timetable.read`. Positions are those in the order of the samples."""
        batches, none = [self.contents(rank, step) for step in range(first, last)], np.zeros(0, np.int64)
        return (
            np.concatenate([none, *(batch.samples for batch in batches)]),
            np.concatenate([none, *(batch.positions for batch in batches)]),
            np.cumsum([0, *(len(batch.samples) for batch in batches)]),
        )

    def find(self, indices: Iterable[int]) -> dict[int, list[Reading]]:
        """The readings of samples; see `Timetable.find`. An epoch that is not cut to its end is searched so far.

        A document has one for each of its pieces.
        """
        readings: dict[int, list[Reading]] = {index: [] for index in indices}
        wanted, whole = np.array(sorted(readings), np.int64), self._before[-1] // self.world

        def look(rank: int, step: int, batch: Batch) -> None:
            places = np.flatnonzero(np.isin(batch.samples, wanted)).tolist()
            pieces = pieces_of(batch) if places else []
            for at in places:
                piece = pieces[at] if pieces else None
                readings[int(batch.samples[at])].append(Reading(rank, step, at, bool(batch.fills[at]), piece))

        found = _find(self.epochs.lane_epochs, self.epoch, wanted)
        for number in sorted({bisect_right(self._starts, at) - 1 for at, _ in found if at < self.done}):
            block = self._block(number)
            for at in range(len(block)):
                step, rank = divmod(self._before[number] + at, self.world)
                if step < whole:
                    look(rank, step, block.batch(at))
        if self.steps > whole:
            for rank in range(self.world):
                look(rank, whole, self.contents(rank, whole))
        return {index: sorted(found, key=lambda one: (one.step, one.rank)) for index, found in readings.items()}

    def contents(self, rank: int, step: int) -> Batch:
        """All of a batch."""
        number = step * self.world
        at = bisect_right(self._before, number) - 1
        if step < self._before[-1] // self.world:
            at = bisect_right(self._before, number + rank) - 1
            return self._block(at).batch(number + rank - self._before[at])
        if not self._round:  # fewer batches than ranks, which are shared out, or some come again
            place = EpochPosition(self.epoch, self._starts[at], offset=number - self._before[at])
            dealt = list(self.epochs.deal(place, range(self.world)))
            self._round = [
                batch for of_rank in zip(*dealt, strict=True) for chunk in of_rank for batch in chunk.batches
            ]
        return self._round[rank]

    def _block(self, number: int) -> CutBlock:
        if self._last is None or self._last[0] != number:
            self._last = number, next(self.epochs.cut(EpochPosition(self.epoch, self._starts[number])))
        return self._last[1]


def pieces_of(batch: Batch) -> list[Piece]:
    """The pieces of the samples of a batch of packs; of other batches none."""
    return (
        [] if batch.pieces is None else [Piece(*row) for row in zip(*(v.tolist() for v in batch.pieces), strict=True)]
    )
