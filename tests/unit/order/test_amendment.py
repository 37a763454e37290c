"""Going on in an epoch whose data have changed, against brute force: what was read, and what is there now."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import wids
from tests.support.examples import some
from wids.errors import InputError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Shard(NamedTuple):
    """A shard of a made-up index: its name, samples, content (which another number changes), and folder."""

    name: str
    count: int
    content: int = 0
    folder: str = "here"


class Data:
    """A list of shards that changes at random, and the samples that are opted out."""

    def __init__(self, rng: random.Random, *, has_checksums: bool = True) -> None:
        self.rng, self.has_checksums = rng, has_checksums
        self.made, self.excluded = 0, set[tuple[Any, int]]()
        self.shards = [self.make() for _ in range(rng.randint(2, 10))]

    def make(self) -> Shard:
        """A new shard."""
        self.made += 1
        return Shard(f"s{self.made:04d}", self.rng.randint(1, 12))

    def change(self) -> None:
        """Change some of it."""
        rng, shards = self.rng, self.shards
        for _ in range(rng.randint(0, 3)):
            k, kinds = rng.randrange(len(shards)), ["add", "drop", "replace", "exclude", "include", "shuffle"]
            kind = rng.choice([*kinds, "move"] if self.has_checksums else kinds)
            if kind == "add":
                shards.insert(k, self.make())
            elif kind == "drop" and len(shards) > 2:
                shards.pop(k)
            elif kind == "replace":
                shards[k] = shards[k]._replace(count=rng.randint(1, 12), content=shards[k].content + 1)
            elif kind == "move":
                shards[k] = shards[k]._replace(folder=f"there{rng.randint(0, 3)}")
            elif kind == "shuffle":
                rng.shuffle(shards)
            elif kind == "exclude":
                self.excluded |= {((shards[k].name, shards[k].content), row) for row in range(shards[k].count // 2)}
            elif self.excluded:
                self.excluded.discard(rng.choice(sorted(self.excluded)))

    def dataset(self) -> wids.ShardListDataset:
        """The dataset of now; a view, where samples are opted out."""
        entries = [self.entry(shard) for shard in self.shards]
        dataset = wids.ShardListDataset(entries)
        kept = [i for i, key in enumerate(self.keys()) if key not in self.excluded]
        return dataset if len(kept) == len(dataset) and self.rng.random() < 0.8 else dataset.select(kept)

    def keys(self) -> list[tuple[Any, int]]:
        """All samples, opted out or not."""
        return [((each.name, each.content), row) for each in self.shards for row in range(each.count)]

    def entry(self, shard: Shard) -> dict[str, Any]:
        """A shard as an index has it."""
        number = int(shard.name[1:]) * 100 + shard.content
        entry = {"url": f"/{shard.folder}/{shard.name}.tar", "nsamples": shard.count, "filesize": number * 512}
        return {**entry, "md5sum": f"{number:032x}"} if self.has_checksums else entry


class Snapshot(NamedTuple):
    """A dataset, and what its samples are, whatever their indices."""

    dataset: wids.ShardListDataset
    keys: list[tuple[Any, int]]

    @classmethod
    def of(cls, data: Data) -> Snapshot:
        """The data of now."""
        dataset, keys = data.dataset(), data.keys()
        return cls(dataset, [key for key in keys if key not in data.excluded])

    def lengths(self) -> np.ndarray[Any, Any]:
        """A length of each sample, which stays its own."""
        return np.array([1 + (hash(key[1]) * 7 + int(key[0][0][1:]) * 3) % 9 for key in self.keys])

    def images(self) -> np.ndarray[Any, Any]:
        """The images of each sample, likewise."""
        return np.array([(key[1] * 5 + int(key[0][0][1:])) % 4 for key in self.keys])


class Job:
    """The settings of a job, which makes its samplers over any data."""

    def __init__(self, rng: random.Random, *, kind: str, has_batches: bool, tail: str | None = None) -> None:
        self.rng, self.kind, self.has_batches = rng, kind, has_batches
        self.tail = tail or rng.choice(["pad", "drop", "mask"])
        self.options: dict[str, Any] = {
            "seed": rng.randint(0, 9),
            "chunksize": rng.choice([1, 3, 100]),
            "window": rng.randint(1, 5),
            "tail": self.tail,
            "reshuffle": rng.choice(["fixed", "epoch"]),
            "shuffle": rng.random() < 0.8,
            **{"one": {}, "endless": {"epochs": None}, "two": {"epochs": 2}, "size": {"epoch_size": 40}}[kind],
        }
        self.rule = {"max_tokens": 20, "cost": rng.choice(["padded", "sum"]), "block": rng.choice([None, 2, 5])}
        if rng.random() < 0.3:
            self.rule |= {"max_tokens": 8, "too_long": "skip"}
        self.limits = rng.choice([{}, {}, {"images": 6}, {"images": 3, "crops": 8}])

    def samplers(self, now: Snapshot, world: int) -> list[Any]:
        """The sampler of each rank."""
        made = [
            wids.DistributedChunkedSampler(now.dataset, num_replicas=world, rank=rank, **self.options)
            for rank in range(world)
        ]
        if not self.has_batches:
            return made
        limits = {name: (now.images(), most) for name, most in self.limits.items()}
        return [wids.BucketBatchSampler(each, lengths=now.lengths(), limits=limits, **self.rule) for each in made]

    def values(self, then: Snapshot) -> dict[str, Any]:
        """The values of earlier data, for batches."""
        if not self.has_batches:
            return {}
        return {"old_lengths": then.lengths(), "old_limits": {name: then.images() for name in self.limits}}

    def load(self, samplers: list[Any], state: Any, then: Snapshot | None = None) -> None:
        """Load a state; ``then``: the data that it was saved over, if they are others."""
        more: dict[str, Any] = {} if then is None else {"old": then.dataset}
        more |= {} if then is None else self.values(then)
        for each in samplers:
            each.load_state_dict(state, **more)

    def skips(self, now: Snapshot) -> set[Any]:
        """The samples that are too long for a batch."""
        if self.rule.get("too_long") != "skip" or not self.has_batches:
            return set()
        return {key for key, length in zip(now.keys, now.lengths(), strict=True) if length > self.rule["max_tokens"]}


class Reading(NamedTuple):
    """A sample that was read, and False if it was repeated to fill up the tail."""

    key: Any
    is_valid: bool


def draw(job: Job, iterators: list[Any], now: Snapshot, steps: int | None) -> tuple[list[Reading], bool]:
    """The samples of so many steps of all ranks, and True if the epoch is over; ranks are over together."""
    read: list[Reading] = []
    while steps is None or steps > 0:
        items = [next(each, None) for each in iterators]
        if items[0] is None:
            assert items == [None] * len(items)
            return read, True
        assert None not in items
        for item in items:
            for index in item if job.has_batches else [item]:
                read.append(Reading(now.keys[int(index)], getattr(index, "is_valid", True) is not False))  # noqa: PERF401
        steps = None if steps is None else steps - 1
    return read, False


def state_of(samplers: list[Any]) -> Any:
    """The state, which is the same on all ranks, through JSON."""
    states = [json.dumps(each.state_dict()) for each in samplers]
    assert len(set(states)) == 1
    return json.loads(states[0])


def epoch_of(job: Job, state: Any) -> int:
    """The epoch of a state."""
    return int((state["order"]["sampler"] if job.has_batches else state)["epoch"])


def check_rest(job: Job, read: list[Reading], rest: set[Any], world: int, filling: set[Any]) -> None:
    """Check all that an epoch has read from an amendment on: exactly the rest, but for the tail.

    Args:
        job: whose epoch it is.
        read: all of it.
        rest: what is right.
        world: number of ranks.
        filling: what may fill up the tail.
    """
    counts = Counter(each.key for each in read)
    assert set(counts) <= rest | filling
    if job.tail == "drop":
        assert max(counts.values(), default=1) == 1
        if not job.has_batches:
            assert len(counts) == len(rest) // world * world
        return
    assert set(counts) >= rest
    if not job.has_batches:
        assert len(read) == -(-len(rest) // world) * world
        if job.tail == "mask":
            assert Counter(each.key for each in read if each.is_valid) == Counter(rest)
        else:
            assert len(read) - len(rest) < world


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("has_batches", [False, True])
@pytest.mark.parametrize("seed", some(range(250), every=12))
def test_an_epoch_goes_on_over_changed_data(seed: int, has_batches: bool, has_checksums: bool) -> None:
    """Union of what was read and what comes is what is there now; several times in one epoch, on any ranks."""
    rng = random.Random(f"{seed} {has_batches} {has_checksums}")
    data, job = Data(rng, has_checksums=has_checksums), Job(rng, kind="one", has_batches=has_batches)
    now, epoch = Snapshot.of(data), rng.randint(0, 2)
    world = rng.randint(1, 4)
    samplers = job.samplers(now, world)
    for each in samplers:
        each.set_epoch(epoch)
    read = set[Any]()
    for _ in range(rng.randint(1, 4)):
        left = len(samplers[0]) - samplers[0].state_dict()["yielded"]
        came, _ = draw(job, [iter(each) for each in samplers], now, rng.randint(0, max(left - 1, 0)))
        read |= {each.key for each in came if each.is_valid}
        read &= set(now.keys)  # what an earlier view leaves out counts as not read
        state, then = state_of(samplers), now
        data.change()
        now = Snapshot.of(data)
        world = world if has_batches and job.tail == "drop" else rng.randint(1, 4)
        rest = rest_of(now, read, job)
        if not rest or (job.tail == "drop" and len(rest_of(then, read, job)) < lanes_of(job, state)):
            return  # the epoch is over
        more_of_old: dict[str, Any] = {**job.values(then), "tail": job.tail} if has_batches else {}
        unseen = now.dataset.unseen(state, old=then.dataset, **more_of_old)
        assert keys_of(unseen, data) == [key for key in now.keys if key not in read]
        samplers, again, resumed = (job.samplers(now, world) for _ in range(3))
        for each in (samplers, again):
            job.load(each, state, then)
        all_of_it, _ = draw(job, [iter(each) for each in again], now, None)
        if job.tail == "drop" and epoch_of(job, state_of(again)) == epoch + 1:
            assert len(rest) < world or has_batches
            return  # less is left than one batch, or sample, for each rank
        check_rest(job, all_of_it, rest, world, set(now.keys) if now.keys == then.keys else set())
        iterators = [iter(each) for each in samplers]
        part, _ = draw(job, iterators, now, rng.randint(0, 6))
        state = state_of(samplers)
        assert epoch_of(job, state) == epoch
        more, _ = draw(job, iterators, now, None)
        assert part + more == all_of_it
        if not more:
            return
        job.load(resumed, state)
        after, _ = draw(job, [iter(each) for each in resumed], now, None)
        assert after == more
        read |= {each.key for each in part if each.is_valid}
        samplers = job.samplers(now, world)
        job.load(samplers, state)


def lanes_of(job: Job, state: Any) -> int:
    """The lanes of a state."""
    return int((state["order"]["sampler"] if job.has_batches else state)["lanes"])


def keys_of(view: wids.ShardListDataset, data: Data) -> list[Any]:
    """The samples of a view of the data of now."""
    places = [view.locate(i) for i in range(len(view))]
    return [((data.shards[shard].name, data.shards[shard].content), row) for shard, row in places]


def rest_of(now: Snapshot, read: set[Any], job: Job) -> set[Any]:
    """The samples that are to come."""
    return set(now.keys) - read - job.skips(now)


class Endless:
    """Steps of all ranks, iteration after iteration."""

    def __init__(self, job: Job, samplers: list[Any], now: Snapshot) -> None:
        self.job, self.samplers, self.now = job, samplers, now
        self.iterators = [iter(each) for each in samplers]
        self.lengths = [0]  # samples of all ranks in each iteration

    def draw(self, steps: int) -> list[Any]:
        """The keys in the order of the positions."""
        keys: list[Any] = []
        for _ in range(steps):
            read, is_over = draw(self.job, self.iterators, self.now, 1)
            if is_over:
                self.iterators = [iter(each) for each in self.samplers]
                self.lengths.append(0)
                read, _ = draw(self.job, self.iterators, self.now, 1)
            self.lengths[-1] += len(read)
            keys += [each.key for each in read if each.is_valid]
        return keys


@pytest.mark.parametrize("kind", ["endless", "two", "size"])
@pytest.mark.parametrize("seed", some(range(250), every=12))
def test_passes_go_on_over_changed_data(seed: int, kind: str) -> None:
    """The pass that was under way gives the rest, and later ones all of the data of now, each sample once."""
    rng = random.Random(f"{seed} {kind}")
    data, job = Data(rng), Job(rng, kind=kind, has_batches=False)
    now, world, read, in_epoch = Snapshot.of(data), rng.randint(1, 4), set[Any](), 0
    if len(now.keys) < 4:
        return
    running = Endless(job, job.samplers(now, world), now)
    for _ in range(3):
        rest = set(now.keys) - read
        keys = running.draw(rng.randint(0, 50))
        assert set(keys[: len(rest)]) <= rest
        assert len(set(keys[: len(rest)])) == len(keys[: len(rest)])
        if len(keys) < len(rest):
            read |= set(keys)
        else:
            keys, n = keys[len(rest) :], len(now.keys)
            for at in range(0, len(keys), n):
                read = set(keys[at : at + n])
                assert len(read) == len(keys[at : at + n])
            if len(keys) % n == 0:
                read = set()
        if kind == "size" and len(running.lengths) > 1:
            assert all(40 - 4 < length < 40 + 4 for length in running.lengths[1:-1])
            assert 40 - 4 < in_epoch + running.lengths[0] < 40 + 4
            in_epoch = 0
        in_epoch += running.lengths[-1]
        read &= set(now.keys)
        state, then = state_of(running.samplers), now
        data.change()
        now, world = Snapshot.of(data), rng.randint(1, 4)
        if len(now.keys) < 4:
            return
        samplers, again = job.samplers(now, world), job.samplers(now, world)
        job.load(samplers, state, then)
        job.load(again, state, then)
        ahead = Endless(job, again, now)
        some = ahead.draw(rng.randint(0, 30))
        resumed = job.samplers(now, world)
        job.load(resumed, state_of(again))
        assert Endless(job, resumed, now).draw(20) == ahead.draw(20)
        running = Endless(job, samplers, now)
        if kind == "size" and running.samplers[0].state_dict()["epoch"] != state["epoch"]:
            in_epoch = 0
        del some


@pytest.mark.parametrize("kind", ["endless", "size"])
@pytest.mark.parametrize("seed", some(range(250), every=25))
def test_batches_of_passes_go_on_over_changed_data(seed: int, kind: str) -> None:
    """After whole blocks each sample of now has come as often as each other one, or once more."""
    rng = random.Random(f"{seed} {kind} batches")
    data, job = Data(rng), Job(rng, kind=kind, has_batches=True, tail="mask")
    job.rule = {"max_tokens": 20, "cost": "padded", "block": rng.choice([2, 5])}
    now, world = Snapshot.of(data), rng.randint(1, 3)
    if len(now.keys) < 12:
        return
    running = Endless(job, job.samplers(now, world), now)
    counts = Counter(running.draw(rng.randint(1, 20)))
    passes = min(counts[key] for key in now.keys)
    state, then = state_of(running.samplers), now
    data.change()
    now, world = Snapshot.of(data), rng.randint(1, 3)
    if len(now.keys) < 12:
        return
    samplers = job.samplers(now, world)
    job.load(samplers, state, then)
    running = Endless(job, samplers, now)
    counts = Counter({key: counts[key] - passes for key in now.keys if key in then.keys})
    for _ in range(200):
        counts.update(running.draw(1))
        if sum(counts.values()) > 4 * len(now.keys) and not state_of(samplers)["offset"]:
            break
    totals = {counts[key] for key in now.keys}
    # Within a block, all samples may have come while a pass lacks some; what is new then comes in that pass, too.
    assert max(totals) - min(totals) <= 1 + bool(state_of(samplers)["offset"]) + bool(state["offset"])
    assert set(counts) <= set(now.keys)


class Sources:
    """A mixture of data that change, sources that come and go included."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.made = rng, 0
        self.data = dict(self.make() for _ in range(rng.randint(2, 3)))

    def make(self) -> tuple[str, Data]:
        """A new source."""
        self.made += 1
        data = Data(self.rng)
        data.shards += [data.make() for _ in range(3)]
        return f"source{self.made}", data

    def change(self) -> None:
        """Change some of it."""
        for data in self.data.values():
            if self.rng.random() < 0.7:
                data.change()
        if self.rng.random() < 0.3 and len(self.data) > 1:
            del self.data[self.rng.choice(sorted(self.data))]
        if self.rng.random() < 0.4:
            name, data = self.make()
            self.data[name] = data

    def snapshot(self) -> tuple[Any, list[Any], dict[str, list[Any]]] | None:
        """The mixture, the (source, key) of each index, and the keys of each source."""
        parts = {name: Snapshot.of(data) for name, data in sorted(self.data.items())}
        if not all(part.keys for part in parts.values()):
            return None
        mixture = wids.mix({name: (part.dataset, self.rng.randint(1, 3)) for name, part in parts.items()})
        keys = [(name, key) for name, part in parts.items() for key in part.keys]
        return mixture, keys, {name: part.keys for name, part in parts.items()}


