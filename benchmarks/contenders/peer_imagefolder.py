"""torchvision's ImageFolder: each picture is a file of its own."""

from __future__ import annotations

import os
from typing import ClassVar

import tar_samples
import torch
from cold_worker import decode
from peer_worker import Peer
from torch.utils.data import DataLoader, default_collate
from torchvision.datasets import ImageFolder


def read(path: str) -> tuple[str, bytes]:
    """A picture's path, which has its key, and its bytes."""
    with open(path, "rb") as stream:
        return path, stream.read()


def read_decoded(path: str) -> tuple[torch.Tensor, int]:
    """The transform of all contenders."""
    path, content = read(path)
    return decode(content, key_of(path).encode())


def key_of(path: str) -> str:
    """The file's name without its extension."""
    return os.path.basename(path).partition(".")[0]


def collate_decoded(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and their numbers; the class that is the folder's number is left out."""
    return default_collate([sample for sample, _class in samples])


class ImageFolderPeer(Peer):
    """``ImageFolder(root, loader=...)``, torch's DataLoader with ``shuffle=True``; a sample is ((path, bytes), class).

    A folder has the pictures of one tar: a class of as many pictures. The number that the other loaders have as label
    is told by the file's name.
    """

    packages = ("torchvision",)
    settings = "ImageFolder with a loader= that reads the file (as bytes, or by the common decoding); shuffle=True"
    notes: ClassVar = {
        "remote_loader": "reads local files only",
        "job": "keeps no state",
        "open_many": "has no shards",
        "prepare": "pictures only, no texts",
    }

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return key_of(sample[0][0])

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample[0][1]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(key_of(sample[0][0]))

    def prepare(self, name: str) -> None:
        """A folder for each tar, a file for each picture, as ``tar`` would extract them."""
        field = self.sets[name]["field"]
        if field != "jpg":
            raise NotImplementedError("pictures only")
        for path in self.tars(name):
            folder = os.path.join(self.own(name), os.path.basename(path).removesuffix(".tar"))
            os.makedirs(folder)
            for sample in tar_samples.read(path):
                with open(os.path.join(folder, f"{sample['key']}.{field}"), "wb") as stream:
                    stream.write(sample["payload"])

    def items(self, name: str):
        """``dataset[i]``."""
        dataset = ImageFolder(self.own(name), loader=read)
        return len(dataset), dataset.__getitem__

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """A permutation of everything."""
        loader = DataLoader(
            ImageFolder(self.own(name), loader=read_decoded if is_decoded else read),
            batch_size=self.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=collate_decoded if is_decoded else list,
        )

        def epoch(number: int) -> DataLoader:
            torch.manual_seed(number)
            return loader

        return epoch


CONTENDER = ImageFolderPeer
