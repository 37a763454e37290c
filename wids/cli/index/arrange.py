"""``wids index merge``, ``split``, ``rebase``, ``convert``, ``tables``: no shard is read but for its member table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer

from wids.cli.format import count_of, format_size, print_errors, print_json, shown_path
from wids.cli.progress import job_signals
from wids.index.writing import split_by_fractions, split_every, stem_of
from wids.jobs.index_edit import convert_index, merge_indexes, rebase_index, split_index
from wids.jobs.index_tables import TablesSettings, create_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.cli.index import TablesFlags
    from wids.jobs.index_edit import Merged
    from wids.jobs.index_tables import TablesOutcome
    from wids.jobs.progress import Progress
    from wids.jobs.runner import RunOptions


def pack(index: str, output: str | None, *, flags: TablesFlags, options: RunOptions, is_json: bool) -> None:
    """Write the pack of an index, and print its counts.

    Raises:
        WidsError: see `wids.jobs.index_tables.create_tables`.
    """
    settings = TablesSettings(is_skipping=flags.is_skipping, overwrite=flags.overwrite, session=flags.session)
    with job_signals():
        progress: Progress = None if is_json else "bar"
        outcome = create_tables(index, output, settings=settings, engine=options, progress=progress)
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


def merge(indexes: Sequence[str], output: str, *, name: str | None, overwrite: bool, is_json: bool) -> None:
    """Write one index of several.

    Raises:
        WidsError: one cannot be read, or the output not written.
    """
    _tell([merge_indexes(indexes, output, name=name, overwrite=overwrite)], is_json=is_json)


def split(
    index: str,
    *,
    every: int | None,
    fractions: list[float] | None,
    outputs: Sequence[str],
    overwrite: bool,
    is_json: bool,
) -> None:
    """Write several indexes of one.

    Raises:
        WidsError: it cannot be read, or not be split like this.
    """
    parts = partial(_parts_by_number, every) if every is not None else partial(_parts_by_fractions, fractions or [])
    names = outputs or [f"{stem_of(index)}-{{}}.json"]
    _tell(split_index(index, names, parts=parts, overwrite=overwrite), is_json=is_json)


def rebase(index: str, base: str, *, output: str | None, overwrite: bool, is_json: bool) -> None:
    """Say where the shards are now.

    Raises:
        WidsError: the index cannot be read or written, or its URLs have nothing in common.
    """
    _tell([rebase_index(index, base, output=output, overwrite=overwrite)], is_json=is_json)


def convert(index: str, output: str, *, overwrite: bool, is_json: bool) -> None:
    """Write the compiled form of an index.

    Raises:
        WidsError: the index cannot be read, or the output not written.
    """
    _tell([convert_index(index, output, overwrite=overwrite)], is_json=is_json)


def parse_fractions(text: str) -> list[float]:
    """``0.9,0.1``.

    Raises:
        typer.BadParameter: it is no list of numbers.
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--fractions {text!r} are no numbers; write them like 0.9,0.1") from None


def _parts_by_number(number: int, nsamples: list[int]) -> list[range]:
    return split_every(len(nsamples), number)


def _parts_by_fractions(fractions: list[float], nsamples: list[int]) -> list[range]:
    return split_by_fractions(nsamples, fractions)


def _tell(written: Sequence[Merged], *, is_json: bool) -> None:
    if is_json:
        print_json(msgspec.to_builtins(list(written)))
        return
    for each in written:
        words = f"{count_of(each.shards, 'shard')}, {count_of(each.samples, 'sample')}"
        if each.repeated or each.repeated_samples:
            again = each.repeated or count_of(each.repeated_samples, "sample")
            words += f" ({again} that came twice left out)"
        print(f"{shown_path(each.output)}: {words}")
