"""``wids index create`` and ``update``: with a progress bar, and with what became of the shards at the end."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import msgspec
import typer

from wids.cli.format import count_of, format_size, print_errors, print_json, printable, shown_path, shown_url
from wids.cli.progress import job_signals
from wids.errors import OutputExistsError
from wids.index.writing import stem_of
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import update_index
from wids.transport.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.cli.index import ScanFlags
    from wids.jobs.index_create import IndexOutcome
    from wids.jobs.index_upload import IndexUpload, Published
    from wids.jobs.runner import RunOptions


def create(
    sources: Sequence[str],
    output: str,
    *,
    name: str | None,
    info: str | None,
    base: str | None,
    overwrite: bool,
    should_upload: bool,
    flags: ScanFlags,
    options: RunOptions,
    is_json: bool,
) -> None:
    """Write an index, publish it if asked, and print its counts.

    Raises:
        WidsError: see `wids.jobs.index_create.create_index` and `wids.jobs.index_upload.IndexUpload`.
    """
    sources, upload = list(_with_stdin(sources)), None
    if should_upload:
        from wids.jobs.index_upload import IndexUpload

        upload = IndexUpload(sources, session=flags.session)
        name = upload.name if name is None else name
    with job_signals():
        outcome = create_index(
            sources,
            output,
            name=stem_of(output) if name is None else name or None,
            info=_text_of(info, output),
            base=base or None,
            overwrite=overwrite,
            settings=_settings(flags),
            engine=options,
            progress=None if is_json else "bar",
        )
    _report(outcome, is_json=is_json, upload=upload)


def update(
    index: str,
    *,
    add: Sequence[str],
    drop: Sequence[str],
    is_dropping_missing: bool,
    flags: ScanFlags,
    options: RunOptions,
    is_json: bool,
) -> None:
    """Bring an index up to date, and print what changed.

    Raises:
        WidsError: see `wids.jobs.index_edit.update_index`.
    """
    with job_signals():
        outcome = update_index(
            index,
            add=list(_with_stdin(add)),
            drop=drop,
            settings=_settings(flags, is_dropping_missing=is_dropping_missing),
            engine=options,
            progress=None if is_json else "bar",
        )
    _report(outcome, is_json=is_json)


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
    for url, count in outcome.empty.items():
        files = f"; its {count_of(count, 'file')}: names without an extension, or with a dot first" if count else ""
        yield f"{shown_url(url)}: has no sample{files}"
    for url, first in outcome.repeated.items():
        yield f"{shown_url(url)}: is the same file as {shown_url(first)}, and comes once"
    if outcome.unused_counts:
        names = ", ".join(map(printable, outcome.unused_counts[:3])) + ", ..." * (len(outcome.unused_counts) > 3)
        yield f"{count_of(len(outcome.unused_counts), 'count')} of shards that are not in the index: {names}"


def _settings(flags: ScanFlags, *, is_dropping_missing: bool = False) -> IndexSettings:
    return IndexSettings(
        has_md5=flags.has_md5,
        checksums=flags.checksums,
        has_tables=flags.has_tables,
        is_skipping=flags.is_skipping,
        is_dropping_missing=is_dropping_missing,
        counts=tuple(flags.counts or ()),
        session=flags.session,
    )


def _report(outcome: IndexOutcome, *, is_json: bool, upload: IndexUpload | None = None) -> None:
    print_errors([f"left out: {why}" for why in outcome.failed.values()])
    print_errors([f"warning: {what}" for what in _warnings(outcome)])
    if is_json:
        published = {} if upload is None else {"upload": msgspec.to_builtins(upload.publish(outcome.output))}
        print_json({**msgspec.to_builtins(outcome), **published})
        return
    sums = [count_of(outcome.shards, "shard"), count_of(outcome.samples, "sample"), format_size(outcome.bytes)]
    print(f"{shown_path(outcome.output)}: {', '.join(sums)}")
    counts = {
        "read": outcome.surveyed,
        "unchanged": outcome.unchanged,
        "not read, by their counts": outcome.counted,
        "added": outcome.added,
        "dropped": outcome.dropped,
        "left out": len(outcome.failed),
    }
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    words = f"{', '.join(parts)} in {outcome.seconds:.3g} s"
    if outcome.requests:
        words += f"; {format_size(outcome.read_bytes)} came in {count_of(outcome.requests, 'request')}"
    print(words)
    for source, count in outcome.counts.items():
        print(f"{count_of(count, 'count')} from {shown_url(source)}")
    if outcome.repeated_keys:
        print(f"{count_of(outcome.repeated_keys, 'sample')} with a key that came before in the same shard")
    if outcome.left_files:
        print(
            f"{count_of(outcome.left_files, 'file')} of the shards in no sample: names without an extension, or with "
            "a dot first"
        )
    if outcome.tables:
        place = shown_path(os.path.dirname(outcome.output))
        print(f"{count_of(len(outcome.tables), 'member table')} in {place}: their shards' places cannot be written")
    if upload is not None:
        _report_upload(upload.publish(outcome.output))


def _report_upload(published: Published) -> None:
    root, split = published.root, published.split
    if published.change == "unchanged":
        print(f"{root}: {published.path} is there already, as it is (commit {published.commit[:12]})")
    else:
        print(f"{root}: {published.path} {published.change} by commit {published.commit[:12]}: {published.page}")
    print(f'wids.ShardListDataset("{root}", split="{split}") opens it without reading a shard')
