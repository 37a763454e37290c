# %% [markdown]
# # Training without epochs
#
# Large training runs count steps, not epochs: the sequence of samples is endless, and the model is tested and saved every N steps.
# webdataset's users write `resampled=True` and `.with_epoch(n)` for it, draw shards with replacement, and after a restart begin with
# other samples. Here the sequence is pass after pass over all samples, so each is seen equally often, and a checkpoint holds the
# place in it. The program [train_steps.py](train_steps.py) is run three times: to its end on two ranks; ended by SIGTERM in the
# middle; and resumed from there on one rank.
#
# Takes 30 seconds on a laptop without a GPU. For your own data, set `train_url` and `test_url` (and `cache_dir`, which is then
# worth keeping), or start the program as its first lines say.

# %% tags=["parameters"]
train_url = None  # URL of an index of samples with .jpg and .cls; None: scikit-learn's digits, served from this machine
test_url = None
cache_dir = None  # None: a temporary one
classes = 10
size_px = 32
model = "small"  # or any of torchvision's, as "resnet18"
world_size = 2
resume_world_size = 1
steps = 120
batch_size = 64  # of all ranks together
required_accuracy = 0.97

# %%
import collections
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import wids

if train_url is None:
    digits = bucket.digits()
    train_url, test_url = digits.train, digits.test
if cache_dir is None:
    cache_dir = bucket.temporary("cache")
work_dir = bucket.temporary("steps")

dataset = wids.ShardListDataset(train_url, cache_dir=cache_dir)
count = len(dataset)
print(f"{len(dataset.lengths)} shards, {count:,} samples")
print(f"{steps} steps of {batch_size} samples are {steps * batch_size / count:.2f} passes")

# %% [markdown]
# ## What to write instead
#
# | webdataset | here |
# |---|---|
# | `resampled=True`: shards drawn with replacement, for ever | `DistributedChunkedSampler(dataset, epochs=None)`: pass after pass, each in a new order, without a seam |
# | `.repeat(3)` | `epochs=3` |
# | `.with_epoch(n)`, `n` batches of a rank | `epoch_size=n * batch_size * world_size`, counted in samples of all ranks |
# | `.with_length(n)` | `len(sampler)`, `len(loader)`, the same on every rank |
# | a restart begins with other samples | `wids.resumable(loader)`: its `state_dict()` in the checkpoint, and `load_state_dict(...)` |
#
# Nominal epochs (`epoch_size`) are consecutive pieces of the same endless sequence: each begins where the one before it ended.

# %%
seat = {"num_replicas": 1, "rank": 0}
endless = wids.DistributedChunkedSampler(dataset, epochs=None, **seat)
nominal = wids.DistributedChunkedSampler(dataset, epoch_size=1000, **seat)  # less than a pass
in_pieces = [*nominal, *nominal, *nominal]  # without set_epoch, each iteration is the next epoch
times = collections.Counter(collections.Counter(in_pieces).values())
is_continued = in_pieces == list(itertools.islice(endless, 3000))
print(f"3 nominal epochs of 1,000 samples are the first 3,000 of the endless sequence: {is_continued}")
print(*(f"{many:,} samples came {often} times" for often, many in sorted(times.items())), sep="\n")

# %% [markdown]
# ## The program's loop
#
# There is one loop, over steps. The learning rate rises, stays level, and falls in the last steps before `--steps`; so a run can
# be made longer. One `all_reduce` every `--log-every` steps averages the losses, and tells all ranks whether one of them got a
# signal: all ranks then end after the same step. `wids.resumable` counts the batches that the loop received, without those that
# DataLoader workers have drawn ahead.

# %%
program = pathlib.Path("train_steps.py").read_text()
print("def run(" + program.split("def run(")[1].split("\n\n\n")[0])

# %% [markdown]
# ## To the end, without a break

# %%
def start(world, name, *options):
    """Start the program on so many ranks; it writes losses and samples to files called by the name."""
    launcher = [sys.executable]
    if world > 1:
        launcher += ["-m", "torch.distributed.run", f"--nproc-per-node={world}", "--rdzv-backend=c10d"]
        launcher += ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [*launcher, "train_steps.py", "--train", train_url, "--test", test_url, "--cache-dir", cache_dir]
    command += ["--model", model, "--classes", classes, "--size", size_px, "--steps", steps, "--batch-size", batch_size]
    files = f"{work_dir}/{name}"
    command += ["--test-every", 20, "--log-losses", f"{files}.losses", "--log-samples", f"{files}.samples"]
    with open(f"{files}.txt", "w") as output:
        command = list(map(str, [*command, *options]))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def finish(process, name):
    """Wait for its end, and give what it said."""
    code = process.wait(200)
    said = pathlib.Path(f"{work_dir}/{name}.txt").read_text()
    if code:
        raise RuntimeError(said)
    return said


