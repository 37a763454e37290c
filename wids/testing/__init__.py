"""For tests of code that reads shards: a loopback server with faults, and the promises of the seams as test classes.

    from wids import testing

    with testing.Server("data", latency_seconds=0.03, bytes_per_second=40e6) as server:
        train(f"{server.url}/train.json")
        assert server.requests.count("/train-000000.tar") == 1

    with testing.Server() as server:
        url = server.add("/a.tar", data, testing.status(503), testing.cut, testing.whole)

    class TestMyStore(testing.ByteSourceSuite):  # pytest collects it
        ...

``import wids`` does not import this package, and only the suites, on first use, import pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.errors import DependencyError
from wids.testing.server import Fault, Gate, Reply, Server, cut, instead, redirect, reset, stall, status, whole

if TYPE_CHECKING:
    from wids.testing.readers import ReaderSuite, ShardProviderSuite
    from wids.testing.runners import RunnerSuite
    from wids.testing.sources import ByteSourceSuite

__all__ = [
    "ByteSourceSuite",
    "Fault",
    "Gate",
    "ReaderSuite",
    "Reply",
    "RunnerSuite",
    "Server",
    "ShardProviderSuite",
    "cut",
    "instead",
    "redirect",
    "reset",
    "stall",
    "status",
    "whole",
]

_MODULES = {
    "ByteSourceSuite": "wids.testing.sources",
    "ReaderSuite": "wids.testing.readers",
    "RunnerSuite": "wids.testing.runners",
    "ShardProviderSuite": "wids.testing.readers",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'wids.testing' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise DependencyError(f"{name} takes pytest; install it: pip install pytest") from error
