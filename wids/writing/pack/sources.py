"""The sources of `wids.jobs.pack`: finds them by name, lists them, and chooses samples."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from wids.core.files.own_folder import default_cache_dir
from wids.core.files.terminal import progress as bar_of
from wids.core.index.discovery import recognise_foreign
from wids.core.index.paths import absolute
from wids.core.place import cache_directory
from wids.core.tables.fields import parse_fields
from wids.errors import InputError
from wids.hub.repository import parse_name
from wids.jobs.arguments import Text, check_job, check_struct, text_of, texts_of
from wids.writing.output import parse_pattern
from wids.writing.pack import chunks, datasets, folders, labels, manifest, saved
from wids.writing.pack.listing import choose_fields
from wids.writing.pack.manifest import SUFFIXES, expand_sources, parse_field
from wids.writing.pack.run import pack_listing
from wids.writing.pack.shard import PackSettings
from wids.writing.pack.where import keep_matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from wids.core.transport.session import Session
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine
    from wids.writing.pack.listing import SourceListing
    from wids.writing.pack.manifest import FieldRule
    from wids.writing.pack.run import PackOutcome

NAMES = {
    "folder": "images by class",
    "files": "files key.ext",
    "manifest": "a manifest",
    "dataset": "a dataset",
}
# Options -> the kinds of sources that they are for, and these in words.
_FOR = {
    "fields": (("manifest",), "manifests"),
    "key": (("manifest",), "manifests"),
    "base": (("manifest",), "manifests"),
    "keep_fields": (("files", "dataset"), "files and datasets"),
    "classes": (("folder", "manifest"), "class folders and manifests"),
}


class PackSource(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a source, and the part of it to pack.

    Attributes:
        form: its kind: ``"folder"`` (class/x.jpg), ``"files"`` (key.ext), ``"manifest"``, ``"dataset"``; or ``"auto"``.
        fields: of a manifest: ``".jpg=path"``, ``".cls=label"``, ``".json=a,b"``.
        key: of a manifest: the column of keys; None: rows are numbered.
        base: of a manifest: the base of relative paths.
        classes: a file of all classes by number, for labels and class folders.
        keep_fields: only these fields of files and datasets (``".jpg;.png"``: the first of them that a sample has).
        where: SQL that is true for the samples to pack.
        cache_dir: for remote shards of a dataset; None: the default of reading.

    Example:
        >>> settings = jobs.PackSettings(output="packed/train-%06d.tar")
        >>> source = jobs.PackSource(keep_fields=[".txt"])
        >>> jobs.pack("train.json", settings, source=source, engine=jobs.RunOptions(jobs=1)).samples
        12
    """

    form: Literal["auto", "folder", "files", "manifest", "dataset"] = "auto"
    fields: str | Sequence[str] = ()
    key: Text | None = None
    base: Text | None = None
    classes: Text | None = None
    keep_fields: str | Annotated[Sequence[str], msgspec.Meta(min_length=1)] | None = None
    where: str | Sequence[str] = ()
    cache_dir: Text | None = None

    def check(self, kind: str) -> None:
        """Check that this kind of source supports all that is requested.

        Args:
            kind: ``"folder"``, ``"files"``, ``"manifest"`` or ``"dataset"``.

        Raises:
            InputError: it does not.
        """
        for name, (kinds, words) in _FOR.items():
            if getattr(self, name) and kind not in kinds:
                raise InputError(
                    f"{name} is for {words}, and the source is taken as {kind}",
                    parameter=name,
                    hint="manifest" if kinds == ("manifest",) else None,
                )
        if kind == "manifest" and not self.fields:
            raise InputError(
                "fields: say which columns of the table become which fields, like .jpg=COLUMN and .cls=COLUMN",
                parameter="fields",
            )


