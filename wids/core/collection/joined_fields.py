"""Fields of samples that lie in companions, behind the base's and before the transformations. Without torch."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.collection.batches import expect, read_batch, read_parts, read_sample
from wids.core.tables.fields import EMPTY, AllBut, Alternatives
from wids.errors import InputError, SelectionError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.collection.batches import MemberPart
    from wids.core.collection.companions import Companion
    from wids.core.collection.member_file import MemberFile
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.readers.base import Sample
    from wids.core.tables.fields import Wanted


class _Wish(NamedTuple):
    """The members that are wanted of a companion.

    Attributes:
        companion: the companion.
        members: those that are read.
        lazy: those that are opened as files; None: none.
    """

    companion: Companion
    members: Wanted
    lazy: Alternatives | None


class Wishes:
    """The members that a dataset reads of its base, and of each companion.

    Args:
        companions: of the dataset.
        members: that are read of a joined sample; see `wids.core.tables.fields.part_lazily`.
        lazy: that are opened as files; None: none.

    Attributes:
        members: those of them that the base has.
        lazy: likewise.
        companions: those of which some are wanted.
    """

    members: Wanted
    lazy: Alternatives | None
    companions: tuple[Companion, ...]

    def __init__(self, companions: Sequence[Companion], members: Wanted, lazy: Alternatives | None) -> None:
        self._mixed: list[tuple[str, ...]] = []
        self._wishes: list[_Wish] = []
        for companion in companions:
            theirs, files = _part_of(companion, members), _files_of(companion, lazy)
            if files is not None or theirs is None or isinstance(theirs, AllBut) or len(theirs):
                self._wishes.append(_Wish(companion, theirs, files))
        self.companions = tuple(wish.companion for wish in self._wishes)
        self.members = self._rest(companions, members)
        self.lazy = _rest_of_groups(companions, lazy)

    def _rest(self, companions: Sequence[Companion], members: Wanted) -> Wanted:
        """The members that are no companion's."""
        if members is None:
            return None
        if isinstance(members, AllBut):
            others = _rest_of_groups(companions, members.others)
            return None if others is None else AllBut(others)
        if not isinstance(members, Alternatives):
            return tuple(name for name in members if not _owners(companions, name))
        for group in members.groups:
            owners = {tuple(map(id, _owners(companions, name))) for name in group}
            if len(owners) > 1:
                self._mixed.append(group)
        return _rest_of_groups(companions, members) or ()

    def add_to(self, sample: Sample, base: ShardCollection) -> list[MemberFile]:
        """Add the fields of the companions to a sample; return those that were opened as files.

        Raises:
            InputError: two of base and companions have a field of one name. WidsError: one cannot be read.
        """
        files: list[MemberFile] = []
        index = whole_index_of(sample, base)
        for companion, members, lazy in self._wishes:
            row = companion.row_of(index)
            if row >= 0:
                collection = companion.collection
                collection.pool.accesses += 1
                self._merge(sample, read_sample(collection, row, members), companion, lazy, files)
        self._choose(sample)
        return files

    def add_to_all(self, samples: Sequence[Sample], base: ShardCollection) -> list[list[MemberFile]]:
        """`add_to` of many samples, which are read shard by shard; shards that are read by ranges at the same time."""
        files: list[list[MemberFile]] = [[] for _ in samples]
        indices = [whole_index_of(sample, base) for sample in samples]
        for companion, members, lazy in self._wishes:
            rows = list(map(companion.row_of, indices))
            there = [k for k, row in enumerate(rows) if row >= 0]
            collection = companion.collection
            collection.pool.accesses += len(there)
            for k, other in zip(there, read_batch(collection, [rows[k] for k in there], members), strict=True):
                self._merge(samples[k], other, companion, lazy, files[k])
        for sample in samples if self._mixed else ():
            self._choose(sample)
        return files

    def expect(self, indices: Sequence[int], base: ShardCollection) -> bool:
        """`wids.core.collection.batches.expect` of the samples of the companions, for indices of the base."""
        whole = [base.whole_index(base.plain(index)) for index in indices]
        return all(
            expect(companion.collection, [row for row in map(companion.row_of, whole) if row >= 0], members)
            for companion, members, _ in self._wishes
        )

    def close(self) -> None:
        """Close all open shards of the companions."""
        for companion in self.companions:
            companion.collection.close()

    @staticmethod
    def _merge(
        sample: Sample, other: Sample, companion: Companion, lazy: Alternatives | None, files: list[MemberFile]
    ) -> None:
        if lazy is not None:
            from wids.core.collection.member_file import open_lazily

            files += open_lazily(companion.collection.pool, other, lazy, is_foreign=False)
        for extension, value in other.items():
            if not extension.startswith(".") or extension == EMPTY:
                continue
            name = companion.name_of(extension)
            if name in sample:
                raise InputError(
                    f"sample {shown(sample.get('__key__'))} has {shown(name)} twice, once of {companion.name}; give "
                    f'its fields a prefix (with_fields(..., prefix="more")), or name those that you want '
                    f"(with_fields(..., fields=...))"
                )
            sample[name] = value

    def _choose(self, sample: Sample) -> None:
        """Keep the first that the sample has of alternatives that lie in several places."""
        for group in self._mixed:
            there = [name for name in sample if name.startswith(".")]
            kept = Alternatives([group]).positions(there)
            wanted = {name.casefold() for name in group}
            for position, name in enumerate(there):
                if name.casefold() in wanted and position not in kept:
                    del sample[name]


