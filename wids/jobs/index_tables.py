"""Packs the member tables of an index's shards into one file, which the index then names.

The table of a shard is the one saved beside it, if that is valid, or is made from the shard's headers. Tables are
stored in ``PACK.spool`` as they arrive, and their places in ``PACK.journal``, so that a killed run continues where it
stopped. The pack is then written in the order of the shards, so its bytes depend only on the shards. It is published in
one step, before the index that names it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from wids.core.collection.shard_collection import count_mismatch, load_shards
from wids.core.files import atomic, locks, system
from wids.core.files.replaced import ReplacedFile
from wids.core.index import checks, compiled, writing
from wids.core.index.discovery import look_local
from wids.core.index.paths import absolute, check_output
from wids.core.index.spec import PACKS, own_packs, parse_json
from wids.core.place import Place
from wids.core.shard import Shard  # noqa: TC001 - msgspec reads the annotations
from wids.core.tables import member_tables, pack_format
from wids.core.tables import table as tables
from wids.core.tables.member_tables import check_table_replaceable
from wids.core.transport.download import read_bytes
from wids.core.transport.failures import forget_frames
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.upload import check_place, check_replaceable
from wids.errors import FetchError, JobError, OutputError, SpecError, TableError
from wids.events import logger
from wids.jobs import scan
from wids.jobs.arguments import check_job, text_of
from wids.jobs.index_edit import refuse_view
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.journal import KnownShards, unwritten
from wids.jobs.outcome import JobOutcome
from wids.jobs.runner import TaskContext

if TYPE_CHECKING:
    from os import PathLike

    from wids.core.index.spec import ShardList
    from wids.core.tables.table import MemberTable
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine

_SPOOL_SUFFIX = ".spool"


class TablesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of packing tables.

    Attributes:
        is_skipping: leave out and list shards whose table cannot be read; otherwise the first one ends the job.
        overwrite: replace a file with the pack's name that the index does not name.
        session: opens URLs.

    Example:
        >>> jobs.create_tables("train.json", settings=jobs.TablesSettings(is_skipping=True)).failed
        {}
    """

    is_skipping: bool = False
    overwrite: bool = False
    session: Session = PLAIN


class TablesOutcome(JobOutcome, kw_only=True):
    """The results for the shards, so far or at the end.

    Attributes:
        index: path of the index.
        output: path of the pack.
        tables: in the pack.
        bytes: of the pack.
        beside: tables read beside their shards.
        scanned: those made from shards.
        known: those of an earlier run.
        requests: number for remote shards that were scanned.
        read_bytes: their bytes.

    Example:
        >>> outcome = jobs.create_tables("train.json")
        >>> outcome.tables, outcome.beside  # the writer has put all beside their shards
        (3, 3)
    """

    index: str
    output: str
    tables: int = 0
    bytes: int = 0
    beside: int = 0
    scanned: int = 0
    known: int = 0
    requests: int = 0
    read_bytes: int = 0


class TableTask(msgspec.Struct, frozen=True, kw_only=True):
    """A shard whose table is wanted."""

    shard: Shard
    session: Session = PLAIN


class FoundTable(msgspec.Struct, kw_only=True):
    """The table of a shard, as a ``.widx`` file has it.

    Attributes:
        data: the table.
        is_scanned: it was made from the shard.
        requests: number for the scan of a remote shard.
        read_bytes: their bytes.
    """

    data: bytes
    is_scanned: bool = False
    requests: int = 0
    read_bytes: int = 0


