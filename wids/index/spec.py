"""Shard list: which shards make up a dataset, and its JSON form.

Rules: pure; the bytes of an index, and of the sub-datasets it names, come from the caller. Shards are held as
columns, because an index of a million shards is pickled into every worker. Unknown keys are kept. An error names
the path to the bad value.

JSON form (``wids_version`` 1)::

    {"wids_version": 1, "name": ..., "info": ..., "base": DIRECTORY,          base, name, info: optional
     "shardlist": [{"url": ..., "nsamples": N, "filesize": BYTES, "md5sum": HEX, ...}, ...],
     "datasets": [{"source_url": URL | "shardlist": [...], "name": ..., "weight": ..., "base": ...}, ...]}
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec

from wids.errors import NotAllowedError, SpecError
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Load = Callable[[str], bytes]

Count = Annotated[int, msgspec.Meta(ge=0)]
_MD5 = re.compile(r"[0-9a-fA-F]{32}")
_KNOWN = frozenset({"url", "nsamples", "filesize", "md5sum"})
_MAX_DEPTH = 8


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as an index describes it.

    Attributes:
        url: resolved; what ``sample["__shard__"]`` says.
        nsamples: samples promised; None where no index says (plain lists of local tars).
        filesize: bytes promised, or None.
        md5sum: hexadecimal digest promised, or None.
    """

    url: str
    nsamples: Count | None
    filesize: Count | None = None
    md5sum: str | None = None


class _Row(msgspec.Struct):
    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None


class _Component(msgspec.Struct):
    shardlist: list[_Row] | None = None
    source_url: str | None = None
    name: str | None = None
    weight: float | None = None
    base: str | None = None
    base_path: str | None = None
    datasets: list[_Component] | None = None


class _Index(_Component):
    wids_version: int | None = None


class ShardList:
    """The shards of a dataset, in order, as columns.

    Attributes:
        header: the index's top-level keys but its shards: name, info, base, and whatever else it held.
        urls, nsamples, filesizes, md5sums: one entry a shard; -1 or "" is unknown.
    """

    __slots__ = ("_defaults", "_extras", "_starts", "filesizes", "header", "md5sums", "nsamples", "urls")

    def __init__(self, header: dict[str, Any] | None = None) -> None:
        self.header: dict[str, Any] = header or {}
        self.urls: list[str] = []
        self.nsamples: list[int] = []
        self.filesizes: list[int] = []
        self.md5sums: list[str] = []
        self._extras: dict[int, dict[str, Any]] = {}
        self._starts: list[int] = []  # first shard of each component, and
        self._defaults: list[dict[str, Any]] = []  # the keys that all its shards have

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, k: int) -> Shard:
        return Shard(
            url=self.urls[k],
            nsamples=None if self.nsamples[k] < 0 else self.nsamples[k],
            filesize=None if self.filesizes[k] < 0 else self.filesizes[k],
            md5sum=self.md5sums[k] or None,
        )

    def describe(self, k: int) -> dict[str, Any]:
        """Shard ``k`` as the dict that the original's ``ds.shards`` held: known keys, then unknown ones."""
        shard = self[k]
        desc: dict[str, Any] = {"url": shard.url, "nsamples": shard.nsamples}
        if shard.filesize is not None:
            desc["filesize"] = shard.filesize
        if shard.md5sum is not None:
            desc["md5sum"] = shard.md5sum
        desc.update(self._extras.get(k, {}))
        at = bisect_right(self._starts, k)
        return {**self._defaults[at - 1], **desc} if at else desc

    def dataset_of(self, k: int) -> str | None:
        """The name of the sub-dataset that shard ``k`` came from; what ``describe(k).get("dataset")`` says."""
        own = self._extras.get(k)
        if own is not None and "dataset" in own:
            return cast("str | None", own["dataset"])
        at = bisect_right(self._starts, k)
        return self._defaults[at - 1].get("dataset") if at else None

    def __getstate__(self) -> tuple[Any, ...]:
        columns = tuple("\0".join(column) for column in (self.urls, self.md5sums))
        rest = (self.nsamples, self.filesizes, self._extras, self._starts, self._defaults)
        return self.header, len(self), columns, rest

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.header, count, (names, digests), rest = state
        self.nsamples, self.filesizes, self._extras, self._starts, self._defaults = rest
        self.urls = names.split("\0") if count else []
        self.md5sums = digests.split("\0") if count else []

    def begin_component(self, defaults: dict[str, Any]) -> None:
        """All shards appended from here on have these keys, unless they bring their own."""
        self._starts.append(len(self.urls))
        self._defaults.append(defaults)

    def append(self, url: str, row: _Row, raw: dict[str, Any]) -> None:
        """Add one checked row; ``raw`` is the row as it was written, whose unknown keys are kept."""
        self.urls.append(url)
        self.nsamples.append(row.nsamples)
        self.filesizes.append(-1 if row.filesize is None else row.filesize)
        self.md5sums.append((row.md5sum or "").lower())
        if not _KNOWN.issuperset(raw):
            self._extras[len(self.urls) - 1] = {key: value for key, value in raw.items() if key not in _KNOWN}


