"""``wids demo``: distributed training from end to end on one machine, on images of shapes that it draws.

Heavy modules are imported when the command runs. All files are in one temporary directory, which is removed at the end,
after an error or a signal too: see `wids.cli.signals` and `wids.cli.demo.ranks`. Shards that are to be kept are copied.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.errors import JobError, OutputError, OutputExistsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from wids.cli.demo.train import DemoJob
    from wids.cli.signals import Signals

# An odd number, so that equal shares for two ranks take some care.
TRAIN, TRAIN_SHARDS = 3001, 9
TEST, TEST_SHARDS = 601, 2
# A network that learns is well above this accuracy.
MIN_ACCURACY = 0.95
# A rank's sockets add 51 characters to this directory's path, and the kernel allows 107 in all.
_MAX_TEMPORARY_LENGTH = 50


def run_demo(
    ranks: Annotated[int, typer.Option(help="Training processes.", min=1)] = 2,
    workers: Annotated[int, typer.Option(help="DataLoader workers of each rank.", min=0)] = 2,
    epochs: Annotated[int, typer.Option(help="Passes over the training samples.", min=1)] = 6,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of one rank.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Of the drawings, the sample order and the initial weights.", min=0)] = 0,
    kept: Annotated[
        str | None,
        typer.Option("--keep", metavar="DIR", help="Keep the shards and their indexes there.", show_default=False),
    ] = None,
) -> None:
    """Show distributed training on this machine: shards over HTTP, a cache, DDP ranks with equal shares.

    Draws a small labelled image set, packs it in shards of unequal sizes, serves them on loopback, and trains a small
    network in 2 processes with 2 DataLoader workers each. The closing table has the samples and batches of each rank,
    and the accuracy.
    """
    from rich.console import Console

    from wids.cli.demo import shapes
    from wids.cli.demo.train import DemoJob
    from wids.cli.signals import Signals
    from wids.testing import Server

    if kept is not None:
        _make_empty(kept)
    console = Console(highlight=False)
    with Signals() as signals, contextlib.ExitStack() as stack:
        directory = stack.enter_context(_temporary_directory(signals))
        shards, run = (os.path.join(directory, name) for name in ("shards", "run"))
        os.mkdir(shards)
        os.mkdir(run)
        begin = time.monotonic()
        with console.status("drawing shapes"):
            sizes = shapes.pack(shards, split="train", count=TRAIN, nshards=TRAIN_SHARDS, seed=seed)
            sizes += shapes.pack(shards, split="test", count=TEST, nshards=TEST_SHARDS, seed=seed)
        drawn = f"{TRAIN:,} shapes of {len(shapes.SHAPES)} kinds to train on, and {TEST:,} to test on"
        _say(console, f"drew {drawn}, in {time.monotonic() - begin:.1f} s")
        if kept is not None:
            shutil.copytree(shards, kept, dirs_exist_ok=True)
        with signals.held():
            server = stack.enter_context(Server(shards))
        _say(console, f"serving {len(sizes)} shards of {min(sizes):,} to {max(sizes):,} samples at {server.url}")
        job = DemoJob(
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
    print("\nWhere next:")
    for words, command in _steps(kept):
        print(f"  {words}:\n    {command}")


def _steps(kept: str | None) -> list[tuple[str, str]]:
    """What to do after the demo: (words, a command or a file)."""
    import wids
    from wids.cli.demo import train

    index = None if kept is None else shlex.quote(os.path.join(kept, "shapes-train.json"))
    look = ("run it again and keep its shards, to look into them", "wids demo --keep shapes")
    guides = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(wids.__file__))), "notebooks")
    return [
        look if index is None else ("look at a sample, or at the whole", f"wids show {index} 0; wids info {index}"),
        ("make shards of your own images", "wids pack photos -o 'out/train-%06d.tar'"),
        ("or take shards that you have, as they are", "wids index create 's3://bucket/train-*.tar' -o train.json"),
        ("read the training loop that ran here", os.path.abspath(train.__file__)),
        *([("read the guides", guides)] if os.path.isdir(guides) else []),
    ]


def _make_empty(directory: str) -> None:
    """Make a directory for the files to keep.

    Raises:
        OutputExistsError: it has files. OutputError: it cannot be made.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        names = os.listdir(directory)
    except OSError as error:
        raise OutputError(f"{directory}: cannot be made ({error})", url=directory) from error
    if names:
        raise OutputExistsError(f"{directory}: is not empty; name another directory", url=directory)


def make_table(results: list[dict[str, Any]], fetches: Counter[str]) -> Table:
    """Make the closing table: a row for each rank, and one for all.

    Args:
        results: the last report of each rank; see `wids.cli.demo.train.train`.
        fetches: path of a shard -> number of requests for it.
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


def check(results: list[dict[str, Any]], job: DemoJob) -> None:
    """Compare the ranks' reports with the job.

    Raises:
        JobError: the ranks' counts differ, samples were left out, or the accuracy is too low.
    """
    shares = [(result["samples"], result["steps"]) for result in results]
    if len(set(shares)) > 1:
        raise JobError(f"the ranks' shares differ: (samples, batches) are {shares}")
    trained, tested = sum(samples for samples, _ in shares), results[0]["tested"]
    if trained < TRAIN * job.epochs or tested != TEST:
        counts = f"{trained} of {TRAIN} x {job.epochs} epochs to train on, {tested} of {TEST} to test on"
        raise JobError(f"samples were left out: {counts}")
    accuracy = results[0]["correct"] / tested
    if accuracy < MIN_ACCURACY:
        raise JobError(
            f"too little was learned: the accuracy on held-out shapes is {accuracy:.1%}, and {MIN_ACCURACY:.0%} is "
            f"expected; take more --epochs than {job.epochs}"
        )


def _train(job: DemoJob, signals: Signals, console: Console) -> list[dict[str, Any]]:
    """Run the ranks to their end and show their progress; returns the last report of each."""
    from rich.progress import Progress

    from wids.cli.demo.ranks import started, watch

    reports: list[dict[str, Any]] = []
    ended = 0
    with Progress(console=console, transient=True) as bar, started(job, signals) as processes:
        task = bar.add_task("starting the ranks", total=None)
        for reports in watch(job, processes):
            if not all(reports):
                continue
            slowest = min(reports, key=lambda report: report["steps"])
            total = job.epochs * slowest["batches"]
            text = f"epoch {slowest['epoch'] + 1}/{job.epochs}: loss {slowest['loss']:.3f}"
            bar.update(task, description=text, total=total, completed=slowest["steps"])
            if ended < slowest["steps"] // slowest["batches"]:
                ended = slowest["steps"] // slowest["batches"]
                speed = sum(report["samples"] / report["seconds"] for report in reports)
                _say(console, f"epoch {ended}/{job.epochs}: loss {slowest['loss']:.3f}, {speed:,.0f} samples/s")
    return reports


def _say(console: Console, text: str) -> None:
    """Print a line of text without markup; only a terminal wraps it."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def _temporary_directory(signals: Signals) -> Iterator[str]:
    """A directory for the block, in /tmp if the path of $TMPDIR is too long for the sockets in it."""
    usual = tempfile.gettempdir()
    parent = next((name for name in (usual, "/tmp") if len(os.fsencode(name)) <= _MAX_TEMPORARY_LENGTH), usual)  # noqa: S108
    directory = ""
    try:
        with signals.held():
            directory = tempfile.mkdtemp(prefix="wids-demo-", dir=parent)
        yield directory
    finally:
        signals.hold()
        shutil.rmtree(directory, ignore_errors=True)
