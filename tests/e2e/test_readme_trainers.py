"""The Python that READMEs show for trainers runs as it stands, with the trainer itself.

The trainers are imported where they are used: with them a process is twice as large, and takes twice as long to fork.
"""

import pytest
import torch

import wids
from tests.support.readme_code import at, execute, write_images


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
    (block,) = at("wids/order/README.md#lightning")
    replaced = {"num_workers=4": "num_workers=0", '"val.json"': '"val/train.json"'}

    def fit(checkpoint=None):
        model, trainer = make_trainer()
        execute(block, replaced, wids=wids, make_sample=number, model=model, trainer=trainer, checkpoint=checkpoint)
        return model.seen

    seen = fit()
    assert [sorted(seen[:128]), sorted(seen[128:])] == [list(range(128))] * 2
    assert fit("middle.ckpt") == seen[128 + 64 :]


def test_accelerate(tmp_path):
    """Two epochs of all samples; a state of the first one is followed by what was left of it."""
    import accelerate

    dataset = wids.ShardListDataset(write_images(tmp_path, samples=64)).add_transform(number)
    (block,) = at("wids/order/README.md#accelerate")
    received, states = [], []
    for state in (None, "middle"):
        sampler = wids.DistributedChunkedSampler(dataset)
        seen = []

        def train_step(batch, seen=seen, sampler=sampler):
            seen += batch.flatten().int().tolist()
            if len(seen) == 64:
                states.append(sampler.state_dict(consumed=64))

        model = torch.nn.Linear(1, 1)
        execute(
            block,
            {"first_epoch, 10": "first_epoch, 2"},
            accelerate=accelerate,
            accelerator=accelerate.Accelerator(cpu=True),
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loader=torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler),
            sampler=sampler,
            resume=state is not None,
            state=states[0] if states else None,
            first_epoch=0,
            train_step=train_step,
        )
        received.append(seen)
    whole, rest = received
    assert [sorted(whole[:128]), sorted(whole[128:])] == [list(range(128))] * 2
    assert rest == whole[64:]
