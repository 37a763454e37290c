# %% [markdown]
# # Equal batches, shown
#
# DDP waits for every rank at every step: a rank that has one batch less than the others hangs the job. This notebook puts the
# same odd dataset (11 shards of 7 to 160 samples, 829 in all, a prime number) through three ways of sharing it out: shards
# dealt to ranks and workers, as webdataset does; torch's `DistributedSampler`; and `wids.DistributedChunkedSampler`. All
# orders are counted, not estimated, and shards are really opened and fetched. The first picture is the whole story.
#
# Takes 10 seconds on a laptop without a GPU. For your own data, set `train_url` (every sample of it is read, often).

# %% tags=["parameters"]
train_url = None  # URL of an index; None: a small odd dataset, written and served here
world_size = 4  # in the first picture
world_sizes = [2, 3, 4, 8]  # in the others
batch_size = 16  # of a rank
workers = 2  # DataLoader workers of a rank, where shards are dealt to workers
passes = 12

# %%
import collections
import io
import itertools
import json
import math
import subprocess
import sys
import tarfile

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch, Rectangle
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import wids
from wids.events import Fetched, Opened

LENGTHS = [97, 13, 160, 41, 7, 128, 73, 19, 151, 59, 81]


def write_odd(directory):
    """Shards of unequal sizes, with an index."""
    start = 0
    for number, length in enumerate(LENGTHS):
        with tarfile.open(f"{directory}/train-{number:02d}.tar", "w") as tar:
            for i in range(start, start + length):
                data = str(i).encode()
                member = tarfile.TarInfo(f"{i:04d}.txt")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        start += length
    shards = [{"url": f"train-{number:02d}.tar", "nsamples": length} for number, length in enumerate(LENGTHS)]
    with open(f"{directory}/train.json", "w") as file:
        json.dump({"wids_version": 1, "shardlist": shards}, file)


if train_url is None:
    odd = bucket.Bucket()
    write_odd(odd.directory)
    train_url = odd.train

dataset = wids.ShardListDataset(train_url, cache_dir=bucket.temporary("cache"))
lengths = dataset.lengths
ends = np.cumsum(lengths)
starts = ends - lengths
shard_of = np.repeat(np.arange(len(lengths)), lengths)  # sample -> its shard
count = len(dataset)
world_sizes = sorted({world_size, *world_sizes})
if world_sizes[-1] > len(lengths):
    raise ValueError(f"world_sizes: of {len(lengths)} shards, {world_sizes[-1]} ranks would not be dealt one each")
print(f"{len(lengths)} shards, {count:,} samples")
pd.DataFrame({"samples": lengths}, index=[f"shard {k}" for k in range(len(lengths))]).T

# %% [markdown]
# ## Three ways
#
# **Shards dealt** (webdataset's `split_by_node`, `split_by_worker`, `shardshuffle`, `batched`): the list of shards is dealt to the
# ranks, each rank's part to its workers, each worker mixes its shards and batches them by itself, and a DataLoader takes a
# batch of each worker in turn. These rules determine the samples of each rank, so they are simulated here in a few lines; the
# shuffle buffer, which mixes the samples of a worker and changes no count, is left out. webdataset 1.0.2 itself gives each rank the same
# numbers of batches as in the table below.


# %%
def dealt_batches(rank, world, turn):
    """One pass of a rank's loader."""
    mine = np.arange(len(lengths))[rank::world]
    streams = []
    for worker in range(workers):
        shards = np.random.default_rng([*turn, rank, worker]).permutation(mine[worker::workers])
        samples = [i for shard in shards for i in range(starts[shard], ends[shard])]
        streams.append([samples[at : at + batch_size] for at in range(0, len(samples), batch_size)])
    return [batch for row in itertools.zip_longest(*streams) for batch in row if batch]


# %% [markdown]
# **`DistributedSampler`** deals a permutation of all samples to the ranks. **Ours** gives each rank a near-equal stretch of
# neighbouring samples (a *lane*), across shard boundaries. Both run as they are, under a DataLoader that reads real samples
# of real shards. Each rank has a cache of its own here, as if it were on a machine of its own, and a hook that notes which
# shards the dataset opens and fetches.


# %%
def read_rank(make_sampler):
    """(batches of a rank, shards it opened, shards it fetched), by reading them all."""
    events = []
    data = wids.ShardListDataset(train_url, cache_dir=bucket.temporary("cache"), hooks=[events.append])
    data = data.add_transform(lambda sample: sample["__index__"])
    loader = DataLoader(data, batch_size=batch_size, sampler=make_sampler(data))
    batches = [batch.tolist() for batch in loader]
    data.close()
    opened, fetched = ({event.url for event in events if isinstance(event, kind)} for kind in (Opened, Fetched))
    return batches, len(opened), len(fetched)


