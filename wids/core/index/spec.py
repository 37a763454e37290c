"""Parse an index (JSON), or the list that a program passes, into a shard list.

Pure: the bytes of an index, and of the sub-datasets it names, come from the caller, each once. An error names
the path to the bad value, and the index that has it. For the servers that appear, it is kept whether the program or a
local index named them (they may get credentials) or a remote index did (they may not).

JSON form (``wids_version`` 1)::

    {"wids_version": 1, "name": ..., "info": ..., "base": DIRECTORY,          base, name, info: optional
     "key_rule": "first-dot" | "last-dot",       how members become samples; the first is the default
     "group": "adjacent" | "key",                the same
     "member_tables": URL | [URL, ...],          packs of member tables, relative to the index; optional
     "shardlist": [{"url": ..., "nsamples": N, "filesize": BYTES, "md5sum": HEX, "crc32": HEX, ...}, ...],
     "datasets": [{"source_url": URL | "shardlist": [...], "name": ..., "weight": ..., "base": ...}, ...]}

A sub-dataset's shards have its name as ``dataset``, its ``weight``, and the ``source_url`` it was loaded from, unless
they bring their own; a nested one's keys win over those around it. An index's own ``name`` and ``weight`` hold for the
shards it lists itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from wids.core.files.json_text import JsonParser
from wids.core.index import checks, foreign_data
from wids.core.index.shardlist import (
    GROUPING_KEYS,
    KNOWN_KEYS,
    Row,
    ShardList,
    ShardListBuilder,
    parse_grouping,
    said_grouping,
)
from wids.core.place import Place
from wids.core.transport import urls
from wids.core.transport.urls import MAX_SHARDS
from wids.errors import JsonError, NotAllowedError, SpecError, a_kind, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.core.tables.table import GroupOptions

    Load = Callable[[str], bytes]

__all__ = [
    "PACKS",
    "ShardList",
    "forbid_local",
    "list_shards",
    "own_keys",
    "own_packs",
    "parse_index",
    "parse_json",
]

# The key of an index that names packs of member tables (`wids.core.tables.pack_format`).
PACKS = "member_tables"
# Keys of a shard that may be meant by others, spelt without dashes and a last s.
_MEANT = {**{key.removesuffix("s"): key for key in KNOWN_KEYS}, "md5": "md5sum", "crc": "crc32"}
# Sub-datasets within sub-datasets; more is a loop of files that name each other, or an attack on the stack.
_MAX_DEPTH = 8
_HEAD = 200  # bytes that tell a web page
# Longer texts are parsed once more, to find keys that stand twice, only if a count of the keys of shards says so.
_MAX_CHECKED = 2_000_000
_TEXTS = JsonParser[Any](object, is_finite=False, is_shallow=False)
# Files of a few lines that name each other again and again make a million of themselves.
_MAX_SOURCES = 10_000


class _Component(msgspec.Struct):
    shardlist: list[Row] | None = None
    source_url: str | None = None
    name: str | None = None
    weight: float | None = None
    base: str | None = None
    base_path: str | None = None
    member_tables: str | list[str] | None = None
    datasets: list[_Component] | None = None


class _Index(_Component):
    wids_version: int | None = None


class _Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Surroundings of a component.

    Attributes:
        index_url: URL or path of the JSON text it is in; None when that came from an open file.
        base: base of its relative URLs.
        keys: of its sub-datasets' shards, unless something nearer says otherwise.
        packs: of member tables, in the same form.
        grouping: the keys that say how members become samples, of the text's components around it.
        path: name in errors of the component in its text: ``""``, or like ``"datasets[1]."``.
        chain: the places that led here.
        depth: components around it.
    """

    index_url: str | None
    base: Place
    keys: dict[str, Any]
    path: str
    chain: tuple[str, ...]
    depth: int
    packs: tuple[str, ...] = ()
    grouping: Mapping[str, str] = {}


