"""`wids.resumable` beside what trains: torch's distributed checkpoints and meshes, trainers, and loaders of others."""

import copy
import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import wids
from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from wids.errors import InputError

pytestmark = pytest.mark.outside

N = 96


def launch(directory, world, runs):
    """What each rank of with_checkpoints.py had."""
    program = [str(PROGRAMS / "with_checkpoints.py"), str(directory), json.dumps(runs)]
    run_all([[*forked_ranks(world), *program]], env=environment(), output=directory / f"output-{world}.txt")
    return [json.loads((directory / f"{world}-{rank}.json").read_text()) for rank in range(world)]


def samples(answers, name):
    """Samples of all ranks in a run, step by step."""
    steps = zip(*(answer[name]["batches"] for answer in answers), strict=True)
    return [[i for row in zip(*batches, strict=True) for i in row] for batches in steps]


# --- dcp.save({"loader": loader}) on three gloo ranks, dcp.load on three, two and four

KINDS = ("plain", "reweighted", "by source")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """World size -> what each rank had, after three batches of three ranks."""
    directory = tmp_path_factory.mktemp("checkpoints")
    whole = launch(directory, 3, [{"name": kind, "kind": kind} for kind in KINDS])
    launch(directory, 3, [{"name": kind, "kind": kind, "save": kind, "batches": 3} for kind in KINDS])
    runs = [{"name": kind, "kind": kind, "load": kind} for kind in KINDS]
    found = {world: launch(directory, world, runs) for world in (2, 3, 4)}
    return {"whole": whole, **found}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_rest_comes_next(answers, kind, world):
    """In the order of the run that was not stopped; the changed weights of a mixture are in the checkpoint, too."""
    whole = [i for step in samples(answers["whole"], kind)[3:] for i in step]
    rest = [i for step in samples(answers[world], kind) for i in step]
    if kind == "by source":  # in other rows: batches of a rank are of other sizes
        assert Counter(rest) == Counter(whole)
    else:
        assert len(whole) == N - 36
        assert rest[: len(whole)] == whole
    assert len({json.dumps(answer[kind]["state"]) for answer in answers[world]}) == 1


def test_a_mesh_gives_the_ranks_of_a_group_the_same_samples(tmp_path):
    """Four processes as ("dp", "tp"): two shares, each read by both of a tensor-parallel group."""
    answers = launch(tmp_path, 4, [{"name": "mesh", "mesh": [2, 2]}])
    groups = [[i for batch in answer["mesh"]["batches"] for i in batch] for answer in answers]
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert sorted(groups[0] + groups[2]) == list(range(N))
    for answer in answers:
        many, rank, number = answer["mesh"]["refused"]
        assert "the mesh has 2 dimensions, ('dp', 'tp'); give the one along which" in many
        assert "mesh= is given together with num_replicas=None, rank=0" in rank
        assert "mesh= is given together with num_replicas=2, rank=None" in number


# --- trainers, in this process; they are imported where they are used, for with them a process is twice as large

LENGTHS = np.random.default_rng(0).integers(1, 20, 40)


def make(kind, *, loader=DataLoader, collate_fn=None, workers=0, reads_ahead=False):
    """A fresh loader of 40 samples: "plain", "by source", "buckets" (epochs of unlike lengths); "endless" or not."""
    data = list(range(40))
    ends = {"epochs": None} if "endless" in kind else {}
    sampler = wids.DistributedChunkedSampler(data, num_replicas=1, rank=0, chunksize=6, window=2, **ends)
    given = {"batch_size": 4, "sampler": sampler}
    if "by source" in kind:
        data = wids.mix({"a": (data[:22], 0.6), "b": (data[22:], 0.4)})
        given = {"batch_sampler": wids.MixtureBatchSampler(data, 4, num_replicas=1, rank=0, **ends)}
    elif "buckets" in kind:
        given = {"batch_sampler": wids.BucketBatchSampler(sampler, lengths=LENGTHS, max_tokens=60, block=6)}
    elif "torch" in kind:
        given = {"batch_sampler": BatchSampler(sampler, 4, drop_last=False)}
    found = loader(data, **given, num_workers=workers, collate_fn=collate_fn)
    return wids.resumable(found, reads_ahead=reads_ahead)


def fit(loader, *, steps=0, save=None, resume=None, draw=None):
    """What the steps of Lightning's Trainer had: ``[epoch, indices]``; three epochs, or so many steps.

    ``draw(batches)`` is the next batch of a step that draws itself.
    """
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def training_step(self, batch, _):
            self.seen.append([self.trainer.current_epoch, batch.tolist()])
            return (self.layer(batch.float()[:, None]) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    class Drawing(Model):
        def training_step(self, dataloader_iter):
            return super().training_step(draw(dataloader_iter), None)

    class Saving(lightning.Callback):
        def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
            if save is not None:
                trainer.save_checkpoint(save / f"{trainer.global_step}.ckpt")

    options = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=None if steps else 3,
        max_steps=steps or -1,
        callbacks=[Saving()],
        **dict.fromkeys(options, False),
    )
    model = Drawing() if draw else Model()
    trainer.fit(model, loader, ckpt_path=resume)
    return model.seen


