"""``wids rewrite``: shards written anew without the samples that a view leaves out."""

from __future__ import annotations

from typing import Annotated

import typer

from wids.core.transport.session import PLAIN
from wids.tools.cli.format import count_of, format_size, print_outcome, shown_path, shown_url
from wids.tools.cli.options import CacheDir, Json, Overwrite, RunFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples

app: App = App()


@app.command(
    "rewrite",
    epilog=examples(
        "wids rewrite train.json --exclude opted-out.txt \\\n  -o train-2.json",
        "wids rewrite view.json -o s3://bucket/clean --dry-run",
    ),
)
def run_rewrite(
    view: Annotated[
        str,
        typer.Argument(metavar="VIEW", help="A view (URL or path), or an index with --exclude.", show_default=False),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="INDEX|DIR", help="The new index (.json), or its directory: a path or URL."
        ),
    ],
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
    """Write shards anew without the samples that a view leaves out, so that their bytes are gone.

    New shards are beside the new index, under new names; shards that lack nothing stay where they are. The index says
    what each new shard was made of, so that a run that goes on reads no sample twice. Nothing is deleted: the old
    shards are named, for you to delete them.
    """
    from wids import jobs
    from wids.core.place import Place
    from wids.tools.cli.progress import job_signals

    settings = jobs.RewriteSettings(
        exclude=tuple(exclude or ()),
        is_trial=is_trial,
        cache_dir=cache_dir or None,
        overwrite=overwrite,
        session=session,
    )
    with job_signals():
        outcome = jobs.rewrite_shards(
            view, output, settings=settings, engine=run.options(), progress=None if is_json else "bar"
        )

    def shown(url: str) -> str:
        return shown_path(Place(url).path) if Place(url).is_local else shown_url(url)

    shards, samples = count_of(outcome.shards, "shard"), count_of(outcome.samples, "sample")
    size = f" ({format_size(outcome.bytes)})" if outcome.bytes else ""
    print_outcome(
        outcome,
        f"{shown(outcome.index)}: {shards}, {samples}{'; nothing was written' if is_trial else ''}",
        is_json=is_json,
        counts={"unchanged": "unchanged", "written": f"to be written{size}" if is_trial else f"written anew{size}"},
        lines={
            "removed": f"{count_of(outcome.removed, 'sample')} left out",
            "known": f"{count_of(outcome.known, 'shard')} of an earlier run kept",
            "written": [f"written anew: {shown(old)} -> {shown(new)}" for old, new in outcome.written.items()],
            "dropped": [f"nothing stays of it: {shown(old)}" for old in outcome.dropped],
        },
    )
    if not is_json and not is_trial and (old := [*outcome.written, *outcome.dropped]):
        print(f"to be deleted by you, with their tables, packs and columns: {count_of(len(old), 'old shard')}")
