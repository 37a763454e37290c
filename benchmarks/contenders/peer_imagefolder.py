"""torchvision's ImageFolder: each picture is a file of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

import tar_samples
from cold_worker import decode
from map_style import MapStylePeer
from torchvision.datasets import ImageFolder

if TYPE_CHECKING:
    import torch


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


class ImageFolderPeer(MapStylePeer):
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

    def dataset(self, name: str, *, is_decoded: bool) -> ImageFolder:
        """See `MapStylePeer.dataset`."""
        return ImageFolder(self.own(name), loader=read_decoded if is_decoded else read)

    def collate_decoded(self, samples: list) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures and their numbers; the class that is the folder's number is left out."""
        return super().collate_decoded([sample for sample, _class in samples])


CONTENDER = ImageFolderPeer