def list_shards(
    items: Iterable[Any],
    *,
    base: str | None = None,
    header: dict[str, Any] | None = None,
    find: Callable[[str], Sequence[str] | None] = lambda _: None,
) -> ShardList:
    """Make a shard list from a program's argument: dicts, (url, nsamples) pairs, or plain paths and brace patterns.

    Args:
        items: these.
        base: base of relative URLs.
        header: top-level keys of the index that they would be.
        find: gives the shards of a text that is the name of several; None: it is a path or brace pattern.

    Raises:
        SpecError: an item is none of these; ``path`` names it.
    """
    shards, misspelt, home = ShardListBuilder(), set[str](), Place(base or "")
    for k, item in enumerate(items):
        path = f"shards[{k}]"
        name = _plain(item)
        if isinstance(name, str):
            several = find(name)
            for url in _expand(name, path) if several is None else several:
                shards.append(checks.resolve(home, url, path), Row(url=url, nsamples=-1), {})
            continue
        if isinstance(item, Mapping):
            raw = dict(item)
            if "url" not in raw:
                what = "it is a sample, and no shard" if "__key__" in raw else f"its keys are {shown(list(raw))}"
                checks.fail(None, f"{path}.url", f"is missing; {what}")
        elif isinstance(item, Sequence) and len(item) == 2 and not isinstance(item, bytes):
            raw = {"url": item[0], "nsamples": item[1]}
        else:
            what = a_kind(item) + (f" of {len(item)}" if isinstance(item, Sequence) else "")
            checks.fail(
                None, path, f"is {what}; it must be a dict with url and nsamples, a (url, nsamples) pair, or a path"
            )
        for key in KNOWN_KEYS & raw.keys():
            raw[key] = _plain(raw[key])
        row = checks.convert(raw, Row, path=path)
        checks.check_digests(row, path)
        if not KNOWN_KEYS.issuperset(raw):
            _warn_of_misspelt(raw, misspelt, path)
        shards.append(checks.resolve(home, row.url, f"{path}.url"), row, raw)
    return shards.build(dict(header or {}))


def parse_index(
    data: bytes | str,
    *,
    index_url: str | None,
    load: Load,
    base: str | None = None,
    options: dict[str, Any] | None = None,
    allow_local: bool = False,
    named: set[str] | None = None,
) -> ShardList:
    """Read a JSON index, and the sub-datasets it names.

    Args:
        data: the JSON text.
        index_url: the URL or path it came from; None when it came from an open file.
        load: gives the bytes behind a sub-dataset's ``source_url``.
        base: overrides the base of relative URLs.
        options: top-level keys that override the index's.
        allow_local: let an index that came from a remote place point at local files or ``pipe:``.
        named: the servers (`Place.origins`) that the caller names, here and in texts of its own, are added before
            anything is loaded from them.

    Raises:
        SpecError: malformed; ``path`` names the value, ``url`` the index.
        NotAllowedError: a remote index points at local files or at a program.
    """
    raw = {**parse_json(data, index_url), **(options or {})}
    if named is not None:
        written = [index_url, base, *((options or {}).get(key) for key in ("base", "base_path"))]
        named.update(origin for url in written if isinstance(url, str) for origin in Place(url).origins)
    header = {key: value for key, value in raw.items() if key not in ("shardlist", "datasets")}
    checks.check_nesting(header, "", index_url)
    builder = ShardListBuilder()
    parser = _SpecParser(builder, load, allow_local=allow_local, named=named)
    parser.read(raw, index_url, base)
    header |= parser.grouping
    if not len(builder):
        checks.fail(index_url, "shardlist", "lists no shards")
    shards = builder.build(header)
    checks.check_total(shards.nsamples, shards.filesizes, index_url)
    return shards


def own_keys(header: dict[str, Any], index_url: str | None) -> dict[str, Any]:
    """The keys that an index's own shards have from its header.

    Raises:
        SpecError: one of them is of another type.
    """
    index = checks.convert(header, _Index, index_url=index_url)
    return _known(weight=index.weight, name=index.name)


