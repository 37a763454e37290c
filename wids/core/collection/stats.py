"""``dataset.stats()``: downloads, cache hits, evictions, waits, counted over all processes that read a dataset.

The counter is a hook like any other. Each thread of each process counts in its own row of one array that the processes
share, so there is no lock that a forked child could inherit. Two threads that hash to the same row (one in some
hundreds) may lose a count when they count in the same instant; nothing depends on the figures. What does steer
(`SIGNALS`) has separate columns, which are set and not counted.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.events import PrefetchBegun, SampleSubstituted

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from wids.events import Event

ROWS = 256


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the dataset was made, of this process and of the workers of its loaders.

    Attributes:
        fetches: shards downloaded.
        fetched_ahead: those of them that were complete before a sample of them was needed.
        fetched_bytes: their bytes.
        fetch_requests: the requests for them.
        prefetches: iterations of samplers whose shards were downloaded ahead.
        hits: remote shards that were in the cache when they were opened.
        retries: attempts at downloads that failed and were followed by another one.
        rejections: cached shards that were not used, but downloaded again: damaged, changed, other than in the index.
        evictions: shards deleted to make space.
        evicted_bytes: their bytes.
        waits: number of waits of a process for another one's download, or for space in the cache.
        range_requests: byte ranges read for samples of shards that are not in the cache.
        range_bytes: their bytes.
        table_requests: requests for member tables of such shards.
        table_bytes: their bytes.
        substitutions: samples that failed (``on_error="substitute"``).
        stalled_seconds: time that samples waited for a shard that was not in the cache; the sum over all threads.
    """

    fetches: int = 0
    fetched_ahead: int = 0
    fetched_bytes: int = 0
    prefetches: int = 0
    hits: int = 0
    retries: int = 0
    rejections: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    waits: int = 0
    range_requests: int = 0
    range_bytes: int = 0
    fetch_requests: int = 0
    table_requests: int = 0
    table_bytes: int = 0
    substitutions: int = 0
    stalled_seconds: float = 0.0

    def price(self) -> str:
        """The requests to servers and their megabytes in a line: for shards, samples and member tables."""
        kinds = {
            "shards": (self.fetch_requests, self.fetched_bytes),
            "samples": (self.range_requests, self.range_bytes),
            "member tables": (self.table_requests, self.table_bytes),
        }
        return "; ".join(f"{name}: {count:,} requests, {size / 1e6:,.1f} MB" for name, (count, size) in kinds.items())


# Signals for other processes: stored and never added to, so that no thread can lose one.
SIGNALS = {PrefetchBegun: "prefetching", SampleSubstituted: "substituted"}
COLUMNS = (*Stats.__struct_fields__, *SIGNALS.values())
_FIGURES = len(Stats.__struct_fields__)
_AT = {name: k for k, name in enumerate(COLUMNS)}


class Tally:
    """Counts events, together with its copies in forked processes."""

    def __init__(self) -> None:
        self._arrays = [_zeros()]

    def __getstate__(self) -> dict[str, Any]:
        return {}  # the dataset shares the array with its copies in other processes

    def __setstate__(self, _: dict[str, Any]) -> None:
        self._arrays = [_zeros()]

    def join(self, counts: npt.NDArray[np.float64]) -> None:
        """Count together with the processes that share an array of zeros: (ROWS, columns), float64."""
        self._arrays = [counts, *self._arrays]

    def __call__(self, event: Event) -> None:
        """Count one event."""
        counts = event.counts()
        if counts:  # not the events of each shard that is opened or closed
            row = self._arrays[0][hash((os.getpid(), threading.get_ident())) % ROWS]
            for name, value in counts:
                row[_AT[name]] += value
            if (signal := SIGNALS.get(type(event))) is not None:
                row[_AT[signal]] = 1

    def is_prefetching(self) -> bool:
        """True if an iteration of a sampler has begun to download shards ahead, in whichever process."""
        return self._has_signal("prefetching")

    def has_substituted(self) -> bool:
        """True if a sample took another one's place, in whichever process."""
        return self._has_signal("substituted")

    def _has_signal(self, name: str) -> bool:
        return any(counts[:, _AT[name]].any() for counts in self._arrays)

    def published(self) -> tuple[str, dict[str, float]]:
        """(a name for this counter in its process, the figures of `total` that are not 0), for `wids serve`."""
        return f"{id(self):x}", {name: value for name, value in msgspec.structs.asdict(self.total()).items() if value}

    def total(self, others: Iterable[Tally] = ()) -> Stats:
        """The sum over all threads and processes.

        Args:
            others: tallies that count for the same samples.
        """
        arrays = [counts for tally in (self, *others) for counts in tally._arrays]  # noqa: SLF001 - of this class
        summed = sum(counts[:, :_FIGURES].sum(axis=0) for counts in arrays)
        sums = zip(Stats.__struct_fields__, summed.tolist(), strict=True)
        return Stats(**{name: value if name.endswith("_seconds") else int(value) for name, value in sums})


def _zeros() -> npt.NDArray[np.float64]:
    """Zeros in memory that forked processes share; it costs no descriptor."""
    return np.frombuffer(mmap.mmap(-1, ROWS * len(COLUMNS) * 8), np.float64).reshape(ROWS, len(COLUMNS))
