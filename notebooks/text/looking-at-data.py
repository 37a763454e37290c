# %% [markdown]
# # Looking at data, and at a run
#
# Before training: which pictures, which labels, how many of each class, which shards, how large, in which order? A dataset
# with `access="range"` reads single members by byte ranges, so that a look at 24 pictures of a large dataset downloads those 24
# pictures and little more. During training: `hooks=` receive the events of the cache, which show when each shard was downloaded,
# how fast samples were read, and where the loop waited, here for the same run without and with prefetching.
#
# Takes 20 seconds on a laptop without a GPU. For your own data set the URLs, and with photographs `size = 224`,
# `decode_seconds = 0`, and `step_seconds` to the time of a step of your model.

# %% tags=["parameters"]
train_url = None  # to look at: URL of an index; None: patches of two photographs, and digits, served by this machine
run_url = None  # for the run; None: the digits again, served slowly
image_field, label_field = ".jpg", ".cls"
columns, rows = 8, 3  # of the grid of pictures
size = 32  # pixels a side, in the run
batch_size = 16
workers = 2
most_steps = 200  # of the run; the digits have 85
seed = 49  # which pictures are shown
step_seconds = 0.04  # stands for the model
decode_seconds = 0.004  # of a sample; stands for decoding and augmenting a photograph of full size
latency, rate = 0.1, 1e6  # of the slow server: seconds to the first byte, bytes per second of a connection

# %%
import io
import json
import os
import pathlib
import random
import time

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import Image
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch.utils.data import DataLoader

import wids
import wids.serve

BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8A8A8A"  # Okabe and Ito's, for all eyes

if train_url is None:
    photos = bucket.photos(samples=48, step=20, has_ranges=True)
    digits = bucket.digits(samples=75, has_ranges=True)
    looked_at = {"photographs": photos.train, "digits": digits.train}
else:
    photos = None
    looked_at = {"yours": train_url}

# %% [markdown]
# ## Pictures, labels, keys
#
# The dataset knows the shard of each sample from its index, and reads nothing until a sample is requested. Then, with
# `access="range"`, it requests the bytes of that sample's members only; their offsets are in the member table (`.widx`) that
# `wids.ShardWriter` and `wids index create --members` write beside each shard. No whole shard is downloaded.


# %%
def open_by_range(url, **options):
    return wids.ShardListDataset(url, cache_dir=bucket.temporary("cache"), access="range", **options)


def label_names(dataset):
    info = dataset.spec.get("info")
    return list(info.get("classes", [])) if isinstance(info, dict) else []


def call(label, names):
    return str(names[label]) if isinstance(label, int) and label < len(names) else str(label)


name, url = next(iter(looked_at.items()))
dataset = open_by_range(url)
dataset_bytes = sum(shard.get("filesize", 0) for shard in dataset.shards)
shown = sorted(random.Random(seed).sample(range(len(dataset)), min(columns * rows, len(dataset))))
samples = [dataset[i] for i in shown]
grid_stats = dataset.stats()
names = label_names(dataset)

fig, axes = plt.subplots(rows, columns, figsize=(10.5, 1.62 * rows), dpi=80, layout="constrained", squeeze=False)
for ax in axes.flat:
    ax.set_axis_off()
for ax, sample in zip(axes.flat, samples, strict=False):
    ax.imshow(sample[image_field], cmap="gray" if sample[image_field].mode == "L" else None)
    ax.set_title(call(sample[label_field], names), fontsize=10, fontweight="bold", pad=3)
    key = sample["__key__"][-18:]
    ax.text(0.5, -0.04, key, transform=ax.transAxes, ha="center", va="top", fontsize=7.5, color="#555")
share = f"{grid_stats.range_bytes / 1e3:,.0f} kB of {dataset_bytes / 1e6:,.1f} MB read"
fig.suptitle(f"{name}: {len(shown)} of {len(dataset):,} samples, {share}", fontsize=11)
fig.get_layout_engine().set(h_pad=0.09)
jpeg = io.BytesIO()  # a PNG of so many photographs would be most of this notebook
fig.savefig(jpeg, format="jpeg", pil_kwargs={"quality": 80})
plt.close(fig)
Image(jpeg.getvalue())

