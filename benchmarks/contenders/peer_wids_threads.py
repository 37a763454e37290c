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
        dataset, sampler = self.remote_data(self.remote_index(name), cache)
        return wids.resumable(DataLoader(dataset, self.batch, sampler=sampler, num_workers=2), workers="threads")


CONTENDER = ThreadsPeer
