import contextlib
import errno
import gc
import gzip
import logging
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import aiohttp
import fsspec
import pytest

from tests.support import cache_shards as shards
from tests.support.cache_shards import described, md5
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.servers import (
    Server,
    bomb,
    cut,
    cut_chunked,
    cut_unannounced,
    cut_zipped,
    cut_zipped_chunked,
    endless,
    instead,
    mute,
    redirect,
    reset,
    stall,
    status,
    whole,
    whole_unannounced,
    zipped,
)
from wids.core.cache import shard_download
from wids.core.files import system
from wids.core.shard import Shard
from wids.core.transport import download, filesystems, plain_http, retrying
from wids.core.transport.session import Session
from wids.core.transport.upload import Target
from wids.errors import (
    CacheError,
    CacheFull,
    CorruptHeaderError,
    DependencyError,
    DigestMismatchError,
    FetchDeniedError,
    FetchError,
    InputError,
    ShardNotFoundError,
    SizeMismatchError,
    SpecError,
    TooLongError,
    WidsError,
)
from wids.events import Retried

pytestmark = pytest.mark.usefixtures("no_waits")

BODY = bytes(range(256)) * 1000
PAUSE = retrying.pause  # before it is replaced


@pytest.fixture
def target(tmp_path):
    """The file to fill; it exists, as download_to asks."""
    return shards.write(tmp_path / "target", b"")


@pytest.fixture(params=[True, False], ids=["standard library", "aiohttp"])
def each_way(request, monkeypatch):
    """Small files are read in this way, whatever this process has imported."""
    monkeypatch.setattr(plain_http, "is_preferred", lambda: request.param)


def fetch_body(url, target, *, expected=BODY, **options):
    """Fetch ``url``; each try is checked for size."""

    def check():
        found = os.path.getsize(target)
        if found != len(expected):
            raise SizeMismatchError(f"{found} bytes", expected=len(expected), found=found)

    download.download_to(url, target, check=check, **options)
    with open(target, "rb") as file:
        return file.read()


# --- what comes right in the end


def test_http(server, target, events):
    """A body arrives byte for byte, in one request, without an event."""
    assert fetch_body(server.add("/a.tar", BODY), target, session=Session(hooks=[events])) == BODY
    assert server.requests == ["/a.tar"]
    assert events == []


TRANSIENT = {
    "408": status(408),
    "429": status(429),
    "500": status(500),
    "502": status(502),
    "503": status(503),
    "504": status(504),
    "507": status(507),
    "522, a content network's": status(522),
    "cut": cut,
    "cut, no length": cut_unannounced,
    "cut, chunked": cut_chunked,
    "cut, zipped": cut_zipped,
    "cut, zipped, chunked": cut_zipped_chunked,
    "no gzip": instead(BODY, Content_Encoding="gzip"),
    "reset": reset,
    "wrong size": instead(b"short"),
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
def test_what_passes_is_tried_again(server, target, events, fault, no_waits):
    """After one transient fault the second try brings the whole body, and one event says so, with the pause before."""
    url = server.add("/a.tar", BODY, fault, whole)
    assert fetch_body(url, target, session=Session(hooks=[events])) == BODY
    assert server.requests == ["/a.tar"] * 2
    [event] = events
    assert (type(event), event.url, event.attempt) == (Retried, url, 1)
    assert [event.pause_seconds] == no_waits
    assert event.cause


@pytest.mark.parametrize("fault", [stall, mute], ids=["body", "answer"])
def test_a_stall_ends(server, target, events, set_limits, fault):
    """A connection that says nothing more is given up after the read time-out, and the transfer tried again."""
    set_limits(filesystems, read_seconds=0.2)
    assert fetch_body(server.add("/a.tar", BODY, fault, whole), target, session=Session(hooks=[events])) == BODY
    assert len(server.requests) == 2
    assert len(events) == 1


def test_the_time_out_can_be_chosen(server, target):
    """A time-out in storage_options replaces ours."""
    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=0.2)}}
    assert fetch_body(server.add("/a.tar", BODY, stall, whole), target, session=Session(options)) == BODY


