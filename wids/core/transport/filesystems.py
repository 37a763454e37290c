"""fsspec file systems by URL, opened safely for forks.

Rules: request a file system at each use and never keep one. fsspec caches those that it may, and one that was made
before a fork cannot be used after it. The module's globals exist only for forks: a fork copies the module.
Options go to the servers that they are for (`wids.core.transport.session`), and no credential follows a redirect
to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import heapq
import itertools
import logging
import math
import sys
import time
import weakref
from concurrent import futures
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from wids.core.files import forks
from wids.core.place import Place
from wids.core.transport import concurrency
from wids.core.transport.failures import StalledTransferError
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import Precedence, parse_tag
from wids.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

T = TypeVar("T")


class RequestLimits(NamedTuple):
    """The time limits of requests; the default applies; tests replace it.

    Attributes:
        connect_seconds: limit for a connection.
        read_seconds: limit from one piece of an answer to the next.
        bucket_seconds: limit for a request of a bucket's kind.
        bucket_again_seconds: after this time an unknown kind is requested again.
        give_way_seconds: the longest time that a download ahead waits for requests of samples to end; a busy reader
            sends them all the time.
        signed_seconds: a signature of S3 is sent for so long. Servers take it for 15 minutes, less the error of clocks,
            and botocore renews credentials earlier than that.
        poll_seconds: interval at which a caller checks whether to continue.
        close_seconds: the wait at the end.
    """

    connect_seconds: float = 30.0
    read_seconds: float = 60.0
    bucket_seconds: float = 3.0
    bucket_again_seconds: float = 60.0
    give_way_seconds: float = 0.5
    signed_seconds: float = 60.0
    poll_seconds: float = 0.1
    close_seconds: float = 5.0


LIMITS = RequestLimits()
_SLOWEST_BYTES = 128 << 10  # a second
# The keys of fsspec's ``info`` that identify a version of an object: certainly, and usually.
_STRONG_KEYS = ("ETag", "etag", "e_tag", "generation", "md5Hash", "blob_id")
_WEAK_KEYS = (
    *("crc32c", "LastModified", "Last-Modified", "last_modified", "updated", "mtime", "modify", "modificationTime"),
)
_S3, _GOOGLE = ("s3", "s3a"), ("gs", "gcs")
_NEUTRAL_HEADERS = frozenset({"accept", "accept-encoding", "range", "user-agent"})
_FIRST_REQUEST_BYTES, _MIN_REQUEST_BYTES, _MAX_REQUEST_BYTES = 256 << 10, 32 << 10, 2 << 20
_MIN_GAP_BYTES, _MIN_RATED_BYTES = 8 << 10, 256 << 10


def _start_child() -> None:
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()  # its event loop ran in a thread that the child does not have; a wait for it never ends


forks.call_in_child(_start_child)

# A forked child drops fsspec's cache of file systems. This closes their sessions, which removes the parent's
# connections out of the epoll that both processes share: the parent's next transfer over one stalls until its time-out.
# Objects kept here are never finalized in the child. fsspec itself keeps all these as long as the process lives.
_pinned: set[Any] = set()


def open_filesystem(url: str | Place, session: Session = PLAIN, *, tries_once: bool = False) -> tuple[Any, str]:
    """The fsspec file system of ``url`` and the name in it.

    Args:
        url: of the object.
        session: opens URLs.
        tries_once: the client makes each request once; the caller retries (`wids.core.transport.retrying`).

    Raises:
        ImportError: the scheme needs a package that is not installed.
        ValueError: no such scheme, a chain that begins with a local file, or invalid options.
    """
    place = Place.of(url)
    url, scheme, options = str(place), place.scheme, session.options_for(place)
    _import_for(place)
    import fsspec

    if scheme in ("http", "https"):
        # Not through url_to_fs: it would read "::" in a query as a chain of file systems.
        filesystem, name = fsspec.filesystem(scheme, **_http_options(options, url)), quote_url(url)
    else:
        for inner in {"http", "https"} & options.keys():  # options for a part of a chain
            options[inner] = {**_http_options(options[inner], url), "encoded": options[inner].get("encoded", False)}
        if tries_once:
            options = _once_options(scheme, options)
        filesystem, name = fsspec.core.url_to_fs(url, **options)
        protocols = filesystem.protocol
        # Such a file system would use only the first part.
        if "file" in ((protocols,) if isinstance(protocols, str) else protocols) and not place.is_local:
            advice = "" if "://" in url else f"; a file of this name is ./{url}"
            raise ValueError(f"the first part of a chain is a file system that reads another{advice}")
        if tries_once:
            _drop_retries(scheme, filesystem)
    _pinned.add(filesystem)
    return filesystem, name


def loop() -> asyncio.AbstractEventLoop:
    """The event loop of fsspec's thread in this process."""
    import fsspec.asyn

    return cast("asyncio.AbstractEventLoop", fsspec.asyn.get_loop())


