"""Where the samples of a dataset lie: the shard boundaries of shard lists, of parts of them and of their joins.

Rules: datasets are asked, never imported: a shard list has ``lengths`` that add up, `torch.utils.data.Subset` has
``dataset`` and ``indices``, `torch.utils.data.ConcatDataset` has ``datasets``. Of any other there is no layout. What is
in another order than its shards (`random_split`) is brought into theirs, so that it is read shard by shard.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.order.validation import shard_ends

if TYPE_CHECKING:
    from wids.order.permutation import Indices


@dataclass(frozen=True, slots=True)
class Piece:
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
        """What to read at the positions: (n,) -> (n,)."""
        found = positions.copy()
        for first, order in self._parts:
            inside = (positions >= first) & (positions < first + len(order))
            found[inside] = order[positions[inside] - first]
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the indices of a dataset lie. Places are counted over the samples of all shards underneath, in order.

    Attributes:
        ends: the places where shards end, sorted. size: how many places there are.
        pieces: cover all indices, in order. An index that is a place costs no memory.
    """

    ends: Indices
    size: int
    pieces: tuple[Piece, ...]

    def places_of(self, indices: Indices) -> Indices:
        """The place of each index: (n,) -> (n,)."""
        found = np.empty(len(indices), np.int64)
        for piece in self.pieces:
            inside = (indices >= piece.first) & (indices < piece.first + piece.count)
            at = indices[inside] - piece.first
            found[inside] = at + piece.place if piece.places is None else piece.places[at]
        return found

    def arrange(self, lo: int, hi: int, *, is_sorted: bool) -> tuple[Indices | None, Regrouping | None]:
        """(boundaries, regrouping) for the indices ``lo .. hi``.

        Boundaries are the positions in ``lo .. hi`` where one shard ends and another begins. The regrouping says what
        to read at each position; None: position i is index i.

        Args:
            lo: the first index.
            hi: one past the last.
            is_sorted: False leaves the indices where they are, even if that has no boundaries.
        """
        boundaries, parts = [], []
        for piece in self.pieces:
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
    """The layout of a dataset; None for one that does not say."""
    try:
        return _layout(dataset)
    except Exception:  # noqa: BLE001 - a stranger's attributes may do anything, and are of no use then
        return None


def _layout(dataset: Any) -> Layout | None:
    ends = shard_ends(getattr(dataset, "lengths", None))
    # Some other dataset's `lengths` (of its sentences, say) are not samples in shards, and would not add up.
    if ends is not None and len(ends) and ends[-1] == len(dataset):
        return _consecutive(ends)
    if (joined := parts_of(dataset)) is not None:
        return _join([_layout(part) or _consecutive(np.array([len(part)])) for part in joined])
    if (part := part_of(dataset)) is not None:
        inner = _layout(part[0])
        return _pick(inner, part[1]) if inner is not None else None
    return None


def _consecutive(ends: Indices) -> Layout:
    """Of a dataset whose indices are places."""
    size = int(ends[-1])
    return Layout(ends, size, (Piece(0, size),))


def fingerprint(dataset: Any) -> str | None:
    """A short digest of which samples these are, as far as the datasets underneath tell; None where they do not."""
    try:
        return _fingerprint(dataset)
    except Exception:  # noqa: BLE001 - as in `layout`
        return None


def _fingerprint(dataset: Any) -> str | None:
    mark = getattr(dataset, "fingerprint", None)
    if isinstance(mark, str):
        return mark
    if (joined := parts_of(dataset)) is not None:
        marks = [_fingerprint(part) for part in joined]
        return digest(*(f"{mark} {len(part)}".encode() for mark, part in zip(marks, joined, strict=True)))
    if (part := part_of(dataset)) is not None:
        return digest(f"{_fingerprint(part[0])}".encode(), _compact(part[1]))
    return None


def takes_marks(dataset: Any) -> bool:
    """Whether a `wids.order.mask.MarkedIndex` reaches the samples of a dataset."""
    try:
        joined = parts_of(dataset)
        if joined is not None:
            return all(map(takes_marks, joined))
        return getattr(dataset, "takes_marked_indices", False) is True
    except Exception:  # noqa: BLE001 - as in `layout`
        return False


def digest(*parts: bytes) -> str:
    """16 hexadecimal digits that differ where the parts do."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def parts_of(dataset: Any) -> list[Any] | None:
    """What a join is made of."""
    parts = getattr(dataset, "datasets", None)
    if not isinstance(parts, (list, tuple)) or not all(hasattr(part, "__len__") for part in parts):
        return None
    return list(parts) if sum(map(len, parts)) == len(dataset) else None


def part_of(dataset: Any) -> tuple[Any, Any] | None:
    """What a subset is of, and which of it; ``indices`` that are a range stay one."""
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
    """The layout of ``indices`` out of what ``inner`` is the layout of."""
    n = sum(piece.count for piece in inner.pieces)
    is_plain = len(inner.pieces) == 1 and inner.pieces[0].places is None
    if isinstance(indices, range) and is_plain and indices.step > 0 and 0 <= indices.start <= n:
        # An array of all of them would cost more memory than an epoch may.
        before = -((indices.start - inner.ends) // indices.step)  # how many of them lie before each end
        return Layout(np.clip(before, 0, len(indices)), len(indices), (Piece(0, len(indices)),))
    array = to_array(indices)
    if not len(array):
        return None
    if array.min() < -n or array.max() >= n:
        return None  # the dataset itself will say so
    places = inner.places_of(np.where(array < 0, array + n, array))
    return Layout(inner.ends, inner.size, (Piece(0, len(places), 0, places),))


def _join(parts: list[Layout]) -> Layout | None:
    """The layout of datasets one after another."""
    ends, pieces, size, n = [], [], 0, 0
    for part in parts:
        ends.append(part.ends + size)
        for piece in part.pieces:
            places = None if piece.places is None else piece.places + size
            pieces.append(Piece(n + piece.first, piece.count, piece.place + size, places))
        size += part.size
        n += sum(piece.count for piece in part.pieces)
    return Layout(np.concatenate(ends), size, tuple(pieces)) if parts else None
