"""Changes of a list of shards: which shards are the same, have moved, were replaced, added or dropped. Pure.

A shard is the same by what is known of its content, never by its samples' keys, and none is opened:

    checksum    MD5, or CRC-32 with size and count: wherever it lies now
    URL         the same one (without its signature), size and count, where no checksum says otherwise
    name        below the directory that all shards of a list share, size and count: the data have moved as a whole

A shard at a URL of before with another content is replaced: all of its samples are new, except those that it says it
has kept (`REWRITTEN`).
"""

from __future__ import annotations

from collections import defaultdict, deque
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
_NONE = np.zeros(0, np.int64)


class ShardRecord(NamedTuple):
    """What an index says of the content of a shard.

    Attributes:
        url: without signature.
        name: see `wids.core.index.fingerprint.portable_names`.
        samples: their number.
        size: bytes; -1: unknown.
        md5: "": unknown.
        crc32: likewise.
        without: of a shard that was written anew: the record of the earlier one, and the rows that it has no more.
    """

    url: str
    name: str
    samples: int
    size: int
    md5: str
    crc32: str
    without: tuple[ShardRecord, Indices] | None = None


class Part(NamedTuple):
    """A list of shards in a dataset: an index, a view, or a source of a mixture.

    Attributes:
        shards: the list, with its selection if it is a view.
        first: the index of its first sample in the dataset.
    """

    shards: ShardList
    first: int = 0


def records_of(shards: ShardList) -> list[ShardRecord]:
    """The record of each shard.

    Raises:
        InputError: the count of a shard is unknown; an entry that was written anew is damaged.
    """
    if unknown := shards.unknown_counts():
        raise InputError(
            f"{shown(shards.urls[unknown[0]])}: how many samples the shard has is unknown, so nothing says which were "
            "read; make an index of the shards (wids index create)"
        )
    urls = list(shards.urls)
    columns = (portable_names(urls), shards.nsamples, shards.filesizes, shards.md5sums, shards.crc32s)
    records = [ShardRecord(unsigned(url), *values) for url, *values in zip(urls, *columns, strict=True)]
    for k, keys in shards.extras.items():
        if REWRITTEN in keys:
            records[k] = records[k]._replace(without=_parse_rewritten(keys[REWRITTEN], records[k]))
    return records