lightnings = pytest.mark.filterwarnings("ignore")  # of its clients' releases, of few workers


@lightnings
@pytest.mark.parametrize(("kind", "steps"), [("plain", 0), ("plain endless", 12), ("buckets endless", 12)])
def test_lightning_resumes_at_any_batch(tmp_path, kind, steps):
    """It keeps the loader's state; where an epoch has no end it reads one batch ahead, which the loader is told."""
    whole = fit(make(kind, reads_ahead=bool(steps)), steps=steps, save=tmp_path)
    assert len(whole) == (steps or 30)
    for step in (1, 5, 9) if steps else (1, 9, 10, 11, 20):
        resume = tmp_path / f"{step}.ckpt"
        assert fit(make(kind, reads_ahead=bool(steps)), steps=steps, resume=resume) == whole[step:], step


@lightnings
@pytest.mark.parametrize("kind", ["plain", "plain endless"])
def test_lightning_with_the_wrong_reads_ahead_is_refused(kind):
    """A state would skip a batch, or repeat one."""
    with pytest.raises(InputError, match="reads_ahead=True"):
        fit(make(kind, reads_ahead="endless" not in kind), steps=2)


def draw_ahead():
    """A step's drawing that holds the batch after the one it trains on."""
    held = []

    def draw(batches):
        held.extend(next(batches)[0] for _ in range(2 - len(held)))
        return held.pop(0)

    return draw


@lightnings
@pytest.mark.parametrize("reads_ahead", [False, True])
def test_a_step_that_draws_its_batches_itself(tmp_path, reads_ahead):
    """With ``dataloader_iter`` Lightning draws nothing: the state is exact with what the step says of itself."""

    def train(**options):
        loader = make("plain endless", reads_ahead=reads_ahead)
        draw = draw_ahead() if reads_ahead else lambda batches: next(batches)[0]
        return fit(loader, steps=12, draw=draw, **options)

    whole = train(save=tmp_path)
    assert len(whole) == 12
    for step in (1, 10):
        assert train(resume=tmp_path / f"{step}.ckpt") == whole[step:]


@lightnings
def test_lightning_counts_the_batches_of_the_first_epoch():
    """Epochs of buckets differ in length, of which it would read less in silence."""
    with pytest.warns(UserWarning, match=r"this epoch has 14 batches, and Lightning has counted 13.*epochs=None"):
        fit(make("buckets"))


