"""Fields of samples that lie in companions, behind the base's and before the transformations. Without torch."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.collection.batches import expect, read_batch, read_parts, read_sample
from wids.core.tables.fields import EMPTY, AllBut, Alternatives
from wids.errors import InputError, SelectionError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wids.core.collection.batches import MemberPart
    from wids.core.collection.companions import Companion
    from wids.core.collection.member_file import MemberFile
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.readers.base import Reader, Sample
    from wids.core.tables.fields import Wanted


class Owners:
    """The places of the fields of joined samples: the base, or companions.

    A field that a companion may have, and nothing is known to have, may be the base's too: it is looked for in both.

    Args:
        companions: of the dataset.
        base: the samples.

    Attributes:
        companions: the argument.
    """

    companions: Sequence[Companion]

    def __init__(self, companions: Sequence[Companion], base: ShardCollection) -> None:
        self.companions, self._base = companions, base
        self._first: frozenset[str] | None = None
        self._known: dict[str, tuple[list[tuple[Companion, str]], bool]] = {}

    def find(self, field: str) -> list[tuple[Companion, str]]:
        """The companions that have, or may have, a field, each with the extension of its member."""
        return self._look(field)[0]

    def has_base(self, field: str) -> bool:
        """True if a field is, or may be, the base's."""
        return self._look(field)[1]

    def _look(self, field: str) -> tuple[list[tuple[Companion, str]], bool]:
        if field not in self._known:
            claims = [(each, claim) for each in self.companions if (claim := each.extension_of(field)) is not None]
            sure = [(each, extension) for each, (extension, is_sure) in claims if is_sure]
            if sure or not claims:
                self._known[field] = sure, not sure or field.casefold() in self._base_fields()
            elif field.casefold() in self._base_fields():
                self._known[field] = [], True
            else:
                self._known[field] = [(each, extension) for each, (extension, _) in claims], True
        return self._known[field]

    def _base_fields(self) -> frozenset[str]:
        """The extensions of the base's first shard, as far as a member table says them."""
        if self._first is None:
            table = self._base.first_table()
            self._first = frozenset() if table is None else frozenset(map(str.casefold, table.extensions))
        return self._first

    def _theirs(self, companion: Companion, fields: Iterable[str]) -> list[str]:
        """Fields that are, or may be, a companion's, by the extensions of its members."""
        return [extension for field in fields for each, extension in self.find(field) if each is companion]

    def part_of(self, companion: Companion, members: Wanted) -> Wanted:
        """Members of a joined sample that are a companion's, by its own extensions."""
        if members is None:
            return companion.fields
        if isinstance(members, AllBut):
            others = self.files_of(companion, members.others)
            if others is None:
                return companion.fields
            if companion.fields is None:
                return AllBut(others)
            left_out = {name.casefold() for name in others}
            return tuple(name for name in companion.fields if name.casefold() not in left_out)
        if isinstance(members, Alternatives):
            return self.files_of(companion, members) or ()
        return tuple(self._theirs(companion, members))

    def files_of(self, companion: Companion, groups: Alternatives | None) -> Alternatives | None:
        """Groups of members of a joined sample with a companion's alone, by its own extensions; None: it has none."""
        parts = [self._theirs(companion, group) for group in (() if groups is None else groups.groups)]
        parts = [part for part in parts if part]
        return Alternatives(parts) if parts else None

    def rest_of(self, groups: Alternatives | None) -> Alternatives | None:
        """Groups with the members that may be the base's alone; None: it has none."""
        parts = [[name for name in group if self.has_base(name)] for group in (() if groups is None else groups.groups)]
        parts = [part for part in parts if part]
        return Alternatives(parts) if parts else None


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
        owners: know where fields lie.
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

    def __init__(self, owners: Owners, members: Wanted, lazy: Alternatives | None) -> None:
        self._mixed: list[tuple[str, ...]] = []
        self._wishes: list[_Wish] = []
        for companion in owners.companions:
            theirs, files = owners.part_of(companion, members), owners.files_of(companion, lazy)
            if files is not None or theirs is None or isinstance(theirs, AllBut) or len(theirs):
                self._wishes.append(_Wish(companion, theirs, files))
        self.companions = tuple(wish.companion for wish in self._wishes)
        self.members = self._rest(owners, members)
        self.lazy = owners.rest_of(lazy)

    def _rest(self, owners: Owners, members: Wanted) -> Wanted:
        """The members that may be the base's."""
        if members is None:
            return None
        if isinstance(members, AllBut):
            others = owners.rest_of(members.others)
            return None if others is None else AllBut(others)
        if not isinstance(members, Alternatives):
            return tuple(name for name in members if owners.has_base(name))
        for group in members.groups:
            places = {id(each) for name in group for each, _ in owners.find(name)}
            if len(places) + any(map(owners.has_base, group)) > 1:
                self._mixed.append(group)
        return owners.rest_of(members) or ()

    def theirs(self) -> list[tuple[Companion, Wanted]]:
        """The companions, each with the members that are read of it, by its own extensions."""
        return [(companion, members) for companion, members, _ in self._wishes]

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

    def add_here(self, sample: Sample, base: ShardCollection) -> None:
        """Add to a sample the fields of companions whose shards are on this machine's disk; nothing is fetched.

        Raises:
            InputError, WidsError: see `add_to`.
        """
        index = whole_index_of(sample, base)
        for companion, members, _ in self._wishes:
            row = companion.row_of(index)
            if row >= 0 and companion.is_here(row):
                self._merge(sample, read_sample(companion.collection, row, members), companion, None, [])
        self._choose(sample)

    def expect(self, indices: Sequence[int], base: ShardCollection) -> bool:
        """`wids.core.collection.batches.expect` of the samples of the companions, for indices of the base."""
        whole = [base.whole_index(base.plain(index)) for index in indices]
        return all(
            expect(companion.collection, [row for row in map(companion.row_of, whole) if row >= 0], members)
            for companion, members, _ in self._wishes
        )

    def check_foreign(self, sample: Sample, base: ShardCollection, kind: str) -> None:
        """Check that a sample that a subclass's own ``get_shard`` gave is of the shard that the index says.

        Args:
            sample: as it was read.
            base: the base's samples.
            kind: the name of the subclass.

        Raises:
            InputError: it is of another one, and nothing says which fields belong to it.
        """
        url = base.urls[bisect_right(base.ends, sample["__index__"])]
        if sample["__shard__"] != url:
            raise InputError(
                f"sample {sample['__index__']} is of the shard {url}, and get_shard of {kind} gives "
                f"{sample['__shard__']}: which fields of a companion belong to it nobody says; join a plain "
                "ShardListDataset, and wrap that"
            )

    def close(self) -> None:
        """Close all open shards of the companions."""
        for companion in self.companions:
            companion.collection.close()

    @staticmethod
    def _merge(
        sample: Sample, other: Sample, companion: Companion, lazy: Alternatives | None, files: list[MemberFile]
    ) -> None:
        companion.check_key(sample, other)
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


