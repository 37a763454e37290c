"""The byte sources of local files and of fsspec's file systems, and the one function that picks a URL's source."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

from wids.core.files import atomic, forks, system
from wids.core.place import Place
from wids.core.transport import filesystems, schemes
from wids.core.transport.http import HttpSource
from wids.core.transport.pipe import PipeSource
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import BLOCK_BYTES, HEAD, ByteSource, Stat
from wids.errors import NotAllowedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.transport.source import Precedence, Sink
    from wids.core.transport.spans import Span

# These clients return a range as a whole, in memory.
_MAX_RANGE_BYTES = 16 << 20


def open_source(
    url: str | Place,
    session: Session = PLAIN,
    *,
    go_on: Callable[[], None] = lambda: None,
    path: str | None = None,
    precedence: Precedence | None = None,
) -> ByteSource:
    """The source of a URL's bytes: where a new kind of store is added. The caller closes it.

    Args:
        url: any URL that fsspec knows, ``pipe:command``, or a local path.
        session: opens URLs.
        go_on: see `ByteSource`.
        path: the file for the bytes, which a program may fill itself; without it, no program is run.
        precedence: of a download, which only silence ends; None: requests for samples, each with a total time limit.

    Raises:
        NotAllowedError: the URL is a program, which is not allowed.
        ImportError, ValueError: see `filesystems.open_filesystem`. OSError: a local file cannot be opened.
        FetchError, aiohttp.ClientError: see the store's module in `wids.core.transport.schemes`.
        OSError, botocore.exceptions.BotoCoreError: credentials are missing, or cannot be read.
    """
    place = Place.of(url)
    url = str(place)
    if place.scheme == "pipe":
        if path is None:
            raise NotAllowedError(f"{url}: runs a program, whose output can only be fetched as a whole")
        return PipeSource(url, path, go_on=go_on)
    if place.is_local:
        return LocalSource(place, go_on=go_on)
    store = schemes.find_store(place)
    source = None if store is None else store.open_source(url, session, go_on=go_on, precedence=precedence)
    if source is not None:
        return source
    filesystem, name = filesystems.open_filesystem(place, session, tries_once=True)
    if place.scheme in ("http", "https"):
        return HttpSource(place, filesystem, name, go_on=go_on, precedence=precedence)
    if getattr(filesystem, "async_impl", False):
        with forks.lock:
            from wids.core.transport import buckets
        plain = AsyncSource(place, filesystem, name, go_on=go_on, precedence=precedence)
        return buckets.open_bucket(plain, filesystem, name, session.options_for(place)) or plain
    return SyncSource(place, filesystem, name, go_on=go_on)


class LocalSource(ByteSource):
    """A local file, kept open: bytes of a replacement are not mixed with it."""

    is_blocking: bool = True
    answers_have_stat: bool = False
    url: str
    go_on: Callable[[], None]

    def __init__(self, place: Place, *, go_on: Callable[[], None]) -> None:
        self.url, self.go_on = str(place), go_on
        self._fd, _ = atomic.open_file(place.path)

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """The current stat of the open file, which may be written to."""
        status = os.fstat(self._fd)
        return Stat(status.st_size, (status.st_mtime_ns, status.st_ino), has_ranges=True, is_strong=True)

    async def read(self, span: Span, sink: Sink) -> None:
        """Read a span of the open file; see `ByteSource`."""
        at = span.lo
        while at < span.hi and (data := system.pread(self._fd, span.hi - at, at)):
            sink.write(at, data)
            at += len(data)
        if at < span.hi:  # the file became shorter, so another try cannot help
            sink.learn(self.stat())

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """Stream the open file; see `ByteSource`."""
        at = 0
        while data := system.pread(self._fd, _step(at, end), at):
            yield data
            at += len(data)

    def close(self) -> None:
        """Close the file; see `ByteSource`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _FilesystemSource(ByteSource):
    """An object in a file system of fsspec that is not HTTP."""

    url: str
    go_on: Callable[[], None]
    answers_have_stat: bool = False

    def __init__(self, url: str | Place, filesystem: Any, name: str, *, go_on: Callable[[], None]) -> None:
        place = Place.of(url)
        self.url, self.go_on, self._host = str(place), go_on, place.host
        self._filesystem, self._name = filesystem, name

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Size and version from fsspec's ``info``; see `ByteSource`."""
        if is_fresh:
            self._filesystem.invalidate_cache()
        info = self._info()
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{self._name} is a directory")
        size = info.get("size")
        version, is_strong = filesystems.version_of(info)
        size = None if size is None else int(size)
        return Stat(size, version, has_ranges=size is not None, is_strong=is_strong)

    def _info(self) -> dict[str, Any]:
        raise NotImplementedError


