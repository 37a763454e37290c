"""``wids simulate``: how a training job would go on an index, before it is started."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.transport.session import PLAIN
from wids.tools.cli.options import BatchOptions
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.saved_state import ResumeOptions
from wids.tools.cli.simulate import options

if TYPE_CHECKING:
    from wids.core.order.batch import Rule
    from wids.tools.cli.options import ReadColumn
    from wids.tools.simulate.job import TrainingJob


app: App = App()


@app.command(
    "simulate",
    epilog=examples(
        "wids simulate index.json --world-size 64 --workers 8 \\\n  --batch-size 256 --cache-size 2TB --bandwidth 1500",
        "wids simulate --shards 1000 --samples 10000 \\\n  --shard-size 500MB --world-size 16 --html job.html",
        "wids simulate train.json --world-size 8 \\\n  --lengths tokens --max-tokens 32768",
    ),
)
def run_simulate(
    index: Annotated[
        str | None,
        typer.Argument(metavar="INDEX", help="An index, a path or URL; or --shards, --samples and --shard-size."),
    ] = None,
    *,
    described: options.ShardOptions,
    training: options.TrainingOptions,
    batches: BatchOptions,
    machines: options.MachineOptions,
    order: options.SamplerOptions,
    resume: ResumeOptions,
    result: options.ResultOptions,
) -> None:
    """Say how a training job would go: its batches, downloads, cache, stalls and mixing. No byte is read.

    The order and the choice of what leaves a cache are those of the library; time is a model of nodes, links and
    loaders. Of batches of like length (--max-tokens, --limit, --buckets) it says the padding and balance too, of packs
    (--pack-tokens) how full they are. Exit code 1: the ranks have different numbers of batches, which hangs distributed
    training. With --state: of the job that goes on from it, with --old over data that have changed.
    """
    from wids.tools.cli.simulate.report import build, show

    ranks_per_node = machines.ranks_of_a_node(training.world_size)
    result.check(index)
    shards = described.find(index)
    read = _reader_of(index, shards, batches)
    rule = batches.make_rule(training.batch_size, sum(shards.lengths), read, has_weights=order.weights is not None)
    weights = order.read_weights(read)
    try:
        job = _describe(shards, rule, batches.block, weights, training, machines, order, ranks_per_node)
        listed = None if shards.collection is None else shards.collection.shards
        job = replace(job, resume=resume.find(listed, PLAIN))
        report = build(job, name=index)
        if listed is not None and listed.header.get("companions"):
            report.notes.append("the bytes of companions come with the shards of the base")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OverflowError as error:
        raise typer.BadParameter(f"numbers as large as these cannot be simulated ({error})") from error
    show(report, is_json=result.is_json, has_splits=result.show_splits, has_open=result.show_open)
    result.write(report)
    if not report.is_equal:
        raise typer.Exit(1)


def _reader_of(index: str | None, shards: options.Described, batches: BatchOptions) -> ReadColumn:
    """A function that reads a column of the index, if there is one."""
    from wids.core.files.own_folder import default_cache_dir
    from wids.core.place import cache_directory

    def refuse(name: str) -> Any:
        raise typer.BadParameter(f"there is no INDEX that could have a column {name!r:.80}; give FILE.npy")

    if index is None or shards.collection is None:
        return refuse
    return batches.reader_of(index, shards.collection, cache_directory(default_cache_dir()))


def _describe(
    shards: options.Described,
    rule: Rule | None,
    block: int | None,
    weights: Any,
    training: options.TrainingOptions,
    machines: options.MachineOptions,
    order: options.SamplerOptions,
    ranks_per_node: int,
) -> TrainingJob:
    import numpy as np

    from wids.core.cache.space import table_allowance
    from wids.tools.simulate.job import TrainingJob

    lengths, sizes, parts, _ = shards
    tables = [table_allowance(size, length) for size, length in zip(sizes, lengths, strict=True)]
    return TrainingJob(
        lengths=np.array(lengths, np.int64),
        sizes=np.array(sizes, np.int64),
        footprints=np.array([size + table for size, table in zip(sizes, tables, strict=True)], np.int64),
        parts=None if parts is None else tuple(parts),
        source_batch=order.source_batch,
        world=training.world_size,
        ranks_per_node=ranks_per_node,
        epochs=training.epochs,
        batch_size=training.batch_size or options.DEFAULT_BATCH if rule is None else max(round(rule.per_batch), 1),
        workers=training.workers,
        chunksize=order.chunksize,
        window=order.window,
        lanes=order.lanes,
        seed=order.seed,
        shuffle=order.shuffle,
        reshuffle=order.reshuffle,
        tail=order.tail,
        weights=weights,
        passes=training.repeat,
        nbatches=training.nbatches,
        epoch_size=training.epoch_size,
        rule=rule,
        block=block,
        is_by_shards=order.by_shards,
        cache_size=machines.cache_size,
        bandwidth=machines.bandwidth * 1e6,
        latency=machines.latency / 1e3,
        step_seconds=training.step_seconds,
        decode_seconds=training.decode_seconds,
        prefetch=machines.ahead if machines.prefetch else 0,
        connections=machines.connections,
        has_tables=machines.tables,
        early_reads=machines.early_reads,
    )
