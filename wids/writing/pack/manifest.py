"""Manifests as sources: one sample for each row of CSV, TSV, JSON lines, Parquet or Arrow.

Rules: the user names a column; an error names a row that lacks it. Rows are read once. A field of text or numbers has
its value in the row; any other field has the content of the file that the row names, or the bytes that a Parquet file
holds instead. Several manifests are one, in the given order; their columns agree.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import math
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.codecs.encoders import encode_field
from wids.core.files.json_text import TOLERANT, unique
from wids.core.index.discovery import find_shards
from wids.core.place import Place
from wids.core.transport.download import read_bytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError, JsonError, SampleError, SpecError, WidsError, a_kind, shorten, shown
from wids.writing.pack import chunks, saved
from wids.writing.pack.labels import Labels, describe_classes, find_joined, number_labels
from wids.writing.pack.listing import (
    IMAGES,
    FileReader,
    Given,
    InFile,
    Sample,
    SampleProblem,
    SourceListing,
    describe_file,
    find_picture,
)
from wids.writing.pack.parquet import InRow, ParquetRows
from wids.writing.writer import check_extension, check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow")
# Fields that hold what the column says; all others hold the file that it names.
_VALUES = frozenset({"cls", "cls2", "index", "txt", "text", "json"})
_LABELS = frozenset({"cls", "cls2"})
_TSV_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^\t]*))(?:\t|\Z)')
_NAMED = 30  # columns that an error lists
_SEPARATORS = (";", "\t", "|", ",")  # that programs write
_PACKED = {
    b"\x1f\x8b": "compressed with gzip",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"(\xb5/\xfd": "compressed with zstd",
    b"PK\x03\x04": "a zip or Excel file",
}


class FieldRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that makes a field from columns.

    Attributes:
        extension: with its leading dot.
        columns: their names.
        is_file: the column names a file, whose bytes the field gets, or holds such bytes.
    """

    extension: str
    columns: tuple[str, ...]
    is_file: bool

    @property
    def kind(self) -> str:
        """The extension's last part, in lower case."""
        return self.extension.rpartition(".")[2].lower()


class _ManifestHome(msgspec.Struct, frozen=True, kw_only=True):
    """The base of relative paths, and whether local files are forbidden because the manifest is remote."""

    base: Place
    is_guarded: bool


class _ManifestRow(NamedTuple):
    """A row: its name in errors, its values by column, contents by column (of Parquet), and its fault, or ""."""

    place: str
    values: dict[str, Any]
    contents: dict[str, InRow | str | None]
    fault: str


class _Manifest(NamedTuple):
    """A manifest that was read: path or URL, columns (None: each row has its own), rows, and oddities."""

    place: str
    columns: list[str] | None
    rows: list[_ManifestRow]
    notes: list[str]


def parse_field(text: str) -> FieldRule:
    """``.jpg=path`` (a file), ``.cls=label``, ``.json=a,b`` (values); ``.txt=@path`` is a file in any case.

    Raises:
        InputError: it has none of these forms.
    """
    extension, equals, names = text.partition("=")
    extension = extension if extension.startswith(".") else f".{extension}"
    columns = tuple(name.strip() for name in names.removeprefix("@").split(","))
    kind = extension.rpartition(".")[2].lower()
    is_file = names.startswith("@") or kind not in _VALUES
    if not equals or not all(columns):
        raise InputError(
            f"field {shown(text)} does not say which column it comes from; write it like .jpg=path", parameter="fields"
        )
    try:
        check_extension(extension, "")
    except SampleError as error:
        raise InputError(
            f"field {shown(text)}: {shown(extension)} is no extension; write it like .jpg=path", parameter="fields"
        ) from error
    if len(columns) > 1 and kind != "json":
        raise InputError(f"field {shown(text)}: only .json holds several columns; give one", parameter="fields")
    return FieldRule(extension=extension, columns=columns, is_file=is_file)


def expand_sources(sources: Iterable[str], session: Session = PLAIN) -> list[str]:
    """The files that globs, brace patterns and saved datasets stand for, in order, and other names as they are.

    Raises:
        InputError: no files match, or one is named twice. FetchError: a remote place cannot be listed.
    """
    found: dict[str, str] = {}
    for source in sources:
        names = saved.list_files(source) or chunks.list_files(source) or [source]
        if not os.path.lexists(os.path.expanduser(source)) and (glob.has_magic(source) or "{" in source):
            try:
                names = [shard.url for shard in find_shards([source], session=session)]
            except SpecError as error:
                raise InputError(f"{source}: there are no files with such names", url=source) from error
        for name in names:
            path = os.path.realpath(place.path) if (place := Place(name)).is_local else name
            if path in found:
                raise InputError(f"{name}: is named twice; give each source once", url=name)
            found[path] = name
    return list(found.values())


