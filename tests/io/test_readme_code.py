"""The Python that READMEs and guides show runs as it stands, on small data; what trainers are for runs in tests/e2e."""

import io
import json
import multiprocessing
import os
import random
import sys
import types
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed.checkpoint as dcp
from PIL import Image

import wids
from tests.support import columns as made
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.readme_code import PYTHON, at, execute, write_images
from tests.support.readmes import blocks
from tests.support.shards import write_index, write_json, write_tar
from tests.support.suites import run_suites
from wids import jobs, testing

GUIDES = ".docs/guides"
E2E = {
    f"{GUIDES}/{name}"
    for name in (
        "lightning.md#train-with-lightning",
        "hugging-face.md#the-trainer",
        "hugging-face.md#accelerate",
        "mix.md#weights-from-losses",
        "resume.md#fabric",
    )
}
HERE = {
    f"{GUIDES}/batches.md#batch-by-length-or-shape",
    f"{GUIDES}/batches.md#tokens-and-images",
    f"{GUIDES}/changed-data.md#appending-while-training",
    f"{GUIDES}/changed-data.md#data-that-change-in-mid-run",
    f"{GUIDES}/coming-from.md#coming-from-another-loader",
    f"{GUIDES}/filter.md#filter-and-curate-train-on-a-part",
    f"{GUIDES}/filter.md#parts-without-common-groups",
    f"{GUIDES}/mix.md#each-batch-from-one-source",
    f"{GUIDES}/mix.md#mix-datasets-in-stated-shares",
    f"{GUIDES}/packs.md#pack-documents-into-sequences",
    f"{GUIDES}/quickstart.md#2-train",
    f"{GUIDES}/resume.md#fsdp-and-torchtitan",
    f"{GUIDES}/resume.md#resume-a-run-in-mid-epoch",
    f"{GUIDES}/fields.md#in-a-program",
    f"{GUIDES}/fields.md#new-fields-embeddings-captions-scores",
    f"{GUIDES}/fields.md#numbers-and-texts",
    f"{GUIDES}/fields.md#train-with-them",
    f"{GUIDES}/shared-caches.md#share-a-cache-on-a-machine",
    f"{GUIDES}/stores.md#train-from-s3-minio-r2-gcs-or-http",
    f"{GUIDES}/video.md#decord",
    f"{GUIDES}/video.md#h5py",
    f"{GUIDES}/video.md#parts-without-a-decoder",
    f"{GUIDES}/video.md#pillow",
    f"{GUIDES}/video.md#pyav",
    f"{GUIDES}/video.md#soundfile",
    f"{GUIDES}/video.md#torchcodec",
    f"{GUIDES}/video.md#video-and-long-members",
    f"{GUIDES}/video.md#zipfile",
    f"{GUIDES}/companions.md#companions-fields-that-lie-in-other-shards",
    f"{GUIDES}/windows.md#a-history",
    f"{GUIDES}/windows.md#offsets-by-field",
    f"{GUIDES}/windows.md#windows-clips-episodes-histories",
    f"{GUIDES}/your-data.md#segmentation-masks",
    f"{GUIDES}/your-data.md#video-and-audio",
    "README.md#train-on-your-own-pictures",
    "wids/core/order/README.md#augmentation-that-repeats-exactly",
    "wids/README.md#alternatives-and-names-of-fields",
    "wids/README.md#testing-your-own-code",
    "wids/README.md#workers-processes-or-threads",
    "wids/core/cache/README.md#prefetching",
    "wids/tools/cli/README.md#packing",
    "wids/columns/README.md#in-a-program",
    "wids/jobs/README.md#in-a-program",
    "wids/core/order/README.md#batches-of-like-length",
    "wids/core/order/README.md#exact-evaluation",
    "wids/core/order/README.md#mixtures",
    "wids/core/order/README.md#several-budgets",
    "wids/core/order/README.md#the-order-for-any-dataset",
    "wids/core/order/README.md#weights-of-samples",
    "wids/tools/serve/README.md#in-a-notebook",
    "wids/testing/README.md#with-the-server",
    "wids/core/transport/README.md#credentials",
    "wids/core/transport/README.md#how-to-add-a-transport",
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, own_cache):
    """Paths of the examples are relative."""
    monkeypatch.chdir(tmp_path)


def only(place):
    """The one block below a heading."""
    (block,) = at(place)
    return block


