"""Writes all samples of a dataset into new shards of a size: a view, a joined, filtered or reordered dataset.

Rules: members are copied as they are, and keys stay. The work is that of packing (`wids.writing.pack`), so shards that
are finished are kept for the next run. Nothing that exists is replaced except the index.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from wids.core.tables import headers
from wids.core.tables.fields import parse_fields
from wids.errors import InputError, SpecError
from wids.jobs.arguments import texts_of
from wids.jobs.view_edit import IndexToMerge, common_keys
from wids.writing.output import ShardTarget, parse_pattern
from wids.writing.pack.datasets import list_collection
from wids.writing.pack.run import SUFFIX, PackWords, pack_listing, plan_shards
from wids.writing.pack.shard import PackSettings
from wids.writing.rewrite_settings import RewriteOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wids.core.collection.companions import Companion
    from wids.core.collection.shard_collection import ShardCollection
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine
    from wids.writing.output import ShardPattern
    from wids.writing.pack.listing import SourceListing
    from wids.writing.rewrite_settings import RewriteSettings

_WORDS = PackWords("wids rewrite", "rewriting")


class Source(NamedTuple):
    """The dataset to write anew.

    Attributes:
        place: path or URL of its index.
        collection: of its samples.
        companions: have further fields of them.
        cache_dir: where remote files are kept.
    """

    place: str
    collection: ShardCollection
    companions: Sequence[Companion]
    cache_dir: str


def check_settings(settings: RewriteSettings) -> None:
    """Check what new shards are to have.

    Raises:
        InputError: a field, or the member of columns, has no valid name.
    """
    _kept(settings)
    if settings.into != ".json" and not settings.columns:
        raise InputError(f"into={settings.into!r}: is for columns, of which none is named", parameter="into")
    if not settings.into.startswith(".") or not settings.into.casefold().endswith(".json"):
        raise InputError(f"into={settings.into!r}: give an extension of JSON, like '.columns.json'", parameter="into")


def reshard(
    source: Source, index: str, settings: RewriteSettings, *, engine: Engine, progress: Progress
) -> RewriteOutcome:
    """Write a dataset into new shards, and their index.

    Args:
        source: the dataset.
        index: path or URL of the new one.
        settings: of the job.
        engine: runs the tasks.
        progress: called regularly with the progress.

    Raises:
        WidsError: see `wids.jobs.rewrite_shards`.
    """
    pattern, target = _pattern_of(index), ShardTarget(settings.session)
    if target.describe(index + SUFFIX) is None:  # no run was ended
        target.check_new(pattern)
    listing = _list(source, settings)
    packing = PackSettings(
        output=_output_of(index),
        samples=settings.samples,
        size=settings.size,
        seed=settings.seed if settings.order_by is None else None,
        numbers_keys=settings.numbers_keys,
        name=source.collection.shards.header.get("name"),
        session=settings.session,
    )
    outcome, whole = RewriteOutcome(index=index), source.collection.whole_length
    if settings.is_trial:
        plan = plan_shards(listing, packing)
        outcome.shards = outcome.new = len(plan.cuts)
        outcome.samples = len(plan.items)
        outcome.removed = whole - outcome.samples
        if plan.sizes is not None:
            outcome.bytes = sum(headers.archive_bytes(int(plan.sizes[lo:hi].sum())) for lo, hi in plan.cuts)
        outcome.notes = listing.notes
        return outcome
    packed = pack_listing(listing, packing, engine=engine, progress=progress, replaces_index=True, words=_WORDS)
    outcome.shards = outcome.new = packed.shards
    outcome.samples, outcome.removed = packed.samples, whole - packed.samples
    outcome.known, outcome.bytes, outcome.seconds = packed.kept, packed.bytes, packed.seconds
    outcome.facts, outcome.notes = packed.facts, packed.notes
    return outcome


def first_shard(index: str) -> str:
    """The first shard that is written for an index."""
    return _output_of(index).removesuffix("%06d.tar") + "000000.tar"


def _output_of(index: str) -> str:
    """The pattern of the new shards of an index."""
    return f"{index.removesuffix('.json')}-%06d.tar"


def _pattern_of(index: str) -> ShardPattern:
    """`_output_of` as a pattern.

    Raises:
        InputError: it is none, or that of another index.
    """
    with contextlib.suppress(SpecError):
        pattern = parse_pattern(_output_of(index))
        if pattern.index_url == index:
            return pattern
    raise InputError(
        f"{index}: shards cannot be named after this index; give it a name like train.json", parameter="output"
    )


def _kept(settings: RewriteSettings) -> tuple[str, ...] | None:
    """The fields to keep; None: all.

    Raises:
        InputError: an extension is empty, or in two of the fields.
    """
    fields = settings.fields
    try:
        return parse_fields(texts_of("settings: fields", fields) if isinstance(fields, str) else fields)
    except TypeError as error:
        raise InputError(str(error), parameter="fields") from error


def _list(source: Source, settings: RewriteSettings) -> SourceListing:
    """The samples to write, in their order."""
    place, collection, companions, cache_dir = source
    listing = list_collection(place, collection, companions, cache_dir=cache_dir, keep_fields=_kept(settings))
    listing.keys, _ = common_keys([IndexToMerge(place, collection.shards, [])], place)
    for key in ("info", "fields"):  # the first goes with the listing, the other may be others now
        listing.keys.pop(key, None)
    where = texts_of("settings: where", settings.where) if isinstance(settings.where, str) else settings.where
    if where or settings.order_by is not None:
        from wids.writing.pack.where import keep_matching

        keep_matching(
            listing, where, order=settings.order_by, seed=settings.seed, skips_errors=False, tell=lambda _: None
        )
    if settings.columns:
        from wids.columns.samples import beside
        from wids.columns.spec import unknown_column
        from wids.writing.pack.added import add_columns

        names = texts_of("settings: columns", settings.columns)
        columns = beside(place, collection, cache_dir=cache_dir)
        there = columns.names(collection)
        if there != ["index"] and (unknown := next((name for name in names if name not in there), None)):
            raise unknown_column(unknown, there, "columns")
        add_columns(listing, columns.show(names, collection), collection, settings.into)
    return listing
