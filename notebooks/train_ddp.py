r"""DDP training of a torchvision ResNet on shards: resnet50 on GPUs, resnet18 on CPUs.

    torchrun --nproc-per-node=2 notebooks/train_ddp.py
    torchrun --nproc-per-node=8 notebooks/train_ddp.py --train URL/train.json --test URL/val.json --classes 1000 \
        --size 224 --epochs 90 --batch-size 256 --workers 12 --cache-dir /nvme/cache --checkpoint imagenet.pt

Without --train it serves scikit-learn's digits on loopback and trains on those (half a minute on two CPU cores).
Samples are taken from .jpg and .cls. With --checkpoint, a run that was interrupted resumes at its last checkpoint, on
any number of ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wids

HAS_GPU = torch.cuda.is_available()


def main() -> None:
    """Train, test after every epoch, and print both from rank 0."""
    args = parse_arguments()
    # torchrun sets these variables; without it this process is the only rank.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if HAS_GPU else torch.device("cpu")
    if HAS_GPU:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if HAS_GPU else "gloo")
    with contextlib.ExitStack() as at_end:
        place = at_end.enter_context(tempfile.TemporaryDirectory(prefix="wids-train-"))
        if args.train is None:
            args.train, args.test = serve_digits()
        run(args, device, args.cache_dir or f"{place}/cache")
        dist.barrier()  # the rank that serves must not end before the others
    # The model, which holds the process group, must be freed before Python ends, or gloo's threads may abort it.
    gc.collect()
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="DDP training of a ResNet on tar shards.")
    parser.add_argument("--train", metavar="URL", help="index of the training shards (default: digits, on loopback)")
    parser.add_argument("--test", metavar="URL", help="index of the test shards")
    parser.add_argument("--classes", type=int, default=10)
    default = "resnet50" if HAS_GPU else "resnet18"
    parser.add_argument("--model", default=default, help="one of torchvision.models for images (default: %(default)s)")
    parser.add_argument("--size", type=int, default=32, metavar="PX", help="side of the images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank; 4 to 16 for photos")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache-dir", metavar="DIR", help="on a fast local disk (default: a temporary directory)")
    parser.add_argument("--cache-size", type=float, default=50e9, metavar="BYTES")
    parser.add_argument("--checkpoint", metavar="FILE", help="write checkpoints to it, and resume from it if it exists")
    parser.add_argument("--checkpoint-steps", type=int, default=1000, help="steps between two checkpoints")
    parser.add_argument("--steps", type=int, metavar="N", help="end after so many steps (with a checkpoint)")
    parser.add_argument("--log-samples", metavar="FILE", help="write each rank's sample indices to FILE.RANK")
    args = parser.parse_args()
    if (args.train is None) != (args.test is None):
        parser.error("--train and --test go together")
    if args.steps is not None and args.steps < 1:
        parser.error("--steps has to be at least 1")
    return args


def serve_digits() -> tuple[str, str]:
    """Rank 0 serves the digits; all ranks get the URLs."""
    urls: list[Any] = [None, None]
    if dist.get_rank() == 0:
        import bucket

        digits = bucket.digits()
        urls = [digits.train, digits.test]
    dist.broadcast_object_list(urls)
    return urls[0], urls[1]


class ToTensors:
    """Turns a sample into (image (3, size, size), class, whether it counts in evaluation, index)."""

    def __init__(self, size: int, *, is_training: bool) -> None:
        crop = [v2.RandomResizedCrop(size, scale=(0.35, 1)), v2.RandomHorizontalFlip()]
        if size < 64:  # digits must not be flipped or cut in half
            crop = [v2.RandomCrop(size, padding=size // 32, padding_mode="edge")]
        self.transform = v2.Compose(
            [
                v2.RGB(),
                *(crop if is_training else [v2.Resize(size), v2.CenterCrop(size)]),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int, bool, int]:
        """Transform one sample."""
        return self.transform(sample[".jpg"]), sample[".cls"], sample.get("__valid__", True), sample["__index__"]


def make_loader(url: str, args: argparse.Namespace, cache_dir: str, *, is_training: bool) -> DataLoader:
    """Make a loader of this rank's batches."""
    dataset = wids.ShardListDataset(url, cache_dir=cache_dir, cache_size=int(args.cache_size))
    dataset = dataset.add_transform(ToTensors(args.size, is_training=is_training))
    if is_training:
        sampler = wids.DistributedChunkedSampler(dataset, seed=args.seed)
    else:  # each sample counts once, on any number of ranks
        sampler = wids.DistributedChunkedSampler(dataset, shuffle=False, tail="mask")
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        drop_last=is_training,  # batch normalization cannot learn from a last batch of one
        num_workers=args.workers,
        # A process forked beside gloo's or NCCL's threads may hang.
        multiprocessing_context="forkserver" if args.workers else None,
        pin_memory=HAS_GPU,
        persistent_workers=args.workers > 0,
    )


