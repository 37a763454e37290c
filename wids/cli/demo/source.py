"""Where the demo's samples come from: drawn and served here, or the user's index after a look at its labels.

Rules: a source says what it has in one line, and knows how many samples there are, so that what the ranks say they did
can be held against it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wids.cli.demo.data import Data, split, survey
from wids.cli.demo.report import count_of
from wids.cli.demo.server import ShardServer
from wids.cli.demo.shapes import SHAPES, SIZE_PX, pack

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from wids.cli.demo.events import EventLog
    from wids.cli.demo.report import Display

# An odd number, so that equal shares for two ranks take some care.
_TRAIN, _TRAIN_SHARDS = 3001, 9
_TEST, _TEST_SHARDS = 601, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The samples of a run.

    Attributes:
        data: what the ranks are told.
        trained, tested: how many samples there are to train on and to test on.
        lengths: samples in each shard to train on.
        server: what serves the drawn shards; None for the user's own.
        surveyed: labels read beforehand, and the events of that; None where the labels were known.
    """

    data: Data
    trained: int
    tested: int
    lengths: tuple[int, ...]
    server: ShardServer | None
    surveyed: tuple[int, Counter[str]] | None


@contextlib.contextmanager
def draw_source(directory: str, *, cache_dir: str, seed: int, display: Display) -> Iterator[Source]:
    """Draw and pack the shapes in ``directory``/shards, and serve them while the block runs."""
    start = time.monotonic()
    shards = os.path.join(directory, "shards")
    os.mkdir(shards)
    with display.busy("drawing shapes"):
        train = pack(shards, split="train", count=_TRAIN, nshards=_TRAIN_SHARDS, seed=seed)
        test = pack(shards, split="test", count=_TEST, nshards=_TEST_SHARDS, seed=seed)
    sizes = train.nsamples + test.nsamples
    display.say(
        f"drew {_TRAIN:,} shapes of {len(SHAPES)} kinds to train on, and {_TEST:,} to test on, "
        f"in {time.monotonic() - start:.1f} s"
    )
    with ShardServer(shards) as server:
        display.say(
            f"serving {len(sizes)} shards of {min(sizes):,} to {max(sizes):,} samples, "
            f"{(train.size_bytes + test.size_bytes) / 1e6:.1f} MB, at {server.url}"
        )
        data = Data(
            index=f"{server.url}/{os.path.basename(train.index)}",
            test_index=f"{server.url}/{os.path.basename(test.index)}",
            image=".jpg",
            label=".cls",
            classes=tuple(str(k) for k in range(len(SHAPES))),
            size_px=SIZE_PX,
            cache_dir=cache_dir,
            seed=seed,
        )
        yield Source(data=data, trained=_TRAIN, tested=_TEST, lengths=train.nsamples, server=server, surveyed=None)


def survey_source(
    index: str,
    *,
    image: str,
    label: str,
    cache_dir: str,
    seed: int,
    ranks: int,
    log: EventLog,
    display: Display,
) -> Source:
    """Look at the labels of the user's index; a tenth of its samples is for the test.

    Raises:
        WidsError: see `wids.cli.demo.data.survey`.
    """
    start = time.monotonic()
    with display.busy(f"reading {index}") as say:
        lengths, classes = survey(
            index,
            image=image,
            label=label,
            cache_dir=cache_dir,
            ranks=ranks,
            hooks=[log],
            tell=lambda done, count: say(f"reading labels: {done:,} of {count:,}"),
        )
    count = sum(lengths)
    kept, held_out = split(count, seed=seed)
    display.say(
        f"{index}: {count_of(count, 'sample')} in {count_of(len(lengths), 'shard')}, {len(classes)} classes, "
        f"{len(held_out):,} held out for the test; labels read in {time.monotonic() - start:.1f} s"
    )
    data = Data(
        index=index,
        test_index=None,
        image=image,
        label=label,
        classes=classes,
        size_px=SIZE_PX,
        cache_dir=cache_dir,
        seed=seed,
    )
    return Source(
        data=data,
        trained=len(kept),
        tested=len(held_out),
        lengths=tuple(lengths),
        server=None,
        surveyed=(count, log.count()),
    )
