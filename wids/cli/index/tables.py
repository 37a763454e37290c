"""``wids index tables``: with a progress bar, and with what became of the shards at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wids.cli.format import count_of, format_size, print_errors, print_json, shown_path
from wids.cli.progress import job_bar
from wids.jobs.index_tables import TablesSettings, pack_tables

if TYPE_CHECKING:
    from wids.cli.index import TablesFlags
    from wids.jobs.index_tables import TablesOutcome
    from wids.jobs.runner import RunOptions


def pack(index: str, output: str | None, *, flags: TablesFlags, options: RunOptions, is_json: bool) -> None:
    """Write the pack of an index, and print its counts.

    Raises:
        WidsError: see `wids.jobs.index_tables.pack_tables`.
    """
    settings = TablesSettings(
        is_skipping=flags.is_skipping, overwrite=flags.overwrite, storage_options=flags.storage_options
    )
    with job_bar("packing", is_shown=not is_json) as show:
        outcome = pack_tables(index, output, settings=settings, options=options, show=show)
    print_errors([f"left out: {why}" for why in outcome.failed.values()])
    if is_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _report(outcome)


def _report(outcome: TablesOutcome) -> None:
    tables = f"{count_of(outcome.tables, 'member table')} of {count_of(outcome.shards, 'shard')}"
    print(f"{shown_path(outcome.output)}: {tables}, {format_size(outcome.bytes)}; {shown_path(outcome.index)} names it")
    counts = {
        "from beside the shards": outcome.beside,
        "from the shards": outcome.scanned,
        "from a run that was ended": outcome.known,
        "left out": len(outcome.failed),
    }
    words = f"{', '.join(f'{count:,} {word}' for word, count in counts.items() if count)} in {outcome.seconds:.3g} s"
    if outcome.requests:
        words += f"; {format_size(outcome.read_bytes)} came in {count_of(outcome.requests, 'request')}"
    print(words)
