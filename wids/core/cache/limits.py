"""Times for which the cache waits, and lengths of its own files.

Pure. One value for the folder: the default is in force, and tests put another one in its place.
"""

from __future__ import annotations

from typing import NamedTuple


class CacheLimits(NamedTuple):
    """Clocks and limits of the cache.

    Attributes:
        wait_seconds: a download waits this long for space, then the cache is full.
        report_seconds: after this time, it reports the cause of its wait.
        stopped_seconds: a process that holds the lock of a directory this long without touching it is stopped: the
            work under the lock takes milliseconds, or as long as listing a large directory on a file server.
        listed_again_seconds: a directory is listed again after this time.
        max_log_bytes: a directory is listed again if its log is longer.
        max_hint_bytes: the most bytes of a job's plan of its next uses.
        watch_seconds: interval at which a cleaner looks whether its parent and its turn are still there.
        heard_seconds: idle jobs look for requests four times a second (see `wids.core.cache.leases`): a requester gives
            them twice as long.
        start_seconds: code that only lists a sampler's indices is done before the first download ahead begins.
        tick_seconds: interval at which a prefetcher looks how far its reader is.
        plan_seconds: interval at which a plan is renewed while its first shard is still in use.
        again_seconds: time after which a prefetcher looks again for a shard that another process downloads.
        failed_seconds: time after which a prefetch that the network failed is tried again: by then it had been retried
            for minutes.
        full_seconds: a shard for which there was no space is read by ranges for this time before it is tried again.
        max_full_seconds: the most of that time, after several tries.
    """

    wait_seconds: float = 300.0
    report_seconds: float = 10.0
    stopped_seconds: float = 30.0
    listed_again_seconds: float = 600.0
    max_log_bytes: int = 4 << 20
    max_hint_bytes: int = 16 << 20
    watch_seconds: float = 2.0
    heard_seconds: float = 0.5
    start_seconds: float = 0.02
    tick_seconds: float = 0.05
    plan_seconds: float = 2.0
    again_seconds: float = 0.25
    failed_seconds: float = 30.0
    full_seconds: float = 1.0
    max_full_seconds: float = 60.0


LIMITS = CacheLimits()
