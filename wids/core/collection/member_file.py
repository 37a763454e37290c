"""A member as a file: decoders seek in it, and only the bytes that they ask for are read. Without torch.

Each read pins the shard's reader, so nothing is held between reads: the shard may be evicted, and is opened again.
Bytes of a remote shard are kept in memory, up to 8 MiB a file. If a decoder reads on, more is read than it asks for, by
a fifth of all that it has asked for so far (at least 128 KiB). Once the shard is on the disk, the file is read there.
"""

from __future__ import annotations

import contextlib
import io
import operator
import os
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from wids.core.order.validation import suggest_names
from wids.core.readers.base import RowPart
from wids.core.readers.pool import OpenShards, find_pool
from wids.core.tables.fields import LazyMembers
from wids.errors import ChangedShardError, ClosedReaderError, InputError, WidsError, a_kind, copied, printable, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.readers.base import Reader, Sample
    from wids.core.readers.provider import ShardProvider
    from wids.core.shard import Shard
    from wids.core.tables.fields import Alternatives
    from wids.core.tables.table import MemberTable


class MemberLimits(NamedTuple):
    """The sizes of reads; the default is in force, and tests put another in its place.

    Attributes:
        whole_bytes: a remote member that is no longer is read at once: another request takes longer than its bytes.
        least_bytes: a shorter read of a decoder reads so much.
        ahead_bytes: a decoder that reads on has at least so much read ahead, in all.
        ahead_share: or this share of all that it asked for.
        kept_bytes: the most that one file keeps in memory.
    """

    whole_bytes: int = 512 << 10
    least_bytes: int = 16 << 10
    ahead_bytes: int = 128 << 10
    ahead_share: float = 0.2
    kept_bytes: int = 8 << 20


LIMITS = MemberLimits()


@suggest_names
def lazy(extensions: str | Sequence[str]) -> LazyMembers:
    """Have members opened as a `wids.MemberFile`, and not read: a decoder then reads the parts that it needs.

    In ``fields`` it stands where the extensions would: ``fields={"video": wids.lazy("mp4;webm"), "label": "cls"}``.
    Among ``transformations`` it stands for members with any of these extensions, beside all others, which are read:
    ``dataset.add_transform(wids.lazy(".mp4"))``. It stands for all alternatives of a field that has such an extension,
    and for none inside a function that calls it. Decoders by extension leave a `wids.MemberFile` as it is.

    Args:
        extensions: one (``".mp4"``), or several that are joined by ";" or in a sequence.

    Raises:
        TypeError: one of them is no text. InputError: one is empty, or there is none.

    Example:
        >>> dataset = wids.ShardListDataset("train.json", fields={"text": wids.lazy("txt"), "label": "cls"})
        >>> sample = dataset[5]
        >>> sample["text"], sample["label"]
        (<wids.MemberFile 0005.txt of 6 bytes>, 2)
        >>> sample["text"].seek(2), sample["text"].read(3)
        (2, b'xt ')
    """
    return LazyMembers(extensions)


class _Place(NamedTuple):
    """A member of a shard, as it was when it was opened.

    Attributes:
        pool: opens the shard.
        shard: the shard.
        row: of the sample.
        key: of the sample.
        extension: of the member, as the table has it.
        offset: of its data in the shard, in bytes.
        size: of its data, in bytes.
    """

    pool: OpenShards
    shard: Shard
    row: int
    key: str
    extension: str
    offset: int
    size: int


