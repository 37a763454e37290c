"""Reading by byte ranges under faults: servers that lie or change, hostile tables, threads, forks, bounds."""

import asyncio
import contextlib
import copy
import gc
import io
import itertools
import os
import tarfile
import threading
import time
import tracemalloc

import fsspec
import fsspec.asyn
import pytest
from torch.utils.data import DataLoader

import wids
from tests.support import cache_shards as shards
from tests.support import tars
from tests.support.children import PATIENCE_SECONDS
from tests.support.range_faults import (
    WEAK,
    held,
    ignored,
    marked_anew,
    replaced,
    said,
    short,
    too_long,
    unsaid,
    unsized,
)
from tests.support.servers import instead, redirect, status, whole, whole_unannounced, zipped
from tests.support.tars import publish, table_of
from wids.core.readers.base import RowPart
from wids.core.readers.provider import AutoProvider
from wids.core.readers.range_provider import RangeProvider
from wids.core.readers.remote import RangeReader
from wids.core.shard import Shard
from wids.core.tables import table as tables
from wids.core.tables.table import MemberTable
from wids.core.transport import concurrency, filesystems, range_client, scheduler
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.session import Session
from wids.errors import ChangedShardError, ClosedReaderError, FetchError, ShardError, UnsupportedMemberError, WidsError

pytestmark = pytest.mark.usefixtures("own_cache", "no_waits")

ROWS = 12
DATA = bytes(i * i % 251 for i in range(50_000))


@pytest.fixture
def web(server):
    """A server that gives ranges."""
    server.has_ranges = True
    return server


@pytest.fixture
def far(monkeypatch):
    """Another request costs as much as 600 bytes."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 600)
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 600)


def serve(web, *faults, rows=ROWS, size=3000, has_table=True):
    """The URL of a shard, with its table beside it."""
    url = web.add("/a.tar", shards.shard("a", rows, size), *faults)
    if has_table:
        publish(web, "/a.tar")
    return url


def open_dataset(url, access="range", *, rows=ROWS, **options):
    """The dataset of one shard."""
    return wids.ShardListDataset([(url, rows)], access=access, transformations="raw", **options)


def pack(names, form, data=b"x"):
    """A tar of members that all hold ``data``."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


# --- no wrong byte


def with_kind(data, name, kind):
    """A tar whose member ``name`` is of another kind, under a right checksum."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        offset = archive.getmember(name).offset
    header = bytearray(data[offset : offset + 512])
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:offset] + bytes(header) + data[offset + 512 :]


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_SPARSE, tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_a_member_that_is_no_file_any_more(web, far, kind):
    """A stale table of the time when it was one gives an error: what lies there are no bytes of a file."""
    before = shards.pack([("a.txt", b"x" * 700), ("b.txt", b"y")])
    url = web.add("/a.tar", with_kind(before, "a.txt", kind))
    publish(web, "/a.tar", before)
    dataset = open_dataset(url, rows=2)
    assert dataset[1][".txt"] == b"y"
    with pytest.raises((ChangedShardError, UnsupportedMemberError)):
        dataset[0]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_long_names_of_a_server_that_marks_no_versions(web, far, form):
    """That the table held once says nothing of the bytes that come later, when nobody tells versions apart."""
    web.validators = ()
    first, second = (pack([f"{k * 120}.txt" for k in keys], form, keys.encode()) for keys in ("abcd", "wxyz"))
    assert len(first) == len(second)
    url = web.add("/a.tar", first)
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=4)
    assert dataset[0][".txt"] == b"abcd"
    web.add("/a.tar", second)
    with pytest.raises(ChangedShardError):
        dataset[1]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_long_names_need_not_all_headers(web, far, form):
    """The extended headers before the members that are read say their names; those of the others are not read."""
    names = [f"{'n' * 120}{k:03d}.txt" for k in range(50)]
    url = web.add("/a.tar", pack(names, form, b"x" * 5000))
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=50)
    before = len(web.requests)
    assert [sample["__key__"] for sample in dataset.__getitems__([3, 30, 3, -1])] == [
        names[k].removesuffix(".txt") for k in (3, 30, 3, 49)
    ]
    assert len(web.requests) - before <= 2 + 3 + 3


def test_another_version_of_the_same_second(web, far):
    """Where times alone tell versions apart, the names in the headers still do."""
    web.validators = ("Last-Modified",)
    url = serve(web, has_table=False)
    dataset = open_dataset(url)
    assert dataset[0][".txt"] == shards.text("a", 0)
    web.files["/a.tar"] = shards.shard("b", ROWS, 3000)
    with pytest.raises(ChangedShardError):
        dataset[1]


def test_long_names_behind_members_of_no_sample(web, far):
    """Where their extended headers stand is not known: all headers are read, once."""
    names = [name for k in range(6) for name in (f"{k}README", f"{'n' * 120}{k}.txt")]
    url = web.add("/a.tar", pack(names, tarfile.PAX_FORMAT, b"x" * (70 << 10)))
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=6)
    assert dataset[0][".txt"] == b"x" * (70 << 10)
    before = len(web.requests)
    assert [dataset[row]["__key__"][-1] for row in range(1, 6)] == list("12345")
    assert len(web.requests) - before == 5


def test_headers_are_read_once(web, far):
    """By a rule of the caller's, keys are no parts of names: the headers gave the table, and are not read again."""
    url = serve(web, has_table=False)
    dataset = open_dataset(url, key_rule=lambda name: ("k" + name[1:5], ".x" + name[5:]))
    assert dataset[0]["__key__"] == "k0000"
    before = len(web.requests)
    assert dataset[7][".x.txt"] == shards.text("a", 7)
    dataset.close()
    assert dataset[9][".x.txt"] == shards.text("a", 9)
    assert len(web.requests) - before <= 1 + 2 + 1 + 1