def lines(file):
    path = pathlib.Path(f"{work_dir}/{file}")
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


said = finish(start(world_size, "whole"), "whole")
print(*[line for line in said.splitlines() if "test accuracy" in line], sep="\n")

# %% [markdown]
# ## The same, ended in the middle and resumed on another number of ranks
#
# A scheduler sends SIGTERM before it takes a machine away. The run writes a checkpoint and ends; the next run, with `--resume`,
# continues with the next sample. (After a crash it would resume from the last periodic checkpoint, and train on the samples
# since then again, in the same order.)

# %%
checkpoint = ["--checkpoint", f"{work_dir}/run.pt", "--resume"]
run = start(world_size, "broken", *checkpoint)
try:
    while max((line[0] for line in lines("broken.samples")), default=0) < steps // 4 and run.poll() is None:
        time.sleep(0.02)
finally:
    run.terminate()  # SIGTERM; torchrun hands it on to its ranks
    run.wait(60)
ended = max(line[0] for line in lines("broken.samples"))
said = pathlib.Path(f"{work_dir}/broken.txt").read_text()
print(f"{world_size} ranks:", *[line for line in said.splitlines() if "told to stop" in line])
said = finish(start(resume_world_size, "broken", *checkpoint), "broken")
for line in (said.splitlines()[0], said.splitlines()[-1]):
    print(f"{resume_world_size} rank{'s' * (resume_world_size > 1)}:", line)

# %% [markdown]
# ## The same samples in the same order
#
# Each rank has logged the indices of its batches. A global batch takes one index from each rank in turn.


# %%
def sequence(name):
    """Global batches by step, and how many ranks read each."""
    places = {}
    ranks = {}
    for step, rank, world, indices in lines(f"{name}.samples"):
        ranks[step] = world
        for k, index in enumerate(indices):
            places[step, k * world + rank] = index
    batches = collections.defaultdict(list)
    for (step, _), index in sorted(places.items()):
        batches[step].append(index)
    return dict(batches), ranks


whole, whole_ranks = sequence("whole")
broken, broken_ranks = sequence("broken")
pd.DataFrame(
    {
        "step": step,
        "without a break": " ".join(map(str, whole[step][:6])) + " ...",
        "by ranks": whole_ranks[step],
        "ended and resumed": " ".join(map(str, broken[step][:6])) + " ...",
        "by ranks ": broken_ranks[step],
        "the same batch": whole[step] == broken[step],
    }
    for step in range(ended - 1, ended + 3)
).set_index("step")

# %% [markdown]
# ## Equally often
#
# Drawing shards with replacement is simulated for the same shards and the same number of samples: each rank draws shards at
# random, again and again, and reads each to its end.


