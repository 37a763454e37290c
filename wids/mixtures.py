"""Mixtures: several datasets as one, read in stated shares.

A `Mixture` is a map-style dataset over its sources, one after another; which source a sampler reads next is decided in
`wids.core.order.mixture`.
"""

from __future__ import annotations

import copy
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import ConcatDataset, Dataset

from wids.core.collection.arguments import warn_of_none
from wids.core.collection.shard_collection import to_int
from wids.core.files.lazy import Computed
from wids.core.index.view_saving import save_mixture
from wids.core.order.layout import SamplerInterface, SourceSpan, contents, fingerprint, interface_of
from wids.core.order.mask import MarkedIndex
from wids.core.order.mixture import check_weights, fill_weights
from wids.core.order.validation import suggest_names
from wids.errors import InputError, a_kind, note_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from wids.core.collection.stats import Stats
    from wids.core.index.shardlist import ShardList


_PREVIEWS, _SOURCES = 3, 12  # samples of a source, and sources, that a notebook shows


@suggest_names
def mix(sources: Mapping[str, Any] | Iterable[Any]) -> Mixture:
    """Mix datasets: a dataset of all their samples, which samplers read in stated shares.

    ``wids.mix({"web": (web, 0.7), "books": (books, 0.3)})``. Samples have the name of their source in
    ``__dataset__``, before their transformations. A `wids.ShardListDataset` is mixed as it is now: transformations that
    are added to it later are not the mixture's. Weights within a source (another mixture, an index's sub-datasets) are
    not looked at: its samples come evenly.

    Args:
        sources: name -> dataset, or (dataset, weight); or a list of these, named ``"0"``, ``"1"``, ... Anything with
            ``len()`` and ``[i]`` is a dataset. Only the ratios of weights matter; a weight of 0 leaves a source out
            until a sampler's ``reweight`` gives it another. A source without a weight counts by its length, and then
            all given weights are numbers of samples: shares below 1 have to be given for all of them.

    Raises:
        ValueError: no source; a bad weight; a source without samples that has one.
        TypeError: a source is no dataset.

    Example:
        >>> web, books = wids.ShardListDataset("train.json"), wids.ShardListDataset("books.json")
        >>> mixture = wids.mix({"web": (web, 0.7), "books": (books, 0.3)})
        >>> len(mixture), mixture[12]["__dataset__"]
        (18, 'books')
    """
    if isinstance(sources, (str, bytes, Dataset)) or not isinstance(sources, Iterable):
        raise TypeError(f"sources is {a_kind(sources)}; give datasets in a dict or a list: wids.mix([web, books])")
    pairs = sources.items() if isinstance(sources, Mapping) else ((str(k), source) for k, source in enumerate(sources))
    datasets: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    for name, source in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a source's name is {name!r}; it must be a string")
        is_pair = isinstance(source, tuple) and len(source) == 2
        datasets[name], weights[name] = source if is_pair else (source, None)
    return Mixture(datasets, weights)


