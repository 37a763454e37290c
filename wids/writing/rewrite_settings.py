"""The settings and the outcome of `wids.jobs.rewrite_shards`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from wids.core.transport.session import PLAIN, Session
from wids.jobs.arguments import Text  # noqa: TC001 - `check_struct` reads the annotations
from wids.jobs.outcome import JobOutcome


class RewriteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of rewriting.

    Attributes:
        exclude: files of samples that are left out too, as `wids.ShardListDataset.exclude` takes them.
        samples: with this or one of the next eight, all samples are written into new shards, of as many samples at
            most; None: 10,000, unless there is a ``size``.
        size: bytes of a new shard at most; a larger sample gets a shard of its own.
        fields: only these members (``".jpg;.png"``: the first of them that a sample has); None: all.
        columns: these columns of the file beside the index go into a JSON object in each sample.
        into: the member that has them; an object that is there gets them as more keys.
        where: SQL that is true for the samples to write.
        order_by: SQL as after ORDER BY: their order.
        seed: shuffles them, or with ``order_by`` those for which it is equal; None: they stay in their order.
        numbers_keys: the samples' numbers become their keys.
        is_trial: write nothing; the outcome says what would be written.
        cache_dir: where remote shards are kept; None: as for reading.
        overwrite: also replace an index of other shards, or a file that is no index; shards are never replaced.
        session: opens URLs.

    Example:
        >>> wids.ShardListDataset("train.json").exclude([1]).save("view.json")
        >>> settings = jobs.RewriteSettings(is_trial=True)
        >>> jobs.rewrite_shards("view.json", "clean/train.json", settings=settings).removed
        1
    """

    exclude: tuple[Text, ...] = ()
    samples: Annotated[int, msgspec.Meta(ge=1)] | None = None
    size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    fields: str | Annotated[Sequence[str], msgspec.Meta(min_length=1)] | None = None
    columns: str | Sequence[str] = ()
    into: Text = ".json"
    where: str | Sequence[str] = ()
    order_by: Text | None = None
    seed: int | None = None
    numbers_keys: bool = False
    is_trial: bool = False
    cache_dir: Text | None = None
    overwrite: bool = False
    session: Session = PLAIN

    @property
    def is_whole(self) -> bool:
        """True if all samples are written into new shards."""
        names = ("samples", "size", "fields", "columns", "where", "order_by", "seed", "numbers_keys")
        return any(getattr(self, name) not in (None, (), [], "", False) for name in names)


class RewriteOutcome(JobOutcome, kw_only=True):
    """The result of a run.

    Attributes:
        index: its URL or path.
        samples: in the ``shards`` of the index.
        removed: samples that are not in it any more.
        unchanged: shards that stay as they are.
        written: old shard -> the one that has what stays of it.
        dropped: shards of which nothing stays.
        new: number of shards into which all samples were written; the index names no others.
        known: shards that an earlier run had written.
        bytes: of the new shards; of a trial, at most, and 0 without a ``size``.
        facts: properties of the new dataset, such as fields that some samples lack.
        notes: oddities, a sentence each.

    Example:
        >>> wids.ShardListDataset("train.json").exclude([1]).save("view.json")
        >>> outcome = jobs.rewrite_shards("view.json", "clean/train.json")
        >>> outcome.samples, outcome.removed, outcome.unchanged, len(outcome.written), outcome.dropped
        (11, 1, 2, 1, [])
    """

    index: str
    samples: int = 0
    removed: int = 0
    unchanged: int = 0
    written: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: list[str] = msgspec.field(default_factory=list)
    new: int = 0
    known: int = 0
    bytes: int = 0
    facts: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
