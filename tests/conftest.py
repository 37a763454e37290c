"""Fixtures that several test files use."""

import functools
import gc
import os
import pathlib
import tempfile

import pytest

from tests.support import clocks, tiers
from tests.support.examples import load_profile
from tests.support.servers import Server
from tests.support.shards import serve, write_index

# Programs that tests start buffer what they print and keep bytecode, as for users, whatever is set where the tests run.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)
# Read when torch is imported: threads of a process that computes are no help to tests that use all cores.
os.environ["OMP_NUM_THREADS"] = "1"

# A socket's path has 103 characters on macOS and 107 on Linux; what multiprocessing adds to the directory has 33.
_MAX_TEMP_DIR = 70


def pytest_addoption(parser):
    """Options of `.ci/run`."""
    group = parser.getgroup("tiers")
    group.addoption("--changed", metavar="FILE", help="slow tests that guard the paths in this file, a line each, and")
    group.addoption("--turn", metavar="N", type=int, help="one of so many parts of the others: tests/README.md")


def pytest_configure(config):
    """Without paths and without ``-m``, the tier ``default`` runs: whoever names a file gets all of it."""
    gc.disable()  # while modules are imported and tests collected, a sixth of that time, all that is made stays
    option = config.option
    if not option.markexpr and config.args_source is not config.ArgsSource.ARGS:
        option.markexpr = "default"  # workers of xdist have the options of this process
    load_profile("all" if "thorough" in option.markexpr.split() else "few")
    # In a directory with a long name workers could not hand tensors over, and loaders would wait for good.
    if len(os.fsencode(tempfile.gettempdir())) > _MAX_TEMP_DIR:
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"


def pytest_ignore_collect(collection_path, config):
    """Without what would not run: the imports of trainers take seconds, and make each fork slower."""
    if collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        return True if tiers.is_apart(collection_path.read_text("utf-8"), config.option.markexpr) else None
    return None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Mark each test with its tiers; leave out what is run by hand, and with ``--changed`` what is not due."""
    option, left_out = config.option, set()
    due = None
    if option.changed is not None:
        due = tiers.guarding(pathlib.Path(option.changed).read_text("utf-8").split())
    for item in items:
        for name in tiers.tiers_of(item):
            item.add_marker(name)
        is_asked_for = tiers.BY_HAND in option.markexpr or not item.get_closest_marker(tiers.BY_HAND)
        if not is_asked_for or (due is not None and not tiers.is_due(item.nodeid, due, option.turn or 0)):
            left_out.add(item)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


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
