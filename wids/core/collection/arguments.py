"""The arguments of a dataset: checks, defaults, the log line about them, advice in errors. Without torch.

What belongs together is checked together, before anything is read or written: where the cache is and how large, how
bytes are had, how members become samples, the options of an index, the handling of errors. A value of the wrong kind is
a ValueError or TypeError, one that means nothing beside another one an InputError. What each parameter is for stands in
one place, the docstring of `wids.ShardListDataset`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from wids.core.collection import error_log as error_logs
from wids.core.collection.shard_collection import ShardCollection, lists_shards, load_shards
from wids.core.files.own_folder import default_cache_dir
from wids.core.index.shardlist import grouping_keys
from wids.core.index.view_file import is_view
from wids.core.order.validation import check_flag, parse_int
from wids.core.place import Place, cache_directory
from wids.core.readers.provider import AutoProvider, parse_access
from wids.core.tables.fields import parse_fields
from wids.core.tables.table import GroupOptions, check_grouping, find_groupings
from wids.core.transport.session import Session
from wids.errors import InputError, a_kind, without_secrets
from wids.events import fallback, format_size, logger, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.core.collection.shard_collection import OnCountMismatch, Shards
    from wids.core.collection.substitutes import Substitutes
    from wids.core.index.shardlist import ShardList
    from wids.core.readers.access import AccessMode
    from wids.core.tables.fields import FieldsArgument
    from wids.core.tables.table import Group, KeyRule, MemberTable
    from wids.events import Hook

MAX_ERRORS = 0.001


class CacheOptions(TypedDict):
    """Options of the cache on this machine: parameters of `AutoProvider`."""

    cache_dir: str | None
    localname: Callable[[str], str] | None
    cache_size: int | None
    keep: bool
    cache_local: bool


class ReadOptions(TypedDict):
    """Options of reading the bytes of samples: parameters of `AutoProvider`."""

    access: AccessMode
    early_reads: bool
    use_mmap: bool


class IndexOptions(TypedDict):
    """Options of reading an index: parameters of `wids.core.collection.shard_collection.load_shards`."""

    base: str | os.PathLike[str] | None
    options: dict[str, Any] | None
    session: Session
    allow_local: bool


class DecodeOptions(TypedDict):
    """Options of decoding members: parameters of `wids.core.codecs.decode.SampleDecoder`."""

    allow_pickle: bool
    max_inflate_bytes: int


class OpeningOptions(NamedTuple):
    """The arguments of a dataset that say how shards are opened.

    Attributes:
        cache: see `parse_cache`.
        reading: see `parse_reading`.
        indexing: see `parse_index`.
        hooks: called with every event.
        capacity: shards kept open.
        on_count_mismatch: see `ShardCollection`.
        is_prefetching: see `AutoProvider`.
    """

    cache: CacheOptions
    reading: ReadOptions
    indexing: IndexOptions
    hooks: Sequence[Hook]
    capacity: int | None
    on_count_mismatch: OnCountMismatch
    is_prefetching: Callable[[], bool]

    def load(self, shards: Shards) -> tuple[str | None, ShardList, Session]:
        """`load_shards` of the argument of a program."""
        return load_shards(shards, **self.indexing, cache_dir=self.cache["cache_dir"])

    def collect(
        self, shards: ShardList, session: Session, *, rule: KeyRule | None = None, group: Group | None = None
    ) -> ShardCollection:
        """A collection of shards, some of which may have no count.

        Args:
            shards: the shards.
            session: opens them.
            rule: see `wids.core.tables.table.build_table`; None: as their index says.
            group: likewise.
        """
        provider = AutoProvider(
            **self.cache,
            **self.reading,
            **shards.choose_grouping(rule=rule, group=group),
            session=session.with_hooks(self.hooks),
            is_prefetching=self.is_prefetching,
            checks_counts=self.on_count_mismatch == "error",
        )
        return ShardCollection(
            shards,
            provider,
            capacity=self.capacity,
            hooks=self.hooks,
            on_count_mismatch=self.on_count_mismatch,
            advice=advise,
            hints_at_merged=rule is None and "key_rule" not in shards.header,
        )

    def open(self, shards: Any) -> ShardCollection:
        """The collection of another index, with its counts known.

        Args:
            shards: as the first argument of a dataset.

        Raises:
            SpecError: it is malformed. FetchError: it cannot be read.
        """
        index = {**self.indexing, "base": None, "options": None}
        _, listed, session = load_shards(shards, **index, cache_dir=self.cache["cache_dir"])  # type: ignore[arg-type]
        collection = self.collect(listed, session)
        listed = collection.counted(listed)
        collection.adopt(listed)
        collection.index_url = index_url_of(shards, None, None, listed)
        return collection


def parse_cache(*, cache_dir: Any, localname: Any, cache_size: Any, keep: bool, cache_local: bool) -> CacheOptions:
    """The directory of shards, the bytes of them that stay, and which; see `wids.ShardListDataset`.

    Raises:
        TypeError, ValueError: one does not fit.
    """
    _check_flags(keep=keep, cache_local=cache_local)
    if localname is not None and not callable(localname):
        raise TypeError(f"localname is {localname!r:.200}; it must be a function URL -> path; cache_dir is a directory")
    return CacheOptions(
        cache_dir=_choose_cache_dir(cache_dir, is_needed=localname is None),
        localname=localname,
        cache_size=_parse_cache_size(cache_size),
        keep=keep,
        cache_local=cache_local,
    )


def parse_reading(
    cache: CacheOptions, *, access: Any, early_reads: bool, use_mmap: bool, prefetch: Any, lru_size: Any
) -> tuple[ReadOptions, bool | int]:
    """Options of reading bytes, and of downloading ahead: yes, no, or the most bytes; see `wids.ShardListDataset`.

    Raises:
        ValueError: one does not fit. InputError: it means nothing with this ``access``, nor does one of ``cache``.
    """
    _check_flags(early_reads=early_reads, use_mmap=use_mmap)
    if lru_size is not None:
        parse_int("lru_size", lru_size, minimum=0)
    options = ReadOptions(access=parse_access(access), early_reads=early_reads, use_mmap=use_mmap)
    unused = "cache_size" if cache["cache_size"] is not None else "cache_local" if cache["cache_local"] else None
    if access == "range" and unused is not None:
        raise InputError(
            f"{unused} is for shards that go into the cache, and with access='range' none does; leave it out, or "
            "choose access='auto' or 'fetch'"
        )
    return options, _parse_prefetch(prefetch)


def parse_samples(*, key_rule: Any, group: Any, fields: FieldsArgument) -> tuple[str, ...] | None:
    """Options of the members that are read, and of making samples of them; see `wids.ShardListDataset`.

    Raises:
        TypeError, ValueError, InputError: one does not fit.
    """
    check_grouping(key_rule, group)
    return parse_fields(fields)


def parse_decoding(*, allow_pickle: bool, max_inflate_bytes: Any) -> DecodeOptions:
    """Options of the transformations that decode; see `wids.ShardListDataset`.

    Raises:
        ValueError: one does not fit.
    """
    _check_flags(allow_pickle=allow_pickle)
    if not _is_size(max_inflate_bytes):
        raise ValueError(f"max_inflate_bytes is {max_inflate_bytes!r:.200}; it must be a number of bytes")
    return DecodeOptions(allow_pickle=allow_pickle, max_inflate_bytes=int(max_inflate_bytes))


def parse_index(*, base: Any, options: Any, storage_options: Any, allow_local: bool, allow_pipe: bool) -> IndexOptions:
    """The arguments about an index, and about the servers and programs behind it; see `wids.ShardListDataset`.

    Raises:
        TypeError, ValueError: something is of the wrong kind.
    """
    _check_flags(allow_local=allow_local, allow_pipe=allow_pipe)
    if base is not None and not isinstance(base, (str, os.PathLike)):
        raise TypeError(f"base is {base!r:.200}; it must be a URL or a path")
    dicts = {"options": (options, "keys of an index"), "storage_options": (storage_options, "as fsspec takes it")}
    for name, (value, words) in dicts.items():
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{name} is {a_kind(value)}; it must be a dict, {words}")
    session = Session(storage_options, allow_pipe=allow_pipe)
    return IndexOptions(base=base, options=options, session=session, allow_local=allow_local)


def parse_errors(
    *,
    on_count_mismatch: OnCountMismatch,
    on_error: Literal["raise", "substitute"],
    max_errors: float,
    error_log: str | os.PathLike[str] | None,
    hooks: Sequence[Hook],
    has_failed: Callable[[], bool],
) -> Substitutes | None:
    """The rule for samples that fail; None: their errors are raised. See `wids.ShardListDataset`.

    Raises:
        ValueError: one does not fit. InputError: it has no meaning, for errors are raised.
        OutputError: the log cannot be written.
    """
    if on_count_mismatch not in ("error", "warn"):
        raise ValueError(f"on_count_mismatch is {on_count_mismatch!r}; it must be 'error' or 'warn'")
    if on_error not in ("raise", "substitute"):
        raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'substitute'")
    if on_error == "raise":
        if max_errors != MAX_ERRORS:
            raise InputError("max_errors needs on_error='substitute'; otherwise the first error is raised")
        if error_log is not None:
            raise InputError("error_log needs on_error='substitute'; raised errors are not logged")
        return None
    if not isinstance(max_errors, numbers.Real) or not 0 <= max_errors <= 1:
        raise ValueError(f"max_errors is {max_errors!r}; it is a share of the samples, from 0 to 1")
    from wids.core.collection.substitutes import Substitutes

    path = None if error_log is None else error_logs.check(os.fspath(error_log), "a log of errors")
    return Substitutes(max_errors=float(max_errors), log=path, hooks=hooks, has_failed=has_failed)


def parse_hooks(hooks: Any) -> tuple[Hook, ...]:
    """The hooks, each of which can be called; an error that one raises later is no error of reading.

    Raises:
        TypeError: one cannot, or they are not several.
    """
    checked = tuple(hooks) if isinstance(hooks, Iterable) else (None,)
    if not all(map(callable, checked)):
        raise TypeError(f"hooks is {hooks!r:.200}; it must be a list of functions, each of which takes an event")
    return checked


def _check_flags(**flags: Any) -> None:
    """Check that parameters which are true or false are no texts: ``allow_pickle="no"`` would allow it."""
    for name, value in flags.items():
        check_flag(name, value)


def _choose_cache_dir(cache_dir: Any, *, is_needed: bool) -> str | None:
    """The directory of remote shards; None: ``localname`` gives it."""
    if cache_dir is None:
        return cache_directory(default_cache_dir()) if is_needed else None
    if not isinstance(cache_dir, (str, os.PathLike)):
        raise TypeError(f"cache_dir is {cache_dir!r:.200}; it must be the path of a directory")
    return cache_directory(cache_dir)


def _parse_cache_size(size: Any) -> int | None:
    if size is None:
        return None
    if isinstance(size, str):
        return _parse_text(size, "cache_size")
    if not _is_size(size):
        raise ValueError(f"cache_size is {size!r:.200}; it must be a number of bytes, a text like '200GB', or None")
    return int(size)


def _is_size(size: Any) -> bool:
    """True for a number that bytes can have; not for True."""
    try:
        return not isinstance(size, (bytes, bool)) and bool(0 <= size < math.inf)
    except TypeError:
        return False


def _parse_prefetch(ahead: Any) -> bool | int:
    if isinstance(ahead, bool):
        return ahead
    if isinstance(ahead, str):
        return _parse_text(ahead, "prefetch")
    if not hasattr(ahead, "__index__") or operator.index(ahead) < 0:
        raise ValueError(
            f"prefetch is {ahead!r}; it must be True, False, or a maximal number of bytes to download ahead, also as a "
            "text like '2GB'"
        )
    return operator.index(ahead)


def _parse_text(size: str, name: str) -> int:
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


@functools.cache  # once for each in a process
def warn_of_none(transform: Callable[[Any], Any], *, is_before: bool = False) -> None:
    """Log that a transformation returned None; ``is_before``: the one before this one did."""
    name = getattr(transform, "__qualname__", type(transform).__name__)
    logger.warning(
        "the transformation %s%s returned None: it has to return the sample, also one that it changes in place; the "
        "default collate of torch refuses None, and dataset.exclude() leaves samples out",
        "before " if is_before else "",
        name,
    )


def index_url_of(shards: Any, base: Any, options: Any, shard_list: ShardList) -> str | None:
    """The URL or path of the index that lists the shards as they are; None: none exists."""
    if is_view(shard_list) and base is None and set(options or ()) <= {"view_of"}:
        return shard_list.header.get("view_of")
    if not isinstance(shards, (str, os.PathLike)) or base is not None or options:
        return None
    url = os.fspath(shards)
    return None if lists_shards(url) else str(Place(url).absolute)


def choose_name(name: str | None, shards: Any, shard_list: ShardList) -> str:
    """The name of a dataset: the argument, the index's, else a digest of the index's path or of the list of shards."""
    text = str(shards)
    if not isinstance(shards, (str, os.PathLike)):  # what an open file or a generator says of itself is its address
        text = "\n".join(f"{url} {count}" for url, count in zip(shard_list.urls, shard_list.nsamples, strict=True))
    return name or shard_list.header.get("name") or digest_name(text)


def digest_name(input_string: str) -> str:
    """16 letters that differ where the text does."""
    digest = hashlib.sha256(input_string.encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest)[:16].decode()


def announce(shards: Any, shard_list: ShardList, *, base: str | None, name: str, cache_dir: str | None) -> None:
    """Log the contents of a dataset; on stderr if ``$WIDS_VERBOSE`` asks for it."""
    if os.environ.get("WIDS_VERBOSE", "0") not in ("", "0"):
        _log_to_stderr()
    if logger.isEnabledFor(logging.INFO):
        size = sum(size for size in shard_list.filesizes if size > 0)
        words = [
            f"{len(shard_list):,} shards",
            f"{sum(shard_list.lengths):,} samples",
            *([format_size(size)] if size else []),
        ]
        more = {"name": name, "base": base, "cache": cache_dir}
        words += [f"{what} {value}" for what, value in more.items() if value]
        # In this order: half a password is not seen to be one.
        logger.info("%s: %s", without_secrets(str(shards))[:50], ", ".join(words))


def _log_to_stderr() -> None:
    """Let the ``wids`` logger speak without the program having set up logging."""
    fallback.setLevel(logging.INFO)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)


def advise(collection: ShardCollection, table: MemberTable, expected: int) -> str:
    """The reaction to a shard whose sample count differs from the index."""
    if collection.on_count_mismatch == "warn":
        return ". There is none to repeat: leave the shard out (dataset.shards = [...])"
    return (
        f"{_other_grouping(collection.provider, table, expected)}. Write the index again (wids index create"
        f"{_flags(collection)}); if it is not yours to write, on_count_mismatch='warn' repeats such a shard's samples, "
        "or leaves out its last ones"
    )


def _flags(collection: ShardCollection) -> str:
    """The options of `wids index create` by which it counts samples as this collection does."""
    files = collection.provider.files
    if callable(files.rule):
        return "; it cannot keep a function as key_rule: give (url, nsamples) pairs of your own count"
    keys = grouping_keys(GroupOptions(rule=files.rule, group=files.group))
    return "".join(f" --{key.replace('_', '-')} {value}" for key, value in keys.items())


def _other_grouping(provider: AutoProvider, table: MemberTable, nsamples: int) -> str:
    """The grouping of members with which they would be so many samples, for a message; ``""`` if none exists."""
    own_rule, own_group = provider.files.rule, provider.files.group
    if callable(own_rule):  # it may give keys and extensions that are no parts of a name
        return ""
    for rule, group in find_groupings(table, nsamples):
        wanted = {"key_rule": (rule, own_rule), "group": (group, own_group)}
        options = [f"{name}={value!r}" for name, (value, used) in wanted.items() if value != used]
        return f"; with {', '.join(options)} it would be as many"
    return ""
