"""A shard's bytes where they are, read by position: a local file, or byte ranges of a remote object.

Rules: nothing is written to a disk. All that is read comes from one version of the object; when it changes, the read
says so. Pieces that lie so close together that another request would take longer are one request, and requests run
at the same time. A remote object that gives no ranges is refused, never read as a whole by surprise.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.errors import ChangedShardError, FetchError
from wids.index import table as tables
from wids.index import tar, urls
from wids.osfiles import atomic, system
from wids.transport import filesystems, retrying
from wids.transport.failures import InterruptedTransferError, StalledTransferError, is_transient
from wids.transport.header_reader import Window
from wids.transport.http import HttpSource

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeAlias

    from typing_extensions import Self

    from wids.events import Hook
    from wids.index.table import Group, Identity, KeyRule, MemberTable

    Piece: TypeAlias = tuple[int, int]  # half-open
    # Spans to ask for, each with the pieces that lie in it.
    Spans: TypeAlias = dict[Piece, list[Piece]]

_LOOK_BYTES = 512
# Close pieces are one request up to here: what lies between them is held until the request is done, and one connection
# brings less than several.
_MOST_SPAN_BYTES = 16 << 20


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
        """Whether pieces can be had at all, and somebody says of how many bytes; asks, if nobody has yet."""
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
        return filesystems.connections().gap_bytes(urls.host_of(self.url))

    @property
    def size(self) -> int:
        """Bytes of the whole.

        Raises:
            FetchError: nobody says how many.
        """
        if self._size is None and not self._has_looked:
            self._look()
        if self._size is None:
            raise FetchError(f"{self.url}: nobody says how long it is; fetch the shard as a whole", url=self.url)
        return self._size

    @property
    def mark(self) -> Any:
        """What tells this version from others (entity tag, generation, times); None where nobody says."""
        if not self._has_looked:
            self._look()
        return self._mark

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset`` on; fewer only at the object's end. Much comes over all connections.

        Raises:
            FetchError: they cannot be had. ChangedShardError: the object is another one now.
        """
        if self._fd >= 0:
            return self._read_file(offset, offset + size)
        end = min(offset + size, self.size)
        step = filesystems.connections().range_bytes(urls.host_of(self.url), size)
        pieces = [(lo, min(lo + step, end)) for lo in range(offset, end, step)]
        done = self._get({piece: [piece] for piece in pieces})
        return b"".join(done[piece] for piece in pieces)

    def read_many(self, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of several pieces (lo, hi), half-open, in their order; each ends at the end of the object at most.

        Raises:
            FetchError, ChangedShardError: as for `read`.
        """
        if self._fd >= 0:
            return [self._read_file(lo, hi) for lo, hi in pieces]
        end = self.size
        wanted = [(lo, min(hi, end)) for lo, hi in pieces]
        done = self._get(self._coalesce(wanted))
        return [done.get(piece, b"") for piece in wanted]

    def _get(self, waiting: Spans) -> dict[Piece, bytes]:
        """The pieces of all spans."""
        done: dict[Piece, bytes] = {}
        if waiting:
            if not self._has_ranges:  # found out before: no use in asking again
                raise self._no_ranges()
            retrying.try_repeatedly(
                partial(self._fetch, waiting, done),
                url=self.url,
                path=None,
                hooks=self._hooks,
                kept=lambda: len(done),
            )
        return done

    # --- a local file

    def _open_file(self) -> None:
        path = os.path.expanduser(urls.local_path(self.url))

        def once() -> None:
            self._fd, facts = atomic.open_file(path)
            self._check_size(facts.size)
            self._size, self._mark, self._has_looked = facts.size, f"{facts.mtime_ns}", True

        try:
            retrying.try_repeatedly(once, url=self.url, path=None, hooks=())
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

    def _coalesce(self, wanted: Sequence[Piece]) -> Spans:
        """Spans to ask for, in order, that hold all pieces but the empty ones."""
        gap = self._gap_bytes()
        found: list[tuple[Piece, list[Piece]]] = []
        for piece in sorted({piece for piece in wanted if piece[0] < piece[1]}):
            if found:
                (lo, hi), inside = found[-1]
                end = max(hi, piece[1])
                if piece[0] - hi <= gap and end - lo <= max(_MOST_SPAN_BYTES, hi - lo):
                    inside.append(piece)
                    found[-1] = (lo, end), inside
                    continue
            found.append((piece, [piece]))
        return dict(found)

    def _fetch(self, waiting: Spans, done: dict[Piece, bytes]) -> None:
        """One try: those spans that still wait."""
        missing = list(waiting)
        filesystem, name = filesystems.open_filesystem(self.url, self._storage_options)
        scheme = urls.scheme_of(self.url)
        if scheme in ("http", "https"):
            source = HttpSource(filesystem, name, urls.host_of(self.url), filesystems.connections())
            filesystems.run(_work_off([partial(self._fetch_http, source, span, waiting, done) for span in missing]))
            return
        if getattr(filesystem, "async_impl", False):
            filesystems.run(
                _work_off([partial(self._fetch_async, filesystem, name, span, waiting, done) for span in missing])
            )
        else:
            for lo, hi in missing:
                data = filesystem.cat_file(name, start=lo, end=hi, **_as_asked(filesystem))
                self._take((lo, hi), data, waiting, done)
        # What came is of one version if it is the same afterwards. A try that fails here goes on here: nothing that
        # was not looked at is given out.
        self._look_once()

    async def _fetch_http(self, source: HttpSource, span: Piece, waiting: Spans, done: dict[Piece, bytes]) -> None:
        answer = await source.open(*span, [], seconds=filesystems.limit_of(span[1] - span[0]))
        try:
            if answer.total is not None:
                self._learn(answer.total, answer.mark)
            if not answer.is_range or answer.total is None:
                raise self._no_ranges()
            if (answer.lo, answer.hi) != span:
                raise InterruptedTransferError(f"{self.url}: the server gave another range than was asked for")
            self._take(span, await answer.read_all(), waiting, done)
        finally:
            answer.close()

    async def _fetch_async(
        self, filesystem: Any, name: str, span: Piece, waiting: Spans, done: dict[Piece, bytes]
    ) -> None:
        lo, hi = span
        async with filesystems.connections().free:
            data = await asyncio.wait_for(filesystem._cat_file(name, start=lo, end=hi), filesystems.limit_of(hi - lo))  # noqa: SLF001 - fsspec's asynchronous interface is spelt so
        self._take(span, data, waiting, done)

    def _take(self, span: Piece, data: bytes, waiting: Spans, done: dict[Piece, bytes]) -> None:
        """Cut the pieces out of what came: what lies between them is let go of at once."""
        begin, end = span
        if len(data) != end - begin:
            raise StalledTransferError(f"{self.url}: {len(data)} bytes came of {end - begin}")
        self.requests, self.read_bytes = self.requests + 1, self.read_bytes + len(data)
        done.update({(lo, hi): data[lo - begin : hi - begin] for lo, hi in waiting.pop(span)})

    def _look(self) -> None:
        """Ask for size and version, and see that they are what they were."""
        retrying.try_repeatedly(self._look_once, url=self.url, path=None, hooks=self._hooks)

    def _look_once(self) -> None:
        filesystem, name = filesystems.open_filesystem(self.url, self._storage_options)
        self.requests += 1
        if urls.scheme_of(self.url) in ("http", "https"):
            source = HttpSource(filesystem, name, urls.host_of(self.url), filesystems.connections())
            filesystems.run(self._look_http(source))
            return
        filesystem.invalidate_cache()
        if getattr(filesystem, "async_impl", False):
            info = filesystems.run(asyncio.wait_for(filesystem._info(name), filesystems.limit_of(0)))  # noqa: SLF001 - as above
        else:
            info = filesystem.info(name)
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{name} is a directory")
        size = info.get("size")
        self._has_ranges = size is not None
        self._learn(None if size is None else int(size), filesystems.version_of(info) or None)

    async def _look_http(self, source: HttpSource) -> None:
        """By a range, not by HEAD: what is signed for GET refuses anything else."""
        answer = await source.open(0, _LOOK_BYTES, [], seconds=filesystems.limit_of(_LOOK_BYTES))
        try:
            self._has_ranges = answer.total is not None and (answer.is_range or answer.total == 0)
            self._learn(answer.total, answer.mark)
        finally:
            answer.close()

    def _learn(self, size: int | None, mark: Any) -> None:
        if size is not None:
            self._check_size(size)
        if self._has_looked and mark != self._mark:
            raise self._changed(self._mark, mark)
        self._size = self._size if size is None else size
        self._mark, self._has_looked = mark, True

    def _no_ranges(self) -> FetchError:
        return FetchError(
            f"{self.url}: the server gives no byte ranges; the shard can only be fetched as a whole", url=self.url
        )

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


async def _work_off(jobs: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Do all, some at a time. After an error those that have begun end, or what they bring would be asked for again.

    After one that is final they are given up.
    """
    waiting = deque(jobs)
    errors: list[Exception] = []

    async def work() -> None:
        while waiting and not errors:
            try:
                await waiting.popleft()()
            except Exception as error:
                errors.append(error)
                if not is_transient(error, None):
                    raise

    workers = [asyncio.ensure_future(work()) for _ in range(min(len(jobs), filesystems.connections().count))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if errors:
        raise errors[0]


def scan_table(
    source: ShardBytes, identity: Identity, *, rule: KeyRule = "first-dot", group: Group = "adjacent"
) -> MemberTable:
    """The member table of a shard from its headers; what lies between them is read only where that is quicker.

    Raises:
        FetchError: it cannot be had. ShardError: it is not a readable tar.
    """
    members = tar.scan(Window(source.read, source.size).read, source.size, shard=source.url)
    return tables.build_table(members, identity=identity, shard=source.url, rule=rule, group=group)


def _as_asked(filesystem: Any) -> dict[str, Any]:
    """Options for `cat_file`. fsspec's own one reads through a file that would fetch megabytes ahead."""
    from fsspec import AbstractFileSystem

    is_general = getattr(type(filesystem), "cat_file", None) is AbstractFileSystem.cat_file
    return {"cache_type": "none"} if is_general else {}
