"""``wids view``: save a part of a dataset as an index of its own."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from wids.cli.format import count_of, parse_range, shown_path
from wids.cli.options import CacheDir, Index, StorageOptions, check_index


def run_view(
    index: Index,
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="The index to write.")],
    select: Annotated[
        str,
        typer.Option(
            "--select", metavar="A:B|FILE", help="These samples alone: a range of indices, or a .npy file of them."
        ),
    ] = "",
    where: Annotated[
        str,
        typer.Option(
            "--where", metavar="SQL", help='Those for which this is true, like "width >= 512" (wids columns create).'
        ),
    ] = "",
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="FILE",
            help="Not these: a text with a key a line, a .npy of indices, or a .jsonl of errors.",
        ),
    ] = None,
    cache_dir: CacheDir = "",
    storage_options: StorageOptions = None,
) -> None:
    """Save a part of a dataset as an index: which samples of which shards, and no data.

    The new index is taken wherever an index is. It names INDEX, and is refused once INDEX lists other shards. The
    member tables of all shards are read where keys are excluded.
    """
    from wids.dataset import ShardListDataset
    from wids.views import read_samples

    check_index(index)
    dataset = ShardListDataset(
        index, cache_dir=cache_dir or None, storage_options=storage_options, transformations=[], access="auto"
    )
    whole = len(dataset)
    if select.endswith(".npy"):
        dataset = dataset.select(read_samples(select))
    elif select:
        dataset = dataset.select(range(*parse_range(select, "--select", "samples").indices(whole)))
    if where:
        dataset = dataset.where(where)
    for path in exclude or ():
        dataset = dataset.exclude(path)
    dataset.save(output)
    shards = count_of(sum(map(bool, dataset.lengths)), "shard")
    print(f"{shown_path(os.path.abspath(output))}: {len(dataset):,} of {count_of(whole, 'sample')}, in {shards}")
