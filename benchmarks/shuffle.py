"""Quality of shuffles against the number of open shards: ours, the original's, buffers, and a full permutation.

    python benchmarks/shuffle.py                  half a minute
    python benchmarks/shuffle.py --png out.png    and a picture
    python benchmarks/shuffle.py --locality       and the time of epochs from local shards, by window
    python benchmarks/shuffle.py --quick          seconds; the figures are meaningless

Only orders are computed, no data are read. The data are the worst case, sorted by class: 1,024 shards of 1,000 samples,
one class in each shard. README.md beside this file explains the columns.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import report
import shards
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the working tree, installed or not
import wids
from wids.samplers import DistributedChunkedSampler

Orders = NDArray[np.int64]  # (ranks, steps): the samples of each rank in order

_BATCH = 32
_STRETCH = 1000  # open shards are those of so many consecutive samples
_FORGET = 20_000  # a rank that returns to a shard after so many samples makes another visit
_BINS = 10


@dataclass(frozen=True)
class Data:
    """Shards of one size, each of one class; the class of a sample is its shard."""

    shards: int
    size: int
    ranks: int
    epochs: int

    @property
    def n(self) -> int:
        """Samples in all."""
        return self.shards * self.size

    @property
    def lengths(self) -> list[int]:
        """Samples in each shard, for the sampler."""
        return [self.size] * self.shards

    def __len__(self) -> int:
        return self.n


@dataclass
class Figures:
    """One line of the table; see README.md."""

    name: str
    classes: float  # distinct classes in a global batch
    neighbours: float  # probability that the next sample of a rank is of the same class
    correlation: float
    chi_square: float
    mates: float
    open: float
    visits: float
    first: float
    cache: float


def ours(data: Data, **options: object) -> Callable[[int], Orders]:
    """Our sampler."""
    samplers = [
        DistributedChunkedSampler(data, num_replicas=data.ranks, rank=rank, tail="drop", **options)  # type: ignore[arg-type]
        for rank in range(data.ranks)
    ]

    def order(epoch: int) -> Orders:
        for sampler in samplers:
            sampler.set_epoch(epoch)
        return np.array([list(sampler) for sampler in samplers])

    return order


def original(data: Data, *, chunksize: int) -> Callable[[int], Orders]:
    """The order of wids 0.1.11: a fixed slice for each rank, in chunks; the first epoch keeps the chunks' order."""

    def order(epoch: int) -> Orders:
        each = data.n // data.ranks
        rows = []
        for rank in range(data.ranks):
            generator = np.random.default_rng((rank, epoch))
            starts = np.arange(rank * each, (rank + 1) * each, chunksize)
            if epoch:
                generator.shuffle(starts)
            parts = [start + generator.permutation(min(chunksize, (rank + 1) * each - start)) for start in starts]
            rows.append(np.concatenate(parts))
        return np.array(rows)

    return order


