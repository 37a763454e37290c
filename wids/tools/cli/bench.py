"""``wids bench``: how well a loader keeps accelerators at work, which are emulated: a step of training is a sleep.

Each rank is a process in a session of its own, with the dataset, the sampler and the DataLoader of a training program.
It makes three passes, in each of them beside all other ranks: with steps, without steps, and one in which a single
worker takes the time of each part of its work. The module is also what the ranks import: torch loads in them, and in
the command only where a named function's module imports it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass, fields
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, cast

import typer

from wids.core.files.terminal import progress
from wids.core.transport.session import PLAIN
from wids.errors import InputError, JobError, WidsError, WorkerError
from wids.jobs.processes import signals_blocked
from wids.tools.cli.format import count_of, format_rate, format_size, parse_size, print_json, print_table, print_text
from wids.tools.cli.options import BatchOptions, CacheDir, Index, Json, OrderOptions, ReadFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.signals import EndedBySignal, Signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from typing_extensions import Self

    from wids.core.transport.session import Session
    from wids.dataset import ShardListDataset

_JOB, _READING = "The job", "Reading"
_MAX, _MAX_RANKS, _MAX_WORKERS, _MAX_SECONDS = 10**12, 4096, 1024, 1e6
_END_SECONDS = 5.0
_COLLATIONS = ("default", "list")
_PASSES = ("with steps", "without steps", "taking times")
# What a sample goes through: the key of its seconds, and its name in the table.
PARTS = {
    "read": "reading its bytes",
    "decode": "decoding",
    "transform": "transformation",
    "collate": "collation",
    "cross": "from the worker to the loop",
    "rest": "the loader (indices, requests to the worker)",
}
# What workers do.
_WORK = ("read", "decode", "transform", "collate")
_PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}

app: App = App()


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The emulated job: its ranks, steps and loaders."""

    step: Annotated[
        float,
        typer.Option(
            min=1e-6, max=_MAX_SECONDS, metavar="S", help="Seconds of computing in a step.", rich_help_panel=_JOB
        ),
    ]
    batch_size: Annotated[
        int, typer.Option(min=1, max=_MAX, metavar="N", help="Samples in a rank's batch.", rich_help_panel=_JOB)
    ]
    ranks: Annotated[
        int,
        typer.Option(min=1, max=_MAX_RANKS, metavar="N", help="Processes, an accelerator each.", rich_help_panel=_JOB),
    ] = 1
    workers: Annotated[
        int,
        typer.Option(min=0, max=_MAX_WORKERS, metavar="N", help="DataLoader workers of a rank.", rich_help_panel=_JOB),
    ] = 0
    has_threads: Annotated[
        bool,
        typer.Option(
            "--threads",
            help="The workers are threads of the rank: wids.resumable(loader, workers='threads').",
            rich_help_panel=_JOB,
        ),
    ] = False
    prefetch_factor: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX_WORKERS,
            metavar="N",
            help="Batches that a worker makes ahead. Default: the DataLoader's.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None
    persistent_workers: Annotated[
        bool,
        typer.Option(
            "--persistent-workers/--no-persistent-workers",
            help="Workers live on between epochs.",
            rich_help_panel=_JOB,
        ),
    ] = False
    epochs: Annotated[int, typer.Option(min=1, max=_MAX, metavar="N", help="Epochs.", rich_help_panel=_JOB)] = 1
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MAX,
            metavar="N",
            help="Steps of a rank in each of the three passes, at most. Default: those of the epochs.",
            show_default=False,
            rich_help_panel=_JOB,
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            min=0.001, max=_MAX_SECONDS, metavar="S", help="Seconds of each pass, at most.", rich_help_panel=_JOB
        ),
    ] = 30.0
    warmup: Annotated[
        int,
        typer.Option(
            min=0,
            max=_MAX,
            metavar="N",
            help="Steps at the beginning of each epoch that do not count.",
            rich_help_panel=_JOB,
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class BenchReading:
    """How samples are had, and what becomes of them."""

    decode: Annotated[
        Literal["PIL", "numpy", "torch", "raw", "none"],
        typer.Option(help="The format of the fields (transformations=).", rich_help_panel=_READING),
    ] = "PIL"
    transform: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Applied to each decoded sample; modules of the current directory are found, too.",
            rich_help_panel=_READING,
        ),
    ] = ""
    collate: Annotated[
        str,
        typer.Option(
            metavar="default|list|MODULE:FUNCTION",
            help="What makes a batch: the DataLoader's default, or a list of the samples. Default: a list, with "
            "--transform default.",
            show_default=False,
            rich_help_panel=_READING,
        ),
    ] = ""
    access: Annotated[
        Literal["fetch", "range", "auto"],
        typer.Option(help="Remote shards are downloaded, or samples read by byte ranges.", rich_help_panel=_READING),
    ] = "fetch"
    cache_size: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Bytes that the cache may hold. Default: as many as the disk has.",
            show_default=False,
            rich_help_panel=_READING,
        ),
    ] = None
    cache_dir: CacheDir = ""


