"""A `LightningDataModule` for `wids` datasets that resumes in mid-epoch (``pip install 'wids[lightning]'``).

``trainer.fit(model, wids.lightning.DataModule(train, val, batch_size=32), ckpt_path="last.ckpt")`` goes on with the
next sample, on any number of ranks. The module's state is in Lightning's checkpoints; nothing is counted by hand.

Rules: only this module imports lightning, or pytorch_lightning where that is what the program has imported. A loader
begins its iteration with the first batch, not when Lightning makes the iterator: that is before it says which epoch it
is. A state counts the samples that Lightning has trained on, not those that were drawn.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Subset

from wids.batch_samplers import BucketBatchSampler
from wids.core.order.layout import mixed_parts, takes_marks
from wids.errors import DependencyError, InputError
from wids.loaders import Counting, count_as_begun, count_by
from wids.packs import PackSampler
from wids.samplers import DistributedChunkedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning.pytorch import LightningDataModule
    from typing_extensions import Self
else:

    def _find_base() -> type:
        """`LightningDataModule` of the package that the program has imported; there are two, each with its trainer."""
        names = ["lightning.pytorch", "pytorch_lightning"]
        if names[0] not in sys.modules and names[1] in sys.modules:
            names.reverse()
        for name in names:
            try:
                return import_module(name).LightningDataModule
            except ModuleNotFoundError as error:
                if error.name not in (name, name.partition(".")[0]):
                    raise
        raise DependencyError("Lightning is not installed; install it with: pip install 'wids[lightning]'")

    LightningDataModule = _find_base()


class _TrainLoader(Counting, DataLoader[Any]):
    """A `DataLoader` with a state that follows Lightning's trainer: it counts batches that were trained on."""

    trainer: Any = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Lightning makes iterators before it says the epoch
        return self._deliver(super().__iter__)

    def __len__(self) -> int:
        """Batches of the whole epoch, with those before a resume."""
        counted = self._counted()
        return super().__len__() if counted is None or not counted.is_plain else self._count_epoch(counted)

    @property
    def has_begun(self) -> bool:
        """True if a batch was delivered since the loader was made, or a state loaded."""
        return self._delivery is not None

    @property
    def epoch(self) -> int:
        """Epoch of the latest iteration, of the state that was loaded, or as it was named."""
        counted = self._counted()
        return 0 if counted is None else counted.progress.cursor.epoch

    @property
    def is_length_fixed(self) -> bool:
        """True if all epochs from the present one on have as many batches as it."""
        counted: Any = self._counted()
        progress = counted.progress
        epochs = progress.epochs()
        if epochs.passes is None or not counted.is_plain:
            return epochs.passes is None  # one epoch without end
        if epochs.is_stream and epochs.nominal_size % epochs.world:
            return False
        place = progress.place(epochs)
        here, following = (self._count(counted, epochs, at) for at in (place, epochs.first_place(place.epoch + 1)))
        return here == following

    def _counted(self) -> Any:
        # Lightning puts a sampler of its own here for overfit_batches.
        return count_by(self) if isinstance(self.sampler, DistributedChunkedSampler) else None

    def _deliver(self, make: Any) -> Iterator[Any]:
        if self.trainer is not None and isinstance(self.sampler, DistributedChunkedSampler):
            # After some resumes with max_steps, Lightning has called `set_epoch` with an epoch that is one too high.
            self.sampler.set_epoch(self.trainer.current_epoch)
        yield from super()._deliver(make)

    def _begin(self, *arguments: Any) -> Any:
        delivery = super()._begin(*arguments)
        if self.trainer is not None and self.trainer.training:
            count_as_begun(self.trainer)
            # Up to Lightning 2.4 it is one less after a resume.
            before, delivery.before = delivery.before, self._progress(delivery)[0]
            if delivery.before and not before:
                warnings.warn(
                    f"Lightning resumes after {delivery.before} batches of epoch {self.trainer.current_epoch}, and its "
                    "checkpoint has no position within that epoch for this loader, which reads it from its start",
                    stacklevel=2,
                )
        return delivery

    def _progress(self, delivery: Any) -> tuple[int, bool]:
        if self.trainer is None:
            return super()._progress(delivery)
        done = self.trainer.fit_loop.epoch_loop.batch_progress.current.processed
        return done, done >= self.trainer.num_training_batches


