"""Training on shards with plain accelerate: the sampler divides the samples among ranks, accelerate does the rest.

    torchrun --nproc-per-node=2 notebooks/train_accelerate.py
    accelerate launch notebooks/train_accelerate.py --train hf://datasets/user/name/train.json --test hf://...

Without --train it serves scikit-learn's digits on loopback and trains on those (some 15 s on two CPU cores). Samples
are taken from .jpg and .cls.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import accelerate
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import broadcast_object_list, gather_object
from torch.utils.data import DataLoader

import wids


def make_sample(sample: dict[str, Any]) -> tuple[torch.Tensor, int, bool, int]:
    """Return a grey image (1 x height x width, 0 to 1), its label, whether it counts in evaluation, and its index."""
    image = sample[".jpg"].convert("L")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, image.height, image.width)
    return pixels.float() / 255, sample[".cls"], sample.get("__valid__", True), sample["__index__"]


def make_model(classes: int) -> torch.nn.Module:
    """Build a CNN of three layers, for images of any size."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 3, stride=2, padding=1), torch.nn.ReLU()),
        *(torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(32 * 8 * 8, classes)),
    )


def make_loader(
    url: str, args: argparse.Namespace, accelerator: accelerate.Accelerator, **order: Any
) -> tuple[wids.DistributedChunkedSampler, DataLoader[Any]]:
    """Make a sampler, and a loader that yields the rank's batches on its device."""
    dataset = wids.ShardListDataset(url, cache_dir=args.cache_dir).add_transform(make_sample)
    sampler = wids.DistributedChunkedSampler(dataset, **order)  # rank and world size come from the process group
    # A process forked beside gloo's or NCCL's threads may hang.
    context = "forkserver" if args.workers else None
    loader = DataLoader(
        dataset, args.batch_size, sampler=sampler, num_workers=args.workers, multiprocessing_context=context
    )
    # Not accelerator.prepare(loader): it would divide the samples among the ranks a second time.
    return sampler, prepare_data_loader(
        loader, device=accelerator.device, put_on_device=True, num_processes=1, process_index=0
    )


def evaluate(model: torch.nn.Module, loader: DataLoader[Any], accelerator: accelerate.Accelerator) -> float:
    """Compute the accuracy over all ranks; repeated samples, which make the ranks equal, do not count."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=accelerator.device)
    with torch.no_grad():
        for images, labels, valid, _ in loader:
            right = model(images).argmax(1) == labels
            counts += torch.stack([(right & valid).sum(), valid.sum()])
    right_all, all_of_them = accelerator.reduce(counts, reduction="sum").tolist()
    return right_all / all_of_them


def train(args: argparse.Namespace) -> None:
    """Train; the main process prints a line for each epoch, and may write a report of the samples that ranks read."""
    accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
    if args.train is None:
        served = [None, None, None]
        if accelerator.is_main_process:
            import bucket

            digits = bucket.digits()
            served = [digits.train, digits.test, args.cache_dir or bucket.temporary("cache")]
        args.train, args.test, args.cache_dir = broadcast_object_list(served)
    accelerate.utils.set_seed(0)
    _, loader = make_loader(args.train, args, accelerator)
    _, test_loader = make_loader(args.test, args, accelerator, shuffle=False, tail="mask")
    model = make_model(args.classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the loaders
    read, accuracy, loss = [], 0.0, None
    for epoch in range(args.epochs):
        loader.set_epoch(epoch)  # the loader passes the epoch to the sampler when it is iterated
        model.train()
        read.append([])
        for images, labels, _, indices in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            read[-1] += indices.tolist()
        accuracy = evaluate(model, test_loader, accelerator)
        accelerator.print(f"epoch {epoch}: {len(loader)} batches on each rank, {accuracy:.1%} of the test set right")
    of_ranks = gather_object([read])
    if args.report and accelerator.is_main_process:
        with open(args.report, "w") as file:
            json.dump({"accuracy": accuracy, "read": of_ranks}, file)
    # Freed only when the interpreter ends, a distributed model sometimes aborts the process: it holds gloo's threads.
    model, optimizer, loss = accelerator.free_memory(model, optimizer, loss)
    accelerator.end_training()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Training on tar shards with accelerate.")
    parser.add_argument(
        "--train", metavar="URL", help="index of the training shards (default: the digits, on loopback)"
    )
    parser.add_argument("--test", metavar="URL", help="index of the test shards")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="of each rank")
    parser.add_argument("--workers", type=int, default=0, help="of each DataLoader")
    parser.add_argument("--cache-dir", metavar="DIR", help="shared by the ranks of a machine (default: yours)")
    parser.add_argument("--report", metavar="FILE", help="write accuracy, and the samples that each rank read, as JSON")
    args = parser.parse_args()
    if (args.train is None) != (args.test is None):
        parser.error("--train and --test belong together")
    train(args)


if __name__ == "__main__":
    main()
