"""Base of the contenders of peers.py: one JSON request a line on stdin, one JSON reply a line on stdout.

A contender is a module ``peer_NAME.py`` with a subclass of `Peer`, named in ``CONTENDER``; ``peer_main.py`` runs it.
What it has no method for is left out of the table for it. It runs in an environment of its own, which has torch,
torchvision, NumPy, Pillow and the loader's own packages; of this folder it may import ``cold_worker`` (for `decode`).
Everything is read and yielded as the loader's users would have it; the methods ``key``, ``payload``, ``label`` say how
to look into one of its samples.
"""

from __future__ import annotations

import base64
import gc
import heapq
import itertools
import json
import os
import pickle
import platform
import random
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from replies import answer_requests
from tar_samples import MODULUS, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS = ("prepare", "items", "loader", "remote_loader", "hub_loader", "open_many", "job")
_ITEMS_SECONDS = 2.0  # a round of single samples ends after it
_ITEMS_BLOCK = 50


class Peer:
    """One loader.

    Attributes:
        packages: distributions whose versions are reported.
        settings: what was set and why, for the page of results: a few words, with the documentation's name for it.
        notes: by kind of work that is missing, why; printed beside the table.
        sets: by name of a set: ``directory``, ``shards`` (file names of its tars), ``per_shard``, ``samples``,
            ``bytes``, ``field`` ("jpg" or "txt").
        root: the directory that the slow server serves; the sets are in ``root/tars/NAME``.
        home: the loader's own directory, ``root/formats/CONTENDER``, for its own format; it is kept between runs.
        url: of the slow server, which answers for ``root``: plain HTTP with ranges, and what GET and HEAD of S3 are
            (path style; the buckets are ``formats`` and ``tars``).
        batch: samples in a batch.
    """

    packages: tuple[str, ...] = ()
    settings = ""
    notes: ClassVar[dict[str, str]] = {}

    def __init__(self, given: dict):
        self.sets: dict[str, dict] = given["sets"]
        self.root: str = given["root"]
        self.home: str = given["home"]
        self.url: str = given["url"]
        self.batch: int = given["batch"]

    def tars(self, name: str) -> list[str]:
        """Paths of the shards of a set, in order."""
        found = self.sets[name]
        return [os.path.join(found["directory"], shard) for shard in found["shards"]]

    def own(self, name: str) -> str:
        """The directory of this loader's own files for a set."""
        return os.path.join(self.home, name)

    # What a sample is to this loader, undecoded.

    def key(self, sample: Any) -> str:
        """The sample's key, "00000012"."""
        raise NotImplementedError

    def payload(self, sample: Any) -> bytes:
        """The bytes of its picture or text."""
        raise NotImplementedError

    def label(self, sample: Any) -> int:
        """Its label, the sample's number."""
        raise NotImplementedError

    # Work. A subclass has these as far as its loader can do them:
    #
    #   prepare(name): from the tars to ``own(name)``, which is empty, by the loader's own writer; returns the bytes on
    #       the disk if they are not there; NotImplementedError where the format cannot hold such samples
    #   items(name) -> (length, function from an index to a sample), undecoded, from the local disk
    #   loader(name, workers, is_decoded=) -> function from an epoch's number to an iterable of its batches, shuffled:
    #       lists of undecoded samples, or (pictures, labels) made by ``cold_worker.decode``
    #   remote_loader(name, cache) -> iterable of one epoch's decoded batches by 2 workers, through ``url``; ``cache``
    #       is a directory for what was downloaded, which is missing, or filled by a run before
    #   hub_loader(name, cache) -> the same of the Hub's data set bench/NAME, through $HF_ENDPOINT
    #   open_many(count) -> a dataset of so many shards, opened; its ``len`` is asked for, if it has one. `prepare_many`
    #       makes it, with shards that have hardly any bytes
    #   job(name, rank, world) -> `Job`: the loader of one of several ranks, 2 workers, undecoded

    def prepare_many(self, count: int) -> None:
        """Make what `open_many` opens, under ``own("many")``."""


class Job:
    """One rank of a training job that can be saved and resumed."""

    def batches(self) -> Iterable[list]:
        """The batches of the epoch; what is left of it after `load_state`."""
        raise NotImplementedError

    def state(self, consumed: int) -> Any:
        """What a program would save after so many batches of `batches`; anything that can be pickled.

        Called between two batches, before the iterator ends. Raises NotImplementedError if there is no such thing.
        """
        raise NotImplementedError

    def load_state(self, state: Any) -> None:
        """Go on from a saved state; called before `batches`. Whatever the loader raises is the answer."""
        raise NotImplementedError


