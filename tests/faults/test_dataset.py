"""The dataset under faults: hostile archives and tables, threads, forks, kills; each broke a promise once, or tried."""

import io
import json
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import aiohttp
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards, tars
from tests.support.children import PATIENCE_SECONDS, call_in_child, child, receive
from tests.support.servers import Server, bomb, endless, redirect, shard_requests, status, whole
from tests.support.shards import write_shards
from wids import errors
from wids.codecs.decode import SampleDecoder
from wids.collection.shard_collection import load_shards
from wids.columns import file
from wids.files import atomic
from wids.index import loading
from wids.index.discovery import find_shards
from wids.transport import download, urls
from wids.transport.urls import cache_name


def run_script(text):
    """Run a program in a fresh interpreter, which must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


# --- forks while another thread is at it


@pytest.mark.e2e
def test_a_fork_while_the_temporary_directory_is_looked_for_leaves_no_lock_held():
    """The standard library looks for it under a lock; a child that was forked meanwhile waited for that for ever."""
    run_script("""
        import os, tempfile, threading, time
        from wids.files import atomic
        inside = threading.Event()
        look = tempfile._get_default_tempdir
        def slowly():
            inside.set()
            time.sleep(0.3)  # what makes the fork below fall in here, unless it waits
            return look()
        tempfile._get_default_tempdir = slowly
        thread = threading.Thread(target=atomic.private_dir)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            import signal
            signal.alarm(20)
            atomic.private_dir()
            os._exit(0)
        thread.join()
        raise SystemExit(os.waitpid(pid, 0)[1])
    """)


@pytest.mark.e2e
def test_opening_a_first_shard_imports_nothing_late():
    """A module that is imported at the first use is imported in a thread, some day, while another one forks."""
    run_script("""
        import sys, tempfile, os
        import wids
        from tests.support import cache_shards
        with tempfile.TemporaryDirectory() as directory:
            path = cache_shards.write(os.path.join(directory, "s.tar"), cache_shards.shard("a"))
            wids.ShardListDataset
            before = set(sys.modules)
            dataset = wids.ShardListDataset([(path, 3)], transformations=[])
            dataset[0], dataset.__getitems__([1, 2])
            late = sorted(name for name in set(sys.modules) - before if not name.startswith("encodings"))
            assert not late, late
    """)


@pytest.mark.parametrize(("field", "module"), [(".png", "PIL.Image"), (".mp", "msgspec.msgpack")])
@pytest.mark.e2e
def test_a_fork_while_a_decoder_is_imported_leaves_no_lock_held(field, module):
    """A thread that decodes its first image imports Pillow; a child that was forked meanwhile waited for ever."""
    run_script(f"""
        import importlib.abc, os, sys, threading, time
        from wids.codecs.decode import SampleDecoder
        inside = threading.Event()
        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == {module!r}:
                    inside.set()
                    time.sleep(0.3)  # what makes the fork below fall in here, unless it waits
        sys.meta_path.insert(0, Slow())
        def decode():
            try:
                SampleDecoder()({{{field!r}: b"damaged"}})
            except ValueError:
                pass
        thread = threading.Thread(target=decode)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            import signal
            signal.alarm(20)
            decode()
            os._exit(0)
        thread.join()
        raise SystemExit(os.waitpid(pid, 0)[1])
    """)


def check_samples(dataset, seed, count):
    """Read samples of shards a, b, c (200 each) at random, one by one and in batches; False where one is wrong."""
    rng = random.Random(seed)
    for _ in range(count):
        indices = [rng.randrange(600) for _ in range(8)]
        for index, sample in zip(indices[1:], dataset.__getitems__(indices[1:]), strict=True):
            if sample[".txt"].read() != cache_shards.text("abc"[index // 200], index % 200):
                return False
        if dataset[indices[0]][".txt"].read() != cache_shards.text("abc"[indices[0] // 200], indices[0] % 200):
            return False
    return True


def read_and_fork(connection, shards, cache_dir, seed, use_mmap):
    """Read in threads and in a child of this process; send whether all was right."""
    dataset = wids.ShardListDataset(
        shards, cache_dir=cache_dir, transformations=[], use_mmap=use_mmap, lru_size=1 + seed % 3
    )
    dataset._has_warned = True
    wrong = []
    threads = [
        threading.Thread(target=lambda k=k: check_samples(dataset, seed + k, 10) or wrong.append(k)) for k in range(3)
    ]
    for thread in threads:
        thread.start()
    is_right = call_in_child(check_samples, dataset, seed, 10)
    for thread in threads:
        thread.join()
    connection.send(is_right and not wrong)


@pytest.mark.e2e
def test_processes_killed_at_random_while_they_fetch_leave_nothing_wrong(server, tmp_path):
    """Threads, forks and SIGKILL at any moment: the survivor ends, reads right, and the cache holds what was served."""
    blobs = {server.add(f"/{tag}.tar", data): data for tag in "abc" if (data := cache_shards.shard(tag, 200, 4000))}
    shards = [(url, 200) for url in blobs]
    download.read_bytes(next(iter(blobs)))  # imports here, so that the children are in the middle of their work
    rng = random.Random(5)
    for number in range(20):
        cache_dir = str(tmp_path / f"cache{number // 2}")
        with (
            child(read_and_fork, shards, cache_dir, number, number % 2 == 1) as (victim, _),
            child(read_and_fork, shards, cache_dir, number + 100, number % 2 == 0) as (_, answer),
        ):
            time.sleep(rng.random() * 0.2)
            os.kill(victim.pid, signal.SIGKILL)
            assert receive(answer)
        for url, data in blobs.items():
            path = Path(cache_dir, cache_name(url))
            assert not path.exists() or path.read_bytes() == data


def test_closing_and_pickling_while_others_read_does_no_harm(tmp_path):
    """Threads read while another closes the dataset, copies it and changes its capacity; nobody gets a wrong sample."""
    shards = []
    for tag in "abc":
        path = cache_shards.write(str(tmp_path / f"{tag}.tar"), cache_shards.shard(tag, 200))
        shards.append((path, 200))
    dataset = wids.ShardListDataset(shards, transformations=[])
    dataset._has_warned = True
    results = []
    threads = [threading.Thread(target=lambda k=k: results.append(check_samples(dataset, k, 300))) for k in range(3)]
    for thread in threads:
        thread.start()
    number = 0
    while any(thread.is_alive() for thread in threads):
        dataset.close()
        assert pickle.loads(pickle.dumps(dataset))[number % 600]["__index__"] == number % 600
        dataset.cache.lru.capacity = number % 4 - 1
        number += 1
        time.sleep(0.001)  # or this thread could have the locks all the time, for they are not fair
    assert results == [True] * 3


# --- callbacks


def stop(_):
    """What ``next(name for name in sample if ...)`` does where no name fits."""
    raise StopIteration


# A loader that an exception refers to waits five seconds for its worker.
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.e2e)])
def test_a_stop_iteration_in_a_transformation_does_not_end_the_loop(tmp_path, workers):
    """It ended the epoch of this rank, unseen, and left the other ranks waiting for it."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (3, 4)), transformations=[])
    dataset.add_transform(lambda sample: sample["__index__"] if sample["__index__"] < 4 else stop(sample))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(dataset)
    for batch_size in (None, 2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(DataLoader(dataset, batch_size=batch_size, num_workers=workers))


def test_a_stop_iteration_in_a_key_rule_or_localname_does_not_end_the_loop(tmp_path):
    """The same for the other functions of the caller."""
    shards = write_shards(tmp_path, (3, 4))
    for options in ({"key_rule": stop}, {"localname": stop}):
        dataset = wids.ShardListDataset(shards, **options)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(dataset)


def test_what_a_caller_does_to_a_sample_does_not_reach_the_next_access(tmp_path):
    """Streams are the caller's own, also when they were cut from a block that is kept."""
    dataset = wids.ShardListDataset(write_shards(tmp_path, (30, 30)), transformations=[])
    for _ in range(20):
        for sample in dataset:
            g = sample["__index__"]
            assert sample[".bin"].getvalue() == bytes([g]) * 40
            sample[".bin"].getbuffer()[:] = b"X" * 40
            sample[".txt"].write(b"longer than it was")
            sample.clear()
    assert dataset.get_shard(0)[0].reader._blocks.kept


# --- hostile archives, tables and members


def test_a_table_longer_than_its_shard_could_have_is_not_read(tmp_path):
    """A sparse file of terabytes beside a local shard would have been read into memory."""
    shard = write_shards(tmp_path, (3,))[0]
    with open(shard["url"] + ".widx", "wb") as file:
        file.truncate(1 << 42)
    assert wids.ShardListDataset([shard], transformations=[])[2]["__key__"] == "s0-002"


def test_a_long_global_path_does_not_make_a_table_of_many_times_the_archive():
    """One PAX header of 8 MB named each second member: 300 KB of members made 2.5 GB of keys."""
    long = tars.pax({b"path": b"q" * 100_000 + b".txt"}, b"g")
    with pytest.raises(errors.CorruptHeaderError, match="long path"):
        tars.table_of(long + tars.member(b"a.txt") + tars.END)
    short = tars.pax({b"path": b"q.txt"}, b"g")
    assert list(tars.table_of(short + tars.member(b"a.txt") + tars.END).keys()) == ["q"]


def test_global_records_that_say_nothing_cost_nothing():
    """Each member copied all of them: a hundred thousand records and members took hours."""
    records = b"".join(tars.record(b"k%06d" % k, b"v") for k in range(100_000))
    members = b"".join(tars.member(b"%d.txt" % k) for k in range(5_000))
    assert len(tars.table_of(tars.pax(records, b"g") + members + tars.END)) == 5_000


def test_a_checkpoint_inflates_to_no_more_than_the_bound():
    """Torch stores its records and never deflates them, but inflates what it finds: a thousandfold."""
    stored, deflated = io.BytesIO(), io.BytesIO()
    torch.save(torch.zeros(1 << 18), stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info.filename))
    assert len(deflated.getvalue()) < 1 << 14
    decoder = SampleDecoder(max_inflate_bytes=1 << 16)
    assert decoder({".pt": stored.getvalue()})[".pt"].shape == (1 << 18,)
    with pytest.raises(errors.DecodeError, match="max_inflate_bytes"):
        decoder({".pt": deflated.getvalue()})


