"""``wids info``: what an index says of its dataset, and the fields of the first sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wids.cli.format import complain, count_of, format_size, print_json, print_table, printable, shown_url
from wids.cli.look.listed import Listed
from wids.errors import WidsError
from wids.index import urls

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_PARTS = 20


def show(
    indexes: list[str],
    *,
    cache_dir: str,
    may_fetch: bool,
    storage_options: dict[str, Any] | None = None,
    is_json: bool,
) -> None:
    """Print what is in one dataset, or a table of several.

    Raises:
        WidsError: an index cannot be read, or the first shard is not what the index says.
    """
    found, failed = [], 0
    for index in indexes:
        try:
            listed = Listed(index, cache_dir=cache_dir, storage_options=storage_options)
            found.append(_describe(listed, may_fetch=may_fetch))
        except WidsError as error:
            if len(indexes) == 1:
                raise
            failed += 1
            complain(str(error))
    if is_json:
        print_json(found[0] if len(indexes) == 1 else found)
    elif len(indexes) == 1:
        _print_one(found[0])
    elif found:
        _print_several(found)
    wrong = [f"{described['index']}: {described['first_sample']['error']}" for described in found if _error(described)]
    if wrong:
        raise WidsError("; ".join(wrong))
    if failed:
        raise WidsError(f"{failed} of {count_of(len(indexes), 'index').replace('indexs', 'indexes')} cannot be read")


def _error(described: dict[str, Any]) -> Any:
    return (described["first_sample"] or {}).get("error")


def _describe(listed: Listed, *, may_fetch: bool) -> dict[str, Any]:
    """All that is known, for JSON."""
    shards = listed.shards
    local = [k for k, count in enumerate(shards.nsamples) if count < 0 and urls.is_local(shards.urls[k])]
    if len(local) == sum(count < 0 for count in shards.nsamples):
        listed.count()
    samples, uncounted = _sum(shards.nsamples)
    size, unsized = _sum(shards.filesizes)
    count = len(shards)
    return {
        "index": listed.name,
        "name": shards.header.get("name"),
        "info": shards.header.get("info"),
        "base": shards.header.get("base") or shards.header.get("base_path"),
        "shards": count,
        "samples": samples if not uncounted else None,
        "bytes": size if not unsized else None,
        "samples_per_shard": samples / count if count and not uncounted else None,
        "bytes_per_shard": size / count if count and not unsized else None,
        "bytes_per_sample": size / samples if samples and not (unsized or uncounted) else None,
        "first_shard": shards.urls[0] if count else None,
        "last_shard": shards.urls[-1] if count else None,
        "datasets": _datasets(listed),
        "counted": count - uncounted,
        "with_filesize": count - unsized,
        "with_md5sum": sum(map(bool, shards.md5sums)),
        "first_sample": None if uncounted else _first_sample(listed, may_fetch=may_fetch),
    }


def _sum(column: Iterable[int]) -> tuple[int, int]:
    """(the sum of what is known, how many are not)."""
    known = [number for number in column if number >= 0]
    return sum(known), sum(number < 0 for number in column)


def _datasets(listed: Listed) -> list[dict[str, Any]]:
    """The sub-datasets, in order; none if the index has no such parts."""
    parts: dict[Any, dict[str, Any]] = {}
    shards = listed.shards
    for k in range(len(shards)):
        name = shards.dataset_of(k)
        if not (name is None or isinstance(name, str)):  # a shard's own, which nobody checked
            name = json.dumps(name)
        part = parts.get(name)
        if part is None:
            described = shards.describe(k)
            part = parts[name] = {"name": name, "shards": 0, "samples": 0, "bytes": 0}
            part |= {key: described[key] for key in ("weight", "source_url") if key in described}
        part["shards"] += 1
        for key, number in (("samples", shards.nsamples[k]), ("bytes", shards.filesizes[k])):
            part[key] = None if number < 0 or part[key] is None else part[key] + number
    return [] if list(parts) in ([], [None]) else list(parts.values())


def _first_sample(listed: Listed, *, may_fetch: bool) -> dict[str, Any] | None:
    """Key and fields of sample 0; None: there is no sample, or its table is not at hand."""
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


def _print_one(found: dict[str, Any]) -> None:
    lines = [("index", shown_url(found["index"]))]
    lines += [(key, _text(found[key])) for key in ("name", "info", "base") if found[key] is not None]
    shards, samples, size = found["shards"], found["samples"], found["bytes"]
    lines.append(("shards", f"{shards:,}"))
    counted = f"known of {found['counted']:,} of {count_of(shards, 'shard')}"
    lines.append(("samples", counted if samples is None else f"{samples:,}{_each(found, 'samples_per_shard')}"))
    if size is not None:
        words = format_size(size) + (f" ({size:,})" if size >= 1000 else "")
        means = [
            f"{format_size(found[f'bytes_per_{what}'])} a {what}" for what in ("shard", "sample") if _has(found, what)
        ]
        lines.append(("bytes", f"{words}, on average {', '.join(means)}" if means else words))
    lines.append(("sizes", _coverage(found["with_filesize"], shards)))
    lines.append(("md5", _coverage(found["with_md5sum"], shards)))
    if shards:
        lines.append(("first shard", shown_url(found["first_shard"])))
        lines.append(("last shard", shown_url(found["last_shard"])))
    lines += _first_lines(found)
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:{width}}  {text}")
    if found["datasets"]:
        print()
        rows = [
            (_text(part["name"]), _count(part["shards"]), _count(part["samples"]), _size(part["bytes"]))
            for part in found["datasets"][:_MOST_PARTS]
        ]
        print_table(("sub-dataset", ">shards", ">samples", ">size"), rows)
        if len(found["datasets"]) > _MOST_PARTS:
            print(f"and {len(found['datasets']) - _MOST_PARTS:,} more (--json lists them all)")


def _first_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    first = found["first_sample"]
    if not found["samples"]:
        return []
    if first is None:
        return [("sample 0", "not looked at: its shard is remote and not in the cache (--fetch brings it)")]
    if "error" in first:
        return [("sample 0", "cannot be looked at")]
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
            _coverage(described["with_md5sum"], described["shards"]),
        )
        for described in found
    ]
    print_table(("index", "name", ">shards", ">samples", ">size", ">a sample", "sizes", "md5"), rows)


def _has(found: dict[str, Any], what: str) -> bool:
    return found[f"bytes_per_{what}"] is not None


def _each(found: dict[str, Any], key: str) -> str:
    return f", on average {found[key]:,.5g} a shard" if found[key] is not None else ""


def _coverage(known: int, shards: int) -> str:
    return "all" if known == shards else f"{known:,} of {shards:,}" if known else "none"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _size(number: float | None) -> str:
    return "?" if number is None else format_size(number)


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))
