"""Failures of transfers: decides on retries, and makes the typed error with advice.

Clients are recognised by the form of their errors, and never imported. Unknown errors are final unless a network
client raised them.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import socket
import ssl
import sys
import time
from email.utils import parsedate_to_datetime

from wids.core.files import system
from wids.core.files.nearest import name_nearest
from wids.core.place import Place
from wids.errors import (
    CacheError,
    CorruptHeaderError,
    DigestMismatchError,
    EmptyShardError,
    FetchDeniedError,
    FetchError,
    ShardNotFoundError,
    SizeMismatchError,
    TruncatedShardError,
    UnreachableError,
    WidsError,
    WrongContentError,
    is_harmless,
    without_secrets,
)

# Damage that persists is a fault of the server or the index, not of the network: one more try, then an error.
DAMAGE = (
    SizeMismatchError,
    DigestMismatchError,
    EmptyShardError,
    TruncatedShardError,
    CorruptHeaderError,
    WrongContentError,
)
_TRANSIENT_STATUS = frozenset({408, 425, 429})
_FINAL_SERVER_STATUS = frozenset({501, 505})  # the server cannot do it at all
_UNWRITABLE = system.FULL | {errno.EROFS, errno.EFBIG}
# Another try cannot help: this machine's disk, or its descriptors (closing some is the pool's work).
_LOCAL_TROUBLE = _UNWRITABLE | {errno.EMFILE, errno.ENFILE, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG}
_FINAL = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    ValueError,  # also a URL that aiohttp cannot parse, and an invalid certificate
    WidsError,
)
# Not all errors of these clients are OSErrors: aiohttp's for a payload cut short, asyncio's time-out in Python 3.10.
# Versions of huggingface_hub use requests, httpx or httpx2.
_CLIENTS = frozenset(
    {
        *("aiohttp", "botocore", "aiobotocore", "gcsfs", "google", "http", "asyncio", "huggingface_hub"),
        *("requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2"),
    }
)
_NOT_HTTP = "NonHttpUrlRedirectClientError"
# Classes of botocore: neither given, nor in the environment, nor from the machine's own service.
_NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError"})
# Classes of aiohttp, Google's clients, huggingface_hub and botocore.
_FINAL_NAMES = frozenset(
    {"TooManyRedirects", _NOT_HTTP, "DefaultCredentialsError", "OfflineModeIsEnabled", *_NO_CREDENTIALS}
)
# In a RateLimit header: no request is left (r=0), for t seconds.
_SPENT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
# The package for a scheme, as pip takes it.
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "'wids[s3]'"),
    **dict.fromkeys(("gs", "gcs"), "'wids[gcs]'"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
    "hf": "'wids[hub]'",
}


_ENDPOINT = 'for a store that is not Amazon\'s, add storage_options={"endpoint_url": "https://..."}'


class _TransferError(OSError):
    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class InterruptedTransferError(_TransferError):
    """The object changed during the transfer, or is sent in another form; the next try starts again."""


class StalledTransferError(_TransferError):
    """The transfer ended too early, or received nothing for too long; the next try continues it."""


class PausedError(_TransferError):
    """No request was sent: the server must not get one for ``seconds``."""

    headers: dict[str, str]
    status = 429

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(math.ceil(seconds))}


class CancelledTransferError(Exception):
    """The transfer was cancelled. Handled by the caller that cancelled it."""


def words_of(error: BaseException, url: str = "") -> str:
    """The message or the name of an error about ``url``, without the secrets of URLs."""
    return without_secrets(_text_of(error), url) or type(error).__name__


def _text_of(error: BaseException) -> str:
    """The message of an error; "": it has none. Of a URL with a port above 65535, aiohttp cannot say it."""
    with contextlib.suppress(ValueError):
        return str(error)
    return ""


def public_cause(error: Exception, url: str) -> Exception | None:
    """The cause to show behind a wids error in a traceback: no client's error with a signature or password.

    Nor one with letters of a server that act on a terminal.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if without_secrets(text := _text_of(each), url) != text or not is_harmless(text):
            return None
        each = each.__cause__ or each.__context__
    return error


