"""The OpenTelemetry hook: spans, histograms and counters through the real SDK."""

import gc
import pickle

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from torch.utils.data import DataLoader

import wids
from wids.core.collection.stats import Stats
from wids.events import Closed, Evicted, Fetched, Hit, Retried, Waited, WaitedForRoom
from wids.otel import OpenTelemetryHook, observe

pytestmark = pytest.mark.usefixtures("own_cache")


class Telemetry:
    """Providers that keep what they are told."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracer_provider = TracerProvider()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([self.reader])

    def hook(self):
        """A hook that tells these."""
        return OpenTelemetryHook(meter_provider=self.meter_provider, tracer_provider=self.tracer_provider)

    def spans(self):
        """Name -> the spans of that name."""
        found = {}
        for span in self.exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found

    def points(self):
        """Name of a metric -> (its unit, its values)."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        [resource] = data.resource_metrics
        [scope] = resource.scope_metrics
        assert scope.scope.name == "wids"
        found = {metric.name: (metric.unit, list(metric.data.data_points)) for metric in scope.metrics}
        return {name: (unit, points) for name, (unit, points) in found.items() if points}  # older SDKs list empty ones


@pytest.fixture
def telemetry():
    """See `Telemetry`."""
    found = Telemetry()
    yield found
    found.meter_provider.shutdown()
    found.tracer_provider.shutdown()


def test_a_dataset_is_told(web, tmp_path, telemetry):
    """Each fetch is a span of its length and a value in a histogram; the counters are those of stats()."""
    url = web.url.replace("://", "://user:secret@") + "/index.json?token=secret"
    dataset = wids.ShardListDataset(url, cache_dir=tmp_path / "cache", prefetch=False, hooks=[telemetry.hook()])
    observe(dataset, name="train", meter_provider=telemetry.meter_provider)
    assert len(list(dataset)) == 9
    fetches = telemetry.spans()["wids.fetch"]
    assert len(fetches) == len(telemetry.spans()["wids.open"]) == 3
    for span in fetches:
        assert span.end_time - span.start_time == pytest.approx(span.attributes["wids.seconds"] * 1e9, abs=1000)
        assert span.attributes["wids.size_bytes"] > 0
        assert span.status.status_code is StatusCode.UNSET
    assert "secret" not in str([span.to_json() for span in telemetry.exporter.get_finished_spans()])
    points = telemetry.points()
    unit, [duration] = points["wids.fetch.duration"]
    assert (unit, duration.count, dict(duration.attributes)) == ("s", 3, {"wids.is_ahead": False})
    assert points["wids.open.duration"][1][0].count == 3
    stats = dataset.stats()
    for field in Stats.__struct_fields__:
        [point] = points[f"wids.{field}"][1]
        assert (point.value, dict(point.attributes)) == (getattr(stats, field), {"wids.dataset": "train"})
    assert points["wids.fetched_bytes"][0] == "By"
    assert stats.fetches == 3


def test_workers_are_counted(web, tmp_path, telemetry):
    """What DataLoader workers fetch is in the counters of the main process."""
    dataset = wids.ShardListDataset(web.url + "/index.json", cache_dir=tmp_path / "cache", prefetch=False)
    observe(dataset, meter_provider=telemetry.meter_provider)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert len(list(loader)) == 9
    assert telemetry.points()["wids.fetches"][1][0].value == 3


def test_a_dataset_is_not_kept(index, telemetry):
    """One that is gone has no values, and reading the metrics does no harm."""
    dataset = wids.ShardListDataset(str(index))
    observe(dataset, meter_provider=telemetry.meter_provider)
    assert telemetry.points()["wids.hits"][1][0].value == 0
    del dataset
    gc.collect()
    assert telemetry.points() == {}


def test_trouble_is_a_failed_span(telemetry):
    """A retry has the status ERROR with its cause, without what was signed; waits have a histogram of their own."""
    hook = telemetry.hook()
    cause = "https://u:p@h/a.tar?sig=a:b'c: reset by peer?"
    hook(Retried(url="https://u:p@h/a.tar?sig=X", attempt=2, cause=cause, pause_seconds=0.5))
    hook(Waited(path="/c/a.tar", seconds=0.5))
    hook(WaitedForRoom(url="s3://b/a.tar", path="/c", seconds=1.5))
    [retry] = telemetry.spans()["wids.retry"]
    assert retry.status.status_code is StatusCode.ERROR
    assert retry.status.description == "https://h/a.tar: reset by peer?"
    assert dict(retry.attributes) == {
        "wids.url": "https://h/a.tar",
        "wids.attempt": 2,
        "wids.cause": "https://h/a.tar: reset by peer?",
        "wids.pause_seconds": 0.5,
    }
    assert telemetry.points()["wids.wait.duration"][1][0].sum == 2.0


@pytest.mark.parametrize(
    "event", [Hit(url="u", path="p"), Closed(url="u"), Evicted(path="p", size_bytes=3)], ids=lambda e: type(e).__name__
)
def test_what_only_counts_has_no_span(telemetry, event):
    """Hits, evictions and the like are in the counters."""
    telemetry.hook()(event)
    assert telemetry.spans() == {}


def test_it_pickles():
    """As hooks must for workers that are spawned; there it speaks to the global providers, or to nobody."""
    hook = pickle.loads(pickle.dumps(OpenTelemetryHook()))
    hook(Fetched(url="u", path="p", size_bytes=1, seconds=1.0))
    assert isinstance(hook, OpenTelemetryHook)
