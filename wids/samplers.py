"""The samplers as PyTorch takes them; the order itself is computed in `wids.core.order`.

Rules: every rank yields the same number of indices, for any length and world size, and ``len`` is that number. The
order is a function of (seed, epoch) alone. ``set_epoch`` chooses the epoch of the next iteration; without it each
iteration takes the next epoch. Explicit ``rank`` and ``num_replicas`` override the process group and the environment. A
state is one position in the global order: it is the same on every rank, and can be loaded on any number of ranks.
"""

from __future__ import annotations

import copy
import inspect
import os
import random
import sys
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch.distributed
from torch.utils.data import Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from wids.core.files.held import holding, is_released, release
from wids.core.files.lazy import Computed
from wids.core.order.cursor import Loaded
from wids.core.order.iteration import Iteration
from wids.core.order.lane import MAX_TOGETHER
from wids.core.order.layout import mixed_parts, takes_marks
from wids.core.order.population import ChunkPopulation, MixturePopulation, RangePopulation, choose_population
from wids.core.order.progress import SampleProgress
from wids.core.order.settings import SamplerSettings, Setting
from wids.core.order.validation import check_flag, parse_int, parse_range, parse_ranges, shard_ends, suggest_names
from wids.core.prefetch.ahead import SharedBlocks, prefetch
from wids.errors import InputError, a_kind, shown
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized

    from numpy.typing import NDArray

    from wids.core.order.amendment import Earlier
    from wids.core.order.cursor import Run
    from wids.core.order.epoch import Reshuffle, Tail
    from wids.core.order.layout import SourceSpan
    from wids.core.order.population import Population
    from wids.core.order.progress import Progress
    from wids.core.prefetch.prefetcher import Prefetcher

T_co = TypeVar("T_co", covariant=True)