def keep(steps):
    """A training step that notes what it is given."""
    return lambda *batch: steps.append(batch)


def loader_of(dataset, sampler):
    """A loader of undecoded samples."""
    return torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=list)


def test_all_of_it_is_run():
    """A block that is new needs a test here or in tests/e2e/test_readme_trainers.py."""
    assert sorted(block.place for block in PYTHON) == sorted(E2E | HERE)


def test_example(tmp_path):
    """The first one: ten epochs, all samples in each; the state of the loader says so."""
    write_images(tmp_path / "out", samples=20)
    steps = []
    names = execute(
        only("README.md#train-on-your-own-pictures"), {"num_workers=4": "num_workers=0"}, train_step=keep(steps)
    )
    assert len(steps) == 10 * 2
    assert {tuple(images.shape[1:]) for images, _ in steps} == {(3, 224, 224)}
    assert sum(len(labels) for _, labels in steps) == 10 * 40
    names["loader"].load_state_dict(names["loader"].state_dict())


def test_quickstart(tmp_path, capsys):
    """Stopped in the midst of a save, the same program goes on there; for a third run nothing is left."""
    index = write_images(tmp_path / "out", samples=40)
    write_json(index, {**json.loads(Path(index).read_text()), "info": {"classes": [str(k) for k in range(10)]}})
    block, seen = only(f"{GUIDES}/quickstart.md#2-train"), []

    def note(state, path, save=torch.save):
        seen.append(state["loader"])
        if len(seen) == 5:
            Path(path).write_bytes(b"half of it")
            raise KeyboardInterrupt
        save(state, path)

    replaced = {"num_workers=4": "num_workers=0", "torch.save(": "note("}
    with pytest.raises(KeyboardInterrupt):
        execute(block, replaced, note=note)
    execute(block, replaced, note=note)
    execute(block, replaced, note=note)
    assert len(seen) == 3 * 3 + 1  # epochs of three batches, and the batch whose save was cut off
    epochs = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert epochs == [f"epoch {k}" for k in range(3) for _ in range(3)]


def test_a_segmentation_mask(tmp_path):
    """Is cut and turned as its picture is."""
    picture = Image.frombytes("L", (32, 24), bytes(k % 256 for k in range(32 * 24)))
    with wids.ShardWriter("out/scenes-%06d.tar") as writer:
        writer.write({"__key__": "0", ".png": picture, ".seg.png": picture})
    found = execute(only(f"{GUIDES}/your-data.md#segmentation-masks"), {'".jpg"': '".png"'})
    assert found["image"].shape == found["mask"].shape == (1, 224, 224)
    assert found["image"].tolist() == found["mask"].tolist()


def test_a_clip(tmp_path, monkeypatch):
    """Its bytes are the decoder's, which is a stand-in here: torchcodec's needs FFmpeg."""

    class Decoder:
        def __init__(self, data):
            assert data == b"a film"

        def __len__(self):
            return 20

        def get_frames_at(self, indices):
            return types.SimpleNamespace(data=torch.tensor(indices))

    monkeypatch.setitem(sys.modules, "torchcodec.decoders", types.SimpleNamespace(VideoDecoder=Decoder))
    with wids.ShardWriter("out/clips-%06d.tar") as writer:
        writer.write({"__key__": "0", ".mp4": b"a film", ".txt": "a street"})
    found = execute(only(f"{GUIDES}/your-data.md#video-and-audio"), {})
    assert (found["frames"].tolist(), found["caption"]) == ([0, 2, 5, 7, 10, 12, 15, 17], "a street")


def test_stores(tmp_path):
    """An epoch from S3, with endpoint and keys."""
    from tests.support.backends import s3  # servers of others: not in each process of these tests

    write_images(tmp_path / "up")
    with s3() as buckets:
        place, steps = buckets.place(), []
        for path in (tmp_path / "up").iterdir():
            place.put(path.name, path.read_bytes())
        replaced = {
            "s3://bucket": place.url,
            '"http://minio:9000"': repr(place.options["endpoint_url"]),
            '"/nvme/cache"': repr(str(tmp_path / "cache")),
            "num_workers=4": "num_workers=0",
        }
        execute(only(f"{GUIDES}/stores.md#train-from-s3-minio-r2-gcs-or-http"), replaced, train_step=keep(steps))
        assert sorted(sample["__index__"] for (batch,) in steps for sample in batch) == [*range(80)]
        assert all(request["authorization"] for request in place.requests(f"{place.url}/train-000001.tar"))


