"""Packing the member tables of an index: where they come from, what is kept of a run that ended, what is written."""

import json
import os
from pathlib import Path

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.cache_shards import pack
from tests.support.servers import status
from tests.support.shards import write_json
from tests.support.tars import lying_table, publish, table_of
from wids.core.files import atomic
from wids.core.files.identity import Identity
from wids.core.tables import pack_format
from wids.core.tables.table import parse_table
from wids.errors import (
    CountMismatchError,
    JobError,
    OutputError,
    OutputExistsError,
    ShardNotFoundError,
    SpecError,
    TableError,
)
from wids.jobs import index_tables
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import convert_index, merge_indexes, rebase_index, split_index, update_index
from wids.jobs.index_tables import TablesSettings, create_tables
from wids.jobs.runner import RunOptions

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS, SIZE = 5, 1000
TAGS = "abcd"


@pytest.fixture
def home(tmp_path):
    """A directory with four shards and their index."""
    for tag in TAGS:
        shards.write(str(tmp_path / "d" / f"{tag}.tar"), shards.shard(tag, ROWS, SIZE))
    create_index([str(tmp_path / "d")], str(tmp_path / "d" / "train.json"))
    return tmp_path / "d"


@pytest.fixture
def web(server):
    """A server of four shards, without tables."""
    server.has_ranges = True
    for tag in TAGS:
        server.add(f"/{tag}.tar", shards.shard(tag, ROWS, SIZE))
    return server


@pytest.fixture
def remote(web, tmp_path):
    """The path of a local index of the server's shards."""
    listed = [
        {"url": f"{web.url}/{tag}.tar", "nsamples": ROWS, "filesize": len(web.files[f"/{tag}.tar"])} for tag in TAGS
    ]
    return write_json(tmp_path / "train.json", {"wids_version": 1, "own": 7, "shardlist": listed})


def tables_in(path):
    """Name of each shard that is looked for -> its table in a pack, or None."""
    data = Path(path).read_bytes()
    directory = pack_format.unpack(data, url=str(path), size=len(data))

    def find(url):
        place = directory.find(url)
        return None if place is None else parse_table(data[place[0] : sum(place)], shard=url)

    return find


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def left(directory):
    """The names of files that a run leaves for the next one."""
    return sorted(name for name in os.listdir(directory) if name.endswith((".journal", ".spool", ".part")))


def test_of_local_shards(home):
    """Scanned where there are no tables beside them, else taken from there; the index names the pack, and keeps all."""
    before = read(home / "train.json")
    outcome = create_tables(str(home / "train.json"))
    assert (outcome.shards, outcome.tables, outcome.scanned, outcome.beside) == (4, 4, 4, 0)
    assert outcome.output == str(home / "train.tables")
    assert outcome.bytes == os.path.getsize(home / "train.tables")
    assert read(home / "train.json") == {**before, "member_tables": "train.tables"}
    find = tables_in(home / "train.tables")
    for tag in TAGS:
        table = find(str(home / f"{tag}.tar"))
        assert list(table.keys()) == [f"{tag}{row:04d}" for row in range(ROWS)]
        assert find(f"{tag}.tar") is not None
    assert left(home) == []
    create_index([str(home)], str(home / "train.json"), settings=IndexSettings(has_tables=True))
    again = create_tables(str(home / "train.json"))
    assert (again.scanned, again.beside) == (0, 4)
    data = (home / "train.tables").read_bytes()
    assert all((home / f"{tag}.tar.widx").read_bytes() in data for tag in TAGS)


def test_of_remote_shards(web, remote, tmp_path):
    """From beside them, or from their headers; a cold machine then needs nothing else."""
    publish(web, "/a.tar")
    publish(web, "/b.tar", shards.shard("b", 3 * ROWS, SIZE))  # of another version
    outcome = create_tables(remote)
    assert (outcome.tables, outcome.beside, outcome.scanned) == (4, 1, 3)
    assert outcome.requests >= 3
    find = tables_in(tmp_path / "train.tables")
    assert [find(f"{web.url}/{tag}.tar").nsamples for tag in TAGS] == [ROWS] * 4
    before = len(web.requests)
    dataset = wids.ShardListDataset(remote, access="range", transformations="raw", cache_dir=tmp_path / "cache")
    assert [dataset[k * ROWS][".txt"] for k in range(4)] == [shards.text(tag, 0) for tag in TAGS]
    assert not any(path.endswith((".widx", ".tables")) for path in web.requests[before:])
    assert dataset.stats().table_requests == 0