def test_a_longer_try_leaves_nothing_behind(server, target):
    """A try that brought too much is overwritten from its start."""
    url = server.add("/a.tar", BODY, instead(BODY + b"more"), whole)
    assert fetch_body(url, target) == BODY


def test_content_encoding(server, target):
    """A body that the server compresses for the wire arrives as it is; none is asked for."""
    assert fetch_body(server.add("/a.tar", BODY, zipped), target) == BODY
    assert server.headers[0]["accept-encoding"] == "identity"


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("fault", [cut_zipped, cut_zipped_chunked])
def test_a_cut_that_only_its_compression_shows(server, target, fault):
    """Without a size to compare, the end of gzip is the end of the file: of a shard, and of an index."""
    body = b"".join(b"%d," % k for k in range(40_000))
    url = server.add("/a.tar", body, fault, whole, fault, whole)
    download.download_to(url, target, check=lambda: None)
    with open(target, "rb") as file:
        assert file.read() == body
    assert download.read_bytes(url) == body
    assert len(server.requests) == 4


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "pack",
    [
        lambda body: gzip.compress(body[:1000]) + gzip.compress(body[1000:]) + bytes(512),
        lambda body: gzip.compress(body, 9),
        lambda body: gzip.compress(body, 0),
    ],
    ids=["several", "small", "stored"],
)
def test_gzip_of_all_kinds(server, pack):
    """Several files in one, padding, contents that are a thousand times as long."""
    for body in (BODY, bytes(5 << 20), b"x"):
        url = server.add("/a.bin", body, instead(pack(body), Content_Encoding="gzip"))
        assert download.read_bytes(url) == body


def test_other_encodings(server, target):
    """Are the client's to undo; it is asked once more."""
    url = server.add("/a.tar", BODY, instead(zlib.compress(BODY), Content_Encoding="deflate"))
    assert fetch_body(url, target) == BODY


def test_headers_can_be_added(server, target):
    """Headers in storage_options are sent, besides ours."""
    options = {"client_kwargs": {"headers": {"X-Mine": "1"}}, "headers": {"X-Other": "2"}}
    fetch_body(server.add("/a.tar", BODY), target, session=Session(options))
    sent = server.headers[0]
    assert (sent["x-mine"], sent["x-other"], sent["accept-encoding"]) == ("1", "2", "identity")


@pytest.mark.parametrize(
    "asked",
    [
        "/a.tar?X-Sig=a%2Fb%2fc%7E%3D&Exp=1+2&x=/:;@,!$'()*~",
        "/d%2Fir/a%20b.tar",
        "/%E4%BD%A0.tar?q=%25",
        "/a.tar?q=a::b::http",
        "/a=1;b=2/x.tar",
    ],
)
def test_a_signed_url_arrives_letter_for_letter(server, target, asked):
    """What is quoted stays quoted as it is, what is not stays bare: a signature covers the letters."""
    server.files[asked.partition("?")[0]] = BODY
    assert fetch_body(server.url + asked, target) == BODY
    assert server.requests == [asked]


def test_what_no_url_may_hold_is_quoted(server, target):
    """Spaces and letters beyond ASCII are quoted; the host is left alone."""
    server.files["/a%20b/%C3%A4.tar"] = BODY
    assert fetch_body(server.url + "/a b/ä.tar?q=ü|", target) == BODY
    assert server.requests == ["/a%20b/%C3%A4.tar?q=%C3%BC%7C"]


@pytest.mark.parametrize("place", ["file:///etc/passwd", "s3://bucket/a.tar", "ftp://127.0.0.1/a.tar"])
def test_a_redirect_that_is_not_followed_is_final(server, target, events, place):
    """A redirect to what is no http(s) URL is an error at once, which says where it leads."""
    retrying.note_answered([server.url])
    url = server.add("/a.tar", b"", redirect(place))
    with pytest.raises(FetchError, match=f"the server redirects to {place}, and only http") as caught:
        fetch_body(url, target, session=Session(hooks=[events]))
    assert (caught.value.url, events, server.requests) == (url, [], ["/a.tar"])