def list_shards(items: Iterable[Any], *, base: str | None = None) -> ShardList:
    """Make a shard list from what a program passes: dicts, (url, nsamples) pairs, or plain paths and brace patterns.

    Raises:
        SpecError: an item is none of these; ``path`` names it.
    """
    shards = ShardList()
    for k, item in enumerate(items):
        path = f"shards[{k}]"
        if isinstance(item, str) or hasattr(item, "__fspath__"):
            for name in urls.expand(str(item)):
                _check_url(name, path)
                shards.append(urls.join(base, name), _Row(url=name, nsamples=-1), {})
            continue
        raw = item
        if isinstance(item, (tuple, list)) and len(item) == 2:
            raw = {"url": str(item[0]), "nsamples": item[1]}
        if not isinstance(raw, dict):
            raise SpecError(
                f"{path} is {item!r}; each shard is a dict with url and nsamples, a (url, nsamples) pair, or a path",
                path=path,
            )
        if hasattr(raw.get("url"), "__fspath__"):
            raw = {**raw, "url": str(raw["url"])}
        if hasattr(raw.get("nsamples"), "__index__"):
            raw = {**raw, "nsamples": raw["nsamples"].__index__()}  # numpy integers count as integers
        row = _convert(raw, _Row, where="", path=path)
        _check_row(row, path)
        shards.append(urls.join(base, row.url), row, raw)
    return shards


def parse_index(
    data: bytes | str,
    *,
    place: str | None,
    load: Load,
    base: str | None = None,
    options: dict[str, Any] | None = None,
    allow_local: bool = False,
) -> ShardList:
    """Read a JSON index, and the sub-datasets it names.

    Args:
        data: the JSON text.
        place: the URL or path it came from; None when it came from an open file.
        load: gives the bytes behind a sub-dataset's ``source_url``.
        base: overrides what relative URLs are relative to.
        options: top-level keys that override the index's.
        allow_local: let an index that came from a remote place point at local files or ``pipe:``.

    Raises:
        SpecError: malformed; ``path`` names the value, ``url`` the index.
        NotAllowedError: a remote index points at local files or at a program.
    """
    raw = _decode(data, place)
    if not isinstance(raw, dict):
        raise SpecError(f"{_where(place)}the index is a JSON {type(raw).__name__}; it is an object", path="", url=place)
    raw = {**raw, **(options or {})}
    header = {key: value for key, value in raw.items() if key not in ("shardlist", "datasets")}
    shards = ShardList(header)
    _Reader(shards, load, allow_local=allow_local).read(raw, place, base, chain=(place or "",))
    if not shards.urls:
        raise SpecError(f"{_where(place)}the index lists no shards", path="shardlist", url=place)
    return shards


