"""``wids at`` and ``wids when``: what a rank reads at a step of an epoch, and when a sample is read.

Rules: the defaults are those of `wids.samplers.DistributedChunkedSampler` and of a DataLoader. Nothing is fetched for
an index that has counts, unless keys are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.cli.format import count_of, print_json, print_table, printable, shown_url
from wids.cli.options import CacheDir, Index, Json, StorageOptions  # noqa: TC001 - typer reads the annotations
from wids.errors import WidsError

if TYPE_CHECKING:
    from wids.cli.look.listed import Listed
    from wids.order.schedule import Reading, Timetable

# Lanes and ranks are gone through one by one.
_MOST_RANKS = 1_000_000

Tail = Literal["pad", "drop", "mask"]
Reshuffle = Literal["fixed", "epoch"]

_World = Annotated[
    int, typer.Option("--world-size", min=1, max=_MOST_RANKS, metavar="W", help="How many ranks there are.")
]
_Batch = Annotated[int, typer.Option("--batch-size", min=1, metavar="B", help="Samples in a rank's batch.")]
_Epoch = Annotated[int, typer.Option("--epoch", metavar="E", help="As in sampler.set_epoch(E).")]
_Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The sampler's seed.")]
_Chunksize = Annotated[int, typer.Option("--chunksize", min=1, metavar="N", help="The sampler's chunksize.")]
_Window = Annotated[int, typer.Option("--window", min=1, metavar="N", help="The sampler's window.")]
_Lanes = Annotated[
    int | None,
    typer.Option(
        "--lanes",
        min=1,
        max=_MOST_RANKS,
        metavar="L",
        help="The sampler's lanes. Default: as many as ranks; after a resume, as many as there were ranks before.",
        show_default=False,
    ),
]
_Tail = Annotated[Tail, typer.Option("--tail", help="The sampler's tail; drop is drop_last=True.")]
_IsShuffled = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="The sampler's shuffle.")]
_Reshuffle = Annotated[Reshuffle, typer.Option("--reshuffle", help="The sampler's reshuffle.")]
_Samples = Annotated[
    str, typer.Option("--num-samples", metavar="N|A:B", help="The sampler's num_samples. Default: all of them.")
]
_Workers = Annotated[
    int, typer.Option("--workers", min=0, metavar="N", help="The DataLoader's num_workers: tells which one reads it.")
]
_Fetch = Annotated[
    bool, typer.Option("--fetch", help="For keys: fetch as many remote shards as it takes. Without it: one at most.")
]


def show_batch(
    index: Index,
    step: Annotated[int, typer.Option("--step", metavar="S", help="Which batch, from 0; -1: the last one.")],
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="R", help="Of which rank; of one, 0.", show_default=False)
    ] = None,
    world_size: _World = 1,
    batch_size: _Batch = 1,
    epoch: _Epoch = 0,
    seed: _Seed = 0,
    chunksize: _Chunksize = 10_000,
    window: _Window = 4,
    lanes: _Lanes = None,
    tail: _Tail = "pad",
    shuffle: _IsShuffled = True,
    reshuffle: _Reshuffle = "fixed",
    num_samples: _Samples = "",
    workers: _Workers = 0,
    has_keys: Annotated[
        bool, typer.Option("--keys", help="Tell the keys, too; that takes the shards' tables.")
    ] = False,
    is_json: Json = False,
    may_fetch: _Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """Which samples made up a batch: of which rank, at which step of which epoch.

    For a DataLoader over a DistributedChunkedSampler with the same settings; steps count from the epoch's beginning.
    """
    if rank is None and world_size > 1:
        raise typer.BadParameter(f"--rank is missing: of {world_size} ranks, which one?")
    rank = rank or 0
    if rank >= world_size:
        raise typer.BadParameter(f"--rank {rank}: of {world_size} ranks, the last one is {world_size - 1}")
    from wids.cli.look.listed import Listed

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    order = _order(chunksize, window, lanes or world_size, seed, shuffle, reshuffle)
    table = _timetable(listed, order, num_samples, epoch=epoch, world=world_size, batch_size=batch_size, tail=tail)
    if not -table.steps <= step < table.steps:
        right = f"steps are 0 to {table.steps - 1} (-1 is the last one)" if table.steps else "it has none"
        raise WidsError(
            f"{index}: there is no step {step} in an epoch of {count_of(table.samples, 'sample')} a rank; {right}"
        )
    step %= table.steps
    samples, marks = table.batch(rank, step)
    rows = [_place(listed, number) for number in samples.tolist()]
    for row, is_repeated in zip(rows, marks, strict=True):
        row["is_repeated"] = is_repeated
    if has_keys:
        _add_keys(listed, rows)
    worker = step % workers if workers else None
    if is_json:
        facts = {"epoch": epoch, "step": step, "steps": table.steps, "rank": rank, "world_size": world_size}
        print_json({**facts, "batch_size": batch_size, "worker": worker, "samples": rows})
        return
    by = f", by worker {worker} of {workers}" if workers else ""
    print(
        f"epoch {epoch}, step {step:,} of {table.steps:,}, rank {rank} of {world_size}: "
        f"{count_of(len(rows), 'sample')}{by}"
    )
    if len(rows) < batch_size:
        print("the last batch, which a loader with drop_last=True leaves out")
    print()
    columns = (">index", ">shard", ">row", *(("key",) if has_keys else ()), "url", "")
    print_table(columns, (_cells(row) for row in rows))


def show_readings(
    index: Index,
    samples: Annotated[
        list[str],
        typer.Argument(
            metavar="SAMPLE",
            help="Indices (7, -1: the last one) or keys. What is written like a number without leading zeros is an "
            "index.",
        ),
    ],
    is_key: Annotated[bool, typer.Option("--key", help="They are keys, even if written like numbers.")] = False,
    world_size: _World = 1,
    batch_size: _Batch = 1,
    epoch: _Epoch = 0,
    seed: _Seed = 0,
    chunksize: _Chunksize = 10_000,
    window: _Window = 4,
    lanes: _Lanes = None,
    tail: _Tail = "pad",
    shuffle: _IsShuffled = True,
    reshuffle: _Reshuffle = "fixed",
    num_samples: _Samples = "",
    workers: _Workers = 0,
    is_json: Json = False,
    may_fetch: _Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """When samples are read: by which rank, at which step of an epoch, at which place in the batch.

    For a DataLoader over a DistributedChunkedSampler with the same settings; steps count from the epoch's beginning.
    """
    from wids.cli.look.listed import Listed

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    found = listed.resolve(samples, is_key=is_key, is_first=False)
    order = _order(chunksize, window, lanes or world_size, seed, shuffle, reshuffle)
    table = _timetable(listed, order, num_samples, epoch=epoch, world=world_size, batch_size=batch_size, tail=tail)
    readings = table.find(number for numbers in found for number in numbers)
    rows = [
        {"sample": text, **_place(listed, number), "readings": [_reading(one, workers) for one in readings[number]]}
        for text, numbers in zip(samples, found, strict=True)
        for number in numbers
    ]
    if is_json:
        facts = {"epoch": epoch, "steps": table.steps, "world_size": world_size, "batch_size": batch_size}
        print_json({**facts, "samples": rows})
        return
    print(
        f"epoch {epoch}: {count_of(table.steps, 'step')} on each of {count_of(world_size, 'rank')}, "
        f"batch size {batch_size}"
    )
    print()
    columns = ("sample", ">index", ">rank", ">step", ">place", *((">worker",) if workers else ()), "")
    lines = [line for row in rows for line in _lines(row, has_workers=workers > 0)]
    print_table(columns, lines)


def _order(
    chunksize: int, window: int, lanes: int, seed: int, is_shuffled: bool, reshuffle: Reshuffle
) -> dict[str, Any]:
    """What the sampler's parameters are called by the plan of an epoch."""
    return {
        "chunksize": chunksize,
        "window": window,
        "lanes": lanes,
        "seed": seed,
        "is_shuffled": is_shuffled,
        "is_dealt": reshuffle == "epoch",
    }


