r"""Training by steps, without epochs, on an endless sequence of samples; every N steps the model is tested and saved.

    python notebooks/train_steps.py
    torchrun --nproc-per-node=2 notebooks/train_steps.py --checkpoint run.pt
    torchrun --nproc-per-node=4 notebooks/train_steps.py --checkpoint run.pt --resume
    torchrun --nproc-per-node=8 notebooks/train_steps.py --train https://bucket/train.json \
        --test https://bucket/val.json --model resnet50 --classes 1000 --size 224 --batch-size 2048 --workers 8 \
        --steps 60000 --warmup 3000 --cooldown 12000 --test-every 1000 --checkpoint run.pt --checkpoint-every 500 \
        --resume --cache-dir /nvme/cache --cache-size 500e9

Without --train it serves scikit-learn's digits on loopback and trains on those (about 15 s on two CPU cores). Samples
are taken from .jpg and .cls. A checkpoint holds the position in the data: with --resume, on any number of ranks, the
run continues with the next sample. On SIGTERM or Ctrl-C the run writes a checkpoint and ends with exit code 0 (if
torchrun gets the signal, it passes it on to the ranks and exits with 1).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing.forkserver
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wids

if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_GPU = torch.cuda.is_available()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Training by steps on tar shards, without epochs.")
    parser.add_argument("--train", metavar="URL", help="index of the training shards; default: the digits, on loopback")
    parser.add_argument("--test", metavar="URL", help="index of the test shards")
    parser.add_argument("--model", default="small", help="small, or any of torchvision.models")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--size", type=int, default=32, metavar="PX", help="side of the images")
    parser.add_argument("--steps", type=int, default=160, help="of the whole run, before a resume too")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together; a multiple of their number")
    parser.add_argument("--epoch-size", type=int, metavar="N", help="let the loader's iterations end after N samples")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps in which the learning rate rises")
    parser.add_argument("--cooldown", type=int, default=40, help="last steps, in which it falls to 0")
    parser.add_argument("--test-every", type=int, default=40, metavar="STEPS")
    parser.add_argument(
        "--log-every", type=int, default=10, metavar="STEPS", help="a signal ends the run at such a step"
    )
    parser.add_argument("--checkpoint", metavar="FILE")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint, if it exists")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache-dir", metavar="DIR", help="on a fast local disk")
    parser.add_argument("--cache-size", type=float, default=50e9, metavar="BYTES")
    parser.add_argument("--log-losses", metavar="FILE", help="append losses and accuracies as lines of JSON")
    parser.add_argument("--log-samples", metavar="FILE", help="append [step, rank, ranks, indices of the batch]")
    args = parser.parse_args()
    if (args.train is None) != (args.test is None):
        parser.error("--train and --test go together")
    if args.epoch_size and args.epoch_size % args.batch_size:
        parser.error("--epoch-size must be a multiple of --batch-size, or each iteration's last batch is smaller")
    if args.resume and not args.checkpoint:
        parser.error("--resume needs a --checkpoint")
    return args


def main() -> None:
    """Set up the process group, and train."""
    args = parse_arguments()
    # torchrun sets these variables; without it this process is the only rank.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if HAS_GPU else torch.device("cpu")
    if HAS_GPU:
        torch.cuda.set_device(device)
    stop = Stop(args)
    dist.init_process_group("nccl" if HAS_GPU else "gloo")
    if args.batch_size % dist.get_world_size():
        raise SystemExit(f"--batch-size {args.batch_size} is not a multiple of {dist.get_world_size()} ranks")
    if args.train is None:
        args.train, args.test, args.cache_dir = serve_digits(local_rank)
    run(args, device, stop)
    dist.barrier()  # the rank that serves must not end before the others
    # The model, which holds the process group, must be freed before Python ends, or gloo's threads may abort it.
    gc.collect()
    dist.destroy_process_group()


ENDING = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """A flag that becomes true on SIGTERM or SIGINT.

    A scheduler signals all processes of a job. DataLoader workers must not end then, until the rank has written its
    checkpoint. So the fork server starts with the signals ignored, and each worker ignores them again, because torch
    installs handlers in it.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._is_set = False
        if args.workers:
            ignore_signals()
            multiprocessing.forkserver.set_forkserver_preload(["torch", "torchvision", "wids"])
            multiprocessing.forkserver.ensure_running()
        for number in ENDING:
            signal.signal(number, self._handle)

    def _handle(self, *_: Any) -> None:
        self._is_set = True

    def __bool__(self) -> bool:
        return self._is_set


