"""A trainer of wids 0.1 whose dataset and sampler have attributes of their own, by names that wids has by now, too.

Arguments: index, file. Labels in the order that its loader with two workers reads them go to the file, and what the
program finds in its attributes then.
"""

import json
import sys

from torch.utils.data import DataLoader

import wids


class Captions(wids.ShardListDataset):
    """Knows which fields a sample has, and counts what it has read."""

    def __init__(self, index, column_names):
        self.column_names = column_names
        self.fingerprint = f"captions of {len(column_names)}"
        super().__init__(index)
        self.keys = {name: k for k, name in enumerate(column_names)}
        self.contents = dict.fromkeys(column_names, "text")

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return [sample[name] for name in sorted(self.keys, key=self.keys.get)]


class Sampler(wids.DistributedChunkedSampler):
    """Has counts of its own."""

    def __init__(self, dataset, **options):
        super().__init__(dataset, rank=0, num_replicas=1, **options)
        self.num_samples = len(dataset)
        self.total_size = self.num_samples * self.num_replicas
        self.num_valid = 0


def main():
    """One epoch."""
    index, path = sys.argv[1:]
    dataset = Captions(index, [".cls", ".txt"])
    sampler = Sampler(dataset, chunksize=2, seed=1)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2)
    labels = [label for batch in loader for label in batch[0].tolist()]
    own = [dataset.keys, dataset.column_names, dataset.fingerprint, dataset.contents]
    own += [sampler.num_samples, sampler.total_size, sampler.num_valid]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"labels": labels, "own": own, "state": sampler.state_dict()}, file)


if __name__ == "__main__":
    main()
