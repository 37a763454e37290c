"""Fixtures of the suites that every provider, and every reader, passes."""

import pytest

from tests.support.ways import KINDS, make_way


@pytest.fixture(params=KINDS)
def way(request, server, tmp_path, events):
    """A provider, and how shards get where it finds them."""
    return make_way(request.param, server=server, home=tmp_path, events=events)
