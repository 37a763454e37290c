"""Training loops that are killed around their checkpoints: they have trained on the samples of an unbroken run.

A rank is a process of its own with its workers, the test stands for the all-reduce between the ranks, and the model is
a digest of all samples it was trained on, in order. Nothing but the state of `wids.resumable` says where the data is.
Where a job is killed follows from a seed: at a message of its first rank, a step or a point of a checkpoint. With
``pytest -m long tests/faults/test_kills.py`` the five jobs are killed a hundred times.
"""

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support.chaos import program
from tests.support.children import receive
from tests.support.shards import write_index
from wids.core.cache.directory import CacheDirectory

N, BATCH, EPOCHS, EVERY = 384, 4, 4, 3
WORLDS, WORKERS = (4, 1, 2), (0, 2)
CACHE_BYTES = 900_000  # two of four shards, with space for the table of another one
LENGTHS = np.random.default_rng(3).integers(1, 30, N)
KINDS = ["plain", "buckets", "mixture", "by source", "shards", "small cache"]
LONG = pytest.param(20, id="many", marks=[pytest.mark.long, pytest.mark.timeout(3600)])


@dataclass
class Job:
    """A kind of loader, and where its checkpoint is."""

    kind: str
    checkpoint: str
    index: str | None = None

    def loader(self, world, rank, workers):
        """What a rank of a new life reads; lanes are named, for a job may be killed before its first checkpoint."""
        ranks = {"num_replicas": world, "rank": rank, "chunksize": 16, "window": 2, "lanes": 4}
        options = {"num_workers": workers, "collate_fn": list}
        data = list(range(N))
        if self.kind in ("shards", "small cache"):  # that of a job, whose lives read by ranges what was evicted
            cache = {"cache_dir": self.checkpoint + ".cache", "cache_size": CACHE_BYTES}
            data = wids.ShardListDataset(self.index, transformations=wids.seeded(draw), **cache)
            ranks["sample_seeds"] = True
        elif self.kind in ("mixture", "by source"):
            data = wids.mix({"a": (data[:100], 0.5), "b": (data[100:], 0.5)})
        if self.kind == "by source":  # its global batch stays what it is
            batches = wids.MixtureBatchSampler(data, 4 * BATCH // world, epoch_size=N, **ranks)
            return wids.resumable(DataLoader(data, batch_sampler=batches, **options))
        ranks |= {"epoch_size": N} if self.kind == "mixture" else {}
        sampler = wids.DistributedChunkedSampler(data, **ranks)
        if self.kind == "buckets":
            batches = wids.BucketBatchSampler(sampler, lengths=LENGTHS, max_tokens=100)
            return wids.resumable(DataLoader(data, batch_sampler=batches, **options))
        return wids.resumable(DataLoader(data, batch_size=BATCH, sampler=sampler, **options))

    def row(self, batches):
        """The samples of a step of all ranks, in their order whatever the number of ranks."""
        if self.kind == "buckets":
            return [*itertools.chain(*batches)]
        row = [sample for samples in zip(*batches, strict=True) for sample in samples]
        return sorted(row) if self.kind == "by source" else row


def draw(sample):
    """A sample's index, and a number by chance."""
    return [sample["__index__"], int(torch.randint(1000, ()))]


def train(link, job, world, rank, workers):
    """A rank: the loop of a program that saves every few steps, and goes on at what it has saved."""

    def ask(kind, value=None):
        link.send((kind, value))
        return receive(link)

    loader, digest, first = job.loader(world, rank, workers), "", 0
    if os.path.exists(job.checkpoint):
        with open(job.checkpoint) as file:
            saved = json.load(file)
        loader.load_state_dict(saved["loader"])
        digest, first = saved["digest"], saved["epoch"]
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for step, batch in enumerate(loader):
            for sample in ask("step", batch):
                digest = hashlib.sha256(f"{digest} {sample}".encode()).hexdigest()
            if rank == 0 and step % EVERY == 0:
                ask("before a checkpoint")
                with open(job.checkpoint + ".part", "w") as file:
                    json.dump({"loader": loader.state_dict(), "digest": digest, "epoch": epoch}, file)
                ask("within a checkpoint")
                os.replace(job.checkpoint + ".part", job.checkpoint)
                ask("after a checkpoint")
    link.send(("done", digest))


def live(job, world, workers, *, kill_at=None):
    """Run a job until its end, for its digest; or until that message of its first rank, and kill all its processes."""
    with contextlib.ExitStack() as stack:
        links = []
        for rank in range(world):
            ours, its = multiprocessing.get_context("fork").Pipe()
            stack.enter_context(program(train, its, job, world, rank, workers))
            links.append(stack.enter_context(ours))
            its.close()
        messages = itertools.count(1)
        while True:
            answers = []
            for rank, link in enumerate(links):
                kind, value = receive(link)
                while rank == 0:
                    if next(messages) == kill_at:
                        return kind, None
                    if not kind.endswith("checkpoint"):
                        break
                    link.send(None)
                    kind, value = receive(link)
                answers.append((kind, value))
            (kind,) = {kind for kind, _ in answers}  # all ranks end together
            if kind == "done":
                (digest,) = {digest for _, digest in answers}
                return kind, digest
            row = job.row([batch for _, batch in answers])
            for link in links:
                link.send(row)


@pytest.mark.parametrize("kills", [pytest.param(4, id="few"), LONG])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.thorough] * (kind in ("mixture", "shards", "buckets"))) for kind in KINDS],
)
def test_killed_around_checkpoints(tmp_path, server, kind, kills):
    """On other numbers of ranks and workers in each life, the last of which has trained on the same samples."""
    index = None
    if kind in ("shards", "small cache"):
        index = write_index(tmp_path / "data", (96, 96, 96, 96))
    if kind == "small cache":
        server.directory, server.has_ranges = tmp_path, True
        index = f"{server.url}/data/{os.path.basename(index)}"
    _, expected = live(Job(kind, str(tmp_path / "unbroken.json"), index), 4, 0)
    job, choose = Job(kind, str(tmp_path / "killed.json"), index), random.Random(kind)
    points = []
    for _ in range(kills):
        point, digest = live(job, choose.choice(WORLDS), choose.choice(WORKERS), kill_at=choose.randrange(2, 18))
        points.append(point)
        assert digest is None, points
    assert live(job, choose.choice(WORLDS), choose.choice(WORKERS)) == ("done", expected), points
    if kind == "small cache":
        found = CacheDirectory(job.checkpoint + ".cache").inventory()
        assert found.remembered
        assert found.used_bytes <= CACHE_BYTES
        assert server.ranges
