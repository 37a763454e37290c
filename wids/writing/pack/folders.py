"""Folders as sources: images by class, and files whose names say which sample they belong to.

Rules: order is that of the keys' bytes, not that of the file system. Hidden files, and those that systems leave in any
folder, are no part of anything. Links are followed, but not in circles.
"""

from __future__ import annotations

import itertools
import os
import unicodedata
from typing import TYPE_CHECKING

from wids.errors import InputError, SampleError, shorten
from wids.index.keys import decode_name, encode_name, first_dot
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
from wids.writing.writer import check_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LOOKED_AT = 10_000  # files, for a guess
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
        classes: names by number, instead of those that there are.

    Raises:
        InputError: it cannot be listed, has no images by class or images of a class that is not among the given ones,
            or classes look alike.
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


def _number_folders(
    directory: str, used: set[str], classes: Sequence[str] | None, listing: SourceListing
) -> dict[str, Given]:
    """The fields of class folders, by name; the listing is told what the index says of them."""
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
    listing.facts.append(describe_classes(names, are_given=classes is not None))
    listing.info = {"classes": names}
    return {name: Given(".cls", b"%d" % k) for k, name in enumerate(names)}


def _folders(directory: str) -> set[str]:
    with os.scandir(directory) as entries:
        return {entry.name for entry in entries if entry.is_dir() and not _is_hidden(entry.name)}


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_BY_SYSTEMS


def list_files(
    directory: str, *, numbers_keys: bool, keep_fields: frozenset[str] | None, tell: Callable[[int], None]
) -> SourceListing:
    """Files ``key.ext``: those with one key (the path up to the first dot of the basename) are one sample.

    Args:
        directory: is listed to all its depth.
        numbers_keys: keys do not matter, for samples are numbered.
        keep_fields: extensions to pack, in any case; None: all.
        tell: called with the number of files found now and then.

    Raises:
        InputError: it cannot be listed, or has no such files.
    """
    listing = SourceListing(items=[], reader=FileReader(), places=[directory], keep_fields=keep_fields)
    wanted = None if keep_fields is None else frozenset(map(str.lower, keep_fields))
    samples: dict[bytes, list[tuple[bytes, InFile]]] = {}
    broken: dict[bytes, SampleProblem] = {}
    for name, path, field, trouble in _files(directory, tell):
        parts = first_dot(encode_name(name))
        if parts is None or (wanted is not None and decode_name(parts[1]).lower() not in wanted):
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
            items.append(Sample(key, tuple(field for _, field in sorted(samples[raw]))))
    _note_forms(listing, items, directory)
    if not items and not listing.problems:
        raise InputError(f"{directory}: there are no files like key.ext in it to be packed", path=directory)
    listing.items = items
    return listing


def _note_forms(listing: SourceListing, items: Sequence[Sample], directory: str) -> None:
    """Tell of keys that differ in their form of Unicode alone, as names from macOS do: files of one sample, perhaps."""
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
    """``folder`` if nine files in ten are images in folders; ``dataset`` if all are tars; ``files`` otherwise.

    Raises:
        InputError: it cannot be listed, is empty, or holds tars among other files.
    """
    count = images = tars = 0
    has_image_above = has_other = False
    for name, *_ in itertools.islice(_names(directory), _LOOKED_AT):
        extension = name.rpartition(".")[2].lower()
        is_above = "/" not in name
        count += 1
        images += extension in IMAGES
        tars += extension == "tar"
        has_image_above = has_image_above or (is_above and extension in IMAGES)
        has_other = has_other or not (is_above and extension in ("tar", "widx", "json"))
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
    return "folder" if images >= 0.9 * count and not has_image_above else "files"


def _find_trouble(key: str, path: str) -> str:
    """Why a key cannot be used; "" if it can."""
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
