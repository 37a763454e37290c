"""Two epochs of DDP training under torchrun, without join(). Arguments: index, results, state file, step to die at.

The state file, if it is there, is resumed from. A run that is to die saves one in epoch 1 after so many steps, and its
rank 1 is killed in the step after.
"""

import json
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import wids
from tests.support.programs.samples import as_tensors

INDEX, RESULTS, STATE, DIE_AFTER = *sys.argv[1:4], int(sys.argv[4])
BATCH = 4


def main():
    """Train, gather what all ranks had, and write it down."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dataset = wids.ShardListDataset(INDEX, transformations=as_tensors)
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=5)
    loader = DataLoader(dataset, sampler=sampler, batch_size=BATCH)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    first = 0
    if os.path.exists(STATE):
        with open(STATE) as file:
            checkpoint = json.load(file)
        first = checkpoint["epoch"]
        sampler.load_state_dict(checkpoint["sampler"])
    epochs = {}
    for epoch in range(first, 2):
        sampler.set_epoch(epoch)
        seen = epochs[epoch] = []
        for step, batch in enumerate(loader, 1):
            # The gradients are averaged over all ranks: one with a step more would wait for the others for ever.
            loss = ((model(batch["x"]) - 2 * batch["x"]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(batch["index"].tolist())
            if epoch == 1 and step == DIE_AFTER:
                write(f"before-{rank}", epochs)
                state = sampler.state_dict(consumed=step * BATCH)
                dist.barrier()
                if rank == 0:
                    with open(STATE, "w") as file:
                        json.dump({"epoch": epoch, "sampler": state}, file)
                dist.barrier()
            elif epoch == 1 and step == DIE_AFTER + 1 and DIE_AFTER and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    gathered = [None] * world
    dist.all_gather_object(gathered, epochs)
    write(f"{world}-{rank}", {"gathered": gathered, "len": [len(sampler), len(loader)]})
    dist.barrier()
    # Not by the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
    os._exit(0)


def write(name, value):
    """Into a file of the results."""
    with open(os.path.join(RESULTS, f"{name}.json"), "w") as file:
        json.dump(value, file)


if __name__ == "__main__":
    main()