def ignore_signals(*_: Any) -> None:
    """Ignore SIGTERM and SIGINT in this process and in its children."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def serve_digits(local_rank: int) -> tuple[str, str, str]:
    """Return (training index, test index, cache directory); the first rank of each machine serves its ranks."""
    served = None
    if local_rank == 0:
        import bucket

        digits = bucket.digits()
        served = digits.train, digits.test, bucket.temporary("cache")
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, served)
    return of_ranks[dist.get_rank() - local_rank]


class ToTensors:
    """Turns a sample into (image (3, size, size), class, whether it counts in evaluation, index)."""

    def __init__(self, size: int, *, is_training: bool) -> None:
        crop = [v2.RandomResizedCrop(size, scale=(0.35, 1)), v2.RandomHorizontalFlip()]
        if size < 64:  # digits must not be flipped or cut in half
            crop = [v2.RandomCrop(size, padding=size // 16, padding_mode="edge")]
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


def make_loader(args: argparse.Namespace, *, is_training: bool) -> DataLoader:
    """Make a loader of this rank's batches: endless for training, each sample once for testing."""
    url = args.train if is_training else args.test
    dataset = wids.ShardListDataset(url, cache_dir=args.cache_dir, cache_size=int(args.cache_size))
    dataset = dataset.add_transform(ToTensors(args.size, is_training=is_training))
    if not is_training:
        sampler = wids.DistributedChunkedSampler(dataset, shuffle=False, tail="mask")
    elif args.epoch_size:
        sampler = wids.DistributedChunkedSampler(dataset, seed=args.seed, epoch_size=args.epoch_size)
    else:
        sampler = wids.DistributedChunkedSampler(dataset, seed=args.seed, epochs=None)
    return DataLoader(
        dataset,
        batch_size=args.batch_size // dist.get_world_size(),
        sampler=sampler,
        num_workers=args.workers,
        multiprocessing_context="forkserver" if args.workers else None,
        worker_init_fn=ignore_signals,
        persistent_workers=args.workers > 0,
        pin_memory=HAS_GPU,
    )


def make_model(args: argparse.Namespace) -> nn.Module:
    """Build the network; its weights depend on the seed alone."""
    torch.manual_seed(args.seed)
    if args.model != "small":
        return torchvision.models.get_model(args.model, num_classes=args.classes)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64 * 4, args.classes))


