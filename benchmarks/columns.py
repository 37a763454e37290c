"""SQL over the columns of ten million samples, and tables joined to them: time and peak memory.

    python benchmarks/columns.py           a minute; makes 600 MB in the temporary directory
    python benchmarks/columns.py --quick   seconds; the figures are meaningless

Each case is a process of its own; the second of its rounds counts, when the file is in the page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from wids.columns.join import JoinRequest, copy_columns, join_table
from wids.columns.sql import SampleTable, find_rows, run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_GROUP = 1 << 17
_WORDS = np.array(["a cat on a mat", "the dog in the yard", "a bird above the house"])


def batches(n: int) -> Iterator[pa.Table]:
    """Rows as ``wids columns create`` writes them."""
    rng = np.random.default_rng(0)
    for first in range(0, n, _GROUP):
        index = np.arange(first, min(first + _GROUP, n))
        words, numbers = _WORDS[rng.integers(0, 3, len(index))], rng.integers(0, 10**6, len(index))
        yield pa.table(
            {
                "index": index,
                "shard": (index // 1000).astype(np.int32),
                "row": (index % 1000).astype(np.int32),
                "key": [f"k{i:09d}" for i in index],
                "bytes": rng.integers(1000, 200_000, len(index)),
                "label": rng.integers(0, 1000, len(index)),
                "width": rng.integers(64, 1024, len(index)),
                "caption": [f"{text} {number}" for text, number in zip(words, numbers, strict=True)],
            }
        )


def scores(n: int) -> Iterator[pa.Table]:
    """A score for each sample, in a random order."""
    order = np.random.default_rng(1).permutation(n)
    for first in range(0, n, _GROUP):
        index = order[first : first + _GROUP]
        yield pa.table({"index": index, "key": [f"k{i:09d}" for i in index], "score": index / n})


def write(path: str, tables: Iterator[pa.Table]) -> None:
    """Write a Parquet file."""
    first = next(tables)
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _half_of(table: SampleTable) -> SampleTable:
    return msgspec.structs.replace(table, chosen=np.arange(0, table.samples, 2))


def _join(table: SampleTable, given: str, on: str) -> None:
    join_table(JoinRequest(table=given, on=on, columns=["score"], missing="error"), table)


def _joined_predicate(table: SampleTable, given: str) -> None:
    joined = join_table(JoinRequest(table=given, on="index", columns=["score"], missing="error"), table)
    start = time.perf_counter()
    find_rows(
        SampleTable(samples=table.samples, path=table.path, joined=[joined.table]), "score > 0.5 and width >= 512"
    )
    print(f"  of which the predicate: {time.perf_counter() - start:.2f} s", flush=True)


CASES: dict[str, Callable[[SampleTable, str], object]] = {
    "width >= 512 and caption ilike '%cat%'": lambda table, _: find_rows(
        table, "width >= 512 and caption ilike '%cat%'"
    ),
    "label = 3": lambda table, _: find_rows(table, "label = 3"),
    "count by label": lambda table, _: run_query(table, "select label, count(*) from samples group by label"),
    "with_table on index": lambda table, given: _join(table, given, "index"),
    "with_table on key": lambda table, given: _join(table, given, "key"),
    "with_table on index, predicate over both": _joined_predicate,
    "view of half: width >= 512": lambda table, _: find_rows(_half_of(table), "width >= 512"),
    "view of half: with_table on key": lambda table, given: _join(_half_of(table), given, "key"),
    "with_columns label, caption": lambda table, _: copy_columns(str(table.path), ["label", "caption"]),
}


def peak_bytes() -> int:
    """Return this process's peak memory (VmHWM: unlike ru_maxrss, it does not begin with that of its parent)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def measure(name: str, n: int, path: str, given: str) -> tuple[float, float]:
    """(seconds of the second round, peak memory in bytes) of a case."""
    table = SampleTable(samples=n, path=path)
    for _ in range(2):
        start = time.perf_counter()
        CASES[name](table, given)
        seconds = time.perf_counter() - start
    return seconds, peak_bytes()


def main(
    *,
    rows: Annotated[int, typer.Option(help="Samples.")] = 10_000_000,
    is_quick: Annotated[bool, typer.Option("--quick", help="Few rows; tests the benchmark itself.")] = False,
) -> None:
    """SQL over columns, and joins."""
    n = 10_000 if is_quick else rows
    with tempfile.TemporaryDirectory() as scratch:
        path, given = os.path.join(scratch, "x.columns.parquet"), os.path.join(scratch, "scores.parquet")
        write(path, batches(n))
        write(given, scores(n))
        print(f"{n:,} rows, {os.path.getsize(path) / 1e6:,.0f} MB, {os.cpu_count()} cores")
        context = multiprocessing.get_context("spawn")
        for name in CASES:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                seconds, peak = pool.submit(measure, name, n, path, given).result()
            print(f"{name:42} {seconds:6.2f} s {peak / 1e6:7,.0f} MB", flush=True)


if __name__ == "__main__":
    typer.run(main)
