"""What all kinds of stores have in common: an object says its size and version, and gives its bytes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wids.transport.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from typing_extensions import Self

    from wids.transport.filesystems import Precedence

# The request where only size and version are wanted: a URL that is signed for GET refuses HEAD.
HEAD = Span(0, 512)
BLOCK_BYTES = 4 << 20
# Some stores send strong tags without quotes, others weak ones with a small letter.
_STRONG_TAG = re.compile(r"""(?![Ww]/)("?)[^"\s]+\1""")


def parse_tag(tag: str) -> tuple[str, bool]:
    """An entity tag without what says that it is weak, and whether it is strong."""
    is_strong = _STRONG_TAG.fullmatch(tag) is not None
    return tag if is_strong else re.sub("^[Ww]/", "", tag), is_strong


class Stat(NamedTuple):
    """What a store says of an object.

    Attributes:
        size: bytes of the whole; None: not said.
        version: what tells this version from others (entity tag, generation, times); None: not said.
        has_ranges: whether spans of it can be read.
        is_strong: whether objects of the same version have the same bytes: a strong entity tag, a generation, an md5.
            Else a version may be replaced by another of the same name, as within a second, and without one always:
            what several requests brought may be of two.
    """

    size: int | None
    version: Any
    has_ranges: bool
    is_strong: bool = False

    def is_same(self, other: Stat) -> bool:
        """Whether nothing says that it is another version; only if both are strong, the bytes are known to be equal."""
        return self[:3] == other[:3]


class Sink(NamedTuple):
    """Where the bytes of an object go.

    Attributes:
        learn: called with what the store says of the object whose bytes come, and raises if they are of no use.
        write: called with a position and the bytes there.
    """

    learn: Callable[[Stat], None]
    write: Callable[[int, bytes], None]


class ByteSource(Protocol):
    """One object in one kind of store. It is opened for one try, used by one thread, and closed.

    Attributes:
        url: where the object is.
        is_blocking: its reads take the thread that calls; one of them is under way at a time. Those of the others are
            coroutines for fsspec's event loop, and many run at the same time.
        answers_have_stat: each read tells its sink the size and version of what it reads; else they are asked for
            again after the reads.
        fills_file: `stream` gives nothing, and something else writes the file that the bytes are for.
        go_on: called regularly during all calls; an exception from it ends them.
        precedence: of the download that it is for; None: its reads are no download's.
    """

    url: str
    is_blocking: bool
    answers_have_stat: bool
    fills_file: bool = False
    precedence: Precedence | None = None
    go_on: Callable[[], None]

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Size and version of the object.

        Args:
            first: the span that is read next, if any: where a request for it tells size and version, its answer is kept
                for that read. None: the whole, by `stream`.
            is_fresh: ask the store, not the client's memory of it.
        """
        ...

    async def read(self, span: Span, sink: Sink) -> None:
        """Write the bytes of a span, which is not empty, to a sink, from its beginning on."""
        ...

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """The object's bytes in blocks, from its beginning on; no more than ``end``.

        Args:
            end: of how many bytes.
            in_one_request: also where a client would make several: nothing tells whether those are of one version.
        """
        ...

    def range_bytes(self, size: int | None) -> int:
        """How many bytes of an object of ``size`` bytes to ask for at a time."""
        return BLOCK_BYTES

    def close(self) -> None:
        """Release files and connections."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
