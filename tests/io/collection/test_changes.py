"""Data that change in mid-run: real shards, loaders, files of states, and what users of other loaders asked for."""

import json
import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

import wids
from tests.support.shards import write_json, write_shard
from wids.errors import InputError, SpecError, StateError

ROWS = 12


class Shards:
    """A folder of shards with numbered samples, of which an index lists some."""

    def __init__(self, folder):
        """An empty folder."""
        self.folder = str(folder)
        os.makedirs(folder, exist_ok=True)

    def write(self, name, numbers, **header):
        """The path of an index of these shards; those that are not there are written."""
        listed = []
        for k in numbers:
            path = os.path.join(self.folder, f"s{k}.tar")
            if not os.path.exists(path):
                write_shard(path, ROWS, first=ROWS * k)
            listed.append({"url": path, "nsamples": ROWS, "filesize": os.stat(path).st_size})
        return write_json(os.path.join(self.folder, name), {"wids_version": 1, "shardlist": listed, **header})

    def open(self, name, numbers, **options):
        """A dataset of these shards whose samples are their numbers."""
        return wids.ShardListDataset(self.write(name, numbers), **options).add_transform(number_of)


def number_of(sample):
    """The number of a sample, which no other one has."""
    return int(sample[".cls"])


def numbers_of(shards):
    """The numbers of the samples in some shards."""
    return [number for k in shards for number in range(ROWS * k, ROWS * (k + 1))]


def loader_of(dataset, *, rank=0, world=1, workers=0, old=None, **options):
    """A resumable loader of a rank, in batches of 4."""
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **options)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=workers, collate_fn=list)
    return wids.resumable(loader, old=old)


def draw(loader, batches):
    """The samples of so many batches; the loop is left then."""
    with loader:
        return [number for _, batch in zip(range(batches), loader, strict=False) for number in batch]


@pytest.fixture
def shards(tmp_path):
    """A folder for shards."""
    return Shards(tmp_path / "data")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["argument", "loader"])
def test_a_program_that_is_stopped_twice_needs_no_edit(shards, workers, how):
    """A state of the new data is loaded as usual, whatever old= says."""
    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(1, 6))
    running = loader_of(before, workers=workers)
    read = draw(running, 5)
    state = json.loads(json.dumps(running.state_dict()))
    for batches in (3, 2, 100):
        loader = loader_of(now, workers=workers, old=before if how == "loader" else None)
        loader.load_state_dict(state, **({"old": before} if how == "argument" else {}))
        read += draw(loader, batches)
        state = loader.state_dict()
    assert sorted(number for number in read if number >= ROWS) == numbers_of(range(1, 6))
    assert sorted(read) == sorted(set(read))


def test_states_of_torch(shards, tmp_path):
    """Through torch.save with weights alone, torch.distributed.checkpoint, and pickle of the sampler."""
    import torch.distributed.checkpoint as dcp

    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(1, 6))
    running = loader_of(before)
    draw(running, 5)
    amended = loader_of(now)
    amended.load_state_dict(running.state_dict(), old=before)
    draw(amended, 3)
    torch.save(amended.state_dict(), tmp_path / "c.pt")
    plain = loader_of(now)
    plain.load_state_dict(amended.state_dict())
    left = draw(plain, 100)
    states = [torch.load(tmp_path / "c.pt", weights_only=True)]
    restored = loader_of(now)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there is one process
        dcp.save({"loader": amended}, checkpoint_id=str(tmp_path / "dcp"))
        dcp.load({"loader": restored}, checkpoint_id=str(tmp_path / "dcp"))
    assert draw(restored, 100) == left
    for state in states:
        again = loader_of(now)
        again.load_state_dict(state)
        assert draw(again, 100) == left
    sampler = wids.DistributedChunkedSampler(now, num_replicas=1, rank=0)
    sampler.load_state_dict(running.state_dict(), old=before)
    copied = pickle.loads(pickle.dumps(sampler))
    assert list(copied) == list(sampler)


