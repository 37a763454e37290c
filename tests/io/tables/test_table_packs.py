"""Packs of member tables: a cold machine asks once for the directory, and once for each table that it needs."""

import contextlib
import json
import os
import pickle
import threading
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards as shards
from tests.support.children import call_in_child
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.containers import Parts, mangled
from tests.support.servers import instead, status
from tests.support.tars import lying_table, pack_of, publish, publish_pack, table_of
from wids.core.cache.cleanup import keep_most_recent_files
from wids.core.index import compiled_files
from wids.core.tables import pack_format, table_packs
from wids.events import TableRead
from wids.jobs.index_edit import convert_index

pytestmark = pytest.mark.usefixtures("own_cache")

ROWS, SIZE = 20, 3000
TAGS = "abcd"
PACK = "/train.tables"


@pytest.fixture
def web(server):
    """A server of four shards, the pack of their tables, and the index that names it."""
    server.has_ranges = True
    for tag in TAGS:
        server.add(f"/{tag}.tar", shards.shard(tag, ROWS, SIZE))
    pack(server)
    server.add("/train.json", index_of(server))
    return server


def pack(server, tags=TAGS, data=None):
    """Publish the pack of some shards; ``data``: of other bytes."""
    return publish_pack(server, PACK, {f"/{tag}.tar": data for tag in tags})


def index_of(server, **header):
    """The index of the shards."""
    listed = [{"url": f"{tag}.tar", "nsamples": ROWS, "filesize": len(server.files[f"/{tag}.tar"])} for tag in TAGS]
    return json.dumps({"wids_version": 1, "member_tables": "train.tables", **header, "shardlist": listed}).encode()


@pytest.fixture
def load(web, tmp_path):
    """A function: the dataset of the index, by ranges unless said otherwise."""

    def dataset(place=None, **options):
        options = {"cache_dir": tmp_path / "cache", "transformations": "raw", "access": "range", **options}
        return wids.ShardListDataset(place or f"{web.url}/train.json", **options)

    return dataset


def check_samples(dataset, rows=(3,)):
    """Read some samples of each shard."""
    for k, tag in enumerate(TAGS):
        for row in rows:
            assert dataset[k * ROWS + row][".txt"] == shards.text(tag, row)


def asked(web, path=PACK):
    """How often something was asked for."""
    return sum(target.partition("?")[0] == path for target in web.requests)


def beside(web):
    """How many tables beside shards were asked for."""
    return sum(target.endswith(".widx") for target in web.requests)


def kept(cache):
    """The paths of directories of packs in a cache directory."""
    return sorted(Path(cache, ".wids", "indexes").glob("*" + pack_format.SUFFIX))


@pytest.mark.parametrize("access", ["range", "auto"])
def test_a_cold_machine(web, load, tmp_path, access):
    """One request for the directory, one for each table, none for tables beside shards, none for headers."""
    events = []
    dataset = load(access=access, hooks=[events.append])
    check_samples(dataset)
    assert (asked(web), beside(web)) == (1 + len(TAGS), 0)
    reads = [event for event in events if isinstance(event, TableRead)]
    assert [event.requests for event in reads] == [1] * 5
    assert {event.url.removeprefix(web.url) for event in reads} == {PACK, *(f"/{tag}.tar" for tag in TAGS)}
    stats = dataset.stats()
    assert stats.table_requests == 5
    assert stats.table_bytes == sum(event.size_bytes for event in reads)
    assert len(kept(tmp_path / "cache")) == 1


def test_others_map_the_directory(web, load, tmp_path):
    """A second dataset, a copy, another process: none asks for the directory again."""
    first = load()
    check_samples(first)
    before = asked(web)
    check_samples(load())
    check_samples(pickle.loads(pickle.dumps(first)))
    call_in_child(read_all, f"{web.url}/train.json", str(tmp_path / "cache"))
    assert asked(web) == before + 3 * len(TAGS)
    assert beside(web) == 0


def read_all(place, cache):
    """What another process does."""
    check_samples(wids.ShardListDataset(place, cache_dir=cache, access="range", transformations="raw"))


def test_two_processes_at_once(web, load, tmp_path):
    """One downloads the directory, and the other one waits for it."""
    gate = web.gate()
    web.faults[PACK] = [gate]
    results = []

    def read():
        results.append(call_in_child(read_all, f"{web.url}/train.json", str(tmp_path / "cache"), method="forkserver"))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.entered.wait(PATIENCE_SECONDS)
    gate.go.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert results == [None, None]
    assert asked(web) == 1 + 2 * len(TAGS)


