"""Samples of a collection, one or a batch of them, each with the names of where it is. Without torch.

A batch is read shard by shard, in the order of the file, and given in the order in which it was requested.
"""

from __future__ import annotations

import operator
import os
import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, TypeAlias

from wids.core.collection.shard_collection import CLOSED
from wids.core.index.selection import no_sample
from wids.core.readers.pool import OpenShard
from wids.core.tables.fields import Alternatives
from wids.core.transport import concurrency
from wids.errors import ClosedReaderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.readers.base import Sample

    # Gives (shard, row in it, the shard's dict) of an index.
    GetShard: TypeAlias = Callable[[int], tuple[Any, Any, dict[str, Any]]]


def read_sample(collection: ShardCollection, index: int, fields: Sequence[str] | None) -> Sample:
    """Sample ``index``, 0 <= index < len, its shard opened if need be.

    Raises:
        WidsError: it cannot be read.
    """
    lo, _, reader, name, rows = collection.find(index)
    row = index - lo if rows is None else rows[index]
    sample: Sample | None = None
    if reader is not CLOSED:  # to raise and catch its error would take as long as the read
        # Not in the except clause: an error of opening the shard would come with this one as its context.
        try:  # not `contextlib.suppress`, which this look-up would feel
            sample = reader.read(row, fields)
        except ClosedReaderError:
            sample = None
    while sample is None:
        lo, _, reader, name, rows = collection.pin_stretch(index)
        row = index - lo if rows is None else rows[index]
        try:
            sample = reader.read(row, fields)
        except ClosedReaderError:  # it closed itself, and the next one is another
            continue
        finally:
            reader.unpin()
    sample["__dataset__"] = name
    sample["__index__"] = index
    sample["__shard__"] = reader.url
    sample["__shardindex__"] = row
    return sample


def read_foreign(get_shard: GetShard, index: int, total: int, fields: Sequence[str] | None) -> Sample:
    """Sample ``index`` of a dataset of ``total``, through a subclass's own ``get_shard``.

    Raises:
        IndexError: a negative one is out of range; ``get_shard`` decides about the others.
    """
    if index < -total:
        raise no_sample(index, total)
    index += total if index < 0 else 0
    shard, row, desc = get_shard(index)
    row = operator.index(row)
    if isinstance(shard, OpenShard):
        sample, url = shard.read(row, fields), shard.url
    else:
        sample, url = dict(shard[row]), desc["url"]
        if fields is not None:
            if isinstance(fields, Alternatives):
                there = list(sample)
                fields = [there[position] for group in fields.choose(there) for position in group]
            wanted = frozenset(map(str.casefold, fields))
            sample = {name: v for name, v in sample.items() if name.casefold() in wanted or name.startswith("__")}
    sample["__dataset__"] = desc.get("dataset") or ""
    sample["__index__"] = index
    sample["__shard__"] = url
    sample["__shardindex__"] = row
    return sample


def expect(collection: ShardCollection, indices: Sequence[Any]) -> bool:
    """True if these samples can be read one by one: no shard has to be downloaded, or is opened twice.

    The kernel begins to read those of open shards from a cold disk, in the order of the files.

    Raises:
        IndexError: one is out of range.
    """
    wanted = list(map(collection.plain, indices))
    groups = _group(collection, wanted, sorted(range(len(wanted)), key=wanted.__getitem__))
    if len(groups) > collection.pool.lru.capacity:
        return False
    for _, places in groups:
        lo, hi, reader, _, rows = collection.find(wanted[places[0]])
        if (reader is CLOSED or reader.is_remote) and collection.has_remote():
            return False
        if reader is not CLOSED:  # `hi`: a shard that repeats its samples ends here once before its end
            here = [wanted[position] for position in places if wanted[position] < hi]
            reader.expect([index - lo if rows is None else rows[index] for index in here])
    return True


