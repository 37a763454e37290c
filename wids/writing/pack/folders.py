"""Folders as sources: images by class, and files whose names identify their sample.

Rules: samples are in the order of their keys' bytes, not in that of the file system. Hidden files, and files that
systems add to any folder, are ignored. Links are followed, but not in cycles.
"""

from __future__ import annotations

import itertools
import os
import unicodedata
from typing import TYPE_CHECKING

from wids.core.tables.fields import Alternatives
from wids.core.tables.keys import decode_name, encode_name, find_alike_fields, first_dot
from wids.errors import InputError, SampleError, shorten
from wids.writing.pack.labels import check_alike, count_classes, describe_classes, find_alike, fold_names, name_some
from wids.writing.pack.listing import (
    IMAGES,
    FileReader,
    Given,
    InFile,
    Sample,
    SampleProblem,
    SourceListing,
    check_not_empty,
)
from wids.writing.pack.manifest import SUFFIXES
from wids.writing.writer import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LOOKED_AT = 10_000  # files, for a guess
_TABLES = frozenset(("metadata.jsonl", "metadata.csv", "metadata.parquet"))
_HEAD_BYTES = 64 << 10
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Names of a dataset's parts.
_PARTS = frozenset(("train", "training", "val", "valid", "validation", "dev", "eval", "test", "testing", "holdout"))
# What zip programs, network disks and file systems leave in folders, in no sample's name.
_LEFT_BY_SYSTEMS = frozenset(
    ("__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information", "Thumbs.db", "desktop.ini")
)


def list_images(
    directory: str, *, numbers_keys: bool, tell: Callable[[int], None], classes: Sequence[str] | None = None
) -> SourceListing:
    """Images by class, ``cat/x.jpg``: its key is ``cat/x``, with fields ``.jpg`` and ``.cls``.

    The class is the first folder's name; its number counts the sorted names of all these folders, also of those without
    images, and the index's info has them as ``classes``.

    Args:
        directory: holds a folder for each class.
        numbers_keys: keys do not matter, for samples are numbered.
        tell: called with the number of files found now and then.
        classes: names by number, instead of the names of the folders.

    Raises:
        InputError: it cannot be listed, has no images by class or images of a class that is not among the given ones,
            its folders are parts of a dataset (``train``, ``val``), not classes, or classes look alike.
    """
    listing = SourceListing(items=[], reader=FileReader(), places=[directory])
    found: list[tuple[bytes, str, InFile | None, str]] = []
    for name, path, field, trouble in _files(directory, tell):
        stem, dot, extension = name.rpartition(".")
        if not dot or extension.lower() not in IMAGES:
            listing.ignore(path)
        elif "/" not in name:
            why = "is in no class folder; put it into one, or pack all files by their names"
            listing.problems.append(SampleProblem(path, f"{path}: {why}"))
        else:
            image = field and field._replace(extension=f".{extension.lower()}")
            found.append((encode_name(stem), path, image, trouble))
    if not found:
        raise InputError(
            f"{directory}: there are no images in class folders (class/x.jpg) in it",
            path=directory,
            hint="format_files",
        )
    if classes is None:
        _check_classes(directory, [decode_name(stem) for stem, *_ in found])
    found.sort(key=lambda item: (item[0], item[1]))
    labels = _number_folders(directory, {decode_name(stem).partition("/")[0] for stem, *_ in found}, classes, listing)
    items: list[Sample] = []
    before = "", ""
    for raw, path, image, trouble in found:
        key = decode_name(raw)
        why = trouble or ("" if numbers_keys else _find_trouble(key, path))
        if not (why or numbers_keys) and key == before[0]:
            why = f"{path}: has the key {key!r}, as {before[1]} has; rename one, or number the keys"
        if image is None or why:
            listing.problems.append(SampleProblem(path, why))
        else:
            before = key, path
            items.append(Sample(key, (image, labels[key.partition("/")[0]])))
    listing.items = items
    return listing


