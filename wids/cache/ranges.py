"""A shard's bytes where they are, read by position: a local file, or byte ranges of a remote object.

Rules: nothing is written to a disk. All that is read comes from one version of the object; when it changes, the read
says so. Pieces that lie so close together that another request would take longer are one request, and requests run
at the same time. A remote object that gives no ranges is refused, never read as a whole by surprise.
"""

from __future__ import annotations

import asyncio
import math
import os
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.cache import fetch, files, remote, system
from wids.cache.failures import InterruptedTransferError, StalledTransferError
from wids.cache.http import HttpSource
from wids.errors import ChangedShardError, FetchError
from wids.index import table as tables
from wids.index import tar, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from wids.events import Hook
    from wids.index.table import Group, Identity, KeyRule, MemberTable

_LOOK_BYTES = 512
_SLOWEST_BYTES = 128 << 10  # a second


class ShardBytes:
    """The bytes of one shard, by position. Threads may share it; a forked child opens its own.

    Args:
        url: any URL that fsspec knows, or a local path.
        storage_options: for the fsspec file system.
        hooks: told of retries.
        size: what the index says of it, if it does; the object is then asked for nothing before the first read.

    Attributes:
        requests: how many were made. read_bytes: how many bytes they brought.

    Raises:
        FetchError: it cannot be read, or gives no ranges. ChangedShardError: it is not of ``size`` bytes.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: dict[str, Any] | None = None,
        hooks: Sequence[Hook] = (),
        size: int | None = None,
    ) -> None:
        self.url, self._storage_options, self._hooks = url, storage_options, hooks
        self.requests = self.read_bytes = 0
        self._fd = -1
        self._size, self._has_looked = size, False
        self._mark: Any = None
        self._has_ranges = True
        if urls.scheme_of(url) == "pipe":
            raise FetchError(f"{url}: the output of a program has no positions; fetch it as a whole", url=url)
        if urls.is_local(url):
            self._open_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is held."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def has_ranges(self) -> bool:
        """Whether pieces can be had at all; asks, if nobody has yet."""
        if not self._has_looked:
            self._look()
        return self._has_ranges

    @property
    def is_remote(self) -> bool:
        """Whether a request takes its time."""
        return self._fd < 0

    @property
    def spent_bytes(self) -> float:
        """What was read, and what could have been read in the time that the requests took to be answered."""
        return self.read_bytes + self.requests * self._gap_bytes()

    def scan_bytes(self, nsamples: int | None) -> float:
        """What reading the headers of so many samples costs at least, in the same measure; infinite if nobody knows."""
        return math.inf if nsamples is None else 2 * nsamples * self._gap_bytes()

    def _gap_bytes(self) -> int:
        return remote.connections().gap_bytes(urls.host_of(self.url))

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self._look() if self._size is None else self._size

    @property
    def mark(self) -> Any:
        """What tells this version from others (entity tag, generation, times); None where nobody says."""
        if not self._has_looked:
            self._look()
        return self._mark

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the end of the object.

        Raises:
            FetchError: they cannot be had. ChangedShardError: the object is another one now.
        """
        return self.read_many([(offset, offset + size)])[0]

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of several pieces (lo, hi), half-open, in their order; each ends at the end of the object at most.

        Raises:
            FetchError, ChangedShardError: as for `read`.
        """
        end = self.size if self._fd < 0 else None
        wanted = [(lo, hi if end is None else min(hi, end)) for lo, hi in pieces]
        if self._fd >= 0:
            return [self._read_file(lo, hi) for lo, hi in wanted]
        spans = self._coalesce(wanted)
        done: dict[tuple[int, int], bytes] = {}
        fetch.try_repeatedly(partial(self._fetch, spans, done), url=self.url, path=None, hooks=self._hooks)
        return [_cut(spans, done, lo, hi) for lo, hi in wanted]

    # --- a local file

    def _open_file(self) -> None:
        path = os.path.expanduser(urls.local_path(self.url))

        def once() -> None:
            self._fd, facts = files.open_file(path)
            self._check_size(facts.size)
            self._size, self._mark, self._has_looked = facts.size, f"{facts.mtime_ns}", True

        try:
            fetch.try_repeatedly(once, url=self.url, path=None, hooks=())
        except BaseException:
            self.close()
            raise

    def _read_file(self, lo: int, hi: int) -> bytes:
        parts = []
        while lo < hi:
            part = system.pread(self._fd, hi - lo, lo)
            if not part:
                break
            self.requests, self.read_bytes = self.requests + 1, self.read_bytes + len(part)
            parts.append(part)
            lo += len(part)
        return b"".join(parts)

    # --- a remote object

    def _coalesce(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Spans to ask for, in order and apart, that hold all pieces."""
        gap = self._gap_bytes()
        spans: list[tuple[int, int]] = []
        for lo, hi in sorted(piece for piece in wanted if piece[0] < piece[1]):
            if spans and lo - spans[-1][1] <= gap:
                spans[-1] = spans[-1][0], max(spans[-1][1], hi)
            else:
                spans.append((lo, hi))
        return spans

    def _fetch(self, spans: list[tuple[int, int]], done: dict[tuple[int, int], bytes]) -> None:
        """One try: those spans that are not done."""
        missing = [span for span in spans if span not in done]
        if not missing:
            return
        filesystem, name = remote.open_filesystem(self.url, self._storage_options)
        scheme = urls.scheme_of(self.url)
        if scheme in ("http", "https"):
            source = HttpSource(filesystem, name, urls.host_of(self.url), remote.connections())
            remote.run(_gather([self._fetch_http(source, span, done) for span in missing]))
            return
        if getattr(filesystem, "async_impl", False):
            remote.run(_gather([self._fetch_async(filesystem, name, span, done) for span in missing]))
        else:
            for span in missing:
                self._take(span, filesystem.cat_file(name, start=span[0], end=span[1]), done)
        try:
            self._look()  # what came is of one version if it is the same afterwards
        except ChangedShardError:
            done.clear()
            raise

    async def _fetch_http(self, source: HttpSource, span: tuple[int, int], done: dict[tuple[int, int], bytes]) -> None:
        answer = await source.open(*span, [])
        try:
            if answer.total is not None:
                self._learn(answer.total, answer.mark)
            if not answer.is_range or answer.total is None:
                raise FetchError(
                    f"{self.url}: the server gives no byte ranges; the shard can only be fetched as a whole",
                    url=self.url,
                )
            if (answer.lo, answer.hi) != span:
                raise InterruptedTransferError(f"{self.url}: the server gave another range than was asked for")
            self._take(span, await answer.read_all(), done)
        finally:
            answer.close()

    async def _fetch_async(
        self, filesystem: Any, name: str, span: tuple[int, int], done: dict[tuple[int, int], bytes]
    ) -> None:
        lo, hi = span
        limit = remote.READ_SECONDS + (hi - lo) / _SLOWEST_BYTES
        async with remote.connections().free:
            data = await asyncio.wait_for(filesystem._cat_file(name, start=lo, end=hi), limit)  # noqa: SLF001 - fsspec's asynchronous interface is spelt so
        self._take(span, data, done)

    def _take(self, span: tuple[int, int], data: bytes, done: dict[tuple[int, int], bytes]) -> None:
        if len(data) != span[1] - span[0]:
            raise StalledTransferError(f"{self.url}: {len(data)} bytes came of {span[1] - span[0]}")
        self.requests, self.read_bytes = self.requests + 1, self.read_bytes + len(data)
        done[span] = data

    def _look(self) -> int:
        """Ask for size and version, and see that they are what they were; gives the size."""

        def once() -> int:
            filesystem, name = remote.open_filesystem(self.url, self._storage_options)
            self.requests += 1
            if urls.scheme_of(self.url) in ("http", "https"):
                source = HttpSource(filesystem, name, urls.host_of(self.url), remote.connections())
                return remote.run(self._look_http(source))
            filesystem.invalidate_cache()
            info = filesystem.info(name)
            if info.get("type") == "directory":
                raise IsADirectoryError(f"{name} is a directory")
            if info.get("size") is None:
                raise FetchError(f"{self.url}: nobody says how long it is; fetch the shard as a whole", url=self.url)
            return self._learn(int(info["size"]), remote.version_of(info) or None)

        return fetch.try_repeatedly(once, url=self.url, path=None, hooks=self._hooks)

    async def _look_http(self, source: HttpSource) -> int:
        """By a range, not by HEAD: what is signed for GET refuses anything else."""
        answer = await source.open(0, _LOOK_BYTES, [])
        try:
            if answer.total is None:
                raise FetchError(
                    f"{self.url}: the server does not say how long it is; fetch the shard as a whole", url=self.url
                )
            self._has_ranges = answer.is_range or answer.total == 0
            return self._learn(answer.total, answer.mark)
        finally:
            answer.close()

    def _learn(self, size: int, mark: Any) -> int:
        self._check_size(size)
        if self._has_looked and mark != self._mark:
            raise self._changed(self._mark, mark)
        self._size, self._mark, self._has_looked = size, mark, True
        return size

    def _check_size(self, size: int) -> None:
        if self._size is not None and size != self._size:
            raise self._changed(self._size, size)

    def _changed(self, expected: Any, found: Any) -> ChangedShardError:
        return ChangedShardError(
            f"{self.url}: it was {expected}, and is {found} now; open the dataset again, and update the index if the "
            "shard was written anew",
            shard=self.url,
            expected=expected,
            found=found,
        )