def check_source(counts: Counter[Any], came: list[Any], of_source: list[Any], *, has_batches: bool) -> Counter[Any]:
    """Check what came of a source, after the counts of its pass; return those of its pass then."""
    if not has_batches:
        rest = [key for key in of_source if not counts[key]]
        passes = [
            came[: len(rest)],
            *(came[at : at + len(of_source)] for at in range(len(rest), len(came), len(of_source))),
        ]
        assert set(passes[0]) <= set(rest)
        assert all(len(set(one)) == len(one) for one in passes)
    counts = counts + Counter(came)
    least = min(counts[key] for key in of_source)
    assert max(counts[key] for key in of_source) <= least + 1 + has_batches
    return Counter({key: counts[key] - least for key in of_source if counts[key] > least})


def keep(counts: Counter[Any], keys: list[Any]) -> Counter[Any]:
    """The counts of samples that are still there."""
    return Counter({key: count for key, count in counts.items() if key in keys})


@pytest.mark.parametrize("has_batches", [False, True])
@pytest.mark.parametrize("seed", some(range(250), every=12))
def test_each_source_of_a_mixture_goes_on_in_its_own_pass(seed: int, has_batches: bool) -> None:
    """Sources change, come and go; each gives the rest of its pass, then all that it has now."""
    rng = random.Random(f"{seed} {has_batches} mixture")
    sources = Sources(rng)
    options = {"epochs": None, "seed": rng.randint(0, 5), "window": rng.randint(1, 3), "chunksize": rng.choice([2, 50])}

    def samplers(mixture: Any, world: int) -> list[Any]:
        made = [
            wids.DistributedChunkedSampler(mixture, num_replicas=world, rank=rank, **options) for rank in range(world)
        ]
        return [wids.BucketBatchSampler(each, batch_size=3, block=2) for each in made] if has_batches else made

    world = rng.randint(1, 3)
    now = sources.snapshot()
    if now is None:
        return
    running, read = samplers(now[0], world), dict[str, Counter[Any]]()
    for change in range(3):
        mixture, keys, names = now
        iterators = [iter(each) for each in running]
        whole_turns = options["lanes"] = options.get("lanes", world)
        steps = whole_turns * rng.randint(0, 20) if change < 2 else 150
        drawn: list[Any] = []
        for _ in range(steps):
            for each in iterators:
                item = next(each)
                drawn += [keys[int(index)] for index in (item if has_batches else [item])]
        for name, of_source in names.items():
            came = [key for source, key in drawn if source == name]
            read[name] = check_source(read.get(name, Counter()), came, of_source, has_batches=has_batches)
        state, then = state_of(running), mixture
        sources.change()
        world, now = rng.randint(1, 3), sources.snapshot()
        if now is None or not set(now[2]) & set(names):
            return
        read = {name: keep(counts, now[2][name]) for name, counts in read.items() if name in now[2]}
        running, again = samplers(now[0], world), samplers(now[0], world)
        for each in (*running, *again):
            each.load_state_dict(state, old=then)
        first = [[next(each) for _ in range(10)] for each in map(iter, again)]
        resumed = samplers(now[0], world)
        for each in resumed:
            each.load_state_dict(state_of(running))
        assert [[next(each) for _ in range(10)] for each in map(iter, resumed)] == first


