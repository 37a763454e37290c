"""``wids info``: the statements of an index about its dataset, and the fields of the first sample."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.errors import JobError, ShardError, SpecError, WidsError, harmless
from wids.hub.repository import parse_name
from wids.tools.cli.format import (
    advise_compiling,
    count_of,
    format_size,
    print_error,
    print_json,
    print_table,
    printable,
    shown_url,
)
from wids.tools.cli.look import LookCommand
from wids.tools.cli.options import INDEX_HELP, Json, ReadFlags
from wids.tools.cli.plain_help import App, examples

if TYPE_CHECKING:
    from wids.tools.cli.look.listed import Listed

_MAX_DATASETS = 20


@dataclass(frozen=True)
class _InfoFlags(ReadFlags):
    may_fetch: Annotated[
        bool, typer.Option("--fetch", help="Download the first shard if the fields of its first sample need it.")
    ] = False


app: App = App()


@app.command("info", cls=LookCommand, epilog=examples("wids info train.json", "wids info train.json val.json --json"))
def show_info(
    indexes: Annotated[list[str], typer.Argument(metavar="INDEX", help=INDEX_HELP)],
    flags: _InfoFlags,
    is_json: Json = False,
) -> None:
    """Summarize a dataset: name, shards, samples, bytes, sub-datasets, the fields of its first sample.

    Reads only the index and one member table. Several indexes are shown as a table, one line for each.
    """
    from wids.tools.cli.look.listed import Listed

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
    from wids.tools import summary

    uncounted = len(listed.shards.unknown_counts())
    with contextlib.suppress(SpecError):  # remote ones
        listed.count(may_fetch=False)
    found = summary.describe_index(listed.shards)
    is_counted = found["samples"] is not None
    first = _first_sample(listed, may_fetch=may_fetch) if is_counted else None
    return {
        "index": listed.name,
        **found,
        "counted_here": uncounted if is_counted else 0,
        "datasets": summary.describe_datasets(listed.shards),
        "mixture": summary.describe_mixture(listed.mixed_parts()) if is_counted else None,
        "first_sample": first,
        "classes": _classes(listed) if ".cls" in (first or {}).get("fields", ()) else None,
    }


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


def _classes(listed: Listed) -> dict[str, Any] | None:
    """Return how classes are spread over the shards, by some of the labels (``.cls``); None: too few are here."""
    from wids.tools import summary

    found = summary.find_classes(listed.collection, lambda k: None if listed.is_absent(k) else listed.open(k))
    if found is None:
        return None
    return {name: value for name, value in vars(found).items() if name != "labels"}


def _spread(found: dict[str, Any]) -> str:
    """Say how classes are spread."""
    least = "" if found["is_whole"] else "at least "
    words = f"{found['count']:,} over all, {least}{found['per_shard']:.3g} a shard on average"
    words += f" (by {count_of(found['samples'], 'label')} of {count_of(found['shards'], 'shard')})"
    if found["is_sorted"]:
        words = f"sorted by class: {words}; `wids pack --shuffle SEED` mixes them, for batches of more classes"
    return words


def _companion(found: dict[str, Any]) -> str:
    """Say which index has further fields, and which."""
    names = [f".{found['prefix']}{name}" if found["prefix"] else name for name in found["fields"]]
    return f"{shown_url(found['index'])}, by {found['on']}{': ' if names else ''}{', '.join(map(printable, names))}"


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
    if found["counted_here"] and (named := parse_name(found["index"])) is not None:
        words = f"of {count_of(found['counted_here'], 'shard')} by their headers; the repository has no index of them"
        lines.append(("counts", f"{words} (wids index create '{named.text}' --upload)"))
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
    lines += [("" if k else "companions", _companion(each)) for k, each in enumerate(found["companions"])]
    lines += _opening_lines(found)
    if found["classes"]:
        lines.append(("classes", _spread(found["classes"])))
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:{width}}  {harmless(text)}")
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
    """Number of times that a nominal epoch reads each of the source's samples, on average."""
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


def _opening_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    is_index = "made_by" not in found and found["samples"] is not None
    advice = advise_compiling(found["index"], found["shards"]) if is_index else ""
    return [("opening", advice)] if advice else []


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
