"""``wids pack``: a folder, a manifest or a dataset becomes shards with an index, by one command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.cli.advice import with_advice
from wids.cli.format import (
    count_of,
    format_rate,
    format_size,
    parse_range,
    parse_size,
    print_errors,
    print_json,
    printable,
    shown_path,
    shown_url,
)
from wids.cli.options import Json, RunFlags, SessionFlag
from wids.cli.plain_help import App
from wids.errors import SpecError, WidsError
from wids.transport.session import PLAIN, Session

if TYPE_CHECKING:
    from wids.writing.pack.run import PackOutcome
    from wids.writing.pack.shard import PackSettings
    from wids.writing.pack.sources import PackSource

_Format = Literal["auto", "folder", "files", "manifest", "dataset"]
_NAMED = 3  # files in a line


@dataclass(frozen=True)
class SourceFlags:
    """The source."""

    form: Annotated[
        _Format,
        typer.Option(
            "--format",
            metavar="KIND",
            help="What SOURCE is: folder (class/x.jpg), files (key.ext), manifest, dataset; or auto.",
        ),
    ] = "auto"
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar=".EXT=COLUMN", help="Of a manifest; again for each: .jpg=path, .cls=label, .json=a,b."
        ),
    ] = None
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a manifest: the keys. Default: rows are numbered.")
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="All classes by number, for labels and class folders: a name a line, a JSON list, or an index.",
        ),
    ] = None
    base: Annotated[str | None, typer.Option(metavar="DIR", help="Of a manifest: what its paths are relative to.")] = (
        None
    )
    keep_fields: Annotated[
        str | None,
        typer.Option(
            metavar=".EXT,.EXT",
            help="Pack these fields only (of files and datasets). .jpg;.png: the first of these that a sample has.",
        ),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SQL",
            help="Only samples for which it is true; again for more. Over key, fields by extension (cls, txt, json), "
            "has_jpg, and the columns beside the index: \"cls = 3 and txt ilike '%cat%'\".",
        ),
    ] = None
    cache_dir: Annotated[
        str, typer.Option(metavar="DIR", help="For remote shards of a dataset. Default: as for reading.")
    ] = ""
    session: SessionFlag = PLAIN

    def check(self, kind: str) -> None:
        """Refuse options that are not for this kind of source.

        Raises:
            typer.BadParameter: there is one.
        """
        if kind == "manifest":
            if not self.fields:
                raise typer.BadParameter("say what samples of a manifest hold: --field .jpg=COLUMN --field .cls=COLUMN")
        elif self.fields or self.key or self.base:
            raise typer.BadParameter(
                f"--field, --key and --base are for manifests, and SOURCE is taken as {kind}; for other manifests than "
                "those above say --format manifest"
            )
        if self.keep_fields is not None and kind not in ("files", "dataset"):
            raise typer.BadParameter(f"--keep-fields is for files and datasets, and SOURCE is taken as {kind}")
        if self.classes is not None and kind not in ("folder", "manifest"):
            raise typer.BadParameter(f"--classes is for class folders and manifests, and SOURCE is taken as {kind}")

    def source(self) -> PackSource:
        """What the library takes.

        Raises:
            InputError: an extension is empty, or stands in two fields. SpecError: a field is malformed.
        """
        from wids.tables.fields import parse_fields
        from wids.writing.pack.sources import PackSource, parse_rules

        keep_fields = None if self.keep_fields is None else tuple(self.keep_fields.split(","))
        parse_rules(self.fields or ())  # before anything is looked at
        parse_fields(keep_fields or ())
        return PackSource(
            form=self.form,
            fields=tuple(self.fields or ()),
            key=self.key,
            base=self.base,
            classes=self.classes,
            keep_fields=keep_fields,
            where=tuple(self.where or ()),
            cache_dir=self.cache_dir or None,
        )


@dataclass(frozen=True)
class PackFlags:
    """How it is packed."""

    samples: Annotated[
        int | None, typer.Option("--samples", min=1, metavar="N", help="Samples per shard at most. Default: 10000.")
    ] = None
    size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes per shard at most: 200MB, 1GiB.")
    ] = None
    selected: Annotated[
        str,
        typer.Option(
            "--range", metavar="A:B", help="Of those, only samples A to B - 1, counted from 0.", show_default=False
        ),
    ] = ":"
    seed: Annotated[
        int | None,
        typer.Option("--shuffle", metavar="SEED", help="Shuffle all samples first. Default: 0 for class folders."),
    ] = None
    keeps_order: Annotated[
        bool, typer.Option("--no-shuffle", help="Keep the order: of class folders, one class after the other.")
    ] = False
    numbers_keys: Annotated[
        bool, typer.Option("--number-keys", help="Call samples 000000000, 000000001, ... and not by their names.")
    ] = False
    skips_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out samples that cannot be packed, and say which.")
    ] = False
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the dataset. Default: from PATTERN.")] = None
    has_md5: Annotated[bool, typer.Option("--md5/--no-md5", help="Put checksums (md5 and CRC-32) into the index.")] = (
        True
    )
    has_tables: Annotated[
        bool, typer.Option("--tables/--no-tables", help="Write each shard's member table (.widx) beside it.")
    ] = True
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier dataset of this PATTERN.")] = False

    def settings(self, output: str, session: Session) -> PackSettings:
        """What the library takes.

        Raises:
            SpecError: the output is no pattern. typer.BadParameter: the range is none, or two flags contradict.
        """
        if self.keeps_order and self.seed is not None:
            raise typer.BadParameter("--shuffle and --no-shuffle are given; take one of them")
        from wids.writing.output import parse_pattern
        from wids.writing.pack.shard import PackSettings

        parse_pattern(output)
        return PackSettings(
            output=output,
            samples=self.samples,
            size=self.size,
            selected=parse_range(self.selected, "--range", "samples"),
            seed=self.seed,
            keeps_order=self.keeps_order,
            numbers_keys=self.numbers_keys,
            skips_errors=self.skips_errors,
            md5=self.has_md5,
            tables=self.has_tables,
            name=self.name,
            overwrite=self.overwrite,
            session=session,
        )


@dataclass(frozen=True)
class PackRunFlags(RunFlags):
    """As for other commands, and 0 jobs are as many as there are CPUs."""

    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=0, max=1024, metavar="N", help="Processes. 0: one for each CPU, 8 at most."),
    ] = 0


app = App()


@app.command("pack")
def run_pack(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A folder, manifests (.csv .tsv .jsonl .parquet), an index, or tars; several are one dataset.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATTERN", help="Path or URL: 'out/train-%06d.tar'.")
    ],
    flags: SourceFlags,
    how: PackFlags,
    run: PackRunFlags,
    is_json: Json = False,
) -> None:
    """Pack a folder, a manifest or a dataset into shards, with their index and member tables.

    The shards' bytes depend on the source and on these options alone, not on --jobs or --engine. Killed and started
    again, it goes on where it was; the index appears last.

    `wids pack photos -o 'out/train-%06d.tar'` packs images by class, photos/cat/1.jpg, and shuffles them.

    `wids pack rows.csv --field .jpg=path --field .cls=label -o 's3://bucket/train-%06d.tar' --size 500MB`

    `wids pack 'part-*.parquet' --field .jpg=image --field .cls=label --classes names.txt -o 'out/train-%06d.tar'`

    `wids pack train.json --where "cls = 3 and json->>'caption' ilike '%cat%'" -o 'cats/train-%06d.tar'`

    `wids pack out/train.json --shuffle 1 --samples 5000 -o 'mixed/train-%06d.tar'`
    """
    from wids.cli.progress import job_signals
    from wids.cli.signals import Signals
    from wids.writing.pack.run import pack_listing
    from wids.writing.pack.sources import NAMES, find_sources, list_source

    try:
        settings, wanted = how.settings(output, flags.session), flags.source()
    except (SpecError, ValueError) as error:
        raise typer.BadParameter(with_advice(error) if isinstance(error, WidsError) else str(error)) from None
    options = run.options()
    with Signals():
        sources, kind = find_sources(sources, wanted, flags.session)
        flags.check(kind)
        settings = settings.for_kind(kind)
        listing = list_source(kind, sources, wanted, settings, is_shown=not is_json)
    with job_signals():
        outcome = pack_listing(listing, settings, engine=options, progress=None if is_json else "bar")
    source = shown_url(sources[0])
    if len(sources) > 1:
        source = f"{len(sources):,} sources, {source} to {shown_url(sources[-1])}"
    _report(outcome, source=f"{source}, taken as {NAMES[kind]}" if flags.form == "auto" else source, is_json=is_json)


def _report(outcome: PackOutcome, *, source: str, is_json: bool) -> None:
    if is_json:
        print_json(outcome, skipped=_plain(outcome))
        return
    rate = format_rate(outcome.bytes, outcome.seconds)
    done = f"{count_of(outcome.samples, 'sample')} in {count_of(outcome.shards, 'shard')}, {format_size(outcome.bytes)}"
    done += f", in {outcome.seconds:,.3g} s" + ("" if outcome.kept else f" ({rate})")
    parts = list[str]()
    if outcome.kept:
        parts.append(f"{count_of(outcome.kept, 'shard')} of an earlier run kept")
    if outcome.removed:
        parts.append(f"{count_of(outcome.removed, 'older shard')} removed")
    parts += outcome.facts
    if outcome.ignored:
        named = ", ".join(shown_path(path) for path in outcome.ignored_files[:_NAMED])
        more = ", ..." if outcome.ignored > _NAMED else ""
        parts.append(f"{count_of(outcome.ignored, 'file')} ignored ({named}{more})")
    if outcome.unmatched:
        parts.append(f"{count_of(outcome.unmatched, 'sample')} not wanted")
    if outcome.skipped:
        parts.append(f"{count_of(len(outcome.skipped), 'sample')} left out")
    print(f"{printable(source)}: {done}: {shown_url(outcome.index)}")
    for part in parts:
        print(printable(part))
    print_errors([f"note: {note}" for note in outcome.notes])
    print_errors([f"left out: {problem.why}" for problem in outcome.skipped])


def _plain(outcome: PackOutcome) -> list[dict[str, str]]:
    return [{"sample": problem.place, "why": problem.why} for problem in outcome.skipped]
