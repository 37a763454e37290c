"""Hugging Face Datasets, streaming: the tars read in order through a shuffle buffer, in each worker."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, ClassVar

import datasets
from cold_worker import decode
from datasets.distributed import split_dataset_by_node
from peer_worker import Job, Peer
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

if TYPE_CHECKING:
    import torch


def collate_decoded(rows: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    """The transform of all contenders, and pictures and labels as tensors."""
    return default_collate([decode(row["jpg"]["bytes"], str(row["cls"]).encode()) for row in rows])


class StreamPeer(Peer):
    """``load_dataset("webdataset", streaming=True).shuffle``, torch's DataLoader."""

    packages = ("datasets", "pyarrow", "torchdata", "aiohttp")
    settings = (
        'load_dataset("webdataset", streaming=True).decode(False).shuffle(buffer_size=1000), set_epoch; DataLoader; '
        "job by split_dataset_by_node and StatefulDataLoader"
    )
    notes: ClassVar = {"items": "a stream, no random access", "prepare": "reads the tars as they are"}

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample["__key__"]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample["jpg"]["bytes"] if "jpg" in sample else sample["txt"].encode()

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return sample["cls"]

    def open(self, tars: list[str] | str) -> datasets.IterableDataset:
        """The stream, undecoded, in the order of the tars."""
        return self._open("webdataset", data_files=tars)

    def _open(self, path: str, **options) -> datasets.IterableDataset:
        stream = datasets.load_dataset(path, split="train", streaming=True, **options)
        return stream.decode(False)  # noqa: FBT003  (theirs)

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """The tars on the disk."""
        return self._loader(self.open(self.tars(name)), workers, is_decoded=is_decoded, persistent_workers=workers > 0)

    def remote_loader(self, name: str, cache: str) -> DataLoader:  # noqa: ARG002  (it caches nothing)
        """The tars through the server."""
        urls = [f"{self.url}/tars/{name}/{shard}" for shard in self.sets[name]["shards"]]
        return self._loader(self.open(urls), 2, is_decoded=True, persistent_workers=False)(0)

    def hub_loader(self, name: str, cache: str) -> DataLoader:  # noqa: ARG002  (likewise)
        """The data set by its name."""
        return self._loader(self._open(f"bench/{name}"), 2, is_decoded=True, persistent_workers=False)(0)

    def _loader(self, stream: datasets.IterableDataset, workers: int, *, is_decoded: bool, persistent_workers: bool):
        stream = stream.shuffle(seed=0, buffer_size=1000)
        loader = DataLoader(
            stream,
            batch_size=self.batch,
            num_workers=workers,
            persistent_workers=persistent_workers,
            collate_fn=collate_decoded if is_decoded else list,
        )

        def epoch(number: int) -> DataLoader:
            loader.dataset.set_epoch(number)
            return loader

        return epoch

    def prepare_many(self, count: int) -> None:
        """One small tar under very many names."""
        many = self.own("many")
        shutil.rmtree(many, ignore_errors=True)
        os.makedirs(many)
        tar = self.tars("text")[0]
        for number in range(count):
            os.symlink(tar, os.path.join(many, f"shard-{number:06d}.tar"))

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """A pattern; it lists the directory and reads one sample; it knows no number of samples."""
        return self.open(os.path.join(self.own("many"), "*.tar"))

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        return StreamJob(self, name, rank, world)


class StreamJob(Job):
    """The state of a StatefulDataLoader, which has the streams of its workers; of this rank alone."""

    def __init__(self, peer: StreamPeer, name: str, rank: int, world: int):
        # With more shards at once than a worker has, its default, datasets 5.2.0 cannot load a worker's state.
        stream = peer.open(peer.tars(name)).shuffle(seed=0, buffer_size=1000, max_buffer_input_shards=1)
        stream = split_dataset_by_node(stream, rank, world)
        self.loader = StatefulDataLoader(stream, batch_size=peer.batch, num_workers=2, collate_fn=list)

    def batches(self) -> StatefulDataLoader:
        """See `Job.batches`."""
        return self.loader

    def state(self, consumed: int) -> dict:  # noqa: ARG002  (for other loaders)
        """See `Job.state`."""
        return self.loader.state_dict()

    def load_state(self, state: dict) -> None:
        """See `Job.load_state`."""
        self.loader.load_state_dict(state)


CONTENDER = StreamPeer
