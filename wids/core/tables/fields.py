"""The members of a sample that are read, and a program's names for them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wids.errors import InputError, SelectionError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

# The argument ``fields``: extensions, or names for them; alternatives are joined by ";".
FieldsArgument: TypeAlias = "str | Sequence[str] | Mapping[str, str | Sequence[str]] | None"


class Alternatives(tuple[str, ...]):  # noqa: SLOT001 - a tuple cannot have slots
    """Extensions, some of which stand in for each other: of a group, a sample's first one is read.

    As a tuple it has all of them. Case does not matter: members that differ in case alone are one alternative.

    Args:
        groups: the alternatives of each field, in their order, each with its dot.
        names: the program's names of the fields; None: those of the members.

    Raises:
        InputError: an extension stands in two groups.
    """

    groups: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] | None
    _places: dict[str, tuple[int, int]]

    def __new__(cls, groups: Sequence[Sequence[str]], names: Sequence[str] | None = None) -> Self:  # noqa: D102
        self = super().__new__(cls, [extension for group in groups for extension in group])
        self.groups, self.names = tuple(map(tuple, groups)), None if names is None else tuple(names)
        self._places = {}
        for number, group in enumerate(self.groups):
            for rank, extension in enumerate(group):
                if self._places.setdefault(extension.casefold(), (number, rank))[0] != number:
                    raise InputError(f"fields: {shown(extension)} is in two of the fields; it can be in one")
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.groups, self.names

    def __repr__(self) -> str:
        texts = tuple(map(";".join, self.groups))
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
    if fields is None:
        return None
    if isinstance(fields, Mapping):
        if not fields:
            raise InputError("fields is empty; give them like {'image': 'jpg;png'}, or None for all")
        return Alternatives([_split(each) for each in fields.values()], [*map(_check_name, fields)])
    names = [fields] if isinstance(fields, str) else list(fields)
    groups = [_split(name) for name in names]
    if any(len(group) > 1 for group in groups):
        return Alternatives(groups)
    return tuple(group[0] for group in groups)


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"fields has {name!r:.100} for a name; names are texts, like 'image'")
    if not name or name.startswith("__"):
        raise InputError(f"fields: {shown(name)} cannot be the name of a field: it is empty, or begins with __")
    return name


def _split(alternatives: Any) -> list[str]:
    """The extensions that a text, or several, stands for: each once, with its dot."""
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
