"""The guide's program that weighs sources by their losses: the run is the same on any numbers of ranks."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.launch import environment, forked_ranks, run_all
from tests.support.readme_code import at
from tests.support.shards import write_json, write_tar

pytestmark = pytest.mark.outside

SAMPLES = {"web": 90, "books": 50, "code": 70}  # in two shards each
BATCH, EPOCH, EPOCHS = 24, 240, 4
BEFORE = """
import json, os, sys
import torch, torch.distributed, wids

os.chdir(os.path.dirname(__file__))
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
log, stop = open(f"{sys.argv[1]}.{rank}", "w"), int(sys.argv[2])
noise = {"web": 0.0, "books": 2.0, "code": 0.7}  # of what is to be learned: the losses of some sources stay


def make_sample(sample):
    number = int(sample[".txt"])
    x, name = torch.tensor([1.0, number % 7, number % 5]).double(), sample["__dataset__"]
    target = x.sum() + noise[name] * (number % 3 - 1)
    return torch.cat([x, torch.tensor([float(number)])]), target, name


sources = {name: (wids.ShardListDataset(f"{name}.json").add_transform(make_sample), 1) for name in noise}
mixture, reference = wids.mix(sources), torch.tensor([0.0, 0.5, 0.1])
torch.manual_seed(0)
model = torch.nn.Linear(3, 1).double()


def train_step(inputs, targets):
    global stop
    if stop == 0:
        os._exit(0)
    stop -= 1
    losses = (model(inputs[:, :3]).flatten() - targets) ** 2
    model.zero_grad()
    (losses.sum() / global_batch).backward()
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.data -= 0.01 * parameter.grad
    print(json.dumps([epoch, inputs[:, 3].int().tolist()]), file=log, flush=True)
    return losses


def save(state, path):
    if rank == 0:
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    torch.distributed.barrier()
"""
AFTER = """
    print(json.dumps([epoch, dict(zip(names, shares.tolist()))]), file=log, flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path):
    """Run the program on so many ranks for so many steps: its global batches, and the shares after each epoch."""
    number = 0
    for name, count in SAMPLES.items():
        shards = []
        for k in range(2):
            rows = range(number, number + count // 2)
            write_tar(tmp_path / f"{name}-{k}.tar", {f"{row}.txt": str(row).encode() for row in rows})
            shards.append({"url": f"{name}-{k}.tar", "nsamples": len(rows)})
            number = rows.stop
        write_json(tmp_path / f"{name}.json", {"wids_version": 1, "shardlist": shards})
    [block] = at(".docs/guides/mix.md#weights-from-losses")
    text = block.text
    for shown, here in {
        "64, 64_000, 1.0": f"{BATCH}, {EPOCH}, 0.3",
        "num_workers=4": "num_workers=0",
        "range(first, 10)": f"range(first, {EPOCHS})",
    }.items():
        assert shown in text
        text = text.replace(shown, here)
    program = tmp_path / "program.py"
    program.write_text(f"{BEFORE}\n{text}{AFTER}")

    def run(name, world, steps):
        run_all(
            [[*forked_ranks(world), str(program), name, str(steps)]],
            env=environment(),
            output=tmp_path / "output.txt",
        )
        ranks = [
            list(map(json.loads, Path(tmp_path / f"{name}.{rank}").read_text().splitlines())) for rank in range(world)
        ]
        batches, shares = [], {}
        for turn in zip(*ranks, strict=True):
            epoch, first = turn[0]
            if isinstance(first, dict):
                assert all(each == turn[0] for each in turn)
                shares[epoch] = first
            else:
                batches.append((epoch, [i for samples in zip(*(own for _, own in turn), strict=True) for i in samples]))
        return batches, shares

    return run


def test_ended_and_resumed_on_other_ranks(run, tmp_path):
    """The unbroken run's samples in its order, and its shares; these follow the losses, and samples the shares."""
    whole, shares = run("whole", 2, -1)
    assert len(whole) == EPOCHS * EPOCH // BATCH
    (tmp_path / "run.pt").unlink()
    batches, later = [], {}
    for k, (world, steps) in enumerate([(2, 7), (3, 3), (4, 9), (1, 12), (2, -1)]):  # 10: at the end of an epoch
        some, changed = run(f"part{k}", world, steps)
        batches, later = batches + some, {**later, **changed}
    assert batches == whole
    assert later == shares
    ends = [("web", 90), ("books", 140), ("code", 210)]
    for epoch in range(EPOCHS):
        read = [i for at, batch in whole if at == epoch for i in batch]
        counts = Counter(next(name for name, end in ends if i < end) for i in read)
        expected = dict.fromkeys(SAMPLES, 1 / 3) if epoch == 0 else shares[epoch - 1]
        assert all(abs(counts[name] - EPOCH * share / sum(expected.values())) <= 4 for name, share in expected.items())
    assert shares[EPOCHS - 1]["books"] > 0.4 > shares[EPOCHS - 1]["code"] > shares[EPOCHS - 1]["web"]