def run(args: argparse.Namespace, device: torch.device, stop: Stop) -> None:
    """Train until ``--steps`` or a signal; test and save on the way."""
    train, test = wids.resumable(make_loader(args, is_training=True)), make_loader(args, is_training=False)
    model = DistributedDataParallel(make_model(args).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    done = 0
    if args.resume and (done := load(args, model, optimizer, train)):
        say(args, f"goes on after step {done:,}", resumed=done)
    torch.manual_seed(args.seed + done * dist.get_world_size() + dist.get_rank())  # crops differ between ranks
    losses, since = [], time.monotonic()

    for step, (images, labels, _, indices) in zip(range(done + 1, args.steps + 1), batches(train), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(args, step)
        loss = cross_entropy(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        place = train.state_dict()  # small, and the same on all ranks
        log_samples(args, step, indices)

        is_last, is_stopped = step == args.steps, False
        if is_last or step % args.log_every == 0:
            mean, is_stopped = agree(losses, stop)
            speed = len(losses) * args.batch_size / (time.monotonic() - since)
            passes = place["position"] / len(train.dataset)
            words = f"step {step:,}: loss {mean:.3f}, {passes:.2f} passes, {speed:,.0f} samples/s"
            say(args, words, step=step, loss=mean)
            losses, since = [], time.monotonic()
        if is_last or step % args.test_every == 0:
            right, count = evaluate(model, test, device)
            words = f"step {step:,}: test accuracy {right / max(count, 1):.2%}, {right:,} of {count:,}"
            say(args, words, step=step, right=right, count=count)
        if is_last or is_stopped or step % args.checkpoint_every == 0:
            save(args, step, model, optimizer, place)
        if is_stopped:
            say(args, f"told to stop: ended after step {step:,}", stopped=step)
            return


def batches(loader: Any) -> Iterator[Any]:
    """Yield batches endlessly: with --epoch-size, each iteration continues where the previous one ended."""
    while True:
        yield from loader


def rate(args: argparse.Namespace, step: int) -> float:
    """Return the share of the maximal learning rate: it rises, stays level, and falls in the last steps."""
    return min(1.0, step / max(args.warmup, 1), (args.steps - step + 1) / max(args.cooldown, 1))


def agree(losses: list[torch.Tensor], stop: Stop) -> tuple[float, bool]:
    """Return (mean loss, whether any rank got a signal to stop), the same on all ranks."""
    mean = torch.stack(losses).mean()
    both = torch.stack([mean, torch.full_like(mean, float(bool(stop)))])
    dist.all_reduce(both)
    total, stopped = both.tolist()
    return total / dist.get_world_size(), stopped > 0


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: DataLoader, device: torch.device) -> tuple[int, int]:
    """Return (correct samples, samples) of all ranks: each test sample once, by the model of rank 0."""
    for buffer in model.buffers():  # batch norm statistics, which differ between ranks
        dist.broadcast(buffer, 0)
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels, valid, _ in loader:
        # .module: without gradients to average, the ranks need not have equal numbers of batches
        right = model.module(images.to(device)).argmax(1).cpu() == labels
        counts += torch.stack([(right & valid).sum(), valid.sum()]).to(device)
    dist.all_reduce(counts)
    model.train()
    right, count = counts.tolist()
    return right, count


def save(args: argparse.Namespace, step: int, model: Any, optimizer: Any, place: dict[str, Any]) -> None:
    """Write the checkpoint from rank 0; the position in the data is the same on all ranks."""
    if args.checkpoint and dist.get_rank() == 0:
        saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        part = f"{args.checkpoint}.part"
        torch.save({"step": step, "loader": place, **saved}, part)
        os.replace(part, args.checkpoint)  # atomically: the file is the new checkpoint or the previous one


def load(args: argparse.Namespace, model: Any, optimizer: Any, loader: Any) -> int:
    """Load the checkpoint that rank 0 finds (other ranks may have other disks); returns the number of steps done."""
    found: list[Any] = [None]
    if dist.get_rank() == 0 and os.path.exists(args.checkpoint):
        found = [torch.load(args.checkpoint, map_location="cpu")]
    dist.broadcast_object_list(found)
    saved = found[0]
    if saved is None:
        return 0
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    return saved["step"]


def log_samples(args: argparse.Namespace, step: int, indices: torch.Tensor) -> None:
    """Log the samples of this rank's batch."""
    if args.log_samples:
        write_line(args.log_samples, [step, dist.get_rank(), dist.get_world_size(), indices.tolist()])


def say(args: argparse.Namespace, words: str, **facts: float) -> None:
    """Print on rank 0, and log the facts."""
    if dist.get_rank() == 0:
        print(words, flush=True)
        if args.log_losses:
            write_line(args.log_losses, facts)


def write_line(path: str, value: Any) -> None:
    """Append a line in one write, because other ranks append to the same file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(value).encode() + b"\n")
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
