"""Shards and indexes in real stores: what each of them gives, and what is said when it does not."""

import asyncio
import base64
import contextlib
import gzip
import json
import os
import random
import socket
import threading
from datetime import datetime

import fsspec
import pytest
from google.oauth2.credentials import Credentials
from s3fs import S3FileSystem
from torch.utils.data import ConcatDataset, DataLoader

import wids
from tests.support import backends
from tests.support.backends import entry, ranges_of
from tests.support.cache_shards import pack, shard, text
from tests.support.servers import instead
from tests.support.tars import pack_of, table_of
from wids.core.files import system
from wids.core.index.discovery import find_shards
from wids.core.transport import concurrency, download, filesystems, http, retrying
from wids.core.transport.buckets import S3Source
from wids.core.transport.session import Session
from wids.errors import (
    ChangedShardError,
    CompressedShardError,
    DigestMismatchError,
    EmptyShardError,
    FetchDeniedError,
    FetchError,
    ShardNotFoundError,
    SizeMismatchError,
    SpecError,
    TooLongError,
    UnreachableError,
    WrongContentError,
)
from wids.jobs.index_create import IndexSettings, create_index

pytestmark = pytest.mark.usefixtures("no_waits")


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    """See `backends.nginx`."""
    with backends.nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture
def memory(tmp_path):
    """A place in fsspec's memory, which is emptied."""
    name = tmp_path.name
    yield lambda: backends.memory(name)
    fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


def place_of(kind, request):
    """A place of its own in a store."""
    if kind == "memory":
        return request.getfixturevalue("memory")()
    return request.getfixturevalue(kind).place()


@pytest.fixture(params=["nginx", "s3", "gs", "memory"])
def place(request):
    """A place in each of the stores."""
    return place_of(request.param, request)


@pytest.fixture(params=["nginx", "s3", "gs"])
def server_place(request):
    """A place in each of the stores that are servers."""
    return place_of(request.param, request)


@pytest.fixture
def load(tmp_path):
    """Make a dataset of what is in a place, its cache in ``cache``."""

    def load(place, shards, *, cache="cache", **options):
        return wids.ShardListDataset(
            shards,
            cache_dir=tmp_path / cache,
            storage_options=place.options,
            transformations="raw",
            **options,
        )

    return load


def samples_of(dataset):
    """(text, other member) of each sample."""
    return [(sample[".txt"], sample[".bin"]) for sample in dataset]


def packed(tags):
    """What `samples_of` gives where the shards are ``shard(tag)``, one for each tag."""
    return [(text(tag, row), (tag.encode() + b"%04d" % row) * 20) for tag in tags for row in range(3)]


# --- what is there


def test_an_index_and_its_shards(place, load):
    """Relative URLs, upwards and absolute ones lead to the bytes that were packed; a second dataset fetches nothing."""
    names = {"a.tar": "sets/a.tar", "deep/er/b.tar": "sets/deep/er/b.tar", "../c.tar": "c.tar"}
    shards = []
    for tag, (url, name) in zip("abc", names.items(), strict=True):
        place.add(name, shard(tag))
        shards.append(entry(url, shard(tag)))
    shards.append(entry(place.add("elsewhere/d.tar", shard("d")), shard("d")))
    index = place.add_index(shards, "sets/train.json")
    dataset = load(place, index)
    urls = [f"{place.url}/{name}" for name in [*names.values(), "elsewhere/d.tar"]]
    assert [found["url"] for found in dataset.shards] == urls
    assert samples_of(dataset) == packed("abcd")
    assert [sample["__shard__"] for sample in dataset][::3] == urls
    assert dataset.stats().fetches == 4
    again = load(place, index)
    assert samples_of(again) == packed("abcd")
    assert again.stats().fetches == 0


def test_shards_without_an_index(place, load):
    """A list of URLs and counts says neither size nor md5; the bytes come all the same."""
    pairs = [(place.add(f"{tag}.tar", shard(tag)), 3) for tag in "ab"]
    assert samples_of(load(place, pairs)) == packed("ab")


