"""The protocol of readers of one open shard, and the error of closed ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeAlias

from wids.core.tables import member_tables
from wids.events import Opened, RepeatedKeys, emit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.core.tables.fields import Wanted
    from wids.core.tables.table import MemberTable
    from wids.events import Hook

Sample: TypeAlias = dict[str, Any]


class RowPart(NamedTuple):
    """Bytes ``lo .. hi`` of one member (0 <= lo <= hi), fewer at its end.

    Attributes:
        row: of the sample.
        name: extension of the member, as the table has it.
        lo: counted from the member's first byte.
        hi: their end, exclusive.
    """

    row: int
    name: str
    lo: int
    hi: int


class Rows(Protocol):
    """``shard[row]``, ``len(shard)`` and iteration over its samples.

    Attributes:
        path: the local file that is read, or the URL.
        table: its member table.
    """

    __slots__ = ()

    @property
    def path(self) -> str:
        """Path of the file; see above."""

    @property
    def table(self) -> MemberTable:
        """The member table; see above."""

    def read(self, row: int, fields: Wanted = None) -> Sample:
        """Sample ``row`` (0 <= row < samples) as a dict of extension -> ``io.BytesIO``, plus ``__key__``.

        Args:
            row: of the sample.
            fields: extensions of the members to read, in any case, or all but some; no other byte is touched. None:
                all of them.

        Raises:
            ClosedReaderError: it was closed, or the shard is to be read in another way: open it again.
            ShardError: the shard cannot be read, or has changed.
        """

    def __len__(self) -> int:
        return self.table.nsamples

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path} of {len(self)} samples>"

    def __getitem__(self, row: int) -> Sample:
        if not 0 <= row < len(self):
            raise IndexError(f"sample {row} of {len(self)} in {self.path}")
        return self.read(row)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.read, range(len(self)))

    def __reduce__(self) -> NoReturn:
        # A copy would hold the same descriptor, and close it under the other.
        raise TypeError("an open shard can be neither copied nor pickled; copy the dataset, which opens its own")


class Reader(Rows, Protocol):
    """One open shard, complete when it is constructed. It owns its descriptor, and its lease if it has one.

    Threads share it. Any of them may close it, and it closes when the last read that is under way ends; from then on
    reads of the shard raise `ClosedReaderError`. A reader may also close itself.

    Attributes:
        url: the shard's resolved URL.
        is_leased: its file is in the cache, and stays there as long as it is open.
        is_remote: each read waits for a server.
        version: differs where another reader of the shard reads other bytes of the same layout; ``""``: not known, or
            not yet.
    """

    __slots__ = ()
    is_remote: ClassVar[bool] = False

    @property
    def url(self) -> str:
        """URL of the shard; see above."""

    @property
    def is_leased(self) -> bool:
        """True if its file stays in the cache; see above."""

    def read_rows(self, rows: Sequence[int], fields: Wanted = None) -> list[Sample]:
        """`read` of each row; in ascending order, the file is read forwards."""

    def expect(self, rows: Sequence[int], fields: Wanted = None) -> None:  # noqa: ARG002 - not all readers can
        """Prepare reads of these samples, if that takes no time; they come soon, in any order."""
        return

    @property
    def version(self) -> str:
        """Version of its bytes; see above."""

    def read_parts(self, parts: Sequence[RowPart]) -> list[bytes]:
        """The bytes of parts of members, in their order; of the members nothing else is read.

        Raises:
            KeyError: a sample has no such member. ClosedReaderError, ShardError: see `read`.
        """

    def pin(self) -> bool:
        """Let reads continue until `unpin`, even if it is closed meanwhile; False: it is closed already."""

    def unpin(self) -> None:
        """End a `pin`."""

    def close(self) -> None:
        """Release file and lease, now or when the last read ends."""


def announce(hooks: Sequence[Hook], reader: Reader, *, has_saved_table: bool, start: float) -> None:
    """Tell hooks of an opened shard."""
    table = reader.table
    if table.nrepeated:
        emit(hooks, RepeatedKeys(url=reader.url, count=table.nrepeated))
    member_tables.announce(hooks, reader.url, table)
    emit(
        hooks,
        Opened(
            url=reader.url,
            path=reader.path,
            nsamples=table.nsamples,
            has_saved_table=has_saved_table,
            seconds=time.perf_counter() - start,
        ),
    )
