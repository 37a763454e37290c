"""The bytes of one URL into one file, over as many tries as it takes: what has arrived is not asked for again.

Rules: many byte ranges at a time where the source has them and says how long it is; else one stream from the start.
Room is asked for before bytes are written. All ranges must come from one version of the source (its entity tag or
times say so); if it changes under way, the transfer begins anew. fsspec's own thread does the waiting, so a transfer
can be cancelled.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections import deque
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from wids.cache import files, pipe, remote, system
from wids.cache.failures import (
    CancelledTransferError,
    InterruptedTransferError,
    StalledTransferError,
    is_transient,
)
from wids.errors import SizeMismatchError
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from wids.cache.remote import Connections

T = TypeVar("T")

BLOCK_BYTES = 4 << 20
# Room is asked for in such steps where nobody says how much will come: as much again as has come.
_LEAST_STEP_BYTES, _STEP_BYTES = 1 << 20, 64 << 20
_POLL_SECONDS, _CLOSE_SECONDS = 0.1, 5.0
_BUFFER_BYTES = 1 << 20
# Other clients read a range as a whole, into memory.
_MOST_BYTES_AT_ONCE = 16 << 20
_SLOWEST_BYTES = 128 << 10  # a second
# What tells two versions of an object apart, by the names that file systems give it.
_MARKS = ("ETag", "etag", "generation", "md5Hash", "crc32c", "LastModified", "last_modified", "updated", "mtime")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Transfer:
    """One URL on its way into a file.

    Args:
        url: any URL that fsspec knows, or a local path.
        path: the file to fill; it exists.
        size: bytes expected, or None.
        storage_options: for the fsspec file system.
        reserve: called with the number of bytes that the file will have, before they are written.
        is_cancelled: asked now and then; True ends the transfer.
        deadline: when it must have ended, by the monotonic clock.

    """

    def __init__(
        self,
        url: str,
        path: str,
        *,
        size: int | None = None,
        storage_options: dict[str, Any] | None = None,
        reserve: Callable[[int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        deadline: float = math.inf,
    ) -> None:
        self._deadline = deadline
        self.url, self.path = url, path
        self._expected = size
        self._storage_options = storage_options
        self._reserve = reserve or (lambda _: None)
        self._is_cancelled = is_cancelled or (lambda: False)
        self._changes = 0
        self._has_ranges = True
        self._fd = -1
        self.begin_anew()

    def run(self) -> None:
        """One try: fetch what is missing.

        Raises:
            SizeMismatchError: the source says another size than expected.
            Exception: whatever the client raises; the bytes that came before it stay.
        """
        self._fd = os.open(self.path, system.WRITE_FLAGS)
        try:
            if urls.scheme_of(self.url) == "pipe":
                self._run_pipe()
                return
            if urls.is_local(self.url):
                fd, facts = files.open_file(os.path.expanduser(urls.local_path(self.url)))
                with open(fd, "rb") as source:
                    self._stream(iter(lambda: source.read(BLOCK_BYTES), b""), size=facts.size)
                return
            filesystem, name = remote.open_filesystem(self.url, self._storage_options)
            if urls.scheme_of(self.url) in ("http", "https"):
                self._run_http(filesystem, name)
            elif getattr(filesystem, "async_impl", False):
                self._run_async(filesystem, name)
            else:
                self._run_sync(filesystem, name)
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    # --- what is known and what is missing

    @property
    def kept_bytes(self) -> int:
        """Bytes that need not be fetched again by another try."""
        if self._size is None or self._missing is None or not self._has_ranges:
            return 0
        return self._size - sum(hi - lo for lo, hi in self._missing)

    def begin_anew(self) -> None:
        """Forget what came: it is damaged, or of another version."""
        self._size: int | None = None
        self._mark: Any = None
        self._missing: list[tuple[int, int]] | None = None

    def _restart(self, why: str) -> InterruptedTransferError:
        """Forget what came; the error that says why. A source that seems to change all the time is read in one go."""
        self._changes += self._missing is not None  # all ranges under way may see one change
        self.begin_anew()
        if self._changes > 1:
            self._has_ranges = False
        return InterruptedTransferError(f"{self.url}: {why}")

    def _learn(self, size: int, mark: Any) -> None:
        """The source has told its size and version: make room, or make sure that they are still the same."""
        if self._expected not in (None, size):
            raise self._wrong_size(size)
        if self._missing is not None:
            if (size, mark) != (self._size, self._mark):
                raise self._restart("it changed while it was fetched")
            return
        self._reserve(size)
        os.ftruncate(self._fd, size)
        self._size, self._mark = size, mark
        self._missing = [(0, size)] if size else []

    def _go_on(self) -> None:
        """End the transfer if nobody wants it any more, or it takes too long in all."""
        if self._is_cancelled():
            raise CancelledTransferError
        if time.monotonic() > self._deadline:
            raise StalledTransferError(f"{self.url}: too slow; the time for all tries is up")

    def _wrong_size(self, size: int, words: str = "") -> SizeMismatchError:
        return SizeMismatchError(
            f"{self.url}: {words}{size} bytes are there, and the index says filesize {self._expected}; fetch it again, "
            "or update the index if the shard was written anew",
            url=self.url,
            expected=self._expected,
            found=size,
        )

    # --- one stream

    def _stream(self, blocks: Iterator[bytes], *, size: int | None) -> None:
        """Write blocks from the file's start on; all that came before is overwritten."""
        self.begin_anew()
        at, reserved = 0, 0
        if size is not None:
            self._learn(size, None)
            self._missing = None  # another try starts at the beginning, too
            reserved = size
        for block in blocks:
            self._go_on()
            if self._expected is not None and at + len(block) > self._expected:
                raise self._wrong_size(at + len(block), "at least ")
            if at + len(block) > reserved:
                reserved = at + len(block) + (min(max(at, _LEAST_STEP_BYTES), _STEP_BYTES) if size is None else 0)
                self._reserve(reserved)
            system.write_all(self._fd, block, at)
            at += len(block)
        os.ftruncate(self._fd, at)
        if size is not None and at < size:
            raise StalledTransferError(f"{self.url}: ended after {at} of {size} bytes")

    def _run_pipe(self) -> None:
        if not pipe.has_own_file(self.url):
            with pipe.run(self.url, self.path, is_cancelled=self._is_cancelled) as blocks:
                self._stream(blocks, size=None)
            return
        if self._expected is not None:
            self._reserve(self._expected)
        with pipe.run(self.url, self.path, is_cancelled=self._is_cancelled) as blocks:
            list(blocks)

    def _run_sync(self, filesystem: Any, name: str) -> None:
        size = filesystem.info(name).get("size")
        with filesystem.open(name, "rb") as source:
            self._stream(iter(lambda: source.read(BLOCK_BYTES), b""), size=size)

    # --- byte ranges, by fsspec's asynchronous file systems

    def _run_async(self, filesystem: Any, name: str) -> None:
        connections = remote.connections()

        async def look() -> tuple[int | None, Any]:
            info = await asyncio.wait_for(filesystem._info(name), remote.READ_SECONDS)  # noqa: SLF001 - fsspec's asynchronous interface is spelt so
            if info.get("type") == "directory":
                raise IsADirectoryError(f"{name} is a directory")
            return info.get("size"), [str(info[key]) for key in _MARKS if key in info]

        async def read(piece: list[int]) -> None:
            lo, hi = piece
            limit = remote.READ_SECONDS + (hi - lo) / _SLOWEST_BYTES
            async with connections.free:
                data = await asyncio.wait_for(filesystem._cat_file(name, start=lo, end=hi), limit)  # noqa: SLF001 - likewise
            if len(data) != hi - lo:
                raise StalledTransferError(f"{self.url}: {len(data)} bytes came of {hi - lo}")
            self._write(data, piece)

        before = size, mark = self._wait(look())
        if size is None:
            self._stream(iter([self._wait(filesystem._cat_file(name))]), size=None)  # noqa: SLF001 - likewise
            return
        self._learn(size, mark)
        most = min(connections.range_bytes(urls.host_of(self.url), size), _MOST_BYTES_AT_ONCE)
        self._wait(self._fetch_missing(read, most=most, count=connections.count))
        if self._wait(look()) != before:
            raise self._restart("it changed while it was fetched")

    # --- HTTP

    def _run_http(self, filesystem: Any, name: str) -> None:
        """As `_run_async`, in one request fewer: the answer to the first range tells the size."""
        connections = remote.connections()
        source = _HttpSource(filesystem, name, urls.host_of(self.url), connections)
        most = connections.range_bytes(source.host, self._size or self._expected)
        lo, end = self._missing[0] if self._missing else (0, self._expected or most)
        answers: list[_Answer] = []
        try:
            opened = self._wait(source.open(lo, min(lo + most, end) if self._has_ranges else None, answers))
            if opened.is_range and opened.total is None:
                self._has_ranges = False
                raise self._restart("the server gave a range, and does not say of how many bytes")
            if opened.hi is None or opened.total is None:  # one stream, of nobody knows how many bytes
                self._stream(iter(lambda: self._wait(opened.read(BLOCK_BYTES)), b""), size=None)
                return
            if opened.is_range and opened.lo != lo:  # what lies before it would be missed
                self._has_ranges = False
                raise self._restart("the server gave another range than was asked for")
            self._has_ranges = opened.is_range
            if not opened.is_range:
                self.begin_anew()  # the server answers with all of it
            self._learn(opened.total, opened.mark)
            begun = [opened.lo, opened.hi]

            async def read(piece: list[int]) -> None:
                if piece is begun:
                    try:
                        await opened.write_to(self._write, piece)
                    finally:
                        opened.close()
                    return
                answer = await source.open(piece[0], piece[1], [])
                try:
                    if not answer.is_range or [answer.lo, answer.hi] != piece:
                        self._has_ranges = False
                        raise self._restart("the server gave ranges, and now gives none")
                    if (answer.total, answer.mark) != (self._size, self._mark):
                        raise self._restart("it changed while it was fetched")
                    await answer.write_to(self._write, piece)
                finally:
                    answer.close()

            self._wait(self._fetch_missing(read, most=most, count=connections.count, begun=begun))
        finally:
            for answer in answers:
                remote.loop().call_soon_threadsafe(answer.close)

    # --- many pieces at a time

    def _write(self, data: bytes, piece: list[int]) -> None:
        """Write what came at the beginning of a piece, which is then shorter."""
        lo, hi = piece
        if lo + len(data) > hi:
            raise self._restart("more bytes came than were asked for")
        system.write_all(self._fd, data, lo)
        piece[0] += len(data)

    async def _fetch_missing(
        self,
        read: Callable[[list[int]], Coroutine[Any, Any, None]],
        *,
        most: int,
        count: int,
        begun: list[int] | None = None,
    ) -> None:
        """Fetch all that is missing; what fails is left missing.

        Args:
            read: fetches a piece, and shortens it as its bytes come.
            most: bytes in a piece.
            count: pieces at a time.
            begun: a piece whose answer is open already.
        """
        waiting = deque(_cut(self._missing or [], most, begun))
        unfinished: list[list[int]] = []

        async def work(piece: list[int] | None) -> None:
            while piece is not None or waiting:
                mine = waiting.popleft() if piece is None else piece
                unfinished.append(mine)
                await read(mine)
                unfinished.remove(mine)
                piece = None

        pieces = [*([begun] if begun else []), *[None] * min(len(waiting), count)]
        workers = [asyncio.ensure_future(work(piece)) for piece in pieces]
        error: Exception | None = None
        try:
            for done in asyncio.as_completed(workers):
                try:
                    await done
                except Exception as failure:  # noqa: BLE001 - raised below, when the others have done what they can
                    error = error or failure
                    if self._missing is None or not is_transient(failure, self.path):
                        break
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            if self._missing is not None:
                self._missing = sorted((lo, hi) for lo, hi in [*waiting, *unfinished] if lo < hi)
        if error is not None:
            raise error

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns that runs in fsspec's thread; it ends with the transfer."""
        future = asyncio.run_coroutine_threadsafe(coroutine, remote.loop())
        try:
            while not futures.wait([future], timeout=_POLL_SECONDS).done:
                self._go_on()
            return future.result()
        finally:
            if not future.done():
                future.cancel()
                # It must not write any more when the file is closed: the descriptor's number may be another file's.
                futures.wait([future], timeout=_CLOSE_SECONDS)


