"""The Hugging Face Hub's limits, its signed redirects, its refusals: against the stand-in."""

import asyncio
import contextlib
import functools
import itertools
import json
import multiprocessing
import operator
import os
import pickle
import random
import sys
import threading
import types
from pathlib import Path

import pytest
from huggingface_hub import constants
from torch.utils.data import DataLoader

import wids
from notebooks import hub as hub_stand_in
from tests.support import cache_shards
from tests.support.children import PATIENCE_SECONDS, child, receive
from tests.support.hub import begin_run
from tests.support.servers import cut, status, whole
from tests.support.shards import write_shard, write_shards
from tests.support.tars import pack_of, table_of
from wids.core.transport import download, failures, filesystems, schemes, stores
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import Session
from wids.core.transport.source import Precedence
from wids.core.transport.spans import Span
from wids.errors import (
    ChangedShardError,
    DependencyError,
    DigestMismatchError,
    FetchDeniedError,
    FetchError,
    ShardNotFoundError,
    TooLongError,
    UnreachableError,
)
from wids.hub import source as hub

BASE = "hf://datasets/org/set"


def body_of(number, size=3000):
    """The bytes of a file, which no other one has."""
    return random.Random(number).randbytes(size)


def test_a_listing_is_asked_for_once_for_a_machine(stand_in, monkeypatch):
    """A hundred files, in three pages, take four calls; another process none, and so does a second dataset."""
    names = [f"train/{k:04d}.tar" for k in range(100)]
    commit = stand_in.put({name: body_of(k, 10) for k, name in enumerate(names)} | {"train.json": b"{}"})
    stand_in.page_size = 40
    listing = hub.list_files(BASE)
    assert (listing.commit, len(listing.files)) == (commit, 101)
    for name in names:
        with ShardBytes(f"{BASE}/{name}") as shard:
            assert (shard.size, shard.is_strong) == (10, True)
    assert stand_in.requests == {"api": 4}
    handed = hub.pins()
    begin_run(monkeypatch)  # a process that the run starts, at any time: it reads the listing that is kept
    hub.note_pins(handed)
    assert ShardBytes(f"{BASE}/{names[7]}").size == 10
    assert stand_in.requests == {"api": 4}


def test_processes_that_start_together_read_one_commit(stand_in):
    """That which the first of them asked for."""
    stand_in.put({"a.tar": b"old"})
    assert hub.list_files(BASE).files["a.tar"].size == 3
    stand_in.put({"a.tar": b"newer"})
    hub.forget()
    assert hub.list_files(BASE).files["a.tar"].size == 3


def test_without_huggingface_hub(stand_in, tmp_path, monkeypatch, caplog):
    """A URL of the Hub is read as any server's, with one warning; by its name, the error says what to install."""
    [shard] = write_shards(tmp_path, [4])
    stand_in.put({"a.tar": Path(shard["url"]).read_bytes()})
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(schemes, "_is_installed", functools.cache(schemes._is_installed.__wrapped__))
    url = f"{stand_in.url}/datasets/org/set/resolve/main/a.tar"
    for name in ("one", "two"):
        dataset = wids.ShardListDataset([(url, 4)], cache_dir=tmp_path / name, transformations="raw")
        assert dataset[3][".txt"]
    assert caplog.text.count("without huggingface_hub, URLs that may be the Hub's are read as any server's") == 1
    assert stand_in.requests["api"] == 0
    with pytest.raises(DependencyError, match=r"pip install 'wids\[hub\]'"):
        wids.ShardListDataset([(f"{BASE}/a.tar", 4)], cache_dir=tmp_path / "three")[0]


def test_many_samples_ask_the_resolver_once_for_a_shard(stand_in):
    """800 pieces of 20 shards."""
    stand_in.put({f"{k:03d}.tar": body_of(k) for k in range(20)})
    draw = random.Random(7)
    for _ in range(80):
        number = draw.randrange(20)
        starts = [draw.randrange(2900) for _ in range(10)]
        with ShardBytes(f"{BASE}/{number:03d}.tar") as shard:
            found = shard.read_many([(lo, lo + 100) for lo in starts])
        assert found == [body_of(number)[lo : lo + 100] for lo in starts]
    assert stand_in.requests["resolvers"] <= 20
    assert stand_in.requests["api"] == 2


def test_threads_ask_the_resolver_once(stand_in, no_waits):
    """Of one file, however many of them read it at the same time."""
    stand_in.put({"a.tar": body_of(1)})
    found = []

    def read():
        found.append(ShardBytes(f"{BASE}/a.tar").read(100, 200))

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [body_of(1)[100:300]] * 16
    assert stand_in.requests["resolvers"] == 1
    assert stand_in.requests["api"] == 2


def test_a_redirect_that_is_refused_or_has_ended_is_asked_for_again(stand_in, set_limits):
    """Once."""
    stand_in.put({"a.tar": body_of(1)})
    shard = ShardBytes(f"{BASE}/a.tar")
    assert shard.read(0, 10) == body_of(1)[:10]
    stand_in.expire()
    assert shard.read(5, 10) == body_of(1)[5:15]
    assert stand_in.requests["resolvers"] == 2
    set_limits(hub, target_seconds=0.0)
    for _ in range(2):
        assert shard.read(5, 10) == body_of(1)[5:15]
    assert stand_in.requests["resolvers"] == 4


