"""``wids.wids`` of the original: datasets, samplers, and the pieces that programs took from it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from wids.core.cache import shard_download
from wids.core.codecs.decode import parse_transformations as interpret_transformations
from wids.core.collection.arguments import digest_name as hash_dataset_name
from wids.core.collection.shard_collection import count_mismatch
from wids.core.files.open_file import OpenFile
from wids.core.files.own_folder import default_cache_dir
from wids.core.place import Place, cache_directory
from wids.core.readers.local import LocalReader
from wids.core.readers.lru import LRUCache
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.core.tables import table
from wids.dataset import ShardListDataset
from wids.errors import DigestMismatchError
from wids.legacy import refuse
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler

# By the names that they have for users; wids.legacy.wids_mmtar would be a second module.
from wids.wids_decode import default_decoder
from wids.wids_dl import download_and_open
from wids.wids_mmtar import MMIndexedTar
from wids.wids_specs import load_dsdesc_and_resolve, urldir
from wids.wids_tar import TarFileReader, find_index_file

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Range = tuple[int, int]

__getattr__: Callable[[str], NoReturn] = refuse(
    __name__, {"open_itfs": "nothing was ever in it; dataset.cache.lru holds the open shards"}
)
__all__ = [
    "CacheLocalname",
    "ChunkedSampler",
    "DefaultLocalname",
    "DistributedChunkedSampler",
    "IndexedTarSamples",
    "LRUCache",
    "LRUShards",
    "MMIndexedTar",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
    "TarFileReader",
    "cache_localname",
    "compute_file_md5sum",
    "compute_num_samples",
    "default_decoder",
    "default_localname",
    "download_and_open",
    "find_index_file",
    "group_by_key",
    "hash_dataset_name",
    "hash_localname",
    "interpret_transformations",
    "intersect_range",
    "intersect_ranges",
    "iterate_ranges",
    "lengths_to_ranges",
    "load_dsdesc_and_resolve",
    "splitname",
    "urldir",
]


class DefaultLocalname:
    """URL -> path in a directory. One URL, one path: also for shards that share a basename."""

    directory: str

    def __init__(self, dldir: str | os.PathLike[str] | None = None) -> None:
        self.directory = cache_directory(default_cache_dir() if dldir is None else dldir)

    def __call__(self, shard: str) -> str:
        return os.path.join(self.directory, Place(shard).cache_name())


class CacheLocalname(DefaultLocalname):
    """The same; the original's took the URL's basename alone, so that shards overwrote each other."""

    def __init__(self, cachedir: str | os.PathLike[str]) -> None:
        super().__init__(cachedir)


default_localname = hash_localname = DefaultLocalname
cache_localname = CacheLocalname


class LRUShards(OpenShards):
    """A pool of open shards for any URL; local ones are read in place unless ``localname`` says otherwise."""

    def __init__(self, lru_size: int, keep: bool = False, localname: Callable[[str], str] | None = None) -> None:
        self.keep = keep
        super().__init__(_provider(localname), capacity=lru_size, find=_shard_without_count, hooks=())


class IndexedTarSamples:
    """The samples of one local tar; ``reader.by_index`` holds (name, header offset, size) of each member."""

    reader: MMIndexedTar
    stream: BinaryIO | None
    path: str

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        *,
        stream: BinaryIO | None = None,
        use_mmap: bool = True,  # noqa: ARG002 - programs pass it; the bytes read are the same either way
        index_file: object = find_index_file,  # noqa: ARG002 - programs pass it; it was a pickle, and is not used
    ) -> None:
        if path is None and stream is None:
            raise TypeError("IndexedTarSamples needs a path or a stream")
        self.path = os.fspath(path) if path is not None else str(getattr(stream, "name", stream))
        self.reader = MMIndexedTar(self.path if stream is None else stream)
        self.stream = self.reader.stream
        if md5sum and (found := compute_file_md5sum(self.stream)) != md5sum.lower():
            self.close()
            raise DigestMismatchError(f"{self.path}: its md5 is {found}, not {md5sum}", expected=md5sum, found=found)
        fd = os.dup(self.stream.fileno())
        try:
            members = table.build_table(
                self.reader.members,
                identity=table.Identity(size=os.fstat(fd).st_size),
                shard=self.path,
            )
        except BaseException:
            os.close(fd)
            self.close()
            raise
        self._samples = LocalReader(OpenFile(fd), table=members, url=self.path, path=self.path)
        if expected_size is not None and len(self) != expected_size:
            self.close()
            raise count_mismatch(self.path, expected_size, len(members), by="not")

    @property
    def samples(self) -> list[list[int]]:
        """Positions in ``reader.by_index`` of the members of each sample."""
        return group_by_key(name for name, _, _ in self.reader.by_index)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, idx: int) -> dict[str, Any]:
        return self._samples[idx + len(self) if idx < 0 else idx]

    def close(self) -> None:
        self.reader.close()
        if hasattr(self, "_samples"):
            self._samples.close()


def compute_file_md5sum(fname: str | os.PathLike[str] | BinaryIO, chunksize: int = 1 << 20) -> str:
    if isinstance(fname, (str, os.PathLike)):
        return shard_download.file_digest(os.fspath(fname), "md5sum")
    digest = hashlib.md5(usedforsecurity=False)
    fname.seek(0)
    while block := fname.read(chunksize):
        digest.update(block)
    fname.seek(0)
    return digest.hexdigest()


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    with contextlib.closing(_provider(None).open(_shard_without_count(os.fspath(fname)))) as reader:
        return len(reader)


def splitname(fname: str) -> tuple[str, str]:
    """Cut a name at the first dot of its last component that has a dot in or after it: (key, extension).

    Any name with a dot has a key here, as in the original: ``.`` gives ``("", ".")``. Which members are part of a
    sample is said by `group_by_key` and by the datasets.
    """
    last = fname.rfind(".")
    if last < 0:
        raise ValueError(f"{fname!r} has no extension, so it belongs to no sample")
    dot = fname.index(".", fname.rfind("/", 0, last) + 1)
    return fname[:dot], fname[dot:]


def group_by_key(names: Iterable[str]) -> list[list[int]]:
    groups: list[list[int]] = []
    last: bytes | None = None
    for i, name in enumerate(names):
        parts = table.first_dot(table.encode_name(name))
        if parts is None:
            continue
        if parts[0] != last:
            last = parts[0]
            groups.append([])
        groups[-1].append(i)
    return groups


def lengths_to_ranges(lengths: Iterable[int]) -> list[Range]:
    return ShardListSampler(None, lengths=list(lengths)).ranges


def intersect_range(a: Range, b: Range) -> Range | None:
    """The intersection of two half-open ranges; None if it is empty."""
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    return (lo, hi) if lo < hi else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    return [both for each in rangelist if (both := intersect_range(each, r)) is not None]


def iterate_ranges(
    ranges: Sequence[Range], rng: random.Random, indexshuffle: bool = True, shardshuffle: bool = True
) -> Iterator[int]:
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for k in order:
        indices = list(range(*ranges[k]))
        if indexshuffle:
            rng.shuffle(indices)
        yield from indices


def _provider(localname: Callable[[str], str] | None) -> AutoProvider:
    return AutoProvider(cache_dir=None if localname else cache_directory(default_cache_dir()), localname=localname)


def _shard_without_count(url: str) -> Shard:
    return Shard(url=url, nsamples=None)
