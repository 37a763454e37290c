"""The tiers of the tests, and the table of tests/README.md that says which slow tests guard which folder."""

import ast
import re
from collections import defaultdict

import pytest

from tests.support import tiers
from tests.support.house import RINGS
from tests.support.paths import ROOT

WIDS, TESTS = ROOT / "wids", ROOT / "tests"
# Every test goes through these: their own tests and the default tier guard them.
EVERYWHERE = {"core/files"}
pytest_plugins = ["pytester"]


def imports_of(path):
    """The folders of wids that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            folder = "/".join(parts[1 : 3 if parts[1:2] and parts[1] in RINGS else 2])
            if parts[0] == "wids" and folder and (WIDS / folder).is_dir():
                yield folder


def is_in(path, row):
    """Whether a row names a file or a folder that it is in."""
    name = path.relative_to(ROOT).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in row)


def test_each_folder_of_wids_has_a_row():
    """And the modules beside the folders have one together; each path of a row is there."""
    table = tiers.guards()
    inits = [path for ring in (".", *RINGS) for path in (WIDS / ring).glob("*/__init__.py")]
    folders = {path.parent.relative_to(WIDS).as_posix() for path in inits}
    assert set(table) == {*folders, "", "tools"} - {"core"}
    assert [path for row in table.values() for path in row if not (ROOT / path).exists()] == []
    assert [name for name, row in table.items() if not row] == []


def test_rows_follow_the_imports():
    """Where two files of a folder of tests import a folder of wids, all that do are in its row."""
    found = defaultdict(lambda: defaultdict(set))
    for path in TESTS.rglob("test_*.py"):
        for name in imports_of(path):
            found[name][path.parent].add(path)
    missing = [
        f"{path.relative_to(ROOT)} imports wids/{name}, and is not in its row"
        for name, row in tiers.guards().items()
        if name not in EVERYWHERE
        for paths in found[name].values()
        if len(paths) > 1
        for path in sorted(paths)
        if not is_in(path, row)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("changed", "due"),
    [
        (["wids/core/order/lane.py"], "tests/unit/order"),
        (["wids/writing/pack/labels.py"], "tests/cli/test_pack.py"),
        (["wids/samplers.py"], "tests/unit/test_samplers.py"),
        (["tests/io/cache/test_space.py"], "tests/io/cache/test_space.py"),
        (["notebooks/make.py"], "tests/e2e"),
        ([".docs/guides/mix.md"], "tests/e2e/test_site.py"),
        (["README.md"], None),
    ],
)
def test_what_a_change_makes_due(changed, due):
    """By the row of its folder; the row of the modules beside the folders; itself, if it is a test."""
    found = tiers.guarding(changed)
    assert due in found if due else not found


def test_five_parts_are_the_whole():
    """Each test that guards nothing touched runs in one turn of five; one that does, in each."""
    names = [f"tests/io/cache/test_x.py::test_{number}" for number in range(100)]
    turns = [[tiers.is_due(name, set(), turn) for turn in range(7, 12)] for name in names]
    assert [sum(turn) for turn in turns] == [1] * 100
    assert all(tiers.is_due(name, {"tests/io/cache"}, turn) for name in names for turn in range(5))
    assert not any(tiers.is_due(name, {"tests/io/ca"}, 1) for name in names if not tiers.is_due(name, set(), 1))


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        ((), "plain drawn"),
        (("tests",), "plain drawn full method trainer"),
        (("-m", "thorough or outside", "--changed", "changed", "--turn", "0"), "full drawn method trainer"),
    ],
    ids=["none", "a folder", "changed"],
)
def test_what_runs(pytester, arguments, runs):
    """Without arguments the default tier; whoever names a folder gets all of it."""
    pytester.makeconftest((TESTS / "conftest.py").read_text(encoding="utf-8"))
    text = """
        import pytest
        from tests.support.examples import examples

        def test_plain(): pass

        def test_drawn():
            assert range(examples(10))

        @pytest.mark.thorough
        def test_full(): pass

        @pytest.mark.parametrize("method", ["spawn"])
        def test_method(method): pass

        @pytest.mark.long
        def test_hours(): pass
    """
    pytester.makepyfile(**{"tests/test_inside": text})
    trainer = "import pytest\npytestmark = pytest.mark.outside\n\ndef test_trainer(): pass\n"
    pytester.makepyfile(**{"tests/test_outside": trainer})
    pytester.makefile("", changed="tests/test_inside.py\ntests/test_outside.py\n")
    markers = "\n".join(f"    {name}: of this test" for name in (*tiers.TIERS, tiers.BY_HAND))
    pytester.makeini(
        f"[pytest]\npythonpath = {ROOT}\ntestpaths = tests\naddopts = --import-mode=importlib\nmarkers =\n{markers}\n"
    )
    done = pytester.runpytest_subprocess("-v", "-p", "no:cacheprovider", *arguments)
    ran = re.findall(r"::test_(\w+)(?:\[\w+\])? PASSED", done.stdout.str())
    assert set(ran) == set(runs.split()), done.stdout.str()


def test_scripts_give_the_option_with_its_value():
    """In one word: pytest would take a path of its own for one of tests, and look for its settings there."""
    for name in ("run", "part"):
        assert re.search(
            r' --changed="\S+" --turn="\S+"$', (ROOT / ".ci" / name).read_text(encoding="utf-8"), re.MULTILINE
        )


def test_each_promise_has_its_tests():
    """In the tables of the READMEs, a newcomer finds them."""
    for readme in (ROOT / "README.md", WIDS / "README.md"):
        text = readme.read_text(encoding="utf-8").partition("## What you can rely on")[2].partition("| promise |")[2]
        rows = text.partition("\n\n")[0].splitlines()[2:]
        assert len(rows) > 5
        assert [row for row in rows if not re.search(r"\]\((?:\.\./)?tests/[\w/]+\.py\) \|$", row)] == []