def test_a_store_that_refuses_everything_is_a_refusal(stand_in, no_waits):
    """Not a loop."""
    stand_in.put({"a.tar": body_of(1)})
    stand_in.seconds = -1
    with pytest.raises(FetchDeniedError) as caught:
        ShardBytes(f"{BASE}/a.tar").read(0, 10)
    assert "secret" not in str(caught.value)
    assert stand_in.requests["resolvers"] == 1


@pytest.mark.parametrize("where", ["hf", "https"])
def test_the_token_goes_to_the_hub_alone(stand_in, monkeypatch, tmp_path, where):
    """Also that which a URL of the Hub is given in its options."""
    stand_in.put({"a.tar": body_of(1), "a.json": b"{}"})
    stand_in.repository.token = "s3cret"
    options = {"headers": {"Authorization": "Bearer s3cret", "X-Own": "own"}}
    if where == "hf":
        monkeypatch.setenv("HF_TOKEN", "s3cret")
        options = None
    base = BASE if where == "hf" else f"{stand_in.url}/datasets/org/set/resolve/main"
    session = Session(options)
    assert ShardBytes(f"{base}/a.tar", session=session).read(7, 10) == body_of(1)[7:17]
    target = tmp_path / "a.tar"
    target.touch()
    download.download_to(f"{base}/a.tar", str(target), check=lambda: None, session=session)
    assert target.read_bytes() == body_of(1)
    assert download.read_bytes(f"{base}/a.json", session=session) == b"{}"
    assert set(stand_in.authorizations["api"] + stand_in.authorizations["resolvers"]) == {"Bearer s3cret"}
    assert set(stand_in.authorizations["store"]) == {""}
    assert not any("x-own" in headers for headers in stand_in.store.headers)


@pytest.mark.parametrize("header", ["RateLimit", "Retry-After"])
@pytest.mark.parametrize("part", ["api", "resolvers"])
def test_a_spent_budget_costs_one_more_request(stand_in, no_waits, header, part):
    """All wait as long as the Hub says, and none asks meanwhile."""
    stand_in.put({"a.tar": body_of(1), "b.tar": body_of(2)})
    stand_in.wait_header, stand_in.budgets[part] = header, 0
    original = hub.retrying.pause

    def pause(seconds, is_cancelled):
        del stand_in.budgets[part]
        original(seconds, is_cancelled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub.retrying, "pause", pause)
        before = dict(stand_in.requests)
        assert ShardBytes(f"{BASE}/a.tar").read(0, 10) == body_of(1)[:10]
    asked = stand_in.requests[part] - before.get(part, 0)
    assert asked == {"api": 3, "resolvers": 2}[part]
    assert [round(wait) for wait in no_waits] == [40]


def test_other_threads_do_not_ask_during_a_pause(stand_in, no_waits):
    """The pause is one for the process: another file's reader asks nothing before it is over."""
    stand_in.put({"a.tar": body_of(1), "b.tar": body_of(2)})
    hub.list_files(BASE)
    stand_in.budgets["resolvers"] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub.retrying._Tries, "find_delay", lambda *_: None)
        with pytest.raises(FetchError, match="429"):
            ShardBytes(f"{BASE}/a.tar").read(0, 10)
    assert stand_in.requests["resolvers"] == 1
    stand_in.budgets.clear()
    assert ShardBytes(f"{BASE}/b.tar").read(0, 10) == body_of(2)[:10]
    assert stand_in.requests["resolvers"] == 2
    assert [round(wait) for wait in no_waits] == [40]


def test_an_outage_of_a_minute_is_survived(stand_in, no_waits, monkeypatch):
    """By a Hub that has answered before."""
    stand_in.put({"a.tar": body_of(1), "b.tar": body_of(2)})
    assert ShardBytes(f"{BASE}/a.tar").read(0, 10) == body_of(1)[:10]
    stand_in.is_away = True
    original = hub.retrying.pause

    def pause(seconds, is_cancelled):
        original(seconds, is_cancelled)
        stand_in.is_away = sum(no_waits) < 60

    monkeypatch.setattr(hub.retrying, "pause", pause)
    assert ShardBytes(f"{BASE}/b.tar").read(0, 10) == body_of(2)[:10]
    assert sum(no_waits) >= 60


def test_a_listing_goes_on_after_a_failure(stand_in, no_waits, monkeypatch):
    """Pages that came are not asked for again."""
    stand_in.put({f"{k:02d}.tar": b"x" for k in range(20)})
    stand_in.page_size, stand_in.budgets["api"] = 5, 3  # the commit and two pages
    original = hub.retrying.pause

    def pause(seconds, is_cancelled):
        stand_in.budgets.clear()
        original(seconds, is_cancelled)

    monkeypatch.setattr(hub.retrying, "pause", pause)
    assert len(hub.list_files(BASE).files) == 20
    assert stand_in.requests["api"] == 6


