"""Writes one shard of a plan: a function of the task, independent of where it runs.

A sample that cannot be read ends the task, or is left out completely and listed. A failure leaves no file behind.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from wids.core.place import Place
from wids.core.tables import headers
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import PLAIN, Session
from wids.errors import SampleError, WidsError, shown
from wids.jobs.arguments import Text  # noqa: TC001 - `check_struct` reads the annotations
from wids.writing.output import ShardTarget
from wids.writing.pack.listing import SampleProblem, SourceReader
from wids.writing.shard_file import ShardFile
from wids.writing.writer import name_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wids.jobs.runner import TaskContext
    from wids.writing.output import ShardPattern


class PackTask(msgspec.Struct, frozen=True, kw_only=True):
    """One shard to write.

    Attributes:
        k: its number.
        first: number of its first sample.
        items: its samples, for the source's reader.
        inputs: a digest of everything that determines its bytes.
    """

    k: int
    first: int
    items: Sequence[Any]
    inputs: str


def number_key(position: int) -> str:
    """The key of a numbered sample."""
    return f"{position:09d}"


def cut(count: int, *, samples: int | None, sizes: Iterable[int] | None, size: int | None) -> list[tuple[int, int]]:
    """Half-open ranges of samples, one for each shard.

    Args:
        count: samples in all.
        samples: per shard at most, or None.
        sizes: bytes of each sample in an archive; needed only for ``size``.
        size: bytes per shard at most, or None; a larger sample gets a shard of its own.
    """
    if size is None or sizes is None:
        step = samples or count
        return [(first, min(first + step, count)) for first in range(0, count, max(1, step))]
    cuts, first, total = [], 0, 0
    for position, taken in enumerate(sizes):
        is_full = headers.archive_bytes(total + taken) > size or (samples is not None and position - first >= samples)
        if position > first and is_full:
            cuts.append((first, position))
            first, total = position, 0
        total += taken
    return [*cuts, (first, count)] if count else []


_REPORT_SECONDS = 0.2
# Fields that hold pictures.
_PICTURES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"))


class PackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of packing.

    Attributes:
        output: the pattern, ``out/train-%06d.tar``.
        samples: limit of a shard, as for `wids.writing.writer.ShardWriter`.
        size: likewise.
        selected: the chosen samples of the listing.
        seed: of the shuffle; None: the listing's order, but see `for_kind`.
        keeps_order: never shuffle.
        numbers_keys: use the samples' numbers as keys.
        skips_errors: leave out samples that cannot be read.
        md5: as for `wids.writing.writer.ShardWriter`.
        tables: likewise.
        name: likewise.
        overwrite: likewise.
        session: likewise.

    Example:
        >>> settings = jobs.PackSettings(output="packed/train-%06d.tar", samples=5, keeps_order=True)
        >>> outcome = jobs.pack("train.json", settings, engine=jobs.RunOptions(jobs=1))
        >>> wids.ShardListDataset("packed/train.json").lengths
        [5, 5, 2]
    """

    output: Text
    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    selected: slice = slice(None)
    seed: int | None = None
    keeps_order: bool = False
    numbers_keys: bool = False
    skips_errors: bool = False
    md5: bool = True
    tables: bool = True
    name: str | None = None
    overwrite: bool = False
    session: Session = PLAIN

    def for_kind(self, kind: str) -> PackSettings:
        """The same for this kind of source: class folders are always shuffled, as shards of one class mix badly.

        Args:
            kind: ``"folder"``, ``"files"``, ``"manifest"`` or ``"dataset"``.
        """
        if self.seed is None and kind == "folder" and not self.keeps_order:
            return msgspec.structs.replace(self, seed=0)
        return self


class PackJob(NamedTuple):
    """The common data of all shards of a run; pickled into each process.

    Attributes:
        reader: of the source's items.
        pattern: paths of the shards.
        settings: of their packing.
    """

    reader: SourceReader
    pattern: ShardPattern
    settings: PackSettings


