"""Globs of fsspec over paths, without backtracking."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wids.errors import SpecError
from wids.hub import patterns
from wids.hub.patterns import Glob, find_matches

TOKENS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[!]": re.escape("[!]")}


@given(
    st.lists(st.sampled_from(["**/", "*", "?", "a", "b", "/", "[ab]", "[!]"]), min_size=1, max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_globs_are_regular_expressions(tokens, parts):
    """Of any pattern whose ``**`` is a part, as of the regular expression that it is."""
    pattern, path = "".join(tokens), "/".join(parts)
    if "//" in pattern or pattern.strip("/") != pattern or re.search(r"[^/]\*\*|\*\*[^/]", pattern):
        return
    own = "".join(TOKENS.get(token, token) for token in re.findall(r"\*\*/|\*\*|\[.*?\]|.", pattern))
    assert Glob(pattern).matches(path) == (re.fullmatch(own, path) is not None)
    assert Glob(pattern).matches(path, or_folder=True) == (re.fullmatch(own + "(?:/.*)?", path) is not None)


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("a**b", "a/x/b", True),
        ("a**b", "axb", True),
        ("a**b", "a/x/c", False),
        ("**.tar", "x/y/0.tar", True),
        ("data/**", "data/x/y", True),
        ("data/**", "data", False),
        ("[!a]x", "bx", True),
        ("[z-a].tar", "[z-a].tar", True),
        ("a[b-d]", "ac", True),
    ],
)
def test_odd_globs(pattern, path, is_match):
    """``**`` beside letters crosses slashes; a set that is none is text."""
    assert Glob(pattern).matches(path) is is_match


@pytest.mark.parametrize("pattern", ["*a" * 510 + "b", "/".join(["**", "a"] * 200) + "/x", "*" + "?" * 900 + "*x"])
def test_hostile_globs_cost_little(pattern):
    """The comparisons are those of each state with each part, however the pattern is made."""
    path = "/".join(["a" * 50] * 20)
    glob = Glob(pattern)
    assert not glob.matches(path)
    assert glob.cost <= 20 * (len(pattern) * (1 + 50 * len(pattern) // 256))


def test_too_much_is_refused(monkeypatch):
    """Of one pattern, of patterns times paths, of making patterns for no path, and of several splits together."""
    monkeypatch.setattr(patterns, "_MAX_COST", 100_000)
    for pattern in ("x" * 2000, "a**" * 20):
        with pytest.raises(SpecError, match="pattern"):
            Glob(pattern)
    paths = [f"{k}/{'a/' * 200}.tar" for k in range(500)]
    with pytest.raises(SpecError, match=r"where: its patterns take more than .* comparisons with 500 paths"):
        find_matches([f"**/{k}" for k in range(1000)], paths, where="where")
    with pytest.raises(SpecError, match=r"where: its patterns take more than"):
        find_matches([f"other{k}/{'*a' * 500}" for k in range(10)], paths, where="where")
    spent = find_matches(["a*"], ["a.tar"], where="where").cost
    assert find_matches(["a*"], ["a.tar"], where="where", spent=100_000 - spent).cost == 100_000
    with pytest.raises(SpecError, match=r"where: its patterns take more than"):
        find_matches(["a*"], ["a.tar"], where="where", spent=100_001 - spent)


def test_matches_have_the_order_of_patterns_and_paths():
    """Each once; a pattern may be a folder, and only what is below its home is compared."""
    paths = ["b/10.tar", "b/9.tar", "bb/1.tar", "a/1.tar"]
    assert find_matches(["a/*", "b", "b/9.tar"], paths, where="").paths == ["a/1.tar", "b/10.tar", "b/9.tar"]
    assert find_matches([f"d{k}/*.tar" for k in range(20_000)], [f"d{k}/0.tar" for k in range(20_000)], where="").paths
