# %% [markdown]
# # Coming from webdataset
#
# The same shards, a training program written for `webdataset`, and the same program with `wids`, piece by piece: what
# replaces `WebDataset`, `shuffle`, `decode`, `to_tuple`, `batched`, `split_by_node`, `resampled`, `with_epoch` and
# `WebLoader`, and the differences. It ends with the samples that each rank reads with either.
#
# Takes 15 seconds on a laptop without a GPU. For your own data, set `shards` (and `cache_dir`, which is then worth keeping).

# %% tags=["parameters"]
shards = None  # pattern of URLs of tars with .jpg and .cls; None: scikit-learn's digits, served from this machine
cache_dir = None  # None: a temporary one
world_size = 2
num_workers = 0  # of a DataLoader; more when decoding is what takes the time
batch_size = 32
epochs = 5

# %%
import os
import sys

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import wids

torch.manual_seed(0)
if shards is None:
    digits = bucket.digits()
    shards = f"{digits.url}/train-{{000000..000008}}.tar"
if cache_dir is None:
    cache_dir = bucket.temporary("cache")
work_dir = bucket.temporary("work")
python = sys.executable
os.environ["FORCE_COLOR"] = ""  # commands below: without progress bars

# %% [markdown]
# ## The program as it was
#
# This is webdataset 1.0 (it is not needed here, so this is text). Each of `world_size` ranks runs it:
#
# ```python
# import torch
# import webdataset as wds
#
# shards = "http://.../train-{000000..000008}.tar"
#
#
# def to_tensor(image):
#     pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
#     return pixels.view(1, image.height, image.width).float() / 255
#
#
# dataset = (
#     wds.WebDataset(shards, shardshuffle=100, nodesplitter=wds.split_by_node, cache_dir="./_cache")
#     .shuffle(1000)
#     .decode("pill")
#     .to_tuple("jpg", "cls")
#     .map_tuple(to_tensor, lambda label: label)
#     .batched(32)
# )
# loader = wds.WebLoader(dataset, batch_size=None, num_workers=2)
# loader = loader.unbatched().shuffle(1000).batched(32)  # mix what the workers read
# loader = loader.with_epoch(1347 // (32 * world_size))  # the same number of steps on all ranks
#
# for epoch in range(5):
#     for images, labels in loader:
#         train_step(images, labels)
# ```
#
# ## The index
#
# webdataset reads tars from front to back and does not know how many samples are in them. Random access, `len()` and equal
# ranks need that number, so there is an index, made once. The tars are neither changed nor moved. Of remote tars with large
# members only the headers are read; tars with small members are read as a whole, which is faster. Local tars need no index:
# `wids.ShardListDataset("train-{000000..000008}.tar")`.

# %%
# !cd {work_dir} && {python} -m wids.cli index create '{shards}' -o train.json

# %% [markdown]
# ## The program as it is now
#
# One dataset with `len()` and `[i]`, a sampler, and torch's own `DataLoader`. The stages of the pipeline between `decode` and
# `batched` become one function of a sample.


# %%
def make_sample(sample):  # .decode("pill").to_tuple("jpg", "cls").map_tuple(...)
    image = sample[".jpg"]
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(1, image.height, image.width).float() / 255, sample[".cls"]


dataset = wids.ShardListDataset(f"{work_dir}/train.json", cache_dir=cache_dir).add_transform(make_sample)
sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0)  # under torchrun, without these two
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=num_workers)

print(f"{len(dataset):,} samples in {len(dataset.shards)} shards, {len(loader)} batches in an epoch")

# %% [markdown]
# The training loop does not change, except for `set_epoch`, which chooses the order of the epoch (without it, each iteration
# takes the next epoch).

# %%
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 5, stride=2), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.LazyLinear(10),
)  # fmt: skip
model(dataset[0][0][None])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for epoch in range(epochs):
    sampler.set_epoch(epoch)
    right = seen = 0
    for images, labels in loader:
        predicted = model(images)
        loss = torch.nn.functional.cross_entropy(predicted, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (predicted.argmax(1) == labels).sum().item()
        seen += len(labels)
    print(f"epoch {epoch}: {seen:,} samples, training accuracy {right / seen:.1%}")

# %% [markdown]
# ## What replaces what
#
# | webdataset | wids |
# |---|---|
# | `WebDataset("...{000000..000008}.tar")` | `ShardListDataset("train.json")`; local tars also by their pattern |
# | `pipe:curl -s ...`, `pipe:gsutil cat ...`, `pipe:aws s3 cp ...` | the plain URL: `https://`, `gs://`, `s3://`, `hf://` |
# | `cache_dir=`, `cache_size=` | the same names; shared by all workers, ranks and jobs of a machine, and the limit holds |
# | `.decode("pill")` | the default; `transformations="numpy"`, `"torch"`, `"raw"` for others |
# | `.decode()` of some fields only | `fields=(".jpg", ".cls")`: no other member is read |
# | `.to_tuple("jpg", "cls")`, `.map_tuple`, `.map_dict`, `.rename` | one function of the sample, with `add_transform`; keys keep their dot: `".jpg"` |
# | `.select(predicate)` | `torch.utils.data.Subset(dataset, indices)`; the samplers find the shards in it |
# | `shardshuffle=`, `.shuffle(1000)`, `.unbatched().shuffle(1000)` | `DistributedChunkedSampler(dataset, window=4)`: chunks in a new order in each epoch, `window` of them mixed at a time |
# | `.batched(32, partial=False)` | `DataLoader(batch_size=32, drop_last=True)` |
# | `nodesplitter=split_by_node`, `workersplitter=split_by_worker` | not needed: samples are divided among ranks, batches among workers; one shard is enough for 64 ranks |
# | `WebLoader(dataset, batch_size=None)` | `torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)` |
# | `resampled=True` | `DistributedChunkedSampler(dataset, epochs=None)`: never ends, and still each sample once in each pass |
# | `.with_epoch(n)` | `epoch_size=n * batch_size * world_size` (samples of all ranks), or not at all: epochs end together |
# | `.with_length(n)` | `len(dataset)`, `len(sampler)`, `len(loader)` |
# | `.repeat(3)` | `DistributedChunkedSampler(dataset, epochs=3)` |
# | `RandomMix` of several datasets | `ConcatDataset`, or `datasets` in an index: each sample once, in proportion to size |
# | `handler=wds.warn_and_continue` | `wids verify train.json --decode` lists damaged samples beforehand; in a run, an error names shard and key |
# | `ShardWriter`, `TarWriter`, `tarp` | `wids.ShardWriter`, `wids pack` |
# | no resume in mid-epoch | `sampler.state_dict()`, `sampler.load_state_dict()`, on any number of ranks |
#
# ## Without epochs
#
# `resampled=True` draws shards with replacement, so that all ranks have something to read for ever. `with_epoch` then cuts
# the stream. Here `epoch_size` (samples of all ranks) cuts an endless sequence of passes, `epochs=None` does not cut it at all,
# and nothing is drawn with replacement:

# %%
steps = 20
stream = wids.DistributedChunkedSampler(
    dataset, num_replicas=world_size, rank=0, epoch_size=steps * batch_size * world_size
)
stream_loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=stream)