def test_coming_from_others(tmp_path):
    """All samples, once."""
    replaced = {
        '"train.json"': repr(str(write_images(tmp_path))),
        '"/nvme/cache"': repr(str(tmp_path / "cache")),
        "num_workers=4": "num_workers=0",
    }
    names = execute(
        only(f"{GUIDES}/coming-from.md#coming-from-another-loader"),
        replaced,
        wids=wids,
        torch=torch,
        make_sample=lambda sample: sample["__index__"],
    )
    assert sorted(index for batch in names["loader"] for index in batch.tolist()) == [*range(80)]


def test_a_shared_cache(tmp_path):
    """Has the shards in its directory."""
    write_images(tmp_path / "www")
    with testing.Server(tmp_path / "www") as server:
        replaced = {"https://host": server.url, "/data/wids-cache": str(tmp_path / "cache")}
        names = execute(only(f"{GUIDES}/shared-caches.md#share-a-cache-on-a-machine"), replaced, wids=wids)
        assert names["dataset"][0][".cls"] == 0
    assert any(name.endswith("-train-000000.tar") for name in os.listdir(tmp_path / "cache"))


def test_batches_from_one_source(tmp_path):
    """Each batch has samples of one source."""
    sources = {
        name: wids.ShardListDataset(write_images(tmp_path / name)).add_transform(lambda sample: sample["__dataset__"])
        for name in "ab"
    }
    names = execute(
        only(f"{GUIDES}/mix.md#each-batch-from-one-source"),
        {"num_workers=4": "num_workers=0"},
        wids=wids,
        torch=torch,
        mixture=wids.mix({name: (source, 0.5) for name, source in sources.items()}),
    )
    assert [len({*batch}) for batch in names["loader"]] == [1] * len(names["loader"])


def test_the_order_for_any_dataset():
    """Row groups are taken for shards, and all rows come."""
    pq.write_table(pa.table({"x": range(100)}), "train.parquet", row_group_size=30)
    given = {"pq": pq, "wids": wids, "torch": torch, "rows": list(range(100))}
    names = execute(
        only("wids/core/order/README.md#the-order-for-any-dataset"), {"num_workers=4": "num_workers=0"}, **given
    )
    assert names["sampler"].ranges == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert sorted(index for batch in names["loader"] for index in batch.tolist()) == list(range(100))


def test_mixtures(tmp_path):
    """Both ways in: shares hold, and each source has its own transformation."""
    for name in ("web", "books"):
        write_images(tmp_path / name, samples=20)
    replaced = {
        '"web.json"': '"web/train.json"',
        '"books.json"': '"books/train.json"',
        '"/nvme/books"': repr(str(tmp_path / "cache")),
    }
    makers = {"make_web": lambda sample: ("web", sample["__dataset__"]), "make_book": lambda sample: ("book", None)}
    found = execute(only(f"{GUIDES}/mix.md#mix-datasets-in-stated-shares"), replaced, wids=wids, **makers)
    samples = found["mixture"].__getitems__(list(found["sampler"]))
    assert (samples.count(("web", "web")), samples.count(("book", None))) == (56, 24)
    given = {name: wids.ShardListDataset(tmp_path / name / "train.json") for name in ("web", "books")}
    sampler = execute(only("wids/core/order/README.md#mixtures"), {}, wids=wids, **given)["sampler"]
    assert len(sampler) == 1_000_000


def test_weights_of_samples(tmp_path):
    """Classes come equally often, as many samples as are asked for."""
    index = made.write_dataset(tmp_path, (5, 25))
    made.make_columns(index)
    dataset = wids.ShardListDataset(index, transformations=[])
    names = execute(only("wids/core/order/README.md#weights-of-samples"), {}, wids=wids, dataset=dataset)
    counts = np.bincount(np.unique(names["labels"], return_inverse=True)[1][list(names["sampler"])])
    assert sum(counts) == 100_000
    assert max(counts) - min(counts) <= len(dataset)


