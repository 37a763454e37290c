"""Fixtures that several test files use."""

import functools
import gc
import os
import pathlib
import re
import tempfile

import pytest

from tests.support import clocks
from tests.support.examples import load_profile
from tests.support.paths import ROOT
from tests.support.servers import Server
from tests.support.shards import serve, write_index

# Programs that tests start buffer what they print and keep bytecode, as for users, whatever is set where the tests run.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)
# Read when torch is imported: threads of a process that computes are no help to tests that use all cores.
os.environ["OMP_NUM_THREADS"] = "1"

E2E = ROOT / "tests" / "e2e"
# The tier `core`: tests/unit and files of these names, but what is marked `thorough`; and what is marked so.
UNIT = ROOT / "tests" / "unit"
CORE = re.compile(r"test_(\w+_conformance|store_model|goldens|promises|readme_commands)")
LONGEST = (
    "test_train_ddp",
    "test_notebook_programs",
    "test_notebooks",
    "test_demo",
    "test_torchrun",
    "test_benchmarks",
)
# They import so much, Ray and trainers, that forks of their process take twice as long.
LAST = re.compile(r"test_readme_trainers|\[ray\b|TestRay\b")

# A socket's path has 103 characters on macOS and 107 on Linux; what multiprocessing adds to the directory has 33.
_MAX_TEMP_DIR = 70


def pytest_configure(config):
    """In a directory with a long name workers could not hand tensors over, and loaders would wait for good."""
    gc.disable()  # while modules are imported and tests collected, a sixth of that time, all that is made stays
    load_profile("core" if config.getoption("markexpr") == "core" else "dev")
    if len(os.fsencode(tempfile.gettempdir())) > _MAX_TEMP_DIR:
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"


def pytest_ignore_collect(collection_path, config):
    """Without what would not run: the imports of ``tests/e2e`` take seconds, and make each fork slower."""
    asked = config.getoption("markexpr")
    if asked == "core" and collection_path.suffix == ".py":
        return None if _is_core(collection_path) or "mark.core" in collection_path.read_text("utf-8") else True
    return True if collection_path == E2E and ("not e2e" in asked or asked == "core") else None


def _is_core(path):
    """Whether all tests of a file are of the tier but those of whole programs and the thorough ones."""
    return UNIT in path.parents or CORE.fullmatch(path.stem)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Mark the tests of ``tests/e2e``, and those whose processes import torch anew, and those of ``core``; leave out
    those marked ``long`` unless ``-m`` names the mark; longest first.
    """
    for item in items:
        if E2E in item.path.parents or any(method in item.name for method in ("[spawn", "-spawn", "forkserver")):
            item.add_marker("e2e")
        elif _is_core(item.path) and not any(item.get_closest_marker(name) for name in ("e2e", "long", "thorough")):
            item.add_marker("core")
    if "long" not in config.getoption("markexpr"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=_place)


def pytest_collection_finish():
    """What is there by now stays: the collector need not look at it in each of the tests that call it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """The same between files, for all that tests imported and left: else each look takes a tenth of a second."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure():
    """What a process ends with is freed as ever; some libraries count what is left, and say so."""
    gc.unfreeze()


def _place(item):
    """The tests that fork the most come first, while their process is small; then whole programs, the longest first."""
    if item.get_closest_marker("e2e") is None:
        return -1
    if LAST.search(item.nodeid):
        return len(LONGEST) + 1
    return LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A worker that is done takes tests from the others; the default would give all programs to one worker."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.fixture
def server():
    """An HTTP server on the loopback interface, with faults to order."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def no_waits(monkeypatch):
    """Retries follow at once, and their number stays: the waits that were skipped, a list of seconds."""
    return clocks.skip_waits(monkeypatch.setattr)


@pytest.fixture
def set_limits(monkeypatch):
    """A function: put other clocks and limits of a module into force, for this test; see `clocks.set_limits`."""
    return functools.partial(clocks.set_limits, patch=monkeypatch.setattr)


class Events(list):
    """A hook that keeps what it is told."""

    def __call__(self, event):
        """Keep ``event``."""
        self.append(event)

    def names(self):
        """The types of the events, as words."""
        return [type(event).__name__ for event in self]


@pytest.fixture
def events():
    """A hook that keeps what it is told: ``events`` itself is the list."""
    return Events()


@pytest.fixture
def open_path():
    """A directory that every user can reach.

    It is not pytest's: each session of pytest, also one that a test starts, closes those of all sessions to others.
    """
    with tempfile.TemporaryDirectory(prefix="wids-open-") as name:
        os.chmod(name, 0o755)
        yield pathlib.Path(name)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The test neither touches the user's cache nor inherits the user's settings."""
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "default-cache"))
    monkeypatch.delenv("WIDS_VERBOSE", raising=False)


@pytest.fixture
def index(tmp_path):
    """An index of three shards, of 3, 4 and 2 samples."""
    return write_index(tmp_path / "data", (3, 4, 2))


@pytest.fixture
def web(tmp_path, index):
    """The same dataset behind HTTP: ``web.url`` is the directory of the index."""
    with serve(tmp_path) as server:
        server.url += "/data"
        yield server


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A Hub with one repository."""
    from tests.support.hub import standing_in  # the notebooks' one, which few tests need

    with standing_in(monkeypatch, tmp_path / "hub") as found:
        yield found
