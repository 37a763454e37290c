"""Packed columns of a shard list: sequences over bytes, in memory or of a mapped file, that make an item when asked.

Pure: the bytes come from the caller. Those of a file have been checked: no offset in them is outside the file
(`wids.core.index.compiled`). A text is checked when it is read: a `SpecError` names the file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import numpy as np

from wids.core.files.container import hash_of
from wids.core.files.json_text import TOLERANT
from wids.core.place import Place
from wids.errors import JsonError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

REMEDY = "compile it again (wids index convert), or delete it if it is in a cache directory"


class Column(Sequence[T]):
    """A sequence that is equal to a list of the same items, and pickled as one."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, k: int) -> T: ...
    @overload
    def __getitem__(self, k: slice) -> list[T]: ...
    def __getitem__(self, k: int | slice) -> T | list[T]:
        if type(k) is int and 0 <= k < self._length:  # called whenever the reader changes to another shard
            return self._item(k)
        if isinstance(k, slice):
            rows = range(self._length)[k]
            return list(self) if len(rows) == self._length and rows.step == 1 else [self._item(j) for j in rows]
        return self._item(range(self._length)[k])

    def __iter__(self) -> Iterator[T]:
        return map(self._item, range(self._length))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (list, Column)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __add__(self, other: list[T]) -> list[T]:
        return [*self, *other]

    def __radd__(self, other: list[T]) -> list[T]:
        return [*other, *self]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{type(self).__name__} of {self._length}: [{shown}{', ...' if self._length > 3 else ''}]>"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _item(self, k: int) -> T:
        raise NotImplementedError


class Numbers(Column[int]):
    """Integers.

    Args:
        view: of 64-bit ones.
    """

    def __init__(self, view: memoryview) -> None:
        super().__init__(len(view))
        self._view = view

    def __iter__(self) -> Iterator[int]:
        return iter(self._view)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:  # noqa: FBT001 - numpy's
        array = np.asarray(self._view)
        return array.astype(dtype or array.dtype, copy=bool(copy))

    def _item(self, k: int) -> int:
        number: int = self._view[k]
        return number


