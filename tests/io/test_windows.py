"""Windows over real shards: what is read and decoded, views, columns, remote shards, mixtures, loaders and resumes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support.clocks import threads_named, wait_until
from tests.support.servers import shard_requests
from tests.support.shards import write_index, write_json, write_mixture, write_shards, write_tar
from wids.core.files import page_cache
from wids.core.order.layout import fingerprint, interface_of, mixed_parts
from wids.errors import InputError, StateError
from wids.events import Fetched

# Samples 0 .. 19, of shards of 7, 0, 6 and 7; episodes of 9, 2 and 9 samples.
COUNTS = (7, 0, 6, 7)
EPISODES = [0] * 9 + [1] * 2 + [2] * 9


def number_of(sample):
    """A sample as a dict of its number and what samplers and mixtures say."""
    names = ("__index__", "__dataset__")
    return {"n": int(sample[".cls"].read()), **{name: sample[name] for name in names}}


def numbers(windows):
    """A collate function: the windows' samples, and the windows themselves."""
    return [(window["__window__"], tuple(window["n"])) for window in windows]


@pytest.fixture
def shards(tmp_path):
    """The shards."""
    return write_shards(tmp_path, COUNTS)


@pytest.fixture
def dataset(shards):
    """The dataset of numbers."""
    return wids.ShardListDataset(shards, transformations=number_of)


def sampler_of(dataset, **options):
    """A sampler of one rank."""
    return wids.DistributedChunkedSampler(dataset, **{"num_replicas": 1, "rank": 0, "chunksize": 5, **options})


def samples_of(windows):
    """The numbers of the samples of all windows."""
    return [window["n"] for window in windows]


# --- what is read


def test_windows_never_cross_shards_or_episodes(dataset):
    """Without a column, a window lies in a shard; with one, in an episode, which may lie in two shards."""
    assert samples_of(dataset.windows(6)) == [[*range(k, k + 6)] for k in (0, 1, 7, 13, 14)]
    windows = dataset.windows(8, by=EPISODES)
    assert samples_of(windows) == [[*range(k, k + 8)] for k in (0, 1, 11, 12)]
    assert samples_of(dataset.windows(4, step=4, by=EPISODES)) == [[*range(k, k + 4)] for k in (0, 4, 11, 15)]
    assert samples_of(dataset.windows(4, step=4, by=EPISODES, pad="repeat")) == [
        *([0, 1, 2, 3], [4, 5, 6, 7], [8, 8, 8, 8], [9, 10, 10, 10]),
        *([11, 12, 13, 14], [15, 16, 17, 18], [19, 19, 19, 19]),
    ]


def test_each_sample_of_a_batch_is_read_and_transformed_once(shards):
    """Also those of several windows, also what is added to the dataset later; the windows share their values."""
    seen = []

    def note(sample):
        seen.append(sample["n"])
        return sample

    dataset = wids.ShardListDataset(shards, transformations=number_of)
    windows = dataset.windows(5, by=[0] * 20)
    dataset.add_transform(note)
    before = dataset.get_stats()[0]
    batch = windows.__getitems__([3, 1, 2, 3])
    assert samples_of(batch) == [[*range(k, k + 5)] for k in (3, 1, 2, 3)]
    assert seen == [*range(1, 8)]
    assert dataset.get_stats()[0] - before == 7
    loader = DataLoader(windows, batch_size=16, collate_fn=numbers)
    seen.clear()
    assert next(iter(loader)) == [(k, tuple(range(k, k + 5))) for k in range(16)]
    assert seen == [*range(20)]


