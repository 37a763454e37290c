"""The job that goes on from a state, also over changed data, for what reads or simulates its order. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.order.batch import BATCHES, PACKS, SAMPLERS
from wids.core.order.batch_progress import BatchProgress
from wids.core.order.layout import mixed_parts
from wids.core.order.packing import mean_tokens
from wids.core.order.population import MixturePopulation, choose_population
from wids.core.order.progress import SampleProgress
from wids.errors import StateError

if TYPE_CHECKING:
    from wids.core.order.amendment import Earlier
    from wids.core.order.batch import Rule
    from wids.core.order.progress import Progress
    from wids.core.order.rank_epochs import RankEpochs
    from wids.core.order.settings import SamplerSettings

_KINDS = {
    None: "a plain sampler",
    BATCHES: "batches of like length; say their --lengths, --max-tokens",
    PACKS: "packs; say their --lengths, --pack-tokens",
}


class Resume(NamedTuple):
    """A state, and the data that it goes on over.

    Attributes:
        data: the dataset of now.
        state: of a sampler, of batches, or of a loader.
        earlier: the data that it was saved over; None: those of now.
    """

    data: Any
    state: Any
    earlier: Earlier | None = None

    def begin(
        self,
        settings: SamplerSettings,
        *,
        span: tuple[int, int] | None = None,
        weights: Any = None,
        rule: Rule | None = None,
        block: int | None = None,
    ) -> tuple[RankEpochs, int]:
        """The epochs of a rank's samples, and the epoch that comes next.

        Args:
            settings: of the sampler; lanes are the state's.
            span: range of the samples; None: all.
            weights: of samples.
            rule: of batches of like length, or of packs; None: there are none.
            block: of these.

        Raises:
            StateError: the state is damaged, or of other data or settings, or of batches of another kind.
        """
        parts = mixed_parts(self.data)
        population = choose_population(self.data, parts, settings, num_samples=span, weights=weights)
        if isinstance(population, MixturePopulation) and (means := mean_tokens(rule, parts)):
            population.count_tokens(means)
        settings = replace(population.set_size(settings), takes_lanes=True)
        samples = SampleProgress(self.data, population, settings)
        kind = self.state.get("kind")
        kind = kind if kind in SAMPLERS else None
        if kind != (None if rule is None else rule.kind):
            raise StateError(f"the state is of {_KINDS[kind]}")
        progress: Progress[Any] = samples if rule is None else BatchProgress(samples, rule, block)
        progress.load(self.state, earlier=self.earlier)
        return samples.epochs(), progress.next_place().epoch