@pytest.mark.parametrize("name", ["a b.tar", "é😀.tar", "a+b%20c&d=e,f.tar", "what?.tar", "one#2.tar", "{0..1}.tar"])
def test_names_of_any_letters(server_place, load, name):
    """Spaces, signs and letters beyond ASCII in names; in buckets, ``?`` and ``#`` too."""
    if server_place.url.startswith("http") and not {"?", "#", "%"}.isdisjoint(name):
        server_place.add(name, shard())
        name = name.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    else:
        server_place.add(name, shard())
    index = server_place.add_index([entry(name, shard())])
    assert samples_of(load(server_place, index)) == packed("a")


@pytest.mark.parametrize("kind", ["nginx", "s3", "gs"])
@pytest.mark.parametrize("megabytes", [5, pytest.param(66, marks=pytest.mark.thorough)])
def test_a_large_shard(kind, megabytes, load, request, set_limits):
    """A shard that is fetched in several ranges, each byte once, is put together byte for byte."""
    if megabytes == 5:
        set_limits(concurrency, first_range_bytes=1 << 20, max_range_bytes=1 << 20)
    place, content = place_of(kind, request), random.Random(0).randbytes(megabytes << 20)
    data = pack([("a.txt", b"a"), ("a.bin", content), ("b.txt", b"b"), ("b.bin", b"end")])
    index = place.add_index([entry("a.tar", data, nsamples=2)])
    url = place.add("a.tar", data)
    dataset = load(place, index)
    assert dataset[1][".bin"] == b"end"
    assert dataset[0][".bin"] == content
    requests = place.requests(url)
    ranges = ranges_of(requests)
    assert len(ranges) > 1
    assert {one["status"] for one in requests} == {206}
    assert [lo for lo, _ in ranges] == [0, *(hi for _, hi in ranges[:-1])]
    assert ranges[-1][1] == len(data)


def basic(words):
    """What a client sends to log in with ``user:password``."""
    return f"Basic {base64.b64encode(words.encode()).decode()}"


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("nginx", {}, ""),
        ("nginx", {"headers": {"Authorization": basic("me:open sesame")}}, basic("me:open sesame")),
        ("s3", {"anon": True}, ""),
        ("s3", {"key": "me", "secret": "sesame"}, "AWS4-HMAC-SHA256 Credential=me/"),
        ("gs", {"token": "anon"}, ""),
        ("gs", {"token": Credentials("sesame", expiry=datetime(2100, 1, 1))}, "Bearer sesame"),  # noqa: DTZ001 - it wants UTC without saying so
    ],
)
def test_credentials(kind, options, said, load, request):
    """Who asks for index and shard is who ``storage_options`` say, or nobody."""
    place = place_of(kind, request)
    index, url = place.add_index([entry("a.tar", shard())]), place.add("a.tar", shard())
    if kind == "nginx":
        if said:  # where a password is asked for
            index, url = (request.getfixturevalue("nginx").served(one, "secret") for one in (index, url))
        place.options = options
    else:
        place.options = {"endpoint_url": place.options["endpoint_url"], **options}
    if options == {"anon": True}:
        for one in (index, url):
            request.getfixturevalue("s3").show_to_all(one)
    assert samples_of(load(place, index)) == packed("a")
    for asked in (index, url):
        (one,) = place.requests(asked)
        assert one["authorization"].startswith(said)
        assert bool(one["authorization"]) == bool(said)


# --- what has changed


