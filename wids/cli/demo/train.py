"""One rank of the demo: an ordinary DDP training loop on a `wids` dataset and sampler, in a process of its own.

Rules: torch is imported here and nowhere else in the demo. A rank leads a process group that its DataLoader workers
belong to, and kills the group when its parent process has ended. It prints to a log file, and writes its progress to
another file.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNKSIZE = 250
_WIDTHS = (16, 32, 64)
_LEARNING_RATE = 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """The parameters that all ranks share, and a directory for their files.

    Attributes:
        url: of the directory with the indexes.
        directory: for logs, progress files, the cache and sockets.
        ranks: training processes.
        workers: DataLoader workers of each rank.
        epochs: passes over the training samples.
        batch_size: samples in a batch of one rank.
        seed: of the sample order and the initial weights.
    """

    url: str
    directory: str
    ranks: int
    workers: int
    epochs: int
    batch_size: int
    seed: int

    def progress_path(self, rank: int) -> str:
        """The file of a rank's reports, a JSON object on each line; see `train`."""
        return os.path.join(self.directory, f"rank-{rank}.jsonl")

    def log_path(self, rank: int) -> str:
        """The file for the output of a rank and its workers."""
        return os.path.join(self.directory, f"rank-{rank}.log")


def main() -> None:
    """Train as one rank. ``sys.argv`` has the job as JSON and the rank; the parent process keeps stdin open."""
    job, rank = DemoJob(**json.loads(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = 0
    try:
        with open(job.progress_path(rank), "a", buffering=1, encoding="utf-8") as file:
            train(job, rank, lambda facts: print(json.dumps(facts), file=file))
    except Exception:  # noqa: BLE001 - the last line of the traceback is the parent's error message
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise while the traceback is printed
        traceback.print_exc()
        code = 1
    except SystemExit:
        code = 128 + signal.SIGTERM
    sys.stderr.flush()
    os._exit(code)  # all files are written, and torch would take seconds to shut down


def train(job: DemoJob, rank: int, report: Callable[[dict[str, Any]], None]) -> None:
    """Train and test as rank ``rank`` of ``job.ranks``; all of them must run, each in a process of its own.

    Args:
        job: the parameters.
        rank: from 0.
        report: called after each batch with epoch (from 0), batch (from 1), batches (in an epoch), loss, and samples,
            steps and seconds so far; the last call adds device, tested and correct (samples of all ranks).
    """
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import wids
    from wids.cli.demo.shapes import SHAPES

    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    device = _join(job, rank)
    train_set, test_set = (_open(f"{job.url}/shapes-{split}.json", job) for split in ("train", "test"))
    network = build_network(len(SHAPES)).to(device)
    ddp = DistributedDataParallel(network, device_ids=[rank] if device.type == "cuda" else None)
    sampler = wids.DistributedChunkedSampler(train_set, chunksize=_CHUNKSIZE, shuffle=True, seed=job.seed)
    loader = _load(train_set, sampler, job)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=_LEARNING_RATE)
    end = job.epochs * len(loader) + 1  # the learning rate follows half a sine wave
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: math.sin(math.pi * (step + 1) / (end + 1)))
    facts: dict[str, Any] = {"batches": len(loader), "samples": 0, "steps": 0}
    begin = time.monotonic()
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(ddp(images.to(device) / 255), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call] # torch's own
            optimizer.step()
            schedule.step()
            facts["samples"] += len(labels)
            facts["steps"] += 1
            facts["loss"] = 0.9 * facts.get("loss", loss.item()) + 0.1 * loss.item()
            report({**facts, "epoch": epoch, "batch": batch, "seconds": time.monotonic() - begin})
    facts["seconds"] = time.monotonic() - begin
    tested, correct = _test(job, rank, network, test_set, device)
    report({**facts, "epoch": epoch, "batch": batch, "device": device.type, "tested": tested, "correct": correct})
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


def _join(job: DemoJob, rank: int) -> Any:
    """Join the process group, over the loopback interface only; returns this rank's device."""
    import torch
    import torch.distributed as dist

    has_gpus = torch.cuda.is_available() and torch.cuda.device_count() >= job.ranks
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:  # else gloo looks up the host's name, which fails on a machine without network
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    if has_gpus:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if has_gpus else "gloo",
        init_method=f"file://{os.path.join(job.directory, 'rendezvous')}",
        rank=rank,
        world_size=job.ranks,
    )
    return torch.device("cuda", rank) if has_gpus else torch.device("cpu")


def _open(url: str, job: DemoJob) -> Any:
    import wids

    cache = os.path.join(job.directory, "cache")
    return wids.ShardListDataset(url, cache_dir=cache, fields=(".jpg", ".cls"), transformations=["PIL", make_sample])


def _load(dataset: Any, sampler: Any, job: DemoJob) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=job.batch_size,
        sampler=sampler,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=_init_worker,
    )


def _test(job: DemoJob, rank: int, network: Any, dataset: Any, device: Any) -> tuple[int, int]:
    """Test on this rank's range of the held-out samples; returns (tested, correct) summed over all ranks."""
    import torch
    import torch.distributed as dist

    import wids

    lo, hi = (len(dataset) * end // job.ranks for end in (rank, rank + 1))
    loader = _load(dataset, wids.ChunkedSampler(dataset, num_samples=(lo, hi), shuffle=False), job)
    network.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.no_grad():
        for images, labels in loader:
            predictions = network(images.to(device) / 255).argmax(dim=1)
            counts += torch.stack([torch.tensor(len(labels), device=device), (predictions == labels.to(device)).sum()])
    dist.all_reduce(counts)
    tested, correct = counts.tolist()
    return tested, correct


def _exit(*_: Any) -> None:
    """Handle SIGTERM with an exception, which lets torch free its shared memory; a killed process would leave it."""
    raise SystemExit


def _init_worker(_: int) -> None:
    signal.signal(signal.SIGTERM, _exit)  # in place of torch's handler


def _end_with_parent() -> None:
    """Wait until the parent process ends, which closes stdin; then kill the process group."""
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)
