"""The number of processes of a training job, by the environment that its launcher set."""

from __future__ import annotations

import multiprocessing
import os

# Workers of a loader, where only one of them is seen.
_WORKERS = 8


def ranks_of_node() -> int:
    """Number of ranks of a distributed job on this node."""
    return max(environ_int("LOCAL_WORLD_SIZE"), 1)


def processes_of_job() -> int:
    """Approximate number of processes of a job that read samples; a loader's worker counts as one of some."""
    is_worker = multiprocessing.parent_process() is not None
    return max(environ_int("WORLD_SIZE"), 1) * (_WORKERS if is_worker else 1)


def environ_int(name: str) -> int:
    """The value of an environment variable; 0 for none, or one that is no number."""
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return 0