@pytest.mark.parametrize(
    "place", ["wids/core/order/README.md#several-budgets", f"{GUIDES}/batches.md#tokens-and-images"]
)
def test_several_budgets(tmp_path, place):
    """All samples come, in batches within each budget."""
    write_images(tmp_path)
    numbers, rng = np.arange(80), np.random.default_rng(0)
    table = {name: rng.integers(1, most, 80) for name, most in (("tokens", 3000), ("images", 9), ("width", 900))}
    dataset = wids.ShardListDataset("train.json", transformations=[])
    dataset = dataset.with_table({"index": numbers, **table, "height": table["width"]}, on="index")
    crops = np.ceil(table["width"] / 448) ** 2
    sampler = wids.ChunkedSampler(dataset)
    batches = list(execute(only(place), {}, wids=wids, sampler=sampler, crops=crops)["batches"])
    assert sorted(index for batch in batches for index in batch) == numbers.tolist()
    for batch in batches:
        assert table["tokens"][batch].max() * len(batch) <= 8192
        assert table["images"][batch].sum() <= 16
        assert crops[batch].sum() <= 125


@pytest.mark.parametrize(
    "place", ["wids/core/order/README.md#batches-of-like-length", f"{GUIDES}/batches.md#batch-by-length-or-shape"]
)
def test_batches_of_like_length(tmp_path, place):
    """Lengths of a column; all samples come, in batches within the budget."""
    index = made.write_dataset(tmp_path, (5, 25))
    made.make_columns(index)
    dataset = wids.ShardListDataset(index, transformations=[])
    replaced = {'"tokens"': '"bytes"', "num_workers=4": "num_workers=0"}
    names = execute(
        only(place),
        replaced,
        wids=wids,
        torch=torch,
        dataset=dataset,
        pad=list,
        train_step=lambda batch: None,
    )
    lengths = dataset.read_column("bytes")
    found = [[sample["__index__"] for sample in batch] for batch in names["loader"]]
    assert sorted(index for batch in found for index in batch) == [*range(30)]
    assert all(lengths[batch].max() * len(batch) <= 32_768 for batch in found)


def test_packs(tmp_path):
    """Lengths of a column, tokens of a member: each comes once, with its separator."""
    with wids.ShardWriter(tmp_path / "train-%06d.tar") as writer:
        for k in range(30):
            writer.write({"__key__": f"{k:04d}", ".npy": 1 + np.arange(k), ".json": {"tokens": k}})
    made.make_columns(tmp_path / "train.json", spec=made.parse_spec(jsons=[".json:tokens"]))
    dataset = wids.ShardListDataset(tmp_path / "train.json")
    names = {"wids": wids, "torch": torch, "dataset": dataset, "EOS": 0, "train_step": lambda batch: None}
    found = execute(
        only(f"{GUIDES}/packs.md#pack-documents-into-sequences"), {"num_workers=4": "num_workers=0"}, **names
    )
    tokens = [batch["input_ids"][batch["doc_ids"] >= 0] for batch in found["loader"]]
    assert sorted(torch.cat(tokens).tolist()) == sorted(token for k in range(30) for token in range(k + 1))


def write_frames(path, *, column, columns):
    """An index of frames and of arrays, of two episodes of 20 and 12 steps, with a column of their numbers."""
    picture = Image.frombytes("RGB", (4, 4), bytes(48))
    with wids.ShardWriter(path.with_name("out-%06d.tar"), samples=10) as writer:
        for k in range(32):
            fields = {".json": {column: int(k >= 20)}, ".npy": np.full(3, k, np.float32)}
            writer.write({"__key__": f"{k:04d}", **fields, **({".jpg": picture} if columns else {})})
    os.rename(path.with_name("out.json"), path)
    made.make_columns(path, spec=made.parse_spec(jsons=[f".json:{column}"]))


def test_clips(tmp_path):
    """Each window of eight frames of a video comes, as a tensor."""
    write_frames(tmp_path / "frames.json", column="video", columns=True)
    steps: list[tuple[torch.Tensor]] = []
    names = {"wids": wids, "torch": torch, "train_step": keep(steps)}
    place = f"{GUIDES}/windows.md#windows-clips-episodes-histories"
    execute(only(place), {"num_workers=4": "num_workers=0"}, **names)
    assert sum(len(clips) for (clips,) in steps) == 13 + 5
    assert {clips.shape[1:] for (clips,) in steps} == {(8, 3, 4, 4)}