def _check_classes(directory: str, stems: Sequence[str]) -> None:
    """Refuse folders that are parts of a dataset, as ``train`` and ``val`` are, or a folder around the class folders.

    Raises:
        InputError: they are such folders.
    """
    folders = sorted({stem.partition("/")[0] for stem in stems}, key=encode_name)
    if all(name.lower() in _PARTS for name in folders):
        what = "is a part of a dataset, not a class" if len(folders) == 1 else "are parts of a dataset, not classes"
    elif len(folders) == 1 and len({stem.split("/")[1] for stem in stems}) > 1 and all(_is_deep(s) for s in stems):
        what = "is the only folder in it, and has folders with images in it"
    else:
        return
    inner = os.path.join(directory, next((name for name in folders if name.lower().startswith("train")), folders[0]))
    raise InputError(
        f"{directory}: {name_some(folders)} {what}; did you mean {inner}? If this is a class, give a list of classes",
        path=directory,
        hint="classes",
    )


def _is_deep(stem: str) -> bool:
    return stem.count("/") > 1


def _number_folders(
    directory: str, used: set[str], classes: Sequence[str] | None, listing: SourceListing
) -> dict[str, Given]:
    """The fields of class folders, by name; the listing gets the words of the index about them."""
    if classes is None:
        names = sorted(used | _folders(directory), key=encode_name)
        check_alike(names, directory)
    else:
        names = list(classes)
        if unknown := sorted(used - set(names), key=encode_name):
            raise InputError(
                f"{os.path.join(directory, unknown[0])}: is none of the {count_classes(names)} ({name_some(names)})"
                + find_alike(unknown[0], fold_names(names))
                + (f", and {len(unknown) - 1:,} more folders are not" if len(unknown) > 1 else ""),
                path=os.path.join(directory, unknown[0]),
            )
    if classes is None and (empty := [name for name in names if name not in used]):
        words = "has no images; it is" if len(empty) == 1 else "have no images; they are"
        listing.notes.append(
            f"{directory}: {len(empty):,} of {count_classes(names)} {words} numbered all the same ({name_some(empty)})"
        )
    if classes is None and all(name.isascii() and name.isdigit() for name in names):
        moved = next((k for k, name in enumerate(names) if int(name) != k), None)
        if moved is not None:
            listing.notes.append(
                f"{directory}: the folders' names are numbers, and classes are numbered in the order of the texts: "
                f"folder {names[moved]} is class {moved}; give a list of classes for another order"
            )
    listing.properties.append(describe_classes(names, are_given=classes is not None))
    listing.info = {"classes": names}
    return {name: Given(".cls", b"%d" % k) for k, name in enumerate(names)}


def _folders(directory: str) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.is_dir() and not _is_hidden(entry.name)}


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_BY_SYSTEMS


def list_files(
    directory: str, *, numbers_keys: bool, keep_fields: Sequence[str] | None, tell: Callable[[int], None]
) -> SourceListing:
    """Files ``key.ext``: those with one key (the path up to the first dot of the basename) are one sample.

    Args:
        directory: listed recursively.
        numbers_keys: keys do not matter, for samples are numbered.
        keep_fields: extensions to pack, in any case, or `Alternatives`; None: all.
        tell: called with the number of files found now and then.

    Raises:
        InputError: it cannot be listed, or has no such files.
    """
    listing = SourceListing(items=[], reader=FileReader(), places=[directory], keep_fields=keep_fields)
    wanted = None if keep_fields is None else frozenset(map(str.casefold, keep_fields))
    samples: dict[bytes, list[tuple[bytes, InFile]]] = {}
    broken: dict[bytes, SampleProblem] = {}
    for name, path, field, trouble in _without_tables(_files(directory, tell), listing):
        parts = first_dot(encode_name(name))
        if parts is None or (wanted is not None and decode_name(parts[1]).casefold() not in wanted):
            listing.ignore(path)
        elif field is None:
            broken.setdefault(parts[0], SampleProblem(path, trouble))
        else:
            extension = decode_name(parts[1])
            samples.setdefault(parts[0], []).append((parts[1], field._replace(extension=extension)))
    items = []
    for raw in sorted({*samples, *broken}):
        key = decode_name(raw)
        path = os.path.join(directory, key)
        trouble = "" if numbers_keys else _find_trouble(key, path)
        if raw in broken:  # half a sample is none
            listing.problems.append(broken[raw])
        elif trouble:
            listing.problems.append(SampleProblem(path, trouble))
        else:
            fields = [field for _, field in sorted(samples[raw])]
            if isinstance(keep_fields, Alternatives):
                groups = keep_fields.choose([field.extension for field in fields])
                chosen = {place for group in groups for place in group}
                for place in set(range(len(fields))) - chosen:
                    listing.ignore(fields[place].path)
                fields = [fields[place] for place in sorted(chosen)]
            items.append(Sample(key, tuple(fields)))
    _note_forms(listing, items, directory)
    _note_merged(listing, items, directory)
    if not items and not listing.problems:
        raise InputError(f"{directory}: there are no files like key.ext in it to be packed", path=directory)
    listing.items = items
    return listing


