"""Bringing the bytes of one URL into one local file.

Rules: fsspec for every scheme, never a shell. What is transient (time-outs, resets, 408/429/5xx, short or damaged
transfers) is retried with backoff and jitter, and what has arrived stays; what is final is raised at once with what to
do. How long retries go on is a matter of time: `PATIENCE_SECONDS` without a new byte where the server has answered this
process before, or says when to come back (``Retry-After``), so that a restart of a server ends no training;
`FIRST_SECONDS` where it never has, so that a wrong host or port is told soon. The whole takes no longer than on the
slowest of networks.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

from wids.errors import (
    DigestMismatchError,
    NotAllowedError,
    SizeMismatchError,
    WidsError,
    WrongContentError,
)
from wids.events import Retried, emit
from wids.index import urls
from wids.transport import filesystems
from wids.transport.download import Transfer
from wids.transport.failures import (
    DAMAGE,
    CancelledTransferError,
    explain,
    find_retry_after,
    forget_frames,
    is_transient,
    public_cause,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wids.events import Hook

T = TypeVar("T")

FIRST_SECONDS, PATIENCE_SECONDS = 10.0, 300.0
WAIT_SECONDS, WAIT_MAX_SECONDS, RETRY_AFTER_MAX_SECONDS = 0.2, 15.0, 120.0
# A known server gets so many tries however long each of them takes: one stream that breaks off may take minutes.
_ATTEMPTS = 6
_POLL_SECONDS = 0.1
# A transfer may take ten minutes and, beyond, as long as its bytes take at this rate.
TOTAL_SECONDS, SLOWEST_BYTES = 600.0, 64 << 10
_DAMAGE_ATTEMPTS = 2
_PAGES = (b"<!doctype html", b"<html", b"<?xml", b"<!doctype xml")


def fetch_to(
    url: str,
    path: str,
    *,
    check: Callable[[], None],
    size: int | None = None,
    reserve: Callable[[int], None] | None = None,
    is_cancelled: Callable[[], bool] | None = None,
    storage_options: dict[str, Any] | None = None,
    allow_pipe: bool = False,
    hooks: Sequence[Hook] = (),
) -> None:
    """Write the bytes behind ``url`` to the file ``path`` (which exists, and is ours), with retries.

    Args:
        url: any URL that fsspec knows, or ``pipe:command``.
        path: the file to fill.
        check: called after each try; an error from it fails the try.
        size: bytes expected, or None.
        reserve: called with the bytes that the file will have, before they are written.
        is_cancelled: asked now and then; once it says True, the transfer ends.
        storage_options: for the fsspec file system.
        allow_pipe: let ``pipe:`` run its command (without a shell).
        hooks: told of retries.

    Raises:
        FetchError: it failed for good. CacheError: ``path`` cannot be written.
        NotAllowedError: ``pipe:`` without leave.
        WidsError: what ``check`` or ``reserve`` raised last.
        CancelledTransferError: it was cancelled.
    """
    if urls.scheme_of(url) == "pipe" and not allow_pipe:
        raise NotAllowedError(f"{url}: runs a program; pass allow_pipe=True if you trust where this URL came from")
    seconds = TOTAL_SECONDS + (size or 0) / SLOWEST_BYTES
    transfer = Transfer(
        url,
        path,
        size=size,
        storage_options=storage_options,
        reserve=reserve,
        is_cancelled=is_cancelled,
        deadline=time.monotonic() + seconds,
    )

    def once() -> None:
        transfer.run()
        try:
            check()
        except BaseException:
            transfer.begin_anew()
            raise

    try_repeatedly(
        once,
        url=url,
        path=path,
        hooks=hooks,
        seconds=seconds,
        kept=lambda: transfer.kept_bytes,
        is_cancelled=is_cancelled or (lambda: False),
    )


def read_bytes(
    url: str,
    *,
    storage_options: dict[str, Any] | None = None,
    most: int | None = None,
    seconds: float = TOTAL_SECONDS,
) -> bytes:
    """The bytes behind a URL or path, for small files such as an index.

    Args:
        url: any URL that fsspec knows, or a local path.
        storage_options: for the fsspec file system.
        most: how many there may be; of what is longer, no more than that is read. For remote ones.
        seconds: for all tries together; `FIRST_SECONDS` for what can be done without.

    Raises:
        FetchError: it cannot be read. SizeMismatchError: it is longer.
    """

    def once() -> bytes:
        if urls.is_local(url):
            with open(os.path.expanduser(urls.local_path(url)), "rb") as file:
                return file.read()
        filesystem, name = filesystems.open_filesystem(url, storage_options)
        if most is None:
            return bytes(filesystem.cat_file(name))
        data = filesystems.read_at_most(filesystem, name, url, most + 1)
        if len(data) > most:
            raise SizeMismatchError(f"{url}: it is longer than the {most} bytes it may have", url=url, expected=most)
        return data

    return try_repeatedly(once, url=url, path=None, hooks=(), seconds=seconds)


def file_md5(file: str | int) -> str:
    """Hexadecimal md5 of a whole file, by path or by a descriptor that stands at its start (and is left open)."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(file, "rb", closefd=isinstance(file, str)) as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(url: str, fd: int, *, size: int | None, md5: str | None) -> None:
    """Compare a file that has arrived with what the index promises.

    Raises:
        SizeMismatchError: not ``size`` bytes.
        DigestMismatchError: another md5.
    """
    found = os.fstat(fd).st_size
    if size is not None and found != size:
        raise SizeMismatchError(
            f"{url}: {found} bytes arrived, and the index says filesize {size}; fetch it again, or update the index "
            "if the shard was written anew",
            url=url,
            expected=size,
            found=found,
        )
    if md5 and (digest := file_md5(fd)) != md5:
        raise DigestMismatchError(
            f"{url}: the md5 of what arrived is {digest}, and the index says {md5}; fetch it again, or update the "
            "index if the shard was written anew",
            url=url,
            expected=md5,
            found=digest,
        )


