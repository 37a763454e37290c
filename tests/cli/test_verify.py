"""`wids verify`: every kind of damage is found, told with its place, and stops nothing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import struct
import threading

import msgspec
import pytest

from tests.support import tars
from tests.support.cli import PATIENCE_SECONDS, complaint, in_one_line, run, run_ok, run_on_terminal, spawn
from tests.support.servers import cut_unannounced, instead, status, whole
from tests.support.shards import write_json, write_tar
from wids.core.codecs.decode import SampleDecoder
from wids.core.collection.shard_collection import load_shards
from wids.core.files import atomic
from wids.core.files.identity import Identity
from wids.core.shard import Shard
from wids.core.tables import member_tables
from wids.core.tables.table import build_table
from wids.errors import CacheError
from wids.jobs import check, scan
from wids.jobs.check import CheckTask, check_shard
from wids.jobs.index_verify import KeyCensus, open_journal, verify_shards
from wids.jobs.problems import VerifySettings
from wids.jobs.runner import RunOptions


def image(color=0):
    """A small PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def verify_shard(shard, *, number=0, settings=VerifySettings()):  # noqa: B008 - frozen
    """What is found out about one shard."""
    return check_shard(CheckTask(number=number, shard=shard), settings=settings)


def sound(count=3):
    """A shard of some samples, each an image and a label."""
    contents = {}
    for k in range(count):
        contents |= {f"s{k}.png": image(k), f"s{k}.cls": b"%d" % k}
    return tars.files(contents)


SOUND = sound()


def promised(url="x.tar", data=SOUND, count=3):
    """What an index says of a sound shard."""
    return Shard(url=url, nsamples=count, filesize=len(data), md5sum=hashlib.md5(data).hexdigest())


def flipped(at):
    """The sound shard with one byte changed."""
    return SOUND[:at] + bytes([SOUND[at] ^ 1]) + SOUND[at + 1 :]


# Damage -> the bytes that are there, the kinds of problems, and words of the first one.
DAMAGE = {
    "short": (SOUND[:1500], ["size", "tar"], f"has 1500 bytes, the index says {len(SOUND)}"),
    "empty": (b"", ["size", "tar"], "has 0 bytes"),
    "long": (SOUND + bytes(512), ["size"], f"has {len(SOUND) + 512} bytes"),
    "wrong md5": (flipped(600), ["digest"], "the index says " + hashlib.md5(SOUND).hexdigest()[:8]),
    "flipped header byte": (flipped(20), ["digest", "tar"], "md5"),
    "wrong count": (sound(4).ljust(len(SOUND), b"\0")[: len(SOUND)], ["digest", "count"], "md5"),
    "another file": (b"\xff" * len(SOUND), ["digest", "tar"], "md5"),
}


@pytest.mark.parametrize(("data", "kinds", "words"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_damage(tmp_path, server, data, kinds, words, is_local):
    """Each kind of damage is found, in a file and behind a URL alike."""
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    shard = promised(os.fspath(path) if is_local else server.add("/x.tar", data))
    finding = verify_shard(shard, number=7)
    assert [problem.kind for problem in finding.problems] == kinds
    assert words in finding.problems[0].what
    assert all(problem.advice for problem in finding.problems)
    assert (finding.number, finding.url, finding.size_bytes) == (7, shard.url, len(data))
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (SOUND + sound(2), ("tar", f"byte {len(SOUND)}", "10,240 bytes that nothing reads")),
        (SOUND + bytes(512), None),
        (SOUND + b"x", ("tar", f"byte {len(SOUND)}", "1 bytes that nothing reads")),
        (tars.files({"README": b"1", ".s.txt": b"2"}), ("empty", "", "no sample: the names of its 2 files")),
        (tars.files({}), None),
        (SOUND[:4096] + bytes(163_840), ("tar", "byte 4096", "ends with 163,840 zeros")),
        (bytes(20_480), ("tar", "byte 0", "ends with 20,480 zeros")),
        (tars.files({"\u00e9.jpg": b"1", "e\u0301.txt": b"2"}), ("keys", "", "has 1 key that another one is, too")),
    ],
    ids=["two archives", "zeros", "a byte", "no sample", "no member", "zeros from its middle", "all zeros", "NFC, NFD"],
)
def test_what_nothing_reads(tmp_path, server, data, problem, is_local):
    """Bytes behind the end marker, and shards whose files are in no sample; zeros, and no files at all, are nothing."""
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    finding = verify_shard(Shard(url=str(path) if is_local else server.add("/x.tar", data), nsamples=None))
    found = [(each.kind, each.where, each.what) for each in finding.problems]
    assert [each[:2] for each in found] == ([] if problem is None else [problem[:2]])
    assert all(problem[2] in what for *_, what in found)


