"""Parses rules from members to columns, as users write them: ``.cls=label``, ``.json:width,meta.size=s``, ``.txt``."""

from __future__ import annotations

import difflib
import functools
import hashlib
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from wids.columns.kinds import writable
from wids.errors import InputError, shorten, shown
from wids.jobs.arguments import Text, check_struct, check_value, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What every table of columns begins with.
OWN_COLUMNS = ("index", "shard", "row", "key", "bytes")
# Beyond so many extensions (file names with many dots make one of each member) there are no columns of sizes.
MAX_SIZES = 256

_HeaderHow: TypeAlias = Literal["picture", "sound", "video"]
# What headers say, for each way to read them.
HEADER_KEYS = {
    "picture": ("width", "height", "mode"),
    "sound": ("duration", "sample_rate", "channels"),
    "video": ("width", "height", "frames", "fps", "duration", "codec"),
}
# Changed when the same rules give other columns: shards are then read again.
_VERSION = 4
_NOT_WORD = re.compile(r"\W+")
# So many columns are named in a message.
_NAMED = 100
# Characters of no extension: another form of the rule was meant.
_STRANGE = re.compile(r"[:,=*|\s]")


class ColumnRule(msgspec.Struct, frozen=True, kw_only=True):
    """One column.

    Attributes:
        name: of the column.
        extension: of the member, with its dot; in any case, ``.cls`` finds ``.CLS``. Alternatives are joined by ``;``.
        how: ``"field"``: the member decoded, by its extension. ``"json"``: a key of a member that is a JSON object.
            ``"text"``: the member as text, UTF-8. ``"picture"``, ``"sound"``, ``"video"``: a property, from the
            member's header.
        keys: the path in the JSON object: a key, and keys of nested objects; of a picture, ``width``,
            ``height`` or ``mode``; of a sound, ``duration``, ``sample_rate`` or ``channels``; of a video, ``width``,
            ``height``, ``frames``, ``fps``, ``duration`` or ``codec``.
        missing: ``"null"``: a member that cannot be parsed is null, and listed; ``"error"``: it fails its shard.
    """

    name: Text
    extension: Text
    how: Literal["field", "json", "text", "picture", "sound", "video"]
    keys: tuple[Text, ...] = ()
    missing: Literal["error", "null"] = "error"

    @property
    def source(self) -> str:
        """The rule without its name, for messages: ``json .json:meta.size``."""
        keys = f":{'.'.join(self.keys)}" if self.keys else ""
        return f"{self.how} {self.extension}{keys}" + (" (missing: null)" if self.missing == "null" else "")

    @property
    def digest(self) -> str:
        """The same for the same values, whatever the column is called."""
        return _digest(self)


@functools.lru_cache(maxsize=1024)
def _digest(rule: ColumnRule) -> str:
    data = msgspec.json.encode((_VERSION, msgspec.structs.replace(rule, name="")))
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class ColumnSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The rules: which columns come from which members of a sample.

    Attributes:
        rules: the columns, in their order.

    Example:
        >>> spec = jobs.parse_spec(jsons=[".json:width,height"])
        >>> [rule.name for rule in spec.rules], spec.extensions
        (['width', 'height'], ('.json',))
    """

    rules: tuple[ColumnRule, ...] = ()

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions of the members to read, each once."""
        return tuple(dict.fromkeys(extension for rule in self.rules for extension in rule.extension.split(";")))

    @property
    def names(self) -> list[str]:
        """The names of the columns, except the sizes of fields, which are known after all shards were read."""
        return [*OWN_COLUMNS, *(rule.name for rule in self.rules)]

    def check(self) -> ColumnSpec:
        """Check rules that a program made without `parse_spec`.

        Returns:
            The same rules; see `wids.jobs.arguments.check_struct`.

        Raises:
            InputError: one does not fit, or two columns would have the same name.
        """
        rules = tuple(check_struct(f"spec: rules[{k}]", rule, ColumnRule) for k, rule in enumerate(self.rules))
        for number, rule in enumerate(rules):
            name = f"spec: rules[{number}]"
            if not all(part.startswith(".") and part != "." for part in rule.extension.split(";")):
                raise InputError(
                    f"{name}: extension={rule.extension!r}: give extensions that begin with a dot, as .jpg;.png"
                )
            if (keys := HEADER_KEYS.get(rule.how)) is not None:
                if len(rule.keys) != 1 or rule.keys[0] not in keys:
                    raise InputError(f"{name}: keys={rule.keys!r}: give one of {', '.join(keys)}")
            elif bool(rule.keys) != (rule.how == "json"):
                raise InputError(f"{name}: keys={rule.keys!r}: give at least 1 for how='json', and none for others")
        checked = ColumnSpec(rules=rules)
        check_names(checked.names)
        return checked

    def added_to(self, earlier: Sequence[ColumnRule], drop: Sequence[str] = ()) -> ColumnSpec:
        """These rules and those of an earlier table: a column that both have keeps its place, and has the new rule.

        Args:
            earlier: the rules of the table.
            drop: names of its columns that are left out.

        Raises:
            InputError: the table has no such column.
        """
        rules = {rule.name.casefold(): rule for rule in earlier}
        for name in drop:
            if name.casefold() not in rules:
                there = f"there are {', '.join(rule.name for rule in earlier)}" if earlier else "there are none"
                raise InputError(f"drop: there is no column {shown(name)} of an earlier run; {there}", parameter="drop")
        for name in drop:
            rules.pop(name.casefold(), None)
        rules.update((rule.name.casefold(), rule) for rule in self.rules)
        return ColumnSpec(rules=tuple(rules.values()))


