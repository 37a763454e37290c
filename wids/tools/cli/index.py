"""``wids index``: make the index of a dataset, update, merge, join, split, move and compile it, pack its tables.

This module is light; heavy ones are imported when a command runs, torch by a split of values alone. The work is done by
`wids.jobs.index_create`, `wids.jobs.index_edit` and `wids.jobs.index_tables`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from wids.core.place import Place
from wids.core.transport.session import PLAIN
from wids.errors import OutputExistsError
from wids.events import ONE_FORM
from wids.tools.cli.format import (
    count_of,
    format_size,
    print_errors,
    print_json,
    print_outcome,
    print_table,
    printable,
    shown_path,
    shown_url,
)
from wids.tools.cli.options import CacheDir, Columns, GroupFlag, Json, Overwrite, RuleFlag, RunFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.progress import job_signals
from wids.tools.cli.saved_state import SavedFlags, read_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.hub.upload import IndexUpload, Published
    from wids.jobs.index_create import IndexOutcome, IndexSettings
    from wids.jobs.index_edit import Merged

_SHOWN = 5  # shards of each kind

app: App = App(
    help="Make indexes of shards; update, merge, join, split, move and compile them, pack their member tables."
)

_Output = Annotated[str, typer.Option("-o", "--output", metavar="INDEX", help="The index to write.")]
_Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        "-n",
        metavar="TEXT",
        help="Name of the dataset; default: that of the index at -o, else from -o.",
        show_default=False,
    ),
]
_SkipErrors = Annotated[
    bool, typer.Option("--skip-errors", help="Leave out shards that cannot be read, and list them.")
]


@dataclass(frozen=True)
class ScanFlags:
    """Options of reading shards."""

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
    is_skipping: _SkipErrors = False
    rule: RuleFlag = None
    group: GroupFlag = None
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

    def settings(self, *, is_dropping_missing: bool = False) -> IndexSettings:
        """The settings for the library."""
        from wids.jobs.index_create import IndexSettings

        return IndexSettings(
            has_md5=self.has_md5,
            checksums=self.checksums,
            has_tables=self.has_tables,
            is_skipping=self.is_skipping,
            is_dropping_missing=is_dropping_missing,
            rule=self.rule,
            group=self.group,
            counts=tuple(self.counts or ()),
            session=self.session,
        )


@dataclass(frozen=True)
class TablesFlags:
    """Options of packing member tables."""

    is_skipping: _SkipErrors = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file of this name that is not the index's own pack.")
    ] = False
    session: SessionFlag = PLAIN


_Index = Annotated[str, typer.Argument(metavar="INDEX", help="The index: a path or URL.")]


@app.command(
    "create",
    epilog=examples(
        "wids index create data/ -o data/train.json",
        "wids index create \\\n"
        "  's3://bucket/train-{000000..000999}.tar' \\\n"
        "  gs://bucket/more/ -o train.json --members",
        "wids index create 's3://bucket/{00000..00999}.tar' \\\n  -o train.json --counts s3://bucket/",
        "find /nas -name '*.tar' | wids index create - \\\n  -o train.json --base https://host/data",
        "wids index create 'hf://datasets/ORG/NAME?split=train' \\\n  -o train.json --upload",
    ),
)
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
        str | None,
        typer.Option("--info", "-i", metavar="TEXT", help="What it is: a text, or a file with it.", show_default=False),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", "-b", metavar="URL", help="Where the shards will be read from; '': none.", show_default=False
        ),
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
    one that was killed goes on where it was. Keys that you wrote into the index or its shards stay.

    In a directory, links are followed, each file comes once. A file that is named like an archive and cannot be read
    (compressed, a link to nothing) is an error, or with --skip-errors left out and listed.
    """
    if should_upload and base:
        raise typer.BadParameter("--upload writes URLs relative to the repository; leave --base out")
    if should_upload and {flags.rule, flags.group} - {None, "first-dot", "adjacent"}:
        raise typer.BadParameter(
            "--upload is for opening a data set by its name, which groups members in the standard way; publish this "
            "index yourself, and open its URL"
        )
    from wids.core.index.writing import stem_of
    from wids.jobs import index_create

    engine, found, upload = run.options(), list(_with_stdin(sources)), None
    if should_upload:
        from wids.hub.upload import IndexUpload

        upload = IndexUpload(found, session=flags.session)
        name = upload.name if name is None else name
    with job_signals():
        outcome = index_create.create_index(
            found,
            output,
            name=name,
            info=_text_of(info, output),
            base=base,
            default_name=stem_of(output),
            overwrite=overwrite,
            settings=flags.settings(),
            engine=engine,
            progress=None if is_json else "bar",
        )
    _report(outcome, is_json=is_json, upload=upload)


