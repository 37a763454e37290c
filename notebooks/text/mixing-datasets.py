# %% [markdown]
# # Mixing datasets
#
# A model is trained on several datasets in stated shares: so much of the web, so much of the books. Drawn at random, the shares come
# out only roughly, some samples come again long before others have come at all, and a restart draws anew. Here the mixture is an
# order: which source each step reads is computed, so the shares hold in every stretch, every source is read pass by pass, weights may
# change in the middle of a run, and a run that is resumed, on any number of ranks, reads exactly the rest. All of it is counted below.
#
# Takes 10 seconds on a laptop without a GPU. For your own data set `urls` (names and URLs of indexes) and `weights`.

# %% tags=["parameters"]
urls = None  # name -> URL of an index; None: digits, and patches of two photographs, served from this machine
weights = {"digits": 0.5, "temple": 0.3, "flower": 0.2}
later_weights = {"digits": 0.1, "temple": 0.3, "flower": 0.6}  # from the middle of the run on
world_size = 4
resume_world_size = 3
batch_size = 8  # of a rank
steps = 120

# %%
import collections
import itertools
import json

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from torch.utils.data import ConcatDataset, DataLoader

import wids

if urls is None:
    digits = wids.ShardListDataset(bucket.digits(samples=100).train, cache_dir=bucket.temporary("cache"))
    photos = wids.ShardListDataset(bucket.photos(step=24, samples=32).train, cache_dir=bucket.temporary("cache"))
    names = [key.partition("-")[0] for key in photos.keys]
    sources = {
        "digits": digits,
        "temple": photos.select(np.array(names) == "china"),  # views of one dataset
        "flower": photos.select(np.array(names) == "flower"),
    }
else:
    sources = {name: wids.ShardListDataset(url, cache_dir=bucket.temporary("cache")) for name, url in urls.items()}

mixture = wids.mix({name: (source, weights[name]) for name, source in sources.items()})
print(mixture)
pd.DataFrame(
    {
        "samples": mixture.lengths,
        "weight": mixture.weights.values(),
        "passes in the run": [
            weights[name] * steps * batch_size * world_size / length
            for name, length in zip(mixture.names, mixture.lengths, strict=True)
        ],
    },
    index=mixture.names,
).round(2)

# %% [markdown]
# The mixture is a dataset of all samples, one source after another: `mixture[i]`, `len(mixture)`. Each source keeps its own
# transformations, cache directory and limits; `sample["__dataset__"]` says which one it is, to the source's own transformations too.
# The shares are the sampler's work. `DistributedChunkedSampler` takes a mixture as any dataset:

# %%
PX = 32


def make_sample(sample):
    """A small picture, and its source."""
    image = sample[".jpg"].convert("RGB").resize((PX, PX))
    return np.asarray(image), sample["__dataset__"]


views = {name: source.select(range(len(source))).add_transform(make_sample) for name, source in sources.items()}
pictures = wids.mix({name: (view, weights[name]) for name, view in views.items()})
sampler = wids.DistributedChunkedSampler(pictures, num_replicas=1, rank=0, chunksize=50)
batch = next(iter(DataLoader(pictures, batch_size=40, sampler=sampler, collate_fn=list)))
colours = dict(zip(weights, ("#0072B2", "#D55E00", "#009E73"), strict=False))  # Okabe and Ito's, for all eyes
fig, axes = plt.subplots(2, 20, figsize=(10, 1.35), dpi=85)
for ax, (image, name) in zip(axes.flat, batch, strict=True):
    ax.imshow(image)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_color(colours[name])
        spine.set_linewidth(2.5)
handles = [plt.Line2D([], [], color=colours[name], lw=3, label=f"{name} {weights[name]:.0%}") for name in weights]
fig.legend(handles=handles, loc="lower center", ncols=len(weights), frameon=False, fontsize=8.5)
fig.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.22, wspace=0.12, hspace=0.15)
plt.show()
print("the first 40 samples:", dict(collections.Counter(name for _, name in batch)))

