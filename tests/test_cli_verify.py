"""`wids verify`: every kind of damage is found, told with its place, and stops nothing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import threading

import pytest

from tests import tars
from tests.servers import cut_unannounced, instead, status, whole
from wids.codecs.decode import SampleDecoder
from wids.errors import CacheError
from wids.index.spec import Shard
from wids.index.table import Identity, build_table
from wids.jobs import check
from wids.jobs.check import verify_shard
from wids.jobs.inspection import Inspection
from wids.jobs.problems import Looks
from wids.osfiles import atomic
from wids.readers import member_tables

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE_SECONDS = 60


def image(color=0):
    """A small PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (color, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


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
    finding = verify_shard(shard, number=7, directory=os.fspath(tmp_path))
    assert [problem.kind for problem in finding.problems] == kinds
    assert words in finding.problems[0].what
    assert all(problem.advice for problem in finding.problems)
    assert (finding.number, finding.url, finding.size_bytes) == (7, shard.url, len(data))
    assert os.listdir(tmp_path) == ["x.tar"]


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
        for looks in (Looks(), Looks(is_quick=True)):
            (problem,) = verify_shard(promised(url), looks=looks).problems
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
    assert "nobody listens there" in found["http://127.0.0.1:1/x.tar"].what


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
    assert verify_shard(promised(os.fspath(tmp_path / "x.tar")), looks=Looks(has_digest=False)).problems == ()


def test_quick_looks_from_outside(server, tmp_path):
    """A quick look reads a few bytes at most, and sees the size."""
    server.has_ranges = True
    big = SOUND + bytes(100_000)
    shard = promised(server.add("/x.tar", big))
    (tmp_path / "x.tar").write_bytes(big)
    for one in (shard, promised(os.fspath(tmp_path / "x.tar"))):
        (problem,) = verify_shard(one, looks=Looks(is_quick=True)).problems
        assert problem.kind == "size"
    assert sum(hi - lo for _, lo, hi in server.ranges) <= 512
    assert len(server.requests) == 1


def test_another_grouping(tmp_path):
    """Counts are compared by the dataset's own grouping."""
    data = tars.files({"a.png": image(), "b.cls": b"1", "a.cls": b"1"})
    (tmp_path / "x.tar").write_bytes(data)
    shard = promised(os.fspath(tmp_path / "x.tar"), data, 2)
    assert verify_shard(shard, looks=Looks(group="key")).problems == ()
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
    member_tables.save_table(f"{path}.widx", member_tables.scan_table(fd, path, facts))
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
    member_tables.save_table(f"{path}.widx", build_table(members, identity=facts, shard=path))


BESIDE = {
    "stale .widx": (stale_table, "x.tar.widx", "something else than the shard's headers"),
    "wrong .widx": (wrong_table, "x.tar.widx", "something else than the shard's headers"),
    "damaged .widx": (b"\x89WIDX\r\n\x1a", "x.tar.widx", "is not a member table"),
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
    (finding,) = Inspection(shards, looks=Looks(), decode=SampleDecoder("PIL")).run(1)
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
    findings = Inspection(shards, looks=Looks(), decode=die).run(1)
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

    def show():
        if mark.exists():
            raise KeyboardInterrupt

    shards = [(0, Shard(url=os.fspath(tmp_path / "x.tar"), nsamples=1))]
    with pytest.raises(KeyboardInterrupt):
        Inspection(shards, looks=Looks(), decode=hang).run(1, show)
    assert multiprocessing.active_children() == []


# --- many


def test_all_are_looked_at(tmp_path, server, monkeypatch):
    """Whatever is wrong with some, all are looked at; remote ones are never more on the disk than jobs, then gone."""
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    seen, lock, look = [], threading.Lock(), check._look_into

    def count(path, *args, **options):
        with lock:
            seen.append(len(os.listdir(os.path.dirname(path))))
        return look(path, *args, **options)

    monkeypatch.setattr(check, "_look_into", count)
    bodies = [SOUND, SOUND[:1500], None, SOUND, flipped(20), SOUND, flipped(600), SOUND]
    shards = []
    for k, body in enumerate(bodies):
        url = f"{server.url}/{k}.tar" if body is None else server.add(f"/{k}.tar", body)
        shards.append((k, promised(url)))
    inspection = Inspection(shards, looks=Looks())
    findings = inspection.run(2)
    assert [finding.number for finding in findings if finding.problems] == [1, 2, 4, 6]
    assert [finding.number for finding in findings] == list(range(8))
    assert len(seen) == 10  # damaged ones twice
    assert max(seen) <= 2
    assert os.listdir(tmp_path) == []


def test_bug_in_looking_is_a_problem_of_one_shard(tmp_path, monkeypatch):
    """An unforeseen error is told with its shard, and ends nothing."""
    (tmp_path / "x.tar").write_bytes(SOUND)
    url = os.fspath(tmp_path / "x.tar")

    def fail(data):
        raise RuntimeError("never thought of")

    monkeypatch.setattr(check.retrying, "file_md5", fail)
    shards = [(0, promised(url)), (1, Shard(url=url, nsamples=3))]
    first, second = Inspection(shards, looks=Looks()).run(1)
    assert first.problems[0].kind == "error"
    assert "never thought of" in first.problems[0].what
    assert second.problems == ()


def test_no_room_ends_it(server, monkeypatch, tmp_path):
    """A full disk is not the shard's fault: it ends the whole with an error."""
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))

    def fail(*args, **options):
        raise CacheError("no space left")

    monkeypatch.setattr(check.retrying, "fetch_to", fail)
    with pytest.raises(CacheError, match="no space"):
        Inspection([(k, promised(f"{server.url}/{k}")) for k in range(5)], looks=Looks()).run(2)
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