# %% [markdown]
# The same in a browser: a grid to scroll through, each sample at full size, the batches of an epoch, the cache. In a notebook the pages
# are a frame; run again, the cell closes the server before it. For a kernel on another machine see [wids/serve](../wids/tools/serve/README.md#in-a-notebook).

# %%
pages = wids.serve.start(dataset)
pages.show(height=600, page="/samples")

# %% [markdown]
# The requests and bytes, as counted by the dataset and by the server:

# %%
cost = {
    "samples": [len(shown), len(dataset)],
    "requests": [grid_stats.range_requests, len(dataset.shards)],
    "bytes": [grid_stats.range_bytes, dataset_bytes],
}
cost = pd.DataFrame(cost, index=["this look", "fetching all shards"])
cost["share of the bytes"] = (cost["bytes"] / cost.loc["fetching all shards", "bytes"]).map("{:.1%}".format)
if photos is not None:
    table_bytes = sum(path.stat().st_size for path in pathlib.Path(photos.directory).glob("train-*.widx"))
    print(f"The server sent {photos.sent_bytes:,} bytes of shards: the samples, and 512 bytes of each shard that was")
    print("opened, for the dataset to see whether the server gives ranges. With them came the member tables,")
    print(f"{table_bytes / len(dataset.shards):,.0f} bytes for each of these shards.")
cost

# %% [markdown]
# ## Classes and shards
#
# For this all labels are needed: `fields=(".cls",)` decodes only these members. They lie between the pictures, and where reading
# on is faster than another request (always up to 32 kB, never beyond 2 MB) the bytes between them are read too, which here are
# nearly all bytes. Each map has a row for each class and a column for each shard; above it are the sizes of the shards, which
# are in the index, and on the right is the number of samples of each class.


# %%
def count_labels(dataset):
    """(classes, shards) -> samples."""
    batches = (range(at, min(at + 1000, len(dataset))) for at in range(0, len(dataset), 1000))
    read = [sample for batch in batches for sample in dataset.__getitems__(batch)]
    shards = np.searchsorted(np.cumsum(dataset.lengths), [sample["__index__"] for sample in read], side="right")
    table = pd.crosstab(pd.Series([sample[label_field] for sample in read]), shards)
    return table.reindex(columns=range(len(dataset.lengths)), fill_value=0)


def draw_map(figure, dataset, title):
    table = count_labels(dataset)
    names = label_names(dataset)
    axes = figure.subplots(
        2, 2, sharex="col", sharey="row", width_ratios=(5, 1.3), height_ratios=(1, 0.9 + 0.24 * min(len(table), 12))
    )
    (sizes, corner), (field, totals) = axes
    kilobytes = [shard.get("filesize", 0) / 1e3 for shard in dataset.shards]
    sizes.bar(table.columns, kilobytes, width=0.85, color=GREY)
    sizes.set(ylabel="kB", ylim=(0, 1.15 * max(kilobytes) or 1))
    sizes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    words = f"{len(dataset):,} samples, {len(table.columns)} shards, {sum(kilobytes) / 1e3:,.1f} MB"
    sizes.set_title(words, loc="right", fontsize=9.5)
    corner.set_axis_off()
    picture = field.imshow(table, aspect="auto", cmap="cividis", vmin=0, interpolation="nearest")
    field.set_yticks(range(len(table)), [call(label, names) for label in table.index], fontsize=9)
    field.set(xlabel="shard", ylabel="class")
    field.xaxis.get_major_locator().set_params(integer=True)
    totals.barh(range(len(table)), table.sum(axis=1), height=0.8, color=BLUE)
    for row, total in enumerate(table.sum(axis=1)):
        totals.text(total * 0.96, row, f"{total:,}", ha="right", va="center", color="white", fontsize=8)
    totals.set(xlabel="samples", xlim=(0, table.sum(axis=1).max() * 1.05))
    totals.tick_params(left=False)
    for ax in (sizes, totals):
        ax.spines[["top", "right"]].set_visible(False)
    figure.colorbar(picture, ax=axes, label="samples in a shard", shrink=0.75, aspect=18, pad=0.015)
    return table


fig = plt.figure(figsize=(10.5, 3.4 * len(looked_at)), dpi=80, layout="constrained")
parts = fig.subfigures(len(looked_at), 1, squeeze=False, hspace=0.06, height_ratios=[2.4, 4][-len(looked_at) :])[:, 0]
tables = {}
for part, (name, url) in zip(parts, looked_at.items(), strict=True):
    labelled = open_by_range(url, fields=(label_field,))
    tables[name] = draw_map(part, labelled, name)
    labelled.close()
