"""Read the files of a Megatron-Energon dataset: the sample counts of its shards, its splits and exclusions.

Pure. The formats are Energon's (``energon prepare``; ``WebdatasetInfo`` and ``WebdatasetSplits`` in its documentation
and sources). ``.nv-meta/.info.json`` (of older releases: ``.info.yaml``, the same as YAML) is an object whose
``shard_counts`` maps each shard's path, from the directory that holds ``.nv-meta``, to its number of samples. It has
the shards of all splits. ``.nv-meta/split.yaml`` (or ``split.json``) has ``split_parts``, split -> names of shards with
braces, and ``exclude``: shards, or samples as ``SHARD/KEY``, with braces, which are in no split.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.index import checks, foreign
from wids.core.index.spec import parse_json
from wids.core.place import Place
from wids.core.shard import MAX_COUNT
from wids.core.transport import urls
from wids.errors import SpecError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

SPLITS = ("split.yaml", "split.json")
# Names that the patterns of one file may make, of plain ones; of patterns with many braces or letters, fewer.
_MAX_NAMES, _LETTERS, _SHOWN = 400_000, 256, 5
_EXPRESSION = re.compile(r"[*?\[\]\\^$|]")
_TOP = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(?: +([A-Za-z0-9'\"][^#]*))?")
# Names that are text in any YAML, and quoted texts without quotes or escapes in them.
_PLAIN, _QUOTED = r"([A-Za-z0-9_./][A-Za-z0-9_./+@=-]*\.tar)", r"'([^'\\]+)'|\"([^\"\\]+)\""
_COUNT = re.compile(rf" +(?:{_PLAIN}|{_QUOTED}): +(0|[1-9][0-9]*)\s*")
_MAX_DIGITS = 19


class SplitFile(msgspec.Struct, frozen=True):
    """The splits of a dataset.

    Attributes:
        url: URL or path of the file, for messages.
        parts: split -> names of shards, with braces; None: the file has none.
        exclude: names of shards and samples that are in no split, with braces.
    """

    url: str
    parts: dict[str, list[str]] | None
    exclude: list[str]

    def shards_of(self, split: str, there: Collection[str]) -> list[str]:
        """The shards of a split that exist, in order.

        Args:
            split: one of `parts`.
            there: the shards that exist.

        Raises:
            SpecError: a name is a regular expression, or there are too many names.
        """
        existing, missing = dict[str, None](), list[str]()
        for text, name in self._names((self.parts or {})[split], "split_parts"):
            if name in there:
                existing[name] = None
            else:
                self._check_name(text, "split_parts")
                missing.append(name)
        if missing:
            self._warn("split_parts", f"names {len(missing):,} shards of {shown(split)} that do not exist", missing)
        return list(existing)

    def drop_excluded(self, shards: Iterable[str], there: Collection[str]) -> list[str]:
        """The shards without the excluded ones.

        Args:
            shards: the chosen ones.
            there: all shards that exist.

        Raises:
            SpecError: single samples of them are excluded, which no index of whole shards can leave out; or a name is
                a regular expression or glob, or there are too many names.
        """
        kept, samples, missing = dict.fromkeys(shards), dict[str, str](), list[str]()
        for text, name in self._names(self.exclude, "exclude"):
            shard = next((home for home in _homes(name) if home in there), None)
            if name in there:
                kept.pop(name, None)
            elif shard is None:
                self._check_name(text, "exclude")
                missing.append(name)
            else:
                samples[name] = shard
        samples = {name: shard for name, shard in samples.items() if shard in kept}
        if samples:
            first, shard = next(iter(samples.items()))
            raise SpecError(
                f"{self.url}: exclude leaves out {len(samples):,} single samples ({shown(first)}), and an index "
                "lists whole shards; open the shards by their names, without this index and without those that exclude "
                "names, and leave the samples out by their keys: ShardListDataset('DIRECTORY/*.tar')"
                f".exclude([{first.removeprefix(f'{shard}/')!r:.100}, ...])",
                path="exclude",
                url=self.url,
            )
        if missing:
            self._warn("exclude", f"leaves out {len(missing):,} shards or samples that do not exist", missing)
        return list(kept)

    def _names(self, patterns: Iterable[str], key: str) -> Iterator[tuple[str, str]]:
        """(pattern, name) for each name of patterns."""
        left = _MAX_NAMES
        for text in patterns:
            cost = 1 + text.count("{") + len(text) // _LETTERS
            for name in urls.expand(text, most=left // cost):
                left -= cost
                yield text, posixpath.normpath(name)
            if left <= 0:
                self._fail(key, "makes too many names; name the shards by fewer patterns")

    def _check_name(self, text: str, key: str) -> None:
        if _EXPRESSION.search(text):
            what = f"has {shown(text)}, which is neither the name of a shard nor names in braces"
            self._fail(key, f"{what} (Energon reads no other patterns here); write the names, as x-{{000..009}}.tar")

    def _fail(self, key: str, what: str) -> None:
        raise SpecError(f"{self.url}: {key} {what}", path=key, url=self.url)

    def _warn(self, key: str, what: str, names: list[str]) -> None:
        more = ", ..." if len(names) > _SHOWN else ""
        logger.warning("%s: %s %s: %s%s", self.url, key, what, ", ".join(map(shown, names[:_SHOWN])), more)


def _homes(name: str) -> list[str]:
    """The paths that a path is below."""
    parts = name.split("/")
    return ["/".join(parts[:k]) for k in range(1, len(parts))]


def parse_splits(data: bytes, *, url: str) -> SplitFile:
    """A dataset's splits.

    Args:
        data: the file.
        url: its URL or path.

    Raises:
        SpecError: malformed. DependencyError: PyYAML is not installed.
    """
    is_json = Place(url).name.endswith(".json")
    raw = parse_json(data, url) if is_json else foreign.load_yaml(data, "split.yaml", url)
    foreign.warn_of_keys(raw, ("split_parts", "exclude"), url, is_strict=True)
    parts, exclude = raw.get("split_parts"), raw.get("exclude")
    if parts is not None and not isinstance(parts, dict):
        checks.fail(url, "split_parts", f"is {shown(parts)}; it must be an object of splits")
    named = {str(split): _texts(names, f"split_parts.{split}", url) for split, names in (parts or {}).items()}
    return SplitFile(url, named or None, _texts(exclude, "exclude", url))


def _texts(value: Any, path: str, url: str) -> list[str]:
    texts = [] if value is None else value if isinstance(value, list) else [value]
    for text in texts:
        if not isinstance(text, str):
            checks.fail(url, path, f"has {shown(text)}; it must be a list of names")
    return texts


def convert_info(data: bytes, *, url: str, splits: SplitFile | None = None) -> bytes:
    """An Energon dataset's counts, as an index of our own.

    Args:
        data: the file.
        url: its URL or path.
        splits: the file of its splits; the shards that it excludes are left out.

    Raises:
        SpecError: malformed; or YAML beyond plain lines of names and counts; or see `SplitFile.drop_excluded`.
    """
    if Place(url).name.endswith(".json") or data.lstrip()[:1] == b"{":
        raw: Any = parse_json(data, url)
    else:
        raw = _parse_yaml(data, url)
    counts = raw.get("shard_counts")
    if not isinstance(counts, dict) or not counts:
        checks.fail(url, "shard_counts", "is missing or empty; it gives the number of samples of each shard")
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            checks.fail(url, f"shard_counts[{name!r}]", f"is {count!r}; it must be a number of samples")
    foreign.warn_of_keys(raw, ("energon_version", "shard_counts"), url, is_strict=True)
    kept = counts
    if splits is not None:
        names = {posixpath.normpath(name): name for name in counts}
        kept = {names[name]: counts[names[name]] for name in splits.drop_excluded(names, names)}
    if not kept:
        checks.fail(url, "shard_counts", "has no shard that the owner does not exclude")
    shards = [{"url": name, "nsamples": count} for name, count in kept.items()]
    return json.dumps({"wids_version": 1, "base": "..", "shardlist": shards}).encode()


def _parse_yaml(data: bytes, url: str) -> dict[str, Any]:
    """The plain lines that Energon writes. Any other YAML is refused, because a partial reader would guess."""
    values: dict[str, Any] = {}
    inner: dict[str, int] | None = None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{url}: not UTF-8 ({error})", path="", url=url) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        line = line.rstrip()  # noqa: PLW2901 - without it, spaces before a # take quadratic time
        if (count := _COUNT.fullmatch(line)) and inner is not None:
            name = count[1] or count[2] or count[3]
            # A count of more digits is out of range in any case, and Python reads only so many.
            if name not in inner and len(count[4]) <= _MAX_DIGITS:
                inner[name] = int(count[4])
                continue
        elif (top := _TOP.fullmatch(line)) and top[1] not in values:
            inner = {} if top[2] is None else None
            values[top[1]] = top[2] if inner is None else inner
            continue
        checks.fail(
            url,
            f"line {number}",
            f"is {line[:80]!r}; the only YAML that is read here is plain `name.tar: count` lines; convert the file to "
            ".info.json, which newer releases of Energon write",
        )
    return values
