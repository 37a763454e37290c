"""``wids demo``: the main job from end to end, on drawn shapes or on the user's own index.

Rules: this module is light; what is heavy is imported when the command runs. Everything is made in one temporary
directory that is gone at the end, however the end comes: see `wids.cli.signals` and `wids.cli.demo.ranks`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Annotated

import typer

from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.cli.demo.report import Display
    from wids.cli.demo.source import Source
    from wids.cli.demo.train import Job
    from wids.cli.demo.verdict import Outcome
    from wids.cli.signals import Signals


def run_demo(
    index: Annotated[
        str, typer.Option(help="Train on this index (URL or path) instead of drawn shapes.", metavar="URL_OR_PATH")
    ] = "",
    image: Annotated[str, typer.Option(help="Extension of the images.", metavar="EXT")] = ".jpg",
    label: Annotated[
        str, typer.Option(help="Extension of the labels: whole numbers or short texts.", metavar="EXT")
    ] = ".cls",
    ranks: Annotated[int, typer.Option(help="Training processes.", min=1)] = 2,
    workers: Annotated[int, typer.Option(help="DataLoader workers of each rank.", min=0)] = 2,
    epochs: Annotated[int, typer.Option(help="Passes over the training samples.", min=1)] = 6,
    batch_size: Annotated[int, typer.Option(help="Samples in a batch of one rank.", min=1)] = 32,
    seed: Annotated[int, typer.Option(help="Decides drawings, order and first weights.", min=0)] = 0,
    cache_dir: Annotated[
        str, typer.Option(help="Keep fetched shards here. Default: a temporary directory.", metavar="DIR")
    ] = "",
    keep: Annotated[
        str, typer.Option(help="Work in this new directory, and leave shards, index and cache there.", metavar="DIR")
    ] = "",
) -> None:
    """Show the main job on this machine: shards over HTTP, a cache, DDP training with equal ranks.

    Draws a small labelled image set, packs it in shards of unequal sizes, serves them on loopback, and trains a small
    network on 2 processes with 2 DataLoader workers each. Ends with what each rank got and what was learned.

    With --index, the same on samples of your own; a tenth of them is held out for the test.
    """
    from wids.cli.demo.events import EventLog
    from wids.cli.demo.report import Display
    from wids.cli.demo.source import draw_source, survey_source
    from wids.cli.demo.train import Job
    from wids.cli.demo.verdict import judge
    from wids.cli.signals import Signals

    image, label = (name if name.startswith(".") else f".{name}" for name in (image, label))
    if image == label:
        raise WidsError(f"--image and --label are both {image}; they are two members of a sample")
    if not index and (image, label) != (".jpg", ".cls"):
        raise WidsError("--image and --label say what to read from the samples of an --index, and none was given")
    display = Display()
    if index and not cache_dir:
        cache_dir = os.environ.get("WIDS_CACHE", "")
    with Signals() as signals, _workplace(keep, signals, display) as directory, contextlib.ExitStack() as stack:
        place = os.path.abspath(os.path.expanduser(cache_dir)) if cache_dir else os.path.join(directory, "cache")
        run_directory = os.path.join(directory, "run")
        os.mkdir(run_directory)
        if index:
            source = survey_source(
                index,
                image=image,
                label=label,
                cache_dir=place,
                seed=seed,
                ranks=ranks,
                log=EventLog(os.path.join(run_directory, "events-labels.jsonl")),
                display=display,
            )
        else:
            source = stack.enter_context(draw_source(directory, cache_dir=place, seed=seed, display=display))
        job = Job(
            data=source.data,
            ranks=ranks,
            workers=workers,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            directory=run_directory,
        )
        outcome = _train(job, source, signals, display)
        display.show_table(outcome)
        display.say(judge(outcome, source, job))


def _train(job: Job, source: Source, signals: Signals, display: Display) -> Outcome:
    """Run the job's ranks to their end."""
    from wids.cli.demo.ranks import Ranks
    from wids.cli.demo.train import Progress
    from wids.cli.demo.verdict import Outcome

    results = {}
    with display.training(job) as show, Ranks(job, signals=signals) as running:
        for message in running.watch():
            if isinstance(message, Progress):
                show(message)
            else:
                results[message.rank] = message
    return Outcome(
        results=tuple(results[rank] for rank in range(job.ranks)),
        events=tuple(job.events(rank).count() for rank in range(job.ranks)),
        surveyed=source.surveyed,
    )


@contextlib.contextmanager
def _workplace(keep: str, signals: Signals, display: Display) -> Iterator[str]:
    """A directory to work in: the one to keep, made or empty, or a temporary one that is gone afterwards."""
    if keep:
        directory = os.path.abspath(os.path.expanduser(keep))
        try:
            os.makedirs(directory, exist_ok=True)
            if os.listdir(directory):
                raise WidsError(f"--keep {keep}: there is something in it already; name a new directory")
        except OSError as error:
            raise WidsError(f"--keep {keep}: cannot be used ({error}); name a new directory") from error
        try:
            yield directory
        finally:
            display.say(f"Kept in {directory}: {', '.join(sorted(os.listdir(directory)))}")
        return
    directory = ""
    try:
        with signals.held():
            directory = tempfile.mkdtemp(prefix="wids-demo-")
        yield directory
    finally:
        signals.hold()
        shutil.rmtree(directory, ignore_errors=True)
