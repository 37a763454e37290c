"""SPDL's pipeline of threads, over this package's dataset and sampler."""

from __future__ import annotations

from peer_wids import WidsData
from spdl.pipeline import PipelineBuilder
from torch.utils.data import BatchSampler


class SpdlPeer(WidsData):
    """``PipelineBuilder``; a pipeline is built for each epoch, as its documentation has it."""

    packages = ("wids", "spdl")
    settings = "over a ShardListDataset: pipe(concurrency=workers, output_order='input') over __getitems__"

    def batches(self, dataset, sampler, workers: int, collate):
        """A batch is made by one thread; without workers by one, beside the loop."""
        threads = max(workers, 1)
        indices = BatchSampler(sampler, self.batch, drop_last=False)

        def make(batch: list[int]):
            return collate(dataset.__getitems__(batch))

        class Epochs:
            def __iter__(self):
                pipeline = (
                    PipelineBuilder()
                    .add_source(iter(indices))
                    .pipe(make, concurrency=threads, output_order="input")
                    .add_sink(2 * threads)
                    .build(num_threads=threads)
                )
                with pipeline.auto_stop():
                    yield from pipeline.get_iterator()

        return Epochs()


CONTENDER = SpdlPeer
