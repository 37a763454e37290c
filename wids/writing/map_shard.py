"""Computes new fields for the samples of one shard, and writes them: a shard with the same rows, or a part of a table.

A sample that fails is an empty row and a `SampleFailure`; faults of servers, of the disk or of the program's setup end
the task. What is written depends on the samples and the function alone, and not on where a task runs or on what a batch
has besides a sample that fails.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

import wids
from wids.core.codecs.encoders import encode_field
from wids.core.collection import error_log
from wids.core.collection.substitutes import is_of_sample
from wids.core.place import Place
from wids.core.tables.fields import EMPTY
from wids.core.tables.keys import encode_name
from wids.core.tables.table import is_standard
from wids.core.transport.failures import CancelledTransferError
from wids.errors import InputError, SampleError, WidsError, a_kind, printable, shown
from wids.writing.map_values import plain_values, write_part
from wids.writing.output import ShardTarget
from wids.writing.shard_file import ShardFile
from wids.writing.writer import check_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.readers.base import Reader
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session
    from wids.dataset import ShardListDataset
    from wids.jobs.functions import JobFunction
    from wids.jobs.runner import TaskContext

_REPORT_SECONDS = 0.2
# Samples that are read at once where each would take a request of its own.
_FAR_SAMPLES = 16
_FRAMES = 3  # of a traceback, in a message
_TOLD = 100  # failures in a report
_PACKAGE = os.path.join(os.path.dirname(wids.__file__), "")


class SampleFailure(msgspec.Struct, frozen=True):
    """A sample whose fields could not be computed.

    Attributes:
        row: in its shard.
        key: of the sample; None: it could not be read.
        field: that failed, if one did.
        error: class and message.
        trace: the last lines of the traceback, of the first failure in a shard.
    """

    row: int
    key: str | None
    field: str | None
    error: str
    trace: tuple[str, ...] = ()


class MapTask(NamedTuple):
    """One shard to compute.

    Attributes:
        k: the number of the base shard.
        url: of the output: a shard, or a part of a table.
        inputs: a digest of everything that determines it.
    """

    k: int
    url: str
    inputs: str


class MapJob(NamedTuple):
    """The common data of all shards of a run; pickled into each process.

    Attributes:
        dataset: the samples.
        function: computes their fields.
        batch_size: samples that it takes at a time; None: it takes one sample.
        is_table: values become a part of a table, and no members of a shard.
        prefix: of the new fields where they are joined to the samples: ``clip`` for ``.clip.npy``.
        others: the fields that samples have of companions.
        session: opens URLs of the output.
    """

    dataset: ShardListDataset[Any]
    function: JobFunction
    batch_size: int | None
    is_table: bool
    prefix: str
    others: tuple[str, ...]
    session: Session


class MappedShard(msgspec.Struct, kw_only=True):
    """The result of a task.

    Attributes:
        url: of the output.
        how: a digest of the function's name and the settings.
        inputs: as in its task.
        entry: what an index says of it: its rows and size.
        mtime_ns: of the file; 0 if unknown.
        samples: that were computed.
        rows: that have fields.
        fields: of all rows: extensions, or the kinds of columns (`wids.columns.kinds`).
        failures: samples that failed.
    """

    url: str
    how: str = ""
    inputs: str
    entry: dict[str, Any]
    mtime_ns: int = 0
    samples: int = 0
    rows: int = 0
    fields: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[SampleFailure] = msgspec.field(default_factory=list)


def map_shard(job: MapJob, task: MapTask, context: TaskContext) -> MappedShard:
    """Compute and publish the fields of a shard's samples.

    Args:
        job: of the run.
        task: which shard.
        context: gets reports of (samples so far, bytes so far, number of failures so far, the first of them).

    Raises:
        InputError: the function, or what it returns, cannot be used for any sample.
        WidsError: the shard cannot be read, or the output cannot be written.
        CancelledTransferError: it was cancelled.
    """
    collection = job.dataset._collection  # noqa: SLF001 - of the face
    with ExitStack() as stack:
        reader = stack.enter_context(collection.pinned(task.k))
        shard = MappedShard(url=task.url, inputs=task.inputs, entry={})
        reported = time.monotonic()
        write = _TableWriter(job, task, reader) if job.is_table else _ShardWriter(job, task, reader)
        stack.callback(write.close)
        for row, result in compute(job, task.k):
            values: Any = result if isinstance(result, Exception) else tried(partial(write.prepare, row), result)
            if isinstance(values, Exception):
                failure = describe_failure(values, row, reader.table.key(row), has_trace=not shard.failures)
                shard.failures.append(failure)
                values = None
            write.add(row, values)
            shard.samples += 1
            shard.rows += bool(values)
            if time.monotonic() - reported > _REPORT_SECONDS:
                if context.is_cancelled():
                    raise CancelledTransferError
                context.report(shard.samples, write.size, len(shard.failures), tuple(shard.failures[:_TOLD]))
                reported = time.monotonic()
        shard.entry, shard.fields = write.finish()
        shard.mtime_ns = (ShardTarget(job.session).describe(task.url) or (0, 0))[1]
        return shard


def compute(job: MapJob, k: int, *, most: int | None = None) -> Iterator[tuple[int, Any]]:
    """The rows of shard ``k`` that are computed, each with its result, or the error of the sample.

    Args:
        job: of the run.
        k: the number of the base shard.
        most: samples.

    Raises:
        Exception: an error that is not a sample's own; see `wids.core.collection.substitutes.is_of_sample`.
    """
    collection, function = job.dataset._collection, job.function.get()  # noqa: SLF001 - of the face
    rows = collection.rows_of(k)
    first = collection.ends[k - 1] if k else 0
    count = len(rows) if most is None else min(most, len(rows))
    step = job.batch_size or (_FAR_SAMPLES if collection.has_remote() else 1)
    call = _call_each if job.batch_size is None else _call_batch
    for lo in range(0, count, step):
        indices = [first + at for at in range(lo, min(lo + step, count))]
        results = call(function, job.dataset, indices)
        yield from zip((int(rows[index - first]) for index in indices), results, strict=True)


def _read(dataset: ShardListDataset[Any], indices: Sequence[int]) -> list[Any]:
    """The samples, or an error in the place of one."""
    if len(indices) > 1:
        try:
            return dataset.__getitems__(indices)
        except Exception as error:
            if not is_of_sample(error):
                raise
    return [tried(dataset.__getitem__, index) for index in indices]


def tried(call: Callable[[Any], Any], value: Any) -> Any:
    """The result of a call, or its error if that is a sample's own."""
    try:
        return call(value)
    except Exception as error:
        if not is_of_sample(error):
            raise
        return error


