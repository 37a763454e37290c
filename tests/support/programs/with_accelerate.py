"""Reads epochs with accelerate on two CPU processes. Arguments: index, directory for the results.

The results name the indices that this rank's loop received, for each way of handing a loader to accelerate.
"""

import json
import os
import sys
import warnings

import accelerate
import torch
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

import wids
from tests.support.programs.samples import as_marked, as_tensors
from wids.errors import InputError

INDEX, RESULTS = sys.argv[1:]
BATCH = 2


def make():
    """(sampler, plain loader)."""
    dataset = wids.ShardListDataset(INDEX, transformations=as_tensors)
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=2)
    return sampler, DataLoader(dataset, sampler=sampler, batch_size=BATCH)


def adopt(accelerator, loader):
    """The loader with accelerate's devices and end-of-epoch marks, and without its sharding."""
    return prepare_data_loader(loader, device=accelerator.device, num_processes=1, process_index=0, put_on_device=True)


def train(accelerator, sampler, loader, epochs, *, saved=None, save_at=None):
    """Indices of each epoch, and the state at ``save_at``, which is (epoch, batches)."""
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-5))
    seen, state = {}, None
    if saved is not None:
        sampler.load_state_dict(saved)
    for epoch in epochs:
        # Of a prepared loader, not of the sampler: at each iteration it names the epochs that it has counted itself.
        (loader if hasattr(loader, "set_epoch") else sampler).set_epoch(epoch)
        seen[epoch] = []
        for batches, batch in enumerate(loader, 1):
            with accelerator.accumulate(model):
                loss = ((model(batch["x"]) - 2 * batch["x"]) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen[epoch] += batch["index"].tolist()
            if (epoch, batches) == save_at:
                state = sampler.state_dict(consumed=batches * BATCH)
    return seen, state


def train_resumable(name):
    """As `train`, with a loader whose state accelerate keeps: (epochs, those after a resume in epoch 1)."""
    answers = []
    for resumes in (False, True):
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        _, loader = make()
        if name == "resumable":
            whole = wids.resumable(loader)
            loader = accelerator.prepare(whole)
            assert loader is whole
        else:
            loader = wids.resumable(adopt(accelerator, loader))
        accelerator.register_for_checkpointing(loader)
        if resumes:
            accelerator.wait_for_everyone()  # the first rank may still write the checkpoint
            accelerator.load_state(f"{RESULTS}/{name}")
        seen = {}
        for epoch in range(int(resumes), 3):
            loader.set_epoch(epoch)
            seen[epoch] = []
            for batch in loader:
                seen[epoch] += batch["index"].tolist()
                if not resumes and (epoch, len(seen[epoch])) == (1, 2 * BATCH):
                    accelerator.save_state(f"{RESULTS}/{name}")
        answers.append(seen)
    return answers


def refused(accelerator):
    """The messages of what would read samples twice or never."""
    messages = []
    _, loader = make()
    divided = [accelerator.prepare(loader), prepare_data_loader(loader, dispatch_batches=True, put_on_device=True)]
    whole = wids.resumable(loader)
    calls = [*((wids.resumable, each) for each in divided), (accelerate.skip_first_batches, whole, 2)]
    for call, *given in calls:
        try:
            call(*given)
        except InputError as error:
            messages.append(str(error))
    return messages


def skipped(accelerator):
    """What comes of a loader from which batches are skipped that its state has behind it, twice, and its states."""
    seen = []
    for adapt in (wids.resumable, lambda loader: wids.resumable(adopt(accelerator, loader))):
        first, second = (adapt(make()[1]) for _ in range(2))
        for _ in zip(range(2), first, strict=False):
            pass
        second.load_state_dict(first.state_dict())
        rest = accelerator.skip_first_batches(second, 2)
        counts = [(batch["index"].tolist(), second.batches_done) for batch in rest]
        seen.append({"rest": counts, "next": [batch["index"].tolist() for batch in rest], "len": len(rest)})
    return seen


def gathered(accelerator, tail):
    """(index, whether it counts) of each sample that all ranks have in an evaluation, with the README's lines."""
    dataset = wids.ShardListDataset(INDEX, transformations=as_marked)
    sampler = wids.DistributedChunkedSampler(dataset, shuffle=False, tail=tail)
    loader = wids.resumable(adopt(accelerator, DataLoader(dataset, sampler=sampler, batch_size=4)))
    found = []
    for batch in loader:
        indices, marks = accelerator.gather_for_metrics((batch["index"], batch["valid"]))
        found += zip(indices.tolist(), marks.tolist(), strict=True)
    return found


def main():
    """Each way in turn."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    answer = {}

    sampler, loader = make()
    twice = accelerator.prepare(loader)
    twice.set_epoch(0)
    answer["prepared"] = [len(twice), [i for batch in twice for i in batch["index"].tolist()]]

    for name in ("own", "adopted"):
        sampler, loader = make()
        used = loader if name == "own" else adopt(accelerator, loader)
        answer[name], state = train(accelerator, sampler, used, range(3), save_at=(1, 2))
        sampler, loader = make()
        used = loader if name == "own" else adopt(accelerator, loader)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # that the rest of an epoch is left out
            answer[name + ", resumed"], _ = train(accelerator, sampler, used, range(1, 3), saved=state)
        answer[name + ", len"] = [len(sampler), len(used)]

    for name in ("resumable", "resumable, adopted"):
        answer[name], answer[name + ", resumed"] = train_resumable(name)
    answer["refused"] = refused(accelerator)
    answer["skipped"] = skipped(accelerator)
    answer["gathered"] = {tail: gathered(accelerator, tail) for tail in ("mask", "pad")}

    # What becomes of a resume without set_epoch: accelerate's own count begins at 0 and is named at each iteration.
    sampler, loader = make()
    used = adopt(accelerator, loader)
    sampler.load_state_dict(state)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iter(used))
    answer["unnamed"] = [str(w.message) for w in caught if "is skipped" in str(w.message)]
    # Also shard-exact gathering over all ranks.
    answer["rank"] = [accelerator.process_index, accelerator.num_processes, sampler.rank, sampler.num_replicas]
    with open(f"{RESULTS}/{accelerator.process_index}.json", "w") as file:
        json.dump(answer, file)
    accelerator.wait_for_everyone()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