@pytest.mark.parametrize("args", [(), ("--decode",)], ids=["bytes", "decode"])
def test_a_shard_of_zeros_from_its_middle_on(tmp_path, args):
    """The command fails, though all samples that are left are right, and can be decoded."""
    (tmp_path / "x.tar").write_bytes(tars.files({"a.txt": b"1", "b.txt": b"2"})[:2048] + bytes(163_840))
    write_json(tmp_path / "t.json", {"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 2}]})
    code, out, err = run("verify", tmp_path / "t.json", *args)
    assert (code, "ends with 163,840 zeros" in out + err) == (1, True)


def test_files_in_no_sample_are_counted(tmp_path):
    """What macOS puts into archives, and names without an extension: nothing is wrong, and their number is told."""
    data = tars.files({"a.txt": b"1", "._a.txt": b"2", "README": b"3"})
    (tmp_path / "x.tar").write_bytes(data)
    write_json(tmp_path / "t.json", {"wids_version": 1, "shardlist": [{"url": "x.tar", "nsamples": 1}]})
    out = run_ok("verify", tmp_path / "t.json")
    assert "all is well" in out
    assert "in no sample, because their names have no extension or begin with a dot: 2 files" in out
    assert json.loads(run_ok("verify", tmp_path / "t.json", "--json"))["left_files"] == 2


def test_a_name_that_no_table_can_have(tmp_path):
    """Names of 252 bytes and more: there is no table beside such a shard, and nothing is wrong."""
    for length in (251, 252, 255):
        path = tmp_path / ("n" * (length - 4) + ".tar")
        path.write_bytes(SOUND)
        assert verify_shard(Shard(url=str(path), nsamples=3)).problems == ()


def test_members_that_are_no_files(tmp_path):
    """A link that leads nowhere is a problem; a hard link is sound, its published table too."""
    linked = tars.member(b"a.txt", b"1") + tars.header(b"b.txt", kind=b"1", link=b"a.txt") + tars.END
    (tmp_path / "x.tar").write_bytes(linked)
    save_table(tmp_path / "x.tar")
    assert verify_shard(Shard(url=str(tmp_path / "x.tar"), nsamples=2)).problems == ()
    other = tars.header(b"b.txt", kind=b"1", link=b"c.txt")
    (tmp_path / "x.tar").write_bytes(tars.member(b"a.txt", b"1") + other + tars.END)
    [problem] = verify_shard(Shard(url=str(tmp_path / "x.tar"), nsamples=None)).problems
    assert (problem.kind, problem.where) == ("tar", "byte 1024")
    assert "hard link" in problem.detail


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_sound_shard(tmp_path, server, is_local):
    """Nothing is said of a sound shard; a remote one is fetched once."""
    (tmp_path / "x.tar").write_bytes(SOUND)
    shard = promised(os.fspath(tmp_path / "x.tar") if is_local else server.add("/x.tar", SOUND))
    finding = verify_shard(shard)
    assert finding.problems == ()
    assert (finding.size_bytes, finding.nsamples) == (len(SOUND), 3)
    assert server.requests == ([] if is_local else ["/x.tar", "/x.tar.widx"])


def test_place_of_a_damaged_header(tmp_path):
    """A damaged header is told with its offset."""
    (tmp_path / "x.tar").write_bytes(flipped(20))
    finding = verify_shard(Shard(url=os.fspath(tmp_path / "x.tar"), nsamples=3))
    (problem,) = finding.problems
    assert (problem.kind, problem.where) == ("tar", "byte 0")
    assert "checksum" in problem.detail
    assert finding.nsamples is None


def test_two_members_of_one_name(tmp_path):
    """A sample with a repeat is told by its key and field."""
    (tmp_path / "x.tar").write_bytes(tars.member(b"k.txt", b"1") + tars.member(b"k.txt", b"2") + tars.END)
    (problem,) = verify_shard(Shard(url=os.fspath(tmp_path / "x.tar"), nsamples=1)).problems
    assert (problem.kind, problem.where, problem.key, problem.field) == ("tar", "sample 'k' .txt", "k", ".txt")


def test_missing(tmp_path, server):
    """A shard that is not there is a finding, not an error."""
    for url in (os.fspath(tmp_path / "x.tar"), server.url + "/x.tar"):
        for settings in (VerifySettings(), VerifySettings(is_quick=True)):
            (problem,) = verify_shard(promised(url), settings=settings).problems
            assert (problem.kind, problem.what) == ("missing", "is not there")


@pytest.mark.usefixtures("no_waits")
def test_other_troubles_of_servers(server):
    """A refusal, a page and a server that only fails are told apart."""
    urls = {
        server.add("/denied.tar", SOUND, status(403)): "denied",
        server.add("/page.tar", SOUND, instead(b"<html>log in</html>")): "page",
        server.add("/failing.tar", SOUND, status(500)): "fetch",
        "http://127.0.0.1:1/x.tar": "unreachable",
        "pipe:true": "refused",
    }
    found = {url: verify_shard(promised(url)).problems[0] for url in urls}
    assert {url: problem.kind for url, problem in found.items()} == urls
    assert "connection refused" in found["http://127.0.0.1:1/x.tar"].what


def test_directory_in_the_place_of_a_shard(tmp_path):
    """What cannot be opened is told as such."""
    (problem,) = verify_shard(promised(os.fspath(tmp_path))).problems
    assert problem.kind == "denied"


def test_damage_of_a_transfer_is_no_damage_of_the_shard(server):
    """What is damaged only once is fetched again, and well."""
    shard = promised(server.add("/x.tar", SOUND, cut_unannounced, whole))
    assert verify_shard(shard).problems == ()
    assert server.requests.count("/x.tar") == 2


def test_without_digests(tmp_path):
    """With has_digest off, bytes of members are not looked at."""
    (tmp_path / "x.tar").write_bytes(flipped(600))
    assert (
        verify_shard(promised(os.fspath(tmp_path / "x.tar")), settings=VerifySettings(has_digest=False)).problems == ()
    )


def test_quick_looks_from_outside(server, tmp_path):
    """A quick look reads a few bytes at most, and sees the size."""
    server.has_ranges = True
    big = SOUND + bytes(100_000)
    shard = promised(server.add("/x.tar", big))
    (tmp_path / "x.tar").write_bytes(big)
    for one in (shard, promised(os.fspath(tmp_path / "x.tar"))):
        (problem,) = verify_shard(one, settings=VerifySettings(is_quick=True)).problems
        assert problem.kind == "size"
    assert sum(hi - lo for _, lo, hi in server.ranges) <= 512
    assert len(server.requests) == 1


def test_another_grouping(tmp_path):
    """Counts are compared by the dataset's own grouping."""
    data = tars.files({"a.png": image(), "b.cls": b"1", "a.cls": b"1"})
    (tmp_path / "x.tar").write_bytes(data)
    shard = promised(os.fspath(tmp_path / "x.tar"), data, 2)
    assert verify_shard(shard, settings=VerifySettings(group="key")).problems == ()
    assert [problem.kind for problem in verify_shard(shard).problems] == ["count"]


# --- what lies beside a local shard


@pytest.fixture
def local(tmp_path):
    """A sound shard in a directory, and what an index says of it."""
    path = os.fspath(tmp_path / "x.tar")
    with open(path, "wb") as file:
        file.write(SOUND)
    return promised(path)


def save_table(path):
    """Put the right .widx beside a shard."""
    fd, facts = atomic.open_file(path)
    atomic.write_atomically(f"{path}.widx", member_tables.scan_table(fd, path, facts).to_bytes())
    os.close(fd)


def test_sound_tables_beside_a_shard(local):
    """Right tables are nothing to tell; neither is an .idx of a tool that is not known."""
    save_table(local.url)
    base = local.url.removesuffix("tar")
    with open(local.url + ".idx", "wb") as file:
        file.write(struct.pack("<4Q", 0, 2048, 4096, 6144))
    lines = [f"png {512 + 2048 * k} {len(image(k))} cls {1536 + 2048 * k} 1\n" for k in range(3)]
    for text in ("v1.1 3\n" + "".join(lines), "something else"):
        with open(base + "idx", "w", encoding="utf-8") as file:
            file.write(text)
        assert verify_shard(local).problems == ()


def stale_table(path):
    """A table of a shard that was then written anew."""
    with open(path, "wb") as file:
        file.write(sound(2))
    save_table(path)
    with open(path, "wb") as file:
        file.write(SOUND)


def wrong_table(path):
    """A table that claims to be of this shard and is of another one."""
    members = [(b"s0.png", 0, 512, 4), (b"t1.png", 1024, 1536, 4)]
    fd, facts = atomic.open_file(path)
    os.close(fd)
    atomic.write_atomically(f"{path}.widx", build_table(members, identity=facts, shard=path).to_bytes())


BESIDE = {
    "stale .widx": (stale_table, "x.tar.widx", "something else than the shard's headers"),
    "wrong .widx": (wrong_table, "x.tar.widx", "something else than the shard's headers"),
    "damaged .widx": (b"\x89WIDS\r\n\x1a", "x.tar.widx", "is none, or was cut short"),
    "stale .idx": (b"v1.2 1\npng 512 99 s0.png\n", "x.idx", "with 99 bytes at byte 512"),
    "cut .idx": (b"v1.2 2\npng 512 99 s0.png\n", "x.idx", "promises"),
    "stale .tar.idx": (struct.pack("<3Q", 0, 2048, 4096), "x.tar.idx", "2 samples, the shard 3"),
    "cut .tar.idx": (b"123", "x.tar.idx", "has 3 bytes"),
}


@pytest.mark.parametrize(("make", "name", "words"), BESIDE.values(), ids=BESIDE)
def test_tables_beside_a_shard(local, make, name, words):
    """A table that does not hold for its shard is told with its name, ours and those of other tools."""
    place = os.path.join(os.path.dirname(local.url), name)
    if isinstance(make, bytes):
        with open(place, "wb") as file:
            file.write(make)
    else:
        make(local.url)
    (problem,) = verify_shard(local).problems
    assert (problem.kind, problem.where) == ("table", name)
    assert words in problem.what
    assert place in problem.advice


def table_of(data, **facts):
    """The table that somebody published beside a shard."""
    identity = Identity(size=len(data), etag='"x"', **facts)
    return build_table(tars.scanned(data), identity=identity, shard="x").to_bytes()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (table_of(SOUND), ""),
        (table_of(SOUND, md5=hashlib.md5(SOUND).hexdigest()), ""),
        (b"<html>not here</html>", ""),
        (table_of(sound(2)), "something else than the shard's headers"),
        (table_of(SOUND, md5="0" * 31 + "1"), "made for another version of the shard"),
        (table_of(SOUND)[:-8], "is damaged"),
    ],
)
def test_table_beside_a_remote_shard(server, table, words):
    """A table that was published beside a remote shard is looked at, too."""
    server.add("/x.tar.widx", table)
    problems = verify_shard(promised(server.add("/x.tar", SOUND))).problems
    assert [(problem.kind, problem.where) for problem in problems] == [("table", "x.tar.widx")] * bool(words)
    assert all(words in problem.what for problem in problems)


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_a_table_in_another_order(server, tmp_path, is_local):
    """Rows permuted, all else right: it would decide which sample is which."""
    path = tmp_path / "x.tar"
    path.write_bytes(SOUND)
    lying = tars.lying_table(SOUND, (1, 0, 2))
    identity = Identity(size=len(SOUND), mtime_ns=os.stat(path).st_mtime_ns)
    (tmp_path / "x.tar.widx").write_bytes(lying.with_identity(identity).to_bytes())
    server.add("/x.tar.widx", lying.to_bytes())
    [problem] = verify_shard(promised(str(path) if is_local else server.add("/x.tar", SOUND))).problems
    assert (problem.kind, problem.where) == ("table", "x.tar.widx")
    assert "another order than the archive" in problem.what


