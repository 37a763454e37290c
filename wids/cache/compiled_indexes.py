"""Compiled indexes in a cache directory: the first process of a machine writes one, the others map it.

    .wids/indexes/DIGEST.widsx      a compiled index (`wids.index.compiled`); DIGEST: of all that it was made from
    .wids/indexes/DIGEST.tables     the directory of a pack of member tables (`wids.cache.table_packs`)
    .wids/indexes/DIGEST.source     which of them a local JSON file is, as long as its size, times and inode are these
    .wids/indexes/DIGEST.checked    likewise, that the checksum of a compiled index was compared; DIGEST: of its path
    .wids/indexes/DIGEST.parquet    a copy of a remote table of columns; DIGEST: of its URL and version
    .wids/indexes/DIGEST.rows       the rows of a remote view (`wids.cache.view_rows`)
    .wids/indexes/DIGEST.untabled   shards without member tables beside them (`wids.cache.published_tables`)

Rules: a file appears whole, by ``os.replace``, and is never changed; an index is named by its content's digest, so two
writers write the same. All kinds of file are their user's alone, and those of another user are not looked at: an index
names the servers that credentials go to. They count neither as shards nor against ``cache_size``, and no cleaner
deletes them; those that were not opened for a month are deleted when the next one is written. Where the directory
cannot be used, there are none, and each process parses its index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from typing import TYPE_CHECKING

import msgspec

from wids.cache.directory import CacheDirectory
from wids.errors import CacheError, WidsError
from wids.events import logger
from wids.index import table_pack, view_file
from wids.index.compiled import SUFFIX
from wids.osfiles import atomic, locks, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COPY_SUFFIX, UNTABLED_SUFFIX = ".parquet", ".untabled"
_SOURCE_SUFFIX, _CHECKED_SUFFIX = ".source", ".checked"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIXES = "|".join(
    map(
        re.escape,
        (
            *(SUFFIX, _SOURCE_SUFFIX, _CHECKED_SUFFIX, COPY_SUFFIX, UNTABLED_SUFFIX),
            *(table_pack.SUFFIX, view_file.SUFFIX),
        ),
    )
)
_OWN_NAME = re.compile(rf"[0-9a-f]{{64}}(?:{_SUFFIXES})")
_PART = re.compile(rf"{_OWN_NAME.pattern}\.[0-9]+-[0-9a-f]{{8}}\.part")
_UNUSED_SECONDS = 30 * 86_400.0
# So often a file's time says that it is used; another time costs a look at its checksum.
_USED_SECONDS = 86_400.0
# A file that changes again within the tick of a clock may keep its times.
_SETTLED_NS = 2_000_000_000
_MODE = 0o600


class FileStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tells one state of a local file from all others."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class _SourceNote(msgspec.Struct, frozen=True, kw_only=True):
    status: FileStatus
    digest: str


def look_at(path: str) -> FileStatus | None:
    """The state of a regular file; None: there is none, or it was written just now."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status_of(status) if stat.S_ISREG(status.st_mode) and _is_settled(status) else None


def _is_settled(status: os.stat_result) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) <= time.time_ns() - _SETTLED_NS


def status_of(status: os.stat_result) -> FileStatus:
    """The state of a file that was asked for."""
    return FileStatus(
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        device=status.st_dev,
    )


def _key_of(path: str) -> str:
    return hashlib.blake2b(b"checked " + os.fsencode(path), digest_size=32).hexdigest()


