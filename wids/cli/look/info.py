"""``wids info``: the facts that an index states about its dataset, and the fields of the first sample."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from wids.cli.format import count_of, format_size, print_error, print_json, print_table, printable, shown_url
from wids.cli.look.listed import Listed
from wids.errors import JobError, ShardError, SpecError, WidsError
from wids.tables.table import SUFFIX as TABLE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wids.cli.options import ReadFlags
    from wids.index.shardlist import ShardList

_MAX_DATASETS = 20
# Labels that are looked at: of so many shards, so many in all, in runs of so many samples that follow each other.
_LABELLED_SHARDS, _LABELS, _RUN = 8, 4096, 16
_FEWEST_LABELS = 20  # below, nothing is said of their order


def show(indexes: list[str], flags: ReadFlags, *, is_json: bool) -> None:
    """Print a summary of one dataset, or a table of several.

    Raises:
        WidsError: an index cannot be read, or the first shard contradicts the index.
    """
    found, failed = [], 0
    for index in indexes:
        try:
            found.append(_describe(Listed(index, flags), may_fetch=flags.may_fetch))
        except WidsError as error:
            if len(indexes) == 1:
                raise
            failed += 1
            print_error(str(error))
    if is_json:
        print_json(found[0] if len(indexes) == 1 else found)
    elif len(indexes) == 1:
        _print_one(found[0])
    elif found:
        _print_several(found)
    wrong = [f"{described['index']}: {described['first_sample']['error']}" for described in found if _error(described)]
    if wrong:
        raise ShardError("; ".join(wrong))
    if failed:
        raise JobError(f"{failed} of {count_of(len(indexes), 'index', 'indexes')} cannot be read")


def _error(described: dict[str, Any]) -> Any:
    return (described["first_sample"] or {}).get("error")


def _describe(listed: Listed, *, may_fetch: bool) -> dict[str, Any]:
    """Return the summary of a dataset, as ``--json`` prints it."""
    with contextlib.suppress(SpecError):  # remote ones
        listed.count(may_fetch=False)
    shards = listed.shards
    numbers = [k for k, length in enumerate(shards.lengths) if length or shards.selection is None]
    samples, uncounted = _sum(shards.lengths)
    first = None if uncounted else _first_sample(listed, may_fetch=may_fetch)
    size, unsized = _sum([shards.filesizes[k] for k in numbers])
    count = len(numbers)
    held, _ = _sum([shards.nsamples[k] for k in numbers])  # in the shards, of which a view has a part
    return {
        "index": listed.name,
        "name": shards.header.get("name"),
        "info": shards.header.get("info"),
        "base": shards.header.get("base") or shards.header.get("base_path"),
        **_view_of(shards),
        "shards": count,
        "samples": samples if not uncounted else None,
        "bytes": size if not unsized else None,
        "samples_per_shard": samples / count if count and not uncounted else None,
        "bytes_per_shard": size / count if count and not unsized else None,
        "bytes_per_sample": size / held if held and not (unsized or uncounted) else None,
        "first_shard": shards.urls[numbers[0]] if count else None,
        "last_shard": shards.urls[numbers[-1]] if count else None,
        "datasets": _datasets(listed),
        "mixture": _mixture(listed) if not uncounted else None,
        "counted": count - uncounted,
        "with_filesize": count - unsized,
        "with_md5sum": sum(bool(shards.md5sums[k]) for k in numbers),
        "with_crc32": sum(bool(shards.crc32s[k]) for k in numbers),
        "first_sample": first,
        "classes": _classes(listed, numbers) if ".cls" in (first or {}).get("fields", ()) else None,
    }


def _view_of(shards: ShardList) -> dict[str, Any]:
    """Return what a view is of, and how it was made; nothing for any other index."""
    if shards.selection is None:
        return {}
    header = shards.header
    return {
        "view_of": header.get("view_of"),
        "of_shards": len(shards),
        "of_samples": sum(shards.nsamples),
        "made_by": header.get("made_by", []),
    }


def _sum(column: Iterable[int]) -> tuple[int, int]:
    """Return (the sum of the known numbers, the count of unknown ones, which are -1)."""
    known = [number for number in column if number >= 0]
    return sum(known), sum(number < 0 for number in column)


def _datasets(listed: Listed) -> list[dict[str, Any]]:
    """Return the sub-datasets in order; an empty list if the index has none."""
    parts: dict[Any, dict[str, Any]] = {}
    shards = listed.shards
    for k, length in enumerate(shards.lengths):
        if shards.selection is not None and not length:
            continue
        name = shards.dataset_of(k)
        if not (name is None or isinstance(name, str)):  # a shard entry's own value, of any JSON type
            name = json.dumps(name)
        part = parts.get(name)
        if part is None:
            described = shards.describe(k)
            part = parts[name] = {"name": name, "shards": 0, "samples": 0, "bytes": 0}
            part |= {key: described[key] for key in ("weight", "source_url") if key in described}
        part["shards"] += 1
        for key, number in (("samples", shards.lengths[k]), ("bytes", shards.filesizes[k])):
            part[key] = None if number < 0 or part[key] is None else part[key] + number
    return [] if list(parts) in ([], [None]) else list(parts.values())


def _mixture(listed: Listed) -> list[dict[str, Any]] | None:
    """Return the sources of a mixture with their shares; None: the index has no weights for its sub-datasets."""
    parts = listed.mixed_parts()
    if parts is None:
        return None
    total = sum(part.weight for part in parts)
    return [
        {"name": part.name, "samples": part.last - part.first, "weight": part.weight, "share": part.weight / total}
        for part in parts
    ]


def _first_sample(listed: Listed, *, may_fetch: bool) -> dict[str, Any] | None:
    """Return key and fields of sample 0; None if the dataset is empty or the member table needs a download."""
    if not len(listed):
        return None
    k, row = listed.locate(0)
    try:
        if not (may_fetch or listed.has_table(k)):
            return None
        table = listed.table(k)
    except WidsError as error:
        return {"error": str(error)}
    return {"key": table.key(row), "fields": {name: size for name, _, size in table.members(row)}}


def _classes(listed: Listed, numbers: list[int]) -> dict[str, Any] | None:
    """Return how classes are spread over the shards, by some of the labels (``.cls``); None: too few are here."""
    has_tables = os.path.exists(listed.shards.urls[numbers[0]] + TABLE_SUFFIX)
    most = min(_LABELLED_SHARDS if has_tables else 2, len(numbers))  # the headers of whole shards are read otherwise
    chosen = [numbers[k * (len(numbers) - 1) // max(most - 1, 1)] for k in range(most)]
    runs: list[list[list[bytes]]] = []  # of each shard
    with contextlib.suppress(WidsError):
        runs.extend(_labels(listed, k, _LABELS // most) for k in chosen if not listed.is_absent(k))
    found = [Counter(itertools.chain.from_iterable(own)) for own in runs]
    total = sum(found, Counter[bytes]())
    looked = total.total()
    if looked < _FEWEST_LABELS:
        return None
    pairs = [a == b for own in runs for run in own for a, b in itertools.pairwise(run)]
    by_chance = sum((count / looked) ** 2 for count in total.values())
    expected = sum(1 - (1 - count / looked) ** own.total() for own in found for count in total.values())
    has_long_runs = sum(pairs) > (1 + by_chance) / 2 * len(pairs)
    return {
        "count": max(len(total), len(listed.shards.class_names)),
        "per_shard": sum(map(len, found)) / len(found),
        "shards": len(found),
        "samples": looked,
        "is_sorted": len(total) > 1 and (has_long_runs or sum(map(len, found)) < expected / 2),
        "is_whole": looked == sum(listed.shards.lengths[k] for k in chosen),
    }


def _labels(listed: Listed, k: int, most: int) -> list[list[bytes]]:
    """Return labels of a shard, of all its samples or in runs that are spread over it."""
    rows = [int(row) for row in listed.collection.rows_of(k)]
    count = len(rows)
    starts = [0]
    if count > most:
        starts = [j * (count - _RUN) // (most // _RUN - 1) for j in range(most // _RUN)]
    runs = [rows[start : start + (_RUN if count > most else count)] for start in starts]
    with contextlib.closing(listed.open(k)) as reader:
        read = [reader.read_rows(run, (".cls",)) for run in runs]
    return [[sample[".cls"].getvalue().strip() for sample in run if ".cls" in sample] for run in read]


def _spread(found: dict[str, Any]) -> str:
    """Say how classes are spread."""
    least = "" if found["is_whole"] else "at least "
    words = f"{found['count']:,} over all, {least}{found['per_shard']:.3g} a shard on average"
    words += f" (by {count_of(found['samples'], 'label')} of {count_of(found['shards'], 'shard')})"
    if found["is_sorted"]:
        words = f"sorted by class: {words}; `wids pack --shuffle SEED` mixes them, for batches of more classes"
    return words


def _print_one(found: dict[str, Any]) -> None:
    lines = [("index", shown_url(found["index"]))]
    lines += [(key, _text(found[key])) for key in ("name", "info", "base") if found[key] is not None]
    if "made_by" in found:
        if found["view_of"]:
            lines.append(("view of", shown_url(found["view_of"])))
        lines += [("" if k else "made by", printable(step)) for k, step in enumerate(found["made_by"])]
        lines.append(("whole", f"{found['of_samples']:,} samples in {count_of(found['of_shards'], 'shard')}"))
    shards, samples, size = found["shards"], found["samples"], found["bytes"]
    lines.append(("shards", f"{shards:,}"))
    counted = f"known for {found['counted']:,} of {count_of(shards, 'shard')}"
    lines.append(("samples", counted if samples is None else f"{samples:,}{_average(found, 'samples_per_shard')}"))
    if size is not None:
        words = format_size(size) + (f" ({size:,})" if size >= 1000 else "")
        words += " in whole shards" if "made_by" in found else ""
        means = [
            f"{format_size(found[f'bytes_per_{noun}'])} a {noun}"
            for noun in ("shard", "sample")
            if found[f"bytes_per_{noun}"] is not None
        ]
        lines.append(("bytes", f"{words}, on average {', '.join(means)}" if means else words))
    lines.append(("sizes", _coverage(found["with_filesize"], shards)))
    lines.append(("crc32", _coverage(found["with_crc32"], shards)))
    lines.append(("md5", _coverage(found["with_md5sum"], shards)))
    if shards:
        lines.append(("first shard", shown_url(found["first_shard"])))
        lines.append(("last shard", shown_url(found["last_shard"])))
    lines += _first_lines(found)
    if found["classes"]:
        lines.append(("classes", _spread(found["classes"])))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:{width}}  {text}")
    if found["datasets"]:
        print()
        rows = [
            (_text(part["name"]), _count(part["shards"]), _count(part["samples"]), _size(part["bytes"]))
            for part in found["datasets"][:_MAX_DATASETS]
        ]
        print_table(("sub-dataset", ">shards", ">samples", ">size"), rows)
        _print_more(len(found["datasets"]))
    if found["mixture"]:
        print("\nmixed by their weights:")
        parts = found["mixture"]
        rows = [
            (printable(part["name"]), f"{part['weight']:g}", f"{part['share']:.2%}", _passes(part, parts))
            for part in parts[:_MAX_DATASETS]
        ]
        print_table(("source", ">weight", ">share", ">passes"), rows)
        _print_more(len(parts))


def _passes(part: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    """How often a nominal epoch reads each of the source's samples, on average."""
    total = sum(each["samples"] for each in parts)
    return f"{part['share'] * total / part['samples']:.3g}" if part["samples"] else "-"


