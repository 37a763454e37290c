"""Batches of like length, and packs: wids beside Lhotse, Hugging Face, TRL and LanceDB, on the same lengths in one run.

    python benchmarks/batches.py --json batches.json      a quarter of an hour
    python benchmarks/batches.py --packs                  packs of 8,192 tokens: ten minutes
    python benchmarks/batches.py --only ours,hf-group     two minutes
    python benchmarks/batches.py --quick --only ours      seconds; the figures are meaningless
    python benchmarks/batches.py --only ours --shard-samples 1000     our batches of shards of 1,000 samples
    python benchmarks/batches.py --only ours --images 264 --cost sum  our batches under two budgets

No data are read: a contender plans batches of 10^6 lognormal lengths (median 300), which may cost 32,768 padded tokens
each; with --packs, batches of four packs of 10^5 lengths. README.md beside this file explains the rows.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import batch_packs
import envs
import numpy as np
import report
import typer
from children import Child
from choices import choose
from forks import ForkServer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

Indices = NDArray[np.int64]

OURS = "ours"
WORLDS = (4, 8)
REPLY_SECONDS = 1200.0
_STARTING = threading.Lock()  # a fork server is asked by one thread at a time

_HERE = envs.Entry(name="here")  # torch is this interpreter's own
_HF = ("transformers==5.24.0", "accelerate==1.15.0")
PLANNERS = {
    entry.name: entry
    for entry in (
        envs.Entry(name=OURS, worker="batch_wids", environ={"PYTHONPATH": envs.REPOSITORY}),
        envs.Entry(name="lhotse", worker="batch_lhotse", requirements=("lhotse[orjson]==1.33.0",), base=_HERE),
        *(
            envs.Entry(
                name=f"hf-{strategy}",
                worker="batch_hf",
                requirements=_HF,
                base=_HERE,
                environ={"STRATEGY": strategy, "HF_HUB_OFFLINE": "1"},
            )
            for strategy in ("group", "rebalance")
        ),
    )
}

_TRL = ("trl==1.16.0", "transformers==5.24.0", "accelerate==1.15.0", "datasets==5.2.0")
OUR_PACKS = "ours-cut"
PACKERS = {
    entry.name: entry
    for entry in (
        *(
            envs.Entry(name=name, worker="pack_wids", environ={"PYTHONPATH": envs.REPOSITORY, "CUT": cut})
            for name, cut in ((OUR_PACKS, "1"), ("ours-whole", "0"))
        ),
        *(
            envs.Entry(
                name=f"trl-{strategy}",
                worker="pack_trl",
                requirements=_TRL,
                base=_HERE,
                environ={"STRATEGY": strategy, "HF_HUB_OFFLINE": "1"},
            )
            for strategy in ("bfd", "wrapped")
        ),
        envs.Entry(name="lancedb", worker="pack_lance", requirements=("lancedb==0.40.0",), base=_HERE),
        PLANNERS["lhotse"],
        PLANNERS["hf-group"],
    )
}

# Figure -> its title, how it is written, what is to be reached (of ours).
ROWS = {
    "padding": ("padded tokens / tokens", "{:.3f}", 1.06),
    "imbalance": ("costliest rank of a step / mean", "{:.3f}", 1.08),
    "filled": ("mean cost of a batch / budget", "{:.2f}", -0.88),
    "largest": ("largest cost of a batch / budget", "{:.2f}", 1.0),
    "lost": ("samples lost in an epoch", "{:,.0f}", 0),
    "repeated": ("repeated", "{:,.0f}", None),
    "uneven": ("ranks differ by batches", "{:,.0f}", 0),
    "shards": ("shards that a rank reads, of all", "{:.2f}", None),
}
# Likewise with --images, in place of the padding and the use of the budget.
LIMITED = {
    "fullest": ("largest share of a budget that a batch uses, mean", "{:.3f}", -0.9),
    "images": ("mean images of a batch / their budget", "{:.3f}", None),
    "most_images": ("most images of a batch / their budget", "{:.2f}", 1.0),
}
TIMES = {
    "first": ("first batch, s", "{:.2f}", 1),
    "rate": ("samples (of packs: tokens) of a rank planned in a second", "{:,.0f}", 1),
    "resume": ("resume in the middle, s", "{:.3f}", 1),
    "bytes": ("memory, MB", "{:,.0f}", 1e-6),
    "state_bytes": ("state, bytes", "{:,.0f}", 1),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all measurements need.

    Attributes:
        scratch: a directory. job: the file that tells contenders what to plan. lengths: of all samples.
        budget: of a batch. cost: padded or sum. images: of all samples. image_budget: of a batch; 0: none.
        shard_samples: samples of a shard. is_packs: batches are of packs. entries: the contenders.
        interpreters: theirs. forks: of a quick run.
    """

    scratch: str
    job: str
    lengths: NDArray[Any]
    budget: int
    cost: str
    images: NDArray[Any]
    image_budget: int
    shard_samples: int
    is_packs: bool
    entries: dict[str, envs.Entry]
    interpreters: dict[str, str]
    forks: ForkServer | None

    @property
    def rows(self) -> dict[str, tuple[str, str, float | None]]:
        """The rows of the table; see `ROWS`."""
        if self.is_packs:
            return batch_packs.ROWS
        if not self.image_budget:
            return ROWS
        return {
            key: (*row[:2], None if key in ("padding", "filled") else row[2]) for key, row in ROWS.items()
        } | LIMITED

    def child(self, name: str, job: str = "") -> Child:
        """A new process of a contender, for ``job`` or another one."""
        home = tempfile.mkdtemp(dir=self.scratch)
        python = self.interpreters[name]
        with _STARTING:
            return Child(
                self.entries[name], python, job or self.job, home, reply_seconds=REPLY_SECONDS, forks=self.forks
            )

    def deal(
        self, name: str, world: int, *, rank: int | None = None, after_state: bool = False
    ) -> tuple[list[Any], str]:
        """The batches of all ranks, or of one; and why they are refused."""
        with self.child(name) as child:
            path = f"{self.scratch}/{name}.npz"
            state = self.state(name) if after_state else ""
            ranks = None if rank is None else [rank]
            reply = child.ask("deal", world=world, ranks=ranks, state=state, path=path)
        if "refused" in reply:
            return [], reply["refused"]
        with np.load(path) as saved:
            if self.is_packs:
                return [batch_packs.read(saved, k, self.lengths) for k in range(reply["ranks"])], ""
            return [Dealt(saved[f"indices{k}"], saved[f"counts{k}"]) for k in range(reply["ranks"])], ""

    def judge(self, ranks: list[Any]) -> dict[str, float]:
        """The figures of an epoch."""
        return batch_packs.judge(ranks, self.lengths) if self.is_packs else judge(ranks, self)

    def times(self, ranks: list[Any]) -> Indices:
        """How often each sample comes; of packs, each token."""
        if self.is_packs:
            return batch_packs.count_tokens(ranks, self.lengths)
        return np.bincount(np.concatenate([rank.indices for rank in ranks]), minlength=len(self.lengths))

    def state(self, name: str) -> str:
        """The file with a contender's state of the middle."""
        return f"{self.scratch}/{name}.state"


