"""`wids demo` from end to end, however it ends, and its parts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections import Counter
from multiprocessing import Pipe

import pytest
from PIL import Image
from rich.console import Console

import wids
from wids.cli import main
from wids.cli.demo.data import Data, split
from wids.cli.demo.events import EventLog
from wids.cli.demo.labels import order_classes, parse_label, read_label, to_tensors
from wids.cli.demo.process import Failure, explain
from wids.cli.demo.ranks import Ranks
from wids.cli.demo.report import Display, count_of
from wids.cli.demo.server import ShardServer
from wids.cli.demo.shapes import SHAPES, draw, pack
from wids.cli.demo.source import Source
from wids.cli.demo.train import Job, Progress, Result
from wids.cli.demo.verdict import Outcome, judge
from wids.cli.signals import Signals
from wids.errors import DecodeError, WidsError
from wids.events import Closed, Fetched, Hit

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROW = re.compile(
    r"^ (labels|rank \d+|all) +([\d,]+) +([\d,]+)? +([\d,]+)? +(\d+) +(\d+)(?: +([\d.]+)%)? *$", re.MULTILINE
)


class Demo:
    """A running `wids demo` in a session of its own, its processes marked, its temporary directory alone."""

    def __init__(self, *args):
        self.mark = uuid.uuid4().hex
        # Short: multiprocessing's sockets go there, and a socket's path is at most 107 characters.
        self.home = tempfile.mkdtemp(prefix="wids-test-")
        env = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": self.home, "MARK": self.mark, "COLUMNS": "200"}
        env.pop("WIDS_CACHE", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wids.cli", "demo", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        )
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        shutil.rmtree(self.home, ignore_errors=True)

    def pids(self):
        """Every process that descends from the command, dead ones left out."""
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and self._is_ours(pid)]

    def ranks(self):
        """The ranks: children of the command that lead a process group."""
        mine = self.process.pid
        return [pid for pid in self.pids() if pid != mine and os.getpgid(pid) == pid]

    def wait_for(self, beginning):
        """Read stdout up to a line that begins so."""
        for line in self.process.stdout:
            self.shown += line
            if line.startswith(beginning):
                return
        raise AssertionError(f"{self.shown} {self.process.stderr.read()}")

    def finish(self):
        """(exit code, all of stdout, stderr)."""
        out, err = self.process.communicate()
        self.shown += out
        return self.process.returncode, self.shown, err

    def assert_gone(self, *, home=True):
        """No process, no listening port, nothing in the temporary directory."""
        deadline = time.monotonic() + 10
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.pids() == []
        if home:
            assert os.listdir(self.home) == []
        port = re.search(r"http://127\.0\.0\.1:(\d+)", self.shown)
        if port:
            with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", int(port[1]))):
                pass

    def _is_ours(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                return f"MARK={self.mark}".encode() in file.read().split(b"\0")
        except OSError:
            return False


def read_table(shown):
    """Row name -> (samples, batches, samples/s, fetched, hits, accuracy in percent) of the closing table."""
    rows = {}
    for name, *cells in ROW.findall(shown):
        *counts, accuracy = (cell.replace(",", "") for cell in cells)
        rows[name] = (*(int(count) if count else None for count in counts), float(accuracy) if accuracy else None)
    return rows


@pytest.mark.timeout(240)
def test_embedded_demo_from_end_to_end():
    """The embedded default learns the shapes, with equal ranks, each shard fetched once, and leaves nothing behind."""
    with Demo() as demo:
        code, shown, err = demo.finish()
        assert (code, err) == (0, "")
        rows = read_table(shown)
        assert list(rows) == ["rank 0", "rank 1", "all"]
        # 3,001 samples for two ranks: 1,501 each, in 47 batches, 6 times.
        assert [rows[name][:2] for name in rows] == [(9006, 282), (9006, 282), (18012, 564)]
        assert rows["rank 0"][3] + rows["rank 1"][3] == rows["all"][3] == 11
        assert rows["all"][4] > 0
        assert rows["all"][5] >= 95
        assert "epoch 6/6" in shown
        assert "11 shards went over HTTP once" in shown
        demo.assert_gone()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("moment", "number", "is_group", "expected"),
    [
        ("epoch 1/", signal.SIGINT, True, 130),
        ("epoch 1/", signal.SIGTERM, False, 143),
        ("serving", signal.SIGINT, False, 130),
    ],
)
def test_signal_leaves_nothing(moment, number, is_group, expected):
    """Ctrl-C or SIGTERM, in training or while ranks start, ends every process and removes every file."""
    with Demo("--epochs", "500") as demo:
        demo.wait_for(moment)
        (os.killpg if is_group else os.kill)(demo.process.pid, number)
        code, _, err = demo.finish()
        assert code == expected
        assert "Traceback" not in err
        demo.assert_gone()


@pytest.mark.timeout(120)
def test_killed_rank_ends_the_demo():
    """When a rank is killed, the parent says so in a line, ends the other rank, and cleans up."""
    with Demo("--epochs", "500") as demo:
        demo.wait_for("epoch 1/")
        os.kill(max(demo.ranks()), signal.SIGKILL)
        code, _, err = demo.finish()
        assert code == 1
        assert re.fullmatch(r"wids: rank \d was killed by SIGKILL in mid-run; the others were ended\n", err)
        demo.assert_gone()


@pytest.mark.timeout(120)
def test_killed_parent_takes_its_ranks_along():
    """When the parent is killed, ranks and workers end by themselves."""
    with Demo("--epochs", "500") as demo:
        demo.wait_for("epoch 1/")
        assert len(demo.ranks()) == 2
        os.kill(demo.process.pid, signal.SIGKILL)
        assert demo.finish()[0] == -signal.SIGKILL
        demo.assert_gone(home=False)


@pytest.mark.timeout(120)
def test_own_index_over_http(tmp_path):
    """`--index` finds the classes, holds a tenth out, trains equal ranks from the cache, and keeps what is asked."""
    pack(str(tmp_path), split="train", count=301, nshards=3, seed=5)
    kept = tmp_path / "kept"
    with ShardServer(str(tmp_path)) as server:
        index = f"{server.url}/shapes-train.json"
        with Demo("--index", index, "--epochs", "1", "--workers", "1", "--keep", str(kept)) as demo:
            code, shown, err = demo.finish()
            assert (code, err) == (0, "")
            assert os.listdir(demo.home) == []
    rows = read_table(shown)
    # 271 samples to train on: 136 for each rank, in 5 batches.
    assert rows["labels"][:2] == (301, None)
    assert rows["rank 0"][:2] == rows["rank 1"][:2] == (136, 5)
    assert (rows["labels"][3], rows["all"][3]) == (3, 3)
    assert rows["all"][4] >= 3
    assert set(server.requests.values()) == {1}
    assert "301 samples in 3 shards, 6 classes, 30 held out" in shown
    assert f"Kept in {kept}" in shown
    assert sorted(os.listdir(kept)) == ["cache", "run"]
    assert sum(name.endswith(".tar") for name in os.listdir(kept / "cache")) == 3


@pytest.mark.timeout(120)
def test_broken_image_is_told_in_one_line(tmp_path):
    """A member that cannot be decoded, in a worker of a rank, comes out as one line that names its sample."""
    good = io.BytesIO()
    draw(0, seed=0, split="x").image.save(good, "JPEG")
    members = [
        (f"{i:03d}", {"jpg": good.getvalue() if i % 2 else b"no image", "cls": b"%d" % (i % 3)}) for i in range(40)
    ]
    with Demo("--index", write_tar(tmp_path, members), "--ranks", "1", "--workers", "1") as demo:
        code, _, err = demo.finish()
        assert code == 1
        assert re.fullmatch(r"wids: rank 0 failed: cannot decode \.jpg of sample '\d\d\d' .*\n", err)
        demo.assert_gone()


def write_tar(directory, samples, name="own.tar"):
    """A local shard of (key, {extension: bytes}) samples; returns its path."""
    path = os.path.join(directory, name)
    with tarfile.open(path, "w") as archive:
        for key, members in samples:
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def run_here(monkeypatch, capsys, tmp_path, *args):
    """Run the command in this process; returns what it said on stderr after exit code 1, and nothing left behind."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    monkeypatch.setattr(sys, "argv", ["wids", "demo", *args])
    with pytest.raises(SystemExit) as left:
        main()
    err = capsys.readouterr().err
    assert left.value.code == 1
    assert err.count("\n") == 1
    assert os.listdir(home) == []
    return err


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "there is nothing there"), ("{", "not valid JSON"), ('{"wids_version": 1, "shardlist": []}', "no shards")],
)
def test_unreadable_index(content, expected, monkeypatch, capsys, tmp_path):
    """An index that is not there, not JSON or empty is one line and exit code 1."""
    path = tmp_path / "index.json"
    if content is not None:
        path.write_text(content)
    err = run_here(monkeypatch, capsys, tmp_path, "--index", str(path))
    assert str(path) in err
    assert expected in err


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        ("0120", ["--label", "txt"], r"sample 'k0' .*own.tar has no \.txt; it has \.cls, \.jpg. Name one .* --label"),
        ("0120", ["--image", ".png"], r"has no \.png; it has \.cls, \.jpg. Name one of them with --image"),
        ("1111", [], r"all 4 samples have the label '1'"),
        ("01", [], r"has 2 samples, .* too few for 2 ranks"),
        (["0", "1", "[2]", "3"], [], r"\.cls of sample 'k2' \(index 2\) .* is neither a whole number nor a short text"),
        (["0", "1", "", "3"], [], r"sample 'k2' .* is neither"),
        (["0", "1", None, "3"], [], r"sample 'k2' .* has no \.cls; it has \.jpg\."),
        (list(map(str, range(40))), [], r"40 different values in 40 samples"),
    ],
)
def test_nothing_to_learn_from(labels, options, expected, monkeypatch, capsys, tmp_path):
    """A missing field, a label that is no class, too few samples or classes: each is told in one line."""
    samples = [
        (f"k{i}", {"jpg": b"", **({} if label is None else {"cls": label.encode()})}) for i, label in enumerate(labels)
    ]
    path = write_tar(tmp_path, samples)
    assert re.search(expected, run_here(monkeypatch, capsys, tmp_path, "--index", path, *options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--label", ".json"], "none was given"),
        (["--index", "x.json", "--label", "jpg"], "are both .jpg"),
        (["--keep", ROOT], "there is something in it already"),
        (["--keep", __file__], "cannot be used"),
    ],
)
def test_options_that_do_not_fit(options, expected, monkeypatch, capsys, tmp_path):
    """Options that contradict each other, or a directory that is in use, are refused before anything is made."""
    assert expected in run_here(monkeypatch, capsys, tmp_path, *options)


