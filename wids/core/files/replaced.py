"""Files that a program reads, changes and replaces: no change of another program is lost meanwhile.

Rules: one process at a time replaces a file, under the lock beside it. Under the lock it looks whether the file is the
one that it has read; a file that was deleted has nothing to lose.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from wids.core.files import atomic, locks
from wids.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK_SUFFIX = ".saving"


class ReplacedFile:
    """A file to be replaced; made before the file is read.

    Args:
        path: of the file, absolute.
        advice: for the case that another program has written it; None: that version may be replaced.
    """

    def __init__(self, path: str, *, advice: str | None = "run it again") -> None:
        self._path, self._advice = path, advice
        self._version = _version_of(path)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Only this process replaces the file in the block, in which the file is the one that was read.

        Raises:
            OutputError: another program has written it. OSError: there is no lock, or no directory.
        """
        os.stat(os.path.dirname(self._path))  # the lock would make the directory
        with locks.acquire(self._path + _LOCK_SUFFIX):
            if self._advice is not None and _version_of(self._path) not in (None, self._version):
                words = f"another program has written it since it was read; {self._advice}"
                raise OutputError(f"{self._path}: {words}", path=self._path)
            yield
            self._version = _version_of(self._path)


def _version_of(path: str) -> tuple[int, ...] | None:
    """The version of a file; None: none exists."""
    try:
        return atomic.version_of(path)
    except (OSError, ValueError):  # no file can have such a name
        return None