class _HttpSource:
    """One URL, read through the session of fsspec's file system."""

    def __init__(self, filesystem: Any, name: str, host: str, connections: Connections) -> None:
        self.host = host
        self._filesystem, self._name, self._connections = filesystem, name, connections

    async def open(self, lo: int, hi: int | None, answers: list[_Answer]) -> _Answer:
        """Ask for the bytes ``lo .. hi``, or for all of them. The caller closes the answer.

        It is put into ``answers`` too, where a caller that was cancelled finds it.
        """
        options = dict(self._filesystem.kwargs)
        if hi is not None:
            options["headers"] = {**(options.get("headers") or {}), "Range": f"bytes={lo}-{max(hi - 1, lo)}"}
        session = await self._filesystem.set_session()
        connections = self._connections
        await connections.free.acquire()
        response = None
        try:
            start = time.monotonic()
            response = await session.get(self._filesystem.encode_url(self._name), read_bufsize=_BUFFER_BYTES, **options)
            if response.status != 416 or hi is None:
                response.raise_for_status()
                answer = _Answer(response, partial(connections.note, self.host, time.monotonic() - start))
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
        return await self.open(0, None, answers)  # there is nothing to have a range of


class _Answer:
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

    def close(self) -> None:
        """Give the connection back, or end it if there is more to come."""
        self._response.close()
        done, self.on_close = self.on_close, None
        if done is not None:
            done()


def _cut(missing: list[tuple[int, int]], most: int, begun: list[int] | None) -> Iterator[list[int]]:
    """The missing ranges in pieces of at most ``most`` bytes, without the one that has begun, the first of them."""
    for first, hi in missing:
        lo = begun[1] if begun is not None and first <= begun[0] < hi else first
        while lo < hi:
            yield [lo, min(lo + most, hi)]
            lo += most