@app.command(
    "bench",
    epilog=examples(
        "wids bench train.json --batch-size 400 --step 0.224 \\\n  --ranks 2 --workers 2",
        "wids bench train.json --batch-size 32 --step 0.1 \\\n"
        "  --workers 4 --transform train:make_sample \\\n"
        "  --steps 200",
    ),
)
def run_bench(
    index: Index,
    *,
    job: JobOptions,
    reading: BenchReading,
    order: OrderOptions,
    session: SessionFlag = PLAIN,
    is_json: Json = False,
) -> None:
    """Measure how well a loader feeds emulated accelerators: their utilisation, as MLPerf Storage has it.

    Each rank is a process with the dataset, sampler and DataLoader of a training program; a step is a sleep. Three
    passes: with steps (utilisation, waits), without steps (how much faster the loader is), and one with a single worker
    that takes the time of each part of its work.
    """
    if not job.workers and (job.prefetch_factor is not None or job.persistent_workers):
        raise typer.BadParameter("--prefetch-factor and --persistent-workers are of --workers, of which there are none")
    if not job.workers and job.has_threads:
        raise typer.BadParameter("--threads says what --workers are, of which there are none")
    if job.steps is not None and job.steps <= job.warmup:
        raise typer.BadParameter(f"--steps {job.steps:,}: the first {job.warmup:,} (--warmup) do not count")
    plan = _BenchPlan(index, job, reading, order, session.storage_options)
    with Signals():
        _check_functions(reading)
        _check_samples(plan, session)
        with _Ranks(plan) as ranks, progress() as bar:
            found = []
            for number, words in enumerate(_PASSES):
                bar.update(number, total=len(_PASSES), words=words)
                found.append(ranks.run(number))
    report = _summarise(plan, *found)
    if is_json:
        print_json(report)
    else:
        _show(plan, report)


@dataclass(frozen=True)
class _BenchPlan:
    """What a rank needs to know; it travels to their processes."""

    index: str
    job: JobOptions
    reading: BenchReading
    order: OrderOptions
    options: dict[str, Any] | None


# --- what this process sees before it starts a rank, which takes seconds


def _check_functions(reading: BenchReading) -> None:
    """See that ranks can import the named functions.

    Raises:
        InputError: one cannot be imported.
    """
    before, collate = sys.path[:], "" if reading.collate in _COLLATIONS else reading.collate
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a module prints is no part of the report
            for name, text in (("transform", reading.transform), ("collate", collate)):
                if text:
                    sys.path.insert(0, os.getcwd())
                    _import(name, text)
    finally:
        sys.path[:] = before


