"""One field of one sample as it is in its shard: where, how long, and its bytes or a part of them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.convertors import IntegerConvertor, register_url_convertor

from wids.core.codecs.decoders import inflate
from wids.core.readers.base import RowPart
from wids.core.tables.fields import EMPTY
from wids.errors import SelectionError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.core.readers.base import Reader
    from wids.dataset import ShardListDataset

# The field of a number, for names that no URL can have: "." and "..", or names that are not UTF-8.
_NUMBER = re.compile(r"@([0-9]{1,9})")


class _IndexConvertor(IntegerConvertor):
    """An index in a path: ``{index:index}``. Python refuses to read the numbers of some thousand digits."""

    regex = "[0-9]{1,400}"


register_url_convertor("index", _IndexConvertor())


@dataclass(frozen=True, slots=True)
class Member:
    """A field, while its shard is open.

    Attributes:
        name: of the field.
        key: of the sample.
        url: of its shard.
        offset: of its data in the shard, in bytes.
        size: of its data, in bytes.
        row: of the sample in the shard.
        extension: in the shard; that of a companion's member is without the prefix of the field.
    """

    name: str
    key: str
    url: str
    row: int
    offset: int
    size: int
    extension: str
    _reader: Reader

    @property
    def place(self) -> tuple[str, str, int, int]:
        """Key that tells it from later ones at its place: shard, name, offset and size."""
        return self.url, self.name, self.offset, self.size

    def read_part(self, lo: int, hi: int) -> bytes:
        """Its bytes from ``lo`` to ``hi``, fewer at its end."""
        return self._reader.read_parts([RowPart(self.row, self.extension, lo, hi)])[0]

    def read(self) -> bytes:
        """All of its bytes."""
        data: bytes = self._reader.read(self.row, (self.extension,))[self.extension].getvalue()
        return data

    def read_unpacked(self, most: int) -> bytes:
        """All of its bytes; of a packed one (``.gz``), what they unpack to.

        Args:
            most: bytes that a packed one may unpack to.

        Raises:
            DecodeError: there are more. EOFError, zlib.error: it is damaged.
        """
        data = self.read()
        return b"".join(inflate(data, most)) if self.name.casefold().endswith(".gz") else data


@contextlib.contextmanager
def open_members(dataset: ShardListDataset[Any], index: int) -> Iterator[list[Member]]:
    """The fields of a sample, in their order in its shard and in those of companions, open while the block lasts.

    Args:
        dataset: of the sample.
        index: 0 <= index < len(dataset).

    Raises:
        SelectionError: no such sample exists. WidsError: the shard cannot be read.
    """
    if not 0 <= index < len(dataset):
        raise SelectionError(f"there is no sample {shown(index)}; the dataset has {len(dataset):,}")
    shard, row, _ = dataset.get_shard(index)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(shard.pinned())
        members = [_member(name, name, row, lo, size, reader) for name, lo, size in reader.table.members(row)]
        for companion, other, there in stack.enter_context(dataset._open_companions(index)):  # noqa: SLF001 - of the face
            members += [
                _member(companion.name_of(name), name, there, lo, size, other)
                for name, lo, size in other.table.members(there)
                if name != EMPTY
            ]
        yield members


def _member(name: str, extension: str, row: int, offset: int, size: int, reader: Reader) -> Member:
    return Member(name, reader.table.key(row), reader.url, row, offset, size, extension, reader)


@contextlib.contextmanager
def open_member(dataset: ShardListDataset[Any], index: int, field: str) -> Iterator[Member]:
    """A field of a sample, likewise.

    Args:
        dataset: see `open_members`.
        index: likewise.
        field: its name, or ``@3`` for the fourth of the sample.

    Raises:
        SelectionError: no such sample or field exists.
        WidsError: the shard cannot be read.
    """
    with open_members(dataset, index) as members:
        number = _NUMBER.fullmatch(field)
        found = members[int(number[1]) :][:1] if number else [each for each in members if each.name == field]
        if not found:
            names = ", ".join(shown(each.name) for each in members[:20])
            raise SelectionError(f"sample {index} has no field {shown(field)}; it has {names or 'none'}")
        yield found[0]
