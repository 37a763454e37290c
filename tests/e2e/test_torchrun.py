"""DDP training without join(): 101 samples in uneven shards, in batches of 4, by torchrun, on 2 ranks and on 3."""

import json
from collections import Counter

import pytest

from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all, torchrun
from tests.support.shards import write_index

N, BATCH = 101, 4


@pytest.fixture
def train(tmp_path):
    """Train on ``world`` ranks; ``results`` of the files they wrote."""
    index = write_index(tmp_path / "data", (40, 1, 0, 23, 37))

    def run(world, *, die_after=0, launcher=forked_ranks):
        program = [str(PROGRAMS / "with_ddp.py"), index, str(tmp_path), str(tmp_path / "state.json"), str(die_after)]
        run_all(
            [[*launcher(world), *program]],
            env=environment(),
            output=tmp_path / "output.txt",
            code=1 if die_after else 0,
        )

    run.read = lambda name: json.loads((tmp_path / f"{name}.json").read_text())
    return run


def flat(steps):
    """The indices of batches."""
    return [i for step in steps for i in step]


@pytest.mark.parametrize(("world", "launcher"), [(2, torchrun), (3, forked_ranks)], ids=["2", "3"])
def test_ranks_end_together(train, world, launcher):
    """All ranks take the same steps in both epochs; each sample is had once, and the pads make up for the rest."""
    train(world, launcher=launcher)
    answers = [train.read(f"{world}-{rank}") for rank in range(world)]
    each = -(-N // world)
    for answer in answers:
        assert answer["len"] == [each, -(-each // BATCH)]
        assert answer["gathered"] == answers[0]["gathered"]
    ranks = answers[0]["gathered"]
    for epoch in ("0", "1"):
        assert [[len(step) for step in rank[epoch]] for rank in ranks] == [[len(s) for s in ranks[0][epoch]]] * world
        counts = Counter(i for rank in ranks for i in flat(rank[epoch]))
        assert counts.keys() == set(range(N))
        assert counts.total() == each * world
        # Of what exceeds N, each repeats another sample.
        assert sorted(counts.values())[-(each * world - N) - 1 :] == [1] + [2] * (each * world - N)
    assert all(rank["0"] != rank["1"] for rank in ranks)


def test_killed_on_three_resumed_on_two(train):
    """After a rank of 3 was killed in mid-epoch, 2 ranks read just what is left of the epoch, in equal steps."""
    train(3, die_after=3)
    before = [i for rank in range(3) for i in flat(train.read(f"before-{rank}")["1"])]
    assert len(before) == len(set(before)) == 3 * 3 * BATCH
    state = train.read("state")["sampler"]
    assert [state[name] for name in ("epoch", "position", "yielded", "lanes")] == [1, 36, 12, 3]

    train(2)
    ranks = train.read("2-0")["gathered"]
    assert [list(rank) for rank in ranks] == [["1"], ["1"]]
    # 65 are left: 33 each, the last of them repeated.
    assert [[len(step) for step in rank["1"]] for rank in ranks] == [[4] * 8 + [1]] * 2
    after = Counter(i for rank in ranks for i in flat(rank["1"]))
    assert set(before) | after.keys() == set(range(N))
    again = (Counter(before) + after) - Counter(range(N))
    assert again.total() == 1
    assert flat(ranks[1]["1"])[-1] in again
