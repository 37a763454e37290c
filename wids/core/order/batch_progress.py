"""The progress of a sampler of batches: its cursor follows the epochs that are chosen for the inner sampler.

The state of batches holds that of the samples at the beginning of a block::

    {"kind": "wids.batches", "version": 1, "wids": "1.0.0",
     "offset": 3,           batches of the block that all ranks together have had
     "yielded": 12,         batches of each rank, in this epoch
     "block": 123456,       checksum of the lengths, limits' values and buckets in the block
     "order": {"sampler": {...}, "rule": {...}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wids import __version__
from wids.core.order import cursor
from wids.core.order.amendment import count_begun, read_in_batches, read_samples
from wids.core.order.batch import SAMPLERS
from wids.core.order.batch_epochs import BatchEpochs
from wids.core.order.cursor import Chosen, Loaded
from wids.core.order.identity import weights_of
from wids.core.order.progress import EarlierReading, Progress, adopt_earlier, read_earlier
from wids.core.order.state import MAX_POSITION, check_known, check_order, open_state, read_int
from wids.errors import InputError, StateError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from wids.core.order.amendment import Earlier
    from wids.core.order.batch import CutBlock, Rule
    from wids.core.order.cursor import Cursor
    from wids.core.order.progress import SampleProgress
    from wids.core.order.state import EpochPosition

VERSION = 1


class BatchProgress(Progress[BatchEpochs]):
    """The progress of a sampler of batches in its epochs.

    Args:
        samples: the progress of the inner sampler, which has the samples, the ranks and the epochs.
        rule: the bounds of a batch.
        block: rows of a block; None: see `BatchEpochs.of`.
    """

    def __init__(self, samples: SampleProgress, rule: Rule, block: int | None) -> None:
        self._seen: Cursor | None = None
        self._samples, self._rule, self._block = samples, rule, block
        self._counts: dict[str, int] = {}
        # The order of the state that was loaded last, and its block (`BatchEpochs.known`).
        self._kept: tuple[Any, dict[tuple[int, int], CutBlock]] = None, {}
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": (None, {})}

    @property
    def cursor(self) -> Cursor:
        """The cursor, after an epoch that was chosen through the inner sampler, as trainers do.

        Raises:
            StateError: a state was loaded into the inner sampler.
        """
        now = self._samples.cursor
        if now is not self._seen:
            if isinstance(now, Loaded):
                name = SAMPLERS[self._rule.kind].partition(".")[2]
                raise StateError(
                    f"a state was loaded into the sampler under a {name}, and its place says nothing of batches; load "
                    f"the state of a {name} into that, or make a sampler without a state"
                )
            self._seen = now
            if isinstance(now, Chosen):
                self._cursor = cursor.choose(self._cursor, now.epoch)
        return self._cursor

    @cursor.setter
    def cursor(self, value: Cursor) -> None:
        self._cursor = value

    def follow(self, samples: SampleProgress) -> None:
        """Take this for the progress of the inner sampler: another one was assigned, or copied."""
        if samples is not self._samples:
            # An equal cursor was seen before; another one holds what was chosen since.
            self._samples, self._seen = samples, samples.cursor if samples.cursor == self._seen else self._seen

    @property
    def samples(self) -> SampleProgress:
        """The progress of the inner sampler."""
        return self._samples

    def epochs(self) -> BatchEpochs:
        """The epochs of an iteration that begins now.

        Raises:
            InputError: what the inner sampler reads was assigned for one rank alone.
        """
        epochs = self._samples.epochs()
        if self._samples.population.is_own or (epochs.length is not None and epochs.world != epochs.lanes):
            raise InputError(
                "the sampler's ranges, or its dslength_per_replica, were assigned for this rank alone; batches are cut "
                "for all ranks together: use num_samples, a view, or epoch_size"
            )
        made = BatchEpochs.of(epochs, self._rule, seed=self._samples.settings.seed, block=self._block)
        order, known = self._kept
        return replace(made, known=known) if known and order == self._order(made) else made

    def _order(self, epochs: BatchEpochs) -> Any:
        """Everything that a block depends on, but for weights."""
        return self.identity(epochs), epochs.lanes, epochs.tail, epochs.lane_epochs.has_seeds

    def count(self) -> int:
        """Length of the present epoch; the whole epoch is cut, once."""
        epochs = self.epochs()
        place = self.place(epochs)
        key = repr((place, epochs.world, self.identity(epochs), weights_of(self._samples.population)))
        if key not in self._counts:
            self._counts = {key: epochs.count(place)}
        return self._counts[key]

    # --- state

    def identity(self, epochs: BatchEpochs) -> dict[str, Any]:
        """Everything that must be equal for a place to mean the same batch; the lanes come on top."""
        rule = {**self._rule.identity, "rows": epochs.rows}
        return {"sampler": self._samples.identity(epochs.lane_epochs), "rule": rule}

    def state_at(self, epochs: BatchEpochs, place: EpochPosition) -> dict[str, Any]:
        """The state of a place."""
        return {
            "kind": self._rule.kind,
            "version": VERSION,
            "wids": __version__,
            "offset": place.offset,
            "yielded": place.yielded,
            "block": epochs.checksum(place),
            "order": {
                "sampler": self._samples.state_at(epochs.lane_epochs, place._replace(yielded=0, offset=0)),
                "rule": self.identity(epochs)["rule"],
            },
        }

    def load(self, state: Any, *, is_reweighted: bool = False, earlier: Earlier | None = None) -> None:
        """Load a state; one that was loaded into the inner sampler is replaced. See `Progress.load`."""
        if isinstance(self._samples.cursor, Loaded):
            self._seen = self._samples.cursor
        super().load(state, is_reweighted=is_reweighted, earlier=earlier)

    def adopt(self, state: Any, *, is_reweighted: bool = False, earlier: Earlier | None = None) -> Loaded:
        """Read a state; see `Progress.adopt`."""
        self._kept = None, {}
        state = parse_batches(state, self._rule.kind)
        offset, yielded = (read_int(state, name, minimum=0, maximum=MAX_POSITION) for name in ("offset", "yielded"))
        order = state["order"]
        if earlier is not None and not earlier.is_same:
            with self._samples.kept_on_error():
                place = self._amend(state, order["sampler"], order["rule"], earlier, yielded=yielded)
                epochs = self.epochs()
                return Loaded(place, {**self.identity(epochs), "lanes": epochs.lanes})
        with self._samples.kept_on_error():
            loaded = self._samples.adopt(order.get("sampler"), is_reweighted=is_reweighted)
            epochs = self.epochs()
            try:
                epochs.first_place(loaded.place.epoch)
            except ValueError as error:
                raise StateError(f"the state has {epochs.lanes} lanes, and {error}; it is damaged") from error
            place = loaded.place._replace(yielded=yielded, offset=offset)
            here = self.identity(epochs)
            theirs, ours = dict(order["rule"]), dict(here["rule"])
            if is_reweighted:
                theirs |= {name: ours[name] for name in ("lengths", "values") if name in ours}
            rows = theirs.get("rows")
            advice = (
                f". {SAMPLERS[self._rule.kind].partition('.')[2]}(block={rows!r:.40}) has blocks of the state's rows"
            )
            check_order(theirs, ours, advice="" if rows == ours["rows"] else advice)
            if offset and is_reweighted:  # the block that has begun stays what it is
                end = {**order["sampler"], "position": epochs.decided(place)}
                self._samples.adopt(end, is_reweighted=True)
                epochs = self.epochs()
            if offset:
                try:
                    epochs.keep(place)
                    checksum = epochs.checksum(place)
                except (InputError, OverflowError) as error:  # no block of a sampler is as large
                    raise StateError(f"the state has {epochs.lanes} lanes, and {error}; it is damaged") from error
                self._kept = self._order(epochs), epochs.known
                if checksum != state.get("block"):
                    raise StateError(
                        "the lengths, limits or buckets of the samples at the state's position have changed since it "
                        "was saved, so their batches are other ones; train with those of before, or begin an epoch"
                    )
            return Loaded(place, {**here, "lanes": epochs.lanes})

    def _amend(
        self, state: Mapping[str, Any], inner: Any, rule: Mapping[str, Any], earlier: Earlier, *, yielded: int
    ) -> EpochPosition:
        """Let the inner sampler go on over the data of now; see `SampleProgress.amend`.

        Raises:
            StateError: the state is of other bounds of batches, or not of these data. InputError: it needs values of
                the earlier samples, and they are not known.
        """
        data = {name: rule[name] for name in ("lengths", "buckets", "values") if name in rule}
        check_order({**rule, "rows": None}, {**self._rule.identity, **data, "rows": None})
        reading = read_earlier_batches(
            self._samples.earlier(inner, earlier),
            state,
            lambda count: self._rule.for_samples(count, earlier.read),
        )
        if reading.begun:
            logger.warning(
                "the data have changed after pieces of %d document(s) were read; all of their tokens come again",
                reading.begun,
            )
        reading = reading._replace(place=reading.place._replace(yielded=yielded))
        return self._samples.amend(reading, earlier).place


def read_earlier_batches(then: SampleProgress, state: Mapping[str, Any], make: Callable[[int], Rule]) -> EarlierReading:
    """The reading of a state of batches.

    Args:
        then: over the earlier data.
        state: that `parse_batches` accepts.
        make: makes the rule of the earlier batches, of so many samples; it is called only if the reading depends on it.

    Raises:
        StateError: it is not of these data.
    """
    inner, rule = state["order"]["sampler"], state["order"]["rule"]
    if not state.get("offset") and rule.get("too_long") != "skip" and then.settings.tail != "drop":
        return read_earlier(then, inner)  # whole blocks, which have all of their samples
    progress = BatchProgress(then, make(len(then.dataset)), read_int(rule, "rows", minimum=1, maximum=MAX_POSITION))
    place = adopt_earlier(progress, state)
    epochs = progress.epochs()
    more, omitted, filling = read_in_batches(epochs, place)
    read = read_samples(epochs.lane_epochs, place, more, omitted, filling)
    return EarlierReading(then, place, read, epochs.is_over(place), len(more), count_begun(epochs, place))


def parse_batches(state: Any, kind: str) -> Mapping[str, Any]:
    """A state of batches, whose parts are mappings.

    Args:
        state: any value.
        kind: of the state; see `wids.core.order.batch.SAMPLERS`.

    Raises:
        StateError: it is another one, or damaged.
    """
    opened = open_state(state, kind, VERSION, SAMPLERS[kind])
    order = opened.get("order")
    if not isinstance(order, Mapping) or not all(isinstance(order.get(name), Mapping) for name in ("rule", "sampler")):
        raise StateError(f"the state's order is {order!r:.200}; it is damaged")
    check_known(order, {"sampler", "rule"}, "order")
    return opened
