"""LitData: chunks written by ``optimize`` from the tars, and read by its own dataset and loader."""

from __future__ import annotations

import json
import os

import tar_samples
from cold_worker import decode
from litdata import StreamingDataLoader, StreamingDataset, optimize
from litdata.streaming import downloader
from peer_worker import Job, Peer

_WRITERS = 2


def _decode(sample: dict):
    return decode(sample["payload"], sample["label"])


def _as_list(samples: list[dict]) -> list[dict]:
    """A batch that can leave a worker: fields of bytes are views of mapped chunks, which cannot be pickled."""
    return [{**sample, "payload": bytes(sample["payload"])} for sample in samples]


class LitdataPeer(Peer):
    """``optimize``, ``StreamingDataset``, ``StreamingDataLoader``."""

    packages = ("litdata", "boto3", "obstore")
    settings = (
        "one chunk for a tar (chunk_size); shuffle=True (chunks, and blocks of 256 samples inside a chunk); "
        "batch_decode=0 for single samples and pictures, auto (256) for epochs of texts"
    )

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample["key"]

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample["payload"]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return int(sample["label"])

    def prepare(self, name: str) -> None:
        """A tar for each call, which yields its samples."""
        for what in ("CACHE_FOLDER", "DATA_CACHE_FOLDER"):  # else it leaves empty ones in /tmp
            os.environ[f"DATA_OPTIMIZER_{what}"] = os.path.abspath(what)
        optimize(
            fn=tar_samples.read,
            inputs=self.tars(name),
            output_dir=self.own(name),
            chunk_size=self.sets[name]["per_shard"],
            num_workers=_WRITERS,
            start_method="fork",  # its spawned processes spend most of the time on imports
            verbose=False,
        )

    def dataset(self, place: str, **options) -> StreamingDataset:
        """Local chunks are mapped where they are."""
        return StreamingDataset(place, shuffle=True, drop_last=False, **options)

    def batch_decode(self, name: str) -> int | str:
        """Its auto takes windows of samples apart at once, for pictures only if they are of its own JPEG type."""
        return "auto" if self.sets[name]["field"] == "txt" else 0

    def items(self, name: str):
        """``dataset[i]``."""
        dataset = self.dataset(self.own(name), batch_decode=0)
        return len(dataset), dataset.__getitem__

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """Each iterator is the next epoch, in another order."""
        loader = StreamingDataLoader(
            self.dataset(
                self.own(name), transform=_decode if is_decoded else None, batch_decode=self.batch_decode(name)
            ),
            batch_size=self.batch,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=None if is_decoded else _as_list,
        )
        return lambda _number: loader

    def remote_loader(self, name: str, cache: str) -> StreamingDataLoader:
        """The same through S3; chunks come by obstore, whose client refuses http and has no other place to allow it."""
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
        options = {
            "endpoint_url": self.url,
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
            "region_name": "us-east-1",
        }
        dataset = self.dataset(
            f"s3://formats/litdata/{name}",
            cache_dir=cache,
            storage_options=options,
            transform=_decode,
            batch_decode=self.batch_decode(name),
        )
        return StreamingDataLoader(dataset, batch_size=self.batch, num_workers=2)

    def prepare_many(self, count: int) -> None:
        """An index; the chunks need not be there before they are read."""
        with open(os.path.join(self.own("text"), "index.json"), encoding="utf-8") as stream:
            found = json.load(stream)
        one = {**found["chunks"][0], "chunk_bytes": 10**8, "chunk_size": 1000}
        found["chunks"] = [{**one, "filename": f"chunk-{number:06d}.bin"} for number in range(count)]
        os.makedirs(self.own("many"), exist_ok=True)
        with open(os.path.join(self.own("many"), "index.json"), "w", encoding="utf-8") as stream:
            json.dump(found, stream)

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """The index as it is."""
        return self.dataset(self.own("many"))

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        os.environ |= {"GLOBAL_RANK": str(rank), "WORLD_SIZE": str(world), "NNODES": "1"}
        return LitdataJob(self, name)


class LitdataJob(Job):
    """The loader's state."""

    def __init__(self, peer: LitdataPeer, name: str):
        dataset = peer.dataset(peer.own(name))
        self.loader = StreamingDataLoader(dataset, batch_size=peer.batch, num_workers=2, collate_fn=_as_list)

    def batches(self) -> StreamingDataLoader:
        """See `Job.batches`."""
        return self.loader

    def state(self, consumed: int) -> dict:  # noqa: ARG002  (it counts by itself)
        """See `Job.state`."""
        return self.loader.state_dict()

    def load_state(self, state: dict) -> None:
        """See `Job.load_state`."""
        self.loader.load_state_dict(state)


CONTENDER = LitdataPeer
