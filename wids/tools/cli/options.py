"""The options and arguments that several commands share.

Nothing heavy is imported here. A parser reports a wrong value as `typer.BadParameter` (exit code 2), and never repeats
a value that may be secret. A command may take the dataclasses here, each field of which is an option.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.core.files import json_text
from wids.core.transport.session import PLAIN, Session
from wids.errors import JsonError
from wids.tools.cli.format import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.order.batch import Rule
    from wids.core.order.settings import SamplerSettings
    from wids.jobs.runner import RunOptions

    ReadColumn: TypeAlias = Callable[[str], Any]

ORDER_PANEL = "The order (defaults: DistributedChunkedSampler)"
_BATCH_PANEL = "Batches of like length or bucket (BucketBatchSampler)"
_PACK_PANEL = "Packs of documents (PackSampler)"
# Beyond, numbers would overflow somewhere; lanes are visited one by one.
_MAX, _MAX_LANES = 10**12, 1_000_000

INDEX_HELP = (
    "An index (URL or path), or tar files: a path, a directory, a brace pattern or glob in quotes, or a data set of "
    "the Hugging Face Hub (hf://datasets/ORG/NAME?split=SPLIT)."
)
Index = Annotated[str, typer.Argument(metavar="INDEX", help=INDEX_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="FILE",
        help="The table of columns, a path or URL. Default: beside INDEX.",
        show_default=False,
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")]
Overwrite = Annotated[
    bool,
    typer.Option("--overwrite", help="Replace a file that is there, also one that no such command wrote."),
]
RuleFlag = Annotated[
    Literal["first-dot", "last-dot"] | None,
    typer.Option(
        "--key-rule",
        help="The dot of a member's name where its key ends: with last-dot, v1.5.jpg is field .jpg of sample v1.5. "
        "Default: as the index says, else first-dot.",
        show_default=False,
    ),
]
GroupFlag = Annotated[
    Literal["adjacent", "key"] | None,
    typer.Option(
        "--group",
        help="key: members with one key are one sample, wherever they are in the shard. Default: as the index says, "
        "else adjacent.",
        show_default=False,
    ),
]
SamplesFlag = Annotated[
    int | None, typer.Option("--samples", min=1, metavar="N", help="Samples per shard at most. Default: 10000.")
]
SizeFlag = Annotated[
    Any, typer.Option("--size", parser=parse_size, metavar="SIZE", help="Bytes per shard at most: 200MB, 1GiB.")
]
CacheDir = Annotated[
    str,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="The cache directory for remote shards. Default: $WIDS_CACHE, else your own in the temporary directory.",
    ),
]
Shards = Annotated[
    str,
    typer.Option(
        "--shards", metavar="A:B", help="Only shards A to B - 1 of the index, counted from 0.", show_default=False
    ),
]


def parse_session(text: str | Session) -> Session:
    """Parse ``{"anon": true}``, or read ``@FILE`` with such an object in it; the default, a session, is as it is.

    Raises:
        typer.BadParameter: the text is not a JSON object, or the file cannot be read. The message has the position in
            the text and not the text, which may hold access keys.
    """
    if isinstance(text, Session):
        return text
    where = ""
    if text.startswith("@"):
        path = os.path.expanduser(text[1:])
        where = f"{path}: "
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise typer.BadParameter(f"{where}cannot be read ({why}); @FILE names a file with a JSON object") from None
    try:
        found = json_text.parse(text)
    except JsonError as error:
        raise typer.BadParameter(f"{where}not JSON ({error}); {_ADVICE}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"{where}a JSON {type(found).__name__}, not an object; {_ADVICE}")
    return Session(found)


_ADVICE = """write it like '{"anon": true}', or as @FILE with such an object in the file"""
SessionFlag = Annotated[
    Session,
    typer.Option(
        "--storage-options",
        parser=parse_session,
        metavar="JSON",
        envvar="WIDS_STORAGE_OPTIONS",
        show_default=False,
        help="""Options for fsspec, which opens URLs: '{"anon": true}', or @FILE with such an object in the file. """
        "A key that is a URL holds the options for that server.",
    ),
]


@dataclass(frozen=True)
class ReadFlags:
    """Options of reading remote shards."""

    may_fetch: Annotated[
        bool, typer.Option("--fetch", help="Download as many remote shards as needed. Default: one at most.")
    ] = False
    cache_dir: CacheDir = ""
    session: SessionFlag = PLAIN


@dataclass(frozen=True)
class RunFlags:
    """Options of running a command that works on many shards."""

    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, max=1024, metavar="N", show_default=False, help="Shards at a time."),
    ] = None
    engine: Annotated[
        Literal["auto", "local", "threads", "processes", "ray"],
        typer.Option("--engine", help="What does the work: this machine, or a Ray cluster whose nodes have wids."),
    ] = "auto"
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            metavar="ADDRESS",
            help="auto, HOST:PORT or ray://HOST:PORT. Default: $RAY_ADDRESS, else this machine.",
        ),
    ] = None

    def options(self) -> RunOptions:
        """The options for the library.

        Raises:
            typer.BadParameter: these do not go together.
        """
        if self.ray_address is not None and self.engine != "ray":
            raise typer.BadParameter("--ray-address goes with --engine ray")
        from wids.jobs.runner import RunOptions

        return RunOptions(jobs=self.jobs or None, engine=self.engine, ray_address=self.ray_address)


def values_option(words: str, *, panel: str) -> Any:
    """An option that has a value for each sample; `read_values` reads them."""
    return typer.Option(metavar="COLUMN|SQL|FILE.npy", help=words, show_default=False, rich_help_panel=panel)


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """The sampler whose order is asked for."""

    chunksize: Annotated[
        int, typer.Option(min=1, max=_MAX, metavar="N", help="Samples in a chunk.", rich_help_panel=ORDER_PANEL)
    ] = 10_000
    window: Annotated[
        int, typer.Option(min=1, max=_MAX, metavar="N", help="Chunks mixed at a time.", rich_help_panel=ORDER_PANEL)
    ] = 4
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX_LANES,
            metavar="L",
            help="Lanes. Default: as many as ranks; after a resume, as many as there were ranks before.",
            show_default=False,
            rich_help_panel=ORDER_PANEL,
        ),
    ] = None
    tail: Annotated[
        Literal["pad", "drop", "mask"],
        typer.Option(help="What becomes of the rest; drop is drop_last=True.", rich_help_panel=ORDER_PANEL),
    ] = "pad"
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order.", rich_help_panel=ORDER_PANEL)] = 0
    shuffle: Annotated[
        bool, typer.Option("--shuffle/--no-shuffle", help="Mix the order at all.", rich_help_panel=ORDER_PANEL)
    ] = True
    reshuffle: Annotated[
        Literal["fixed", "epoch"],
        typer.Option(help="A lane keeps its part, or chunks are dealt anew each epoch.", rich_help_panel=ORDER_PANEL),
    ] = "fixed"
    source_batch: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MAX,
            metavar="N",
            help="Of a mixture: samples in turn that a rank reads of one sub-dataset.",
            rich_help_panel=ORDER_PANEL,
        ),
    ] = 1
    weights: Annotated[
        str | None,
        values_option("How often samples come: a column of the index, or an array (n,).", panel=ORDER_PANEL),
    ] = None

    def read_weights(self, read: ReadColumn) -> Any:
        """The weights of all samples, (n,); None: none are given.

        Raises:
            InputError: the file holds no such array. WidsError: the column cannot be read.
        """
        return None if self.weights is None else read_values("--weights", self.weights, read)

    def settings(self, *, world_size: int, epoch_size: int | None) -> SamplerSettings:
        """The settings of the sampler of a rank.

        Raises:
            ValueError: see `SamplerSettings`.
        """
        from wids.core.order.settings import SamplerSettings

        return SamplerSettings(
            num_replicas=world_size,
            epoch_size=epoch_size,
            chunksize=self.chunksize,
            window=self.window,
            lanes=self.lanes or world_size,
            tail=self.tail,
            seed=self.seed,
            shuffle=self.shuffle,
            reshuffle=self.reshuffle,
            source_batch=self.source_batch,
        )


def parse_batch_size(text: str) -> int | dict[str, int]:
    """Parse ``32``, or ``BUCKET=32,BUCKET=16``.

    Raises:
        typer.BadParameter: it is neither, or a number below 1 or too large.
    """
    from wids.core.order.batching import parse_sizes
    from wids.errors import InputError

    try:
        return parse_sizes(text, most=_MAX)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def batch_size_option(default: int, *, panel: str | None = None) -> Any:
    """``--batch-size``, whose parser is `parse_batch_size`."""
    return typer.Option(
        "--batch-size",
        parser=parse_batch_size,
        metavar="N|BUCKET=N,...",
        show_default=False,
        help=f"Samples in a rank's batch. Default: {default}; with --max-tokens or --buckets: the most, or the most in "
        "each bucket, and by default any number; with --pack-tokens: packs, by default 1.",
        rich_help_panel=panel,
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The parameters of a `wids.BucketBatchSampler` or a `wids.PackSampler`; none of them: a loader's own batches."""

    lengths: Annotated[
        str | None,
        values_option(
            "A number for each sample: a column of the index, SQL over columns, or (n,).", panel=_BATCH_PANEL
        ),
    ] = None
    max_tokens: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="What a batch costs at most, in units of --lengths.",
            show_default=False,
            rich_help_panel=_BATCH_PANEL,
        ),
    ] = None
    cost: Annotated[
        Literal["padded", "sum"],
        typer.Option(help="A batch costs its longest x its count, or the sum.", rich_help_panel=_BATCH_PANEL),
    ] = "padded"
    buckets: Annotated[
        str | None, values_option("A word or number for each sample; a batch is of one.", panel=_BATCH_PANEL)
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=[VALUES:]N",
            help="One more budget: what a batch has at most of a column, --limit images=16, or of VALUES, as --lengths "
            "takes them: --limit 'crops=ceil(width / 448):125'. May be repeated.",
            show_default=False,
            rich_help_panel=_BATCH_PANEL,
        ),
    ] = None
    too_long: Annotated[
        Literal["error", "skip"],
        typer.Option(help="A sample that exceeds a budget alone: an error, or left out.", rich_help_panel=_BATCH_PANEL),
    ] = "error"
    block: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX,
            metavar="N",
            help="Samples of a lane that are cut into batches together. Default: some 64 batches, within a window.",
            show_default=False,
            rich_help_panel=_BATCH_PANEL,
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The table of columns, a path or URL. Default: beside INDEX.",
            show_default=False,
            rich_help_panel=_BATCH_PANEL,
        ),
    ] = None
    pack_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX,
            metavar="N",
            help="Documents are laid end to end, and cut into packs of N tokens, which --lengths counts.",
            show_default=False,
            rich_help_panel=_PACK_PANEL,
        ),
    ] = None
    cut: Annotated[
        bool, typer.Option("--cut/--no-cut", help="Documents are cut, or stay whole.", rich_help_panel=_PACK_PANEL)
    ] = True
    separators: Annotated[
        int, typer.Option(min=0, max=1, metavar="0|1", help="Tokens after a document.", rich_help_panel=_PACK_PANEL)
    ] = 0
    share: Annotated[
        Literal["samples", "tokens"],
        typer.Option(help="Of a mixture: what its weights are shares of.", rich_help_panel=_PACK_PANEL),
    ] = "samples"

    @property
    def has_batches(self) -> bool:
        """True if batches are not a loader's own."""
        return any(value is not None for value in (self.lengths, self.max_tokens, self.buckets, self.pack_tokens)) or (
            bool(self.limit)
        )

    def make_rule(
        self, batch_size: int | dict[str, int] | None, samples: int, read: ReadColumn, *, has_weights: bool = False
    ) -> Rule | None:
        """The rule of batches; None: a loader makes its own batches of ``batch_size``.

        Args:
            batch_size: as given.
            samples: of the dataset.
            read: a column, by its name.
            has_weights: another option reads a column, too.

        Raises:
            typer.BadParameter: options that do not go together. InputError: see `wids.BucketBatchSampler` and
                `wids.PackSampler`.
        """
        from wids.core.order.batching import make_rule
        from wids.core.order.packing import make_pack_rule

        if not self.has_batches:
            changed = [*self._changed("cost", "too_long", "block"), *self._changed("cut", "separators", "share")]
            if isinstance(batch_size, dict):
                changed = ["--batch-size BUCKET=N", *changed]
            if self.columns is not None and not has_weights:
                changed.append("--columns")
            if changed:
                of_packs = changed[0] in ("--no-cut", "--separators", "--share")
                words = (
                    "packs: give --pack-tokens"
                    if of_packs
                    else ("batches of like length: give --lengths, --buckets or --limit")
                )
                raise typer.BadParameter(f"{changed[0]} is for {words} too")
            return None
        arguments = self.arguments(batch_size, read)
        return (make_rule if self.pack_tokens is None else make_pack_rule)(samples, **arguments)

    def arguments(self, batch_size: int | dict[str, int] | None, read: ReadColumn) -> dict[str, Any]:
        """The arguments of a `wids.BucketBatchSampler`, or of a `wids.PackSampler` if there are ``pack_tokens``.

        Args:
            batch_size: as given.
            read: a column, by its name.

        Returns:
            All but the sampler and ``block``.

        Raises:
            typer.BadParameter: options that do not go together. InputError: values cannot be read.
        """
        from wids.core.order.batching import name_sizes
        from wids.core.order.budgets import parse_limit

        if self.buckets is None and isinstance(batch_size, dict):
            raise typer.BadParameter("--batch-size BUCKET=N goes with --buckets")
        if self.pack_tokens is not None:
            if other := self._changed("max_tokens", "cost", "buckets", "limit"):
                raise typer.BadParameter(
                    f"{other[0]} is for batches of like length, and --pack-tokens for packs; give one of them"
                )
            if self.lengths is None:
                raise typer.BadParameter("--pack-tokens counts tokens of --lengths, which is missing")
            lengths = read_values("--lengths", self.lengths, read)
            said = {name: getattr(self, name) for name in ("pack_tokens", "cut", "separators", "too_long", "share")}
            return {"lengths": lengths, "batch_size": batch_size or 1, **said}
        if other := self._changed("cut", "separators", "share"):
            raise typer.BadParameter(f"{other[0]} is for packs: give --pack-tokens too")
        if self.lengths is None and self.max_tokens is not None:
            raise typer.BadParameter("--max-tokens counts units of --lengths, which is missing: a column or FILE.npy")
        if self.max_tokens is None and batch_size is None and not self.limit:
            raise typer.BadParameter("how large may a batch be? Give --max-tokens, --limit or --batch-size")
        lengths = None if self.lengths is None else read_values("--lengths", self.lengths, read)
        buckets = None if self.buckets is None else read_values("--buckets", self.buckets, read)
        limits = dict(map(parse_limit, self.limit or ()))
        if len(limits) < len(self.limit or ()):
            raise typer.BadParameter("two --limit have the same name")
        return {
            "lengths": lengths,
            "max_tokens": self.max_tokens,
            "cost": self.cost,
            "buckets": buckets,
            "batch_size": name_sizes(batch_size, buckets),
            "too_long": self.too_long,
            "limits": {name: (read_values("--limit", values, read), most) for name, (values, most) in limits.items()},
        }

    def _changed(self, *names: str) -> list[str]:
        """The names of some options, as they are written: of those that differ from their defaults."""
        plain = BatchOptions()
        changed = [name for name in names if getattr(self, name) not in (getattr(plain, name), [])]
        return ["--no-cut" if name == "cut" else f"--{name.replace('_', '-')}" for name in changed]

    def reader_of(self, index: str, collection: ShardCollection, cache_dir: str) -> ReadColumn:
        """A function that reads a column of an index, or an SQL expression over columns."""

        def read(name: str) -> Any:
            from wids.columns.samples import beside

            return (
                beside(index, collection, cache_dir=cache_dir).at(self.columns, collection).evaluate(collection, name)
            )

        return read


def read_values(option: str, given: str, read: ReadColumn) -> Any:
    """A value for each sample: of an array in a file, of a column, or of an SQL expression over columns.

    Raises:
        InputError: the file holds no such array. WidsError: the column cannot be read, or the expression.
    """
    from wids.errors import ColumnsError, InputError, QueryError

    if not given.endswith(".npy"):
        try:
            return read(given)
        except (ColumnsError, InputError, QueryError) as error:
            raise type(error)(f"{option}: {error}", **vars(error)) from error
    import numpy as np

    try:
        return np.load(os.path.expanduser(given), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{given}: {option} cannot be read from it ({why}); numpy.save writes such a file") from error