def whole_index_of(sample: Sample, base: ShardCollection) -> int:
    """The index in the base's whole of a sample that was read, also of one that a short shard repeats."""
    k = bisect_right(base.ends, sample["__index__"])
    whole = base.whole_ends
    return (whole[k - 1] if k else 0) + int(sample["__shardindex__"])


def find_owner(companions: Sequence[Companion], field: str) -> tuple[Companion, str] | None:
    """The companion of a field, and the extension of its member; None: it is the base's."""
    owners = _owners(companions, field)
    return owners[0] if owners else None


def locate_row(companion: Companion, base: ShardCollection, index: int, field: str) -> int:
    """The companion's sample for a sample of a base, 0 <= index < len.

    Raises:
        SelectionError: it has none.
    """
    row = companion.row_of(base.whole_index(index))
    if row < 0:
        raise SelectionError(f"sample {index} has no {field}: {companion.name} has no sample for it", field=field)
    return row


def _owners(companions: Sequence[Companion], field: str) -> list[tuple[Companion, str]]:
    extensions = ((companion, companion.extension_of(field)) for companion in companions)
    return [(companion, extension) for companion, extension in extensions if extension is not None]


def _part_of(companion: Companion, members: Wanted) -> Wanted:
    """Members of a joined sample that are a companion's, by its own extensions."""
    if members is None:
        return companion.fields
    if isinstance(members, AllBut):
        others = _files_of(companion, members.others)
        if others is None:
            return companion.fields
        if companion.fields is None:
            return AllBut(others)
        left_out = {name.casefold() for name in others}
        return tuple(name for name in companion.fields if name.casefold() not in left_out)
    if isinstance(members, Alternatives):
        return _files_of(companion, members) or ()
    return tuple(name for name in map(companion.extension_of, members) if name is not None)


def _files_of(companion: Companion, groups: Alternatives | None) -> Alternatives | None:
    """Groups of a joined sample's members with a companion's alone, by its own extensions; None: it has none."""
    if groups is None:
        return None
    parts = [[name for name in map(companion.extension_of, group) if name is not None] for group in groups.groups]
    parts = [part for part in parts if part]
    return Alternatives(parts) if parts else None


def _rest_of_groups(companions: Sequence[Companion], groups: Alternatives | None) -> Alternatives | None:
    """Groups with the base's members alone; None: it has none."""
    if groups is None:
        return None
    parts = [[name for name in group if not _owners(companions, name)] for group in groups.groups]
    parts = [part for part in parts if part]
    return Alternatives(parts) if parts else None


# --- parts of members


def read_joined_parts(
    companions: Sequence[Companion],
    base: ShardCollection,
    parts: Sequence[MemberPart],
    read_base: Callable[[Sequence[MemberPart]], list[bytes]],
) -> list[bytes]:
    """The bytes of parts of members, of the base or of companions, in their order.

    Args:
        companions: of the dataset.
        base: the samples.
        parts: of joined samples.
        read_base: reads those of the base.

    Raises:
        SelectionError: a sample has no such member. WidsError: one cannot be read.
    """
    asked: dict[int, list[tuple[int, MemberPart]]] = {}
    data: list[Any] = [None] * len(parts)
    for position, part in enumerate(parts):
        owners = {tuple(id(each) for each, _ in _owners(companions, name)) for name in part.field}
        if len(owners) > 1:  # alternatives in several places
            data[position] = _read_first(companions, base, part, read_base)
            continue
        owner = find_owner(companions, part.field[0])
        if owner is None:
            asked.setdefault(-1, []).append((position, part))
            continue
        companion = owner[0]
        names = [name for name in map(companion.extension_of, part.field) if name is not None]
        row = locate_row(companion, base, part.sample, part.field[0])
        inner = part._replace(sample=row, field=Alternatives([names]))
        asked.setdefault(companions.index(companion), []).append((position, inner))
    for k, chosen in asked.items():
        wanted = [part for _, part in chosen]
        read = read_base(wanted) if k < 0 else read_parts(companions[k].collection, wanted)
        for (position, _), piece in zip(chosen, read, strict=True):
            data[position] = piece
    return data


def _read_first(
    companions: Sequence[Companion],
    base: ShardCollection,
    part: MemberPart,
    read_base: Callable[[Sequence[MemberPart]], list[bytes]],
) -> bytes:
    """The bytes of the first of several alternatives that the sample has."""
    for name in part.field[:-1]:
        with contextlib.suppress(SelectionError):
            return read_joined_parts(companions, base, [part._replace(field=Alternatives([(name,)]))], read_base)[0]
    last = part._replace(field=Alternatives([part.field[-1:]]))
    return read_joined_parts(companions, base, [last], read_base)[0]