def test_views(dataset):
    """A gap of a view ends a run; the windows are of what is left, with the view's own numbers in ``__index__``."""
    view = dataset.exclude([4, 12])
    assert samples_of(view.windows(4, by=np.delete(EPISODES, [4, 12]))) == [
        *([0, 1, 2, 3], [5, 6, 7, 8]),
        *([k, k + 1, k + 2, k + 3] for k in range(13, 17)),
    ]
    windows = view.windows(3)
    assert [window["n"] for window in windows] == [
        *([0, 1, 2], [1, 2, 3], [7, 8, 9], [8, 9, 10], [9, 10, 11]),
        *([k, k + 1, k + 2] for k in range(13, 18)),
    ]
    assert windows[0]["__index__"] == [0, 1, 2]
    assert windows[4]["__index__"] == [8, 9, 10]
    whole = dataset.select(range(20)).windows(8, by=EPISODES)
    assert samples_of(whole) == samples_of(dataset.windows(8, by=EPISODES))
    assert fingerprint(whole) != fingerprint(dataset.windows(8, by=EPISODES)) is not None


def test_random_views_are_those_of_a_naive_model(dataset):
    """In 200 random views: windows of neighbours in the whole dataset, in one episode."""
    draws = random.Random(0)
    for _ in range(200):
        kept = sorted(draws.sample(range(20), draws.randint(1, 20)))
        length, pad = draws.randint(1, 4), draws.choice([None, "repeat"])
        runs: list[list[int]] = []
        for n in kept:
            is_next = runs and runs[-1][-1] == n - 1 and EPISODES[n] == EPISODES[n - 1]
            runs = [*runs[:-1], [*runs[-1], n]] if is_next else [*runs, [n]]
        model = [
            [run[min(k + offset, len(run) - 1)] for offset in range(length)]
            for run in runs
            for k in range(len(run) if pad else len(run) - length + 1)
        ]
        view = dataset.select(kept)
        if not model:
            with pytest.raises(InputError):
                view.windows(length, by=np.array(EPISODES)[kept])
        else:
            windows = view.windows(length, by=np.array(EPISODES)[kept], pad=pad)
            assert [window["n"] for window in windows.__getitems__(range(len(windows)))] == model


def test_columns(dataset):
    """``by`` is a column, or SQL over columns, also those of member tables; ``weights`` are read at the anchor."""
    table = {"index": list(range(20)), "episode": EPISODES, "reward": [float(k) for k in range(20)]}
    joined = dataset.with_table(table, on="index", fields=["reward"])
    joined.transformations = lambda sample: {"n": int(sample[".cls"].read()), "reward": sample["reward"]}
    windows = joined.windows(8, by="episode")
    assert samples_of(windows) == samples_of(dataset.windows(8, by=EPISODES))
    assert windows[0]["reward"] == [float(k) for k in range(8)]
    assert samples_of(joined.windows(8, by="episode * 2 + 1")) == samples_of(windows)
    assert samples_of(dataset.windows(6, by="split_part(key, '-', 1)")) == samples_of(dataset.windows(6))
    assert {int(i) for i in sampler_of(windows, weights="case when reward >= 11 then 1 else 0 end")} == {2, 3}
    view = joined.where("episode <> 1")
    assert samples_of(view.windows(9, by="episode")) == [[*range(9)], [*range(11, 20)]]
    nulls = dataset.with_table({"index": [0, 1], "episode": [0, 0]}, on="index")
    with pytest.raises(InputError, match=r"by='episode': sample 2 has no value, .*where\('COLUMN is not null'\)"):
        nulls.windows(2, by="episode")
    assert samples_of(nulls.where("episode is not null").windows(2, by="episode")) == [[0, 1]]
    with pytest.raises(InputError, match=r"by: .*'epsode'"):
        joined.windows(2, by="epsode")


def test_stacked_windows_are_collated(shards):
    """Torch's own collate function makes tensors of stacked fields and of paddings."""
    dataset = wids.ShardListDataset(shards, fields=(".cls",))
    windows = dataset.windows(offsets={".cls": [-1, 0, 1]}, pad="repeat", by=EPISODES, stack=torch.tensor)
    batch = next(iter(DataLoader(windows, batch_size=20)))
    expected = [[max(k - 1, 0), k, min(k + 1, 8)] for k in range(9)]
    assert batch[".cls"][:9].tolist() == expected
    assert batch["__pad__"][".cls"].sum().item() == 6
    assert batch["__index__"].tolist() == list(range(20)) == batch["__window__"].tolist()
    windows = dataset.windows(3, pad="repeat", by=EPISODES, stack=np.array)
    batch = next(iter(DataLoader(windows, batch_size=20)))
    assert (batch[".cls"].shape, batch["__pad__"].shape, batch["__pad__"].dtype) == ((20, 3), (20, 3), torch.bool)


