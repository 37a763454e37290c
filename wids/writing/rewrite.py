"""Writes shards anew without the samples that a view leaves out, so that their bytes are gone.

`wids.writing.reshard` writes all samples of a dataset into other shards instead.

Rules: what stays of a shard is copied as it is, headers and all, in its order. A new shard has a name of its own, which
follows from the old one and from what is gone, and its entry says what it was made of (`wids.core.index.changes`).
Nothing else is changed or deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.collection.keys import Keys
from wids.core.collection.shard_collection import load_shards
from wids.core.collection.views import choose, find_samples
from wids.core.files import atomic, system
from wids.core.files.own_folder import default_cache_dir
from wids.core.files.replaced import ReplacedFile
from wids.core.index import checksums, compiled, writing
from wids.core.index.changes import REWRITTEN
from wids.core.index.paths import absolute, check_index_replaceable, check_output, named_packs
from wids.core.index.shardlist import said_grouping
from wids.core.index.view_file import KEY as COMPANIONS
from wids.core.place import Place, cache_directory
from wids.core.tables import headers, tar
from wids.core.tables.table import is_standard
from wids.core.transport.failures import CancelledTransferError
from wids.errors import ChangedShardError, InputError, OutputExistsError, SelectionError, ShardError
from wids.jobs.arguments import check_job, text_of
from wids.jobs.index_edit import flat_entry
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.journal import JobJournal
from wids.jobs.view_edit import IndexToMerge, common_keys
from wids.writing.output import ShardTarget
from wids.writing.pack.datasets import open_companions, open_dataset
from wids.writing.reshard import Source, check_settings, first_shard, reshard
from wids.writing.rewrite_settings import RewriteOutcome, RewriteSettings
from wids.writing.shard_file import ShardFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from wids.core.collection.companions import Companion
    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.selection import Integers
    from wids.core.index.shardlist import ShardList
    from wids.core.readers.base import Reader
    from wids.core.tables.table import MemberTable
    from wids.core.transport.session import Session
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine, TaskContext

SUFFIX = ".rewriting"
_HEADER = b'{"what": "shards that wids rewrite has finished; run it again to go on"}'
_COPY_BYTES = 8 << 20
_DIGITS = 8
_FACTS = ("nsamples", "filesize", *checksums.KEYS)  # of a shard, in its entry
_OWN_NAME = re.compile(rf"-[0-9a-f]{{{_DIGITS}}}$")


class RewriteTask(NamedTuple):
    """One shard to write.

    Attributes:
        k: the number of the old one.
        url: of the new one.
        gone: the rows that it has no more: ascending.
    """

    k: int
    url: str
    gone: Integers


class RewrittenShard(msgspec.Struct, kw_only=True):
    """A written shard.

    Attributes:
        url: its URL.
        entry: what its index says of its bytes.
        mtime_ns: of the file; 0 if unknown.
    """

    url: str
    entry: dict[str, Any]
    mtime_ns: int = 0


def rewrite_shards(
    view: str | PathLike[str],
    output: str | PathLike[str],
    *,
    settings: RewriteSettings = RewriteSettings(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> RewriteOutcome:
    """Write shards of a view anew without the samples that it leaves out, or a dataset into new shards; and an index.

    With settings of new shards (``samples`` to ``numbers_keys``), and of a joined index, all samples are written, with
    the fields of companions, into shards named after the index (``train-000000.tar`` beside ``train.json``). Their
    bytes depend on the data and the settings alone.

    Without these, a shard with all of its samples stays where it is, and one without any is in the index no more. Files
    that are part of no sample are not copied. The old shards stay too: delete them, and what was made of them (tables,
    columns), when no job reads them any more.

    Args:
        view: path or URL of a view, of a joined index, or of an index with ``exclude`` or settings of new shards.
        output: path or URL of the new index, which ends in ``.json``, or of its directory; new shards are beside it.
        settings: of the job.
        engine: runs the tasks; by default threads, and for new shards as of `pack`.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Raises:
        InputError: an argument is of another type; nothing is left out. SelectionError: no sample stays.
        OutputExistsError: a file exists that must not be replaced. OutputError: the output cannot be written.
        WidsError: a shard cannot be read; finished ones stay for the next run.

    Example:
        >>> wids.ShardListDataset("train.json").exclude([1]).save("view.json")
        >>> outcome = jobs.rewrite_shards("view.json", "clean/train.json")
        >>> outcome.samples
        11
        >>> settings = jobs.RewriteSettings(samples=5, seed=1)
        >>> jobs.rewrite_shards("train.json", "mixed", settings=settings, engine=jobs.RunOptions(jobs=1)).new
        3
    """
    settings = check_job(settings, RewriteSettings, engine, progress)
    place, index = absolute(text_of("view", view)), absolute(text_of("output", output))
    check_settings(settings)
    _, shards, session = load_shards(place, session=settings.session)
    is_whole = settings.is_whole or bool(shards.header.get(COMPANIONS))
    if shards.selection is None and not settings.exclude and not is_whole:
        raise InputError(
            f"{place}: leaves out no sample; give a view or exclude=, or say what new shards are to have, like size=",
            parameter="exclude",
        )
    collection = _open(shards, settings, session)
    shards = collection.shards
    if not len(collection):
        raise SelectionError(f"{place}: no samples would be left", path=index)
    parent = place if shards.header.get("view_of") is None else shards.header["view_of"]
    if not Place(index).name.endswith((".json", ".tar", compiled.SUFFIX)):
        index = str(Place(f"{index.rstrip('/')}/{writing.stem_of(parent)}.json"))
    if is_whole:
        cache_dir = _cache_of(settings)
        companions = open_companions(collection, place, cache_dir=cache_dir, session=settings.session)
        if not settings.is_trial:
            _open_output(index, place, parent, [*shards.urls, first_shard(index)], settings, companions)
        source = Source(place, collection, companions, cache_dir)
        return reshard(source, index, settings, engine=engine, progress=progress)
    return _rewrite_some(collection, (place, parent, index), settings, engine=engine, progress=progress)


def _rewrite_some(
    collection: ShardCollection,
    places: tuple[str, str, str],
    settings: RewriteSettings,
    *,
    engine: Engine,
    progress: Progress,
) -> RewriteOutcome:
    """Write the shards anew that lack samples; see `rewrite_shards`.

    Args:
        collection: of the samples that stay.
        places: of its index, of the index that this is a view of, of the new index.
        settings: of the job.
        engine: runs the tasks.
        progress: called regularly with the progress.
    """
    shards, (place, parent, index) = collection.shards, places
    tasks = list(_plan(shards, str(Place(index).directory)))
    outcome = RewriteOutcome(index=index, shards=len(tasks), samples=len(collection))
    outcome.removed = sum(shards.nsamples) - outcome.samples
    outcome.written = {shards.urls[task.k]: task.url for task in tasks}
    lengths = list(zip(shards.urls, shards.lengths, shards.nsamples, strict=True))
    outcome.dropped = [url for url, length, count in lengths if not length and count]
    outcome.unchanged = sum(length == count for _, length, count in lengths)
    if settings.is_trial:
        outcome.shards = outcome.unchanged + len(tasks)
        return outcome
    target = ShardTarget(settings.session)
    file = _open_output(index, place, parent, [*shards.urls, *(task.url for task in tasks)], settings)
    journal = JobJournal(index, SUFFIX, RewrittenShard, writer="wids rewrite", target=target, header=_HEADER)
    try:
        with _Rewriting(outcome, progress, journal, target) as rewriting:
            journal.begin()
            remote = [url for task in tasks for url in (shards.urls[task.k], task.url) if not Place(url).is_local]
            work = partial(rewrite_shard, RewriteJob(collection, settings.session))
            rewriting.run(work, rewriting.unfinished(tasks), choose_engine(engine, is_remote=bool(remote)))
            text = writing.dump_index(_compose(place, index, shards, tasks, rewriting.done))
            if file is None:
                target.put_bytes(text, index)
            else:
                with file.alone():
                    atomic.write_atomically(index, text)
            journal.remove()
    finally:
        journal.close()
    outcome.shards = outcome.unchanged + len(tasks)
    outcome.bytes = sum(each.entry["filesize"] for each in rewriting.done.values())
    return outcome


def _open_output(
    index: str,
    place: str,
    parent: str,
    shards: Sequence[str],
    settings: RewriteSettings,
    companions: Sequence[Companion] = (),
) -> ReplacedFile | None:
    """Make the directory of the new index, and check that the index may be written; return it if it is a local file.

    Raises:
        OutputExistsError: it exists, and is not to be replaced. OutputError: it cannot be written.
    """
    target = ShardTarget(settings.session)
    target.make_directory(index)
    if Place(index).is_local:
        file = ReplacedFile(check_output(index))
        inputs = [(place, "the index that it is made of"), (absolute(parent), f"the index that {place} is a view of")]
        names = [url for each in companions if (url := each.collection.index_url) is not None]
        inputs += [(name, f"the index of a companion of {place}") for name in names]
        check_index_replaceable(index, inputs=inputs, shards=shards, overwrite=settings.overwrite)
        return file
    if target.describe(index) is not None and not settings.overwrite:
        raise OutputExistsError(
            f"{index}: exists; write elsewhere, or pass overwrite=True", url=index, hint="overwrite"
        )
    return None


def _cache_of(settings: RewriteSettings) -> str:
    """The directory of remote files."""
    return cache_directory(settings.cache_dir or default_cache_dir())


def _open(shards: ShardList, settings: RewriteSettings, session: Session) -> ShardCollection:
    """The samples that stay."""
    collection = open_dataset(shards, cache_dir=_cache_of(settings), session=session)
    for path in settings.exclude:
        kept = np.ones(len(collection), np.bool_)
        kept[find_samples(path, Keys(collection, of=path), collection)] = False
        collection = collection.select(choose(collection.shards, np.flatnonzero(kept)))
    return collection


def _plan(shards: ShardList, home: str) -> Iterator[RewriteTask]:
    """The shards to write; those that a list has twice with the same samples have one name."""
    taken = dict[str, str]()
    for k, (count, length) in enumerate(zip(shards.nsamples, shards.lengths, strict=True)):
        if not 0 < length < count or shards.selection is None:
            continue
        old = shards[k]
        gone = np.setdiff1d(np.arange(count), np.asarray(shards.selection.rows_of(k), np.int64))
        stem = old.place.name.removesuffix(".tar")
        if REWRITTEN in (shards.extras.get(k) or {}):
            stem = _OWN_NAME.sub("", stem)
        facts = (stem, count, old.filesize, old.md5sum, old.crc32, gone.tolist())
        for identity in (facts, (*facts, old.place.absolute.unsigned)):
            digest = hashlib.sha256(repr(identity).encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]
            url = str(Place(home).join(f"./{stem}-{digest}.tar"))
            if taken.setdefault(url, old.url) == old.url:
                break
        yield RewriteTask(k, url, gone)


class RewriteJob(NamedTuple):
    """The common data of all shards of a run; pickled into each process.

    Attributes:
        collection: of the old shards.
        session: opens URLs of new ones.
    """

    collection: ShardCollection
    session: Session


def rewrite_shard(job: RewriteJob, task: RewriteTask, context: TaskContext) -> RewrittenShard:
    """Write and publish a shard.

    Raises:
        WidsError: the old one cannot be read, or the new one cannot be written.
        CancelledTransferError: it was cancelled.
    """
    target = ShardTarget(job.session)
    grouping = job.collection.shards.grouping
    with ExitStack() as stack:
        reader = stack.enter_context(job.collection.pinned(task.k))
        shard = ShardFile.begin(task.url, stack, work="rewrite")
        rows = np.setdiff1d(np.arange(len(reader.table)), task.gone).tolist()
        _copy(shard, reader, rows, context)
        entry, table = shard.finish()
        table = shard.scan(table.identity, grouping)
        _check_same(table, reader.table, rows, reader.url)
        target.put_shard(shard.part, task.url, table if is_standard(**grouping) else None)
        if job.collection.shards.md5sums[task.k] == "":
            del entry["md5sum"]
        return RewrittenShard(url=task.url, entry=entry, mtime_ns=(target.describe(task.url) or (0, 0))[1])


def _copy(shard: ShardFile, reader: Reader, rows: Sequence[int], context: TaskContext) -> None:
    """Copy the members of samples.

    Raises:
        ChangedShardError: the file has another size than when it was opened.
    """
    table, size = reader.table, reader.table.identity.size
    members = [m for row in rows for m in range(table.starts[row], table.starts[row + 1])]
    data_of = {m: table.offsets[m] for m in members}
    wanted = {table.links.get(m, offset - headers.BLOCK): m for m, offset in data_of.items()}
    there = {offset for m, offset in data_of.items() if m not in table.links}
    fd = os.open(reader.path, os.O_RDONLY | os.O_CLOEXEC)
    try:

        def read(offset: int, count: int) -> bytes:
            data = system.pread(fd, count, offset)
            if len(data) < min(count, size - offset):
                raise ChangedShardError(f"{reader.url}: has changed while it was read", shard=reader.url)
            return data

        def copy(first: int, end: int) -> None:
            for at in range(first, end, _COPY_BYTES):
                if context.is_cancelled():
                    raise CancelledTransferError
                shard.copy(read(at, min(_COPY_BYTES, end - at)))

        for header, name, pieces in tar.split_members(read, size, shard=reader.url):
            m = wanted.get(header)
            if m is not None and m in table.links and data_of[m] not in there:
                # A link to a file that is gone becomes the file.
                shard.copy(headers.member_head(name, table.sizes[m]))
                copy(data_of[m], data_of[m] + table.sizes[m])
                shard.copy(bytes(-table.sizes[m] % headers.BLOCK))
            elif m is not None or header < 0:
                for first, end in pieces:
                    copy(first, end)
    finally:
        os.close(fd)
    shard.nsamples = len(rows)


def _check_same(new: MemberTable, old: MemberTable, rows: Sequence[int], url: str) -> None:
    """Check that a new shard has these samples of the old one.

    Raises:
        ShardError: it does not.
    """
    kept = [(old.key(row), [(name, size) for name, _, size in old.members(row)]) for row in rows]
    there = [(new.key(row), [(name, size) for name, _, size in new.members(row)]) for row in range(len(new))]
    if kept != there:
        raise ShardError(
            f"{url}: what stays would be {len(there)} samples, not {len(rows)}: without those between them, parts that "
            "have one key would be one sample; pack the view (wids pack)",
            shard=url,
        )


class _Rewriting(ShardJob[str, RewrittenShard, RewriteOutcome]):
    """Collects the new shards.

    Attributes:
        done: finished ones, by URL.
    """

    def __init__(
        self, outcome: RewriteOutcome, progress: Progress, journal: JobJournal[RewrittenShard], target: ShardTarget
    ) -> None:
        super().__init__(outcome, progress, "rewriting", is_skipping=False)
        self.done: dict[str, RewrittenShard] = {}
        self._journal, self._target = journal, target

    def unfinished(self, tasks: Sequence[RewriteTask]) -> Iterator[tuple[str, RewriteTask]]:
        """The shards that no earlier run has written."""
        before = {each.url: each for each in self._journal.before}
        for url, task in {task.url: task for task in tasks}.items():
            known = before.get(url)
            if known is None or self._target.describe(url) != (known.entry["filesize"], known.mtime_ns):
                yield url, task
                continue
            self.done[url] = known
            self.outcome.known += 1
            self.progress.ended += 1

    def take(self, name: str, found: RewrittenShard) -> None:
        """Record a finished shard."""
        self.done[name] = found
        self._journal.add(found)
        self.progress.bytes += found.entry["filesize"]


def _origin(said: dict[str, Any], directory: Place, home: str) -> dict[str, Any]:
    """The shard that a new one is made of, and those that this was made of, as the new entry says them.

    Args:
        said: of the shard, in its own entry.
        directory: what URLs in it are relative to.
        home: the directory of the new shard.
    """
    url = writing.written(directory.join(said["url"]).absolute.unsigned, home)
    found = {"url": url, **{key: said[key] for key in (*_FACTS, "without") if key in said}}
    before = said.get(REWRITTEN)
    return {**found, REWRITTEN: _origin(before, directory, home)} if before else found


def _compose(
    place: str, index: str, shards: ShardList, tasks: Sequence[RewriteTask], done: dict[str, RewrittenShard]
) -> dict[str, Any]:
    """The new index."""
    home, tasks_of = str(Place(index).directory), {task.k: task for task in tasks}
    urls, entries = list[str](), list[dict[str, Any]]()
    for k, (length, count) in enumerate(zip(shards.lengths, shards.nsamples, strict=True)):
        if not length and count:
            continue
        entry = flat_entry(shards, k, place)
        if (task := tasks_of.get(k)) is None:
            urls.append(absolute(entry["url"]))
            entries.append(entry)
            continue
        facts = {key: entry.pop(key) for key in _FACTS if key in entry}
        origin = _origin({**entry, **facts, "without": task.gone.tolist()}, Place(entry["url"]).directory, home)
        urls.append(task.url)
        entries.append({**entry, **done[task.url].entry, REWRITTEN: origin})
    named = writing.place_entries(urls, home=home)
    common, _ = common_keys([IndexToMerge(place, shards, [])], index)
    head = {**writing.make_head(name=shards.header.get("name")), **common, **said_grouping(shards.header)}
    packs = {} if tasks else named_packs(shards.all_packs(), home)  # they have the keys of all samples
    return {**head, **packs, "shardlist": [{**each, "url": url} for each, url in zip(entries, named, strict=True)]}
