"""MosaicML Streaming: MDS shards, written from the tars and read by its own dataset and loader."""

from __future__ import annotations

import json
import multiprocessing
import os

import tar_samples
from cold_worker import decode
from peer_worker import Job, Peer
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import merge_index

_COLUMNS = {"key": "str", "payload": "bytes", "label": "int"}
_WRITERS = 2
_SHUFFLE_BLOCK = 2000


class Decoded(StreamingDataset):
    """Its documented place for a transform."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return decode(sample["payload"], sample["label"])


def _write(job: tuple[list[str], str, int]) -> None:
    tars, directory, size_limit = job
    with MDSWriter(columns=_COLUMNS, out=directory, size_limit=size_limit) as writer:
        for tar in tars:
            for sample in tar_samples.read(tar):
                writer.write(sample)


def _as_batch(samples: list[dict]) -> dict[str, list]:
    """A batch whose samples its loader can count: it takes the length of the first value."""
    return {"samples": samples}


class MosaicmlPeer(Peer):
    """``MDSWriter``, ``StreamingDataset``, ``StreamingDataLoader``."""

    packages = ("mosaicml-streaming", "boto3")
    settings = (
        f"MDS shards as large as the tars' payloads; local= alone for local rows; shuffle_algo py1e (its default) with "
        f"shuffle_block_size {_SHUFFLE_BLOCK}; remote as s3://"
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
        """Its parallel conversion: a directory for each process, then one index for all."""
        tars = self.tars(name)
        size_limit = max(self.sets[name]["payload"] // len(tars), 4096)
        jobs = [(tars[n::_WRITERS], os.path.join(self.own(name), str(n)), size_limit) for n in range(_WRITERS)]
        with multiprocessing.Pool(_WRITERS) as pool:
            pool.map(_write, jobs, chunksize=1)
        merge_index(self.own(name), keep_local=True)

    def dataset(self, name: str, *, is_decoded: bool = False, **options) -> StreamingDataset:
        """The shards of a set where they are, unless ``options`` say otherwise."""
        make = Decoded if is_decoded else StreamingDataset
        return make(**{"local": self.own(name), "batch_size": self.batch, **options})

    def items(self, name: str):
        """``dataset[i]``."""
        dataset = self.dataset(name)
        return dataset.size, dataset.__getitem__

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """Each iterator is the next epoch, in another order."""
        dataset = self.dataset(name, is_decoded=is_decoded, shuffle=True, shuffle_block_size=_SHUFFLE_BLOCK)
        loader = StreamingDataLoader(
            dataset,
            batch_size=self.batch,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=None if is_decoded else list,
        )
        return lambda _number: loader

    def remote_loader(self, name: str, cache: str) -> StreamingDataLoader:
        """The same through S3."""
        os.environ |= {
            "S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        dataset = self.dataset(
            name,
            is_decoded=True,
            remote=f"s3://formats/mosaicml/{name}",
            local=cache,
            shuffle=True,
            shuffle_block_size=_SHUFFLE_BLOCK,
        )
        # The connection that fetched the index would be inherited by both workers, which read each other's replies from
        # it; over TLS that is an error and a second try, over plain HTTP wrong files in the cache.
        for stream in dataset.streams:
            stream._downloader.clean_up()  # noqa: SLF001
        return StreamingDataLoader(dataset, batch_size=self.batch, num_workers=2)

    def prepare_many(self, count: int) -> None:
        """The index of a remote dataset, as it is after it was downloaded, and before any shard was."""
        with open(os.path.join(self.own("text"), "index.json"), encoding="utf-8") as stream:
            found = json.load(stream)
        one = {**found["shards"][0], "samples": 1000}
        found["shards"] = [
            {**one, "raw_data": {"basename": f"shard.{number:06d}.mds", "bytes": 10**8, "hashes": {}}}
            for number in range(count)
        ]
        os.makedirs(self.own("many"), exist_ok=True)
        with open(os.path.join(self.own("many"), "index.json"), "w", encoding="utf-8") as stream:
            json.dump(found, stream)

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """It needs no shard to be there before it is read."""
        return self.dataset("many", remote="s3://formats/mosaicml/many")

    def job(self, name: str, rank: int, world: int) -> Job:  # noqa: ARG002  (in the environment)
        """A rank of a training job."""
        return MosaicmlJob(self, name)


class MosaicmlJob(Job):
    """The loader's state; ranks find each other by the environment."""

    def __init__(self, peer: MosaicmlPeer, name: str):
        dataset = peer.dataset(name, shuffle=True, shuffle_block_size=_SHUFFLE_BLOCK)
        self.loader = StreamingDataLoader(dataset, batch_size=peer.batch, num_workers=2, collate_fn=_as_batch)

    def batches(self):
        """See `Job.batches`."""
        for batch in self.loader:
            yield batch["samples"]

    def state(self, consumed: int) -> dict:  # noqa: ARG002  (it counts by itself)
        """See `Job.state`."""
        return self.loader.state_dict()

    def load_state(self, state: dict) -> None:
        """See `Job.load_state`."""
        self.loader.load_state_dict(state)


CONTENDER = MosaicmlPeer
