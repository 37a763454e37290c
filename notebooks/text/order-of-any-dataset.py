# %% [markdown]
# # An exact order for Arrow, Parquet row groups, Lance, memmap
#
# `DistributedChunkedSampler` and `wids.resumable` take any map-style `Dataset`; no tar is needed. This notebook stores the same
# 40,000 rows as an array of a file, as Arrow, as Parquet and, where it is installed, as Lance. It stops an epoch on 4 ranks
# and resumes it on 3: each row comes once. Then it counts the row groups that Parquet reads, with `lengths=` and without.
#
# Takes 20 seconds on a laptop without a GPU. For your own data, set `parquet_file` and `column`.

# %% tags=["parameters"]
parquet_file = None  # a Parquet file; None: 40,000 numbers in 80 row groups, written here
column = "x"
saved_on, resumed_on = 4, 3  # ranks
batch_size = 32
window = 4

# %%
import collections
import importlib.util
import itertools
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import wids

folder = tempfile.TemporaryDirectory()
if parquet_file is None:
    parquet_file = f"{folder.name}/rows.parquet"
    pq.write_table(pa.table({column: np.arange(40_000)}), parquet_file, row_group_size=500)
table = pq.read_table(parquet_file, columns=[column])

# %% [markdown]
# ## Four datasets
#
# Each is a class of a few lines, with a length and `dataset[i]`. That of Parquet keeps the row groups that it read last: one more
# than the sampler's window, as each worker of a loader would.


# %%
class ArrowRows(Dataset):
    """Rows of a mapped Arrow file."""

    def __init__(self, path):
        self.column = pa.ipc.open_file(pa.memory_map(path)).read_all().column(column)

    def __len__(self):
        return len(self.column)

    def __getitem__(self, index):
        return self.column[index].as_py()


class ParquetRows(Dataset):
    """Rows of a Parquet file, by row groups, of which it counts those that it reads."""

    def __init__(self, path):
        self.file = pq.ParquetFile(path)
        groups = range(self.file.num_row_groups)
        self.groups = [self.file.metadata.row_group(k).num_rows for k in groups]
        self.ends, self.kept, self.reads = np.cumsum(self.groups), {}, 0

    def __len__(self):
        return int(self.ends[-1])

    def __getitem__(self, index):
        group = int(np.searchsorted(self.ends, index, side="right"))
        rows = self.kept.pop(group, None)
        if rows is None:
            self.reads += 1
            rows = self.file.read_row_group(group, columns=[column]).column(0)
        self.kept[group] = rows
        if len(self.kept) > window + 1:
            del self.kept[next(iter(self.kept))]
        return rows[index - (int(self.ends[group]) - self.groups[group])].as_py()


class LanceRows(Dataset):
    """Rows of a Lance dataset."""

    def __init__(self, path):
        import lance

        self.rows = lance.dataset(path)
        self.fragments = [fragment.count_rows() for fragment in self.rows.get_fragments()]

    def __len__(self):
        return sum(self.fragments)

    def __getitem__(self, index):
        return self.rows.take([index], columns=[column]).column(0)[0].as_py()

    def __getitems__(self, indices):
        return self.rows.take(indices, columns=[column]).column(0).to_pylist()


values = table.column(0).to_numpy()
np.save(f"{folder.name}/rows.npy", values)
with pa.OSFile(f"{folder.name}/rows.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
    writer.write_table(table, max_chunksize=500)
parquet = ParquetRows(parquet_file)
datasets = {
    "memmap": (np.load(f"{folder.name}/rows.npy", mmap_mode="r"), None),
    "Arrow": (ArrowRows(f"{folder.name}/rows.arrow"), None),
    "Parquet": (parquet, parquet.groups),
}
if importlib.util.find_spec("lance"):
    import lance

    lance.write_dataset(table, f"{folder.name}/rows.lance", max_rows_per_file=500)
    rows = LanceRows(f"{folder.name}/rows.lance")
    datasets["Lance"] = (rows, rows.fragments)
n = len(parquet)

# %% [markdown]
# ## Stopped on some ranks, resumed on others
#
# Each rank reads a third of its epoch. The state is the same on every rank, and small; any number of ranks loads it. The last
# ranks repeat a row where their number does not divide what is left, so that all have equally many.


# %%
def loaders(dataset, world, lengths):
    """The loaders of all ranks."""
    for rank in range(world):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, window=window, lengths=lengths)
        yield wids.resumable(DataLoader(dataset, batch_size=batch_size, sampler=sampler))


results = []
for name, (dataset, lengths) in datasets.items():
    seen, states = collections.Counter(), []
    for loader in loaders(dataset, saved_on, lengths):
        for batch in itertools.islice(loader, len(loader) // 3):
            seen.update(batch.tolist())
        states.append(loader.state_dict())
    before = sum(seen.values())
    for loader in loaders(dataset, resumed_on, lengths):
        loader.load_state_dict(states[0])
        for batch in loader:
            seen.update(batch.tolist())
    results.append(
        {
            "dataset": name,
            f"rows before, {saved_on} ranks": before,
            f"rows after, {resumed_on} ranks": sum(seen.values()) - before,
            "rows seen": len(seen),
            "repeated at the end": sum(seen.values()) - len(seen),
            "states differ": any(state != states[0] for state in states),
        }
    )
pd.DataFrame(results).set_index("dataset")

# %% [markdown]
# ## What `lengths=` is for
#
# A row of Parquet costs its whole row group. With `lengths=`, the sampler takes row groups for shards: a rank mixes `window` of
# them at a time, and is done with one before the next comes in. Without, its chunks are of 10,000
# rows, whatever these are stored in. torch's `DistributedSampler` draws from all of them.


# %%
def count_reads(make_sampler, world=4):
    """Row groups that all ranks read in an epoch."""
    total = 0
    for rank in range(world):
        own = ParquetRows(parquet_file)
        for index in make_sampler(own, rank, world):
            own[index]
        total += own.reads
    return total


reads = {
    "lengths=": count_reads(
        lambda own, rank, world: wids.DistributedChunkedSampler(
            own, num_replicas=world, rank=rank, window=window, lengths=own.groups
        )
    ),
    "without": count_reads(
        lambda own, rank, world: wids.DistributedChunkedSampler(own, num_replicas=world, rank=rank, window=window)
    ),
    "DistributedSampler": count_reads(lambda own, rank, world: DistributedSampler(own, num_replicas=world, rank=rank)),
}
groups = len(parquet.groups)
reads

# %%
figure, axes = plt.subplots(figsize=(7, 2.2))
bars = axes.barh(list(reads), list(reads.values()), color=["#2a7", "#888", "#c66"])
axes.bar_label(bars, padding=3, fmt="{:,.0f}")
axes.set(xscale="log", xlim=(1, 2 * max(reads.values())))
axes.set_xlabel(f"row groups read by 4 ranks in an epoch; there are {groups}")
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# `lengths=` takes the numbers of rows of whatever is read as a whole: record batches of Arrow, fragments of Lance, episodes of a
# robot. Batches of like length (`BucketBatchSampler`), weights and epochs without an end work on these datasets as on shards.