def test_drawings_are_a_function_of_seed_split_and_index():
    """The same (seed, split, index) draws the same pixels and facts; another of any of them draws others."""
    one = draw(7, seed=1, split="train")
    assert one.image.size == (48, 48)
    again = draw(7, seed=1, split="train")
    assert (again.image.tobytes(), again.label, again.facts) == (one.image.tobytes(), one.label, one.facts)
    assert one.facts["shape"] == SHAPES[one.label]
    for other in (draw(8, seed=1, split="train"), draw(7, seed=2, split="train"), draw(7, seed=1, split="test")):
        assert other.image.tobytes() != one.image.tobytes()


def test_classes_are_balanced():
    """Every six consecutive drawings show all six shapes, in an order that changes."""
    labels = [draw(i, seed=0, split="train").label for i in range(60)]
    sixes = [tuple(labels[i : i + 6]) for i in range(0, 60, 6)]
    assert all(sorted(six) == list(range(6)) for six in sixes)
    assert len(set(sixes)) > 1


def test_index_matches_the_tars(tmp_path):
    """The index tells each shard's samples, size and digest as tarfile and the dataset find them, sizes unequal."""
    packed = pack(str(tmp_path), split="test", count=103, nshards=5, seed=0)
    assert sum(packed.nsamples) == 103
    assert len(set(packed.nsamples)) > 1
    with open(packed.index) as file:
        rows = json.load(file)["shardlist"]
    assert [row["nsamples"] for row in rows] == list(packed.nsamples)
    assert sum(os.path.getsize(tmp_path / row["url"]) for row in rows) == packed.size_bytes
    for row in rows:
        with tarfile.open(tmp_path / row["url"]) as archive:
            assert len(archive.getnames()) == 3 * row["nsamples"]
    dataset = wids.ShardListDataset(packed.index, cache_local=True, cache_dir=tmp_path / "cache")  # checks size and md5
    assert [dataset[i]["__key__"] for i in range(103)] == [f"{i:06d}" for i in range(103)]
    sample = dataset[100]
    drawn = draw(100, seed=0, split="test")
    assert sample[".cls"] == drawn.label
    assert sample[".json"]["shape"] == drawn.facts["shape"]
    assert sample[".jpg"].size == (48, 48)
    dataset.close()


