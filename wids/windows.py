"""Windows of consecutive samples: clips of a video, steps of an episode, a history; as a map-style dataset.

`wids.ShardListDataset.windows` makes them. Which samples a window has is decided in `wids.core.order.windowing`, which
has a picture.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from torch.utils.data import Dataset

from wids.core.collection.arguments import warn_of_none
from wids.core.collection.shard_collection import to_int
from wids.core.files.lazy import Lazy
from wids.core.order.layout import Anchored, CompanionPlaces, SamplerInterface, SourceSpan, interface_of, read_values
from wids.core.order.mask import MarkedIndex
from wids.core.order.validation import suggest_names
from wids.core.order.windowing import WindowPlaces, find_runs, parse_rule
from wids.errors import InputError, a_kind, note, note_sample, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from wids.core.collection.stats import Stats
    from wids.core.order.permutation import Indices

# Distances from the anchor in samples; or those of each field.
Offsets: TypeAlias = "Sequence[int] | NDArray[Any] | Mapping[str, Sequence[int] | NDArray[Any]]"
# A function of the values of a field; or one for each field.
Stack: TypeAlias = "Callable[[list[Any]], Any] | Mapping[str, Callable[[list[Any]], Any]]"

# Fields with offsets, up to which samples are read in part.
_MAX_NARROWED = 60


class Windows(Dataset[dict[str, Any]]):
    """Windows of consecutive samples of a dataset, each a dict of lists; `wids.ShardListDataset.windows` makes it.

    Window i has the samples ``windows.samples(i)``: those at each offset from its *anchor*, a sample. All lie in one
    *run* of consecutive samples: an episode, or a shard. Windows are numbered in the order of their anchors.

    ``windows[i]`` is a dict: each field of the samples (after the dataset's transformations) -> the list of its values,
    None where a sample lacks it; likewise ``__key__``, ``__index__`` and the other names of samples. With offsets by
    field, the fields that have offsets are lists, and all others the anchor's values. ``__window__`` is i (int). With
    ``pad="repeat"``, ``__pad__`` is a bool array, (L,), True where a sample beyond the run is replaced; by field, a
    dict of these. Marks of samplers (``__valid__``, ``__seed__``, ...) belong to the window: one value each.

    In a batch, each sample is read, decoded and transformed once, also if it is in several windows; these then share
    its values, so do not change them in place (streams, and files of `wids.lazy`, are each window's own). With offsets
    by field, samples that are no anchors are read in part, only the fields that are needed of them, where the
    dataset's transformations are formats (``"PIL"``) alone.

    Args:
        dataset: a `wids.ShardListDataset`, or a view. Its transformations, also later ones, are those of the samples.
        length: see `wids.ShardListDataset.windows`.
        stride: see there.
        step: see there.
        by: see there.
        pad: see there.
        offsets: see there.
        stack: see there.

    Attributes:
        dataset: the argument.

    Raises:
        InputError, ColumnsError, QueryError, ValueError: see `wids.ShardListDataset.windows`. TypeError: it is no such
            dataset.

    Example:
        >>> windows = wids.ShardListDataset("train.json").windows(3)
        >>> len(windows), windows[2][".txt"], windows.samples(2).tolist()
        (6, ['text 4', 'text 5', 'text 6'], [4, 5, 6])
    """

    dataset: Any

    @suggest_names
    def __init__(
        self,
        dataset: Any,
        length: int | None = None,
        *,
        stride: int = 1,
        step: int = 1,
        by: Any = None,
        pad: Literal["repeat"] | None = None,
        offsets: Offsets | None = None,
        stack: Stack | None = None,
    ) -> None:
        super().__init__()
        self.dataset, rule = dataset, parse_rule(length, stride=stride, step=step, offsets=offsets, pad=pad)
        interface, total = _check_dataset(dataset), len(dataset)
        self._stack = _parse_stack(stack, rule.fields)
        of = f"by={by!r:.60}" if isinstance(by, str) else "by"
        breaks, values, runs = interface.breaks(), None, f"runs of equal {of}"
        if by is None:
            runs = "runs of neighbouring samples" if len(breaks) else "shards"
            breaks = np.concatenate([breaks, interface.shard_ends])
        else:
            values = read_values(dataset, by, of="by")
        self._places = WindowPlaces(rule, find_runs(total, breaks, values, of=of), total)
        self._ends = _ends_of(dataset)
        self._transformations: list[Callable[[Any], Any]] = []
        _tell_of_short(self._places, runs)
        # Places of the offsets of each field among all.
        self._columns = {name: np.searchsorted(rule.offsets, each) for name, each in (rule.fields or {}).items()}
        self._anchor_column = int(np.searchsorted(rule.offsets, 0))

    # --- which samples

    def __len__(self) -> int:
        return len(self._places)

    def samples(self, index: Any) -> Any:
        """The samples of a window: their indices in the dataset, (L,) int64; with offsets by field, a dict of these.

        Args:
            index: of a window; or n of them, for (n, L).

        Raises:
            IndexError: out of range. TypeError: no integer.
        """
        is_one = not hasattr(index, "__len__") or getattr(index, "shape", None) == ()
        numbers = self._numbers([index] if is_one else index)
        there, _ = self._places.samples(numbers, self._places.rule.offsets)
        there = there[0] if is_one else there
        if self._places.rule.fields is None:
            return there
        return {name: there[..., columns] for name, columns in self._columns.items()}

    def anchors(self) -> NDArray[np.int64]:
        """The anchor of each window: its index in the dataset, (n,) for n windows; with a length, the first sample.

        ``values[windows.anchors()]`` are values of windows, for ``weights=`` of samplers, of values of samples.
        """
        return self._places.anchors()

    # --- values

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(len(self)))  # an IndexError of a transformation is no end

    def __getitems__(self, indices: Iterable[Any]) -> list[dict[str, Any]]:
        """The windows at ``indices``, in that order; each of their samples is read once. torch's batch fetch."""
        indices = list(indices)
        numbers, rule = self._numbers(indices), self._places.rule
        there, pads = self._places.samples(numbers, rule.offsets)
        wanted, inverse = np.unique(there, return_inverse=True)
        places = inverse.reshape(there.shape)
        rows, windows = self._share(self._read(wanted, places), places), []
        for k, (asked, chosen) in enumerate(zip(indices, rows, strict=True)):
            number = int(numbers[k])
            window = self._join(chosen) if rule.fields is None else self._join_fields(chosen, number)
            if rule.pads:
                by_field = {name: pads[k, columns] for name, columns in self._columns.items()}
                window["__pad__"] = by_field or pads[k]
            window["__window__"] = number
            if isinstance(asked, MarkedIndex):
                window.update(asked.marks())
            windows.append(self._finish(window, chosen, number))
        return windows

    def add_transform(self, transform: Callable[[Any], Any]) -> Self:
        """Append a function that windows go through, after the dataset's transformations and ``stack``; returns self.

        Randomness that is to be the same for all samples of a window belongs here: `wids.seeded` finds the window's
        ``__seed__``, and samples have none of their own.

        Args:
            transform: takes a window, a dict.

        Raises:
            TypeError: it is no function.
        """
        if not callable(transform):
            raise TypeError(
                f"windows.add_transform({shown(transform)}): give a function of a window, a dict; formats such as "
                "'torch' are of the samples: dataset.add_transform"
            )
        self._transformations.append(transform)
        return self

    def stats(self) -> Stats:
        """The `wids.ShardListDataset.stats` of the dataset."""
        return self.dataset.stats()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the open shards of the dataset; they open again when needed."""
        self.dataset.close()

    def __repr__(self) -> str:
        return f"<Windows: {len(self)} {self._places.rule.words}, step {self._places.rule.step}, of {self.dataset!r}>"

    # --- for samplers

    def __wids__(self) -> SamplerInterface:
        interface, ends = _check_dataset(self.dataset), self._reading_ends
        evaluate, named = interface.evaluate, interface.named
        return SamplerInterface(
            shard_ends=ends[0],
            further_ends=ends[1:],
            takes_marks=True,
            mixed_parts=self._mixed_parts,
            prefetch_source=interface.prefetch_source,
            named=None if named is None else self._named,
            fingerprint=lambda: self._mark(interface.fingerprint()),
            contents=interface.contents,
            anchored=Anchored(self.dataset, self._places.anchors, self._places.find, self._places.rule.mark()),
            evaluate=None if evaluate is None else lambda text: np.asarray(evaluate(text))[self.anchors()],
            companions=self._companion_places,
            companion_marks=interface.companion_marks,
        )

    @Lazy
    def _reading_ends(self) -> tuple[Indices, ...]:
        """The ends of shards, counted by windows: by their first samples, then by further ones."""
        ends = self._ends
        return tuple(self._places.count_before(ends, offset) for offset in self._places.reading_offsets(ends))

    def _companion_places(self) -> list[CompanionPlaces]:
        """The places of further fields of the samples, counted by windows; see `_reading_ends`."""
        places = []
        for dataset, ends, rows in _check_dataset(self.dataset).companions():
            if ends is None:  # in another order: those of the anchors
                places.append(CompanionPlaces(dataset, None, None if rows is None else rows[self.anchors()]))
                continue
            counts = (self._places.count_before(ends, offset) for offset in self._places.reading_offsets(ends))
            places += [CompanionPlaces(dataset, each, None) for each in counts]
        return places

    def _mark(self, of: str | None) -> str | None:
        return None if of is None else self._places.digest(of)

    def _mixed_parts(self) -> list[SourceSpan] | None:
        """The sources of an index that is a mixture, counted by windows; those without a window are left out."""
        spans = _check_dataset(self.dataset).mixed_parts()
        if spans is None:
            return None
        edges = np.array([(span.first, span.last) for span in spans], np.int64)
        first = int(self._places.rule.offsets.min())
        counts = self._places.count_before(edges.reshape(-1), first).reshape(-1, 2).tolist()
        parts = []
        for span, (lo, hi) in zip(spans, counts, strict=True):
            mark = None if span.fingerprint is None else self._places.digest(span.fingerprint, span.first, span.last)
            parts.append(span._replace(first=lo, last=hi, fingerprint=mark))
        parts = [part for part in parts if part.first < part.last]
        return parts if any(part.weight for part in parts) else None

    def _named(self, name: str) -> Self:
        """These windows, of samples with another name."""
        renamed, named = copy.copy(self), _check_dataset(self.dataset).named
        renamed.dataset = self.dataset if named is None else named(name)
        renamed._transformations = list(self._transformations)  # noqa: SLF001 - of this class
        return renamed

    # --- inside

    def _numbers(self, indices: Iterable[Any]) -> Indices:
        """Indices as an array, negative ones counted from the end: (n,).

        Raises:
            IndexError: out of range. TypeError: one is no integer. InputError: the dataset has other samples by now.
        """
        total = len(self)
        if len(self.dataset) != self._places.total:
            raise InputError(
                f"the dataset has {len(self.dataset):,} samples now, and had {self._places.total:,} when its windows "
                "were made; make them again"
            )
        ends = _ends_of(self.dataset)
        if ends is not self._ends and not np.array_equal(ends, self._ends):
            raise InputError("the dataset has other shards now than when its windows were made; make them again")
        asked = [to_int(index) for index in indices]
        if asked and not -total <= min(asked) <= max(asked) < total:
            wrong = next(number for number in asked if not -total <= number < total)
            raise IndexError(f"window {wrong} of {total}" + (f"; indices are 0 to {total - 1}" if total else ""))
        numbers = np.array(asked, np.int64)
        return np.where(numbers < 0, numbers + total, numbers)

    def _read(self, wanted: Indices, places: Indices) -> list[Any]:
        """Samples, after the dataset's transformations.

        Args:
            wanted: their indices, ascending: (m,).
            places: of the samples of n windows among these: (n, L).
        """
        samples: list[Any] = [None] * len(wanted)
        for dataset, chosen in self._share_out(places, len(wanted)):
            read = dataset.__getitems__(wanted[chosen].tolist())
            for place, sample in zip(chosen.tolist(), read, strict=True):
                if not isinstance(sample, Mapping):
                    raise InputError(
                        f"a sample is {a_kind(sample)} after the dataset's transformations, and windows are made of "
                        "dicts; put what makes no dict into windows.add_transform(function)"
                    )
                samples[place] = sample
        return samples

    def _share_out(self, places: Indices, count: int) -> Iterator[tuple[Any, Indices]]:
        """The samples that are read in the same way: a dataset, and their numbers among the ``count`` that are wanted.

        With offsets by field, an anchor is needed as a whole, and of other samples the fields that say so.
        """
        narrow, names = _check_dataset(self.dataset).narrowed, list(self._columns)
        if narrow is None or not names or len(names) > _MAX_NARROWED:
            yield self.dataset, np.arange(count)
            return
        bits = np.zeros(places.shape[1], np.int64)  # of each offset, the fields that have it
        for k, columns in enumerate(self._columns.values()):
            bits[columns] |= 1 << k
        bits[self._anchor_column] = whole = (1 << len(names) + 1) - 1
        needs = np.zeros(count, np.int64)
        np.bitwise_or.at(needs, places, np.broadcast_to(bits, places.shape))
        for need in np.unique(needs).tolist():
            wanted = [name for k, name in enumerate(names) if need >> k & 1]
            part = self.dataset if need == whole else narrow(wanted)
            if part is None:  # whichever the fields
                yield self.dataset, np.arange(count)
                return
            yield part, np.flatnonzero(needs == need)

    @staticmethod
    def _share(samples: list[Any], places: Indices) -> list[list[Any]]:
        """The samples of each of n windows: (n, L) numbers of samples. One that comes again has streams of its own."""
        used: set[int] = set()

        def take(place: int) -> Any:
            if place in used:
                return _with_own_streams(samples[place])
            used.add(place)
            return samples[place]

        return [[take(place) for place in row] for row in places.tolist()]

    @staticmethod
    def _join(samples: list[Any]) -> dict[str, Any]:
        """A window of samples: the values of each of their fields."""
        names: Iterable[str] = samples[0]
        if any(sample.keys() != samples[0].keys() for sample in samples):
            names = dict.fromkeys(name for sample in samples for name in sample)
        return {name: [sample.get(name) for sample in samples] for name in names}

    def _join_fields(self, samples: list[Any], number: int) -> dict[str, Any]:
        """A window with offsets by field."""
        window = dict(samples[self._anchor_column])
        for name, columns in self._columns.items():
            chosen = [samples[column] for column in columns]
            if not any(name in sample for sample in chosen):
                raise InputError(
                    f"offsets: no sample of window {number} has the field {shown(name)}; its anchor has "
                    f"{shown(sorted(filter(_is_field, window), key=str))}"
                )
            window[name] = [sample.get(name) for sample in chosen]
        return window

    def _finish(self, window: dict[str, Any], samples: list[Any], number: int) -> dict[str, Any]:
        """A window with its values stacked, after the transformations of windows."""
        try:
            if self._stack is not None:
                self._stack_fields(window, number)
            result: Any = window
            for transform in self._transformations:
                result = transform(result)
        except StopIteration as error:
            raise note_sample(RuntimeError("a transformation of windows raised StopIteration"), samples[0]) from error
        except Exception as error:
            note_sample(error, samples[0])
            raise
        if result is None:
            warn_of_none(transform)
        return result  # type: ignore[no-any-return]

    def _stack_fields(self, window: dict[str, Any], number: int) -> None:
        fields = self._places.rule.fields
        names: Iterable[str] = filter(_is_field, window) if fields is None else fields
        functions = self._stack if isinstance(self._stack, Mapping) else dict.fromkeys(names, self._stack)
        for name, function in functions.items():
            if name not in window:
                raise InputError(
                    f"stack: window {number} has no field {shown(name)}; it has "
                    f"{shown(sorted(filter(_is_field, window), key=str))}"
                )
            try:
                window[name] = function(window[name])
            except Exception as error:
                note(error, f"stack, of the field {shown(name)}")
                raise


def _is_field(name: Any) -> bool:
    """True for a field of a sample, which a function may name by what it likes; False for ``__key__`` and the like."""
    return not str(name).startswith("__")


def _with_own_streams(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same sample, whose files and streams are read from where they are, beside the others.

    Raises:
        InputError: one reads another stream or an open file, which its copy would read, too.
    """
    streams = {name: value for name, value in sample.items() if isinstance(value, io.IOBase)}
    for name, stream in streams.items():
        is_whole = isinstance(stream, (io.BytesIO, io.StringIO)) or type(stream).__reduce__ is not object.__reduce__
        if not is_whole:
            error = InputError(
                f"the field {shown(name)} is {a_kind(stream)}, from which several windows would read in turn; "
                "make it in windows.add_transform(function), for each window"
            )
            raise note_sample(error, sample)
        streams[name] = copy.copy(stream)
    return {**sample, **streams} if streams else sample


def _check_dataset(dataset: Any) -> SamplerInterface:
    """The interface of a dataset that windows are made of.

    Raises:
        TypeError: it is another one.
    """
    interface = interface_of(dataset)
    if interface is None or interface.shard_ends is None or isinstance(dataset, Windows):
        advice = "give a ShardListDataset, or a view of one: dataset.select(indices).windows(...)"
        if interface is not None and not isinstance(dataset, Windows):
            advice = "make windows of each source, and mix these: wids.mix({'web': web.windows(8), ...})"
        raise TypeError(f"windows are made of {a_kind(dataset)}; {advice}")
    return interface


def _ends_of(dataset: Any) -> Indices:
    """The ends of the shards of a dataset that windows are made of."""
    ends = _check_dataset(dataset).shard_ends
    assert ends is not None  # noqa: S101 - which was checked
    return ends


def _parse_stack(stack: Any, fields: Mapping[str, Any] | None) -> Any:
    """The argument ``stack``.

    Raises:
        InputError: it is none, or names a field that is no list.
    """
    functions = stack if isinstance(stack, Mapping) else {"": stack} if stack is not None else {}
    for name, function in functions.items():
        if not callable(function):
            raise InputError(f"stack is {shown(stack)}; give a function of a list, as torch.stack, or one by field")
        if fields is not None and isinstance(stack, Mapping) and name not in fields:
            raise InputError(f"stack names {shown(name)}, which has no offsets, so it is no list to be stacked")
    return dict(stack) if isinstance(stack, Mapping) else stack


def _tell_of_short(places: WindowPlaces, what: str) -> None:
    """Warn of runs that are shorter than a window.

    Raises:
        InputError: all are.
    """
    rule, (runs, samples) = places.rule, places.too_short
    if not runs:
        return
    if not len(places):
        raise InputError(
            f"{rule.words} span {rule.span} samples, and the longest of the {what} has {places.longest}: give "
            "pad='repeat', which repeats samples beyond the ends, or shorter windows"
        )
    logger.warning(
        "%s span %d samples: %d of the %s are shorter, and their %d of %d samples are in no window; pad='repeat' "
        "keeps them",
        *(rule.words, rule.span, runs, what, samples, places.total),
    )
