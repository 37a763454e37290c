"""``wids demo``: distributed training from end to end on one machine, on images of shapes that it draws.

Heavy modules are imported when the command runs. torchrun starts the ranks and watches them. All files are in one
temporary directory, which is removed at the end, after an error or a signal too. The shards that stay are copies.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wids.errors import JobError, OutputError, OutputExistsError
from wids.tools.cli.plain_help import App
from wids.tools.cli.ranks import temporary_directory, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.table import Table

# The names of the files that it keeps, and of their columns.
_KEPT = re.compile(r"shapes-(?:train|test)(?:-\d{6}\.tar|\.json|\.columns\.parquet(?:\.state)?)")
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
# An odd number, so that equal shares for two ranks take some care.
TRAIN, TRAIN_SHARDS = 3001, 9
TEST, TEST_SHARDS = 601, 2
# A network that learns is well above this accuracy.
MIN_ACCURACY = 0.95

app: App = App()


@app.command("demo")
def run_demo(
    ranks: Annotated[int, typer.Option(metavar="N", help="Training processes.", min=1)] = 2,
    workers: Annotated[int, typer.Option(metavar="N", help="DataLoader workers of each rank.", min=0)] = 2,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the training samples.", min=1)] = 6,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Samples in a batch of one rank.", min=1)] = 32,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the drawings, the sample order and the initial weights.", min=0)
    ] = 0,
    kept: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="Keep the shards and their indexes there, instead of those of an earlier run; '' keeps none.",
        ),
    ] = "wids-demo",
) -> None:
    """Show distributed training on this machine: shards over HTTP, a cache, DDP ranks with equal shares.

    Draws a small labelled image set, packs it in shards of unequal sizes, serves them on loopback, and trains a small
    network in 2 processes with 2 DataLoader workers each. The closing table has the samples and batches of each rank,
    and the accuracy.
    """
    from rich.console import Console

    from wids.testing import Server
    from wids.tools.cli.demo import shapes
    from wids.tools.cli.signals import Signals

    kept = os.path.expanduser(kept)
    if kept:
        _make_empty(kept)
    console = Console(highlight=False)
    with Signals() as signals, ExitStack() as stack:
        directory = stack.enter_context(temporary_directory(signals))
        shards = os.path.join(directory, "shards")
        os.mkdir(shards)
        begin = time.monotonic()
        with console.status("drawing shapes"):
            sizes = shapes.pack(shards, split="train", count=TRAIN, nshards=TRAIN_SHARDS, seed=seed)
            sizes += shapes.pack(shards, split="test", count=TEST, nshards=TEST_SHARDS, seed=seed)
        drawn = f"{TRAIN:,} shapes of {len(shapes.SHAPES)} kinds to train on, and {TEST:,} to test on"
        _say(console, f"drew {drawn}, in {time.monotonic() - begin:.1f} s")
        if kept:
            shutil.copytree(shards, kept, dirs_exist_ok=True)
        with signals.held():
            server = stack.enter_context(Server(shards))
        _say(console, f"serving {len(sizes)} shards of {min(sizes):,} to {max(sizes):,} samples at {server.url}")
        job = {"url": server.url, "workers": workers, "epochs": epochs, "batch_size": batch_size, "seed": seed}
        job["cache_dir"] = os.path.join(directory, "cache")
        options: dict[str, Any] = {"ranks": ranks, "directory": directory, "signals": signals}
        with torchrun(_PROGRAM, job, TMPDIR=directory, **options) as reports:
            report = show_progress(reports, epochs, console)
        fetches = Counter(path for path in server.requests if path.endswith(".tar"))
        console.print(make_table(report, fetches))
        check(report, epochs)
        times = "once" if set(fetches.values()) == {1} else f"{fetches.total()} times in all"
        _say(console, f"{len(fetches)} shards went over HTTP {times} ({server.sent_bytes.total() / 1e6:.1f} MB)")
    print("\nWhere next:")
    for words, command in _steps(kept):
        print(f"  {words}:\n    {command}")


def _steps(kept: str) -> list[tuple[str, str]]:
    """Next steps after the demo: (words, a command or a file)."""
    import wids

    index = shlex.quote(os.path.join(kept, "shapes-train.json"))
    looks = [("look at the pictures in a browser", f"wids serve {index}")]
    looks += [("look at a sample, or at the whole", f"wids show {index} 0; wids info {index}")]
    columns = f"wids columns create {index} --field .cls=label --pictures .jpg"
    looks += [("take a part, the stars", f"{columns}; wids view {index} -o stars.json --where \"label = 'star'\"")]
    guides = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(wids.__file__))), "notebooks")
    return [
        *(looks if kept else ()),
        ("make shards of your own images", "wids pack photos -o 'out/train-%06d.tar'"),
        ("or take shards that you have, as they are", "wids index create 's3://bucket/train-*.tar' -o train.json"),
        ("read the training loop that ran here", _PROGRAM),
        *([("read the guides", guides)] if os.path.isdir(guides) else []),
    ]


def _make_empty(directory: str) -> None:
    """Make a directory for the files to keep; those of an earlier run are deleted.

    Raises:
        OutputExistsError: it has other files. OutputError: it cannot be made.
    """
    try:
        os.makedirs(directory, exist_ok=True)
        names = os.listdir(directory)
        is_ours = all(map(_KEPT.fullmatch, names))
        for name in names if is_ours else ():
            os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise OutputError(
            f"{directory}: cannot be made ({error}); name another directory (--keep DIR), or none (--keep '')",
            url=directory,
        ) from error
    if not is_ours:
        raise OutputExistsError(
            f"{directory}: has files that are not the demo's; name another directory (--keep DIR)", url=directory
        )


def show_progress(reports: Iterable[str], epochs: int, console: Console) -> dict[str, Any]:
    """Show the progress of the ranks to their end; returns their last report, see `wids.tools.cli.demo.train.train`."""
    from rich.progress import Progress

    latest: dict[str, Any] = {}
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("starting the ranks", total=None)
        for line in reports:
            if not line.startswith("{"):  # gloo's
                continue
            report = json.loads(line)
            latest |= report
            epoch, loss = -(-latest["steps"] // latest["batches"]), latest["loss"]
            text, total = f"epoch {epoch}/{epochs}: loss {loss:.3f}", epochs * latest["batches"]
            bar.update(task, description=text, total=total, completed=latest["steps"])
            if "ranks" in report:
                speed = sum(share["samples"] / share["seconds"] for share in latest["ranks"])
                _say(console, f"{text}, {speed:,.0f} samples/s")
    return latest


def make_table(report: dict[str, Any], fetches: Counter[str]) -> Table:
    """Make the closing table: a row for each rank, and one for all.

    Args:
        report: the last one.
        fetches: path of a shard -> number of requests for it.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("", "samples", "batches", "samples\nper s", "shards\nfetched", "accuracy"):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    shares = [(share["samples"], share["steps"], share["seconds"]) for share in report["ranks"]]
    for rank, (samples, steps, seconds) in enumerate(shares):
        table.add_row(f"rank {rank}", f"{samples:,}", f"{steps:,}", f"{samples / seconds:,.0f}")
    samples, steps = (sum(share[name] for share in report["ranks"]) for name in ("samples", "steps"))
    seconds = max(share["seconds"] for share in report["ranks"])
    whole = f"{samples:,}", f"{steps:,}", f"{samples / seconds:,.0f}", f"{fetches.total():,}"
    table.add_row("all", *whole, f"{report['correct'] / report['tested']:.1%}", style="bold")
    return table


def check(report: dict[str, Any], epochs: int) -> None:
    """Check the ranks' last report.

    Raises:
        JobError: the ranks' counts differ, samples were left out, or the accuracy is too low.
    """
    shares, tested = [(share["samples"], share["steps"]) for share in report["ranks"]], report["tested"]
    if len(set(shares)) > 1:
        raise JobError(f"the ranks' shares differ: (samples, batches) are {shares}")
    trained = sum(samples for samples, _ in shares)
    if trained < TRAIN * epochs or tested != TEST:
        counts = f"{trained} of {TRAIN} x {epochs} epochs to train on, {tested} of {TEST} to test on"
        raise JobError(f"samples were left out: {counts}")
    accuracy = report["correct"] / tested
    if accuracy < MIN_ACCURACY:
        raise JobError(
            f"too little was learned: the accuracy on held-out shapes is {accuracy:.1%}, and {MIN_ACCURACY:.0%} is "
            f"expected; take more --epochs than {epochs}"
        )


def _say(console: Console, text: str) -> None:
    """Print a line of text without markup; only a terminal wraps it."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)