# --- samples that are read in part


class Counting:
    """A decoder of numbers, which notes them."""

    def __init__(self):
        self.seen = []

    def __call__(self, data):
        """The number of a member."""
        self.seen.append(int(data))
        return int(data)


# No other test has members by these names.
FRAMES, ACTIONS = Counting(), Counting()
wids.register_decoder(".counted-frame", FRAMES)
wids.register_decoder(".counted-action", ACTIONS)


FORMS = {
    "all": (None, ".counted-frame", ".counted-action"),
    "fields": ((".counted-frame", ".counted-action"), ".counted-frame", ".counted-action"),
    "alternatives": ((".jpg;.counted-frame", ".counted-action"), ".counted-frame", ".counted-action"),
    "names": ({"image": "jpg;counted-frame", "action": "counted-action", "label": "cls"}, "image", "action"),
}


@pytest.mark.parametrize("form", FORMS)
def test_fields_with_offsets_are_read_where_they_are_needed(tmp_path, form):
    """Of samples that are no anchors, only the fields whose offsets say so; a function may need all of them."""
    fields, image, text = FORMS[form]
    names = ("counted-frame", "counted-action", "cls")
    members = [(f"{k:02d}.{name}", b"%d" % k) for k in range(20) for name in names]
    dataset = wids.ShardListDataset([(write_tar(tmp_path / "a.tar", members), 20)], fields=fields)
    windows = dataset.windows(offsets={image: [-1, 0], text: [0, 1, 2, 3]}, by=[0] * 20)
    expected = [
        {image: [k - 1, k], text: [k + o for o in range(4)], "__key__": dataset[k]["__key__"]} for k in (3, 4, 9)
    ]
    FRAMES.seen.clear()
    ACTIONS.seen.clear()
    batch = windows.__getitems__([2, 3, 8])
    assert [{name: window[name] for name in expected[0]} for window in batch] == expected
    assert sorted(FRAMES.seen) == [2, 3, 4, 8, 9]
    assert sorted(ACTIONS.seen) == [3, 4, 5, 6, 7, 9, 10, 11, 12]
    FRAMES.seen.clear()
    ACTIONS.seen.clear()
    dataset.add_transform(lambda sample: {**sample, "both": (sample[image], sample[text])})
    windows = dataset.windows(offsets={image: [-1, 0], "both": [1]}, by=[0] * 20)
    assert windows[2]["both"] == [(4, 4)]
    assert sorted(FRAMES.seen) == sorted(ACTIONS.seen) == [2, 3, 4]


def test_what_is_read_in_part_is_what_is_read_as_a_whole(shards):
    """In random settings, with a function that changes nothing beside it."""
    draws = random.Random(0)
    table = {"index": list(range(20)), "reward": [k / 2 for k in range(20)]}
    for _ in range(60):
        fields = draws.choice([None, (".bin", ".TXT", ".cls"), (".bin;.png", ".cls;.txt"), {"a": "bin", "b": "txt"}])
        names = ["a", "b"] if isinstance(fields, dict) else [".bin", ".txt", ".cls"]
        names += ["reward"] * draws.randint(0, 1)
        offsets = {
            name: [draws.randint(-3, 3) for _ in range(draws.randint(1, 4))]
            for name in draws.sample(names, draws.randint(1, len(names)))
        }
        if isinstance(fields, tuple) and ";" in fields[0]:
            offsets.pop(".txt", None)
            offsets[".bin"] = [0, 1]
        made = []
        for transformations in (["raw"], ["raw", dict]):
            dataset = wids.ShardListDataset(shards, fields=fields, transformations=transformations)
            dataset = dataset.with_table(table, on="index", fields=True)
            windows = dataset.windows(offsets=offsets, by=EPISODES, pad="repeat")
            made.append([str(window) for window in windows.__getitems__([draws.randrange(20), *range(0, 20, 3)][1:])])
        assert made[0] == made[1]


