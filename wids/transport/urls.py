"""URLs and paths of shards and indexes: split, join, name.

Pure text, without ``~`` or working directory (the code that opens a path resolves those). Only http(s) and ftp have a
query part: in a local or bucket name, ``?``, ``#`` and ``%`` are letters. A signed URL is never quoted again.
Relative URLs are names of files, also where the index lies below an http(s) URL: ``#``, and a ``%`` that quotes
nothing, are quoted there, as is ``?`` where no query follows. ``%20`` is left as it is, a quoted letter, and what
follows ``name.ext?`` or looks like ``?key=`` is a query; but what begins with ``./`` is a name letter by letter, all
quoted. Below a ``file:`` URL each ``%`` is a letter, as below a path.
fsspec's chains (``simplecache::https://host/x``) are split behind their last ``::``; an http(s) URL is never one, nor
is a path with a slash before its first ``::``.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import braceexpand

from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# More shards than this come of an index that multiplies itself, or of a brace pattern with a slip in it.
MAX_SHARDS = 1 << 22

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?=://)")
_WITH_QUERY = frozenset({"http", "https", "ftp", "ftps"})
_QUERY = re.compile(r"[?#]")
_PARAMETER = re.compile(r"[^/?#=]*=")
# Of a name: what ends a URL's path, or quotes nothing; what could be meant in two ways; what stands for the first.
_UNQUOTED, _AMBIGUOUS = re.compile(r"[#?]|%(?![0-9A-Fa-f]{2})"), re.compile(r"\?|%[0-9A-Fa-f]{2}")
# Of a relative path: what would be read as a home directory, a program or a chain.
_MISREAD = re.compile(r"~|pipe:|[^/]*::")
_SPECIAL, _QUOTED = re.compile(r"[#%?]"), re.compile(r"%(?:23|25|3[Ff])")
_LOCAL = frozenset({"", "file", "local"})
# Through these, fsspec reads local files, or files that the text behind the URL names.
_REACHES_LOCAL = _LOCAL | {"pipe", "asynclocal", "dvc", "generic", "git", "reference"}
# Their URLs name no server: that is the service's own, or one of the options.
_SERVICES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf", "oss": "oss", "memory": "memory"}
# Likewise, but for URLs that name the account (container@account.dfs.core.windows.net).
_AZURE = frozenset({"az", "abfs", "abfss", "adl"})
_SERVICE_ORIGINS = frozenset({*(f"{name}://" for name in _SERVICES.values()), "az://"})
# Stricter than what clients read: where they could differ about the host, there is none.
_HOST = re.compile(r"(?:[^@/?#\\\s]*@)?(\[[0-9A-Fa-f:.]+\]|[^@/?#\\\s:\[\]]+)(?::([0-9]{0,5}))?(?![^/?#])")
_PORTS = {"http": 80, "https": 443, "ftp": 21}
_MAX_BRACE_DEPTH = 50
_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.-?([0-9]+))?")
_LETTERS = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?[0-9]+)?")
_MAX_DIGITS, _MAX_SHOWN = 18, 200
_PROTOCOL = re.compile(r"[A-Za-z0-9+._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_USER, _PASSWORD = re.compile(r"(?<=://)[^/]*@"), re.compile(r"(?<=://)([^/:@]*):[^/]*@")
_NAME_TAIL = 80
_INTEGER = re.compile(r"(\d+)")


def scheme_of(url: str) -> str:
    """The scheme in lower case; ``""`` for a plain path, ``"pipe"`` for ``pipe:command``."""
    if url.startswith("pipe:"):
        return "pipe"
    match = _SCHEME.match(url) if "://" in url else None
    return match[0].lower() if match else ""


def is_local(url: str) -> bool:
    """Whether the URL is a plain path or a ``file:`` URL on this machine."""
    return scheme_of(url) in _LOCAL and not _is_chain(url)


def _is_chain(url: str) -> bool:
    first, mark, _ = url.partition("::")
    if not mark or scheme_of(url) in ("http", "https"):
        return False
    return "://" in first or _PROTOCOL.fullmatch(first) is not None


def reaches_local(url: str) -> bool:
    """Whether opening this URL could touch local files or run a program, also anywhere in an ``a::b`` chain."""
    if scheme_of(url) == "pipe":
        return True
    if scheme_of(url) in ("http", "https"):  # "::" is an IPv6 address, or text in a path or query
        return False
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
    if not scheme and _is_chain(url):
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


def without_access(url: str) -> str:
    """The URL without what may give access to it: ``user:password@``, and a query, as those that are signed.

    A query stays where it names the file (``get?name=3.tar``), that is, where there is no extension before it; and a
    user without the password where it is part of the place (``sftp://user@host/``, ``abfs://container@account/``).
    """
    head, path, query = _split(url)
    scheme = _scheme_behind(head)
    is_token = scheme in _WITH_QUERY or scheme in _SERVICES
    head = _USER.sub("", head) if is_token else _PASSWORD.sub(r"\1@", head)
    return head + path + ("" if "." in posixpath.basename(path) else query)


def host_of(url: str) -> str:
    """Host and port of a URL, or its bucket; "" where there is none."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def origin_of(url: str) -> str:
    """Whom a request for this URL goes to: scheme, host and port; ``s3://`` and the like where the URL names no server.

    Of a chain, the last part's; "" for a local path, a program, or a host that clients could read in several ways.
    """
    scheme = scheme_of(url)
    if _is_chain(url):
        return origin_of(url.rpartition("::")[2])
    if scheme == "pipe" or is_local(url):
        return ""
    rest = url[len(scheme) + 3 :]
    if scheme in _SERVICES or not rest or rest[0] == "/":
        return f"{_SERVICES.get(scheme, scheme)}://"
    found = _HOST.match(rest)
    if found is None:
        return ""
    host, port = found[1].lower(), found[2]
    if scheme in _AZURE:
        return f"az://{host}" if "." in host else "az://"
    is_usual = not port or int(port) == _PORTS.get(scheme)
    return f"{scheme}://{host}" if is_usual else f"{scheme}://{host}:{int(port)}"


def origins_of(url: str) -> list[str]:
    """The `origin_of` a URL that has one, or those of all parts of a chain."""
    parts = [part for part in url.split("::") if "://" in part] if _is_chain(url) else [url]
    return [origin for origin in map(origin_of, parts) if origin]


def options_for(url: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of ``storage_options`` that hold for a URL.

    A key that is a URL itself (``"https://cdn.example.com"``) holds the options of that server, all of them; the other
    keys hold everywhere else.

    Raises:
        ValueError: the options of a server are no dict.
    """
    general, servers = _split_options(options)
    if not servers:
        return general
    found = [servers.get(origin) for origin in origins_of(url)]
    if found and found[0] is not None and found.count(found[0]) == len(found):
        return dict(found[0])
    return general


def narrow_options(options: Mapping[str, Any] | None, origins: Iterable[str]) -> dict[str, Any] | None:
    """``storage_options`` that hold for these servers, and for those they name, and nowhere else.

    Whom a bucket's URL goes to is not for the URL to say, so there they hold as well.
    """
    general, servers = _split_options(options)
    if not general:
        return None if options is None else dict(options)
    return {**{origin: general for origin in {*origins, *_SERVICE_ORIGINS} if origin}, **servers}


def _split_options(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    general: dict[str, Any] = {}
    servers: dict[str, dict[str, Any]] = {}
    for key, value in (options or {}).items():
        if "://" not in key:
            general[key] = value
        elif isinstance(value, dict):
            servers[origin_of(key)] = value
        else:
            raise ValueError(f"storage_options[{origin_of(key)!r}] is no dict; it holds the options of that server")
    return general, servers


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
    if not base or scheme_of(url) or url.startswith("~") or _is_chain(url):
        return url
    head, path, _ = _split(base)
    if not head:
        if url.startswith("/"):
            return url
        path = posixpath.normpath(posixpath.join(path, url))
        return f"./{path}" if url.startswith("./") and _MISREAD.match(path) else path
    scheme = _scheme_behind(head)
    has_query = scheme in _WITH_QUERY
    if has_query and url.startswith("//"):
        return head.partition("//")[0] + url
    name, query = url, ""
    if has_query and _SPECIAL.search(url):
        name, query = _quote_name(url)
    elif scheme in _LOCAL:  # whose path is unquoted
        name = url.replace("%", "%25").replace("::", "%3A%3A")
    if url.startswith("/"):
        return head + name + query
    path = f"{path}{'' if path.endswith('/') else '/'}{name}"
    return head + (_fold(path) if "/." in path else path) + query


def _quote_name(name: str) -> tuple[str, str]:
    """(path, query) of a relative URL below an http(s) one; see above."""
    if name.startswith("./"):
        return _SPECIAL.sub(_percent, name), ""
    cut = name.find("?")
    while cut >= 0 and "." not in name[name.rfind("/", 0, cut) + 1 : cut] and not _PARAMETER.match(name, cut + 1):
        cut = name.find("?", cut + 1)
    cut = len(name) if cut < 0 else cut
    return _UNQUOTED.sub(_percent, name[:cut]), name[cut:]


def _percent(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def relative_name(name: str) -> str:
    """The name of a file below an index, as the index holds it: the same file on a disk and below an http(s) URL."""
    return f"./{name}" if _AMBIGUOUS.search(name) and not name.startswith("./") else name


def is_web(url: str) -> bool:
    """Whether letters of names are quoted in this URL, as in http(s) ones."""
    return _scheme_behind(url) in _WITH_QUERY


def _scheme_behind(url: str) -> str:
    """The scheme of a URL, or of the last one of a chain."""
    return scheme_of(url.rpartition("::")[2] if _is_chain(url) else url)


def plain_name(name: str) -> str:
    """A part of an http(s) URL's path as it was before `join` quoted it."""
    return _QUOTED.sub(lambda found: unquote(found[0]), name) if "%" in name else name


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
        SpecError: the braces do not match, or stand for more shards than a dataset may have.
    """
    if "{" not in pattern:
        yield pattern
        return
    shown = repr(pattern if len(pattern) <= _MAX_SHOWN else f"{pattern[:_MAX_SHOWN]}...")
    try:
        if _count(pattern) > MAX_SHARDS:
            raise SpecError(f"brace pattern {shown}: it stands for more than {MAX_SHARDS:,} names; correct its numbers")
        yield from braceexpand.braceexpand(pattern)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"brace pattern {shown}: {error}; write it like 'train-{{000000..000099}}.tar'") from error


def _count(pattern: str) -> int:
    """How many names a brace pattern stands for, or something more than `MAX_SHARDS`; nothing is expanded.

    Raises:
        ValueError: the braces do not match, or are nested too deeply to be expanded.
    """
    # Of each brace that is open: where it began, names of the alternatives before the last comma, of the one since.
    stack = [[-1, 0, 1]]
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "{":
            stack.append([at, 0, 1])
            if len(stack) > _MAX_BRACE_DEPTH:
                raise ValueError(f"braces within more than {_MAX_BRACE_DEPTH} others")
        elif letter == "," and len(stack) > 1:
            stack[-1][1:] = [stack[-1][1] + stack[-1][2], 1]
        elif letter == "}":
            start, before, last = stack.pop()
            if not stack:
                raise ValueError("unbalanced braces")
            count = _count_range(pattern[start + 1 : at]) or before + last
            stack[-1][2] = min(stack[-1][2] * count, MAX_SHARDS + 1)
        at += 1
    if len(stack) > 1:
        raise ValueError("unbalanced braces")
    return stack[0][2]


def _count_range(text: str) -> int:
    """How many values a range has, as it stands between braces; 0 if it is none."""
    if _LETTERS.fullmatch(text):
        return 52
    found = _NUMBERS.fullmatch(text)
    if found is None:
        return 0
    if max(len(part or "") for part in found.groups()) > _MAX_DIGITS:
        return MAX_SHARDS + 1
    return abs(int(found[2]) - int(found[1])) // (int(found[3] or 1) or 1) + 1


def cache_name(url: str, *, endpoint: str = "") -> str:
    """A file name for the shard at ``url``: a digest of the whole URL, then as much of its basename as fits.

    Two URLs never share a name, even of one basename, nor do two ``endpoint`` (servers for one scheme, where the
    URL does not say). The name is ASCII, of at most 120 bytes.
    """
    place = f"{endpoint}\n{url}" if endpoint else url
    digest = hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if scheme_of(url) == "pipe":
        return f"{digest}-pipe.tar"
    tail = _UNSAFE.sub("_", basename_of(url))[-_NAME_TAIL:]
    return f"{digest}-{tail or 'shard.tar'}"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts names as people do: ``s2.tar`` before ``s10.tar``."""
    parts = _INTEGER.split(name)
    return [(0, int(part), part) if k % 2 else (1, 0, part) for k, part in enumerate(parts)]


def name_below(place: str, home: str | None) -> str:
    """What of ``place`` is behind ``home``; "" where it does not lie below it."""
    if not home:
        return ""
    full = local_path(place) if place.startswith("file:///") and home.startswith("/") else place
    name = full.removeprefix(home if home.endswith("/") else home + "/")
    return "" if name == full else name


def writable(place: str) -> str:
    """An absolute path as an index can hold it: one that would be read as a chain of URLs becomes a ``file:`` URL."""
    return "file://" + quote(place) if place.startswith("/") and "::" in place else place


def endpoint_of(url: str, storage_options: dict[str, Any] | None) -> str:
    """The server that options name: one bucket and key may stand for two shards on two of them."""
    options = options_for(url, storage_options)
    client = options.get("client_kwargs") or {}
    return str(options.get("endpoint_url") or client.get("endpoint_url") or options.get("host") or "")
