"""Validation of callers' arguments: any integer type in, ``int`` out.

A bad argument is a ValueError that names the argument and its value.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.order.permutation import Indices

P = ParamSpec("P")
R = TypeVar("R")


def parse_int(name: str, value: Any, *, minimum: int | None = None) -> int:
    """Return ``value`` as an int.

    Raises:
        ValueError: it is not an integer (floats are not, integers of numpy and torch are), or below ``minimum``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; it must be an integer") from None
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} is {number}; it must be at least {minimum}")
    return number


def check_flag(name: str, value: Any) -> Any:
    """Return ``value``, which is true or false, as programs mean it.

    Raises:
        ValueError: it is a text, all of which but the empty one are true.
    """
    if isinstance(value, (str, bytes)):
        raise ValueError(f"{name} is {value!r:.200}; it must be True or False")  # noqa: TRY004 - as of all arguments
    return value


def parse_range(num_samples: Any, *, n: int) -> tuple[int, int]:
    """The half-open part of a dataset of ``n`` that ``num_samples`` means: None all, ``k`` 0 .. k, or ``(lo, hi)``.

    Raises:
        ValueError: neither of these, or not inside ``0 .. n``.
    """
    import numpy as np  # which a decoder of texts does not need

    if num_samples is None:
        return 0, n
    try:
        lo, hi = map(operator.index, (0, num_samples) if np.ndim(num_samples) == 0 else num_samples)
    except (TypeError, ValueError):
        raise ValueError(f"num_samples is {num_samples!r}; it must be a number of samples or a pair lo, hi") from None
    if not 0 <= lo <= hi <= n:
        raise ValueError(f"num_samples is {num_samples!r}: the range {lo} .. {hi} is not inside a dataset of {n}")
    return lo, hi


def parse_ranges(ranges: Any) -> Indices:
    """Pairs lo, hi as chunks: (nchunks, 2), half-open, in the order given.

    Raises:
        ValueError: not pairs of integers, or not ``0 <= lo <= hi``.
    """
    import numpy as np  # which a decoder of texts does not need

    try:
        pairs = [(operator.index(lo), operator.index(hi)) for lo, hi in ranges]
    except (TypeError, ValueError):
        raise ValueError(f"ranges is {ranges!r:.200}; it must be a list of integer pairs lo, hi") from None
    for lo, hi in pairs:
        if not 0 <= lo <= hi:
            raise ValueError(f"ranges holds ({lo}, {hi}); in a range 0 <= lo <= hi")
    return np.array(pairs, np.int64).reshape(-1, 2)


def shard_ends(lengths: Any) -> Indices | None:
    """End of each shard's samples, one int64 for each shard; None if the argument is not a list of sample counts."""
    import numpy as np  # which a decoder of texts does not need

    try:
        counts = np.asarray(lengths if hasattr(lengths, "__array__") else list(lengths))
    except (TypeError, ValueError):
        return None
    if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0)):
        return None
    return np.cumsum(counts, dtype=np.int64)


def suggest_names(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose error about an unknown argument names the one with a similar spelling, or else all of them."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - set(names):
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
            more = f"; did you mean {near[0]}?" if near else f"; it takes {', '.join(names)}"
            raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{more}")
        return function(*args, **kwargs)

    return checked
