"""The contenders and cases of cold.py.

To add a loader: write ``contenders/cold_NAME.py`` (see ``contenders/cold_worker.py``), and add an `envs.Entry` with
its pip requirements and a `Case` here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import envs

OURS = envs.Entry(name="ours", worker="cold_wids", environ={"PYTHONPATH": envs.REPOSITORY})
ORIGINAL = envs.Entry(name="original", worker="cold_wids", requirements=envs.CONTENDERS["original"].requirements)
WEBDATASET = envs.Entry(
    name="webdataset", worker="cold_webdataset", requirements=("webdataset>=1.0", "torch", "numpy", "pillow")
)


# Sources of a mixture, which are equal parts of the shards.
MIXED = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the table.

    Attributes:
        name: for ``--only``.
        title: for the table.
        contender: the loader that runs it.
        is_remote: whether shards are read through the server, or from the disk.
        cache_share: ``cache_size`` as a share of the data; None for no limit.
        cache_shards: ``cache_size`` in shards, with a tenth for their tables; None for no limit.
        has_tables: member tables lie beside the shards.
        hub: the shards are a data set of the Hub: "index", opened by the URL of its index, or "name"; "": they are not.
        options: for the contender's worker.
        follows: the case whose process runs this one as its next epoch.
    """

    name: str
    title: str
    contender: envs.Entry
    is_remote: bool = True
    cache_share: float | None = None
    cache_shards: int | None = None
    has_tables: bool = True
    hub: str = ""
    options: dict = field(default_factory=dict)
    follows: str = ""

    def followers(self, cases: list[Case]) -> list[Case]:
        """Return those of ``cases`` that run next in this one's process."""
        return [other for other in cases if other.follows == self.name]

    def of_checkout(self, checkout: str) -> Case:
        """Return this case with our loader from another checkout of this repository."""
        return replace(
            self,
            name=f"before-{self.name}",
            title=f"before: {self.title.removeprefix('ours, ')}",
            contender=self.contender.of_checkout(checkout),
            follows=f"before-{self.follows}" if self.follows else "",
        )


CASES = (
    Case(name="local", title="ours, local shards", contender=OURS, is_remote=False),
    Case(name="ours", title="ours", contender=OURS),
    Case(name="second", title="ours, next epoch", contender=OURS, follows="ours"),
    Case(name="quarter", title="ours, cache_size 1/4", contender=OURS, cache_share=0.25),
    Case(name="whole", title="ours, early_reads=False", contender=OURS, options={"dataset": {"early_reads": False}}),
    Case(name="limit5", title="ours, 5 shards (window + 1)", contender=OURS, cache_shards=5),
    Case(name="limit3", title="ours, 3 shards (window - 1)", contender=OURS, cache_shards=3),
    Case(name="limit1", title="ours, 1 shard", contender=OURS, cache_shards=1),
    Case(name="bare3", title="ours, 3 shards, no tables", contender=OURS, cache_shards=3, has_tables=False),
    Case(name="bare3-second", title="ours, 3 shards, no tables, next epoch", contender=OURS, follows="bare3"),
    Case(name="bare2", title="ours, 2 shards, no tables", contender=OURS, cache_shards=2, has_tables=False),
    Case(name="bare2-second", title="ours, 2 shards, no tables, next epoch", contender=OURS, follows="bare2"),
    Case(name="hub", title="ours, from the Hub", contender=OURS, hub="index"),
    Case(name="hub-name", title="ours, from the Hub by name", contender=OURS, hub="name"),
    Case(name="range", title='ours, access="range"', contender=OURS, options={"dataset": {"access": "range"}}),
    Case(
        name="mix-local", title="ours, mixture of 4 local", contender=OURS, is_remote=False, options={"mixture": MIXED}
    ),
    # Two shuffle windows of four shards of each source.
    Case(
        name="mix",
        title="ours, mixture of 4, 32 shards",
        contender=OURS,
        cache_shards=2 * 4 * MIXED,
        options={"mixture": MIXED},
    ),
    Case(name="original", title="original", contender=ORIGINAL, options={"sampler": {"chunksize": 1000}}),
    Case(name="webdataset", title="webdataset", contender=WEBDATASET, options={"cache": True}),
    Case(name="stream", title="webdataset, no cache", contender=WEBDATASET),
)


def list_cases(before: str = "") -> list[Case]:
    """Return all cases; with ``before``, the path of another checkout, also those of its loader."""
    return [*CASES, *(case.of_checkout(before) for case in CASES if before and case.contender is OURS)]