# %% [markdown]
# ## What to write instead
#
# | there | here |
# |---|---|
# | mosaicml streaming: `StreamingDataset(streams=[Stream(remote=web, proportion=0.7), Stream(remote=books, proportion=0.3)])` | `wids.mix({"web": (web, 0.7), "books": (books, 0.3)})` |
# | its `Stream(repeat=...)`, `Stream(choose=1000)`: samples of the stream in an epoch | weights are in any unit: `(web, 1000)`, and `epoch_size` as their sum |
# | LitData: `CombinedStreamingDataset([web, books], weights=[0.7, 0.3])` | the same mixture; no source is drawn at random |
# | Hugging Face: `interleave_datasets([web, books], probabilities=[0.7, 0.3], seed=7)` | the same mixture; `seed=7` of the sampler |
# | its `stopping_strategy="first_exhausted"`, `"all_exhausted"`, LitData's `iterate_over_all` | no source ends: it begins its next pass, in another order; an epoch is `epoch_size` samples |
# | a new dataset object with other probabilities in mid-run | `sampler.reweight({"web": 0.5, "books": 0.5})` |
#
# ## Shares over steps
#
# Each rank has batches of its own; sources take turns in the same way on all ranks. For comparison the sources are also drawn at
# random with the same probabilities, and the samples of a source with replacement, a hundred times.


# %%
def ranks(world, **options):
    """The samplers of all ranks of a job."""
    options = {"chunksize": 50, "epochs": None, **options}  # without an end: steps are counted, not epochs
    return [wids.DistributedChunkedSampler(mixture, num_replicas=world, rank=rank, **options) for rank in range(world)]


def read(samplers, count):
    """The next ``count`` samples of each rank: (ranks, count)."""
    return np.array([list(itertools.islice(iter(sampler), count)) for sampler in samplers])


def source_of(samples):
    """The number of the source of each sample."""
    return np.searchsorted(np.cumsum(mixture.lengths), samples, side="right")


def counts_over(samples):
    """How many of each source were read, after each sample: (samples, sources)."""
    return np.cumsum(source_of(samples)[:, None] == np.arange(len(sources)), axis=0)


shares = np.array(list(weights.values())) / sum(weights.values())
mine = read(ranks(world_size), steps * batch_size)[0]
due = np.arange(1, len(mine) + 1)[:, None] * shares
ours = counts_over(mine) - due
rng = np.random.default_rng(0)
draws = [rng.choice(len(sources), len(mine), p=shares) for _ in range(100)]
random = np.array([np.cumsum(draw[:, None] == np.arange(len(sources)), axis=0) - due for draw in draws])
pd.DataFrame(
    {
        "here": abs(ours).max(axis=0),
        "at random, mean of 100 runs": abs(random).max(axis=1).mean(axis=0),
        "at random, worst of 100": abs(random).max(axis=(0, 1)),
    },
    index=pd.Index(weights, name="most samples off its share"),
).round(1)

# %%
at = np.arange(1, len(mine) + 1) / batch_size
ends = np.arange(batch_size - 1, len(mine), batch_size)  # of the steps
fig, (share_ax, off_ax) = plt.subplots(1, 2, figsize=(10, 3.4), dpi=85, constrained_layout=True)
for k, name in enumerate(weights):
    for run, style in ((ours, {"lw": 2, "label": name}), (random[0], {"lw": 1.2, "ls": ":"})):
        share_ax.plot(at[ends], 100 * (run + due)[ends, k] / (ends + 1), color=colours[name], **style)
share_ax.plot([], [], color="black", lw=1, ls=":", label="at random (one run)")
share_ax.set_ylim(0, 100)
share_ax.set_title("Share of what one rank has read, %", loc="left", fontweight="bold", fontsize=10.5)
share_ax.legend(frameon=False, ncols=2, fontsize=8.5)
low, high = np.percentile(random[:, :, 0], [5, 95], axis=0)
first = next(iter(weights))
off_ax.fill_between(at, low, high, color="#999999", alpha=0.35, lw=0, label="at random, 9 of 10 runs")
off_ax.plot(at, ours[:, 0], color=colours[first], lw=1, label="here: within 1")
off_ax.set_title(f"Samples of {first} beyond its share", loc="left", fontweight="bold", fontsize=10.5)
off_ax.legend(frameon=False, fontsize=8.5, loc="upper left")
for ax in (share_ax, off_ax):
    ax.set_xlabel("step")
    ax.set_xlim(0, steps)
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## Other weights in mid-run
#
# `sampler.reweight(weights)` changes them from the next epoch on, `at=` from a position on: a number of samples that all ranks
# together have had. All ranks call it alike. Each source goes on where it was: its pass is finished before anything of it comes
# again.

