"""Finds the shards that a user names by paths, directories, globs, brace patterns, URLs and prefixes.

Rules: the sources keep their order, and the shards of each are in natural order. A shard that is named twice, also by
two links, is found once. Links are followed. In a directory, all files with the name of an archive are shards, also
unreadable ones (compressed, a broken link): the reader of the shards reports them. All matches of a glob are shards,
except files that belong to shards (indexes, member tables, columns). Properties of a shard in a listing (size,
version) are kept, so that they are not requested again.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.index import energon, foreign_data
from wids.core.place import Place
from wids.core.transport import filesystems, retrying, schemes, urls
from wids.core.transport.session import PLAIN, Session
from wids.errors import FetchDeniedError, SpecError, WidsError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SUFFIX = ".tar"
# Compressed ones are not shards, and reading them raises an error that says so.
_ARCHIVE = re.compile(r"(?is).*\.(tar(\.(gz|bz2|xz|zst|zstd|lz4|lz|lzma|z))?|tgz|taz|tbz2?|txz|tzst)")
_INDEXES = (".json", ".widsx")
# Files that wids and others write beside shards, and that a glob like ``dir/*`` matches as well.
_ROWS = ".parquet"
_ALONE = "give an index alone, by its path or URL; of several make one (wids index merge), or mix them (wids.mix)"
_BESIDE = (*_INDEXES, ".widx", ".idx", ".tables", _ROWS, ".state", ".journal")
_SHOWN = 3  # names in a message
_MAX_SPLIT_BYTES = 4 << 20  # of a file of Energon's splits
_MAX_NAMES = 2000  # that are looked at in a folder of another tool
_GLOB, _WEB = frozenset("*?["), ("http", "https")


class FoundShard(msgspec.Struct, frozen=True):
    """One shard.

    Attributes:
        url: a URL or an absolute path.
        size: bytes, or None if it is not known yet.
        mark: its version as text, from `mark_words`; None: unknown.
        file: (device, inode) of a local one.
    """

    url: str
    size: int | None = None
    mark: str | None = None
    file: tuple[int, int] | None = None


class Sources:
    """The shards that sources name; see `find_shards`.

    Attributes:
        shards: URL -> shard, in order.
        repeated: another URL of a shard -> its first URL. Both are local.
        failed: directories that cannot be read, and indexes among shards (`refuse_indexes`) -> the reason.
    """

    def __init__(self, known: Iterable[FoundShard] = ()) -> None:
        self.shards: dict[str, FoundShard] = {}
        self.repeated: dict[str, str] = {}
        self.failed: dict[str, WidsError] = {}
        self._files = {shard.file: shard.url for shard in known if shard.file is not None}

    def add(self, shards: Sequence[FoundShard]) -> None:
        """Add the shards that were not found before; of two names of one file, the one that is not a link."""
        counts = Counter(shard.file for shard in shards)
        for is_link in (False, True):
            for shard in shards:
                if shard.file is not None and (counts[shard.file] == 1 or _is_link(shard.url) is is_link):
                    self._files.setdefault(shard.file, shard.url)
        for shard in shards:
            first = shard.url if shard.file is None else self._files[shard.file]
            if first == shard.url:
                self.shards.setdefault(shard.url, shard)
            elif shard.url not in self.shards:
                self.repeated[shard.url] = first


def find_shards(sources: Iterable[str], *, session: Session = PLAIN) -> list[FoundShard]:
    """The shards that the sources name, each once.

    Raises:
        SpecError: a pattern is malformed, or a directory, pattern or prefix holds no shards.
        FetchError: a remote one cannot be listed. FetchDeniedError: a directory cannot be read.
    """
    named = look_for_shards(sources, session=session)
    for error in named.failed.values():
        raise error
    return list(named.shards.values())


def look_for_shards(sources: Iterable[str], *, known: Iterable[FoundShard] = (), session: Session = PLAIN) -> Sources:
    """`find_shards` with the files that are left out; files of ``known`` shards have these names."""
    named = Sources(known)
    for source in sources:
        for shards in _expand(source, session, named.failed):
            named.add(shards)
    return named


def _is_link(url: str) -> bool:
    path = Place(url).path
    return os.path.realpath(path) != path


def mark_words(mark: Any) -> str | None:
    """The version of a shard, as text; None: unknown."""
    if mark is None or isinstance(mark, str):
        return mark or None
    return " ".join(map(str, mark)) or None


def look_local(url: str) -> FoundShard:
    """The present state of a local shard; without size and mark if these cannot be read."""
    try:
        status = os.stat(Place(url).path)
    except (OSError, ValueError):  # or the name is invalid
        return FoundShard(url)
    return FoundShard(url, status.st_size, f"{status.st_mtime_ns}", (status.st_dev, status.st_ino))


def _expand(source: str, session: Session, failed: dict[str, WidsError]) -> Iterator[list[FoundShard]]:
    if not (plain := Place(source)).scheme and os.path.lexists(plain.path):
        yield _local(source, failed)  # the name of an existing file may hold any letters
        return
    for name in urls.expand(source):
        place = Place(name)
        if (catalog := schemes.find_catalog(name)) is not None:
            yield catalog.find_shards(name, session=session)
        elif place.is_local:
            yield _local(name, failed)
        elif place.scheme == "pipe":
            yield [FoundShard(name)]
        elif place.without_query.endswith("/"):
            yield list(_listed(name, "prefix", session))
        elif place.scheme not in _WEB and not _GLOB.isdisjoint(name):
            yield list(_listed(name, "pattern", session))
        else:
            yield [FoundShard(name)]


def _local(name: str, failed: dict[str, WidsError]) -> list[FoundShard]:
    path = os.path.abspath(Place(name).path)
    if os.path.isdir(path):
        before = len(failed)
        paths = _drop_excluded(path, _archives_in(path, failed))
        if not paths and len(failed) == before:
            if foreign := recognise_foreign(path):
                raise SpecError(f"{name}: {foreign}", path=path)
            indexes = [each for each in os.listdir(path) if each.endswith(_INDEXES)]
            advice = "; wids pack makes shards of other files" if os.listdir(path) else ""
            if indexes:
                advice = f"; for an index give its file, as {os.path.join(name, min(indexes))}"
                advice += f" (there are {shown_names(indexes)})" if len(indexes) > 1 else ""
            raise SpecError(f"{name}: there are no {SUFFIX} files in this directory{advice}", path=path)
    elif not os.path.lexists(path) and not _GLOB.isdisjoint(path):
        matches = glob.glob(path, recursive=True)
        files = [each for each in matches if not os.path.isdir(each)]
        paths = [each for each in files if not _is_beside(each, path)]
        for directory in sorted(set(matches).difference(files)):
            paths += _archives_in(directory, failed)
        if not paths:
            raise _no_match(name, files, _local_names(path), path=path)
    else:
        paths = [path]
    return [look_local(str(Place.of_path(each))) for each in sorted(dict.fromkeys(paths), key=urls.natural_key)]


def _drop_excluded(directory: str, paths: list[str]) -> list[str]:
    """The archives of a directory without those that Energon's files there exclude.

    Raises:
        SpecError: single samples are excluded, all shards are, or it is not known which.
    """
    kept = {os.path.relpath(path, directory): path for path in paths}
    for path in (os.path.join(directory, ".nv-meta", name) for name in energon.SPLITS):
        data = b""
        with contextlib.suppress(OSError), open(path, "rb") as file:
            data = file.read(_MAX_SPLIT_BYTES)
        if b"exclude" not in data:
            continue
        splits = energon.parse_splits(data, url=path)
        left = set(splits.drop_excluded(kept, kept)) if splits.exclude else set(kept)
        gone = [name for name in kept if name not in left]
        if gone:
            logger.warning(
                "%s: excludes %d of %d shards of this directory, which are left out: %s; a pattern, as %s, has all",
                *(path, len(gone), len(kept), shown_names(gone), os.path.join(directory, f"*{SUFFIX}")),
            )
        kept = {name: path for name, path in kept.items() if name in left}
        if not kept:
            raise SpecError(f"{path}: its owner excludes all {len(gone):,} shards", path="exclude", url=path)
    return list(kept.values())


def _local_names(pattern: str) -> list[str] | None:
    """The files in the last directory before the first star of a pattern; None: no such directory exists."""
    directory = os.path.dirname(pattern[: min(pattern.find(star) for star in _GLOB if star in pattern)])
    try:
        return os.listdir(directory)
    except OSError:
        return None


def _no_match(pattern: str, files: Sequence[str], names: Sequence[str] | None, *, path: str | None) -> SpecError:
    """The error for a pattern that matches no shards, but perhaps other files; ``names``: of the existing files."""
    if files:
        raise shards_are_indexes(pattern, [name for name in files if name.endswith(_INDEXES)] or files)
    advice = "; that directory does not exist" if names is None else "; the directory is empty"
    if names:
        advice = f"; the directory has {shown_names(names)}"
    return SpecError(f"{pattern}: no file has a name like this{advice}", path=path, url=pattern)


def shown_names(names: Iterable[str]) -> str:
    """The last parts of the first names, and the number of further names, for a message."""
    shown_parts = sorted({Place(name).name or name for name in names}, key=urls.natural_key)
    more = f" and {len(shown_parts) - _SHOWN:,} more" if len(shown_parts) > _SHOWN else ""
    return ", ".join(map(shown, shown_parts[:_SHOWN])) + more


def refuse_indexes(named: Sources, *, is_skipping: bool) -> None:
    """Refuse files with the name of an index, which are given in place of shards, or move them to those that failed.

    Raises:
        SpecError: there is one, and failures are not skipped.
    """
    way = "give the shards that it lists; wids index update reads them again, wids index merge makes one of several"
    for url in list(filter(_is_index, named.shards)):
        error = shards_are_indexes(url, [url], way=way)
        if not is_skipping:
            raise error
        del named.shards[url]
        named.failed[url] = error


def _is_index(name: str) -> bool:
    """True if a file is an index, by its name."""
    return Place(name).name.endswith(_INDEXES)


def shards_are_indexes(source: str, names: Sequence[str], *, way: str = _ALONE) -> SpecError:
    """The error for files that belong to shards, where shards are expected; ``way``: what to do with an index."""
    if not all(map(_is_index, names)):
        what = f"matches no shards, only files that belong to shards ({shown_names(names)})"
        return SpecError(f"{source}: {what}", path="shards", url=source)
    listed = "" if names == [source] else f": {shown_names(names)}"
    what = f"is an index, not a shard{listed}" if len(names) == 1 else f"names indexes, not shards{listed}"
    return SpecError(f"{source}: {what}; {way}", path="shards", url=source)


def _archives_in(root: str, failed: dict[str, WidsError]) -> list[str]:
    """The archives below a directory. Links to directories come last, so that those inside have their own names."""
    archives, todo, links = list[str](), [root], list[str]()
    seen: set[tuple[int, int]] = set()
    while todo or links:
        directory = todo.pop() if todo else links.pop(0)
        try:
            status = os.stat(directory)
            entries = sorted(os.scandir(directory), key=lambda entry: urls.natural_key(entry.name))
        except OSError as error:
            why = f"{directory}: this directory cannot be read ({error.strerror or error})"
            failed[directory] = FetchDeniedError(why, url=directory)
            continue
        if (status.st_dev, status.st_ino) in seen:  # links may form a circle
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            if _is_directory(entry):
                (links if entry.is_symlink() else todo).append(entry.path)
            elif is_archive(entry.name):
                archives.append(entry.path)
    return archives


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """True for a directory, and for a link to one; broken and circular links are none."""
    try:
        return entry.is_dir()
    except OSError as error:
        return error.errno != errno.ELOOP  # otherwise opening it raises the error


def _is_beside(name: str, pattern: str) -> bool:
    """True if a file belongs to shards, and the pattern does not name its kind, as ``*.parquet`` of `wids pack`."""
    return name.endswith(_BESIDE) and not (name.endswith(_ROWS) and pattern.endswith(_ROWS))


def is_archive(name: str) -> bool:
    """True if a file's name is that of an archive; hidden files are not shards (``._a.tar`` of macOS)."""
    return _ARCHIVE.fullmatch(name) is not None and not name.startswith(".")