def test_a_look_that_fails_lets_nothing_through(tmp_path, monkeypatch):
    """Bytes whose version could not be asked for are not given out, however often it is tried."""
    name = f"/{tmp_path.name}/a.tar"
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file(name, DATA)
    source = ShardBytes(f"memory:/{name}")
    assert source.read(0, 5) == DATA[:5]
    calls = []

    def info(self, path, **_):
        calls.append(path)
        raise OSError("the network is down")

    monkeypatch.setattr(type(filesystem), "info", info)
    try:
        with pytest.raises(FetchError, match="network is down"):
            source.read(0, 5)
        assert len(calls) < 40  # a try that brought bytes was not in vain
    finally:
        monkeypatch.undo()
        filesystem.rm(name)


@pytest.mark.parametrize("rows", [[0], [1], [1, 0]])
def test_a_table_of_before_samples_had_one_more_member(web, far, rows):
    """It is of the same size, and all members that it knows are where it says: no sample comes without the new one."""
    before = shards.pack([("a0000.txt", b"a0"), ("a0001.txt", b"a1")])
    after = shards.pack([("a0000.txt", b"a0"), ("a0001.txt", b"a1"), ("a0001.cls", b"1")])
    if rows == [0]:
        after = shards.pack([("a0000.txt", b"a0"), ("a0000.cls", b"0"), ("a0001.txt", b"a1")])
    assert len(before) == len(after)
    url = web.add("/a.tar", after)
    publish(web, "/a.tar", before)
    with pytest.raises(ChangedShardError, match="of another version"):
        open_dataset(url, rows=2).__getitems__(rows)


@pytest.mark.parametrize("headers", [{}, WEAK["none"]], ids=["strong", "weak"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT], ids=["ustar", "pax"])
@pytest.mark.parametrize(
    ("new", "row"),
    [("0.txt", 0), ("1.bin", 1), ("1.cls", 1), ("2.cls", 2), ("3.txt", 3)],
    ids=["first", "middle", "before", "behind", "last"],
)
def test_a_table_that_lacks_a_member(web, far, headers, form, new, row):
    """Of a version that had members of no sample in the place of some: no sample comes without them."""
    names = ["0.txt", "0.cls", "dir", "1.txt", "1.bin", "1.cls", "2.txt", "2.cls", "3.txt"]
    tail = "" if form == tarfile.USTAR_FORMAT else "n" * 120
    body = pack([f"{tail}{name}" for name in names], form, b"x" * 700)
    before = pack([f"{tail}{'none!' if name == new else name}" for name in names], form, b"x" * 700)
    assert len(body) == len(before)
    url = web.add("/a.tar", body, said(whole, **headers))
    publish(web, "/a.tar")
    good = [sorted(sample) for sample in open_dataset(url, rows=4)]
    publish(web, "/a.tar", before)
    dataset = open_dataset(url, rows=table_of(before).nsamples)
    for index in range(len(dataset)):
        with contextlib.suppress(ChangedShardError):
            assert sorted(dataset[index]) == good[index]
    with pytest.raises(ChangedShardError, match=r"is not in its member table|not where its member table says"):
        dataset[min(row, len(dataset) - 1)]


