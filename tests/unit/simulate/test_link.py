"""A node's link: what comes first, and when it comes."""

from __future__ import annotations

import pytest

from wids.tools.simulate.link import Clock, Delivery, Link


class Recorder:
    """A link of 10 bytes a second, with a second to a first byte, that notes what it brings.

    Attributes:
        arrived: (time, shard, batch) of each delivery. carried: bytes, as far as there were any.
    """

    def __init__(self):
        """Nothing yet."""
        self.clock, self.arrived, self.carried = Clock(), [], []
        self._link = Link(
            self.clock, bandwidth=10.0, latency=1.0, on_carried=self.carried.append, on_arrival=self._note
        )

    def _note(self, delivery):
        self.arrived.append((self.clock.now, delivery.shard, delivery.batch))
        self._link.serve()

    def bring(self, delivery, when=0.0):
        """Ask for a delivery then."""

        def ask():
            yield when
            self.clock.start(self._link.bring(delivery))

        self.clock.start(ask())

    def run(self):
        """Let time go on until nothing is left to do; returns the deliveries."""
        while self.clock:
            self.clock.run_next()
        return self.arrived


def test_a_link_carries_one_shard_at_a_time():
    """Shards that a loader waits for come first, else those of the ranks in turn; first bytes come side by side."""
    link = Recorder()
    for shard, rank, is_urgent in [(0, 0, False), (1, 0, False), (2, 1, False), (3, 1, True)]:
        link.bring(Delivery(rank, shard, 20, is_urgent))
    assert [(when, shard) for when, shard, _ in link.run()] == [(3.0, 0), (5.0, 3), (7.0, 1), (9.0, 2)]


@pytest.mark.parametrize("is_urgent", [False, True])
def test_ranges_interrupt_a_shard(is_urgent):
    """A shard that is under way goes on after them, with what is left of it; nothing is carried twice."""
    link = Recorder()
    link.bring(Delivery(0, 7, 20, is_urgent))
    link.bring(Delivery(0, 8, 10, is_urgent))
    link.bring(Delivery(0, -1, 30, is_urgent=True, batch=4), when=1.0)
    assert link.run() == [(5.0, -1, 4), (6.0, 7, None), (7.0, 8, None)]
    assert [size for size in link.carried if size] == [10, 30, 10, 10]
