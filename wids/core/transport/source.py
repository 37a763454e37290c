"""The common interface of stores: an object has a size, a version and bytes."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wids.core.transport.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from typing_extensions import Self


# The span to request for size and version alone: a URL that is signed for GET refuses HEAD.
HEAD = Span(0, 512)
BLOCK_BYTES = 4 << 20
# Some stores send strong tags without quotes, others weak ones with a small letter.
_STRONG_TAG = re.compile(r"""(?![Ww]/)("?)[^"\s]+\1""")


def parse_tag(tag: str) -> tuple[str, bool]:
    """(An entity tag without its mark of weakness, True if it is strong)."""
    is_strong = _STRONG_TAG.fullmatch(tag) is not None
    return tag if is_strong else re.sub("^[Ww]/", "", tag), is_strong


class Stat(NamedTuple):
    """The size and version of an object, as its store states them.

    Attributes:
        size: bytes of the whole; None: unknown.
        version: entity tag, generation or times; None: unknown.
        has_ranges: spans of it can be read.
        is_strong: objects of the same version have the same bytes: a strong entity tag, a generation, an md5.
            Otherwise an object may be replaced by one with the same version, for instance within a second, or, without
            a version, at any time: the bytes of several requests may then belong to two objects.
    """

    size: int | None
    version: Any
    has_ranges: bool
    is_strong: bool = False

    def is_same(self, other: Stat) -> bool:
        """True if the versions do not differ; only strong versions prove that the bytes are equal."""
        return self[:3] == other[:3]


class Sink(NamedTuple):
    """The receiver of the bytes of an object.

    Attributes:
        learn: called with the stat of the object; raises if its bytes are useless.
        write: called with a position and the bytes there.
    """

    learn: Callable[[Stat], None]
    write: Callable[[int, bytes], None]


@dataclass(order=True, slots=True)
class Precedence:
    """The order in which downloads get connections: first those with a waiting reader, then by their start.

    The first of several downloads is then complete as early as it can be, and all of them no later.

    Attributes:
        is_ahead: no reader waits for it.
        has_failed: a part of it failed in this try: its waiting requests come after other downloads.
    """

    is_ahead: bool
    number: int = field(default_factory=itertools.count().__next__)
    has_failed: bool = field(default=False, compare=False)


class ByteSource(Protocol):
    """One object in one kind of store. It is opened for one try, used by one thread, and closed.

    Attributes:
        url: of the object.
        is_blocking: its reads block the calling thread, one at a time. Reads of other sources are coroutines for
            fsspec's event loop, and many run concurrently.
        answers_have_stat: each read passes size and version to its sink; otherwise they are requested again after the
            reads.
        fills_file: `stream` yields nothing, and a program writes the file.
        go_on: called regularly during all calls; an exception from it ends them.
        precedence: of its download; None: its reads are not for a download.
    """

    url: str
    is_blocking: bool
    answers_have_stat: bool
    fills_file: bool = False
    precedence: Precedence | None = None
    go_on: Callable[[], None]

    @property
    def packed_bytes(self) -> int | None:
        """Bytes of the present answer so far, before they were decompressed; None: it is not compressed."""
        return None

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Size and version of the object.

        Args:
            first: the span that is read next, if any; if its answer has size and version, the answer is kept for that
                read. None: the whole, by `stream`.
            is_fresh: ask the store, not the client's memory of it.
        """
        ...

    async def read(self, span: Span, sink: Sink) -> None:
        """Write the bytes of a span, which is not empty, to a sink, from its beginning on."""
        ...

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """The object's bytes in blocks, from its beginning on; no more than ``end``.

        Args:
            end: the number of bytes.
            in_one_request: even if a client would send several, which might read several versions.
        """
        ...

    def range_bytes(self, size: int | None) -> int:
        """The number of bytes to request at a time, of an object of ``size`` bytes."""
        return BLOCK_BYTES

    def close(self) -> None:
        """Release files and connections."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