@contextlib.contextmanager
def open_companions(
    companions: Sequence[Companion], base: ShardCollection, index: int
) -> Iterator[list[tuple[Companion, Reader, int]]]:
    """The companions that have a sample of a base, 0 <= index < len, each with its open reader, and its row there.

    Raises:
        WidsError: a shard cannot be read.
    """
    with contextlib.ExitStack() as stack:
        opened, whole = [], base.whole_index(index)
        for companion in companions:
            if (place := companion.row_of(whole)) >= 0:
                k, row = companion.collection.locate(place)
                reader = stack.enter_context(companion.collection.pinned(k))
                opened.append((companion, reader, row % len(reader.table)))
        yield opened


def locate_row(companion: Companion, base: ShardCollection, index: int, field: str) -> int:
    """The companion's sample for a sample of a base, 0 <= index < len.

    Raises:
        SelectionError: it has none.
    """
    row = companion.row_of(base.whole_index(index))
    if row < 0:
        raise SelectionError(f"sample {index} has no {field}: {companion.name} has no sample for it", field=field)
    return row


# --- parts of members


def read_joined_parts(
    owners: Owners,
    base: ShardCollection,
    parts: Sequence[MemberPart],
    read_base: Callable[[Sequence[MemberPart]], list[bytes]],
) -> list[bytes]:
    """The bytes of parts of members, of the base or of companions, in their order.

    Args:
        owners: know where fields lie.
        base: the samples.
        parts: of joined samples.
        read_base: reads those of the base.

    Raises:
        SelectionError: a sample has no such member. WidsError: one cannot be read.
    """
    asked: dict[int, list[tuple[int, MemberPart]]] = {}
    data: list[Any] = [None] * len(parts)
    for position, part in enumerate(parts):
        places = [*owners.find(part.field[0])]
        if len(part.field) > 1 or len(places) + owners.has_base(part.field[0]) > 1:
            data[position] = _read_first(owners, base, part, read_base)
        elif not places:
            asked.setdefault(-1, []).append((position, part))
        else:
            [(companion, extension)] = places
            inner = _inner_part(companion, extension, base, part)
            asked.setdefault(owners.companions.index(companion), []).append((position, inner))
    for k, chosen in asked.items():
        wanted = [part for _, part in chosen]
        read = read_base(wanted) if k < 0 else read_parts(owners.companions[k].collection, wanted)
        for (position, _), piece in zip(chosen, read, strict=True):
            data[position] = piece
    return data


def _inner_part(companion: Companion, extension: str, base: ShardCollection, part: MemberPart) -> MemberPart:
    """The part of a companion's member that a part of a joined sample's is."""
    row = locate_row(companion, base, part.sample, part.field[0])
    return part._replace(sample=row, field=Alternatives([(extension,)]))


def _read_first(
    owners: Owners,
    base: ShardCollection,
    part: MemberPart,
    read_base: Callable[[Sequence[MemberPart]], list[bytes]],
) -> bytes:
    """The bytes of the first member that the sample has, of alternatives, and of places where a field may lie.

    Raises:
        SelectionError: it has none.
    """
    first: SelectionError | None = None
    for name in part.field:
        single = part._replace(field=Alternatives([(name,)]))
        try:
            if owners.has_base(name):
                return read_base([single])[0]
        except SelectionError as error:
            first = first or error
        for companion, extension in owners.find(name):
            try:
                return read_parts(companion.collection, [_inner_part(companion, extension, base, single)])[0]
            except SelectionError as error:
                first = first or error
    raise first or SelectionError(f"sample {part.sample} has no {' or '.join(part.field)}", field=part.field[0])
