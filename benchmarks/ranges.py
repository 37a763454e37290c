"""Time and CPU time of a shard's download, by the number and the length of byte ranges.

    python benchmarks/ranges.py              a minute; the figures behind the defaults in
    wids/core/transport/filesystems.py python benchmarks/ranges.py --quick      seconds; the figures are meaningless

One process downloads shards from the server of cold.py (30 ms to the first byte, 40 MB/s a connection). ``by itself``
is one shard, as when a reader waits for it; ``four`` are four at a time, as in prefetching.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import typer
from rich.table import Table
from slow_server import SlowServer

from wids.core.transport import filesystems
from wids.core.transport.download import Transfer

ROOT = str(Path(__file__).parents[1])
COUNTS = (1, 2, 4, 8, 16)
# MB in a range; None: as wids chooses from the host's latency and rate.
LENGTHS = (None, 1, 2, 5, 10, 40)


def fetch(urls: list[str], directory: str, size: int) -> None:
    """Download all at a time, each into a file of its own."""

    def one(k: int) -> None:
        path = os.path.join(directory, str(k))
        Path(path).touch()
        Transfer(urls[k], path, size=size).run()
        if os.path.getsize(path) != size:
            raise SystemExit(f"{urls[k]}: {os.path.getsize(path)} of {size} bytes were downloaded")
        os.unlink(path)

    with ThreadPoolExecutor(len(urls)) as pool:
        list(pool.map(one, range(len(urls))))


def measure(urls: list[str], directory: str, size: int, *, count: int, length: int | None, rounds: int) -> tuple:
    """Return the median seconds and CPU seconds of downloading ``urls`` with ``count`` ranges of ``length`` bytes."""
    connections = filesystems.connections()
    connections.count = connections.slots.free = count
    chosen = type(connections).range_bytes
    if length is not None:
        type(connections).range_bytes = lambda *_: length
    try:
        fetch(urls[:1], directory, size)  # the first download measures the host's latency and rate
        taken = []
        for _ in range(rounds):
            wall, cpu = time.perf_counter(), time.process_time()
            fetch(urls, directory, size)
            taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    finally:
        type(connections).range_bytes = chosen
    return median(wall for wall, _ in taken), median(cpu for _, cpu in taken)


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 5,
    megabytes: Annotated[int, typer.Option(min=1, help="MB in a shard.")] = 40,
    quick: Annotated[bool, typer.Option("--quick", help="Small shards, one round: tests the benchmark only.")] = False,
) -> None:
    """Measure downloads by the number and the length of byte ranges."""
    size = 10**6 if quick else megabytes * 10**6
    rounds = 1 if quick else rounds
    table = Table("ranges at a time", "MB in a range", "by itself, s", "MB/s", "four, s", "MB/s", "CPU s a GB")
    with tempfile.TemporaryDirectory() as served, tempfile.TemporaryDirectory() as target:
        for k in range(4):
            Path(served, f"{k}.tar").write_bytes(os.urandom(size))
        with SlowServer(served, delay_ms=30, mbps=40) as server:
            urls = [f"{server.url}/{k}.tar" for k in range(4)]
            cases = [(count, None) for count in COUNTS] + [(8, mb) for mb in LENGTHS[1:]]
            for count, mb in cases:
                length = None if mb is None else mb * 10**6
                alone, _ = measure(urls[:1], target, size, count=count, length=length, rounds=rounds)
                four, cpu = measure(urls, target, size, count=count, length=length, rounds=rounds)
                figures = (alone, size / 1e6 / alone, four, 4 * size / 1e6 / four, cpu / (4 * size / 1e9))
                table.add_row(str(count), "chosen" if mb is None else str(mb), *(f"{value:.3g}" for value in figures))
    report.show_table(table, f"{size / 1e6:.0f} MB a shard", repository=ROOT, is_quick=quick)


if __name__ == "__main__":
    typer.run(main)