def test_packing_twice_gives_the_same_bytes(tmp_path):
    """Shards depend on what is drawn alone, not on when or where they are written."""
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with open(pack(str(tmp_path / name), split="s", count=20, nshards=2, seed=9).index) as file:
            digests.append([row["md5sum"] for row in json.load(file)["shardlist"]])
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"7", "7"),
        (b"007\n", "7"),
        (b"-1", "-1"),
        (b" cat \n", "cat"),
        (b"two words", "two words"),
        ("h\u00e9ron".encode(), "h\u00e9ron"),
        (b"", None),
        (b"\xff\xd8", None),
        (b"a\nb", None),
        (b'{"a": 1}', None),
        (b"x" * 65, None),
    ],
)
def test_labels(data, expected):
    """A label is a whole number or a short text; anything else is none."""
    assert parse_label(data) == expected


def test_samples_become_tensors():
    """A grey image of any size becomes an RGB square, and its label the number of its class."""
    sample = {".png": Image.new("L", (30, 20), 200), ".txt": io.BytesIO(b" cat ")}
    sample = read_label(sample, field=".txt")
    tensor, label = to_tensors(sample, image=".png", label=".txt", classes={"ant": 0, "cat": 1}, size_px=8)
    assert (tuple(tensor.shape), tensor.unique().tolist(), label) == ((3, 8, 8), [200], 1)


