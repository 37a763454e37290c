"""``wids pack``: a folder, a manifest or a dataset becomes shards with an index, by one command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wids.cli.format import complain_each, count_of, format_size, parse_range, parse_size, print_json, shown_url
from wids.cli.options import Json, StorageOptions  # noqa: TC001 - typer reads the annotations
from wids.errors import SpecError, WidsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.cli.progress import Bar
    from wids.writing.pack.listing import Listing
    from wids.writing.pack.run import Outcome, Progress, Settings

_Format = Literal["auto", "folder", "files", "manifest", "dataset"]
_NAMES = {
    "folder": "images by class",
    "files": "files key.ext",
    "manifest": "a manifest",
    "dataset": "a dataset",
}
_MOST_JOBS = 8


def run_pack(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A folder, a manifest (.csv .tsv .jsonl .parquet), an index, or tars."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PATTERN", help="Path or URL: 'out/train-%06d.tar'.")
    ],
    form: Annotated[
        _Format,
        typer.Option(
            "--format",
            metavar="KIND",
            help="What SOURCE is: folder (class/x.jpg), files (key.ext), manifest, dataset; or auto.",
        ),
    ] = "auto",
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples per shard at most. Default: 10000.")
    ] = None,
    size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes per shard at most: 200MB, 1GiB.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar=".EXT=COLUMN", help="Of a manifest; again for each: .jpg=path, .cls=label, .json=a,b."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a manifest: the keys. Default: rows are numbered.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="DIR", help="Of a manifest: what its paths are relative to.")
    ] = None,
    keep_fields: Annotated[
        str | None, typer.Option(metavar=".EXT,.EXT", help="Pack these fields only (of files and datasets).")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Only samples that meet it; again for more: key~^n01 (a regular expression), .cls=3, "
            ".json:caption~cat, .json:size.width>=512, .jpg (has one). Also != !~ < <= >.",
        ),
    ] = None,
    selected: Annotated[
        str, typer.Option("--range", metavar="A:B", help="Of those, only samples A to B - 1, counted from 0.")
    ] = ":",
    seed: Annotated[int | None, typer.Option("--shuffle", metavar="SEED", help="Shuffle all samples first.")] = None,
    numbers_keys: Annotated[
        bool, typer.Option("--number-keys", help="Call samples 000000000, 000000001, ... and not by their names.")
    ] = False,
    skips_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Leave out samples that cannot be packed, and say which.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=0, max=256, metavar="N", help="Processes. 0: one for each CPU, 8 at most.")
    ] = 0,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the dataset. Default: from PATTERN.")] = None,
    has_md5: Annotated[bool, typer.Option("--md5/--no-md5", help="Put each shard's md5 into the index.")] = True,
    has_tables: Annotated[
        bool, typer.Option("--tables/--no-tables", help="Write each shard's member table (.widx) beside it.")
    ] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier dataset of this PATTERN.")] = False,
    cache_dir: Annotated[
        str, typer.Option(metavar="DIR", help="For remote shards of a dataset. Default: as for reading.")
    ] = "",
    storage_options: StorageOptions = None,
    is_json: Json = False,
) -> None:
    """Pack a folder, a manifest or a dataset into shards, with their index and member tables.

    The shards' bytes depend on the source and on these options alone, not on --jobs. Killed and started again, it goes
    on where it was; the index appears last.

    `wids pack photos -o 'out/train-%06d.tar'` packs images by class, photos/cat/1.jpg.

    `wids pack rows.csv --field .jpg=path --field .cls=label -o 's3://bucket/train-%06d.tar' --size 500MB`

    `wids pack train.json --where .cls=3 --where '.json:caption~(?i)cat' -o 'cats/train-%06d.tar'`

    `wids pack out/train.json --shuffle 1 --samples 5000 -o 'mixed/train-%06d.tar'`
    """
    from wids.cli.progress import progress
    from wids.cli.signals import Signals
    from wids.writing.pack.manifest import list_rows, parse_field
    from wids.writing.pack.run import Settings, pack
    from wids.writing.pack.where import keep_matching, parse_condition

    try:
        parsed = [parse_field(text) for text in fields or ()]
        conditions = [parse_condition(text) for text in where or ()]
        settings = Settings(
            output=_parse_output(output),
            samples=samples,
            size=size,
            selected=parse_range(selected, "--range", "samples"),
            seed=seed,
            numbers_keys=numbers_keys,
            skips_errors=skips_errors,
            jobs=jobs or min(os.cpu_count() or 1, _MOST_JOBS),
            md5=has_md5,
            tables=has_tables,
            name=name,
            overwrite=overwrite,
            storage_options=storage_options,
        )
    except (SpecError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    kind = _find_format(source) if form == "auto" else form
    kept = None if keep_fields is None else frozenset(_extension(text) for text in keep_fields.split(","))
    _check_options(kind, fields=parsed, key=key, base=base, kept=kept)
    source = os.path.expanduser(source)
    with Signals():
        with progress(is_shown=not is_json) as bar:

            def tell(count: int) -> None:
                bar.update(count, words=f"listing {source}")

            if kind == "manifest":
                listing = list_rows(
                    source,
                    fields=parsed,
                    key=key,
                    base=base,
                    numbers_keys=numbers_keys,
                    storage_options=storage_options,
                    tell=tell,
                )
            else:
                listing = _list(kind, source, settings=settings, kept=kept, cache_dir=cache_dir, tell=tell)
        if conditions:
            with progress(is_shown=not is_json) as bar:
                total = len(listing.items)
                bar.update(0, total=total, words="choosing")
                keep_matching(
                    listing,
                    conditions,
                    skips_errors=skips_errors,
                    tell=lambda count: bar.update(count, total=total, words="choosing"),
                )
        with progress(is_shown=not is_json) as bar:
            outcome = pack(listing, settings, lambda state: _show(bar, state))
    _say(outcome, source=f"{source}, taken as {_NAMES[kind]}" if form == "auto" else source, is_json=is_json)


def _show(bar: Bar, state: Progress) -> None:
    bar.update(state.samples, total=state.total, words=f"packing, {format_size(state.bytes)}")


def _parse_output(text: str) -> str:
    from wids.index.pattern import parse_pattern

    parse_pattern(text)
    return text


def _extension(text: str) -> str:
    text = text.strip()
    return text if text.startswith(".") else f".{text}"


def _find_format(source: str) -> str:
    """What a source looks like.

    Raises:
        WidsError: like nothing that can be packed.
    """
    from wids.writing.pack.datasets import is_dataset
    from wids.writing.pack.folders import guess_format
    from wids.writing.pack.manifest import SUFFIXES

    path = os.path.expanduser(source)
    if os.path.isdir(path):
        return guess_format(path)
    if source.lower().endswith(SUFFIXES):
        return "manifest"
    if is_dataset(source):
        return "dataset"
    if not os.path.exists(path) and "://" not in source:
        raise WidsError(f"{source}: there is no such folder or file")
    raise WidsError(
        f"{source}: is no folder, manifest ({' '.join(SUFFIXES)}), index (.json) or tar; say what it is with --format"
    )


def _check_options(form: str, *, fields: list[Any], key: str | None, base: str | None, kept: Any) -> None:
    if form == "manifest":
        if not fields:
            raise typer.BadParameter("say what samples of a manifest hold: --field .jpg=COLUMN --field .cls=COLUMN")
        if len({rule.extension for rule in fields}) < len(fields):
            raise typer.BadParameter("two --field give the same extension; one would hide the other")
    elif fields or key or base:
        raise typer.BadParameter(f"--field, --key and --base are for manifests, and SOURCE is taken as {form}")
    if kept is not None and form not in ("files", "dataset"):
        raise typer.BadParameter(f"--keep-fields is for files and datasets, and SOURCE is taken as {form}")


def _list(
    form: str,
    source: str,
    *,
    settings: Settings,
    kept: frozenset[str] | None,
    cache_dir: str,
    tell: Callable[[int], None],
) -> Listing:
    from wids.writing.pack import datasets, folders

    if form in ("folder", "files") and not os.path.isdir(source):
        raise WidsError(f"{source}: is no folder" if os.path.exists(source) else f"{source}: there is no such folder")
    if form == "folder":
        return folders.list_images(source, numbers_keys=settings.numbers_keys, tell=tell)
    if form == "files":
        return folders.list_files(source, numbers_keys=settings.numbers_keys, keep_fields=kept, tell=tell)
    from wids.readers.store import default_cache_dir

    shards: Any = source
    if os.path.isdir(source):
        shards = sorted(os.path.join(source, name) for name in os.listdir(source) if name.endswith(".tar"))
    return datasets.list_dataset(
        shards,
        cache_dir=cache_dir or default_cache_dir(),
        keep_fields=kept,
        storage_options=settings.storage_options,
        tell=tell,
    )


def _say(outcome: Outcome, *, source: str, is_json: bool) -> None:
    if is_json:
        import msgspec

        print_json(msgspec.to_builtins({**msgspec.structs.asdict(outcome), "skipped": _plain(outcome)}))
        return
    rate = format_size(outcome.bytes / max(outcome.seconds, 1e-9))
    done = f"{count_of(outcome.samples, 'sample')} in {count_of(outcome.shards, 'shard')}, {format_size(outcome.bytes)}"
    parts = [f"{done}, in {outcome.seconds:,.3g} s" + ("" if outcome.kept else f" ({rate}/s)")]
    if outcome.kept:
        parts.append(f"{count_of(outcome.kept, 'shard')} of an earlier run kept")
    if outcome.removed:
        parts.append(f"{count_of(outcome.removed, 'older shard')} removed")
    if outcome.ignored:
        parts.append(f"{count_of(outcome.ignored, 'file')} ignored")
    if outcome.unmatched:
        parts.append(f"{count_of(outcome.unmatched, 'sample')} not wanted")
    if outcome.skipped:
        parts.append(f"{count_of(len(outcome.skipped), 'sample')} left out")
    print(f"{shown_url(source)}: {'; '.join(parts)}: {shown_url(outcome.index)}")
    complain_each([f"left out: {problem.why}" for problem in outcome.skipped])


def _plain(outcome: Outcome) -> list[dict[str, str]]:
    return [{"sample": problem.place, "why": problem.why} for problem in outcome.skipped]
