"""Shard list: URL, sample count, size and checksum of each shard of a dataset, in order.

Pure. Shards are held as columns, because a list of a million shards is pickled into every worker; those of a compiled
index are mapped, and only its place is pickled. Keys that wids does not know are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, cast

import msgspec

from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wids.index.selection import Selection

MAX_COUNT = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as an index describes it.

    Attributes:
        url: resolved; what ``sample["__shard__"]`` says.
        nsamples: samples promised; None where no index says (plain lists of local tars).
        filesize: bytes promised, or None.
        md5sum, crc32: hexadecimal digests promised, in lower case, or None.
        packs: where its member table may be beside others': packs (`wids.tables.pack_format`) that the index names.
    """

    url: str
    nsamples: Count | None
    filesize: Count | None = None
    md5sum: str | None = None
    crc32: str | None = None
    packs: tuple[str, ...] = ()


class Row(msgspec.Struct):
    """One shard as it is written in an index, its types checked. ``nsamples`` is -1 where no index says."""

    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None
    crc32: str | None = None


KNOWN_KEYS = frozenset(Row.__struct_fields__)


class Facts(NamedTuple):
    """What a compiled index knows of its shards as a whole.

    Attributes:
        is_local: no shard is remote.
        fingerprint: see `wids.index.fingerprint`; "" where it has to be computed.
        contents: see there.
    """

    is_local: bool
    fingerprint: str
    contents: dict[str, str] | None = None


class Columns(NamedTuple):
    """The shards of a compiled index, as they lie in it; see `ShardList`.

    Attributes:
        packs: (first shard, the packs of member tables that hold from there on), ascending.
    """

    urls: Sequence[str]
    nsamples: Sequence[int]
    ends: Sequence[int]
    filesizes: Sequence[int]
    md5sums: Sequence[str]
    crc32s: Sequence[str]
    extras: Extras
    starts: list[int]
    defaults: list[dict[str, Any]]
    facts: Facts
    packs: list[tuple[int, tuple[str, ...]]]


class Extras(Protocol):
    """The keys of single shards that wids does not know."""

    def get(self, k: int, /) -> dict[str, Any] | None:
        """Those of shard ``k``; None: it has none."""

    def items(self) -> Iterable[tuple[int, dict[str, Any]]]:
        """(number of a shard, its keys) of those that have some."""


class Origin(Protocol):
    """Where the columns of a shard list lie."""

    def reopen(self) -> ShardList:
        """The same shard list, in any process."""


class _Lists(NamedTuple):
    """The columns of a list that may be changed."""

    urls: list[str]
    nsamples: list[int]
    filesizes: list[int]
    md5sums: list[str]
    crc32s: list[str]
    extras: dict[int, dict[str, Any]]


