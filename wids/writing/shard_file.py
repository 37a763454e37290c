"""One shard during its writing: a part file, its checksums and its member table.

The shard is published when it is complete. The part file is locked during the writing, so an unlocked one is garbage.
It belongs to one process: a forked process has a copy of the buffer, and must not write it again.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from wids.core.files import atomic, locks, system, tempdirs
from wids.core.index.checksums import Checksums
from wids.core.place import Place
from wids.core.tables import headers
from wids.core.tables import table as tables
from wids.core.tables.member_tables import scan_table
from wids.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack

    from typing_extensions import Self

    from wids.core.files.identity import Identity
    from wids.core.tables.table import GroupOptions
    from wids.core.tables.tar import Member

_BUFFER_BYTES = 1 << 20


class ShardFile:
    """A shard during its writing.

    Args:
        path: local; the part file is beside it.
        url: of the finished shard, for messages and its table.
        has_md5: compute its checksums.

    Attributes:
        part: the part file; `finish` closes it and leaves it to the caller.
        nsamples: samples so far.
        member_bytes: size of their members in the archive.

    Raises:
        CacheError: the part file cannot be made.
    """

    part: str
    nsamples: int
    member_bytes: int

    def __init__(self, path: str, *, url: str, has_md5: bool = True) -> None:
        self.part, self._fd = atomic.make_part(path)
        self._url = url
        self._pid = os.getpid()
        self._checksums = Checksums() if has_md5 else None
        self._pending: list[bytes] = []
        self._pending_bytes = self._written = 0
        self._members: list[Member] = []
        self.nsamples = self.member_bytes = 0

    @classmethod
    def begin(cls, url: str, stack: ExitStack, *, work: str, has_md5: bool = True, sweeps: bool = True) -> Self:
        """A new shard, beside its place if that is local, else in a temporary directory.

        Args:
            url: of the finished shard.
            stack: discards it, and removes the directory.
            work: names the directory.
            has_md5: compute its checksums.
            sweeps: remove what killed processes left half written of it, and of its table, at a local place.

        Raises:
            CacheError: the part file cannot be made.
        """
        place = Place(url)
        path = place.absolute.path
        if not place.is_local:
            path = os.path.join(stack.enter_context(tempdirs.directory(work)), place.name)
        elif sweeps:
            locks.remove_parts(path, more=rf"(?:{re.escape(tables.SUFFIX)})?")
        shard = cls(path, url=url, has_md5=has_md5)
        stack.callback(shard.discard)
        return shard

    def scan(self, identity: Identity, grouping: GroupOptions) -> tables.MemberTable:
        """The member table of the finished part file, by a grouping that need not be the standard one.

        Args:
            identity: of the table of `finish`.
            grouping: see `wids.core.tables.table.build_table`.
        """
        fd = os.open(self.part, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return scan_table(fd, self._url, identity, **grouping)
        finally:
            os.close(fd)

    def add(self, members: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the members (name, data) of one sample.

        Raises:
            OutputError: the disk refuses them; discard the shard.
        """
        for name, data in members:
            head = headers.member_head(name, len(data))
            self._members.append((name, self.member_bytes, self.member_bytes + len(head), len(data)))
            self._put(head)
            self._put(data)
            self._put(bytes(-len(data) % headers.BLOCK))
            self.member_bytes = self._written + self._pending_bytes
        self.nsamples += 1

    def copy(self, data: bytes) -> None:
        """Write bytes of another archive as they are, whole blocks; the table of `finish` does not have them.

        Raises:
            OutputError: as `add`.
        """
        self._put(data)
        self.member_bytes += len(data)

    def finish(self) -> tuple[dict[str, Any], tables.MemberTable]:
        """Write the end, and close the part file; return (the index entry without the URL, the member table).

        Raises:
            OutputError: as `add`.
        """
        size = headers.archive_bytes(self.member_bytes)
        self._put(bytes(size - self.member_bytes))
        self._flush()
        digests = {} if self._checksums is None else self._checksums.digests()
        entry: dict[str, Any] = {"nsamples": self.nsamples, "filesize": size, **digests}
        identity = atomic.identify(self._fd, md5=digests.get("md5sum"))
        self._close()
        return entry, tables.build_table(self._members, identity=identity, shard=self._url)

    def discard(self) -> None:
        """Remove the part file, if it still exists. In another process than its maker: do nothing."""
        if self._pid != os.getpid():
            return
        self._pending.clear()
        try:
            self._close()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self.part)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                system.unlock(fd)
            finally:
                os.close(fd)

    def _put(self, data: bytes) -> None:
        if data:
            self._pending.append(data)
            self._pending_bytes += len(data)
        if self._pending_bytes >= _BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        # A large member is not copied once more only to be written with small ones.
        small: list[bytes] = []
        for data in [*self._pending, b""]:
            if data and len(data) < _BUFFER_BYTES:
                small.append(data)
                continue
            self._write(b"".join(small))
            small.clear()
            self._write(data)
        self._pending.clear()
        self._pending_bytes = 0

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._checksums is not None:
            self._checksums.update(data)
        try:
            system.write_all(self._fd, data, self._written)
        except OSError as error:
            advice = system.advice_on_writing(error)
            raise OutputError(
                f"{self._url}: cannot be written ({error}); {advice}, or write elsewhere", url=self._url
            ) from error
        self._written += len(data)