def find_retry_after(error: BaseException | None) -> float | None:
    """The seconds that a server asks clients to wait (RFC 9110, 10.2.3, and the draft of RateLimit), or None."""
    headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None)
    find = getattr(headers, "get", None)
    text = None if find is None else find("Retry-After")
    if not isinstance(text, str):
        limit = None if find is None or error is None or _status_of(error) != 429 else find("RateLimit")
        match = _SPENT.search(limit) if isinstance(limit, str) else None
        return None if match is None else float(match[1])
    if text.strip().isdecimal():
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    return None


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of a handled error, and of its causes.

    Clients' errors are parts of reference cycles, which exist until garbage collection. Their frames would keep the
    callers' objects alive: the open shard of a later try, and so its lease.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def is_transient(error: Exception, path: str | None) -> bool:
    """True if another try may succeed. ``path``: the file that is written."""
    status = _status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS or (status >= 500 and status not in _FINAL_SERVER_STATUS)
    if isinstance(error, DAMAGE):
        return True
    if type(error) is FetchError:  # a pipe: command that failed
        return True
    if isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES or _is_of_target(error, path):
        return False
    if isinstance(error, OSError):
        return error.errno not in _LOCAL_TROUBLE and _refusal_of_bucket(error) in {None, *_TRANSIENT_STATUS}
    return isinstance(error, EOFError) or any(base.__module__.split(".")[0] in _CLIENTS for base in type(error).__mro__)


def is_unreached(error: Exception) -> bool:
    """True if no connection was made: the name is unknown, nobody listens on the port, TLS failed."""
    return bool(_reason_of_no_connection(error))


def _likely_cause(url: str, status: int | None) -> str:
    """The likely cause, in a URL, of a missing object."""
    if status is not None and "#" in url:
        return " (a request ends before '#'; write %23 if it is part of the name)"
    place = Place(url)
    if place.scheme in ("http", "https") and "*" in place.without_query:
        return " (HTTP knows no globs; name a directory, with / at its end, or a brace pattern)"
    if not place.is_local and "." not in place.name:
        return " (for the shards in a directory, give its name with / at its end)"
    return ""


def is_overload(error: BaseException) -> bool:
    """True if the server answered that it gets too many requests."""
    return _status_of(error) in (429, 503)


def explain(error: Exception, url: str, path: str | None, *, tries: int) -> WidsError:  # noqa: PLR0911 - one kind each
    """The typed error for a failure of ``url``, with advice."""
    status, cause = _status_of(error), words_of(error, url)
    if _is_of_target(error, path):
        advice = system.advice_on_writing(error)
        return CacheError(f"{path}: cannot be written ({cause}) while fetching {url}; {advice} or move cache_dir")
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        place = Place(url)
        near = name_nearest(place.path) if place.is_local else _likely_cause(url, status)
        return ShardNotFoundError(
            f"{url}: does not exist{near}; check the URL or path, and the base of the index if it comes from one",
            url=url,
        )
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ in _NO_CREDENTIALS:
        return _denied(error, url, cause)
    if isinstance(error, ImportError):
        return FetchError(f"{url}: {cause}. {missing_advice(error, url)}", url=url)
    if reason := _reason_of_no_connection(error):
        # Without an endpoint_url, the client goes to Amazon.
        hint = f"; {_ENDPOINT}" if Place(url).scheme in ("s3", "s3a") and "amazonaws.com" in cause else ""
        return UnreachableError(f"{url}: {reason} ({cause}; tries: {tries}){hint}", url=url)
    if isinstance(error, ValueError) or (isinstance(error, TypeError) and "argument" in cause):
        return FetchError(f"{url}: {cause}; check the URL's scheme and storage_options", url=url)
    if type(error).__name__ == _NOT_HTTP:
        return FetchError(f"{url}: the server redirects to {cause}, and only http(s) URLs are followed", url=url)
    if _is_too_late(error):
        return FetchError(
            f"{url}: cannot be fetched, the interpreter is ending ({cause}); let the main thread wait for the threads "
            "that read (join), and read nothing in atexit functions",
            url=url,
        )
    if (refused := _refusal_of_bucket(error)) is not None:
        return FetchError(
            f"{url}: cannot be fetched (status {refused}: {cause}; tries: {tries}); check the bucket's region and "
            "endpoint, credentials and storage_options",
            url=url,
        )
    advice = _likely_cause(url, status) if isinstance(error, IsADirectoryError) else ""
    return FetchError(f"{url}: cannot be fetched ({type(error).__name__}: {cause}; tries: {tries}){advice}", url=url)


