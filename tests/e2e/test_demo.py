"""`wids demo` from end to end, however it ends, and its parts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections import Counter

import pytest
from rich.console import Console

import wids
from tests.support import paths
from tests.support.cli import complaint, run_ok
from tests.support.clocks import wait_until
from wids.errors import WidsError
from wids.tools.cli import demo as command
from wids.tools.cli.demo.shapes import SHAPES, SIZE_PX, draw, pack
from wids.tools.cli.signals import Signals

ROOT = str(paths.ROOT)
ROW = re.compile(r"^ (rank \d+|all) +([\d,]+) +([\d,]+) +([\d,]+)(?: +(\d+) +([\d.]+)%)? *$", re.MULTILINE)
# The tests themselves may run as a background job of a script, which has SIGINT ignored.
PROGRAM = "import signal; signal.signal(signal.SIGINT, signal.{}); from wids.tools.cli import main; main()"


class Demo:
    """A running `wids demo` in a session of its own, its processes marked, its temporary directory alone."""

    def __init__(self, *args, sigint="default_int_handler", home=None, **popen):
        self.mark = uuid.uuid4().hex
        args = args if "--keep" in args else (*args, "--keep", "")
        self.home = home or tempfile.mkdtemp(prefix="wids-test-")
        env = {**os.environ, "PYTHONPATH": ROOT, "TMPDIR": self.home, "MARK": self.mark, "COLUMNS": "200"}
        for name in ("WIDS_CACHE", "HOME"):
            env.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(sigint), "demo", *args],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env, **popen},
            start_new_session=True,
        )
        self.shown = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self.process:
            pass  # closes its pipes, and waits
        shutil.rmtree(self.home, ignore_errors=True)

    def pids(self):
        """Every process that descends from the command, dead ones left out."""
        return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and self._is_ours(pid)]

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
        wait_until(lambda: self.pids() == [])
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
    """Row name -> (samples, batches, samples/s, shards fetched, accuracy in percent) of the closing table."""
    rows = {}
    for name, *cells in ROW.findall(shown):
        *counts, accuracy = (cell.replace(",", "") for cell in cells)
        rows[name] = (*(int(count) if count else None for count in counts), float(accuracy) if accuracy else None)
    return rows


def test_demo_from_end_to_end(tmp_path):
    """It learns the shapes, with equal ranks, each shard fetched once, and leaves nothing behind.

    So it does in a background job, without $HOME, and where $TMPDIR is too long for the name of a socket.
    """
    home = tmp_path / ("x" * 100)
    home.mkdir()
    kept = tmp_path / "kept" / "the shapes"
    options = ("--epochs", "3", "--batch-size", "16", "--keep", str(kept))
    with Demo(*options, home=str(home), sigint="SIG_IGN") as demo:
        code, shown, err = demo.finish()
        assert (code, err) == (0, "")
        rows = read_table(shown)
        assert list(rows) == ["rank 0", "rank 1", "all"]
        # 3,001 samples for two ranks: 1,501 each, in 94 batches, 3 times.
        assert [rows[name][:2] for name in rows] == [(4503, 282), (4503, 282), (9006, 564)]
        assert rows["all"][3] == 11
        assert rows["all"][4] >= 95
        assert "epoch 3/3" in shown
        assert "11 shards went over HTTP once" in shown
        demo.assert_gone()
    assert sum(name.endswith(".tar") for name in os.listdir(kept)) == 11
    assert f"wids serve {shlex.quote(str(kept / 'shapes-train.json'))}\n" in shown.partition("\nWhere next:\n")[2]
    looks = re.search(r"\n    (wids show .*); (wids info .*)\n", shown).groups()
    asked = [run_ok(*shlex.split(line)[1:]) for line in looks]
    assert "48 x 48 RGB JPEG" in asked[0]
    assert "3,001" in asked[1]
    assert os.path.isfile(re.search(r"\n    (/.*/train\.py)\n", shown)[1])
    columns, view = re.search(r"\n    (wids columns create .*); (wids view .*)\n", shown).groups()
    for line in (columns, view.replace("stars.json", str(tmp_path / "stars.json"))):
        run_ok(*shlex.split(line)[1:])
    stars = wids.ShardListDataset(str(tmp_path / "stars.json"))
    assert {stars[k][".cls"] for k in range(0, len(stars), 50)} == {SHAPES.index("star")}
    assert len(stars) == len(stars.where(f"width = {SIZE_PX} and mode = 'RGB'")) == 500
    first = re.search(r'`dataset\.where\("([^"]*)"\)`', (paths.ROOT / "README.md").read_text(encoding="utf-8"))[1]
    shapes = wids.ShardListDataset(str(kept / "shapes-train.json"))
    assert 0 < len(shapes.where(first)) < len(shapes), "README's first filter"
    command._make_empty(str(kept))
    assert os.listdir(kept) == []


def test_demo_keeps_nothing_where_something_is(tmp_path):
    """A directory with other files, or a path that cannot be one, is refused before anything is drawn."""
    (tmp_path / "file").touch()
    (tmp_path / "shapes-test.json").touch()
    words = "has files that are not the demo's; name another directory (--keep DIR)"
    assert complaint(1, "demo", "--keep", tmp_path) == f"wids: {tmp_path}: {words}"
    assert len(os.listdir(tmp_path)) == 2
    assert "cannot be made" in complaint(1, "demo", "--keep", tmp_path / "file" / "below")


def test_demo_replaces_its_own_files(tmp_path):
    """Those of an earlier run."""
    for name in ("shapes-train-000000.tar", "shapes-train.json", "shapes-test-000012.tar"):
        (tmp_path / name).touch()
    command._make_empty(str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("moment", "number", "is_group", "expected"),
    [("epoch 1/", signal.SIGINT, True, 130), ("serving", signal.SIGTERM, False, 143)],
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


def test_output_that_cannot_be_written():
    """Output to a full disk is one line on stderr and exit code 1, and nothing is left."""
    with open("/dev/full", "w") as full, Demo(stdout=full) as demo:
        err = demo.process.stderr.read()
        assert (demo.process.wait(), err) == (1, "wids: [Errno 28] No space left on device\n")
        demo.assert_gone()


# --- its signals


def terminate_while_held(reached):
    """Send SIGTERM to this process while it is held back; ``reached`` tells how far this went."""
    with Signals() as signals:
        with signals.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("held")
        reached.append("let go")


@pytest.fixture
def sigint():
    """Sets how SIGINT is handled for one test."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_signals_wait_while_held(sigint):
    """A signal raises at once, but not while held; the first one counts, and handlers are put back."""
    sigint(signal.default_int_handler)
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


