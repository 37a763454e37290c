"""Fixtures that several test files use."""

import os
import tempfile

import pytest

from tests.clocks import skip_waits
from tests.servers import Server
from tests.shards import serve, write_index

# Programs that tests start buffer what they print, as they do for users, whatever is set where the tests run.
os.environ.pop("PYTHONUNBUFFERED", None)

# A socket's path has 103 characters on macOS and 107 on Linux; what multiprocessing adds to the directory has 33.
_MAX_TEMP_DIR = 70


def pytest_configure():
    """In a directory with a long name workers could not hand tensors over, and loaders would wait for good."""
    if len(os.fsencode(tempfile.gettempdir())) > _MAX_TEMP_DIR:
        tempfile.tempdir = os.environ["TMPDIR"] = "/tmp"


@pytest.fixture
def server():
    """An HTTP server on the loopback interface, with faults to order."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def no_waits(monkeypatch):
    """Retries follow at once, and their number stays: the waits that were skipped, a list of seconds."""
    return skip_waits(monkeypatch.setattr)


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
