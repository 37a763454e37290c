"""Runs of Lightning's Trainer with `wids.lightning.DataModule` on CPU ranks, for with_lightning_module.py and tests.

A run is a dict: ``name``; ``kind``, one of `KINDS`; ``resume``, the path of a checkpoint; ``kill``, [epoch, batches],
after which the process is killed. What a rank's steps received is noted as ``[epoch, indices]``.
"""

import json
import multiprocessing
import os
import signal
import sys
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import default_collate

import wids.lightning
from tests.support.programs.samples import as_marked

EPOCHS, BATCH = 3, 2


def collate_packs(samples):
    """A batch of packs, of which validation has none: with the pieces."""
    return {**default_collate(samples), "pieces": [list(sample["__piece__"]) for sample in samples]}


# The epochs of one rank have 15, 13 and 15 batches.
BUCKETS = {
    "batches": {"lengths": [1 + k % 5 for k in range(21)], "max_tokens": 9, "block": 2},
    "sampler": {"chunksize": 2, "seed": 3},
}
PACKS = {
    "packs": {"lengths": [1 + k % 5 for k in range(21)], "pack_tokens": 7, "collate_fn": collate_packs},
    "sampler": {"chunksize": 2, "seed": 3},
}
# Trainer's options, the module's, and the dataset's kind.
KINDS = {
    "plain": ({}, {}, "one"),
    "workers": (
        {"max_epochs": 2, "limit_val_batches": 0},
        {"num_workers": 2, "multiprocessing_context": "forkserver"},
        "one",
    ),
    "mixture": ({}, {}, "mixture"),
    "nominal": ({}, {"sampler": {"chunksize": 2, "epoch_size": 17}}, "one"),
    "validating": ({"val_check_interval": 0.3}, {}, "one"),
    "accumulating": ({"accumulate_grad_batches": 2}, {}, "one"),
    "steps": ({"max_steps": 25, "max_epochs": -1}, {}, "one"),
    "limited": ({"limit_train_batches": 4}, {}, "one"),
    "dropping": ({}, {"drop_last": True}, "one"),
    "endless": ({"max_steps": 25, "max_epochs": -1}, {"sampler": {"epochs": None}}, "one"),
    "buckets": ({}, BUCKETS, "one"),
    "buckets, workers": (
        {"limit_val_batches": 0},
        {"num_workers": 1, "multiprocessing_context": "forkserver", **BUCKETS},
        "one",
    ),
    "buckets, limited": ({"limit_train_batches": 5}, BUCKETS, "one"),
    "buckets, validating": ({"val_check_interval": 0.3, "accumulate_grad_batches": 2}, BUCKETS, "one"),
    "buckets, endless": (
        {"max_steps": 25, "max_epochs": -1},
        {**BUCKETS, "sampler": {"chunksize": 2, "epochs": None}},
        "one",
    ),
    "packs": ({}, PACKS, "one"),
    "scheduled": ({}, {}, "one"),  # the scheduler asks for the number of steps before the checkpoint is read
}


def as_piece(sample):
    """As marked, with the piece, if it is one."""
    return {**as_marked(sample), **{name: value for name, value in sample.items() if name == "__piece__"}}


def make_module(index, kind="plain", **options):
    """The data module of a kind."""
    _, own, what = KINDS[kind]

    def dataset():
        return wids.ShardListDataset(index, transformations=as_piece if kind == "packs" else as_marked)

    train = wids.mix({"a": (dataset(), 0.7), "b": (dataset(), 0.3)}) if what == "mixture" else dataset()
    found = {"batch_size": BATCH, "sampler": {"chunksize": 2}, **own, **options}
    return wids.lightning.DataModule(train, dataset(), predict_dataset=dataset(), **found)


class Model(lightning.LightningModule):
    """One weight; it notes what it is given."""

    def __init__(self, *, is_scheduled=False):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.is_scheduled = is_scheduled
        self.steps, self.validated = [], []

    def training_step(self, batch, _):
        """Note the batch."""
        self.steps.append([self.current_epoch, batch["index"].tolist(), *batch.get("pieces", [])])
        return (self.layer(batch["x"]) ** 2).mean()

    def on_validation_start(self):
        """Begin a list."""
        self.validated.append([])

    def validation_step(self, batch):
        """Note the samples that count."""
        self.validated[-1] += batch["index"][batch["valid"]].tolist()

    def predict_step(self, batch):
        """The indices."""
        return batch["index"]

    def configure_optimizers(self):
        """Any."""
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-9)
        if not self.is_scheduled:
            return optimizer
        total = self.trainer.estimated_stepping_batches
        return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-9, total_steps=total)]


class Kill(lightning.Callback):
    """The end of a machine; Lightning saves after this, so the batch is in no checkpoint."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        """Without any clean-up."""
        if [trainer.current_epoch, batch_idx + 1] == self.at:
            model.note()
            os.kill(os.getpid(), signal.SIGKILL)


class Save(lightning.Callback):
    """A checkpoint after each batch, validation and epoch: NAME-EPOCH-WHEN, noting how many steps were done."""

    def __init__(self, path):
        self.path, self.done = path, {}

    def save(self, trainer, model, when):
        """Save, and note how much was done."""
        path = f"{self.path}-{trainer.current_epoch}-{when}.ckpt"
        self.done[path] = len(model.steps)
        trainer.save_checkpoint(path)

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        """In mid-epoch."""
        self.save(trainer, model, batch_idx + 1)

    def on_validation_end(self, trainer, model):
        """Within an epoch, and at its end."""
        if not trainer.sanity_checking:
            self.save(trainer, model, f"val{len(model.steps)}")

    def on_train_epoch_end(self, trainer, model):
        """At its end."""
        self.save(trainer, model, "end")


def make_trainer(kind="plain", *, devices=1, callbacks=(), **options):
    """A trainer without logs."""
    return lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        logger=False,
        enable_checkpointing=any(isinstance(callback, ModelCheckpoint) for callback in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"max_epochs": EPOCHS, **KINDS[kind][0], **options},
    )


def run(index, directory, devices, *, name, kind="plain", resume=None, kill=None):
    """One run: what this rank had."""
    model = Model()
    rank = int(os.environ.get("RANK", "0"))

    def note():
        with open(f"{directory}/{name}-{rank}.json", "w") as file:
            json.dump(model.steps, file)

    model.note = note
    saving = ModelCheckpoint(f"{directory}/{name}", "{epoch}-{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = make_trainer(kind, devices=devices, callbacks=[saving, *([Kill(kill)] if kill else [])])
    module = make_module(index, kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, datamodule=module, ckpt_path=resume)
    predicted = trainer.predict(model, datamodule=module)
    return {
        "steps": model.steps,
        "validated": model.validated[1:],  # not the two batches that Lightning tries first
        "predicted": torch.cat(predicted).tolist(),
        "warnings": [str(warning.message) for warning in caught],
        "reloads": trainer.reload_dataloaders_every_n_epochs,
    }


def main():
    """All runs of a launch, one of which may be killed: the last."""
    multiprocessing.set_forkserver_preload(["wids.dataset"])
    index, directory, devices, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    answers = {}
    for options in runs:
        answers[options["name"]] = run(index, directory, devices, **options)
        with open(f"{directory}/{devices}-{os.environ.get('RANK', '0')}-{runs[0]['name']}.json", "w") as file:
            json.dump(answers, file)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by the interpreter's end: a gloo thread that then frees the last tensors of a collective aborts the process.
    os._exit(0)