def test_a_signal_that_was_ignored_stays_ignored(sigint):
    """A background job, whose shell has SIGINT ignored, is not ended by Ctrl-C."""
    sigint(signal.SIG_IGN)
    with Signals():
        signal.raise_signal(signal.SIGINT)


# --- its shapes


def test_drawings_are_a_function_of_seed_split_and_index():
    """The same (seed, split, index) draws the same pixels; another of any of them draws others."""
    image, label = draw(7, seed=1, split="train")
    assert image.size == (48, 48)
    again = draw(7, seed=1, split="train")
    assert (again[0].tobytes(), again[1]) == (image.tobytes(), label)
    for other in (draw(8, seed=1, split="train"), draw(7, seed=2, split="train"), draw(7, seed=1, split="test")):
        assert other[0].tobytes() != image.tobytes()


def test_classes_are_balanced():
    """Every six consecutive drawings show all six shapes, in an order that changes."""
    labels = [draw(i, seed=0, split="train")[1] for i in range(60)]
    sixes = [tuple(labels[i : i + 6]) for i in range(0, 60, 6)]
    assert all(sorted(six) == list(range(len(SHAPES))) for six in sixes)
    assert len(set(sixes)) > 1


def read_rows(directory, split):
    """The shards as the index lists them."""
    with open(directory / f"shapes-{split}.json") as file:
        return json.load(file)["shardlist"]


