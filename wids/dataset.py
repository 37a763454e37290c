"""`ShardListDataset`: the samples of tar shards as a map-style PyTorch dataset.

One sample is ``index -> (shard, row) -> reader -> dict -> transformations``. The order of samples is the order of the
index and never changes. A fork inherits no held lock from here, and a pickle no open file: readers are opened in the
process that uses them. Nothing is printed unless ``$WIDS_VERBOSE`` is set.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import multiprocessing.context
import os
from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from multiprocessing import reduction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from typing_extensions import TypeVar

from wids.core.codecs.decode import DEFAULT_INFLATE_BYTES, SampleDecoder, name_fields, parse_transformations
from wids.core.collection import arguments
from wids.core.collection.batches import (
    MemberPart,
    expect,
    parse_part,
    parse_span,
    read_batch,
    read_foreign,
    read_foreign_part,
    read_parts,
    read_sample,
)
from wids.core.collection.keys import Keys
from wids.core.collection.shard_collection import ShardCollection, load_shards, to_int
from wids.core.collection.stats import COLUMNS, ROWS, Tally
from wids.core.collection.views import PART, choose, find_samples, local_path, of_file, split
from wids.core.files.held import holding, release
from wids.core.files.lazy import Computed
from wids.core.index.readonly import Spec
from wids.core.index.spec import PACKS, own_packs
from wids.core.index.view_file import KEY as COMPANIONS
from wids.core.index.view_file import is_view
from wids.core.index.view_rows import SharedSelection
from wids.core.order.layout import CompanionPlaces, SamplerInterface, interface_of, read_values
from wids.core.order.mask import MarkedIndex
from wids.core.order.validation import suggest_names
from wids.core.prefetch import ahead
from wids.core.readers.pool import STOPPED
from wids.core.tables.fields import Alternatives, FieldNames, LazyMembers, parse_field, parse_fields, part_lazily
from wids.core.transport import retrying, schemes
from wids.errors import (
    ClosedReaderError,
    InputError,
    ShardReadError,
    SpecError,
    WidsError,
    copied,
    note_sample,
    shorten,
    shown,
)
from wids.events import format_size, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from wids.columns.join import Missing, On
    from wids.columns.samples import Fields, SampleColumns
    from wids.core.collection.companions import Companion
    from wids.core.collection.joined_fields import Owners, Wishes
    from wids.core.collection.member_file import MemberFile
    from wids.core.collection.shard_collection import OnCountMismatch, Shards
    from wids.core.collection.stats import Stats
    from wids.core.collection.views import SplitBy
    from wids.core.files.replaced import ReplacedFile
    from wids.core.index.selection import Integers, Selection
    from wids.core.order.epoch import Tail
    from wids.core.prefetch.ahead import CollectionSource
    from wids.core.readers.access import AccessMode
    from wids.core.readers.base import Reader
    from wids.core.readers.pool import OpenShard, OpenShards
    from wids.core.tables.fields import FieldsArgument, Wanted
    from wids.core.tables.table import Group, KeyRule
    from wids.events import Hook
    from wids.windows import Offsets, Stack, Windows

    Transform: TypeAlias = Callable[[Any], Any]
    # The argument ``transformations``.
    Transforms: TypeAlias = "str | Transform | Sequence[str | Transform] | None"

# The type of a sample after the transformations.
T_co = TypeVar("T_co", covariant=True, default=Any)
T = TypeVar("T")
# The marks of a sample that was asked for by a plain int.
_UNMARKED: Mapping[str, Any] = MappingProxyType({})


def _reduce_stream(stream: BytesIO) -> Any:
    """The form in which processes send a stream; made of its bytes it shares them, where state is written into it."""
    if stream.tell() or stream.__dict__:
        return stream.__reduce_ex__(2)
    return BytesIO, (stream.getvalue(),)


# For undecoded samples, which workers send by the thousand: two thirds of the time.
reduction.register(BytesIO, _reduce_stream)


class _SharedTally(Tally):
    """Counts for a dataset, together with the copies of it in processes that are being started."""

    _counts: torch.Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        if multiprocessing.context.get_spawning_popen() is None:  # any other copy counts for itself
            return {}
        if self._counts is None:
            self._share(torch.zeros((ROWS, len(COLUMNS)), dtype=torch.float64))
        return {"counts": self._counts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({})
        if "counts" in state:
            self._share(state["counts"])

    def _share(self, counts: torch.Tensor) -> None:
        with contextlib.suppress(RuntimeError, OSError):  # no shared memory here: each process counts for itself
            counts.share_memory_()  # type: ignore[no-untyped-call]
        self._counts = counts
        self.join(counts.numpy())


class Location(NamedTuple):
    """The place of a sample: number of its shard in the index, row in that shard."""

    shard: int
    row: int


@holding
class ShardListDataset(Dataset[T_co]):
    """Random access to the samples of a list of tar shards.

    ``dataset[i]`` is a dict: each member's extension with its leading dot (``".jpg"``, ``".seg.png"``) -> its value,
    plus ``__key__`` (str), ``__index__`` (i), ``__shard__`` (the shard's resolved URL), ``__shardindex__`` (row in the
    shard) and ``__dataset__`` (the sub-dataset's name, or ``""``), after ``transformations``. From a sampler that masks
    (``tail="mask"``) there is ``__valid__`` too: False on samples that are repeated; from one with
    ``sample_seeds=True``, ``__seed__``: an int, see `wids.seeded`. For type checkers,
    ``ShardListDataset[X]`` is a dataset whose transformations return an X.

    Attributes:
        lengths: samples in each shard, a sequence of ints.
        total_length: their sum, an int.
        cum_lengths: end of each shard's samples, counted over the dataset; int64 array, one for each shard.
        cache: the pool of open shards in this process.
        base: the argument, or the index's.
        dataset_name: likewise.
        cache_dir: the argument, or the default.
        localname: a function URL -> path of the shard on this machine: the argument, else the cache's own.

    Args:
        shards: a JSON index (URL, path, path-like or open file), or a compiled one (``.widsx``); or a list of
            ``{"url", "nsamples", ...}`` dicts or ``(url, nsamples)`` pairs; or tars without an index: a path, URL or
            brace pattern ending in ``.tar``, a directory (of a store: with a slash at its end) or glob of them, as
            ``wids index create`` takes them, in natural order, or a list of these. Their samples are then counted
            here: of remote ones by byte ranges, from their member tables, else their headers; the counts are kept in
            ``cache_dir``.
            A data set of the Hugging Face Hub by its name, ``hf://datasets/ORG/NAME``: the tars of its split, in
            natural order, with the counts that its files have of them, else counted.
        split: of such a data set; default ``"train"``, or its only one. As ``hf://datasets/ORG/NAME?split=test``, too.
        config: of such a data set: the name of a configuration of its card; default: the card's, or its only one. As
            ``hf://datasets/ORG/NAME?config=CONFIG&split=test``, too.
        revision: of such a data set: a branch, tag or commit. As ``hf://datasets/ORG/NAME@REVISION``, too.
        cache_size: bytes that the cache directory may hold, a number or a text like ``"200GB"``, also while shards
            arrive: space is made before. None: as much as the disk has, of which a hundredth (at most 1 GiB) is left
            free. A limit below the size of one shard is exceeded, with a warning. With a ``localname`` the limit holds
            for each directory of its paths. Not with ``access="range"``, by which nothing goes into the cache.
        cache_dir: directory of remote shards; default ``$WIDS_CACHE``, else a per-user directory under the system's
            temporary directory. ``~`` expands. Made on the first download, for an index of 20,000 shards or more, for
            the directory of a pack of member tables, or for the rows of a remote view.
        lru_size: shards kept open; by default at most 512, and a quarter of the process's file descriptors together
            with all other datasets without this argument: the one used longest ago is closed first.
        dataset_name: default: the index's name, else a digest of ``shards``.
        localname: a function URL -> path that decides where each shard is, or goes. A file that exists already is
            read in place.
        transformations: ``"PIL"``, ``"numpy"``, ``"torch"``, ``"raw"`` (bytes), a function, or a list of these, applied
            in turn; `wids.lazy` among them opens members as files; none (``[]``, ``()``, ``None``) leaves each member
            an ``io.BytesIO``.
        keep: this dataset's shards are not evicted from the cache by any job or cleaner.
        base: base of relative URLs, patterns and directories; overrides the index's own ``base`` and its
            place.
        options: top-level keys that override those of the JSON index.
        fields: read only members with these extensions (``(".jpg", ".cls")``), in any case: ``.jpg`` reads ``.JPG``,
            which stays its key. No other bytes are touched. Those that the first shard lacks are warned of. Of
            alternatives (``".jpg;.jpeg;.png"``) the first that a sample has. With names
            (``{"image": "jpg;jpeg;png", "label": "cls"}``) these are the keys, from after the decoders that
            ``transformations`` begin with; a sample that has none of a field, or two that differ in case alone, is a
            `wids.errors.SelectionError` (see ``on_error``). Those of `wids.lazy` are opened, and not read:
            ``{"video": wids.lazy("mp4"), "label": "cls"}``.
        key_rule: how a member path splits into key and extension: ``"first-dot"`` of the basename, ``"last-dot"``, or a
            function name -> (key, extension) or None; None: as the index says, else ``"first-dot"``.
        group: ``"adjacent"``: a sample's members are adjacent; ``"key"``: members anywhere in the shard are merged;
            None: as the index says, else ``"adjacent"``.
        allow_pickle: let decoders unpickle (``.pkl``); that runs any code that the maker of the shard put there.
        max_inflate_bytes: limit of what one compressed member (.gz, .npz) may inflate to when it is decoded.
        allow_pipe: let ``pipe:`` URLs run their program (without a shell).
        allow_local: let an index from a remote place point at local files.
        cache_local: copy local shards into the cache too, instead of reading them in place (NAS to NVMe). Not with
            ``access="range"``.
        use_mmap: read through memory maps: members of 80 kB twice as fast. A shard that is truncated while it is read
            raises either way, but with maps there is a window of microseconds in which it kills the process (SIGBUS),
            a network file system that fails does so too, and a shard that is rewritten in place with the same size
            goes unnoticed. For large members on a local disk, in shards that stay as they are.
        storage_options: for fsspec, both for the index and for shards (credentials, endpoints, ...). They hold for the
            server of the index (scheme, host, port), for those that the program or a local index names, and for
            buckets (``s3://``, ``gs://``, ...), whose URLs name no server; not for others that a remote index names,
            nor for where a redirect leads. A key that is a URL holds another server's options, instead of these:
            ``{"headers": {...}, "https://cdn.example.com": {"headers": {...}}}``.
        prefetch: download the upcoming shards of a wids sampler in the background of the process that iterates it; a
            number, or a text like ``"2GB"``: at most so many bytes ahead; False: each shard when it is first read.
            Local shards on a network file system (NFS, Lustre, FUSE, ...) are read into memory ahead in the same way,
            up to a quarter of the free memory (Linux).
        access: ``"fetch"``: whole remote shards go into the cache. ``"range"``: of shards that are not in the cache,
            members are read by byte ranges, and no shard is downloaded: for a look at a few samples of a large data
            set. ``"auto"``: likewise, until a shard has cost as much as its download; then it is downloaded, as are
            those whose server gives no ranges and those without a published member table (unless their samples are
            large).
        early_reads: with ``access="fetch"``, read samples whose shard is not here yet by byte ranges while it is being
            downloaded, or where the cache has no space for it. Needs the shard's member table beside it
            (``wids index create --members``) or in a pack that the index names (``wids index tables``); without one,
            or with False, a sample waits for its shard. Not False with any other ``access``.
        hooks: called with every `wids.events` event, in the process where it happens.
        on_error: ``"substitute"``: where a sample cannot be read or decoded, or a transformation fails, another one of
            its shard takes its place, the same in every process, so that ranks stay equal. All samples then have
            ``__substitute_for__``: -1, or the index of the sample that failed. A shard that is missing or damaged as a
            whole is an error all the same. ``"raise"``: it is an error.
        max_errors: with ``"substitute"``: the share of the samples read that may fail in a process, looked at once ten
            have.
        error_log: with ``"substitute"``: a ``.jsonl`` to which each failure is added, a line; ``exclude`` takes it.
        on_count_mismatch: ``"error"``: reading a shard that does not hold as many samples as the index says raises
            `wids.errors.CountMismatchError`. ``"warn"``: for an index that is wrong and not yours. Lengths stay the
            index's, the same in all processes; a shard that holds fewer samples repeats them, from its first one on
            (``__shardindex__`` is the row that was read), of one that holds more the last are left out, and each
            process says so once for each shard.

    Raises:
        SpecError: the index is malformed; the message names the path to the bad value.
        InputError: an option means nothing beside another one (``max_errors`` without ``on_error="substitute"``);
            ``fields`` are empty or name an extension twice; a decoder comes after a function that has names.
        TypeError, ValueError: an option is of the wrong kind. All options are looked at before anything is read.
        FetchError: the index cannot be read.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> len(dataset), dataset[5][".txt"], dataset[5]["__shardindex__"]
        (12, 'text 5', 1)
        >>> len(dataset.exclude([0, 1])), len(dataset.select(slice(0, 6)))
        (10, 6)
    """

    cache_dir: str | None
    base: str | None
    dataset_name: str
    localname: Callable[[str], str]
    cache: OpenShards
    lengths: Sequence[int]
    cum_lengths: np.ndarray[Any, np.dtype[np.int64]]
    total_length: int
    _collection: ShardCollection
    _given_index: Any  # the argument ``shards``, if it is a path or URL
    _columns: SampleColumns | None  # None: none was asked for
    _transformations: list[Transform]
    _fields: tuple[str, ...] | None
    _companions: tuple[Companion, ...] = ()
    _places: dict[Companion, tuple[ShardCollection, CompanionPlaces]]
    _known_owners: Owners | None = None
    _wishes: Wishes | None = None  # the members that are read of companions
    _wanted: Wanted  # the members that are read
    _lazy: Alternatives | None  # and those that are opened as files
    _steps: tuple[str, ...]  # that made this view
    _lists: tuple[str, ...] = ()  # the files that named its samples, absolute
    _is_transforming: bool
    _is_completing: bool  # samples have fields that are not read with them
    _has_warned = False

    @suggest_names
    def __init__(
        self,
        shards: Shards,
        *,
        split: str | None = None,
        config: str | None = None,
        revision: str | None = None,
        cache_size: int | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        lru_size: int | None = None,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: Transforms = "PIL",
        keep: bool = False,
        base: str | os.PathLike[str] | None = None,
        options: dict[str, Any] | None = None,
        fields: FieldsArgument = None,
        key_rule: KeyRule | None = None,
        group: Group | None = None,
        allow_pickle: bool = False,
        max_inflate_bytes: int = DEFAULT_INFLATE_BYTES,
        allow_pipe: bool = False,
        allow_local: bool = False,
        cache_local: bool = False,
        use_mmap: bool = False,
        storage_options: dict[str, Any] | None = None,
        prefetch: bool | int | str = True,
        access: AccessMode = "fetch",
        early_reads: bool = True,
        hooks: Sequence[Hook] = (),
        on_count_mismatch: OnCountMismatch = "error",
        on_error: Literal["raise", "substitute"] = "raise",
        max_errors: float = arguments.MAX_ERRORS,
        error_log: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        release(self)
        if not (split is revision is config is None):
            shards = schemes.with_split(shards, split=split, revision=revision, config=config)
        cache = arguments.parse_cache(
            cache_dir=cache_dir, localname=localname, cache_size=cache_size, keep=keep, cache_local=cache_local
        )
        reading, self._ahead = arguments.parse_reading(
            cache, access=access, early_reads=early_reads, use_mmap=use_mmap, prefetch=prefetch, lru_size=lru_size
        )
        self._fields = arguments.parse_samples(key_rule=key_rule, group=group, fields=fields)
        self._decoding = arguments.parse_decoding(allow_pickle=allow_pickle, max_inflate_bytes=max_inflate_bytes)
        index = arguments.parse_index(
            base=base, options=options, storage_options=storage_options, allow_local=allow_local, allow_pipe=allow_pipe
        )
        self._tally, self._places = _SharedTally(), {}
        hooks = (*arguments.parse_hooks(hooks), self._tally)
        self._substitutes = arguments.parse_errors(
            on_count_mismatch=on_count_mismatch,
            on_error=on_error,
            max_errors=max_errors,
            error_log=error_log,
            hooks=hooks,
            has_failed=self._tally.has_substituted,
        )
        self._columns = None
        self.transformations = transformations
        self.cache_dir = cache["cache_dir"]
        self._opening = arguments.OpeningOptions(
            cache, reading, index, hooks, lru_size, on_count_mismatch, is_prefetching=self._tally.is_prefetching
        )
        self.base, shard_list, session = self._opening.load(shards)
        self._collection = self._opening.collect(shard_list, session, rule=key_rule, group=group)
        provider = self._collection.provider
        self.localname = provider.cache.placement.local_path if localname is None else localname
        self._steps = tuple(shard_list.header["made_by"]) if is_view(shard_list) else ()
        shard_list = self._collection.counted(shard_list)
        self._collection.adopt(shard_list)
        self._take(self._collection)
        self._given_index = os.fspath(shards) if isinstance(shards, (str, os.PathLike)) else None
        self._collection.index_url = arguments.index_url_of(shards, base, options, shard_list)
        self.dataset_name = arguments.choose_name(dataset_name, shards, shard_list)
        if shard_list.header.get(COMPANIONS):
            self._join_listed(shards)
        self._collection.expect_fields(self._read_fields())
        arguments.announce(shards, shard_list, base=self.base, name=self.dataset_name, cache_dir=self.cache_dir)

    def __new__(cls, *_: Any, **__: Any) -> Self:  # noqa: D102
        self = super().__new__(cls)
        self.__dict__.update(dict.fromkeys(_PARTS, _NotInitialized(cls.__name__)))
        return self

    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]  # whose parameters help() and notebooks show

    # --- the index

    def __len__(self) -> int:
        return self.total_length

    @property
    def shards(self) -> Sequence[dict[str, Any]]:
        """The shards as dicts, with ``url`` (resolved), ``nsamples``, and all other keys that the index has for them.

        A list; of 20,000 shards or more a sequence that makes each dict on access (``list(dataset.shards)``
        makes all). Neither the list nor a dict in it can be changed (TypeError); copies of them can.

        Assign a list (as the constructor takes it, URLs resolved) to replace the shards: ``dataset.shards =
        dataset.shards[:10]``, ``dataset.shards = [{**row, "url": moved(row["url"])} for row in dataset.shards]``.
        Lengths, keys and prefetching follow. Make samplers and loaders again.
        """
        return self._collection.rows

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self._assign(self._collection.shards.header, shards)

    @property
    def spec(self) -> dict[str, Any]:
        """The index as a dict, its shards resolved; as `shards`, it may be assigned, and cannot be changed."""
        return Spec(self._collection.shards.header, shardlist=self._collection.rows)

    @spec.setter
    def spec(self, spec: dict[str, Any]) -> None:
        rest = dict(spec)
        if "shardlist" not in rest or rest.get("datasets"):
            raise SpecError(
                "a spec that is assigned has its shards in 'shardlist' and no 'datasets'; make a new ShardListDataset "
                "of an index with sub-datasets",
                path="shardlist",
            )
        self._assign(rest, rest.pop("shardlist"))

    def _assign(self, header: dict[str, Any], shards: Shards) -> None:
        """Have another index.

        Raises:
            ColumnsError, SpecError: that cannot be; nothing has changed.
        """
        collection, shard_list = self._collection, self._collection.shards
        if self._companions:
            raise SpecError("companions are joined to the samples of these shards; assign shards before they are")
        self._own_columns().check_unused()  # which are those of the index that was given, also from here on
        if shard_list.selection is not None:
            raise SpecError(
                "a view keeps the shards of its dataset; change them there, and make the view again",
                path="",
            )
        is_named_anew = header.get(PACKS) != shard_list.header.get(PACKS)
        packs = own_packs(header, None, None) if is_named_anew else shard_list.all_packs()
        if shards is not collection.rows:
            _, shard_list, _ = load_shards(shards, session=collection.provider.session)
            collection.close()  # a rewritten shard is counted again
            shard_list = collection.counted(shard_list).with_packs(packs)
        elif is_named_anew:
            shard_list = shard_list.with_packs(packs)
        collection.adopt(shard_list.with_header(header))
        self._take(collection)

    @Computed
    def fingerprint(self) -> str:
        """A digest of the shards' names and counts, in order, independent of the shards' place.

        Directories count where shards in several have the same name, then from where their paths part.
        """
        return self._collection.fingerprint

    @Computed
    def contents(self) -> dict[str, str]:
        """Digests of the shards' checksums and sizes, by kind (crc32, md5, filesize), of the kinds that all have.

        Sampler states and saved views are of these contents: they are refused where the shards were rewritten.
        """
        return self._collection.contents

    def locate(self, index: int) -> Location:
        """Shard and row of sample ``index`` as the index counts, without opening anything; negative: from the end.

        Args:
            index: of a sample.

        Raises:
            IndexError: out of range. TypeError: not an integer.
        """
        return Location(*self._collection.locate(self._collection.plain(index)))

    @Computed
    def keys(self) -> Keys:
        """The keys of the samples, as ``keys[i]``, ``keys.index(key)``, ``keys.find(key)``, ``key in keys``.

        Shards are opened as needed: free for local and cached ones, a download for others.
        """
        return self._keys()

    def _keys(self) -> Keys:
        return Keys(self._collection, of=self)

    # --- downloads ahead

    def __wids__(self) -> SamplerInterface:
        return SamplerInterface(
            shard_ends=self._collection.cum_lengths,
            breaks=self._collection.breaks,
            takes_marks=True,
            mixed_parts=self._collection.mixed_parts,
            prefetch_source=self._prefetch_source,
            named=self._named,
            narrowed=self._narrowed,
            listed=lambda: (
                self._collection.shards,
                self._collection.index_url,
                (self._columns is None or not self._columns.shown) and not self._companions,
            ),
            fingerprint=lambda: self._collection.fingerprint,
            contents=lambda: self._collection.contents,
            evaluate=lambda text: self._own_columns().evaluate(self._collection, text),
            companions=self._companion_places,
            companion_marks=self._companion_marks,
        )

    def _wanted_companions(self) -> Sequence[Companion]:
        return () if self._wishes is None else self._wishes.companions

    def _companion_marks(self) -> dict[str, dict[str, str]]:
        if not (wanted := self._wanted_companions()):
            return {}
        from wids.core.collection.companions import all_marks

        return all_marks(wanted)

    def _companion_places(self) -> list[CompanionPlaces]:
        """The places of the samples of companions that are read: computed once, for they may be an array of all."""
        places = [(each, self._places.get(each)) for each in self._wanted_companions()]
        for companion, known in places:
            if known is None or known[0] is not self._collection:
                self._places[companion] = self._collection, companion.places(self._collection)
        return [self._places[companion][1] for companion, _ in places]

    def _prefetch_source(self) -> CollectionSource | None:
        """The part of this dataset that prefetching uses; None if no shard is far, or prefetching is off."""
        if not self._ahead:
            return None
        ahead_bytes = None if self._ahead is True else self._ahead
        has_fields = self.fields is not None
        return ahead.source_of(self._collection, ahead_bytes, has_fields=has_fields, figures=self._tally.published)

    def prefetch(self, indices: Iterable[Any]) -> ahead.Ahead:
        """Download the shards of ``indices`` ahead of their use, for samplers of your own.

        Args:
            indices: the indices that will be read, in order; all of them are drawn at once.

        Returns:
            The same indices to iterate over: downloads keep ahead of the indices drawn from it, and end with it. It
            may be closed before (``with``, ``close()``).
        """
        return ahead.Ahead(self, [self._collection.plain(index) for index in indices])

    def __repr__(self) -> str:
        samples, shards = len(self), len(self._collection.shards)
        counts = f"{samples} sample{'s' * (samples != 1)} in {shards} shard{'s' * (shards != 1)}"
        return f"<ShardListDataset {self.dataset_name!r}: {counts}>"

    def _repr_html_(self) -> str:
        """The picture in a notebook: a line of words, and a row of the first samples on this machine's disk."""
        from wids.core.codecs.html import show_dataset

        samples = self.preview(_PREVIEWS)
        shards = self._collection.shards
        words = [
            " in ".join(f"{n:,} {noun}{'s' * (n != 1)}" for n, noun in ((len(self), "sample"), (len(shards), "shard")))
        ]
        size = sum(shards.filesizes) if min(shards.filesizes, default=-1) >= 0 else None
        words += [] if size is None or shards.selection is not None else [format_size(size)]
        classes = shards.class_names
        words += [f"{len(classes):,} classes"] if classes else []
        note = "" if samples or not len(self) else "No shard is on this machine's disk yet; dataset[0] fetches one."
        return show_dataset(f"ShardListDataset {self.dataset_name}", words, samples, note)

    def preview(self, count: int) -> list[dict[str, Any] | Exception]:
        """The first samples whose shards are on this machine's disk, for a picture of the dataset: nothing is fetched.

        Args:
            count: of samples, at most.

        Returns:
            Undecoded samples (``".jpg"`` -> ``io.BytesIO``), with the index's list of classes in ``"__classes__"``; the
            error of one that cannot be read.
        """
        previews: list[dict[str, Any] | Exception] = []
        collection, classes = self._collection, self._collection.shards.class_names
        for k in itertools.islice(range(len(collection.shards)), _PREVIEW_SHARDS):
            first = collection.ends[k - 1] if k else 0
            for index in range(first, min(collection.ends[k], first + count - len(previews))):
                try:
                    if not collection.provider.is_here(collection.shards[k]):
                        break
                    sample = read_sample(collection, index, self._wanted)
                    if self._wishes is not None:
                        self._wishes.add_here(sample, collection)
                    previews.append({**sample, "__classes__": classes})
                except Exception as error:  # noqa: BLE001 - also of a key_rule or localname
                    previews.append(error)
            if len(previews) >= count:
                break
        return previews

    # --- parts of it

    @suggest_names
    def select(self, samples: Any) -> Self:
        """A view of some samples: a dataset of them, in this one's order, each once.

        Nothing is read or written. The view has this dataset's transformations, cache and settings, and the same
        shards; `lengths` are what it has of each, and a shard of which it has nothing is never opened. ``view[i]`` has
        the view's own ``__index__``; ``__shard__``, ``__shardindex__`` and ``__key__`` stay what they are.

        Args:
            samples: indices, in any order, negative ones from the end; or a slice of them; or a mask, one bool for each
                sample; or keys; or the path of a file of them: ``.npy`` (indices or a mask), ``.jsonl`` (an
                ``error_log``), or text with a key a line. By keys, the member tables of all shards are read, and a
                warning counts those of no sample, and those of several, which all are meant.

        Raises:
            InputError: they are none of these. IndexError: an index is out of range.
        """
        total, indices = len(self._collection), find_samples(samples, self._keys(), self._collection)
        return self._view(indices, f"select{of_file(samples)}: {len(indices):,} of {total:,}", samples)

    @suggest_names
    def exclude(self, samples: Any) -> Self:
        """A view of all samples but these; see `select`.

        Args:
            samples: as of `select`.

        Raises:
            InputError: they are none of these. IndexError: an index is out of range.
        """
        total, gone = len(self._collection), find_samples(samples, self._keys(), self._collection)
        kept = np.ones(total, np.bool_)
        kept[gone] = False
        return self._view(np.flatnonzero(kept), f"exclude{of_file(samples)}: {len(gone):,} of {total:,}", samples)

    @suggest_names
    def split(self, *shares: float, by: SplitBy = "key", seed: int = 0) -> list[Self]:
        """Views of parts that have no sample in common, and all of them together; see `select`.

        ``split(0.9, 0.1, by="patient")`` lets no patient's samples lie in two parts. The part of a value follows from a
        hash of it, the shares and the seed, whatever other samples there are, so it stays when the dataset grows. The
        hash is BLAKE2b of the value's text; equal numbers, such as 7 and 7.0, and the text "7" are one value. Shares
        are those of the values, about; of the samples only where there are many values, none of most samples. A warning
        names an empty part.

        Args:
            shares: of the samples, one for each part; scaled to add up to 1.
            by: ``"key"``: a hash of each sample's key decides its part: samples stay in their part when shards are
                added, and equal keys are in one part (reads all member tables); ``"shard"``, the same with the shard's
                name; ``"index"``: nothing is read, and parts change when shards are added. Otherwise the same with a
                value of each sample, a text or a number: a column, an SQL expression over columns, or an array.
            seed: another one gives other parts. A part that is split again is split by other numbers.

        Raises:
            InputError: bad shares; a sample has no value, or it is neither a text nor a number. QueryError,
                ColumnsError, DependencyError: see `query`.
        """
        read = partial(read_values, self, of="by")
        parts = split(self._collection, self._keys(), shares, by=by, seed=seed, made_by=self._steps, read=read)
        words = repr(by) if isinstance(by, str) else "values"
        how = f"of split({', '.join(map(str, shares))}, by={words}, seed={seed})"
        whole = f"{len(self._collection):,}"
        return [self._view(part, f"{PART}{k} {how}: {len(part):,} of {whole}") for k, part in enumerate(parts)]

    @suggest_names
    def unseen(
        self,
        state: Any,
        *,
        old: Any,
        old_lengths: Any = None,
        old_buckets: Any = None,
        old_limits: Mapping[str, Any] | None = None,
        seed: int = 0,
        tail: Tail = "pad",
    ) -> Self:
        """Return a view of the samples that the epoch of a state has not read, where the data have changed since.

        It has the samples of earlier shards that the epoch had not yet given, and all of new shards. A shard is the
        earlier one if its checksum says so, wherever it lies now; without checksums, if URL, size and count are those
        of before. One with another content is new, and counted as that. No shard is opened, and keys do not count.

        ``sampler.load_state_dict(state, old=old)`` goes on over the same samples in the state's epoch, and over all of
        this dataset after it.

        Args:
            state: of a sampler or a loader, at any batch.
            old: the dataset that it was saved over, or its index (a path, a URL, a list of shards).
            old_lengths: of a state of `wids.BucketBatchSampler`: the length of each sample of ``old``, or the name of a
                column of it. It is needed within a block, and where samples are left out.
            old_buckets: likewise.
            old_limits: likewise, the values of each limit, by its name.
            seed: of the sampler, where the dataset is a mixture: a state of one does not say it.
            tail: of the sampler, where the state is of batches, which does not say it.

        Raises:
            StateError: the state is damaged, or not of ``old``. InputError: shards or lengths are not known.

        Example:
            >>> before = wids.ShardListDataset("train.json")
            >>> sampler = wids.ChunkedSampler(before)
            >>> indices = iter(sampler)
            >>> read = [next(indices) for _ in range(5)]
            >>> now = wids.ShardListDataset("train.json").exclude(read[:3])
            >>> len(now.unseen(sampler.state_dict(), old=before))
            7
        """
        from wids.core.collection.changes import find_earlier, open_earlier
        from wids.core.order.unseen import find_unseen

        then = open_earlier(old)
        if (interface := interface_of(then)) is not None and interface.anchored is not None:
            raise InputError(
                "unseen() is of samples, and old= of windows; make the windows of now, and go on over them: "
                "sampler.load_state_dict(state, old=old)"
            )
        earlier = find_earlier(self, then, values={"lengths": old_lengths, "buckets": old_buckets}, limits=old_limits)
        left = find_unseen(self, state, earlier, seed=seed, tail=tail)
        name = getattr(getattr(old, "_collection", None), "index_url", None) or getattr(old, "dataset_name", old)
        return self._view(np.concatenate([np.zeros(0, np.int64), *left.pieces()]), f"unseen(old={shown(name)})")

    @suggest_names
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write this dataset as an index: its shards and samples, and no data.

        ``ShardListDataset(path)`` opens it. The file names the index that lists the shards, and how the view was made;
        the rows are beside it in ``NAME.DIGEST.rows``. It is refused once that index lists other shards.

        Args:
            path: a local path, such as ``"good.json"``. A view of the same index that is there is replaced; keys in it
                that wids does not know stay.
            overwrite: any other file is replaced, too, unless it is one of those that this dataset is made of.

        Raises:
            OutputExistsError: there is a file that is not to be replaced. OutputError: it is no name of a local file.
            OSError: it cannot be written.
        """
        self._save(os.fspath(path), overwrite=overwrite)

    def _save(self, path: str, *, overwrite: bool = False, file: ReplacedFile | None = None) -> None:
        """`save` with a ``file`` for `wids.core.index.view_saving.write_view`."""
        from wids.core.index.view_saving import save

        collection = self._collection
        selection, companions = collection.shards.selection, None
        if self._companions:
            from wids.core.collection.joining import entries_of

            companions = partial(entries_of, self._companions, collection)
        elif selection is None:
            selection = choose(collection.shards, np.arange(len(collection), dtype=np.int64))
        files = {
            "the index that this is a view of": collection.index_url,
            "the file of this view's rows": selection.path if isinstance(selection, SharedSelection) else None,
            "the table of this dataset's columns": self._own_columns().place,
        }
        inputs = [(path, words) for words, path in files.items() if path is not None]
        inputs += [place for companion in self._companions for place in companion.places_of_files().items()]
        inputs += [(path, "a list that this view is made by") for path in self._lists]
        save(
            collection.as_read(),
            selection,
            path,
            index_url=collection.index_url,
            made_by=self._steps,
            companions=companions,
            inputs=inputs,
            overwrite=overwrite,
            file=file,
        )

    @suggest_names
    def where(self, predicate: str) -> Self:
        """A view of the samples for which an SQL expression is true; see `select`.

        ``dataset.where("has_jpg and not has_txt")``, which needs no columns: member tables say so.
        ``dataset.where("width >= 512 and caption ilike '%cat%'")``. The columns are those of `query`. Samples for which
        it is null (``label <> 3`` where there is no label) are left out, and counted in a warning.

        Args:
            predicate: SQL, as after WHERE.

        Raises:
            QueryError: it is no such expression. ColumnsError, DependencyError: see `query`.
        """
        indices, nulls = self._own_columns().choose(self._collection, predicate)
        if nulls:
            logger.warning(
                "where: %d of %d samples are left out because %s is null for them: a column that it names has no value",
                *(nulls, len(self), shown(predicate)),
            )
        return self._view(indices, f"where {predicate}: {len(indices):,} of {len(self):,}")

    @suggest_names
    def windows(
        self,
        length: int | None = None,
        *,
        stride: int = 1,
        step: int = 1,
        by: Any = None,
        pad: Literal["repeat"] | None = None,
        offsets: Offsets | None = None,
        stack: Stack | None = None,
    ) -> Windows:
        """Windows of consecutive samples, as a dataset: ``dataset.windows(8, by="episode")[i]`` has 8 samples.

        For clips of videos, episodes of robots, histories. Samplers, mixtures, states and prefetching take windows as
        they take samples. Nothing is read here but the column ``by``.

        Args:
            length: samples of a window.
            stride: distance of consecutive samples within a window: with 2, it has every other sample.
            step: distance of the first samples of consecutive windows: 1: a window begins at each sample; ``length``
                (times ``stride``): windows do not overlap.
            by: a window never crosses a change of this: the name of a column, an SQL expression over columns, or an
                array with a value for each sample. None: it never crosses a shard. In a view, consecutive samples are
                those that are neighbours in the whole dataset; a window never crosses a gap, or a sub-dataset.
            pad: None: all samples of a window lie in its run. ``"repeat"``: a window begins at each ``step`` in any
                case, and beyond the ends of the run its nearest sample is repeated; ``__pad__`` says where.
            offsets: instead of a length, distances from the anchor, a sample: ``[-2, -1, 0, 5]``; or those of each
                field: ``{".jpg": [-1, 0], ".json": range(16)}``, with all other fields of the anchor.
            stack: makes one value of the list of a field, such as ``torch.stack``; or a function for each field,
                ``{".npy": numpy.stack}``. None: lists stay lists.

        Raises:
            InputError: no run is as long as a window; a sample has no value for ``by``, or there are not as many as
                samples; arguments that exclude each other. ValueError: a length, stride or step below 1. QueryError,
                ColumnsError, DependencyError: see `query`.
        """
        from wids.windows import Windows

        return Windows(self, length, stride=stride, step=step, by=by, pad=pad, offsets=offsets, stack=stack)

    # --- columns

    def query(self, sql: str) -> Any:
        """The result of one SELECT statement over the table ``samples``, which has one row for each sample.

        ``dataset.query("select label, count(*) from samples group by label order by 2 desc")``. The table has
        the columns of the file that ``wids columns create`` wrote beside the index, and of joined tables; at least
        ``index`` (int64). If the statement names ``has_jpg`` (bool), or without the file ``jpg_bytes``, ``bytes``,
        ``key``, ``shard`` or ``row``, their values come from member tables (`wids.columns.members`); no shard is
        downloaded. ``has_jpg`` of a field that no sample has is false for all, with a warning. The SQL is DuckDB's. It
        can read no other file, no network and no variable of the program, and writes nothing.

        Args:
            sql: the statement.

        Returns:
            A ``pyarrow.Table``; its rows have no order unless the statement sets one.

        Raises:
            QueryError: it is not one SELECT, has an unknown name, or takes more than 512 MiB and the temporary
                directory. KeyboardInterrupt: Ctrl-C; DuckDB has stopped then. ColumnsError: no columns exist, they
                are of another index, or a member table is neither local nor published; the message has advice.
                InputError: two fields have the same ``has_FIELD``. FetchError, ShardError: a table cannot be read.
            DependencyError: duckdb or pyarrow is not installed (``pip install 'wids[views]'``).
        """
        return self._own_columns().query(self._collection, sql)

    def find_rows(self, predicate: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices of the samples for which an SQL expression is true, like ``"width >= 512 and label in (3, 7)"``.

        Args:
            predicate: a condition as after WHERE, over the columns of `query`. A sample for which it is null is left
                out; a number is true unless it is 0.

        Returns:
            int64, ascending, each once.

        Raises:
            QueryError: it is not such an expression. ColumnsError, DependencyError: see `query`.
        """
        return self._own_columns().find_rows(self._collection, predicate)

    def read_column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A column as an array: (n,), a value for each of the n samples, in order; missing ones are NaN or None.

        Integers with missing values become floats, or Python integers if floats would change them (beyond 2**53).
        A column of vectors is (n, d), with rows of NaN for missing ones of floats; of vectors of several
        lengths, or of integers of which some are missing, it is (n,) of arrays and None.

        Args:
            name: of the column.

        Raises:
            InputError: there is no such column; the message lists all. QueryError, ColumnsError, DependencyError: see
                `query`.
        """
        return self._own_columns().read(self._collection, name)

    @Computed
    def column_names(self) -> list[str]:
        """The columns of `query`, in order.

        Raises:
            ColumnsError: the table beside the index cannot be used.
        """
        return self._own_columns().names(self._collection)

    @suggest_names
    def with_table(
        self,
        table: Any,
        *,
        on: On,
        columns: Sequence[str] | None = None,
        missing: Missing = "null",
        fields: Fields = False,
    ) -> Self:
        """The same dataset with more columns, joined from your table; nothing else of the dataset is read or written.

        For a view it returns the same view with more columns; the table's keys and indices are those of the view's
        samples. The result shares the open shards, the cache and the settings with this dataset, and starts with its
        transformations. Joined columns are stored in a temporary file ($TMPDIR) of this process; its workers map it.

        Args:
            table: path or URL of a Parquet file or of JSON lines (``.jsonl``, ``.jsonl.gz``), or of a folder or pattern
                of such parts; a ``pyarrow.Table``, a pandas ``DataFrame``, or whatever has ``__arrow_c_stream__`` (a
                frame of polars, a relation of DuckDB, a ``RecordBatchReader``); or a dict of arrays, where one of
                shape (n, d) is a column of vectors.
            on: ``"key"``: its column ``key`` (strings) is the samples' ``__key__``; ``"index"``: its column ``index``
                (integers) is their ``__index__``; in a view, it counts the view's samples, as in `query`.
            columns: names of its columns; default: all but ``key`` and ``index``.
            missing: for samples without a row in the table: ``"null"``, with one warning that counts them, or
                ``"error"``. A join by key leaves out rows of the table without a sample; a warning (for a view, a
                line at INFO) counts them.
            fields: columns to add to the samples, under their names, before the transformations: ``True`` (all of the
                table), or names. Values are Python values, lists of numbers are arrays; null is None. Names that
                samples use themselves (``__key__``, or any that begins with a dot) are not allowed.

        Raises:
            ColumnsError: the table cannot be read; keys repeat, in it or among the samples; an index is out of range;
                a sample has no row and ``missing="error"``. InputError: it lacks a column; a column has the wrong
                type, or one that SQL lacks; two columns would have the same name. DependencyError: see `query`.
        """
        from wids.columns.join import JoinRequest

        request = JoinRequest(table=table, on=on, columns=columns, missing=missing)
        return self._with(self._own_columns().join(request, fields, self._collection))

    @suggest_names
    def with_columns(
        self,
        fields: Fields = True,  # noqa: FBT002 - or names
        *,
        place: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The same dataset, with columns of the index's table added to its samples, before the transformations.

        Args:
            fields: ``True`` (all columns), or names; False: no columns, only the ``place``. ``index`` is the sample's
                ``__index__``, also in views.
            place: path or URL of the table; default: beside the index, where ``wids columns create`` writes it.

        Raises:
            ColumnsError: the table does not exist, or is of another index. InputError: it lacks the column.
            DependencyError: see `query`.
        """
        columns = self._own_columns().at(None if place is None else os.fspath(place), self._collection)
        return self._with(columns.show(fields, self._collection) if fields else columns)

    # --- fields from elsewhere

    @suggest_names
    def with_fields(
        self,
        other: Any,
        *,
        on: Literal["row", "key"] = "row",
        prefix: str = "",
        missing: Literal["error", "skip", "none"] = "error",
        fields: str | Sequence[str] | None = None,
    ) -> Self:
        """The same dataset, whose samples have the fields of another data set, too: a *companion*.

        For captions, latents, embeddings, masks that come after the tars: nothing is rewritten. The order of samples,
        the fingerprint and the states of samplers stay those of this dataset. ``wids map`` makes companions. A
        companion of which ``fields`` of this dataset name no field is not touched. Both are downloaded ahead, and
        fields are decoded by this dataset's transformations.

        Args:
            other: a `ShardListDataset`, of which the shards, the view and the settings of its cache are taken; or an
                index (path or URL), which is opened with this dataset's settings.
            on: ``"row"``: sample i has the fields of sample i of ``other``, which has as many; shards may be cut
                differently. ``"key"``: of the sample with its ``__key__``, which is found in the member tables of both,
                and kept as a file in the cache directory.
            prefix: stands before the extensions of its members: with ``"clip"``, ``.npy`` is ``.clip.npy``.
            missing: of samples that ``other`` lacks, with ``on="key"``: ``"error"``; ``"skip"``: a view without them;
                ``"none"``: they have none of its fields. A warning names some and counts them.
            fields: the extensions of its members that are fields. None: all. Without them, the index of ``other`` says
                which it has, or else its first shard, which is looked at when that has to be known.

        Raises:
            InputError: ``other`` has another number of samples; several of its samples have one key; samples are
                missing; it has transformations other than decoders. FetchError, ShardError: it cannot be read.

        Example:
            >>> dataset = wids.ShardListDataset("train.json")
            >>> joined = dataset.with_fields("train.json", prefix="twin")
            >>> joined[5][".txt"], joined[5][".twin.txt"]
            ('text 5', 'text 5')
        """
        from wids.core.collection import joining

        request = joining.parse_request(on=on, prefix=prefix, missing=missing, fields=fields)
        companions, left = joining.join(self._collection, *self._companion_of(other), request)
        changed = copy.copy(self)
        changed._companions = (*self._companions, *companions)  # noqa: SLF001 - of this class
        joining.check_apart(changed._companions)  # noqa: SLF001
        changed._transformations, changed._places = list(self._transformations), {}  # noqa: SLF001
        changed._take(self._collection.expecting(changed._read_fields()))  # noqa: SLF001
        changed._note_work()  # noqa: SLF001
        if left is None:
            return changed
        return changed._view(left, f"with_fields {companions[0].name}: {len(left):,} of {len(self):,}")  # noqa: SLF001

    def _companion_of(self, other: Any) -> tuple[ShardCollection, str, Sequence[Companion], dict[str, Any]]:
        """(shards, name, companions, further arguments of a `Companion`) of the argument ``other``.

        Raises:
            InputError: it has more than fields of its shards.
        """
        from wids.core.collection.companions import name_of_index

        look_ahead = self._look_ahead()
        if not isinstance(other, ShardListDataset):
            if interface_of(other) is not None or not isinstance(other, (str, os.PathLike)):
                raise InputError(f"with_fields: other is {shown(other)}; give a ShardListDataset, or an index")
            place = os.fspath(other)
            collection = self._opening.open(place)
            more: dict[str, Any] = {"look_ahead": look_ahead}
            opened: Sequence[Companion] = ()
            if collection.shards.header.get(COMPANIONS):
                opened = self._listed_companions(collection)
            return collection, name_of_index(place), opened, more
        steps = other._transformations  # noqa: SLF001 - of this class
        if not other._reads_plainly():  # noqa: SLF001
            raise InputError(
                f"with_fields: {type(other).__name__} reads samples in its own way; give the index of its shards"
            )
        strange = next((step for step in steps if type(step) not in (SampleDecoder, FieldNames, LazyMembers)), None)
        if strange is not None or (other._columns is not None and other._columns.shown):  # noqa: SLF001
            raise InputError(
                "with_fields: the other dataset has transformations, or columns as fields, which are not taken; give "
                "them to the joined dataset (add_transform, with_columns)"
            )
        collection, fields = other._collection, other.fields  # noqa: SLF001
        if isinstance(fields, Alternatives):
            raise InputError(
                f"with_fields: the other dataset has fields={fields!r}; alternatives, names and lazy members are for "
                "the joined dataset: give them to that, and to the other one extensions alone"
            )
        more = {
            "look_ahead": look_ahead if other._ahead else None,  # noqa: SLF001
            "fields": None if fields is None else tuple(fields),
            "tally": None if other._tally is self._tally else other._tally,  # noqa: SLF001
        }
        is_whole = collection.index_url is not None and collection.shards.selection is None
        name = name_of_index(collection.index_url or "") if is_whole else other.dataset_name
        return collection, name, other._companions, more  # noqa: SLF001

    def _join_listed(self, shards: Any) -> None:
        """Have the companions that the index names."""
        where = f"{os.fspath(shards)}: " if isinstance(shards, (str, os.PathLike)) else ""
        self._companions = self._listed_companions(self._collection, where)
        self._note_work()

    def _listed_companions(self, collection: ShardCollection, where: str = "") -> tuple[Companion, ...]:
        from wids.core.collection.joining import open_listed

        return open_listed(collection, self._opening, self._look_ahead(), where)

    def _look_ahead(self) -> Callable[[ShardCollection], CollectionSource | None] | None:
        """The function that makes the source of downloads ahead of a companion; None: none is downloaded ahead."""
        ahead_bytes = None if self._ahead is True else self._ahead
        return partial(ahead.source_of, ahead_bytes=ahead_bytes) if self._ahead else None

    # --- samples

    def __getitem__(self, index: Any) -> T_co:
        lo, hi, reader, name, rows = self._collection.here
        self.cache.accesses += 1
        if type(index) is not int or not lo <= index < hi:
            return self._read_anew(index)
        row = index - lo if rows is None else rows[index]
        try:
            sample = reader.read(row, self._wanted)
        except (ClosedReaderError, ShardReadError):  # another thread opened or released shards; the disk failed
            sample = None
        if sample is None:  # not in the except clause, which would become the context of errors raised here
            return self._read_anew(index)
        sample["__dataset__"] = name
        sample["__index__"] = index
        sample["__shard__"] = reader.url
        sample["__shardindex__"] = row
        return self._transform(sample) if self._is_transforming else sample  # type: ignore[return-value]

    def __iter__(self) -> Iterator[T_co]:
        # Without this, Python ends a loop at any IndexError: one from a transformation would cut the data off unseen.
        return map(self.__getitem__, range(len(self)))

    def __getitems__(self, indices: Iterable[Any]) -> list[T_co]:
        """The samples at ``indices``, in that order; read shard by shard, in offset order. torch's batch fetch."""
        cls = type(self)
        if cls.__getitem__ is not ShardListDataset.__getitem__ or cls.get_shard is not ShardListDataset.get_shard:
            return [self[index] for index in indices]  # a subclass's own access must not be bypassed
        indices, pool, plain = list(indices), self.cache, self._collection.plain
        wanted = self._wanted
        if (
            self._is_transforming
            and self._collection.is_large(len(indices))
            and expect(self._collection, indices, wanted)
            and (self._wishes is None or self._wishes.expect(indices, self._collection))
        ):
            return [self[index] for index in indices]  # each is transformed, and its bytes are freed, before the next
        is_plain, count = set(map(type, indices)) == {int}, len(indices)
        pool.accesses += count  # without a call in between, during which another thread may add its own
        misses = pool.misses
        try:
            samples = read_batch(self._collection, indices if is_plain else [plain(i) for i in indices], wanted)
            joined = None if self._wishes is None else self._wishes.add_to_all(samples, self._collection)
        except ShardReadError:
            if self._substitutes is None:
                raise
            return [self._read_anew(index) for index in indices]
        if pool.misses != misses:
            self.check_cache_misses()
        if not is_plain:
            marks = [index.marks() if isinstance(index, MarkedIndex) else _UNMARKED for index in indices]
            for sample, mark in zip(samples, marks, strict=True):
                sample.update(mark)
            if self._is_transforming:
                files = [None] * count if joined is None else joined
                return [self._transform(*each) for each in zip(samples, marks, files, strict=True)]
        if joined is not None:
            return [self._transform(sample, _UNMARKED, files) for sample, files in zip(samples, joined, strict=True)]
        return [self._transform(sample) for sample in samples] if self._is_transforming else samples  # type: ignore[return-value]

    def get_shard(self, index: int) -> tuple[OpenShard, int, dict[str, Any]]:
        """(open shard, row in it, the shard's dict) of sample ``index``; ``shard[row]`` is the undecoded sample.

        Args:
            index: of a sample.
        """
        k, row = self.locate(index)
        self.cache.accesses += 1
        shard = self._collection.open(k)
        return shard, row % len(shard), self._collection.describe(k)

    @suggest_names
    def read(self, index: int, field: str, lo: int = 0, hi: int | None = None) -> bytes:
        """The bytes ``lo .. hi`` of one member of a sample; nothing else of it is read, and nothing is decoded.

        Args:
            index: of the sample.
            field: the member's extension (``".mp4"``) in any case, alternatives (``"mp4;webm"``), or a name that
                ``fields`` of this dataset has.
            lo: the first byte, counted from the member's first.
            hi: one past the last; None, or more than the member has: its end.

        Returns:
            Fewer bytes than were asked for only at the member's end.

        Raises:
            IndexError: no such sample exists. SelectionError: the sample has no such member. InputError: ``lo`` is
                negative, or behind ``hi``. FetchError, CacheError, ShardError: it cannot be read.

        Example:
            >>> dataset.read(5, ".txt"), dataset.read(5, ".txt", 1, 3)
            (b'text 5', b'ex')
        """
        return self.read_parts([(index, field, lo, hi)])[0]

    def read_parts(self, parts: Iterable[tuple[int, str, int, int | None]]) -> list[bytes]:
        """Several parts of members, in their order.

        They are read shard by shard; of remote shards at the same time, close ones of a shard in one request.

        Args:
            parts: ``(index, field, lo, hi)`` of each, as `read` takes them.

        Raises:
            Exception: see `read`; none is returned if one cannot be read.
        """
        asked = [
            MemberPart(self._collection.plain(index), parse_field(field, self.fields), *parse_span(lo, hi))
            for index, field, lo, hi in map(parse_part, parts)
        ]
        if self._companions:
            from wids.core.collection.joined_fields import read_joined_parts

            return read_joined_parts(self._owners(), self._collection, asked, self._read_parts)
        return self._read_parts(asked)

    def _read_parts(self, asked: Sequence[MemberPart]) -> list[bytes]:
        """Parts of members of the base."""
        if type(self).get_shard is ShardListDataset.get_shard:
            return read_parts(self._collection, asked)
        return [read_foreign_part(self.get_shard, part) for part in asked]

    @property
    def fields(self) -> tuple[str, ...] | None:
        """The extensions of the members that samples have, or None, which is all. Assign what the argument takes."""
        return self._fields

    @fields.setter
    def fields(self, fields: FieldsArgument) -> None:
        parsed = parse_fields(fields)
        steps = name_fields([step for step in self._transformations if not isinstance(step, FieldNames)], parsed)
        part_lazily(parsed, steps)  # raises, before anything has changed
        self._fields, self._transformations[:] = parsed, steps
        self._note_work()

    @property
    def transformations(self) -> list[Transform]:
        """The transformations of samples, in turn. Assign a format name, a function, a list of these, or nothing."""
        return self._transformations

    @transformations.setter
    def transformations(self, value: Transforms) -> None:
        steps = name_fields(parse_transformations(value, **self._decoding), self.fields)
        part_lazily(self.fields, steps)  # raises, before anything has changed
        self._transformations = steps
        self._note_work()

    def add_transform(self, transform: Transforms) -> Self:
        """Append a transformation; returns the dataset.

        Args:
            transform: a format, a function of a sample, or a list of these, as ``transformations`` has them.
        """
        steps = [*self._transformations, *parse_transformations(transform, **self._decoding)]
        steps = name_fields(steps, self.fields)
        part_lazily(self.fields, steps)
        self._transformations[:] = steps
        self._note_work()
        return self

    def _with(self, columns: SampleColumns) -> Self:
        named = self.fields.names if isinstance(self.fields, Alternatives) else None
        if repeated := {name for name, _ in columns.shown}.intersection(named or ()):
            raise InputError(f"fields: {shown(min(repeated))} is a field of the samples already; give one another name")
        changed = copy.copy(self)
        changed._columns, changed._transformations = columns, list(self._transformations)  # noqa: SLF001 - of this class
        changed._note_work()  # noqa: SLF001
        return changed

    def _note_work(self) -> None:
        """Note if anything is done to samples after they are read."""
        wanted, lazy = part_lazily(self.fields, self._transformations)
        wishes = None
        if self._companions:
            from wids.core.collection.joined_fields import Wishes

            wishes = Wishes(self._owners(), wanted, lazy)
            wanted, lazy = wishes.members, wishes.lazy
            for companion in wishes.companions:
                companion.collection  # noqa: B018 - opened now: errors of it come at once, and once for all workers
        self._wanted, self._lazy, self._wishes = wanted, lazy, wishes if wishes and wishes.companions else None
        has_columns = self._columns is not None and bool(self._columns.shown)
        self._is_completing = has_columns or self._lazy is not None or self._wishes is not None
        self._is_transforming = bool(self._transformations) or self._substitutes is not None or self._is_completing

    def _owners(self) -> Owners:
        """The places of fields."""
        from wids.core.collection.joined_fields import Owners

        if self._known_owners is None or self._known_owners.companions is not self._companions:
            self._known_owners = Owners(self._companions, self._collection)
        return self._known_owners

    def _read_fields(self) -> tuple[str, ...] | None:
        """The fields that are members of the base."""
        if not self._companions or self.fields is None:
            return self.fields
        from wids.core.collection.joined_fields import Wishes

        members = Wishes(self._owners(), self.fields, None).members
        return members if isinstance(members, tuple) else None

    # --- the pool of open shards

    def stats(self) -> Stats:
        """The cache's work for this dataset, in this process and in the workers of its loaders."""
        tallies = {id(each.tally): each.tally for each in self._companions if each.tally is not None}
        return self._tally.total(tallies.values())

    def get_stats(self) -> tuple[int, int]:
        """(samples asked for, shards opened for them) in this process."""
        return self.cache.accesses, self.cache.misses

    def check_cache_misses(self) -> None:
        """Warn, once, if more than 30 % of accesses had to open a shard: the order has no locality."""
        accesses, misses = self.get_stats()
        if self._has_warned or accesses <= 100 or misses <= 0.3 * accesses:
            return
        self._has_warned = True
        worker = get_worker_info()
        if worker is None or worker.id == 0:  # eight workers would say it eight times
            self._collection.warn_of_misses(self.dataset_name)

    def close(self) -> None:
        """Close all open shards. The dataset stays usable; they open again when needed."""
        self._collection.close()
        if self._wishes is not None:
            self._wishes.close()

    def __getstate__(self) -> dict[str, Any]:
        # A worker's first download may meet a server that is just being restarted.
        counts = self._counts()
        state = {name: value for name, value in self.__dict__.items() if value is not counts.get(name, self)}
        return {**state, "_places": {}, "_answered": retrying.answered(), "_pins": schemes.pins()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        retrying.note_answered(state.pop("_answered", ()))
        schemes.note_pins(state.pop("_pins", {}))
        self._take(copy.copy(state["_collection"]))  # of a shallow copy: the shards may be other ones later
        self.__dict__.update({**state, "_collection": self._collection})

    # --- inside

    def _take(self, collection: ShardCollection) -> None:
        """Be a dataset of this collection."""
        self._collection, self.cache = collection, collection.pool
        self.__dict__.update(self._counts())

    def _counts(self) -> dict[str, Any]:
        """The attributes that follow from the collection, unless a program has set them."""
        collection = self._collection
        return {
            "lengths": collection.lengths,
            "cum_lengths": collection.cum_lengths,
            "total_length": len(collection),
        }

    def _own_columns(self) -> SampleColumns:
        """The columns, which are looked for when one is first asked for."""
        if self._columns is None:
            from wids.columns.samples import beside

            self._columns = beside(self._given_index, self._collection, cache_dir=self.cache_dir, fields=self.fields)
        if self._columns.companions is not self._companions:
            self._columns = self._columns.beside_companions(self._companions)
        return self._columns

    def _named(self, name: str) -> Self:
        """This dataset, with ``name`` as the ``__dataset__`` of its samples; they share cache and open shards."""
        renamed = copy.copy(self)
        renamed._collection = self._collection.named(name)  # noqa: SLF001 - of this class
        renamed._transformations = list(self._transformations)  # noqa: SLF001
        return renamed

    @classmethod
    def _reads_plainly(cls) -> bool:
        """True unless this is a subclass that reads samples in its own way."""
        ways = ("__getitem__", "__getitems__", "get_shard")
        return all(getattr(cls, name) is getattr(ShardListDataset, name) for name in ways)

    def _narrowed(self, names: Collection[str]) -> Self | None:
        """This dataset, whose samples have these fields and no other members; see `SamplerInterface.narrowed`."""
        fields = self.fields
        is_decoding = all(type(step) in (SampleDecoder, FieldNames) for step in self._transformations)
        if not self._reads_plainly() or not is_decoding or self._lazy is not None or self._substitutes is not None:
            return None  # a substitute would replace what else is read of its sample, or not
        if isinstance(fields, Alternatives) and fields.names is not None:
            groups = [(name, group) for name, group in zip(fields.names, fields.groups, strict=True) if name in names]
            narrow: tuple[str, ...] = Alternatives([group for _, group in groups], [name for name, _ in groups])
        else:
            wanted = {name.casefold(): name for name in names if name.startswith(".")}
            if isinstance(fields, Alternatives):
                narrow = Alternatives(
                    [group for group in fields.groups if not wanted.keys().isdisjoint(map(str.casefold, group))]
                )
            else:
                narrow = tuple(
                    name for key, name in wanted.items() if fields is None or key in {*map(str.casefold, fields)}
                )
        narrowed = copy.copy(self)
        decoders = [step for step in self._transformations if type(step) is SampleDecoder]
        narrowed._fields, narrowed._transformations = narrow, name_fields(decoders, narrow)  # noqa: SLF001 - of this class
        narrowed._note_work()  # noqa: SLF001
        return narrowed

    def _view(self, indices: Integers, step: str, samples: Any = None) -> Self:
        if not len(indices) and len(self._collection):
            logger.warning("a view without samples: %s", shorten(step))
        view = copy.copy(self)
        view._show(choose(self._collection.shards, indices), step)  # noqa: SLF001 - of this class
        if isinstance(samples, (str, os.PathLike)):
            view._lists = (*self._lists, os.path.abspath(local_path(samples)))  # noqa: SLF001 - of this class
        return view

    def _show(self, selection: Selection, step: str) -> None:
        """Have these samples of the shards alone."""
        self._places = {}
        self._steps, self._transformations = (*self._steps, step), list(self._transformations)
        self._take(self._collection.select(selection))

    def _open_companions(self, index: int) -> AbstractContextManager[list[tuple[Companion, Reader, int]]]:
        """The companions that have a sample, each with an open reader and its row. Used by `wids.serve`."""
        from wids.core.collection.joined_fields import open_companions

        return open_companions(self._companions, self._collection, index)

    def _undecoded(self) -> ShardListDataset[dict[str, Any]]:
        """A copy that returns raw bytes and never downloads a shard. Used by `wids.serve`."""
        undecoded = ShardListDataset.__new__(ShardListDataset)
        undecoded.__dict__.update(self.__dict__)
        collection = self._collection.without_downloads()
        undecoded._fields, undecoded._substitutes, undecoded._tally = None, None, _SharedTally()  # noqa: SLF001 - of this class
        undecoded._columns, undecoded._transformations = self._own_columns().unshown(), []  # noqa: SLF001
        undecoded._companions = tuple(each.without_downloads() for each in self._companions)  # noqa: SLF001
        undecoded._places = {}  # noqa: SLF001
        undecoded._take(collection)  # noqa: SLF001
        undecoded._note_work()  # noqa: SLF001
        return undecoded

    def _read_anew(self, asked: Any) -> T_co:
        """The sample of an index that does not lie in the stretch at hand, or whose shard was closed."""
        marks = asked.marks() if type(asked) is not int and isinstance(asked, MarkedIndex) else _UNMARKED
        try:
            sample = self._read(asked)
        except ShardReadError as error:
            if self._substitutes is None:
                raise
            return self._substitute(error, self._collection.plain(asked), marks)
        if marks:
            sample.update(marks)
        return self._transform(sample, marks) if self._is_transforming else sample  # type: ignore[return-value]

    def _read(self, asked: Any) -> dict[str, Any]:
        pool = self.cache
        accesses, misses = pool.accesses, pool.misses
        if type(self).get_shard is ShardListDataset.get_shard:
            sample = read_sample(self._collection, self._collection.plain(asked), self._wanted)
            if pool.misses != misses:
                self.check_cache_misses()
        else:  # a subclass's own, which may count the sample a second time, and misses in its own way
            sample = read_foreign(self.get_shard, to_int(asked), len(self), self.fields, self._wanted)
            if self._wishes is not None:
                self._wishes.check_foreign(sample, self._collection, type(self).__name__)
            pool.accesses = accesses
            self.check_cache_misses()
        return sample

    def _transform(
        self,
        sample: dict[str, Any],
        marks: Mapping[str, Any] = _UNMARKED,
        joined: Sequence[MemberFile] | None = None,
    ) -> T_co:
        if self._substitutes is not None:
            return self._substitute(sample, sample["__index__"], marks, joined)
        return self._apply(sample, joined)

    def _substitute(
        self,
        sample: dict[str, Any] | Exception,
        index: int,
        marks: Mapping[str, Any],
        joined: Sequence[MemberFile] | None = None,
    ) -> T_co:
        """A sample after the transformations, or another one in its place; an error: why it could not be read."""

        def apply(each: dict[str, Any]) -> T_co:
            return self._apply(each, joined if each is sample else None)

        return self._substitutes.finish(  # type: ignore[no-any-return,union-attr]
            sample, index, collection=self._collection, read=self._read, transform=apply, marks=marks
        )

    def _apply(self, sample: Any, joined: Sequence[MemberFile] | None = None) -> T_co:
        """A sample after the transformations.

        Args:
            sample: as it was read.
            joined: the files among the fields of companions that it has already; None: these are yet to be read.
        """
        files = self._complete(sample, joined) if self._is_completing else ()
        as_read = sample
        try:
            for transform in self._transformations:
                sample = transform(sample)
            if sample is None:
                arguments.warn_of_none(transform)
        except StopIteration as error:
            raise note_sample(RuntimeError(STOPPED), as_read) from error
        except Exception as error:
            dropped = next((file.error for file in files if file.error is not None), None)
            if dropped is not None and not isinstance(error, (WidsError, OSError)):
                raise note_sample(copied(dropped), as_read) from error
            note_sample(error, as_read)
            if sample is None:
                arguments.warn_of_none(transform, is_before=True)
            raise
        for file in files:
            if file.error is not None:
                logger.warning(
                    "%r of %s: a read failed, and a sample was made all the same (%s)", file, file.url, file.error
                )
        return sample  # type: ignore[no-any-return]

    def _complete(self, sample: Any, joined: Sequence[MemberFile] | None) -> list[MemberFile]:
        """Add all that is not read with a sample, unless ``joined`` says that companions were; return its files."""
        if joined is None:
            joined = () if self._wishes is None else self._wishes.add_to(sample, self._collection)
        if self._columns is not None and self._columns.shown:
            self._columns.add_to(sample, self._collection)
        return [*joined, *(() if self._lazy is None else self._open_files(sample, self._lazy))]

    def _open_files(self, sample: Any, lazy: Alternatives) -> Sequence[MemberFile]:
        """Open the lazy members of a sample."""
        from wids.core.collection.member_file import open_lazily

        is_foreign = type(self).get_shard is not ShardListDataset.get_shard
        return open_lazily(self.cache, sample, lazy, is_foreign=is_foreign)


class _NotInitialized:
    """Stands for the parts of a dataset until ``__init__`` makes them: a subclass may never call it.

    A ``__getattr__`` of the dataset could say so too, and would make every read of an attribute slower.
    """

    _kind: str

    def __init__(self, kind: str) -> None:
        self.__dict__["_kind"] = kind

    def _fail(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{self._kind} is a ShardListDataset that was never initialized: its __init__ has to call "
            "super().__init__(shards, ...) before anything else"
        )

    __getattr__ = __setattr__ = __iter__ = __len__ = __index__ = __neg__ = __bool__ = __reduce__ = _fail


# Samples that a notebook shows, and shards that are looked for on the disk for them.
_PREVIEWS, _PREVIEW_SHARDS = 8, 1000
# The attributes that every use of a dataset touches first.
_PARTS = (
    *("_collection", "lengths", "cum_lengths", "total_length", "_transformations", "_decoding", "_tally", "cache"),
    *("_columns", "_steps"),
)
