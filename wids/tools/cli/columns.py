"""``wids columns create``: the columns of a dataset's samples as a table beside its index.

This module is light; heavy ones are imported when the command runs, and torch never. The work is done by
`wids.columns.create`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wids.core.transport.session import PLAIN
from wids.tools.cli.options import Index, Overwrite, RunFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from wids.columns.create import ColumnsOutcome

app: App = App(help="Columns of a dataset's samples, as a table beside its index.")


@dataclass(frozen=True)
class ColumnFlags:
    """The columns, and the members that they come from."""

    field: Annotated[
        list[str] | None,
        typer.Option("--field", metavar=".EXT[;.EXT][=NAME]", help="The first of these members, decoded; repeatable."),
    ] = None
    json_keys: Annotated[
        list[str] | None,
        typer.Option("--json", metavar=".EXT:KEY[=NAME],...", help="Keys of a JSON object; repeatable."),
    ] = None
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar=".EXT[=NAME]", help="A member as text, UTF-8; repeatable."),
    ] = None
    pictures: Annotated[
        list[str] | None,
        typer.Option(
            "--pictures",
            metavar=".EXT[;.EXT][=PREFIX]",
            help="width, height and mode of the first of these pictures, from its header; repeatable.",
        ),
    ] = None
    sounds: Annotated[
        list[str] | None,
        typer.Option(
            "--sounds",
            metavar=".EXT[;.EXT][=PREFIX]",
            help="duration, sample_rate and channels of the first of these sounds, from its header; repeatable.",
        ),
    ] = None
    videos: Annotated[
        list[str] | None,
        typer.Option(
            "--videos",
            metavar=".EXT[;.EXT][=PREFIX]",
            help="width, height, frames, fps, duration and codec of the first of these videos, from its header; "
            "repeatable.",
        ),
    ] = None
    missing: Annotated[
        Literal["error", "null"],
        typer.Option("--missing", help="What a member that cannot be parsed is. One that is not there is always null."),
    ] = "error"
    session: SessionFlag = PLAIN


@app.command(
    "create",
    epilog=examples(
        "wids columns create train.json --field .cls=label \\\n  --json .json:width,height --text .txt=caption"
    ),
)
def create_columns(
    index: Index,
    flags: ColumnFlags,
    run: RunFlags,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The table to write. Default: beside a local INDEX, train.columns.parquet of train.json.",
            show_default=False,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="NAME", help="Leave out this column of the earlier table; repeatable."),
    ] = None,
    overwrite: Overwrite = False,
    is_json: Annotated[bool, typer.Option("--report-json", help="Print JSON, for programs.")] = False,
) -> None:
    """Write the columns of all samples: one row for each, in the order of the index.

    Columns of an earlier run stay; a NAME that is asked for again has its new rule.

    Always there: index, shard (its number), row (in the shard), key, bytes (of the sample), bytes of each field. Of
    remote shards only the members asked for are read, by byte ranges where that pays. A second run reads only shards
    that changed since; one that was killed goes on where it was. Takes pip install 'wids[views]', --sounds
    'wids[sounds]', and --videos 'wids[videos]'.
    """
    from wids.columns.create import create_columns as create
    from wids.columns.create import place_of_table
    from wids.columns.spec import parse_spec
    from wids.errors import InputError, JobError
    from wids.tools.cli.progress import job_signals

    spec = parse_spec(
        fields=flags.field or (),
        jsons=flags.json_keys or (),
        texts=flags.text or (),
        pictures=flags.pictures or (),
        sounds=flags.sounds or (),
        videos=flags.videos or (),
        missing=flags.missing,
    )
    try:
        place = place_of_table(index) if output is None else output
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        with job_signals():
            outcome = create(
                index,
                place,
                spec,
                drop=drop or (),
                overwrite=overwrite,
                session=flags.session,
                engine=run.options(),
                progress=None if is_json else "bar",
            )
    except JobError as error:
        _print_failures(error)
        raise
    _report(outcome, is_json=is_json)


def _print_failures(error: Exception) -> None:
    from wids.tools.cli.format import print_errors

    failed = getattr(error, "found", None)
    if isinstance(failed, dict):
        print_errors([str(why) for why in list(failed.values())[1:]])  # the error itself tells the first


def _report(outcome: ColumnsOutcome, *, is_json: bool) -> None:
    from wids.tools.cli.format import count_of, print_errors, print_outcome, print_table, printable, shown_path

    print_errors([f"null: {why}" for why in outcome.troubles.values()])
    if not is_json:
        print_table(("column", "type"), [(printable(name), kind) for name, kind in outcome.columns.items()])

    def spread(what: str, counts: dict[str, int]) -> list[str]:
        words = ", ".join(f"{printable(name)} in {count:,}" for name, count in counts.items())
        return [f"{what}: {words} of {count_of(outcome.samples, 'sample')}"] if counts else []

    nans, in_text = (
        {name: n for name, n in outcome.nans.items() if (outcome.columns[name] == "json") is is_text}
        for is_text in (False, True)
    )
    rows, columns = count_of(outcome.samples, "row"), count_of(len(outcome.columns), "column")
    print_outcome(
        outcome,
        f"{shown_path(outcome.output)}: {rows}, {columns}",
        is_json=is_json,
        counts={"surveyed": "read", "unchanged": "unchanged"},
        lines={
            "kept": f"columns of an earlier run: {', '.join(map(printable, outcome.kept))}",
            "dropped": f"columns that are left out: {', '.join(map(printable, outcome.dropped))}",
            "nulls": spread("no value (null)", outcome.nulls),
            "nans": spread("NaN, which SQL takes for more than any number", nans)
            + spread("NaN, in JSON text, which has no word for it", in_text),
            "doubled": "a field twice, in upper and lower case, its sizes added: "
            + count_of(outcome.doubled, "sample"),
            "unparsed": f"null, for they cannot be parsed: {count_of(outcome.unparsed, 'member')}",
        },
    )