class StatefulSampler(Sampler[T_co]):
    """The base of the samplers of samples and of batches: iterations, copies, a length and a state."""

    epoch: Any
    _progress: Progress[Any]
    _prefetcher: weakref.ref[Prefetcher] | None = None
    _epoch_rng: tuple[int, random.Random] | None = None  # see `SamplerAttributes.rng`

    def __wids__(self) -> Progress[Any]:
        """The sampler's progress in its epochs, for loaders and other samplers.

        Raises:
            RuntimeError: the constructor was never called.
        """
        if not is_released(self):
            raise RuntimeError(
                f"{type(self).__name__} is a sampler of wids that was never initialized: its __init__ has to call "
                "super().__init__(dataset, ...)"
            )
        return self._progress

    def __iter__(self) -> Iterator[T_co]:
        return Iteration(self.__wids__(), self._prefetch)

    def __len__(self) -> int:
        return self.__wids__().count()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": copy.copy(self.__wids__()), "_prefetcher": None}

    # --- epochs

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; an iteration that has begun does not change.

        After `load_state_dict`, the state's epoch resumes at the state's position; any other epoch begins at its start.

        Args:
            epoch: from 0.
        """
        self.epoch = epoch

    # --- state

    @suggest_names
    def load_state_dict(self, state: Any, *, reweight: bool = False, old: Any = None) -> None:
        """Let the next iteration resume at ``state``, with any number of ranks and workers, and any batch size.

        All ranks load the same state. If the state is at the end of its epoch, the next iteration is the next epoch,
        unless `set_epoch` chooses the same one. The weights of a mixture are the state's, also what `reweight` has
        changed.

        Args:
            state: of `state_dict`.
            reweight: the dataset is a mixture whose sources or weights are not all the state's: from the state's
                position on (of batches of like length: from the end of its block on), they hold. Sources that were
                there before go on where they were.
            old: the dataset that the state was saved over, or its index (a path, a URL, a list of shards), where the
                sampler's dataset has other samples now. The rest of the state's epoch is what that had not read, and
                what is new; see `wids.ShardListDataset.unseen`. Of a mixture, each source goes on in its own pass, and
                sources and weights may be others (``reweight``). A state of the data of now is loaded as without it.

        Raises:
            StateError: it belongs to another dataset, seed or setting, or to other lengths or buckets (the message
                lists what differs); or it is damaged.
        """
        self._load(state, is_reweighted=reweight, earlier=None if old is None else self._find_earlier(old))

    def _load(self, state: Any, *, is_reweighted: bool, earlier: Earlier | None) -> None:
        progress = self.__wids__()
        progress.load(state, is_reweighted=is_reweighted, earlier=earlier)
        self._epoch_rng = None
        node = _loading_node()
        if node is not None:
            node.epoch = progress.next_place().epoch

    def _find_earlier(self, old: Any) -> Earlier:
        from wids.core.collection.changes import find_earlier, open_earlier

        return find_earlier(self.__wids__().samples.dataset, open_earlier(old))

    @suggest_names
    def reweight(self, weights: Mapping[str, float], *, at: int | None = None) -> int:
        """Change the weights of a mixture's sources, on all ranks alike.

        Args:
            weights: name -> weight; sources that are left out keep theirs. Those of a mixture in shares add up to 1
                before and after, so give all of them then.
            at: from this position on: a number of samples that all ranks together have had. None: from the next
                nominal epoch on.

        Returns:
            The position from which on they hold: ``at``, or up to ``lanes - 1`` more.

        Raises:
            ValueError: bad weights; the dataset is no mixture; ``at`` lies before the end of an iteration that has
                begun.
        """
        return self.__wids__().reweight(weights, at)

    # --- iterations

    def _prefetch(self, run: Run[Any]) -> tuple[Iterable[Any], Prefetcher | None]:
        """Start to prefetch the shards of a run; see ``ShardListDataset(prefetch=)``.

        Returns:
            The blocks of the run to draw from, and what prefetches them; None: nothing does.
        """
        run.is_ahead = _find_drawn()
        previous = None if self._prefetcher is None else self._prefetcher()
        if previous is not None:  # of an unfinished iteration that is still referenced
            previous.end(is_finished=False)
        shared, mixed = SharedBlocks(run), run.epochs.mixed_ranges(run.place)
        dataset = self.__wids__().samples.dataset
        prefetcher = prefetch(dataset, shared.look(), position=lambda: run.drawn_samples, mixed=mixed)
        self._prefetcher = None if prefetcher is None else weakref.ref(prefetcher)
        return (shared.blocks if prefetcher is None else shared.draw()), prefetcher


@holding
class SamplerAttributes(StatefulSampler[int]):
    """Attributes of samplers of wids 0.1, which programs read and assign, and subclasses build on.

    New programs give settings to the constructor. An assignment holds from the next iteration on.

    Attributes:
        seed: any integer, modulo 2**64; may be assigned.
        shuffle: the order is shuffled; may be assigned.
        shufflefirst: as given; it has no effect, because every epoch shuffles its chunks, the first one too.
    """

    seed: Setting = Setting()
    shuffle: Setting = Setting()
    shufflefirst: Any
    _progress: SampleProgress

    def __wids__(self) -> SampleProgress:
        """The sampler's progress; see `StatefulSampler.__wids__`."""
        super().__wids__()
        return self._progress

    @Computed
    def rng(self) -> random.Random:
        """A generator for subclasses that shuffle: a new one for each epoch, or the one that was assigned."""
        if self._epoch_rng is None or self._epoch_rng[0] != self.epoch:
            rng = random.Random(f"{self.seed} {self.epoch}")  # noqa: S311 - an order, not a secret
            self._epoch_rng = self.epoch, rng
        return self._epoch_rng[1]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The chunks as a new list of (lo, hi), half-open; assign a list to yield exactly its samples, each once.

        Raises:
            ValueError: the rank has no fixed chunks, because ranks share lanes or each epoch deals the chunks anew.
        """
        return [(lo, hi) for lo, hi in self.__wids__().epochs().ranges().tolist()]

    @ranges.setter
    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        progress = self.__wids__()
        if isinstance(progress.population, MixturePopulation):
            raise ValueError("the chunks of a mixture are those of its sources, and cannot be assigned")  # noqa: TRY004
        progress.population = ChunkPopulation(parse_ranges(ranges))
        progress.set_length(None)

    @property
    def dslength_per_replica(self) -> int:
        """The number of indices in an iteration, equal to ``len``; may be assigned."""
        return len(self)

    @dslength_per_replica.setter
    def dslength_per_replica(self, length: int) -> None:
        self.__wids__().set_length(parse_int("dslength_per_replica", length, minimum=0))


@holding
class EpochSampler(SamplerAttributes):
    """The base of the samplers of samples.

    A subclass with its own ``__iter__`` has no state, because nothing here knows its position: its ``state_dict`` is
    None, and a stateful loader resumes by drawing the same number of indices again. A subclass that yields the indices
    of ``super().__iter__()`` in order can keep the state::

        state_dict, load_state_dict = ChunkedSampler.state_dict, ChunkedSampler.load_state_dict

    Attributes that are settings may be assigned, which holds from the next iteration on; before ``super().__init__()``,
    a subclass may assign them as it may those of torch's samplers, and the constructor replaces them.

    Args:
        progress: the dataset, what of it is read, and the settings.
        shufflefirst: as given.

    Attributes:
        dataset: the argument.
        chunksize: likewise.
        window: likewise.
        tail: likewise.
        reshuffle: likewise.
        sample_seeds: likewise.
        lanes: the number of lanes of the global order.
        num_replicas: 1 of a sampler without ranks, which assigning it does not change.
        rank: 0 of such a sampler, likewise.
    """

    shufflefirst: Any
    chunksize: Setting = Setting()
    window: Setting = Setting()
    lanes: Setting = Setting()
    num_replicas: Any = 1
    rank: Any = 0
    tail: Setting = Setting()
    reshuffle: Setting = Setting()
    sample_seeds: Setting = Setting()

    def __init__(self, progress: SampleProgress, *, shufflefirst: Any) -> None:
        # Without super().__init__(): that of DistributedSampler has no range, and needs a process group.
        release(self)
        self._progress, self.shufflefirst, self._prefetcher = progress, shufflefirst, None
        self.dataset = progress.dataset  # which a subclass may keep in its own way

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__iter__" in vars(cls) and "state_dict" not in vars(cls):
            for name in ("state_dict", "load_state_dict"):
                setattr(cls, name, None)

    @property
    def dataset(self) -> Any:
        """The argument; may be assigned."""
        return self._progress.dataset

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        self._progress.dataset = dataset

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, or the one that ``set_epoch`` chose for the next; may be assigned."""
        return self._progress.cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch, progress, now = parse_int("epoch", epoch), self._progress, self._progress.cursor
        if isinstance(now, Loaded) and now.epoch != epoch and progress.epochs().is_in_the_middle(now.place):
            warnings.warn(
                f"epoch {epoch} was set after a state in the middle of epoch {now.epoch} was loaded; the rest of that "
                f"epoch is skipped. To resume in it, call set_epoch({now.epoch}), or do not call set_epoch",
                stacklevel=4,
            )
        progress.choose(epoch)
        self._epoch_rng = None

    @Computed
    def num_valid(self) -> int:
        """Number of the ``len`` indices that are not repeated; the repeated ones are the last.

        For exact evaluation on datasets that ``tail="mask"`` does not support: count only the first ``num_valid``.
        """
        progress = self.__wids__()
        epochs = progress.epochs()
        return epochs.count_valid(progress.place(epochs))

    @suggest_names
    def state_dict(self, consumed: int | None = None, *, yielded: int | None = None) -> dict[str, Any]:
        """Return the position to resume at, as a small dict of JSON values, the same on every rank.

        Without arguments it is the position after the last index that was drawn. A DataLoader with workers draws
        indices ahead of the samples that it returns, so the training loop gives the number of samples it received, in
        one of two ways; without that, there is a warning.

        Args:
            consumed: samples that this rank received from the present iteration.
            yielded: samples that this rank received in this epoch, including those before a resume.

        Raises:
            ValueError: more samples were received than indices were drawn, or both arguments are given.
        """
        return self.__wids__().state(consumed, yielded)

    def _check_marks(self) -> None:
        """Check that marks reach the samples.

        Raises:
            ValueError: ``tail="mask"`` does not. InputError: ``sample_seeds`` does not.
        """
        if not (self.tail == "mask" or self.sample_seeds) or takes_marks(self.dataset):
            return
        lost = f"and {a_kind(self.dataset)} is not known to pass the sampler's indices on to one unchanged."
        advice = "(a dataset that passes them on can set takes_marked_indices = True)"
        if self.tail == "mask":
            raise ValueError(
                f"tail='mask' puts __valid__ into the samples of a ShardListDataset, {lost} Use tail='pad' and count "
                f"the first sampler.num_valid samples only {advice}"
            )
        raise InputError(
            f"sample_seeds=True puts __seed__ into the samples of a ShardListDataset, {lost} Take a view, "
            f"dataset.select(indices), instead of a torch Subset {advice}"
        )


