"""Options and arguments that several commands have: each is defined here, once.

Rules: light. A parser says what is wrong as `typer.BadParameter` (exit code 2) and never repeats what may be secret.
"""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from wids.errors import WidsError
from wids.index import urls

INDEX_HELP = "An index (URL or path), or tars: a path or a brace pattern in quotes."
Index = Annotated[str, typer.Argument(metavar="INDEX", help=INDEX_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, an object a line.")]
Fetch = Annotated[
    bool, typer.Option("--fetch", help="Fetch as many remote shards as it takes. Without it: one at most.")
]
CacheDir = Annotated[
    str,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="Where remote shards are or go. Default: $WIDS_CACHE, else your own temporary one.",
    ),
]
Shards = Annotated[
    str,
    typer.Option("--shards", metavar="A:B", help="Only shards A to B - 1 of the index, counted from 0."),
]


def check_index(index: str) -> None:
    """Refuse a directory where an index is to be named.

    Raises:
        WidsError: it is one; says what to name.
    """
    if urls.is_local(index) and os.path.isdir(os.path.expanduser(urls.local_path(index))):
        raise WidsError(f"{index}: is a directory; name an index in it, or its tars by a brace pattern in quotes")


def parse_storage_options(text: str) -> dict[str, Any]:
    """``{"anon": true}``, or ``@FILE`` that holds such an object.

    Raises:
        typer.BadParameter: it is no JSON object, or there is no such file; says where, not what, for it may have keys.
    """
    where = ""
    if text.startswith("@"):
        path = os.path.expanduser(text[1:])
        where = f"{path}: "
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{where}cannot be read ({why}); after @ goes a file with a JSON object") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{where}not JSON ({error}); {_ADVICE}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{where}a JSON {type(found).__name__}, not an object; {_ADVICE}")
    return found


_ADVICE = """write it like '{"anon": true}', or @FILE for a file with that in it"""
StorageOptions = Annotated[
    Any,
    typer.Option(
        "--storage-options",
        parser=parse_storage_options,
        metavar="JSON",
        envvar="WIDS_STORAGE_OPTIONS",
        show_default=False,
        help="""For fsspec, which reads URLs: '{"anon": true}', or @FILE with such an object. """
        "A key that is a URL holds the options of that server.",
    ),
]