def _timetable(
    listed: Listed, order: dict[str, Any], num_samples: str, *, epoch: int, world: int, batch_size: int, tail: Tail
) -> Timetable:
    from wids.order.epoch import Plan
    from wids.order.layout import ShardCounts
    from wids.order.schedule import Timetable

    lo, hi = _parse_samples(listed, num_samples)
    counts = ShardCounts(listed.shards.nsamples)
    plan = Plan(lo=lo, hi=hi, boundaries=counts.boundaries(lo, hi), **order)
    return Timetable(plan, epoch=epoch, world=world, batch_size=batch_size, tail=tail)


def _parse_samples(listed: Listed, text: str) -> tuple[int, int]:
    """``""``: all, ``N``: the first N, ``A:B``.

    Raises:
        typer.BadParameter: none of these. WidsError: not inside the dataset.
    """
    n = len(listed)
    if not text:
        return 0, n
    first, colon, last = text.partition(":")
    try:
        lo, hi = (int(first), int(last)) if colon else (0, int(first))
    except ValueError:
        raise typer.BadParameter(f"--num-samples {text!r} is neither a number nor a range A:B") from None
    if not 0 <= lo <= hi <= n:
        raise WidsError(f"{listed.name}: --num-samples {text} is not inside the dataset, which has {n:,} samples")
    return lo, hi


def _place(listed: Listed, index: int) -> dict[str, Any]:
    k, row = listed.locate(index)
    return {"index": index, "shard": k, "row": row, "url": listed.shards.urls[k]}


def _add_keys(listed: Listed, rows: list[dict[str, Any]]) -> None:
    """Give each place the key of the sample there, shard by shard."""
    for row in sorted(rows, key=lambda row: int(row["shard"])):
        row["key"] = listed.table(row["shard"]).key(row["row"])


def _cells(row: dict[str, Any]) -> list[str]:
    key = [printable(row["key"])] if "key" in row else []
    note = "repeated, to fill up the tail" if row["is_repeated"] else ""
    return [str(row["index"]), str(row["shard"]), str(row["row"]), *key, shown_url(row["url"]), note]


def _reading(reading: Reading, workers: int) -> dict[str, Any]:
    return {**reading._asdict(), "worker": reading.step % workers if workers else None}


def _lines(row: dict[str, Any], *, has_workers: bool) -> list[list[str]]:
    sample, index = printable(row["sample"]), str(row["index"])
    if not row["readings"]:
        return [[sample, index, "-", "-", "-", *(["-"] if has_workers else []), "not read in this epoch"]]
    return [
        [
            sample,
            index,
            *(str(reading[name]) for name in ("rank", "step", "place", *(["worker"] if has_workers else []))),
            "repeated, to fill up the tail" if reading["is_repeated"] else "",
        ]
        for reading in row["readings"]
    ]
