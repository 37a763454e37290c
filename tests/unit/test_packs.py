"""Packs of documents: each token once, on any number of ranks, also when resumed; and the tensors of packs."""

import copy
import json
import pickle
import random
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.utils.data

import wids
from tests.support.examples import some
from wids.core.order.layout import SamplerInterface
from wids.core.order.mask import PieceIndex
from wids.core.order.packing import PackBlock, make_pack_rule
from wids.errors import InputError, StateError


class Documents:
    """A dataset of shards; a sample has the token numbers ``1000 * i``, ``1000 * i + 1``, ... of its piece."""

    takes_marked_indices = True

    def __init__(self, lengths, shard=10):
        self.lengths, self.shard = np.asarray(lengths), shard

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = 1000 * int(index) + np.arange(self.lengths[int(index)])
        marks = index.marks() if isinstance(index, PieceIndex) else {}
        return {"__key__": str(int(index)), "__shard__": "a.tar", "tokens": tokens, **marks}

    def __wids__(self):
        ends = np.append(np.arange(self.shard, len(self), self.shard), len(self))
        return SamplerInterface(shard_ends=ends, takes_marks=True)


LENGTHS = np.random.default_rng(0).integers(1, 60, 300)


def make(dataset=None, *, world=1, rank=0, options=None, **rule):
    """A sampler of packs."""
    dataset = Documents(LENGTHS) if dataset is None else dataset
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=world, rank=rank, **(options or {}))
    return wids.PackSampler(sampler, **{"lengths": getattr(dataset, "lengths", None), "pack_tokens": 64, **rule})


def tokens_of(batches):
    """How often each token, (sample, number), comes in batches."""
    counted = Counter()
    for batch in batches:
        for index in batch:
            _, first, last, _ = index.piece
            counted.update((int(index), token) for token in range(first, last))
    return counted


def sizes_of(batch):
    """Tokens of each pack of a batch, whose packs are numbered in turn."""
    numbers = [index.piece[0] for index in batch]
    assert numbers[0] == 0
    assert set(np.diff(numbers).tolist()) <= {0, 1}
    sizes = Counter()
    for index in batch:
        number, first, last, _ = index.piece
        assert first < last
        sizes[number] += last - first
    return [sizes[number] for number in range(len(sizes))]


class Setting:
    """Random documents, bounds and order."""

    def __init__(self, seed):
        draws = random.Random(seed)
        self.draws, self.cut = draws, draws.random() < 0.6
        self.size, self.each, self.separators = (
            draws.choice([1, 2, 7, 32, 100]),
            draws.choice([1, 1, 2, 3]),
            draws.randint(0, 1),
        )
        most = draws.choice([1, 3, 10, 50, 200]) if self.cut else max(self.size - self.separators, 0)
        n = draws.choice([1, 2, 5, 17, 60, 200])
        self.lengths = [most] * n if draws.random() < 0.2 else [draws.randint(0, most) for _ in range(n)]
        if not self.separators and not any(self.lengths):
            self.lengths[0] = 1
            self.size = max(self.size, 1)
        self.world = draws.choice([1, 2, 3, 4, 5, 8, 16])
        self.lanes, self.tail = (
            draws.choice([self.world, self.world, 1, 2, 3, 8]),
            draws.choice(["pad", "mask", "drop"]),
        )
        self.epochs = draws.choice([1, 1, 1, 2]) if n >= 16 else 1
        self.options = {
            "chunksize": draws.choice([3, 10, 1000]),
            "seed": draws.randint(0, 9),
            "shuffle": draws.random() < 0.7,
            "tail": self.tail,
            "epochs": self.epochs,
            "lanes": self.lanes,
            "sample_seeds": draws.random() < 0.2,
        }
        self.block = draws.choice([None, None, 1, 3, 20])

    def make(self, world, rank):
        """The sampler of a rank."""
        rule = {"pack_tokens": self.size, "cut": self.cut, "separators": self.separators, "batch_size": self.each}
        dataset = Documents(self.lengths)
        return make(dataset, world=world, rank=rank, options=self.options, block=self.block, **rule)

    def due(self):
        """The tokens that are due, as often as they are: of the samples that ranks read without packs."""
        samples = Counter(range(len(self.lengths)))
        if self.epochs > 1:
            ranks = [
                wids.DistributedChunkedSampler(Documents(self.lengths), num_replicas=self.lanes, rank=r, **self.options)
                for r in range(self.lanes)
            ]
            samples = Counter(int(index) for sampler in ranks for index in sampler)
        return Counter(
            {(i, k): count for i, count in samples.items() for k in range(self.lengths[i] + self.separators)}
        )

    def check(self, read, world):
        """Check how often tokens were read by so many ranks at the end."""
        due = self.due()
        if self.tail == "drop":
            assert read <= due
            return
        assert read >= due
        if self.cut:  # if fewer tokens than ranks are left for the last round, the last one comes again
            again = read.total() - due.total()
            assert again < world
            assert not again or self.size * self.each < 2 * world or self.block or due.total() < self.size * self.lanes