def _check_samples(plan: _BenchPlan, session: Session) -> None:
    """See that each rank has batches that count.

    Raises:
        typer.BadParameter: the sampler has no such order. InputError: there are too few samples. WidsError: see
            `Listed`.
    """
    from wids.core.order.layout import ShardCounts
    from wids.core.order.population import sampler_config
    from wids.tools.cli.look.listed import Listed

    job = plan.job
    listed = Listed(plan.index, ReadFlags(cache_dir=plan.reading.cache_dir, session=session))
    if len(listed) < job.ranks:
        raise InputError(f"{job.ranks} ranks are more than the {count_of(len(listed), 'sample')} of {plan.index}")
    weights = plan.order.read_weights(listed.reader_of(BatchOptions()))
    try:
        settings = plan.order.settings(world_size=job.ranks, epoch_size=None)
        config = sampler_config(ShardCounts(listed.shards.lengths), listed.mixed_parts(), settings, weights=weights)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    samples = config.count(config.first_place(0))
    if (batches := samples // job.batch_size) <= job.warmup:
        raise InputError(
            f"a rank has {count_of(samples, 'sample')} in an epoch, which are {batches:,} whole batches of "
            f"{job.batch_size:,}, and the first {job.warmup:,} do not count: take a smaller batch size or fewer ranks"
        )


# --- the ranks, as this process sees them


class _Ranks:
    """The processes; the end of the ``with`` block ends them and their workers, however it comes."""

    def __init__(self, plan: _BenchPlan) -> None:
        self._plan = plan
        self._processes: list[SpawnProcess] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        try:
            for rank in range(self._plan.job.ranks):
                ours, its = context.Pipe()
                process = context.Process(target=_serve, args=(its, rank, self._plan), name="wids-rank")
                with signals_blocked():
                    process.start()
                    self._processes.append(process)
                    self._connections.append(ours)
                its.close()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, number: int) -> list[dict[str, Any]]:
        """What each rank found in a pass, which all begin when all are ready.

        Raises:
            WidsError: of a rank. WorkerError: a rank's process has ended.
        """
        self._take()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it has ended, as `_take` will find out
                connection.send(number)
        return self._take()

    def _take(self) -> list[Any]:
        """One answer of each rank; the first error is raised when it comes."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._connections):
            waiting = [each for rank, each in enumerate(self._connections) if rank not in answers]
            for connection in multiprocessing.connection.wait(waiting):
                rank = self._connections.index(connection)  # type: ignore[arg-type]
                try:
                    answers[rank] = self._connections[rank].recv()
                except (EOFError, OSError):
                    raise self._lost(rank) from None
                if isinstance(answers[rank], Exception):
                    raise answers[rank]
        return [answers[rank] for rank in range(len(answers))]

    def _lost(self, rank: int) -> WorkerError:
        process = self._processes[rank]
        process.join(_END_SECONDS)
        code = process.exitcode
        if code is None or code >= 0:
            return WorkerError(f"rank {rank} ended with exit code {code} before its last batch", found=code)
        killed = f"rank {rank} was killed by {signal.Signals(-code).name}"
        return WorkerError(f"{killed}; is there memory for all ranks and workers?", found=code)

    def close(self) -> None:
        """End the ranks: by SIGTERM, which they clean up after, then what is left of their sessions."""
        with signals_blocked():
            for process in self._processes:
                process.terminate()
            until = time.monotonic() + _END_SECONDS
            for process in self._processes:
                process.join(max(until - time.monotonic(), 0.0))
                with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of one that has ended
                    os.killpg(process.pid or 0, signal.SIGKILL)
                process.kill()  # it may not have its session yet
                process.join()
                process.close()
            for connection in self._connections:
                connection.close()
            self._processes, self._connections = [], []


# --- a rank's process


def _serve(connection: Connection, rank: int, plan: _BenchPlan) -> None:
    """Answer each number of a pass with its figures, until an error or the end of the process."""
    os.setsid()  # its workers can be ended with it, and a terminal's signals reach the command alone
    os.dup2(2, 1)  # what a transformation prints is no part of the report
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, daemon=True, name="wids-parent").start()
    sys.path.insert(0, os.getcwd())
    os.environ["LOCAL_WORLD_SIZE"] = str(plan.job.ranks)  # of which each takes its part of the cache
    multiprocessing.set_start_method(None, force=True)  # of workers: the system's, as in a training program
    try:
        passes = _passes(rank, plan)
        while True:
            connection.send(None)  # it is ready
            connection.send(passes[connection.recv()]())
    except (EOFError, BrokenPipeError):  # the command has ended
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Exception as error:  # noqa: BLE001 - the command shows it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which comes as soon as the command has the error
        with contextlib.suppress(OSError):
            connection.send(_portable(rank, error))


def _end(*_: object) -> NoReturn:
    """Leave all blocks, which removes part files and ends workers, without tracebacks of what this interrupts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    raise EndedBySignal(signal.SIGTERM)


