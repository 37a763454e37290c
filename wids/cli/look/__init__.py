"""Commands that look into a dataset: ``wids info``, ``ls``, ``show``, ``cat``, ``locate``, ``at``, ``when``.

Rules: this module is light; what is heavy is imported when a command runs, and torch only where a member needs it. What
needs no more than member tables reads no more. One remote shard is fetched if it must be; more with ``--fetch``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from wids.cli.look import schedule
from wids.cli.options import INDEX_HELP, CacheDir, Fetch, Index, Json, JsonLines, StorageOptions

_NUMBER = re.compile(r"-[0-9]+")


class _Numbers(TyperCommand):
    """A command whose arguments may be negative numbers: ``wids show train.json -1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(map(_NUMBER.fullmatch, args)):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)


_Sample = Annotated[
    str,
    typer.Argument(
        metavar="SAMPLE",
        help="An index (7, -1: the last one) or a key. A number without leading zeros is an index.",
    ),
]
_IsKey = Annotated[bool, typer.Option("--key", help="It is a key, even if it is written like a number.")]


def add_commands(app: typer.Typer) -> None:
    """Give the commands to the command line."""
    for name, run, examples in (
        ("info", show_info, ("wids info train.json", "wids info train.json val.json --json")),
        ("ls", list_samples, ("wids ls train.json --range 1000:1020", "wids ls train.json --shards | head")),
        ("show", show_sample, ("wids show train.json 7", "wids show 'train-{0000..0099}.tar' n01440764_10026")),
        ("cat", print_field, ("wids cat train.json 7 .jpg > 7.jpg", "wids cat train.json 7 json | jq .label")),
        ("locate", locate_keys, ("wids locate train.json n01440764_10026 n01440764_10027",)),
        ("at", schedule.show_batch, ("wids at train.json --rank 3 --world-size 8 --step 120 --batch-size 32",)),
        ("when", schedule.show_readings, ("wids when train.json 4711 --world-size 8 --batch-size 32 --epoch 2",)),
    ):
        told = "\n\n".join(f"`{example}`" for example in examples)
        app.command(name, cls=_Numbers, epilog=f"Example{'s' * (len(examples) > 1)}:\n\n{told}")(run)


def show_info(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help=INDEX_HELP)],
    is_json: Json = False,
    may_fetch: Annotated[
        bool, typer.Option("--fetch", help="If need be, fetch the first shard to tell the fields of its first sample.")
    ] = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """What is in a dataset: name, shards, samples, bytes, sub-datasets, the fields of its first sample.

    Nothing is read but the index and one member table. Of several indexes: a table, one line for each.
    """
    from wids.cli.look.info import show

    show(indexes, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options, is_json=is_json)


def list_samples(
    index: Index,
    shard: Annotated[
        int | None,
        typer.Option(metavar="K", help="Only shard K, counted from 0; -1: the last one.", show_default=False),
    ] = None,
    span: Annotated[
        str, typer.Option("--range", metavar="A:B", help="Only samples A to B - 1; also A:, :B, -10:.")
    ] = "",
    is_shards: Annotated[bool, typer.Option("--shards", help="List the shards instead of the samples.")] = False,
    is_json: JsonLines = False,
    may_fetch: Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """List the samples: index, shard, row in the shard, key, and the size in bytes of each field.

    Only member tables are read: of shards in place, of those in the cache, or from SHARD.widx beside a remote shard.
    """
    if shard is not None and span:
        raise typer.BadParameter("--shard and --range both choose samples; give one of them")
    from wids.cli.look.listed import Listed
    from wids.cli.look.listing import list_rows, list_shards

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    if is_shards:
        list_shards(listed, shard=shard, span=span, is_json=is_json)
    else:
        list_rows(listed, shard=shard, span=span, is_json=is_json)


def show_sample(
    index: Index,
    sample: _Sample,
    is_key: _IsKey = False,
    is_preview: Annotated[
        bool, typer.Option("--preview/--no-preview", help="Draw images, on a terminal that has colours.")
    ] = True,
    is_json: Json = False,
    may_fetch: Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """Show a sample: each field's type and size, image sizes, array shapes, how texts begin; and its images, small.

    Nothing of it is run: a pickle is named and not opened. A field that is damaged is told, with exit code 1.
    """
    from wids.cli.look.listed import Listed
    from wids.cli.look.show import show

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    show(listed, sample, is_key=is_key, is_preview=is_preview, is_json=is_json)


def print_field(
    index: Index,
    sample: _Sample,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="Which field: .jpg, or jpg.")],
    is_key: _IsKey = False,
    is_forced: Annotated[bool, typer.Option("--force", help="Write binary data even to a terminal.")] = False,
    may_fetch: Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """Write the bytes of one field to stdout, just as they are in the shard."""
    from wids.cli.look.listed import Listed
    from wids.cli.look.show import write_field

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    write_field(listed, sample, field, is_key=is_key, is_forced=is_forced)


def locate_keys(
    index: Index,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of samples, numbers too.")],
    is_json: Json = False,
    may_fetch: Fetch = False,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """Find samples by their keys: index, shard, and row in the shard of each; all of them where several have a key.

    Of a key that no sample has, the nearest ones are told, with exit code 1.
    """
    from wids.cli.look.listed import Listed
    from wids.cli.look.locate import show_places

    listed = Listed(index, cache_dir=cache_dir, may_fetch=may_fetch, storage_options=storage_options)
    show_places(listed, keys, is_json=is_json)
