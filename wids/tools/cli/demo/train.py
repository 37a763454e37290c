"""The demo's training program: an ordinary DDP loop on a `wids` dataset and sampler, which torchrun starts.

``torchrun --nproc-per-node 2 train.py JOB``, where JOB has the arguments of `train` as JSON. Rank 0 prints its progress
as JSON, an object on each line. A rank kills its process group, with its DataLoader workers, when stdin is closed.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from typing import Any

_CHUNKSIZE = 250
_WIDTHS = (16, 32, 64)
_LEARNING_RATE = 4e-3


def train(*, url: str, cache_dir: str, workers: int, epochs: int, batch_size: int, seed: int) -> None:
    """Train and test as one rank of several; rank 0 prints its progress.

    After each batch that is batches (in an epoch), steps (so far) and loss; after each epoch also ranks, a list of
    samples, steps and seconds of each rank so far; at the end also tested and correct (samples of all ranks).

    Args:
        url: of the directory with the indexes.
        cache_dir: where shards go.
        workers: DataLoader workers of this rank.
        epochs: passes over the training samples.
        batch_size: samples in a batch of this rank.
        seed: of the sample order and the initial weights.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    import wids
    from wids.tools.cli.demo.shapes import SHAPES

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rank, ranks, device = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= ranks:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train_set, test_set = (
        wids.ShardListDataset(
            f"{url}/shapes-{split}.json",
            cache_dir=cache_dir,
            fields=(".jpg", ".cls"),
            transformations=["PIL", make_sample],
        )
        for split in ("train", "test")
    )
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers, "persistent_workers": workers > 0}
    network = build_network(len(SHAPES)).to(device)
    ddp = DistributedDataParallel(network, device_ids=[rank] if device.type == "cuda" else None)
    sampler = wids.DistributedChunkedSampler(train_set, chunksize=_CHUNKSIZE, shuffle=True, seed=seed)
    loader = DataLoader(train_set, sampler=sampler, **options)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=_LEARNING_RATE)
    end = epochs * len(loader) + 1  # the learning rate follows half a sine wave
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: math.sin(math.pi * (step + 1) / (end + 1)))
    share = {"samples": 0, "steps": 0, "seconds": 0.0}
    shares, mean = [share] * ranks, math.nan
    begin = time.monotonic()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(ddp(images.to(device) / 255), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch's own
            optimizer.step()
            schedule.step()
            share["samples"] += len(labels)
            share["steps"] += 1
            mean = loss.item() if math.isnan(mean) else 0.9 * mean + 0.1 * loss.item()
            _report(rank, batches=len(loader), steps=share["steps"], loss=mean)
        share["seconds"] = time.monotonic() - begin
        dist.all_gather_object(shares, share)
        _report(rank, ranks=shares)
    lo, hi = (len(test_set) * end // ranks for end in (rank, rank + 1))
    part = wids.ChunkedSampler(test_set, num_samples=(lo, hi), shuffle=False)
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    network.eval()
    with torch.no_grad():
        for images, labels in DataLoader(test_set, sampler=part, **options):
            is_right = network(images.to(device) / 255).argmax(dim=1) == labels.to(device)
            counts += torch.stack([torch.tensor(len(labels), device=device), is_right.sum()])
    dist.all_reduce(counts)
    _report(rank, tested=int(counts[0]), correct=int(counts[1]))
    dist.destroy_process_group()


def build_network(classes: int) -> Any:
    """Build a small convolutional network for RGB images of any size, (n, 3, h, w) -> (n, classes).

    With GroupNorm, because the running statistics of BatchNorm differ between ranks, and each rank tests a part.
    """
    from torch import nn

    layers: list[nn.Module] = []
    inputs = 3
    for width in _WIDTHS:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def make_sample(sample: dict[str, Any]) -> tuple[Any, int]:
    """Return (image, class): a uint8 tensor of shape (3, height, width), and the number of the sample's class."""
    import numpy as np
    import torch

    return torch.from_numpy(np.array(sample[".jpg"])).permute(2, 0, 1).contiguous(), sample[".cls"]


def _report(rank: int, **values: Any) -> None:
    if rank == 0:
        print(json.dumps(values), flush=True)


def main() -> None:
    """Train, by the arguments in ``sys.argv[1]``; an error gets into torchrun's report."""
    from torch.distributed.elastic.multiprocessing.errors import record

    from wids.tools.cli.ranks import end_with_stdin

    threading.Thread(target=end_with_stdin, daemon=True).start()
    record(train)(**json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
