"""``wids simulate``: how a training job would go on an index, before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wids.cli.format import parse_size

if TYPE_CHECKING:
    from wids.cli.simulate.report import Report

_JOB, _ORDER, _MACHINES, _RESULT = (
    "The job",
    "The order (defaults: DistributedChunkedSampler)",
    "Machines",
    "The result",
)

# So many are simulated at most: of each, something is kept in memory, and takes time.
_MOST_RANKS, _MOST_SHARDS = 50_000, 4_000_000
# No job has more; beyond, numbers would overflow somewhere, and the sentence would be about that.
_MOST, _MOST_OF_A_RANK, _MOST_SECONDS = 10**12, 10_000, 1e6


def run_simulate(
    index: Annotated[
        str | None,
        typer.Argument(help="URL or path of an index; or none, and --shards, --samples and --shard-size."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, max=_MOST_SHARDS, help="Shards, without an index.", rich_help_panel=_JOB)
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Samples in each of them.", rich_help_panel=_JOB)
    ] = None,
    shard_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes of each of them, or of those whose size the index does not say.",
            rich_help_panel=_JOB,
        ),
    ] = None,
    world_size: Annotated[int, typer.Option(min=1, max=_MOST_RANKS, help="Ranks.", rich_help_panel=_JOB)] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=_MOST_RANKS, help="Nodes that they are on.", rich_help_panel=_MACHINES)
    ] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_RANKS,
            help="Ranks of a node; default 8, if --nodes does not say.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, max=_MOST_RANKS, help="Epochs.", rich_help_panel=_JOB)] = 1,
    nbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST,
            help="Batches of a rank in an epoch, pass after pass (epoch_size=).",
            rich_help_panel=_JOB,
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=_MOST, help="Passes in an epoch, without a seam (epochs=).", rich_help_panel=_JOB),
    ] = 1,
    batch_size: Annotated[
        int, typer.Option(min=1, max=_MOST, help="Samples in a rank's batch.", rich_help_panel=_JOB)
    ] = 32,
    workers: Annotated[
        int, typer.Option(min=0, max=_MOST_OF_A_RANK, help="Loader workers of a rank.", rich_help_panel=_JOB)
    ] = 0,
    step_seconds: Annotated[
        float,
        typer.Option(min=0, max=_MOST_SECONDS, help="Seconds of computing in a step.", rich_help_panel=_JOB),
    ] = 0.1,
    decode_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            max=_MOST_SECONDS,
            help="Seconds a worker needs for a batch, once its shards are there.",
            rich_help_panel=_JOB,
        ),
    ] = 0.0,
    cache_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that a node's cache may hold; default: no bound.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    bandwidth: Annotated[
        float,
        typer.Option(
            min=0.001, max=1e9, metavar="MB/S", help="MB a second that a node gets.", rich_help_panel=_MACHINES
        ),
    ] = 1000.0,
    latency: Annotated[
        float,
        typer.Option(
            min=0, max=_MOST_SECONDS, metavar="MS", help="Milliseconds to a first byte.", rich_help_panel=_MACHINES
        ),
    ] = 30.0,
    connections: Annotated[
        int,
        typer.Option(
            min=1, max=_MOST_OF_A_RANK, help="Byte ranges of a rank under way at a time.", rich_help_panel=_MACHINES
        ),
    ] = 8,
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Fetch shards ahead.", rich_help_panel=_MACHINES)
    ] = True,
    ahead: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that a rank fetches ahead at most (prefetch=).",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    chunksize: Annotated[
        int, typer.Option(min=1, max=_MOST, help="Samples in a chunk.", rich_help_panel=_ORDER)
    ] = 10_000,
    window: Annotated[int, typer.Option(min=1, max=_MOST, help="Chunks mixed at a time.", rich_help_panel=_ORDER)] = 4,
    lanes: Annotated[
        int | None, typer.Option(min=1, max=_MOST, help="Lanes; default: the world size.", rich_help_panel=_ORDER)
    ] = None,
    tail: Annotated[
        Literal["pad", "drop", "mask"], typer.Option(help="What becomes of the rest.", rich_help_panel=_ORDER)
    ] = "pad",
    seed: Annotated[int, typer.Option(help="Of the order.", rich_help_panel=_ORDER)] = 0,
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Mix the order at all.", rich_help_panel=_ORDER)
    ] = True,
    reshuffle: Annotated[
        Literal["fixed", "epoch"],
        typer.Option(help="A lane keeps its part, or chunks are dealt anew in each epoch.", rich_help_panel=_ORDER),
    ] = "fixed",
    by_shards: Annotated[
        bool,
        typer.Option(
            "--by-shards",
            help="Give each rank every world-size-th shard instead of a lane (ShardListSampler).",
            rich_help_panel=_ORDER,
        ),
    ] = False,
    show_splits: Annotated[
        bool, typer.Option("--show-splits", help="List the shards that several ranks read.", rich_help_panel=_RESULT)
    ] = False,
    show_open: Annotated[
        bool, typer.Option("--show-open", help="Shards open at a time, by rank over steps.", rich_help_panel=_RESULT)
    ] = False,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw curves to this picture.", rich_help_panel=_RESULT)
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all to this page.", rich_help_panel=_RESULT)
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_RESULT)] = False,
) -> None:
    """Say how a training job would go: its batches, downloads, cache, stalls and mixing. No byte is read.

    The order and the choice of what leaves a cache are those of the library; time is a model of nodes, links and
    loaders. Exit code 1: the ranks have different numbers of batches, which hangs distributed training.

    `wids simulate index.json --world-size 64 --workers 8 --batch-size 256 --cache-size 2TB --bandwidth 1500`

    `wids simulate --shards 1000 --samples 10000 --shard-size 500MB --world-size 16 --html job.html`
    """
    import numpy as np

    from wids.cache.space import table_allowance
    from wids.cli.simulate.report import build, show
    from wids.simulate.job import Job

    if nodes is not None and ranks_per_node is not None and nodes * ranks_per_node < world_size:
        raise typer.BadParameter(f"{nodes} nodes of {ranks_per_node} ranks have no place for {world_size}")
    if ranks_per_node is None:
        ranks_per_node = min(world_size, 8) if nodes is None else -(-world_size // nodes)
    if ahead is not None and not prefetch:
        raise typer.BadParameter("--ahead and --no-prefetch contradict each other")
    _check_targets(plot, html)
    lengths, sizes = _find_shards(index, shards, samples, shard_size)
    try:
        job = Job(
            lengths=np.array(lengths, np.int64),
            sizes=np.array(sizes, np.int64),
            rooms=np.array(
                [size + table_allowance(size, length) for size, length in zip(sizes, lengths, strict=True)], np.int64
            ),
            world=world_size,
            ranks_per_node=ranks_per_node,
            epochs=epochs,
            batch_size=batch_size,
            workers=workers,
            chunksize=chunksize,
            window=window,
            lanes=lanes,
            seed=seed,
            is_shuffled=shuffle,
            is_dealt=reshuffle == "epoch",
            tail=tail,
            passes=repeat,
            nbatches=nbatches,
            is_by_shards=by_shards,
            cache_size=cache_size,
            bandwidth=bandwidth * 1e6,
            latency=latency / 1e3,
            step_seconds=step_seconds,
            decode_seconds=decode_seconds,
            prefetch=ahead if prefetch else 0,
            connections=connections,
        )
        report = build(job, name=index)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except OverflowError as error:
        raise typer.BadParameter(f"numbers as large as these cannot be simulated ({error})") from error
    show(report, is_json=is_json, has_splits=show_splits, has_open=show_open)
    _write(report, plot, html)
    if not report.is_equal:
        raise typer.Exit(1)


def _write(report: Report, plot: str | None, html: str | None) -> None:
    """Write the files that were asked for."""
    if plot is not None:
        from wids.cli.simulate.picture import save

        save(report, plot)
    if html is not None:
        from wids.cli.simulate.page import write

        write(report, html)


def _check_targets(plot: str | None, html: str | None) -> None:
    """Find out now, and not after a long simulation, whether files can be written.

    Raises:
        WidsError: one cannot.
    """
    if html is not None:
        _check_target(html)
    if plot is not None:
        from wids.cli.simulate.picture import check_picture

        _check_target(plot)
        check_picture(plot)


def _check_target(path: str) -> None:
    import os
    import tempfile

    from wids.errors import WidsError

    directory = os.path.dirname(os.path.abspath(path))
    if os.path.exists(path) and not os.path.isfile(path):
        raise WidsError(f"{path}: is a directory or a device, not a file; choose another name")
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise WidsError(
            f"{path}: no file can be made in {directory} ({error.strerror}); choose another place"
        ) from error


def _find_shards(
    index: str | None, shards: int | None, samples: int | None, size: int | None
) -> tuple[list[int], list[int]]:
    """Samples and bytes of each shard."""
    from wids.collection import load_shards
    from wids.errors import SpecError

    if index is None:
        if shards is None or samples is None or size is None:
            raise typer.BadParameter("give an INDEX, or --shards, --samples (in each shard) and --shard-size")
        return [samples] * shards, [size] * shards
    if shards is not None or samples is not None:
        raise typer.BadParameter("--shards and --samples are for where there is no INDEX")
    _, found, _ = load_shards(index)
    if any(count < 0 for count in found.nsamples):
        raise SpecError(
            f"{index}: it does not say how many samples its shards hold; write an index (wids index create)", path=""
        )
    missing = sum(known < 0 for known in found.filesizes)
    if missing and size is None:
        raise SpecError(
            f"{index}: {missing} of {len(found)} shards have no filesize; say how large they are with --shard-size",
            path="",
        )
    return list(found.nsamples), [(size or 0) if known < 0 else known for known in found.filesizes]
