"""Manifests as sources: one sample a row, of CSV, TSV, JSON lines or Parquet.

Rules: a column is named by the user, and is there in each row, or an error names the row. Rows are read
once; what a field of text or numbers holds is taken from them, what any other field holds is the file that they name.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import posixpath
from typing import TYPE_CHECKING, Any

import msgspec

from wids.codecs.encoders import encode_field
from wids.errors import DependencyError, InputError, SampleError
from wids.index import urls
from wids.transport.download import read_bytes
from wids.writing.pack.listing import FileReader, Given, InFile, Sample, SampleProblem, SourceListing, describe_file
from wids.writing.writer import check_extension, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
# Fields that hold what the column says; all others hold the file that it names.
_VALUES = frozenset({"cls", "cls2", "index", "txt", "text", "json"})
_BATCH = 10_000


class FieldRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a field comes from columns.

    Attributes:
        extension: with its leading dot.
        columns: their names.
        is_file: the column names a file, whose bytes the field gets.
    """

    extension: str
    columns: tuple[str, ...]
    is_file: bool


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """What relative paths are relative to, and whether local files are out of bounds, for the manifest is remote."""

    base: str
    is_guarded: bool


def parse_field(text: str) -> FieldRule:
    """``.jpg=path`` (a file), ``.cls=label``, ``.json=a,b`` (values); ``.txt=@path`` is a file in any case.

    Raises:
        InputError: it is none of these.
    """
    extension, equals, names = text.partition("=")
    extension = extension if extension.startswith(".") else f".{extension}"
    columns = tuple(name.strip() for name in names.removeprefix("@").split(","))
    kind = extension.rpartition(".")[2].lower()
    is_file = names.startswith("@") or kind not in _VALUES
    if not equals or not all(columns):
        raise InputError(f"field {text!r} does not say which column it comes from; write it like .jpg=path")
    try:
        check_extension(extension, "")
    except SampleError as error:
        raise InputError(f"field {text!r}: {extension!r} is no extension; write it like .jpg=path") from error
    if len(columns) > 1 and kind != "json":
        raise InputError(f"field {text!r}: only .json holds several columns; give one")
    return FieldRule(extension=extension, columns=columns, is_file=is_file)