class MemberFile(io.RawIOBase):
    """One member of one sample as a binary file that is read in parts; `wids.lazy` has a dataset open them.

    Any decoder that takes a file object reads it: ``seek``, ``tell``, ``read`` and ``readinto`` are those of
    `io.RawIOBase`; all bytes that were asked for are returned, fewer only at the end. Reads of less than 16 KiB are
    read as 16 KiB and kept, as are all of a remote shard, up to 8 MiB; there a member of at most 512 KiB is read at
    once.

    Nothing is held between reads, so closing is optional: the cache may evict the shard, which is then opened again. A
    copy, a pickle and a forked process have their own position. Threads use one each (``copy.copy(file)``).

    A read that fails raises, and so do all later ones: decoders that drop errors of files must not go on behind a gap.
    A copy reads again. Where the transformations of a dataset fail for it, the error is the one of the read.

    Attributes:
        error: of the read that failed; None: none has.
        name: key and extension, as ``"film/0017.mp4"``.
        size: bytes of the member.
        url: resolved URL of its shard.

    Args:
        place: the member, as a dataset has it; `wids.lazy` has datasets make these.
        position: of the first read, in bytes.
        version: of the bytes that were read before; ``""``: not known.

    Raises:
        ChangedShardError: from reads: the shard was replaced by one with other bytes, or with the member elsewhere.
        FetchError, CacheError, ShardError: from reads: see ``dataset[i]``.

    Example:
        >>> dataset = wids.ShardListDataset("train.json", transformations=wids.lazy(".txt"))
        >>> with dataset[5][".txt"] as file:
        ...     file.size, file.read(), file.tell()
        (6, b'text 5', 6)
    """

    error: Exception | None = None
    name: str
    size: int
    url: str

    @suggest_names
    def __init__(self, place: _Place, *, position: int = 0, version: str = "") -> None:
        super().__init__()
        if not isinstance(place, _Place):
            self.close()
            raise TypeError(f"MemberFile of {a_kind(place)}: datasets make these, of the members that wids.lazy names")
        self._place, self._position, self._version = place, position, version
        self.name, self.size, self.url = place.key + place.extension, place.size, place.shard.url
        self._table: MemberTable | None = None  # in which the member was found at its place
        self._pieces = _Pieces()
        self._next = -1  # where a decoder that reads on reads next
        self._asked_bytes = self._read_bytes = 0  # of what went through the pieces; bytes asked for again do not count

    # --- of io.RawIOBase

    def readable(self) -> bool:
        """True."""
        self._check_open()
        return True

    def seekable(self) -> bool:
        """True."""
        self._check_open()
        return True

    def tell(self) -> int:
        """The position of the next read, in bytes."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position: from the beginning, from here (``whence=1``) or from the end (``whence=2``)."""
        self._check_open()
        try:
            start = (0, self._position, self.size)[(os.SEEK_SET, os.SEEK_CUR, os.SEEK_END).index(whence)]
        except ValueError:
            raise ValueError(f"seek: whence is {whence!r:.100}; it is 0, 1 or 2") from None
        position = start + operator.index(offset)
        if position < 0:
            raise ValueError(f"seek: position {position} of {self._shown} is before its beginning")
        self._position = position
        return position

    def readinto(self, buffer: Any, /) -> int:
        """Read into a writable buffer, as much as it holds; the number of bytes, fewer only at the end."""
        view = memoryview(buffer)
        if view.readonly:
            raise TypeError(f"readinto: a buffer that can be written is needed, and this is {a_kind(buffer)}")
        if not view.nbytes:  # such a one cannot be cast
            self._check_open()
            return 0
        data = self.read(view.nbytes)
        view.cast("B")[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """The next ``size`` bytes, fewer only at the end; all that are left, if it is negative or None."""
        self._check_open()
        count = -1 if size is None else operator.index(size)
        lo = min(self._position, self.size)
        hi = self.size if count < 0 else min(lo + count, self.size)
        if hi == lo:
            return b""
        data = self._read(lo, hi)
        self._position = hi
        return data

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def write(self, data: Any, /) -> NoReturn:  # noqa: ARG002 - the method of a base
        """Not possible: io.UnsupportedOperation."""
        raise io.UnsupportedOperation(f"{self._shown} is read only")

    def close(self) -> None:
        """Free what is kept in memory; reads are an error from then on. It may be left out, or repeated."""
        if not self.closed:
            super().close()
            self._pieces = _Pieces()

    # --- copies

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        pool, *place = self._place
        return _open_again, (pool.token, pool.portable_provider(), tuple(place), self._position, self._version)

    def __repr__(self) -> str:
        return f"<wids.MemberFile {self._shown} of {self.size:,} bytes>"

    # --- inside

    @property
    def _shown(self) -> str:
        """The name as messages show it: that of a shard may be no UTF-8, or act on a terminal."""
        return printable(self.name)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self._shown} is closed")

    def _read(self, lo: int, hi: int) -> bytes:
        """The bytes ``lo .. hi``, 0 <= lo < hi <= size."""
        goes_on, self._next = lo == self._next, hi
        self._asked_bytes += self._pieces.use(lo, hi)
        if not self._pieces.gaps(lo, hi):
            return self._join(lo, hi)
        if self.error is not None:
            raise copied(self.error)
        try:
            is_kept, pieces = self._fetch(lo, hi, goes_on=goes_on)
        except (WidsError, OSError) as error:
            self.error = copied(error)  # whose frames hold this file
            raise
        if not is_kept:
            return pieces[0][1]
        for start, data in pieces:
            self._pieces.add(start, data)
        self._asked_bytes += self._pieces.use(lo, hi)
        joined = self._join(lo, hi)
        self._pieces.trim(LIMITS.kept_bytes)
        return joined

    def _join(self, lo: int, hi: int) -> bytes:
        """Bytes that are kept.

        Raises:
            InputError: another thread reads this file, and forgot or added some meanwhile.
        """
        with contextlib.suppress(KeyError, IndexError):
            joined = self._pieces.join(lo, hi)
            if len(joined) == hi - lo:
                return joined
        self._pieces = _Pieces()
        raise InputError(f"{self._shown} is read by several threads at once; give each its own: copy.copy(file)")

    def _fetch(self, lo: int, hi: int, *, goes_on: bool) -> tuple[bool, list[tuple[int, bytes]]]:
        """(True, pieces to be kept, with all that lacks of ``lo .. hi``), or (False, [the one of ``lo .. hi``])."""
        pool, shard, row, _, extension, *_ = self._place
        while True:
            reader = pool.pin(shard)
            try:
                self._check_place(reader)
                is_far = reader.is_remote
                is_kept = is_far or hi - lo < LIMITS.least_bytes
                if is_far and self.size <= LIMITS.whole_bytes:
                    spans = self._pieces.gaps(0, self.size)
                else:
                    gaps = self._pieces.gaps(lo, hi) or [(lo, hi)]  # another thread has filled them
                    spans = self._extend(gaps, goes_on=goes_on and is_far) if is_kept else [(lo, hi)]
                data = reader.read_parts([RowPart(row, extension, *span) for span in spans])
                self._check_version(reader)
            except ClosedReaderError:  # it closed itself, and the next one is another
                continue
            finally:
                reader.unpin()
            if is_kept:
                self._read_bytes += sum(map(len, data))
            return is_kept, [(start, piece) for (start, _), piece in zip(spans, data, strict=True)]

    def _extend(self, gaps: list[tuple[int, int]], *, goes_on: bool) -> list[tuple[int, int]]:
        """The gaps, the last of which is longer: short reads are, and those of a decoder that reads on."""
        lo, hi = gaps[-1]
        count = hi - lo
        if goes_on:
            asked = self._asked_bytes + sum(end - begin for begin, end in gaps)
            ahead = max(LIMITS.ahead_bytes, int(LIMITS.ahead_share * asked))
            count += max(self._asked_bytes + ahead - self._read_bytes, 0)
        end = self._pieces.free_until(hi, min(max(hi, lo + max(count, LIMITS.least_bytes)), self.size))
        return [*gaps[:-1], (lo, end)]

    def _check_place(self, reader: Reader) -> None:
        """Raise unless the member is still where it was when it was opened.

        Raises:
            ChangedShardError: it is not.
        """
        table, place = reader.table, self._place
        if table is self._table:
            return
        member = (place.extension, place.offset, place.size)
        is_there = place.row < len(table) and table.key(place.row) == place.key and member in table.members(place.row)
        if not is_there:
            raise self._changed("is not where it was")
        self._table = table

    def _check_version(self, reader: Reader) -> None:
        """Raise if bytes that were read earlier are of another version than those of now.

        Raises:
            ChangedShardError: they are.
        """
        version = reader.version
        if version and self._version and version != self._version:
            raise self._changed("may have other bytes now")
        self._version = version or self._version

    def _changed(self, what: str) -> ChangedShardError:
        return ChangedShardError(
            f"{self.url}: it was replaced while {self._shown} was read, which {what}; open the sample again",
            shard=self.url,
        )