def list_rows(
    manifest: str | Sequence[str],
    *,
    fields: list[FieldRule],
    key: str | None,
    base: str | None,
    numbers_keys: bool,
    session: Session,
    tell: Callable[[int], None],
    classes: Sequence[str] | None = None,
) -> SourceListing:
    """The rows of a manifest, or of several, one after the other.

    Args:
        manifest: path or URL, ending in one of `SUFFIXES`, or several.
        fields: what samples hold.
        key: the column of keys; None: samples are numbered by row, from 000000000.
        base: of relative paths; None: each manifest's own place.
        numbers_keys: keys do not matter, for samples are numbered.
        session: opens URLs.
        tell: called regularly with the number of rows.
        classes: names by number, for the labels of the only ``.cls`` field; None: words are numbered in sorted order.

    Raises:
        InputError: one cannot be read, lacks a column or has others than the first one; or labels differ only in case.
    """
    places = [manifest] if isinstance(manifest, str) else list(manifest)
    narrowed = _narrow(places, base, session)
    listing = SourceListing(items=[], reader=FileReader(session=narrowed), places=places)
    names = {name for rule in fields for name in rule.columns} | ({key} if key else set())
    contents = {rule.columns[0] for rule in fields if rule.is_file}
    values = {name for rule in fields if not rule.is_file for name in rule.columns} | ({key} if key else set())
    manifests = [_open(place, values, contents, session) for place in places]
    for each in manifests:
        _check_columns(each, names, manifests[0])
        listing.notes += [f"{each.place}: {note}" for note in each.notes]
        if not each.rows:
            if len(places) == 1 or not any(other.rows for other in manifests):
                raise InputError(f"{each.place}: has no rows", url=each.place)
            listing.notes.append(f"{each.place}: has no rows")
    labels = _number_classes(manifests, fields, classes, listing)
    _fill(listing, manifests, _Filling(fields, key, base, labels, numbers_keys=numbers_keys), tell)
    return listing


class _Filling(NamedTuple):
    """The way in which rows become samples."""

    fields: list[FieldRule]
    key: str | None
    base: str | None
    labels: dict[str, Labels]
    numbers_keys: bool


def _fill(listing: SourceListing, manifests: list[_Manifest], filling: _Filling, tell: Callable[[int], None]) -> None:
    items, seen, files = [], dict[str, str](), dict[tuple[str, str], str]()
    again, first_again, count = 0, "", 0
    for each in manifests:
        own = Place(each.place)
        home = _ManifestHome(
            base=own.directory if filling.base is None else Place(filling.base),
            is_guarded=filling.base is None and not own.reaches_local,
        )
        for row in each.rows:
            if count % 1000 == 0:
                tell(count)
            count += 1
            place = row.place if len(manifests) == 1 else f"{each.place}, {row.place}"
            try:
                _check_sound(row)
                name = f"{count - 1:09d}" if filling.key is None else _text(row.values, filling.key)
                if not filling.numbers_keys:
                    _check_new(name, seen)
                fields = tuple(_make_field(rule, row, home, filling.labels) for rule in filling.fields)
            except SampleError as error:
                listing.problems.append(SampleProblem(place, f"{each.place}, {row.place}: {error}"))
                continue
            seen[name] = place
            items.append(Sample(name, fields))
            for field in fields:
                if isinstance(field, InFile) and files.setdefault((field.extension, field.path), place) != place:
                    again += 1
                    first_again = first_again or (
                        f"{place} names {shorten(field.path)}, as {files[field.extension, field.path]} does"
                    )
    if again:
        words = "row names" if again == 1 else "rows name"
        listing.notes.append(f"{again:,} {words} a file that an earlier row names ({first_again})")
    listing.items = items
    _note_kind(listing)


def _note_kind(listing: SourceListing) -> None:
    """Note the first pictures whose content differs from their extension; they are decoded by content."""
    first = listing.items[0].fields if listing.items else ()
    for field in first:
        extension = field.extension.rpartition(".")[2].lower()
        if isinstance(field, InRow) and extension in IMAGES:
            data = b""
            with contextlib.suppress(WidsError):  # reading it again says so
                data = listing.reader.look(listing.items[0], frozenset((field.extension,)))[2][field.extension]
            kinds = find_picture(data) or (extension,)
            if extension not in kinds:
                listing.notes.append(
                    f"{field.manifest}: column {field.column!r} begins with a .{kinds[0]}, which is called "
                    f"{field.extension} as you said; it is decoded by its content"
                )


def _check_sound(row: _ManifestRow) -> None:
    if row.fault:
        raise SampleError(row.fault)


def _check_new(key: str, seen: dict[str, str]) -> None:
    check_key(key)
    if key in seen:
        raise SampleError(
            f"key {shown(key)} is that of {seen[key]}, too; keys are unique, or samples are numbered", key=key
        )