def _denied(error: Exception, url: str, cause: str) -> FetchDeniedError:
    if type(error).__name__ not in _NO_CREDENTIALS:
        why = f"access was refused ({cause}); check credentials, storage_options or the URL's signature"
    else:
        why = (
            f'there are no credentials for it ({cause}); a public bucket needs storage_options={{"anon": True}}, any '
            f'other one {{"key": ..., "secret": ...}}, or what AWS reads; {_ENDPOINT}'
        )
    return FetchDeniedError(f"{url}: {why}", url=url)


def missing_advice(error: ImportError, url: str) -> str:
    """Advice for a missing module."""
    module = (error.name or getattr(error.__cause__, "name", None) or "").partition(".")[0]
    if module in sys.stdlib_module_names:
        return f"This Python was built without the standard module {module}; install one that has it"
    package = _PACKAGES.get(Place(url).scheme) or module
    return f"This scheme needs a package: pip install {package}" if package else "Install the package that it names"


def _status_of(error: BaseException) -> int | None:
    """HTTP status behind an error of aiohttp, gcsfs, botocore or another client; None without a status."""
    for name in ("status", "code", "status_code"):
        value = getattr(error, name, None)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 100 <= value < 600:
            return value
        if value == 0:  # aiohttp's error for too many redirects; reading its other attributes is deprecated
            break
    # Errors of the Hub's clients have the answer.
    value = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(value, int) and 100 <= value < 600:
        return value
    # gcsfs reports a refusal only in its text; as an unknown error, it would be retried.
    if type(error) is OSError and error.errno is None and str(error).startswith("Forbidden: "):
        return 403
    return None


def _refusal_of_bucket(error: BaseException) -> int | None:
    """The status behind an error of botocore, which s3fs turns into an OSError, if the request is at fault.

    416 is excluded. It means an object that became shorter after its size was requested; the next request shows this.
    """
    response = getattr(error.__cause__ if isinstance(error, OSError) else error, "response", None)
    metadata = response.get("ResponseMetadata") if isinstance(response, dict) else None
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    is_refusal = isinstance(status, int) and 300 <= status < 500 and status != 416
    return status if is_refusal and not isinstance(error, TimeoutError) else None  # "RequestTimeout" is a 400


def _is_too_late(error: BaseException) -> bool:
    """True if Python refuses new threads, as after the end of the main thread; clients resolve hosts in threads."""
    return isinstance(error, RuntimeError) and "shutdown" in str(error)


def _is_of_target(error: BaseException, path: str | None) -> bool:
    """True if the written file failed, and not its source."""
    return isinstance(error, OSError) and (error.errno in _UNWRITABLE or (path is not None and error.filename == path))


def _reason_of_no_connection(error: BaseException) -> str:
    """The reason for a failed connection; "" if a connection existed, or the reason is unknown."""
    seen = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, ssl.SSLError):
            return "the server's certificate or TLS was not accepted; check the URL, the clock and the CA certificates"
        if isinstance(cause, socket.gaierror) or "DNS" in type(cause).__name__:
            return "the host's name cannot be resolved; check the URL and this machine's network"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused; check host and port"
        # aiohttp keeps the system's error in os_error and, for certificates, certificate_error.
        cause = (
            getattr(cause, "certificate_error", None)
            or getattr(cause, "os_error", None)
            or cause.__cause__
            or cause.__context__
        )
    return ""
