"""ShardWriter: writes samples, one by one, to tar shards with an index and member tables.

A shard is published complete or not at all, and the index last. The bytes of shards and index depend only on the
samples. A sample that would be read back differently (a dot in its key, two members of one name) is refused. A
writer that is never closed cannot know that it got all samples: it publishes neither its last shard nor an index, and
logs a warning.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import weakref
from typing import TYPE_CHECKING, Any

from wids.core.codecs.encoders import encode_field, extension_of, is_encoded_anew
from wids.core.files import finalizers, tempdirs
from wids.core.order.validation import suggest_names
from wids.core.place import Place
from wids.core.tables import headers
from wids.core.tables.keys import encode_name, first_dot
from wids.core.transport.session import Session
from wids.errors import InputError, OutputError, OutputExistsError, SampleError, shown
from wids.events import logger, parse_size
from wids.writing.output import ShardTarget, index_json, parse_pattern, sweep
from wids.writing.shard_file import ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

DEFAULT_SAMPLES = 10_000

_open_writers: weakref.WeakSet[ShardWriter] = weakref.WeakSet()


@atexit.register
def _abandon_all() -> None:
    """At the interpreter's exit, abandon writers that are still referenced."""
    for writer in list(_open_writers):
        writer.abandon()


def name_members(key: str, fields: Iterable[tuple[str, bytes]]) -> list[tuple[bytes, bytes]]:
    """(member name, data) of a sample, checked.

    Args:
        key: the sample's.
        fields: (extension, data); extensions with their leading dot or without.

    Raises:
        SampleError: the sample has no fields, or its key or an extension would be read back differently.
    """
    check_key(key)
    members: dict[bytes, bytes] = {}
    for field, data in fields:
        extension = field if field.startswith(".") else f".{field}"
        check_extension(extension, key)
        name = encode_name(key + extension)
        if name in members:
            raise SampleError(f"sample {shown(key)} has two fields {shown(extension)}", key=key, field=extension)
        members[name] = data
    if not members:
        raise SampleError(f"sample {shown(key)} has no fields; give at least one, like '.txt'", key=key)
    return list(members.items())


def check_key(key: Any) -> None:
    """Refuse a key that would be read back differently.

    Raises:
        SampleError: it is none.
    """
    if not isinstance(key, str):
        raise SampleError(f"a sample's key is {shown(key)}; it must be text, under '__key__'")
    trouble = ""
    try:
        raw = encode_name(key)
    except UnicodeEncodeError:
        trouble = "cannot be encoded"
    else:
        folders = key.split("/")
        if not folders[-1]:
            trouble = "has an empty basename"
        elif "." in folders[-1]:
            trouble = "has a dot in its basename, where the extension would begin (dots in folders are fine)"
        elif b"\0" in raw:
            trouble = "has a NUL in it"
        elif not folders[0] or ".." in folders:
            trouble = "is no path within an archive (it begins with / or goes up)"
    if trouble:
        raise SampleError(f"key {shown(key)} {trouble}; choose another key", key=key, hint="number_keys")


@functools.lru_cache(1024)
def _is_extension(extension: str) -> bool:
    try:
        is_sound = first_dot(encode_name("k" + extension)) == (b"k", encode_name(extension)) and "\0" not in extension
    except UnicodeEncodeError:
        is_sound = False
    return is_sound and len(extension) > 1


def check_extension(extension: str, key: str) -> None:
    """Refuse an extension that would be read back differently.

    Raises:
        SampleError: it is none.
    """
    if not _is_extension(extension):
        raise SampleError(
            f"sample {shown(key)}: {shown(extension)} is no field; give an extension like '.jpg'",
            key=key,
            field=extension,
        )


