"""Files of the Hugging Face Hub, over the HTTP source of wids: repositories at one commit each, and buckets.

The revision of a repository is resolved to a commit once. A run passes the commit to the processes that it starts;
other processes of the machine find it in the cache directory for a minute. A commit's files are listed once (paged).
The listing is kept in the cache directory, and has sizes, versions and sha256 without a request for a file. The URL of
a file redirects to another server, with a signature that expires; a process uses the redirect until it is refused. Only
the Hub gets the token. After a 429, no thread of the process sends requests to that part of the Hub for the stated
time. With ``HF_HUB_OFFLINE``, no request is sent, and kept data are used at any age.

huggingface_hub has the session, the token and the errors of requests to the API. Pages, time limits and pauses are
here: its own listings have no time limit, and sleep after a 429 where nobody can interrupt them.

    .wids/indexes/KEY.pin, KEY.hub      a revision's commit and the time of its request; the files of a commit
    .wids/indexes/KEY.file              an index, or another small file that is read completely
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import threading
import time
import weakref
from concurrent import futures
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urljoin

import msgspec

from wids import __version__
from wids.core.files import forks, system
from wids.core.files.json_text import JsonParser
from wids.core.files.own_folder import default_cache_dir
from wids.core.files.shared_files import SharedFile, SharedFiles
from wids.core.place import Place
from wids.core.transport import filesystems, retrying
from wids.core.transport.failures import PausedError, find_retry_after, is_transient
from wids.core.transport.http import HttpSource
from wids.core.transport.schemes import KnownFile
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.source import HEAD, Stat, parse_tag
from wids.errors import (
    DependencyError,
    FetchDeniedError,
    FetchError,
    InputError,
    JsonError,
    ShardNotFoundError,
    TooLongError,
    UnreachableError,
    WidsError,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wids.core.transport.http import Answer
    from wids.core.transport.source import ByteSource, Precedence
    from wids.core.transport.spans import Span

T = TypeVar("T")

_HUB = "https://huggingface.co"
_WORDS = {"datasets": "data set", "models": "model", "spaces": "space", "kernels": "kernel", "buckets": "bucket"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Revisions whose slashes need no quoting.
_SPECIAL = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)")
_WEB = re.compile(r"/(?:(datasets|spaces|kernels|buckets)/)?([^/]+/[^/]+)/resolve/(.+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_HOPS = 5
_MAX_PAUSE_SECONDS = 3600.0  # longer than any retry budget
_MAX_FILE_BYTES = 1 << 62
_MAX_PAGES = 10_000  # of a listing
# Storage options with credentials, only for the Hub. The others also hold for the servers that it redirects to.
_OWN_OPTIONS = frozenset({"headers", "cookies", "auth", "token", "endpoint"})
# Of stores, for a signature that has ended.
_EXPIRED = frozenset({400, 401, 403, 410})


class HubLimits(NamedTuple):
    """Times for which answers of the Hub are used. Tests replace the default.

    Attributes:
        pin_seconds: a new process uses a commit that another process of this machine requested at most so long ago.
        target_seconds: a redirect is used without a new request, unless the store refuses it.
    """

    pin_seconds: float = 60.0
    target_seconds: float = 3600.0


LIMITS = HubLimits()


class HubPlace(NamedTuple):
    """The place of a file of the Hub.

    Attributes:
        endpoint: the Hub's URL, without a slash at its end.
        kind: "datasets", "models", "spaces", "kernels" or "buckets".
        repository: ORG/NAME.
        revision: a branch, tag or commit; "" for the default, and of buckets.
        path: of the file in the repository.
    """

    endpoint: str
    kind: str
    repository: str
    revision: str
    path: str

    @property
    def page(self) -> str:
        """The web page of the repository."""
        return f"{self.endpoint}/{'' if self.kind == 'models' else self.kind + '/'}{quote(self.repository)}"

    @property
    def api(self) -> str:
        """The repository's URL in the Hub's API."""
        return f"{self.endpoint}/api/{self.kind}/{quote(self.repository)}"


class HubListing(NamedTuple):
    """All files of a repository at one commit, or of a bucket.

    Attributes:
        commit: "" of a bucket.
        files: path -> its entry.
    """

    commit: str
    files: dict[str, KnownFile]


def locate(place: Place, session: Session = PLAIN) -> HubPlace | None:
    """Parse a place on the Hub: ``hf://`` URLs, and the Hub's ``.../resolve/REVISION/PATH``; None: it is elsewhere.

    Raises:
        ShardNotFoundError: an ``hf://`` URL names no repository.
    """
    if place.scheme == "hf":
        return _parse(place, str(session.options_for(place).get("endpoint") or _endpoint()).rstrip("/"))
    if place.scheme in ("http", "https") and "/resolve/" in str(place):
        for endpoint in {_endpoint(), _HUB}:
            text = place.without_query
            if text.startswith(endpoint + "/") and (found := _WEB.fullmatch(text[len(endpoint) :])):
                kind, repository, rest = found[1] or "models", unquote(found[2]), found[3]
                if kind == "buckets":
                    return HubPlace(endpoint, kind, repository, "", unquote(rest))
                revision, path = _split_revision(rest)
                return HubPlace(endpoint, kind, repository, revision, unquote(path)) if path else None
    return None


def find(url: str, session: Session = PLAIN) -> HubPlace:
    """`locate` for a URL that must be on the Hub.

    Raises:
        ValueError: it is elsewhere.
    """
    where = locate(Place(url), session)
    if where is None:
        raise ValueError(f"{url}: is not a place on the Hugging Face Hub (hf://datasets/ORG/NAME)")
    return where


def list_files(place: Place | str, session: Session = PLAIN) -> HubListing:
    """All files of the repository or bucket of a place; of a repository, at the commit that this process reads.

    Args:
        place: a file, a directory or the repository itself.
        session: opens URLs; its ``cache_dir`` keeps the listing of a repository.

    Raises:
        ValueError: it is not on the Hub.
        ShardNotFoundError: no such repository or revision exists. FetchDeniedError: it is gated. FetchError: it cannot
            be read.
    """
    url = str(place)
    where = find(url, session)
    return retrying.try_repeatedly(
        lambda: _Hub(url, where, session, lambda: None).listing(), url=url, path=None, hooks=session.hooks
    )


def known_file(url: str, session: Session = PLAIN) -> KnownFile | None:
    """The known entry of a file at the commit that this process reads, or None; sends no request."""
    where = _find_repository(url, session)
    commit = None if where is None else _known_commit(where)
    if where is None or commit is None:
        return None
    key = (*where[:3], commit)
    listing = _listings.get(key)
    if listing is None:
        files = _kept_listings(session).find(_digest(*key), _take_files)
        if files is None:
            return None
        listing = _listings[key] = HubListing(commit, files)
    return listing.files.get(where.path)


def client(url: str) -> Any:
    """The package huggingface_hub, which is imported for the first place of the Hub.

    Raises:
        DependencyError: it is not installed.
    """
    try:
        with forks.lock:
            import huggingface_hub.constants
            import huggingface_hub.utils

            package: Any = huggingface_hub
            _ = package.get_token, package.utils.build_hf_headers  # both import more
    except ImportError as error:
        words = f"{url}: the Hugging Face Hub is read with huggingface_hub: pip install 'wids[hub]'"
        raise DependencyError(words, url=url) from error
    return package


def is_offline() -> bool:
    """True if huggingface_hub sends no requests: ``HF_HUB_OFFLINE`` was set when it was imported."""
    return bool(client("hf://").constants.HF_HUB_OFFLINE)


def read_once(url: str, session: Session, read: Callable[[], bytes]) -> bytes:
    """The bytes of a small file; those of a commit are kept in the cache directory, and read once on a machine.

    Args:
        url: of the file, anywhere.
        session: opens URLs.
        read: returns its bytes.

    Raises:
        FetchError: of the Hub, see `list_files`, or of ``read``.
    """
    where, known = _find_repository(url, session), None
    if where is not None:
        list_files(url, session)
        known = known_file(url, session)
    if where is None or known is None:
        return read()
    size, made = known.size, list[bytes]()

    def make(_: str, fd: int) -> None:
        made[:] = [read()]
        system.write_all(fd, made[0], 0)

    kept, key = SharedFiles(_directory(session), ".file"), _digest(*where[:3], where.path, known.tag)
    found = kept.get(key, make, lambda file: bytes(file.data) if len(file.data) == size else None)
    return found if found is not None else made[0] if made else read()


def open_source(
    url: str, session: Session, *, go_on: Callable[[], None], precedence: Precedence | None
) -> ByteSource | None:
    """The source of a file of the Hub; see `wids.core.transport.stores.open_source`. None: it is elsewhere.

    Raises:
        ShardNotFoundError: it does not exist. FetchDeniedError: it is gated.
        OSError, aiohttp.ClientError: the request for the listing failed.
    """
    where = locate(Place(url), session)
    return None if where is None else HubSource(_Hub(url, where, session, go_on), precedence=precedence)


def pins() -> dict[tuple[str, ...], str]:
    """The commits that this process reads, to be passed to a new process."""
    return dict(_pins)


def find_token(endpoint: str, options: Mapping[str, Any]) -> str | None:
    """The Hub token for requests to an endpoint: that of the options, else that of huggingface_hub, else None.

    The latter is used only for the configured endpoint, or the one that the options name.
    """
    given = options.get("token")
    if given not in (None, True, False) and not isinstance(given, str):
        raise InputError(f"the token of storage_options is of type {type(given).__name__}; it must be a text")
    if given is False or (isinstance(given, str) and given):
        return given or None
    package = client(endpoint)
    is_off = given is not True and package.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN
    if is_off or endpoint not in (_endpoint(), str(options.get("endpoint") or "").rstrip("/")):
        return None
    with _asking:
        token: str | None = package.get_token()
    return token


def is_commit(revision: str) -> bool:
    """True if a revision is the name of a commit, which never changes."""
    return _COMMIT.fullmatch(revision) is not None


def note_commit(place: str, commit: str, session: Session = PLAIN) -> None:
    """Use a commit that was just made, in this process and in new processes of this machine."""
    where = locate(Place(place), session)
    if where is None:
        return
    _pins[_pin_of(where)] = commit
    kept, key = SharedFiles(_directory(session), ".pin"), _digest(*where[:3], where.revision or "main")
    kept.put(key, json.dumps({"commit": commit, "at": time.time()}).encode())
    with contextlib.suppress(WidsError):
        list_files(place, session)  # what is offline later reads the commit of the pin


def note_pins(versions: Mapping[tuple[str, ...], str]) -> None:
    """Use these commits, except where this process already reads another one."""
    for key, commit in versions.items():
        _pins.setdefault(key, commit)


def forget() -> None:
    """Forget all answers of the Hub, as in a new process."""
    for memory in (_pins, _listings, _pages, _targets, _pauses):
        memory.clear()


class HubSource(HttpSource):
    """One file of the Hub.

    Args:
        hub: the Hub as the file's reader knows it.
        precedence: see `wids.core.transport.stores.open_source`.
    """

    def __init__(self, hub: _Hub, *, precedence: Precedence | None) -> None:
        self._hub, (self._file, commit) = hub, hub.file()
        where = hub.where
        revision = f"/{commit}" if commit else ""
        super().__init__(
            hub.url,
            hub.filesystem,
            f"{where.page}/resolve{revision}/{quote(where.path)}",
            go_on=hub.go_on,
            precedence=precedence,
        )
        self._elsewhere = hub.open_elsewhere()
        self._there: tuple[str, HttpSource] | None = None
        self._failure: Exception | None = None
        self._key = self._name, hub.access
        if self._known() is None:
            hub.check_pause("resolvers")

    def stat(self, first: Span | None = HEAD, *, is_fresh: bool = True) -> Stat:
        """Ask for size and version; see `ByteSource`. Those of a commit's file are known without a request."""
        if self._file is None or first is None or self._opened is not None:
            return super().stat(first, is_fresh=is_fresh)
        return Stat(self._file.size, self._file.tag, has_ranges=True, is_strong=True)

    async def ask(self, span: Span | None, *, is_raw: bool = True) -> Answer:
        """Send the request to the redirect's target; the Hub is asked only for an unknown target. See `HttpSource`."""
        self._hub.check_online(self._hub.where.path)
        refused = None
        while True:
            target, is_new = self._known(refused), False
            if target is None:
                async with _lock_of(self._key):
                    target = self._known(refused)  # another read may have got it meanwhile
                    if target is None:
                        found = await self._resolve(span, is_raw=is_raw)
                        if not isinstance(found, _Redirect):
                            return found
                        target, is_new = _remember(self._key, found), True
            if self._there is None or self._there[0] != target.url:
                there = HttpSource(self.url, self._elsewhere, target.url, go_on=self.go_on, precedence=self.precedence)
                self._there = target.url, there
            try:
                answer = await self._there[1].ask(span, is_raw=is_raw)
            except Exception as error:
                if is_new or getattr(error, "status", None) not in _EXPIRED:
                    raise
                refused = target
            else:
                return self._marked(answer, target.tag)

    def _known(self, refused: _Redirect | None = None) -> _Redirect | None:
        target = _targets.get(self._key)
        is_old = target is None or time.monotonic() - target.at > LIMITS.target_seconds
        return None if is_old or target == refused else target

    async def _resolve(self, span: Span | None, *, is_raw: bool) -> _Redirect | Answer:
        """Request a file from the Hub, which sends small files itself, and redirects for others.

        All reads of one attempt share one request, and a refusal of it.
        """
        if self._failure is not None:
            raise self._failure
        url, tag = self._name, ""
        for _ in range(_MAX_HOPS):
            # Without precedence of downloads: reads of samples and other processes may wait for this answer.
            here = HttpSource(self.url, self._filesystem, url, go_on=self.go_on, precedence=None)
            try:
                answer = await here.ask(span, is_raw=is_raw)
            except Exception as error:
                headers = getattr(error, "headers", None) or {}
                leads_to = headers.get("Location") if 300 <= (getattr(error, "status", None) or 0) < 400 else None
                if not leads_to:
                    self._failure = self._hub.explained(error, "resolvers")
                    raise self._failure from error
                tag = tag or headers.get("X-Linked-Etag") or ""
                url = urljoin(url, leads_to)
                place = Place(url)
                if place.scheme not in ("http", "https"):
                    raise FetchError(
                        f"{self.url}: the Hub redirects to {place.public}, and only http(s) URLs are followed",
                        url=self.url,
                    ) from None
                if place.origin != Place(self._name).origin:
                    return _Redirect(url, tag, time.monotonic())
            else:
                return self._marked(answer, tag)
        raise FetchError(f"{self.url}: the Hub redirects more than {_MAX_HOPS} times", url=self.url)

    def _marked(self, answer: Answer, tag: str) -> Answer:
        """An answer with the file's version, instead of that of a copy in a store of the Hub."""
        if self._file is not None:
            answer.stat = answer.stat._replace(version=self._file.tag, is_strong=True)
        elif tag:
            version, is_strong = parse_tag(tag)
            answer.stat = answer.stat._replace(version=version, is_strong=is_strong)
        return answer


