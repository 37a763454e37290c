"""Downloading ahead of a sequence of indices: the shards of its collections that it will read, in their order.

sampler --> SharedBlocks --> loop                          each block of the order is computed once, by the
                 |                                         first that needs it: the loop, or the prefetcher
                 +--> visits to shards --> Prefetcher      (wids.core.prefetch.prefetcher)
                         of the sources below a dataset
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.files import forks, page_cache
from wids.core.files.ranks import environ_int, ranks_of_node
from wids.core.order.layout import Shards, interface_of
from wids.core.prefetch import distance
from wids.core.prefetch.prefetcher import Prefetcher
from wids.core.prefetch.upcoming import FarFile, UpcomingShard
from wids.core.prefetch.window import AheadLimits
from wids.events import PrefetchBegun, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from wids.core.cache.store import ShardCache
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.order.cursor import Run
    from wids.core.order.epoch import MixedRange
    from wids.core.order.permutation import Indices
    from wids.core.shard import Shard

# Depth, and number of items of a list, to which a dataset of ours is looked for in another one.
_DEPTH, _SEARCHED = 3, 16
# Shards whose sizes tell that of a shard.
_SIZED_SHARDS = 64

# --- downloads


class CollectionSource:
    """A collection whose shards are downloaded ahead; see `wids.core.prefetch.prefetcher.Source`.

    Args:
        collection: its shards, as they are when each is come to.
        ahead_bytes: the maximum of bytes to be ahead; None: as far as is good.
        figures: figures of its dataset so far.

    Attributes:
        ahead_bytes: the argument.
        store: downloads its shards.
        directory: the cache directory; None: not known.
        cache_size: bytes of the cache that its shards go into; None: no limit, or no cache.
    """

    store: ShardCache
    ahead_bytes: int | None
    directory: str | None
    cache_size: int | None

    def __init__(
        self,
        collection: ShardCollection,
        ahead_bytes: int | None,
        figures: Callable[[], tuple[str, dict[str, float]]] | None = None,
    ) -> None:
        self._collection, self.ahead_bytes, self._figures = collection, ahead_bytes, figures
        self.store = collection.provider.cache
        self.directory, self.cache_size = self.store.placement.directory, self.store.cache_size

    @property
    def limits(self) -> AheadLimits:
        """Limits of reading ahead for one of the ranks of this node."""
        return AheadLimits(self.ahead_bytes, self.cache_size, ranks_of_node(), self.directory)

    def shard(self, k: int) -> Shard:
        """The shard of a number."""
        return self._collection.shards[k]

    def plan(self, shard: int) -> UpcomingShard:
        """A new download of the shard of a number."""
        located, provider = self.store.locate(self.shard(shard)), self._collection.provider
        is_left = provider.takes_little(located, self._collection.lengths[shard])
        return UpcomingShard(self.store, located, is_left=is_left, reads_early=provider.reads_early)

    def look_for_tables(self) -> None:
        """Check if samples are read by byte ranges, where shards are left to these; the first stands for all."""
        if self.cache_size is not None:
            self._collection.provider.has_table(self.shard(0))

    def count_reads(self) -> int:
        """Number of its samples that this process has read."""
        return self._collection.pool.accesses

    def figures(self) -> tuple[str, dict[str, float]] | None:
        """Figures of its dataset so far: (a name for it in this process, figure -> number)."""
        if self._figures is None:
            return None
        name, figures = self._figures()
        return name, figures if self.cache_size is None else {**figures, "cache_size": self.cache_size}

    def announce(self) -> None:
        """Tell the hooks that downloads begin."""
        emit(self.store.hooks, PrefetchBegun(cache_size=self.cache_size))

    def shard_bytes(self) -> int:
        """Bytes of a shard, about: the mean of some whose size the index knows; 0: it knows none."""
        count = len(self._collection.shards)
        sizes = [self.shard(k).filesize for k in range(0, count, max(count // _SIZED_SHARDS, 1))]
        known = [size for size in sizes if size is not None]
        return sum(known) // len(known) if known else 0


class FarSource(CollectionSource):
    """A collection of local files on a network file system: the cache and its limit have no part in it."""

    directory: str | None
    cache_size: int | None

    def __init__(self, collection: ShardCollection, ahead_bytes: int | None) -> None:
        super().__init__(collection, ahead_bytes)
        self.directory = self.cache_size = None

    @property
    def limits(self) -> AheadLimits:
        """At most a share of the memory that is free."""
        most, ranks = int(page_cache.free_memory() * distance.LIMITS.memory_share), ranks_of_node()
        if self.ahead_bytes is None:
            return AheadLimits(None, most, ranks)
        return AheadLimits(min(self.ahead_bytes, most // ranks), None, ranks)

    def plan(self, shard: int) -> FarFile:
        """A new read of the file of a number."""
        is_view = self._collection.shards.selection is not None
        located = self.store.locate(self.shard(shard))
        return FarFile(self.store, located, rows=partial(self._rows, shard) if is_view else None)

    def _rows(self, k: int) -> tuple[range | Indices, int]:
        return self._collection.rows_of(k), max(self._collection.shards.nsamples[k], 1)

    def announce(self) -> None:
        """Nothing is downloaded."""


def source_of(
    collection: ShardCollection,
    ahead_bytes: int | None,
    *,
    has_fields: bool = False,
    figures: Callable[[], tuple[str, dict[str, float]]] | None = None,
) -> CollectionSource | None:
    """The source of downloads, or reads, ahead of a collection's readers; None: no shard is remote.

    Args:
        collection: the collection of the shards.
        ahead_bytes: the maximum of bytes to be ahead; None: as far as is good.
        has_fields: not all members of a sample are read, and perhaps a small part of a file.
        figures: see `CollectionSource`.
    """
    if collection.is_far():
        return None if has_fields else FarSource(collection, ahead_bytes)
    if collection.provider.access == "range" or not collection.has_remote():
        return None
    return CollectionSource(collection, ahead_bytes, figures)


# --- the order


class SharedBlocks:
    """The blocks of a run for two readers: the loop that draws them, and the prefetcher that looks ahead.

    Each is computed once, by the first that needs it, and kept until the other has read it. The prefetcher reads as
    many blocks as its window allows. It skips blocks that the loader has already consumed.

    Args:
        run: the run of the blocks.

    Attributes:
        blocks: those that are not computed yet, for a loop without a prefetcher.
    """

    blocks: Iterator[Any]

    def __init__(self, run: Run[Any]) -> None:
        self._run, self.blocks = run, run.blocks()
        self._to_draw: deque[Any] = deque()
        self._to_look: deque[tuple[int, Indices]] = deque()  # with their first positions
        self._drawn = self._position = 0  # blocks; behind the last one that was computed
        self._error: Exception | None = None
        self._lock = threading.Lock()
        forks.reset_in_child(self)

    def start_child(self) -> None:
        """Compute the rest of the order again in a forked child, which has no prefetcher."""
        self._lock, self._error = threading.Lock(), None
        self._to_draw.clear()
        self.blocks = islice(self._run.blocks(), self._drawn, None)

    def draw(self) -> Iterator[Any]:
        """All blocks, for the loop."""
        while True:
            if not self._to_draw:  # else without the lock, under which another block may be computed
                with self._lock:
                    if not self._to_draw and not self._compute():
                        return
            self._drawn += 1
            yield self._to_draw.popleft()

    def look(self) -> Iterator[tuple[int, Indices]]:
        """(first position, indices) of the blocks, for the prefetcher."""
        while True:
            with self._lock:
                if not self._to_look and not self._compute():
                    return
                block = self._to_look.popleft()
            yield block

    def _compute(self) -> bool:
        """Compute the next block, for both; False: none exists."""
        if self._error is not None:  # of the other reader's turn: the order has no end there
            raise self._error
        try:
            block = next(self.blocks, None)
        except Exception as error:
            self._error = error
            raise
        if block is None:
            return False
        first, indices = self._position, block.samples
        self._position += len(indices)
        self._to_draw.append(block)
        self._to_look.append((first, indices))
        while len(self._to_look) > 1 and self._to_look[1][0] <= first - distance.LIMITS.max_burst:
            self._to_look.popleft()  # loaders have read it
        return True


def prefetch(
    dataset: Any,
    upcoming: Iterable[tuple[int, Indices]],
    *,
    position: Callable[[], int],
    mixed: Sequence[MixedRange] = (),
) -> Prefetcher | None:
    """Download the shards of the shard lists underneath a dataset ahead; None if none exist to download.

    Warns, once for each dataset, of a limit that does not hold the shards that are read at a time and the next ones.

    Args:
        dataset: see `wids.core.order.layout.Shards`; shard lists supply the downloads
            (`wids.core.order.layout.SamplerInterface`).
        upcoming: the indices that will be read, in blocks of n: (position of the first one, (n,)). Taken in a thread.
        position: number of indices drawn.
        mixed: the ranges of which shards are mixed, as far as known.
    """
    try:
        shards = Shards(dataset, _source_of)
    except Exception:  # noqa: BLE001 - a stranger's attributes may do anything, and there is nothing to download then
        return None
    if not shards.results:
        _warn_of_hidden(dataset)
        return None
    mixed = [each._replace(lanes=each.lanes * shards.stacked) for each in mixed]
    _warn_of_limits(shards, mixed)
    for source in shards.results:
        source.announce()  # before the first index is handed out: workers look at that when they read it
    visits = (shards.visits_of(indices, first=first) for first, indices in upcoming)
    return Prefetcher(shards.results, visits, position=position, mixed=sum(each.needed - 1 for each in mixed))


def _warn_of_hidden(dataset: Any) -> None:
    """Warn, once for each cache, where a stranger's dataset reads one of ours, whose shards nothing downloads ahead."""
    if _is_searched(dataset):
        return
    for source in _hidden_sources([dataset], _DEPTH):
        if not source.store.is_hidden_told:
            source.store.is_hidden_told = True
            logger.warning(
                "a %s reads a ShardListDataset, and which of its samples is not known, so that each of its shards is "
                "downloaded when it is first read. Put what it does into dataset.add_transform(function); or, if its "
                "index i is sample i of the dataset, give it the attributes dataset and indices = range(len(dataset))",
                type(dataset).__name__,
            )


