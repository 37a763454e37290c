"""Byte source over HTTP, through the session of fsspec's file system.

Each answer says which bytes it holds, of how many, and of which version. All connections of a process are counted
together.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.index import urls
from wids.transport import filesystems
from wids.transport.failures import InterruptedTransferError
from wids.transport.source import BLOCK_BYTES, HEAD, ByteSource, Stat, parse_tag
from wids.transport.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.transport.filesystems import Precedence
    from wids.transport.source import Sink

_BUFFER_BYTES = 1 << 20
# What an object of unknown size is taken for, when it is decided how long to wait for it.
_LARGE_BYTES = 16 << 20
# The answers that are the file, or a range of it.
_WITH_CONTENT = frozenset({200, 203, 206})
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HttpSource(ByteSource):
    """One URL. The answer that gave its size is kept for the first read, so that a download costs no request more.

    Args:
        url, go_on, precedence: see `wids.transport.stores.open_source`.
        filesystem, name: see `filesystems.open_filesystem`.
    """

    is_blocking, answers_have_stat = False, True

    def __init__(
        self, url: str, filesystem: Any, name: str, *, go_on: Callable[[], None], precedence: Precedence | None
    ) -> None:
        self.url, self.go_on = url, go_on
        self._filesystem, self._name, self.precedence = filesystem, name, precedence
        self._host, self._connections = urls.host_of(url), filesystems.connections()
        self._opened: _Answer | None = None

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """See `ByteSource`. Without ranges, too, if it is another range that is given, or one of an unknown whole."""
        answer = self._opened
        if answer is None or first is not None or answer.is_range:
            answer = filesystems.run(self._keep(first), go_on=self.go_on)
        has_ranges = answer.stat.has_ranges and (answer.span is None or first is None or answer.span.lo == first.lo)
        return answer.stat._replace(has_ranges=has_ranges)

    async def read(self, span: Span, sink: Sink) -> None:
        """See `ByteSource`."""
        answer, self._opened = self._opened, None
        if answer is not None and answer.span != span:
            answer.close()
            answer = None
        if answer is None:
            answer = await self._open(span)
        try:
            # All of it with status 200 is the range that was asked for, if that was all of it.
            sink.learn(answer.stat._replace(has_ranges=answer.stat.has_ranges or answer.span == span))
            if answer.span != span:
                raise InterruptedTransferError(f"{self.url}: the server gave another range than was asked for")
            await answer.write_to(sink, span)
        finally:
            answer.close()

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """See `ByteSource`; it is one request in any case."""
        answer = self._opened
        if answer is None or answer.is_range:
            answer = filesystems.run(self._keep(None), go_on=self.go_on)
        # A server that sends a byte a minute never seems to stall.
        coming = _LARGE_BYTES if answer.stat.size is None else answer.stat.size
        ends = None if end is None else time.monotonic() + filesystems.limit_of(min(coming, end))
        left = sys.maxsize if end is None else end
        while left > 0:
            limit = None if ends is None else ends - time.monotonic()
            block = filesystems.run(asyncio.wait_for(answer.read(min(left, BLOCK_BYTES)), limit), go_on=self.go_on)
            if not block:
                return
            yield block[:left]
            left -= len(block)

    def range_bytes(self, size: int | None) -> int:
        """See `ByteSource`."""
        return self._connections.range_bytes(self._host, size)

    def close(self) -> None:
        """See `ByteSource`."""
        if self._opened is not None:
            filesystems.loop().call_soon_threadsafe(self._drop)

    # An interrupt may come before `close`: an answer that is kept keeps a connection taken.
    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:  # see `wids.osfiles.open_file`
        if not is_ending() and getattr(self, "_opened", None) is not None:
            self.close()

    def _drop(self) -> None:
        answer, self._opened = self._opened, None
        if answer is not None:
            answer.close()

    async def _keep(self, span: Span | None) -> _Answer:
        """Ask, and keep the answer: where this is cancelled, `close` finds it."""
        self._drop()
        self._opened = answer = await self._open(span)
        return answer

    async def _open(self, span: Span | None) -> _Answer:
        """Ask for a span, or for the whole. The caller closes the answer."""
        options = dict(self._filesystem.kwargs)
        if span is not None:
            last = max(span.hi - 1, span.lo)
            options["headers"] = {**(options.get("headers") or {}), "Range": f"bytes={span.lo}-{last}"}
        session = await self._filesystem.set_session()
        if span is not None and self.precedence is None and "timeout" not in options:
            options["timeout"] = _within(session.timeout, filesystems.limit_of(span.size))
        release = await self._connections.acquire(self.precedence)
        response = None
        try:
            start = time.monotonic()
            response = await session.get(self._filesystem.encode_url(self._name), read_bufsize=_BUFFER_BYTES, **options)
            if response.status != 416 or span is None:
                _raise_for_status(response)
                note = partial(self._connections.note, self._host, time.monotonic() - start)
                return _Answer(response, note, release)
        except BaseException:
            release()
            if response is not None:
                response.close()
            raise
        release()
        response.close()
        return await self._open(None)  # there is nothing to have a range of


def _raise_for_status(response: Any) -> None:
    """Refuse answers without the file: also 202, 204, 304, and redirects to nothing, which clients let through."""
    response.raise_for_status()
    if response.status not in _WITH_CONTENT:
        from aiohttp import ClientResponseError

        raise ClientResponseError(
            response.request_info,
            response.history,
            status=response.status,
            message="an answer without the file",
            headers=response.headers,
        )


def _within(limits: Any, seconds: float) -> Any:
    """The client's time limits, and no more than ``seconds`` in all, from the request to the last byte."""
    return type(limits)(
        total=min(seconds, limits.total or seconds),
        connect=limits.connect,
        sock_connect=limits.sock_connect,
        sock_read=limits.sock_read,
    )


