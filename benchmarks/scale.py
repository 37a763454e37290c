"""Cost of a sampler on a billion samples, of opening an index of a million shards, and of a pack of member tables.

    python benchmarks/scale.py             five minutes and 6 GB: torch's DistributedSampler at 1e8, a million shards
    python benchmarks/scale.py --brief     without the first: four minutes
    python benchmarks/scale.py --check     exit with 1 when a target is missed
    python benchmarks/scale.py --quick     seconds; the figures are meaningless

Each case is a process of its own in each round; medians of the rounds. README.md beside this file explains the figures.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import torch.utils.data
import typer
from rich.console import Console
from rich.table import Table

from wids import ShardListDataset
from wids.core.files import atomic
from wids.core.index import compiled_files
from wids.core.tables import pack_format
from wids.jobs.index_edit import convert_index
from wids.samplers import DistributedChunkedSampler

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, RANK = 64, 7
FIRST_SECONDS, FIRST_BYTES = 0.2, 200e6

# name -> (sampler, samples, options); {"resume": True} begins in the middle, from a state.
CASES: dict[str, tuple[str, int, dict]] = {
    "ours, 1e9": ("ours", 10**9, {}),
    "ours, 1e9, resume at 5e8": ("ours", 10**9, {"resume": True}),
    "ours, 1e9, 64 lanes on 48 ranks": ("ours", 10**9, {"lanes": 64, "num_replicas": 48}),
    "ours, 1e9, 64 lanes on 48 ranks, resume at 5e8": (
        "ours",
        10**9,
        {"lanes": 64, "num_replicas": 48, "resume": True},
    ),
    'ours, 1e9, reshuffle="epoch"': ("ours", 10**9, {"reshuffle": "epoch"}),
    "ours, 1e9, epoch_size=1e6": ("ours", 10**9, {"epoch_size": 10**6}),
    "ours, 1e8": ("ours", 10**8, {}),
    "ours, 1e7": ("ours", 10**7, {}),
    "torch DistributedSampler, 1e7": ("torch", 10**7, {}),
    "torch DistributedSampler, 1e8": ("torch", 10**8, {}),
}


# name -> (which index, whether it is compiled).
INDEX_CASES: dict[str, tuple[str, bool]] = {
    "JSON, parsed": ("json", False),
    "JSON, compiled by the first process": ("json", True),
    "JSON, mapped": ("json", True),
    "compiled (.widsx)": ("widsx", True),
}
INDEX_SHARDS, INDEX_SAMPLES = 10**6, 10_000
OPEN_SECONDS, OPEN_BYTES, PICKLE_BYTES = 0.1, 60e6, 1e6


class Shards:
    """A dataset with lengths only: shards of 10,000 samples."""

    def __init__(self, n: int) -> None:
        self.lengths = [10_000] * (n // 10_000)

    def __len__(self) -> int:
        return 10_000 * len(self.lengths)


def memory_bytes(field: str) -> int:
    """Return this process's memory, VmRSS (now) or VmHWM (the peak)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status has no " + field)


