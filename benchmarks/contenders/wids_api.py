"""What the original and this package have in common: the public calls that real programs make of either."""

from __future__ import annotations

from worker import Contender, Done, cut, draw, import_loads, import_seconds


class WidsApi(Contender):
    """One sample at a time, the DataLoader, and the import."""

    packages = ("wids", "torch", "numpy")

    def dataset(self, row: dict):
        """The set's shards read in place, undecoded; ``open_shards`` of them are kept open."""
        import wids

        shardlist = self.sets[row["data"]]["shardlist"]
        count = {"all": max(10, len(shardlist)), "default": None}.get(row["open_shards"], row["open_shards"])
        options = {} if count is None else {"lru_size": count}
        return wids.ShardListDataset(
            [dict(shard) for shard in shardlist],
            localname=_in_place,
            transformations=[],
            **options,
            **row.get("options", {}),
        )

    def sample(self, name: str, index: int) -> tuple[str, dict[str, bytes]]:
        """See `Contender.sample`."""
        got = self.dataset({"data": name, "open_shards": "all"})[index]
        return got["__key__"], {member: got[member].getvalue() for member in self.sets[name]["members"]}

    def items(self, row: dict):
        """``dataset[i]``."""
        dataset, names = self.dataset(row), self.sets[row["data"]]["members"]

        def arrange(seed: int):
            order = draw(row, self.sets, seed)

            def work() -> Done:
                total = 0
                for index in order:
                    sample = dataset[index]
                    for name in names:
                        total += len(sample[name].getvalue())
                return Done(len(order), total)

            return work

        return arrange

    def loader(self, row: dict):
        """The line most copied from the original's documentation, in a DataLoader."""
        from torch.utils.data import DataLoader

        import wids

        dataset, names = self.dataset(row), self.sets[row["data"]]["members"]
        # The original leaves the chunks of its first epoch in order unless it is told not to.
        sampler = wids.DistributedChunkedSampler(dataset, chunksize=1000, shuffle=True, shufflefirst=True)
        loader = DataLoader(
            dataset,
            batch_size=row["batch"],
            sampler=sampler,
            collate_fn=list,
            num_workers=row["workers"],
            persistent_workers=row["workers"] > 0,
            multiprocessing_context="fork" if row["workers"] else None,
        )

        def arrange(seed: int):
            sampler.set_epoch(seed)

            def work() -> Done:
                total = count = 0
                for batch in loader:
                    count += len(batch)
                    for sample in batch:
                        for name in names:
                            total += len(sample[name].getvalue())
                return Done(count, total)

            return work

        return arrange

    def imports(self, _row: dict):
        """``import wids``, which keeps its own clock."""
        return lambda _seed: lambda: Done(1, 0, import_seconds("wids"))

    def facts(self, row: dict) -> dict:
        """Whether importing the package brings torch."""
        return {"torch": import_loads("wids", "torch")} if row["kind"] == "imports" else {}


class WidsBatches:
    """For a package whose dataset takes a list of indices at once."""

    def batches(self, row: dict):
        """``dataset.__getitems__(indices)``."""
        dataset, names = self.dataset(row), self.sets[row["data"]]["members"]

        def arrange(seed: int):
            order = draw(row, self.sets, seed)
            batches = cut(order, row["batch"])

            def work() -> Done:
                total = 0
                for batch in batches:
                    for sample in dataset.__getitems__(batch):
                        for name in names:
                            total += len(sample[name].getvalue())
                return Done(len(order), total)

            return work

        return arrange


def _in_place(url: str) -> str:
    """The idiom by which the original's users keep it from copying local shards."""
    return url
