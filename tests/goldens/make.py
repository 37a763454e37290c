"""Writes the golden files of a version: ``python -m tests.goldens.make 1.1``; see the README beside this file."""

import hashlib
import io
import json
import os
import random
import shutil
import sys
import tarfile
import tempfile
from itertools import islice
from pathlib import Path

import fsspec
from torch.utils.data import DataLoader, Subset

import wids
from tests.support.goldens import GOLDENS
from wids.columns.create import create_columns
from wids.columns.spec import parse_spec
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import convert_index
from wids.jobs.index_tables import create_tables

# Shard -> keys of its samples. One has a hard link, and one a key that returns after another.
KEYS = {"s0": ["a", "b", "ключ"], "s1": ["c", "d", "e", "f"], "s2": ["g", "h", "g"]}
LINKED = "e"
CACHED = "memory://wids-goldens/"
ENDLESS = 40  # indices that are stored of an order without an end


# --- shards


def fields_of(shard, row):
    """The members of a sample: extension -> bytes."""
    key = KEYS[shard][row]
    fields = {".cls": b"%d" % (row * 3 + int(shard[1])), ".txt": f"{shard} {row} {key}".encode()}
    if row % 2:
        fields[".bin"] = bytes(range(16 * row, 16 * row + 40))
    if key == LINKED:
        fields[".copy"] = fields[".txt"]
    return fields


def samples():
    """All samples, in order: (shard, row, key, extension -> bytes)."""
    return [(shard, row, key, fields_of(shard, row)) for shard, keys in KEYS.items() for row, key in enumerate(keys)]


