"""One iteration of a sampler: an iterator over its indices, and the run that says how far it is.

An iteration takes its config and place with the first index drawn, not before: DataLoader makes two iterators of
a sampler and advances one where it has workers and no batches (batch_size=None), which would skip an epoch each time.
Nothing that is set later changes it. Indices are drawn by an iterator in C, because Python code for each index would
slow every loader down.
"""

from __future__ import annotations

import sys
import warnings
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from wids.core.order.cursor import Loaded, Run, Running, current_run, finish, next_place
from wids.core.order.state import EpochPosition, check_order, naming_writer
from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wids.core.order.config import EpochConfig
    from wids.core.order.cursor import Cursor


# Calls from a loader of torchdata to here: of samplers around a sampler, of subclasses.
_DEPTH = 8


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


def _is_asked_by_torchdata() -> bool:
    """Whether a loader of torchdata wants the state: it asks when it draws, and knows what it has handed on."""
    frame: Any = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if str(frame.f_globals.get("__name__")).startswith("torchdata."):
            return True
        frame = frame.f_back
    return False


def state_of(sampler: SamplerLike, run: Run, consumed: int | None, yielded: int | None) -> dict[str, Any]:
    """The state of a sampler; ``run``: a new one, for where nothing was drawn. For the rest see `state_dict`."""
    now = sampler._cursor
    current = current_run(now, is_counted=bool(consumed or yielded))
    is_over = current is not None and not isinstance(now, Running)
    is_said = consumed is not None or yielded is not None or _is_asked_by_torchdata()
    if current is not None and not is_said and current.may_be_ahead is not None and current.may_be_ahead(is_over):
        warnings.warn(
            "state_dict() counts each sample that was drawn, also those of batches that workers of a DataLoader have "
            "drawn ahead, which a resumed loop would not get; take the state of wids.resumable(loader), which counts "
            "what its loop receives, or write state_dict(consumed=samples that the loop has received in this "
            "iteration)",
            stacklevel=4,  # above the method of the sampler, and what checks its arguments
        )
    if current is None:  # the next iteration
        current, config = run, sampler._config()
        current.begin(config, next_place(now, config))
    count = current.count_received(consumed, yielded, is_over=is_over)
    return sampler._state(current.config, current.place_after(count))
