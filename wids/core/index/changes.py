"""Changes of a list of shards: which shards are the same, have moved, were replaced, added or dropped. Pure.

A shard is the same by what is known of its content, never by its samples' keys, and none is opened:

    checksum    MD5, or CRC-32 with size and count: wherever it lies now
    URL         the same one (without its signature), size and count, where no checksum says otherwise
    name        below the directory that all shards of a list share, size and count: the data have moved as a whole

A shard at a URL of before with another content is replaced: all of its samples are new, except those that it says it
has kept (`REWRITTEN`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.index.fingerprint import portable_names, unsigned
from wids.core.order.index_set import IndexSet
from wids.core.place import Place
from wids.core.shard import Count  # noqa: TC001 - msgspec looks at annotations
from wids.errors import InputError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from wids.core.index.shardlist import ShardList
    from wids.core.order.permutation import Indices

# The key of a shard in an index, by which one that was written anew says which samples it has of an earlier one:
# {"url", "nsamples", "filesize", "md5sum", "crc32": of that one, "without": [rows that it has no more], "rewritten": of
# that one, if it was written anew itself}. URLs may be relative to the directory of the shard, or to that of the index.
REWRITTEN = "rewritten"
_MOST_ORIGINS = 1000  # of a shard that was written anew again and again
KINDS = ("same", "moved", "replaced", "added", "dropped")
_NONE = np.zeros(0, np.int64)
_PIECE = 1 << 22  # samples of a view that are looked at together


class ShardContent(NamedTuple):
    """A shard and its content, as an index says them; see `ShardContents`."""

    url: str
    samples: int
    size: int
    md5: str
    crc32: str


class ListedPart(NamedTuple):
    """A list of shards in a dataset: an index, a view, or a source of a mixture.

    Attributes:
        shards: the list, with its selection if it is a view.
        first: the index of its first sample in the dataset.
    """

    shards: ShardList
    first: int = 0


def check_counts(shards: ShardList) -> None:
    """Raise unless the number of samples in each shard is known.

    Raises:
        InputError: it is not.
    """
    if unknown := shards.unknown_counts():
        raise InputError(
            f"{shown(shards.urls[unknown[0]])}: the number of samples in the shard is unknown, so nothing says which "
            "were read; make an index of the shards (wids index create)"
        )


class ShardContents:
    """Shards and their contents, as some lists say them, column by column; an item is a `ShardContent`.

    Args:
        shards: the lists.

    Attributes:
        urls: without signatures.
        samples: number of samples of each shard.
        sizes: in bytes; -1: unknown.
        md5s: "": unknown.
        crc32s: likewise.
        origins: number of a shard that was written anew -> those that it was made of, the nearest first, and which of
            their rows it has.

    Raises:
        InputError: the count of a shard is unknown; an entry that was written anew is damaged.
    """

    urls: list[str]
    samples: list[int]
    sizes: list[int]
    md5s: list[str]
    crc32s: list[str]
    origins: dict[int, list[tuple[ShardContent, Indices]]]

    def __init__(self, shards: Iterable[ShardList]) -> None:
        self.urls, self.samples, self.sizes, self.md5s, self.crc32s, self.origins = [], [], [], [], [], {}
        for each in shards:
            check_counts(each)
            first = len(self.urls)
            self.urls += [unsigned(url) if "?" in url or "%" in url else url for url in each.urls]
            self.samples += each.nsamples
            self.sizes += each.filesizes
            self.md5s += each.md5sums
            self.crc32s += each.crc32s
            for k, keys in each.extras.items():
                if REWRITTEN in keys:
                    self.origins[first + k] = _parse_rewritten(keys[REWRITTEN], self[first + k])

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, k: int) -> ShardContent:
        return ShardContent(self.urls[k], self.samples[k], self.sizes[k], self.md5s[k], self.crc32s[k])

    def append(self, record: ShardContent) -> None:
        """Add a shard."""
        self.urls.append(record.url)
        self.samples.append(record.samples)
        self.sizes.append(record.size)
        self.md5s.append(record.md5)
        self.crc32s.append(record.crc32)

    def names(self) -> list[str]:
        """The names of the shards; see `wids.core.index.fingerprint.portable_names`."""
        return portable_names(self.urls)


class _RewrittenFrom(msgspec.Struct):
    """A shard that was written anew, as an entry says it; see `REWRITTEN`."""

    url: str
    nsamples: Count
    without: list[Count]
    filesize: Count | None = None
    md5sum: str | None = None
    crc32: str | None = None
    rewritten: _RewrittenFrom | None = None


def _parse_rewritten(said: Any, record: ShardContent) -> list[tuple[ShardContent, Indices]]:
    """The shards that one was made of, the nearest first, and the rows of each that it has no more: (n,) each.

    Raises:
        InputError: the entry is damaged.
    """
    origins: list[tuple[ShardContent, Indices]] = []
    try:
        origin: _RewrittenFrom | None = msgspec.convert(said, _RewrittenFrom)
        kept = np.arange(record.samples)  # which rows of the origin they are
        while origin is not None and len(origins) < _MOST_ORIGINS:
            kept = _rows_kept(origin, kept, is_all=not origins)
            size = -1 if origin.filesize is None else origin.filesize
            of = ShardContent(unsigned(origin.url), origin.nsamples, size, origin.md5sum or "", origin.crc32 or "")
            origins.append((of, kept))
            origin = origin.rewritten
    except (msgspec.ValidationError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{shown(record.url)}: {REWRITTEN!r} is {shown(said)}, which is damaged ({error})") from error
    return origins


def _rows_kept(origin: _RewrittenFrom, rows: Indices, *, is_all: bool) -> Indices:
    """The rows of a shard, by their numbers among those that stayed of it: (n,) -> (n,).

    Raises:
        ValueError: there are none with these numbers; ``is_all``: or they are not all of them.
    """
    gone = np.unique(np.array(origin.without, np.int64))
    if len(gone) and gone[-1] >= origin.nsamples:
        raise ValueError(f"row {gone[-1]} of {origin.nsamples} is gone")
    stayed: Indices = np.delete(np.arange(origin.nsamples), gone)
    if (len(rows) and rows[-1] >= len(stayed)) or (is_all and len(stayed) != len(rows)):
        raise ValueError(f"{len(stayed)} of {origin.nsamples} samples stayed, and not {len(rows)}")
    return stayed[rows]


def _contradict(one: ShardContent, other: ShardContent) -> bool:
    """True if two shards differ in something that is known of both."""
    if one.samples != other.samples or (one.size != other.size and min(one.size, other.size) >= 0):
        return True
    pairs = ((one.md5, other.md5), (one.crc32, other.crc32))
    return any(a and b and a.lower() != b.lower() for a, b in pairs)


def match_shards(then: ShardContents, now: ShardContents, those: Indices, these: Indices) -> Indices:
    """For each of n shards of now, the number of the same shard among the earlier ones, or -1: (n,).

    Of shards that are listed several times, the first is matched with the first, and so on.

    Args:
        then: the earlier shards.
        now: those of now.
        those: the numbers of the earlier ones that count: (m,).
        these: the numbers of the n ones of now.
    """
    matches = dict.fromkeys(these.tolist(), -1)
    free = dict.fromkeys(those.tolist())  # in order

    def match(keys_then: Sequence[Hashable], keys_now: Sequence[Hashable]) -> None:
        known: dict[Hashable, list[int]] = {}
        for k in reversed(free):
            if key := keys_then[k]:
                known.setdefault(key, []).append(k)
        for k in [k for k, of in matches.items() if of < 0]:
            candidates = known.get(keys_now[k])
            if candidates and not _contradict(then[candidates[-1]], now[k]):
                matches[k] = candidates.pop()
                del free[matches[k]]

    match(then.md5s, now.md5s)
    if free and -1 in matches.values():
        match(*(_sized(each.crc32s, each) for each in (then, now)))
        match(then.urls, now.urls)
    if free and -1 in matches.values():
        match(*(_sized(each.names(), each) for each in (then, now)))
    return np.fromiter(matches.values(), np.int64, len(matches))


def _sized(keys: Sequence[str], records: ShardContents) -> list[Hashable]:
    """Keys that count together with size and number of samples, where these are known."""
    columns = zip(keys, records.sizes, records.samples, strict=True)
    return [(key, size, count) if key and size >= 0 else None for key, size, count in columns]


class _Rows:
    """All rows of all shards of some lists in turn, whether a view has them or not.

    Attributes:
        records: of the shards.
        starts: the first row of each shard, and the end of all: (nshards + 1,).
    """

    def __init__(self, parts: Sequence[ListedPart]) -> None:
        self.records = ShardContents(part.shards for part in parts)
        self.starts = np.append(0, np.cumsum(np.asarray(self.records.samples, np.int64)))
        self._parts, at = list[tuple[ListedPart, int, int]](), 0  # with its first shard and row
        for part in parts:
            self._parts.append((part, at, int(self.starts[at])))
            at += len(part.shards)

    def shards_between(self, first: int, last: int) -> Indices:
        """The numbers of the shards that have samples of the dataset from an index up to another."""
        numbers = [_NONE]
        for part, shard, _ in self._parts:
            ends = np.asarray(part.shards.ends(), np.int64) + part.first
            begins = np.append(np.int64(part.first), ends[:-1])[: len(ends)]
            numbers.append(shard + np.flatnonzero((begins < last) & (ends > first) & (begins < ends)))
        return np.concatenate(numbers)

    def of_indices(self, indices: IndexSet) -> IndexSet:
        """The rows of samples, by their indices in the dataset."""
        rows = []
        for part, _, row in self._parts:
            ends, selection = part.shards.ends(), part.shards.selection
            here = indices.within(part.first, part.first + (int(ends[-1]) if len(ends) else 0)).moved(-part.first)
            if selection is None:
                rows.append(here.moved(row))
                continue
            rows += [IndexSet.of_sorted(_rows_of(part.shards, piece)).moved(row) for piece in here.pieces()]
        return IndexSet.of_runs(_NONE, _NONE).union(*rows)

    def to_indices(self, rows: IndexSet) -> IndexSet:
        """The indices in the dataset of rows; those that views leave out have none."""
        indices = []
        for part, _, row in self._parts:
            selection, ends = part.shards.selection, part.shards.whole_ends()
            here = rows.within(row, row + (int(ends[-1]) if len(ends) else 0)).moved(-row)
            if selection is None:
                indices.append(here.moved(part.first))
                continue
            for at in range(0, len(selection), _PIECE):
                piece = np.arange(at, min(at + _PIECE, len(selection)))
                inside = np.flatnonzero(here.has(_rows_of(part.shards, piece)))
                indices.append(IndexSet.of_sorted(inside).moved(part.first + at))
        return IndexSet.of_runs(_NONE, _NONE).union(*indices)


def _rows_of(shards: ShardList, indices: Indices) -> Indices:
    """The rows of n samples of a view, counted over all rows of all shards: (n,) -> (n,)."""
    selection = shards.selection
    assert selection is not None  # noqa: S101 - for the type checker: it is a view
    ends, rows = selection.arrays
    numbers = np.searchsorted(ends, indices, side="right")
    starts = np.append(0, np.asarray(shards.whole_ends(), np.int64))
    whole: Indices = starts[numbers] + rows[indices]
    return whole


class Carrying:
    """The samples of earlier data that are among those of now.

    Args:
        then: the lists of shards of the earlier data, by their first index.
        now: those of the data of now, likewise.
    """

    def __init__(self, then: Sequence[ListedPart], now: Sequence[ListedPart]) -> None:
        self._then, self._now = _Rows(then), _Rows(now)
        # By the ranges: several passes of them may be carried.
        self._matched: dict[tuple[tuple[int, int], tuple[int, int]], tuple[Indices, list[Kept]]] = {}

    def _match(self, there: tuple[int, int], here: tuple[int, int]) -> tuple[Indices, list[Kept]]:
        """The number of the same shard of now for each earlier one, or -1, and shards that were written anew."""
        if (there, here) not in self._matched:
            then, now = self._then, self._now
            those, these = then.shards_between(*there), now.shards_between(*here)
            matched = match_shards(then.records, now.records, those, these)
            target = np.full(len(then.records) + 1, -1)
            target[matched[matched >= 0]] = these[matched >= 0]
            written = match_rewritten(then.records, now.records, those, these[matched < 0])
            self._matched[there, here] = target, written
        return self._matched[there, here]

    def carry(self, there: tuple[int, int], here: tuple[int, int], samples: IndexSet) -> IndexSet:
        """The indices here of samples with these indices there; those that are not here any more are left out.

        Args:
            there: the range of earlier indices whose shards are compared, half-open.
            here: the range of those of now, likewise.
            samples: earlier indices, in that range.
        """
        then, now = self._then, self._now
        target, written = self._match(there, here)
        rows = then.of_indices(samples)
        cuts = then.starts[rows.has(then.starts) & rows.has(then.starts - 1)]
        starts, ends = (np.sort(np.append(edges, cuts)) for edges in (rows.starts, rows.ends))
        shards = np.searchsorted(then.starts, starts, side="right") - 1
        is_here = target[shards] >= 0
        shards, starts, ends = shards[is_here], starts[is_here], ends[is_here]
        moved = now.starts[target[shards]] - then.starts[shards]
        carried = [IndexSet.of_runs(starts + moved, ends + moved)]
        for k, of, stayed in written:
            first, end = then.starts[of : of + 2].tolist()
            read = rows.within(first, end).moved(-first)
            carried.append(IndexSet.of_sorted(np.flatnonzero(read.has(stayed))).moved(int(now.starts[k])))
        return now.to_indices(carried[0].union(*carried[1:]))


class Kept(NamedTuple):
    """A shard that was written anew of an earlier one.

    Attributes:
        now: its number.
        then: the number of the earlier one.
        rows: of the earlier one, that it has: (n,), ascending.
    """

    now: int
    then: int
    rows: Indices


def match_rewritten(then: ShardContents, now: ShardContents, those: Indices, these: Indices) -> list[Kept]:
    """The shards of now that were written anew of earlier ones; see `match_shards`.

    Those that were written anew of others are named in a warning: all of their samples count as new.
    """
    written = [k for k in these.tolist() if k in now.origins]
    if not written:
        return []
    kept, by_end = list[Kept](), dict[str, int]()
    urls = {then.urls[k]: k for k in reversed(those.tolist())}
    places = {str(Place(url).absolute): k for url, k in urls.items()}
    for url, k in urls.items():
        for at in range(len(parts := url.split("/"))):
            by_end.setdefault("/".join(parts[at:]), k)  # URLs of an index may be relative to it
    for k in written:
        directory = Place(now.urls[k]).directory
        for origin, rows in now.origins[k]:
            beside = places.get(unsigned(str(directory.join(origin.url).absolute)))
            candidates = (beside, by_end.get(origin.url.removeprefix("./")), _find_content(then, those, origin))
            of = next((of for of in candidates if of is not None and not _contradict(then[of], origin)), None)
            if of is not None:
                kept.append(Kept(k, of, rows))
                break
        else:
            words = "%s: was written anew of %s, which the earlier data do not have; all of its samples count as new"
            logger.warning(words, shown(now.urls[k]), shown(now.origins[k][0][0].url))
    return kept


def _find_content(then: ShardContents, those: Indices, origin: ShardContent) -> int | None:
    """The number of an earlier shard with the checksum of another one."""
    for k in map(int, those):
        checksums = ((origin.md5, then.md5s[k]), (origin.crc32, then.crc32s[k]))
        if any(a and a.lower() == b.lower() for a, b in checksums) and not _contradict(then[k], origin):
            return k
    return None


class ShardChange(NamedTuple):
    """A shard that is not as it was, or is.

    Attributes:
        kind: one of `KINDS`.
        then: its number in the earlier list; None: it was not there.
        now: its number in the list of now; None: it is not there any more.
        kept: samples of the earlier shard that are in the one of now.
    """

    kind: str
    then: int | None
    now: int | None
    kept: int = 0


def compare_shards(then: ShardList, now: ShardList) -> list[ShardChange]:
    """The change of each shard of now, in order, then those that were dropped.

    Raises:
        InputError: see `ShardContents`.
    """
    before, after = ShardContents([then]), ShardContents([now])
    those, these = np.arange(len(before)), np.arange(len(after))
    of_then = match_shards(before, after, those, these)
    written = {kept.now: kept.then for kept in match_rewritten(before, after, those, these[of_then < 0])}
    by_url = dict(zip(before.urls, those.tolist(), strict=True))
    gone, changes = set(those.tolist()).difference(of_then.tolist()), list[ShardChange]()
    for k, of in enumerate(of_then.tolist()):
        if of >= 0:
            kind = "same" if before.urls[of] == after.urls[k] else "moved"
            changes.append(ShardChange(kind, of, k, after.samples[k]))
            continue
        replaced = written.get(k, by_url.get(after.urls[k]))
        if replaced is None or replaced not in gone:
            changes.append(ShardChange("added", None, k))
            continue
        gone.discard(replaced)
        changes.append(ShardChange("replaced", replaced, k, after.samples[k] if k in written else 0))
    return changes + [ShardChange("dropped", k, None) for k in sorted(gone)]