def run_dealt(rank, world):
    batches = dealt_batches(rank, world, turn=(0,))
    shards = len({shard_of[i] for batch in batches for i in batch})
    return batches, shards, shards


def run_torch(rank, world):
    return read_rank(lambda data: DistributedSampler(data, num_replicas=world, rank=rank))


def run_wids(rank, world):
    return read_rank(lambda data: wids.DistributedChunkedSampler(data, num_replicas=world, rank=rank))


WAYS = {"shards dealt": run_dealt, "DistributedSampler": run_torch, "wids": run_wids}
epochs = {
    (way, world): [run(rank, world) for rank in range(world)] for world in world_sizes for way, run in WAYS.items()
}


def facts(way, world):
    """What all ranks together make of an epoch; they take the steps that every rank has a batch for."""
    ranks = epochs[way, world]
    steps = min(len(batches) for batches, _, _ in ranks)
    seen = collections.Counter(i for batches, _, _ in ranks for batch in batches[:steps] for i in batch)
    return {
        "ranks": world,
        "way": way,
        "batches of each rank": " ".join(str(len(batches)) for batches, _, _ in ranks),
        "steps together": steps,
        "samples not reached": count - len(seen),
        "repeated": seen.total() - len(seen),
        "shards opened by each": " ".join(str(opened) for _, opened, _ in ranks),
        "fetched in all": sum(fetched for _, _, fetched in ranks),
    }


epoch_table = pd.DataFrame([facts(way, world) for world in world_sizes for way in WAYS]).set_index(["ranks", "way"])
epoch_table

# %% [markdown]
# ## One epoch, sample by sample
#
# Every row is a rank, every cell between white lines a batch, every colour a shard; the uppermost row is the dataset itself.
# Gaps are batches that are not full, each worker's last.

# %%
COLOURS = plt.get_cmap("viridis")(np.linspace(0, 1, len(lengths)))
VERMILLION, BLUE, GREY = "#D55E00", "#0072B2", "#8A8A8A"  # Okabe and Ito's, for all eyes
WAY_COLOURS = {"shards dealt": VERMILLION, "DistributedSampler": GREY, "wids": BLUE}


def draw_rank(ax, rank, batches, repeated):
    """A rank's batches as cells, its samples in the colours of their shards."""
    row = np.ones((1, len(batches) * batch_size, 4))
    for step, batch in enumerate(batches):
        at = step * batch_size
        row[0, at : at + len(batch)] = COLOURS[shard_of[batch]]
        for k in range(len(batch)):
            if (step, rank, k) in repeated:
                row[0, at + k] = to_rgba(VERMILLION)
    ax.imshow(row, extent=(0, len(batches), rank + 0.4, rank - 0.4), aspect="auto", interpolation="nearest")
    for step in range(1, len(batches)):
        ax.plot([step, step], [rank - 0.4, rank + 0.4], color="white", lw=1.5)


def repeats(ranks):
    """Places (step, rank, number) of samples that had been there before."""
    seen, found = set(), set()
    for step in range(max(len(batches) for batches, _, _ in ranks)):
        for rank, (batches, _, _) in enumerate(ranks):
            for k, i in enumerate(batches[step] if step < len(batches) else []):
                found |= {(step, rank, k)} if i in seen else set()
                seen.add(i)
    return found


most = max(len(batches) for way in WAYS for batches, _, _ in epochs[way, world_size])
fig, axes = plt.subplots(
    4, 1, figsize=(10.5, 8.4), dpi=90, height_ratios=[0.62, *[world_size] * 3], constrained_layout=True
)
fig.get_layout_engine().set(h_pad=0.09)
top = axes[0]
top.imshow(COLOURS[shard_of][None], extent=(0, count, 1, 0), aspect="auto", interpolation="nearest")
for shard, length in enumerate(lengths):
    if length > count / 60:
        top.text(
            starts[shard] + length / 2, 0.5, str(length), ha="center", va="center", fontsize=9,
            color="white" if shard < len(lengths) * 0.6 else "black",
        )  # fmt: skip
    top.axvline(ends[shard], color="white", lw=1.5)
