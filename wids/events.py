"""Events (a shard was downloaded, evicted, ...), the hooks that are called with them, and the ``wids`` logger.

An event is a frozen value that pickles. A hook is called in the process and thread where the event happened (also in
DataLoader workers, so a hook must pickle too). It must be quick; an exception that it raises is logged and has no other
effect. An event's ``url`` is whole, for programs; its text, and all that the ``wids`` logger writes, have no queries
and passwords of URLs.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable


class _WithoutSecrets(logging.Filter):
    """Removes signatures and passwords from log records, tracebacks of clients' errors included."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        record.msg = without_secrets(record.getMessage(), *(arg for arg in args if isinstance(arg, str)))
        record.args = None
        if record.exc_info and not record.exc_text:  # formatters print it as it is
            record.exc_text = without_secrets(logging.Formatter().formatException(record.exc_info))
        return True


logger = logging.getLogger("wids")
logger.addFilter(_WithoutSecrets())


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all events."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Each field as text shows it: without the secrets of URLs."""
        url, fields = getattr(self, "url", None), [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, without_secrets(value, url) if isinstance(value, str) else value) for name, value in fields]


class Fetched(Event, frozen=True, kw_only=True):
    """A shard was downloaded, verified and published in the cache. ``is_ahead``: before any sample of it was needed."""

    url: str
    path: str
    size_bytes: int
    seconds: float
    is_ahead: bool = False
    requests: int = 1


class Hit(Event, frozen=True, kw_only=True):
    """A remote shard was found in the cache, whole and current, when it was opened."""

    url: str
    path: str


class Opened(Event, frozen=True, kw_only=True):
    """A shard was opened for reading. ``has_saved_table``: its headers did not have to be scanned."""

    url: str
    path: str
    nsamples: int
    has_saved_table: bool
    seconds: float


class Closed(Event, frozen=True, kw_only=True):
    """A shard left the pool of open shards."""

    url: str


class Retried(Event, frozen=True, kw_only=True):
    """An attempt at a download failed and another one follows."""

    url: str
    attempt: int
    cause: str


class Rejected(Event, frozen=True, kw_only=True):
    """A cached shard was not used: it is damaged, changed, or not what the index says. It is downloaded again."""

    url: str
    path: str
    cause: str


class Waited(Event, frozen=True, kw_only=True):
    """Another process held the lock of a shard, and this one waited for it."""

    path: str
    seconds: float


class WaitedForRoom(Event, frozen=True, kw_only=True):
    """A cache directory had no space for a shard until other processes closed some of theirs."""

    url: str
    path: str
    seconds: float


class Evicted(Event, frozen=True, kw_only=True):
    """A cached shard was deleted to make space. ``size_bytes``: with its member table."""

    path: str
    size_bytes: int


class Swept(Event, frozen=True, kw_only=True):
    """A file that a process left behind when it was killed was deleted from a cache directory."""

    path: str
    size_bytes: int


class PrefetchBegun(Event, frozen=True, kw_only=True):
    """The shards that an iteration of a sampler comes to are downloaded ahead; ``cache_size``: their limit, or None."""

    cache_size: int | None = None


class NotFetchedAhead(Event, frozen=True, kw_only=True):
    """Prefetching of a shard failed. The process that needs it tries again, and raises if that fails too."""

    url: str
    cause: str


class RangesRead(Event, frozen=True, kw_only=True):
    """Members of a remote shard were read by byte ranges, in so many requests."""

    url: str
    requests: int
    size_bytes: int
    seconds: float


class TableRead(Event, frozen=True, kw_only=True):
    """The member table of a remote shard was read from a pack or from beside it, or made from its headers.

    Also the directory of a pack, ``url`` being the pack's. ``requests``: that it took.
    """

    url: str
    requests: int
    size_bytes: int
    seconds: float


class RepeatedKeys(Event, frozen=True, kw_only=True):
    """Keys came back later in a shard, not adjacent, so these members became samples of their own."""

    url: str
    count: int


class Hook(Protocol):
    """Anything that can be called with an event."""

    def __call__(self, event: Event, /) -> None:
        """Take note of ``event``."""


_LEVELS: dict[type[Event], int] = {
    Fetched: logging.INFO,
    Retried: logging.WARNING,
    Rejected: logging.WARNING,
    RepeatedKeys: logging.WARNING,
    Waited: logging.INFO,
    WaitedForRoom: logging.WARNING,
    NotFetchedAhead: logging.INFO,
}

# A cache that is too small for its jobs makes one wait for each shard: a warning each time would bury all others.
_QUIET_SECONDS = 300.0
# Directory -> (when its waits were last warned of, how many there were since).
_waits: dict[str, tuple[float, int]] = {}


def log_event(event: Event) -> None:
    """The hook that is always there: events go to the ``wids`` logger, most at DEBUG.

    Waits for space in one directory are a warning once, and every five minutes with their number; others are DEBUG.
    """
    level, more = _LEVELS.get(type(event), logging.DEBUG), ""
    if isinstance(event, WaitedForRoom):
        now = time.monotonic()
        then, count = _waits.get(event.path, (-_QUIET_SECONDS, 0))
        if now - then < _QUIET_SECONDS:
            level = logging.DEBUG
            _waits[event.path] = then, count + 1
        else:
            more = f"; {count} more since the last warning" if count else ""
            _waits[event.path] = now, 0
    if logger.isEnabledFor(level):
        facts = ", ".join(f"{name}={value!r}" for name, value in event.__rich_repr__())
        logger.log(level, "%s: %s%s", type(event).__name__, facts, more)


def emit(hooks: Iterable[Hook], event: Event) -> None:
    """Log ``event`` and hand it to each hook."""
    log_event(event)
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            logger.exception("hook %r failed on %r", hook, event)
