"""How many examples are tried: in CI all that a test asks for, elsewhere a part of them, for who waits.

$HYPOTHESIS_PROFILE says which, ``ci`` or ``dev``; without it $CI does.
"""

import os

from hypothesis import HealthCheck, settings

_USUAL = 100
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")


def examples(count):
    """The number for this run of a test that asks for ``count``."""
    return count if PROFILE == "ci" else max(10, count // 10)


def some(cases, *, every):
    """Of the cases of a brute force, all in CI; elsewhere one of every so many."""
    cases = list(cases)
    return cases if PROFILE == "ci" else cases[::every]


def load_profile():
    """Take the profile's number for tests that ask for none. Nothing has a time limit: the machine may be busy."""
    options = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(f"wids-{PROFILE}", max_examples=examples(_USUAL), **options)
    settings.load_profile(f"wids-{PROFILE}")
