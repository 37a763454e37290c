"""`wids.jobs.map` beside a loop over the same samples that decodes them and does nothing.

    python benchmarks/map.py           a minute; makes 200 MB in the temporary directory
    python benchmarks/map.py --quick   seconds; the figures are meaningless

Two data sets: small ones (a text and a number), whose cost is that of wids, and JPEGs of 256 x 256 pixels, whose cost
is their decoding. The function returns one number for each sample; the job writes it into a shard or a table. Medians
of the rounds; what starts processes counts.
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
import typer
from PIL import Image
from rich.table import Table

import wids
from wids import jobs

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = str(Path(__file__).parents[1])
SHARDS = 8


def answer(sample: dict[str, Any]) -> dict[str, Any]:
    """A number."""
    return {"n.json": sample["__index__"]}


def answer_batch(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A number for each sample."""
    return [answer(sample) for sample in samples]


def value(sample: dict[str, Any]) -> dict[str, Any]:
    """A number for a table."""
    return {"n": sample["__index__"]}


def write_texts(place: str, count: int) -> None:
    """Samples of a text and a number."""
    with wids.ShardWriter(f"{place}/train-%06d.tar", samples=count // SHARDS) as writer:
        for k in range(count):
            writer.write({"__key__": f"{k:08d}", ".txt": f"text {k} " * 10, ".cls": k % 1000})


def write_pictures(place: str, count: int) -> None:
    """Samples of a JPEG and a number."""
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(noise).resize((256, 256)).save(stream, "JPEG", quality=90)
    with wids.ShardWriter(f"{place}/train-%06d.tar", samples=count // SHARDS) as writer:
        for k in range(count):
            writer.write({"__key__": f"{k:08d}", ".jpg": stream.getvalue(), ".cls": k % 1000})


def loop(index: str) -> None:
    """Decode all samples, one after the other."""
    for _ in wids.ShardListDataset(index):
        pass


def mapping(place: str, name: str, **settings: Any) -> Callable[[str], None]:
    """A job, whose output is new each time."""
    how = jobs.MapSettings(**settings)
    function: Any = value if how.columns else answer_batch if how.batch_size else answer
    engine, _, count = name.partition(" ")
    options = jobs.RunOptions(engine=engine, jobs=int(count))  # type: ignore[arg-type]

    def run(index: str) -> None:
        output = os.path.join(place, f"{time.monotonic_ns()}{'.parquet' if how.columns else ''}")
        jobs.map(index, function, output, settings=how, engine=options)

    return run


def measure(run: Callable[[str], None], index: str, rounds: int) -> float:
    """Seconds, the median of some rounds."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run(index)
        times.append(time.perf_counter() - begin)
    return median(times)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Few samples.")] = False,  # noqa: FBT002
    rounds: Annotated[int, typer.Option(min=1, help="The median of so many counts.")] = 3,
) -> None:
    """Measure each case."""
    cores = os.cpu_count() or 1
    table = Table("samples", "case", "samples/s", "us a sample")
    rounds = 1 if quick else rounds
    for name, write, count in (("texts", write_texts, 80_000), ("JPEG", write_pictures, 8000)):
        samples = 160 if quick else count
        with tempfile.TemporaryDirectory() as place:
            write(f"{place}/data", samples)
            index = f"{place}/data/train.json"
            cases: dict[str, Callable[[str], None]] = {
                "a loop": loop,
                "threads 1": mapping(place, "threads 1"),
                f"threads {cores}": mapping(place, f"threads {cores}"),
                "processes 1": mapping(place, "processes 1"),
                f"processes {cores}": mapping(place, f"processes {cores}"),
                "threads 1, batches of 64": mapping(place, "threads 1", batch_size=64),
                "threads 1, a table": mapping(place, "threads 1", columns=True),
            }
            for case, run in cases.items():
                seconds = measure(run, index, rounds)
                table.add_row(name, case, f"{samples / seconds:,.0f}", f"{1e6 * seconds / samples:,.1f}")
    report.show_table(table, "new fields of each sample", repository=ROOT, is_quick=quick)


if __name__ == "__main__":
    typer.run(main)
