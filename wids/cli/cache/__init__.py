"""``wids cache``: list a cache directory, clean it, fill it, keep it below a limit.

Heavy modules are imported when a command runs, and torch never. Cleaning evicts by the code of the cache itself.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal

import typer

from wids.cli.format import parse_range, parse_size
from wids.cli.options import CacheDir, Index, Json, RunFlags, SessionFlag, Shards, with_option_groups
from wids.cli.plain_help import App
from wids.transport.session import PLAIN

app = App(help="List, clean, fill and limit cache directories.")

_Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="Default: $WIDS_CACHE, else your own in the temporary directory.")
]
_MaxSize = Annotated[
    Any,
    typer.Option(
        "--max-size", parser=parse_size, metavar="SIZE", help="Bytes to keep at most: 10GB, 500MiB.", show_default=False
    ),
]
_MaxFiles = Annotated[
    int | None, typer.Option("--max-files", min=0, metavar="N", help="Shards to keep at most.", show_default=False)
]


@app.command("ls")
def list_cache(directory: _Directory = "", is_json: Json = False) -> None:
    """List the shards in a cache directory: size, last use, and state.

    States: "open": a process has the shard open. "kept": a dataset marked it. Neither kind is evicted. "in 12 s": a
    running job needs it then. Below the table: totals, downloads under way, files left behind by killed processes,
    files that are not the cache's, and the free space of the disk.
    """
    from wids.cli.cache.show import show_listing

    show_listing(_directory(directory), is_json=is_json)


@app.command("clean")
def clean_cache(
    directory: _Directory = "",
    max_size: _MaxSize = None,
    max_files: _MaxFiles = None,
    is_all: Annotated[bool, typer.Option("--all", help="Delete every shard that may be evicted.")] = False,
    unkeep: Annotated[
        bool, typer.Option("--unkeep", help="First remove the marks by which datasets keep their shards.")
    ] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print the deletions and delete nothing.")] = False,
    is_json: Json = False,
) -> None:
    """Delete cached shards until the rest is below the limit.

    First those that no running job needs, least recently used first; then those that jobs need last. Open shards,
    shards marked as kept, and files that no cache downloaded are not deleted. If the limit cannot be reached, the exit
    code is 1, and the reasons are printed.
    """
    if not (is_all or max_size is not None or max_files is not None):
        raise typer.BadParameter(
            "say what to keep: --max-size 10GB, --max-files 100, or --all to delete all that can be evicted"
        )
    if is_all and not (max_size is None and max_files is None):
        raise typer.BadParameter("--all keeps nothing; give either --all, or --max-size and --max-files")
    if unkeep and is_dry:
        raise typer.BadParameter("--unkeep changes the directory, and --dry-run does not; give one of them")
    from wids.cli.cache.clean import clean_once

    default = 0 if is_all else sys.maxsize
    clean_once(
        _directory(directory),
        max_size=default if max_size is None else max_size,
        max_files=default if max_files is None else max_files,
        unkeep=unkeep,
        is_dry=is_dry,
        is_json=is_json,
    )


@app.command("warm")
@with_option_groups
def warm_cache(
    index: Index,
    run: RunFlags,
    cache_dir: CacheDir = "",
    cache_size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Limit of the directory. Default: the free space.")
    ] = None,
    shards: Shards = ":",
    excluded: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude-node", metavar="NODE", help="Of a Ray cluster: an address, a host or an id; repeatable."
        ),
    ] = None,
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Download the shards of an index into the cache, before a job needs them.

    Shards in the cache are checked and not downloaded again; by default 8 are downloaded at a time. Ctrl-C ends it at
    once; complete shards stay. With --engine ray each node of the cluster downloads them into its own cache.
    """
    from wids.cli.cache.warm import warm

    selected = parse_range(shards, "--shards", "shards")
    warm(
        index,
        directory=cache_dir or None,
        cache_size=cache_size,
        selected=selected,
        options=run.options(),
        excluded=excluded or (),
        session=session,
        is_json=is_json,
    )


@app.command("daemon")
def run_daemon(
    pattern: Annotated[
        str, typer.Argument(metavar="DIR_OR_PATTERN", help="A cache directory, or a glob pattern of files to delete.")
    ],
    max_size: _MaxSize = None,
    max_files: _MaxFiles = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between cleanings.")] = 60,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Lines of text, or JSON, one object on each line.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning"], typer.Option(help="What is logged at least; --debug is for debug.")
    ] = "info",
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write numbers for Prometheus to this file after each cleaning (node_exporter's textfile collector).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Keep a cache directory below a limit: clean it now and every --every seconds, in the foreground.

    For systemd (Type=notify) and other supervisors. Each deletion is a line on stderr, and so is each cleaning: what
    was deleted, what stays, and why, if that is more than the limit. SIGTERM and SIGINT end it, SIGHUP cleans at once.
    The directory need not exist yet. Of several daemons on one directory, one cleans and the others wait.
    """
    if max_size is None and max_files is None:
        raise typer.BadParameter("say what to keep: --max-size 10GB or --max-files 100")
    if metrics is not None and not metrics.endswith(".prom"):
        raise typer.BadParameter(f"--metrics {metrics}: node_exporter reads files whose names end in .prom")
    from wids.cli.cache.daemon import DaemonLog, clean_until_signal

    is_debug = os.environ.get("WIDS_DEBUG", "0") not in ("", "0")
    clean_until_signal(
        pattern,
        max_size=max_size,
        max_files=max_files,
        every=every,
        log=DaemonLog(form=log_format, level="debug" if is_debug else log_level),
        metrics_path=metrics,
    )


def _directory(given: str) -> str:
    from wids.files.own_folder import default_cache_dir

    return given or default_cache_dir()
