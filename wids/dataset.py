"""ShardListDataset: index + cache + decode as a map-style PyTorch dataset.

Rules: one sample is ``index -> (shard, row) -> reader -> dict -> transformations``. The order of samples is the order
of the index and never changes. Nothing here holds a lock that a fork would carry along, or an open file that a pickle
would: readers are opened where they are used. Quiet unless ``$WIDS_VERBOSE`` says otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import math
import multiprocessing.context
import operator
import os
import re
from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import TypeVar

from wids.cache.prefetch import Ahead, Source
from wids.codecs.decode import DEFAULT_INFLATE_BYTES, SampleDecoder
from wids.collection import load_shards
from wids.errors import CountMismatchError, SpecError, without_secrets
from wids.index import checks, urls
from wids.index import table as tables
from wids.index.live import FixedList, LiveDict
from wids.index.spec import list_shards
from wids.order.layout import digest
from wids.order.mask import MarkedIndex
from wids.readers.key_lookup import Keys
from wids.readers.local import Reader
from wids.readers.pool import OpenShards
from wids.readers.remote_tables import parse_access
from wids.readers.store import Store, default_cache_dir
from wids.stats import COLUMNS, ROWS, Tally
from wids.transport import retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from wids.events import Hook
    from wids.index.spec import Shard, ShardList
    from wids.index.table import Group, KeyRule, MemberTable
    from wids.readers.remote_tables import Access
    from wids.stats import Stats

    Sample: TypeAlias = dict[str, Any]
    Transform: TypeAlias = Callable[[Any], Any]
    OnCountMismatch: TypeAlias = Literal["error", "warn"]

# What a sample is after the transformations.
T_co = TypeVar("T_co", covariant=True, default=Any)

logger = logging.getLogger("wids")

_FORMATS = ("PIL", "numpy", "torch", "raw")
# No shard is open: no index lies in it.
_NOWHERE: tuple[int, int, Any, Any] = (0, 0, None, None)
# What Python says of a generator (PEP 479): it would end the loop over the dataset or its loader, unseen.
_STOPPED = "a transformation, localname or key_rule raised StopIteration (a next() without a default, mostly)"


class Location(NamedTuple):
    """Where a sample is: number of its shard in the index, row in that shard."""

    shard: int
    row: int


class ShardListDataset(Dataset[T_co]):
    """Random access to the samples of a list of tar shards.

    ``dataset[i]`` is a dict: each member's extension with its leading dot (``".jpg"``, ``".seg.png"``) -> its value,
    plus ``__key__`` (str), ``__index__`` (i), ``__shard__`` (the shard's resolved URL), ``__shardindex__`` (row in the
    shard) and ``__dataset__`` (the sub-dataset's name or None), after ``transformations``. From a sampler that masks
    (``tail="mask"``) there is ``__valid__`` too: False on samples that are repeated. ``ShardListDataset[X]`` tells type
    checkers that the transformations make an X of it.

    Attributes:
        lengths: samples in each shard, ints. total_length: their sum, an int.
        cum_lengths: where each shard's samples end, counted over the dataset; int64 array, one for each shard.
        cache: the pool of open shards in this process. base, dataset_name, cache_dir, fields: as given or found.
        localname: a function URL -> path of the shard on this machine; the one given, else the cache's own.

    Args:
        shards: a JSON index (URL, path, path-like or open file); or a list of ``{"url", "nsamples", ...}`` dicts or
            ``(url, nsamples)`` pairs; or local tars without an index: a path or brace pattern ending in ``.tar``, or a
            list of them, whose samples are then counted here.
        cache_size: bytes that the cache directory may hold, also while shards arrive: room is made before. None: no
            bound but the disk, of which a hundredth (at most 1 GiB) is left free. A bound that not even one shard fits
            is exceeded, with a warning. With a ``localname`` it holds for each directory that that chooses.
        cache_dir: where remote shards are kept; default ``$WIDS_CACHE``, else a per-user directory under the system's
            temporary directory. ``~`` expands. Made on the first download.
        lru_size: shards kept open; by default at most 512, and a quarter of the process's file descriptors together
            with all datasets that do not say it either: the one used longest ago is closed first.
        dataset_name: default: the index's name, else a digest of ``shards``.
        localname: a function URL -> path that decides where each shard is, or goes. A file that is there already is
            read in place.
        transformations: ``"PIL"``, ``"numpy"``, ``"torch"``, ``"raw"`` (bytes), a function, or a list of these, applied
            in turn; none (``[]``, ``()``, ``None``) leaves each member an ``io.BytesIO``.
        keep: this dataset's shards are not to be evicted from the cache, by whatever job or cleaner.
        base: what relative URLs are relative to; overrides the index's own ``base`` and its place.
        options: top-level keys that override those of the JSON index.
        fields: read only members with these extensions (``(".jpg", ".cls")``); no other bytes are touched.
        key_rule: how a member path splits into key and extension: ``"first-dot"`` of the basename, ``"last-dot"``, or a
            function name -> (key, extension) or None.
        group: ``"adjacent"``: a sample's members stand together; ``"key"``: members anywhere in the shard are merged.
        allow_pickle: let decoders unpickle (``.pkl``); that runs whatever code the shard's maker chose.
        max_inflate_bytes: the most that one compressed member (.gz, .npz) may inflate to when it is decoded.
        allow_pipe: let ``pipe:`` URLs run their program (without a shell).
        allow_local: let an index from a remote place point at local files.
        cache_local: copy local shards into the cache too, instead of reading them in place (NAS to NVMe).
        use_mmap: read through memory maps: members of 80 kB twice as fast. A shard that is truncated while it is read
            raises either way, but with maps there is a window of microseconds in which it kills the process (SIGBUS),
            a network file system that fails does so too, and a shard that is rewritten in place with the same size
            goes unnoticed. For large members on a local disk, in shards that stay as they are.
        storage_options: for fsspec, both for the index and for shards (credentials, endpoints, ...). They hold for the
            server of the index (scheme, host, port), for those that the program or a local index names, and for
            buckets (``s3://``, ``gs://``, ...), whose URLs name no server; not for others that a remote index names,
            nor for where a redirect leads. A key that is a URL holds another server's options, instead of these:
            ``{"headers": {...}, "https://cdn.example.com": {"headers": {...}}}``.
        prefetch: fetch the shards that a sampler of ours comes to ahead, in the background of the process that iterates
            it; a number: at most so many bytes ahead; False: each shard when it is first read.
        access: ``"fetch"``: whole remote shards go into the cache. ``"range"``: of those that are not there, members
            are read where they are, by byte ranges, and nothing is downloaded: for a look at a few samples of much.
            ``"auto"``: so until a shard has cost as much as fetching it; then it is fetched, as are those whose server
            gives no ranges and those that have no member table beside them (unless their samples are large).
        hooks: called with every `wids.events` event, in the process where it happens.
        on_count_mismatch: ``"error"``: reading a shard that does not hold as many samples as the index says raises
            `wids.errors.CountMismatchError`. ``"warn"``: for an index that is wrong and not yours. Lengths stay the
            index's, the same in all processes; a shard that holds fewer samples repeats them, from its first one on
            (``__shardindex__`` is the row that was read), of one that holds more the last are left out, and each
            process says so once for each shard.

    Raises:
        SpecError: the index is malformed; the message names the path to the bad value.
        FetchError: the index cannot be read.
    """

    takes_marked_indices = True
    _shards: list[dict[str, Any]] | None = None
    _fingerprint: str | None
    _is_remote: bool | None

    def __new__(cls, *_: Any, **__: Any) -> Self:  # noqa: D102
        self = super().__new__(cls)
        self.__dict__.update(dict.fromkeys(_PARTS, _NotInitialized(cls.__name__)))
        return self

    def __init__(
        self,
        shards: Any,
        *,
        cache_size: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        lru_size: int | None = None,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: Any = "PIL",
        keep: bool = False,
        base: str | os.PathLike[str] | None = None,
        options: dict[str, Any] | None = None,
        fields: str | Sequence[str] | None = None,
        key_rule: KeyRule = "first-dot",
        group: Group = "adjacent",
        allow_pickle: bool = False,
        max_inflate_bytes: int = DEFAULT_INFLATE_BYTES,
        allow_pipe: bool = False,
        allow_local: bool = False,
        cache_local: bool = False,
        use_mmap: bool = False,
        storage_options: dict[str, Any] | None = None,
        prefetch: bool | int = True,
        access: Access = "fetch",
        hooks: Sequence[Hook] = (),
        on_count_mismatch: OnCountMismatch = "error",
    ) -> None:
        super().__init__()
        if on_count_mismatch not in ("error", "warn"):
            raise ValueError(f"on_count_mismatch is {on_count_mismatch!r}; it is 'error' or 'warn'")
        self.on_count_mismatch = on_count_mismatch
        self.access = parse_access(access)
        self.prefetching = _parse_prefetch(prefetch)
        self.cache_size = cache_size = _parse_cache_size(cache_size)
        self.keep = keep
        self.base, found, storage_options = load_shards(
            shards, base=base, options=options, allow_local=allow_local, storage_options=storage_options
        )
        self.cache_dir = _choose_cache_dir(cache_dir, localname)
        self.fields = _parse_fields(fields)
        self._decoding: dict[str, Any] = {"allow_pickle": allow_pickle, "max_inflate_bytes": max_inflate_bytes}
        self._miscounted: set[str] = set()  # URLs that were told of
        self._counts: torch.Tensor | None = None
        self._tally = Tally()
        hooks = (*hooks, self._tally)
        store = Store(
            cache_dir=self.cache_dir,
            cache_size=cache_size,
            keep=keep,
            localname=localname,
            cache_local=cache_local,
            storage_options=storage_options,
            allow_pipe=allow_pipe,
            use_mmap=use_mmap,
            rule=key_rule,
            group=group,
            hooks=hooks,
            access=access,
            checks_counts=on_count_mismatch == "error",
        )
        self.localname: Callable[[str], str] = store.local_path if localname is None else localname
        self.cache = OpenShards(store, capacity=lru_size, find=self._find, hooks=hooks)
        self.cache.add_user(self.leave_shard)
        self.transformations = transformations
        self._has_warned = False
        self._adopt(found)
        self.dataset_name = dataset_name or found.header.get("name") or self._digest(shards)
        self._announce(shards)

    # --- what the index says

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The shards as dicts: ``url`` (resolved), ``nsamples``, and whatever else the index said of them.

        A list that is assigned (as the constructor takes it, URLs resolved) takes their place, and what is written into
        one of the dicts holds from the next sample on: lengths, keys and prefetching follow. Samplers and loaders have
        to be made anew. The list itself cannot be changed in place (TypeError).
        """
        if self._shards is None:
            self._shards = FixedList(map(self._describe, range(len(self._list))), name="dataset.shards")
        return self._shards

    @shards.setter
    def shards(self, shards: Any) -> None:
        self._take_spec({**self._list.header, "shardlist": shards})

    @property
    def spec(self) -> dict[str, Any]:
        """The index as a dict, its shards resolved; as `shards`, it may be assigned and written into."""
        return LiveDict({**self._list.header, "shardlist": self.shards}, self._take_spec)

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        self._take_spec(spec)

    @property
    def fingerprint(self) -> str:
        """A digest of the shards' names and counts, in order: the same wherever the shards lie.

        Directories count where shards in several have the same name, then from where their paths part.
        """
        if self._fingerprint is None:
            names = "\n".join(_portable_names(self._list.urls))
            counts = np.asarray(self.lengths, "<i8").tobytes()
            self._fingerprint = digest(names.encode("utf-8", "surrogatepass"), counts)
        return self._fingerprint

    @property
    def shard_ends(self) -> Any:
        """Where each shard's samples end: int64 array, one for each shard."""
        return self.cum_lengths

    def prefetch_source(self) -> Source | None:
        """What prefetching needs of this dataset; None where there is nothing to fetch, or it is off."""
        if self.prefetching is False or self.prefetching == 0 or self.access == "range":
            return None
        if not self._has_remote():
            return None
        ahead = None if self.prefetching is True else int(self.prefetching)
        return Source(self.cache.store, lambda k: self._list[k], ahead)

    def prefetch(self, indices: Iterable[Any]) -> Ahead:
        """Fetch the shards of ``indices`` ahead, for samplers of your own.

        Args:
            indices: what will be read, in order; all of it is taken at once.

        Returns:
            The same indices to iterate over: the fetching keeps ahead of what is drawn from it, and ends with it. It
            may be closed before (``with``, ``close()``).
        """
        return Ahead(self, [self._plain(index) for index in indices])

    def __len__(self) -> int:
        return self.total_length

    def __repr__(self) -> str:
        return f"<ShardListDataset {self.dataset_name!r}: {len(self)} samples in {len(self._list)} shards>"

    def locate(self, index: int) -> Location:
        """Shard and row of sample ``index`` as the index counts, without opening anything; negative: from the end.

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        index = self._plain(index)
        k = bisect_right(self._ends, index)
        return Location(k, index - (self._ends[k - 1] if k else 0))

    @property
    def keys(self) -> Keys:
        """Sample keys: ``keys[i]``, ``keys.index(key)``, ``keys.find(key)``, ``key in keys``.

        Shards are opened as needed: free for local and cached ones, a download for others.
        """
        return Keys(self)

    # --- samples

    def __getitem__(self, index: Any) -> T_co:
        lo, hi, reader, name = self._here
        self.cache.accesses += 1
        asked = index
        if type(index) is not int or not lo <= index < hi:
            reader = None  # while this waits for room in the cache, it must not keep another shard there
            index, (lo, hi, reader, name) = self._enter(index)
        row = index - lo
        sample = reader.read(row) if self.fields is None else reader.read_fields(row, self.fields)
        sample["__dataset__"] = name
        sample["__index__"] = index
        sample["__shard__"] = reader.url
        sample["__shardindex__"] = row
        if asked is not index and isinstance(asked, MarkedIndex):
            sample["__valid__"] = asked.is_valid
        return self._transform(sample) if self._transformations else sample  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T_co]:
        # Without this, Python ends a loop at any IndexError: one from a transformation would cut the data off unseen.
        return map(self.__getitem__, range(len(self)))

    def __getitems__(self, indices: Iterable[Any]) -> list[T_co]:
        """The samples at ``indices``, in that order; read shard by shard, in offset order. torch's batch fetch."""
        cls = type(self)
        if cls.__getitem__ is not ShardListDataset.__getitem__ or cls.get_shard is not ShardListDataset.get_shard:
            return [self[index] for index in indices]  # a subclass's own access must not be bypassed
        indices = list(indices)
        is_plain = set(map(type, indices)) == {int}
        wanted, order = self._sort(indices if is_plain else [self._plain(i) for i in indices])
        self.cache.accesses += len(wanted)
        samples: list[Any] = [None] * len(wanted)
        for group in self._by_shard(wanted, order):
            places = group
            while places:
                lo, hi, reader, name = self._here
                if not lo <= wanted[places[0]] < hi:
                    reader = None  # as in __getitem__
                    _, (lo, hi, reader, name) = self._enter(wanted[places[0]])
                # All of them, but where the shard repeats its samples: then those of one pass through it.
                count = len(places) if wanted[places[-1]] < hi else bisect_left(places, hi, key=wanted.__getitem__)
                reader.read_into(samples, places[:count], wanted, lo, name, self.fields)
                places = places[count:]
        if not is_plain:
            for sample, index in zip(samples, indices, strict=True):
                if isinstance(index, MarkedIndex):
                    sample["__valid__"] = index.is_valid
        if self._transformations:
            samples = [self._transform(sample) for sample in samples]
        return samples

    def get_shard(self, index: int) -> tuple[Reader, int, dict[str, Any]]:
        """(open shard, row in it, the shard's dict) of sample ``index``; ``shard[row]`` is the undecoded sample."""
        k, row = self.locate(index)
        self.cache.accesses += 1
        reader = self.open_shard(k)
        return reader, row % len(reader), self.shards[k] if self._shards else self._describe(k)

    def open_shard(self, k: int) -> Reader:
        """The open shard number ``k`` of the index (0 <= k < number of shards), from the pool or opened now.

        Raises:
            CountMismatchError: it does not hold as many samples as the index says; see ``on_count_mismatch``.
            FetchError, CacheError, ShardError: it cannot be had or read.
        """
        try:
            reader = self.cache.open(self._list[k])
        except StopIteration as error:  # from the caller's localname or key_rule
            raise RuntimeError(_STOPPED) from error
        if len(reader) != self.lengths[k]:
            self._meet_mismatch(k, reader.table)
        return reader

    @property
    def transformations(self) -> list[Transform]:
        """What samples go through, in turn. Assign a format name, a function, a list of these, or nothing."""
        return self._transformations

    @transformations.setter
    def transformations(self, value: Any) -> None:
        self._transformations = self._parse_transformations(value)

    def add_transform(self, transform: Any) -> ShardListDataset:
        """Append a transformation; returns the dataset."""
        self._transformations.extend(self._parse_transformations(transform))
        return self

    # --- the pool of open shards

    def stats(self) -> Stats:
        """What the cache has done for this dataset, in this process and in the workers of its loaders."""
        return self._tally.total()

    def get_stats(self) -> tuple[int, int]:
        """(samples asked for, shards opened for them) in this process."""
        return self.cache.accesses, self.cache.misses

    def check_cache_misses(self) -> None:
        """Warn, once, if more than 30 % of accesses had to open a shard: the order has no locality."""
        accesses, misses = self.get_stats()
        if self._has_warned or accesses <= 100 or misses <= 0.3 * accesses:
            return
        self._has_warned = True
        # The best of orders opens each shard once: shards of a few samples make many misses of their own.
        is_avoidable = misses * len(self) > 2 * accesses * len(self._list)
        worker = get_worker_info()
        if is_avoidable and (worker is None or worker.id == 0):  # eight workers would say it eight times
            logger.warning(
                "%s: %.1f%% of accesses opened a shard; use a sampler with locality (DistributedChunkedSampler), "
                "or raise lru_size (%d)",
                self.dataset_name,
                100.0 * misses / accesses,
                self.cache.lru.capacity,
            )

    def leave_shard(self) -> None:
        """Forget the shard that was read last, so that it can be closed; the pool asks for it."""
        self._here = _NOWHERE

    def close(self) -> None:
        """Close all open shards. The dataset stays usable; they open again when needed."""
        self._here = _NOWHERE
        self.cache.clear()

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_here": _NOWHERE, "_shards": None, "_ends": None, "cum_lengths": None}
        # A process that is being started counts with us, any other copy for itself.
        is_started = multiprocessing.context.get_spawning_popen() is not None
        if is_started and self._counts is None:
            self._counts = _shared_counts()
            self._tally.join(self._counts.numpy())
        own["_answered"] = retrying.answered()  # a worker's first fetch may meet a server that is just being restarted
        return {**self.__dict__, **own, "_counts": self._counts if is_started else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        retrying.note_answered(state.pop("_answered", ()))
        self.__dict__.update(state)
        if self._counts is not None:
            self._tally.join(self._counts.numpy())
        self.cache.add_user(self.leave_shard)
        self._sum_lengths()

    # --- inside

    def _adopt(self, found: ShardList) -> None:
        """Make these the dataset's shards."""
        self.close()
        misses = self.cache.misses
        for k, count in enumerate(found.nsamples):
            if count < 0:  # plain local tars bring no counts: the shards themselves tell
                found.nsamples[k] = self._count(found, k)
        self.cache.misses = misses
        self._list = found
        self._shards = None
        self.lengths: list[int] = found.nsamples
        self._sum_lengths()
        self._forget()

    def _forget(self) -> None:
        """The shards are other ones: forget what was known of them."""
        self._here = _NOWHERE
        self._fingerprint = self._is_remote = None

    def _describe(self, k: int) -> LiveDict:
        return LiveDict(self._list.describe(k), partial(self._take_shard, self._list, k))

    def _take_shard(self, shards: ShardList, k: int, desc: dict[str, Any]) -> None:
        """Follow what a program wrote into the dict of a shard; ``shards``: the list that it was taken from."""
        if shards is not self._list:  # which is no longer the dataset's
            return
        row = list_shards([desc], first=k)
        if row.nsamples[0] != shards.nsamples[k]:
            checks.check_total([*shards.nsamples[:k], *row.nsamples, *shards.nsamples[k + 1 :]])
        del self.cache.lru[shards.urls[k]]
        shards.replace(k, row)
        if shards.nsamples is not self.lengths:
            self.lengths = shards.nsamples
            self._sum_lengths()
        self._forget()

    def _take_spec(self, spec: dict[str, Any]) -> None:
        """Follow an index that a program assigned, or wrote into."""
        options = self.cache.store.storage_options
        if "shardlist" not in spec or spec.get("datasets"):
            raise SpecError(
                "a spec that is assigned has its shards in 'shardlist' and no 'datasets'; make a new ShardListDataset "
                "of an index with sub-datasets",
                path="shardlist",
            )
        header, shards = dict(spec), spec["shardlist"]
        del header["shardlist"]
        if shards is not self._shards:
            _, found, _ = load_shards(shards, storage_options=options)
            self._adopt(found)
        self._list.header = header

    def _sum_lengths(self) -> None:
        self.cum_lengths = np.cumsum(self.lengths, dtype=np.int64)
        self._ends: list[int] = self.cum_lengths.tolist()
        self.total_length: int = self._ends[-1] if self._ends else 0

    def _plain(self, index: Any) -> int:
        """``index`` as an int in range."""
        plain, total = _to_int(index), self.total_length
        if not -total <= plain < total:
            raise IndexError(f"sample {plain} of a dataset of {total}")
        return plain + total if plain < 0 else plain

    def _sort(self, wanted: list[int]) -> tuple[list[int], list[int]]:
        """The indices with none from the end, and in which order to read them."""
        order = sorted(range(len(wanted)), key=wanted.__getitem__)
        if order and wanted[order[0]] < 0:
            wanted = [self._plain(i) for i in wanted]
            order.sort(key=wanted.__getitem__)
        return wanted, order

    def _has_remote(self) -> bool:
        """Whether any shard goes through the cache."""
        if self._is_remote is None:
            is_local = all(map(urls.is_local, self._list.urls))
            self._is_remote = not is_local or self.cache.store.cache_local
        return self._is_remote

    def _by_shard(self, wanted: list[int], order: list[int]) -> Iterator[list[int]]:
        """The places in ``order`` shard by shard: open ones first, then those that are here, then those to be fetched.

        A shard that has to be fetched may need the room of one that this batch has been read from.
        """
        groups: list[tuple[int, list[int]]] = []
        at = 0
        while at < len(order):
            k, first = bisect_right(self._ends, wanted[order[at]]), at
            hi = self._ends[k]
            if wanted[order[-1]] < hi:
                at = len(order)
            while at < len(order) and wanted[order[at]] < hi:
                at += 1
            groups.append((k, order[first:at]))
        if len(groups) > 1 and self._has_remote():
            urls_, lru, store = self._list.urls, self.cache.lru, self.cache.store
            absent = [urls_[k] not in lru and 1 + (not store.has(urls_[k])) for k, _ in groups]
            groups = [groups[n] for n in sorted(range(len(groups)), key=absent.__getitem__)]
        return (group for _, group in groups)

    def _enter(self, index: Any) -> tuple[int, tuple[int, int, Any, Any]]:
        """The plain index, and (lo, hi, reader, sub-dataset's name) of its shard, opened if need be."""
        if type(self).get_shard is ShardListDataset.get_shard:
            return self._enter_shard(self._plain(index))
        return self._enter_foreign(_to_int(index))

    def _enter_shard(self, plain: int) -> tuple[int, tuple[int, int, Any, Any]]:
        here = self._here
        if here[0] <= plain < here[1]:
            return plain, here
        del here  # while this waits for room in the cache, it must not keep another shard there
        k = bisect_right(self._ends, plain)
        lo, hi = self._ends[k - 1] if k else 0, self._ends[k]
        reader = self.cache.lru[self._list.urls[k]]
        if reader is None or reader.table.nsamples != self.lengths[k]:
            reader = self.open_shard(k)
            self.check_cache_misses()
            count = reader.table.nsamples
            if count < hi - lo:  # it repeats its samples, and this is one pass through them
                lo += (plain - lo) // count * count
                hi = min(lo + count, hi)
        self._here = here = (lo, hi, reader, self._list.dataset_of(k))
        return plain, here

    def _enter_foreign(self, plain: int) -> tuple[int, tuple[int, int, Any, Any]]:
        """As `_enter_shard`, through a subclass's own ``get_shard``, which also decides what is in range."""
        if plain < 0:
            plain += len(self)
            if plain < 0:
                raise IndexError(f"sample {plain - len(self)} of a dataset of {len(self)}")
        accesses = self.cache.accesses
        shard: Any
        shard, row, desc = self.get_shard(plain)
        self.cache.accesses = accesses  # it may have counted this sample, and the caller has done so in any case
        self.check_cache_misses()
        reader = shard if isinstance(shard, Reader) else _Foreign(shard, desc["url"])
        lo = plain - operator.index(row)
        return plain, (lo, plain + 1, reader, desc.get("dataset"))

    def _meet_mismatch(self, k: int, table: MemberTable) -> None:
        """The shard does not hold as many samples as the index says: raise, or say so once."""
        url, expected, found, store = self._list.urls[k], self.lengths[k], len(table), self.cache.store
        story = f"{url}: holds {found} samples, and the index says {expected} (shard {k} of {len(self._list)})"
        if found and self.on_count_mismatch == "warn":
            if url not in self._miscounted:
                self._miscounted.add(url)
                how = "they are repeated, from the first one on" if found < expected else "the last ones are left out"
                logger.warning("%s; %s", story, how)
            return
        self.cache.lru.cache.pop(url, None)
        if self.on_count_mismatch == "warn":
            advice = ". There is none to repeat: leave the shard out (dataset.shards = [...])"
        else:
            advice = (
                f"{_other_grouping(store, table, expected)}. Write the index again (wids index create); if it is not "
                "yours to write, on_count_mismatch='warn' repeats such a shard's samples, or leaves out its last ones"
            )
        raise CountMismatchError(story + advice, shard=url, expected=expected, found=found)

    def _transform(self, sample: Any) -> Any:
        try:
            for transform in self._transformations:
                sample = transform(sample)
        except StopIteration as error:
            raise RuntimeError(_STOPPED) from error
        return sample

    def _find(self, url: str) -> Shard:
        try:
            return self._list[self._list.urls.index(url)]
        except ValueError:
            raise KeyError(f"{without_secrets(url, url)} is not a shard of this dataset") from None

    def _parse_transformations(self, value: Any) -> list[Transform]:
        if value is None:
            return []
        steps = list(value) if isinstance(value, (list, tuple)) else [value]
        return [self._parse_transformation(step) for step in steps]

    def _parse_transformation(self, step: Any) -> Transform:
        if isinstance(step, str):
            return SampleDecoder(cast("Any", step), **self._decoding)
        if not callable(step):
            raise TypeError(f"transformation {step!r} is neither one of {_FORMATS} nor callable")
        return step  # type: ignore[no-any-return]

    def _count(self, shards: ShardList, k: int) -> int:
        url, store = shards.urls[k], self.cache.store
        if store.place(url)[1]:
            return len(self.cache.open(shards[k]))
        if urls.is_local(url):  # it will be copied when it is read; all copies now could take hours
            return len(Store(cache_dir=None, rule=store.rule, group=store.group).open(shards[k]))
        raise SpecError(
            f"shards[{k}] ({url}) has no nsamples, and only local shards are counted on the spot; "
            "make an index (wids index create) or give (url, nsamples) pairs",
            path=f"shards[{k}]",
        )

    def _digest(self, shards: Any) -> str:
        """A name for a dataset that has none: the same for the same index path, or the same list of shards."""
        text = str(shards)
        if not isinstance(shards, (str, os.PathLike)):  # what an open file or a generator says of itself is its address
            text = "\n".join(f"{url} {count}" for url, count in zip(self._list.urls, self._list.nsamples, strict=True))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return base64.urlsafe_b64encode(digest)[:16].decode()

    def _announce(self, shards: Any) -> None:
        if os.environ.get("WIDS_VERBOSE", "0") not in ("", "0"):
            _log_to_stderr()
        if not logger.isEnabledFor(logging.INFO):
            return
        logger.info(
            "%s: base %s, name %s, %d shards, %d bytes, %d samples, cache %s",
            without_secrets(str(shards))[:50],  # in this order: half a password is not seen to be one
            self.base,
            self.dataset_name,
            len(self._list),
            sum(size for size in self._list.filesizes if size > 0),
            len(self),
            self.cache_dir,
        )


class _NotInitialized:
    """What stands for the parts of a dataset until ``__init__`` makes them: a subclass may never call it.

    A ``__getattr__`` of the dataset could say so too, and would make every read of an attribute slower.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return _NotInitialized, (self._kind,)

    def _fail(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{self._kind} is a ShardListDataset that was never initialized: its __init__ has to call "
            "super().__init__(shards, ...) before anything else"
        )

    __getattr__ = __iter__ = __len__ = __index__ = __neg__ = __bool__ = _fail


# What is touched first, however a dataset is used.
_PARTS = (
    "_here",
    "_list",
    "_transformations",
    "_tally",
    "cache",
    "lengths",
    "cum_lengths",
    "total_length",
)


def _other_grouping(store: Store, table: MemberTable, nsamples: int) -> str:
    """How members would have to be grouped to be so many samples, for a message; ``""`` if there is no such way."""
    if callable(store.rule):  # it may give keys and extensions that are no parts of a name
        return ""
    for rule, group in tables.find_groupings(table, nsamples):
        wanted = {"key_rule": (rule, store.rule), "group": (group, store.group)}
        options = [f"{name}={value!r}" for name, (value, own) in wanted.items() if value != own]
        return f"; with {', '.join(options)} it would be as many"
    return ""


def _shared_counts() -> torch.Tensor:
    """Zeros for a `Tally`, in memory that worker processes share."""
    counts = torch.zeros((ROWS, len(COLUMNS)), dtype=torch.float64)
    with contextlib.suppress(RuntimeError, OSError):  # no shared memory here: each process counts for itself
        counts.share_memory_()  # type: ignore[no-untyped-call]
    return counts


class _Foreign:
    """What a subclass's own ``get_shard`` returned, read like one of our shards."""

    def __init__(self, shard: Any, url: str) -> None:
        self.shard, self.url = shard, url

    def read(self, row: int) -> Sample:
        return dict(self.shard[row])

    def read_fields(self, row: int, fields: Sequence[str]) -> Sample:
        return {name: value for name, value in self.read(row).items() if name in fields or name.startswith("__")}


def _portable_names(urls: Sequence[str]) -> list[str]:
    """What tells shards apart, without the place where they are kept and without signatures."""
    # A query that does not follow a tar's name may be what names the shard (get?name=3.tar).
    paths = [re.sub(r"(\.tar[^/?]*)\?.*", r"\1", url, flags=re.DOTALL) for url in urls]
    names = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
    if len(set(names)) == len(names):
        return names
    first, last = min(paths).split("/"), max(paths).split("/")  # what these two share, all do
    parted = next((k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return ["/".join(path.split("/")[parted:]) for path in paths]


def _to_int(index: Any) -> int:
    """Whatever counts as an integer (numpy's and torch's do), as an int."""
    try:
        return int(operator.index(index))  # index() alone would let subclasses of int through
    except TypeError:
        kind = type(index).__name__
        hint = {
            "str": "for a key use dataset[dataset.keys.index(key)]",
            "slice": "for a range use torch.utils.data.Subset(dataset, range(lo, hi))",
        }.get(kind, "for several samples use dataset.__getitems__(indices)")
        raise TypeError(f"{index!r:.50} is not an index: dataset indices are integers, not {kind}; {hint}") from None


def _choose_cache_dir(cache_dir: str | os.PathLike[str] | None, localname: Callable[[str], str] | None) -> str | None:
    if cache_dir is not None:
        return os.path.expanduser(os.fspath(cache_dir))
    return None if localname is not None else default_cache_dir()


def _parse_cache_size(size: Any) -> int | None:
    if size is None:
        return None
    if isinstance(size, (str, bytes)) or not 0 <= size < math.inf:
        raise ValueError(f"cache_size is {size!r}; it is a number of bytes, or None")
    return int(size)


def _parse_prefetch(ahead: Any) -> bool | int:
    if isinstance(ahead, bool):
        return ahead
    if not hasattr(ahead, "__index__") or operator.index(ahead) < 0:
        raise ValueError(f"prefetch is {ahead!r}; it is True, False, or how many bytes ahead to be at most")
    return operator.index(ahead)


def _parse_fields(fields: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if fields is None:
        return None
    names = [fields] if isinstance(fields, str) else list(fields)
    return tuple(name if name.startswith(".") else f".{name}" for name in names)


def _log_to_stderr() -> None:
    """Let the ``wids`` logger speak without the program having set up logging."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
