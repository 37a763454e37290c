"""This package from the working tree, and the original, whose public calls are the same."""

from __future__ import annotations

from cold_worker import Job, decode, serve
from torch.utils.data import DataLoader

import wids


def make_sample(sample: dict):
    """The members are left undecoded by the dataset."""
    return decode(sample[".jpg"].getvalue(), sample[".cls"].getvalue())


class WidsJob(Job):
    """A shard list, the chunked sampler, torch's own DataLoader."""

    packages = ("wids",)

    def __init__(self, given: dict):
        super().__init__(given)
        options = given["options"]
        self.dataset = wids.ShardListDataset(
            given["index"], cache_dir=given["cache_dir"], transformations=[], **options.get("dataset", {})
        ).add_transform(make_sample)
        self.sampler = wids.DistributedChunkedSampler(self.dataset, shuffle=True, **options.get("sampler", {}))

    def loader(self, epoch: int) -> DataLoader:
        """See `Job.loader`."""
        self.sampler.set_epoch(epoch)
        return DataLoader(
            self.dataset,
            batch_size=self.given["batch"],
            sampler=self.sampler,
            num_workers=self.given["workers"],
        )


if __name__ == "__main__":
    serve(WidsJob)