def _without_tables(
    files: Iterator[tuple[str, str, InFile | None, str]], listing: SourceListing
) -> Iterator[tuple[str, str, InFile | None, str]]:
    """The files of `_files`, without tables of these files, which are noted."""
    for name, path, field, trouble in files:
        if _is_table_of_files(path):
            listing.ignore(path)
            listing.notes.append(f"{path}: is a table of the files beside it, and left out; pack that for its columns")
        else:
            yield name, path, field, trouble


def _note_merged(listing: SourceListing, items: Sequence[Sample], directory: str) -> None:
    """Note a sample that looks like several, because names have a dot in them (``20.00.png``, ``20.25.png``)."""
    for item in items:
        fields = find_alike_fields([field.extension for field in item.fields])
        if fields:
            listing.notes.append(
                f"{directory}: {shorten(item.key + fields[0])} and {shorten(item.key + fields[1])} are one sample, "
                "because a key ends at the first dot of a name; rename the files if they are two (. to _)"
            )
            return


def _note_forms(listing: SourceListing, items: Sequence[Sample], directory: str) -> None:
    """Note keys that differ only in their Unicode form, as names from macOS do: possibly files of one sample."""
    seen = set[str]()
    again = []
    for item in items:
        if not item.key.isascii():
            form = unicodedata.normalize("NFC", item.key)
            if form in seen:
                again.append(item.key)
            seen.add(form)
    if again:
        words = "key looks" if len(again) == 1 else "keys look"
        listing.notes.append(
            f"{directory}: {len(again):,} {words} like another one, in a different form of Unicode (first "
            f"{shorten(ascii(again[0]))}); rename the files if they belong to one sample"
        )


def guess_format(directory: str) -> str:
    """``dataset`` if all files are tars; ``folder`` if nearly all are images in folders; ``files`` otherwise.

    Images in folders with a file of the same key beside nearly each (``a/1.jpg``, ``a/1.json``) are ``files``. Between
    these cases nothing is guessed, because one of the two drops labels and the other one drops files.

    Raises:
        InputError: it cannot be listed, is empty, holds tars among other files or tables alone, or may be either.
    """
    images, others = list[str](), list[str]()  # in folders
    count = above = tars = 0
    has_other = False
    tables, names = list[str](), list[str]()
    for name, path, _ in itertools.islice(_names(directory), _LOOKED_AT):
        if _is_table_of_files(path):
            tables.append(path)
            continue
        extension = name.rpartition(".")[2].lower()
        is_above = "/" not in name
        count += 1
        names += [name] * (extension != "md")
        tars += extension == "tar"
        has_other = has_other or not (is_above and extension in ("tar", "widx", "json"))
        if is_above:
            above += extension in IMAGES
        else:
            (images if extension in IMAGES else others).append(name)
    _refuse_tables(directory, tables, names)
    if not count:
        raise InputError(f"{directory}: there are no files in it", path=directory)
    if tars and not has_other:
        return "dataset"
    if tars:  # tars in tars are hardly wanted
        raise InputError(
            f"{directory}: holds tars and other files; name the tars by a brace pattern",
            path=directory,
            hint="format_files_too",
        )
    keys = {_key(name) for name in images}
    beside = {_key(name) for name in others} & keys
    alone = above + sum(_key(name) not in keys for name in others)
    if 2 * len(images) <= alone or len(beside) >= 0.9 * len(keys):
        return "files"
    if len(beside) > max(1, 0.1 * len(keys)) or 2 * alone > max(2, len(images)):
        raise _either(directory, images, others, beside=len(beside), above=above)
    return "folder"