class ShardList:
    """The shards of a dataset, in order, as columns.

    The columns are Python's lists, or lie in a compiled index (`wids.index.compiled`), which costs a process no memory.
    With the first change those of a compiled index become lists.

    Attributes:
        header: the index's top-level keys but its shards: name, info, base, and any others.
        urls, nsamples, filesizes, md5sums, crc32s: one entry a shard; -1 or "" is unknown. No URL has a NUL in it.
        facts: of a compiled index; None: none are known.
        origin: where a compiled index lies; with it, a pickle is that place, and no shards.
        selection: the samples that a view has of the shards; None: all. ``nsamples`` counts all in any case.
        edits: how often shards were replaced by others; -1: as a pickle had it.
    """

    __slots__ = (
        *("_defaults", "_ends", "_extras", "_is_shared", "_lists", "_packs", "_starts"),
        *("crc32s", "edits", "facts", "filesizes", "header", "md5sums", "nsamples", "origin", "selection", "urls"),
    )

    urls: Sequence[str]
    nsamples: Sequence[int]
    filesizes: Sequence[int]
    md5sums: Sequence[str]
    crc32s: Sequence[str]
    facts: Facts | None
    _extras: Extras
    _ends: Sequence[int] | None
    _lists: _Lists | None

    def __init__(
        self,
        header: dict[str, Any] | None = None,
        *,
        columns: Columns | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.header: dict[str, Any] = header or {}
        self.origin = origin
        self.edits = 0
        self.selection: Selection | None = None
        self._is_shared = False  # views have the same columns
        self._starts: list[int] = []  # first shard of each component, and
        self._defaults: list[dict[str, Any]] = []  # the keys that all its shards have
        # Packs of member tables, each tuple from one shard up to the next one's.
        self._packs: list[tuple[int, tuple[str, ...]]] = []
        if columns is None:
            self._use(_Lists([], [], [], [], [], {}))
            return
        self._lists, self._ends, self.facts = None, columns.ends, columns.facts
        self.urls, self.nsamples, self.filesizes = columns.urls, columns.nsamples, columns.filesizes
        self.md5sums, self.crc32s, self._extras = columns.md5sums, columns.crc32s, columns.extras
        self._starts, self._defaults, self._packs = columns.starts, columns.defaults, columns.packs

    def _use(self, lists: _Lists) -> None:
        self._lists = lists
        self.urls, self.nsamples, self.filesizes, self.md5sums, self.crc32s, self._extras = lists
        self.facts = None
        self._ends = None

    def _changeable(self) -> _Lists:
        """The columns as lists, to be changed."""
        if self._lists is None or self._is_shared:
            self._is_shared = False
            numbers = list(self.nsamples), list(self.filesizes)
            digests = list(self.md5sums), list(self.crc32s)
            self._use(_Lists(list(self.urls), *numbers, *digests, dict(self._extras.items())))
            self.origin = None
        assert self._lists is not None  # noqa: S101 - for the type checker
        return self._lists

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, k: int) -> Shard:
        nsamples, filesize = self.nsamples[k], self.filesizes[k]
        return Shard(
            url=self.urls[k],
            nsamples=None if nsamples < 0 else nsamples,
            filesize=None if filesize < 0 else filesize,
            md5sum=self.md5sums[k] or None,
            crc32=self.crc32s[k] or None,
            packs=self._packs_of(k) if self._packs else (),
        )

    def _packs_of(self, k: int) -> tuple[str, ...]:
        at = bisect_right(self._packs, range(len(self))[k], key=itemgetter(0))
        return self._packs[at - 1][1] if at else ()

    @property
    def is_mapped(self) -> bool:
        """Whether the columns lie in a compiled index, and not in lists of this process."""
        return self._lists is None

    @property
    def packs(self) -> list[tuple[int, tuple[str, ...]]]:
        """(first shard, URLs of the packs of member tables that hold from there on), ascending."""
        return self._packs

    def all_packs(self) -> tuple[str, ...]:
        """The packs of member tables of any of these shards, each once."""
        return tuple(dict.fromkeys(url for _, found in self._packs for url in found))

    def use_packs(self, packs: Sequence[str]) -> None:
        """These packs hold for all shards, in the place of any others."""
        self._packs = [(0, tuple(packs))] if packs else []

    @property
    def starts(self) -> list[int]:
        """The first shard of each component: the index itself, and its sub-datasets."""
        return self._starts

    @property
    def defaults(self) -> list[dict[str, Any]]:
        """The keys that all shards of each component have."""
        return self._defaults

    def weighted_parts(self) -> list[tuple[str | None, int, int, float | None]]:
        """(name, first shard, last shard + 1, weight) of each sub-dataset; empty where they are no mixture.

        A mixture is two sub-datasets or more, one of which has a weight. A sub-dataset within another has the other's
        weight, unless it has its own; those that follow each other with the same name and weight are one. A list of
        shards, which has no sub-datasets, may name them shard by shard.
        """
        found: list[tuple[str | None, int, int, float | None]] = []
        for first, last, keys in self._components() if self._starts else self._own_components():
            name, weight = keys.get("dataset"), keys.get("weight")
            if first == last:
                continue
            if found and (found[-1][0], found[-1][3]) == (name, weight):
                found[-1] = name, found[-1][1], last, weight
            else:
                found.append((name, first, last, weight))
        return found if len(found) > 1 and any(weight is not None for *_, weight in found) else []

    def _components(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(first shard, last shard + 1, the keys that all have) of each component."""
        return zip(self._starts, [*self._starts[1:], len(self)], self._defaults, strict=True)

    def _own_components(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The shards one by one, if some have both a name and a weight, as those of an index's sub-datasets do."""
        own = {k: keys for k, keys in self._extras.items() if {"dataset", "weight"} <= keys.keys()}
        if all(isinstance(keys["weight"], (int, float)) for keys in own.values()):
            for k in range(len(self)) if own else ():
                yield k, k + 1, own.get(k, {})

    @property
    def extras(self) -> Extras:
        """The keys that single shards have, and that wids does not know."""
        return self._extras

    @property
    def lengths(self) -> Sequence[int]:
        """Samples of each shard that are in the dataset; `nsamples`, but of a view."""
        return self.nsamples if self.selection is None else self.selection.counts

    def ends(self) -> Sequence[int]:
        """Where each shard's samples end, counted over the dataset."""
        return self.whole_ends() if self.selection is None else self.selection.ends

    def whole_ends(self) -> Sequence[int]:
        """Where each shard's samples end, counted over all samples of all shards."""
        return list(accumulate(self.nsamples)) if self._ends is None else self._ends

    def select(self, selection: Selection) -> ShardList:
        """The same shards, of which a view has these samples."""
        self._is_shared = True
        found = ShardList.__new__(ShardList)
        for name in ShardList.__slots__:
            setattr(found, name, getattr(self, name))
        found.selection = selection
        return found

    def unknown_counts(self) -> list[int]:
        """The numbers of shards of which no index says how many samples they hold."""
        # A compiled index has none.
        return [] if self._lists is None else [k for k, count in enumerate(self.nsamples) if count < 0]

    @property
    def class_names(self) -> list[str]:
        """The names of classes by number, as `wids pack` puts them into the index's ``info``; empty: it has none."""
        info = self.header.get("info")
        names = info.get("classes") if isinstance(info, dict) else None
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []

    def find(self, url: str) -> Shard:
        """The first shard with this URL.

        Raises:
            KeyError: there is none.
        """
        try:
            return self[self.urls.index(url)]
        except ValueError:
            raise KeyError(f"{without_secrets(url, url)} is not a shard of this dataset") from None

    def describe(self, k: int) -> dict[str, Any]:
        """Shard ``k`` (0 <= k < len) as the dict that the original's ``ds.shards`` held, unknown keys and all."""
        shard = self[k]
        desc: dict[str, Any] = {"url": shard.url, "nsamples": shard.nsamples}
        if shard.filesize is not None:
            desc["filesize"] = shard.filesize
        if shard.md5sum is not None:
            desc["md5sum"] = shard.md5sum
        if shard.crc32 is not None:
            desc["crc32"] = shard.crc32
        desc.update(self._extras.get(k) or {})
        at = bisect_right(self._starts, k)
        return {**self._defaults[at - 1], **desc} if at else desc

    def dataset_of(self, k: int) -> str | None:
        """The name of the sub-dataset that shard ``k`` came from; what ``describe(k).get("dataset")`` says."""
        own = self._extras.get(k)
        if own is not None and "dataset" in own:
            return cast("str | None", own["dataset"])
        at = bisect_right(self._starts, k)
        return self._defaults[at - 1].get("dataset") if at else None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._lists is None and self.origin is not None:
            return _reopen, (self.origin, self.header, self._packs, self.selection)
        return ShardList, (), self.__getstate__()

    def __getstate__(self) -> tuple[Any, ...]:
        texts = tuple("\0".join(column) for column in (self.urls, self.md5sums, self.crc32s))
        numbers = list(self.nsamples), list(self.filesizes)
        keys = dict(self._extras.items()), self._starts, self._defaults
        return self.header, len(self), texts, (*numbers, *keys, self._packs, self.selection)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.header, count, texts, rest = state
        self.edits = -1
        self._is_shared = False
        nsamples, filesizes, extras, self._starts, self._defaults, self._packs, self.selection = rest
        urls, md5sums, crc32s = (text.split("\0") if count else [] for text in texts)
        self._use(_Lists(urls, nsamples, filesizes, md5sums, crc32s, extras))

    def begin_component(self, defaults: dict[str, Any], packs: tuple[str, ...] = ()) -> None:
        """All shards appended from here on have these keys, unless they bring their own, and these packs."""
        self._starts.append(len(self.urls))
        self._defaults.append(defaults)
        if packs != (self._packs[-1][1] if self._packs else ()):
            self._packs.append((len(self.urls), packs))

    def append(self, url: str, row: Row, raw: dict[str, Any]) -> None:
        """Add one checked row; ``raw`` is the row as it was written, whose unknown keys are kept."""
        lists = self._changeable()
        lists.urls.append(url)
        lists.nsamples.append(row.nsamples)
        lists.filesizes.append(-1 if row.filesize is None else row.filesize)
        lists.md5sums.append((row.md5sum or "").lower())
        lists.crc32s.append((row.crc32 or "").lower())
        if extras := _unknown(raw):
            lists.extras[len(lists.urls) - 1] = extras

    def note_count(self, k: int, nsamples: int) -> None:
        """Shard ``k``, of which no index says it, holds so many samples."""
        self._changeable().nsamples[k] = nsamples

    def note_size(self, k: int, filesize: int) -> None:
        """Shard ``k`` has so many bytes."""
        self._changeable().filesizes[k] = filesize

    def replace(self, k: int, row: ShardList) -> None:
        """Make shard ``k`` the one shard of ``row``. ``nsamples`` becomes another list if its count is another one."""
        lists = self._changeable()
        self.edits += 1
        if self._starts:  # the keys that all shards of a component have become each one's own, to be changed alone
            extras = {n: extras for n in range(len(self)) if (extras := _unknown(self.describe(n)))}
            self._use(lists := lists._replace(extras=extras))
            self._starts, self._defaults = [], []
        lists.urls[k], lists.filesizes[k] = row.urls[0], row.filesizes[0]
        lists.md5sums[k], lists.crc32s[k] = row.md5sums[0], row.crc32s[0]
        if row.nsamples[0] != lists.nsamples[k]:
            self._use(lists := lists._replace(nsamples=lists.nsamples.copy()))
            lists.nsamples[k] = row.nsamples[0]
        lists.extras.pop(k, None)
        if own := _unknown(row.describe(0)):
            lists.extras[k] = own


def _reopen(
    origin: Origin,
    header: dict[str, Any],
    packs: list[tuple[int, tuple[str, ...]]],
    selection: Selection | None,
) -> ShardList:
    """The list that was pickled; all but its columns may have been changed since it was opened."""
    shards = origin.reopen()
    shards.header, shards._packs, shards.selection = header, packs, selection  # noqa: SLF001 - of this module
    return shards


def _unknown(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys that are not ours."""
    return {} if KNOWN_KEYS.issuperset(raw) else {key: raw[key] for key in raw if key not in KNOWN_KEYS}
