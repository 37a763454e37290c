"""Lightning runs on two CPU ranks, or one, that save after batches and resume; for the program with_lightning.py.

Rules: the results name what each rank's training steps received, as ``[epoch, indices]``; a run is one Trainer.
"""

import json
import multiprocessing
import os
import sys

import lightning
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import wids
from tests.support.programs.samples import as_tensors

INDEX, RESULTS, DEVICES = sys.argv[1], sys.argv[2], int(sys.argv[3])
EPOCHS, BATCH = 3, 2


def workers(count):
    """How a loader starts its workers: not by forking this process, for Python 3.11 hangs then if gloo is active."""
    return {"num_workers": count, "multiprocessing_context": "forkserver"} if count else {}


class Data(lightning.LightningDataModule):
    """The training set; ``sampler``: that of its last loader."""

    def __init__(self, workers):
        super().__init__()
        self.workers = workers

    def make_dataset(self):
        """The dataset, and its sampler."""
        dataset = wids.ShardListDataset(INDEX, transformations=as_tensors)
        self.sampler = wids.DistributedChunkedSampler(dataset, chunksize=2)
        return dataset


class Stateful(Data):
    """Lightning keeps the state of a loader that has one."""

    def train_dataloader(self):
        """The loader of the training set."""
        dataset = self.make_dataset()
        # At an epoch's end Lightning restores no loader, and makes its iterator before it calls set_epoch.
        self.sampler.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
        return StatefulDataLoader(dataset, sampler=self.sampler, batch_size=BATCH, **workers(self.workers))


class Plain(Data):
    """The module keeps the sampler's state."""

    state = None

    def train_dataloader(self):
        """The loader of the training set."""
        dataset = self.make_dataset()
        epoch = self.trainer.fit_loop.epoch_progress.current.processed
        if self.state is not None and self.state["epoch"] == epoch:
            self.sampler.load_state_dict(self.state)
        else:
            self.sampler.set_epoch(epoch)
        return DataLoader(dataset, sampler=self.sampler, batch_size=BATCH, **workers(self.workers))

    def state_dict(self):
        """What Lightning keeps."""
        batches = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready  # of the epoch, before a resume too
        return self.sampler.state_dict(yielded=batches * BATCH)

    def load_state_dict(self, state):
        """Before train_dataloader is called."""
        self.state = state


class Model(lightning.LightningModule):
    """One weight; it notes what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        """Note the batch."""
        self.steps.append([self.trainer.current_epoch, batch["index"].tolist()])
        return ((self.layer(batch["x"]) - 2 * batch["x"]) ** 2).mean()

    def configure_optimizers(self):
        """Any."""
        return torch.optim.SGD(self.parameters(), lr=1e-5)


class Saving(lightning.Callback):
    """A checkpoint after each batch and each epoch."""

    def __init__(self, name):
        self.name = name

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        """Save in mid-epoch."""
        trainer.save_checkpoint(f"{RESULTS}/{self.name}-{trainer.current_epoch}-{batch_idx + 1}.ckpt")

    def on_train_epoch_end(self, trainer, model):
        """Save at the end."""
        trainer.save_checkpoint(f"{RESULTS}/{self.name}-{trainer.current_epoch}-end.ckpt")


def fit(name, kind, workers, resume=None):
    """One run, from a checkpoint if one is named; what this rank's steps had, and what became of the sampler."""
    module, model = {"plain": Plain, "stateful": Stateful}[kind](workers), Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=DEVICES,
        strategy="ddp" if DEVICES > 1 else "auto",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # On another number of devices the epoch resumed in has another length than those after it.
        reload_dataloaders_every_n_epochs=int(DEVICES == 1),
        callbacks=[Saving(name)],
    )
    trainer.fit(model, datamodule=module, ckpt_path=resume and f"{RESULTS}/{resume}.ckpt")
    sampler = trainer.train_dataloader.sampler
    return {
        "steps": model.steps,
        "left alone": sampler is module.sampler and type(sampler) is wids.DistributedChunkedSampler,
        "rank": [sampler.rank, sampler.num_replicas],
        "len": [len(sampler), len(trainer.train_dataloader), trainer.num_training_batches],
        "epoch": sampler.epoch,
    }


def main():
    """All runs of a test in one launch, for a launch is what costs."""
    multiprocessing.set_forkserver_preload(["torchdata.stateful_dataloader", "wids.dataset"])
    answers = {run[0]: fit(*run) for run in json.loads(sys.argv[4])}
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    with open(f"{RESULTS}/{DEVICES}-{rank}.json", "w") as file:
        json.dump(answers, file)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
    os._exit(0)
