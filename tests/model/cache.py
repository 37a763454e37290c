"""The cache, as the specification: plain Python that the tests and the simulated machine compare `wids` with.

A cache is a directory of shards, which all processes of a machine share:

1. At no moment do all files together have more bytes than the limit. A download has its full size before its first byte
   arrives.
2. A shard is leased while a process has it open, and a leased shard is never evicted. Nor is one that is kept, nor any
   file that the cache did not fetch.
3. The shards that no job will read are evicted first, least recently used first; then those whose next use is farthest
   ahead.
4. Nothing is evicted in vain: only if all that may go, leased or not, makes enough space.
5. A download ahead costs no shard that is read sooner, and does not wait. A reader may cost any shard, but at first it
   waits rather than cost one that is read soon, if others are only leased. It waits where all are leased.
6. A reader's shard that exceeds the limit by itself is admitted over the limit, once nothing more can be evicted.
7. No shard is downloaded by two processes at once.

Not here are the tables of evicted shards, which have what is left of the limit (`tests/io/cache/test_store_model.py`),
and shards of unknown length (`tests/unit/cache/test_reservation.py`).
"""

from dataclasses import dataclass, field
from math import inf

# Within so many seconds a shard is read soon; and now, so that no download ahead costs it.
SOON_SECONDS, NOW_SECONDS = 0.5, 0.05


class RuleError(AssertionError):
    """What may never happen has happened."""


@dataclass
class Shard:
    """A shard in the cache.

    Attributes:
        size: its bytes, with its member table.
        used: when it was opened or closed last.
        next_use: when a job will read it, in seconds; inf: no job will.
        is_kept: a job wants it to stay.
        leases: how many have it open.
    """

    size: int
    used: float = 0
    next_use: float = inf
    is_kept: bool = False
    leases: int = 0


@dataclass
class Cache:
    """A cache directory.

    Attributes:
        limit: bytes that it may have; None: as many as the disk has.
        free: bytes that the disk has left. floor: those that stay free.
        now: the time in seconds. is_busy: some job is about to close a shard.
        shards: by name.
        others: the bytes of all other files that count, by name: downloads under way, tables.
        downloads: who downloads a shard, by its name.
    """

    limit: int | None
    free: float = inf
    floor: int = 0
    now: float = 0
    is_busy: bool = False
    shards: dict[str, Shard] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    downloads: dict[str, object] = field(default_factory=dict)

    @property
    def used(self):
        """All bytes that count."""
        return sum(shard.size for shard in self.shards.values()) + sum(self.others.values())

    def victims(self, after=-inf):
        """The names of the shards that may go and are read later than ``after``, the first to go first."""
        may_go = [(name, shard) for name, shard in self.shards.items() if not shard.is_kept and shard.next_use > after]
        return [name for name, _ in sorted(may_go, key=lambda each: (-each[1].next_use, each[1].used))]

    def missing(self, wanted):
        """How many bytes must go before there is space for so many more."""
        over = 0 if self.limit is None else self.used + wanted - self.limit
        return max(over, wanted - (self.free - self.floor), 0)

    # --- what happens, and may not

    def resize(self, name, size):
        """A file that is no shard has so many bytes; 0: it is gone."""
        growth = size - self.others.get(name, 0)
        self.others[name], self.free = size, self.free - growth
        if growth > 0:
            self.check_limit(size)

    def check_limit(self, size):
        """Of a file that has become this large. One that exceeds the limit by itself is admitted: see `reserve`."""
        if self.limit is not None and self.used > self.limit >= size:
            raise RuleError(f"{self.used} bytes are in the cache, and the limit is {self.limit}")

    def publish(self, name, size):
        """A shard is complete. An earlier one of its name is replaced, and who has that open reads on."""
        before = self.shards.get(name, Shard(0))
        self.shards[name], self.free = Shard(size, used=self.now), self.free - (size - before.size)
        self.check_limit(size)

    def evict(self, name):
        """A shard is deleted."""
        if name not in self.shards:
            raise RuleError(f"{name} is no shard of the cache, and was deleted")
        if self.shards[name].leases:
            raise RuleError(f"{name} is being read, and was evicted")
        if self.shards[name].is_kept:
            raise RuleError(f"{name} is kept, and was evicted")
        self.free += self.shards.pop(name).size

    def lease(self, name):
        """A shard is opened; gives the shard, for `release`."""
        if name not in self.shards:
            raise RuleError(f"{name} is being read, and was evicted")
        self.shards[name].leases += 1
        return self.shards[name]

    def release(self, shard):
        """A shard is closed."""
        shard.leases -= 1

    def begin(self, name, who):
        """A download begins."""
        if name in self.downloads:
            raise RuleError(f"{name} is downloaded by {who} and {self.downloads[name]} at once")
        self.downloads[name] = who

    def end(self, name, who):
        """A download ends; of whoever has none, that changes nothing."""
        if self.downloads.get(name) is who:
            del self.downloads[name]

    # --- what is decided

    def reserve(self, name, size, *, use=None, has_waited=True):
        """Space for a download of so many bytes: "granted", "over the limit", "wait" or "refused".

        Args:
            name: of its file.
            size: bytes.
            use: when its shard will be read, if it is a download ahead; None: a reader waits for it.
            has_waited: the reader has waited for long enough to cost shards that are read soon.
        """
        wanted, is_ahead, is_blocked = size - self.others.get(name, 0), use is not None, self.is_busy
        is_too_large = self.limit is None or size > self.limit
        steps = [max(use, self.now + NOW_SECONDS)] if is_ahead else [self.now + SOON_SECONDS, -inf][has_waited:]
        for after in steps:
            victims = self.victims(after)
            is_enough = sum(self.shards[victim].size for victim in victims) >= self.missing(wanted)
            if is_enough or (after == -inf and is_too_large and size <= self.free + self.used):
                for victim in victims:
                    if self.missing(wanted) and not self.shards[victim].leases:
                        self.evict(victim)
                is_blocked = True  # if bytes are missing still, leased shards have them
            if not self.missing(wanted):
                self.resize(name, size)
                return "granted"
            if is_blocked and not is_ahead and after > -inf:
                return "wait"
        if not is_ahead and is_too_large and wanted <= self.free:
            self.resize(name, size)
            return "over the limit"
        return "refused" if is_ahead else "wait"
