"""Parsing and printing of sizes, ages, names, tables and errors for the command line.

Rules: sizes are printed in decimal units (GB), and read in decimal or binary ones (GiB). A table on a terminal fits its
width; in a pipe it is plain text and nothing is cut. Names from files are printed without control characters.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from wids import errors, events
from wids.core.place import Place
from wids.errors import harmless, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# Errors that a command prints one by one; the others are counted.
_MAX_ERRORS = 10
_MIN_COLUMNS = 40
# Of a table on a terminal: spaces between columns, and the least that a text is folded to.
_GAP, _MIN_TEXT = 2, 8
# Of longer tables a terminal folds the lines itself.
_MAX_FITTED_ROWS = 1000
format_size: Callable[[float], str] = events.format_size
count_of: Callable[..., str] = events.count_of
printable: Callable[[str], str] = errors.printable
# (ages from so many seconds on, seconds of the unit, the unit)
_AGES = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"), (1, 1, "s"))


def parse_size(text: str) -> int:
    """Parse a size; see `wids.events.parse_size`.

    Raises:
        typer.BadParameter: the text is not a size.
    """
    try:
        return events.parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


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


def shown_url(url: str) -> str:
    """Return a URL without its query and credentials, fit for a log."""
    return printable(Place(url).public)


def advise_compiling(index: str, shards: int) -> str:
    """Return a line with the command that compiles a JSON index of many shards; "": it has few, or is no such index."""
    from wids.core.collection.shard_collection import lists_shards
    from wids.core.index import compiled, compiled_files
    from wids.core.index.loading import is_energon

    is_other = compiled.is_compiled(index) or is_energon(index) or lists_shards(index)
    if shards < compiled_files.LIMITS.min_shards or is_other:
        return ""
    place = Place(index)
    name = (index if place.is_local else place.name).removesuffix(".json") + compiled.SUFFIX
    command = f"wids index convert {shlex.quote(shown_url(index))} -o {shlex.quote(printable(name))}"
    return f"each machine compiles this index before its first sample; publish it compiled: {command}"


def shown_path(path: str) -> str:
    """Return a path relative to the current directory if it lies below that."""
    relative = os.path.relpath(path)
    return printable(path if relative.startswith("..") else relative)


def print_json(value: Any) -> None:
    """Print a value, a structure of the library too, as indented JSON, see `to_json`."""
    print(to_json(msgspec.to_builtins(value), indent=2))


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


def print_outcome(
    found: Any,
    head: str,
    *,
    is_json: bool,
    counts: Mapping[str, str] | None = None,
    lines: Mapping[str, str | Sequence[str]] | None = None,
) -> None:
    """Print the outcome of a job: as JSON, or in words for those of its members that are neither 0 nor empty.

    Args:
        found: the outcome, a structure of the library or a dict.
        head: the first line; the counts follow in it where it ends with a colon, else in the next one.
        is_json: print the outcome as JSON.
        counts: members that count shards -> words after their number; behind them, the seconds of the job and the bytes
            that it read over the network.
        lines: other members -> a line, or several.
    """
    if is_json:
        print_json(found)
        return
    values = msgspec.to_builtins(found)
    if counts is not None:
        sums = {name: len(values[name]) if isinstance(values[name], dict) else values[name] for name in counts}
        parts = ", ".join(f"{sums[name]:,} {words}" for name, words in counts.items() if sums[name])
        head += f"{' ' if head.endswith(':') else chr(10)}{parts or 'nothing to do'} in {values['seconds']:,.3g} s"
        if values.get("requests"):
            head += f"; {format_size(values['read_bytes'])} came in {count_of(values['requests'], 'request')}"
    print(harmless(head))
    for name, words in (lines or {}).items():
        if values[name]:
            for line in [words] if isinstance(words, str) else words:
                print(harmless(line))


def print_text(text: str) -> None:
    """Print a line; on a terminal it breaks between words."""
    text = harmless(text)
    if sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns, _MIN_COLUMNS)
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text; a column whose name begins with ``>`` is aligned to the right.

    On a terminal, headers break between words, and texts that are aligned to the left anywhere. Where even that is too
    wide, each row becomes lines, with the names of the columns before its texts.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    columns, rows = list(map(harmless, columns)), [tuple(map(harmless, row)) for row in rows]
    if not console.is_terminal or len(rows) > _MAX_FITTED_ROWS:
        for line in _plain_lines(columns, rows):
            print(line)
        return
    console = Console(highlight=False, width=max(console.width, _MIN_COLUMNS))
    widths: list[int] | list[None] | None = _fit(columns, rows, console.width)
    if widths is None:
        rows = [line for row in rows for line in (*zip(_names(columns), row, strict=True), ("", ""))][:-1]
        columns, widths = ("", ""), [None, None]
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GAP - 1, 0, 0),  # the box has a space between columns, too
        header_style="bold",
        show_header=any(columns),
    )
    for name, header, width in zip(columns, _names(columns), widths, strict=True):
        is_right = name.startswith(">")
        table.add_column(header, justify="right" if is_right else "left", overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print("", table, "", sep="\n")


def _names(columns: Sequence[str]) -> list[str]:
    return [name.removeprefix(">") for name in columns]


def _fit(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The widths of the columns of a table in ``width`` characters; None: their words and numbers do not fit in."""
    from rich.cells import cell_len

    texts = [max((cell_len(row[k]) for row in rows), default=0) for k in range(len(columns))]
    found = [max(text, cell_len(name)) for text, name in zip(texts, _names(columns), strict=True)]
    words = [max(map(cell_len, name.split()), default=0) for name in _names(columns)]
    least = [
        max(word, text if name.startswith(">") else min(text, _MIN_TEXT))
        for word, text, name in zip(words, texts, columns, strict=True)
    ]
    excess = sum(found) + _GAP * (len(columns) - 1) - width
    if sum(found) - sum(least) < excess:
        return None
    while excess > 0:  # the widest gives first
        k = max((k for k in range(len(found)) if found[k] > least[k]), key=found.__getitem__)
        found[k], excess = found[k] - 1, excess - 1
    return found


def _plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in plain text, nothing cut. It costs a fiftieth of rich's, which takes a minute for 100,000 rows."""
    from rich.cells import cell_len

    lines = [
        line
        for row in (_names(columns), *rows)
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    ]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, line, strict=True)]
        yield (" " * _GAP).join(
            space + cell if name.startswith(">") else cell + space
            for name, cell, space in zip(columns, line, padding, strict=True)
        )


def is_debug() -> bool:
    """True if ``--debug`` or ``$WIDS_DEBUG`` asks for tracebacks and all log lines."""
    return os.environ.get("WIDS_DEBUG", "0") not in ("", "0")


def print_error(message: str) -> None:
    """Print an error or a warning to stderr, as one line without secrets."""
    print(f"wids: {printable(without_secrets(' '.join(message.split())))}", file=sys.stderr)


def print_errors(messages: Sequence[str], *, others: str = "--json lists them all") -> None:
    """Print the first few errors to stderr, and the number of the others with the way to see them."""
    for message in messages[:_MAX_ERRORS]:
        print_error(message)
    if len(messages) > _MAX_ERRORS:
        print_error(f"and {len(messages) - _MAX_ERRORS:,} more; {others}")