class ChunkedSampler(EpochSampler):
    """Chunks of consecutive samples in random order, a few of them mixed at a time: shuffled, with local access.

    Args:
        dataset: anything with ``len()``.
        dslength_per_replica: if above 0, the number of indices to yield instead of the whole range once: a larger one
            repeats the epoch from its start, a smaller one stops early.
        num_samples: the range: ``n`` for ``0 .. n``, or ``(lo, hi)``; default the whole dataset.
        chunksize: samples in a chunk.
        window: chunks that are mixed at a time, in a window that slides over them; 1 mixes each by itself.
        seed: the order is a function of the seed and the epoch.
        shuffle: False yields the range in order.
        shufflefirst: accepted for compatibility with wids 0.1; every epoch shuffles its chunks, the first one too.
        tail: see `DistributedChunkedSampler` with one rank.
        lanes: likewise; a state does not change them.
        reshuffle: likewise.
        epochs: likewise.
        epoch_size: likewise.
        weights: likewise.
        sample_seeds: likewise.

    Attributes:
        ranges: the chunks as (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: a range outside the dataset, a chunksize below 1, a value that is not an integer, or settings that
            exclude each other. InputError: ``sample_seeds``, and the dataset does not hand indices on.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> sampler = wids.ChunkedSampler(dataset, chunksize=4)
        >>> sorted(sampler) == list(range(12))
        True
    """

    @suggest_names
    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        window: int = 4,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
        tail: Tail = "pad",
        lanes: int = 1,
        reshuffle: Reshuffle = "fixed",
        epochs: int | None = 1,
        epoch_size: int | None = None,
        weights: Any = None,
        sample_seeds: bool = False,
    ) -> None:
        settings = SamplerSettings(
            seed=seed,
            shuffle=shuffle,
            chunksize=chunksize,
            window=window,
            tail=tail,
            sample_seeds=sample_seeds,
            reshuffle=reshuffle,
            lanes=lanes,
            epochs=epochs,
            epoch_size=epoch_size,
        )
        parts, (lo, hi) = _parts_of(dataset), parse_range(num_samples, n=len(dataset))
        if parts is None and weights is None:  # without the shards' boundaries, as in wids 0.1
            population: Population = RangePopulation(lo, hi, is_whole=num_samples is None)
        else:
            population = choose_population(dataset, parts, settings, num_samples=num_samples, weights=weights)
        settings = population.set_size(settings)
        length = parse_int("dslength_per_replica", dslength_per_replica)
        if length > 0:
            if lo == hi:
                raise ValueError(f"dslength_per_replica is {length}, and the range {lo} .. {hi} has no samples")
            if epochs != 1 or epoch_size is not None:
                raise ValueError(
                    f"dslength_per_replica is {length}, epochs {epochs} and epoch_size {epoch_size}; one of them can "
                    "set the end of an iteration"
                )
            settings = population.set_length(settings, length)
        super().__init__(SampleProgress(dataset, population, settings), shufflefirst=shufflefirst)
        self._check_marks()