def write_tars(directory):
    """The shards."""
    for shard in KEYS:
        with tarfile.open(directory / f"{shard}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for other, _, key, fields in samples():
                for extension, data in fields.items() if other == shard else ():
                    info = tarfile.TarInfo(key + extension)
                    if extension == ".copy":
                        info.type, info.linkname = tarfile.LNKTYPE, key + ".txt"
                        archive.addfile(info)
                        continue
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


def write_samples(path):
    """The content of the shards, as text: bytes by their hexadecimal digits."""
    rows = [
        {"shard": shard, "row": row, "key": key, "fields": {name: data.hex() for name, data in fields.items()}}
        for shard, row, key, fields in samples()
    ]
    write_json(path, rows)


def write_data(directory):
    """Shards, and each kind of file that is made of them."""
    directory.mkdir()
    write_tars(directory)
    os.chdir(directory)  # so that no file names the directory
    create_index(["s0.tar", "s1.tar", "s2.tar"], "train.json", settings=IndexSettings(has_tables=True))
    create_tables("train.json")
    convert_index("train.json", "train.widsx")
    create_columns("train.json", spec=parse_spec(fields=[".cls=label"], texts=[".txt=caption"]))
    dataset = wids.ShardListDataset("train.json")
    dataset.where("label >= 2").save("view.json")
    for path in directory.glob("*.state"):
        path.unlink()


def write_cache(directory, data):
    """A cache directory with the shards, as downloads leave it."""
    store = fsspec.filesystem("memory")
    for shard in KEYS:
        store.pipe(f"{CACHED}{shard}.tar", (data / f"{shard}.tar").read_bytes())
    index = json.loads((data / "train.json").read_text())
    rows = [{**row, "url": CACHED + row["url"]} for row in index["shardlist"]]
    dataset = wids.ShardListDataset(rows, cache_dir=str(directory), transformations="raw")
    assert len([dataset[i] for i in range(len(dataset))]) == len(samples())
    dataset.close()
    store.rm(CACHED, recursive=True)
    shutil.rmtree(directory / ".wids" / "indexes")  # notes of what was not there just now
    write_json(directory.with_suffix(".json"), rows)


# --- states


COUNTS = {"s0.tar": 5, "s1.tar": 9, "s2.tar": 14, "s3.tar": 6}
SOURCES = {"web": ([5, 9], 0.5), "books": ([8, 3], 0.3), "code": ([7], 0.2)}
LENGTHS = [1 + 7 * i % 23 for i in range(sum(COUNTS.values()))]
BUCKETS = ["wide", "tall", "wide", "square"] * 9


def rows_of(counts, prefix=""):
    """Shards that are nowhere."""
    return [
        {
            "url": f"https://example.com/{prefix}{name}",
            "nsamples": count,
            "filesize": 1000 * count,
            "crc32": hashlib.md5(name.encode()).hexdigest()[:8],
        }
        for name, count in counts.items()
    ]


def make_dataset(name):
    """A dataset of a case, of which no sample is read."""
    options = {"prefetch": False, "cache_dir": os.path.join(tempfile.gettempdir(), "wids-goldens")}
    if name in ("index", "named"):
        parts = {
            part: (rows_of({f"{part}-{k}.tar": count for k, count in enumerate(counts)}), weight)
            for part, (counts, weight) in SOURCES.items()
        }
        if name == "named":
            return wids.mix({part: (wids.ShardListDataset(rows, **options), w) for part, (rows, w) in parts.items()})
        datasets = [{"name": part, "weight": w, "shardlist": rows} for part, (rows, w) in parts.items()]
        return wids.ShardListDataset(io.StringIO(json.dumps({"wids_version": 1, "datasets": datasets})), **options)
    dataset = wids.ShardListDataset(rows_of(COUNTS), **options)
    if name == "view":
        return dataset.select([i for i in range(len(dataset)) if i % 5])
    if name == "subset":
        order = list(range(len(dataset)))
        random.Random(0).shuffle(order)
        return Subset(dataset, order[:25])
    return dataset


def make_sampler(case, *, world=1, rank=0):
    """The sampler, or batch sampler, or loader of a case, on a rank."""
    dataset, options = make_dataset(case["dataset"]), dict(case["options"])
    kind = getattr(wids, case["sampler"])
    if case["sampler"] in ("DistributedChunkedSampler", "MixtureBatchSampler"):
        options |= {"num_replicas": world, "rank": rank}
    if case["sampler"] == "MixtureBatchSampler":
        options["batch_size"] = options.pop("global_batch_size") // world
    sampler = kind(dataset, **options)
    if case["batches"] is not None:
        sampler = wids.BucketBatchSampler(sampler, **case["batches"])
    if case["loader"] is None:
        return sampler
    is_plain = "batch_size" in case["loader"]
    how = {"sampler": sampler, **case["loader"]} if is_plain else {"batch_sampler": sampler}
    return wids.resumable(DataLoader(range(len(dataset)), collate_fn=list, **how))


def rest_of(case, state, *, world):
    """What each rank reads after a state: the rest of the epoch."""
    found = []
    for rank in range(world):
        sampler = make_sampler(case, world=world, rank=rank)
        sampler.load_state_dict(state)
        found.append(plain(islice(sampler, ENDLESS)))
    return found


def plain(indices):
    """Indices, or batches of them, as ints."""
    return [plain(index) if isinstance(index, list) else int(index) for index in indices]


def case(name, sampler, options=(), *, dataset="plain", batches=None, loader=None, saved=(2, 0, 5), worlds=(1, 2, 3)):
    """A case; ``saved``: ranks of the run that saved the state, its epoch, and what each rank has drawn of it."""
    given = {"name": name, "sampler": sampler, "options": dict(options), "dataset": dataset}
    return {**given, "batches": batches, "loader": loader, "saved": saved, "worlds": worlds}


def cases():
    """All kinds of samplers, and settings that their states carry."""
    distributed, small = "DistributedChunkedSampler", {"chunksize": 4, "window": 2, "seed": 3}
    tokens = {"lengths": LENGTHS, "max_tokens": 60}
    shapes = {"buckets": BUCKETS[: len(LENGTHS)], "batch_size": {"wide": 2, "tall": 3, "square": 4}}
    mixed = {"lengths": LENGTHS[:32], "max_tokens": 60}
    alone = {"saved": (1, 1, 7), "worlds": (1,)}
    return [
        case("chunked", "ChunkedSampler", small, **alone),
        case("chunked, a range", "ChunkedSampler", {**small, "num_samples": (3, 30)}, **alone),
        case("chunked, a length", "ChunkedSampler", {**small, "dslength_per_replica": 50}, **alone),
        case("shards", "ShardListSampler", {"window": 2, "seed": 5}, **alone),
        case("sharded", "ShardedSampler", {"seed": 5}, **alone),
        case("distributed", distributed, small),
        case("in order", distributed, {**small, "shuffle": False}, saved=(3, 0, 4)),
        case("one window", distributed, {**small, "window": 1}, saved=(3, 2, 4)),
        case("dealt, dropped", distributed, {**small, "reshuffle": "epoch", "tail": "drop"}, saved=(3, 4, 5)),
        case("masked", distributed, {**small, "tail": "mask"}, saved=(4, 1, 3)),
        case("lanes", distributed, {**small, "lanes": 4}),
        case("at an end", distributed, small, saved=(2, 3, 17)),
        case("nominal epochs", distributed, {**small, "epoch_size": 20}, saved=(2, 3, 4)),
        case("two passes", distributed, {**small, "epochs": 2}, saved=(2, 1, 20)),
        case("endless", distributed, {**small, "epochs": None}, saved=(2, 0, 30)),
        case("weights", distributed, {**small, "weights": [1 + i % 3 for i in range(34)]}),
        case("weights, a size", distributed, {**small, "weights": [i % 4 for i in range(34)], "epoch_size": 50}),
        case("sample seeds", distributed, {**small, "sample_seeds": True}),
        case("a view", distributed, small, dataset="view"),
        case("a subset", distributed, small, dataset="subset"),
        case("mixture", distributed, small, dataset="index"),
        case("mixture, reweighted", distributed, {**small, "epoch_size": 24}, dataset="index", saved=(2, 2, 5)),
        case("mixture of datasets", distributed, {**small, "epochs": None}, dataset="named", saved=(1, 0, 50)),
        case("mixture, chunked", "ChunkedSampler", small, dataset="named", **alone),
        case("by source", "MixtureBatchSampler", {**small, "global_batch_size": 6}, dataset="index", saved=(2, 0, 3)),
        case("mixed", "MixtureBatchSampler", {**small, "batches": "mixed", "global_batch_size": 6}, dataset="named"),
        case("lengths", distributed, small, batches=tokens, saved=(2, 1, 3)),
        case("lengths, summed", distributed, small, batches={**tokens, "cost": "sum", "block": 9}, saved=(1, 0, 2)),
        case("shapes", distributed, small, batches=shapes, saved=(2, 0, 3)),
        case("lengths of a mixture", distributed, small, dataset="index", batches=mixed, saved=(2, 0, 3)),
        case("loader", distributed, small, loader={"batch_size": 3}, saved=(2, 1, 2)),
        case("loader, endless", distributed, {**small, "epochs": None}, loader={"batch_size": 4}, saved=(1, 0, 12)),
        case("loader of lengths", distributed, small, batches=tokens, loader={}, saved=(2, 0, 3)),
        case("loader by source", "MixtureBatchSampler", {**small, "global_batch_size": 6}, dataset="index", loader={}),
    ]


def save(given):
    """(the state of a case, what was read of its epoch before it and after it) of each rank of the run that saved."""
    world, epoch, count = given["saved"]
    states, parts = [], []
    for rank in range(world):
        sampler = make_sampler(given, world=world, rank=rank)
        if epoch:
            sampler.set_epoch(epoch)
        iterator = iter(sampler)
        drawn = plain(islice(iterator, count))
        states.append(sampler.state_dict())
        parts.append((drawn, plain(islice(iterator, ENDLESS))))
    if given["name"] == "mixture, reweighted":
        sampler.reweight({"web": 0.2, "books": 0.2, "code": 0.6})
        states = [sampler.state_dict()]
    assert all(state == states[0] for state in states), given["name"]
    return json.loads(json.dumps(states[0])), parts


def write_states(path):
    """A state of each case, and what each rank reads after it, which is what the run that saved it went on with."""
    found = []
    for given in cases():
        state, parts = save(given)
        rest = {world: rest_of(given, state, world=world) for world in given["worlds"]}
        went_on = [after for _, after in parts]
        if all(went_on) and given["saved"][0] in rest and given["name"] != "mixture, reweighted":
            assert rest[given["saved"][0]] == went_on, given["name"]
        assert all(all(ranks) for ranks in rest.values()), given["name"]
        kept = {key: value for key, value in given.items() if key not in ("saved", "worlds")}
        found.append({**kept, "state": state, "rest": rest})
    write_json(path, found)


def write_json(path, value):
    """Write a list as JSON, a line for each item."""
    path.write_text("[\n" + ",\n".join(map(json.dumps, value)) + "\n]\n", "utf-8")


def main(version):
    """Write the files of a version."""
    home = GOLDENS / version
    made = {name: home / name for name in ("samples.json", "data", "cache", "cache.json", "states.json")}
    there = [str(path) for path in made.values() if path.exists()]
    if there:
        raise SystemExit(f"golden files never change, and these exist: {', '.join(there)}")
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        new = Path(directory)
        write_samples(new / "samples.json")
        write_data(new / "data")
        write_cache(new / "cache", new / "data")
        write_states(new / "states.json")
        for name, path in made.items():
            shutil.move(new / name, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
