"""Objects in S3 and Google Cloud Storage, which are read over HTTP with the signatures and tokens of their clients."""

import datetime as dt
import gc
import json
import logging
import random
import ssl
import sys
import traceback

import pytest
from gcsfs.core import GCSFileSystem
from google.oauth2.credentials import Credentials

from tests.support import backends
from tests.support.cache_shards import write
from tests.support.range_faults import ignored, replaced, said, short
from tests.support.servers import Server, cut, instead, redirect, reset, status, whole, write_certificate
from wids.core.transport import buckets, concurrency, download, filesystems
from wids.core.transport.buckets import GoogleSource, S3Source
from wids.core.transport.failures import InterruptedTransferError
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import Session
from wids.core.transport.source import Precedence, Sink
from wids.core.transport.spans import Span
from wids.core.transport.stores import AsyncSource, open_source
from wids.errors import ChangedShardError, FetchDeniedError, FetchError, UnreachableError

pytestmark = pytest.mark.usefixtures("no_waits")

URL, PATH = "s3://bucket/a.tar", "/bucket/a.tar"
BODY = random.Random(0).randbytes(100_000)
NEW = BODY[::-1]
RANGE = 10_000
KEYS = {"key": "AKIAME", "secret": "sesame", "token": "open"}
GS_URL, MEDIA, ABOUT = "gs://bucket/a.tar", "/download/storage/v1/b/bucket/o/a.tar", "/storage/v1/b/bucket/o/a.tar"


