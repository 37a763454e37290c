"""The batches that a rank reads in an epoch: blocks of rows, dealt to the ranks batch by batch.

    rows of an epoch      0 ............ stop        as many in each lane; `tail` fills up, or leaves out, the last row
    blocks of rows        |-----|-----|-----|        cut into equal parts of about `rows` rows
    batches of a block    step 0: lanes 0 .. L - 1; step 1: lanes 0 .. L - 1; ...
    rank r of W           reads batch r, r + W, r + 2 W, ... counted from the place where the ranks began

So with as many ranks as lanes, a rank reads its own lane. A place is a block, and the number of its batches that all
ranks together have had; blocks before it need not be known. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import count, islice, pairwise
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from wids.core.files.lazy import Lazy
from wids.core.order.batch import Batch, BlockRows, CutBlock
from wids.core.order.cursor import Run
from wids.core.order.epoch import Plan
from wids.core.order.lane import MAX_TOGETHER
from wids.core.order.mask import mark
from wids.core.order.state import EpochPosition
from wids.errors import InputError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Self

    from wids.core.order.batch import Rule
    from wids.core.order.epoch import MixedRange
    from wids.core.order.permutation import Indices
    from wids.core.order.rank_epochs import RankEpochs


class BatchChunk(NamedTuple):
    """A rank's batches of one block.

    Attributes:
        batches: in turn.
        samples: theirs, in a row.
        size: batches of all lanes in the block.
        end: the position of its end.
    """

    batches: list[Batch]
    samples: Indices
    size: int
    end: int


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchEpochs:
    """The order of the batches of one rank, epoch by epoch.

    Attributes:
        lane_epochs: of the samples, as of a job with a rank for each lane.
        rule: the bounds of a batch.
        rows: of a block, about.
        seed: of the order of steps.
        world: number of ranks that read the batches.
        rank: the number of this one.
        known: the block of a state that was loaded, until it is dealt, by its epoch and position.
        checksums: number of batches and checksum of the block that was asked for last, likewise.
    """

    lane_epochs: RankEpochs
    rule: Rule
    rows: int
    seed: int
    world: int = 1
    rank: int = 0
    known: dict[tuple[int, int], CutBlock] = field(default_factory=dict)
    checksums: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, epochs: RankEpochs, rule: Rule, *, seed: int, block: int | None = None) -> Self:
        """The batches of a rank whose samples, without batches, are those of ``epochs``.

        Args:
            epochs: of the samples.
            rule: the bounds of a batch.
            seed: of the order of steps.
            block: rows of a block; None: enough to choose from, within a window.
        """
        return cls(
            lane_epochs=msgspec.structs.replace(epochs, world=epochs.lanes, rank=0),
            rule=rule,
            rows=block or rule.block_rows(epochs.lanes, epochs.plan.window_rows()),
            seed=seed,
            world=epochs.world,
            rank=epochs.rank,
        )

    @property
    def lanes(self) -> int:
        """L."""
        return self.lane_epochs.lanes

    @property
    def tail(self) -> str:
        """The treatment of an epoch that lanes or ranks do not divide."""
        return self.lane_epochs.tail

    @property
    def passes(self) -> int | None:
        """Passes in an epoch; None: it has no end."""
        return self.lane_epochs.passes

    def first_place(self, epoch: int) -> EpochPosition:
        """The beginning of an epoch."""
        return self.lane_epochs.first_place(epoch)

    def go_on(self, place: EpochPosition) -> EpochPosition:
        """The beginning of the next iteration after one that was left at a place, if epochs have no end."""
        return self.lane_epochs.go_on(place)

    def is_over(self, place: EpochPosition) -> bool:
        """True if nothing is left of a place's epoch for the ranks."""
        return not self._count_left(place, most=self.world)

    def is_in_the_middle(self, place: EpochPosition) -> bool:
        """True if something of a place's epoch lies before it, and something is left."""
        first, amended = self.first_place(place.epoch), self.lane_epochs.amended
        is_behind = (place.position, place.offset) > (first.position, 0) or first is amended
        return is_behind and not self.is_over(place)

    def _count_left(self, place: EpochPosition, *, most: int | None = None) -> int:
        """Number of batches that each rank is due from a place on; of all ranks, no more than ``most`` are counted."""
        left = -place.offset
        for block in self.cut(place):
            left += len(block)
            if most is not None and left >= most:
                break
        left = max(left, 0)
        return left // self.world if self.tail == "drop" else -(-left // self.world)

    def count(self, place: EpochPosition) -> int:
        """Length of the epoch for each rank, including what it had drawn before ``place``; the whole epoch is cut.

        Raises:
            TypeError: the epoch has no end.
        """
        if self._span(place)[1] is None:
            raise TypeError("the sampler is endless (epochs=None); it has no length")
        return place.yielded + self._count_left(place)

    def end(self, place: EpochPosition) -> int | None:
        """The position where a place's epoch ends; None: it has no end."""
        return self._span(place)[1]

    def decided(self, place: EpochPosition) -> int:
        """The position up to which the order is decided at a place: the end of a block that has begun."""
        return next((stop for _, stop in self._edges(place)), place.position) if place.offset else place.position

    def checksum(self, place: EpochPosition) -> int | None:
        """Checksum of the lengths and buckets in a place's block; None: the place is at a block's beginning.

        Raises:
            StateError: the block has no more batches than all ranks have had of it.
        """
        if not place.offset:
            return None
        key = place.epoch, place.position
        if (last := self.checksums.get(key)) is None:
            if (block := next(self.cut(place), None)) is None:
                return 0
            last = len(block), block.checksum()
            self.checksums.clear()
            self.checksums[key] = last
        size, checksum = last
        if place.offset >= size:
            raise StateError(f"the state is at {place}, in a block of {size} batches; it is damaged")
        return checksum

    def keep(self, place: EpochPosition) -> None:
        """Keep the block that begins at a place, until it is dealt: to cut it may take long."""
        for block in islice(self.cut(place, has_seeds=self.lane_epochs.has_seeds), 1):
            self.known[place.epoch, place.position] = block

    def begin(self, place: EpochPosition) -> BatchRun:
        """An iteration from a place to the end of its epoch."""
        return BatchRun(self, place)

    def deal(self, place: EpochPosition, ranks: Sequence[int]) -> Iterator[list[BatchChunk]]:
        """The batches of some ranks from a place to its epoch's end, a block at a time."""
        end, total, recent = place.position, -place.offset, list[tuple[int, CutBlock]]()
        ats, held = [place.offset + rank for rank in ranks], [list[Batch]() for _ in ranks]
        is_endless, empty, size = self._span(place)[1] is None, 0, len(self.lane_epochs.plan)
        for block in self.cut(place, has_seeds=self.lane_epochs.has_seeds):
            self.known.clear()
            end, chunks = block.position + block.size, []
            for k, rank in enumerate(ranks):
                numbers = range(ats[k], len(block), self.world)
                dealt = [*held[k], *block.batches(numbers)]
                ats[k] = (numbers[-1] + self.world if numbers else ats[k]) - len(block)
                # The batch of a round that other ranks may not complete is held back: see `_last_round`.
                held[k], dealt = ([], dealt) if ats[k] <= rank else (dealt[-1:], dealt[:-1])
                chunks.append(self._chunk(dealt, size=len(block), end=end))
            empty = 0 if len(block) else empty + block.size
            if is_endless and empty > 2 * max(size, block.size):
                raise InputError("no sample that an epoch without end reads is left for a batch; see `skipped`")
            if len(block):
                recent = [(first, one) for first, one in recent if first + len(one) > total + len(block) - self.world]
                recent.append((total, block))
            total += len(block)
            yield chunks
        if self.tail != "drop" and total > 0 and total % self.world:
            batches = self._last_round(recent, total)
            yield [self._chunk([batches[rank]], size=0, end=end) for rank in ranks]

    def _last_round(self, recent: list[tuple[int, CutBlock]], total: int) -> list[Batch]:
        """A batch for each rank of the last batches of an epoch, which are fewer than the ranks.

        Args:
            recent: the last blocks, with the number of batches before each, counted from where the ranks began.
            total: number of all batches.
        """

        def at(number: int) -> Batch:
            first, block = next(one for one in reversed(recent) if one[0] <= number)
            return block.batch((number - first) % len(block))

        batches = [at(number) for number in range(total - total % self.world, total)]
        split = self.rule.split(batches, self.world)
        if split is not None:
            return split
        # The last ranks have had one batch less, and take batches of the last block once more.
        again = [at(number) for number in range(total, total + self.world - len(batches))]
        return [*batches, *(batch._replace(fills=np.ones_like(batch.fills)) for batch in again)]

    def _chunk(self, batches: list[Batch], *, size: int, end: int) -> BatchChunk:
        flat = np.concatenate([np.zeros(0, np.int64), *(samples for samples, *_ in batches)])
        return BatchChunk(batches, flat, size, end)

    def mark(self, batch: Batch) -> list[int]:
        """The indices of a batch as a loader takes them."""
        samples, fills, seeds, _, pieces = batch
        words = None if seeds is None else seeds.tolist()
        is_valid = (~fills).tolist() if self.tail == "mask" else None
        return list(mark(samples.tolist(), seeds=words, is_valid=is_valid, pieces=pieces))

    def cut(self, place: EpochPosition, *, has_seeds: bool = False) -> Iterator[CutBlock]:
        """The blocks from a place to its epoch's end, cut; their samples have seeds, or none."""
        known = self.known.get((place.epoch, place.position))
        if known is not None:
            place = place._replace(position=place.position + known.size)
            yield known
            del known
        epochs = self.lane_epochs
        piece = min(self.rows * self.lanes, MAX_TOGETHER)  # each lane is read once for each of them
        pieces = epochs.read(place.epoch, place.position, self._span(place)[1], has_seeds=has_seeds, piece=piece)
        left = np.zeros((1 + has_seeds, 0), np.int64)  # samples, and their seeds
        for first, last in self._edges(place):
            if last - first > MAX_TOGETHER:
                raise InputError(
                    f"a block of batches has {last - first:,} samples of {self.lanes:,} lane(s), and a rank holds at "
                    f"most {MAX_TOGETHER:,}; lower block, chunksize or lanes"
                )
            parts, size = [left], left.shape[1]
            while size < last - first:
                parts.append(np.stack([part for part in next(pieces) if part is not None]))
                size += parts[-1].shape[1]
            taken = np.concatenate(parts, axis=1)
            taken, left = taken[:, : last - first], taken[:, last - first :]
            samples = taken[0]
            rows = BlockRows(
                samples.reshape(-1, self.lanes),
                seeds=taken[1].reshape(-1, self.lanes) if has_seeds else None,
                real=len(samples) if epochs.is_stream else len(epochs.plan) - first,
                seed=self.seed,
                epoch=0 if epochs.is_stream else place.epoch,
                position=first,
                is_shuffled=self._is_shuffled,
                is_dropping=self.tail == "drop",
            )
            yield self.rule.cut(rows)

    def _edges(self, place: EpochPosition) -> Iterator[tuple[int, int]]:
        """(first, last) position of each block from a place's on.

        Raises:
            StateError: no block begins at the place.
        """
        first, stop = self._span(place)
        lanes = self.lanes
        if stop is None:
            for at in count(place.position, self.rows * lanes):
                yield at, at + self.rows * lanes
            return
        total = (stop - first) // lanes
        blocks = -(-total // self.rows)

        def edge(at: int) -> int:
            return first + at * total // max(blocks, 1) * lanes

        numbers = range(blocks + 1)
        at = bisect_left(numbers, place.position, key=edge)
        if at == len(numbers) or edge(at) != place.position:
            raise StateError(f"the state is at {place}, where no block of batches begins; it is damaged")
        yield from pairwise(map(edge, numbers[at:]))

    def _span(self, place: EpochPosition) -> tuple[int, int | None]:
        """First position and end of a place's epoch, in whole rows; end None: it has none."""
        return self.lane_epochs.span(self.first_place(place.epoch))

    @Lazy
    def _is_shuffled(self) -> bool:
        plan = self.lane_epochs.plan
        return plan.is_shuffled if isinstance(plan, Plan) else any(s.plan.is_shuffled for s in plan.sources)

    def mixed_ranges(self, place: EpochPosition) -> list[MixedRange]:
        """The ranges of which a rank mixes chunks from a place on."""
        block = 0 if self.rule.keeps_order else self.rows
        return msgspec.structs.replace(self.lane_epochs, world=self.world).mixed_ranges(place, block=block)


class BatchRun(Run[BatchEpochs]):
    """The progress of one iteration over batches; counts are batches."""

    def __init__(self, epochs: BatchEpochs, place: EpochPosition) -> None:
        super().__init__(epochs, place)
        self._ends: list[tuple[int, int]] = []  # of blocks that were begun: batches of all lanes, and the position

    @property
    def drawn_samples(self) -> int:
        """The number of samples drawn."""
        _, left, before, sizes = self._at
        return before + sum(sizes[: len(sizes) - length_hint(left)])

    def blocks(self) -> Iterator[BatchChunk]:
        """The rank's batches from the place to its epoch's end, a block at a time."""
        return (chunk for [chunk] in self.epochs.deal(self.place, [self.epochs.rank]))

    def pieces(self, blocks: Iterable[BatchChunk]) -> Iterator[Iterator[list[int]]]:
        """The batches, marked, and counted as they are drawn."""
        for chunk in blocks:
            count, _, before, sizes = self._at
            left = iter(chunk.batches)
            self._ends.append((chunk.size, chunk.end))
            new = [len(samples) for samples, *_ in chunk.batches]
            self._at = count + len(new), left, before + sum(sizes), new
            yield map(self.epochs.mark, left)  # one at a time: the garbage collector looks at all marks that are alive

    def place_after(self, count: int) -> EpochPosition:
        """The place after every rank has had ``count`` batches of the run."""
        epoch, position, yielded, offset = self.place
        offset += count * self.epochs.world
        for size, end in self._ends:
            if not offset or offset < size:
                break
            offset, position = offset - size, end
        else:  # ranks that are further may know the next blocks, which have no batch where all was left out
            if offset >= (1 if self.epochs.rule.is_sparse else self.epochs.lanes):
                for block in self.epochs.cut(EpochPosition(epoch, position)):
                    if not offset or offset < len(block):
                        break
                    offset, position = offset - len(block), position + block.size
        return EpochPosition(epoch, position, yielded + count, offset)
