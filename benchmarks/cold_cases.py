"""Who takes part in cold.py.

To add a loader: write ``contenders/cold_NAME.py`` (see ``contenders/cold_worker.py``), and add a `Contender` with its
pip requirements and a `Case` here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import envs


@dataclass(frozen=True, kw_only=True)
class Contender(envs.Entry):
    """Where a loader lives. ``worker`` is its script, ``contenders/WORKER.py``."""

    worker: str

    @property
    def script(self) -> str:
        """Path of the worker script."""
        return os.path.join(envs.HERE, "contenders", f"{self.worker}.py")


OURS = Contender(name="ours", worker="cold_wids", environ={"PYTHONPATH": envs.REPOSITORY})
ORIGINAL = Contender(name="original", worker="cold_wids", requirements=envs.CONTENDERS["original"].requirements)
WEBDATASET = Contender(
    name="webdataset", worker="cold_webdataset", requirements=("webdataset>=1.0", "torch", "numpy", "pillow")
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table.

    Attributes:
        name: what ``--only`` calls it. title: what the table calls it.
        contender: who runs it.
        is_remote: read through the server, or the shards in place.
        bound: ``cache_size`` as a part of the data, None without.
        options: for the contender's worker.
        follows: it is the next epoch of that case's process.
    """

    name: str
    title: str
    contender: Contender
    is_remote: bool = True
    bound: float | None = None
    options: dict = field(default_factory=dict)
    follows: str = ""

    def followers(self) -> list[str]:
        """Names of the cases that go on in this one's process."""
        return [other.name for other in CASES if other.follows == self.name]


CASES = (
    Case(name="local", title="ours, local shards", contender=OURS, is_remote=False),
    Case(name="ours", title="ours", contender=OURS),
    Case(name="second", title="ours, next epoch", contender=OURS, follows="ours"),
    Case(name="quarter", title="ours, cache_size 1/4", contender=OURS, bound=0.25),
    Case(name="original", title="original", contender=ORIGINAL, options={"sampler": {"chunksize": 1000}}),
    Case(name="webdataset", title="webdataset", contender=WEBDATASET, options={"cache": True}),
    Case(name="stream", title="webdataset, no cache", contender=WEBDATASET),
)