class ShardWriter:
    """Writes samples into shards. Use it as ``with ShardWriter("out/train-%06d.tar") as writer: ...``.

    The end of the block writes the index ``out/train.json``, after all shards. If an exception ends the block, neither
    the unfinished shard nor the index is published; finished shards stay. The same holds for a writer that is neither
    closed nor used in a ``with``: a warning is logged when it is deleted or the program ends.

    Attributes:
        index: URL of the index.
        shards: its entries of the complete shards.
        nsamples: samples written so far.

    Args:
        pattern: path or URL with one number, as above. The directory is made.
        samples: limit for each shard; default: 10,000, or no limit if ``size`` is given.
        size: limit of each shard in bytes, a number or a text like ``"1GB"``; a larger sample gets a shard of its own.
        md5: put each shard's checksums, md5 and CRC-32, into the index.
        tables: write each shard's member table (``.widx``) beside it.
        name: of the dataset; default: from the pattern.
        info: any JSON value, for the index (``{"classes": [...]}``).
        overwrite: replace existing shards and index of this pattern; otherwise they are an error.
        storage_options: for fsspec.

    Raises:
        SpecError: the pattern is not valid. InputError: ``info`` is not a JSON value.
        WidsError: a dataset exists already, or the place cannot be written.
        ValueError: ``samples`` or ``size`` is not positive.

    Example:
        >>> with wids.ShardWriter("out/new-%06d.tar", samples=2) as writer:
        ...     for number in range(3):
        ...         writer.write({"__key__": f"{number:04d}", ".txt": f"text {number}", ".cls": number})
        >>> wids.ShardListDataset("out/new.json").lengths
        [2, 1]
    """

    index: str
    nsamples: int
    _is_closed = True  # until it is made: there is nothing to discard

    @suggest_names
    def __init__(
        self,
        pattern: str | os.PathLike[str],
        *,
        samples: int | None = None,
        size: int | str | None = None,
        md5: bool = True,
        tables: bool = True,
        name: str | None = None,
        info: Any = None,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._shard: ShardFile | None = None
        size = parse_size(size) if isinstance(size, str) else size
        for bound, what in ((samples, "samples"), (size, "size")):
            if bound is not None and (isinstance(bound, bool) or not hasattr(bound, "__index__")):
                more = ", or a text like '2GB'" if what == "size" else ""
                raise TypeError(f"{what} is {bound!r}; it must be a whole number{more}")
            if bound is not None and bound < 1:
                raise ValueError(f"{what} is {bound}; a shard holds at least 1")
        self._pattern = parse_pattern(os.fspath(pattern))
        self._samples = DEFAULT_SAMPLES if samples is None and size is None else samples
        self._size = size
        self._has_md5, self._has_tables, self._overwrite = md5, tables, overwrite
        self._name, self._info = self._pattern.name if name is None else name, info
        try:
            encode_field(".json", info)  # now, and not when all samples are written
        except SampleError as error:
            raise InputError(f"info cannot be in an index: {error}") from error
        finalizers.begin()
        self._target = ShardTarget(Session(storage_options))
        self._keys: set[str] = set()
        self._has_warned = False
        self._place: str | None = None  # where shards are written before they go away
        self._at_end = contextlib.ExitStack()
        self.index = self._pattern.index_url
        self.shards: list[dict[str, Any]] = []
        self.nsamples = 0
        self._target.make_directory(self.index)
        self._target.check_free(self._pattern, overwrite=overwrite)
        sweep(self._pattern)
        if not Place(self.index).is_local:
            self._place = self._at_end.enter_context(tempdirs.directory("writer"))
        self._pid = os.getpid()
        self._is_closed = False
        _open_writers.add(self)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample. A refused sample leaves no trace, and the writer accepts the next one.

        Args:
            sample: ``"__key__"``, text, unique within a shard; and fields, by extension (``".jpg"`` or ``"jpg"``), of
                bytes or of values that `wids.core.codecs.encoders.encode_field` takes. Other names that begin with
                ``__`` are left out, so that undecoded samples of a dataset can be written.

        Raises:
            SampleError: it cannot be written, or its key was written to this shard before.
            WidsError: the shard cannot be written; the writer is closed.
        """
        if self._is_closed:
            raise ValueError("the writer is closed")
        if "__key__" not in sample:
            raise SampleError("a sample has no '__key__'; give it one, like '000017'")
        key = sample["__key__"]
        names: list[Any] = list(sample)
        if odd := [name for name in names if not isinstance(name, str)]:
            raise SampleError(
                f"sample {shown(key)}: {shown(odd[0])} is no field; give an extension like '.jpg'", key=key
            )
        try:
            fields = [(f, encode_field(f, value)) for f, value in sample.items() if not f.startswith("__")]
        except SampleError as error:
            raise SampleError(f"sample {shown(key)}: {error}", key=key, field=error.field) from error
        if not self._has_warned and (anew := [name for name, value in sample.items() if is_encoded_anew(name, value)]):
            self._has_warned = True
            logger.warning(
                "%s: sample %s: %s is a picture that was opened from a file, and is encoded anew, which loses detail; "
                "give bytes to keep a file as it is ({%s: open(path, 'rb').read()})",
                *(Place(self.index).public, shown(key), shown(anew[0]), shown(extension_of(anew[0], sample[anew[0]]))),
            )
        members = name_members(key, fields)
        if self._is_full(members):
            self.finish_shard()
        if key in self._keys:
            raise SampleError(
                f"sample {shown(key)} is in this shard already; keys are unique within a shard, and members of a "
                "sample are written at once",
                key=key,
            )
        try:
            if self._shard is None:
                self._shard = self._begin()
            self._shard.add(members)
        except BaseException:
            self.discard()
            raise
        self._keys.add(key)
        self.nsamples += 1

    def finish_shard(self) -> None:
        """Finish the current shard, if any; the next sample starts another one.

        Raises:
            WidsError: it cannot be written; the writer is closed.
        """
        shard = self._shard
        if shard is None:
            return
        url = self._pattern.url(len(self.shards))
        try:
            self._check_ours(url)
            entry, table = shard.finish()
            self._target.put_shard(shard.part, url, table if self._has_tables else None)
        except BaseException:
            self.discard()
            raise
        self.shards.append({"url": Place(url).name, **entry})
        self._shard = None
        self._keys.clear()

    def _check_ours(self, url: str) -> None:
        """Refuse a second concurrent writer, which would replace shards that the first writer's index lists."""
        if not self._overwrite and self._target.describe(url) is not None:
            raise OutputExistsError(
                f"{url}: exists since this writer began; does another one write here? Write elsewhere", url=url
            )

    def close(self) -> None:
        """Finish the last shard and write the index. A second call does nothing.

        Raises:
            WidsError: one of them cannot be written, or no sample was written.
        """
        if self._is_closed:
            return
        try:
            self.finish_shard()
            if not self.shards:
                raise OutputError(
                    f"{self.index}: no sample was written, and there is no index without shards", url=self.index
                )
            if self._overwrite:
                self._target.remove_others(self._pattern, frozenset(range(len(self.shards))))
            text = index_json(self.shards, name=self._name, info=self._info)
            self._target.put_bytes(text.encode(), self.index)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close without an index; the unfinished shard is deleted, finished shards stay."""
        self._is_closed = True
        try:
            if self._shard is not None:
                self._shard.discard()
                self._shard = None
        finally:
            self._at_end.close()

    def _is_full(self, members: list[tuple[bytes, bytes]]) -> bool:
        """True if the current shard has no space for a sample."""
        shard = self._shard
        if shard is None:
            return False
        if self._samples is not None and shard.nsamples >= self._samples:
            return True
        added = sum(headers.member_bytes(name, len(data)) for name, data in members)
        return self._size is not None and headers.archive_bytes(shard.member_bytes + added) > self._size

    def _begin(self) -> ShardFile:
        url = self._pattern.url(len(self.shards))
        place = Place(url)
        path = place.absolute.path if self._place is None else os.path.join(self._place, place.name)
        return ShardFile(path, url=url, has_md5=self._has_md5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def abandon(self) -> None:
        """Discard a forgotten writer: with a warning, in the process that made it."""
        if self._is_closed:
            return
        lost = self.nsamples - sum(shard["nsamples"] for shard in self.shards)
        is_ours = self._pid == os.getpid()
        self.discard()
        if is_ours and self.nsamples:
            logger.warning(
                "%s: its ShardWriter was never closed: %d of %d samples, those of the last shard, are lost, and there "
                "is no index (full shards stay: %d); write in a `with` block, or call close()",
                Place(self.index).public,
                lost,
                self.nsamples,
                len(self.shards),
            )

    def __del__(self) -> None:
        if not self._is_closed:  # as is one that was not made
            finalizers.leave(self.abandon)

    def __repr__(self) -> str:
        return f"<ShardWriter {self.index}: {self.nsamples} samples, {len(self.shards)} shards done>"