class PackedShard(msgspec.Struct, kw_only=True):
    """A written shard.

    Attributes:
        k: its number.
        inputs: as in its task.
        entry: its entry in the index; None: all its samples were left out, and it was not written.
        mtime_ns: of the file; 0 if unknown.
        skipped: samples that were left out.
        fields: number of samples with a field, by extension; None: unknown, in an earlier version's journal.
        no_pictures: number of fields that are pictures by extension, but web pages, XML or JSON by their first bytes.
        no_picture: the first of them, as ``KEY.jpg``.
    """

    k: int
    inputs: str
    entry: dict[str, Any] | None
    mtime_ns: int = 0
    skipped: list[SampleProblem] = msgspec.field(default_factory=list)
    fields: dict[str, int] | None = None
    no_pictures: int = 0
    no_picture: str = ""


def write_shard(job: PackJob, task: PackTask, context: TaskContext) -> PackedShard:
    """Write and publish a shard.

    Args:
        job: of the run.
        task: which.
        context: gets reports of (samples, bytes) so far.

    Raises:
        WidsError: a sample cannot be read (unless that is skipped), or the shard cannot be written.
        CancelledTransferError: it was cancelled.
    """
    url = job.pattern.url(task.k)
    place = Place(url)
    name = place.name
    target = ShardTarget(job.settings.session)
    packed = PackedShard(k=task.k, inputs=task.inputs, entry=None)
    with contextlib.ExitStack() as stack:
        shard = ShardFile.begin(url, stack, work="pack", has_md5=job.settings.md5, sweeps=False)
        _fill(shard, job, task, packed, context)
        if shard.nsamples:
            entry, table = shard.finish()
            target.put_shard(shard.part, url, table if job.settings.tables else None)
            packed.entry = {"url": name, **entry}
            packed.mtime_ns = (target.describe(url) or (0, 0))[1]
    return packed


def _fill(shard: ShardFile, job: PackJob, task: PackTask, packed: PackedShard, context: TaskContext) -> None:
    reported = time.monotonic()
    keys = set[str]()
    packed.fields = counts = dict[str, int]()
    for done, found in enumerate(job.reader.read_each(task.items)):
        position = task.first + done
        try:
            if isinstance(found, WidsError):
                raise found
            key = number_key(position) if job.settings.numbers_keys else found[0]
            fields = found[1]
            members = name_members(key, fields)
            _check_new(key, keys, shard)
        except WidsError as error:
            if not job.settings.skips_errors:
                raise
            packed.skipped.append(SampleProblem(f"sample {position}", str(error)))
        else:
            keys.add(key)
            shard.add(members)
            for extension, _ in fields:
                counts[extension] = counts.get(extension, 0) + 1
            _note_pages(packed, key, fields)
        if time.monotonic() - reported > _REPORT_SECONDS:
            if context.is_cancelled():
                raise CancelledTransferError
            context.report(done + 1, shard.member_bytes)
            reported = time.monotonic()


def _check_new(key: str, keys: set[str], shard: ShardFile) -> None:
    """Check that no sample of the shard has this key.

    Raises:
        SampleError: one has it.
    """
    if key in keys:
        raise SampleError(
            f"{shard.part.rpartition('.tar.')[0]}.tar: two samples have the key {shown(key)}",
            key=key,
            hint="number_keys",
        )


def _note_pages(packed: PackedShard, key: str, fields: Iterable[tuple[str, bytes]]) -> None:
    for extension, data in fields:
        if _is_page(extension, data):
            packed.no_pictures += 1
            packed.no_picture = packed.no_picture or key + extension


def _is_page(extension: str, data: bytes) -> bool:
    """True if a picture is really an error page of a server: a web page, XML or JSON."""
    return extension.rpartition(".")[2].lower() in _PICTURES and data[:64].lstrip()[:1] in (b"<", b"{")
