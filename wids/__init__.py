"""Random access to training samples in plain tar shards (the WebDataset format), for PyTorch.

The names below are imported on first use (PEP 562), so that ``import wids`` takes milliseconds and imports neither
torch nor PIL nor fsspec. The submodules of wids 0.1 (``wids.wids``, ``wids.wids_cleanup``, ...) are in ``wids/legacy``
and found through ``__path__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "1.0.0rc1"

if TYPE_CHECKING:
    from wids.batch_samplers import BucketBatchSampler, MixtureBatchSampler
    from wids.core.cache.cleanup import create_cleanup_background_process, keep_most_recent_files
    from wids.core.codecs.decode import SampleDecoder, register_decoder
    from wids.core.collection.member_file import MemberFile, lazy
    from wids.core.collection.seeds import rng, seeded
    from wids.core.order.weights import balance
    from wids.dataset import ShardListDataset
    from wids.errors import WidsError
    from wids.loaders import resumable
    from wids.mixtures import Mixture, mix
    from wids.packs import PackSampler, pack_collate
    from wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler
    from wids.windows import Windows
    from wids.writing.writer import ShardWriter

__all__ = [
    "BucketBatchSampler",
    "ChunkedSampler",
    "DistributedChunkedSampler",
    "MemberFile",
    "Mixture",
    "MixtureBatchSampler",
    "PackSampler",
    "SampleDecoder",
    "ShardListDataset",
    "ShardListSampler",
    "ShardWriter",
    "ShardedSampler",
    "WidsError",
    "Windows",
    "balance",
    "create_cleanup_background_process",
    "errors",
    "events",
    "keep_most_recent_files",
    "lazy",
    "mix",
    "pack_collate",
    "register_decoder",
    "resumable",
    "rng",
    "seeded",
]

# Name -> the module that defines it.
_MODULES = {
    "BucketBatchSampler": "wids.batch_samplers",
    "ChunkedSampler": "wids.samplers",
    "DistributedChunkedSampler": "wids.samplers",
    "MemberFile": "wids.core.collection.member_file",
    "Mixture": "wids.mixtures",
    "MixtureBatchSampler": "wids.batch_samplers",
    "PackSampler": "wids.packs",
    "SampleDecoder": "wids.core.codecs.decode",
    "ShardListDataset": "wids.dataset",
    "ShardListSampler": "wids.samplers",
    "ShardWriter": "wids.writing.writer",
    "ShardedSampler": "wids.samplers",
    "WidsError": "wids.errors",
    "Windows": "wids.windows",
    "balance": "wids.core.order.weights",
    "create_cleanup_background_process": "wids.core.cache.cleanup",
    "keep_most_recent_files": "wids.core.cache.cleanup",
    "lazy": "wids.core.collection.member_file",
    "mix": "wids.mixtures",
    "pack_collate": "wids.packs",
    "register_decoder": "wids.core.codecs.decode",
    "resumable": "wids.loaders",
    "rng": "wids.core.collection.seeds",
    "seeded": "wids.core.collection.seeds",
}

# `import wids.wids_cleanup` searches this path.
__path__.append(f"{__path__[0]}/legacy")

# Programs use these as attributes after `import wids`, as `wids.wids.compute_num_samples` of wids 0.1.
_SUBMODULES = {
    "errors",
    "events",
    "hf",
    "jobs",
    "lightning",
    "otel",
    "serve",
    "testing",
    "types",
    "wids",
    "wids_cleanup",
    "wids_decode",
    "wids_dir",
    "wids_dl",
    "wids_index",
    "wids_lru",
    "wids_mmtar",
    "wids_specs",
    "wids_tar",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return import_module(f"wids.{name}")
    raise AttributeError(f"module 'wids' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
