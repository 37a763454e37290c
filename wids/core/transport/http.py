"""Byte source over HTTP, through the session of fsspec's file system.

Each answer states its bytes, the total size, and the version. All connections of a process are counted together.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import sys
import time
import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from wids.core.place import Place
from wids.core.transport import filesystems
from wids.core.transport.failures import InterruptedTransferError, StalledTransferError
from wids.core.transport.source import BLOCK_BYTES, HEAD, ByteSource, Stat, parse_tag
from wids.core.transport.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from wids.core.transport.source import Precedence, Sink

_BUFFER_BYTES = 1 << 20
# The assumed length of an object of unknown size, for the time limit of its request.
_LARGE_BYTES = 16 << 20
# The answers that are the file, or a range of it.
WITH_CONTENT = frozenset({200, 203, 206})
# Encodings of bodies that are decompressed here, because clients do not notice when such a body ends too early.
GZIP = ("gzip", "x-gzip")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HttpSource(ByteSource):
    """One URL. The answer that gave its size is kept for the first read, so a download needs no extra request.

    Args:
        url: see `wids.core.transport.stores.open_source`.
        go_on: see there.
        precedence: see there.
        filesystem: see `filesystems.open_filesystem`.
        name: see there.
    """

    is_blocking: bool = False
    answers_have_stat: bool = True
    # True if bodies are the object's bytes as they are, whatever encoding the answer names.
    is_as_stored: bool = False
    url: str
    go_on: Callable[[], None]
    precedence: Precedence | None

    def __init__(
        self, url: str | Place, filesystem: Any, name: str, *, go_on: Callable[[], None], precedence: Precedence | None
    ) -> None:
        place = Place.of(url)
        self.url, self.go_on = str(place), go_on
        self._filesystem, self._name, self.precedence = filesystem, name, precedence
        self._host, self._connections = place.host, filesystems.connections()
        self._opened: Answer | None = None
        self._pid = os.getpid()

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Ask the server; see `ByteSource`. No ranges also if it sends another range, or one of an unknown whole."""
        answer = self._opened
        if answer is None or first is not None or answer.is_range:
            answer = filesystems.run(self._keep(first), go_on=self.go_on)
        has_ranges = answer.stat.has_ranges and (answer.span is None or first is None or answer.span.lo == first.lo)
        return answer.stat._replace(has_ranges=has_ranges)

    async def read(self, span: Span, sink: Sink) -> None:
        """Read a span by one request; see `ByteSource`."""
        answer, self._opened = self._opened, None
        if answer is not None and answer.span != span:
            answer.close()
            answer = None
        if answer is None:
            answer = await self.ask(span)
        try:
            # Status 200 with the whole object is right if the range is the whole object.
            sink.learn(answer.stat._replace(has_ranges=answer.stat.has_ranges or answer.span == span))
            if answer.span != span:
                raise InterruptedTransferError(f"{self.url}: the server sent another range than the requested one")
            await answer.write_to(sink, span)
        finally:
            answer.close()

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """Stream the object; it is one request in any case. See `ByteSource`."""
        answer = self._opened
        if answer is None or answer.is_range:
            answer = filesystems.run(self._keep(None), go_on=self.go_on)
        return self._blocks_of(answer, end)

    def _blocks_of(self, answer: Answer, end: int | None) -> Iterator[bytes]:
        def read(size: int, ends: float | None) -> bytes:
            limit = None if ends is None else ends - time.monotonic()
            return filesystems.run(asyncio.wait_for(answer.read(size), limit), go_on=self.go_on)

        return read_blocks(read, answer.stat.size, end)

    @property
    def packed_bytes(self) -> int | None:
        """Compressed bytes that have arrived; see `ByteSource`."""
        return None if self._opened is None else self._opened.packed_bytes

    def range_bytes(self, size: int | None) -> int:
        """Length of the ranges that the host is read in; see `ByteSource`."""
        return self._connections.range_bytes(self._host, size)

    def close(self) -> None:
        """Drop the open answer; see `ByteSource`."""
        if self._opened is not None and self._pid == os.getpid():  # else it is the parent's connection
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections with it
                self._loop.call_soon_threadsafe(self._drop)

    # An interrupt may prevent `close`, and a kept answer occupies a connection. The call takes no lock, and its write
    # to the loop's socket does not wait: see `wids.core.files.finalizers`.
    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and getattr(self, "_opened", None) is not None:
            self.close()

    def _drop(self) -> None:
        answer, self._opened = self._opened, None
        if answer is not None:
            answer.close()

    async def _keep(self, span: Span | None) -> Answer:
        """Send a request, and keep the answer: after a cancellation, `close` finds it."""
        self._drop()
        answer = await self.ask(span)
        self._loop = asyncio.get_running_loop()
        self._opened = answer
        return answer

    async def ask(self, span: Span | None, *, is_raw: bool = True) -> Answer:
        """Request a span, or the whole. The caller closes the answer.

        Args:
            span: the bytes; None: the whole.
            is_raw: a body that was compressed without request is decompressed here if it is gzip; otherwise it is
                requested again, and the client decompresses it.
        """
        release = await self._connections.acquire(self.precedence)
        response = None
        try:
            session, url, options = await self.prepare()
            if span is not None:
                last = max(span.hi - 1, span.lo)
                options["headers"] = {**(options.get("headers") or {}), "Range": f"bytes={span.lo}-{last}"}
            if span is not None and self.precedence is None and "timeout" not in options:
                options["timeout"] = _within(session.timeout, filesystems.limit_of(span.size))
            is_raw = is_raw and _gives_raw(session.__class__)
            if is_raw:
                options["auto_decompress"] = False
            start = time.monotonic()
            response = await session.get(url, read_bufsize=_BUFFER_BYTES, **options)
            if response.status != 416 or span is None:
                await self.check(response)
                encoding = "" if self.is_as_stored else encoding_of(response)
                if not is_raw or encoding in ("", "identity", *GZIP):
                    note = partial(self._connections.note, self._host, time.monotonic() - start)
                    return Answer(response, note, release, encoding=encoding, is_raw=is_raw)
        except BaseException as error:
            release()
            if response is not None:
                response.close()
            _forget_headers(error)
            raise
        release()
        response.close()
        if response.status != 416:
            return await self.ask(span, is_raw=False)
        return await self.ask(None)  # an empty object has no ranges

    async def prepare(self) -> tuple[Any, Any, dict[str, Any]]:
        """The client's session, the URL, and the options of the next request, which is sent at once."""
        filesystem = self._filesystem
        return await filesystem.set_session(), filesystem.encode_url(self._name), dict(filesystem.kwargs)

    async def check(self, response: Any) -> None:
        """Refuse answers without the file: also 202, 204, 304, and redirects without a target, which clients accept.

        Raises:
            aiohttp.ClientError, OSError: it is one.
        """
        response.raise_for_status()
        if response.status not in WITH_CONTENT:
            raise refusal(response, "an answer without the file")


