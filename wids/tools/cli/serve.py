"""``wids serve``: a dataset, an epoch and a cache in a browser."""

from __future__ import annotations

import contextlib
import getpass
import html
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from wids.core.files import tempdirs
from wids.core.transport.session import PLAIN
from wids.tools.cli.options import Index, SessionFlag
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from collections.abc import Iterator

app: App = App()
_WORDS = "To the pages of wids serve"


@app.command(
    "serve",
    epilog=examples("wids serve train.json", "wids serve https://host/train.json --tags tags.npy \\\n  --no-open"),
)
def run_serve(
    index: Index,
    host: Annotated[
        str,
        typer.Option(metavar="H", help="Where to listen. Any but loopback asks browsers for the token in the URL."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", help="0: any free port. Default: 8437, or the next free.", show_default=False
        ),
    ] = None,
    cache_dir: Annotated[
        str,
        typer.Option(
            "--cache",
            "--cache-dir",
            metavar="DIR",
            help="The cache directory to look at, and to read shards from. Default: $WIDS_CACHE, else your own in the "
            "temporary directory.",
        ),
    ] = "",
    tags: Annotated[
        str,
        typer.Option(
            "--tags",
            "--marks",
            metavar="FILE",
            help="Keep the tags of samples in this file, a .npy with their indices, as select and exclude take them.",
        ),
    ] = "",
    should_open: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser, where there is one.")] = True,
    has_token: Annotated[
        bool, typer.Option("--token", help="Ask for a token on loopback, too: other users of this machine see nothing.")
    ] = False,
    root_path: Annotated[
        str,
        typer.Option(
            "--root-path",
            metavar="PATH",
            help="The path below which a proxy publishes the pages, as /user/me/proxy/8437, if it passes that on.",
        ),
    ] = "",
    session: SessionFlag = PLAIN,
) -> None:
    """Look at a dataset in the browser: samples, SQL, the batches of an epoch, the cache while jobs run.

    Samples are read by byte ranges: nothing downloads a shard. Ctrl-C ends it.
    """
    from wids.tools.serve.running import PageServer, check_packages

    check_packages()
    from wids.tools.serve.served import Served

    served = Served(index, cache_dir=cache_dir or None, storage_options=session.storage_options, tags=tags)
    with (
        PageServer(served, host=host, port=port, has_token=has_token, root_path=root_path) as server,
        _leading_to(server.url) as address,
    ):
        print(f"{served.name}: {server.url}", flush=True)
        if server.is_local and (line := _ssh_line(server.url)):
            print(f"To open it where you are: {line}", flush=True)
        if should_open and _has_screen():
            import webbrowser

            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.run()


@contextlib.contextmanager
def _leading_to(url: str) -> Iterator[str]:
    """An address for a browser: of one with a token, that of a file which leads there while the block runs.

    Arguments of programs can be seen by all users of a machine; the file only by this one.
    """
    if not urlsplit(url).query:
        yield url
        return
    with tempdirs.directory("serve") as folder:
        path, there = Path(folder, "open.html"), html.escape(url)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(
                f'<meta http-equiv="refresh" content="0;url={there}"><a href="{there}">{html.escape(_WORDS)}</a>'
            )
        yield path.as_uri()


def _ssh_line(url: str) -> str:
    """The command that forwards an address over the user's ssh connection; "": without one."""
    far, place, user = os.environ.get("SSH_CONNECTION", "").split(), urlsplit(url), "USER"
    with contextlib.suppress(OSError, KeyError):  # a container may have no name for it
        user = getpass.getuser()
    name = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    return f"ssh -L {place.port}:{name}:{place.port} {user}@{far[2]}" if len(far) == 4 else ""


def _has_screen() -> bool:
    """True if a browser of its own would open: on Linux without a screen, one for terminals would take this one."""
    if "SSH_CONNECTION" in os.environ and "DISPLAY" not in os.environ:
        return False
    return sys.platform != "linux" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
