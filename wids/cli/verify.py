"""``wids verify``: look at each shard of an index, and say what is wrong with which of them and what to do.

Rules: this module is light; what is heavy is imported when the command runs. All shards are looked at before anything
is told. Nothing is changed.
"""

from __future__ import annotations

import os
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from wids.cli.options import Index, Json, Shards, StorageOptions, check_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.index.spec import Shard
    from wids.jobs.inspection import Inspection
    from wids.jobs.problems import Finding, Looks

# So many problems of one shard are told one by one.
_MOST_TOLD = 10
_JOBS = 8


class _Rule(str, Enum):
    FIRST = "first-dot"
    LAST = "last-dot"


class _Group(str, Enum):
    ADJACENT = "adjacent"
    KEY = "key"


def add_command(app: typer.Typer) -> None:
    """Give the command to the command line."""
    examples = ("wids verify train.json", "wids verify https://host/data/train.json --shards 0:100 --decode")
    told = "\n\n".join(f"`{example}`" for example in examples)
    app.command("verify", epilog=f"Examples:\n\n{told}")(run_verify)


def run_verify(
    index: Index,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="Only see whether the shards are there, and of the right size.")
    ] = False,
    without_digest: Annotated[
        bool, typer.Option("--no-digest", help="Do not compare md5 digests; only headers are read then.")
    ] = False,
    is_decoded: Annotated[
        bool, typer.Option("--decode", help="Decode all members, too; name key and field of those that fail.")
    ] = False,
    shards: Shards = ":",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            show_default=False,
            help=f"Shards to look at at a time. Default: {_JOBS}; with --decode one for each core.",
        ),
    ] = None,
    rule: Annotated[_Rule, typer.Option("--key-rule", help="As the dataset has it.")] = _Rule.FIRST,
    group: Annotated[_Group, typer.Option("--group", help="As the dataset has it.")] = _Group.ADJACENT,
    storage_options: StorageOptions = None,
    is_json: Json = False,
) -> None:
    """Look for what is wrong with shards: missing, cut short, damaged, not what the index says.

    Compared with the index: size, md5 digest (where the index has one) and number of samples. Compared with the shard:
    its own tar headers, and the member tables beside it (.widx; DALI's .idx, Energon's .tar.idx).

    Local shards are read where they are. Others come into the temporary directory ($TMPDIR), one for each of --jobs at
    a time, and are deleted when they have been looked at. All shards are looked at, whatever is wrong with some; if
    anything is, the exit code is 1.
    """
    if is_quick and is_decoded:
        raise typer.BadParameter("--quick reads no shards, and --decode all of them; give one of them")
    from wids.cli.format import parse_range
    from wids.jobs.problems import Looks

    looks = Looks(
        is_quick=is_quick,
        has_digest=not without_digest,
        rule=rule.value,
        group=group.value,
        storage_options=storage_options,
    )
    if jobs is None:
        jobs = min(os.cpu_count() or 1, 64) if is_decoded else _JOBS
    _verify(
        index,
        selected=parse_range(shards, "--shards", "shards"),
        looks=looks,
        is_decoded=is_decoded,
        jobs=jobs,
        is_json=is_json,
    )


def _verify(index: str, *, selected: slice, looks: Looks, is_decoded: bool, jobs: int, is_json: bool) -> None:
    import msgspec

    from wids.cli.format import count_of
    from wids.cli.progress import quiet
    from wids.cli.signals import Signals
    from wids.collection import load_shards
    from wids.errors import WidsError
    from wids.jobs.inspection import Inspection

    check_index(index)
    _, listed, options = load_shards(index, storage_options=looks.storage_options)
    looks = msgspec.structs.replace(looks, storage_options=options)
    numbers = range(len(listed))[selected]
    if len(listed) and not numbers:
        lo, hi = ("" if end is None else end for end in (selected.start, selected.stop))
        raise WidsError(f"--shards {lo}:{hi}: there are no such shards; the index has {len(listed)}")
    chosen = [(k, listed[k]) for k in numbers]
    decode = None
    if is_decoded:
        from wids.codecs.decode import UNASKED, SampleDecoder

        decode = SampleDecoder("PIL", also=UNASKED)
    inspection = Inspection(chosen, looks=looks, decode=decode)
    with Signals(), quiet():
        _run(inspection, [shard for _, shard in chosen], jobs, is_shown=not is_json)
    if is_json:
        _print_json(index, inspection)
    else:
        _print_report(index, inspection, [shard for _, shard in chosen], looks)
    wrong = [finding for finding in inspection.findings if finding.problems]
    if wrong:
        kinds = Counter(problem.kind for finding in wrong for problem in finding.problems)
        told = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))
        verb = "is" if len(wrong) == 1 else "are"
        raise WidsError(f"{index}: {len(wrong):,} of {count_of(len(chosen), 'shard')} {verb} wrong ({told})")