def test_tables_in_packs(local, server, tmp_path):
    """They are compared as those beside shards are: of a local shard before it is published, and of a remote one."""
    url = server.add("/x.tar", SOUND)
    cases = [
        (table_of(SOUND), ""),
        (table_of(sound(2)), "something else than the shard's headers"),
        (table_of(SOUND)[:-8], "is damaged"),
        (bytes(1 << 20), "is too long to be one"),
    ]
    for k, (table, words) in enumerate(cases):
        place = f"{server.url}/{k}.tables"
        server.has_ranges = True
        server.add(f"/{k}.tables", tars.pack_of({url: table}, place))
        path = str(tmp_path / f"{k}.tables")
        atomic.write_atomically(path, tars.pack_of({os.path.abspath(local.url): table}, path))
        for shard, pack in [(promised(url), place), (local, path)]:
            packs = pack, f"{pack}.none.tables"
            problems = verify_shard(msgspec.structs.replace(shard, packs=packs)).problems
            assert [(each.kind, each.where) for each in problems] == [("table", f"{k}.tables")] * bool(words)
            assert all(words in each.what for each in problems)


def test_a_pack_that_was_made_again_is_compared_again(local, tmp_path):
    """What a journal remembers holds for the pack as it was."""
    path = str(tmp_path / "x.tables")
    findings = []
    for table in (table_of(sound(2)), table_of(SOUND)):
        atomic.write_atomically(path, tars.pack_of({os.path.abspath(local.url): table}, path))
        shard = msgspec.structs.replace(local, packs=(path,))
        known = findings[0] if findings else None
        task = CheckTask(number=0, shard=shard, has_version=True, known=known)
        findings.append(check_shard(task, settings=VerifySettings()))
    assert [len(finding.problems) for finding in findings] == [1, 0]


