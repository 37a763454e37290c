"""`wids.resumable` beside what trains: torch's distributed checkpoints and meshes, trainers, and loaders of others."""

import json
from collections import Counter

import pytest

from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all

N = 96


def launch(directory, world, runs):
    """What each rank of with_checkpoints.py had."""
    program = [str(PROGRAMS / "with_checkpoints.py"), str(directory), json.dumps(runs)]
    run_all([[*forked_ranks(world), *program]], env=environment(), output=directory / f"output-{world}.txt")
    return [json.loads((directory / f"{world}-{rank}.json").read_text()) for rank in range(world)]


def samples(answers, name):
    """Samples of all ranks in a run, step by step."""
    steps = zip(*(answer[name]["batches"] for answer in answers), strict=True)
    return [[i for row in zip(*batches, strict=True) for i in row] for batches in steps]


# --- dcp.save({"loader": loader}) on three gloo ranks, dcp.load on three, two and four

KINDS = ("plain", "reweighted", "by source")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """World size -> what each rank had, after three batches of three ranks."""
    directory = tmp_path_factory.mktemp("checkpoints")
    whole = launch(directory, 3, [{"name": kind, "kind": kind} for kind in KINDS])
    launch(directory, 3, [{"name": kind, "kind": kind, "save": kind, "batches": 3} for kind in KINDS])
    runs = [{"name": kind, "kind": kind, "load": kind} for kind in KINDS]
    found = {world: launch(directory, world, runs) for world in (2, 3, 4)}
    return {"whole": whole, **found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_rest_comes_next(answers, kind, world):
    """In the order of the run that was not stopped; the changed weights of a mixture are in the checkpoint, too."""
    whole = [i for step in samples(answers["whole"], kind)[3:] for i in step]
    rest = [i for step in samples(answers[world], kind) for i in step]
    if kind == "by source":  # in other rows: batches of a rank are of other sizes
        assert Counter(rest) == Counter(whole)
    else:
        assert len(whole) == N - 36
        assert rest[: len(whole)] == whole
    assert len({json.dumps(answer[kind]["state"]) for answer in answers[world]}) == 1


def test_a_mesh_gives_the_ranks_of_a_group_the_same_samples(tmp_path):
    """Four processes as ("dp", "tp"): two shares, each read by both of a tensor-parallel group."""
    answers = launch(tmp_path, 4, [{"name": "mesh", "mesh": [2, 2]}])
    groups = [[i for batch in answer["mesh"]["batches"] for i in batch] for answer in answers]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert sorted(groups[0] + groups[2]) == list(range(N))
    for answer in answers:
        many, rank, number = answer["mesh"]["refused"]
        assert "the mesh has 2 dimensions, ('dp', 'tp'); give the one along which" in many
        assert "mesh= is given together with num_replicas=None, rank=0" in rank
        assert "mesh= is given together with num_replicas=2, rank=None" in number