@pytest.mark.parametrize("tail", ["pad", "mask"])
def test_opted_out_is_out(shards, tail):
    """Not to fill up a tail, not as a substitute, not by reading ahead, not in later epochs."""
    path = shards.write("a.json", range(5))

    def fail(sample):
        number = int(sample[".cls"])
        if number % 10 == 3:
            raise ValueError(f"sample {number} is bad")
        return number

    options = {"on_error": "substitute", "max_errors": 1.0, "cache_dir": shards.folder + "-cache", "cache_local": True}
    before = wids.ShardListDataset(path, **options).add_transform(fail)
    out = set(range(20, 36)) | {3, 59}
    now = before.exclude([i for i in range(len(before)) if i in out])
    states = [wids.DistributedChunkedSampler(before, num_replicas=1, rank=0).state_dict()]
    running = loader_of(before, workers=2)
    draw(running, 4)
    states.append(running.state_dict())
    for state in states:
        loaders = [loader_of(now, rank=rank, world=7, workers=rank % 2, tail=tail) for rank in range(7)]
        for loader in loaders:
            loader.load_state_dict(state, old=before)
        for _ in range(3):
            assert out.isdisjoint(number for loader in loaders for number in draw(loader, 100))
    with pytest.raises(StateError, match="another order"):
        loader_of(now).load_state_dict(running.state_dict())


def test_opted_out_is_out_of_a_mixture(shards):
    """A source that repeats never repeats what was taken out."""
    before, other = shards.open("a.json", range(2)), shards.open("b.json", range(5, 12))
    now = before.exclude(range(5, 15))
    mixtures = [wids.mix({"small": (first, 3), "large": (other, 1)}) for first in (before, now)]
    samplers = [wids.DistributedChunkedSampler(mixed, num_replicas=1, rank=0, epochs=None) for mixed in mixtures]
    indices = iter(samplers[0])
    for _ in range(10):
        next(indices)
    samplers[1].load_state_dict(samplers[0].state_dict(), old=mixtures[0])
    indices = iter(samplers[1])
    assert not set(range(5, 15)) & {mixtures[1][next(indices)] for _ in range(300)}


# --- what users of other loaders asked for


def test_energon_52_a_blend_gets_more_data(shards):
    """megatron-energon #52: the order depends on the number of samples, so a blend cannot grow during a run there."""
    parts = {"web": shards.open("w.json", range(3)), "books": shards.open("b.json", range(10, 12))}
    then = wids.mix({name: (part, 1) for name, part in parts.items()})
    more = shards.open("w2.json", range(6))
    now = wids.mix({"web": (more, 2), "books": (parts["books"], 1), "code": (shards.open("c.json", range(20, 22)), 1)})
    first, second = (
        wids.DistributedChunkedSampler(mixed, num_replicas=1, rank=0, epochs=None) for mixed in (then, now)
    )
    indices = iter(first)
    read = [then[next(indices)] for _ in range(24)]
    second.load_state_dict(first.state_dict(), old=then)
    indices = iter(second)
    came = [now[next(indices)] for _ in range(400)]
    web = [number for number in read + came if number < 100]
    assert sorted(web[: 6 * ROWS]) == numbers_of(range(6))  # the pass of web, over all that it has by now
    books = [number for number in read + came if 100 < number < 150]
    assert sorted(books[: 2 * ROWS]) == numbers_of(range(10, 12))
    shares = [sum(lo <= number < hi for number in came) / len(came) for lo, hi in ((0, 100), (100, 200), (200, 300))]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.02)


@pytest.mark.parametrize("world", [1, 3])
def test_litdata_436_a_dataset_is_extended_and_training_resumes(shards, world):
    """LitData #436: a state is refused there once the dataset has more chunks."""
    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(7))
    running = loader_of(before)
    read = draw(running, 6)
    loaders = [loader_of(now, rank=rank, world=world) for rank in range(world)]
    for loader in loaders:
        loader.load_state_dict(running.state_dict(), old=before)
    came = [number for loader in loaders for number in draw(loader, 100)]
    assert sorted(read + came) == numbers_of(range(7))
    assert sorted(number for loader in loaders for number in draw(loader, 100)) == numbers_of(range(7))


def test_megatron_725_shards_are_added_removed_and_weighted_anew(shards):
    """Megatron-LM #725: consumed samples are counted for each shard, so that a blend may change between two jobs."""
    web, books, code = (range(3), range(10, 13), range(20, 23))
    then = wids.mix({"web": (shards.open("w.json", web), 1), "books": (shards.open("b.json", books), 1)})
    sampler = wids.DistributedChunkedSampler(then, num_replicas=1, rank=0, epochs=None)
    indices = iter(sampler)
    read = [then[next(indices)] for _ in range(40)]
    now = wids.mix({"books": (shards.open("b2.json", range(11, 14)), 3), "code": (shards.open("c.json", code), 1)})
    amended = wids.DistributedChunkedSampler(now, num_replicas=1, rank=0, epochs=None)
    amended.load_state_dict(sampler.state_dict(), old=then)
    indices = iter(amended)
    came = [now[next(indices)] for _ in range(200)]
    seen = {number for number in read if number >= 11 * ROWS}
    rest = [number for number in came if number < 20 * ROWS][: 3 * ROWS - len(seen)]
    assert sorted(rest) == sorted(set(numbers_of(range(11, 14))) - seen)
    assert not {number for number in came if number < 11 * ROWS}


