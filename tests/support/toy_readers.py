"""Ways to open local shards for tests of `wids.testing`: one that keeps its promises, and some that do not."""

import os

import wids
from tests.support import cache_shards as shards
from wids.core.readers.provider import AutoProvider
from wids.core.transport.session import Session
from wids.testing import ReaderSuite, ShardProviderSuite


class Around:
    """A reader, as another one has it."""

    is_remote = False

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __len__(self):
        return len(self._inner)

    def __getitem__(self, row):
        return self._inner[row]

    def __iter__(self):
        return map(self.read, range(len(self)))

    def __reduce__(self):
        return self._inner.__reduce__()


class AllFields(Around):
    """It reads more than it is asked for."""

    def read(self, row, fields=None):
        """All fields."""
        return self._inner.read(row)


class OtherRows(Around):
    """Samples together are not those that it gives alone."""

    def read_rows(self, rows, fields=None):
        """In another order."""
        return self._inner.read_rows(sorted(rows, reverse=True), fields)


class StaysOpen(Around):
    """It does not close."""

    def close(self):
        """Not now."""


class ClosesAtOnce(Around):
    """It does not wait for those who use it."""

    def close(self):
        """Now."""
        self._inner.close()
        self._inner.unpin()


class Copied(Around):
    """It can be pickled."""

    def __reduce__(self):
        return dict, ()


class MineProvider:
    """Reads shards where they are."""

    reader = None

    def __init__(self, home, hooks):
        self.inner = AutoProvider(cache_dir=str(home / "cache"), session=Session(hooks=hooks))

    def open(self, shard):
        """An open shard."""
        found = self.inner.open(shard)
        return self.reader(found) if self.reader else found


class AnySize(MineProvider):
    """It does not look at sizes."""

    def open(self, shard):
        """Of any size."""
        return self.inner.open(type(shard)(url=shard.url, nsamples=shard.nsamples))


class OwnErrors(MineProvider):
    """It has its own error for what is missing."""

    def open(self, shard):
        """A file."""
        if not os.path.exists(shard.url):
            raise LookupError(shard.url)
        return self.inner.open(shard)


class LeavesOpen(MineProvider):
    """It opens files that nobody closes."""

    def open(self, shard):
        """Twice."""
        if os.path.exists(shard.url):
            os.open(shard.url, os.O_RDONLY)
        return self.inner.open(shard)


READERS = {kind.__name__: kind for kind in (AllFields, OtherRows, StaysOpen, ClosesAtOnce, Copied)}
PROVIDERS = {kind.__name__: kind for kind in (AnySize, OwnErrors, LeavesOpen)}


class _Local:
    """Both suites' hooks."""

    is_local = True
    kind = MineProvider

    def put(self, name, data):
        """A file."""
        return shards.write(self.home / "data" / name, data)

    def make(self, hooks=()):
        """One of them."""
        return self.kind(self.home, hooks)


class ToyReaders(_Local, ReaderSuite):
    """The suite of readers, for one of `READERS` by its name; without one, of a right one."""

    reader = ""

    def make(self, hooks=()):
        """A provider of these."""
        made = super().make(hooks)
        made.reader = READERS.get(self.reader)
        return made


class ToyProviders(_Local, ShardProviderSuite):
    """The suite of providers, for one of them."""

    has_dataset = False

    def remove(self, url):
        """The file."""
        os.unlink(url)


class ToyDatasets(ToyProviders):
    """Likewise, with the dataset that reads so."""

    has_dataset = True

    def open_dataset(self, listed):
        """Of local files."""
        return wids.ShardListDataset(listed, cache_dir=self.home / "cache", transformations=[])