def own_packs(header: dict[str, Any], index_url: str | None, home: str | None) -> tuple[str, ...]:
    """The packs of member tables that an index's header names, their URLs resolved.

    Args:
        header: the top-level keys.
        index_url: its name in errors.
        home: base of relative URLs: the directory of the index.

    Raises:
        SpecError: they are no URLs.
    """
    index = checks.convert({PACKS: header.get(PACKS)}, _Component, index_url=index_url)
    return _resolve_packs(index, Place(home or ""), "", index_url)


def parse_json(data: bytes | str, index_url: str | None, *, may_repeat: bool = False) -> dict[str, Any]:
    """The JSON object that an index is; ``may_repeat``: keys may stand twice in it, which the caller looks after.

    Raises:
        SpecError: not JSON, or not an object.
    """
    try:
        raw = _TEXTS.parse(data)
    except JsonError as error:
        text = data[:_HEAD] if isinstance(data, str) else data[:_HEAD].decode("latin-1")
        if text.lstrip("\ufeff\xef\xbb\xbf \t\r\n").lower().startswith(("<!doctype", "<html", "<?xml")):
            raise SpecError(
                f"{checks.where(index_url)}not valid JSON: it is a web page or XML, perhaps of a login; look at "
                "it in a browser, and see whether the address needs credentials",
                path="",
                url=index_url,
            ) from error
        if text.startswith("PAR1"):
            raise SpecError(
                f"{checks.where(index_url)}is a table (Parquet), not an index; give the index that it belongs to, or "
                "the one that wids pack makes of it",
                path="",
                url=index_url,
            ) from error
        raise SpecError(
            f"{checks.where(index_url)}not valid JSON ({error}); an index is made by `wids index create`",
            path="",
            url=index_url,
        ) from error
    if not isinstance(raw, dict):
        rows = "; rows for wids pack are lines of a .jsonl file" if isinstance(raw, list) else ""
        checks.fail(index_url, "", f"is a JSON {type(raw).__name__}; it must be an object{rows}")
    if not may_repeat and (len(data) <= _MAX_CHECKED or _may_repeat(data, raw)):
        _check_unique(data, index_url)
    return raw


def _may_repeat(data: bytes | str, raw: dict[str, Any]) -> bool:
    """True if a text has keys of shards more often than its shards have; it may have them elsewhere, too."""
    rows = [row for rows in _row_lists(raw) for row in rows if isinstance(row, dict)]
    for key in Row.__struct_fields__:
        occurrences = data.count(f'"{key}"') if isinstance(data, str) else data.count(f'"{key}"'.encode())
        if occurrences != sum(key in row for row in rows):
            return True
    return False


def _row_lists(raw: Any) -> Iterator[list[Any]]:
    """The lists of shards of an index, and of the sub-datasets in it."""
    if isinstance(raw, dict):
        if isinstance(rows := raw.get("shardlist"), list):
            yield rows
        for part in raw["datasets"] if isinstance(raw.get("datasets"), list) else ():
            yield from _row_lists(part)


def _check_unique(data: bytes | str, index_url: str | None) -> None:
    """Refuse a key that an object has twice: JSON lets the last one win.

    Raises:
        SpecError: there is one.
    """

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            names = [name for name, _ in pairs]
            name = next(name for name in names if names.count(name) > 1)
            where = f" of the shard {shown(mapping['url'])}" if isinstance(mapping.get("url"), str) else ""
            checks.fail(index_url, name, f"stands twice in one object{where}, and only one can hold; delete the other")
        return mapping

    _TEXTS.parse_pairs(data, check)