def test_what_is_of_no_sample_costs_no_second_look(web, far):
    """Directories and files of no sample between members are known from one read."""
    names = [name for k in range(6) for name in (f"README{k}", f"{k}.txt", "x", f"{k}.cls")]
    url = web.add("/a.tar", pack(names, tarfile.PAX_FORMAT))
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=6)
    assert sorted(dataset[3]) == sorted(dataset[0])
    assert web.requests.count("/a.tar") == 3  # what it is, and a read each


@pytest.mark.parametrize("offset", [0, 511])
def test_a_table_with_members_before_the_first_header(web, far, offset, caplog):
    """It is not used: nothing is asked for at negative positions."""
    url = serve(web)
    table = table_of(web.files["/a.tar"])
    offsets = table.offsets.tolist()
    offsets[0] = offset
    columns = [memoryview(tables.array("Q", offsets)), table.sizes, table.extension_ids, table.starts, table.key_ends]
    parts = {**table._parts(), "columns": columns}
    web.add("/a.tar.widx", MemberTable(**parts).to_bytes())
    assert open_dataset(url)[0][".txt"] == shards.text("a", 0)
    assert "where no header fits" in caplog.text


def two_members(tag, rows=4, name="{}"):
    """A shard whose samples have two members far apart, both of which say which version it is."""
    return shards.pack(
        [
            (f"{name.format(row)}.{extension}", tag * size)
            for row in range(rows)
            for extension, size in (("a", 900), ("b", 40_000), ("c", 900))
        ]
    )


def is_of_one_version(sample):
    """Whether all members of a sample are of the same shard."""
    return len({bytes(sample[name][:1]) for name in (".a", ".b", ".c") if name in sample}) == 1


@pytest.mark.parametrize("headers", [None, *WEAK.values()], ids=["strong", *WEAK])
def test_a_part_of_a_member_that_moved(web, far, headers):
    """The header says so, also where it is read by itself; of a part, no more than that and its header is read."""
    data = shards.shard("a", ROWS, 400_000)
    url = web.add("/a.tar", data, *([] if headers is None else [said(whole, **headers)]))
    publish(web, "/a.tar")
    dataset = open_dataset(url)
    shard, row, _ = dataset.get_shard(2)
    with shard.pinned() as reader:
        assert reader.read_parts([RowPart(row, ".bin", 100_000, 100_010)])[0] == b"a0002" * 2
        source = reader._source
        before = source.read_bytes
        assert reader.read_parts([RowPart(row, ".bin", 300_000, 300_010)])[0] == b"a0002" * 2
        assert source.read_bytes - before <= 2 * 512 + 10
    dataset.close()
    more, data = tars.member(b"of no sample", b"x"), data[: -len(tars.END)]
    url = web.add("/b.tar", more + data + tars.END)
    publish(web, "/b.tar", data + more + tars.END)
    with contextlib.closing(open_dataset(url)) as dataset:
        shard, row, _ = dataset.get_shard(2)
        with shard.pinned() as reader, pytest.raises(ChangedShardError, match="not where its member table says"):
            reader.read_parts([RowPart(row, ".bin", 300_000, 300_010)])


@pytest.mark.parametrize("fields", [None, (".a", ".c")], ids=["all", "some"])
@pytest.mark.parametrize("has_table", [True, False], ids=["table", "headers"])
@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_samples_of_versions_that_nothing_tells_apart(web, far, headers, has_table, fields):
    """Each is of one version, whichever that is: it is one request, with a published table or without."""
    old, new = two_members(b"o"), two_members(b"n")
    for place in range(1, 12):
        url = web.add("/a.tar", old, *[said(whole, **headers)] * place, said(replaced(new), **headers))
        web.faults["/a.tar"].append(said(whole, **headers))
        if has_table:
            publish(web, "/a.tar")
        dataset = open_dataset(url, rows=4, fields=fields)
        samples = dataset.__getitems__([2, 0]) + [dataset[k] for k in (1, 3, 0)]
        assert all(map(is_of_one_version, samples))
        assert bytes(samples[-1][".a"][:1]) == b"n" or place > 5
        dataset.close()


