# %% [markdown]
# # Ray Train: a run that loses a node in mid-epoch, and goes on with the next sample
#
# `ray.train.torch.TorchTrainer` trains on tar shards with two workers, each on a node of its own with its own cache. In the
# middle of an epoch one node is taken away, as clouds do with spot machines; the run goes on from its last checkpoint on the
# node that is left. Over both runs every sample of that epoch is read exactly once, in the very order of a run that was
# never ended.
#
# Takes about a minute on two CPU cores, most of it Ray's start. For your own data set `train_url`, `test_url` and
# `make_sample`; for a cluster of your own `ray_address`, `storage_path`, `cache_dir` and the numbers of workers.

# %% tags=["parameters"]
train_url = None  # index of the shards; None: scikit-learn's digits, served from this machine
test_url = None
ray_address = None  # "auto" or a cluster's address; None: a cluster of two nodes on this machine
storage_path = None  # for checkpoints, where all nodes can write (s3://...); None: a temporary directory
cache_dir = None  # on the local disk of each node; None: the node's $WIDS_CACHE
workers = 2  # of the first run
workers_later = 1  # of the one that goes on
use_gpu = False
epochs = 7
global_batch = 48  # of all workers together: it stays when their number changes
checkpoint_steps = 9
lost_at = [2, 23]  # epoch and step in which the last worker's node is lost

# %%
import itertools
import os
import tempfile

place = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # short: names of sockets in it have 107 bytes at most
os.environ["RAY_TMPDIR"] = place.name
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # as Ray will do by itself, and warns of
# A small machine: one thread for each worker, a look at them five times a second, time to start if others use it too,
# and no process that waits for preemptions.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "200"
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"

import bucket
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import ray
import ray.train.torch
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from ray.cluster_utils import Cluster
from torch import distributed, nn

import wids

if train_url is None:
    digits = bucket.digits(samples=25)
    train_url, test_url = digits.train, digits.test

# %% [markdown]
# ## The cluster
#
# Each node has a directory of its own for the cache, as machines have a disk of their own. Ray's `Cluster` starts both nodes
# here; with `ray_address` a real one is used instead.

# %%
cluster = None
if ray_address is None:
    caches = bucket.temporary("caches")

    def node(name, cpus):
        disk = {"WIDS_CACHE": f"{caches}/{name}"}
        return {"num_cpus": cpus, "object_store_memory": 80_000_000, "env_vars": disk, "include_log_monitor": False}

    cluster = Cluster()
    cluster.add_node(**node("A", cpus=workers_later), include_dashboard=False, no_monitor=True)
    node_b = cluster.add_node(**node("B", cpus=workers - 1))
    ray_address = cluster.address
ray.init(ray_address, log_to_driver=False, logging_level="error")
this_node = ray.get_runtime_context().get_node_id()
nodes = sorted([each["NodeID"] for each in ray.nodes()], key=lambda node: (node != this_node, node))
node_names = {node: f"node {chr(ord('A') + n)}" for n, node in enumerate(nodes)}
print(f"{len(node_names)} nodes")

# %% [markdown]
# ## What each worker does
#
# It is a plain PyTorch loop. The sampler finds rank and world size in the process group that Ray Train sets up, and
# `prepare_data_loader` leaves it alone. `wids.resumable` is around Ray's loader, which is a batch ahead of the loop: so it counts
# what the loop has received. A checkpoint holds the model, the optimizer and `loader.state_dict()`, which is the same on all ranks.
#
# Only for the figures at the end, the ranks also exchange the `__index__`es of each batch, and the names of the shards that
# were downloaded.


# %%
def make_sample(sample):
    pixels = np.asarray(sample[".jpg"], dtype=np.float32) / 255
    return torch.from_numpy(pixels)[None], sample[".cls"], sample["__index__"], sample.get("__valid__", True)


def build_model():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1024, 10)),
    )


# %%
class Fetches(list):
    """A hook: the shards that this process has fetched."""

    def __call__(self, event):
        if isinstance(event, wids.events.Fetched):
            self.append(event.url)


