"""Spans: every byte in one range, every piece in one request, and what arrives in its place."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wids.core.transport.spans import Gather, Span, clip, coalesce, cut, subtract

SIZE = 300
spans = st.builds(lambda lo, n: Span(lo, min(lo + n, SIZE)), st.integers(0, SIZE - 1), st.integers(0, 60))
lists = st.lists(spans, max_size=12)


def bytes_of(some):
    """The positions in spans."""
    return {k for lo, hi in some for k in range(lo, hi)}


def are_disjoint(some):
    """Whether spans stand in order, none is empty, and no two have a byte in common."""
    return all(lo < hi for lo, hi in some) and all(one.hi <= two.lo for one, two in pairwise(some))


def disjoint(some):
    """The same bytes in disjoint spans."""
    return list(coalesce(some, gap=0, max_bytes=SIZE))


@given(some=lists, step=st.integers(1, 70))
def test_cut(some, step):
    """The ranges of a download are as long as they may be, and hold each byte once."""
    some = disjoint(some)
    found = cut(some, step)
    assert bytes_of(found) == bytes_of(some)
    assert are_disjoint(found)
    assert all(span.size <= step for span in found)
    assert len(found) == sum(-(-span.size // step) for span in some)


@given(some=lists, done=spans)
def test_subtract(some, done):
    """What is done is missing no more, and nothing else goes."""
    found = subtract(disjoint(some), done)
    assert bytes_of(found) == bytes_of(some) - bytes_of([done])
    assert are_disjoint(found)


@given(span=spans, size=st.integers(0, SIZE))
def test_clip(span, size):
    """No span ends behind the object, or before it begins."""
    found = clip(span, size)
    assert bytes_of([found]) == bytes_of([span]) & set(range(size))
    assert found.size >= 0


@given(pieces=lists, gap=st.integers(0, 40), max_bytes=st.integers(0, 200))
def test_coalesce(pieces, gap, max_bytes):
    """Requests are disjoint and hold all pieces; a gap is filled only where it is short, and the request too."""
    found = coalesce(pieces, gap=gap, max_bytes=max_bytes)
    assert are_disjoint(list(found))
    assert {piece for inside in found.values() for piece in inside} == {piece for piece in pieces if piece.size}
    for span, inside in found.items():
        assert all(span.lo <= lo and hi <= span.hi for lo, hi in inside)
        union = disjoint(inside)
        assert (union[0].lo, union[-1].hi) == span
        for one, two in pairwise(union):
            assert two.lo - one.hi <= gap
            assert two.hi - span.lo <= max_bytes
    asked, brought = len(bytes_of(pieces)), len(bytes_of(found))
    assert brought <= 1.5 * asked
    for one, two in pairwise(found):  # none that could have been one request
        is_long = disjoint(found[two])[0].hi - one.lo > max_bytes
        assert two.lo - one.hi > gap or is_long or brought - asked + two.lo - one.hi > 0.5 * asked


@given(pieces=lists, gap=st.integers(0, 40), seed=st.integers(0, 1000))
def test_gather(pieces, gap, seed):
    """Blocks of several spans in any order, those of one in theirs, over several tries: all pieces in the end."""
    chance = random.Random(seed)
    data = chance.randbytes(SIZE)
    wanted = coalesce(pieces, gap=gap, max_bytes=100)
    gather = Gather(wanted)
    while missing := gather.missing:
        gather.restart()
        assert gather.arrived_bytes == len(bytes_of(wanted)) - len(bytes_of(missing))
        left = [list(span) for span in missing]
        for _ in range(chance.randint(1, 30)):
            if left:
                span = chance.choice(left)
                end = chance.randint(span[0] + 1, span[1])
                gather.write(span[0], data[span[0] : end])
                span[0] = end
                left = [span for span in left if span[0] < span[1]]
    assert gather.pieces == {piece: data[piece.lo : piece.hi] for piece in pieces if piece.size}
    assert gather.arrived_bytes == len(bytes_of(wanted))