def test_a_fetch_after_the_end_of_the_main_thread(server, target):
    """Where Python gives no threads any more the error says why, and what to do; nothing is tried again."""
    ended = ThreadPoolExecutor()
    ended.shutdown()
    filesystems.loop().set_default_executor(ended)
    try:
        with pytest.raises(FetchError, match=r"the interpreter is ending .*let the main thread wait"):
            fetch_body(server.add("/a.tar", BODY).replace("127.0.0.1", "localhost"), target)
    finally:
        filesystems.loop().set_default_executor(ThreadPoolExecutor())


def test_redirects_are_followed_letter_for_letter(server, target):
    """A redirect leads on, also to a signed URL."""
    signed = "/b%2fc.tar?X-Sig=a%2Fb%7E"
    server.add("/b%2fc.tar", BODY)
    assert fetch_body(server.add("/a.tar", b"", redirect(server.url + signed)), target) == BODY
    assert server.requests == ["/a.tar", signed]


def test_a_name_that_is_not_utf8(server, target):
    """It is asked for by its bytes, as a browser asks for such a file of a directory."""
    server.add("/a%FF%C3%A9.tar", BODY)
    assert fetch_body(f"{server.url}/a\udcffé.tar", target) == BODY
    assert server.requests == ["/a%FF%C3%A9.tar"]


def test_other_file_systems(target, tmp_path):
    """memory://, file:// and plain paths, and a chain of file systems."""
    fsspec.filesystem("memory").pipe("/bucket/a b?.tar", BODY)
    try:
        assert fetch_body("memory://bucket/a b?.tar", target) == BODY
        path = shards.write(tmp_path / "with space" / "ä.tar", BODY)
        assert fetch_body(path, target) == BODY
        assert fetch_body(f"file://{path}", target) == BODY
        assert fetch_body(f"file://{path}".replace(" ", "%20"), target) == BODY
        chained = "simplecache::memory://bucket/a b?.tar"
        options = {"simplecache": {"cache_storage": str(tmp_path / "simple")}}
        assert fetch_body(chained, target, session=Session(options)) == BODY
    finally:
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_home(target, tmp_path, monkeypatch):
    """``~`` stands for the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shards.write(tmp_path / "a.tar", BODY)
    assert fetch_body("~/a.tar", target) == BODY
    assert download.read_bytes("~/a.tar") == BODY


# --- what does not


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (404, ShardNotFoundError, "check the URL or path"),
        (410, ShardNotFoundError, "check the URL or path"),
        (401, FetchDeniedError, "credentials"),
        (403, FetchDeniedError, "credentials"),
        *((code, FetchError, str(code)) for code in (400, 202, 204, 302, 304)),
    ],
)
def test_a_final_answer_is_final(server, target, events, code, kind, advice):
    """What another try would not change is asked once, and the typed error names the URL and what to do."""
    fault = status(code) if code not in (204, 304) else lambda reply, _: reply.start(code)  # these have no body
    url = server.add("/a.tar", BODY, fault)
    with pytest.raises(kind, match=advice) as caught:
        fetch_body(url, target, session=Session(hooks=[events]))
    assert type(caught.value) is kind
    assert url in str(caught.value)
    assert caught.value.url == url
    assert (len(server.requests), events) == (1, [])


@pytest.mark.parametrize("fault", [status(503), cut, reset], ids=["503", "cut", "reset"])
def test_tries_are_bounded(server, target, events, fault):
    """A fault that stays, of a server that never was better, is reported after ten seconds, with what it was."""
    url = server.add("/a.tar", BODY, fault)
    with pytest.raises(FetchError, match="tries: 6") as caught:
        fetch_body(url, target, session=Session(hooks=[events]))
    assert type(caught.value) is FetchError
    assert caught.value.__cause__ is not None
    assert len(server.requests) == 6
    assert [event.attempt for event in events] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("fault", [cut_unannounced, instead(b"<html>please log in</html>")], ids=["cut", "page"])
def test_damage_that_stays_is_tried_twice(server, target, events, fault):
    """A body that is wrong the same way twice gets no third try; the error is the check's own."""
    with pytest.raises(SizeMismatchError):
        fetch_body(server.add("/a.tar", BODY, fault), target, session=Session(hooks=[events]))
    assert (len(server.requests), len(events)) == (2, 1)


