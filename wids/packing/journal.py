"""What a run has finished, so that the next one goes on where it was ended.

Rules: one JSON line for each shard, beside the index, gone when the index is there. A line that is cut short counts for
nothing. It is there before the first shard is, so that shards without a line are known for those of the run. Whoever
writes it locally holds it locked. A remote one is put anew every few seconds: what a killed run had finished since is
written again.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec

from wids.cache import system
from wids.cache.target import local_path
from wids.errors import WidsError
from wids.index import urls
from wids.packing.shard import Done

if TYPE_CHECKING:
    from wids.cache.target import Target

SUFFIX = ".packing"
_PUT_SECONDS = 5.0
_HEADER = b'{"what": "shards that wids pack has finished; run it again to go on"}'


class Journal:
    """The journal of the index at ``index_url``; to be closed.

    Attributes:
        before: what earlier runs finished, by number.
        was_there: there was an earlier run, and it did not come to its end.
        is_begun: it is there.

    Raises:
        WidsError: another run writes it, or it cannot be written.
    """

    def __init__(self, target: Target, index_url: str) -> None:
        self._target, self._url = target, index_url + SUFFIX
        self._lines: list[bytes] = []
        self.is_begun = False
        self._put_at = time.monotonic()
        self._fd = -1
        if urls.is_local(self._url):
            self._fd, data = _open_locked(local_path(self._url))
        else:
            data = target.get_bytes(self._url) or b""
        self.was_there = bool(data)
        self.before: dict[int, Done] = {}
        for line in data.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError):
                done = msgspec.json.decode(line, type=Done)
                self.before[done.k] = done
                self._lines.append(line)

    def begin(self) -> None:
        """Have it there, before any shard.

        Raises:
            WidsError: it cannot be written.
        """
        self.is_begun = True
        self._write(_HEADER)
        if self._fd < 0:
            self._put()

    def add(self, done: Done) -> None:
        """A shard is there.

        Raises:
            WidsError: that cannot be written down.
        """
        line = msgspec.json.encode(done)
        self._lines.append(line)
        self._write(line)
        if self._fd < 0 and time.monotonic() - self._put_at > _PUT_SECONDS:
            self._put()

    def _write(self, line: bytes) -> None:
        if self._fd >= 0:
            try:
                os.write(self._fd, b"\n" + line + b"\n")  # the line before may have been cut short
            except OSError as error:
                raise WidsError(f"{self._url}: cannot be written ({error}); free space, and run it again") from error

    def close(self) -> None:
        """Leave it for the next run."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not (self.is_begun or self.was_there):
                _unlink(local_path(self._url))
            os.close(fd)
        elif self.is_begun and not urls.is_local(self._url):
            self._put()

    def remove(self) -> None:
        """All is done: there is nothing to go on with."""
        self.is_begun = self.was_there = False
        if self._fd >= 0:
            self.close()
        else:
            self._target.remove(self._url)

    def _put(self) -> None:
        self._target.put_bytes(b"\n".join([_HEADER, *self._lines]), self._url)
        self._put_at = time.monotonic()


def _open_locked(path: str) -> tuple[int, bytes]:
    while True:
        try:
            fd = os.open(path, system.WRITE_FLAGS | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise WidsError(f"{path}: cannot be made ({error.strerror}); is the directory writable?") from error
        if system.try_lock(fd, is_shared=False) is False:
            os.close(fd)
            raise WidsError(f"{path}: another wids pack is writing there; wait for it, or write elsewhere")
        if os.fstat(fd).st_nlink:
            with open(path, "rb") as file:
                return fd, file.read()
        os.close(fd)  # a run that was done removed it in between


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