class AsyncSource(_FilesystemSource):
    """An object in an asynchronous file system of fsspec: Azure, ..., and buckets that are not read over HTTP.

    Args:
        url: see `open_source`.
        go_on: see there.
        precedence: see there.
        filesystem: see `filesystems.open_filesystem`.
        name: see there.
    """

    is_blocking: bool = False

    def __init__(
        self,
        url: str | Place,
        filesystem: Any,
        name: str,
        *,
        go_on: Callable[[], None],
        precedence: Precedence | None = None,
    ) -> None:
        super().__init__(url, filesystem, name, go_on=go_on)
        self.precedence = precedence

    def _info(self) -> dict[str, Any]:
        limited = asyncio.wait_for(self._filesystem._info(self._name), filesystems.limit_of(0))  # noqa: SLF001 - fsspec's asynchronous interface is spelt so
        info: dict[str, Any] = filesystems.run(limited, go_on=self.go_on)
        return info

    async def read(self, span: Span, sink: Sink) -> None:
        """Read a span by one request; see `ByteSource`."""
        limit = filesystems.limit_of(span.size)
        release = await filesystems.connections().acquire(self.precedence)
        try:
            got = self._filesystem._cat_file(self._name, start=span.lo, end=span.hi)  # noqa: SLF001 - likewise
            data = await asyncio.wait_for(got, limit)
        finally:
            release()
        sink.write(span.lo, data)

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """Read in one block, the only way of these clients. Without an end, gcsfs sends three requests."""
        size = self.stat(is_fresh=False).size if end is None else end
        options = {} if size is None else {"start": 0, "end": size}
        limit = None if end is None else filesystems.limit_of(min(end, _MAX_RANGE_BYTES))
        got = self._filesystem._cat_file(self._name, **options)  # noqa: SLF001 - likewise
        try:
            data = filesystems.run(asyncio.wait_for(got, limit), go_on=self.go_on)
        except OSError as error:  # an empty object has no range at all
            if error.errno != errno.EINVAL or self.stat().size != 0:
                raise
        else:
            yield bytes(data)

    def range_bytes(self, size: int | None) -> int:
        """Length of the ranges that the host is read in; see `ByteSource`."""
        return min(filesystems.connections().range_bytes(self._host, size), _MAX_RANGE_BYTES)


class SyncSource(_FilesystemSource):
    """An object in a file system of fsspec that blocks: memory, SFTP, chains, archives, ..."""

    is_blocking: bool = True
    _file: Any = None

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._filesystem.info(self._name)
        return info

    async def read(self, span: Span, sink: Sink) -> None:
        """Read a span by the client's ``cat_file``; see `ByteSource`."""
        from fsspec import AbstractFileSystem

        # fsspec's own one reads through a file that would fetch megabytes ahead.
        is_general = getattr(type(self._filesystem), "cat_file", None) is AbstractFileSystem.cat_file
        options = {"cache_type": "none"} if is_general else {}
        sink.write(span.lo, self._filesystem.cat_file(self._name, start=span.lo, end=span.hi, **options))

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:
        """Read through one open file: opening it for each range could decompress it, or log in, each time."""
        from fsspec.spec import AbstractBufferedFile

        self.close()
        at = 0
        # `close` closes it: the collector may end this generator, and must not wait for a server.
        file = self._file = self._filesystem.open(self._name, "rb")
        if in_one_request and isinstance(file, AbstractBufferedFile):  # each read of it is a request
            yield file.read(-1 if end is None else end)
        else:
            while data := file.read(_step(at, end)):
                yield data
                at += len(data)
        self.close()

    def close(self) -> None:
        """Close the client's file; see `ByteSource`."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _step(at: int, end: int | None) -> int:
    """The length of the next block of a stream."""
    return BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - at)
