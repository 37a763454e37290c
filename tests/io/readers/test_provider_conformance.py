"""Every way to open a shard keeps its promises: in place, from the cache, by byte ranges, and the choice among them."""

from tests.support.ways import Way
from wids.testing import ShardProviderSuite


class TestProviders(Way, ShardProviderSuite):
    """Each of them."""