def test_a_batch_size_of_a_bucket_that_the_earlier_data_have_not() -> None:
    """A state names it, and what is unseen is found all the same."""
    entries = [{"url": f"/nowhere/{k}.tar", "nsamples": 10, "filesize": 1000 + k} for k in range(3)]
    before, now = wids.ShardListDataset(entries[:2]), wids.ShardListDataset(entries)
    buckets = np.resize([1, 2], 20)
    inner = wids.ChunkedSampler(before)
    sampler = wids.BucketBatchSampler(inner, buckets=buckets, batch_size={1: 2, 2: 3, 9: 4})
    batches = iter(sampler)
    read = {index for _ in range(3) for index in next(batches)}
    unseen = now.unseen(sampler.state_dict(), old=before, old_buckets=buckets)
    assert len(unseen) == 30 - len(read)


# --- packs


def tokens_of(batches: list[Any], now: Snapshot) -> Counter[Any]:
    """How often each token, (sample, number), comes in the pieces that do not fill up the tail."""
    counted = Counter[Any]()
    for index in (index for batch in batches for index in batch if index.is_valid is not False):
        _, first, last, _ = index.piece
        counted.update((now.keys[int(index)], token) for token in range(first, last))
    return counted


def due_of(now: Snapshot, keys: Iterable[Any]) -> Counter[Any]:
    """All tokens of these samples."""
    lengths = dict(zip(now.keys, now.lengths(), strict=True))
    return Counter({(key, token): 1 for key in keys for token in range(lengths[key])})