@pytest.mark.parametrize("place", range(10))
def test_a_version_that_came_and_went(web, far, place):
    """Headers that are read again after a doubt say nothing of the bytes before: these are read again, too."""
    first, other = (
        shards.pack([("a.txt", digit * 600), (f"{key}.bin", digit * 600)]) for digit, key in ((b"1", "b"), (b"0", "a"))
    )
    faults = [*[whole] * place, replaced(other), replaced(first), whole]
    url = web.add("/a.tar", first, *(said(fault, **WEAK["none"]) for fault in faults))
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=2)
    for _ in range(4):
        with contextlib.suppress(ChangedShardError):
            assert dataset[0][".txt"] == b"1" * 600


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_long_names_of_versions_that_nothing_tells_apart(web, far, form):
    """They are read with their sample; members of no sample before them, too."""
    names = [name for k in range(3) for name in (f"{k}README", f"{'n' * 120}{k}.txt")]
    body = pack(names, form, b"x" * (70 << 10))
    url = web.add("/a.tar", body, said(whole, **WEAK["none"]))
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=3)
    assert dataset[0]["__key__"][-1] == "0"
    before = len(web.requests)
    assert [dataset[row]["__key__"][-1] for row in (1, 2, 0)] == list("120")
    assert len(web.requests) == before + 3


@pytest.mark.parametrize("place", range(1, 8))
def test_headers_of_two_versions(web, far, place, tmp_path):
    """A table is never made of them: where nothing tells versions apart, headers are read twice."""
    old, new = (shards.pack([(f"{key}.txt", b"x" * 70_000) for key in keys]) for keys in ("abcdefgh", "abcdefxy"))
    faults = [*[whole] * place, replaced(new), whole]
    url = web.add("/a.tar", old, *(said(fault, **WEAK["time"]) for fault in faults))
    source = ShardBytes(url)
    provider = RangeProvider(is_final=True, session=Session(), rule="first-dot", group="adjacent")
    located = AutoProvider(cache_dir=str(tmp_path)).cache.locate(Shard(url=url, nsamples=None))

    def scan():
        try:
            return "".join(provider._scan(located, source).keys())
        except ChangedShardError as error:
            return str(error).partition(": ")[2]

    found = [scan() for _ in range(3)]
    assert found[-1] == "abcdefxy"
    assert set(found) <= {"abcdefgh", "it changed while its headers were read; open it again", "abcdefxy"}


def test_an_entity_tag_that_turns_weak(web, far):
    """As of two replicas: samples are read in one request each from then on, and the tag is still the same."""
    old, new = two_members(b"o"), two_members(b"n")
    strong, weak = {"ETag": '"1"'}, {"ETag": 'W/"1"'}
    faults = [said(whole, **strong), said(whole, **strong), said(replaced(new), **weak), said(whole, **weak)]
    url = web.add("/a.tar", old, *faults)
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=4)
    assert all(is_of_one_version(dataset[k]) for k in (0, 1, 2, 3, 0))
    assert dataset.stats().range_requests == len([path for path in web.requests if path == "/a.tar"]) - 1


