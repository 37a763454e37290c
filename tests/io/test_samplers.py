"""The order for datasets that are not ours: lists, memory-mapped arrays, Arrow, Parquet, ``datasets``."""

from collections import Counter
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader, Dataset

import wids
from wids.errors import StateError

N = 1007
LENGTHS = [100] * 10 + [7]
WORLDS = [(4, 3), (1, 4), (3, 1), (2, 5), (4, 4)]


class ArrowRows(Dataset):
    """The column of a mapped Arrow file."""

    def __init__(self, path):
        with pa.memory_map(str(path)) as source:
            self.column = pa.ipc.open_file(source).read_all().column("x")

    def __len__(self):
        return len(self.column)

    def __getitem__(self, index):
        return self.column[index].as_py()


class ParquetRows(Dataset):
    """The column of a Parquet file; it keeps the row groups that it read last, and counts what it reads."""

    def __init__(self, path, kept=5):
        self.file, self.kept, self.cache, self.reads = pq.ParquetFile(path), kept, {}, 0
        groups = range(self.file.num_row_groups)
        self.lengths_of_groups = [self.file.metadata.row_group(k).num_rows for k in groups]
        self.ends = np.cumsum(self.lengths_of_groups)

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        group = int(np.searchsorted(self.ends, index, side="right"))
        if group not in self.cache:
            self.reads += 1
            while len(self.cache) >= self.kept:
                del self.cache[next(iter(self.cache))]
            self.cache[group] = self.file.read_row_group(group).column("x").to_pylist()
        self.cache[group] = values = self.cache.pop(group)
        return values[index - int(self.ends[group])]


def make_list(_):
    """A list."""
    return list(range(N))


def make_memmap(folder):
    """An array of a file."""
    np.save(folder / "x.npy", np.arange(N))
    return np.load(folder / "x.npy", mmap_mode="r")


def make_arrow(folder):
    """Rows of an Arrow file."""
    table = pa.table({"x": range(N)})
    with pa.OSFile(str(folder / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return ArrowRows(folder / "x.arrow")


def make_parquet(folder):
    """Rows of a Parquet file."""
    pq.write_table(pa.table({"x": range(N)}), folder / "x.parquet", row_group_size=100)
    return ParquetRows(folder / "x.parquet")


def make_hf(_):
    """A dataset of Hugging Face's ``datasets``."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    return datasets.Dataset.from_dict({"x": list(range(N))})


MAKERS = [make_list, make_memmap, make_arrow, make_parquet, pytest.param(make_hf, marks=pytest.mark.outside)]


def collate(samples):
    """The numbers of a batch."""
    return [int(each["x"] if isinstance(each, dict) else each) for each in samples]


def loaders(dataset, world, **options):
    """The loaders of all ranks."""
    samplers = [wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=k, **options) for k in range(world)]
    return [
        wids.resumable(DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=collate)) for sampler in samplers
    ]


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["plain", "lengths"])
@pytest.mark.parametrize(("saved", "resumed"), WORLDS)
@pytest.mark.parametrize("make", MAKERS)
def test_each_sample_once_on_any_ranks(tmp_path, make, saved, resumed, lengths):
    """An epoch that is saved in its middle and resumed on other ranks has each sample once, but for the tail."""
    dataset = make(tmp_path)
    before, states = Counter(), []
    for loader in loaders(dataset, saved, lengths=lengths):
        for batch in islice(loader, 10):
            before.update(batch)
        states.append(loader.state_dict())
    assert sum(before.values()) == len(before) == 80 * saved
    assert all(state == states[0] for state in states)
    after = Counter()
    for loader in loaders(dataset, resumed, lengths=lengths):
        loader.load_state_dict(states[0])
        for batch in loader:
            after.update(batch)
    assert before.keys() | after.keys() == set(range(N))
    assert sum(before.values()) + sum(after.values()) - N < resumed


def test_lengths_keep_a_rank_in_few_row_groups(tmp_path):
    """Each group is read once, or by the two ranks that share it; without lengths, chunks cut across the groups."""
    dataset, reads = make_parquet(tmp_path), {}
    assert dataset.lengths_of_groups == LENGTHS
    for name, options in {"with": {"lengths": LENGTHS}, "without": {"chunksize": 130}}.items():
        reads[name] = 0
        for rank in range(3):
            own = ParquetRows(tmp_path / "x.parquet", kept=4)
            for index in indices(own, rank, **options):
                assert own[index] == index
            reads[name] += own.reads
    assert reads["with"] <= len(LENGTHS) + 2 < reads["without"]
    chunks = wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=0, lengths=np.array(LENGTHS)).ranges
    ends = {0, 504, *np.cumsum(LENGTHS).tolist()}
    assert all(lo in ends and hi in ends for lo, hi in chunks)


def indices(dataset, rank, **options):
    """The indices of a rank of three."""
    return list(wids.DistributedChunkedSampler(dataset, num_replicas=3, rank=rank, **options))


def test_the_order_is_that_of_shards_of_these_lengths(tmp_path):
    """A dataset with ``lengths`` of its own, and one for which they are given, have one order."""

    class Sharded(list):
        lengths = LENGTHS

    for options in ({}, {"weights": np.arange(N)}, {"num_samples": (30, 900)}, {"shuffle": False}):
        given = indices(list(range(N)), 1, lengths=LENGTHS, **options)
        assert given == indices(Sharded(range(N)), 1, **options)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([1000], r"lengths add up to 1,000 samples, and the dataset has 1,007"),
        ([], r"lengths add up to 0 samples"),
        ([-1, 1008], r"lengths is \[-1, 1008\]; it must be the number of samples in each part"),
        ([503.5, 503.5], r"it must be the number of samples in each part"),
        (1007, r"it must be the number of samples in each part"),
    ],
)
def test_lengths_that_are_wrong(lengths, words):
    """Are an error that says why."""
    with pytest.raises(ValueError, match=words):
        indices(list(range(N)), 0, lengths=lengths)


def test_lengths_and_other_things():
    """A mixture has no lengths; a state of other lengths is refused."""
    mixture = wids.mix({"a": (list(range(10)), 1.0), "b": (list(range(10)), 1.0)})
    with pytest.raises(ValueError, match="lengths are of the parts of one dataset"):
        indices(mixture, 0, lengths=[20])
    state = wids.DistributedChunkedSampler(list(range(N)), num_replicas=1, rank=0, lengths=LENGTHS).state_dict()
    with pytest.raises(StateError):
        wids.DistributedChunkedSampler(list(range(N)), num_replicas=1, rank=0).load_state_dict(state)
