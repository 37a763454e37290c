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

import numpy as np

from wids.core.index.fingerprint import portable_names, unsigned
from wids.core.order.index_set import IndexSet
from wids.errors import InputError, shown

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from wids.core.index.shardlist import ShardList
    from wids.core.order.permutation import Indices

# The key of a shard in an index, by which one that was written anew says which samples it has of an earlier one:
# {"url", "nsamples", "filesize", "md5sum", "crc32": of that one, "without": [rows that it has no more]}.
REWRITTEN = "rewritten"
KINDS = ("same", "moved", "replaced", "added", "dropped")
_NONE = np.zeros(0, np.int64)


class ShardRecord(NamedTuple):
    """A shard and its content, as an index says them; see `Records`."""

    url: str
    samples: int
    size: int
    md5: str
    crc32: str


class Part(NamedTuple):
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


class Records:
    """Shards and their contents, as some lists say them, column by column; an item is a `ShardRecord`.

    Args:
        shards: the lists.

    Attributes:
        urls: without signatures.
        samples: number of samples of each shard.
        sizes: in bytes; -1: unknown.
        md5s: "": unknown.
        crc32s: likewise.
        without: number of a shard that was written anew -> the earlier one, and the rows that it has no more.

    Raises:
        InputError: the count of a shard is unknown; an entry that was written anew is damaged.
    """

    urls: list[str]
    samples: list[int]
    sizes: list[int]
    md5s: list[str]
    crc32s: list[str]
    without: dict[int, tuple[ShardRecord, Indices]]

    def __init__(self, shards: Iterable[ShardList]) -> None:
        self.urls, self.samples, self.sizes, self.md5s, self.crc32s, self.without = [], [], [], [], [], {}
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
                    self.without[first + k] = _parse_rewritten(keys[REWRITTEN], self[first + k])

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, k: int) -> ShardRecord:
        return ShardRecord(self.urls[k], self.samples[k], self.sizes[k], self.md5s[k], self.crc32s[k])

    def append(self, record: ShardRecord) -> None:
        """Add a shard."""
        self.urls.append(record.url)
        self.samples.append(record.samples)
        self.sizes.append(record.size)
        self.md5s.append(record.md5)
        self.crc32s.append(record.crc32)

    def names(self) -> list[str]:
        """The names of the shards; see `wids.core.index.fingerprint.portable_names`."""
        return portable_names(self.urls)


def _parse_rewritten(said: Any, record: ShardRecord) -> tuple[ShardRecord, Indices]:
    try:
        earlier = ShardRecord(
            unsigned(said["url"]),
            int(said["nsamples"]),
            int(said.get("filesize", -1)),
            str(said.get("md5sum") or ""),
            str(said.get("crc32") or ""),
        )
        rows = np.unique(np.asarray(said["without"], np.int64).reshape(-1))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{shown(record.url)}: {REWRITTEN!r} is {shown(said)}, which is damaged") from error
    is_inside = not len(rows) or (rows[0] >= 0 and rows[-1] < earlier.samples)
    if not is_inside or earlier.samples - len(rows) != record.samples:
        raise InputError(
            f"{shown(record.url)}: {REWRITTEN!r} says that of {earlier.samples} samples {len(rows)} are gone, and the "
            f"shard has {record.samples}"
        )
    return earlier, rows


def _contradict(one: ShardRecord, other: ShardRecord) -> bool:
    """True if two shards differ in something that is known of both."""
    if one.samples != other.samples or (one.size != other.size and min(one.size, other.size) >= 0):
        return True
    pairs = ((one.md5, other.md5), (one.crc32, other.crc32))
    return any(a and b and a.lower() != b.lower() for a, b in pairs)


def match_shards(then: Records, now: Records, those: Indices, these: Indices) -> Indices:
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


def _sized(keys: Sequence[str], records: Records) -> list[Hashable]:
    """Keys that count together with size and number of samples, where these are known."""
    columns = zip(keys, records.sizes, records.samples, strict=True)
    return [(key, size, count) if key and size >= 0 else None for key, size, count in columns]


