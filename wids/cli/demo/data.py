"""What the demo trains on: its own shapes, or the user's index with a tenth of the samples held out.

Rules: every rank opens the data by itself and must come to the same split, so a split is a function of (length, seed).
Nothing here knows of processes or of the terminal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wids.cli.demo.labels import order_classes, place_of, read_label, transformations
from wids.errors import WidsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.events import Hook

_HELD_OUT = 10  # one sample in so many
_FEW_CLASSES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the samples are and how they become tensors; pickled into every rank.

    Attributes:
        index: URL or path of the index to train on, or whatever else `wids.ShardListDataset` takes as one string.
        test_index: of the samples to test on; None holds out a tenth of ``index``.
        image, label: extensions of the two members that are read, with the leading dot.
        classes: what the labels say, in the order of the network's outputs.
        size_px: images become squares of this side.
        cache_dir: where remote shards are kept.
        seed: what the split depends on.
    """

    index: str
    test_index: str | None
    image: str
    label: str
    classes: tuple[str, ...]
    size_px: int
    cache_dir: str
    seed: int

    def open(self, *, hooks: Sequence[Hook]) -> tuple[Any, Any]:
        """(samples to train on, samples to test on), map-style datasets of (image tensor, class)."""
        from torch.utils.data import Subset

        train = self._open_index(self.index, hooks)
        if self.test_index is not None:
            return train, self._open_index(self.test_index, hooks)
        kept, held_out = split(len(train), seed=self.seed)
        return Subset(train, kept), Subset(train, held_out)

    def _open_index(self, index: str, hooks: Sequence[Hook]) -> Any:
        import wids

        names = {name: k for k, name in enumerate(self.classes)}
        return wids.ShardListDataset(
            index,
            cache_dir=self.cache_dir,
            fields=(self.image, self.label),
            transformations=transformations(image=self.image, label=self.label, classes=names, size_px=self.size_px),
            hooks=hooks,
        )


def split(count: int, *, seed: int) -> tuple[list[int], list[int]]:
    """(indices to train on, indices held out), both rising: a random tenth, at least one sample, is held out.

    Random and not every tenth: labels that go round in a cycle would leave whole classes out.
    """
    import numpy as np

    held_out = np.zeros(count, bool)
    chosen = np.random.default_rng([seed, count]).choice(count, max(1, count // _HELD_OUT), replace=False)
    held_out[chosen] = True
    return np.flatnonzero(~held_out).tolist(), np.flatnonzero(held_out).tolist()


def survey(
    index: str,
    *,
    image: str,
    label: str,
    cache_dir: str,
    ranks: int,
    hooks: Sequence[Hook],
    tell: Callable[[int, int], None],
) -> tuple[list[int], tuple[str, ...]]:
    """Read every label of an index, and nothing else of the samples but the first.

    Args:
        index: as for `Data`.
        image: as for `Data`.
        label: as for `Data`.
        cache_dir: as for `Data`.
        ranks: how many processes want a share.
        hooks: for the dataset.
        tell: called with (labels read, labels in all) now and then.

    Returns:
        The number of samples in each shard, and the classes in order.

    Raises:
        WidsError: nothing can be learned from it: unreadable, a field missing, too few samples or classes.
    """
    import wids

    whole = wids.ShardListDataset(index, cache_dir=cache_dir, transformations=[], hooks=hooks)
    count = len(whole)
    if count <= ranks:
        raise WidsError(
            f"{index}: has {count} samples, and one is held out for the test: too few for {ranks} ranks; give --ranks"
        )
    _require(whole[0], {"--image": image, "--label": label})
    labels = wids.ShardListDataset(index, cache_dir=cache_dir, transformations=[], fields=(label,), hooks=hooks)
    found = set()
    for i in range(count):
        sample = labels[i]
        if label not in sample:
            _require(whole[i], {"--label": label})
        found.add(read_label(sample, field=label)[label])
        if i % 256 == 0:
            tell(i, count)
    tell(count, count)
    if len(found) < 2:
        raise WidsError(f"{index}: all {count} samples have the label {found.pop()!r}; there is nothing to tell apart")
    if len(found) > max(_FEW_CLASSES, count // 2):
        raise WidsError(
            f"{index}: {label} has {len(found)} different values in {count} samples; that is not a class. "
            "Name another field with --label"
        )
    return whole.lengths, order_classes(found)


def _require(sample: dict[str, Any], wanted: dict[str, str]) -> None:
    for option, field in wanted.items():
        if field not in sample:
            there = ", ".join(sorted(name for name in sample if name.startswith("."))) or "no fields at all"
            raise WidsError(f"{place_of(sample)} has no {field}; it has {there}. Name one of them with {option}")
