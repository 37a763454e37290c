"""Samplers of batches, for ``DataLoader(batch_sampler=)``: of like length or shape, and of one source of a mixture.

The batches of like length are cut in `wids.core.order.batching`, and dealt to the ranks in
`wids.core.order.batch_epochs`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import Sampler

from wids.core.files.held import holding, release
from wids.core.order.batch_progress import BatchProgress
from wids.core.order.batching import make_rule
from wids.core.order.budgets import name_limit, parse_limits
from wids.core.order.layout import mixed_parts, read_values
from wids.core.order.validation import parse_int, suggest_names
from wids.errors import a_kind
from wids.events import logger
from wids.samplers import ChunkedSampler, DistributedChunkedSampler, StatefulSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

    from wids.core.order.batch import Rule
    from wids.core.order.progress import SampleProgress

    Batches = Literal["mixed", "by-source"]


@holding
class BlockBatchSampler(StatefulSampler[list[int]]):
    """A sampler of batches into which the blocks of another sampler's order are cut; what such samplers share.

    Attributes:
        sampler: says the order, the ranks, the tail and the epochs.
        skipped: samples of the dataset that are left out.
    """

    sampler: ChunkedSampler
    skipped: int
    _progress: BatchProgress
    _yields_batches = True

    def _take(self, sampler: Any) -> None:
        """Set the sampler underneath.

        Raises:
            TypeError: it is none that can be cut.
        """
        release(self)
        if not isinstance(sampler, ChunkedSampler) or type(sampler).__iter__ is not ChunkedSampler.__iter__:
            raise TypeError(f"the sampler is {a_kind(sampler)}; give a ChunkedSampler or a DistributedChunkedSampler")
        self.sampler, self._columns = sampler, dict[str, str]()

    def _cut_by(self, rule: Rule, block: Any) -> None:
        """Set the bounds of batches, and the rows of a block."""
        block = None if block is None else parse_int("block", block, minimum=1)
        self._progress, self._prefetcher = BatchProgress(self.sampler.__wids__(), rule, block), None
        _ = self.epoch, self._progress.epochs()

    def __wids__(self) -> BatchProgress:
        super().__wids__()
        self._progress.follow(self.sampler.__wids__())  # which may have been assigned, and a copy makes anew
        return self._progress

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with contextlib.suppress(RuntimeError):  # in a cycle, the sampler is not there yet
            self.__wids__()

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, or the one that ``set_epoch`` chose for the next; may be assigned."""
        return self.__wids__().cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        progress = self.__wids__()
        self.sampler.set_epoch(epoch)
        _ = progress.cursor  # which follows

    @suggest_names
    def state_dict(self, batches: int | None = None, *, consumed: int | None = None) -> dict[str, Any]:
        """The position to resume at, as a small dict of JSON values, the same on every rank.

        Args:
            batches: that this rank's training loop has received from the present iteration; None: all that were drawn,
                of which a DataLoader with workers draws some ahead.
            consumed: another name for ``batches``.

        Raises:
            ValueError: more batches were received than drawn, or both arguments are given.
        """
        if batches is not None and consumed is not None:
            raise ValueError("batches and consumed are given; one of them says how far the training loop is")
        return self.__wids__().state(consumed if batches is None else batches)

    @suggest_names
    def load_state_dict(self, state: Any, *, reweight: bool = False, old: Any = None, old_lengths: Any = None) -> None:
        """Let the next iteration resume at ``state``; see `wids.DistributedChunkedSampler.load_state_dict`.

        Args:
            state: of `state_dict`.
            reweight: as there.
            old: as there: the dataset that the state was saved over.
            old_lengths: of each sample of ``old``, where ``lengths`` were no column; or the name of a column of it.
                They are read if some batches of a block were, and with ``too_long="skip"`` or ``tail="drop"``.

        Raises:
            StateError: as there. InputError: values of ``old`` are needed, and not given.
        """
        self._load_over(state, old, {"lengths": old_lengths}, is_reweighted=reweight)

    def _load_over(
        self,
        state: Any,
        old: Any,
        said: Mapping[str, Any],
        *,
        is_reweighted: bool,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a state; ``said`` are values of the samples of ``old`` that were given, by name."""
        earlier = None
        if old is not None:
            from wids.core.collection.changes import find_earlier, open_earlier

            values = {**self._columns, **{name: each for name, each in said.items() if each is not None}}
            earlier = find_earlier(self.sampler.dataset, open_earlier(old), values=values, limits=limits)
        self._load(state, is_reweighted=is_reweighted, earlier=earlier)

    def _values(self, name: str, values: Any) -> Any:
        """One value for each sample: (nsamples,)."""
        if isinstance(values, str):
            self._columns[name] = values
        return read_values(self.sampler.dataset, values, of=name)


class BucketBatchSampler(BlockBatchSampler):
    """Batches of samples of like length, or of one shape, as many on every rank; resumable on any number of ranks.

    The order of a sampler is cut into blocks, and each block into batches of about the same cost, as many in each lane:
    `wids.core.order.batching` has a picture. So a rank reads the shards that it would read without batches, a block's
    steps cost about the same on all ranks, and a resume is exact.

    Args:
        sampler: a `wids.ChunkedSampler` or `wids.DistributedChunkedSampler`, of a dataset, a view or a mixture. It says
            the order, the ranks, the tail and the epochs; leave its iteration to this sampler.
        lengths: of the samples, above 0: a number for each sample of the dataset, the name of a column, or an SQL
            expression over columns, such as ``"tokens + (width / 28) * (height / 28)"``.
        max_tokens: the most that a batch may cost, in units of ``lengths``; None: any.
        cost: ``"padded"``: a batch costs its longest sample times its count; ``"sum"``: the sum of its lengths.
        buckets: words or numbers, likewise, such as ``"round(width / height, 1)"``; a batch is of one bucket.
        batch_size: the most samples in a batch; or a dict of them, by bucket.
        limits: the most that a batch may have of other sums, by name: of the column of this name, ``{"images": 16}``;
            or of values of 0 or more that are given as ``lengths``, ``{"crops": (values, 125)}``.
        too_long: a sample that alone exceeds a budget is an ``"error"``, or is left out (``"skip"``), of which a
            warning has their number.
        block: samples of a lane that are cut into batches together; None: some 64 batches, and no more than a window of
            the sampler. More give less padding, and keep more shards open: those of a window, and those that begin in a
            block; a cache that is to have the next block's in time needs these twice. Without byte ranges, the first
            batch waits for some two shards more than ``window``. A smaller ``cache_size`` is a warning, which names
            a block that fits.

    Attributes:
        sampler: the argument.
        batch_size: the argument.
        skipped: samples of the dataset that are left out.

    Raises:
        InputError: none of ``max_tokens``, ``limits`` and ``batch_size``; lengths that are no numbers above 0, are not
            as many as there are samples, or exceed ``max_tokens``; limits likewise; a bucket without a batch size; the
            sampler's own chunks were assigned. TypeError: it is no such sampler.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> lengths = [9, 1, 8, 2, 7, 3, 9, 1, 8, 2, 7, 3]
        >>> batches = wids.BucketBatchSampler(wids.ChunkedSampler(dataset), lengths=lengths, max_tokens=18)
        >>> max(max(lengths[i] for i in batch) * len(batch) for batch in batches) <= 18
        True
    """

    batch_size: int | Mapping[Any, int] | None
    skipped: int

    @suggest_names
    def __init__(
        self,
        sampler: ChunkedSampler,
        *,
        lengths: Any = None,
        max_tokens: float | None = None,
        cost: Literal["padded", "sum"] = "padded",
        buckets: Any = None,
        batch_size: int | Mapping[Any, int] | None = None,
        limits: Mapping[str, Any] | None = None,
        too_long: Literal["error", "skip"] = "error",
        block: int | None = None,
    ) -> None:
        self._take(sampler)
        self.batch_size = batch_size
        rule = make_rule(
            len(sampler.dataset),
            lengths=None if lengths is None else self._values("lengths", lengths),
            max_tokens=max_tokens,
            cost=cost,
            buckets=None if buckets is None else self._values("buckets", buckets),
            batch_size=batch_size,
            too_long=too_long,
            limits={
                name: (self._values(name_limit(name), values), most)
                for name, (values, most) in parse_limits(limits).items()
            },
        )
        self.skipped = rule.skipped
        if self.skipped:
            logger.warning(
                "%d of %d samples are longer than %s, and are left out of all batches",
                *(self.skipped, len(sampler.dataset), " or ".join(rule.name_budgets())),
            )
        self._cut_by(rule, block)

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
        """Let the next iteration resume at ``state``; see `wids.DistributedChunkedSampler.load_state_dict`.

        Args:
            state: of `state_dict`.
            reweight: as there.
            old: as there: the dataset that the state was saved over.
            old_lengths: as of `wids.PackSampler.load_state_dict`.
            old_buckets: likewise.
            old_limits: likewise, the values of each limit, by its name.

        Raises:
            StateError: as there. InputError: values of ``old`` are needed, and not given.
        """
        said = {"lengths": old_lengths, "buckets": old_buckets}
        self._load_over(state, old, said, is_reweighted=reweight, limits=old_limits)


class MixtureBatchSampler(Sampler[list[int]]):
    """Batches of a mixture, for ``DataLoader(mixture, batch_sampler=...)``.

    With ``batches="by-source"`` all ranks read the same source at a step, so every global batch is of one source, and
    shares are those of batches. Nominal epochs are whole global batches; all ranks yield equally many.

    Args:
        mixture: of `wids.mix`, or a `wids.ShardListDataset` whose index has weights.
        batch_size: samples in a rank's batch.
        batches: ``"by-source"``, or ``"mixed"``: each sample of a batch of a source of its own.
        **options: of `wids.DistributedChunkedSampler`.

    Attributes:
        sampler: the `wids.DistributedChunkedSampler` underneath.
        batch_size: the argument.

    Raises:
        ValueError: a bad option; the dataset is no mixture.

    Example:
        >>> web, books = wids.ShardListDataset("train.json"), wids.ShardListDataset("books.json")
        >>> mixture = wids.mix({"web": (web, 2), "books": (books, 1)})
        >>> batches = wids.MixtureBatchSampler(mixture, batch_size=3, rank=0, num_replicas=1)
        >>> {len({mixture[i]["__dataset__"] for i in batch}) for batch in batches}  # sources in a batch
        {1}
    """

    batch_size: int
    sampler: DistributedChunkedSampler
    _yields_batches = True

    def __init__(self, mixture: Sized, batch_size: int, *, batches: Batches = "by-source", **options: Any) -> None:
        if batches not in ("mixed", "by-source"):
            raise ValueError(f"batches is {batches!r}; it must be 'mixed' or 'by-source'")
        if mixed_parts(mixture) is None:
            raise ValueError(f"{a_kind(mixture)} is no mixture; wids.mix makes one")
        self.batch_size = parse_int("batch_size", batch_size, minimum=1)
        run = self.batch_size if batches == "by-source" else 1
        self.sampler = DistributedChunkedSampler(mixture, source_batch=run, **options)

    def __wids__(self) -> SampleProgress:
        """The progress of the sampler underneath."""
        return self.sampler.__wids__()

    def __len__(self) -> int:
        return (len(self.sampler) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return _BatchIteration(self.sampler, self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the nominal epoch of the next iteration.

        Args:
            epoch: from 0.
        """
        self.sampler.set_epoch(epoch)

    @suggest_names
    def reweight(self, weights: Mapping[str, float], *, at: int | None = None) -> int:
        """Change the weights of sources; see `wids.DistributedChunkedSampler.reweight`. ``at`` counts samples.

        Args:
            weights: name -> weight.
            at: from this sample on, counted over all ranks; None: from the next nominal epoch on.

        Returns:
            The sample from which on they hold.
        """
        return self.sampler.reweight(weights, at=at)

    @suggest_names
    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position to resume at; see `wids.DistributedChunkedSampler.state_dict`.

        Args:
            batches: that this rank's training loop has received from the present iteration; None: all that were drawn.
        """
        return self.sampler.state_dict(None if batches is None else batches * self.batch_size)

    @suggest_names
    def load_state_dict(self, state: Any, *, reweight: bool = False, old: Any = None) -> None:
        """Resume at ``state``; see `wids.DistributedChunkedSampler.load_state_dict`.

        With ``batches="by-source"`` the global batch stays what it is: ranks times ``batch_size``.

        Args:
            state: of `state_dict`.
            reweight: as of `wids.DistributedChunkedSampler.load_state_dict`.
            old: likewise.

        Raises:
            StateError: it belongs to another mixture or order, or another global batch.
        """
        self.sampler.load_state_dict(state, reweight=reweight, old=old)


class _BatchIteration:
    """Batches of a sampler's iteration, which knows its position."""

    def __init__(self, sampler: DistributedChunkedSampler, batch_size: int) -> None:
        self._indices: Any = iter(sampler)
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        batch = list(islice(self._indices, self._batch_size))
        if not batch:
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The state of the iteration."""
        state: dict[str, Any] = self._indices.state_dict()
        return state

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first batch is drawn."""
        self._indices.load_state_dict(state)
