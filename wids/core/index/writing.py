"""Build an index (the JSON object) from the entries of shards; merge, split and rebase indexes.

Pure. An index is a dict as JSON has it, an entry one element of its ``shardlist``; keys that wids does not know
stay. A URL here may be an absolute path; an entry's URL is written relative to a directory if it is below it.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from wids.core.place import Place, relative_name
from wids.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Entry = dict[str, Any]

KIND = "wids-shard-index-v1"
# A relative name must not begin with this or hold it: it would be read as a URL or a home directory. With ./ it may.
_NOT_RELATIVE = re.compile(r"~|/|pipe:|.*(::|://)", re.DOTALL)


def make_index(
    entries: Sequence[Entry], *, name: str | None = None, info: str | None = None, base: str | None = None
) -> dict[str, Any]:
    """The index of these shards, in this order."""
    return {**make_head(name=name, info=info, base=base), "shardlist": list(entries)}


def make_head(*, name: str | None = None, info: str | None = None, base: str | None = None) -> dict[str, Any]:
    """The top-level keys of an index before its shards."""
    keys = {"name": name, "info": info, "base": base}
    return {"__kind__": KIND, "wids_version": 1, **{key: value for key, value in keys.items() if value is not None}}


def dump_index(index: dict[str, Any]) -> bytes:
    """The JSON text: a line for each key, and one for each shard and sub-dataset."""
    lines = [f"{json.dumps(key)}: {_dump_value(value)}" for key, value in index.items()]
    return ("{\n  " + ",\n  ".join(lines) + "\n}\n").encode()


def _dump_value(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n    " + ",\n    ".join(json.dumps(item) for item in value) + "\n  ]"


def relative_to(url: str, home: str | None) -> str:
    """``url`` relative to the directory ``home``, if it is below it; otherwise unchanged.

    Args:
        url: a URL or an absolute path, also as `wids.core.place.Place.of_path` gives it.
        home: a URL or an absolute path.
    """
    name = Place(url).below(home)
    return url if not name or _NOT_RELATIVE.match(name) else name


def written(url: str, home: str | None, *, base: str | None = None) -> str:
    """The form of a URL in an index: relative to the directory ``home`` if it is below it.

    Args:
        url: a URL or an absolute path.
        home: the directory.
        base: the index's other base of its relative URLs.
    """
    name, is_web = relative_to(url, home), Place(url).is_web
    if name == url:
        below = Place(url).below(home)
        if below and not is_web and not below.startswith("/") and "://" not in below:
            return f"./{below}"
        return str(Place.of_path(url)) if url.startswith("/") else url
    if not is_web:
        return relative_name(name)
    return name if Place(base or url).is_web else relative_name(unquote(name))


def common_directory(urls: Sequence[str]) -> str:
    """The deepest directory that contains all of them; ``""`` if none does. For ``file:`` URLs, a path."""
    common: str | None = None
    plain = (Place(url).path if url.startswith("file:///") else url for url in urls)
    for directory in dict.fromkeys(str(Place(url).directory) for url in plain):
        if common is None:
            common = directory
        while common and directory != common and not directory.startswith(common.rstrip("/") + "/"):
            shorter = str(Place(common).directory)
            common = "" if shorter == common else shorter
    return common or ""


def place_entries(urls: Sequence[str], *, home: str | None, base: str | None = None) -> list[str]:
    """The URLs of the shards at ``urls`` as they are written in an index.

    Args:
        urls: URLs or absolute paths.
        home: the directory of the index.
        base: the index's own base, if it is to have one. URLs below it are written relative to it. Where nothing
            does, the shards are assumed to be there as they are below their common directory here.
    """
    if not base:
        return [written(url, home) for url in urls]
    full = str(Place(home or "").join(base))
    names = [relative_to(url, full) for url in urls]
    if any(name != url for name, url in zip(names, urls, strict=True)):
        return [written(url, full) for url in urls]
    common = common_directory(urls)
    if not common:
        raise SpecError(f"base {base}: the shards have no directory in common below which they could be found there")
    return [written(url, common, base=full) for url in urls]


def rebase(index: dict[str, Any], base: str) -> dict[str, Any]:
    """Return the index with shards below ``base``, which replaces the directory that their URLs have in common.

    Args:
        index: as it was written. Relative URLs are unchanged. For a view, the index behind the view is moved.
        base: a URL or a path; "" removes the base, so that URLs are relative to the place of the index.

    Raises:
        SpecError: there are sub-datasets, or absolute and relative URLs together, or shards without a directory in
            common.
    """
    if "shardlist" not in index and "view_of" in index:
        parent = str(index["view_of"])
        return {**index, "view_of": str(Place(base).join(written(parent, str(Place(parent).directory), base=base)))}
    if index.get("datasets"):
        raise SpecError("the index has sub-datasets, and each gives the place of its shards; rebase those")
    names = [str(entry["url"]) for entry in index["shardlist"]]
    is_relative = [not Place(url).scheme and not url.startswith(("/", "~")) for url in names]
    if any(is_relative) and not all(is_relative):
        raise SpecError("some of the index's URLs are absolute and others relative", hint="base")
    if not any(is_relative):
        common = common_directory(names)
        if not common:
            raise SpecError("the shards have no common directory for the base")
        names = [written(url, common, base=base) for url in names]
    entries = [{**entry, "url": url} for entry, url in zip(index["shardlist"], names, strict=True)]
    rest = {key: value for key, value in index.items() if key not in ("base", "base_path", "shardlist")}
    return {**rest, **({"base": base} if base else {}), "shardlist": entries}


def split_every(count: int, number: int) -> list[range]:
    """Shards 0 .. count - 1, ``number`` at a time."""
    return [range(lo, min(lo + number, count)) for lo in range(0, count, number)]


def split_by_fractions(nsamples: Sequence[int], fractions: Sequence[float]) -> list[range]:
    """Parts of whole shards, in order, each with about that fraction of the samples, and one shard at least.

    Raises:
        SpecError: the fractions are not positive or do not add up to 1, or there are fewer shards than parts.
    """
    if not fractions or not (min(fractions) > 0 and abs(sum(fractions) - 1) <= 1e-6):  # also where one is no number
        raise SpecError(
            f"fractions {fractions} are not positive numbers that add up to 1; write them like 0.9,0.1",
            parameter="fractions",
        )
    if len(nsamples) < len(fractions):
        raise SpecError(f"{len(nsamples)} shards cannot be split into {len(fractions)} parts; a shard stays whole")
    ends = list(itertools.accumulate(nsamples))
    parts, lo, wanted = [], 0, 0.0
    for k, fraction in enumerate(fractions):
        wanted += fraction * ends[-1]
        most = len(nsamples) - (len(fractions) - 1 - k)  # those that are left have one each
        hi = lo + 1
        while hi < most and abs(ends[hi] - wanted) <= abs(ends[hi - 1] - wanted):
            hi += 1
        if k == len(fractions) - 1:
            hi = len(nsamples)
        parts.append(range(lo, hi))
        lo = hi
    return parts


def shorten_name(name: str) -> str:
    """The words of a path, each once, numbers left out: ``gs://b/train-000`` -> ``gs-b-train``."""
    words = [word for word in re.split(r"\W+", name) if word and not word.isdigit()]
    return "-".join(dict.fromkeys(words))


def stem_of(url: str) -> str:
    """The name of an index, from its URL: ``/d/train.json`` is ``train``."""
    return posixpath.splitext(Place(url).name)[0]
