"""Batches of a mixture, each of one source or of all, with a state."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import Sampler

from wids.order.mixture import mixed_parts
from wids.order.validation import parse_int, suggest_names
from wids.samplers import DistributedChunkedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

    Batches = Literal["mixed", "by-source"]


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
        sampler: the `wids.DistributedChunkedSampler` underneath. batch_size: as given.

    Raises:
        ValueError: a bad option; the dataset is no mixture.
    """

    def __init__(self, mixture: Sized, batch_size: int, *, batches: Batches = "by-source", **options: Any) -> None:
        if batches not in ("mixed", "by-source"):
            raise ValueError(f"batches is {batches!r}; it must be 'mixed' or 'by-source'")
        if mixed_parts(mixture) is None:
            raise ValueError(f"a {type(mixture).__name__} is no mixture; wids.mix makes one")
        self.batch_size = parse_int("batch_size", batch_size, minimum=1)
        run = self.batch_size if batches == "by-source" else 1
        self.sampler = DistributedChunkedSampler(mixture, source_batch=run, **options)

    def __len__(self) -> int:
        return (len(self.sampler) + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return _BatchIteration(self.sampler, self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Choose the nominal epoch of the next iteration."""
        self.sampler.set_epoch(epoch)

    @suggest_names
    def reweight(self, weights: Mapping[str, float], *, at: int | None = None) -> int:
        """Change the weights of sources; see `wids.DistributedChunkedSampler.reweight`. ``at`` counts samples."""
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

        Raises:
            StateError: it belongs to another mixture or order, or another global batch.
        """
        self.sampler.load_state_dict(state, reweight=reweight)


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