class _Hub:
    """Requests to the Hub for the reader of one file.

    Args:
        url: of the file, for messages.
        where: its place.
        session: opens URLs.
        go_on: called regularly during waits for the Hub.
    """

    go_on: Callable[[], None]
    url: str
    where: HubPlace
    access: str
    filesystem: Any
    session: Session

    def __init__(self, url: str, where: HubPlace, session: Session, go_on: Callable[[], None]) -> None:
        self.url, self.where, self.go_on = url, where, go_on
        options = session.options_for(Place(url))
        self.session, self._client = session, client(url)
        # The options of an hf:// URL are those of huggingface_hub's file system; only client_kwargs is for HTTP.
        names = options if Place(url).scheme != "hf" else ("client_kwargs",)
        own = {name: options[name] for name in names if name in options}
        kwargs = dict(own.pop("client_kwargs", None) or {})
        self._other = {name: own[name] for name in own if name not in _OWN_OPTIONS}
        self._other["client_kwargs"] = {name: kwargs[name] for name in kwargs if name not in _OWN_OPTIONS}
        found = {name: own.get(name) or kwargs.get(name) for name in ("auth", "cookies")}
        self._headers = {**(kwargs.get("headers") or {}), **(own.get("headers") or {})}
        if (auth := found.pop("auth")) is not None:
            self._headers["Authorization"] = auth.encode()
        self._has_token = "authorization" in {name.lower() for name in self._headers}
        if not self._has_token and (token := find_token(where.endpoint, options)):
            self._headers["Authorization"], self._has_token = f"Bearer {token}", True
        own = {**self._other, **found, "headers": self._headers}
        self.access = _digest(repr(own))
        self.filesystem = self._open_http({**own, "allow_redirects": False})

    def open_elsewhere(self) -> Any:
        """The file system of the servers that the Hub redirects to, without credentials of the Hub."""
        return self._open_http(self._other)

    def _open_http(self, options: dict[str, Any]) -> Any:
        return filesystems.open_filesystem(self.where.endpoint, Session(options))[0]

    def file(self) -> tuple[KnownFile | None, str]:
        """(The entry of the file, its commit); (None, "") in a bucket.

        Raises:
            ShardNotFoundError: the file does not exist.
        """
        if self.where.kind == "buckets":
            return None, ""
        commit, files = self.listing()
        file = files.get(self.where.path)
        if file is None:
            raise ShardNotFoundError(
                f"{self.url}: does not exist at commit {commit[:12]} of {self.where.page}; check the path and "
                "the revision (ORG/NAME@REVISION)",
                url=self.url,
            )
        return file, commit

    def listing(self) -> HubListing:
        """All files of the commit, or of the bucket now.

        Raises:
            ShardNotFoundError, FetchDeniedError, OSError, aiohttp.ClientError: see `open_source`.
        """
        where = self.where
        if where.kind == "buckets":
            with _alone(self.go_on):
                return HubListing("", self._list(f"{where.api}/tree?recursive=true", where[:3]))
        commit = _known_commit(where)
        found = None if commit is None else _listings.get((*where[:3], commit))
        if found is not None:
            return found
        with _alone(self.go_on):
            commit = _known_commit(where) or self._find_commit()
            key = (*where[:3], commit)
            found = _listings.get(key)
            if found is None:
                found = _listings[key] = self._find_listing(commit, key)
        return found

    def _find_commit(self) -> str:
        """The commit of the revision: another process may have requested it recently."""
        where, revision = self.where, self.where.revision or "main"
        kept = SharedFiles(_directory(self.session), ".pin")
        key = _digest(*where[:3], revision)
        with kept.alone(key):
            commit = kept.find(key, _take_pin)
            if commit is None:
                self.check_online(f"the commit of {revision}")
                answer = self._ask(f"{where.api}/revision/{quote(revision, safe='')}?expand=sha")
                commit = self._parse(_REVISIONS, answer).sha
                if not is_commit(commit):
                    raise FetchError(f"{self.url}: {where.endpoint} names no commit for {revision}", url=self.url)
                kept.put(key, json.dumps({"commit": commit, "at": time.time()}).encode())
        _pins[_pin_of(where)] = commit
        return commit

    def _find_listing(self, commit: str, key: tuple[str, ...]) -> HubListing:
        kept, name = _kept_listings(self.session), _digest(*key)
        with kept.alone(name):
            files = kept.find(name, _take_files)
            if files is None:
                files = self._list(f"{self.where.api}/tree/{commit}?recursive=true&expand=false", key)
                kept.put(name, json.dumps(files).encode())
        return HubListing(commit, files)

    def _list(self, url: str, key: tuple[str, ...]) -> dict[str, KnownFile]:
        """All pages of a listing; another try goes on after the received ones."""
        pages = _pages.pop(key, None) or _Pages({}, [url])
        while pages.urls[-1]:
            try:
                answer = self._ask(pages.urls[-1])
            except Exception as error:
                if is_transient(error, None):  # otherwise the page may no longer exist
                    _pages[key] = pages
                raise
            pages.files.update((each.path, each.file) for each in self._parse(_PAGES, answer) if each.type == "file")
            link = answer.links.get("next", {}).get("url")
            link = "" if link is None else urljoin(pages.urls[-1], link)
            if link in pages.urls or len(pages.urls) > _MAX_PAGES:
                words = f"a listing of {self.where.endpoint} has pages that form a loop, or more than {_MAX_PAGES:,}"
                raise TooLongError(f"{self.url}: {words}", url=self.url)
            pages.urls.append(link)
        return pages.files

    def _ask(self, url: str) -> Any:
        """An answer of the Hub's API."""
        self.check_online("the list of its files")
        self.check_pause("api")
        utils, origin = self._client.utils, Place(self.where.endpoint).origin
        plain = utils.build_hf_headers(token=False, library_name="wids", library_version=__version__)

        def ask() -> Any:
            session, at = utils.get_session(), url
            follows = "follow_redirects" if hasattr(session, "follow_redirects") else "allow_redirects"
            options = {"timeout": filesystems.LIMITS.read_seconds, follows: False}
            for _ in range(_MAX_HOPS):
                # A renamed repository leads to its new name; a mirror's next page may be on the Hub.
                own = self._headers if Place(at).origin == origin else {}
                answer = session.get(at, headers={**plain, **own}, **options)
                utils.hf_raise_for_status(answer)
                if not 300 <= answer.status_code < 400:
                    break
                at = urljoin(at, answer.headers.get("Location", ""))
            return answer

        try:
            return _run_apart(ask, self.go_on)
        except Exception as error:
            explained = self.explained(error, "api")
            if explained is error:
                raise
            raise explained from error

    def _parse(self, parser: JsonParser[T], answer: Any) -> T:
        try:
            return parser.parse(answer.content)
        except JsonError as error:
            words = f"{self.url}: an answer of {self.where.endpoint} is malformed ({error})"
            raise FetchError(words, url=self.url) from error

    def check_online(self, what: str) -> None:
        """Refuse requests to the Hub and its stores if the user forbids them.

        Raises:
            UnreachableError: ``HF_HUB_OFFLINE`` is set.
        """
        if is_offline():
            raise UnreachableError(
                f"{self.url}: HF_HUB_OFFLINE is set, and {what} is not kept in {_directory(self.session)}; unset it, "
                "or give the cache_dir of a run that has read it",
                url=self.url,
            )

    def check_pause(self, part: str) -> None:
        """Refuse requests to a part of the Hub during its pause.

        Raises:
            PausedError: its ``seconds`` must pass before another try.
        """
        left = _pauses.get((self.where.endpoint, part), 0.0) - retrying.now()
        if left > 0:
            raise PausedError(f"{self.url}: the Hub limits the rate of requests", seconds=left)

    def explained(self, error: Exception, part: str) -> Exception:
        """The meaning of an error of the Hub: a typed error if it says more than its status, else the same error."""
        answer = getattr(error, "response", None)  # of huggingface_hub; aiohttp's errors have its attributes
        status = getattr(answer, "status_code", None) or getattr(error, "status", None)
        headers = getattr(error if answer is None else answer, "headers", None) or {}
        if status == 429 and (seconds := find_retry_after(error)) is not None:
            key = (self.where.endpoint, part)
            ends = retrying.now() + min(seconds, _MAX_PAUSE_SECONDS)
            _pauses[key] = max(_pauses.get(key, 0.0), ends)
        code, where = headers.get("X-Error-Code", ""), self.where
        kind: type[FetchError] = ShardNotFoundError
        log_in = "check that its account may read it" if self._has_token else "log in (hf auth login), or set HF_TOKEN"
        if code == "GatedRepo":
            kind = FetchDeniedError
            words = f"the repository is gated; accept its terms at {where.page}, and "
            words += "use a token of that account" if self._has_token else log_in
        elif code == "RepoNotFound" or (status == 401 and not code and part == "api" and not self._has_token):
            hint = " (that of a data set is hf://datasets/ORG/NAME)" if where.kind == "models" else ""
            token = "the token given may not read it" if self._has_token else "no token was given"
            words = f"there is no {_WORDS[where.kind]} {where.repository} at {where.endpoint}, or it is private and "
            words += f"{token}; check the name{hint}, or {log_in}"
        elif status == 401 and not code and self._has_token:
            kind = FetchDeniedError
            words = f"{where.endpoint} does not accept the token; log in again (hf auth login), or unset HF_TOKEN "
            words += "where none is needed"
        elif code == "RevisionNotFound":
            words = f"{where.page} has no revision {where.revision or 'main'}, or its commit was deleted since "
            words += "this run began; check the name, or start again"
        else:
            return error
        return kind(f"{self.url}: {words}", url=self.url)


