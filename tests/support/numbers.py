"""A dataset for samplers that nobody reads from, and the sampler of the only rank."""

from wids.samplers import DistributedChunkedSampler


class Numbers:
    """A dataset of its own indices; attributes are given."""

    def __init__(self, n, **attributes):
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


def alone(dataset, **options):
    """The sampler of the only rank."""
    return DistributedChunkedSampler(dataset, num_replicas=1, rank=0, **options)
