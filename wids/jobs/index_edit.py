"""Changes existing indexes: update, merge, split, rebase, compile.

Rules: an index is replaced in one step; until then the old index does not change. Keys that wids does not know stay;
of a merge, those in which all inputs agree, and a warning names the others. Only an update reads shards.
`wids.jobs.view_edit` makes views from views.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.collection.shard_collection import load_shards
from wids.core.files import atomic, system
from wids.core.files.replaced import ReplacedFile
from wids.core.index import checks, checksums, compiled, view_file, writing
from wids.core.index.discovery import FoundShard, look_for_shards, look_local, refuse_indexes
from wids.core.index.fingerprint import fingerprint
from wids.core.index.paths import ViewShards, absolute, check_index_replaceable, check_output, named_packs, names_of
from wids.core.index.shardlist import Row
from wids.core.index.spec import PACKS, check_head, own_packs, parse_json
from wids.core.index.view_file import KEY as COMPANIONS
from wids.core.index.view_file import is_view
from wids.core.place import Place, relative_name
from wids.core.transport.download import read_bytes
from wids.errors import InputError, OutputError, OutputExistsError, SelectionError, SpecError
from wids.jobs import view_edit
from wids.jobs.arguments import check_job, text_of, texts_of
from wids.jobs.index_create import (
    Indexing,
    IndexOutcome,
    IndexSettings,
    check_counts,
    check_index_grouping,
    choose_grouping,
)
from wids.jobs.view_edit import IndexToMerge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from wids.core.index.earlier import EarlierIndex
    from wids.core.index.shardlist import ShardList
    from wids.core.index.view_file import View
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine


# Keys of an index that hold only for its own directory.
_BASES = ("base", "base_path")


class Merged(msgspec.Struct, kw_only=True):
    """A written index.

    Attributes:
        output: the path of the index.
        shards: number of its shards; of a view, those of the chosen samples.
        samples: number of its samples; of a view, the chosen ones.
        repeated: further occurrences of shards in several indexes; the output has each shard once.
        gone: of a merge: shards of the earlier index at the output that are not in this one.
        kept: keys of that index that stay, because wids does not compute them and no input has them.
        dropped_keys: of a merge: keys of inputs that are left out, because the inputs do not agree.
        repeated_samples: further occurrences of samples in several views.
    """

    output: str
    shards: int
    samples: int
    repeated: int = 0
    repeated_samples: int = 0
    gone: list[str] = msgspec.field(default_factory=list)
    kept: list[str] = msgspec.field(default_factory=list)
    dropped_keys: list[str] = msgspec.field(default_factory=list)


class _Base(msgspec.Struct):
    """The base of relative URLs in an index."""

    base: str | None = None
    base_path: str | None = None


def read_index(place: str) -> dict[str, Any]:
    """The JSON of an index, with a valid shard list.

    Raises:
        FetchError: it cannot be read.
        SpecError: it is not an index, is compiled, is a view, has no shard list of its own, promises more samples than
            can be counted, or has a number that is not JSON (NaN).
    """
    index, view = _read(place)
    if view is not None:
        raise _is_view(place, view.view_of)
    return index


def _read(place: str) -> tuple[dict[str, Any], View | None]:
    """`read_index`: (the JSON, the parsed view or None)."""
    if compiled.is_compiled(place):
        raise SpecError(f"{place}: is a compiled index; change the one it was made of, and convert it", url=place)
    index = parse_json(read_bytes(place, look=lambda head: check_head(head, place)), place)
    checks.check_finite(index, "", place)
    view = view_file.parse_view(index, place)
    if view is not None and view.view_of is not None:
        return index, view
    if not isinstance(index.get("shardlist"), list):
        raise SpecError(f"{place}: not a shard index, it has no shardlist", path="shardlist", url=place)
    rows = checks.convert(index["shardlist"], list[Row], path="shardlist", index_url=place)
    sizes = (-1 if row.filesize is None else row.filesize for row in rows)
    checks.check_total((row.nsamples for row in rows), sizes, place)
    return index, view


def update_index(
    place: str | PathLike[str],
    *,
    add: str | PathLike[str] | Iterable[str | PathLike[str]] = (),
    drop: str | Iterable[str] = (),
    settings: IndexSettings = IndexSettings(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> IndexOutcome:
    """Update an index: read changed shards again, drop and add shards.

    Args:
        place: path of the index.
        add: more shards, as the ``sources`` of `create_index`; they follow the present ones.
        drop: shell patterns of the URLs or file names of shards to remove.
        settings: of the job. An index with checksums gets them for all shards, one without gets none.
        engine: runs the tasks.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        Counts, and in ``failed`` the shards that were left out (URL -> reason).

    Raises:
        InputError: an argument is of another type; names it.
        SpecError: it is not an index. SelectionError: a pattern of ``drop`` matches no shard.
        WidsError: a shard cannot be read, and failures are not skipped.

    Example:
        >>> outcome = jobs.update_index("train.json", drop="train-000002.tar")
        >>> outcome.dropped, outcome.samples
        (1, 8)
    """
    settings = check_job(settings, IndexSettings, engine, progress)
    check_counts(settings)
    check_index_grouping(settings)
    place, add, drop = text_of("place", place), texts_of("add", add), texts_of("drop", drop)
    output = check_output(place)
    file = ReplacedFile(output)
    index = read_index(output)
    settings, grouping = choose_grouping(settings, index)
    home = os.path.dirname(output)
    said = checks.convert({key: index.get(key) for key in _Base.__struct_fields__}, _Base, index_url=place)
    base = said.base or said.base_path
    old = list(_placed(index, home))
    kept = _without(old, drop)
    summed = {url for url, entry in kept if entry.get("crc32")}
    if any(entry.get("md5sum") for _, entry in kept):
        settings = msgspec.structs.replace(settings, has_md5=True)
    elif kept and not summed and settings.checksums is None:
        settings = msgspec.structs.replace(settings, checksums=False)
    found = {url: look_local(url) if Place(url).is_local else FoundShard(url) for url, _ in kept}
    named = look_for_shards(add, known=found.values(), session=settings.session)
    refuse_indexes(named, is_skipping=settings.is_skipping)
    far = {url for url in found if not Place(url).is_local}
    if far and summed.issuperset(far):
        summed.update(named.shards)
    found.update(named.shards)
    if not found:
        raise SelectionError(f"{place}: no shards would be left in it", path=output)
    with Indexing(output, settings, engine, progress) as indexing:
        indexing.summed, indexing.listed = summed, {url for url, _ in kept}
        indexing.note(named)
        indexing.has_rule = "key_rule" in grouping
        scanned = indexing.scan(list(found.values()))
        now = {each.url: each for each in scanned}
        entries = []
        for url, before in kept:
            if url in now:
                rest = {key: value for key, value in before.items() if key not in checksums.KEYS}
                entries.append({**rest, **indexing.entry(now[url], before["url"])})
        had = {url for url, _ in kept}
        fresh = [url for url in now if url not in had]
        places = writing.place_entries(fresh, home=home, base=base) if fresh else []
        entries += [indexing.entry(now[url], place) for url, place in zip(fresh, places, strict=True)]
        rest = {key: value for key, value in index.items() if key != "shardlist"}
        indexing.publish({**rest, **grouping, "shardlist": entries}, scanned, file)
    indexing.outcome.gone = [url for url, _ in kept if url not in now and url not in indexing.outcome.failed]
    indexing.outcome.added = len(fresh)
    indexing.outcome.dropped = len(index["shardlist"]) - (len(entries) - len(fresh))
    return indexing.outcome


def _without(entries: list[tuple[str, dict[str, Any]]], patterns: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    for pattern in patterns:
        kept = [
            (url, entry)
            for url, entry in entries
            if not any(fnmatch.fnmatchcase(name, pattern) for name in (url, entry["url"], Place(url).name))
        ]
        if len(kept) == len(entries):
            raise SelectionError(f"no shard of the index has a name like {pattern!r}")
        entries = kept
    return entries


def merge_indexes(places: Sequence[str], output: str, *, name: str | None = None, overwrite: bool = False) -> Merged:
    """Write one index of the shards of several, in order. Sub-datasets are flattened; each shard keeps its keys.

    A shard that belongs to no sub-dataset gets the name of its index as ``dataset``. Of the other top-level keys, those
    stay that all inputs have with the same value; a warning names those that are left out. If one input is a view, the
    output is a view; see `wids.jobs.view_edit`.

    Args:
        places: of the indexes.
        output: its path. It may replace an index of shards of these, but none of ``places`` and none that these name.
        name: of the dataset; None: that of the earlier index, else the name of the output's file; "": none.
        overwrite: also replace a file that is no index, or one of another kind or of other shards.

    Raises:
        OutputExistsError: a file exists that must not be replaced. OutputError: another program has written it
            meanwhile.
    """
    output = check_output(output)
    sources = [_flatten(place) for place in places]
    entries: dict[str, dict[str, Any]] = {}
    for source in sources:
        for url, entry in source.entries:
            entries.setdefault(url, entry)
    has_rows = any(source.shards.selection is not None for source in sources)
    file = ReplacedFile(output)
    earlier = check_index_replaceable(
        output,
        inputs=_made_of(*sources),
        shards=entries,
        is_later=lambda earlier: earlier.is_like(entries.values()),
        is_view=has_rows,
        overwrite=overwrite,
    )
    if name is None:
        before = earlier.keys.get("name")
        name = before if isinstance(before, str) else writing.stem_of(output)
    name = name or None
    common, dropped = view_edit.common_keys(sources, output)
    if has_rows:
        view, repeated = view_edit.merge_views(sources, output, keys=common, name=name, overwrite=overwrite, file=file)
        return _merged_view(output, view, repeated_samples=repeated, dropped_keys=dropped)
    grouping = view_edit.common_grouping(sources)
    for source in sources:
        for url, entry in source.entries:
            view_edit.check_agree(url, entries[url], entry, source.place)
        source.tell_weights(output)
    home = os.path.dirname(output)
    written = writing.place_entries(list(entries), home=home)
    merged = [{**entry, "url": url} for entry, url in zip(entries.values(), written, strict=True)]
    packs = [url for source in sources for url in source.shards.all_packs()]
    head = writing.make_head(name=name)
    index = {**head, **common, **grouping, **named_packs(packs, home), "shardlist": merged}
    repeated = sum(len(source.entries) for source in sources) - len(merged)
    written_index = _write(output, index, earlier, repeated=repeated, dropped_keys=dropped, file=file)
    there = {*earlier.find(list(entries)).values()}
    return msgspec.structs.replace(written_index, gone=[place for place in earlier.entries if place not in there])


def split_index(
    place: str, outputs: Sequence[str], *, parts: Callable[[list[int]], list[range]], overwrite: bool = False
) -> list[Merged]:
    """Write an index for each part of another one, or a view for each part of a view.

    Args:
        place: the index.
        outputs: a path for each part, or one path with ``{}`` for the number of the part.
        parts: takes the sample counts of the shards, returns the shards of each part; see `wids.core.index.writing`. Of
            a view, it gets the counts of chosen samples, without shards that have none.
        overwrite: also replace files that are no indexes, or ones of another kind or of other shards. The
            input and the indexes that it names are never replaced.

    Raises:
        InputError: the numbers of outputs and parts differ. OutputExistsError: a file exists that must not be replaced,
            or further parts of an earlier split, which a pattern of these names would read as well. OutputError:
            another program has written one meanwhile.
    """
    source = _flatten(place)
    shards, flat = source.shards, source.entries
    header = {key: value for key, value in shards.header.items() if key not in (*_BASES, PACKS)}
    checks.check_finite(header, "", place)
    has_rows = shards.selection is not None
    ranges = parts([count for count in shards.lengths if count or not has_rows])
    checked = name_parts(outputs, len(ranges))
    files = [*map(ReplacedFile, checked)]
    earlier = [
        check_index_replaceable(
            output, inputs=_made_of(source), shards=(url for url, _ in flat), is_view=has_rows, overwrite=overwrite
        )
        for output in checked
    ]
    _refuse_other_parts(outputs, checked, source)
    if has_rows:
        views = view_edit.split_view(source, ranges, checked, overwrite=overwrite)
        return [_merged_view(output, view) for output, view in zip(checked, views, strict=True)]
    source.tell_weights(", ".join(outputs))
    found = []
    for file, output, before, part in zip(files, checked, earlier, ranges, strict=True):
        chosen, home = [flat[k] for k in part], os.path.dirname(output)
        written = writing.place_entries([url for url, _ in chosen], home=home)
        entries = [{**entry, "url": url} for (_, entry), url in zip(chosen, written, strict=True)]
        index = {**header, **named_packs(shards.all_packs(), home), "shardlist": entries}
        found.append(_write(output, index, before, file=file))
    return found


def name_parts(outputs: Sequence[str], count: int) -> list[str]:
    """The absolute path of each part.

    Args:
        outputs: a path for each part, or one path with ``{}`` for the number of the part.
        count: of the parts.

    Raises:
        InputError: the numbers of outputs and parts differ, two outputs are one file, or no shard has samples.
    """
    names = list(outputs)
    if not count:
        raise InputError("there is nothing to split: no shard has samples")
    if len(names) == 1 and "{}" in names[0]:
        names = [names[0].replace("{}", f"{k:0{len(str(count - 1))}}") for k in range(count)]
    if len(names) != count or len(set(names)) != count:
        raise InputError(
            f"there are {count} parts, and {len(names)} outputs; give each its own, or one like part-{{}}.json",
            hint="output",
        )
    checked = [check_output(name) for name in names]
    if len(set(checked)) != count:  # one part would be written over another
        raise InputError(f"two of the outputs are one file: {', '.join(names)}; give each part its own", hint="output")
    return checked


def _refuse_other_parts(outputs: Sequence[str], checked: Sequence[str], source: IndexToMerge) -> None:
    """Refuse a split into fewer parts than an earlier one, whose other parts would stay.

    Raises:
        OutputExistsError: there are such parts, with other numbers in the same name.
    """
    if len(outputs) > 1 or "{}" not in outputs[0]:
        return
    pieces = Place(outputs[0]).absolute.path.split("{}")
    is_named_so = re.compile(r"(\d+)" + r"\1".join(map(re.escape, pieces[1:]))).fullmatch
    names = glob.glob("[0-9]*".join(map(glob.escape, pieces)))
    named = [name for name in sorted(names) if is_named_so(name[len(pieces[0]) :]) and name not in checked]
    others = [name for name in named if _is_part(name, source)]
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        is_, them = ("are", "them") if more else ("is", "it")
        raise OutputExistsError(
            f"{others[0]}{more}: {is_} of an earlier split into more parts, and who reads all files of this name would "
            f"read shards twice; delete {them}, or give the parts another name",
            path=others[0],
        )


def _is_part(path: str, source: IndexToMerge) -> bool:
    """True if a file is an index of shards of a source, or a view of the same index as it."""
    shards = source.shards
    has_rows = shards.selection is not None
    view = ViewShards(source.listed_by, fingerprint(shards)) if has_rows else None
    urls = (url for url, _ in source.entries)
    try:
        earlier = check_index_replaceable(path, inputs=_made_of(source), shards=urls, view=view)
    except OutputError:
        return False
    return bool(earlier.keys if has_rows else earlier.entries)


def rebase_index(place: str, base: str, *, output: str | None = None, overwrite: bool = False) -> Merged:
    """Set the base of an index: its shards are below ``base`` now; see `wids.core.index.writing.rebase`.

    For a view, ``base`` is the directory of the index that it is a view of.

    Args:
        place: of the index.
        base: a URL or a path.
        output: its path; None: the index is replaced.
        overwrite: also replace a file that is no index, or one of another kind or of other shards.

    Raises:
        OutputExistsError: a file exists that must not be replaced.
    """
    file = ReplacedFile(Place(output or place).absolute.path)
    index, view = _read(place)
    refuse_companions(index, place)
    path = check_output(output or place)
    if "shardlist" in index:
        index = {**index, "shardlist": [_named_as_file(entry, index, place) for entry in index["shardlist"]]}
    try:
        rebased = writing.rebase(index, base)
    except SpecError as error:
        raise SpecError(f"{place}: {error}", url=place, hint=error.hint) from error
    if PACKS in index:
        rebased |= named_packs(own_packs(index, place, str(Place(place).absolute.directory)), os.path.dirname(path))
    homes = ((str(Place(place).absolute.directory), index), (os.path.dirname(path), rebased))
    parents = [str(Place(home).join(each["view_of"])) for home, each in homes if "view_of" in each]
    inputs = [(parent, f"the index that {place} is a view of") for parent in parents if view is not None]
    earlier = check_index_replaceable(
        path,
        inputs=inputs,
        shards=(url for url, _ in _placed(rebased, os.path.dirname(path))),
        is_later=lambda earlier: path == absolute(place) or earlier.is_like(rebased.get("shardlist", [])),
        view=None if view is None else ViewShards(rebased.get("view_of"), view.view_of_fingerprint),
        overwrite=overwrite,
    )
    if view is None:
        return _write(path, rebased, earlier, file=file)
    rebased = {**earlier.own_keys(), **rebased}
    selection = view_edit.write_rebased(rebased, view, place, file, path)
    if selection is None:
        return rebase_index(place, base, output=output, overwrite=overwrite)
    return Merged(output=path, shards=sum(map(bool, selection.counts)), samples=len(selection))


def _placed(index: dict[str, Any], home: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, entry) of each shard that an index in the directory ``home`` lists."""
    root = Place(home).join(index.get("base") or index.get("base_path") or "")
    for entry in index.get("shardlist", []):
        yield str(root.join(entry["url"]).absolute), entry


