"""One iteration of a sampler: an iterator over its items (indices, or batches) that knows its position.

An iteration takes its epochs and place with the first item drawn, not before: DataLoader makes two iterators of
a sampler and advances one where it has workers and no batches (batch_size=None), which would skip an epoch each time.
Nothing that is set later changes it. Items are drawn by an iterator in C, because Python code for each index would
slow every loader down.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from wids.core.order.cursor import Running, finish
from wids.core.order.state import naming_writer
from wids.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wids.core.order.cursor import Loaded, Run
    from wids.core.order.progress import Progress

    Prefetch = Callable[[Run[Any]], tuple[Iterable[Any], "Prefetching | None"]]

T = TypeVar("T")


class Prefetching(Protocol):
    """Prefetching for one run."""

    def end(self, *, is_finished: bool) -> None:
        """The run is over, or was left before its end."""


class _Start:
    """The beginning of an iteration: the place of a state that was loaded for it alone, if any; its run, once begun."""

    loaded: Loaded | None = None
    run: Run[Any] | None = None


class Iteration(Generic[T]):
    """An iterator over a sampler's items that knows its position.

    Args:
        progress: of the sampler.
        prefetch: starts to prefetch a run; gives the blocks to draw from, and their prefetcher.
    """

    def __init__(self, progress: Progress[Any], prefetch: Prefetch) -> None:
        self._progress, self._start = progress, _Start()
        self._items: Iterator[T] = chain.from_iterable(_draw(progress, self._start, prefetch))

    def __iter__(self) -> Iterator[T]:
        # The same items, without a call of Python's for each: torch's BatchSampler takes batches by `islice`.
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    @property
    def run(self) -> Run[Any] | None:
        """The progress of the iteration; None: it has not begun."""
        return self._start.run

    def state_dict(self) -> dict[str, Any]:
        """The state of the iteration, or of its beginning; see the sampler's."""
        progress, run, loaded = self._progress, self._start.run, self._start.loaded
        if run is not None:
            return progress.state_at(run.epochs, run.place_after(run.drawn))
        epochs = progress.epochs()
        return progress.state_at(epochs, progress.next_place(epochs) if loaded is None else loaded.place)

    def load_state_dict(self, state: Any) -> None:
        """Begin where the state says; before the first item is drawn.

        Raises:
            StateError: an item was drawn, or the state does not fit; see the sampler's.
        """
        if self._start.run is not None:
            raise StateError("this iteration has begun; load the state into a new one, or into the sampler")
        with naming_writer(state):
            self._start.loaded = self._progress.adopt(state)


def _draw(progress: Progress[Any], start: _Start, prefetch: Prefetch) -> Iterator[Iterator[Any]]:
    """Begin a run when its first item is requested, and yield its items in pieces; the sampler's cursor follows it.

    A function, not a method: an iteration that its own generator referred to would be freed by the collector alone.
    """
    start.run = run = progress.begin(start.loaded)
    progress.cursor = Running(run)
    (blocks, prefetching), is_finished = prefetch(run), False
    try:
        yield from run.pieces(blocks)
        progress.cursor, is_finished = finish(progress.cursor, run), True
    finally:
        if prefetching is not None:
            prefetching.end(is_finished=is_finished)