def _listed(url: str, kind: str, session: Session) -> Iterator[FoundShard]:
    """The shards below a remote prefix, or those that match a pattern."""
    is_web = Place(url).scheme in _WEB
    listed = _list(url, kind, session)
    if kind == "pattern":
        names = [name for name in listed if name == url or not _is_beside(name, url)]
        if not names:
            raise _no_match(url, list(listed), _remote_names(url, session), path=None)
    else:
        names = [name for name in listed if is_archive(Place(name).name)]
    if not names:
        advice = f"; it has {shown_names(listed)}" if listed else ""
        advice += "; give the shards' names, as in 'https://host/train-{000000..000099}.tar'" if is_web else ""
        raise SpecError(f"{url}: there are no {SUFFIX} files at this {kind}{advice}", url=url)
    for name in sorted(names, key=urls.natural_key):
        info = listed[name]
        if info.get("type") != "directory":
            yield FoundShard(name, info.get("size"), mark_words(filesystems.version_of(info)[0]))


def _remote_names(pattern: str, session: Session) -> list[str] | None:
    """`_local_names` of a store; [] if it gives no listing."""
    head = pattern[: min(pattern.find(star) for star in _GLOB if star in pattern)]
    directory = head[: head.rfind("/") + 1]
    if schemes.find_listing(Place(pattern)) is not None:
        listed = _list(directory, "prefix", session)
        return [name.removeprefix(directory).partition("/")[0] for name in listed] if listed else None
    try:
        filesystem, name = filesystems.open_filesystem(directory, session)
        return [Place(path).name for path in filesystem.ls(name, detail=False)]
    except FileNotFoundError:
        return None
    except Exception:  # noqa: BLE001 - of any client: this is for a message alone
        return []


