"""``wids index``: make the index of a dataset, keep it up to date, merge, split, move and compile it, pack its tables.

This module is light; heavy ones are imported when a command runs, and torch never. The work is done by
`wids.jobs.index_create`, `wids.jobs.index_edit` and `wids.jobs.index_tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from wids.cli.options import Json, Overwrite, RunFlags, SessionFlag, with_option_groups
from wids.cli.plain_help import App
from wids.transport.session import PLAIN

app = App(help="Make indexes of shards; update, merge, split, move and compile them, pack their member tables.")

_Output = Annotated[str, typer.Option("-o", "--output", metavar="INDEX", help="The index to write.")]
_Name = Annotated[
    str | None, typer.Option("--name", "-n", help="Name of the dataset; default: from -o.", show_default=False)
]


@dataclass(frozen=True)
class ScanFlags:
    """How shards are read."""

    has_md5: Annotated[
        bool,
        typer.Option("--md5", help="With checksums: md5 and CRC-32. All bytes are read then, of remote ones too."),
    ] = False
    checksums: Annotated[
        bool | None,
        typer.Option(
            "--checksums/--no-checksums",
            help="A CRC-32 of each shard, or of none. Default: of local shards, which are read whole for it, and of "
            "remote ones that are read whole anyway.",
            show_default=False,
        ),
    ] = None
    has_tables: Annotated[
        bool,
        typer.Option(
            "--members",
            help="Publish each shard's member table beside it (SHARD.widx), or beside the index where that cannot be "
            "written. With it, a remote sample can be read without fetching its shard.",
        ),
    ] = False
    is_skipping: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out shards that cannot be read, and list them.")
    ] = False
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--counts",
            metavar="FILE",
            help="sizes.json, *_stats.json (img2dataset), or a directory of them: shards that have a count there are "
            "not read. A wrong one is an error when the shard is opened. Repeatable.",
        ),
    ] = None
    session: SessionFlag = PLAIN


@dataclass(frozen=True)
class TablesFlags:
    """How member tables are packed."""

    is_skipping: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out shards that cannot be read, and list them.")
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file of this name that is not the index's own pack.")
    ] = False
    session: SessionFlag = PLAIN


_Index = Annotated[str, typer.Argument(metavar="INDEX", help="The index: a path or URL.")]


@app.command("create")
@with_option_groups
def create_index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE", help="Tars, directories, globs, brace patterns, URLs, prefixes; - reads a list."
        ),
    ],
    flags: ScanFlags,
    run: RunFlags,
    output: _Output = "shardindex.json",
    name: _Name = None,
    info: Annotated[
        str | None, typer.Option("--info", "-i", help="What it is: a text, or a file with it.", show_default=False)
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", "-b", metavar="URL", help="Where the shards will be read from.", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
    should_upload: Annotated[
        bool,
        typer.Option(
            "--upload",
            help="Commit it to the repository, too, as SPLIT.json: SOURCE is a data set of the Hugging Face Hub by its "
            "name, and opening that by name reads no shard then.",
        ),
    ] = False,
    is_json: Json = False,
) -> None:
    """Write the index of a dataset's shards.

    Local shards are read where they are, whole for their CRC-32 (--no-checksums: headers alone); of remote ones byte
    ranges over their headers. A second run reads only what changed since (INDEX.state remembers sizes and versions);
    one that was killed goes on where it was.

    In a directory, links are followed, each file comes once. A file that is named like an archive and cannot be read
    (compressed, a link to nothing) is an error, or with --skip-errors left out and listed.

    `wids index create data/ -o data/train.json`

    `wids index create 's3://bucket/train-{000000..000999}.tar' gs://bucket/more/ -o train.json --members`

    `wids index create 's3://bucket/{00000..00999}.tar' -o train.json --counts s3://bucket/`

    `find /nas -name '*.tar' | wids index create - -o train.json --base https://host/data`

    `wids index create 'hf://datasets/ORG/NAME?split=train' -o train.json --upload`
    """
    if should_upload and base:
        raise typer.BadParameter("--upload writes URLs relative to the repository; leave --base out")
    from wids.cli.index.create import create

    create(
        sources,
        output,
        name=name,
        info=info,
        base=base,
        overwrite=overwrite,
        should_upload=should_upload,
        flags=flags,
        options=run.options(),
        is_json=is_json,
    )


@app.command("update")
@with_option_groups
def update_index(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The index, a local file.")],
    flags: ScanFlags,
    run: RunFlags,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="SOURCE", help="More shards, as for create; repeatable.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="PATTERN", help="Shards that go, by name or pattern; repeatable."),
    ] = None,
    is_dropping_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Shards that are not there any more go, too.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Bring an index up to date: read again what changed, drop and add shards.

    Its own keys and those of its shards stay. If it has checksums, new shards get them too; if it has none, none.

    `wids index update train.json --add data/new/ --drop 'bad-*.tar'`
    """
    from wids.cli.index.create import update

    update(
        index,
        add=add or [],
        drop=drop or [],
        is_dropping_missing=is_dropping_missing,
        flags=flags,
        options=run.options(),
        is_json=is_json,
    )


