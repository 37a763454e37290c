"""`ByteSourceSuite` as the author of a store runs it: a right one passes, a wrong one is told what it breaks."""

import subprocess
import sys

import pytest

from tests.support import toy_stores
from tests.support.suites import run_suites
from tests.support.toy_stores import MineSource
from wids import testing

# Store -> a test that fails, and what it says.
WRONG = {
    "PastItsEnd": ("test_spans", r"`read` writes the bytes of [Span(lo=0, hi=1)] and no other"),
    "OfTwoVersions": ("test_another_object_between_look_and_read", "bytes of another version than that of `stat`"),
    "ShortAtItsEnd": ("test_spans", "`read` writes the bytes of [Span(lo=19999, hi=20000)] and no other"),
    "ShortStream": ("test_all_of_it[20000]", "`stream(None)` gives the bytes up to there of an object of 20000"),
    "OfAnotherSize": ("test_size_and_version", "`stat` says the size of the object, 20000"),
    "WithoutVersion": ("test_size_and_version", "`stat` says another version of another object of the same size"),
    "OfItsOwnErrors": ("test_no_object", "look of an object that is not there is a ShardNotFoundError"),
    "LeftOpen": ("test_nothing_stays_open", "`close` releases files and connections"),
    "Twice": ("test_spans", "`read` writes the bytes of [Span(lo=0, hi=1)] and no other"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What becomes of the suite for each store: see `run_suites`."""
    lines = ["from tests.support import toy_stores"]
    for name in ("MineSource", "Bare", *WRONG):
        lines += [f"class Test{name}(toy_stores.Toy):", f"    kind = toy_stores.{name}"]
    lines += ["class TestEager(toy_stores.Eager):", "    pass"]
    lines += ["class TestNothing(toy_stores.ByteSourceSuite):", "    url = 'mine://bucket/a.tar'"]
    lines += ["class TestNoHooks(toy_stores.Toy):", "    cannot = ()"]
    lines += ["class TestMisspelt(toy_stores.Toy):", "    cannot = ('denies',)"]
    return run_suites(tmp_path_factory.mktemp("toys"), "\n".join(lines))


def test_a_right_store_passes(found):
    """All of it, but for what it declares that it cannot: that is said."""
    failed, skipped = found
    assert failed["TestMineSource"] == {}
    assert skipped["TestMineSource"] == {
        "test_no_permission": "TestMineSource.cannot names 'deny'",
        "test_half_of_it": "TestMineSource.cannot names 'shorten'",
    }


def test_a_right_store_may_read_while_it_is_opened(found):
    """A cancellation, or an object that was cut, may be met by then."""
    assert found[0]["TestEager"] == {}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_store_is_told_what_it_breaks(found, name):
    """In the words of the promise, with what was found instead."""
    test, promise = WRONG[name]
    message = found[0][f"Test{name}"][test]
    assert f"AssertionError: broken promise: {promise}" in message
    assert "; found " in message


def test_a_store_that_is_not_derived_is_told_what_it_lacks(found):
    """Its author reads that, and not how something else failed for it."""
    message = found[0]["TestBare"]["test_size_and_version"]
    assert "broken promise: a source is whole: derive Bare from `ByteSource`; found " in message
    assert "none of ['fills_file', 'packed_bytes', 'precedence', 'range_bytes']" in message


def test_every_wrong_store_is_tried():
    """There are no others."""
    kinds = {name for name, kind in vars(toy_stores).items() if isinstance(kind, type) and issubclass(kind, MineSource)}
    assert kinds == {"MineSource", "BeginsAtOnce", *WRONG}


def test_a_hook_that_is_missing_is_named(found):
    """With what to do, also where it is declared in words that mean none."""
    failed, _ = found
    assert all("override `put`" in message for message in failed["TestNothing"].values())
    assert len(failed["TestNothing"]) > 15
    assert "cannot = ('deny',)" in failed["TestNoHooks"]["test_no_permission"]
    assert "cannot = ('shorten',)" in failed["TestNoHooks"]["test_half_of_it"]
    assert len(failed["TestNoHooks"]) == 2
    assert "`cannot` names hooks of ['deny', 'remove', 'shorten', 'stop']" in failed["TestMisspelt"]["test_spans"]


def test_the_package_imports_pytest_only_for_suites():
    """A server needs none; each of the names is there, and a misspelt one is an AttributeError."""
    program = (
        "import sys, wids.testing; wids.testing.Server; assert 'pytest' not in sys.modules; wids.testing.ReaderSuite"
    )
    subprocess.run([sys.executable, "-c", f"{program}; assert 'pytest' in sys.modules"], check=True)


def test_suites_without_pytest():
    """They are a `DependencyError`, and the server works."""
    program = (
        "import sys, wids.testing, wids.errors; sys.modules['pytest'] = None\n"
        "for name in wids.testing._MODULES:\n"
        "    try: getattr(wids.testing, name)\n"
        "    except wids.errors.DependencyError as error: assert f'{name} takes pytest' in str(error), error\n"
        "    else: raise AssertionError(name)\n"
        "wids.testing.Server().close()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert all(getattr(testing, name) for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Servers'"):
        _ = testing.Servers