class _Redirect(NamedTuple):
    """A redirect of the Hub.

    Attributes:
        url: signed.
        tag: of the file, from the Hub.
        at: time of its arrival, by the monotonic clock.
    """

    url: str
    tag: str
    at: float


class _Pages(NamedTuple):
    """An unfinished listing: the received files, and the URLs of its pages, of which the last is next; "": none is."""

    files: dict[str, KnownFile]
    urls: list[str]


# Answers of the Hub in this process; a forked child inherits them.
_pins: dict[tuple[str, ...], str] = {}
_listings: dict[tuple[str, ...], HubListing] = {}
_pages: dict[tuple[str, ...], _Pages] = {}
_targets: dict[tuple[str, str], _Redirect] = {}
_pauses: dict[tuple[str, str], float] = {}
_MAX_TARGETS = 100_000
_lock = threading.Lock()
# Around each request of huggingface_hub, whose client a forked child closes: its locks must be free then.
_asking = threading.Lock()
forks.wait_for(_asking)
_locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock]]
_locks = weakref.WeakKeyDictionary()


def _start_child() -> None:
    global _lock  # noqa: PLW0603 - a thread that the child does not have may hold the parent's
    _lock = threading.Lock()


forks.call_in_child(_start_child)


@contextlib.contextmanager
def _alone(go_on: Callable[[], None]) -> Iterator[None]:
    """Let one thread of the process at a time into the block."""
    held = _lock
    while not held.acquire(timeout=filesystems.LIMITS.poll_seconds):
        go_on()
    try:
        yield
    finally:
        held.release()


