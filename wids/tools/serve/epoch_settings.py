"""The settings of an epoch that a request names, and who reads what and when by them.

Rules: the names are those of the samplers' parameters. An error says at which of them it is. A column is a name that
the dataset has, never a file.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.core.order.batching import make_rule, name_sizes, parse_sizes
from wids.core.order.budgets import parse_limit
from wids.core.order.layout import ShardCounts, mixed_parts
from wids.core.order.packing import PackRule, make_pack_rule
from wids.core.order.settings import SamplerSettings
from wids.core.readers.lru import LRUCache, SizedLRUCache, deep_size
from wids.errors import InputError, WidsError, shown
from wids.tools.simulate.schedule import make_timetable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wids.core.order.batch import Rule
    from wids.core.order.epoch import Reshuffle, Tail
    from wids.core.order.layout import SourceSpan
    from wids.core.order.permutation import Indices
    from wids.tools.serve.served import Served
    from wids.tools.simulate.schedule import BatchTimetable, Timetable

# Beyond, numbers would overflow somewhere; ranks and lanes are visited one by one.
_MAX, _MAX_RANKS = 10**12, 1_000_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
# Timetables, and bytes of columns, that are kept: of those that were requested last.
_KEPT_TABLES, _KEPT_BYTES = 4, 256 << 20


class SettingsError(ValueError):
    """Settings that do not go together, or are none.

    Args:
        words: the fault.
        name: of the setting; empty: of none alone.
    """

    def __init__(self, words: str, name: str) -> None:
        super().__init__(words)
        self.name = name


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A job's sampler and batches; see `wids.DistributedChunkedSampler`, `BucketBatchSampler` and `PackSampler`."""

    world_size: int = field(default=1, metadata={"least": 1, "most": _MAX_RANKS})
    batch_size: str = "32"
    epoch: int = 0
    seed: int = 0
    chunksize: int = field(default=10_000, metadata={"least": 1, "most": _MAX})
    window: int = field(default=4, metadata={"least": 1, "most": _MAX})
    lanes: int | None = field(default=None, metadata={"least": 1, "most": _MAX_RANKS})
    tail: Tail = field(default="pad", metadata={"choices": ("pad", "drop", "mask")})
    shuffle: str = field(default="yes", metadata={"choices": ("yes", "no")})
    reshuffle: Reshuffle = field(default="fixed", metadata={"choices": ("fixed", "epoch")})
    epoch_size: int | None = field(default=None, metadata={"least": 1, "most": _MAX})
    source_batch: int = field(default=1, metadata={"least": 1, "most": _MAX})
    weights: str = ""
    lengths: str = ""
    max_tokens: str = ""
    cost: str = field(default="padded", metadata={"choices": ("padded", "sum")})
    buckets: str = ""
    limits: str = ""
    too_long: str = field(default="error", metadata={"choices": ("error", "skip")})
    block: int | None = field(default=None, metadata={"least": 1, "most": _MAX})
    pack_tokens: int | None = field(default=None, metadata={"least": 1, "most": _MAX})
    cut: str = field(default="yes", metadata={"choices": ("yes", "no")})
    separators: int = field(default=0, metadata={"least": 0, "most": 1})
    share: str = field(default="samples", metadata={"choices": ("samples", "tokens")})

    @property
    def is_by_length(self) -> bool:
        """True if batches are those of a `wids.BucketBatchSampler`, or of a `wids.PackSampler`."""
        return bool(self.lengths or self.max_tokens or self.buckets or self.limits or self.pack_tokens)

    def changed(self, names: Sequence[str]) -> str:
        """The first of some settings that differs from its default; empty: none does."""
        return next((name for name in names if getattr(self, name) != getattr(Settings, name, None)), "")


NAMES = tuple(one.name for one in fields(Settings))
_COLUMNS = ("weights", "lengths", "buckets")
_ONLY_BY_LENGTH = ("cost", "too_long", "block")
_ONLY_IN_PACKS, _NOT_IN_PACKS = ("cut", "separators", "share"), ("max_tokens", "cost", "buckets", "limits")
# How the library's messages name a parameter.
_NAMED = re.compile(rf"\b({'|'.join(NAMES)})(?:\[[^]]*\])?(?: (?:is|are|has|have|of)\b|[=:])")