def _end_with_parent() -> None:
    """A rank gets no signal when its parent is killed; its workers would go on with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _portable(rank: int, error: Exception) -> WidsError:
    """The error for the command; of one of a worker, the end of its traceback without the stack."""
    text = str(error)
    if "Original Traceback" in text:
        lines = text.rstrip().split("\n")
        last = max(k for k, line in enumerate(lines) if line.startswith(" "))
        text = "; ".join(lines[last + 1 :]).removeprefix("wids.errors.")
    elif isinstance(error, WidsError):
        return error
    elif not isinstance(error, RuntimeError):  # those of a DataLoader are sentences
        text = f"{type(error).__name__}: {text}"
    notes = "; ".join(getattr(error, "__notes__", ()))
    return JobError(f"rank {rank}: {text}{f'; {notes}' if notes else ''}")


def _passes(rank: int, plan: _BenchPlan) -> list[Callable[[], dict[str, Any]]]:
    """The passes of a rank.

    Raises:
        InputError: a function cannot be imported. WidsError: see `ShardListDataset`.
    """
    import wids

    job, reading, order = plan.job, plan.reading, plan.order
    transform = _import("transform", reading.transform) if reading.transform else None
    dataset = wids.ShardListDataset(
        plan.index,
        transformations=None if reading.decode == "none" else reading.decode,
        cache_dir=reading.cache_dir or None,
        cache_size=reading.cache_size,
        access=reading.access,
        storage_options=plan.options,
    )
    if transform is not None:
        dataset.add_transform(transform)
    settings = {field.name: getattr(order, field.name) for field in fields(order)}
    settings["weights"] = order.read_weights(lambda name: name)  # a column is read by the sampler
    sampler = wids.DistributedChunkedSampler(dataset, rank=rank, num_replicas=job.ranks, **settings)
    loop = _Loop(plan, dataset, sampler, _collation(reading))
    return [loop.run_steps, loop.run_free, loop.take_times]


def _import(name: str, text: str) -> Callable[..., Any]:
    """The function that ``MODULE:FUNCTION`` names.

    Raises:
        InputError: there is none.
    """
    module, _, path = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except EndedBySignal:
        raise
    except (Exception, SystemExit) as error:  # of any kind: the module runs
        raise InputError(
            f"{name} {text!r} cannot be imported ({type(error).__name__}: {error}); write it as module:function"
        ) from error
    if not callable(found):
        raise InputError(f"{name} {text!r} is not a function, but of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _collation(reading: BenchReading) -> Callable[[Any], Any]:
    from torch.utils.data import default_collate

    name = reading.collate or ("default" if reading.transform else "list")
    known: dict[str, Callable[[Any], Any]] = {"default": default_collate, "list": list}
    return known[name] if name in known else _import("collate", name)


class _Loop:
    """The training loop of a rank."""

    def __init__(
        self, plan: _BenchPlan, dataset: ShardListDataset, sampler: Any, collate: Callable[[Any], Any]
    ) -> None:
        self._job, self._dataset, self._sampler, self._collate = plan.job, dataset, sampler, collate

    def run_steps(self) -> dict[str, Any]:
        """Compute: what was waited for, and how long it took in all, without the first steps of each epoch.

        Returns:
            steps: that count. seconds: from the end of the steps that do not count. waits: for the batch of each, in
            seconds. first: seconds to the first batch of all.
        """
        step, warmup = self._job.step, self._job.warmup
        steps, seconds, first = 0, 0.0, 0.0
        waits: list[float] = []
        for number, epoch in enumerate(self._epochs(self._loader())):
            asked = begin = time.monotonic()
            for k, _ in enumerate(epoch):
                came = time.monotonic()
                first = came - asked if not number and not k else first
                time.sleep(step)
                if k >= warmup:
                    steps += 1
                    waits.append(came - asked)
                asked = time.monotonic()
                if k == warmup - 1:
                    begin = asked
            seconds += asked - begin if waits else 0.0
        return {"steps": steps, "seconds": seconds, "waits": waits, "first": first}

    def run_free(self) -> dict[str, Any]:
        """Compute nothing: batches that count, and their seconds.

        The first batches of all workers come at a time, so as many are left out where there are more than twice.
        """
        batches, seconds = 0, 0.0
        for epoch in self._epochs(self._loader()):
            came = [time.monotonic()]
            came += [time.monotonic() for _ in epoch]
            skipped = max(self._job.workers, 1)
            skipped = skipped if len(came) - 1 > 2 * skipped else 0
            batches, seconds = batches + len(came) - 1 - skipped, seconds + came[-1] - came[skipped]
        return {"batches": batches, "seconds": seconds}

    def take_times(self) -> dict[str, Any]:
        """The seconds of each of `PARTS`, the samples that they are of, and their bytes.

        A single worker makes one batch after the other, each when it is asked for: nothing overlaps, and the parts are
        the whole time of a batch.
        """
        steps = list(self._dataset.transformations)
        found = dict.fromkeys((*PARTS, "bytes", "samples"), 0.0)
        self._dataset.transformations = [_Weight(), *map(_Timed, steps)]
        try:
            data, collate = _TimedReads(self._dataset), _TimedCollation(self._collate)
            workers = min(self._job.workers, 1)
            more = {"prefetch_factor": 1} if workers else {}
            loader = self._loader(dataset=data, collate_fn=collate, num_workers=workers, **more)
            for epoch in self._epochs(loader):
                came = time.monotonic()
                batches: list[dict[str, float]] = []
                for _, parts, collated in epoch:
                    before, came = came, time.monotonic()
                    parts["cross"] = came - collated if workers else 0.0
                    # The request is under way while the loop still has the batch before: a microsecond may be missing.
                    parts["rest"] = max(came - before - sum(parts[part] for part in PARTS if part != "rest"), 0.0)
                    batches.append(parts)
                for parts in batches[1:] or batches:  # before the first one a worker starts, and shards are opened
                    for part, value in parts.items():
                        found[part] += value
        finally:
            self._dataset.transformations = steps
        return found

    def _loader(self, **changed: Any) -> Any:
        from torch.utils.data import DataLoader

        job = self._job
        given = {
            "dataset": self._dataset,
            "sampler": self._sampler,
            "batch_size": job.batch_size,
            "collate_fn": self._collate,
            "num_workers": job.workers,
            "prefetch_factor": job.prefetch_factor,
            "persistent_workers": job.persistent_workers,
            "drop_last": True,
            **changed,
        }
        if not given["num_workers"]:
            return DataLoader(**given)
        if job.has_threads:
            import wids

            return wids.resumable(DataLoader(**given), workers="threads")
        return DataLoader(**{**given, "collate_fn": _SendableCollation(given["collate_fn"])})

    def _epochs(self, loader: Any) -> Iterator[Iterable[Any]]:
        """The batches of each epoch, until a limit; time counts from the first batch on."""
        left, until = self._job.steps, math.inf

        def batches() -> Iterator[Any]:
            nonlocal left, until
            for batch in loader:
                until = min(until, time.monotonic() + self._job.seconds)
                yield batch
                left = None if left is None else left - 1
                if left == 0 or time.monotonic() > until:
                    return

        for number in range(self._job.epochs):
            if left == 0 or time.monotonic() > until:
                return
            self._sampler.set_epoch(number)
            yield batches()


class _Timed:
    """A transformation that adds up its seconds."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        from wids.core.codecs.decode import SampleDecoder

        self._step, self.part, self.seconds = step, "decode" if isinstance(step, SampleDecoder) else "transform", 0.0

    def __call__(self, sample: Any) -> Any:
        begin = time.perf_counter()
        sample = self._step(sample)
        self.seconds += time.perf_counter() - begin
        return sample


