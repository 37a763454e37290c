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
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from wids.errors import SizeMismatchError
from wids.index import urls
from wids.osfiles import atomic, system
from wids.transport import filesystems, pipe
from wids.transport.failures import (
    CancelledTransferError,
    InterruptedTransferError,
    StalledTransferError,
    is_transient,
)
from wids.transport.http import Answer, HttpSource

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


T = TypeVar("T")

BLOCK_BYTES = 4 << 20
# Room is asked for in such steps where nobody says how much will come: as much again as has come.
_LEAST_STEP_BYTES, _STEP_BYTES = 1 << 20, 64 << 20
# Other clients read a range as a whole, into memory.
_MOST_BYTES_AT_ONCE = 16 << 20
_SLOWEST_BYTES = 128 << 10  # a second


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
                fd, facts = atomic.open_file(os.path.expanduser(urls.local_path(self.url)))
                with open(fd, "rb") as source:
                    self._stream(iter(lambda: source.read(BLOCK_BYTES), b""), size=facts.size)
                return
            filesystem, name = filesystems.open_filesystem(self.url, self._storage_options)
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
        connections = filesystems.connections()

        async def look() -> tuple[int | None, Any]:
            info = await asyncio.wait_for(filesystem._info(name), filesystems.READ_SECONDS)  # noqa: SLF001 - fsspec's asynchronous interface is spelt so
            if info.get("type") == "directory":
                raise IsADirectoryError(f"{name} is a directory")
            return info.get("size"), filesystems.version_of(info)

        async def read(piece: list[int]) -> None:
            lo, hi = piece
            limit = filesystems.READ_SECONDS + (hi - lo) / _SLOWEST_BYTES
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
        connections = filesystems.connections()
        source = HttpSource(filesystem, name, urls.host_of(self.url), connections)
        most = connections.range_bytes(source.host, self._size or self._expected)
        lo, end = self._missing[0] if self._missing else (0, self._expected or most)
        answers: list[Answer] = []
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
                filesystems.loop().call_soon_threadsafe(answer.close)

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
        return filesystems.run(coroutine, go_on=self._go_on)


def _cut(missing: list[tuple[int, int]], most: int, begun: list[int] | None) -> Iterator[list[int]]:
    """The missing ranges in pieces of at most ``most`` bytes, without the one that has begun, the first of them."""
    for first, hi in missing:
        lo = begun[1] if begun is not None and first <= begun[0] < hi else first
        while lo < hi:
            yield [lo, min(lo + most, hi)]
            lo += most