async def _gather(coroutines: list[Any]) -> None:
    """Run all; the first error ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cut(spans: list[tuple[int, int]], done: dict[tuple[int, int], bytes], lo: int, hi: int) -> bytes:
    """A piece out of the span that holds it."""
    if lo >= hi:
        return b""
    span = spans[bisect_right(spans, lo, key=lambda span: span[0]) - 1]
    return done[span][lo - span[0] : hi - span[0]]


def scan_table(
    source: ShardBytes, identity: Identity, *, rule: KeyRule = "first-dot", group: Group = "adjacent"
) -> MemberTable:
    """The member table of a shard from its headers; what lies between them is read only where that is quicker.

    Raises:
        FetchError: it cannot be had. ShardError: it is not a readable tar.
    """
    members = tar.scan(_read_on(source), source.size, shard=source.url)
    return tables.build_table(members, identity=identity, shard=source.url, rule=rule, group=group)


def _read_on(source: ShardBytes) -> Callable[[int, int], bytes]:
    """A function (offset, size) -> bytes, for one who reads forwards, by requests that are worth their time."""
    least = remote.connections().gap_bytes(urls.host_of(source.url)) if source.is_remote else 0
    begin, data = 0, b""

    def read(offset: int, size: int) -> bytes:
        nonlocal begin, data
        at = offset - begin
        is_there = at >= 0 and (at + size <= len(data) or (at <= len(data) and begin + len(data) == source.size))
        if not is_there:
            begin, data, at = offset, source.read(offset, max(size, least)), 0
        return data[at : at + size]

    return read
