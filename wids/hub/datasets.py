"""Opens data sets of the Hub by name: the shards of a split, and their counts, which are kept for the commit.

Beside these, the functions that `wids.core.transport.schemes` looks for: names, and the files of a repository by prefix
or pattern.
"""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.files import system
from wids.core.files.json_text import JsonParser
from wids.core.files.shared_files import SharedFiles
from wids.core.index.discovery import FoundShard, is_archive, shown_names
from wids.core.index.shardlist import Row, ShardListBuilder
from wids.core.place import Place
from wids.core.transport.download import read_bytes
from wids.errors import shown
from wids.events import REPORTED, logger
from wids.hub import repository, source
from wids.hub.patterns import Glob
from wids.hub.repository import Named, parse_name, with_split

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.index.shardlist import ShardList
    from wids.core.transport.session import Session

__all__ = ["find_shards", "list_files", "load_named", "open_split", "parse_name", "with_split"]
_SHOWN = 3  # names in a message
_READ = 16
_READS_AT_A_TIME = 16


class NamedSplit(NamedTuple):
    """A split of a data set.

    Attributes:
        named: the data set.
        commit: its commit.
        files: path -> bytes, of all files of the repository.
        read: returns the bytes of a file; it keeps the last few, which several callers may need.
        found: the shards.
        split: their paths, and the other splits.
    """

    named: Named
    commit: str
    files: dict[str, int]
    read: Callable[[str], bytes]
    found: list[FoundShard]
    split: repository.RepositorySplit


class _KeptSplit(msgspec.Struct, frozen=True):
    """A split: its shards (path, count or -1, bytes), the other splits, and notes for the user."""

    split: str
    shards: list[tuple[str, int, int]]
    others: dict[str, int]
    notes: list[str]


_SPLITS = JsonParser(_KeptSplit)


def open_split(name: str, session: Session) -> NamedSplit:
    """The shards of a split, in order, and its other splits.

    Args:
        name: of the data set and the split.
        session: opens URLs.

    Raises:
        SpecError: none exist. FetchError: the request to the Hub failed.
    """
    named = _parse(name)
    listing = source.list_files(named.root, session)
    files = {path: file.size for path, file in listing.files.items()}
    read = functools.lru_cache(_READ)(
        lambda path: read_bytes(f"{named.root}/{path}", session=session, max_bytes=repository.MAX_BYTES)
    )
    split = repository.find_split(files, filter(is_archive, files), read, split=named.split, name=name)
    if split.left:
        more = f" and {len(split.left) - _SHOWN:,} more" if len(split.left) > _SHOWN else ""
        words = ", ".join(map(shown, split.left[:_SHOWN])) + more
        left = f"{name}: {len(split.left):,} .tar files belong to no split: {words}"
        split = split._replace(notes=[*split.notes, left])
    for note in split.notes:
        logger.warning("%s", note)
    found = [FoundShard(f"{named.root}/{path}", files[path], listing.files[path].tag or None) for path in split.shards]
    return NamedSplit(named, listing.commit, files, read, found, split)


def find_shards(name: str, session: Session) -> list[FoundShard]:
    """The shards of a data set's split, by its name; see `open_split`."""
    return open_split(name, session).found


def load_named(name: str, *, session: Session, cache_dir: str) -> ShardList:
    """The shards of a split of a data set, with the counts from its files.

    The counts are kept for the commit in the cache directory. A shard without a count is counted by the process that
    opens the list.

    Args:
        name: of the data set and the split.
        session: opens URLs.
        cache_dir: keeps the counts.

    Raises:
        SpecError: none exist. FetchError: the request to the Hub failed.
    """
    named, made = _parse(name), list[_KeptSplit]()
    commit = source.list_files(named.root, session).commit

    def make(_: str, fd: int) -> None:
        made[:] = [_count(name, session)]
        system.write_all(fd, msgspec.json.encode(made[0]), 0)

    key = hashlib.sha256(repr((source.locate(Place(named.root), session), commit, *named[1:])).encode())
    found = SharedFiles(cache_dir, ".split").get(key.hexdigest(), make, lambda file: _SPLITS.parse(file.data))
    found = found or (made[0] if made else _count(name, session))
    for note in found.notes if not made else ():  # another process has logged the test data that are in this one, too
        logger.warning("%s", note)
    builder = ShardListBuilder()
    for path, nsamples, size in found.shards:
        url = f"{named.root}/{path}"
        builder.append(url, Row(url=url, nsamples=nsamples, filesize=size), {})
    others = [f"other splits: {_name_splits(found.others)}"] if found.others else []
    title = f"{named.root.removeprefix('hf://datasets/')} {found.split}"
    return builder.build({"name": title, "info": "; ".join([f"commit {commit}", *others])})


def list_files(url: str, session: Session, *, is_pattern: bool) -> dict[str, dict[str, Any]]:
    """The files below a folder, or those that match a pattern, with size and version.

    Raises:
        FetchError: the repository cannot be listed.
    """
    where = source.find(url, session)
    root = url.rstrip("/").removesuffix(where.path).rstrip("/")
    files = source.list_files(url, session).files
    home = f"{where.path}/" if where.path else ""
    is_wanted = Glob(where.path).matches if is_pattern else lambda path: path.startswith(home)
    names = [where.path] if where.path in files else list(filter(is_wanted, files))
    return {f"{root}/{path}": {"size": files[path].size, "etag": files[path].tag} for path in names}


def _parse(name: str) -> Named:
    named = parse_name(name)
    if named is None:
        raise ValueError(f"{name}: is not the name of a data set")
    return named


def _count(name: str, session: Session) -> _KeptSplit:
    """The shards of a split, with the counts in the repository; a warning names what lacks them."""
    named, _, files, read, found, split = open_split(name, session)
    with ThreadPoolExecutor(_READS_AT_A_TIME, "wids-hub") as pool:
        counts = repository.find_counts(files, split, read, name=name, each=pool.map)
    logger.info(
        "%s: split %s: %d shards, %d of them with counts from %s; other splits: %s",
        *(name, split.name, len(found), len(counts.nsamples), shown_names(counts.sources) or "no file"),
        _name_splits(split.others) or "none",
    )
    if missing := len(found) - len(counts.nsamples):
        logger.warning(
            "%s: the repository has no sample counts of %d of %d shards of the split %s; a user with write access "
            "can publish an index with them: wids index create '%s' --upload",
            *(name, missing, len(found), split.name, named._replace(split=split.name).text),
            extra=REPORTED,
        )
    shards = [(path, counts.nsamples.get(path, -1), files[path]) for path in split.shards]
    return _KeptSplit(split.name, shards, split.others, list(split.notes))


def _name_splits(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count:,} shards)" for name, count in counts.items())
