r"""Training by steps, without epochs: samples come without end, and every so many steps the model is tested and saved.

    python notebooks/train_steps.py
    torchrun --nproc-per-node=2 notebooks/train_steps.py --checkpoint run.pt
    torchrun --nproc-per-node=4 notebooks/train_steps.py --checkpoint run.pt --resume
    torchrun --nproc-per-node=8 notebooks/train_steps.py --train https://bucket/train.json \
        --test https://bucket/val.json --model resnet50 --classes 1000 --size 224 --batch-size 2048 --workers 8 \
        --steps 60000 --warmup 3000 --cooldown 12000 --test-every 1000 --checkpoint run.pt --checkpoint-every 500 \
        --resume --cache-dir /nvme/cache --cache-size 500e9

Without --train it serves scikit-learn's digits on loopback and trains on those (about 15 s on two CPU cores). Samples
are taken from .jpg and .cls. A checkpoint holds the place in the data: with --resume, on any number of ranks, the run
goes on with the sample that comes next. SIGTERM or Ctrl-C has a checkpoint written and ends the run with exit code 0
(torchrun itself, when it is signalled, ends its ranks so and says 1).
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
    """The command line's."""
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
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS", help="also: how often signals are heeded")
    parser.add_argument("--checkpoint", metavar="FILE")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if it is there")
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
        parser.error("--epoch-size has to be a multiple of --batch-size, or each iteration's last batch is smaller")
    if args.resume and not args.checkpoint:
        parser.error("--resume goes on from a --checkpoint")
    return args


def main() -> None:
    """Set up the ranks, and run."""
    args = parse_arguments()
    # torchrun says who we are; alone we are the only rank.
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
    dist.barrier()  # the rank that serves leaves last
    # The model is gone now, which holds the process group: left to the end of Python, gloo's threads may abort it.
    gc.collect()
    dist.destroy_process_group()


ENDING = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Becomes true with SIGTERM or SIGINT.

    Who ends a job mostly signals all of its processes. Those that load data have to outlive that, until the rank has
    written its checkpoint: the server that forks the workers is started deaf, and they become so once more, for torch
    gives them handlers of its own.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._is_told = False
        if args.workers:
            be_deaf()
            multiprocessing.forkserver.set_forkserver_preload(["torch", "torchvision", "wids"])
            multiprocessing.forkserver.ensure_running()
        for number in ENDING:
            signal.signal(number, self._hear)

    def _hear(self, *_: Any) -> None:
        self._is_told = True

    def __bool__(self) -> bool:
        return self._is_told


def be_deaf(*_: Any) -> None:
    """Let this process, and those it starts, be ended by their parents alone."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def serve_digits(local_rank: int) -> tuple[str, str, str]:
    """(index of training shards, of test shards, cache directory); the first rank of each machine serves its ranks."""
    served = None
    if local_rank == 0:
        import bucket

        digits = bucket.digits()
        served = digits.train, digits.test, bucket.temporary("cache")
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, served)
    return everyones[dist.get_rank() - local_rank]


class ToTensors:
    """A sample -> (image (3, size, size), class, whether it counts, index)."""

    def __init__(self, size: int, *, is_training: bool) -> None:
        crop = [v2.RandomResizedCrop(size, scale=(0.35, 1)), v2.RandomHorizontalFlip()]
        if size < 64:  # a digit is not a digit any more when flipped, nor when cut in half
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
        """For `wids.ShardListDataset.add_transform`."""
        return self.transform(sample[".jpg"]), sample[".cls"], sample.get("__valid__", True), sample["__index__"]


def make_loader(args: argparse.Namespace, *, is_training: bool) -> DataLoader:
    """The samples of this rank, in batches: endless for training, once each for testing."""
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
        worker_init_fn=be_deaf,
        persistent_workers=args.workers > 0,
        pin_memory=HAS_GPU,
    )


def make_model(args: argparse.Namespace) -> nn.Module:
    """The network, its weights decided by the seed."""
    torch.manual_seed(args.seed)
    if args.model != "small":
        return torchvision.models.get_model(args.model, num_classes=args.classes)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64 * 4, args.classes))


def run(args: argparse.Namespace, device: torch.device, stop: Stop) -> None:
    """Train until ``--steps`` or a signal; test and save on the way."""
    train, test = make_loader(args, is_training=True), make_loader(args, is_training=False)
    model = DistributedDataParallel(make_model(args).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    done = 0
    if args.resume and (done := load(args, model, optimizer, train.sampler)):
        say(args, f"goes on after step {done:,}", resumed=done)
    torch.manual_seed(args.seed + done * dist.get_world_size() + dist.get_rank())  # crops differ between ranks
    losses, since = [], time.monotonic()

    for step, (consumed, images, labels, indices) in zip(range(done + 1, args.steps + 1), batches(train), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(args, step)
        loss = cross_entropy(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        place = train.sampler.state_dict(consumed=consumed)  # small, and the same on all ranks
        log_samples(args, step, indices)

        is_last, is_told = step == args.steps, False
        if is_last or step % args.log_every == 0:
            mean, is_told = agree(losses, stop)
            speed = len(losses) * args.batch_size / (time.monotonic() - since)
            passes = place["position"] / len(train.dataset)
            words = f"step {step:,}: loss {mean:.3f}, {passes:.2f} passes, {speed:,.0f} samples/s"
            say(args, words, step=step, loss=mean)
            losses, since = [], time.monotonic()
        if is_last or step % args.test_every == 0:
            right, count = evaluate(model, test, device)
            words = f"step {step:,}: test accuracy {right / max(count, 1):.2%}, {right:,} of {count:,}"
            say(args, words, step=step, right=right, count=count)
        if is_last or is_told or step % args.checkpoint_every == 0:
            save(args, step, model, optimizer, place)
        if is_told:
            say(args, f"told to stop: ended after step {step:,}", stopped=step)
            return


def batches(loader: DataLoader) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield, without end, (samples that this rank has had of the loader's iteration, images, labels, indices)."""
    while True:  # goes round with --epoch-size: each iteration goes on where the one before it ended
        consumed = 0
        for images, labels, _, indices in loader:
            consumed += len(labels)
            yield consumed, images, labels, indices


