"""One URL over HTTP, range by range, through the session of fsspec's file system.

Rules: an answer says which bytes it holds, of how many, and of which version; whoever asked decides whether that will
do. All connections of a process are counted together.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.transport.failures import StalledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.transport.filesystems import Connections

_BUFFER_BYTES = 1 << 20
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HttpSource:
    """One URL, read through the session of fsspec's file system."""

    def __init__(self, filesystem: Any, name: str, host: str, connections: Connections) -> None:
        self.host = host
        self._filesystem, self._name, self._connections = filesystem, name, connections

    async def open(self, lo: int, hi: int | None, answers: list[Answer], *, seconds: float | None = None) -> Answer:
        """Ask for the bytes ``lo .. hi``, or for all of them. The caller closes the answer.

        It is put into ``answers`` too, where a caller that was cancelled finds it. ``seconds``: how long it may take
        in all, from the request to the last byte: a server that sends a byte a minute never seems to stall.
        """
        options = dict(self._filesystem.kwargs)
        if hi is not None:
            options["headers"] = {**(options.get("headers") or {}), "Range": f"bytes={lo}-{max(hi - 1, lo)}"}
        session = await self._filesystem.set_session()
        if seconds is not None and "timeout" not in options:
            options["timeout"] = _within(session.timeout, seconds)
        connections = self._connections
        await connections.free.acquire()
        response = None
        try:
            start = time.monotonic()
            response = await session.get(self._filesystem.encode_url(self._name), read_bufsize=_BUFFER_BYTES, **options)
            if response.status != 416 or hi is None:
                response.raise_for_status()
                answer = Answer(response, partial(connections.note, self.host, time.monotonic() - start))
                answer.on_close = connections.free.release
                answers.append(answer)
                return answer
        except BaseException:
            connections.free.release()
            if response is not None:
                response.close()
            raise
        connections.free.release()
        response.close()
        return await self.open(0, None, answers, seconds=seconds)  # there is nothing to have a range of


def _within(limits: Any, seconds: float) -> Any:
    """The client's time limits, and no more than ``seconds`` in all."""
    return type(limits)(
        total=min(seconds, limits.total or seconds),
        connect=limits.connect,
        sock_connect=limits.sock_connect,
        sock_read=limits.sock_read,
    )


class Answer:
    """The answer to a request, its body not yet read.

    Attributes:
        is_range: it holds a range of the whole. lo, hi: which one, half-open; hi is None where nobody says.
        total: bytes of the whole, or None. mark: its version.
        on_close: called once, when it is closed.
    """

    on_close: Callable[[], None] | None = None

    def __init__(self, response: Any, note: Callable[[int, float], None]) -> None:
        self._response, self._note = response, note
        headers = response.headers
        self.mark = headers.get("ETag") or headers.get("Last-Modified")
        self.lo, self.hi, self.total = 0, None, None
        found = _RANGE.fullmatch(headers.get("Content-Range", "").strip())
        # A body that was compressed for the wire is unpacked on the way: its length says nothing.
        is_plain = headers.get("Content-Encoding", "").strip().lower() in ("", "identity")
        self.is_range = response.status == 206
        if not self.is_range:
            if is_plain and response.content_length is not None:
                self.hi = self.total = response.content_length
        elif found is not None and is_plain:
            self.lo, last, self.total = map(int, found.groups())
            self.hi = last + 1

    async def read(self, size: int) -> bytes:
        """About ``size`` bytes; none at the end."""
        parts, count = [], 0
        while count < size and (data := await self._response.content.readany()):
            parts.append(data)
            count += len(data)
        return b"".join(parts)

    async def write_to(self, write: Callable[[bytes, list[int]], None], piece: list[int]) -> None:
        """Write the body to where ``piece`` says, as it comes."""
        start, first = time.monotonic(), piece[0]
        while data := await self._response.content.readany():
            write(data, piece)
        if piece[0] < piece[1]:
            raise StalledTransferError(f"{self._response.url}: ended {piece[1] - piece[0]} bytes early")
        self._note(piece[0] - first, time.monotonic() - start)

    async def read_all(self) -> bytes:
        """The body of an answer that says how long it is."""
        start, parts, count = time.monotonic(), [], 0
        while count <= (self.hi or 0) - self.lo and (data := await self._response.content.readany()):
            parts.append(data)
            count += len(data)
        self._note(count, time.monotonic() - start)
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back, or end it if there is more to come."""
        self._response.close()
        done, self.on_close = self.on_close, None
        if done is not None:
            done()
