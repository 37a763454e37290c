"""torchdata.nodes with threads, over this package's dataset and sampler."""

from __future__ import annotations

from peer_wids import WidsData
from torch.utils.data import BatchSampler
from torchdata.nodes import Loader, ParallelMapper, SamplerWrapper


class NodesPeer(WidsData):
    """``SamplerWrapper``, ``ParallelMapper(method="thread")``, ``Loader``."""

    packages = ("wids", "torchdata")
    settings = "over a ShardListDataset: ParallelMapper(method='thread', in_order=True) over __getitems__"

    def batches(self, dataset, sampler, workers: int, collate):
        """A batch is made by one thread; without workers by one, beside the loop."""
        indices = SamplerWrapper(BatchSampler(sampler, self.batch, drop_last=False))
        node = ParallelMapper(
            indices,
            lambda batch: collate(dataset.__getitems__(batch)),
            num_workers=max(workers, 1),
            method="thread",
            in_order=True,
            prebatch=None,
        )
        return Loader(node)


CONTENDER = NodesPeer