def test_a_file_that_is_replaced(stand_in, monkeypatch):
    """By one of the same size: a run reads on at its commit; the next one finds out, unless it names the commit."""
    commit = stand_in.put({"a.tar": body_of(1)})
    shard, pinned = ShardBytes(f"{BASE}/a.tar"), ShardBytes(f"{BASE}@{commit}/a.tar")
    assert shard.read(0, 10) == pinned.read(0, 10) == body_of(1)[:10]
    stand_in.put({"a.tar": body_of(2)})
    assert shard.read(10, 10) == body_of(1)[10:20]
    begin_run(monkeypatch)
    with pytest.raises(ChangedShardError, match="version"):
        shard.read(20, 10)
    assert pinned.read(20, 10) == body_of(1)[20:30]


def test_another_commit_that_leaves_a_file_alone_changes_nothing(stand_in, monkeypatch):
    """Its version is that of its bytes."""
    stand_in.put({"a.tar": body_of(1)})
    shard = ShardBytes(f"{BASE}/a.tar")
    shard.read(0, 10)
    stand_in.put({"README.md": b"# Title"})
    begin_run(monkeypatch)
    assert shard.read(10, 10) == body_of(1)[10:20]


def test_a_file_of_a_bucket_that_is_replaced(stand_in):
    """It is found out when the redirect has ended."""
    stand_in.put({"a.tar": body_of(1)}, "buckets/org/b")
    shard = ShardBytes("hf://buckets/org/b/a.tar")
    assert shard.read(0, 10) == body_of(1)[:10]
    stand_in.put({"a.tar": body_of(2)}, "buckets/org/b")
    stand_in.expire()
    with pytest.raises(ChangedShardError, match="version"):
        shard.read(10, 10)
    assert hub.list_files("hf://buckets/org/b").files["a.tar"][:2] == (3000, None)


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        (
            "hf://datasets/org/gated/a.tar",
            FetchDeniedError,
            "is gated; accept its terms at .*/datasets/org/gated, and log",
        ),
        ("hf://datasets/org/private/a.tar", ShardNotFoundError, "no data set org/private at .*private and no token"),
        ("hf://datasets/org/none/a.tar", ShardNotFoundError, "no data set org/none at .*check the name, or log in"),
        (
            "hf://org/set/a.tar",
            ShardNotFoundError,
            r"no model org/set at .*check the name \(.* is hf://datasets/ORG/NAME\)",
        ),
        ("hf://buckets/org/none/a.tar", ShardNotFoundError, "no bucket org/none"),
        (f"{BASE}@v9/a.tar", ShardNotFoundError, "has no revision v9"),
        (f"{BASE}/b.tar", ShardNotFoundError, "does not exist at commit [0-9a-f]{12} of .*/datasets/org/set; check"),
        (f"{BASE}/train", ShardNotFoundError, "does not exist at commit"),
        ("hf://gpt2", FetchError, "names a repository: hf://datasets/ORG/NAME"),
    ],
)
def test_refusals_say_what_to_do(stand_in, no_waits, url, error, words):
    """Each by the type that its reader would catch, without another try."""
    stand_in.put({"a.tar": b"x", "train/a.tar": b"x"})
    for name in ("gated", "private"):
        stand_in.put({"a.tar": b"x"}, f"datasets/org/{name}")
        stand_in.repositories[f"datasets/org/{name}"].token = "t0ken"
    stand_in.repositories["datasets/org/gated"].is_gated = True
    with pytest.raises(error, match=words):
        download.read_bytes(url)
    assert no_waits == []


def test_a_commit_that_was_deleted(stand_in, no_waits):
    """Its history was squashed: the run has to start anew, and is told so."""
    stand_in.put({"a.tar": b"old"})
    hub.list_files(BASE)
    stand_in.repository.commits.clear()
    stand_in.put({"a.tar": b"new"})
    with pytest.raises(ShardNotFoundError, match="was deleted since this run began"):
        ShardBytes(f"{BASE}/a.tar").read(0, 3)


@pytest.mark.parametrize("damage", [b"{", b"[]", json.dumps({"commit": "x", "at": 1}).encode()])
def test_kept_files_that_are_damaged_are_made_again(stand_in, damage, tmp_path):
    """Whatever is in them."""
    stand_in.put({"a.tar": b"abc"})
    hub.list_files(BASE)
    kept = [path for path in (tmp_path / "hub" / ".wids" / "indexes").iterdir() if path.suffix in (".pin", ".hub")]
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(damage)
    hub.forget()
    assert hub.list_files(BASE).files["a.tar"].size == 3


@pytest.fixture
def dataset_on_hub(stand_in, tmp_path):
    """Opens a set of eight shards of five samples by its index; it says no checksum."""
    listed = []
    for number, shard in enumerate(write_shards(tmp_path, (5,) * 8)):
        with open(shard["url"], "rb") as file:
            stand_in.put({f"{number}.tar": file.read()})
        listed.append({"url": f"{number}.tar", "nsamples": 5})
    stand_in.put({"train.json": json.dumps({"wids_version": 1, "shardlist": listed}).encode()})
    return lambda **options: wids.ShardListDataset(f"{BASE}/train.json", cache_dir=tmp_path / "cache", **options)