def check_head(data: bytes, index_url: str) -> None:
    """Refuse a file by its first bytes, before the others are read, unless it may be JSON.

    Args:
        data: its beginning.
        index_url: its URL or path.

    Raises:
        SpecError: it is a tar, or a compressed file, or no JSON.
    """
    try:
        is_header = int(data[148:156].strip(b" \0") or b"-", 8) == sum(data[:148]) + 8 * 32 + sum(data[156:512])
    except ValueError:
        is_header = False
    if is_header:
        way = f"give it in a list: ShardListDataset([{index_url!r}]), or make its index (wids index create)"
        what = f"is a tar, not an index; {way}"
        raise SpecError(f"{index_url}: {what}", path="", url=index_url)
    text = data.lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    if text and text[:2].strip(b"\0")[:1] not in (b"{", b"["):
        parse_json(data[: 4 * _HEAD], index_url)


def is_index(data: bytes) -> bool:
    """True if a text is that of an index, which may be malformed, or of a view.

    Raises:
        JsonError: it is no JSON.
    """
    raw = _TEXTS.parse(data)
    if not isinstance(raw, dict) or raw.keys().isdisjoint(("shardlist", "datasets", "view_of_fingerprint")):
        return False
    rows = raw.get("shardlist")
    first = rows[0] if isinstance(rows, list) and rows else None
    return "wids_version" in raw or (isinstance(first, dict) and "url" in first)


