"""``wids demo``: the main job from end to end, on drawn shapes.

Rules: this module is light; what is heavy is imported when the command runs. Everything is made in one temporary
directory that is gone at the end, however the end comes: see `wids.cli.signals` and `wids.cli.demo.ranks`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from wids.cli.demo.train import Job
    from wids.cli.signals import Signals

# An odd number, so that equal shares for two ranks take some care.
TRAIN, TRAIN_SHARDS = 3001, 9
TEST, TEST_SHARDS = 601, 2
# What a network that learns reaches with much to spare.
ENOUGH = 0.95
# A socket of a rank has 51 more characters than this directory's, and the kernel takes 107.
_LONGEST_TEMPORARY = 50


def run_demo(
    ranks: Annotated[int, typer.Option(help="Training processes.", min=1)] = 2,
    workers: Annotated[int, typer.Option(help="DataLoader workers of each rank.", min=0)] = 2,
    epochs: Annotated[int, typer.Option(help="Passes over the training samples.", min=1)] = 6,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of one rank.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Decides drawings, order and first weights.", min=0)] = 0,
) -> None:
    """Show the main job on this machine: shards over HTTP, a cache, DDP training with equal ranks.

    Draws a small labelled image set, packs it in shards of unequal sizes, serves them on loopback, and trains a small
    network on 2 processes with 2 DataLoader workers each. Ends with what each rank got and what was learned.
    """
    from rich.console import Console

    from wids.cli.demo import shapes
    from wids.cli.demo.train import Job
    from wids.cli.signals import Signals
    from wids.testing import Server

    console = Console(highlight=False)
    with Signals() as signals, contextlib.ExitStack() as stack:
        directory = stack.enter_context(_workplace(signals))
        shards, run = (os.path.join(directory, name) for name in ("shards", "run"))
        os.mkdir(shards)
        os.mkdir(run)
        begin = time.monotonic()
        with console.status("drawing shapes"):
            sizes = shapes.pack(shards, split="train", count=TRAIN, nshards=TRAIN_SHARDS, seed=seed)
            sizes += shapes.pack(shards, split="test", count=TEST, nshards=TEST_SHARDS, seed=seed)
        drawn = f"{TRAIN:,} shapes of {len(shapes.SHAPES)} kinds to train on, and {TEST:,} to test on"
        _say(console, f"drew {drawn}, in {time.monotonic() - begin:.1f} s")
        with signals.held():
            server = stack.enter_context(Server(shards))
        _say(console, f"serving {len(sizes)} shards of {min(sizes):,} to {max(sizes):,} samples at {server.url}")
        job = Job(
            url=server.url,
            directory=run,
            ranks=ranks,
            workers=workers,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
        )
        results = _train(job, signals, console)
        fetches = Counter(path for path in server.requests if path.endswith(".tar"))
        console.print(make_table(results, fetches))
        check(results, job)
        times = "once" if set(fetches.values()) == {1} else f"{fetches.total()} times in all"
        _say(console, f"{len(fetches)} shards went over HTTP {times} ({server.sent_bytes.total() / 1e6:.1f} MB)")


def make_table(results: list[dict[str, Any]], fetches: Counter[str]) -> Table:
    """The closing table: a row for each rank, and one for all.

    Args:
        results: what each rank told last; see `wids.cli.demo.train.train`.
        fetches: path -> how often a shard was asked for.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", "samples", "batches", "samples\nper s", "shards\nfetched", "accuracy"):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    for rank, result in enumerate(results):
        speed = result["samples"] / result["seconds"]
        table.add_row(f"rank {rank}", f"{result['samples']:,}", f"{result['steps']:,}", f"{speed:,.0f}")
    samples = sum(result["samples"] for result in results)
    table.add_row(
        "all",
        f"{samples:,}",
        f"{sum(result['steps'] for result in results):,}",
        f"{samples / max(result['seconds'] for result in results):,.0f}",
        f"{fetches.total():,}",
        f"{results[0]['correct'] / results[0]['tested']:.1%}",
        style="bold",
    )
    return table


def check(results: list[dict[str, Any]], job: Job) -> None:
    """Hold what the ranks told against what they were given.

    Raises:
        WidsError: the ranks' counts differ, samples were left out, or too little was learned.
    """
    shares = [(result["samples"], result["steps"]) for result in results]
    if len(set(shares)) > 1:
        raise WidsError(f"the ranks' shares differ: (samples, batches) are {shares}")
    trained, tested = sum(samples for samples, _ in shares), results[0]["tested"]
    if trained < TRAIN * job.epochs or tested != TEST:
        counts = f"{trained} of {TRAIN} x {job.epochs} epochs to train on, {tested} of {TEST} to test on"
        raise WidsError(f"samples were left out: {counts}")
    accuracy = results[0]["correct"] / tested
    if accuracy < ENOUGH:
        raise WidsError(
            f"too little was learned: {accuracy:.1%} of the held-out shapes were told apart, and {ENOUGH:.0%} is "
            f"expected; give it more --epochs than {job.epochs}"
        )


def _train(job: Job, signals: Signals, console: Console) -> list[dict[str, Any]]:
    """Run the ranks to their end and show how far they are; returns what each told last."""
    from rich.progress import Progress

    from wids.cli.demo.ranks import started, watch

    told: list[dict[str, Any]] = []
    ended = 0
    with Progress(console=console, transient=True) as bar, started(job, signals) as processes:
        task = bar.add_task("starting the ranks", total=None)
        for told in watch(job, processes):
            if not all(told):
                continue
            last = min(told, key=lambda facts: facts["steps"])
            total = job.epochs * last["batches"]
            text = f"epoch {last['epoch'] + 1}/{job.epochs}: loss {last['loss']:.3f}"
            bar.update(task, description=text, total=total, completed=last["steps"])
            if ended < last["steps"] // last["batches"]:
                ended = last["steps"] // last["batches"]
                speed = sum(facts["samples"] / facts["seconds"] for facts in told)
                _say(console, f"epoch {ended}/{job.epochs}: loss {last['loss']:.3f}, {speed:,.0f} samples/s")
    return told


def _say(console: Console, text: str) -> None:
    """Print one line, as it is."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def _workplace(signals: Signals) -> Iterator[str]:
    """A temporary directory that is gone afterwards; not in $TMPDIR if that is too long for the sockets in it."""
    usual = tempfile.gettempdir()
    parent = next((name for name in (usual, "/tmp") if len(os.fsencode(name)) <= _LONGEST_TEMPORARY), usual)  # noqa: S108
    directory = ""
    try:
        with signals.held():
            directory = tempfile.mkdtemp(prefix="wids-demo-", dir=parent)
        yield directory
    finally:
        signals.hold()
        shutil.rmtree(directory, ignore_errors=True)