def test_table_of_a_copied_shard(local):
    """A table that is right but of another time is told, and is nothing wrong."""
    save_table(local.url)
    assert not verify_shard(local).has_unused_table
    os.utime(local.url, ns=(1, 1))
    finding = verify_shard(local)
    assert finding.problems == ()
    assert finding.has_unused_table
    code, out, err = run("verify", local.url)
    assert (code, err) == (0, "")
    assert "1 member table; they are right" in out


def test_fifo_beside_a_shard(local):
    """Something that is no file, by the name of a table, is not waited for."""
    os.mkfifo(local.url + ".widx")
    assert verify_shard(local).problems == ()


# --- decoding


def undecodable():
    """A shard with a damaged image, a label that is none, and a pickle."""
    return tars.files(
        {"a.png": image(), "b.png": image()[:40], "c.cls": b"x", "c.png": image(), "d.pkl": b"\x80\x04N."}
    )


def test_decoding_names_key_and_field(tmp_path):
    """Each member that cannot be decoded is told; what would run code is counted and left alone."""
    (tmp_path / "x.tar").write_bytes(undecodable())
    shards = [(0, Shard(url=os.fspath(tmp_path / "x.tar"), nsamples=4))]
    (finding,) = verify_shards(shards, decode=SampleDecoder("PIL"), engine=RunOptions(jobs=1)).findings
    assert [(problem.kind, problem.key, problem.field) for problem in finding.problems] == [
        ("decode", "b", ".png"),
        ("decode", "c", ".cls"),
    ]
    assert "ValueError" in finding.problems[1].what
    assert finding.undecoded == 1


def die(sample):
    """A decoder that takes its process along."""
    if sample["__key__"] == "die":
        os._exit(3)
    return sample


def test_decoder_that_ends_its_process(tmp_path):
    """A crash costs its own shard a problem; the next ones are decoded by another process."""
    shards = []
    for k, key in enumerate(["a", "die", "c", "die", "e"]):
        (tmp_path / f"{k}.tar").write_bytes(tars.files({f"{key}.txt": b"x"}))
        shards.append((k, Shard(url=os.fspath(tmp_path / f"{k}.tar"), nsamples=1)))
    findings = verify_shards(shards, decode=die, engine=RunOptions(jobs=1)).findings
    assert [len(finding.problems) for finding in findings] == [0, 1, 0, 1, 0]
    assert "exit code 3" in findings[1].problems[0].what


