"""A DataLoader that resumes by itself: it counts the batches that its loop received, and its state is the place after.

Rules: a batch counts from the moment the loop has it. The state is the sampler's, the same on every rank, and does not
depend on batches that workers have drawn ahead. An iteration begins with its first batch, not with ``iter``: some
trainers make iterators before they say which epoch it is. Lightning, and accelerate's ``skip_first_batches``, would
read the loader otherwise than it counts; they are known by their frames, and get an error, or what they count.
"""

from __future__ import annotations

import inspect
import sys
import warnings
import weakref
from collections.abc import Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from wids.core.order.cursor import Loaded, Running
from wids.core.order.state import MAX_POSITION, EpochPosition, flat_state, nested_state, read_int
from wids.core.order.validation import check_flag, suggest_names
from wids.errors import InputError, StateError, a_kind, shown
from wids.samplers import EpochSampler, batches_of_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from wids.core.order.cursor import Epochs
    from wids.core.order.progress import Progress

_END: Any = object()
_REPLACED = "the sampler of this loader was replaced by one that has no state"


@suggest_names
def resumable(
    loader: DataLoader[Any],
    *,
    reads_ahead: bool = False,
    workers: Literal["processes", "threads"] = "processes",
    old: Any = None,
) -> ResumableLoader:
    """Let a DataLoader resume in mid-epoch: it counts the batches that its loop receives, and has a state.

    ``loader = wids.resumable(DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=4))`` is iterated as
    before, in any number of epochs. ``loader.state_dict()`` is small, the same on every rank, and exact at every
    batch, also within the loop; after ``loader.load_state_dict(state)`` the next batch comes, on any number of ranks
    and workers, and with any batch size.

    Args:
        loader: over a sampler of `wids`, as ``sampler=`` or in a `torch.utils.data.BatchSampler`; or over a
            ``batch_sampler=`` with ``state_dict(batches=...)`` and ``load_state_dict``, as `wids.MixtureBatchSampler`
            has them.
        reads_ahead: the loop has drawn one batch more than it has trained on, as with a prefetcher to the GPU, or in
            Lightning where an epoch has no end (not with ``training_step(self, dataloader_iter)``, which draws
            itself); the state is the place before that batch.
        workers: what the loader's ``num_workers`` are. ``"threads"``: threads of this process, and no process is
            started. The order, the state, ``prefetch_factor``, ``timeout`` and ``pin_memory`` are the same, and batches
            need not be sent. For transformations that leave the GIL (decoding, numpy, torch), and for undecoded
            samples; those that hold it (tokenizing in Python) take turns, and `wids.seeded` is refused: `wids.rng` has
            the same numbers in both.
        old: the dataset of before, or its index, if data have changed: a state that was saved over it goes on over
            the data of now, also where a trainer loads it. See `wids.DistributedChunkedSampler.load_state_dict`.

    Raises:
        InputError: the position of the loader cannot be known: another sampler, an ``IterableDataset``,
            ``in_order=False``, or a loader that accelerate has divided; or its dataset is not as long as its sampler's,
            where both are datasets of shards; or ``workers="threads"`` with
            ``num_workers=0``, a ``worker_init_fn``, or a loader with an ``__iter__`` of its own. The message says what
            to do.
        ValueError: ``workers`` is neither.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> dataset = wids.ShardListDataset("train.json")
        >>> loader = wids.resumable(DataLoader(dataset, batch_size=4, sampler=wids.ChunkedSampler(dataset)))
        >>> batch = next(iter(loader))
        >>> loader.load_state_dict(loader.state_dict())
        >>> sum(len(batch[".cls"]) for batch in loader)  # the rest of the epoch
        8
    """
    if not isinstance(loader, ResumableLoader):
        return ResumableLoader(loader, reads_ahead=check_flag("reads_ahead", reads_ahead), workers=workers, old=old)
    if (reads_ahead, workers) != (loader._reads_ahead, loader._workers) or old not in (None, loader._old):
        raise InputError(
            "the loader is resumable already, with another reads_ahead, workers or old; say it where that is"
        )
    return loader


