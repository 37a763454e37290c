"""``wids view``: save a part of a dataset as an index of its own."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from wids.core.place import Place
from wids.core.transport.session import PLAIN
from wids.tools.cli.format import count_of, parse_range, shown_path
from wids.tools.cli.options import CacheDir, Columns, Index, Overwrite, SessionFlag
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.saved_state import read_state

app: App = App()


@app.command(
    "view",
    epilog=examples(
        'wids view train.json --where "width >= 512" \\\n  --exclude opted-out.txt -o good.json',
        "wids view train.json --select :10000 -o first.json",
        "wids view train.json --unseen checkpoint.pt \\\n  --old before.json -o rest.json",
    ),
)
def run_view(
    index: Index,
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="The index to write.")],
    select: Annotated[
        str | None,
        typer.Option(
            "--select",
            metavar="A:B|FILE",
            help="These samples: A to B - 1, counted from 0; or a file of them, as for --exclude.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help='Of these, those for which it is true: "width >= 512", over the columns of `wids columns create`. '
            '"has_jpg and not has_txt" needs none.',
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="FILE",
            help="But not these: a text with a key a line, a .npy of indices or a mask, or a .jsonl of bad samples; "
            "repeatable.",
        ),
    ] = None,
    unseen: Annotated[
        str | None,
        typer.Option(
            "--unseen",
            metavar="FILE",
            help="Of these, those that the epoch of a state has not read: JSON, or a checkpoint of torch.save.",
            show_default=False,
        ),
    ] = None,
    old: Annotated[
        str | None,
        typer.Option("--old", metavar="INDEX", help="The index that the state was saved over.", show_default=False),
    ] = None,
    *,
    columns: Columns = None,
    overwrite: Overwrite = False,
    cache_dir: CacheDir = "",
    session: SessionFlag = PLAIN,
) -> None:
    """Save a part of a dataset as an index: which samples of which shards, and no data.

    The new index is taken wherever an index is. It names INDEX, and is refused once INDEX lists other shards. The
    member tables of all shards are read where keys are given.
    """
    if select is None and where is None and not exclude and unseen is None:
        raise typer.BadParameter("say which samples: --select, --where, --exclude, --unseen")
    if (unseen is None) != (old is None):
        raise typer.BadParameter("--unseen STATE and --old INDEX belong together: the state was saved over that index")
    if columns is not None and where is None:
        raise typer.BadParameter("--columns is for --where")
    from wids.core.files.replaced import ReplacedFile
    from wids.dataset import ShardListDataset

    path = Place(output).absolute.path
    is_of_itself = Place(index).is_local and Place(index).absolute.path == path
    file = ReplacedFile(path) if is_of_itself else None
    dataset = ShardListDataset(
        index, cache_dir=cache_dir or None, storage_options=session.storage_options, transformations=[], access="auto"
    )
    if columns is not None:
        dataset = dataset.with_columns(fields=False, place=columns)
    whole = len(dataset)
    if select is not None:
        is_file = os.path.isfile(select) or os.path.splitext(select)[1]
        dataset = dataset.select(select if is_file else parse_range(select, "--select", "samples"))
    if where is not None:
        dataset = dataset.where(where)
    for path in exclude or ():
        dataset = dataset.exclude(path)
    if unseen is not None and old is not None:
        then = ShardListDataset(old, cache_dir=cache_dir or None, storage_options=session.storage_options)
        dataset = dataset.unseen(read_state(unseen), old=then)
    dataset._save(output, overwrite=overwrite, file=file)  # noqa: SLF001 - as `save`
    shards = count_of(sum(map(bool, dataset.lengths)), "shard")
    print(f"{shown_path(os.path.abspath(output))}: {len(dataset):,} of {count_of(whole, 'sample')}, in {shards}")