class _Reader:
    """Walks an index and its sub-datasets, appending to one shard list."""

    def __init__(self, shards: ShardList, load: Load, *, allow_local: bool) -> None:
        self.shards, self.load, self.allow_local = shards, load, allow_local

    def read(self, raw: Any, place: str | None, base: str | None, *, chain: tuple[str, ...]) -> None:
        index = _convert(raw, _Index, where=_where(place), path="")
        if index.wids_version != 1:
            found = "is missing" if index.wids_version is None else f"is {index.wids_version}"
            raise SpecError(f"{_where(place)}wids_version {found}; this wids reads version 1", path="wids_version")
        defaults = {"weight": index.weight, "name": index.name}
        self.take(raw, index, place, _base_of(index, place, base), {}, defaults, "", chain)

    def take(
        self,
        raw: dict[str, Any],
        component: _Component,
        place: str | None,
        base: str | None,
        inherited: dict[str, Any],
        defaults: dict[str, Any],
        path: str,
        chain: tuple[str, ...],
    ) -> None:
        """Append a component's own shards, then those of its sub-datasets."""
        shards = self.shards
        merged = {key: value for key, value in {**defaults, **inherited}.items() if value is not None}
        shards.begin_component(merged)
        for k, row in enumerate(component.shardlist or ()):
            where = f"{path}shardlist[{k}]"
            _check_row(row, where, place)
            url = urls.join(base, row.url)
            self.check_allowed(url, place, f"{where}.url")
            shards.append(url, row, raw["shardlist"][k])
        for k, part in enumerate(component.datasets or ()):
            self.take_part(raw["datasets"][k], part, place, base, inherited, f"{path}datasets[{k}]", chain)

    def take_part(
        self,
        raw: dict[str, Any],
        part: _Component,
        place: str | None,
        base: str | None,
        inherited: dict[str, Any],
        path: str,
        chain: tuple[str, ...],
    ) -> None:
        if part.source_url is None:
            if part.shardlist is None and part.datasets is None:
                raise SpecError(f"{_where(place)}{path} has neither source_url nor shardlist", path=path, url=place)
            own = {**inherited, **_known(weight=part.weight, dataset=part.name)}
            self.take(raw, part, place, _base_of(part, None, None, base), own, {}, f"{path}.", chain)
            return
        source = urls.join(urls.directory_of(place) if place else base, part.source_url)
        self.check_allowed(source, place, f"{path}.source_url")
        if source in chain or len(chain) >= _MAX_DEPTH:
            raise SpecError(f"{_where(place)}{path}.source_url leads back to {source}", path=path, url=place)
        raw = _decode(self.load(source), source)
        index = _convert(raw, _Index, where=_where(source), path="")
        own = _known(weight=part.weight, dataset=part.name or index.name, source_url=source)
        # Sub-indexes written by other tools leave the version out; what is there must be one that is understood.
        if index.wids_version not in (None, 1):
            raise SpecError(f"{_where(source)}wids_version is {index.wids_version}; this wids reads version 1")
        own = {**own, **inherited}
        self.take(raw, index, source, _base_of(index, source, part.base), own, {}, "", (*chain, source))

    def check_allowed(self, url: str, place: str | None, path: str) -> None:
        if self.allow_local or place is None or urls.is_local(place) or not urls.reaches_local(url):
            return
        raise NotAllowedError(
            f"{_where(place)}{path} is {url!r}: an index from a remote place may not point at local files or "
            "programs; pass allow_local=True if you trust it",
            path=path,
            url=place,
        )


def _known(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _base_of(component: _Component, place: str | None, override: str | None, default: str | None = None) -> str | None:
    """What a component's relative URLs are relative to: the caller's word, its own base, its place, its parent's."""
    home = urls.directory_of(place) if place is not None else default
    if override is not None:
        return override
    own = component.base or component.base_path
    return urls.join(home, own) if own else home


def _decode(data: bytes | str, place: str | None) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{_where(place)}not valid JSON ({error}); an index is made by `wids index create`", path="", url=place
        ) from error


def _convert(raw: Any, kind: type[Any], *, where: str, path: str) -> Any:
    """Check types with msgspec, and say where a bad value stands in terms of the JSON text."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        name = (path + at.rstrip("`")).lstrip(".")
        field = re.search(r"required field `(\w+)`", what)
        if field:
            name = f"{name}.{field[1]}".lstrip(".")
        raise SpecError(f"{where}{name or 'the index'}: {what}", path=name) from error


def _check_row(row: _Row, path: str, place: str | None = None) -> None:
    _check_url(row.url, f"{path}.url", place)
    if row.md5sum and not _MD5.fullmatch(row.md5sum):
        raise SpecError(
            f"{_where(place)}{path}.md5sum is {row.md5sum!r}; an md5 digest has 32 hexadecimal digits",
            path=f"{path}.md5sum",
            url=place,
        )


def _check_url(url: str, path: str, place: str | None = None) -> None:
    if not url or "\0" in url:
        raise SpecError(f"{_where(place)}{path} is {url!r}; it is a URL or a path", path=path, url=place)


def _where(place: str | None) -> str:
    return f"{place}: " if place else ""
