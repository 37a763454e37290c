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
        if "mixture" in options:
            self.dataset = self.mix(given["shards"], options["mixture"])
        else:
            self.dataset = self.make_dataset(given["index"])
        self.sampler = wids.DistributedChunkedSampler(self.dataset, shuffle=True, **options.get("sampler", {}))

    def make_dataset(self, shards) -> wids.ShardListDataset:
        """A dataset as ``shards``, an index, says."""
        options = self.given["options"].get("dataset", {})
        dataset = wids.ShardListDataset(shards, cache_dir=self.given["cache_dir"], transformations=[], **options)
        return dataset.add_transform(make_sample)

    def mix(self, shards: list[dict], count: int):
        """A mixture of so many datasets, each of an equal part of the shards; its epoch has each sample once."""
        size = len(shards) // count
        return wids.mix([self.make_dataset(shards[k * size : (k + 1) * size]) for k in range(count)])

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
