"""The parser of JSON that comes from a file or a server, and so may hold anything.

Pure. Its only error is `JsonError`; a caller names the file, or goes without it. A text is refused if it is too long,
not UTF-8 (16, 32), nested too deeply, has a number that a machine cannot hold, or is of another type than the wanted
one. Half a surrogate pair stays, as names have it that are not UTF-8. So do integers of any length up to Python's
limit: whoever computes with one compares it with a limit first.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from wids.errors import JsonError, WidsError, printable, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # Makes an object of the pairs in a text.
    PairsHook = Callable[[list[tuple[str, Any]]], Any]

T = TypeVar("T")

# Errors of msgspec, whose own are no ValueErrors before 0.19.
_REFUSALS = (ValueError, RecursionError, msgspec.MsgspecError)

MAX_BYTES = 1 << 30
# A value nested more deeply would exhaust the stack of a function that walks it.
MAX_DEPTH = 200


class JsonParser(Generic[T]):
    """Parses texts to values of one type.

    Args:
        kind: the type, for msgspec; ``object``: any. Of keys that an object has twice, the last holds.
        max_bytes: the longest text.
        is_finite: False: NaN and infinity are numbers, too, as Python's ``json`` writes them.
        is_plain: no byte order mark, UTF-16, half a surrogate pair or integer of more than 64 bits.
        is_shallow: False: the caller limits how deeply the values are nested, and names the place of one.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        max_bytes: int = MAX_BYTES,
        is_finite: bool = True,
        is_plain: bool = False,
        is_shallow: bool = True,
    ) -> None:
        self._kind, self._max_bytes, self._is_finite, self._is_shallow = kind, max_bytes, is_finite, is_shallow
        self._is_plain = is_plain
        self._decode: Callable[[Any], T] = msgspec.json.Decoder(kind).decode

    def parse(self, text: bytes | memoryview | str) -> T:
        """The value of a text.

        Raises:
            JsonError: it has none of this type.
        """
        self._check_length(text)
        try:
            value = self._decode(text)
        except _REFUSALS as error:
            if self._is_plain:
                raise JsonError(_words(error)) from error
            # JSON that msgspec refuses: a byte order mark, UTF-16, half a surrogate pair, long integers.
            value = self._convert(self.parse_pairs(text, dict))
        if self._is_shallow:
            _check_depth(value, text)
        return value

    def parse_pairs(self, text: bytes | memoryview | str, hook: PairsHook) -> Any:
        """The value of a text, of any type; ``hook`` makes its objects from all their pairs, also of one key.

        Raises:
            JsonError: it is no JSON, or ``hook`` raised a ValueError. WidsError: of ``hook``.
        """
        self._check_length(text)
        options: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if self._is_finite else {}
        try:
            plain = text.removeprefix("\ufeff") if isinstance(text, str) else bytes(text)
            value = json.loads(plain, object_pairs_hook=hook, **options)
        except WidsError:  # of the hook, which knows more
            raise
        except (ValueError, RecursionError) as error:
            raise JsonError(_words(error)) from error
        if self._is_shallow:
            _check_depth(value, text)
        return value

    def _check_length(self, text: bytes | memoryview | str) -> None:
        if len(text) > self._max_bytes:
            raise JsonError(f"it has {len(text):,} bytes, more than {self._max_bytes:,}")

    def _convert(self, value: Any) -> T:
        try:
            converted: T = msgspec.convert(value, self._kind)
        except _REFUSALS as error:
            raise JsonError(_words(error)) from error
        return converted


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for `JsonParser.parse_pairs`.

    Raises:
        ValueError: a key is there twice.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {shorten(repr(twice))} is there twice")
    return mapping


parse: Callable[[bytes | memoryview | str], Any] = JsonParser[Any](object).parse
# For what people and other programs write: json.dump writes NaN.
TOLERANT = JsonParser[Any](object, is_finite=False)


def _check_depth(value: Any, text: bytes | memoryview | str) -> None:
    """Refuse a value that is nested too deeply; only a text with so many brackets can have one."""
    if isinstance(text, str):
        count = text.count("[") + text.count("{")
    else:
        raw = bytes(text)
        count = raw.count(b"[") + raw.count(b"{")
    if count <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for each in level for part in _parts(each) if isinstance(part, _NESTED)]
        if not level:
            return
    raise JsonError(f"it is nested more than {MAX_DEPTH} levels deep")


_NESTED = (dict, list, tuple, msgspec.Struct)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return msgspec.structs.astuple(value) if isinstance(value, msgspec.Struct) else value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return printable(shorten(str(error), most=300))
