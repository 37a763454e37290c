"""The webshart package: the same tars with a JSON index of each, read by its shard readers in Rust."""

from __future__ import annotations

import json
import os
from typing import ClassVar

import torch
import webshart
from cold_worker import decode
from peer_worker import Peer
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """The samples as a map-style dataset: (key, payload, label as bytes), or decoded."""

    def __init__(self, tars: str, indices: str, field: str, *, is_decoded: bool):
        self.is_decoded = is_decoded
        self.rows = []
        found = webshart.discover_dataset(tars, metadata=indices)
        for shard in range(found.num_shards):
            reader = found.open_shard(shard)
            places = {name: index for index, name in enumerate(reader.filenames())}
            keys = [name.rpartition(".")[0] for name in places if name.endswith(field)]
            self.rows += [(reader, key, places[f"{key}.{field}"], places[f"{key}.cls"]) for key in keys]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        reader, key, payload, label = self.rows[index]
        sample = (key, reader.read_file(payload), reader.read_file(label))
        return decode(sample[1], sample[2]) if self.is_decoded else sample


class WebshartPeer(Peer):
    """``open_shard(...).read_file`` behind torch's DataLoader: its own loaders have no order but the stored one."""

    packages = ("webshart",)
    settings = "extract-metadata; ShardReader.read_file; RandomSampler; open: lists shards, loads no index"
    notes: ClassVar = {
        "remote_loader": "remote shards are those of huggingface.co only, whose address is part of its code",
        "job": "its TarDataLoader keeps a state, but has no ranks, no workers and no shuffling",
    }

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample[0]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample[1]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(sample[2])

    def prepare(self, name: str) -> None:
        """What ``webshart extract-metadata`` does: a JSON index of each tar."""
        extractor = webshart.MetadataExtractor()
        extractor.extract_metadata(source=self.sets[name]["directory"], destination=self.own(name), max_workers=4)

    def _rows(self, name: str, *, is_decoded: bool) -> Rows:
        found = self.sets[name]
        return Rows(found["directory"], self.own(name), found["field"], is_decoded=is_decoded)

    def items(self, name: str):
        """Two reads, one for each field."""
        rows = self._rows(name, is_decoded=False)
        return len(rows), rows.__getitem__

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """A permutation of everything."""
        loader = DataLoader(
            self._rows(name, is_decoded=is_decoded),
            batch_size=self.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=None if is_decoded else list,
        )

        def epoch(number: int) -> DataLoader:
            torch.manual_seed(number)
            return loader

        return epoch

    def prepare_many(self, count: int) -> None:
        """Empty tars, and an index of each: one that is missing cannot be opened."""
        own = self.own("many")
        os.makedirs(own, exist_ok=True)
        spans = {"00000000.jpg": {"offset": 512, "length": 9}, "00000000.cls": {"offset": 1536, "length": 1}}
        text = json.dumps({"path": "shard.tar", "filesize": 10_240, "files": spans})
        for number in range(count):
            with open(os.path.join(own, f"shard-{number:06d}.tar"), "wb"):
                pass
            with open(os.path.join(own, f"shard-{number:06d}.json"), "w", encoding="utf-8") as stream:
                stream.write(text)

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """The listing of the directory; a number of files would need each index, at 40 ms or more for each."""
        return webshart.discover_dataset(self.own("many"))


CONTENDER = WebshartPeer