def test_member_names_in_other_cases(tmp_path):
    """``.jpg`` in ``fields`` reads .JPG, which stays its name, in windows, too."""
    members = [(f"{k}.{name}", b"%d" % k) for k in range(6) for name in ("JPG", "TXT")]
    shard = write_tar(tmp_path / "a.tar", members)
    for fields in (None, (".jpg", ".txt"), (".jpg;.jpeg", ".txt")):
        dataset = wids.ShardListDataset([(shard, 6)], fields=fields, transformations="raw")
        assert dataset.windows(offsets={".JPG": [0, 1]})[2][".JPG"] == [b"2", b"3"]
        with pytest.raises(InputError, match=r"no sample of window 0 has the field '.jpg'.*\.JPG"):
            dataset.windows(offsets={".jpg": [0, 1]})[0]


def test_bytes_of_samples_that_are_read_in_part(tmp_path, server):
    """By byte ranges, no byte of a field is requested where its offsets do not need it."""
    members = [(f"{k:02d}.{name}", bytes(size)) for k in range(16) for name, size in (("big", 200_000), ("npy", 10))]
    path = write_tar(tmp_path / "a.tar", members)
    with open(path, "rb") as file:
        url = server.add("/a.tar", file.read())
    server.has_ranges = True
    dataset = wids.ShardListDataset([(url, 16)], access="range", cache_dir=tmp_path / "c", transformations="raw")
    windows = dataset.windows(offsets={".npy": list(range(16)), ".big": [0]})
    assert len(dataset[0][".big"]) == 200_000  # and the member table, by the headers
    server.sent_bytes.clear()
    assert [len(values) for values in (windows[0][".npy"], windows[0][".big"])] == [16, 1]
    assert server.sent_bytes.total() < 2_000_000


# --- remote shards


@pytest.fixture
def remote(tmp_path, server):
    """The shards behind a server: a function that makes a dataset of them with a cache of its own."""
    urls = []
    for k, shard in enumerate(write_shards(tmp_path / "there", COUNTS)):
        with open(shard["url"], "rb") as file:
            urls.append((server.add(f"/{k}.tar", file.read()), shard["nsamples"]))

    def make(**options):
        cache = tmp_path / f"cache{len(list(tmp_path.glob('cache*')))}"
        cache.mkdir()
        return wids.ShardListDataset(urls, cache_dir=cache, **{"transformations": number_of, **options})

    return make


@pytest.mark.parametrize("way", ["windows", "view", "mixture"])
def test_both_shards_of_a_window_come_ahead(remote, server, way):
    """Of a window that lies in two shards, both are downloaded before it is read; no shard that none needs."""
    dataset = remote()
    windows = dataset.windows(8, by=EPISODES)
    if way == "view":
        windows = dataset.select(range(9)).windows(8, by=EPISODES[:9])
    if way == "mixture":
        windows = wids.mix({"a": windows})
    drawn = iter(sampler_of(windows, shuffle=False))
    first = next(drawn)
    expected = ["/0.tar", "/2.tar"] if way == "view" else ["/0.tar", "/2.tar", "/3.tar"]
    wait_until(lambda: sorted(shard_requests(server)) == expected)
    wait_until(lambda: not threads_named("wids-fetch"))
    assert windows[first]["n"] == list(range(8))
    assert sorted(shard_requests(server)) == expected
    assert sorted([first, *drawn]) == list(range(len(windows)))


def test_an_epoch_downloads_each_shard_once(remote, server, events):
    """All windows, in random order, in workers as in the process itself."""
    dataset = remote(hooks=[events])
    windows = dataset.windows(4, by=EPISODES)
    got = [k for batch in DataLoader(windows, 3, sampler=sampler_of(windows), collate_fn=numbers) for k, _ in batch]
    assert sorted(got) == list(range(12))
    assert sorted(shard_requests(server)) == ["/0.tar", "/2.tar", "/3.tar"]
    assert sum(isinstance(event, Fetched) for event in events) == 3