def run(coroutine: Coroutine[Any, Any, T], *, go_on: Callable[[], None] = lambda: None) -> T:
    """The result of a coroutine that runs in fsspec's thread.

    Args:
        coroutine: it is cancelled if the caller is interrupted.
        go_on: called regularly; an exception from it ends the coroutine.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, loop())
    try:
        while not futures.wait([future], timeout=LIMITS.poll_seconds).done:
            go_on()
        return future.result()
    finally:
        if not future.done():
            future.cancel()
            # It must not write any more when the file is closed: the descriptor's number may be another file's.
            futures.wait([future], timeout=LIMITS.close_seconds)


def limit_of(size: int) -> float:
    """The seconds that a request for this number of bytes may take; a slower one counts as stalled."""
    return LIMITS.connect_seconds + LIMITS.read_seconds + size / _SLOWEST_BYTES


def version_of(info: dict[str, Any]) -> tuple[Any, bool]:
    """The version of an object, from fsspec's ``info``; and True if it is strong."""
    tags = {name: parse_tag(str(info[name])) for name in (*_STRONG_KEYS, *_WEAK_KEYS) if info.get(name) is not None}
    is_strong = any(name in tags and tags[name][1] for name in _STRONG_KEYS)
    return tuple(text for text, _ in tags.values()) or None, is_strong


_numbers = itertools.count()


class _Slots:
    """A semaphore that serves waiters by precedence, for one event loop."""

    free: int

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: list[tuple[Precedence, int, asyncio.Future[None]]] = []

    async def acquire(self, precedence: Precedence) -> None:
        """Take a slot, when no other waiter precedes.

        Raises:
            StalledTransferError: the download has failed meanwhile.
        """
        if self.free:
            self.free -= 1
            return
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (precedence, next(_numbers), slot))
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():  # the slot was given before the cancellation
                self.release()
            raise
        if precedence.has_failed:
            self.release()
            raise StalledTransferError("not requested, because another part of it failed")

    def release(self) -> None:
        """Give a slot back: the first waiter gets it."""
        while self._waiting:
            slot = heapq.heappop(self._waiting)[2]
            if not slot.done():
                slot.set_result(None)
                return
        self.free += 1