@app.command("update", epilog=examples("wids index update train.json --add data/new/ \\\n  --drop 'bad-*.tar'"))
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
    """
    from wids.jobs import index_edit

    engine = run.options()
    with job_signals():
        outcome = index_edit.update_index(
            index,
            add=list(_with_stdin(add or [])),
            drop=drop or [],
            settings=flags.settings(is_dropping_missing=is_dropping_missing),
            engine=engine,
            progress=None if is_json else "bar",
        )
    _report(outcome, is_json=is_json)


@app.command("diff", epilog=examples("wids index diff before.json train.json \\\n  --state checkpoint.pt"))
def diff_indexes(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The earlier index, or view: path or URL.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The index, or view, of now.")],
    *,
    saved: SavedFlags,
    has_list: Annotated[bool, typer.Option("--list", help="List every shard that is not the same.")] = False,
    is_json: Json = False,
    session: SessionFlag = PLAIN,
) -> None:
    """Say which shards are the same, have moved, were replaced, added or dropped, by what two indexes say of them.

    With --state, a checkpoint of a run over OLD: how many samples of NEW its epoch has not read. No shard is opened.
    """
    from wids.core.index.changes import KINDS
    from wids.jobs.index_diff import diff_indexes as compare

    state = None if saved.state is None else read_state(saved.state)
    diff = compare(old, new, state=state, session=session, **saved.options())
    if is_json:
        print_json(diff)
        return
    kinds = {kind: getattr(diff, kind) for kind in KINDS}
    rows = [
        (kind, f"{each.shards:,}", f"{each.samples:,}", format_size(each.bytes), f"{each.kept:,}")
        for kind, each in kinds.items()
    ]
    print_table(("shards", ">number", ">samples", ">size", ">kept"), rows)
    for kind, each in kinds.items():
        shown = each.urls if has_list else each.urls[:_SHOWN]
        lines = [" -> ".join(map(shown_url, url)) if isinstance(url, list) else shown_url(url) for url in shown]
        print("".join(f"\n{kind}: {line}" for line in lines).removeprefix("\n"), end="\n" * bool(lines))
        if len(shown) < len(each.urls):
            print(f"{kind}: {len(each.urls) - len(shown):,} more (--list)")
    if diff.unseen is not None:
        print(f"unseen: {diff.unseen:,} of {count_of(diff.samples, 'sample')}, by the epoch of the state")


@app.command("merge", epilog=examples("wids index merge cats.json gs://bucket/dogs.json \\\n  -o pets.json"))
def merge_indexes(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help="Indexes: paths or URLs.")],
    output: _Output,
    name: _Name = None,
    overwrite: Overwrite = False,
    is_json: Json = False,
) -> None:
    """Write one index of the shards of several.

    A shard that several of them have comes once. Each shard keeps the name of its index as its `dataset`. Other keys
    stay if all have them with one value; a warning names those that are left out. Where one of
    them is a view, a view is written, of the samples of all, each once.
    """
    from wids.jobs import index_edit

    _report_written([index_edit.merge_indexes(indexes, output, name=name, overwrite=overwrite)], is_json=is_json)


@app.command(
    "split",
    epilog=examples(
        "wids index split all.json --fractions 0.9,0.1 \\\n  -o train.json -o val.json",
        "wids index split all.json --by 100 -o 'part-{}.json'",
        "wids index split all.json --fractions 0.9,0.1 \\\n  --by patient -o train.json -o val.json",
    ),
)
def split_index(
    index: _Index,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="N|COLUMN",
            help="N shards in each part. With --fractions: a column, or SQL over columns, whose equal values lie in "
            "one part; parts are views then.",
            show_default=False,
        ),
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
    seed: Annotated[int, typer.Option(metavar="N", help="Of a split by a column: another one gives other parts.")] = 0,
    *,
    columns: Columns = None,
    cache_dir: CacheDir = "",
    overwrite: Overwrite = False,
    is_json: Json = False,
) -> None:
    """Split an index into several, by whole shards in their order; a view into views.

    Of a view, the shards of which it has samples are counted. By a column (or key, or shard), a hash of each value
    decides its part, so that a patient's samples lie in one, also when samples are added; see `dataset.split`.
    """
    every = int(by) if by is not None and by.isdecimal() else None
    if (every is None) == (fractions is None) or every == 0:
        raise typer.BadParameter(
            "say how: --by 100 (shards in each part), --fractions 0.9,0.1 (of the samples), or --fractions 0.9,0.1 "
            "--by patient (a column: equal values stay together)"
        )
    if (by is None or every is not None) and (columns is not None or seed):
        raise typer.BadParameter("--columns and --seed are for a split --by a column")
    from wids.core.index.writing import split_by_fractions, split_every, stem_of
    from wids.jobs import index_edit

    numbers = None if fractions is None else _parse_fractions(fractions)

    def parts(nsamples: list[int]) -> list[range]:
        return split_every(len(nsamples), every or 1) if numbers is None else split_by_fractions(nsamples, numbers)

    names = outputs or [f"{stem_of(index)}-{{}}.json"]
    if by is not None and numbers is not None:
        written = _split_by(index, by, numbers, names, seed, columns, cache_dir, overwrite=overwrite)
        _report_written(written, is_json=is_json)
        return
    _report_written(index_edit.split_index(index, names, parts=parts, overwrite=overwrite), is_json=is_json)


def _split_by(
    index: str,
    by: str,
    fractions: list[float],
    outputs: list[str],
    seed: int,
    columns: str | None,
    cache_dir: str,
    *,
    overwrite: bool,
) -> list[Merged]:
    """Write a view for each part of a split by values."""
    from wids.dataset import ShardListDataset
    from wids.jobs.index_edit import Merged, name_parts

    dataset = ShardListDataset(index, cache_dir=cache_dir or None, transformations=[], access="auto")
    if columns is not None:
        dataset = dataset.with_columns(fields=False, place=columns)
    places = name_parts(outputs, len(fractions))
    parts = dataset.split(*fractions, by=by, seed=seed)
    for part, place in zip(parts, places, strict=True):
        part.save(place, overwrite=overwrite)
    shards = [sum(map(bool, part.lengths)) for part in parts]
    return [
        Merged(output=place, shards=k, samples=len(part)) for place, k, part in zip(places, shards, parts, strict=True)
    ]


@app.command(
    "join",
    epilog=examples(
        "wids index join train.json captions.json \\\n  -o joined.json",
        "wids index join train.json clip.json -o joined.json \\\n  --on key --prefix clip --missing none",
    ),
)
def join_indexes(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The index whose samples these are.", show_default=False)],
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The index of shards that have further fields.", show_default=False)
    ],
    output: _Output,
    on: Annotated[
        str, typer.Option("--on", metavar="row|key", help="Sample i belongs to sample i; or to the one with its key.")
    ] = "row",
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="With clip, its .npy is the field .clip.npy.")
    ] = "",
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            metavar="error|skip|none",
            help="Of samples that OTHER lacks, with --on key: they are left out, or have none of its fields.",
        ),
    ] = "error",
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--fields", metavar="EXTENSION", help="Only these fields of OTHER; repeatable.", show_default=False
        ),
    ] = None,
    *,
    overwrite: Overwrite = False,
    cache_dir: CacheDir = "",
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Join the fields of other shards to a dataset: an index that names both, and no data.

    The new index is taken wherever an index is, and reads as one dataset; its order of samples is that of BASE. It is
    refused once BASE lists other shards. With --on key, the member tables of both are read.
    """
    from wids.dataset import ShardListDataset

    dataset = ShardListDataset(
        base, cache_dir=cache_dir or None, storage_options=session.storage_options, transformations=[], access="auto"
    )
    whole = len(dataset)
    joined = dataset.with_fields(other, on=on, prefix=prefix, missing=missing, fields=fields)  # type: ignore[arg-type]
    joined.save(output, overwrite=overwrite)
    added = [(each, each.all_fields() or ()) for each in joined._companions]  # noqa: SLF001 - of the face
    names = [companion.name_of(extension) for companion, extensions in added for extension in extensions]
    _report_joined(os.path.abspath(output), len(joined), whole, names, is_json=is_json)


