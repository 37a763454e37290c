"""Events (a shard was downloaded, evicted, ...), the hooks that are called with them, and the ``wids`` logger.

An event is a frozen value that pickles. A hook is called in the process and thread where the event happened (also in
DataLoader workers, so a hook must pickle too). It must be quick; an exception that it raises is logged and has no other
effect. An event's ``url`` is whole, for programs; its text, and all that the ``wids`` logger writes, have no queries
and passwords of URLs. Where a program has not set up logging, warnings go to stderr with "wids: " before them.

Example:
    >>> seen = []
    >>> dataset = wids.ShardListDataset("train.json", hooks=[seen.append])
    >>> sample = dataset[0]
    >>> type(seen[0]).__name__, seen[0].nsamples
    ('Opened', 4)
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from wids.errors import harmless, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable


class _WithoutSecrets(logging.Filter):
    """Removes signatures, passwords and control characters from log records, tracebacks of errors included."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        record.msg = harmless(without_secrets(record.getMessage(), *(arg for arg in args if isinstance(arg, str))))
        record.args = None
        if record.exc_info and not record.exc_text:  # formatters print it as it is
            record.exc_text = harmless(without_secrets(logging.Formatter().formatException(record.exc_info)))
        return True


class _Fallback(logging.Handler):
    """Writes to stderr where the program has not set up logging; Python itself would not say whose the lines are."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort is None or self._has_others() or sys.stderr is None:
            return
        try:
            sys.stderr.write(f"wids: {self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as all handlers do: a log line stops no program
            self.handleError(record)

    def _has_others(self) -> bool:
        above: logging.Logger | None = logger
        while above is not None:
            if any(handler is not self for handler in above.handlers):
                return True
            above = above.parent if above.propagate else None
        return False


logger: logging.Logger = logging.getLogger("wids")
logger.addFilter(_WithoutSecrets())
fallback: _Fallback = _Fallback(logging.WARNING)
logger.addHandler(fallback)


# Extra of a log record: the bar or the report of a command says the same.
REPORTED: dict[str, bool] = {"is_reported": True}

# The remedy for names in two Unicode forms.
ONE_FORM = "give files names of one form before they are packed (convmv -r -f utf8 -t utf8 --nfc --notest DIRECTORY)"

# (a field of `wids.core.collection.stats.Stats`, how much an event adds to it).
Counts = tuple[tuple[str, float], ...]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all events.

    Attributes:
        level: of its line in the log; `log_event` logs repetitions at DEBUG.
        advice: the end of a line that is a warning: the consequence, and the remedy.
        is_told_once: of one URL, only the first line is a warning.
    """

    level: ClassVar[int] = logging.DEBUG
    advice: ClassVar[str] = ""
    is_told_once: ClassVar[bool] = False

    def counts(self) -> Counts:
        """Amounts that the event adds to fields of `wids.core.collection.stats.Stats`; most events add nothing."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Each field as text shows it: without the secrets of URLs."""
        url, fields = getattr(self, "url", None), [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, without_secrets(value, url) if isinstance(value, str) else value) for name, value in fields]


class Fetched(Event, frozen=True, kw_only=True):
    """A shard was downloaded, verified and published in the cache. ``is_ahead``: before any sample of it was needed."""

    level: ClassVar[int] = logging.INFO

    url: str
    path: str
    size_bytes: int
    seconds: float
    is_ahead: bool = False
    requests: int = 1

    def counts(self) -> Counts:
        """A download: its bytes and requests, and the seconds that a reader waited."""
        stalled = 0.0 if self.is_ahead else self.seconds
        return (
            ("fetches", 1),
            ("fetched_ahead", self.is_ahead),
            ("fetched_bytes", self.size_bytes),
            ("fetch_requests", self.requests),
            ("stalled_seconds", stalled),
        )


class Hit(Event, frozen=True, kw_only=True):
    """A remote shard was found in the cache, whole and current, when it was opened."""

    url: str
    path: str

    def counts(self) -> Counts:
        """One hit."""
        return (("hits", 1),)


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
    """An attempt at a download failed, and another one follows after ``pause_seconds``."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = "it is tried again, and an error follows if that does not help"

    url: str
    attempt: int
    cause: str
    pause_seconds: float = 0.0

    def counts(self) -> Counts:
        """One retry."""
        return (("retries", 1),)


class Rejected(Event, frozen=True, kw_only=True):
    """A cached shard was not used: it is damaged, changed, or not what the index says. It is downloaded again."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = "it is downloaded again"

    url: str
    path: str
    cause: str

    def counts(self) -> Counts:
        """One rejection."""
        return (("rejections", 1),)


class Waited(Event, frozen=True, kw_only=True):
    """Another process held the lock of a shard, and this one waited for it."""

    level: ClassVar[int] = logging.INFO

    path: str
    seconds: float

    def counts(self) -> Counts:
        """One wait, and its seconds."""
        return ("waits", 1), ("stalled_seconds", self.seconds)