def rate(args: argparse.Namespace, step: int) -> float:
    """The learning rate of a step, of its maximum: up, level, and down at the end, wherever that is put."""
    return min(1.0, step / max(args.warmup, 1), (args.steps - step + 1) / max(args.cooldown, 1))


def agree(losses: list[torch.Tensor], stop: Stop) -> tuple[float, bool]:
    """(mean loss, whether any rank was told to stop), the same on all ranks."""
    mean = torch.stack(losses).mean()
    both = torch.stack([mean, torch.full_like(mean, float(bool(stop)))])
    dist.all_reduce(both)
    total, told = both.tolist()
    return total / dist.get_world_size(), told > 0


@torch.no_grad()
def evaluate(model: DistributedDataParallel, loader: DataLoader, device: torch.device) -> tuple[int, int]:
    """(samples told rightly, samples) of all ranks: each sample of the test set once, by the model of rank 0."""
    for buffer in model.buffers():  # statistics of batch norm, which each rank has of its own batches
        dist.broadcast(buffer, 0)
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels, valid, _ in loader:
        # .module: testing has nothing to average, and ranks need not keep step
        right = model.module(images.to(device)).argmax(1).cpu() == labels
        counts += torch.stack([(right & valid).sum(), valid.sum()]).to(device)
    dist.all_reduce(counts)
    model.train()
    right, count = counts.tolist()
    return right, count


def save(args: argparse.Namespace, step: int, model: Any, optimizer: Any, place: dict[str, Any]) -> None:
    """Write the checkpoint, whose place in the data is the same on all ranks, from rank 0."""
    if args.checkpoint and dist.get_rank() == 0:
        saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        part = f"{args.checkpoint}.part"
        torch.save({"step": step, "sampler": place, **saved}, part)
        os.replace(part, args.checkpoint)  # whole, or the one before


def load(args: argparse.Namespace, model: Any, optimizer: Any, sampler: Any) -> int:
    """Take everything over from the checkpoint that rank 0 finds (others may have another disk): the steps done."""
    found: list[Any] = [None]
    if dist.get_rank() == 0 and os.path.exists(args.checkpoint):
        found = [torch.load(args.checkpoint, map_location="cpu")]
    dist.broadcast_object_list(found)
    saved = found[0]
    if saved is None:
        return 0
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.load_state_dict(saved["sampler"])
    return saved["step"]


def log_samples(args: argparse.Namespace, step: int, indices: torch.Tensor) -> None:
    """Write down which samples this rank was given, for those who want to see it."""
    if args.log_samples:
        write_line(args.log_samples, [step, dist.get_rank(), dist.get_world_size(), indices.tolist()])


def say(args: argparse.Namespace, words: str, **facts: float) -> None:
    """From rank 0."""
    if dist.get_rank() == 0:
        print(words, flush=True)
        if args.log_losses:
            write_line(args.log_losses, facts)


def write_line(path: str, value: Any) -> None:
    """Append to a file that other ranks append to: in one piece."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(value).encode() + b"\n")
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
