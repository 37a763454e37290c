"""Bounding a cache directory from outside of the jobs that fill it: once, or from a background process.

Rules: of a directory, only what `wids.core.cache.space` would evict is deleted: shards that a cache downloaded, unused
and not kept; those that no live job is coming to first. An explicit glob is the caller's own choice: the files that it
matches are deleted, oldest first, wherever they come from. Neither deletes a leased, kept or locked file.
A background process is the only one in its directory; another one waits for its turn, and takes over when the first is
gone. It ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import multiprocessing
import os
import signal
import stat
import time
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wids.core.cache import limits
from wids.core.cache.directory import CLEANUP_LOCK, KEEP_SUFFIX, directory_of
from wids.core.cache.eviction import Entry
from wids.core.cache.space import Excess, Space, evict_from
from wids.core.files import locks
from wids.core.files.holders import find_holders
from wids.core.files.own_folder import LOCK_SUFFIX
from wids.core.order.validation import suggest_names
from wids.core.place import cache_directory
from wids.core.tables import table as tables
from wids.errors import CacheError
from wids.events import Swept, format_size, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from wids.events import Event

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_POLL_SECONDS = 0.1


class Cleaning(NamedTuple):
    """The result of a cleaning.

    Attributes:
        deleted: (path, bytes) of each shard, or of each file that the pattern matches.
        swept: (path, bytes) of each file that a killed process had left behind.
        seconds: its duration.
        excess: shards and bytes over the limits that are left.
    """

    deleted: list[tuple[str, int]]
    swept: list[tuple[str, int]]
    seconds: float
    excess: Excess


@suggest_names
def keep_most_recent_files(
    pattern: str | os.PathLike[str],
    maxsize: int = int(1e12),
    maxfiles: int = 1000,
    debug: bool = False,  # noqa: FBT001, FBT002 - the original's signature
    *,
    dry_run: bool = False,
) -> list[str]:
    """Delete files until the rest fits, those that were not used for longest first.

    Which files count and may go depends on ``pattern``:

    - a directory: the shards that a cache downloaded into it (the upcoming shards of live jobs last), and files that
      killed processes left behind. Any other file stays.
    - a glob pattern, or the path of a file: every file that it matches.

    A shard's saved member table counts with it and is deleted with it. A file stays that is leased by a process that
    reads it, marked to be kept (``.keep`` beside it) or locked, as do directories, lock files and marks.

    Args:
        pattern: a cache directory, or a glob pattern.
        maxsize: limit in bytes.
        maxfiles: limit of the number of files.
        debug: log each deletion as a warning, which is seen without setting up logging.
        dry_run: delete nothing, only log and return the files that would be deleted.

    Returns:
        The paths deleted (with ``dry_run``: that would be), in that order.

    Raises:
        CacheError: a directory cannot be written.

    Example:
        >>> deleted = wids.keep_most_recent_files("train-*.tar", maxfiles=2)
        >>> len(deleted)
        1
    """
    level = logging.WARNING if debug else logging.INFO
    done = clean(os.fspath(pattern), maxsize, maxfiles, is_dry=dry_run, level=level)
    if not dry_run:
        _tell_excess(os.fspath(pattern), done.excess)
    return [path for path, _ in done.deleted]


def clean(pattern: str, maxsize: int, maxfiles: int, *, is_dry: bool = False, level: int = logging.INFO) -> Cleaning:
    """`keep_most_recent_files` without its warning of a limit that was not reached.

    Args:
        pattern: as there.
        maxsize: as there.
        maxfiles: as there.
        is_dry: as ``dry_run``.
        level: of the line of the log about each deletion.

    Raises:
        CacheError: as there.
    """
    text = cache_directory(pattern)
    swept: list[tuple[str, int]] = []
    left: list[Excess] = []
    begin = time.monotonic()

    def note(event: Event) -> None:
        if isinstance(event, Swept):
            swept.append((event.path, event.size_bytes))
            _log_deletion(logging.INFO, "deleted", *swept[-1], ", left behind by a process that is gone")

    if os.path.isdir(text):
        spaces = [Space(text, limit=None, hooks=[note])]
        delete = partial(evict_from, spaces, limit=maxsize, maximum=maxfiles, is_dry=is_dry, report=left.append)
    else:
        spaces = [Space(directory, limit=None) for directory in sorted(_find(text))]
        bounds = {"limit": maxsize, "maximum": maxfiles}
        delete = partial(_delete_matches, text, spaces, **bounds, is_dry=is_dry, report=left.append)
    directories = [space.directory for space in spaces]
    before = [directory.release_request_time() for directory in directories]
    gone = delete()
    end = time.monotonic() + limits.LIMITS.heard_seconds
    while time.monotonic() < end:
        requested = [directory.release_request_time() for directory in directories]
        if requested == before:
            break
        time.sleep(_POLL_SECONDS)  # other processes release what they have open and do not read
        before = requested
        gone += delete()
    for path, size in gone:
        _log_deletion(level, "would delete" if is_dry else "deleted", path, size)
    return Cleaning(gone, swept, time.monotonic() - begin, left[-1])


def _log_deletion(level: int, verb: str, path: str, size: int, why: str = "") -> None:
    details = {"path": path, "size_bytes": size}
    logger.log(level, "cleanup: %s %s (%s)%s", verb, path, format_size(size), why, extra={"details": details})


# Pattern -> the last warning about it: each change is logged once.
_told: dict[str, str] = {}


def _tell_excess(pattern: str, excess: Excess) -> None:
    """Warn that a limit could not be reached, and say why."""
    held = find_holders(excess.refused) if excess.is_exceeded else []
    known = {path for holder in held for path in holder.files}
    reasons = [f"{len(holder.files)} open in {holder}" for holder in held]
    if unknown := len(set(excess.refused) - known):
        reasons.append(f"{unknown} open in processes that cannot be seen from here, or cannot be deleted")
    if excess.denied:
        reasons.append(f"{excess.denied} of other users, which the directory's sticky bit keeps this one from deleting")
    words = "; ".join(reasons) or "they are marked as kept, or are downloads under way"
    if not excess.is_exceeded:
        _told.pop(pattern, None)
    elif _told.get(pattern) != words:
        _told[pattern] = words
        over = [format_size(excess.bytes)] if excess.bytes > 0 else []
        over += [f"{excess.files} files"] if excess.files > 0 else []
        logger.warning("cleanup: %s: %s more than the limit stay: %s", pattern, " and ".join(over), words)


def _find(pattern: str) -> dict[str, dict[str, str]]:
    """The matches of a glob: directory without links in it -> name -> path as matched, each file once."""
    matches: dict[str, dict[str, str]] = {}
    directories: dict[str, str] = {}
    for path in sorted(glob.glob(pattern)):
        parent, name = os.path.split(path)
        if parent not in directories:
            directories[parent] = os.path.realpath(parent)
        matches.setdefault(directories[parent], {}).setdefault(name, path)
    return matches


def _delete_matches(
    pattern: str,
    spaces: Sequence[Space],
    *,
    limit: int,
    maximum: int,
    is_dry: bool,
    report: Callable[[Excess], None],
) -> list[tuple[str, int]]:
    """Delete what a glob matches beyond ``limit`` bytes or ``maximum`` files; as `wids.core.cache.space.evict_from`.

    In directories that no cache uses, nothing is made, not even a lock.
    """
    caches = [space for space in spaces if space.is_used()]
    with contextlib.ExitStack() as locked:
        for space in caches:  # in the order of their names, or two cleaners wait for each other
            locked.enter_context(space.lock())
        matches = list_matches(pattern)
        used = sum(entry.size_bytes for entry in matches)
        excess = Excess(bytes=used - limit, files=len(matches) - maximum)
        candidates = [entry for entry in matches if not entry.is_kept]
        gone = excess.delete(candidates, lambda entry: is_dry or _delete(entry))
    if excess.is_exceeded and not is_dry:
        for space in caches:
            space.request_release()
    report(excess)
    return gone


def list_matches(pattern: str) -> list[Entry]:
    """The files that a glob matches and that count against a limit, each named by its path; the oldest first."""
    paths = (path for names in _find(pattern).values() for path in names.values())
    matches = [entry for path in paths if (entry := _look(path)) is not None]
    return sorted(matches, key=lambda entry: entry.used_ns)


def _look(path: str) -> Entry | None:
    """A file that a glob matches, named by its path; None for anything else, locks, marks, and tables beside shards."""
    if path.endswith((LOCK_SUFFIX, KEEP_SUFFIX)):
        return None
    if path.endswith(tables.SUFFIX) and os.path.lexists(path.removesuffix(tables.SUFFIX)):
        return None
    try:
        status = os.stat(path)
    except OSError:  # deleted meanwhile, or a link to nothing
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    size, used_ns = status.st_size, status.st_mtime_ns
    directory, name = directory_of(path)
    for table in (directory.table(name), path + tables.SUFFIX):
        with contextlib.suppress(OSError):  # opening a cached shard dates its table
            status_of_table = os.stat(table)
            size, used_ns = size + status_of_table.st_size, max(used_ns, status_of_table.st_mtime_ns)
    is_kept = directory.is_kept(name) or os.path.exists(path + KEEP_SUFFIX)
    return Entry(name=path, size_bytes=size, used_ns=used_ns, is_kept=is_kept)


def _delete(entry: Entry) -> bool:
    """Delete a file and its table, unless it is leased or locked."""
    path = entry.name
    directory, name = directory_of(path)
    if locks.is_locked(directory.lock(name)) or locks.is_locked(path + LOCK_SUFFIX):
        return False
    if not Space(directory.path, limit=None).delete(msgspec.structs.replace(entry, name=name)):
        return False
    with contextlib.suppress(OSError):
        os.unlink(path + tables.SUFFIX)
    return True


@suggest_names
def create_cleanup_background_process(
    pattern: str | os.PathLike[str], maxsize: int = int(1e12), maxfiles: int = 1000, every: float = 60
) -> BaseProcess:
    """Start a process that runs `keep_most_recent_files` now and again.

    It ends with this process, or on ``.terminate()``, which the caller may call at any time. A directory that does not
    exist yet is waited for.

    Args:
        pattern: a cache directory, or a glob pattern.
        maxsize: see `keep_most_recent_files`.
        maxfiles: the same for files.
        every: seconds from its end to its next run.

    Example:
        >>> process = wids.create_cleanup_background_process("cache", maxsize=200_000_000_000, every=30)
        >>> process.terminate()
    """
    process = multiprocessing.Process(
        target=_clean_forever,
        args=(cache_directory(pattern), maxsize, maxfiles, every),
        daemon=True,
        name="wids-cleanup",
    )
    with _signals_blocked():
        process.start()
    return process


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold signals back, so that a forked child is not terminated into a handler of the program that swallows it."""
    if multiprocessing.get_start_method() != "fork" or not hasattr(
        signal, "pthread_sigmask"
    ):  # no handlers come along, and a fork server would keep the mask
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _clean_forever(pattern: str, maxsize: int, maxfiles: int, every: float) -> None:
    # A fork brings the program's handlers along, and a cleaner must not save its checkpoint or print its traceback.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    parent_pid = os.getppid()

    def report(outcome: Cleaning | OSError | None) -> None:
        if isinstance(outcome, Cleaning):
            _tell_excess(pattern, outcome.excess)

    clean_repeatedly(
        pattern,
        maxsize=maxsize,
        maxfiles=maxfiles,
        every=every,
        wait=lambda end: _wait_with_parent(end, parent_pid),
        report=report,
    )