def test_index_matches_the_tars(tmp_path):
    """The index has each shard's samples, size and digest as tarfile and the dataset find them, sizes unequal."""
    sizes = pack(str(tmp_path), split="test", count=103, nshards=5, seed=0)
    assert sum(sizes) == 103
    assert len(set(sizes)) > 1
    rows = read_rows(tmp_path, "test")
    assert [row["nsamples"] for row in rows] == sizes
    for row in rows:
        with tarfile.open(tmp_path / row["url"]) as archive:
            assert len(archive.getnames()) == 2 * row["nsamples"]
    index = str(tmp_path / "shapes-test.json")
    dataset = wids.ShardListDataset(index, cache_local=True, cache_dir=tmp_path / "cache")  # checks size and md5
    assert [dataset[i]["__key__"] for i in range(103)] == [f"{i:06d}" for i in range(103)]
    sample = dataset[100]
    assert (sample[".cls"], sample[".jpg"].size) == (draw(100, seed=0, split="test")[1], (48, 48))
    dataset.close()


def test_packing_twice_gives_the_same_bytes(tmp_path):
    """Shards depend on what is drawn alone, not on when or where they are written."""
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pack(str(tmp_path / name), split="s", count=20, nshards=2, seed=9)
        digests.append([row["md5sum"] for row in read_rows(tmp_path / name, "s")])
    assert digests[0] == digests[1]


# --- what it shows


def make_report(samples=(3002, 3002), tested=601, correct=600):
    """The last report of two ranks, after two epochs."""
    shares = [{"samples": count, "steps": 12, "seconds": 2.0} for count in samples]
    return {"batches": 6, "steps": 12, "loss": 0.5, "ranks": shares, "tested": tested, "correct": correct}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"samples": (3002, 3003)}, r"shares differ: .* are \[\(3002, 12\), \(3003, 12\)\]"),
        ({"samples": (3000, 3000)}, "samples were left out: 6000 of 3001 x 2 epochs"),
        ({"tested": 600, "correct": 600}, "600 of 601 to test on"),
        ({"correct": 540}, "too little was learned: .* 89.9%, and 95% is expected"),
    ],
)
def test_a_run_that_fails(changed, expected):
    """Unequal ranks, samples left out, and shapes that were not learned are failures."""
    with pytest.raises(WidsError, match=expected):
        command.check(make_report(**changed), 2)


def test_a_run_that_is_good():
    """Equal and complete shares, and shapes told apart, are in the table."""
    command.check(make_report(), 2)
    console = Console(file=io.StringIO(), width=100)
    console.print(command.make_table(make_report(), Counter({"/a.tar": 1, "/b.tar": 1})))
    assert read_table(console.file.getvalue()) == {
        "rank 0": (3002, 12, 1501, None, None),
        "rank 1": (3002, 12, 1501, None, None),
        "all": (6004, 24, 3002, 2, 99.8),
    }


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown(is_terminal):
    """Each epoch is a line with the loss and the rate of all ranks together; on a terminal there is a bar as well."""
    whole = make_report()
    told = [{name: whole[name] for name in names} for names in (("batches", "steps", "loss"), ("ranks",), ("tested",))]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=100, highlight=False)
    lines = ["[Gloo] Rank 0 is connected\n", *(json.dumps(report) + "\n" for report in told)]
    assert command.show_progress(lines, 2, console) == {name: whole[name] for name in whole if name != "correct"}
    assert screen.getvalue().count("epoch 2/2: loss 0.500, 3,002 samples/s") == 1
    assert ("starting the ranks" in screen.getvalue()) == is_terminal
