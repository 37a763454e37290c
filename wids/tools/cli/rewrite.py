"""``wids rewrite``: shards written anew without the samples that a view leaves out, or a dataset in new shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from wids.core.place import Place
from wids.core.transport.session import PLAIN
from wids.tools.cli.format import (
    count_of,
    format_rate,
    format_size,
    print_errors,
    print_outcome,
    printable,
    shown_path,
    shown_url,
)
from wids.tools.cli.options import CacheDir, Json, Overwrite, RunFlags, SamplesFlag, SessionFlag, SizeFlag
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from wids.jobs import RewriteOutcome


@dataclass(frozen=True)
class ShardsFlags:
    """Options of new shards."""

    samples: SamplesFlag = None
    size: SizeFlag = None
    fields: Annotated[
        str | None,
        typer.Option(
            metavar=".EXT,.EXT",
            help="These members only. .jpg;.png: the first of these that a sample has.",
            show_default=False,
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="These columns of `wids columns create` too, as a JSON object in each sample.",
            show_default=False,
        ),
    ] = None
    into: Annotated[
        str,
        typer.Option(metavar=".EXT", help="The member for --columns. An object that is there gets them as more keys."),
    ] = ".json"
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SQL",
            help="Only samples for which it is true; again for more. Over columns, key, has_jpg, and fields by "
            "extension (cls, txt), as for `wids pack`.",
        ),
    ] = None
    order_by: Annotated[
        str | None,
        typer.Option(metavar="SQL", help='In this order: "label, score desc", over the same.', show_default=False),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--shuffle", metavar="SEED", help="Shuffled; with --order-by, where that is equal.", show_default=False
        ),
    ] = None
    numbers_keys: Annotated[
        bool, typer.Option("--number-keys", help="Call samples 000000000, 000000001, ... and not by their names.")
    ] = False


app: App = App()


@app.command(
    "rewrite",
    epilog=examples(
        "wids rewrite train.json --exclude opted-out.txt \\\n  -o train-2.json",
        "wids rewrite view.json -o s3://bucket/clean --dry-run",
        "wids rewrite train.json --size 1GB --shuffle 1 \\\n  --columns label,score -o mixed",
    ),
)
def run_rewrite(
    index: Annotated[
        str,
        typer.Argument(
            metavar="INDEX",
            help="A view or a joined index (URL or path), or an index with --exclude or options of new shards.",
            show_default=False,
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="INDEX|DIR", help="The new index (.json), or its directory: a path or URL."
        ),
    ],
    shards: ShardsFlags,
    run: RunFlags,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="FILE",
            help="Without these too: a text with a key a line, a .npy of indices or a mask, or a .jsonl of bad "
            "samples; repeatable.",
        ),
    ] = None,
    *,
    is_trial: Annotated[bool, typer.Option("--dry-run", help="Write nothing, and say what would be written.")] = False,
    overwrite: Overwrite = False,
    cache_dir: CacheDir = "",
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Write shards anew, without the samples that a view leaves out, or a dataset into new ones.

    Of a view, new shards are beside the new index, under new names; shards that lack nothing stay where they are. The
    index says what each new shard was made of, so that a run that goes on reads no sample twice.

    With --samples, --size, --fields, --columns, --where, --order-by, --shuffle or --number-keys, and of a joined index:
    all samples go into new plain tars, named after the index, which names no other shards. Their bytes depend on the
    data and on these options alone. Killed and started again, it goes on where it was.

    Nothing is deleted: old shards are yours to delete.
    """
    from wids import jobs
    from wids.tools.cli.progress import job_signals

    settings = jobs.RewriteSettings(
        exclude=tuple(exclude or ()),
        samples=shards.samples,
        size=shards.size,
        fields=None if shards.fields is None else tuple(shards.fields.split(",")),
        columns=() if shards.columns is None else tuple(shards.columns.split(",")),
        into=shards.into,
        where=tuple(shards.where or ()),
        order_by=shards.order_by,
        seed=shards.seed,
        numbers_keys=shards.numbers_keys,
        is_trial=is_trial,
        cache_dir=cache_dir or None,
        overwrite=overwrite,
        session=session,
    )
    with job_signals():
        outcome = jobs.rewrite_shards(
            index, output, settings=settings, engine=run.options(), progress=None if is_json else "bar"
        )
    _report(outcome, is_trial=is_trial, is_json=is_json)


def _shown(url: str) -> str:
    return shown_path(Place(url).path) if Place(url).is_local else shown_url(url)


def _report(outcome: RewriteOutcome, *, is_trial: bool, is_json: bool) -> None:
    shards, samples = count_of(outcome.shards, "shard"), count_of(outcome.samples, "sample")
    size = f" ({format_size(outcome.bytes)})" if outcome.bytes else ""
    most = f" (at most {format_size(outcome.bytes)})" if outcome.bytes else ""
    is_kept = outcome.known or is_trial
    rate = "" if is_kept or not outcome.new else f", {format_rate(outcome.bytes, outcome.seconds)}"
    print_outcome(
        outcome,
        f"{_shown(outcome.index)}: {shards}, {samples}{'; nothing was written' if is_trial else ''}",
        is_json=is_json,
        counts={
            "unchanged": "unchanged",
            "written": f"to be written{size}" if is_trial else f"written anew{size}",
            "new": f"to be written{most}" if is_trial else f"new{size}{rate}",
        },
        lines={
            "facts": list(map(printable, outcome.facts)),
            "removed": f"{count_of(outcome.removed, 'sample')} left out",
            "known": f"{count_of(outcome.known, 'shard')} of an earlier run kept",
            "written": [f"written anew: {_shown(old)} -> {_shown(new)}" for old, new in outcome.written.items()],
            "dropped": [f"nothing stays of it: {_shown(old)}" for old in outcome.dropped],
        },
    )
    if is_json:
        return
    print_errors([f"note: {note}" for note in outcome.notes])
    if not is_trial and (old := [*outcome.written, *outcome.dropped]):
        print(f"to be deleted by you, with their tables, packs and columns: {count_of(len(old), 'old shard')}")