@cache
def _gives_raw(session: Hashable) -> bool:
    """True if this client can return raw bodies; older ones cannot."""
    request = getattr(session, "_request", None)
    return request is not None and "auto_decompress" in inspect.signature(request).parameters


def read_blocks(read: Callable[[int, float | None], bytes], size: int | None, end: int | None) -> Iterator[bytes]:
    """The blocks of a stream of an object of ``size`` bytes, up to ``end``.

    Args:
        read: up to so many bytes, until a moment, see `_end_of_stream`; none at the object's end.
        size: of the object; None: not known.
        end: of the stream; None: the object's.
    """
    ends, left = _end_of_stream(size, end), sys.maxsize if end is None else end
    while left > 0 and (block := read(min(left, BLOCK_BYTES), ends)):
        yield block[:left]
        left -= len(block)


def _end_of_stream(size: int | None, end: int | None) -> float | None:
    """Latest end of a stream of an object of ``size`` bytes, by the monotonic clock; None: it ends when it stalls.

    A server that sends a byte a minute never stalls, so a request with an end has a total time limit as well.
    """
    if end is None:
        return None
    return time.monotonic() + filesystems.limit_of(min(_LARGE_BYTES if size is None else size, end))


def encoding_of(response: Any) -> str:
    """The encoding of a response's body; "": none is named."""
    encoding: str = response.headers.get("Content-Encoding", "")
    return encoding.strip().lower()


def refusal(response: Any, message: str) -> Exception:
    """The client's error for an answer, with its status and headers, and with this message."""
    from aiohttp import ClientResponseError

    return ClientResponseError(
        response.request_info, response.history, status=response.status, message=message, headers=response.headers
    )


def _forget_headers(error: BaseException) -> None:
    """Drop the headers of the request out of a client's error: its ``repr`` would show the credentials in them."""
    sent = getattr(error, "request_info", None)
    if sent is not None and getattr(sent, "headers", None):
        bare = type(sent)(sent.url, sent.method, {}, sent.real_url)
        error.request_info, error.args = bare, (bare, *error.args[1:])  # type: ignore[attr-defined]


