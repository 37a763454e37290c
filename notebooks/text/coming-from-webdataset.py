# %% [markdown]
# # Coming from webdataset
#
# The same shards, a training program written for `webdataset`, and the same program with `wids`, piece by piece. Then, for each
# call of `webdataset` 1.0 that programs use, what replaces it and how it differs: opening and decoding, choosing, failing samples, sharing
# out and shuffling, mixing, epochs, resuming, writing. It ends with the samples that each rank reads with either.
#
# Takes 20 seconds on a laptop without a GPU. For your own data, set `shards` (and `cache_dir`, which is then worth keeping).

# %% tags=["parameters"]
shards = None  # pattern of URLs of tars with .jpg and .cls; None: scikit-learn's digits, served from this machine
cache_dir = None  # None: a temporary one
world_size = 2
num_workers = 0  # of a DataLoader; more when decoding is what takes the time
batch_size = 32
epochs = 4

# %%
import json
import logging
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
    digits = bucket.digits(has_ranges=True)
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
# for epoch in range(4):
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
# !cd {work_dir} && {python} -m wids.tools.cli index create '{shards}' -o train.json

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
# ## Opening and decoding
#
# | webdataset | wids |
# |---|---|
# | `WebDataset("train-{000000..000008}.tar")` | `ShardListDataset("train.json")`; local tars also by their pattern, a directory, a glob, a list |
# | `pipe:curl -s ...`, `pipe:gsutil cat ...`, `pipe:aws s3 cp ...` | the plain URL: `https://`, `gs://`, `s3://`, `hf://`. A `pipe:` URL needs `allow_pipe=True`, and no shell runs it |
# | `cache_dir=`, `cache_size=` | the same names (`"200GB"`); workers, ranks and jobs of a machine share the cache, and the limit holds |
# | no cache | `access="range"`: single samples by byte ranges, no shard is downloaded |
# | `.decode("pil")`, `"pill"` | the default, `transformations="PIL"`; an image keeps its mode: `image.convert("RGB")`, `"L"` |
# | `.decode("rgb8")`, `"torchrgb8"` | `transformations="numpy"` (H, W, C), `"torch"` (C, H, W): uint8, in the image's mode |
# | `.decode("rgb")`, `"torchrgb"` | the same, divided by 255 in your function |
# | no `.decode()` | `transformations="raw"` |
# | `.decode(only=["jpg"])`, `select_files=` | `fields=(".jpg",)`: no other member is read |
# | extensions in lower case: `"jpg"` for `1.JPG` | extensions keep their dot and their case: `".JPG"`; `fields=(".jpg",)` finds both |
# | `.map(f)`, `.to_tuple("jpg", "cls")`, `.map_tuple`, `.map_dict` | one function of the sample, with `add_transform` |
# | `.to_tuple("jpg;png", "cls")`, `.rename(image="jpg;png", label="cls")` | `fields=("jpg;png", "cls")`: the first that a sample has; `fields={"image": "jpg;jpeg;png;webp", "label": "cls"}` also names them |
# | `.batched(32, partial=False)` | `DataLoader(batch_size=32, drop_last=True)` |
# | `.batched(32, collation_fn=f)`, `.listed(32)` | `DataLoader(batch_size=32, collate_fn=f)`; `collate_fn=list` |
# | `WebLoader(dataset, batch_size=None)` | `DataLoader(dataset, batch_size=32, sampler=sampler)` of torch |
#
# The values of one sample:

# %%
index = f"{work_dir}/train.json"


def describe(value):
    shape, kind = getattr(value, "shape", getattr(value, "size", "")), getattr(value, "dtype", "")
    return f"{type(value).__name__} {tuple(shape) if shape else ''} {kind}"


decoded = {}
for how in ("PIL", "numpy", "torch", "raw"):
    sample = wids.ShardListDataset(index, transformations=how, cache_dir=cache_dir)[0]
    decoded[how] = {field: describe(sample[field]) for field in (".jpg", ".cls")}
