# %% [markdown]
# # Training with Hugging Face: Trainer, accelerate, and shards on the Hub
#
# Shards are read from `hf://datasets/...` by the URL of their index; `transformers.Trainer` trains on them with a
# `ShardListDataset` and our sampler, which needs one small subclass; and plain `accelerate` does the same in two processes. It
# ends with the samples that each rank read: both ranks together read each sample once.
#
# Takes 40 seconds on a laptop without a GPU. For your own data, set `train_url` and `test_url`. Without them, a small server
# on this machine stands in for the Hub (`hub.py`): with commits, listings, and a store behind signed redirects.

# %% tags=["parameters"]
train_url = None  # as "hf://datasets/user/name/train.json", or any other; None: scikit-learn's digits, from a stand-in
test_url = None
cache_dir = None  # None: a temporary one
classes = 10
world_size = 2
epochs = 12
batch_size = 32

# %%
import json
import os
import subprocess
import sys

import bucket
import hub

stand_in = None
if train_url is None:
    stand_in = hub.Hub(bucket.digits().directory, "digits/digits")
    os.environ["HF_ENDPOINT"] = stand_in.url
    train_url, test_url = "hf://datasets/digits/digits/train.json", "hf://datasets/digits/digits/test.json"
os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
if cache_dir is None:
    cache_dir = bucket.temporary("cache")
work_dir = bucket.temporary("work")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import transformers
from accelerate.data_loader import prepare_data_loader

import wids

# %% [markdown]
# ## Shards on the Hub
#
# A data set repository holds the tars and their index, whose URLs are relative to it. A run reads one commit of it, by default
# the newest; `hf://datasets/user/name@COMMIT/train.json` names one. The token is that of `hf auth login`, or `HF_TOKEN`.

# %%
look = wids.ShardListDataset(train_url, access="range", prefetch=False)  # no shard is fetched for a look
sample = look[1000]
print(f"{len(look):,} samples in {len(look.shards)} shards; sample 1000 is {sample['__key__']}, a {sample['.cls']}")
print(sample["__shard__"])

# %% [markdown]
# ## Trainer
#
# `Trainer` expects a model that returns its loss and logits, and samples that are dicts of the model's inputs.
#
# In evaluation, samples are repeated where the ranks do not divide the test set. `tail="mask"` marks them, and the label -100 is
# left out of loss and metric, so that the accuracy is exact on any number of ranks.


# %%
def make_sample(sample):
    image = sample[".jpg"].convert("L").resize((32, 32))
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, 32, 32).float() / 255
    return {"pixel_values": pixels, "labels": sample[".cls"] if sample.get("__valid__", True) else -100}


class Classifier(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, stride=2, padding=1), torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.Linear(32 * 8 * 8, classes),
        )  # fmt: skip

    def forward(self, pixel_values, labels=None):
        logits = self.layers(pixel_values)
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100), "logits": logits}


def accuracy(prediction):
    counts = prediction.label_ids != -100
    right = prediction.predictions.argmax(1) == prediction.label_ids
    return {"accuracy": right[counts].mean(), "counted": int(counts.sum())}


# %% [markdown]
# By default, `Trainer` draws samples uniformly at random, which opens a shard for almost every one of them, and `accelerate`
# divides the batches of any loader among the ranks. The sampler does both already, and `accelerate` leaves a loader of
# `wids.resumable` as it is: nothing is divided a second time, or cut of what the ranks gather in an evaluation.


# %%
class ShardTrainer(transformers.Trainer):
    def make_loader(self, dataset, batch_size, **order):
        sampler = wids.DistributedChunkedSampler(dataset, seed=self.args.seed, **order)  # of this rank
        loader = torch.utils.data.DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        return wids.resumable(loader)

    def get_train_dataloader(self):
        return self.make_loader(self.train_dataset, self.args.train_batch_size)

    def get_eval_dataloader(self, eval_dataset=None):
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self.make_loader(dataset, self.args.eval_batch_size, shuffle=False, tail="mask")


