"""Parsing and printing of sizes, ages, names, tables and errors for the command line.

Rules: sizes are printed in decimal units (GB), and read in decimal or binary ones (GiB). A table on a terminal fits its
width; in a pipe it is plain text and nothing is cut. Names from files are printed without control characters.
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

from wids import events
from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIZE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e\+?[0-9]{1,2})?)\s*(?:([kmgtp])(i?))?b?", re.IGNORECASE)
_PREFIXES = "kmgtp"
# Errors that a command prints one by one; the others are counted.
_MAX_ERRORS = 10
_MIN_COLUMNS = 40
format_size = events.format_size
# (ages from so many seconds on, seconds of the unit, the unit)
_AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"), (1, 1, "s"))


def parse_size(text: str) -> int:
    """Parse a number of bytes: ``10GB``, ``500MiB``, ``1.5T``, ``1e9``, ``4096``; any case, K is 1000 and Ki 1024.

    Raises:
        typer.BadParameter: the text is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write it like 10GB, 500MiB, 1.5T or 1e9 (bytes)")
    number, prefix, binary = found.groups()
    factor = (1024 if binary else 1000) ** (_PREFIXES.index(prefix.lower()) + 1) if prefix else 1
    return int(Decimal(number) * factor)


def parse_range(text: str, option: str, noun: str) -> slice:
    """Parse a range, ``A:B``, ``A:``, ``:B`` or ``:``; negative numbers count from the end.

    Args:
        text: the option's value.
        option: the option's name for the message, such as ``--shards``.
        noun: the things in the range for the message, such as ``shards``.

    Raises:
        typer.BadParameter: the text is not a range.
    """
    first, colon, end = text.partition(":")
    try:
        if colon:
            return slice(int(first) if first.strip() else None, int(end) if end.strip() else None)
    except ValueError:
        pass
    raise typer.BadParameter(f"{option} {text!r} is no range of {noun}; write it like 0:100, 100: or :-1")


def format_rate(count: float, seconds: float) -> str:
    """``653 MB/s``."""
    return f"{format_size(count / max(seconds, 1e-9))}/s"


def format_seconds(seconds: float) -> str:
    """``now``, ``12 s``, ``3 min``, ``5 h``, ``40 d``."""
    for min_seconds, unit, name in _AGES:
        if seconds >= min_seconds:
            return f"{seconds // unit:,.0f} {name}"
    return "now"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """``1 shard``, ``3,001 files``, ``2 indexes``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(name: str) -> str:
    """Escape control characters and line breaks, which would act on a terminal or split a line of a log."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in name
    )


def shown_url(url: str) -> str:
    """Return a URL without its query and credentials, fit for a log."""
    return printable(without_secrets(url, url))


def shown_path(path: str) -> str:
    """Return a path relative to the current directory if it lies below that."""
    relative = os.path.relpath(path)
    return printable(path if relative.startswith("..") else relative)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, see `to_json`."""
    print(to_json(value, indent=2))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, in ASCII. Infinity and NaN, which JSON lacks, become null."""
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
    """Print rows of text; a column whose name begins with ``>`` is aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=1 << 16)
    elif console.width < _MIN_COLUMNS:  # rich would shrink columns to nothing and drop their text
        console = Console(highlight=False, width=_MIN_COLUMNS)
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


def print_error(message: str) -> None:
    """Print an error or a warning to stderr, as one line without secrets."""
    print(f"wids: {printable(without_secrets(' '.join(message.split())))}", file=sys.stderr)


def print_errors(messages: Sequence[str]) -> None:
    """Print the first few errors to stderr, and the number of the others."""
    for message in messages[:_MAX_ERRORS]:
        print_error(message)
    if len(messages) > _MAX_ERRORS:
        print_error(f"and {len(messages) - _MAX_ERRORS:,} more; --json lists them all")
