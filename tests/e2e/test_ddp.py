"""Distributed training over real gloo process groups: ranks take equal steps, end together, and see every sample."""

import json
import sys
import tarfile
from collections import Counter
from io import BytesIO
from itertools import pairwise

import pytest

from tests.support.launch import environment, run_all, torchrun

# One process of a training run. Arguments: index, directory for results; then, without a launcher: rank, world.
PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import wids

index, results, *place = sys.argv[1:]
dataset = wids.ShardListDataset(index, transformations=lambda sample: {
    "index": sample["__index__"],
    "x": torch.tensor([float(sample[".txt"].read())]),
})
options = dict(chunksize=2, drop_last=os.environ.get("DROP_LAST") == "1")
if place:
    rank, world = map(int, place)
    dist.init_process_group("gloo", init_method=f"file://{results}/store", rank=rank, world_size=world)
    sampler = wids.DistributedChunkedSampler(dataset, **options)
else:
    sampler = wids.DistributedChunkedSampler(dataset, **options)  # before there is a group: the launcher's variables
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

workers = int(os.environ.get("WORKERS", 0))
if "MAX_TOKENS" in os.environ:
    batches = wids.BucketBatchSampler(sampler, lengths=range(1, 14), max_tokens=int(os.environ["MAX_TOKENS"]))
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=workers)
else:
    loader = DataLoader(dataset, sampler=sampler, batch_size=2, num_workers=workers)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
