"""Open files that several threads read, and any of them, or another one, may close.

A descriptor that is closed while another thread reads through it may already be another file's. So each read counts as
a use while it lasts, and `close` takes effect with the end of the last use that is under way; from the call on, new
ones are refused with `ClosedFileError`. A caller that must be able to finish pins the file: until it unpins it, uses
are still let in.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from typing import TYPE_CHECKING

from wids.core.files import atomic, finalizers, forks
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from wids.core.files.identity import Identity


class ClosedFileError(Exception):
    """The file was closed, or is to be closed when the uses that are under way end."""


class Closable:
    """Something that is used by several threads and ended once, after the last use.

    A use says that it begins, and then looks whether the thing is closed; `close` says that it is closed, and then
    looks whether there are uses. So one of the two sees the other, and a use takes no lock.

    Attributes:
        uses: an item for each use that is under way.
        is_closed: `close` was called; some uses may not have ended.
    """

    is_closed: bool
    __slots__ = ("__weakref__", "_is_ended", "_pins", "is_closed", "uses")

    def __init__(self) -> None:
        self._is_ended = self.is_closed = False
        self._begin()

    def _begin(self) -> None:
        self.uses: list[None] = []
        self._pins: list[None] = []

    def pin(self) -> bool:
        """Let uses in until `unpin`, even if it is closed meanwhile; False: it is closed already."""
        self._pins.append(None)
        if self.is_closed:
            self.unpin()
            return False
        return True

    def unpin(self) -> None:
        """End a `pin`."""
        self._pins.pop()
        if self.is_closed:
            self.end_if_unused()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keep it from ending in this block.

        Raises:
            ClosedFileError: it is closed.
        """
        uses = self.uses
        uses.append(None)
        try:
            if self.is_closed:
                self.check_pinned()
            yield
        finally:
            uses.pop()
            if self.is_closed:
                self.end_if_unused()

    def check_pinned(self) -> None:
        """Allow a use to continue after the file was closed.

        Raises:
            ClosedFileError: it may not.
        """
        with forks.lock:
            if self._is_ended or not self._pins:
                raise ClosedFileError

    def close(self) -> None:
        """End it now, or with the last use that is under way."""
        self.is_closed = True
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """After `close`: end it if no use is under way."""
        # In one step for other threads and for a fork: a child must not find it ended, its descriptor still open.
        with forks.lock:
            if not (self._is_ended or self.uses or self._pins):
                self._is_ended = True
                self._end()

    def _end(self) -> None:
        """Release its resources; called once."""
        return


class OpenFile(Closable):
    """An open regular file.

    Attributes:
        fd: its descriptor; -1 when it was closed.
        mapped: a memory map of its bytes, or None.
        is_inherited: a forked child may read through its copy of the descriptor.

    Args:
        fd: its descriptor, which this closes.
    """

    fd: int
    __slots__ = ("fd", "mapped")

    is_inherited = True

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.mapped: mmap.mmap | None = None
        self.fd = fd  # from here on this closes it
        forks.reset_in_child(self)

    @classmethod
    def open(cls, path: str) -> tuple[Self, Identity]:
        """A regular file, opened, and its identity.

        Raises:
            OSError: it cannot be opened; see `wids.core.files.atomic.open_file`.
        """
        with forks.lock:  # no child has a copy that is not noted
            file = cls(-1)
            file.fd, identity = atomic.open_file(path)  # which an interrupt then leaves to its finalizer
            return file, identity

    def closing_on_error(self) -> atomic.ClosingOnError:
        """Close it if the block fails; otherwise it continues to its next owner."""
        return atomic.ClosingOnError(self.close)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and getattr(self, "fd", -1) >= 0:  # it has one, and was not closed
            self._begin()  # uses that an interrupt kept from ending
            finalizers.end(self.close)

    def begin(self) -> bool:
        """Take all that long reading needs; False: not available."""
        return True

    def take_over(self, other: OpenFile) -> None:
        """Go on with another open file, under this one's descriptor; reads under way end with the file of before."""
        with forks.lock:
            os.dup2(other.fd, self.fd, inheritable=False)

    def map(self, size: int) -> None:
        """Read its first ``size`` bytes through a memory map from here on, where the file system has maps.

        Raises:
            ValueError: the file is shorter.
        """
        try:
            self.mapped = mmap.mmap(self.fd, size, access=mmap.ACCESS_READ)
        except OSError as error:  # not every file system has maps, and address space has its bound
            logger.debug("read without a memory map (%s)", error)

    def start_child(self) -> None:
        """Close the descriptor in a child, if it is not for children; see `wids.core.files.forks`."""
        self._begin()
        if self.is_closed or not self.is_inherited:
            self.close()

    def _end(self) -> None:
        fd, self.fd = self.fd, -1
        mapped, self.mapped = self.mapped, None
        if mapped is not None:
            mapped.close()  # it has a copy of the descriptor
        if fd >= 0:  # it could be opened
            os.close(fd)