def _named_as_file(entry: dict[str, Any], index: dict[str, Any], place: str) -> dict[str, Any]:
    """An entry, with ``./`` before the name of an existing file that could be taken for another URL elsewhere."""
    name = relative_name(entry["url"])
    if name == entry["url"] or Place(name[2:]).scheme or name[2:].startswith(("/", "~")):
        return entry
    base = index.get("base") or index.get("base_path")
    full = Place(place).absolute.directory.join(base if isinstance(base, str) else "").join(name)
    return {**entry, "url": name} if full.is_local and os.path.exists(full.path) else entry


def convert_index(place: str, output: str, *, overwrite: bool = False) -> Merged:
    """Write the compiled form of an index, which is mapped instead of parsed. Sub-datasets are flattened.

    Args:
        place: the index: JSON or compiled.
        output: its path, which ends in ``.widsx``. URLs of shards below its directory become relative to it.
        overwrite: also replace a file that is no compiled index, or one of other shards.

    Raises:
        SpecError: it is not an index. OutputError: the output cannot be written, or has another ending.
        OutputExistsError: a file exists that must not be replaced.
    """
    path = check_output(output, is_compiled=True)
    _, shards, _ = load_shards(place)
    refuse_view(shards, place)
    if shards.unknown_counts():
        raise _no_index(place)
    places = [absolute(url) for url in shards.urls]
    check_index_replaceable(path, inputs=[(place, "the index itself")], shards=places, overwrite=overwrite)
    header = {key: value for key, value in shards.header.items() if key not in (*_BASES, PACKS)}
    home = os.path.dirname(path)
    shards = shards.with_header({**header, **named_packs(shards.all_packs(), home)})
    packs = [(k, tuple(names_of(found, home))) for k, found in shards.packs]
    packed = compiled.pack(shards, texts=writing.place_entries(places, home=home), packs=packs)
    with atomic.part_file(path) as (part, fd):
        system.write_parts(fd, packed)
        os.fsync(fd)
        os.replace(part, path)
    return Merged(output=path, shards=len(shards), samples=shards.ends()[-1])


