"""Which shards a prefetcher begins to download: against a walk through all visits at each position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.core.order.layout import Visit
from wids.core.prefetch import distance
from wids.core.prefetch.window import AheadLimits, Life, PlannedDownload, PrefetchWindow
from wids.core.transport import concurrency

SIZE, SHARDS = 10, 6
BLOCK = distance.LIMITS.block
# None: as far as is good, which is twelve shards of any size while no rate is known.
LIMITS = st.sampled_from([None, 0, 15, 20, 45, 200]).map(lambda given: AheadLimits(given, None)) | st.sampled_from(
    [20, 39, 200]
).map(lambda limit: AheadLimits(None, limit))


@st.composite
def readers(draw):
    """The visits of a reader, in blocks as `wids.core.order.layout.Shards` has them, and how many samples it reads."""
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
        is_open = own.ahead_bytes is None and own.cache_size is None
        ahead[group] += 0 if is_open and visit.first <= position else SIZE
        most = own.max_bytes(SIZE) if own.ahead_bytes is not None else min(own.max_bytes(SIZE), 12 * SIZE)
        if ahead[group] > most:
            full.add(group)
        else:
            found.append(key)
    return found


class Planned(PlannedDownload):
    """A download that happens in the test alone."""

    def __init__(self, source, shard):
        super().__init__()
        self.source, self.shard = source, shard

    size = property(lambda self: self.source.sizes.get(self.shard, self.source.size))
    slots = 1
    reads_early = property(lambda self: self.source.has_early_reads(self.shard))

    def needs_download(self):
        """Whether it is not there."""
        return self.key not in self.source.present


class Listed:
    """A shard list."""

    def __init__(self, limits, *, present=(), sizes=None, size=SIZE, has_early_reads=False):
        self.limits, self.present, self.size, self.sizes = limits, present, size, {} if sizes is None else sizes
        self.has_early_reads = has_early_reads if callable(has_early_reads) else lambda _: has_early_reads

    def plan(self, shard):
        """As a source does."""
        return Planned(self, shard)


def window_of(blocks, limits, present=(), connections=1000, mixed=0, **facts):
    """A window, without a real download; ``present`` needs none."""
    sources = [Listed(own, present=present, **facts) for own in limits]
    return PrefetchWindow(iter(blocks), sources, connections=connections, mixed=mixed)


def end(window, key, *, is_complete=False):
    """A download is over, and its shard is there."""
    window.end(window.find(key), is_complete=is_complete)


def fail(window, key):
    """A download is over, and may begin again at once."""
    download = window.find(key)
    window.end(download, retry_at=0.0)
    window.plan_again(download)


def take_keys(window):
    """The keys of the shards that begin now."""
    return [download.key for download in iter(window.take, None)]


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
        begun = take_keys(window)
        assert set(begun) == set(near) - present - under_way
        assert begun == sorted_by_use(begun, entered, position)
        under_way.update(begun)
        assert [found.key for found in window.present()] == [
            key for key in sorted_by_use(near, entered, position) if key in present
        ]
        for key in data.draw(st.sets(st.sampled_from(sorted(under_way))) if under_way else st.just(set())):
            under_way.discard(key)
            if data.draw(st.booleans(), label="arrives"):
                present.add(key)
                end(window, key)
            else:
                fail(window, key)
        for key in data.draw(st.sets(st.sampled_from(sorted(present))) if present else st.just(set()), label="evicted"):
            present.discard(key)
            if (download := window.find(key)) is not None:
                window.plan_again(download)
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
        assert {(d, s) for d in range(len(limits)) for s in range(SHARDS) if window.find((d, s))} == kept
    assert len(set(entered)) == len(entered)
    assert sorted([*forgotten, *window.forget_all()]) == sorted(entered)


@pytest.mark.parametrize(("mixed", "within"), [(0, 12), (4, 12), (6, 12), (20, 26)])
def test_more_shards_than_are_read_at_a_time_are_within_reach(mixed, within):
    """However slowly they are read: those of a wide window, or of many sources, and half of the usual ones beyond."""
    window = window_of([[Visit(k, 9 * k + 99, 0, k) for k in range(60)]], [AheadLimits(None, 60 * SIZE)], mixed=mixed)
    window.advance(0, rate=0.0, read_before=0)
    assert len(take_keys(window)) == within


@pytest.mark.parametrize("connections", [1, 3, 8])
def test_so_many_are_under_way(connections):
    """As many as keep all connections busy, and three at least; the next one begins when one is over."""
    window = window_of([[Visit(k, k, 0, k) for k in range(12)]], [AheadLimits(None, 1000)], connections=connections)
    window.advance(0, rate=0.0, read_before=0)
    begun = take_all(window)
    assert begun == list(range(max(connections, concurrency.LIMITS.min_under_way)))
    end(window, (0, 0))
    assert window.take().key == (0, len(begun))
    assert window.take() is None


def test_a_reader_that_becomes_slower_is_less_far_ahead():
    """The reach follows the rate; what lies beyond it is not begun."""
    visits = [Visit(k, k, 0, k) for k in range(100)]
    window = window_of([visits], [AheadLimits(None, None, 1)])
    window.advance(0, rate=1.0, read_before=0)
    assert len(take_all(window)) == 61  # what is read in a minute, and the one that is being read
    for shard in range(61):
        fail(window, (0, shard))
    window.advance(0, rate=0.0, read_before=0)
    assert len(take_all(window)) == 13


def slow_reader(limit, *, has_early_reads=True):
    """A window in which shard k is read from 10 k to 10 k + 39; three downloads began at 0 and one was over at 40."""
    visits = [Visit(10 * k, 10 * k + 39, 0, k) for k in range(100)]
    window = window_of([visits], [AheadLimits(None, limit)], connections=1, has_early_reads=has_early_reads)
    window.advance(0, rate=0.0, read_before=0)
    assert take_all(window) == [0, 1, 2]
    window.advance(40, rate=0.0, read_before=0)
    end(window, (0, 0), is_complete=True)
    return window


def test_a_shard_that_comes_too_late_is_left_to_byte_ranges():
    """What begins at 40 would be here at 80: of shard 6, which is read until 99, half is unread then."""
    window = slow_reader(1000)
    assert take_all(window) == [6]
    window.advance(60, rate=0.0, read_before=0)
    end(window, (0, 6), is_complete=True)  # in 20 positions, but others are under way since 0
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
        end(window, (0, k), is_complete=True)


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
    set_limits(distance, max_visits=4 * 4)
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
    set_limits(distance, block=4)
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
    end(window, (0, 0), is_complete=True)
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
        end(window, (0, key), is_complete=True)
    for _ in range(8):
        for shard in take_all(window):
            end(window, (0, shard), is_complete=True)
    window.advance(200, rate=0.0, read_before=0)
    assert take_all(window)[0] in (18, 19, 20)


def test_each_shard_is_judged_by_itself():
    """What is left to byte ranges is what is read by them, as it is known when its turn comes; others have to come."""
    early = {0, 1, 2, 4, 5, 6}
    window = slow_reader(1000, has_early_reads=early.__contains__)
    assert take_all(window) == [3]  # of which nothing would be left when it arrives
    early.add(7)
    for shard in (1, 2, 3):
        end(window, (0, shard), is_complete=True)
    window.advance(80, rate=0.0, read_before=0)
    assert take_all(window)[0] == 8


@pytest.mark.parametrize("life", [Life.DONE, Life.FAILED])
def test_what_ended_is_planned_again_when_its_owner_says_so(life):
    """Evicted, or its time has come; until then the shard needs no download, whatever visits come."""
    visits = [Visit(k * 10, k * 10 + 9, 0, 0) for k in range(4)]
    window = window_of([visits], [AheadLimits(None, 1000)])
    window.advance(0, rate=0.0, read_before=0)
    download = window.take()
    assert (download.life, window.take()) == (Life.RUNNING, None)
    window.plan_again(download)
    assert download.life is Life.RUNNING  # it is under way
    window.end(download, retry_at=None if life is Life.DONE else 7.0)
    window.advance(15, rate=0.0, read_before=0)
    assert (window.present(), window.take(), download.life) == ([download], None, life)
    assert download.retry_at == (0.0 if life is Life.DONE else 7.0)
    window.plan_again(download)
    assert window.take() is download


def test_a_download_outlives_its_visits():
    """Where the reader comes back to a shard that is under way, that is the same download."""
    window = window_of([[Visit(0, 9, 0, 0)], [Visit(50, 59, 0, 0)]], [AheadLimits(SIZE, None)])
    window.advance(0, rate=0.0, read_before=0)
    download = window.take()
    window.advance(30, rate=0.0, read_before=20)
    assert window.find((0, 0)) is download
    window.advance(40, rate=0.0, read_before=40)
    assert (window.take(), download.upcoming) == (None, [Visit(50, 59, 0, 0)])
    window.end(download, is_complete=True)
    window.advance(70, rate=0.0, read_before=70)
    assert window.find((0, 0)) is None


@pytest.mark.parametrize(("limit", "has_early_reads"), [(None, True), (1000, False)])
def test_who_keeps_all_or_waits_for_shards_leaves_none_out(limit, has_early_reads):
    """Without a limit shards stay for the next epoch; without early reads each has to come."""
    assert take_all(slow_reader(limit, has_early_reads=has_early_reads)) == [3]


def take_all(window):
    """The shards that begin now."""
    return [shard for _, shard in take_keys(window)]


def test_a_first_look_that_comes_late_tells_the_burst():
    """On a busy machine the first look may come late; what was drawn by then is taken for the burst."""
    found = distance.RateEstimator(100.0)
    found.note(200, 103.0)
    assert found.burst == 200
    found.note(900, 103.01)
    assert found.burst == 200


def test_the_burst_of_a_reader_that_reads_what_it_draws():
    """Its first moments tell how fast it is; what is not read yet is at most what it drew and did not read."""
    assert distance.own_burst(300, 1) == distance.own_burst(300, -5) == distance.LIMITS.min_burst
    assert distance.own_burst(300, 200) == 200
    assert distance.own_burst(300, 1000) == 300


def test_the_rate_and_the_burst_of_a_reader():
    """A rate is an average of looks a second apart; the burst is drawn in the first tenth of a second."""
    found = distance.RateEstimator(100.0)
    assert (found.rate, found.burst, found.moved) == (0.0, distance.LIMITS.max_burst, 100.0)
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
    visits = [Visit(10 * k, 10 * k + 9, 0, k) for k in range(40)]
    window = window_of([visits], [AheadLimits(None, 100)], sizes=sizes, size=None)
    window.advance(0, rate=0.0, read_before=0)
    begun = take_all(window)
    assert begun == list(range(distance.LIMITS.min_shards))
    sizes[0] = 40
    end(window, (0, 0), is_complete=True)
    window.advance(1, rate=0.0, read_before=0)
    for shard in begun[1:]:
        fail(window, (0, shard))
    under_way = take_all(window)
    assert under_way == [1]
    sizes |= dict.fromkeys(range(1, 40), 5)
    for position in range(2, 9):
        end(window, (0, under_way.pop(0)), is_complete=True)
        window.advance(position, rate=0.0, read_before=0)
        under_way += take_all(window)
    assert len(window.present()) == 8


def test_the_size_of_a_shard_that_is_there_already_is_learned():
    """A reader brought the first one: of the others as many begin at once as fit the cache."""
    visits = [Visit(10 * k, 10 * k + 9, 0, k) for k in range(40)]
    window = window_of([visits], [AheadLimits(None, 100)], present={(0, 0)}, sizes={}, size=None)
    window.advance(0, rate=0.0, read_before=0)
    window.find((0, 0)).source.sizes[0] = 40
    assert take_all(window) == [1]


def test_at_first_no_more_blocks_are_looked_at_than_asked_for():
    """What comes first is known at once, whatever fits the cache."""
    window = window_of([[Visit(k, k, 0, k)] for k in range(9)], [AheadLimits(None, 1000)])
    entered, _ = window.advance(0, rate=0.0, read_before=0, blocks=2)
    assert [visit.shard for visit in entered] == [0, 1]
    entered, _ = window.advance(0, rate=0.0, read_before=0)
    assert [visit.shard for visit in entered] == [*range(2, 9)]


def test_files_far_away_are_not_judged_by_downloads():
    """They have no byte ranges that would be read instead; in a mixture with a limited, remote source, too."""
    far, remote = Listed(AheadLimits(None, 1 << 40)), Listed(AheadLimits(None, 100), has_early_reads=True)
    visits = [
        [Visit(k, 1000, 1, k) for k in range(3)],
        [Visit(150 + 50 * k, 199 + 50 * k, 0, k) for k in range(20)],
    ]
    window = PrefetchWindow(iter(visits), [far, remote], connections=5)
    window.advance(0, rate=0.0, read_before=0)
    assert take_keys(window) == [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]
    for shard in range(2):  # a file is read in no time; the downloads go on
        end(window, (0, shard))
    window.advance(140, rate=0.0, read_before=0)
    assert window.take().key == (0, 2)


def test_each_rank_may_have_a_shard_ahead():
    """However many share a cache that holds it; else each would wait for what none of them downloads."""
    assert distance.max_ahead(None, limit=37, ranks=4, typical=10) == 10
    assert distance.max_ahead(None, limit=80, ranks=4, typical=10) == 20
    assert distance.max_ahead(None, limit=7, ranks=4, typical=10) == 7
