"""The options of ``wids simulate``, by the panels of its help."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wids.errors import OutputError, SpecError
from wids.tools.cli.format import parse_size
from wids.tools.cli.options import ORDER_PANEL, OrderOptions, batch_size_option

if TYPE_CHECKING:
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.order.layout import SourceSpan
    from wids.tools.cli.simulate.report import Report

_JOB, _MACHINES, _RESULT = "The job", "Machines", "The result"

DEFAULT_BATCH = 32
# Each of them takes memory and time.
_MAX_RANKS, _MAX_SHARDS = 50_000, 4_000_000
# No job has more; beyond, numbers would overflow somewhere, and the message would be about that.
_MAX, _MAX_OF_A_RANK, _MAX_SECONDS = 10**12, 10_000, 1e6


def _option(panel: str, words: str, *names: str, **settings: Any) -> Any:
    usual = {"metavar": "N"} if "min" in settings else {}
    return typer.Option(*names, help=words, rich_help_panel=panel, **{**usual, **settings})


_job, _machines, _result = (partial(_option, panel) for panel in (_JOB, _MACHINES, _RESULT))


class Described(NamedTuple):
    """Shards that are simulated.

    Attributes:
        lengths: samples of each.
        sizes: bytes of each.
        parts: the sources, if the index is a mixture.
        collection: of an index.
    """

    lengths: list[int]
    sizes: list[int]
    parts: list[SourceSpan] | None
    collection: ShardCollection | None


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """Shards that are simulated without an index, or whose sizes it does not say."""

    shards: Annotated[int | None, _job("Shards, without an index.", min=1, max=_MAX_SHARDS)] = None
    samples: Annotated[int | None, _job("Samples in each of them.", min=1, max=_MAX)] = None
    shard_size: Annotated[
        int | None,
        _job(
            "Bytes of each of them, or of those whose size the index does not say.", parser=parse_size, metavar="SIZE"
        ),
    ] = None

    def find(self, index: str | None) -> Described:
        """The shards, as far as they are known.

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
        from wids.core.collection.joining import bytes_beside, list_companions
        from wids.core.collection.shard_collection import ShardCollection, load_shards, mixed_parts
        from wids.core.readers.provider import AutoProvider

        _, found, narrowed = load_shards(index)
        provider = AutoProvider(cache_dir=None, session=narrowed, **found.grouping)
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
        for companion in list_companions(found, session=narrowed, where=f"{index}: "):
            sizes = [size + round(more) for size, more in zip(sizes, bytes_beside(companion, found), strict=True)]
        return Described(list(found.lengths), sizes, mixed_parts(found), collection)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The job: its ranks, epochs, batches and loaders."""

    world_size: Annotated[int, _job("Ranks.", min=1, max=_MAX_RANKS)] = 1
    epochs: Annotated[int, _job("Epochs.", min=1, max=_MAX_RANKS)] = 1
    nbatches: Annotated[int | None, _job("Batches of a rank in an epoch, pass after pass.", min=1, max=_MAX)] = None
    repeat: Annotated[int, _job("Passes in an epoch, without a seam (epochs=).", min=1, max=_MAX)] = 1
    epoch_size: Annotated[int | None, _job("Samples of all ranks in an epoch (epoch_size=).", min=1, max=_MAX)] = None
    batch_size: Annotated[Any, batch_size_option(DEFAULT_BATCH, panel=_JOB)] = None
    workers: Annotated[int, _job("Loader workers of a rank.", min=0, max=_MAX_OF_A_RANK)] = 0
    step_seconds: Annotated[float, _job("Seconds of computing in a step.", min=0, max=_MAX_SECONDS, metavar="S")] = 0.1
    decode_seconds: Annotated[
        float,
        _job("Seconds a worker needs for a batch, once its shards are there.", min=0, max=_MAX_SECONDS, metavar="S"),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Nodes, their caches and links."""

    nodes: Annotated[int | None, _machines("Nodes that they are on.", min=1, max=_MAX_RANKS)] = None
    ranks_per_node: Annotated[
        int | None, _machines("Ranks of a node; default 8, if --nodes does not say.", min=1, max=_MAX_RANKS)
    ] = None
    cache_size: Annotated[
        int | None,
        _machines("Bytes that a node's cache may hold; default: no bound.", parser=parse_size, metavar="SIZE"),
    ] = None
    bandwidth: Annotated[float, _machines("MB a second that a node gets.", min=0.001, max=1e9, metavar="MB/S")] = 1000.0
    latency: Annotated[float, _machines("Milliseconds to a first byte.", min=0, max=_MAX_SECONDS, metavar="MS")] = 30.0
    connections: Annotated[int, _machines("Byte ranges of a rank under way at a time.", min=1, max=_MAX_OF_A_RANK)] = 8
    prefetch: Annotated[bool, _machines("Fetch shards ahead.", "--prefetch/--no-prefetch")] = True
    tables: Annotated[
        bool,
        _machines(
            "Member tables are published beside the shards; else a shard is read by byte ranges only once it was "
            "downloaded and evicted.",
            "--tables/--no-tables",
        ),
    ] = True
    early_reads: Annotated[
        bool,
        _machines(
            "Samples are read by byte ranges until their shard is cached (by workers only with --prefetch); else "
            "shards are waited for.",
            "--early-reads/--no-early-reads",
        ),
    ] = True
    ahead: Annotated[
        int | None, _machines("Bytes that a rank fetches ahead at most (prefetch=).", parser=parse_size, metavar="SIZE")
    ] = None

    def ranks_of_a_node(self, world_size: int) -> int:
        """Number of ranks of a node.

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
        _option(
            ORDER_PANEL, "Give each rank every world-size-th shard instead of a lane (ShardListSampler).", "--by-shards"
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """The output."""

    show_splits: Annotated[bool, _result("List the shards that several ranks read.", "--show-splits")] = False
    show_open: Annotated[bool, _result("Shards open at a time, by rank over steps.", "--show-open")] = False
    plot: Annotated[str | None, _result("Draw curves to this picture.", metavar="FILE")] = None
    html: Annotated[str | None, _result("Write all to this page.", metavar="FILE")] = None
    overwrite: Annotated[bool, _result("Replace files that this command did not write.", "--overwrite")] = False
    is_json: Annotated[bool, _result("Print JSON.", "--json")] = False

    def check(self, index: str | None) -> None:
        """Find out now, and not after a long simulation, whether files can be written.

        Raises:
            OutputError: one cannot. OutputExistsError: there is a file that is not to be replaced.
            DependencyError: matplotlib is not installed.
        """
        if self.html is not None:
            self._check_target(self.html, "page", index)
        if self.plot is not None:
            from wids.tools.cli.simulate.picture import check_picture

            self._check_target(self.plot, "picture", index)
            check_picture(self.plot)

    def write(self, report: Report) -> None:
        """Write the files that were asked for."""
        if self.plot is not None or self.html is not None:
            from wids.tools.cli.simulate.picture import save, write_page

            if self.plot is not None:
                save(report, os.path.expanduser(self.plot))
            if self.html is not None:
                write_page(report, os.path.expanduser(self.html))

    def _check_target(self, path: str, what: str, index: str | None) -> None:
        from wids.core.transport.upload import check_replaceable

        found = os.path.abspath(os.path.expanduser(path))
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
    """True if a page or picture has the title that this command gives them."""
    with open(path, "rb") as file:
        return b"wids simulate" in file.read()
