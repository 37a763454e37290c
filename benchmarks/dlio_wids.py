"""wids as a data loader of DLIO, the benchmark of MLPerf Storage: ``reader.data_loader_classname``.

README.md beside this file has the command. ``dataset.data_folder`` has an index, ``train.json``, and for each shard a
file in ``train`` that ends in ``dataset.format``, which DLIO counts; ``num_samples_per_file`` is that of a shard.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlio_benchmark.common.enumerations import DataLoaderType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from torch.utils.data import DataLoader

import wids

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


class _Resized:
    """Takes the bytes of a sample, and hands out the array that DLIO's readers hand out in its place."""

    def __init__(self, resized: np.ndarray):
        self.resized = resized

    def __call__(self, sample: dict) -> np.ndarray:
        sample[".jpg"].getvalue()
        return self.resized


class WidsLoader(BaseDataLoader):
    """`wids.ShardListDataset`, `wids.DistributedChunkedSampler`, torch's DataLoader."""

    def __init__(self, format_type, dataset_type, epoch_number):
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Make the loader, once for all epochs."""
        given = self._args
        index = os.path.join(given.data_folder, "train.json")
        dataset = wids.ShardListDataset(index, transformations=_Resized(given.resized_image))
        self.sampler = wids.DistributedChunkedSampler(dataset, rank=given.my_rank, num_replicas=given.comm_size)
        workers = {"num_workers": given.read_threads, "persistent_workers": given.read_threads > 0}
        self.loader = DataLoader(dataset, self.batch_size, sampler=self.sampler, drop_last=True, **workers)

    def next(self) -> Iterator:
        """The batches of an epoch."""
        self.sampler.set_epoch(self.epoch_number)
        self.epoch_number += 1
        yield from self.loader

    def finalize(self) -> None:
        """Nothing is left to do after an epoch."""
