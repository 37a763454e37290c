"""Training on one accelerator with real steps: the DDP program, processes beside threads, JPEG on both sides, copies.

    python benchmarks/accelerator.py --json FILE     on a GPU, from nothing, below 8 minutes
    python benchmarks/accelerator.py --cpu           tiny, without a GPU: tests the script

It needs torch and torchvision beside this package, and no network; torchcodec and nvidia-smi are used where they are.
The data are made first: JPEG pictures of about 82 kB in tar shards.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import report
import torch
import torchvision
import typer
from envs import REPOSITORY
from jpegs import draw
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import wids

# Pictures that differ, which the others repeat, and their sides, in pixels.
DIFFERENT, SIDES = 64, (360, 380)


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        shards, samples: of the data, and in a shard.
        model: of torchvision. batch: samples in it. side: of a crop, in pixels.
        seconds: of each loop. epochs: of the DDP program. pictures: that are decoded at a time.
    """

    shards: int
    samples: int
    model: str
    batch: int
    side: int
    seconds: float
    epochs: int
    pictures: int


FULL = Size(shards=32, samples=256, model="resnet50", batch=256, side=224, seconds=20, epochs=2, pictures=256)
TINY = Size(shards=2, samples=32, model="resnet18", batch=8, side=64, seconds=1, epochs=1, pictures=8)


def main(
    *,
    cpu: Annotated[bool, typer.Option("--cpu", help="Tiny, on the CPU: tests the script only.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Of each loader. 0: one for each core, up to 16.")] = 0,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
) -> None:
    """Measure, and print tables in Markdown with the card's name."""
    if not cpu and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no GPU; --cpu tests the script without one")
    device, size = (torch.device("cpu"), TINY) if cpu else (torch.device("cuda"), FULL)
    workers = workers or (2 if cpu else min(len(os.sched_getaffinity(0)), 16))
    begin, found = time.monotonic(), {"about": about(device, workers)}
    place = tempfile.mkdtemp(prefix="wids-accelerator-")
    try:
        for name, measure in (
            ("data", partial(make_data, place, size)),
            ("copies to the accelerator", partial(time_copies, size, device)),
            ("JPEG", partial(time_jpeg, size, device)),
            ("training loop", partial(time_loops, place, size, device, workers)),
            ("notebooks/train_ddp.py", partial(run_ddp, place, size, workers, is_cpu=cpu)),
        ):
            print(f"{time.monotonic() - begin:.0f} s: {name} ...", file=sys.stderr, flush=True)
            found[name] = measure()
            if json_file:  # after each part: a machine that is lent may be taken back
                with open(json_file, "w", encoding="utf-8") as stream:
                    json.dump(found, stream, indent=1)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    show(found)
    print(f"\n{time.monotonic() - begin:.0f} s in all")


def about(device: torch.device, workers: int) -> dict[str, Any]:
    """What it ran on."""
    card = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__, "wids": wids.__version__}
    machine = report.machine()
    return {"card": card, "cpu": machine["cpu"], "cores": machine["cores"], "workers": workers, **versions}


def make_pictures() -> list[bytes]:
    """JPEG files of about 82 kB."""
    rng = np.random.default_rng(0)
    return [draw(rng, SIDES) for _ in range(DIFFERENT)]


def make_data(place: str, size: Size) -> dict[str, float]:
    """Shards with their index in ``place``, two of them for tests: bytes of a sample."""
    pictures = make_pictures()
    for name, shards in (("train", size.shards), ("test", 2)):
        with wids.ShardWriter(os.path.join(place, f"{name}-%03d.tar"), samples=size.samples, name=name) as writer:
            for k in range(shards * size.samples):
                picture = pictures[k % DIFFERENT]
                writer.write({"__key__": f"{k:06d}", ".jpg": picture, ".cls": str(k % 10).encode()})
    return {"bytes": statistics.fmean(map(len, pictures)), "samples": size.shards * size.samples}


def time_copies(size: Size, device: torch.device) -> dict[str, float]:
    """GB a second to the accelerator, of a batch of float32 pictures: from pageable and from pinned memory."""
    batch = torch.rand(size.batch, 3, size.side, size.side)
    found = {}
    for name in ("pageable", "pinned") if device.type == "cuda" else ("pageable",):
        given = batch.pin_memory() if name == "pinned" else batch
        seconds = []
        for _ in range(10):
            begin = time.perf_counter()
            given.to(device, non_blocking=True)
            _wait(device)
            seconds.append(time.perf_counter() - begin)
        found[name] = batch.nbytes / 1e9 / statistics.median(seconds)
    return found


def time_jpeg(size: Size, device: torch.device) -> dict[str, dict[str, float]]:
    """Microseconds of a picture to a tensor of bytes, by decoder, and how far its values are from Pillow's."""
    files = make_pictures()
    files = [files[k % DIFFERENT] for k in range(size.pictures)]
    given = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    expected = [torch.from_numpy(np.array(Image.open(io.BytesIO(file)))).permute(2, 0, 1) for file in files]
    decode = torchvision.io.decode_jpeg
    ways: dict[str, Any] = {
        "Pillow": lambda: [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files],
        "wids, 'torch'": partial(_decode_fields, files),
        "torchvision, CPU": lambda: [decode(each) for each in given],
    }
    if device.type == "cuda":
        ways["torchvision, GPU, a batch"] = lambda: decode(given, device="cuda")
        ways["torchvision, GPU, one by one"] = lambda: [decode(each, device="cuda") for each in given]
    found = {}
    for name, way in ways.items():
        pictures, seconds = way(), []
        for _ in range(3):
            _wait(device)
            begin = time.perf_counter()
            way()
            _wait(device)
            seconds.append(time.perf_counter() - begin)
        off = 0
        for picture, right in zip(pictures, expected, strict=True):
            pixels = picture.cpu() if isinstance(picture, torch.Tensor) else torch.tensor(picture).permute(2, 0, 1)
            off = max(off, int((pixels.int() - right.int()).abs().max()))
        found[name] = {"us": statistics.median(seconds) / len(files) * 1e6, "most_different": off}
    return found