for evaluation in range(2):
    batches = sum(1 for _ in stream_loader)  # a few steps of training, and then it is time to evaluate
    print(f"{batches} batches, then evaluation {evaluation}")

# %% [markdown]
# ## How often is each sample seen?
#
# Four passes' worth of samples, on all ranks together: shards drawn with replacement, as `resampled=True` does, beside ours.

# %%
passes = 4
lengths = np.array(dataset.lengths)
ends = np.cumsum(lengths)
generator = np.random.default_rng(0)

resampled = np.zeros(len(dataset), dtype=int)
while resampled.sum() < passes * len(dataset):
    shard = generator.integers(len(lengths))
    resampled[ends[shard] - lengths[shard] : ends[shard]] += 1

ours = np.zeros(len(dataset), dtype=int)
for rank in range(world_size):
    whole = wids.DistributedChunkedSampler(dataset, num_replicas=world_size, rank=rank, epochs=passes)
    np.add.at(ours, list(whole), 1)
over = ours.sum() - passes * len(dataset)  # what makes the ranks equal at the very end

# %%
figure, axes = plt.subplots(figsize=(7.5, 3), dpi=90, layout="constrained")
times = np.arange(max(resampled.max(), ours.max()) + 1)
for k, (name, counts, colour) in enumerate([("resampled=True", resampled, "#E69F00"), ("wids", ours, "#0072B2")]):
    bars = axes.bar(times + 0.4 * (k - 0.5), np.bincount(counts, minlength=len(times)), 0.4, label=name, color=colour)
    axes.bar_label(bars, labels=[f"{n:,.0f}" if n else "" for n in bars.datavalues], fontsize=8, padding=1)
axes.set(xlabel=f"times a sample was seen in {passes} passes' worth of steps", ylabel="samples", xticks=times)
axes.spines[["top", "right"]].set_visible(False)
axes.margins(y=0.12)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## The samples of each rank in an epoch
#
# `split_by_node` gives rank r the shards r, r + W, r + 2 W, ..., `split_by_worker` divides these among its workers in the same
# way, and each worker makes its own batches, the last one smaller. The first column follows that rule (webdataset 1.0.2
# itself does so with the digits on two ranks with two workers: 747 and 600 samples, 24 and 20 batches). Without
# `with_epoch`, DDP waits for ever for the rank that ended first; with it, ranks that have less repeat and ranks that have
# more lose. The second column has the indices that the sampler yields.

# %%
workers = 2
rows = []
read_by = []
for rank in range(world_size):
    theirs = [lengths[rank::world_size][worker::workers].sum() for worker in range(workers)]
    taken = list(wids.DistributedChunkedSampler(dataset, num_replicas=world_size, rank=rank))
    read_by.append(taken)
    rows.append(
        {
            ("samples", "webdataset"): sum(theirs),
            ("samples", "wids"): len(taken),
            ("batches", "webdataset"): sum(-(-n // batch_size) for n in theirs),
            ("batches", "wids"): -(-len(taken) // batch_size),
            ("shards", "webdataset"): len(lengths[rank::world_size]),
            ("shards", "wids"): len({dataset.locate(i)[0] for i in taken}),
        }
    )
table = pd.DataFrame(rows, index=pd.Index(range(world_size), name="rank"))
table

# %%
assert len(set(table["samples", "wids"])) == 1, "every rank reads the same number of samples"
assert len(set(table["batches", "wids"])) == 1, "every rank trains the same number of steps"
assert {i for taken in read_by for i in taken} == set(range(len(dataset))), "together they read all of it"
repeated = sum(map(len, read_by)) - len(dataset)
assert 0 <= repeated < world_size, "at most one sample for each rank is read twice, to make them equal"
assert ours.min() == passes, "without epochs, each sample comes once in each pass"
assert (ours > passes).sum() == over < world_size, "and again only where the ranks do not divide the whole run"
assert seen == len(dataset), "one process reads each sample once in an epoch"