top.set_yticks([])
top.set_xticks([])
top.set_title(f"The dataset: {len(lengths)} shards, {count:,} samples", loc="left", fontweight="bold", fontsize=11)
TITLES = {
    "shards dealt": "Shards dealt to ranks and workers (as webdataset does)",
    "DistributedSampler": "torch's DistributedSampler",
    "wids": "wids.DistributedChunkedSampler",
}
for ax, way in zip(axes[1:], WAYS, strict=True):
    ranks = epochs[way, world_size]
    known = facts(way, world_size)
    again = repeats(ranks)
    steps = known["steps together"]
    for rank, (batches, opened, _) in enumerate(ranks):
        draw_rank(ax, rank, batches, again)
        ax.text(most + 0.35, rank, f"{len(batches)} batches\n{opened} shards", va="center", fontsize=9)
    longest = max(len(batches) for batches, _, _ in ranks)
    if longest > steps:
        ax.add_patch(Rectangle((steps, -0.5), longest - steps, world_size, color="white", alpha=0.72, lw=0, zorder=3))
        ax.plot([steps, steps], [-0.5, world_size - 0.5], color=VERMILLION, lw=2.5, zorder=4)
        first = min(range(world_size), key=lambda rank: len(ranks[rank][0]))
        ax.text(
            steps + 0.15, first, f"rank {first} has no more:\nthe others wait for ever", color=VERMILLION, fontsize=9.5,
            fontweight="bold", va="center", zorder=5,
        )  # fmt: skip
        verdict = f"hangs after {steps} steps, {known['samples not reached']} of {count} samples not reached"
    else:
        verdict = f"{steps} steps on every rank, every sample read"
        verdict += f", {known['repeated']} of them twice to make the ranks equal (orange)"
    verdict += f"; {known['fetched in all']} downloads"
    ax.set_title(TITLES[way], loc="left", fontweight="bold", color=WAY_COLOURS[way], fontsize=11, pad=21)
    ax.text(0, 1.02, verdict, transform=ax.transAxes, fontsize=9.5, va="bottom")
    ax.set_xlim(0, most)
    ax.set_ylim(world_size - 0.45, -0.55)
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.set_xticks(range(most + 1))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
top.spines[:].set_visible(False)
for ax in axes[1:3]:
    ax.set_xticklabels([])
axes[-1].set_xlabel(f"step (a batch of {batch_size} samples on each rank)")
plt.show()

# %% [markdown]
# ## A fixed number of batches
#
# webdataset's users write `loader.with_epoch(n)`: each rank starts over when its shards are at their end, and stops after `n`
# batches. All ranks take the same number of steps then, but a rank with few samples repeats them, and a rank with many never
# reads the rest. With ours, `epoch_size=` cuts one endless sequence of all samples in pieces: each piece begins where the one
# before it ended. Here `n` is the number of batches in one pass, and there are several passes.


# %%
def fixed_dealt(rank, world, nbatches, epochs):
    for epoch in range(epochs):
        turns = (dealt_batches(rank, world, turn=(epoch, turn)) for turn in itertools.count())
        yield list(itertools.islice(itertools.chain.from_iterable(turns), nbatches))


def in_batches(order):
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]


def fixed_torch(rank, world, _, epochs):  # there is no number to fix: it takes what its epoch comes to
    sampler = DistributedSampler(dataset, num_replicas=world, rank=rank)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield in_batches(list(sampler))


def fixed_wids(rank, world, nbatches, epochs):
    size = nbatches * batch_size * world
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, epoch_size=size)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield in_batches(list(sampler))


FIXED = {"shards dealt": fixed_dealt, "DistributedSampler": fixed_torch, "wids": fixed_wids}
seen = {}  # (way, ranks) -> how often each sample was had by the end of each epoch: (epochs, samples)
rows = []
for world, (way, run) in itertools.product(world_sizes, FIXED.items()):
    nbatches = math.ceil(count / (batch_size * world))
    ranks = [list(run(rank, world, nbatches, passes)) for rank in range(world)]
    numbers = sorted({len(batches) for epochs_of_rank in ranks for batches in epochs_of_rank})
    counts = [
        np.bincount([i for rank in ranks for batch in rank[epoch] for i in batch], minlength=count)
        for epoch in range(passes)
    ]
    first, seen[way, world] = counts[0], np.cumsum(counts, axis=0)
    had = seen[way, world][-1]
    rows.append(
        {
            "ranks": world,
            "way": way,
            "batches of each rank": " or ".join(map(str, numbers)),
            "lost in the first epoch": int((first == 0).sum()),
            "repeated in it": int((first - 1)[first > 1].sum()),
            f"seen least in {passes}": int(had.min()),
            "seen most": int(had.max()),
        }
    )
