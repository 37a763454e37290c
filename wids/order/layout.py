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

from wids.order.arguments import shard_ends

if TYPE_CHECKING:
    from wids.order.permute import Indices


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Places are counted over the samples of all shards underneath, in their order.

    Attributes:
        ends: the places where shards end, sorted. size: how many places there are.
        places: the place of each index: (len(dataset),); None: index i is place i.
    """

    ends: Indices
    size: int
    places: Indices | None = None

    def arrange(self, lo: int, hi: int, *, is_sorted: bool) -> tuple[Indices | None, Indices | None]:
        """(boundaries, order) for the indices ``lo .. hi``.

        Boundaries are where shards end, as positions in ``lo .. hi``. The order is what to read at positions lo, lo +
        1, ...: (hi - lo,) indices, shard by shard; None: position i is index i.

        Args:
            lo: the first index.
            hi: one past the last.
            is_sorted: False leaves the indices where they are, even if that has no boundaries.
        """
        if self.places is None:
            return self.ends, None
        places, order = self.places[lo:hi], None
        if len(places) and (np.diff(places) < 0).any():
            if not is_sorted:
                return None, None
            order = np.argsort(places, kind="stable")
            places, order = places[order], lo + order
        return lo + np.searchsorted(places, self.ends, side="left"), order


def layout(dataset: Any) -> Layout | None:
    """The layout of a dataset; None for one that does not say."""
    ends = shard_ends(getattr(dataset, "lengths", None))
    # Some other dataset's `lengths` (of its sentences, say) are not samples in shards, and would not add up.
    if ends is not None and len(ends) and ends[-1] == len(dataset):
        return Layout(ends=ends, size=int(ends[-1]))
    if (joined := _parts(dataset)) is not None:
        return _join([layout(part) or Layout(ends=np.array([len(part)]), size=len(part)) for part in joined])
    if (part := _part(dataset)) is not None:
        inner = layout(part[0])
        return _pick(inner, part[1]) if inner is not None else None
    return None


def fingerprint(dataset: Any) -> str | None:
    """A short digest of which samples these are, as far as the datasets underneath tell; None where they do not."""
    mark = getattr(dataset, "fingerprint", None)
    if isinstance(mark, str):
        return mark
    if (joined := _parts(dataset)) is not None:
        marks = [fingerprint(part) for part in joined]
        return digest(*(f"{mark} {len(part)}".encode() for mark, part in zip(marks, joined, strict=True)))
    if (part := _part(dataset)) is not None:
        return digest(f"{fingerprint(part[0])}".encode(), _compact(part[1]))
    return None


def takes_marks(dataset: Any) -> bool:
    """Whether a `wids.order.mask.MarkedIndex` reaches the samples of a dataset."""
    joined = _parts(dataset)
    if joined is not None:
        return all(map(takes_marks, joined))
    return getattr(dataset, "takes_marked_indices", False) is True


def digest(*parts: bytes) -> str:
    """16 hexadecimal digits that differ where the parts do."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def _parts(dataset: Any) -> list[Any] | None:
    """What a join is made of."""
    parts = getattr(dataset, "datasets", None)
    if not isinstance(parts, (list, tuple)) or not all(hasattr(part, "__len__") for part in parts):
        return None
    return list(parts) if sum(map(len, parts)) == len(dataset) else None


def _part(dataset: Any) -> tuple[Any, Any] | None:
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
        indices = _to_array(indices)
        if indices.ndim != 1 or (count and indices.dtype.kind not in "iu"):
            return None
    return inner, indices


def _to_array(indices: Any) -> Indices:
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
    n = inner.size if inner.places is None else len(inner.places)
    if isinstance(indices, range) and indices.step == 1 and inner.places is None and 0 <= indices.start <= n:
        # An array of all of them would cost more memory than an epoch may.
        return Layout(ends=np.clip(inner.ends - indices.start, 0, len(indices)), size=len(indices))
    array = _to_array(indices)
    if not len(array):
        return None
    if array.min() < -n or array.max() >= n:
        return None  # the dataset itself will say so
    array = np.where(array < 0, array + n, array)
    return Layout(ends=inner.ends, size=inner.size, places=array if inner.places is None else inner.places[array])


def _join(parts: list[Layout]) -> Layout | None:
    """The layout of datasets one after another."""
    if not parts:
        return None
    starts = np.cumsum([0, *(part.size for part in parts)])
    ends = np.concatenate([part.ends + start for part, start in zip(parts, starts, strict=False)])
    places = None
    if any(part.places is not None for part in parts):
        places = np.concatenate(
            [
                (np.arange(part.size) if part.places is None else part.places) + start
                for part, start in zip(parts, starts, strict=False)
            ]
        )
    return Layout(ends=ends, size=int(starts[-1]), places=places)
