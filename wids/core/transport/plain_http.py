"""Small files of HTTP servers, read by the standard library: without aiohttp and fsspec, whose import takes 0.1 s.

The first small files of a process are read so, an index above all; the rules are those of `wids.core.transport.http`.
Other files are left to it, at the latest when the answer begins: those with storage options, a proxy or ``.netrc`` of
the environment, a user in the URL, cookies, unusual answers. A thread sends the request and reads its answer, so that
`go_on` and an interrupt end the wait for a name, a connection or bytes at once.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import ssl
import sys
import threading
import time
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from urllib.parse import urljoin
from urllib.request import getproxies

from wids import __version__
from wids.core.files import forks
from wids.core.transport import filesystems
from wids.core.transport.failures import StalledTransferError
from wids.core.transport.http import GZIP, WITH_CONTENT, Answer, encoding_of, read_blocks
from wids.core.transport.source import ByteSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.core.place import Place
    from wids.core.transport.session import Session
    from wids.core.transport.source import Sink, Stat
    from wids.core.transport.spans import Span

T = TypeVar("T")

# URLs that all clients parse alike: a plain name or an address, no user.
_PLAIN = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?((?:[/?][!-~]*)?)")
_PORTS = {"http": 80, "https": 443}
# After so many in a process, connections that stay open pay.
_MOST = 8
_READ_BYTES = 256 << 10
_REDIRECTS, _MOST_REDIRECTS = frozenset({301, 302, 303, 307, 308}), 10
# A connection that takes longer, and of which there are two kinds, is made by who tries both at a time.
_FIRST_SECONDS = 1.0


class NeedsMoreError(Exception):
    """The file is to be read through `wids.core.transport.http`; nothing of it was given out. Handled by the caller."""


class ClientResponseError(Exception):
    """A refusal by a server, with the attributes and the words of aiohttp's error of this name.

    Args:
        response: of the server.
        url: of the request.
        message: its reason; None: the server's.
    """

    status: int
    headers: Any

    def __init__(self, response: http.client.HTTPResponse, url: str, message: str | None = None) -> None:
        self.status, self.headers = response.status, response.headers
        super().__init__(f"{self.status}, message={response.reason if message is None else message!r}, url={url!r}")


class ClientConnectorError(OSError):
    """No connection was made; with the words of aiohttp's error of this name. Its cause is the system's error."""

    def __str__(self) -> str:
        return str(self.strerror)


class ClientConnectorCertificateError(ValueError):
    """The server's certificate was not accepted; likewise."""


def is_preferred() -> bool:
    """True while this process has read few files so, and has not imported aiohttp anyway."""
    return "aiohttp" not in sys.modules and PlainSource.answers < _MOST


def open_plain(place: Place, session: Session, *, go_on: Callable[[], None]) -> ByteSource | None:
    """The source of a small file of an HTTP server; None: it needs more.

    Args:
        place: of the file.
        session: opens URLs.
        go_on: see `ByteSource`.
    """
    if not (place.scheme in _PORTS and is_preferred()) or session.options_for(place) or _is_set_up():
        return None
    url = str(place)
    target = filesystems.quote_url(url.partition("#")[0])
    if not _PLAIN.fullmatch(target):
        return None
    with forks.lock:
        import encodings.idna  # noqa: F401 - host look-up imports it, in a thread
    return PlainSource(url, target, go_on=go_on)


def _is_set_up() -> bool:
    """True if the environment or the program says how fsspec's and aiohttp's clients send requests."""
    variables = {name: os.environ.get(name) for name in ("NETRC", "FSSPEC_CONFIG_DIR")}
    home = os.path.expanduser("~")
    files = [os.path.join(home, ".netrc"), os.path.join(home, ".config", "fsspec")]
    if any(variables.values()) or any(map(os.path.exists, files)) or getproxies():
        return True
    if any(name.startswith("FSSPEC_HTTP") for name in os.environ):
        return True
    known = sys.modules.get("fsspec.registry")
    if known is None:
        return False
    classes = [known.known_implementations.get(scheme, {}).get("class") for scheme in _PORTS]
    classes += [f"{kind.__module__}.{kind.__qualname__}" for scheme in _PORTS if (kind := known.registry.get(scheme))]
    return any(each != "fsspec.implementations.http.HTTPFileSystem" for each in classes)