class DistributedChunkedSampler(ChunkedSampler, DistributedSampler[int]):
    """A rank's equal share of a dataset in random chunks; resumable at any position, with any number of ranks.

    The range is cut in ``lanes`` near-equal lanes of consecutive samples. All ranks together read one global order, in
    which the lanes take turns: with as many lanes as ranks each rank reads one lane, so most shards are downloaded by
    one rank. `wids.core.order.epoch` has the definition and a picture.

    Args:
        dataset: anything with ``len()``; shard boundaries are used where it has ``lengths``, and through
            `torch.utils.data.Subset` and ``ConcatDataset``. A subset in another order (``random_split``) is read shard
            by shard if it is shuffled.
        num_replicas: default: the process group's size, else ``$WORLD_SIZE``, else 1.
        num_samples: the range to divide among the ranks: ``n``, or ``(lo, hi)``; default the whole dataset.
        rank: default: 0 of one replica, else the process group's, else ``$RANK``.
        shuffle: False yields each lane in order.
        shufflefirst: accepted for compatibility with wids 0.1.
        seed: must be the same on all ranks.
        drop_last: True is ``tail="drop"``, False ``tail="pad"``.
        chunksize: the maximal number of samples in a chunk; chunks are cut at shard boundaries too.
        window: chunks that are mixed at a time, so that a batch has samples of several shards; 1 mixes each by itself.
        tail: the way to equal counts for ranks that do not divide an epoch: ``"pad"`` (default) repeats a sample on
            some ranks, ``"drop"`` leaves out fewer samples than there are ranks, ``"mask"`` pads and adds
            ``__valid__`` to every sample dict, False for repeated samples, for exact evaluation.
        lanes: default: ``num_replicas``, or those of a loaded state.
        reshuffle: ``"fixed"``: a lane is the same part of the range in all epochs, so a node finds its shards in its
            cache; ``"epoch"``: chunks are dealt to the lanes anew in each epoch.
        epochs: passes in one iteration, one after another without a tail between them; None for endless iteration.
        epoch_size: samples of all ranks in a nominal epoch. Nominal epochs are consecutive parts of the endless
            sequence of passes, so that every sample is seen equally often; their ends are rounded up to equal counts
            on all ranks. With ``weights``, the samples of a pass.
        weights: frequencies of samples: a number for each sample of the dataset, the name of a column, or an SQL
            expression over columns. A sample's expected copies in a pass are its part of all weights, times
            ``epoch_size`` (default: the samples there are); it comes floor or ceiling of that, other ones each pass.
            See `wids.balance`.
        source_batch: of a mixture, the number of samples in turn that a rank reads of one source. With the loader's
            batch size, each global batch is of one source, and nominal epochs are whole global batches; see
            `wids.MixtureBatchSampler`.
        mesh: a `torch.distributed.device_mesh.DeviceMesh` of one dimension, as ``device_mesh["dp"]``, in place of
            ``num_replicas`` and ``rank``: processes of one tensor- or pipeline-parallel group get the same samples.
        lengths: number of samples in each part of the dataset that is read together: the row groups of a Parquet file,
            the batches of an Arrow file, fragments, episodes. They are taken for shards: a chunk is of one part, so a
            rank reads about ``window`` parts at a time. Default: the dataset's own shards. A state holds for the same
            lengths only.
        sample_seeds: give every sample dict ``__seed__``, an int, 0 .. 2**63 - 1, for `wids.seeded` and `wids.rng`: a
            function of ``seed``, the pass, the sample's index in the dataset (in a mixture: the name of its source, and
            its index and pass there) and, with ``weights``, the number of its copy in the pass. Ranks, workers,
            ``window``, ``chunksize``, ``lanes`` and a resume do not change it. Samples that are repeated to make the
            ranks equal have the seed of the first time. States are the same with and without.

    Attributes:
        num_samples: indices that each rank yields, equal to ``len``.
        total_size: indices of all ranks together.
        num_valid: number of the rank's indices that are not repeated.
        ranges: the rank's chunks as (lo, hi), half-open; may be assigned, and then the caller provides equal counts.

    Raises:
        ValueError: a rank that is unknown or outside ``0 .. num_replicas``, a range outside the dataset, a chunksize
            below 1, ``lengths`` that do not add up to the dataset, settings that exclude each other, or a value that is
            not an integer.
        InputError: a ``mesh`` that says no rank; ``sample_seeds``, and the dataset does not hand indices on to a
            `wids.ShardListDataset`. When it is iterated, or asked for its length: a process group of another size has
            been initialized since it was made without ``num_replicas``.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> ranks = [wids.DistributedChunkedSampler(dataset, rank=rank, num_replicas=5) for rank in range(5)]
        >>> [len(list(sampler)) for sampler in ranks]
        [3, 3, 3, 3, 3]
    """

    num_replicas: Setting = Setting()
    rank: Setting = Setting()
    drop_last: bool

    @suggest_names
    def __init__(
        self,
        dataset: Sized,
        *,
        num_replicas: int | None = None,
        num_samples: int | tuple[int, int] | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        shufflefirst: bool = False,
        seed: int = 0,
        drop_last: bool | None = None,
        chunksize: int = 10_000,
        window: int = 4,
        tail: Tail | None = None,
        lanes: int | None = None,
        reshuffle: Reshuffle = "fixed",
        epochs: int | None = 1,
        epoch_size: int | None = None,
        weights: Any = None,
        source_batch: int = 1,
        mesh: Any = None,
        lengths: Sequence[int] | NDArray[Any] | None = None,
        sample_seeds: bool = False,
    ) -> None:
        parts = _parts_of(dataset)
        if mesh is not None:
            num_replicas, rank = _parse_mesh(mesh, num_replicas, rank)
        world, own_rank = _parse_rank(num_replicas, rank)
        settings = SamplerSettings(
            seed=seed,
            shuffle=shuffle,
            chunksize=chunksize,
            window=window,
            num_replicas=world,
            rank=own_rank,
            tail=_parse_tail(tail, drop_last),
            sample_seeds=sample_seeds,
            reshuffle=reshuffle,
            lanes=world if lanes is None else lanes,
            epochs=epochs,
            epoch_size=epoch_size,
            source_batch=source_batch,
            takes_lanes=lanes is None,
        )
        population = choose_population(
            dataset, parts, settings, num_samples=num_samples, weights=weights, lengths=lengths
        )
        progress = SampleProgress(dataset, population, population.set_size(settings))
        if num_replicas is None:
            progress.check = partial(_check_group, world, own_rank if rank is None else None)
        EpochSampler.__init__(self, progress, shufflefirst=shufflefirst)
        self.drop_last = settings.tail == "drop"
        read = progress.epochs()
        read.first_place(0)  # raises for nominal epochs with less than a sample for each rank
        if lanes is not None and shuffle and 0 < len(read.plan) < 2 * settings.lanes and settings.lanes > world:
            logger.warning(
                "lanes is %d, and there are %d samples: most lanes have one or none, so next to nothing is shuffled",
                *(settings.lanes, len(read.plan)),
            )
        self._check_marks()

    @Computed
    def num_samples(self) -> int:
        """Indices that every rank yields."""
        return len(self)

    @Computed
    def total_size(self) -> int:
        """Indices that all ranks yield together."""
        return len(self) * self.__wids__().settings.num_replicas


