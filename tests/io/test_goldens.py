"""Files and states that earlier versions wrote are read, whole; those of a newer one are read, or refused by name."""

import copy
import json
import os
import shutil

import msgspec
import pytest

import wids
from tests.goldens.make import CACHED, make_sampler, rest_of
from tests.support.containers import Parts
from tests.support.goldens import GOLDENS, VERSIONS, read_golden
from wids.columns.file import METADATA_KEY, open_table
from wids.columns.packages import import_arrow, import_parquet
from wids.core.index import compiled, view_file
from wids.core.tables import pack_format
from wids.core.tables.table import parse_table
from wids.errors import ColumnsError, SpecError, StateError, TableError
from wids.testing import Server

pytestmark = pytest.mark.usefixtures("own_cache")

SHARDS = ("s0.tar", "s1.tar", "s2.tar")
CASES = [(version, case) for version in VERSIONS for case in read_golden("states.json", version)]
NAMES = [f"{version}: {case['name']}" for version, case in CASES]
TABLES = [f"data/{shard}.widx" for shard in SHARDS]


@pytest.fixture(params=VERSIONS)
def home(request):
    """The folder of a version."""
    return GOLDENS / request.param


@pytest.fixture
def expected(home):
    """What the shards hold: (shard, row, key, fields as bytes) of each sample."""
    rows = json.loads((home / "samples.json").read_text("utf-8"))
    return [
        (row["shard"], row["row"], row["key"], {name: bytes.fromhex(data) for name, data in row["fields"].items()})
        for row in rows
    ]


def read(place, **options):
    """The samples of a dataset in the form of `expected`."""
    dataset = wids.ShardListDataset(place, transformations="raw", **options)
    try:
        found = [dataset[i] for i in range(len(dataset))]
        return [content_of(sample) for sample in found], dataset.stats()
    finally:
        dataset.close()


def content_of(sample):
    """What a sample holds."""
    shard = sample["__shard__"].rpartition("/")[2].rpartition("-")[2].removesuffix(".tar")
    fields = {name: value for name, value in sample.items() if name.startswith(".")}
    return shard, sample["__shardindex__"], sample["__key__"], fields


def content_by(table, data, shard):
    """The content of a shard by a member table alone."""
    return [
        (shard, row, table.key(row), {name: data[at : at + size] for name, at, size in table.members(row)})
        for row in range(len(table))
    ]


def test_member_tables(home, expected):
    """Each `.widx` finds all members of its shard, and no others."""
    found = []
    for shard in SHARDS:
        table = parse_table((home / "data" / f"{shard}.widx").read_bytes(), shard=shard)
        found += content_by(table, (home / "data" / shard).read_bytes(), shard.removesuffix(".tar"))
    assert found == expected


@pytest.mark.parametrize("is_packed", [True, False], ids=["pack", "beside"])
def test_published_tables(home, expected, tmp_path, is_packed):
    """Samples are read by ranges through the pack, or the tables beside the shards, each requested once."""
    index = json.loads((home / "data" / "train.json").read_text())
    tables = {"member_tables": "train.tables"} if is_packed else {}
    assert index.pop("member_tables") == "train.tables"
    with Server(str(home / "data"), has_ranges=True) as server:
        server.add("/now.json", json.dumps({**index, **tables}).encode())
        options = {"cache_dir": str(tmp_path), "access": "range"}
        found, stats = read(f"{server.url}/now.json", **options)
        asked = sorted(path for path in server.requests if path.endswith((".widx", ".tables")))
    assert found == expected
    assert asked == (["/train.tables"] * 4 if is_packed else [f"/{shard}.widx" for shard in SHARDS])
    assert stats.fetches == 0


def test_indexes(home, expected):
    """The JSON index and the compiled one list the same shards; both are opened by their names."""
    json_list, compiled_list = (
        [dict(row) for row in wids.ShardListDataset(str(home / "data" / name)).shards]
        for name in ("train.json", "train.widsx")
    )
    assert json_list == compiled_list
    assert [row["nsamples"] for row in json_list] == [3, 4, 3]
    for name in ("train.json", "train.widsx"):
        assert read(str(home / "data" / name))[0] == expected


