"""How a shard is read: all cases against the words of the documentation."""

import itertools
import math
from types import SimpleNamespace

import pytest

from wids.core.readers import access
from wids.core.readers.access import Access, begins_download, can_range, choose, costs_less, reads_ranges

NOW = 100.0
FLAGS = (
    "has_early_reads",
    "is_in_place",
    "is_cached",
    "is_downloading",
    "will_arrive",
    "has_failed",
    "has_ranges",
    "has_table",
    "is_spent",
    "may_ask",
)


def all_shards():
    """Each combination of facts."""
    for mode, retry_at, *flags in itertools.product(
        ("fetch", "range", "auto"), (-math.inf, NOW, NOW + 1), *[(False, True)] * len(FLAGS)
    ):
        yield SimpleNamespace(mode=mode, retry_at=retry_at, **dict(zip(FLAGS, flags, strict=True)))


def test_each_case():
    """Where a shard is decides first; then whether samples can come without it; then who brings it."""
    counts = dict.fromkeys(Access, 0)
    for shard in all_shards():
        found = choose(shard, NOW)
        counts[found] += 1
        is_ready = shard.has_ranges and shard.has_table and not shard.is_spent and shard.retry_at <= NOW
        is_early = is_ready and shard.has_early_reads and shard.will_arrive and not shard.has_failed
        by_mode = {
            "range": True,
            "auto": is_ready and not shard.is_downloading,
            "fetch": is_early and (shard.may_ask or not shard.is_downloading),
        }
        assert can_range(shard, NOW) == is_ready
        assert reads_ranges(shard, NOW) == by_mode[shard.mode]
        if shard.is_in_place or shard.is_cached:
            assert found is (Access.IN_PLACE if shard.is_in_place else Access.CACHED)
        elif by_mode[shard.mode]:
            assert found is Access.RANGES
        elif is_early and shard.mode == "fetch":
            assert found is Access.TURN
        else:
            assert found is (Access.WAIT if shard.is_downloading else Access.DOWNLOAD)
    assert min(counts.values()) > 0


def test_facts_that_cost_are_asked_for_last():
    """A shard in place is not looked for, one in the cache costs no look at locks, tables or servers."""

    class Costly:
        mode, is_in_place, is_cached = "fetch", False, True

        def __getattr__(self, name):
            raise AssertionError(name)

    shard = Costly()
    assert choose(shard, NOW) is Access.CACHED
    shard.is_in_place = True
    assert choose(shard, NOW) is Access.IN_PLACE
    shard.is_in_place, shard.is_cached, shard.mode = False, False, "range"
    assert choose(shard, NOW) is Access.RANGES


@pytest.mark.parametrize("waited", [0.0, access.PATIENCE_SECONDS])
@pytest.mark.parametrize(("is_own", "is_downloading", "is_planned"), [*itertools.product([False, True], repeat=3)])
def test_who_downloads(is_own, is_downloading, is_planned, waited):
    """One process, and not before the job whose plan has the shard has had its time."""
    facts = {"is_own": is_own, "is_downloading": is_downloading, "is_planned": is_planned, "has_room": True}
    shard = SimpleNamespace(since=NOW - waited, **facts)
    expected = not is_own and not is_downloading and (not is_planned or waited > 0)
    assert begins_download(shard, NOW) == expected
    shard.has_room = False
    assert not begins_download(shard, NOW)


def test_what_a_few_samples_cost():
    """Bytes and requests of each, against those of the shard; of what is not known, as few as not all are few."""
    about = {"nsamples": 100, "size": 10_000, "request_bytes": 300}
    assert [costs_less(count, **about) for count in (0, 24, 25, 100)] == [True, True, False, False]
    assert [costs_less(count, **{**about, "size": None}) for count in (0, 99, 100)] == [True, True, False]
    assert not any(costs_less(0, **{**about, "nsamples": unknown}) for unknown in (None, 0))
