"""One sample of a large remote shard: requests, bytes and seconds for each kind of access.

    python benchmarks/one.py              a 1-GB shard; half a minute
    python benchmarks/one.py --quick      a small shard; the figures are meaningless

The shard has 2,000 samples of a 500-kB member and a small one, and is on the server of cold.py (30 ms to the first
byte, 40 MB/s a connection), with and without its member table beside it. Each round opens a new dataset in this
process, and reads one random sample, then a batch of 32 random ones. Medians of the rounds; the server counts requests
and bytes.
"""

from __future__ import annotations

import io
import os
import random
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import typer
from rich.table import Table
from slow_server import SlowServer

import wids
from wids.core.files import atomic
from wids.core.tables import member_tables

ROOT = str(Path(__file__).parents[1])
BATCH = 32
# (title, access, whether the member table is beside the shard)
CASES = (
    ("range, saved table", "range", True),
    ("auto, saved table", "auto", True),
    ("range, headers read", "range", False),
    ("fetch", "fetch", True),
)


def write_shard(path: str, samples: int, size: int) -> None:
    """Write a shard of samples ``KEY.bin`` (``size`` bytes) and ``KEY.cls``."""
    data = os.urandom(size)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(samples):
            for name, body in ((f"{number:06d}.bin", data), (f"{number:06d}.cls", b"%d" % number)):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))


def publish(path: str) -> None:
    """Save the member table of a shard beside it."""
    fd, facts = atomic.open_file(path)
    atomic.write_atomically(f"{path}.widx", member_tables.scan_table(fd, path, facts).to_bytes())
    os.close(fd)


def measure(server: SlowServer, name: str, access: str, samples: int) -> list[tuple[float, int, int]]:
    """Return (seconds, requests, bytes) of the first sample, and of a batch after it."""
    found = []
    # A download that the last batch began may still be ending.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        dataset = wids.ShardListDataset(
            [(f"{server.url}/{name}", samples)], access=access, cache_dir=cache, transformations="raw"
        )
        for indices in ([random.randrange(samples)], random.sample(range(samples), BATCH)):
            server.stats()
            begin = time.perf_counter()
            batch = dataset.__getitems__(indices)
            seconds = time.perf_counter() - begin
            if [int(sample[".cls"]) for sample in batch] != indices:
                raise SystemExit(f"access={access!r} returned wrong samples")
            counts = server.stats()
            found.append((seconds, counts["requests"], counts["bytes"]))
        dataset.close()
        del dataset
    return found


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small shard, one round: tests the benchmark only.")] = False,
) -> None:
    """Read one sample, then a batch, of a large remote shard."""
    samples, size, rounds = (50, 5_000, 1) if quick else (2000, 500_000, rounds)
    table = Table("access", "first sample, s", "requests", "kB", f"then {BATCH}, s", "requests", "MB")
    random.seed(0)
    with tempfile.TemporaryDirectory() as served:
        for name in ("with.tar", "without.tar"):
            write_shard(os.path.join(served, name), samples, size)
        publish(os.path.join(served, "with.tar"))
        total = os.path.getsize(os.path.join(served, "with.tar"))
        with SlowServer(served, delay_ms=30, mbps=40) as server:
            for title, access, has_table in CASES:
                name = "with.tar" if has_table else "without.tar"
                results = [measure(server, name, access, samples) for _ in range(rounds)]
                one, many = (
                    [median(figures) for figures in zip(*part, strict=True)] for part in zip(*results, strict=True)
                )
                table.add_row(
                    title,
                    *(f"{one[0]:.3g}", f"{one[1]:.0f}", f"{one[2] / 1e3:,.0f}"),
                    *(f"{many[0]:.3g}", f"{many[1]:.0f}", f"{many[2] / 1e6:,.1f}"),
                )
    report.show_table(table, f"a shard of {total / 1e6:,.0f} MB, {samples:,} samples", repository=ROOT, is_quick=quick)


if __name__ == "__main__":
    typer.run(main)
