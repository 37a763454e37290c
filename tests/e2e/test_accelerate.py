"""Hugging Face accelerate on two processes: a loader that it shards again loses samples; ways that lose none."""

import json
from collections import Counter

import pytest

from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.shards import write_index

pytestmark = pytest.mark.outside

N = 21


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both processes of tests/support/programs/with_accelerate.py had."""
    directory = tmp_path_factory.mktemp("accelerate")
    index = write_index(directory / "data", (7, 0, 5, 9))
    program = [str(PROGRAMS / "with_accelerate.py"), index, str(directory)]
    run_all([[*forked_ranks(2), *program]], env=environment(), output=directory / "output.txt")
    answers = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]
    assert [answer["rank"] for answer in answers] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    return answers


def test_prepared_loader_loses_samples(ranks):
    """After accelerator.prepare(loader) a rank gets every other batch of its share, and the rest is lost."""
    assert [answer["prepared"][0] for answer in ranks] == [3, 3]
    assert len({i for answer in ranks for i in answer["prepared"][1]}) < 13


@pytest.mark.parametrize("way", ["own", "adopted"])
def test_every_sample_once(ranks, way):
    """A loader that is not prepared, or is told of one process: each epoch whole, with one pad, and another order."""
    for epoch in ("0", "1", "2"):
        assert [len(answer[way][epoch]) for answer in ranks] == [11, 11]
        counts = Counter(i for answer in ranks for i in answer[way][epoch])
        assert counts.keys() == set(range(N))
        assert ranks[1][way][epoch][-1] in {i for i, count in counts.items() if count == 2}
    for answer in ranks:
        assert answer[way + ", len"] == [11, 6]
        assert answer["own"] == answer["adopted"]
        assert len({tuple(answer[way][epoch]) for epoch in ("0", "1", "2")}) == 3


@pytest.mark.parametrize("way", ["own", "adopted"])
def test_resume_in_mid_epoch(ranks, way):
    """Two batches of 2 into epoch 1: the rest of it, then epoch 2, without a warning."""
    for answer in ranks:
        assert answer[way + ", resumed"] == {"1": answer[way]["1"][4:], "2": answer[way]["2"]}


@pytest.mark.parametrize("way", ["resumable", "resumable, adopted"])
def test_accelerate_keeps_the_state_of_a_resumable_loader(ranks, way):
    """``prepare`` leaves it whole, and save_state and load_state have its place: nothing is counted in the loop."""
    for answer in ranks:
        assert answer[way] == answer["own"]
        assert answer[way + ", resumed"] == {"1": answer["own"]["1"][4:], "2": answer["own"]["2"]}


def test_what_would_lose_samples_is_refused(ranks):
    """A loader that accelerate divides or deals out, and batches skipped that the loader's state does not have."""
    for answer in ranks:
        divided, dealt, skipped = answer["refused"]
        assert "accelerate divides the batches of this loader among the processes" in divided
        assert dealt == divided
        assert "2 batches are to be skipped, and the loader is after 0 of its epoch" in skipped


def test_skipped_batches_are_those_before_the_state(ranks):
    """``skip_first_batches`` leaves the loader as it is: what comes is counted, and the next epoch is whole."""
    for answer in ranks:
        epochs = [answer["own"][epoch] for epoch in ("0", "1")]
        for found in answer["skipped"]:
            assert [i for batch, _ in found["rest"] for i in batch] == epochs[0][4:]
            assert [count for _, count in found["rest"]] == [3, 4, 5, 6]
            assert [i for batch in found["next"] for i in batch] == epochs[1]
            assert found["len"] == 4


def test_nothing_is_cut_of_what_is_gathered(ranks):
    """``gather_for_metrics`` has all samples of all ranks, and the marks say which are there to make ranks equal."""
    for answer in ranks:
        for tail in ("mask", "pad"):
            found = answer["gathered"][tail]
            assert len(found) == N + 1
            assert {index for index, _ in found} == set(range(N))
        assert sorted(index for index, is_own in answer["gathered"]["mask"] if is_own) == list(range(N))


def test_resume_without_set_epoch_warns(ranks):
    """Accelerate counts iterations from 0 and names that epoch to the sampler, which says that a rest is left out."""
    for answer in ranks:
        (message,) = answer["unnamed"]
        assert "epoch 0 was set after a state in the middle of epoch 1" in message
