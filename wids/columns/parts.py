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
from wids.columns.extract import PartFacts, write_stream
from wids.columns.file import CREATE, open_table, read_facts
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
    from wids.columns.file import TableFacts, TableFile
    from wids.core.index.shardlist import ShardList

PARTS_SUFFIX = ".parts"
# What a file of a part is called, also one that was being written.
_PART = re.compile(r"[0-9a-f]{32}\.arrow(?:\.[0-9]+-[0-9a-f]{8}\.part)?")
# Of more shards than so many, no file is looked at: on a file system of the network that would take a minute.
_LOOKED_AT = 20_000


class KnownParts(KnownShards[PartFacts]):
    """The known parts; the caller closes them.

    Args:
        output: path of the table.

    Attributes:
        earlier: the record of the existing table, if it has one that can be read.

    Raises:
        OutputError: its directory cannot be written. OutputExistsError: another process makes it, or other files
            have these names.
    """

    earlier: TableFacts | None

    def __init__(self, output: str) -> None:
        self._output, self._folder = output, output + PARTS_SUFFIX
        self._before: _Before | None = None
        super().__init__(
            output,
            PartFacts,
            writer="wids columns create",
            is_current=self._open_before,
            is_known=self._is_there,
        )
        with atomic.ClosingOnError(self.close):
            for path in (output, output + STATE_SUFFIX):
                locks.remove_parts(path)
            self.earlier = read_facts(output)

    def add_part(self, part: Part) -> PartFacts:
        """Store a part that was read, with the columns of the earlier record that it lacks.

        Returns:
            Its record.

        Raises:
            OSError: it cannot be written. ColumnsError: the earlier columns are damaged.
        """
        os.makedirs(self._folder, exist_ok=True)
        facts, data = msgspec.structs.replace(part.facts, url=absolute(part.facts.url)), part.data or b""
        if part.is_rest:
            known = self.records[facts.url]
            facts = msgspec.structs.replace(facts, columns={**known.columns, **facts.columns})
            data = self._whole(known, data)
        atomic.write_atomically(self._path(facts), data)
        self.add(facts)
        return facts

    def _whole(self, known: PartFacts, rest: bytes) -> bytes:
        """The columns of a part, as an Arrow stream: those of an earlier record, and the others."""
        pa = import_arrow()
        earlier, of = self.load(known)
        table = pa.ipc.open_stream(rest).read_all()
        for digest, each in known.columns.items():
            array = kinds.convert(earlier[f"rule {digest}"], each.kinds, of=of[digest], to=each.kinds)
            table = table.append_column(f"rule {digest}", array)
        return write_stream(table)

    def load(self, facts: PartFacts) -> tuple[Any, dict[str, int]]:
        """The columns of a part.

        Returns:
            A table with the names of `wids.columns.extract.Part`; digest of a rule -> the kinds of the whole that the
            part was part of.

        Raises:
            ColumnsError: it is damaged.
        """
        pa = import_arrow()
        try:
            return self._load(facts)
        except (OSError, pa.ArrowException) as error:
            what, bad = self._output, self._output + STATE_SUFFIX  # the rules stay in the table
            if facts.first < 0:
                what = bad = self._folder
            raise ColumnsError(f"{what}: is damaged ({error}); delete {bad}, and run it again", path=what) from error

    def _load(self, facts: PartFacts) -> tuple[Any, dict[str, int]]:
        if facts.first >= 0 and self._before is not None:
            return self._before.read(facts)
        pa = import_arrow()
        whole = msgspec.structs.replace(facts, url=absolute(facts.url))
        with pa.OSFile(self._path(whole)) as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all(), {digest: each.kinds for digest, each in facts.columns.items()}

    def is_current(self, facts: TableFacts) -> bool:
        """Whether the existing table is that of these facts."""
        return self._before is not None and self._before.facts == facts

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

    def _path(self, facts: PartFacts) -> str:
        url = self.relative(facts).url
        name = hashlib.blake2b(url.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return os.path.join(self._folder, name + ".arrow")

    def _is_there(self, facts: PartFacts) -> bool:
        """Whether the columns of a record are in the table or in a part."""
        return facts.first >= 0 or os.path.isfile(self._path(facts))

    def _open_before(self, state: bytes) -> bool:
        """Open the existing table; whether the state belongs to it."""
        with contextlib.suppress(OSError, ColumnsError):
            table = open_table(self._output)
            has_rules = len(table.facts.rules) == len(table.facts.columns)
            if has_rules and digest_state(state) == table.facts.state:
                self._before = _Before(table)
                return True
            table.close()
        return False


class _Before:
    """Parts of the table of an earlier run."""

    def __init__(self, table: TableFile) -> None:
        self._table, self.facts = table, table.facts
        meta = table.file.metadata
        self._starts = [0]
        for group in range(meta.num_row_groups):
            self._starts.append(self._starts[-1] + meta.row_group(group).num_rows)
        self._loaded: tuple[int, Any] = (-1, None)

    def read(self, facts: PartFacts) -> tuple[Any, dict[str, int]]:
        """See `KnownParts.load`."""
        pa = import_arrow()
        first, end, parts = facts.first, facts.first + facts.nsamples, []
        while first < end:
            group = bisect_right(self._starts, first) - 1
            if self._loaded[0] != group:
                self._loaded = group, self._table.file.read_row_group(group)
            stop = min(end, self._starts[group + 1])
            parts.append(self._loaded[1].slice(first - self._starts[group], stop - first))
            first = stop
        rows = pa.concat_tables(parts or [self._table.schema.empty_table()])
        meta = self._table.facts
        names = {"key": "key", "bytes": "bytes"}
        own = {rule.digest: (rule.name, of) for rule, of in zip(meta.rules, meta.kinds, strict=True)}
        names.update({name: f"rule {digest}" for digest, (name, _) in own.items()})
        names.update(
            {name: f"size {extension}" for extension, name in meta.sizes.items() if extension in facts.extensions}
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
        return lines if digest_state(lines) == table.facts.state else None
    return None


def check_versions(table: TableFile, shards: ShardList) -> None:
    """Check that the shards have not changed since their table was made, by the state beside it.

    The check compares the sizes in the index, and the sizes and times of local shards. Shards that differ only in their
    time may have been copied; a warning names them.

    Raises:
        ColumnsError: a shard has another size now.
    """
    records = list(parse_records((_read_state(table) or b"").splitlines(), PartFacts))
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