def test_damage_and_other_faults_count_apart(server, target):
    """One damaged transfer among other faults does not use up the second chance."""
    faults = [status(500), instead(b"x"), status(500), status(500), whole]
    assert fetch_body(server.add("/a.tar", BODY, *faults), target) == BODY


def test_an_error_of_the_check_that_is_no_damage_is_final(server, target):
    """What the check refuses for another reason is raised as it is, at once."""
    with pytest.raises(WidsError, match="not this one"):
        download.download_to(server.add("/a.tar", BODY), target, check=refuse)
    assert len(server.requests) == 1


def refuse():
    """A check that never holds."""
    raise WidsError("not this one")


def test_nobody_listens(target):
    """A server that never answered, and that no connection is made to, is tried a few times, not for seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.tar"
        with pytest.raises(FetchError, match=r"connection refused.*tries: 4"):
            fetch_body(url, target)


def test_nobody_listens_any_more(target, no_waits):
    """A server that has answered before is tried for minutes: it may be restarting."""
    with Server() as gone:
        url = gone.add("/a.tar", BODY)
        assert fetch_body(url, target) == BODY
    with pytest.raises(FetchError, match="connection refused"):
        fetch_body(url, target)
    assert sum(no_waits) > retrying.LIMITS.patience_seconds / 2


@pytest.fixture
def proxy(monkeypatch):
    """A proxy of the environment: the files that it is asked for are named by whole URLs."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Server() as server:
        yield server


@pytest.mark.parametrize("variable", ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"])
def test_proxies_of_the_environment(proxy, target, monkeypatch, variable):
    """They are asked as curl asks them, for the target of a redirect as well; NO_PROXY names hosts without one."""
    if variable == "HTTP_PROXY":  # of both, the one for the scheme counts
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, proxy.url)
    proxy.files["http://data.invalid/a.tar"] = b""
    proxy.files["http://other.invalid/b.tar"] = BODY
    proxy.faults["http://data.invalid/a.tar"] = [redirect("http://other.invalid/b.tar")]
    assert fetch_body("http://data.invalid/a.tar", target) == BODY
    assert proxy.requests == ["http://data.invalid/a.tar", "http://other.invalid/b.tar"]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as near:
        assert fetch_body(near.add("/c.tar", BODY), target) == BODY
    assert len(proxy.requests) == 2


def test_a_proxy_of_the_environment_for_a_bucket(proxy, target, monkeypatch):
    """The client of S3 leaves ALL_PROXY out; it is passed on."""
    pytest.importorskip("s3fs")
    monkeypatch.setenv("ALL_PROXY", proxy.url.removeprefix("http://"))
    proxy.files["http://store.invalid/bucket/a.tar"] = BODY
    session = Session({"anon": True, "endpoint_url": "http://store.invalid"})
    assert fetch_body("s3://bucket/a.tar", target, session=session) == BODY