def _call_each(function: Callable[..., Any], dataset: ShardListDataset[Any], indices: Sequence[int]) -> list[Any]:
    """The result of each sample, or its error."""
    return [sample if isinstance(sample, Exception) else tried(function, sample) for sample in _read(dataset, indices)]


def _call_batch(function: Callable[..., Any], dataset: ShardListDataset[Any], indices: Sequence[int]) -> list[Any]:
    """The result of each sample of a batch, or its error; where the batch fails, samples are tried one by one."""

    def call(samples: list[Any]) -> list[Any]:
        results = function(samples)
        if not isinstance(results, Sequence) or isinstance(results, (str, bytes)) or len(results) != len(samples):
            what = f"{len(results)} results" if isinstance(results, (list, tuple)) else a_kind(results)
            raise SampleError(f"the function returned {what} for {len(samples)} samples: it returns a list of as many")
        return list(results)

    samples = _read(dataset, indices)
    sound = [k for k, sample in enumerate(samples) if not isinstance(sample, Exception)]
    if not sound:
        return samples
    results = tried(call, [samples[k] for k in sound])
    if isinstance(results, Exception):
        error = results
        # Read again: a function that failed may have changed its samples.
        again = _read(dataset, [indices[k] for k in sound]) if len(sound) > 1 else []
        results = [each if isinstance(each, Exception) else tried(call, [each]) for each in again] or [error]
        results = [each if isinstance(each, Exception) else each[0] for each in results]
    for k, result in zip(sound, results, strict=True):
        samples[k] = result
    return samples


def fields_of(result: Any, key: str) -> dict[str, Any]:
    """The new fields in a result; names that begin with ``__`` are those of the sample, and no fields.

    Raises:
        SampleError: it is neither a dict nor None, or a name is no text.
    """
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise SampleError(f"sample {shown(key)}: the function returned {a_kind(result)}; a dict or None is due")
    for name in result:
        if not isinstance(name, str):
            raise SampleError(f"sample {shown(key)}: {shown(name)} is no name of a field; give text", key=key)
    return {name: value for name, value in result.items() if not name.startswith("__")}


def encode_fields(result: Any, key: str, *, rule: Any = "first-dot") -> dict[str, bytes]:
    """The members of a row: extension, with its dot, -> bytes.

    Args:
        result: of the function.
        key: of the sample.
        rule: by which extensions are found in names, ``"first-dot"`` or ``"last-dot"``.

    Raises:
        SampleError: a value cannot be encoded, or an extension cannot be used.
    """
    members = dict[str, bytes]()
    for name, value in fields_of(result, key).items():
        extension = name if name.startswith(".") else f".{name}"
        check_extension(extension, key)
        if extension.casefold() in {EMPTY, *(other.casefold() for other in members)}:
            words = "marks rows without fields" if extension.casefold() == EMPTY else "is there twice"
            raise SampleError(f"sample {shown(key)}: {shown(extension)} {words}; choose another name", field=extension)
        if rule == "last-dot" and "." in extension[1:]:
            raise SampleError(
                f"sample {shown(key)}: {shown(extension)} has two dots, and the index splits names at the last one",
                field=extension,
            )
        try:
            members[extension] = encode_field(extension, value)
        except SampleError as error:
            raise SampleError(f"sample {shown(key)}: {error}", key=key, field=extension) from error
    return members