def _report_joined(path: str, samples: int, whole: int, names: list[str], *, is_json: bool) -> None:
    if is_json:
        print_json({"output": path, "samples": samples, "whole": whole, "fields": names})
        return
    counted = count_of(samples, "sample") if samples == whole else f"{samples:,} of {count_of(whole, 'sample')}"
    more = f", with {', '.join(names)}" if names else ""
    print(f"{shown_path(path)}: {counted}{more}")


@app.command("rebase", epilog=examples("wids index rebase train.json --base https://host/data"))
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
    """
    from wids.jobs import index_edit

    _report_written([index_edit.rebase_index(index, base, output=output, overwrite=overwrite)], is_json=is_json)


@app.command("convert", epilog=examples("wids index convert train.json -o train.widsx"))
def convert_index(index: _Index, output: _Output, overwrite: Overwrite = False, is_json: Json = False) -> None:
    """Compile an index: it then opens at once, however many shards it has, and takes no memory.

    OUTPUT ends in .widsx. Datasets and commands take it in place of the index; that is needed to change it, and to
    convert it again.
    """
    from wids.jobs import index_edit

    _report_written([index_edit.convert_index(index, output, overwrite=overwrite)], is_json=is_json)


@app.command("tables", epilog=examples("wids index tables train.json"))
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
    """
    from wids.jobs.index_tables import TablesSettings, create_tables

    engine = run.options()
    settings = TablesSettings(is_skipping=flags.is_skipping, overwrite=flags.overwrite, session=flags.session)
    with job_signals():
        outcome = create_tables(index, output, settings=settings, engine=engine, progress=None if is_json else "bar")
    print_errors([f"left out: {why}" for why in outcome.failed.values()])
    tables = f"{count_of(outcome.tables, 'member table')} of {count_of(outcome.shards, 'shard')}"
    print_outcome(
        outcome,
        f"{shown_path(outcome.output)}: {tables}, {format_size(outcome.bytes)}; {shown_path(outcome.index)} names it",
        is_json=is_json,
        counts={
            "beside": "from beside the shards",
            "scanned": "from the shards",
            "known": "from a run that was ended",
            "failed": "left out",
        },
    )


