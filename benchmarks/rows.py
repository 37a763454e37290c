"""The rows: the work that is measured, its unit and its targets.

A row names a *kind* of work (a method of the contenders) and its parameters; a contender that lacks the kind is left
out of the row. Every target is about the contender ``ours``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target for one row.

    Attributes:
        kind: ``faster``: at least ``value`` times as fast as ``against``; ``within``: at most ``value`` times the cost
            of ``against``; ``at_most``: at most ``value`` units; ``absent``: the fact ``against`` is false.
        against: a contender, or for ``absent`` a fact.
        value: the limit.
    """

    kind: str
    against: str = ""
    value: float = 0.0

    def __str__(self) -> str:
        if self.kind == "absent":
            return f"no {self.against}"
        return f"{'>=' if self.kind == 'faster' else '<='} {self.value:g}{'' if self.kind == 'at_most' else 'x'}"


def faster(against: str, value: float) -> Target:
    return Target(kind="faster", against=against, value=value)


def within(against: str, value: float) -> Target:
    return Target(kind="within", against=against, value=value)


def at_most(value: float) -> Target:
    return Target(kind="at_most", value=value)


def absent(fact: str) -> Target:
    return Target(kind="absent", against=fact)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: for ``--rows``.
        title: for the table.
        kind: the contenders' method that does the work.
        unit: of the printed figures; ``scale`` times seconds per unit of work gives it.
        data: the set of shards that is read, "" for none.
        order: "chunked" (shards permuted, samples permuted in each), "random" (drawn from all, with repeats), or
            "sequence" (as they are).
        draws: samples in one round, 0 for all; ``draws_of`` overrides it for slow contenders.
        batch, workers: for batched work.
        open_shards: the number of open shards (``lru_size``), "all", or "default" for the package's own default.
        options_of: more arguments for the dataset of a contender.
        max_rounds: a limit of the rounds for a row that takes long.
        targets: the targets of ``ours``.
    """

    name: str
    title: str
    kind: str
    unit: str = "us/sample"
    scale: float = 1e6
    data: str = ""
    order: str = "chunked"
    draws: int = 0
    draws_of: dict[str, int] = field(default_factory=dict)
    batch: int = 1
    workers: int = 0
    open_shards: int | str = "all"
    options_of: dict[str, dict] = field(default_factory=dict)
    max_rounds: int = 99
    targets: tuple[Target, ...] = ()

    def request(self, contender: str) -> dict:
        """Return the request for a contender's process."""
        fields = asdict(self)
        return {
            **{key: fields[key] for key in ("name", "kind", "data", "order", "batch", "workers", "open_shards")},
            "draws": self.draws_of.get(contender, self.draws),
            "options": self.options_of.get(contender, {}),
        }


ROWS = (
    Row(
        name="small",
        title="dataset[i], 2 x 200 B, chunk-shuffled",
        kind="items",
        data="small",
        targets=(faster("original", 3), within("bare", 2.5)),
    ),
    Row(
        name="batch32",
        title="__getitems__ of 32, 2 x 200 B",
        kind="batches",
        data="small",
        batch=32,
        targets=(within("bare", 1.8),),
    ),
    Row(
        name="batch256",
        title="__getitems__ of 256, 2 x 200 B",
        kind="batches",
        data="small",
        batch=256,
        targets=(within("bare", 1.8),),
    ),
    Row(
        name="large",
        title="dataset[i], 80 kB, chunk-shuffled",
        kind="items",
        data="large",
        targets=(faster("original", 1.3), within("bare", 1.3)),
    ),
    Row(
        name="large-mmap",
        title="dataset[i], 80 kB, chunk-shuffled, ours with use_mmap",
        kind="items",
        data="large",
        options_of={"ours": {"use_mmap": True}},
        targets=(faster("original", 1.3), within("bare", 1.3)),
    ),
    Row(
        name="random",
        title="dataset[i], 2 x 200 B, uniformly random, default lru",
        kind="items",
        data="small",
        order="random",
        draws=20_000,
        draws_of={"original": 60},
        open_shards="default",
        targets=(faster("original", 50),),
    ),
    Row(
        name="random10",
        title="dataset[i], 2 x 200 B, uniformly random, 10 shards open",
        kind="items",
        data="small",
        order="random",
        draws=4_000,
        draws_of={"original": 60},
        open_shards=10,
    ),
    Row(
        name="view",
        title="view[i] by dataset[i], 2 x 200 B, in sequence",
        kind="views",
        unit="x",
        scale=1,
        data="small",
        order="sequence",
        targets=(at_most(1.3),),
    ),
    Row(
        name="view-random",
        title="view[i] by dataset[i], uniformly random, all shards open",
        kind="views",
        unit="x",
        scale=1,
        data="small",
        order="random",
        draws=20_000,
        targets=(at_most(1.3),),
    ),
    Row(
        name="loader0",
        title="DataLoader, 0 workers, shuffled, batch 32",
        kind="loader",
        data="small",
        batch=32,
        targets=(faster("original", 2),),
    ),
    Row(
        name="loader2",
        title="DataLoader, 2 workers, shuffled, batch 32",
        kind="loader",
        data="small",
        batch=32,
        workers=2,
        max_rounds=5,
    ),
    Row(
        name="open",
        title="open a shard, saved table",
        kind="open",
        unit="ms/shard",
        scale=1e3,
        data="small",
        targets=(at_most(0.1),),
    ),
    Row(
        name="build-small",
        title="build a member table, 200-B members",
        kind="build",
        unit="us/member",
        data="small",
        targets=(at_most(2),),
    ),
    Row(
        name="build-large",
        title="build a member table, 80-kB members",
        kind="build",
        unit="us/member",
        data="large",
        targets=(at_most(2),),
    ),
    Row(
        name="import",
        title="import wids (less python -c pass)",
        kind="imports",
        unit="ms",
        scale=1e3,
        max_rounds=7,
        targets=(at_most(50), absent("torch")),
    ),
)