def list_names(url: str, is_wanted: Callable[[str], bool], session: Session) -> list[str]:
    """The files below a remote prefix, or of a pattern, whose last parts are wanted, in natural order.

    Raises:
        FetchError: it cannot be listed.
    """
    kind = "prefix" if _GLOB.isdisjoint(url) else "pattern"
    names = [name for name in _list(url, kind, session) if is_wanted(Place(name).name)]
    return sorted(names, key=urls.natural_key)


def _list(url: str, kind: str, session: Session) -> dict[str, Any]:
    """The files by name, with the properties of each in the listing."""
    place = Place(url)
    if (listing := schemes.find_listing(place)) is not None:
        files: dict[str, Any] = listing.list_files(url, session, is_pattern=kind == "pattern")
        return files

    def once() -> dict[str, Any]:
        filesystem, name = filesystems.open_filesystem(url, session)
        filesystem.invalidate_cache()
        if kind == "pattern":
            with contextlib.suppress(FileNotFoundError, PermissionError):  # as in a bucket with permission only to list
                info = filesystem.info(name)
                if info.get("type") != "directory":  # the name of an existing object may hold any letters
                    return {url: info}
            return {filesystem.unstrip_protocol(key): info for key, info in filesystem.glob(name, detail=True).items()}
        if place.scheme in _WEB:  # a page with links: only those of this directory, because links may form a circle
            return {info["name"]: {} for info in filesystem.ls(name, detail=True)}
        return {filesystem.unstrip_protocol(key): info for key, info in filesystem.find(name, detail=True).items()}

    def ask() -> None:
        filesystem, name = filesystems.open_filesystem(url, session, tries_once=True)
        with contextlib.suppress(FileNotFoundError, PermissionError):
            filesystem.info(name)

    if place.scheme not in _WEB and place.origin not in retrying.answered():
        # The client keeps its own retries, for the pages of a long listing; a missing store is reported before.
        retrying.try_repeatedly(ask, url=url, path=None, hooks=())
    return retrying.try_repeatedly(once, url=url, path=None, hooks=())


def recognise_foreign(path: str) -> str:
    """The kind of a local folder or file of another tool, and the way from it to shards, in words; "": nothing known.

    Args:
        path: a path. The index file of a dataset stands for its folder. A folder's own folders are looked at, too.
    """
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    if folder != path and os.path.basename(path) != "index.json":
        beside = os.path.splitext(path)[0] + ".idx"
        return foreign_data.words_of(map(os.path.basename, [path, *([beside] if os.path.exists(beside) else ())]))
    return next(
        (words for names in _names_in(folder, is_deep=folder == path) if (words := foreign_data.words_of(names))), ""
    )


def _names_in(folder: str, *, is_deep: bool) -> Iterable[list[str]]:
    """The names in a folder, then those in each of its folders."""
    try:
        with os.scandir(folder) as entries:
            listed = [entry for entry, _ in zip(entries, range(_MAX_NAMES), strict=False)]
    except OSError:  # who opens it says so
        return
    yield [entry.name for entry in listed if entry.name == "_versions" or not entry.is_dir()]
    for entry in listed if is_deep else ():
        if entry.is_dir() and not entry.name.startswith("."):
            yield from _names_in(entry.path, is_deep=False)