def hugging_face(directory, kind, *, accumulation=1, steps=-1, resume=None, callbacks=None, **options):
    """What the steps of Hugging Face's Trainer had; it saves after each."""
    import transformers

    import wids.hf

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), []

        def forward(self, x):
            self.seen.append(x.tolist())
            return {"loss": (self.layer(x.float()[:, None]) ** 2).mean()}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            loader = make(kind, collate_fn=lambda batch: {"x": torch.tensor(batch)})
            return loader._loader if "bare" in kind else loader

    args = transformers.TrainingArguments(
        output_dir=directory,
        use_cpu=True,
        num_train_epochs=3,
        max_steps=steps,
        save_steps=1,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-9,
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no" if resume else "steps", **options},
    )
    model = Model()
    trainer = Trainer(model, args, callbacks=callbacks or [wids.hf.ResumeCallback()])
    trainer.train(resume_from_checkpoint=resume and str(directory / f"checkpoint-{resume}"))
    return model.seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "accumulation", "steps"),
    [("plain", 1, -1), ("plain", 3, -1), ("buckets endless", 2, 9), ("by source", 3, -1), ("by source endless", 2, 9)],
)
def test_hugging_faces_trainer_resumes_at_any_step(tmp_path, kind, accumulation, steps):
    """A callback keeps the loader's place in each checkpoint; one of the Trainer's own options is about callbacks."""
    whole = hugging_face(tmp_path, kind, accumulation=accumulation, steps=steps)
    assert len(whole) == (30 if steps < 0 else steps * accumulation)
    for step in (1, 5, 7) if accumulation > 1 else (3, 10, 14):
        # An epoch has ten batches, and with three for a step the fourth step of an epoch has one.
        done = step * accumulation - 2 * (step // 4) * (accumulation == 3)
        rest = hugging_face(
            *(tmp_path, kind),
            accumulation=accumulation,
            steps=steps,
            resume=step,
            restore_callback_states_from_checkpoint=step > 5,
        )
        assert rest == whole[done:], step


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_trainer_counts_as_the_loader(tmp_path):
    """Another count of the batches before a resume is an error, as is no place; epochs of other lengths a warning."""
    import transformers

    with pytest.warns(UserWarning, match="this epoch has 14 batches, and the Trainer of Hugging Face has counted 13"):
        hugging_face(tmp_path, "buckets")
    with pytest.raises(InputError, match="counts the batches of this epoch from 0, and the loader's state is after 3"):
        hugging_face(tmp_path, "buckets", resume=3, ignore_data_skip=True)
    with pytest.raises(InputError, match="6 batches are to be skipped, and the loader is after 3 of its epoch"):
        hugging_face(tmp_path, "buckets", resume=3, accumulation=2)
    with pytest.raises(InputError, match="training loader is a DataLoader, whose place is not known"):
        hugging_face(tmp_path, "buckets, bare")
    other = [transformers.TrainerCallback()]
    hugging_face(tmp_path / "other", "plain", steps=2, callbacks=other)
    with pytest.raises(InputError, match="the checkpoint of step 2 has no place of the loader"):
        hugging_face(tmp_path / "other", "plain", steps=4, resume=2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("moment", ["on_step_begin", "on_pre_optimizer_step", "on_step_end"])
def test_a_checkpoint_of_hugging_faces_trainer_at_any_moment(tmp_path, monkeypatch, moment):
    """It draws a step's batches before that begins; a checkpoint in its middle, upon SIGTERM, does not skip them."""
    import transformers
    from transformers.trainer_jit_checkpoint import CheckpointManager

    import wids.hf

    class Saving(transformers.TrainerCallback):
        def save(self, args, state, control, **_):
            if state.global_step == 2 and not (tmp_path / "checkpoint-2").exists():
                CheckpointManager(trainers[0]).execute_jit_checkpoint()

    setattr(Saving, moment, Saving.save)
    trainers = []
    begin = transformers.Trainer.__init__
    monkeypatch.setattr(
        transformers.Trainer,
        "__init__",
        lambda self, *args, **more: trainers.append(self) or begin(self, *args, **more),
    )
    callbacks = [Saving(), wids.hf.ResumeCallback()]
    whole = hugging_face(tmp_path, "plain", accumulation=3, callbacks=callbacks, save_strategy="no")
    assert hugging_face(tmp_path, "plain", accumulation=3, resume=2) == whole[6:]


# --- torchdata's StatefulDataLoader, whose own state needs a batch sampler with one, and the same number of workers


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("kind", ["plain", "torch", "buckets"])
def test_a_stateful_loader_that_is_resumable(kind):
    """Its state is the sampler's: also over torch's own BatchSampler, and for another number of workers."""
    loader, states, epochs = make(kind, loader=StatefulDataLoader, workers=2, collate_fn=list), [], []
    for epoch in range(3):
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch)
            states.append((epoch, len(epochs[-1]), json.dumps(loader.state_dict())))
    for epoch, step, state in itertools.chain(states[3:14:5], states[len(epochs[0]) - 1 : len(epochs[0])]):
        again = make(kind, loader=StatefulDataLoader, collate_fn=list)
        again.load_state_dict(json.loads(state))
        rest = [epochs[epoch][step:], *epochs[epoch + 1 :]]
        assert [list(again), list(again)] == [batches for batches in rest if batches][:2]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_of_buckets(workers):
    """Its own state is exact, for our batch samplers have one."""
    loader = make("buckets", loader=StatefulDataLoader, workers=workers, collate_fn=list)._loader
    states = []
    whole = [batch for batch in loader if states.append(copy.deepcopy(loader.state_dict())) is None]
    for step in (1, 7, 12):
        again = make("buckets", loader=StatefulDataLoader, workers=workers, collate_fn=list)._loader
        again.load_state_dict(states[step - 1])
        assert list(again) == whole[step:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["plain", "by source", "buckets"])
@pytest.mark.parametrize("owner", ["accelerate", "fabric"])
def test_loaders_that_name_the_epochs_that_they_count(owner, kind):
    """After a load in mid-epoch, and of the end of an epoch, they go on with the state's, named by the loop or not."""
    import accelerate
    import lightning

    def make_one():
        loader = make(kind, collate_fn=torch.tensor)._loader
        if owner == "fabric":
            return wids.resumable(lightning.Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader))
        prepare = accelerate.data_loader.prepare_data_loader
        return wids.resumable(prepare(loader, put_on_device=False, num_processes=1, process_index=0))

    loader, epochs, states = make_one(), [], []
    for epoch in range(4):
        loader.set_epoch(epoch)
        epochs.append([])
        for batch in loader:
            epochs[-1].append(batch.tolist())
            states.append((epoch, len(epochs[-1]), loader.state_dict()))
    ends = [state for state in states if state[0] == 1 and state[1] in (3, len(epochs[1]))]
    for epoch, step, state in ends:
        again, named = make_one(), make_one()
        again.load_state_dict(state)
        named.load_state_dict(state)
        rest = epochs[epoch][step:]
        expected = [rest, epochs[2]] if rest else epochs[2:4]
        assert [[batch.tolist() for batch in again] for _ in range(2)] == expected
        named.set_epoch(epoch)
        assert [batch.tolist() for batch in named] == rest
