# %% [markdown]
# # Lightning: two devices, an exact metric, and a resume in mid-epoch
#
# Tar shards in a `wids.lightning.DataModule`, trained by Lightning's `Trainer` on two devices. The validation set has an odd number
# of samples: with `tail="mask"` the accuracy is that of a single process, to the sample. Then a run is ended in the middle
# of an epoch and goes on from its checkpoint, on two devices and on one: every sample of the epoch is read once, in the
# order of the uninterrupted run.
#
# Takes about 30 s on two CPU cores. For your own data set `train_url`, `test_url` and `make_sample`; on a machine with GPUs
# take `accelerator = "gpu"` and as many `devices`.

# %% tags=["parameters"]
train_url = None  # index of the shards; None: scikit-learn's digits, served from this machine
test_url = None
cache_dir = None  # on a fast local disk; None: a temporary directory
accelerator = "cpu"
devices = 2
workers = 0  # of each DataLoader; some, where decoding takes time
batch_size = 24  # of each device
epochs = 8
validation_shards = 3  # the last ones of the training index
checkpoint_steps = 10
end_at = [3, 13]  # epoch and batch after which the run is ended

# %%
import glob
import logging
import os
import warnings

os.environ["OMP_NUM_THREADS"] = "1"  # processes are forked from this one, and a pool of threads does not survive that

import bucket
import lightning
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
from torch.utils.data import Subset

import wids
import wids.lightning

for name in ("lightning.pytorch", "lightning.fabric", "torch.multiprocessing.spawn"):
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # deprecated calls of its own, and advice to take more workers

if train_url is None:
    digits = bucket.digits(samples=50)
    train_url, test_url = digits.train, digits.test
if cache_dir is None:
    cache_dir = bucket.temporary("cache")
runs = bucket.temporary("runs")

# %% [markdown]
# ## The data
#
# The module makes the loaders: each device reads its own part, shuffled for training, in order for the rest. It also keeps in
# Lightning's checkpoints how far the training is, so that `fit(ckpt_path=...)` goes on with the next sample. Given the datasets
# alone, it needs no class: `wids.lightning.DataModule(train, validation, test, batch_size=24)`.


# %%
def make_sample(sample):
    pixels = np.asarray(sample[".jpg"], dtype=np.float32) / 255
    return torch.from_numpy(pixels)[None], sample[".cls"], sample["__index__"], sample.get("__valid__", True)


class Data(wids.lightning.DataModule):
    def setup(self, stage):  # noqa: ARG002 - Lightning says what for
        data = wids.ShardListDataset(train_url, cache_dir=cache_dir).add_transform(make_sample)
        split = sum(data.lengths[:-validation_shards])
        self.train_dataset, self.val_dataset = data.select(range(split)), data.select(range(split, len(data)))
        self.test_dataset = wids.ShardListDataset(test_url, cache_dir=cache_dir).add_transform(make_sample)


def make_data():
    # Workers are forked, as their function is this notebook's; those of a program should come from a "forkserver".
    context = "fork" if workers else None
    return Data(batch_size=batch_size, num_workers=workers, multiprocessing_context=context)


# %% [markdown]
# ## The model
#
# Its metric counts the correct samples for which `__valid__` is true, over all devices. Only for the figures at the end, it
# also records which samples it was trained on, in the global order: that takes one sample from each rank in turn.


# %%
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(1024, 10)),
        )
        self.accuracy, self.counted = torchmetrics.MeanMetric(), torchmetrics.SumMetric()
        self.history = []  # of each batch: epoch, loss, samples of all devices

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch):
        images, labels, indices, _ = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        everybody = self.all_gather(indices).reshape(self.trainer.world_size, -1).T.flatten().tolist()
        self.history.append([self.current_epoch, loss.item(), everybody])
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.05, total_iters=epochs - 1)]

    def validation_step(self, batch):
        images, labels, _, valid = batch
        right = self(images).argmax(1) == labels
        self.accuracy.update(right.float(), weight=valid.float())  # torchmetrics adds up what all devices have
        self.counted.update(valid.sum())
        self.log_dict({"accuracy": self.accuracy, "counted": self.counted})

    test_step = validation_step

    def on_save_checkpoint(self, checkpoint):
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint):
        self.history = checkpoint["history"]