def _parse_fractions(text: str) -> list[float]:
    """``0.9,0.1``.

    Raises:
        typer.BadParameter: it is no list of numbers.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--fractions {text!r} are no numbers; write them like 0.9,0.1") from None


def _with_stdin(sources: Sequence[str]) -> Iterator[str]:
    """The sources, the lines of stdin in the place of ``-``."""
    for source in sources:
        if source != "-":
            yield source
            continue
        if sys.stdin is None or sys.stdin.isatty():
            raise typer.BadParameter("- reads the list of shards from stdin, and that is a terminal")
        with contextlib.suppress(AttributeError):
            sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
        yield from (line.strip("\r\n") for line in sys.stdin if line.strip())


def _text_of(info: str | None, output: str) -> str | None:
    """A text as it is; a file's name stands for the text in it.

    Raises:
        OutputExistsError: it is the file that is to be written.
    """
    info = info and os.path.expanduser(info)
    if info and os.path.isfile(info):
        path = Place(output).path
        if os.path.exists(path) and os.path.samefile(info, path):
            raise OutputExistsError(
                f"{output}: is the text of the dataset (--info); give the output another name", path=output
            )
        with open(info, encoding="utf-8", errors="replace") as file:
            return file.read()
    return info


def _warnings(outcome: IndexOutcome) -> Iterator[str]:
    """Files that were left out, or look wrong, though nothing failed."""
    for url, at in outcome.behind.items():
        yield (
            f"{shown_url(url)}: goes on behind its end marker, at byte {at:,}; nothing reads that (two archives in one "
            "file? `tar -i` extracts both: pack them again)"
        )
    for url, count in outcome.zeros.items():
        yield (
            f"{shown_url(url)}: ends with {count:,} zeros, more than any writer appends; the samples there were lost "
            "(copy or upload it again)"
        )
    for url, count in outcome.empty.items():
        files = f"; its {count_of(count, 'file')}: names without an extension, or with a dot first" if count else ""
        yield f"{shown_url(url)}: has no sample{files}"
    if outcome.merged:
        url, (key, one, other) = next(iter(outcome.merged.items()))
        more = f" (and of {len(outcome.merged) - 1:,} more shards)" if len(outcome.merged) > 1 else ""
        yield (
            f"{shown_url(url)}{more}: sample {printable(repr(key))} has the fields {printable(one)} and "
            f"{printable(other)}, because a key ends at the first dot of a name; if these are two samples, "
            "--key-rule last-dot takes them apart, and if they are one, --key-rule first-dot says so"
        )
    if outcome.apart:
        url, (key, longer, _) = next(iter(outcome.apart.items()))
        more = f" (and {count_of(len(outcome.apart) - 1, 'more shard')})" if len(outcome.apart) > 1 else ""
        count = sum(number for _, _, number in outcome.apart.values())
        yield (
            f"{shown_url(url)}{more}: {printable(repr(key))} and {printable(repr(longer))} are two samples, because "
            f"a key ends at the last dot of a name ({count_of(count, 'such sample')}); if they are one, --key-rule "
            "first-dot puts their files together (rename other dots in names to _ first)"
        )
    if outcome.gone:
        yield f"{count_of(len(outcome.gone), 'shard')} of the index before {_gone(outcome.gone)}"
    if "base" in outcome.dropped_keys:
        yield "the index before has a base, and this one has none (--base keeps it, --base '' says that it goes)"
    for url, first in outcome.repeated.items():
        yield f"{shown_url(url)}: is the same file as {shown_url(first)}, and comes once"
    if outcome.unused_counts:
        names = ", ".join(map(printable, outcome.unused_counts[:3])) + ", ..." * (len(outcome.unused_counts) > 3)
        yield f"{count_of(len(outcome.unused_counts), 'count')} of shards that are not in the index: {names}"


def _gone(places: Sequence[str]) -> str:
    """The words about shards that are not in an index any more."""
    names = ", ".join(map(shown_url, places[:3])) + ", ..." * (len(places) > 3)
    return f"{'is' if len(places) == 1 else 'are'} not in it any more: {names}"


def _report(outcome: IndexOutcome, *, is_json: bool, upload: IndexUpload | None = None) -> None:
    print_errors([f"left out: {why}" for why in outcome.failed.values()])
    print_errors([f"warning: {what}" for what in _warnings(outcome)])
    uploaded = {"upload": upload.publish(outcome.output)} if is_json and upload is not None else {}
    place = shown_path(os.path.dirname(outcome.output))
    sums = [count_of(outcome.shards, "shard"), count_of(outcome.samples, "sample"), format_size(outcome.bytes)]
    print_outcome(
        {**msgspec.to_builtins(outcome), **uploaded},
        f"{shown_path(outcome.output)}: {', '.join(sums)}",
        is_json=is_json,
        counts={
            "surveyed": "read",
            "unchanged": "unchanged",
            "counted": "not read, by their counts",
            "added": "added",
            "dropped": "dropped",
            "failed": "left out",
        },
        lines={
            "counts": [f"{count_of(n, 'count')} from {shown_url(source)}" for source, n in outcome.counts.items()],
            "repeated_keys": f"{count_of(outcome.repeated_keys, 'sample')} with a key that came before in the same "
            "shard; where the files of a sample are not adjacent, --group key makes one sample of them",
            "kept": [f"kept of the index before: {', '.join(map(printable, outcome.kept))}"] * bool(outcome.kept),
            "kept_of_shards": [f"kept of its shards: {', '.join(map(printable, outcome.kept_of_shards))}"]
            * bool(outcome.kept_of_shards),
            "rule": [f"key rule {outcome.rule}, which the index keeps"] * (outcome.rule != "first-dot"),
            "group": [f"members grouped by {outcome.group}, which the index keeps"] * (outcome.group != "adjacent"),
            "alike_keys": f"{count_of(outcome.alike_keys, 'sample')} with the name of another one in a second Unicode "
            f"form (NFC, NFD), so that their files are apart; {ONE_FORM}",
            "left_files": f"{count_of(outcome.left_files, 'file')} of the shards in no sample: names without an "
            "extension, or with a dot first",
            "tables": f"{count_of(len(outcome.tables), 'member table')} in {place}: their shards' places cannot be "
            "written",
        },
    )
    if upload is not None and not is_json:
        _report_upload(upload.publish(outcome.output))


def _report_upload(published: Published) -> None:
    root, split = published.root, published.split
    if published.change == "unchanged":
        print(f"{root}: {published.path} is there already, as it is (commit {published.commit[:12]})")
    else:
        print(f"{root}: {published.path} {published.change} by commit {published.commit[:12]}: {published.page}")
    config = "" if published.config is None else f', config="{published.config}"'
    print(printable(f'wids.ShardListDataset("{root}"{config}, split="{split}") opens it without reading a shard'))


def _report_written(written: Sequence[Merged], *, is_json: bool) -> None:
    gone = [each for each in written if each.gone]
    print_errors([
        f"warning: {count_of(len(each.gone), 'shard')} of the index before {_gone(each.gone)}" for each in gone
    ])  # fmt: skip
    if is_json:
        print_json(list(written))
        return
    for each in written:
        words = f"{count_of(each.shards, 'shard')}, {count_of(each.samples, 'sample')}"
        if each.repeated or each.repeated_samples:
            again = each.repeated or count_of(each.repeated_samples, "sample")
            words += f" ({again} that came twice left out)"
        print(f"{shown_path(each.output)}: {words}")
        if each.kept:
            print(f"kept of the index before: {', '.join(map(printable, each.kept))}")
