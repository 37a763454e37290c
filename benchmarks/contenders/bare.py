"""The floor: a loop over saved offsets that slices mapped shards into dicts. No lookup, no keys, no streams.

What it is given (a list of the map and the offsets of each sample, made before the clock starts) is more than any
library has, so nothing that returns bytes from Python can be much faster.
"""

from __future__ import annotations

import json
import mmap
import os
import time

from worker import Contender, Done, cut, draw, serve


class BareSamples:
    """Saved offsets of one set as a map-style dataset, for the DataLoader rows."""

    def __init__(self, table: list):
        self.table = table

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index: int):
        shard, members = self.table[index]
        return {extension: shard[lo:hi] for extension, lo, hi in members}

    def __getitems__(self, indices: list[int]):
        table = self.table
        return [
            {extension: shard[lo:hi] for extension, lo, hi in members}
            for shard, members in map(table.__getitem__, indices)
        ]


class Bare(Contender):
    """Loops over offsets that are known beforehand."""

    packages = ("torch",)

    def table(self, name: str) -> list:
        """For each sample of a set: the mapped shard and ``((extension, lo, hi), ...)``."""
        with open(self.sets[name]["offsets"], encoding="utf-8") as stream:
            offsets = json.load(stream)
        table = []
        for shard, samples in zip(self.sets[name]["shardlist"], offsets, strict=True):
            mapped = _map(shard["url"])
            table.extend((mapped, tuple(map(tuple, members))) for _key, members in samples)
        return table

    def sample(self, name: str, index: int) -> tuple[str, dict[str, bytes]]:
        """See `Contender.sample`."""
        with open(self.sets[name]["offsets"], encoding="utf-8") as stream:
            keys = [key for samples in json.load(stream) for key, _members in samples]
        return keys[index], BareSamples(self.table(name))[index]

    def items(self, row: dict):
        """One sample at a time."""
        table, names = self.table(row["data"]), self.sets[row["data"]]["members"]

        def arrange(seed: int):
            order = draw(row, self.sets, seed)

            def work() -> Done:
                total = 0
                for index in order:
                    shard, members = table[index]
                    sample = {extension: shard[lo:hi] for extension, lo, hi in members}
                    for name in names:
                        total += len(sample[name])
                return Done(len(order), total)

            return work

        return arrange

    def batches(self, row: dict):
        """A list of samples, then the use of their bytes."""
        table, names = self.table(row["data"]), self.sets[row["data"]]["members"]

        def arrange(seed: int):
            order = draw(row, self.sets, seed)
            batches = cut(order, row["batch"])

            def work() -> Done:
                total = 0
                for batch in batches:
                    samples = []
                    for index in batch:
                        shard, members = table[index]
                        samples.append({extension: shard[lo:hi] for extension, lo, hi in members})
                    for sample in samples:
                        for name in names:
                            total += len(sample[name])
                return Done(len(order), total)

            return work

        return arrange

    def loader(self, row: dict):
        """A dataset and an order that cost nothing: what the DataLoader itself takes."""
        from torch.utils.data import DataLoader

        names = self.sets[row["data"]]["members"]
        order: list[int] = []
        loader = DataLoader(
            BareSamples(self.table(row["data"])),
            batch_size=row["batch"],
            sampler=order,
            collate_fn=list,
            num_workers=row["workers"],
            persistent_workers=row["workers"] > 0,
            multiprocessing_context="fork" if row["workers"] else None,
        )

        def arrange(seed: int):
            order[:] = draw(row, self.sets, seed)

            def work() -> Done:
                total = count = 0
                for batch in loader:
                    count += len(batch)
                    for sample in batch:
                        for name in names:
                            total += len(sample[name])
                return Done(count, total)

            return work

        return arrange

    def open(self, row: dict):
        """Open and map the shard; there is no table to read."""
        shards = self.sets[row["data"]]["shardlist"]

        def work() -> Done:
            begin = time.perf_counter()
            opened = [_map(shard["url"]) for shard in shards]
            seconds = time.perf_counter() - begin
            for mapped in opened:
                mapped.close()
            return Done(len(shards), 0, seconds)

        return lambda _seed: work

    def build(self, row: dict):
        """Walk the headers for names, offsets and sizes: no checks, no extensions of the format, no grouping."""
        shards = self.sets[row["data"]]["shardlist"]

        def work() -> Done:
            return Done(sum(len(_walk(shard["url"])) for shard in shards), 0)

        return lambda _seed: work


def _map(path: str) -> mmap.mmap:
    with open(path, "rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _walk(path: str) -> list[tuple[str, int, int]]:
    """Name, offset and size of each member. Reads 4 kB at a time: mapping costs a page fault for each large member."""
    found, window, start, at = [], b"", 0, 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while True:
            if at - start + 512 > len(window):
                window, start = os.pread(descriptor, 4096, at), at
            lo = at - start
            name = window[lo : lo + 100].rstrip(b"\0")
            if not name:
                return found
            size = int(window[lo + 124 : lo + 135], 8)
            found.append((name.decode(), at + 512, size))
            at += 512 + (size + 511 & ~511)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    serve(Bare)