def test_names_are_keys_and_never_paths(tmp_path):
    """Absolute, climbing, broken and very long names are keys of samples, and nothing is made of them on disk."""
    names = [b"/abs", b"../../up", b"new\nline", b"\xff\xfe", b"L" * 10_000]
    data = b"".join(
        (tars.long_name(name + b".txt") if len(name) > 90 else b"") + tars.member(name + b".txt", b"%d" % k)
        for k, name in enumerate(names)
    )
    path = cache_shards.write(str(tmp_path / "x" / "s.tar"), data + tars.END)
    dataset = wids.ShardListDataset([path], transformations=[], cache_local=True, cache_dir=tmp_path / "cache")
    dataset = pickle.loads(pickle.dumps(dataset))
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    assert [sample["__key__"] for sample in loader] == [os.fsdecode(name) for name in names]
    assert [dataset[k][".txt"].read() for k in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert sorted(os.listdir(tmp_path)) == ["cache", "x"]


# --- places


LOCAL = ["file://{}", "FILE://{}", "local://{}", "~/..{}", "pipe:cat {}", "pipe://cat {}", "simplecache::{}"]
LOCAL += ["simplecache::file://{}", "tar://s0.tar::file://{}", "generic://{}", "dir::{}"]
LOCAL += ["reference://{}", "async_wrapper::file://{}", "asynclocal::{}", "::{}", "git://{}", "filecache::local://{}"]
REMOTE = ["{}", "file:{}", "PIPE:cat {}", " file://{}", "../../../..{}", "f\u0131le://{}", "\tfile://{}"]
REMOTE += ["http://127.0.0.1:1/x::file://{}"]


@pytest.mark.parametrize("form", LOCAL + REMOTE)
def test_a_remote_index_reads_nothing_local(server, tmp_path, no_waits, form):
    """However a URL, a base or a sub-dataset is written: it is refused, or it means a file of the server."""
    secret = write_shards(tmp_path, (3,))[0]["url"]
    url, base = form.format(secret), form.format(tmp_path)
    shards, relative = [{"url": url, "nsamples": 3}], [{"url": "s0.tar", "nsamples": 3}]
    for index in (
        {"shardlist": shards},
        {"shardlist": relative, "base": base},
        {"datasets": [{"shardlist": relative, "base_path": base}]},
        {"datasets": [{"source_url": url}]},
    ):
        place = server.add("/index.json", json.dumps({"wids_version": 1, **index}).encode())
        with pytest.raises((errors.NotAllowedError, errors.FetchError, errors.SpecError)) as raised:
            wids.ShardListDataset(place, cache_dir=tmp_path / "cache")[0]
        assert form in REMOTE or raised.type is errors.NotAllowedError


@pytest.mark.parametrize("form", ["file://{}", "pipe:cat {}", "{}", "ftp://127.0.0.1{}"])
def test_a_redirect_leads_to_nothing_local(server, tmp_path, no_waits, form):
    """A server that was asked for a shard cannot name a file of this machine instead."""
    secret = write_shards(tmp_path, (3,))[0]["url"]
    url = server.add("/s.tar", b"", redirect(form.format(secret)))
    with pytest.raises(errors.FetchError):
        wids.ShardListDataset([(url, 3)], cache_dir=tmp_path / "cache")[0]


# --- files of servers that are too long


@pytest.mark.parametrize("fault", [endless, bomb])
@pytest.mark.parametrize(
    "name",
    ["train.json", ".nv-meta/.info.json", ".nv-meta/.info.yaml", "train.widsx", "part.json", "parent.json", "v.rows"],
)
def test_files_of_an_index_that_are_too_long(server, tmp_path, monkeypatch, name, fault):
    """Each has a limit, also where it is named by another; the error names it, and nothing stays in the cache."""
    for module in (download, loading):
        monkeypatch.setattr(module, "MAX_READ_BYTES", 1 << 20)
    place = server.add(f"/{name}", b"{}", fault)
    if name == "part.json":
        place = server.add("/index.json", json.dumps({"wids_version": 1, "datasets": [{"source_url": name}]}).encode())
    elif name in ("parent.json", "v.rows"):
        server.add("/parent.json", b"{}", *server.faults.get("/parent.json", []))
        path = tmp_path / "source.json"
        path.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]}))
        wids.ShardListDataset(path).select([0, 2]).save(tmp_path / "v.json")
        told = {**json.loads((tmp_path / "v.json").read_text()), "view_of": "parent.json"}
        if name == "v.rows":
            server.faults["/parent.json"], server.files["/parent.json"] = [whole], path.read_bytes()
            told["rows"] = name
        place = server.add("/v.json", json.dumps(told).encode())
    with pytest.raises(errors.TooLongError, match=re.escape(name)):
        wids.ShardListDataset(place, cache_dir=tmp_path / "cache")
    assert [
        name for _, _, names in os.walk(tmp_path / "cache") for name in names if name.endswith((".part", ".rows"))
    ] == []


