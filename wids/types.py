"""The types that public signatures name, for annotations of programs; `wids.core`, where many of them are, is private.

Some exist for type checkers alone: import those under ``if TYPE_CHECKING:``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wids.batch_samplers import Batches as Batches
    from wids.columns.join import Missing, On
    from wids.columns.samples import Fields
    from wids.columns.spec import ColumnRule
    from wids.core.collection.keys import Keys
    from wids.core.collection.shard_collection import OnCountMismatch, ShardLike, Shards
    from wids.core.collection.stats import Stats
    from wids.core.collection.views import SplitBy
    from wids.core.order.epoch import Reshuffle, Tail
    from wids.core.prefetch.ahead import Ahead
    from wids.core.readers.access import AccessMode
    from wids.core.tables.fields import FieldsArgument
    from wids.core.tables.keys import CustomRule as CustomRule
    from wids.core.tables.keys import KeyRule
    from wids.core.tables.table import Group
    from wids.dataset import Location
    from wids.dataset import Transform as Transform
    from wids.dataset import Transforms as Transforms
    from wids.jobs.decode import Decode as Decode
    from wids.jobs.decode import Sample as Sample
    from wids.jobs.index_verify import KeyCensus
    from wids.jobs.progress import Progress
    from wids.jobs.progress import ShowProgress as ShowProgress
    from wids.jobs.runner import Engine, EngineName
    from wids.windows import Offsets as Offsets
    from wids.windows import Stack as Stack
    from wids.writing.pack.listing import SampleProblem

# Module -> its types.
_TYPES = {
    "wids.batch_samplers": ("Batches",),
    "wids.columns.join": ("Missing", "On"),
    "wids.columns.samples": ("Fields",),
    "wids.columns.spec": ("ColumnRule",),
    "wids.core.collection.keys": ("Keys",),
    "wids.core.collection.shard_collection": ("OnCountMismatch", "ShardLike", "Shards"),
    "wids.core.collection.stats": ("Stats",),
    "wids.core.collection.views": ("SplitBy",),
    "wids.core.order.epoch": ("Reshuffle", "Tail"),
    "wids.core.prefetch.ahead": ("Ahead",),
    "wids.core.readers.access": ("AccessMode",),
    "wids.core.tables.fields": ("FieldsArgument",),
    "wids.core.tables.keys": ("CustomRule", "KeyRule"),
    "wids.core.tables.table": ("Group",),
    "wids.dataset": ("Location", "Transform", "Transforms"),
    "wids.jobs.decode": ("Decode", "Sample"),
    "wids.jobs.index_verify": ("KeyCensus",),
    "wids.jobs.progress": ("Progress", "ShowProgress"),
    "wids.jobs.runner": ("Engine", "EngineName"),
    "wids.windows": ("Offsets", "Stack"),
    "wids.writing.pack.listing": ("SampleProblem",),
}

__all__ = [
    "AccessMode",
    "Ahead",
    "ColumnRule",
    "Engine",
    "EngineName",
    "Fields",
    "FieldsArgument",
    "Group",
    "KeyCensus",
    "KeyRule",
    "Keys",
    "Location",
    "Missing",
    "On",
    "OnCountMismatch",
    "Progress",
    "Reshuffle",
    "SampleProblem",
    "ShardLike",
    "Shards",
    "SplitBy",
    "Stats",
    "Tail",
]


def __getattr__(name: str) -> Any:
    for module, names in _TYPES.items():
        if name in names:
            kind = getattr(import_module(module), name, None)
            if kind is None:
                raise AttributeError(f"wids.types.{name} is for type checkers: import it under `if TYPE_CHECKING:`")
            return kind
    raise AttributeError(f"module 'wids.types' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for names in _TYPES.values() for name in names)
