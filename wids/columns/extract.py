"""The columns of one shard, from its member table and the requested members.

The result is a function of the shard and the rules; any process on any machine can compute it. A local shard is read in
place. The members of a remote shard are read by byte ranges, unless a download is cheaper (small members, headers of
the shard that are as costly): then the shard is copied to a temporary directory, which is deleted afterwards.

Where headers are asked for alone, the beginnings of all members of a batch are read together, of short members all;
a decoder that needs more, such as the end of an MP4, has it read then.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.columns import kinds
from wids.columns.headers import PartFile, find_reader
from wids.columns.packages import import_arrow
from wids.columns.spec import HEADER_KEYS, MAX_SIZES, ColumnRule, ColumnSpec, fold
from wids.core.codecs.decode import SampleDecoder
from wids.core.collection.member_file import open_member
from wids.core.collection.shard_collection import count_mismatch
from wids.core.files import tempdirs
from wids.core.index.discovery import FoundShard, look_local
from wids.core.place import Place
from wids.core.readers.base import RowPart
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard  # noqa: TC001 - msgspec reads the annotations
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import PLAIN, Session
from wids.errors import ClosedReaderError, DecodeError, a_kind, shown
from wids.events import Fetched, RangesRead, TableRead
from wids.jobs.runner import TaskContext
from wids.jobs.scan import look_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from wids.core.readers.access import AccessMode
    from wids.core.readers.base import Sample
    from wids.core.tables.table import MemberTable
    from wids.events import Event

# Samples read at a time: one call of a remote reader waits for all its requests together.
_ROWS = 1024
# Members whose header is asked for are read whole up to such a length: on a server, where another request would cost
# as much, and on a disk. Of longer ones, so much is read first.
_WHOLE_REMOTE_BYTES, _WHOLE_BYTES, _HEAD_BYTES = 1 << 20, 256 << 10, 64 << 10
# Samples are read together until they have so many bytes.
_BATCH_BYTES = 64 << 20
# Samples that are handed on together; between them, a look if the job was cancelled.
_LOOK = 64
# Headers of remote members that are read at a time.
_THREADS = 8
# At least so much comes in the time of a request: samples of fewer bytes are copied with their shard.
_REQUEST_BYTES = 32 << 10
# An extension that has no decoder, so that its members are inflated, and that is all.
_INFLATED = ".wids-inflated.gz"
# What a member is to be, for each way to read it.
_WHOLE = {"json": "JSON object", "text": "UTF-8 text", **{how: how for how in HEADER_KEYS}}
# So many members of a shard that cannot be parsed are named.
_MAX_NAMED = 10


class ValueRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record of the values that a rule finds in one shard.

    Attributes:
        kinds: of the values; see `wids.columns.kinds`.
        nulls: number of samples without a value.
        nans: number of samples with NaN, also within JSON.
        unparsed: members that could not be parsed, and are null.
    """

    kinds: int
    nulls: int
    nans: int
    unparsed: int


class PartRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The record of the columns of one shard.

    Attributes:
        url: of the shard.
        nsamples: number of samples in it.
        size: its bytes.
        mark: its version; see `wids.core.index.discovery.FoundShard`.
        columns: digest of a rule -> the record of its values.
        extensions: of the members, in lower case; empty if there are more than the limit of size columns.
        doubled: samples that have a field twice, in upper and in lower case.
        first: the row of its first sample in the last written table.
        grouping: rule and group by which its members became samples.
    """

    url: str
    nsamples: int
    grouping: tuple[str, str] = ("first-dot", "adjacent")
    size: int | None = None
    mark: str | None = None
    columns: dict[str, ValueRecord] = msgspec.field(default_factory=dict)
    extensions: list[str] = msgspec.field(default_factory=list)
    doubled: int = 0
    first: int = -1

    def version(self) -> tuple[int | None, str | None]:
        """Distinguishes this version of a shard from a later one of the same name."""
        return self.size, self.mark


class Part(msgspec.Struct, kw_only=True):
    """The columns of one shard.

    Attributes:
        record: of the shard.
        data: a table with the columns key, bytes, those of the rules, and the sizes of each extension, under its name;
            an Arrow stream. None: the shard is unchanged.
        is_rest: the shard is unchanged, and ``data`` has only the rules that the earlier record lacks.
        trouble: the reason for the first member that could not be parsed.
        requests: number sent to servers.
        read_bytes: number of bytes received from servers.
    """

    record: PartRecord
    data: bytes | None = None
    is_rest: bool = False
    trouble: str = ""
    requests: int = 0
    read_bytes: int = 0


class ExtractTask(msgspec.Struct, kw_only=True, frozen=True):
    """One shard to be read.

    Attributes:
        shard: which.
        spec: the rules.
        known: the record of an earlier run; of an unchanged shard, only what it lacks is read.
        rule: the rule of keys; see `wids.core.tables.table.build_table`.
        group: the rule of samples; see there.
        session: opens URLs.
    """

    shard: Shard
    spec: ColumnSpec
    rule: Any = "first-dot"
    group: Any = "adjacent"
    known: PartRecord | None = None
    session: Session = PLAIN


def extract_part(task: ExtractTask, context: TaskContext = TaskContext()) -> Part:  # noqa: B008 - frozen
    """Read the columns of one shard.

    Raises:
        FetchError: it cannot be downloaded. ShardError: it is not a readable tar, or not what the index says.
        DecodeError: some of its members cannot be parsed, and the rules do not make them null.
        CancelledTransferError: it was cancelled.
    """
    shard = task.shard
    version = look_at(shard.url, task.session)
    known, rules, grouping = task.known, task.spec.rules, (task.rule, task.group)
    if known is not None and known.grouping != grouping:
        known = None
    is_rest = known is not None and bool(version.mark) and (version.size, version.mark) == known.version()
    if known is not None and is_rest:
        rules = tuple(rule for rule in rules if rule.digest not in known.columns)
        if not rules:
            return Part(record=known)
    tally = _FieldCounts()
    with contextlib.ExitStack() as stack:
        directory = None if Place(shard.url).is_local else stack.enter_context(tempdirs.directory("columns"))
        provider = AutoProvider(
            cache_dir=directory,
            session=task.session.with_hooks([tally]),
            access=_choose_access(version.size, shard.nsamples),
            rule=task.rule,
            group=task.group,
        )
        samples = _Samples(provider, shard)
        stack.callback(samples.close)
        table = samples.table
        if shard.nsamples not in (None, len(table)):
            raise count_mismatch(shard.url, shard.nsamples or 0, len(table), advice="; write the index again")
        spec = ColumnSpec(rules=rules)
        values = _Values(spec, shard.url, table)
        if rules:
            for some in samples.read(values.whole, values.headers, context.is_cancelled):
                values.add(some, threads=_THREADS if samples.has_remote_parts else 1)
        values.check()
        extensions = list(dict.fromkeys(map(fold, table.extensions)))
        record = PartRecord(
            url=shard.url,
            nsamples=len(table),
            size=version.size,
            mark=version.mark,
            grouping=grouping,
            extensions=extensions if len(extensions) <= MAX_SIZES else [],
        )
        data = _pack(table, values, record)
    return Part(
        record=record,
        data=data,
        is_rest=is_rest,
        trouble=values.trouble,
        requests=tally.requests,
        read_bytes=tally.read_bytes,
    )


def _choose_access(size: int | None, nsamples: int | None) -> AccessMode:
    """Choose the access to a remote shard of this size: byte ranges, unless a copy is faster."""
    is_small = size is not None and nsamples is not None and size < nsamples * _REQUEST_BYTES
    return "fetch" if is_small else "auto"


def look_at(url: str, session: Session) -> FoundShard:
    """The current version of a shard; without size and mark if they are unknown or the shard is missing."""
    place = Place(url)
    if place.is_local:
        return look_local(place.path)
    return FoundShard(url) if place.scheme == "pipe" else look_remote(url, session)


class _FieldCounts:
    """Counts requests to servers and their bytes, from the events of readers."""

    def __init__(self) -> None:
        self.requests = self.read_bytes = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, (Fetched, RangesRead, TableRead)):
            self.requests += event.requests
            self.read_bytes += event.size_bytes


class _Samples:
    """The samples of a shard; the reader may change from byte ranges to a copy in between.

    Attributes:
        table: its member table.
        has_remote_parts: decoders of headers wait for a server, in the samples that were read last.
    """

    def __init__(self, provider: AutoProvider, shard: Shard) -> None:
        self._pool = OpenShards(provider, capacity=1, find=lambda _: shard)
        self._shard = shard
        self.table: MemberTable = self._pool.open(shard).table
        self.has_remote_parts = False

    def close(self) -> None:
        self._pool.clear()

    def read(
        self, whole: Collection[str], headers: Collection[str], is_cancelled: Callable[[], bool]
    ) -> Iterator[list[Sample]]:
        """All samples, in order, some at a time, with only these members.

        Args:
            whole: extensions of members to read, as the table has them.
            headers: extensions of members whose header is wanted; these may be a `PartFile`.
            is_cancelled: asked every now and then.

        Raises:
            CancelledTransferError: it was cancelled.
        """
        first = 0
        while first < len(self.table):
            samples = self._read_rows(first, whole, headers)
            first += len(samples)
            for start in range(0, len(samples), _LOOK):
                if is_cancelled():
                    raise CancelledTransferError(f"{self._shard.url}: cancelled")
                yield samples[start : start + _LOOK]

    def _read_rows(self, first: int, whole: Collection[str], headers: Collection[str]) -> list[Sample]:
        """The next samples, as many as are read together."""
        rows = range(first, min(first + _ROWS, len(self.table)))
        while True:
            reader = self._pool.pin(self._shard)
            try:
                if not headers:
                    return reader.read_rows(rows, whole)
                whole_bytes = _WHOLE_REMOTE_BYTES if reader.is_remote else _WHOLE_BYTES
                count, plan = self._plan(rows, whole, headers, whole_bytes)
                rows = rows[:count]
                samples: list[Sample] = [{"__key__": self.table.key(row)} for row in rows]
                if whole:
                    samples = reader.read_rows(rows, whole)
                heads, version = reader.read_parts([part for part, _ in plan]), reader.version
            except ClosedReaderError:  # from here on, a copy is cheaper
                continue
            finally:
                reader.unpin()
            for (part, member), head in zip(plan, heads, strict=True):
                key = self.table.key(part.row)
                open_rest = partial(open_member, self._pool, self._shard, part.row, key, member, version=version)
                is_all = len(head) == member[2]
                file = io.BytesIO(head) if is_all else PartFile(head, member[2], open_rest)
                samples[part.row - first][part.name] = file
            self.has_remote_parts = reader.is_remote and any(part.hi < member[2] for part, member in plan)
            return samples

    def _plan(
        self, rows: range, whole: Collection[str], headers: Collection[str], whole_bytes: int
    ) -> tuple[int, list[tuple[RowPart, tuple[str, int, int]]]]:
        """The number of samples that are read together; the beginnings of members to read, each with its member."""
        plan, left = [], _BATCH_BYTES
        for count, row in enumerate(rows, 1):
            for member in self.table.members(row):
                extension, _, size = member
                if extension in headers:
                    head = RowPart(row, extension, 0, size if size <= whole_bytes else _HEAD_BYTES)
                    plan.append((head, member))
                    left -= head.hi
                elif extension in whole:
                    left -= size
            if left <= 0:
                return count, plan
        return len(rows), plan


class _Values:
    """The values of the rules' columns, sample by sample.

    Args:
        spec: the rules.
        url: of the shard.
        table: of its members.

    Attributes:
        columns: the values so far, for each rule.
        unparsed: the members that could not be parsed, for each.
        trouble: the reason for the first of them.
        headers: extensions, as the table has them, of members of which the header is all that is wanted.
        whole: those of the others.
    """

    def __init__(self, spec: ColumnSpec, url: str, table: MemberTable) -> None:
        spellings = {
            rule.extension: [
                [table.extensions[k] for k in sorted(table.ids_of((extension,)))]
                for extension in rule.extension.split(";")
            ]
            for rule in spec.rules
        }
        names = {
            is_header: {
                name
                for rule in spec.rules
                for some in spellings[rule.extension]
                for name in some
                if is_header is (rule.how in HEADER_KEYS and not _is_packed(name))
            }
            for is_header in (True, False)
        }
        self.whole, self.headers = names[False], names[True] - names[False]
        self.rules = spec.rules
        self.columns: list[list[Any]] = [[] for _ in spec.rules]
        self.unparsed, self.trouble = [0] * len(spec.rules), ""
        self._url = url
        self._errors: list[DecodeError] = []
        self._failed = 0
        self._decoder = decoder = SampleDecoder("numpy")
        self._parsers = [
            (
                spellings[extension],
                how,
                [(k, rule) for k, rule in enumerate(spec.rules) if (rule.extension, rule.how) == (extension, how)],
            )
            for extension, how in dict.fromkeys((rule.extension, rule.how) for rule in spec.rules)
        ]
        self._parse: dict[str, Callable[[bytes, str, str], Any]] = {
            "json": _parse_json,
            "text": _parse_text,
            "field": partial(decode_value, decoder, url, has_vectors=True),
        }
        self._read = {how: find_reader(how) for how in {rule.how for rule in spec.rules} & HEADER_KEYS.keys()}

    def add(self, samples: Sequence[Sample], *, threads: int = 1) -> None:
        """The next samples; so many are parsed at a time."""
        with contextlib.ExitStack() as stack:
            parsed: Iterable[list[tuple[str, Any]]] = map(self._parse_all, samples)
            if threads > 1:
                parsed = stack.enter_context(ThreadPoolExecutor(threads, "wids-columns")).map(self._parse_all, samples)
            for sample, values in zip(samples, parsed, strict=True):
                for (_, _, rules), (extension, value) in zip(self._parsers, values, strict=True):
                    if isinstance(value, Exception):
                        self._note(value, sample["__key__"], extension, rules)
                    for k, rule in rules:
                        self.columns[k].append(None if isinstance(value, Exception) else _find(value, rule))

    def _parse_all(self, sample: Sample) -> list[tuple[str, Any]]:
        """For each parser the member, and its value, or why it has none; an error of the shard is raised."""
        values: list[tuple[str, Any]] = []
        for spellings, how, _ in self._parsers:
            there = next(filter(None, ([name for name in names if name in sample] for names in spellings)), [])
            try:
                values.append((there[0], self._parse_one(sample, there, how)) if there else ("", None))
            except (ValueError, RecursionError) as error:
                values.append((there[0], error))
        return values

    def _parse_one(self, sample: Sample, names: Sequence[str], how: str) -> Any:
        if len(names) > 1:
            raise ValueError(f"the sample has {names[1]}, too, and they are one field")
        file = sample[names[0]]
        if how != "field" and _is_packed(names[0]):
            file = self._decoder({_INFLATED: file})[_INFLATED]
        if how in self._read:
            return self._read[how](file)
        return self._parse[how](file.getvalue(), sample["__key__"], names[0])

    def check(self) -> None:
        """Check that all members could be parsed, except those that are null then.

        Raises:
            DecodeError: some could not; names the first ones.
        """
        if self._errors:
            first = self._errors[0]
            others = [f"{error.key!r} {error.field}" for error in self._errors[1:]]
            more = self._failed - len(self._errors)
            words = f"; nor can {', '.join(others)}" if others else ""
            words += f" and {more:,} more" if more else ""
            raise DecodeError(f"{first}{words}", shard=self._url, key=first.key, field=first.field)

    def _note(self, error: Exception, key: str, extension: str, rules: Sequence[tuple[int, ColumnRule]]) -> None:
        for k, _ in rules:
            self.unparsed[k] += 1
        is_error = any(rule.missing == "error" for _, rule in rules)
        self._failed += is_error
        if len(self._errors) < _MAX_NAMED if is_error else not self.trouble:
            cause = error.__cause__ if isinstance(error, DecodeError) and error.__cause__ is not None else error
            what = _WHOLE.get(rules[0][1].how, "value of a column")
            story = f"{self._url}: sample {key!r}: {extension} is no {what} that can be read ({cause})"
            if is_error:
                self._errors.append(DecodeError(story, shard=self._url, key=key, field=extension))
            else:
                self.trouble = story


def _is_packed(extension: str) -> bool:
    """True if a member is inflated before it is read."""
    return extension.lower().endswith(".gz")


def _parse_json(data: bytes, _key: str, _extension: str) -> Mapping[str, Any]:
    value = json.loads(data)
    if not isinstance(value, Mapping):
        raise ValueError(f"it is a JSON {type(value).__name__}")  # noqa: TRY004 - as of a text that is no JSON
    return value


def _parse_text(data: bytes, _key: str, _extension: str) -> str:
    return data.decode("utf-8-sig")  # a byte order mark is no part of the text


def decode_value(
    decoder: SampleDecoder, url: str, data: bytes, key: str, extension: str, *, has_vectors: bool = False
) -> Any:
    """A member's value as a JSON type, or with ``has_vectors`` an array of one dimension.

    Raises:
        DecodeError: it cannot be decoded. ValueError: its value is of another type.
    """
    value = decoder({"__key__": key, "__shard__": url, extension: data})[extension]
    if isinstance(value, (np.generic, np.ndarray)):
        if value.ndim > 1:
            raise ValueError(f"it is an array of shape {value.shape}")
        if has_vectors and value.ndim and kinds.kind_of(value) != kinds.OTHER:
            return np.asarray(value)
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, io.BytesIO):
        raise ValueError(f"it holds {shown(value.getvalue())}, which is nothing that a {extension} is decoded to")  # noqa: TRY004 - as below
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it is {a_kind(value)}") from error
    return value


def _find(value: Any, rule: ColumnRule) -> Any:
    """The value of a rule's column; None: the sample has no value."""
    if rule.keys and isinstance(value, Mapping):
        name = ".".join(rule.keys)
        if name in value:
            return value[name]
    for key in rule.keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _pack(table: MemberTable, values: _Values, record: PartRecord) -> bytes:
    """The columns as an Arrow stream; notes their kinds."""
    pa = import_arrow()
    names, arrays = ["key", "bytes"], [key_array(table), pa.array(sample_bytes(table))]
    for rule, column, unparsed in zip(values.rules, values.columns, values.unparsed, strict=True):
        if rule.digest in record.columns:  # asked for under two names
            continue
        array, occurring = kinds.make_array(column)
        nans = sum(map(_has_nan, column))
        record.columns[rule.digest] = ValueRecord(occurring, sum(value is None for value in column), nans, unparsed)
        names.append(f"rule {rule.digest}")
        arrays.append(array)
    is_doubled = np.zeros(len(table), bool)
    for extension, found, count in size_columns(table, record.extensions):
        is_doubled |= count > 1
        names.append(f"size {extension}")
        arrays.append(pa.array(found, mask=count == 0))
    record.doubled = int(is_doubled.sum())
    batch = pa.record_batch(arrays, names=[kinds.writable(name) for name in names])
    record.extensions = [str(kinds.writable(extension)) for extension in record.extensions]
    return write_stream(batch)