class _ValidationHook:
    """``val_dataloader``; without a dataset it is Lightning's own, which means that nothing is validated."""

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None:
            return self
        # A `setup` of a subclass may assign the dataset after Lightning has asked.
        is_given = module.val_dataset is not None or type(module).setup is not LightningDataModule.setup
        lightnings = LightningDataModule.val_dataloader.__get__(module)
        return partial(module._load_in_order, "val_dataset") if is_given else lightnings


class DataModule(LightningDataModule):
    """Loaders of datasets for Lightning's ``Trainer``; training resumes with the next sample, on any number of ranks.

    As `LightningDataModule.from_datasets`, with `wids` samplers: each rank reads its own shards, shuffled for training,
    and ``trainer.fit(model, datamodule, ckpt_path=...)`` goes on in mid-epoch. Give the datasets, or a subclass assigns
    ``self.train_dataset``, ... in its ``setup``. A checkpoint of another number of devices, or with another batch size,
    resumes as well: the rest of the epoch comes next, each sample once.

    Lightning does not warn that "your dataloader is not resumable": this loader has a state. It warns of a plain
    `DataLoader` over any sampler, when it resumes in mid-epoch, and rightly: that reads the epoch from its start again.
    A checkpoint that is saved in ``on_train_epoch_start`` cannot be resumed with any loader: Lightning skips as many
    batches as the epoch before had. The module warns when one is saved, and when training resumes from it.

    Args:
        train_dataset: a `wids.ShardListDataset`, a part of one, a mixture, or any map-style dataset.
        val_dataset: one, or a list or dict of them. Samples come in order, in equal counts on all ranks;
            ``sample["__valid__"]`` is False where one is repeated for that.
        test_dataset: likewise.
        predict_dataset: likewise, but nothing is repeated: ranks may differ by one sample.
        batch_size: samples of a rank's batch; with ``batches`` or ``packs`` of those that are not trained on.
        num_workers: of each loader.
        sampler: options of `wids.DistributedChunkedSampler` for training: ``{"window": 8, "seed": 1}``.
        batches: options of `wids.BucketBatchSampler` for training: ``{"lengths": "tokens", "max_tokens": 32_768}``.
            Lightning counts the batches of each epoch anew, and each epoch is cut for that when it begins.
        packs: likewise, options of `wids.PackSampler`: ``{"lengths": "tokens", "pack_tokens": 8192}``; a ``collate_fn``
            among them, such as `wids.pack_collate`, is for training alone.
        old: the training dataset of before, or its index, if data have changed: a checkpoint that was saved over it
            goes on over ``train_dataset``; see `wids.DistributedChunkedSampler.load_state_dict`.
        **options: of `torch.utils.data.DataLoader`: ``pin_memory``, ``collate_fn``, ``persistent_workers``, ... Workers
            are processes.

    Attributes:
        train_dataset: the argument; may be assigned.
        val_dataset: likewise.
        test_dataset: likewise.
        predict_dataset: likewise.
        batch_size: likewise.
        num_workers: likewise.
        batches: likewise.
        packs: likewise.

    Raises:
        ValueError: a dataset that a stage needs is None; a bad option of the sampler, the batches or a loader;
            ``overfit_batches`` together with ``batches`` or ``packs``, or both of these, or ``workers``.
        StateError: the checkpoint's state belongs to another dataset, seed or setting.
    """

    train_dataset: Any
    val_dataset: Any
    test_dataset: Any
    predict_dataset: Any
    batch_size: int
    num_workers: int
    batches: Mapping[str, Any] | None
    packs: Mapping[str, Any] | None

    def __init__(
        self,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        *,
        batch_size: int = 1,
        num_workers: int = 0,
        sampler: Mapping[str, Any] | None = None,
        batches: Mapping[str, Any] | None = None,
        packs: Mapping[str, Any] | None = None,
        old: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.test_dataset, self.predict_dataset = test_dataset, predict_dataset
        self.batch_size, self.num_workers, self.batches, self.packs = batch_size, num_workers, batches, packs
        if "workers" in options:
            raise InputError(
                "workers= is of wids.resumable: DataModule has worker processes, and loaders with threads are given to "
                "the Trainer, as train_dataloaders=wids.resumable(loader, workers='threads')"
            )
        self._sampler_options, self._loader_options, self._old = dict(sampler or {}), options, old
        self._loader: _TrainLoader | None = None
        self._made_for: tuple[Any, ...] = ()  # what `_wanted` was for the loader
        self._state: Any = None  # that the next loader resumes at
        self._users_reload: int | None = None  # Trainer(reload_dataloaders_every_n_epochs=), where another was set

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **datamodule_kwargs: Any,
    ) -> Self:
        """Make a module of datasets, as every `LightningDataModule` does, with the loaders of this one."""
        module = cls(batch_size=batch_size, num_workers=num_workers, **datamodule_kwargs)
        module.train_dataset, module.val_dataset = train_dataset, val_dataset
        module.test_dataset, module.predict_dataset = test_dataset, predict_dataset
        return module

    def train_dataloader(self) -> Any:
        """The loader of ``train_dataset``; the same one whenever Lightning asks again."""
        if self.train_dataset is None:
            raise ValueError("train_dataset is None; give DataModule(train_dataset), or assign it in setup()")
        loader = self._present_loader()
        if loader is None:
            ranks = {} if self._sampler_options.get("mesh") is not None else self._ranks()
            sampler = DistributedChunkedSampler(self.train_dataset, **{**ranks, **self._sampler_options})
            loader = self._loader = self._load_for_training(sampler)
            loader.trainer, self._users_reload, loader._old = self.trainer, None, self._old
            self._made_for = self._wanted()
        if self._state is not None:
            state, self._state = self._state, None
            loader.load_state_dict(state)
        if self.trainer is not None and (loader.has_begun or loader.epoch <= self.trainer.current_epoch):
            loader.sampler.set_epoch(self.trainer.current_epoch)  # type: ignore[attr-defined]  # before its length
        self._set_reload(loader)
        if self.trainer is not None and self.trainer.fit_loop.restarting:
            self._warn_of_start("the checkpoint was saved", "resume from one of another moment")
        return loader

    if TYPE_CHECKING:

        def val_dataloader(self) -> Any:
            """The loaders of ``val_dataset``."""
    else:
        val_dataloader = _ValidationHook()

    def test_dataloader(self) -> Any:
        """The loaders of ``test_dataset``."""
        return self._load_in_order("test_dataset")

    def predict_dataloader(self) -> Any:
        """The loaders of ``predict_dataset``."""
        return self._load_in_order("predict_dataset")

    def state_dict(self) -> dict[str, Any]:
        """The position of training, for Lightning's checkpoints: the same on every rank."""
        self._warn_of_start("a checkpoint is saved", "save it in on_train_batch_end or on_train_epoch_end")
        return {} if self._loader is None else self._loader.state_dict()

    def _warn_of_start(self, event: str, advice: str) -> None:
        """Warn in ``on_train_epoch_start``, where Lightning still has the batches of the epoch before."""
        trainer: Any = self.trainer
        if trainer is None:
            return
        progress = trainer.fit_loop.epoch_progress.total
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.processed
        if batches and progress.ready == progress.started + 1:
            warnings.warn(
                f"{event} in on_train_epoch_start, with the {batches} batches of the epoch before: a run that resumes "
                f"from it skips as many of epoch {trainer.current_epoch}; {advice}",
                stacklevel=3,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next ``fit`` resume there; Lightning calls it with ``ckpt_path=``."""
        if self.trainer is not None and self.trainer.state.fn != "fit":
            return  # a test of a checkpoint's weights
        loader = self._present_loader()
        if loader is None or loader.has_begun:
            self._state = state_dict
        else:  # a scheduler has asked for the number of batches before the checkpoint was read
            loader.load_state_dict(state_dict)
            self._set_reload(loader)

    def _present_loader(self) -> _TrainLoader | None:
        """The loader, if it was made for the present trainer, dataset and batch size."""
        is_present = self._loader is not None and all(
            a is b for a, b in zip(self._wanted(), self._made_for, strict=True)
        )
        return self._loader if is_present else None

    def _wanted(self) -> tuple[Any, ...]:
        return self.trainer, self.train_dataset, self.batch_size, self.batches, self.packs

    def _set_reload(self, loader: _TrainLoader) -> None:
        """Let Lightning count the batches of each epoch anew where they differ; it counts those of the first alone."""
        trainer: Any = self.trainer
        if trainer is None:
            return
        if not loader.is_length_fixed:
            if self._users_reload is None:
                self._users_reload = trainer.reload_dataloaders_every_n_epochs
            trainer.reload_dataloaders_every_n_epochs = 1
            loop = trainer.fit_loop.epoch_loop
            if getattr(loop, "restarted_on_train_batch_end", False) and loop.batch_progress.is_last_batch:
                # Lightning begins the next epoch of a checkpoint after an epoch's last batch, if that is not longer.
                done = loop.batch_progress.current
                done.completed = max(done.completed, len(loader))
        elif self._users_reload is not None:
            trainer.reload_dataloaders_every_n_epochs, self._users_reload = self._users_reload, None

    def _ranks(self) -> dict[str, Any]:
        """``num_replicas`` and ``rank``, as the trainer's strategy shares out data."""
        return dict((self.trainer and self.trainer.distributed_sampler_kwargs) or {})

    def _load_for_training(self, sampler: DistributedChunkedSampler) -> _TrainLoader:
        options = {"num_workers": self.num_workers, **self._loader_options}
        if self.batches is None and self.packs is None:
            return _TrainLoader(self.train_dataset, batch_size=self.batch_size, sampler=sampler, **options)
        if self.batches is not None and self.packs is not None:
            raise InputError("batches= makes batches of like length, and packs= packs; leave one of them out")
        if getattr(self.trainer, "overfit_batches", 0):
            raise InputError(
                "overfit_batches trains on the first samples of the dataset, in batches of batch_size, and not on "
                f"those of {'batches' if self.packs is None else 'packs'}=; leave one of them out"
            )
        said = dict(self.packs or self.batches or {})
        if self.packs is not None and "collate_fn" in said:
            options["collate_fn"] = said.pop("collate_fn")
        batches = (BucketBatchSampler if self.packs is None else PackSampler)(sampler, **said)
        loader = _TrainLoader(self.train_dataset, batch_sampler=batches, **options)
        # Lightning looks here, and would divide the samples among the ranks a second time.
        object.__setattr__(loader, "sampler", sampler)
        return loader

    def _load_in_order(self, name: str) -> Any:
        datasets = getattr(self, name)
        if datasets is None:
            if name == "val_dataset" and self.trainer is not None and self.trainer.state.fn == "fit":
                return []
            raise ValueError(f"{name} is None; give DataModule({name}=...), or assign it in setup()")
        if isinstance(datasets, Mapping):
            return {key: self._load_one_in_order(name, dataset) for key, dataset in datasets.items()}
        if isinstance(datasets, (list, tuple)):
            return [self._load_one_in_order(name, dataset) for dataset in datasets]
        return self._load_one_in_order(name, datasets)

    def _load_one_in_order(self, name: str, dataset: Any) -> Any:
        if mixed_parts(dataset) is not None:  # each sample once, not in shares
            dataset = Subset(dataset, range(len(dataset)))
        tail: Any = "mask" if takes_marks(dataset) else "pad"
        sampler = DistributedChunkedSampler(dataset, shuffle=False, tail=tail, **self._ranks())
        if name == "predict_dataset":
            sampler.dslength_per_replica = sampler.num_valid
        options = {"num_workers": self.num_workers, **self._loader_options, "drop_last": False}
        return DataLoader(dataset, batch_size=self.batch_size, sampler=sampler, **options)
