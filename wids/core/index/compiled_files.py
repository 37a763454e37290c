"""Compiled indexes in a cache directory (`wids.core.files.shared_files`), and notes of those that were checked.

    .wids/indexes/KEY.widsx         a compiled index (`wids.core.index.compiled`)
    .wids/indexes/KEY.source        the digest of a local JSON file, valid for this size, times and inode
    .wids/indexes/KEY.checked       a note that the checksum of a compiled index was compared; KEY: of its path

An index names the servers that credentials go to: another user's is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wids.core.files.json_text import JsonParser
from wids.core.files.shared_files import SharedFiles
from wids.core.index.compiled import SUFFIX
from wids.errors import JsonError

if TYPE_CHECKING:
    from wids.core.files.shared_files import SharedFile

_DIGEST = re.compile(r"[0-9a-f]{64}")


class CompiledLimits(NamedTuple):
    """The indexes that are compiled and compared. Tests replace the default.

    Attributes:
        min_shards: a smaller index is parsed in a tenth of a second, and pickled in a few MB.
        min_row_bytes: the shortest entry of a shard in an index.
        checked_bytes: the checksum of a smaller compiled index is compared at each opening, in half a millisecond.
        settled_ns: a file that changes twice within one tick of the clock may keep its times.
    """

    min_shards: int = 20_000
    min_row_bytes: int = 25
    checked_bytes: int = 1 << 20
    settled_ns: int = 2_000_000_000


LIMITS = CompiledLimits()


class FileStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The properties that identify one state of a local file."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class _StateNote(msgspec.Struct, frozen=True, kw_only=True):
    status: FileStatus
    digest: str


def look_at(path: str) -> FileStatus | None:
    """The state of a regular file; None: none exists, or it was written just now."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status_of(status) if stat.S_ISREG(status.st_mode) and _is_settled(status) else None


def _is_settled(status: os.stat_result) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) <= time.time_ns() - LIMITS.settled_ns


def status_of(status: os.stat_result) -> FileStatus:
    """The state of a file that was requested."""
    return FileStatus(
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        device=status.st_dev,
    )


def _key_of(path: str) -> str:
    return hashlib.blake2b(b"checked " + os.fsencode(path), digest_size=32).hexdigest()


_NOTES = JsonParser(_StateNote)


class CompiledIndexes(SharedFiles):
    """The compiled indexes of one cache directory.

    Args:
        directory: the cache directory; the first write makes it.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory, SUFFIX)
        self._sources, self._checked = SharedFiles(directory, ".source"), SharedFiles(directory, ".checked")

    def recall(self, key: str, status: FileStatus) -> str | None:
        """The digest that was remembered for the present state of a file.

        Args:
            key: 64 hexadecimal digits for the file's path, and for the settings of parsing it.
            status: of the file.
        """
        return _read_note(self._sources.open(key), status)

    def remember(self, key: str, status: FileStatus, digest: str) -> None:
        """Let `recall` find a digest; best effort."""
        if self.recall(key, status) != digest:
            self._sources.put(key, msgspec.json.encode(_StateNote(status=status, digest=digest)))

    def is_checked(self, path: str, status: os.stat_result) -> bool:
        """True if the checksum of the present state of a file was compared."""
        key = _key_of(path)
        return _read_note(self._checked.open(key), status_of(status)) == key

    def note_checked(self, path: str, status: os.stat_result | None = None) -> None:
        """Let `is_checked` know; best effort. ``status``: of the file; None: this process wrote it just now."""
        with contextlib.suppress(OSError):
            if status is None or _is_settled(status):
                note = _StateNote(status=status_of(status or os.stat(path)), digest=_key_of(path))
                self._checked.put(note.digest, msgspec.json.encode(note))


def _read_note(file: SharedFile | None, status: FileStatus) -> str | None:
    if file is not None:
        with contextlib.suppress(JsonError):
            note = _NOTES.parse(file.data)
            if note.status == status and _DIGEST.fullmatch(note.digest):
                return note.digest
    return None
