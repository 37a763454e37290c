"""``wids index``: make the index of a dataset from its shards, keep it up to date, merge, split and move it.

Rules: this module is light; what is heavy is imported when a command runs, and torch never. What is done is done by
`wids.jobs.index_create` and `wids.jobs.index_edit`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from wids.cli.options import Json, StorageOptions  # noqa: TC001 - typer reads the annotations

index_app = typer.Typer(help="Make indexes of shards; update, merge, split and move them.", invoke_without_command=True)

_Output = Annotated[str, typer.Option("-o", "--output", metavar="INDEX", help="The index to write.")]
_Md5 = Annotated[bool, typer.Option("--md5", help="With checksums. All bytes are read then, of remote shards too.")]
_Members = Annotated[
    bool,
    typer.Option(
        "--members",
        help="Publish each shard's member table beside it (SHARD.widx), or beside the index where that cannot be "
        "written. With it, a remote sample can be read without fetching its shard.",
    ),
]
_Skip = Annotated[bool, typer.Option("--skip-errors", help="Leave out shards that cannot be read, and tell which.")]
_Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, max=1024, metavar="N", help="Shards at a time.", show_default=False)
]
_EngineName = Literal["auto", "threads", "processes", "ray"]
_Engine = Annotated[_EngineName, typer.Option("--engine", help="What reads the shards.")]
_RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="auto, HOST:PORT or ray://HOST:PORT. Default: $RAY_ADDRESS, else this machine."
    ),
]
_Name = Annotated[
    str | None, typer.Option("--name", "-n", help="Name of the dataset; default: the index's.", show_default=False)
]
_Index = Annotated[str, typer.Argument(metavar="INDEX", help="The index: a path or URL.")]


@index_app.callback()
def _show_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


@index_app.command("create")
def create_index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE", help="Tars, directories, globs, brace patterns, URLs, prefixes; - reads a list."
        ),
    ],
    output: _Output = "shardindex.json",
    name: _Name = None,
    info: Annotated[
        str | None, typer.Option("--info", "-i", help="What it is: a text, or a file with it.", show_default=False)
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", "-b", metavar="URL", help="Where the shards will be read from.", show_default=False),
    ] = None,
    has_md5: _Md5 = False,
    has_tables: _Members = False,
    is_skipping: _Skip = False,
    jobs: _Jobs = None,
    engine: _Engine = "auto",
    ray_address: _RayAddress = None,
    storage_options: StorageOptions = None,
    is_json: Json = False,
) -> None:
    """Write the index of a dataset's shards.

    Local shards are read where they are, of remote ones byte ranges over their headers. A second run reads only what
    changed since (INDEX.state remembers sizes and versions); one that was killed goes on where it was.

    `wids index create data/ -o data/train.json`

    `wids index create 's3://bucket/train-{000000..000999}.tar' gs://bucket/more/ -o train.json --members`

    `find /nas -name '*.tar' | wids index create - -o train.json --base https://host/data`
    """
    from wids.cli.index.create import create

    create(
        sources,
        output,
        name=name,
        info=info,
        base=base,
        wanted=_wanted(has_md5, has_tables, is_skipping, jobs, engine, ray_address, storage_options),
        is_json=is_json,
    )


@index_app.command("update")
def update_index(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="The index, a local file.")],
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
    has_md5: _Md5 = False,
    has_tables: _Members = False,
    is_skipping: _Skip = False,
    jobs: _Jobs = None,
    engine: _Engine = "auto",
    ray_address: _RayAddress = None,
    storage_options: StorageOptions = None,
    is_json: Json = False,
) -> None:
    """Bring an index up to date: read again what changed, drop and add shards.

    Its own keys and those of its shards stay. If it has checksums, new shards get them too.

    `wids index update train.json --add data/new/ --drop 'bad-*.tar'`
    """
    from wids.cli.index.create import update

    update(
        index,
        add=add or [],
        drop=drop or [],
        is_dropping_missing=is_dropping_missing,
        wanted=_wanted(has_md5, has_tables, is_skipping, jobs, engine, ray_address, storage_options),
        is_json=is_json,
    )


@index_app.command("merge")
def merge_indexes(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help="Indexes: paths or URLs.")],
    output: _Output,
    name: _Name = None,
    is_json: Json = False,
) -> None:
    """Write one index of the shards of several.

    A shard that several of them have comes once. Each shard keeps the name of its index as its `dataset`.

    `wids index merge cats.json gs://bucket/dogs.json -o pets.json`
    """
    from wids.cli.index.arrange import merge

    merge(indexes, output, name=name, is_json=is_json)


@index_app.command("split")
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
    is_json: Json = False,
) -> None:
    """Split an index into several, by whole shards in their order.

    `wids index split all.json --fractions 0.9,0.1 -o train.json -o val.json`

    `wids index split all.json --by 100 -o 'part-{}.json'`
    """
    if (every is None) == (fractions is None):
        raise typer.BadParameter("say how: --by 100 (shards in each part), or --fractions 0.9,0.1 (of the samples)")
    from wids.cli.index.arrange import parse_fractions, split

    numbers = None if fractions is None else parse_fractions(fractions)
    split(index, every=every, fractions=numbers, outputs=outputs or [], is_json=is_json)


@index_app.command("rebase")
def rebase_index(
    index: _Index,
    base: Annotated[str, typer.Option("--base", "-b", metavar="URL", help="Where the shards are now; '': beside it.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="INDEX", help="Default: INDEX itself.", show_default=False)
    ] = None,
    is_json: Json = False,
) -> None:
    """Say that the shards lie elsewhere now; no shard is read.

    `wids index rebase train.json --base https://host/data`
    """
    from wids.cli.index.arrange import rebase

    rebase(index, base, output=output, is_json=is_json)


def _wanted(
    has_md5: bool,
    has_tables: bool,
    is_skipping: bool,
    jobs: int | None,
    engine: _EngineName,
    ray_address: str | None,
    storage_options: dict[str, Any] | None,
) -> object:
    if ray_address is not None and engine != "ray":
        raise typer.BadParameter("--ray-address goes with --engine ray")
    from wids.jobs.index_create import Wanted

    return Wanted(
        has_md5=has_md5,
        has_tables=has_tables,
        is_skipping=is_skipping,
        jobs=jobs,
        engine=engine,
        ray_address=ray_address,
        storage_options=storage_options,
    )