@pytest.mark.parametrize("access", ["range", "auto"])
def test_windows_by_byte_ranges(remote, server, access):
    """Nothing is downloaded as a whole, and the values are the same."""
    server.has_ranges = True
    dataset = remote(access=access)
    windows = dataset.windows(9, by=EPISODES)
    assert samples_of(windows) == [[*range(9)], [*range(11, 20)]]


def test_windows_on_a_network_file_system(shards, monkeypatch):
    """The parts of files that are read ahead lie in the files, also where a shard has more windows than samples."""
    read = []
    monkeypatch.setattr(page_cache, "is_network", lambda _path: True)
    monkeypatch.setattr(page_cache, "read_ahead", lambda path, a, b, *, is_cancelled: read.append((path, a, b)))
    dataset = wids.ShardListDataset(shards, transformations=number_of).select([6, 7, 8, 9, 10, 11, 12, 13])
    windows = dataset.windows(offsets=[-9, 9], by=[0] * 8, pad="repeat")
    drawn = iter(sampler_of(windows))
    next(drawn)
    wait_until(lambda: len({path for path, _, _ in read}) == 2)
    assert len([*drawn]) == 7
    wait_until(lambda: not threads_named("wids-prefetch"))
    assert {path for path, _, _ in read} == {shards[k]["url"] for k in (0, 3)}
    assert all(0 <= a < b <= 1 for _, a, b in read)


# --- mixtures


def test_mixtures_of_windows(tmp_path, dataset):
    """Sources are windows of whichever lengths; their samples have the source's name, and shares hold."""
    other = wids.ShardListDataset(write_shards(tmp_path / "b", (5, 5)), transformations=number_of)
    mixture = wids.mix({"arm": (dataset.windows(4, by=EPISODES), 3), "hand": (other.windows(2), 1)})
    assert len(mixture) == 12 + 8
    window = mixture[12]
    assert (window["n"], window["__dataset__"], window["__window__"]) == ([0, 1], ["hand", "hand"], 0)
    drawn = mixture.__getitems__(list(sampler_of(mixture, epoch_size=80)))
    assert Counter(window["__dataset__"][0] for window in drawn) == {"arm": 60, "hand": 20}
    assert sorted(Counter(window["__window__"] for window in drawn if window["__dataset__"][0] == "arm").values()) == (
        [5] * 12
    )
    batches = wids.MixtureBatchSampler(mixture, batch_size=4, num_replicas=1, rank=0)
    assert all(len({mixture[index]["__dataset__"][0] for index in batch}) == 1 for batch in batches)
    with pytest.raises(InputError, match="Windows; an index holds the shards of a ShardListDataset"):
        mixture.save(tmp_path / "mix.json")
    assert mixture.stats()["arm"] == dataset.stats()
    mixture.close()
    with pytest.raises(TypeError, match="make windows of each source"):
        type(dataset.windows(2))(wids.mix([dataset]), 2)


def test_an_index_that_is_a_mixture(tmp_path):
    """Windows never cross its sub-datasets, and are mixed in their shares; views leave out those without a window."""
    index = write_mixture(tmp_path, {"a": ((5, 4), 1), "b": ((6,), 3), "c": ((2,), 1)})
    dataset = wids.ShardListDataset(index, transformations=number_of)
    windows = dataset.windows(3, by=[0] * 17)
    assert [window["__index__"] for window in windows] == [
        *([k, k + 1, k + 2] for k in range(7)),
        *([k, k + 1, k + 2] for k in range(9, 13)),
    ]
    assert [(part.name, part.first, part.last, part.weight) for part in mixed_parts(windows)] == [
        ("a", 0, 7, 1.0),
        ("b", 7, 11, 3.0),
    ]
    drawn = [windows[i]["__dataset__"][0] for i in sampler_of(windows, epoch_size=40)]
    assert Counter(drawn) == {"a": 10, "b": 30}
    marks = {part.fingerprint for made in (windows, dataset.windows(2, step=3)) for part in mixed_parts(made)}
    assert len(marks) == 5
    only = dataset.select(range(9))
    assert len(sampler_of(only.windows(3, by=[0] * 9))) == 7


