"""The order of samples, as the specification: plain Python that the tests compare `wids` with.

The samples of an epoch are one sequence G. It depends on the shards, the settings, the seed and the epoch, and not on
the number of ranks:

1. The samples are divided among L lanes, whose sizes differ by at most 1.
2. A lane's samples are cut into chunks, where a shard ends and after every ``chunksize`` samples. Chunks are shuffled.
3. A window slides over the chunks of a lane: slot k mixes parts of the chunks k .. k + window - 1.
4. G has a sample of each lane in turn: G[t] is sample t // L of lane t % L.
5. W ranks read G in turn, from a position p on: rank r reads G[p + r], G[p + r + W], G[p + r + 2 W], ...

A state is the position p, so any number of ranks reads the rest of G. Each source of a mixture has an order of its own.
Not here are whose turn it is in a mixture, weights of samples, and batches: tests/unit/order states what holds for them
in test_shares.py, test_mixture.py, test_weights.py and test_batching.py.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import NamedTuple

# --- random numbers, which never change: a saved run goes on in the order that it began with

WORD = 1 << 64
CHUNKS, SAMPLES, DEAL, PARTS, ROUNDING = range(1, 6)  # streams: what a random number is for


def philox(counter, key):
    """Four random words of 64 bits: Philox4x64-10 of Salmon, Moraes, Dror and Shaw (SC 2011)."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = x0 * 0xD2E7470EE14C6C93, x2 * 0xCA5A826395121157
        x0, x1, x2, x3 = right // WORD ^ x1 ^ k0, right % WORD, left // WORD ^ x3 ^ k1, left % WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % WORD, (k1 + 0xBB67AE8584CAA73B) % WORD
    return [x0, x1, x2, x3]