@pytest.mark.parametrize("before", range(1, 5))
def test_an_entity_tag_that_turns_weak_between_members(web, far, before):
    """Members in requests of their own, of one read: the shard is another one behind its first answers."""
    strong, weak = {"ETag": '"1"'}, {"ETag": 'W/"1"'}
    faults = [said(whole, **strong)] * before + [said(replaced(two_members(b"n")), **weak)]
    url = web.add("/a.tar", two_members(b"o"), *faults, *[said(whole, **weak)] * 100)
    publish(web, "/a.tar")
    dataset = open_dataset(url, rows=4, fields=[".a", ".c"])
    samples = [dataset[k] for k in range(4)]
    assert all(is_of_one_version(sample) for sample in samples)
    assert {bytes(sample[".a"][:1]) for sample in samples[before // 2 + 1 :]} <= {b"n"}


@pytest.mark.parametrize("has_table", [True, False], ids=["table", "headers"])
def test_servers_that_give_one_file_different_tags(web, far, has_table, tmp_path):
    """By ranges nothing tells that from a file that is replaced: the error says both. A download is of one answer."""
    body, tags = two_members(b"o"), itertools.cycle(['"a"', '"b"'])
    url = web.add("/a.tar", body, *(said(whole, ETag=tag) for tag in itertools.islice(tags, 1000)))
    if has_table:
        publish(web, "/a.tar")
    for access in ("range", "auto") if has_table else ("range",):
        dataset = open_dataset(url, access, rows=4, cache_dir=tmp_path / access)
        with pytest.raises(ChangedShardError, match=r"rewritten, .*several servers .* access='fetch'") as raised:
            [dataset[k] for k in range(4)]
        assert {raised.value.expected, raised.value.found} == {'"a"', '"b"'}
        dataset.close()
    dataset = open_dataset(url, "fetch", rows=4, cache_dir=tmp_path / "fetch")
    assert all(is_of_one_version(dataset[k]) for k in range(4))
    assert dataset.stats().fetches == 1


# --- servers


@pytest.mark.parametrize("has_table", [True, False], ids=["table", "headers"])
def test_all_of_it_in_answer_to_a_range(web, far, has_table):
    """Some servers answer so where the range is the whole object: that is what was asked for."""

    def answer(handler, body):
        lo, hi = handler.span
        (ignored if (lo, min(hi, len(body))) == (0, len(body)) else whole)(handler, body)

    body = shards.pack([("a.txt", b"x" * 700)])
    url = web.add("/a.tar", body, answer)
    if has_table:
        publish(web, "/a.tar")
    for access in ("range", "auto"):
        dataset = open_dataset(url, access, rows=1)
        assert dataset[0][".txt"] == b"x" * 700
        assert dataset.stats().fetches == 0 or access == "auto"
        dataset.close()
    with ShardBytes(url) as source:
        assert source.read_first(1 << 20) == body
    with ShardBytes(url, size=len(body)) as source:
        assert source.read(0, 1 << 20) == body


@pytest.mark.parametrize(
    "fault",
    [whole_unannounced, unsized, unsaid, zipped],
    ids=["no length", "a range of *", "multipart", "gzip"],
)
def test_auto_fetches_from_servers_that_give_no_usable_ranges(web, far, fault):
    """Whatever form it takes; "range" says so in a typed error that names the shard, and asks once."""
    url = serve(web, fault)
    before = len(web.requests)
    with pytest.raises(FetchError, match=r"/a\.tar.*access='fetch'"):
        open_dataset(url)[0]
    assert len(web.requests) == before + 1
    if fault in (unsized, unsaid):  # what a fetch makes of such a server is another matter: now it has none at all
        web.faults["/a.tar"] = [fault, whole_unannounced]
    dataset = open_dataset(url, "auto")
    assert dataset[3][".txt"] == shards.text("a", 3)
    assert dataset.stats().fetches == 1


def test_auto_runs_programs_that_are_allowed(tmp_path):
    """The output of one has no positions, so it is fetched."""
    path = shards.write(tmp_path / "a.tar", shards.shard("a", ROWS))
    dataset = open_dataset(f"pipe:cat {path}", "auto", allow_pipe=True)
    assert dataset[3][".txt"] == shards.text("a", 3)
    with pytest.raises(FetchError, match="positions"):
        open_dataset(f"pipe:cat -u {path}", allow_pipe=True)[0]


def test_ranges_that_are_known_to_be_none_are_not_asked_for(web):
    """An error at once, not after six tries."""
    web.has_ranges = False
    source = ShardBytes(web.add("/a.tar", DATA))
    assert not source.has_ranges
    with pytest.raises(FetchError, match="no byte ranges"):
        source.read(0, 5)
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    "fault", [status(400), status(500), redirect("/a.tar.widx"), instead(b"<html>")], ids=["400", "500", "loop", "page"]
)
def test_a_table_that_cannot_be_had_is_done_without(web, far, fault):
    """Servers say many things of what is not there; the shard can be read all the same."""
    url = serve(web, has_table=False)
    web.add("/a.tar.widx", b"", fault)
    assert open_dataset(url)[3][".txt"] == shards.text("a", 3)


@pytest.mark.parametrize(
    "fault",
    [short, too_long, marked_anew, status(416), instead(b"other")],
    ids=["short", "long", "marks", "416", "other"],
)
def test_what_else_servers_do_is_a_typed_error(web, far, fault):
    """No wrong byte, no wait, and the shard is named."""
    url = serve(web)
    dataset = open_dataset(url)
    assert dataset[0][".txt"] == shards.text("a", 0)
    web.faults["/a.tar"] = [fault]
    with pytest.raises(WidsError, match=r"/a\.tar"):
        [dataset[row] for row in range(3)]
    web.faults["/a.tar"] = [whole]
    dataset.close()
    assert dataset[1][".txt"] == shards.text("a", 1)


def drip(handler, body):
    """The head, then a byte now and then: it never seems to stall."""
    data = handler.begin(body)
    for at in range(len(data)):
        handler.wfile.write(data[at : at + 1])
        handler.wfile.flush()
        if handler.owner.closing.wait(0.05):
            break
    handler.close_connection = True


@pytest.mark.parametrize("path", ["/a.tar", "/a.tar.widx"])
@pytest.mark.parametrize("fault", [drip, held])
def test_a_drip_ends(web, far, monkeypatch, path, fault):
    """A server that sends a byte now and then is given up, as one that sends none."""
    url = serve(web, size=60_000)
    dataset = open_dataset(url)
    if path == "/a.tar":
        dataset[0]
    monkeypatch.setattr(filesystems, "limit_of", lambda size: 0.1)
    web.faults[path] = [fault]
    if path == "/a.tar":
        with pytest.raises(FetchError, match=r"/a\.tar"):
            dataset[3]
        assert is_idle()
    else:
        assert dataset[3][".txt"] == shards.text("a", 3)


def test_a_large_batch_survives_a_flaky_server(web, monkeypatch, set_limits):
    """Each try brings some of its requests: it goes on, and nothing is asked for twice."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 0)
    set_limits(concurrency, connections=1)
    url = web.add("/a.tar", DATA)
    source = ShardBytes(url, size=len(DATA))
    web.faults["/a.tar"] = [*([whole, status(503)] * 12), whole]
    pieces = [(100 * k, 100 * k + 10) for k in range(30)]
    assert source.read_many(pieces) == [DATA[lo:hi] for lo, hi in pieces]


def test_a_failure_does_not_waste_what_is_under_way(web, monkeypatch):
    """A request that fails at once leaves another its time: what that brings is not asked for again."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 0)
    judged, judge = threading.Event(), scheduler.is_transient
    monkeypatch.setattr(scheduler, "is_transient", lambda *error: judged.set() or judge(*error))

    def late(handler, body):
        data = handler.begin(body)
        assert judged.wait(PATIENCE_SECONDS)
        handler.end(data)

    source = ShardBytes(web.add("/a.tar", DATA, late, status(503), whole), size=len(DATA))
    assert source.read_many([(0, 9), (9000, 9009)]) == [DATA[:9], DATA[9000:9009]]
    assert len(web.requests) == 3


# --- bounds


class Silent(fsspec.asyn.AsyncFileSystem):
    """Says what it has, and once ``is_silent`` nothing more."""

    protocol, cachable = "wids-silent", False
    is_silent = ()

    async def _info(self, path, **_):
        if "info" in self.is_silent:
            await asyncio.sleep(PATIENCE_SECONDS)
        return {"name": path, "size": len(DATA), "type": "file", "ETag": "1"}

    async def _cat_file(self, path, start=None, end=None, **_):
        if "cat" in self.is_silent:
            await asyncio.sleep(PATIENCE_SECONDS)
        return DATA[start:end]


@pytest.mark.parametrize("what", ["info", "cat"])
def test_a_client_that_does_not_answer_ends(monkeypatch, what):
    """Whichever of its calls never returns."""
    fsspec.register_implementation("wids-silent", Silent, clobber=True)
    source = ShardBytes("wids-silent://x/a.tar")
    assert source.read(7, 5) == DATA[7:12]
    monkeypatch.setattr(filesystems, "limit_of", lambda size: 0.05)
    monkeypatch.setattr(Silent, "is_silent", (what,))
    with pytest.raises(FetchError, match="wids-silent"):
        source.read(0, 5)
    assert is_idle()


def is_idle():
    """Whether this process has no request under way."""
    return filesystems.connections().slots.free == filesystems.connections().count


class Sparse(fsspec.AbstractFileSystem):
    """One object whose bytes are zero but where ``written`` says otherwise (position -> bytes)."""

    protocol = "wids-sparse"
    written, size, asked = {}, 0, []

    def info(self, path, **_):
        """As fsspec asks for."""
        return {"name": path, "size": self.size, "type": "file", "ETag": "1"}

    def cat_file(self, path, start=None, end=None, **_):
        """As fsspec asks for."""
        if path.endswith(".widx"):
            raise FileNotFoundError(path)
        end = min(end, self.size)
        self.asked.append(end - start)
        data = bytearray(end - start)
        for at, piece in self.written.items():
            lo, hi = max(at, start), min(at + len(piece), end)
            if lo < hi:
                data[lo - start : hi - start] = piece[lo - at : hi - at]
        return bytes(data)


def test_a_table_that_is_too_long_is_not_read(web, far, monkeypatch, caplog):
    """Of ten gigabytes beside a shard, no more than the table of such a shard could have comes into memory."""
    url = serve(web)
    sent = []

    def endless(handler, body):
        handler.start(Connection="close")
        handler.close_connection = True
        for _ in range(2000):
            handler.wfile.write(bytes(1 << 20))
            sent.append(1)

    for fault in (endless, instead(bytes(20 << 20))):
        web.faults["/a.tar.widx"] = [fault]
        tracemalloc.start()
        assert open_dataset(url)[3][".txt"] == shards.text("a", 3)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 << 20
    assert len(sent) < 200
    assert "longer than" in caplog.text


def test_what_lies_between_pieces_is_not_kept(monkeypatch):
    """Ten thousand small pieces with much in between are several requests, and what nobody wants goes at once."""
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 1 << 20)
    fsspec.register_implementation("wids-sparse", Sparse, clobber=True)
    monkeypatch.setattr(Sparse, "size", 1 << 40)
    monkeypatch.setattr(Sparse, "asked", [])
    source = ShardBytes("wids-sparse://x/a.tar")
    pieces = [(k << 19, (k << 19) + 100) for k in range(400)]
    tracemalloc.start()
    found = source.read_many(pieces)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == [bytes(100)] * 400
    assert max(Sparse.asked) <= range_client._MAX_REQUEST_BYTES
    assert peak < 3 * range_client._MAX_REQUEST_BYTES