@pytest.mark.parametrize("new", [shard("b"), shard("b", size=20_000)], ids=["of the same size", "larger"])
def test_a_replaced_shard(place, load, new):
    """Where a shard was replaced and the index says so, the new one is served, and the old one to nobody."""
    place.add("a.tar", shard("a"))
    old = load(place, place.add_index([entry("a.tar", shard("a"))]))
    assert samples_of(old) == packed("a")
    place.add("a.tar", new)
    dataset = load(place, place.add_index([entry("a.tar", new)]))
    assert [sample[".txt"] for sample in dataset] == [text("b", row) for row in range(3)]
    assert samples_of(old) == packed("a")  # it has the shard open
    old.close()
    with pytest.raises((SizeMismatchError, DigestMismatchError)):
        _ = old[0]


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"filesize": 10_241}, SizeMismatchError),
        ({"filesize": 512}, SizeMismatchError),
        ({"md5sum": "0" * 32}, DigestMismatchError),
    ],
)
def test_a_shard_that_is_not_the_one_in_the_index(place, load, facts, error):
    """Another size or md5 than the index says is an error that names URL, expected and found; nothing is served."""
    url = place.add("a.tar", shard())
    dataset = load(place, place.add_index([entry("a.tar", shard(), **facts)]))
    with pytest.raises(error) as caught:
        _ = dataset[0]
    assert caught.value.url == url
    assert url in str(caught.value)
    true = entry(url, shard())
    (name,) = facts
    assert (caught.value.expected, caught.value.found) == (facts[name], true[name])
    assert dataset.stats().fetches == 0


# --- what is not there


def test_a_missing_index(place, load):
    """An index that is not there, and one where nothing is: the error names it."""
    place.add("a.tar", shard())
    for url in (f"{place.url}/nosuch.json", f"{place.nowhere}/train.json"):
        with pytest.raises(ShardNotFoundError, match="does not exist; check the URL") as caught:
            load(place, url)
        assert caught.value.url == url
        assert url in str(caught.value)


def test_a_missing_shard(place, load):
    """A shard that is not there, and one where nothing is; the one between them is served."""
    place.add("b.tar", shard("b"))
    missing = [f"{place.url}/nosuch.tar", f"{place.nowhere}/a.tar"]
    shards = [entry("nosuch.tar", shard()), entry("b.tar", shard("b")), entry(missing[1], shard())]
    dataset = load(place, place.add_index(shards))
    for row, url in zip((0, 6), missing, strict=True):
        with pytest.raises(ShardNotFoundError, match="does not exist; check the URL") as caught:
            _ = dataset[row]
        assert caught.value.url == url
        assert url in str(caught.value)
    assert samples_of(dataset[i] for i in range(3, 6)) == packed("b")
    assert dataset.stats().retries == 0


def test_a_directory(place, load):
    """What stands for a directory is no shard; the error names it."""
    place.add("a.tar/b.tar", shard())
    dataset = load(place, [(f"{place.url}/a.tar", 3)])
    with pytest.raises(FetchError) as caught:
        _ = dataset[0]
    assert f"{place.url}/a.tar" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyShardError),
        (b"\x1f\x8b" + bytes(10_000), CompressedShardError),
        (b"<!DOCTYPE html><title>Log in</title>", WrongContentError),
    ],
)
def test_what_is_no_shard(place, load, data, error):
    """An empty object, a compressed one, a page: each has its error, which names the URL."""
    url = place.add("a.tar", data)
    with pytest.raises(error) as caught:
        _ = load(place, [(url, 3)])[0]
    assert url in str(caught.value)


# --- what is refused


def assert_denied(place, load, index, shard_url):
    """Neither an index nor a shard is handed out, and the first answer is taken for final."""
    with pytest.raises(
        FetchDeniedError, match=r"(?s)access was refused \(.*\); check credentials, storage_options"
    ) as caught:
        load(place, index)
    assert caught.value.url == index
    dataset = load(place, [(shard_url, 3)])
    with pytest.raises(
        FetchDeniedError, match=r"(?s)access was refused \(.*\); check credentials, storage_options"
    ) as caught:
        _ = dataset[0]
    assert caught.value.url == shard_url
    assert shard_url in str(caught.value)
    assert dataset.stats().retries == 0


@pytest.mark.parametrize(
    ("way", "options"),
    [("denied", None), ("secret", None), ("secret", {"headers": {"Authorization": basic("me:open up")}})],
    ids=["status 403", "no password", "another password"],
)
def test_nginx_refuses(nginx, load, way, options):
    """Status 403 and 401 are refusals, for index and shard."""
    place = nginx.place()
    place.options = options
    urls = place.add_index([entry("a.tar", shard())]), place.add("a.tar", shard())
    assert_denied(place, load, *(nginx.served(url, way) for url in urls))


