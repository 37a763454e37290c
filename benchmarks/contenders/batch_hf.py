"""The two samplers by length of Hugging Face's Trainer, in the loader that it makes; $STRATEGY says which.

A state is what the Trainer keeps, the number of steps; it resumes by `accelerate.skip_first_batches`.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.utils import set_seed
from batch_worker import Planner, serve
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import BatchRebalanceSampler, LengthGroupedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator


class GroupPlanner(Planner):
    """``train_sampling_strategy="group_by_length"``."""

    packages = ("transformers", "accelerate", "torch")
    settings = 'train_sampling_strategy="group_by_length": LengthGroupedSampler, dealt by accelerate; no budget'

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """See `Planner.begin`."""
        set_seed(42)  # as the Trainer does
        loader = prepare_data_loader(self.loader(rank, world), num_processes=world, process_index=rank)
        self.undo_sharding(loader)
        return iter(loader.batch_sampler if state is None else skip_first_batches(loader, state).batch_sampler)

    def loader(self, rank: int, world: int) -> DataLoader:  # noqa: ARG002  (for the other)
        """Of a process, before accelerate deals its batches."""
        size = self.job["batch_size"]
        return DataLoader(self.lengths, size, sampler=LengthGroupedSampler(size, lengths=self.lengths.tolist()))

    def undo_sharding(self, loader: DataLoader) -> None:
        """Nothing to be undone."""

    def state(self, consumed: int) -> int:
        """See `Planner.state`."""
        return consumed


class AllRanks(BatchRebalanceSampler):
    """Yields the batches of all ranks."""

    def _yield_global_batch(self, chosen: list[int]) -> Iterator[tuple[list[int], ...]]:
        yield tuple(own[0] for own in self._assign(chosen, [self.lengths[i] for i in chosen]))


class RebalancePlanner(GroupPlanner):
    """``train_sampling_strategy="batch_rebalance"``."""

    settings = 'train_sampling_strategy="batch_rebalance": BatchRebalanceSampler; no budget'

    def loader(self, rank: int, world: int) -> DataLoader:
        """See `GroupPlanner.loader`."""
        sampler = BatchRebalanceSampler(
            self.lengths.tolist(), self.job["batch_size"] * world, world, 1, rank=rank, drop_last=False
        )
        return DataLoader(self.lengths, batch_sampler=sampler)

    def undo_sharding(self, loader: DataLoader) -> None:
        """As the Trainer does: this sampler has dealt its batches already."""
        loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0

    def steps(self, world: int, state: Any = None) -> Iterator[tuple[list[int], ...]]:
        """See `Planner.steps`. Each rank makes the batches of all ranks, so one will do."""
        sampler = self.loader(0, world).batch_sampler
        sampler.__class__ = AllRanks
        return itertools.islice(sampler, state or 0, None)


if __name__ == "__main__":
    serve({"group": GroupPlanner, "rebalance": RebalancePlanner}[os.environ["STRATEGY"]])
