"""Who gets space in a cache, and what is evicted for it, against the model of the cache."""

from __future__ import annotations

import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.cache import Cache, Shard
from tests.support.examples import examples
from wids.core.cache import reservation
from wids.core.cache.eviction import Entry
from wids.core.cache.reservation import Evict, Grant, MustWait, Refuse, Request, reserve, settle

NOW = 100.0


class Snapshot:
    """A model of a cache as the library sees it, with a clock that stands still.

    Args:
        sizes: bytes of its shards, least recently used first; their names are 0, 1, 2, ...
        uses: when shards will be read, by name.
        leased, kept: names.
        options: see `tests.model.cache.Cache`.
    """

    second, disk, promised = 1.0, 0, 0

    def __init__(self, sizes, *, limit=None, free=1 << 40, uses=None, leased=(), kept=(), **options):
        self.model = Cache(limit=limit, free=free, now=NOW, **options)
        self.uses, self.evicted = uses or {}, []
        for k, size in enumerate(sizes):
            name = str(k)
            self.model.shards[name] = Shard(size, k, self.uses.get(name, math.inf), name in kept, name in leased)

    def __getattr__(self, name):
        return getattr(self.model, name)

    def entries(self):
        """The shards."""
        for name, shard in list(self.model.shards.items()):
            yield Entry(name=name, size_bytes=shard.size, used_ns=shard.used, is_kept=shard.is_kept)

    def evict(self, entry):
        """Evict a shard, unless it is leased."""
        if self.model.shards[entry.name].leases:
            return False
        self.model.evict(entry.name)
        self.evicted.append(entry.name)
        return True


NAMES = st.sets(st.sampled_from("012345"))
CACHES = st.builds(
    Snapshot,
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


@settings(max_examples=examples(3000))
@given(CACHES, REQUESTS)
def test_decisions_are_those_of_the_model(cache, request):
    """Who gets space, and what is evicted for it, in which order."""
    cache.model.others["new"] = request.total - request.wanted
    expected, order = copy.deepcopy(cache.model), cache.victims()
    said = expected.reserve("new", request.total, use=request.use, has_waited=request.waited >= request.grace)
    decision = settle(cache, request, cache.evict)
    assert cache.evicted == [name for name in order if name not in expected.shards]
    if isinstance(decision, Grant):
        cache.model.resize("new", request.total)
        assert said == ("over the limit" if decision.is_over_limit else "granted")
    else:
        assert said == {MustWait: "wait", Refuse: "refused"}[type(decision)]
        assert decision.missing == expected.missing(request.wanted)
    assert cache.model == expected


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
    soon = Snapshot([5, 5], limit=10, uses=uses, leased="1")
    assert settle(soon, request, soon.evict) == MustWait(5, is_blocked=True)
    assert settle(soon, request._replace(waited=reservation.LIMITS.grace_seconds), soon.evict) == Grant()
    assert soon.evicted == ["0"]
    again = Snapshot([5, 5], limit=10, uses=uses, leased="1")
    assert settle(again, request._replace(waited=0.1, grace=0.2), again.evict) == MustWait(5, is_blocked=True)
    assert settle(again, request._replace(waited=0.1, grace=0.1), again.evict) == Grant()
    alone = Snapshot([5], limit=5, uses={"0": NOW + 0.4})
    assert settle(alone, request, alone.evict) == Grant()  # nothing else will ever go
    busy = Snapshot([5], limit=5, uses={"0": NOW + 0.4}, is_busy=True)
    assert settle(busy, request, busy.evict) == MustWait(5, is_blocked=True)


@pytest.mark.parametrize(("download", "grace"), [(0.0, 0.0), (0.01, 0.005), (0.5, 0.25), (1.0, 0.5), (60.0, 0.5)])
def test_patience_is_no_longer_than_half_a_download(download, grace):
    """Where shards come quickly, to download one again costs less than the wait that might avoid it."""
    assert reservation.grace(download) == grace


def test_a_clock_of_another_kind():
    """Where a second is a thousand positions, soon is five hundred of them."""
    cache = Snapshot([5, 5], limit=10, uses={"0": NOW + 499, "1": NOW + 501})
    cache.second = 1000.0
    assert settle(cache, Request(5, 5, waited=0.0), cache.evict) == Grant()
    assert cache.evicted == ["1"]


@pytest.mark.parametrize(("limit", "free"), [(4, 100), (None, 12)])
def test_a_shard_that_no_limit_holds(limit, free):
    """It is admitted once all others are gone; a disk has an end."""
    cache = Snapshot([5, 5], limit=limit, free=free, floor=20 if limit is None else 0, leased="0")
    assert settle(cache, Request(12, 12), cache.evict) == Grant(is_over_limit=True)
    assert cache.evicted == ["1"]
    cache = Snapshot([], limit=limit, free=11)
    assert settle(cache, Request(12, 12), cache.evict).missing > 0


@pytest.mark.parametrize(("limit", "free", "kind"), [(4, 100, Refuse), (None, 12, MustWait)])
def test_a_shard_of_unknown_length_is_not_admitted_over_the_limit(limit, free, kind):
    """It may never end. Nothing goes for it, and no wait makes a limit larger."""
    cache = Snapshot([5, 5], limit=limit, free=free, floor=20 if limit is None else 0, leased="0")
    request = Request(12, 12, is_final=False)
    assert isinstance(settle(cache, request, cache.evict), kind)
    assert cache.evicted == []
    cache = Snapshot([5, 5], limit=12, free=100)
    assert settle(cache, request, cache.evict) == Grant()