class ShardListSampler(EpochSampler):
    """All shards in random order, the samples of each mixed: one pass that opens each shard once.

    Args:
        dataset: a dataset with ``lengths``, or any object if ``lengths`` is given.
        lengths: samples in each shard.
        window: shards that are mixed at a time.
        seed: the order is a function of the seed and the epoch.
        shufflefirst: accepted for compatibility with wids 0.1.

    Attributes:
        ranges: each shard's (lo, hi), half-open; may be assigned.

    Raises:
        ValueError: lengths that are missing, negative or not integers.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> [shard for shard in sorted(wids.ShardListSampler(dataset).ranges)]
        [(0, 4), (4, 8), (8, 12)]
    """

    @suggest_names
    def __init__(
        self,
        dataset: Any,
        *,
        lengths: Sequence[int] | None = None,
        window: int = 1,
        seed: int = 0,
        shufflefirst: bool = False,
    ) -> None:
        if lengths is None and mixed_parts(dataset) is not None:
            raise ValueError("the dataset is a mixture, whose shards have no common order; use ChunkedSampler")
        counts = getattr(dataset, "lengths", None) if lengths is None else lengths
        ends = shard_ends(counts)
        if ends is None:
            raise ValueError(f"lengths is {counts!r:.200}; it must be the number of samples in each shard")
        chunks = np.stack([np.append(0, ends[:-1])[: len(ends)], ends], axis=1)
        if len(chunks) and (most := int(np.diff(chunks).max())) > MAX_TOGETHER:
            raise InputError(
                f"a shard has {most:,} samples, and this sampler has the indices of {window} whole shards in memory; "
                "use ChunkedSampler, or see whether the lengths are right"
            )
        is_whole = lengths is None and hasattr(dataset, "__len__") and len(dataset) == ends[-1:].sum()
        settings = SamplerSettings(seed=seed, window=window)
        population = ChunkPopulation(chunks, is_whole=is_whole)
        super().__init__(SampleProgress(dataset, population, settings), shufflefirst=shufflefirst)


