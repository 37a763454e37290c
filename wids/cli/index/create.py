"""``wids index create`` and ``update``: with a progress bar, and with what became of the shards at the end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from wids.cli.format import complain_each, count_of, format_size, print_json, shown_path
from wids.cli.progress import progress, quiet
from wids.cli.signals import Signals
from wids.index.writing import stem_of
from wids.jobs.index_create import create_index
from wids.jobs.index_edit import update_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.jobs.index_create import Outcome, Wanted


def create(
    sources: Sequence[str],
    output: str,
    *,
    name: str | None,
    info: str | None,
    base: str | None,
    wanted: Any,
    is_json: bool,
) -> None:
    """Write an index, and tell what is in it.

    Raises:
        WidsError: see `wids.jobs.index_create.create_index`.
    """
    with Signals(), quiet(), _shown(wanted, is_json=is_json) as show:
        outcome = create_index(
            list(_with_stdin(sources)),
            output,
            name=stem_of(output) if name is None else name or None,
            info=_text_of(info),
            base=base or None,
            wanted=wanted,
            show=show,
        )
    _tell(outcome, is_json=is_json)


def update(
    index: str,
    *,
    add: Sequence[str],
    drop: Sequence[str],
    is_dropping_missing: bool,
    wanted: Any,
    is_json: bool,
) -> None:
    """Bring an index up to date, and tell what changed.

    Raises:
        WidsError: see `wids.jobs.index_edit.update_index`.
    """
    with Signals(), quiet(), _shown(wanted, is_json=is_json) as show:
        outcome = update_index(
            index,
            add=list(_with_stdin(add)),
            drop=drop,
            is_dropping_missing=is_dropping_missing,
            wanted=wanted,
            show=show,
        )
    _tell(outcome, is_json=is_json)


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


def _text_of(info: str | None) -> str | None:
    """A text as it is; a file's name stands for what is in it."""
    if info and os.path.isfile(info):
        with open(info, encoding="utf-8", errors="replace") as file:
            return file.read()
    return info


@contextlib.contextmanager
def _shown(wanted: Wanted, *, is_json: bool) -> Iterator[Callable[[Outcome, int], None]]:
    """What shows how far it is: shards, and bytes of shards a second."""
    start = time.monotonic()
    verb = "summing" if wanted.has_md5 else "indexing"
    with progress("items", is_shown=not is_json) as bar:

        def show(outcome: Outcome, total: int) -> None:
            if not bar.is_shown:
                return
            rate = format_size(outcome.bytes / max(time.monotonic() - start, 1e-3))
            words = f"{verb} {rate}/s" + (f", {len(outcome.failed):,} failed" if outcome.failed else "")
            bar.update(outcome.surveyed + outcome.unchanged + len(outcome.failed), total=total, words=words)

        yield show


def _tell(outcome: Outcome, *, is_json: bool) -> None:
    complain_each([f"left out: {why}" for why in outcome.failed.values()])
    if is_json:
        print_json(msgspec.to_builtins(outcome))
        return
    told = [count_of(outcome.shards, "shard"), count_of(outcome.samples, "sample"), format_size(outcome.bytes)]
    print(f"{shown_path(outcome.output)}: {', '.join(told)}")
    counts = {
        "read": outcome.surveyed,
        "unchanged": outcome.unchanged,
        "added": outcome.added,
        "dropped": outcome.dropped,
        "left out": len(outcome.failed),
    }
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    words = f"{', '.join(parts)} in {outcome.seconds:.3g} s"
    if outcome.requests:
        words += f"; {format_size(outcome.read_bytes)} came in {count_of(outcome.requests, 'request')}"
    print(words)
    if outcome.tables:
        place = shown_path(os.path.dirname(outcome.output))
        print(f"{count_of(len(outcome.tables), 'member table')} in {place}: their shards' places cannot be written")
