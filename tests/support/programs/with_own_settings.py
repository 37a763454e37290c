"""A trainer of wids 0.1 whose sampler keeps its settings, as torch's examples do, before ``super().__init__()``.

Arguments: index, epochs, file. The ranks of one job take turns in this process; the samples that each rank reads in
each epoch go to the file.
"""

import json
import sys

from torch.utils.data import DataLoader

import wids


class LocalSampler(wids.ChunkedSampler):
    """Divides the samples among ranks by itself."""

    def __init__(self, dataset, rank, num_replicas, chunksize=2, seed=0, shuffle=True):
        self.rank = rank
        self.num_replicas = num_replicas
        self.chunksize = chunksize
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        each = len(dataset) // self.num_replicas
        self.ranges = (self.rank * each, (self.rank + 1) * each)
        self.dslength_per_replica = each
        super().__init__(
            dataset, num_samples=self.ranges, chunksize=self.chunksize, seed=self.seed, shuffle=self.shuffle
        )
        self.num_samples = each


class RankSampler(wids.DistributedChunkedSampler):
    """Leaves the division to its base, and keeps what it was given."""

    def __init__(self, dataset, rank, num_replicas, **options):
        self.rank, self.num_replicas, self.window, self.tail = rank, num_replicas, 2, "drop"
        self.lanes, self.seed, self.drop_last = num_replicas, 3, True
        super().__init__(
            dataset,
            rank=self.rank,
            num_replicas=self.num_replicas,
            window=self.window,
            seed=self.seed,
            drop_last=self.drop_last,
            **options,
        )
        self.total_size = self.num_samples * num_replicas


def read(sampler, dataset, epochs):
    """The labels of each epoch's batches."""
    loader, found = DataLoader(dataset, batch_size=2, sampler=sampler), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append([label for batch in loader for label in batch[".cls"].tolist()])
        assert len(found[-1]) == len(sampler) == sampler.num_samples
    return found


def main():
    """All ranks, by both samplers."""
    index, epochs, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dataset = wids.ShardListDataset(index, transformations="PIL").add_transform(lambda s: {".cls": s[".cls"]})
    found = {}
    for kind in (LocalSampler, RankSampler):
        samplers = [kind(dataset, rank, 2) for rank in range(2)]
        assert [(sampler.rank, sampler.num_replicas) for sampler in samplers] == [(0, 2), (1, 2)]
        found[kind.__name__] = [read(sampler, dataset, epochs) for sampler in samplers]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