def _no_index(place: str) -> SpecError:
    return SpecError(f"{place}: is not an index; make one first", url=place, hint="index")


def refuse_companions(header: Mapping[str, Any], place: str) -> None:
    """Check that an index has no companions, which this command would lose.

    Raises:
        SpecError: it has some.
    """
    if header.get(COMPANIONS):
        parent = header.get("view_of")
        index = "the index without them" if parent is None else str(parent)
        raise SpecError(f"{place}: has companions; do that with {index}, and join again (wids index join)", url=place)


def refuse_view(shards: ShardList, place: str) -> None:
    """Check that an index is not a view, which this command cannot change.

    Raises:
        SpecError: it is a view.
    """
    if is_view(shards):
        raise _is_view(place, shards.header.get("view_of"))


def _is_view(place: str, parent: str | None) -> SpecError:
    index = "an index of its shards" if parent is None else parent
    of = "" if parent is None else f" of {parent}"
    return SpecError(f"{place}: is a view{of}; do that with {index}, and make the view again", url=place)


def _flatten(place: str) -> IndexToMerge:
    """An index or a view, with all its shards, including those of sub-datasets; see `wids.jobs.view_edit`.

    Raises:
        SpecError: it has companions, which would be lost.
    """
    _, shards, _ = load_shards(place)
    refuse_companions(shards.header, place)
    flat = []
    for k, count in enumerate(shards.lengths):
        if shards.selection is not None and not count:
            continue
        entry = flat_entry(shards, k, place)
        flat.append((absolute(entry["url"]), entry))
    return IndexToMerge(place, shards, flat)