def test_s3_refuses(s3, load):
    """A key that nobody knows, and none where one is needed, are refusals, for index and shard."""
    place = s3.place()
    index, url = place.add_index([entry("a.tar", shard())]), place.add("a.tar", shard())
    with s3.nobody_is_known():
        assert_denied(place, load, index, url)
    place.options = {"endpoint_url": s3.endpoint, "anon": True}
    assert_denied(place, load, index, url)


@pytest.mark.parametrize("bucket", ["forbidden", "unauthorized"])
def test_gs_refuses(nginx, gs, load, bucket):
    """Status 403, which gcsfs makes an OSError of, and 401 are refusals, for index and shard."""
    place = backends.Place(f"gs://{bucket}", None, options={"endpoint_url": nginx.url, "token": "anon"})
    assert_denied(place, load, f"gs://{bucket}/train.json", f"gs://{bucket}/a.tar")


# --- where nobody listens


@pytest.fixture
def connects(monkeypatch):
    """The addresses of all connections that clients of fsspec ask for, in order."""
    asked, connect = [], asyncio.selector_events.BaseSelectorEventLoop.sock_connect

    async def counted(loop, sock, address):
        asked.append(address)
        return await connect(loop, sock, address)

    monkeypatch.setattr(asyncio.selector_events.BaseSelectorEventLoop, "sock_connect", counted)
    return asked


@pytest.fixture
def endpoint():
    """The URL of a port that nobody listens on."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{nobody.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_no_server(load, endpoint, no_waits, connects, scheme):
    """A port that nobody listens on is said to be one at once: no client adds tries of its own."""
    url = f"{endpoint}/a.tar" if scheme == "http" else "s3://bucket/a.tar"
    options = None if scheme == "http" else {"key": "me", "secret": "sesame", "endpoint_url": endpoint}
    dataset = load(backends.Place(endpoint, None, options=options), [(url, 3)])
    with pytest.raises(UnreachableError, match="connection refused") as caught:
        _ = dataset[0]
    assert caught.value.url == url
    assert sum(no_waits) <= retrying.LIMITS.first_seconds / 4
    assert len(connects) <= len(no_waits) + 2  # its member table was looked for, too


@pytest.mark.parametrize("name", ["s3://bucket/shards/", "s3://bucket/*.tar", "gs://bucket/shards/"])
def test_no_server_that_lists(endpoint, no_waits, connects, name):
    """Likewise where shards are looked for."""
    own = {"token": "anon"} if name.startswith("gs") else {"key": "me", "secret": "sesame"}
    with pytest.raises(UnreachableError, match="connection refused"):
        find_shards([name], session=Session({"endpoint_url": endpoint, **own}))
    assert sum(no_waits) <= retrying.LIMITS.first_seconds / 4
    assert len(connects) <= 2 * (len(no_waits) + 1)  # to look for one name may be two requests


def test_no_endpoint(no_waits, monkeypatch):
    """Without endpoint_url, S3 is Amazon's: the error says so, whether a name is missing there or keys are."""

    def resolve(host, *args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UnreachableError, match=r"cannot be resolved.*Amazon's, add .*endpoint_url"):
        download.read_bytes("s3://bucket/train.json", session=Session({"anon": True}))
    assert sum(no_waits) <= retrying.LIMITS.first_seconds / 4
    no_waits.clear()
    with pytest.raises(FetchDeniedError, match=r'no credentials .*"anon": True.*endpoint_url'):
        download.read_bytes("s3://bucket/train.json")
    assert not no_waits