class _Service:
    """Answers requests for one contender."""

    def __init__(self, peer: Peer, import_seconds: float):
        self.peer, self.import_seconds = peer, import_seconds
        self.rounds: Callable[[int], dict] | None = None
        self.fed: Callable[[int], Iterable] | None = None

    def hello(self, _request: dict) -> dict:
        versions = {"python": platform.python_version()}
        for package in ("torch", "numpy", "pillow", *self.peer.packages):
            versions[package] = metadata.version(package)
        kinds = [kind for kind in KINDS if hasattr(self.peer, kind)]
        return {"versions": versions, "kinds": kinds, "settings": self.peer.settings, "notes": self.peer.notes}

    def prepare(self, request: dict) -> dict:
        begin = time.perf_counter()
        try:
            size = self.peer.prepare(request["set"])
        except NotImplementedError:
            return {"seconds": 0.0, "bytes": 0, "is_possible": False}
        return {"seconds": time.perf_counter() - begin, "bytes": size, "is_possible": True}

    def prepare_many(self, request: dict) -> dict:
        self.peer.prepare_many(request["count"])
        return {}

    def check(self, request: dict) -> dict:
        """Number and digest of the samples of one epoch, and of all single samples."""
        peer, found = self.peer, {}
        if hasattr(peer, "loader"):
            epoch = peer.loader(request["set"], request["workers"], is_decoded=False)
            found["epoch"] = self._sum(sample for batch in epoch(0) for sample in batch)
        if hasattr(peer, "items"):
            length, get = peer.items(request["set"])
            found["items"] = self._sum(get(index) for index in range(length))
        return {"found": found}

    def _sum(self, samples: Iterable) -> tuple[int, str]:
        count = total = 0
        for sample in samples:
            payload = bytes(self.peer.payload(sample))
            total += digest_of(self.peer.key(sample), payload, self.peer.label(sample))
            count += 1
        return count, str(total % MODULUS)

    def start(self, request: dict) -> dict:
        """Open what a row needs, and run one round outside of the clock; not where it would be most of the run."""
        self.rounds = None
        gc.collect()
        self.rounds = getattr(self, f"_{request['kind']}")(request)
        if not request["is_decoded"] or request["workers"]:
            self.rounds(0)
        return {}

    def run(self, request: dict) -> dict:
        gc.collect()
        return self.rounds(request["seed"])

    def stop(self, _request: dict) -> dict:
        """Forget the row, so that its open shards and workers do not weigh on the next."""
        self.rounds = None
        gc.collect()
        return {}

    def _items(self, request: dict) -> Callable[[int], dict]:
        length, get = self.peer.items(request["set"])
        payload = self.peer.payload

        def run(seed: int) -> dict:
            rng = random.Random(seed)
            order = [rng.randrange(length) for _ in range(request["draws"])]
            total = done = 0
            begin = time.perf_counter()
            for lo in range(0, len(order), _ITEMS_BLOCK):
                block = order[lo : lo + _ITEMS_BLOCK]
                for index in block:
                    total += len(payload(get(index)))
                done += len(block)
                if time.perf_counter() - begin > _ITEMS_SECONDS:
                    break
            return {"seconds": time.perf_counter() - begin, "units": done, "payload": total}

        return run

    def _loader(self, request: dict) -> Callable[[int], dict]:
        epoch = self.peer.loader(request["set"], request["workers"], is_decoded=request["is_decoded"])
        payload = self.peer.payload

        def raw(seed: int) -> dict:
            count = total = 0
            begin = time.perf_counter()
            for batch in epoch(seed):
                for sample in batch:
                    total += len(payload(sample))
                count += len(batch)
            return {"seconds": time.perf_counter() - begin, "units": count, "payload": total}

        return (lambda seed: _go_through(epoch(seed))) if request["is_decoded"] else raw

    def cold(self, request: dict) -> dict:
        """From the import of the package to the first batch, and to the end of the epoch if all of it is wanted."""
        begin = time.perf_counter() - self.import_seconds
        limit = None if request["is_whole"] else 1
        loader = getattr(self.peer, request["kind"])(request["set"], request["cache"])
        return _go_through(itertools.islice(loader, limit), begin)

    def feed(self, request: dict) -> dict:
        """An epoch for emulated accelerators, local, or remote with an empty cache."""
        gc.collect()
        begin = time.perf_counter()
        if request["cache"]:  # some loaders fill it before the first batch, which is part of the epoch
            batches = self.peer.remote_loader(request["set"], request["cache"])
        else:
            self.fed = self.fed or self.peer.loader(request["set"], request["workers"], is_decoded=True)
            batches, begin = self.fed(request["seed"]), time.perf_counter()
        step, accelerators = request["step"], request["accelerators"]
        return _feed(batches, begin, accelerators=accelerators, step=step, batch=self.peer.batch)

    def open(self, request: dict) -> dict:
        """Seconds and resident bytes that it takes to open a dataset of many shards; the package is imported before."""
        gc.collect()
        before = _resident_bytes()
        begin = time.perf_counter()
        opened = self.peer.open_many(request["count"])
        samples = len(opened) if hasattr(opened, "__len__") else None
        return {"seconds": time.perf_counter() - begin, "bytes": _resident_bytes() - before, "samples": samples}

    def resume(self, request: dict) -> dict:
        """Read ``limit`` batches of one rank, or all that are left, after loading a state if there is one."""
        begin = time.perf_counter()
        job = self.peer.job(request["set"], request["rank"], request["world"])
        if request["state"] is not None:
            job.load_state(pickle.loads(base64.b64decode(request["state"])))
        labels: list[int] = []
        first, state = None, None
        for consumed, batch in enumerate(job.batches(), 1):
            first = time.perf_counter() - begin if first is None else first
            labels += [self.peer.label(sample) for sample in batch]
            if consumed == request["limit"]:
                state = base64.b64encode(pickle.dumps(job.state(consumed))).decode()
                break
        return {"labels": labels, "first": first, "state": state}