class Mixture(ConcatDataset[Any]):
    """Several datasets, one after another, with weights; `mix` makes it.

    ``mixture[i]`` is a sample of the source that holds index i, with that source's transformations, then the mixture's.

    Attributes:
        datasets: the sources, a list.
        names: theirs, a list of str.
        weights: name -> weight, float; those of the first sample on: a sampler may change its own.
        lengths: samples of each source, a list of int.

    Args:
        datasets: name -> source.
        weights: name -> weight.

    Raises:
        TypeError, ValueError: see `mix`.

    Example:
        >>> mixture = wids.mix({"web": (wids.ShardListDataset("train.json"), 2), "books": (["a", "b"], 1)})
        >>> mixture.names, mixture.lengths, mixture[13]
        (['web', 'books'], [12, 2], 'b')
    """

    names: list[str]
    weights: dict[str, float]

    @suggest_names
    def __init__(self, datasets: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        for name, dataset in datasets.items():
            is_none = isinstance(dataset, (str, bytes, tuple, Mapping))  # which have len() and [i], too
            if is_none or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
                opened = "; ShardListDataset(...) opens an index" if isinstance(dataset, str) else ""
                raise TypeError(
                    f"source {name!r} is {a_kind(dataset)}; it must be a dataset with len() and [i], or a "
                    f"pair of such and its weight{opened}"
                )
        if not datasets:
            raise ValueError("a mixture needs one source at least")
        super().__init__([_named(dataset, name) for name, dataset in datasets.items()])
        self.names = list(datasets)
        sizes = dict(zip(self.names, self._lengths(), strict=True))
        self.weights = check_weights(fill_weights(weights, sizes), sizes)
        self._transformations: list[Callable[[Any], Any]] = []

    @Computed
    def lengths(self) -> list[int]:
        """Samples of each source."""
        return self._lengths()

    def _lengths(self) -> list[int]:
        return [len(dataset) for dataset in self.datasets]  # type: ignore[arg-type]

    def __wids__(self) -> SamplerInterface:
        return SamplerInterface(mixed_parts=self._mixed_parts)

    def _mixed_parts(self) -> list[SourceSpan]:
        """The sources as samplers take them."""
        ends = self.cumulative_sizes
        return [
            SourceSpan(name, end - length, end, self.weights[name], fingerprint(dataset), contents(dataset))
            for name, dataset, length, end in zip(self.names, self.datasets, self._lengths(), ends, strict=True)
        ]

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """The samples at ``indices``, in that order; each source reads its own together."""
        asked: dict[int, tuple[list[int], list[Any]]] = {}
        count = 0
        for count, index in enumerate(indices, 1):
            source, index_there = self._locate(index)
            places, wanted = asked.setdefault(source, ([], []))
            places.append(count - 1)
            wanted.append(index_there)
        samples_in_order: list[Any] = [None] * count
        for source, (places, wanted) in asked.items():
            dataset: Any = self.datasets[source]
            read = getattr(dataset, "__getitems__", None)
            samples = [dataset[index_there] for index_there in wanted] if read is None else read(wanted)
            for position, sample in zip(places, samples, strict=True):
                samples_in_order[position] = self._transform(sample, source)
        return samples_in_order

    def add_transform(self, transform: Callable[[Any], Any]) -> Self:
        """Append a function that all samples go through, after their source's transformations; returns the mixture.

        Args:
            transform: takes a sample.
        """
        self._transformations.append(transform)
        return self

    @suggest_names
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write this mixture as an index of sub-datasets with weights: its shards, and no data.

        ``ShardListDataset(path)`` opens it, and samplers read it as this mixture: in the same order, and with the same
        states. Transformations are the program's, and not saved.

        Args:
            path: a local path, such as ``"mix.json"``. An index that is there is replaced.
            overwrite: any other file is replaced, too.

        Raises:
            InputError: a source is no `wids.ShardListDataset`, or a view, or one with columns or companions as fields,
                which such an index cannot say; or it is the only one. OutputError, OutputExistsError, OSError: see
                `wids.ShardListDataset.save`.
        """
        if len(self.names) < 2:
            raise InputError(
                f"the mixture has one source, {self.names[0]!r}, and an index of one is no mixture; save that"
            )
        named: list[tuple[str, Any]] = list(zip(self.names, self.datasets, strict=True))
        parts = []
        for name, dataset in named:
            listed = self._listed(name, dataset)
            parts.append((name, self.weights[name], *listed))
        save_mixture(parts, os.fspath(path), overwrite=overwrite)

    @staticmethod
    def _listed(name: str, dataset: Any) -> tuple[ShardList, str | None]:
        """The shards of a source, and the URL of the index that lists them; see `save`."""
        interface = interface_of(dataset)
        if interface is None or interface.listed is None:
            raise InputError(f"source {name!r} is {a_kind(dataset)}; an index holds the shards of a ShardListDataset")
        shards, index_url, is_plain = interface.listed()
        if shards.selection is not None or not is_plain:
            what = "is a view" if shards.selection is not None else "has columns or companions as fields of its samples"
            raise InputError(
                f"source {name!r} {what}, and an index of a mixture holds whole sources; write its samples as shards "
                "(wids pack), or keep the lines that make the mixture"
            )
        return shards, index_url

    def stats(self) -> dict[str, Stats]:
        """The `wids.ShardListDataset.stats` of each source that has them."""
        named: list[tuple[str, Any]] = list(zip(self.names, self.datasets, strict=True))
        return {name: dataset.stats() for name, dataset in named if callable(getattr(dataset, "stats", None))}

    def close(self) -> None:
        """Close the open shards of all sources; they open again when needed."""
        for dataset in self.datasets:
            close = getattr(dataset, "close", None)
            if callable(close):  # a source may have something else by that name
                close()

    def __repr__(self) -> str:
        total = sum(self.weights.values())
        shares = ", ".join(f"{name} {weight / total:.1%}" for name, weight in self.weights.items())
        return f"<Mixture of {len(self)} samples: {shares}>"

    def _repr_html_(self) -> str:
        """The picture in a notebook: the shares, and the first samples of each source on this machine's disk."""
        from wids.core.codecs.html import show_dataset

        samples: list[Any] = []
        for dataset in self.datasets[:_SOURCES]:
            preview = getattr(dataset, "preview", None)
            samples += preview(min(_PREVIEWS, max(_SOURCES // len(self.datasets), 1))) if callable(preview) else []
        return show_dataset("Mixture", [repr(self).strip("<>")], samples, "")

    def _locate(self, index: Any) -> tuple[int, int]:
        """The number of the source that holds an index, and its own index there; marks stay (``tail="mask"``)."""
        plain, total = index if isinstance(index, MarkedIndex) else to_int(index), len(self)
        if not -total <= plain < total:
            raise IndexError(f"sample {int(plain)} of a mixture of {total}")
        if plain < 0:
            plain = int(plain) + total
        source = bisect_right(self.cumulative_sizes, plain)
        return source, plain - (self.cumulative_sizes[source - 1] if source else 0)

    def _transform(self, sample: Any, source: int) -> Any:
        if isinstance(sample, dict) and "__dataset__" not in sample:
            sample = copy.copy(sample)  # which the source may keep
            sample["__dataset__"] = self.names[source]
        untransformed = sample
        try:
            for transform in self._transformations:
                sample = transform(sample)
        except Exception as error:
            note_sample(error, untransformed)
            raise
        if sample is None and untransformed is not None:
            warn_of_none(transform)
        return sample


def _named(dataset: Any, name: str) -> Any:
    interface = interface_of(dataset)
    return dataset if interface is None or interface.named is None else interface.named(name)