class _Answer:
    """The answer to a request, its body not yet read.

    Args:
        response: the client's.
        note: called with the bytes of a range and the seconds that they took.
        release: called once, when it is closed.

    Attributes:
        is_range: it holds a range of the whole. span: which bytes it holds; None: not said. stat: of the whole.
    """

    def __init__(self, response: Any, note: Callable[[int, float], None], release: Callable[[], None]) -> None:
        self._response, self._note = response, note
        self._release: Callable[[], None] | None = release
        headers = response.headers
        self.span: Span | None = None
        size = None
        found = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        # A body that was compressed for the wire is unpacked on the way: its length says nothing.
        is_plain = headers.get("Content-Encoding", "").strip().lower() in ("", "identity")
        self.is_range = response.status == 206
        if not self.is_range:
            if is_plain and response.content_length is not None:
                size = response.content_length
                self.span = Span(0, size)
        elif found is not None and is_plain:
            lo, last, size = map(int, found.groups())
            self.span = Span(lo, last + 1)
        has_ranges = size == 0 or (self.is_range and size is not None)
        # A time alone never tells versions apart for certain: a copy may have that of what it replaces.
        opaque, is_strong = parse_tag(headers.get("ETag", ""))
        self.stat = Stat(size, opaque or headers.get("Last-Modified"), has_ranges, is_strong)

    async def read(self, size: int) -> bytes:
        """About ``size`` bytes; none at the end."""
        parts, count = [], 0
        while count < size and (data := await self._response.content.readany()):
            parts.append(data)
            count += len(data)
        return b"".join(parts)

    async def write_to(self, sink: Sink, span: Span) -> None:
        """Write the body, which is that span, as it comes."""
        start, at = time.monotonic(), span.lo
        while data := await self._response.content.readany():
            sink.write(at, data)
            at += len(data)
        if at == span.hi:
            self._note(span.size, time.monotonic() - start)

    def close(self) -> None:
        """Give the connection back, or end it if there is more to come."""
        self._response.close()
        release, self._release = self._release, None
        if release is not None:
            release()