def start(*args, **options):
    """Start the command line, whatever whoever runs the tests does with SIGINT."""
    usual = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    env = {**os.environ, "PYTHONPATH": ROOT, "COLUMNS": "100", "WIDS_DEBUG": "0", **options.pop("env", {})}
    program = f"{usual}\nif __name__ == '__main__':\n    from wids.cli import main\n    main()"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, args)], env=env, **options)


def run(*args, **options):
    """(exit code, stdout, stderr) of the command line; there is never a traceback."""
    with start(*args, **options) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert "Traceback" not in err
    return process.returncode, out, err


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


def test_report_of_a_sound_dataset(tmp_path):
    """All is well: one line, exit code 0; and what could not be compared is told."""
    index = write_dataset(tmp_path)
    code, out, err = run("verify", index, "--shards", "2:3")
    assert (code, err) == (0, "")
    assert re.fullmatch(r".*: 1 shard of \S+ kB and 3 samples looked at in .*: all is well\n", out)
    code, out, err = run("verify", tmp_path / "t-0.tar")
    assert (code, err) == (0, "")
    assert "does not say: size of 1 shard, number of samples of 1 shard, md5 of 1 shard" in out


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
        (("--jobs", "0"), 2, "--jobs"),
    ],
)
def test_wrong_usage(tmp_path, args, code, words):
    """Wrong usage is one message and its exit code."""
    done, out, err = run("verify", write_dataset(tmp_path), *args)
    assert (done, out) == (code, "")
    assert words in " ".join(err.replace("│", " ").split())


def test_no_index(tmp_path):
    """An index that is not there is one line."""
    code, out, err = run("verify", tmp_path / "none.json")
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(tmp_path, server, number, code):
    """Ctrl-C and SIGTERM end it at once, and leave nothing in the temporary directory."""
    gate = server.gate()
    url = server.add("/x.tar", SOUND, gate)
    with start("verify", url, env={"TMPDIR": os.fspath(tmp_path)}) as process:
        try:
            assert gate.entered.wait(PATIENCE_SECONDS)
            process.send_signal(number)
            process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == code
    assert os.listdir(tmp_path) == []


def test_a_killed_run_leaves_nothing_for_long(tmp_path, server):
    """What a run that was killed had in the temporary directory goes with the next run that needs one."""
    gate = server.gate()
    url = server.add("/x.tar", SOUND, gate, whole)
    with start("verify", url, env={"TMPDIR": os.fspath(tmp_path)}) as process:
        assert gate.entered.wait(PATIENCE_SECONDS)
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    gate.go.set()
    assert len(os.listdir(tmp_path)) == 2
    with start("verify", url, env={"TMPDIR": os.fspath(tmp_path)}) as process:
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert os.listdir(tmp_path) == []


def test_on_a_terminal(tmp_path):
    """The progress bar is gone at the end, and the report stands."""
    ours, its = pty.openpty()
    process = start(
        "verify", write_dataset(tmp_path), stdout=its, stderr=its, stdin=its, text=False, env={"TERM": "xterm"}
    )
    os.close(its)
    shown = b""
    with process, contextlib.suppress(OSError):  # EIO: the other side is closed
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    assert process.returncode == 1
    assert b"t-3.tar" in shown
    assert b"Traceback" not in shown
