"""What the daemon measures, in a file in the text format of Prometheus, for node_exporter's textfile collector."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wids.errors import DependencyError, OutputError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

# Name -> (help). Those that end in _total only grow while the daemon runs.
_HELP = {
    "cache_bytes": "Bytes of the shards, with their tables, and of downloads under way.",
    "cache_shards": "Shards in the cache, or files that the pattern matches.",
    "cache_limit_bytes": "Bytes that may stay when it was cleaned.",
    "cache_limit_shards": "Shards that may stay when it was cleaned.",
    "cache_over_limit": "1 if the last cleaning could not get below the limit.",
    "cache_cleaning_seconds": "Seconds that the last cleaning took.",
    "cache_last_cleaning_timestamp_seconds": "When the last cleaning ended, in seconds since 1970.",
    "cache_cleanings_total": "Cleanings.",
    "cache_failures_total": "Cleanings that failed.",
    "cache_deleted_shards_total": "Shards that were deleted.",
    "cache_deleted_bytes_total": "Bytes of the shards that were deleted.",
}


class Metrics:
    """Numbers of one cache directory, written to a file at once: readers see the old or the new ones.

    Args:
        path: of the file; the collector reads names that end in .prom.
        cache: the directory or pattern, which each number names.

    Raises:
        DependencyError: prometheus_client is not installed.
        OutputError: there is no such directory.
    """

    def __init__(self, path: str, cache: str) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise DependencyError(
                "--metrics needs prometheus_client; install it with: pip install 'wids[prometheus]'"
            ) from error
        self._path, self._cache, self._write = os.path.abspath(path), cache, prometheus_client.write_to_textfile
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)
        self._values: dict[str, float] = {name: 0 for name in _HELP if name.endswith("_total")}
        if not os.path.isdir(os.path.dirname(self._path)):
            raise OutputError(f"{self._path}: cannot be written, there is no such directory")

    def update(self, *, more: dict[str, float], now: dict[str, float]) -> None:
        """Write the numbers.

        Args:
            more: additions to totals.
            now: what numbers are from here on.
        """
        for name, value in more.items():
            self._values[name] += value
        self._values |= now
        try:
            self._write(self._path, self._registry)
        except OSError as error:  # a full disk, say: the next round may do
            logger.warning("%s: the metrics cannot be written (%s)", self._path, error)

    def collect(self) -> Iterator[Any]:
        """What `prometheus_client` asks for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in self._values.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = family(f"wids_{name}", _HELP[name], labels=["cache"])
            metric.add_metric([self._cache], value)
            yield metric
