"""Work on many shards: index, verify, warm, pack, columns; in threads, processes, or on Ray.

Each job is a function here that takes its settings, ``engine=`` and ``progress=``, and returns its outcome. The names
are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.columns.create import ColumnsOutcome, create_columns
    from wids.columns.spec import ColumnSpec, parse_spec
    from wids.jobs.cache_warm import WarmOutcome, WarmSettings, warm
    from wids.jobs.index_create import IndexOutcome, IndexSettings, create_index
    from wids.jobs.index_edit import update_index
    from wids.jobs.index_tables import TablesOutcome, TablesSettings, create_tables
    from wids.jobs.index_verify import VerifyOutcome, verify
    from wids.jobs.outcome import JobOutcome, JobProgress
    from wids.jobs.problems import Finding, Problem, VerifySettings
    from wids.jobs.runner import RunOptions
    from wids.transport.session import Session
    from wids.writing.pack.run import PackOutcome
    from wids.writing.pack.shard import PackSettings
    from wids.writing.pack.sources import PackSource, pack

# Name -> the module that defines it. Those of columns and writing are above this folder.
_MODULES = {
    "ColumnSpec": "wids.columns.spec",
    "ColumnsOutcome": "wids.columns.create",
    "Finding": "wids.jobs.problems",
    "IndexOutcome": "wids.jobs.index_create",
    "IndexSettings": "wids.jobs.index_create",
    "JobOutcome": "wids.jobs.outcome",
    "JobProgress": "wids.jobs.outcome",
    "PackOutcome": "wids.writing.pack.run",
    "PackSettings": "wids.writing.pack.shard",
    "PackSource": "wids.writing.pack.sources",
    "Problem": "wids.jobs.problems",
    "RunOptions": "wids.jobs.runner",
    "Session": "wids.transport.session",
    "TablesOutcome": "wids.jobs.index_tables",
    "TablesSettings": "wids.jobs.index_tables",
    "VerifyOutcome": "wids.jobs.index_verify",
    "VerifySettings": "wids.jobs.problems",
    "WarmOutcome": "wids.jobs.cache_warm",
    "WarmSettings": "wids.jobs.cache_warm",
    "create_columns": "wids.columns.create",
    "create_index": "wids.jobs.index_create",
    "create_tables": "wids.jobs.index_tables",
    "pack": "wids.writing.pack.sources",
    "parse_spec": "wids.columns.spec",
    "update_index": "wids.jobs.index_edit",
    "verify": "wids.jobs.index_verify",
    "warm": "wids.jobs.cache_warm",
}
__all__ = [
    "ColumnSpec",
    "ColumnsOutcome",
    "Finding",
    "IndexOutcome",
    "IndexSettings",
    "JobOutcome",
    "JobProgress",
    "PackOutcome",
    "PackSettings",
    "PackSource",
    "Problem",
    "RunOptions",
    "Session",
    "TablesOutcome",
    "TablesSettings",
    "VerifyOutcome",
    "VerifySettings",
    "WarmOutcome",
    "WarmSettings",
    "create_columns",
    "create_index",
    "create_tables",
    "pack",
    "parse_spec",
    "update_index",
    "verify",
    "warm",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'wids.jobs' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
