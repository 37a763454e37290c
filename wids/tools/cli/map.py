"""``wids map``: new fields for each sample of a dataset, in shards beside those that it has, or as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wids.core.transport.session import PLAIN
from wids.tools.cli.format import count_of, format_size, print_error, print_outcome, print_table, shown_path, shown_url
from wids.tools.cli.options import CacheDir, Index, Json, Overwrite, RunFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from wids.jobs import MapOutcome, RunOptions

app: App = App()


@dataclass(frozen=True)
class MapFlags:
    """The samples, and what the function gets of them."""

    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            show_default=False,
            help="FUNCTION takes a list of N samples at most, and returns a list of as many results.",
        ),
    ] = None
    decode: Annotated[
        Literal["PIL", "numpy", "torch", "raw", "none"],
        typer.Option("--decode", help="The format in which FUNCTION gets the fields."),
    ] = "PIL"
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar=".EXT,...", help="Read only these fields. Default: all.", show_default=False),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help='Compute only samples for which it is true: "width >= 512", over the columns of `wids columns '
            'create`; "has_jpg and not has_txt" needs none. Repeatable. The rows of others have no fields.',
        ),
    ] = None


@dataclass(frozen=True)
class MapRunFlags(RunFlags):
    """Options of running the function."""

    num_gpus: Annotated[
        float | None,
        typer.Option(
            "--num-gpus",
            min=0,
            metavar="N",
            show_default=False,
            help="Of Ray: accelerators for each task, also a part of one.",
        ),
    ] = None
    num_cpus: Annotated[
        float | None,
        typer.Option(
            "--num-cpus", min=0, metavar="N", show_default=False, help="Of Ray: processors for each task. Default: 1."
        ),
    ] = None

    def options(self) -> RunOptions:
        """The options for the library.

        Raises:
            typer.BadParameter: these do not go together.
        """
        import msgspec

        if self.engine != "ray" and (self.num_gpus is not None or self.num_cpus is not None):
            raise typer.BadParameter("--num-gpus and --num-cpus go with --engine ray")
        return msgspec.structs.replace(RunFlags.options(self), num_cpus=self.num_cpus, num_gpus=self.num_gpus)


@app.command(
    "map",
    epilog=examples(
        "wids map train.json embed.py:Clip -o clip --dry-run 10",
        "wids map train.json embed.py:Clip -o clip \\\n  --batch-size 64",
        "wids map train.json score:f -o score.parquet --columns",
    ),
)
def run_map(
    index: Index,
    function: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="A function or a class, MODULE:NAME or FILE.py:NAME, also in the working directory.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="DIR|FILE", help="A directory or its URL; with --columns, a Parquet file."
        ),
    ],
    flags: MapFlags,
    run: MapRunFlags,
    *,
    columns: Annotated[
        bool,
        typer.Option("--columns", help="Results are numbers, texts and vectors: write a table, and no shards."),
    ] = False,
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix",
            metavar="NAME",
            help="Of the new fields where they are joined to the samples: clip for .clip.npy.",
            show_default=False,
        ),
    ] = "",
    max_errors: Annotated[
        float,
        typer.Option("--max-errors", min=0, max=1, metavar="SHARE", help="Samples that may fail, of those computed."),
    ] = 0.001,
    retries_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Compute shards anew in which samples failed in an earlier run.")
    ] = False,
    trial: Annotated[
        int | None,
        typer.Option(
            "--dry-run",
            min=1,
            metavar="N",
            help="Compute N samples, show the results, and write nothing.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
    cache_dir: CacheDir = "",
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Compute new fields for each sample, in shards beside those of INDEX; the shards of INDEX stay as they are.

    FUNCTION takes a sample, decoded as in training, and returns a dict of its new fields ({"npy": array}), or None. Of
    a class, each process makes one instance, for a model. DIR/index.json has the new shards, with the rows and keys of
    those of INDEX; DIR/joined.json has the samples of INDEX with their new fields. Samples that fail are named in
    DIR/errors.jsonl. A run that was ended goes on.
    """
    from wids import jobs
    from wids.tools.cli.progress import job_signals

    settings = jobs.MapSettings(
        fields=None if flags.fields is None else tuple(filter(None, flags.fields.split(","))),
        decode=flags.decode,
        batch_size=flags.batch_size,
        where=tuple(flags.where or ()),
        columns=columns,
        prefix=prefix,
        max_errors=max_errors,
        retries_errors=retries_errors,
        overwrite=overwrite,
        trial=trial,
        cache_dir=cache_dir or None,
        session=session,
    )
    with job_signals(resumes=trial is None):
        outcome = jobs.map(
            index, function, output, settings=settings, engine=run.options(), progress=None if is_json else "bar"
        )
    if trial is not None and not is_json:
        _show_trial(outcome)
    else:
        _report(outcome, index, is_json=is_json)


def _shown(url: str) -> str:
    from wids.core.place import Place

    return shown_path(Place(url).path) if Place(url).is_local else shown_url(url)


def _show_trial(outcome: MapOutcome) -> None:
    """Print the results of a trial."""
    rows = [
        (f"{each.index:,}", each.key, name, words)
        for each in outcome.trial
        for name, words in each.fields.items() or [("", "no fields" if each.error is None else each.error)]
    ]
    print_table((">index", "key", "field", "value"), rows)
    for each in outcome.trial:
        if each.error is not None:
            _print_trace([f"sample {each.index} failed: {each.error}", *each.trace])
            break
    print(f"{count_of(len(outcome.trial), 'sample')} computed, {outcome.errors} failed; nothing was written")


def _print_trace(lines: list[str]) -> None:
    print_error(lines[0])
    for line in lines[1:]:
        print_error(f"  {line}")


def _report(outcome: MapOutcome, index: str, *, is_json: bool) -> None:
    if outcome.first_error:
        _print_trace(outcome.first_error.split("\n"))
    counts = [f"{name} in {count:,}" for name, count in outcome.fields.items()]
    kinds = [f"{name} ({kind})" for name, kind in outcome.columns.items()]
    rows, size = count_of(outcome.samples, "row"), format_size(outcome.bytes)
    log = "" if outcome.error_log is None else f"; {_shown(outcome.error_log)} names them"
    print_outcome(
        outcome,
        f"{_shown(outcome.output)}: {rows}, {size}",
        is_json=is_json,
        counts={"shards": "shards", "known": "of an earlier run"},
        lines={
            "fields": f"fields: {', '.join(counts)}",
            "columns": f"columns: {', '.join(kinds)}",
            "empty": f"no fields: {count_of(outcome.empty, 'row')}",
            "joined": f"with the fields of {_shown(index)}: {_shown(outcome.joined or outcome.output)}",
            "errors": f"failed: {count_of(outcome.errors, 'sample')}{log}",
        },
    )