ShardedSampler = ShardListSampler


def _check_group(world: int, rank: int | None, settings: SamplerSettings) -> None:
    """Raise unless the process group, if there is one by now, is the one that the samples are divided for.

    Args:
        world: the ranks that were found when the sampler was made; others that were assigned are as good as given.
        rank: likewise; None: it was given.
        settings: of the sampler.

    Raises:
        InputError: it is another one, so that ranks would read the same samples.
    """
    if settings.num_replicas != world or not _has_group():
        return
    there = torch.distributed.get_world_size(), torch.distributed.get_rank()
    if there[0] != world or (rank is not None and settings.rank == rank != there[1]):
        raise InputError(
            f"the sampler divides the samples for {world} rank(s), of which this is rank {settings.rank}, and the "
            f"process group has {there[0]}, of which this is rank {there[1]}: they would not read each sample once. "
            "Make the sampler after init_process_group, or give it num_replicas= and rank="
        )


def _parts_of(dataset: Any) -> list[SourceSpan] | None:
    """The sources of a mixture; None: a dataset is none.

    Raises:
        TypeError: it is the name of one.
    """
    if isinstance(dataset, (str, bytes)):
        raise TypeError(f"the dataset is {dataset!r:.200}; give the dataset itself, as ShardListDataset(...)")
    return mixed_parts(dataset)