def hang(sample):
    """A decoder that says that it has begun, and never ends."""
    with open(sample[".txt"].getvalue(), "wb"):
        pass
    threading.Event().wait(PATIENCE_SECONDS)


def test_interrupted_while_decoding(tmp_path):
    """An interrupt ends the processes that decode, too."""
    mark = tmp_path / "mark"
    (tmp_path / "x.tar").write_bytes(tars.files({"a.txt": os.fsencode(mark)}))

    def show(_):
        if mark.exists():
            raise KeyboardInterrupt

    shards = [(0, Shard(url=os.fspath(tmp_path / "x.tar"), nsamples=1))]
    with pytest.raises(KeyboardInterrupt):
        verify_shards(shards, decode=hang, engine=RunOptions(jobs=1), progress=show)
    assert multiprocessing.active_children() == []


# --- many


def test_all_are_looked_at(tmp_path, server, monkeypatch):
    """Whatever is wrong with some, all are looked at; remote ones are never more on the disk than jobs, then gone."""
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    seen, lock, look = [], threading.Lock(), scan.scan_file

    def count(path, *args, **options):
        with lock:
            seen.append(sum(name.endswith(".tar") for _, _, names in os.walk(tmp_path) for name in names))
        return look(path, *args, **options)

    monkeypatch.setattr(scan, "scan_file", count)
    bodies = [SOUND, SOUND[:1500], None, SOUND, flipped(20), SOUND, flipped(600), SOUND]
    shards = []
    for k, body in enumerate(bodies):
        url = f"{server.url}/{k}.tar" if body is None else server.add(f"/{k}.tar", body)
        shards.append((k, promised(url)))
    findings = verify_shards(shards, engine=RunOptions(jobs=2)).findings
    assert [finding.number for finding in findings if finding.problems] == [1, 2, 4, 6]
    assert [finding.number for finding in findings] == list(range(8))
    assert len(seen) == 10  # damaged ones twice
    assert max(seen) <= 2
    assert os.listdir(tmp_path) == []


def test_bug_in_looking_is_a_problem_of_one_shard(tmp_path, monkeypatch):
    """An unforeseen error is told with its shard, and ends nothing."""
    (tmp_path / "x.tar").write_bytes(SOUND)
    url = os.fspath(tmp_path / "x.tar")

    def fail(shard, _):
        if shard.md5sum:
            raise RuntimeError("never thought of")

    monkeypatch.setattr(check, "find_difference_in_size", fail)
    shards = [(0, promised(url)), (1, Shard(url=url, nsamples=3))]
    first, second = verify_shards(shards, engine=RunOptions(jobs=1)).findings
    assert first.problems[0].kind == "error"
    assert "never thought of" in first.problems[0].what
    assert second.problems == ()


def test_no_room_ends_it(server, monkeypatch, tmp_path):
    """A full disk is not the shard's fault: it ends the whole with an error."""
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))

    def fail(*args, **options):
        raise CacheError("no space left")

    monkeypatch.setattr(scan.download, "download_to", fail)
    with pytest.raises(CacheError, match="no space"):
        verify_shards([(k, promised(f"{server.url}/{k}")) for k in range(5)], engine=RunOptions(jobs=2))
    assert os.listdir(tmp_path) == []


# --- the command


def write_dataset(directory):
    """Five shards and their index: 1 is cut, 3 is missing, 4 has an image that is none."""
    shards = []
    for k in range(5):
        body = tars.files({"a.png": b"no image", "b.cls": b"1", "c.png": image()}) if k == 4 else SOUND
        shards.append(
            {"url": f"t-{k}.tar", "nsamples": 3, "filesize": len(body), "md5sum": hashlib.md5(body).hexdigest()}
        )
        if k != 3:
            (directory / f"t-{k}.tar").write_bytes(body[:1500] if k == 1 else body)
    (directory / "train.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    return os.fspath(directory / "train.json")


def test_report(tmp_path):
    """A table of what is wrong, totals, one line on stderr, exit code 1."""
    index = write_dataset(tmp_path)
    code, out, err = run("verify", index, "--decode", "--jobs", "2")
    assert code == 1
    lines = out.splitlines()
    assert lines[0].split() == ["shard", "what", "where", "what", "to", "do"]
    assert [line.split()[0] for line in lines[1:5]] == ["t-1.tar", "t-1.tar", "t-3.tar", "t-4.tar"]
    assert "is not there" in lines[3]
    assert "sample 'a' .png" in lines[4]
    assert re.search(r"train.json: 5 shards of .* and 9 samples looked at in", out)
    assert err == f"wids: {index}: 3 of 5 shards are wrong (decode 1, missing 1, size 1, tar 1)\n"
    way = f"wids view {index} --exclude bad.jsonl -o good.json"
    assert lines[-1] == f"to leave these samples out: --report bad.jsonl, then {way}"


def test_report_of_a_sound_dataset(tmp_path):
    """All is well: one line, exit code 0; and what could not be compared is told."""
    index = write_dataset(tmp_path)
    code, out, err = run("verify", index, "--shards", "2:3")
    assert (code, err) == (0, "")
    assert re.fullmatch(r".*: 1 shard of \S+ kB and 3 samples looked at in .*: all is well\n", out)
    code, out, err = run("verify", tmp_path / "t-0.tar")
    assert (code, err) == (0, "")
    assert "because the index lacks them: size of 1 shard, number of samples of 1 shard, checksum of 1 shard" in out


@pytest.fixture
def numbered(tmp_path):
    """An index of two shards that number their samples alike, and of one that has a key twice: 7 keys of 11 samples."""
    for name, contents in (
        ("a", {f"{k}.cls": b"a" for k in range(3)}),
        ("b", {f"{k}.cls": b"b" for k in range(4)}),
        ("c", [("x.cls", b"1"), ("y.cls", b"2"), ("x.txt", b"3"), ("z.cls", b"4")]),
    ):
        write_tar(tmp_path / f"{name}.tar", contents)
    rows = [{"url": f"{name}.tar", "nsamples": count} for name, count in (("a", 3), ("b", 4), ("c", 4))]
    return write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows})


