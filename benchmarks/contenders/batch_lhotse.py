"""Lhotse's DynamicBucketingSampler, over a manifest that is read lazily, as its documentation asks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from batch_worker import Planner, serve
from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler

if TYPE_CHECKING:
    from collections.abc import Iterator


class AllRanks(DynamicBucketingSampler):
    """Yields the batches of all ranks, if its rank is a slice."""

    def _log_diagnostics(self, batch: Any) -> None:
        """They are none that it knows how to count."""


def indices(batch: CutSet) -> list[int]:
    """The samples of a batch. What is repeated to make the ranks equal has a longer id."""
    return [int(cut.id.split("_")[0]) for cut in batch]


class LhotsePlanner(Planner):
    """A length is a cut's duration; the state is the sampler's own."""

    packages = ("lhotse", "orjson", "torch")
    settings = (
        "DynamicBucketingSampler(CutSet.from_jsonl_lazy(...), max_duration=budget, num_buckets=60, shuffle=True); its "
        "recipes have 30 buckets, with which more is padding"
    )

    def prepare(self) -> None:
        """Its manifest: a cut for each sample."""
        with open(self._manifest(), "w", encoding="utf-8") as stream:
            stream.writelines(
                f'{{"id": "{i}", "start": 0, "duration": {length}.0, "channel": 0, "type": "MonoCut"}}\n'
                for i, length in enumerate(self.lengths.tolist())
            )

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """See `Planner.begin`."""
        return map(indices, self._make(DynamicBucketingSampler, rank, world, state))

    def steps(self, world: int, state: Any = None) -> Iterator[tuple[list[int], ...]]:
        """See `Planner.steps`. Each rank draws the batches of all ranks, so one will do."""
        return (tuple(map(indices, step)) for step in self._make(AllRanks, 0, world, state))

    def _make(self, sampler: type[DynamicBucketingSampler], rank: int, world: int, state: Any) -> Any:
        self.sampler = sampler(
            CutSet.from_jsonl_lazy(self._manifest()),
            max_duration=self.job["budget"],
            num_buckets=60,
            shuffle=True,
            world_size=world,
            rank=rank,
        )
        if sampler is AllRanks:
            self.sampler.rank = slice(None)
        if state is not None:
            self.sampler.load_state_dict(state)
        return self.sampler

    def state(self, consumed: int) -> Any:  # noqa: ARG002  (it counts what was drawn)
        """See `Planner.state`."""
        return self.sampler.state_dict()

    def _manifest(self) -> str:
        return os.path.join(self.job["formats"], "cuts.jsonl")


if __name__ == "__main__":
    serve(LhotsePlanner)
