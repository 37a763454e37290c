"""Downloads one URL into one file, over several tries: bytes that have arrived are not requested again.

A download reads many byte ranges at a time if the source has them and its size is known, otherwise one stream from the
start. Space is reserved before bytes are written. All ranges come from one version of the object: if it changes
meanwhile, the download starts again. If neither a strong version nor a checksum of the whole would reveal a change, the
object is read as one stream, which starts again after an interruption.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING, Any

from wids.core.files import system
from wids.core.place import Place
from wids.core.transport import filesystems, plain_http, retrying, spans
from wids.core.transport.failures import CancelledTransferError, InterruptedTransferError, StalledTransferError
from wids.core.transport.scheduler import read_spans
from wids.core.transport.schemes import find_store
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import HEAD, Precedence, Sink
from wids.core.transport.spans import Span
from wids.core.transport.stores import open_source
from wids.errors import CacheFull, NotAllowedError, SizeMismatchError, TooLongError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.transport.source import ByteSource, Stat

# A file that is read into memory is no longer than this: an index of `MAX_SHARDS` takes 256 bytes for each of them.
MAX_READ_BYTES = 1 << 30
# A compressed answer unpacks to so many bytes, or to so many times its own: text does, and a bomb to a thousand times.
_MIN_UNPACKED_BYTES, _MAX_UNPACKED_TIMES = 64 << 20, 32
_LOOK_BYTES = 1 << 20
# Space for a file of unknown size is reserved in steps: as much again as has arrived, within these bounds.
_MIN_STEP_BYTES, _MAX_STEP_BYTES = 1 << 20, 64 << 20


def download_to(
    url: str | Place,
    path: str,
    *,
    check: Callable[[], None],
    size: int | None = None,
    reserve: Callable[[int], None] | None = None,
    grow: Callable[[int], None] | None = None,
    look: Callable[[bytes], None] = lambda _: None,
    is_cancelled: Callable[[], bool] | None = None,
    is_ahead: bool = False,
    has_checksum: bool = False,
    max_bytes: int | None = None,
    on_version: Callable[[Any], None] = lambda _: None,
    session: Session = PLAIN,
) -> int:
    """Write the bytes behind ``url`` to the file ``path`` (which exists, and is ours), with retries.

    Args:
        url: any URL that fsspec knows, or ``pipe:command``.
        path: the file to fill.
        check: called after each try; an error from it fails the try.
        size: bytes expected, or None.
        reserve: called with the file's final size in bytes, before the writing. None: the disk must have the space.
        grow: the same for a file of unknown size, called with the size that it reaches next. None: ``reserve``.
        look: called with the first 512 bytes of a file that has so many, as they arrive; raises if it is another one.
        is_cancelled: called regularly; the transfer ends once it returns True.
        is_ahead: no reader waits for it; downloads with a waiting reader come first.
        has_checksum: ``check`` compares a checksum of the whole: bytes of two versions do not pass it.
        max_bytes: its maximal length, decompressed; None: the space is the limit.
        on_version: called before ``check`` with the version of the received bytes if it is strong, else with None.
        session: opens URLs; its hooks are called for each retry.

    Returns:
        The number of requests.

    Raises:
        FetchError: it failed finally; TooLongError: it exceeds ``max_bytes``. CacheError: ``path`` cannot be
            written; CacheFull: the disk has no space for it.
        NotAllowedError: ``pipe:`` is not allowed.
        WidsError: the last error of ``check``, ``look``, ``reserve`` or ``grow``.
        CancelledTransferError: it was cancelled.
    """
    place = Place.of(url)
    if place.scheme == "pipe" and not session.allow_pipe:
        raise NotAllowedError(f"{url}: runs a program; pass allow_pipe=True if you trust where this URL came from")
    seconds = retrying.LIMITS.total_seconds + (size or 0) / retrying.LIMITS.slowest_bytes
    transfer = Transfer(
        place,
        path,
        size=size,
        session=session,
        reserve=reserve,
        grow=grow,
        look=look,
        is_cancelled=is_cancelled,
        is_ahead=is_ahead,
        has_checksum=has_checksum,
        max_bytes=max_bytes,
        deadline=time.monotonic() + seconds,
    )

    def once() -> None:
        transfer.run()
        on_version(transfer.version)
        try:
            check()
        except BaseException:
            transfer.note_damage()
            raise

    retrying.try_repeatedly(
        once,
        url=place,
        path=path,
        hooks=session.hooks,
        seconds=seconds,
        kept=lambda: transfer.kept_bytes,
        is_cancelled=is_cancelled or (lambda: False),
    )
    return transfer.requests


def read_bytes(
    url: str | Place,
    *,
    session: Session = PLAIN,
    max_bytes: int | None = None,
    seconds: float = retrying.LIMITS.total_seconds,
    is_cancelled: Callable[[], bool] = lambda: False,
    look: Callable[[bytes], None] | None = None,
) -> bytes:
    """The bytes behind a URL or path, for small files such as an index.

    Args:
        url: any URL that fsspec knows, or a local path.
        session: opens URLs.
        max_bytes: the maximal length of a remote one, decompressed; None: `MAX_READ_BYTES`. No more is read.
        seconds: for all tries together; `retrying.LIMITS.first_seconds` for an optional file.
        is_cancelled: called regularly; a transfer of a remote one ends once it returns True.
        look: called with the first bytes, before the others are read; raises if the file is another one.

    Raises:
        FetchError: it cannot be read. TooLongError: it is longer, or unpacks to many times its length.
        CancelledTransferError: it was cancelled.
        WidsError: of ``look``.
    """

    def go_on() -> None:
        if is_cancelled():
            raise CancelledTransferError

    place, most = Place.of(url), MAX_READ_BYTES if max_bytes is None else max_bytes

    def once() -> bytes:
        if place.is_local:  # also a FIFO, such as a shell's <(...)
            with open(place.path, "rb") as file:
                head = file.read(_LOOK_BYTES)
                if look is not None:
                    look(head)
                return head + file.read()
        if find_store(place) is None and (plain := plain_http.open_plain(place, session, go_on=go_on)) is not None:
            with contextlib.suppress(plain_http.NeedsMoreError), plain:
                return _read_stream(plain, most, look)
        with open_source(place, session, go_on=go_on) as source:
            if look is not None and not (source.answers_have_stat or source.is_blocking):
                wanted = min(_LOOK_BYTES, most + 1)
                head = b"".join(source.stream(wanted))  # these clients return all bytes at once
                look(head)
                if len(head) > most:
                    raise _too_long(source.url, most)
                if len(head) < wanted:
                    return head
            return _read_stream(source, most, look)

    return retrying.try_repeatedly(
        once, url=place, path=None, hooks=session.hooks, seconds=seconds, is_cancelled=is_cancelled
    )


def _read_stream(source: ByteSource, most: int, look: Callable[[bytes], None] | None) -> bytes:
    """All bytes of a source.

    Raises:
        TooLongError: they are more. StalledTransferError: some are missing.
    """
    parts, size, size_said = list[bytes](), 0, None
    if source.answers_have_stat:  # by the same request
        size_said = source.stat(None).size
        if size_said is not None and size_said > most:
            raise _too_long(source.url, most, size_said)
    for part in source.stream(most + 1, in_one_request=True):
        if not parts and look is not None:
            look(part)
        parts.append(part)
        size += len(part)
        if size > most:
            raise _too_long(source.url, most)
        packed = source.packed_bytes
        if packed is not None and size > max(_MIN_UNPACKED_BYTES, packed * _MAX_UNPACKED_TIMES):
            raise TooLongError(
                f"{source.url}: {packed:,} compressed bytes unpack to more than {size:,}, more than "
                f"{_MAX_UNPACKED_TIMES} times as many; if the file is right, have it sent as it is",
                url=source.url,
                expected=packed * _MAX_UNPACKED_TIMES,
                found=size,
            )
    if size_said not in (None, size):  # the server sent only a range, unrequested
        raise StalledTransferError(f"{source.url}: {size} of {size_said} bytes arrived")
    return b"".join(parts)


def _too_long(url: str, max_bytes: int, size: int | None = None) -> TooLongError:
    stated = "" if size is None else f"; it has {size:,}"
    return TooLongError(
        f"{url}: is longer than {max_bytes:,} bytes (decompressed{stated}), the limit for a file of this kind; "
        "check the URL and the server's answer; if the file is right, download it and give the path of the copy",
        url=url,
        expected=max_bytes,
        found=size,
    )


class Transfer:
    """The transfer of one URL into a file.

    Args:
        url: any URL that fsspec knows, or a local path.
        path: the file to fill; it exists.
        size: bytes expected, or None.
        session: opens URLs.
        reserve: called with the number of bytes that the file will have, before they are written; see `download_to`.
        grow: likewise.
        look: see `download_to`.
        is_cancelled: called regularly; True ends the transfer.
        is_ahead: see `download_to`.
        has_checksum: see there.
        max_bytes: see there.
        deadline: its latest end, by the monotonic clock.

    Attributes:
        requests: number of requested byte ranges and streams so far, in all tries.
        version: of the received bytes if it is strong, else None.
    """

    url: str
    path: str
    requests: int

    def __init__(
        self,
        url: str | Place,
        path: str,
        *,
        size: int | None = None,
        session: Session = PLAIN,
        reserve: Callable[[int], None] | None = None,
        grow: Callable[[int], None] | None = None,
        look: Callable[[bytes], None] = lambda _: None,
        is_cancelled: Callable[[], bool] | None = None,
        is_ahead: bool = False,
        has_checksum: bool = False,
        max_bytes: int | None = None,
        deadline: float = math.inf,
    ) -> None:
        self._place = Place.of(url)
        self.url, self.path = str(self._place), path
        self._expected, self._session = size, session
        self._reserve, self._max_bytes = reserve or self._check_free, max_bytes
        self._grow, self._look = grow or self._reserve, look
        self._is_cancelled = is_cancelled or (lambda: False)
        self._deadline, self._is_ahead, self._has_checksum = deadline, is_ahead, has_checksum
        self.requests = self._interruptions = 0
        self._is_one_stream = False
        self.version: Any = None
        self._fd = -1
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the received bytes: they are damaged, or of another version."""
        self._stat: Stat | None = None
        self._missing: Sequence[Span] = ()
        self._head = b""

    def note_damage(self) -> None:
        """Start again; in one stream, if these may have been bytes of two versions."""
        self._is_one_stream |= self._stat is not None and not self._stat.is_strong
        self.begin_anew()

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that another try need not request again."""
        size = 0 if self._stat is None else self._stat.size or 0
        return size - sum(span.size for span in self._missing)

    def run(self) -> None:
        """One try: download the bytes that are missing.

        Raises:
            SizeMismatchError: the source has another size than expected.
            Exception: any error of the client; bytes received before it stay.
        """
        self._fd = os.open(self.path, system.WRITE_FLAGS)
        precedence = Precedence(self._is_ahead)  # of this try; a failure puts it behind newer downloads
        try:
            with open_source(
                self._place, self._session, go_on=self._go_on, path=self.path, precedence=precedence
            ) as source:
                self._fill(source)
        except InterruptedTransferError:
            self._interruptions += 1
            self.begin_anew()
            raise
        finally:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _fill(self, source: ByteSource) -> None:
        known = self._expected if self._stat is None else self._stat.size
        step = source.range_bytes(known)
        first = spans.cut(self._missing or [Span(0, known or step)], step)[0]
        # A source that seems to change all the time is read as one stream, for which the kept stat is enough.
        is_one = self._is_one_stream or self._interruptions >= 2 or self._is_known_as_weak(source)
        stat = source.stat(None if is_one else first, is_fresh=not source.is_blocking)
        self.version = stat.version if stat.is_strong else None
        if source.is_blocking or not stat.has_ranges:
            self._stream(source, stat)
            return
        if self._is_one_stream or not self._may_combine(stat):
            if source.answers_have_stat:
                self._note_weak()
                stat = source.stat(None)
                self.version = stat.version if stat.is_strong else None
            self._stream(source, stat)
            return
        self._learn(stat)
        ranges = spans.cut(self._missing, step)
        self.requests += len(ranges)
        read_spans(source, ranges, Sink(self._learn, self._write))

    def _learn(self, stat: Stat) -> None:
        """On learning size and version: reserve space, or check that they have not changed."""
        if stat.size is not None and self._expected not in (None, stat.size):
            raise self._wrong_size(stat.size)
        if self._stat is None:
            size = stat.size or 0
            self._check_length(size)
            self._reserve(size)
            os.ftruncate(self._fd, size)
            self._stat, self._missing = stat, [Span(0, size)] if size else []
        elif not self._may_combine(stat):
            self._note_weak()
            raise InterruptedTransferError(f"{self.url}: a part of it arrived without a strong entity tag")
        elif not stat.is_same(self._stat):
            raise InterruptedTransferError(f"{self.url}: it changed, or its server stopped sending ranges")

    def _is_known_as_weak(self, source: ByteSource) -> bool:
        """True: request one stream immediately, since answers with ranges would be useless."""
        if self._has_checksum or not source.answers_have_stat:
            return False
        return self._place.host in filesystems.connections().weak_hosts

    def _note_weak(self) -> None:
        filesystems.connections().weak_hosts.add(self._place.host)

    def _may_combine(self, stat: Stat) -> bool:
        """True if bytes of several requests can be combined."""
        return stat.is_strong or self._has_checksum

    def _write(self, at: int, data: bytes) -> None:
        if at < HEAD.hi:
            self._look_at(at, data)
        system.write_granted(self._fd, data, at)
        self._missing = spans.subtract(self._missing, Span(at, at + len(data)))

    def _look_at(self, at: int, data: bytes) -> None:
        """Look at the first bytes, which arrive in order, once there are enough of them."""
        self._head = self._head[:at] + data[: HEAD.hi - at]
        if len(self._head) == HEAD.hi:
            try:
                self._look(self._head)
            except BaseException:
                self.note_damage()
                raise

    def _stream(self, source: ByteSource, stat: Stat) -> None:
        """Write all of the source from the file's start on; another try starts at the beginning, too."""
        self.begin_anew()
        self.requests += 1
        size = stat.size
        if size is not None and self._expected not in (None, size):
            raise self._wrong_size(size)
        at, reserved = 0, self._expected or 0 if size is None else size
        if size is not None or reserved:
            self._check_length(reserved)
            self._reserve(reserved)
        for block in source.stream(in_one_request=not self._may_combine(stat)):
            self._go_on()
            end = at + len(block)
            if self._expected is not None and end > self._expected:
                raise self._wrong_size(end, "at least ")
            self._check_length(end)
            if at < HEAD.hi:
                self._look_at(at, block)
            if end > reserved:
                reserved = self._grow_to(end, min(max(at, _MIN_STEP_BYTES), _MAX_STEP_BYTES) if size is None else 0)
            system.write_granted(self._fd, block, at)
            at = end
        if not source.fills_file:
            os.ftruncate(self._fd, at)  # `reserve` may have made the file longer
        if size is not None and at < size:
            raise StalledTransferError(f"{self.url}: ended after {at} of {size} bytes")
        if not source.answers_have_stat and source.stat().version != stat.version:
            raise InterruptedTransferError(f"{self.url}: it changed during the download")

    def _grow_to(self, end: int, step: int) -> int:
        """Reserve space up to ``end``, and a step more if there is space for it; return the size reserved."""
        if step:
            with contextlib.suppress(CacheFull):
                self._grow(end + step)
                return end + step
        self._grow(end)
        return end

    def _check_length(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise _too_long(self.url, self._max_bytes)

    def _check_free(self, size: int) -> None:
        """Check that the file system has space for a file of this size, if no cache does so.

        Raises:
            CacheFull: it lacks the space.
        """
        free, disk_bytes = system.free_bytes(os.path.dirname(self.path) or ".")
        wanted = size - os.fstat(self._fd).st_blocks * 512
        if wanted > free - system.floor_bytes(disk_bytes):
            raise CacheFull(
                f"{self.path}: {wanted:,} more bytes are needed for {self.url}, and its file system has {free:,}; free "
                "space, or choose another directory",
                url=self.url,
                expected=wanted,
                found=free,
            )

    def _go_on(self) -> None:
        """End the transfer if it was cancelled, or exceeds its total time."""
        if self._is_cancelled():
            raise CancelledTransferError
        if time.monotonic() > self._deadline:
            raise StalledTransferError(f"{self.url}: too slow; the time limit of all tries has passed")

    def _wrong_size(self, size: int, words: str = "") -> SizeMismatchError:
        return SizeMismatchError(
            f"{self.url}: {words}{size} bytes are there, and the index says filesize {self._expected}; fetch it again, "
            "or update the index if the shard was rewritten",
            url=self.url,
            expected=self._expected,
            found=size,
        )