class Connections:
    """The byte ranges that this process is reading, and measurements of their hosts.

    Ranges of downloads and requests for samples are counted separately, so that no sample waits for a download.

    Attributes:
        count: ranges of downloads at a time.
        slots: one is taken for each of them.
        weak_hosts: hosts that returned an object without a strong version (`wids.core.transport.source.Stat`).
    """

    count: int
    slots: _Slots

    def __init__(self) -> None:
        self.count = concurrency.LIMITS.connections
        self.slots = _Slots(self.count)
        self._request_slots = asyncio.Semaphore(concurrency.LIMITS.max_requests)
        self._delays: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self.weak_hosts: set[str] = set()
        self._requests, self._has_none = 0, asyncio.Event()
        self._has_none.set()

    async def acquire(self, precedence: Precedence | None) -> Callable[[], None]:
        """Wait for a connection; return a function that gives it back.

        Args:
            precedence: of a download; None: it is a request for samples.
        """
        if precedence is None:
            await self._request_slots.acquire()
            return self._request_slots.release
        await self.slots.acquire(precedence)
        return self.slots.release

    @contextlib.contextmanager
    def requesting(self) -> Iterator[None]:
        """Let downloads ahead give way in the block, which requests samples."""
        self._requests += 1
        self._has_none.clear()
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._has_none.set()

    async def give_way(self) -> None:
        """Wait, for a limited time, until no samples are requested."""
        if self._requests:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._has_none.wait(), LIMITS.give_way_seconds)

    def requests_at_a_time(self, host: str) -> int:
        """The number of concurrent requests for samples to one host."""
        delay = self._delays.get(host)
        return concurrency.LIMITS.max_requests // 2 if delay is None else concurrency.requests_at_a_time(delay)

    def note(self, host: str, first_seconds: float, size: int, seconds: float) -> None:
        """Note a range: ``size`` bytes came in ``seconds`` after the first byte, which took ``first_seconds``."""
        # The shortest delay: longer ones include the delays of this machine when it is busy.
        self._delays[host] = min(1.1 * self._delays.get(host, first_seconds), first_seconds)
        if size >= _MIN_RATED_BYTES:  # a few bytes arrive with the headers, in no time
            rate = size / max(seconds, 1e-4)
            self._rates[host] = 0.7 * self._rates.get(host, rate) + 0.3 * rate

    def range_bytes(self, host: str, size: int | None) -> int:
        """The best length of a range from ``host``.

        The wait for the first byte then takes a tenth of the time, or a fifth if all connections share one object of
        ``size`` bytes.
        """
        rate = self._rates.get(host)
        wanted = concurrency.LIMITS.first_range_bytes if rate is None else 10 * self._delays[host] * rate
        return concurrency.range_bytes(size, wanted=wanted, connections=self.count)

    def request_bytes(self, host: str) -> int:
        """The number of bytes that take as long as a single request; a guess for an unknown host."""
        rate = self._rates.get(host)
        if rate is None:
            return _FIRST_REQUEST_BYTES
        return int(min(max(self._delays[host] * rate, _MIN_REQUEST_BYTES), _MAX_REQUEST_BYTES))

    def gap_bytes(self, host: str) -> int:
        """The number of bytes between two pieces that take as long as another request among many."""
        return max(self.request_bytes(host) // self.requests_at_a_time(host), _MIN_GAP_BYTES)


# One for each loop, and a fork gets a new loop.
_connections: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = weakref.WeakKeyDictionary()


def connections() -> Connections:
    """The connections of this process."""
    here = loop()
    known = _connections.get(here)
    return _connections.setdefault(here, Connections()) if known is None else known


def quote_url(url: str) -> str:
    """Quote only characters that URLs forbid (spaces, bytes beyond ASCII, ...): signed URLs do not change."""
    return quote(url, safe="%/:?#[]@!$&'()*+,;=~-._", errors="surrogateescape")


def _once_options(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a client without its own retries: nested in ours, a refused connection takes minutes to be reported.

    They also separate it from a file system that the program opens itself, which keeps its retries.
    """
    if scheme in _S3:
        config = options.get("config_kwargs") or {}
        return {**options, "config_kwargs": {"retries": {"max_attempts": 0}, **_s3_proxies(options), **config}}
    if scheme in _GOOGLE:
        return {"session_kwargs": _proxied(), **options, "tries_once": True}
    return options


def _s3_proxies(options: dict[str, Any]) -> dict[str, Any]:
    """The setting of botocore for ``$ALL_PROXY``, which it leaves out; it finds the other variables itself."""
    client = options.get("client_kwargs") or {}
    endpoint = Place(options.get("endpoint_url") or client.get("endpoint_url") or "https://s3.amazonaws.com")
    proxy = find_proxy(endpoint.scheme, endpoint.host)
    return {} if proxy is None else {"proxies": {endpoint.scheme: proxy}}


def _drop_retries(scheme: str, filesystem: Any) -> None:
    """Remove a client's retries that no option controls."""
    if scheme in _S3 and isinstance(getattr(filesystem, "retries", None), int):
        filesystem.retries = 1
    elif scheme in _GOOGLE and (plain := getattr(type(filesystem)._request, "__wrapped__", None)):  # noqa: SLF001 - a decorator holds them
        filesystem._request = functools.partial(plain, filesystem)  # noqa: SLF001 - likewise
        if hasattr(filesystem, "_get_bucket_type"):
            filesystem._get_bucket_type = _BucketTypes(filesystem._get_bucket_type)  # noqa: SLF001 - likewise


class _BucketTypes:
    """gcsfs's request for the kind of a bucket, with a time limit: its own tries take a minute if no server answers.

    Args:
        ask: a coroutine function of the bucket's name.
    """

    def __init__(self, ask: Callable[[str], Awaitable[Any]]) -> None:
        self._ask = ask
        self._failed: dict[str, float] = {}

    async def __call__(self, bucket: str) -> Any:
        from gcsfs.extended_gcsfs import BucketType

        if time.monotonic() - self._failed.get(bucket, -math.inf) < LIMITS.bucket_again_seconds:
            return BucketType.UNKNOWN  # read like any other bucket
        _silence_gcsfs()
        _asks_kind.set(True)  # for this task, and the one that is made of the request
        try:
            kind = await asyncio.wait_for(self._ask(bucket), LIMITS.bucket_seconds)
        except asyncio.TimeoutError:
            kind = BucketType.UNKNOWN
        if kind is BucketType.UNKNOWN:
            self._failed[bucket] = time.monotonic()
        return kind


# True if this task asks for the kind of a bucket. An unknown kind is no fault, and gcsfs warns of it.
_asks_kind: contextvars.ContextVar[bool] = contextvars.ContextVar("_asks_kind", default=False)


@functools.cache
def _silence_gcsfs() -> None:
    logging.getLogger("gcsfs").addFilter(lambda _: not _asks_kind.get())


def _http_options(options: dict[str, Any], url: str) -> dict[str, Any]:
    import aiohttp

    request, client = dict(options), dict(options.get("client_kwargs") or {})
    # aiohttp's default ends each transfer after five minutes; only a stall may end it.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=LIMITS.connect_seconds, sock_read=LIMITS.read_seconds)
    # identity: the number of received bytes is checked. No requoting: the target of a redirect may be signed, too.
    headers = {"Accept-Encoding": "identity", **(client.get("headers") or {})}
    # Credentials as headers, which `_drop_own_headers` can remove; a session sends its own to each host of a redirect.
    auth = client.pop("auth", None)
    if auth is not None and "@" not in url.partition("://")[2].partition("/")[0]:  # a user in the URL precedes
        headers["Authorization"] = auth.encode()
    cookies = {**(client.pop("cookies", None) or {}), **(request.pop("cookies", None) or {})}
    if cookies:
        headers["Cookie"] = "; ".join(f"{name}={getattr(value, 'value', value)}" for name, value in cookies.items())
    traces = [*(client.get("trace_configs") or ()), _redirects()]
    # requote: the target of a redirect is left as it was signed.
    client = {"timeout": timeout, "requote_redirect_url": False, **_proxied(), **client}
    return {"encoded": True, **request, "client_kwargs": {**client, "headers": headers, "trace_configs": traces}}


def _proxied() -> dict[str, Any]:
    """The arguments of aiohttp's session by which it heeds proxies of the environment, as curl and requests do."""
    return {"trust_env": True, "request_class": _request_class()}


@functools.cache  # one object, as `_redirects`
def _request_class() -> Any:
    import aiohttp
    from yarl import URL

    class ProxiedRequest(aiohttp.ClientRequest):
        """A request, also one that follows a redirect; aiohttp itself leaves ALL_PROXY out."""

        def __init__(self, method: str, url: URL, *, proxy: URL | None = None, **options: Any) -> None:
            proxy_url = find_proxy(url.scheme, url.host or "") if proxy is None else None
            super().__init__(method, url, proxy=proxy if proxy_url is None else URL(proxy_url), **options)

    return ProxiedRequest


def find_proxy(scheme: str, host: str) -> str | None:
    """The URL of the proxy of ``$ALL_PROXY`` for a server; None: another variable decides, or there is none.

    Raises:
        InputError: it is no proxy of HTTP.
    """
    from urllib.request import getproxies, proxy_bypass

    named = getproxies()
    proxy = named.get("all")
    if not proxy or scheme in named or proxy_bypass(host):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise InputError(
            f"ALL_PROXY is {proxy.partition('://')[0]}://..., and only HTTP proxies can be used; set HTTP_PROXY and "
            f"HTTPS_PROXY to one, or name {host} in NO_PROXY"
        )
    return proxy


@functools.cache  # one object: fsspec finds a cached file system by its arguments
def _redirects() -> Any:
    import aiohttp

    traces = aiohttp.TraceConfig()
    traces.on_request_redirect.append(_drop_own_headers)
    return traces


async def _drop_own_headers(_session: Any, _context: Any, params: Any) -> None:
    """On a redirect to another scheme, host or port, drop the caller's own headers."""
    from yarl import URL

    here, location = params.response.url, params.response.headers.get("Location")
    with contextlib.suppress(ValueError):
        # Without a Location, aiohttp follows the URI of old servers.
        if location and here.join(URL(location, encoded=True)).origin() == here.origin():
            return
    for name in [name for name in params.headers if name.lower() not in _NEUTRAL_HEADERS]:
        params.headers.popall(name, None)


def _import_for(place: Place) -> None:
    """Import and start in advance all that a download needs, while forks wait."""
    with forks.lock:
        import encodings.idna  # noqa: F401 - host look-up imports it, in a thread

        import fsspec
        import fsspec.asyn

        with contextlib.suppress(ImportError):  # older fsspec has none
            import fsspec.implementations.chained  # url_to_fs imports it
        for scheme in place.schemes:
            with contextlib.suppress(ValueError, ImportError):  # no scheme, or the download raises it with advice
                fsspec.get_filesystem_class(scheme)
        fsspec.asyn.get_loop()  # it starts a thread, under a lock
