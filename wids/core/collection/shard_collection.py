"""The shards of a dataset without torch: what a program passes as ``shards``, where each sample is, open shards.

Rules: an index and the sub-datasets it names are read once, here; a file that is passed open stays the caller's. What
is neither an index nor a list of shards is refused with a sentence that says what would do. Options go to the servers
that the caller names, in the call or in a local index; whom a remote index names gets none. An index may also be the
``.nv-meta/.info.json`` of a Megatron-Energon dataset, which is known by its name.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import itertools
import logging
import operator
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

import numpy as np

from wids.core.files import page_cache
from wids.core.files.own_folder import default_cache_dir
from wids.core.index import compiled
from wids.core.index.fingerprint import contents, fingerprint, fingerprint_of_part
from wids.core.index.loading import IndexRequest, load_index
from wids.core.index.readonly import LazyShardRows, ShardRow, ShardRows
from wids.core.index.selection import RepeatedRows, no_sample
from wids.core.index.shardlist import MANY
from wids.core.index.spec import list_shards, own_packs
from wids.core.order.state import digest
from wids.core.place import Place
from wids.core.readers.pool import OpenShards
from wids.core.readers.provider import AutoProvider
from wids.core.shard import MAX_COUNT
from wids.core.tables.fields import Alternatives
from wids.core.tables.table import find_merged
from wids.core.transport.schemes import find_catalog
from wids.core.transport.session import PLAIN, Session
from wids.errors import ClosedReaderError, CountMismatchError, SpecError, a_kind, shorten, shown
from wids.events import MergedNames, emit, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.core.index.selection import SampleRows, Selection
    from wids.core.index.spec import ShardList
    from wids.core.order.layout import SourceSpan
    from wids.core.readers.base import Reader
    from wids.core.readers.pool import OpenShard
    from wids.core.readers.remote_counts import ShardCount
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable
    from wids.events import Hook

T = TypeVar("T")
# The argument ``shards`` of a program: an index (URL, path, open file), a tar, a brace pattern, a directory or glob of
# tars, or a list of shards.
ShardLike: TypeAlias = "Mapping[str, Any] | tuple[str, int] | str | os.PathLike[str]"
Shards: TypeAlias = "str | os.PathLike[str] | IO[bytes] | IO[str] | Iterable[ShardLike]"
# A stretch of indices in one open shard: (first, end, its reader, name of its sub-dataset, the row of each index of a
# view; None: rows follow each other from 0 on).
Stretch: TypeAlias = "tuple[int, int, Reader, str, SampleRows | None]"
OnCountMismatch: TypeAlias = Literal["error", "warn"]

_TABLES_AT_A_TIME = 16  # that are requested
_NAMED = 10  # extensions in a message
# Sizes of a sample, and of a batch of them: the C library gives freed memory of this size back to the kernel, which
# clears it for each use.
_LARGE_BYTES, _LARGE_BATCH_BYTES = 16 << 10, 2 << 20
_MANY_TO_COUNT = 100  # local shards: it takes a second, and more on a network file system
# A string that ends so is a shard (the compressed ones are refused where they are opened), any other one an index.
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
_INDEXES = (".json", compiled.SUFFIX)
_GLOB = frozenset("*?[")


def is_archive(url: str) -> bool:
    """True if a path, URL or brace pattern is that of shards by its name; any other one is that of an index."""
    return Place(url).name.lower().endswith(_ARCHIVES)


def lists_shards(url: str) -> bool:
    """True if a text is a tar, a brace pattern of tars, or a directory or glob of them; any other is an index."""
    return is_archive(url) or is_several(url)


def is_several(text: str) -> bool:
    """True if a text is a directory, a glob and no existing file, or a data set by its name.

    The name of a directory of a store has a slash at its end.
    """
    place = Place(text)
    if "\0" in text or place.scheme == "pipe":
        return False
    if find_catalog(text) is not None:
        return True
    if place.is_local:
        path = place.path
        is_glob = not _GLOB.isdisjoint(path) and "::" not in text
        return os.path.isdir(path) or (is_glob and not os.path.lexists(path))
    if place.scheme in ("http", "https"):  # which knows no globs
        return place.without_query.endswith("/")
    return "::" not in text and (text.endswith("/") or not _GLOB.isdisjoint(text))


def load_shards(
    shards: Shards,
    *,
    base: str | os.PathLike[str] | None = None,
    options: dict[str, Any] | None = None,
    allow_local: bool = False,
    session: Session = PLAIN,
    cache_dir: str | None = None,
) -> tuple[str | None, ShardList, Session]:
    """(base, shard list, session): what relative URLs were resolved against, if anything; shards; what opens them.

    Args:
        shards: an index (URL, path, path-like, open file), or shards (list of dicts, of pairs, of tars; a tar, a
            brace pattern, or a directory or glob of tars, in natural order).
        base: overrides the index's own ``base`` and its place; what a list of shards, a pattern or a directory is
            relative to.
        options: top-level keys that override the index's; for a list of shards, its only ones.
        allow_local: let an index from a remote place point at local files.
        session: opens URLs. The options of the returned one hold for the index's server and for those that the
            caller names.
        cache_dir: the directory in which a large index is compiled, to be mapped by all processes
            (`wids.core.index.loading`); None: it is parsed in each.

    Raises:
        SpecError: it is none of these, or malformed. FetchError: the index cannot be read.
    """
    base = None if base is None else os.fspath(base)
    session = session.kept_in(cache_dir)
    if isinstance(shards, os.PathLike):
        shards = os.fspath(shards)
    data: bytes | str | None = None
    if isinstance(shards, str):
        if not shards:
            raise SpecError("shards is an empty text; give an index (URL or path), a tar, or a list", path="shards")
        _check_place(shards)
        if (catalog := find_catalog(shards)) is not None:
            cache_dir = session.cache_dir or default_cache_dir()
            shard_list: ShardList = catalog.load_named(shards, session=session, cache_dir=cache_dir)
            shard_list = shard_list.with_header({**shard_list.header, **(options or {})})
            return base, shard_list.with_packs(own_packs(shard_list.header, None, base)), session
        is_file = base is not None and Place(shards).is_local and os.path.isfile(Place(shards).path)
        if is_archive(shards) or (not is_file and is_several(_based(shards, base))):
            return base, _list([shards], base, options, session), session
    elif words := words_of_misuse(shards):  # before what has `read`, as a dataset does
        raise SpecError(f"shards {words}", path="shards")
    elif hasattr(shards, "read"):
        data = shards.read()
    else:
        return base, _list(shards, base, options, session), session
    request = IndexRequest(
        url=shards if isinstance(shards, str) else None,
        base=base,
        options=options,
        allow_local=allow_local,
        session=session,
        cache_dir=cache_dir,
    )
    shard_list, narrowed = load_index(request, data)
    return base if base is not None else _own_base(shard_list.header, request.url), shard_list, narrowed


def fingerprint_with_view(shards: ShardList) -> str:
    """`wids.core.index.fingerprint.fingerprint` of shards, and of a view's choice of their samples."""
    whole, chosen = fingerprint(shards), shards.selection
    return whole if chosen is None else digest(whole.encode(), chosen.digest.encode())