def test_sizes_that_the_index_does_not_know(web, remote):
    """The store is asked, so that no table of another version is taken."""
    index = read(remote)
    for entry in index["shardlist"]:
        del entry["filesize"]
    write_json(remote, index)
    publish(web, "/a.tar")
    publish(web, "/b.tar", shards.shard("b", 3 * ROWS, SIZE))
    outcome = create_tables(remote)
    assert (outcome.beside, outcome.scanned) == (1, 3)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_the_bytes_do_not_depend_on_what_runs_it(home, engine):
    """Nor on how many work at a time."""
    create_tables(str(home / "train.json"), str(home / "one.tables"), engine=RunOptions(jobs=1))
    create_tables(str(home / "train.json"), str(home / "two.tables"), engine=RunOptions(engine=engine, jobs=3))
    assert (home / "one.tables").read_bytes() == (home / "two.tables").read_bytes()
    assert read(home / "train.json")["member_tables"] == "two.tables"


def test_published_together(home, web, tmp_path):
    """Names are relative to the pack's directory: index, pack and shards may be put anywhere together."""
    create_tables(str(home / "train.json"))
    for name in ("train.json", "train.tables"):
        web.add(f"/x/{name}", (home / name).read_bytes())
    for tag in TAGS:
        web.add(f"/x/{tag}.tar", (home / f"{tag}.tar").read_bytes())
    dataset = wids.ShardListDataset(f"{web.url}/x/train.json", access="range", transformations="raw")
    assert [dataset[k * ROWS][".txt"] for k in range(4)] == [shards.text(tag, 0) for tag in TAGS]
    assert not any(path.endswith(".widx") for path in web.requests)
    assert sum(path.endswith(".tables") for path in web.requests) == 5


def test_a_run_that_failed_goes_on(home, monkeypatch):
    """Tables that were found are not made again; those of shards that have changed since are."""
    bad = (home / "c.tar").read_bytes()
    os.unlink(home / "c.tar")
    with pytest.raises(ShardNotFoundError):
        create_tables(str(home / "train.json"), engine=RunOptions(jobs=1))
    assert left(home) == ["train.tables.journal", "train.tables.spool"]
    assert "member_tables" not in read(home / "train.json")
    (home / "c.tar").write_bytes(bad)
    os.utime(home / "a.tar", (1, 1))
    seen = []
    real = index_tables.find_table
    monkeypatch.setattr(index_tables, "find_table", lambda task, context: seen.append(task.shard.url) or real(task))
    outcome = create_tables(str(home / "train.json"), engine=RunOptions(jobs=1))
    assert (outcome.known, outcome.tables) == (1, 4)
    assert [os.path.basename(url) for url in seen] == ["a.tar", "c.tar", "d.tar"]
    assert left(home) == []
    find = tables_in(home / "train.tables")
    assert all(find(str(home / f"{tag}.tar")).key(0) == f"{tag}0000" for tag in TAGS)


