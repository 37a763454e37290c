"""What all tests of whole programs share."""

import multiprocessing

import pytest

# What the forkserver of a test process imports before it forks; only there, for it makes each fork of a process slower.
multiprocessing.set_forkserver_preload(["tests.support.programs.imports"])


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    from tests.support.browser import open_browser  # not above: each fork of a process would have it

    with open_browser() as found:
        yield found