def flat_entry(shards: ShardList, k: int, place: str) -> dict[str, Any]:
    """The entry of a shard in an index that has no sub-datasets; its URL is the one that is resolved.

    Args:
        shards: of an index.
        k: the number of the shard.
        place: the index, for messages.

    Raises:
        SpecError: its count is unknown, or it has a number that is not JSON.
    """
    entry = shards.describe(k)
    checks.check_finite(entry, f"shards[{k}]", place)
    if entry["nsamples"] is None:
        raise _no_index(place)
    name = shards.dataset_of(k) or shards.header.get("name")
    if entry.get("name") == shards.header.get("name"):
        entry.pop("name", None)  # the name of the whole index, which `describe` adds to each shard
    return {**entry, **({"dataset": name} if name else {})}


def _made_of(*sources: IndexToMerge) -> Iterator[tuple[str, str]]:
    """The input indexes, with their sub-datasets and the indexes of views: (URL or path, words for it)."""
    for source in sources:
        yield source.place, "one of the indexes that it is made of"
        if source.shards.selection is not None and source.listed_by is not None:
            yield source.listed_by, f"the index that {source.place} is a view of"
        for keys in source.shards.defaults:
            if isinstance(part := keys.get("source_url"), str):
                yield part, f"a part of {source.place}"


def _merged_view(
    output: str, view: ShardList, *, repeated_samples: int = 0, dropped_keys: Sequence[str] = ()
) -> Merged:
    return Merged(
        output=output,
        shards=sum(map(bool, view.lengths)),
        samples=sum(view.lengths),
        repeated_samples=repeated_samples,
        dropped_keys=[*dropped_keys],
    )


def _write(
    path: str,
    index: dict[str, Any],
    earlier: EarlierIndex,
    *,
    repeated: int = 0,
    dropped_keys: Sequence[str] = (),
    file: ReplacedFile,
) -> Merged:
    """Write an index; keys of an earlier version of it, read from ``file``, stay if no input has or had them."""
    kept = {key: value for key, value in earlier.own_keys().items() if key not in {*index, *dropped_keys, "name"}}
    entries = index["shardlist"]
    rest = {key: value for key, value in index.items() if key != "shardlist"}
    with file.alone():
        atomic.write_atomically(path, writing.dump_index({**rest, **kept, "shardlist": entries}))
    return Merged(
        output=path,
        shards=len(entries),
        samples=sum(entry["nsamples"] for entry in entries),
        repeated=repeated,
        kept=list(kept),
        dropped_keys=[*dropped_keys],
    )