class _Weight:
    """Adds up the bytes of samples as they are read."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.bytes += sum(value.getbuffer().nbytes for value in sample.values() if isinstance(value, BytesIO))
        return sample


class _TimedReads:
    """A dataset that tells the seconds of each batch's parts."""

    def __init__(self, dataset: ShardListDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: Sequence[int]) -> tuple[list[Any], dict[str, float]]:
        weight, *steps = cast("list[Any]", self._dataset.transformations)
        weight.bytes = 0
        for step in steps:
            step.seconds = 0.0
        begin = time.perf_counter()
        samples = self._dataset.__getitems__(indices)
        seconds = {"read": time.perf_counter() - begin, "decode": 0.0, "transform": 0.0}
        for step in steps:
            seconds[step.part] += step.seconds
            seconds["read"] -= step.seconds
        return samples, {**seconds, "bytes": weight.bytes, "samples": len(samples)}


class _TimedCollation:
    """Collates a batch of `_TimedReads`: (batch, seconds of its parts, the moment at which it was done)."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, given: tuple[list[Any], dict[str, float]]) -> tuple[Any, dict[str, float], float]:
        samples, parts = given
        begin = time.perf_counter()
        batch = self._collate(samples)
        done = time.monotonic()
        return batch, {**parts, "collate": time.perf_counter() - begin}, done


class _SendableCollation:
    """Pickles the first batch of each worker: a DataLoader waits forever for one that cannot be sent to the loop.

    Raises:
        TypeError: the batch cannot be pickled.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate, self._is_checked = collate, False

    def __call__(self, samples: Any) -> Any:
        batch = self._collate(samples)
        if not self._is_checked:
            try:
                pickle.dumps(batch)
            except Exception as error:
                why = f"the batch cannot be sent from a worker to the loop ({type(error).__name__}: {error})"
                raise TypeError(f"{why}; make tensors, arrays, numbers and texts of its samples") from error
            self._is_checked = True
        return batch