def test_a_proxy_that_is_none_of_http(proxy, target, monkeypatch):
    """The error names the variable, and what to set."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(InputError, match=r"ALL_PROXY is socks5://.*HTTPS_PROXY.*name data.invalid in NO_PROXY"):
        fetch_body("http://data.invalid/a.tar", target)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://x:port/a.tar"])
def test_urls_that_are_none(target, events, url):
    """A URL that cannot be read is final and says what to check."""
    with pytest.raises(FetchError, match="check the URL"):
        fetch_body(url, target, session=Session(hooks=[events]))
    assert events == []


def test_unknown_schemes(target):
    """A scheme that fsspec does not know is final."""
    with pytest.raises(FetchError, match="check the URL's scheme"):
        fetch_body("nosuch://bucket/a.tar", target)


def test_missing_packages(target, monkeypatch):
    """A scheme whose package is not installed says which one to install."""

    def missing(name):
        raise ImportError(f"Install something to access {name}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **options: missing(url))
    ways = {"s3": r"'wids\[s3\]'", "gs": r"'wids\[gcs\]'", "az": "adlfs", "hf": r"'wids\[hub\]'"}
    for scheme, package in ways.items():
        if scheme != "hf":  # which is read without a package
            with pytest.raises(FetchError, match=f"pip install {package}$"):
                fetch_body(f"{scheme}://bucket/a.tar", target)
        with pytest.raises(DependencyError, match=f"pip install {package}$"):
            Target().put_bytes(b"", f"{scheme}://bucket/a.tar")
    with pytest.raises(FetchError, match="Install the package that it names"):
        fetch_body("nosuch://bucket/a.tar", target)


@pytest.mark.parametrize("url", ["memory://bucket/nosuch.tar", "file:///nosuch/a.tar", "/nosuch/a.tar", "nosuch.tar"])
def test_nothing_there(target, url):
    """A file that is not there is the same typed error everywhere."""
    with pytest.raises(ShardNotFoundError, match="does not exist"):
        fetch_body(url, target)


def test_what_is_no_file(target, tmp_path):
    """A directory or a FIFO instead of a shard is a typed error, and nobody waits for a writer."""
    os.mkfifo(tmp_path / "fifo.tar")
    (tmp_path / "dir.tar").mkdir()
    for name in ("fifo.tar", "dir.tar"):
        with pytest.raises(FetchError, match="not a regular file"):
            fetch_body(str(tmp_path / name), target)
    with pytest.raises(FetchError):
        fetch_body(f"{tmp_path}/target/below.tar", target)


class ServiceError(Exception):
    """An error as clients of stores raise them: unknown type, a status on it."""

    def __init__(self, **facts):
        super().__init__("service")
        self.__dict__.update(facts)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ServiceError(status=503), 6),
        (ServiceError(code="429"), 6),
        (ServiceError(status_code=500), 6),
        (ServiceError(code=404), 1),
        (ServiceError(code="AccessDenied", status_code=403), 1),
        (ServiceError(code=7), 1),
        (ServiceError(), 1),
        (EOFError(), 6),
        (TimeoutError(), 6),
        (type("Throttled", (aiohttp.ClientError,), {})(), 6),
        (OSError(errno.EIO, "Input/output error"), 6),
        (OSError("Forbidden: http://host/bucket/a.tar\nNo."), 1),
        (OSError(errno.EMFILE, "Too many open files"), 1),
        (FileExistsError("exists"), 1),
        (ValueError("no such thing"), 1),
    ],
    ids=lambda value: f"{value!r}{vars(value) if isinstance(value, Exception) else ''}",
)
def test_errors_of_other_clients(target, monkeypatch, error, tries):
    """A status decides where there is one; else time-outs, ends of file and a client's own errors are transient."""
    calls = []

    def info(name):
        calls.append(name)
        raise error

    monkeypatch.setattr(filesystems, "open_filesystem", lambda url, options, **_: (SimpleNamespace(info=info), "name"))
    with pytest.raises(FetchError) as caught:
        fetch_body("gs://bucket/a.tar", target)
    assert len(calls) == tries
    assert caught.value.__cause__ is error
    assert "gs://bucket/a.tar" in str(caught.value)


# --- disks


def test_a_full_disk_is_the_cache_s_trouble(server, target):
    """Where the file cannot grow the error is typed, at once, and says what to do about a limit of its size."""

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        fetch_body(server.url + "/a.tar", target)

    server.add("/a.tar", BODY)
    with pytest.raises(CacheError, match=r"raise the limit .* \(ulimit -f\) or move cache_dir") as caught:
        call_in_child(limited)
    assert target in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_by_any_name(target, monkeypatch, code):
    """No space, no quota and a read-only disk are final."""
    calls = []

    def info(name):
        calls.append(name)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filesystems, "open_filesystem", lambda url, options, **_: (SimpleNamespace(info=info), "name"))
    with pytest.raises(CacheError, match="free space"):
        fetch_body("gs://bucket/a.tar", target)
    assert calls == ["name"]


