"""Small files that the standard library reads: by the rules of the other way, to which it leaves what needs more."""

import json
import signal
import socket
import ssl
import subprocess
import sys
import zlib

import pytest
from fsspec.implementations.http import HTTPFileSystem

from tests.support.cache_shards import shard
from tests.support.children import PATIENCE_SECONDS
from tests.support.clocks import wait_until
from tests.support.servers import (
    Server,
    cut,
    cut_chunked,
    instead,
    mute,
    redirect,
    reset,
    stall,
    status,
    whole,
    write_certificate,
)
from wids import ShardListDataset
from wids.core.transport import download, filesystems, plain_http
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import Session
from wids.errors import FetchDeniedError, FetchError, ShardNotFoundError, UnreachableError
from wids.events import Retried

pytestmark = pytest.mark.usefixtures("no_waits", "bare")
BODY = b"[%s]" % b",".join(b"%d" % number for number in range(40_000))


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment that says nothing of clients."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(params=[True, False], ids=["standard library", "aiohttp"])
def is_plain(request, monkeypatch):
    """Which way small files are read, whatever this process has imported."""
    monkeypatch.setattr(plain_http, "is_preferred", lambda: request.param)
    return request.param


@pytest.fixture
def plain(monkeypatch):
    """Small files are read by the standard library."""
    monkeypatch.setattr(plain_http, "is_preferred", lambda: True)


def asked_plainly(server):
    """For each request, whether the standard library sent it."""
    return [headers["user-agent"].startswith("wids/") for headers in server.headers]


# --- both ways


FAULTS = {"500": status(500), "429": status(429, Retry_After=1), "broken": cut, "reset": reset, "chunked": cut_chunked}


@pytest.mark.parametrize("fault", [whole, *FAULTS.values()], ids=["whole", *FAULTS])
def test_what_is_read(server, is_plain, events, fault):
    """All bytes come, after faults by another request; the query is sent as it is written, and no fragment."""
    url = server.add("/a b.json", BODY, fault, whole).replace(" ", "%20")
    server.files["/a%20b.json"], server.faults["/a%20b.json"] = BODY, [fault, whole]
    assert download.read_bytes(url + "?v=%2F&w=é#part", session=Session(hooks=[events])) == BODY
    assert set(server.requests) == {"/a%20b.json?v=%2F&w=%C3%A9"}
    assert len(server.requests) == len(events) + 1 == (1 if fault is whole else 2)
    assert asked_plainly(server) == [is_plain] * len(server.requests)
    assert {headers["accept-encoding"] for headers in server.headers} == {"identity"}
    assert {headers["host"] for headers in server.headers} == {server.url.removeprefix("http://")}


@pytest.mark.parametrize(
    ("code", "kind", "words", "tries"),
    [
        (400, FetchError, "cannot be fetched (ClientResponseError: 400, message='Bad Request', url='{}'; tries: 1)", 1),
        (401, FetchDeniedError, "access was refused (401, message='Unauthorized', url='{}'); check credentials", 1),
        (403, FetchDeniedError, "access was refused (403, message='Forbidden', url='{}'); check credentials", 1),
        (404, ShardNotFoundError, "does not exist; check the URL", 1),
        (410, ShardNotFoundError, "does not exist; check the URL", 1),
        (204, FetchError, "(ClientResponseError: 204, message='an answer without the file', url='{}'; tries: 1)", 1),
        (304, FetchError, "(ClientResponseError: 304, message='an answer without the file', url='{}'; tries: 1)", 1),
        (501, FetchError, "(ClientResponseError: 501, message='Not Implemented', url='{}'; tries: 1)", 1),
        (503, FetchError, "(ClientResponseError: 503, message='Service Unavailable', url='{}'; tries: 6)", 6),
    ],
)
@pytest.mark.usefixtures("is_plain")
def test_refusals(server, code, kind, words, tries):
    """The same error in the same words, after as many tries."""
    url = server.add("/a.json", BODY, status(code) if code not in (204, 304) else instead(b"", code=code))
    with pytest.raises(kind) as caught:
        download.read_bytes(url)
    assert type(caught.value) is kind
    assert words.format(url) in str(caught.value)
    assert len(server.requests) == tries