def test_parts_of_an_index_that_are_too_long_together(server, tmp_path, monkeypatch):
    """The limit holds for all of them."""
    monkeypatch.setattr(loading, "MAX_READ_BYTES", 2500)
    for number in range(3):
        text = json.dumps({"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}], "note": " " * 900})
        server.add(f"/part{number}.json", text.encode())
    for count in (2, 3):
        listed = {"wids_version": 1, "datasets": [{"source_url": f"part{number}.json"} for number in range(count)]}
        place = server.add("/index.json", json.dumps(listed).encode())
        if count == 2:
            assert len(wids.ShardListDataset(place, cache_dir=tmp_path / "cache")) == 2
        else:
            with pytest.raises(errors.TooLongError, match=r"part2\.json"):
                wids.ShardListDataset(place, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("fault", [endless, bomb])
def test_tables_that_are_too_long(server, tmp_path, monkeypatch, fault):
    """Member tables beside shards are done without; a table of columns says so."""
    server.has_ranges = True
    url = server.add("/a.tar", cache_shards.shard("a"))
    server.add("/a.tar.widx", b"", fault)
    dataset = wids.ShardListDataset([(url, 3)], access="range", cache_dir=tmp_path / "cache", transformations="raw")
    assert dataset[0][".txt"] == cache_shards.text("a", 0)
    listed = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 3}]}
    place = server.add("/train.json", json.dumps(listed).encode())
    server.add("/train.columns.parquet", b"", fault)
    monkeypatch.setattr(file, "_TABLE_BYTES", 1 << 20)
    with pytest.raises(errors.TooLongError, match=r"train\.columns\.parquet"):
        wids.ShardListDataset(place, cache_dir=tmp_path / "cache").query("select count(*) from samples")
    assert server.sent_bytes["/train.columns.parquet"] < 48 << 20


