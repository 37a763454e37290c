"""This package with threads of the process in the place of worker processes."""

from __future__ import annotations

from peer_wids import WidsData
from torch.utils.data import DataLoader

import wids


class ThreadsPeer(WidsData):
    """``wids.resumable(loader, workers="threads")``."""

    settings = "as wids, with wids.resumable(loader, workers='threads')"

    def batches(self, dataset, sampler, workers: int, collate):
        """Torch's loader; without workers the loop reads itself."""
        loader = DataLoader(dataset, batch_size=self.batch, sampler=sampler, num_workers=workers, collate_fn=collate)
        return wids.resumable(loader, workers="threads") if workers else loader

    def remote_loader(self, name: str, cache: str):
        """The same over the server."""
        url = f"{self.url}/tars/{name}/train.json"
        dataset = wids.ShardListDataset(url, cache_dir=cache, transformations=[])
        dataset.add_transform(self.decode_sample)
        sampler = wids.DistributedChunkedSampler(dataset, shuffle=True)
        return wids.resumable(DataLoader(dataset, self.batch, sampler=sampler, num_workers=2), workers="threads")


CONTENDER = ThreadsPeer