@pytest.mark.usefixtures("is_plain")
def test_nobody_listens(no_waits, events):
    """It is said soon."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        words = rf"refused.*\(Cannot connect to host 127.0.0.1:{port} ssl:default \[Connect call failed \('127"
        with pytest.raises(UnreachableError, match=words):
            download.read_bytes(f"http://127.0.0.1:{port}/a.json", session=Session(hooks=[events]))
    assert len(events) == 3
    assert {type(event) for event in events} == {Retried}
    assert sum(no_waits) < 2


@pytest.mark.usefixtures("is_plain")
def test_no_such_host(monkeypatch):
    """The name is said to be unknown."""

    def resolve(host, *args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnreachableError, match=r"name cannot be resolved.*wids-test\.invalid:80 ssl:default \[Name or"):
        download.read_bytes("http://wids-test.invalid/a.json")


@pytest.mark.usefixtures("is_plain")
def test_certificates(tmp_path, events, monkeypatch):
    """One that nobody vouches for is refused at once; one of $SSL_CERT_FILE is not."""
    file = write_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with Server(tls=context) as secure:
        url = secure.add("/a.json", BODY)
        words = r"certificate or TLS was not accepted.*ssl:True \[SSLCertVerificationError"
        with pytest.raises(UnreachableError, match=words):
            download.read_bytes(url, session=Session(hooks=[events]))
        assert (secure.requests, events) == ([], [])


@pytest.mark.usefixtures("plain")
def test_a_certificate_of_the_environment(tmp_path, monkeypatch):
    """$SSL_CERT_FILE names it, as for all clients; the other way makes its context once in a process."""
    file = write_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with Server(tls=context) as secure:
        assert download.read_bytes(secure.add("/a.json", BODY)) == BODY
        assert asked_plainly(secure) == [True]


@pytest.mark.parametrize("fault", [mute, stall])
@pytest.mark.usefixtures("is_plain")
def test_silence_ends_a_try(server, set_limits, fault):
    """A server that says nothing more has stalled, before its answer and within it; another try follows."""
    set_limits(filesystems, read_seconds=0.2)
    url = server.add("/a.json", BODY, fault, whole)
    assert download.read_bytes(url) == BODY
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", [mute, stall])
@pytest.mark.usefixtures("is_plain")
def test_a_cancelled_read(server, fault):
    """It ends, also while nothing comes, and its connection with it."""
    url = server.add("/a.json", BODY, fault)
    with pytest.raises(CancelledTransferError):
        download.read_bytes(url, is_cancelled=lambda: len(server.requests) > 0)


@pytest.mark.parametrize("way", ["plain", "aiohttp"])
def test_an_interrupted_read(server, way):
    """Ctrl-C ends it at once, and no thread keeps the process."""
    url = server.add("/a.json", BODY, mute)
    code = (
        "import signal, sys\n"
        "from wids.core.transport import download, plain_http\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's job in the background ignores it
        f"plain_http.is_preferred = lambda: {way == 'plain'}\n"
        "try:\n"
        "    download.read_bytes(sys.argv[1])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: server.requests)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    finally:
        child.kill()
        child.wait()
    assert (out, child.returncode) == ("interrupted\n", 0)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects(server, is_plain, code):
    """Relative and absolute ones are followed, also to another server, and their targets are not written anew."""
    with Server() as other:
        other.add("/c%2Fd.json?sig=a%2Bb+c", BODY)
        other.files["/c%2Fd.json"] = BODY
        server.add("/deep/a.json", b"", status(code, Location="../b.json?x=1#part"))
        server.add("/b.json", b"", status(code, Location=f"{other.url}/c%2Fd.json?sig=a%2Bb+c"))
        assert download.read_bytes(server.url + "/deep/a.json") == BODY
        assert server.requests == ["/deep/a.json", "/b.json?x=1"]
        assert other.requests == ["/c%2Fd.json?sig=a%2Bb+c"]
        assert asked_plainly(server) + asked_plainly(other) == [is_plain] * 3


@pytest.mark.usefixtures("is_plain")
def test_redirects_that_lead_nowhere(server, tmp_path):
    """To a file, round in a circle, or to no place at all: an error, and nothing local is read."""
    secret = tmp_path / "secret.json"
    secret.write_bytes(BODY)
    places = f"file://{secret}", f"{server.url}/a.json", "http://x]0/a.json", "http://me@nosuch:99999/"
    for fault in (*map(redirect, places), status(302)):
        with pytest.raises(FetchError):
            download.read_bytes(server.add("/a.json", b"", fault))


# --- what needs more


def set_options(monkeypatch, home):
    """A header of the program's own."""
    return Session({"headers": {"X-Key": "s3cret"}})


