"""The settings of a sampler, as one value, and the attributes by which programs read and assign them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from wids.core.files.held import Held
from wids.core.order.validation import check_flag, parse_int

if TYPE_CHECKING:
    from wids.core.order.epoch import Reshuffle, Tail


@dataclass(frozen=True, kw_only=True)
class SamplerSettings:
    """The arguments of a sampler except its dataset, by the names of `wids.DistributedChunkedSampler`'s parameters.

    Attributes:
        length: indices of each rank in an epoch, if it was assigned; see `wids.core.order.rank_epochs.RankEpochs`.
        takes_lanes: a loaded state sets the lanes; otherwise they must be equal.
        takes_epoch_size: likewise for the epoch size.

    Raises:
        ValueError: a value that is not an integer, or too small, or none of those there are; settings that exclude each
            other.
    """

    seed: int
    shuffle: bool = True
    chunksize: int = 1
    window: int
    num_replicas: int = 1
    rank: int = 0
    tail: Tail = "pad"
    sample_seeds: bool = False
    reshuffle: Reshuffle = "fixed"
    lanes: int = 1
    epochs: int | None = 1
    epoch_size: int | None = None
    source_batch: int = 1
    length: int | None = None
    takes_lanes: bool = False
    takes_epoch_size: bool = False

    def __post_init__(self) -> None:
        for name in ("seed", "rank", *_COUNTS):
            value = getattr(self, name)
            if value is not None or name not in ("epochs", "epoch_size"):
                object.__setattr__(self, name, parse_int(name, value, minimum=1 if name in _COUNTS else None))
        for name in ("shuffle", "sample_seeds"):
            check_flag(name, getattr(self, name))
        if self.tail not in ("pad", "drop", "mask"):
            raise ValueError(f"tail is {self.tail!r}; it must be 'pad', 'drop' or 'mask'")
        if self.reshuffle not in ("fixed", "epoch"):
            raise ValueError(f"reshuffle is {self.reshuffle!r}; it must be 'fixed' or 'epoch'")
        if self.epoch_size is not None and self.epochs != 1:
            raise ValueError(
                f"epochs is {self.epochs} and epoch_size {self.epoch_size}; only one of them can set the end of an "
                "iteration"
            )

    @property
    def mixing(self) -> dict[str, Any]:
        """The settings that a `Plan` takes, for any samples."""
        return {
            "window": self.window,
            "is_shuffled": bool(self.shuffle),
            "seed": self.seed,
            "chunksize": self.chunksize,
            "lanes": self.lanes,
            "reshuffle": self.reshuffle,
        }


# Settings that are integers above 0, or None.
_COUNTS = ("chunksize", "window", "num_replicas", "lanes", "epochs", "epoch_size", "source_batch")


class Setting(Held):
    """A sampler's attribute that is one of its `SamplerSettings`; to assign it replaces these, for later iterations."""

    def __init__(self) -> None:
        super().__init__(self._read, self._replace)

    def _read(self, sampler: Any) -> Any:
        return getattr(sampler.__wids__().settings, self._name)

    def _replace(self, sampler: Any, value: Any) -> None:
        progress = sampler.__wids__()
        progress.settings = replace(progress.settings, **{self._name: value})