class Digests(Column[str]):
    """Digests in hexadecimal; "" where one is unknown.

    Args:
        data: all digests.
        width: bytes of each.
        flags: a byte for each.
        flag: the bit of a known digest.
    """

    def __init__(self, data: memoryview, width: int, flags: memoryview, flag: int) -> None:
        super().__init__(len(flags))
        self._data, self._width, self._flags, self._flag = data, width, flags, flag

    def __iter__(self) -> Iterator[str]:
        digests = self._data.hex(" ", self._width).split() if self._length else []
        return (digest if known & self._flag else "" for digest, known in zip(digests, self._flags, strict=True))

    def known(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Booleans (n,) for n shards: the digest of each is known."""
        return (np.frombuffer(self._flags, np.uint8) & self._flag) > 0

    def _item(self, k: int) -> str:
        known = self._flags[k] & self._flag
        return self._data[self._width * k : self._width * (k + 1)].hex() if known else ""


class Texts:
    """Texts one after another.

    Args:
        ends: the end of each.
        blob: all of them.
        file_url: the file's name in errors.
    """

    file_url: str

    def __init__(self, ends: memoryview, blob: memoryview, *, file_url: str) -> None:
        self._ends, self._blob, self.file_url = ends, blob, file_url

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, k: int) -> str:
        ends = self._ends
        data = self._blob[ends[k - 1] if k else 0 : ends[k]]
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:  # half of a surrogate pair, as in some paths
            return self._decode(data)

    def __iter__(self) -> Iterator[str]:
        data, ends = bytes(self._blob), self._ends
        if data.isascii():
            return map(data.decode().__getitem__, map(slice, chain((0,), ends), ends))
        return map(self.__getitem__, range(len(self)))

    def _decode(self, data: memoryview) -> str:
        try:
            return str(data, "utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise damaged(self.file_url, f"has a text that is not UTF-8 ({error.reason})") from error


class Places(Column[str]):
    """URLs of shards.

    Args:
        texts: as written.
        hashes: the result of `sort_hashes` for the texts; None: it is computed when a URL is searched.
        home: the base of relative ones; None: the texts are complete.
    """

    def __init__(self, texts: Texts, hashes: tuple[memoryview, memoryview] | None, *, home: str | None) -> None:
        super().__init__(len(texts))
        self._texts, self._hashes = texts, hashes
        self._home, self._directory = home, Place(home or "")

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts) if self._home is None else (str(self._directory.join(text)) for text in self._texts)

    def _item(self, k: int) -> str:
        return self._texts[k] if self._home is None else str(self._directory.join(self._texts[k]))

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The first shard with this URL.

        Raises:
            ValueError: none exists.
        """
        if isinstance(value, str):
            texts = {value}
            if self._home:
                texts.add(value.removeprefix(self._home if self._home.endswith("/") else self._home + "/"))
            rows = sorted(k for text in texts for k in self._rows_of(text) if self._item(k) == value)
            inside = range(self._length)[start:stop]
            if first := [k for k in rows if k in inside]:
                return first[0]
            if not rows and self._home:  # it may have another spelling
                return super().index(value, start, self._length if stop is None else stop)
        raise ValueError("no shard has this URL")

    def _rows_of(self, text: str) -> Iterator[int]:
        if self._hashes is None:
            self._hashes = sort_hashes(self._texts)
        (hashes, rows), wanted = self._hashes, hash_of(text)
        at = bisect_left(hashes, wanted)
        while at < len(hashes) and hashes[at] == wanted:
            yield rows[at]
            at += 1


class SparseKeys:
    """Keys of single shards, as JSON.

    Args:
        rows: the shards with keys, ascending.
        texts: the keys of each.
    """

    def __init__(self, rows: memoryview, texts: Texts) -> None:
        self._rows, self._texts = rows, texts

    def get(self, k: int, /) -> dict[str, Any] | None:
        """The keys of shard ``k``; None: it has none."""
        rows = self._rows
        if not rows:
            return None
        at = bisect_left(rows, k)
        return self._keys(at) if at < len(rows) and rows[at] == k else None

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number of a shard, its keys), for the shards with keys."""
        return ((k, self._keys(at)) for at, k in enumerate(self._rows))

    def _keys(self, at: int) -> dict[str, Any]:
        try:
            keys = TOLERANT.parse(self._texts[at])
        except JsonError as error:
            raise damaged(self._texts.file_url, f"has keys of a shard that are not JSON ({error})") from error
        if not isinstance(keys, dict):
            raise damaged(self._texts.file_url, "has keys of a shard that are not a JSON object")
        return keys


def join_texts(texts: Sequence[str]) -> tuple[memoryview, memoryview]:
    """(the end of each text, all texts)."""
    whole = "".join(texts)
    if whole.isascii():
        lengths, blob = map(len, texts), whole.encode()
    else:
        parts = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths, blob = map(len, parts), b"".join(parts)
    ends = np.cumsum(np.fromiter(lengths, np.int64, len(texts)), dtype=np.int64)
    return memoryview(ends), memoryview(blob)  # type: ignore[arg-type]  # numpy's are buffers


def sort_hashes(texts: Iterable[str]) -> tuple[memoryview, memoryview]:
    """(hashes of the texts, ascending; the number of the text of each hash, lower ones first)."""
    hashes = np.fromiter(map(hash_of, texts), "<u8")
    order = np.argsort(hashes, kind="stable")
    return memoryview(hashes[order]), memoryview(order)  # type: ignore[arg-type]  # numpy's are buffers


def damaged(file_url: str, what: str) -> SpecError:
    """The error for an unusable compiled index."""
    return SpecError(f"{file_url}: this compiled index {what}; {REMEDY}", path="", url=file_url)
