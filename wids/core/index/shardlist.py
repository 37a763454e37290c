"""Shard list: URL, sample count, size and checksum of each shard of a dataset, in order.

Pure. A list never changes: what would change it makes another one. Shards are packed columns, as in a compiled index
(`wids.core.index.compiled`), in memory or mapped from such a file, of which only the place is pickled. Keys that wids
does not know are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import msgspec
import numpy as np

from wids.core.index.packed_columns import Digests, Numbers, Places, Texts, join_texts
from wids.core.place import Place
from wids.core.shard import Count, Shard
from wids.core.tables.keys import NAMED_RULES
from wids.core.tables.table import GROUPS, GroupOptions
from wids.errors import SpecError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from wids.core.files.container import Sections
    from wids.core.index.selection import Selection
    from wids.core.tables.table import Group, KeyRule


class Row(msgspec.Struct):
    """One shard as it is written in an index, its types checked. ``nsamples`` is -1 where no index says."""

    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None
    crc32: str | None = None


# Part of a grouping -> the top-level key of an index that says it.
GROUPING_KEYS = {"rule": "key_rule", "group": "group"}


def said_grouping(keys: Mapping[str, Any], index_url: str | None = None) -> dict[str, str]:
    """The keys of an index that say how members become samples.

    ``group`` with a value that is none of ours, such as the name of a data set, says nothing of that: indexes had such
    keys before wids gave it a meaning.

    Raises:
        SpecError: ``key_rule`` has another value.
    """
    said = {key: keys[key] for key in GROUPING_KEYS.values() if keys.get(key)}
    if said.get("group", GROUPS[0]) not in GROUPS:
        del said["group"]
    if (rule := said.get("key_rule", NAMED_RULES[0])) not in NAMED_RULES:
        raise SpecError(
            f"{'' if index_url is None else f'{index_url}: '}key_rule is {rule!r:.200}; it must be {NAMED_RULES[0]!r} "
            f"or {NAMED_RULES[1]!r} (options={{'key_rule': None}} ignores it)",
            path="key_rule",
            url=index_url,
        )
    return said


def parse_grouping(keys: Mapping[str, Any], index_url: str | None = None) -> GroupOptions:
    """The way in which members become samples, by keys of an index; the standard way where it has none.

    Raises:
        SpecError: see `said_grouping`.
    """
    said: Any = said_grouping(keys, index_url)
    return GroupOptions(rule=said.get("key_rule", NAMED_RULES[0]), group=said.get("group", GROUPS[0]))


def grouping_keys(grouping: GroupOptions) -> dict[str, str]:
    """The keys by which an index says how members become samples; of the standard way none."""
    usual = GroupOptions(rule=NAMED_RULES[0], group=GROUPS[0])
    return {GROUPING_KEYS[name]: value for name, value in grouping.items() if value != usual[name]}  # type: ignore[literal-required, misc]


KNOWN_KEYS = frozenset(Row.__struct_fields__)
MD5_BYTES, CRC32_BYTES = 16, 4
_HAS_MD5, _HAS_CRC32 = 1, 2
# With fewer shards, columns that a program reads item by item are Python lists, whose items are read ten times as fast.
MANY = 20_000


class Summary(NamedTuple):
    """The summary of a compiled index of its shards as a whole.

    Attributes:
        is_local: no shard is remote.
        fingerprint: see `wids.core.index.fingerprint`; "" where it has to be computed.
        contents: see there.
    """

    is_local: bool
    fingerprint: str
    contents: dict[str, str] | None = None


class Extras(Protocol):
    """The keys of single shards that wids does not know."""

    def get(self, k: int, /) -> dict[str, Any] | None:
        """The keys of shard ``k``; None: it has none."""

    def items(self) -> Iterable[tuple[int, dict[str, Any]]]:
        """(number of a shard, its keys) of those that have some."""


class Origin(Protocol):
    """The place of the columns of a shard list."""

    def reopen(self) -> ShardList:
        """The same shard list, in any process."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ShardList:
    """The shards of a dataset, in order, as columns.

    Attributes:
        sections: the columns, packed: those of a compiled index of their names but ``hashes`` and ``hashed``, which may
            be missing.
        header: the index's top-level keys but its shards: name, info, base, and any others.
        extras: the keys that single shards have, and that wids does not know.
        starts: the first shard of each component: the index itself, and its sub-datasets.
        defaults: the keys that all shards of each component have.
        packs: (first shard, URLs of the packs of member tables that hold from there on), ascending.
        home: base of relative URLs; None: they are taken as they stand.
        file_url: name in errors of the file that the columns are in.
        summary: of a compiled index; None: unknown.
        origin: the place of a compiled index; with it, a pickle holds that place and no shards.
        selection: the samples that a view has of the shards; None: all. ``nsamples`` counts all in any case.
        urls: one for each shard.
        nsamples: samples of each shard; -1: unknown.
        filesizes: bytes of each shard; -1: unknown.
        md5sums: of each shard; "": unknown.
        crc32s: likewise.
    """

    sections: Sections
    header: dict[str, Any]
    extras: Extras
    starts: Sequence[int] = ()
    defaults: Sequence[dict[str, Any]] = ()
    packs: Sequence[tuple[int, tuple[str, ...]]] = ()
    home: str | None = None
    file_url: str = ""
    summary: Summary | None = None
    origin: Origin | None = None
    selection: Selection | None = None
    urls: Places = field(init=False)
    nsamples: Numbers = field(init=False)
    filesizes: Numbers = field(init=False)
    md5sums: Digests = field(init=False)
    crc32s: Digests = field(init=False)

    def __post_init__(self) -> None:
        sections = self.sections
        hashes = (sections["hashes"], sections["hashed"]) if "hashes" in sections else None
        texts, known = Texts(sections["url_ends"], sections["urls"], file_url=self.file_url), sections["known"]
        columns = {
            "urls": Places(texts, hashes, home=self.home),
            "nsamples": Numbers(sections["counts"]),
            "filesizes": Numbers(sections["filesizes"]),
            "md5sums": Digests(sections["md5s"], MD5_BYTES, known, _HAS_MD5),
            "crc32s": Digests(sections["crc32s"], CRC32_BYTES, known, _HAS_CRC32),
        }
        for name, column in columns.items():
            object.__setattr__(self, name, column)

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
            packs=self._packs_of(k) if self.packs else (),
        )

    def _packs_of(self, k: int) -> tuple[str, ...]:
        at = bisect_right(self.packs, range(len(self))[k], key=itemgetter(0))
        return self.packs[at - 1][1] if at else ()

    def all_packs(self) -> tuple[str, ...]:
        """The packs of member tables of any of these shards, each once."""
        return tuple(dict.fromkeys(url for _, packs in self.packs for url in packs))

    def with_packs(self, packs: Sequence[str]) -> ShardList:
        """The same shards; these packs hold for all of them, in the place of any others."""
        return replace(self, packs=[(0, tuple(packs))] if packs else [])

    def with_header(self, header: dict[str, Any]) -> ShardList:
        """The same shards, of an index with other top-level keys."""
        return replace(self, header=header)

    @property
    def grouping(self) -> GroupOptions:
        """The index's way to make samples of members: ``key_rule`` and ``group``; the standard way if it gives none.

        Raises:
            SpecError: it says something else.
        """
        return parse_grouping(self.header)

    def choose_grouping(self, *, rule: KeyRule | None, group: Group | None) -> GroupOptions:
        """The grouping that a caller gives, else the index's; a contradiction, or another value, is a warning.

        Raises:
            SpecError: see `grouping`.
        """
        said, options, keys = self.grouping, {"rule": rule, "group": group}, said_grouping(self.header)
        if (other := self.header.get("group")) and "group" not in keys:
            words = "%s: group is %s, which is no way to group members (%r, %r), and is ignored"
            logger.warning(words, shown(self.header.get("name") or "the index"), shown(other), *GROUPS)
        for (name, value), known in zip(options.items(), said.values(), strict=True):
            key = GROUPING_KEYS[name]
            if value is not None and key in keys and value != known:
                logger.warning(
                    "%s=%r is given, and the index says %r, by which its samples were counted", key, value, known
                )
        return GroupOptions(
            rule=said["rule"] if rule is None else rule, group=said["group"] if group is None else group
        )

    def select(self, selection: Selection | None) -> ShardList:
        """The same shards, of which a view has these samples; None: all."""
        return replace(self, selection=selection)

    def with_known(self, counts: Mapping[int, int], sizes: Mapping[int, int]) -> ShardList:
        """The same shards, with the counts and sizes of some: number of the shard -> samples, or bytes."""
        if not counts and not sizes:
            return self
        sections = dict(self.sections)
        for name, known in (("counts", counts), ("filesizes", sizes)):
            column = array("q", sections[name])
            for k, value in known.items():
                column[k] = value
            sections[name] = memoryview(column)
        sections["ends"] = _sum(sections["counts"])
        return replace(self, sections=sections, summary=None, origin=None)

    def weighted_parts(self) -> list[tuple[str | None, int, int, float | None]]:
        """(name, first shard, last shard + 1, weight) of each sub-dataset; empty where they are no mixture.

        A mixture is two sub-datasets or more, one of which has a weight. A sub-dataset within another has the other's
        weight, unless it has its own; those that follow each other with the same name and weight are one. A list of
        shards, which has no sub-datasets, may name them shard by shard.
        """
        parts: list[tuple[str | None, int, int, float | None]] = []
        for first, last, keys in self.components() if self.starts else self._own_components():
            name, weight = keys.get("dataset"), keys.get("weight")
            if first == last:
                continue
            if parts and (parts[-1][0], parts[-1][3]) == (name, weight):
                parts[-1] = name, parts[-1][1], last, weight
            else:
                parts.append((name, first, last, weight))
        return parts if len(parts) > 1 and any(weight is not None for *_, weight in parts) else []

    def components(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(first shard, last shard + 1, the keys that all have) of each component."""
        return zip(self.starts, [*self.starts[1:], len(self)], self.defaults, strict=True)

    def _own_components(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """The shards one by one, if some have both a name and a weight, as those of an index's sub-datasets do."""
        named = {k: keys for k, keys in self.extras.items() if {"dataset", "weight"} <= keys.keys()}
        if all(isinstance(keys["weight"], (int, float)) for keys in named.values()):
            for k in range(len(self)) if named else ():
                yield k, k + 1, named.get(k, {})

    @property
    def lengths(self) -> Sequence[int]:
        """Samples of each shard that are in the dataset; `nsamples`, but of a view."""
        return self.nsamples if self.selection is None else self.selection.counts

    def ends(self) -> Sequence[int]:
        """End of each shard's samples, counted over the dataset."""
        return self.whole_ends() if self.selection is None else self.selection.ends

    def whole_ends(self) -> Sequence[int]:
        """End of each shard's samples, counted over all samples of all shards."""
        return self.sections["ends"]

    def unknown_counts(self) -> list[int]:
        """The numbers of shards whose sample count no index states."""
        unknown: list[int] = np.flatnonzero(np.asarray(self.nsamples) < 0).tolist()
        return unknown

    @property
    def class_names(self) -> list[str]:
        """The names of classes by number, as `wids pack` puts them into the index's ``info``; empty: it has none."""
        info = self.header.get("info")
        names = info.get("classes") if isinstance(info, dict) else None
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The extensions of the members of its samples, as the index says; None: it does not."""
        fields = self.header.get("fields")
        is_list = isinstance(fields, list) and all(isinstance(name, str) and name.startswith(".") for name in fields)
        return tuple(fields) if is_list and fields else None

    def find(self, url: str) -> Shard:
        """The first shard with this URL.

        Raises:
            KeyError: none exists.
        """
        try:
            return self[self.urls.index(url)]
        except ValueError:
            raise KeyError(f"{Place(url).public} is not a shard of this dataset") from None

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
        desc.update(self.extras.get(k) or {})
        at = bisect_right(self.starts, k)
        return {**self.defaults[at - 1], **desc} if at else desc

    def dataset_of(self, k: int) -> str | None:
        """The name of the sub-dataset that shard ``k`` came from; the same as ``describe(k).get("dataset")``."""
        keys = self.extras.get(k)
        if keys is not None and "dataset" in keys:
            return cast("str | None", keys["dataset"])
        at = bisect_right(self.starts, k)
        return self.defaults[at - 1].get("dataset") if at else None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return _reopen, (self.origin, self.header, self.packs, self.selection)
        columns = {name: _shrunk(self.sections[name]) for name in _COLUMNS}
        more = self.starts, self.defaults, self.packs, self.home, self.file_url, self.selection
        return _restore, (columns, self.header, dict(self.extras.items()), *more)


class ShardListBuilder:
    """Packs shards into a list, one after another."""

    def __init__(self) -> None:
        self._counts, self._filesizes = array("q"), array("q")
        self._urls: list[str] = []
        self._md5s: list[str] = []
        self._crc32s: list[str] = []
        self._extras: dict[int, dict[str, Any]] = {}
        self._starts: list[int] = []
        self._defaults: list[dict[str, Any]] = []
        self._packs: list[tuple[int, tuple[str, ...]]] = []

    def __len__(self) -> int:
        return len(self._counts)

    def begin_component(self, defaults: dict[str, Any], packs: tuple[str, ...] = ()) -> None:
        """All shards appended from here on have these keys, unless they bring their own, and these packs."""
        self._starts.append(len(self))
        self._defaults.append(defaults)
        if packs != (self._packs[-1][1] if self._packs else ()):
            self._packs.append((len(self), packs))

    def append(self, url: str, row: Row, raw: dict[str, Any]) -> None:
        """Add one checked row; ``raw`` is the row as it was written, whose unknown keys are kept."""
        if not KNOWN_KEYS.issuperset(raw):
            self._extras[len(self)] = {key: raw[key] for key in raw if key not in KNOWN_KEYS}
        self._urls.append(url)
        self._counts.append(row.nsamples)
        self._filesizes.append(-1 if row.filesize is None else row.filesize)
        self._md5s.append(row.md5sum or "")
        self._crc32s.append(row.crc32 or "")

    def build(self, header: dict[str, Any]) -> ShardList:
        """The list of the shards; nothing may be added from here on."""
        counts, (url_ends, urls) = memoryview(self._counts), join_texts(self._urls)
        md5s, has_md5 = _join_digests(self._md5s, MD5_BYTES)
        crc32s, has_crc32 = _join_digests(self._crc32s, CRC32_BYTES)
        sections = {
            "counts": counts,
            "ends": _sum(counts),
            "filesizes": memoryview(self._filesizes),
            "md5s": md5s,
            "crc32s": crc32s,
            "known": memoryview((_HAS_MD5 * has_md5 | _HAS_CRC32 * has_crc32).tobytes()),
            "url_ends": url_ends,
            "urls": urls,
        }
        return ShardList(
            sections=sections,
            header=header,
            extras=self._extras,
            starts=self._starts,
            defaults=self._defaults,
            packs=self._packs,
        )


# Columns from which all others follow.
_COLUMNS = ("counts", "filesizes", "md5s", "crc32s", "known", "url_ends", "urls")
_SMALL = 1 << 31


def _join_digests(digests: list[str], width: int) -> tuple[memoryview, npt.NDArray[np.uint8]]:
    """(all digests of so many bytes, zeros where one is unknown; 1 for each that is known)."""
    known = np.fromiter(map(bool, digests), np.uint8, len(digests))
    if not known.any():
        return memoryview(bytes(width * len(digests))), known
    unknown = "00" * width
    return memoryview(bytes.fromhex("".join(digests if known.all() else [each or unknown for each in digests]))), known


def _sum(counts: memoryview) -> memoryview:
    """Running sums."""
    return memoryview(np.cumsum(np.asarray(counts), dtype=np.int64))  # type: ignore[arg-type]  # numpy's are buffers


def _shrunk(column: memoryview) -> npt.NDArray[Any] | int:
    """A column as it is pickled: its numbers in four bytes where they fit; of bytes that are all zero, their number."""
    numbers = np.asarray(column)
    if numbers.itemsize == 1:
        return numbers if numbers.any() else len(numbers)
    is_small = len(numbers) and numbers.min() >= -_SMALL and numbers.max() < _SMALL
    return numbers.astype(np.int32) if is_small else numbers


def _restored(pickled: npt.NDArray[Any] | int) -> memoryview:
    if isinstance(pickled, int):
        return memoryview(bytes(pickled))
    return memoryview(pickled if pickled.itemsize == 1 else pickled.astype(np.int64))  # type: ignore[arg-type]  # as above


def _restore(
    columns: dict[str, npt.NDArray[Any] | int], header: dict[str, Any], extras: Extras, *more: Any
) -> ShardList:
    """The list that was pickled."""
    sections = {name: _restored(column) for name, column in columns.items()}
    sections["ends"] = _sum(sections["counts"])
    starts, defaults, packs, home, file_url, selection = more
    return ShardList(
        sections=sections,
        header=header,
        extras=extras,
        starts=starts,
        defaults=defaults,
        packs=packs,
        home=home,
        file_url=file_url,
        selection=selection,
    )


def _reopen(
    origin: Origin,
    header: dict[str, Any],
    packs: Sequence[tuple[int, tuple[str, ...]]],
    selection: Selection | None,
) -> ShardList:
    """The list that was pickled; these three may be others than when it was opened."""
    return replace(origin.reopen(), header=header, packs=packs, selection=selection)
