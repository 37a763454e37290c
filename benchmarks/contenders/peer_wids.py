"""This package, from the working tree: the tars as they are, and an index of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from cold_worker import decode
from peer_worker import Job, Peer
from torch.utils.data import DataLoader, default_collate

import wids


class WidsData(Peer):
    """The samples and their order; `batches` is the loader's."""

    packages: tuple[str, ...] = ("wids",)

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample["__key__"]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return (sample[".jpg"] if ".jpg" in sample else sample[".txt"]).getvalue()

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(sample[".cls"].getvalue())

    def prepare(self, name: str) -> int:
        """The index, and a member table beside each tar; returns their bytes."""
        tars = self.tars(name)
        index = self.index(name)
        program = os.path.join(os.path.dirname(sys.executable), "wids")
        command = [program, "index", "create", *tars, "-o", index, "--members"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        return sum(os.path.getsize(path) for path in (index, *(f"{tar}.widx" for tar in tars)))

    def index(self, name: str) -> str:
        """Path of a set's index, beside the shards: its URLs are relative."""
        return os.path.join(self.sets[name]["directory"], "train.json")

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """The lines of the README, but for what loads."""
        dataset = wids.ShardListDataset(self.index(name), transformations=[])
        if is_decoded:
            dataset.add_transform(self.decode_sample)
        sampler = wids.DistributedChunkedSampler(dataset, shuffle=True)
        loader = self.batches(dataset, sampler, workers, default_collate if is_decoded else list)

        def epoch(number: int):
            sampler.set_epoch(number)
            return loader

        return epoch

    def remote_data(self, shards: str, cache: str):
        """The decoded samples of an index of remote shards, and a sampler of them."""
        dataset = wids.ShardListDataset(shards, cache_dir=cache, transformations=[])
        dataset.add_transform(self.decode_sample)
        return dataset, wids.DistributedChunkedSampler(dataset, shuffle=True)

    def remote_index(self, name: str) -> str:
        """The URL of a set's index on the server."""
        return f"{self.url}/tars/{name}/train.json"

    def batches(self, dataset, sampler, workers: int, collate):
        """What is iterated in each epoch, for the batches of the sampler's next indices."""
        raise NotImplementedError

    def decode_sample(self, sample):
        """The transform of all contenders."""
        return decode(self.payload(sample), sample[".cls"].getvalue())


class WidsPeer(WidsData):
    """``ShardListDataset``, ``DistributedChunkedSampler``, torch's DataLoader."""

    settings = "defaults; undecoded fields; index with member tables (wids index create --members)"

    def items(self, name: str):
        """``dataset[i]``."""
        dataset = wids.ShardListDataset(self.index(name), transformations=[])
        return len(dataset), dataset.__getitem__

    def batches(self, dataset, sampler, workers: int, collate):
        """Torch's loader, whose workers live on."""
        more = {"num_workers": workers, "persistent_workers": workers > 0, "collate_fn": collate}
        return DataLoader(dataset, batch_size=self.batch, sampler=sampler, **more)

    def remote_loader(self, name: str, cache: str) -> DataLoader:
        """The same over the server."""
        return self._remote_loader(self.remote_index(name), cache)

    def hub_loader(self, name: str, cache: str) -> DataLoader:
        """The same by the name of the data set."""
        return self._remote_loader(f"hf://datasets/bench/{name}", cache)

    def _remote_loader(self, shards: str, cache: str) -> DataLoader:
        dataset, sampler = self.remote_data(shards, cache)
        return DataLoader(dataset, batch_size=self.batch, sampler=sampler, num_workers=2)

    def prepare_many(self, count: int) -> None:
        """An index of shards that need not be there before they are read."""
        os.makedirs(self.own("many"), exist_ok=True)
        shards = [{"url": f"shard-{number:06d}.tar", "nsamples": 1000, "filesize": 10**8} for number in range(count)]
        with open(os.path.join(self.own("many"), "index.json"), "w", encoding="utf-8") as stream:
            json.dump(
                {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "many", "shardlist": shards}, stream
            )

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """The index as it is; the first process on a machine compiles it, the next ones map it."""
        return wids.ShardListDataset(os.path.join(self.own("many"), "index.json"))

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        return WidsJob(self, name, rank, world)


class WidsJob(Job):
    """The sampler's state."""

    def __init__(self, peer: WidsPeer, name: str, rank: int, world: int):
        dataset = wids.ShardListDataset(peer.index(name), transformations=[])
        self.batch = peer.batch
        self.sampler = wids.DistributedChunkedSampler(dataset, rank=rank, num_replicas=world, shuffle=True)
        self.loader = DataLoader(dataset, batch_size=peer.batch, sampler=self.sampler, num_workers=2, collate_fn=list)

    def batches(self) -> DataLoader:
        """See `Job.batches`."""
        return self.loader

    def state(self, consumed: int) -> dict:
        """See `Job.state`."""
        return self.sampler.state_dict(consumed=consumed * self.batch)

    def load_state(self, state: dict) -> None:
        """See `Job.load_state`."""
        self.sampler.load_state_dict(state)


CONTENDER = WidsPeer