plt.show()
mixed = {name: (table > 0).sum(axis=0).mean() / len(table) for name, table in tables.items()}
print("\n".join(f"{name}: a shard holds {share:.0%} of all classes on average" for name, share in mixed.items()))

# %% [markdown]
# The digits are mixed, so that any few shards have all classes. The photographs are sorted by class, and a shuffle over a few
# neighbouring shards does not mix the classes: to train on such data, write the shards again in a random order (the sampler
# mixes four shards at a time, drawn from all over its rank's part, which helps, but four are few).
#
# ## A run, watched
#
# The digits again, now from a server as slow as a bucket (`latency`, `rate`: some 0.3 s for a shard). The loop has a step of 40 ms
# in the place of a model; two workers decode. A **hook** is called with each event (`wids.events`) in the process where it
# happens, so this one appends a line to a file that all processes share.


# %%
class Journal:
    """Writes events to a file, a line each, with the time."""

    def __init__(self):
        self.path = os.path.join(bucket.temporary("journal"), "events.jsonl")

    def __call__(self, event):
        facts = {name: getattr(event, name) for name in event.__struct_fields__}
        line = json.dumps({"time": time.time(), "process": os.getpid(), "event": type(event).__name__, **facts})
        with open(self.path, "a") as file:  # one small write, so that lines of several processes do not mix
            file.write(line + "\n")

    def read(self):
        with open(self.path) as file:
            return pd.DataFrame(map(json.loads, file))


def make_sample(sample):
    time.sleep(decode_seconds)
    pixels = sample[image_field].convert("RGB").resize((size, size))
    return torch.frombuffer(bytearray(pixels.tobytes()), dtype=torch.uint8).view(size, size, 3), sample[label_field]


def watch(url, **options):
    """What happened in an epoch: steps and events, with times from its start in seconds, and the dataset's stats."""
    journal = Journal()
    dataset = wids.ShardListDataset(url, cache_dir=bucket.temporary("cache"), hooks=[journal], **options)
    dataset = dataset.add_transform(make_sample)
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=wids.DistributedChunkedSampler(dataset, chunksize=1000, shuffle=True),
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,  # functions of a notebook reach no other kind of process
    )
    steps, begin = [], time.time()
    asked = begin
    for images, _ in loader:
        got = time.time()
        time.sleep(step_seconds)  # the model
        done = time.time()
        steps.append({"asked": asked - begin, "got": got - begin, "done": done - begin, "samples": len(images)})
        asked = done
        if len(steps) == most_steps:
            break
    seconds = steps[-1]["done"]
    stats = dataset.stats()
    dataset.close()
    events = journal.read()
    events["time"] -= begin
    is_whole = len(steps) == len(loader)
    return {"steps": pd.DataFrame(steps), "events": events, "stats": stats, "seconds": seconds, "is_whole": is_whole}


runs = {}
for title, options in {"prefetch=False": {"prefetch": False}, "default": {}}.items():
    if run_url is None:
        slow = bucket.digits(samples=75, latency=latency, rate=rate)
        runs[title] = watch(slow.train, **options)
        runs[title]["requests"] = slow.requests
    else:
        runs[title] = watch(run_url, **options)
pd.DataFrame({title: run["events"]["event"].value_counts() for title, run in runs.items()}).fillna(0).astype(int)

# %% [markdown]
# Events, by kind. `Fetched` has the duration of the download and whether it was a prefetch, so that each one is a bar; the first
# `Opened` of a shard is the moment when a worker began to read it.


# %%
def draw_shards(ax, run):
    """A bar for each download, a line until it was first read."""
    events = run["events"]
    fetched = events[events.event == "Fetched"].sort_values("time")
    first_opened = events[events.event == "Opened"].groupby("url").time.min()
    for row, event in enumerate(fetched.itertuples()):
        colour = BLUE if event.is_ahead else VERMILLION
        ax.barh(row, event.seconds, left=event.time - event.seconds, height=0.72, color=colour, zorder=3)
        if event.url in first_opened:
            opened = first_opened[event.url]
            ax.plot([event.time, max(opened, event.time)], [row, row], color=GREY, lw=1.2, zorder=2)
            ax.plot(max(opened, event.time), row, "o", color="black", ms=3.5, zorder=4)
    for event in events[events.event == "Evicted"].itertuples():
        ax.axvline(event.time, color=GREY, ls=":", lw=0.8)
    ax.set_ylim(len(fetched) - 0.3, -0.7)
    ax.yaxis.get_major_locator().set_params(integer=True)


