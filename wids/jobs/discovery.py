"""From what a user names to the shards to be indexed: paths, directories, globs, brace patterns, URLs, prefixes.

Rules: each source gives its shards in natural order, sources stand as they were given, a shard that is named twice
comes once. What a listing says of a shard on the way (size, version) is kept, so that it is not asked for again.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import SpecError
from wids.index import urls, writing
from wids.transport import filesystems, retrying

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUFFIX = ".tar"
_GLOB = frozenset("*?[")


class Found(msgspec.Struct, frozen=True):
    """One shard.

    Attributes:
        url: a URL or an absolute path.
        size: bytes, or None where that is not known yet.
        mark: its version in words, as `mark_words` has it; None likewise.
    """

    url: str
    size: int | None = None
    mark: str | None = None


def find_shards(sources: Iterable[str], *, storage_options: dict[str, Any] | None = None) -> list[Found]:
    """The shards that the sources name, each once.

    Raises:
        SpecError: a pattern is malformed, or a directory, pattern or prefix holds no shards.
        FetchError: a remote one cannot be listed.
    """
    found: dict[str, Found] = {}
    for source in sources:
        for shard in _expand(source, storage_options):
            found.setdefault(shard.url, shard)
    return list(found.values())


def mark_words(mark: Any) -> str | None:
    """What tells versions of a shard apart, as text; None where nothing does."""
    if mark is None or isinstance(mark, str):
        return mark or None
    return " ".join(map(str, mark)) or None


def look_local(url: str) -> Found:
    """What a local shard is now; without size and mark where it cannot be asked."""
    try:
        facts = os.stat(urls.local_path(url))
    except (OSError, ValueError):  # also a name that no file can have
        return Found(url)
    return Found(url, facts.st_size, f"{facts.st_mtime_ns}")


def _expand(source: str, storage_options: dict[str, Any] | None) -> Iterator[Found]:
    if not urls.scheme_of(source) and os.path.exists(os.path.expanduser(source)):
        yield from _local(source)  # the name of an existing file may hold any letters
        return
    for name in urls.expand(source):
        if urls.is_local(name):
            yield from _local(name)
        elif urls.scheme_of(name) == "pipe":
            yield Found(name)
        elif urls.without_query(name).endswith("/"):
            yield from _listed(name, "prefix", storage_options)
        elif urls.scheme_of(name) not in ("http", "https") and not _GLOB.isdisjoint(name):
            yield from _listed(name, "pattern", storage_options)
        else:
            yield Found(name)


def _local(name: str) -> Iterator[Found]:
    path = os.path.abspath(os.path.expanduser(urls.local_path(name)))
    if os.path.isdir(path):
        paths = [os.path.join(at, file) for at, _, files in os.walk(path, onerror=_raise) for file in files]
        paths = [found for found in paths if found.endswith(SUFFIX) and not os.path.basename(found).startswith(".")]
        if not paths:
            raise SpecError(f"{name}: there are no {SUFFIX} files in this directory", path=path)
    elif not os.path.exists(path) and not _GLOB.isdisjoint(path):
        paths = [found for found in glob.glob(path, recursive=True) if os.path.isfile(found)]
        if not paths:
            raise SpecError(f"{name}: no file has a name like this", path=path)
    else:
        paths = [path]
    for found in sorted(paths, key=writing.natural_key):
        yield look_local(writing.writable(found))


def _raise(error: OSError) -> None:
    """A directory that cannot be read is not an empty one."""
    raise error


def _listed(url: str, kind: str, storage_options: dict[str, Any] | None) -> Iterator[Found]:
    """The shards below a remote prefix, or of the names that match a pattern."""
    is_web = urls.scheme_of(url) in ("http", "https")

    def once() -> dict[str, Any]:
        filesystem, name = filesystems.open_filesystem(url, storage_options)
        filesystem.invalidate_cache()
        if kind == "pattern":
            return {filesystem.unstrip_protocol(key): info for key, info in filesystem.glob(name, detail=True).items()}
        if is_web:  # a page with links: those of this directory, for links may lead in circles
            return {info["name"]: {} for info in filesystem.ls(name, detail=True)}
        return {filesystem.unstrip_protocol(key): info for key, info in filesystem.find(name, detail=True).items()}

    listed = retrying.try_repeatedly(once, url=url, path=None, hooks=())
    names = [name for name in listed if kind == "pattern" or urls.without_query(name).endswith(SUFFIX)]
    if not names:
        advice = "; give the shards' names, as in 'https://host/train-{000000..000099}.tar'" if is_web else ""
        raise SpecError(f"{url}: there are no {SUFFIX} files at this {kind}{advice}", url=url)
    for name in sorted(names, key=writing.natural_key):
        info = listed[name]
        if info.get("type") != "directory":
            yield Found(name, info.get("size"), mark_words(filesystems.version_of(info)[0]))