def write_stream(rows: Any) -> bytes:
    """A batch or a table as an Arrow stream."""
    pa = import_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _has_nan(value: Any) -> bool:
    """True if a value is NaN, or JSON with NaN in it."""
    todo = [value]
    while todo:
        found = todo.pop()
        if isinstance(found, np.ndarray):
            if found.dtype.kind == "f" and np.isnan(found).any():
                return True
        elif isinstance(found, float):
            if math.isnan(found):
                return True
        elif isinstance(found, Mapping):
            todo += found.values()
        elif isinstance(found, (list, tuple)):
            todo += found
    return False


def size_columns(
    table: MemberTable, extensions: Iterable[str]
) -> Iterator[tuple[str, np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]]:
    """The fields of a shard's samples: folded extension (`fold`) -> bytes of each sample, and number of members."""
    starts = np.asarray(table.starts).astype(np.int64)
    owners = np.repeat(np.arange(len(table)), starts[1:] - starts[:-1])
    numbers: dict[str, int] = {}
    fields = [numbers.setdefault(fold(name), len(numbers)) for name in table.extensions]
    ids = np.array(fields, np.int64)[np.asarray(table.extension_ids)]
    sizes = np.asarray(table.sizes).astype(np.int64)
    for extension in extensions:
        mine = ids == numbers[extension]
        found, count = (np.bincount(owners[mine], weights, len(table)) for weights in (sizes[mine], None))
        yield extension, found.astype(np.int64), count


def key_array(table: MemberTable) -> Any:
    """The keys of a shard's samples, as an Arrow array of strings."""
    pa = import_arrow()
    text = table.key_text
    if isinstance(text, str) and len(text) < 1 << 31:
        ends = np.asarray(table.key_ends).astype(np.int32)
        return pa.StringArray.from_buffers(len(table), pa.py_buffer(ends), pa.py_buffer(text.encode("ascii")))
    return pa.array(map(kinds.writable, table.keys()), pa.string())


def sample_bytes(table: MemberTable) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The bytes of all members of each sample of a shard: int64, (samples,)."""
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(table.sizes).astype(np.int64))])
    starts = np.asarray(table.starts, np.int64)
    found: np.ndarray[Any, np.dtype[np.int64]] = ends[starts[1:]] - ends[starts[:-1]]
    return found