def find_stalls(run):
    """The steps that waited for data longer than a step takes."""
    steps = run["steps"]
    return steps[steps.got - steps.asked > max(step_seconds, 0.05)]


def draw_speed(ax, run, width=0.4):
    """Samples per second, each moment's mean over so many seconds."""
    steps = run["steps"]
    total = steps.samples.cumsum()
    times = np.stack([steps.got, steps.done], axis=1).ravel()  # a batch's samples are used up evenly in its step
    used = np.stack([total - steps.samples, total], axis=1).ravel()
    moments = np.linspace(0, run["seconds"], 400)
    low, high = np.maximum(moments - width / 2, 0), np.minimum(moments + width / 2, run["seconds"])
    speed = (np.interp(high, times, used) - np.interp(low, times, used)) / (high - low)
    ax.fill_between(moments, speed, color=GREEN, alpha=0.25, lw=0)
    ax.plot(moments, speed, color=GREEN, lw=1.6)
    return speed.max()


fig, axes = plt.subplots(
    2, 2, figsize=(10.5, 5.8), dpi=90, sharex=True, sharey="row", height_ratios=(1.6, 1), layout="constrained"
)
highest = 0
for (shards_ax, speed_ax), (title, run) in zip(axes.T, runs.items(), strict=True):
    stalls = find_stalls(run)
    waited = (stalls.got - stalls.asked).sum()
    draw_shards(shards_ax, run)
    highest = max(highest, draw_speed(speed_ax, run))
    for ax in (shards_ax, speed_ax):
        for stall in stalls.itertuples():
            ax.axvspan(stall.asked, stall.got, color=VERMILLION, alpha=0.15, lw=0, zorder=0)
        ax.axvline(run["seconds"], color="black", lw=1, ls="--")
        ax.spines[["top", "right"]].set_visible(False)
    shards_ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
    shards_ax.set_title(f"{run['seconds']:.1f} s, of these {waited:.1f} s stalled", loc="right", fontsize=10)
    speed_ax.set_xlabel("seconds since the start of the epoch")
axes[0, 0].set_ylabel("shards, as they came")
axes[1, 0].set_ylabel("samples/s")
axes[1, 0].set_ylim(0, highest * 1.15)
axes[0, 0].set_xlim(0, max(run["seconds"] for run in runs.values()) * 1.02)
first, second = runs.values()
if second["seconds"] < 0.8 * first["seconds"]:
    gain = f"{first['seconds'] / second['seconds']:.1f}x as fast"
    at = (second["seconds"] + 0.02 * first["seconds"], highest / 2)
    axes[1, 1].text(*at, gain, fontsize=12, fontweight="bold", color=GREEN, va="center")
handles = [
    Patch(color=VERMILLION, label="download that a worker waits for"),
    Patch(color=BLUE, label="download ahead"),
    Line2D([], [], color=GREY, lw=1.2, marker="o", mfc="black", mec="black", ms=4, label="lies there until first read"),
    Patch(color=VERMILLION, alpha=0.15, label="the loop stalls"),
    Line2D([], [], color="black", lw=1, ls="--", label="end"),
]
fig.legend(handles=handles, loc="outside lower center", ncol=5, frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# On the left each window of four shards begins with a wait for all of them; on the right they are in the cache when they are
# needed, and only the first batch waits. No shard is downloaded twice in either. The same in numbers: `dataset.stats()` counts
# over all processes, without any hook (`stalled_seconds` is summed over the workers, so two that wait at once count twice).

# %%
table = pd.DataFrame(
    {title: {k: getattr(run["stats"], k) for k in run["stats"].__struct_fields__} for title, run in runs.items()}
)
table.loc["seconds of the epoch"] = {title: run["seconds"] for title, run in runs.items()}
table.loc["samples/s"] = {title: run["steps"].samples.sum() / run["seconds"] for title, run in runs.items()}
table.map(lambda value: f"{value:,.1f}" if value % 1 else f"{value:,.0f}")
