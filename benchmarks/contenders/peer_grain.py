"""Grain over ArrayRecord files, one record for each sample: lengths, key, payload."""

from __future__ import annotations

import json
import os
import struct
from typing import ClassVar, NamedTuple

import grain
import numpy as np
import tar_samples
import torch
from array_record.python import array_record_module
from cold_worker import decode
from grain import experimental
from peer_worker import Job, Peer

_HEAD = "<IQ"  # bytes of the key, label


class Instruction(NamedTuple):
    """What grain calls a FileInstruction: with it, a file need not be opened to learn how many records it has."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


def unpack(record: bytes) -> tuple[bytes, bytes, int]:
    """The reverse of what `GrainPeer.prepare` writes: key, payload, label."""
    length, label = struct.unpack_from(_HEAD, record)
    begin = struct.calcsize(_HEAD)
    return record[begin : begin + length], record[begin + length :], label


def unpack_decoded(record: bytes):
    """The transform of all contenders, as an array: grain hands arrays from process to process in shared memory."""
    _, payload, label = unpack(record)
    picture, label = decode(payload, str(label).encode())
    return picture.numpy(), label


def unpack_boxed(record: bytes) -> np.ndarray:
    """A sample as one object; the batches of an ElasticIterator are always stacked arrays."""
    box = np.empty((), object)
    box[()] = unpack(record)
    return box


class GrainPeer(Peer):
    """``ArrayRecordDataSource``, ``MapDataset.shuffle.map.batch``, ``to_iter_dataset``, ``mp_prefetch``."""

    packages = ("grain", "array-record")
    settings = (
        "ArrayRecord group_size:1,uncompressed; MapDataset.shuffle().map().batch().repeat(); ReadOptions: no "
        "threads without workers (4 if decoded), 1 in each worker; mp_prefetch; job by experimental.ElasticIterator"
    )
    notes: ClassVar = {"remote_loader": "reads files; its reader opens a URL (http, s3, gs) as a file of no records"}

    def key(self, sample) -> str:
        """See `Peer.key`."""
        return sample[0].decode()

    def payload(self, sample) -> bytes:
        """See `Peer.payload`."""
        return sample[1]

    def label(self, sample) -> int:
        """See `Peer.label`."""
        return sample[2]

    def prepare(self, name: str) -> None:
        """An ArrayRecord file for each tar."""
        for path in self.tars(name):
            shard = os.path.basename(path).removesuffix(".tar") + ".array_record"
            writer = array_record_module.ArrayRecordWriter(
                os.path.join(self.own(name), shard), "group_size:1,uncompressed"
            )
            for sample in tar_samples.read(path):
                key = sample["key"].encode()
                writer.write(struct.pack(_HEAD, len(key), sample["label"]) + key + sample["payload"])
            writer.close()

    def source(self, name: str) -> grain.sources.ArrayRecordDataSource:
        """All files of a set."""
        shards = [shard.removesuffix(".tar") + ".array_record" for shard in self.sets[name]["shards"]]
        return grain.sources.ArrayRecordDataSource([os.path.join(self.own(name), shard) for shard in shards])

    def items(self, name: str):
        """``source[i]``, taken apart."""
        source = self.source(name)
        return len(source), lambda index: unpack(source[index])

    def loader(self, name: str, workers: int, *, is_decoded: bool):
        """One endless iterator, as ``repeat`` makes it, so that its processes live on; each epoch has its own order."""
        epochs = grain.MapDataset.source(self.source(name)).shuffle(seed=0)
        epochs = epochs.map(unpack_decoded if is_decoded else unpack)
        epochs = epochs.batch(self.batch, batch_fn=None if is_decoded else list)
        count = len(epochs)
        # Threads wait for one another's Python code, except in the decoding; in workers, one reads ahead.
        threads = 1 if workers else 4 if is_decoded else 0
        endless = epochs.repeat().to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads))
        if workers:
            endless = endless.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        iterator = iter(endless)

        def epoch(_number: int):
            # Forgets what was read ahead since the last epoch, outside of the clock; the workers stay.
            iterator.set_state(iterator.get_state())
            for _ in range(count):
                batch = next(iterator)
                yield (torch.from_numpy(batch[0]), torch.from_numpy(batch[1])) if is_decoded else batch

        return epoch

    def prepare_many(self, count: int) -> None:
        """Names and numbers of records, as a program would keep them for its FileInstructions."""
        os.makedirs(self.own("many"), exist_ok=True)
        with open(os.path.join(self.own("many"), "shards.json"), "w", encoding="utf-8") as stream:
            json.dump([[f"shard-{number:06d}.array_record", 1000] for number in range(count)], stream)

    def open_many(self, count: int):  # noqa: ARG002  (for other loaders)
        """With FileInstructions, which its documentation asks for where there are many files: none is opened."""
        with open(os.path.join(self.own("many"), "shards.json"), encoding="utf-8") as stream:
            shards = json.load(stream)
        instructions = [Instruction(os.path.join(self.own("many"), name), 0, size, size) for name, size in shards]
        return grain.MapDataset.source(grain.sources.ArrayRecordDataSource(instructions))

    def job(self, name: str, rank: int, world: int) -> Job:
        """A rank of a training job."""
        return GrainJob(self, name, rank, world)


class GrainJob(Job):
    """An ElasticIterator, whose state is a place in the common order of all ranks."""

    def __init__(self, peer: GrainPeer, name: str, rank: int, world: int):
        self.iterator = iter(
            experimental.ElasticIterator(
                grain.MapDataset.source(peer.source(name)).shuffle(seed=0).map(unpack_boxed),
                peer.batch * world,
                grain.sharding.ShardOptions(shard_index=rank, shard_count=world),
                read_options=grain.ReadOptions(num_threads=1, prefetch_buffer_size=1),
                multiprocessing_options=grain.MultiprocessingOptions(num_workers=2),
            )
        )

    def batches(self):
        """See `Job.batches`."""
        return map(list, self.iterator)

    def state(self, consumed: int) -> dict:  # noqa: ARG002  (for other loaders)
        """See `Job.state`."""
        return self.iterator.get_state()

    def load_state(self, state: dict) -> None:
        """See `Job.load_state`."""
        self.iterator.set_state(state)


CONTENDER = GrainPeer
