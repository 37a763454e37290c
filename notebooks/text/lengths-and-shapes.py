# %% [markdown]
# # Batches of like length and shape
#
# Texts differ in length and pictures in shape. Batches of any neighbours are then half padding, and the ranks of a job wait at every
# step for the one with the longest. `wids.BucketBatchSampler` makes batches of like length within a budget of tokens, or of one shape:
# as many on every rank, of like cost at every step, and resumable with any number of ranks. `wids.PackSampler` lays texts end to end
# instead, for models that take sequences of one length.
#
# Takes half a minute on a laptop without a GPU. The texts and pictures are made here; for your own data set the URLs of their indexes.

# %% tags=["parameters"]
texts_url = None  # index of texts whose .json says "tokens"; None: texts of 3 to 2,000 words, made here
photos_url = None  # index of pictures whose .json says "width" and "height"; None: parts of two photographs
world_size = 4
resume_world_size = 3
max_tokens = 4096  # of a rank's batch, with its padding
pack_tokens = 2048  # of a pack
broken_at = 0.5  # the part of an epoch after which it is ended, to be resumed
workers = 2

# %%
import io
import itertools
import json
import sys
import zlib

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Image as Shown
from matplotlib.colors import ListedColormap
from PIL import Image, ImageDraw
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader

import wids

python = sys.executable
work_dir, cache_dir = bucket.temporary("work"), bucket.temporary("cache")
rng = np.random.default_rng(0)


def write_texts(count=8000, shard=1000):
    """Texts of lognormal lengths, with their numbers of words in a JSON member."""
    words = np.array(["a", "few", "words", "that", "stand", "for", "tokens"])
    sizes = np.exp(rng.normal(np.log(80), 1, count)).astype(int).clip(3, 2000)
    with wids.ShardWriter(f"{work_dir}/texts-%02d.tar", samples=shard) as writer:
        for k, size in enumerate(sizes.tolist()):
            text = " ".join(rng.choice(words, size))
            writer.write({"__key__": f"{k:05d}", "txt": text, "json": {"tokens": size}})
    return writer.index


def write_photos(count=600, shard=100):
    """Parts of two photographs, in five shapes, some of them more often than others."""
    sources = [Image.fromarray(image) for image in load_sample_images().images]
    shapes = [(64, 64), (78, 52), (52, 78), (84, 48), (48, 84)]
    with wids.ShardWriter(f"{work_dir}/photos-%02d.tar", samples=shard) as writer:
        for k in range(count):
            source = sources[k % 2]
            width, height = shapes[rng.choice(5, p=[0.35, 0.3, 0.15, 0.15, 0.05])]
            zoom = rng.uniform(1.5, 5)
            left = rng.integers(0, source.width - zoom * width)
            top = rng.integers(0, source.height - zoom * height)
            part = source.crop((left, top, left + zoom * width, top + zoom * height)).resize((width, height))
            jpeg = io.BytesIO()
            part.save(jpeg, "jpeg")
            writer.write({"__key__": f"{k:04d}", "jpg": jpeg.getvalue(), "json": {"width": width, "height": height}})
    return writer.index


texts_url = texts_url or write_texts()
photos_url = photos_url or write_photos()

# %% [markdown]
# ## The lengths
#
# Batches are planned from the lengths alone; no sample is read for it. They may be an array with a number for each sample, or a column of a
# table beside the index, which this command writes:

# %%
texts_columns, photos_columns = f"{work_dir}/texts.columns.parquet", f"{work_dir}/photos.columns.parquet"
# !{python} -m wids.tools.cli columns create {texts_url} --json .json:tokens -o {texts_columns} 2>&1 | tail -1
# !{python} -m wids.tools.cli columns create {photos_url} --json .json:width,height -o {photos_columns} 2>&1 | tail -1
texts = wids.ShardListDataset(texts_url, cache_dir=cache_dir).with_columns(fields=False, place=texts_columns)
lengths = np.asarray(texts.read_column("tokens"))
mean = lengths.mean()
print(f"{len(texts):,} texts, median {np.median(lengths):.0f} tokens, mean {mean:.0f}, longest {lengths.max():,}")

# %% [markdown]
# ## Padding, before and after
#
# Before: a fixed number of neighbours in each batch, as many as fill the budget with their own tokens, on average. After: any number of texts of like length, whose
# padded batch costs at most the budget. A rank reads the same shards either way.


