"""``wids ls``: the samples or the shards of an index, a line for each.

Lines are printed as member tables are read: the first ones appear at once, however large the dataset is, and ``| head``
ends the command. Column widths are known beforehand, so no line waits for the ones after it.
"""

from __future__ import annotations

import contextlib
import sys
from itertools import islice, repeat
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.codecs.html import name_label
from wids.errors import SelectionError
from wids.tools.cli.format import format_size, parse_range, printable, shown_url, to_json
from wids.tools.cli.look import LookCommand
from wids.tools.cli.options import Index, JsonLines, ReadFlags
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wids.tools.cli.look.listed import Listed

_LINES_AT_A_TIME = 512
LABEL = ".cls"
_WIDEST_CLASS = 24  # longer names stand out


app: App = App()


@app.command(
    "ls", cls=LookCommand, epilog=examples("wids ls train.json --range 1000:1020", "wids ls train.json --shards | head")
)
def list_samples(
    index: Index,
    flags: ReadFlags,
    shard: Annotated[
        int | None,
        typer.Option(metavar="K", help="Only shard K, counted from 0; -1 is the last one.", show_default=False),
    ] = None,
    span: Annotated[
        str, typer.Option("--range", metavar="A:B", help="Only samples A to B - 1. Also A:, :B and -10:.")
    ] = "",
    is_shards: Annotated[bool, typer.Option("--shards", help="List the shards instead of the samples.")] = False,
    is_json: JsonLines = False,
) -> None:
    """List the samples: index, shard, row in the shard, key, and the size in bytes of each field.

    Reads only member tables: of local shards, of cached shards, or from SHARD.widx beside a remote shard. Where the
    index has the names of classes, as `wids pack` gives them, labels of shards that are here are read and named, too.
    """
    if shard is not None and span:
        raise typer.BadParameter("--shard and --range both choose samples; give one of them")
    from wids.tools.cli.look.listed import Listed

    listed = Listed(index, flags)
    if is_shards:
        _list_shards(listed, shard=shard, span=span, is_json=is_json)
    else:
        _list_rows(listed, shard=shard, span=span, is_json=is_json)


def _list_rows(listed: Listed, *, shard: int | None, span: str, is_json: bool) -> None:
    """Print the samples of an index, of one of its shards, or in a range.

    Raises:
        SelectionError: there is no such shard or range.
        WidsError: a member table cannot be read.
    """
    lo, hi = 0, len(listed)
    if shard is not None:
        k = listed.check_shard(shard)
        lo, hi = listed.start_of(k), listed.ends[k]
    elif span:
        lo, hi = parse_span(span, listed, option="--range")
    widths = (len(f"{max(hi - 1, 0)}"), len(f"{len(listed.shards)}"), len(f"{max(listed.shards.nsamples, default=0)}"))
    _write((to_json(found) for found in _rows(listed, lo, hi)) if is_json else _lines(listed, lo, hi, widths))


def _lines(listed: Listed, lo: int, hi: int, widths: tuple[int, int, int]) -> Iterator[str]:
    a, b, c = max(widths[0], 5), max(widths[1], 5), max(widths[2], 3)
    classes = listed.shards.class_names
    d = min(max([5, *map(len, map(printable, classes))]), _WIDEST_CLASS)
    shard, width = -1, 3
    for found in _rows(listed, lo, hi):
        if found["shard"] != shard:
            table = listed.table(found["shard"])
            ends = table.key_ends
            first = found["index"] - listed.start_of(found["shard"])
            rows = listed.collection.rows_of(found["shard"])[first : first + hi - found["index"]]
            width = max([width, *(ends[row + 1] - ends[row] for row in rows)])
            if shard < 0:
                head = f"{'class':{d}}  " if classes else ""
                yield f"{'index':>{a}}  {'shard':>{b}}  {'row':>{c}}  {'key':{width}}  {head}fields=bytes"
            shard = found["shard"]
        fields = " ".join(f"{printable(name)}={size}" for name, size in found["fields"].items())
        name = f"{printable(found['class'] or '-'):{d}}  " if classes else ""
        where = f"{found['index']:>{a}}  {shard:>{b}}  {found['row']:>{c}}  {printable(found['key']):{width}}"
        yield f"{where}  {name}{fields}"


