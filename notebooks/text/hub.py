# %% [markdown]
# # A data set of the Hugging Face Hub, by its name
#
# More than a thousand public data sets on the Hub are tar shards. This notebook opens one by its name, shows pictures without a download,
# filters them by SQL, reads an epoch, and goes on in mid-epoch, exactly where it stopped.
#
# Takes 15 seconds on a laptop without a GPU, and no internet: a small server on this machine stands in for the Hub (`hub.py`), with
# commits, listings, and a store behind signed redirects. For the real Hub change the first line below, for example to
#
# ```python
# name, label_field, good = "hf://datasets/pixparse/cc3m-wds?split=validation", ".txt", "label like '%beach%'"
# ```

# %% tags=["parameters"]
name, label_field, good = None, ".cls", "label in (3, 8)"  # scikit-learn's digits, from the stand-in
image_field = ".jpg"
batch_size = 32
workers = 2
stop_at = 0.4  # the part of an epoch after which it is stopped
seed = 0

# %%
import os
import random
import sys

import bucket
import hub
import matplotlib.pyplot as plt
import pandas as pd
from torch.utils.data import DataLoader

import wids

python = sys.executable
stand_in = None
if name is None:
    stand_in = hub.Hub(bucket.digits(samples=75).directory, "digits/digits", latency_seconds=0.03)
    os.environ["HF_ENDPOINT"] = stand_in.url
    name = "hf://datasets/digits/digits"
work_dir, cache_dir = bucket.temporary("work"), bucket.temporary("cache")
os.environ["WIDS_CACHE"] = cache_dir

# %% [markdown]
# ## By its name
#
# `wids` asks which commit is the newest, lists its files once, and finds the shards of the split and how many samples each has. No shard is
# read for that if a file of the repository says how many there are. `split=` names another split than `"train"`, `revision=` a
# branch, tag or commit. A gated data set takes your token, that of `hf auth login` or `HF_TOKEN`.

# %%
look = wids.ShardListDataset(name, access="range", prefetch=False)  # downloads no shard
size = sum(shard["filesize"] for shard in look.shards)
print(f"{len(look):,} samples in {len(look.shards)} shards, {size / 1e6:.1f} MB")
look[0]

# %% [markdown]
# ## Pictures
#
# A sample is a byte range of its shard, so any of them can be read, in any order, and no shard is downloaded for it.


# %%
def show(samples, columns, titles=()):
    rows = -(-len(samples) // columns)
    size = (0.9 * columns, 1.15 * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, dpi=80, layout="constrained", squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, sample in zip(axes.flat, samples, strict=False):
        ax.imshow(sample[image_field], cmap="gray_r")
        ax.set_title(str(sample[label_field])[:12], fontsize=8)
    for ax, title in zip(axes[:, 0], titles, strict=False):
        ax.text(-0.2, 0.5, title, transform=ax.transAxes, ha="right", va="center", fontsize=9)
    plt.show()


random_order = random.Random(seed)
show([look[random_order.randrange(len(look))] for _ in range(24)], 12)

# %% [markdown]
# ## Filtered by SQL
#
# SQL knows the samples' keys and sizes. Labels are in their members: one command reads them, once, into a Parquet file with a row for
# each sample (of a large data set that takes a while). Then a condition makes a *view*, a data set like any other, with a length.
# It reads and copies no sample.

# %%
columns = f"{work_dir}/columns.parquet"
# !{python} -m wids.tools.cli columns create '{name}' --field {label_field}=label -o {columns} 2>&1 | tail -1
known = look.with_columns(fields=False, place=columns)
view = known.where(good)
print(f"{len(view):,} of {len(known):,} samples where {good}")
show([view[random_order.randrange(len(view))] for _ in range(12)], 12)

# %%
counts = "select label, count(*) as samples, avg(jpg_bytes) as bytes from samples group by label"
known.query(f"{counts} order by samples desc, label limit 10").to_pandas().round(1)

# %% [markdown]
# ## An epoch
#
# An epoch downloads each shard once, compares it with the sha256 in the Hub's listing, and keeps it in `cache_dir`. The sampler
# shuffles within a few shards at a time, and divides the samples among the ranks.


# %%
def make_sample(sample):
    return sample["__index__"], str(sample[label_field])


def make_loader():
    dataset = wids.ShardListDataset(name, cache_dir=cache_dir).add_transform(make_sample)
    sampler = wids.DistributedChunkedSampler(dataset, seed=seed)
    return wids.resumable(DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=workers))


loader = make_loader()
whole = [indices.tolist() for indices, labels in loader]
read = [index for batch in whole for index in batch]
downloads = loader.dataset.stats().fetches
print(f"{len(whole)} batches, {len(read):,} samples, {len(set(read)):,} different ones; {downloads} shards downloaded")

# %% [markdown]
# A view goes into a sampler and a loader in the same way. Shards that have none of its samples are not downloaded.
#
# ## Stop, and go on exactly there
#
# The state is a small dict for your checkpoint. It is the place after the batch that the loop had last, whatever the workers
# had read ahead. (A long run on the real Hub gives `revision=`, so that it reads the same commit when it goes on.)

# %%
stop_after = round(stop_at * len(whole))  # batches
loader = make_loader()
before = []
for indices, _labels in loader:
    before.append(indices.tolist())
    if len(before) == stop_after:
        state = loader.state_dict()
        break
del loader
state

# %%
loader = make_loader()  # in your program: in another process, on other ranks, another day
loader.load_state_dict(state)
after = [indices.tolist() for indices, labels in loader]
is_exact = before + after == whole
print(f"{len(before)} batches before, {len(after)} after; the same as without a stop: {is_exact}")

look_at = [whole[stop_after][:12], after[0][:12]]
show([look[index] for row in look_at for index in row], 12, ["without\na stop", "resumed"])

# %% [markdown]
# ## What the Hub was asked
#
# In five minutes an account may ask the Hub's API 1,000 times, and its resolver, which says where a file is, 5,000 times. All of
# the above took:

# %%
if stand_in is not None:
    asked = {
        "API: commit, listing": stand_in.requests["api"],
        "resolver: where a file is": stand_in.requests["resolvers"],
        "store: shards, and byte ranges of them": stand_in.requests["store"],
    }
    table = pd.DataFrame({"requests": asked})
else:
    table = pd.DataFrame({"downloads": {"shards": downloads}})
table
