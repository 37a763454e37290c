"""Work on many shards: index, verify, warm, pack, make columns; in threads, processes, or on Ray.

Each job is a function here that takes its settings, ``engine=`` and ``progress=``, and returns its outcome. The names
are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.columns.create import ColumnsOutcome, create_columns
    from wids.columns.spec import ColumnSpec, parse_spec
    from wids.core.transport.session import Session
    from wids.jobs.cache_warm import WarmOutcome, WarmSettings, warm
    from wids.jobs.index_create import IndexOutcome, IndexSettings, create_index
    from wids.jobs.index_diff import IndexDiff, ShardsOfKind, diff_indexes
    from wids.jobs.index_edit import update_index
    from wids.jobs.index_tables import TablesOutcome, TablesSettings, create_tables
    from wids.jobs.index_verify import VerifyOutcome, verify
    from wids.jobs.outcome import JobOutcome, JobProgress
    from wids.jobs.problems import Finding, Problem, VerifySettings
    from wids.jobs.runner import RunOptions
    from wids.writing.map import MapOutcome, MapSettings, MapTrial, map  # noqa: A004 - its name for users
    from wids.writing.pack.run import PackOutcome
    from wids.writing.pack.shard import PackSettings
    from wids.writing.pack.sources import PackSource, pack
    from wids.writing.rewrite import rewrite_shards
    from wids.writing.rewrite_settings import RewriteOutcome, RewriteSettings

# Module -> the names that it defines. Those of columns and writing are above this folder.
_NAMES = {
    "wids.columns.create": "ColumnsOutcome create_columns",
    "wids.columns.spec": "ColumnSpec parse_spec",
    "wids.jobs.cache_warm": "WarmOutcome WarmSettings warm",
    "wids.jobs.index_create": "IndexOutcome IndexSettings create_index",
    "wids.jobs.index_diff": "IndexDiff ShardsOfKind diff_indexes",
    "wids.jobs.index_edit": "update_index",
    "wids.jobs.index_tables": "TablesOutcome TablesSettings create_tables",
    "wids.jobs.index_verify": "VerifyOutcome verify",
    "wids.jobs.outcome": "JobOutcome JobProgress",
    "wids.jobs.problems": "Finding Problem VerifySettings",
    "wids.jobs.runner": "RunOptions",
    "wids.core.transport.session": "Session",
    "wids.writing.map": "MapOutcome MapSettings MapTrial map",
    "wids.writing.pack.run": "PackOutcome",
    "wids.writing.pack.shard": "PackSettings",
    "wids.writing.pack.sources": "PackSource pack",
    "wids.writing.rewrite": "rewrite_shards",
    "wids.writing.rewrite_settings": "RewriteOutcome RewriteSettings",
}
__all__ = [
    "ColumnSpec",
    "ColumnsOutcome",
    "Finding",
    "IndexDiff",
    "IndexOutcome",
    "IndexSettings",
    "JobOutcome",
    "JobProgress",
    "MapOutcome",
    "MapSettings",
    "MapTrial",
    "PackOutcome",
    "PackSettings",
    "PackSource",
    "Problem",
    "RewriteOutcome",
    "RewriteSettings",
    "RunOptions",
    "Session",
    "ShardsOfKind",
    "TablesOutcome",
    "TablesSettings",
    "VerifyOutcome",
    "VerifySettings",
    "WarmOutcome",
    "WarmSettings",
    "create_columns",
    "create_index",
    "create_tables",
    "diff_indexes",
    "map",
    "pack",
    "parse_spec",
    "rewrite_shards",
    "update_index",
    "verify",
    "warm",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _NAMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module 'wids.jobs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
