"""Samples of a collection, one or a batch of them, each with the names of where it is. Without torch.

A batch is read shard by shard, in the order of the file, and given in the order in which it was requested.
"""

from __future__ import annotations

import operator
import os
import threading
from bisect import bisect_left, bisect_right
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wids.core.collection.shard_collection import CLOSED
from wids.core.index.selection import no_sample
from wids.core.order.validation import parse_int
from wids.core.readers.base import RowPart
from wids.core.readers.pool import OpenShard
from wids.core.tables.fields import Alternatives
from wids.core.transport import concurrency
from wids.errors import ClosedReaderError, InputError, SelectionError, a_kind, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.readers.base import Reader, Sample
    from wids.core.tables.fields import Wanted

    # Gives (shard, row in it, the shard's dict) of an index.
    GetShard: TypeAlias = Callable[[int], tuple[Any, Any, dict[str, Any]]]


def read_sample(collection: ShardCollection, index: int, fields: Wanted) -> Sample:
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


def read_foreign(get_shard: GetShard, index: int, total: int, fields: Sequence[str] | None, wanted: Wanted) -> Sample:
    """Sample ``index`` of a dataset of ``total``, through a subclass's own ``get_shard``.

    Args:
        get_shard: the method.
        index: of the sample.
        total: number of samples.
        fields: all that a sample has; None: whatever it has. One that is no shard of wids has them as they are.
        wanted: those of them that are read, of a shard of wids.

    Raises:
        IndexError: a negative one is out of range; ``get_shard`` decides about the others.
    """
    if index < -total:
        raise no_sample(index, total)
    index += total if index < 0 else 0
    shard, row, desc = get_shard(index)
    row = operator.index(row)
    if isinstance(shard, OpenShard):
        sample, url = shard.read(row, wanted), shard.url
    else:
        sample, url = dict(shard[row]), desc["url"]
        if fields is not None:
            if isinstance(fields, Alternatives):
                there = list(sample)
                fields = [there[position] for position in fields.positions(there)]
            kept = frozenset(map(str.casefold, fields))
            sample = {name: v for name, v in sample.items() if name.casefold() in kept or name.startswith("__")}
    sample["__dataset__"] = desc.get("dataset") or ""
    sample["__index__"] = index
    sample["__shard__"] = url
    sample["__shardindex__"] = row
    return sample


def expect(collection: ShardCollection, indices: Sequence[Any], fields: Wanted) -> bool:
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
            reader.expect([index - lo if rows is None else rows[index] for index in here], fields)
    return True


def read_batch(collection: ShardCollection, wanted: list[int], fields: Wanted) -> list[Sample]:
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

    _read_groups(ready, far, read)
    return samples


_END = 1 << 62


class MemberPart(NamedTuple):
    """Bytes of one member of a sample.

    Attributes:
        sample: its index, 0 <= sample < len.
        field: the member's extension, or alternatives, of which the first that the sample has counts.
        lo: the first byte, counted from the member's.
        hi: one past the last; more than the member has are those that it has.
    """

    sample: int
    field: Alternatives
    lo: int
    hi: int


def parse_part(part: Any) -> tuple[Any, Any, Any, Any]:
    """(index, field, lo, hi), each as a program gives it.

    Raises:
        InputError: it is no such tuple.
    """
    if not isinstance(part, (tuple, list)) or len(part) != 4:
        raise InputError(f"parts has {shown(part)}; each of them is (index, field, lo, hi), hi None to the end")
    return tuple(part)


def parse_span(lo: Any, hi: Any) -> tuple[int, int]:
    """The bytes that a program asks for; ``hi`` None: to the member's end.

    Raises:
        InputError: they are no integers, ``lo`` is negative, or ``hi`` is before it.
    """
    try:
        first, end = parse_int("lo", lo, minimum=0), _END if hi is None else parse_int("hi", hi)
    except ValueError as error:
        raise InputError(str(error)) from None
    if end < first:
        raise InputError(f"lo is {first} and hi is {end}; hi is one past the last byte, and not before lo")
    return first, min(end, _END)