@dataclass(frozen=True)
class Dealt:
    """The batches of a rank: the samples of all of them, and how many each has."""

    indices: Indices
    counts: Indices

    def __len__(self) -> int:
        return len(self.counts)

    def split(self, batches: int) -> tuple[Dealt, Dealt]:
        """The first so many, and the others."""
        at = int(self.counts[:batches].sum())
        return Dealt(self.indices[:at], self.counts[:batches]), Dealt(self.indices[at:], self.counts[batches:])

    def is_same(self, other: Dealt) -> bool:
        """Whether these are the same batches."""
        return np.array_equal(self.indices, other.indices) and np.array_equal(self.counts, other.counts)

    def costs(self, lengths: NDArray[Any], cost: str = "padded") -> NDArray[Any]:
        """What each batch costs."""
        starts = np.cumsum(self.counts) - self.counts
        if cost == "sum":
            return np.add.reduceat(lengths[self.indices], starts)
        return np.maximum.reduceat(lengths[self.indices], starts) * self.counts


def judge(ranks: list[Dealt], bench: Bench) -> dict[str, float]:
    """The figures of an epoch."""
    lengths, budget, size = bench.lengths, bench.budget, bench.shard_samples
    costs = [rank.costs(lengths, bench.cost) for rank in ranks]
    steps = min(map(len, costs))
    shares, limited = [each / budget for each in costs], {}
    if bench.image_budget:
        images = [rank.costs(bench.images, "sum") / bench.image_budget for rank in ranks]
        shares = [np.maximum(*both) for both in zip(shares, images, strict=True)]
        limited = {
            "fullest": float(np.concatenate(shares).mean()),
            "images": float(np.concatenate(images).mean()),
            "most_images": float(max(each.max() for each in images)),
        }
    together = np.array([each[:steps] for each in shares])
    times = bench.times(ranks)
    shards = -(-len(lengths) // size)
    return {
        "padding": float(sum(each.sum() for each in costs) / sum(lengths[rank.indices].sum() for rank in ranks)),
        "imbalance": float((together.max(axis=0) / together.mean(axis=0)).mean()),
        "filled": float(np.concatenate(costs).mean() / budget),
        "largest": float(max(each.max() for each in costs) / budget),
        "lost": int((times == 0).sum()),
        "repeated": int((times[times > 1] - 1).sum()),
        "uneven": max(map(len, costs)) - steps,
        "shards": float(np.mean([len(np.unique(rank.indices // size)) for rank in ranks]) / shards),
        "steps": steps,
        **limited,
    }


def judge_resume(bench: Bench, name: str, dealt: list[Any]) -> dict[str, str]:
    """Whether a run that stops in the middle goes on exactly, on as many ranks (the last is compared) and on half."""
    world, middle = len(dealt), min(map(len, dealt)) // 2
    halves = [rank.split(middle) for rank in dealt]
    again, refused = bench.deal(name, world, rank=world - 1, after_state=True)
    is_exact = not refused and again[0].is_same(halves[-1][1])
    rest, refusal = bench.deal(name, world // 2, after_state=True)
    return {
        "same": "exact" if is_exact else f"refused: {refused}" if refused else "other batches",
        "half": f"refused: {refusal}" if refusal else _count(bench.times([*(one for one, _ in halves), *rest])),
    }


def _count(times: Indices) -> str:
    lost, again = int((times == 0).sum()), int((times[times > 1] - 1).sum())
    return f"{lost:,} lost, {again:,} again" if lost or again else "exact"


def measure(bench: Bench, rounds: int) -> dict[str, dict]:
    """Judge each contender's batches once, for they are the same in each run; time it in rounds, in turn.

    What is not timed is done by two contenders at a time.
    """

    def judge_one(name: str) -> tuple[dict, list[Dealt]]:
        with bench.child(name) as child:
            about = child.ask("hello")
            child.ask("prepare")
        figures = {}
        for world in WORLDS:
            dealt, _ = bench.deal(name, world)
            figures[world] = bench.judge(dealt)
        return {"versions": about["versions"], "settings": about["settings"], "ranks": figures, "rounds": []}, dealt

    names, world = list(bench.interpreters), WORLDS[-1]
    print("batches ...", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(2) as pool:
        judged = dict(zip(names, pool.map(judge_one, names), strict=True))
    found = {name: figures for name, (figures, _) in judged.items()}
    for number in range(rounds):
        print(f"round {number + 1} ...", file=sys.stderr, flush=True)
        for name, each in found.items():
            middle = each["ranks"][world]["steps"] // 2
            with bench.child(name) as child:
                each["rounds"].append(child.ask("time", rank=0, world=world, middle=middle, state=bench.state(name)))
    print("resumes ...", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(2) as pool:
        resumes = list(pool.map(lambda name: judge_resume(bench, name, judged[name][1]), names))
    for each, resume in zip(found.values(), resumes, strict=True):
        each["times"] = {key: median(one[key] for one in each["rounds"]) for key in TIMES}
        each["resume"] = resume
    return found


def time_scale(bench: Bench, samples: int) -> dict[str, float]:
    """The figures of `batch_packs.SCALE` of so many documents; medians of three processes."""
    lengths, job, draws = f"{bench.scratch}/many.npy", f"{bench.scratch}/many.json", np.random.default_rng(0)
    many = np.lib.format.open_memmap(lengths, "w+", np.int32, (samples,))
    for first in range(0, samples, 10**6):
        many[first : first + 10**6] = make_lengths(draws, min(10**6, samples - first), bench.budget)
    del many
    settings = json.loads(Path(bench.job).read_text(encoding="utf-8"))
    Path(job).write_text(json.dumps({**settings, "lengths": lengths, "packs": 1}), encoding="utf-8")
    rounds = []
    for _ in range(3):
        with bench.child(OUR_PACKS, job) as child:
            child.ask("hello")
            rounds.append(child.ask("time", rank=0, world=WORLDS[-1], middle=100, state=bench.state("many")))
    return {key: median(one[key] for one in rounds) for key in batch_packs.SCALE}


def make_lengths(draws: np.random.Generator, samples: int, most: int) -> NDArray[np.int64]:
    """Lognormal lengths, median 300."""
    return np.exp(draws.normal(np.log(300), 1, samples)).astype(np.int64).clip(1, most)


def verdicts(ours: dict, rows: dict) -> dict[str, bool]:
    """What ours has to reach, and whether it does."""
    found = {}
    for world, figures in ours["ranks"].items():
        for key, (title, _, target) in rows.items():
            if target is not None:
                sign = -1 if target < 0 else 1
                words = f"{title}, {world} ranks, {'>=' if sign < 0 else '<='} {abs(target)}"
                found[words] = bool(sign * figures[key] <= target + 1e-9)
    return found | {f"resume, {key} ranks: exact": text == "exact" for key, text in ours["resume"].items()}


def show(console: Console, found: dict[str, dict], rows: dict) -> None:
    """Print the table."""
    table = Table(caption="medians of the rounds; batches are judged once")
    table.add_column("row")
    for name in found:
        table.add_column(name, justify="right")
    for world in WORLDS:
        for key, (title, form, _) in rows.items():
            table.add_row(
                f"{title}, {world} ranks", *(form.format(each["ranks"][world][key]) for each in found.values())
            )
    for key, (title, form, scale) in TIMES.items():
        table.add_row(
            f"{title}, {WORLDS[-1]} ranks", *(form.format(each["times"][key] * scale) for each in found.values())
        )
    for key, title in (("same", "the rest, resumed on as many ranks"), ("half", "on half as many")):
        table.add_row(title, *(each["resume"][key].partition(":")[0] for each in found.values()))
    console.print(table)


def main(
    *,
    only: Annotated[str, typer.Option(help="Contenders to run, separated by commas; all without it.")] = "",
    packs: Annotated[bool, typer.Option("--packs", help="Packs, not batches of like length.")] = False,
    samples: Annotated[int, typer.Option(min=10, help="Lengths; for packs, a tenth of them.")] = 1_000_000,
    many: Annotated[int, typer.Option(min=0, help="Lengths of the last rows of packs; 0: without them.")] = 10**8,
    shard_samples: Annotated[int, typer.Option(min=1, help="Samples of a shard, which ours looks at.")] = 10_000,
    images: Annotated[int, typer.Option(min=0, help="The most images in a batch of ours; samples have 0 to 8.")] = 0,
    cost: Annotated[str, typer.Option(help="What a batch of ours costs: padded, or sum.")] = "padded",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of what is timed.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few lengths, one round: tests the benchmark only.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
    json_file: Annotated[str, typer.Option("--json", help="Write all figures to this file.")] = "",
    environments: Annotated[
        str, typer.Option("--envs", help="The directory for environments, kept for other runs.")
    ] = "",
    python: Annotated[list[str] | None, typer.Option(help="NAME=PATH: the interpreter of a contender.")] = None,
) -> None:
    """Plan the same lengths by each contender, judge the batches, and print the figures with the machine."""
    entries, ours = (PACKERS, OUR_PACKS) if packs else (PLANNERS, OURS)
    names = choose(only, list(entries), "contender")
    given = dict(pair.split("=", 1) for pair in python or [])
    directory = environments or envs.default_directory()
    interpreters = {name: given.get(name) or envs.interpreter(entries[name], directory) for name in names}
    n, budget = (40_000 if quick else samples) // (10 if packs else 1), 32_768
    lengths = make_lengths(np.random.default_rng(0), n, budget)
    about: dict = {"machine": report.machine(), "revision": report.revision(envs.REPOSITORY), "argv": sys.argv[1:]}
    begin = time.perf_counter()
    scratch = tempfile.mkdtemp(prefix="wids-benchmarks-")
    try:
        job = {"lengths": f"{scratch}/lengths.npy", "budget": budget, "shard_size": shard_samples, "formats": scratch}
        job["batch_size"] = int(budget // lengths.mean())
        job |= {"images": f"{scratch}/images.npy", "image_budget": images, "cost": cost}
        if packs:
            job |= {"pack_tokens": batch_packs.PACK_TOKENS, "packs": budget // batch_packs.PACK_TOKENS}
        counts = np.random.default_rng(1).integers(0, 9, n)
        np.save(job["lengths"], lengths)
        np.save(job["images"], counts)
        Path(scratch, "job.json").write_text(json.dumps(job), encoding="utf-8")
        with ForkServer() if quick else nullcontext() as forks:
            bench = Bench(
                scratch=scratch,
                job=f"{scratch}/job.json",
                lengths=lengths,
                budget=budget,
                cost=cost,
                images=counts,
                image_budget=images,
                shard_samples=shard_samples,
                is_packs=packs,
                entries=entries,
                interpreters=interpreters,
                forks=forks,
            )
            found = measure(bench, 1 if quick else rounds)
            count = (min(many, 10**5) if quick else many) if packs and ours in names else 0
            scale = time_scale(bench, count) if count else {}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    targets = verdicts(found[ours], bench.rows) if ours in found else {}
    for key, (title, most, unit, by) in batch_packs.SCALE.items() if scale else ():
        targets[f"{count:,} documents: {title} <= {most} {unit}"] = bool(scale[key] * by <= most)
    about |= {
        "samples": n,
        "shard_samples": shard_samples,
        "load_after": report.machine()["load"],
        "seconds": time.perf_counter() - begin,
    }
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    report.show_machine(console, {**about, "versions": {name: each["versions"] for name, each in found.items()}})
    for name, each in found.items():
        console.print(f"{name}: {each['settings']}", markup=False)
    show(console, found, bench.rows)
    for key, (title, _, unit, by) in batch_packs.SCALE.items() if scale else ():
        console.print(f"{count:,} documents, {WORLDS[-1]} lanes: {title} {scale[key] * by:.3g} {unit}")
    for words, is_met in targets.items():
        console.print(f"{'met   ' if is_met else 'missed'} {words}")
    if quick:
        console.print("quick: the data are too small for these figures to mean anything")
    if json_file:
        with open(json_file, "w", encoding="utf-8") as stream:
            json.dump({**about, "contenders": found, "scale": scale, "targets": targets}, stream, indent=1)
    if check and not all(targets.values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
