"""The results of a simulation: what travelled, what stood still, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(kw_only=True)
class Traffic:
    """A node's downloads in an epoch; ``again``: of shards downloaded before, of those ``again_within`` this epoch."""

    shards: int = 0
    size_bytes: int = 0
    again: int = 0
    again_bytes: int = 0
    again_within: int = 0
    evicted: int = 0
    waited: int = 0  # a loader already waited when the download began
    range_requests: int = 0  # for samples whose shard was not cached, one for each
    range_bytes: int = 0


class Stall(NamedTuple):
    """Steps wait: at which step, counted over all epochs, for how long, for which node."""

    step: int
    seconds: float
    node: int


@dataclass
class SimulationResult:
    """The figures of a whole job.

    Attributes:
        traffic: [epoch][node].
        epoch_seconds: of each epoch.
        first_seconds: to the first batch of each epoch.
        stalls: every wait of a step for a node.
        waits: step -> seconds, of all nodes together.
        log: of each node: (time, bytes in the cache, bytes downloaded so far).
        marks: (time, step), ascending.
        stopped_at: the step at which it was given up: shards are evicted while they are read; None: it was not.
        requests: second -> requests of all nodes that began in it, for shards and for samples.
    """

    traffic: list[list[Traffic]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=dict)
    log: list[list[tuple[float, int, int]]] = field(default_factory=list)
    marks: list[tuple[float, int]] = field(default_factory=list)
    stopped_at: int | None = None
    requests: dict[int, int] = field(default_factory=dict)

    def note_requests(self, now: float, count: int) -> None:
        """So many requests begin."""
        self.requests[int(now)] = self.requests.get(int(now), 0) + count

    def total(self, name: str) -> int:
        """The sum of one figure of the traffic."""
        return sum(getattr(traffic, name) for nodes in self.traffic for traffic in nodes)


# --- what ranks do
