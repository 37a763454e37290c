"""wids.BucketBatchSampler, at its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from batch_worker import Planner, serve

from wids import BucketBatchSampler, DistributedChunkedSampler  # which imports torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shards:
    """A dataset with lengths only."""

    def __init__(self, n: int, size: int) -> None:
        self.lengths = [min(size, n - first) for first in range(0, n, size)]

    def __len__(self) -> int:
        return sum(self.lengths)


class WidsPlanner(Planner):
    """Over a DistributedChunkedSampler."""

    packages = ("wids", "numpy")
    settings = "BucketBatchSampler(DistributedChunkedSampler(dataset), lengths=array, max_tokens=budget, limits=...)"

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """See `Planner.begin`."""
        dataset = Shards(len(self.lengths), self.job["shard_size"])
        sampler = DistributedChunkedSampler(dataset, num_replicas=world, rank=rank)
        limits = None
        if self.job["image_budget"]:
            limits = {"images": (np.load(self.job["images"]), self.job["image_budget"])}
        self.batches = BucketBatchSampler(
            sampler, lengths=self.lengths, max_tokens=self.job["budget"], cost=self.job["cost"], limits=limits
        )
        if state is not None:
            self.batches.load_state_dict(state)
        return iter(self.batches)

    def state(self, consumed: int) -> Any:
        """See `Planner.state`."""
        return self.batches.state_dict(batches=consumed)


if __name__ == "__main__":
    serve(WidsPlanner)
