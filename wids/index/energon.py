"""Read the index of a Megatron-Energon dataset, which has shards and their sample counts, as a shard list.

Pure. The format is Energon's (``energon prepare``; ``WebdatasetInfo`` in its documentation and sources).
``.nv-meta/.info.json`` (of older releases: ``.info.yaml``, the same as YAML) is an object whose ``shard_counts`` maps
each shard's path, from the directory that holds ``.nv-meta``, to its number of samples. It has the shards of all
splits; the splits are in another file.
"""

from __future__ import annotations

import json
import re
from typing import Any

from wids.errors import SpecError
from wids.index import checks
from wids.index.shardlist import MAX_COUNT
from wids.index.spec import parse_json
from wids.transport.place import Place

NAMES = frozenset({".info.json", ".info.yaml"})
_TOP = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(?: +([A-Za-z0-9'\"][^#]*))?\s*")
# Names that are text in any YAML, and quoted texts without quotes or escapes in them.
_PLAIN, _QUOTED = r"([A-Za-z0-9_./][A-Za-z0-9_./+@=-]*\.tar)", r"'([^'\\]+)'|\"([^\"\\]+)\""
_COUNT = re.compile(rf" +(?:{_PLAIN}|{_QUOTED}): +(0|[1-9][0-9]*)\s*")
_MAX_DIGITS = 19


def is_info(place: str) -> bool:
    """Whether a URL or path is the counts of an Energon dataset, by its name."""
    return Place(place).name in NAMES


def convert_info(data: bytes, *, place: str) -> bytes:
    """An Energon dataset's counts, as an index of our own.

    Raises:
        SpecError: malformed; or YAML beyond plain lines of names and counts.
    """
    if Place(place).name.endswith(".json") or data.lstrip()[:1] == b"{":
        raw: Any = parse_json(data, place)
    else:
        raw = _parse_yaml(data, place)
    counts = raw.get("shard_counts")
    if not isinstance(counts, dict) or not counts:
        checks.fail(place, "shard_counts", "is missing or empty; it gives the number of samples of each shard")
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            checks.fail(place, f"shard_counts[{name!r}]", f"is {count!r}; it must be a number of samples")
    shards = [{"url": name, "nsamples": count} for name, count in counts.items()]
    return json.dumps({"wids_version": 1, "base": "..", "shardlist": shards}).encode()


def _parse_yaml(data: bytes, place: str) -> dict[str, Any]:
    """The plain lines that Energon writes. Any other YAML is refused, because a partial reader would guess."""
    found: dict[str, Any] = {}
    inner: dict[str, int] | None = None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{place}: not UTF-8 ({error})", path="", url=place) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if (count := _COUNT.fullmatch(line)) and inner is not None:
            name = count[1] or count[2] or count[3]
            # A count of more digits is out of range in any case, and Python reads only so many.
            if name not in inner and len(count[4]) <= _MAX_DIGITS:
                inner[name] = int(count[4])
                continue
        elif (top := _TOP.fullmatch(line)) and top[1] not in found:
            inner = {} if top[2] is None else None
            found[top[1]] = top[2] if inner is None else inner
            continue
        checks.fail(
            place,
            f"line {number}",
            f"is {line[:80]!r}; the only YAML that is read here is plain `name.tar: count` lines; convert the file to "
            ".info.json, which newer releases of Energon write",
        )
    return found
