"""Which samples of a source to pack: conditions on their keys and fields.

Rules: a condition is text, ``.cls=3``, read once. It looks at a sample as the source has it, before anything is packed,
and reads the fields that it names and no others. A sample that lacks what a condition names does not meet it,
with any comparison.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import InputError, SampleError, WidsError
from wids.writing.pack.listing import SampleProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.writing.pack.listing import SourceListing

_FORM = re.compile(r"([^:=!~<>]+)(?::([^=!~<>]+))?(?:(==?|!=|~|!~|<=|>=|<|>)(.*))?", re.DOTALL)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_POSITION = re.compile(r"[0-9]{1,18}")
_KEY = "key"
_TELL_EACH = 256


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition.

    Attributes:
        text: as it was written.
        field: an extension with its dot, or ``"key"``.
        names: where in the field's JSON to look; of a list, positions. Empty: the field as text.
        comparison: ``=``, ``!=``, ``~``, ``!~``, ``<``, ``<=``, ``>``, ``>=``; ``""``: the sample has it.
        value: what to compare with.
    """

    text: str
    field: str
    names: tuple[str, ...] = ()
    comparison: str = ""
    value: str = ""

    def holds(self, key: str, extensions: frozenset[str], data: dict[str, bytes]) -> bool:
        """Whether a sample meets it.

        Args:
            key: of the sample.
            extensions: of all its fields.
            data: of those fields that `needs` names.

        Raises:
            SampleError: the field is not the text or JSON that the condition takes it for.
        """
        if self.field != _KEY and self.field not in extensions:
            return False
        if not (self.comparison or self.names):
            return True
        found = key if self.field == _KEY else self._text_of(key, data[self.field])
        if found is None:
            return False
        return not self.comparison or self._compare(found)

    @property
    def needs(self) -> bool:
        """Whether the field's bytes are looked at."""
        return self.field != _KEY and bool(self.comparison or self.names)

    def _text_of(self, key: str, data: bytes) -> str | None:
        """The value to compare; None: the JSON has no such name."""
        try:
            if not self.names:
                return data.decode("utf-8").strip()
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            what = "JSON" if self.names else "text"
            raise SampleError(
                f"{self.field} of {key!r} is no {what} ({error}), which the condition {self.text!r} takes it for"
            ) from error
        for name in self.names:
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and _POSITION.fullmatch(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _compare(self, found: str) -> bool:
        if self.comparison in ("~", "!~"):
            return bool(re.search(self.value, found)) == (self.comparison == "~")
        ours, its = _number(self.value), _number(found)
        if self.comparison in _ORDERS:
            return ours is not None and its is not None and bool(_ORDERS[self.comparison](its, ours))
        is_same = found == self.value or (its is not None and its == ours)
        return is_same == (self.comparison == "=")


def _number(text: str) -> float | None:
    """The number that a text is: a whole one exactly, for as floats two long ids would be the same."""
    if "_" in text:  # Python's own way of writing them
        return None
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse_condition(text: str) -> Condition:
    """``.cls=3``, ``.json:meta.width>=512``, ``.txt~cat``, ``key!~^test``, ``.jpg``.

    Raises:
        InputError: it is none of these.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or (found[1].strip() == _KEY and (found[2] or not found[3])):
        raise InputError(
            f"{text!r} is no condition; write it like .cls=3, .json:caption~cat, .json:width>=512, key~^n01, "
            "or .jpg for samples that have one"
        )
    field, names, comparison, value = (part.strip() if part else "" for part in found.groups())
    condition = Condition(
        text=text,
        field=field if field == _KEY or field.startswith(".") else f".{field}",
        names=tuple(names.split(".")) if names else (),
        comparison="=" if comparison == "==" else comparison,
        value=value,
    )
    if comparison in _ORDERS and _number(value) is None:
        raise InputError(f"{text!r}: {comparison} compares numbers, and {value!r} is none")
    if comparison in ("~", "!~"):
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"{text!r}: {value!r} is no regular expression ({error})") from None
    return condition


def keep_matching(
    listing: SourceListing, conditions: Sequence[Condition], *, skips_errors: bool, tell: Callable[[int], None]
) -> None:
    """Leave in a listing only the samples that meet all conditions.

    Args:
        listing: is changed; how many were left out is in its ``unmatched``.
        conditions: all of which must hold.
        skips_errors: those that cannot be looked at become problems.
        tell: called with the number of samples that were looked at now and then.

    Raises:
        WidsError: one cannot be looked at, and none is to be skipped; or none meets them.
    """
    needed = frozenset(condition.field for condition in conditions if condition.needs)
    kept: list[Any] = []
    seen: set[str] = set()
    count = len(listing.items)
    for number, item in enumerate(listing.items):
        if number % _TELL_EACH == 0:
            tell(number)
        try:
            found = listing.reader.look(item, needed)
            if not kept:  # for the error
                seen |= found[1]
            if all(condition.holds(*found) for condition in conditions):
                kept.append(item)
        except WidsError as error:
            if not skips_errors:
                raise
            listing.problems.append(SampleProblem(f"sample {number}", str(error)))
            listing.unmatched -= 1
    if not kept:
        for condition in conditions:
            if condition.field not in (*seen, _KEY):
                there = ", ".join(sorted(seen)) or "none"
                raise InputError(f"{condition.text!r}: no sample has a field {condition.field}; there are {there}")
        words = " and ".join(repr(condition.text) for condition in conditions)
        raise InputError(f"of {count:,} samples none meets {words}")
    listing.items = kept
    listing.unmatched += count - len(kept)