class _Rows:
    """All rows of all shards of some lists in turn, whether a view has them or not.

    Attributes:
        records: of the shards.
        starts: the first row of each shard, and the end of all: (nshards + 1,).
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.records = Records(part.shards for part in parts)
        self.starts = np.append(0, np.cumsum(np.asarray(self.records.samples, np.int64)))
        self._parts, at = list[tuple[Part, int, int]](), 0  # with the number of its first shard, and its first row
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
            whole = selection.whole_indices(part.shards.nsamples)
            rows += [IndexSet.of_sorted(whole[piece]).moved(row) for piece in here.pieces()]
        return IndexSet.of_runs(_NONE, _NONE).union(*rows)

    def to_indices(self, rows: IndexSet) -> IndexSet:
        """The indices in the dataset of rows; those that views leave out have none."""
        indices = []
        for part, _, row in self._parts:
            selection, ends = part.shards.selection, part.shards.whole_ends()
            here = rows.within(row, row + (int(ends[-1]) if len(ends) else 0)).moved(-row)
            if selection is not None:
                here = IndexSet.of_sorted(np.flatnonzero(here.has(selection.whole_indices(part.shards.nsamples))))
            indices.append(here.moved(part.first))
        return IndexSet.of_runs(_NONE, _NONE).union(*indices)


class Carrying:
    """The samples of earlier data that are among those of now.

    Args:
        then: the lists of shards of the earlier data, by their first index.
        now: those of the data of now, likewise.
    """

    def __init__(self, then: Sequence[Part], now: Sequence[Part]) -> None:
        self._then, self._now = _Rows(then), _Rows(now)

    def carry(self, there: tuple[int, int], here: tuple[int, int], samples: IndexSet) -> IndexSet:
        """The indices here of samples with these indices there; those that are not here any more are left out.

        Args:
            there: the range of earlier indices whose shards are compared, half-open.
            here: the range of those of now, likewise.
            samples: earlier indices, in that range.
        """
        then, now = self._then, self._now
        those, these = then.shards_between(*there), now.shards_between(*here)
        matched = match_shards(then.records, now.records, those, these)
        target = np.full(len(then.records) + 1, -1)
        target[matched[matched >= 0]] = these[matched >= 0]
        rows = then.of_indices(samples)
        cuts = then.starts[rows.has(then.starts) & rows.has(then.starts - 1)]
        starts, ends = (np.sort(np.append(edges, cuts)) for edges in (rows.starts, rows.ends))
        shards = np.searchsorted(then.starts, starts, side="right") - 1
        is_here = target[shards] >= 0
        shards, starts, ends = shards[is_here], starts[is_here], ends[is_here]
        moved = now.starts[target[shards]] - then.starts[shards]
        carried = [IndexSet.of_runs(starts + moved, ends + moved)]
        for k, of in match_rewritten(then.records, now.records, those, these[matched < 0]):
            read = rows.within(int(then.starts[of]), int(then.starts[of + 1])).moved(-int(then.starts[of]))
            gone = now.records.without[k][1]
            kept = np.concatenate([_NONE, *read.pieces()])
            kept = kept[~np.isin(kept, gone)]
            kept -= np.searchsorted(gone, kept)
            carried.append(IndexSet.of_sorted(kept).moved(int(now.starts[k])))
        return now.to_indices(carried[0].union(*carried[1:]))


def match_rewritten(then: Records, now: Records, those: Indices, these: Indices) -> list[tuple[int, int]]:
    """(number of a shard of now, number of the earlier one that it has samples of), of those written anew."""
    written = [k for k in these.tolist() if k in now.without]
    origins = Records([])
    for k in written:
        origins.append(now.without[k][0])
    matched = match_shards(then, origins, those, np.arange(len(written)))
    return [(k, of) for k, of in zip(written, matched.tolist(), strict=True) if of >= 0]


class Change(NamedTuple):
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


def compare_shards(then: ShardList, now: ShardList) -> list[Change]:
    """The change of each shard of now, in order, then those that were dropped.

    Raises:
        InputError: see `Records`.
    """
    before, after = Records([then]), Records([now])
    those, these = np.arange(len(before)), np.arange(len(after))
    of_then = match_shards(before, after, those, these)
    written = dict(match_rewritten(before, after, those, these[of_then < 0]))
    by_url = dict(zip(before.urls, those.tolist(), strict=True))
    gone, changes = set(those.tolist()).difference(of_then.tolist()), list[Change]()
    for k, of in enumerate(of_then.tolist()):
        if of >= 0:
            kind = "same" if before.urls[of] == after.urls[k] else "moved"
            changes.append(Change(kind, of, k, after.samples[k]))
            continue
        replaced = written.get(k, by_url.get(after.urls[k]))
        if replaced is None or replaced not in gone:
            changes.append(Change("added", None, k))
            continue
        gone.discard(replaced)
        changes.append(Change("replaced", replaced, k, after.samples[k] if k in written else 0))
    return changes + [Change("dropped", k, None) for k in sorted(gone)]
