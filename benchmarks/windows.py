"""Windows of eight frames at random over 10,000 episodes, beside a loop that reads frame by frame.

    python benchmarks/windows.py              120,000 frames in 120 shards of 5 MB; three minutes
    python benchmarks/windows.py --quick      a few of them; the figures are meaningless

A frame is a JPEG of 96 x 96 pixels and an action of 14 floats; an episode has twelve frames, and may lie in two shards.
Each contender reads the same windows in the same order, decoded to tensors, 64 to a batch, in this process; it sees
that they are the right ones. ``wids`` reads ``windows.__getitems__``, ``loop`` reads ``dataset[i]`` for each frame of
each window. Remote shards are on the server of cold.py (30 ms to the first byte, 40 MB/s a connection), with the
samplers' downloads ahead, or without. Medians of the rounds.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import report
import torch
import typer
from PIL import Image
from rich.table import Table
from slow_server import SlowServer

import wids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = str(Path(__file__).parents[1])
BATCH, LENGTH, FRAMES, PER_SHARD = 64, 8, 12, 1000
# Offsets of a policy: two pictures, and the sixteen actions from now on.
POLICY = {".jpg": [-1, 0], ".npy": list(range(16))}


def write_frames(folder: str, episodes: int) -> str:
    """Write the shards of so many episodes; returns the path of their index."""
    numbers, pictures = np.random.default_rng(0), []
    for _ in range(32):
        small = numbers.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
        pictures.append(stream.getvalue())
    with wids.ShardWriter(os.path.join(folder, "train-%04d.tar"), samples=PER_SHARD) as writer:
        for k in range(episodes * FRAMES):
            action = np.full(14, k, np.float32)
            writer.write({"__key__": f"{k // FRAMES:05d}-{k % FRAMES:02d}", ".jpg": pictures[k % 32], ".npy": action})
    return os.path.join(folder, "train.json")


def open_frames(place: str, **options: Any) -> Any:
    """Open the frames, and their episodes."""
    dataset = wids.ShardListDataset(place, transformations="torch", **options)
    return dataset, np.arange(len(dataset)) // FRAMES


def by_windows(windows: Any, batch: list[int]) -> list[Any]:
    """Read a batch of windows."""
    return windows.__getitems__(batch)


def by_frames(windows: Any, batch: list[int]) -> list[Any]:
    """Read the same frame by frame, as programs do that have no windows."""
    dataset, read = windows.dataset, []
    for index in batch:
        there = windows.samples(index)
        if isinstance(there, dict):
            frames = {int(k): dataset[int(k)] for k in np.unique(np.concatenate([*there.values()]))}
            read.append({name: [frames[int(k)][name] for k in samples] for name, samples in there.items()})
        else:
            frames_in_turn = [dataset[int(k)] for k in there]
            read.append({name: [frame[name] for frame in frames_in_turn] for name in (".jpg", ".npy")})
    return read


def batches_of(order: Iterable[int], count: int) -> Iterator[list[int]]:
    """Cut the first ``count`` indices of an order into batches."""
    batch: list[int] = []
    for number, index in enumerate(order):
        if number == count:
            return
        batch.append(index)
        if len(batch) == BATCH:
            yield batch
            batch = []


def read_all(
    read: Callable[..., list[Any]], windows: Any, order: Iterable[int], count: int
) -> tuple[float, float, float]:
    """Read windows; returns seconds, seconds to the first batch, and CPU seconds."""
    begin, cpu, first = time.perf_counter(), time.process_time(), 0.0
    for batch in batches_of(order, count):
        for index, window in zip(batch, read(windows, batch), strict=True):
            there = windows.samples(index)
            there = there[".npy"] if isinstance(there, dict) else there
            if [int(action[0]) for action in window[".npy"]] != there.tolist():
                raise SystemExit(f"{read.__name__} returned wrong frames")
        first = first or time.perf_counter() - begin
    return time.perf_counter() - begin, first, time.process_time() - cpu


def orders_of(windows: Any) -> dict[str, Callable[[], Iterable[int]]]:
    """Return the orders that are read: by name, what makes one."""
    return {
        "sampler": lambda: wids.ChunkedSampler(windows, chunksize=PER_SHARD, seed=1),
        "uniform": lambda: np.random.default_rng(1).permutation(len(windows)).tolist(),
        "in turn": lambda: range(len(windows)),
    }


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few frames, one round: tests the benchmark only.")] = False,
) -> None:
    """Read windows of frames, local and remote, beside a loop over single frames."""
    torch.set_num_threads(1)
    episodes, count, rounds = (200, 2 * BATCH, 1) if quick else (10_000, 24 * BATCH, rounds)
    table = Table("windows", "order", "contender", "windows/s", "CPU, us a window", "first batch, s", "MB")
    with tempfile.TemporaryDirectory() as folder:
        index = write_frames(folder, episodes)
        dataset, values = open_frames(index)
        dataset.__getitems__(range(BATCH))  # which imports the decoder of pictures
        forms = {
            f"{LENGTH} frames": dataset.windows(LENGTH, by=values),
            "2 pictures, 16 actions": dataset.windows(offsets=POLICY, by=values, pad="repeat"),
        }
        for title, windows in forms.items():
            for name, make in orders_of(windows).items():
                figures: dict[str, list[tuple[float, float, float]]] = {"wids": [], "loop": []}
                for _ in range(rounds):
                    for contender, read in (("wids", by_windows), ("loop", by_frames)):
                        figures[contender].append(read_all(read, windows, make(), count))
                for contender, found in figures.items():
                    add_row(table, (f"{title}, local", name, contender), found, count)
        with SlowServer(folder, delay_ms=30, mbps=40) as server:
            for name, contender, read in (("sampler", "wids", by_windows), ("uniform", "loop", by_frames)):
                found, sent = [], []
                for _ in range(rounds):
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
                        options = {"cache_dir": cache, "prefetch": contender == "wids"}
                        dataset, values = open_frames(f"{server.url}/train.json", **options)
                        windows = dataset.windows(LENGTH, by=values)
                        server.stats()
                        found.append(read_all(read, windows, orders_of(windows)[name](), count))
                        sent.append(server.stats()["bytes"])
                        dataset.close()
                        del dataset, windows
                add_row(table, (f"{LENGTH} frames, remote", name, contender), found, count, median(sent))
    title = f"windows of {episodes:,} episodes of {FRAMES} frames, {count:,} of them"
    report.show_table(table, title, repository=ROOT, is_quick=quick)


def add_row(
    table: Table,
    words: tuple[str, str, str],
    figures: list[tuple[float, float, float]],
    count: int,
    sent: float | None = None,
) -> None:
    """Add the medians of the rounds of a contender."""
    seconds, first, cpu = (median(values) for values in zip(*figures, strict=True))
    numbers = (f"{count / seconds:,.0f}", f"{cpu / count * 1e6:,.0f}", f"{first:.2f}")
    table.add_row(*words, *numbers, "" if sent is None else f"{sent / 1e6:,.0f}")


if __name__ == "__main__":
    typer.run(main)