@pytest.mark.parametrize("seed", some(range(300), every=10))
def test_packs_go_on_over_changed_data(seed: int) -> None:
    """Documents of which all tokens were read do not come again, all others come as a whole."""
    rng = random.Random(f"{seed} packs")
    data, job = Data(rng), Job(rng, kind="one", has_batches=False, tail=rng.choice(["pad", "mask"]))
    rule = {"pack_tokens": rng.choice([9, 20]), "cut": rng.random() < 0.7, "block": rng.choice([None, 2, 5])}

    def make(now: Snapshot, world: int) -> list[Any]:
        return [wids.PackSampler(each, lengths=now.lengths(), **rule) for each in job.samplers(now, world)]

    now, world = Snapshot.of(data), rng.randint(1, 4)
    samplers, due = make(now, world), due_of(now, now.keys)
    for _ in range(rng.randint(1, 3)):
        left = len(samplers[0]) - samplers[0].state_dict()["yielded"]
        steps, iterators = rng.randint(0, max(left - 1, 0)), [iter(each) for each in samplers]
        due -= tokens_of([next(each) for _ in range(steps) for each in iterators], now)
        state, then = state_of(samplers), now
        data.change()
        now, world = Snapshot.of(data), rng.randint(1, 4)
        begun = {key for key, _ in due}
        rest = [key for key in now.keys if key in begun or key not in then.keys]
        if not rest:
            return
        unseen = now.dataset.unseen(state, old=then.dataset, old_lengths=then.lengths())
        assert keys_of(unseen, data) == rest
        samplers, again = make(now, world), make(now, world)
        for each in (*samplers, *again):
            each.load_state_dict(state, old=then.dataset, old_lengths=then.lengths())
        came = tokens_of([batch for each in again for batch in each], now)
        # Over the same samples, a state may be of the same data, and a document goes on where it was.
        right = [due_of(now, rest), *([due] if now.keys == then.keys else [])]
        again_at_most = 0 if job.tail == "mask" else world - 1 if rule["cut"] else 20 * world
        due = next(each for each in right if came >= each and came.total() <= each.total() + again_at_most)