# --- credentials

CREDENTIALS = {"x-api-key": "s3cret-key", "authorization": "Basic bWU6czNjcmV0", "cookie": "id=s3cret"}


@pytest.fixture
def other():
    """Another server; on another port, so it is a stranger."""
    server = Server()
    server.has_ranges = True
    yield server
    server.close()


def options():
    """Options with a credential in each place that one can have."""
    client = {"headers": {"Authorization": CREDENTIALS["authorization"]}, "cookies": {"id": "s3cret"}}
    return {"headers": {"X-Api-Key": CREDENTIALS["x-api-key"]}, "client_kwargs": client}


def sent(server):
    """Which of the credentials came with each request."""
    return [{name for name, value in CREDENTIALS.items() if headers.get(name) == value} for headers in server.headers]


ALL, NONE = set(CREDENTIALS), set()
each_access = pytest.mark.parametrize("access", ["fetch", "range"])


def put_index(server, shards, path="/index.json", **more):
    """Serve an index of shards of three samples; returns its URL."""
    rows = [{"url": url, "nsamples": 3} for url in shards]
    return server.add(path, json.dumps({"wids_version": 1, "shardlist": rows, **more}).encode())


@each_access
@pytest.mark.parametrize("way", ["url", "base", "source", "source within a source"])
def test_options_stay_with_the_server_of_a_remote_index(server, other, tmp_path, access, way):
    """An index that names another server sends it nothing of what its own one is given."""
    server.has_ranges = True
    body = cache_shards.shard("a")
    url = other.add("/a.tar", body)
    server.add("/own.tar", body)
    if way == "url":
        place = put_index(server, ["own.tar", url])
    elif way == "base":
        place = put_index(server, [server.url + "/own.tar", "a.tar"], base=other.url)
    else:
        named = put_index(other, [url])
        if way == "source within a source":
            named = put_index(server, ["own.tar"], path="/sub.json", datasets=[{"source_url": named}])
        place = put_index(server, ["own.tar"], datasets=[{"source_url": named}])
    dataset = wids.ShardListDataset(place, cache_dir=tmp_path / "cache", storage_options=options(), access=access)
    assert [dataset[k]["__key__"] for k in range(len(dataset))]
    assert sent(server) == [ALL] * len(server.headers)
    assert sent(other) == [NONE] * len(other.headers) != []


