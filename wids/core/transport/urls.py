"""Patterns and names of many URLs: brace expansion, natural order.

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import braceexpand

from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

# More shards than this come from an index that includes itself, or from a mistake in a brace pattern.
MAX_SHARDS = 1 << 22

_MAX_BRACE_DEPTH = 50
_NUMBERS = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.-?([0-9]+))?")
_LETTERS = re.compile(r"[A-Za-z]\.\.[A-Za-z](?:\.\.-?[0-9]+)?")
_MAX_DIGITS, _MAX_SHOWN = 18, 200
_INTEGER = re.compile(r"(\d+)")


def expand(pattern: str, *, most: int = MAX_SHARDS) -> Iterator[str]:
    """Expand a brace pattern such as ``train-{000000..000099}.tar``; other text is returned unchanged.

    Args:
        pattern: the text.
        most: the number of names that it may have.

    Raises:
        SpecError: the braces do not match, or expand to more names.
    """
    if "{" not in pattern:
        yield pattern
        return
    shown = repr(pattern if len(pattern) <= _MAX_SHOWN else f"{pattern[:_MAX_SHOWN]}...")
    try:
        if _count(pattern) > most:
            raise SpecError(f"brace pattern {shown}: it expands to more than {most:,} names; correct its numbers")
        yield from braceexpand.braceexpand(pattern)
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"brace pattern {shown}: {error}; write it like 'train-{{000000..000099}}.tar'") from error


def _count(pattern: str) -> int:
    """The number of names of a brace pattern, or a number above `MAX_SHARDS`; nothing is expanded.

    Raises:
        ValueError: the braces do not match, or are nested too deeply to be expanded.
    """
    # For each open brace: its position, the number of names before the last comma, and the number since.
    stack = [[-1, 0, 1]]
    at = 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "{":
            stack.append([at, 0, 1])
            if len(stack) > _MAX_BRACE_DEPTH:
                raise ValueError(f"braces within more than {_MAX_BRACE_DEPTH} others")
        elif letter == "," and len(stack) > 1:
            stack[-1][1:] = [stack[-1][1] + stack[-1][2], 1]
        elif letter == "}":
            start, before, last = stack.pop()
            if not stack:
                raise ValueError("unbalanced braces")
            count = _count_range(pattern[start + 1 : at]) or before + last
            stack[-1][2] = min(stack[-1][2] * count, MAX_SHARDS + 1)
        at += 1
    if len(stack) > 1:
        raise ValueError("unbalanced braces")
    return stack[0][2]


def _count_range(text: str) -> int:
    """The number of values of a range between braces; 0 if the text is not a range."""
    if _LETTERS.fullmatch(text):
        return 52
    match = _NUMBERS.fullmatch(text)
    if match is None:
        return 0
    if max(len(part or "") for part in match.groups()) > _MAX_DIGITS:
        return MAX_SHARDS + 1
    return abs(int(match[2]) - int(match[1])) // (int(match[3] or 1) or 1) + 1


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts names as people do: ``s2.tar`` before ``s10.tar``."""
    parts = _INTEGER.split(name)
    # Python reads no number of more than 4,300 digits.
    return [(0, int(part[-4000:]), part) if k % 2 else (1, 0, part) for k, part in enumerate(parts)]