def _make_field(
    rule: FieldRule, row: _ManifestRow, home: _ManifestHome, labels: dict[str, Labels]
) -> InFile | Given | InRow:
    name = rule.columns[0]
    for column in rule.columns:
        if column not in row.values and column not in row.contents:
            raise SampleError(f"there is no column {shown(column)} in this row")
    if rule.is_file:
        return _make_file(rule, row, home)
    if rule.kind == "json":
        return Given(rule.extension, encode_field(rule.extension, {each: row.values[each] for each in rule.columns}))
    value = row.values[name]
    if rule.extension in labels:
        value = labels[rule.extension].number(value)
    elif rule.kind in ("txt", "text"):
        value = "" if value == "" else _text(row.values, name, allows_numbers=True)
    elif value is None or value == "":
        raise SampleError(f"column {shown(name)} is empty")
    return Given(rule.extension, encode_field(rule.extension, value))


def _make_file(rule: FieldRule, row: _ManifestRow, home: _ManifestHome) -> InFile | InRow:
    name = rule.columns[0]
    if name in row.contents:
        found = row.contents[name]
        if isinstance(found, InRow):
            return found._replace(extension=rule.extension)
        text = _text({name: found}, name)
    else:
        text = _text(row.values, name)
    path = home.base.join(text)
    if home.is_guarded and path.reaches_local:
        raise SampleError(
            f"{shorten(str(path))}: a manifest from a remote place may not name local files, unless a base says where "
            "they are"
        )
    try:
        return describe_file(rule.extension, path.path if path.is_local else str(path))
    except SampleError as error:
        odd = "; it has backslashes, as paths of Windows have" if "\\" in text else ""
        raise SampleError(f"column {shown(name)} names a file, {error}{odd}") from error


def _text(values: dict[str, Any], column: str, *, allows_numbers: bool = False) -> str:
    """A value that is text, or a number that stands for one.

    Raises:
        SampleError: it is neither, or empty.
    """
    value = values.get(column)
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except ValueError:
            raise SampleError(f"column {shown(column)} holds {len(value):,} bytes that are no text") from None
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise SampleError(f"column {shown(column)} is empty")
    kinds = (str, int, float) if allows_numbers else (str, int)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise SampleError(f"column {shown(column)} holds {a_kind(value)}, and not text")
    return str(value)


def _number_classes(
    manifests: list[_Manifest], fields: list[FieldRule], classes: Sequence[str] | None, listing: SourceListing
) -> dict[str, Labels]:
    """The meaning of labels, by extension; adds words about them to the listing."""
    rules = [rule for rule in fields if not rule.is_file and rule.kind in _LABELS]
    if classes is not None and len(rules) != 1:
        raise InputError(f"a list of classes is for one field like .cls=label, and there are {len(rules)}")
    labels, named = dict[str, Labels](), dict[str, list[str]]()
    for rule in rules:
        column = rule.columns[0]
        found = number_labels(
            column, (row.values.get(column) for each in manifests for row in each.rows if not row.fault), classes
        )
        labels[rule.extension] = found
        names = found.classes if found.classes is not None else list(found.numbers or ())
        if names:
            named[rule.extension] = names
            listing.properties.append(f"{column}: {describe_classes(names, are_given=classes is not None)}")
        if classes is None and (joined := find_joined(names)):
            listing.notes.append(
                f"{column}: {shown(joined[0])} is a class of its own, beside its parts; for several labels of one "
                "sample take .txt or .json"
            )
    if named:
        first = named.get(".cls", next(iter(named.values())))
        listing.info = {"classes": first, **({"classes_of": named} if len(named) > 1 else {})}
    return labels


def _check_columns(each: _Manifest, names: Collection[str], first: _Manifest) -> None:
    there = set(each.columns or ())
    if each.columns == []:
        raise InputError(f"{each.place}: is empty", url=each.place)
    if each.columns is None:
        if not each.rows:
            return
        for row in each.rows[:100]:
            there |= set(row.values)
        if not there and all(row.fault for row in each.rows[:100]):  # as each of them says
            return
    missing = sorted(set(names) - there)
    if missing:
        listed = [name if name == name.strip() else repr(name) for name in map(shorten, sorted(there))]
        rest = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        mark = next((mark for mark in _SEPARATORS if len(there) == 1 and mark in min(there)), "")
        raise InputError(
            f"{each.place}: there is no column {shown(missing[0])}; it has {', '.join(listed[:_NAMED])}{rest}"
            + (f"; is {mark!r} between its columns? Store it with commas (.csv) or tabs (.tsv)" if mark else ""),
            url=each.place,
        )
    if each.columns is not None and first.columns is not None and there != set(first.columns):
        odd = min(there ^ set(first.columns))
        which = each.place if odd in there else first.place
        raise InputError(
            f"{each.place}: has other columns than {first.place} (only {which} has {shown(odd)}); make them agree",
            url=each.place,
        )


