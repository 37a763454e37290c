"""Compare two indexes: which shards are the same, have moved, were replaced, added or dropped. No shard is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.collection.changes import find_earlier, open_earlier
from wids.core.collection.shard_collection import load_shards
from wids.core.index.changes import KINDS, compare_shards
from wids.core.order.unseen import find_unseen
from wids.core.transport.session import PLAIN
from wids.jobs.arguments import text_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from wids.core.order.epoch import Tail
    from wids.core.transport.session import Session


class ShardsOfKind(msgspec.Struct, kw_only=True):
    """The shards that one thing has happened to.

    Attributes:
        shards: their number.
        samples: in them; of dropped ones, of before.
        bytes: of those with a known size; of dropped ones, of before.
        kept: samples that were in an earlier shard.
        urls: of each, of the same ones none; of moved ones, [of before, of now].

    Example:
        >>> same = jobs.diff_indexes("train.json", "train.json").same
        >>> same.shards, same.samples, same.kept, same.urls
        (3, 12, 12, [])
    """

    shards: int = 0
    samples: int = 0
    bytes: int = 0
    kept: int = 0
    urls: list[Any] = msgspec.field(default_factory=list)


class IndexDiff(msgspec.Struct, kw_only=True):
    """The changes from one index to another.

    Attributes:
        same: shards with the same content at the same URL.
        moved: with the same content at another URL.
        replaced: with another content at the same URL, or written anew.
        added: of no earlier shard.
        dropped: that are not there any more.
        samples: of the index of now.
        unseen: those of them that the epoch of a state has not read; None: no state was given.

    Example:
        >>> dataset = wids.ShardListDataset("train.json")
        >>> state = wids.ChunkedSampler(dataset).state_dict()
        >>> diff = jobs.diff_indexes("train.json", "train.json", state=state)
        >>> diff.samples, diff.unseen
        (12, 12)
    """

    same: ShardsOfKind
    moved: ShardsOfKind
    replaced: ShardsOfKind
    added: ShardsOfKind
    dropped: ShardsOfKind
    samples: int
    unseen: int | None = None


def diff_indexes(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    state: Any = None,
    seed: int = 0,
    tail: Tail = "pad",
    old_lengths: Any = None,
    old_limits: Mapping[str, Any] | None = None,
    session: Session = PLAIN,
) -> IndexDiff:
    """Compare two indexes, or views, by what they say of their shards.

    A shard is the same by checksum wherever it lies, else by URL, size and count; see
    `wids.ShardListDataset.unseen`.

    Args:
        old: path or URL of the earlier index.
        new: of that of now.
        state: of a sampler or a loader, saved over ``old``: its unseen samples are counted.
        seed: of the sampler, for the state of a mixture.
        tail: of the sampler, for a state of batches.
        old_lengths: of each sample of ``old``, for a state of batches of like length.
        old_limits: likewise, the values of each limit, by its name.
        session: opens URLs.

    Raises:
        SpecError: one of them is no index. InputError: the number of samples in a shard is unknown. StateError: the
            state is damaged, or not of ``old``.

    Example:
        >>> diff = jobs.diff_indexes("train.json", "train.json")
        >>> diff.same.shards, diff.added.shards
        (3, 0)
    """
    places = text_of("old", old), text_of("new", new)
    then, now = (load_shards(place, session=session)[1] for place in places)
    sums: dict[str, dict[str, Any]] = {
        kind: {"shards": 0, "samples": 0, "bytes": 0, "kept": 0, "urls": []} for kind in KINDS
    }
    for kind, before, after, kept in compare_shards(then, now):
        shards, k = (then, before) if after is None else (now, after)
        assert k is not None  # noqa: S101 - for the type checker: it is in one of them
        sum_of, url = sums[kind], shards.urls[k]
        sum_of["shards"] += 1
        sum_of["samples"] += shards.nsamples[k]
        sum_of["bytes"] += max(shards.filesizes[k], 0)
        sum_of["kept"] += kept
        if kind != "same":
            sum_of["urls"].append([then.urls[before], url] if kind == "moved" and before is not None else url)
    unseen = None
    data = open_earlier(now)
    if state is not None:
        earlier = find_earlier(data, open_earlier(then), values={"lengths": old_lengths}, limits=old_limits)
        unseen = len(find_unseen(data, state, earlier, seed=seed, tail=tail))
    kinds = {kind: ShardsOfKind(**values) for kind, values in sums.items()}
    return IndexDiff(**kinds, samples=len(data), unseen=unseen)
