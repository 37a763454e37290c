"""Windows of consecutive samples: which samples each has, for any number of them. Without torch.

    samples    0 1 2 3 4 5 6 | 7 8 9 | 10 11 12 13 14        | a run ends: another episode, a gap, another sub-dataset
    length=4, step=2    0-3, 2-5,   10-13                     the windows that lie within a run
    pad="repeat"        0-3, 2-5, 4-6 6, 6 6 6 6, 7-9 9, ...   one for each step; the nearest sample is repeated

A window has an *anchor*, the sample that its offsets count from; the anchors of a run are ``step`` samples apart. Runs
are kept as numbers, and windows not at all, so a data set of 10**8 samples costs what its runs cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.order.state import digest
from wids.core.order.validation import parse_int
from wids.errors import InputError, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wids.core.order.permutation import Indices

# Samples whose values are compared at a time.
_BLOCK = 1 << 22
# The largest distance of two samples of a window, so that no sum of indices overflows.
_MAX_OFFSET = 1 << 40
# The most samples of a window, so that no number by mistake takes the memory.
_MAX_SAMPLES = 1 << 24
# Parts of the reach of a window: downloads ahead look in each.
_LOOKS = 32


class WindowRule(NamedTuple):
    """The shape of windows.

    Attributes:
        offsets: of the samples, counted from the anchor: (L,) int64.
        fields: the same for each field that has offsets of its own; None: all fields have ``offsets``, which are
            otherwise those of all fields and of the anchor, ascending, each once.
        step: samples from one anchor to the next.
        pads: windows may begin and end beyond their run.
        words: the arguments, for messages.
    """

    offsets: Indices
    fields: dict[str, Indices] | None
    step: int
    pads: bool
    words: str

    @property
    def reach(self) -> tuple[int, int]:
        """Samples from the anchor to the first and the last sample of a window, of which the anchor is one."""
        return min(int(self.offsets.min()), 0), max(int(self.offsets.max()), 0)

    @property
    def span(self) -> int:
        """Number of samples from the first to the last."""
        first, last = self.reach
        return last - first + 1

    def mark(self) -> bytes:
        """A text that differs where windows of the same runs do."""
        fields = None if self.fields is None else sorted((name, each.tolist()) for name, each in self.fields.items())
        return f"{self.offsets.tolist()} {fields} {self.step} {self.pads}".encode()


def parse_rule(length: Any, *, stride: Any, step: Any, offsets: Any, pad: Any) -> WindowRule:
    """The shape that the arguments of `wids.Windows` mean.

    Raises:
        InputError: both a length and offsets, or neither; offsets that are no integers. ValueError: a bad number.
    """
    if pad not in (None, "repeat"):
        raise InputError(f"pad is {shown(pad)}; it must be 'repeat', or None for windows that lie within a run")
    if (length is None) == (offsets is None):
        raise InputError(
            "windows have a length (windows(8, stride=2)) or offsets (windows(offsets=[-2, -1, 0])): give one of the "
            f"two, not {'both' if offsets is not None else 'neither'}"
        )
    step, stride = parse_int("step", step, minimum=1), parse_int("stride", stride, minimum=1)
    if step > _MAX_OFFSET:
        raise InputError(f"step is {step}, more than any data set has samples")
    if offsets is None:
        length = parse_int("length", length, minimum=1)
        if length > _MAX_SAMPLES:
            raise InputError(f"windows of {length:,} samples: a window may have {_MAX_SAMPLES:,}")
        if length * stride > _MAX_OFFSET:
            raise InputError(f"windows of {length} with stride {stride} span more samples than any data set has")
        words = f"windows of {length}" + (f" with stride {stride}" if stride > 1 else "")
        return WindowRule(np.arange(length, dtype=np.int64) * stride, None, step, pad is not None, words)
    if stride != 1:
        raise InputError(f"stride={stride} is of windows with a length; offsets say the distances themselves")
    each, fields = _parse_offsets("offsets", offsets) if not isinstance(offsets, Mapping) else _parse_fields(offsets)
    return WindowRule(each, fields, step, pad is not None, f"windows of offsets {shown(offsets)}")


def _parse_fields(offsets: Mapping[Any, Any]) -> tuple[Indices, dict[str, Indices]]:
    """The offsets of all fields and of the anchor together, and of each.

    Raises:
        InputError: there are none, or they are not of fields.
    """
    if not offsets:
        raise InputError("offsets is an empty dict; give fields with their offsets, {'.jpg': [-1, 0]}")
    fields = {}
    for name, each in offsets.items():
        if not isinstance(name, str):
            raise InputError(f"offsets: a field is {shown(name)}; give its name as the samples have it, as '.jpg'")
        if name.startswith("__"):
            raise InputError(f"offsets: {name} is no field; __index__, __key__ and the like are those of the anchor")
        fields[name] = _parse_offsets(f"offsets of {name!r}", each)[0]
    return np.unique(np.concatenate([np.zeros(1, np.int64), *fields.values()])), fields


def _parse_offsets(name: str, offsets: Any) -> tuple[Indices, None]:
    """Offsets as an array, (L,) int64; and None, for no field has others.

    Raises:
        InputError: they are none, or no integers.
    """
    kind = f"{name}: {shown(offsets)}"
    if isinstance(offsets, (str, bytes)):
        raise InputError(f"{kind} is a text; give integers, [-2, -1, 0]")
    if isinstance(offsets, range) and len(offsets) > _MAX_SAMPLES:
        raise InputError(f"{kind} has {len(offsets):,} samples: a window may have {_MAX_SAMPLES:,}")
    try:
        array = np.asarray(offsets if hasattr(offsets, "__array__") else list(offsets))
    except (TypeError, ValueError) as error:
        raise InputError(f"{kind} is no list of integers, [-2, -1, 0]") from error
    if array.ndim != 1 or not array.size:
        raise InputError(f"{kind} is no list of one integer or more, as [-2, -1, 0]")
    if array.dtype.kind not in "iu":
        advice = ""
        if array.dtype.kind == "f":
            advice = "; offsets count samples: multiply seconds by the frames in a second, and round"
        wrong = [each for each in array.tolist() if type(each) is not int]
        if not wrong:  # integers that no array has
            raise InputError(f"{kind} reaches over more samples than any data set has")
        raise InputError(f"{kind} has {shown(wrong[0])}, which is no integer{advice}")
    if int(array.max()) > _MAX_OFFSET or int(array.min()) < -_MAX_OFFSET:
        raise InputError(f"{kind} reaches over more samples than any data set has")
    return array.astype(np.int64), None


def find_runs(total: int, breaks: Indices, values: NDArray[Any] | None, *, of: str) -> Indices:
    """The first sample of each run of consecutive samples: (R,) int64, ascending, from 0 on.

    Args:
        total: number of samples.
        breaks: samples that begin a run in any case.
        values: of all samples: (total,); a run ends where they change. None: they do not.
        of: words for them, for messages.

    Raises:
        InputError: they are not as many as the samples, or some have no value, or values cannot be compared.
    """
    firsts = [np.zeros(min(total, 1), np.int64), np.asarray(breaks, np.int64)]
    if values is not None:
        if values.ndim != 1:
            raise InputError(f"{of} has values of shape {values.shape}; it must be one number or text for each sample")
        if len(values) != total:
            raise InputError(f"{of}: {len(values):,} values for {total:,} samples")
        for at in range(0, total, _BLOCK):
            part = values[max(at - 1, 0) : at + _BLOCK]
            _check_values(part, at, of)
            try:
                differs = np.asarray(part[1:] != part[:-1], np.bool_)
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(f"{of}: values cannot be compared ({error}); give numbers or texts") from error
            firsts.append(np.flatnonzero(differs) + max(at - 1, 0) + 1)
    runs: Indices = np.sort(np.concatenate(firsts), kind="stable")  # np.unique takes a hundred times as long
    return runs[(np.diff(runs, prepend=-1) > 0) & (runs < total)]


def _check_values(values: NDArray[Any], first: int, of: str) -> None:
    """Check that samples have values: none is NaN, NaT or None.

    Raises:
        InputError: one is.
    """
    if values.dtype.kind not in "fcmMO":
        return
    try:
        missing = np.asarray(values != values, np.bool_)  # noqa: PLR0124 - NaN and NaT, of whichever type
        if values.dtype.kind == "O":
            missing |= np.asarray(values == None, np.bool_)  # noqa: E711 - of each
    except (TypeError, ValueError, RuntimeError):
        return  # where they are compared with each other, that is an error
    if missing.any():
        sample = max(first - 1, 0) + int(np.flatnonzero(missing)[0])
        raise InputError(
            f"{of}: sample {sample} has no value, so it belongs to no run; leave such samples out first, as by "
            "dataset.where('COLUMN is not null')"
        )


class WindowPlaces:
    """The samples of windows, which are numbered run by run.

    Args:
        rule: the shape.
        starts: the first sample of each run: (R,), ascending, from 0 on.
        total: number of samples.

    Attributes:
        rule: the argument.
        longest: samples of the longest run; 0: no run exists.
        too_short: (number of runs, number of their samples) that are too short for a window.
        total: the argument.
    """

    rule: WindowRule
    longest: int
    too_short: tuple[int, int]
    total: int

    def __init__(self, rule: WindowRule, starts: Indices, total: int) -> None:
        self.rule, self.total = rule, total
        lengths = np.diff(starts, append=total).astype(np.int64)
        self.longest = int(lengths.max(initial=0))
        counts = -(-lengths // rule.step) if rule.pads else (lengths - rule.span) // rule.step + 1
        fits = counts > 0
        self.too_short = int(len(fits) - np.count_nonzero(fits)), int(lengths[~fits].sum())
        self._starts, self._lengths = starts[fits], lengths[fits]
        self._ends = np.cumsum(counts[fits], dtype=np.int64)  # windows of the runs up to each
        self._first = 0 if rule.pads else -rule.reach[0]  # of a run, the sample that is its first anchor

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def anchors(self, windows: Indices | None = None) -> Indices:
        """The anchors of n windows: (n,) -> (n,); None: of all."""
        if windows is None:
            counts = np.diff(self._ends, prepend=0)
            before = np.repeat(self._ends - counts, counts)
            inside = np.arange(len(self), dtype=np.int64) - before
            return np.repeat(self._starts, counts) + self._first + inside * self.rule.step
        return self._place(windows)[1]

    def find(self, anchors: Indices) -> Indices:
        """The windows of those of n samples that are anchors: (n,) -> (m,)."""
        if not len(self):
            return np.zeros(0, np.int64)
        runs = np.maximum(np.searchsorted(self._starts, anchors, side="right") - 1, 0)  # some lie before all runs
        inside = anchors - self._starts[runs] - self._first
        numbers = np.where(runs > 0, self._ends[runs - 1], 0) + inside // self.rule.step
        is_anchor = (inside >= 0) & (inside % self.rule.step == 0) & (numbers < self._ends[runs])
        windows: Indices = numbers[is_anchor]
        return windows

    def samples(self, windows: Indices, offsets: Indices) -> tuple[Indices, NDArray[np.bool_]]:
        """The samples of n windows at L offsets: (n,), (L,) -> (n, L); and which of them repeat another one: (n, L)."""
        runs, anchors = self._place(windows)
        wanted = anchors[:, None] + offsets
        starts = self._starts[runs][:, None]
        there = np.clip(wanted, starts, starts + self._lengths[runs][:, None] - 1)
        return there, there != wanted

    def _place(self, windows: Indices) -> tuple[Indices, Indices]:
        runs = np.searchsorted(self._ends, windows, side="right")
        before = np.where(runs > 0, self._ends[runs - 1], 0)
        return runs, self._starts[runs] + self._first + (windows - before) * self.rule.step

    def count_before(self, places: Indices, offset: int) -> Indices:
        """The number of windows whose sample at an offset lies before each of n samples: (n,) -> (n,)."""
        if not len(self):
            return np.zeros(len(places), np.int64)
        runs = np.searchsorted(self._starts, places, side="right") - 1
        inside = np.maximum(runs, 0)
        starts, before = self._starts[inside], self._ends[inside] - np.diff(self._ends, prepend=0)[inside]
        # The sample of window k of a run is at `first + k * step + offset`, or at the nearest end of the run.
        count = -(-(places - starts - self._first - offset) // self.rule.step)
        count = np.where(places >= starts + self._lengths[inside], self._ends[inside] - before, count)
        count = np.where(places <= starts, 0, np.clip(count, 0, self._ends[inside] - before))
        return np.where(runs < 0, 0, before + count)

    def reading_offsets(self, ends: Indices) -> list[int]:
        """The offsets whose samples lie in all shards that a window has samples of, but for very small ones.

        Each costs a number for each shard, so a shard between two samples of a window is looked for only if it has a
        share of the window's reach: the parts of one are ``_LOOKS``. A smaller one is downloaded when it is read.

        Args:
            ends: the end of each shard's samples.
        """
        offsets, lengths = np.unique(self.rule.offsets), np.diff(ends, prepend=0)
        there, lengths = ends[lengths > 0], lengths[lengths > 0]
        at = np.searchsorted(self._starts, there) - 1
        is_inside = at >= 0  # a run, which goes on in the next shard
        is_inside[is_inside] = there[is_inside] < (self._starts + self._lengths)[at[is_inside]]
        if not is_inside.any():
            return [int(offsets[0])]
        between = lengths[1:][is_inside[1:] & is_inside[:-1]]
        most = max(int(between.min(initial=self.total)), -(-self.rule.span // _LOOKS))
        chosen = [0]
        while chosen[-1] < len(offsets) - 1:
            last = int(np.searchsorted(offsets, offsets[chosen[-1]] + most, side="right")) - 1
            chosen.append(max(last, chosen[-1] + 1))
        return [int(offsets[k]) for k in chosen]

    def digest(self, of: str, first: int = 0, last: int | None = None) -> str:
        """A short digest of the windows whose runs begin at samples ``first .. last``.

        Args:
            of: digest of the samples.
            first: the first sample.
            last: one past the last; None: of all.
        """
        a, b = np.searchsorted(self._starts, [first, self.total if last is None else last]).tolist()
        runs = (self._starts[a:b] - first).astype("<i8"), self._lengths[a:b].astype("<i8")
        return digest(b"windows", of.encode(), self.rule.mark(), *(each.tobytes() for each in runs))