def test_offsets_by_field(tmp_path):
    """Two pictures and sixteen actions, and where an episode has no more of them."""
    write_frames(tmp_path / "frames.json", column="episode", columns=True)
    names = execute(only(f"{GUIDES}/windows.md#offsets-by-field"), {}, wids=wids, torch=torch)
    assert names["offsets"] == {".jpg": [-1, 0], ".npy": list(range(16))}
    assert len(names["steps"]) == 32
    step = names["step"]
    assert (step[".jpg"].shape, step[".npy"].shape) == ((2, 3, 4, 4), (16, 3))
    assert names["loss_mask"].tolist() == [True] * 16
    assert names["steps"][10]["__pad__"][".npy"].tolist() == [False] * 10 + [True] * 6


def test_a_history(tmp_path):
    """What lies before the beginning of a series is masked."""
    write_frames(tmp_path / "series.json", column="series", columns=False)
    names = execute(only(f"{GUIDES}/windows.md#a-history"), {}, wids=wids, numpy=np)
    assert names["attention_mask"].tolist() == [False] * 63 + [True]
    assert (names["inputs"].shape, names["target"].tolist()) == ((64, 3), [1.0] * 3)


def test_companions(tmp_path):
    """Pictures of one set of shards with the captions of another one, and both as one index."""
    write_images(tmp_path)
    members = {f"{key}.caption.txt": f"of {key}".encode() for key in wids.ShardListDataset("train.json").keys}
    write_json("captions.json", {"wids_version": 1, "shardlist": [captions_of(members)]})
    steps = []
    names = {"wids": wids, "torch": torch, "train_step": keep(steps)}
    execute(only(f"{GUIDES}/companions.md#companions-fields-that-lie-in-other-shards"), {}, **names)
    captions = sorted(caption for ([*pairs],) in steps for _, caption in pairs)
    assert captions == sorted(data.decode() for data in members.values())
    assert wids.ShardListDataset("joined.json")[3][".caption.txt"].startswith("of ")


def captions_of(members):
    """The entry of a shard with these members."""
    return {"url": write_tar("captions.tar", members), "nsamples": len(members)}


def test_workers_that_are_threads(tmp_path):
    """The batches of a loader without workers, and no process."""
    dataset = wids.ShardListDataset(write_images(tmp_path), transformations=lambda sample: sample["__index__"])
    sampler = wids.DistributedChunkedSampler(dataset, seed=3)
    loader = torch.utils.data.DataLoader(dataset, 8, sampler=sampler, num_workers=2, collate_fn=list)
    before = set(multiprocessing.active_children())
    found = execute(only("wids/README.md#workers-processes-or-threads"), {}, wids=wids, loader=loader)["loader"]
    assert list(found) == list(loader_of(dataset, wids.DistributedChunkedSampler(dataset, seed=3)))
    assert not set(multiprocessing.active_children()) - before


def test_resume_anywhere(tmp_path):
    """The whole loop, with a checkpoint after each batch: stopped in mid-epoch, it goes on there."""
    dataset = wids.ShardListDataset(write_images(tmp_path), transformations=[])
    seen, resuming = [], f"{GUIDES}/resume.md#resume-a-run-in-mid-epoch"

    def train_step(batch):
        if len(seen) == 13:
            raise InterruptedError
        seen.append([sample["__index__"] for sample in batch])

    for resume in (False, True):
        names = {"os": os, "torch": torch, "wids": wids, "dataset": dataset, "resume": resume}
        replaced = {"step % 1000": "step % 1", "else 0, 10)": "else 0, 3)"}
        replaced |= {"batch_size=32": "batch_size=8, collate_fn=list", "num_workers=4": "num_workers=0"}
        if not resume:
            with pytest.raises(InterruptedError):
                execute(only(resuming), replaced, train_step=train_step, **names)
        else:
            seen.append([])  # the interruption is over
            execute(only(resuming), replaced, train_step=train_step, **names)
    indices = [index for batch in seen for index in batch]
    assert [sorted(indices[k : k + 80]) for k in (0, 80, 160)] == [list(range(80))] * 3


def write_changing(tmp_path, counts):
    """The index of shards of which each sample has a text that is in no other."""
    folder = tmp_path / "changing"
    folder.mkdir(exist_ok=True)
    return write_index(folder, counts)


