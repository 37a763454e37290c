"""Base of the contenders of peers.py whose loader is a map-style dataset in torch's DataLoader with shuffle=True."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from peer_worker import Peer
from torch.utils.data import DataLoader, Dataset, default_collate

if TYPE_CHECKING:
    from collections.abc import Callable


class MapStylePeer(Peer):
    """A subclass has `dataset`; its samples are (key, payload, label as bytes) unless it says otherwise."""

    def dataset(self, name: str, *, is_decoded: bool) -> Dataset:
        """The samples of a set, undecoded or decoded by ``cold_worker.decode``."""
        raise NotImplementedError

    def collate_decoded(self, samples: list) -> Any:
        """A batch of decoded samples: pictures and labels."""
        return default_collate(samples)

    def key(self, sample: Any) -> str:
        """See `Peer.key`."""
        return sample[0]

    def payload(self, sample: Any) -> bytes:
        """See `Peer.payload`."""
        return sample[1]

    def label(self, sample: Any) -> int:
        """See `Peer.label`."""
        return int(sample[2])

    def items(self, name: str) -> tuple[int, Callable[[int], Any]]:
        """``dataset[i]``."""
        dataset = self.dataset(name, is_decoded=False)
        return len(dataset), dataset.__getitem__

    def loader(self, name: str, workers: int, *, is_decoded: bool) -> Callable[[int], DataLoader]:
        """A permutation of everything."""
        return self.epochs(self.dataset(name, is_decoded=is_decoded), workers, is_decoded=is_decoded)

    def epochs(
        self, dataset: Dataset, workers: int, *, is_decoded: bool, is_kept: bool = True
    ) -> Callable[[int], DataLoader]:
        """From an epoch's number to its batches; with ``is_kept`` the workers live on between epochs."""
        loader = DataLoader(
            dataset,
            batch_size=self.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=is_kept and workers > 0,
            collate_fn=self.collate_decoded if is_decoded else list,
        )

        def epoch(number: int) -> DataLoader:
            torch.manual_seed(number)
            return loader

        return epoch
