"""The options of ``wids simulate``, by the panels of its help."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wids.cli.format import parse_size
from wids.cli.options import ORDER_PANEL, OrderOptions, batch_size_option
from wids.errors import OutputError, SpecError

if TYPE_CHECKING:
    from wids.cli.simulate.report import Report
    from wids.collection.shard_collection import ShardCollection
    from wids.order.mixture import SourceSpan

_JOB, _MACHINES, _RESULT = "The job", "Machines", "The result"

DEFAULT_BATCH = 32
# Each of them takes memory and time.
_MAX_RANKS, _MAX_SHARDS = 50_000, 4_000_000
# No job has more; beyond, numbers would overflow somewhere, and the message would be about that.
_MAX, _MAX_OF_A_RANK, _MAX_SECONDS = 10**12, 10_000, 1e6


class Described(NamedTuple):
    """Shards that are simulated.

    Attributes:
        lengths: samples of each. sizes: bytes of each. parts: the sources, if the index is a mixture.
        collection: of an index.
    """

    lengths: list[int]
    sizes: list[int]
    parts: list[SourceSpan] | None
    collection: ShardCollection | None


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Shards that are simulated without an index, or whose sizes it does not say."""

    shards: Annotated[
        int | None, typer.Option(min=1, max=_MAX_SHARDS, help="Shards, without an index.", rich_help_panel=_JOB)
    ] = None
    samples: Annotated[
        int | None, typer.Option(min=1, max=_MAX, help="Samples in each of them.", rich_help_panel=_JOB)
    ] = None
    shard_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes of each of them, or of those whose size the index does not say.",
            rich_help_panel=_JOB,
        ),
    ] = None

    def find(self, index: str | None) -> Described:
        """What there is of the shards.

        Raises:
            typer.BadParameter: there is neither an index nor a description of shards, or both.
            SpecError: the index has no counts, or no sizes, or bad weights.
        """
        if index is None:
            if self.shards is None or self.samples is None or self.shard_size is None:
                raise typer.BadParameter("give an INDEX, or --shards, --samples (in each shard) and --shard-size")
            return Described([self.samples] * self.shards, [self.shard_size] * self.shards, None, None)
        if self.shards is not None or self.samples is not None:
            raise typer.BadParameter("--shards and --samples are for where there is no INDEX")
        from wids.collection.shard_collection import ShardCollection, load_shards, mixed_parts
        from wids.readers.provider import AutoProvider

        _, found, narrowed = load_shards(index)
        provider = AutoProvider(cache_dir=None, session=narrowed)
        collection = ShardCollection(found, provider, capacity=1)
        collection.count_unknown(has_sizes=True)
        found = collection.shards
        missing = sum(known < 0 for known in found.filesizes)
        if missing and self.shard_size is None:
            raise SpecError(
                f"{index}: {missing} of {len(found)} shards have no filesize; say how large they are with --shard-size",
                path="",
            )
        sizes = [(self.shard_size or 0) if known < 0 else known for known in found.filesizes]
        return Described(list(found.lengths), sizes, mixed_parts(found), collection)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The job: its ranks, epochs, batches and loaders."""

    world_size: Annotated[int, typer.Option(min=1, max=_MAX_RANKS, help="Ranks.", rich_help_panel=_JOB)] = 1
    epochs: Annotated[int, typer.Option(min=1, max=_MAX_RANKS, help="Epochs.", rich_help_panel=_JOB)] = 1
    nbatches: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX,
            help="Batches of a rank in an epoch, pass after pass.",
            rich_help_panel=_JOB,
        ),
    ] = None
    repeat: Annotated[
        int,
        typer.Option(min=1, max=_MAX, help="Passes in an epoch, without a seam (epochs=).", rich_help_panel=_JOB),
    ] = 1
    epoch_size: Annotated[
        int | None,
        typer.Option(min=1, max=_MAX, help="Samples of all ranks in an epoch (epoch_size=).", rich_help_panel=_JOB),
    ] = None
    batch_size: Annotated[Any, batch_size_option(DEFAULT_BATCH, panel=_JOB)] = None
    workers: Annotated[
        int, typer.Option(min=0, max=_MAX_OF_A_RANK, help="Loader workers of a rank.", rich_help_panel=_JOB)
    ] = 0
    step_seconds: Annotated[
        float,
        typer.Option(min=0, max=_MAX_SECONDS, help="Seconds of computing in a step.", rich_help_panel=_JOB),
    ] = 0.1
    decode_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            max=_MAX_SECONDS,
            help="Seconds a worker needs for a batch, once its shards are there.",
            rich_help_panel=_JOB,
        ),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Nodes, their caches and links."""

    nodes: Annotated[
        int | None, typer.Option(min=1, max=_MAX_RANKS, help="Nodes that they are on.", rich_help_panel=_MACHINES)
    ] = None
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX_RANKS,
            help="Ranks of a node; default 8, if --nodes does not say.",
            rich_help_panel=_MACHINES,
        ),
    ] = None
    cache_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that a node's cache may hold; default: no bound.",
            rich_help_panel=_MACHINES,
        ),
    ] = None
    bandwidth: Annotated[
        float,
        typer.Option(
            min=0.001, max=1e9, metavar="MB/S", help="MB a second that a node gets.", rich_help_panel=_MACHINES
        ),
    ] = 1000.0
    latency: Annotated[
        float,
        typer.Option(
            min=0, max=_MAX_SECONDS, metavar="MS", help="Milliseconds to a first byte.", rich_help_panel=_MACHINES
        ),
    ] = 30.0
    connections: Annotated[
        int,
        typer.Option(
            min=1, max=_MAX_OF_A_RANK, help="Byte ranges of a rank under way at a time.", rich_help_panel=_MACHINES
        ),
    ] = 8
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Fetch shards ahead.", rich_help_panel=_MACHINES)
    ] = True
    tables: Annotated[
        bool,
        typer.Option(
            "--tables/--no-tables",
            help="Member tables are published beside the shards; else a shard is read by byte ranges only once it was "
            "downloaded and evicted.",
            rich_help_panel=_MACHINES,
        ),
    ] = True
    early_reads: Annotated[
        bool,
        typer.Option(
            "--early-reads/--no-early-reads",
            help="Samples are read by byte ranges until their shard is cached (by workers only with --prefetch); else "
            "shards are waited for.",
            rich_help_panel=_MACHINES,
        ),
    ] = True
    ahead: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that a rank fetches ahead at most (prefetch=).",
            rich_help_panel=_MACHINES,
        ),
    ] = None

    def ranks_of_a_node(self, world_size: int) -> int:
        """How many ranks a node has.

        Raises:
            typer.BadParameter: there are too few places for all ranks, or ``ahead`` without prefetching.
        """
        nodes, own = self.nodes, self.ranks_per_node
        if self.ahead is not None and not self.prefetch:
            raise typer.BadParameter("--ahead and --no-prefetch contradict each other")
        if own is None:
            return min(world_size, 8) if nodes is None else -(-world_size // nodes)
        if nodes is not None and nodes * own < world_size:
            raise typer.BadParameter(f"{nodes} nodes of {own} ranks have no place for {world_size}")
        return own


@dataclass(frozen=True, kw_only=True)
class SamplerOptions(OrderOptions):
    """The sampler, of either kind."""

    by_shards: Annotated[
        bool,
        typer.Option(
            "--by-shards",
            help="Give each rank every world-size-th shard instead of a lane (ShardListSampler).",
            rich_help_panel=ORDER_PANEL,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """The output."""

    show_splits: Annotated[
        bool, typer.Option("--show-splits", help="List the shards that several ranks read.", rich_help_panel=_RESULT)
    ] = False
    show_open: Annotated[
        bool, typer.Option("--show-open", help="Shards open at a time, by rank over steps.", rich_help_panel=_RESULT)
    ] = False
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw curves to this picture.", rich_help_panel=_RESULT)
    ] = None
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all to this page.", rich_help_panel=_RESULT)
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace files that this command did not write.", rich_help_panel=_RESULT),
    ] = False
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_RESULT)] = False

    def check(self, index: str | None) -> None:
        """Find out now, and not after a long simulation, whether files can be written.

        Raises:
            OutputError: one cannot. OutputExistsError: there is a file that is not to be replaced.
            DependencyError: matplotlib is not installed.
        """
        if self.html is not None:
            self._check_target(self.html, "page", index)
        if self.plot is not None:
            from wids.cli.simulate.picture import check_picture

            self._check_target(self.plot, "picture", index)
            check_picture(self.plot)

    def write(self, report: Report) -> None:
        """Write the files that were asked for."""
        if self.plot is not None:
            from wids.cli.simulate.picture import save

            save(report, self.plot)
        if self.html is not None:
            from wids.cli.simulate.page import write

            write(report, self.html)

    def _check_target(self, path: str, what: str, index: str | None) -> None:
        from wids.transport.upload import check_replaceable

        found = os.path.abspath(path)
        directory = os.path.dirname(found)
        if os.path.exists(found) and not os.path.isfile(found):
            raise OutputError(f"{path}: is a directory or a device, not a file; choose another name", path=path)
        try:
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise OutputError(
                f"{path}: no file can be made in {directory} ({error.strerror}); choose another place", path=path
            ) from error
        inputs = [] if index is None else [(index, "the index itself")]
        kind = f"{what} of `wids simulate`"
        check_replaceable(found, kind, _is_written, inputs=inputs, overwrite=self.overwrite)


def _is_written(path: str) -> bool:
    """Whether a page or picture has the title that this command gives them."""
    with open(path, "rb") as file:
        return b"wids simulate" in file.read()
