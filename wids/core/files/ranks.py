"""How many processes a training job has, by the environment that its launcher set."""

from __future__ import annotations

import multiprocessing
import os

# Workers of a loader, where only one of them is seen.
_WORKERS = 8


def ranks_of_node() -> int:
    """How many ranks of a distributed job this node has."""
    return max(environ_int("LOCAL_WORLD_SIZE"), 1)


def processes_of_job() -> int:
    """How many processes of a distributed job read samples, about; a worker of a loader is taken for one of some."""
    is_worker = multiprocessing.parent_process() is not None
    return max(environ_int("WORLD_SIZE"), 1) * (_WORKERS if is_worker else 1)


def environ_int(name: str) -> int:
    """The value of an environment variable; 0 for none, or one that is no number."""
    try:
        return int(os.environ.get(name, ""))
    except ValueError:
        return 0