def parse_settings(query: Mapping[str, str]) -> Settings:
    """Settings out of a request; those that are left out, or empty, have their defaults.

    Raises:
        SettingsError: one is none.
    """
    found: dict[str, Any] = {}
    for one in fields(Settings):
        text = query.get(one.name, "").strip()
        if not text and one.name != "batch_size":
            continue
        if one.name == "batch_size" and one.name not in query:
            continue
        is_number = one.type in ("int", "int | None")
        found[one.name] = parse_integer(text, one.name, **one.metadata) if is_number else text
        if (choices := one.metadata.get("choices")) and text not in choices:
            raise SettingsError(f"{one.name} is {shown(text)}; it must be {' or '.join(choices)}", one.name)
    return Settings(**found)


def parse_integer(text: str, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """An integer out of a request.

    Raises:
        SettingsError: it is none, or outside of ``least .. most``.
    """
    bounds = "" if least is None else f" from {least:,}" + ("" if most is None else f" to {most:,}")
    found = int(text) if _INTEGER.fullmatch(text) else None
    if found is None or (least is not None and found < least) or (most is not None and found > most):
        raise SettingsError(f"{name} is {shown(text)}; it must be an integer{bounds}", name)
    return found


@dataclass(eq=False)
class Schedule:
    """The readings of an epoch by some settings; its user holds the lock, for lanes are read by one at a time.

    Attributes:
        settings: as given.
        table: the readings of the ranks.
        rule: of batches of like length, or of packs; None: they are neither.
    """

    settings: Settings
    table: Timetable | BatchTimetable
    rule: Rule | None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Schedules:
    """The schedules of a dataset, of which the latest are kept.

    Args:
        served: the dataset.

    Attributes:
        parts: its sources, if it is a mixture.
        ends: end of each shard's samples, (nshards,).
    """

    parts: list[SourceSpan] | None
    ends: Indices

    def __init__(self, served: Served) -> None:
        self._served = served
        dataset = served.dataset
        self.parts, self.ends = mixed_parts(dataset), np.asarray(dataset.cum_lengths)
        self._counts = ShardCounts(dataset.lengths)
        self._lock = threading.Lock()
        self._tables: LRUCache[Settings, Schedule] = LRUCache(_KEPT_TABLES)
        self._columns: SizedLRUCache[str, Any] = SizedLRUCache(_KEPT_BYTES)

    def columns(self) -> dict[str, str]:
        """The columns of the file beside the index: name -> type; none where it cannot be read."""
        try:
            return self._served.columns()
        except WidsError:
            return {}

    def find(self, settings: Settings, should_stop: Callable[[], bool]) -> Schedule:
        """The schedule of some settings.

        Args:
            settings: which.
            should_stop: asked after each block of batches of like length that is cut; the rest is left to later.

        Raises:
            SettingsError: they do not go together.
        """
        found = self._tables[settings]
        if found is None:
            made = self._make(settings, should_stop)
            with self._lock:  # concurrent requests for the same schedule share the first one
                found = self._tables[settings] or made
                self._tables[settings] = found
        return found

    def read(self, column: str, name: str) -> Any:
        """A column of the file beside the index: (n,). Others would take the member tables of all shards.

        Args:
            column: which.
            name: of the setting that names it.

        Raises:
            SettingsError: it cannot be read.
        """
        with self._lock:
            found = self._columns.use(column)
        if found is None:
            try:
                there = self._served.columns()
                if column not in there:
                    advice = f"there are {', '.join(there)}" if there else "wids columns create makes columns"
                    raise SettingsError(f"there is no column {shown(column)}; {advice}", name)
                found = self._served.rows.ask(lambda: self._served.dataset.read_column(column))
            except WidsError as error:
                raise SettingsError(str(error), name) from error
            with self._lock:
                self._columns.keep(column, found, deep_size(found))
        return found

    def _make(self, settings: Settings, should_stop: Callable[[], bool]) -> Schedule:
        values = {name: self.read(getattr(settings, name), name) for name in _COLUMNS if getattr(settings, name)}
        try:
            rule = self._make_rule(settings, values)
            table = make_timetable(
                self._counts,
                self.parts,
                SamplerSettings(
                    num_replicas=settings.world_size,
                    tail=settings.tail,
                    epoch_size=settings.epoch_size,
                    chunksize=settings.chunksize,
                    window=settings.window,
                    lanes=settings.lanes or settings.world_size,
                    shuffle=settings.shuffle == "yes",
                    reshuffle=settings.reshuffle,
                    seed=settings.seed,
                    source_batch=settings.source_batch,
                ),
                epoch=settings.epoch,
                batch_size=self._size_of(settings) if rule is None else 1,
                weights=values.get("weights"),
                rule=rule,
                block=settings.block,
                on_block=lambda *_: should_stop(),
            )
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(str(error), _blamed(str(error))) from error
        return Schedule(settings, table, rule)

    def _size_of(self, settings: Settings) -> int:
        if not settings.batch_size:
            raise SettingsError("batch_size is missing; say how many samples a rank's batch has", "batch_size")
        found = _parse_sizes(settings.batch_size)
        if not isinstance(found, int):
            raise SettingsError("a batch size for each bucket goes with buckets; choose their column", "batch_size")
        return found

    def _make_rule(self, settings: Settings, values: dict[str, Any]) -> Rule | None:
        """The rule of batches; None: a loader makes its own batches."""
        if settings.pack_tokens is not None:
            return self._make_pack_rule(settings, values)
        if name := settings.changed(_ONLY_IN_PACKS):
            raise SettingsError(f"{name} is for packs; say pack_tokens, too", name)
        if not settings.is_by_length:
            if name := settings.changed(_ONLY_BY_LENGTH):
                raise SettingsError(
                    f"{name} is for batches of like length; choose lengths, buckets or limits, too", name
                )
            return None
        sizes = _parse_sizes(settings.batch_size) if settings.batch_size else None
        buckets = values.get("buckets")
        return make_rule(
            self._samples,
            lengths=values.get("lengths"),
            max_tokens=settings.max_tokens or None,
            cost=settings.cost,
            buckets=buckets,
            batch_size=name_sizes(sizes, buckets),
            too_long=settings.too_long,
            limits={
                name: (self.read(column, "limits"), most)
                for name, (column, most) in _parse_limits(settings.limits).items()
            },
        )

    def _make_pack_rule(self, settings: Settings, values: dict[str, Any]) -> PackRule:
        if name := settings.changed(_NOT_IN_PACKS):
            raise SettingsError(f"{name} is for batches of like length, and pack_tokens for packs; say one", name)
        if "lengths" not in values:
            raise SettingsError("pack_tokens counts tokens of lengths; choose their column", "lengths")
        return make_pack_rule(
            self._samples,
            lengths=values["lengths"],
            pack_tokens=settings.pack_tokens,
            cut=settings.cut == "yes",
            separators=settings.separators,
            batch_size=self._size_of(settings) if settings.batch_size else 1,
            too_long=settings.too_long,
            share=settings.share,
        )

    @property
    def _samples(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0


def _parse_sizes(text: str) -> Any:
    try:
        return parse_sizes(text)
    except InputError as error:
        raise SettingsError(str(error), "batch_size") from None


def _parse_limits(text: str) -> dict[str, tuple[str, float]]:
    """Parse ``images=16, crops=COLUMN:125``; empty: none."""
    try:
        return dict(parse_limit(part) for part in text.split(",") if part.strip())
    except InputError as error:
        raise SettingsError(str(error), "limits") from None


def _blamed(words: str) -> str:
    """The setting that a message of the library is about; empty: none alone."""
    if "an epoch of" in words:
        return "epoch_size"
    found = _NAMED.search(words)
    if found:
        return found[1]
    own = next((name for name in _COLUMNS if re.search(rf"\b{name[:-1]}", words)), "")
    return own or next((name for name in NAMES if "_" in name and name in words), "")
