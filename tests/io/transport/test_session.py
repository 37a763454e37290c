"""Which servers get which credentials, and where a redirect may lead."""

import json

import aiohttp
import pytest

import wids
from tests.support import cache_shards
from tests.support.servers import Server, redirect, status
from tests.support.shards import write_shards
from wids import errors
from wids.core.collection.shard_collection import load_shards
from wids.core.index.discovery import find_shards
from wids.core.place import Place
from wids.core.transport.session import Session

CREDENTIALS = {"x-api-key": "s3cret-key", "authorization": "Basic bWU6czNjcmV0", "cookie": "id=s3cret"}
ALL, NONE = set(CREDENTIALS), set()
each_access = pytest.mark.parametrize("access", ["fetch", "range"])


@pytest.mark.parametrize("form", ["file://{}", "pipe:cat {}", "{}", "ftp://127.0.0.1{}"])
def test_a_redirect_leads_to_nothing_local(server, tmp_path, no_waits, form):
    """A server that was asked for a shard cannot name a file of this machine instead."""
    secret = write_shards(tmp_path, (3,))[0]["url"]
    url = server.add("/s.tar", b"", redirect(form.format(secret)))
    with pytest.raises(errors.FetchError):
        wids.ShardListDataset([(url, 3)], cache_dir=tmp_path / "cache")[0]


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
    _, _, narrowed = load_shards(place, session=Session(given))
    assert narrowed.options_for(Place("s3://bucket/a.tar")) == given
    assert narrowed.options_for(Place("https://elsewhere/a.tar")) == {}


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
        load_shards(server.url + "/here.json", session=Session(options()))
    elif way == "listing":
        find_shards([server.url + "/here/"], session=Session(options()))
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
