"""Directories for files that are needed only while something runs, in the system's temporary directory.

Rules: beside each is a file that its process holds locked, made before the directory and gone after it. So one whose
file no process holds was left by one that was killed, and the next that needs a directory removes it. Where there
are no such locks, nothing is swept.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from wids.core.files import atomic, forks, system
from wids.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SUFFIX = ".part"
_MARK = re.compile(r"wids-[a-z]+\.[0-9]+-[0-9a-f]{8}\.part")


@contextlib.contextmanager
def directory(purpose: str) -> Iterator[str]:
    """A directory of our own while the block runs; those of killed processes go first.

    Args:
        purpose: lower-case letters; its name begins with ``wids-`` and these.

    Raises:
        CacheError: it cannot be made.
    """
    try:
        with forks.lock:  # tempfile looks for it once, under a lock
            root = tempfile.gettempdir()
        sweep(root)
        path, mark, fd = _make(os.path.join(root, f"wids-{purpose}"))
    except OSError as error:
        raise CacheError(
            f"no temporary directory can be made ({error}); set $TMPDIR to a place that has room"
        ) from error
    owner = os.getpid()
    with contextlib.ExitStack() as stack:  # the last goes first, and each goes whatever a signal raises in another
        stack.callback(os.close, fd)
        stack.callback(_in_process, owner, system.unlock, fd)  # not only closed: a forked process has a copy
        for _ in range(2):  # a signal may leave the first time half done
            stack.callback(_in_process, owner, _remove, path, mark)
        yield path


def _in_process(owner: int, function: Callable[..., None], *args: Any) -> None:
    if os.getpid() == owner:  # a forked process that leaves the block has a copy of its parent's
        function(*args)


def _make(prefix: str) -> tuple[str, str, int]:
    """(directory, its mark, the mark's descriptor, locked)."""
    mark, fd = atomic.make_part(prefix)
    path = mark.removesuffix(_SUFFIX)
    with atomic.closing_on_error(fd):
        try:
            os.mkdir(path, 0o700)
        except BaseException as error:
            # With an OSError there is no directory of ours: another process may have taken the name, and keeps it.
            # A signal raises when the call returns, which has made the directory.
            if not isinstance(error, OSError):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            os.unlink(mark)
            raise
    return path, mark, fd


def sweep(root: str) -> None:
    """Remove the directories in ``root`` that killed processes of this user left behind."""
    with contextlib.suppress(OSError):
        for name in os.listdir(root):
            if _MARK.fullmatch(name):
                with contextlib.suppress(OSError):  # it is another user's, or went by itself
                    _remove_unlocked(os.path.join(root, name))


def _remove_unlocked(mark: str) -> None:
    fd = os.open(mark, system.WRITE_FLAGS | getattr(os, "O_NOFOLLOW", 0))
    try:
        if os.fstat(fd).st_uid == system.user_id() and system.try_lock(fd, is_shared=False):
            _remove(mark.removesuffix(_SUFFIX), mark)
    finally:
        os.close(fd)


def _remove(path: str, mark: str) -> None:
    """Remove a directory, then its mark; what a thread that did not end in time wrote meanwhile, is swept later."""
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        with contextlib.suppress(OSError):
            os.unlink(mark)
