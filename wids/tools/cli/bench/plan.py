"""The plan of a measurement: the options of ``wids bench``, which its ranks are sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.tools.cli.format import parse_size
from wids.tools.cli.options import (  # typer reads the annotations
    BatchOptions,
    CacheDir,
    OrderOptions,
    parse_batch_size,
)

if TYPE_CHECKING:
    from wids.core.transport.session import Session

_JOB, _READING = "The job", "Reading"
_MAX, _MAX_RANKS, _MAX_WORKERS, _MAX_SECONDS = 10**12, 4096, 1024, 1e6


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The emulated job: its ranks, steps and loaders."""

    step: Annotated[
        float,
        typer.Option(
            min=1e-6, max=_MAX_SECONDS, metavar="S", help="Seconds of computing in a step.", rich_help_panel=_JOB
        ),
    ]
    batch_size: Annotated[
        Any,
        typer.Option(
            "--batch-size",
            parser=parse_batch_size,
            metavar="N|BUCKET=N,...",
            help="Samples in a rank's batch; with --max-tokens, --limit or --buckets: the most; with --pack-tokens: "
            "packs. Needed without them.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None
    ranks: Annotated[
        int,
        typer.Option(min=1, max=_MAX_RANKS, metavar="N", help="Processes, an accelerator each.", rich_help_panel=_JOB),
    ] = 1
    workers: Annotated[
        int,
        typer.Option(min=0, max=_MAX_WORKERS, metavar="N", help="DataLoader workers of a rank.", rich_help_panel=_JOB),
    ] = 0
    has_threads: Annotated[
        bool,
        typer.Option(
            "--threads",
            help="The workers are threads of the rank: wids.resumable(loader, workers='threads').",
            rich_help_panel=_JOB,
        ),
    ] = False
    prefetch_factor: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX_WORKERS,
            metavar="N",
            help="Batches that a worker makes ahead. Default: the DataLoader's.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None
    persistent_workers: Annotated[
        bool,
        typer.Option(
            "--persistent-workers/--no-persistent-workers",
            help="Workers live on between epochs.",
            rich_help_panel=_JOB,
        ),
    ] = False
    epochs: Annotated[int, typer.Option(min=1, max=_MAX, metavar="N", help="Epochs.", rich_help_panel=_JOB)] = 1
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX,
            metavar="N",
            help="Steps of a rank in each of the three passes, at most. Default: those of the epochs.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            min=0.001, max=_MAX_SECONDS, metavar="S", help="Seconds of each pass, at most.", rich_help_panel=_JOB
        ),
    ] = 30.0
    warmup: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MAX,
            metavar="N",
            help="Steps at the beginning of each epoch that do not count.",
            rich_help_panel=_JOB,
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class BenchReading:
    """Options of reading samples, and of their further way."""

    decode: Annotated[
        Literal["PIL", "numpy", "torch", "raw", "none"],
        typer.Option(help="The format of the fields (transformations=).", rich_help_panel=_READING),
    ] = "PIL"
    transform: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Applied to each decoded sample; modules of the current directory are found, too.",
            rich_help_panel=_READING,
        ),
    ] = ""
    collate: Annotated[
        str,
        typer.Option(
            metavar="default|list|MODULE:FUNCTION",
            help="What makes a batch: the DataLoader's default, or a list of the samples. Default: a list, with "
            "--transform default.",
            show_default=False,
            rich_help_panel=_READING,
        ),
    ] = ""
    access: Annotated[
        Literal["fetch", "range", "auto"],
        typer.Option(help="Remote shards are downloaded, or samples read by byte ranges.", rich_help_panel=_READING),
    ] = "fetch"
    cache_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that the cache may hold. Default: as many as the disk has.",
            show_default=False,
            rich_help_panel=_READING,
        ),
    ] = None
    cache_dir: CacheDir = ""


@dataclass(frozen=True)
class BenchPlan:
    """The plan for a rank; it travels to their processes."""

    index: str
    job: JobOptions
    reading: BenchReading
    order: OrderOptions
    batches: BatchOptions
    session: Session
