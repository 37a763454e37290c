"""`wids.lightning.DataModule`: Lightning's Trainer resumes in mid-epoch, on the same and on another number of ranks."""

import json
import sys
import warnings
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import wids
from tests.support.launch import PROGRAMS, environment, forked_ranks, run_all
from tests.support.shards import write_index

pytestmark = pytest.mark.outside

N, EPOCHS = 21, range(3)
KINDS = ("plain", "mixture", "nominal")
# A kind's samples of an epoch, and its batches of each of two ranks, of one.
SIZE = {"plain": N, "mixture": 2 * N, "nominal": 17}
KILLED_AT = [1, 4]


def launch(directory, devices, runs, code=0):
    """The answers of each rank."""
    launcher = [sys.executable] if devices == 1 else forked_ranks(devices, "lightning")
    program = [str(PROGRAMS / "with_lightning_module.py"), str(directory / "data/index.json"), str(directory)]
    run_all(
        [[*launcher, *program, str(devices), json.dumps(runs)]],
        env=environment(),
        output=directory / f"output-{devices}.txt",
        code=code,
    )
    name = runs[0]["name"]
    return [json.loads((directory / f"{devices}-{rank}-{name}.json").read_text()) for rank in range(devices)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the data, the checkpoints and the answers are."""
    directory = tmp_path_factory.mktemp("lightning-module")
    write_index(directory / "data", (7, 0, 5, 9))
    return directory


def checkpoint(directory, name, epoch, batches, answers):
    """The path of a checkpoint of ``ModelCheckpoint``."""
    before = sum(e < epoch for e, _ in answers[0][name]["steps"])
    return str(directory / name / f"epoch={epoch}-step={before + batches}.ckpt")


@pytest.fixture(scope="module")
def two(directory):
    """Both ranks' answers of whole runs; a last run is killed in its second epoch."""
    runs = [{"name": f"two-{kind}", "kind": kind} for kind in (*KINDS, "workers", "buckets, workers")]
    return launch(directory, 2, [*runs, {"name": "killed", "kind": "plain", "kill": KILLED_AT}], code=1)


@pytest.fixture(scope="module")
def one(directory, two):
    """One rank's answers: whole runs, and those of two ranks resumed."""
    runs = [{"name": f"one-{kind}", "kind": kind} for kind in KINDS]
    resumed = [
        {"name": f"two-one-{kind}", "kind": kind, "resume": checkpoint(directory, f"two-{kind}", 1, 2, two)}
        for kind in (*KINDS, "buckets, workers")
    ]
    killed = str(directory / "killed" / f"epoch=1-step={6 + KILLED_AT[1] - 1}.ckpt")
    return launch(directory, 1, [*runs, *resumed, {"name": "killed-one", "resume": killed}])


@pytest.fixture(scope="module")
def again(directory, two, one):
    """Two ranks' answers: their own runs resumed, and those of one rank."""
    own = [
        {"name": f"two-two-{kind}", "kind": kind, "resume": checkpoint(directory, f"two-{kind}", 1, 2, two)}
        for kind in (*KINDS, "workers", "buckets, workers")
    ]
    others = [
        {"name": f"one-two-{kind}", "kind": kind, "resume": checkpoint(directory, f"one-{kind}", 1, 3, one)}
        for kind in KINDS
    ]
    killed = str(directory / "killed" / f"epoch=1-step={6 + KILLED_AT[1] - 1}.ckpt")
    return launch(directory, 2, [*own, *others, {"name": "killed-two", "resume": killed}])


def epoch_of(answers, name, epoch, batches=None):
    """The indices that all ranks had in an epoch, or in its first batches."""
    steps = [[indices for e, indices in answer[name]["steps"] if e == epoch][:batches] for answer in answers]
    return [i for indices in steps for batch in indices for i in batch]


def check_epoch(kind, indices):
    """An epoch of a kind: each sample once, but for one that makes the ranks equal; of mixtures as many as are due."""
    assert abs(len(indices) - SIZE[kind]) <= 1
    if kind == "plain":
        assert set(indices) == set(range(N))


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_once_in_each_epoch(two, one, kind):
    """On two ranks and on one, in another order each time."""
    for ranks, name in ((two, f"two-{kind}"), (one, f"one-{kind}")):
        epochs = [epoch_of(ranks, name, epoch) for epoch in EPOCHS]
        for indices in epochs:
            check_epoch(kind, indices)
        assert all(a != b for a, b in pairwise(epochs))


@pytest.mark.parametrize("kind", [*KINDS, "workers", "buckets, workers"])
def test_same_ranks_resume_as_if_never_stopped(two, again, kind):
    """Each rank has just what the whole run had from there on."""
    for whole, resumed in zip(two, again, strict=True):
        steps = whole[f"two-{kind}"]["steps"]
        assert resumed[f"two-two-{kind}"]["steps"] == steps[sum(epoch < 1 for epoch, _ in steps) + 2 :]


@pytest.mark.parametrize("kind", KINDS)
def test_other_ranks_resume_with_the_next_sample(two, one, again, kind):
    """2 -> 1 and 1 -> 2: what was left of the epoch, each sample once, and then whole epochs."""
    for before, first, after, second, batches in (
        (two, f"two-{kind}", one, f"two-one-{kind}", 2),
        (one, f"one-{kind}", again, f"one-two-{kind}", 3),
    ):
        rest = epoch_of(after, second, 1)
        check_epoch(kind, epoch_of(before, first, 1, batches) + rest)
        assert Counter(rest) <= Counter(epoch_of(before, first, 1)) + Counter(rest[-1:])
        assert not epoch_of(after, second, 0)
        check_epoch(kind, epoch_of(after, second, 2))
        wanted, found = Counter(epoch_of(before, first, 2)), Counter(epoch_of(after, second, 2))
        assert ((wanted - found) + (found - wanted)).total() <= 2  # one is repeated, or is not


def test_other_ranks_resume_batches_of_like_length(two, one):
    """2 -> 1: the batches that were left of the epoch, and then a whole one."""

    def batches(answers, name, epoch, first=0):
        steps = [[indices for e, indices in answer[name]["steps"] if e == epoch][first:] for answer in answers]
        return [batch for row in zip(*steps, strict=True) for batch in row]

    assert batches(one, "two-one-buckets, workers", 1) == batches(two, "two-buckets, workers", 1, first=2)
    assert {i for batch in batches(one, "two-one-buckets, workers", 2) for i in batch} == set(range(N))


def test_killed_in_mid_epoch(directory, two, one, again):
    """SIGKILL on both ranks: the epoch goes on after the last checkpoint, on two ranks and on one."""
    epoch, batches = KILLED_AT
    had = [json.loads((directory / f"killed-{rank}.json").read_text()) for rank in range(2)]
    for steps, whole in zip(had, two, strict=True):
        assert steps == whole["two-plain"]["steps"][: 6 + batches]
    kept = [i for steps in had for _, indices in steps[6 : 6 + batches - 1] for i in indices]
    for answers, name in ((one, "killed-one"), (again, "killed-two")):
        rest = epoch_of(answers, name, epoch)
        assert sorted(set(kept + rest)) == list(range(N))
        assert len(kept + rest) in (N, N + 1)
        check_epoch("plain", epoch_of(answers, name, 2))


def test_validation_and_prediction_have_each_sample_once(two, one, again):
    """After each epoch, by ``__valid__``; nothing is predicted twice."""
    for answers in (two, one, again):
        for name in answers[0]:
            validations = zip(*(answer[name]["validated"] for answer in answers), strict=True)
            for parts in validations:  # none with workers
                assert sorted(i for part in parts for i in part) == list(range(N))
            assert sorted(i for answer in answers for i in answer[name]["predicted"]) == list(range(N))


def test_lightning_is_content(two, one, again):
    """It does not say that the loader is not resumable, nor the sampler that it skips; its own option is as it was."""
    for answers in (two, one, again):
        for answer in answers:
            for name, run in answer.items():
                said = [text for text in run["warnings"] if "resum" in text or "skipped" in text]
                assert not said, name
    for answer in (*one, *again):
        for name, run in answer.items():
            if "nominal" not in name and "buckets" not in name:
                assert run["reloads"] == 0, name


@pytest.mark.filterwarnings("ignore")  # Lightning's own: of its clients' releases, of few workers
class TestInOneProcess:
    """All that a Trainer may be told, and what else it asks of a module."""

    @pytest.fixture(scope="class")
    def runs(self):
        """The module of runs; with it Lightning is imported, which takes seconds."""
        import tests.support.programs.lightning_module_runs as runs

        return runs

    @pytest.mark.parametrize(
        "kind",
        [
            *(
                "validating",
                "accumulating",
                "steps",
                "limited",
                "dropping",
                "endless",
                "scheduled",
                "mixture",
                "nominal",
            ),
            *("buckets", "buckets, limited", "buckets, validating", "buckets, endless", "packs"),
        ],
    )
    def test_resumes_as_if_never_stopped(self, tmp_path, directory, runs, kind):
        """From mid-epoch, after the last batch of one, its validation, and its end."""

        def fit(resume=None):
            model, saving = runs.Model(is_scheduled=kind == "scheduled"), runs.Save(tmp_path / "run")
            trainer = runs.make_trainer(kind, callbacks=[] if resume else [saving])
            trainer.fit(model, datamodule=runs.make_module(directory / "data/index.json", kind), ckpt_path=resume)
            return model.steps, saving.done

        steps, done = fit()
        sizes = Counter(epoch for epoch, *_ in steps)
        # In the first two epochs: after two batches, after the last, its end, and the validations.
        names = [f"{epoch}-{when}" for epoch in (0, 1) for when in (2, sizes[epoch], "end")]
        names += [name.stem.removeprefix("run-") for name in tmp_path.glob("run-1-val*.ckpt")]
        chosen = {path: count for path, count in done.items() if path.split("run-")[1][:-5] in names}
        assert len(chosen) >= (2 if "endless" in kind else 7)
        for path, count in chosen.items():
            assert fit(path)[0] == steps[count:], path

    def test_warns_of_a_checkpoint_at_the_start_of_an_epoch(self, tmp_path, directory, runs):
        """Lightning skips a whole epoch when it resumes from one: a warning when it is saved and when it is resumed."""

        class Save(runs.Save):
            def on_train_epoch_start(self, trainer, model):
                self.save(trainer, model, "start")

        def fit(callbacks=(), resume=None):
            model = runs.Model()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                trainer, module = (
                    runs.make_trainer(callbacks=callbacks),
                    runs.make_module(directory / "data/index.json"),
                )
                trainer.fit(model, datamodule=module, ckpt_path=resume)
            return model.steps, [str(each.message) for each in caught if "on_train_epoch_start" in str(each.message)]

        saving = Save(tmp_path / "run")
        steps, said = fit([saving])
        assert [text.split(";")[0].split()[-3:] for text in said] == [["of", "epoch", "1"], ["of", "epoch", "2"]]
        for epoch in EPOCHS:
            [(path, count)] = [(path, count) for path, count in saving.done.items() if f"-{epoch}-start" in path]
            resumed, said = fit(resume=path)
            assert len(said) == (epoch > 0)
            assert resumed == [step for step in steps[count:] if not epoch or step[0] > epoch]

    def test_a_plain_loader_is_not_resumable(self, tmp_path, directory, runs):
        """Lightning warns of it in mid-epoch: the epoch's first batches are read again, its last ones never."""

        def fit(callbacks=(), resume=None):
            dataset = wids.ShardListDataset(str(directory / "data/index.json"), transformations=runs.as_marked)
            sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=2)
            model, loader = runs.Model(), torch.utils.data.DataLoader(dataset, batch_size=runs.BATCH, sampler=sampler)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                runs.make_trainer(callbacks=callbacks).fit(model, loader, ckpt_path=resume)
            return model.steps, [str(each.message) for each in caught if "not resumable" in str(each.message)]

        saving = runs.Save(tmp_path / "run")
        steps, said = fit([saving])
        size = sum(epoch == 0 for epoch, _ in steps)
        assert not said
        for when, is_warned in (("2", True), (str(size), False), ("end", False)):
            [(path, count)] = [(path, count) for path, count in saving.done.items() if path.endswith(f"-1-{when}.ckpt")]
            resumed, said = fit(resume=path)
            assert len(said) == is_warned
            wanted = steps[size : 2 * size - 2] + steps[2 * size :] if is_warned else steps[count:]
            assert resumed == wanted

    def test_weights_that_change_in_mid_run(self, tmp_path, directory, runs):
        """A callback's `reweight` holds from the next epoch on, and in what resumes before that or in it."""

        class Reweight(runs.lightning.Callback):
            def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
                if (trainer.current_epoch, batch_idx) == (0, 3):
                    trainer.train_dataloader.sampler.reweight({"a": 0.1, "b": 0.9})

        def fit(callbacks, resume=None):
            model = runs.Model()
            module = runs.make_module(directory / "data/index.json", "mixture")
            runs.make_trainer("mixture", callbacks=callbacks).fit(model, datamodule=module, ckpt_path=resume)
            return model.steps

        saving = runs.Save(tmp_path / "run")
        steps = fit([Reweight(), saving])
        unchanged = fit([])
        size = sum(epoch == 0 for epoch, _ in steps)
        assert steps[:size] == unchanged[:size]
        assert steps[size:] != unchanged[size:]
        for when in ("0-5", "0-end", "1-2"):
            path = f"{tmp_path}/run-{when}.ckpt"
            assert fit([], path) == steps[saving.done[path] :], when

    def test_another_batch_size(self, tmp_path, directory, runs):
        """What is left of the epoch comes in batches of the new size, and all of it."""
        index, model, saving = directory / "data/index.json", runs.Model(), runs.Save(tmp_path / "run")
        runs.make_trainer(callbacks=[saving]).fit(model, datamodule=runs.make_module(index))
        resumed = runs.Model()
        module = runs.make_module(index, batch_size=5)
        assert "size=21" in str(module)  # which makes loaders before there is a trainer
        runs.make_trainer().fit(resumed, datamodule=module, ckpt_path=f"{tmp_path}/run-1-4.ckpt")
        had = [i for _, indices in model.steps for i in indices]
        assert [i for _, indices in resumed.steps for i in indices] == had[N + 8 :]
        assert [len(indices) for _, indices in resumed.steps] == [5, 5, 3, 5, 5, 5, 5, 1]

    def test_weights_are_tested_without_a_resume(self, tmp_path, directory, runs):
        """A ``ckpt_path`` of ``validate`` and ``predict`` is no place to go on from; the next fit begins."""
        index, saving = directory / "data/index.json", runs.Save(tmp_path / "run")
        model, module = runs.Model(), runs.make_module(index)
        runs.make_trainer(callbacks=[saving]).fit(model, datamodule=module)
        whole, model.steps = model.steps, []
        runs.make_trainer().validate(model, datamodule=module, ckpt_path=f"{tmp_path}/run-1-4.ckpt", verbose=False)
        assert sorted(model.validated[-1]) == list(range(N))
        runs.make_trainer().fit(model, datamodule=module)
        assert model.steps == whole

    def test_a_checkpoint_of_another_loader_is_noticed(self, tmp_path, directory, runs):
        """Its epoch cannot go on where it was, and Lightning itself no longer says so."""
        from torch.utils.data import DataLoader

        index, saving, model = directory / "data/index.json", runs.Save(tmp_path / "run"), runs.Model()
        module = runs.make_module(index)
        trainer = runs.make_trainer(callbacks=[saving])
        trainer.fit(model, train_dataloaders=DataLoader(module.train_dataset, batch_size=2))
        with pytest.warns(UserWarning, match="resumes after 4 batches of epoch 1, and its checkpoint has no position"):
            runs.make_trainer().fit(model, datamodule=module, ckpt_path=f"{tmp_path}/run-1-4.ckpt")

    def test_a_state_of_other_data_is_refused(self, tmp_path, directory, runs):
        """Of another seed; the message names it."""
        index, saving, model = directory / "data/index.json", runs.Save(tmp_path / "run"), runs.Model()
        runs.make_trainer(callbacks=[saving]).fit(model, datamodule=runs.make_module(index))
        module = runs.make_module(index, sampler={"chunksize": 2, "seed": 1})
        with pytest.raises(wids.errors.StateError, match="seed: 0 there, 1 here"):
            runs.make_trainer().fit(model, datamodule=module, ckpt_path=f"{tmp_path}/run-1-4.ckpt")
        state = {**runs.make_module(index).train_dataloader().state_dict(), "batches": "x"}
        with pytest.raises(wids.errors.StateError, match="the state's batches is 'x', not an integer"):
            runs.make_module(index).train_dataloader().load_state_dict(state)

    def test_a_mesh_says_the_rank(self, directory, runs):
        """Instead of the trainer's strategy."""
        mesh = SimpleNamespace(ndim=1, size=lambda: 3, get_coordinate=lambda: [2])
        loader = runs.make_module(directory / "data/index.json", sampler={"mesh": mesh}).train_dataloader()
        assert (loader.sampler.num_replicas, loader.sampler.rank) == (3, 2)

    def test_batches_of_like_length(self, directory, runs):
        """Each epoch has all samples, in batches within the budget; what does not fit is an error."""
        index, model = directory / "data/index.json", runs.Model()
        trainer = runs.make_trainer()
        trainer.fit(model, datamodule=runs.make_module(index, "buckets", batch_size=7))
        for epoch in EPOCHS:
            batches = [indices for e, indices in model.steps if e == epoch]
            assert sorted(i for batch in batches for i in batch) == list(range(N))
            assert len(batches) == (15, 13, 15)[epoch]
            assert max(len(batch) * max(1 + i % 5 for i in batch) for batch in batches) <= 9
        assert trainer.reload_dataloaders_every_n_epochs == 1
        for options, message in (
            ({"batches": {}}, "max_tokens"),
            ({"batches": {"max_token": 9}}, "max_tokens"),
            ({"drop_last": True}, "drop_last"),
            ({"workers": "threads"}, "workers= is of wids.resumable"),
        ):
            with pytest.raises((TypeError, ValueError), match=message):
                runs.make_module(index, "buckets", **options).train_dataloader()
        with pytest.raises(wids.errors.InputError, match="leave one of them out"):
            runs.make_trainer(overfit_batches=2).fit(model, datamodule=runs.make_module(index, "buckets"))

    def test_packs(self, directory, runs):
        """Each epoch is that of a PackSampler; a collate function of packs is not that of validation."""
        index, model = directory / "data/index.json", runs.Model()
        module = runs.make_module(index, "packs")
        runs.make_trainer().fit(model, datamodule=module)
        bounds = {name: value for name, value in runs.PACKS["packs"].items() if name != "collate_fn"}
        dataset = wids.ShardListDataset(index)
        sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, chunksize=2, seed=3)
        packs = wids.PackSampler(sampler, **bounds)
        for epoch in EPOCHS:
            packs.set_epoch(epoch)
            expected = [[epoch, list(map(int, b)), *(list(one.piece[1:3]) for one in b)] for b in packs]
            assert [step for step in model.steps if step[0] == epoch] == expected
        assert model.validated[-1] == list(range(N))
        with pytest.raises(wids.errors.InputError, match="leave one of them out"):
            runs.make_module(index, "packs", **runs.BUCKETS).train_dataloader()
        with pytest.raises(wids.errors.InputError, match="those of packs=; leave"):
            runs.make_trainer(overfit_batches=2).fit(model, datamodule=module)

    def test_overfitting(self, directory, runs):
        """Lightning puts a sampler of its own into the loader: the same batches in each epoch."""
        model = runs.Model()
        trainer = runs.make_trainer(overfit_batches=2)
        trainer.fit(model, datamodule=runs.make_module(directory / "data/index.json"))
        assert [indices for _, indices in model.steps] == 3 * [[0, 1], [2, 3]]

    def test_used_as_lightning_users_do(self, directory, runs):
        """`from_datasets`, a subclass with `setup` and hyperparameters, lists of datasets, without any validation."""
        import lightning

        index = str(directory / "data/index.json")

        def dataset():
            return wids.ShardListDataset(index, transformations=runs.as_marked)

        class Data(wids.lightning.DataModule):
            def __init__(self, url, batch_size=2):
                super().__init__(batch_size=batch_size)
                self.save_hyperparameters()

            def setup(self, stage):
                self.train_dataset = dataset()
                self.val_dataset = wids.mix({"a": (dataset(), 0.9), "b": (dataset(), 0.1)})

        expected = runs.Model()
        runs.make_trainer().fit(expected, datamodule=runs.make_module(index, sampler=None))
        made = [
            Data(index),
            wids.lightning.DataModule.from_datasets(dataset(), batch_size=2),
            wids.lightning.DataModule(dataset(), {"x": dataset(), "y": dataset()}, batch_size=2),
        ]
        assert isinstance(made[0], lightning.LightningDataModule)
        counts = []
        for module in made:
            model = runs.Model()
            if module is made[2]:
                model.validation_step = lambda batch, batch_idx, dataloader_idx=0, model=model: model.validated[
                    -1
                ].extend(batch["index"].tolist())
            runs.make_trainer().fit(model, datamodule=module)
            assert model.steps == expected.steps
            counts.append([len(indices) for indices in model.validated[-3:]])
        assert counts == [[2 * N] * 3, [], [2 * N] * 3]
        assert made[0].hparams.url == index
        with pytest.raises(ValueError, match="test_dataset is None"):
            runs.make_trainer().test(NoTest(runs), datamodule=made[1])
        with pytest.raises(ValueError, match="train_dataset is None"):
            runs.make_trainer().fit(runs.Model(), datamodule=wids.lightning.DataModule())
        assert len(list(made[1].train_dataloader())) == 11  # to look at it, outside of a fit

    def test_the_other_package_and_none(self, monkeypatch):
        """A program that has imported pytorch_lightning has its classes; without either, the extra is named."""
        import types

        stand_in = types.ModuleType("pytorch_lightning")
        stand_in.LightningDataModule = type("LightningDataModule", (), {})
        monkeypatch.setitem(sys.modules, "pytorch_lightning", stand_in)
        assert wids.lightning._find_base() is wids.lightning.LightningDataModule
        monkeypatch.delitem(sys.modules, "lightning.pytorch")
        assert wids.lightning._find_base() is stand_in.LightningDataModule
        monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
        monkeypatch.setitem(sys.modules, "lightning", None)
        with pytest.raises(wids.errors.DependencyError, match=r"pip install 'wids\[lightning\]'"):
            wids.lightning._find_base()


def NoTest(runs):  # noqa: N802 - a model
    """One with a test step."""
    model = runs.Model()
    model.test_step = lambda batch: None
    return model
