"""``wids verify``: look at each shard of an index, and print the problems of each and their remedies.

This module is light; heavy ones are imported when the command runs. All shards are looked at before anything is
printed. No shard, table or index is changed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.core.place import Place
from wids.core.transport.session import PLAIN
from wids.tools.cli.options import GroupFlag, Index, Json, Overwrite, RuleFlag, RunFlags, SessionFlag, Shards
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.jobs.index_verify import VerifyOutcome
    from wids.jobs.problems import Finding

# So many problems of one shard are printed one by one.
_MAX_PRINTED = 10


@dataclass(frozen=True)
class VerifyFlags:
    """Options of the shards to look at, and of how closely."""

    is_quick: Annotated[
        bool, typer.Option("--quick", help="Only see whether the shards are there, and of the right size.")
    ] = False
    without_digest: Annotated[
        bool, typer.Option("--no-digest", help="Do not compare checksums; only headers are read then.")
    ] = False
    is_decoded: Annotated[
        bool,
        typer.Option(
            "--decode",
            help="Decode all members, too (of a view: of its samples); name key and field of those that fail.",
        ),
    ] = False
    report: Annotated[
        str,
        typer.Option(
            "--report",
            metavar="FILE",
            help="With --decode: write the members that cannot be decoded to a .jsonl that `dataset.exclude` and "
            "`wids view --exclude` take.",
        ),
    ] = ""
    overwrite: Overwrite = False
    shards: Shards = ":"
    unique_keys: Annotated[
        bool, typer.Option("--unique-keys", help="Keys that several samples have are a fault, too: exit code 1.")
    ] = False
    max_keys: Annotated[
        int,
        typer.Option(
            "--max-keys",
            metavar="N",
            min=0,
            help="Compare the keys of so many samples, in 12 bytes of memory each, and count those left.",
        ),
    ] = 10_000_000
    rule: RuleFlag = None
    group: GroupFlag = None
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="A path or URL: remembers which shards were checked, until the run ends. Default: INDEX.verifying, if "
            "the index is a local file in a directory that can be written; else nothing is remembered.",
            show_default=False,
        ),
    ] = None
    session: SessionFlag = PLAIN


app: App = App()


@app.command(
    "verify",
    epilog=examples("wids verify train.json", "wids verify https://host/data/train.json \\\n  --shards 0:100 --decode"),
)
def run_verify(index: Index, flags: VerifyFlags, run: RunFlags, is_json: Json = False) -> None:
    """Look for faults of shards: missing, cut short, damaged, not what the index says.

    Compared with the index: size, checksums (where the index has some) and number of samples. Compared with the shard:
    its own tar headers, and its member tables (.widx, packs; DALI's .idx, Energon's .tar.idx).

    Local shards are read where they are. Others come into the temporary directory ($TMPDIR), one for each of --jobs at
    a time (by default 8; with --decode one for each core), and are deleted when they have been looked at. All shards
    are looked at, also after one with a problem; with any problem the exit code is 1. On a Ray cluster, each node reads
    the shards that it looks at, and the report is the same.

    Killed and started again, it goes on where it was: shards that were checked, and have not changed since, nor has
    what the index says of them, are not read again (--journal). --quick asks for all of them each time.
    """
    if flags.is_quick and flags.is_decoded:
        raise typer.BadParameter("--quick reads no shards, and --decode all of them; give one of them")
    if flags.report and not flags.is_decoded:
        raise typer.BadParameter("--report is for --decode; give that, too")
    if flags.unique_keys and (flags.is_quick or not flags.max_keys):
        raise typer.BadParameter("--unique-keys compares keys, and --quick and --max-keys 0 read none; leave one out")
    if flags.is_quick and flags.journal is not None:
        raise typer.BadParameter(
            "--quick asks for all shards each time, and --journal remembers some; give one of them"
        )
    from wids import jobs
    from wids.core.collection import error_log
    from wids.errors import JobError
    from wids.jobs.index_verify import find_journal
    from wids.tools.cli.format import advise_compiling, count_of, parse_range, shown_url
    from wids.tools.cli.progress import job_signals

    report = flags.report and error_log.check(flags.report, "a report of samples", overwrite=flags.overwrite)
    selected, options = parse_range(flags.shards, "--shards", "shards"), run.options()
    settings = jobs.VerifySettings(
        is_quick=flags.is_quick,
        has_digest=not flags.without_digest,
        rule=flags.rule,
        group=flags.group,
        session=flags.session,
    )
    with job_signals(resumes=flags.journal is not None or find_journal(index, settings) is not None):
        outcome = jobs.verify(
            index,
            settings,
            shards=selected,
            decode=_decoder(flags),
            max_keys=0 if flags.is_quick else flags.max_keys,
            journal=flags.journal,
            engine=options,
            progress=None if is_json else "bar",
        )
    if report:
        _write_report(report, outcome)
    _report(index, outcome, is_quick=settings.is_quick, is_json=is_json)
    advice = "" if outcome.is_view else advise_compiling(index, outcome.shards)
    if advice and not is_json:
        print(advice)
    if not is_json and any(problem.row is not None for finding in outcome.wrong for problem in finding.problems):
        first = "" if report else "--report bad.jsonl, then "
        way = f"wids view {shown_url(index)} --exclude {report or 'bad.jsonl'} -o good.json"
        print(f"to leave these samples out: {first}{way}")
    if outcome.wrong:
        kinds = Counter(problem.kind for finding in outcome.wrong for problem in finding.problems)
        words = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items()))
        verb = "is" if len(outcome.wrong) == 1 else "are"
        raise JobError(f"{index}: {len(outcome.wrong):,} of {count_of(outcome.shards, 'shard')} {verb} wrong ({words})")
    if flags.unique_keys and outcome.keys is not None and (outcome.keys.repeated or outcome.keys.left):
        repeated, left = count_of(outcome.keys.repeated, "sample"), count_of(outcome.keys.left, "sample")
        raise JobError(
            f"{index}: not all keys are known to be unique: {repeated} with one of another, {left} not compared"
        )


def _decoder(flags: VerifyFlags) -> Any:
    if not flags.is_decoded:
        return None
    from wids.core.codecs.decode import UNASKED, SampleDecoder

    return SampleDecoder("PIL", also=UNASKED)


def _write_report(path: str, outcome: VerifyOutcome) -> None:
    """Write a line for each member that cannot be decoded; see `wids.core.collection.error_log`."""
    from wids.core.collection import error_log
    from wids.core.files.atomic import write_atomically

    lines = [
        error_log.format_line(
            finding.url, row=found.row, key=found.key, field=found.field, error=found.detail or found.what
        )
        for finding in outcome.findings
        for found in finding.problems
        if found.row is not None
    ]
    write_atomically(path, b"".join(lines))


def _report(index: str, outcome: VerifyOutcome, *, is_quick: bool, is_json: bool) -> None:
    import msgspec

    from wids.tools.cli.format import (
        count_of,
        format_rate,
        format_size,
        print_outcome,
        print_table,
        printable,
        shown_url,
    )

    findings, keys = outcome.findings, outcome.keys
    example = None if keys is None else keys.example
    found: dict[str, Any] = {
        "index": index,
        "shards": len(findings),
        "wrong": len(outcome.wrong),
        "known": outcome.known,
        "bytes": sum(finding.size_bytes or 0 for finding in findings),
        "samples": sum(finding.nsamples or 0 for finding in findings),
        "seconds": round(outcome.seconds, 3),
        "left_files": sum(finding.left_files for finding in findings),
        "undecoded": sum(finding.undecoded for finding in findings),
        "repeated_keys": keys and keys.repeated,
        "repeated_key": None if example is None else example[0],
        "uncompared_keys": keys and keys.left,
        "unused_tables": sum(finding.has_unused_table for finding in findings),
        "problems": [
            {"shard": finding.number, "url": finding.url, **msgspec.to_builtins(problem)}
            for finding in findings
            for problem in finding.problems
        ],
    }

    def count(name: str, noun: str) -> str:
        return count_of(found[name] or 0, noun)

    if outcome.wrong and not is_json:
        print_table(("shard", "what", "where", "what to do"), _rows(findings))
        print()
    samples = "" if is_quick else f" and {count('samples', 'sample')}"
    rate = "" if is_quick or outcome.known else f" ({format_rate(found['bytes'], outcome.seconds)})"
    head = f"{count('shards', 'shard')} of {format_size(found['bytes'])}{samples} looked at in {outcome.seconds:,.3g} s"
    well = "" if outcome.wrong else ": all is well"
    missing = ", ".join(f"{what} of {count_of(number, 'shard')}" for what, number in outcome.unsaid.items())
    places = {finding.number: shown_url(Place(finding.url).name) for finding in findings}
    key, *numbers = example or ("",)
    shards = " and ".join(places[number] for number in dict.fromkeys(numbers))
    print_outcome(
        found,
        f"{shown_url(index)}: {head}{rate}{well}",
        is_json=is_json,
        lines={
            "known": f"not read again, because an earlier run has checked them: {count('known', 'shard')}",
            "shards": [f"not compared, because the index lacks them: {missing}"] if missing else [],
            "unused_tables": "not used, because their shards have other times (copied without them?): "
            f"{count('unused_tables', 'member table')}; they are right, and `wids index create --members` makes them "
            "again",
            "left_files": "in no sample, because their names have no extension or begin with a dot: "
            + count("left_files", "file"),
            "repeated_keys": f"with a key that another sample has, too: {count('repeated_keys', 'sample')}, such as "
            f"{printable(repr(key))} in {shards}; a list of keys (exclude, select) means all that have them",
            "uncompared_keys": "keys not compared (--max-keys, or checked by an earlier run): "
            + count("uncompared_keys", "sample"),
            "undecoded": f"not decoded, because that could run code (pickle): {count('undecoded', 'member')}",
        },
    )


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str, str]]:
    """The lines of the table; a shard's name once, and of a shard with very many problems the first ones."""
    from wids.tools.cli.format import printable, shown_url

    for finding in findings:
        name = shown_url(Place(finding.url).name or finding.url)
        for problem in finding.problems[:_MAX_PRINTED]:
            yield name, printable(problem.what), printable(problem.where), printable(problem.advice)
        if len(finding.problems) > _MAX_PRINTED:
            yield name, f"and {len(finding.problems) - _MAX_PRINTED:,} more", "", "--json lists them all"
