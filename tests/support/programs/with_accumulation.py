"""A program for each row of "Which trainers" with gradient accumulation: 13 batches an epoch, 4 for an optimizer step.
On two ranks an epoch has 7.

Each is called with the checkpoint to resume from and a directory. It saves a checkpoint after each optimizer step in a
file or folder of the directory that has the number of the step, and returns what it had since it began: the indices of
each batch; and at its end the optimizer steps, the weights and what else the trainer counts.

Arguments: the name of a program, and a directory for its checkpoints and the answers of each rank.
"""

import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import wids

SAMPLES, BATCH, ACCUMULATED, EPOCHS, EVALUATED = 50, 4, 4, 2, 49
RATE, MOMENTUM = 0.1, 0.9


@dataclass
class Found:
    """What a run had."""

    batches: list[list[int]] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)


def make_loader(kind=DataLoader, *, samples=SAMPLES, collate=torch.tensor, workers=0, **order):
    """A fresh loader of this rank."""
    data = list(range(samples))
    sampler = wids.DistributedChunkedSampler(data, **{"chunksize": 6, "window": 2, **order})
    return kind(data, batch_size=BATCH, sampler=sampler, collate_fn=collate, num_workers=workers)


class Net(torch.nn.Module):
    """A model that notes what it is given."""

    main_input_name = "x"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.found = torch.nn.Linear(1, 1), Found()

    def forward(self, x):
        """Loss of a batch of indices: (n,); in an evaluation these."""
        if not self.training:
            return {"logits": x}
        self.found.batches.append(x.tolist())
        return {"loss": (self.layer(x.float()[:, None] / SAMPLES) ** 2).mean()}

    def end(self, **counters):
        """What it had, with the counters of the trainer."""
        self.found.weights = [value.item() for value in self.layer.parameters()]
        self.found.counters = counters
        return self.found


def make_optimizer(model):
    """Optimizer, and a scheduler of a rate that differs at each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


class Training:
    """The state of a loop of one's own, and its optimizer step."""

    def __init__(self, loader, resume, directory):
        self.model, self.loader, self.directory = Net(), loader, directory
        self.optimizer, self.scheduler = make_optimizer(self.model)
        self.epoch = self.steps = self.batches = 0
        if resume is not None:
            saved = torch.load(resume)
            for name in ("model", "optimizer", "scheduler", "loader"):
                getattr(self, name).load_state_dict(saved[name])
            self.epoch, self.steps, self.batches = saved["counters"]

    def step(self, *, epoch, batches):
        """Step, and save: the epoch, and how many batches of it are behind."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.steps += 1
        saved = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler", "loader")}
        torch.save({**saved, "counters": (epoch, self.steps, batches)}, self.directory / str(self.steps))

    def train(self, batch):
        """Accumulate the gradients of a batch."""
        self.model(batch)["loss"].backward()

    def end(self):
        """What the run had."""
        return self.model.end(steps=self.steps, rate=self.scheduler.get_last_lr())


def loop(resume: Path | None, directory: Path, make=lambda: wids.resumable(make_loader(workers=2))) -> Found:
    """A loop of one's own; the loader says how many batches of the epoch a resumed run has behind it."""
    with make() as loader:
        training = Training(loader, resume, directory)
        for epoch in range(training.epoch, EPOCHS):
            loader.set_epoch(epoch)
            for count, batch in enumerate(loader, 1 + loader.batches_done):
                training.train(batch)
                if count % ACCUMULATED == 0 or count == len(loader):
                    training.step(epoch=epoch, batches=count)
    return training.end()


def torchtitan(resume: Path | None, directory: Path) -> Found:
    """As torchtitan trains: by steps, with one iterator from which each step draws its batches, and a last `close`."""
    loader = wids.resumable(make_loader(epochs=None))
    training = Training(loader, resume, directory)
    batches = iter(loader)
    while training.steps < 8:
        for _ in range(ACCUMULATED):
            training.train(next(batches))
        training.step(epoch=0, batches=0)
    loader.close()
    return training.end()


def stateful(resume: Path | None, directory: Path) -> Found:
    """Torchdata's loader, which has its own state, and no count of batches: the loop keeps it."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = make_loader(StatefulDataLoader)
    training = Training(loader, resume, directory)
    done = training.batches
    for epoch in range(training.epoch, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for count, batch in enumerate(loader, 1 + done):
            training.train(batch)
            if count % ACCUMULATED == 0 or count == len(loader):
                training.step(epoch=epoch, batches=count)
        done = 0
    return training.end()


def resumable_stateful(resume: Path | None, directory: Path) -> Found:
    """Torchdata's loader that is resumable, in a loop of one's own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return loop(resume, directory, lambda: wids.resumable(make_loader(StatefulDataLoader)))


def lightning_trainer(resume: Path | None, directory: Path, *, is_module: bool = False) -> Found:
    """Lightning's Trainer, with a resumable loader, or with the data module."""
    import lightning

    import wids.lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.steps = Net(), 0

        def training_step(self, batch, _):
            return self.net(batch)["loss"]

        def configure_optimizers(self):
            optimizer, scheduler = make_optimizer(self.net)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

        def on_train_batch_end(self, *_):
            if self.trainer.global_step > self.steps:
                self.steps = self.trainer.global_step
                self.trainer.save_checkpoint(directory / str(self.steps))

        def on_train_start(self):
            self.steps = self.trainer.global_step

    module, options = Module(), ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    order = {"chunksize": 6, "window": 2}
    data = wids.lightning.DataModule(list(range(SAMPLES)), batch_size=BATCH, sampler=order, collate_fn=torch.tensor)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        accumulate_grad_batches=ACCUMULATED,
        **dict.fromkeys(options, False),
    )
    trainer.fit(module, data if is_module else wids.resumable(make_loader()), ckpt_path=resume)
    epochs = trainer.fit_loop.epoch_progress.total
    return module.net.end(
        steps=trainer.global_step,
        epochs=[trainer.current_epoch, epochs.completed],
        batches=trainer.fit_loop.total_batch_idx,
        rate=trainer.lr_scheduler_configs[0].scheduler.get_last_lr(),
    )


