"""Identities: the values that must be equal for a position to mean the same sample, as plain values of a state.

A state is compared with the sampler that loads it (`adopt_order`). The population says which samples there are, its
epochs how they are ordered. Of a mixture, each source is compared by its name, and the state's weights are taken over.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wids.core.order.layout import companion_marks, contents, fingerprint
from wids.core.order.mixture import WeightSegment, check_weights
from wids.core.order.population import MixturePopulation
from wids.core.order.state import COMPANIONS, CONTENTS, MAX_POSITION, check_known, check_order, read_size
from wids.core.order.validation import parse_int
from wids.errors import StateError

if TYPE_CHECKING:
    from wids.core.order.population import Population
    from wids.core.order.settings import SamplerSettings
    from wids.core.order.state import EpochPosition

    Identity = dict[str, Any]

_ADVICE = (
    "To go on with this mixture's sources and weights from the state's position on, "
    "load_state_dict(state, reweight=True)"
)


def identify(population: Population, dataset: Any) -> Identity:
    """The samples of a population, as plain values; the sources of a mixture have their identities in its plan."""
    marks = companion_marks(dataset)
    more = {COMPANIONS: marks} if marks else {}
    if isinstance(population, MixturePopulation):
        return {"dataset": None, **more}
    digests = contents(dataset)
    return {"dataset": fingerprint(dataset), **({CONTENTS: digests} if digests else {}), **more}


def weights_of(population: Population) -> Identity:
    """The weights of a mixture, from each position on; a sampler takes them over from the state that it loads."""
    if not isinstance(population, MixturePopulation):
        return {}
    changes = [[segment.position, dict(segment.weights), dict(segment.before)] for segment in population.segments]
    share = {} if population.means is None else {"share": "tokens"}
    return {"weights": {"own": population.weights, "from": changes, **share}}


def adopt_order(
    population: Population,
    there: Identity,
    here: Identity,
    place: EpochPosition,
    settings: SamplerSettings,
    *,
    is_reweighted: bool,
    shift: int = 0,
) -> Identity:
    """Check the order of a state against a sampler's own; returns the order that both have now.

    Args:
        population: of the sampler; that of a mixture takes over the state's weights.
        there: the state's order.
        here: the sampler's.
        place: the state's.
        settings: of the sampler, with the state's lanes.
        is_reweighted: the weights of a mixture hold from the state's place on.
        shift: positions by which a change of the data has moved nominal epochs.

    Raises:
        StateError: the orders differ; or the weights do, and ``is_reweighted`` is False; or the state is damaged.
    """
    if not isinstance(population, MixturePopulation):
        check_order(there, here)
        epochs = population.epochs(settings)
        size = epochs.nominal_size if epochs.is_stream else 0
        if not 0 <= place.epoch * size <= place.position - shift:
            raise StateError(f"the state is at {place}, before that epoch of {size} samples; it is damaged")
        return here
    mixture, lanes = population, settings.lanes
    if "sources" not in there:
        check_order(there, here)
    there, here = dict(there), dict(here)
    weights = there.pop("weights", None)
    if settings.takes_epoch_size:
        here["epoch_size"] = read_size(there)
    if here["batch"] is not None and there.get("batch") is not None:
        _check_batch(there["batch"], place.position, settings)
        here["batch"] = there["batch"]
    check_order(*(_common_sources(there, here) if is_reweighted else (there, here)), advice=f". {_ADVICE}")
    size = here["epoch_size"] or mixture.end
    if not 0 <= place.epoch <= MAX_POSITION // size or max(place.position, place.yielded, lanes) > MAX_POSITION:
        raise StateError(f"the state is at {place}, in {lanes} lanes and epochs of {size}; it is damaged")
    share = "samples" if mixture.means is None else "tokens"
    if not is_reweighted and (there_share := _share_of(weights)) != share:
        raise StateError(f"the state's weights are shares of {there_share}, and here they are shares of {share}")
    weights_now, segments = _parse_weights(weights, mixture.batch or lanes, None if is_reweighted else mixture.sizes)
    names = [name for name in {**weights_now, **mixture.weights} if weights_now.get(name) != mixture.weights.get(name)]
    if names and not is_reweighted:
        listed = "; ".join(f"{name}: {weights_now.get(name)} there, {mixture.weights.get(name)} here" for name in names)
        raise StateError(f"the state's weights are not the mixture's ({listed}). {_ADVICE}")
    mixture.segments = segments
    if is_reweighted:
        mixture.change(mixture.weights, position=place.position, lanes=lanes)
    return here


def _check_batch(batch: Any, position: int, settings: SamplerSettings) -> None:
    """Raise unless a sampler's ranks read whole batches of a state that has batches of one source.

    Raises:
        StateError: they do not.
    """
    mine = settings.source_batch * settings.num_replicas
    if batch != mine:
        raise StateError(
            f"the state's global batches are of {batch} samples, and here {settings.num_replicas} rank(s) with "
            f"source_batch={settings.source_batch} read {mine} at a time; ranks times source_batch has to be {batch}"
        )
    if batch % settings.lanes:
        raise StateError(f"the state's global batches are of {batch} samples in {settings.lanes} lanes; it is damaged")
    if position % mine:
        raise StateError(
            f"the state is at sample {position}, within a global batch of {mine}; save states after whole batches"
        )


def _common_sources(there: Identity, here: Identity) -> tuple[Identity, Identity]:
    """Two orders of mixtures, with only the sources that are in both."""
    if not isinstance(there["sources"], Mapping):
        raise StateError(f"the state's sources are {there['sources']!r:.200}, not a mapping; it is damaged")
    names = there["sources"].keys() & here["sources"].keys()
    one, other = ({**order, "sources": {name: order["sources"][name] for name in names}} for order in (there, here))
    return one, other


def _share_of(weights: Any) -> str:
    """The unit of which weights of a state are shares."""
    return str(weights.get("share", "samples")) if isinstance(weights, Mapping) else "samples"


def _parse_weights(
    weights: Any, each: int, sizes: Mapping[str, int] | None
) -> tuple[dict[str, float], tuple[WeightSegment, ...]]:
    if not isinstance(weights, Mapping):
        raise StateError(f"the state's weights are {weights!r:.200}, not a mapping; they are damaged")
    check_known(weights, {"own", "from", "share"}, "weights")
    try:
        weights_now = check_weights(weights["own"])
        segments = tuple(_parse_segment(segment, each, sizes) for segment in weights["from"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"the state's weights are damaged: {error}") from None
    positions = [segment.position for segment in segments]
    if not segments or positions[0] != 0 or sorted(set(positions)) != positions:
        raise StateError(f"the state's weights are damaged: they begin at positions {positions!r:.200}")
    return weights_now, segments


def _parse_segment(values: Any, each: int, sizes: Mapping[str, int] | None) -> WeightSegment:
    """A segment as a state has it.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    position, weights, before = values
    for name in (*weights, *before):
        if not isinstance(name, str):
            raise TypeError(f"a source's name is {name!r}; it must be a string")
    segment = WeightSegment(
        parse_int("position", position, minimum=0),
        check_weights(weights, None if sizes is None else {name: sizes.get(name, 0) for name in weights}),
        {name: parse_int(f"turns of source {name!r}", count, minimum=0) for name, count in before.items()},
    )
    turns = sum(segment.before.values())
    if segment.position > MAX_POSITION or segment.position != turns * each:
        raise ValueError(f"{turns} turns of {each} are not the {segment.position} samples before")
    return segment
