"""Values of columns that become members: a JSON object in each sample, or more keys in the one that it has.

Rules: columns are read where the shards are planned, so that workers need no table; an item of a task is the sample's
index and the text of its values. The text of an existing object stays as it is, and the new keys follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from wids.core.files.json_text import JsonParser
from wids.core.tables import headers
from wids.core.tables.keys import encode_name
from wids.errors import JsonError, SampleError, WidsError, shorten, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.columns.samples import SampleColumns
    from wids.core.collection.shard_collection import ShardCollection
    from wids.writing.pack.datasets import DatasetReader
    from wids.writing.pack.listing import Fields, SourceListing

    # The index of a sample, and the JSON object of its values.
    Item: TypeAlias = tuple[int, bytes]


_OBJECT = JsonParser(dict, is_finite=False)


def add_columns(listing: SourceListing, columns: SampleColumns, collection: ShardCollection, extension: str) -> None:
    """Give each sample of a listed dataset the values of the shown columns.

    Args:
        listing: of the dataset; is changed.
        columns: those that are shown.
        collection: of the samples.
        extension: of the member that has the values, as a JSON object.
    """

    def dress(items: Sequence[int]) -> list[Item]:
        found: list[Item] = []
        for item in items:
            values = {"__index__": item}
            columns.add_to(values, collection)
            del values["__index__"]
            found.append((item, msgspec.json.encode(values, enc_hook=_plain)))
        return found

    listing.dress, listing.reader = dress, AddingReader(listing.reader, extension)


def _plain(value: Any) -> Any:
    """An array as a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError


class AddingReader:
    """Reads samples of a dataset, and adds values.

    Args:
        reader: of the samples.
        extension: of the member that has the values.
    """

    def __init__(self, reader: Any, extension: str) -> None:
        self._reader: DatasetReader = reader
        self._extension = extension

    def read(self, item: Item) -> tuple[str, Fields]:
        """(key, fields) of a sample.

        Raises:
            WidsError: it cannot be read, or its member has other values.
        """
        key, fields = self._reader.read(item[0])
        return key, self._add(key, fields, item[1])

    def read_each(self, items: Sequence[Item]) -> Iterator[tuple[str, Fields] | WidsError]:
        """`read` of several samples; the error of each that cannot be read is in its place."""
        for item, found in zip(items, self._reader.read_each([index for index, _ in items]), strict=True):
            if isinstance(found, WidsError):
                yield found
                continue
            try:
                yield found[0], self._add(*found, item[1])
            except WidsError as error:
                yield error

    def look(self, item: Item, extensions: frozenset[str]) -> tuple[str, frozenset[str], dict[str, bytes]]:
        """(key, extensions of all fields, bytes of those asked for) of a sample, without the values."""
        return self._reader.look(item[0], extensions)

    def measure_each(self, items: Sequence[Item], keys: Sequence[str] | None) -> list[int]:
        """Bytes that each sample takes in an archive, at most."""
        indices = [index for index, _ in items]
        sizes = self._reader.measure_each(indices, keys)
        names = [encode_name(key + self._extension) for key in keys or self._reader.keys_of(indices)]
        return [
            size + headers.member_bytes(name, len(text) + 1)
            for size, name, (_, text) in zip(sizes, names, items, strict=True)
        ]

    def identify(self, items: Sequence[Item]) -> str:
        """A digest of the samples, of the shards that they come from, and of the values."""
        return f"{self._reader.identify([index for index, _ in items])} {self._extension} {items!r}"

    def _add(self, key: str, fields: Fields, text: bytes) -> Fields:
        """The fields with the values: in the member that has the extension in any case, or in a new one.

        Raises:
            SampleError: the member is no JSON object, or has another value of a column.
        """
        name = self._extension.casefold()
        place = next((k for k, (extension, _) in enumerate(fields) if extension.casefold() == name), None)
        if place is None:
            return [*fields, (self._extension, text)]
        extension, data = fields[place]
        try:
            there = _OBJECT.parse(data.decode())
        except (JsonError, UnicodeError) as error:
            raise self._refusal(key, f"is no JSON object in UTF-8 ({error})") from error
        new = _OBJECT.parse(text)
        if other := next((each for each in new if each in there and there[each] != new[each]), None):
            raise self._refusal(
                key, f"has {shown(other)}: {shorten(repr(there[other]))}, and the column {shorten(repr(new[other]))}"
            )
        more = msgspec.json.encode({each: value for each, value in new.items() if each not in there})[1:-1]
        if more:
            start = data.rstrip()[:-1].rstrip()
            data = start + (b", " if there else b"") + more + b"}"
        return [*fields[:place], (extension, data), *fields[place + 1 :]]

    def _refusal(self, key: str, words: str) -> SampleError:
        return SampleError(
            f"into: the member {self._extension} of sample {shown(key)} {words}; give another name, like "
            "'.columns.json'",
            key=key,
            field=self._extension,
            parameter="into",
        )
