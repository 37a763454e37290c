"""Which tests run when: their tiers, and which of the slow ones guard what a commit touched; see tests/README.md."""

import inspect
import re
import zlib

from tests.support.paths import ROOT

TIERS = ("default", "thorough", "outside")
# Tests that are no part of a tier unless `-m` names this mark.
BY_HAND = "long"
# Of the tests that guard nothing that was touched, each run of `.ci/run` has one of so many parts.
PARTS = 5
README = ROOT / "tests" / "README.md"
_OF_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.(thorough|outside)\b", re.MULTILINE)
# Processes that import torch anew: the start method is an argument of the test.
_START_METHODS = ("[spawn", "-spawn", "[forkserver", "-forkserver")
_DRAWS = re.compile(r"\b(?:some|examples)\(")
_ROW = re.compile(r"^\| `wids/([\w/.]*)` \| (.+) \|$", re.MULTILINE)


def is_apart(text, asked):
    """Whether no test of a file can be asked for, so that it need not be imported.

    Args:
        text: the file.
        asked: the expression of ``-m``.
    """
    found = _OF_FILE.search(text)
    return found is not None and bool(asked) and "not " not in asked and found[1] not in asked


def tiers_of(item):
    """The tiers of a test: those that it is marked with, else ``default``; one with draws has its full form, too."""
    marked = {name for name in (*TIERS, BY_HAND) if item.get_closest_marker(name)}
    if any(method in item.name for method in _START_METHODS):
        marked.add("thorough")
    if not marked:
        marked.add("default")
        if _has_draws(item):
            marked.add("thorough")
    return marked


def _has_draws(item):
    """Whether more examples are tried in CI's full form: see tests/support/examples.py."""
    function = getattr(item, "function", None) or getattr(item, "obj", None)
    if getattr(function, "is_hypothesis_test", False):
        return True
    try:
        return bool(_DRAWS.search(inspect.getsource(function)))
    except (OSError, TypeError):
        return False


def guards():
    """The table of tests/README.md: folder or module of wids -> the files and folders of tests that guard it."""
    rows = _ROW.findall(README.read_text(encoding="utf-8"))
    return {name.rstrip("/"): re.findall(r"`(tests/[\w/.]+)`", cell) for name, cell in rows}


def guarding(changed):
    """The files and folders of tests that guard changed files, those that were changed themselves included.

    Args:
        changed: paths of files, from the root of the checkout.
    """
    table, found = guards(), set()
    for path in changed:
        if path.startswith("tests/"):
            found.add(path)
        elif path.startswith("wids/"):
            inside = path.removeprefix("wids/").removesuffix(".py")
            # The longest row that names it; `wids/` is that of all modules beside the folders.
            names = [name for name in table if name == inside or inside.startswith(f"{name}/")]
            found.update(table[max(names, key=len)] if names else table[""])
        elif path.startswith(".docs/"):
            found.add("tests/e2e/test_site.py")
        elif path.startswith(("notebooks/", "benchmarks/", ".ci/", "pyproject.toml")):
            found.add("tests/e2e")
    return found


def is_due(nodeid, due, turn):
    """Whether a slow test runs: it guards what was touched, or is of the part whose turn it is.

    Args:
        nodeid: of the test.
        due: what `guarding` gave.
        turn: an integer that grows with each run.
    """
    file = nodeid.partition("::")[0]
    if any(file == path or file.startswith(f"{path}/") for path in due):
        return True
    return zlib.crc32(nodeid.encode()) % PARTS == turn % PARTS