_HOLDERS = list, tuple, dict
# (id, 1 or 2) -> the datasets that were searched once, and twice.
_searched: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()


def _is_searched(dataset: Any) -> bool:
    """True if a dataset was searched twice before: some open what they read with their first sample."""
    for time in (1, 2):
        if _searched.get((id(dataset), time)) is not dataset:
            with contextlib.suppress(TypeError):  # it has no weak references: a list, say
                _searched[id(dataset), time] = dataset
            return False
    return True


def _hidden_sources(holder: Any, depth: int) -> Iterator[CollectionSource]:
    """The sources of the datasets of ours in the attributes of an object, and in lists and dicts there."""
    values: Iterable[Any] = getattr(holder, "__dict__", {}).values()
    if isinstance(holder, (list, tuple)):
        values = holder[:_SEARCHED]
    elif isinstance(holder, dict):
        values = islice(holder.values(), _SEARCHED)
    for value in values:
        try:
            interface = interface_of(value)
            source = None if interface is None else interface.prefetch_source()
        except Exception:  # noqa: BLE001 - a stranger's attribute
            interface = source = None
        if isinstance(source, CollectionSource):
            yield source
        elif interface is not None and interface.listed is not None:
            continue  # ours: no other one is in it but companions, whose indexes may be yet unread
        elif depth and (isinstance(value, _HOLDERS) or hasattr(value, "__getitem__")):
            yield from _hidden_sources(value, depth - 1)


