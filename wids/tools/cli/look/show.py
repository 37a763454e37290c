"""``wids show``, ``cat`` and ``locate``: samples, the bytes of one field, and the places of keys."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from wids.core.codecs.html import name_label
from wids.errors import ClosedReaderError, DecodeError, OutputError, SelectionError
from wids.tools.cli.format import (
    count_of,
    format_size,
    print_error,
    print_json,
    print_table,
    printable,
    shown_url,
    to_json,
)
from wids.tools.cli.look import LookCommand
from wids.tools.cli.look.listed import Search
from wids.tools.cli.look.listing import LABEL, parse_span
from wids.tools.cli.options import Index, Json, ReadFlags
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.text import Text

    from wids.core.readers.base import Sample
    from wids.tools.cli.look.listed import Listed
    from wids.tools.describe import Field

_RANGE = re.compile(r"(-?[0-9]+)?:(-?[0-9]+)?")
_MAX_NAMED = 10  # damaged samples in a message
# Of a picture in a terminal: at most so many characters, each of which shows two pixels, the lower one as background.
_COLUMNS, _ROWS = 64, 20
_HALF = "\u2580"
_Sample = Annotated[
    str,
    typer.Argument(
        metavar="SAMPLE",
        help="An index (7; -1 is the last sample) or a key. A number without leading zeros is an index.",
    ),
]
_IsKey = Annotated[bool, typer.Option("--key", help="SAMPLE is a key, even if it looks like a number.")]

app: App = App()


@app.command(
    "show", cls=LookCommand, epilog=examples("wids show train.json 7", "wids show train.json 3 17:20 n01440764_10026")
)
def show_samples(
    index: Index,
    samples: Annotated[
        list[str],
        typer.Argument(
            metavar="SAMPLE",
            help="Indices (7; -1 is the last sample), ranges of them (3:10 is 3 to 9) or keys, in any order. A number "
            "without leading zeros is an index.",
        ),
    ],
    flags: ReadFlags,
    is_key: _IsKey = False,
    is_preview: Annotated[
        bool, typer.Option("--preview/--no-preview", help="Draw images, on a terminal with colours.")
    ] = True,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs; of several samples an object on each line.")
    ] = False,
) -> None:
    """Show samples: each field's type and size, image sizes, array shapes, the beginning of texts, small images.

    Where the index has the names of classes, as `wids pack` gives them, a label has its own. No code from a sample
    runs: a pickle is listed and not opened. With a damaged field the exit code is 1.
    """
    from wids.tools.cli.look.listed import Listed
    from wids.tools.describe import describe

    listed = Listed(index, flags)
    is_several = len(samples) > 1 or _is_range(samples[0], is_key=is_key)
    damaged, classes = list[str](), listed.shards.class_names
    for number, (position, members) in enumerate(_read(listed, _indices(listed, samples, is_key=is_key))):
        k, _ = listed.locate(position)
        key, url = members.pop("__key__"), listed.shards.urls[k]
        found = [describe(name, stream.getvalue(), key=key, shard=url) for name, stream in members.items()]
        fields = [_with_class(field, classes) for field in found]
        place = {**listed.place(position), "key": key, "dataset": listed.shards.dataset_of(k)}
        if is_json:
            (_print_line if is_several else print_json)({**place, "fields": [field.as_json() for field in fields]})
        else:
            if number:
                print()
            _print(place, fields, is_preview=is_preview)
        if bad := [field.name for field in fields if field.kind == "damaged"]:
            damaged.append(f"sample {position} ({printable(key)!r}) in {url}: {', '.join(bad)} cannot be decoded")
    if damaged:
        more = f"; and {len(damaged) - _MAX_NAMED:,} more" if len(damaged) > _MAX_NAMED else ""
        raise DecodeError("; ".join(damaged[:_MAX_NAMED]) + more)


@app.command(
    "cat",
    cls=LookCommand,
    epilog=examples("wids cat train.json 7 .jpg > 7.jpg", "wids cat train.json 7 json | jq .label"),
)
def print_field(
    index: Index,
    sample: _Sample,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="The field: .jpg, or jpg.")],
    flags: ReadFlags,
    is_key: _IsKey = False,
    is_forced: Annotated[bool, typer.Option("--force", help="Write binary data even to a terminal.")] = False,
) -> None:
    """Write the bytes of one field to stdout, as they are in the shard."""
    from wids.tools.cli.look.listed import Listed

    listed = Listed(index, flags)
    position = listed.resolve([sample], is_key=is_key, is_first=True)[0][0]
    k, row = listed.locate(position)
    name = field if field.startswith(".") else f".{field}"
    with contextlib.closing(listed.open(k)) as reader:
        names = [known for known, _, _ in reader.table.members(row)]
        members = reader.read(row, (name,))
        if name not in names:
            listed.add_companions(members, position)
            names += [known for known in members if known.startswith(".")]
        if name not in members:
            raise SelectionError(
                f"sample {position} ({printable(reader.table.key(row))!r}) has no field {printable(name)}; it has "
                f"{', '.join(map(printable, names))}"
            )
        data: bytes = members[name].getvalue()
    is_shown = sys.stdout.isatty()
    if is_shown and not is_forced and not _is_text(data):
        raise OutputError(
            f"{name} of sample {position} is binary ({format_size(len(data))}), and stdout is a terminal; write it to "
            f"a file (> x{name}), or add --force"
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    if is_shown and data and not data.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")  # so that the prompt begins on a line of its own
    sys.stdout.buffer.flush()


@app.command("locate", cls=LookCommand, epilog=examples("wids locate train.json n01440764_10026 n01440764_10027"))
def locate_keys(
    index: Index,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of samples; a number is a key here.")],
    flags: ReadFlags,
    is_json: Json = False,
) -> None:
    """Find samples by key: the index, the shard and the row of each sample that has the key.

    For a key that no sample has, similar keys are shown, and the exit code is 1.
    """
    from wids.tools.cli.look.listed import Listed

    listed = Listed(index, flags)
    search = Search(listed, keys, is_first=False)
    search.run()
    found = {key: [listed.place(position) for position in positions] for key, positions in search.found.items()}
    if is_json:
        print_json(
            [
                {"key": key, "found": places, **({} if places else {"near": search.nearest(key)})}
                for key, places in found.items()
            ]
        )
    elif any(found.values()):
        rows = [
            (printable(key), str(place["index"]), str(place["shard"]), str(place["row"]), shown_url(place["url"]))
            for key, places in found.items()
            for place in places
        ]
        print_table(("key", ">index", ">shard", ">row", "url"), rows)
    search.check()


def _is_range(text: str, *, is_key: bool) -> bool:
    return not is_key and _RANGE.fullmatch(text) is not None


def _indices(listed: Listed, samples: Sequence[str], *, is_key: bool) -> Iterator[int]:
    """The indices of the written samples, in that order.

    Raises:
        SelectionError: there is no such sample or range.
    """
    are_ranges = [_is_range(text, is_key=is_key) for text in samples]
    named = [text for text, is_range in zip(samples, are_ranges, strict=True) if not is_range]
    found = iter(listed.resolve(named, is_key=is_key, is_first=True))
    parts: list[Iterable[int]] = [
        range(*parse_span(text, listed)) if is_range else next(found)
        for text, is_range in zip(samples, are_ranges, strict=True)
    ]
    for part in parts:
        yield from part


def _read(listed: Listed, indices: Iterable[int]) -> Iterator[tuple[int, Sample]]:
    """The samples; a shard that has several in turn is opened once."""
    with contextlib.ExitStack() as held:
        opened, reader = -1, None
        for index in indices:
            k, row = listed.locate(index)
            while True:
                if reader is None or opened != k:
                    held.close()
                    reader, opened = held.enter_context(contextlib.closing(listed.open(k))), k
                try:
                    members = reader.read(row)
                    listed.add_companions(members, index)
                except ClosedReaderError:  # from here on it is cheaper to download the shard
                    reader = None
                    continue
                break
            yield index, members


def _with_class(field: Field, classes: Sequence[str]) -> Field:
    """A label with the name of its class."""
    if not classes or field.kind != "number" or field.name.casefold() != LABEL:
        return field
    name = name_label(field.details["value"], classes)
    words = f"none of the index's {count_of(len(classes), 'class', 'classes')}" if name is None else printable(name)
    details = {**field.details, "class": name}
    return msgspec.structs.replace(field, words=f"{field.words} ({words})", details=details)


def _print_line(found: dict[str, Any]) -> None:
    print(to_json(found))


def _is_text(data: bytes) -> bool:
    """True if the bytes are text without control characters, which a terminal would obey."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(line.replace("\t", "").isprintable() for line in text.replace("\r\n", "\n").split("\n"))