class _Pieces:
    """Pieces of a file in memory, none of which overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []  # sorted
        self._data: dict[int, bytes] = {}  # by their starts; the oldest first
        self._used: dict[int, int] = {}  # how far each was asked for
        self._total = 0

    def _at(self, position: int) -> int:
        """The number of the first piece that ends behind a position."""
        k = max(bisect_right(self._starts, position) - 1, 0)
        while k < len(self._starts) and self._starts[k] + len(self._data[self._starts[k]]) <= position:
            k += 1
        return k

    def gaps(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """The stretches of ``lo .. hi`` that no piece has, in order."""
        gaps, position = [], lo
        for start in self._starts[self._at(lo) :]:
            if start >= hi:
                break
            if start > position:
                gaps.append((position, start))
            position = start + len(self._data[start])
        if position < hi:
            gaps.append((position, hi))
        return gaps

    def free_until(self, position: int, end: int) -> int:
        """The end of the stretch from a position on that no piece has, at most ``end``."""
        k = self._at(position)
        return end if k == len(self._starts) else min(max(self._starts[k], position), end)

    def use(self, lo: int, hi: int) -> int:
        """The number of the kept bytes of ``lo .. hi`` that are behind all of their piece that was asked for so far."""
        count = 0
        for start in self._starts[self._at(lo) :]:
            if start >= hi:
                break
            end, used = min(hi, start + len(self._data[start])), self._used[start]
            if end > used:
                count += end - max(used, lo)
                self._used[start] = end
        return count

    def add(self, start: int, data: bytes) -> None:
        """Keep bytes; those that another thread has added meanwhile stay as they are."""
        for lo, hi in self.gaps(start, start + len(data)):
            self._data[lo], self._used[lo] = data[lo - start : hi - start], lo
            self._starts.insert(bisect_right(self._starts, lo), lo)
            self._total += hi - lo

    def join(self, lo: int, hi: int) -> bytes:
        """The bytes ``lo .. hi``, all of which are kept."""
        k = self._at(lo)
        start = self._starts[k]
        first = self._data[start]
        if hi <= start + len(first):
            return first[lo - start : hi - start]
        parts = [memoryview(first)[lo - start :]]
        for start in self._starts[k + 1 :]:
            if start >= hi:
                break
            parts.append(memoryview(self._data[start])[: hi - start])
        return b"".join(parts)

    def trim(self, most: int) -> None:
        """Forget the oldest pieces, until so many bytes are left."""
        while self._total > most:
            start = next(iter(self._data))
            self._total -= len(self._data.pop(start))
            del self._used[start]
            self._starts.remove(start)


def _open_again(
    token: str, provider: ShardProvider | str, place: tuple[Any, ...], position: int, version: str
) -> MemberFile:
    """A file in another process, or a copy: by the dataset of its maker, if that lives here, too.

    Raises:
        InputError: it does not, and could not be sent with the file (``provider`` says why).
    """
    pool = find_pool(token)
    if pool is None:
        if isinstance(provider, str):
            raise InputError(
                f"{printable(place[2] + place[3])} of {place[0].url} cannot be opened in this process: its dataset is "
                f"in another one, and cannot be pickled ({provider}). Read what is needed of it there, or give the "
                "dataset functions of a module as hooks, key_rule and localname, no lambdas"
            )
        pool = OpenShards(provider, capacity=None, find=_find_none, token=token)
    return MemberFile(_Place(pool, *place), position=position, version=version)


def _find_none(url: str) -> NoReturn:
    raise KeyError(url)


def open_lazily(pool: OpenShards, sample: Sample, lazy: Alternatives, *, is_foreign: bool) -> list[MemberFile]:
    """Add files for the members of a sample that are to be opened, unless it has them; return these.

    Args:
        pool: the open shards of its dataset.
        sample: as it was read, with ``__shard__`` and ``__shardindex__``.
        lazy: the members.
        is_foreign: a subclass reads samples in its own way, which may be no samples of the shard.

    Raises:
        ChangedShardError: the shard was replaced since the sample was read. WidsError: it cannot be opened.
    """
    files = list[MemberFile]()
    there = frozenset(map(str.casefold, sample))
    if all(not there.isdisjoint(map(str.casefold, group)) for group in lazy.groups):
        return files
    try:
        shard = pool.find(sample["__shard__"])
    except KeyError:  # of a subclass, which reads shards of its own
        return files
    reader, row, key = pool.open(shard).reader, sample["__shardindex__"], sample["__key__"]
    table = reader.table
    if row >= len(table) or table.key(row) != key:
        if is_foreign:
            return files
        raise ChangedShardError(
            f"{reader.url}: it was replaced while sample {shown(key)} was read, which is not where it was; open the "
            "sample again",
            shard=reader.url,
            key=key,
        )
    members = table.members(row)
    for positions in lazy.choose(extension for extension, _, _ in members):
        for member in map(members.__getitem__, positions):
            if member[0] not in sample:
                file = open_member(pool, shard, row, key, member, version=reader.version)
                sample[member[0]] = file
                files.append(file)
    return files


def open_member(
    pool: OpenShards, shard: Shard, row: int, key: str, member: tuple[str, int, int], *, version: str
) -> MemberFile:
    """A member of a sample as a file.

    Args:
        pool: opens the shard.
        shard: the shard.
        row: of the sample.
        key: of the sample.
        member: as `MemberTable.members` has it.
        version: see `wids.core.readers.base.Reader`.
    """
    return MemberFile(_Place(pool, shard, row, key, *member), version=version)