def test_data_that_change(tmp_path):
    """The rest of the epoch, and what is new, each once."""
    before = wids.ShardListDataset(write_changing(tmp_path, (8, 8, 8, 8)), transformations=lambda s: s["__index__"])
    loader = wids.resumable(
        torch.utils.data.DataLoader(before, 8, sampler=wids.DistributedChunkedSampler(before), collate_fn=list)
    )
    batches = iter(loader)
    read = [index for _ in range(2) for index in next(batches)]
    os.rename(write_changing(tmp_path, (8, 8, 8, 8, 8)), "train-2.json")
    os.rename(write_changing(tmp_path, (8, 8, 8, 8)), "train-1.json")
    came = []
    replaced = {
        "batch_size=32": "batch_size=8, collate_fn=lambda some: list(zip(some))",
        "num_workers=4": "num_workers=0",
    }
    replaced |= {"for images, labels in": "for images in", "train_step(images, labels)": "train_step(images)"}
    replaced |= {'wids.ShardListDataset("': 'wids.ShardListDataset(base="changing", shards="'}
    names = {"torch": torch, "wids": wids, "make_sample": lambda sample: sample["__index__"]}
    checkpoint = {"loader": loader.state_dict()}
    execute(
        only(f"{GUIDES}/changed-data.md#data-that-change-in-mid-run"),
        replaced,
        train_step=lambda batch: came.extend(index for (index,) in batch),
        checkpoint=checkpoint,
        **names,
    )
    assert sorted(read + came) == list(range(40))


def test_appending_while_training(tmp_path):
    """Each epoch reads each sample of the shards that there are by then, once."""
    path = "train.json"
    os.rename(write_changing(tmp_path, (8, 8)), path)

    def open_newest():
        return wids.ShardListDataset(path, base="changing")

    def make_loader(dataset):
        sampler = wids.DistributedChunkedSampler(dataset)
        return wids.resumable(
            torch.utils.data.DataLoader(dataset, 8, sampler=sampler, collate_fn=lambda some: zip(*some, strict=True))
        )

    dataset, seen = open_newest().add_transform(lambda s: (s["__index__"], 0)), [[]]

    def train_step(indices, labels):
        seen[-1].extend(indices)

    def append(epoch):
        seen.append([])
        os.replace(write_changing(tmp_path, (8,) * (3 + epoch)), path)

    replaced = {"range(10)": "range(3)", "    newest = ": "    append(epoch)\n    newest = "}
    replaced |= {'ShardListDataset("train.json")': 'ShardListDataset("train.json", base="changing")'}
    execute(
        only(f"{GUIDES}/changed-data.md#appending-while-training"),
        replaced,
        wids=wids,
        append=append,
        train_step=train_step,
        make_loader=make_loader,
        make_sample=lambda s: (s["__index__"], 0),
        dataset=dataset,
        loader=make_loader(dataset),
    )
    assert [sorted(each) for each in seen[:3]] == [list(range(n)) for n in (16, 24, 32)]


@pytest.mark.filterwarnings("ignore:Detected an existing checkpoint")
def test_loops_with_fsdp(tmp_path):
    """A distributed checkpoint in mid-epoch, which the same loop goes on from."""
    dataset = wids.ShardListDataset(write_images(tmp_path), transformations=lambda sample: sample["__index__"])
    seen, limit = [], [1]

    def train_step(batch):
        seen.append(batch.tolist())

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for resume in (False, True):
            execute(
                only(f"{GUIDES}/resume.md#fsdp-and-torchtitan"),
                {"    train_step(batch)": "    train_step(batch)\n    if len(seen) in limit:\n        break"},
                wids=wids,
                torch=torch,
                dcp=dcp,
                dataset=dataset,
                resume=resume,
                train_step=train_step,
                seen=seen,
                limit=limit,
            )
    finally:
        torch.distributed.destroy_process_group()
    assert [len(batch) for batch in seen] == [32, 32, 16]
    assert sorted(index for batch in seen for index in batch) == list(range(80))


def test_exact_evaluation(tmp_path):
    """Each sample counts once."""
    write_images(tmp_path, samples=11, name="val.json")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        names = execute(
            only("wids/core/order/README.md#exact-evaluation"),
            {},
            wids=wids,
            torch=torch,
            make_sample=lambda sample: (torch.zeros(1), sample[".cls"]),
            predict=lambda images: torch.zeros(len(images), dtype=torch.int64),
        )
    finally:
        torch.distributed.destroy_process_group()
    assert names["counts"].tolist() == [22, 4]  # two shards of 11 labels 0 1 ... 9 0


