"""Stores in memory for tests of `wids.testing.ByteSourceSuite`: one that keeps its promises, and some that do not."""

import hashlib
import os

from wids.core.transport.source import ByteSource, Stat
from wids.testing import ByteSourceSuite


class MineSource(ByteSource):
    """An object among others, url -> bytes."""

    is_blocking = answers_have_stat = True

    def __init__(self, url, objects, go_on):
        self.url, self.go_on, self._objects = url, go_on, objects

    def _data(self):
        try:
            return self._objects[self.url]
        except KeyError:
            raise FileNotFoundError(self.url) from None

    def stat(self, first=None, *, is_fresh=True):
        """Of the object that is there."""
        data = self._data()
        return Stat(len(data), hashlib.md5(data).hexdigest(), has_ranges=True, is_strong=True)

    async def read(self, span, sink):
        """Of the object that is there, which the sink is told of."""
        sink.learn(self.stat())
        if data := self._data()[span.lo : span.hi]:
            sink.write(span.lo, data)

    def stream(self, end=None, *, in_one_request=False):
        """In one block."""
        yield self._data()[:end]


class BeginsAtOnce(MineSource):
    """As right as the other: it reads while it is opened, asks ``go_on`` then, and finds then what is missing."""

    is_cut = False

    def __init__(self, url, objects, go_on):
        super().__init__(url, objects, go_on)
        go_on()
        if self.is_cut:
            raise ConnectionResetError("the rest is missing")


class Bare:
    """As right as the other, but it has the four methods alone."""

    is_blocking = answers_have_stat = True
    __init__, _data, stat, read = MineSource.__init__, MineSource._data, MineSource.stat, MineSource.read
    stream, close, __enter__, __exit__ = MineSource.stream, ByteSource.close, ByteSource.__enter__, ByteSource.__exit__


class PastItsEnd(MineSource):
    """It ignores where a range ends."""

    async def read(self, span, sink):
        """Ten bytes more."""
        sink.learn(self.stat())
        sink.write(span.lo, self._data()[span.lo : span.hi + 10])


class OfTwoVersions(MineSource):
    """It says of all that it reads what it learned first."""

    def __init__(self, url, objects, go_on):
        super().__init__(url, objects, go_on)
        self._stat = None

    def stat(self, first=None, *, is_fresh=True):
        """As the first time."""
        self._stat = self._stat or super().stat()
        return self._stat


class ShortAtItsEnd(MineSource):
    """The last byte of the object is not read."""

    async def read(self, span, sink):
        """One byte less, if it is the last."""
        sink.learn(self.stat())
        sink.write(span.lo, self._data()[:-1][span.lo : span.hi])


class ShortStream(MineSource):
    """Nor is it streamed."""

    def stream(self, end=None, *, in_one_request=False):
        """One byte less."""
        yield self._data()[:-1][:end]


class OfAnotherSize(MineSource):
    """It counts a byte that is not there."""

    def stat(self, first=None, *, is_fresh=True):
        """One byte more."""
        found = super().stat()
        return found._replace(size=found.size + 1)


class WithoutVersion(MineSource):
    """All objects of a size are the same to it."""

    def stat(self, first=None, *, is_fresh=True):
        """Of the size alone."""
        return super().stat()._replace(version="1")


class OfItsOwnErrors(MineSource):
    """What is not there is an error that nobody knows."""

    def _data(self):
        return self._objects[self.url]


class LeftOpen(MineSource):
    """It opens a file, and leaves it open."""

    def __init__(self, url, objects, go_on):
        super().__init__(url, objects, go_on)
        os.open("/dev/null", os.O_RDONLY)


class Twice(MineSource):
    """It writes some bytes again."""

    async def read(self, span, sink):
        """The first one."""
        await super().read(span, sink)
        sink.write(span.lo, self._data()[span.lo : span.lo + 1])


class Toy(ByteSourceSuite):
    """The suite, for one of them."""

    url = "mine://bucket/a.tar"
    cannot = ("deny", "shorten")
    kind = MineSource

    def setup_method(self):
        """An empty store."""
        self.objects = {}

    def put(self, data):
        """Into it."""
        self.objects[self.url] = data

    def remove(self):
        """Out of it."""
        del self.objects[self.url]

    def open_source(self, go_on, **options):
        """One of them."""
        return self.kind(self.url, self.objects, go_on)


class Eager(Toy):
    """The suite for the one that begins at once."""

    cannot = ("deny",)
    kind = BeginsAtOnce

    def setup_method(self):
        """An empty store, of which nothing is cut."""
        super().setup_method()
        BeginsAtOnce.is_cut = False

    def shorten(self):
        """Keep half of it, as the source knows."""
        BeginsAtOnce.is_cut = True