def test_samples_by_range_and_a_process_that_is_started(stand_in, dataset_on_hub, monkeypatch):
    """Two calls open the set and one more each shard; a worker asks the Hub's API for nothing."""
    dataset = dataset_on_hub(access="range")
    kept = [sorted(dataset[k]) for k in range(40)]
    assert stand_in.requests["api"] == 2
    assert stand_in.requests["resolvers"] == 9
    handed = pickle.dumps(dataset)
    begin_run(monkeypatch)
    stand_in.put({"new.tar": b"x"})
    worker = pickle.loads(handed)
    assert [sorted(worker[k]) for k in range(40)] == kept
    assert stand_in.requests["api"] == 2


def test_workers_of_a_loader_ask_no_api(stand_in, dataset_on_hub):
    """They know what their parent knew."""
    dataset = dataset_on_hub(access="range", transformations=[operator.itemgetter("__key__")])
    loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context="fork")
    assert len({key for keys in loader for key in keys}) == 40
    assert stand_in.requests["api"] == 2


def test_a_download_that_breaks_off_goes_on(stand_in, no_waits, tmp_path):
    """What has come is not asked for again, of the store or of the Hub."""
    body = body_of(1, 3 << 20)
    stand_in.put({"a.tar": body})
    answers = [cut, cut]
    stand_in.store_fault = lambda reply, data: answers.pop()(reply, data) if answers else whole(reply, data)
    target = tmp_path / "a.tar"
    target.touch()
    download.download_to(f"{BASE}/a.tar", str(target), check=lambda: None)
    assert target.read_bytes() == body
    assert answers == []
    assert len(no_waits) >= 1
    assert stand_in.sent_bytes < 1.1 * len(body)
    assert stand_in.requests["resolvers"] == 1


def test_a_shard_is_compared_with_what_the_hub_says(stand_in, dataset_on_hub, no_waits):
    """Where the index says no checksum."""

    def damaged(reply, body):
        at = body.rindex(b"\0" * 512) + 511  # of the tar's end, which nobody else looks at
        reply.end(reply.begin(body[:at] + b"x" + body[at + 1 :]))

    dataset = dataset_on_hub(access="fetch", early_reads=False, prefetch=False)
    assert dataset[0]["__key__"]
    stand_in.store_fault = damaged
    with pytest.raises(DigestMismatchError, match="sha256 of the received bytes"):
        dataset[39]


def test_a_cached_shard_of_an_older_commit_is_fetched_again(stand_in, dataset_on_hub, monkeypatch, tmp_path):
    """By a run that reads a newer one, also if the sizes are the same; not for a commit that leaves it alone."""
    options = {"access": "fetch", "early_reads": False, "prefetch": False}
    dataset = dataset_on_hub(**options)
    before = [dataset[k]["__key__"] for k in (0, 5)]
    dataset.close()
    old = stand_in.repository.commits[hub.list_files(BASE).commit]["0.tar"].data
    with open(write_shard(tmp_path / "new.tar", 5, first=70), "rb") as file:
        new = file.read()
    assert len(new) == len(old)
    stand_in.put({"0.tar": new})
    begin_run(monkeypatch)
    dataset = wids.ShardListDataset(f"{BASE}/train.json", cache_dir=tmp_path / "cache", **options)
    after = [dataset[k]["__key__"] for k in (0, 5)]
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert dataset.stats().fetches == 1


@pytest.mark.parametrize("client", ["httpx", "requests"])
@pytest.mark.parametrize(("status", "is_again"), [(503, True), (429, True), (404, False), (403, False)])
def test_failures_of_the_hub_s_own_client_count_as_a_server_s(client, status, is_again):
    """Of whichever package its answers are: directories and writing go through it."""
    base = {"httpx": Exception, "requests": OSError}[client]
    kind = type("HfHubHTTPError", (base,), {"__module__": "huggingface_hub.errors"})
    error = kind("no")
    error.response = types.SimpleNamespace(status_code=status, headers={"Retry-After": "7"})
    assert failures.is_transient(error, None) is is_again
    assert failures.find_retry_after(error) == 7
    lost = type("ReadTimeout", (base,), {"__module__": f"{client}.errors"})("the connection was lost")
    assert failures.is_transient(lost, None)


def test_a_token_that_is_not_known(stand_in, no_waits, monkeypatch):
    """It says so, and what to do."""
    stand_in.put({"a.tar": b"x"})
    monkeypatch.setenv("HF_TOKEN", "wr0ng")
    stand_in.knows_no_token = True
    with pytest.raises(FetchDeniedError, match="does not accept the token; log in again") as caught:
        download.read_bytes(f"{BASE}/a.tar")
    assert "wr0ng" not in str(caught.value)


@pytest.fixture
def tabled(stand_in, tmp_path):
    """Opens a set of three shards, and of a pack of their tables."""
    found = {f"{tag}.tar": cache_shards.shard(tag, 20, 3000) for tag in "abc"}
    place = f"{BASE}/train.tables"
    pack = pack_of({f"{BASE}/{name}": table_of(data).to_bytes() for name, data in found.items()}, place)
    listed = [{"url": name, "nsamples": 20, "filesize": len(data)} for name, data in found.items()]
    index = {"wids_version": 1, "member_tables": "train.tables", "shardlist": listed}
    stand_in.put({**found, "train.tables": pack, "train.json": json.dumps(index).encode()})
    options = {"cache_dir": tmp_path / "cache", "transformations": "raw"}
    return lambda **more: wids.ShardListDataset(f"{BASE}/train.json", **options, **more)