def test_pieces_that_come_again_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A change in the middle of a document says how many documents are read anew."""
    data = Data(random.Random(1))
    now = Snapshot.of(data)
    sampler = wids.PackSampler(wids.ChunkedSampler(now.dataset), lengths=now.lengths(), pack_tokens=1000)
    assert len(list(sampler)) == 1
    sampler = wids.PackSampler(wids.ChunkedSampler(now.dataset), lengths=now.lengths() + 9, pack_tokens=7)
    iterator = iter(sampler)
    next(iterator)
    state = sampler.state_dict()
    data.shards.append(data.make())
    after = Snapshot.of(data)
    again = wids.PackSampler(wids.ChunkedSampler(after.dataset), lengths=after.lengths() + 9, pack_tokens=7)
    with pytest.raises(InputError, match="old_lengths"):
        again.load_state_dict(state, old=now.dataset)
    again.load_state_dict(state, old=now.dataset, old_lengths=now.lengths() + 9)
    assert "after pieces of 1 document(s) were read" in caplog.text
    other = wids.PackSampler(wids.ChunkedSampler(after.dataset), lengths=after.lengths() + 9, pack_tokens=8)
    with pytest.raises(StateError, match="pack_tokens"):
        other.load_state_dict(state, old=now.dataset, old_lengths=now.lengths() + 9)
