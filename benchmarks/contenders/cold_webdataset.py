"""The webdataset package: a stream of shards in random order through a shuffle buffer in each worker."""

from __future__ import annotations

import os

import webdataset
from cold_worker import Job, decode, serve


def make_sample(sample: dict):
    """The members are left undecoded."""
    return decode(sample["jpg"], sample["cls"])


class WebdatasetJob(Job):
    """The pipeline of its documentation; with the option ``cache`` through its cache directory, else straight."""

    packages = ("webdataset",)

    def loader(self, epoch: int):
        """See `Job.loader`."""
        cache_dir = None
        if self.given["options"].get("cache"):
            cache_dir = self.given["cache_dir"]
            os.makedirs(cache_dir, exist_ok=True)  # it must be there
        shards = webdataset.WebDataset(self.given["urls"], shardshuffle=100, cache_dir=cache_dir, seed=epoch)
        samples = shards.shuffle(1000).map(make_sample)
        return webdataset.WebLoader(samples, batch_size=self.given["batch"], num_workers=self.given["workers"])


if __name__ == "__main__":
    serve(WebdatasetJob)
