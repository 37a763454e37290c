"""Making the index of many shards: what is unchanged is not read again, what is killed goes on where it was.

Rules: one function for each shard (`wids.jobs.scan`), run by an engine (`wids.jobs.runner`). The result depends on
the shards and their order alone, not on the engine nor on what finishes first. The index appears in one step, whole.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from wids.errors import CacheError, SpecError, WidsError
from wids.index import urls, writing
from wids.index.table import SUFFIX as TABLE_SUFFIX
from wids.jobs import journal, runner, scan
from wids.jobs.discovery import find_shards
from wids.osfiles import atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wids.jobs.discovery import Found
    from wids.jobs.runner import Engine
    from wids.jobs.scan import Survey

EngineName: TypeAlias = Literal["auto", "threads", "processes", "ray"]
# Processes take half a second to start; threads of one interpreter read some so many bytes of headers' shards in that.
_PROCESSES_PAY_BYTES = 16 << 30
_REMOTE_JOBS, _RAY_JOBS = 16, 64


class Wanted(msgspec.Struct, kw_only=True, frozen=True):
    """How shards are indexed.

    Attributes:
        has_md5: with checksums. has_tables: with their member tables published.
        is_skipping: shards that cannot be read are left out, and told; else the first one ends it.
        jobs: shards at a time; None: by what they wait for.
        engine: what runs it; ``"auto"``: threads, and processes where there is much to do for the processor.
        ray_address: of the Ray cluster.
        storage_options: for fsspec.
    """

    has_md5: bool = False
    has_tables: bool = False
    is_skipping: bool = False
    jobs: int | None = None
    engine: EngineName = "auto"
    ray_address: str | None = None
    storage_options: dict[str, Any] | None = None


class Outcome(msgspec.Struct, kw_only=True):
    """What became of the shards, so far or in the end.

    Attributes:
        output: the index's path.
        shards, samples, members: in the index. bytes: of its shards.
        surveyed: shards that were read. unchanged: shards that were known from before.
        added, dropped: by an update.
        requests, read_bytes: byte ranges of remote shards.
        tables: where member tables are that could not be put beside their shards: place -> path.
        failed: place of a shard -> why it is left out.
        seconds: that it took.
    """

    output: str
    shards: int = 0
    samples: int = 0
    members: int = 0
    bytes: int = 0
    surveyed: int = 0
    unchanged: int = 0
    added: int = 0
    dropped: int = 0
    requests: int = 0
    read_bytes: int = 0
    tables: dict[str, str] = msgspec.field(default_factory=dict)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0


def create_index(
    sources: Iterable[str],
    output: str,
    *,
    name: str | None = None,
    info: str | None = None,
    base: str | None = None,
    wanted: Wanted | None = None,
    show: Callable[[Outcome, int], None] = lambda _outcome, _total: None,
) -> Outcome:
    """Write the index of the shards that ``sources`` name.

    Args:
        sources: see `wids.jobs.discovery.find_shards`.
        output: path of the index. Beside it stand its ``.state``, and until it is done its ``.journal``.
        name: of the dataset.
        info: what it is, in words.
        base: what URLs are relative to; see `wids.index.writing.place_entries` for what it does to them.
        wanted: how.
        show: called with the outcome so far, and the number of shards.

    Raises:
        SpecError: the sources name no shards. CacheError: the output cannot be written.
        WidsError: a shard cannot be read, and none is to be skipped.
    """
    wanted = wanted or Wanted()
    output = check_output(output)
    found = find_shards(sources, storage_options=wanted.storage_options)
    if not found:
        raise SpecError("no shards to index: give tars, directories, patterns or URLs")
    if any(shard.url == output for shard in found):
        raise SpecError(f"{output}: is one of the shards; give the index another name with -o", path=output)
    home = os.path.dirname(output)
    writing.place_entries([shard.url for shard in found], home=home, base=base)  # what cannot be, fails before the work
    indexing = Indexing(output, wanted, show)
    try:
        surveys = indexing.run(found)
        places = writing.place_entries([each.url for each in surveys], home=home, base=base)
        entries = [indexing.entry(each, place) for each, place in zip(surveys, places, strict=True)]
        indexing.publish(writing.make_index(entries, name=name, info=info, base=base), surveys)
    finally:
        indexing.close()
    return indexing.outcome


def check_output(output: str) -> str:
    """The absolute path of an index that is to be written.

    Raises:
        SpecError: it is a URL, a directory, a shard, or in a directory that does not exist.
    """
    if not urls.is_local(output):
        raise SpecError(f"{output}: an index is written to a local file; copy it there afterwards", path=output)
    path = os.path.abspath(os.path.expanduser(urls.local_path(output)))
    if os.path.isdir(path):
        raise SpecError(f"{output}: is a directory; give a file, like {os.path.join(output, 'train.json')}", path=path)
    if path.endswith(".tar"):
        raise SpecError(f"{output}: an index is a JSON file, and this is the name of a shard", path=path)
    if not os.path.isdir(os.path.dirname(path)):
        raise SpecError(f"{output}: there is no directory {os.path.dirname(path)}; make it first", path=path)
    return path


class Indexing:
    """Surveys of shards on their way into one index; to be closed.

    Attributes:
        outcome: what became of them so far.
    """

    def __init__(
        self,
        output: str,
        wanted: Wanted,
        show: Callable[[Outcome, int], None],
        *,
        is_dropping_missing: bool = False,
    ) -> None:
        self._is_dropping_missing = is_dropping_missing
        self.outcome = Outcome(output=output)
        self._output, self._wanted, self._show = output, wanted, show
        self._start = time.monotonic()
        self._table_names: dict[str, str] = {}
        self._journal = journal.Journal(output)

    def close(self) -> None:
        """Give back what is held; what was read stays known for the next run, if the index is not there."""
        self._journal.close()

    def run(self, found: Sequence[Found]) -> list[Survey]:
        """Survey the shards; those that could not be read are left out, if that is wanted.

        Raises:
            WidsError: one cannot be read and none is to be skipped, or none can be.
        """
        self._name_tables(found)
        known = {shard.url: self._known(shard) for shard in found}
        done: dict[str, Survey] = {}
        tasks = []
        for shard in found:
            before = known[shard.url]
            if before is not None and shard.mark and (shard.size, shard.mark) == before.version():
                done[shard.url] = self._take(msgspec.structs.replace(before, is_unchanged=True), len(found))
            else:
                tasks.append(self._task(shard, before))
        if tasks:
            engine, jobs = self._engine(tasks, found)
            answers = iter(engine(scan.try_survey, tasks, jobs=jobs))
            try:
                for k, answer in answers:
                    done[tasks[k].url] = self._take(answer, len(found))
            finally:
                close = getattr(answers, "close", None)  # at once, and not when somebody collects it
                if close is not None:
                    close()
        surveys = [done[shard.url] for shard in found if done[shard.url].failure is None]
        outside = self.outcome.tables
        self.outcome.tables = {shard.url: outside[shard.url] for shard in found if shard.url in outside}
        failed = self.outcome.failed
        self.outcome.failed = {shard.url: failed[shard.url] for shard in found if shard.url in failed}
        if not surveys:
            raise WidsError(f"none of {len(found):,} shards can be read; the first: {done[found[0].url].failure}")
        return surveys

    def entry(self, found: Survey, place: str) -> dict[str, Any]:
        """The entry of a shard that is written as ``place``."""
        entry = {**found.entry(), "url": place}
        if not self._wanted.has_md5:
            entry.pop("md5sum", None)
        return entry

    def publish(self, index: dict[str, Any], surveys: Sequence[Survey]) -> None:
        """Write the index, and what the next run need not read again.

        Raises:
            CacheError: they cannot be written; what was read stays known.
        """
        try:
            atomic.write_atomically(self._output, writing.dump_index(index))
            self._journal.finish(surveys)
        except OSError as error:
            raise CacheError(
                f"{self._output}: cannot be written ({error}); free space, and run it again", path=self._output
            ) from error
        outcome, entries = self.outcome, index["shardlist"]
        outcome.shards = len(entries)
        outcome.samples, outcome.bytes = (sum(each[key] for each in entries) for key in ("nsamples", "filesize"))
        outcome.members = sum(each.nmembers for each in surveys)
        outcome.seconds = time.monotonic() - self._start

    def _known(self, shard: Found) -> Survey | None:
        """What is known of it from before, if that is all that is wanted."""
        known = self._journal.known.get(shard.url)
        if known is None or (self._wanted.has_md5 and known.md5sum is None):
            return None
        if self._wanted.has_tables:
            if not known.has_table:  # what lies there may be of the shard that was there before
                return None
            places = [self._table_names[shard.url]]
            places += [urls.local_path(shard.url) + TABLE_SUFFIX] if urls.is_local(shard.url) else []
            if urls.is_local(shard.url) and not any(map(os.path.exists, places)):
                return None
        return known

    def _task(self, shard: Found, known: Survey | None) -> scan.Task:
        wanted = self._wanted
        return scan.Task(
            url=shard.url,
            known=None if urls.is_local(shard.url) else known,
            has_md5=wanted.has_md5,
            has_table=wanted.has_tables,
            storage_options=wanted.storage_options,
        )

    def _take(self, answer: Survey, total: int) -> Survey:
        outcome = self.outcome
        if answer.failure is not None:
            is_told = not (answer.is_missing and self._is_dropping_missing)
            if is_told and not self._wanted.is_skipping:
                raise WidsError(answer.failure)
            if is_told:
                outcome.failed[answer.url] = answer.failure
        else:
            if answer.table is not None:
                self._keep_table(answer)
            if not answer.is_unchanged:
                self._journal.add(answer)
            outcome.unchanged += answer.is_unchanged
            outcome.surveyed += not answer.is_unchanged
            outcome.bytes += answer.filesize
            outcome.samples += answer.nsamples
            outcome.requests += answer.requests
            outcome.read_bytes += answer.read_bytes
        self._show(outcome, total)
        return answer

    def _name_tables(self, found: Sequence[Found]) -> None:
        """Where member tables go whose place beside their shard cannot be written: beside the index."""
        home, taken = os.path.dirname(self._output), set()
        for shard in found:
            name = urls.basename_of(shard.url)
            if name in taken:
                name = urls.cache_name(shard.url)
            taken.add(name)
            self._table_names[shard.url] = os.path.join(home, name + TABLE_SUFFIX)

    def _keep_table(self, answer: Survey) -> None:
        """Put a member table beside the index."""
        path = self._table_names[answer.url]
        atomic.write_atomically(path, answer.table or b"")
        answer.table, answer.has_table = None, True
        self.outcome.tables[answer.url] = path

    def _engine(self, tasks: Sequence[scan.Task], found: Sequence[Found]) -> tuple[Engine, int]:
        wanted = self._wanted
        cores = os.cpu_count() or 1
        if wanted.engine == "ray":
            return runner.on_ray(wanted.ray_address), wanted.jobs or _RAY_JOBS
        is_remote = any(not urls.is_local(task.url) for task in tasks)
        size = sum(shard.size or 0 for shard in found)
        is_worth = not is_remote and not wanted.has_md5 and size > _PROCESSES_PAY_BYTES and min(cores, len(tasks)) > 1
        if wanted.engine == "processes" or (wanted.engine == "auto" and is_worth):
            return runner.run_in_processes, wanted.jobs or cores
        return runner.run_in_threads, wanted.jobs or (_REMOTE_JOBS if is_remote else cores)
