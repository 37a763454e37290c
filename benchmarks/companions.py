"""An epoch over a base and a companion, beside the same fields in one set of shards; and joins by key.

    python benchmarks/companions.py           40 shards of 256 samples of 60 kB; four minutes
    python benchmarks/companions.py --quick   a few of them; the figures are meaningless

A sample is a member of 40 kB (``.bin``) and one of 20 kB (``.npy``). ``one set`` has both in each shard; ``joined`` has
the second in a companion, cut alike, or in shards of another size; ``unused`` is the joined set of which the second is
not asked for, beside ``base alone``. Each reads all samples through a sampler with downloads ahead, in this process, 64
to a batch, and sees that they are the right ones; locally, and from an empty cache behind the server of cold.py (30 ms
to the first byte, 40 MB/s a connection). Medians of the rounds, which are interleaved. A join by key is of so many keys
in random order, from member tables that are in memory: what is measured is the join.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import report
import typer
from rich.table import Table
from slow_server import SlowServer

import wids
from wids.core.collection.key_join import find_rows
from wids.core.files.identity import Identity
from wids.core.tables.table import MemberTable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = str(Path(__file__).parents[1])
BATCH, PER_SHARD = 64, 256
LARGE, SMALL = 40_000, 20_000
CASES = ("one set", "joined", "joined, cut otherwise", "joined by key", "base alone", "unused")


def write_sets(folder: str, shards: int) -> None:
    """Write the same samples in one set, and in a base and companions, with their joined indexes."""
    numbers = np.random.default_rng(0)
    noise = numbers.bytes(LARGE + shards * PER_SHARD)
    sets = {"one": (".bin", ".npy"), "base": (".bin",), "more": (".npy",), "other": (".npy",)}
    for name, fields in sets.items():
        size = 190 if name == "other" else PER_SHARD
        with wids.ShardWriter(os.path.join(folder, f"{name}-%04d.tar"), samples=size) as writer:
            for k in range(shards * PER_SHARD):
                values = {".bin": noise[k : k + LARGE], ".npy": np.full(SMALL // 4, k, np.float32)}
                writer.write({"__key__": f"{k:08d}", **{field: values[field] for field in fields}})
    base = wids.ShardListDataset(os.path.join(folder, "base.json"))
    for name, on, saved in (("more", "row", "row"), ("other", "row", "cut"), ("more", "key", "key")):
        base.with_fields(os.path.join(folder, f"{name}.json"), on=on).save(os.path.join(folder, f"{saved}.json"))


def open_case(place: str, case: str, **options: Any) -> Any:
    """Open the data set of a case."""
    names = {"one set": "one", "joined, cut otherwise": "cut", "joined by key": "key", "base alone": "base"}
    fields = (".bin",) if case in ("base alone", "unused") else None
    return wids.ShardListDataset(
        f"{place}/{names.get(case, 'row')}.json", transformations="numpy", fields=fields, **options
    )


def read_epoch(dataset: Any) -> tuple[float, float]:
    """Read all samples; returns seconds and CPU seconds."""
    begin, cpu, seen = time.perf_counter(), time.process_time(), 0
    batch: list[int] = []
    for index in wids.ChunkedSampler(dataset, chunksize=PER_SHARD, seed=1):
        batch.append(index)
        if len(batch) == BATCH:
            seen += check(dataset.__getitems__(batch))
            batch = []
    if seen != len(dataset):
        raise SystemExit(f"{seen} of {len(dataset)} samples came")
    return time.perf_counter() - begin, time.process_time() - cpu


def check(samples: list[dict[str, Any]]) -> int:
    """Check that each field is that of its sample; returns their number."""
    for sample in samples:
        if ".npy" in sample and int(sample[".npy"][0]) != int(sample["__key__"]):
            raise SystemExit(f"sample {sample['__key__']} has a field of another one")
    return len(samples)


def compare(table: Table, where: str, folder: str, rounds: int, server: SlowServer | None) -> None:
    """Add a row for each case, read in turns."""
    figures: dict[str, list[tuple[float, float, float, float]]] = {case: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
                place = folder if server is None else server.url
                dataset = open_case(place, case, cache_dir=cache)
                _ = server and server.stats()  # begins anew
                seconds, cpu = read_epoch(dataset)
                sent = {"bytes": 0, "requests": 0} if server is None else server.stats()
                figures[case].append((seconds, cpu, sent["bytes"], sent["requests"]))
                dataset.close()
                del dataset
    medians = {case: [median(values) for values in zip(*found, strict=True)] for case, found in figures.items()}
    for case, (seconds, cpu, sent, requests) in medians.items():
        beside = "base alone" if case in ("base alone", "unused") else "one set"
        ratios = [now / then for now, then in zip((seconds, cpu), medians[beside], strict=False)]
        table.add_row(
            *(where, case, f"{seconds:.2f}", f"{ratios[0]:.2f}", f"{cpu:.2f}", f"{ratios[1]:.2f}"),
            *(("", "") if server is None else (f"{sent / 1e6:,.0f}", f"{requests:,.0f}")),
        )


class Tables:
    """A collection of which there are only the member tables, in memory.

    Args:
        keys: of its samples, of one length each.
    """

    def __init__(self, keys: np.ndarray[Any, np.dtype[Any]]) -> None:
        self._keys, self._width, size = keys, keys.dtype.itemsize, 10_000
        self.lengths = [len(keys[k : k + size]) for k in range(0, len(keys), size)]
        self.ends = np.cumsum(self.lengths).tolist()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def whole_length(self) -> int:
        """Number of its samples."""
        return len(self._keys)

    def whole_indices(self) -> None:
        """None: it is no view."""

    def rows_of(self, k: int) -> range:
        """The rows of a shard."""
        return range(self.lengths[k])

    def member_tables(self, numbers: Any) -> Iterator[tuple[int, MemberTable]]:
        """The tables of shards, which have no members."""
        for k in numbers:
            count, first = self.lengths[k], self.ends[k] - self.lengths[k]
            none = memoryview(np.zeros(0, np.uint64))
            starts = memoryview(np.zeros(count + 1, np.uint32))
            key_ends = memoryview(np.arange(count + 1, dtype=np.uint64) * self._width)
            columns = [none, none, none, starts, key_ends]
            keys = self._keys[first : first + count].tobytes()
            yield k, MemberTable(identity=Identity(size=0), columns=columns, extensions=(), keys=keys, nrepeated=0)


def join_keys(count: int) -> tuple[float, float, float]:
    """Join so many keys in random order; returns seconds, CPU seconds, and MB of memory beyond that of the keys."""
    numbers = np.random.default_rng(0)
    keys = np.char.zfill(np.arange(count).astype("S12"), 12)
    order = numbers.permutation(count)
    base, other = Tables(keys), Tables(keys[order])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin, cpu = time.perf_counter(), time.process_time()
    rows = find_rows(base, other, name="other")  # type: ignore[arg-type]
    figures = time.perf_counter() - begin, time.process_time() - cpu
    if not (order[rows] == np.arange(count)).all():
        raise SystemExit("the join is wrong")
    return *figures, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    keys: Annotated[int, typer.Option(min=1, help="Keys that are joined.")] = 10_000_000,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples, one round: tests the benchmark only.")] = False,
) -> None:
    """Read a base and a companion beside one set of the same bytes, and join keys."""
    shards, rounds, keys = (2, 1, 20_000) if quick else (40, rounds, keys)
    seconds, cpu, memory = join_keys(keys)  # first: before it, no more memory was in use
    table = Table("shards", "case", "s", "beside", "CPU, s", "beside", "MB", "requests")
    with tempfile.TemporaryDirectory() as folder:
        write_sets(folder, shards)
        compare(table, "local", folder, rounds, None)
        with SlowServer(folder, delay_ms=30, mbps=40) as server:
            compare(table, "remote", folder, rounds, server)
    title = f"an epoch of {shards * PER_SHARD:,} samples of 60 kB; `beside`: the ratio to one set, or to the base alone"
    report.show_table(table, title, repository=ROOT, is_quick=quick)
    print(f"{keys:,} keys joined in {seconds:.1f} s ({cpu:.1f} s of CPU), with {memory:,.0f} MB more memory")


if __name__ == "__main__":
    typer.run(main)