epochs = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    seen = []
    for batch in loader:
        # The gradients are averaged over all ranks: a rank with one step more would wait for the others for ever.
        loss = ((model(batch["x"]) - 2 * batch["x"]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(batch["index"].tolist())
    epochs.append(seen)
gathered = [None] * world
dist.all_gather_object(gathered, epochs)

# Ranks and worlds of the caller's own, while this group exists.
own = wids.DistributedChunkedSampler(dataset, rank=0, shuffle=False, **options)
other = wids.DistributedChunkedSampler(dataset, num_replicas=5, rank=0, shuffle=False, **options)
answer = {
    "rank": [sampler.rank, sampler.num_replicas],
    "len": [len(sampler), sampler.num_samples, len(loader)],
    "epochs": epochs,
    "gathered": gathered,
    "weights": [p.tolist() for p in model.parameters()],
    "rank=0": [own.rank, own.num_replicas, list(own)],
    "rank=0 of 5": [other.rank, other.num_replicas, list(other)],
}
dist.barrier()
dist.destroy_process_group()
with open(os.path.join(results, f"rank{rank}.json"), "w") as stream:
    json.dump(answer, stream)
# Not through the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
os._exit(0)
"""


@pytest.fixture
def index(tmp_path):
    """The path of an index of 13 samples in shards of 4, 0, 3 and 6; sample i has the key of i and holds i as text."""
    shards, i = [], 0
    for k, count in enumerate([4, 0, 3, 6]):
        url = f"train-{k}.tar"
        with tarfile.open(tmp_path / url, "w") as tar:
            for _ in range(count):
                member = tarfile.TarInfo(f"{i:04d}.txt")
                content = str(i).encode()
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
                i += 1
        shards.append({"url": url, "nsamples": count})
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    return str(path)


@pytest.fixture
def mixture(tmp_path, index):
    """The path of an index of the same samples as two sources: a quarter of what is read is of the first four."""
    shards = json.loads((tmp_path / "index.json").read_text())["shardlist"]
    parts = [
        {"name": "a", "weight": 0.25, "shardlist": shards[:2]},
        {"name": "b", "weight": 0.75, "shardlist": shards[2:]},
    ]
    path = tmp_path / "mix.json"
    path.write_text(json.dumps({"wids_version": 1, "datasets": parts}))
    return str(path)


@pytest.fixture
def train(tmp_path, index):
    """Train on `world` ranks and return their answers."""

    def run(world, *, launcher=(), index=index, **variables):
        program = tmp_path / "train.py"
        program.write_text(PROGRAM)
        results = tmp_path / "results"
        results.mkdir()
        arguments = [str(program), index, str(results)]
        if launcher:
            commands = [[*launcher, *arguments]]
        else:
            commands = [[sys.executable, *arguments, str(rank), str(world)] for rank in range(world)]
        run_all(commands, env=environment(**variables), output=tmp_path / "output.txt")
        return [json.loads((results / f"rank{rank}.json").read_text()) for rank in range(world)]

    return run


def check(answers, *, each, total):
    """What holds for every run over n = 13: equal steps and counts, whole epochs, one model, explicit ranks."""
    world = len(answers)
    for rank, answer in enumerate(answers):
        assert answer["rank"] == [rank, world]
        assert answer["len"] == [each, each, -(-each // 2)]
        assert answer["weights"] == answers[0]["weights"]
        assert answer["gathered"] == [other["epochs"] for other in answers]
        assert [len(steps) for steps in answer["epochs"]] == [-(-each // 2)] * 3
        assert answer["rank=0"][:2] == [0, world]
        assert answer["rank=0"][2] == answers[0]["rank=0"][2]
        assert answer["rank=0 of 5"][:2] == [0, 5]
        # The first fifth of 13 samples; lanes of 3, 3, 3, 2 and 2.
        assert set(answer["rank=0 of 5"][2]) <= {0, 1, 2}
        assert len(set(answer["rank=0 of 5"][2])) == (3 if total == 13 else 2)
    # Of all ranks together: a single rank's few chunks may well fall in the same order twice.
    for a, b in pairwise(zip(*(answer["epochs"] for answer in answers), strict=True)):
        assert a != b
    for epoch in range(3):
        counts = Counter(i for answer in answers for step in answer["epochs"][epoch] for i in step)
        assert sum(counts.values()) == each * world
        assert counts.keys() <= set(range(13))
        assert len(counts) == total


def test_three_ranks_pad(train):
    """13 samples on 3 ranks: 5 each, all seen, in the same number of steps."""
    check(train(3), each=5, total=13)


def test_two_ranks_drop(train):
    """13 samples on 2 ranks with drop_last, read by a DataLoader worker each: 6 each, none twice."""
    check(train(2, DROP_LAST="1", WORKERS="1"), each=6, total=12)


@pytest.mark.parametrize(("world", "workers"), [(2, 1), (3, 0)])
def test_ranks_of_a_mixture_end_together(train, mixture, world, workers):
    """Equal steps in every nominal epoch, one model, the shares of the sources, and nothing of one again too soon."""
    answers = train(world, index=mixture, WORKERS=str(workers))
    for rank, answer in enumerate(answers):
        assert answer["rank"] == [rank, world]
        assert answer["len"] == answers[0]["len"]
        assert answer["weights"] == answers[0]["weights"]
        assert answer["gathered"] == [other["epochs"] for other in answers]
        # Of three ranks, nominal epochs of 13 are 5, 4 and 4 samples of each.
        steps = [[len(batch) for batch in epoch] for epoch in answer["epochs"]]
        assert steps == [[len(batch) for batch in epoch] for epoch in answers[0]["epochs"]]
    rows = [[i for epoch in answer["epochs"] for step in epoch for i in step] for answer in answers]
    order = [i for row in zip(*rows, strict=True) for i in row]
    assert {len(row) for row in rows} == {-(-39 // world)}
    for source, size in ((range(4), 4), (range(4, 13), 9)):
        own = [i for i in order if i in source]
        assert abs(len(own) - len(order) * (0.25 if size == 4 else 0.75)) < world
        for first in range(0, len(own), size):
            assert len(set(own[first : first + size])) == len(own[first : first + size])


def test_ranks_of_buckets_end_together(train):
    """Batches of like length within 16 on 3 ranks: equal steps in each epoch, all samples, and one model."""
    answers = train(3, MAX_TOKENS="16", WORKERS="1")
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"]
        assert answer["gathered"] == [other["epochs"] for other in answers]
        assert [*map(len, answer["epochs"])] == [*map(len, answers[0]["epochs"])]
        assert all((max(batch) + 1) * len(batch) <= 16 for epoch in answer["epochs"] for batch in epoch)
    for epoch in range(3):
        assert {i for answer in answers for batch in answer["epochs"][epoch] for i in batch} == set(range(13))


def test_torchrun(train):
    """Under torchrun a sampler knows its rank before the process group exists, from the launcher's variables."""
    check(train(2, launcher=torchrun(2)), each=7, total=13)