def parse_spec(
    *,
    fields: str | Iterable[str] = (),
    jsons: str | Iterable[str] = (),
    texts: str | Iterable[str] = (),
    pictures: str | Iterable[str] = (),
    sounds: str | Iterable[str] = (),
    videos: str | Iterable[str] = (),
    missing: Literal["error", "null"] = "error",
) -> ColumnSpec:
    """Parse the rules of a program or a command line.

    Args:
        fields: each ``.cls=label`` or ``.cls`` (a column ``cls``). Of alternatives (``.cls;.txt=label``, also of
            the others) a sample's first one counts.
        jsons: each ``.json:width,meta.size=size``: keys of the object; a dot leads into a nested object. The last key
            names the column unless a name is given.
        texts: each ``.txt=caption`` or ``.txt``.
        pictures: each ``.jpg`` (columns ``width`` and ``height`` in pixels, and ``mode``, Pillow's: ``RGB``, ``L``,
            ...) or ``.jpg=photo`` (``photo_width``, ...), from the headers of the pictures.
        sounds: each ``.wav`` (columns ``duration`` in seconds, ``sample_rate`` in Hz, and ``channels``) or
            ``.wav=speech`` (``speech_duration``, ...), from the headers of the sounds.
        videos: each ``.mp4`` (columns ``width`` and ``height`` in pixels, ``frames``, ``fps``, ``duration`` in seconds,
            and ``codec``, FFmpeg's: ``h264``, ``vp9``, ...) or ``.mp4=clip`` (``clip_width``, ...), from the headers of
            the videos.
        missing: ``"null"``: a member that cannot be parsed is null; ``"error"``: it fails its shard.

    Raises:
        InputError: one of them is malformed, or two columns would have the same name.

    Example:
        >>> jobs.parse_spec(fields=[".cls=label"], texts=[".txt=caption"]).names
        ['index', 'shard', 'row', 'key', 'bytes', 'label', 'caption']
    """
    check_value("missing", missing, Literal["error", "null"])
    rules = [_parse_whole(text, "field") for text in texts_of("fields", fields)]
    _check_new(rules, "fields")
    for text in texts_of("jsons", jsons):
        rules += _parse_json(text)
    _check_new(rules, "jsons")
    rules += [_parse_whole(text, "text") for text in texts_of("texts", texts)]
    _check_new(rules, "texts")
    headers: list[tuple[_HeaderHow, str | Iterable[str]]] = [
        ("picture", pictures),
        ("sound", sounds),
        ("video", videos),
    ]
    for how, texts_of_how in headers:
        for text in texts_of(f"{how}s", texts_of_how):
            rules += _parse_header(text, how)
        _check_new(rules, f"{how}s")
    return ColumnSpec(rules=tuple(msgspec.structs.replace(rule, missing=missing) for rule in rules))


def _check_new(rules: Sequence[ColumnRule], parameter: str) -> None:
    """Check the names of the rules so far, the last of which came from this parameter."""
    check_names([*OWN_COLUMNS, *(rule.name for rule in rules)], parameter)


def check_names(names: Sequence[str], parameter: str | None = None) -> None:
    """Check that the names of columns are distinct, also in SQL, which ignores case.

    Args:
        names: all of them.
        parameter: the argument that named them, if only one did.

    Raises:
        InputError: two names are equal, or one cannot be written.
    """
    for name in names:
        if not name or "\0" in name or name != writable(name):
            raise InputError(
                f"a column cannot be called {name!r}: a name is UTF-8, not empty, and has no NUL", parameter=parameter
            )
    counts = Counter(name.casefold() for name in names)
    repeated = [name for name in names if counts[name.casefold()] > 1]
    if repeated:
        raise InputError(
            f"two columns would be called {repeated[-1]!r} (case does not matter, and {', '.join(OWN_COLUMNS)} are "
            "always there); give one of them another name",
            parameter=parameter,
        )


