"""One download of one shard into a cache directory: reserve, download, verify, publish, lease."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import msgspec

from wids.core.cache.directory import writing
from wids.core.cache.freshness import mark_of, version_mark
from wids.core.cache.leases import Lease
from wids.core.cache.space import table_allowance
from wids.core.files import atomic, locks, system
from wids.core.index import checksums
from wids.core.tables import member_tables, tar
from wids.core.tables import table as tables
from wids.core.transport import download
from wids.core.transport.failures import InterruptedTransferError
from wids.core.transport.schemes import find_store
from wids.errors import DigestMismatchError, EmptyShardError, SizeMismatchError, WrongContentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.cache.located import Located
    from wids.core.cache.space import Space
    from wids.core.files.identity import Identity
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session

_PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<!doctype xml")


class CachedShard(NamedTuple):
    """A shard of the cache, open; who gets it closes the lease.

    Attributes:
        lease: its file.
        table: the member table that holds for its bytes.
    """

    lease: Lease
    table: MemberTable


class ShardDownload:
    """The download of a shard, with the lock of its name held.

    Args:
        located: the shard, and its path.
        space: of its directory.
        origin: see `wids.core.cache.placement.Placement.origin`.
        session: opens its URL; its hooks are called for each retry.
        lock: of its name.
        after: see `wids.core.cache.space.Space.reserve`.
        is_cancelled: asked now and then; once it says True, the transfer ends.
        size: its bytes, about, where the index does not say.

    Attributes:
        requests: number of its requests.
    """

    requests: int = 0

    def __init__(
        self,
        located: Located,
        *,
        space: Space,
        origin: Callable[[], str | None],
        session: Session,
        lock: locks.HeldLock,
        after: float | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        size: int | None = None,
    ) -> None:
        self._place, self._shard, self._path = located.place, located.expected, located.path
        self._space = space
        self._size = size if self._shard.filesize is None else self._shard.filesize
        self._find_origin, self._origin = origin, origin()
        self._session, self._lock = session, lock
        self._after, self._is_cancelled = after, is_cancelled
        self._directory, self._name = located.directory, located.name
        self._verified: CachedShard | None = None
        self._waited = 0.0  # seconds, for space
        self._version = ""

    def run(self) -> CachedShard:
        """Download, verify and publish the shard.

        Raises:
            WidsError: it cannot be read, or differs from the index. CacheFull: there is no space for it.
            CancelledTransferError: it was cancelled.
        """
        staging = self._directory.staging(self._name)
        with (
            atomic.part_file(staging) as (self._part, self._fd),
            atomic.part_file(staging + tables.SUFFIX) as (self._table_part, self._table_fd),
        ):
            for fd in (self._fd, self._table_fd):  # if this process is killed, other users see that they are left
                self._directory.share_for_reading(fd)
            if self._size is not None:
                self._reserve(self._size)
            try:
                cached = self._download()
                self._publish(*cached)
            except BaseException:
                self._close_verified()
                raise
            return cached

    def _download(self) -> CachedShard:
        start, waited = time.monotonic(), self._waited
        self.requests = download.download_to(
            self._place,
            self._part,
            check=self._verify,
            size=self._shard.filesize,
            reserve=self._reserve,
            grow=partial(self._reserve, is_final=False),
            look=self._look,
            is_cancelled=self._is_ended,
            is_ahead=self._after is not None,
            has_checksum=bool(checksums.promised(self._shard)),
            on_version=self._note_version,
            session=self._session,
        )
        verified = cast("CachedShard", self._verified)  # by `_verify`
        self._space.note_download(verified.table.identity.size, time.monotonic() - start - (self._waited - waited))
        return verified

    def _note_version(self, version: Any) -> None:
        self._version = version_mark(version)

    def _look(self, head: bytes) -> None:
        """Raise unless the bytes that come first can be the shard's."""
        check_start(self._shard.url, head)
        if self._shard.nsamples and not any(head):
            self._raise_empty(f"the first {len(head)} bytes are zeros, as of an archive")

    def _raise_empty(self, words: str) -> NoReturn:
        raise EmptyShardError(
            f"{self._shard.url}: {words} without a sample, and the index says nsamples {self._shard.nsamples}; fetch "
            "it again, or update the index if the shard was rewritten",
            shard=self._shard.url,
            offset=0,
        )

    def _reserve(self, size: int, table_bytes: int | None = None, *, is_final: bool = True) -> None:
        """Have space for a shard of ``size`` bytes, or of more if that is not final, and its table."""
        if table_bytes is None:
            table_bytes = table_allowance(size, self._shard.nsamples)
        files = [(self._fd, size), (self._table_fd, table_bytes)]
        start = time.monotonic()
        self._space.reserve(files, url=self._shard.url, after=self._after, is_final=is_final, go_on=self._lock.touch)
        self._waited += time.monotonic() - start

    def _is_ended(self) -> bool:
        """True if it was cancelled; asked all the time while bytes come, or are waited for."""
        self._lock.touch()
        return self._is_cancelled is not None and self._is_cancelled()

    def _verify(self) -> None:
        """Check that the file that arrived is the shard, and learn its members."""
        self._close_verified()
        shard = self._shard
        # By name: a pipe: program may replace the part file instead of filling it.
        lease, identity = Lease.open(self._part)
        with lease.closing_on_error():
            fd = lease.fd
            before, self._origin = self._origin, self._find_origin()
            if not {*(before or "").split()} <= {*(self._origin or "").split()}:  # a download finds out more
                raise InterruptedTransferError(f"{shard.url}: was rewritten while it was copied")
            check_content(shard.url, system.pread(fd, 512, 0))
            check_file(shard, fd, go_on=self._lock.touch)
            if not checksums.promised(shard):
                self._compare_with_listing(fd)
            self._reserve(identity.size)
            self._lock.touch()
            os.fsync(fd)  # a name that survives a power cut must not name bytes that did not
            table = member_tables.scan_table(fd, shard.url, identify(fd, shard, self._origin, version=self._version))
            member_tables.announce(self._session.hooks, shard.url, table)
            if not table.nsamples and shard.nsamples:  # zeros are what an empty tar is made of
                self._raise_empty(f"{identity.size} bytes arrived")
        self._verified = CachedShard(lease, table)

    def _compare_with_listing(self, fd: int) -> None:
        """Compare it with the listing of its store, if that has a sha256."""
        url = self._shard.url
        store = find_store(self._place)
        known = None if store is None else store.known_file(url, self._session)
        if known is None or known.sha256 is None:
            return
        said = known.sha256
        os.lseek(fd, 0, os.SEEK_SET)
        sha256 = file_digest(fd, "sha256", go_on=self._lock.touch)
        if sha256 != said:
            raise DigestMismatchError(
                f"{url}: the sha256 of the received bytes is {sha256}, and its listing says {said}; fetch it again and "
                "look for a proxy or a disk that changes bytes",
                url=url,
                expected=said,
                found=sha256,
            )

    def _publish(self, lease: Lease, table: MemberTable) -> None:
        """Give the shard and its table their names, and lease it."""
        data = table.to_bytes()
        size = table.identity.size
        self._reserve(size, len(data))
        with writing(self._path):
            system.write_all(self._table_fd, data, 0)
            os.ftruncate(self._table_fd, len(data))  # its space was a guess
        self._directory.share_for_reading(lease.fd)
        self._directory.share(self._table_fd)
        with self._space.publishing(self._name, size + len(data)), writing(self._path):
            # The table first: alone it is inert, and a shard without one would have to be proved.
            os.replace(self._table_part, self._directory.table(self._name))
            os.replace(self._part, self._path)
            system.unlock(self._fd)  # else it would be locked against our own lease
            lease.begin()

    def _close_verified(self) -> None:
        verified, self._verified = self._verified, None
        if verified is not None:
            verified.lease.release()