def test_packs_of_tables_are_read(stand_in, tabled):
    """A few bytes of one for each shard, and then each sample is one request."""
    dataset = tabled(access="range")
    for k, tag in enumerate("abc"):
        assert dataset[20 * k + 3][".txt"] == cache_shards.text(tag, 3)
    assert dataset.stats().table_requests == 4
    assert stand_in.requests["store"] == 3


def test_a_sample_comes_before_its_shard(stand_in, tabled):
    """It is read by a range while the shard is on its way."""
    go = threading.Event()

    def held(reply, body):
        data = reply.begin(body)
        if len(data) > len(body) // 2:
            reply.wait(go)
        reply.end(data)

    stand_in.store_fault = held
    dataset = tabled(prefetch=False)
    try:
        assert dataset[3][".txt"] == cache_shards.text("a", 3)
        assert (dataset.stats().fetches, dataset.stats().range_requests) == (0, 1)
    finally:
        go.set()
        downloads = dataset._collection.provider._arrivals
        downloads.end(is_finished=False)
        downloads.join()


def test_a_sample_waits_for_no_download_that_asks_the_resolver(stand_in):
    """The download that asks first has no connection for its bytes; the sample, which needs the same redirect, has."""
    stand_in.put({"a.tar": body_of(1)})
    found: dict[str, bytes] = {}

    class Sink:
        def __init__(self, name):
            self.name = name

        def learn(self, stat):
            """The size is known."""

        def write(self, at, data):
            found[self.name] = found.get(self.name, b"") + bytes(data)

    def source(precedence):
        return stores.open_source(f"{BASE}/a.tar", Session(), go_on=lambda: None, precedence=precedence)

    shard, sample = source(Precedence(is_ahead=False)), source(None)

    async def read_both():
        slots = filesystems.connections()
        taken = [await slots.acquire(Precedence(is_ahead=False)) for _ in range(slots.count)]
        downloading = asyncio.ensure_future(shard.read(Span(0, 3000), Sink("shard")))
        try:
            await asyncio.wait_for(sample.read(Span(5, 50), Sink("sample")), PATIENCE_SECONDS)
            assert not downloading.done()
        finally:
            for release in taken:
                release()
            await downloading

    filesystems.run(read_both())
    assert found == {"sample": body_of(1)[5:50], "shard": body_of(1)}
    assert stand_in.requests["resolvers"] == 1


# --- a data set by its name, from outside


def tar(tag, rows):
    """A shard of so many samples, whose texts say which they are."""
    return cache_shards.pack([(f"{tag}-{row:03d}.txt", b"%s %d" % (tag.encode(), row)) for row in range(rows)])


def fill(stand_in, shards):
    """Put shards into the split train, with what img2dataset says of them; returns the commit."""
    texts = {f"train/{tag}_stats.json": b'{"successes": %d}' % rows for tag, rows in shards.items()}
    index = {"wids_version": 1, "shardlist": [{"url": f"train/{t}.tar", "nsamples": n} for t, n in shards.items()]}
    texts = {"train.json": json.dumps(index).encode()} if len(shards) > 3 else texts
    return stand_in.put({**{f"train/{tag}.tar": tar(tag, rows) for tag, rows in shards.items()}, **texts})


def open_named(cache_dir, **options):
    """The split train, all of whose requests are for samples that are asked for."""
    options = {"split": "train", "transformations": "raw", "prefetch": False, "early_reads": False, **options}
    return wids.ShardListDataset(BASE, cache_dir=cache_dir, **options)


def start_and_read(connection, barrier, cache_dir, index):
    """As a process that knows nothing yet, at the same time as others: a sample, and how many there are."""
    hub.forget()
    barrier.wait(PATIENCE_SECONDS)
    dataset = open_named(cache_dir, access="range")
    connection.send((len(dataset), dataset[index][".txt"]))
    connection.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_many_shards_take_four_calls_of_a_machine(stand_in, tmp_path, method):
    """Of processes that start together, of later ones, and of the workers of loaders, started in any way."""
    stand_in.page_size = 100
    fill(stand_in, {f"{k:04d}": 1 for k in range(100)})  # two files each: three pages, and the commit
    for count in (3, 1):
        barrier = multiprocessing.get_context("fork").Barrier(count)
        with contextlib.ExitStack() as stack:
            arguments = start_and_read, barrier, tmp_path, 7
            started = [stack.enter_context(child(*arguments))[1] for _ in range(count)]
            assert [receive(connection) for connection in started] == [(100, b"0007 0")] * count
    assert stand_in.requests["api"] <= 4
    dataset = open_named(tmp_path, access="range")
    assert stand_in.requests["api"] <= 4
    for path in (tmp_path / ".wids" / "indexes").glob("*.pin"):
        path.unlink()  # what else tells a worker which commit it is?
    stand_in.put({"new.txt": b""})
    asked = stand_in.requests["api"]
    view = dataset.select([0, 99])
    loader = DataLoader(view, batch_size=1, num_workers=1, multiprocessing_context=method, collate_fn=list)
    assert [batch[0][".txt"] for batch in loader] == [b"0000 0", b"0099 0"]
    assert stand_in.requests["api"] == asked


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.thorough)])
def test_random_samples_ask_the_resolver_once_for_a_shard_and_process(stand_in, tmp_path, count):
    """As many samples of each shard as there are shards, by ranges, though three processes read of all shards each."""
    fill(stand_in, {f"{k:02d}": count for k in range(count)})
    dataset = open_named(tmp_path, access="range")
    drawn, size = random.Random(7).sample(range(count**2), count**2), count**2 // 20
    order = [drawn[k : k + size] for k in range(0, count**2, size)]
    loader = DataLoader(dataset, batch_sampler=order, num_workers=3, multiprocessing_context="fork", collate_fn=list)
    found = [sample[".txt"] for batch in loader for sample in batch]
    assert found == [b"%02d %d" % divmod(k, count) for rows in order for k in rows]
    assert count < stand_in.requests["resolvers"] <= 4 * count + 3
    assert stand_in.requests["api"] <= 4
    assert dataset.stats().fetches == 0