def _parse_rewritten(said: Any, record: ShardRecord) -> tuple[ShardRecord, Indices]:
    try:
        earlier = ShardRecord(
            unsigned(said["url"]),
            "",
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


def _contents(record: ShardRecord) -> Iterable[Hashable]:
    """What a shard may be known by, wherever it lies."""
    if record.md5:
        yield record.md5.lower(), record.samples
    if record.crc32 and record.size >= 0:
        yield record.crc32.lower(), record.size, record.samples


def _contradict(one: ShardRecord, other: ShardRecord) -> bool:
    """True if two shards differ in something that is known of both."""
    if one.samples != other.samples or (one.size != other.size and min(one.size, other.size) >= 0):
        return True
    pairs = ((one.md5, other.md5), (one.crc32, other.crc32))
    return any(a and b and a.lower() != b.lower() for a, b in pairs)


def match_shards(then: Sequence[ShardRecord], now: Sequence[ShardRecord]) -> Indices:
    """For each of n shards of now, the number of the same shard among the earlier ones, or -1: (n,).

    Of shards that are listed several times, the first is matched with the first, and so on.
    """
    of_then, is_free = np.full(len(now), -1), np.ones(len(then), bool)

    def match(keys_of: Any, *, is_checked: bool) -> None:
        known: dict[Hashable, deque[int]] = defaultdict(deque)
        for k in np.flatnonzero(is_free).tolist():
            for key in keys_of(then[k]):
                known[key].append(k)
        for k in np.flatnonzero(of_then < 0).tolist():
            for key in keys_of(now[k]):
                free = known.get(key, ())
                while free and not is_free[free[0]]:
                    free.popleft()
                if free and of_then[k] < 0 and not (is_checked and _contradict(then[free[0]], now[k])):
                    of_then[k] = free.popleft()
                    is_free[of_then[k]] = False

    match(_contents, is_checked=True)
    match(lambda record: [record.url], is_checked=True)
    match(lambda record: [(record.name, record.size, record.samples)] if record.size >= 0 else (), is_checked=True)
    return of_then


class _Rows:
    """All rows of all shards of some lists in turn, whether a view has them or not.

    Attributes:
        records: of the shards.
        starts: the first row of each shard, and the end of all: (nshards + 1,).
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.records = [record for part in parts for record in records_of(part.shards)]
        self.starts = np.append(0, np.cumsum([record.samples for record in self.records], dtype=np.int64))
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
        before, after = [then.records[k] for k in those.tolist()], [now.records[k] for k in these.tolist()]
        matched = match_shards(before, after)
        target = np.full(len(then.records) + 1, -1)
        target[those[matched[matched >= 0]]] = these[matched >= 0]
        rows = then.of_indices(samples)
        cuts = then.starts[rows.has(then.starts) & rows.has(then.starts - 1)]
        starts, ends = (np.sort(np.append(edges, cuts)) for edges in (rows.starts, rows.ends))
        shards = np.searchsorted(then.starts, starts, side="right") - 1
        is_here = target[shards] >= 0
        shards, starts, ends = shards[is_here], starts[is_here], ends[is_here]
        moved = now.starts[target[shards]] - then.starts[shards]
        carried = [IndexSet.of_runs(starts + moved, ends + moved)]
        for k, of in match_rewritten(before, after, matched):
            first, without = int(then.starts[those[of]]), after[k].without
            assert without is not None  # noqa: S101 - for the type checker: these say what they have kept
            read = rows.within(first, first + before[of].samples).moved(-first)
            gone = without[1]
            kept = np.concatenate([_NONE, *read.pieces()])
            kept = kept[~np.isin(kept, gone)]
            kept -= np.searchsorted(gone, kept)
            carried.append(IndexSet.of_sorted(kept).moved(int(now.starts[these[k]])))
        return now.to_indices(carried[0].union(*carried[1:]))


def match_rewritten(then: Sequence[ShardRecord], now: Sequence[ShardRecord], of_then: Indices) -> list[tuple[int, int]]:
    """(number of a shard of now, number of the earlier shard that it has samples of), of those written anew."""
    written = [k for k in np.flatnonzero(of_then < 0).tolist() if now[k].without is not None]
    origins = [now[k].without for k in written]
    matched = match_shards(then, [origin[0]._replace(name="") for origin in origins if origin is not None])
    return [(k, of) for k, of in zip(written, matched.tolist(), strict=True) if of >= 0]


class Change(NamedTuple):
    """A shard that is not as it was, or is.

    Attributes:
        kind: ``"same"``, ``"moved"``, ``"replaced"``, ``"added"`` or ``"dropped"``.
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
        InputError: see `records_of`.
    """
    before, after = records_of(then), records_of(now)
    of_then = match_shards(before, after)
    written, by_url = dict(match_rewritten(before, after, of_then)), {record.url: k for k, record in enumerate(before)}
    gone, changes = set(range(len(before))).difference(of_then.tolist()), list[Change]()
    for k, (record, of) in enumerate(zip(after, of_then.tolist(), strict=True)):
        if of >= 0:
            kind = "same" if before[of].url == record.url else "moved"
            changes.append(Change(kind, of, k, record.samples))
            continue
        replaced = written.get(k, by_url.get(record.url))
        if replaced is None or replaced not in gone:
            changes.append(Change("added", None, k))
            continue
        gone.discard(replaced)
        changes.append(Change("replaced", replaced, k, record.samples if k in written else 0))
    return changes + [Change("dropped", k, None) for k in sorted(gone)]