def test_view(home, expected):
    """A saved view has the samples that it was made of."""
    assert read(str(home / "data" / "view.json"))[0] == [row for row in expected if int(row[3][".cls"]) >= 2]


def columns_of(expected):
    """The table of columns of the shards."""
    sizes = {"cls": ".cls", "txt": ".txt", "bin": ".bin", "copy": ".copy"}
    for index, (shard, row, key, fields) in enumerate(expected):
        yield {
            "index": index,
            "shard": int(shard[1]),
            "row": row,
            "key": key,
            "bytes": sum(map(len, fields.values())),
            "label": int(fields[".cls"]),
            "caption": fields[".txt"].decode(),
            **{f"{name}_bytes": len(fields[end]) if end in fields else None for name, end in sizes.items()},
        }


def test_columns(home, expected, tmp_path):
    """Every value of the table, and a filter over it: the table is that of the index beside it."""
    table = open_table(str(home / "data" / "train.columns.parquet"))
    rows = table.file.read().to_pylist()
    table.close()
    assert rows == list(columns_of(expected))
    dataset = wids.ShardListDataset(str(home / "data" / "train.json"), transformations="raw")
    found = dataset.where("label >= 2 AND caption LIKE 's1%'")
    assert [content_of(found[i]) for i in range(len(found))] == [
        row for row in expected if row[0] == "s1" and int(row[3][".cls"]) >= 2
    ]


def test_cache(home, expected, tmp_path):
    """Shards that an earlier version downloaded are used: their store is gone, and no file changes."""
    cache, rows = tmp_path / "cache", json.loads((home / "cache.json").read_text())
    shutil.copytree(home / "cache", cache)
    for path in cache.glob("*.tar"):  # git does not keep times, by which a table knows its shard
        table = parse_table((cache / ".wids" / "tables" / f"{path.name}.widx").read_bytes(), shard=path.name)
        os.utime(path, ns=(table.identity.mtime_ns, table.identity.mtime_ns))
    before = {path: path.read_bytes() for path in cache.rglob("*.tar*")}
    assert len(before) == 2 * len(SHARDS)
    assert all(row["url"].startswith(CACHED) for row in rows)
    found, stats = read(rows, cache_dir=str(cache))
    assert found == expected
    assert (stats.fetches, stats.rejections, stats.hits) == (0, 0, len(SHARDS))
    assert {path: path.read_bytes() for path in cache.rglob("*.tar*")} == before


# --- states


@pytest.mark.parametrize(("version", "case"), CASES, ids=NAMES)
def test_states(version, case):
    """The rest of the epoch is what the version that saved the state would have read, on any number of ranks."""
    del version
    for world, rest in case["rest"].items():
        assert rest_of(case, case["state"], world=int(world)) == rest


@pytest.mark.parametrize(("version", "case"), CASES, ids=NAMES)
def test_states_have_the_same_keys(version, case):
    """`torch.distributed.checkpoint` loads a checkpoint only if it has every key of the loading program's state."""
    del version
    now = make_sampler(case, world=2 if "2" in case["rest"] else 1).state_dict()
    assert list(now) == list(case["state"])
    assert type(now["order"]) is type(case["state"]["order"])


@pytest.mark.parametrize(("version", "case"), CASES, ids=NAMES)
def test_states_of_another_version(version, case):
    """Keys that are not known are passed over, as is a missing name of the writer; settings that are not, are named."""
    del version
    world = next(iter(case["rest"]))
    state = {**case["state"], "wids": "1.7.0", "later": {"a": 1}}
    assert rest_of(case, state, world=int(world)) == case["rest"][world]
    assert rest_of(case, {k: v for k, v in state.items() if k != "wids"}, world=int(world)) == case["rest"][world]
    order = json.loads(state["order"]) if isinstance(state["order"], str) else copy.deepcopy(state["order"])
    inner = order.get("rule", order)
    inner["later"] = 5
    writer = rf"wids 1\.7\.0 wrote the state, and this is wids {wids.__version__}"
    sampler = make_sampler(case, world=int(world))
    with pytest.raises(StateError, match=rf"later: 5 there, nothing here.*{writer}"):
        sampler.load_state_dict({**state, "order": order})
    with pytest.raises(StateError, match=rf"the state's version is 99 and this wids reads version .*{writer}"):
        sampler.load_state_dict({**state, "version": 99})