class _SpecParser:
    """Walks an index and its sub-datasets, appending to one shard list."""

    def __init__(self, shards: ShardListBuilder, load: Load, *, allow_local: bool, named: set[str] | None) -> None:
        self.shards, self.load, self.allow_local, self.named = shards, load, allow_local, named
        self.sources: dict[str, bytes] = {}
        self.count = 0
        self.grouping: dict[str, str] = {}
        self._grouped: tuple[GroupOptions, str] | None = None
        self.misspelt: set[str] = set()

    def read(self, raw: dict[str, Any], index_url: str | None, base: str | None) -> None:
        """Read the top-level index."""
        index = checks.convert(raw, _Index, index_url=index_url)
        if raw.keys().isdisjoint(("wids_version", "shardlist", "datasets")):
            if foreign := foreign_data.recognise_index(raw):
                checks.fail(index_url, "", foreign)
            checks.fail(index_url, "", 'has no "shardlist"; an index is made by `wids index create`')
        if index.wids_version != 1:
            version = "is missing" if index.wids_version is None else f"is {index.wids_version}"
            checks.fail(index_url, "wids_version", f"{version}; this wids reads version 1")
        home = Place(index_url or "").directory.join(_own_base(index)) if base is None else Place(base)
        grouping = said_grouping(raw, index_url)
        chain = (index_url or "",)
        scope = _Scope(index_url=index_url, base=home, keys={}, path="", chain=chain, depth=0, grouping=grouping)
        self.take(raw, index, scope, _known(weight=index.weight, name=index.name))

    def take(self, raw: dict[str, Any], component: _Component, scope: _Scope, keys: dict[str, Any]) -> None:
        """Append a component's own shards, which have ``keys``, then those of its sub-datasets."""
        is_guarded = self.is_guarded(scope.index_url)
        if component.shardlist:
            self.note_grouping(raw, scope)
        packs = self.find_packs(component, scope, is_guarded=is_guarded)
        scope = msgspec.structs.replace(scope, packs=packs)
        self.shards.begin_component(keys, packs)
        listed_urls: list[str] = []
        if len(self.shards) + len(component.shardlist or ()) > MAX_SHARDS:
            checks.fail(scope.index_url, f"{scope.path}shardlist", f"makes more than {MAX_SHARDS:,} shards in all")
        for k, row in enumerate(component.shardlist or ()):
            path = f"{scope.path}shardlist[{k}]"
            checks.check_digests(row, path, scope.index_url)
            checks.check_count(row, path, scope.index_url)
            url = checks.resolve(scope.base, row.url, f"{path}.url", scope.index_url)
            if is_guarded and Place(url).reaches_local:
                forbid_local(scope.index_url, f"{path}.url", url)
            row_keys = raw["shardlist"][k]
            if not KNOWN_KEYS.issuperset(row_keys):
                checks.check_nesting(row_keys, path, scope.index_url)
                _warn_of_misspelt(row_keys, self.misspelt, f"{checks.where(scope.index_url)}{path}")
            self.shards.append(url, row, row_keys)
            listed_urls.append(url)
        self.note_named(scope.index_url, listed_urls)
        for k, part in enumerate(component.datasets or ()):
            self.take_part(raw["datasets"][k], part, scope, f"{scope.path}datasets[{k}]")

    def note_grouping(self, raw: dict[str, Any], scope: _Scope) -> None:
        """Note how the samples of a component's shards are grouped, which is the same for all of a dataset.

        Raises:
            SpecError: it is another way than that of a component before.
        """
        keys = said_grouping(raw, scope.index_url)
        grouping = parse_grouping({**scope.grouping, **keys})
        where = scope.path.removesuffix(".") or "the index"
        if self._grouped is not None and grouping != self._grouped[0]:
            before = " and ".join(f"{GROUPING_KEYS[name]} {value!r}" for name, value in self._grouped[0].items())
            checks.fail(
                scope.index_url,
                f"{scope.path}{next(iter(keys), 'shardlist')}",
                f"groups members by {' and '.join(map(repr, grouping.values()))}, and {self._grouped[1]} has {before}; "
                "a dataset has one way: open both, and mix them (wids.mix)",
            )
        self._grouped = grouping, where
        self.grouping |= {**scope.grouping, **keys}

    def find_packs(self, component: _Component, scope: _Scope, *, is_guarded: bool) -> tuple[str, ...]:
        """Packs of member tables for a component; inherited from the enclosing component if it names none."""
        home = scope.base if scope.index_url is None else Place(scope.index_url).directory
        packs = _resolve_packs(component, home, scope.path, scope.index_url)
        for url in packs:
            if is_guarded and Place(url).reaches_local:
                forbid_local(scope.index_url, f"{scope.path}{PACKS}", url)
        self.note_named(scope.index_url, packs)
        return packs or scope.packs

    def take_part(self, raw: dict[str, Any], part: _Component, scope: _Scope, path: str) -> None:
        """Append one sub-dataset, whose shards are listed in place or behind its ``source_url``."""
        if scope.depth >= _MAX_DEPTH:
            what = f"is a sub-dataset within {_MAX_DEPTH} others; list its shards further up"
            checks.fail(scope.index_url, path, what)
        if part.source_url is not None:
            self.take_source(part, part.source_url, scope, path)
            return
        if part.shardlist is None and part.datasets is None:
            checks.fail(scope.index_url, path, "has neither source_url nor shardlist")
        keys = {**scope.keys, **_known(weight=part.weight, dataset=part.name)}
        inner = msgspec.structs.replace(
            scope,
            base=scope.base.join(_own_base(part)),
            keys=keys,
            path=f"{path}.",
            depth=scope.depth + 1,
            grouping={**scope.grouping, **said_grouping(raw, scope.index_url)},
        )
        self.take(raw, part, inner, keys)

    def take_source(self, part: _Component, source_url: str, scope: _Scope, path: str) -> None:
        """Load the index behind a sub-dataset's ``source_url`` and append its shards."""
        home = scope.base if scope.index_url is None else Place(scope.index_url).directory
        source = checks.resolve(home, source_url, f"{path}.source_url", scope.index_url)
        if self.is_guarded(scope.index_url) and Place(source).reaches_local:
            forbid_local(scope.index_url, f"{path}.source_url", source)
        if source in scope.chain:
            checks.fail(scope.index_url, f"{path}.source_url", f"leads back to {source}")
        self.count += 1
        if self.count > _MAX_SOURCES:
            checks.fail(scope.index_url, f"{path}.source_url", f"is one more than the {_MAX_SOURCES:,} that are read")
        self.note_named(scope.index_url, [source])
        if source not in self.sources:
            self.sources[source] = self.load(source)
        raw = parse_json(self.sources[source], source)
        index = checks.convert(raw, _Index, index_url=source)
        # Sub-indexes written by other tools leave the version out; if there is one, it must be known.
        if index.wids_version not in (None, 1):
            checks.fail(source, "wids_version", f"is {index.wids_version}; this wids reads version 1")
        if index.shardlist is None and index.datasets is None:
            checks.fail(source, "shardlist", "is missing")
        # The name in the index itself wins, and the weight is the reference's, as in the original.
        known = _known(weight=part.weight, dataset=index.name or part.name, source_url=source)
        keys = {**scope.keys, **known}
        said = _own_base(part)
        base = scope.base.join(said) if said else Place(source).directory.join(_own_base(index))
        chain = (*scope.chain, source)
        inner = _Scope(
            index_url=source, base=base, keys=keys, path="", chain=chain, depth=scope.depth + 1, packs=scope.packs
        )
        self.take(raw, index, inner, keys)

    def is_guarded(self, index_url: str | None) -> bool:
        """True if the index at ``index_url`` may not point at local files or programs."""
        return not (self.allow_local or _is_own(index_url))

    def note_named(self, index_url: str | None, named_urls: Iterable[str]) -> None:
        """Note the servers of URLs that stand in the index at ``index_url``, if that is the caller's own."""
        if self.named is not None and _is_own(index_url):
            # Nearly all of a million shards are on one server.
            heads = {url if "::" in url else "/".join(url.split("/", 3)[:3]) for url in named_urls}
            self.named.update(origin for head in heads for origin in Place(head).origins)


