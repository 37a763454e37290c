"""A rank of ``wids bench``, which torchrun starts: the dataset, the sampler and the DataLoader of a training program.

It makes three passes, in each of them beside all other ranks: with steps, without steps, and one in which a single
worker takes the time of each part of its work. ``rank.py {"plan": PATH}`` finds a pickled `BenchPlan` there. Rank 0
prints JSON, an object on each line: ``pass``, its number, when it begins; at the end ``found``, of each pass a list of
what each rank found.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import pickle
import sys
import threading
import time
from dataclasses import fields
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from wids.errors import JobError, WidsError
from wids.jobs.functions import import_function
from wids.tools.cli.ranks import end_with_stdin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wids.dataset import ShardListDataset
    from wids.tools.cli.bench.plan import BenchPlan, BenchReading

COLLATIONS = ("default", "list")
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
WORK = ("read", "decode", "transform", "collate")
# The ranks wait for the slowest of them so long: as long as anybody lets one run.
_PATIENCE = dt.timedelta(days=365)


def main() -> None:
    """Measure as one rank of several; an error gets into torchrun's report."""
    from torch.distributed.elastic.multiprocessing.errors import record

    threading.Thread(target=end_with_stdin, daemon=True, name="wids-parent").start()
    record(_measure)(**json.loads(sys.argv[1]))


def _measure(*, plan: str) -> None:
    """Make the passes of the plan in this file.

    Raises:
        JobError: any error, in words.
    """
    from torch.distributed.rendezvous import rendezvous

    # Without a process group: one of torch 2.3 may hang when it is destroyed.
    store, rank, ranks = next(iter(rendezvous("env://", timeout=_PATIENCE)))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what a transformation prints is no part of the report
        sys.path.insert(0, os.getcwd())
        try:
            with open(plan, "rb") as file:
                passes = passes_of(rank, pickle.load(file))  # noqa: S301 - the command wrote it
            measured: list[dict[str, Any]] = []
            for number, run in enumerate(passes):
                _meet(store, f"pass {number}", ranks)
                if not rank:
                    print(json.dumps({"pass": number}), file=out, flush=True)
                measured.append(run())
            store.set(f"rank {rank}", json.dumps(measured))
            if not rank:
                every = [json.loads(store.get(f"rank {number}")) for number in range(ranks)]
                print(json.dumps({"found": list(zip(*every, strict=True))}), file=out, flush=True)
        except Exception as error:  # noqa: BLE001 - the command shows it
            raise JobError(in_words(error)) from None


def _meet(store: Any, name: str, ranks: int) -> None:
    """Wait until all ranks have come here."""
    if store.add(name, 1) == ranks:
        store.set(f"{name}: all", "")
    store.wait([f"{name}: all"], _PATIENCE)


def in_words(error: Exception) -> str:
    """An error as one line, with its notes; of one of a worker, the end of its traceback without the stack."""
    text = str(error)
    if "Original Traceback" in text:
        lines = text.rstrip().split("\n")
        last = max(k for k, line in enumerate(lines) if line.startswith(" "))
        text = "; ".join(lines[last + 1 :]).removeprefix("wids.errors.")
    elif not isinstance(error, (WidsError, RuntimeError)):  # theirs are sentences
        text = f"{type(error).__name__}: {text}"
    return " ".join("; ".join((text, *getattr(error, "__notes__", ()))).split())


def passes_of(rank: int, plan: BenchPlan) -> list[Callable[[], dict[str, Any]]]:
    """The passes of a rank.

    Raises:
        InputError: a function cannot be imported. WidsError: see `ShardListDataset`.
    """
    import wids

    job, reading, order = plan.job, plan.reading, plan.order
    transform = import_function("transform", reading.transform) if reading.transform else None
    dataset = wids.ShardListDataset(
        plan.index,
        transformations=None if reading.decode == "none" else reading.decode,
        cache_dir=reading.cache_dir or None,
        cache_size=reading.cache_size,
        access=reading.access,
        storage_options=plan.session.storage_options,
    )
    if transform is not None:
        dataset.add_transform(transform)
    settings = {field.name: getattr(order, field.name) for field in fields(order)}
    settings["weights"] = order.read_weights(lambda name: name)  # a column is read by the sampler
    sampler = wids.DistributedChunkedSampler(dataset, rank=rank, num_replicas=job.ranks, **settings)
    loop = _Loop(plan, dataset, sampler, _collation(reading), _batches_of(plan, sampler))
    return [loop.run_steps, loop.run_free, loop.take_times]


