"""Joining collections: which sample of a companion belongs to which of a base. Without torch."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.collection.companions import (
    Companion,
    OpenEntry,
    check_listed,
    has_row,
    name_of_index,
    plain_rows,
    share_rows,
)
from wids.core.collection.key_join import find_rows, name_keys
from wids.core.collection.shard_collection import load_shards
from wids.core.files import atomic, system
from wids.core.files.shared_arrays import ArrayPlace, FilePlace, SharedArrays, identify
from wids.core.files.shared_files import SharedFiles
from wids.core.index import companion_file
from wids.core.index.fingerprint import fingerprint
from wids.core.index.paths import absolute
from wids.core.index.view_file import KEY
from wids.core.place import Place
from wids.core.tables.fields import Alternatives, parse_fields
from wids.core.transport.download import download_to, read_bytes
from wids.errors import InputError, SpecError, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from wids.core.collection.arguments import OpeningOptions
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.companion_file import CompanionEntry
    from wids.core.index.shardlist import ShardList
    from wids.core.transport.session import Session

_SHOWN = 5
_MISSING = {"skip": "are left out", "none": "have none of its fields"}
_KEPT_AS = 1  # raised where the rows of a join by key would be others


class JoinRequest(NamedTuple):
    """The checked arguments of a join; see `wids.ShardListDataset.with_fields`.

    Attributes:
        on: the way in which samples are found.
        prefix: without dots at its ends.
        missing: of samples that the other lacks.
        fields: the extensions that are fields; None: all.
    """

    on: companion_file.On
    prefix: str
    missing: companion_file.Missing
    fields: tuple[str, ...] | None


def parse_request(*, on: Any, prefix: Any, missing: Any, fields: Any) -> JoinRequest:
    """The arguments of a join.

    Raises:
        InputError: one of them does not fit. TypeError: one is of another type.
    """
    if on not in ("row", "key"):
        raise InputError(f"on is {shown(on)}; it is 'row' or 'key'", parameter="on")
    if missing not in ("error", "skip", "none"):
        raise InputError(f"missing is {shown(missing)}; it is 'error', 'skip' or 'none'", parameter="missing")
    if not isinstance(prefix, str) or not companion_file.PREFIX.fullmatch(prefix):
        raise InputError(
            f"prefix is {shown(prefix)}; it is letters, digits, -, _ and dots, like 'clip'", parameter="prefix"
        )
    parsed = parse_fields(fields)
    if isinstance(parsed, Alternatives):
        raise InputError("fields has alternatives, names or lazy members; give extensions alone", parameter="fields")
    return JoinRequest(on, prefix.strip("."), missing, parsed)


def join(
    base: ShardCollection,
    other: ShardCollection,
    name: str,
    inner: Sequence[Companion],
    more: dict[str, Any],
    request: JoinRequest,
) -> tuple[list[Companion], npt.NDArray[np.int64] | None]:
    """(the other as a companion, with its own ones; the indices of the base that it has, or None: no matter).

    Another join of the same shards gives its companions alone.

    Args:
        base: the samples.
        other: those that have further fields.
        name: of it.
        inner: its companions.
        more: further arguments of `Companion`.
        request: the way.

    Raises:
        InputError: it has another number of samples, repeated keys, or lacks some. WidsError: it cannot be read.
    """
    if inner and request.fields is None and _is_of_same_shards(base, other):
        outer = Companion(name=name, prefix=request.prefix, open_shards=_Opened(other))
        return [each.placed_in(outer) for each in inner], None
    left, other = None, other.without_repeats()
    if request.on == "row":
        rows = _pair(base, other, name)
    else:
        rows = keep_joined(base, other, name)
        left = _look_for_missing(base, other, has_row(rows), name, request.missing)
    stated = more.pop("fields", None)
    companion = Companion(
        name=name,
        prefix=request.prefix,
        fields=stated if request.fields is None else request.fields,
        on=request.on,
        missing=request.missing,
        rows=rows,
        open_shards=_Opened(other.unselected()),
        **more,
    )
    return [companion, *(each.placed_in(companion) for each in inner)], left


def _is_of_same_shards(base: ShardCollection, other: ShardCollection) -> bool:
    shards = base.shards, other.shards
    if fingerprint(shards[0]) != fingerprint(shards[1]):
        return False
    return all(absolute(a) == absolute(b) for a, b in zip(*(each.urls for each in shards), strict=True))


class _Opened:
    """Gives a collection that is there."""

    def __init__(self, collection: ShardCollection) -> None:
        self._collection = collection

    def __call__(self) -> ShardCollection:
        return self._collection


def _pair(base: ShardCollection, other: ShardCollection, name: str) -> SharedArrays | None:
    """The rows of a companion by row; None: sample i has sample i.

    Raises:
        InputError: it has another number of samples.
    """
    if len(base) != len(other):
        way = ""
        if len(other) == base.whole_length:
            way = "; it has as many as the whole dataset: join before you make the view"
        raise InputError(
            f"{name} has {len(other):,} samples, and the dataset {len(base):,}: by row, each sample has one{way}. By "
            'key: on="key"'
        )
    chosen, there = base.whole_indices(), other.whole_indices()
    if chosen is None and there is None:
        return None
    there = np.arange(len(other)) if there is None else there
    rows = there
    if chosen is not None:
        rows = np.full(base.whole_length, -1, np.int64)
        rows[chosen] = there
    return share_rows(rows, other.whole_length)


def _look_for_missing(
    base: ShardCollection,
    other: ShardCollection,
    has: npt.NDArray[np.bool_],
    name: str,
    missing: companion_file.Missing,
) -> npt.NDArray[np.int64] | None:
    """The indices of the base's samples that a companion has; None: all, or it does not matter.

    Raises:
        InputError: some are missing, and that is an error, or all are.
    """
    chosen = base.whole_indices()
    has = has if chosen is None else has[chosen]
    count = len(has) - int(np.count_nonzero(has))
    if not count:
        return None
    some = name_keys(base, np.flatnonzero(~has)[:_SHOWN])
    words = f"{count:,} of {len(has):,} samples have no sample with their key in {name}, such as {some}"
    if count == len(has):
        there = f"; its keys are like {name_keys(other, np.arange(min(len(other), 1)))}" if len(other) else ""
        raise InputError(f"{words}{there}. If sample i belongs to sample i, join by row")
    if missing == "error":
        raise InputError(f'{words}; missing="skip" leaves them out, missing="none" leaves them without its fields')
    logger.warning("%s: they %s", words, _MISSING[missing])
    return np.flatnonzero(has) if missing == "skip" else None


def check_apart(companions: Sequence[Companion]) -> None:
    """Check that no two companions have a field of one name, as far as they say which they have.

    Raises:
        InputError: two have.
    """
    names: dict[str, str] = {}
    for companion in companions:
        for extension in companion.fields or ():
            name = companion.name_of(extension)
            before = names.setdefault(name.casefold(), companion.name)
            if before is not companion.name:
                raise InputError(
                    f"{companion.name} and {before} both have {shown(name)}; give one of them a prefix "
                    '(with_fields(..., prefix="more"))'
                )


def open_listed(
    base: ShardCollection,
    options: OpeningOptions,
    look_ahead: Callable[[ShardCollection], object] | None,
    where: str,
) -> tuple[Companion, ...]:
    """The companions that the index of a collection names, of which nothing is read yet but rows.

    Args:
        base: the collection.
        options: open them.
        look_ahead: see `Companion`.
        where: the beginning of messages.

    Raises:
        SpecError: they are malformed, or of other shards. FetchError: rows cannot be read.
    """
    companions, samples, session = [], base.whole_length, options.indexing["session"]
    for entry in companion_file.parse_companions(base.shards.header, None):
        _check_base(base.shards, entry, where)
        companion = Companion(
            name=name_of_index(entry.index),
            prefix=entry.prefix.strip("."),
            fields=entry.fields,
            known=entry.known_fields,
            on=entry.on,
            missing=entry.missing,
            rows=load_joined(entry, samples, where, session=session, cache_dir=options.cache["cache_dir"]),
            open_shards=OpenEntry(options, entry, samples, where),
            look_ahead=look_ahead,
        )
        companions.append(companion)
    check_apart(companions)
    return tuple(companions)


def _check_base(shards: ShardList, entry: CompanionEntry, where: str) -> None:
    """Check that a companion was joined to these shards.

    Raises:
        SpecError: it was joined to others.
    """
    if entry.of not in (None, fingerprint(shards)):
        raise SpecError(
            f"{where}the shards have changed since {entry.index} was joined to them; join again (wids index join)",
            path=KEY,
        )


class ListedShards(NamedTuple):
    """The shards of a companion that an index names.

    Attributes:
        entry: in the index.
        shards: all of its shards.
        needed: the numbers of those that have samples of the base, ascending.
        session: opens them.
        rows: for each sample of the base's whole the companion's; None: sample i has sample i.
    """

    entry: CompanionEntry
    shards: ShardList
    needed: Sequence[int]
    session: Session
    rows: SharedArrays | None


def bytes_beside(companion: ListedShards, shards: ShardList) -> npt.NDArray[np.float64]:
    """The bytes of a companion that are read with each shard of a base, about: (shards,).

    Args:
        companion: of the base; shards whose size its index does not say count as nothing.
        shards: of the base.
    """
    theirs = companion.shards
    counts, sizes = np.asarray(theirs.nsamples, np.int64), np.maximum(np.asarray(theirs.filesizes, np.int64), 0)
    sums = np.concatenate([[0.0], np.cumsum(np.repeat(sizes / np.maximum(counts, 1), counts))])
    each = np.diff(sums)
    if companion.rows is not None:
        rows = plain_rows(companion.rows)
        each = np.where(rows < 0, 0.0, each[np.maximum(rows, 0)])
    ends = np.asarray(shards.whole_ends(), np.int64)
    whole = np.concatenate([[0.0], np.cumsum(each)])
    return np.diff(whole[np.concatenate([[0], ends])])


def list_companions(
    shards: ShardList, *, session: Session, cache_dir: str | None = None, where: str = ""
) -> list[ListedShards]:
    """The companions that an index names, for jobs on shards; none is opened.

    Args:
        shards: of the index, or of a view.
        session: opens URLs.
        cache_dir: see `load_joined`.
        where: the beginning of messages.

    Raises:
        SpecError: they are malformed, or of others. FetchError: they cannot be read.
    """
    listed, samples = [], sum(shards.nsamples) if shards.header.get(KEY) else 0
    for entry in companion_file.parse_companions(shards.header, None):
        _check_base(shards, entry, where)
        _, theirs, narrowed = load_shards(entry.index, session=entry.session(session), cache_dir=cache_dir)
        check_listed(entry, theirs, samples, where)
        rows = load_joined(entry, samples, where, session=session, cache_dir=cache_dir)
        needed: Sequence[int] = range(len(theirs))
        if shards.selection is not None or rows is not None:
            chosen = None if shards.selection is None else shards.selection.whole_indices(shards.nsamples)
            there = chosen if rows is None else plain_rows(rows) if chosen is None else plain_rows(rows)[chosen]
            there = np.zeros(0, np.int64) if there is None else there[there >= 0]
            needed = np.unique(np.searchsorted(np.asarray(theirs.whole_ends()), there, side="right")).tolist()
        listed.append(ListedShards(entry, theirs, needed, narrowed, rows))
    return listed


def entries_of(
    companions: Sequence[Companion], base: ShardCollection, write: Callable[[str], str]
) -> list[tuple[CompanionEntry, npt.NDArray[Any] | None]]:
    """The companions as an index names them, each with the rows that go beside it."""
    return [
        (companion.entry(base, write), None if companion.rows is None else companion.rows.arrays[0])
        for companion in companions
    ]


# --- rows


def load_joined(
    entry: CompanionEntry, samples: int, where: str, *, session: Session, cache_dir: str | None
) -> SharedArrays | None:
    """The rows of a companion that an index names; None: sample i has sample i.

    Args:
        entry: in the index.
        samples: number of samples of the base's shards.
        where: the beginning of messages.
        session: of the program; opens URLs.
        cache_dir: directory for a copy of a remote file; None: in memory.

    Raises:
        SpecError: they are damaged, or of others. FetchError: they cannot be read.
    """
    if entry.rows is None:
        return None
    url, session = entry.rows, entry.session(session)
    kind: dict[str, Any] = {
        "samples": samples,
        "nsamples": entry.nsamples,
        "file_url": f"{where}{url}",
        "checksum": entry.rows_checksum,
    }
    if (place := Place(url)).is_local:
        try:
            return _map_rows(place.path, *atomic.map_file(place.path), **kind)
        except OSError as error:
            raise SpecError(f"{where}{url} cannot be read ({error})", path=KEY) from error
    most = companion_file.max_joined_bytes(samples)
    if cache_dir is not None and entry.rows_checksum:
        key = hashlib.blake2b(f"{url}\0{entry.rows_checksum}\0{samples}".encode(errors="surrogatepass"), digest_size=32)

        def download(path: str, _: int) -> None:
            download_to(
                url,
                path,
                check=lambda: _check_rows(path, **kind),
                max_bytes=most,
                session=session,
            )

        files = SharedFiles(cache_dir, companion_file.SUFFIX)
        rows = files.get(key.hexdigest(), download, lambda file: _map_rows(*file, **kind))
        if rows is not None:
            return rows
    data = read_bytes(url, session=session, max_bytes=most)
    return SharedArrays([companion_file.unpack_joined(data, **kind)[0]])


def _check_rows(path: str, **kind: Any) -> None:
    companion_file.unpack_joined(atomic.map_file(path)[0], **kind)


def _map_rows(path: str, data: memoryview, status: Any, **kind: Any) -> SharedArrays:
    rows, offset = companion_file.unpack_joined(data, **kind)
    place = FilePlace(path, identify(status), (ArrayPlace(offset, len(rows), rows.dtype.str),))
    return SharedArrays([rows], place=place)


def keep_joined(base: ShardCollection, other: ShardCollection, name: str) -> SharedArrays:
    """For each sample of a base's whole that of ``other`` with its key, by a file that this machine keeps.

    Args:
        base: the samples, or a view: the others then have none.
        other: likewise.
        name: of it, in errors.

    Raises:
        InputError: several samples of ``other`` have one key. WidsError: a shard cannot be read.
    """
    compute = partial(find_rows, base, other, name=name)
    cache_dir = base.provider.cache.placement.cache_dir
    # Without checksums nothing says whether these are still the ones: shards of other keys may be as large.
    is_known = all(
        {"crc32", "md5"} & each.contents.keys() and not callable(each.provider.files.rule) for each in (base, other)
    )
    if cache_dir is None or not is_known:
        return SharedArrays([compute()])
    parts = [
        repr(
            (
                _KEPT_AS,
                each.fingerprint,
                sorted(each.contents.items()),
                repr(each.provider.files.rule),
                each.provider.files.group,
            )
        )
        for each in (base, other)
    ]
    key = hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=32).hexdigest()

    def make(_: str, fd: int) -> None:
        system.write_parts(fd, companion_file.pack_joined(compute()))

    kind: dict[str, Any] = {"samples": base.whole_length, "nsamples": other.whole_length, "file_url": name}
    files = SharedFiles(cache_dir, companion_file.SUFFIX)
    rows = files.get(key, make, lambda file: _map_rows(*file, **kind))
    return SharedArrays([compute()]) if rows is None else rows