def _lock_of(key: tuple[str, str]) -> asyncio.Lock:
    """The lock of requests for the redirect of a URL; on the event loop."""
    locks = _locks.setdefault(asyncio.get_running_loop(), weakref.WeakValueDictionary())
    return locks.setdefault(key, asyncio.Lock())


def _remember(key: tuple[str, str], target: _Redirect) -> _Redirect:
    _targets.pop(key, None)
    while len(_targets) >= _MAX_TARGETS:
        _targets.pop(next(iter(_targets)))
    _targets[key] = target
    return target


def _directory(session: Session) -> str:
    return session.cache_dir or default_cache_dir()


def _kept_listings(session: Session) -> SharedFiles:
    return SharedFiles(_directory(session), ".hub")


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def _parse(place: Place, endpoint: str) -> HubPlace:
    parts = str(place)[len("hf://") :].strip("/").split("/")
    kind = parts.pop(0) if parts[0] in _WORDS else "models"
    if len(parts) < 2 or not parts[0] or not parts[1].partition("@")[0]:
        what = f"{place}: an hf:// URL names a repository: hf://datasets/ORG/NAME[@REVISION]/PATH"
        raise ShardNotFoundError(what, url=str(place))
    name, at, rest = "/".join(parts[1:]).partition("@")
    revision = ""
    if at and "/" not in name:
        revision, path = _split_revision(rest)
    else:
        name, path = parts[1], "/".join(parts[2:])
    if not endpoint.startswith(("http://", "https://")):
        raise InputError(f"the endpoint of the Hub is {shown(endpoint)}; HF_ENDPOINT must be an http(s) URL")
    return HubPlace(endpoint, kind, f"{parts[0]}/{name}", revision, path)


