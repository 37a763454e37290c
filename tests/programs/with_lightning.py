"""A Lightning run on two CPU ranks, or one, that saves after batches and resumes. Arguments: index, results, devices.

Rules: the results name what each rank's training steps received, as ``[epoch, indices]``; a run is one Trainer.
"""

import json
import os
import sys

import lightning
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import wids

INDEX, RESULTS, DEVICES = sys.argv[1], sys.argv[2], int(sys.argv[3])
EPOCHS, BATCH = 3, 2


def as_tensors(sample):
    """Number and input of a sample."""
    return {"index": sample["__index__"], "x": torch.tensor([float(sample[".cls"].read())])}


class Stateful(lightning.LightningDataModule):
    """Lightning keeps the state of a loader that has one."""

    def __init__(self, workers):
        super().__init__()
        self.workers = workers

    def train_dataloader(self):
        dataset = wids.ShardListDataset(INDEX, transformations=as_tensors)
        self.sampler = wids.DistributedChunkedSampler(dataset, chunksize=2)
        self.sampler.set_epoch(self.trainer.current_epoch)
        return StatefulDataLoader(dataset, sampler=self.sampler, batch_size=BATCH, num_workers=self.workers)


class Plain(lightning.LightningDataModule):
    """The module keeps the sampler's state."""

    state = None

    def __init__(self, workers):
        super().__init__()
        self.workers = workers

    def train_dataloader(self):
        dataset = wids.ShardListDataset(INDEX, transformations=as_tensors)
        self.sampler = wids.DistributedChunkedSampler(dataset, chunksize=2)
        if self.state is not None:
            self.sampler.load_state_dict(self.state)
        return DataLoader(dataset, sampler=self.sampler, batch_size=BATCH, num_workers=self.workers)

    def state_dict(self):
        batches = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready  # of the epoch, before a resume too
        resumed = self.state is not None and self.trainer.current_epoch == self.state["epoch"]
        return self.sampler.state_dict(consumed=batches * BATCH - (self.state["yielded"] if resumed else 0))

    def load_state_dict(self, state):
        self.state = state


class Model(lightning.LightningModule):
    """One weight; it notes what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.steps = []

    def training_step(self, batch, batch_idx):
        self.steps.append([self.trainer.current_epoch, batch["index"].tolist()])
        return ((self.layer(batch["x"]) - 2 * batch["x"]) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5)


class Saving(lightning.Callback):
    """Checkpoints after each batch and each epoch, or some of them."""

    def __init__(self, name, stop_at=None):
        self.name, self.stop_at = name, stop_at

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        trainer.save_checkpoint(f"{RESULTS}/{self.name}-{trainer.current_epoch}-{batch_idx + 1}.ckpt")

    def on_train_epoch_end(self, trainer, model):
        trainer.save_checkpoint(f"{RESULTS}/{self.name}-{len(model.steps) and model.steps[-1][0]}-end.ckpt")


def fit(kind, workers, *, resume=None, save=None):
    """One run; what this rank's steps had, and what the sampler in the loader was."""
    module, model = kind(workers), Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=DEVICES,
        strategy="ddp" if DEVICES > 1 else "auto",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Saving(save)] if save else [],
    )
    trainer.fit(model, datamodule=module, ckpt_path=resume and f"{RESULTS}/{resume}.ckpt")
    loader = trainer.train_dataloader
    sampler = loader.sampler
    return {
        "steps": model.steps,
        "left alone": sampler is module.sampler and type(sampler) is wids.DistributedChunkedSampler,
        "rank": [sampler.rank, sampler.num_replicas, trainer.global_rank, trainer.world_size],
        "len": [len(sampler), len(loader), trainer.num_training_batches],
        "epoch": sampler.epoch,
    }


def main():
    """All runs of the test, in one launch, which is what costs."""
    answers = {}
    for kind in (Stateful, Plain):
        for workers in (0, 2):
            name = f"{kind.__name__}-{workers}"
            if DEVICES > 1:
                answers[name] = fit(kind, workers, save=name)
            for at in sys.argv[4:]:
                try:
                    answers[f"{name}-{at}"] = fit(kind, workers, resume=f"{name}-{at}", save=DEVICES>1 and f"{name}-{at}")
                except Exception as e:
                    import traceback; traceback.print_exc()
                    answers[f"{name}-{at}"] = None
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    with open(f"{RESULTS}/{DEVICES}-{rank}.json", "w") as file:
        json.dump(answers, file)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
    os._exit(0)


if __name__ == "__main__":
    main()
