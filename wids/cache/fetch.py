"""Bringing the bytes of one URL into one local file.

Rules: fsspec for every scheme, never a shell. Each try writes the file from its start; what is transient (time-outs,
resets, 408/429/5xx, short or damaged transfers) is retried with backoff and jitter, what is final is raised at once
with what to do.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import stamina

from wids.cache import files, remote
from wids.errors import (
    CacheError,
    CorruptHeaderError,
    DigestMismatchError,
    EmptyShardError,
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardNotFoundError,
    SizeMismatchError,
    TruncatedShardError,
    WidsError,
)
from wids.events import Retried, emit
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.events import Hook

T = TypeVar("T")

ATTEMPTS = 6
WAIT_SECONDS, WAIT_MAX_SECONDS = 0.2, 15.0
# Damage that persists is the server's or the index's, not the wire's: one more try, then say so.
_DAMAGE = (SizeMismatchError, DigestMismatchError, EmptyShardError, TruncatedShardError, CorruptHeaderError)
_DAMAGE_ATTEMPTS = 2
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
# Another try cannot help: this machine's disk, or its descriptors (closing some is the pool's work).
_LOCAL_TROUBLE = _FULL | {errno.EMFILE, errno.ENFILE}
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,  # also a URL that aiohttp cannot read, and a certificate that does not hold
    WidsError,
)
# Not all errors of these clients are OSErrors: aiohttp's for a payload cut short, asyncio's time-out in Python 3.10.
_CLIENTS = frozenset({"aiohttp", "botocore", "aiobotocore", "gcsfs", "http", "asyncio"})
_EXTRAS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


def fetch_to(
    url: str,
    path: str,
    *,
    check: Callable[[], None],
    storage_options: dict[str, Any] | None = None,
    allow_pipe: bool = False,
    hooks: Sequence[Hook] = (),
) -> None:
    """Write the bytes behind ``url`` to the file ``path`` (which exists, and is ours), with retries.

    Args:
        url: any URL that fsspec knows, or ``pipe:command``.
        path: the file to fill.
        check: called after each try; an error from it fails the try.
        storage_options: for the fsspec file system.
        allow_pipe: let ``pipe:`` run its command (without a shell).
        hooks: told of retries.

    Raises:
        FetchError: it failed for good. CacheError: ``path`` cannot be written.
        NotAllowedError: ``pipe:`` without leave.
        WidsError: what ``check`` raised last.
    """

    def once() -> None:
        if urls.scheme_of(url) == "pipe":
            _run_pipe(url, path, allow_pipe=allow_pipe)
        elif urls.is_local(url):
            _copy(os.path.expanduser(urls.local_path(url)), path)
        else:
            filesystem, name = remote.open_filesystem(url, storage_options)
            filesystem.get_file(name, path)
        check()

    _try_repeatedly(once, url=url, path=path, hooks=hooks)


def read_bytes(url: str, *, storage_options: dict[str, Any] | None = None) -> bytes:
    """The bytes behind a URL or path, for small files such as an index.

    Raises:
        FetchError: it cannot be read.
    """

    def once() -> bytes:
        if urls.is_local(url):
            with open(os.path.expanduser(urls.local_path(url)), "rb") as file:
                return file.read()
        filesystem, name = remote.open_filesystem(url, storage_options)
        return bytes(filesystem.cat_file(name))

    return _try_repeatedly(once, url=url, path=None, hooks=())


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


def _try_repeatedly(once: Callable[[], T], *, url: str, path: str | None, hooks: Sequence[Hook]) -> T:
    """What ``once`` returns, tried until it does or there is no point in more. ``path``: the file that it writes."""
    tries = damaged = 0

    def is_retried(error: Exception) -> bool:
        nonlocal damaged
        damaged += isinstance(error, _DAMAGE)
        is_again = tries < ATTEMPTS and damaged < _DAMAGE_ATTEMPTS and _is_transient(error, path)
        if is_again:
            emit(hooks, Retried(url=url, attempt=tries, cause=_words_of(error)))
        return is_again

    try:
        with _without_stamina_log():
            for attempt in stamina.retry_context(
                on=is_retried, attempts=ATTEMPTS, timeout=None, wait_initial=WAIT_SECONDS, wait_max=WAIT_MAX_SECONDS
            ):
                with attempt:
                    tries += 1
                    result = once()
    except WidsError:
        raise
    except Exception as error:
        raise _explain(error, url, path, tries=tries) from error
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


def _copy(source: str, path: str) -> None:
    fd, _ = files.open_file(source)
    with open(fd, "rb") as reading, open(path, "wb") as writing:
        shutil.copyfileobj(reading, writing, 1 << 20)


def _words_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _status_of(error: BaseException) -> int | None:
    """HTTP status behind an error of aiohttp, gcsfs, botocore or another client; None when there is none."""
    for name in ("status", "code", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _is_of_target(error: BaseException, path: str | None) -> bool:
    """Whether it is the file being written that failed, rather than where it comes from."""
    return isinstance(error, OSError) and (error.errno in _FULL or (path is not None and error.filename == path))


def _is_transient(error: Exception, path: str | None) -> bool:
    """Whether another try may end better."""
    status = _status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, _DAMAGE) or type(error) is FetchError:  # the latter: a pipe: command that failed
        return True
    if isinstance(error, _FINAL) or _is_of_target(error, path):
        return False
    if isinstance(error, OSError):
        return error.errno not in _LOCAL_TROUBLE
    return isinstance(error, EOFError) or any(base.__module__.split(".")[0] in _CLIENTS for base in type(error).__mro__)


def _explain(error: Exception, url: str, path: str | None, *, tries: int) -> WidsError:
    """The typed error that tells what happened to ``url`` and what to do."""
    status, cause = _status_of(error), _words_of(error)
    if _is_of_target(error, path):
        return CacheError(f"{path}: cannot be written ({cause}) while fetching {url}; free space or move cache_dir")
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return ShardNotFoundError(
            f"{url}: there is nothing there; check the URL or path, and the base of the index if it comes from one",
            url=url,
        )
    if isinstance(error, PermissionError) or status in (401, 403):
        return FetchDeniedError(
            f"{url}: access was refused ({cause}); check credentials, storage_options or the URL's signature", url=url
        )
    if isinstance(error, ImportError):
        package = _EXTRAS.get(urls.scheme_of(url), "the package named above")
        return FetchError(f"{url}: {cause}. Reading this scheme needs {package}: pip install {package}", url=url)
    if isinstance(error, ValueError):
        return FetchError(f"{url}: {cause}; check the URL's scheme and storage_options", url=url)
    return FetchError(f"{url}: cannot be fetched ({type(error).__name__}: {cause}; tries: {tries})", url=url)


def _run_pipe(url: str, path: str, *, allow_pipe: bool) -> None:
    """Run a ``pipe:`` command without a shell; ``{local}`` stands for the file, else the shard is its output."""
    if not allow_pipe:
        raise NotAllowedError(f"{url}: runs a program; pass allow_pipe=True if you trust where this URL came from")
    words = shlex.split(url.removeprefix("pipe:"))
    if not words:
        raise ValueError("there is no command after pipe:")
    argv = [word.replace("{local}", path) for word in words]
    with open(os.devnull if argv != words else path, "wb") as target:
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.PIPE, check=False)  # noqa: S603 - allowed by the caller, argv without a shell
        except OSError as error:
            raise FetchDeniedError(f"{url}: the program {argv[0]!r} cannot be started ({error})", url=url) from error
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise FetchError(f"{url}: exit code {done.returncode}; it said: {last}", url=url)
