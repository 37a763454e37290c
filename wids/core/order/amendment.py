"""Going on in an epoch whose data have changed: what was read of it does not come again, and what is new comes.

An order is pure, so what a state's pass has read is a prefix of its order over the earlier data: whole chunks, and a
window of each lane. The samples of now that are not among them are the `Rest` of the pass, in an order of their own::

    earlier data       pass 3:  read read read | never read
    data of now        pass 3:  (gone)           rest rest rest rest | pass 4: all samples of now ...
    position                    ^ 3 n            ^ (3 + 1) n - rest  ^ 4 n        n: samples of now

So the rest ends where the pass would end anyway, and from there on nothing is left of the change; only nominal epochs,
and the sources of a mixture, are moved by it for good. Batches of a block, of which some were read, may lie in several
passes; each of these has a rest then. Pure.

A state of an amended epoch has in its order, as long as it needs them::

    "amended": {"epoch": 3, "position": 4200, "yielded": 525, "shift": 0,
                "sources": {"": {"start": 0, "rests": [[4200, 3, "...a bit for each sample, compressed..."]]}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.order.epoch import Plan, Rest, RestOrder, pass_at
from wids.core.order.index_set import IndexSet
from wids.core.order.state import MAX_POSITION, EpochPosition, check_known, read_int
from wids.errors import InputError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.order.batch import CutBlock
    from wids.core.order.batch_epochs import BatchEpochs
    from wids.core.order.permutation import Indices
    from wids.core.order.rank_epochs import RankEpochs

# Numbers of the passes of a source that a state is in -> the samples that were read of each.
Read = dict[int, IndexSet]
ONLY = ""  # the name of the source, where there is no mixture
_NONE = np.zeros(0, np.int64)


class ChangedSource(NamedTuple):
    """A source after a change of its data.

    Attributes:
        start: positions by which its stream has moved; 0 where there is no mixture.
        rests: what is left of passes.
    """

    start: int = 0
    rests: tuple[Rest, ...] = ()


class Amendment(msgspec.Struct, frozen=True):
    """A change of the data in the middle of an epoch.

    Attributes:
        place: where the epoch goes on.
        shift: positions by which nominal epochs have moved.
        sources: by name; `ONLY` where there is no mixture.
    """

    place: EpochPosition
    shift: int = 0
    sources: dict[str, ChangedSource] = msgspec.field(default_factory=dict)


class Earlier(NamedTuple):
    """The data that a state was saved over.

    Attributes:
        dataset: stands for them, for a sampler; it reads no samples.
        carry: (range of indices there, range here, indices there) -> indices here of the same samples.
        is_same: they are the data of now.
        readers: of the values of its samples that batches depend on, as far as they are known, by their names: as of
            `wids.core.order.batching.BatchRule.for_samples`.
    """

    dataset: Any
    carry: Callable[[tuple[int, int], tuple[int, int], IndexSet], IndexSet]
    is_same: bool = False
    readers: Mapping[str, Callable[[], Any]] = {}

    def read(self, name: str) -> Any:
        """The values of the samples: (nsamples,).

        Raises:
            InputError: they are not known.
        """
        make = self.readers.get(name)
        if make is None:
            raise InputError(
                f"which batches were read follows from the {name} of the earlier samples; give old_{name}=, one for "
                "each sample of old"
            )
        return make()


# --- what was read


def read_samples(
    epochs: RankEpochs,
    place: EpochPosition,
    more: Indices = _NONE,
    omitted: Indices = _NONE,
    filling: Indices = _NONE,
) -> dict[str, Read]:
    """The samples that the passes of a place have read, by source, as indices of the dataset.

    Args:
        epochs: of the earlier data.
        place: its position says how far all ranks together are.
        more: positions from there on that were read, too: (n,), ascending.
        omitted: positions before it that were not: (n,), ascending, of an epoch that is one pass.
        filling: indices that were read to fill up such an epoch: (n,).
    """
    plan = epochs.plan
    if isinstance(plan, Plan):
        if epochs.is_stream:
            return {ONLY: _read_in_stream(plan, place.position, more)}
        order, first, end = epochs.epoch_span(place.epoch)
        seen = order.before(max(min(place.position, end) - first, 0))
        seen = seen.without(IndexSet.of(order.take(omitted - first)))
        return {ONLY: {place.epoch: seen.union(IndexSet.of(order.take(more - first)), IndexSet.of(filling))}}
    mixed, positions = plan.order(), place.position
    counts, further = mixed.counts(positions), {source.name: [_NONE] for source in plan.sources}
    while len(more):
        end_of_segment = mixed.segment_end(int(more[0]))
        count = len(more) if end_of_segment is None else int(np.searchsorted(more, end_of_segment))
        for _, source, places in mixed.places(more[:count]):
            further[source.name].append(places)
        more = more[count:]
    result = {}
    for source in plan.sources:
        if not len(source.plan):
            continue
        places = np.sort(np.concatenate(further[source.name]))
        read = _read_in_stream(source.plan, counts[source.name] + source.start, places)
        result[source.name] = {number: seen.moved(source.offset) for number, seen in read.items()}
    return result


def _read_in_stream(plan: Plan, position: int, more: Indices) -> Read:
    """The samples of the passes from a position on that were read before it, or at further positions."""
    order, first, _ = pass_at(plan, position)
    read = {order.epoch: order.before(position - first)}
    for rest in plan.rests:
        if rest.end > position and rest.number not in read:
            read[rest.number] = RestOrder(plan, rest).before(0)
    while len(more):
        order, first, end = pass_at(plan, int(more[0]))
        count = int(np.searchsorted(more, end))
        before = read.get(order.epoch) or order.before(0)
        read[order.epoch] = before.union(IndexSet.of(order.take(more[:count] - first)))
        more = more[count:]
    first = min(read)
    while len(read.get(first, _NONE)) == len(plan):  # that pass is over
        first += 1
    return {number: read.get(number, IndexSet.of(_NONE)) for number in range(first, max(first, *read) + 1)}


def read_in_batches(epochs: BatchEpochs, place: EpochPosition) -> tuple[Indices, Indices, Indices]:
    """``more``, ``omitted`` and ``filling`` of `read_samples`.

    Of an epoch that is one pass, blocks before the place's are cut if samples may have been left out of them.
    """
    more, filling, omitted = _NONE, _NONE, [_NONE]
    block = next(epochs.cut(place), None) if place.offset else None
    if block is not None:
        more, samples = _read_of(block, min(place.offset, len(block)))
        if not epochs.lane_epochs.is_stream:  # past its end, samples come again
            is_new = more < len(epochs.lane_epochs.plan)
            filling = _NONE if epochs.tail == "mask" else samples[~is_new]  # whose marks say that they do not count
            more = more[is_new]
    if not epochs.lane_epochs.is_stream and (epochs.tail == "drop" or epochs.rule.skips):
        for block in epochs.cut(epochs.first_place(place.epoch)):
            if block.position >= place.position:
                break
            every = np.arange(block.position, min(block.position + block.size, len(epochs.lane_epochs.plan)))
            omitted.append(every[~np.isin(every, _read_of(block, len(block))[0])])
    return more, np.concatenate(omitted), filling


def _read_of(block: CutBlock, count: int) -> tuple[Indices, Indices]:
    """The positions of all samples in the first batches of a block, ascending, and their indices: (n,) each.

    Of documents that are cut, those whose pieces all lie there.
    """
    batches = block.batches(range(count))
    positions = np.concatenate([_NONE, *(batch.positions for batch in batches)])
    samples = np.concatenate([_NONE, *(batch.samples for batch in batches)])
    if batches and batches[0].pieces is not None:
        positions, firsts = np.unique(positions, return_index=True)
        later = [batch.positions for batch in block.batches(range(count, len(block)))]
        is_whole = ~np.isin(positions, np.concatenate([_NONE, *later]))
        return positions[is_whole], samples[firsts][is_whole]
    order = np.argsort(positions, kind="stable")
    return positions[order], samples[order]


def count_begun(epochs: BatchEpochs, place: EpochPosition) -> int:
    """Number of the documents of which some pieces lie before a place, and some behind it."""
    block = next(epochs.cut(place), None) if place.offset else None
    if block is None:
        return 0
    count = min(place.offset, len(block))
    batches = block.batches(range(count))
    if not batches or batches[0].pieces is None:
        return 0
    return len(set(np.concatenate([batch.positions for batch in batches]).tolist())) - len(_read_of(block, count)[0])


# --- what is left


def rests_of(read: Read, lo: int, hi: int, *, is_stream: bool) -> tuple[int, tuple[Rest, ...]]:
    """(position of the first sample that is left, the rests of passes) in the range ``lo .. hi`` of now."""
    size, left = hi - lo, [(number, samples.outside(lo, hi)) for number, samples in sorted(read.items())]
    first = (left[-1][0] + 1 if is_stream else 1) * size - sum(len(samples) for _, samples in left)
    rests, at = [], first
    for number, samples in left:
        if len(samples):
            rests.append(Rest(at, number, samples))
        at += len(samples)
    while rests and len(rests[-1].samples) == size:
        rests.pop()  # an ordinary pass
    return first, tuple(rests)


# --- in a state


def describe(epochs: RankEpochs, place: EpochPosition) -> dict[str, Any]:
    """The part of the order of a state at a place, for `parse`; {}: nothing is left of a change."""
    plan, amended = epochs.plan, epochs.amended
    sources: dict[str, Any] = {}
    if isinstance(plan, Plan):
        passed = place.position if epochs.is_stream or place.epoch == getattr(amended, "epoch", None) else None
        sources = _describe(ONLY, plan, 0, passed)
    elif any(source.start or source.plan.rests for source in plan.sources):
        counts = plan.order().counts(place.position)
        for source in plan.sources:
            sources |= _describe(source.name, source.plan, source.start, counts[source.name] + source.start)
    if amended is None or not (sources or epochs.shift or place.epoch == amended.epoch):
        return {}
    where = {"epoch": amended.epoch, "position": amended.position, "yielded": amended.yielded}
    return {"amended": {**where, "shift": epochs.shift, "sources": sources}}


def _describe(name: str, plan: Plan, start: int, passed: int | None) -> dict[str, Any]:
    lo, hi = plan.lo, plan.hi
    kept = [rest for rest in plan.rests if passed is not None and rest.end > passed]
    rests = [[rest.first, rest.number, rest.samples.to_text(lo, hi)] for rest in kept]
    return {name: {"start": start, "rests": rests}} if rests or start else {}


def parse(values: Any, ranges: Mapping[str, tuple[int, int]]) -> Amendment | None:
    """The amendment that `describe` wrote.

    Args:
        values: of a state; None: it has none.
        ranges: name of each source -> first sample, last + 1, in its plan.

    Raises:
        StateError: it is damaged, or of other sources.
    """
    if values is None:
        return None
    if not isinstance(values, Mapping) or not isinstance(values.get("sources"), Mapping):
        raise StateError(f"the state's change of data is {values!r:.200}; it is damaged")
    check_known(values, {"epoch", "position", "yielded", "shift", "sources"}, "change of data")
    least = {"epoch": -MAX_POSITION, "position": 0, "yielded": 0, "shift": -MAX_POSITION}
    epoch, position, yielded, shift = (
        read_int(values, name, minimum=minimum, maximum=MAX_POSITION) for name, minimum in least.items()
    )
    sources = {}
    for name, source in values["sources"].items():
        if name not in ranges or not isinstance(source, Mapping) or not isinstance(source.get("rests"), (list, tuple)):
            raise StateError(f"the state's change of data in source {name!r:.80} is {source!r:.200}; it is damaged")
        start = read_int(source, "start", minimum=-MAX_POSITION, maximum=MAX_POSITION)
        sources[name] = ChangedSource(start, _parse_rests(source["rests"], *ranges[name]))
    return Amendment(EpochPosition(epoch, position, yielded), shift, sources)


def _parse_rests(values: Sequence[Any], lo: int, hi: int) -> tuple[Rest, ...]:
    rests: list[Rest] = []
    for value in values:
        if not isinstance(value, (list, tuple)) or len(value) != 3:
            raise StateError(f"the state's rest of a pass is {value!r:.80}; it is damaged")
        first, number = (
            read_int({"rest": each}, "rest", minimum=least, maximum=MAX_POSITION)
            for each, least in zip(value[:2], (0, -MAX_POSITION), strict=True)
        )
        rests.append(Rest(first, number, IndexSet.from_text(value[2], lo, hi)))
    for before, rest in pairwise(rests):
        if before.end != rest.first or before.number >= rest.number:
            raise StateError("the state's rests of passes do not follow each other; it is damaged")
    return tuple(rests)


def check_rests(
    amended: Amendment, place: EpochPosition, ranges: Mapping[str, tuple[int, int]], *, is_stream: bool
) -> None:
    """Raise unless rests end where their passes end, and what is to be left of the place's epoch is there.

    Raises:
        StateError: they do not, or it is not: the state is damaged.
    """
    for name, (lo, hi) in ranges.items():
        rests, size = amended.sources.get(name, ChangedSource()).rests, hi - lo
        if rests and rests[-1].end != (rests[-1].number + 1) * size * is_stream + size * (not is_stream):
            raise StateError("the state's rest of a pass does not end where the pass ends; it is damaged")
        if is_stream or amended.place.epoch != place.epoch:
            continue
        is_due = amended.place.position > 0 and place.position < size
        if is_due != bool(rests) or (rests and not rests[0].first == amended.place.position <= place.position):
            raise StateError(f"the state is at {place} of an epoch that goes on at {amended.place}; it is damaged")
