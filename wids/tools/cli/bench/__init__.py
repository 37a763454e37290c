"""``wids bench``: how well a loader keeps accelerators at work, which are emulated: a step of training is a sleep.

torchrun starts the ranks, which run `wids.tools.cli.bench.rank`. torch loads in them, and in the command only where a
named function's module imports it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import statistics
import sys
from typing import Any

import typer

from wids.core.files.terminal import progress
from wids.core.transport.session import PLAIN
from wids.errors import InputError
from wids.jobs.functions import import_function
from wids.tools.cli.bench.plan import BenchPlan, BenchReading, JobOptions
from wids.tools.cli.bench.rank import COLLATIONS, PARTS, WORK
from wids.tools.cli.format import count_of, format_rate, format_size, print_json, print_table, print_text
from wids.tools.cli.options import BatchOptions, Index, Json, OrderOptions, ReadFlags, SessionFlag
from wids.tools.cli.plain_help import App, examples
from wids.tools.cli.ranks import temporary_directory, torchrun
from wids.tools.cli.signals import Signals

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
_PASSES = ("with steps", "without steps", "taking times")
_PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}

app: App = App()


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
    batches: BatchOptions,
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
    if not batches.has_batches and not isinstance(job.batch_size, int):
        raise typer.BadParameter(
            "--batch-size is missing, a number; or --max-tokens, --limit, --buckets, --pack-tokens"
        )
    plan = BenchPlan(index, job, reading, order, batches, session)
    with Signals() as signals:
        _check_functions(reading)
        _check_samples(plan)
        report = _summarise(plan, *_measure(plan, signals))
    if is_json:
        print_json(report)
    else:
        _show(plan, report)


# --- what this process sees before it starts a rank, which takes seconds


def _check_functions(reading: BenchReading) -> None:
    """Check that ranks can import the named functions.

    Raises:
        InputError: one cannot be imported.
    """
    before, collate = sys.path[:], "" if reading.collate in COLLATIONS else reading.collate
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a module prints is no part of the report
            for name, text in (("transform", reading.transform), ("collate", collate)):
                if text:
                    sys.path.insert(0, os.getcwd())
                    import_function(name, text)
    finally:
        sys.path[:] = before


def _check_samples(plan: BenchPlan) -> None:
    """Check that each rank has batches that count.

    Raises:
        typer.BadParameter: the sampler has no such order. InputError: there are too few samples. WidsError: see
            `Listed`.
    """
    from wids.core.order.batch_epochs import BatchEpochs
    from wids.core.order.layout import ShardCounts
    from wids.core.order.packing import mean_tokens
    from wids.core.order.population import sampler_epochs
    from wids.tools.cli.look.listed import Listed

    job = plan.job
    listed = Listed(plan.index, ReadFlags(cache_dir=plan.reading.cache_dir, session=plan.session))
    if len(listed) < job.ranks:
        raise InputError(f"{job.ranks} ranks are more than the {count_of(len(listed), 'sample')} of {plan.index}")
    read, parts = listed.reader_of(plan.batches), listed.mixed_parts()
    weights = plan.order.read_weights(read)
    rule = plan.batches.make_rule(job.batch_size, len(listed), read, has_weights=weights is not None)
    try:
        settings, means = plan.order.settings(world_size=job.ranks, epoch_size=None), mean_tokens(rule, parts)
        epochs = sampler_epochs(ShardCounts(listed.shards.lengths), parts, settings, weights=weights, means=means)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if rule is not None:
        count, cut = 0, BatchEpochs.of(epochs, rule, seed=settings.seed, block=plan.batches.block)
        for [chunk] in cut.deal(cut.first_place(0), [0]):
            count += len(chunk.batches)
            if count > job.warmup:
                return
        raise InputError(
            f"a rank has {count_of(count, 'batch', 'batches')} in an epoch, and the first {job.warmup:,} do not count: "
            "take smaller ones or fewer ranks"
        )
    samples = epochs.count(epochs.first_place(0))
    if (batches := samples // job.batch_size) <= job.warmup:
        raise InputError(
            f"a rank has {count_of(samples, 'sample')} in an epoch, which are {batches:,} whole batches of "
            f"{job.batch_size:,}, and the first {job.warmup:,} do not count: take a smaller batch size or fewer ranks"
        )


def _measure(plan: BenchPlan, signals: Signals) -> list[list[dict[str, Any]]]:
    """Run the ranks: of each pass, what each rank found. What they wrote to stderr is shown at their end.

    Raises:
        JobError: a rank failed or was killed.
    """
    found: list[list[dict[str, Any]]] = []
    with temporary_directory(signals) as directory, progress() as bar:
        path = os.path.join(directory, "plan")
        with open(path, "wb") as file:  # no argument of a program, which all users of the machine see
            pickle.dump(plan, file)
        with torchrun(_PROGRAM, {"plan": path}, ranks=plan.job.ranks, directory=directory, signals=signals) as lines:
            for line in lines:
                told = json.loads(line) if line.startswith("{") else {}  # else it is none of ours
                if "pass" in told:
                    bar.update(told["pass"], total=len(_PASSES), words=_PASSES[told["pass"]])
                found = told.get("found", found)
        with open(os.path.join(directory, "log"), encoding="utf-8", errors="replace") as log:
            sys.stderr.write(log.read())
    return found


# --- the report


def _summarise(
    plan: BenchPlan, stepped: list[dict[str, Any]], free: list[dict[str, Any]], timed: list[dict[str, Any]]
) -> dict[str, Any]:
    """All figures; those of ranks are added up, or averaged where they are shares."""
    job = plan.job
    if not all(rank["steps"] for rank in stepped):
        raise InputError(
            f"a rank came to no step that counts (the first {job.warmup:,} of an epoch do not) within {job.seconds:g} "
            "s; allow more"
        )
    used = [100 * rank["steps"] * job.step / rank["seconds"] for rank in stepped]
    rate, tokens = (sum(rank[what] / rank["seconds"] for rank in stepped) for what in ("samples", "tokens"))
    fastest = sum(rank["samples"] / rank["seconds"] for rank in free)
    each = sum(rank["samples"] for rank in stepped) / sum(rank["steps"] for rank in stepped)
    ideal = job.ranks * each / job.step
    parts = {part: sum(rank[part] for rank in timed) for part in timed[0]}
    samples, whole = parts["samples"], sum(parts[part] for part in PARTS)
    waits = sorted(itertools.chain.from_iterable(rank["waits"] for rank in stepped))
    work = sum(parts[part] for part in WORK) / samples
    return {
        "index": plan.index,
        "ranks": job.ranks,
        "workers": job.workers,
        "has_threads": job.has_threads,
        "batch_size": job.batch_size,
        "samples_per_batch": each,
        "step_seconds": job.step,
        "steps": [rank["steps"] for rank in stepped],
        "utilisation": statistics.fmean(used),
        "utilisation_of_ranks": used,
        "samples_per_second": rate,
        "tokens_per_second": None if plan.batches.pack_tokens is None else tokens,
        "bytes_per_second": rate * parts["bytes"] / samples,
        "bytes_per_sample": parts["bytes"] / samples,
        "first_batch_seconds": max(rank["first"] for rank in stepped),
        "wait_seconds": {name: waits[round(part * (len(waits) - 1))] for name, part in _PERCENTILES.items()},
        "samples_per_second_in_memory": ideal,
        "samples_per_second_without_steps": fastest,
        "headroom": fastest / ideal,
        "workers_to_saturate": work * each / job.step,
        "sample_seconds": {part: parts[part] / samples for part in PARTS},
        "sample_percent": {part: 100 * parts[part] / whole for part in PARTS},
        "timed_samples": round(samples),
    }


def _show(plan: BenchPlan, report: dict[str, Any]) -> None:
    job = plan.job
    workers = count_of(job.workers, "thread" if job.has_threads else "worker")
    workers = f"{workers} each" if job.ranks > 1 else workers
    things = "samples" if plan.batches.pack_tokens is None else "pieces"
    size = f"{report['samples_per_batch']:,.3g} {things}" if plan.batches.has_batches else f"{job.batch_size:,}"
    title = f"{count_of(job.ranks, 'rank')} with {workers}, batches of {size}, {job.step:g} s a step"
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
            (things, f"{rate:,.0f}/s, {format_rate(report['bytes_per_second'], 1.0)}, {size} each"),
            *([("tokens", f"{tokens:,.0f}/s")] if (tokens := report["tokens_per_second"]) is not None else []),
            ("with batches in memory", f"{ideal:,.0f} {things}/s"),
            ("without steps", f"{fastest:,.0f} {things}/s, headroom {report['headroom']:.2f} x"),
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