def test_mosaicml_646_shards_are_replaced_during_a_run(shards):
    """MosaicML's streaming #646: a run goes on with another version of some shards."""
    before = shards.open("a.json", range(4))
    running = loader_of(before)
    read = draw(running, 6)
    os.remove(os.path.join(shards.folder, "s2.tar"))
    write_shard(os.path.join(shards.folder, "s2.tar"), ROWS + 3, first=900)
    listed = json.loads(Path(shards.write("b.json", range(4))).read_text())["shardlist"]
    listed[2]["nsamples"] = ROWS + 3
    now = wids.ShardListDataset(listed).add_transform(number_of)
    loader = loader_of(now)
    sizes = [shard["filesize"] for shard in before.shards]
    old = [{**each, "nsamples": ROWS, "filesize": size} for each, size in zip(listed, sizes, strict=True)]
    loader.load_state_dict(running.state_dict(), old=old)
    came = draw(loader, 100)
    kept = [number for number in numbers_of([0, 1, 3]) if number not in read]
    assert sorted(came) == sorted([*kept, *range(900, 900 + ROWS + 3)])


def test_webdataset_457_a_list_of_urls_grows(shards):
    """Webdataset #457: shards are appended to a list while a job reads it, in the middle of an epoch and at its end."""
    before = shards.open("a.json", range(2))
    loader, count, read = loader_of(before), 2, []
    for batches in (2, 3, 4, 100):
        read += draw(loader, batches)
        count += 1
        now = shards.open(f"{count}.json", range(count))
        state, loader = loader.state_dict(), loader_of(now)
        loader.load_state_dict(state, old=before)
        before = now
    assert sorted(read) == numbers_of(range(5))
    assert sorted(draw(loader, 100)) == numbers_of(range(6))  # the next epoch


# --- what is refused


def test_what_has_no_shards_is_refused(shards):
    """Torch's Subset, and another's dataset; a join of ours is taken."""
    before, now = shards.open("a.json", range(3)), shards.open("b.json", range(4))
    running = loader_of(before)
    draw(running, 2)
    state = running.state_dict()
    for dataset, old in ((Subset(now, range(20)), before), (now, Subset(before, range(36))), (list(range(48)), before)):
        with pytest.raises((InputError, SpecError), match=r"of which no shards are known|and no list of shards"):
            wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0).load_state_dict(state, old=old)
    joined = ConcatDataset([shards.open("c.json", range(2)), shards.open("d.json", range(2, 5))])
    sampler = wids.DistributedChunkedSampler(ConcatDataset([before]), num_replicas=1, rank=0)
    indices = iter(sampler)
    read = [before[next(indices)] for _ in range(10)]
    amended = wids.DistributedChunkedSampler(joined, num_replicas=1, rank=0)
    amended.load_state_dict(sampler.state_dict(), old=ConcatDataset([before]))
    assert sorted(read + [joined[i] for i in amended]) == numbers_of(range(5))


def test_weights_of_samples_are_refused(shards):
    """No set of samples is what is left of a pass."""
    before, now = shards.open("a.json", range(3)), shards.open("b.json", range(4))
    sampler = wids.ChunkedSampler(before, weights=[1.0] * len(before))
    amended = wids.ChunkedSampler(now, weights=[1.0] * len(now))
    with pytest.raises(StateError, match="the sampler has weights"):
        amended.load_state_dict(sampler.state_dict(), old=before)


def test_damaged_changes_of_data(shards):
    """Each value of a state is checked."""
    before, now = shards.open("a.json", range(3)), shards.open("b.json", range(1, 5))
    sampler = wids.DistributedChunkedSampler(before, num_replicas=1, rank=0)
    indices = iter(sampler)
    for _ in range(10):
        next(indices)
    amended = wids.DistributedChunkedSampler(now, num_replicas=1, rank=0)
    amended.load_state_dict(sampler.state_dict(), old=before)
    state = amended.state_dict()
    change = state["order"]["amended"]
    (rest,) = change["sources"][""]["rests"]

    def load(**values):
        order = {**state["order"], "amended": {**change, **values}}
        wids.DistributedChunkedSampler(now, num_replicas=1, rank=0).load_state_dict({**state, "order": order})

    load()
    odd = [None, "x", 1.5, -(1 << 70), 1 << 70, [], {}]
    cases = [{name: value} for name in ("epoch", "position", "yielded", "shift") for value in odd]
    cases += [{"sources": value} for value in [*odd[:-1], {"other": {}}, {"": 3}, {"": {"start": 0}}]]
    cases += [{"sources": {"": {"start": 0, "rests": [value]}}} for value in [*odd, rest[:2], [*rest, 1]]]
    cases += [{"sources": {"": {"start": 0, "rests": [[*rest[:2], text]]}}} for text in (3, "", "AAAA", rest[2][:-8])]
    cases += [{"sources": {"": {"start": "x", "rests": []}}}, {"more": 1}]
    wrong = []
    for values in cases:
        try:
            load(**values)
        except StateError:
            continue
        wrong.append(values)
    assert wrong == []