def test_a_program_s_own_client_keeps_its_retries(s3):
    """What wids takes from a client it takes from its own one, and not where a program has set how many there are."""
    options = dict(s3.options)
    ours, _ = filesystems.open_filesystem("s3://bucket/a.tar", Session(options), tries_once=True)
    theirs = S3FileSystem(**options)
    assert (ours.retries, theirs.retries) == (1, S3FileSystem.retries)
    options["config_kwargs"] = {"retries": {"max_attempts": 7}}
    chosen, _ = filesystems.open_filesystem("s3://bucket/a.tar", Session(options), tries_once=True)
    assert chosen.config_kwargs == options["config_kwargs"]


def test_two_servers_with_one_url(gs, load):
    """One bucket and name on two servers are two shards, in one cache too."""
    with backends.gs() as other:
        for buckets, tag in ((gs, "a"), (other, "b")):
            place = buckets.place("twice")
            place.add("a.tar", shard(tag))
            assert samples_of(load(place, [("gs://twice/a.tar", 3)])) == packed(tag)


# --- through chains of file systems, and in place


@pytest.mark.parametrize("kind", ["nginx", "s3", "gs"])
def test_a_chain(kind, load, request, tmp_path):
    """``simplecache::`` before index and shards: they come through fsspec's cache, options by protocol."""
    place = place_of(kind, request)
    for tag in "ab":
        place.add(f"{tag}.tar", shard(tag))
    index = place.add_index([entry(f"{tag}.tar", shard(tag)) for tag in "ab"])
    scheme = place.url.partition(":")[0]
    options = {"simplecache": {"cache_storage": str(tmp_path / "fsspec")}, scheme: place.options or {}}
    chained = backends.Place(f"simplecache::{place.url}", None, options=options)
    dataset = load(chained, f"simplecache::{index}")
    assert dataset.shards[0]["url"] == f"simplecache::{place.url}/a.tar"
    assert samples_of(dataset) == packed("ab")
    with pytest.raises(ShardNotFoundError) as caught:
        _ = load(chained, [(f"simplecache::{place.url}/nosuch.tar", 3)])[0]
    assert caught.value.url == f"simplecache::{place.url}/nosuch.tar"


def test_files_by_url(tmp_path, load):
    """``file://`` is read in place and nothing is copied, or it is copied once; size and md5 are those of the index."""

    def put(name, data):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_bytes(data)

    place = backends.Place(f"file://{tmp_path}/data", put)
    place.add("a.tar", shard())
    index = place.add_index([entry("a.tar", shard())])
    dataset = load(place, index)
    assert samples_of(dataset) == packed("a")
    assert not (tmp_path / "cache").exists()
    copied = load(place, index, cache_local=True)
    assert samples_of(copied) == packed("a")
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 1
    assert copied.stats().fetches == 1
    with pytest.raises(ShardNotFoundError, match="does not exist; check the URL") as caught:
        load(place, f"{place.url}/nosuch.json")
    assert caught.value.url == f"{place.url}/nosuch.json"
    with pytest.raises(ChangedShardError, match=f"{place.url}/a.tar|{tmp_path}/data/a.tar"):
        _ = load(place, [entry(f"{place.url}/a.tar", shard(), filesize=20_480)])[0]
    with pytest.raises(DigestMismatchError, match=f"{place.url}/a.tar"):
        _ = load(place, [entry(f"{place.url}/a.tar", shard(), md5sum="0" * 32)], cache="other", cache_local=True)[0]


# --- what S3 does