def test_a_run_that_was_killed_before_the_index_named_the_pack(home, monkeypatch):
    """The next one does what is left, and asks for no leave to replace the pack."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index_tables, "_name_pack", die)
        with pytest.raises(KeyboardInterrupt):
            create_tables(str(home / "train.json"))
    assert (home / "train.tables").exists()
    outcome = create_tables(str(home / "train.json"))
    assert (outcome.known, outcome.tables, left(home)) == (4, 4, [])
    assert read(home / "train.json")["member_tables"] == "train.tables"


def test_a_shard_that_is_listed_twice(home):
    """By whatever names: it has one table."""
    index = read(home / "train.json")
    index["shardlist"] += [{"url": url, "nsamples": ROWS} for url in ("a.tar", "../d/b.tar", f"file://{home}/c.tar")]
    outcome = create_tables(write_json(home / "train.json", index))
    assert (outcome.shards, outcome.tables) == (4, 4)


def test_what_a_killed_run_left_half_written(home):
    """It is deleted, unless another process is writing it: it is as large as the pack."""
    (home / "train.tables.1-0123abcd.part").write_bytes(b"x")
    (home / "mine.tables.1-0123abcd.part").write_bytes(b"x")
    with atomic.part_file(str(home / "train.tables")) as (part, _):
        create_tables(str(home / "train.json"))
        assert left(home) == sorted(["mine.tables.1-0123abcd.part", os.path.basename(part)])


def test_a_pack_whose_name_looks_like_a_chain(home):
    """The index holds it with ./ before it, and knows it as its own."""
    for _ in range(2):
        create_tables(str(home / "train.json"), str(home / "a::b.tables"))
    assert read(home / "train.json")["member_tables"] == "./a::b.tables"


def test_tables_that_changed_places_in_the_spool(home):
    """A disk that lost some of it may have another shard's there, which is of the same length."""
    data = (home / "d.tar").read_bytes()
    os.unlink(home / "d.tar")
    with pytest.raises(ShardNotFoundError):
        create_tables(str(home / "train.json"), engine=RunOptions(jobs=1))
    (home / "d.tar").write_bytes(data)
    journal = home / "train.tables.journal"
    records = [json.loads(line) for line in journal.read_text().splitlines() if line]
    assert records[0]["length"] == records[1]["length"]
    records[0]["offset"], records[1]["offset"] = records[1]["offset"], records[0]["offset"]
    records[2]["offset"] = -1
    journal.write_text("\n".join(map(json.dumps, records)))
    assert create_tables(str(home / "train.json")).known == 0
    find = tables_in(home / "train.tables")
    assert [find(str(home / f"{tag}.tar")).key(0) for tag in TAGS] == [f"{tag}0000" for tag in TAGS]


@pytest.mark.parametrize("key", ["md5sum", "crc32"])
def test_a_shard_that_the_index_has_another_checksum_of(home, key):
    """What a run found of it before counts no more: a remote shard may have the same size."""
    data = (home / "d.tar").read_bytes()
    os.unlink(home / "d.tar")
    with pytest.raises(ShardNotFoundError):
        create_tables(str(home / "train.json"), engine=RunOptions(jobs=1))
    (home / "d.tar").write_bytes(data)
    index = read(home / "train.json")
    index["shardlist"][0][key] = {"md5sum": "0" * 32, "crc32": "0badcafe"}[key]
    assert create_tables(write_json(home / "train.json", index)).known == 2


@pytest.mark.parametrize("damage", ["spool", "journal"])
def test_what_was_kept_is_checked(home, damage):
    """A spool or a journal that is damaged costs the work, and no more."""
    data = (home / "d.tar").read_bytes()
    os.unlink(home / "d.tar")
    with pytest.raises(ShardNotFoundError):
        create_tables(str(home / "train.json"), engine=RunOptions(jobs=1))
    path = home / f"train.tables.{damage}"
    path.write_bytes(b"x" * len(path.read_bytes()) if damage == "spool" else b'{"offset": -5}\n{}\nx')
    (home / "d.tar").write_bytes(data)
    outcome = create_tables(str(home / "train.json"))
    assert (outcome.known, outcome.tables, left(home)) == (0, 4, [])
    assert tables_in(home / "train.tables")(str(home / "b.tar")).nsamples == ROWS


def test_shards_that_fail(home):
    """The first one ends it, unless they are to be left out: then they are listed, in the index's order."""
    os.unlink(home / "c.tar")
    (home / "a.tar").write_bytes(b"x" * 2048)
    outcome = create_tables(str(home / "train.json"), settings=TablesSettings(is_skipping=True))
    assert (outcome.tables, outcome.shards) == (2, 4)
    assert [os.path.basename(url) for url in outcome.failed] == ["a.tar", "c.tar"]
    find = tables_in(home / "train.tables")
    assert [find(str(home / f"{tag}.tar")) is None for tag in TAGS] == [True, False, True, False]
    for tag in TAGS:
        (home / f"{tag}.tar").unlink(missing_ok=True)
    with pytest.raises(JobError, match="none of 4 shards has a member table"):
        create_tables(str(home / "train.json"), settings=TablesSettings(is_skipping=True))