@app.command("merge")
def merge_indexes(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help="Indexes: paths or URLs.")],
    output: _Output,
    name: _Name = None,
    overwrite: Overwrite = False,
    is_json: Json = False,
) -> None:
    """Write one index of the shards of several.

    A shard that several of them have comes once. Each shard keeps the name of its index as its `dataset`. Where one of
    them is a view, a view is written, of the samples of all, each once.

    `wids index merge cats.json gs://bucket/dogs.json -o pets.json`
    """
    from wids.cli.index.arrange import merge

    merge(indexes, output, name=name, overwrite=overwrite, is_json=is_json)


@app.command("split")
def split_index(
    index: _Index,
    every: Annotated[
        int | None, typer.Option("--by", min=1, metavar="N", help="N shards in each part.", show_default=False)
    ] = None,
    fractions: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Fractions of the samples.", show_default=False)
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "-o", "--output", metavar="INDEX", help="One like part-{}.json, or one for each part; repeatable."
        ),
    ] = None,
    overwrite: Overwrite = False,
    is_json: Json = False,
) -> None:
    """Split an index into several, by whole shards in their order; a view into views.

    Of a view, the shards of which it has samples are counted.

    `wids index split all.json --fractions 0.9,0.1 -o train.json -o val.json`

    `wids index split all.json --by 100 -o 'part-{}.json'`
    """
    if (every is None) == (fractions is None):
        raise typer.BadParameter("say how: --by 100 (shards in each part), or --fractions 0.9,0.1 (of the samples)")
    from wids.cli.index.arrange import parse_fractions, split

    numbers = None if fractions is None else parse_fractions(fractions)
    split(index, every=every, fractions=numbers, outputs=outputs or [], overwrite=overwrite, is_json=is_json)


@app.command("rebase")
def rebase_index(
    index: _Index,
    base: Annotated[str, typer.Option("--base", "-b", metavar="URL", help="Where the shards are now; '': beside it.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="INDEX", help="Default: INDEX itself.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
    is_json: Json = False,
) -> None:
    """Say that the shards lie elsewhere now; no shard is read.

    Of a view: that the index lies elsewhere of which it is one.

    `wids index rebase train.json --base https://host/data`
    """
    from wids.cli.index.arrange import rebase

    rebase(index, base, output=output, overwrite=overwrite, is_json=is_json)


@app.command("convert")
def convert_index(index: _Index, output: _Output, overwrite: Overwrite = False, is_json: Json = False) -> None:
    """Compile an index: it then opens at once, however many shards it has, and takes no memory.

    OUTPUT ends in .widsx. Datasets and commands take it in place of the index; that is needed to change it, and to
    convert it again.

    `wids index convert train.json -o train.widsx`
    """
    from wids.cli.index.arrange import convert

    convert(index, output, overwrite=overwrite, is_json=is_json)


@app.command("tables")
@with_option_groups
def pack_tables(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The index, a local JSON file.")],
    flags: TablesFlags,
    run: RunFlags,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="PACK", help="The pack to write; default: INDEX.tables.", show_default=False
        ),
    ] = None,
    is_json: Json = False,
) -> None:
    """Pack the member tables of all shards into one file, and name it in the index.

    A table beside its shard is taken from there, any other one is made from the shard's headers. Published with the
    index, a machine that has no shard yet needs one request for the pack's directory, and one for each table. A run
    that was killed goes on where it was.

    `wids index tables train.json`
    """
    from wids.cli.index.arrange import pack

    pack(index, output, flags=flags, options=run.options(), is_json=is_json)
