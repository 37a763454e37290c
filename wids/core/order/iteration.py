"""One iteration of a sampler: an iterator over its indices, and the run that says how far it is.

An iteration takes its config and place with the first index drawn, not before: DataLoader makes two iterators of
a sampler and advances one where it has workers and no batches (batch_size=None), which would skip an epoch each time.
Nothing that is set later changes it. Indices are drawn by an iterator in C, because Python code for each index would
slow every loader down.
"""

from __future__ import annotations

import warnings
from itertools import chain, islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol

from wids.core.order.cursor import Loaded, Running, current_run, finish, next_place
from wids.core.order.mask import mark
from wids.core.order.state import EpochPosition, check_order, naming_writer
from wids.core.order.validation import parse_int
from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.core.order.config import EpochConfig
    from wids.core.order.cursor import Cursor
    from wids.core.order.permutation import Indices


class Run:
    """How far one iteration is.

    The loop holds the iteration, the sampler only its run. So a loop that is left frees the iteration at once, with a
    window of indices and its prefetching, and the sampler still says how far it was.

    Attributes:
        loaded: where it is to begin, if not where the sampler is.
        config: what it follows. place: where it began. Both are there once it ``is_begun``.
        loader: refers to the iterator of a DataLoader with workers that draws it; None: no such one does.
    """

    loaded: Loaded | None = None
    config: EpochConfig
    place: EpochPosition
    is_begun: bool = False
    loader: Callable[[], object] | None = None
    # Indices handed on, the present block's included, and that block. One tuple, so that a signal handler or another
    # thread sees both from the same moment.
    _at: tuple[int, Iterator[int]] = (0, iter(()))

    def begin(self, config: EpochConfig, place: EpochPosition) -> None:
        """Say which order is iterated."""
        self.config, self.place = config, place
        self.is_begun = True

    @property
    def drawn(self) -> int:
        """How many indices were drawn."""
        count, block = self._at
        return count - length_hint(block)  # a list's iterator knows how much of it is left

    def count_received(self, consumed: int | None, yielded: int | None, *, is_over: bool) -> int:
        """How many indices a training loop has received: as it says, see the sampler's `state_dict`, or all drawn."""
        if consumed is not None and yielded is not None:
            raise ValueError("consumed and yielded are given; one of them says how far the training loop is")
        name, since, before, given = "consumed", "iteration", 0, consumed
        if yielded is not None:
            name, since, before, given = "yielded", "epoch", self.place.yielded, yielded
        drawn = self.drawn
        if given is None:
            return drawn
        count = parse_int(name, given, minimum=0) - before
        # Of a run that is over, batches times batch size is too many where the last batch is smaller.
        if not 0 <= count <= drawn and not is_over:
            raise ValueError(
                f"{name} is {given}, and from {before} to {before + drawn} indices were drawn; it counts the samples "
                f"that this rank has received since its {since} began"
            )
        return min(max(count, 0), drawn)

    def place_after(self, count: int) -> EpochPosition:
        """The place after every rank has had ``count`` indices of it."""
        epoch, position, yielded = self.place
        return EpochPosition(epoch, position + count * self.config.world, yielded + count)

    @property
    def drawn_samples(self) -> int:
        """How many samples were drawn."""
        return self.drawn

    def indices_of(self, block: Any) -> Indices:
        """The indices of one of the `blocks`: (n,)."""
        indices: Indices = block[0]
        return indices

    def blocks(self, config: EpochConfig, place: EpochPosition) -> Iterable[Any]:
        """What `pieces` hands on."""
        return config.seeded(place)

    def pieces(self, blocks: Iterable[tuple[Indices, Indices | None]]) -> Iterator[Iterator[int]]:
        """The indices of ``blocks``, counted as they are drawn, with their seeds and what the config's tail marks."""
        is_masked = self.config.tail == "mask"
        new = self.config.count_new(self.place) if is_masked else None
        for block, words in blocks:
            before, indices = self._at[0], block.tolist()
            left, seeds = iter(indices), None if words is None else iter(words.tolist())
            self._at = before + len(indices), left
            if is_masked:
                own = islice(left, None if new is None else max(new - before, 0))
                yield mark(own, seeds=seeds, is_valid=True)
                yield mark(left, seeds=seeds, is_valid=False)
            else:
                yield mark(left, seeds=seeds)