def describe_failure(error: Exception, row: int, key: str | None, *, has_trace: bool = True) -> SampleFailure:
    """The record of a failure, and with ``has_trace`` the last lines of the traceback that are not of wids."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    lines = tuple(
        printable(f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}: {frame.line or ''}")
        for frame in frames[-_FRAMES:]
        if has_trace
    )
    field = error.field if isinstance(error, WidsError) else None
    return SampleFailure(row, key, field, error_log.describe(error), lines)


class _ShardWriter:
    """Writes a shard with all rows of another one.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, job: MapJob, task: MapTask, reader: Reader) -> None:
        self._job, self._task, self._reader = job, task, reader
        self._grouping = job.dataset._collection.shards.grouping  # noqa: SLF001 - of the face
        self._stack = ExitStack()
        self._file = ShardFile.begin(task.url, self._stack, work="map")
        self._next, self._fields = 0, dict[str, int]()
        prefix = f".{job.prefix}" if job.prefix else ""
        # The new extension that would be one of the samples' own -> that one.
        self._taken = {
            name.casefold()[len(prefix) :]: name
            for name in (*reader.table.extensions, *job.others)
            if name.casefold().startswith(prefix.casefold())
        }
        self.size = 0

    def prepare(self, row: int, result: Any) -> dict[str, bytes]:
        """The members of a row.

        Raises:
            SampleError: the result cannot be written. InputError: samples have a field of its name already.
        """
        members = encode_fields(result, self._reader.table.key(row), rule=self._grouping["rule"])
        for extension in members:
            if extension.casefold() in self._taken:
                raise InputError(
                    f"the function returned {shown(extension)}, and samples of {Place(self._reader.url).public} have "
                    f"a {shown(self._taken[extension.casefold()])} already; return it under another name, or give a "
                    "prefix, which new fields have where they are joined to the samples"
                )
        return members

    def add(self, row: int, members: dict[str, bytes] | None) -> None:
        """Write a row, after empty ones for those between the last one and it."""
        for before in range(self._next, row):
            self._put(before, {})
        self._put(row, members or {})
        self._next = row + 1

    def _put(self, row: int, members: dict[str, bytes]) -> None:
        key = self._reader.table.key(row)
        for extension in members:
            self._fields[extension] = self._fields.get(extension, 0) + 1
        self._file.add((encode_name(key + name), data) for name, data in (members or {EMPTY: b""}).items())
        self.size = self._file.member_bytes

    def finish(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Publish the shard; return (what an index says of it, extension -> number of rows that have it).

        Raises:
            SampleError: its rows would be read with other keys. OutputError: it cannot be written.
        """
        table, grouping = self._reader.table, self._grouping
        for row in range(self._next, len(table)):
            self._put(row, {})
        entry, own = self._file.finish()
        if not is_standard(**grouping):
            own = self._file.scan(own.identity, grouping)
        _check_keys(own, table, self._reader.url)
        ShardTarget(self._job.session).put_shard(
            self._file.part, self._task.url, own if is_standard(**grouping) else None
        )
        return entry, self._fields

    def close(self) -> None:
        """Remove what is not published."""
        self._stack.close()


def _check_keys(own: MemberTable, table: MemberTable, url: str) -> None:
    """Check that a new shard has the keys of another one.

    Raises:
        SampleError: it has not.
    """
    keys, there = list(table.keys()), list(own.keys())
    if keys != there:
        row = next((k for k, pair in enumerate(zip(keys, there, strict=False)) if pair[0] != pair[1]), len(there))
        key = keys[row] if row < len(keys) else ""
        raise SampleError(
            f"{Place(url).public}: the key {shown(key)} of row {row} would not be read back as it is from a shard with "
            "other fields; pack these samples with other keys (wids pack --number-keys)",
            key=key,
        )


class _TableWriter:
    """Writes a part of a table.

    Attributes:
        size: bytes so far; not known before the end.
    """

    def __init__(self, job: MapJob, task: MapTask, reader: Reader) -> None:
        self._job, self._task, self._reader = job, task, reader
        self._values = dict[int, dict[str, Any]]()
        self.size = 0

    def prepare(self, row: int, result: Any) -> dict[str, Any]:
        """The values of a row.

        Raises:
            SampleError: a column cannot hold one of them.
        """
        key = self._reader.table.key(row)
        return plain_values(fields_of(result, key), key)

    def add(self, row: int, values: dict[str, Any] | None) -> None:
        """Take the values of a row."""
        if values:
            self._values[row] = values

    def finish(self) -> tuple[dict[str, Any], dict[str, int]]:
        """Publish the part; return (its rows and size, column -> the kinds in it)."""
        data, kinds = write_part(list(self._reader.table.keys()), self._values)
        ShardTarget(self._job.session).put_bytes(data, self._task.url)
        return {"nsamples": len(self._reader.table), "filesize": len(data)}, kinds

    def close(self) -> None:
        """There is nothing to remove."""
