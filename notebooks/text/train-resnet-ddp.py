# %% [markdown]
# # DDP training of a ResNet on shards behind a URL
#
# A torchvision ResNet is trained by several processes on an ImageNet-like dataset: tar shards with `.jpg` and `.cls`
# members, found through the URL of their index. The dataset, the sampler and the loop are plain PyTorch; **Ray** starts
# one process for each rank. The last cells show that the ranks had equally many steps, that together they read every
# sample of an epoch exactly once, and which shards each of them needed.
#
# Takes about half a minute on two CPU cores (resnet18 on scikit-learn's digits); with GPUs it takes resnet50. For data
# of your own, set `train_url`, `test_url`, `classes`, `size` and `world_size` below. The same as a program for
# `torchrun`, with checkpoints: [`train_ddp.py`](train_ddp.py).

# %% tags=["parameters"]
train_url = None  # "https://bucket/train.json", "gs://...", a path; None: scikit-learn's digits, served by this machine
test_url = None
classes = 10
size = 32  # pixels; 224 for ImageNet
world_size = 2  # processes
batch_size = 20  # of each
epochs = 4
workers = 0  # of each rank's DataLoader; 4 to 16 for photographs
cache_dir = None  # on a fast local disk; None: a temporary directory
cache_size = 50_000_000_000  # bytes

# %%
import os
import time

import bucket
import matplotlib.pyplot as plt
import pandas as pd
import ray
import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wids

digits = None
if train_url is None:
    digits = bucket.digits()  # stands for a bucket: shards on a web server
    train_url, test_url = digits.train, digits.test
if cache_dir is None:
    cache_dir = bucket.temporary("cache")
has_gpu = torch.cuda.is_available()

# %% [markdown]
# ## Dataset
#
# A `ShardListDataset` is a map-style dataset: it has a length, and `dataset[i]` fetches the shard that it needs. The
# transform turns a sample, a dict of decoded members, into tensors. `__index__` is only carried along for the proof at
# the end.

# %%
normalize = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
to_tensor = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalize])
if size >= 64:
    augment = v2.Compose([v2.RGB(), v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), to_tensor])
else:  # a digit is not a digit any more when it is flipped or cut in half
    augment = v2.Compose([v2.RGB(), v2.RandomCrop(size, padding=1, padding_mode="edge"), to_tensor])
center = v2.Compose([v2.RGB(), v2.Resize(size), v2.CenterCrop(size), to_tensor])


def make_training_sample(sample):
    return augment(sample[".jpg"]), sample[".cls"], sample["__index__"]


def make_test_sample(sample):
    # __valid__ is False on samples that are only there to make the ranks equal
    return center(sample[".jpg"]), sample[".cls"], sample["__valid__"]


dataset = wids.ShardListDataset(train_url, cache_dir=cache_dir, cache_size=cache_size)
print(f"{len(dataset):,} samples in {len(dataset.lengths)} shards")
print({name: value for name, value in dataset[0].items() if name != "__shard__"})

# %% [markdown]
# ## Loaders
#
# `DistributedChunkedSampler` gives each rank its own part of each epoch: shuffled, local to few shards, and equally
# long on all ranks. For testing, `tail="mask"` reads each sample once and marks what is repeated to make ranks equal.


# %%
def make_loaders(rank, world_size):
    options = {"cache_dir": cache_dir, "cache_size": cache_size}
    ranks = {"rank": rank, "num_replicas": world_size}
    train = wids.ShardListDataset(train_url, **options).add_transform(make_training_sample)
    test = wids.ShardListDataset(test_url, **options).add_transform(make_test_sample)
    return (
        DataLoader(
            train,
            batch_size=batch_size,
            sampler=wids.DistributedChunkedSampler(train, chunksize=1000, **ranks),
            num_workers=workers,
            pin_memory=has_gpu,
            persistent_workers=workers > 0,
        ),
        DataLoader(
            test,
            batch_size=batch_size,
            sampler=wids.DistributedChunkedSampler(test, shuffle=False, tail="mask", **ranks),
            num_workers=workers,
            pin_memory=has_gpu,
            persistent_workers=workers > 0,
        ),
    )


def make_model():
    network = torchvision.models.resnet50 if has_gpu else torchvision.models.resnet18
    return network(num_classes=classes)


# %% [markdown]
# ## Training
#
# A step, an epoch, a test. Nothing here depends on shards.


