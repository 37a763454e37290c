"""Leave all kinds of things open and half done in module scope, and end: by the exit code given, or an exception.

Run as: left_open.py INDEX DIRECTORY CODE; the directory has ``remote.json`` and its shards. Something holds
``__main__``, as `dill` does where torch finds it: modules' names are None when what is left here is freed.
"""

import sys
import threading

import pyarrow as pa
import torch

import wids
from wids import testing, wids_mmtar

threading.held = sys.modules["__main__"]
index, directory, code = sys.argv[1:]

local = wids.ShardListDataset(index, transformations="raw")
mapped = wids.ShardListDataset(index, use_mmap=True, transformations="raw")
view = local.select(range(0, len(local), 2))
columns = local.with_table(pa.table({"index": range(len(local)), "label": range(len(local))}), on="index")
found = columns.query("select label from samples where label > 3")
mixture = wids.mix({"a": (mapped, 0.5), "b": (view, 0.5)})
mixed = iter(wids.DistributedChunkedSampler(mixture))
samples = [local[0], mapped[0], view[-1], columns[1], mixture[next(mixed)]]
member = wids_mmtar.MMIndexedTar(local.shards[0]["url"])[0]
archive = wids_mmtar.MMIndexedTar(local.shards[0]["url"])

server = testing.Server(directory, bytes_per_second=100)
server.__enter__()
remote = wids.ShardListDataset(f"{server.url}/remote.json", cache_dir=f"{directory}/cache-{code}", transformations=[])
sampler = wids.DistributedChunkedSampler(remote)
half = iter(sampler)
ahead = remote.prefetch(range(len(remote)))
drawn = [next(half), next(ahead)]
loaders = [
    torch.utils.data.DataLoader(
        view, batch_size=2, sampler=wids.DistributedChunkedSampler(view), num_workers=workers, collate_fn=list
    )
    for workers in (0, 2)
]
loops = [iter(loader) for loader in loaders]
batches = [next(loop) for loop in loops]
if code == "raise":
    raise ValueError("the program's own")
sys.exit(int(code))
