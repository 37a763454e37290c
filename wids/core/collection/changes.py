"""Data that have changed since a state was saved: which samples of now that state has read. No shard is opened."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.collection.shard_collection import fingerprint_with_view, load_shards
from wids.core.collection.shard_collection import mixed_parts as mixed_shards
from wids.core.index.changes import Carrying, ListedPart, check_counts
from wids.core.index.fingerprint import contents as contents_of_shards
from wids.core.index.shardlist import ShardList
from wids.core.order.amendment import Earlier
from wids.core.order.budgets import name_limit
from wids.core.order.index_set import IndexSet
from wids.core.order.layout import (
    Anchored,
    SamplerInterface,
    contents,
    fingerprint,
    interface_of,
    mixed_parts,
    parts_of,
    read_values,
)
from wids.errors import InputError, a_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wids.core.order.permutation import Indices


_EMPTY = IndexSet(np.zeros(0, np.int64), np.zeros(0, np.int64))


def find_earlier(
    now: Any, old: Any, *, values: Mapping[str, Any] | None = None, limits: Mapping[str, Any] | None = None
) -> Earlier:
    """The earlier data of a dataset, for the samplers that go on over it.

    Args:
        now: a dataset of shards, a view, or a mixture or join of these.
        old: the dataset that the state was saved over, of `open_earlier`; likewise.
        values: ``lengths`` and ``buckets`` of its samples, for batches: an array, the name of a column, or a function
            that reads them; None: not known.
        limits: likewise, the values of each limit, by its name.

    Raises:
        InputError: one of them is none of these; the number of samples in a shard is unknown.
    """
    said = {**(values or {}), **{name_limit(name): each for name, each in (limits or {}).items()}}
    readers = {
        name: each if callable(each) else partial(read_values, old, each, of=f"old_{name}")
        for name, each in said.items()
        if each is not None
    }
    is_same = (
        len(now) == len(old)
        and fingerprint(now) is not None
        and _identity(now) == _identity(old)
        and all(contents(old).get(kind, value) == value for kind, value in contents(now).items())
    )
    carrying = Carrying(list_parts(old, "old"), list_parts(now, "the dataset"))
    then_spans, now_spans = _list_spans(old), _list_spans(now)
    if all(span.anchored is None for span in (*then_spans, *now_spans)):
        return Earlier(old, carrying.carry, is_same, readers)
    return Earlier(old, partial(_carry_windows, carrying, then_spans, now_spans), is_same, readers)


class _Span(NamedTuple):
    """Indices of a dataset that are windows, or samples: its own part, or one of a join.

    Attributes:
        first: the first index.
        last: one past the last.
        sample: the first sample, counted over the samples of all parts.
        end: one past the last.
        anchored: their windows; None: the indices are the samples.
    """

    first: int
    last: int
    sample: int
    end: int
    anchored: Anchored | None


def _list_spans(dataset: Any, first: int = 0, sample: int = 0) -> list[_Span]:
    """The spans of a dataset whose indices begin with ``first``, and its samples with ``sample``."""
    interface = interface_of(dataset)
    anchored = None if interface is None else interface.anchored
    joined = parts_of(dataset) if interface is None or interface.listed is None else None
    if anchored is not None or joined is None:
        count = len(dataset if anchored is None else anchored.dataset)
        return [_Span(first, first + len(dataset), sample, sample + count, anchored)]
    spans: list[_Span] = []
    for part in joined:
        spans += _list_spans(part, spans[-1].last if spans else first, spans[-1].end if spans else sample)
    return spans


def _carry_windows(
    carrying: Carrying,
    then: Sequence[_Span],
    now: Sequence[_Span],
    there: tuple[int, int],
    here: tuple[int, int],
    seen: IndexSet,
) -> IndexSet:
    """`Carrying.carry` of windows: a window is the one of before whose anchor is the same sample.

    Raises:
        InputError: they have another shape now.
    """
    those, these = (
        [span for span in each if span.first < b and a < span.last]
        for each, (a, b) in zip((then, now), (there, here), strict=True)
    )
    marks = [{None if span.anchored is None else span.anchored.mark for span in each} for each in (those, these)]
    if those and these and marks[0] != marks[1]:
        raise InputError(
            "old= and the dataset are not windows of one shape, so nothing says which are the same; make the earlier "
            "ones as those of now: old=wids.ShardListDataset(OLD).windows(...), with the same length, offsets and step"
        )
    samples = []
    for span in those:
        part = seen.within(span.first, span.last).moved(-span.first)
        part = part if span.anchored is None else _map_set(span.anchored.anchors, part)
        samples.append(part.moved(span.sample))
    before, after = ((each[0].sample, each[-1].end) if each else (0, 0) for each in (those, these))
    carried, windows = carrying.carry(before, after, _EMPTY.union(*samples)), []
    for span in these:
        part = carried.within(span.sample, span.end).moved(-span.sample)
        part = part if span.anchored is None else _map_set(span.anchored.windows, part)
        windows.append(part.moved(span.first))
    return _EMPTY.union(*windows).within(*here)


def _map_set(function: Callable[[Indices], Indices], indices: IndexSet) -> IndexSet:
    """The values of a function, which ascend, at all indices of a set."""
    return _EMPTY.union(*(IndexSet.of_sorted(function(each)) for each in indices.pieces()))


class EarlierShards:
    """The dataset of an index that was before, for samplers; its samples cannot be read."""

    def __init__(self, shards: ShardList) -> None:
        self._shards = shards

    def __len__(self) -> int:
        ends = self._shards.ends()
        return int(ends[-1]) if len(ends) else 0

    def __wids__(self) -> SamplerInterface:
        shards = self._shards
        return SamplerInterface(
            shard_ends=np.asarray(shards.ends(), np.int64),
            mixed_parts=lambda: mixed_shards(shards),
            listed=lambda: (shards, None, True),
            fingerprint=lambda: fingerprint_with_view(shards),
            contents=lambda: contents_of_shards(shards),
        )


def open_earlier(old: Any) -> Any:
    """The dataset that ``old=`` names: itself, or that of an index.

    Raises:
        SpecError: it is no index. FetchError: it cannot be read. InputError: the number of samples in a shard is
            unknown.
    """
    if interface_of(old) is not None or parts_of(old) is not None:
        return old
    shards = old if isinstance(old, ShardList) else load_shards(old)[1]
    check_counts(shards)
    return EarlierShards(shards)


def _identity(dataset: Any) -> tuple[str | None, list[tuple[str, int, int]]]:
    spans = [(span.name, span.first, span.last) for span in mixed_parts(dataset) or ()]
    return fingerprint(dataset), spans


def list_parts(dataset: Any, name: str, first: int = 0) -> list[ListedPart]:
    """The lists of shards that a dataset is made of, by their first index.

    Args:
        dataset: see `find_earlier`.
        name: names it in a message.
        first: the index of its first sample among the samples of the whole.

    Raises:
        InputError: its samples are of no list of shards.
    """
    interface = interface_of(dataset)
    if interface is not None and interface.anchored is not None:
        return list_parts(interface.anchored.dataset, name, first)
    if interface is not None and interface.listed is not None:
        return [ListedPart(interface.listed()[0], first)]
    joined = parts_of(dataset)
    if joined is None:
        raise InputError(
            f"{name} is {a_kind(dataset)}, of which no shards are known, so nothing says which samples are the same; "
            "it must be a wids.ShardListDataset, a view of one, or a mixture or join of these"
        )
    parts: list[ListedPart] = []
    for part in joined:
        parts += list_parts(part, name, first)
        first = max([first, *(span.end for span in _list_spans(part, sample=first))])
    return parts