# What a column of classes is called, in lower case.
CLASS_COLUMNS = frozenset({"cls", "label", "labels", "class", "target", "category"})


def nearest(name: str, names: Iterable[str]) -> str:
    """Words that name the column with the most similar name, if there is one."""
    there = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(name.casefold(), there, n=1, cutoff=0.7)
    return f" (did you mean {there[near[0]]!r}?)" if near else ""


def unknown_column(name: Any, names: Sequence[str], parameter: str | None = None) -> InputError:
    """The error of a name that no column has.

    Args:
        name: as it was given.
        names: of the columns.
        parameter: the argument that named it.
    """
    near = nearest(name, names) if isinstance(name, str) else ""
    there = ", ".join(map(shorten, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    start = f"{parameter}: " if parameter else ""
    return InputError(f"{start}there is no column {shown(name)}{near}; the columns are {there}", parameter=parameter)


def size_names(extensions: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """The columns of the sizes of fields: extension -> name; ``.seg.png`` -> ``seg_png_bytes``.

    Args:
        extensions: of the members of all shards, as `fold` gives them.
        taken: names of other columns.
    """
    found: dict[str, str] = {}
    used = {name.casefold() for name in taken}
    for extension in sorted(set(extensions)):
        stem = stem_of(extension)
        name, number = f"{stem}_bytes", 1
        while name.casefold() in used:
            number += 1
            name = f"{stem}_bytes_{number}"
        used.add(name.casefold())
        found[extension] = name
    return found


def fold(extension: str) -> str:
    """The common form of extensions that differ only in case, and so are one field."""
    return extension.casefold()


def stem_of(extension: str) -> str:
    """An extension as an SQL name that needs no quotes: ``seg_png`` for ``.seg.png``."""
    return _NOT_WORD.sub("_", extension).strip("_") or "field"


def _parse_header(text: str, how: _HeaderHow) -> list[ColumnRule]:
    whole = _parse_whole(text, how)
    start = f"{whole.name}_" if "=" in text else ""
    return [msgspec.structs.replace(whole, name=f"{start}{key}", keys=(key,)) for key in HEADER_KEYS[how]]


def _parse_whole(text: str, how: Literal["field", "text"] | _HeaderHow) -> ColumnRule:
    extension, _, name = (part.strip() for part in text.partition("="))
    parameter, advice = f"{how}s", "write it like .cls=label"
    if ":" in extension:
        advice = "give keys of a JSON object to jsons, as .json:width=w"
    extension = _dotted(extension, text, advice, parameter, hint="jsons")
    if "," in name or "=" in name:
        raise InputError(f"{parameter}: {text!r} is more than one column; give a text for each", parameter=parameter)
    return ColumnRule(name=name or stem_of(extension.partition(";")[0]), extension=extension, how=how)


def _parse_json(text: str) -> list[ColumnRule]:
    advice = "write it like .json:width,height or .json:meta.width=w"
    extension, colon, keys = (part.strip() for part in text.partition(":"))
    if not colon:
        raise InputError(f"jsons: {text!r} names no keys of a JSON object; {advice}", parameter="jsons")
    extension = _dotted(extension, text, advice, "jsons")
    rules = []
    for part in keys.split(","):
        path, _, name = (word.strip() for word in part.partition("="))
        names = tuple(path.split("."))
        if not all(names):
            raise InputError(f"jsons: {text!r} names no keys of a JSON object; {advice}", parameter="jsons")
        rules.append(ColumnRule(name=name or names[-1], extension=extension, how="json", keys=names))
    return rules


def _dotted(extension: str, text: str, advice: str, parameter: str, *, hint: str | None = None) -> str:
    parts = [part.strip() for part in extension.split(";")]
    if not all(part.strip(".") for part in parts):
        raise InputError(f"{parameter}: {text!r} names no field; {advice}", parameter=parameter)
    if strange := _STRANGE.search("".join(parts)):
        raise InputError(
            f"{parameter}: {text!r} has {strange[0]!r} in an extension; {advice}; alternatives are joined by ';'",
            parameter=parameter,
            hint=hint,
        )
    return ";".join(dict.fromkeys(part if part.startswith(".") else f".{part}" for part in parts))