def _decode_fields(files: list[bytes]) -> list[torch.Tensor]:
    decode = wids.SampleDecoder("torch")
    return [decode({"__key__": "x", ".jpg": io.BytesIO(file)})[".jpg"] for file in files]


class Crop:
    """A sample as (picture, class)."""

    def __init__(self, side: int) -> None:
        self._change = v2.Compose([v2.RandomResizedCrop(side, antialias=True), v2.RandomHorizontalFlip()])

    def __call__(self, sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Transform one sample."""
        return self._change(sample[".jpg"]).contiguous(), sample[".cls"]


def time_loops(place: str, size: Size, device: torch.device, workers: int) -> list[dict[str, Any]]:
    """A ResNet's training with batches in memory, and from loaders: by workers, and by what they are."""
    model = getattr(torchvision.models, size.model)(num_classes=10).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.to(device, non_blocking=True).float().div(255).sub(mean)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    memory = torch.randint(256, (size.batch, 3, size.side, size.side), dtype=torch.uint8), torch.arange(size.batch) % 10
    memory = tuple(each.to(device) for each in memory)
    fed = _feed((memory for _ in iter(int, 1)), step, size, device)
    found = [{"workers": "none: one batch in memory", **fed, "utilisation": 1.0}]
    for kind, pins in (("processes", False), ("processes", True), ("threads", False), ("threads", True)):
        if pins and device.type == "cpu":
            continue
        dataset = wids.ShardListDataset(os.path.join(place, "train.json"), transformations="torch")
        dataset.add_transform(Crop(size.side))
        sampler = wids.DistributedChunkedSampler(dataset, epochs=None, num_replicas=1, rank=0)
        loader = DataLoader(
            dataset, size.batch, sampler=sampler, num_workers=workers, pin_memory=pins, prefetch_factor=2
        )
        with wids.resumable(loader, workers=kind) as batches:  # type: ignore[arg-type]
            own = _feed(batches, step, size, device)
        own["utilisation"] = fed["step_ms"] / own["step_ms"]
        found.append({"workers": f"{workers} {kind}{', pinned' if pins else ''}", **own})
    return found


def _feed(batches: Any, step: Any, size: Size, device: torch.device) -> dict[str, float]:
    """Train for some seconds: samples a second, milliseconds of a step and its wait, CPU seconds of all processes."""
    count, warm, begin, before = 0, 5 if device.type == "cuda" else 1, 0.0, 0.0
    for batch in batches:
        step(*batch)
        count += 1
        if count <= warm:
            _wait(device)
            begin, before = time.perf_counter(), _cpu_seconds()
        elif time.perf_counter() - begin > size.seconds:
            break
    _wait(device)
    seconds, steps = time.perf_counter() - begin, count - warm
    cpu = (_cpu_seconds() - before) / (steps * size.batch)
    return {"samples": steps * size.batch / seconds, "step_ms": seconds / steps * 1e3, "cpu_us": cpu * 1e6}


def _cpu_seconds() -> float:
    """Of this process and the workers that live."""
    found = 0.0
    for pid in [os.getpid(), *(child.pid for child in torch.multiprocessing.active_children())]:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stream:
            fields = stream.read().rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def run_ddp(place: str, size: Size, workers: int, *, is_cpu: bool) -> dict[str, Any]:
    """The program of the notebook as it stands, with one rank: NCCL on a GPU."""
    program = os.path.join(REPOSITORY, "notebooks", "train_ddp.py")
    urls = [f"--{name}={os.path.join(place, name)}.json" for name in ("train", "test")]
    options = [f"--epochs={size.epochs}", f"--batch-size={size.batch}", f"--size={size.side}", f"--workers={workers}"]
    environ = {**os.environ, "PYTHONPATH": REPOSITORY, **({"CUDA_VISIBLE_DEVICES": ""} if is_cpu else {})}
    command = [sys.executable, program, *urls, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=400, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    epochs = re.findall(r"epoch (\d+): loss ([\d.]+), .* ([\d.]+) s, (\d+) steps", done.stdout)
    return {
        "backend": "gloo" if is_cpu else "nccl",
        "epochs": [{"loss": float(loss), "seconds": float(s), "steps": int(n)} for _, loss, s, n in epochs],
        "samples": int(epochs[-1][3]) * size.batch / float(epochs[-1][2]),
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    print("\n" + ", ".join(f"{name} {value}" for name, value in found["about"].items()) + "\n")
    print("| workers | samples/s | ms a step | utilisation | CPU us a sample |\n|---|---|---|---|---|")
    for row in found["training loop"]:
        used = f"{100 * row['utilisation']:.1f} %"
        print(f"| {row['workers']} | {row['samples']:,.0f} | {row['step_ms']:.1f} | {used} | {row['cpu_us']:,.0f} |")
    print("\n| JPEG to a tensor | us a picture | most different from Pillow's |\n|---|---|---|")
    for name, row in found["JPEG"].items():
        print(f"| {name} | {row['us']:,.0f} | {row['most_different']} |")
    copies = ", ".join(f"{name} {speed:.1f} GB/s" for name, speed in found["copies to the accelerator"].items())
    ddp = found["notebooks/train_ddp.py"]
    print(f"\ncopies to the accelerator: {copies}")
    print(f"train_ddp.py, {ddp['backend']}: {ddp['samples']:,.0f} samples/s in its last epoch, with the test after it")


if __name__ == "__main__":
    typer.run(main)