def test_augmentation_that_repeats_exactly(tmp_path):
    """An epoch's pictures, some of them turned over, are the same again."""
    names = execute(
        only("wids/core/order/README.md#augmentation-that-repeats-exactly"),
        {"train.json": write_images(tmp_path)},
        wids=wids,
        random=random,
        make_sample=lambda sample: (torch.arange(2), sample["__index__"]),
    )
    dataset, sampler = names["dataset"], names["sampler"]
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append([(image.tolist(), label) for image, label in (dataset[index] for index in sampler)])
    assert {str(image) for image, _ in epochs[0]} == {"[0, 1]", "[1, 0]"}
    assert epochs[0] == epochs[2] != epochs[1]


def test_prefetching(tmp_path):
    """A sampler of one's own."""
    dataset = wids.ShardListDataset(write_images(tmp_path)).add_transform(lambda sample: sample["__index__"])
    names = execute(
        only("wids/core/cache/README.md#prefetching"),
        {"num_workers=4": "num_workers=0"},
        torch=torch,
        dataset=dataset,
        my_order=lambda epoch: [5, 70, 2, epoch],
        epoch=1,
    )
    assert [batch.tolist() for batch in names["loader"]] == [[5, 70, 2, 1]]


def test_credentials(tmp_path):
    """Each server gets its own."""
    write_images(tmp_path / "www")
    with testing.Server(tmp_path / "www", required_headers={"X-Key": "mine"}) as server:
        replaced = {"https://example.com": server.url}
        names = execute(
            only("wids/core/transport/README.md#credentials"), replaced, wids=wids, key="mine", other="theirs"
        )
        assert names["dataset"][0][".cls"] == 0


def test_pages_in_a_notebook():
    """A cell shows them in a frame, which answers."""
    write_index(".", (3,), name="train.json")
    replaced = {"wids.serve.start": "frame = wids.serve.start"}
    frame = execute(only("wids/tools/serve/README.md#in-a-notebook"), replaced)["frame"]
    with urllib.request.urlopen(frame.src, timeout=PATIENCE_SECONDS) as answer:
        assert b"<title>" in answer.read()


def test_server_for_tests(tmp_path):
    """Faults on demand, and counts."""
    write_images(tmp_path / "shards", shards=4)
    trained = []

    def train(url):
        trained.extend(sample[".cls"] for sample in wids.ShardListDataset(url, cache_dir=tmp_path / "cache"))

    execute(only("wids/README.md#testing-your-own-code"), {}, train=train)
    assert len(trained) == 160


@pytest.mark.parametrize(
    ("place", "skipped"),
    [
        (
            "wids/core/transport/README.md#how-to-add-a-transport",
            {"test_no_object", "test_no_permission", "test_half_of_it"},
        ),
        ("wids/testing/README.md#with-the-server", set()),
    ],
)
def test_the_suite_of_a_store(tmp_path, place, skipped):
    """As pytest runs what the README shows."""
    block = only(place)
    assert place.startswith("wids/testing") or len(block.text.splitlines()) <= 15
    (failed,), (left_out,) = (
        found.values()
        for found in run_suites(tmp_path, f"from tests.support.toy_stores import MineSource\n{block.text}")
    )
    assert failed == {}
    assert set(left_out) == skipped


def test_parts(tmp_path):
    """A view without some keys, divided and saved."""
    dataset = wids.ShardListDataset(write_images(tmp_path), transformations=[])
    gone = [dataset.keys[i] for i in (0, 3)]
    (tmp_path / "opted-out.txt").write_text("\n".join(gone))
    replaced = {"label <> 3 and bytes > 500": "bytes > 500"}
    found = execute(only(f"{GUIDES}/filter.md#filter-and-curate-train-on-a-part"), replaced, dataset=dataset, wids=wids)
    assert len(found["train"]) + len(found["test"]) == 80 - 2 > len(found["train"]) > len(found["test"])
    assert len(list(found["sampler"])) == len(wids.ShardListDataset("train-view.json")) == len(found["train"])


def test_groups(tmp_path):
    """None of the patients is in both parts; those without one are groups of their own."""
    write_images(tmp_path)
    patients = [f"p{k % 30}" for k in range(80)]
    dataset = wids.ShardListDataset("train.json", transformations=[])
    dataset = dataset.with_table({"index": list(range(80)), "patient": patients}, on="index")
    found = execute(only(f"{GUIDES}/filter.md#parts-without-common-groups"), {}, dataset=dataset)
    parts = dataset.split(0.9, 0.1, by="patient", seed=3)
    assert [len(found["train"]), len(found["val"])] == [len(part) for part in parts]
    assert not {*parts[0].read_column("patient")} & {*parts[1].read_column("patient")}