def _rows(listed: Listed, lo: int, hi: int) -> Iterator[dict[str, Any]]:
    """Yield the samples ``lo .. hi``, each as a dict; with its class, if the index has names of these."""
    classes = listed.shards.class_names
    while lo < hi:
        k, _ = listed.locate(lo)
        table, url, start = listed.table(k), listed.shards.urls[k], listed.start_of(k)
        end, rows = min(hi, listed.ends[k]), listed.collection.rows_of(k)
        chosen = [int(row) for row in rows[lo - start : end - start]]
        names = _classes(listed, k, chosen, classes) if classes else repeat(None)
        for index, row, name in zip(range(lo, end), chosen, names, strict=False):
            fields = {extension: size for extension, _, size in table.members(row)} | listed.companion_sizes(index)
            found = {"index": index, "key": table.key(row), "shard": k, "row": row, "url": url, "fields": fields}
            yield {**found, "class": name} if classes else found
        lo = end


def _classes(listed: Listed, k: int, rows: Sequence[int], classes: Sequence[str]) -> Iterator[str | None]:
    """Yield the name of each sample's class; None: it has no label, or one that no class has, or is not here."""
    if listed.is_absent(k):
        yield from repeat(None, len(rows))
        return
    with contextlib.closing(listed.open(k)) as reader:
        for first in range(0, len(rows), _LINES_AT_A_TIME):
            for sample in reader.read_rows(rows[first : first + _LINES_AT_A_TIME], (LABEL,)):
                data = [value.getvalue() for name, value in sample.items() if name.startswith(".")]
                label = None
                with contextlib.suppress(ValueError, IndexError):
                    label = int(data[0])
                yield name_label(label, classes)


def _list_shards(listed: Listed, *, shard: int | None, span: str, is_json: bool) -> None:
    """Print the shards of an index, one of them, or those that hold a range of samples.

    Raises:
        SelectionError: there is no such shard or range.
    """
    first, last = 0, len(listed.shards)
    if shard is not None:
        first = listed.check_shard(shard)
        last = first + 1
    elif span:
        lo, hi = parse_span(span, listed, option="--range")
        first, last = listed.locate(lo)[0], listed.locate(hi - 1)[0] + 1
    _write(_shard_objects(listed, first, last) if is_json else _shard_lines(listed, first, last))


def _shard_objects(listed: Listed, first: int, last: int) -> Iterator[str]:
    for k in range(first, last):
        chosen = {} if listed.shards.selection is None else {"selected": listed.shards.lengths[k]}
        yield to_json({"shard": k, "first": listed.start_of(k), **listed.shards.describe(k), **chosen})


def _shard_lines(listed: Listed, first: int, last: int) -> Iterator[str]:
    b = max(len(f"{len(listed)}"), 7)  # which counts
    shards = listed.shards
    a = max(len(f"{len(shards)}"), 5)
    yield f"{'shard':>{a}}  {'first':>{b}}  {'samples':>{b}}  {'size':>8}  {'md5':8}  url"
    for k in range(first, last):
        size = format_size(shards.filesizes[k]) if shards.filesizes[k] >= 0 else "-"
        md5 = shards.md5sums[k][:8] or "-"
        yield (
            f"{k:>{a}}  {listed.start_of(k):>{b}}  {shards.lengths[k]:>{b}}  {size:>8}  {md5:8}  "
            f"{shown_url(shards.urls[k])}"
        )


def parse_span(text: str, listed: Listed, *, option: str = "SAMPLE") -> tuple[int, int]:
    """``A:B``, ``A:``, ``:B`` of the samples, half-open; negative numbers count from the end.

    Raises:
        typer.BadParameter: it is not a range. SelectionError: the range is empty, or reaches outside.
    """
    span, n, of = parse_range(text, option, "samples"), len(listed), f"{listed.name}: there are no samples"
    lo, hi = span.start or 0, n if span.stop is None else span.stop
    lo, hi = (lo + n if lo < 0 else lo), (hi + n if hi < 0 else hi)
    if not 0 <= lo < min(hi, n):
        raise SelectionError(f"{of} {text}; indices are 0 to {n - 1}" if n else f"{of} at all")
    return lo, min(hi, n)


def _write(lines: Iterable[str]) -> None:
    """Write lines, many at a time: a call for each would take most of the time."""
    rest = iter(lines)
    while chunk := list(islice(rest, _LINES_AT_A_TIME)):
        sys.stdout.write("\n".join(chunk) + "\n")
