"""Which shards go: the plan against definitions of it that try everything."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def next_use(entry, uses):
    """When a shard is used next, as far as anybody knows."""
    return uses.get(entry.name, math.inf)


@given(entries(), uses_of_names, st.just(-math.inf) | times)
def test_who_may_go(found, uses, after):
    """Oracle, the definition: whatever is not kept and is not used by ``after``, each once."""
    expected = {entry.name for entry in found if not entry.is_kept and next_use(entry, uses) > after}
    gone = [entry.name for entry in victims(found, uses, after=after)]
    assert len(gone) == len(expected)
    assert set(gone) == expected


@given(entries(), uses_of_names, times)
def test_in_which_order(found, uses, after):
    """Oracle, brute force: of all orders, the one in which nobody stands before one who should go sooner."""
    given_order = {entry.name: place for place, entry in enumerate(found)}

    def goes_sooner(one, other):
        """One is used later; or as late, and was used longer ago; or that too, and was found first."""
        if next_use(one, uses) != next_use(other, uses):
            return next_use(one, uses) > next_use(other, uses)
        if one.used_ns != other.used_ns:
            return one.used_ns < other.used_ns
        return given_order[one.name] < given_order[other.name]

    gone = list(victims(found, uses, after=after))
    orders = [
        list(order)
        for order in itertools.permutations(gone)
        if all(goes_sooner(one, other) for one, other in itertools.combinations(order, 2))
    ]
    assert orders == [gone]


@given(entries(), uses_of_names, st.integers(0, 6))
def test_what_stays_is_used_sooner(found, uses, count):
    """However many go, none of them is used before one that stays and might have gone."""
    gone = list(itertools.islice(victims(found, uses), count))
    stays = [entry for entry in found if entry not in gone and not entry.is_kept and next_use(entry, uses) > -math.inf]
    soonest = min((next_use(entry, uses) for entry in gone), default=math.inf)
    assert all(next_use(entry, uses) <= soonest for entry in stays)


@given(entries(), uses_of_names)
def test_what_was_used_just_now_goes_last(found, uses):
    """Among shards that no job plans to use, one that was used now is the last to go."""
    unplanned = [entry for entry in found if entry.name not in uses]
    newest = Entry(name="now.tar", size_bytes=1, used_ns=4)
    assert list(victims([*unplanned, newest], uses))[-1] == newest


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
    """Oracle, brute force: the least number of bytes whose going makes room within the bound and above the floor."""

    def fits(gone):
        is_within_limit = limit is None or used - gone + wanted <= limit
        return is_within_limit and free + gone - wanted >= floor

    least = next(gone for gone in itertools.count() if fits(gone))
    missing = missing_bytes(used=used, wanted=wanted, limit=limit, free=free, floor=floor)
    assert max(missing, 0) == least