@pytest.mark.parametrize(("times", "error"), [(3, None), (1000, CacheError)], ids=["a moment", "full"])
@pytest.mark.parametrize("has_ranges", [False, True])
def test_a_disk_that_is_full_for_a_moment(server, target, monkeypatch, times, error, has_ranges):
    """The space of a file that another process deleted is free a moment later; a disk that stays full is an error."""
    server.has_ranges, refused, before = has_ranges, [], os.pwrite

    def pwrite(fd, data, offset):
        if len(refused) < times:
            refused.append(offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return before(fd, data, offset)

    monkeypatch.setattr(system, "pwrite", pwrite)
    monkeypatch.setattr(system, "_GRANTED_CALLS", 5)
    url = server.add("/a.tar", BODY)
    with contextlib.nullcontext() if error is None else pytest.raises(error, match="free space"):
        fetch_body(url, target)
    assert len(refused) == (times if error is None else 6)


def test_a_target_that_is_gone(server, tmp_path):
    """A directory that is deleted during the fetch is not taken for a shard that is not there."""
    with pytest.raises(CacheError, match="cannot be written"):
        download.download_to(server.add("/a.tar", BODY), str(tmp_path / "gone" / "target"), check=refuse)


# --- what arrived


def test_check_file(tmp_path):
    """Size and md5 are compared where they are known; the errors hold both sides."""
    with open(shards.write(tmp_path / "a", BODY), "rb") as file:
        shard_download.check_file(Shard(url="u", nsamples=1), file.fileno())
        shard_download.check_file(described("u", BODY), file.fileno())
        with pytest.raises(SizeMismatchError, match="filesize 5") as caught:
            shard_download.check_file(Shard(url="u", nsamples=1, filesize=5), file.fileno())
        assert (caught.value.expected, caught.value.found) == (5, len(BODY))
        file.seek(0)
        with pytest.raises(DigestMismatchError, match="update the index") as caught:
            shard_download.check_file(Shard(url="u", nsamples=1, md5sum="0" * 32), file.fileno())
        assert (caught.value.expected, caught.value.found) == ("0" * 32, md5(BODY))
        assert file.seek(0) == 0  # still open
    assert shard_download.file_digest(str(tmp_path / "a"), "md5sum") == md5(BODY)


# --- small files


@pytest.mark.usefixtures("each_way")
def test_read_bytes(server, tmp_path):
    """An index comes from http, a path, a URL of a path, or another file system; faults are retried as for shards."""
    url = server.add("/index.json", BODY, status(500), cut, whole)
    assert download.read_bytes(url + "?v=%2F") == BODY
    assert server.requests == ["/index.json?v=%2F"] * 3
    path = shards.write(tmp_path / "index.json", BODY)
    assert download.read_bytes(path) == download.read_bytes(f"file://{path}") == BODY
    fsspec.filesystem("memory").pipe("/index.json", BODY)
    assert download.read_bytes("memory://index.json") == BODY
    fsspec.filesystem("memory").rm("/index.json")


@pytest.mark.usefixtures("each_way")
def test_read_bytes_that_fails(server, tmp_path):
    """Errors are those of fetching a shard, and say how often it was tried."""
    with pytest.raises(ShardNotFoundError):
        download.read_bytes(server.url + "/index.json")
    with pytest.raises(ShardNotFoundError):
        download.read_bytes(str(tmp_path / "index.json"))
    with pytest.raises(FetchError, match="IsADirectoryError"):
        download.read_bytes(str(tmp_path))
    with pytest.raises(FetchError, match="tries: 6"):
        download.read_bytes(server.add("/index.json", BODY, status(503)))


@pytest.mark.usefixtures("each_way")
def test_a_range_that_nobody_asked_for(server):
    """A part of a small file is not taken for all of it; another try brings that."""
    part = instead(BODY[:100], code=206, Content_Range=f"bytes 0-99/{len(BODY)}")
    url = server.add("/index.json", BODY, part, whole)
    assert download.read_bytes(url) == BODY
    server.faults["/index.json"] = [part]
    with pytest.raises(FetchError, match=f"100 of {len(BODY)} bytes arrived"):
        download.read_bytes(url)


def test_what_follows_a_hash_in_a_url(server, target):
    """It is not sent, and the error says so."""
    with pytest.raises(ShardNotFoundError, match="write %23"):
        fetch_body(f"{server.url}/a#1.tar", target)
    assert server.requests == ["/a"]


TOO_LONG = {"announced": whole, "without a length": whole_unannounced, "endless": endless, "packed": bomb}


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("fault", TOO_LONG.values(), ids=TOO_LONG)
def test_what_is_too_long(server, target, monkeypatch, fault):
    """Bytes count as they are unpacked; of one request no more is taken than shows it, and nothing is tried again."""
    url = server.add("/index.json", BODY, fault) + "?sig=s3cr3t"
    monkeypatch.setattr(download, "MAX_READ_BYTES", len(BODY) - 1)
    for most, call in (
        (len(BODY) - 1, lambda: download.read_bytes(url)),
        (1000, lambda: download.read_bytes(url, max_bytes=1000)),
        (1000, lambda: download.download_to(url, target, check=refuse, max_bytes=1000)),
    ):
        with pytest.raises(TooLongError, match=r"/index\.json: is longer than .*check the URL") as caught:
            call()
        assert "s3cr3t" not in str(caught.value)
        assert (caught.value.url, caught.value.expected) == (url, most)
    assert len(server.requests) == 3
    assert server.sent_bytes.total() < 48 << 20
    assert {headers["accept-encoding"] for headers in server.headers} == {"identity"}


@pytest.mark.usefixtures("each_way")
def test_what_is_as_long_as_it_may_be(server, target):
    """Announced or not, packed or not, remote or not."""
    for fault in (whole, whole_unannounced, zipped):
        url = server.add("/index.json", BODY, fault)
        assert download.read_bytes(url, max_bytes=len(BODY)) == BODY
        assert fetch_body(url, target, max_bytes=len(BODY)) == BODY
    with open(target, "rb") as file:
        assert download.read_bytes(target, max_bytes=1) == file.read()  # the caller's own: of any length


@pytest.mark.parametrize("fault", [whole, whole_unannounced], ids=["announced", "without a length"])
def test_a_disk_that_would_be_filled(server, target, monkeypatch, fault):
    """Where no cache looks after its space, a download ends before it takes what others need."""
    monkeypatch.setattr(system, "free_bytes", lambda directory: (len(BODY) + 999, 100_000))
    with pytest.raises(CacheFull, match="its file system has") as caught:
        fetch_body(server.add("/a.tar", BODY, fault), target)
    assert caught.value.found == len(BODY) + 999
    assert os.path.getsize(target) <= len(BODY)
    monkeypatch.setattr(system, "free_bytes", lambda directory: (2 << 20, 100_000))
    assert fetch_body(server.add("/a.tar", BODY, fault), target) == BODY


# --- what the log says


def test_a_retry_is_one_line(server, target, caplog):
    """A retry is logged once, with the URL."""
    url = server.add("/a.tar", BODY, status(500), whole)
    fetch_body(url, target)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (record.name, url in record.getMessage()) == ("wids", True)


# --- processes and threads


def test_errors_cross_processes(server, target):
    """A fetch error keeps its type, message and facts through a pickle."""
    with pytest.raises(FetchError) as caught:
        fetch_body(server.add("/a.tar", BODY, status(403)), target)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.url) == (FetchDeniedError, str(caught.value), caught.value.url)