def run(args: argparse.Namespace, device: torch.device, cache_dir: str) -> None:
    """Train and test."""
    torch.manual_seed(args.seed)
    train = wids.resumable(make_loader(args.train, args, cache_dir, is_training=True))
    test = make_loader(args.test, args, cache_dir, is_training=False)
    if not len(train):
        raise SystemExit(f"{len(train.dataset):,} samples are not a batch of {args.batch_size} for each rank")
    network = getattr(torchvision.models, args.model)
    model = DistributedDataParallel(network(num_classes=args.classes).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    global_batch = args.batch_size * dist.get_world_size()

    first, taken, steps = 0, 0, 0  # epoch, its samples that all ranks together have read, steps of this run
    if saved := load(args):
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.load_state_dict(saved["loader"])
        first, taken = saved["epoch"], saved["taken"]
        say(f"epoch {first}: goes on after {taken:,} samples")
        del saved

    for epoch in range(first, args.epochs):
        train.set_epoch(epoch)
        model.train()
        losses, hits, start = torch.zeros((), device=device), torch.zeros((), device=device), time.monotonic()
        step = 0  # for a checkpoint of an epoch's last step, where the loop has no steps
        for step, (images, labels, _, indices) in enumerate(train, 1):
            progress = (epoch + taken / len(train.dataset)) / args.epochs
            optimizer.param_groups[0]["lr"] = args.lr * warm_and_cool(progress)
            wanted = labels.to(device)
            logits = model(images.to(device, non_blocking=True))
            loss = cross_entropy(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.detach()
            hits += (logits.argmax(1) == wanted).sum()
            taken += global_batch
            steps += 1
            log_samples(args, epoch, indices)
            is_last = steps == args.steps
            if is_last or step % args.checkpoint_steps == 0:
                save(args, model, optimizer, {"epoch": epoch, "taken": taken, "loader": train.state_dict()})
            if is_last:
                say(f"epoch {epoch}: ended after {steps} steps, as asked")
                return
        taken = 0
        save(args, model, optimizer, {"epoch": epoch + 1, "taken": 0, "loader": train.state_dict()})
        right, count = evaluate(model, test, device)
        say(
            f"epoch {epoch}: loss {losses / max(step, 1):.3f}, "
            f"training accuracy {hits / max(step, 1) / args.batch_size:.1%}, "
            f"test accuracy {right / max(count, 1):.2%} of {count:,}, "
            f"{time.monotonic() - start:.1f} s, {len(train)} steps"
        )


def warm_and_cool(progress: float) -> float:
    """Return the share of the maximal learning rate: it rises linearly, and falls as a cosine."""
    return progress / 0.3 if progress < 0.3 else (1 + math.cos(math.pi * (progress - 0.3) / 0.7)) / 2


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: DataLoader, device: torch.device) -> tuple[int, int]:
    """Return (correct samples, samples) of all ranks: each sample once, by the model of rank 0, which is saved."""
    for buffer in model.buffers():  # batch norm statistics, which differ between ranks
        dist.broadcast(buffer, 0)
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels, valid, _ in loader:
        # .module: without gradients to average, the ranks need not have equal numbers of batches
        right = model.module(images.to(device)).argmax(1).cpu() == labels
        counts += torch.stack([(right & valid).sum(), valid.sum()]).to(device)
    dist.all_reduce(counts)
    right, count = counts.tolist()
    return right, count


def save(args: argparse.Namespace, model: Any, optimizer: Any, position: dict[str, Any]) -> None:
    """Write the checkpoint from rank 0; the sampler's state is the same on all ranks."""
    if args.checkpoint and dist.get_rank() == 0:
        part = f"{args.checkpoint}.part"
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), **position}, part)
        os.replace(part, args.checkpoint)  # atomically: the file is the new checkpoint or the previous one


def load(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the checkpoint that rank 0 finds, if any; other ranks may have other disks, or find a newer file."""
    found: list[Any] = [None]
    if args.checkpoint and dist.get_rank() == 0 and os.path.exists(args.checkpoint):
        found = [torch.load(args.checkpoint, map_location="cpu")]
    dist.broadcast_object_list(found)
    return found[0]


def log_samples(args: argparse.Namespace, epoch: int, indices: torch.Tensor) -> None:
    """Log the samples of this rank, as lines of [epoch, indices]."""
    if args.log_samples:
        with open(f"{args.log_samples}.{dist.get_rank()}", "a", encoding="utf-8") as file:
            print(json.dumps([epoch, indices.tolist()]), file=file)


def say(words: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(words, flush=True)


if __name__ == "__main__":
    main()