def test_a_member_that_claims_more_than_there_is(web, far):
    """A size of 2^60 bytes in a header, or in a table: an error, before anything is allocated."""
    data = bytearray(shards.shard("a", ROWS))
    header = data[:512]
    header[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    url = web.add("/a.tar", bytes(header) + bytes(data[512:]))
    with pytest.raises(WidsError, match=r"/a\.tar"):
        open_dataset(url)[0]
    publish(web, "/a.tar", shards.shard("a", ROWS))
    with pytest.raises(ShardError, match=r"/a\.tar"):
        open_dataset(url)[0]


def test_members_of_more_than_8_gib(monkeypatch, far):
    """Their size stands in an extended header; what lies behind them is read, and nothing of theirs."""
    size = 9 << 30

    def head(name, size):
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.PAX_FORMAT)

    big, text = head("a.bin", size), head("a.txt", 5)
    monkeypatch.setattr(Sparse, "written", {0: big, len(big) + size: text + b"hello"})
    monkeypatch.setattr(Sparse, "size", len(big) + size + 4096)
    fsspec.register_implementation("wids-sparse", Sparse, clobber=True)
    monkeypatch.setattr(Sparse, "asked", [])
    assert open_dataset("wids-sparse://x/a.tar", rows=1, fields=".txt")[0][".txt"] == b"hello"
    assert max(Sparse.asked) < 1 << 20


