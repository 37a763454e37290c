"""``wids show`` and ``wids cat``: one sample, and the bytes of one field."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from wids.cli.format import count_of, format_size, print_error, print_json, print_table, printable, shown_url
from wids.errors import DecodeError, OutputError, SelectionError

if TYPE_CHECKING:
    from wids.cli.look.describe import Field
    from wids.cli.look.listed import Listed


def show(listed: Listed, sample: str, *, is_key: bool, is_preview: bool, is_json: bool) -> None:
    """Print a sample's fields.

    Raises:
        WidsError: there is no such sample, its shard cannot be downloaded or read, or a field is damaged.
    """
    from wids.cli.look.describe import describe

    index = _resolve(listed, sample, is_key=is_key)
    k, row = listed.locate(index)
    url = listed.shards.urls[k]
    with contextlib.closing(listed.open(k)) as reader:
        members = reader.read(row)
    key = members.pop("__key__")
    fields = [describe(name, stream.getvalue(), key=key, shard=url) for name, stream in members.items()]
    place = {**listed.place(index), "key": key, "dataset": listed.shards.dataset_of(k)}
    if is_json:
        print_json({**place, "fields": [field.as_json() for field in fields]})
    else:
        _print(place, fields, is_preview=is_preview)
    damaged = [field.name for field in fields if field.kind == "damaged"]
    if damaged:
        raise DecodeError(f"sample {index} ({printable(key)!r}) in {url}: {', '.join(damaged)} cannot be decoded")


def write_field(listed: Listed, sample: str, field: str, *, is_key: bool, is_forced: bool) -> None:
    """Write the bytes of a field to stdout.

    Raises:
        WidsError: there is no such sample or field, the shard cannot be downloaded or read, or stdout is a terminal and
            the bytes are not text.
    """
    index = _resolve(listed, sample, is_key=is_key)
    k, row = listed.locate(index)
    name = field if field.startswith(".") else f".{field}"
    with contextlib.closing(listed.open(k)) as reader:
        names = [known for known, _, _ in reader.table.members(row)]
        if name not in names:
            raise SelectionError(
                f"sample {index} ({printable(reader.table.key(row))!r}) has no field {printable(name)}; it has "
                f"{', '.join(map(printable, names))}"
            )
        data: bytes = reader.read(row, (name,))[name].getvalue()
    is_shown = sys.stdout.isatty()
    if is_shown and not is_forced and not _is_text(data):
        raise OutputError(
            f"{name} of sample {index} is binary ({format_size(len(data))}), and stdout is a terminal; write it to a "
            f"file (> x{name}), or add --force"
        )
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    if is_shown and data and not data.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")  # so that the prompt begins on a line of its own
    sys.stdout.buffer.flush()


def _resolve(listed: Listed, sample: str, *, is_key: bool) -> int:
    return listed.resolve([sample], is_key=is_key, is_first=True)[0][0]


def _is_text(data: bytes) -> bool:
    """Whether the bytes are text without control characters, which a terminal would obey."""
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

    from wids.cli.look.preview import can_draw, draw

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
