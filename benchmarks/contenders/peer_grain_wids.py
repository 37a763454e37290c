"""Grain with threads, over this package's dataset and sampler."""

from __future__ import annotations

import grain
from peer_wids import WidsData
from torch.utils.data import BatchSampler


class GrainPeer(WidsData):
    """``MapDataset.source.map``, ``to_iter_dataset`` with as many threads as there would be workers."""

    packages = ("wids", "grain")
    settings = "over a ShardListDataset: MapDataset of the sampler's batches, ReadOptions(num_threads=workers)"

    def batches(self, dataset, sampler, workers: int, collate):
        """A batch is made by one thread; without workers by the loop."""
        indices = BatchSampler(sampler, self.batch, drop_last=False)
        options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=2 * workers)

        class Epochs:
            def __iter__(self):
                made = grain.MapDataset.source(list(indices)).map(lambda batch: collate(dataset.__getitems__(batch)))
                return iter(made.to_iter_dataset(options))

        return Epochs()


CONTENDER = GrainPeer