def set_proxy(monkeypatch, home):
    """A proxy, and a server that is asked without it."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


def set_netrc(monkeypatch, home):
    """A password for the server."""
    (home / ".netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    (home / ".netrc").chmod(0o600)


def set_fsspec(monkeypatch, home):
    """A directory of settings, which fsspec reads when it is imported."""
    (home / ".config" / "fsspec").mkdir(parents=True)


def set_client(monkeypatch, home):
    """Another class for the scheme."""

    class Own(HTTPFileSystem):
        pass

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "http", Own)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("set_up", [set_options, set_proxy, set_netrc, set_fsspec, set_client])
def test_settings_of_the_other_client(server, monkeypatch, tmp_path, set_up):
    """What storage options, the environment or the program say of it holds: it reads the file."""
    session = set_up(monkeypatch, tmp_path) or Session()
    assert download.read_bytes(server.add("/a.json", BODY), session=session) == BODY
    assert asked_plainly(server) == [False]
    if set_up is set_options:
        assert server.headers[0]["x-key"] == "s3cret"
    if set_up is set_netrc:
        assert server.headers[0]["authorization"].startswith("Basic ")


@pytest.mark.usefixtures("plain")
def test_a_user_in_the_url(server):
    """Is sent by the other client."""
    url = server.add("/a.json", BODY).replace("http://", "http://me:s3cret@")
    assert download.read_bytes(url) == BODY
    assert server.headers[0]["authorization"].startswith("Basic ")


@pytest.mark.usefixtures("plain")
def test_what_may_be_on_the_hub(server):
    """Its own source reads it, which knows tokens and commits."""
    assert download.read_bytes(server.add("/org/name/resolve/main/a.json", BODY)) == BODY
    assert asked_plainly(server) == [False]


@pytest.mark.usefixtures("plain")
def test_unusual_answers(server):
    """Another encoding, cookies that a redirect sets: the other client asks again, and decides."""
    odd = instead(zlib.compress(BODY), Content_Encoding="deflate")
    server.add("/b.json", BODY)
    for fault in (odd, status(302, Location="/b.json", Set_Cookie="a=b")):
        server.requests.clear()
        server.headers.clear()
        assert download.read_bytes(server.add("/a.json", BODY, fault)) == BODY
        assert asked_plainly(server)[:2] == [True, False]


def test_a_few_files(server, monkeypatch):
    """The first ones of a process are read so, while nothing has imported aiohttp."""
    monkeypatch.setattr(plain_http.PlainSource, "answers", 0)
    assert not plain_http.is_preferred()  # this process has
    monkeypatch.delitem(sys.modules, "aiohttp")
    assert plain_http.is_preferred()
    url = server.add("/a.json", BODY)
    monkeypatch.setattr(plain_http.PlainSource, "answers", 7)
    assert download.read_bytes(url) == BODY
    assert not plain_http.is_preferred()
    assert asked_plainly(server) == [True]


def test_a_dataset_of_a_server_whose_shards_are_cached(server, tmp_path):
    """It opens and reads without aiohttp, whose import takes longer than all of that."""
    data = shard()
    server.add("/a.tar", data)
    rows = [{"url": "a.tar", "nsamples": 3, "filesize": len(data)}]
    url = server.add("/train.json", json.dumps({"wids_version": 1, "shardlist": rows}).encode())
    cache = str(tmp_path / "cache")
    assert len(list(ShardListDataset(url, cache_dir=cache, transformations="raw"))) == 3
    code = (
        "import json, sys\n"
        "import wids\n"
        "dataset = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], transformations='raw')\n"
        "count = len([sample for sample in dataset])\n"
        "names = 'aiohttp', 'fsspec.implementations.http'\n"
        "print(json.dumps([count, [name for name in names if name in sys.modules]]))\n"
    )
    command = [sys.executable, "-c", code, url, cache]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert json.loads(done.stdout) == [3, []]
    assert server.requests[-1] == "/train.json"