@pytest.fixture
def replaced_after(monkeypatch, set_limits):
    """A function: after so many requests for any object, one of them is put anew; ranges are short."""
    set_limits(concurrency, first_range_bytes=1000, min_range_bytes=1000, max_range_bytes=1000)
    real = S3Source.ask

    def arm(count, put, *args):
        async def ask(self, *given, **options):
            nonlocal count
            count -= 1
            if not count:
                await asyncio.to_thread(put, *args)
            return await real(self, *given, **options)

        monkeypatch.setattr(S3Source, "ask", ask)

    return arm


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_an_object_in_s3_that_is_replaced(s3, load, replaced_after, count):
    """During a download all samples are of the new one; by range, those of the old one end with a typed error."""
    place, (old, new) = s3.place(), (pack([(f"{k}.txt", tag * 700) for k in range(9)]) for tag in (b"o", b"n"))
    url = place.add("a.tar", old)
    place.add("a.tar.widx", table_of(old).to_bytes())
    dataset = load(place, [(url, 9)], early_reads=False)
    replaced_after(count, place.put, "a.tar", new)
    found = {sample[".txt"][:1] for sample in dataset}
    assert found == {b"n"} or (found == {b"o"} and count == 20)
    place.put("a.tar", old)
    dataset = load(place, [(url, 9)], cache="other", access="range")
    replaced_after(count, place.put, "a.tar", new)
    seen = []
    with contextlib.suppress(ChangedShardError):
        seen += [dataset[row][".txt"] for row in range(9)]
    # The first request of all is for the new one, whose members are at the same places.
    assert set(seen) <= {(b"n" if count == 1 else b"o") * 700}


def test_a_name_in_s3_that_looks_like_a_pattern(s3, load, tmp_path):
    """It is the object's; an index is made of it, and read; where there is no such object, it is a pattern."""
    place = s3.place()
    url, _ = place.add("a[1].tar", shard()), place.add("a1.tar", shard("b"))
    settings = IndexSettings(session=Session(place.options))
    with pytest.raises(SpecError, match=r"no file has a name like this"):
        find_shards([f"{place.url}/a[2-3]*.tar"], session=Session(place.options))
    for source, tags in ((url, "a"), (f"{place.url}/?[[]1].tar", "a"), (f"{place.url}/a?.tar", "b")):
        create_index([source], str(tmp_path / "train.json"), settings=settings, overwrite=True)
        assert samples_of(load(place, str(tmp_path / "train.json"))) == packed(tags)


def test_a_version_in_s3(s3, load):
    """One that a URL names is read, whole and by range, whatever is there by now."""
    place = s3.place()
    bucket = place.url.removeprefix("s3://")
    enabled = b'<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status>'
    s3.send("PUT", f"/{bucket}?versioning", enabled + b"</VersioningConfiguration>", Authorization=s3._SIGNED)
    url = place.add("a.tar", shard("a"))
    before = s3.send("HEAD", f"/{bucket}/a.tar", Authorization=s3._SIGNED)["x-amz-version-id"]
    place.put("a.tar", shard("b"))
    assert samples_of(load(place, [(url, 3)])) == packed("b")
    for access in ("fetch", "range"):
        assert samples_of(load(place, [(f"{url}?versionId={before}", 3)], access=access)) == packed("a")


def test_an_index_in_s3_that_is_too_long(s3, load, monkeypatch):
    """The head of the answer shows it, and no body is read."""
    place = s3.place()
    index = place.add_index([entry("a.tar", shard())])
    monkeypatch.setattr(download, "MAX_READ_BYTES", 20)
    monkeypatch.setattr(http.Answer, "read", None)
    with pytest.raises(TooLongError, match=r"train\.json.*; it has \d"):
        load(place, index)
    assert len(place.requests(index)) == 1


# --- what nginx does


@pytest.mark.parametrize(
    ("way", "statuses"),
    [("moved", {302}), ("deflated", {206}), ("zipped", {200}), ("closing", {206}), ("slow", {206}), ("whole", {200})],
)
def test_ways_to_serve(nginx, load, way, statuses):
    """Redirects, compression, connections that end, limited rates and no ranges: the same bytes, at the first try.

    Where it would compress for the wire it is asked not to; where it does all the same, that is undone.
    """
    content = random.Random(0).randbytes(3 << 20)
    data, place = pack([("a.txt", b"a"), ("a.bin", content)]), nginx.place()
    lines = json.dumps({"wids_version": 1, "shardlist": [entry("a.tar", data, nsamples=1)]}).encode()
    for name, whole in (("train.json", lines), ("a.tar", data)):
        place.add(name, whole)
        place.add(f"{name}.gz", gzip.compress(whole, 1))  # what location zipped has
    index, url = f"{place.url}/train.json", f"{place.url}/a.tar"
    dataset = load(place, nginx.served(index, way))
    assert samples_of(dataset) == [(b"a", content)]
    assert (dataset.stats().fetches, dataset.stats().retries) == (1, 0)
    requests = nginx.requests(nginx.served(url, way))
    assert {one["status"] for one in requests} == statuses
    assert {one["encoding"] for one in requests} == {"gzip" if way == "zipped" else ""}
    if way == "closing":
        assert len({one["connection"] for one in requests}) == len(requests)


