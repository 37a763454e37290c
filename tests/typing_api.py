"""The public API as a user's program has it, for a type checker: nothing runs it.

What is asserted here is what editors show and what CI of programs that use wids depends on.
tests/e2e/test_typing.py holds it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from torch.utils.data import DataLoader
from typing_extensions import assert_type

import wids
from wids import errors, events, jobs
from wids.jobs.runner import Runner, SerialRunner
from wids.testing import ByteSourceSuite, ReaderSuite, RunnerSuite, Server, ShardProviderSuite, status
from wids.types import Location, Stats

if TYPE_CHECKING:
    from wids.core.readers.provider import ShardProvider
    from wids.core.transport.source import ByteSource
    from wids.types import Offsets

URL = "https://bucket/train.json"


class Pair(TypedDict):
    """What the transformations of a program make of a sample."""

    image: torch.Tensor
    label: int


def to_pair(sample: dict[str, Any]) -> Pair:
    """A transformation."""
    return {"image": sample[".png"], "label": sample[".cls"]}


def every_kind_of_shards(directory: Path) -> None:
    """An index by URL, path, path-like or open file; dicts; pairs; tars."""
    with open(directory / "train.json") as file:
        for dataset in (
            wids.ShardListDataset(URL),
            wids.ShardListDataset("train.json"),
            wids.ShardListDataset(directory / "train.json"),
            wids.ShardListDataset(file),
            wids.ShardListDataset(io.BytesIO(b"{}")),
            wids.ShardListDataset([{"url": "a.tar", "nsamples": 3}, {"url": "b.tar", "nsamples": 4, "md5sum": "0"}]),
            wids.ShardListDataset([("a.tar", 3), ("b.tar", 4)]),
            wids.ShardListDataset("data/s{000..009}.tar"),
            wids.ShardListDataset(["a.tar", "b.tar"]),
        ):
            assert_type(dataset[0], Any)


def every_option(localname: Callable[[str], str], hook: Callable[[events.Event], None]) -> wids.ShardListDataset:
    """Each keyword takes what the documentation says."""
    wids.ShardListDataset(URL, cache_size=None, transformations=[], fields=".jpg", prefetch=10**9, lru_size=None)
    wids.ShardListDataset(URL, fields={"image": "jpg;jpeg;png", "label": ["cls"]})
    return wids.ShardListDataset(
        URL,
        cache_size=10**12,
        cache_dir=Path("/nvme/cache"),
        lru_size=100,
        dataset_name="mine",
        localname=localname,
        transformations=["torch", to_pair],
        keep=True,
        base="gs://bucket/elsewhere",
        options={"name": "other"},
        fields=(".jpg", ".cls"),
        key_rule="last-dot",
        group="key",
        allow_pickle=True,
        max_inflate_bytes=1 << 30,
        allow_pipe=False,
        allow_local=False,
        cache_local=True,
        use_mmap=True,
        storage_options={"anon": True},
        prefetch=False,
        access="auto",
        hooks=[hook],
        on_count_mismatch="warn",
    )


def reading() -> None:
    """Samples are what the subscript says, dicts of anything without it."""
    plain = wids.ShardListDataset(URL)
    sample: dict[str, Any] = plain[0]
    assert_type(sample["__key__"], Any)
    pairs = wids.ShardListDataset[Pair](URL, transformations=["torch", to_pair])
    assert_type(pairs[0], Pair)
    assert_type(pairs.__getitems__([0, 1]), list[Pair])
    assert_type(next(iter(pairs))["label"], int)
    assert_type(len(pairs), int)
    for pair in pairs:
        assert_type(pair["image"], torch.Tensor)
    assert_type(pairs.locate(-1), Location)
    assert_type(pairs.locate(7).row, int)
    assert_type(pairs.keys[3], str)
    assert_type(pairs.keys.index("cat/1"), int)
    assert_type(pairs.keys.find("cat/1"), list[int])
    assert_type("cat/1" in pairs.keys, bool)
    assert_type(pairs.shards[0]["url"], Any)
    assert_type(pairs.fingerprint, str)
    assert_type(pairs.with_table("scores.parquet", on="key", fields=["score"])[0]["label"], int)
    assert_type(pairs.with_columns(["width"])[0]["label"], int)
    assert_type(pairs.find_rows("width >= 512"), np.ndarray[Any, np.dtype[np.int64]])
    assert_type(pairs.column_names, list[str])
    assert_type(pairs.stats(), Stats)
    assert_type(pairs.stats().fetched_bytes, int)
    with pairs.prefetch([3, 1, 2]) as indices:
        for index in indices:
            assert_type(index, int)
    plain.add_transform(to_pair).add_transform(dict).close()


def loading() -> None:
    """A DataLoader has samples of the dataset's type, and takes every sampler."""
    pairs = wids.ShardListDataset[Pair](URL)
    sampler = wids.DistributedChunkedSampler(
        pairs,
        num_replicas=8,
        rank=0,
        num_samples=(0, 10_000),
        chunksize=2000,
        window=4,
        tail="mask",
        lanes=8,
        reshuffle="epoch",
        epoch_size=None,
        epochs=None,
        seed=7,
    )
    sampler.set_epoch(3)
    assert_type(sampler.epoch, int)
    assert_type(len(sampler), int)
    assert_type(next(iter(sampler)), int)
    assert_type(sampler.num_valid, int)
    state = sampler.state_dict(consumed=640)
    assert_type(state, dict[str, Any])
    sampler.load_state_dict(state)
    loader = DataLoader(pairs, batch_size=32, sampler=sampler, num_workers=8)
    assert_type(loader, DataLoader[Pair])
    again = wids.resumable(loader)
    assert_type(again.state_dict(), dict[str, Any])
    again.load_state_dict(state)
    again.set_epoch(3)
    assert_type(len(again), int)
    DataLoader(pairs, sampler=wids.ChunkedSampler(pairs, chunksize=1000, seed=1, shuffle=True))
    DataLoader(pairs, sampler=wids.ShardListSampler(pairs, window=2))
    DataLoader(pairs, sampler=wids.ShardedSampler(pairs, lengths=[1, 2]))


