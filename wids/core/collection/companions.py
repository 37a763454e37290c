"""A companion: a collection that has further fields of the samples of another one. Without torch.

It has its own cache, readers and byte ranges; its index is not even read as long as nobody asks for its fields. A
sample of the base is known by its index in the base's whole, so that views need nothing more.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wids.core.files.shared_arrays import SharedArrays
from wids.core.index import companion_file
from wids.core.index.companion_file import NO_ROW, CompanionEntry
from wids.core.index.fingerprint import contents, fingerprint, have_changed
from wids.core.index.view_file import KEY
from wids.core.order.layout import CompanionPlaces, SamplerInterface
from wids.core.place import Place
from wids.errors import ChangedShardError, InputError, SpecError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from wids.core.collection.arguments import OpeningOptions
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.collection.stats import Tally
    from wids.core.index.selection import Integers
    from wids.core.index.shardlist import ShardList
    from wids.core.readers.base import Sample

# The file name of many indexes: their folders tell them apart. `wids map` writes such.
_USUAL = "index.json"


class Companion:
    """Another collection that has further fields of the samples of a base.

    Args:
        name: of it, in messages and states.
        prefix: stands before the extensions of its members; "": nothing does.
        fields: extensions of its members that are fields; None: all.
        known: the extensions of all of its members; None: its index, or its shards, say that when it is needed.
        on: see `wids.core.index.companion_file.CompanionEntry`.
        missing: see there.
        rows: for each sample of the base's whole the companion's; None: sample i has sample i.
        open_shards: makes its collection, when that is first needed.
        look_ahead: makes the source of downloads ahead of a collection; None: it has none.
        tally: counts for its own dataset; None: the base's counts for it.

    Attributes:
        name: the argument.
        prefix: the argument.
        fields: the argument.
        tally: the argument.
        on: the argument.
        missing: the argument.
        rows: the argument.
    """

    name: str
    prefix: str
    fields: tuple[str, ...] | None
    tally: Tally | None
    on: companion_file.On
    missing: companion_file.Missing
    rows: SharedArrays | None
    _collection: ShardCollection | None = None
    _first: tuple[str, ...] | None = None

    def __init__(
        self,
        *,
        name: str,
        prefix: str = "",
        fields: tuple[str, ...] | None = None,
        known: tuple[str, ...] | None = None,
        on: companion_file.On = "row",
        missing: companion_file.Missing = "error",
        rows: SharedArrays | None = None,
        open_shards: Callable[[], ShardCollection],
        look_ahead: Callable[[ShardCollection], object] | None = None,
        tally: Tally | None = None,
    ) -> None:
        self.name, self.fields, self.tally = name, fields, tally
        self.on, self.missing = on, missing
        self.rows, self._open, self._look_ahead = rows, open_shards, look_ahead
        self._known = known
        self._name_fields(prefix)

    def _name_fields(self, prefix: str) -> None:
        self.prefix, self._stem = prefix, f".{prefix}" if prefix else ""

    @property
    def collection(self) -> ShardCollection:
        """Its shards, whose index is read now, if it was not yet.

        Raises:
            SpecError, InputError: it is not the one that was joined. FetchError: it cannot be read.
        """
        if self._collection is None:
            self._collection = self._open().without_repeats()
        return self._collection

    def __len__(self) -> int:
        return len(self.collection)

    def __repr__(self) -> str:
        return f"<Companion {self.name}>"

    def __wids__(self) -> SamplerInterface:
        look_ahead = self._look_ahead
        return SamplerInterface(
            shard_ends=self.collection.cum_lengths,
            prefetch_source=lambda: None if look_ahead is None else look_ahead(self.collection),
        )

    def without_downloads(self) -> Companion:
        """The same, which downloads no shard."""
        changed = copy.copy(self)
        changed._open, changed._collection = _WithoutDownloads(self), None  # noqa: SLF001 - of this class
        changed._look_ahead = changed.tally = None  # noqa: SLF001
        return changed

    def placed_in(self, outer: Companion) -> Companion:
        """This companion of a companion as one of the base: sample i is that of the outer one's sample i.

        Args:
            outer: the companion of the base that has this one.
        """
        rows = self.rows
        if outer.rows is not None:
            there = plain_rows(outer.rows)
            inner = there if rows is None else plain_rows(rows)[np.maximum(there, 0)]
            rows = share_rows(np.where(there < 0, -1, inner), len(self.collection))
        changed = copy.copy(self)
        changed.rows, changed.on = rows, "key" if self.on == outer.on == "key" else "row"
        changed._name_fields(".".join(filter(None, (outer.prefix, self.prefix))))  # noqa: SLF001 - of this class
        return changed

    # --- which fields

    def extension_of(self, field: str) -> tuple[str, bool] | None:
        """(extension of its member that a field of the joined sample is, True if it is no other's).

        None: the field is another's. False: nothing says whether its samples have the member.
        """
        stem = f"{self._stem}.".casefold()
        if not field.casefold().startswith(stem):
            return None
        extension = field[len(stem) - 1 :]
        known = self.stated_fields() if self.fields is None else self.fields
        for name in self._first_fields() if known is None else known:
            if name.casefold() == extension.casefold():
                return name, True
        return (extension, False) if known is None else None

    def stated_fields(self) -> tuple[str, ...] | None:
        """The extensions of its members, as an index says; None: none does."""
        if self._known is None:
            self._known = self.collection.shards.fields
        return self._known

    def _first_fields(self) -> tuple[str, ...]:
        """The extensions of the members of its first shard.

        Raises:
            WidsError: that cannot be read.
        """
        if self._first is None:
            self._first = first_fields(self.collection)
        return self._first

    def all_fields(self) -> tuple[str, ...] | None:
        """The extensions of its members, as an index or all member tables say; None: not all are at hand."""
        if self.stated_fields() is None:
            names: dict[str, None] = {}
            for _, table in self.collection.member_tables(range(len(self.collection.shards))):
                if table is None:
                    return None
                names.update(dict.fromkeys(table.extensions))
            self._known = tuple(sorted(names))
        return self._known

    def name_of(self, extension: str) -> str:
        """The field of the joined sample that a member of it is."""
        return self._stem + extension

    # --- which samples

    def row_of(self, index: int) -> int:
        """Its sample for a sample of the base's whole; -1: it has none."""
        if self.rows is None:
            return index
        row = int(self.rows.arrays[0][index])
        return -1 if row == NO_ROW and self.rows.arrays[0].dtype.itemsize == 4 else row

    def is_here(self, row: int) -> bool:
        """True if one of its samples is on this machine's disk; nothing is fetched to know that, nor its index."""
        if self._collection is None and isinstance(self._open, OpenEntry) and not self._open.is_local:
            return False
        collection = self.collection
        return collection.provider.is_here(collection.shards[bisect_right(collection.ends, row)])

    def places(self, base: ShardCollection) -> CompanionPlaces:
        """The places of the samples of a base, or of a view of it, for downloads ahead."""
        chosen, collection = base.whole_indices(), self.collection
        if self.rows is None and chosen is None:
            return CompanionPlaces(self, collection.cum_lengths, None)
        if self.rows is None:
            rows = chosen
        else:
            rows, has = self.rows.arrays[0], has_row(self.rows)
            rows, has = (rows, has) if chosen is None else (rows[chosen], has[chosen])
            if not has.all():  # a sample without one is as good as the one before it
                last = np.maximum.accumulate(np.where(has, np.arange(len(rows)), -1))
                first = rows[np.argmax(has)] if has.any() else 0
                rows = np.where(last < 0, first, rows[np.maximum(last, 0)])
        if rows is None or (rows[1:] >= rows[:-1]).all():
            ends = collection.cum_lengths
            ends = ends if rows is None else np.searchsorted(rows, ends.astype(rows.dtype), side="left")
            return CompanionPlaces(self, ends, None)
        return CompanionPlaces(self, None, rows.astype(np.int64))

    def check_key(self, sample: Sample, other: Sample) -> None:
        """Check that a sample of this, which was joined by key, has the key of the base's sample.

        Raises:
            ChangedShardError: it has another one.
        """
        if self.on == "key" and other["__key__"] != sample.get("__key__", other["__key__"]):
            shard = other["__shard__"]
            raise ChangedShardError(
                f"{shard}: the shards have changed since {self.name} was joined by key: its sample for "
                f"{shown(sample['__key__'])} has the key {shown(other['__key__'])} now; join again (wids index join), "
                "and write indexes with checksums (wids index create), which notice that at once",
                shard=shard,
            )

    # --- for states and indexes

    def places_of_files(self) -> dict[str, str]:
        """Words for the files on this machine that it is read from, by their paths or URLs."""
        places = {self.collection.index_url: f"the index of the companion {self.name}"}
        if self.rows is not None:
            places[self.rows.path] = f"the file of the rows of the companion {self.name}"
        return {place: words for place, words in places.items() if place is not None}

    def marks(self) -> dict[str, str]:
        """The digests of its samples and their contents, by kinds; states hold them."""
        return {"dataset": self.collection.fingerprint, **self.collection.contents}

    def entry(self, base: ShardCollection, write: Callable[[str], str]) -> CompanionEntry:
        """The companion as an index names it, but for the file of its rows.

        Args:
            base: the base's samples.
            write: makes the text of a place in the index.

        Raises:
            InputError: no index lists its shards.
        """
        collection = self.collection
        if collection.index_url is None:
            raise InputError(
                f"{self.name}: no index lists these shards as they are, and a saved join names an index; make one "
                "(wids index create SHARDS -o captions.json), and join that"
            )
        shards = collection.shards
        return CompanionEntry(
            index=write(collection.index_url),
            on=self.on,
            prefix=self.prefix,
            missing=self.missing,
            fields=self.fields,
            known_fields=self.all_fields(),
            nsamples=collection.whole_length,
            fingerprint=fingerprint(shards),
            contents=collection.contents,
            of=fingerprint(base.shards),
        )


class _WithoutDownloads:
    """Opens the collection of a companion, which then downloads nothing."""

    def __init__(self, companion: Companion) -> None:
        self._companion = companion

    def __call__(self) -> ShardCollection:
        return self._companion.collection.without_downloads()


@dataclass(frozen=True)
class OpenEntry:
    """Opens the collection of a companion that an index names, and checks that it is the one that was joined.

    Attributes:
        options: of the dataset.
        entry: in the index.
        samples: number of samples of the base's shards.
        where: the beginning of messages.
    """

    options: OpeningOptions
    entry: CompanionEntry
    samples: int
    where: str

    @property
    def is_local(self) -> bool:
        """True if its index is a file."""
        return Place(self.entry.index).is_local

    def __call__(self) -> ShardCollection:  # noqa: D102
        indexing = self.options.indexing
        options = self.options._replace(indexing={**indexing, "session": self.entry.session(indexing["session"])})
        collection = options.open(self.entry.index)
        check_listed(self.entry, collection.shards, self.samples, self.where)
        return collection


def check_listed(entry: CompanionEntry, shards: ShardList, samples: int, where: str) -> None:
    """Check that the shards of a companion are those that were joined; a warning names others with as many samples.

    Args:
        entry: in the index.
        shards: of the companion's index now.
        samples: number of samples of the base's shards.
        where: the beginning of messages.

    Raises:
        SpecError: they are others.
    """
    total = sum(shards.nsamples)
    if shards.selection is not None:
        raise SpecError(
            f"{where}{entry.index} is a view, and a companion is a whole index; join the view by a command "
            "(wids index join), which names the index behind it",
            path=KEY,
        )
    if shards.header.get(KEY):
        raise SpecError(
            f"{where}{entry.index} has companions of its own; join it by a command (wids index join), which names them "
            "all",
            path=KEY,
        )
    if entry.rows is not None and entry.nsamples != total:
        raise SpecError(
            f"{where}{entry.index} had {entry.nsamples} samples when it was joined by key, and has {total:,}; join "
            "again (wids index join)",
            path=KEY,
        )
    if entry.rows is None and total != samples:
        raise SpecError(
            f"{where}{entry.index} has {total:,} samples, and the samples that it is joined to by row are "
            f"{samples:,}; join again (wids index join)",
            path=KEY,
        )
    is_same = entry.fingerprint in (None, fingerprint(shards))
    has_changed = have_changed(entry.contents, contents(shards))
    if entry.rows is not None and (not is_same or has_changed):
        raise SpecError(
            f"{where}{entry.index} has changed since it was joined by key, and its rows may be other samples "
            "now; join again (wids index join)",
            path=KEY,
        )
    if not is_same or has_changed:
        logger.warning(
            "%s%s has changed since it was joined: its shards have other names, counts or checksums; its sample i "
            "is taken for sample i all the same",
            where,
            entry.index,
        )


def name_of_index(url: str) -> str:
    """The name of a companion in messages and states: of its index, after its folder's where that is ``index.json``."""
    place = Place(url)
    name = place.name or url
    folder = place.absolute.directory.name if name == _USUAL else ""
    return f"{folder}/{name}" if folder else name


def all_marks(companions: Iterable[Companion]) -> dict[str, dict[str, str]]:
    """Name of each companion -> its digests; a second one of the same name is ``NAME (2)``."""
    marks: dict[str, dict[str, str]] = {}
    for companion in companions:
        name, count = companion.name, 1
        while name in marks:
            count += 1
            name = f"{companion.name} ({count})"
        marks[name] = companion.marks()
    return marks


def first_fields(collection: ShardCollection) -> tuple[str, ...]:
    """The extensions of the members of a collection's first shard.

    Raises:
        WidsError: it cannot be read.
    """
    if (table := collection.first_table()) is not None:
        return tuple(table.extensions)
    if (first := collection.first_shard()) is None:
        return ()
    with collection.pinned(first) as reader:
        return tuple(reader.table.extensions)


def share_rows(rows: Integers, nsamples: int) -> SharedArrays:
    """Rows, -1 for none, of a companion of so many samples, in the form that workers share."""
    return SharedArrays([companion_file.narrow(rows, nsamples)])


def has_row(rows: SharedArrays) -> npt.NDArray[np.bool_]:
    """True for each sample of a base that has a row."""
    array = rows.arrays[0]
    has: npt.NDArray[np.bool_] = array != (NO_ROW if array.dtype.itemsize == 4 else -1)
    return has


def plain_rows(rows: SharedArrays) -> Integers:
    """Rows as int64, -1 for none."""
    array = rows.arrays[0]
    if array.dtype.itemsize != 4:
        return np.asarray(array, np.int64)
    plain = array.astype(np.int64)
    plain[array == NO_ROW] = -1
    return plain
