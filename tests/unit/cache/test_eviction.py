"""Which shards go, and in which order, against the model of the cache."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.cache import Cache, Shard
from tests.support.examples import examples
from wids.core.cache.eviction import Entry, missing_bytes, victims

NAMES = [f"{letter}.tar" for letter in "abcdef"]
# Few values, so that there are ties; infinities, because a plan may hold any number.
times = st.sampled_from([-math.inf, -1.0, 0.0, 1.0, 1.5, 2.0, math.inf])


@st.composite
def entries(draw):
    """Up to six shards of different names."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    found = [
        Entry(
            name=name, size_bytes=draw(st.integers(0, 3)), used_ns=draw(st.integers(0, 3)), is_kept=draw(st.booleans())
        )
        for name in names
    ]
    return sorted(found, key=lambda entry: entry.used_ns)  # as those who ask have to


uses_of_names = st.dictionaries(st.sampled_from([*NAMES, "not there.tar"]), times)


@settings(max_examples=examples(2000))
@given(entries(), uses_of_names, st.just(-math.inf) | times)
def test_who_goes_and_in_which_order(found, uses, after):
    """As the model of the cache says."""
    cache = Cache(limit=0)
    for each in found:
        use = uses.get(each.name, math.inf)
        cache.shards[each.name] = Shard(each.size_bytes, each.used_ns, use, is_kept=each.is_kept)
    assert [entry.name for entry in victims(found, uses, after=after)] == cache.victims(after)


def test_the_plan_is_made_of_any_iterable_and_changes_nothing():
    """Entries may come from a generator; the order follows what was given, and nothing that was given changes."""
    found = [Entry(name=name, size_bytes=1, used_ns=place) for place, name in enumerate(NAMES)]
    uses = {"a.tar": 5.0, "b.tar": 7.0}
    names = [entry.name for entry in victims(iter(found), uses)]
    assert names == ["c.tar", "d.tar", "e.tar", "f.tar", "b.tar", "a.tar"]
    assert uses == {"a.tar": 5.0, "b.tar": 7.0}
    assert list(victims((), uses)) == []


def test_entries_are_values():
    """An entry cannot be changed under whoever carries the plan out."""
    entry = Entry(name="a.tar", size_bytes=1, used_ns=1)
    with pytest.raises(AttributeError, match="immutable"):
        entry.size_bytes = 2


bytes_counts = st.integers(0, 12)


@given(
    used=bytes_counts,
    wanted=bytes_counts,
    limit=st.none() | bytes_counts,
    free=st.integers(-12, 12),
    floor=bytes_counts,
)
def test_missing_bytes(used, wanted, limit, free, floor):
    """As the model of the cache says."""
    cache = Cache(limit=limit, free=free, floor=floor, others={"a": used})
    missing = missing_bytes(used=used, wanted=wanted, limit=limit, free=free, floor=floor)
    assert max(missing, 0) == cache.missing(wanted)
