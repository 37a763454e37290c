"""Base of the contenders of cold.py: epochs of a DataLoader that decodes JPEG in its workers, asked for line by line.

Rules: runs in each contender's own environment, so it needs the standard library, torch and Pillow alone. Each answer
is one line of JSON, as ``children.Child`` reads it. All contenders decode by the one function `decode`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from io import BytesIO

import torch
from PIL import Image, ImageOps
from replies import answer_requests

SIDE = 224
# Of au.py: samples are read, and so many of their bytes handed out, as MLPerf Storage does; 0: pictures are decoded.
_TAKEN_BYTES = int(os.environ.get("TAKEN_BYTES", "0"))


def decode(jpeg: bytes, label: bytes) -> tuple[torch.Tensor, int]:
    """A picture resized and cropped, uint8 of shape (224, 224, 3), and its label."""
    if _TAKEN_BYTES:
        taken = bytearray(bytes(jpeg)[:_TAKEN_BYTES])
        return torch.frombuffer(taken + bytes(_TAKEN_BYTES - len(taken)), dtype=torch.uint8), int(label)
    picture = ImageOps.fit(Image.open(BytesIO(jpeg)).convert("RGB"), (SIDE, SIDE), Image.Resampling.BILINEAR)
    return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3), int(label)


class Job:
    """One training job: a dataset made once, and a loader for each epoch.

    Attributes:
        packages: distributions whose versions are reported.
        given: ``index``, ``urls`` and ``shards`` (where the data are; the last as dicts of an index), ``cache_dir``,
            ``batch``, ``workers``, ``options``.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, given: dict):
        self.given = given

    def loader(self, epoch: int):
        """The DataLoader of an epoch; its batches are ``(pictures, labels)``."""
        raise NotImplementedError


def run_epoch(loader, step_seconds: float, batches: int | None = None) -> dict:
    """Go through one epoch, or so many batches of it, and tell what the training loop had to wait for.

    Returns:
        first: seconds from the creation of the iterator to the first batch. epoch: to the end. worst: the longest wait
        for one later batch. samples, labels: how many came, and the sum of their labels. cpu: seconds of this process
        and of its workers, which have ended.
    """
    gc.collect()
    cpu_begin = _cpu_seconds()
    samples = labels = 0
    waits = []
    begin = asked = time.perf_counter()
    for pictures, numbers in loader:
        waits.append(time.perf_counter() - asked)
        if pictures.dtype != torch.uint8 or pictures.shape[1:] != (SIDE, SIDE, 3):
            raise ValueError(f"a batch of {pictures.dtype} {tuple(pictures.shape)}")
        samples += len(pictures)
        labels += int(numbers.sum())
        if step_seconds:
            time.sleep(step_seconds)
        if len(waits) == batches:
            break
        asked = time.perf_counter()
    seconds = time.perf_counter() - begin
    if not waits:
        raise ValueError("the loader yielded nothing")
    told = {"first": waits[0], "worst": max(waits[1:], default=0.0), "epoch": seconds}
    return {**told, "samples": samples, "labels": labels, "cpu": _cpu_seconds() - cpu_begin}


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def serve(make: type[Job]) -> None:
    """Answer requests until stdin ends; argv is the path of a JSON file with what the job is given."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        given = json.load(stream)
    job = None

    def answer(request: dict) -> dict:
        nonlocal job
        if request["op"] == "hello":
            job = make(given)
            return {"kinds": ["epoch"], "versions": _versions(("torch", "pillow", *make.packages))}
        return run_epoch(job.loader(request["epoch"]), given["step_seconds"], given["batches"])

    answer_requests(answer)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a working tree is not installed
            found[package] = importlib.metadata.version(package)
    return found