@pytest.fixture
def known(stand_in, tmp_path):
    """Opens a set of two shards, of which the first has been read, with an access."""
    fill(stand_in, {"a": 1, "b": 1})

    def opened(access):
        dataset = open_named(tmp_path / "cache", access=access)
        assert dataset[0][".txt"] == b"a 0"
        return dataset

    return opened


@pytest.mark.parametrize("access", ["range", "fetch"])
def test_a_dataset_survives_an_outage_of_a_minute(stand_in, known, no_waits, monkeypatch, access):
    """Of the Hub and of its store."""
    dataset, original = known(access), hub.retrying.pause
    stand_in.is_away, stand_in.store_fault = True, status(503)

    def pause(seconds, is_cancelled):
        original(seconds, is_cancelled)
        if sum(no_waits) >= 60:
            stand_in.is_away, stand_in.store_fault = False, whole

    monkeypatch.setattr(hub.retrying, "pause", pause)
    assert dataset[1][".txt"] == b"b 0"
    assert sum(no_waits) >= 60


@pytest.mark.parametrize("part", ["api", "resolvers"])
@pytest.mark.parametrize("access", ["range", "fetch"])
def test_a_spent_budget_costs_a_dataset_one_more_request(stand_in, known, no_waits, monkeypatch, access, part):
    """Opening it or reading a sample, it waits for 40 s and asks once more."""
    dataset, original = known(access), hub.retrying.pause
    stand_in.budgets[part] = 0
    if part == "api":
        begin_run(monkeypatch)

    def pause(seconds, is_cancelled):
        stand_in.budgets.clear()
        original(seconds, is_cancelled)

    monkeypatch.setattr(hub.retrying, "pause", pause)
    asked = stand_in.requests[part]
    assert (known(access) if part == "api" else dataset)[1][".txt"] == b"b 0"
    assert stand_in.requests[part] == asked + 2
    assert [round(wait) for wait in no_waits] == [40]


def test_a_dataset_finds_out_that_a_shard_was_replaced(stand_in, tmp_path, monkeypatch):
    """By one of the same size: a run reads on at its commit, by itself or because it names it."""
    commit = fill(stand_in, {"a": 3, "b": 3})
    dataset, pinned = (open_named(tmp_path, access="range", revision=which) for which in (None, commit))
    assert dataset[0][".txt"] == pinned[0][".txt"] == b"a 0"
    other = tar("c", 3)
    assert len(other) == len(tar("a", 3))
    stand_in.put({"train/a.tar": other})
    assert dataset[1][".txt"] == pinned[1][".txt"] == b"a 1"
    begin_run(monkeypatch)  # as on another machine, to which the dataset came without its commit
    with pytest.raises(ChangedShardError, match="version"):
        dataset[2]
    assert pinned[2][".txt"] == b"a 2"
    assert open_named(tmp_path, access="range")[2][".txt"] == b"c 2"


@pytest.mark.parametrize("access", ["range", "fetch"])
def test_a_dataset_gives_the_token_to_the_hub_alone(stand_in, tmp_path, monkeypatch, access):
    """Of a repository that is read by its token."""
    fill(stand_in, {"a": 2, "b": 2})
    stand_in.repository.token = "s3cret"
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    assert [sample[".txt"] for sample in open_named(tmp_path, access=access)] == [b"a 0", b"a 1", b"b 0", b"b 1"]
    assert set(stand_in.authorizations["api"] + stand_in.authorizations["resolvers"]) == {"Bearer s3cret"}
    assert set(stand_in.authorizations["store"]) == {""}
    assert not any("s3cret" in str(headers) for headers in stand_in.store.headers)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]


# --- offline