def test_alternatives(tmp_path):
    """A picture and its label, by the names of the program."""
    write_images(tmp_path)
    found = execute(only("wids/README.md#alternatives-and-names-of-fields"), {}, wids=wids)
    assert found["image"].size == (24, 16)
    assert isinstance(found["label"], int)


def test_writer():
    """A sample with a picture, a number, an object and an array."""
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "JPEG")
    names = {"wids": wids, "jpeg_bytes": picture.getvalue(), "array": np.arange(3)}
    execute(only("wids/tools/cli/README.md#packing"), {}, **names)
    (sample,) = wids.ShardListDataset("out/train.json")
    assert (sample["__key__"], sample[".cls"], sample[".json"]["caption"]) == ("000017", 3, "a street")


def test_index(tmp_path):
    """The JSON index that is shown loads, with its sub-dataset."""
    (block,) = (each for each in blocks("json") if each.readme == "wids/core/index/README.md")
    shown = json.loads(block.text)
    write_images(tmp_path, name=shown["datasets"][0]["source_url"])
    dataset = wids.ShardListDataset(write_json(tmp_path / "shown.json", {**shown, "base": str(tmp_path)}))
    assert len(dataset) == 1000 + 80


def test_columns(tmp_path):
    """Queries, joins, and columns in a sample."""
    made.make_columns(made.write_dataset(tmp_path, (5, 600)))
    names = execute(only("wids/columns/README.md#in-a-program"), {})
    assert names["wide"].tolist() == []
    assert [int(key[1:]) for key in names["best"].keys] == [g for g in range(412, 605) if g % 3]
    assert (names["sample"]["score"], names["sample"]["label"]) == (0.5, 0)
    assert names["table"].num_rows == 5


def test_new_fields(tmp_path, capsys):
    """A class with a model, a function, and a table."""
    members, picture = {}, io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "JPEG")
    for k in range(6):
        members |= {f"{k}.jpg": picture.getvalue(), f"{k}.txt": b"a small text"}
    write_tar(tmp_path / "train.tar", members)
    write_json(tmp_path / "train.json", {"wids_version": 1, "shardlist": [{"url": "train.tar", "nsamples": 6}]})
    place = f"{GUIDES}/fields.md#new-fields-embeddings-captions-scores"
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8))
    names = {"make_model": lambda: model, "prepare": lambda _: torch.ones(3, 2, 2)}
    settings = jobs.MapSettings(batch_size=4, fields=(".jpg",))
    jobs.map("train.json", execute(only(place), {}, **names)["Embed"], "embed", settings=settings)
    joined = execute(only(f"{GUIDES}/fields.md#train-with-them"), {}, wids=wids)["dataset"]
    assert (joined[5][".jpg"].size, joined[5][".clip.npy"].shape) == ((4, 4), (8,))
    execute(only(f"{GUIDES}/fields.md#in-a-program"), {})
    assert f"6 {{'.words.json': 6}} {tmp_path}/words/joined.json" in capsys.readouterr().out
    settings = jobs.MapSettings(columns=True)
    jobs.map(
        "train.json", lambda sample: {"brightness": 30 * int(sample["__key__"])}, "score.parquet", settings=settings
    )
    names = execute(only(f"{GUIDES}/fields.md#numbers-and-texts"), {}, wids=wids)
    assert list(names["bright"].keys) == ["4", "5"]


def test_jobs(tmp_path, capsys):
    """All of them, one after the other: what each writes is there."""
    os.rename(os.path.dirname(made.write_dataset(tmp_path / "d", (5, 25))), tmp_path / "shards")
    with testing.Server(tmp_path) as server:
        replaced = {
            "https://example.com": server.url,
            "/nvme/cache": str(tmp_path / "cache"),
            "samples=1000": "samples=4",
            "embed:Clip": "tests.support.mapped:count_batch",
        }
        names = execute(only("wids/jobs/README.md#in-a-program"), replaced)
    assert "2 30 {}" in capsys.readouterr().out
    assert names["report"].wrong == []
    assert {"train.tables", "train.columns.parquet", "cache", "packed", "clip"} <= set(os.listdir(tmp_path))
    packed = wids.ShardListDataset("packed/train.json", transformations=[])
    assert {int(sample[".cls"].getvalue()) for sample in packed} <= {0, 1, 2}
