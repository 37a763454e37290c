"""Commands that look into a dataset: ``wids info``, ``ls``, ``show``, ``cat``, ``locate``, ``at``, ``when``.

Heavy modules are imported when a command runs, and torch only to decode a member that needs it. A command that needs
only member tables reads nothing else. Without ``--fetch`` a command downloads one remote shard at most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from wids.cli.options import INDEX_HELP, Index, Json, JsonLines, ReadFlags, with_option_groups
from wids.cli.plain_help import App, PlainCommand, examples
from wids.cli.progress import quiet

_NUMBER = re.compile(r"-[0-9]+(:.*)?")


class LookCommand(PlainCommand):
    """A command whose arguments may be negative numbers: ``wids show train.json -1``.

    Keys that come again and the like are what it looks for, and need no warning.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what looks like a negative number for an argument."""
        if any(map(_NUMBER.fullmatch, args)):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it without log lines."""
        with quiet():
            return super().invoke(ctx)


@dataclass(frozen=True)
class _InfoFlags(ReadFlags):
    may_fetch: Annotated[
        bool, typer.Option("--fetch", help="Download the first shard if the fields of its first sample need it.")
    ] = False


_Sample = Annotated[
    str,
    typer.Argument(
        metavar="SAMPLE",
        help="An index (7; -1 is the last sample) or a key. A number without leading zeros is an index.",
    ),
]
_IsKey = Annotated[bool, typer.Option("--key", help="SAMPLE is a key, even if it looks like a number.")]


app = App()


@app.command("info", cls=LookCommand, epilog=examples("wids info train.json", "wids info train.json val.json --json"))
@with_option_groups
def show_info(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help=INDEX_HELP)],
    flags: _InfoFlags,
    is_json: Json = False,
) -> None:
    """Summarize a dataset: name, shards, samples, bytes, sub-datasets, the fields of its first sample.

    Reads only the index and one member table. Several indexes are shown as a table, one line for each.
    """
    from wids.cli.look.info import show

    show(indexes, flags, is_json=is_json)


@app.command(
    "ls", cls=LookCommand, epilog=examples("wids ls train.json --range 1000:1020", "wids ls train.json --shards | head")
)
@with_option_groups
def list_samples(
    index: Index,
    flags: ReadFlags,
    shard: Annotated[
        int | None,
        typer.Option(metavar="K", help="Only shard K, counted from 0; -1 is the last one.", show_default=False),
    ] = None,
    span: Annotated[
        str, typer.Option("--range", metavar="A:B", help="Only samples A to B - 1. Also A:, :B and -10:.")
    ] = "",
    is_shards: Annotated[bool, typer.Option("--shards", help="List the shards instead of the samples.")] = False,
    is_json: JsonLines = False,
) -> None:
    """List the samples: index, shard, row in the shard, key, and the size in bytes of each field.

    Reads only member tables: of local shards, of cached shards, or from SHARD.widx beside a remote shard. Where the
    index has the names of classes, as `wids pack` gives them, labels of shards that are here are read and named, too.
    """
    if shard is not None and span:
        raise typer.BadParameter("--shard and --range both choose samples; give one of them")
    from wids.cli.look.listed import Listed
    from wids.cli.look.listing import list_rows, list_shards

    listed = Listed(index, flags)
    if is_shards:
        list_shards(listed, shard=shard, span=span, is_json=is_json)
    else:
        list_rows(listed, shard=shard, span=span, is_json=is_json)


@app.command(
    "show", cls=LookCommand, epilog=examples("wids show train.json 7", "wids show train.json 3 17:20 n01440764_10026")
)
@with_option_groups
def show_samples(
    index: Index,
    samples: Annotated[
        list[str],
        typer.Argument(
            metavar="SAMPLE",
            help="Indices (7; -1 is the last sample), ranges of them (3:10 is 3 to 9) or keys, in any order. A number "
            "without leading zeros is an index.",
        ),
    ],
    flags: ReadFlags,
    is_key: _IsKey = False,
    is_preview: Annotated[
        bool, typer.Option("--preview/--no-preview", help="Draw images, on a terminal with colours.")
    ] = True,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for programs; of several samples an object on each line.")
    ] = False,
) -> None:
    """Show samples: each field's type and size, image sizes, array shapes, the beginning of texts, small images.

    Where the index has the names of classes, as `wids pack` gives them, a label has its own. No code from a sample
    runs: a pickle is listed and not opened. With a damaged field the exit code is 1.
    """
    from wids.cli.look.listed import Listed
    from wids.cli.look.show import show

    listed = Listed(index, flags)
    show(listed, samples, is_key=is_key, is_preview=is_preview, is_json=is_json)


@app.command(
    "cat",
    cls=LookCommand,
    epilog=examples("wids cat train.json 7 .jpg > 7.jpg", "wids cat train.json 7 json | jq .label"),
)
@with_option_groups
def print_field(
    index: Index,
    sample: _Sample,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="The field: .jpg, or jpg.")],
    flags: ReadFlags,
    is_key: _IsKey = False,
    is_forced: Annotated[bool, typer.Option("--force", help="Write binary data even to a terminal.")] = False,
) -> None:
    """Write the bytes of one field to stdout, as they are in the shard."""
    from wids.cli.look.listed import Listed
    from wids.cli.look.show import write_field

    listed = Listed(index, flags)
    write_field(listed, sample, field, is_key=is_key, is_forced=is_forced)


@app.command("locate", cls=LookCommand, epilog=examples("wids locate train.json n01440764_10026 n01440764_10027"))
@with_option_groups
def locate_keys(
    index: Index,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of samples; a number is a key here.")],
    flags: ReadFlags,
    is_json: Json = False,
) -> None:
    """Find samples by key: the index, the shard and the row of each sample that has the key.

    For a key that no sample has, similar keys are shown, and the exit code is 1.
    """
    from wids.cli.look.listed import Listed
    from wids.cli.look.show import show_places

    listed = Listed(index, flags)
    show_places(listed, keys, is_json=is_json)
