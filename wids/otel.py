"""OpenTelemetry for those who run it: what a dataset's cache does, as spans and as metrics.

Rules: this is the package's only import of opentelemetry (``pip install 'wids[otel]'``); nothing else imports this
module. Durations and spans come from the process where the thing happened, counts from `ShardListDataset.stats()`,
which knows of all processes. A URL is told without its query and credentials.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry import metrics, trace

from wids.errors import without_secrets
from wids.events import Fetched, NotFetchedAhead, Opened, Rejected, Retried, Waited, WaitedForRoom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

    from wids.events import Event
    from wids.stats import Stats

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
    "fetched_ahead": ("{shard}", "Shards downloaded before they were asked for."),
    "fetched_bytes": ("By", "Bytes of the shards downloaded."),
    "hits": ("{shard}", "Remote shards found in the cache when they were opened."),
    "retries": ("{attempt}", "Attempts at downloads that failed and were followed by another one."),
    "rejections": ("{shard}", "Cached shards that were damaged or changed, and fetched again."),
    "evictions": ("{shard}", "Shards deleted to make room."),
    "evicted_bytes": ("By", "Bytes of the shards deleted to make room."),
    "waits": ("{wait}", "Waits for another process's download, or for room."),
    "range_requests": ("{request}", "Byte ranges of shards that are read where they are."),
    "range_bytes": ("By", "Bytes of those."),
    "stalled_seconds": ("s", "How long samples were waited for because their shard was not there."),
}


class OpenTelemetryHook:
    """A hook: each fetch, opening and wait becomes a span and a value in a histogram, each trouble a failed span.

    ``ShardListDataset(..., hooks=[OpenTelemetryHook()])``. Spans are named ``wids.fetch``, ``wids.open``,
    ``wids.wait_for_shard``, ``wids.wait_for_room``, ``wids.retry``, ``wids.reject`` and ``wids.not_fetched_ahead``,
    with the event's fields as attributes ``wids.*``. Histograms, in seconds: ``wids.fetch.duration``,
    ``wids.open.duration``, ``wids.wait.duration``.

    It pickles, as hooks must for workers that are spawned; there it reports to the providers that are set globally in
    that process (``worker_init_fn`` is the place to set them), whatever it was made with.

    Args:
        meter_provider: default the global one.
        tracer_provider: likewise.
    """

    def __init__(
        self, *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        fetch = meter.create_histogram("wids.fetch.duration", unit="s", description="Of downloads, with their retries.")
        opening = meter.create_histogram("wids.open.duration", unit="s", description="Of opening shards.")
        wait = meter.create_histogram("wids.wait.duration", unit="s", description="Of waits for others.")
        self._histograms = {Fetched: fetch, Opened: opening, Waited: wait, WaitedForRoom: wait}

    def __reduce__(self) -> tuple[type[OpenTelemetryHook], tuple[()]]:
        return type(self), ()

    def __call__(self, event: Event) -> None:
        """Tell one event."""
        name = _SPANS.get(type(event))
        if name is None:  # counted by `observe`, and not worth a span
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


class Counting(Protocol):
    """Anything with counts: a `ShardListDataset`."""

    def stats(self) -> Stats:
        """The counts so far."""


def observe(
    dataset: Counting, *, name: str | None = None, meter_provider: MeterProvider | None = None
) -> dict[str, Any]:
    """Report a dataset's `stats()`, of this process and of the workers of its loaders, as observable counters.

    They are named ``wids.fetches``, ``wids.fetched_bytes`` and so on, one for each field. Call it in the process that
    makes the loaders. The dataset is not kept alive; when it is gone, so are its values.

    Args:
        dataset: whose counts.
        name: attribute ``wids.dataset`` of the values, where there are several.
        meter_provider: default the global one.

    Returns:
        Field -> its counter.
    """
    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    found = weakref.ref(dataset)
    attributes = {} if name is None else {"wids.dataset": name}

    def callback(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def values(_: CallbackOptions) -> Iterable[Observation]:
            alive = found()
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
