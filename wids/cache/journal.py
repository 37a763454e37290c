"""What is known of shards from earlier runs, and of this one so far, beside the index that is being made.

Rules: ``INDEX.state`` holds a line of JSON for each shard of the last index that was finished, ``INDEX.journal`` one
for each that was read since; both have the same form, and neither is needed: without them, shards are read again. A
line that was cut by a kill is left out. The journal goes when the index is there.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import msgspec

from wids.cache import files
from wids.cache.survey import Survey
from wids.errors import CacheError
from wids.index import writing

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_SUFFIX, JOURNAL_SUFFIX = ".state", ".journal"


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
    """The shards that need not be read again.

    Args:
        output: the path of the index.

    Attributes:
        known: place of a shard -> what was found there, to be held against what is there now.

    Raises:
        CacheError: the index's directory cannot be written.
    """

    def __init__(self, output: str) -> None:
        self._output, self._home = output, os.path.dirname(output)
        self.known: dict[str, Survey] = {}
        for suffix in (STATE_SUFFIX, JOURNAL_SUFFIX):
            self._read(output + suffix)
        try:
            self._file = open(output + JOURNAL_SUFFIX, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
            if self._file.tell():
                self._file.write(b"\n")  # the last line may have been cut
        except OSError as error:
            raise CacheError(
                f"{output}: cannot be written ({error}); choose another place with -o", path=output
            ) from error
        self._is_empty = self._file.tell() == 0

    def add(self, survey: Survey) -> None:
        """Keep what was found out about one shard.

        Raises:
            CacheError: it cannot be written down.
        """
        try:
            self._file.write(self._line(survey))
        except OSError as error:
            raise CacheError(
                f"{self._output}: cannot be written ({error}); free space, and run it again", path=self._output
            ) from error
        finally:
            self._is_empty = False

    def finish(self, surveys: Iterable[Survey]) -> None:
        """The index is there, and these are its shards."""
        files.write_atomically(self._output + STATE_SUFFIX, b"".join(map(self._line, surveys)))
        self._is_empty = True
        self.close()

    def close(self) -> None:
        """What is in the journal stays for the next run; an empty one goes."""
        self._file.close()
        if self._is_empty:
            with contextlib.suppress(OSError):
                os.unlink(self._output + JOURNAL_SUFFIX)

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
        return json.dumps(msgspec.to_builtins(line)).encode() + b"\n"

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            return
        for text in lines:
            with contextlib.suppress(ValueError):  # also what msgspec raises
                line = msgspec.convert(json.loads(text), _Line)
                place = line.url if "://" in line.url else os.path.join(self._home, line.url)
                known = {name: getattr(line, name) for name in _Line.__struct_fields__}
                self.known[place] = Survey(**{**known, "url": place})