def permutation(data: Data) -> Callable[[int], Orders]:
    """The order of torch's DistributedSampler: a permutation of all samples, dealt to the ranks in turn."""

    def order(epoch: int) -> Orders:
        everything = np.random.default_rng(epoch).permutation(data.n)
        return everything[: data.n // data.ranks * data.ranks].reshape(-1, data.ranks).T

    return order


def buffered(data: Data, *, size: int) -> Callable[[int], Orders]:
    """Shards permuted and split over the ranks, read in turn through a buffer of which a random sample is taken."""

    def order(epoch: int) -> Orders:
        generator = np.random.default_rng(epoch)
        order_of_shards = generator.permutation(data.shards)
        rows = []
        for rank in range(data.ranks):
            mine = order_of_shards[rank :: data.ranks][: data.shards // data.ranks]
            source = (mine[:, None] * data.size + np.arange(data.size)).ravel().tolist()
            buffer, places = source[:size], generator.integers(0, min(size, len(source)), len(source)).tolist()
            found = []
            for place, sample in zip(places, source[size:], strict=False):
                found.append(buffer[place])
                buffer[place] = sample
            generator.shuffle(buffer)
            rows.append(found + buffer)
        return np.array(rows)

    return order


def measure(name: str, order: Callable[[int], Orders], data: Data) -> Figures:
    """Compute all figures of one order, as means over the epochs."""
    classes, neighbours, correlation, mates, opened, visits, first, cache = ([] for _ in range(8))
    bins = np.zeros((_BINS, data.n), np.uint8)
    batch_of_last = None
    for epoch in range(data.epochs):
        rows = order(epoch)
        where = rows // data.size
        steps = rows.shape[1] // _BATCH * _BATCH
        batches = where[:, :steps].reshape(data.ranks, -1, _BATCH).transpose(1, 0, 2).reshape(-1, data.ranks * _BATCH)
        classes.append(distinct(batches))
        neighbours.append((where[:, 1:] == where[:, :-1]).mean())
        correlation.append(np.mean([np.corrcoef(row[1:], row[:-1])[0, 1] for row in rows]))
        place = np.arange(rows.shape[1]) * _BINS // rows.shape[1]
        bins[np.broadcast_to(place, rows.shape), rows] += 1
        batch_of = np.full(data.n, -1)
        batch_of[rows] = np.arange(rows.shape[1]) // _BATCH + (np.arange(data.ranks) * rows.shape[1])[:, None]
        if batch_of_last is not None:
            before = np.sort(batch_of_last[rows[:, :steps]].reshape(-1, _BATCH), axis=1)
            again = sum((before[:, k:] == before[:, :-k]).sum() for k in range(1, _BATCH))
            mates.append(again / (len(before) * _BATCH * (_BATCH - 1) / 2) / ((_BATCH - 1) / (data.n - 1)))
        batch_of_last = batch_of
        stretch = min(_STRETCH, rows.shape[1])
        opened.append(distinct(where[:, : rows.shape[1] // stretch * stretch].reshape(-1, stretch)))
        stays = [find_visits(row) for row in where]
        visits.append(sum(len(begins) for begins, _ in stays) / data.shards)
        cache.append(np.mean([count_needed(*found, ahead=data.size) for found in stays]))
        first.append(distinct(where[:, :_BATCH]))
    seen = bins.sum(axis=0)
    expected = np.maximum(seen, 1) / _BINS
    chi = (((bins - expected) ** 2) / expected).sum(axis=0)[seen > 1] / (_BINS - 1)
    return Figures(
        name,
        *(float(np.mean(x)) for x in (classes, neighbours, correlation)),
        float(chi.mean()),
        *(float(np.mean(x)) for x in (mates or [np.nan], opened, visits, first, cache)),
    )


def distinct(rows: Orders) -> float:
    """Return the mean number of different values in a row."""
    ordered = np.sort(rows, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())


def find_visits(row: Orders) -> tuple[Orders, Orders]:
    """Find where a rank's visits to shards begin and end (both included), see `_FORGET`."""
    order = np.argsort(row, kind="stable")
    begins = np.append(True, (np.diff(row[order]) != 0) | (np.diff(order) > _FORGET))
    return order[begins], order[np.append(begins[1:], True)]


def count_needed(begins: Orders, ends: Orders, *, ahead: int) -> int:
    """Count the shards that a cache has at most if each comes ``ahead`` samples before its use, and goes after it."""
    change = np.zeros(int(ends.max()) + 2, np.int64)
    np.add.at(change, np.maximum(begins - ahead, 0), 1)
    np.add.at(change, ends + 1, -1)
    return int(np.cumsum(change).max())


def contenders(data: Data, *, is_brief: bool) -> dict[str, Callable[[int], Orders]]:
    """Return the orders by their names in the table."""
    found = {
        "permutation of everything": permutation(data),
        "original, chunksize 1,000,000": original(data, chunksize=1_000_000),
        "original, chunksize 1,000": original(data, chunksize=1000),
        "shards, buffer of 1,000": buffered(data, size=1000),
        "shards, buffer of 10,000": buffered(data, size=10_000),
        "ours, shuffle=False": ours(data, shuffle=False),
        "ours": ours(data),
        'ours, reshuffle="epoch"': ours(data, reshuffle="epoch"),
    }
    for chunksize in (1000,) if is_brief else (250, 1000):
        for window in (1, 4) if is_brief else (1, 2, 4, 8, 16, 32):
            found[f"ours, {chunksize:,} x {window}"] = ours(data, chunksize=chunksize, window=window)
    return found


COLUMNS = {
    "classes": ("classes\nin a batch", "{:.0f}"),
    "neighbours": ("neighbours\nalike", "{:.2%}"),
    "correlation": ("serial\ncorrelation", "{:.3f}"),
    "chi_square": ("chi-square\n/ dof", "{:.2f}"),
    "mates": ("mates\nagain", "{:.0f}x"),
    "open": ("shards\nopen", "{:.0f}"),
    "visits": ("visits to\na shard", "{:.2f}"),
    "first": ("shards for\nbatch 1", "{:.0f}"),
    "cache": ("shards a\ncache needs", "{:.0f}"),
}
WINDOWS = (1, 2, 4, 8, 16, 32)


def time_windows(console: Console, *, directory: str, rounds: int, shapes: tuple[shards.Shape, ...]) -> list[dict]:
    """Time epochs of `__getitems__` of 32 without decoding, by window; medians of the rounds' ratios to window 1."""
    with open(shards.make(directory, shapes), encoding="utf-8") as stream:
        sets = json.load(stream)["sets"]
    table = Table(title="an epoch of __getitems__ of 32 from local shards, by window (window 1 = 1)")
    table.add_column("data")
    for window in WINDOWS:
        table.add_column(f"{window}", justify="right")
    found = []
    for name, entry in sets.items():
        dataset = wids.ShardListDataset(entry["shardlist"], transformations=[], localname=str)
        seconds: dict[int, list[float]] = {window: [] for window in WINDOWS}
        for epoch in range(rounds + 1):  # the first one warms up
            for window in WINDOWS:
                sampler = DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=window)
                sampler.set_epoch(epoch)
                order = list(sampler)
                begin = time.perf_counter()
                for k in range(0, len(order), _BATCH):
                    dataset.__getitems__(order[k : k + _BATCH])
                seconds[window].append((time.perf_counter() - begin) / len(order))
        ratios = {
            window: median(a / b for a, b in zip(seconds[window][1:], seconds[1][1:], strict=True))
            for window in WINDOWS
        }
        first = median(seconds[1][1:]) * 1e6
        table.add_row(f"{name}, {first:.2f} us a sample at window 1", *(f"{ratios[w]:.2f}" for w in WINDOWS))
        found.append({"data": name, "microseconds_at_1": first, "ratios": ratios})
    console.print(table)
    return found


def draw(figures: list[Figures], path: str, data: Data) -> None:
    """Draw the classes in a batch against the number of open shards."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    line = [f for f in figures if f.name.startswith("ours, 1,000 x")]
    axes.plot([f.open for f in line], [f.classes for f in line], "o-", label="ours: window 1, 2, 4, ...")
    for marker, start in (("s", "original"), ("^", "shards, buffer"), ("*", "permutation")):
        for f in (f for f in figures if f.name.startswith(start)):
            axes.plot(f.open, f.classes, marker, markersize=9, linestyle="none", label=f.name)
    axes.set(xscale="log", yscale="log", xlabel=f"shards a rank reads from within {_STRETCH:,} samples")
    axes.set(ylabel=f"classes in a global batch of {_BATCH * data.ranks}")
    axes.set(title=f"{data.shards:,} shards of one class each, {data.ranks} ranks")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    *,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks that share the data.")] = 8,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of each order.")] = 6,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data: tests the benchmark only.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    png: Annotated[str, typer.Option(help="Draw quality against shards open to this file.")] = "",
    locality: Annotated[bool, typer.Option("--locality", help="Time epochs from local shards too, by window.")] = False,
    directory: Annotated[str, typer.Option("--data", help="Keep the local shards in this directory.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the epochs that are timed.")] = 5,
) -> None:
    """Measure how well orders mix, and how many shards they keep open, on data sorted by class."""
    data = Data(64, 50, min(ranks, 4), 2) if quick else Data(1024, 1000, ranks, epochs)
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    table = Table(
        title=f"{data.shards:,} shards of {data.size:,}, one class each; {data.ranks} ranks, batch {_BATCH} each"
    )
    table.add_column("order", no_wrap=True)
    for title, _ in COLUMNS.values():
        table.add_column(title, justify="right")
    figures = []
    for name, order in contenders(data, is_brief=quick).items():
        found = measure(name, order, data)
        figures.append(found)
        table.add_row(name, *(form.format(getattr(found, key)) for key, (_, form) in COLUMNS.items()))
    console.print(table)
    times = []
    if locality:
        with tempfile.TemporaryDirectory(prefix="wids-benchmarks-") as scratch:
            shapes = shards.QUICK if quick else shards.FULL
            times = time_windows(console, directory=directory or scratch, rounds=rounds, shapes=shapes)
    console.print(", ".join(f"{key} {value}" for key, value in report.machine().items()))
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            found = {"data": asdict(data), "figures": [asdict(f) for f in figures], "windows": times}
            json.dump({"machine": report.machine(), **found}, stream, indent=1)
    if png:
        draw(figures, png, data)


if __name__ == "__main__":
    typer.run(main)
