"""Spans and metrics of a dataset's cache for OpenTelemetry (``pip install 'wids[otel]'``).

Rules: only this module imports opentelemetry, and no other module of the package imports it. Spans and durations are
reported by the process where the event happened; counts come from `wids.ShardListDataset.stats`, which includes all
worker processes. URLs are reported without query and credentials.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from wids.errors import DependencyError, without_secrets
from wids.events import Fetched, NotFetchedAhead, Opened, Rejected, Retried, Waited, WaitedForRoom

try:
    from opentelemetry import metrics, trace
except ImportError as _error:
    raise DependencyError("OpenTelemetry is not installed; install it with: pip install 'wids[otel]'") from _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from wids.core.collection.stats import Stats
    from wids.events import Event

SCOPE = "wids"
_SPANS: dict[type[Event], str] = {
    Fetched: "wids.fetch",
    Opened: "wids.open",
    Waited: "wids.wait_for_shard",
    WaitedForRoom: "wids.wait_for_room",
    Retried: "wids.retry",
    Rejected: "wids.reject",
    NotFetchedAhead: "wids.not_fetched_ahead",
}
_COUNTERS = {
    "fetches": ("{shard}", "Shards downloaded."),
    "fetched_ahead": ("{shard}", "Shards downloaded ahead, before a sample of them was read."),
    "fetched_bytes": ("By", "Bytes of the shards downloaded."),
    "prefetches": ("{iteration}", "Iterations of samplers whose shards were downloaded ahead."),
    "hits": ("{shard}", "Remote shards found in the cache when they were opened."),
    "retries": ("{attempt}", "Failed attempts at downloads that were followed by another attempt."),
    "rejections": ("{shard}", "Cached shards that were damaged or outdated, and downloaded again."),
    "evictions": ("{shard}", "Shards evicted to free space."),
    "evicted_bytes": ("By", "Bytes of the evicted shards."),
    "waits": ("{wait}", "Waits for another process's download, or for free space."),
    "range_requests": ("{request}", "Requests for samples of shards that are not in the cache."),
    "range_bytes": ("By", "Bytes read by range requests."),
    "fetch_requests": ("{request}", "Requests for shards."),
    "table_requests": ("{request}", "Requests for member tables of shards that are not in the cache."),
    "table_bytes": ("By", "Bytes of these member tables."),
    "substitutions": ("{sample}", "Samples that failed, and whose place others took."),
    "stalled_seconds": ("s", "Time that reads of samples waited for their shards."),
}


class OpenTelemetryHook:
    """A hook that reports each download, opening and wait as a span and in a histogram, and each failure as a span.

    ``ShardListDataset(..., hooks=[OpenTelemetryHook()])``. Spans are named ``wids.fetch``, ``wids.open``,
    ``wids.wait_for_shard``, ``wids.wait_for_room``, ``wids.retry``, ``wids.reject`` and ``wids.not_fetched_ahead``,
    with the event's fields as attributes ``wids.*``. Histograms, in seconds: ``wids.fetch.duration``,
    ``wids.open.duration``, ``wids.wait.duration``.

    It pickles, as hooks must for spawned workers. An unpickled hook reports to the global providers of its process,
    which ``worker_init_fn`` can set; providers passed to the constructor are not pickled.

    Args:
        meter_provider: default: the global one.
        tracer_provider: default: the global one.
    """

    def __init__(
        self, *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        fetch = meter.create_histogram(
            "wids.fetch.duration", unit="s", description="Duration of downloads, with their retries."
        )
        opening = meter.create_histogram("wids.open.duration", unit="s", description="Duration of opening shards.")
        wait = meter.create_histogram(
            "wids.wait.duration", unit="s", description="Duration of waits for other processes."
        )
        self._histograms = {Fetched: fetch, Opened: opening, Waited: wait, WaitedForRoom: wait}

    def __reduce__(self) -> tuple[type[OpenTelemetryHook], tuple[()]]:
        return type(self), ()

    def __call__(self, event: Event) -> None:
        """Report one event."""
        name = _SPANS.get(type(event))
        if name is None:  # only counted, by `observe`
            return
        end = time.time_ns()
        seconds = getattr(event, "seconds", 0.0)
        span = self._tracer.start_span(
            name, start_time=end - int(seconds * 1e9), attributes=_attributes(event), kind=trace.SpanKind.INTERNAL
        )
        cause = getattr(event, "cause", None)
        if cause is not None:
            span.set_status(trace.StatusCode.ERROR, without_secrets(cause, getattr(event, "url", None)))
        span.end(end)
        histogram = self._histograms.get(type(event))
        if histogram is not None:
            ahead = {"wids.is_ahead": event.is_ahead} if isinstance(event, Fetched) else {}
            histogram.record(seconds, ahead)


class HasStats(Protocol):
    """An object with counts, such as a `ShardListDataset`."""

    def stats(self) -> Stats:
        """The counts so far."""


def observe(
    dataset: HasStats, *, name: str | None = None, meter_provider: MeterProvider | None = None
) -> dict[str, Any]:
    """Report a dataset's ``stats()``, of this process and of its loaders' workers, as observable counters.

    They are named ``wids.fetches``, ``wids.fetched_bytes`` and so on, one for each field. Call it in the process that
    makes the loaders. It holds a weak reference: when the dataset is freed, its values are no longer reported.

    Args:
        dataset: the dataset with the counts.
        name: the attribute ``wids.dataset`` of the values, to tell several datasets apart.
        meter_provider: default: the global one.

    Returns:
        Field of the stats -> its counter.
    """
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    reference = weakref.ref(dataset)
    attributes = {} if name is None else {"wids.dataset": name}

    def callback(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def values(_: CallbackOptions) -> Iterable[Observation]:
            alive = reference()
            return [] if alive is None else [metrics.Observation(getattr(alive.stats(), field), attributes)]

        return values

    return {
        field: meter.create_observable_counter(
            f"wids.{field}", callbacks=[callback(field)], unit=unit, description=description
        )
        for field, (unit, description) in _COUNTERS.items()
    }


def _attributes(event: Event) -> dict[str, Any]:
    return {f"wids.{name}": value for name, value in event.__rich_repr__()}