def test_names_of_shards_end_runs(tmp_path):
    """A list of shards that names sub-datasets shard by shard is cut there, too, and nowhere else."""
    listed = write_shards(tmp_path, (3, 3, 0, 3, 3))
    for shard, name in zip(listed, "aabbb", strict=True):
        shard["dataset"] = name
    dataset = wids.ShardListDataset(write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": listed}))
    assert interface_of(dataset).breaks().tolist() == [6]
    assert len(dataset.windows(6, by=[0] * 12)) == 2
    assert interface_of(dataset.select([0, 1, 3, 4, 5, 6, 7])).breaks().tolist() == [2, 5]


# --- states and loaders


def loaders(name):
    """Options of a DataLoader."""
    workers = {"num_workers": 2, "multiprocessing_context": name}
    return {} if name == "alone" else workers


@pytest.mark.parametrize("name", ["alone", "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_a_loader_that_is_left_goes_on(shards, name):
    """A new program with the saved state reads the rest of the windows, each once, on other ranks and workers."""

    def make(world, rank, name):
        dataset = wids.ShardListDataset(shards, transformations=number_of)
        windows = dataset.windows(3, by=EPISODES)
        sampler = sampler_of(windows, num_replicas=world, rank=rank, lanes=4, tail="mask")
        loader = DataLoader(windows, 2, sampler=sampler, collate_fn=numbers_and_marks, **loaders(name))
        return wids.resumable(loader)

    read, states = Counter(), []
    for rank in range(2):
        loader = make(2, rank, name)
        batches = iter(loader)
        for _ in range(2):
            read.update(i for i, _, is_valid in next(batches) if is_valid)
        states.append(json.dumps(loader.state_dict()))
        loader.close()
    assert states[0] == states[1]
    assert sum(read.values()) == 8
    for rank in range(3):
        loader = make(3, rank, "alone")
        loader.load_state_dict(json.loads(states[0]))
        for batch in loader:
            for i, samples, is_valid in batch:
                assert samples == tuple(range(samples[0], samples[0] + 3))
                read.update([i] * is_valid)
    assert read == Counter(range(14))


def numbers_and_marks(windows):
    """A collate function."""
    return [(window["__window__"], tuple(window["n"]), window["__valid__"]) for window in windows]


@pytest.mark.parametrize("name", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_workers(dataset, name):
    """Windows reach workers of each kind, and so do marks and transformations."""
    windows = dataset.windows(4, by=EPISODES).add_transform(total)
    loader = DataLoader(windows, 5, sampler=sampler_of(windows), collate_fn=list, **loaders(name))
    assert sorted(window for batch in loader for window in batch) == sorted(sum(each) for each in samples_of_plain())


def total(window):
    """A transformation of windows."""
    return sum(window["n"])


def samples_of_plain():
    """The samples of all windows of 4 of an episode."""
    return [range(k, k + 4) for k in range(17) if EPISODES[k] == EPISODES[k + 3]]


def test_states_of_other_data(tmp_path, dataset):
    """A state over windows is refused by the samples themselves, and where the columns, the view or shards differ."""
    windows = dataset.windows(4, by=EPISODES)
    sampler = sampler_of(windows)
    next(iter(sampler))
    state = sampler.state_dict()
    sampler_of(dataset.windows(4, by=[f"episode {k}" for k in EPISODES])).load_state_dict(state)
    others = [dataset, dataset.windows(4, by=[0] * 20), dataset.exclude([3]).windows(4, by=EPISODES[1:])]
    others += [wids.ShardListDataset(write_index(tmp_path / "o", (7, 6, 7))).windows(4, by=EPISODES)]
    for other in others:
        with pytest.raises(StateError):
            sampler_of(other).load_state_dict(state)


def test_substitutes(tmp_path, shards):
    """A sample that cannot be read is replaced in its window, and the list says so."""

    def fail(sample):
        if sample["__index__"] == 3:
            raise ValueError("damaged")
        return number_of(sample) | {"__substitute_for__": sample["__substitute_for__"]}

    dataset = wids.ShardListDataset(shards, transformations=fail, on_error="substitute", max_errors=1.0)
    window = dataset.windows(3)[2]
    assert window["__substitute_for__"] == [-1, 3, -1]
    assert window["n"][::2] == [2, 4]


def test_windows_are_pickled_with_their_dataset(dataset):
    """As samplers of other programs need it; caches and open files stay here."""
    windows = dataset.windows(4, by=EPISODES)
    assert windows[0]["n"] == [0, 1, 2, 3]
    other = pickle.loads(pickle.dumps(windows))
    assert samples_of(other) == samples_of(windows)
    assert list(sampler_of(other)) == list(sampler_of(windows))
    assert "12 windows of 4, step 1, of <ShardListDataset" in repr(other)
    other.close()
    assert other[0]["n"] == [0, 1, 2, 3]
    assert other.stats() is not None


# --- data that change in mid-epoch


class Changing:
    """Random shards of whole episodes, of which some go, come and change places; nothing is read."""

    def __init__(self, seed):
        self.draws = draws = random.Random(seed)
        self.options = draws.choice(
            [
                {"length": 3},
                {"length": 2, "step": 2},
                {"offsets": [-1, 0, 2], "pad": "repeat"},
                {"offsets": {"x": [1, 2]}, "step": 3, "pad": "repeat"},
            ]
        )
        self.then = [self.shard(k) for k in range(draws.randint(2, 6))]
        self.now = [shard for shard in self.then if draws.random() < 0.7]
        self.now += [self.shard(100 + k) for k in range(draws.randint(0, 3))]
        draws.shuffle(self.now)
        self.now = self.now or [self.shard(200)]

    def shard(self, number):
        """(URL, episode of each sample)."""
        values = [(number, k) for k in range(self.draws.randint(1, 3)) for _ in range(self.draws.randint(3, 9))]
        return f"http://h/{number}.tar", values

    def windows(self, shards):
        """The windows of shards, and a name for the anchor of each that does not change."""
        dataset = wids.ShardListDataset([(url, len(values)) for url, values in shards], prefetch=False)
        episodes = [f"{value}" for _, values in shards for value in values]
        names = [(url, row) for url, values in shards for row in range(len(values))]
        if self.draws.random() < 0.4:  # a view, of long stretches
            gone = self.draws.sample(range(len(names)), self.draws.randint(1, 2))
            dataset = dataset.exclude(gone)
            names, episodes = ([each for k, each in enumerate(some) if k not in gone] for some in (names, episodes))
        windows = dataset.windows(**self.options, by=episodes)
        return windows, [names[k] for k in windows.anchors()]


@pytest.mark.parametrize("form", ["windows", "mixture"])
@pytest.mark.parametrize("seed", range(40))
def test_windows_that_were_read_do_not_come_again(seed, form):
    """The rest of the epoch of a state has each window that it had not read, and what is new, each once."""
    changing = Changing(seed)
    (then, before), (now, after) = changing.windows(changing.then), changing.windows(changing.now)
    make = (lambda windows: wids.mix({"a": windows})) if form == "mixture" else lambda windows: windows
    options = {"lanes": 3, "chunksize": 4, **({"epoch_size": 10**6} if form == "mixture" else {})}
    ranks = [sampler_of(make(then), num_replicas=2, rank=rank, **options) for rank in range(2)]
    count = changing.draws.randint(0, (len(then) - 1) // 2)
    read = [before[index] for iterator in map(iter, ranks) for index in (next(iterator) for _ in range(count))]
    state = json.loads(json.dumps(ranks[0].state_dict()))
    others = [sampler_of(make(now), num_replicas=3, rank=rank, **options) for rank in range(3)]
    for sampler in others:
        sampler.load_state_dict(state, old=make(then))
    due = Counter(after) - Counter(read)
    if not due:
        return  # nothing is left of the epoch
    if form == "mixture":
        iterators, drawn = list(map(iter, others)), []
        while len(drawn) < due.total():
            drawn += [next(iterator) for iterator in iterators]
        rest = [after[index] for index in drawn[: due.total()]]
        assert Counter(rest) == due
    else:
        rest = Counter(after[index] for sampler in others for index in sampler)
        assert not due - rest
        assert rest.total() - due.total() < 3


def test_windows_of_other_shapes_are_not_the_same(dataset, shards):
    """``old=`` has to be windows, too, and of one shape; the message says how to make them."""
    windows = dataset.windows(4, by=EPISODES)
    sampler = sampler_of(windows)
    next(iter(sampler))
    state = sampler.state_dict()
    sampler_of(windows).load_state_dict(state, old=dataset.windows(4, by=EPISODES))
    more = wids.ShardListDataset([*shards, {"url": "http://h/new.tar", "nsamples": 9}], prefetch=False)
    later = more.windows(4, by=[*EPISODES, *[3] * 9])
    sampler_of(later).load_state_dict(state, old=windows)
    with pytest.raises(InputError, match=r"unseen\(\) is of samples, and old= of windows"):
        more.unseen(state, old=windows)
    for old in (dataset.windows(3, by=EPISODES), dataset, shards):
        with pytest.raises((InputError, StateError)):
            sampler_of(later).load_state_dict(state, old=old)


def test_streams_are_each_window_s_own(shards):
    """Streams, and files of members, are read in each window from their beginning, also where samples repeat."""
    for transformations in ([], [wids.lazy(".txt")]):
        dataset = wids.ShardListDataset(shards, fields=(".txt",), transformations=transformations)
        windows = dataset.windows(3, pad="repeat", by=EPISODES)
        windows.add_transform(lambda window: [file.read() for file in window[".txt"]])
        expected = [
            [b"text %d" % min(k + o, e) for o in range(3)] for k, e in ((6, 8), (7, 8), (8, 8), (7, 8), (9, 10))
        ]
        assert windows.__getitems__([6, 7, 8, 7, 9]) == expected


def test_streams_that_read_others_are_refused(shards):
    """Several windows would read in turn what they share; a function of windows makes one for each."""
    for wrap in (io.TextIOWrapper, io.BufferedReader, lambda stream: gzip.GzipFile(fileobj=stream)):
        dataset = wids.ShardListDataset(shards, transformations=lambda s, wrap=wrap: {**s, "text": wrap(s[".txt"])})
        windows = dataset.windows(3)
        assert len(windows[0]["text"]) == 3
        with pytest.raises(InputError, match=r"'text' is a .*, from which several windows") as caught:
            windows.__getitems__([0, 1])
        assert "sample 1, key" in caught.value.__notes__[0]


class Summed(wids.ShardListDataset):
    """A dataset with its own way to read several samples, which needs two fields of each."""

    def __getitems__(self, indices):
        """Samples with another field."""
        return [{**sample, "sum": sample[".cls"] + len(sample[".txt"])} for sample in super().__getitems__(indices)]


def test_a_subclass_reads_whole_samples(shards):
    """Where a class reads several samples in its own way, they are not read in part."""
    dataset = Summed(shards, transformations="numpy")
    window = dataset.windows(offsets={".cls": [0, 1], "sum": [0, 2]}, by=EPISODES)[1]
    assert (window[".cls"], window["sum"]) == ([1, 2], [7, 9])


def test_a_sample_that_is_replaced_is_so_in_all_windows(tmp_path):
    """Where samples are substituted, none is read in part: what a window has does not depend on its batch."""
    members = [
        (f"{k}.{name}", b"x" if (k, name) == (2, "cls") else b"%d" % k) for k in range(6) for name in ("cls", "txt")
    ]
    dataset = wids.ShardListDataset(
        [(write_tar(tmp_path / "a.tar", members), 6)], on_error="substitute", max_errors=1.0, transformations="numpy"
    )
    windows = dataset.windows(offsets={".cls": [0], ".txt": [0, 1]})
    alone, together = windows[1], windows.__getitems__([1, 2])
    assert alone == together[0]
    assert alone[".txt"][1] == together[1][".txt"][0] != "2"
    assert together[1]["__substitute_for__"] == 2
