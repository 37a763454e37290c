"""Indices that know whether they are the epoch's own or repeated to make the ranks equal (``tail="mask"``).

Such an index is an int in all respects, so any dataset takes it; it stays what it is through pickle, and through
the subtraction by which `torch.utils.data.ConcatDataset` hands it on.
"""

from __future__ import annotations

from typing import Any


class MarkedIndex(int):
    """An int with a mark: `is_valid`."""

    __slots__ = ()
    is_valid = True

    def __sub__(self, other: Any) -> Any:
        found = int(self) - other
        return type(self)(found) if isinstance(other, int) else found


class OwnIndex(MarkedIndex):
    """A sample that counts."""

    __slots__ = ()


class RepeatedIndex(MarkedIndex):
    """A sample that another rank, or this one, has had already in this epoch."""

    __slots__ = ()
    is_valid = False
