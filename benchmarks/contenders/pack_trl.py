"""TRL's pack_dataset, by the strategy $STRATEGY, in the loader that the Trainer makes.

The data set is packed before the epoch, in the file that `datasets` keeps: a resumed run reads this file. A state is
what the Trainer keeps, the number of steps; it resumes by `accelerate.skip_first_batches`.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.utils import set_seed
from batch_worker import Planner, find_runs, serve
from datasets import Dataset, disable_progress_bars, load_from_disk
from torch.utils.data import DataLoader
from trl import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

STRATEGY = os.environ["STRATEGY"]
disable_progress_bars()


class TrlPlanner(Planner):
    """``SFTConfig(packing=True, max_length=pack_tokens)``."""

    packages = ("trl", "datasets", "accelerate", "torch")
    settings = f'pack_dataset(dataset, 8192, strategy="{STRATEGY}"), shuffled and dealt by accelerate'

    def prepare(self) -> None:
        """Its data set: the tokens of each document, numbered over all documents."""
        ends = np.append(0, np.cumsum(self.lengths))
        tokens = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(np.arange(ends[-1]), pa.int32()))
        Dataset(pa.table({"input_ids": tokens})).save_to_disk(self._path())

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """See `Planner.begin`."""
        self._pack(is_new=state is None)
        return self._deal(rank, world, state)

    def steps(self, world: int, state: Any = None) -> Iterator[tuple[list[int], ...]]:
        """See `Planner.steps`."""
        self._pack(is_new=state is None)
        return itertools.zip_longest(*(self._deal(rank, world, state) for rank in range(world)), fillvalue=[])

    def _pack(self, *, is_new: bool) -> None:
        whole = load_from_disk(self._path())
        packed = pack_dataset(whole, self.job["pack_tokens"], STRATEGY, {"load_from_cache_file": not is_new})
        self.packed = packed.data.column("input_ids")
        self.sizes = np.concatenate([chunk.value_lengths().to_numpy() for chunk in self.packed.chunks])

    def _deal(self, rank: int, world: int, state: Any) -> Iterator[list[int]]:
        set_seed(42)  # as the Trainer does
        loader = prepare_data_loader(
            DataLoader(range(len(self.sizes)), self.job["packs"], shuffle=True),
            num_processes=world,
            process_index=rank,
            use_seedable_sampler=True,
        )
        return iter(loader.batch_sampler if state is None else skip_first_batches(loader, state).batch_sampler)

    def state(self, consumed: int) -> int:
        """See `Planner.state`."""
        return consumed

    def size(self, batch: list[int]) -> int:
        """See `Planner.size`."""
        return int(self.sizes[batch].sum())

    def arrays(self, batches: list[list[int]]) -> dict[str, np.ndarray]:
        """See `Planner.arrays`."""
        tokens = np.concatenate([chunk.flatten().to_numpy() for chunk in self.packed.chunks])
        packs = np.split(tokens, np.cumsum(self.sizes)[:-1])
        rooms = [len(batch) * self.job["pack_tokens"] for batch in batches]
        return find_runs([[packs[k] for k in batch] for batch in batches], rooms, self.lengths)

    def _path(self) -> str:
        return os.path.join(self.job["formats"], f"trl-{STRATEGY}")


if __name__ == "__main__":
    serve(TrlPlanner)