class CountedBatches(msgspec.Struct, frozen=True):
    """The batches of a sampler of ours: the first ``size`` items of its iteration, the next, ...

    Attributes:
        sampler: of samples, or of batches; it has the state.
        progress: of the sampler.
        size: items of its iteration in a batch: samples, or 1 batch.
        is_dropping: a last smaller batch is left out.
        is_plain: the batches are torch's, of any size, so a state has their number, too.
    """

    sampler: Any
    progress: Progress[Any]
    size: int = 1
    is_dropping: bool = False
    is_plain: bool = False

    def begun(self) -> Any:
        """The run that began last."""
        return self.progress.run(is_counted=True)

    def count(self, items: int) -> int:
        """Batches of so many items."""
        return items // self.size if self.is_dropping else -(-items // self.size)

    def is_left(self, delivery: _LoaderRun) -> bool:
        """True if the next iteration would go on where the workers of a loop are that was left."""
        now, run = self.progress.cursor, delivery.run
        is_endless = run is not None and run.epochs.passes is None
        return is_endless and isinstance(now, Running) and now.run is run and not now.is_named

    def is_present(self, delivery: _LoaderRun) -> bool:
        """True if an iteration knows the loader's position; else an epoch was chosen, or a state loaded, after it."""
        return not delivery.is_closed or self.progress.run() is delivery.run

    def state(self, delivery: _LoaderRun, batches: int, *, is_over: bool) -> dict[str, Any]:
        """The state after so many batches of an iteration, or after all of them."""
        run, count = delivery.run, batches * self.size
        epochs, place = run.epochs, run.place
        # With drop_last, or a trainer's own limit, items are left that are not read.
        has_left = self.size > 1 or (is_over and not epochs.is_over(run.place_after(count)))
        if has_left and epochs.end(place) is not None:
            left = epochs.count(place) - place.yielded
            count = left if is_over or batches >= self.count(left) else min(count, left)
        return self.progress.state_at(epochs, run.place_after(count))


class StrangeBatches(msgspec.Struct, frozen=True):
    """The batches of a stranger's batch sampler, which counts them itself."""

    sampler: Any

    def begun(self) -> Any:
        """An iteration of which nothing is known: each is a new one."""
        return object()

    def is_left(self, delivery: _LoaderRun) -> bool:
        """True if the next iteration would go on where the workers of a loop are that was left."""
        try:
            len(self.sampler)
        except TypeError:  # it has no end
            return not delivery.is_over
        return False

    def is_present(self, _delivery: _LoaderRun) -> bool:
        """True: only the batch sampler knows better."""
        return True

    def state(self, delivery: _LoaderRun, batches: int, *, is_over: bool) -> dict[str, Any]:
        """The state after so many batches of an iteration, or after all of them."""
        state: dict[str, Any]
        if is_over or delivery.is_over:
            state = self.sampler.state_dict()
            return state
        try:
            state = self.sampler.state_dict(batches=batches)
        except ValueError:
            if not delivery.is_closed:
                raise
            state = self.sampler.state_dict()  # another epoch was chosen since the loop was left
        return state


class _LoaderRun:
    """The delivery of an iteration of a loader.

    Attributes:
        run: of `CountedBatches.begun`.
        before: batches of the epoch before it.
        source: refers to the iterator of the DataLoader.
        delivered: number of batches.
        is_closed: the loop was left, or is over.
        is_over: it is over.
    """

    run: Any
    source: weakref.ref[Iterator[Any]]
    before: int
    delivered: int
    is_closed: bool
    is_over: bool

    def __init__(self, run: Any, source: Iterator[Any], *, before: int) -> None:
        self.run, self.source, self.before = run, weakref.ref(source), before
        self.delivered, self.is_closed, self.is_over = 0, False, False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy's sampler does not know how far its original is, either