def fetch_and_collect(url, target):
    """`fetch_body`, then the collection of what was inherited and is not used any more."""
    body = fetch_body(url, target)
    gc.collect()
    return body


def test_a_fork_fetches(server, target, events, set_limits):
    """A process forked after its parent has fetched can fetch, and so can the parent after that, at once."""
    set_limits(filesystems, read_seconds=5.0)
    url = server.add("/a.tar", BODY)
    assert fetch_body(url, target) == BODY
    assert call_in_child(fetch_and_collect, url, shards.write(target + "-child", b"")) == BODY
    # The parent's connection was idle during the fork; broken by the child, it would stall until the read time-out.
    assert fetch_body(url, target, session=Session(hooks=[events])) == BODY
    assert events == []
    assert server.requests == ["/a.tar"] * 3


def test_a_fork_while_a_thread_fetches(server, target):
    """A process forked in the middle of another thread's transfer fetches; the transfer then goes on."""
    gate = server.gate()
    url, other = server.add("/a.tar", BODY, gate), server.add("/b.tar", BODY)
    done = []
    thread = threading.Thread(target=lambda: done.append(fetch_body(url, target)))
    thread.start()
    assert gate.entered.wait(PATIENCE_SECONDS)
    assert call_in_child(fetch_and_collect, other, shards.write(target + "-child", b"")) == BODY
    gate.go.set()
    thread.join(PATIENCE_SECONDS)
    assert done == [BODY]
    assert server.requests == ["/a.tar", "/b.tar"]


