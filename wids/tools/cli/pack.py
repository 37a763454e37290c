"""``wids pack``: a folder, a manifest or a dataset becomes shards with an index, by one command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from wids.core.place import Place
from wids.core.transport.session import PLAIN, Session
from wids.tools.cli.format import (
    count_of,
    format_rate,
    format_size,
    parse_range,
    print_errors,
    print_outcome,
    printable,
    shown_path,
    shown_url,
)
from wids.tools.cli.options import Json, RunFlags, SamplesFlag, SessionFlag, SizeFlag
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from wids.jobs import PackOutcome, PackSettings, PackSource

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

    def source(self) -> PackSource:
        """The source for the library."""
        from wids.jobs import PackSource

        return PackSource(
            form=self.form,
            fields=tuple(self.fields or ()),
            key=self.key,
            base=self.base,
            classes=self.classes,
            keep_fields=None if self.keep_fields is None else tuple(self.keep_fields.split(",")),
            where=tuple(self.where or ()),
            cache_dir=self.cache_dir or None,
        )


@dataclass(frozen=True)
class PackFlags:
    """Options of packing."""

    samples: SamplesFlag = None
    size: SizeFlag = None
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
        """The settings for the library.

        Raises:
            typer.BadParameter: the range is none, or two flags contradict.
        """
        if self.keeps_order and self.seed is not None:
            raise typer.BadParameter("--shuffle and --no-shuffle are given; take one of them")
        from wids.jobs import PackSettings

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
    """Options of running, as of other commands; 0 jobs are as many as there are CPUs."""

    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=0, max=1024, metavar="N", help="Processes. 0: one for each CPU, 8 at most."),
    ] = 0


app: App = App()


@app.command(
    "pack",
    epilog=examples(
        "wids pack photos -o 'out/train-%06d.tar'",
        "wids pack rows.csv --field .jpg=path \\\n"
        "  --field .cls=label -o 's3://bucket/train-%06d.tar' \\\n"
        "  --size 500MB",
        "wids pack 'part-*.parquet' --field .jpg=image \\\n"
        "  --field .cls=label --classes names.txt \\\n"
        "  -o 'out/train-%06d.tar'",
        "wids pack train.json \\\n  --where \"(json->>'caption') ilike '%a cat%'\" \\\n  -o 'cats/train-%06d.tar'",
        "wids pack out/train.json --shuffle 1 --samples 5000 \\\n  -o 'mixed/train-%06d.tar'",
    ),
)
def run_pack(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="A folder, also of datasets, MosaicML or LitData; manifests (.csv .tsv .jsonl .parquet .arrow), an "
            "index, or tars; several are one dataset.",
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

    Images of a folder for each class, as photos/cat/1.jpg, are labelled and shuffled.

    The shards' bytes depend on the source and on these options alone, not on --jobs or --engine. Killed and started
    again, it goes on where it was; the index appears last.
    """
    from wids import jobs
    from wids.tools.cli.progress import job_signals

    settings, engine = how.settings(output, flags.session), run.options()
    with job_signals():
        outcome = jobs.pack(
            sources, settings, source=flags.source(), engine=engine, progress=None if is_json else "bar"
        )
    _report(outcome, is_guessed=flags.form == "auto", is_json=is_json)


def _shown(place: str) -> str:
    """A path relative to the current directory, or a URL without its secrets."""
    return shown_path(Place(place).path) if Place(place).is_local else shown_url(place)


def _report(outcome: PackOutcome, *, is_guessed: bool, is_json: bool) -> None:
    from wids.writing.pack.sources import NAMES

    # Without the sources, which the caller knows, and in JSON may be many.
    found = {name: value for name, value in msgspec.to_builtins(outcome).items() if name not in ("sources", "form")}
    found["skipped"] = [{"sample": problem.place, "why": problem.why} for problem in outcome.skipped]
    first, last, count = _shown(outcome.sources[0]), _shown(outcome.sources[-1]), len(outcome.sources)
    source = first if count == 1 else f"{count:,} sources, {first} to {last}"
    if is_guessed:
        source += f", taken as {NAMES[outcome.form]}"
    rate = format_rate(outcome.bytes, outcome.seconds)
    done = f"{count_of(outcome.samples, 'sample')} in {count_of(outcome.shards, 'shard')}, {format_size(outcome.bytes)}"
    done += f", in {outcome.seconds:,.3g} s" + ("" if outcome.kept else f" ({rate})")
    named = ", ".join(shown_path(path) for path in outcome.ignored_files[:_NAMED])
    more = ", ..." if outcome.ignored > _NAMED else ""
    print_outcome(
        found,
        f"{printable(source)}: {done}: {_shown(outcome.index)}",
        is_json=is_json,
        lines={
            "kept": f"{count_of(outcome.kept, 'shard')} of an earlier run kept",
            "removed": f"{count_of(outcome.removed, 'older shard')} removed",
            "facts": list(map(printable, outcome.facts)),
            "ignored": f"{count_of(outcome.ignored, 'file')} ignored ({named}{more})",
            "unmatched": f"{count_of(outcome.unmatched, 'sample')} not wanted",
            "skipped": f"{count_of(len(outcome.skipped), 'sample')} left out",
        },
    )
    if not is_json:
        print_errors([f"note: {note}" for note in outcome.notes])
        print_errors([f"left out: {problem.why}" for problem in outcome.skipped])
