"""``wids at`` and ``wids when``: what a rank reads at a step of an epoch, and when a sample is read.

The defaults are those of `wids.samplers.DistributedChunkedSampler` and of a DataLoader. Nothing is downloaded for an
index that has counts, unless keys are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.files.terminal import progress
from wids.errors import SelectionError
from wids.tools.cli.format import count_of, print_json, print_table, printable, shown_url
from wids.tools.cli.look import LookCommand
from wids.tools.cli.options import BatchOptions, Index, Json, OrderOptions, ReadFlags, batch_size_option
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.saved_state import ResumeOptions

if TYPE_CHECKING:
    from wids.tools.cli.look.listed import Listed
    from wids.tools.simulate.resume import Resume
    from wids.tools.simulate.schedule import BatchTimetable, Reading, Timetable

# They are visited one by one.
_MAX_RANKS = 1_000_000
_PIECE_COLUMNS = (">pack", ">tokens")


app: App = App()


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(OrderOptions):
    """The job whose schedule is asked for: its ranks, its loader and its sampler."""

    world_size: Annotated[
        int, typer.Option("--world-size", min=1, max=_MAX_RANKS, metavar="W", help="How many ranks there are.")
    ] = 1
    batch_size: Annotated[Any, batch_size_option(1)] = None
    epoch: Annotated[int, typer.Option("--epoch", metavar="E", help="As in sampler.set_epoch(E).")] = 0
    num_samples: Annotated[
        str, typer.Option("--num-samples", metavar="N|A:B", help="The sampler's num_samples. Default: all of them.")
    ] = ""
    epoch_size: Annotated[
        int | None,
        typer.Option(
            "--epoch-size",
            min=1,
            metavar="N",
            help="The sampler's epoch_size. Default: none; of a mixture, the samples of all its sub-datasets.",
            show_default=False,
        ),
    ] = None
    workers: Annotated[
        int,
        typer.Option("--workers", min=0, metavar="N", help="The DataLoader's num_workers: tells which one reads it."),
    ] = 0

    def timetable(self, listed: Listed, batches: BatchOptions, resume: Resume | None) -> Timetable | BatchTimetable:
        """The readings of an epoch.

        Raises:
            typer.BadParameter: ``num_samples`` is no number or range, or of a mixture; there is no such nominal epoch;
                options of batches that do not go together.
            SelectionError: ``num_samples`` is not inside the dataset. InputError: see `wids.BucketBatchSampler` and
                `wids.PackSampler`.
        """
        from wids.core.order.layout import ShardCounts
        from wids.tools.simulate.schedule import make_timetable

        parts = listed.mixed_parts()
        if parts is not None and self.num_samples:
            raise typer.BadParameter(
                f"--num-samples {self.num_samples} of a mixture, which has its own sub-datasets; make a view of it"
            )
        read = listed.reader_of(batches)
        rule = batches.make_rule(self.batch_size, len(listed), read, has_weights=self.weights is not None)
        weights = self.read_weights(read)
        span = _parse_samples(listed, self.num_samples) if self.num_samples else None
        try:
            with progress() as bar:
                return make_timetable(
                    ShardCounts(listed.shards.lengths),
                    parts,
                    self.settings(world_size=self.world_size, epoch_size=self.epoch_size),
                    span=span,
                    weights=weights,
                    epoch=self.epoch,
                    batch_size=self.batch_size or 1 if rule is None else 1,
                    rule=rule,
                    block=batches.block,
                    resume=resume,
                    on_block=lambda done, total: bar.update(done, total=total, words="batches are cut"),
                )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    def worker_of(self, step: int) -> int | None:
        """The loader worker that reads the batch of a step; None: the process itself."""
        return step % self.workers if self.workers else None


@app.command(
    "at",
    cls=LookCommand,
    epilog=examples("wids at train.json --rank 3 --world-size 8 \\\n  --step 120 --batch-size 32"),
)
def show_batch(
    index: Index,
    step: Annotated[int, typer.Option("--step", metavar="S", help="Which batch, from 0; -1: the last one.")],
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="R", help="Of which rank; of one, 0.", show_default=False)
    ] = None,
    *,
    schedule: ScheduleOptions,
    batches: BatchOptions,
    resume: ResumeOptions,
    has_keys: Annotated[
        bool, typer.Option("--keys", help="Tell the keys, too; that takes the shards' tables.")
    ] = False,
    flags: ReadFlags,
    is_json: Json = False,
) -> None:
    """Show which samples made up a batch: of which rank, at which step of which epoch.

    For a DataLoader over a DistributedChunkedSampler with the same settings; steps count from the epoch's beginning.
    With --max-tokens, --limit or --buckets: over a BucketBatchSampler; with --pack-tokens: over a PackSampler, which
    pieces of which samples. With --state and --old: steps count from where the epoch goes on over the changed data.
    """
    world_size = schedule.world_size
    if rank is None and world_size > 1:
        raise typer.BadParameter(f"--rank is missing: of {world_size} ranks, which one?")
    rank = rank or 0
    if rank >= world_size:
        raise typer.BadParameter(f"--rank {rank}: of {world_size} ranks, the last one is {world_size - 1}")
    from wids.tools.cli.look.listed import Listed
    from wids.tools.simulate.schedule import Timetable

    listed = Listed(index, flags)
    table = schedule.timetable(listed, batches, resume.find(listed.counted(), flags.session))
    if not -table.steps <= step < table.steps:
        right = f"steps are 0 to {table.steps - 1} (-1 is the last one)" if table.steps else "it has none"
        raise SelectionError(
            f"{index}: there is no step {step} in an epoch of {count_of(table.steps, 'step')} a rank; {right}"
        )
    step %= table.steps
    rows = _rows_of(listed, table, rank, step)
    if has_keys:
        _add_keys(listed, rows)
    worker = schedule.worker_of(step)
    if is_json:
        position = {"epoch": table.epoch, "step": step, "steps": table.steps, "rank": rank, "world_size": world_size}
        print_json({**position, **_sizes_of(table, schedule), "worker": worker, "samples": rows})
        return
    by = "" if worker is None else f", by worker {worker} of {schedule.workers}"
    print(f"epoch {table.epoch}, step {step:,} of {table.steps:,}, rank {rank} of {world_size}: {_count(rows)}{by}")
    if isinstance(table, Timetable) and len(rows) < table.batch_size:
        print("the last batch, which a loader with drop_last=True leaves out")
    _say_too_long(table)
    print()
    pieces = _PIECE_COLUMNS if table.has_packs else ()
    columns = (">index", ">shard", ">row", *(("key",) if has_keys else ()), *pieces, "url", "")
    print_table(columns, (_cells(row) for row in rows))


@app.command(
    "when", cls=LookCommand, epilog=examples("wids when train.json 4711 --world-size 8 \\\n  --batch-size 32 --epoch 2")
)
def show_readings(
    index: Index,
    samples: Annotated[
        list[str],
        typer.Argument(
            metavar="SAMPLE",
            help="Indices (7, -1: the last one) or keys. A number without leading zeros is an index.",
        ),
    ],
    is_key: Annotated[bool, typer.Option("--key", help="They are keys, even if written like numbers.")] = False,
    *,
    schedule: ScheduleOptions,
    batches: BatchOptions,
    resume: ResumeOptions,
    flags: ReadFlags,
    is_json: Json = False,
) -> None:
    """Show when samples are read: by which rank, at which step of an epoch, at which place in the batch.

    For a DataLoader over a DistributedChunkedSampler with the same settings; steps count from the epoch's beginning.
    With --max-tokens, --limit or --buckets: over a BucketBatchSampler; with --pack-tokens: over a PackSampler, for each
    piece of a sample. With --state and --old: steps count from where the epoch goes on over the changed data.
    """
    from wids.tools.cli.look.listed import Listed
    from wids.tools.simulate.schedule import Timetable

    listed = Listed(index, flags)
    found = listed.resolve(samples, is_key=is_key, is_first=False)
    table = schedule.timetable(listed, batches, resume.find(listed.counted(), flags.session))
    readings = table.find(number for numbers in found for number in numbers)
    rows = [
        {"sample": text, **listed.place(number), "readings": [_reading(one, schedule) for one in readings[number]]}
        for text, numbers in zip(samples, found, strict=True)
        for number in numbers
    ]
    if is_json:
        position = {"epoch": table.epoch, "steps": table.steps, "world_size": table.world}
        print_json({**position, **_sizes_of(table, schedule), "samples": rows})
        return
    size = f", batch size {table.batch_size}" if isinstance(table, Timetable) else ""
    print(f"epoch {table.epoch}: {count_of(table.steps, 'step')} on each of {count_of(table.world, 'rank')}{size}")
    _say_too_long(table)
    print()
    has_workers, pieces = schedule.workers > 0, _PIECE_COLUMNS if table.has_packs else ()
    columns = ("sample", ">index", ">rank", ">step", ">place", *((">worker",) if has_workers else ()), *pieces, "")
    lines = [_lines(row, has_workers=has_workers, has_packs=table.has_packs) for row in rows]
    print_table(columns, [line for of_sample in lines for line in of_sample])


def _parse_samples(listed: Listed, text: str) -> tuple[int, int]:
    """``N``: the first N, ``A:B``.

    Raises:
        typer.BadParameter: none of these. SelectionError: not inside the dataset.
    """
    n = len(listed)
    first, _, last = text.rpartition(":")
    try:
        lo, hi = int(first or 0), int(last)
    except ValueError:
        raise typer.BadParameter(f"--num-samples {text!r} is neither a number nor a range A:B") from None
    if not 0 <= lo <= hi <= n:
        raise SelectionError(f"{listed.name}: --num-samples {text} is not inside the dataset, which has {n:,} samples")
    return lo, hi


def _sizes_of(table: Timetable | BatchTimetable, schedule: ScheduleOptions) -> dict[str, Any]:
    """The batch size: a number, the most of each bucket, or None: only the budget; and the omitted samples."""
    size = getattr(table, "batch_size", schedule.batch_size)
    too_long = getattr(table, "too_long", None)
    return {"batch_size": size, **({} if too_long is None else {"too_long": too_long})}


def _say_too_long(table: Timetable | BatchTimetable) -> None:
    if too_long := getattr(table, "too_long", 0):
        why = "longer than --max-tokens, in no batch"
        if table.has_packs:
            why = "without a token, or longer than --pack-tokens, in no pack"
        print(f"{count_of(too_long, 'sample')} of the dataset {why}")


def _rows_of(listed: Listed, table: Timetable | BatchTimetable, rank: int, step: int) -> list[dict[str, Any]]:
    """The samples of a batch, or their pieces."""
    samples, marks = table.batch(rank, step)
    rows = [
        {**listed.place(number), "is_repeated": is_repeated}
        for number, is_repeated in zip(samples.tolist(), marks, strict=True)
    ]
    for row, piece in zip(rows, table.pieces(rank, step), strict=table.has_packs):
        row.update(piece.told())
    return rows


def _count(rows: list[dict[str, Any]]) -> str:
    """The size of a batch in words."""
    if not rows or "piece" not in rows[0]:
        return count_of(len(rows), "sample")
    tokens = sum(row["piece"][1] - row["piece"][0] for row in rows)
    packs, pieces = count_of(rows[-1]["pack"] + 1, "pack"), count_of(len(rows), "piece")
    return f"{packs}, {pieces} of {count_of(len({row['index'] for row in rows}), 'sample')}, {tokens:,} tokens"


def _add_keys(listed: Listed, rows: list[dict[str, Any]]) -> None:
    """Give each place the key of the sample there, shard by shard."""
    for row in sorted(rows, key=lambda row: int(row["shard"])):
        row["key"] = listed.table(row["shard"]).key(row["row"])


def _cells(row: dict[str, Any]) -> list[str]:
    key = [printable(row["key"])] if "key" in row else []
    where = [str(row["index"]), str(row["shard"]), str(row["row"]), *key, *_piece_cells(row)]
    return [*where, shown_url(row["url"]), _note(row)]


def _piece_cells(row: dict[str, Any]) -> list[str]:
    if "piece" not in row:
        return []
    first, last = row["piece"]
    return [str(row["pack"]), f"{first:,} to {last:,} of {row['length']:,}"]


def _reading(reading: Reading, schedule: ScheduleOptions) -> dict[str, Any]:
    return {**reading.told(), "worker": schedule.worker_of(reading.step)}


def _lines(row: dict[str, Any], *, has_workers: bool, has_packs: bool) -> list[list[str]]:
    names = ("rank", "step", "place", *(("worker",) if has_workers else ()))
    first = [printable(row["sample"]), str(row["index"])]
    if not row["readings"]:
        none = ["-"] * (len(names) + has_packs * len(_PIECE_COLUMNS))
        return [[*first, *none, "not read in this epoch"]]
    return [
        [*first, *(str(reading[name]) for name in names), *_piece_cells(reading), _note(reading)]
        for reading in row["readings"]
    ]


def _note(place: dict[str, Any]) -> str:
    return "repeated, to fill up the tail" if place["is_repeated"] else ""