def test_a_fork_while_a_thread_imports():
    """A fork waits until another thread has imported what its first fetch needs; the child's fetch would never end."""
    code = """
import os, sys, threading
from wids.core.transport import filesystems

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "fsspec":
            importing.set()
            forking.wait(60)

importing, forking = threading.Event(), threading.Event()
sys.meta_path.insert(0, Finder())
os.register_at_fork(before=forking.set)  # the hook that is registered last runs first
thread = threading.Thread(target=filesystems.open_filesystem, args=["memory://thread"])
thread.start()
importing.wait(60)
child = os.fork()
if not child:
    os._exit(filesystems.open_filesystem("memory://child")[1] != "/child")
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_fresh(code) == 0


def test_a_fork_before_any_fetch():
    """A fork costs no import: a process that has not fetched yet, and its child, do without fsspec."""
    code = """
import os, sys
from wids.core.transport import filesystems
child = os.fork()
if not child:
    os._exit("fsspec" in sys.modules)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_fresh(code) == 0


def run_fresh(code):
    """The exit status of a new interpreter that runs ``code``."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    return subprocess.run(command, timeout=PATIENCE_SECONDS).returncode


def test_threads_fetch_at_once(server, target):
    """Several threads fetch at the same time, each its own shard."""
    bodies = {f"/{name}.tar": BODY + name.encode() for name in "abcdefgh"}
    found = {}

    def work(path, body):
        found[path] = fetch_body(server.add(path, body), shards.write(target + path[1], b""), expected=body)

    threads = [threading.Thread(target=work, args=item) for item in bodies.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert found == bodies


def test_nothing_stays_open(server, target, tmp_path):
    """After transfers, good and bad ones, no file of ours is open and nothing is left to be collected."""
    server.add("/a.tar", BODY, cut, reset, status(500), whole)
    fetch_body(server.url + "/a.tar", target)
    with pytest.raises(FetchError):
        fetch_body(server.url + "/nosuch.tar", target)
    with pytest.raises(CorruptHeaderError):
        download.download_to(server.url + "/a.tar", target, check=damaged)
    gc.collect()
    assert shards.files_open_in(tmp_path) == []


def damaged():
    """A check that finds damage."""
    raise CorruptHeaderError("damaged")


@pytest.mark.usefixtures("each_way")
def test_an_answer_that_unpacks_to_many_times_its_length(server, monkeypatch):
    """It is refused long before the limit of its kind; a text that is repetitive is read."""
    monkeypatch.setattr(download, "_MIN_UNPACKED_BYTES", 1 << 20)
    text = b"".join(os.urandom(20).hex().encode() * 10 for _ in range(10_000))
    url = server.add("/text.json", text, instead(gzip.compress(text), Content_Encoding="gzip"))
    assert download.read_bytes(url) == text
    data = bytes(64 << 20)
    url = server.add("/bomb.json", data, instead(gzip.compress(data), Content_Encoding="gzip"))
    with pytest.raises(TooLongError, match=r"compressed bytes unpack to more than [1-7],.* 32 times as many"):
        download.read_bytes(url)


@pytest.mark.usefixtures("each_way")
def test_a_file_that_says_its_length_names_it(server):
    """With the limit."""
    url = server.add("/long.json", b"x" * 1000)
    with pytest.raises(TooLongError, match=r"is longer than 100 bytes \(decompressed; it has 1,000\)"):
        download.read_bytes(url, max_bytes=100)


@pytest.mark.usefixtures("each_way")
def test_a_file_is_looked_at_before_it_is_read(server, tmp_path):
    """The error of the look ends the reading, of a server and of a disk."""

    def look(head):
        assert head.startswith(b"x")
        raise SpecError("seen")

    url = server.add("/large", b"x" * (32 << 20))
    (tmp_path / "large").write_bytes(b"x" * (4 << 20))
    for place in (url, str(tmp_path / "large")):
        with pytest.raises(SpecError, match="seen"):
            download.read_bytes(place, look=look)
    assert server.sent_bytes["/large"] < 32 << 20