def pack(
    sources: str | PathLike[str] | Iterable[str | PathLike[str]],
    settings: PackSettings,
    *,
    source: PackSource = PackSource(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> PackOutcome:
    """Pack a folder, manifests or a dataset into shards, with their index and member tables.

    The shards' bytes depend only on the sources and settings. A run that ends early (KeyboardInterrupt, a kill) leaves
    finished shards and its journal, and the next run continues. The index is published last.

    Args:
        sources: a folder (also of ``datasets``, MosaicML's streaming or LitData), manifests (.csv .tsv .jsonl
            .parquet .arrow), an index, or tars; several are one dataset.
        settings: of the output. Class folders are shuffled with seed 0 if it has none, unless it ``keeps_order``.
        source: their kind.
        engine: runs the tasks: processes (by default one for each CPU, 8 at most), for one job this thread; or "ray".
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        Counts, the place of the index, and the samples that were left out.

    Raises:
        InputError: an argument is of another type; a source does not exist, or is of another kind than ``source``.
        SpecError: ``output`` is no pattern. SampleError: a sample cannot be written. OutputError: a shard cannot be.
        OutputExistsError: there is another dataset. JobError: a process that wrote a shard ended.

    Example:
        >>> settings = jobs.PackSettings(output="packed/train-%06d.tar", samples=1000)
        >>> outcome = jobs.pack("photos", settings, engine=jobs.RunOptions(jobs=1))
        >>> outcome.samples, outcome.shards
        (2, 1)
    """
    settings = check_job(settings, PackSettings, engine, progress)
    source = check_struct("source", source, PackSource)
    settings = msgspec.structs.replace(settings, output=absolute(text_of("settings: output", settings.output)))
    parse_pattern(settings.output)
    if settings.keeps_order and settings.seed is not None:
        raise InputError(f"settings: seed={settings.seed}: shuffles, and keeps_order does not; give one of them")
    lists = {name: getattr(source, name) for name in ("fields", "keep_fields", "where")}
    one = {name: texts_of(f"source: {name}", value) for name, value in lists.items() if isinstance(value, str)}
    source = msgspec.structs.replace(source, **one)
    _parse_rules(source)
    _parse_kept(source)
    given, chosen = texts_of("sources", sources), list[str]()
    is_one = len(given) == 1 and not source.fields and source.form in ("auto", "manifest")
    if is_one and (files := saved.list_files(given[0])):
        chosen = choose_fields(saved.columns_of(files, settings.session))
    elif is_one and (files := chunks.list_files(given[0])):
        chosen = choose_fields(chunks.columns_of(files))
    if chosen:
        source = msgspec.structs.replace(source, fields=chosen)
    if source.form != "auto":
        source.check(source.form)
    named = {name: value for name in ("base", "classes", "cache_dir") if (value := getattr(source, name))}
    source = msgspec.structs.replace(source, **{name: absolute(value) for name, value in named.items()})
    if not given:
        raise InputError(f"sources={sources!r}: nothing to pack; give a folder, manifests, an index, or tars")
    found, kind = _find_sources(given, source, settings.session)
    source.check(kind)
    found = list(map(absolute, found))  # wherever the program, or a worker, goes later
    listing = _list_source(kind, found, source, settings, is_shown=progress == "bar")
    listing.properties[:0] = [f"fields of its columns: {' '.join(chosen)}"] * bool(chosen)
    outcome = pack_listing(listing, settings.for_kind(kind), engine=engine, progress=progress)
    outcome.sources, outcome.form = found, kind
    return outcome


def _find_sources(given: list[str], source: PackSource, session: Session) -> tuple[list[str], str]:
    """(the sources, their kind).

    Raises:
        InputError: no sources match, they are of several kinds, or they cannot be packed together.
    """
    is_name = len(given) == 1 and parse_name(given[0]) is not None
    is_pattern = is_name or (len(given) == 1 and datasets.is_dataset(given[0]) and not glob.has_magic(given[0]))
    if source.form in ("auto", "manifest", "dataset") and not is_pattern:
        sources = expand_sources(given, session)
    else:  # the reader of datasets takes brace patterns
        sources = [os.path.expanduser(name) for name in given]
    kinds = {name: _find_format(name) if source.form == "auto" else source.form for name in sources}
    kind = kinds[sources[0]]
    for name, other in kinds.items():
        if other != kind:
            raise InputError(f"{name}: is taken as {NAMES[other]}, and {sources[0]} as {NAMES[kind]}; pack one kind")
    if len(sources) > 1 and (kind in ("folder", "files") or any(os.path.isdir(name) for name in sources)):
        raise InputError(f"{sources[1]}: several folders are not packed at once; name the folder that they are in")
    if len(sources) > 1 and kind == "dataset" and not all(name.endswith(".tar") for name in sources):
        raise InputError(f"{sources[1]}: several indexes are one by `wids index merge`; then pack that")
    return sources, kind


def _find_format(source: str) -> str:
    """Guess the kind of a source.

    Raises:
        InputError: it is of no kind that can be packed.
    """
    path = os.path.expanduser(source)
    if chunks.is_chunk(path):
        return "manifest"
    if os.path.exists(path) and not source.lower().endswith(SUFFIXES) and (foreign := recognise_foreign(path)):
        raise InputError(f"{source}: {foreign}", path=path)
    if os.path.isdir(path):
        return folders.guess_format(path)
    if source.lower().endswith(SUFFIXES):
        return "manifest"
    if datasets.is_dataset(source):
        return "dataset"
    if not os.path.exists(path) and "://" not in source:
        raise InputError(f"{source}: there is no such folder or file")
    if source.lower().endswith((".gz", ".bz2", ".xz", ".zst", ".zip")):
        raise InputError(f"{source}: is compressed; unpack it first")
    if source.lower().endswith((".xlsx", ".xls", ".ods")):
        raise InputError(f"{source}: is a spreadsheet; store it as CSV, in UTF-8")
    away = "; folders and datasets of other tools are packed from a local disk, so copy it there"
    more = away if "://" in source else ""
    raise InputError(
        f"{source}: is no folder, manifest ({' '.join(SUFFIXES)}), index (.json) or tar{more}", hint="form"
    )


def _list_source(
    kind: str, sources: list[str], source: PackSource, settings: PackSettings, *, is_shown: bool
) -> SourceListing:
    """List the wanted samples of sources.

    Args:
        kind: of all of them.
        sources: from `_find_sources`.
        source: the part of them to pack.
        settings: how.
        is_shown: show a bar in a terminal or a notebook.

    Raises:
        WidsError: one cannot be listed.
    """
    with bar_of(is_shown=is_shown) as bar:

        def tell(count: int) -> None:
            bar.update(count, words=f"listing {sources[0]}")

        listing = _list(kind, sources, source, settings, tell)
    if source.where:
        with bar_of(is_shown=is_shown) as bar:
            total = len(listing.items)

            def advance(count: int) -> None:
                bar.update(count, total=total, words="choosing")

            advance(0)
            keep_matching(listing, source.where, skips_errors=settings.skips_errors, tell=advance)
    return listing


def _list(
    kind: str, sources: list[str], source: PackSource, settings: PackSettings, tell: Callable[[int], None]
) -> SourceListing:
    session, numbers_keys = settings.session, settings.numbers_keys
    classes = None if source.classes is None else labels.read_classes(source.classes, session=session)
    kept = _parse_kept(source)
    first = sources[0]
    is_folder = os.path.isdir(first)
    if kind in ("folder", "files") and not is_folder:
        what = "is no folder" if os.path.exists(first) else "there is no such folder"
        raise InputError(f"{first}: {what}", path=first)
    if kind == "manifest":
        return manifest.list_rows(
            sources,
            fields=_parse_rules(source),
            key=source.key,
            base=source.base,
            numbers_keys=numbers_keys,
            session=session,
            tell=tell,
            classes=classes,
        )
    if kind == "folder":
        return folders.list_images(first, numbers_keys=numbers_keys, tell=tell, classes=classes)
    if kind == "files":
        return folders.list_files(first, numbers_keys=numbers_keys, keep_fields=kept, tell=tell)
    shards: Any = sources if len(sources) > 1 else first
    if is_folder:
        shards = sorted(os.path.join(first, name) for name in os.listdir(first) if name.endswith(".tar"))
    return datasets.list_dataset(
        shards,
        cache_dir=cache_directory(source.cache_dir or default_cache_dir()),
        keep_fields=kept,
        session=session,
        tell=tell,
    )


def _parse_rules(source: PackSource) -> list[FieldRule]:
    """Parse the fields of a manifest's samples.

    Raises:
        InputError: two fields have the same extension, or one is malformed.
    """
    rules = [parse_field(text) for text in source.fields]
    if len({rule.extension for rule in rules}) < len(rules):
        raise InputError(
            f"fields={source.fields!r:.200}: give different extensions; one field would hide the other",
            parameter="fields",
        )
    return rules


def _parse_kept(source: PackSource) -> tuple[str, ...] | None:
    """Parse the fields to keep; None: all.

    Raises:
        InputError: an extension is empty, or in two of the fields.
    """
    try:
        return parse_fields(source.keep_fields)
    except (InputError, TypeError) as error:
        raise InputError(f"keep_{error}", parameter="keep_fields") from error