def test_keys_that_several_samples_have(numbered):
    """They are counted, with an example, over all shards and within one; a fault only where that is asked for."""
    out = run_ok("verify", numbered, "--jobs", "1")
    assert "all is well" in out
    assert "with a key that another sample has, too: 4 samples, such as '0' in b.tar and a.tar; a list of keys" in out
    told = json.loads(run_ok("verify", numbered, "--json", "--jobs", "1"))
    assert (told["repeated_keys"], told["repeated_key"], told["uncompared_keys"]) == (4, "0", 0)
    code, _, err = run("verify", numbered, "--unique-keys")
    assert code == 1
    assert "not all keys are known to be unique: 4 samples with one of another, 0 samples not compared" in err
    assert "with a key" not in run_ok("verify", numbered, "--unique-keys", "--shards", "1:2")
    assert "1 sample, such as 'x' in c.tar; a list" in run_ok("verify", numbered, "--shards", "2:3")
    assert run("verify", numbered, "--unique-keys", "--quick")[0] == 2


def test_keys_that_are_not_compared(numbered, tmp_path):
    """Beyond the limit, and those of shards that an earlier run had checked: counted, and not known to be unique."""
    assert "keys not compared (--max-keys, or checked by an earlier run): 8 samples" in run_ok(
        "verify", numbered, "--jobs", "1", "--max-keys", "3"
    )
    assert "keys not compared" not in run_ok("verify", numbered, "--max-keys", "0")
    assert run("verify", numbered, "--max-keys", "0", "--unique-keys")[0] == 2
    assert run("verify", numbered, "--max-keys", "3", "--unique-keys")[0] == 1
    journal, told = str(tmp_path / "journal"), []

    def stop(progress):
        if progress.ended == 1:
            raise KeyboardInterrupt

    shards = list(enumerate(load_shards(numbered)[1]))
    for show in (stop, lambda _: None):
        with contextlib.closing(open_journal(journal)) as kept, contextlib.suppress(KeyboardInterrupt):
            told.append(verify_shards(shards, max_keys=100, journal=kept, engine=RunOptions(jobs=1), progress=show))
    (outcome,) = told
    assert (outcome.known, outcome.keys.repeated, outcome.keys.left) == (1, 1, 3)


@pytest.mark.parametrize("seed", range(20))
def test_a_census_of_keys(seed):
    """It counts as a set does, in any order of the shards, and its example is right."""
    draw = random.Random(seed)
    shards = [[str(draw.randrange(60)) for _ in range(draw.randrange(12))] for _ in range(draw.randrange(1, 12))]
    wanted = sum(map(len, shards)) - len({key for keys in shards for key in keys})
    for order in (range(len(shards)), draw.sample(range(len(shards)), len(shards))):
        census = KeyCensus(1000)
        for number in order:
            census.add(number, shards[number])
        assert (census.repeated, census.left, census.example is None) == (wanted, 0, not wanted)
        if census.example is not None:
            key, one, other = census.example
            assert key in shards[one]
            assert key in shards[other]
            assert one != other or shards[one].count(key) > 1


def test_json(tmp_path):
    """The same for programs."""
    code, out, _ = run("verify", write_dataset(tmp_path), "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["shards"], found["wrong"], found["samples"]) == (5, 2, 9)
    assert [(problem["shard"], problem["kind"]) for problem in found["problems"]] == [
        (1, "size"),
        (1, "tar"),
        (3, "missing"),
    ]
    assert found["problems"][1]["where"].startswith("byte ")


def test_quick(tmp_path):
    """--quick sees what is missing and what is too short."""
    code, out, err = run("verify", write_dataset(tmp_path), "--quick")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["t-1.tar", "t-3.tar"]
    assert "missing 1, size 1" in err


def test_many_problems_of_one_shard(tmp_path):
    """Of very many problems of one shard the first ones are told, and JSON has all."""
    (tmp_path / "x.tar").write_bytes(tars.files({f"{k:02}.cls": b"x" for k in range(30)}))
    code, out, _ = run("verify", tmp_path / "x.tar", "--decode")
    assert code == 1
    assert len([line for line in out.splitlines() if line.startswith("x.tar")]) == 11
    assert "and 20 more" in out


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--shards", "7:9"), 1, "there are no such shards; the index has 5"),
        (("--shards", "x"), 2, "is no range of shards"),
        (("--quick", "--decode"), 2, "give one of them"),
        (("--quick", "--journal", "x"), 2, "give one of them"),
        (("--journal", "none/x"), 1, "none/x: cannot be written"),
        (("--jobs", "0"), 2, "--jobs"),
    ],
)
def test_wrong_usage(tmp_path, args, code, words):
    """Wrong usage is one message and its exit code."""
    done, out, err = run("verify", write_dataset(tmp_path), *args)
    assert (done, out) == (code, "")
    assert words in in_one_line(err)