def test_many_threads(web, load):
    """One of them asks for the directory."""
    dataset = load()
    found = dataset.__getitems__([k * ROWS for k in range(len(TAGS))] * 3)
    assert [sample[".txt"] for sample in found] == [shards.text(tag, 0) for tag in TAGS] * 3
    assert asked(web) == 1 + len(TAGS)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers(web, load, method):
    """They map what the process has downloaded."""
    dataset = load()
    dataset[0]
    loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=list, multiprocessing_context=method)
    keys = [sample["__key__"] for batch in loader for sample in batch]
    assert len(keys) == len(set(keys)) == len(TAGS) * ROWS
    assert sum(lo == 0 for path, lo, _ in web.ranges if path == PACK) == 1
    assert beside(web) == 0


def test_without_a_cache_directory(web, load, tmp_path):
    """The directory is in memory, once; so it is where the cache directory cannot be written."""
    (tmp_path / "full" / ".wids").mkdir(parents=True)
    (tmp_path / "full" / ".wids" / "indexes").write_bytes(b"")
    for n, options in enumerate(
        (
            {"cache_dir": None, "localname": lambda url: str(tmp_path / "none" / Path(url).name)},
            {"cache_dir": tmp_path / "full"},
        )
    ):
        check_samples(load(**options), rows=(0, 5))
        assert asked(web) == (n + 1) * (1 + len(TAGS))
    assert beside(web) == 0


def test_a_large_directory(web, load, set_limits):
    """What the first request does not bring, others do."""
    set_limits(table_packs.TablePacks, first_bytes=64)
    dataset = load()
    check_samples(dataset)
    assert asked(web) == 3 + len(TAGS)  # the beginning, the rest of the header, the rest of the directory
    assert dataset.stats().table_requests == 3 + len(TAGS)


def test_a_compiled_index(web, load, tmp_path, set_limits):
    """It names the pack too: compiled in the cache, or written by `convert` and published."""
    set_limits(compiled_files, min_shards=2)
    dataset = load()
    assert dataset._collection.shards.origin is not None
    check_samples(dataset)
    check_samples(pickle.loads(pickle.dumps(dataset)))
    convert_index(f"{web.url}/train.json", str(tmp_path / "train.widsx"))
    check_samples(load(str(tmp_path / "train.widsx")))
    assert beside(web) == 0
    (tmp_path / "d").mkdir()
    for tag in TAGS:
        (tmp_path / "d" / f"{tag}.tar").write_bytes(web.files[f"/{tag}.tar"])
    (tmp_path / "d" / "train.json").write_bytes(index_of(web))
    convert_index(str(tmp_path / "d" / "train.json"), str(tmp_path / "d" / "train.widsx"))
    web.add("/train.widsx", (tmp_path / "d" / "train.widsx").read_bytes())
    published = load(f"{web.url}/train.widsx")
    assert published._collection.shards[0].packs == (web.url + PACK,)
    check_samples(published)
    assert beside(web) == 0
    other = load(f"{web.url}/train.widsx", options={"member_tables": "other.tables"})
    assert other._collection.shards[3].packs == (web.url + "/other.tables",)
    assert pickle.loads(pickle.dumps(other))._collection.shards[3].packs == (web.url + "/other.tables",)


def test_a_pack_that_was_replaced(web, load, tmp_path, caplog):
    """Its directory is downloaded anew, once; another process that has the old one finds the new one there."""
    first, second = load(lru_size=1), load(lru_size=1)
    assert first[0][".txt"] == second[0][".txt"] == b"a0"
    publish_pack(web, PACK, dict.fromkeys(f"/{tag}.tar" for tag in reversed(TAGS)))
    before = asked(web)
    check_samples(first)
    # The table of "a" is in memory; of the others, one was asked for in vain.
    assert asked(web) - before == 1 + 1 + 3
    check_samples(second)
    assert asked(web) - before == 5 + 1 + 3
    assert beside(web) == 0
    assert caplog.records == []
    assert len(kept(tmp_path / "cache")) == 1


def test_a_pack_that_changes_all_the_time(web, load, caplog):
    """Its directory is not asked for again and again."""
    for tag in TAGS:
        publish(web, f"/{tag}.tar")

    def change(reply, body):
        reply.end(reply.begin(body, ETag=f'"{len(web.requests)}"'))

    web.faults[PACK] = [change] * 50
    check_samples(load())
    assert asked(web) == 4
    assert beside(web) == len(TAGS)
    (record,) = caplog.records
    assert "member tables beside the shards are read instead (said once)" in record.getMessage()


