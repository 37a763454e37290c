"""Loads the shards of an index from a URL or path, parsed or mapped. Without torch.

A large JSON index is compiled (`wids.core.index.compiled`) by the first process of a machine that opens it, and
mapped by the others: from the cache directory, where its digest is its name. A local file that has not changed since it
was compiled is not even read. A compiled index can also be opened directly: a local one is mapped in place, a remote
one is downloaded into the cache directory once, checked, and mapped there.

Rules: a mapped list equals the parsed list. A compiled index in a cache directory is used if it is this user's own and
consistent, and made again otherwise; without space for it, the index is parsed like a small one. A pickle of a mapped
list is its place and the arguments of its opening. If that file no longer exists (another machine, an emptied cache),
it is made again, and refused if it differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from wids.core.files import atomic, json_text, system
from wids.core.files.own_folder import default_cache_dir
from wids.core.files.shared_files import without_name
from wids.core.index import checks, compiled, compiled_files, view_file
from wids.core.index.compiled_files import CompiledIndexes, look_at
from wids.core.index.fingerprint import contents, fingerprint, have_changed
from wids.core.index.spec import PACKS, check_head, forbid_local, own_keys, own_packs, parse_index, parse_json
from wids.core.index.view_file import KEY
from wids.core.index.view_rows import ViewRows
from wids.core.place import Place, cache_directory
from wids.core.transport import retrying
from wids.core.transport.download import MAX_READ_BYTES, download_to, read_bytes
from wids.core.transport.schemes import find_store
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.stores import open_source
from wids.errors import FetchDeniedError, FetchError, ShardNotFoundError, SpecError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.files.shared_files import SharedFile
    from wids.core.index import energon
    from wids.core.index.compiled import Compiled
    from wids.core.index.compiled_files import FileStatus
    from wids.core.index.shardlist import ShardList
    from wids.core.index.view_rows import SharedSelection
    from wids.core.transport.source import Stat

# To be changed with the format, or with the result of parsing: all indexes are then compiled again.
_MADE_BY = compiled.VERSION, "member_tables"
_READS_AT_A_TIME = 16
ENERGON_BYTES = 64 << 20
_ENERGON_NAMES = frozenset({".info.json", ".info.yaml"})
_ROW_MARK, _PARTS_MARK = b'"nsamples"', b'"datasets"'


class IndexRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An index, and the arguments for reading it.

    Attributes:
        url: its URL or path; None: its text was passed.
        base: see `wids.core.collection.shard_collection.load_shards`.
        options: see there.
        allow_local: see there.
        session: see there.
        cache_dir: see there.
        may_be_view: False for the index behind a view.
    """

    url: str | None
    base: str | None = None
    options: dict[str, Any] | None = None
    allow_local: bool = False
    session: Session = PLAIN
    cache_dir: str | None = None
    may_be_view: bool = True


class LoadedIndex(NamedTuple):
    """The shards of an index, and the session that opens them."""

    shards: ShardList
    session: Session


