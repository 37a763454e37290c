"""Places of shards: a pattern such as ``out/train-%06d.tar``, and its existing files.

A pattern gives the names of shards, of their index and of the files beside them: one ``%d``, with or without a width,
in the last component; any other ``%`` is a plain letter. Only files whose names match the pattern are deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.files import atomic, system
from wids.core.place import Place, relative_name
from wids.core.tables.member_tables import check_table_replaceable
from wids.core.tables.table import SUFFIX
from wids.core.transport.upload import Target, explained
from wids.errors import OutputExistsError, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wids.core.tables.table import MemberTable

_NUMBER = re.compile(r"%0?([0-9]{0,2})d")


class ShardPattern(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the shards that are written.

    Attributes:
        head: the text before the number; it begins with the directory.
        tail: the text after the number.
        digits: the fewest digits of the number.
    """

    head: str
    tail: str
    digits: int

    def url(self, k: int) -> str:
        """The URL of shard ``k``."""
        return f"{self.head}{k:0{self.digits}d}{self.tail}"

    @property
    def directory(self) -> str:
        """The directory of the shards; "" is the working directory."""
        return str(Place(self.head + self.tail).directory)

    @property
    def name(self) -> str:
        """The dataset's name: ``train`` for ``out/train-%06d.tar``, ``index`` if the pattern has only a number."""
        stem = Place(self.head + "0").name[:-1].rstrip("-_.") + self.tail.removesuffix(".tar")
        return stem.strip("-_.") or "index"

    @property
    def index_url(self) -> str:
        """The URL of the index, beside the shards."""
        start = len(self.head) - len(Place(self.head + "0").name[:-1])
        return f"{self.head[:start]}{self.name}.json"

    def number_of(self, basename: str) -> int | None:
        """The number of the shard that a file is; None if the file does not match the pattern."""
        head = Place(self.head + "0").name[:-1]
        digits = basename[len(head) : len(basename) - len(self.tail)]
        if not (digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        return number if basename == Place(self.url(number)).name else None


def parse_pattern(text: str) -> ShardPattern:
    """Read an output pattern.

    Raises:
        SpecError: it has no number, or several, or does not end in .tar.
    """
    found = list(_NUMBER.finditer(text))
    is_one = len(found) == 1 and "/" not in text[found[0].end() :]
    if not is_one or not text.endswith(".tar") or "\0" in text:
        raise SpecError(
            f"{text!r} does not say how shards are called; write it like 'out/train-%06d.tar', with one number, in the "
            "file's name",
            path="",
            parameter="output",
        )
    mark = found[0]
    return ShardPattern(head=text[: mark.start()], tail=text[mark.end() :], digits=int(mark[1] or 1))


def index_json(
    shardlist: Sequence[dict[str, Any]], *, name: str, info: Any = None, keys: Mapping[str, Any] | None = None
) -> str:
    """The text of an index: one line for each value, so that two of them can be compared; ``keys``: more of it."""
    about = {**(keys or {}), **({} if info is None else {"info": info})}
    rows = [{**row, "url": relative_name(row["url"])} for row in shardlist]
    return json.dumps({"wids_version": 1, "name": name, **about, "shardlist": rows}, indent=1)


class ShardTarget(Target):
    """Shards by their pattern, to be written."""

    def put_shard(self, part: str, url: str, table: MemberTable | None) -> None:
        """Publish a local file as a shard, its table first; the local file is removed.

        Readers ignore a table beside a missing or another shard, because it has its shard's size and md5.

        Raises:
            OutputError: it cannot be written. OutputExistsError: another file has the name of its table.
        """
        if (place := Place(url)).is_local:
            path = place.absolute.path + SUFFIX
            check_table_replaceable(path)
            if table is None:  # that of an earlier shard
                self.remove(url + SUFFIX)
            else:
                with explained(url):
                    atomic.write_atomically(path, table.to_bytes())
        elif table is not None:
            # When a copy of it is made, and so what its time is, is not known yet.
            identity = msgspec.structs.replace(table.identity, mtime_ns=None)
            self.put_bytes(table.with_identity(identity).to_bytes(), url + SUFFIX)
        self.put_file(part, url)

    def find_shards(self, pattern: ShardPattern) -> dict[int, str]:
        """The shards of a pattern that exist: number -> URL.

        Raises:
            OutputError: the store does not answer.
        """
        numbers = (pattern.number_of(name) for name in self.list_beside(pattern.url(0)))
        return {number: pattern.url(number) for number in sorted(k for k in numbers if k is not None)}

    def check_free(self, pattern: ShardPattern, *, allows_shards: bool = False, overwrite: bool) -> None:
        """Refuse to write over an earlier dataset; or, with ``overwrite``, remove its outdated index.

        Args:
            pattern: of the new output.
            allows_shards: accept shards, of an unfinished run, but no index.
            overwrite: allow it.

        Raises:
            OutputExistsError: a shard or an index exists, and ``overwrite`` is not set.
        """
        index = pattern.index_url
        if overwrite:
            self.remove(index)
            return
        found = [] if allows_shards else [*self.find_shards(pattern).values()]
        if self.describe(index) is not None:
            found.append(index)
        if found:
            what = found[-1] if len(found) == 1 else f"{found[-1]} and {len(found) - 1} more"
            raise OutputExistsError(
                f"{what}: exists; write elsewhere, or pass overwrite=True", url=found[-1], hint="overwrite"
            )

    def check_new(self, pattern: ShardPattern) -> None:
        """Refuse to write over shards.

        Raises:
            OutputExistsError: a shard exists.
        """
        if there := [*self.find_shards(pattern).values()]:
            what = there[0] if len(there) == 1 else f"{there[0]} and {len(there) - 1} more"
            raise OutputExistsError(f"{what}: exists, and is not replaced; write elsewhere", url=there[0])

    def remove_others(self, pattern: ShardPattern, kept: frozenset[int]) -> int:
        """Remove the shards of a pattern that are not among ``kept``, and their tables; return their number."""
        others = [url for k, url in self.find_shards(pattern).items() if k not in kept]
        for url in others:
            with contextlib.suppress(OutputExistsError):  # another file
                if (place := Place(url)).is_local:
                    check_table_replaceable(place.absolute.path + SUFFIX)
                self.remove(url + SUFFIX)
            self.remove(url)
        return len(others)


def sweep(pattern: ShardPattern) -> None:
    """Remove part files of a local pattern that no process writes: those of killed runs."""
    first = Place(pattern.url(0))
    if not first.is_local:
        return
    directory = os.path.dirname(first.absolute.path)
    index = Place(pattern.index_url).name + "."
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            stem, _, rest = name.partition(".tar.")
            shard = stem + ".tar"
            is_ours = name.startswith(index) or (rest and pattern.number_of(shard) is not None)
            if is_ours and name.endswith(".part"):
                _remove_unlocked(os.path.join(directory, name))


def _remove_unlocked(path: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, system.WRITE_FLAGS)
        try:
            if system.try_lock(fd, is_shared=False) is not False:
                os.unlink(path)
        finally:
            os.close(fd)
