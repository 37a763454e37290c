"""What is known of shards from earlier runs, and of this one so far, beside the index that is being made.

Rules: a `JournalFile` grows line by line while one process holds it locked; a line that was cut by a kill is left out
by whoever reads it. For an index, ``INDEX.state`` holds a line of JSON for each shard of the last index that was
finished, ``INDEX.journal`` one for each that was read since; both have the same form, and neither is needed: without
them, shards are read again. The journal goes when the index is there.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import msgspec

from wids.errors import CacheError
from wids.index import writing
from wids.jobs.scan import Survey
from wids.osfiles import atomic, system

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_SUFFIX, JOURNAL_SUFFIX = ".state", ".journal"


class JournalFile:
    """Lines in a local file, locked by whoever adds to them; to be closed or removed.

    Args:
        path: of the file, which is made if it is not there.
        writer: what else may be writing it, as ``wids pack``.

    Attributes:
        lines: those that were there before, without what ends them; a kill may have cut the last one.

    Raises:
        OSError: it cannot be made. CacheError: another process is writing it.
    """

    def __init__(self, path: str, *, writer: str) -> None:
        self._path = path
        self._fd, data = _open_locked(path, writer)
        self.lines = [line for line in data.split(b"\n") if line]

    def add(self, line: bytes) -> None:
        """Add a line, which has no end of line in it.

        Raises:
            OSError: it cannot be written.
        """
        os.write(self._fd, b"\n" + line + b"\n")  # the line before may have been cut

    def close(self) -> None:
        """Leave it for the next run."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Remove it: while it is still locked, so that nobody adds to a file that is gone."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.close()


def _open_locked(path: str, writer: str) -> tuple[int, bytes]:
    while True:
        fd = os.open(path, system.WRITE_FLAGS | os.O_CREAT | os.O_APPEND, 0o666)
        with atomic.closing_on_error(fd):
            if system.try_lock(fd, is_shared=False) is False:
                raise CacheError(
                    f"{path}: another {writer} is writing there; wait for it, or write elsewhere", path=path
                )
            if os.fstat(fd).st_nlink:
                with open(path, "rb") as file:
                    return fd, file.read()
        os.close(fd)  # a run that was done removed it in between


class _Line(msgspec.Struct, omit_defaults=True):
    """One shard. Its place is relative to the index's directory where it lies below it, so both may be moved."""

    url: str
    nsamples: int
    filesize: int
    nmembers: int = 0
    md5sum: str | None = None
    mark: str | None = None
    has_table: bool = False


class Journal:
    """The shards that need not be read again; to be closed.

    Args:
        output: the path of the index.

    Attributes:
        known: place of a shard -> what was found there, to be held against what is there now.

    Raises:
        CacheError: the index's directory cannot be written, or another process is making this index.
    """

    def __init__(self, output: str) -> None:
        self._output, self._home = output, os.path.dirname(output)
        self.known: dict[str, Survey] = {}
        try:
            self._file = JournalFile(output + JOURNAL_SUFFIX, writer="wids index")
        except CacheError:
            raise
        except OSError as error:
            raise CacheError(
                f"{output}: cannot be written ({error}); choose another place with -o", path=output
            ) from error
        with contextlib.suppress(OSError), open(output + STATE_SUFFIX, "rb") as file:
            self._read(file.read().splitlines())
        self._read(self._file.lines)
        self._is_needed = bool(self._file.lines)

    def add(self, survey: Survey) -> None:
        """Keep what was found out about one shard.

        Raises:
            CacheError: it cannot be written down.
        """
        self._is_needed = True
        try:
            self._file.add(self._line(survey))
        except OSError as error:
            raise CacheError(
                f"{self._output}: cannot be written ({error}); free space, and run it again", path=self._output
            ) from error

    def finish(self, surveys: Iterable[Survey]) -> None:
        """The index is there, and these are its shards."""
        lines = [self._line(survey) + b"\n" for survey in surveys]
        atomic.write_atomically(self._output + STATE_SUFFIX, b"".join(lines))
        self._is_needed = False
        self.close()

    def close(self) -> None:
        """What is in the journal stays for the next run; an empty one goes."""
        if self._is_needed:
            self._file.close()
        else:
            self._file.remove()

    def _line(self, survey: Survey) -> bytes:
        line = _Line(
            url=writing.relative_to(survey.url, self._home),
            nsamples=survey.nsamples,
            filesize=survey.filesize,
            nmembers=survey.nmembers,
            md5sum=survey.md5sum,
            mark=survey.mark,
            has_table=survey.has_table,
        )
        # Not by msgspec: a file's name may hold bytes that are not UTF-8.
        return json.dumps(msgspec.to_builtins(line)).encode()

    def _read(self, lines: Iterable[bytes]) -> None:
        for text in lines:
            with contextlib.suppress(ValueError, RecursionError):  # also what msgspec raises
                line = msgspec.convert(json.loads(text), _Line)
                place = line.url if "://" in line.url else os.path.join(self._home, line.url)
                known = {name: getattr(line, name) for name in _Line.__struct_fields__}
                self.known[place] = Survey(**{**known, "url": place})
