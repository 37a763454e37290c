"""Hugging Face Datasets, map-style: an Arrow file on the local disk, memory-mapped."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, ClassVar

import datasets
from cold_worker import decode
from map_style import MapStylePeer

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

datasets.disable_progress_bars()


def decode_rows(rows: dict) -> dict:
    """The transform of all contenders, of the rows that ``__getitems__`` takes at once."""
    pairs = [
        decode(picture["bytes"], str(label).encode()) for picture, label in zip(rows["jpg"], rows["cls"], strict=True)
    ]
    return {"picture": [picture for picture, _ in pairs], "label": [label for _, label in pairs]}


class ArrowPeer(MapStylePeer):
    """``load_dataset("webdataset")`` and ``save_to_disk`` once, then ``load_from_disk``; torch's DataLoader."""

    packages = ("datasets", "pyarrow")
    settings = (
        "load_from_disk (memory-mapped), Image(decode=False), Python format; rows of a batch at once (__getitems__), "
        "with_transform; shuffle=True; remote: load_dataset downloads the tars and converts them"
    )
    notes: ClassVar = {
        "job": "keeps no state of its own",
        "open_many": "maps each file; Linux lets a process have 65,530 maps (vm.max_map_count)",
    }

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample["__key__"]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample["jpg"]["bytes"] if "jpg" in sample else sample["txt"].encode()

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return sample["cls"]

    def prepare(self, name: str) -> None:
        """From the tars to a cache and from there to its place."""
        with tempfile.TemporaryDirectory(dir=self.home) as cache:
            convert(self.tars(name), cache).save_to_disk(self.own(name))

    def dataset(self, name: str, *, is_decoded: bool):
        """See `MapStylePeer.dataset`."""
        dataset = datasets.load_from_disk(self.own(name))
        return dataset.with_transform(decode_rows) if is_decoded else dataset

    def collate_decoded(self, samples: list) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures and labels."""
        return super().collate_decoded([(sample["picture"], sample["label"]) for sample in samples])

    def remote_loader(self, name: str, cache: str) -> DataLoader:
        """``load_dataset`` of the URLs: it downloads all tars and makes an Arrow file of them first."""
        urls = [f"{self.url}/tars/{name}/{shard}" for shard in self.sets[name]["shards"]]
        return self.epochs(convert(urls, cache).with_transform(decode_rows), 2, is_decoded=True, is_kept=False)(0)


def convert(tars: list[str], cache: str) -> datasets.Dataset:
    """Tars, by path or URL, as a dataset whose Arrow file is under ``cache``."""
    config = datasets.DownloadConfig(cache_dir=os.path.join(cache, "downloads"), num_proc=2)
    dataset = datasets.load_dataset(
        "webdataset", data_files=tars, split="train", cache_dir=cache, download_config=config
    )
    dataset = dataset.remove_columns("__url__")
    return dataset.cast_column("jpg", datasets.Image(decode=False)) if "jpg" in dataset.column_names else dataset


CONTENDER = ArrowPeer
