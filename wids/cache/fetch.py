"""Bringing the bytes of one URL into one local file.

Rules: fsspec for every scheme, never a shell. Each try writes the file from its start; what is transient (time-outs,
resets, 408/429/5xx, short or damaged transfers) is retried with backoff and jitter, what is final is raised at once
with what to do. A file system object is never kept: fsspec's own are not usable after a fork.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import stamina

from wids.errors import (
    CacheError,
    DigestMismatchError,
    FetchDeniedError,
    FetchError,
    NotAllowedError,
    ShardNotFoundError,
    SizeMismatchError,
    TarError,
    WidsError,
)
from wids.events import Retried, emit
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook

ATTEMPTS = 6
WAIT_SECONDS, WAIT_MAX_SECONDS = 0.2, 15.0
CONNECT_SECONDS, READ_SECONDS = 30.0, 120.0
# Damage that persists is the server's or the index's, not the wire's: one more try, then say so.
_DAMAGE = (SizeMismatchError, DigestMismatchError, TarError)
_DAMAGE_ATTEMPTS = 2
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_LOCAL_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
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
        FetchError: it failed for good.
        WidsError: what ``check`` raised last.
    """
    counts = {"tries": 0, "damaged": 0}

    def is_retried(error: Exception) -> bool:
        counts["damaged"] += isinstance(error, _DAMAGE)
        is_again = counts["tries"] < ATTEMPTS and _is_transient(error) and counts["damaged"] < _DAMAGE_ATTEMPTS
        if is_again:
            emit(hooks, Retried(url=url, attempt=counts["tries"], cause=str(error) or type(error).__name__))
        return is_again

    try:
        for attempt in stamina.retry_context(
            on=is_retried, attempts=ATTEMPTS, timeout=None, wait_initial=WAIT_SECONDS, wait_max=WAIT_MAX_SECONDS
        ):
            with attempt:
                counts["tries"] += 1
                _fetch_once(url, path, storage_options or {}, allow_pipe=allow_pipe)
                check()
    except WidsError:
        raise
    except Exception as error:
        raise explain(error, url, path, tries=counts["tries"]) from error


def read_bytes(url: str, *, storage_options: dict[str, Any] | None = None) -> bytes:
    """The bytes behind a URL or path, for small files such as an index.

    Raises:
        FetchError: it cannot be read.
    """
    try:
        for attempt in stamina.retry_context(
            on=_is_transient, attempts=ATTEMPTS, timeout=None, wait_initial=WAIT_SECONDS, wait_max=WAIT_MAX_SECONDS
        ):
            with attempt:
                if urls.is_local(url):
                    with open(os.path.expanduser(urls.local_path(url)), "rb") as file:
                        return file.read()
                filesystem, name = _open_filesystem(url, storage_options or {})
                return bytes(filesystem.cat_file(name))
    except Exception as error:
        raise explain(error, url, url) from error
    raise AssertionError("unreachable")