def test_shards_that_are_not_what_the_index_says(home, remote, web):
    """Their table would be of no use: no reader would take it."""
    (home / "a.tar").write_bytes(shards.shard("a", 4 * ROWS, SIZE))
    with pytest.raises(TableError, match="the table of the shard is of another version of the shard"):
        create_tables(str(home / "train.json"))
    web.files["/a.tar"] = pack([(f"a{k}.{kind}", b"") for k in range(2 * ROWS) for kind in ("txt", "bin")]).ljust(
        len(web.files["/b.tar"]), b"\0"
    )[: len(web.files["/b.tar"])]
    index = read(remote)
    index["shardlist"][0]["filesize"] = len(web.files["/a.tar"])
    with pytest.raises(CountMismatchError, match=f"holds {2 * ROWS} samples, and the index says {ROWS}"):
        create_tables(write_json(remote, index))


def test_tables_in_another_order_are_not_packed(home, remote, web, caplog):
    """A table beside its shard whose rows were permuted is named, and the shard's headers are read."""
    order = [1, 0, *range(2, ROWS)]
    data = (home / "a.tar").read_bytes()
    lying = lying_table(data, order)
    mtime_ns = os.stat(home / "a.tar").st_mtime_ns
    (home / "a.tar.widx").write_bytes(lying.with_identity(Identity(size=len(data), mtime_ns=mtime_ns)).to_bytes())
    web.add("/a.tar.widx", lying.to_bytes())
    wanted = list(table_of(data).keys())
    for index, place, url in ((home / "train.json", home / "train.tables", str(home / "a.tar")), (remote, None, None)):
        outcome = create_tables(str(index))
        assert (outcome.tables, outcome.scanned) == (4, 4)
        find = tables_in(place or outcome.output)
        assert list(find(url or f"{web.url}/a.tar").keys()) == wanted
        assert "another order than the archive" in caplog.text
        caplog.clear()


def test_places_that_are_refused(home, web):
    """Nothing is written over by mistake."""
    index = str(home / "train.json")
    named = read(index)
    (home / "mine.tables").write_bytes(b"mine")
    (home / "mine.tables.journal").write_bytes(b'{"of": "another run"}')
    with pytest.raises(OutputExistsError, match="exists, and is no pack of this index") as caught:
        create_tables(index, str(home / "mine.tables"))
    assert caught.value.hint == "overwrite"
    assert (home / "mine.tables").read_bytes() == b"mine"
    os.unlink(home / "mine.tables.journal")
    other = write_json(home / "other.json", {**read(index), "shardlist": read(index)["shardlist"][:2]})
    create_tables(index, str(home / "whole.tables"))
    with pytest.raises(OutputExistsError, match="exists, and is no pack of this index"):  # it has others' tables, too
        create_tables(other, str(home / "whole.tables"))
    (home / "train.json").write_text(json.dumps(named))
    for bad, words in [
        (index, r"ends in \.tables"),
        (f"{web.url}/x.tables", "written to a local file"),
        (str(home / "no" / "x.tables"), "make it first"),
    ]:
        with pytest.raises(OutputError, match=words):
            create_tables(index, bad)
    with pytest.raises(OutputError, match="written to a local file"):
        create_tables(f"{web.url}/train.json")
    convert_index(index, str(home / "train.widsx"))
    with pytest.raises(SpecError, match="is a compiled index"):
        create_tables(str(home / "train.widsx"))
    assert left(home) == []
    assert "member_tables" not in read(index)
    create_tables(index)
    create_tables(index)  # its own pack is replaced without a question


def test_shards_that_can_have_none(web, remote):
    """A signed URL is for one object, a program has no positions: they are not in a pack."""
    index = read(remote)
    index["shardlist"][0]["url"] += "?signature=1"
    index["shardlist"][1]["url"] = "pipe:cat x.tar"
    index["shardlist"].append(index["shardlist"][2])
    outcome = create_tables(write_json(remote, index))
    assert (outcome.shards, outcome.tables, outcome.failed) == (2, 2, {})