@pytest.mark.parametrize("seed", some(range(1000), every=10))
def test_each_token_comes_once(seed):
    """No pack is too long, none is empty, ranks have equally many, and each token comes once."""
    setting = Setting(seed)
    ranks = [setting.make(setting.world, rank) for rank in range(setting.world)]
    batches = [list(sampler) for sampler in ranks]
    assert {len(each) for each in batches} == {len(ranks[0])}
    for batch in (batch for each in batches for batch in each):
        sizes = sizes_of(batch)
        assert len(sizes) <= setting.each
        assert max(sizes) <= setting.size
    every = [batch for each in batches for batch in each]
    setting.check(tokens_of(every), setting.world)
    if setting.tail == "mask":
        own = [[index for index in batch if index.is_valid] for batch in every]
        assert tokens_of(own) == setting.due()
    # Packs do not depend on the number of ranks, but for the last round.
    if setting.epochs == 1:
        alone = [[index.piece[1:] for index in batch] for batch in setting.make(1, 0)]
        dealt = [
            [index.piece[1:] for index in batches[k % setting.world][k // setting.world]] for k in range(len(every))
        ]
        whole = len(alone) - len(alone) % setting.world
        assert dealt[:whole] == alone[:whole]


@pytest.mark.parametrize("seed", some(range(200), every=10))
def test_chains_of_resumes(seed):
    """On changing numbers of ranks, with states that passed through JSON, each token comes once."""
    setting, state, is_over, hops = Setting(seed), None, False, 0
    world, last, read = setting.world, setting.world, Counter()
    while not is_over:
        samplers = [setting.make(world, rank) for rank in range(world)]
        count, ended = (setting.draws.randint(0, 6) if hops < 30 else 10**9), 0
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            sampler.set_epoch(0)
            iterator, taken = iter(sampler), []
            while len(taken) < count and (batch := next(iterator, None)) is not None:
                taken.append(batch)
            ended += len(taken) < count
            read += tokens_of(taken)
        states = [sampler.state_dict() for sampler in samplers]
        assert states == states[:1] * world
        state, is_over, hops = states[0], ended > 0, hops + 1
        assert ended in (0, world)
        last = world if taken else last  # the ranks that read the last round
        world = setting.draws.choice([1, 2, 3, 4, 6, 8, 16])
    setting.check(read, last)


def test_packs_are_full():
    """All packs but the last two of each lane in a block are full, and those are short by less than a pack."""
    lengths = np.random.default_rng(1).integers(1, 2000, 20_000)
    packs = [make(Documents(lengths), world=4, rank=rank, pack_tokens=4096) for rank in range(4)]
    sizes = np.array([[sizes_of(batch)[0] for batch in sampler] for sampler in packs])
    short = (sizes < 4096).any(axis=0)
    assert sizes.sum() == lengths.sum()
    assert np.count_nonzero(short) <= 2 * (len(short) // 64 + 1)
    assert sizes.sum() > sizes.size * 4096 * (1 - 1 / 64)


def test_documents_stay_whole():
    """With ``cut=False`` each document is one piece, and best fit leaves little room."""
    lengths = np.exp(np.random.default_rng(1).normal(5.7, 0.8, 20_000)).astype(int).clip(1, 4096)
    samplers = [make(Documents(lengths, 1000), world=4, rank=rank, pack_tokens=4096, cut=False) for rank in range(4)]
    batches = [batch for sampler in samplers for batch in sampler]
    assert all(index.piece[1:] == (0, lengths[index], lengths[index]) for batch in batches for index in batch)
    assert sorted(int(index) for batch in batches for index in batch) == list(range(20_000))
    assert lengths.sum() / (len(batches) * 4096) > 0.96


def test_packs_are_local():
    """A rank reads its own lane, and few shards of those beside it, although documents differ in length."""
    lengths = np.exp(np.random.default_rng(1).normal(5.7, 1, 51_200)).astype(int).clip(1)
    dataset = Documents(lengths, shard=100)  # 64 of each lane
    samplers = [make(dataset, world=8, rank=rank, pack_tokens=512, options={"chunksize": 100}) for rank in range(8)]
    read = [{int(index) // 100 for batch in sampler for index in batch} for sampler in samplers]
    assert all(
        set(range(64 * rank, 64 * rank + 64))
        >= own - set(range(64 * rank - 64, 64 * rank)) - set(range(64 * rank + 64, 64 * rank + 128))
        for rank, own in enumerate(read)
    )
    assert sum(map(len, read)) < 1.4 * 512


def test_long_documents():
    """With ``cut=False`` a document longer than a pack is an error, or left out and counted."""
    dataset = Documents([5, 70, 3, 65, 64])
    with pytest.raises(InputError, match=r"sample 1 has 70 tokens, more than pack_tokens=64; .*too_long"):
        make(dataset, cut=False)
    with pytest.raises(InputError, match="and a separator"):
        make(Documents([64]), cut=False, separators=1)
    packs = make(dataset, cut=False, too_long="skip")
    assert packs.skipped == 2
    assert sorted(int(index) for batch in packs for index in batch) == [0, 2, 4]


def test_empty_documents(caplog):
    """A document without a token is left out, counted, and named; with separators it is a token."""
    packs = make(Documents([0, 3, 0, 2]))
    assert packs.skipped == 2
    assert "2 of 4 samples are left out of all packs: those without a token" in caplog.text
    assert tokens_of(packs).keys() == {(1, 0), (1, 1), (1, 2), (3, 0), (3, 1)}
    assert tokens_of(make(Documents([0, 3, 0, 2]), separators=1)).total() == 9
    with pytest.raises(InputError, match="none of 2 samples is left"):
        make(Documents([0, 0]))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lengths": [1.5] * 300}, "length of sample 0 is 1.5"),
        ({"lengths": [-1] * 300}, "length of sample 0 is -1"),
        ({"lengths": [np.nan] * 300}, "length of sample 0 is nan"),
        ({"lengths": [2**41] * 300}, "from 0 to 2"),
        ({"lengths": ["a"] * 300}, "whole numbers of tokens"),
        ({"lengths": [1] * 299}, "299"),
        ({"pack_tokens": 0}, "pack_tokens"),
        ({"pack_tokens": 2**50}, "2[*][*]40"),
        ({"cut": "yes"}, "cut"),
        ({"separators": 2}, "separators"),
        ({"separators": True}, None),
        ({"batch_size": 0}, "batch_size"),
        ({"too_long": "cut"}, "too_long"),
        ({"share": "words"}, "share"),
        ({"share": "tokens"}, "no mixture"),
        ({"block": 0}, "block"),
    ],
)
def test_arguments(options, match):
    """A bad argument is named."""
    if match is None:
        assert len(make(**options)) > 0
        return
    with pytest.raises((InputError, ValueError), match=match):
        make(**options)


def test_a_dataset_has_to_pass_pieces_on():
    """Over a list, or torch's Subset, the samples would not know their pieces: an error says so."""
    for dataset in ([1, 2, 3], torch.utils.data.Subset([1, 2], [0])):
        with pytest.raises(InputError, match="takes_marked_indices"):
            wids.PackSampler(wids.ChunkedSampler(dataset), lengths=[1] * len(dataset), pack_tokens=2)
    with pytest.raises(TypeError, match="ChunkedSampler"):
        wids.PackSampler(torch.utils.data.SequentialSampler([1]), lengths=[1], pack_tokens=2)


def test_states():
    """A state is refused by another sampler, by other bounds, and by lengths that have changed."""
    packs = make()
    iterator = iter(packs)
    next(iterator)
    state = packs.state_dict()
    assert state["kind"] == "wids.packs"
    buckets = wids.BucketBatchSampler(packs.sampler, lengths=LENGTHS, max_tokens=100)
    with pytest.raises(StateError, match=r"not the state of a wids\.BucketBatchSampler"):
        buckets.load_state_dict(state)
    with pytest.raises(StateError, match=r"not the state of a wids\.PackSampler"):
        make().load_state_dict(buckets.state_dict())
    for options in ({"pack_tokens": 32}, {"cut": False}, {"separators": 1}, {"batch_size": 2}, {"block": 7}):
        with pytest.raises(StateError, match=next(iter(options)) if "block" not in options else "rows"):
            make(**options).load_state_dict(state)
    others = LENGTHS.copy()
    others[[0, 1]] = others[[1, 0]]
    other = make(lengths=others, block=300)
    same = make(block=300)
    next(iter(same))
    with pytest.raises(StateError, match="have changed since"):
        other.load_state_dict(same.state_dict())
    packs.sampler.load_state_dict(packs.sampler.state_dict())
    with pytest.raises(StateError, match="under a PackSampler"):
        packs.state_dict()


def test_a_block_is_cut_once(monkeypatch):
    """A resume cuts the block of its state once, as all states of a run do; a copy, or another order, cuts it anew."""
    packs = make(block=300)
    batches = list(packs)
    state = packs.state_dict(batches=2)
    again, expected = make(block=300), [[(int(index), index.piece) for index in batch] for batch in batches[2:]]
    cuts, rule = [], again.__wids__()._rule
    monkeypatch.setattr(type(rule), "cut", lambda self, rows: cuts.append(rows) or PackBlock(rows, self))
    again.load_state_dict(state)
    copied = pickle.loads(pickle.dumps(again))
    iterator = iter(again)
    read = [next(iterator)]
    assert len(cuts) == 1
    assert [again.state_dict()["offset"] for _ in range(3)] == [3, 3, 3]
    assert len(cuts) == 2
    read += iterator
    assert [[(int(index), index.piece) for index in batch] for batch in read] == expected
    assert [[(int(index), index.piece) for index in batch] for batch in copied] == expected
    assert len(cuts) == 4  # two of the copy: one to see if its epoch is over
    again.load_state_dict(state)
    again.sampler.sample_seeds = True
    assert next(iter(again))[0].seed is not None


def test_copies_and_pickles():
    """A sampler of packs, and its indices, are copied and pickled as they are."""
    packs = make(options={"sample_seeds": True, "tail": "mask"})
    expected = [[(int(index), index.marks()) for index in batch] for batch in packs]
    for again in (
        copy.deepcopy(make(options=packs.sampler and {"sample_seeds": True, "tail": "mask"})),
        pickle.loads(pickle.dumps(packs)),
    ):
        again.set_epoch(0)
        batches = [pickle.loads(pickle.dumps(batch)) for batch in again]
        assert [[(int(index), index.marks()) for index in batch] for batch in batches] == expected
    index = PieceIndex(12, (0, 1, 2, 3), 4, True)
    assert (index - 2, (index - 2).marks()) == (10, index.marks())


# --- mixtures


def mixture(weights=(1, 1)):
    """Short and long documents."""
    numbers = np.random.default_rng(5)
    sources = {"short": Documents(numbers.integers(1, 20, 400)), "long": Documents(numbers.integers(50, 150, 300))}
    mixed = wids.mix({name: (source, weight) for (name, source), weight in zip(sources.items(), weights, strict=True)})
    return mixed, np.concatenate([source.lengths for source in sources.values()])


def share_of_long(batches):
    """The share of the tokens of long documents."""
    tokens = Counter()
    for batch in batches:
        for index in batch:
            tokens[int(index) >= 400] += index.piece[2] - index.piece[1]
    return tokens[True] / tokens.total()


@pytest.mark.parametrize("cut", [True, False])
def test_shares_in_tokens(cut):
    """Weights are shares of samples, or of tokens; also those of ``reweight``, and in states."""
    mixed, lengths = mixture()
    rule = {"lengths": lengths, "pack_tokens": 256, "cut": cut}
    options = {"epoch_size": 2000}
    assert share_of_long(make(mixed, options=options, **rule)) == pytest.approx(100 / 110, abs=0.02)
    packs = make(mixed, options=options, share="tokens", **rule)
    assert share_of_long(packs) == pytest.approx(0.5, abs=0.02)
    packs.reweight({"long": 3})
    state = packs.state_dict()
    assert share_of_long(packs) == pytest.approx(0.75, abs=0.02)
    again = make(mixed, world=2, options=options, share="tokens", **rule)
    again.load_state_dict(state)
    assert share_of_long(again) == pytest.approx(0.75, abs=0.03)
    with pytest.raises(StateError, match="shares of tokens, and here they are shares of samples"):
        make(mixed, options=options, **rule).load_state_dict(state)
    sampler = wids.DistributedChunkedSampler(mixed, num_replicas=1, rank=0, **options)
    sampler.reweight({"long": 9}, at=100)
    with pytest.raises(InputError, match="before"):
        wids.PackSampler(sampler, share="tokens", **rule)


def test_shares_in_tokens_of_packs():
    """Documents that are left out have no share, and a source without any other is named."""
    some, long = Documents([2, 2, 2, 2, 500] * 40), Documents([20] * 200)
    mixed, lengths = wids.mix({"some": (some, 1), "long": (long, 1)}), np.append(some.lengths, long.lengths)
    rule = {"pack_tokens": 100, "cut": False, "too_long": "skip", "share": "tokens", "options": {"epoch_size": 4000}}
    tokens = tokens_of(make(mixed, lengths=lengths, **rule))
    assert sum(count for (i, _), count in tokens.items() if i >= 200) / tokens.total() == pytest.approx(0.5, abs=0.03)
    for length in (0, 500):
        values = np.where(lengths == 20, length, lengths)
        with pytest.raises(InputError, match=r"no token of source 'long'.*leave it out of the mixture"):
            make(mixed, lengths=values, **rule)


def test_one_sampler_has_one_share():
    """A second sampler of packs with other shares is refused: it would change the order of the first."""
    mixed, lengths = mixture()
    for first, second in (("tokens", "samples"), ("samples", "tokens")):
        sampler = wids.DistributedChunkedSampler(mixed, num_replicas=1, rank=0, epoch_size=100)
        build = partial(wids.PackSampler, sampler, pack_tokens=64)
        before = tokens_of(build(lengths=lengths, share=first))
        with pytest.raises(InputError, match="make a sampler of samples for each"):
            build(lengths=lengths, share=second)
        sampler.set_epoch(0)
        assert tokens_of(build(lengths=lengths, share=first)) == before


def test_mixtures_resume():
    """A mixture without end, resumed in its middle on other ranks, goes on with the same tokens."""
    mixed, lengths = mixture((2, 1))
    options = {"epochs": None, "lanes": 2}
    build = partial(make, mixed, options=options, lengths=lengths, pack_tokens=128, share="tokens")
    whole = [iter(build(world=2, rank=rank)) for rank in range(2)]
    expected = tokens_of(next(iterator) for _ in range(40) for iterator in whole)
    read, state, done = Counter(), None, 0
    for world, count in ((2, 7), (4, 3), (1, 18), (2, 9), (4, 3), (1, 6)):
        samplers = [build(world=world, rank=rank) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
            iterator = iter(sampler)
            read += tokens_of(next(iterator) for _ in range(count))
        state, done = samplers[0].state_dict(), done + world * count
    assert done == 80
    assert read == expected


def test_a_mixture_without_end_of_which_nothing_is_left():
    """It is an error, not a loop without end."""
    mixed, lengths = mixture((1, 0))
    lengths = np.where(np.arange(len(lengths)) < 400, 0, lengths)
    packs = make(mixed, options={"epochs": None}, lengths=lengths, pack_tokens=128)
    with pytest.raises(InputError, match=r"no sample .* is left for a batch"):
        next(iter(packs))


def test_the_last_round_has_whole_pieces():
    """Where packs of the last round are cut anew, what belongs together is one piece."""
    packs = [make(Documents([64 * 5]), world=3, rank=rank, options={"lanes": 1}) for rank in range(3)]
    rounds = [[index.piece[1:3] for batch in sampler for index in batch] for sampler in packs]
    assert rounds == [[(0, 64), (192, 234)], [(64, 128), (234, 277)], [(128, 192), (277, 320)]]


# --- tensors


def test_tensors():
    """Packs as models and attention take them, by a model in Python."""
    lengths = [5, 3, 9, 4]
    packs = make(Documents(lengths), pack_tokens=8, separators=1, batch_size=2, options={"shuffle": False})
    loader = torch.utils.data.DataLoader(
        packs.sampler.dataset,
        batch_sampler=packs,
        collate_fn=wids.pack_collate("tokens", pack_tokens=8, separator=7, pad=9),
    )
    stream = [token for i, n in enumerate(lengths) for token in [*(1000 * i + k for k in range(n)), 7]]
    read = []
    for batch in loader:
        ids, documents = batch["input_ids"], batch["doc_ids"]
        assert ids.shape[1] == 8
        read += ids[documents >= 0].tolist()
        assert set(ids[documents < 0].tolist()) <= {9}
        flat, edges = documents.reshape(-1), batch["cu_seqlens"].tolist()
        assert batch["cu_seqlens"].dtype == torch.int32
        assert edges[-1] == ids.numel()
        for lo, hi in pairwise(edges):
            assert len(set(flat[lo:hi].tolist())) == 1
            if flat[lo] >= 0:
                assert batch["position_ids"].reshape(-1)[lo:hi].tolist() == list(range(hi - lo))
                assert batch["labels"].reshape(-1)[lo] == -100
                assert batch["labels"].reshape(-1)[lo + 1 : hi].tolist() == ids.reshape(-1)[lo + 1 : hi].tolist()
            else:
                assert set(batch["labels"].reshape(-1)[lo:hi].tolist()) == {-100}
        assert batch["max_seqlen"] == max(np.diff(edges))
    assert read == stream


def test_tensors_of_repeated_pieces():
    """A piece that fills up the tail has no labels."""
    samples = [
        {"__piece__": (0, 2), "__length__": 2, "__pack__": 0, "__valid__": is_valid, "t": [1, 2]}
        for is_valid in (True, False)
    ]
    assert wids.pack_collate("t")(samples)["labels"].tolist() == [[-100, 2, -100, -100]]


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        ({"t": [1, 2, 3]}, {}, r"sample 'k' of s\.tar has 3 tokens in 't', and lengths said 2"),
        ({"t": [1]}, {}, "has 1 tokens"),
        ({"t": "ab"}, {}, "token numbers"),
        ({"t": [[1, 2]]}, {}, "token numbers"),
        ({"t": [1.0, 2.0]}, {}, "token numbers"),
        ({"u": 1}, {"field": "v"}, "no field 'v'"),
        ({"__piece__": (0, 3)}, {}, "separator"),
        ({}, {"pack_tokens": 1}, "a pack has 2 tokens, more than pack_tokens=1"),
        ({"__pack__": None}, {}, "__piece__"),
        ({"t": [[1], [2, 3]]}, {}, r"sample 'k' of s\.tar: no array is made of 't', a list"),
        ({"t": torch.tensor([1, 2], dtype=torch.bfloat16)}, {}, r"sample 'k' of s\.tar: no array is made of 't'"),
    ],
)
def test_tensors_that_cannot_be_made(change, options, match):
    """A sample that does not fit is named."""
    sample = {
        "__key__": "k",
        "__shard__": "s.tar",
        "__piece__": (0, 2),
        "__length__": 2,
        "__pack__": 0,
        "t": [1, 2],
        **change,
    }
    with pytest.raises(InputError, match=match):
        wids.pack_collate(**{"field": "t", **options})([sample])


def test_separators_that_the_sampler_does_not_know():
    """A separator for a sampler without separators is an error; documents may end with a pack, or lack theirs there."""
    build = partial(make, Documents([5, 3, 8, 4, 4]), pack_tokens=8, options={"shuffle": False})
    collate = wids.pack_collate("tokens", separator=7)

    def load(packs):
        return [*torch.utils.data.DataLoader(packs.sampler.dataset, batch_sampler=packs, collate_fn=collate)]

    with pytest.raises(InputError, match=r"separator=7, and a document ends without one: give .* separators=1"):
        load(build())
    assert sum(int((batch["input_ids"] == 7).sum()) for batch in load(build(separators=1))) == 5
    for name in ("separator", "pad"):
        with pytest.raises(ValueError, match=f"{name} is 1.5; it must be an integer"):
            wids.pack_collate("tokens", **{name: 1.5})


def test_other_samples_have_no_pieces():
    """Samples of another sampler are refused."""
    with pytest.raises(InputError, match="PackSampler"):
        wids.pack_collate("tokens")([Documents([3])[0]])
    with pytest.raises(InputError, match="PackSampler"):
        wids.pack_collate("tokens")([5])
    with pytest.raises(InputError, match="PackSampler"):
        wids.pack_collate("tokens")([{"__pack__": 0, "tokens": [1]}])


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_resume(workers):
    """A resumable loader of packs goes on after the batches that its loop has received."""

    def build():
        packs = make(batch_size=2, options={"seed": 3})
        collate = wids.pack_collate("tokens", pack_tokens=64)
        loader = torch.utils.data.DataLoader(
            packs.sampler.dataset, batch_sampler=packs, collate_fn=collate, num_workers=workers
        )
        return wids.resumable(loader)

    expected = [batch["input_ids"].tolist() for batch in build()]
    loader, read = build(), []
    for batch in loader:
        read.append(batch["input_ids"].tolist())
        if len(read) == 17:
            break
    state = loader.state_dict()
    loader = build()
    loader.load_state_dict(state)
    read += [batch["input_ids"].tolist() for batch in loader]
    assert read == expected


def test_rules_are_remade():
    """A rule of other samples has the same bounds."""
    rule = make_pack_rule(3, lengths=np.array([1, 2, 3]), pack_tokens=5, separators=1, cut=False, too_long="skip")
    other = rule.for_samples(2, {"lengths": np.array([4, 9])}.get)
    assert {**other.identity, "lengths": None} == {**rule.identity, "lengths": None}
    assert other.skipped == 1