# --- the report


def _summarise(
    plan: _BenchPlan, stepped: list[dict[str, Any]], free: list[dict[str, Any]], timed: list[dict[str, Any]]
) -> dict[str, Any]:
    """All figures; those of ranks are added up, or averaged where they are shares."""
    job = plan.job
    if not all(rank["steps"] for rank in stepped):
        raise InputError(
            f"a rank came to no step that counts (the first {job.warmup:,} of an epoch do not) within {job.seconds:g} "
            "s; allow more"
        )
    used = [100 * rank["steps"] * job.step / rank["seconds"] for rank in stepped]
    rate = sum(rank["steps"] / rank["seconds"] for rank in stepped) * job.batch_size
    fastest = sum(rank["batches"] / rank["seconds"] for rank in free) * job.batch_size
    ideal = job.ranks * job.batch_size / job.step
    parts = {part: sum(rank[part] for rank in timed) for part in timed[0]}
    samples, whole = parts["samples"], sum(parts[part] for part in PARTS)
    waits = sorted(itertools.chain.from_iterable(rank["waits"] for rank in stepped))
    work = sum(parts[part] for part in _WORK) / samples
    return {
        "index": plan.index,
        "ranks": job.ranks,
        "workers": job.workers,
        "has_threads": job.has_threads,
        "batch_size": job.batch_size,
        "step_seconds": job.step,
        "steps": [rank["steps"] for rank in stepped],
        "utilisation": statistics.fmean(used),
        "utilisation_of_ranks": used,
        "samples_per_second": rate,
        "bytes_per_second": rate * parts["bytes"] / samples,
        "bytes_per_sample": parts["bytes"] / samples,
        "first_batch_seconds": max(rank["first"] for rank in stepped),
        "wait_seconds": {name: waits[round(part * (len(waits) - 1))] for name, part in _PERCENTILES.items()},
        "samples_per_second_in_memory": ideal,
        "samples_per_second_without_steps": fastest,
        "headroom": fastest / ideal,
        "workers_to_saturate": work * job.batch_size / job.step,
        "sample_seconds": {part: parts[part] / samples for part in PARTS},
        "sample_percent": {part: 100 * parts[part] / whole for part in PARTS},
        "timed_samples": round(samples),
    }


def _show(plan: _BenchPlan, report: dict[str, Any]) -> None:
    job = plan.job
    workers = count_of(job.workers, "thread" if job.has_threads else "worker")
    workers = f"{workers} each" if job.ranks > 1 else workers
    title = f"{count_of(job.ranks, 'rank')} with {workers}, batches of {job.batch_size:,}, {job.step:g} s a step"
    counted = sum(report["steps"])
    print_text(f"{title}; {count_of(counted, 'step')} counted")
    used, rate = report["utilisation"], report["samples_per_second"]
    least = f", the least of a rank {min(report['utilisation_of_ranks']):.1f} %" if job.ranks > 1 else ""
    waits = ", ".join(f"{name} {seconds * 1e3:,.1f} ms" for name, seconds in report["wait_seconds"].items())
    fastest, ideal = report["samples_per_second_without_steps"], report["samples_per_second_in_memory"]
    size = format_size(report["bytes_per_sample"])
    print_table(
        ("", ""),
        [
            ("utilisation", f"{used:.1f} %{least}"),
            ("samples", f"{rate:,.0f}/s, {format_rate(report['bytes_per_second'], 1.0)}, {size} each"),
            ("with batches in memory", f"{ideal:,.0f} samples/s"),
            ("without steps", f"{fastest:,.0f} samples/s, headroom {report['headroom']:.2f} x"),
            ("workers to saturate", f"{report['workers_to_saturate']:.2g} cores of a rank make a batch in a step"),
            ("first batch", f"after {report['first_batch_seconds']:.3g} s"),
            ("waits for a batch", waits),
        ],
    )
    print()
    print_table(
        ("a sample", ">us", ">%"),
        [
            (name, f"{report['sample_seconds'][part] * 1e6:,.1f}", f"{report['sample_percent'][part]:.1f}")
            for part, name in PARTS.items()
        ],
    )