def _batches_of(plan: BenchPlan, sampler: Any) -> Any:
    """The sampler of batches of like length, or of packs; None: a loader makes its own batches."""
    import wids
    from wids.tools.cli.look.listed import Listed
    from wids.tools.cli.options import ReadFlags

    batches = plan.batches
    if not batches.has_batches:
        return None
    read = Listed(plan.index, ReadFlags(cache_dir=plan.reading.cache_dir, session=plan.session)).reader_of(batches)
    kind: Any = wids.BucketBatchSampler if batches.pack_tokens is None else wids.PackSampler
    return kind(sampler, block=batches.block, **batches.arguments(plan.job.batch_size, read))


def _collation(reading: BenchReading) -> Callable[[Any], Any]:
    from torch.utils.data import default_collate

    name = reading.collate or ("default" if reading.transform else "list")
    known: dict[str, Callable[[Any], Any]] = {"default": default_collate, "list": list}
    return known[name] if name in known else import_function("collate", name)


class _Loop:
    """The training loop of a rank."""

    def __init__(
        self, plan: BenchPlan, dataset: ShardListDataset, sampler: Any, collate: Callable[[Any], Any], batches: Any
    ) -> None:
        self._job, self._dataset, self._sampler, self._collate = plan.job, dataset, sampler, collate
        self._batches = batches

    def run_steps(self) -> dict[str, Any]:
        """Compute: what was waited for, and how long it took in all, without the first steps of each epoch.

        Returns:
            steps: that count. samples: in them, or pieces of samples. tokens: of packs in them. seconds: from the end
            of the steps that do not count. waits: for the batch of each, in seconds. first: seconds to the first batch
            of all.
        """
        step, warmup = self._job.step, self._job.warmup
        steps, seconds, first = 0, 0.0, 0.0
        samples = tokens = 0
        waits: list[float] = []
        for number, epoch in enumerate(self._epochs(self._loader())):
            asked = begin = time.monotonic()
            for k, (_, count, count_tokens) in enumerate(epoch):
                came = time.monotonic()
                first = came - asked if not number and not k else first
                time.sleep(step)
                if k >= warmup:
                    steps, samples, tokens = steps + 1, samples + count, tokens + count_tokens
                    waits.append(came - asked)
                asked = time.monotonic()
                if k == warmup - 1:
                    begin = asked
            seconds += asked - begin if waits else 0.0
        counts = {"steps": steps, "samples": samples, "tokens": tokens}
        return {**counts, "seconds": seconds, "waits": waits, "first": first}

    def run_free(self) -> dict[str, Any]:
        """Compute nothing: samples of batches that count, and their seconds.

        The first batches of all workers come at a time, so as many are left out where there are more than twice.
        """
        samples, seconds = 0, 0.0
        for epoch in self._epochs(self._loader()):
            came, counts = [time.monotonic()], list[int]()
            for _, count, _ in epoch:
                came.append(time.monotonic())
                counts.append(count)
            skipped = max(self._job.workers, 1)
            skipped = skipped if len(came) - 1 > 2 * skipped else 0
            samples, seconds = samples + sum(counts[skipped:]), seconds + came[-1] - came[skipped]
        return {"samples": samples, "seconds": seconds}

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
        plain = {"sampler": self._sampler, "batch_size": job.batch_size, "drop_last": True}
        given = {
            "dataset": self._dataset,
            **(plain if self._batches is None else {"batch_sampler": self._batches}),
            "collate_fn": _CountedCollation(self._collate),
            "num_workers": job.workers,
            "prefetch_factor": job.prefetch_factor,
            "persistent_workers": job.persistent_workers,
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


class _CountedCollation:
    """Collates a batch: (batch, its samples or pieces, the tokens of its packs)."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[Any, int, int]:
        pieces = [sample["__piece__"] for sample in samples if isinstance(sample, dict) and "__piece__" in sample]
        return self._collate(samples), len(samples), sum(last - first for first, last in pieces)


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


if __name__ == "__main__":
    del sys.path[0]  # this folder
    # Workers of another start method than fork import what they are sent by the module's name.
    from wids.tools.cli.bench import rank  # noqa: PLW0406 - as a module

    rank.main()
