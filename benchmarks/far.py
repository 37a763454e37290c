"""An epoch over local shards on a slow file system, with and without reading ahead of the sampler.

    python benchmarks/far.py              16 shards of 21 MB; two minutes
    python benchmarks/far.py --quick      small shards; the figures are meaningless

Needs root, FUSE (``apt-get install fuse3``) and ``pip install mfusepy``. slow_files.py stands in for a network file
system: each read takes 10 ms and its bytes at 100 MB/s, several at a time. A shuffled epoch by a DataLoader with two
workers, which take half a millisecond for each sample; pages are dropped before each. Medians of the rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import typer
from one import write_shard
from rich.table import Table
from torch.utils.data import DataLoader

import wids

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = str(Path(__file__).parents[1])
WORK_SECONDS, START_SECONDS = 0.0005, 10.0


@contextmanager
def mounted(source: str, mountpoint: str, delay_ms: float, mbps: float) -> Iterator[None]:
    """The slow file system, while the block lasts."""
    program = [sys.executable, str(Path(__file__).with_name("slow_files.py"))]
    server = subprocess.Popen([*program, source, mountpoint, str(delay_ms), str(mbps)])
    try:
        begin = time.monotonic()
        while not os.path.ismount(mountpoint):
            if server.poll() is not None or time.monotonic() - begin > START_SECONDS:
                raise SystemExit("the slow file system did not start: it needs root, FUSE and mfusepy")
            time.sleep(0.01)
        yield
    finally:
        subprocess.run(["umount", "--lazy", mountpoint], check=False, stderr=subprocess.DEVNULL)
        server.terminate()
        server.wait()


def work(sample: dict) -> int:
    """Half a millisecond of a processor."""
    begin = time.process_time()
    while time.process_time() - begin < WORK_SECONDS:
        pass
    return len(sample[".bin"].getvalue())


def drop_pages() -> None:
    """Forget what the kernel has read of files."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")


def epoch(shards: list[tuple[str, int]], *, is_ahead: bool) -> tuple[float, float]:
    """Return the seconds to the first batch and to the last one."""
    dataset = wids.ShardListDataset(shards, transformations=[], prefetch=is_ahead).add_transform(work)
    sampler = wids.DistributedChunkedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, collate_fn=list)
    drop_pages()
    begin, first, count = time.perf_counter(), 0.0, 0
    for batch in loader:
        first = first or time.perf_counter() - begin
        count += len(batch)
    if count != len(dataset):
        raise SystemExit(f"an epoch of {count} samples of {len(dataset)}")
    return first, time.perf_counter() - begin


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    delay_ms: Annotated[float, typer.Option(min=0, help="Of each read of the file system.")] = 10,
    mbps: Annotated[float, typer.Option(min=0.1, help="Megabytes (1e6) a second of each read.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="Small shards, one round: tests the benchmark only.")] = False,
) -> None:
    """Read epochs from a slow file system."""
    count, samples, rounds = (5, 8, 1) if quick else (16, 256, rounds)
    with tempfile.TemporaryDirectory() as directory:
        source, mountpoint = os.path.join(directory, "source"), os.path.join(directory, "mounted")
        os.mkdir(source)
        os.mkdir(mountpoint)
        names = [f"{number:03d}.tar" for number in range(count)]
        for name in names:
            write_shard(os.path.join(source, name), samples, 82_000)
        shards = [(os.path.join(mountpoint, name), samples) for name in names]
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        with mounted(source, mountpoint, delay_ms, mbps):
            for _ in range(rounds):
                for is_ahead, figures in found.items():
                    figures.append(epoch(shards, is_ahead=is_ahead))
    table = Table("prefetch", "first batch, s", "epoch, s", "of the other, x")
    for is_ahead, figures in found.items():
        ratio = median(own[1] / other[1] for own, other in zip(figures, found[False], strict=True))
        first, seconds = (median(column) for column in zip(*figures, strict=True))
        table.add_row(str(is_ahead), f"{first:.3g}", f"{seconds:.3g}", f"{ratio:.3g}")
    title = f"{count} shards of {samples} samples of 82 kB, {delay_ms:g} ms and {mbps:g} MB/s a read"
    report.show_table(table, title, repository=ROOT, is_quick=quick)


if __name__ == "__main__":
    typer.run(main)