def random_words(n, *, seed, epoch, stream, position=0):
    """The first n words of the blocks 1, 2, 3, ...; any integers will do."""
    place, key = [position % WORD, epoch % WORD, epoch // WORD % WORD], [seed % WORD, stream]
    return [word for block in range(1, n // 4 + 2) for word in philox([block, *place], key)][:n]


def permutation(n, **place):
    """0 .. n - 1, sorted by random words, whose lowest bits do not count: as many as the largest number has."""
    words, bits = random_words(n, **place), max(n - 1, 0).bit_length()
    return sorted(range(n), key=lambda i: (words[i] >> bits, i))


def source_seed(seed, name):
    """The seed of a source of a mixture, which is read as `Order.stream` has it."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")


# --- the sequence


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of the samples ``lo .. hi - 1`` in every epoch.

    Attributes:
        shard_ends: the sample after the last one of each shard.
        lanes: L, the number of ranks of the run that began.
        shuffle: False leaves each lane in the order of the shards.
        reshuffle: "fixed": a lane has the same samples in each epoch; "epoch": its chunks are dealt to it.
    """

    hi: int
    lo: int = 0
    shard_ends: tuple = ()
    lanes: int = 1
    chunksize: int = 10_000
    window: int = 4
    seed: int = 0
    shuffle: bool = True
    reshuffle: str = "fixed"

    def __len__(self):
        return self.hi - self.lo

    def shuffled(self, items, epoch, stream, position):
        """The items in random order."""
        if not self.shuffle:
            return items
        order = permutation(len(items), seed=self.seed, epoch=epoch, stream=stream, position=position)
        return [items[i] for i in order]

    def cut(self, lo, hi):
        """The samples ``lo .. hi - 1`` as chunks, each of which is a `range`."""
        edges = [lo, *sorted({end for end in self.shard_ends if lo < end < hi}), hi]
        size = self.chunksize
        return [range(at, min(at + size, end)) for begin, end in pairwise(edges) for at in range(begin, end, size)]

    def chunks(self, epoch, shift):
        """The chunks of each lane. The longer lanes are those from lane ``shift`` on."""
        sizes = [len(range((lane - shift) % self.lanes, len(self), self.lanes)) for lane in range(self.lanes)]
        if self.shuffle and self.reshuffle == "epoch":
            return deal(self.shuffled(self.cut(self.lo, self.hi), epoch, DEAL, self.lo), sizes)
        edges = accumulate(sizes, initial=self.lo)
        return [self.shuffled(self.cut(lo, hi), epoch, CHUNKS, lo) for lo, hi in pairwise(edges)]

    def mix(self, chunks, epoch):
        """The samples of a lane. A chunk has equal parts in its slots, their sizes rounded down or up at random."""
        if not chunks:
            return []
        window = min(self.window, len(chunks)) if self.shuffle else 1
        slots, lane = [[] for _ in chunks[window - 1 :]], []
        place = {"seed": self.seed, "epoch": epoch, "stream": ROUNDING, "position": chunks[0].start}
        for j, (chunk, word) in enumerate(zip(chunks, random_words(len(chunks), **place), strict=True)):
            samples = self.shuffled(chunk, epoch, PARTS, chunk.start) if window > 1 else chunk
            holders = slots[max(j - window + 1, 0) : j + 1]
            ends = [(k * len(samples) + word % len(holders)) // len(holders) for k in range(len(holders) + 1)]
            for slot, (begin, end) in zip(holders, pairwise(ends), strict=True):
                slot.extend(samples[begin:end])
        for slot, chunk in zip(slots, chunks, strict=False):
            lane += self.shuffled(slot, epoch, SAMPLES, chunk.start)
        return lane

    def sample(self, t, epoch, shift=0):
        """G[t]. After the last sample, the lane whose turn it is begins again; an empty lane has the samples of G."""
        lane = lists(self, epoch, shift)[(t + shift) % self.lanes]
        return lane[t // self.lanes % len(lane)] if lane else self.sample(t % len(self), epoch, shift)

    def stream(self, t):
        """Position t of all epochs, one after another: of epoch t // n, and of lane t % L."""
        epoch, at = divmod(t, len(self))
        return self.sample(at, epoch, shift=(t - at) % self.lanes)


@lru_cache(maxsize=512)
def lists(order, epoch, shift):
    """The samples of each lane."""
    return [order.mix(chunks, epoch) for chunks in order.chunks(epoch, shift)]


def deal(chunks, sizes):
    """Chunks for lanes of these sizes, in turn; the rest of a chunk that does not fit is the next lane's."""
    left, hands = list(chunks), []
    for size in sizes:
        hand = []
        while room := size - sum(map(len, hand)):
            chunk = left.pop(0)
            hand.append(chunk[:room])
            left[:0] = [chunk[room:]] if room < len(chunk) else []
        hands.append(hand)
    return hands


# --- the ranks


class State(NamedTuple):
    """A position. ``yielded``: how many of the samples before it each rank has read in this epoch."""

    epoch: int = 0
    position: int = 0
    yielded: int = 0


BEGINNING = State()


@dataclass(frozen=True, kw_only=True)
class Job:
    """Ranks that read an order together.

    Attributes:
        world: W, the number of ranks.
        tail: the last row of an epoch, if it has fewer samples than ranks: "pad" and "mask" fill it, "drop" omits it.
        epoch_size: epochs follow each other without such a row, and have so many samples (and end with a whole row);
            None: an epoch has each sample once.
        loaded: the state that the job goes on from. Its rows are counted from there.
    """

    order: Order
    world: int
    tail: str = "pad"
    epoch_size: int | None = None
    loaded: State = BEGINNING

    def begin(self, epoch):
        """The state at the beginning of an epoch."""
        if self.epoch_size is None:
            return State(epoch)
        due, loaded = epoch * self.epoch_size, self.loaded
        first = due + (loaded.position - due) % self.world
        return State(epoch, max(first, loaded.position) if epoch > loaded.epoch else first)

    def rows(self, state):
        """How many samples each rank reads from a state to the end of its epoch."""
        if self.epoch_size is not None:
            return max(self.begin(state.epoch + 1).position - state.position, 0) // self.world
        left = max(len(self.order) - state.position, 0)
        return left // self.world if self.tail == "drop" else -(-left // self.world)

    def positions(self, state, rank):
        """The positions that a rank reads. Without an ``epoch_size``, samples at those from n on are repeated."""
        return [state.position + row * self.world + rank for row in range(self.rows(state))]

    def samples(self, state, rank):
        """The samples that a rank reads from a state to the end of its epoch."""
        at = self.positions(state, rank)
        return [self.order.sample(t, state.epoch) if self.epoch_size is None else self.order.stream(t) for t in at]

    def after(self, state, count):
        """The state after each rank has read ``count`` more."""
        return State(state.epoch, state.position + count * self.world, state.yielded + count)
