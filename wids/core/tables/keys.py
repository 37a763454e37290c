"""Key rules, which split a member path into the key of its sample and its extension.

Pure. Names are bytes, as archives hold them; a caller's own rule sees text, where bytes that are not UTF-8
survive as surrogate escapes. None: the member is not part of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    CustomRule: TypeAlias = Callable[[str], "tuple[str, str] | None"]
    Split: TypeAlias = Callable[[bytes], "tuple[bytes, bytes] | None"]

KeyRule: TypeAlias = "Literal['first-dot', 'last-dot'] | CustomRule"


def first_dot(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a member path at the first dot of its basename: ``a.b/c.seg.png`` -> ``a.b/c``, ``.seg.png``.

    ``None`` (not part of a sample) for a basename without a dot, and for one that starts with it (``.DS_Store``,
    ``._x.jpg``), as webdataset has it.
    """
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    return (name[:dot], name[dot:]) if dot > slash else None


def last_dot(name: bytes) -> tuple[bytes, bytes] | None:
    """Split at the last dot of the basename: ``a/v1.2.jpg`` -> ``a/v1.2``, ``.jpg``; else as `first_dot`."""
    slash = name.rfind(b"/") + 1
    dot = name.rfind(b".", slash)
    return (name[:dot], name[dot:]) if dot > slash and name[slash] != 0x2E else None


def _custom(rule: CustomRule) -> Split:
    def split(name: bytes) -> tuple[bytes, bytes] | None:
        parts = rule(decode_name(name))
        return None if parts is None else (encode_name(parts[0]), encode_name(parts[1]))

    return split


# So many fields of one sample that end alike, as .left.jpg and .right.jpg do, are no fields any more.
_MANY_ALIKE = 16
_RULES: dict[str, Split] = {"first-dot": first_dot, "last-dot": last_dot}
NAMED_RULES: tuple[Literal["first-dot"], Literal["last-dot"]] = ("first-dot", "last-dot")  # the standard one first


def parse_rule(rule: KeyRule) -> Split:
    """Turn a ``key_rule`` argument into a function on raw names.

    Raises:
        ValueError: not a known name and not callable.
    """
    if callable(rule):
        return _custom(rule)
    for name, split in _RULES.items():
        if rule == name:
            return split
    raise ValueError(
        f"key_rule is {rule!r}; it must be one of {sorted(_RULES)} or a function name -> (key, extension) | None"
    )


def find_alike_fields(extensions: Iterable[str]) -> tuple[str, str] | None:
    """Two of a sample's extensions that look like two samples, whose names have a dot in them; None: no two do.

    They end alike, and a number stands before that (``.00.png``, ``.9-BAC17.wav``), or very many end alike.
    """
    alike: dict[tuple[bool, str], list[str]] = {}
    for extension in extensions:
        inner, _, end = extension[1:].rpartition(".")
        if inner:
            is_number = inner[0].isdigit()
            like = alike.setdefault((is_number, end.casefold()), [])
            like.append(extension)
            if len(like) > (1 if is_number else _MANY_ALIKE):
                return like[0], like[1]
    return None


def decode_name(raw: bytes) -> str:
    """Bytes of a member name as text; bytes that are not UTF-8 survive as surrogate escapes."""
    return raw.decode("utf-8", "surrogateescape")


def encode_name(name: str) -> bytes:
    """The inverse of `decode_name`."""
    return name.encode("utf-8", "surrogateescape")