def _print(place: dict[str, Any], fields: list[Field], *, is_preview: bool) -> None:
    name = f", of {printable(str(place['dataset']))}" if place["dataset"] is not None else ""
    print(f"sample {place['index']}: {printable(place['key'])}")
    print(f"row {place['row']} of shard {place['shard']}{name}: {shown_url(place['url'])}")
    print(f"{count_of(len(fields), 'field')}, {format_size(sum(field.size for field in fields))}")
    print()
    rows = [(printable(field.name), format_size(field.size), field.kind, field.words) for field in fields]
    print_table(("field", ">size", "type", "what"), rows)
    if is_preview:
        _print_images(fields)


def _print_images(fields: list[Field]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for field in fields:
        if field.image is not None and can_draw(console):
            try:
                drawn = draw(field.image, console)
            except (OSError, ValueError) as error:  # a mode that PIL cannot convert; the fields are printed already
                print_error(f"{field.name} cannot be drawn ({error})")
                continue
            console.print()
            console.print(f"{printable(field.name)}:", markup=False)
            console.print(drawn)


def can_draw(console: Console) -> bool:
    """True if a console is a terminal with colours that can print the half block."""
    try:
        _HALF.encode(console.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    has_colours = console.color_system in ("truecolor", "256", "windows") and not console.no_color
    return console.is_terminal and has_colours


def draw(image: Any, console: Console) -> Text:
    """Return a PIL image as lines of half blocks, scaled down to the console but never up."""
    from rich.text import Text

    from wids.core.codecs.pictures import shrink, to_rgb

    pixels = shrink(to_rgb(image), max(min(console.width - 1, _COLUMNS), 1), 2 * _ROWS)
    width, height = pixels.size
    values = pixels.load()
    text = Text(no_wrap=True)
    for y in range(0, height, 2):
        if y:
            text.append("\n")
        for x in range(width):
            upper = "#{:02x}{:02x}{:02x}".format(*values[x, y])
            lower = " on #{:02x}{:02x}{:02x}".format(*values[x, y + 1]) if y + 1 < height else ""
            text.append(_HALF, style=upper + lower)
    return text
