"""The framework of a job on many shards: its tasks, engine, failures, progress and end.

A job consists of its work (a module-level function, which any process can run) and a `ShardJob`, which takes the
results of the work and publishes the output. A `wids.jobs.journal` records the finished tasks of a run.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from wids.core.collection.joining import list_companions
from wids.core.collection.shard_collection import load_shards
from wids.core.index.paths import absolute
from wids.errors import InputError, SelectionError
from wids.jobs.arguments import check_index, check_value
from wids.jobs.engines import run
from wids.jobs.outcome import JobOutcome, JobProgress, raise_failure
from wids.jobs.progress import Progress, showing
from wids.jobs.runner import Engine, RunOptions, run_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from wids.core.collection.shard_collection import Shards
    from wids.core.index.selection import Selection
    from wids.core.index.shardlist import ShardList
    from wids.core.shard import Shard
    from wids.core.tables.table import GroupOptions
    from wids.core.transport.session import Session
    from wids.jobs.runner import TaskContext, TaskResult

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")
Outcome = TypeVar("Outcome", bound=JobOutcome)

_REMOTE_JOBS = 16


class ShardJob(Generic[K, R, Outcome]):
    """Collects shards into one output, in a ``with`` block.

    Type parameters: the job's name of a shard, the result of the work, the outcome.
    At any end of the block, no task is running, and the files for the next run are closed.

    Args:
        outcome: of the job; its ``shards`` is the number of shards, if known.
        verb: the work, for the bar, like ``indexing``.
        unit: of the bar.
        progress: the argument of the job's caller.
        is_skipping: a failed shard loses only its own result; otherwise the first failure ends the job.

    Attributes:
        outcome: the results so far.
        progress: of the job.
    """

    progress: JobProgress

    def __init__(
        self,
        outcome: Outcome,
        progress: Progress,
        verb: str,
        *,
        unit: Literal["bytes", "items"] = "items",
        is_skipping: bool = True,
    ) -> None:
        self.outcome, self.progress = outcome, JobProgress(shards=outcome.shards)
        self._is_skipping = is_skipping
        self._bar = showing(progress, verb, unit)
        self._stack = contextlib.ExitStack()
        self._show: Callable[[JobProgress], None] = lambda _: None
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        self._show = self._stack.enter_context(self._bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self.outcome.seconds = time.monotonic() - self._start

    def close_at_end(self, close: Callable[[], None]) -> None:
        """Register a function to call at the end of the block, the last one first."""
        self._stack.callback(close)

    def run(
        self,
        work: Callable[[T, TaskContext], R],
        tasks: Iterable[tuple[K, T]],
        options: RunOptions,
        *,
        node_of: Callable[[T], str] | None = None,
    ) -> None:
        """Run all tasks. Call `take` with each result, and `fail` with each error.

        Args:
            work: see `wids.jobs.engines.run`.
            tasks: pairs (name of the shard, task), iterated as earlier tasks end.
            options: the engine.
            node_of: see `wids.jobs.engines.run`.

        Raises:
            WidsError: a task failed, and failures are not skipped.
        """
        names: dict[int, K] = {}

        def given() -> Iterator[T]:
            for k, (name, task) in enumerate(tasks):
                names[k] = name
                yield task

        def report(k: int, *state: Any) -> None:
            if k in names:
                self.report(names[k], *state)

        self.show()
        results = run(work, given(), options, tick=self.show, on_report=report, node_of=node_of)
        with contextlib.closing(results):
            for result in results:
                name = names.pop(result.k)
                self.progress.ended += 1
                self.end(name, result)

    def show(self) -> None:
        """Show the progress; called several times a second."""
        self._show(self.progress)

    def end(self, name: K, result: TaskResult[R]) -> None:
        """A task has ended."""
        if result.error is None:
            self.take(name, result.get())
        else:
            self.fail(name, result.error)

    def take(self, name: K, found: R) -> None:
        """Take the result of the work on a shard."""
        raise NotImplementedError

    def report(self, name: K, *state: Any) -> None:
        """Take a report of a running task."""

    def fail(self, name: K, error: BaseException) -> None:
        """Record the failure of a shard, or end the job."""
        url = self.url_of(name)
        self.progress.failed += 1
        self.outcome.fail(url, error)
        if not self._is_skipping:
            raise_failure(url, error)

    def url_of(self, name: K) -> str:
        """The name of a shard in the outcome."""
        return str(name)


def choose_engine(engine: Engine, *, is_remote: bool, pays: bool = False) -> RunOptions:
    """Choose the engine that the caller left open: threads, or processes of this machine if they are faster.

    Args:
        engine: the argument of the job's caller.
        is_remote: some shards are remote, so the default is 16 threads.
        pays: the work is CPU-bound and long enough to be worth starting processes.
    """
    options, cores = run_options(engine), os.cpu_count() or 1
    if options.engine == "processes" or (options.is_automatic and pays and not is_remote and cores > 1):
        return options.resolve("processes", cores)
    return options.resolve("threads", _REMOTE_JOBS if is_remote else cores)


def select_shards(count: int, selected: slice) -> range:
    """The numbers of the selected shards, of ``count``.

    Raises:
        SelectionError: no shards are selected.
    """
    numbers = range(count)[selected]
    if count and not numbers:
        first, end = ("" if bound is None else bound for bound in (selected.start, selected.stop))
        raise SelectionError(f"shards {first}:{end}: there are no such shards; the index has {count}")
    return numbers


class SelectedShards(NamedTuple):
    """Shards of an index.

    Attributes:
        shards: each with its number, local ones by absolute path; those of companions have the numbers behind.
        numbers: their range.
        session: opens their URLs.
        selection: the samples of a view; None: all samples.
        grouping: how the index says that members become samples.
        own_shards: number of the index's own shards.
    """

    shards: list[tuple[int, Shard]]
    numbers: slice
    session: Session
    selection: Selection | None
    grouping: GroupOptions
    own_shards: int


def load_selected(index: Shards, selected: slice, session: Session) -> SelectedShards:
    """The selected shards of an index. A view has only the shards that contain its samples.

    Those of its companions follow; with a slice, numbers go on over them.

    Raises:
        InputError: an argument is of another type. SelectionError: no shards are selected.
        WidsError: the index cannot be read.
    """
    check_index(index)
    check_value("shards", selected, slice)
    asked = session
    _, listed, session = load_shards(index, session=session)
    chosen = listed.selection
    parts: list[tuple[int, ShardList, Sequence[int]]] = [(0, listed, range(len(listed)))]
    count = len(listed)
    for companion in list_companions(listed, session=asked):
        if companion.shards.grouping != listed.grouping:
            raise InputError(
                f"{companion.entry.index} groups members in another way than the index that it is joined to; give each "
                "of them by itself"
            )
        parts.append((count, companion.shards, companion.needed))
        count += len(companion.shards)
    numbers = select_shards(count, selected)
    shards = [
        (first + k, msgspec.structs.replace(part[k], url=absolute(part.urls[k])))
        for first, part, needed in parts
        for k in needed
        if first + k in numbers and (part is not listed or chosen is None or chosen.counts[k])
    ]
    return SelectedShards(shards, slice(numbers.start, numbers.stop), session, chosen, listed.grouping, len(listed))
