"""The cost of a download into a full cache, by the number of cached shards: 100, 10,000, 100,000.

    python benchmarks/crowd.py             two minutes, 200,000 small files
    python benchmarks/crowd.py --check     exit with 1 if the largest cache takes over twice as long as the smallest
    python benchmarks/crowd.py --quick     seconds; the figures are meaningless

The shards have 10 kB and are copied from a local directory, so that the time is that of the cache's own work. The limit
is the size of the directory, so that each download evicts. One process opens one new shard after the other, in each
directory in turn; medians. The first download of a process lists the directory, and has a column of its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import typer
from rich.table import Table

import wids
from wids.core.cache.directory import CacheDirectory
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard

ROOT = str(Path(__file__).parents[1])
COUNTS, QUICK_COUNTS = (100, 10_000, 100_000), (10, 100, 1000)
SHARD_BYTES, DOWNLOADS = 10_000, 40
MAX_RATIO = 2.0


def crowd(directory: str, count: int) -> int:
    """Fill a cache directory with ``count`` small shards that were used long ago; returns their bytes."""
    home = CacheDirectory(directory)
    os.makedirs(directory)
    home.make()
    for number in range(count):
        name = f"{number:032x}-old.tar"
        for path in (home.shard(name), home.table(name)):
            with open(path, "wb") as file:
                file.truncate(SHARD_BYTES)  # a sparse file, so that the disk's speed does not matter
            os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return 2 * SHARD_BYTES * count


def write_shards(directory: str, count: int) -> list[Shard]:
    """Write new shards of one sample each."""
    with wids.ShardWriter(os.path.join(directory, "new-%04d.tar"), samples=1, tables=False) as writer:
        for number in range(count):
            writer.write({"__key__": str(number), ".bin": bytes(SHARD_BYTES)})
    paths = [os.path.join(directory, f"new-{number:04d}.tar") for number in range(count)]
    return [Shard(url=path, nsamples=1, filesize=os.path.getsize(path)) for path in paths]


def main(
    *,
    check: Annotated[bool, typer.Option(help="Exit with 1 when the target is missed.")] = False,
    quick: Annotated[bool, typer.Option(help="Small numbers, for a test of this program.")] = False,
) -> None:
    """Time downloads into bounded caches of several sizes."""
    counts, downloads = (QUICK_COUNTS, 5) if quick else (COUNTS, DOWNLOADS)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wids-bench-") as scratch:
        shards = write_shards(scratch, downloads + 1)
        stores: dict[int, AutoProvider] = {}
        for count in counts:
            home = os.path.join(scratch, f"cache-{count}")
            stores[count] = AutoProvider(
                cache_dir=home, cache_local=True, cache_size=crowd(home, count) + 5 * SHARD_BYTES
            )
        seconds: dict[int, list[float]] = {count: [] for count in counts}
        for shard in shards:
            for count, store in stores.items():
                start = time.perf_counter()
                reader = store.open(shard)
                seconds[count].append(time.perf_counter() - start)
                reader.close()
    firsts = {count: times[0] for count, times in seconds.items()}
    medians = {count: median(times[1:]) for count, times in seconds.items()}
    ratio = medians[counts[-1]] / medians[counts[0]]
    table = Table(title="one download into a bounded cache, median")
    for column in ("shards in the cache", "ms", f"beside {counts[0]:,}", "the first of a process, ms"):
        table.add_column(column, justify="right")
    for count in counts:
        relative = medians[count] / medians[counts[0]]
        table.add_row(f"{count:,}", f"{1e3 * medians[count]:.2f}", f"{relative:.2f} x", f"{1e3 * firsts[count]:.0f}")
    about = f"in {time.perf_counter() - begin:.0f} s"
    report.show_table(table, about, repository=ROOT, is_quick=quick)
    if check and ratio > MAX_RATIO:
        print(f"missed: {ratio:.2f} x, at most {MAX_RATIO:g} x")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
