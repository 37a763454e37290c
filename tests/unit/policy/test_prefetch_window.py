"""Which shards a prefetcher begins to download: against a walk through all visits at each position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.order.layout import Visit
from wids.policy import prefetching
from wids.policy.prefetch_window import AheadLimits, PrefetchWindow

SIZE, SHARDS = 10, 6
BLOCK = prefetching.LIMITS.block
# None: as far as is good, which is twelve shards of any size while no rate is known.
LIMITS = st.sampled_from([None, 0, 15, 20, 45, 200]).map(lambda given: AheadLimits(given, None)) | st.sampled_from(
    [20, 39, 200]
).map(lambda limit: AheadLimits(None, limit))


@st.composite
def readers(draw):
    """The visits of a reader, in blocks as `wids.order.layout.Shards` has them, and how many samples it reads."""
    count = draw(st.integers(1, 2))
    keys = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, SHARDS - 1)), min_size=1, max_size=50))
    block = draw(st.integers(1, 20))
    blocks = []
    for begin in range(0, len(keys), block):
        here = keys[begin : begin + block]
        blocks.append(
            sorted(
                Visit(begin + here.index(key), begin + len(here) - 1 - here[::-1].index(key), *key) for key in set(here)
            )
        )
    limits = [draw(LIMITS) for _ in range(count)]
    if draw(st.booleans()):  # in one directory; those with equal limits have them together
        limits = [draw(st.sampled_from(limits))._replace(directory="/cache") for _ in limits]
    return blocks, len(keys), limits


def within_reach(entered, position, limits):
    """Oracle: a walk through the visits that were looked at."""
    found, ahead, full = [], Counter(), set()
    for visit in entered:
        key, own = (visit.dataset, visit.shard), limits[visit.dataset]
        group = own if own.directory else visit.dataset
        if visit.last < position or key in found or group in full:
            continue
        is_open = own.given is None and own.cache_size is None
        ahead[group] += 0 if is_open and visit.first <= position else SIZE
        most = own.max_bytes(SIZE) if own.given is not None else min(own.max_bytes(SIZE), 12 * SIZE)
        if ahead[group] > most:
            full.add(group)
        else:
            found.append(key)
    return found


def window_of(blocks, limits, present=(), connections=1000, **options):
    """A window, without a real download; ``present`` needs none."""
    return PrefetchWindow(
        iter(blocks),
        limits,
        size_of=lambda _: SIZE,
        needs_download=lambda key: key not in present,
        slots_of=lambda _: 1,
        connections=connections,
        **options,
    )


@settings(deadline=None, max_examples=60)
@given(readers(), st.data())
def test_what_is_begun_is_what_a_walk_finds(reader, data):
    """At each position the missing shards within reach begin, nearest first; evicted and failed ones begin again."""
    blocks, count, limits = reader
    present, under_way = set(), set()
    window = window_of(blocks, limits, present)
    position, entered = 0, []
    while position <= count:
        burst = data.draw(st.integers(0, 9), label="burst")
        entered += window.advance(position, rate=0.0, read_before=position - burst)[0]
        near = within_reach(entered, position, limits)
        begun = []
        while (visit := window.take()) is not None:
            begun.append((visit.dataset, visit.shard))
        assert set(begun) == set(near) - present - under_way
        assert begun == sorted_by_use(begun, entered, position)
        under_way.update(begun)
        assert window.present() == [key for key in sorted_by_use(near, entered, position) if key in present]
        for key in data.draw(st.sets(st.sampled_from(sorted(under_way))) if under_way else st.just(set())):
            under_way.discard(key)
            if data.draw(st.booleans(), label="arrives"):
                present.add(key)
            window.end_download(key)
            window.report(key, is_present=key in present)
        for key in data.draw(st.sets(st.sampled_from(sorted(present))) if present else st.just(set()), label="evicted"):
            present.discard(key)
            window.report(key, is_present=False)
        position += data.draw(st.integers(0, 12), label="drawn") or 1


def sorted_by_use(keys, entered, position):
    """Shards by their next visits."""
    visits = [visit for visit in entered if visit.last >= position]
    return sorted(keys, key=lambda key: min((visit.first, key) for visit in visits if visit[2:4] == key))


@settings(deadline=None)
@given(readers(), st.integers(1, 9), st.lists(st.integers(0, 9), max_size=9))
def test_visits_enter_once_and_are_forgotten_once(reader, burst, steps):
    """Each visit that enters leaves when it was read, or with the window; in between the reader may come back to it."""
    blocks, count, limits = reader
    window = window_of(blocks, limits)
    entered, forgotten, position = [], [], 0
    for step in [*steps, count]:
        position += step
        new, old = window.advance(position, rate=0.0, read_before=position - burst)
        entered += new
        forgotten += old
        assert all(visit.last < position - burst for visit in old)
        assert window.is_busy == any(visit.last < position for visit in set(entered) - set(forgotten))
        kept = {(visit.dataset, visit.shard) for visit in set(entered) - set(forgotten)}
        assert {(d, s) for d in range(len(limits)) for s in range(SHARDS) if (d, s) in window} == kept
    assert len(set(entered)) == len(entered)
    assert sorted([*forgotten, *window.forget_all()]) == sorted(entered)


@pytest.mark.parametrize(("mixed", "within"), [(0, 12), (4, 12), (6, 12), (20, 26)])
def test_more_shards_than_are_read_at_a_time_are_within_reach(mixed, within):
    """However slowly they are read: those of a wide window, or of many sources, and half of the usual ones beyond."""
    window = window_of([[Visit(k, 9 * k + 99, 0, k) for k in range(60)]], [AheadLimits(None, 60 * SIZE)], mixed=mixed)
    window.advance(0, rate=0.0, read_before=0)
    begun = 0
    while window.take() is not None:
        begun += 1
    assert begun == within


@pytest.mark.parametrize("connections", [1, 3, 8])
def test_so_many_are_under_way(connections):
    """As many as keep all connections busy, and three at least; the next one begins when one is over."""
    window = window_of([[Visit(k, k, 0, k) for k in range(12)]], [AheadLimits(None, 1000)], connections=connections)
    window.advance(0, rate=0.0, read_before=0)
    begun = []
    while (visit := window.take()) is not None:
        begun.append(visit.shard)
    assert begun == list(range(max(connections, prefetching.LIMITS.min_under_way)))
    window.end_download((0, 0))
    window.report((0, 0), is_present=True)
    assert window.take().shard == len(begun)
    assert window.take() is None


def test_a_reader_that_becomes_slower_is_less_far_ahead():
    """The reach follows the rate; what lies beyond it is not begun."""
    visits = [Visit(k, k, 0, k) for k in range(100)]
    window = window_of([visits], [AheadLimits(None, None, 1)])
    window.advance(0, rate=1.0, read_before=0)
    assert len(take_all(window)) == 61  # what is read in a minute, and the one that is being read
    for shard in range(61):
        window.end_download((0, shard))
        window.report((0, shard), is_present=False)
    window.advance(0, rate=0.0, read_before=0)
    assert len(take_all(window)) == 13


def slow_reader(limit, *, has_early_reads=True):
    """A window in which shard k is read from 10 k to 10 k + 39; three downloads began at 0 and one was over at 40."""
    visits = [Visit(10 * k, 10 * k + 39, 0, k) for k in range(100)]
    window = window_of([visits], [AheadLimits(None, limit)], connections=1, has_early_reads=has_early_reads)
    window.advance(0, rate=0.0, read_before=0)
    assert take_all(window) == [0, 1, 2]
    window.advance(40, rate=0.0, read_before=0)
    window.end_download((0, 0), is_complete=True)
    window.report((0, 0), is_present=True)
    return window


def test_a_shard_that_comes_too_late_is_left_to_byte_ranges():
    """What begins at 40 would be here at 80: of shard 6, which is read until 99, half is unread then."""
    window = slow_reader(1000)
    assert take_all(window) == [6]
    window.advance(60, rate=0.0, read_before=0)
    window.end_download((0, 6), is_complete=True)  # in 20 positions, but others are under way since 0
    assert take_all(window) == [10]


def test_shards_that_are_left_out_make_room():
    """They take no space in the cache: as many others are within reach, from the next look on."""
    window = slow_reader(30)
    begun = []
    for position in range(40, 60):
        window.advance(position, rate=0.0, read_before=0)
        begun += take_all(window)
    assert begun[0] >= 6


def large_shards(*, blocks, places):
    """A window at its beginning: four shards, each read in all of so many blocks; a cache with so many places."""
    visits = [[Visit(b * BLOCK + k, (b + 1) * BLOCK - 4 + k, 0, k) for k in range(4)] for b in range(blocks)]
    window = window_of(visits, [AheadLimits(None, places * SIZE)], connections=1, has_early_reads=True)
    window.advance(0, rate=0.0, read_before=0)
    return window


def arrive(window, *, at):
    """The downloads of the first three shards have taken until a position."""
    window.advance(at, rate=0.0, read_before=0)
    for k in range(3):
        window.end_download((0, k), is_complete=True)
        window.report((0, k), is_present=True)


def test_a_large_shard_is_judged_by_its_whole_stay():
    """It has a visit in each block of the order; of each of these, nothing would be unread when it arrives."""
    window = large_shards(blocks=12, places=5)
    assert take_all(window) == [0, 1, 2]
    arrive(window, at=2 * BLOCK)
    assert take_all(window) == [3]  # here after four blocks of twelve


def test_the_end_of_a_stay_is_looked_for():
    """The limit is met by what the first block has; whether a shard comes in time is seen further on."""
    window = large_shards(blocks=12, places=4)
    assert len(window.visits) == 4
    assert take_all(window) == [0, 1, 2]
    arrive(window, at=2 * BLOCK)
    assert take_all(window) == [3]
    assert len(window.visits) > 4 * 4


def test_a_stay_without_a_known_end_counts_as_far_as_it_is_known(set_limits):
    """More visits are not looked at than pay; then the next of them decide, not those that have passed."""
    set_limits(prefetching, max_visits=4 * 4)
    window = large_shards(blocks=40, places=4)
    assert take_all(window) == [0, 1, 2]
    arrive(window, at=BLOCK)
    for position in range(2, 21):
        window.advance(position * BLOCK, rate=0.0, read_before=(position - 1) * BLOCK)
    assert take_all(window) == [3]  # it is here in one block, and three are known


def test_a_large_shard_is_left_out_near_the_end_of_its_stay():
    """What counts is where it began: more than half of it would be read before it is here."""
    window = large_shards(blocks=12, places=5)
    assert take_all(window) == [0, 1, 2]
    arrive(window, at=2 * BLOCK)
    window.advance(5 * BLOCK, rate=0.0, read_before=2 * BLOCK)
    assert take_all(window) == []


def test_a_shard_that_is_read_again_keeps_its_place(set_limits):
    """Shards of later visits do not take it while this one is left to byte ranges: they would be evicted for it."""
    set_limits(prefetching, block=4)
    early = [*(Visit(k, 40 + k, 0, k) for k in range(4)), Visit(50, 500, 0, 3)]
    window = window_of(
        [early, [Visit(600 + k, 900, 0, k) for k in range(4, 8)]],
        [AheadLimits(None, 4 * SIZE)],
        connections=1,
        has_early_reads=True,
    )
    window.advance(0, rate=0.0, read_before=0)
    assert take_all(window) == [0, 1, 2]
    window.advance(30, rate=0.0, read_before=0)
    window.end_download((0, 0), is_complete=True)
    window.report((0, 0), is_present=True)
    for position in (30, 31, 32):
        window.advance(position, rate=0.0, read_before=0)
        assert take_all(window) == []  # of shard 3 hardly anything would be unread; no other fits beside it
    window.advance(45, rate=0.0, read_before=0)
    assert take_all(window) == [3]


def test_downloads_that_become_faster_begin_sooner():
    """The time that a download takes is that of the last ones."""
    window = slow_reader(1000)
    [shard] = take_all(window)
    for key in (1, 2, shard):
        window.end_download((0, key), is_complete=True)
    for _ in range(8):
        begun = take_all(window)
        for key in begun:
            window.end_download((0, key), is_complete=True)
            window.report((0, key), is_present=True)
    window.advance(200, rate=0.0, read_before=0)
    assert take_all(window)[0] in (18, 19, 20)


@pytest.mark.parametrize(("limit", "has_early_reads"), [(None, True), (1000, False)])
def test_who_keeps_all_or_waits_for_shards_leaves_none_out(limit, has_early_reads):
    """Without a limit shards stay for the next epoch; without early reads each has to come."""
    assert take_all(slow_reader(limit, has_early_reads=has_early_reads)) == [3]


def take_all(window):
    """The shards that begin now."""
    found = []
    while (visit := window.take()) is not None:
        found.append(visit.shard)
    return found


def test_a_first_look_that_comes_late_tells_the_burst():
    """On a busy machine the first look may come late; what was drawn by then is taken for the burst."""
    found = prefetching.RateEstimator(100.0)
    found.note(200, 103.0)
    assert found.burst == 200
    found.note(900, 103.01)
    assert found.burst == 200


def test_the_burst_of_a_reader_that_reads_what_it_draws():
    """Its first moments tell how fast it is; what is not read yet is at most what it drew and did not read."""
    assert prefetching.own_burst(300, 1) == prefetching.own_burst(300, -5) == prefetching.LIMITS.min_burst
    assert prefetching.own_burst(300, 200) == 200
    assert prefetching.own_burst(300, 1000) == 300


def test_the_rate_and_the_burst_of_a_reader():
    """A rate is an average of looks a second apart; the burst is drawn in the first tenth of a second."""
    found = prefetching.RateEstimator(100.0)
    assert (found.rate, found.burst, found.moved) == (0.0, prefetching.LIMITS.max_burst, 100.0)
    found.note(500, 100.05)
    assert (found.rate, found.burst, found.moved) == (0.0, 500, 100.05)
    found.note(500, 101.5)
    assert found.rate == pytest.approx(500 / 1.5)
    assert (found.burst, found.moved) == (500, 100.05)
    found.note(700, 103.5)
    assert found.rate == pytest.approx(0.7 * 500 / 1.5 + 0.3 * 100)


def test_sizes_are_learned_from_the_first_shards():
    """Of shards of unknown size some fit the cache, however small it is; once one is there, as many as do."""
    sizes = {}
    window = PrefetchWindow(
        iter([[Visit(10 * k, 10 * k + 9, 0, k) for k in range(40)]]),
        [AheadLimits(None, 100)],
        size_of=sizes.get,
        needs_download=lambda _: True,
        slots_of=lambda _: 1,
        connections=1000,
    )
    window.advance(0, rate=0.0, read_before=0)
    begun = [visit.shard for visit in iter(window.take, None)]
    assert begun == list(range(prefetching.LIMITS.min_shards))
    sizes[0, 0] = 40
    window.end_download((0, 0), is_complete=True)
    window.report((0, 0), is_present=True)
    window.advance(1, rate=0.0, read_before=0)
    for shard in begun[1:]:
        window.end_download((0, shard))
        window.report((0, shard), is_present=False)
    assert [visit.shard for visit in iter(window.take, None)] == [1]
    sizes |= {(0, shard): 5 for shard in range(1, 40)}
    for shard in range(1, 8):
        window.end_download((0, shard), is_complete=True)
        window.report((0, shard), is_present=True)
        window.advance(1 + shard, rate=0.0, read_before=0)
    assert len(window.present()) == 8


def test_files_far_away_are_not_judged_by_downloads():
    """They have no byte ranges that would be read instead; in a mixture with a limited, remote source, too."""
    far, remote = AheadLimits(None, 1 << 40, has_early_reads=False), AheadLimits(None, 100)
    visits = [
        [Visit(k, 1000, 1, k) for k in range(3)],
        [Visit(150 + 50 * k, 199 + 50 * k, 0, k) for k in range(20)],
    ]
    window = window_of(visits, [far, remote], connections=5, has_early_reads=True)
    window.advance(0, rate=0.0, read_before=0)
    begun = [(visit.dataset, visit.shard) for visit in iter(window.take, None)]
    assert begun == [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]
    for shard in range(2):  # a file is read in no time; the downloads go on
        window.end_download((0, shard))
        window.report((0, shard), is_present=True)
    window.advance(140, rate=0.0, read_before=0)
    visit = window.take()
    assert (visit.dataset, visit.shard) == (0, 2)


def test_each_rank_may_have_a_shard_ahead():
    """However many share a cache that holds it; else each would wait for what none of them downloads."""
    assert prefetching.max_ahead(None, limit=37, ranks=4, typical=10) == 10
    assert prefetching.max_ahead(None, limit=80, ranks=4, typical=10) == 20
    assert prefetching.max_ahead(None, limit=7, ranks=4, typical=10) == 7
