"""Reads sample counts written by other tools. An index can be made from them without reading the shards.

Two forms are known. ``sizes.json``, which programs around webdataset write beside the shards, has counts as numbers or
as digits: ``{"00000.tar": 1000, ...}``. ``00000_stats.json``, which img2dataset writes beside ``00000.tar``, has
``successes``. A count is a claim: opening a shard with another number of samples raises a
`wids.errors.CountMismatchError`.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.files.json_text import TOLERANT
from wids.core.index import discovery
from wids.core.index.spec import parse_json
from wids.core.place import Place
from wids.core.shard import MAX_COUNT
from wids.core.transport import urls
from wids.core.transport.download import read_bytes
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SIZES_NAME, STATS_SUFFIX = "sizes.json", "_stats.json"
_MAX_BYTES = 64 << 20


class Claim(msgspec.Struct, frozen=True):
    """The count of one shard in a file.

    Attributes:
        directory: of the shard.
        name: of the shard.
        nsamples: its count.
        source: the file.
    """

    directory: str
    name: str
    nsamples: int
    source: str


class SampleCounts(msgspec.Struct, kw_only=True):
    """Counts for the shards of an index.

    Attributes:
        nsamples: URL of a shard -> its count.
        sources: file -> number of its counts.
        unused: names of shards in the files that are not in the index.
    """

    nsamples: dict[str, int] = msgspec.field(default_factory=dict)
    sources: dict[str, int] = msgspec.field(default_factory=dict)
    unused: list[str] = msgspec.field(default_factory=list)


def match_counts(places: Iterable[str], shards: Sequence[str], *, session: Session = PLAIN) -> SampleCounts:
    """Find the counts of shards in files.

    The count of a shard is found by its name, first in a file beside it, then in any other file if the name is unique.

    Args:
        places: files, directories of them, patterns, URLs, prefixes.
        shards: URLs.
        session: opens URLs.

    Raises:
        InputError: a file has no counts, or two counts of a shard differ, or one matches several shards.
        FetchError: a file cannot be read.
    """
    claims: dict[str, dict[str, Claim]] = {}
    for place in places:
        for claim in _read(place, session):
            before = claims.setdefault(claim.name, {}).setdefault(claim.directory, claim)
            if before.nsamples != claim.nsamples:
                raise InputError(
                    f"{claim.source}: says that {claim.name} has {claim.nsamples} samples, and {before.source} says "
                    f"{before.nsamples}; give one of them",
                    path=claim.source,
                )
    named: dict[str, list[str]] = {}
    for url in shards:
        named.setdefault(Place(url).name, []).append(url)
    counts, used = SampleCounts(), set[tuple[str, str]]()
    for name, places_of in named.items():
        for url in places_of:
            found = _choose(claims.get(name, {}), url, places_of)
            if found is not None:
                counts.nsamples[url] = found.nsamples
                counts.sources[found.source] = counts.sources.get(found.source, 0) + 1
                used.add((found.directory, name))
    counts.unused = [name for name, those in claims.items() for directory in those if (directory, name) not in used]
    return counts


def _choose(claims: dict[str, Claim], url: str, same: Sequence[str]) -> Claim | None:
    """The claim of a shard.

    Args:
        claims: directory -> claim of this name.
        url: of the shard.
        same: the URLs of all shards of this name.

    Raises:
        InputError: it is unclear which shard a claim belongs to.
    """
    directories = {str(Place(url).directory) for url in same}
    own = claims.get(str(Place(url).directory))
    others = [claim for directory, claim in claims.items() if directory not in directories]
    if own is not None or not others:
        return own
    if len(same) > 1 or len(others) > 1:
        raise InputError(
            f"{others[0].source}: has a count of {others[0].name}, and "
            + (f"{len(same)} shards have" if len(same) > 1 else f"{others[1].source} has one, too, for")
            + " this name; put it beside the shards that it is of",
            path=others[0].source,
        )
    return others[0]


def _read(place: str, session: Session) -> Iterator[Claim]:
    for source in _files(place, session):
        data = read_bytes(source, session=session, max_bytes=_MAX_BYTES)
        raw = parse_json(data, source, may_repeat=True)  # the counts are compared
        own = Place(source)
        name, directory = own.name, own.directory
        if name.endswith(STATS_SUFFIX) and "successes" in raw:
            shard = name.removesuffix(STATS_SUFFIX) + discovery.SUFFIX
            yield Claim(str(directory), shard, _count(raw["successes"], source, "successes"), source)
            continue
        if not raw:
            raise InputError(f'{source}: has no counts; it must be like {{"00000.tar": 1000}}', path=source)
        for key, value in TOLERANT.parse_pairs(data, list):  # each of two equal keys is a claim
            below, _, shard = key.rpartition("/")
            home = directory.join(below) if below else directory
            yield Claim(str(home), shard, _count(value, source, key), source)


def _files(given: str, session: Session) -> list[str]:
    """The files that a place of counts names."""
    place = Place(given)
    if not place.is_local:
        is_many = place.without_query.endswith("/")
        return discovery.list_names(given, _is_counts, session) if is_many else [given]
    path = place.absolute.path
    if os.path.isdir(path):
        found = [os.path.join(path, name) for name in os.listdir(path) if _is_counts(name)]
    else:
        found = [path] if os.path.exists(path) else glob.glob(path)
    if not found:
        raise InputError(f"{given}: there is no {SIZES_NAME} and no *{STATS_SUFFIX} there", path=path)
    return sorted(found, key=urls.natural_key)


def _is_counts(name: str) -> bool:
    return name == SIZES_NAME or name.endswith(STATS_SUFFIX)


def _count(value: Any, source: str, key: str) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_COUNT:
        raise InputError(
            f"{source}: {key[:200]!r} is {value!r:.60}, which is no number of samples; counts are like "
            '{"00000.tar": 1000}, or "successes" of a file that ends in _stats.json',
            path=source,
        )
    return number
