"""megatron-energon: its task encoder over the same tars, which it needs in a folder of its own with its indices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import ClassVar

import torch
from cold_worker import decode
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.itar_reader import SqliteITarEntryReader
from peer_worker import Job, Peer, serve

_OPTIONS = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100}


@edataclass
class Row(Sample):
    """A cooked sample."""

    payload: bytes
    label: bytes


@stateless
def cook(sample: dict) -> Row:
    """From the fields of a tar to a sample."""
    payload = sample["jpg"] if "jpg" in sample else sample["txt"]
    return Row(**basic_sample_keys(sample), payload=payload, label=sample["cls"])


class Undecoded(DefaultTaskEncoder):
    """Batches are lists of (key, payload, label)."""

    cookers: ClassVar = [Cooker(cook)]
    decoder = None

    @stateless
    def encode_sample(self, sample: Row) -> Row:
        """As it is."""
        return sample

    @stateless
    def batch(self, samples: list[Row]) -> list[tuple[str, bytes, bytes]]:
        """Without the fields that only a debugger needs."""
        return [(sample.__key__, sample.payload, sample.label) for sample in samples]

    @stateless
    def encode_batch(self, batch):
        """As it is."""
        return batch


@edataclass
class Picture(Sample):
    """A decoded sample."""

    picture: torch.Tensor
    label: int


class Decoded(DefaultTaskEncoder):
    """Batches are (pictures, labels)."""

    cookers: ClassVar = [Cooker(cook)]
    decoder = None

    @stateless
    def encode_sample(self, sample: Row) -> Picture:
        """The transform of all contenders."""
        picture, label = decode(sample.payload, sample.label)
        return Picture.derive_from(sample, picture=picture, label=label)

    @stateless
    def batch(self, samples: list[Picture]) -> tuple[torch.Tensor, torch.Tensor]:
        """Stacked."""
        pictures = torch.stack([sample.picture for sample in samples])
        return pictures, torch.tensor([sample.label for sample in samples])

    @stateless
    def encode_batch(self, batch):
        """As it is."""
        return batch


class EnergonPeer(Peer):
    """``get_train_dataset`` of a crude dataset, one epoch of it, and its loaders."""

    packages = ("megatron-energon", "multi-storage-client")
    settings = "energon prepare; CrudeWebdataset, repeat=False, shuffle_buffer_size=100, max_samples_per_sequence=100"

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample[0].rpartition("/")[2]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample[1]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(sample[2])

    def prepare(self, name: str) -> int:
        """Links to the tars, an offset index beside each, and its folder of metadata; returns the bytes written."""
        own = self.own(name)
        for tar in self.tars(name):
            os.symlink(tar, os.path.join(own, os.path.basename(tar)))
        program = os.path.join(os.path.dirname(sys.executable), "energon")
        given = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        subprocess.run([program, "prepare", own, *given], check=True, stdout=sys.stderr)
        written = (os.path.join(home, file) for home, _, files in os.walk(own) for file in files)
        return sum(os.path.getsize(path) for path in written if not os.path.islink(path))

    def items(self, name: str):
        """Its index of keys in SQLite, and tars that stay open."""
        reader = SqliteITarEntryReader(EPath(self.own(name)), itar_cache_size=16)
        keys = [found[0] for found in reader.list_all_samples()]
        field = self.sets[name]["field"]

        def get(index: int) -> tuple[str, bytes, bytes]:
            found = reader[keys[index]]
            return found["__key__"], found[field], found["cls"]

        return len(keys), get

    def _dataset(self, path: str, workers: int, encoder, *, rank: int = 0, world: int = 1):
        return get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=rank, world_size=world, num_workers=workers),
            batch_size=self.batch,
            task_encoder=encoder,
            repeat=False,
            **_OPTIONS,
        )

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """Each iteration is an epoch, in an order of its own."""
        loader = get_loader(self._dataset(self.own(name), workers, Decoded() if is_decoded else Undecoded()))
        return lambda _number: loader

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        return EnergonJob(self._dataset(self.own(name), 2, Undecoded(), rank=rank, world=world))


class EnergonJob(Job):
    """The state of a rank, of its workers' positions and shuffle buffers."""

    def __init__(self, dataset):
        self.loader = get_savable_loader(dataset)

    def batches(self):
        """See `Job.batches`."""
        return self.loader

    def state(self, consumed: int):  # noqa: ARG002  (it counts)
        """See `Job.state`."""
        return self.loader.save_state_rank()

    def load_state(self, state) -> None:
        """See `Job.load_state`."""
        self.loader.restore_state_rank(state)


if __name__ == "__main__":
    serve(EnergonPeer)
