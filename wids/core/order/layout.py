"""The shard of each index of a dataset, also through subsets and concatenations of datasets.

Samplers use it for the boundaries between shards (`layout`), prefetching for the shards that a sequence of indices
visits (`Shards`). torch is not imported: an object with ``dataset`` and ``indices`` is taken as a
`torch.utils.data.Subset`, one with ``datasets`` that are as long as it together as a
`torch.utils.data.ConcatDataset`, and each by itself as a `torch.utils.data.StackDataset`, of which an index is one of
each; any other dataset without a shard list has no layout. A subset in another order than its shards (`random_split`)
is sorted, so that it is read shard by shard.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from wids.core.order.state import digest
from wids.core.order.validation import shard_ends
from wids.errors import ColumnsError, InputError, QueryError, a_kind, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

T = TypeVar("T")


def _nothing() -> None:
    """None: a dataset does not have it."""


class Anchored(NamedTuple):
    """Windows of a dataset, of which each stands for its anchor, a sample.

    Attributes:
        dataset: has the samples.
        anchors: finds the anchors of n windows: (n,) -> (n,).
        windows: finds the windows of those of n samples that are anchors: (n,) -> (m,).
        mark: differs where the shapes of windows do.
    """

    dataset: Any
    anchors: Callable[[Indices], Indices]
    windows: Callable[[Indices], Indices]
    mark: bytes


def _no_samples() -> Indices:
    """No samples."""
    return np.zeros(0, np.int64)


class CompanionPlaces(NamedTuple):
    """The samples of another dataset that are read with those of a dataset: further fields of them.

    Attributes:
        dataset: the other one, which has a `SamplerInterface`.
        ends: ends of its shards, counted over the indices of the dataset; None: its samples come in another order.
        rows: then its sample for each of n indices: (n,).
    """

    dataset: Any
    ends: Indices | None
    rows: Indices | None


class SamplerInterface(msgspec.Struct, frozen=True, kw_only=True):
    """The interface of a dataset for samplers, mixtures and prefetching, which programs do not need.

    The dataset's class hands it out by a method ``__wids__()``; a class without one is a stranger's.

    Attributes:
        shard_ends: end of each shard's samples, int64, one for each; None: its samples lie in no shards.
        further_ends: ends of the same shards for further samples that an index reads, such as the last of a window:
            the indices whose such sample lies before each. Downloads ahead look there, too.
        breaks: finds the samples that do not follow the one before them: after a gap of a view, or of another
            sub-dataset; int64, ascending.
        takes_marks: a `wids.core.order.mask.MarkedIndex` reaches its samples.
        mixed_parts: finds its sources; None: it is no mixture.
        prefetch_source: finds the source of downloads or reads ahead (`wids.core.prefetch.ahead.CollectionSource`);
            None: it has none.
        named: makes the same dataset, whose samples have another name in ``__dataset__``; None: samples have none.
        narrowed: makes the same dataset, whose samples have these fields and no other members; its result is None where
            its transformations may need others. None: it has no such fields.
        listed: finds its shards, the place of the index that lists them (or None), and whether its samples have their
            fields and no others; None: it has no shards.
        fingerprint: computes the result of the function of this name; None: see there.
        contents: likewise.
        anchored: the dataset whose samples its indices stand for; None: it has samples of its own.
        evaluate: computes a column, or an SQL expression over columns: (nsamples,); None: it has no columns.
        companions: finds the places of further fields of its samples, for downloads ahead.
        companion_marks: computes the digests of these datasets, by their names and by kinds.
    """

    shard_ends: Indices | None = None
    further_ends: tuple[Indices, ...] = ()
    breaks: Callable[[], Indices] = _no_samples
    takes_marks: bool = False
    mixed_parts: Callable[[], list[SourceSpan] | None] = _nothing
    prefetch_source: Callable[[], object] = _nothing
    named: Callable[[str], Any] | None = None
    narrowed: Callable[[Collection[str]], Any] | None = None
    listed: Callable[[], tuple[Any, str | None, bool]] | None = None
    fingerprint: Callable[[], str | None] = _nothing
    contents: Callable[[], dict[str, str] | None] = _nothing
    anchored: Anchored | None = None
    evaluate: Callable[[str], NDArray[Any]] | None = None
    companions: Callable[[], Sequence[CompanionPlaces]] = tuple
    companion_marks: Callable[[], dict[str, dict[str, str]]] = dict


class SourceSpan(NamedTuple):
    """A source as a dataset says it (`SamplerInterface`): indices ``first .. last`` of the dataset.

    Attributes:
        name: of the source.
        weight: its own, at first.
        fingerprint: of its samples; None: not known.
        contents: see `contents`.
    """

    name: str
    first: int
    last: int
    weight: float
    fingerprint: str | None = None
    contents: dict[str, str] | None = None


def interface_of(dataset: Any) -> SamplerInterface | None:
    """The `SamplerInterface` of a dataset; None: a stranger's, such as a wrapper with another one's attributes."""
    make: Callable[[Any], SamplerInterface] | None = getattr(type(dataset), "__wids__", None)
    return None if make is None else make(dataset)


def mixed_parts(dataset: Any) -> list[SourceSpan] | None:
    """The sources of a mixture; None: a dataset is none."""
    interface = interface_of(dataset)
    return None if interface is None else interface.mixed_parts()


class Piece(msgspec.Struct, frozen=True):
    """Consecutive indices of a dataset: ``first .. first + count``.

    They lie at the consecutive places from ``place`` on, or at ``places``: (count,).
    """

    first: int
    count: int
    place: int = 0
    places: Indices | None = None


class Regrouping:
    """Indices in an order that goes shard by shard, where theirs does not; the others stay where they are."""

    def __init__(self, parts: list[tuple[int, Indices]]) -> None:
        self._parts = parts  # from which position on, and what to read there: (count,)

    def take(self, positions: Indices) -> Indices:
        """The samples to read at n positions: (n,) -> (n,)."""
        samples = positions.copy()
        for first, order in self._parts:
            inside = (positions >= first) & (positions < first + len(order))
            samples[inside] = order[positions[inside] - first]
        return samples


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of the indices of a dataset, counted over the samples of all shards underneath, in order.

    Attributes:
        ends: the places where shards end, sorted.
        size: number of places.
        pieces: cover all indices, in order. An index that is a place costs no memory.
        lists: the shard lists, each with the number of its first end; None: samples of which no shards are known.
    """

    ends: Indices
    size: int
    pieces: tuple[Piece, ...]
    lists: tuple[tuple[int, Any], ...]
    _arranged: dict[tuple[int, int, bool], tuple[Indices | None, Regrouping | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def places_of(self, indices: Indices) -> Indices:
        """The place of each of n indices: (n,) -> (n,)."""
        places = np.empty(len(indices), np.int64)
        for piece in self.pieces:
            inside = (indices >= piece.first) & (indices < piece.first + piece.count)
            at = indices[inside] - piece.first
            places[inside] = at + piece.place if piece.places is None else piece.places[at]
        return places

    def shards_of(self, lo: int, hi: int) -> Indices:
        """The numbers of the shards that hold some of the indices ``lo .. hi``, ascending, each once."""
        numbers = [np.zeros(0, np.int64)]
        for piece in self.pieces:
            first, last = max(lo - piece.first, 0), min(hi - piece.first, piece.count)
            if first >= last:
                continue
            if piece.places is None:
                ends = piece.place + first, piece.place + last - 1
                begin, end = np.searchsorted(self.ends, ends, side="right").tolist()
                numbers.append(np.arange(begin, end + 1))
            else:
                numbers.append(np.searchsorted(self.ends, piece.places[first:last], side="right"))
        return np.flatnonzero(np.bincount(np.concatenate(numbers), minlength=1))

    def arrange(self, lo: int, hi: int, *, is_sorted: bool) -> tuple[Indices | None, Regrouping | None]:
        """(boundaries, regrouping) for the indices ``lo .. hi``.

        Boundaries are the positions in ``lo .. hi`` where one shard ends and another begins. The regrouping says what
        to read at each position; None: position i is index i.

        Args:
            lo: the first index.
            hi: one past the last.
            is_sorted: False leaves the indices where they are, even if that has no boundaries.
        """
        asked = lo, hi, is_sorted
        if asked not in self._arranged:  # once: to sort the indices of a large subset takes seconds
            self._arranged[asked] = self._arrange(lo, hi, is_sorted=is_sorted)
        return self._arranged[asked]

    def _arrange(self, lo: int, hi: int, *, is_sorted: bool) -> tuple[Indices | None, Regrouping | None]:
        boundaries, parts = [], []
        begin = max(bisect_right(self.pieces, lo, key=lambda piece: piece.first) - 1, 0)
        end = bisect_left(self.pieces, hi, key=lambda piece: piece.first)
        for piece in self.pieces[begin:end]:  # of a mixture's thousands only a source's own
            first, last = max(lo, piece.first), min(hi, piece.first + piece.count)
            if first >= last:
                continue
            if piece.places is None:
                place = piece.place + first - piece.first
                ends = self._ends_within(place, place + last - first) - place
            else:
                places = piece.places[first - piece.first : last - piece.first]
                if (np.diff(places) < 0).any():
                    if not is_sorted:
                        return None, None
                    order = np.argsort(places, kind="stable")
                    places = places[order]
                    parts.append((first, first + order))
                ends = np.searchsorted(places, self._ends_within(int(places[0]), int(places[-1]) + 1), side="left")
            boundaries += [np.array([first]), first + ends]
        return np.concatenate([*boundaries, np.array([hi])]), Regrouping(parts) if parts else None

    def _ends_within(self, first: int, last: int) -> Indices:
        """The ends between two places, neither included."""
        begin, end = np.searchsorted(self.ends, first, side="right"), np.searchsorted(self.ends, last, side="left")
        return self.ends[begin:end]


def layout(dataset: Any) -> Layout | None:
    """The layout of a dataset, as a sampler sees it; None for one that does not say.

    A dataset with ``lengths`` that add up to its length is taken as a shard list.
    """
    try:
        return _align(_layouts(dataset, _layouts_by_lengths))
    except Exception:  # noqa: BLE001 - a stranger's attributes may do anything, and are of no use then
        return None


def _layouts_by_lengths(dataset: Any) -> list[Layout]:
    for ends in (shard_ends(getattr(dataset, "lengths", None)), *_ends_by_class(dataset)[:1]):
        # Some other dataset's `lengths`, or a subclass's (of its sentences, say), are not samples in shards, and would
        # not add up.
        if ends is not None and len(ends) and ends[-1] == len(dataset):
            return [_consecutive(ends, dataset)]
    return []


def _ends_by_class(dataset: Any) -> tuple[Indices, ...]:
    """None for what chooses samples by itself: a wrapper that hands attributes on, a class with its own length."""
    interface = interface_of(dataset)
    if interface is None or interface.shard_ends is None:
        return ()
    ends = interface.shard_ends
    return (ends, *interface.further_ends) if len(dataset) == (int(ends[-1]) if len(ends) else 0) else ()


def _layouts_by_class(dataset: Any) -> list[Layout]:
    """The layouts of all shards that samples of a dataset lie in, with those of its companions."""
    layouts = [_consecutive(ends, dataset) for ends in _ends_by_class(dataset)]
    interface = interface_of(dataset) if layouts else None
    for dataset_of, ends, rows in () if interface is None else interface.companions():
        if ends is not None:
            layouts.append(_consecutive(ends, dataset_of))
            continue
        inner = interface_of(dataset_of)
        if inner is not None and inner.shard_ends is not None:
            picked = _pick(_consecutive(inner.shard_ends, dataset_of), rows)
            layouts += [] if picked is None else [picked]
    return layouts


def _layouts(dataset: Any, layouts_of: Callable[[Any], list[Layout]]) -> list[Layout]:
    """The layouts of a dataset: one of each dataset in a stack, or of each of the samples that an index reads."""
    if (joined := parts_of(dataset)) is not None:  # before its lengths, which may be those of its parts
        layouts = [_layouts(part, layouts_of) or [_consecutive(np.array([len(part)]), None)] for part in joined]
        unknown = [_consecutive(np.array([len(part)]), None) for part in joined]
        rows = zip_longest(*layouts)
        joins = (_join([each or unknown[k] for k, each in enumerate(row)]) for row in rows)
        return [whole for whole in joins if whole is not None]
    if (stacked := stack_of(dataset)) is not None:
        return [each for part in stacked for each in _layouts(part, layouts_of)]
    if known := layouts_of(dataset):
        return known
    if (part := part_of(dataset)) is not None:
        picked = (_pick(inner, part[1]) for inner in _layouts(part[0], layouts_of))
        return [each for each in picked if each is not None]
    return []


def _align(layouts: list[Layout]) -> Layout | None:
    """The layout by whose boundaries a sampler goes: of a stack, all boundaries of all, else those of the first."""
    if len(layouts) < 2 or any(len(each.pieces) != 1 or each.pieces[0].places is not None for each in layouts):
        return layouts[0] if layouts else None
    ends = np.unique(np.concatenate([each.ends for each in layouts]))
    return Layout(ends, layouts[0].size, layouts[0].pieces, ((0, None),))


def _consecutive(ends: Indices, dataset: Any) -> Layout:
    """The layout of a dataset whose indices are places."""
    size = int(ends[-1]) if len(ends) else 0
    return Layout(ends, size, (Piece(0, size),), ((0, dataset),))


class Visit(NamedTuple):
    """A stretch of a sequence of indices in which a shard is read.

    Attributes:
        first: first position in the sequence.
        last: last position, included.
        dataset: number of the shard's list in `Shards.datasets`.
        shard: its number there.
        part: (beginning, end, count) of its samples in the shard, in shares of the shard's samples.
    """

    first: int
    last: int
    dataset: int
    shard: int
    part: tuple[float, float, float] = (0.0, 1.0, 1.0)


class _Strand(NamedTuple):
    """A layout of a dataset; of its shard lists, their first shards, and their numbers in `Shards.datasets`."""

    layout: Layout
    first_shards: list[int]
    numbers: list[int | None]


class Shards(Generic[T]):
    """The shard lists underneath a dataset, and which of their shards each of its indices is in.

    Args:
        dataset: a shard list (`SamplerInterface.shard_ends`), a part of one, or a join.
        find: a function of a shard list, called with each; None: they are not looked at.

    Attributes:
        datasets: those shard lists, each once.
        results: the result for each.
        stacked: the most shards that a sample is made of.
    """

    def __init__(self, dataset: Any, find: Callable[[Any], T | None]) -> None:
        self.datasets: list[Any] = []
        self.results: list[T] = []
        self._length = len(dataset)
        self._strands = [
            _Strand(
                each,
                [first for first, _ in each.lists],
                [part if part is None else self._number(part, find) for _, part in each.lists],
            )
            for each in _layouts(dataset, _layouts_by_class)
        ]

    def _number(self, dataset: Any, find: Callable[[Any], T | None]) -> int | None:
        for number, known in enumerate(self.datasets):
            if known is dataset:
                return number
        result = find(dataset)
        if result is None:
            return None
        self.datasets.append(dataset)
        self.results.append(result)
        return len(self.datasets) - 1

    def count_shards(self, first: int, last: int) -> dict[int, int]:
        """Number of shards of each of `datasets`, by its number, that hold some of the indices ``first .. last``."""
        counted: dict[int, int] = {}
        for layout, first_shards, numbers in self._strands:
            shards = layout.shards_of(first, last)
            counts = np.diff(np.searchsorted(shards, [*first_shards, len(layout.ends)])).tolist()
            for number, count in zip(numbers, counts, strict=True):
                if number is not None and count:
                    counted[number] = counted.get(number, 0) + count
        return counted

    @property
    def stacked(self) -> int:
        """The most shards that a sample is made of."""
        return max(len(self._strands), 1)

    def visits(self, blocks: Iterable[Indices]) -> Iterator[list[Visit]]:
        """The visits of each block of indices, in order of their first positions; only as many as are requested."""
        at = 0
        for block in blocks:
            yield self.visits_of(np.asarray(block, np.int64), first=at)
            at += len(block)

    def visits_of(self, indices: Indices, *, first: int) -> list[Visit]:
        """The visits of one block of indices, whose first position is given, in order of theirs."""
        return sorted(visit for strand in self._strands for visit in self._visits(strand, indices, first))

    def _visits(self, strand: _Strand, indices: Indices, at: int) -> Iterator[Visit]:
        if not len(indices):
            return
        layout, first_shards, numbers = strand
        places = layout.places_of(np.where(indices < 0, indices + self._length, indices))
        shards = np.searchsorted(layout.ends, places, side="right")
        # Positions ascend, so a stable sort by shard leaves each shard's first and last at its edges.
        order = np.argsort(shards, kind="stable")
        begins = np.append(0, np.flatnonzero(np.diff(shards[order])) + 1)
        ends = np.append(begins[1:], len(order))
        firsts, lasts = order[begins], order[ends - 1]
        visited = shards[firsts]
        parts = _parts_of(layout.ends, visited, places[order], begins, ends)
        for shard, first, last, part in zip(visited.tolist(), firsts.tolist(), lasts.tolist(), parts, strict=True):
            k = bisect_right(first_shards, shard) - 1
            number = numbers[k]
            if number is not None:
                yield Visit(at + first, at + last, number, shard - first_shards[k], part)


def _parts_of(
    shard_ends: Indices, shards: Indices, places: Indices, begins: Indices, ends: Indices
) -> list[tuple[float, float, float]]:
    """`Visit.part` of visits to ``shards``, of which ``places[begins:ends]`` are the samples."""
    starts = np.where(shards > 0, shard_ends[shards - 1], 0)
    lengths = shard_ends[shards] - starts
    lows, highs = np.minimum.reduceat(places, begins), np.maximum.reduceat(places, begins) + 1
    columns = ((lows - starts) / lengths, (highs - starts) / lengths, (ends - begins) / lengths)
    return list(zip(*(column.tolist() for column in columns), strict=True))


class ShardCounts:
    """A dataset of which only the sample counts of its shards are known; a sampler takes it."""

    def __init__(self, lengths: Sequence[int] | Indices) -> None:
        self.lengths = lengths
        self._ends = np.cumsum(np.asarray(lengths, np.int64))

    def __wids__(self) -> SamplerInterface:
        return SamplerInterface(shard_ends=self._ends)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0


def fingerprint(dataset: Any) -> str | None:
    """A short digest of which samples these are, as far as the datasets underneath tell; None where they do not."""
    try:
        return _fingerprint(dataset)
    except Exception:  # noqa: BLE001 - as in `layout`
        return None


def _fingerprint(dataset: Any) -> str | None:
    if isinstance(mark := _own_fingerprint(dataset), str):
        return mark
    if (joined := parts_of(dataset)) is not None:
        marks = [_fingerprint(part) for part in joined]
        return digest(*(f"{mark} {len(part)}".encode() for mark, part in zip(marks, joined, strict=True)))
    if (stacked := stack_of(dataset)) is not None:
        return digest(b"stack", *(f"{_fingerprint(part)}".encode() for part in stacked))
    if (part := part_of(dataset)) is not None:
        return digest(f"{_fingerprint(part[0])}".encode(), _compact(part[1]))
    return None


def _own_fingerprint(dataset: Any) -> Any:
    """The fingerprint of a dataset by itself; of one of ours, not the attribute, which a program may have assigned."""
    interface = interface_of(dataset)
    return getattr(dataset, "fingerprint", None) if interface is None else interface.fingerprint()


def contents(dataset: Any) -> dict[str, str]:
    """Digests of the shards' contents, by kinds of checksums, as far as all datasets underneath tell."""
    try:
        return _contents(dataset)
    except Exception:  # noqa: BLE001 - as in `layout`
        return {}


def _contents(dataset: Any) -> dict[str, str]:
    interface = interface_of(dataset)
    stated = getattr(dataset, "contents", None) if interface is None else interface.contents()
    if isinstance(stated, dict) and isinstance(_own_fingerprint(dataset), str):
        return stated
    if (joined := parts_of(dataset) or stack_of(dataset)) is not None:
        contents_of_parts = [_contents(part) for part in joined]
        kinds = set.intersection(*map(set, contents_of_parts)) if contents_of_parts else set()
        return {kind: digest(*(each[kind].encode() for each in contents_of_parts)) for kind in sorted(kinds)}
    if (part := part_of(dataset)) is not None:
        return _contents(part[0])
    return {}


def companion_marks(dataset: Any) -> dict[str, dict[str, str]]:
    """The digests of the companions of all datasets underneath, by their names and by kinds."""
    interface = interface_of(dataset)
    if interface is not None and (marks := interface.companion_marks()):
        return marks
    parts = parts_of(dataset) or stack_of(dataset) or ([part[0]] if (part := part_of(dataset)) is not None else [])
    return {name: mark for each in parts for name, mark in companion_marks(each).items()}


def takes_marks(dataset: Any) -> bool:
    """True if a `wids.core.order.mask.MarkedIndex` reaches the samples of a dataset."""
    try:
        joined = parts_of(dataset) or stack_of(dataset)
        if joined is not None:
            return all(map(takes_marks, joined))
        stated = getattr(dataset, "takes_marked_indices", None)
        return dataset.__wids__().takes_marks if stated is None else stated is True
    except Exception:  # noqa: BLE001 - as in `layout`
        return False


def read_column(dataset: Any, column: str, *, of: str) -> NDArray[Any]:
    """A column, or an SQL expression over columns, for each sample, also through joins and subsets: (n,).

    Args:
        dataset: one that has a ``read_column``, or is made of such. Of a stranger's, only names are read.
        column: the name, or the expression, which each part of a join evaluates over its own samples.
        of: the parameter that it was given for.

    Raises:
        InputError: a dataset has no columns, or not this one. QueryError: the expression cannot be evaluated.
    """
    interface = interface_of(dataset)
    if interface is not None and interface.evaluate is not None:
        try:
            return np.asarray(interface.evaluate(column))
        except (InputError, QueryError, ColumnsError) as error:
            raise type(error)(f"{of}: {error}", **{**vars(error), "parameter": of}) from error
    read = getattr(type(dataset), "read_column", None)
    if read is not None:
        return np.asarray(read(dataset, column))
    if (joined := parts_of(dataset)) is not None:
        return np.concatenate([read_column(part, column, of=of) for part in joined])
    if (part := part_of(dataset)) is not None:
        return read_column(part[0], column, of=of)[to_array(part[1])]
    raise InputError(f"{of} is {column!r}, and {a_kind(dataset)} has no columns; give an array")


def read_values(dataset: Any, values: Any, *, of: str) -> NDArray[Any]:
    """Values of samples, such as lengths or buckets: one for each, as given: (n,).

    Args:
        dataset: has the samples.
        values: numbers or words; or what `read_column` reads of the dataset.
        of: the parameter that they were given for.

    Raises:
        InputError: no array is made of them, or one is masked. InputError, QueryError: see `read_column`.
    """
    if isinstance(values, str):
        return read_column(dataset, values, of=of)
    if np.ma.is_masked(values):
        at = int(np.flatnonzero(np.ma.getmaskarray(values).reshape(-1))[0])
        raise InputError(f"{of}: the value of sample {at} is masked; leave such samples out of the view")
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and not isinstance(values, np.ndarray):  # where 1 and NaN would become words
            array = np.array(values, dtype=object)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{of} are {shown(values)}, of which there is no array ({error}); give an array") from error
    return array


def parts_of(dataset: Any) -> list[Any] | None:
    """The parts of a join."""
    parts = getattr(dataset, "datasets", None)
    if not isinstance(parts, (list, tuple)) or not all(hasattr(part, "__len__") for part in parts):
        return None
    return list(parts) if sum(map(len, parts)) == len(dataset) else None


def stack_of(dataset: Any) -> list[Any] | None:
    """The parts of a stack: datasets of its length, of each of which an index reads a sample."""
    parts = getattr(dataset, "datasets", None)
    parts = list(parts.values()) if isinstance(parts, dict) else parts
    if not isinstance(parts, (list, tuple)) or not parts or not all(hasattr(part, "__len__") for part in parts):
        return None
    return list(parts) if all(len(part) == len(dataset) for part in parts) else None


def part_of(dataset: Any) -> tuple[Any, Any] | None:
    """The dataset of a subset, and its indices; ``indices`` that are a range stay one."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if not hasattr(inner, "__len__") or indices is None:
        return None
    try:
        count = len(indices)
    except TypeError:
        return None
    if count != len(dataset):
        return None
    if not isinstance(indices, range):
        indices = to_array(indices)
        if indices.ndim != 1 or (count and indices.dtype.kind not in "iu"):
            return None
    return inner, indices


def to_array(indices: Any) -> Indices:
    """Indices as an array; of another shape or type if they are none."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    try:
        array = np.asarray(indices if hasattr(indices, "__array__") else list(indices))
    except (TypeError, ValueError):
        return np.zeros((0, 0), np.int64)
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array


def _compact(indices: Any) -> bytes:
    """Indices as bytes; those in equal steps as start, step and length, whether they are a range or an array."""
    n = len(indices)
    steps = np.diff(indices[:3] if isinstance(indices, range) else indices)
    if len(steps) and (steps != steps[0]).any():
        return np.asarray(indices, "<i8").tobytes()
    return f"{int(indices[0]) if n else 0} {int(steps[0]) if len(steps) else 1} {n}".encode()


def _pick(inner: Layout, indices: Any) -> Layout | None:
    """The layout of ``indices`` of the dataset whose layout is ``inner``."""
    n, count = sum(piece.count for piece in inner.pieces), len(indices)
    is_plain = len(inner.pieces) == 1 and inner.pieces[0].places is None
    is_ascending = isinstance(indices, range) and indices.step > 0 and count > 0
    if is_plain and is_ascending and indices[0] >= 0 and indices[-1] < n:
        # An array of all of them would cost more memory than an epoch may.
        before = -((indices.start - inner.ends) // indices.step)  # how many of them lie before each end
        return Layout(np.clip(before, 0, count), count, (Piece(0, count),), inner.lists)
    places = to_array(indices) if count else np.zeros(0, np.int64)
    if count:
        if places.min() < -n or places.max() >= n:
            return None  # the dataset itself will say so
        places = inner.places_of(np.where(places < 0, places + n, places))
    return Layout(inner.ends, inner.size, (Piece(0, count, 0, places),), inner.lists)


def _join(parts: list[Layout]) -> Layout | None:
    """The layout of datasets one after another."""
    ends, pieces, lists, size, n, nends = [], [], [], 0, 0, 0
    for part in parts:
        ends.append(part.ends + size)
        lists += [(nends + first, dataset) for first, dataset in part.lists]
        for piece in part.pieces:
            places = None if piece.places is None else piece.places + size
            pieces.append(Piece(n + piece.first, piece.count, piece.place + size, places))
        size += part.size
        n += sum(piece.count for piece in part.pieces)
        nends += len(part.ends)
    return Layout(np.concatenate(ends), size, tuple(pieces), tuple(lists)) if parts else None