@pytest.mark.parametrize(
    ("picture", "expected"), [({}, "has no .png"), ({".png": b"text"}, ".png of .* is not an image")]
)
def test_samples_without_an_image(picture, expected):
    """A sample whose image is missing, or no image, is an error that names the sample."""
    sample = {"__key__": "k", "__index__": 3, "__shard__": "s.tar", ".cls": "0", **picture}
    with pytest.raises(WidsError, match=rf"{expected}") as error:
        to_tensors(sample, image=".png", label=".cls", classes={"0": 0}, size_px=8)
    assert "sample 'k' (index 3) in s.tar" in str(error.value)


def test_order_of_classes():
    """Numbers are ordered by value, texts by letters."""
    assert order_classes({"10", "9", "-1"}) == ("-1", "9", "10")
    assert order_classes({"10", "9", "cat"}) == ("10", "9", "cat")


@pytest.mark.parametrize("count", [1, 2, 9, 10, 101, 1000])
def test_split_takes_every_sample_once(count):
    """Training and held-out indices are rising, disjoint, complete, the same each time, and a tenth is held out."""
    kept, held_out = split(count, seed=3)
    assert sorted(kept + held_out) == list(range(count))
    assert (kept, held_out) == (sorted(kept), sorted(held_out))
    assert len(held_out) == max(1, count // 10)
    assert split(count, seed=3) == (kept, held_out)


def test_events_cross_processes_in_a_file(tmp_path):
    """The hook pickles, writes what the demo counts and nothing else, and counts it back."""
    log = EventLog(str(tmp_path / "events"))
    assert log.count() == Counter()
    copy = pickle.loads(pickle.dumps(log))
    copy(Hit(url="u", path="p"))
    log(Hit(url="u", path="p"))
    log(Fetched(url="u", path="p", size_bytes=1, seconds=0.1))
    log(Closed(url="u"))
    assert log.count() == {"Hit": 2, "Fetched": 1}


def test_errors_of_workers_are_told_in_a_line():
    """An error that arrives as a worker's traceback is cut to its last line; wids' own need no type."""
    trace = (
        "Caught {0} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File x\n{0}: bad\n"
    )
    assert explain(DecodeError(trace.format("wids.errors.DecodeError"))) == ("bad", True)
    assert explain(ValueError(trace.format("ValueError"))) == ("ValueError: bad", False)
    assert explain(RuntimeError("a\nb")) == ("RuntimeError: a", False)
    assert explain(WidsError("plain")) == ("plain", True)


def terminate_while_held(reached):
    """Send SIGTERM to this process while it is held back; ``reached`` tells how far this went."""
    with Signals() as signals:
        with signals.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("held")
        reached.append("let go")


def test_signals_wait_while_held():
    """A signal raises at once, but not while held; the first one counts, and handlers are put back."""
    before = signal.getsignal(signal.SIGTERM)
    reached = []
    with pytest.raises(SystemExit) as left:
        terminate_while_held(reached)
    assert (reached, left.value.code) == (["held"], 143)
    with Signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with Signals() as signals:
        signals.hold()
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def job(tmp_path):
    """A job for two ranks."""
    data = Data(
        index="i", test_index=None, image=".jpg", label=".cls", classes=("0", "1"), size_px=48, cache_dir="c", seed=0
    )
    return Job(data=data, ranks=2, workers=0, epochs=2, batch_size=10, seed=0, directory=str(tmp_path))


def make_outcome(samples=(102, 102), tested=10, correct=10):
    """The counts of a run of two ranks."""
    results = tuple(
        Result(rank=rank, device="cpu", samples=count, batches=12, seconds=1.0, tested=tested, correct=correct)
        for rank, count in enumerate(samples)
    )
    return Outcome(results=results, events=(Counter(Hit=3), Counter()), surveyed=None)


class Corpse:
    """A rank's process as `Ranks` sees it: alive while it has no exit code."""

    def __init__(self, exitcode=None):
        self.exitcode = exitcode

    def is_alive(self):
        """Whether it runs."""
        return self.exitcode is None

    def join(self, timeout=None):
        """Wait for nothing."""


LOST = Failure(rank=0, message="RuntimeError: Connection closed by peer", is_told=False, trace="")
CAUSE = Failure(rank=1, message="RuntimeError: DataLoader worker is killed", is_told=False, trace="")
TOLD = Failure(rank=0, message="cannot decode", is_told=True, trace="")


@pytest.mark.parametrize(
    ("messages", "exitcodes", "expected"),
    [
        ([[LOST], [CAUSE]], [0, 0], "rank 1 failed: RuntimeError: DataLoader worker is killed"),
        ([[LOST], []], [0, -9], "rank 1 was killed by SIGKILL in mid-run; the others were ended$"),
        ([[LOST], []], [0, 0], "rank 0 failed: RuntimeError: Connection closed by peer"),
        ([[], [CAUSE]], [None, 0], "rank 1 failed"),
        ([[TOLD], [CAUSE]], [0, 0], "rank 0 failed: cannot decode$"),
        ([[], []], [3, None], r"rank 0 ended with exit code 3 in mid-run; .* \(it said: last words\)"),
    ],
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_the_rank_that_fell_first_is_blamed(messages, exitcodes, is_closed, expected, job):
    """Of what ranks tell and how they end, the cause is told, not the loss of a partner that follows from it."""
    with open(os.path.join(job.directory, "rank-0.log"), "w") as file:
        file.write("first words\nlast words\n\n")
    ranks = Ranks(job, signals=Signals())
    with contextlib.ExitStack() as stack:
        for sent, exitcode in zip(messages, exitcodes, strict=True):
            receiver, sender = (stack.enter_context(end) for end in Pipe(duplex=False))
            for message in sent:
                sender.send(message)
            if is_closed and exitcode is not None:
                sender.close()  # else a worker that outlived its rank still holds it
            ranks._receivers.append(receiver)
            ranks._processes.append(Corpse(exitcode))
        with pytest.raises(WidsError, match=expected):
            list(ranks.watch())


@pytest.mark.parametrize(
    ("changed", "is_drawn", "expected"),
    [
        ({"samples": (102, 103)}, False, "shares differ: rank 0 had 102 samples in 12 batches, rank 1 had 103"),
        ({"samples": (99, 99)}, False, "samples were left out"),
        ({"tested": 9, "correct": 9}, False, "9 of 10 to test on"),
        ({"correct": 9}, True, "too little was learned: 90.0% .* 95% is expected"),
    ],
)
def test_verdict_fails(changed, is_drawn, expected, job):
    """Unequal ranks, samples left out, and drawn shapes that were not learned are failures."""
    source = make_source(job, ShardServer(".") if is_drawn else None)
    with pytest.raises(WidsError, match=expected):
        judge(make_outcome(**changed), source, job)


def make_source(job, server):
    """101 samples to train on, 10 to test on."""
    return Source(data=job.data, trained=101, tested=10, lengths=(100, 11), server=server, surveyed=None)


def test_verdict_on_own_data_is_not_about_accuracy(job):
    """On the user's own data, what was learned is told and not judged."""
    told = judge(make_outcome(correct=1), make_source(job, None), job)
    assert "2 ranks on the CPU had 102 samples in 12 batches each, from 2 shards of 11 to 100 samples" in told
    assert "10.0% of 10 held-out samples of 2 classes" in told


def test_terminal_shows_a_bar(job):
    """On a terminal, progress is a bar with epoch, loss and rate of all ranks together."""
    screen = io.StringIO()
    display = Display(Console(file=screen, force_terminal=True, width=100, highlight=False))
    with display.busy("looking") as say:
        say("still looking")
    with display.training(job) as show:
        for rank in range(2):
            show(Progress(rank=rank, epoch=1, batch=6, batches=6, loss=0.5, samples=120, seconds=2.0))
    assert "starting 2 ranks" in screen.getvalue()
    assert "epoch 2/2: loss 0.500" in screen.getvalue()
    assert "120 samples/s" in screen.getvalue()


def test_counts_in_words():
    """Numbers agree with their nouns."""
    assert [count_of(1, "rank"), count_of(2, "batch"), count_of(3001, "sample")] == [
        "1 rank",
        "2 batches",
        "3,001 samples",
    ]
