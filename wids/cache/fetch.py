"""Bringing the bytes of one URL into one local file.

Rules: fsspec for every scheme, never a shell. What is transient (time-outs, resets, 408/429/5xx, short or damaged
transfers) is retried with backoff and jitter, and what has arrived stays; what is final is raised at once with what to
do. Tries end when `ATTEMPTS` in a row brought nothing, or when the whole takes longer than the slowest of networks.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import stamina

from wids.cache import remote
from wids.cache.failures import DAMAGE, CancelledTransferError, explain, forget_frames, is_transient, words_of
from wids.cache.transfer import Transfer
from wids.errors import (
    DigestMismatchError,
    NotAllowedError,
    SizeMismatchError,
    WidsError,
    WrongContentError,
)
from wids.events import Retried, emit
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.events import Hook

T = TypeVar("T")

ATTEMPTS = 6
WAIT_SECONDS, WAIT_MAX_SECONDS = 0.2, 15.0
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
        is_cancelled=is_cancelled,
    )


def read_bytes(url: str, *, storage_options: dict[str, Any] | None = None, most: int | None = None) -> bytes:
    """The bytes behind a URL or path, for small files such as an index.

    Args:
        url: any URL that fsspec knows, or a local path.
        storage_options: for the fsspec file system.
        most: how many there may be; of what is longer, no more than that is read. For remote ones.

    Raises:
        FetchError: it cannot be read. SizeMismatchError: it is longer.
    """

    def once() -> bytes:
        if urls.is_local(url):
            with open(os.path.expanduser(urls.local_path(url)), "rb") as file:
                return file.read()
        filesystem, name = remote.open_filesystem(url, storage_options)
        if most is None:
            return bytes(filesystem.cat_file(name))
        data = remote.read_at_most(filesystem, name, url, most + 1)
        if len(data) > most:
            raise SizeMismatchError(f"{url}: it is longer than the {most} bytes it may have", url=url, expected=most)
        return data

    return try_repeatedly(once, url=url, path=None, hooks=())


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
    is_cancelled: Callable[[], bool] | None = None,
) -> T:
    """What ``once`` returns, tried until it does or there is no point in more.

    Args:
        once: one try.
        url: for messages.
        path: the file that it writes.
        hooks: told of retries.
        seconds: for all tries together.
        kept: how many bytes another try need not fetch; a try that brought more of them was not in vain.
        is_cancelled: asked before each try.
    """
    tries = damaged = fruitless = before = 0
    deadline = time.monotonic() + seconds

    def is_retried(error: Exception) -> bool:
        nonlocal damaged, fruitless, before
        is_damage = isinstance(error, DAMAGE)
        damaged += is_damage
        now = kept()
        fruitless = 0 if now > before and not is_damage else fruitless + 1
        before = max(now, before)
        is_in_time = time.monotonic() < deadline
        is_again = fruitless < ATTEMPTS and damaged < _DAMAGE_ATTEMPTS and is_in_time and is_transient(error, path)
        if is_again:
            emit(hooks, Retried(url=url, attempt=tries, cause=words_of(error)))
            forget_frames(error)
        return is_again

    try:
        with _without_stamina_log():
            for attempt in stamina.retry_context(
                on=is_retried, attempts=None, timeout=None, wait_initial=WAIT_SECONDS, wait_max=WAIT_MAX_SECONDS
            ):
                with attempt:
                    if is_cancelled is not None and is_cancelled():
                        raise CancelledTransferError  # noqa: TRY301 - as from within
                    tries += 1
                    result = once()
    except (CancelledTransferError, WidsError):
        raise
    except Exception as error:
        raise explain(error, url, path, tries=tries) from error
    return result


@contextlib.contextmanager
def _without_stamina_log() -> Iterator[None]:
    """Leave out stamina's own line on each retry, in this thread and block: `Retried` is logged, with the URL."""
    me = os.getpid(), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return (record.process, record.thread) != me

    logger = logging.getLogger("stamina")
    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)