def _split_revision(text: str) -> tuple[str, str]:
    """(revision, path) of ``REVISION/PATH``."""
    found = _SPECIAL.match(text)
    if found:
        return found[0], text[found.end() :].lstrip("/")
    revision, _, path = text.partition("/")
    return unquote(revision), path


def _find_repository(url: str, session: Session) -> HubPlace | None:
    """The place of a file that has a commit; None: it is elsewhere, or in a bucket."""
    with contextlib.suppress(ValueError):
        where = locate(Place(url), session)
        return None if where is None or where.kind == "buckets" else where
    return None


def _known_commit(where: HubPlace) -> str | None:
    return where.revision if is_commit(where.revision) else _pins.get(_pin_of(where))


def _pin_of(where: HubPlace) -> tuple[str, ...]:
    """The name of a revision: the default is main, so both share one commit."""
    return (*where[:3], where.revision or "main")


def _run_apart(work: Callable[[], T], go_on: Callable[[], None]) -> T:
    """The result of a blocking call, in a thread that nobody waits for after an exception of ``go_on``."""
    future: futures.Future[T] = futures.Future()

    def step() -> None:
        try:
            with _asking:
                future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - for the caller
            future.set_exception(error)

    threading.Thread(target=step, daemon=True, name="wids-hub-api").start()
    while not futures.wait([future], timeout=filesystems.LIMITS.poll_seconds).done:
        go_on()
    return future.result()