# %%
def resampled(seed):
    """The samples of a run in which every rank draws its shards with replacement."""
    ends = np.cumsum(dataset.lengths)
    streams = []
    for rank in range(world_size):
        rng = np.random.default_rng([seed, rank])
        drawn = (rng.integers(len(ends)) for _ in itertools.count())
        samples = (i for shard in drawn for i in range(ends[shard] - dataset.lengths[shard], ends[shard]))
        streams.append(list(itertools.islice(samples, steps * batch_size // world_size)))
    return np.array(streams).T.ravel()


ours = np.concatenate([whole[step] for step in sorted(whole)])
others = [resampled(seed) for seed in range(100)]


def seen(samples):
    """How often each sample was seen."""
    return np.bincount(samples, minlength=count)


rows = []
passes = [n for n in (1, 2, 3, 5, 10) if n * count <= len(ours)]
for n in passes:
    for way, runs in (("wids", [ours]), ("resampled", others)):
        had = np.array([seen(run[: n * count]) for run in runs])
        rows.append(
            {
                "passes": n,
                "way": way,
                "never seen": f"{(had == 0).mean():.1%}",
                "seen least": f"{had.min(axis=1).mean():.1f}",
                "seen most": f"{had.max(axis=1).mean():.1f}",
            }
        )
often_table = pd.DataFrame(rows).set_index(["passes", "way"])
often_table

# %%
BLUE, VERMILLION = "#0072B2", "#D55E00"  # Okabe and Ito's, for all eyes
fig, ((loss_ax, accuracy_ax), (often_ax, unseen_ax)) = plt.subplots(
    2, 2, figsize=(10, 6.6), dpi=85, constrained_layout=True
)

for name, colour, label, style in (
    ("whole", BLUE, "without a break", {"lw": 2.5}),
    ("broken", VERMILLION, f"ended at step {ended}, resumed", {"lw": 1.2, "ls": "--"}),
):
    said = lines(f"{name}.losses")
    for ax, points in (
        (loss_ax, [(line["step"], line["loss"]) for line in said if "loss" in line]),
        (accuracy_ax, [(line["step"], 100 * line["right"] / line["count"]) for line in said if "right" in line]),
    ):
        ax.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=label, **style)
for ax, title in ((loss_ax, "Training loss"), (accuracy_ax, "Test accuracy, %")):
    ax.axvline(ended, color=VERMILLION, lw=1, ls=":")
    ax.set_title(title, loc="left", fontweight="bold", fontsize=10.5)
    ax.set_xlabel("step")
    ax.set_xlim(0, steps + 2)
loss_ax.set_yscale("log")
loss_ax.legend(frameon=False)
accuracy_ax.axhline(100 * required_accuracy, color="black", lw=0.8, ls=":")
accuracy_ax.text(1, 100 * required_accuracy, f"{required_accuracy:.0%}", va="bottom", fontsize=8)

often_ax.set_title(f"How often a sample was seen in {steps} steps", loc="left", fontweight="bold", fontsize=10.5)
for samples, colour, label, shift in (
    (ours, BLUE, "wids", -0.2),
    (others[0], VERMILLION, "shards with replacement (one run)", 0.2),
):
    times, how_many = np.unique(seen(samples), return_counts=True)
    often_ax.bar(times + shift, how_many, 0.4, color=colour, label=label)
often_ax.set_xlabel("times seen")
often_ax.set_ylabel("samples")
often_ax.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
often_ax.set_ylim(0, often_ax.get_ylim()[1] * 1.25)
often_ax.legend(frameon=False)

at = np.arange(batch_size, min(len(ours), 4 * count) + 1, batch_size)


def never_seen(samples):
    """% of all samples not seen yet, after each of the steps."""
    first = np.full(count, len(samples))
    np.minimum.at(first, samples, np.arange(len(samples)))
    return 100 * (first[None] >= at[:, None]).mean(axis=1)


unseen = np.array([never_seen(samples) for samples in others])
low, high = np.percentile(unseen, [5, 95], axis=0)
unseen_ax.set_title("Samples not seen yet, %", loc="left", fontweight="bold", fontsize=10.5)
unseen_ax.plot(at / count, never_seen(ours), color=BLUE, lw=2.5, label="wids")
unseen_ax.plot(at / count, unseen.mean(axis=0), color=VERMILLION, lw=2, label="with replacement (mean of 100 runs)")
unseen_ax.fill_between(at / count, low, high, color=VERMILLION, alpha=0.2, lw=0, label="9 of 10 runs")
unseen_ax.set_xlabel("samples read, in passes over the data")
unseen_ax.set_ylim(0, 100)
unseen_ax.set_xlim(0)
unseen_ax.legend(frameon=False)
for ax in fig.axes:
    ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# With replacement, about a third of the data has not been seen after as many samples as one pass has (with many shards 1/e, 37 %),
# some shards weigh several times as much as others, and the differences grow, with the square root of the number of passes. In
# the endless sequence no sample is ever more than one time ahead of another, at whatever step one looks.

# %% [markdown]
# In the end both runs have trained on the same samples in the same order, and classify the test samples alike:

# %%
results = {}
for name, title in (("whole", "without a break"), ("broken", f"ended at step {ended}, resumed")):
    test = lines(f"{name}.losses")[-1]
    results[title] = {
        "test samples": test["count"],
        "test accuracy": f"{test['right'] / test['count']:.2%}",
        "samples trained on": f"{steps * batch_size:,}",
        "in the same order": whole == broken,
    }
pd.DataFrame(results).T