def _narrow(places: list[str], base: str | None, session: Session) -> Session:
    """The session for files that manifests name: no credentials go to a server that a remote manifest chooses."""
    remote = [place for place in places if not Place(place).is_local]
    if not remote:
        return session
    origins = [origin for place in remote for origin in Place(place).origins]
    return session.narrowed([*origins, *Place(base or "").origins])


def _open(place: str, values: Collection[str], contents: Collection[str], session: Session) -> _Manifest:
    suffix = posixpath.splitext(Place(place).name)[1].lower()
    notes: list[str] = []
    if (is_chunk := chunks.is_chunk(place)) or suffix in (".parquet", ".arrow"):
        table = chunks.ChunkRows(place) if is_chunk else ParquetRows(place, session)
        _check_names(table.columns, place)
        if not {*values, *contents} <= set(table.columns):  # the error names the existing columns
            return _Manifest(place, table.columns, [_ManifestRow("row 0", {}, {}, "")], notes)
        found = table.read(values, contents)
        return _Manifest(
            place,
            table.columns,
            [_ManifestRow(f"row {row.number}", row.values, row.contents, "") for row in found],
            notes,
        )
    data = read_bytes(place, session=session)
    if kind := next((kind for magic, kind in _PACKED.items() if data.startswith(magic)), ""):
        raise InputError(f"{place}: is {kind}; unpack it, or store its content as text", url=place)
    try:
        text = data.decode("utf-8-sig")
    except ValueError as error:
        is_wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        why = "UTF-16" if is_wide else f"no {suffix[1:]} that can be read ({error})"
        raise InputError(f"{place}: is {why}; store it as UTF-8", url=place) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{place}: line {line} has a NUL byte in it; store it as UTF-8 text", url=place)
    if suffix in (".jsonl", ".ndjson", ".json"):
        if suffix == ".json" and text.lstrip().startswith("["):
            raise InputError(f"{place}: is a JSON list; store it with one object a line", url=place)
        return _Manifest(place, None, list(_json_rows(text)), notes)
    lines = _tsv_lines(text) if suffix == ".tsv" else _csv_lines(text, place, notes)
    _, header = next(lines, (1, []))
    header = [name.strip() for name in header]
    _check_names(header, place)
    return _Manifest(place, header, list(_rows_of(lines, header)), notes)


def _check_names(columns: list[str], place: str) -> None:
    twice = sorted({name for name in columns if name and columns.count(name) > 1})
    if twice:
        raise InputError(f"{place}: two columns are called {shown(twice[0])}; rename one", url=place)


def _rows_of(lines: Iterator[tuple[int, list[str]]], header: list[str]) -> Iterator[_ManifestRow]:
    for number, cells in lines:
        fault = ""
        if len(cells) != len(header):
            fault = f"has {len(cells)} fields, and the header has {len(header)}" + (
                "; is there a separator in a text without quotes?" if len(cells) > len(header) else ""
            )
        elif [cell.lstrip("\ufeff").strip() for cell in cells] == header:
            fault = "repeats the header"
        yield _ManifestRow(f"line {number}", dict(zip(header, cells, strict=False)), {}, fault)


def _csv_lines(text: str, place: str, notes: list[str]) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, fields) of each row."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start, spanning, first = 1, 0, 0
    try:
        for cells in reader:
            if cells:
                yield start, cells
            if reader.line_num > start:
                spanning, first = spanning + 1, first or start
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{place}: the row that begins in line {start} is no csv that can be read ({error}); is a quote open?",
            url=place,
        ) from error
    if spanning:
        notes.append(
            f"{spanning:,} rows are of several lines (the first is in line {first}); if none should be, a quote is open"
        )


def _tsv_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Likewise; a quote that is not closed within its field is a letter, as many programs write TSVs unquoted."""
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r")
        cells, at = [], 0
        while line and at <= len(line):
            found = _TSV_FIELD.match(line, at)
            if found is None:  # cannot be: the second way takes anything
                break
            cells.append(found[2] if found[1] is None else found[1].replace('""', '"'))
            if not found[0].endswith("\t"):
                break
            at = found.end()
        if cells:
            yield number, cells


def _json_rows(text: str) -> Iterator[_ManifestRow]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row, fault = {}, ""
        try:
            found = TOLERANT.parse_pairs(line.lstrip("\ufeff"), unique)
        except JsonError as error:
            fault = f"is not JSON ({error})"
        else:
            if isinstance(found, dict):
                row = found
            else:
                fault = f"is a JSON {type(found).__name__}; it is an object"
        yield _ManifestRow(f"line {number}", row, {}, fault)