def _take_pin(file: SharedFile) -> str | None:
    pin = _KEPT_PINS.parse(file.data)
    is_new = is_offline() or 0 <= time.time() - pin.at < LIMITS.pin_seconds
    return pin.commit if is_new and is_commit(pin.commit) else None


def _take_files(file: SharedFile) -> dict[str, KnownFile]:
    return _KEPT_LISTINGS.parse(file.data)


class _Pin(msgspec.Struct):
    """The commit of a revision, as other processes of the machine read it.

    Attributes:
        commit: as looked up.
        at: time of that, in seconds since 1970.
    """

    commit: str
    at: float


class _Revision(msgspec.Struct):
    """An answer with the commit of a revision."""

    sha: str


class _Lfs(msgspec.Struct):
    """Properties of a file that git lacks, and its store has: its sha256 and its size."""

    oid: str = ""
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_FILE_BYTES)] | None = None


class _ListedFile(msgspec.Struct, rename="camel"):
    """An entry of a listing; ``oid``: its name in git."""

    type: str
    path: str
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_FILE_BYTES)] = 0
    oid: str | None = None
    xet_hash: str | None = None
    lfs: _Lfs | None = None

    @property
    def file(self) -> KnownFile:
        """The file of the entry."""
        lfs = self.lfs or _Lfs()
        sha256 = lfs.oid if _SHA256.fullmatch(lfs.oid) else None
        return KnownFile(self.size if lfs.size is None else lfs.size, sha256, sha256 or self.xet_hash or self.oid or "")


_KEPT_PINS = JsonParser(_Pin)
_KEPT_LISTINGS = JsonParser(dict[str, KnownFile])
_REVISIONS = JsonParser(_Revision)
_PAGES = JsonParser(list[_ListedFile], is_plain=True)


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()