# %%
def train_epoch(model, loader, optimizer, schedule, device):
    """(mean loss, accuracy, indices of the samples) of an epoch on this rank."""
    model.train()
    loss_sum, hits, indices = 0.0, 0, []
    for images, labels, index in loader:
        logits = model(images.to(device))
        loss = cross_entropy(logits, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        loss_sum += loss.item() * len(labels)
        hits += (logits.argmax(1).cpu() == labels).sum().item()
        indices += index.tolist()
    return loss_sum / len(indices), hits / len(indices), indices


@torch.no_grad()
def count_right(model, loader, device):
    """(right, all) of this rank's share of the test samples."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for images, labels, valid in loader:
        right = model(images.to(device)).argmax(1).cpu() == labels
        counts += torch.stack([(right & valid).sum(), valid.sum()])
    return counts


def make_optimizer(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)

# %% [markdown]
# ## The quick check
#
# One process, a few steps, before anything is launched: do the samples arrive, does the loss fall?

# %%
torch.manual_seed(0)
train_loader, _ = make_loaders(rank=0, world_size=1)
device = torch.device("cuda" if has_gpu else "cpu")
model = make_model().to(device).train()
optimizer, _ = make_optimizer(model, 100)
start = time.monotonic()
for step, (images, labels, _) in enumerate(train_loader):
    loss = cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step:2}: loss {loss.item():.2f}")
    if step == 10:
        break
del train_loader, model  # and their processes

# %% [markdown]
# ## A bounded cache
#
# Each dataset keeps the limit that it was given as `cache_size`. For a directory that several jobs or programs share there is
# also a background process that cleans it as long as this one lives; it never deletes a shard that a process has open.

# %%
cleaner = wids.create_cleanup_background_process(cache_dir, maxsize=cache_size, every=10)

# %% [markdown]
# ## The ranks, by Ray
#
# One remote task is one rank. Ray sends the function with what it needs from this notebook; on a cluster the tasks land
# wherever there are GPUs. The ranks find each other through a store that this process holds.


# %%
def run_rank(rank, world_size, store_address):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    host, port = store_address
    store = dist.TCPStore(host, port, is_master=False)
    dist.init_process_group("nccl" if has_gpu else "gloo", store=store, rank=rank, world_size=world_size)
    device = torch.device("cuda" if has_gpu else "cpu")  # Ray shows each task its own GPU only
    train_loader, test_loader = make_loaders(rank, world_size)
    model = DistributedDataParallel(make_model().to(device))
    optimizer, schedule = make_optimizer(model, epochs * len(train_loader))
    history = []
    for epoch in range(epochs):
        start = time.monotonic()
        train_loader.sampler.set_epoch(epoch)
        loss, accuracy, indices = train_epoch(model, train_loader, optimizer, schedule, device)
        seconds = time.monotonic() - start
        for statistics in model.module.buffers():  # each rank has its own of batch normalization; test one model
            dist.broadcast(statistics, src=0)
        counts = count_right(model.module, test_loader, device).to(device)
        dist.all_reduce(counts)
        right, tested = counts.tolist()
        history.append(
            {
                "epoch": epoch,
                "rank": rank,
                "steps": len(train_loader),
                "loss": loss,
                "training accuracy": accuracy,
                "test accuracy": right / tested,
                "tested": tested,
                "seconds": seconds,
                "indices": indices,
            }
        )
    dist.destroy_process_group()
    return history


os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray.init(num_cpus=max(world_size, os.cpu_count()), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
store = dist.TCPStore(ray.util.get_node_ip_address(), 0, is_master=True, wait_for_workers=False)
launch = ray.remote(num_cpus=1, num_gpus=1 if has_gpu else 0)(run_rank)
ranks = [launch.remote(rank, world_size, (store.host, store.port)) for rank in range(world_size)]
history = pd.DataFrame([row for rank in ray.get(ranks) for row in rank])
ray.shutdown()
cleaner.terminate()
cleaner.join()

# %% [markdown]
# ## What came out
#
# The ranks ended each epoch together, after equally many steps. Where the samples do not divide evenly, some ranks read
# one sample more than once instead of waiting for each other for ever.

# %%
history.drop(columns="indices").set_index(["epoch", "rank"]).round(
    {"loss": 3, "training accuracy": 3, "test accuracy": 4, "seconds": 1}
)

# %%
ends = pd.Series(dataset.lengths).cumsum()
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), dpi=90, width_ratios=(2, 3))
for name, color in (("training accuracy", "#0072B2"), ("test accuracy", "#D55E00")):
    left.plot(history.groupby("epoch")[name].mean(), marker="o", color=color, label=name)
left.set(xlabel="epoch", xticks=range(epochs), ylim=(0, 1.02), title="Learning")
left.legend(loc="lower right")
reads = pd.DataFrame(
    [
        {"rank": row.rank, "shard": int(ends.searchsorted(index, side="right"))}
        for row in history[history.epoch == 0].itertuples()
        for index in row.indices
    ]
)
table = pd.crosstab(reads["rank"], reads["shard"])
bottom = 0
for rank in table.index:
    color = plt.cm.cividis(rank / max(1, world_size - 1))
    right.bar(table.columns, table.loc[rank], bottom=bottom, color=color, edgecolor="white", label=f"rank {rank}")
    bottom = bottom + table.loc[rank]
right.set(xlabel="shard", ylabel="samples", title="Who read which shard in epoch 0", xticks=table.columns)
right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, frameon=False)
fig.tight_layout()
plt.show()

# %%
last = history.iloc[-1]
read = [index for indices in history.indices[history.epoch == last["epoch"]] for index in indices]
print(f"{world_size} ranks, {epochs} epochs: test accuracy {last['test accuracy']:.2%} of {last['tested']:,} samples")
print(f"last epoch: {len(set(read)):,} of {len(dataset):,} samples read, {len(read) - len(set(read))} of them twice")