class PlainSource(ByteSource):
    """One file, to be read once, from its beginning. The answer that gave its size is kept for its bytes.

    Args:
        url: of the file.
        target: the same, as it is requested.
        go_on: see `ByteSource`.

    Attributes:
        answers: of all sources in this process.
    """

    answers: ClassVar[int] = 0
    is_blocking: bool = False
    answers_have_stat: bool = True
    url: str
    go_on: Callable[[], None]

    def __init__(self, url: str, target: str, *, go_on: Callable[[], None]) -> None:
        self.url, self.go_on = url, go_on
        self._target = target
        self._exchange: _Exchange | None = None
        self._answer: Answer | None = None

    def stat(self, first: Span | None = None, *, is_fresh: bool = True) -> Stat:  # noqa: ARG002 - as all sources
        """Ask for the whole object; see `ByteSource`.

        Raises:
            NeedsMoreError: see there.
        """
        if self._answer is None or self._answer.is_range:
            self.close()
            exchange = self._exchange = _Exchange(self._target)
            self._answer = exchange.run(exchange.ask, self.go_on)
            PlainSource.answers += 1
        return self._answer.stat

    async def read(self, span: Span, sink: Sink) -> None:
        """Ranges are read through `wids.core.transport.http`."""
        raise NotImplementedError

    def stream(self, end: int | None = None, *, in_one_request: bool = False) -> Iterator[bytes]:  # noqa: ARG002 - likewise
        """Stream the object; see `ByteSource`."""
        size = self.stat().size
        exchange, answer = cast("tuple[_Exchange, Answer]", (self._exchange, self._answer))
        return read_blocks(lambda most, ends: exchange.run(partial(_read, answer, most), self.go_on, ends), size, end)

    @property
    def packed_bytes(self) -> int | None:
        """Compressed bytes that have arrived; see `ByteSource`."""
        return None if self._answer is None else self._answer.packed_bytes

    def close(self) -> None:
        """Close the connection; see `ByteSource`."""
        self._answer = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()