# --- files of a newer version


def open_widx(data):
    """The content of a member table."""
    table = parse_table(data, shard="s.tar")
    return [(key, table.members(row)) for row, key in enumerate(table.keys())]


def open_widsx(data):
    """The shards of a compiled index."""
    found = compiled.unpack(data, file_url="/d/train.widsx", home=None, is_whole=True).shards
    return [msgspec.to_builtins(found[k]) for k in range(len(found))]


def open_pack(data):
    """The tables of a pack."""
    directory = pack_format.unpack(data, url="/d/train.tables")
    places = [directory.find(f"/d/{shard}") for shard in SHARDS]
    return [open_widx(data[at : at + size]) for at, size in places]


def open_rows(data):
    """The rows of a view, and those at the place where they are mapped."""
    ends, rows, offset = view_file.unpack_rows(data, counts=[3, 4, 3], file_url="/d/view.rows")
    mapped = data[offset : offset + ends.nbytes + rows.nbytes]
    assert mapped == ends.astype("<i8").tobytes() + rows.astype(f"<u{rows.itemsize}").tobytes()
    return ends.tolist(), rows.tolist()


FILES = {**dict.fromkeys(TABLES, open_widx), "data/train.widsx": open_widsx, "data/train.tables": open_pack}


@pytest.mark.parametrize("name", [*FILES, "rows"])
def test_files_of_another_version(home, name):
    """A fact and a section that are not known are passed over, and another version of a kind is named."""
    path = next((home / "data").glob("*.rows")) if name == "rows" else home / name
    open_file, data = FILES.get(name, open_rows), path.read_bytes()
    parts = Parts(data)
    parts.facts["later"] = {"a": [1]}
    parts.head["sections"].append(["later", "u4", 0])
    parts.columns["later"] = [7, 8, 9]
    newer = parts.sealed()
    assert newer != data
    assert open_file(newer) == open_file(data)
    parts.version += 1
    with pytest.raises(
        (TableError, SpecError), match=f"has version {parts.version}, and this wids reads version {parts.version - 1}"
    ):
        open_file(parts.sealed())


@pytest.mark.parametrize("name", ["train.json", "view.json"])
def test_indexes_of_another_version(home, expected, tmp_path, name):
    """Keys that are not known are passed over, and another version is named."""
    shutil.copytree(home / "data", tmp_path / "data")
    path = tmp_path / "data" / name
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "later": {"a": 1}}))
    assert read(str(path))[0] == read(str(home / "data" / name))[0] != []
    path.write_text(json.dumps({**index, "wids_version": 2}))
    with pytest.raises(SpecError, match="wids_version is 2; this wids reads version 1"):
        read(str(path))


def test_columns_of_another_version(home, tmp_path):
    """Facts that are not known are passed over, and another version is named."""
    table = import_parquet().read_table(str(home / "data" / "train.columns.parquet"))
    assert import_arrow().types.is_int64(table.schema.field("index").type)
    facts = json.loads(table.schema.metadata[METADATA_KEY])
    for more in ({"later": 1}, {"version": facts["version"] + 1}):
        metadata = {**table.schema.metadata, METADATA_KEY: json.dumps({**facts, **more}).encode()}
        path = str(tmp_path / "train.columns.parquet")
        import_parquet().write_table(table.replace_schema_metadata(metadata), path)
        if "later" in more:
            open_table(path).close()
            continue
        with pytest.raises(ColumnsError, match="it is of version 2, and this wids reads version 1"):
            open_table(path)
