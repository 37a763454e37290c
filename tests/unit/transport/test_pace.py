"""How many byte ranges a process asks for: a share in advance, then a rate, halved by refusals."""

from wids.core.transport.pace import Pace


def test_a_share_in_advance_and_then_a_rate():
    """What was spent too early is waited for; what was not asked for does not add up."""
    pace = Pace()
    assert pace.may_ask(100.0, 10.0)
    pace.spend(9)
    assert pace.may_ask(100.0, 10.0)
    pace.spend(16)
    assert not pace.may_ask(101.4, 10.0)
    assert pace.may_ask(101.7, 10.0)
    assert pace.may_ask(1000.0, 10.0)
    pace.spend(10 * Pace.limits.burst_seconds)
    assert not pace.may_ask(1000.0, 10.0)


def test_a_small_share_has_one_request():
    """Else thousands of processes would have none."""
    pace = Pace()
    assert pace.may_ask(0.0, 0.01)
    pace.spend(16)
    assert not pace.may_ask(1400.0, 0.01)
    assert pace.may_ask(1700.0, 0.01)


def test_refusals_halve_the_share():
    """Those of one moment once; each half minute without one doubles it again, up to the whole."""
    pace = Pace()
    assert pace.may_ask(0.0, 64.0)
    for _ in range(8):
        pace.note_refusal(0.0)
    assert not pace.may_ask(0.0, 64.0)
    pace.may_ask(1.0, 64.0)
    pace.spend(32)
    assert not pace.may_ask(1.0, 64.0)
    for second in range(2, 20):
        pace.note_refusal(float(second))
    assert pace._part == Pace.limits.least
    assert pace.may_ask(60.0 * 10, 64.0)
    pace.spend(63)
    assert pace.may_ask(60.0 * 10, 64.0)