class IndexFile(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a mapped index; see `wids.core.index.shardlist.Origin`.

    Attributes:
        path: the compiled index; "": it has no file.
        is_cached: it is in a cache directory.
        identity: of this file among all others.
        fingerprint: of its shards; see `wids.core.index.fingerprint`.
        contents: likewise.
        request: the request that opened it.
    """

    path: str
    is_cached: bool
    identity: bytes
    fingerprint: str
    contents: dict[str, str]
    request: IndexRequest

    def reopen(self) -> ShardList:
        """The same shards, mapped again; compiled or downloaded again if the file no longer exists.

        Raises:
            SpecError: the index has changed. FetchError: it cannot be read.
        """
        try:
            whole, status = atomic.map_file(self.path)
            data = without_name(whole, self.path) if self.is_cached else whole
            if data is not None and (status.st_uid == system.user_id() or not self.is_cached):
                opened = _open(data, status, self.request, path=self.path, file_url=self.path)
                if opened.identity == self.identity:
                    return replace(opened.shards, origin=self)
        except (OSError, SpecError) as error:
            logger.debug("%s: %s", self.path, error)
        shards = load_index(self.request).shards
        if fingerprint(shards) != self.fingerprint or have_changed(self.contents, contents(shards)):
            raise SpecError(
                f"{self.request.url}: the index has changed since the dataset was made, and its compiled form "
                f"({self.path}) no longer exists; make the dataset again",
                path="",
                url=self.request.url,
            )
        return shards


def load_index(request: IndexRequest, data: bytes | str | None = None) -> LoadedIndex:
    """The shards of an index.

    Args:
        request: the index, and the arguments for reading it.
        data: its text, if it has no URL.

    Raises:
        SpecError: malformed. FetchError: it cannot be read. NotAllowedError: a remote one points at local files.
    """
    loaded = _load(request, data)
    header = loaded.shards.header
    if "view_of_fingerprint" in header:  # whose own are resolved already, and those of the index behind it
        return loaded
    return loaded._replace(shards=loaded.shards.with_header(_with_companions(header, request)))


def _with_companions(header: dict[str, Any], request: IndexRequest) -> dict[str, Any]:
    """The header of an index with the places of its companions resolved.

    Raises:
        SpecError: they are malformed. NotAllowedError: a remote index names local files.
    """
    if header.get(KEY) is None:
        return header
    from wids.core.index.companion_file import resolve_companions

    url = request.url
    is_guarded = not (url is None or Place(url).is_local or request.allow_local)

    def forbid(path: str, named: str) -> None:
        if is_guarded and Place(named).reaches_local:
            forbid_local(url, path, named)

    return resolve_companions(header, url, forbid)


def _load(request: IndexRequest, data: bytes | str | None) -> LoadedIndex:
    if data is not None or request.url is None:
        if view_file.MARK in (data.encode() if isinstance(data, str) else data or b""):
            return _load_view(request, data or b"")
        return _parse(data or b"", request)[0]
    if not compiled.is_compiled(request.url):
        return _JsonIndex(request, request.url).load()
    if Place(request.url).is_local:
        return _map_local(request, request.url)
    return _RemoteIndex(request, request.url).load()


# --- JSON


def is_energon(url: str) -> bool:
    """True if a URL or path is the counts of an Energon dataset (`wids.core.index.energon`), by its name."""
    return Place(url).name in _ENERGON_NAMES


def _read_index(url: str, session: Session, *, max_bytes: int | None = None) -> bytes:
    """The text of an index, which is looked at before all of it is read."""
    if is_energon(url):  # which may be YAML
        return read_bytes(url, session=session)
    return read_bytes(url, session=session, max_bytes=max_bytes, look=lambda head: check_head(head, url))


class _PartTexts:
    """The texts of the sub-datasets that an index names, each read once, and the servers that get the options."""

    def __init__(self, request: IndexRequest, named: set[str] | None) -> None:
        self._request, self._named = request, named
        self._is_narrow = not (request.url is None or Place(request.url).is_local)
        self.texts: dict[str, bytes] = {}

    def load(self, url: str) -> bytes:
        """The text at a URL."""
        if url not in self.texts:
            if not Place(url).is_local:  # from here on, URLs may come from texts that are not the caller's
                self._is_narrow = True
            left = max(MAX_READ_BYTES - sum(map(len, self.texts.values())), 0)  # shared by all texts
            self.texts[url] = _read_index(url, self.session, max_bytes=left)
        return self.texts[url]

    @property
    def session(self) -> Session:
        """The session, with options only for the servers that the caller has named so far."""
        session = self._request.session
        return session.narrowed(self._named or ()) if self._is_narrow else session


def _parse(data: bytes | str, request: IndexRequest, named: set[str] | None = None) -> tuple[LoadedIndex, _PartTexts]:
    if named is None and request.session.has_options:
        named = set()
    texts = _PartTexts(request, named)
    shards = parse_index(
        data,
        index_url=request.url,
        load=texts.load,
        base=request.base,
        options=request.options,
        allow_local=request.allow_local,
        named=named,
    )
    return LoadedIndex(shards, texts.session), texts


class _JsonIndex:
    """A JSON index at a URL, and its compiled form in the cache directory."""

    def __init__(self, request: IndexRequest, url: str) -> None:
        self._request, self._url = request, url
        self._key = _digest_of(url, request.base, request.options, request.allow_local)
        self._indexes: CompiledIndexes | None = None
        if request.cache_dir is not None and self._key:
            self._indexes = CompiledIndexes(request.cache_dir)

    def load(self) -> LoadedIndex:
        """Its shards, mapped if the index is large."""
        request, indexes = self._request, self._indexes
        status = None if indexes is None else self._look()
        if indexes is not None and status is not None:
            digest = indexes.recall(self._key, status)
            if digest is not None and (loaded := indexes.find(digest, self._take)) is not None:
                return loaded
        url, session = self._url, request.session
        read = partial(_read_index, url, session)
        data = read() if (store := find_store(Place(url))) is None else store.read_once(url, session, read)
        if is_energon(self._url):
            from wids.core.index import energon

            data = energon.convert_info(data, url=self._url, splits=_load_splits(self._url, session))
        if view_file.MARK in data:
            return _load_view(request, data)
        if indexes is None or not (data.count(_ROW_MARK) >= compiled_files.LIMITS.min_shards or _PARTS_MARK in data):
            return _parse(data, request)[0]
        digest = _digest(self._key.encode(), data)
        loaded = self._compile(indexes, digest, data)
        del data
        system.trim_heap()  # what was parsed leaves much of it free, in pieces
        if status is not None and loaded.shards.origin is not None:
            indexes.remember(self._key, status, digest)
        return loaded

    def _look(self) -> FileStatus | None:
        """The state of the file; None if a later process could not use it."""
        place = Place(self._url)
        if not place.is_local or is_energon(self._url):  # beside which another file says what is excluded
            return None
        status = look_at(place.path)
        limits = compiled_files.LIMITS
        return None if status is None or status.size < limits.min_shards * limits.min_row_bytes else status

    def _take(self, file: SharedFile) -> LoadedIndex | None:
        """The shards of a compiled index, if its sub-datasets have not changed.

        Raises:
            SpecError: it is damaged.
        """
        index = _open(file.data, file.status, self._request, path=file.path, file_url=file.path)
        texts = _PartTexts(self._request, set(index.source.named))
        if any(_digest(texts.load(url)) != before for url, before in index.source.texts):
            return None
        return LoadedIndex(_mapped(index, self._request, path=file.path, is_cached=True), texts.session)

    def _compile(self, indexes: CompiledIndexes, digest: str, data: bytes) -> LoadedIndex:
        """The shards, mapped from a file that is written here; parsed if they are few, or it cannot be written."""
        made: list[LoadedIndex] = []

        def parse() -> tuple[_PartTexts, set[str]]:
            named: set[str] = set()
            parsed, texts = _parse(data, self._request, named)
            made[:] = [parsed]
            return texts, named

        def make(_: str, fd: int) -> bool:
            texts, named = parsed or parse()
            if len(made[0].shards) < compiled_files.LIMITS.min_shards:
                return False
            parts = tuple((url, _digest(text)) for url, text in texts.texts.items())
            source = compiled.CompiledFrom(parts, tuple(sorted(named)))
            try:
                packed = compiled.pack(made[0].shards, source=source)
            except (TypeError, ValueError) as error:  # it has values that JSON does not have
                logger.debug("%s is not compiled: %s", self._url, error)
                return False
            system.write_parts(fd, packed)
            return True

        parsed = None
        if data.count(_ROW_MARK) < compiled_files.LIMITS.min_shards:  # a small text may have large sub-datasets
            if (loaded := indexes.find(digest, self._take)) is not None:
                return loaded
            parsed = parse()
            if len(made[0].shards) < compiled_files.LIMITS.min_shards:
                return made[0]
        loaded = indexes.get(digest, make, self._take)
        if loaded is None and not made:
            parse()
        elif loaded is not None and made:
            indexes.note_checked(indexes.path(digest))
        return loaded or made[0]


def _load_splits(url: str, session: Session) -> energon.SplitFile | None:
    """The splits beside the counts of an Energon dataset; None: there are none.

    Raises:
        SpecError: malformed. FetchError: they cannot be read. DependencyError: PyYAML is not installed.
    """
    from wids.core.index import energon

    for name in energon.SPLITS:
        beside = str(Place(url).directory.join(name))
        try:
            data = read_bytes(beside, session=session, max_bytes=ENERGON_BYTES, seconds=retrying.LIMITS.first_seconds)
        except ShardNotFoundError:
            continue
        except FetchDeniedError as error:  # as in a bucket without permission to list
            logger.warning("%s: cannot be read, so that what it may exclude is not left out: %s", beside, error)
            continue
        return energon.parse_splits(data, url=beside)
    return None


# --- views


def _load_view(request: IndexRequest, data: bytes | str) -> LoadedIndex:
    """The shards of a view, and its selection.

    Raises:
        SpecError: malformed, or the index of the view has changed. NotAllowedError: of that index.
        FetchError: the index of the view cannot be read.
    """
    url = request.url
    raw, view = _parse_view(request, data)
    if view is None:  # only a name contains the mark
        return _parse(data, request)[0]
    if not request.may_be_view:
        what = f"view_of: {url} is a view, and must be an index of shards; open that view and save a view of it"
        raise SpecError(what, path="view_of", url=url)
    raw = {**_with_companions(raw, request), "made_by": view.made_by}
    if view.view_of is None:
        loaded = _parse(data, request)[0]
    else:
        raw["view_of"] = parent = _resolved(request, view.view_of, "view_of")
        loaded = _load_parent(request, view, parent)
    shards = loaded.shards
    if view.rows is not None:
        selection = load_rows(request, view, shards.nsamples)
        if selection is None:
            # The view was saved again meanwhile, perhaps unchanged: its earlier rows no longer exist.
            return _load_view(request, _read_index(str(url), request.session))
        shards = shards.select(selection)
    return LoadedIndex(shards.with_header({**shards.header, **raw}), loaded.session)


def _parse_view(request: IndexRequest, data: bytes | str) -> tuple[dict[str, Any], view_file.View | None]:
    """(the JSON object, its fields of a view); the second is None if it is not a view."""
    raw = {**parse_json(data, request.url), **(request.options or {})}
    return raw, view_file.parse_view(raw, request.url)


def _load_parent(request: IndexRequest, view: view_file.View, parent: str) -> LoadedIndex:
    """The shards of the index behind a view.

    Raises:
        SpecError: they have changed, or their index is not a file. FetchError: it cannot be read.
    """
    index_url = request.url
    path = place_of_parent.path if (place_of_parent := Place(parent)).is_local else ""
    if path and os.path.exists(path) and not os.path.isfile(path):  # reading it might never end
        what = f"{checks.where(index_url)}view_of: {parent} is a directory or a device, not a file"
        raise SpecError(what, path="view_of", url=index_url)
    inner = msgspec.structs.replace(request, url=parent, options=None, session=_narrowed(request), may_be_view=False)
    try:
        loaded = load_index(inner)
    except ShardNotFoundError as error:
        what = f"{checks.where(index_url)}view_of: {parent} does not exist; give its new place with `wids index rebase`"
        raise ShardNotFoundError(what, url=parent) from error
    _check_parent(loaded.shards, view, index_url=index_url, parent=parent)
    return loaded


def load_rows(
    request: IndexRequest, view: view_file.View, counts: Sequence[int] | None = None
) -> SharedSelection | None:
    """The selection of a view; None: its rows were replaced meanwhile, so the view must be read again.

    Args:
        request: for the view.
        view: its fields.
        counts: samples of each shard of its index; None: unknown, so they are not compared.

    Raises:
        SpecError: they are damaged, or of another view; or they cannot be read. FetchError: remote ones cannot be read.
    """
    index_url = request.url
    url = _resolved(request, view.rows or "", "rows")
    try:
        rows = ViewRows(url, view, counts, cache_dir=request.cache_dir, session=_narrowed(request))
        return rows.load()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and index_url is not None:
            _, now = _parse_view(request, _read_index(index_url, request.session))
            if now is None or now.rows != view.rows or _is_there(url):
                return None
        if isinstance(error, FetchError):
            raise
        what = f"{checks.where(index_url)}rows: {url} cannot be read ({error})"
        raise SpecError(what, path="rows", url=index_url) from error


def _is_there(url: str) -> bool:
    place = Place(url)
    return place.is_local and os.path.exists(place.path)


def _resolved(request: IndexRequest, written: str, path: str) -> str:
    """A URL that a view names.

    Raises:
        SpecError: it is not a URL. NotAllowedError: the view is from a remote place, and the URL is a local file.
    """
    index_url = request.url
    url = checks.resolve(Place(index_url or "").directory, written, path, index_url)
    is_remote = index_url is not None and not Place(index_url).is_local
    if is_remote and not request.allow_local and Place(url).reaches_local:
        forbid_local(str(index_url), path, url)
    return url


def _narrowed(request: IndexRequest) -> Session:
    """The session for the files of a view: the options for a remote view apply only to its own server."""
    if request.url is None or Place(request.url).is_local:
        return request.session
    return request.session.narrowed(Place(request.url).origins)


def _check_parent(shards: ShardList, view: view_file.View, *, index_url: str | None, parent: str) -> None:
    is_same = fingerprint(shards) == view.view_of_fingerprint
    if is_same and not have_changed(view.view_of_contents, contents(shards)):
        return
    then, now = view.view_of_counts, (len(shards), sum(shards.nsamples))
    what = (
        "the same names and counts of shards, but other checksums or sizes: the shards were rewritten, and the rows "
        "of the view may be other samples now"
        if is_same
        else "it has the same numbers of shards and samples, but different names or counts of shards"
        if then == now
        else f"it had {then[0]:,} shards and {then[1]:,} samples, and has {now[0]:,} and {now[1]:,} now"
    )
    raise SpecError(
        f"{checks.where(index_url)}view_of: {parent} has changed since the view was saved: {what}; make the view again",
        path="view_of",
        url=index_url,
    )


# --- compiled indexes


def _map_local(request: IndexRequest, url: str) -> LoadedIndex:
    path = Place(url).absolute.path
    data, status = retrying.try_repeatedly(lambda: atomic.map_file(path), url=url, path=None, hooks=())
    index = _open(data, status, request, path=path, file_url=url)
    return LoadedIndex(_mapped(index, request, path=path, is_cached=False), request.session)


class _RemoteIndex:
    """A compiled index on a server, and its copy in the cache directory."""

    def __init__(self, request: IndexRequest, url: str) -> None:
        self._request, self._url = request, url
        self._indexes = CompiledIndexes(cache_directory(request.cache_dir or default_cache_dir()))
        written = [url, request.base, *((request.options or {}).get(key) for key in ("base", "base_path"))]
        named = {origin for url in written if isinstance(url, str) for origin in Place(url).origins}
        self._narrow = request.session.narrowed(named)

    def load(self) -> LoadedIndex:
        """Its shards, mapped; without space for a copy, read into memory."""
        request, indexes, stat = self._request, self._indexes, self._stat()
        how = self._url, request.base, request.options, request.allow_local
        digest = "" if stat.version is None else _digest_of(*how, stat.size, repr(stat.version))
        is_known = bool(digest)  # else another version, or what others have checked otherwise, may have this name
        digest = digest or _digest(self._url.encode("utf-8", "surrogatepass"))

        def take(file: SharedFile) -> LoadedIndex:
            path = file.path
            if is_known:
                return self._take(_open(file.data, file.status, request, path=path, file_url=self._url), path)
            return self._take(self._check(file.data), path)

        loaded = indexes.get(digest, self._download, take, is_new=not is_known)
        if loaded is None:
            loaded = self._take(self._check(read_bytes(self._url, session=request.session)), "")
        return loaded

    def _take(self, index: Compiled, path: str) -> LoadedIndex:
        return LoadedIndex(_mapped(index, self._request, path=path, is_cached=True), self._narrow)

    def _stat(self) -> Stat:
        def once() -> Stat:
            with open_source(self._url, self._request.session) as source:
                return source.stat()

        return retrying.try_repeatedly(once, url=self._url, path=None, hooks=())

    def _download(self, path: str, _: int) -> None:
        def check() -> None:
            self._check(atomic.map_file(path)[0])

        download_to(
            self._url,
            path,
            check=check,
            max_bytes=MAX_READ_BYTES,
            session=self._request.session,
        )

    def _check(self, data: bytes | memoryview) -> Compiled:
        """Read a file from a network, and check all of its bytes.

        Raises:
            SpecError: it is damaged. NotAllowedError: it points at local files.
        """
        index = _unpack(data, self._request, file_url=self._url, is_whole=False)
        for k, url in enumerate(index.shards.urls):
            if not self._request.allow_local and Place(url).reaches_local:
                forbid_local(self._url, f"shardlist[{k}].url", url)
        for url in itertools.chain.from_iterable(packs for _, packs in index.shards.packs):
            if not self._request.allow_local and Place(url).reaches_local:
                forbid_local(self._url, PACKS, url)
        return index


def _mapped(index: Compiled, request: IndexRequest, *, path: str, is_cached: bool) -> ShardList:
    origin = IndexFile(
        path=path,
        is_cached=is_cached,
        identity=index.identity,
        fingerprint=fingerprint(index.shards),
        contents=contents(index.shards),
        request=request,
    )
    return replace(index.shards, origin=origin)


def _open(
    data: memoryview, status: os.stat_result, request: IndexRequest, *, path: str, file_url: str
) -> compiled.Compiled:
    """Read a compiled index from a file; the checksum is compared once for each machine.

    Raises:
        SpecError: it is none, or damaged, or the options cannot be.
    """
    if len(data) < compiled_files.LIMITS.checked_bytes:
        return _unpack(data, request, file_url=file_url, is_whole=False)
    indexes = None if request.cache_dir is None else CompiledIndexes(request.cache_dir)
    is_whole = indexes is not None and indexes.is_checked(path, status)
    index = _unpack(data, request, file_url=file_url, is_whole=is_whole)
    if not is_whole:
        atomic.drop_pages(data)  # all of them were read for the checksum
    if indexes is not None and not is_whole:
        indexes.note_checked(path, status)
    return index


def _unpack(data: bytes | memoryview, request: IndexRequest, *, file_url: str, is_whole: bool = True) -> Compiled:
    """Read a compiled index; if it is the request's own, its base and options hold.

    Raises:
        SpecError: it is none, or damaged, or the options cannot be.
    """
    index = request.url or ""
    if not compiled.is_compiled(index):
        return compiled.unpack(data, file_url=file_url, home=None, is_whole=is_whole)
    options, home = request.options or {}, Place(index).directory
    for key in ("shardlist", "datasets"):
        if key in options:
            raise SpecError(f"{index}: options: the {key} of a compiled index cannot be changed", path=key, url=index)
    own_base = options.get("base") or options.get("base_path")
    base = request.base if request.base is not None else str(home.join(own_base if isinstance(own_base, str) else ""))
    unpacked = compiled.unpack(data, file_url=file_url, home=base, is_whole=is_whole)
    shards, header = unpacked.shards, {**unpacked.shards.header, **options}
    packs = [(k, tuple(str(home.join(url)) for url in written)) for k, written in shards.packs]
    if PACKS in options:
        packs = [(0, own_packs(options, index, str(home)))]
    defaults = [own_keys(header, index), *shards.defaults[1:]] if options and shards.defaults else shards.defaults
    return unpacked._replace(shards=replace(shards, header=header, packs=packs, defaults=defaults))


def _digest(*parts: bytes) -> str:
    state = hashlib.blake2b(digest_size=32)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def _digest_of(*sources: Any) -> str:
    """A digest of the sources of an index; "" if JSON cannot represent them."""
    try:
        text = json.dumps([*_MADE_BY, *sources])
        is_plain = json_text.parse(text) == [*_MADE_BY, *sources]
    except (TypeError, ValueError, RecursionError):
        return ""
    return _digest(text.encode()) if is_plain else ""
