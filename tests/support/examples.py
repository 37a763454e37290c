"""How many examples are tried: all that a test asks for in the tier ``thorough``, elsewhere a part of them.

$HYPOTHESIS_PROFILE, ``all`` or ``few``, says so, too.
"""

import os

from hypothesis import HealthCheck, settings

_USUAL = 100
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or None


def examples(count):
    """The number for this run of a test that asks for ``count``."""
    return count if PROFILE == "all" else max(10, count // 10)


def some(cases, *, every=1):
    """Of the cases of a brute force, all in the tier ``thorough``; elsewhere one of every so many."""
    cases = list(cases)
    return cases if PROFILE == "all" else cases[::every]


def load_profile(default):
    """Take the profile's number for tests that ask for none. Nothing has a time limit: the machine may be busy.

    Args:
        default: the profile, unless the environment says which; before tests are imported.
    """
    global PROFILE  # noqa: PLW0603
    PROFILE = PROFILE or default
    options = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(f"wids-{PROFILE}", max_examples=examples(_USUAL), **options)
    settings.load_profile(f"wids-{PROFILE}")