@each_access
def test_options_for_another_server_by_its_name(server, other, tmp_path, access):
    """A key that is a URL gives that server its own options, and no others."""
    server.has_ranges = True
    place = put_index(server, [other.add("/a.tar", cache_shards.shard("a"))])
    theirs = {"headers": {"X-Api-Key": "theirs"}}
    given = {**options(), other.url + "/anything": theirs}
    dataset = wids.ShardListDataset(place, cache_dir=tmp_path / "cache", storage_options=given, access=access)
    assert dataset[0]["__key__"] == "a0000"
    assert sent(server) == [ALL]
    assert {headers["x-api-key"] for headers in other.headers} == {"theirs"}
    assert sent(other) == [NONE] * len(other.headers)


@pytest.mark.parametrize("form", ["list", "local index", "local index of a remote one", "base"])
def test_options_go_to_servers_that_the_caller_names(server, other, tmp_path, form):
    """A list in the program, a local index and base= are the caller's own words; so are sources in a local index."""
    place = shards = [(other.add("/a.tar", cache_shards.shard("a")), 3)]
    own = tmp_path / "own.json"
    index = {"wids_version": 1, "shardlist": [{"url": url, "nsamples": 3} for url, _ in shards]}
    if form == "local index of a remote one":
        index = {"wids_version": 1, "datasets": [{"source_url": put_index(other, [other.url + "/a.tar"])}]}
    own.write_text(json.dumps(index))
    if form == "base":
        place = put_index(server, ["a.tar"])
    elif form != "list":
        place = own
    base = other.url if form == "base" else None
    dataset = wids.ShardListDataset(place, cache_dir=tmp_path / "cache", storage_options=options(), base=base)
    assert dataset[0]["__key__"] == "a0000"
    assert sent(other) == [ALL] * len(other.headers) != []