def _print_more(count: int) -> None:
    if count > _MAX_DATASETS:
        print(f"and {count - _MAX_DATASETS:,} more (--json lists them all)")


def _first_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    first = found["first_sample"]
    if not found["samples"]:
        return []
    if first is None:
        return [("sample 0", "not read: its shard is remote and not in the cache (--fetch downloads it)")]
    if "error" in first:
        return [("sample 0", "cannot be read")]
    fields = ", ".join(f"{printable(name)} ({format_size(size)})" for name, size in first["fields"].items())
    return [("sample 0", f"{printable(first['key'])}: {fields}")]


def _print_several(found: list[dict[str, Any]]) -> None:
    rows = [
        (
            shown_url(described["index"]),
            _text(described["name"] or ""),
            _count(described["shards"]),
            _count(described["samples"]),
            _size(described["bytes"]),
            _size(described["bytes_per_sample"]),
            _coverage(described["with_filesize"], described["shards"]),
            _coverage(described["with_crc32"], described["shards"]),
            _coverage(described["with_md5sum"], described["shards"]),
        )
        for described in found
    ]
    print_table(("index", "name", ">shards", ">samples", ">size", ">a sample", "sizes", "crc32", "md5"), rows)


def _average(found: dict[str, Any], key: str) -> str:
    return f", on average {found[key]:,.5g} a shard" if found[key] is not None else ""


def _coverage(known: int, shards: int) -> str:
    return "all" if known == shards else f"{known:,} of {shards:,}" if known else "none"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _size(number: float | None) -> str:
    return "?" if number is None else format_size(number)


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))