# %%
def plain_batches(rank, world):
    sampler = wids.DistributedChunkedSampler(texts, num_replicas=world, rank=rank)
    order, size = list(sampler), int(max_tokens / mean)
    return [order[at : at + size] for at in range(0, len(order), size)]


def make_batches(rank, world):
    sampler = wids.DistributedChunkedSampler(texts, num_replicas=world, rank=rank)
    return wids.BucketBatchSampler(sampler, lengths="tokens", max_tokens=max_tokens)


before = [plain_batches(rank, world_size) for rank in range(world_size)]
after = [list(make_batches(rank, world_size)) for rank in range(world_size)]


def costs(ranks):
    """Padded tokens of each batch: (ranks, steps)."""
    return np.array([[lengths[batch].max() * len(batch) for batch in batches] for batches in ranks])


def facts(ranks):
    own, cost = sum(lengths[batch].sum() for batches in ranks for batch in batches), costs(ranks)
    return {
        "batches of each rank": " ".join(str(len(batches)) for batches in ranks),
        "padded / own tokens": round(float(cost.sum() / own), 3),
        "costliest rank of a step / mean": round(float((cost.max(axis=0) / cost.mean(axis=0)).mean()), 3),
        "largest batch / budget": round(float(cost.max() / max_tokens), 2),
        "mean batch / budget": round(float(cost.mean() / max_tokens), 2),
    }


table = pd.DataFrame([facts(before), facts(after)], index=["neighbours", "like lengths"])

VERMILLION, COLOURS = "#D55E00", ListedColormap(["#D9D9D9", "#0072B2"])  # padding, tokens
fig, axes = plt.subplots(2, 6, figsize=(10.5, 5.2), dpi=80, constrained_layout=True)
for row, (title, ranks) in zip(axes, [("neighbours", before), ("like lengths", after)], strict=True):
    for ax, batch in zip(row, ranks[0][4:10], strict=True):
        sizes = np.sort(lengths[batch])[::-1]
        is_token = np.arange(sizes.max()) < sizes[:, None]
        ax.imshow(is_token, aspect="auto", cmap=COLOURS, interpolation="nearest")
        padded = len(sizes) * sizes.max()
        ax.set_title(f"{padded:,} padded\n{1 - sizes.sum() / padded:.0%} of it padding", fontsize=9)
        ax.set_xticks([0, sizes.max()], [0, sizes.max()])
        ax.set_yticks([len(sizes) - 0.5], [len(sizes)])
        ax.tick_params(labelsize=8)
    row[0].set_ylabel(f"{title}\n\ntexts of a batch")
axes[1][0].set_xlabel("tokens")
fig.suptitle("Six batches of rank 0 (tokens blue, padding grey), each in a box of its own size", fontsize=11)
plt.show()
table

# %% [markdown]
# ## Each step on each rank
#
# A step takes as long as its costliest batch: the line above each plot. All that lies between it and a rank's own dots is waiting.

# %%
fig, axes = plt.subplots(2, 1, figsize=(10.5, 5.6), dpi=80, constrained_layout=True)
for ax, (title, ranks) in zip(axes, [("neighbours", before), ("like lengths", after)], strict=True):
    cost = costs(ranks)
    steps = np.arange(cost.shape[1])
    ax.step(steps, cost.max(axis=0), where="mid", color=VERMILLION, lw=1)
    ax.fill_between(steps, cost.mean(axis=0), cost.max(axis=0), step="mid", color=VERMILLION, alpha=0.2, lw=0)
    for rank, each in enumerate(cost):
        ax.plot(steps, each, ".", ms=4, color=f"C{rank}", label=f"rank {rank}")
    ax.axhline(max_tokens, color="black", lw=0.8, ls=":")
    waiting = 1 - cost.mean() / cost.max(axis=0).mean()
    ax.set_title(f"{title}: ranks wait for {waiting:.0%} of the time", loc="left", fontsize=11, fontweight="bold")
    ax.set_ylim(0)
    ax.set_ylabel("padded tokens")
    ax.spines[["top", "right"]].set_visible(False)
axes[0].text(0, max_tokens, "budget ", va="bottom", ha="right", fontsize=8)
axes[1].legend(ncol=world_size, loc="lower left", fontsize=8)
axes[1].set_xlabel("step")
plt.show()

# %% [markdown]
# ## One shape in each batch
#
# Pictures go into a batch as they are if all of it have one shape. `buckets` is a word or a number for each sample, here the shape;
# `batch_size` is a number, or a dict of them by bucket: more of the small ones.

