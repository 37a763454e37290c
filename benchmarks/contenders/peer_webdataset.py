"""The webdataset package: streams of the same tars, through a shuffle buffer in each worker."""

from __future__ import annotations

import os
from typing import ClassVar

import webdataset
from cold_worker import decode
from peer_worker import Peer


class WebdatasetPeer(Peer):
    """The pipeline of its documentation."""

    packages = ("webdataset",)
    settings = "WebDataset(shardshuffle=100).shuffle(1000), WebLoader; remote with cache_dir (curl)"
    notes: ClassVar = {
        "items": "a stream, no random access",
        "prepare": "reads the tars as they are",
        "job": "keeps no state",
    }

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample["__key__"]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample["jpg"] if "jpg" in sample else sample["txt"]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(sample["cls"])

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """The tars on the disk."""
        return self._loader(self.tars(name), workers, is_decoded=is_decoded, persistent_workers=workers > 0)

    def remote_loader(self, name: str, cache: str):
        """The tars through the server."""
        return self._remote_loader(f"{self.url}/tars/{name}", name, cache)

    def hub_loader(self, name: str, cache: str):
        """The tars at the Hub's resolver, whose redirects it follows."""
        return self._remote_loader(f"{os.environ['HF_ENDPOINT']}/datasets/bench/{name}/resolve/main", name, cache)

    def _remote_loader(self, place: str, name: str, cache: str):
        os.makedirs(cache, exist_ok=True)  # it must be there
        urls = [f"{place}/{shard}" for shard in self.sets[name]["shards"]]
        return self._loader(urls, 2, is_decoded=True, cache_dir=cache)(0)

    def _loader(self, urls, workers: int, *, is_decoded: bool, cache_dir=None, persistent_workers: bool = False):
        samples = webdataset.WebDataset(urls, shardshuffle=100, cache_dir=cache_dir).shuffle(1000)
        if is_decoded:
            samples = samples.map(self.decode_sample)
        loader = webdataset.WebLoader(
            samples,
            batch_size=self.batch,
            num_workers=workers,
            collate_fn=None if is_decoded else list,
            persistent_workers=persistent_workers,
        )
        return lambda _number: loader

    def decode_sample(self, sample):
        """The transform of all contenders."""
        return decode(self.payload(sample), sample["cls"])

    def open_many(self, count: int):
        """A pattern; it knows no number of samples."""
        return webdataset.WebDataset(f"/data/shard-{{000000..{count - 1:06d}}}.tar", shardshuffle=100)


CONTENDER = WebdatasetPeer
