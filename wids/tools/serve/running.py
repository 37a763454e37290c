"""The server: a socket, uvicorn on it, the address to open; in a separate thread for notebooks and tests."""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from wids.errors import DependencyError, InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from typing_extensions import Self

    from wids.tools.serve.served import Served

_USUAL_PORT, _PORTS = 8437, 16  # as many are tried
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_END_SECONDS = 5
_BACKLOG = 32  # so many connections are accepted before one is looked at


def check_packages() -> None:
    """Check that all packages of the pages are installed, before a module that takes one is imported.

    Raises:
        DependencyError: ``wids[serve]`` is not.
    """
    for name in ("starlette", "uvicorn", "jinja2"):
        _import(name, "install it: pip install 'wids[serve]'")


class PageServer:
    """The pages of a dataset, at an address.

    Args:
        served: the dataset; `close` closes it.
        host: where to listen. Any but the loopback addresses asks each browser for a token.
        port: which; 0: any free one; None: 8437, or the next free one.
        has_token: ask for a token on loopback too, where other users of the machine could look.
        has_frames: let notebooks of this machine show the pages in a frame.
        root_path: see `wids.tools.serve.guard.Guard`.

    Attributes:
        url: the address to open, with the token.
        is_local: only this machine's browsers reach it.

    Raises:
        InputError: no such host exists. OutputError: the port is in use, or not ours.
    """

    is_local: bool
    url: str

    def __init__(
        self,
        served: Served,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        has_token: bool = False,
        has_frames: bool = False,
        root_path: str = "",
    ) -> None:
        import uvicorn

        from wids.tools.serve.app import make_app
        from wids.tools.serve.connections import LimitedProtocol

        self._served = served
        self._socket = _listen(host, port)
        self.is_local = host in _LOOPBACK
        token = secrets.token_urlsafe(24) if has_token or not self.is_local else None
        name = f"[{host}]" if ":" in host else host
        if host in ("0.0.0.0", "::"):  # noqa: S104 - asked for
            name = socket.gethostname()
        port, below = self._socket.getsockname()[1], f"/{root_path.strip('/')}/".replace("//", "/")
        self.url = f"http://{name}:{port}{below}{f'?token={token}' if token else ''}"
        config = uvicorn.Config(
            make_app(served, token=token, has_frames=has_frames, root_path=root_path),
            log_config=None,
            log_level="error",  # warnings are of requests, and any page may send some
            access_log=False,  # whose lines would have the token
            lifespan="off",
            http=LimitedProtocol,
            ws="none",
            backlog=_BACKLOG,
            server_header=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def start(self) -> Self:
        """Answer in a thread of this process until `close`."""
        self._thread = threading.Thread(target=self.run, daemon=True, name="wids-serve")
        self._thread.start()
        return self

    def close(self) -> None:
        """Answer no more; requests that are under way have five seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):  # a forked worker of a loader may have a copy, which would hold the port
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._served.close()
        for key in [key for key, server in _started.items() if server is self]:
            del _started[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wids serve: {self._served.name} at {self.url}>"

    def show(self, height: int = 700, page: str = "/") -> Any:
        """A frame with the pages, for the end of a notebook's cell.

        The browser has to reach this machine's loopback address: see "In a notebook" in wids/tools/serve/README.md.

        Args:
            height: in pixels.
            page: which comes first: ``"/"``, ``"/samples"``, ``"/epoch"``, ``"/cache"``.

        Raises:
            DependencyError: this is no notebook: there is no IPython.
        """
        display = _import("IPython.display", "it is a part of every notebook; elsewhere open the server's url")
        return display.IFrame(urljoin(self.url, f"./{page.lstrip('/')}"), "100%", height)


_started: dict[Hashable, PageServer] = {}
_starting = threading.RLock()


def start_alone(key: Hashable, make: Callable[[], PageServer]) -> PageServer:
    """Start a server in a thread of this process, which ends with it; the one that was started for the same is closed.

    Raises:
        WidsError: as ``make`` does.
    """
    with _starting:
        before = _started.get(key)
        if before is not None:
            before.close()
        server = _started[key] = make().start()
    return server


@atexit.register
def _close_all() -> None:
    for server in list(_started.values()):
        server.close()


def _import(name: str, advice: str) -> Any:
    """A package that the pages take.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(f"the pages take {name.partition('.')[0]}; {advice}") from error


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that waits for browsers.

    Raises:
        InputError: no such host exists. OutputError: the port is taken or forbidden.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"--host {host}: there is no such address ({error})") from error
    for tried in range(_USUAL_PORT, _USUAL_PORT + _PORTS) if port is None else (port,):
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((address[0], tried, *address[2:]))
            found.listen(128)
        except OSError as error:
            found.close()
            if port is not None or error.errno != errno.EADDRINUSE:
                raise OutputError(
                    f"port {tried} of {host} is not available ({error.strerror}); choose another, or 0 for any free one"
                ) from error
        else:
            return found
    raise OutputError(f"ports {_USUAL_PORT} to {_USUAL_PORT + _PORTS - 1} of {host} are in use; choose one with --port")
