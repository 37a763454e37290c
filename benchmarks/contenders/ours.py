"""This package, from the working tree."""

from __future__ import annotations

import os
import time
from statistics import median

from wids_api import WidsApi, WidsBatches
from worker import Done, cut, draw, serve

# Samples that are read one after the other.
_TURN = 500


class Ours(WidsBatches, WidsApi):
    """The common calls, and those that the original lacks."""

    def open(self, row: dict):
        """Open each shard with the member table saved beside it, in the pool's own way but without the pool."""
        from wids.core.files import atomic
        from wids.core.readers.provider import AutoProvider
        from wids.core.shard import Shard
        from wids.core.transport.session import Session
        from wids.events import Opened

        directory = os.path.join(self.scratch, "open")
        os.makedirs(directory)
        shards, opened = [], []
        for shard in self.sets[row["data"]]["shardlist"]:
            # A link, so that the saved tables do not come between the other rows and the shards.
            path = os.path.join(directory, os.path.basename(shard["url"]))
            os.symlink(shard["url"], path)
            atomic.write_atomically(f"{path}.widx", _build(path).to_bytes())
            shards.append(Shard(url=path, nsamples=shard["nsamples"], filesize=shard["filesize"]))
        AutoProvider(cache_dir=None, session=Session(hooks=[opened.append])).open(shards[0]).close()
        if not [event for event in opened if isinstance(event, Opened) and event.has_saved_table]:
            raise AssertionError("the saved table was not used")

        def work() -> Done:
            # A new store for each round: an old one remembers tables.
            store = AutoProvider(cache_dir=None)
            begin = time.perf_counter()
            readers = [store.open(shard) for shard in shards]
            seconds = time.perf_counter() - begin
            for reader in readers:
                reader.close()
            return Done(len(readers), 0, seconds)

        return lambda _seed: work

    def views(self, row: dict):
        """The time that ``view[i]`` takes as a multiple of that of ``dataset[i]``: the same samples, in turns."""
        dataset = self.dataset(row)
        view = dataset.select(range(len(dataset)))  # it finds the row of each sample as a smaller one does

        def arrange(seed: int):
            order = draw(row, self.sets, seed)

            def work() -> Done:
                seconds: list[list[float]] = [[], []]
                for number, batch in enumerate(cut(order, _TURN)):
                    for index in batch:  # whoever comes first reads blocks ahead for the others
                        dataset[index]
                    for k in (number % 2, 1 - number % 2):
                        data, begin = (dataset, view)[k], time.perf_counter()
                        for index in batch:
                            data[index]
                        seconds[k].append(time.perf_counter() - begin)
                return Done(1, 0, median(seconds[1]) / median(seconds[0]))

            return work

        return arrange

    def build(self, row: dict):
        """Scan the headers and group the members, as for a shard without a saved table."""
        shards = self.sets[row["data"]]["shardlist"]

        def work() -> Done:
            return Done(sum(_build(shard["url"]).nmembers for shard in shards), 0)

        return lambda _seed: work


def _build(path: str):
    from wids.core.files import atomic
    from wids.core.tables import member_tables

    descriptor, identity = atomic.open_file(path)
    try:
        return member_tables.scan_table(descriptor, path, identity)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    serve(Ours)