# %%
photos = wids.ShardListDataset(photos_url, cache_dir=cache_dir).with_columns(fields=False, place=photos_columns)
shapes = [f"{w} x {h}" for w, h in zip(photos.read_column("width"), photos.read_column("height"), strict=True)]
sizes = {shape: 12 if shape == "64 x 64" else 10 for shape in set(shapes)}
sampler = wids.DistributedChunkedSampler(photos, num_replicas=1, rank=0)
by_shape = wids.BucketBatchSampler(sampler, buckets=shapes, batch_size=sizes)


def stack(samples):
    return torch.stack([torch.tensor(np.asarray(sample[".jpg"])) for sample in samples])


shown = list(itertools.islice(DataLoader(photos, batch_sampler=by_shape, collate_fn=stack), 6))
canvas = Image.new("RGB", (980, sum(batch.shape[1] + 24 for batch in shown)), "white")
draw, top = ImageDraw.Draw(canvas), 0
for batch in shown:
    count, height, width, _ = batch.shape
    draw.text((0, top + 4), f"{count} of {width} x {height}", fill="black", font_size=13)
    for k, picture in enumerate(batch.numpy()):
        canvas.paste(Image.fromarray(picture), (k * (width + 4), top + 22))
    top += height + 24
file = io.BytesIO()
canvas.save(file, "jpeg", quality=50)
Shown(file.getvalue())

# %% [markdown]
# ## A resume in the middle
#
# `wids.resumable` counts the batches that the loop has received, so that its state says where the loop is, whatever the workers have drawn ahead.
# Here some ranks train for a part of an epoch and save; then another number of ranks goes on.


# %%
def pad(samples):
    rows = [torch.ones(len(sample[".txt"].split()), dtype=torch.long) for sample in samples]
    return [sample["__index__"] for sample in samples], torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def make_loader(rank, world):
    loader = DataLoader(texts, batch_sampler=make_batches(rank, world), num_workers=workers, collate_fn=pad)
    return wids.resumable(loader)


def train(loader, most=None):
    """The samples and the padded tokens of each batch, up to ``most``."""
    found = []
    for indices, tokens in loader:
        found.append((indices, tokens.numel()))
        if len(found) == most:
            break
    return found


stop = int(len(after[0]) * broken_at)
loaders = [make_loader(rank, world_size) for rank in range(world_size)]
first = [train(loader, stop) for loader in loaders]
states = [loader.state_dict() for loader in loaders]
saved = json.dumps(states[0])
print(f"after {stop} steps, the same on every rank: {all(state == states[0] for state in states)}, {len(saved)} bytes")

rest = []
for rank in range(resume_world_size):
    loader = make_loader(rank, resume_world_size)
    loader.load_state_dict(json.loads(saved))
    rest.append(train(loader))

all_batches = [batch for ranks in (first, rest) for batches in ranks for batch in batches]
read = np.bincount([i for batch, _ in all_batches for i in batch], minlength=len(texts))
largest = max(tokens for _, tokens in all_batches)
pd.DataFrame(
    {
        "ranks": [world_size, resume_world_size],
        "steps": [stop, len(rest[0])],
        "texts": [sum(len(batch) for batches in ranks for batch, _ in batches) for ranks in (first, rest)],
    },
    index=["before", "resumed"],
)

# %% [markdown]
# Together they have read the epoch. Batches come twice only where the ranks do not divide what is left, to give each as many.

# %%
twice = len(rest[0]) * resume_world_size - (len(after[0]) - stop) * world_size
print(f"lost: {(read == 0).sum()}, read twice: {(read > 1).sum()}, in {twice} batches")
print(f"costliest batch: {largest:,} of {max_tokens:,} tokens")

# %% [markdown]
# ## Packs
#
# Texts are laid end to end and cut where a pack is full (`cut=True`), or stay whole and are chosen such that packs are full
# (`cut=False`). `wids.pack_collate` makes the tensors; its `doc_ids` say which text each token is of.

# %%
numbered = texts.add_transform(
    lambda sample: {**sample, "ids": [zlib.crc32(word.encode()) % 50_000 for word in sample[".txt"].split()]}
)
collate = wids.pack_collate("ids", pack_tokens=pack_tokens)


def collate_texts(samples):
    """The text of each token, -1 where there is none: (packs, pack_tokens)."""
    doc_ids = collate(samples)["doc_ids"].numpy()
    return np.append([sample["__index__"] for sample in samples], -1)[doc_ids]