only = wids.ShardListDataset(index, fields=(".cls",), access="range")[0]  # what map-style means: any sample, at once
print("of sample", only["__key__"], "alone the field", [name for name in only if name.startswith(".")], "was read")
named = wids.ShardListDataset(index, fields={"image": "jpg;jpeg;png;webp", "label": "cls"}, cache_dir=cache_dir)[0]
print("named:", {name: describe(value) for name, value in named.items() if not name.startswith("__")})
pd.DataFrame(decoded).T

# %% [markdown]
# ## Choosing samples
#
# `.select(predicate)` reads every sample of a stream and drops some, in each epoch. Here a chosen part is a dataset with a
# length: shards without such samples are not downloaded, and ranks stay equal. To choose by labels or captions, `wids columns create` reads
# these members once ([more](choosing-samples.ipynb)).
#
# | webdataset | wids |
# |---|---|
# | `.select(lambda sample: sample["cls"] < 5)` | `dataset.where("label < 5")`, SQL over columns; `dataset.select(indices)`, a mask, keys |
# | a set of keys to be dropped, in `.select` | `dataset.exclude("opted-out.txt")`: a file with a key a line, indices, an error log |
# | `.slice(1000)` (of each worker) | `dataset.select(range(1000))` |
# | `.rsample(0.1)` (others in each epoch) | `dataset.split(0.1, 0.9)[0]`: by a hash of the key, always the same |
# | other shards for validation | the same, or `train, test = dataset.split(0.9, 0.1)` |

# %%
# !{python} -m wids.tools.cli columns create {index} --field .cls=label 2>&1 | grep columns
plain = wids.ShardListDataset(index, cache_dir=cache_dir)
low = plain.where("label < 5")
keys = [plain[i]["__key__"] for i in (3, 4)]
train, test = plain.exclude(keys).split(0.9, 0.1)
pd.Series(
    {
        "all": len(plain),
        'where("label < 5")': len(low),
        "exclude(two keys)": len(plain.exclude(keys)),
        "split(0.9, 0.1) of these": f"{len(train)} and {len(test)}",
        "select(range(1000))": len(plain.select(range(1000))),
    },
    name="samples",
).to_frame()

# %% [markdown]
# ## Samples that fail
#
# `handler=wds.warn_and_continue` drops a sample, so that one rank has fewer than the others and waits for ever. Here another sample of the
# shard takes its place; the same one on every rank, and after a resume.
#
# | webdataset | wids |
# |---|---|
# | no `handler=` | the default: an error that names shard, row and key |
# | `handler=wds.warn_and_continue`, `ignore_and_continue` | `on_error="substitute"`; `error_log="bad.jsonl"` has a line for each, `stats().substitutions` their number |
# | any number of them | at most `max_errors=0.001` of the samples, then an error |
# | no check beforehand | `wids verify train.json --decode --report bad.jsonl`; `dataset.exclude("bad.jsonl")` leaves them out |

# %%
with wids.ShardWriter(f"{work_dir}/bad-%06d.tar", samples=100) as writer:  # as wds.ShardWriter(pattern, maxcount=100)
    for number in range(20):
        image = plain[number][".jpg"] if number != 7 else b"no picture"
        writer.write({"__key__": f"{number:04d}", ".jpg": image, ".cls": plain[number][".cls"]})

# !cd {work_dir} && {python} -m wids.tools.cli verify bad.json --decode --report found.jsonl 2>&1 | tail -3
logging.getLogger("wids").setLevel(logging.ERROR)  # the first one is a warning, too
tolerant = wids.ShardListDataset(f"{work_dir}/bad.json", on_error="substitute", error_log=f"{work_dir}/bad.jsonl")
substitute = tolerant[7]
print(f"dataset[7] is sample {substitute['__index__']}, in the place of {substitute['__substitute_for__']}")
print("substituted:", tolerant.stats().substitutions)
with open(f"{work_dir}/bad.jsonl") as file:
    failure = json.loads(file.readline())