@pytest.fixture
def store(server, set_limits, monkeypatch):
    """A server with one object in S3, which does not look at signatures; ``store.options`` reach it; short ranges."""
    set_limits(concurrency, first_range_bytes=RANGE, min_range_bytes=RANGE, max_range_bytes=RANGE)
    for name in ("AWS_PROFILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    server.has_ranges = True
    server.add(PATH, BODY)
    server.options = {"endpoint_url": server.url, **KEYS}
    return server


@pytest.fixture
def google(server):
    """The same in Google Cloud Storage, with a function that puts the object."""

    def put(body, generation):
        server.add(MEDIA, body)
        server.add(ABOUT, json.dumps({"name": "a.tar", "size": len(body), "generation": generation}).encode())

    server.has_ranges, server.put = True, put
    put(BODY, "1")
    server.options = {"endpoint_url": server.url, "token": "anon"}
    with backends.plain_gcsfs():
        yield server


@pytest.fixture
def fetch(tmp_path):
    """A function: the bytes of a download."""

    def fetch(options, url=URL):
        target = write(tmp_path / "target", b"")
        download.download_to(url, target, check=lambda: None, session=Session(options))
        with open(target, "rb") as file:
            return file.read()

    return fetch


def error_with(code, number=403, **headers):
    """S3's answer for an error."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Words of {code}.</Message></Error>"
    return instead(body.encode(), code=number, Content_Type="application/xml", **headers)


# --- versions


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_versions_stay_those_of_the_client(kind, request):
    """Caches and journals have recorded them: of the same object, each letter is the same as from s3fs and gcsfs."""
    place = request.getfixturevalue(kind).place()
    url = place.add("a.tar", BODY)
    filesystem, name = filesystems.open_filesystem(url, Session(place.options), tries_once=True)
    before = AsyncSource(url, filesystem, name, go_on=lambda: None).stat()
    with open_source(url, Session(place.options)) as source:
        assert type(source) is {"s3": S3Source, "gs": GoogleSource}[kind]
        assert repr(source.stat()) == repr(before)
    if kind == "s3":
        tag, changed = before.version
        assert tag.strip('"').isalnum()
        assert dt.datetime.fromisoformat(changed).tzinfo == dt.timezone.utc


@pytest.mark.parametrize("validators", [("ETag",), ("Last-Modified",), ()])
def test_versions_of_servers_that_state_less(store, validators):
    """Likewise where a tag or a time is missing, and so where nothing is strong."""
    store.validators = validators
    filesystem, name = filesystems.open_filesystem(URL, Session(store.options), tries_once=True)
    before = AsyncSource(URL, filesystem, name, go_on=lambda: None).stat()
    with open_source(URL, Session(store.options)) as source:
        assert source.stat() == before


# --- requests of S3


def test_one_signature_for_the_ranges_of_an_object(store, fetch, set_limits):
    """It covers neither the range nor the URL's query, and is made again when it is old."""
    assert fetch(store.options) == BODY
    assert len(store.ranges) > 5
    ((signature, _),) = {(headers["authorization"], headers["amz-sdk-invocation-id"]) for headers in store.headers}
    assert signature.startswith("AWS4-HMAC-SHA256 Credential=AKIAME/")
    assert "range" not in signature
    assert set(store.requests) == {PATH}
    assert {headers["x-amz-security-token"] for headers in store.headers} == {"open"}
    set_limits(filesystems, signed_seconds=0.0)
    assert fetch(store.options) == BODY
    assert len({headers["amz-sdk-invocation-id"] for headers in store.headers}) > 5


def test_signatures_of_many_objects(store, fetch, monkeypatch):
    """Only so many are kept."""
    monkeypatch.setattr(buckets, "_MAX_SIGNED", 3)
    for k in range(5):
        store.add(f"/bucket/{k}.tar", BODY)
        assert fetch(store.options, f"s3://bucket/{k}.tar") == BODY
    filesystem, _ = filesystems.open_filesystem(URL, Session(store.options), tries_once=True)
    assert len(buckets._signatures[filesystem]) <= 3


def test_options_of_requests(store, fetch):
    """Who pays, and keys of encryption, are part of the request as s3fs makes it."""
    more = {"requester_pays": True, "s3_additional_kwargs": {"ExpectedBucketOwner": "123456789012"}}
    assert fetch({**store.options, **more}) == BODY
    assert {headers["x-amz-request-payer"] for headers in store.headers} == {"requester"}
    assert {headers["x-amz-expected-bucket-owner"] for headers in store.headers} == {"123456789012"}


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"endpoint_url": "http://store.test"}, "http://store.test/bucket/a%20b.tar"),
        (
            {"endpoint_url": "http://store.test", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
            "http://bucket.store.test/a%20b.tar",
        ),
        ({"client_kwargs": {"region_name": "eu-west-1"}}, "https://bucket.s3.eu-west-1.amazonaws.com/a%20b.tar"),
        ({"use_ssl": False}, "http://bucket.s3.amazonaws.com/a%20b.tar"),
    ],
)
def test_addresses(options, url, monkeypatch):
    """Endpoint, region, style and scheme are as in s3fs, and so is the quoting of keys."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    filesystem, name = filesystems.open_filesystem("s3://bucket/a b.tar", Session({**KEYS, **options}), tries_once=True)
    assert filesystems.run(buckets._sign(filesystem, name)).url == url


def test_credentials_that_end_are_renewed(store, fetch, tmp_path, monkeypatch, set_limits):
    """As botocore does it: a program gives others when those that it gave before end soon."""
    program = tmp_path / "keys.py"
    soon = (dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=1)).isoformat()
    facts = {"Version": 1, "SecretAccessKey": "sesame", "SessionToken": "open", "Expiration": soon}
    program.write_text(
        f"import json, os\nwith open({str(tmp_path / 'count')!r}, 'a+') as file:\n    file.write('x')\n"
        f"    print(json.dumps({facts!r} | {{'AccessKeyId': f'AKIA{{file.tell()}}'}}))\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[profile mine]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    set_limits(filesystems, signed_seconds=0.0)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert fetch({"endpoint_url": store.url, "profile": "mine"}) == BODY
    assert len({headers["authorization"].split("/")[0] for headers in store.headers}) > 2


@pytest.mark.parametrize(
    "answer",
    [
        error_with("PermanentRedirect", 301, x_amz_bucket_region="eu-west-1"),
        error_with("TemporaryRedirect", 307, x_amz_bucket_region="eu-west-1"),
        instead(b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>", code=400),
    ],
    ids=["301", "307", "400"],
)
def test_a_bucket_of_another_region(store, fetch, answer):
    """It is found once, with a second request of the client, and known from then on."""
    astray = []

    def bucket(handler, body):
        if "/eu-west-1/" in handler.headers["Authorization"]:
            return whole(handler, body)
        astray.append(handler.number)
        return answer(handler, body)

    store.faults[PATH] = [bucket]
    store.options["client_kwargs"] = {"region_name": "us-east-1"}
    assert fetch(store.options) == BODY
    assert astray == [1, 2]
    assert fetch(store.options) == BODY
    store.add("/bucket/b.tar", NEW, bucket)
    assert fetch(store.options, "s3://bucket/b.tar") == NEW
    assert astray == [1, 2]


def test_a_redirect_that_names_no_region(store, fetch):
    """It is for the client to follow, as the client would do it by itself."""
    store.faults[PATH] = [redirect("/elsewhere/a.tar")]
    store.add("/elsewhere/a.tar", BODY)
    assert fetch(store.options) == BODY
    with open_source(URL, Session(store.options)) as source:
        assert type(source) is AsyncSource


def test_bytes_come_as_they_are_stored(store, fetch):
    """An encoding is a note on the object, as in s3fs; clients of HTTP would undo it."""
    store.faults[PATH] = [said(whole, Content_Encoding="gzip")]
    assert fetch(store.options) == BODY


# --- faults, as of other servers


@pytest.mark.parametrize("fault", [cut, reset, short], ids=["cut", "reset", "short"])
def test_a_broken_range_keeps_its_bytes(store, fetch, fault):
    """Only the others are requested again."""
    store.faults[PATH] = [whole, fault, whole]
    assert fetch(store.options) == BODY
    wanted = sum(min(hi, len(BODY)) - lo for _, lo, hi in store.ranges)
    assert len(BODY) < wanted < len(BODY) + RANGE + (fault is reset)  # which may drop bytes that have come


@pytest.mark.parametrize("url", [URL, GS_URL])
def test_a_server_that_asks_for_patience(url, request, fetch, no_waits):
    """Status 503 is tried again, when it says."""
    server = request.getfixturevalue("store" if url is URL else "google")
    path = PATH if url is URL else MEDIA
    server.faults[path] = [error_with("SlowDown", 503, Retry_After="7"), status(500), whole]
    assert fetch(server.options, url) == BODY
    assert sum(no_waits) >= 7
    server.faults[path] = [error_with("SlowDown", 503)]
    with pytest.raises(FetchError, match="503"):
        fetch(server.options, url)


def test_a_request_that_came_too_slowly(store, fetch):
    """S3's status 400 for it is no refusal."""
    store.faults[PATH] = [error_with("RequestTimeout", 400), whole]
    assert fetch(store.options) == BODY


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_object_that_is_replaced_in_mid_read(store, fetch, count):
    """A download is of the new one, and a reader says that there is another one."""
    store.faults[PATH] = [*[whole] * count, replaced(NEW), whole]
    assert fetch(store.options) == NEW
    reader = ShardBytes(URL, session=Session(store.options))
    assert reader.read(0, 10) == NEW[:10]
    store.faults[PATH] = [replaced(BODY), whole]
    with pytest.raises(ChangedShardError):
        reader.read(10, 10)


