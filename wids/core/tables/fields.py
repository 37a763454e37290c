"""The members of a sample that are read, and a program's names for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from wids.errors import InputError, SelectionError, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from typing_extensions import Self

T = TypeVar("T")
# Extension of the one member, of no bytes, of a sample of a companion that has nothing.
EMPTY = ".empty"
# The members that a reader reads: those with some extensions, all but some, or all.
Wanted: TypeAlias = "Collection[str] | AllBut | None"
# The argument ``fields``: extensions, or names for them; alternatives are joined by ";"; `LazyMembers` are opened.
FieldsArgument: TypeAlias = (
    "str | LazyMembers | Sequence[str | LazyMembers] | Mapping[str, str | LazyMembers | Sequence[str]] | None"
)


class LazyMembers:
    """Members that are opened as files, and not read; `wids.lazy` makes it.

    As a transformation it changes nothing: a dataset looks for it before it reads.

    Attributes:
        extensions: of the members, each with its dot; alternatives, where it is a field.

    Args:
        extensions: one, or several that are joined by ";" or in a sequence.

    Raises:
        TypeError: one of them is no text. InputError: one is empty, or there is none.
    """

    extensions: tuple[str, ...]

    def __init__(self, extensions: str | Sequence[str]) -> None:
        self.extensions = tuple(_split(extensions))

    def __call__(self, sample: T) -> T:
        """The same sample."""
        return sample

    def __eq__(self, other: object) -> bool:
        return self.extensions == other.extensions if isinstance(other, LazyMembers) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.extensions)

    def __repr__(self) -> str:
        return f"lazy({';'.join(self.extensions)!r})"


class Alternatives(tuple[str, ...]):  # noqa: SLOT001 - a tuple cannot have slots
    """Extensions, some of which stand in for each other: of a group, a sample's first one is read.

    As a tuple it has all of them. Case does not matter: members that differ in case alone are one alternative.

    Args:
        groups: the alternatives of each field, in their order, each with its dot.
        names: the program's names of the fields; None: those of the members.
        lazy: the numbers of the groups whose member is opened, and not read.

    Raises:
        InputError: an extension stands in two groups.
    """

    groups: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] | None
    lazy: frozenset[int]
    _places: dict[str, tuple[int, int]]

    def __new__(  # noqa: D102
        cls, groups: Sequence[Sequence[str]], names: Sequence[str] | None = None, lazy: Iterable[int] = ()
    ) -> Self:
        self = super().__new__(cls, [extension for group in groups for extension in group])
        self.groups, self.names = tuple(map(tuple, groups)), None if names is None else tuple(names)
        self.lazy = frozenset(lazy)
        self._places = {}
        for number, group in enumerate(self.groups):
            for rank, extension in enumerate(group):
                if self._places.setdefault(extension.casefold(), (number, rank))[0] != number:
                    raise InputError(f"fields: {shown(extension)} is in two of the fields; it can be in one")
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.groups, self.names, self.lazy

    def __repr__(self) -> str:
        joined = map(";".join, self.groups)
        texts = tuple(LazyMembers(text) if number in self.lazy else text for number, text in enumerate(joined))
        return repr(texts if self.names is None else dict(zip(self.names, texts, strict=True)))

    def choose(self, extensions: Iterable[str]) -> list[list[int]]:
        """The positions of a sample's members for each group; several differ in case alone."""
        best: list[tuple[int, list[int]]] = [(len(self), [])] * len(self.groups)
        for position, extension in enumerate(extensions):
            known = self._places.get(extension.casefold())
            if known is None:
                continue
            number, rank = known
            if rank < best[number][0]:
                best[number] = rank, [position]
            elif rank == best[number][0]:
                best[number][1].append(position)
        return [positions for _, positions in best]

    def one_position(self, extensions: Sequence[str], *, index: int, key: str, shard: str) -> int:
        """The position of the one member of a sample that these stand for.

        Args:
            extensions: of the sample's members.
            index: of the sample, for the error.
            key: likewise.
            shard: its URL, likewise.

        Raises:
            SelectionError: it has none, or two that differ in case alone.
        """
        positions = self.choose(extensions)[0]
        if len(positions) == 1:
            return positions[0]
        several = " and ".join(shown(extensions[position]) for position in positions)
        words = (
            f"{several}, which differ in case alone: read the sample, and choose"
            if positions
            else f"no {' or '.join(self)}, but {', '.join(map(shown, extensions[:20])) or 'no member'}"
        )
        raise SelectionError(
            f"sample {shown(key)} (index {index}) in shard {shard} has {words}", shard=shard, key=key, field=self[0]
        )

    def positions(self, extensions: Iterable[str]) -> list[int]:
        """`choose`, of all groups together, ascending."""
        return sorted([position for positions in self.choose(extensions) for position in positions])


class AllBut:
    """All members but those that others choose.

    Args:
        others: the members that are left out.
    """

    def __init__(self, others: Alternatives) -> None:
        self.others = others

    def __repr__(self) -> str:
        return f"AllBut({self.others!r})"

    def positions(self, extensions: Iterable[str]) -> list[int]:
        """The positions of a sample's members that are left, ascending."""
        there = list(extensions)
        left_out = frozenset(self.others.positions(there))
        return [position for position in range(len(there)) if position not in left_out]