def _is_table(name: str) -> bool:
    """True if a file has rows, by its name."""
    stem, end = os.path.splitext(name.lower())
    return (stem if end in _COMPRESSED else name.lower()).endswith(SUFFIXES)


def _refuse_tables(directory: str, tables: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a folder whose samples may be the rows of a table in it.

    Args:
        directory: the folder.
        tables: paths of tables of the other files.
        names: of the other files, without notes.

    Raises:
        InputError: there is a table of them, or all of them are tables.
    """
    if not (tables or (names and all(map(_is_table, names)))):
        return
    found = [os.path.relpath(table, directory) for table in tables] or names
    table, more = min(found), f" (and {len(found) - 1:,} more)" if len(found) > 1 else ""
    what, fields = "and no other files; pack its rows", ".jpg=COLUMN"
    if tables:
        what, fields = "a table of these files; pack that", ".jpg=file_name"
    raise InputError(
        f"{directory}: holds {table}{more}, {what}: wids pack {os.path.join(directory, table)} --field {fields} "
        "--field .json=COLUMN,COLUMN",
        path=directory,
        hint="format_either" if tables else "format_files_each",
    )


def _is_table_of_files(path: str) -> bool:
    """True if a file is the table of an ImageFolder, whose column ``file_name`` names the files beside it."""
    if os.path.basename(path) not in _TABLES:
        return False
    try:
        with open(path, "rb") as file:
            return path.endswith(".parquet") or b"file_name" in file.read(_HEAD_BYTES)
    except OSError:  # who reads it says so
        return False


def _key(name: str) -> bytes:
    parts = first_dot(encode_name(name))
    return encode_name(name) if parts is None else parts[0]


def _either(directory: str, images: Sequence[str], others: Sequence[str], *, beside: int, above: int) -> InputError:
    """The error of a folder that may be images by class, or files of samples."""
    found = [f"{len(images):,} images in folders ({shorten(min(images))})"]
    if beside:
        found.append(f"{beside:,} of them with other files of the same name")
    if others:
        found.append(f"{len(others):,} other files in folders ({shorten(min(others))})")
    if above:
        found.append(f"{above:,} images in no folder")
    return InputError(
        f"{directory}: holds {', '.join(found)}; say whether the folders are classes, and the rest is left out, or the "
        "files of one name are one sample",
        path=directory,
        hint="format_either",
    )


def _find_trouble(key: str, path: str) -> str:
    """The reason why a key is invalid; "" if it is valid."""
    try:
        check_key(key)
    except SampleError as error:
        return f"{path}: {str(error).removesuffix('; choose another key')}; rename it, or number the keys"
    return ""


def _files(directory: str, tell: Callable[[int], None]) -> Iterator[tuple[str, str, InFile | None, str]]:
    """(path within the directory, path, the file or None, its fault), in any order."""
    for count, (name, path, entry) in enumerate(_names(directory), 1):
        if count % 1000 == 0:
            tell(count)
        try:
            status = entry.stat()
            if not entry.is_file():
                yield name, path, None, f"{path}: is neither a file nor a folder"
                continue
            check_not_empty(os.path.splitext(name)[1], path, status.st_size)
            yield name, path, InFile("", path, status.st_size, status.st_mtime_ns), ""
        except SampleError as error:
            yield name, path, None, str(error)
        except OSError as error:
            yield name, path, None, f"{path}: cannot be read ({error.strerror or error})"


def _names(directory: str) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """(path within the directory, path, entry) of all that are not folders."""
    pending: list[tuple[str, str, frozenset[tuple[int, int]]]] = [("", directory, frozenset())]
    while pending:
        prefix, place, above = pending.pop()
        try:
            status = os.stat(place)
            here = status.st_dev, status.st_ino
            if here in above:
                continue
            with os.scandir(place) as entries:
                for entry in entries:
                    if _is_hidden(entry.name):
                        continue
                    if entry.is_dir():
                        pending.append((f"{prefix}{entry.name}/", entry.path, above | {here}))
                    else:
                        yield prefix + entry.name, entry.path, entry
        except OSError as error:
            raise InputError(f"{place}: cannot be listed ({error.strerror or error})", path=place) from error