def test_a_server_without_ranges(store, fetch):
    """It is read in one stream."""
    store.faults[PATH] = [ignored]
    assert fetch(store.options) == BODY


# --- refusals


def test_a_clock_that_is_wrong(store, fetch):
    """The error names it, and is final."""
    store.faults[PATH] = [error_with("RequestTimeTooSkewed")]
    with pytest.raises(FetchDeniedError, match=r"access was refused.*RequestTimeTooSkewed"):
        fetch(store.options)
    assert len(store.requests) == 1


@pytest.mark.parametrize(
    "fault",
    [error_with("AccessDenied"), status(403), status(404), error_with("SlowDown", 503)],
    ids=["denied", "403", "404", "503"],
)
@pytest.mark.parametrize("url", [URL, GS_URL])
def test_no_error_shows_credentials(url, fault, request, fetch, caplog):
    """Neither its words, nor those of its causes, nor logs of wids."""
    caplog.set_level(logging.DEBUG, "wids")
    server = request.getfixturevalue("store" if url is URL else "google")
    server.faults[PATH if url is URL else MEDIA] = [fault]
    if url is GS_URL:
        server.options["token"] = Credentials("open-sesame", expiry=dt.datetime(2100, 1, 1))  # noqa: DTZ001 - it wants UTC without saying so
    with pytest.raises(FetchError) as caught:
        fetch(server.options, url)
    sent = [headers["authorization"].rpartition("=")[2].rpartition(" ")[2] for headers in server.headers]
    assert all(sent)
    error, words = caught.value, [caplog.text, "".join(traceback.format_exception(caught.value))]
    while error is not None:
        words += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    for secret in {*sent, "open-sesame", "sesame"}:
        assert not [text for text in words if secret in text]


# --- what is left to the client


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"config_kwargs": {"retries": {"max_attempts": 1}}}, "retries"),
        ({"config_kwargs": {"read_timeout": 20, "connect_timeout": 20}}, "connect_timeout, read_timeout"),
        ({"config_kwargs": {"signature_version": "s3"}}, "signature_version"),
        ({"client_kwargs": {"api_version": "2006-03-01"}}, "api_version"),
    ],
)
def test_options_of_its_own_connections(store, fetch, caplog, options, why):
    """The bytes are the same; why is said once, to those who debug."""
    caplog.set_level(logging.DEBUG, "wids")
    buckets._say_once.cache_clear()
    options = {**store.options, **options}
    for _ in range(2):
        with open_source(URL, Session(options)) as source:
            assert type(source) is AsyncSource
        assert fetch(options) == BODY
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert caplog.messages[0].endswith(f": {why}")