def part_lazily(fields: tuple[str, ...] | None, steps: Iterable[object]) -> tuple[Wanted, Alternatives | None]:
    """(the members that are read; those that are opened as files, or None: there are none).

    Args:
        fields: of a dataset; None: all.
        steps: its transformations; each extension of a `LazyMembers` among them is a field by itself.

    Raises:
        InputError: such a step has an extension that is in none of the fields.
    """
    extensions = {name.casefold(): name for step in steps if isinstance(step, LazyMembers) for name in step.extensions}
    if fields is None:
        others = Alternatives([(name,) for name in extensions.values()])
        return (AllBut(others), others) if extensions else (None, None)
    groups = fields.groups if isinstance(fields, Alternatives) else tuple((name,) for name in fields)
    lazy = set(fields.lazy) if isinstance(fields, Alternatives) else set()
    lazy.update(k for k, group in enumerate(groups) if not extensions.keys().isdisjoint(map(str.casefold, group)))
    if missing := extensions.keys() - {name.casefold() for name in fields}:
        name = extensions[min(missing)]
        raise InputError(f"transformations: lazy({name!r}) is none of fields={fields!r}, all that a sample has")
    if not lazy:
        return fields, None
    read = [group for k, group in enumerate(groups) if k not in lazy]
    is_plain = all(len(group) == 1 for group in read)
    return (
        tuple(group[0] for group in read) if is_plain else Alternatives(read),
        Alternatives([group for k, group in enumerate(groups) if k in lazy]),
    )


class FieldNames:
    """A transformation: members by the names that a program gives them, in its order, and all that are no members.

    Args:
        fields: with names.
    """

    def __init__(self, fields: Alternatives) -> None:
        self.fields = fields

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The same values under their names.

        Raises:
            SelectionError: the sample has none of the alternatives of a field, or two that differ in case alone.
        """
        extensions = [name for name in sample if name.startswith(".")]
        named = {}
        for name, group, places in zip(
            self.fields.names or (), self.fields.groups, self.fields.choose(extensions), strict=True
        ):
            if len(places) != 1:
                raise _explain(sample, name, group, [extensions[position] for position in places])
            named[name] = sample[extensions[places[0]]]
        return {**named, **{name: value for name, value in sample.items() if not name.startswith(".")}}

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, FieldNames) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"FieldNames({self.fields!r})"


def _explain(sample: Mapping[str, Any], name: str, group: Sequence[str], extensions: Sequence[str]) -> SelectionError:
    shard, key = sample.get("__shard__"), sample.get("__key__")
    subject = f"fields: sample {shown(key)} (index {sample.get('__index__')}) in shard {shard} has "
    if extensions:
        listed = " and ".join(map(shown, extensions))
        words = f"{listed}, of which {shown(name)} can be one; give their extensions without names"
    else:
        words = (
            f"none of {', '.join(group)} for {shown(name)}; name its extension too, leave the sample out, or give "
            "extensions without names, which a sample may lack"
        )
    return SelectionError(subject + words, shard=shard, key=key, field=name)


def parse_fields(fields: FieldsArgument) -> tuple[str, ...] | None:
    """Extensions, each with its leading dot; `Alternatives`, where there are such or names; None: all.

    Raises:
        TypeError: one of them is no text. InputError: one is empty, repeated, or a name that samples have anyway.
    """
    if fields is None or isinstance(fields, Alternatives):  # those of another dataset
        return fields
    if isinstance(fields, Mapping):
        if not fields:
            raise InputError("fields is empty; give them like {'image': 'jpg;png'}, or None for all")
        values: list[Any] = list(fields.values())
        return Alternatives(list(map(_split, values)), [*map(_check_name, fields)], _numbers_of_lazy(values))
    listed = [fields] if isinstance(fields, (str, LazyMembers)) else list(fields)
    groups, lazy = list(map(_split, listed)), _numbers_of_lazy(listed)
    if lazy or any(len(group) > 1 for group in groups):
        return Alternatives(groups, None, lazy)
    return tuple(group[0] for group in groups)


def parse_field(field: Any, fields: tuple[str, ...] | None = None) -> Alternatives:
    """One field: its extension, alternatives, or a name.

    Args:
        field: the argument of a program.
        fields: of the dataset, some with names.

    Raises:
        TypeError: it is no text. InputError: it is empty.
    """
    if isinstance(fields, Alternatives) and fields.names is not None and field in fields.names:
        return Alternatives([fields.groups[fields.names.index(field)]])
    return Alternatives([_split(field)])


def _numbers_of_lazy(values: Sequence[Any]) -> list[int]:
    return [number for number, value in enumerate(values) if isinstance(value, LazyMembers)]


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"fields has {name!r:.100} for a name; names are texts, like 'image'")
    if not name or name.startswith("__"):
        raise InputError(f"fields: {shown(name)} cannot be the name of a field: it is empty, or begins with __")
    return name


def _split(alternatives: Any) -> list[str]:
    """The extensions that a text, or several, stands for: each once, with its dot."""
    if isinstance(alternatives, LazyMembers):
        return list(alternatives.extensions)
    texts = [alternatives] if isinstance(alternatives, str) else alternatives
    if (
        not isinstance(texts, Sequence)
        or isinstance(texts, (bytes, bytearray))
        or not all(isinstance(text, str) for text in texts)
    ):
        raise TypeError(f"fields has {alternatives!r:.100}; it holds extensions, like '.jpg'")
    parts = [part.strip() for text in texts for part in text.split(";")]
    if not all(parts) or not parts:
        raise InputError(f"fields: {shown(alternatives)} has an empty extension; give them like 'jpg;png'")
    dotted = [part if part.startswith(".") else f".{part}" for part in parts]
    unique: dict[str, str] = {}
    for name in dotted:
        unique.setdefault(name.casefold(), name)
    return [*unique.values()]