@pytest.mark.parametrize("tag", ['"\u00e9"', '"\udcff"', "W/x"])
def test_odd_entity_tags(web, load, tag):
    """They are kept as they came, be they text or not, and hold for the next process."""

    def answer(reply, body):
        reply.end(reply.begin(body, ETag=tag.encode("latin-1", "surrogateescape").decode("latin-1")))

    web.faults[PACK] = [answer] * 20
    check_samples(load())
    check_samples(load())
    assert (asked(web), beside(web)) == (1 + 2 * len(TAGS), 0)


def remove(web):
    """There is no pack."""
    del web.files[PACK]


def refuse(web):
    """The server does not hand it out."""
    web.faults[PACK] = [status(403)] * 50


def cut(web):
    """Half of it is there."""
    web.add(PACK, web.files[PACK][: len(web.files[PACK]) // 2])


def damage(web):
    """A byte of its directory is another one."""
    data = bytearray(web.files[PACK])
    data[60] ^= 1
    web.add(PACK, bytes(data))


def mislead(web):
    """Its header claims more tables than memory could hold, under a right checksum."""
    parts = Parts(web.files[PACK])
    for row in parts.head["sections"]:
        row[2] = 1 << 61
    web.add(PACK, parts.sealed(counts=False))


def mangle(web):
    """A byte of its header is no UTF-8, under a right checksum."""
    web.add(PACK, mangled(web.files[PACK]))


def mangle_tables(web):
    """So it is in each of its tables."""
    tables = {f"{web.url}/{tag}.tar": mangled(table_of(web.files[f"/{tag}.tar"]).to_bytes()) for tag in TAGS}
    web.add(PACK, pack_of(tables, web.url + PACK))


def send_a_page(web):
    """A login page comes in its place."""
    web.faults[PACK] = [instead(b"<html>log in</html>", Content_Type="text/html")] * 50


def forget_ranges(web):
    """The server gives it as a whole only."""
    web.faults[PACK] = [instead(web.files[PACK], ETag='"1"')] * 50


def forget_versions(web):
    """The server does not say which version it gives; samples by range are read all the same."""
    web.validators = ()


def damage_tables(web):
    """The directory is right, and the tables are not."""
    end = pack_format.directory_end(web.files[PACK], url=PACK)
    web.add(PACK, web.files[PACK][:end] + bytes(len(web.files[PACK]) - end))


def outdate(web):
    """Its tables are of shards of another size."""
    pack(web, data=shards.shard("a", 2 * ROWS, SIZE))


def lack(web):
    """It has the tables of other shards."""
    tables = {f"{web.url}/x/{tag}.tar": table_of(web.files[f"/{tag}.tar"]).to_bytes() for tag in TAGS}
    web.add(PACK, pack_of(tables, web.url + PACK))


def lie(web):
    """Its tables have the right samples in another order."""
    order = [1, 0, *range(2, ROWS)]
    tables = {f"{web.url}/{tag}.tar": lying_table(web.files[f"/{tag}.tar"], order).to_bytes() for tag in TAGS}
    web.add(PACK, pack_of(tables, web.url + PACK))


FAULTS = [
    *(remove, refuse, cut, damage, mislead, mangle, mangle_tables, send_a_page),
    *(forget_ranges, forget_versions, damage_tables, outdate, lie, lack),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("access", ["range", "auto"])
def test_a_pack_that_cannot_be_used(web, load, caplog, no_waits, fault, access):
    """The tables beside the shards are read; the reader gets a warning, and no error."""
    for tag in TAGS:
        publish(web, f"/{tag}.tar")
    fault(web)
    check_samples(load(access=access), rows=(0, 7))
    assert beside(web) == len(TAGS)
    (record,) = caplog.records
    assert "train.tables" in record.getMessage()
    assert "member tables beside the shards are read instead (said once)" in record.getMessage()


@pytest.mark.parametrize("fault", FAULTS)
def test_and_no_tables_beside_shards(web, load, no_waits, fault):
    """The headers are read."""
    fault(web)
    check_samples(load())


def test_one_shard_is_lacking(web, load):
    """The others' tables come from the pack, its own from beside it."""
    pack(web, tags="abd")
    publish(web, "/c.tar")
    check_samples(load())
    assert (asked(web), beside(web)) == (1 + 3, 1)


def test_after_an_outage_the_pack_is_used_again(web, load, monkeypatch, no_waits):
    """Not at once: each shard would wait for it."""
    dataset = load()
    web.faults[PACK] = [status(503)] * 50
    assert dataset[0][".txt"] == b"a0"
    failed = asked(web)
    assert dataset[ROWS][".txt"] == b"b0"
    assert asked(web) == failed
    web.faults[PACK] = []
    real = time.monotonic
    monkeypatch.setattr(table_packs.time, "monotonic", lambda: real() + table_packs.TablePacks.limits.again_seconds)
    assert dataset[2 * ROWS][".txt"] == b"c0"
    assert asked(web) == failed + 2


def test_a_server_that_hangs(web, load, monkeypatch, set_limits, caplog):
    """The directory is waited for once, and not again every minute."""
    set_limits(table_packs.TablePacks, directory_seconds=0.2, again_ratio=1e6)
    gate = web.gate()
    web.faults[PACK] = [gate]
    dataset = load()
    assert dataset[0][".txt"] == b"a0"
    gate.go.set()
    real = time.monotonic
    monkeypatch.setattr(
        table_packs.time, "monotonic", lambda: real() + 10 * table_packs.TablePacks.limits.again_seconds
    )
    check_samples(dataset)
    assert asked(web) == 1
    (record,) = caplog.records
    assert "did not come in" in record.getMessage()


def test_processes_wait_at_the_same_time(web, load, monkeypatch):
    """Who has waited for another process's download that long does not begin one of its own."""
    real, passed = time.monotonic, []
    monkeypatch.setattr(table_packs.time, "monotonic", lambda: real() + sum(passed))

    @contextlib.contextmanager
    def alone(*_):
        passed.append(table_packs.TablePacks.limits.directory_seconds)
        yield

    monkeypatch.setattr(table_packs.SharedFiles, "alone", alone)
    assert load()[0][".txt"] == b"a0"
    assert (passed, asked(web)) == ([table_packs.TablePacks.limits.directory_seconds], 0)


def test_what_the_cache_has_is_checked(web, load, tmp_path):
    """A damaged file, another pack's, another user's: the directory is downloaded again."""
    check_samples(load())
    (path,) = kept(tmp_path / "cache")
    good = path.read_bytes()
    assert os.stat(path).st_mode & 0o777 == 0o600
    damaged = b"", good[:50], good[:60] + b"#" + good[61:], good[:-5], good[:-5] + b"\xff" + good[-4:], mangled(good)
    for bad in (*damaged, good.replace(web.url.encode(), b"x")):
        path.write_bytes(bad)
        before = asked(web)
        check_samples(load())
        assert asked(web) == before + 1 + len(TAGS)
        assert path.read_bytes() == good


def test_cleaning(web, load, tmp_path):
    """It is the cache's own metadata: it does not count, no cleaner deletes it, and it may go at any time."""
    dataset = load()
    check_samples(dataset)
    (path,) = kept(tmp_path / "cache")
    assert keep_most_recent_files(tmp_path / "cache", maxsize=0) == []
    os.utime(path, (1, 1))
    publish_pack(web, "/other.tables", {"/a.tar": None})
    web.add("/other.json", index_of(web, member_tables="other.tables"))
    assert load(f"{web.url}/other.json")[0][".txt"] == b"a0"
    assert path not in kept(tmp_path / "cache")  # not opened for a month when another one was written
    assert len(kept(tmp_path / "cache")) == 1
    check_samples(dataset, rows=(4,))


def test_a_local_pack_of_remote_shards(web, load, tmp_path):
    """It is read where it lies; its shards are named by their whole URLs."""
    place = str(tmp_path / "train.tables")
    tables = {f"{web.url}/{tag}.tar": table_of(web.files[f"/{tag}.tar"]).to_bytes() for tag in TAGS}
    Path(place).write_bytes(pack_of(tables, place))
    (tmp_path / "train.json").write_bytes(index_of(web, base=web.url))
    dataset = load(str(tmp_path / "train.json"))
    check_samples(dataset)
    assert (asked(web), beside(web), dataset.stats().table_requests) == (0, 0, 0)
    assert kept(tmp_path / "cache") == []
    os.replace(shards.write(str(tmp_path / "new"), pack_of(dict(reversed(tables.items())), place)), place)
    check_samples(load(str(tmp_path / "train.json")))
    Path(place).write_bytes(b"")
    check_samples(load(str(tmp_path / "train.json")))
    assert beside(web) == 3  # none has one there


def read_from_cut_pack(index, pack):
    """What a process does whose local pack is written over in place."""
    dataset = wids.ShardListDataset(index, access="range", transformations="raw")
    assert dataset[0][".txt"] == b"a0"
    os.truncate(pack, 0)
    check_samples(dataset)


def test_a_local_pack_that_is_cut(web, tmp_path):
    """The process lives, and reads on."""
    place = str(tmp_path / "train.tables")
    tables = {f"{web.url}/{tag}.tar": table_of(web.files[f"/{tag}.tar"]).to_bytes() for tag in TAGS}
    Path(place).write_bytes(pack_of(tables, place))
    (tmp_path / "train.json").write_bytes(index_of(web, base=web.url))
    call_in_child(read_from_cut_pack, str(tmp_path / "train.json"), place)


def test_several_packs(web, load, caplog):
    """Each shard's table is looked for in all of them, as after a merge."""
    publish_pack(web, "/one.tables", {"/a.tar": None, "/b.tar": None})
    publish_pack(web, "/two.tables", {"/c.tar": None, "/d.tar": None})
    web.add("/both.json", index_of(web, member_tables=["one.tables", "two.tables"]))
    check_samples(load(f"{web.url}/both.json"))
    assert (asked(web, "/one.tables"), asked(web, "/two.tables"), beside(web)) == (3, 3, 0)
    assert caplog.records == []


@pytest.mark.parametrize("access", ["range", "fetch"])
def test_of_several_packs_the_nearest_is_asked_first(web, load, tmp_path, access):
    """After a merge of many indexes there are many: the directories of the others are not asked for."""
    others = [f"/{k}/train.tables" for k in range(3)]
    for place in others:
        publish_pack(web, place, {"/a.tar": None})
    named = [web.url + place for place in (*others, PACK)]
    (tmp_path / "train.json").write_bytes(index_of(web, member_tables=named, base=web.url))
    check_samples(load(str(tmp_path / "train.json"), access=access))
    assert asked(web) >= 1
    assert [asked(web, place) for place in others] == [0, 0, 0]


@pytest.mark.parametrize("named", ["train.tables?signature=1", "pipe:cat train.tables"])
def test_packs_that_are_not_used(web, load, tmp_path, named):
    """A signature is for one request of one program; a program's output has no positions."""
    for tag in TAGS:
        publish(web, f"/{tag}.tar")
    (tmp_path / "train.json").write_bytes(index_of(web, member_tables=named, base=web.url))
    check_samples(load(str(tmp_path / "train.json")))
    assert (asked(web), beside(web)) == (0, len(TAGS))


def test_lists_and_subsets(web, load):
    """A subset keeps the packs of its index; a list of dicts has those that options name; a spec names its own."""
    dataset = load()
    dataset.shards = dataset.shards[1:3]
    assert dataset[0][".txt"] == b"b0"
    listed = wids.ShardListDataset(
        list(dataset.shards), options={"member_tables": web.url + PACK}, access="range", transformations="raw"
    )
    assert listed[ROWS][".txt"] == b"c0"
    assert beside(web) == 0
    listed.spec = {**listed.spec, "member_tables": web.url + "/other.tables"}
    assert listed._collection.shards[0].packs == (web.url + "/other.tables",)
    listed.spec = {"shardlist": list(listed.shards)}
    assert listed._collection.shards[0].packs == ()


def test_the_tables_of_a_dataset_with_its_own_rule(web, load):
    """A pack holds tables by the standard rule: others are made from headers."""
    dataset = load(key_rule="last-dot")
    assert dataset[0][".txt"] == b"a0"
    assert asked(web) == 0


def test_a_table_that_does_not_come(web, load, monkeypatch, caplog, no_waits):
    """It is read from beside its shard, or made; the others are read from the pack."""
    dataset = load()
    assert dataset[0][".txt"] == b"a0"
    publish(web, "/b.tar")
    web.faults[PACK] = [status(503)] * 3
    real = table_packs.TablePacks.read
    monkeypatch.setattr(
        table_packs.TablePacks, "read", lambda *args, **options: real(*args, **{**options, "seconds": 0})
    )
    assert dataset[ROWS][".txt"] == b"b0"
    assert beside(web) == 1
    web.faults[PACK] = []
    assert dataset[2 * ROWS][".txt"] == b"c0"
    assert beside(web) == 1
    assert len(caplog.records) == 1