def read_foreign_part(get_shard: GetShard, part: MemberPart) -> bytes:
    """The bytes of a part of a member, through a subclass's own ``get_shard``; of a shard of its own, from the sample.

    Raises:
        SelectionError: the sample has no such member. WidsError: it cannot be read.
    """
    shard, row, desc = get_shard(part.sample)
    row = operator.index(row)
    if isinstance(shard, OpenShard):
        while True:
            with shard.pinned() as reader, suppress(ClosedReaderError):  # which then closed itself
                return reader.read_parts([_find_part(reader, row, part)])[0]
    sample = dict(shard[row])
    names = [name for name in sample if name.startswith(".")]
    key = str(sample.get("__key__", ""))
    name = names[part.field.one_position(names, index=part.sample, key=key, shard=str(desc.get("url")))]
    value = sample[name]
    data = value.getvalue() if isinstance(value, BytesIO) else value
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise SelectionError(
            f"sample {shown(key)} (index {part.sample}) has {a_kind(data)} as its {name}, and no bytes, of which parts "
            "can be read: its get_shard is of a subclass",
            shard=desc.get("url"),
            key=key,
            field=name,
        )
    return bytes(data)[part.lo : part.hi]


def read_parts(collection: ShardCollection, parts: Sequence[MemberPart]) -> list[bytes]:
    """The bytes of parts of members, in their order; nothing else of the members is read.

    Raises:
        SelectionError: a sample has no such member. WidsError: one cannot be read.
    """
    wanted = [part.sample for part in parts]
    data: list[Any] = [None] * len(parts)

    def read_stretch(reader: Reader, _: str, now: list[int], rows: list[int]) -> None:
        asked = [_find_part(reader, row, parts[position]) for position, row in zip(now, rows, strict=True)]
        for position, piece in zip(now, reader.read_parts(asked), strict=True):
            data[position] = piece

    def read(groups: list[list[int]]) -> None:
        for places in groups:
            _read_stretches(collection, places, wanted, read_stretch)

    _read_groups(*_by_shard(collection, wanted, sorted(range(len(wanted)), key=wanted.__getitem__)), read)
    return data


def _find_part(reader: Reader, row: int, part: MemberPart) -> RowPart:
    """A part as a reader takes it: its row, and the extension of its member, as the table has it."""
    extensions = [extension for extension, _, _ in reader.table.members(row)]
    key = reader.table.key(row)
    name = extensions[part.field.one_position(extensions, index=part.sample, key=key, shard=reader.url)]
    return RowPart(row, name, part.lo, part.hi)


def _read_groups(ready: list[list[int]], far: list[list[int]], read: Callable[[list[list[int]]], None]) -> None:
    """Read groups of places, those that wait for servers (``far``) at the same time; see `_by_shard`."""
    if not far:
        read(ready)
        return
    here, apart_groups = (ready, far) if ready else (far[:1], far[1:])
    with _Apart(read) as apart:
        for k in range(min(len(apart_groups), concurrency.LIMITS.max_requests)):
            apart.begin(apart_groups[k :: concurrency.LIMITS.max_requests])
        read(here)


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
    fields: Wanted,
) -> None:
    """Set ``samples[p]`` for each of ``places`` to the sample ``wanted[p]``; all are in one shard, in order."""

    def read(reader: Reader, name: str, now: list[int], rows: list[int]) -> None:
        url = reader.url
        for position, row, sample in zip(now, rows, reader.read_rows(rows, fields)):  # noqa: B905 - strict takes longer
            sample["__dataset__"] = name
            sample["__index__"] = wanted[position]
            sample["__shard__"] = url
            sample["__shardindex__"] = row
            samples[position] = sample

    _read_stretches(collection, places, wanted, read)


def _read_stretches(
    collection: ShardCollection,
    places: list[int],
    wanted: list[int],
    read: Callable[[Reader, str, list[int], list[int]], None],
) -> None:
    """Call ``read(reader, name of the sub-dataset, places, their rows)`` for ``places``, in parts that are in one pass.

    Args:
        collection: of the samples.
        places: those of samples in one shard, in order.
        wanted: the index of the sample at each place.
        read: called again, with another reader, if one was closed.
    """
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
            read(reader, name, now, rows)
        except ClosedReaderError:  # another thread opened or released shards
            must_pin = True
            continue
        finally:
            if is_pinned:
                reader.unpin()
        places = rest