@pytest.mark.parametrize("way", ["login", "page"])
def test_a_page_instead_of_a_shard(nginx, load, way):
    """A page with status 200, by redirect or in place of an error, is said to be one and is not kept."""
    place = nginx.place()
    url = nginx.served(place.add("a.tar", shard()), way)
    dataset = load(place, [(url, 3)])
    with pytest.raises(WrongContentError, match=r"a web page came instead of a shard .*Log in") as caught:
        _ = dataset[0]
    assert caught.value.url == url
    assert dataset.stats().fetches == 0


def test_a_server_that_is_busy(nginx, load):
    """Status 503 is tried again, and in the end said; 410 is final."""
    place = nginx.place()
    busy, gone = (nginx.served(place.add("a.tar", shard()), way) for way in ("busy", "gone"))
    dataset = load(place, [(busy, 3), (gone, 3)], early_reads=False)
    with pytest.raises(FetchError, match=r"503.*tries: 6") as caught:
        _ = dataset[0]
    assert caught.value.url == busy
    with pytest.raises(ShardNotFoundError, match="does not exist; check the URL"):
        _ = dataset[3]
    assert (len(nginx.requests(busy)), len(nginx.requests(gone))) == (6, 1)
    assert dataset.stats().retries == 5


@pytest.mark.parametrize("access", ["fetch", "range"])
def test_a_request_that_a_bucket_refuses(server, load, access):
    """Status 400, as of a wrong region or version, is final at once, also where the bucket has answered before."""
    server.has_ranges = True
    options = {"endpoint_url": server.url, "key": "x", "secret": "y"}
    place = backends.Place("s3://bucket", lambda name, data: server.add(f"/bucket/{name}", data), options=options)
    index = place.add_index([{"url": place.add("a.tar", shard()), "nsamples": 3}])
    server.faults["/bucket/a.tar"] = [instead(b"<Error><Code>InvalidArgument</Code></Error>", code=400)]
    dataset = load(place, index, access=access)
    with pytest.raises(FetchError, match=r"status 400.*tries: 1\); check the bucket's region"):
        _ = dataset[0]
    assert dataset.stats().retries == 0


def test_a_server_that_is_started_again(tmp_path, load, monkeypatch):
    """It ends in the middle of a transfer, which goes on with its successor: what had come is not asked for again."""
    data = pack([("a.txt", b"a"), ("a.bin", random.Random(0).randbytes(3 << 20))])
    some_came, write_all = threading.Event(), system.write_all

    def spy(fd, block, offset):
        write_all(fd, block, offset)
        if len(block) > 1000:  # of the shard, not of a lock file
            some_came.set()

    monkeypatch.setattr(system, "write_all", spy)
    with backends.nginx(tmp_path / "nginx") as server:
        place = server.place()
        url = server.served(place.add("a.tar", data), "halting")
        dataset = load(place, [entry(url, data, nsamples=1)])

        def start_again():
            if some_came.wait(backends.PATIENCE_SECONDS):
                server.stop()
                server.start(halts=False)

        thread = threading.Thread(target=start_again)
        thread.start()
        try:
            assert dataset[0][".bin"] == data[1536:][: 3 << 20]
        finally:
            thread.join()
        ranges = ranges_of(server.requests(url))
    assert dataset.stats().retries >= 1
    assert sum(hi - lo for lo, hi in ranges) < len(data)


# --- in the workers of a loader


