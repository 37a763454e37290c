"""Globs of fsspec over the paths of a repository, part by part and without backtracking.

Pure. A pattern may be a stranger's (a card's): each part of a path is compared with each part of a pattern once, and
the number of comparisons is limited.

``*`` and ``?`` stand for letters of one part, ``[ab]``, ``[a-z]`` and ``[!ab]`` for one of them, ``**`` for any number
of parts; beside other letters in a part, ``**`` stands for any letters and slashes. A set that is none (``[!]``,
``[z-a]``) is literal text.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wids.errors import SpecError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    # (test of a part, its number of stars, the state after it)
    _Move: TypeAlias = tuple[Callable[[str], object], int, int]

# A state costs 1 at each part of a path, and a test costs 1 for so many letters that each of its stars looks at.
_LETTERS = 256
_MAX_LETTERS, _MAX_COST, _MAX_PIECES = 1024, 5_000_000, 8
# What it costs to make one: a star in a part is a group of a regular expression, which is compiled.
_MAKING, _MAKING_LETTER, _MAKING_STAR = 20, 2, 26
_TOKEN = re.compile(r"\*|\?|\[[^\]]+\]|.", re.DOTALL)
_MAGIC = frozenset("*?[")


class Glob:
    """A pattern of paths.

    Args:
        pattern: relative, with ``/`` between its parts.

    Attributes:
        home: the start of all its paths: its parts before the first one with a star or set.
        cost: of its making and of all comparisons so far, in units of about a microsecond.

    Raises:
        SpecError: it is too long, or has too many ``**`` in one part.
    """

    home: str
    cost: int

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_LETTERS:
            raise SpecError(f"the pattern {shown(pattern)} has more than {_MAX_LETTERS:,} letters", path="pattern")
        # A state is the number of parts of the pattern that are done; in a loop state, any part may follow.
        self._moves: list[list[_Move]] = [[]]
        self._loops, self._skips = set[int](), set[int]()
        self.cost = _MAKING + _MAKING_LETTER * len(pattern) + _MAKING_STAR * pattern.count("*")
        parts = re.sub(r"(?<![^/])\*\*(?:/\*\*)+(?![^/])", "**", pattern).split("/")
        fixed = next((k for k, part in enumerate(parts) if not _MAGIC.isdisjoint(part)), len(parts))
        self.home = "".join(f"{part}/" for part in parts[: min(fixed, len(parts) - 1)])
        for k, part in enumerate(parts):
            if part == "**":
                self._add_any(is_last=k == len(parts) - 1)
            elif "**" in part:
                self._add_pieces(part)
            else:
                self._add(part)

    def _add(self, part: str) -> None:
        self._moves[-1].append((_part_test(part), part.count("*"), len(self._moves)))
        self._moves.append([])

    def _add_any(self, *, is_last: bool) -> None:
        if is_last:  # a folder's files, not the folder
            self._add("*")
        self._loops.add(len(self._moves) - 1)
        self._skips.add(len(self._moves) - 1)
        self._moves.append([])

    def _add_pieces(self, part: str) -> None:
        """Add a part with ``**`` beside other letters: each piece is in a part of its own, or in that of the last."""
        pieces = re.split(r"\*{2,}", part)
        if len(pieces) > _MAX_PIECES:
            raise SpecError(f"the pattern {shown(part)} has ** more than {_MAX_PIECES - 1} times", path="pattern")
        first, last = len(self._moves) - 1, len(pieces) - 1
        self._moves += [[] for _ in pieces]
        for i in range(len(pieces)):
            for j in range(i, len(pieces)):
                joined = "*".join(pieces[i : j + 1])
                joined = f"{'*' if i else ''}{joined}{'*' if j < last else ''}"
                self._moves[first + i].append((_part_test(joined), joined.count("*"), first + j + 1))
        self._loops.update(range(first + 1, first + 1 + last))

    def matches(self, path: str, *, or_folder: bool = False) -> bool:
        """True if the pattern is one of this path; with ``or_folder``, or of a folder that it is in."""
        states, end = self._closed({0}), len(self._moves) - 1
        for part in path.split("/"):
            if or_folder and end in states:
                return True
            after = states & self._loops
            self.cost += len(states)
            for state in states:
                for test, stars, to in self._moves[state]:
                    if to not in after:
                        self.cost += stars * len(part) // _LETTERS
                        if test(part):
                            after.add(to)
            if not after:
                return False
            states = self._closed(after)
        return end in states

    def _closed(self, states: set[int]) -> set[int]:
        """The states, with those behind a ``**`` of no part."""
        return states | {state + 1 for state in states & self._skips}


class Matches(NamedTuple):
    """The paths that patterns match, each once, pattern by pattern; the patterns that match none; the cost so far."""

    paths: list[str]
    unmatched: list[str]
    cost: int


def find_matches(patterns: Iterable[str], paths: Sequence[str], *, where: str, spent: int = 0) -> Matches:
    """The paths that patterns match; a pattern may be a folder, too.

    Args:
        patterns: normal, as of `posixpath.normpath`.
        paths: of files.
        where: of the patterns, for messages.
        spent: the cost of what was compared before, under the same limit; that of the result includes it.

    Raises:
        SpecError: a pattern is malformed; or there are too many, for so many paths.
    """
    found, names, cost, unmatched = dict[str, None](), frozenset(paths), spent + len(paths) // 8, list[str]()
    ranked = sorted(range(len(paths)), key=paths.__getitem__)
    texts = [paths[k] for k in ranked]
    for pattern in patterns:
        if pattern in names:  # a card may name each of thousands of files
            found[pattern] = None
            continue
        glob, is_matched = Glob(pattern), False
        _check_cost(cost + glob.cost, where, paths)
        first = bisect_left(texts, glob.home)
        for k in sorted(ranked[first : bisect_left(texts, glob.home + chr(0x10FFFF), first)]):
            if glob.matches(paths[k], or_folder=True):
                found[paths[k]], is_matched = None, True
            _check_cost(cost + glob.cost, where, paths)
        cost += glob.cost
        if not is_matched:
            unmatched.append(pattern)
    return Matches(list(found), unmatched, cost)


def _check_cost(cost: int, where: str, paths: Sequence[str]) -> None:
    if cost > _MAX_COST:
        raise SpecError(
            f"{where}: its patterns take more than {_MAX_COST:,} comparisons with {len(paths):,} paths; name files, "
            "or begin each pattern with its folder",
            path="patterns",
        )


def _is_any(_: str) -> bool:
    return True


def _part_test(part: str) -> Callable[[str], object]:
    """A test whether a text without slashes is one of a part of a pattern."""
    if part.strip("*") == "":
        return _is_any if part else part.__eq__
    if _MAGIC.isdisjoint(part):
        return part.__eq__
    chunks = [""]
    for text in _TOKEN.findall(part):
        if text == "*":
            chunks.append("")
        else:
            chunks[-1] += _regex_of(text)
    first, *middle, last = chunks if len(chunks) > 1 else (chunks[0], "")
    if len(chunks) == 1:
        return re.compile(first, re.DOTALL).fullmatch
    # Each chunk is taken where it stands first, and not looked for again: a star after it makes up for the rest.
    own = "".join(f"(?=(?P<c{k}>.*?{chunk}))(?P=c{k})" for k, chunk in enumerate(middle) if chunk)
    return re.compile(f"{first}{own}.*{last}", re.DOTALL).fullmatch


def _regex_of(text: str) -> str:
    """A letter, ``?`` or set of a glob as a regular expression."""
    if text == "?":
        return "."
    if len(text) == 1:
        return re.escape(text)
    inner = text[1:-1]
    found = f"[^{re.escape(inner[1:])}]" if inner[0] in "!^" else f"[{re.escape(inner)}]"
    found = found.replace("\\-", "-")
    with contextlib.suppress(re.error):
        return re.compile(found).pattern
    return re.escape(text)
