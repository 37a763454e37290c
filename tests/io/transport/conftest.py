"""Stores that the tests of a module share."""

import pytest

from tests.support import backends


@pytest.fixture(scope="module")
def s3():
    """See `backends.s3`."""
    with backends.s3() as found:
        yield found


@pytest.fixture(scope="module")
def gs():
    """See `backends.gs`."""
    with backends.gs() as found:
        yield found
