"""URLs and paths of shards and indexes: split, join, name.

Rules: pure text, no ``~`` or working directory (whoever opens them resolves those). Only http(s) and ftp have a
query part: in a local or bucket name, ``?`` and ``#`` are letters. What a server signed is never re-quoted.
fsspec's chains (``simplecache::https://host/x``) are split behind their last ``::``.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import braceexpand

from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?=://)")
_WITH_QUERY = frozenset({"http", "https", "ftp", "ftps"})
_QUERY = re.compile(r"[?#]")
_LOCAL = frozenset({"", "file", "local"})
# Through these, fsspec reads local files, or files that the text behind the URL names.
_REACHES_LOCAL = _LOCAL | {"pipe", "asynclocal", "dvc", "generic", "git", "reference"}
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_NAME_TAIL = 80


def scheme_of(url: str) -> str:
    """The scheme in lower case; ``""`` for a plain path, ``"pipe"`` for ``pipe:command``."""
    if url.startswith("pipe:"):
        return "pipe"
    match = _SCHEME.match(url) if "://" in url else None
    return match[0].lower() if match else ""


def is_local(url: str) -> bool:
    """Whether the URL is a plain path or a ``file:`` URL on this machine."""
    return scheme_of(url) in _LOCAL and "::" not in url


def reaches_local(url: str) -> bool:
    """Whether opening this URL could touch local files or run a program, also anywhere in an ``a::b`` chain."""
    if scheme_of(url) == "pipe":
        return True
    *outer, last = url.split("::")
    # Before the last one, a part without a scheme is one: `simplecache::` is `simplecache://::`.
    schemes = [scheme_of(part) or part.lower() for part in outer]
    return not _REACHES_LOCAL.isdisjoint([*schemes, scheme_of(last)])


def local_path(url: str) -> str:
    """The path behind a local URL; a ``file:`` URL is unquoted, a path is taken as it stands."""
    scheme = scheme_of(url)
    if not scheme:
        return url
    path = url[len(scheme) + 3 :]
    path = path.removeprefix("localhost") if path.startswith("localhost/") else path
    return unquote(path, errors="surrogateescape")


def _split(url: str) -> tuple[str, str, str]:
    """(scheme and host with what separates them, path, query); joined they give the URL back."""
    scheme = scheme_of(url)
    if not scheme and "::" in url:
        wrappers, mark, wrapped = url.rpartition("::")
        head, path, query = _split(wrapped)
        return wrappers + mark + head, path, query
    if scheme == "pipe" or not scheme:
        return "", url, ""
    body = len(scheme) + 3
    cut = len(url)
    if scheme in _WITH_QUERY and (mark_at := _QUERY.search(url, body)):
        cut = mark_at.start()
    slash = url.find("/", body, cut)
    if slash < 0:
        slash = cut
    return url[:slash], url[slash:cut], url[cut:]


def without_query(url: str) -> str:
    """The URL up to its query."""
    head, path, _ = _split(url)
    return head + path


def host_of(url: str) -> str:
    """Host and port of a URL, or its bucket; "" where there is none."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def directory_of(url: str) -> str:
    """What relative URLs in a file at ``url`` are relative to: its directory, without query."""
    head, path, _ = _split(url)
    return head + posixpath.dirname(path)


def basename_of(url: str) -> str:
    """The last component of the path, without query."""
    return posixpath.basename(_split(url)[1].rstrip("/"))


def join(base: str | None, url: str) -> str:
    """Resolve ``url`` against the directory ``base``; an absolute ``url`` wins, ``..`` is folded.

    ``/x`` against a URL keeps its scheme and host, as a browser has it.
    """
    if not base or scheme_of(url) or url.startswith("~") or "::" in url:
        return url
    head, path, _ = _split(base)
    if not head:
        return url if url.startswith("/") else posixpath.normpath(posixpath.join(path, url))
    has_query = scheme_of(head.rpartition("::")[2]) in _WITH_QUERY
    if has_query and url.startswith("//"):
        return head.partition("//")[0] + url
    if url.startswith("/"):
        return head + url
    mark = _QUERY.search(url) if has_query else None
    cut = mark.start() if mark else len(url)
    path = f"{path}{'' if path.endswith('/') else '/'}{url[:cut]}"
    return head + (_fold(path) if "/." in path else path) + url[cut:]


def _fold(path: str) -> str:
    """Fold ``.`` and ``..`` in an absolute path. Unlike in a file system, ``a//b`` in a URL is not ``a/b``."""
    kept: list[str] = []
    for part in path.split("/"):
        if part != "..":
            kept += [part] if part != "." else []
        elif len(kept) > 1:
            kept.pop()
    return "/".join(kept)


def expand(pattern: str) -> Iterator[str]:
    """Expand a brace pattern such as ``train-{000000..000099}.tar``; other text gives itself.

    Raises:
        SpecError: the braces do not match.
    """
    if "{" not in pattern:
        yield pattern
        return
    try:
        yield from braceexpand.braceexpand(pattern)
    except ValueError as error:
        raise SpecError(f"brace pattern {pattern!r}: {error}; write it like 'train-{{000000..000099}}.tar'") from error


def cache_name(url: str, *, endpoint: str = "") -> str:
    """A file name for the shard at ``url``: a digest of the whole URL, then as much of its basename as fits.

    Two URLs never share a name, whatever their basenames, nor do two ``endpoint`` (servers for one scheme, where the
    URL does not say). The name is ASCII, of at most 120 bytes.
    """
    place = f"{endpoint}\n{url}" if endpoint else url
    digest = hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if scheme_of(url) == "pipe":
        return f"{digest}-pipe.tar"
    tail = _UNSAFE.sub("_", basename_of(url))[-_NAME_TAIL:]
    return f"{digest}-{tail or 'shard.tar'}"