# %%
train_dataset = wids.ShardListDataset(train_url, cache_dir=cache_dir).add_transform(make_sample)
test_dataset = wids.ShardListDataset(test_url, cache_dir=cache_dir).add_transform(make_sample)
transformers.set_seed(0)
trainer = ShardTrainer(
    model=Classifier(classes),
    args=transformers.TrainingArguments(
        output_dir=f"{work_dir}/trainer",
        num_train_epochs=epochs,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        learning_rate=3e-3,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    ),
    train_dataset=train_dataset,
    eval_dataset=test_dataset,
    compute_metrics=accuracy,
)
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
history = pd.DataFrame([log for log in trainer.state.log_history if "eval_accuracy" in log])
history[["epoch", "step", "eval_loss", "eval_accuracy", "eval_counted"]].set_index("epoch").round(3)

# %% [markdown]
# Each shard came from the Hub's store once, whatever the number of epochs. The Hub's API was asked for the commit and its files,
# the resolver where each of them is:

# %%
if stand_in is not None:
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(stand_in.requests.items())))
print(f"{train_dataset.stats().fetches} shards fetched for training, {test_dataset.stats().fetches} for testing")

# %% [markdown]
# ## accelerate, in two processes
#
# `train_accelerate.py` is the same without `Trainer`: model and optimizer are prepared, the loaders only wrapped. `torchrun` or
# `accelerate launch` start it; here the ranks share the cache that the notebook has filled.

# %%
report = f"{work_dir}/report.json"
command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size)]
command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
command += ["train_accelerate.py", "--train", train_url, "--test", test_url, "--classes", str(classes)]
command += ["--batch-size", str(batch_size // world_size), "--epochs", "3", "--cache-dir", cache_dir]
finished = subprocess.run(
    [*command, "--report", report],
    check=False,  # what it printed is worth more than its exit code
    env={**os.environ, "OMP_NUM_THREADS": "1"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=200,
)
if finished.returncode:
    raise RuntimeError(finished.stdout)
print("\n".join(line for line in finished.stdout.splitlines() if line.startswith("epoch")))

# %% [markdown]
# ## The samples that each rank read
#
# For each epoch, how many of the samples were read by one rank, by several, or by none. The second half of the table is for a
# loader with the same order that accelerate prepares for its two processes, as `accelerator.prepare(loader)` does.

# %%
with open(report) as file:
    reported = json.load(file)

total = len(train_dataset)


def counted(name, epoch, of_ranks):
    times = np.bincount(np.concatenate(of_ranks), minlength=total)
    return {
        "loader": name,
        "epoch": epoch,
        "batches of a rank": -(-len(of_ranks[0]) // (batch_size // world_size)),
        "read once": int((times == 1).sum()),
        "read again": int((times > 1).sum()),
        "never read": int((times == 0).sum()),
    }


def prepared(indices, rank):
    loader = torch.utils.data.DataLoader(indices, batch_size=batch_size // world_size)
    shared_out = prepare_data_loader(loader, put_on_device=False, num_processes=world_size, process_index=rank)
    return [index for batch in shared_out for index in batch.tolist()]


rows, wrong = [], []
for epoch in range(len(reported["read"][0])):
    of_ranks = [read[epoch] for read in reported["read"]]
    rows.append(counted("wrapped for one process", epoch, of_ranks))
    wrong.append(counted("prepared", epoch, [prepared(read, rank) for rank, read in enumerate(of_ranks)]))
table = pd.DataFrame(rows + wrong).set_index(["loader", "epoch"])
table

# %%
figure, axes = plt.subplots(figsize=(7.5, 2.6), dpi=90, layout="constrained")
for rank, read in enumerate(reported["read"]):
    colour = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"][rank % 4]
    axes.scatter(range(len(read[0])), read[0], s=4, color=colour, label=f"rank {rank}", linewidths=0)
for end in np.cumsum(train_dataset.lengths)[:-1]:
    axes.axhline(end, color="0.85", linewidth=0.6, zorder=0)
axes.set(xlabel="place in the rank's epoch 0", ylabel="sample (lines: shards)")
axes.set_title("Each rank has its own part of the data", loc="left")
axes.spines[["top", "right"]].set_visible(False)
axes.legend(frameon=False, markerscale=3, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()