def build_loader(url, config, fetches=None, **options):
    world = ray.train.get_context().get_world_size()
    hooks = [] if fetches is None else [fetches]
    dataset = wids.ShardListDataset(url, cache_dir=config["cache_dir"], hooks=hooks).add_transform(make_sample)
    sampler = wids.DistributedChunkedSampler(dataset, **options)
    loader = torch.utils.data.DataLoader(dataset, batch_size=config["global_batch"] // world, sampler=sampler)
    return wids.resumable(ray.train.torch.prepare_data_loader(loader))


def train_loop_per_worker(config):
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    torch.manual_seed(0)
    fetches = Fetches()
    loader = build_loader(config["train_url"], config, fetches)
    test_loader = build_loader(config["test_url"], config, shuffle=False, tail="mask")
    model = ray.train.torch.prepare_model(build_model())
    plain_model = getattr(model, "module", model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

    first, had = 0, 0  # epoch, and samples of it that were read before
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = torch.load(f"{directory}/state.pt", map_location="cpu")
        plain_model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        first, had = saved["epoch"], saved["had"]

    def report(metrics, epoch, had):
        """Rank 0 writes the checkpoint; the ranks wait for each other."""
        parts = [None] * world
        distributed.all_gather_object(parts, (ray.get_runtime_context().get_node_id(), list(fetches)))
        metrics |= {"run": config["run"], "nodes": [node for node, _ in parts], "fetched": parts}
        with tempfile.TemporaryDirectory() as directory:
            if rank == 0:
                saved = {"model": plain_model.state_dict(), "optimizer": optimizer.state_dict()}
                saved |= {"loader": loader.state_dict(), "epoch": epoch, "had": had}
                torch.save(saved, f"{directory}/state.pt")
            ray.train.report(metrics, ray.train.Checkpoint.from_directory(directory) if rank == 0 else None)

    for epoch in range(first, config["epochs"]):
        loader.set_epoch(epoch)
        read = []
        for step, (images, labels, indices, _) in enumerate(loader, 1):
            progress = (epoch + had / len(loader.dataset)) / config["epochs"]
            optimizer.param_groups[0]["lr"] = config["lr"] * max(1 - progress, 0.01)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            had += len(images) * world
            read += everybody(indices)
            if [epoch, step] == config["lost_at"] and rank == world - 1:
                raise ConnectionError("the node is lost")
            if step % config["checkpoint_steps"] == 0:
                report({"epoch": epoch, "read": read}, epoch, had)
                read = []
        had = 0
        accuracy = evaluate(plain_model, test_loader)
        report({"epoch": epoch, "read": read, "accuracy": accuracy}, epoch + 1, 0)


def everybody(indices):
    """What all ranks have in this step, in the global order: it takes one sample from each rank in turn."""
    parts = [torch.empty_like(indices) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, indices)  # possible as all ranks have as many
    return torch.stack(parts, dim=1).flatten().tolist()


@torch.no_grad()
def evaluate(model, loader):
    """Part of the test samples that is classified correctly, each counted once."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=ray.train.torch.get_device())
    for images, labels, _, valid in loader:
        right = model(images).argmax(1) == labels
        counts += torch.stack([(right & valid).sum(), valid.sum()])
    model.train()
    distributed.all_reduce(counts)
    return (counts[0] / counts[1]).item()


# %% [markdown]
# ## Two workers, until a node is lost

# %%
config = {"train_url": train_url, "test_url": test_url, "cache_dir": cache_dir, "global_batch": global_batch}
config |= {"epochs": epochs, "checkpoint_steps": checkpoint_steps, "lr": 4e-3}
storage_path = storage_path or bucket.temporary("checkpoints")


def fit(num_workers, **more):
    trainer = ray.train.torch.TorchTrainer(
        train_loop_per_worker,
        train_loop_config=config | more,
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers, use_gpu=use_gpu, placement_strategy="SPREAD"),
        run_config=ray.train.RunConfig(name="digits", storage_path=storage_path),
    )
    return trainer.fit()


try:
    fit(workers, run=1, lost_at=lost_at)
except ray.train.TrainingFailedError as error:
    print(f"{type(error).__name__}: the run has ended in mid-epoch")

# %% [markdown]
# ## One worker, from the last checkpoint
#
# A trainer with the same name and storage path finds the checkpoint there: `ray.train.get_checkpoint()` has it. The steps
# that the two workers took after it are lost, with their effect on the model, and are done again.

# %%
if cluster is not None:
    cluster.remove_node(node_b)
result = fit(workers_later, run=2, lost_at=None)
reports = [metrics for _, metrics in result.best_checkpoints]  # with every checkpoint, of both runs
ray.shutdown()
if cluster is not None:
    cluster.shutdown()
place.cleanup()

# %% [markdown]
# ## Each sample once, in the same order
#
# The samples of an uninterrupted run are known without running it. An epoch is one global sequence, from which the ranks take a
# sample each in turn; neither their number nor a resume changes it. Here it is made by two samplers that are never stopped,
# and compared with what the workers had in their batches.


# %%
def uninterrupted(epoch):
    """The samples of an epoch in the order in which the first run's number of workers reads them without a break."""
    ranks = []
    for rank in range(workers):
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=workers, rank=rank)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
    return np.stack(ranks, axis=1).flatten()[: len(dataset)]


dataset = wids.ShardListDataset(train_url)
rows, read_in = [], {}
for epoch in range(epochs):
    parts = [report for report in reports if report["epoch"] == epoch]
    read = np.concatenate([part["read"] for part in parts]).astype(int)
    read_in[epoch] = read
    rows.append(
        {
            "epoch": epoch,
            "workers": ", then ".join(map(str, dict.fromkeys(len(part["nodes"]) for part in parts))),
            "samples read": len(read),
            "different ones": len(np.unique(read)),
            "as uninterrupted": np.array_equal(read[: len(dataset)], uninterrupted(epoch)),
            "test accuracy, %": round(100 * parts[-1]["accuracy"], 2),
        }
    )
table = pd.DataFrame(rows).set_index("epoch")
table

# %% [markdown]
# Two workers share an odd number of samples, so they repeat one at the end of an epoch. The figure shows the interrupted epoch
# and the shards that each node downloaded: with both nodes running, each needed its half of the shards; the remaining node had
# to download the other half too, and no shard a second time.

# %%
shards = [shard["url"] for shard in dataset.shards]
broken = [report for report in reports if report["epoch"] == lost_at[0]]
places = [np.resize(report["nodes"], len(report["read"])) for report in broken]
readers = np.concatenate(places)  # of each place in the epoch: the ranks take turns
before = sum(len(report["read"]) for report in broken if report["run"] == 1)


def fetched(run):
    """(nodes, shards): whether a node has fetched a shard in the run."""
    last = [report for report in reports if report["run"] == run][-1]
    has = {(node, url) for node, urls in last["fetched"] for url in urls}
    return np.array([[(node, url) in has for url in shards] for node in node_names])


first, later = fetched(1), fetched(2)
blue, orange, light = "#0072B2", "#E69F00", "#EEEEEE"
figure, (above, below) = plt.subplots(2, 1, figsize=(9, 6.2), height_ratios=[3, 1.2], layout="constrained")
colours = itertools.cycle([blue, orange, "#009E73", "#CC79A7"])
for (node, name), colour in zip(node_names.items(), colours, strict=False):
    is_own = readers == node
    above.scatter(np.flatnonzero(is_own), read_in[lost_at[0]][is_own], s=5, color=colour, label=name)
above.axvline(before, color="black", linestyle="--", linewidth=1)
above.text(before + 8, len(dataset) * 1.04, "checkpoint, from which one node goes on", va="bottom")
above.set(
    title=f"Epoch {lost_at[0]}: which sample was read when, and where", xlabel="place in the epoch", ylabel="sample"
)
above.set_ylim(-20, len(dataset) * 1.15)
above.legend(loc="upper left", markerscale=3, ncols=2, frameon=False)
meanings = {"by the first run": blue, "by the second": "#56B4E9", "never": light}
below.imshow(first + 2 * later, aspect="auto", cmap=ListedColormap([light, blue, "#56B4E9", "red"]), vmin=0, vmax=3)
below.set(title="Which node fetched which shards", xlabel="shard", yticks=range(len(node_names)))
below.set_yticklabels(node_names.values())
handles = [Patch(color=colour, label=label) for label, colour in meanings.items()]
below.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, frameon=False)
plt.show()
