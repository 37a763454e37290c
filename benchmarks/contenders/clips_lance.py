"""Clips of episodes from Lance's blobs: a column of MP4, opened by `take_blobs`, and decoded by PyAV; see videos.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
from clips_worker import CLIP, films_in, frames_of, serve

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


def begin(home: str) -> Callable[[int, int], np.ndarray]:
    """The table, made once."""
    place = os.path.join(home, "episodes.lance")
    if not os.path.exists(place):
        schema = pa.schema([pa.field("video", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
        batches = (pa.record_batch([pa.array(films, pa.large_binary())], schema=schema) for films in films_in(home))
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), place)
    table = lance.dataset(place)
    return lambda episode, first: frames_of(table.take_blobs("video", indices=[episode])[0], first, CLIP)


if __name__ == "__main__":
    serve(lance.__version__, begin)