def read_packs(cut):
    """An epoch of each rank: (packs, pack_tokens)."""
    ranks = []
    for rank in range(world_size):
        sampler = wids.DistributedChunkedSampler(numbered, num_replicas=world_size, rank=rank)
        packs = wids.PackSampler(sampler, lengths="tokens", pack_tokens=pack_tokens, cut=cut)
        loader = DataLoader(numbered, batch_sampler=packs, num_workers=workers, collate_fn=collate_texts)
        ranks.append(np.concatenate(list(loader)))
    return ranks


cut, whole = read_packs(cut=True), read_packs(cut=False)


def describe(ranks):
    room = np.concatenate(ranks)
    pieces = sum(len(np.unique(row[row >= 0])) for row in room)
    return {
        "packs of each rank": " ".join(str(len(packs)) for packs in ranks),
        "room that is empty": f"{(room < 0).mean():.1%}",
        "texts cut": f"{pieces - len(texts)}",
        "tokens": int((room >= 0).sum()),
    }


padded = [lengths[batch].max() * len(batch) for ranks in before for batch in ranks]
neighbours = before[0][4]
width = int(lengths[neighbours].max())
plain = np.where(np.arange(width) < lengths[neighbours][:, None], np.array(neighbours)[:, None], -1)
panels = [
    (f"a text in each row: {1 - lengths.sum() / sum(padded):.0%} empty", plain),
    (f"cut=False: {describe(whole)['room that is empty']} empty", whole[0][:20]),
    (f"cut=True: {describe(cut)['room that is empty']} empty", cut[0][:20]),
]
colours = ListedColormap(["#E9E9E9", *(colour for colour in plt.colormaps["tab20"].colors if len(set(colour)) > 1)])
fig, axes = plt.subplots(1, 3, figsize=(10.5, 4), dpi=72, constrained_layout=True)
for ax, (title, rows) in zip(axes, panels, strict=True):
    shades = np.where(rows < 0, 0, 1 + rows % (colours.N - 1))
    ax.imshow(shades, aspect="auto", cmap=colours, vmin=0, vmax=colours.N - 1, interpolation="nearest")
    ax.set_title(title, fontsize=11)
    ax.set_xticks([0, rows.shape[1]], [0, rows.shape[1]])
    ax.set_yticks(np.arange(len(rows) + 1) - 0.5, [""] * (len(rows) + 1))
    ax.grid(axis="y", color="white", lw=1.5)
    ax.tick_params(length=0, labelsize=8)
axes[0].set_ylabel("a batch of neighbours")
axes[1].set_ylabel("packs of rank 0, one a step")
axes[1].set_xlabel("tokens; a colour is a text, grey is empty")
plt.show()
packed_table = pd.DataFrame([describe(whole), describe(cut)], index=["cut=False", "cut=True"])
packed_table

# %% [markdown]
# Each token of the epoch came once. A text that is cut goes on in the next pack, in the same colour. A state is exact within it, on any number of
# ranks: [the guide](../.docs/guides/packs.md).

# %% [markdown]
# ## Coming from another sampler
#
# | there | here |
# |---|---|
# | Lhotse: `DynamicBucketingSampler(cuts, max_duration=600, num_buckets=30)` | `BucketBatchSampler(sampler, lengths="duration", max_tokens=600)`; there is no number of buckets to choose |
# | Lhotse: `quadratic_duration=15` | `lengths=d + d**2 / 15`, for an array `d` |
# | Hugging Face: `train_sampling_strategy="group_by_length"`, `length_column_name="length"` | `BucketBatchSampler(sampler, lengths="length", max_tokens=...)`, or `batch_size=` for a number of samples |
# | fairseq: `--max-tokens 4096 --max-sentences 64` | `max_tokens=4096, batch_size=64` |
# | packed attention, a batch costs the sum of its lengths | `cost="sum"` |
# | TRL: `packing=True, max_length=8192`; torchtune: `packed=True`; axolotl: `sample_packing: true` | `PackSampler(sampler, lengths=..., pack_tokens=8192, cut=False)` |
# | TRL: `packing_strategy="wrapped"`; Megatron: `GPTDataset`; LanceDB: `pack_sequences=8192` | `PackSampler(sampler, lengths=..., pack_tokens=8192)` |
# | aspect buckets (kohya's `enable_bucket`, NovelAI's) | resize to the nearest shape in a transform; `buckets=` that shape, `batch_size=` a number or a dict |