def _run(inspection: Inspection, shards: Sequence[Shard], jobs: int, *, is_shown: bool) -> None:
    """Look at the shards, with a progress bar: of bytes where the index says how many there are."""
    from wids.cli.format import count_of
    from wids.cli.progress import progress

    sizes = [shard.filesize for shard in shards if shard.filesize is not None]
    has_sizes = len(sizes) == len(shards) and not inspection.is_quick
    total = sum(sizes) if has_sizes else len(shards)
    with progress("bytes" if has_sizes else "items", is_shown=is_shown) as bar:

        def show() -> None:
            if not bar.is_shown:
                return
            findings = inspection.findings[:]
            wrong = sum(bool(finding.problems) for finding in findings)
            words = f"{len(findings):,} of {count_of(len(shards), 'shard')}" + (f", wrong: {wrong:,}" if wrong else "")
            # By what the index says: a shard that is missing is done with, too.
            done = sum(inspection.promised[finding.number] for finding in findings) if has_sizes else len(findings)
            bar.update(done, total=total, words=words)

        show()
        inspection.run(jobs, show)


def _print_json(index: str, inspection: Inspection) -> None:
    import msgspec

    from wids.cli.format import print_json

    findings = inspection.findings
    print_json(
        {
            "index": index,
            "shards": len(findings),
            "wrong": sum(bool(finding.problems) for finding in findings),
            "bytes": sum(finding.size_bytes or 0 for finding in findings),
            "samples": sum(finding.nsamples or 0 for finding in findings),
            "seconds": round(inspection.seconds, 3),
            "undecoded": sum(finding.undecoded for finding in findings),
            "unused_tables": sum(finding.has_unused_table for finding in findings),
            "problems": [
                {"shard": finding.number, "url": finding.url, **msgspec.to_builtins(problem)}
                for finding in findings
                for problem in finding.problems
            ],
        }
    )


def _print_report(index: str, inspection: Inspection, shards: Sequence[Shard], looks: Looks) -> None:
    from wids.cli.format import count_of, format_size, print_table, shown_url

    findings = inspection.findings
    rows = list(_rows(findings))
    if rows:
        print_table(("shard", "what", "where", "what to do"), rows)
        print()
    size = sum(finding.size_bytes or 0 for finding in findings)
    samples = sum(finding.nsamples or 0 for finding in findings)
    words = f"{shown_url(index)}: {count_of(len(findings), 'shard')} of {format_size(size)}"
    if not looks.is_quick:
        words += f" and {count_of(samples, 'sample')}"
    words += f" looked at in {inspection.seconds:,.3g} s"
    if not looks.is_quick:
        words += f" ({format_size(size / max(inspection.seconds, 1e-9))}/s)"
    print(words if rows else f"{words}: all is well")
    if missing := _missing_words(shards, looks):
        print(f"not compared, for the index does not say: {missing}")
    if unused := sum(finding.has_unused_table for finding in findings):
        print(
            f"not used, for their shards have other times (copied without them?): {count_of(unused, 'member table')}; "
            "they are right, and `wids index create --members` makes them anew"
        )
    if undecoded := sum(finding.undecoded for finding in findings):
        print(f"not decoded, for that could run code (pickle): {count_of(undecoded, 'member')}")


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str, str]]:
    """The lines of the table; a shard's name once, and of a shard with very many problems the first ones."""
    from wids.cli.format import printable, shown_url
    from wids.index import urls

    for finding in findings:
        name = shown_url(urls.basename_of(finding.url) or finding.url)
        for problem in finding.problems[:_MOST_TOLD]:
            yield name, printable(problem.what), printable(problem.where), printable(problem.advice)
        if len(finding.problems) > _MOST_TOLD:
            yield name, f"and {len(finding.problems) - _MOST_TOLD:,} more", "", "--json lists them all"


def _missing_words(shards: Sequence[Shard], looks: Looks) -> str:
    """What the index does not say of how many shards."""
    from wids.cli.format import count_of

    told = [("size", sum(shard.filesize is None for shard in shards))]
    if not looks.is_quick:
        told.append(("number of samples", sum(shard.nsamples is None for shard in shards)))
        if looks.has_digest:
            told.append(("md5", sum(shard.md5sum is None for shard in shards)))
    return ", ".join(f"{what} of {count_of(count, 'shard')}" for what, count in told if count)