class SpooledTable(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's record of a table in the spool.

    Attributes:
        url: of its shard in the index.
        filesize: likewise.
        md5sum: likewise.
        crc32: likewise.
        mark: version of a local shard.
        offset: of the table in the spool.
        length: of the table.
        checksum: its CRC-32, because a crash may lose bytes of the spool.
    """

    url: str
    filesize: int | None
    md5sum: str | None
    mark: str | None
    offset: int
    length: int
    checksum: int
    crc32: str | None = None


def create_tables(
    place: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    settings: TablesSettings = TablesSettings(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> TablesOutcome:
    """Write the pack of an index's member tables, and name it in the index.

    A run that ends early (KeyboardInterrupt, a kill) leaves its journal and spool: the next run finds the other tables.

    Args:
        place: path of a JSON index.
        output: path of the pack, which ends in ``.tables``; None: the path of the index with this ending.
        settings: of the job.
        engine: runs the tasks; by default threads.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        Counts, and in ``failed`` the shards that were left out (URL -> reason).

    Raises:
        InputError: an argument is of another type; names it.
        SpecError: it is not an index, or a compiled one. OutputError: the pack cannot be written.
        OutputExistsError: another file has this name.
        WidsError: the table of a shard can be neither read nor made, and failures are not skipped.

    Example:
        >>> outcome = jobs.create_tables("train.json")
        >>> outcome.tables, outcome.failed
        (3, {})
    """
    settings = check_job(settings, TablesSettings, engine, progress)
    place, output = text_of("place", place), None if output is None else text_of("output", output)
    if compiled.is_compiled(place):
        raise SpecError(f"{place}: is a compiled index; pack for the one it was made of, and convert that", url=place)
    index = check_output(place)
    _, shards, session = load_shards(index, session=settings.session)
    refuse_view(shards, place)
    if not tables.is_standard(**shards.grouping):
        raise SpecError(
            f"{place}: groups members by {' and '.join(map(repr, shards.grouping.values()))}; saved member tables hold "
            "the standard grouping alone, so that readers of this index would not use them",
            url=index,
        )
    settings = msgspec.structs.replace(settings, session=session)
    beside = os.path.splitext(index)[0] + pack_format.SUFFIX
    path = _check_pack(beside if output is None else output, shards, settings)
    outcome = TablesOutcome(index=index, output=path)
    with _TablePacking(shards, outcome, settings, progress) as packing:
        packing.find_all(engine)
        packing.write()
        _name_pack(index, path)
        packing.finish()
    return outcome


def find_table(task: TableTask, context: TaskContext = TaskContext()) -> FoundTable:  # noqa: B008 - frozen
    """The table of one shard: the saved one beside it, or one made from its headers.

    Raises:
        FetchError: the shard cannot be downloaded. ShardError: it is not a readable tar, or not what the index says.
        CancelledTransferError: it was cancelled.
    """
    shard = task.shard
    table = _local_beside(shard) if Place(shard.url).is_local else _remote_beside(task)
    if table is not None and shard.nsamples in (None, table.nsamples):
        return FoundTable(data=table.to_bytes())
    wanted = scan.ScanTask(url=shard.url, has_table=True, session=task.session)
    result = scan.read_shard(wanted, context)
    if result.error is not None:
        raise result.error
    data = result.table.to_bytes()
    member_tables.accept_published(data, shard, shard_bytes=shard.filesize, where="the table of the shard")
    if shard.nsamples not in (None, result.nsamples):
        raise count_mismatch(shard.url, shard.nsamples or 0, result.nsamples, advice="; write the index again")
    return FoundTable(data=data, is_scanned=True, requests=result.requests, read_bytes=result.read_bytes)


def _local_beside(shard: Shard) -> MemberTable | None:
    """The table beside a local shard, as `wids.core.readers.provider.LocalFiles` would use it."""
    path = Place(shard.url).path
    try:
        fd, identity = atomic.open_file(path)
    except OSError:  # the scan reports it
        return None
    os.close(fd)
    table = member_tables.load_table(path + tables.SUFFIX, shard.url, shard_bytes=identity.size)
    if table is None or not table.identity.is_same(identity) or shard.filesize not in (None, identity.size):
        return None
    return table


def _remote_beside(task: TableTask) -> MemberTable | None:
    shard = task.shard
    size = shard.filesize
    try:
        if size is None:
            size = scan.look_remote(shard.url, task.session).size
        return member_tables.read_beside(shard, shard_bytes=size, session=task.session)
    except (FetchError, TableError) as error:  # none can be used
        if isinstance(error, TableError):
            logger.warning("%s", error)
        forget_frames(error)
        return None


def _check_pack(output: str, shards: ShardList, settings: TablesSettings) -> str:
    """The absolute path of an output pack.

    Raises:
        OutputError: it cannot be written. OutputExistsError: another file has this name.
    """
    path = check_place(output, "a pack", "train.tables")
    if not path.endswith(pack_format.SUFFIX):
        raise OutputError(f"{output}: the name of a pack ends in {pack_format.SUFFIX}", path=path)
    named = [Place(absolute(url)).path for url in shards.all_packs() if Place(url).is_local]
    check_replaceable(
        path,
        "pack of this index",
        lambda place: place in named or _is_pack_of(place, shards),
        shards=shards.urls,
        overwrite=settings.overwrite,
    )
    return path


def _is_pack_of(path: str, shards: ShardList) -> bool:
    """True if a file is a pack of tables of these shards only: the output of a run that was killed before its end.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            data, _ = pack_format.read_head(lambda _, length: file.read(length), url=path)
            size = os.fstat(file.fileno()).st_size
        directory = pack_format.unpack(data, url=path, size=size)
    except TableError:
        return False
    names = {absolute(url) for url in shards.urls}
    return sum(directory.find(url) is not None for url in names) == len(directory)


def _name_pack(index: str, path: str) -> None:
    """Add the name of a pack to an index, and change nothing else in it.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        with ReplacedFile(index, advice=None).alone():
            raw = parse_json(read_bytes(index), index)  # again: it may have changed during the job
            home = os.path.dirname(index)
            if own_packs(raw, index, home) == (path,):
                return
            checks.check_finite(raw, "", index)
            rest = {key: value for key, value in raw.items() if key in ("shardlist", "datasets")}
            header = {key: value for key, value in raw.items() if key not in rest}
            named = {**header, PACKS: writing.written(path, home), **rest}
            atomic.write_atomically(index, writing.dump_index(named))
    except OSError as error:
        if isinstance(error, FetchError):  # it is gone
            raise
        raise unwritten(index, error) from error


class _TablePacking(ShardJob[int, FoundTable, TablesOutcome]):
    """Collects tables into one pack; found tables stay for the next run, unless `finish` was called.

    Raises:
        OutputError: the pack's directory cannot be written. OutputExistsError: another process writes this pack, or
            other files have the names of its spool or journal.
    """

    def __init__(
        self,
        shards: ShardList,
        outcome: TablesOutcome,
        settings: TablesSettings,
        progress: Progress,
    ) -> None:
        self._shards, self._settings = shards, settings
        numbers: dict[str, int] = {}  # a shard that is listed twice has one table
        for k, url in enumerate(shards.urls):
            if member_tables.may_be_published(Place(url)):
                numbers.setdefault(absolute(url), k)
        self._numbers = list(numbers.values())
        # (offset, length) in the spool of the table of each shard; length -1: it has no table there.
        self._places = np.full((len(shards), 2), -1, np.int64)
        outcome.shards = len(self._numbers)
        super().__init__(outcome, progress, "packing", is_skipping=settings.is_skipping)
        path = outcome.output
        self._spool_path = path + _SPOOL_SUFFIX
        self._known = KnownShards(path, SpooledTable, writer="wids index tables")
        self.close_at_end(self._known.close)
        self._spool = -1
        try:
            with atomic.ClosingOnError(self._known.close):
                locks.remove_parts(path)
                if not self._known.records:
                    check_table_replaceable(self._spool_path, "spool of an earlier run")
                with atomic.ClosingOnError(self._close_spool):
                    self._open_spool()
        except OutputError:
            raise
        except OSError as error:
            raise unwritten(path, error) from error
        self.close_at_end(self._close_spool)

    def _open_spool(self) -> None:
        self._spool = os.open(self._spool_path, system.WRITE_FLAGS | os.O_CREAT, 0o666)
        if not self._known.records:  # no journal describes its content
            os.ftruncate(self._spool, 0)
        self._end = os.fstat(self._spool).st_size

    def _close_spool(self) -> None:
        try:
            if self._spool >= 0:
                os.close(self._spool)
        finally:
            if not self._known.journal.is_needed:
                with contextlib.suppress(OSError):
                    os.unlink(self._spool_path)

    def find_all(self, engine: Engine) -> None:
        """Find the tables of all shards.

        Raises:
            WidsError: one can be neither read nor made, and failures are not skipped. JobError: none can.
        """
        self._recall()
        todo = [k for k in self._numbers if self._places[k, 1] < 0]
        tasks = ((k, TableTask(shard=self._shard(k), session=self._settings.session)) for k in todo)
        is_remote = any(not Place(self._shards.urls[k]).is_local for k in todo)
        self.run(find_table, tasks, choose_engine(engine, is_remote=is_remote))
        self.outcome.sort_failed(self._shards.urls)
        if not (self._places[:, 1] >= 0).any():
            first = next(iter(self.outcome.failed.values()), "no shard of this index can have one")
            raise JobError(f"none of {len(self._shards):,} shards has a member table; the first: {first}")

    def write(self) -> None:
        """Write the pack.

        Raises:
            OutputError: it cannot be written; the tables found stay for the next run.
            TableError: two shards have names of one hash.
        """
        outcome, place = self.outcome, self.outcome.output
        kept = [k for k in self._numbers if self._places[k, 1] >= 0]
        names = [pack_format.name_in(place, absolute(self._shards.urls[k])) for k in kept]
        head = pack_format.pack_head(names, self._places[kept, 1].tolist(), url=place)
        try:
            with atomic.part_file(place) as (part, fd):
                system.write_all(fd, head, 0)
                outcome.bytes = len(head)
                for k in kept:
                    data = self._read(*self._places[k].tolist())
                    data += bytes(-len(data) % 8)
                    system.write_all(fd, data, outcome.bytes)
                    outcome.bytes += len(data)
                os.fsync(fd)
                os.replace(part, place)
        except OSError as error:
            raise unwritten(place, error) from error
        outcome.tables = len(kept)

    def finish(self) -> None:
        """Clean up: pack and index exist, and nothing is kept for another run."""
        self._known.finish()

    def _shard(self, k: int) -> Shard:
        shard = self._shards[k]
        return msgspec.structs.replace(shard, url=absolute(shard.url), packs=())

    def _read(self, offset: int, length: int) -> bytes:
        return system.pread(self._spool, length, offset)

    def _recall(self) -> None:
        """Take the tables of unchanged shards from the spool of an earlier run."""
        before = self._known.records
        for k in self._numbers if before else ():
            shard = self._shard(k)
            record = before.get(shard.url)
            if record is None or not (0 <= record.offset <= record.offset + record.length <= self._end):
                continue
            data = self._read(record.offset, record.length)
            if record != self._record(shard, data, record.offset):
                continue
            with contextlib.suppress(TableError):
                member_tables.accept_published(data, shard, shard_bytes=shard.filesize, where="its spooled table")
                self._places[k] = record.offset, record.length
                self.outcome.known += 1
                self.progress.ended += 1

    def _record(self, shard: Shard, data: bytes, offset: int) -> SpooledTable:
        mark = look_local(shard.url).mark if Place(shard.url).is_local else None
        return SpooledTable(
            url=shard.url,
            filesize=shard.filesize,
            md5sum=shard.md5sum,
            crc32=shard.crc32,
            mark=mark,
            offset=offset,
            length=len(data),
            checksum=crc32(data),
        )

    def take(self, name: int, found: FoundTable) -> None:
        """Put a table into the spool."""
        outcome, length = self.outcome, len(found.data)
        try:
            system.write_all(self._spool, found.data, self._end)
        except OSError as error:
            raise unwritten(outcome.output, error) from error
        self._known.add(self._record(self._shard(name), found.data, self._end))
        self._places[name] = self._end, length
        self._end += length
        self.progress.bytes += length
        outcome.scanned += found.is_scanned
        outcome.beside += not found.is_scanned
        outcome.requests += found.requests
        outcome.read_bytes += found.read_bytes

    def url_of(self, name: int) -> str:
        """The URL of a shard in the index."""
        return self._shards.urls[name]