class WaitedForRoom(Event, frozen=True, kw_only=True):
    """A cache directory had no space for a shard until other processes closed some of theirs."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = "raise cache_size, free space if the disk is full, or run fewer jobs with this directory"

    url: str
    path: str
    seconds: float

    def counts(self) -> Counts:
        """One wait."""
        return (("waits", 1),)


class Evicted(Event, frozen=True, kw_only=True):
    """A cached shard was deleted to make space. ``size_bytes``: with its member table."""

    path: str
    size_bytes: int

    def counts(self) -> Counts:
        """One eviction, and its bytes."""
        return ("evictions", 1), ("evicted_bytes", self.size_bytes)


class Swept(Event, frozen=True, kw_only=True):
    """A file that a process left behind when it was killed was deleted from a cache directory."""

    path: str
    size_bytes: int


class PrefetchBegun(Event, frozen=True, kw_only=True):
    """The shards that an iteration of a sampler comes to are downloaded ahead; ``cache_size``: their limit, or None."""

    cache_size: int | None = None

    def counts(self) -> Counts:
        """One prefetch."""
        return (("prefetches", 1),)


class NotFetchedAhead(Event, frozen=True, kw_only=True):
    """Prefetching of a shard failed. The process that needs it tries again, and raises if that fails too."""

    level: ClassVar[int] = logging.INFO

    url: str
    cause: str


class RangesRead(Event, frozen=True, kw_only=True):
    """Members of a remote shard were read by byte ranges, in so many requests."""

    url: str
    requests: int
    size_bytes: int
    seconds: float

    def counts(self) -> Counts:
        """Requests for ranges, their bytes and seconds."""
        return (
            ("range_requests", self.requests),
            ("range_bytes", self.size_bytes),
            ("stalled_seconds", self.seconds),
        )


class TableRead(Event, frozen=True, kw_only=True):
    """The member table of a remote shard was read from a pack or from beside it, or made from its headers.

    Also the directory of a pack, ``url`` being the pack's. ``requests``: that it took.
    """

    url: str
    requests: int
    size_bytes: int
    seconds: float

    def counts(self) -> Counts:
        """Requests for tables, their bytes and seconds."""
        return (
            ("table_requests", self.requests),
            ("table_bytes", self.size_bytes),
            ("stalled_seconds", self.seconds),
        )


class RepeatedKeys(Event, frozen=True, kw_only=True):
    """Keys came back later in a shard, not adjacent, so these members became samples of their own."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = (
        "members of these samples do not follow each other in the tar, so that each run of them is a sample of its "
        'own; group="key" makes one of them (wids index create --group key)'
    )
    is_told_once: ClassVar[bool] = True

    url: str
    count: int


class AlikeKeys(Event, frozen=True, kw_only=True):
    """Keys of a shard differ only in their Unicode form (NFC, NFD), so their members are samples of their own."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = f"these names look the same and are not, so that their members are no sample; {ONE_FORM}"
    is_told_once: ClassVar[bool] = True

    url: str
    count: int


class MergedNames(Event, frozen=True, kw_only=True):
    """Samples were counted, and two ``fields`` of one look like two samples, whose names have a dot in them."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = (
        "a key ends at the first dot of a name; if these are two samples, key_rule='last-dot' takes them apart (wids "
        "index create --key-rule last-dot), and if they are one, key_rule='first-dot' says so"
    )
    is_told_once: ClassVar[bool] = True

    url: str
    key: str
    fields: tuple[str, str]


class BytesUnread(Event, frozen=True, kw_only=True):
    """A shard goes on behind its end marker, with bytes of no member that no writer pads with; ``size_bytes``: all."""

    level: ClassVar[int] = logging.WARNING
    advice: ClassVar[str] = (
        "nothing reads what follows the end marker: samples were lost (zeros), or it is two archives in one file; "
        "wids verify says which"
    )
    is_told_once: ClassVar[bool] = True

    url: str
    size_bytes: int


class SampleSubstituted(Event, frozen=True, kw_only=True):
    """A sample could not be read, decoded or transformed, and another one takes its place (``on_error="substitute"``).

    ``index``, ``shard``, ``row``, ``key``, ``field``: of the sample that failed, as far as they are known; ``by``: the
    index of the other one, None where there is none left to try; ``cause``: the error.
    """

    index: int
    by: int | None
    shard: str | None
    row: int | None
    key: str | None
    field: str | None
    cause: str

    def counts(self) -> Counts:
        """One substitution."""
        return (("substitutions", 1),)


class Hook(Protocol):
    """Anything that can be called with an event."""

    def __call__(self, event: Event, /) -> None:
        """Take note of an event.

        Args:
            event: the event, which has happened in this process.
        """


