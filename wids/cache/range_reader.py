"""Reading samples of a remote shard member by member, nothing downloaded.

Rules: each member is read together with its header, which must say what the member table says; a table that is stale is
found out before it gives a wrong byte. What a call asks for is read in as few requests as pay, all at the same time.
Once as much has been asked for as the whole shard would have cost, whoever made the reader is told.
"""

from __future__ import annotations

import itertools
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any

from wids.errors import ChangedShardError
from wids.events import RangesRead, emit
from wids.index import headers
from wids.index import table as tables
from wids.index.keys import encode_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.cache.ranges import ShardBytes
    from wids.cache.reader import Blocks
    from wids.events import Hook
    from wids.index.table import MemberTable

_NAME_BYTES = 100  # what fits a header by itself


class RangeReader:
    """One remote shard, read where it is; to its callers it is a `wids.cache.reader.ShardReader`.

    Args:
        source: its bytes.
        table: its member table, from wherever.
        rescan: builds the table anew from the shard's own headers.
        on_spent: called once when reading on like this would have cost more than fetching the shard; ``access="auto"``.
        hooks: told of what is read.

    Attributes:
        url: the shard's resolved URL; also ``path``.
        table: its member table.
        is_leased: False; there is no file.
    """

    is_leased = False

    def __init__(
        self,
        source: ShardBytes,
        *,
        table: MemberTable,
        rescan: Callable[[], MemberTable],
        on_spent: Callable[[], None] | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.url = self.path = source.url
        self.table = table
        self._source, self._rescan, self._on_spent = source, rescan, on_spent
        self._hooks = hooks
        self._has_rescanned = False

    def __len__(self) -> int:
        return self.table.nsamples

    def __repr__(self) -> str:
        return f"<RangeReader {self.url} of {len(self)} samples>"

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)} in {self.url}")
        return self.read(row)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.read, range(len(self)))

    def share(self, blocks: Blocks) -> None:
        """Nothing is read ahead here."""

    def settle(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""
        self._source.close()

    def read(self, row: int) -> dict[str, Any]:
        """Sample ``row`` (0 <= row < len), all members."""
        return self._read_rows([row], None)[0]

    def read_fields(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Sample ``row``, only the members whose extension is in ``fields``."""
        return self._read_rows([row], fields)[0]

    def read_into(
        self,
        samples: list[Any],
        places: Sequence[int],
        indices: Sequence[int],
        first_index: int,
        name: str | None,
        fields: Sequence[str] | None = None,
    ) -> None:
        """As `wids.cache.reader.ShardReader.read_into`; all of it is read at the same time."""
        found = self._read_rows([indices[place] - first_index for place in places], fields)
        for place, sample in zip(places, found, strict=True):
            sample["__dataset__"] = name
            sample["__index__"] = indices[place]
            sample["__shard__"] = self.url
            sample["__shardindex__"] = indices[place] - first_index
            samples[place] = sample

    def _read_rows(self, rows: Sequence[int], fields: Sequence[str] | None) -> list[dict[str, Any]]:
        table = self.table
        members = [
            [m for m in range(table.starts[row], table.starts[row + 1]) if self._is_wanted(m, fields)] for row in rows
        ]
        flat = list(itertools.chain.from_iterable(members))
        offsets, sizes = table.offsets, table.sizes
        source, start = self._source, time.perf_counter()
        before = source.requests, source.read_bytes
        data = source.read_many([(offsets[m] - headers.BLOCK, offsets[m] + sizes[m]) for m in flat])
        event = RangesRead(
            url=self.url,
            requests=source.requests - before[0],
            size_bytes=source.read_bytes - before[1],
            seconds=time.perf_counter() - start,
        )
        emit(self._hooks, event)
        pieces = dict(zip(flat, data, strict=True))
        samples = []
        for row, mine in zip(rows, members, strict=True):
            sample: dict[str, Any] = {}
            for m in mine:
                extension = table.extensions[table.extension_ids[m]]
                self._check(pieces[m], table.key(row) + extension, sizes[m])
                sample[extension] = BytesIO(pieces[m][headers.BLOCK :])
            sample["__key__"] = table.key(row)
            samples.append(sample)
        if self._on_spent is not None and self._source.spent_bytes > table.identity.size:
            on_spent, self._on_spent = self._on_spent, None
            on_spent()
        return samples

    def _is_wanted(self, member: int, fields: Sequence[str] | None) -> bool:
        return fields is None or self.table.extensions[self.table.extension_ids[member]] in fields

    def _check(self, piece: bytes, name: str, size: int) -> None:
        """See that a member's header says what the table says.

        Raises:
            ChangedShardError: it does not, and the shard's headers say another table.
        """
        header = piece[: headers.BLOCK]
        is_header = len(piece) == headers.BLOCK + size and headers.is_sum_right(header)
        if is_header:
            found = headers.join_prefix(headers.until_nul(header[:_NAME_BYTES]), header)
            if found == encode_name(name) and headers.parse_size(header) == size:
                return
        # Extended headers (long names, names beyond ASCII, huge members) stand elsewhere: these are looked at once.
        if is_header and not self._has_rescanned:
            self._has_rescanned = is_same = _are_same(self._rescan(), self.table)
            if is_same:
                return
        if is_header and self._has_rescanned:
            return
        raise ChangedShardError(
            f"{self.url}: {name} is not where its member table says; the table beside the shard is of another version "
            f"of it: make it anew (wids index create --members), or delete {self.url}{tables.SUFFIX}",
            shard=self.url,
        )


def _are_same(one: MemberTable, other: MemberTable) -> bool:
    """Whether two tables put the same members at the same places."""
    return (
        one.nsamples == other.nsamples
        and list(one.offsets) == list(other.offsets)
        and list(one.sizes) == list(other.sizes)
        and list(one.starts) == list(other.starts)
        and list(one.keys()) == list(other.keys())
        and all(list(one.members(row)) == list(other.members(row)) for row in range(one.nsamples))
    )