def file_md5(path: str) -> str:
    """Hexadecimal md5 of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_file(url: str, path: str, *, size: int | None, md5: str | None) -> None:
    """Compare a file that has arrived with what the index promises.

    Raises:
        SizeMismatchError: not ``size`` bytes.
        DigestMismatchError: another md5.
    """
    found = os.stat(path).st_size
    if size is not None and found != size:
        raise SizeMismatchError(
            f"{url}: {found} bytes arrived, and the index says filesize {size}; fetch it again, or update the index "
            "if the shard was written anew",
            url=url,
            expected=size,
            found=found,
        )
    if md5 and (digest := file_md5(path)) != md5:
        raise DigestMismatchError(
            f"{url}: the md5 of what arrived is {digest}, and the index says {md5}; fetch it again, or update the "
            "index if the shard was written anew",
            url=url,
            expected=md5,
            found=digest,
        )


def _fetch_once(url: str, path: str, storage_options: dict[str, Any], *, allow_pipe: bool) -> None:
    if urls.scheme_of(url) == "pipe":
        _run_pipe(url, path, allow_pipe=allow_pipe)
    elif urls.is_local(url):
        with open(os.path.expanduser(urls.local_path(url)), "rb") as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    else:
        filesystem, name = _open_filesystem(url, storage_options)
        filesystem.get_file(name, path)


def _open_filesystem(url: str, storage_options: dict[str, Any]) -> tuple[Any, str]:
    """The fsspec file system and the name in it; made anew for each use, fsspec keeps what it may keep."""
    import fsspec

    options = dict(storage_options)
    if urls.scheme_of(url) in ("http", "https") and "::" not in url:
        import aiohttp

        # Quote what no URL may hold and nothing else: a signed URL must arrive letter for letter.
        url = quote(url, safe="%/:?#[]@!$&'()*+,;=~-._")
        options.setdefault("encoded", True)
        # aiohttp's default ends a transfer after five minutes however well it goes; a stall is what must end it.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        headers = {"Accept-Encoding": "identity"}
        given = options.get("client_kwargs") or {}
        options["client_kwargs"] = {"timeout": timeout, **given, "headers": {**headers, **given.get("headers", {})}}
    filesystem, name = fsspec.core.url_to_fs(url, **options)
    return filesystem, name


def _status_of(error: BaseException) -> int | None:
    """HTTP status behind an error of aiohttp, gcsfs, botocore or another client; None when there is none."""
    for name in ("status", "code", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


def _is_transient(error: Exception) -> bool:
    """Whether another try may end better."""
    status = _status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if isinstance(error, _DAMAGE) or type(error) is FetchError:  # the latter: a pipe: command that failed
        return True
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, WidsError)):
        return False
    if isinstance(error, OSError) and error.errno in _LOCAL_TROUBLE:
        return False
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return True
    # aiohttp's payload and disconnect errors, and those of other async clients, are not OSErrors.
    return type(error).__module__.partition(".")[0] in (
        "aiohttp",
        "botocore",
        "aiobotocore",
        "gcsfs",
        "http",
        "asyncio",
    )


def explain(error: Exception, url: str, path: str, *, tries: int = 1) -> WidsError:  # noqa: PLR0911 - a table
    """The typed error that tells what happened to ``url`` and what to do."""
    if isinstance(error, WidsError):
        return error
    status, cause = _status_of(error), str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return ShardNotFoundError(f"{url}: there is nothing there; check the index's URLs and its base", url=url)
    if isinstance(error, PermissionError) or status in (401, 403):
        return FetchDeniedError(
            f"{url}: access was refused ({cause}); check credentials, storage_options or the URL's signature", url=url
        )
    if isinstance(error, OSError) and error.errno in _LOCAL_TROUBLE:
        return CacheError(f"{path}: cannot be written ({cause}) while fetching {url}; free space or move cache_dir")
    if isinstance(error, ImportError):
        package = _EXTRAS.get(urls.scheme_of(url), "the package named above")
        return FetchError(f"{url}: {cause}. Reading this scheme needs {package}: pip install {package}", url=url)
    if isinstance(error, ValueError):
        return FetchError(f"{url}: {cause}; check the URL's scheme and storage_options", url=url)
    return FetchError(f"{url}: failed after {tries} tries ({type(error).__name__}: {cause})", url=url)


def _run_pipe(url: str, path: str, *, allow_pipe: bool) -> None:
    """Run a ``pipe:`` command without a shell; ``{local}`` stands for the file, else the shard is its output."""
    if not allow_pipe:
        raise NotAllowedError(f"{url}: runs a program; pass allow_pipe=True if you trust where this URL came from")
    words = shlex.split(url.removeprefix("pipe:"))
    argv = [word.replace("{local}", path) for word in words]
    with open(os.devnull if argv != words else path, "wb") as target:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.PIPE, check=False)  # noqa: S603 - allowed by the caller, argv without a shell
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise FetchError(f"{url}: exit code {done.returncode}; it said: {last}", url=url)