def batches_of_batches(sampler: Any) -> InputError:
    """The error where a DataLoader takes a sampler of batches for one of samples."""
    name = type(sampler).__name__
    return InputError(
        f"a {name} yields batches, and the DataLoader takes each for the index of a sample: give it as "
        f"DataLoader(dataset, batch_sampler={name}(...)), without sampler= and batch_size="
    )


def _loading_node() -> Any:
    """The SamplerWrapper of torchdata.nodes that loads a state, if one does.

    Its ``epoch`` is the state's by then, and the one after that is what it chooses for the second iteration. So where
    nothing is left of the state's epoch, and the first iteration is the next one, that would come twice.
    """
    wrapper = getattr(sys.modules.get("torchdata.nodes"), "SamplerWrapper", None)
    frame = None if wrapper is None else inspect.currentframe()
    while frame is not None and frame.f_code is not wrapper.reset.__code__:  # type: ignore[union-attr]
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


class _Drawn:
    """True, called, if an iteration of a DataLoader with workers has drawn batches that its loop has not received.

    After the iteration is gone: if it had, then.

    Args:
        batches: the iteration.
    """

    def __init__(self, batches: Any) -> None:
        self._tasks = [batches._task_info]  # noqa: SLF001 - torch's: batch -> its worker, until the loop receives it
        weakref.finalize(batches, _keep_numbers, self._tasks).atexit = False

    def __call__(self) -> bool:
        return any(map(bool, self._tasks))