def test_a_client_of_another_make(store, fetch, monkeypatch):
    """Where a request cannot be had from it, as from one of the future, it reads."""

    async def make(filesystem, name):
        return filesystem.of_the_past

    monkeypatch.setattr(buckets, "_make", make)
    assert fetch(store.options) == BODY
    with open_source(URL, Session(store.options)) as source:
        assert type(source) is AsyncSource


# --- TLS


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")  # Python 3.10, where TLS is refused
def test_certificates(store, fetch, tmp_path, monkeypatch):
    """They are verified as the client's options and variables say."""
    file = write_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with Server(tls=context, has_ranges=True) as secure:
        secure.add(PATH, BODY)
        options = {**KEYS, "endpoint_url": secure.url}
        with pytest.raises(UnreachableError, match="certificate or TLS was not accepted"):
            fetch(options)
        assert not secure.requests
        for verify in (file, False):
            assert fetch({**options, "client_kwargs": {"verify": verify}}) == BODY
        monkeypatch.setenv("AWS_CA_BUNDLE", file)
        assert fetch({**options, "default_block_size": 1 << 20}) == BODY  # else it is the client that is there
        assert not store.requests
    gc.collect()


# --- Google Cloud Storage


class Renewed(Credentials):
    """A token that is renewed when it has ended."""

    def refresh(self, request):
        """Give the next one, which ends soon, too."""
        self.token = f"sesame-{int(self.token.rpartition('-')[2]) + 1}"
        self.expiry = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) + dt.timedelta(seconds=1)


def test_tokens_that_end_are_renewed(google, fetch):
    """By gcsfs, for each request that needs it."""
    ended = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - it wants UTC without saying so
    assert fetch({**google.options, "token": Renewed("sesame-0", expiry=ended)}, GS_URL) == BODY
    tokens = [headers["authorization"] for headers in google.headers]
    assert len(set(tokens)) == len(tokens) > 2


def test_who_pays_google(google, fetch):
    """The project is named in each request."""
    assert fetch({**google.options, "project": "mine", "requester_pays": True}, GS_URL) == BODY
    media = [target for target in google.requests if target.startswith(MEDIA)]
    assert set(media) == {f"{MEDIA}?alt=media&userProject=mine"}


def test_an_emulator_of_google(gs, fetch, monkeypatch):
    """It is found by the variable, as by gcsfs."""
    place = gs.place()
    url = place.add("a.tar", BODY)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs.endpoint)
    assert fetch({"token": "anon"}, url) == BODY
    assert place.requests(url)


def test_another_generation(google, fetch):
    """An answer of another one than that of the look is refused, before its bytes count; a download begins anew."""
    written = []
    with open_source(GS_URL, Session(google.options)) as source:
        source.stat()
        google.put(NEW, "2")
        google.faults[MEDIA] = [said(whole, x_goog_generation="2")]
        sink = Sink(lambda _: None, lambda *part: written.append(part))
        with pytest.raises(InterruptedTransferError, match="changed"):
            filesystems.run(source.read(Span(0, 10), sink))
        assert not written
        source.stat()
        filesystems.run(source.read(Span(0, 10), sink))
        assert b"".join(data for _, data in written) == NEW[:10]

    def old(handler, body):
        google.put(BODY, "3")
        said(whole, x_goog_generation="2")(handler, body)

    google.faults[MEDIA] = [old, said(whole, x_goog_generation="3")]
    assert fetch(google.options, GS_URL) == BODY


def test_no_time_ends_a_download_from_google(google):
    """But silence: the client itself would end it after five minutes."""
    for precedence, total in ((Precedence(is_ahead=False), None), (None, "unset")):
        with open_source(GS_URL, Session(google.options), precedence=precedence) as source:
            limits = filesystems.run(source.prepare())[2].get("timeout")
        assert getattr(limits, "total", "unset") == total


def test_a_broken_range_of_google(google, fetch, set_limits):
    """As of others."""
    set_limits(concurrency, first_range_bytes=RANGE, min_range_bytes=RANGE, max_range_bytes=RANGE)
    google.faults[MEDIA] = [whole, cut, whole]
    assert fetch(google.options, GS_URL) == BODY
    assert len(BODY) < sum(min(hi, len(BODY)) - lo for path, lo, hi in google.ranges) < len(BODY) + RANGE


def test_zonal_buckets_are_for_gcsfs(google, monkeypatch):
    """They are read by gRPC."""

    async def is_zonal(self, bucket):
        return True

    monkeypatch.setattr(GCSFileSystem, "_is_zonal_bucket", is_zonal, raising=False)
    with open_source(GS_URL, Session(google.options)) as source:
        assert type(source) is AsyncSource
