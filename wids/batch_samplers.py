"""Samplers of batches, for ``DataLoader(batch_sampler=)``: of like length or shape, and of one source of a mixture.

The batches of like length are cut in `wids.core.order.batching`, and dealt to the ranks in
`wids.core.order.batch_epochs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch.utils.data import Sampler

from wids import __version__
from wids.core.files.held import holding, release
from wids.core.order import cursor
from wids.core.order.batch_epochs import BatchConfig, BatchPlace, BatchRun
from wids.core.order.batching import make_rule
from wids.core.order.iteration import Iteration, state_of
from wids.core.order.layout import mixed_parts, read_column
from wids.core.order.state import (
    MAX_POSITION,
    EpochPosition,
    check_known,
    check_order,
    naming_writer,
    nested_state,
    read_int,
)
from wids.core.order.validation import parse_int, suggest_names
from wids.errors import InputError, StateError, a_kind, shown
from wids.events import logger
from wids.samplers import _IS_RUNNING, ChunkedSampler, DistributedChunkedSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

    from wids.core.order.cursor import Run
    from wids.core.prefetch.prefetcher import Prefetcher

    Batches = Literal["mixed", "by-source"]

KIND, VERSION = "wids.batches", 1


@holding
class BucketBatchSampler(Sampler[list[int]]):
    """Batches of samples of like length, or of one shape, as many on every rank; resumable on any number of ranks.

    The order of a sampler is cut into blocks, and each block into batches of about the same cost, as many in each lane:
    `wids.core.order.batching` has a picture. So a rank reads the shards that it would read without batches, a block's
    steps cost about the same on all ranks, and a resume is exact.

    Args:
        sampler: a `wids.ChunkedSampler` or `wids.DistributedChunkedSampler`, of a dataset, a view or a mixture. It says
            the order, the ranks, the tail and the epochs; leave its iteration to this sampler.
        lengths: of the samples, above 0: a number for each sample of the dataset, or the name of a column.
        max_tokens: what a batch may cost at most, in units of ``lengths``; None: any.
        cost: ``"padded"``: a batch costs its longest sample times its count; ``"sum"``: the sum of its lengths.
        buckets: words or numbers, one for each sample of the dataset, or the name of a column; a batch is of one
            bucket.
        batch_size: the most samples in a batch; or a dict of them, by bucket.
        too_long: a sample that is longer than ``max_tokens`` is an ``"error"``, or is left out (``"skip"``), of which
            a warning says how many there are.
        block: samples of a lane that are cut into batches together; None: some 64 batches, within the chunk size. More
            give batches of more equal lengths, and keep more shards open.

    Attributes:
        sampler, batch_size: as given.
        skipped: samples of the dataset that are left out.

    Raises:
        InputError: neither ``max_tokens`` nor ``batch_size``; lengths that are no numbers above 0, are not as many as
            there are samples, or exceed ``max_tokens``; a bucket without a batch size; the sampler's own chunks were
            assigned. TypeError: it is no such sampler.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> lengths = [9, 1, 8, 2, 7, 3, 9, 1, 8, 2, 7, 3]
        >>> batches = wids.BucketBatchSampler(wids.ChunkedSampler(dataset), lengths=lengths, max_tokens=18)
        >>> max(max(lengths[i] for i in batch) * len(batch) for batch in batches) <= 18
        True
    """

    sampler: ChunkedSampler
    batch_size: int | Mapping[Any, int] | None
    skipped: int
    _yields_batches = True

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
        too_long: Literal["error", "skip"] = "error",
        block: int | None = None,
    ) -> None:
        release(self)
        given: Any = sampler
        if not isinstance(given, ChunkedSampler) or type(given).__iter__ is not ChunkedSampler.__iter__:
            raise TypeError(f"the sampler is {a_kind(given)}; give a ChunkedSampler or a DistributedChunkedSampler")
        self.sampler, self.batch_size = sampler, batch_size
        self._block = None if block is None else parse_int("block", block, minimum=1)
        self._rule = make_rule(
            len(sampler.dataset),
            lengths=None if lengths is None else self._values("lengths", lengths),
            max_tokens=max_tokens,
            cost=cost,
            buckets=None if buckets is None else self._values("buckets", buckets),
            batch_size=batch_size,
            too_long=too_long,
        )
        self.skipped = self._rule.skipped
        if self.skipped:
            logger.warning(
                "%d of %d samples are longer than max_tokens=%g, and are left out of all batches",
                *(self.skipped, len(sampler.dataset), self._rule.max_cost),
            )
        self._own: cursor.Cursor = cursor.NotStarted()
        self._seen: cursor.Cursor | None = None
        self._counts: dict[str, int] = {}
        _ = self._cursor, self._config()

    def __iter__(self) -> Iterator[list[int]]:
        it: Any = self  # whose places are of batches
        return Iteration(it, BatchRun())  # type: ignore[return-value]

    def __len__(self) -> int:
        config = self._config()
        run = cursor.current_run(self._cursor)
        place = cursor.next_place(self._cursor, config) if run is None else run.place  # type: ignore[arg-type]
        key = repr((place, config.world, self._order(config), self.sampler._samples.state_facts()))
        if key not in self._counts:
            self._counts = {key: config.count(place)}  # type: ignore[arg-type]
        return self._counts[key]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": cursor.without_run(self._cursor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._seen = self.sampler._cursor  # which a copy makes anew

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch of the latest iteration, or the one that ``set_epoch`` chose for the next; may be assigned."""
        return self._cursor.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        _ = self._cursor  # which follows

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; see `wids.DistributedChunkedSampler.set_epoch`.

        Args:
            epoch: from 0.
        """
        self.epoch = epoch

    @property
    def _cursor(self) -> cursor.Cursor:
        """Where this is in its epochs, after an epoch that was chosen through the sampler underneath, as trainers do.

        Raises:
            StateError: a state was loaded into the sampler underneath.
        """
        now = self.sampler._cursor
        if now is not self._seen:
            if isinstance(now, cursor.Loaded):
                raise StateError(
                    "a state was loaded into the sampler under a BucketBatchSampler, and its place says nothing of "
                    "batches; load the state of a BucketBatchSampler into that, or make a sampler without a state"
                )
            self._seen = now
            if isinstance(now, cursor.Chosen):
                self._own = cursor.choose(self._own, now.epoch)
        return self._own

    @_cursor.setter
    def _cursor(self, value: cursor.Cursor) -> None:
        self._own = value

    # --- state

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
        it: Any = self
        return state_of(it, BatchRun(), consumed if batches is None else batches, None)

    @suggest_names
    def load_state_dict(self, state: Any, *, reweight: bool = False) -> None:
        """Let the next iteration resume at ``state``, with any number of ranks and workers.

        Args:
            state: of `state_dict`.
            reweight: as of `wids.DistributedChunkedSampler.load_state_dict`; the weights hold from the end of the
                state's block on.

        Raises:
            StateError: it belongs to another dataset, or other lengths, buckets or settings; or is damaged.
        """
        if isinstance(self.sampler._cursor, cursor.Loaded):
            self._seen = self.sampler._cursor  # the loaded state is replaced
        now = self._cursor
        with naming_writer(state):
            self._cursor = cursor.load(now, self._adopt(state, is_reweighted=reweight))

    @suggest_names
    def reweight(self, weights: Mapping[str, float], *, at: int | None = None) -> int:
        """Change the weights of a mixture's sources; see `wids.DistributedChunkedSampler.reweight`.

        ``at`` counts samples.

        Args:
            weights: name -> weight.
            at: from this sample on, counted over all ranks; None: from the next nominal epoch on.

        Returns:
            The sample from which on they hold.
        """
        return self.sampler._reweight(weights, at, *self._decided())

    def _decided(self) -> tuple[int | None, int | None, str]:
        """As of a sampler of samples; a block that has begun stays what it is."""
        config, now = self._config(), self._cursor
        if isinstance(now, cursor.Running):
            end = config.end(now.run.place)  # type: ignore[arg-type]
            return end, end, _IS_RUNNING
        place: Any = cursor.next_place(now, config)  # type: ignore[arg-type]
        earliest = config.block_end(place) if place.offset else place.position
        usual = (config.end(place) if config.is_in_the_middle(place) else None) or earliest
        return earliest, usual, ": samples of a block that has begun are in its batches" if place.offset else ""

    def _current_run(self, *, is_counted: bool) -> Run | None:
        return cursor.current_run(self._cursor, is_counted=is_counted)

    def _next_epoch(self) -> int:
        place = cursor.next_place(self._cursor, self._config())  # type: ignore[arg-type]
        return place.epoch

    def _batches(self, yielded: int) -> int:
        """Batches of an epoch at a place that has so many behind it, as its state counts them."""
        return yielded

    def _state_after(self, run: Any, batches: int, *, is_over: bool) -> dict[str, Any]:
        """The state after so many batches of a run, which another may have followed, or after all of its epoch."""
        config, place = run.config, run.place_after(batches)
        if is_over and config.end(place) is not None and not config.is_over(place):  # by a trainer's own limit
            place = run.place_after(config.count(run.place) - run.place.yielded)
        return self._state(config, place)

    def _state(self, config: BatchConfig, place: BatchPlace) -> dict[str, Any]:
        inner = self.sampler._state(config.lanes_config, EpochPosition(place.epoch, place.position))
        return {
            "kind": KIND,
            "version": VERSION,
            "wids": __version__,
            "offset": place.offset,
            "yielded": place.yielded,
            "block": config.checksum(place),
            "order": {"sampler": inner, "rule": self._order(config)["rule"]},
        }

    def _order(self, config: BatchConfig) -> dict[str, Any]:
        return {
            "sampler": self.sampler._order(config.lanes_config),
            "rule": {**self._rule.facts, "rows": config.rows},
        }

    def _adopt(self, state: Any, *, is_reweighted: bool = False) -> cursor.Loaded:
        """Check a state against this sampler, and take over its lanes, and the weights of a mixture."""
        state = nested_state(state)
        if not isinstance(state, Mapping) or state.get("kind") != KIND:
            raise StateError(f"not the state of a wids.BucketBatchSampler: {state!r:.200}")
        if state.get("version") != VERSION:
            raise StateError(
                f"the state's version is {state.get('version')!r} and this wids reads version {VERSION}; resume with "
                "the wids that wrote it"
            )
        offset, yielded = (read_int(state, name, minimum=0, maximum=MAX_POSITION) for name in ("offset", "yielded"))
        order = state.get("order")
        if not isinstance(order, Mapping) or not isinstance(order.get("rule"), Mapping):
            raise StateError(f"the state's order is {order!r:.200}; it is damaged")
        check_known(order, {"sampler", "rule"}, "order")
        with self.sampler._kept_on_error():
            return self._adopt_order(order, offset, yielded, state.get("block"), is_reweighted=is_reweighted)

    def _adopt_order(
        self, order: Mapping[str, Any], offset: int, yielded: int, block: Any, *, is_reweighted: bool
    ) -> cursor.Loaded:
        loaded = self.sampler._adopt(order.get("sampler"), is_reweighted=is_reweighted)
        config = self._config()
        try:
            config.first_place(loaded.place.epoch)
        except ValueError as error:
            raise StateError(f"the state has {config.lanes} lanes, and {error}; it is damaged") from error
        place = BatchPlace(loaded.place.epoch, loaded.place.position, offset, yielded)
        here = self._order(config)
        theirs, ours = dict(order["rule"]), dict(here["rule"])
        if is_reweighted:
            theirs["lengths"] = ours["lengths"]
        check_order(theirs, ours)
        if offset and is_reweighted:  # the block that has begun stays what it is
            end = {**order["sampler"], "position": config.block_end(place)}
            self.sampler._adopt(end, is_reweighted=True)
            config = self._config()
        if offset and config.checksum(place) != block:
            raise StateError(
                "the lengths or buckets of the samples at the state's position have changed since it was saved, so "
                "their batches are other ones; train with those of before, or begin an epoch"
            )
        return cursor.Loaded(place, {**here, "lanes": config.lanes})  # type: ignore[arg-type]

    # --- iterations

    def _config(self) -> BatchConfig:
        """The config of an iteration that begins now."""
        config = self.sampler._config()
        if self.sampler._samples.is_own or (config.length is not None and config.world != config.lanes):
            raise InputError(
                "the sampler's ranges, or its dslength_per_replica, were assigned for this rank alone; batches are cut "
                "for all ranks together: use num_samples, a view, or epoch_size"
            )
        return BatchConfig.of(config, self._rule, seed=self.sampler.seed, block=self._block)

    def _prefetch(self, run: Run, blocks: Iterable[Any]) -> tuple[Iterable[Any], Prefetcher | None]:
        return self.sampler._prefetch(run, blocks)

    def _values(self, name: str, given: Any) -> Any:
        """One value for each sample: (n,)."""
        if isinstance(given, str):
            return read_column(self.sampler.dataset, given, of=name)
        return _read_values(name, given)


def _read_values(name: str, given: Any) -> Any:
    if np.ma.is_masked(given):
        at = int(np.flatnonzero(np.ma.getmaskarray(given).reshape(-1))[0])
        raise InputError(f"{name}: the value of sample {at} is masked; leave such samples out of the view")
    try:
        found = np.asarray(given)
        if found.dtype.kind in "US" and not isinstance(given, np.ndarray):  # where 1 and NaN would become words
            found = np.array(given, dtype=object)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} are {shown(given)}, of which there is no array ({error}); give an array") from error
    return found


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
        batch_size: as given.

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
    def load_state_dict(self, state: Any, *, reweight: bool = False) -> None:
        """Resume at ``state``; see `wids.DistributedChunkedSampler.load_state_dict`.

        With ``batches="by-source"`` the global batch stays what it is: ranks times ``batch_size``.

        Args:
            state: of `state_dict`.
            reweight: as of `wids.DistributedChunkedSampler.load_state_dict`.

        Raises:
            StateError: it belongs to another mixture or order, or another global batch.
        """
        self.sampler.load_state_dict(state, reweight=reweight)

    def _current_run(self, *, is_counted: bool) -> Run | None:
        return cursor.current_run(self.sampler._cursor, is_counted=is_counted)

    def _next_epoch(self) -> int:
        return cursor.next_place(self.sampler._cursor, self.sampler._config()).epoch

    def _batches(self, yielded: int) -> int:
        """See `BucketBatchSampler._batches`; states of this one count samples."""
        return -(-yielded // self.batch_size)

    def _state_after(self, run: Run, batches: int, *, is_over: bool) -> dict[str, Any]:
        """The state after so many batches of a run, which another may have followed, or after all that were drawn."""
        count = run.drawn if is_over else min(batches * self.batch_size, run.drawn)  # the last may be smaller
        return self.sampler._state(run.config, run.place_after(count))


class _BatchIteration:
    """Batches of a sampler's iteration, which knows how far it is."""

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
        """Where the iteration is."""
        found: dict[str, Any] = self._indices.state_dict()
        return found

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first batch is drawn."""
        self._indices.load_state_dict(state)
