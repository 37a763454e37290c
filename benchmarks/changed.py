"""Data that change in the middle of an epoch: how wids, and each other loader that is installed, goes on.

    python benchmarks/changed.py        a minute; loaders that cannot be imported are left out

Ten parts of 100 numbers are read in a shuffled order, 420 of them. Then the two first parts are dropped and one is
added, and the state of the first loader is loaded into one of the second data. README.md beside this file has a run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the working tree, installed or not

_THEN, _NOW, _READ, _PART = range(10), range(2, 11), 420, 100
# A loader over numbers in a folder -> its numbers, and functions that give and load its state.
Opened = tuple[Iterator[int], Callable[[], Any], Callable[[Any], None]]


def numbers(parts: range) -> list[int]:
    """The numbers in some parts."""
    return [number for part in parts for number in range(part * _PART, (part + 1) * _PART)]


def flat(batches: Iterator[Any]) -> Iterator[int]:
    """The numbers of batches."""
    return (int(number) for batch in batches for number in (batch["n"] if isinstance(batch, dict) else batch))


def lazily(loader: Any) -> Iterator[int]:
    """The numbers of a loader that is iterated once its state is loaded."""
    yield from flat(iter(loader))


def open_wids(parts: range, _folder: Path) -> Opened:
    """A `wids.DistributedChunkedSampler` over made-up shards; samples are known by their part."""
    import wids

    def dataset(some: range) -> Any:
        return wids.ShardListDataset([
            {"url": f"/nowhere/{part}.tar", "nsamples": _PART, "filesize": 1000 + part} for part in some
        ])  # fmt: skip

    sampler = wids.DistributedChunkedSampler(dataset(parts), num_replicas=1, rank=0)
    known = numbers(parts)
    state = {} if parts is _THEN else {"old": dataset(_THEN)}
    return (
        (known[i] for i in sampler),
        sampler.state_dict,
        lambda saved: sampler.load_state_dict(saved, **state),
    )


def open_streaming(parts: range, folder: Path) -> Opened:
    """MosaicML's StreamingDataLoader, over MDS."""
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    with streaming.MDSWriter(out=str(folder), columns={"n": "int"}, size_limit=1200) as writer:
        for number in numbers(parts):
            writer.write({"n": number})
    dataset = streaming.StreamingDataset(
        local=str(folder), batch_size=4, shuffle=True, num_canonical_nodes=1, shuffle_seed=1
    )
    loader = streaming.StreamingDataLoader(dataset, batch_size=4)
    return lazily(loader), loader.state_dict, loader.load_state_dict


def in_a_sample(number: int) -> dict[str, int]:
    """A sample that LitData writes."""
    return {"n": number}


def open_litdata(parts: range, folder: Path) -> Opened:
    """LitData's StreamingDataLoader."""
    import litdata

    litdata.optimize(
        fn=in_a_sample, inputs=numbers(parts), output_dir=str(folder), chunk_size=_PART, num_workers=1, verbose=False
    )
    dataset = litdata.StreamingDataset(str(folder), shuffle=True, seed=1)
    loader = litdata.StreamingDataLoader(dataset, batch_size=4, num_workers=0)
    return lazily(loader), loader.state_dict, loader.load_state_dict


def open_grain(parts: range, _folder: Path) -> Opened:
    """An iterator of grain."""
    import grain

    source = grain.MapDataset.source(numbers(parts)).shuffle(seed=0)
    iterator = iter(source.to_iter_dataset(grain.ReadOptions(num_threads=0)))
    return iterator, iterator.get_state, iterator.set_state


def open_torchdata(parts: range, _folder: Path) -> Opened:
    """A StatefulDataLoader of torchdata."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    generator = torch.Generator().manual_seed(0)
    loader = StatefulDataLoader(numbers(parts), batch_size=4, shuffle=True, generator=generator, collate_fn=list)
    return lazily(loader), loader.state_dict, loader.load_state_dict


LOADERS: dict[str, Callable[[range, Path], Opened]] = {
    "wids": open_wids,
    "streaming": open_streaming,
    "litdata": open_litdata,
    "grain": open_grain,
    "torchdata": open_torchdata,
}


def go_on(make: Callable[[range, Path], Opened], folder: Path) -> list[str]:
    """The row of a loader: the numbers that come again, that never come, and that come though they were dropped."""
    drawn, save, _ = make(_THEN, folder)
    read = [next(drawn) for _ in range(_READ)]
    state = save()
    shutil.rmtree(folder, ignore_errors=True)  # the changed data take the place of the first ones
    rest, _, load = make(_NOW, folder)
    load(state)
    came = list(rest)
    due = set(numbers(_NOW)).difference(read)
    again, never = [n for n in came if n in set(read)], due.difference(came)
    return [f"{len(came):,}", f"{len(again)}", f"{len(never)}", f"{len(set(came).difference(numbers(_NOW)))}"]


def main() -> None:
    """Print the table."""
    table = Table("loader", "rest of the epoch", "come again", "never come", "dropped, and come", box=None)
    for name, make in LOADERS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                table.add_row(name, *go_on(make, Path(folder) / "data"))
            except ImportError:
                continue
            except Exception as error:  # noqa: BLE001 - it is the loader's answer
                table.add_row(name, f"{type(error).__name__}: {str(error)[:80]}")
    Console().print(table)


if __name__ == "__main__":
    main()
