"""Short digests: of the samples in a list of shards, independent of the shards' place, and of the shards' contents.

Pure. Samplers put it into their states, so it may not change between versions.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import numpy as np

from wids.core.place import Place, plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wids.core.index.shardlist import ShardList

# A query may name the shard (get?name=3.tar), unless it follows the name of a tar.
_SIGNED = re.compile(r"(\.tar[^/?]*)\?.*", re.DOTALL)


def fingerprint(shards: ShardList) -> str:
    """A digest of the shards' names and counts, in order, independent of the shards' place.

    Directories count if shards in several have the same name, and then from the first difference of their paths.
    """
    if shards.summary is not None and shards.summary.fingerprint:
        return shards.summary.fingerprint
    return fingerprint_of(shards.urls, shards.nsamples)


def contents(shards: ShardList, first: int = 0, last: int | None = None) -> dict[str, str]:
    """Digests of checksums and sizes of the shards ``first .. last``, by kind (crc32, md5, filesize), in order.

    A kind is included if the index has it for each shard. Data that are packed again under the same names, with the
    same counts, have the same `fingerprint` and different contents.
    """
    is_whole = first == 0 and last in (None, len(shards))
    if is_whole and shards.summary is not None:
        return shards.summary.contents or {}
    if is_whole:
        return contents_of(shards.crc32s, shards.md5sums, shards.filesizes)
    return contents_of(shards.crc32s[first:last], shards.md5sums[first:last], shards.filesizes[first:last])


def contents_of(crc32s: Sequence[str], md5sums: Sequence[str], filesizes: Sequence[int]) -> dict[str, str]:
    """`contents` of the shards with these checksums and sizes; "" or -1: unknown."""
    digests = {}
    for kind, checksums in (("crc32", crc32s), ("md5", md5sums)):
        known = list(checksums)
        if known and all(known):
            digests[kind] = hashlib.blake2b("".join(known).lower().encode(), digest_size=8).hexdigest()
    sizes = np.asarray(filesizes, "<i8")
    if len(sizes) and sizes.min() >= 0:
        digests["filesize"] = hashlib.blake2b(sizes.tobytes(), digest_size=8).hexdigest()
    return digests


def have_changed(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """True if two `contents` are of different shards; kinds that only one of them has do not count."""
    return any(then[kind] != now[kind] for kind in then.keys() & now.keys())


def fingerprint_of_part(shards: ShardList, first: int, last: int) -> str:
    """The `fingerprint` of the shards ``first .. last`` alone; in a view, with their selected samples.

    A view that has all their samples has the fingerprint of the index.
    """
    nsamples = shards.nsamples[first:last]
    whole = fingerprint_of(shards.urls[first:last], nsamples)
    if shards.selection is None or list(shards.lengths[first:last]) == list(nsamples):
        return whole
    rows = shards.selection.between(first, last)
    return hashlib.blake2b(f"{whole} {rows.digest}".encode(), digest_size=8).hexdigest()


def fingerprint_of(names: Sequence[str], nsamples: Sequence[int]) -> str:
    """`fingerprint` of the shards with these URLs and counts."""
    text = "\n".join(portable_names(names)).encode("utf-8", "surrogatepass")
    state = hashlib.blake2b(digest_size=8)
    for part in (text, np.asarray(nsamples, "<i8").tobytes()):
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def unsigned(url: str) -> str:
    """A URL without the signature that a server asks for."""
    url = _SIGNED.sub(r"\1", url) if "?" in url and Place(url).is_web else url
    return _plain(url) if "%" in url else url


def _plain(url: str) -> str:
    place = Place(url)
    if place.is_web:
        return plain_name(url)
    return f"file://{place.path}" if place.scheme == "file" else url


def portable_names(names: Sequence[str]) -> list[str]:
    """The identity of shards, without their place and without signatures."""
    paths = [unsigned(url) if "?" in url or "%" in url else url for url in names]
    bare = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
    if len(set(bare)) == len(bare):
        return bare
    first, last = min(paths).split("/"), max(paths).split("/")  # the directory that these two share, all share
    parted = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return ["/".join(path.split("/")[parted:]) for path in paths]