def test_no_index(tmp_path):
    """An index that is not there is one line."""
    code, out, err = run("verify", tmp_path / "none.json")
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(tmp_path, server, number, code):
    """Ctrl-C and SIGTERM end it at once, and leave nothing in the temporary directory."""
    gate = server.gate()
    url = server.add("/x.tar", SOUND, gate)
    with spawn("verify", url, env={"TMPDIR": os.fspath(tmp_path)}) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert "again" not in err  # without an index of its own it has no journal
    assert os.listdir(tmp_path) == []


def test_a_killed_run_leaves_nothing_for_long(tmp_path, server):
    """What a run that was killed had in the temporary directory goes with the next run that needs one."""
    gate = server.gate()
    url = server.add("/x.tar", SOUND, gate, whole)
    with spawn("verify", url, env={"TMPDIR": os.fspath(tmp_path)}) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    gate.go.set()
    assert len(os.listdir(tmp_path)) == 2
    assert run("verify", url, env={"TMPDIR": os.fspath(tmp_path)}).code == 0
    assert os.listdir(tmp_path) == []


# --- going on after a kill


@pytest.fixture
def checked(monkeypatch):
    """The names of the shards that were read, in order; an interrupt comes after so many of them as a test says."""

    class Checked(list):
        interrupted_after = None

    read, look = Checked(), check.compare

    def note(facts, shard):
        read.append(os.path.basename(shard.url))
        return look(facts, shard)

    monkeypatch.setattr(check, "compare", note)
    return read


def verify_some(shards, place, *, count=None, settings=VerifySettings(), decode=None):  # noqa: B008 - frozen
    """Verify shards with a journal; interrupted when ``count`` of them were checked."""

    def show(progress):
        if count is not None and progress.ended >= count:
            raise KeyboardInterrupt

    with contextlib.closing(open_journal(os.fspath(place))) as journal:
        return verify_shards(shards, settings, decode=decode, engine=RunOptions(jobs=1), journal=journal, progress=show)


def interrupt(shards, place, count, **options):
    """Verify shards until ``count`` of them were checked."""
    with pytest.raises(KeyboardInterrupt):
        verify_some(shards, place, count=count, **options)


def facts_of(outcome):
    """The findings, without what tells versions apart."""
    return [msgspec.structs.replace(finding, version=None) for finding in outcome.findings]


@pytest.fixture
def shards(tmp_path):
    """Five shards in files, as an index has them: 1 is cut, 3 is missing, 4 has a member that is no image."""
    return list(enumerate(load_shards(write_dataset(tmp_path))[1]))


def test_a_run_that_was_ended_goes_on(tmp_path, shards, checked):
    """Shards that were checked, well or not, are not read again; the findings are those of a run that was not ended."""
    whole = verify_shards(shards, engine=RunOptions(jobs=1))
    checked.clear()
    interrupt(shards, tmp_path / "j", 2)
    with open(tmp_path / "j", "ab") as file:
        file.write(b'{"how": "(1')  # cut by a kill
    assert checked == ["t-0.tar", "t-1.tar"]
    rest = verify_some(shards, tmp_path / "j")
    assert checked == ["t-0.tar", "t-1.tar", "t-2.tar", "t-4.tar"]
    assert rest.known == 2
    assert facts_of(rest) == facts_of(whole)
    assert rest.failed == whole.failed
    assert not (tmp_path / "j").exists()
    assert verify_some(shards, tmp_path / "j").known == 0


def test_the_numbers_are_those_of_the_index(tmp_path, shards):
    """A shard that has another place in the index by now is found by its name."""
    interrupt(shards, tmp_path / "j", 2)
    turned = [(k, shard) for k, (_, shard) in enumerate(reversed(shards))]
    outcome = verify_some(turned, tmp_path / "j")
    assert (outcome.known, facts_of(outcome)) == (2, facts_of(verify_shards(turned)))


def change_shard(directory, shards):
    """Another shard of the same size."""
    (directory / "t-0.tar").write_bytes(flipped(600))
    os.utime(directory / "t-0.tar", ns=(5, 5))


def change_table(directory, shards):
    """A table beside a shard that was not there before."""
    (directory / "t-0.tar.widx").write_bytes(b"none")


def change_index(directory, shards):
    """The index says something else of it."""
    shards[0] = 0, msgspec.structs.replace(shards[0][1], nsamples=4)


