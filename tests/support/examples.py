"""How many examples are tried: in CI all that a test asks for, elsewhere a part of them, fewest in the tier ``core``.

$HYPOTHESIS_PROFILE says which, ``ci``, ``dev`` or ``core``; without it $CI and the tier do.
"""

import os

from hypothesis import HealthCheck, settings

_USUAL = 100
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else None)


def examples(count):
    """The number for this run of a test that asks for ``count``."""
    if PROFILE == "core":
        return max(5, count // 30)
    return count if PROFILE == "ci" else max(10, count // 10)


def some(cases, *, every=1):
    """Of the cases of a brute force, all in CI; elsewhere one of every so many, in ``core`` a quarter of those."""
    cases = list(cases)
    return cases if PROFILE == "ci" else cases[:: 4 * every if PROFILE == "core" else every]


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