def words_of_misuse(shards: Any) -> str:
    """The mistake in an argument that has samples where shards belong, by its type; ``""``: it may have shards."""
    if hasattr(type(shards), "__wids__") and hasattr(shards, "shards"):
        return (
            "is a ShardListDataset, not its index: give the index, or dataset.shards; of a view, the file that "
            "view.save('part.json') writes"
        )
    if any(base.__module__.startswith("torch.utils.data") for base in type(shards).__mro__):
        return f"is {a_kind(shards)}, and no list of shards: give the index, or the shards, of its dataset"
    return ""


def mixed_parts(shards: ShardList) -> list[SourceSpan] | None:
    """The sub-datasets as sources of a mixture, if the index has weights for them.

    Those of which a view has no samples are left out; if none with a weight is left, the view is no mixture.

    Raises:
        SpecError: bad weights.
    """
    weighted, firsts = shards.weighted_parts(), [0, *shards.ends()]
    if shards.selection is not None:
        weighted = [part for part in weighted if firsts[part[1]] < firsts[part[2]]]
    if all(weight == 0 for *_, weight in weighted) and (shards.selection is not None or not weighted):
        return None
    parts = [
        (name, firsts[a], firsts[b], weight, fingerprint_of_part(shards, a, b), contents(shards, a, b))
        for name, a, b, weight in weighted
    ]
    from wids.core.order.mixture import name_parts

    try:
        return name_parts(parts)
    except ValueError as error:
        raise SpecError(str(error), path="datasets") from None


class _NoReader:
    """The reader of no shard."""

    def read(self, *_: Any) -> NoReturn:
        raise ClosedReaderError("no shard is open")


CLOSED = cast("Reader", _NoReader())
# No shard is open: it contains no index.
NOWHERE: Stretch = (0, 0, CLOSED, "", None)