def test_a_server_that_fails(web, remote, no_waits):
    """The error is that of the shard."""
    web.faults["/b.tar"] = [status(403)] * 20
    outcome = create_tables(remote, settings=TablesSettings(is_skipping=True))
    assert (outcome.tables, list(outcome.failed)) == (3, [f"{web.url}/b.tar"])


def test_indexes_made_of_an_index_with_a_pack(home, tmp_path):
    """They name it as it is seen from where they lie; a merge names those of all."""
    create_tables(str(home / "train.json"))
    (tmp_path / "e").mkdir()
    shards.write(str(tmp_path / "e" / "x.tar"), shards.shard("x", ROWS, SIZE))
    create_index([str(tmp_path / "e" / "x.tar")], str(tmp_path / "e" / "more.json"))
    create_tables(str(tmp_path / "e" / "more.json"))
    whole = str(tmp_path / "whole.json")
    merge_indexes([str(home / "train.json"), str(tmp_path / "e" / "more.json")], whole)
    assert read(whole)["member_tables"] == ["d/train.tables", "e/more.tables"]
    merge_indexes([str(home / "train.json")], str(tmp_path / "e" / "one.json"))
    assert read(tmp_path / "e" / "one.json")["member_tables"] == str(home / "train.tables")
    split_index(str(home / "train.json"), [str(tmp_path / "p{}.json")], parts=lambda _: [range(1), range(1, 4)])
    assert read(tmp_path / "p1.json")["member_tables"] == "d/train.tables"
    rebase_index(str(home / "train.json"), "gs://b/x", output=str(tmp_path / "r.json"))
    assert read(tmp_path / "r.json")["member_tables"] == "d/train.tables"
    os.unlink(home / "b.tar")
    update_index(str(home / "train.json"), drop=["b.tar"])
    assert read(home / "train.json")["member_tables"] == "train.tables"
    convert_index(whole, str(tmp_path / "whole.widsx"))
    dataset = wids.ShardListDataset(str(tmp_path / "whole.widsx"))
    assert dataset.spec["member_tables"] == ["d/train.tables", "e/more.tables"]
    assert dataset._collection.shards[0].packs == (str(home / "train.tables"), str(tmp_path / "e" / "more.tables"))


def test_an_index_made_again(home, tmp_path):
    """It names the pack as before, as after an update; one of other shards does not."""
    index = str(home / "train.json")
    create_tables(index)
    shards.write(str(home / "e.tar"), shards.shard("e", ROWS, SIZE))
    create_index([str(home)], index, name="new")
    found = read(index)
    assert (found["name"], found["member_tables"], list(found)[-1]) == ("new", "train.tables", "shardlist")
    for _ in range(2):
        create_index([str(home)], index, base="gs://b/x")
        assert read(index)["member_tables"] == "train.tables"
    write_json(index, {**found, "shardlist": 7})
    create_index([str(home)], index)
    assert "member_tables" not in read(index)
    create_tables(index, settings=TablesSettings(overwrite=True))
    shards.write(str(tmp_path / "x.tar"), shards.shard("x", ROWS, SIZE))
    create_index([str(tmp_path / "x.tar")], index, overwrite=True)
    assert "member_tables" not in read(index)


def test_sub_datasets_are_packed_too(home, tmp_path):
    """All shards of the index, wherever they are listed; the index itself stays as it is written."""
    index = {"wids_version": 1, "datasets": [{"source_url": "d/train.json"}]}
    place = write_json(tmp_path / "whole.json", index)
    assert create_tables(place).tables == 4
    assert read(place) == {**index, "member_tables": "whole.tables"}
    assert tables_in(tmp_path / "whole.tables")(str(home / "a.tar")).to_bytes() == table_of_file(home / "a.tar")


def table_of_file(path):
    """The table of a local shard as it is saved."""
    table = table_of(path.read_bytes())
    facts = os.stat(path)
    identity = type(table.identity)(size=facts.st_size, mtime_ns=facts.st_mtime_ns)
    return table.with_identity(identity).to_bytes()
