"""A URL or path of a shard or of another file, parsed once: its parts, its neighbours, its public form.

Pure. Only http(s) and ftp have a query part: in a local or bucket name, ``?``, ``#`` and ``%`` are letters. A signed
URL is never quoted again.
Relative URLs are names of files, also in an index below an http(s) URL: there, ``#``, and a ``%`` that quotes
nothing, are quoted, as is ``?`` if no query follows. ``%20`` stays, as a quoted letter. A text after
``name.ext?``, or of the form ``?key=``, is a query; but a text that begins with ``./`` is a literal name,
fully quoted. Below a ``file:`` URL each ``%`` is a letter, as below a path.
fsspec's chains (``simplecache::https://host/x``) are split behind their last ``::``; an http(s) URL is never one, nor
is a path with a slash before its first ``::``.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from wids.errors import InputError, shown, without_secrets

if TYPE_CHECKING:
    from os import PathLike

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?=://)")
_WITH_QUERY = frozenset({"http", "https", "ftp", "ftps"})
_QUERY = re.compile(r"[?#]")
_PARAMETER = re.compile(r"[^/?#=]*=")
# In a name: characters that end a URL's path, or a % that quotes nothing; characters with two possible meanings.
_UNQUOTED, _AMBIGUOUS = re.compile(r"[#?]|%(?![0-9A-Fa-f]{2})"), re.compile(r"\?|%[0-9A-Fa-f]{2}")
# The starts of a relative path that would be read as a home directory, a program, a chain or a URL.
_MISREAD = re.compile(r"~|pipe:|[^/]*::|[A-Za-z][A-Za-z0-9+.-]+://")
_SPECIAL, _QUOTED = re.compile(r"[#%?]"), re.compile(r"%(?:23|25|3[Ff])")
_LOCAL = frozenset({"", "file", "local"})
# Through these, fsspec reads local files, or files that the text behind the URL names.
_REACHES_LOCAL = _LOCAL | {"pipe", "asynclocal", "dvc", "generic", "git", "reference"}
# Their URLs name no server: the server is the service's own, or named in the options.
_SERVICES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hf", "oss": "oss", "memory": "memory"}
# The same, except for URLs that name the account (container@account.dfs.core.windows.net).
_AZURE = frozenset({"az", "abfs", "abfss", "adl"})
SERVICE_ORIGINS = frozenset({*(f"{name}://" for name in _SERVICES.values()), "az://"})
# Stricter than clients: a URL whose host they may parse differently has no host.
_HOST = re.compile(r"(?:[^@/?#\\\s]*@)?(\[[0-9A-Fa-f:.]+\]|[^@/?#\\\s:\[\]]+)(?::([0-9]{0,5}))?(?![^/?#])")
_PORTS = {"http": 80, "https": 443, "ftp": 21}
_PROTOCOL = re.compile(r"[A-Za-z0-9+._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_USER, _PASSWORD = re.compile(r"(?<=://)[^/]*@"), re.compile(r"(?<=://)([^/:@]*):[^/]*@")
_NAME_TAIL = 80
_ERRORS = "surrogateescape"


class Place:
    """The place of a file: an immutable value, equal to any other with the same text (`str`).

    Args:
        url: any URL that fsspec knows, ``pipe:command``, a path, or another place.
    """

    __slots__ = ("_directory", "_is_chain", "_parts", "_scheme", "_text")

    def __init__(self, url: str | PathLike[str] | Place) -> None:
        text = url if isinstance(url, str) else str(url) if isinstance(url, Place) else url.__fspath__()
        self._text, self._scheme, self._is_chain = text, "", False
        self._parts: tuple[str, str, str, str] | None = None
        self._directory: Place | None = None
        if ":" in text:
            self._scheme = _scheme_of(text)
            self._is_chain = "::" in text and self._scheme not in ("http", "https") and _starts_chain(text)

    @classmethod
    def of(cls, url: str | Place) -> Place:
        """The place itself, or that of a text."""
        return url if isinstance(url, Place) else cls(url)

    @classmethod
    def of_path(cls, path: str) -> Place:
        """The place of a local file, taken literally, even if its name looks like a URL or a chain."""
        if path.startswith("/"):
            return cls("file://" + quote(path, errors="surrogateescape") if "::" in path else path)
        return cls(f"./{path}" if _MISREAD.match(path) else path)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Place({self.public!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == str(other) if isinstance(other, Place) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def scheme(self) -> str:
        """The scheme in lower case; ``""`` for a plain path, ``"pipe"`` for ``pipe:command``."""
        return self._scheme

    @property
    def is_local(self) -> bool:
        """True for a plain path or a ``file:`` URL on this machine."""
        return self._scheme in _LOCAL and not self._is_chain

    @property
    def is_web(self) -> bool:
        """True if its names are quoted, as in http(s) URLs."""
        return _scheme_of(self._file) in _WITH_QUERY

    @property
    def reaches_local(self) -> bool:
        """True if opening it could touch local files or run a program, also anywhere in an ``a::b`` chain."""
        return not _REACHES_LOCAL.isdisjoint(self.schemes)

    @property
    def schemes(self) -> list[str]:
        """The scheme of each part of an ``a::b`` chain, or the only one, in lower case."""
        # In an http(s) URL, "::" is an IPv6 address, or text in a path or query.
        if self._scheme in ("pipe", "http", "https") or "::" not in self._text:
            return [self._scheme]
        *outer, last = self._text.split("::")
        # Before the last one, a part without a scheme is one: `simplecache::` is `simplecache://::`.
        return [*(_scheme_of(part) or part.lower() for part in outer), _scheme_of(last)]

    @property
    def path(self) -> str:
        """The path of a local file, ``~`` expanded, as it was given or absolute; a ``file:`` URL is unquoted."""
        path = self._text
        if self._scheme:
            path = path[len(self._scheme) + 3 :]
            path = unquote(path.removeprefix("localhost") if path.startswith("localhost/") else path, errors=_ERRORS)
        try:
            return posixpath.expanduser(path) if path.startswith("~") else path
        except ValueError:  # ~ before a name that no user has
            return path

    @property
    def absolute(self) -> Place:
        """A local path made absolute by the working directory; any other place unchanged."""
        return Place.of_path(posixpath.abspath(self.path)) if self.is_local else self

    @property
    def without_query(self) -> str:
        """Its text up to the query."""
        head, path, *_ = self._split()
        return head + path

    @property
    def public(self) -> str:
        """Its form in messages, logs and reports, without anything that may give access."""
        return without_secrets(self._text, self._text)

    @property
    def unsigned(self) -> str:
        """Its form in files for others: without ``user:password@`` and without a query, which may be a signature.

        A query stays if it names the file (``get?name=3.tar``), that is, if no extension precedes it. A user stays,
        without the password, if it is part of the place (``sftp://user@host/``, ``abfs://container@account/``).
        """
        head, path, query, scheme = self._split()
        is_token = scheme in _WITH_QUERY or scheme in _SERVICES
        head = _USER.sub("", head) if is_token else _PASSWORD.sub(r"\1@", head)
        return head + path + ("" if "." in posixpath.basename(path) else query)

    @property
    def host(self) -> str:
        """Host and port, or the bucket; "" if it has none."""
        return self._text.partition("://")[2].partition("/")[0].rpartition("@")[2]

    @property
    def origin(self) -> str:
        """The receiver of requests for it: scheme, host and port; ``s3://`` and the like if the URL names no server.

        A chain has that of its last part. "" for a local path, a program, or a host that clients may parse differently.
        """
        if self._is_chain:
            return Place(self._file).origin
        if self._scheme == "pipe" or self.is_local:
            return ""
        rest = self._text[len(self._scheme) + 3 :]
        if self._scheme in _SERVICES or not rest or rest[0] == "/":
            return f"{_SERVICES.get(self._scheme, self._scheme)}://"
        match = _HOST.match(rest)
        if match is None:
            return ""
        host, port = match[1].lower(), match[2]
        if self._scheme in _AZURE:
            return f"az://{host}" if "." in host else "az://"
        is_usual = not port or int(port) == _PORTS.get(self._scheme)
        return f"{self._scheme}://{host}" if is_usual else f"{self._scheme}://{host}:{int(port)}"

    @property
    def origins(self) -> list[str]:
        """The `origin` of a URL, if any, or the origins of all parts of a chain."""
        parts = [Place(part) for part in self._text.split("::") if "://" in part] if self._is_chain else [self]
        return [origin for origin in (part.origin for part in parts) if origin]

    @property
    def directory(self) -> Place:
        """The base of relative URLs in this file: its directory, without query."""
        if self._directory is None:
            head, path, *_ = self._split()
            self._directory = Place(head + posixpath.dirname(path))
        return self._directory

    @property
    def name(self) -> str:
        """The last component of the path, without query."""
        return posixpath.basename(self._split()[1].rstrip("/"))

    def join(self, name: str) -> Place:
        """The place of a name in this directory; an absolute URL or path replaces it, ``..`` is folded, "" is no step.

        ``/x`` joined to a URL keeps its scheme and host, as in a browser.
        """
        joined = Place(name)
        if not name:
            return self
        if not self._text or joined.scheme or not joined.is_local or name.startswith("~"):
            return joined
        head, path, _, scheme = self._split()
        if not head:
            is_spelt = name.startswith("./") or (self._text.startswith("./") and not name.startswith("../"))
            path = name if name.startswith("/") else posixpath.normpath(posixpath.join(path, name))
            return Place(f"./{path}" if is_spelt and _MISREAD.match(path) else path)
        has_query = scheme in _WITH_QUERY
        if has_query and name.startswith("//"):
            return Place(head.partition("//")[0] + name)
        query, is_root = "", name.startswith("/")
        if has_query and _SPECIAL.search(name):
            name, query = _quote_name(name)
        elif scheme in _LOCAL:  # whose path is unquoted
            name = name.replace("%", "%25").replace("::", "%3A%3A")
        if is_root:
            return Place(head + name + query)
        path = f"{path}{'' if path.endswith('/') else '/'}{name}"
        return Place(head + (_fold(path) if "/." in path else path) + query)

    def below(self, home: str | None) -> str:
        """The rest of its text after the directory ``home``; "" if it is not below ``home``."""
        if not home:
            return ""
        full = self.path if self._text.startswith("file:///") and home.startswith("/") else self._text
        name = full.removeprefix(home if home.endswith("/") else home + "/")
        return "" if name == full else name

    def cache_name(self, *, endpoint: str = "") -> str:
        """A file name for the shard here: a digest of the whole text, then as much of its `name` as fits.

        Two URLs never share a name, even with the same basename; nor do two ``endpoint`` (servers for one scheme, if
        the URL names none). The name is ASCII, with at most 120 bytes.
        """
        text = f"{endpoint}\n{self._text}" if endpoint else self._text
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if self._scheme == "pipe":
            return f"{digest}-pipe.tar"
        tail = _UNSAFE.sub("_", self.name)[-_NAME_TAIL:]
        return f"{digest}-{tail or 'shard.tar'}"

    @property
    def _file(self) -> str:
        """The last part of a chain, which names the file, or the whole text."""
        return self._text.rpartition("::")[2] if self._is_chain else self._text

    def _split(self) -> tuple[str, str, str, str]:
        """(scheme and host with their separator, path, query, scheme of the file): the first three are the text."""
        if self._parts is None:
            file = self._file if not self._scheme else self._text
            head, path, query = _split(file)
            head = self._text.removesuffix(file) + head
            self._parts = head, path, query, _scheme_of(head.rpartition("::")[2] if self._is_chain else head)
        return self._parts


def _scheme_of(text: str) -> str:
    if text.startswith("pipe:"):
        return "pipe"
    match = _SCHEME.match(text) if "://" in text else None
    return match[0].lower() if match else ""


def _starts_chain(text: str) -> bool:
    first = text.partition("::")[0]
    return "://" in first or _PROTOCOL.fullmatch(first) is not None


def _split(url: str) -> tuple[str, str, str]:
    scheme = _scheme_of(url)
    if scheme == "pipe" or not scheme:
        return "", url, ""
    body, cut = len(scheme) + 3, len(url)
    if scheme in _WITH_QUERY and (mark_at := _QUERY.search(url, body)):
        cut = mark_at.start()
    slash = url.find("/", body, cut)
    slash = cut if slash < 0 else slash
    return url[:slash], url[slash:cut], url[cut:]


def _quote_name(name: str) -> tuple[str, str]:
    """(path, query) of a relative URL below an http(s) one; see above."""
    if name.startswith("./"):
        return _SPECIAL.sub(_percent, name), ""
    cut = name.find("?")
    while cut >= 0 and "." not in name[name.rfind("/", 0, cut) + 1 : cut] and not _PARAMETER.match(name, cut + 1):
        cut = name.find("?", cut + 1)
    cut = len(name) if cut < 0 else cut
    return _UNQUOTED.sub(_percent, name[:cut]), name[cut:]


def _percent(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def _fold(path: str) -> str:
    """Fold ``.`` and ``..`` in an absolute path. Unlike in a file system, ``a//b`` in a URL is not ``a/b``."""
    kept: list[str] = []
    for part in path.split("/"):
        if part != "..":
            kept += [part] if part != "." else []
        elif len(kept) > 1:
            kept.pop()
    return "/".join(kept)


def cache_directory(path: str | PathLike[str]) -> str:
    """The path of a cache directory, ``~`` expanded.

    Args:
        path: a path or a ``file:`` URL.

    Raises:
        InputError: it is another URL.
    """
    place = Place(path)
    if "://" in str(place) and not place.is_local:
        why = "it must be a directory of this machine, not a URL; where none is given, it is $WIDS_CACHE"
        raise InputError(f"cache_dir is {shown(place.public)}; {why}")
    return place.path


def relative_name(name: str) -> str:
    """The name of a file relative to an index, valid on a disk and below an http(s) URL."""
    return f"./{name}" if _AMBIGUOUS.search(name) and not name.startswith("./") else name


def plain_name(name: str) -> str:
    """A part of an http(s) URL's path as it was before `Place.join` quoted it."""
    return _QUOTED.sub(lambda match: unquote(match[0]), name) if "%" in name else name
