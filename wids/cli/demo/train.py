"""What one rank of the demo does: an ordinary DDP training loop on a `wids` dataset and sampler.

Rules: it runs in a process of its own (see `wids.cli.demo.ranks`), and torch is imported there and nowhere else. It
prints nothing; it sends values. Every held-out sample is tested exactly once, by one rank.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.cli.demo.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.cli.demo.data import Data

_CHUNKSIZE = 250
_TELL_SECONDS = 0.1
_WIDTHS = (16, 32, 64)
_LEARNING_RATE = 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all ranks are told: the data, the sizes of things, and a directory of the demo's own to work in."""

    data: Data
    ranks: int
    workers: int
    epochs: int
    batch_size: int
    seed: int
    directory: str

    def events(self, rank: int) -> EventLog:
        """The events of one rank and its workers."""
        return EventLog(os.path.join(self.directory, f"events-{rank}.jsonl"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a rank is: batches done in this epoch, of so many; the loss, smoothed; samples and seconds so far."""

    rank: int
    epoch: int
    batch: int
    batches: int
    loss: float
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a rank did: samples and batches trained on, seconds of that; and of all ranks: samples tested, and right."""

    rank: int
    device: str
    samples: int
    batches: int
    seconds: float
    tested: int
    correct: int


def train(job: Job, rank: int, tell: Callable[[Progress], None]) -> Result:
    """Train and test as rank ``rank`` of ``job.ranks``; all ranks must run, each in a process of its own."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    device = _join(job, rank)
    train_set, test_set = job.data.open(hooks=[job.events(rank)])
    network = build_network(len(job.data.classes)).to(device)
    ddp = DistributedDataParallel(network, device_ids=[rank] if device.type == "cuda" else None)
    counts = _fit(job, rank, ddp, train_set, device, tell)
    tested, correct = _test(job, rank, network, test_set, device)
    dist.destroy_process_group()
    samples, batches, seconds = counts
    return Result(
        rank=rank,
        device=str(device),
        samples=samples,
        batches=batches,
        seconds=seconds,
        tested=tested,
        correct=correct,
    )


def build_network(nclasses: int) -> Any:
    """A small convolutional network for RGB images of any size, (n, 3, h, w) -> (n, nclasses).

    GroupNorm, because the running statistics of BatchNorm would differ between ranks, and so their answers.
    """
    from torch import nn

    layers: list[nn.Module] = []
    inputs = 3
    for width in _WIDTHS:
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, nclasses))


def leave(*_: Any) -> None:
    """End by an exception, so that a download under way takes its part file with it: the handler of SIGTERM."""
    raise SystemExit(128 + signal.SIGTERM)


def _init_worker(_: int) -> None:
    # Forked workers have the rank's handler, those of other start methods do not.
    signal.signal(signal.SIGTERM, leave)


def _join(job: Job, rank: int) -> Any:
    """Join the process group, over loopback alone; returns this rank's device."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= job.ranks
    device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:  # else gloo looks up the host's name, which fails on a machine without network
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    if has_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if has_gpus else "gloo",
        store=FileStore(os.path.join(job.directory, "rendezvous"), job.ranks),
        rank=rank,
        world_size=job.ranks,
    )
    return device


def _fit(
    job: Job, rank: int, network: Any, dataset: Any, device: Any, tell: Callable[[Progress], None]
) -> tuple[int, int, float]:
    """Train; returns (samples, batches, seconds)."""
    import torch
    from torch.nn.functional import cross_entropy

    import wids

    sampler = wids.DistributedChunkedSampler(dataset, chunksize=_CHUNKSIZE, shuffle=True, seed=job.seed)
    loader = _load(dataset, sampler, job)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_pace, total=job.epochs * len(loader)))
    samples = batches = 0
    smoothed, told, start = 0.0, 0.0, time.monotonic()
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(network(_scaled(images, device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch's own
            optimizer.step()
            schedule.step()
            samples += len(labels)
            batches += 1
            smoothed = loss.item() if batches == 1 else 0.9 * smoothed + 0.1 * loss.item()
            now = time.monotonic()
            if now - told >= _TELL_SECONDS or batch == len(loader):
                told = now
                tell(
                    Progress(
                        rank=rank,
                        epoch=epoch,
                        batch=batch,
                        batches=len(loader),
                        loss=smoothed,
                        samples=samples,
                        seconds=now - start,
                    )
                )
    return samples, batches, time.monotonic() - start


def _pace(step: int, *, total: int) -> float:
    """The learning rate of a step relative to its peak: a rise over a fifth of all steps, then half a cosine down."""
    rise = max(1, total // 5)
    if step < rise:
        return (step + 1) / rise
    return 0.5 + 0.5 * math.cos(math.pi * (step - rise) / max(1, total - rise))


def _test(job: Job, rank: int, network: Any, dataset: Any, device: Any) -> tuple[int, int]:
    """Test on a range of the held-out samples that no other rank has; returns (tested, correct) of all ranks."""
    import torch
    import torch.distributed as dist

    import wids

    count = len(dataset)
    mine = (count * rank // job.ranks, count * (rank + 1) // job.ranks)
    sampler = wids.ChunkedSampler(dataset, num_samples=mine, shuffle=False)
    loader = _load(dataset, sampler, job)
    network.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.no_grad():
        for images, labels in loader:
            answers = network(_scaled(images, device)).argmax(dim=1)
            counts += torch.stack([torch.tensor(len(labels), device=device), (answers == labels.to(device)).sum()])
    dist.all_reduce(counts)
    tested, correct = counts.tolist()
    return tested, correct


def _load(dataset: Any, sampler: Any, job: Job) -> Any:
    """The ordinary DataLoader over a dataset and a sampler."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=job.batch_size,
        sampler=sampler,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=_init_worker,
    )


def _scaled(images: Any, device: Any) -> Any:
    return images.to(device).float() / 255
