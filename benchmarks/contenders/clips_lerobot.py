"""Clips as LeRobot reads them: episodes joined in files of some 200 MB, by its `decode_video_frames`; see videos.py.

Its decoders (torchcodec) stay open for each file. The result is float32; it is brought back to bytes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import lerobot
from clips_worker import CLIP, FRAMES, RATE, films_in, join, serve
from lerobot.datasets.video_utils import decode_video_frames

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

FILE_BYTES = 200 << 20


def begin(home: str) -> Callable[[int, int], np.ndarray]:
    """The files, made once; each has as many episodes as the first."""
    place = os.path.join(home, "lerobot")
    if not os.path.exists(place):
        os.mkdir(place)
        films = [film for some in films_in(home) for film in some]
        per_file = max(FILE_BYTES // len(films[0]), 1)
        for k in range(0, len(films), per_file):
            join(f"{place}/{k // per_file:05d}-{per_file}.mp4", films[k : k + per_file])
    files = sorted(os.listdir(place))
    per_file = int(files[0].removesuffix(".mp4").split("-")[1])

    def read(episode: int, first: int) -> np.ndarray:
        start = episode % per_file * FRAMES + first
        times = [(start + k) / RATE for k in range(CLIP)]
        frames = decode_video_frames(f"{place}/{files[episode // per_file]}", times, 1e-3)
        return (frames * 255).round().byte().permute(0, 2, 3, 1).numpy()

    return read


if __name__ == "__main__":
    serve(lerobot.__version__, begin)
