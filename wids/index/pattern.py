"""Output patterns: ``out/train-%06d.tar`` -> the names of shards, of their index and of the files beside them.

Pure text. One ``%d``, with or without a width, in the last component; no other ``%`` means anything.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import SpecError
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER = re.compile(r"%0?([0-9]{0,2})d")


class ShardPattern(msgspec.Struct, frozen=True, kw_only=True):
    """Where shards are written.

    Attributes:
        head, tail: the text before and after the number; ``head`` begins with the directory.
        digits: of the number, at least.
    """

    head: str
    tail: str
    digits: int

    def url(self, k: int) -> str:
        """Of shard ``k``."""
        return f"{self.head}{k:0{self.digits}d}{self.tail}"

    @property
    def directory(self) -> str:
        """Where they lie; "" is the working directory."""
        return urls.directory_of(self.head + self.tail)

    @property
    def name(self) -> str:
        """Of the dataset: ``train`` for ``out/train-%06d.tar``, ``index`` where only the number is left."""
        stem = urls.basename_of(self.head + "0")[:-1].rstrip("-_.") + self.tail.removesuffix(".tar")
        return stem.strip("-_.") or "index"

    @property
    def index_url(self) -> str:
        """Of the index, beside the shards."""
        start = len(self.head) - len(urls.basename_of(self.head + "0")[:-1])
        return f"{self.head[:start]}{self.name}.json"

    def number_of(self, basename: str) -> int | None:
        """Which shard a file beside them is; None if it is none of this pattern."""
        head = urls.basename_of(self.head + "0")[:-1]
        digits = basename[len(head) : len(basename) - len(self.tail)]
        if not (digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
        return number if basename == urls.basename_of(self.url(number)) else None


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
        )
    mark = found[0]
    return ShardPattern(head=text[: mark.start()], tail=text[mark.end() :], digits=int(mark[1] or 1))


def index_json(shardlist: Sequence[dict[str, Any]], *, name: str, info: Any = None) -> str:
    """The text of an index: one line for each value, so that two of them can be compared."""
    facts = {} if info is None else {"info": info}
    rows = [{**row, "url": urls.relative_name(row["url"])} for row in shardlist]
    return json.dumps({"wids_version": 1, "name": name, **facts, "shardlist": rows}, indent=1)