def test_options_hold_for_buckets_that_an_https_index_names(server):
    """Where the URL names no server, options go with the scheme: the endpoint is the caller's."""
    place = put_index(server, ["s3://bucket/a.tar", "https://elsewhere/a.tar"])
    given = {"headers": {"X-Api-Key": "s3cret"}}
    _, _, narrowed = load_shards(place, storage_options=given)
    assert urls.options_for("s3://bucket/a.tar", narrowed) == given
    assert urls.options_for("https://elsewhere/a.tar", narrowed) == {}


@pytest.mark.parametrize("way", ["fetch", "range", "index", "listing"])
@pytest.mark.parametrize("is_other", [True, False], ids=["other server", "same server"])
def test_no_credential_follows_a_redirect_to_another_server(server, other, tmp_path, way, is_other):
    """Own headers, basic authentication and cookies end where another scheme, host or port begins."""
    target = other if is_other else server
    server.has_ranges = True
    target.add("/moved.tar", cache_shards.shard("a"))
    target.add("/moved.json", b'{"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 3}]}')
    target.add("/moved/", b'<a href="a.tar">a.tar</a>')
    for suffix in (".tar", ".json", "/"):
        server.add(f"/here{suffix}", b"", redirect(target.url + f"/moved{suffix}"))
    if way == "index":
        load_shards(server.url + "/here.json", storage_options=options())
    elif way == "listing":
        find_shards([server.url + "/here/"], storage_options=options())
    else:
        shards = [(server.url + "/here.tar", 3)]
        dataset = wids.ShardListDataset(shards, cache_dir=tmp_path, storage_options=options(), access=way)
        assert dataset[1]["__key__"] == "a0001"
    arrived = [found for path, found in zip(target.requests, sent(target), strict=True) if "moved" in path]
    assert arrived == [NONE if is_other else ALL] * len(arrived) != []


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning")
def test_basic_authentication_is_for_the_first_server_only(server, other, tmp_path):
    """``auth`` of a session is not given to the server that a redirect leads to."""
    other.add("/b.tar", cache_shards.shard("a"))
    url = server.add("/a.tar", b"", redirect(other.url + "/b.tar"))
    client = {"auth": aiohttp.BasicAuth("me", "s3cret")}
    dataset = wids.ShardListDataset([(url, 3)], cache_dir=tmp_path, storage_options={"client_kwargs": client})
    assert dataset[0]["__key__"] == "a0000"
    assert server.headers[0]["authorization"] == CREDENTIALS["authorization"]
    assert "authorization" not in other.headers[0]


