"""The samples of now that the epoch of a state has not read, as a set of indices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wids.core.order.amendment import ONLY
from wids.core.order.batch import PACKS, SAMPLERS
from wids.core.order.batch_progress import parse_batches, read_earlier_batches
from wids.core.order.batching import make_rule, name_sizes
from wids.core.order.budgets import name_limit
from wids.core.order.layout import mixed_parts
from wids.core.order.packing import make_pack_rule
from wids.core.order.population import MixturePopulation, RangePopulation, choose_population
from wids.core.order.progress import SampleProgress, carry_sources, read_earlier
from wids.core.order.settings import SamplerSettings
from wids.core.order.state import MAX_POSITION, nested_state, parse_state
from wids.errors import StateError

if TYPE_CHECKING:
    from wids.core.order.amendment import Earlier
    from wids.core.order.batch import Rule
    from wids.core.order.epoch import Tail
    from wids.core.order.index_set import IndexSet


def find_unseen(now: Any, state: Any, earlier: Earlier, *, seed: int = 0, tail: Tail = "pad") -> IndexSet:
    """The indices of samples that a state's epoch has not read: of shards that were there, and all of new ones.

    Of passes without end it is what the pass of the state has not read, of a mixture that of each source.

    Args:
        now: a dataset.
        state: of a sampler, of batches, or of a loader.
        earlier: the data that the state was saved over.
        seed: of the sampler, for a mixture, whose state does not say it.
        tail: likewise, for batches.

    Raises:
        StateError: the state is none, or not of the earlier data. InputError: the lengths of the earlier samples are
            needed, and not known.
    """
    state = nested_state(state)
    kind = state.get("kind") if isinstance(state, Mapping) else None
    is_of_batches = kind in SAMPLERS
    inner = parse_batches(state, str(kind))["order"]["sampler"] if is_of_batches else state
    settings = _settings_of(inner, seed, tail)
    parts = mixed_parts(now)
    try:
        progress = SampleProgress(now, choose_population(now, parts, settings), settings)
    except ValueError as error:
        raise StateError(f"the state does not fit the data of now: {error}") from error
    then = progress.earlier(inner, earlier)
    if is_of_batches:
        reading = read_earlier_batches(then, state, lambda count: _rule_of(state, count, earlier))
    else:
        reading = read_earlier(then, inner)
    ours, theirs = progress.population, then.population
    if isinstance(ours, RangePopulation) and isinstance(theirs, RangePopulation):
        passes = reading.read[ONLY]
        here = ours.lo, ours.hi
        return earlier.carry((theirs.lo, theirs.hi), here, passes[min(passes)]).outside(*here)
    if not isinstance(ours, MixturePopulation) or not isinstance(theirs, MixturePopulation):
        raise StateError("one of the data of now and of old= is a mixture, and the other is none")
    left = []
    carried = carry_sources(ours.parts, theirs.parts, reading.read, earlier)
    for part in ours.parts:
        seen = carried[part.name]
        left.append(seen[min(seen)].outside(0, part.last - part.first).moved(part.first))
    return left[0].union(*left[1:])


def _settings_of(state: Any, seed: int, tail: Tail) -> SamplerSettings:
    """The settings of the sampler that a state is of, with one rank.

    Raises:
        StateError: it is damaged.
    """
    _, lanes, order = parse_state(state)
    if lanes > MAX_POSITION:
        raise StateError(f"the state's lanes are {lanes}; it is damaged")
    try:
        said = next(iter(order["sources"].values())) if "sources" in order else order
        return SamplerSettings(
            seed=seed if "sources" in order else said["seed"],
            shuffle=said["shuffle"],
            chunksize=said["chunksize"],
            window=said["window"],
            reshuffle=said["reshuffle"],
            tail=tail,
            lanes=lanes,
            epochs=order["epochs"],
            epoch_size=order["epoch_size"],
            source_batch=order.get("batch") or 1,
            takes_lanes=True,
            takes_epoch_size="sources" in order,
        )
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise StateError(f"the state's settings are damaged ({error!r})") from error


def _rule_of(state: Mapping[str, Any], count: int, earlier: Earlier) -> Rule:
    """The rule of batches that a state was saved with.

    Raises:
        InputError: the lengths, buckets or limits' values of the earlier samples are not known, or do not fit.
            StateError: the state is damaged.
    """
    rule = state["order"]["rule"]
    if state["kind"] == PACKS:
        bounds: Any = {name: rule.get(name) for name in ("pack_tokens", "cut", "separators", "batch_size", "too_long")}
        return make_pack_rule(count, lengths=earlier.read("lengths"), **bounds)
    lengths, buckets = (earlier.read(name) if rule.get(name) else None for name in ("lengths", "buckets"))
    mosts = rule.get("limits") or {}
    if not isinstance(mosts, Mapping):
        raise StateError(f"the state's limits are {mosts!r:.200}, not a mapping; it is damaged")
    limits = {name: (earlier.read(name_limit(name)), most) for name, most in mosts.items()}
    sizes = name_sizes(rule.get("batch_size"), buckets)  # a state has the names of buckets as texts
    said: Any = {name: rule.get(name) for name in ("max_tokens", "cost", "too_long")}
    return make_rule(count, batch_size=sizes, lengths=lengths, buckets=buckets, limits=limits, **said)