class _Exchange:
    """One request, those that redirects lead to, and the answer, each step in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._future: futures.Future[Any] | None = None
        self._is_ended = False

    def run(self, work: Callable[[], T], go_on: Callable[[], None], ends: float | None = None) -> T:
        """The result of a step; its thread ends with the connection if the caller does not wait for it.

        Args:
            work: the step.
            go_on: called regularly; an exception from it ends the step.
            ends: its latest end, by the monotonic clock; None: only silence ends it.
        """
        future: futures.Future[T] = futures.Future()
        self._future = future
        try:
            threading.Thread(target=self._step, args=(work, future), name="wids-http", daemon=True).start()
            while not futures.wait([future], timeout=filesystems.LIMITS.poll_seconds).done:
                go_on()
                if ends is not None and time.monotonic() > ends:
                    raise TimeoutError
            return future.result()
        finally:
            if not future.done():
                self._is_ended = True
                if self._socket is not None:
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # wakes the thread

    def _step(self, work: Callable[[], T], future: futures.Future[T]) -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - for the caller
            future.set_exception(error)
        if self._is_ended:
            self._close()

    def close(self) -> None:
        """Close the connection; one that a thread uses is closed by that."""
        if self._future is None or self._future.done():
            self._close()

    def _close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def ask(self) -> Answer:
        """Request the URL, and follow redirects.

        Raises:
            NeedsMoreError: the answer is an unusual one.
        """
        url = self._url
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._send(url)
            headers = response.headers
            location = headers.get("Location") or headers.get("URI") if response.status in _REDIRECTS else None
            if not location:
                return _answer_of(response, url)
            self._close()
            with contextlib.suppress(ValueError):  # of what is no URL
                location = urljoin(url, location).partition("#")[0]
            if "Set-Cookie" in headers or not _PLAIN.fullmatch(location):
                break
            url = location
        raise NeedsMoreError

    def _send(self, url: str) -> http.client.HTTPResponse:
        match = _PLAIN.fullmatch(url)
        if match is None or not (port := int(match[3] or _PORTS[match[1]])) < 1 << 16:
            raise NeedsMoreError
        scheme, host, written, path = match.groups()
        opened = self._connect(url, host.strip("[]"), port, is_literal=host[0] == "[")
        if scheme == "https":
            opened = self._secure(opened, host.strip("[]"), port)
        opened.settimeout(filesystems.LIMITS.read_seconds)
        lines = (
            f"GET {'' if path.startswith('/') else '/'}{path} HTTP/1.1",
            f"Host: {host}{'' if written is None or port == _PORTS[scheme] else f':{port}'}",
            "Accept: */*",
            "Accept-Encoding: identity",
            f"User-Agent: wids/{__version__}",
        )
        opened.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        response = self._response = http.client.HTTPResponse(opened, method="GET")
        try:
            response.begin()
        except http.client.RemoteDisconnected:
            raise
        except http.client.HTTPException as error:
            raise NeedsMoreError from error
        return response

    def _connect(self, url: str, host: str, port: int, *, is_literal: bool) -> socket.socket:
        words = f"Cannot connect to host {host}:{port} ssl:default"
        flags = 0 if is_literal or host.replace(".", "").isdigit() else socket.AI_ADDRCONFIG
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except OSError as error:
            raise ClientConnectorError(error.errno, f"{words} [{error.strerror}]") from error
        has_both = len({family for family, *_ in addresses}) > 1
        failed: OSError | None = None
        for family, kind, protocol, _, address in addresses:
            opened = self._socket = socket.socket(family, kind, protocol)
            opened.settimeout(_FIRST_SECONDS if has_both else filesystems.LIMITS.connect_seconds)
            try:
                opened.connect(address)
            except OSError as error:
                opened.close()
                failed = error
                if has_both and isinstance(error, TimeoutError):
                    raise NeedsMoreError from error
            else:
                return opened
        if isinstance(failed, TimeoutError):
            raise TimeoutError(f"Connection timeout to host {url}") from failed
        number = None if failed is None else failed.errno
        raise ClientConnectorError(number, f"{words} [Connect call failed {address[:2]}]") from failed

    def _secure(self, opened: socket.socket, host: str, port: int) -> ssl.SSLSocket:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        opened.settimeout(filesystems.LIMITS.connect_seconds)
        secure = self._socket = context.wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
        words = f"Cannot connect to host {host}:{port} ssl"
        try:
            secure.do_handshake()
        except ssl.SSLCertVerificationError as error:
            shown = f"{type(error).__name__}: {error.args}"
            raise ClientConnectorCertificateError(f"{words}:True [{shown}]") from error
        except OSError as error:
            raise ClientConnectorError(error.errno, f"{words}:default [{error.strerror or error}]") from error
        return secure


def _answer_of(response: http.client.HTTPResponse, url: str) -> Answer:
    """The answer that a response is.

    Raises:
        ClientResponseError: it is a refusal, or has no content. NeedsMoreError: it is an unusual one.
    """
    lengths, coding = response.headers.get_all("Content-Length", []), response.headers.get("Transfer-Encoding", "")
    is_usual = response.status >= 200 and coding.strip().lower() in ("", "chunked")
    if not is_usual or len(lengths) > 1 or not all(each.strip().isdecimal() for each in lengths):
        raise NeedsMoreError
    if response.status >= 400:
        raise ClientResponseError(response, url)
    if response.status not in WITH_CONTENT:
        raise ClientResponseError(response, url, "an answer without the file")
    encoding = encoding_of(response)
    if encoding not in ("", "identity", *GZIP):
        raise NeedsMoreError
    return Answer(_Body(response), lambda *_: None, lambda: None, encoding=encoding, is_raw=True)


class _Body:
    """A response, with the attributes that `Answer` uses of aiohttp's."""

    status: int
    headers: Any
    content_length: int | None

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response, self.status, self.headers = response, response.status, response.headers
        length = response.headers.get("Content-Length")
        self.content_length = None if length is None else int(length)

    @property
    def content(self) -> _Body:
        """The body itself."""
        return self

    async def readany(self) -> bytes:
        """Some bytes; none at the end. It never waits for a loop.

        Raises:
            StalledTransferError: it ended too early.
        """
        try:
            data = self._response.read(_READ_BYTES)
        except ssl.SSLError as error:
            raise StalledTransferError(f"the connection broke ({error})") from None
        if not data and self._response.length:
            raise StalledTransferError(f"the answer ended {self._response.length:,} bytes too early")
        return data

    def close(self) -> None:
        """Do nothing: the opener closes the connection."""


def _read(answer: Answer, size: int) -> bytes:
    """About ``size`` bytes of an answer, whose reads wait for no loop."""
    try:
        answer.read(size).send(None)
    except StopIteration as end:
        return bytes(end.value)
    raise RuntimeError("a read waits")