def _within(limits: Any, seconds: float) -> Any:
    """The client's time limits, and at most ``seconds`` in total, from the request to the last byte."""
    return type(limits)(
        total=min(seconds, limits.total or seconds),
        connect=limits.connect,
        sock_connect=limits.sock_connect,
        sock_read=limits.sock_read,
    )


class Answer:
    """The answer to a request, its body not yet read.

    Args:
        response: the client's.
        note: called with the bytes of a range and their seconds.
        release: called once, when it is closed.
        encoding: of the body.
        is_raw: the client has not decompressed the body.

    Attributes:
        is_range: it holds a range of the whole.
        span: its bytes; None: unknown.
        stat: of the whole.
        headers: all.
    """

    is_range: Any
    stat: Stat
    headers: Any

    def __init__(
        self,
        response: Any,
        note: Callable[[int, float], None],
        release: Callable[[], None],
        *,
        encoding: str,
        is_raw: bool,
    ) -> None:
        self._response, self._note = response, note
        self._release: Callable[[], None] | None = release
        self._content = _Unzipped(response.content) if is_raw and encoding in GZIP else response.content
        self.headers = headers = response.headers
        self.span: Span | None = None
        size = None
        content_range = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        # A body that was compressed only for the transfer is decompressed here: its length is not the object's.
        is_plain = encoding in ("", "identity")
        self.is_range = response.status == 206
        if not self.is_range:
            if is_plain and response.content_length is not None:
                size = response.content_length
                self.span = Span(0, size)
        elif content_range is not None and is_plain:
            lo, last, size = map(int, content_range.groups())
            self.span = Span(lo, last + 1)
        has_ranges = size == 0 or (self.is_range and size is not None)
        # A time alone is never strong: a copy may have the time of the object that it replaces.
        opaque, is_strong = parse_tag(headers.get("ETag", ""))
        self.stat = Stat(size, opaque or headers.get("Last-Modified"), has_ranges, is_strong)

    @property
    def packed_bytes(self) -> int | None:
        """Compressed bytes that have arrived; see `ByteSource`."""
        return self._content.received if isinstance(self._content, _Unzipped) else None

    async def read(self, size: int) -> bytes:
        """About ``size`` bytes; none at the end."""
        parts, count = [], 0
        while count < size and (data := await self._content.readany()):
            parts.append(data)
            count += len(data)
        return b"".join(parts)

    async def write_to(self, sink: Sink, span: Span) -> None:
        """Write the body, which is that span, as it arrives."""
        start, at = time.monotonic(), span.lo
        while data := await self._content.readany():
            sink.write(at, data)
            at += len(data)
        if at == span.hi:
            self._note(span.size, time.monotonic() - start)

    def close(self) -> None:
        """Give the connection back, or close it if the body is incomplete."""
        self._response.close()
        release, self._release = self._release, None
        if release is not None:
            release()


class _Unzipped:
    """Decompresses a body that was sent as gzip.

    Args:
        content: the client's.

    Attributes:
        received: compressed bytes so far.
    """

    received: int

    def __init__(self, content: Any) -> None:
        self._content, self.received = content, 0
        self._unzip = self._start()
        self._left = b""
        self._is_full = self._has_begun = False

    async def readany(self) -> bytes:
        """Some bytes, 1 MiB at most; none at the end.

        Raises:
            StalledTransferError: it ended too early, or is not gzip.
        """
        while True:
            data = self._left
            if not (data or self._is_full):
                data = await self._content.readany()
                self.received += len(data)
                if not data and self._has_begun and not self._unzip.eof:
                    raise StalledTransferError("the server's answer, which is compressed, ended too early")
                if not data:
                    return b""
            self._has_begun = True
            if self._unzip.eof:  # another gzip member follows, or zeros, as gzip allows
                data = data.lstrip(b"\0")
                if not data:
                    self._left = b""
                    continue
                self._unzip = self._start()
            try:
                unpacked: bytes = self._unzip.decompress(data, _BUFFER_BYTES)
            except zlib.error as error:
                raise StalledTransferError(f"the answer is not gzip, although its header says so ({error})") from error
            self._is_full = len(unpacked) == _BUFFER_BYTES and not self._unzip.eof
            self._left = self._unzip.unconsumed_tail or self._unzip.unused_data
            if unpacked:
                return unpacked

    @staticmethod
    def _start() -> Any:
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
