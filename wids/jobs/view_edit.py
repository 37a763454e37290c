"""Merges, splits and rebases views, which are selections of samples, for `wids.jobs.index_edit`.

Rules: samples and their order do not change; no shard is read. Views of one index stay views of it. Views of several
indexes become one view that lists its own shards, those with chosen samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.core.collection.views import choose
from wids.core.index import checksums
from wids.core.index.earlier import COMPUTED
from wids.core.index.fingerprint import fingerprint
from wids.core.index.loading import IndexRequest, load_rows
from wids.core.index.paths import absolute, public_place
from wids.core.index.selection import pick
from wids.core.index.shardlist import said_grouping
from wids.core.index.spec import list_shards
from wids.core.index.view_rows import SharedSelection
from wids.core.index.view_saving import check_not_parent, name_parent, save, write_view
from wids.core.place import Place
from wids.errors import SpecError
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wids.core.files.replaced import ReplacedFile
    from wids.core.index.selection import Integers, Selection
    from wids.core.index.shardlist import ShardList
    from wids.core.index.view_file import View


# The most weights or keys that a warning names.
_SHOWN = 5
# Top-level keys that a merged index has of its own, or its shards.
_OWN = COMPUTED | {"name", "weight"}


class IndexToMerge(NamedTuple):
    """An input of a merge or a split: an index or a view.

    Attributes:
        place: its URL or path.
        shards: its shard list, with its selection if it is a view.
        entries: (place, entry) of each shard; of a view, only of shards with chosen samples.
    """

    place: str
    shards: ShardList
    entries: list[tuple[str, dict[str, Any]]]

    def tell_weights(self, output: str) -> None:
        """Warn that the output lists all shards itself, and so loses the weights of this index."""
        parts = [f"{name} {weight:g}" for name, *_, weight in self.shards.weighted_parts() if weight is not None]
        if parts:
            logger.warning(
                "%s: has no weights, because it lists all shards itself; %s mixes sub-datasets by their weights (%s). "
                'To keep these, name its sub-datasets under "datasets" of one index',
                output,
                self.place,
                ", ".join(parts[:_SHOWN]) + (", ..." if len(parts) > _SHOWN else ""),
            )

    @property
    def listed_by(self) -> str | None:
        """The place of the index that lists its shards; None: it is a view that lists them itself."""
        if self.shards.selection is None:
            return absolute(self.place)
        parent = self.shards.header.get("view_of")
        return None if parent is None else absolute(parent)

    def rows(self) -> Iterator[Integers]:
        """The chosen rows of each of ``entries``: int64, ascending."""
        chosen = self.shards.selection
        for k, count in enumerate(self.shards.lengths):
            if chosen is None:
                yield np.arange(count, dtype=np.int64)
            elif count:
                yield np.asarray(chosen.rows_of(k), np.int64)


def common_grouping(sources: Sequence[IndexToMerge]) -> dict[str, str]:
    """The keys that say how members become samples, which are the same for all sources.

    Raises:
        SpecError: they are not.
    """
    first = sources[0]
    for source in sources[1:]:
        if (own := source.shards.grouping) != first.shards.grouping:
            ways = [" and ".join(map(repr, found.values())) for found in (own, first.shards.grouping)]
            raise SpecError(
                f"{source.place}: groups members by {ways[0]}, and {first.place} by {ways[1]}; an index has one way: "
                "open both, and mix them (wids.mix)",
                url=source.place,
            )
    return said_grouping(first.shards.header)


def common_keys(sources: Sequence[IndexToMerge], output: str) -> tuple[dict[str, Any], list[str]]:
    """The top-level keys of a merged index that wids does not compute.

    Args:
        sources: its inputs.
        output: its path, for the warning.

    Returns:
        Those that all sources have with one value, and the names of the others, which a warning names.
    """
    first, *others = (
        {key: value for key, value in source.shards.header.items() if key not in _OWN} for source in sources
    )
    common = {key: value for key, value in first.items() if all(key in keys and keys[key] == value for keys in others)}
    dropped = [key for key in dict.fromkeys(key for keys in (first, *others) for key in keys) if key not in common]
    if dropped:
        logger.warning(
            "%s: has no %s, because the indexes that it is made of do not agree in that; only keys with one value in "
            "all of them stay",
            output,
            " and no ".join(map(repr, dropped[:_SHOWN])) + (", ..." if len(dropped) > _SHOWN else ""),
        )
    return common, dropped


def merge_views(
    sources: Sequence[IndexToMerge],
    output: str,
    *,
    keys: Mapping[str, Any],
    name: str | None,
    file: ReplacedFile,
    overwrite: bool = False,
) -> tuple[ShardList, int]:
    """Write one view of the samples of several indexes and views; each sample once.

    If all sources are views of one index, the result is a view of it, in its order. Otherwise it has the order of the
    sources; a shard of several sources has the place of its first occurrence.

    Args:
        sources: the inputs.
        output: an absolute path.
        keys: other top-level keys, where the view lists its shards itself.
        name: of the dataset.
        file: at the output, as its name was read.
        overwrite: also replace a file that is no index, or one of another kind or of other shards.

    Returns:
        The written view, and the number of repeated samples, which it has once.

    Raises:
        SpecError: counts, sizes or checksums contradict each other. OutputExistsError: a source is a view of the
            index at the output.
    """
    for source in sources:
        if source.shards.selection is not None:
            check_not_parent(output, source.listed_by, source.place)
    parents = {(source.listed_by and public_place(source.listed_by), fingerprint(source.shards)) for source in sources}
    place = sources[0].listed_by if len(parents) == 1 else None
    grouping = common_grouping(sources)
    if place is None:
        whole, indices = _list_together(sources)
        for source in sources:
            source.tell_weights(output)
    else:
        whole, indices = sources[0].shards, np.concatenate([_whole_indices(source.shards) for source in sources])
    chosen = np.unique(indices)
    selection = SharedSelection(*pick(chosen, whole.whole_ends()))
    header = {**(keys if place is None else {}), **whole.header, **grouping, "name": name}
    found = whole.select(selection).with_header(header)
    names = ", ".join(Place(source.place).name for source in sources)
    step = f"merge ({names}): {len(chosen):,} of {found.whole_ends()[-1]:,}"
    save(found, selection, output, index_url=place, made_by=[step], overwrite=overwrite, file=file)
    return found, len(indices) - len(chosen)


def _whole_indices(shards: ShardList) -> Integers:
    if shards.selection is None:
        return np.arange(sum(shards.nsamples), dtype=np.int64)
    return shards.selection.whole_indices(shards.nsamples)


def _list_together(sources: Sequence[IndexToMerge]) -> tuple[ShardList, Integers]:
    """The shards of all sources, each once, and the chosen samples: indices into all samples of these shards."""
    entries: dict[str, dict[str, Any]] = {}
    parts = []
    for source in sources:
        for (url, entry), rows in zip(source.entries, source.rows(), strict=True):
            name = public_place(url)
            first = entries.setdefault(name, {**entry, "url": url})
            check_agree(name, first, entry, source.place)
            parts.append((name, rows))
    packs = [url for source in sources for url in source.shards.all_packs()]
    whole = list_shards(entries.values()).with_packs(packs)
    starts = dict(zip(entries, [0, *whole.whole_ends()], strict=False))
    return whole, np.concatenate([np.zeros(0, np.int64), *(rows + starts[name] for name, rows in parts)])


def check_agree(url: str, before: Mapping[str, Any], entry: Mapping[str, Any], place: str) -> None:
    """Check that two indexes agree about a shard.

    Raises:
        SpecError: they contradict each other.
    """
    for key in ("nsamples", "filesize", *checksums.KEYS):
        said = before.get(key), entry.get(key)
        if None not in said and said[0] != said[1]:
            raise SpecError(
                f"{place}: says that {key} of {url} is {said[1]}, and an index before it says {said[0]}; bring "
                "them up to date (wids index update)",
                path=key,
                url=place,
            )


def split_view(
    source: IndexToMerge, parts: Sequence[range], outputs: Sequence[str], *, overwrite: bool = False
) -> list[ShardList]:
    """Write a view for each part of another one, and return them.

    Args:
        source: the view.
        parts: the numbers of `IndexToMerge.entries` in each part.
        outputs: an absolute path for each part.
        overwrite: also replace files that are no indexes, or ones of another kind or of other shards.
    """
    shards = source.shards
    ends = np.cumsum([0, *(count for count in shards.lengths if count)])
    found = []
    for k, (part, output) in enumerate(zip(parts, outputs, strict=True)):
        indices = np.arange(ends[part.start], ends[part.stop], dtype=np.int64)
        selection = choose(shards, indices)
        step = f"index split, {k} of {len(parts)}: {len(indices):,} of {ends[-1]:,}"
        steps = [*shards.header["made_by"], step]
        save(shards, selection, output, index_url=source.listed_by, made_by=steps, overwrite=overwrite)
        found.append(shards.select(selection))
    return found


def write_rebased(index: dict[str, Any], view: View, place: str, file: ReplacedFile, output: str) -> Selection | None:
    """Write a view that was read from ``place``, its rows beside it.

    Args:
        index: the keys of the view, with the new URLs.
        view: the parsed view.
        place: its URL or path.
        file: that is replaced, as it was read.
        output: its absolute path.

    Returns:
        Its samples; None: nothing was written, because the view was saved again after it was read.

    Raises:
        SpecError: its rows are missing or damaged. FetchError: they cannot be read. OutputExistsError: the output is
            the index that the view is of.
    """
    if view.view_of is not None:
        check_not_parent(output, str(Place(absolute(place)).directory.join(view.view_of)), place)
    selection = load_rows(IndexRequest(url=place), view)
    if selection is not None:
        index |= {key: name_parent(index[key]) for key in ("view_of", "base") if key in index}
        write_view(index, selection, output, file)
    return selection
