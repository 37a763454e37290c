"""Records finished tasks of a job, one on each line, so that the next run continues where this one ended.

A local journal is a file that one process keeps locked while it adds lines; a line cut by a kill is skipped. A remote
journal is rewritten every few seconds: the next run repeats tasks that a killed run finished after that. A journal is
deleted at the end of its job.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from wids.core.files import atomic, json_text, system
from wids.core.files.json_text import JsonParser
from wids.core.index.writing import relative_to
from wids.core.place import Place
from wids.core.transport.upload import Target, check_replaceable
from wids.errors import JsonError, OutputError, OutputExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

R = TypeVar("R", bound=msgspec.Struct)

STATE_SUFFIX, JOURNAL_SUFFIX = ".state", ".journal"
_PUT_SECONDS = 5.0


class JobJournal(Generic[R]):
    """The journal of one output. Close it, or remove it when the job is complete.

    Args:
        output: path or URL of the output.
        suffix: appended to the output's name.
        record: the type of a record.
        writer: the command that writes such journals, for messages: ``wids pack``.
        target: writes a remote journal.
        header: its first line.

    Attributes:
        before: records of earlier runs.
        was_there: an earlier run did not finish.
        is_begun: this run has written to it.

    Raises:
        OutputError: it cannot be made. OutputExistsError: another process is writing it.
    """

    was_there: bool
    is_begun: bool
    before: list[R]

    def __init__(
        self, output: str, suffix: str, record: type[R], *, writer: str, target: Target, header: bytes = b""
    ) -> None:
        self._output, self._url, self._record, self._header = output, output + suffix, record, header
        self._target = target
        self._fd = -1
        if Place(output).is_local:
            self._path = Place(self._url).absolute.path
            self._fd, data = self._open(writer)
        else:
            data = target.get_bytes(self._url) or b""
            self._check_own(data, writer)
        with atomic.ClosingOnError(self._close):
            self._lines = [line for line in data.split(b"\n") if line]
            self.was_there, self.is_begun = bool(self._lines), False
            self.before = list(parse_records(self._lines, record))
            self._put_at = time.monotonic()

    @property
    def is_needed(self) -> bool:
        """True if the journal is left for the next run."""
        return self.is_begun or self.was_there

    def begin(self) -> None:
        """Create the file, before any record.

        Raises:
            OutputError: it cannot be written.
        """
        self.is_begun = True
        if self._fd >= 0:
            self._write(self._header)
        else:
            self._put()

    def add(self, record: R) -> None:
        """Add a record.

        Raises:
            OutputError: it cannot be written.
        """
        self.is_begun = True
        line = format_record(record)
        if self._fd >= 0:
            self._write(line)
            return
        self._lines.append(line)
        if time.monotonic() - self._put_at > _PUT_SECONDS:
            self._put()

    def close(self) -> None:
        """Keep the journal for the next run, or delete it if it has no record."""
        if self._fd < 0:
            if self.is_begun:
                self._put()
        elif self.is_needed:
            self._close()
        else:
            self.remove()

    def remove(self) -> None:
        """Delete the journal: the job is done."""
        self.is_begun = self.was_there = False
        if self._fd >= 0:
            try:
                with contextlib.suppress(OSError):  # under the lock, so that no other process writes to a deleted file
                    os.unlink(self._path)
            finally:
                self._close()
        elif not Place(self._url).is_local:
            self._target.remove(self._url)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self, writer: str) -> tuple[int, bytes]:
        try:
            while True:
                fd = os.open(self._path, system.WRITE_FLAGS | os.O_CREAT | os.O_APPEND, 0o666)
                with atomic.closing_on_error(fd):
                    if system.try_lock(fd, is_shared=False) is False:
                        raise OutputExistsError(
                            f"{self._path}: another {writer} is writing there; wait for it, or write elsewhere",
                            path=self._path,
                        )
                    if os.fstat(fd).st_nlink:
                        with open(self._path, "rb") as file:
                            data = file.read()
                        self._check_own(data, writer)
                        return fd, data
                os.close(fd)  # another run deleted it meanwhile
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(
                f"{self._output}: cannot be written ({error.strerror or error}); {system.advice_on_making(error)}",
                path=self._output,
            ) from error

    def _check_own(self, data: bytes, writer: str) -> None:
        """Check that an existing file is a journal: the job deletes it at its end.

        Raises:
            OutputExistsError: it is another file.
        """
        if not ((self._header and data.lstrip(b"\n").startswith(self._header)) or holds_records(data, self._record)):
            raise OutputExistsError(
                f"{self._url}: exists, and is no journal of {writer}; write elsewhere, or move it away",
                path=self._url,
            )

    def _write(self, line: bytes) -> None:
        try:
            os.write(self._fd, b"\n" + line + b"\n")  # the line before may have been cut
        except OSError as error:
            raise unwritten(self._output, error) from error

    def _put(self) -> None:
        lines = [line for line in self._lines if line != self._header]
        self._target.put_bytes(b"\n".join([self._header, *lines]), self._url)
        self._put_at = time.monotonic()


class KnownShards(Generic[R]):
    """The records of shards from earlier runs of a job; the caller closes it.

    A record has the ``url`` of its shard. In the files, URLs below the output's directory are relative to it, so that
    both may be moved. ``OUTPUT.state`` has a line for each shard of the existing output, ``OUTPUT.journal`` for each
    finished shard of a running or killed run.

    Args:
        output: the path of the output.
        record: the type of a record.
        writer: the command that writes such outputs, for messages.
        is_current: returns whether a state belongs to the existing output; None: the job has no state.
        is_known: returns whether a record is still valid.

    Attributes:
        records: place of a shard -> its earlier record, to compare with the present shard.
        journal: of this run.

    Raises:
        OutputError: the output's directory cannot be written.
        OutputExistsError: another process is writing this output, or other files have these names.
    """

    journal: JobJournal[R]

    def __init__(
        self,
        output: str,
        record: type[R],
        *,
        writer: str,
        is_current: Callable[[bytes], bool] | None = None,
        is_known: Callable[[R], bool] = lambda _: True,
    ) -> None:
        self._state, self._home, self._is_known = output + STATE_SUFFIX, os.path.dirname(output), is_known
        self.records: dict[str, R] = {}
        if is_current is not None:
            check_state(self._state, record)
        self.journal = JobJournal(output, JOURNAL_SUFFIX, record, writer=writer, target=Target())
        with atomic.ClosingOnError(self.journal.close):
            if is_current is not None:
                with contextlib.suppress(OSError), open(self._state, "rb") as file:
                    lines = file.read()
                    self._learn(parse_records(lines.splitlines() if is_current(lines) else (), record))
            self._learn(self.journal.before)

    def add(self, record: R) -> None:
        """Keep the record of one shard.

        Raises:
            OutputError: it cannot be written down.
        """
        self.journal.add(self.relative(record))

    def relative(self, record: R) -> R:
        """A record as it is in a file."""
        return msgspec.structs.replace(record, url=relative_to(record.url, self._home))  # type: ignore[attr-defined]

    def format_state(self, records: Iterable[R]) -> bytes:
        """The state of an output of these shards."""
        return b"".join(format_record(self.relative(record)) + b"\n" for record in records)

    def put_state(self, state: bytes) -> None:
        """Write the state.

        Raises:
            OSError: it cannot be written.
        """
        atomic.write_atomically(self._state, state)

    def finish(self) -> None:
        """Delete the journal: the output exists."""
        self.journal.remove()

    def close(self) -> None:
        """Leave the journal for the next run, unless it is empty."""
        self.journal.close()

    def _learn(self, records: Iterable[R]) -> None:
        for record in records:
            url: str = record.url  # type: ignore[attr-defined]
            place = _place_of(url, self._home)
            absolute = msgspec.structs.replace(record, url=place)
            if self._is_known(absolute):
                self.records[place] = absolute


class _AnyRecord(msgspec.Struct):
    """Any record of a shard."""

    url: str


def shards_before(output: str) -> set[str]:
    """The places of the shards of the last run that wrote an output, by its state."""
    try:
        fd, _ = atomic.open_file(output + STATE_SUFFIX)
        with open(fd, "rb") as file:
            return {_place_of(record.url, os.path.dirname(output)) for record in parse_records(file, _AnyRecord)}
    except OSError:
        return set()


def _place_of(url: str, home: str) -> str:
    """The place of a shard, by a record of it."""
    return url if "://" in url else os.path.join(home, url)


def parse_records(lines: Iterable[bytes], record: type[R]) -> Iterable[R]:
    """The records in lines. Other lines (a header, a partial line) are skipped."""
    parser = JsonParser(record)
    for line in lines:
        with contextlib.suppress(JsonError):
            yield parser.parse(line)


def holds_records(data: bytes, record: type[msgspec.Struct]) -> bool:
    """True if a file has records of this type, is empty, or may be a damaged file of such records.

    Damaged JSON counts as such a file; valid JSON without a record does not.
    """
    text = data.strip(b"\0\r\n ")
    if not text or any(True for _ in parse_records(data.split(b"\n"), record)):
        return True
    try:
        json_text.parse(text)
    except JsonError:
        return text.startswith(b"{")
    return False


def check_state(path: str, record: type[msgspec.Struct]) -> None:
    """Check that a file which the job will replace is a state, a file of such records.

    Raises:
        OutputExistsError: it is another file.
    """

    def is_state(place: str) -> bool:
        with open(place, "rb") as file:
            return holds_records(file.read(), record)

    check_replaceable(path, "state of an earlier run", is_state, overwrite=None)


def format_record(record: msgspec.Struct) -> bytes:
    """The line of a record."""
    # Not with msgspec: the name of a file may have bytes that are not UTF-8.
    return json.dumps(msgspec.to_builtins(record)).encode()


def unwritten(output: str, error: OSError) -> OutputError:
    """The error of an output that could be written at first, and now cannot."""
    return OutputError(f"{output}: cannot be written ({error}); free space, and run it again", path=output)