def clean_repeatedly(
    pattern: str,
    *,
    maxsize: int,
    maxfiles: int,
    every: float,
    wait: Callable[[float], bool],
    report: Callable[[Cleaning | OSError | None], None] = lambda _: None,
) -> None:
    """Run `keep_most_recent_files` now and every ``every`` seconds, when it is this process's turn.

    Args:
        pattern: as there; what does not exist yet is waited for.
        maxsize: as there.
        maxfiles: as there.
        every: seconds from the start of one round to the next; a turn is requested every two at least.
        wait: waits until so much by the monotonic clock; False: this was the last round.
        report: called after each round with its result, the error that ended it, or None if it was not its turn.
    """
    pattern = cache_directory(pattern)
    turn = _Turn(pattern)
    while True:
        now = time.monotonic()
        end = now + every
        outcome: Cleaning | OSError | None = None
        try:
            if turn.take():
                outcome = clean(pattern, maxsize, maxfiles)
            else:
                end = min(end, now + limits.LIMITS.watch_seconds)
        except OSError as error:  # a file system in trouble: the next round may do
            logger.warning("cleanup of %s: %s", pattern, error)
            outcome = error
        report(outcome)
        if not wait(end):
            return


def _wait_with_parent(end: float, parent_pid: int) -> bool:
    """Wait until ``end`` (of the monotonic clock); False as soon as the parent is gone."""
    parent = multiprocessing.parent_process()
    sentinels = [parent.sentinel] if parent is not None else []
    while True:
        left = end - time.monotonic()
        # Children that were forked after this process hold the other end of its sentinel open when the parent is
        # killed, so the parent's number is looked at too.
        if wait(sentinels, timeout=max(0.0, min(left, limits.LIMITS.watch_seconds))) or os.getppid() != parent_pid:
            return False
        if left <= limits.LIMITS.watch_seconds:
            return True


