"""The known parts of a table in the making: columns of shards, from the last table or from a killed run.

    OUTPUT             the table
    OUTPUT.state       a line for each of its shards, in order: version, and place of the rows
    OUTPUT.journal     a line for each shard read since, during a run or after its kill
    OUTPUT.parts/      the columns of these shards

These files are optional: without them, shards are read again. A state is used if the table has its digest. Readers of
the table compare shards with the state, to detect rewritten ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import msgspec

from wids.columns import kinds
from wids.columns.extract import PartRecord, write_stream
from wids.columns.file import CREATE, open_table, read_header
from wids.columns.packages import import_arrow
from wids.core.files import atomic, locks
from wids.core.index.discovery import look_local
from wids.core.index.paths import absolute
from wids.core.place import Place
from wids.errors import ColumnsError
from wids.events import logger
from wids.jobs.journal import STATE_SUFFIX, KnownShards, parse_records

if TYPE_CHECKING:
    from wids.columns.extract import Part
    from wids.columns.file import TableFile, TableHeader
    from wids.core.index.shardlist import ShardList

PARTS_SUFFIX = ".parts"
# What a file of a part is called, also one that was being written.
_PART = re.compile(r"[0-9a-f]{32}\.arrow(?:\.[0-9]+-[0-9a-f]{8}\.part)?")
# Of more shards than so many, no file is looked at: on a file system of the network that would take a minute.
_LOOKED_AT = 20_000


class KnownParts(KnownShards[PartRecord]):
    """The known parts; the caller closes them.

    Args:
        output: path of the table.

    Attributes:
        earlier: the header of the existing table, if it has one that can be read.

    Raises:
        OutputError: its directory cannot be written. OutputExistsError: another process makes it, or other files
            have these names.
    """

    earlier: TableHeader | None

    def __init__(self, output: str) -> None:
        self._output, self._folder = output, output + PARTS_SUFFIX
        self._before: _Before | None = None
        super().__init__(
            output,
            PartRecord,
            writer="wids columns create",
            is_current=self._open_before,
            is_known=self._is_there,
        )
        with atomic.ClosingOnError(self.close):
            for path in (output, output + STATE_SUFFIX):
                locks.remove_parts(path)
            self.earlier = read_header(output)

    def add_part(self, part: Part) -> PartRecord:
        """Store a part that was read, with the columns of the earlier record that it lacks.

        Returns:
            Its record.

        Raises:
            OSError: it cannot be written. ColumnsError: the earlier columns are damaged.
        """
        os.makedirs(self._folder, exist_ok=True)
        record, data = msgspec.structs.replace(part.record, url=absolute(part.record.url)), part.data or b""
        if part.is_rest:
            known = self.records[record.url]
            record = msgspec.structs.replace(record, columns={**known.columns, **record.columns})
            data = self._whole(known, data)
        atomic.write_atomically(self._path(record), data)
        self.add(record)
        return record

    def _whole(self, known: PartRecord, rest: bytes) -> bytes:
        """The columns of a part, as an Arrow stream: those of an earlier record, and the others."""
        pa = import_arrow()
        earlier, of = self.load(known)
        table = pa.ipc.open_stream(rest).read_all()
        for digest, each in known.columns.items():
            array = kinds.convert(earlier[f"rule {digest}"], each.kinds, of=of[digest], to=each.kinds)
            table = table.append_column(f"rule {digest}", array)
        return write_stream(table)

    def load(self, record: PartRecord) -> tuple[Any, dict[str, int]]:
        """The columns of a part.

        Returns:
            A table with the names of `wids.columns.extract.Part`; digest of a rule -> the kinds of the whole that the
            part was part of.

        Raises:
            ColumnsError: it is damaged.
        """
        pa = import_arrow()
        try:
            return self._load(record)
        except (OSError, pa.ArrowException) as error:
            what, bad = self._output, self._output + STATE_SUFFIX  # the rules stay in the table
            if record.first < 0:
                what = bad = self._folder
            raise ColumnsError(f"{what}: is damaged ({error}); delete {bad}, and run it again", path=what) from error

    def _load(self, record: PartRecord) -> tuple[Any, dict[str, int]]:
        if record.first >= 0 and self._before is not None:
            return self._before.read(record)
        pa = import_arrow()
        whole = msgspec.structs.replace(record, url=absolute(record.url))
        with pa.OSFile(self._path(whole)) as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all(), {digest: each.kinds for digest, each in record.columns.items()}

    def is_current(self, header: TableHeader) -> bool:
        """True if the existing table has this header."""
        return self._before is not None and self._before.header == header

    def finish(self) -> None:
        """Clean up: the table exists."""
        if self._before is not None:
            self._before.close()
        with contextlib.suppress(OSError):  # there is none; or others' files are in it
            for name in filter(_PART.fullmatch, os.listdir(self._folder)):
                os.unlink(os.path.join(self._folder, name))
            os.rmdir(self._folder)
        super().finish()

    def close(self) -> None:
        """Close the files, and leave the parts that were read to the next run."""
        if self._before is not None:
            self._before.close()
        super().close()

    def _path(self, record: PartRecord) -> str:
        url = self.relative(record).url
        name = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return os.path.join(self._folder, name + ".arrow")

    def _is_there(self, record: PartRecord) -> bool:
        """True if the columns of a record are in the table or in a part."""
        return record.first >= 0 or os.path.isfile(self._path(record))

    def _open_before(self, state: bytes) -> bool:
        """Open the existing table; whether the state belongs to it."""
        with contextlib.suppress(OSError, ColumnsError):
            table = open_table(self._output)
            has_rules = len(table.header.rules) == len(table.header.columns)
            if has_rules and digest_state(state) == table.header.state:
                self._before = _Before(table)
                return True
            table.close()
        return False


class _Before:
    """Parts of the table of an earlier run."""

    def __init__(self, table: TableFile) -> None:
        self._table, self.header = table, table.header
        meta = table.file.metadata
        self._starts = [0]
        for group in range(meta.num_row_groups):
            self._starts.append(self._starts[-1] + meta.row_group(group).num_rows)
        self._loaded: tuple[int, Any] = (-1, None)

    def read(self, record: PartRecord) -> tuple[Any, dict[str, int]]:
        """Read the rows of a part; see `KnownParts.load`."""
        pa = import_arrow()
        first, end, parts = record.first, record.first + record.nsamples, []
        while first < end:
            group = bisect_right(self._starts, first) - 1
            if self._loaded[0] != group:
                self._loaded = group, self._table.file.read_row_group(group)
            stop = min(end, self._starts[group + 1])
            parts.append(self._loaded[1].slice(first - self._starts[group], stop - first))
            first = stop
        rows = pa.concat_tables(parts or [self._table.schema.empty_table()])
        meta = self._table.header
        names = {"key": "key", "bytes": "bytes"}
        own = {rule.digest: (rule.name, of) for rule, of in zip(meta.rules, meta.kinds, strict=True)}
        names.update({name: f"rule {digest}" for digest, (name, _) in own.items()})
        names.update(
            {name: f"size {extension}" for extension, name in meta.sizes.items() if extension in record.extensions}
        )
        table = rows.select(list(names)).rename_columns(list(names.values()))
        return table, {digest: of for digest, (_, of) in own.items()}

    def close(self) -> None:
        self._table.close()


def digest_state(lines: bytes) -> str:
    """The digest by which a table identifies its state."""
    return hashlib.blake2b(lines, digest_size=16).hexdigest()


def _read_state(table: TableFile) -> bytes | None:
    """The state beside a table; None: no state of this table exists."""
    with contextlib.suppress(OSError), open(table.path + STATE_SUFFIX, "rb") as file:
        lines = file.read()
        return lines if digest_state(lines) == table.header.state else None
    return None


def check_versions(table: TableFile, shards: ShardList) -> None:
    """Check that the shards have not changed since their table was made, by the state beside it.

    The check compares the sizes in the index, and the sizes and times of local shards. Shards that differ only in their
    time may have been copied; a warning names them.

    Raises:
        ColumnsError: a shard has another size now.
    """
    records = list(parse_records((_read_state(table) or b"").splitlines(), PartRecord))
    if len(records) != len(shards):
        return
    is_looking = len(shards) <= _LOOKED_AT
    other, later = [], []
    for k, record in enumerate(records):
        url, size, mark = shards.urls[k], shards.filesizes[k], None
        if is_looking and Place(url).is_local:
            found = look_local(absolute(url))
            size, mark = size if found.size is None else found.size, found.mark
        if record.size is not None and size not in (-1, record.size):
            other.append(url)
        elif None not in (mark, record.mark) and mark != record.mark:
            later.append(url)
    if other:
        raise ColumnsError(
            f"{table.path}: {len(other):,} of {len(shards):,} shards have another size than when it was made, such as "
            f"{other[0]}; {CREATE}, which reads only those",
            path=table.path,
            shard=other[0],
        )
    if later:
        logger.warning(
            "%s: %d of %d shards have another time than when it was made, such as %s: if they were rewritten, their "
            "values may have changed; make it again (wids columns create), which reads only those",
            *(table.path, len(later), len(shards), Place(later[0]).public),
        )