def _keep_numbers(tasks: list[Any]) -> None:
    """Forget the batches of an iteration that is gone, and keep their numbers."""
    tasks.append(tuple(tasks.pop()))


def _find_drawn() -> _Drawn | None:
    """`_Drawn` of the iteration of a DataLoader that draws now, from a function that calls this one; None: without."""
    drawing = _BaseDataLoaderIter._next_index.__code__  # noqa: SLF001 - torch's
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not drawing:
        frame = frame.f_back
    batches = None if frame is None else frame.f_locals["self"]
    return _Drawn(batches) if hasattr(batches, "_task_info") else None


def _parse_tail(tail: Tail | None, drop_last: bool | None) -> Tail:  # noqa: FBT001 - torch's name and type
    if tail is None:
        return "drop" if check_flag("drop_last", drop_last) else "pad"
    if drop_last is not None and bool(drop_last) != (tail == "drop"):
        raise ValueError(f"tail is {tail!r} and drop_last {drop_last}; they contradict each other")
    return tail


def _parse_rank(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return (world, rank): each as given, else of the process group, else of the launcher's environment."""
    has_group = _has_group()
    if num_replicas is not None:
        world = parse_int("num_replicas", num_replicas)
    else:
        world = torch.distributed.get_world_size() if has_group else _environ_int("WORLD_SIZE", default=1)
    if rank is not None:
        rank = parse_int("rank", rank)
    elif world <= 1:
        rank = 0
    else:
        # -1 is refused: with a default of 0, every process would read the same share unnoticed.
        rank = torch.distributed.get_rank() if has_group else _environ_int("RANK", default=-1)
        if rank < 0:
            raise ValueError(f"rank is not given: num_replicas is {world}, without a process group or $RANK")
    if not 0 <= rank < world:
        # The message begins as in torch's samplers, because programs and their tests match those words.
        raise ValueError(
            f"Invalid rank {rank} where num_replicas is {world}: a rank is at least 0 and below num_replicas, which is "
            "at least 1"
        )
    return world, rank


def _parse_mesh(mesh: Any, num_replicas: Any, rank: Any) -> tuple[int, int]:
    """(world, rank) of a mesh of one dimension.

    Raises:
        InputError: it has more, or is none, or this process is not in it; or they are given otherwise, too.
    """
    if num_replicas is not None or rank is not None:
        raise InputError(
            f"mesh= is given together with num_replicas={num_replicas}, rank={rank}; the mesh says both, so leave them "
            "out"
        )
    if not hasattr(mesh, "ndim") or not hasattr(mesh, "get_coordinate"):
        raise InputError(f"mesh is {shown(mesh)}; it must be a DeviceMesh of one dimension, as device_mesh['dp']")
    names = getattr(mesh, "mesh_dim_names", None)
    if mesh.ndim != 1:
        raise InputError(
            f"the mesh has {mesh.ndim} dimensions{f', {names}' if names else ''}; give the one along which samples are "
            "divided, as device_mesh['dp']. If they are divided along several, join these: "
            "device_mesh['dp_replicate', 'dp_shard']._flatten('dp')"
        )
    coordinate = mesh.get_coordinate()
    if not coordinate:
        raise InputError(f"this process is not in the mesh{f' {names}' if names else ''}, so it reads no samples of it")
    return mesh.size(), coordinate[0]


def _has_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _environ_int(name: str, *, default: int) -> int:
    text = os.environ.get(name, "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"${name} is {text!r}; it must be an integer") from None