class _Turn:
    """The lock that makes one process clean a directory at a time; freed by the kernel when that process ends."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._held = contextlib.ExitStack()
        self._is_mine, self._said = False, ""

    def take(self) -> bool:
        """True if it is this process's turn, from here on."""
        if self._is_mine:
            return True
        directory = _directory_of(self._pattern)
        if directory is None:
            self._say(f"{self._pattern} does not exist yet; waiting for it")
            return False
        try:
            held = self._held.enter_context(locks.try_acquire(os.path.join(directory, CLEANUP_LOCK)))
        except CacheError as error:  # it cannot be made here; two cleaners merely look twice
            self._say(f"{directory} has no lock ({error}); cleaning all the same")
            return True
        if held is None:
            self._say(f"another process cleans {directory}; waiting for its turn")
            return False
        self._is_mine = True
        if self._said:
            self._say(f"it is this process's turn to clean {directory}")
        return True

    def _say(self, words: str) -> None:
        """Log each change once."""
        if words != self._said:
            self._said = words
            logger.info("cleanup: %s", words)


def _directory_of(pattern: str) -> str | None:
    """The directory that contains all matches; None if it does not exist (yet)."""
    if os.path.isdir(pattern):
        return pattern
    if not glob.has_magic(pattern) and not os.path.exists(pattern):
        return None
    directory = os.path.dirname(pattern)
    while glob.has_magic(directory):
        directory = os.path.dirname(directory)
    directory = directory or "."
    return directory if os.path.isdir(directory) else None