def writing(directory: Path) -> None:
    """Samples are mappings; the writer is a context."""
    with wids.ShardWriter(directory / "train-%06d.tar", samples=1000, size=10**9, info={"classes": ["a"]}) as writer:
        writer.write({"__key__": "a", ".txt": "words", "cls": 7, ".npy": torch.zeros(3)})
        assert_type(writer, wids.ShardWriter)
        assert_type(writer.index, str)
        assert_type(writer.nsamples, int)


def decoding() -> None:
    """A decoder is a transformation, and formats can be added to it."""
    decode = wids.SampleDecoder("torch", also=[".gif", ".npz"])
    assert_type(decode({".cls": b"1"}), dict[str, Any])
    wids.register_decoder(".words", lambda data: data.decode().split())


def working(shown: Callable[[jobs.JobProgress], None], directory: Path) -> None:
    """Each job takes its settings, what runs it and who sees its progress, and gives its outcome."""
    how = jobs.IndexSettings(has_md5=True, session=jobs.Session({"anon": True}))
    told = jobs.create_index(["d/*.tar"], "train.json", settings=how, engine="processes", progress=shown)
    assert_type(told, jobs.IndexOutcome)
    assert_type(told.failed, dict[str, str])
    assert_type(jobs.update_index("train.json", add=["e.tar"], engine=jobs.RunOptions(jobs=3)).added, int)
    found = jobs.verify(directory / "train.json", jobs.VerifySettings(is_quick=True), shards=slice(0, 3))
    assert_type(found.wrong, list[jobs.Finding])
    assert_type(jobs.warm(URL, jobs.WarmSettings(cache_size=10**12), engine="ray", progress="bar").fetched_bytes, int)
    settings = jobs.PackSettings(output="p/%06d.tar", size=10**9)
    assert_type(jobs.pack("photos", settings, source=jobs.PackSource(form="folder")), jobs.PackOutcome)
    assert_type(jobs.create_columns(URL, "c.parquet", jobs.parse_spec(fields=[".cls"])).columns, dict[str, str])
    assert_type(jobs.create_tables("train.json", settings=jobs.TablesSettings(overwrite=True)).tables, int)


def failing() -> None:
    """Errors are classes with facts as attributes, and also what Python calls such an error."""
    try:
        wids.ShardListDataset(URL)[0]
    except errors.ShardNotFoundError as error:
        missing: FileNotFoundError = error
        assert_type(error.url, str | None)
        assert_type(missing.errno, int | None)
    except errors.ShardError as error:
        assert_type(error.shard, str | None)
        assert_type(error.offset, int | None)
    except wids.WidsError as error:
        assert_type(error.hint, str | None)


def watching(event: events.Event) -> None:
    """A hook takes an event, and tells by its class what it is."""
    if isinstance(event, events.Fetched):
        assert_type(event.size_bytes, int)


def caring_for_caches() -> None:
    """The functions of the original."""
    assert_type(wids.keep_most_recent_files("/nvme/cache", maxsize=10**12, dry_run=True), list[str])
    assert_type(wids.create_cleanup_background_process("/nvme/cache", every=10), BaseProcess)


class MyStore(ByteSourceSuite):
    """What a store's author overrides."""

    url = "mine://bucket/a.tar"
    has_version = False
    cannot = ("deny", "shorten")

    def put(self, data: bytes) -> None:
        """Into a store."""

    def open_source(self, **options: Any) -> ByteSource:
        """Out of it."""
        return super().open_source(**options)


class MyWay(ShardProviderSuite, ReaderSuite):
    """What the author of a way to open shards overrides."""

    is_local = True
    has_dataset = False

    def put(self, name: str, data: bytes) -> str:
        """Into a directory of the test."""
        return str((self.home / name).write_bytes(data))

    def make(self, hooks: Sequence[Callable[[events.Event], None]] = ()) -> ShardProvider:
        """A provider."""
        return super().make(hooks)


class MyEngine(RunnerSuite):
    """What the author of an engine overrides."""

    is_in_process = True

    def start(self, function: Callable[..., Any], on_report: Callable[..., None] | None) -> Runner:
        """In this thread."""
        return SerialRunner(function, on_report or print)


def testing(directory: Path) -> None:
    """A server for tests, with faults."""
    with Server(directory, latency_seconds=0.1, required_headers={"X-Key": "secret"}) as server:
        url = server.add("/a.tar", b"...", status(503))
        assert_type(url, str)
        assert_type(server.requests, list[str])
        assert_type(server.sent_bytes.total(), int)


def windows(dataset: wids.ShardListDataset[Any], offsets: Offsets) -> None:
    """Consecutive samples, by number or by distances."""
    clips = dataset.windows(8, stride=2, by="episode", stack={".jpg": torch.stack})
    assert_type(clips, wids.Windows)
    assert_type(clips[0], dict[str, Any])
    for given in (offsets, [-1, 0], range(4), np.arange(3), {".jpg": [0], ".npy": range(16)}):
        assert_type(dataset.windows(offsets=given, pad="repeat", by=[1, 2], stack=np.stack)[0], dict[str, Any])
    loader = DataLoader(clips, sampler=wids.ChunkedSampler(clips, weights=np.ones(len(clips))[clips.anchors()]))
    assert_type(loader, DataLoader[dict[str, Any]])
