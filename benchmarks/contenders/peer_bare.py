"""The floor: a loop over saved offsets of mapped shards, with no keys to look up and no checks."""

from __future__ import annotations

import json
import mmap
import os
import tarfile
from typing import ClassVar

from cold_worker import decode
from map_style import MapStylePeer
from torch.utils.data import Dataset


class Offsets(Dataset):
    """The samples of mapped shards as a map-style dataset: (key, payload, label as bytes), or decoded."""

    def __init__(self, directory: str, tars: list[str], *, is_decoded: bool):
        with open(os.path.join(directory, "offsets.json"), encoding="utf-8") as stream:
            found = json.load(stream)
        maps = []
        for tar in tars:
            with open(tar, "rb") as stream:
                maps.append(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        self.rows = [(maps[shard], *rest) for shard, *rest in found]
        self.is_decoded = is_decoded

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        shard, key, lo, hi, first, last = self.rows[index]
        sample = (key, shard[lo:hi], shard[first:last])
        return decode(sample[1], sample[2]) if self.is_decoded else sample


class BarePeer(MapStylePeer):
    """Offsets read once by ``tarfile``, a ``RandomSampler``, torch's DataLoader."""

    settings = "mapped tars and a list of offsets; RandomSampler"
    notes: ClassVar = {
        "remote_loader": "reads local files only",
        "job": "keeps no state",
        "open_many": "maps each shard",
    }

    def prepare(self, name: str) -> None:
        """The offsets of all members."""
        rows = []
        for number, path in enumerate(self.tars(name)):
            found: dict[str, dict[str, tuple[int, int]]] = {}
            with tarfile.open(path) as tar:
                for info in tar:
                    key, _, field = info.name.partition(".")
                    found.setdefault(key, {})[field] = (info.offset_data, info.offset_data + info.size)
            rows += [[number, key, *spans[self.sets[name]["field"]], *spans["cls"]] for key, spans in found.items()]
        with open(os.path.join(self.own(name), "offsets.json"), "w", encoding="utf-8") as stream:
            json.dump(rows, stream)

    def dataset(self, name: str, *, is_decoded: bool) -> Offsets:
        """A list of offsets and slices of maps."""
        return Offsets(self.own(name), self.tars(name), is_decoded=is_decoded)


CONTENDER = BarePeer
