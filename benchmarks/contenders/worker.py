"""What every contender's process runs: one JSON request a line on stdin, one JSON reply a line on stdout.

Standard library only, since each contender lives in an environment of its own. A contender is a class with one
method for each kind of work it can do (see ``KINDS``): it takes the row's parameters and returns ``arrange(seed)``,
which lays out one round outside the clock and returns the work to be timed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import json
import platform
import random
import subprocess
import sys
import time
from importlib import metadata
from typing import NamedTuple

from replies import answer_requests

KINDS = (
    "items",  # one sample at a time, by index
    "batches",  # a list of samples at a time, by a list of indices
    "loader",  # one epoch of a DataLoader, shuffled by the contender's own sampler
    "views",  # one sample at a time of a view, beside the same one of its dataset
    "open",  # opening every shard once, with whatever index the contender saves
    "build",  # making that index from the shards
    "imports",  # importing the package in a fresh interpreter
)


class Done(NamedTuple):
    """One round's work: units of work, payload bytes seen, and seconds where the work kept its own clock."""

    units: int
    payload_bytes: int
    seconds: float | None = None


class Contender:
    """Base of all contenders: the manifest of the data, a directory for its own files, and its environment.

    Attributes:
        sets: the manifest's sets by name: ``shardlist``, ``samples``, ``members``, ``member_bytes``, ``offsets``.
        scratch: a directory that this contender alone may fill (for its own format, its cache); the runner deletes it.
        packages: distributions whose versions are reported.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, sets: dict, scratch: str):
        self.sets = sets
        self.scratch = scratch

    def sample(self, name: str, index: int) -> tuple[str, dict[str, bytes]]:
        """Key and members of one sample of the set ``name``, for the check that all contenders read the same."""
        raise NotImplementedError

    def facts(self, row: dict) -> dict:  # noqa: ARG002  (for subclasses)
        """Things that hold or do not, beside the timing."""
        return {}


def draw(row: dict, sets: dict, seed: int) -> list[int]:
    """The sample indices of one round; the same for every contender that is asked for as many."""
    data = sets[row["data"]]
    rng = random.Random(seed)
    if row["order"] == "sequence":
        return list(range(data["samples"]))
    if row["order"] == "random":
        return [rng.randrange(data["samples"]) for _ in range(row["draws"] or data["samples"])]
    first, chunks = 0, []
    for shard in data["shardlist"]:
        chunks.append(list(range(first, first + shard["nsamples"])))
        first += shard["nsamples"]
    rng.shuffle(chunks)
    for chunk in chunks:
        rng.shuffle(chunk)
    order = [index for chunk in chunks for index in chunk]
    return order[: row["draws"]] if row["draws"] else order


def cut(order: list[int], size: int) -> list[list[int]]:
    return [order[lo : lo + size] for lo in range(0, len(order), size)]


def import_seconds(module: str) -> float:
    """Wall seconds of ``import module`` in a fresh interpreter, less those of an interpreter that does nothing."""
    seconds = []
    for code in ("pass", f"import {module}"):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds.append(time.perf_counter() - begin)
    return seconds[1] - seconds[0]


def import_loads(module: str, other: str) -> bool:
    """Whether ``import module`` in a fresh interpreter brings the module ``other``."""
    code = f"import {module}, sys; print({other!r} in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return told.stdout.split()[-1] == "True"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # A working tree on PYTHONPATH is not an installed distribution.
        return importlib.import_module(package).__version__


def _collect(request: dict) -> None:
    """What is garbage by now is no work of the next round; figures that mean nothing do without."""
    if not request.get("is_quick"):
        gc.collect()


class _Service:
    """Answers requests for one contender; holds the rows that are prepared."""

    def __init__(self, contender: Contender):
        self.contender = contender
        self.arranged: dict = {}

    def hello(self, _request: dict) -> dict:
        versions = {"python": platform.python_version()}
        for package in self.contender.packages:
            with contextlib.suppress(ImportError):
                versions[package] = _version(package)
        return {"versions": versions, "kinds": [kind for kind in KINDS if hasattr(self.contender, kind)]}

    def prepare(self, request: dict) -> dict:
        """Open what the row needs and run one untimed round."""
        row = request["row"]
        arrange = self.arranged[row["name"]] = getattr(self.contender, row["kind"])(row)
        arrange(request["seed"])()
        return {"facts": self.contender.facts(row)}

    def run(self, request: dict) -> dict:
        work = self.arranged[request["name"]](request["seed"])
        _collect(request)
        begin = time.perf_counter()
        done = work()
        seconds = time.perf_counter() - begin
        return {**done._asdict(), "seconds": seconds if done.seconds is None else done.seconds}

    def drop(self, request: dict) -> dict:
        """Forget a row, so that its open shards and worker processes do not weigh on the next."""
        self.arranged.pop(request["name"], None)
        _collect(request)
        return {}

    def digest(self, request: dict) -> dict:
        """One hash over keys, extensions and bytes of the samples asked for."""
        digest = hashlib.sha256()
        for index in request["indices"]:
            key, members = self.contender.sample(request["data"], index)
            for extension in sorted(members):
                digest.update(f"{key}\0{extension}\0{len(members[extension])}\0".encode())
                digest.update(members[extension])
        return {"digest": digest.hexdigest()}


def serve(make: type[Contender]) -> None:
    """Answer requests until stdin ends; argv is the manifest's path and the scratch directory."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        sets = json.load(stream)["sets"]
    service = None

    def answer(request: dict) -> dict:
        nonlocal service
        # Here, for a library that fails to start is told to the runner.
        service = service or _Service(make(sets, sys.argv[2]))
        return getattr(service, request["op"])(request)

    answer_requests(answer)
