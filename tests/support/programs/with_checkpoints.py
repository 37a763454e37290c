"""Reads batches on gloo ranks with `wids.resumable`, by torch's distributed checkpoints and meshes of devices.

Arguments: directory, and a JSON list of runs, dicts: ``name``; ``kind`` of the loader; ``mesh``, [dp, tp] or none;
``load`` and ``save``, names of checkpoints; ``batches`` to read. Each rank writes what it had to WORLD-RANK.json.
"""

import json
import os
import sys
import warnings

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import wids
from wids.errors import InputError

N = 96


def make(kind, **options):
    """The loader of a kind."""
    data = list(range(N))
    options |= {"chunksize": 5, "window": 2}
    if kind == "plain":
        sampler = wids.DistributedChunkedSampler(data, **options)
        return wids.resumable(DataLoader(data, sampler=sampler, batch_size=4, num_workers=2))
    data = wids.mix({"a": (data[:40], 0.5), "b": (data[40:], 0.5)})
    if kind == "reweighted":
        sampler = wids.DistributedChunkedSampler(data, **options)
        return wids.resumable(DataLoader(data, sampler=sampler, batch_size=4))
    size = 12 // dist.get_world_size()  # a global batch stays what it is
    sampler = wids.MixtureBatchSampler(data, size, **options)
    return wids.resumable(DataLoader(data, batch_sampler=sampler, num_workers=1))


def run(directory, *, name, kind="plain", mesh=None, load=None, save=None, batches=None):
    """The batches of this rank, and its state after them."""
    options, meshes = {}, None
    if mesh is not None:
        meshes = init_device_mesh("cpu", tuple(mesh), mesh_dim_names=("dp", "tp"))
        options["mesh"] = meshes["dp"]
    loader = make(kind, **options)
    if kind == "reweighted" and load is None:
        loader.sampler.reweight({"a": 0.9, "b": 0.1}, at=12)
    if load is not None:
        dcp.load({"loader": loader}, checkpoint_id=f"{directory}/{load}")
    found = []
    if batches is None:
        found = [batch.tolist() for batch in loader]
    else:
        for _, batch in zip(range(batches), loader, strict=False):
            found.append(batch.tolist())
    if save is not None:
        dcp.save({"loader": loader}, checkpoint_id=f"{directory}/{save}")
    return {"batches": found, "state": loader.state_dict(), "refused": refused(meshes) if mesh else []}


def refused(meshes):
    """The messages of meshes that say no rank."""
    messages = []
    for options in [{"mesh": meshes}, {"mesh": meshes["dp"], "rank": 0}, {"mesh": meshes["tp"], "num_replicas": 2}]:
        try:
            wids.DistributedChunkedSampler(range(N), **options)
        except InputError as error:
            messages.append(str(error))
    return messages


def main():
    """All runs."""
    directory, runs = sys.argv[1], json.loads(sys.argv[2])
    warnings.simplefilter("error", UserWarning)
    warnings.filterwarnings("ignore", module="torch")
    dist.init_process_group("gloo")
    answers = {each["name"]: run(directory, **each) for each in runs}
    with open(f"{directory}/{dist.get_world_size()}-{dist.get_rank()}.json", "w") as file:
        json.dump(answers, file)
    dist.barrier()
    os._exit(0)  # not by the interpreter's end, where a thread of gloo may abort the process


if __name__ == "__main__":
    main()
