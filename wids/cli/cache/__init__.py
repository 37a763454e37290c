"""``wids cache``: look at a cache directory, clean it, fill it, keep it bounded.

Rules: this module is light; what is heavy is imported when a command runs, and torch never. What goes is what the
cache itself would evict, by its own code.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from wids.cli.format import parse_range, parse_size
from wids.cli.options import CacheDir, Index, Json, Shards, StorageOptions  # noqa: TC001 - typer reads the annotations

cache_app = typer.Typer(help="Look at cache directories, clean, fill and bound them.", invoke_without_command=True)

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


@cache_app.callback()
def _show_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


@cache_app.command("ls")
def list_cache(directory: _Directory = "", is_json: Json = False) -> None:
    """List the shards in a cache directory: size, last use, and who needs them.

    open: some process has it open, and it stays. kept: a dataset marked it as not to be evicted. in 12 s: a live job
    comes to it then. Below stand totals, downloads under way, what killed processes left behind, files that are not the
    cache's, and the free space of the disk.
    """
    from wids.cli.cache.show import show_listing

    show_listing(directory or _default(), is_json=is_json)


@cache_app.command("clean")
def clean_cache(
    directory: _Directory = "",
    max_size: _MaxSize = None,
    max_files: _MaxFiles = None,
    is_all: Annotated[bool, typer.Option("--all", help="Delete all that may go.")] = False,
    unkeep: Annotated[
        bool, typer.Option("--unkeep", help="First remove the marks of datasets that want their shards kept.")
    ] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    is_json: Json = False,
) -> None:
    """Delete cached shards until the rest fits, those that were not used for longest first.

    What is being read, marked to be kept, or was not put there by a cache, stays. If the bound cannot be reached, the
    exit code is 1, and what stays is told.
    """
    if not (is_all or max_size is not None or max_files is not None):
        raise typer.BadParameter(
            "say what to keep: --max-size 10GB, --max-files 100, or --all to delete all that may go"
        )
    if is_all and not (max_size is None and max_files is None):
        raise typer.BadParameter("--all keeps nothing; give it, or --max-size and --max-files")
    if unkeep and is_dry:
        raise typer.BadParameter("--unkeep changes the directory, and --dry-run does not; give one of them")
    from wids.cli.cache.clean import clean_once

    most = 0 if is_all else sys.maxsize
    clean_once(
        directory or _default(),
        max_size=most if max_size is None else max_size,
        max_files=most if max_files is None else max_files,
        unkeep=unkeep,
        is_dry=is_dry,
        is_json=is_json,
    )


@cache_app.command("warm")
def warm_cache(
    index: Index,
    cache_dir: CacheDir = "",
    cache_size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes that the directory may hold.")
    ] = None,
    shards: Shards = ":",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Shards to fetch at a time.")] = 8,
    storage_options: StorageOptions = None,
    is_json: Json = False,
) -> None:
    """Fetch the shards of an index into the cache, before a job needs them.

    What is there already is checked and not fetched again. Ctrl-C ends it at once; what has arrived whole stays.
    """
    from wids.cli.cache.warm import warm

    selected = parse_range(shards, "--shards", "shards")
    warm(
        index,
        directory=cache_dir or _default(),
        cache_size=cache_size,
        selected=selected,
        jobs=jobs,
        storage_options=storage_options,
        is_json=is_json,
    )


@cache_app.command("daemon")
def run_daemon(
    pattern: Annotated[
        str, typer.Argument(metavar="DIR_OR_PATTERN", help="A cache directory, or a glob of files to delete.")
    ],
    max_size: _MaxSize = None,
    max_files: _MaxFiles = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="From one look to the next.")] = 60,
) -> None:
    """Keep a cache directory bounded: clean now and again and again, in the foreground.

    For systemd and the like. Each deletion is a line on stderr. SIGTERM and SIGINT end it, SIGHUP cleans at once. A
    directory that does not exist yet is waited for; of several on one directory, one cleans and the others wait.
    """
    if max_size is None and max_files is None:
        raise typer.BadParameter("say what to keep: --max-size 10GB or --max-files 100")
    from wids.cli.cache.daemon import clean_until_told

    clean_until_told(pattern, max_size=max_size, max_files=max_files, every=every)


def _default() -> str:
    from wids.readers.store import default_cache_dir

    return default_cache_dir()