def filled(place, load):
    """A dataset of six shards, from which this process has read."""
    shards = [entry(place.add(f"{tag}.tar", shard(tag)), shard(tag)) for tag in "abcdef"]
    dataset = load(place, place.add_index(shards))
    assert samples_of([dataset[0]]) == packed("a")[:1]
    return dataset


@pytest.mark.parametrize("is_ahead", [False, True])
def test_forked_workers(server_place, load, is_ahead):
    """Two workers that fork from a process that has read from the store get every sample, and it goes on as before.

    With ``is_ahead`` they fork while it fetches for them.
    """
    dataset = filled(server_place, load)
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=2,
        sampler=wids.ChunkedSampler(dataset) if is_ahead else None,
        collate_fn=list,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        assert sorted(samples_of(sample for batch in loader for sample in batch)) == packed("abcdef")
    assert dataset.stats().fetches == 6
    assert [len(server_place.requests(shard["url"])) for shard in dataset.shards] == [1] * 6
    assert samples_of(load(server_place, dataset.shards, cache="other")) == packed("abcdef")


@pytest.mark.thorough
def test_spawned_workers(nginx, s3, gs, load):
    """Two workers that start from nothing get every sample of three datasets, each from another store."""
    stores = (nginx, s3, gs)
    datasets = [filled(store.place(), load) for store in stores]
    joined = ConcatDataset(datasets)
    loader = DataLoader(joined, batch_size=6, num_workers=2, collate_fn=list, multiprocessing_context="spawn")
    assert samples_of(sample for batch in loader for sample in batch) == packed("abcdef") * 3
    for store, dataset in zip(stores, datasets, strict=True):
        assert dataset.stats().fetches == 6
        assert [len(store.requests(shard["url"])) for shard in dataset.shards] == [1] * 6


def test_an_error_in_a_worker(server_place, load):
    """What a worker could not fetch is the same typed error in the loop, with the URL in its message."""
    server_place.add("a.tar", shard("a"))
    dataset = load(server_place, server_place.add_index([entry(f"{tag}.tar", shard(tag)) for tag in "ab"]))
    loader = DataLoader(dataset, batch_size=3, num_workers=1, collate_fn=list, multiprocessing_context="fork")
    samples = []

    def first_error():
        try:
            for batch in loader:
                samples.extend(samples_of(batch))
        except FetchError as error:
            # Its frames hold the loop and so the worker, which would wait for seconds before it ends.
            return error.with_traceback(None)
        return None

    error = first_error()
    assert samples == packed("a")
    assert isinstance(error, ShardNotFoundError)
    assert f"{server_place.url}/b.tar: does not exist; check the URL" in str(error)


def test_member_tables_in_a_pack(place, load, tmp_path):
    """One table for each shard, of the version that the directory is of; from memory, which tells none, none."""
    urls = [place.add(f"{tag}.tar", shard(tag)) for tag in "ab"]
    tables = {url: table_of(shard(tag)).to_bytes() for tag, url in zip("ab", urls, strict=True)}
    pack = place.add("train.tables", pack_of(tables, f"{place.url}/train.tables"))
    shards = [entry(url, shard(tag)) for tag, url in zip("ab", urls, strict=True)]
    options = {"access": "range", "options": {"member_tables": pack}}
    dataset = load(place, shards, **options)
    assert samples_of(dataset) == packed("ab")
    kept = list((tmp_path / "cache" / ".wids" / "indexes").glob("*.tables"))
    if place.url.startswith("memory"):
        assert kept == []
        return
    assert len(kept) == 1
    before = len(place.requests(pack))
    assert samples_of(load(place, shards, **options)) == packed("ab")
    assert len(place.requests(pack)) == before + 2
    tables = {"c.tar": b"longer: nginx tells versions of one second apart by their sizes alone", **tables}
    place.add("train.tables", pack_of(tables, pack))
    assert samples_of(load(place, shards, **options)) == packed("ab")
    assert len(place.requests(pack)) == before + 2 + 1 + 1 + 2  # one in vain, the directory again
    assert kept == list((tmp_path / "cache" / ".wids" / "indexes").glob("*.tables"))
