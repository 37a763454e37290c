"""The task of a contender of videos.py: it comes on stdin, the figures go to stdout, each as JSON."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from clips import CLIP, FRAMES, RATE, frames_of, join, read_clips

__all__ = ["CLIP", "FRAMES", "RATE", "films_in", "frames_of", "join", "serve"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np


def films_in(home: str) -> Iterator[list[bytes]]:
    """The films of each tar, in order."""
    for path in sorted(Path(home).glob("episodes-*.tar")):
        with tarfile.open(path) as tar:
            yield [tar.extractfile(member).read() for member in tar if member.name.endswith(".mp4")]


def serve(version: str, begin: Callable[[str], Callable[[int, int], np.ndarray]]) -> None:
    """Do one task.

    Args:
        version: of the contender.
        begin: prepares its data from the tars in a directory; the function it returns reads a clip: (CLIP, H, W, 3).
    """
    task = json.load(sys.stdin)
    read = begin(task["home"])
    read_clips(read, task["warm"])
    wall, cpu = time.perf_counter(), time.process_time()
    mean = read_clips(read, task["picks"])
    figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**figures, "mean": mean, "version": version}))