def check_content(url: str, head: bytes) -> None:
    """Refuse a page, which servers, proxies and log-in walls send with status 200.

    Args:
        url: where it came from.
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


def try_repeatedly(
    once: Callable[[], T],
    *,
    url: str,
    path: str | None,
    hooks: Sequence[Hook],
    seconds: float = TOTAL_SECONDS,
    kept: Callable[[], int] = lambda: 0,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> T:
    """What ``once`` returns, tried until it does or there is no point in more.

    Args:
        once: one try.
        url: for messages, and whose server it is.
        path: the file that it writes.
        hooks: told of retries.
        seconds: for all tries together.
        kept: how many bytes another try need not fetch; a try that brought more of them was not in vain.
        is_cancelled: asked before each try, and while the next one is waited for.
    """
    tries = _Tries(urls.origin_of(url), path, seconds, kept)
    while True:
        if is_cancelled():
            raise CancelledTransferError
        try:
            result = once()
        except CancelledTransferError:
            raise
        except Exception as error:
            delay = tries.find_delay(error)
            if delay is None and isinstance(error, WidsError):
                raise
            if delay is None:
                raise explain(error, url, path, tries=tries.count) from public_cause(error, url)
            emit(hooks, Retried(url=url, attempt=tries.count, cause=words_of(error, url)))
            forget_frames(error)
        else:
            note_answered([tries.origin])
            return result
        pause(delay, is_cancelled)


class _Tries:
    """What became of the tries so far, and so whether there is another one.

    Args:
        origin: the server, or "".
        path, seconds, kept: see `try_repeatedly`.
    """

    def __init__(self, origin: str, path: str | None, seconds: float, kept: Callable[[], int]) -> None:
        self.origin, self.count = origin, 0
        self._path, self._kept = path, kept
        self._ends = now() + seconds
        self._kept_bytes = self._damaged = self._fruitless = 0
        self._failing_since = 0.0

    def find_delay(self, error: Exception) -> float | None:
        """Seconds from a failed try to the next one; None: there is none."""
        is_damage = isinstance(error, DAMAGE)
        self.count += 1
        self._damaged += is_damage
        before, self._kept_bytes = self._kept_bytes, max(self._kept(), self._kept_bytes)
        has_progress = self._kept_bytes > before and not is_damage
        self._fruitless = 0 if has_progress else self._fruitless + 1
        if has_progress or self.count == 1:
            self._failing_since = now()
        if has_progress:
            note_answered([self.origin])
        if self._damaged >= _DAMAGE_ATTEMPTS or not is_transient(error, self._path):
            return None
        asked = find_retry_after(error)
        ends = self._ends
        if self.origin not in _answered and asked is None:
            ends = min(ends, self._failing_since + FIRST_SECONDS)
        elif self._fruitless >= _ATTEMPTS:
            ends = min(ends, self._failing_since + PATIENCE_SECONDS)
        # Twice as long each time, and not in step with other processes.
        backoff = WAIT_SECONDS * 2.0 ** min(max(self._fruitless - 1, 0), 30)
        delay = min(backoff, WAIT_MAX_SECONDS) * spread() + min(asked or 0.0, RETRY_AFTER_MAX_SECONDS)
        if now() + delay < ends:
            return delay
        if now() + delay >= self._failing_since + PATIENCE_SECONDS:
            _answered.discard(self.origin)  # of a thousand shards, each would wait as long for a server that is gone
        return None


# Servers that have answered this process, or the one that it was forked from; see the rules above.
_answered: set[str] = set()


def answered() -> frozenset[str]:
    """The servers that have answered so far, to be handed to a process that is started."""
    return frozenset(_answered)


def note_answered(origins: Iterable[str]) -> None:
    """These servers have answered, this process or another one that told it."""
    _answered.update(origin for origin in origins if origin)


def now() -> float:
    """The clock of retries, in seconds."""
    return time.monotonic()


def spread() -> float:
    """By how much a wait is shorter than it might be, at random."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def pause(seconds: float, is_cancelled: Callable[[], bool]) -> None:
    """Wait before another try.

    Raises:
        CancelledTransferError: it was cancelled meanwhile.
    """
    ends = now() + seconds
    while (left := ends - now()) > 0:
        if is_cancelled():
            raise CancelledTransferError
        time.sleep(min(left, _POLL_SECONDS))