def list_rows(
    manifest: str,
    *,
    fields: list[FieldRule],
    key: str | None,
    base: str | None,
    numbers_keys: bool,
    storage_options: dict[str, Any] | None,
    tell: Callable[[int], None],
) -> SourceListing:
    """The rows of a manifest.

    Args:
        manifest: path or URL, ending in one of `SUFFIXES`.
        fields: what samples hold.
        key: the column of keys; None: samples are numbered by row, from 000000000.
        base: what relative paths are relative to; None: the manifest's own place.
        numbers_keys: keys do not matter, for samples are numbered.
        storage_options: for fsspec.
        tell: called with the number of rows now and then.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    listing = SourceListing(items=[], reader=FileReader(storage_options=_options(manifest, base, storage_options)))
    names = {name for rule in fields for name in rule.columns} | ({key} if key else set())
    rows = _open_rows(manifest, sorted(names), storage_options)
    _check_columns(manifest, rows, names)
    home = _Place(
        base=urls.directory_of(manifest) if base is None else base,
        is_guarded=base is None and not urls.reaches_local(manifest),
    )
    numbers, listing.info = _number_classes(rows, fields)
    items, seen = [], dict[str, str]()
    for count, (place, row) in enumerate(rows):
        if count % 1000 == 0:
            tell(count)
        try:
            name = f"{count:09d}" if key is None else _text(row.get(key), key)
            if not numbers_keys:
                _check_new(name, seen)
                seen[name] = place
            items.append(Sample(name, tuple(_make_field(rule, row, home, numbers) for rule in fields)))
        except SampleError as error:
            listing.problems.append(SampleProblem(place, f"{manifest}, {place}: {error}"))
    if not rows:
        raise InputError(f"{manifest}: has no rows", url=manifest)
    listing.items = items
    return listing


def _check_new(key: str, seen: dict[str, str]) -> None:
    check_key(key)
    if key in seen:
        raise SampleError(f"key {key!r} is that of {seen[key]}, too; keys are unique, or samples are numbered", key=key)


def _make_field(
    rule: FieldRule, row: dict[str, Any], home: _Place, numbers: dict[str, dict[str, int]]
) -> InFile | Given:
    kind = rule.extension.rpartition(".")[2].lower()
    missing = [name for name in rule.columns if name not in row]
    if missing:
        raise SampleError(f"there is no column {missing[0]!r} in this row")
    if kind == "json" and not rule.is_file:
        try:
            return Given(rule.extension, json.dumps({name: row[name] for name in rule.columns}).encode())
        except (TypeError, ValueError) as error:
            raise SampleError(f"{rule.extension} cannot hold {', '.join(rule.columns)}: {error}") from error
    value = row[rule.columns[0]]
    if rule.is_file:
        path = urls.join(home.base, _text(value, rule.columns[0]))
        if home.is_guarded and urls.reaches_local(path):
            raise SampleError(
                f"{path}: a manifest from a remote place may not name local files, unless a base says where they are"
            )
        return describe_file(rule.extension, os.path.expanduser(urls.local_path(path)) if urls.is_local(path) else path)
    if rule.extension in numbers:
        value = numbers[rule.extension].get(_text(value, rule.columns[0]))
    elif isinstance(value, (int, float)) and kind in ("txt", "text"):
        value = str(value)
    if value is None or (value == "" and kind not in ("txt", "text")):
        raise SampleError(f"column {rule.columns[0]!r} is empty")
    return Given(rule.extension, encode_field(rule.extension, value))


def _text(value: Any, column: str) -> str:
    if value is None or value == "":
        raise SampleError(f"column {column!r} is empty")
    return str(value)


def _number_classes(
    rows: list[tuple[str, dict[str, Any]]], fields: list[FieldRule]
) -> tuple[dict[str, dict[str, int]], dict[str, Any] | None]:
    """Numbers for .cls fields whose labels are words, by extension, and what the index says of them."""
    numbers: dict[str, dict[str, int]] = {}
    for rule in fields:
        if rule.is_file or rule.extension.rpartition(".")[2].lower() != "cls":
            continue
        values = {row.get(rule.columns[0]) for _, row in rows} - {None, ""}
        if all(isinstance(value, int) or str(value).lstrip("-").isdecimal() for value in values):
            continue
        numbers[rule.extension] = {name: k for k, name in enumerate(sorted({str(value) for value in values}))}
    classes = [*numbers.values()]
    return numbers, {"classes": list(classes[0])} if len(classes) == 1 else None


def _check_columns(manifest: str, rows: list[tuple[str, dict[str, Any]]], names: set[str]) -> None:
    if not rows:
        return
    there = set(rows[0][1])
    for _, row in rows[:100]:
        there |= set(row)
    missing = sorted(names - there)
    if missing:
        raise InputError(
            f"{manifest}: there is no column {missing[0]!r}; it has {', '.join(map(str, sorted(there, key=str)))}",
            url=manifest,
        )


def _options(manifest: str, base: str | None, storage_options: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the files that a manifest names are read with: nothing goes to servers of a remote one's choice."""
    if urls.is_local(manifest):
        return storage_options
    return urls.narrow_options(storage_options, [*urls.origins_of(manifest), *urls.origins_of(base or "")])


def _open_rows(
    manifest: str, names: list[str], storage_options: dict[str, Any] | None
) -> list[tuple[str, dict[str, Any]]]:
    """(what errors call it, row) of each row."""
    suffix = posixpath.splitext(urls.basename_of(manifest))[1].lower()
    data = read_bytes(manifest, storage_options=storage_options)
    try:
        if suffix == ".parquet":
            return list(_parquet_rows(data, names))
        text = data.decode("utf-8-sig")
        if suffix in (".jsonl", ".ndjson"):
            return list(_json_rows(text))
        return list(_csv_rows(text, "\t" if suffix == ".tsv" else ","))
    except InputError as error:
        raise InputError(f"{manifest}: {error}", url=manifest) from error
    except (ValueError, csv.Error) as error:  # also of UTF-8
        raise InputError(f"{manifest}: is no {suffix[1:]} that can be read ({error})", url=manifest) from error


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    for row in reader:
        yield f"line {reader.line_num}", {name: value for name, value in row.items() if name is not None}


def _json_rows(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"line {number} is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"line {number} is a JSON {type(row).__name__}; it is an object")
        yield f"line {number}", row


def _parquet_rows(data: bytes, names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DependencyError("reading Parquet takes pyarrow; install it: pip install 'wids[parquet]'") from error
    try:
        file = pq.ParquetFile(io.BytesIO(data))
    except pa.ArrowException as error:
        raise InputError(f"is no Parquet that can be read ({error})") from error
    there = [name for name in file.schema_arrow.names if name in names]
    if len(there) < len(names):  # one row that shows what there is
        yield "row 0", dict.fromkeys(file.schema_arrow.names)
        return
    numbers = itertools.count()
    for batch in file.iter_batches(_BATCH, columns=there):
        for row in batch.to_pylist():
            yield f"row {next(numbers)}", row
