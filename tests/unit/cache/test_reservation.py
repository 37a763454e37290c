"""Who has space in a cache, and what is evicted for it: rules that hold for every cache and every request."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.core.cache import reservation
from wids.core.cache.eviction import Entry, victims
from wids.core.cache.reservation import Evict, Grant, MustWait, Refuse, Request, reserve, settle

NOW = 100.0


class Cache:
    """A cache in memory, with a clock that stands still."""

    second, disk, promised = 1.0, 0, 0

    def __init__(self, sizes, *, limit=None, free=1 << 40, floor=0, uses=None, leased=(), kept=(), is_busy=False):
        """Shards with these sizes, least recently used first."""
        self.limit, self.free, self.floor, self.now = limit, free, floor, NOW
        self.uses, self.leased, self.is_busy = uses or {}, set(leased), is_busy
        self.found = [
            Entry(name=str(k), size_bytes=size, used_ns=k, is_kept=str(k) in kept) for k, size in enumerate(sizes)
        ]
        self.evicted = []

    own = 0  # bytes of the download that asks

    @property
    def used(self):
        """Bytes of the shards, and of the download."""
        return self.own + sum(entry.size_bytes for entry in self.found)

    def entries(self):
        """The shards."""
        return iter(list(self.found))

    def evict(self, entry):
        """Evict a shard, unless it is leased."""
        if entry.name in self.leased:
            return False
        self.found.remove(entry)
        self.free += entry.size_bytes
        self.evicted.append(entry)
        return True

    def fits(self, request):
        """Whether there is space."""
        is_within = self.limit is None or self.used + request.wanted <= self.limit
        return is_within and self.free - self.promised - request.wanted >= self.floor


NAMES = st.sets(st.sampled_from("012345"))
CACHES = st.builds(
    Cache,
    st.lists(st.integers(1, 9), max_size=6),
    limit=st.none() | st.integers(0, 40),
    free=st.integers(0, 40),
    floor=st.integers(0, 9),
    uses=st.dictionaries(st.sampled_from("012345"), st.sampled_from([90.0, 100.0, 100.04, 100.2, 101.0, 300.0])),
    leased=NAMES,
    kept=NAMES,
    is_busy=st.booleans(),
)
REQUESTS = st.builds(
    lambda wanted, more, use, waited: Request(wanted, wanted + more, use, waited),
    st.integers(1, 20),
    st.integers(0, 9),
    st.none() | st.sampled_from([100.0, 100.1, 200.0]),
    st.sampled_from([0.0, 0.4, 0.5, 10.0]),
)


@settings(deadline=None, max_examples=300)
@given(CACHES, REQUESTS)
def test_rules(cache, request):
    """What is granted fits; what is evicted may be, in the order of the library, and no more of it than has to."""
    cache.own = request.total - request.wanted
    before, order = list(cache.found), list(victims(cache.entries(), cache.uses))
    decision = settle(cache, request, cache.evict)
    names = {entry.name for entry in cache.evicted}
    assert isinstance(decision, (Grant, MustWait, Refuse))
    assert not isinstance(decision, MustWait if request.use is not None else Refuse)
    assert not names & cache.leased
    assert not any(entry.is_kept for entry in cache.evicted)
    assert [entry for entry in order if entry.name in names] == cache.evicted
    if request.use is not None:  # a download ahead costs nothing that is needed sooner, or now
        limit = max(request.use, NOW + reservation.LIMITS.now_seconds)
        assert all(cache.uses.get(entry.name, math.inf) > limit for entry in cache.evicted)
        assert not getattr(decision, "is_over_limit", False)
    if isinstance(decision, Grant) and not decision.is_over_limit:
        assert cache.fits(request)
        if cache.evicted:
            last = cache.evicted[-1]
            cache.found.append(last)
            cache.free -= last.size_bytes
            assert not cache.fits(request)
    elif isinstance(decision, Grant):
        assert cache.limit is None or request.total > cache.limit
        assert cache.free >= request.wanted
        assert cache.found == [entry for entry in before if entry.is_kept or entry.name in cache.leased]
    else:
        assert decision.missing > 0
        assert not cache.fits(request)


@pytest.mark.thorough
@settings(deadline=None, max_examples=200)
@given(CACHES, REQUESTS)
def test_nothing_is_lost_in_vain(cache, request):
    """Where no shard is leased, nothing is evicted for a request that gets no space."""
    cache.leased = set()
    decision = settle(cache, request, cache.evict)
    if not isinstance(decision, Grant):
        is_lone = cache.limit is None or request.total > cache.limit  # everything goes for what no limit holds
        assert not cache.evicted or is_lone


@pytest.mark.thorough
@settings(deadline=None, max_examples=200)
@given(CACHES, REQUESTS)
def test_the_same_question_has_the_same_answer(cache, request):
    """A decision changes nothing by itself."""
    one, other = reserve(cache, request), reserve(cache, request)
    if isinstance(one, Evict):
        assert (one.missing, one.after, list(one.candidates)) == (other.missing, other.after, list(other.candidates))
    else:
        assert one == other
    assert cache.evicted == []


def test_patience():
    """At first nothing goes that is used soon, if another shard may go in a moment; then it does."""
    request = Request(5, 5, waited=0.0)
    uses = {"0": NOW + 0.4, "1": NOW + 9}
    soon = Cache([5, 5], limit=10, uses=uses, leased="1")
    assert settle(soon, request, soon.evict) == MustWait(5, is_blocked=True)
    assert settle(soon, request._replace(waited=reservation.LIMITS.grace_seconds), soon.evict) == Grant()
    assert [entry.name for entry in soon.evicted] == ["0"]
    again = Cache([5, 5], limit=10, uses=uses, leased="1")
    assert settle(again, request._replace(waited=0.1, grace=0.2), again.evict) == MustWait(5, is_blocked=True)
    assert settle(again, request._replace(waited=0.1, grace=0.1), again.evict) == Grant()
    alone = Cache([5], limit=5, uses={"0": NOW + 0.4})
    assert settle(alone, request, alone.evict) == Grant()  # nothing else will ever go
    busy = Cache([5], limit=5, uses={"0": NOW + 0.4}, is_busy=True)
    assert settle(busy, request, busy.evict) == MustWait(5, is_blocked=True)


@pytest.mark.parametrize(("download", "grace"), [(0.0, 0.0), (0.01, 0.005), (0.5, 0.25), (1.0, 0.5), (60.0, 0.5)])
def test_patience_is_no_longer_than_half_a_download(download, grace):
    """Where shards come quickly, to download one again costs less than the wait that might avoid it."""
    assert reservation.grace(download) == grace


def test_a_clock_of_another_kind():
    """Where a second is a thousand positions, soon is five hundred of them."""
    cache = Cache([5, 5], limit=10, uses={"0": NOW + 499, "1": NOW + 501})
    cache.second = 1000.0
    assert settle(cache, Request(5, 5, waited=0.0), cache.evict) == Grant()
    assert [entry.name for entry in cache.evicted] == ["1"]


@pytest.mark.parametrize(("limit", "free"), [(4, 100), (None, 12)])
def test_a_shard_that_no_limit_holds(limit, free):
    """It is admitted once all others are gone; a disk has an end."""
    cache = Cache([5, 5], limit=limit, free=free, floor=20 if limit is None else 0, leased="0")
    assert settle(cache, Request(12, 12), cache.evict) == Grant(is_over_limit=True)
    assert [entry.name for entry in cache.evicted] == ["1"]
    cache = Cache([], limit=limit, free=11)
    assert settle(cache, Request(12, 12), cache.evict).missing > 0


@pytest.mark.parametrize(("limit", "free", "kind"), [(4, 100, Refuse), (None, 12, MustWait)])
def test_a_shard_of_unknown_length_is_not_admitted_over_the_limit(limit, free, kind):
    """It may never end. Nothing goes for it, and no wait makes a limit larger."""
    cache = Cache([5, 5], limit=limit, free=free, floor=20 if limit is None else 0, leased="0")
    request = Request(12, 12, is_final=False)
    assert isinstance(settle(cache, request, cache.evict), kind)
    assert cache.evicted == []
    cache = Cache([5, 5], limit=12, free=100)
    assert settle(cache, request, cache.evict) == Grant()
