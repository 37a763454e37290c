"""The webshart package: the same tars with a JSON index of each, read by its shard readers in Rust."""

from __future__ import annotations

import json
import os
from typing import ClassVar

import webshart
from cold_worker import decode
from map_style import MapStylePeer
from torch.utils.data import Dataset


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


class WebshartPeer(MapStylePeer):
    """``open_shard(...).read_file`` behind torch's DataLoader: its own loaders have no order but the stored one."""

    packages = ("webshart",)
    settings = "extract-metadata; ShardReader.read_file; RandomSampler; open: lists shards, loads no index"
    notes: ClassVar = {
        "remote_loader": "remote shards are those of huggingface.co only, whose address is part of its code",
        "hub_loader": "HTTP request error: error sending request for url (https://huggingface.co/api/datasets/...), "
        "whatever HF_ENDPOINT says",
        "job": "its TarDataLoader keeps a state, but has no ranks, no workers and no shuffling",
    }

    def prepare(self, name: str) -> None:
        """What ``webshart extract-metadata`` does: a JSON index of each tar."""
        extractor = webshart.MetadataExtractor()
        extractor.extract_metadata(source=self.sets[name]["directory"], destination=self.own(name), max_workers=4)

    def dataset(self, name: str, *, is_decoded: bool) -> Rows:
        """Two reads for a sample, one for each field."""
        found = self.sets[name]
        return Rows(found["directory"], self.own(name), found["field"], is_decoded=is_decoded)

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