# %% [markdown]
# ## A run on two devices
#
# In a notebook, `ddp_notebook` starts the processes by forking this one; a program takes `strategy="ddp"`, and all else is
# the same. A run writes checkpoints: one every few steps, and one at the end of each epoch.


# %%
class End(Callback):
    """The end of a machine: after a batch in mid-epoch."""

    def on_train_batch_end(self, trainer, *more):
        *_, batch = more
        if [trainer.current_epoch, batch + 1] == end_at:
            raise ConnectionError("this machine is gone")


def build_trainer(on_devices, *callbacks):
    return lightning.Trainer(
        accelerator=accelerator,
        devices=on_devices,
        strategy="ddp_notebook",
        max_epochs=epochs,
        callbacks=list(callbacks),
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def fit(name, on_devices, *callbacks, resume_from=None):
    """Train until the end of all epochs: a directory with checkpoints."""
    steps = ModelCheckpoint(f"{runs}/{name}", "{epoch}-{step}", every_n_train_steps=checkpoint_steps, save_top_k=-1)
    ends = ModelCheckpoint(f"{runs}/{name}", "last", every_n_epochs=1, save_on_train_epoch_end=True)
    lightning.seed_everything(0, verbose=False)
    trainer = build_trainer(on_devices, steps, ends, *callbacks)
    trainer.fit(Model(), datamodule=make_data(), ckpt_path=resume_from)
    return f"{runs}/{name}"


whole = torch.load(fit("whole", devices) + "/last.ckpt", weights_only=False)
print(f"{epochs} epochs, {whole['global_step']} steps, loss of the last one {whole['history'][-1][1]:.3f}")

# %% [markdown]
# ## The exact metric
#
# Two devices cannot share an odd number of samples, so one is repeated. `__valid__` is False where it is, so it does not count.
# Here the model is tested on both devices, and again in this process by a plain loop. The last row is the result without the
# mask: `DistributedSampler`, which Lightning uses in place of other samplers, repeats the first sample.


# %%
def classified_correctly(model, dataset):
    """Of each sample, whether the model classifies it correctly: a plain loop in one process, without any sampler."""
    with torch.no_grad():
        return [(model(image[None]).argmax(1) == label).item() for image, label, *_ in dataset]


model = Model()
model.load_state_dict(whole["state_dict"])
dataset = wids.ShardListDataset(train_url, cache_dir=cache_dir).add_transform(make_sample)
train_samples = sum(dataset.lengths[:-validation_shards])
sets = {
    "validation": Subset(dataset, range(train_samples, len(dataset))),
    "test": wids.ShardListDataset(test_url, cache_dir=cache_dir).add_transform(make_sample),
}
on_devices = {
    "validation": build_trainer(devices).validate(model, datamodule=make_data(), verbose=False)[0],
    "test": build_trainer(devices).test(model, datamodule=make_data(), verbose=False)[0],
}
rows = []
for name, samples in sets.items():
    right = classified_correctly(model, samples)
    padded = right + right[: -len(right) % devices]
    found = on_devices[name]
    rows += [
        (name, "one process", len(right), sum(right)),
        (name, f"{devices} devices, tail='mask'", int(found["counted"]), round(found["accuracy"] * found["counted"])),
        (name, f"{devices} devices, padded", len(padded), sum(padded)),
    ]
metric = pd.DataFrame(rows, columns=["set", "how", "counted", "classified correctly"]).set_index(["set", "how"])
metric["accuracy, %"] = (100 * metric["classified correctly"] / metric["counted"]).round(3)
metric

# %% [markdown]
# ## Ended in mid-epoch, resumed on two devices and on one
#
# The same run once more, but after some batches of an epoch it is killed. Both runs below resume from its last checkpoint. Lightning
# does not warn that "your dataloader is not resumable", as it would with a plain `DataLoader`: the module's has a state
# ([when it warns](../.docs/guides/lightning.md)).

# %%
try:
    fit("ended", devices, End())
except (ProcessRaisedException, ProcessExitedException) as error:
    print(f"{type(error).__name__}: the run has ended in mid-epoch")
checkpoint = max(glob.glob(f"{runs}/ended/*-*.ckpt"), key=os.path.getmtime)
print("goes on from", os.path.basename(checkpoint))
ended = torch.load(checkpoint, weights_only=False)
resumed = {
    count: torch.load(fit(f"resumed-{count}", count, resume_from=checkpoint) + "/last.ckpt", weights_only=False)
    for count in (devices, 1)
}

# %%
def read_in(run, epoch):
    """The samples that a run's batches had in an epoch, in the global order."""
    return [index for of_epoch, _, indices in run["history"] if of_epoch == epoch for index in indices]


rows = []
for epoch in range(epochs):
    expected = read_in(whole, epoch)
    row = {"epoch": epoch, "samples, uninterrupted": len(set(expected))}
    for count, run in resumed.items():
        read = read_in(run, epoch)
        row[f"resumed on {count}"] = len(set(read))
        row[f"on {count}: same order"] = read[:train_samples] == expected[:train_samples]
    rows.append(row)
orders = pd.DataFrame(rows).set_index("epoch")
orders

# %% [markdown]
# The left figure shows the interrupted epoch: rings are the samples of the uninterrupted run, dots those of the others.
# The right one shows the loss: on two devices the resumed run repeats the steps of the whole one; on one device a batch
# has half as many samples.

# %%
blue, orange, grey = "#0072B2", "#E69F00", "#999999"
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), dpi=80, width_ratios=[3, 2], layout="constrained")
expected, read = read_in(whole, end_at[0]), read_in(resumed[1], end_at[0])
before = len(read_in(ended, end_at[0]))
left.scatter(
    range(len(expected)), expected, s=20, facecolors="none", edgecolors=grey, linewidths=0.6, label="uninterrupted"
)
left.scatter(range(before), read[:before], s=4, color=blue, label=f"until the checkpoint, {devices} devices")
left.scatter(range(before, len(read)), read[before:], s=4, color=orange, label="after it, 1 device")
left.axvline(before, color="black", linestyle="--", linewidth=1)
left.set(
    title=f"Samples of epoch {end_at[0]}", xlabel="place in the epoch", ylabel="sample", ylim=(-20, train_samples * 1.2)
)
left.legend(loc="upper left", ncols=3, frameon=False, fontsize="small", handletextpad=0.1, columnspacing=1)


def smooth_losses(run, width=480):
    """(samples read, loss) of a run's batches, each the mean over about so many samples."""
    sizes = np.array([len(indices) for *_, indices in run["history"]])
    losses = np.array([loss for _, loss, _ in run["history"]])
    ends = np.cumsum(sizes)
    group = ends // width
    return (
        [ends[group == g].mean() for g in np.unique(group)],
        [np.average(losses[group == g], weights=sizes[group == g]) for g in np.unique(group)],
    )


right.plot(*smooth_losses(whole), color=grey, linewidth=5, alpha=0.5, label="uninterrupted")
right.plot(*smooth_losses(resumed[devices]), color=blue, linewidth=1.5, label=f"resumed on {devices} devices")
right.plot(*smooth_losses(resumed[1]), color=orange, linewidth=1.5, label="resumed on 1 device")
right.axvline(sum(len(indices) for *_, indices in ended["history"]), color="black", linestyle="--", linewidth=1)
right.set(title="Training loss", xlabel="samples read", ylabel="cross entropy", yscale="log")
right.legend(frameon=False)
plt.show()
