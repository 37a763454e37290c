"""wids.PackSampler, at its defaults; $CUT=0: documents stay whole, and those longer than a pack are left out."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from batch_wids import Shards
from batch_worker import Planner, serve

from wids import DistributedChunkedSampler, PackSampler  # which imports torch

if TYPE_CHECKING:
    from collections.abc import Iterator

CUT = os.environ["CUT"] == "1"


class Documents(Shards):
    """A dataset that passes the pieces of its indices on."""

    takes_marked_indices = True


class PackPlanner(Planner):
    """Over a DistributedChunkedSampler."""

    packages = ("wids", "numpy")
    settings = (
        f"PackSampler(DistributedChunkedSampler(dataset), lengths=array, pack_tokens=8192, batch_size=4, cut={CUT}"
        f"{'' if CUT else ', too_long=skip'})"
    )

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """See `Planner.begin`."""
        dataset = Documents(len(self.lengths), self.job["shard_size"])
        self.packs = PackSampler(
            DistributedChunkedSampler(dataset, num_replicas=world, rank=rank),
            lengths=self.lengths,
            pack_tokens=self.job["pack_tokens"],
            batch_size=self.job["packs"],
            cut=CUT,
            too_long="error" if CUT else "skip",
        )
        self.made = time.process_time()
        if state is not None:
            self.packs.load_state_dict(state)
        return iter(self.packs)

    def state(self, consumed: int) -> Any:
        """See `Planner.state`."""
        return self.packs.state_dict(batches=consumed)

    def size(self, batch: list[Any]) -> int:
        """See `Planner.size`."""
        return sum(index.piece[2] - index.piece[1] for index in batch)

    def arrays(self, batches: list[list[Any]]) -> dict[str, np.ndarray]:
        """See `Planner.arrays`."""
        begins = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        pieces = np.array([(int(index), *index.piece) for index in itertools.chain.from_iterable(batches)])
        return {
            "starts": begins[pieces[:, 0]] + pieces[:, 2],
            "sizes": pieces[:, 3] - pieces[:, 2],
            "runs": np.array(list(map(len, batches))),
            "rooms": np.array([(batch[-1].piece[0] + 1) * self.job["pack_tokens"] for batch in batches]),
        }


if __name__ == "__main__":
    serve(PackPlanner)