def run_case(kind: str, n: int, options: dict, count: int) -> dict:
    """Measure seconds to the first index and for each of the next ``count``, and the memory beyond the imports."""
    options = {"num_replicas": RANKS, "rank": RANK, "seed": 1, **options}
    resume = options.pop("resume", False)
    dataset = Shards(n)
    state = None
    if resume:
        sampler = DistributedChunkedSampler(dataset, **options)
        state = {**sampler.state_dict(), "position": n // 2 // RANKS * RANKS, "yielded": n // 2 // RANKS}
        del sampler
    before = memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    begin = time.perf_counter()
    if kind == "torch":
        made = torch.utils.data.DistributedSampler(dataset, num_replicas=RANKS, rank=RANK, seed=1)
    else:
        made = DistributedChunkedSampler(dataset, **options)
    if state is not None:
        made.load_state_dict(state)
    indices = iter(made)
    next(indices)
    first = time.perf_counter() - begin
    first_bytes = memory_bytes("VmHWM") - before
    begin = time.perf_counter()
    drawn = sum(1 for _ in islice(indices, count))
    each = (time.perf_counter() - begin) / max(drawn, 1)
    return {"first": first, "each": each, "first_bytes": first_bytes, "bytes": memory_bytes("VmHWM") - before}


def write_indexes(directory: Path, n: int) -> None:
    """Write an index of ``n`` shards that are nowhere, and its compiled form."""
    rows = (
        {"url": f"train-{k:07}.tar", "nsamples": INDEX_SAMPLES, "filesize": 10**8 + k, "md5sum": f"{k + 1:032x}"}
        for k in range(n)
    )
    with open(directory / "index.json", "w", encoding="utf-8") as file:
        file.write('{"wids_version": 1, "name": "train", "base": "https://host.invalid/data", "shardlist": [\n')
        file.write(",\n".join(map(json.dumps, rows)) + "]}\n")
    convert_index(str(directory / "index.json"), str(directory / "index.widsx"))
    os.utime(directory / "index.json", (0, 0))  # one that was written just now would be read to be compared


def run_index_case(kind: str, directory: str, n: int, *, is_compiled: bool) -> dict:
    """Measure seconds and memory to open an index, bytes and seconds to hand the dataset to a worker."""
    least = min(n, compiled_files.LIMITS.min_shards) if is_compiled else sys.maxsize
    compiled_files.LIMITS = compiled_files.LIMITS._replace(min_shards=least)
    before = memory_bytes("RssAnon")
    begin = time.perf_counter()
    dataset = ShardListDataset(f"{directory}/index.{kind}", cache_dir=f"{directory}/cache", prefetch=False)
    opened = time.perf_counter() - begin
    found = memory_bytes("RssAnon") - before
    data = pickle.dumps(dataset)
    begin = time.perf_counter()
    copied = pickle.loads(data)
    received = time.perf_counter() - begin
    if not len(copied) == len(dataset) == n * INDEX_SAMPLES:
        raise SystemExit(f"{kind}: {len(dataset)} samples")
    return {"open": opened, "bytes": found, "pickle_bytes": len(data), "unpickle": received}


def run_pack_case(directory: str, n: int) -> dict:
    """Measure the directory of a pack of ``n`` member tables: to make it, to map it, and to look into it."""
    names, path = [f"train-{k:07}.tar" for k in range(n)], f"{directory}/train.tables"
    begin = time.perf_counter()
    head = pack_format.pack_head(names, [100_000] * n, url=path)
    wrote = time.perf_counter() - begin
    size, wanted = len(head), [f"{directory}/{name}" for name in names[:: max(n // 10_000, 1)]]
    Path(path).write_bytes(head)
    del head, names
    before = memory_bytes("RssAnon")
    begin = time.perf_counter()
    # The tables themselves are not written.
    found = pack_format.unpack(atomic.map_file(path)[0], url=path, size=size + n * 100_000)
    opened, private = time.perf_counter() - begin, memory_bytes("RssAnon") - before
    begin = time.perf_counter()
    if not all(map(found.find, wanted)):
        raise SystemExit("a table was not found")
    looked = (time.perf_counter() - begin) / len(wanted)
    return {"write": wrote, "size_bytes": size, "open": opened, "bytes": private, "look": looked}


def measure(case: Callable[[], dict], *, quick: bool) -> dict:
    """Run a case in a process of its own, which imports all anew unless it is to be quick."""
    context = multiprocessing.get_context("fork" if quick else "spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(case).result(timeout=600)


def measure_samplers(rounds: int, *, brief: bool, quick: bool) -> dict[str, list[dict]]:
    """Measure all cases of samplers."""
    found: dict[str, list[dict]] = {}
    for number in range(rounds):
        for name, (kind, n, options) in CASES.items():
            if kind == "torch" and n == 10**8 and (brief or quick or number):
                continue  # it takes half a minute, and varies little
            case = partial(run_case, kind, n // 100 if quick else n, options, 100 if quick else 1_000_000)
            found.setdefault(name, []).append(measure(case, quick=quick))
    return found


def measure_pack(rounds: int, n: int, *, quick: bool) -> list[dict]:
    """Measure the directory of a pack."""
    with tempfile.TemporaryDirectory() as directory:
        return [measure(partial(run_pack_case, directory, n), quick=quick) for _ in range(rounds)]


def measure_indexes(rounds: int, n: int, *, quick: bool) -> dict[str, list[dict]]:
    """Measure all cases of opening an index."""
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as directory:
        write_indexes(Path(directory), n)
        for _ in range(rounds):
            shutil.rmtree(Path(directory, "cache"), ignore_errors=True)
            for name, (kind, is_compiled) in INDEX_CASES.items():
                case = partial(run_index_case, kind, directory, n, is_compiled=is_compiled)
                found.setdefault(name, []).append(measure(case, quick=quick))
    return found


def medians(found: dict[str, list[dict]]) -> dict[str, dict]:
    """Take the median of each figure of each case."""
    return {
        name: {key: median(answer[key] for answer in answers) for key in answers[0]} for name, answers in found.items()
    }


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each case.")] = 5,
    brief: Annotated[bool, typer.Option("--brief", help="Leave out torch's sampler at 1e8.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small numbers: tests the benchmark only.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
) -> None:
    """Measure the cost to begin, to iterate and to resume an epoch of many samples."""
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    found = measure_samplers(1 if quick else rounds, brief=brief, quick=quick)
    indexes = measure_indexes(1 if quick else rounds, 200 if quick else INDEX_SHARDS, quick=quick)
    packs = {"pack of member tables": measure_pack(1 if quick else rounds, 200 if quick else INDEX_SHARDS, quick=quick)}
    figures, opened, packed = medians(found), medians(indexes), medians(packs)
    start = figures["ours, 1e9"]["first"]
    targets = {
        f"first index <= {FIRST_SECONDS} s": start <= FIRST_SECONDS,
        f"memory for it <= {FIRST_BYTES / 1e6:.0f} MB": figures["ours, 1e9"]["first_bytes"] <= FIRST_BYTES,
        "resume at 5e8 <= the start of an epoch (and a fifth for noise)": (
            figures["ours, 1e9, resume at 5e8"]["first"] <= 1.2 * start
        ),
        f"a mapped index opens in {OPEN_SECONDS} s": opened["JSON, mapped"]["open"] <= OPEN_SECONDS,
        f"with memory of its own <= {OPEN_BYTES / 1e6:.0f} MB": opened["JSON, mapped"]["bytes"] <= OPEN_BYTES,
        f"and a pickle <= {PICKLE_BYTES / 1e6:.0f} MB": opened["JSON, mapped"]["pickle_bytes"] <= PICKLE_BYTES,
    }
    show(console, figures, opened, packed, targets)
    if quick:
        console.print("quick: the numbers are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump(
                {"machine": report.machine(), "rounds": found, "indexes": indexes, "packs": packs, "targets": targets},
                stream,
                indent=1,
            )
    if check and not all(targets.values()):
        raise typer.Exit(1)


def show(
    console: Console,
    figures: dict[str, dict],
    opened: dict[str, dict],
    packed: dict[str, dict],
    targets: dict[str, bool],
) -> None:
    """Print the tables, the targets and the machine."""
    table = Table(title=f"rank {RANK} of {RANKS}; shards of 10,000 samples")
    table.add_column("sampler", no_wrap=True)
    for title in ("first index, ms", "each index, ns", "memory for the first, MB", "memory in all, MB"):
        table.add_column(title, justify="right")
    for name, f in figures.items():
        cells = f["first"] * 1e3, f["each"] * 1e9, f["first_bytes"] / 1e6, f["bytes"] / 1e6
        table.add_row(name, *(f"{cell:,.{1 if cell < 10 else 0}f}" for cell in cells))
    console.print(table)
    table = Table(title=f"opening an index of {INDEX_SHARDS:,} shards and {INDEX_SHARDS * INDEX_SAMPLES:,} samples")
    table.add_column("index", no_wrap=True)
    for title in ("open, s", "private memory, MB", "pickle, kB", "to unpickle, ms"):
        table.add_column(title, justify="right")
    for name, f in opened.items():
        cells = f["open"], f["bytes"] / 1e6, f["pickle_bytes"] / 1e3, f["unpickle"] * 1e3
        table.add_row(name, *(f"{cell:,.{3 if cell < 1 else 1 if cell < 10 else 0}f}" for cell in cells))
    console.print(table)
    for name, f in packed.items():
        opening = f"mapped in {f['open'] * 1e3:.1f} ms with {f['bytes'] / 1e6:.2f} MB of its own"
        words = (
            f"{f['size_bytes'] / 1e6:.1f} MB, made in {f['write']:.2f} s, {opening}, a look {f['look'] * 1e6:.1f} µs"
        )
        console.print(f"directory of a {name} of {INDEX_SHARDS:,} shards: {words}")
    for target, is_met in targets.items():
        console.print(f"{'met   ' if is_met else 'missed'} {target}")
    console.print(", ".join(f"{key} {value}" for key, value in report.machine().items()))


if __name__ == "__main__":
    typer.run(main)