# Shorter waits are no news: another process downloads the shard, or closes one.
_LONG_SECONDS = 3.0
# A cache that is too small for its jobs makes one wait for each shard: a warning each time would bury all others.
_QUIET_SECONDS = 300.0
# Directory -> of its waits since a time: (when that was, how many, their seconds).
_waits: dict[str, tuple[float, int, float]] = {}
# Retries of one server come from all shards at once: a warning in so many seconds says it.
_RETRIES_QUIET_SECONDS = 10.0
# Server -> of its retries: (when the last warning was, how many came since).
_retries: dict[str, tuple[float, int]] = {}

# (class of an event, URL) of the warnings that are given once; more of them than this are DEBUG.
_told: set[tuple[str, str]] = set()
_MAX_TOLD = 10_000

_SIZE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e\+?[0-9]{1,2})?)\s*(?:([kmgtp])(i?))?b?", re.IGNORECASE)
_PREFIXES = "kmgtp"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """``1 shard``, ``3,001 files``, ``2 indexes``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def format_size(count: float) -> str:
    """``512 B``, ``1.23 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:,.3g} PB"


def parse_size(text: str) -> int:
    """A number of bytes: ``10GB``, ``500MiB``, ``1.5T``, ``1e9``, ``4096``; any case, K is 1000 and Ki 1024.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a size; write it like 10GB, 500MiB, 1.5T or 1e9 (bytes)")
    from fractions import Fraction  # whose import takes as long as a module of ours, and sizes are seldom texts

    number, prefix, binary = match.groups()
    factor = (1024 if binary else 1000) ** (_PREFIXES.index(prefix.lower()) + 1) if prefix else 1
    return int(Fraction(number) * factor)


def log_event(event: Event) -> None:
    """The hook that is always there: events go to the ``wids`` logger, most at DEBUG.

    Waits for space in one directory are a warning when they come to three seconds within five minutes, once in that
    time and with their number; others are DEBUG, as are shorter waits for another process. Retries of one server are
    a warning once in ten seconds.

    Args:
        event: any.
    """
    level, more = event.level, ""
    if isinstance(event, WaitedForRoom):
        count, seconds = _add_wait(event)
        if not seconds - event.seconds < _LONG_SECONDS <= seconds:
            level = logging.DEBUG
        elif count > 1:
            more = f"; {count} such waits in the last minutes, {seconds:.3g} s together"
    elif isinstance(event, Retried):
        others = _add_retry(event)
        if others is None:
            level = logging.DEBUG
        elif others:
            more = f"; {others} other retries of this server since the last such line"
    elif (isinstance(event, Waited) and event.seconds < _LONG_SECONDS) or (event.is_told_once and not _is_news(event)):
        level = logging.DEBUG
    if logger.isEnabledFor(level):
        fields = ", ".join(f"{name}={text}" for name, text in map(_fact, event.__rich_repr__()))
        more = f"; {event.advice}{more}" if event.advice and level >= logging.WARNING else more
        logger.log(level, "%s: %s%s", type(event).__name__, fields, more, extra=REPORTED)


def _is_news(event: Event) -> bool:
    """True if no such event of its URL was logged before: a shard is opened again and again."""
    key = type(event).__name__, getattr(event, "url", "")
    is_new = key not in _told and len(_told) < _MAX_TOLD
    _told.add(key) if is_new else None
    return is_new


def _add_wait(event: WaitedForRoom) -> tuple[int, float]:
    """Number and seconds of the waits in a directory, this one included, in the five minutes that it falls into."""
    now = time.monotonic()
    begin, count, seconds = _waits.get(event.path, (now, 0, 0.0))
    if now - begin >= _QUIET_SECONDS:
        begin, count, seconds = now, 0, 0.0
    _waits[event.path] = begin, count + 1, seconds + event.seconds
    return count + 1, seconds + event.seconds


def _add_retry(event: Retried) -> int | None:
    """Number of retries of the server since the last warning, if this one is to be a warning; otherwise None."""
    now, server = time.monotonic(), "/".join(event.url.split("/", 3)[:3])
    begin, count = _retries.get(server, (-math.inf, 0))
    if now - begin < _RETRIES_QUIET_SECONDS:
        _retries[server] = begin, count + 1
        return None
    _retries[server] = now, 0
    return count


def _fact(field: tuple[str, Any]) -> tuple[str, str]:
    """A field of an event for the log: its name, and its value, rounded and with its unit."""
    name, value = field
    if name in ("size_bytes", "cache_size") and value is not None:
        return name.removesuffix("_bytes"), format_size(value)
    if name in ("seconds", "pause_seconds"):
        return ("time" if name == "seconds" else "pause"), f"{value:.3g} s"
    return name, repr(value)


def emit(hooks: Iterable[Hook], event: Event) -> None:
    """Log ``event`` and hand it to each hook."""
    log_event(event)
    for hook in hooks:
        try:
            hook(event)
        except Exception:
            logger.exception("hook %r failed on %r", hook, event)
