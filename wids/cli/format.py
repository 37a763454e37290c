"""How the command line reads and writes sizes, ages, names and tables.

Rules: sizes are written in tens (GB), and read in tens or twos (GiB). On a terminal a table has lines and fits; in a
pipe it is plain, and nothing is cut. A name of someone else's making is shown, never obeyed: no control characters.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIZE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e\+?[0-9]{1,2})?)\s*(?:([kmgtp])(i?))?b?", re.IGNORECASE)
_PREFIXES = "kmgtp"
# So many of a command's failures are told one by one.
_MOST_TOLD = 10
_LEAST_COLUMNS = 40
_AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"), (1, 1, "s"))


def parse_size(text: str) -> int:
    """Bytes: ``10GB``, ``500MiB``, ``1.5T``, ``1e9``, ``4096``; letters in any case, K is 1000 and Ki 1024.

    Raises:
        typer.BadParameter: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write it like 10GB, 500MiB, 1.5T or 1e9 (bytes)")
    number, prefix, binary = found.groups()
    factor = (1024 if binary else 1000) ** (_PREFIXES.index(prefix.lower()) + 1) if prefix else 1
    return int(Decimal(number) * factor)


def parse_range(text: str, option: str, noun: str) -> slice:
    """``A:B``, ``A:``, ``:B``, ``:``; negative numbers count from the end.

    Args:
        text: what was given.
        option: for which, as ``--shards``.
        noun: what it is a range of, as ``shards``.

    Raises:
        typer.BadParameter: it is none of these.
    """
    first, colon, end = text.partition(":")
    try:
        if colon:
            return slice(int(first) if first.strip() else None, int(end) if end.strip() else None)
    except ValueError:
        pass
    raise typer.BadParameter(f"{option} {text!r} is no range of {noun}; write it like 0:100, 100: or :-1")


def format_size(count: float) -> str:
    """``512 B``, ``1.23 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} PB"


def format_seconds(seconds: float) -> str:
    """``now``, ``12 s``, ``3 min``, ``5 h``, ``40 d``."""
    for least, unit, name in _AGES:
        if seconds >= least:
            return f"{seconds // unit:,.0f} {name}"
    return "now"


def count_of(number: int, noun: str) -> str:
    """``1 shard``, ``3,001 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(name: str) -> str:
    """A name that can do no harm to a terminal or a line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in name
    )


def shown_url(url: str) -> str:
    """A URL as it may be seen by all who read a terminal's log: without its query and credentials."""
    return printable(without_secrets(url, url))


def shown_path(path: str) -> str:
    """A path as the user would type it: relative to where they are, if it lies below."""
    relative = os.path.relpath(path)
    return printable(path if relative.startswith("..") else relative)


def print_json(value: Any) -> None:
    """Print a value for programs, in ASCII whatever names are in it."""
    print(to_json(value, indent=2))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON, in ASCII. Numbers that JSON has no word for (infinity, what is none) are null in it."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text; a column whose name begins with ``>`` stands at the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=1 << 16)
    elif console.width < _LEAST_COLUMNS:  # a column would have no room at all, and what is in it would not be told
        console = Console(highlight=False, width=_LEAST_COLUMNS)
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold" if console.is_terminal else "",
    )
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def complain(message: str) -> None:
    """Print a line to stderr that is not the command's result."""
    print(f"wids: {printable(without_secrets(' '.join(message.split())))}", file=sys.stderr)


def complain_each(messages: Sequence[str]) -> None:
    """Print the first few of many lines to stderr, and how many more there are."""
    for message in messages[:_MOST_TOLD]:
        complain(message)
    if len(messages) > _MOST_TOLD:
        complain(f"and {len(messages) - _MOST_TOLD:,} more; --json lists them all")
