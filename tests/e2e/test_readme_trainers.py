"""The Python that READMEs show for trainers runs as it stands, with the trainer itself.

The trainers are imported where they are used: with them a process is twice as large, and takes twice as long to fork.
"""

import shutil

import pytest
import torch

import wids
from tests.support.readme_code import at, execute, write_images

pytestmark = pytest.mark.outside


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, own_cache):
    """Paths of the examples are relative."""
    monkeypatch.chdir(tmp_path)


def number(sample):
    """Its index, as the whole sample."""
    return torch.tensor([float(sample["__index__"])])


def make_trainer():
    """A model that notes what it is given, and a trainer that saves in the middle of the second epoch."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            self.seen += batch.flatten().int().tolist()
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    class Saving(lightning.Callback):
        def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (1, 1):  # after two of four batches
                trainer.save_checkpoint("middle.ckpt")

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Saving()],
    )
    return Model(), trainer


@pytest.mark.filterwarnings("ignore")  # Lightning's own: of its clients' releases, of few workers
def test_lightning(tmp_path):
    """Two epochs; a checkpoint in the second one is followed by what was left of it."""
    write_images(tmp_path, samples=64)
    write_images(tmp_path / "val", samples=11)
    (block,) = at(".docs/guides/lightning.md#train-with-lightning")
    replaced = {"num_workers=4": "num_workers=0", '"val.json"': '"val/train.json"'}

    def fit(checkpoint=None):
        model, trainer = make_trainer()
        execute(block, replaced, wids=wids, make_sample=number, model=model, trainer=trainer, checkpoint=checkpoint)
        return model.seen

    seen = fit()
    assert [sorted(seen[:128]), sorted(seen[128:])] == [list(range(128))] * 2
    assert fit("middle.ckpt") == seen[128 + 64 :]


@pytest.mark.filterwarnings("ignore")  # the Trainer's own
def test_the_trainer_of_hugging_face(tmp_path, monkeypatch):
    """Three epochs; from a checkpoint in the second one comes what was left of it, and the third.

    The run is stopped once just when the Trainer's own files are there: no other is needed.
    """
    import transformers

    dataset = wids.ShardListDataset(write_images(tmp_path, samples=64)).add_transform(number)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, x):
            self.seen += x.flatten().int().tolist()
            return {"loss": (self.layer(x) ** 2).mean()}

    options = "save_steps=1, gradient_accumulation_steps=3, use_cpu=True, disable_tqdm=True, report_to=[]"

    def fit(resume, model):
        execute(
            at(".docs/guides/hugging-face.md#the-trainer")[0],
            {"save_steps=1000, gradient_accumulation_steps=4": options},
            wids=wids,
            torch=torch,
            transformers=transformers,
            dataset=dataset,
            model=model,
            collate=lambda batch: {"x": torch.stack(batch)},
            resume=resume,
        )
        return model.seen

    whole = fit(None, Model())
    assert [sorted(whole[k : k + 128]) for k in (0, 128, 256)] == [list(range(128))] * 3
    assert fit("out/checkpoint-3", Model()) == whole[7 * 32 :]  # steps of three batches and of one

    class StoppedError(Exception):
        pass

    def stop(handler, args, state, control):
        if state.global_step == 5:
            raise StoppedError
        return control

    shutil.rmtree("out")
    with monkeypatch.context() as patch:
        patch.setattr(transformers.trainer_callback.CallbackHandler, "on_save", stop)
        with pytest.raises(StoppedError):
            fit(None, Model())
    assert fit("out/checkpoint-5", Model()) == whole[11 * 32 :]


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_fabric(tmp_path):
    """One epoch; from a state in its middle comes what was left of it, and the next."""
    import lightning

    dataset = wids.ShardListDataset(write_images(tmp_path, samples=64)).add_transform(number)
    (block,) = at(".docs/guides/resume.md#fabric")
    received = []
    for resume in (False, True):
        seen = []

        def train_step(batch, seen=seen):
            seen += batch.flatten().int().tolist()

        names = execute(
            block,
            {"    train_step(batch)": "    train_step(batch)\n    if len(state) == 1: break"},
            fabric=lightning.Fabric(accelerator="cpu", devices=1),
            wids=wids,
            loader=torch.utils.data.DataLoader(dataset, batch_size=32, sampler=wids.DistributedChunkedSampler(dataset)),
            resume=resume,
            train_step=train_step,
        )
        received.append(seen + [i for batch in names["loader"] for i in batch.flatten().int().tolist()])
    (first, second) = received
    assert len(first) == 32 + 128
    assert len(second) == 32 + 128
    assert sorted(first[:32] + second[:32]) == sorted({*first[:32], *second[:32]})
    assert first[32:] == second[32:]


def test_accelerate(tmp_path):
    """Two epochs of all samples; a state of the first one is followed by what was left of it."""
    import accelerate

    dataset = wids.ShardListDataset(write_images(tmp_path, samples=64)).add_transform(number)
    (block,) = at(".docs/guides/hugging-face.md#accelerate")
    received = []
    for resume in (False, True):
        seen = []

        def train_step(batch, seen=seen):
            seen += batch.flatten().int().tolist()

        model = torch.nn.Linear(1, 1)
        execute(
            block,
            {"first_epoch, 10": "first_epoch, 2", "step % 1000 == 0": "(epoch, step, resume) == (0, 2, False)"},
            accelerate=accelerate,
            accelerator=accelerate.Accelerator(cpu=True),
            wids=wids,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loader=torch.utils.data.DataLoader(dataset, batch_size=32, sampler=wids.DistributedChunkedSampler(dataset)),
            resume=resume,
            first_epoch=0,
            train_step=train_step,
        )
        received.append(seen)
    whole, rest = received
    assert [sorted(whole[:128]), sorted(whole[128:])] == [list(range(128))] * 2
    assert rest == whole[64:]
