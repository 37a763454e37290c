"""What each contender of batches.py runs: batches of indices for one rank, timed, or saved to be judged.

The seconds to import the contender's package are not part of any figure.
"""

from __future__ import annotations

import itertools
import json
import pickle
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from replies import answer_requests

if TYPE_CHECKING:
    from collections.abc import Iterator


class Planner:
    """Base of the contenders.

    Attributes:
        packages: distributions whose versions are reported.
        settings: what it is used with, in words.
        job: ``lengths`` (a file), ``budget``, ``shard_size``, ``batch_size``, ``formats`` (a directory for its files);
            ``cost``, ``images`` (a file) and ``image_budget`` (0: none) are for those that know several budgets;
            ``pack_tokens`` and ``packs`` (in a batch) are there if all are to pack.
        lengths: of all samples: (n,).
        made: CPU seconds of the process when the sampler was made, before a state was loaded into it; 0: not known.
    """

    made = 0.0

    packages: ClassVar[tuple[str, ...]] = ()
    settings = ""

    def __init__(self, job: dict) -> None:
        self.job = job
        self.lengths = np.load(job["lengths"])

    def prepare(self) -> None:
        """Write what it reads, once."""

    def begin(self, rank: int, world: int, state: Any = None) -> Iterator[list[int]]:
        """The batches of a rank, from the beginning or from a state."""
        raise NotImplementedError

    def state(self, consumed: int) -> Any:
        """Of what `begin` made last, after so many batches, all that were drawn."""
        raise NotImplementedError

    def steps(self, world: int, state: Any = None) -> Iterator[tuple[list[int], ...]]:
        """The batches of all ranks, step by step; a rank without one has an empty one."""
        return itertools.zip_longest(*(self.begin(rank, world, state) for rank in range(world)), fillvalue=[])

    def size(self, batch: list) -> int:
        """Samples of a batch; of packs, tokens."""
        return int(self.lengths[batch].sum()) if "pack_tokens" in self.job else len(batch)

    def arrays(self, batches: list) -> dict[str, np.ndarray]:
        """The batches of a rank, to be judged: their samples, and how many each has; of packs, see `find_runs`."""
        indices = np.fromiter(itertools.chain.from_iterable(batches), np.int64)
        return {"indices": indices, "counts": np.fromiter(map(len, batches), np.int64)}


def find_runs(batches: list[list[np.ndarray]], rooms: list[int], lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Batches of packs as runs of tokens that follow each other in a document: the first of each, and how many.

    Args:
        batches: tokens of each pack, numbered from 0 over all documents: (n,).
        rooms: tokens of each batch, with those that fill up.
        lengths: of all documents.
    """
    packs = list(itertools.chain.from_iterable(batches))
    flat, sizes = np.concatenate(packs), np.array(list(map(len, packs)))
    is_start = np.zeros(int(lengths.sum()), np.bool_)
    is_start[np.cumsum(lengths) - lengths] = True
    begins = np.append(True, np.diff(flat) != 1) | is_start[flat]
    begins[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
    at = np.flatnonzero(begins)
    ends = np.append(0, np.cumsum(sizes))[np.append(0, np.cumsum(list(map(len, batches))))]
    runs = np.diff(np.searchsorted(at, ends))
    return {"starts": flat[at], "sizes": np.diff(at, append=len(flat)), "runs": runs, "rooms": np.array(rooms)}


class _Service:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner

    def hello(self, _request: dict) -> dict:
        versions = {"python": platform.python_version()}
        versions |= {package: _version(package) for package in self.planner.packages}
        return {"versions": versions, "settings": self.planner.settings, "kinds": []}

    def prepare(self, _request: dict) -> dict:
        self.planner.prepare()
        return {}

    def time(self, request: dict) -> dict:
        """Plan the first half of a rank's epoch, keep its state, and resume there."""
        rank, world, middle = request["rank"], request["world"], request["middle"]
        before = _memory_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
        begin, begin_cpu = time.perf_counter(), time.process_time()
        batches = self.planner.begin(rank, world)
        samples = self.planner.size(next(batches))
        first, first_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        samples += sum(map(self.planner.size, itertools.islice(batches, middle - 1)))
        seconds = time.perf_counter() - begin
        used = _memory_bytes("VmHWM") - before
        saved = pickle.dumps(self.planner.state(middle))
        Path(request["state"]).write_bytes(saved)
        del batches
        begin, begin_cpu = time.perf_counter(), time.process_time()
        next(self.planner.begin(rank, world, pickle.loads(saved)))
        resumed, loaded_cpu = time.perf_counter() - begin, time.process_time() - max(self.planner.made, begin_cpu)
        found = {"first": first, "rate": samples / seconds, "resume": resumed, "bytes": used}
        return {**found, "state_bytes": len(saved), "first_cpu": first_cpu, "loaded_cpu": loaded_cpu}

    def deal(self, request: dict) -> dict:
        """Save the batches of one rank or of all, from the beginning or after a state; or tell why it is refused."""
        world, ranks = request["world"], request["ranks"]
        state = pickle.loads(Path(request["state"]).read_bytes()) if request["state"] else None
        try:
            steps = zip(self.planner.begin(*ranks, world, state)) if ranks else self.planner.steps(world, state)
        except AssertionError as failure:
            if state is None:
                raise
            return {"refused": str(failure)[:200]}
        found: list[list[list[int]]] = [[] for _ in ranks or range(world)]
        for step in steps:
            for batches, batch in zip(found, step, strict=True):
                if batch:
                    batches.append(batch)
        arrays = {
            f"{key}{number}": values
            for number, batches in enumerate(found)
            for key, values in self.planner.arrays(batches).items()
        }
        np.savez(request["path"], **arrays)
        return {"ranks": len(found)}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of this checkout"


def _memory_bytes(field: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if field in line]
    return int(line.split()[1]) * 1024


def serve(make: type[Planner]) -> None:
    """Answer requests until stdin ends; argv[1] is the job's file."""
    service = _Service(make(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    answer_requests(lambda request: getattr(service, request["op"])(request))