def _source_of(leaf: Any) -> CollectionSource | None:
    interface = interface_of(leaf)
    source = None if interface is None else interface.prefetch_source()
    return source if isinstance(source, CollectionSource) else None


class Ahead:
    """Indices to iterate over, once, whose shards are downloaded ahead of those drawn.

    Args:
        dataset: see `prefetch`.
        indices: ints within the dataset.
    """

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self._rest = rest = iter(indices)
        count, size = len(indices), distance.LIMITS.block
        self._prefetcher = prefetch(
            dataset,
            ((first, np.asarray(indices[first : first + size], np.int64)) for first in range(0, count, size)),
            position=lambda: count - operator.length_hint(rest),
        )

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return next(self._rest)
        except StopIteration:
            self._end(is_finished=True)
            raise

    def __length_hint__(self) -> int:
        return operator.length_hint(self._rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Download nothing more, and abandon the downloads under way."""
        self._end(is_finished=False)

    def _end(self, *, is_finished: bool) -> None:
        prefetcher, self._prefetcher = getattr(self, "_prefetcher", None), None
        if prefetcher is not None:
            prefetcher.end(is_finished=is_finished)


def _warn_of_limits(shards: Shards[CollectionSource], mixed: Sequence[MixedRange]) -> None:
    """Warn of caches that are too small for the shards read through them, those of one directory together."""
    sources, by_directory = shards.results, dict[object, list[int]]()
    for number, source in enumerate(sources):
        by_directory.setdefault(source.directory or id(source.store), []).append(number)
    for numbers in by_directory.values():
        limits = [sources[number].cache_size for number in numbers]
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is None or all(sources[number].store.is_limit_told for number in numbers):
            continue
        needs = []
        for each in mixed:
            totals = shards.count_shards(each.first, each.last)
            counts = {number: total for number, total in totals.items() if number in numbers}
            if counts:
                size = max(sources[number].shard_bytes() for number in counts)
                needs.append(distance.ShardNeed(each, sum(counts.values()), size))
        shortage = distance.describe_shortage(limit, needs, ranks=ranks_of_node())
        if shortage is None:
            continue
        if environ_int("LOCAL_RANK") == 0:
            logger.warning(
                "%s. Samples of shards that do not fit are read by byte ranges, from the first visit on if member "
                "tables are published (wids index create --members), else from the second one on",
                shortage,
            )
        for number in numbers:
            sources[number].store.is_limit_told = True
