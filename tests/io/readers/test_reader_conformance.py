"""Every reader, whichever provider opened it, keeps its promises: from a file, through a map, by byte ranges."""

from tests.support.ways import Way
from wids.testing import ReaderSuite


class TestReaders(Way, ReaderSuite):
    """For each kind of provider."""