def test_no_credential_follows_a_redirect_of_old_servers(server, other, tmp_path):
    """Where there is no Location, the client goes where the header URI says."""
    url = server.add("/a.tar", b"", status(302, URI=other.add("/b.tar", cache_shards.shard("a"))))
    dataset = wids.ShardListDataset([(url, 3)], cache_dir=tmp_path, storage_options=options())
    assert dataset[0]["__key__"] == "a0000"
    assert sent(other) == [NONE] * len(other.headers) != []


@pytest.mark.parametrize(
    "place", ["/proc/self", "/sys", "/dev/null", "{}/link", "{}/file", "{}/loop", "{}/" + "n" * 300]
)
def test_a_cache_directory_that_cannot_be_used_is_told(server, tmp_path, place):
    """Whatever stands there: an error that names it, no wait without end."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    url = server.add("/s.tar", cache_shards.shard("a"))
    with pytest.raises(errors.CacheError):
        wids.ShardListDataset([(url, 3)], cache_dir=place.format(tmp_path))[0]


@pytest.mark.parametrize("name", ["sp ace", "new\nline", "q?#%41", "\udcff", "~x", "-rf", "{a..b}", "x::y", "[a]*"])
def test_a_cache_directory_may_have_any_name(server, tmp_path, name):
    """Nothing in a path is a pattern, a URL or an option."""
    url = server.add("/s.tar", cache_shards.shard("a"))
    for _ in range(2):
        dataset = wids.ShardListDataset([(url, 3)], cache_dir=str(tmp_path / name), transformations=[])
        assert dataset[1][".txt"].read() == b"a1"
    assert os.listdir(tmp_path) == [name]
    assert len(shard_requests(server)) == 1


def test_counts_that_overflow_in_all_are_refused(tmp_path):
    """Each count was fine, their sum was not: the length became -2."""
    first, second = (shard["url"] for shard in write_shards(tmp_path, (3, 4)))
    with pytest.raises(errors.SpecError, match="more than can be counted"):
        wids.ShardListDataset([(first, 2**63 - 1), (second, 2**63 - 1)])


def test_a_working_directory_that_was_deleted_is_not_needed(tmp_path, monkeypatch):
    """Absolute paths and URLs do not depend on it."""
    shards = write_shards(tmp_path, (3,))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert wids.ShardListDataset(shards, transformations=[])[0]["__index__"] == 0


def test_without_a_temporary_directory_an_own_cache_directory_and_local_shards_work(tmp_path, monkeypatch):
    """A container whose file systems are read-only but for the volume of the cache."""

    def fail():
        raise FileNotFoundError(2, "No usable temporary directory found")

    shards = write_shards(tmp_path, (3,))
    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert wids.ShardListDataset(shards, transformations=[])[0]["__index__"] == 0
    dataset = wids.ShardListDataset(shards, cache_dir=tmp_path / "cache", cache_local=True, transformations=[])
    assert dataset[2]["__key__"] == "s0-002"
    assert atomic.private_dir() == f"/tmp/wids-cache-{os.getuid()}"


def read_all_with_few_descriptors(shards, cache_dir):
    """Keys of all samples, read by a process that may open 34 files, however many it has inherited."""
    inherited = {int(name) for name in os.listdir("/proc/self/fd")}
    limit, free = 0, 0
    while free < 34:
        free += limit not in inherited
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    dataset = wids.ShardListDataset(shards, cache_dir=cache_dir, transformations=[], lru_size=10**9)
    return [dataset[k][".txt"].read() for k in range(len(dataset))]


def test_few_file_descriptors_are_enough(server, tmp_path):
    """The pool gives way when there are none left, for local and for remote shards."""
    local = write_shards(tmp_path, [2] * 50)
    assert call_in_child(read_all_with_few_descriptors, local, None) == [b"text %d" % k for k in range(100)]
    tags = [chr(ord("a") + k) for k in range(26)]
    remote = [(server.add(f"/{tag}.tar", cache_shards.shard(tag, 2)), 2) for tag in tags]
    found = call_in_child(read_all_with_few_descriptors, remote, str(tmp_path / "cache"))
    assert found == [cache_shards.text(tag, row) for tag in tags for row in range(2)]


def test_the_command_line_works_with_its_standard_files_closed():
    """``wids demo >&-``: a pipe to the ranks got number 1, and a rank that redirected its output ended itself."""
    run_script("""
        import os
        from wids import cli
        os.close(1)
        os.close(0)
        cli._open_standard_files()
        assert all(os.get_inheritable(fd) and os.fstat(fd) for fd in range(3))
    """)


# --- samplers


def test_chunks_larger_than_any_integer_of_numpy():
    """`chunksize` has no upper end: everything is one chunk."""
    sampler = wids.DistributedChunkedSampler(range(10), num_replicas=3, rank=1, chunksize=2**70, seed=2**90)
    sampler.set_epoch(-(10**30))
    assert len(list(sampler)) == len(sampler) == 4


def rewrite(path, members):
    """Write an archive over a file in place, as a careless tool does: the inode stays."""
    data = cache_shards.pack(members)
    with open(path, "r+b") as file:
        file.write(data)
    stamp = os.stat(path).st_mtime_ns + 1_000_000  # file systems with coarse clocks
    os.utime(path, ns=(stamp, stamp))


@pytest.mark.parametrize("size", [200, 30_000])
def test_members_moved_within_an_open_shard_are_not_mistaken_for_one_another(tmp_path, size):
    """A shard rewritten in place with the same size but in another order raises; one that is touched goes on."""
    path = tmp_path / "a.tar"
    members = [(f"{letter}.x", letter.encode() * size) for letter in "abcd"]
    path.write_bytes(cache_shards.pack(members))
    dataset = wids.ShardListDataset([(str(path), 4)], transformations="raw")
    assert dataset[0][".x"] == members[0][1]
    stamp = os.stat(path).st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))
    assert dataset[1][".x"] == members[1][1]
    rewrite(path, [members[1], members[0], members[3], members[2]])
    with pytest.raises(errors.ChangedShardError, match="not where they were"):
        _ = dataset[2]
    with pytest.raises(errors.ChangedShardError):
        dataset.__getitems__([3, 1])
    dataset.close()
    assert [sample["__key__"] for sample in dataset] == ["b", "a", "d", "c"]


def test_a_localname_that_gives_two_urls_one_place_mixes_nothing_up(tmp_path):
    """Two shards that a caller's localname puts in one file are fetched in turn, never taken for one another."""
    urls = []
    for name in "xy":
        os.mkdir(tmp_path / name)
        (tmp_path / name / "s.tar").write_bytes(cache_shards.pack([("k.txt", name.encode())]))
        urls.append((str(tmp_path / name / "s.tar"), 1))
    place = str(tmp_path / "cache.tar")
    dataset = wids.ShardListDataset(urls, localname=lambda _: place, lru_size=1)
    for _ in range(2):
        assert [sample[".txt"] for sample in dataset] == ["x", "y"]
    again = wids.ShardListDataset(urls[:1], localname=lambda _: place)
    assert again[0][".txt"] == "x"