# --- auto


def test_auto_counts_what_a_shard_cost_before_it_was_closed(web, monkeypatch):
    """A shard that is closed and opened for each sample is fetched as one that stays open."""
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: 5000)
    dataset = open_dataset(serve(web), "auto")
    for row in range(ROWS):
        assert dataset[row][".txt"] == shards.text("a", row)
        dataset.close()
    assert dataset.stats().fetches == 1
    assert dataset.stats().range_requests < ROWS


# --- threads, processes, copies


def test_threads_that_find_at_once_that_it_is_over():
    """Both are told to open the shard again."""
    data = shards.shard("a", 3)
    meeting = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    class Source:
        url, requests, read_bytes, version = "x", 0, 0, "1"

        def read_many(self, pieces):
            return [data[lo:hi] for lo, hi in pieces]

    def is_due():
        meeting.wait()
        return False

    errors = []
    reader = RangeReader(Source(), table=table_of(data), rescan=None, is_due=is_due)

    def read():
        try:
            reader.read(0)
        except ClosedReaderError as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert len(errors) == 2
    assert not reader.pin()


def test_threads_that_share_a_dataset(web, far):
    """Each reads what it asks for."""
    dataset, found = open_dataset(serve(web), lru_size=1), []

    def read(first):
        rows = [row % ROWS for row in range(first, first + 20)]
        found.append([dataset[row][".txt"] for row in rows] == [shards.text("a", row) for row in rows])

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert found == [True] * 4
    assert not any(thread.is_alive() for thread in threads)