def _go_through(batches: Iterable, begin: float | None = None) -> dict:
    """One epoch of decoded batches: seconds to the first and to the end, samples, sum of the labels."""
    begin = time.perf_counter() if begin is None else begin
    samples = labels = 0
    first = None
    for pictures, numbers in batches:
        first = time.perf_counter() - begin if first is None else first
        if tuple(pictures.shape[1:]) != (224, 224, 3) or str(pictures.dtype) != "torch.uint8":
            raise ValueError(f"a batch of {pictures.dtype} {tuple(pictures.shape)}")
        samples += len(pictures)
        labels += int(numbers.sum())
    return {"first": first, "seconds": time.perf_counter() - begin, "units": samples, "labels": labels}


def _feed(batches: Iterable, begin: float, *, accelerators: int, step: float, batch: int) -> dict:
    """One epoch whose batches go to the accelerator that is free first; it then computes, that is, time passes.

    Args:
        batches: of pictures and labels.
        begin: of the epoch.
        accelerators: that are emulated; 0: batches are taken as they come.
        step: seconds of computing for a whole batch.
        batch: samples in it.

    Returns:
        seconds, units (samples), labels (their sum), utilisation: share of computing in the time of the accelerators
        from the end of each one's first step to the end of its last (0.0 without accelerators, or with one step each).
    """
    samples = labels = 0
    free = [(begin, number) for number in range(accelerators)]
    first: dict[int, float] = {}
    computed = 0.0
    for pictures, numbers in batches:
        if free:
            moment, number = heapq.heappop(free)
            now = time.perf_counter()  # the batch is here
            start = max(now, moment)
            seconds = step * len(pictures) / batch
            computed += seconds if number in first else 0.0
            first.setdefault(number, start + seconds)
            heapq.heappush(free, (start + seconds, number))
            # The next batch is asked for when an accelerator is free.
            time.sleep(max(free[0][0] - time.perf_counter(), 0.0))
        samples += len(pictures)
        labels += int(numbers.sum())
    seconds = time.perf_counter() - begin
    whole = sum(end - first.get(number, end) for end, number in free)
    return {"seconds": seconds, "units": samples, "labels": labels, "utilisation": computed / whole if whole else 0.0}


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(make: type[Peer], *, import_seconds: float) -> None:
    """Answer requests until stdin ends; argv[1] is the path of a JSON file with what `Peer` is given.

    Args:
        make: the contender.
        import_seconds: that its module took.
    """
    with open(sys.argv[1], encoding="utf-8") as stream:
        given = json.load(stream)
    service = None

    def answer(request: dict) -> dict:
        nonlocal service
        # Here, for a library that fails to start is told to the runner.
        service = service or _Service(make(given), import_seconds)
        return getattr(service, request["op"])(request)

    answer_requests(answer)
    # Some loaders leave threads or processes that would keep the interpreter from ending.
    os._exit(0)
