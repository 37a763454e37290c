import re

import braceexpand
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wids.core.transport import urls
from wids.errors import SpecError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x.tar", ["x.tar"]),
        ("a}b.tar", ["a}b.tar"]),
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x-{8..10}.tar", ["x-8.tar", "x-9.tar", "x-10.tar"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("gs://b/{train,val}-{0..0}.tar", ["gs://b/train-0.tar", "gs://b/val-0.tar"]),
        ("x{y}.tar", ["x{y}.tar"]),
        ("", [""]),
    ],
)
def test_expand(pattern, names):
    """Brace patterns as the shell has them, in order; other text is itself."""
    assert list(urls.expand(pattern)) == names


@pytest.mark.parametrize(
    "pattern",
    [
        "x-{0000000000..9999999999}.tar",
        "x-{0..999}{0..999}{0..999}.tar",
        f"x-{{0..{'9' * 400}}}.tar",
        f"x-{{0..{'9' * 5000}}}.tar",
        "{a,b}" * 500,
        "{" + ",".join("{0..99999}" for _ in range(100)) + "}",
        "{" * 5000 + "a,b" + "}" * 5000,
        "}{" * 5,
        "{" * 5000,
    ],
    ids=["range", "product", "400 digits", "5000 digits", "pairs", "sum", "nested", "unbalanced", "open"],
)
def test_expand_is_bounded(pattern):
    """More names than a dataset has shards, or braces in thousands of braces: an error before anything is expanded."""
    with pytest.raises(SpecError, match="brace pattern") as caught:
        next(urls.expand(pattern))
    assert len(str(caught.value)) < 500


@given(st.text("{},.\\09aZ-", max_size=12))
def test_expand_counts(pattern):
    """What is counted beforehand is never less than what is expanded; what braceexpand takes, this does."""
    try:
        names = list(urls.expand(pattern))
    except SpecError:
        assert "}{" in pattern or _is_refused(pattern)
    else:
        assert "{" not in pattern or len(names) <= urls._count(pattern)


def _is_refused(pattern):
    """Whether braceexpand refuses a pattern, or finds a brace that ends nothing."""
    try:
        list(braceexpand.braceexpand(pattern))
    except ValueError:
        return True
    return "}" in pattern


@pytest.mark.parametrize("pattern", ["x-{0..1.tar", "x-{a,{b}.tar"])
def test_expand_unbalanced(pattern):
    """Braces that do not match are an error that shows the pattern and how to write one."""
    with pytest.raises(SpecError, match=re.escape("{000000..000099}")) as caught:
        list(urls.expand(pattern))
    assert pattern in str(caught.value)
