"""Fixtures that several test files use."""

import pytest

from tests.servers import Server
from wids.cache import fetch


@pytest.fixture
def server():
    """An HTTP server on the loopback interface, with faults to order."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def no_waits(monkeypatch):
    """Retries follow at once; their number stays."""
    monkeypatch.setattr(fetch, "WAIT_MAX_SECONDS", 0.0)


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