class CompiledIndexes:
    """The compiled indexes of one cache directory, or its other files that are made and shared like these.

    Args:
        directory: the cache directory, which is made when something is written.
        suffix: of the files.
    """

    def __init__(self, directory: str, *, suffix: str = SUFFIX) -> None:
        self._suffix = suffix
        self._directory = CacheDirectory(os.path.abspath(os.path.expanduser(directory)))

    def path(self, digest: str) -> str:
        """Where the compiled index of a digest (64 hexadecimal digits) lies, or would."""
        return os.path.join(self._directory.indexes, digest + self._suffix)

    def is_used(self) -> bool:
        """Whether a cache has used the directory before."""
        return os.path.isdir(self._directory.own)

    def map(self, digest: str) -> memoryview | None:
        """Its bytes, mapped; None: there is none of this user's own."""
        found = self.open(digest)
        return None if found is None else found[0]

    def open(self, digest: str) -> tuple[memoryview, os.stat_result] | None:
        """As `map`, with the state of the file."""
        path = self.path(digest)
        with contextlib.suppress(OSError):
            self._check_directory()
            data, status = atomic.map_file(path)
            if status.st_uid == system.user_id():
                if status.st_mtime < time.time() - _USED_SECONDS:
                    os.utime(path)
                    status = os.stat(path)
                return data, status
        return None

    def recall(self, key: str, status: FileStatus) -> str | None:
        """The digest that was remembered for a file as it is now.

        Args:
            key: 64 hexadecimal digits for the file's path, and for how it is parsed.
            status: of the file.
        """
        return self._read_note(self._note(key), status)

    def _read_note(self, path: str, status: FileStatus) -> str | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._check_directory()
            fd, _ = atomic.open_file(path)
            try:
                is_own = os.fstat(fd).st_uid == system.user_id()
                note = msgspec.json.decode(system.pread(fd, 4096, 0), type=_SourceNote)
            finally:
                os.close(fd)
            if is_own and note.status == status and _DIGEST.fullmatch(note.digest):
                return note.digest
        return None

    def remember(self, key: str, status: FileStatus, digest: str) -> None:
        """Let `recall` find a digest; best effort."""
        self._write_note(self._note(key), status, digest)

    def _write_note(self, path: str, status: FileStatus, digest: str) -> None:
        if self._read_note(path, status) == digest:
            return
        data = msgspec.json.encode(_SourceNote(status=status, digest=digest))
        with contextlib.suppress(OSError):
            self._publish(path, lambda _, fd: system.write_all(fd, data, 0))

    def is_checked(self, path: str, status: os.stat_result) -> bool:
        """Whether the checksum of a file was compared as it is now."""
        key = _key_of(path)
        return self._read_note(self._note(key, _CHECKED_SUFFIX), status_of(status)) == key

    def note_checked(self, path: str, status: os.stat_result | None = None) -> None:
        """Let `is_checked` know; best effort. ``status``: of the file; None: this process wrote it just now."""
        with contextlib.suppress(OSError):
            if status is None or _is_settled(status):
                key = _key_of(path)
                self._write_note(self._note(key, _CHECKED_SUFFIX), status_of(status or os.stat(path)), key)

    @contextlib.contextmanager
    def writing(self, digest: str) -> Iterator[None]:
        """Of several processes, one at a time is in this block; where there are no locks here, all are."""
        with contextlib.ExitStack() as stack:
            try:
                self._make()
                lock = self._directory.lock(digest + self._suffix)
                stack.enter_context(locks.acquire(lock, mode=self._directory.lock_mode()))
            except OSError as error:
                logger.debug("%s: no lock for a compiled index (%s)", self._directory.path, error)
            yield

    @contextlib.contextmanager
    def trying(self, digest: str) -> Iterator[bool]:
        """As `writing` without a wait: whether no other process is in such a block; True where there are no locks."""
        with contextlib.ExitStack() as stack:
            is_alone = True
            try:
                self._make()
                lock = self._directory.lock(digest + self._suffix)
                is_alone = stack.enter_context(locks.try_acquire(lock, mode=self._directory.lock_mode())) is not None
            except OSError as error:
                logger.debug("%s: no lock for a compiled index (%s)", self._directory.path, error)
            yield is_alone

    def publish(self, digest: str, write: Callable[[str, int], None]) -> bool:
        """Publish a compiled index; False: that cannot be done here.

        Args:
            digest: see `path`.
            write: called with the path of a part file and its descriptor; puts the index there.

        Raises:
            WidsError: of ``write``, but for `CacheError`. Nothing is published then.
        """
        try:
            self._publish(self.path(digest), write)
            self._sweep()
        except OSError as error:
            if isinstance(error, WidsError) and not isinstance(error, CacheError):
                raise
            logger.info(
                "%s: a %s file cannot be kept here, so that each process reads what it holds for itself (%s)",
                self._directory.path,
                self._suffix,
                error,
            )
            return False
        return True

    def remove(self, digest: str) -> None:
        """Delete a compiled index that turned out to be damaged."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(digest))

    def _publish(self, path: str, write: Callable[[str, int], None]) -> None:
        self._make()
        with atomic.part_file(self._directory.staging(os.path.basename(path))) as (part, fd):
            os.fchmod(fd, _MODE)
            write(part, fd)
            os.fsync(fd)  # what columns hold is not checked each time that they are mapped
            os.replace(part, path)

    def _note(self, key: str, suffix: str = _SOURCE_SUFFIX) -> str:
        return os.path.join(self._directory.indexes, key + suffix)

    def _is_private(self) -> bool:
        return self._directory.path == atomic.private_dir()

    def _check_directory(self) -> None:
        if self._is_private():
            atomic.check_owner(self._directory.path)

    def _make(self) -> None:
        self._check_directory()
        atomic.make_directory(self._directory.path, is_private=self._is_private())
        self._directory.make_indexes()

    def _sweep(self) -> None:
        """Delete files that were not opened for long, and those that killed processes left half written."""
        oldest = time.time() - _UNUSED_SECONDS
        for folder, pattern in ((self._directory.indexes, _OWN_NAME), (self._directory.own, _PART)):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    path = os.path.join(folder, name)
                    if not pattern.fullmatch(name):
                        continue
                    with contextlib.suppress(OSError):  # another user's, or gone
                        is_old = os.stat(path).st_mtime < oldest
                        if locks.is_locked(path) is False if pattern is _PART else is_old:
                            os.unlink(path)