def check_content(url: str, head: bytes) -> None:
    """Refuse a page, which servers, proxies and log-in walls send with status 200.

    Args:
        url: its source.
        head: its first bytes.

    Raises:
        WrongContentError: it is one.
    """
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(_PAGES):
        raise WrongContentError(
            f"{url}: a web page came instead of a shard ({head[:80]!r}); open the URL in a browser to see what it says "
            "(a log-in, a proxy, a page about the file?)",
            url=url,
        )


def check_start(url: str, head: bytes) -> None:
    """Refuse a file that is no shard by its first 512 bytes: see `check_content` and `tar.check_start`."""
    check_content(url, head)
    tar.check_start(head, shard=url)


def check_file(shard: Shard, fd: int, *, go_on: Callable[[], None] = lambda: None) -> None:
    """Compare a file that has arrived with what the index promises; ``go_on`` is called now and then.

    Raises:
        SizeMismatchError: it has another size.
        DigestMismatchError: it has another checksum.
    """
    url, size, arrived = shard.url, shard.filesize, os.fstat(fd).st_size
    if size is not None and arrived != size:
        raise SizeMismatchError(
            f"{url}: {arrived} bytes arrived, and the index says filesize {size}; fetch it again, or update the index "
            "if the shard was rewritten",
            url=url,
            expected=size,
            found=arrived,
        )
    if (mismatch := find_mismatch(shard, fd, go_on=go_on)) is not None:
        key, digest, said = mismatch
        raise DigestMismatchError(
            f"{url}: the {checksums.word(key)} of the received bytes is {digest}, and the index says {said}; fetch it "
            "again, or update the index if the shard was rewritten",
            url=url,
            expected=said,
            found=digest,
        )


def find_mismatch(
    shard: Shard, fd: int, *, is_strict: bool = False, go_on: Callable[[], None] = lambda: None
) -> tuple[str, str, str] | None:
    """The key of a checksum, that of the file and the one in the index, if they differ; None: it is the shard.

    Args:
        shard: the shard.
        fd: of the file, left open.
        is_strict: of several in the index all are compared, not the quickest alone.
        go_on: called now and then.
    """
    for key, said in checksums.promised(shard).items():
        os.lseek(fd, 0, os.SEEK_SET)
        if (digest := file_digest(fd, key, go_on=go_on)) != said:
            return key, digest, said
        if not is_strict:
            break
    return None


def file_digest(file: str | int, key: str, *, go_on: Callable[[], None] = lambda: None) -> str:
    """Checksum of a whole file, by path or by a descriptor that stands at its start (and is left open).

    Args:
        file: an open file.
        key: see `wids.core.index.checksums`.
        go_on: called for each block: a large shard takes minutes.
    """
    digest = checksums.new(key)
    with open(file, "rb", closefd=isinstance(file, str)) as source:
        while block := source.read(1 << 20):
            digest.update(block)
            go_on()
    return digest.hexdigest()


def identify(
    fd: int, shard: Shard, origin: str | None, known: Identity | None = None, *, version: str = ""
) -> Identity:
    """The identity that is verified of a file that came from ``shard.url``.

    Args:
        fd: of the file.
        shard: the entry of the index with which its bytes have been compared.
        origin: see `wids.core.cache.placement.Placement.origin`.
        known: the identity of the same bytes, as verified by another index.
        version: see `wids.core.cache.freshness.version_mark`.
    """
    now = atomic.identify(fd, md5=shard.md5sum or (None if known is None else known.md5))
    return msgspec.structs.replace(now, etag=mark_of(shard, origin, known, version=version))
