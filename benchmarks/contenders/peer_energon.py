"""megatron-energon: its task encoder over the same tars, which it needs in a folder of its own with its indices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
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
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath
from peer_worker import Job, Peer

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
    settings = (
        "energon prepare; CrudeWebdataset, repeat=False, shuffle_buffer_size=100, max_samples_per_sequence=100; "
        "ds[i]: WebdatasetFileStore; remote: msc:// (S3) with its cache, check_source_version off, client closed "
        "before the fork; other ranks: redist"
    )

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
        given = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
        subprocess.run([_program(), "prepare", own, *given], check=True, stdout=sys.stderr)
        written = (os.path.join(home, file) for home, _, files in os.walk(own) for file in files)
        return sum(os.path.getsize(path) for path in written if not os.path.islink(path))

    def items(self, name: str):
        """Its file store, for auxiliary data: an index in SQLite; one look-up for each field."""
        store = WebdatasetFileStore(EPath(self.own(name)))
        keys = [found[0] for found in store.list_all_samples()]
        field = self.sets[name]["field"]

        def get(index: int) -> tuple[str, bytes, bytes]:
            key = keys[index]
            return key, store[f"{key}.{field}"][0], store[f"{key}.cls"][0]

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

    def remote_loader(self, name: str, cache: str):
        """Through its storage client as S3, with the cache that the documentation recommends."""
        provider = {
            "type": "s3",
            "options": {"base_path": "formats", "endpoint_url": self.url, "region_name": "us-east-1"},
        }
        login = {"type": "S3Credentials", "options": {"access_key": "any", "secret_key": "any"}}
        profile = {"storage_provider": provider, "credentials_provider": login, "caching_enabled": True}
        config = {
            "profiles": {"slow": profile},
            # It would ask for the ETag at each read from the cache.
            "cache": {"size": "50G", "location": cache, "check_source_version": False},
        }
        os.makedirs(os.path.dirname(cache), exist_ok=True)
        path = f"{cache}.json"  # its client finds the file by an environment variable, when it is first used
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(config, stream)
        os.environ["MSC_CONFIG"] = path
        path = f"msc://slow/{os.path.basename(self.home)}/{name}"
        loader = get_loader(self._dataset(path, 2, Decoded()))
        # Its paths keep this process's client: without this, the forked workers would read from the same sockets.
        EPath(path).fs._storage_provider._s3_client.close()  # noqa: SLF001
        return loader

    def prepare_many(self, count: int) -> None:
        """The metadata that training reads, as ``energon prepare`` writes them."""
        own = os.path.join(self.own("many"), ".nv-meta")
        os.makedirs(own, exist_ok=True)
        with open(os.path.join(own, ".info.json"), "w", encoding="utf-8") as stream:
            counts = {f"shard-{number:06d}.tar": 1000 for number in range(count)}
            json.dump({"energon_version": "7.4.1", "shard_counts": counts}, stream, indent=2)
        with open(os.path.join(own, "split.yaml"), "w", encoding="utf-8") as stream:
            names = f"shard-{{000000..{count - 1:06d}}}.tar"
            stream.write(f"split_parts:\n  train:\n  - {names}\n  val: []\n  test: []\nexclude: []\n")
        with open(os.path.join(own, "dataset.yaml"), "w", encoding="utf-8") as stream:
            stream.write("__module__: megatron.energon\n__class__: CrudeWebdataset\n")

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """Up to its loader."""
        return get_loader(self._dataset(self.own("many"), 2, Undecoded()))

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
        return EnergonJob(self, name, rank, world)


class EnergonJob(Job):
    """The global state, gathered by rank 0: of each rank its workers' positions and shuffle buffers.

    Another number of ranks must have the same number of workers in all, and the tool that redistributes the state.
    """

    def __init__(self, peer: EnergonPeer, name: str, rank: int, world: int):
        self.peer, self.name, self.rank, self.world = peer, name, rank, world
        self.loader = self._make(2)

    def _make(self, workers: int):
        dataset = self.peer._dataset(  # noqa: SLF001
            self.peer.own(self.name), workers, Undecoded(), rank=self.rank, world=self.world
        )
        return get_savable_loader(dataset)

    def batches(self):
        """See `Job.batches`."""
        return self.loader

    def state(self, consumed: int):  # noqa: ARG002  (it counts)
        """See `Job.state`."""
        return self.loader.save_state_global(0)

    def load_state(self, state) -> None:
        """See `Job.load_state`."""
        if state is None or len(state) == self.world:
            self.loader.restore_state_global(state, src_rank=0)
            return
        with tempfile.TemporaryDirectory() as scratch:
            files = [os.path.join(scratch, f"rank{number}.pt") for number in range(len(state))]
            for one, path in zip(state, files, strict=True):
                torch.save(one, path)
            after = os.path.join(scratch, "after")
            os.mkdir(after)  # it does not make it itself
            command = [_program(), "checkpoint", "redist", *files, after, "--new-world-size", str(self.world)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            mine = torch.load(os.path.join(after, f"rank{self.rank}.pt"), weights_only=False)
        self.loader = self._make(len(mine.worker_states))
        self.loader.restore_state_rank(mine)


def _program() -> str:
    return os.path.join(os.path.dirname(sys.executable), "energon")


CONTENDER = EnergonPeer