@pytest.mark.parametrize(
    ("change", "kind"), [(change_shard, "digest"), (change_table, "table"), (change_index, "count")]
)
def test_changed_shards_are_checked_again(tmp_path, shards, change, kind):
    """A shard, a table or an index that changed since it was checked."""
    interrupt(shards, tmp_path / "j", 3)
    change(tmp_path, shards)
    outcome = verify_some(shards, tmp_path / "j")
    assert outcome.known == 2
    assert [problem.kind for problem in outcome.findings[0].problems] == [kind]


@pytest.mark.parametrize("change", [{"settings": VerifySettings(has_digest=False)}, {"decode": SampleDecoder("PIL")}])
def test_other_settings_begin_anew(tmp_path, shards, change):
    """What was found by a less close look is not taken for what a closer one would find; nor the other way round."""
    interrupt(shards, tmp_path / "j", 3)
    assert verify_some(shards, tmp_path / "j", **change).known == 0


def test_troubles_that_may_be_over_are_not_remembered(tmp_path, shards, checked):
    """A shard that was missing is looked for again; so is one whose decoding ended the process."""
    interrupt(shards[3:], tmp_path / "j", 2)
    (tmp_path / "t-3.tar").write_bytes(SOUND)
    outcome = verify_some(shards[3:], tmp_path / "j")
    assert (outcome.known, outcome.wrong) == (1, [])
    (tmp_path / "d.tar").write_bytes(tars.files({"die.txt": b"x"}))
    crashing = [(0, Shard(url=os.fspath(tmp_path / "d.tar"), nsamples=1)), shards[2]]
    interrupt(crashing, tmp_path / "j", 2, decode=die)
    assert verify_some(crashing, tmp_path / "j", decode=die).known == 1


@pytest.mark.parametrize("has_ranges", [False, True])
def test_remote_shards_are_known_by_their_versions(tmp_path, server, has_ranges):
    """By what the server says of the shard and of the table beside it; one without a version is fetched again."""
    server.has_ranges = has_ranges
    shards = [(k, promised(server.add(f"/{k}.tar", SOUND))) for k in range(3)]
    interrupt(shards, tmp_path / "j", 3)
    server.add("/1.tar", flipped(600))
    server.add("/2.tar.widx", b"none")
    outcome = verify_some(shards, tmp_path / "j")
    assert outcome.known == 1
    assert [[problem.kind for problem in each.problems] for each in outcome.findings] == [[], ["digest"], ["table"]]
    server.validators = ()
    interrupt(shards, tmp_path / "j", 3)
    assert verify_some(shards, tmp_path / "j").known == 0


def test_a_journal_that_cannot_be_written_ends_nothing(tmp_path, shards, monkeypatch):
    """On a full disk all shards are looked at all the same."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    with contextlib.closing(open_journal(os.fspath(tmp_path / "j"))) as journal, monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        outcome = verify_shards(shards, journal=journal)
    assert [finding.number for finding in outcome.wrong] == [1, 3]


@pytest.mark.parametrize("flags", [(), ("--journal", "j")])
def test_the_same_command_goes_on_after_a_kill(tmp_path, server, flags, monkeypatch):
    """Killed, it leaves its journal, beside the index or where it was told; the next run checks the rest."""
    monkeypatch.chdir(tmp_path)
    gate = server.gate()
    urls = [server.add("/0.tar", SOUND), server.add("/1.tar", flipped(600), whole, gate, whole)]
    rows = [{"url": url, "nsamples": 3, "md5sum": hashlib.md5(SOUND).hexdigest()} for url in urls]
    write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows})
    journal = tmp_path / (flags[1] if flags else "i.json.verifying")
    with spawn("verify", "i.json", "--jobs", 1, *flags, cwd=tmp_path) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    gate.go.set()
    assert b"0.tar" in journal.read_bytes()
    code, out, _ = run("verify", "i.json", "--json", *flags)
    again = json.loads(out)
    whole_code, out, _ = run("verify", "i.json", "--json")
    assert (again["known"], code, whole_code) == (1, 1, 1)
    # Keys of shards that were looked at before are not compared, and counted.
    assert (again["uncompared_keys"], again["repeated_keys"]) == (3, 0)
    keys = {"uncompared_keys": 0, "repeated_keys": 3, "repeated_key": "s0"}
    assert again | {"known": 0, "seconds": 0} | keys == json.loads(out) | {"seconds": 0}
    assert os.listdir(tmp_path) == ["i.json"]


def test_where_no_journal_can_be(tmp_path):
    """Tars without an index, and an index whose journal another run has, are verified without; unless one was named."""
    index = write_dataset(tmp_path)
    names = sorted(os.listdir(tmp_path))
    run_ok("verify", tmp_path / "t-0.tar")
    assert sorted(os.listdir(tmp_path)) == names
    with contextlib.closing(open_journal(f"{index}.verifying")):
        run_ok("verify", index, "--shards", "0:1")
        words = complaint(1, "verify", index, "--journal", f"{index}.verifying")
        assert "another wids verify is writing there" in words
    run_ok("verify", index, "--shards", "0:1")
    assert sorted(os.listdir(tmp_path)) == names


def test_on_a_terminal(tmp_path):
    """The progress bar is gone at the end, and the report stands."""
    code, shown = run_on_terminal("verify", write_dataset(tmp_path))
    assert code == 1
    assert "t-3.tar" in shown