class ShardCollection:
    """A list of shards and what reads them.

    Args:
        shards: each with its count, or -1: see `count_unknown`.
        provider: opens them.
        capacity: shards kept open; see `wids.core.readers.pool.OpenShards`.
        hooks: called with every event.
        on_count_mismatch: ``"error"``: `check_count` raises; ``"warn"``: it warns, once for each shard.
        advice: makes the end of the error's message of a mismatch, from this collection, the shard's table and the
            expected count; it travels to workers with the collection.
        hints_at_merged: emit an event where samples are counted and look like several that a dot in names made one.

    Attributes:
        shards: the shard list.
        lengths: samples of each.
        ends: end of each shard's samples.
        urls: of each.
        pool: the open shards of this process.
        here: the stretch that was read last; `find` looks there first.
        index_url: the URL or path of the index that lists the shards as they are; None: none exists.
        name: of all its samples, as a source of a mixture; None: the shards have names of their own.
        is_repeating: False: a shard with too few samples is an error always, and repeats none.
    """

    provider: AutoProvider
    pool: OpenShards
    shards: ShardList
    name: str | None = None
    is_repeating: bool = True
    here: Stretch
    urls: Sequence[str]
    _is_remote: bool | None
    _is_far: bool | None
    _mean_bytes: int | None
    _whole_ends: Sequence[int] | None
    _cum_lengths: np.ndarray[Any, np.dtype[np.int64]] | None
    _rows: Sequence[ShardRow] | None
    _fingerprint: str | None
    _contents: dict[str, str] | None
    _parts: tuple[list[SourceSpan] | None] | None

    def __init__(
        self,
        shards: ShardList,
        provider: AutoProvider,
        *,
        capacity: int | None = None,
        hooks: Sequence[Hook] = (),
        on_count_mismatch: OnCountMismatch = "error",
        advice: Callable[[ShardCollection, MemberTable, int], str] | None = None,
        hints_at_merged: bool = False,
    ) -> None:
        self.provider, self.on_count_mismatch = provider, on_count_mismatch
        self._advice = advice or _advice
        self._miscounted: set[str] = set()  # URLs that were warned of
        self._hooks, self._hints_at_merged = hooks, hints_at_merged
        self._expected: Sequence[Sequence[str]] = ()
        self.pool = OpenShards(provider, capacity=capacity, find=shards.find, hooks=hooks)
        self.adopt(shards)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getstate__(self) -> dict[str, Any]:
        computed = ("lengths", "ends", "urls", "here", "_cum_lengths", "_whole_ends", "_rows")
        return {name: value for name, value in self.__dict__.items() if name not in computed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.urls = _unpacked(self.shards.urls)
        self._use(self.shards)

    @property
    def is_grouped_as_indexed(self) -> bool:
        """True if members become samples as the index says, so that tables beside it hold."""
        files = self.provider.files
        return {"rule": files.rule, "group": files.group} == self.shards.grouping

    def as_read(self) -> ShardList:
        """The shards, of an index that says how their members become samples here, as far as one can say it."""
        files, shards = self.provider.files, self.shards
        if self.is_grouped_as_indexed:
            return shards
        if callable(files.rule):
            logger.warning("key_rule: a function is not kept in an index; pass it again where this one is opened")
            return shards
        return shards.with_header({**shards.header, "key_rule": files.rule, "group": files.group})

    def expect_fields(self, fields: Sequence[str] | None) -> None:
        """Warn of those of these extensions that no sample of the first shard to be opened has: are they misspelt?

        One of several alternatives is enough.
        """
        self._expected = fields.groups if isinstance(fields, Alternatives) else [(field,) for field in fields or ()]

    def expecting(self, fields: Sequence[str] | None) -> ShardCollection:
        """The same shards, where of the fields that are still expected these alone are; they share the open shards."""
        other = copy.copy(self)
        if self._expected:
            other.expect_fields(fields)
        return other

    # --- which shards

    def select(self, selection: Selection) -> ShardCollection:
        """The same shards, of which the other collection has these samples; they share the open shards."""
        view = copy.copy(self)
        view._use(self.shards.select(selection))  # noqa: SLF001 - of this class
        return view

    def unselected(self) -> ShardCollection:
        """The same shards with all of their samples; they share the open shards."""
        if self.shards.selection is None:
            return self
        whole = copy.copy(self)
        whole._use(self.shards.select(None))  # noqa: SLF001 - of this class
        return whole

    def without_downloads(self) -> ShardCollection:
        """The same samples, of which no shard is downloaded; with open shards of its own, and without hooks."""
        collection = ShardCollection(
            self.shards,
            self.provider.without_downloads(),
            on_count_mismatch=self.on_count_mismatch,
            advice=self._advice,
        )
        collection.name, collection.index_url = self.name, self.index_url
        return collection

    def without_repeats(self) -> ShardCollection:
        """The same shards, of which one with too few samples is an error; they share the open shards."""
        strict = copy.copy(self)
        strict.is_repeating = False
        return strict

    def named(self, name: str) -> ShardCollection:
        """The same shards, whose samples have another name; they share the open shards."""
        renamed = copy.copy(self)
        renamed.name, renamed.here, renamed._parts = name, NOWHERE, None  # noqa: SLF001 - of this class
        return renamed

    def adopt(self, shards: ShardList) -> None:
        """Make these the collection's shards."""
        self.pool.clear()
        self.index_url: str | None = None
        self.pool.find, self.urls = shards.find, _unpacked(shards.urls)
        self._use(shards)

    def _use(self, shards: ShardList) -> None:
        self.shards, self.here = shards, NOWHERE
        self._cum_lengths = self._whole_ends = self._is_remote = self._is_far = self._mean_bytes = self._parts = None
        self._rows = self._fingerprint = self._contents = None
        self.lengths: Sequence[int] = _unpacked(shards.lengths)
        self.ends: Sequence[int] = _unpacked(shards.ends())

    def count_unknown(
        self,
        *,
        open_remote: Callable[[int], Reader] | None = None,
        on_count: Callable[[int], None] = lambda _: None,
        has_sizes: bool = False,
    ) -> None:
        """Count the samples of the collection's shards that have no count, as plain tars, before others ask for them.

        Args:
            open_remote: opens the remote shard of a number, which may download it; None: `AutoProvider.count`.
            on_count: called with the number of samples of each shard that was counted.
            has_sizes: these have their sizes from then on, too.

        Raises:
            SpecError: such a shard is the output of a program. FetchError, ShardError: it cannot be read. Those before
                it have been counted.
        """
        counts, sizes = dict[int, int](), dict[int, int]()
        try:
            for k, count in self._uncounted(self.shards, open_remote):
                counts[k], sizes[k] = count.nsamples, count.size
                on_count(count.nsamples)
        finally:
            self._use(self.shards.with_known(counts, sizes if has_sizes else {}))
            self.pool.find = self.shards.find

    def counted(self, shards: ShardList) -> ShardList:
        """Shards that may become the collection's, those that have no count with one.

        Raises:
            SpecError: such a shard is the output of a program. FetchError, ShardError: it cannot be read.
        """
        return shards.with_known({k: count.nsamples for k, count in self._uncounted(shards)}, {})

    def _uncounted(
        self, shards: ShardList, open_remote: Callable[[int], Reader] | None = None
    ) -> Iterator[tuple[int, ShardCount]]:
        misses, unknown = self.pool.misses, shards.unknown_counts()
        far = [k for k in unknown if self._is_counted_far(shards.urls[k])] if open_remote is None else []
        if unknown and not far:
            level = logging.INFO if len(unknown) < _MANY_TO_COUNT else logging.WARNING
            words = "%d shards without a count are opened to count their samples; with an index (%s) a start opens none"
            logger.log(level, words, len(unknown), "wids index create SHARDS -o train.json")
        counted = dict(zip(far, self.provider.count([shards[k] for k in far]), strict=True)) if far else {}
        for k in unknown:
            if k in counted:
                count = counted[k]
            else:
                from wids.core.readers.remote_counts import ShardCount

                table = self._read_table(shards, k, open_remote)
                count = ShardCount(table.nsamples, table.identity.size, find_merged(table))
            if count.merged is not None and self._hints_at_merged:
                self._hints_at_merged = False  # of one shard, which stands for all
                emit(self._hooks, MergedNames(url=shards.urls[k], key=count.merged[0], fields=count.merged[1:]))
            yield k, count
        self.pool.misses = misses

    def _is_counted_far(self, url: str) -> bool:
        """True if a shard is read where it is to be counted, by byte ranges."""
        place, placement = Place(url), self.provider.cache.placement
        has_place = placement.cache_dir is not None or placement.localname is not None
        return not (place.is_local or place.scheme == "pipe" or (has_place and placement.find(place)[1]))

    def _read_table(self, shards: ShardList, k: int, open_remote: Callable[[int], Reader] | None) -> MemberTable:
        shard, provider = shards[k], self.provider
        if provider.cache.locate(shard).is_in_place:
            return self.pool.open(shard).table
        if shard.place.is_local:  # it will be copied when it is read; all copies now could take hours
            files = provider.files
            opened: Reader = AutoProvider(cache_dir=None, rule=files.rule, group=files.group).open(shard)
        elif open_remote is not None:
            opened = open_remote(k)
        else:
            raise SpecError(
                f"shards[{k}] ({shard.url}) has no nsamples, and the output of a program cannot be counted; make an "
                "index (wids index create URLS -o train.json) and give that, or (url, nsamples) pairs",
                path=f"shards[{k}]",
            )
        with contextlib.closing(opened) as reader:
            return reader.table

    @property
    def rows(self) -> Sequence[ShardRow]:
        """The shards as dicts that cannot be changed: a list; of `MANY` or more, each is made on access."""
        if self._rows is None:
            count, describe = len(self.shards), self.shards.describe
            is_few = count < MANY
            self._rows = ShardRows(map(self.describe, range(count))) if is_few else LazyShardRows(count, describe)
        return self._rows

    def describe(self, k: int) -> ShardRow:
        """One of `rows`, which does not make the others."""
        return ShardRow(self.shards.describe(k))

    @property
    def fingerprint(self) -> str:
        """`fingerprint_with_view` of the shards."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_with_view(self.shards)
        return self._fingerprint

    @property
    def contents(self) -> dict[str, str]:
        """`wids.core.index.fingerprint.contents` of all shards."""
        if self._contents is None:
            self._contents = contents(self.shards)
        return self._contents

    @property
    def cum_lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """`ends` as an array: int64, one for each shard."""
        if self._cum_lengths is None:
            self._cum_lengths = np.asarray(self.ends, np.int64)
        return self._cum_lengths

    def mixed_parts(self) -> list[SourceSpan] | None:
        """`mixed_parts` of its shards; computed once, for the fingerprints of a million shards take seconds."""
        if self._parts is None:
            self._parts = (mixed_parts(self.shards) if self.name is None else None,)
        return self._parts[0]

    def has_remote(self) -> bool:
        """True if any shard goes through the cache."""
        if self._is_remote is None:
            is_copied = self.provider.cache.placement.cache_local
            summary = self.shards.summary
            is_local = all(Place(url).is_local for url in self.shards.urls) if summary is None else summary.is_local
            self._is_remote = is_copied or not is_local
        return self._is_remote

    def is_far(self) -> bool:
        """True if its shards are local ones on a network file system; the first one stands for all."""
        if self._is_far is None:
            is_local = len(self) > 0 and not self.has_remote()
            path_of = self.provider.cache.placement.local_path
            self._is_far = is_local and page_cache.is_network(path_of(self.shards.urls[0]))
        return self._is_far

    def is_large(self, count: int) -> bool:
        """True if so many samples cost more for their memory, if read at once, than they save.

        The first shard stands for all.
        """
        if self._mean_bytes is None:
            first = self.shards[0] if len(self) else None
            self._mean_bytes = self._size_of(first) // (first.nsamples or 1) if first else 0
        return self._mean_bytes >= _LARGE_BYTES and count * self._mean_bytes >= _LARGE_BATCH_BYTES

    def _size_of(self, shard: Shard) -> int:
        """Bytes of a shard that is here; 0: not known, and opening it raises the error."""
        if shard.filesize is not None:
            return shard.filesize
        try:
            return os.path.getsize(self.provider.cache.locate(shard).path)
        except OSError:
            return 0

    # --- where a sample is

    def plain(self, index: Any) -> int:
        """An index as an int from 0 on; negative ones count from the end.

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        plain: int = index if type(index) is int else to_int(index)
        total = self.ends[-1] if self.ends else 0
        if not -total <= plain < total:
            raise no_sample(plain, total)
        return plain + total if plain < 0 else plain

    def locate(self, index: int) -> tuple[int, int]:
        """(number of the shard, row in it) of a sample, 0 <= index < len."""
        k = bisect_right(self.ends, index)
        if self.shards.selection is not None:
            return k, self.shards.selection.rows[index]
        return k, index - (self.ends[k - 1] if k else 0)

    @property
    def whole_ends(self) -> Sequence[int]:
        """End of each shard's samples, counted over the dataset that this is a view of, or this itself."""
        if self._whole_ends is None:
            self._whole_ends = self.ends if self.shards.selection is None else self.shards.whole_ends()
        return self._whole_ends

    @property
    def whole_length(self) -> int:
        """Number of samples of the dataset that this is a view of, or this itself."""
        return self.whole_ends[-1] if self.whole_ends else 0

    def whole_index(self, index: int) -> int:
        """The index of a sample in the dataset that this is a view of, or in this itself."""
        if self.shards.selection is None:
            return index
        k, row = self.locate(index)
        return (self.whole_ends[k - 1] if k else 0) + row

    def whole_indices(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """The same of all samples of a view: int64, ascending; None: this is no view."""
        chosen = self.shards.selection
        return None if chosen is None else chosen.whole_indices(self.shards.nsamples)

    def breaks(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The samples that do not follow the one before: after a gap of a view, or of another sub-dataset; ascending.

        A sub-dataset is what has another name in the index.
        """
        shards, whole = self.shards, self.whole_indices()
        edges = {
            *shards.starts,
            *(k + more for k, keys in shards.extras.items() if "dataset" in keys for more in (0, 1)),
        }
        others = [k for k in sorted(edges) if 0 < k < len(shards) and shards.dataset_of(k) != shards.dataset_of(k - 1)]
        begins = np.array([self.ends[k - 1] for k in others], np.int64)
        gaps = np.zeros(0, np.int64) if whole is None else np.flatnonzero(np.diff(whole) != 1) + 1
        joined: np.ndarray[Any, np.dtype[np.int64]] = np.union1d(begins[(begins > 0) & (begins < len(self))], gaps)
        return joined

    def span_of(self, index: int) -> tuple[int, int]:
        """The indices of the samples in the shard of a sample, half-open."""
        k = bisect_right(self.ends, index)
        return (self.ends[k - 1] if k else 0), self.ends[k]

    def rows_of(self, k: int) -> range | np.ndarray[Any, Any]:
        """The rows of shard ``k`` that its samples are."""
        return range(self.lengths[k]) if self.shards.selection is None else self.shards.selection.rows_of(k)

    def find(self, index: int) -> Stretch:
        """The stretch of a sample, 0 <= index < len, if its shard is open and of the right count; else `NOWHERE`."""
        here = self.here
        if here[0] <= index < here[1]:
            return here
        ends = self.ends
        k = bisect_right(ends, index)
        lo, hi = ends[k - 1] if k else 0, ends[k]
        shard, chosen = self.pool.lru[self.urls[k]], self.shards.selection
        if shard is None or shard.reader.table.nsamples != (hi - lo if chosen is None else self.shards.nsamples[k]):
            return NOWHERE
        rows = None if chosen is None else chosen.rows
        self.here = here = (lo, hi, shard.reader, self.name_of(k), rows)
        return here

    def pin_stretch(self, index: int) -> Stretch:
        """The stretch of a sample, its shard open until the caller unpins its reader.

        Raises:
            WidsError: as `open`.
        """
        k = bisect_right(self.ends, index)
        reader = self.pin(k)
        lo, hi = self.ends[k - 1] if k else 0, self.ends[k]
        count, promised = reader.table.nsamples, self.shards.nsamples[k]
        rows: SampleRows | None = None
        if self.shards.selection is not None:
            rows = self.shards.selection.rows if count >= promised else RepeatedRows(self.shards.selection.rows, count)
        elif count < promised:  # it repeats its samples, and this is one pass through them
            lo += (index - lo) // count * count
            hi = min(lo + count, hi)
        self.here = here = (lo, hi, reader, self.name_of(k), rows)
        return here

    def name_of(self, k: int) -> str:
        """The ``__dataset__`` of shard ``k``'s samples; ``""``: none, and not None, which torch cannot collate."""
        return self.shards.dataset_of(k) or "" if self.name is None else self.name

    # --- open shards

    def close(self) -> None:
        """Close all open shards; they open again when they are read."""
        self.here = NOWHERE
        self.pool.clear()

    def open(self, k: int) -> OpenShard:
        """Shard number ``k``, from the pool or opened now.

        Raises:
            CountMismatchError: it holds another number of samples than the index says; see ``on_count_mismatch``.
            FetchError, CacheError, ShardError: it cannot be read.
        """
        shard = self.pool.open(self.shards[k])
        self.check_count(k, shard.table)
        return shard

    def member_tables(self, numbers: Iterable[int]) -> Iterator[tuple[int, MemberTable | None]]:
        """The numbers of shards, each with its member table; None: it cannot be read without a download of the shard.

        Those of shards that are not on this machine are published ones that are certain to be their own.

        Raises:
            CountMismatchError: see `open`. WidsError: a shard, or a published table, cannot be read.
        """
        todo = iter(numbers)
        with contextlib.ExitStack() as held:
            each: Callable[..., Iterable[MemberTable | None]] = map
            if self.has_remote():
                pool = ThreadPoolExecutor(_TABLES_AT_A_TIME, "wids-tables")
                held.callback(pool.shutdown, wait=False, cancel_futures=True)  # no wait: it may be the collector's
                each = pool.map
            while some := list(itertools.islice(todo, 4 * _TABLES_AT_A_TIME)):
                for k, table in zip(some, each(self._table_at_hand, some), strict=True):
                    if table is not None:
                        self.check_count(k, table)
                    yield k, table

    def first_shard(self) -> int | None:
        """The number of the first shard that has samples; None: none has."""
        return next((k for k, count in enumerate(self.lengths) if count), None)

    def first_table(self) -> MemberTable | None:
        """The member table of the first shard that has samples; None: none has, or it cannot be had; see above.

        Raises:
            WidsError: see `member_tables`.
        """
        first = self.first_shard()
        return None if first is None else next(self.member_tables([first]))[1]

    def _table_at_hand(self, k: int) -> MemberTable | None:
        opened = self.pool.lru[self.shards.urls[k]]
        return self.provider.find_table(self.shards[k]) if opened is None else opened.reader.table

    def pin(self, k: int) -> Reader:
        """The reader of shard number ``k``, open until the caller unpins it.

        Raises:
            WidsError: as `open`.
        """
        reader = self.pool.pin(self.shards[k])
        if self._expected:
            self._look_for_expected(reader)
        if reader.table.nsamples != self.shards.nsamples[k]:
            try:
                self.check_count(k, reader.table)
            except BaseException:
                reader.unpin()
                raise
        return reader

    def _look_for_expected(self, reader: Reader) -> None:
        fields, table = self._expected, reader.table
        self._expected = ()
        missing = [field for field in fields if not table.ids_of(field)]
        if missing and table.nsamples:
            there = [*map(shorten, sorted(table.extensions)[:_NAMED])] + ["..."] * (len(table.extensions) > _NAMED)
            close = [
                each
                for name in missing
                for field in name
                for each in difflib.get_close_matches(field, table.extensions, n=1)
            ]
            logger.warning(
                "fields: no sample of %s has %s; its samples have %s (other shards were not looked at)%s",
                Place(reader.url).public,
                ", ".join(" or ".join(map(shown, field)) for field in missing),
                ", ".join(there),
                f"; did you mean {shorten(close[0])}?" if close else "",
            )

    def warn_of_misses(self, name: str) -> None:
        """Say that many accesses opened a shard, unless the best of orders does so, too: it opens each shard once."""
        accesses, misses = self.pool.accesses, self.pool.misses
        if misses * len(self) > 2 * accesses * len(self.shards):
            logger.warning(
                "%s: %.1f%% of accesses opened a shard; use a sampler with locality (DistributedChunkedSampler), "
                "or raise lru_size (%d)",
                name,
                100.0 * misses / accesses,
                self.pool.lru.capacity,
            )

    @contextlib.contextmanager
    def pinned(self, k: int) -> Iterator[Reader]:
        """`pin` for the time of the block."""
        reader = self.pin(k)
        try:
            yield reader
        finally:
            reader.unpin()

    def check_count(self, k: int, table: MemberTable) -> None:
        """Compare a shard's table with the index's count, if it has one.

        Raises:
            CountMismatchError: it has another number of samples; with ``on_count_mismatch="warn"``, it has none, or too
                few for a collection that repeats none.
        """
        url, expected, actual = self.shards.urls[k], self.shards.nsamples[k], table.nsamples
        if expected in (-1, actual):
            return
        where = f" (shard {k} of {len(self.shards)})"
        is_warned_of = self.on_count_mismatch == "warn"
        if actual and is_warned_of and (self.is_repeating or actual > expected):
            if url not in self._miscounted:
                self._miscounted.add(url)
                how = "they are repeated, from the first one on" if actual < expected else "the last ones are left out"
                logger.warning("%s; %s", count_words(url, expected, actual) + where, how)
            return
        shard = self.pool.lru.cache.pop(url, None)
        if shard is not None:
            shard.reader.close()
        advice = self._advice(self, table, expected)
        if is_warned_of and not self.is_repeating:
            advice = (
                ". As further fields of other samples they are not repeated; write its index anew (wids index create)"
            )
        raise count_mismatch(url, expected, actual, advice=where + advice)


def _advice(_collection: ShardCollection, _table: MemberTable, _expected: int) -> str:
    return "; write the index again"


def count_words(url: str, expected: int, actual: int, *, by: str = "and the index says") -> str:
    """Words for a shard that holds another number of samples than was promised."""
    return f"{url}: holds {actual} samples, {by} {expected}"


def count_mismatch(
    url: str, expected: int, actual: int, *, by: str = "and the index says", advice: str = ""
) -> CountMismatchError:
    """The error for a shard that holds another number of samples than was promised; ``advice`` ends its message."""
    story = count_words(url, expected, actual, by=by) + advice
    return CountMismatchError(story, shard=url, expected=expected, found=actual)


def to_int(index: Any) -> int:
    """An integer, also of numpy or torch, as an int.

    Raises:
        TypeError: nothing else does; says what to do instead.
    """
    try:
        return int(operator.index(index))  # index() alone would let subclasses of int through
    except TypeError:
        kind = type(index).__name__
        shown_index = shown(index) if isinstance(index, (str, bytes, float, list, tuple, slice)) else a_kind(index)
        raise TypeError(
            f"{shown_index:.50} is not an index: dataset indices are integers, not {kind}; {_advice_on(index)}"
        ) from None


def _advice_on(index: Any) -> str:
    """Advice for a program that takes this as an index."""
    if isinstance(index, str):
        return "for a key use dataset[dataset.keys.index(key)]"
    if isinstance(index, slice):
        return "for a range use dataset.select(range(lo, hi))"
    if isinstance(index, Mapping) and "__index__" in index:
        return f"this is a sample, whose index is {index['__index__']}; a sampler yields indices"
    if isinstance(index, (list, tuple)) or (hasattr(index, "tolist") and len(getattr(index, "shape", ()))):
        return "for several samples use dataset.__getitems__(indices), for a sampler of batches batch_sampler="
    return "a sampler yields indices; a function for the values of a sample is given to add_transform"


def _list(shards: Any, base: str | None, options: dict[str, Any] | None, session: Session) -> ShardList:
    if isinstance(shards, Mapping):
        raise SpecError("shards is a dict; give the index's path, or its list of shards (index['shardlist'])", path="")
    if isinstance(shards, (bytes, bytearray)) or not isinstance(shards, Iterable):
        raise SpecError(
            f"shards is {shards!r}; give an index (URL, path or open file) or a list of shards (dicts, pairs or tars)",
            path="",
        )

    def find(name: str) -> list[str] | None:
        from wids.core.index.discovery import find_shards, shards_are_indexes

        _check_place(name)
        if is_several(url := _based(name, base)):
            return [shard.url for shard in find_shards([url], session=session)]
        if name.endswith(_INDEXES):
            raise shards_are_indexes(name, [name])
        return None

    shard_list = list_shards(shards, base=base, header=options, find=find)
    if sum(shard_list.nsamples) > MAX_COUNT:
        raise SpecError(
            f"shards have {sum(shard_list.nsamples)} samples in all, more than can be counted", path="shards"
        )
    return shard_list.with_packs(own_packs(shard_list.header, None, base))


def _based(name: str, base: str | None) -> str:
    return name if base is None else str(Place(base).join(name))


def _unpacked(column: Sequence[T]) -> Sequence[T]:
    """A column of few shards as a list, whose items are read ten times as fast."""
    return list(column) if len(column) < MANY else column


def _check_place(text: str) -> None:
    """Refuse several places in one text, and say what to do.

    Raises:
        SpecError: it is that.
    """
    parts = text.split("::")
    if len(parts) > 1 and all(map(is_archive, parts)):
        raise _no_shards(text, f"is several places in one text; give a list of them: {parts}")
    if len(parts) > 1 and all(part.endswith(".json") for part in parts):
        raise _no_shards(text, "is several indexes in one text; merge them (wids index merge), or mix them (wids.mix)")


def _no_shards(text: str, what: str) -> SpecError:
    return SpecError(f"shards: {text} {what}", path="shards", url=text)


def _own_base(header: dict[str, Any], index_url: str | None) -> str | None:
    """The default base of an index's relative URLs: the base in the index, otherwise the place of the index."""
    base = header.get("base") or header.get("base_path") or ""
    return None if index_url is None and not base else str(Place(index_url or "").directory.join(base))