def lightning_module(resume: Path | None, directory: Path) -> Found:
    """`wids.lightning.DataModule`."""
    return lightning_trainer(resume, directory, is_module=True)


def fabric(resume: Path | None, directory: Path) -> Found:
    """Lightning's Fabric, whose loader is made resumable."""
    import lightning

    run = lightning.Fabric(accelerator="cpu", devices=1)
    loader = wids.resumable(run.setup_dataloaders(make_loader()))
    net = Net()
    optimizer, scheduler = make_optimizer(net)
    model, optimizer = run.setup(net, optimizer)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, "epoch": 0, "steps": 0}
    if resume is not None:
        run.load(resume, state)
    for epoch in range(state["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        state["epoch"] = epoch
        for count, batch in enumerate(loader, 1 + loader.batches_done):
            run.backward(model(batch)["loss"])
            if count % ACCUMULATED == 0 or count == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                state["steps"] += 1
                run.save(directory / str(state["steps"]), state)
    return net.end(steps=state["steps"], rate=scheduler.get_last_lr())


def hugging_face(resume: Path | None, directory: Path, **options: Any) -> Found:
    """Hugging Face's Trainer with `wids.hf.ResumeCallback`."""
    import transformers

    import wids.hf

    def collate(batch):
        return {"x": torch.tensor(batch)}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return wids.resumable(make_loader(collate=collate))

        def floating_point_ops(self, inputs):
            return len(inputs["x"])

    args = transformers.TrainingArguments(
        output_dir=str(directory),
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        num_train_epochs=EPOCHS,
        gradient_accumulation_steps=ACCUMULATED,
        learning_rate=RATE,
        lr_scheduler_type="linear",
        save_steps=1,
        logging_steps=1,
        include_num_input_tokens_seen="all",
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    net = Net()
    trainer = Trainer(net, args, callbacks=[wids.hf.ResumeCallback()])
    trainer.train(resume_from_checkpoint=resume and str(resume))
    loader = wids.resumable(make_loader(samples=EVALUATED, collate=collate, shuffle=False))
    evaluated = trainer.evaluation_loop(loader, "evaluation", prediction_loss_only=False).predictions.tolist()
    state = trainer.state
    told = ("loss", "grad_norm", "learning_rate", "epoch", "step", "num_input_tokens_seen")
    return net.end(
        steps=state.global_step,
        epoch=state.epoch,
        tokens=state.num_input_tokens_seen,
        flos=state.total_flos,
        evaluated=evaluated,
        log=[{name: entry[name] for name in told} for entry in state.log_history if "loss" in entry],
    )


def accelerated(resume: Path | None, directory: Path) -> Found:
    """accelerate, with the lines of the README."""
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    loader = accelerate.data_loader.prepare_data_loader(
        make_loader(), device=accelerator.device, put_on_device=True, num_processes=1, process_index=0
    )
    loader = wids.resumable(loader)
    net = Net()
    model, optimizer, scheduler = accelerator.prepare(net, *make_optimizer(net))
    accelerator.register_for_checkpointing(loader)
    steps = first = 0
    if resume is not None:
        accelerator.load_state(str(resume))
        steps, first = json.loads((resume / "counters.json").read_text())
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch)["loss"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                steps += 1
                accelerator.save_state(str(directory / str(steps)))
                (directory / str(steps) / "counters.json").write_text(json.dumps([steps, epoch]))
    return net.end(steps=steps, rate=scheduler.get_last_lr())


def ray_train(resume: Path | None, directory: Path) -> Found:
    """Ray Train, in this process: a loop of one's own with the loader that it has prepared."""
    import ray.train.torch

    ended, prepare = [], ray.train.torch.prepare_data_loader

    def train():
        ended.append(loop(resume, directory, lambda: wids.resumable(prepare(make_loader()))))

    local = ray.train.ScalingConfig(num_workers=0)
    kept = ray.train.RunConfig(storage_path=str(directory))
    ray.train.torch.TorchTrainer(train, scaling_config=local, run_config=kept).fit()
    return ended[0]


PROGRAMS = {
    program.__name__: program
    for program in (
        *(loop, torchtitan, stateful, resumable_stateful, fabric, accelerated, ray_train),
        *(lightning_trainer, lightning_module, hugging_face),
    )
}


def main(name: str, root: Path) -> None:
    """Write what a run had, and what runs had that were resumed after each of its steps, and after two of them."""
    program, checkpoint = PROGRAMS[name], "checkpoint-{}" if name == "hugging_face" else "{}"

    def run(to: str, of: str | None = None, step: int = 0) -> dict[str, Any]:
        (root / to).mkdir(exist_ok=True)
        return asdict(program(None if of is None else root / of / checkpoint.format(step), root / to))

    whole = run("whole")
    steps = range(1, whole["counters"]["steps"])
    once = {step: run(f"after {step}", "whole", step) for step in steps}
    twice = {step: run(f"after {step} again", f"after {step - 2}", step) for step in steps[2:]}
    (root / f"{os.environ.get('RANK', '0')}.json").write_text(
        json.dumps({"whole": whole, "once": once, "twice": twice})
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the trainers' own
    main(sys.argv[1], Path(sys.argv[2]))