def read_batch(collection: ShardCollection, wanted: list[int], fields: Sequence[str] | None) -> list[Sample]:
    """The samples at ``wanted``, in that order; negative indices count from the end.

    Raises:
        IndexError: one is out of range. WidsError: one cannot be read.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    if order and (wanted[order[0]] < 0 or wanted[order[-1]] >= len(collection)):
        wanted = [collection.plain(i) for i in wanted]
        order.sort(key=wanted.__getitem__)
    samples: list[Any] = [None] * len(wanted)
    ready, far = _by_shard(collection, wanted, order)

    def read(groups: list[list[int]]) -> None:
        for places in groups:
            _read_into(samples, collection, places, wanted, fields)

    if not far:
        read(ready)
        return samples
    here, apart_groups = (ready, far) if ready else (far[:1], far[1:])
    with _Apart(read) as apart:
        for k in range(min(len(apart_groups), concurrency.LIMITS.max_requests)):
            apart.begin(apart_groups[k :: concurrency.LIMITS.max_requests])
        read(here)
    return samples


class _Apart:
    """Calls a function in threads, one for each argument: what waits for servers waits at the same time."""

    def __init__(self, function: Callable[[list[list[int]]], None]) -> None:
        self._function = function
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def begin(self, groups: list[list[int]]) -> None:
        thread = threading.Thread(target=self._call, args=(groups,), daemon=True, name="wids-read")
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._function(groups)
        else:
            self._threads.append(thread)

    def _call(self, groups: list[list[int]]) -> None:
        try:
            self._function(groups)
        except BaseException as error:  # noqa: BLE001 - raised where the batch is read
            self._errors.append(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for thread in self._threads:
                thread.join()
            if self._errors:
                errors, self._errors = self._errors, []
                try:
                    raise errors[0]
                finally:
                    del errors  # its traceback holds this frame, and the batch: no cycle is to keep them


def _group(collection: ShardCollection, wanted: list[int], order: list[int]) -> list[tuple[int, list[int]]]:
    """(shard, the places in ``order`` of its samples) of each shard; ``order`` sorts ``wanted``."""
    groups: list[tuple[int, list[int]]] = []
    at, ends = 0, collection.ends
    while at < len(order):
        k, first = bisect_right(ends, wanted[order[at]]), at
        hi = ends[k]
        if wanted[order[-1]] < hi:
            at = len(order)
        while at < len(order) and wanted[order[at]] < hi:
            at += 1
        groups.append((k, order[first:at]))
    return groups


def _by_shard(
    collection: ShardCollection, wanted: list[int], order: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """The places in ``order`` shard by shard; and those of shards that are read by byte ranges.

    Open ones first, then local and cached ones, then those to be fetched: these may need the space of one that this
    batch has been read from.
    """
    groups = _group(collection, wanted, order)
    if len(groups) == 1 or not collection.has_remote():
        return [group for _, group in groups], []
    urls, lru, provider = collection.urls, collection.pool.lru, collection.provider
    path_of = provider.cache.placement.local_path
    ready: list[tuple[int, list[int]]] = []
    far = []
    for k, group in groups:
        shard = lru.cache.get(urls[k])
        if shard is None:
            distance = 1 + (not os.path.exists(path_of(urls[k])))
            is_far = distance == 2 and provider.reads_ranges(provider.cache.locate(collection.shards[k]))
        else:
            distance, is_far = 0, shard.reader.is_remote
        if is_far:
            far.append(group)
        else:
            ready.append((distance, group))
    ready.sort(key=operator.itemgetter(0))
    return [group for _, group in ready], far


def _read_into(
    samples: list[Any],
    collection: ShardCollection,
    places: list[int],
    wanted: list[int],
    fields: Sequence[str] | None,
) -> None:
    """Set ``samples[p]`` for each of ``places`` to the sample ``wanted[p]``; all are in one shard, in order."""
    must_pin = False
    while places:
        lo, hi, reader, name, chosen = collection.find(wanted[places[0]])
        is_pinned = must_pin or reader is CLOSED
        if is_pinned:
            lo, hi, reader, name, chosen = collection.pin_stretch(wanted[places[0]])
        now, rest = places, []
        if wanted[places[-1]] >= hi:  # the shard repeats its samples: those of one pass through it
            count = bisect_left(places, hi, key=wanted.__getitem__)
            now, rest = places[:count], places[count:]
        rows = [wanted[position] - lo if chosen is None else chosen[wanted[position]] for position in now]
        try:
            read = reader.read_rows(rows, fields)
        except ClosedReaderError:  # another thread opened or released shards
            must_pin = True
            continue
        finally:
            if is_pinned:
                reader.unpin()
        url, places = reader.url, rest
        for position, row, sample in zip(now, rows, read):  # noqa: B905 - to be strict takes longer
            sample["__dataset__"] = name
            sample["__index__"] = wanted[position]
            sample["__shard__"] = url
            sample["__shardindex__"] = row
            samples[position] = sample