fixed_table = pd.DataFrame(rows).set_index(["ranks", "way"])
fixed_table

# %% [markdown]
# ## All of it
#
# Above, for each number of ranks: batches of each rank (a dot is a rank), shards that each rank opens, and what a fixed number of
# batches loses and repeats in one epoch (ours repeats a few there, because so many batches are slightly more than one pass;
# these samples belong to the next pass). Below, how often each sample has been seen after several epochs of so many batches.

# %%
fig = plt.figure(figsize=(10.5, 6.4), dpi=80, constrained_layout=True)
grid = fig.add_gridspec(2, 6, height_ratios=[1.15, 1])
batches_ax, shards_ax, lost_ax = (fig.add_subplot(grid[0, 2 * k : 2 * k + 2]) for k in range(3))
OFFSETS = {"shards dealt": -0.26, "DistributedSampler": 0, "wids": 0.26}

for (at, world), way in itertools.product(enumerate(world_sizes), WAYS):
    x, colour, ranks = at + OFFSETS[way], WAY_COLOURS[way], epochs[way, world]
    for ax, values in ((batches_ax, [len(r[0]) for r in ranks]), (shards_ax, [r[1] for r in ranks])):
        ax.plot([x, x], [min(values), max(values)], color=colour, lw=5, alpha=0.3, solid_capstyle="round")
        ax.plot([x] * len(values), values, "o", color=colour, ms=5.5, mew=0.6, mec="white")
    lost, repeated = (fixed_table.loc[world, way][name] for name in ("lost in the first epoch", "repeated in it"))
    lost_ax.bar(x, repeated, 0.24, color=colour)
    lost_ax.bar(x, -lost, 0.24, color="white", edgecolor=colour, hatch="////", lw=1)
    if not lost:
        lost_ax.text(x, -6, "0", ha="center", va="top", color=colour, fontsize=8)

batches_ax.set_title("Batches of each rank\nin one epoch", fontsize=10.5, fontweight="bold")
shards_ax.set_title("Shards opened\nby each rank", fontsize=10.5, fontweight="bold")
lost_ax.set_title("In a fixed number of batches:\nsamples repeated (up), lost (down)", fontsize=10.5, fontweight="bold")
lost_ax.axhline(0, color="black", lw=0.8)
lost_ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0f}")
for ax in (batches_ax, shards_ax):
    ax.set_ylim(0)
shards_ax.axhline(len(lengths), color="black", lw=0.8, ls=":")
shards_ax.text(0.5, len(lengths) + 0.15, "all shards", fontsize=8, va="bottom", ha="center")
shards_ax.set_ylim(0, len(lengths) * 1.15)
for ax in (batches_ax, shards_ax, lost_ax):
    ax.set_xticks(range(len(world_sizes)), world_sizes)
    ax.set_xlabel("ranks")
handles = [Patch(color=WAY_COLOURS[way], label=TITLES[way]) for way in WAYS]
fig.legend(handles=handles, loc="outside lower center", ncol=3, frameon=False)

highest = max(int(seen[way, world_size][-1].max()) for way in WAYS)
for k, way in enumerate(WAYS):
    ax = fig.add_subplot(grid[1, 2 * k : 2 * k + 2], sharey=fig.axes[3] if k else None)
    had = seen[way, world_size][-1]
    words = f"{had.min()} to {had.max()} times" + (f" ({(had == 0).sum()} samples never)" if had.min() == 0 else "")
    ax.bar(*np.unique(had, return_counts=True), width=0.9, color=WAY_COLOURS[way])
    ax.set_xlim(-1, highest + 1)
    ax.set_xlabel(f"times seen in {passes} epochs, {world_size} ranks")
    ax.set_title(words, fontsize=10.5, color=WAY_COLOURS[way], fontweight="bold")
    if k == 0:
        ax.set_ylabel("samples")
for ax in fig.axes:
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# A fixed number of batches makes the ranks equal, but not the samples: those of small shards are seen many times as often as
# those of large ones, for as long as the training goes on. `DistributedSampler` is fair and equal, but every rank opens every
# shard, and returns to each of them again and again. With shards in a bucket, that is the whole dataset on every
# machine.
#
# The same for a job of any size, before it is started: `wids simulate` takes the index and counts.

# %%
command = f"{sys.executable} -m wids.tools.cli simulate {train_url} --shard-size 1MB --batch-size {batch_size}".split()
command += ["--world-size", str(world_size), "--nbatches", str(math.ceil(count / batch_size / world_size))]
said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(said.replace(train_url, "train.json"))
