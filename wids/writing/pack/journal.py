"""What a run has finished, so that the next one goes on where it was ended.

Rules: one JSON line for each shard, beside the index, gone when the index is there. It is there before the first shard
is, so that shards without a line are known for those of the run. A local one is a `wids.jobs.journal.JournalFile`. A
remote one is put anew every few seconds: what a killed run had finished since is written again.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

import msgspec

from wids.errors import CacheError, WidsError
from wids.index import urls
from wids.jobs.journal import JournalFile
from wids.transport.upload import local_path
from wids.writing.pack.shard import Done

if TYPE_CHECKING:
    from wids.transport.upload import Target

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
        self._file = _open(local_path(self._url)) if urls.is_local(self._url) else None
        lines = (target.get_bytes(self._url) or b"").split(b"\n") if self._file is None else self._file.lines
        self.was_there = any(lines)
        self.is_begun = False
        self.before: dict[int, Done] = {}
        self._lines: list[bytes] = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):  # also the header, and what a disk made of a line
                done = msgspec.convert(json.loads(line), Done)
                self.before[done.k] = done
                self._lines.append(line)
        self._put_at = time.monotonic()

    def begin(self) -> None:
        """Have it there, before any shard.

        Raises:
            WidsError: it cannot be written.
        """
        self.is_begun = True
        if self._file is None:
            self._put()
        else:
            self._write(self._file, _HEADER)

    def add(self, done: Done) -> None:
        """A shard is there.

        Raises:
            WidsError: that cannot be written down.
        """
        # Not by msgspec: a shard's name may hold bytes that are not UTF-8.
        line = json.dumps(msgspec.to_builtins(done)).encode()
        self._lines.append(line)
        if self._file is not None:
            self._write(self._file, line)
        elif time.monotonic() - self._put_at > _PUT_SECONDS:
            self._put()

    def close(self) -> None:
        """Leave it for the next run."""
        if self._file is None:
            if self.is_begun:
                self._put()
        elif self.is_begun or self.was_there:
            self._file.close()
        else:
            self._file.remove()

    def remove(self) -> None:
        """All is done: there is nothing to go on with."""
        self.is_begun = self.was_there = False
        if self._file is None:
            self._target.remove(self._url)
        else:
            self._file.remove()

    def _write(self, file: JournalFile, line: bytes) -> None:
        try:
            file.add(line)
        except OSError as error:
            raise WidsError(f"{self._url}: cannot be written ({error}); free space, and run it again") from error

    def _put(self) -> None:
        self._target.put_bytes(b"\n".join([_HEADER, *self._lines]), self._url)
        self._put_at = time.monotonic()


def _open(path: str) -> JournalFile:
    try:
        return JournalFile(path, writer="wids pack")
    except CacheError:
        raise
    except OSError as error:
        raise WidsError(f"{path}: cannot be made ({error.strerror}); is the directory writable?") from error