def _warn_of_misspelt(keys: Iterable[str], warned: set[str], where: str) -> None:
    """Warn of keys that look like others that mean something: as they are, they are kept and say nothing."""
    for key in {*keys} - KNOWN_KEYS - warned:
        meant = _MEANT.get(str(key).lower().replace("_", "").replace("-", "").removesuffix("s"))
        if meant is not None:
            warned.add(key)
            logger.warning("%s: has the key %r, which means nothing to wids; is it %r?", where, key, meant)


def _resolve_packs(component: _Component, home: Place, path: str, index_url: str | None) -> tuple[str, ...]:
    named = component.member_tables
    written = [named] if isinstance(named, str) else named or []
    return tuple(dict.fromkeys(checks.resolve(home, url, f"{path}{PACKS}", index_url) for url in written))


def _is_own(index_url: str | None) -> bool:
    """True if a text from ``index_url`` is the caller's: a local file, or one that was passed open."""
    return index_url is None or Place(index_url).is_local


def _plain(value: Any) -> Any:
    """A path-like as text, a numpy integer as int; anything else as it is, for the type check to judge."""
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    is_bool = str(getattr(value, "dtype", "")).endswith("bool")  # of numpy or torch; it would count as 0 or 1
    if hasattr(value, "__index__") and not isinstance(value, int) and not is_bool:
        try:
            return value.__index__()
        except TypeError:
            return value
    return value


def _known(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _own_base(component: _Component) -> str:
    """The base of relative URLs according to a component; "": it has none."""
    return component.base or component.base_path or ""


def _expand(pattern: str, path: str) -> Iterable[str]:
    try:
        yield from urls.expand(pattern)
    except SpecError as error:
        raise SpecError(f"{path}: {error}", path=path) from error


def forbid_local(index_url: str | None, path: str, url: str) -> NoReturn:
    """Raise the NotAllowedError that the remote index at ``index_url`` has a local URL at ``path``."""
    raise NotAllowedError(
        f"{checks.where(index_url)}{path} is {url!r}: an index from a remote place may not point at local files or "
        "programs; pass allow_local=True if you trust it",
        path=path,
        url=index_url,
    )