def collate(batch):
    """The texts."""
    return [(sample["__index__"], sample[".txt"]) for sample in batch]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_that_start_while_a_read_is_under_way(web, far, method):
    """They read, and so does the parent afterwards: none waits for what only the other has."""
    url = serve(web)
    dataset = open_dataset(url)
    dataset[0]
    gate = web.gate()
    web.faults["/a.tar"] = [gate, whole]
    found = []
    thread = threading.Thread(target=lambda: found.append(dataset[3][".txt"]))
    thread.start()
    try:
        assert gate.entered.wait(PATIENCE_SECONDS)
        loader = DataLoader(
            dataset,
            batch_size=4,
            num_workers=2,
            collate_fn=collate,
            multiprocessing_context=method,
            timeout=PATIENCE_SECONDS,
        )
        pairs = [pair for batch in loader for pair in batch]
        assert pairs == [(row, shards.text("a", row)) for row in range(ROWS)]
    finally:
        gate.go.set()
        thread.join(PATIENCE_SECONDS)
    assert found == [shards.text("a", 3)]
    assert dataset[5][".txt"] == shards.text("a", 5)


def test_copies_and_hooks_that_raise(web, far):
    """Deep copies read on their own; a hook's error is its own."""

    def bad(event):
        raise RuntimeError("hook")

    dataset = open_dataset(serve(web), hooks=[bad])
    first = dataset[0]
    twin = copy.deepcopy(dataset)
    dataset.close()
    assert twin[0] == first == dataset[0]
    assert dataset.__getitems__([]) == []
    one, other = dataset.__getitems__([-1, ROWS - 1])
    assert one == other


def test_nothing_is_left_open(web, far):
    """Datasets that are opened, read, failed and dropped leave no descriptor and no thread behind."""
    url = serve(web)
    open_dataset(url)[0]

    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = count()
    for fault in (short, status(500), whole, too_long):
        web.faults["/a.tar"] = [whole, fault, fault, fault, fault, fault, fault, whole]
        dataset = open_dataset(url)
        for row in range(3):
            try:
                dataset[row]
            except WidsError:
                continue
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_SECONDS
    while (after := count()) > (before[0] + 9, before[1] + 10) and time.monotonic() < end:
        pause.wait(0.05)
    assert is_idle()
    assert after[0] <= before[0] + 18  # connections that are kept, at both ends


def test_odd_urls(web, far):
    """Letters that no URL may hold, signed queries, redirects: each is asked for as it stands."""
    data = shards.shard("a", ROWS)
    for path, target in (("/ä b+c.tar", "/%C3%A4%20b+c.tar"), ("/s.tar?sig=a%2Fb&x=::1", "/s.tar")):
        web.add(target, data)
        assert open_dataset(web.url + path)[3][".txt"] == shards.text("a", 3)
    assert not [request for request in web.requests if "sig" in request and "widx" in request]
    web.add("/r.tar", b"", redirect("/s.tar?sig=a%2Fb"))
    assert open_dataset(web.url + "/r.tar")[3][".txt"] == shards.text("a", 3)
