"""Writing one shard of a plan: what every process does, and one alone.

Rules: a function of the task. A sample that cannot be read ends it, or is left out and told; what is left out is left
out whole. What goes wrong leaves no file behind.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import SampleError, WidsError
from wids.index import urls
from wids.transport.upload import Target, local_path
from wids.writing.pack.listing import Problem, Reader
from wids.writing.pack.plan import Task, number_key
from wids.writing.shard_file import ShardFile
from wids.writing.writer import name_members

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.index.pattern import ShardPattern

_TELL_SECONDS = 0.2


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a run have in common; pickled into each process.

    Attributes:
        reader: of the source's items.
        pattern: where shards go.
        directory: local, for shards that go to a remote place.
        numbers_keys: samples are called by their number.
        skips_errors: leave out what cannot be read.
        md5, tables: see `wids.writing.writer.ShardWriter`.
        storage_options: for fsspec.
    """

    reader: Reader
    pattern: ShardPattern
    directory: str | None
    numbers_keys: bool
    skips_errors: bool
    md5: bool
    tables: bool
    storage_options: dict[str, Any] | None


class Done(msgspec.Struct, kw_only=True):
    """A shard that is written.

    Attributes:
        k: its number. inputs: as in its task.
        entry: what the index says of it; None: all its samples were left out, and it was not written.
        mtime_ns: of the file; 0 where that is not known.
        skipped: what was left out.
    """

    k: int
    inputs: str
    entry: dict[str, Any] | None
    mtime_ns: int = 0
    skipped: list[Problem] = msgspec.field(default_factory=list)


def write_shard(job: Job, task: Task, tell: Callable[[int, int], None]) -> Done:
    """Write and publish a shard.

    Args:
        job: of the run.
        task: which.
        tell: called now and then, and before the shard appears, with (samples, bytes) since the last call; what it
            raises ends the shard.

    Raises:
        WidsError: a sample cannot be read (unless that is skipped), or the shard cannot be written.
    """
    url = job.pattern.url(task.k)
    name = urls.basename_of(url)
    path = local_path(url) if job.directory is None else os.path.join(job.directory, name)
    shard = ShardFile(path, url=url, has_md5=job.md5)
    done = Done(k=task.k, inputs=task.inputs, entry=None)
    target = Target(job.storage_options)
    try:
        _fill(shard, job, task, done, tell)
        if shard.nsamples:
            facts, table = shard.finish()
            target.put_shard(shard.part, url, table if job.tables else None)
            done.entry = {"url": name, **facts}
            done.mtime_ns = (target.describe(url) or (0, 0))[1]
    finally:
        shard.discard()
    return done


def _fill(shard: ShardFile, job: Job, task: Task, done: Done, tell: Callable[[int, int], None]) -> None:
    told, samples, before = time.monotonic(), 0, 0
    keys = set()
    for position, item in enumerate(task.items, task.first):
        try:
            key, fields = job.reader.read(item)
            if job.numbers_keys:
                key = number_key(position)
            members = name_members(key, fields)
            if key in keys:
                raise SampleError(
                    f"{shard.part.rpartition('.tar.')[0]}.tar: two samples have the key {key!r}; number them with "
                    "--number-keys",
                    key=key,
                )
        except WidsError as error:
            if not job.skips_errors:
                raise
            done.skipped.append(Problem(f"sample {position}", str(error)))
        else:
            keys.add(key)
            shard.add(members)
        samples += 1
        if time.monotonic() - told > _TELL_SECONDS:
            tell(samples, shard.member_bytes - before)
            told, samples, before = time.monotonic(), 0, shard.member_bytes
    tell(samples, shard.member_bytes - before)