# %%
total = steps * batch_size * world_size
samplers = ranks(world_size)
changed = {sampler.reweight(later_weights, at=total // 2) for sampler in samplers}
rows = read(samplers, steps * batch_size)
order = rows.T.ravel()  # all ranks take turns
print("from sample", *changed, f"of {total:,} on, the same on every rank")

window = 10 * batch_size * world_size  # ten steps
ends = np.arange(window, total + 1, window)
recent = np.array([np.bincount(source_of(order[end - window : end]), minlength=len(sources)) for end in ends]) / window
fig, ax = plt.subplots(figsize=(10, 2.9), dpi=85, constrained_layout=True)
bottom = np.zeros(len(ends))
for k, name in enumerate(weights):
    ax.bar(
        ends / batch_size / world_size, 100 * recent[:, k], -9.4, bottom, align="edge", color=colours[name], label=name
    )
    bottom += 100 * recent[:, k]
ax.axvline(steps / 2, color="black", lw=1.2, ls="--")
ax.text(steps / 2 - 0.5, 103, "reweight", ha="right", fontsize=8.5)
ax.set_title("Shares of ten steps each, all ranks, %", loc="left", fontweight="bold", fontsize=10.5)
ax.set_xlabel("step")
ax.set_xlim(0, steps)
ax.set_ylim(0, 118)
ax.set_yticks(range(0, 101, 25))
ax.legend(frameon=False, ncols=len(weights), loc="upper right", fontsize=8.5)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# ## A resume on another number of ranks
#
# The state is a small dict, the same on every rank: a position, the seed, which samples each source has, and the weights from each
# position on. A third of the run is read on the first number of ranks, which end; the rest on the other. Loading the state into a
# mixture with other sources or weights is refused; `load_state_dict(state, reweight=True)` takes such a change over from there on,
# and adds sources.

# %%
samplers = ranks(world_size)
for sampler in samplers:
    sampler.reweight(later_weights, at=total // 2)
before = read(samplers, steps * batch_size // 3)
states = [sampler.state_dict(consumed=before.shape[1]) for sampler in samplers]
state = json.dumps(states[0])
print(json.dumps({key: value for key, value in states[0].items() if key != "order"}))
print("weights:", json.dumps(states[0]["order"]["weights"]["from"]))

samplers = ranks(resume_world_size)
for sampler in samplers:
    sampler.load_state_dict(json.loads(state))
after = read(samplers, (total - before.size) // resume_world_size)
resumed = np.concatenate([before.T.ravel(), after.T.ravel()])
whole = len(resumed)
places = [0, before.size - 6, before.size, total // 2]
pd.DataFrame(
    {
        "without a break": [" ".join(map(str, order[k : k + 6])) for k in places],
        "resumed": [" ".join(map(str, resumed[k : k + 6])) for k in places],
        "by ranks": [world_size, world_size, resume_world_size, resume_world_size],
    },
    index=pd.Index(places, name="from sample"),
)

# %% [markdown]
# ## Nothing comes again before all of its source has come


# %%
def times_seen(samples):
    """How often the least and the most seen sample of each source was seen."""
    seen = np.bincount(samples, minlength=len(mixture))
    parts = np.split(seen, np.cumsum(mixture.lengths)[:-1])
    return [f"{part.min()} to {part.max()}" for part in parts]


random_order = [
    int(rng.integers(length)) + end - length
    for k in source_of(order)
    for length, end in [(mixture.lengths[k], mixture.cumulative_sizes[k])]
]
pd.DataFrame(
    {"times seen, here": times_seen(order), "with replacement (one run)": times_seen(random_order)}, index=mixture.names
)

# %% [markdown]
# ## Classes evened out by weights
#
# Where classes are not datasets of their own, samples have weights: an array, or the name of a column. `wids.balance` makes such from
# labels; here the names of the sources are the labels, of a plain join of them. A sample's expected copies in a pass are its part of all
# weights, times the samples of a pass. It comes the floor or the ceiling of that, so classes are even in each pass, not on average.

# %%
joined = ConcatDataset(mixture.datasets)
labels = source_of(np.arange(len(joined)))
per_class, most_off = {}, 0.0
for power in (0.0, 0.5, 1.0):
    class_weights = wids.balance(labels, power=power)
    sampler = wids.DistributedChunkedSampler(joined, num_replicas=1, rank=0, chunksize=50, weights=class_weights)
    copies = np.bincount(list(sampler), minlength=len(joined))
    expected = class_weights / class_weights.sum() * len(joined)
    most_off = max(most_off, abs(copies - expected).max())
    per_class[f"power={power}"] = np.bincount(labels, copies).astype(int)
pd.DataFrame(per_class, index=pd.Index(mixture.names, name="samples in one pass"))
