"""The original package, wids 0.1.11 from PyPI, in its own environment."""

from __future__ import annotations

import time

from wids_api import WidsApi
from worker import Done, serve


class Original(WidsApi):
    """The common calls, and its own way to open a shard."""

    def open(self, row: dict):
        """The original saves no table: opening a shard walks its headers."""
        from wids.wids import IndexedTarSamples

        shards = self.sets[row["data"]]["shardlist"]

        def work() -> Done:
            begin = time.perf_counter()
            opened = [IndexedTarSamples(path=shard["url"]) for shard in shards]
            seconds = time.perf_counter() - begin
            for samples in opened:
                samples.close()
            return Done(len(shards), 0, seconds)

        return lambda _seed: work

    def build(self, row: dict):
        """Header walk and grouping, as it happens on each miss."""
        from wids.wids import IndexedTarSamples

        shards = self.sets[row["data"]]["shardlist"]

        def work() -> Done:
            count = 0
            for shard in shards:
                samples = IndexedTarSamples(path=shard["url"])
                count += len(samples.reader)
                samples.close()
            return Done(count, 0)

        return lambda _seed: work


if __name__ == "__main__":
    serve(Original)
