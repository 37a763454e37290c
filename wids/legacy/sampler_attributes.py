"""The attributes of wids 0.1's samplers that programs read and assign, and subclasses build on.

`wids.ChunkedSampler` and the other samplers have them by inheritance. New programs give settings to the constructor.
An assignment holds from the next iteration on.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from wids.core.files.held import holding
from wids.core.files.lazy import Computed
from wids.core.order.config import Setting
from wids.core.order.population import GivenChunks
from wids.core.order.validation import parse_int, parse_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.order.config import EpochConfig, SamplerSettings
    from wids.core.order.population import ReadSamples


@holding
class SamplerAttributes:
    """What a sampler has of wids 0.1.

    Attributes:
        seed: any integer, modulo 2**64; may be assigned.
        shuffle: whether the order is shuffled; may be assigned.
        shufflefirst: as given; it has no effect, because every epoch shuffles its chunks, the first one too.
    """

    seed: Setting = Setting()
    shuffle: Setting = Setting()
    shufflefirst: Any
    epoch: Any  # of the sampler
    _settings: SamplerSettings
    _samples: ReadSamples
    _epoch_rng: tuple[int, random.Random] | None = None

    def _config(self) -> EpochConfig:
        raise NotImplementedError

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
        return [(lo, hi) for lo, hi in self._config().ranges().tolist()]

    @ranges.setter
    def ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        from wids.core.order.mixture import MixtureWeights

        if isinstance(self._samples, MixtureWeights):
            raise ValueError("the chunks of a mixture are those of its sources, and cannot be assigned")  # noqa: TRY004
        self._samples = GivenChunks(parse_ranges(ranges))
        self._settings = self._samples.set_length(self._settings, None)

    @property
    def dslength_per_replica(self) -> int:
        """The number of indices in an iteration, equal to ``len``; may be assigned."""
        return len(self)  # type: ignore[arg-type]

    @dslength_per_replica.setter
    def dslength_per_replica(self, length: int) -> None:
        length = parse_int("dslength_per_replica", length, minimum=0)
        self._settings = self._samples.set_length(self._settings, length)
