"""LanceDB's StreamingDataset with pack_sequences, which reads the tokens to pack them.

It cuts each of its splits into as many packs, whose number has to be said: here all tokens and separators of the table
divided by the size of a pack, rounded down to a number that the splits divide. A state is merged from those of all
ranks.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import lancedb
import numpy as np
import pyarrow as pa
from batch_worker import Planner, find_runs, serve
from lancedb.streaming import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

SPLITS = 8
SEPARATOR, PAD = 2**31 - 1, 2**31 - 2


class LancePlanner(Planner):
    """A split for each of the most ranks."""

    packages = ("lancedb", "pyarrow", "torch")
    settings = (
        f"StreamingDataset(table, num_splits={SPLITS}, pack_sequences=8192, blocks_per_epoch=tokens // 8192), four "
        "items to a batch; it reads the tokens"
    )

    def prepare(self) -> None:
        """Its table: the tokens of each document, numbered over all documents."""
        ends = np.append(0, np.cumsum(self.lengths))
        tokens = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.arange(ends[-1]), pa.int32()))
        self._connect().create_table("documents", pa.table({"tokens": tokens}), mode="overwrite")

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[np.ndarray]]:
        """See `Planner.begin`."""
        self.world, self.rank = world, rank
        self.dataset = self._make(rank, world)
        if state is not None:
            self.dataset.load_state_dict(state)
        return self._batches(self.dataset)

    def state(self, consumed: int) -> Any:
        """See `Planner.state`; the other ranks are brought to the same step for theirs."""
        states = [self.dataset.state_dict()]
        for rank in range(self.world):
            if rank != self.rank:
                dataset = self._make(rank, self.world)
                batches = self._batches(dataset)
                for _ in itertools.islice(batches, consumed):
                    pass
                states.append(dataset.state_dict())
                del batches
        return StreamingDataset.merge_state_dicts(states)

    def size(self, batch: list[np.ndarray]) -> int:
        """See `Planner.size`."""
        return sum(int((tokens < PAD).sum()) for tokens in batch)

    def arrays(self, batches: list[list[np.ndarray]]) -> dict[str, np.ndarray]:
        """See `Planner.arrays`."""
        rooms = [sum(int((tokens != SEPARATOR).sum()) for tokens in batch) for batch in batches]
        return find_runs([[tokens[tokens < PAD] for tokens in batch] for batch in batches], rooms, self.lengths)

    def _batches(self, dataset: StreamingDataset) -> Iterator[list[np.ndarray]]:
        items = iter(dataset)
        while batch := [item["input_ids"].numpy() for item in itertools.islice(items, self.job["packs"])]:
            yield batch

    def _make(self, rank: int, world: int) -> StreamingDataset:
        blocks = int(self.lengths.sum() + len(self.lengths)) // self.job["pack_tokens"]
        return StreamingDataset(
            self._connect().open_table("documents"),
            num_splits=SPLITS,
            rank=rank,
            world_size=world,
            columns=["tokens"],
            pack_sequences=self.job["pack_tokens"],
            eos_id=SEPARATOR,
            pad_id=PAD,
            blocks_per_epoch=blocks - blocks % SPLITS,
        )

    def _connect(self) -> Any:
        return lancedb.connect(os.path.join(self.job["formats"], "lance"))


if __name__ == "__main__":
    serve(LancePlanner)