class Prefetching(Protocol):
    """The fetching of a run's shards ahead."""

    def end(self, *, is_finished: bool) -> None:
        """The run is over, or was left before its end."""


class SamplerLike(Protocol):
    """What an iteration asks of its sampler."""

    _cursor: Cursor

    def _config(self) -> EpochConfig: ...

    def _order(self, config: EpochConfig) -> dict[str, Any]: ...

    def _state(self, config: EpochConfig, place: EpochPosition) -> dict[str, Any]: ...

    def _adopt(self, state: Any) -> Loaded: ...

    def _prefetch(self, run: Run, blocks: Iterable[Any]) -> tuple[Iterable[Any], Prefetching | None]: ...


class Iteration:
    """An iterator over a sampler's indices that knows how far it is."""

    def __init__(self, sampler: SamplerLike, run: Run) -> None:
        self._sampler, self._run = sampler, run
        self._indices = chain.from_iterable(_draw(sampler, self._run))

    def __iter__(self) -> Iterator[int]:
        # The same indices, without a call of Python's for each: torch's BatchSampler takes batches by `islice`.
        return self._indices

    def __next__(self) -> int:
        return next(self._indices)

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is, or would begin; see the sampler's."""
        run = self._run
        if run.is_begun:
            return self._sampler._state(run.config, run.place_after(run.drawn))
        config = self._sampler._config()
        place = run.loaded.place if run.loaded else next_place(self._sampler._cursor, config)
        return self._sampler._state(config, place)

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first index is drawn.

        Raises:
            StateError: an index was drawn, or the state does not fit; see the sampler's.
        """
        if self._run.is_begun:
            raise StateError("this iteration has begun; load the state into a new one, or into the sampler")
        with naming_writer(state):
            self._run.loaded = self._sampler._adopt(state)


def _draw(sampler: SamplerLike, run: Run) -> Iterator[Iterator[int]]:
    """Begin a run when its first index is requested, and yield its indices in pieces; the sampler's cursor follows it.

    A function, not a method: an iteration that its own generator referred to would be freed by the collector alone.
    """
    cursor, config = sampler._cursor, sampler._config()
    loaded = run.loaded or (cursor if isinstance(cursor, Loaded) else None)
    if loaded is not None:  # attributes may have been assigned since then
        check_order(loaded.order, {**sampler._order(config), "lanes": config.lanes})
    place = run.loaded.place if run.loaded else next_place(cursor, config)
    blocks = run.blocks(config, place)
    run.begin(config, place)
    sampler._cursor = Running(run)
    (blocks, prefetching), is_finished = sampler._prefetch(run, blocks), False
    try:
        yield from run.pieces(blocks)
        sampler._cursor, is_finished = finish(sampler._cursor, run), True
    finally:
        if prefetching is not None:
            prefetching.end(is_finished=is_finished)


def state_of(sampler: SamplerLike, run: Run, consumed: int | None, yielded: int | None) -> dict[str, Any]:
    """The state of a sampler; ``run``: a new one, for where nothing was drawn. For the rest see `state_dict`."""
    now = sampler._cursor
    current = current_run(now, is_counted=bool(consumed or yielded))
    is_over = current is not None and not isinstance(now, Running)
    if current is not None and consumed is None and yielded is None and _is_ahead(current, is_over=is_over):
        warnings.warn(
            "state_dict() counts the samples of batches that workers of the DataLoader have drawn ahead, and a "
            "resumed loop would not get them; take the state of wids.resumable(loader), which counts what its loop "
            "receives, or write state_dict(consumed=samples that the loop has received in this iteration)",
            stacklevel=3,
        )
    if current is None:  # the next iteration
        current, config = run, sampler._config()
        current.begin(config, next_place(now, config))
    count = current.count_received(consumed, yielded, is_over=is_over)
    return sampler._state(current.config, current.place_after(count))


def _is_ahead(run: Run, *, is_over: bool) -> bool:
    """Whether workers of a DataLoader have drawn batches of a run that their loop has not received."""
    if run.loader is None:
        return False
    loader: Any = run.loader()
    if loader is None:  # the loop was left
        return not is_over
    return bool(getattr(loader, "_send_idx", 0) > getattr(loader, "_rcvd_idx", 0))