def test_offline_what_is_kept_opens_and_nobody_is_asked(stand_in, tmp_path, monkeypatch, no_waits):
    """At the commit that was read last; what is not there says why, at once."""
    fill(stand_in, {"a": 2, "b": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UnreachableError, match="HF_HUB_OFFLINE is set, and the commit of main is not kept in"):
            open_named(tmp_path)
    assert open_named(tmp_path)[0][".txt"] == b"a 0"
    stand_in.put({"train/a.tar": tar("c", 2)})
    stand_in.requests.clear()
    begin_run(monkeypatch)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    dataset = open_named(tmp_path)
    assert [dataset[k][".txt"] for k in (0, 1)] == [b"a 0", b"a 1"]
    for options in ({}, {"access": "range"}):
        with pytest.raises(UnreachableError, match=r"HF_HUB_OFFLINE is set, and train/b\.tar is not kept in"):
            open_named(tmp_path, **options)[2]
    with pytest.raises(UnreachableError, match="HF_HUB_OFFLINE is set, and the list of its files is not kept"):
        hub.list_files("hf://buckets/org/b")
    assert stand_in.requests == {}
    assert no_waits == []


def test_offline_an_index_that_was_read_opens_by_its_url(stand_in, dataset_on_hub, monkeypatch):
    """It is read once for a machine and version; one whose file was damaged is read again."""
    dataset = dataset_on_hub()
    assert dataset[0]["__key__"]
    assert len(dataset_on_hub()) == 40
    asked = stand_in.requests["resolvers"]
    begin_run(monkeypatch)
    assert len(dataset_on_hub()) == 40
    assert stand_in.requests["resolvers"] == asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        hub.forget()
        stand_in.requests.clear()
        assert dataset_on_hub()[0]["__key__"] == dataset[0]["__key__"]
        assert stand_in.requests == {}
    listed = {"wids_version": 1, "shardlist": [{"url": "1.tar", "nsamples": 5}]}
    stand_in.put({"train.json": json.dumps(listed).encode()})
    hub.forget()
    assert len(dataset_on_hub()) == 5
    (path, _) = sorted(Path(dataset.cache_dir, ".wids", "indexes").glob("*.file"), key=os.path.getsize)
    path.write_bytes(b"{")
    assert len(dataset_on_hub()) == 5


def test_offline_s_own_client_is_not_asked_again():
    """Its refusal is no failure of a server."""
    error = type("OfflineModeIsEnabled", (ConnectionError,), {"__module__": "huggingface_hub.errors"})("offline")
    assert not failures.is_transient(error, None)


def test_a_commit_that_was_made_here(stand_in, monkeypatch):
    """It is read from now on, here and in other processes, also offline."""
    commit = stand_in.put({"a.tar": b"old"})
    assert hub.list_files(BASE).commit == commit
    for name in ("b.tar", "c.tar"):
        made = stand_in.put({name: b"newer"})
        hub.note_commit(BASE, made)
    for offline in (False, True):
        hub.forget()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert hub.list_files(BASE).commit == made


@pytest.mark.parametrize("kind", ["datasets", "buckets"])
def test_a_redirect_is_for_the_token_that_it_was_given_for(stand_in, kind):
    """Also within a process: it is what gives access."""
    name = f"{kind}/org/private"
    stand_in.put({"a.tar": body_of(1)}, name)
    stand_in.repositories[name].token = "s3cret"
    assert ShardBytes(f"hf://{name}/a.tar", session=Session({"token": "s3cret"})).read(0, 10) == body_of(1)[:10]
    for token in ("other", False):
        with pytest.raises(ShardNotFoundError, match="or it is private"):
            ShardBytes(f"hf://{name}/a.tar", session=Session({"token": token})).read(0, 10)
    assert stand_in.requests["resolvers"] == 3


# --- a Hub, or something in its place, that answers wrongly


@pytest.fixture
def answering(stand_in, monkeypatch):
    """Puts a function in front of the Hub: of a request's path, (status, body, headers), or None to let it pass."""
    original = hub_stand_in._Handler._answer

    def put(find):
        def answer(handler, body):
            found = find(handler.path)
            if found is None:
                return original(handler, body)
            handler._first_byte_at = 0.0
            return handler._send(*found)

        monkeypatch.setattr(hub_stand_in._Handler, "_answer", answer)

    return put


def test_a_repository_that_was_renamed(stand_in, answering):
    """Its old name leads to the new one, with the token."""
    stand_in.put({"a.tar": body_of(1)})
    stand_in.repository.token = "s3cret"
    moved = {"Location": ""}

    def find(path):
        moved["Location"] = path.replace("/org/old", "/org/set")
        return (307, b"", dict(moved)) if "/org/old" in path else None

    answering(find)
    shard = ShardBytes("hf://datasets/org/old/a.tar", session=Session({"token": "s3cret"}))
    assert shard.read(5, 10) == body_of(1)[5:15]


def test_headers_of_the_hub_do_not_follow_to_another_server(stand_in, answering, server, no_waits):
    """Of a redirect or a link of the API: neither the token nor others."""
    stand_in.put({"a.tar": b"x"})
    page = server.add("/page", b'[{"type": "file", "path": "b.tar", "size": 1, "oid": "x"}]')
    answering(lambda path: (307, b"", {"Location": page}) if "/tree/" in path else None)
    base, own = f"{stand_in.url}/datasets/org/set/resolve/main", {"Authorization": "Bearer s3cret", "X-Own": "own"}
    assert hub.list_files(f"{base}/a.tar", Session({"headers": own})).files.keys() == {"b.tar"}
    assert "Bearer s3cret" in stand_in.authorizations["api"]
    assert len(server.headers) == 1
    assert not {"authorization", "x-own"} & {name.lower() for name in server.headers[0]}


@pytest.mark.parametrize("leads_to", ["{own}", "//", ""])
def test_a_listing_without_end(stand_in, answering, no_waits, leads_to):
    """A page that leads to itself is told, not asked for again and again."""
    stand_in.put({"a.tar": b"x"})

    def find(path):
        link = leads_to.format(own=stand_in.url + path)
        return (200, b"[]", {"Link": f'<{link}>; rel="next"'}) if "/tree/" in path else None

    answering(find)
    with pytest.raises(TooLongError, match="form a loop"):
        hub.list_files(BASE)
    assert no_waits == []


def test_a_page_of_a_listing_that_is_gone(stand_in, answering, no_waits):
    """The next try begins with the first one."""
    stand_in.put({f"{k}.tar": b"x" for k in range(9)})
    stand_in.page_size = 4
    answering(lambda path: (400, b"{}", {}) if "cursor" in path else None)
    with pytest.raises(FetchError, match="Bad request"):
        hub.list_files(BASE)
    answering(lambda _: None)
    stand_in.page_size = 5
    assert len(hub.list_files(BASE).files) == 9


@pytest.mark.parametrize(
    "words",
    ['"size": -5', '"size": 1e400', '"size": 1000000000000000000000000', '"path": 7', r'"path": "\ud800.tar"'],
)
def test_a_listing_of_files_that_cannot_be(answering, no_waits, words):
    """It is told by a typed error, whoever reads it."""
    entry = b'[{"type": "file", "path": "a.tar", "size": 7, "oid": "x", %s}]' % words.encode()
    answering(lambda path: (200, entry, {}) if "/tree/" in path else (200, b'{"sha": "%s"}' % (b"a" * 40), {}))
    with pytest.raises(FetchError, match=r"an answer of .* is malformed"):
        wids.ShardListDataset(BASE)


@pytest.mark.parametrize("seconds", ["9" * 30, "9" * 500, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_pause_has_an_end(stand_in, answering, no_waits, seconds):
    """However long the Hub, or a proxy, asks for: after an hour the process asks again."""
    stand_in.put({"a.tar": body_of(1)})
    answering(lambda path: (429, b"", {"Retry-After": seconds}) if "/resolve/" in path else None)
    with pytest.raises(FetchError, match="limits the rate of requests"):
        download.read_bytes(f"{BASE}/a.tar")
    answering(lambda _: None)
    hub.retrying.pause(3600.0, lambda: False)
    assert download.read_bytes(f"{BASE}/a.tar") == body_of(1)


def test_the_default_revision_is_main(stand_in, monkeypatch):
    """Both are one commit in a run, whenever each is asked for."""
    commit = stand_in.put({"a.tar": b"old"})
    assert hub.list_files(BASE).commit == commit
    stand_in.put({"a.tar": b"newer"})
    monkeypatch.setattr(hub, "LIMITS", hub.HubLimits(pin_seconds=0.0))
    assert hub.list_files(f"{BASE}@main").commit == commit
    assert hub.list_files(f"{stand_in.url}/datasets/org/set/resolve/main/a.tar").commit == commit


def test_a_kept_file_that_is_renamed_to_another_s(stand_in, tmp_path):
    """In a directory that users share, the index of one data set is not taken for that of another one."""
    one, other = (json.dumps({"wids_version": 1, "shardlist": [{"url": f"{k}.tar", "nsamples": 1}]}) for k in (1, 2))
    stand_in.put({"one.json": one.encode(), "two.json": other.encode()})
    session, folder = Session(cache_dir=str(tmp_path)), tmp_path / ".wids" / "indexes"
    hub.read_once(f"{BASE}/one.json", session, one.encode)
    (first,) = folder.glob("*.file")
    kept = first.read_bytes()
    hub.read_once(f"{BASE}/two.json", session, other.encode)
    (second,) = set(folder.glob("*.file")) - {first}
    second.write_bytes(kept)
    assert hub.read_once(f"{BASE}/two.json", session, other.encode) == other.encode()


def test_a_listing_without_an_end(monkeypatch):
    """Pages that lead to ever new pages are read up to a limit."""
    numbers = itertools.count()
    monkeypatch.setattr(hub, "_MAX_PAGES", 5)

    def ask(self, url):
        links = {"next": {"url": f"{self.where.endpoint}/{next(numbers)}"}}
        return types.SimpleNamespace(links=links, content=b"[]")

    monkeypatch.setattr(hub._Hub, "_ask", ask)
    with pytest.raises(TooLongError, match="or more than 5"):
        hub.list_files("hf://buckets/org/set")
    assert next(numbers) < 10


def end_with(connection):
    """As a worker that opens something of the Hub itself: how many files there are."""
    connection.send(len(hub.list_files("hf://buckets/org/b").files))
    connection.close()


def test_processes_that_are_forked_while_a_thread_asks(stand_in):
    """A fork waits for its request: the child closes huggingface_hub's client, whose locks must be free."""
    stand_in.put({"a.tar": b"x"}, "buckets/org/b")
    assert len(hub.list_files("hf://buckets/org/b").files) == 1
    is_over = threading.Event()

    def ask():
        while not is_over.is_set():
            hub.list_files("hf://buckets/org/b")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            with child(end_with) as (_, connection):
                assert receive(connection) == 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