print({name: failure[name] for name in ("index", "row", "key", "field")}, failure["error"].split(":")[0])
clean = tolerant.exclude(f"{work_dir}/bad.jsonl")
print(len(tolerant), "samples,", len(clean), "without the one that failed")

# %% [markdown]
# ## Sharing out, shuffling, epochs, resuming
#
# | webdataset | wids |
# |---|---|
# | `shardshuffle=100`, `.shuffle(1000)`, `.unbatched().shuffle(1000)`, `detshuffle=` | `DistributedChunkedSampler(dataset, window=4)`: chunks in a new order in each epoch, `window` of them mixed at a time; `seed=` |
# | `nodesplitter=wds.split_by_node`, `workersplitter=wds.split_by_worker` | not needed: samples are divided among ranks, batches among workers; one shard is enough for 64 ranks |
# | `resampled=True`: shards with replacement | `epochs=None`: never ends, and still each sample once in each pass |
# | `.with_epoch(n)` | `epoch_size=n * batch_size * world_size` (samples of all ranks), or not at all: epochs end together |
# | `.with_length(n)` | `len(dataset)`, `len(sampler)`, `len(loader)` |
# | `.repeat(3)` | `epochs=3` |
# | `RandomMix([a, b], probs=[0.7, 0.3])` | `wids.mix({"a": (a, 0.7), "b": (b, 0.3)})`: shares hold in every stretch ([more](mixing-datasets.ipynb)) |
# | `RoundRobin([a, b])` | the same with equal weights; `a + b` reads each sample once |
# | shards of rare classes listed several times | `weights=wids.balance(labels)`, or any number for each sample |
# | no resume in mid-epoch | `wids.resumable(loader)` has `state_dict()` and `load_state_dict(state)`, on any number of ranks |
#
# A mixture, classes evened out, and a run that is ended after ten batches and goes on:

# %%
alone = {"num_replicas": 1, "rank": 0}  # not needed under torchrun
mixture = wids.mix({"low": (low, 0.7), "all": (plain, 0.3)})
drawn = list(wids.DistributedChunkedSampler(mixture, epoch_size=1000, **alone))
print(f"of 1,000 samples {sum(i < len(low) for i in drawn)} are of the first source")

uneven = plain.where("label < 5 or row % 10 = 0")  # few of the classes 5 to 9
labels = uneven.read_column("label")
even = list(wids.DistributedChunkedSampler(uneven, weights=wids.balance(labels), epoch_size=2000, **alone))
print("samples of each class:   ", np.bincount(labels))
print("in 2,000, with weights:  ", np.bincount(labels[even]))

sampler = wids.DistributedChunkedSampler(plain, **alone)
unbroken = list(sampler)
sampler.set_epoch(0)
iterator = iter(sampler)
begun = [next(iterator) for _ in range(10 * batch_size)]
state = sampler.state_dict()  # of a DataLoader: wids.resumable(loader).state_dict()
later = wids.DistributedChunkedSampler(plain, **alone)
later.load_state_dict(state)
rest = list(later)
is_same = begun + rest == unbroken
print(f"{len(begun)} samples, then {len(rest)}: the same as {len(unbroken):,} without a break: {is_same}")

# %% [markdown]
# ## Writing
#
# | webdataset | wids |
# |---|---|
# | `wds.ShardWriter(pattern, maxcount=1000, maxsize=1e9)` | `wids.ShardWriter(pattern, samples=1000, size="1GB")`: also to `s3://`; shards appear whole, the index last |
# | `wds.TarWriter("one.tar")` | `wids.ShardWriter("one-%06d.tar")`: without limits, one shard |
# | `tarp create`, a loop over files | `wids pack photos -o 'train-%06d.tar'`: folders by class, `key.ext` files, CSV, JSONL, Parquet |
# | no index | `wids index create`: counts and checksums |
# | no check | `wids verify train.json` |
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