# --- what a stranger's attack found


def test_samplers_that_cannot_go_on_say_so(shards):
    """A sampler of shards of one rank, and one whose shards are the caller's."""
    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(1, 6))
    for make in (
        wids.ShardListSampler,
        lambda dataset: wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, lengths=[len(dataset)]),
    ):
        with pytest.raises(StateError, match="only the order of"):
            make(now).load_state_dict(make(before).state_dict(), old=before)
    sampler = wids.ChunkedSampler(before, seed=3, num_samples=40)
    indices = iter(sampler)
    read = [before[next(indices)] for _ in range(9)]
    amended = wids.ChunkedSampler(now, seed=3)
    amended.load_state_dict(sampler.state_dict(), old=before)
    assert sorted(now[i] for i in amended) == sorted(set(numbers_of(range(1, 6))) - set(read))


def test_an_epoch_is_not_given_up_for_more_ranks():
    """28 of 30 samples were read with tail="drop"; three ranks go on with two of them and ten new ones."""
    entries = [{"url": f"/nowhere/{k}.tar", "nsamples": 10, "filesize": 1000 + k} for k in range(4)]
    before, now = wids.ShardListDataset(entries[:3]), wids.ShardListDataset(entries)
    sampler = wids.DistributedChunkedSampler(before, num_replicas=1, rank=0, tail="drop")
    indices = iter(sampler)
    read = {next(indices) for _ in range(28)}
    ranks = [wids.DistributedChunkedSampler(now, num_replicas=3, rank=rank, tail="drop") for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(sampler.state_dict(), old=before)
    came = [list(rank) for rank in ranks]
    assert [len(each) for each in came] == [4, 4, 4]
    assert read.union(*came) == set(range(40))


def test_what_differs_is_named(shards):
    """A setting is not the data's, nor is it a mixture."""
    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(1, 6))
    state = wids.DistributedChunkedSampler(before, num_replicas=1, rank=0).state_dict()
    for options, name in (({"seed": 3}, "seed"), ({"shuffle": False}, "shuffle"), ({"epochs": None}, "epochs")):
        sampler = wids.DistributedChunkedSampler(now, num_replicas=1, rank=0, **options)
        with pytest.raises(StateError, match=f"another order .{name}: "):
            sampler.load_state_dict(state, old=before)
    mixture = wids.mix({"a": (now, 1)})
    with pytest.raises(StateError, match="of a mixture, and another is not"):
        wids.DistributedChunkedSampler(mixture, num_replicas=1, rank=0).load_state_dict(state, old=before)
    sampler = wids.DistributedChunkedSampler(now, num_replicas=1, rank=0)
    with pytest.raises(StateError, match="not of the data that old= names"):
        sampler.load_state_dict(state, old=shards.open("c.json", [9]))
    with pytest.raises(StateError, match="old= has to be the data"):
        sampler.load_state_dict(state, old=shards.open("d.json", range(4, 8)))


def test_damaged_states_of_batches(shards):
    """Without the state of their samples, or with more lanes than there are numbers."""
    before, now = shards.open("a.json", range(4)), shards.open("b.json", range(1, 6))

    def make(dataset):
        return wids.BucketBatchSampler(wids.ChunkedSampler(dataset), batch_size=4)

    state = make(before).state_dict()
    order = {name: value for name, value in state["order"].items() if name != "sampler"}
    for damaged in ({**state, "order": order}, {**state, "order": {**order, "sampler": 3}}):
        with pytest.raises(StateError):
            make(now).load_state_dict(damaged, old=before)
        with pytest.raises(StateError):
            now.unseen(damaged, old=before)
    plain = wids.ChunkedSampler(before).state_dict()
    with pytest.raises(StateError, match="lanes"):
        now.unseen({**plain, "lanes": 10**30}, old=before)