class Counting:
    """The common part of `ResumableLoader` and the loader of `wids.lightning`: they count batches.

    The state is the sampler's, and ``"batches"``: how many of the epoch each rank has had, for trainers that count
    them.
    """

    _reads_ahead = False  # the loop has one batch more than it is done with
    _old: Any = None  # the data that a state may have been saved over
    _delivery: _LoaderRun | None = None  # the iteration that has delivered last
    _newest: _LoaderRun | None = None  # that began last
    _loaded: tuple[EpochPosition, int] | None = None  # a state's place and batches

    def _counted(self) -> CountedBatches | StrangeBatches | None:
        """The counting of batches; None: they are not counted."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that the training loop has received, as JSON values.

        It is the same on every rank. At the end of an epoch, the next iteration after a `load_state_dict` is the next
        epoch.

        Raises:
            InputError: a sampler without a state has taken the place of the loader's.
            StateError: the position is unknown.
        """
        counted, delivery = self._counted(), self._delivery
        if counted is None:
            raise InputError(_REPLACED)
        if delivery is None or not counted.is_present(delivery):
            state: dict[str, Any] = counted.sampler.state_dict()
            if isinstance(counted, CountedBatches) and counted.is_plain:
                place = EpochPosition(state["epoch"], state["position"], state["yielded"])
                state["batches"] = self._count_before(place, counted.size)
            return flat_state(state)
        batches, is_over = self._progress(delivery)
        if isinstance(counted, StrangeBatches) and delivery is not self._newest:
            raise StateError(
                "two loops read this loader at the same time, and its batch sampler knows the place of the one that "
                "began last only; take the state within that, or give each loop a loader of its own"
            )
        state = counted.state(delivery, max(batches - delivery.before, 0), is_over=is_over)
        if isinstance(counted, CountedBatches) and counted.is_plain:
            state["batches"] = batches
        return flat_state(state)

    @suggest_names
    def load_state_dict(
        self,
        state: Any,
        *,
        reweight: bool = False,
        old: Any = None,
        old_lengths: Any = None,
        old_buckets: Any = None,
        old_limits: Mapping[str, Any] | None = None,
    ) -> None:
        """Let the next iteration begin at ``state``, with any number of ranks and workers, and any batch size.

        Args:
            state: of `state_dict`, or of the sampler's.
            reweight: of a mixture whose sources or weights have changed; see the sampler's.
            old: the dataset that the state was saved over, or its index, where data have changed; see the sampler's.
            old_lengths: of batches of like length: those of the samples of ``old``; see `wids.BucketBatchSampler`.
            old_buckets: likewise.
            old_limits: likewise.

        Raises:
            StateError: it belongs to another dataset, seed or setting (the message lists what differs), or is damaged.
        """
        counted = self._counted()
        if counted is None:
            raise InputError(_REPLACED)
        state = nested_state(state)
        batches = None
        if isinstance(state, Mapping) and state.get("batches") is not None:  # a sampler's state has none
            batches = read_int(state, "batches", minimum=0, maximum=MAX_POSITION)
        old = self._old if old is None else old
        values = {"old_lengths": old_lengths, "old_buckets": old_buckets, "old_limits": old_limits}
        options = {"reweight": reweight or None, "old": old, **values}
        counted.sampler.load_state_dict(state, **{name: value for name, value in options.items() if value is not None})
        self._loaded = None
        if isinstance(counted, CountedBatches) and isinstance(counted.progress.cursor, Loaded):
            place = counted.progress.cursor.place
            self._loaded = place, -(-place.yielded // counted.size) if batches is None else batches
        self._delivery = self._newest = None
        self._follow(counted)

    def _follow(self, counted: CountedBatches | StrangeBatches) -> None:
        """Tell all that counts epochs that a state was loaded."""

    def _deliver(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The batches of a loader's iteration, counted."""
        counted, previous = self._counted(), self._newest
        if counted is None:
            yield from make()
            return
        if previous is not None and counted.is_left(previous):
            # An epoch without end goes on with the batch after the last that was delivered.
            self.load_state_dict(self.state_dict())
        before = counted.begun()
        batches = make()  # without another iter(), with which the iterator of Ray's loader begins anew
        try:
            batch = next(batches, _END)
        except BaseException:
            if counted.begun() is not before:
                self._begin(counted, batches).is_closed = True
            raise
        delivery = self._begin(counted, batches)
        try:
            while batch is not _END:
                newest = self._newest
                if newest is not None and newest.source() is batches:
                    delivery = newest  # persistent workers have one iterator, which the next loop takes over
                delivery.delivered += 1
                self._delivery = delivery
                yield batch
                batch = next(batches, _END)
            delivery.is_over = True
        finally:
            delivery.is_closed = True

    def _begin(self, counted: CountedBatches | StrangeBatches, source: Iterator[Any]) -> _LoaderRun:
        """Note that an iteration has begun."""
        run = counted.begun()
        before = self._count_before(run.place, counted.size) if isinstance(counted, CountedBatches) else 0
        self._delivery = self._newest = _LoaderRun(run, source, before=before)
        self._loaded = None
        return self._delivery

    def _progress(self, delivery: _LoaderRun) -> tuple[int, bool]:
        """Number of batches of the epoch that the loop is done with; and True if it will read no more of it."""
        is_ahead = self._reads_ahead and bool(delivery.delivered) and not delivery.is_over
        return delivery.before + delivery.delivered - is_ahead, False

    def _count_before(self, place: EpochPosition, size: int) -> int:
        """Batches of a place's epoch before the place."""
        if self._loaded is not None and self._loaded[0] == place:
            return self._loaded[1]
        newest = self._newest
        if newest is not None and newest.run.place == place:
            return newest.before
        return -(-place.yielded // size)

    def _count(self, counted: CountedBatches, epochs: Epochs, place: EpochPosition) -> int:
        """Batches of a place's epoch: those before the place, and those from there on."""
        left = counted.count(epochs.count(place) - place.yielded)
        return self._count_before(place, counted.size) + left

    def _count_epoch(self, counted: CountedBatches) -> int:
        """Batches of the present epoch, with those before a resume."""
        epochs = counted.progress.epochs()
        return self._count(counted, epochs, counted.progress.place(epochs))


class ResumableLoader(Counting):
    """A `torch.utils.data.DataLoader` with a state, made by `resumable`; it has the attributes of that one.

    It is a `torch.distributed.checkpoint.stateful.Stateful`. It is no `DataLoader` for ``isinstance``: accelerate and
    Lightning leave it as it is, and would divide the samples of one a second time. ``accelerate.skip_first_batches``
    gives what goes on where the loaded state says, if that is after as many batches. In a ``with`` statement it is
    closed at the end.

    Args:
        loader: see `resumable`.
        reads_ahead: see `resumable`.
        workers: see there.
        old: see there.

    Raises:
        InputError, ValueError: see `resumable`.
    """

    _epoch_length: int | None = None  # of the first epoch that a trainer has read
    _iterations: weakref.WeakSet[Any] | None = None

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        reads_ahead: bool = False,
        workers: Literal["processes", "threads"] = "processes",
        old: Any = None,
    ) -> None:
        self._loader, self._reads_ahead, self._workers, self._old = loader, reads_ahead, workers, old
        sampler = self._counted().sampler
        _check_same(getattr(getattr(sampler, "sampler", sampler), "dataset", None), loader.dataset)
        if workers not in ("processes", "threads"):
            raise ValueError(f"workers is {shown(workers)}; it must be 'processes' or 'threads'")
        if workers == "threads":
            from wids import loader_threads

            loader_threads.check(loader)

    def __iter__(self) -> Iterator[Any]:
        iteration = self._deliver(self._start)
        if self._iterations is None:
            self._iterations = weakref.WeakSet()
        self._iterations.add(iteration)
        return iteration

    def _start(self) -> Iterator[Any]:
        """An iteration of the loader; by now, a trainer that names epochs has named it."""
        lightning = _find_lightning(sys._getframe(2))  # of what draws from `_deliver`
        if lightning is not None:
            self._begin_in(lightning[0], is_drawn_by_step=lightning[1])
        if self._workers == "processes":
            return iter(self._loader)
        from wids import loader_threads

        loader_threads.check(self._loader)  # its attributes may have been assigned since
        return loader_threads.ThreadIterator(self._loader)

    def _begin_in(self, epoch_loop: Any, *, is_drawn_by_step: bool) -> None:
        """Begin an epoch in Lightning; see `_LIGHTNINGS`."""
        if epoch_loop is not None:
            count_as_begun(epoch_loop.trainer)
        has_end = self._find_length() is not None
        if not is_drawn_by_step and self._reads_ahead is has_end:
            if self._reads_ahead:
                raise InputError("Lightning reads no batch ahead of an epoch with an end; leave reads_ahead=True out")
            raise InputError(
                "the sampler has no end, and then Lightning reads one batch ahead of its training, which a state would "
                "skip: wids.resumable(loader, reads_ahead=True)"
            )
        check_length(self, "Lightning")

    @property
    def batches_done(self) -> int:
        """Batches of the epoch before the next one, with those before a resume, for loops that count them.

        Raises:
            InputError: only the batch sampler knows it, for it is not of `wids`.
        """
        done = self._done()
        if done is None:
            name = type(self._loader.batch_sampler).__name__
            raise InputError(f"the batches of an epoch are counted by the loader's batch_sampler, a {name}; ask that")
        return done

    def _done(self) -> int | None:
        counted, state = self._counted(), self.state_dict()
        if isinstance(counted, StrangeBatches):
            return None
        return int(state["batches"]) if counted.is_plain else counted.count(state["yielded"])

    def _find_length(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # it has no end
            return None

    def __len__(self) -> int:
        """Batches of the whole epoch, with those before a resume."""
        counted = self._counted()
        if isinstance(counted, CountedBatches) and counted.is_plain:
            return self._count_epoch(counted)
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; see the sampler's.

        Args:
            epoch: from 0.
        """
        self._set_epoch(epoch, self._counted())

    def __getattr__(self, name: str) -> Any:
        if name == "_loader" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        frame = _find_skipping()
        return getattr(self._loader if frame is None else self._skip(frame), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._loader, name, value)

    def __repr__(self) -> str:
        more = ", workers='threads'" if self._workers == "threads" else ""
        return f"wids.resumable({self._loader!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterations": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, and each loop over the loader, as if its epoch had no more batches; more than once as well.

        The state stays. A later iteration starts workers anew. Not while another thread draws a batch.
        """
        for iteration in list(self._iterations or ()):
            iteration.close()
        owner, delivery = _unwrap(self._loader), self._newest
        for source in (delivery and delivery.source(), owner._iterator):
            getattr(source, "_shutdown_workers", bool)()
        owner._iterator = None  # of persistent workers

    def _skip(self, frame: Any) -> _Skipped:
        """For accelerate's ``skip_first_batches``, of which this is the frame.

        Raises:
            InputError: the place of the loader is after another number of batches.
        """
        asked, done = frame.f_locals["num_batches"], self._done()
        if done not in (asked, None):
            raise InputError(
                f"{asked} batches are to be skipped, and the loader is after {done} of its epoch. It goes on by itself "
                "where its state says: load the state first, and resume with the ranks, batch size and gradient "
                "accumulation of the checkpoint, or leave skip_first_batches out (in the Trainer of Hugging Face, with "
                "a sampler of epochs=None: ignore_data_skip=True)"
            )
        return _Skipped(self, asked)

    def _begin(self, counted: CountedBatches | StrangeBatches, source: Iterator[Any]) -> _LoaderRun:
        if hasattr(self._loader, "remainder"):
            # Accelerate would cut what `gather_for_metrics` gathers of the last batches to as many samples as remain of
            # the dataset in batches of one process.
            self._loader.remainder = -1
        return super()._begin(counted, source)

    def _follow(self, counted: CountedBatches | StrangeBatches) -> None:
        if isinstance(counted, CountedBatches):
            self._set_count(counted.progress.next_place().epoch)

    def _set_count(self, epoch: int) -> None:
        """Let a loader of accelerate or Fabric, which counts epochs itself, name this one when it is iterated."""
        for name in (_ACCELERATES_EPOCH, _FABRICS_EPOCH):
            if hasattr(self._loader, name):
                setattr(self._loader, name, epoch)

    def _set_epoch(self, epoch: int, counted: CountedBatches | StrangeBatches) -> None:
        self._set_count(epoch)
        choose = getattr(self._loader, "set_epoch", counted.sampler.set_epoch)
        choose(epoch)

    def _counted(self) -> CountedBatches | StrangeBatches:
        return count_by(self._loader)


class _Skipped:
    """The `DataLoader` of ``accelerate.skip_first_batches(loader, done)``, made of the loader's own batches.

    It is that one's dataset, collate function and batch sampler. accelerate drops the first ``done`` batches, which are
    None here, and those after them pass through as the loader delivers them, one by one.
    """

    sampler = prefetch_factor = None

    def __init__(self, loader: ResumableLoader, done: int) -> None:
        self._loader, self._done = loader, done
        self.dataset = self.batch_sampler = self
        self.set_epoch = loader.set_epoch

    def __iter__(self) -> Iterator[Any]:
        yield from repeat(None, self._done)
        yield from self._loader

    def __len__(self) -> int:
        return len(self._loader)

    def __getitems__(self, batch: Any) -> Any:
        return batch

    def collate_fn(self, batch: Any) -> Any:
        """Return the batch, which the loader has collated."""
        return batch


# The attributes in which loaders of these count their iterations.
_ACCELERATES_EPOCH, _FABRICS_EPOCH = "iteration", "_num_iter_calls"


def _unwrap(loader: Any) -> Any:
    """The DataLoader in one of accelerate, of Fabric or of Ray."""
    for name in ("base_dataloader", "_dataloader"):
        loader = getattr(loader, name, loader)
    return loader


# Modules of Lightning that iterate loaders. It reads an epoch without end one batch ahead of its training, and counts
# an epoch that follows a checkpoint of the last batch of another as not begun: a state would lose a batch, or a second
# resume repeat batches, and nothing else tells a loader that Lightning reads it.
_LIGHTNINGS = ("lightning.pytorch.utilities.combined_loader", "pytorch_lightning.utilities.combined_loader")


def _find_lightning(frame: Any) -> tuple[Any, bool] | None:
    """Find Lightning in a frame that draws a batch.

    Returns:
        Its loop over an epoch's training batches (None: another of its loops draws), and whether it draws for
        ``training_step(self, dataloader_iter)``, which reads ahead, or does not. None: the frame is not Lightning's.
    """
    if frame.f_globals.get("__name__") not in _LIGHTNINGS:
        return None
    is_drawn_by_step = False
    while frame is not None:
        name, owner = frame.f_globals.get("__name__", ""), frame.f_locals.get("self")
        if name.endswith(".loops.training_epoch_loop"):
            return owner, is_drawn_by_step
        is_drawn_by_step |= name.endswith(".fetchers") and type(owner).__name__ == "_DataLoaderIterDataFetcher"
        frame = frame.f_back
    return None, is_drawn_by_step


def count_as_begun(trainer: Any) -> None:
    """Let a trainer of Lightning count the epoch that it draws its first batch of as begun.

    It does not after a checkpoint of the last batch of an epoch. A checkpoint of the next epoch would then say that no
    epoch has begun, and a run that resumes from that would count its batches from 0, and read them again.
    """
    progress = trainer.fit_loop.epoch_progress
    if progress.total.ready == progress.total.processed:
        progress.increment_ready()
        progress.increment_started()


def check_length(loader: ResumableLoader, trainer: str) -> None:
    """Warn if an epoch that has begun has not as many batches as the first, which a trainer has counted alone."""
    length, first = loader._find_length(), loader._epoch_length
    loader._epoch_length = length if first is None else first
    if first is not None and length != first:
        warnings.warn(
            f"this epoch has {length} batches, and {trainer} has counted {first}, those of an epoch before: it reads "
            "no more of a longer one, and a resume may begin in another epoch. Train by steps: epochs=None for the "
            "sampler, and max_steps for the trainer",
            stacklevel=3,
        )


def _find_skipping() -> Any:
    """The frame of accelerate's ``skip_first_batches``, if that has called the method which asks; else None.

    It would make another DataLoader of the attributes of this one, which skips the batches a second time, uncounted.
    """
    frame: Any = sys._getframe(2)
    if frame.f_code.co_name == "<dictcomp>":  # before Python 3.12
        frame = frame.f_back
    is_skipping = frame.f_code.co_name == "skip_first_batches"
    return frame if is_skipping and frame.f_globals.get("__name__") == "accelerate.data_loader" else None


def _check_same(known: Any, read: Any) -> None:
    """Raise unless a DataLoader's dataset is as long as its sampler's, where both are datasets of shards.

    Raises:
        InputError: it is not.
    """
    if read is not known and hasattr(known, "shards") and hasattr(read, "shards") and len(known) != len(read):
        raise InputError(
            f"the DataLoader reads a dataset of {len(read):,} samples, and its sampler was made for one of "
            f"{len(known):,}; give both the same dataset"
        )


def count_by(loader: Any) -> CountedBatches | StrangeBatches:
    """The counting of the batches of a loader.

    Raises:
        InputError: they cannot be; see `resumable`.
    """
    if not isinstance(loader, DataLoader) and not hasattr(loader, _FABRICS_EPOCH):
        raise InputError(f"the loader is {a_kind(loader)}; it must be a torch.utils.data.DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(
            f"the loader reads {a_kind(loader.dataset)}, whose order no sampler knows; give the DataLoader a "
            "wids.ShardListDataset (or another with len() and [i]) and sampler=wids.DistributedChunkedSampler(dataset)"
        )
    if not getattr(loader, "in_order", True):
        raise InputError(
            "the loader has in_order=False: batches come as its workers finish them, so no position says which were "
            "delivered; leave in_order out"
        )
    batch_sampler: Any = loader.batch_sampler
    if type(loader).__name__ == "DataLoaderDispatcher" or type(batch_sampler).__name__ == "BatchSamplerShard":
        raise InputError(
            "accelerate divides the batches of this loader among the processes, and the sampler has divided the samples"
            " already, so most would never be read; prepare wids.resumable(loader), which accelerate leaves whole, or "
            "use prepare_data_loader(loader, num_processes=1, process_index=0)"
        )
    if batch_sampler is None:
        sampler = _check_sampler(loader.sampler)
        return CountedBatches(sampler, sampler.__wids__(), is_plain=True)
    if type(batch_sampler) in _plain_batch_samplers():
        sampler, size = _check_sampler(batch_sampler.sampler), batch_sampler.batch_size
        is_dropping = batch_sampler.drop_last
        return CountedBatches(sampler, sampler.__wids__(), size, is_dropping=is_dropping, is_plain=True)
    state_dict = getattr(batch_sampler, "state_dict", None)
    is_counting = callable(state_dict) and "batches" in inspect.signature(state_dict).parameters
    if not is_counting or not callable(getattr(batch_sampler, "load_state_dict", None)):
        raise InputError(
            f"the loader's batch_sampler is {a_kind(batch_sampler)}, and which samples its batches have had "
            "is not known; it needs state_dict(batches=...) and load_state_dict(state), as wids.MixtureBatchSampler "
            "has them. Or give the DataLoader sampler=wids.DistributedChunkedSampler(dataset) and batch_size="
        )
    # A subclass with a state_dict of its own says where it is.
    definer = next((kind for kind in type(batch_sampler).__mro__ if "state_dict" in vars(kind)), object)
    if "__wids__" not in vars(definer):
        return StrangeBatches(batch_sampler)
    progress = batch_sampler.__wids__()
    # The progress of batches of a mixture is that of their samples.
    return CountedBatches(batch_sampler, progress, batch_sampler.batch_size if progress.samples is progress else 1)


def _plain_batch_samplers() -> set[Any]:
    """Classes whose batches are the next ``batch_size`` indices of their sampler."""
    torchdatas = sys.modules.get("torchdata.stateful_dataloader.sampler")
    return {BatchSampler, getattr(torchdatas, "BatchSampler", BatchSampler)}


def _check_sampler(sampler: Any) -> Any:
    """Return a sampler of ours that knows its position.

    Raises:
        InputError: it is another one.
    """
    name = type(sampler).__name__
    if getattr(sampler, "_yields_batches", False):
        raise batches_of_batches(sampler)
    if not isinstance(sampler, EpochSampler):
        raise InputError(
            f"the loader's sampler is {a_kind(sampler)}, whose position is not known; give the DataLoader "
            "sampler=wids.DistributedChunkedSampler(dataset), with shuffle=False there for the order of the dataset"
        )
    if sampler.state_dict is None:
        raise InputError(
            f"the class of the loader's sampler, {name}, has an __iter__ of its own, so its position is not known; if "
            "that yields what super().__iter__() yields, put state_dict, load_state_dict = "
            "wids.ChunkedSampler.state_dict, wids.ChunkedSampler.load_state_dict into the class"
        )
    return sampler
