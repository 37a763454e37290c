"""The benchmark runs from end to end on tiny data, and its verdicts follow from its figures."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.support import paths, tools
from tests.support.clocks import PATIENCE_SECONDS

pytestmark = pytest.mark.outside

HERE = str(paths.ROOT / "benchmarks")


@pytest.fixture
def modules(monkeypatch):
    """The benchmark's own modules ``rows`` and ``report``, gone from the interpreter afterwards."""
    monkeypatch.syspath_prepend(HERE)
    yield importlib.import_module("rows"), importlib.import_module("report")
    for name in ("rows", "report"):
        del sys.modules[name]


def test_quick_run_reports_every_row(tmp_path):
    """`--quick` prints and saves all rows with figures of all contenders, and leaves no files behind."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [
            *(sys.executable, os.path.join(HERE, "run.py"), "--quick", "--json", str(figures)),
            *("--only", "ours,bare,before", "--before", str(paths.ROOT)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    rows = {row["name"]: row for row in told["rows"]}
    assert list(rows) == [
        *("small", "batch32", "batch256", "large", "large-mmap", "random", "random10"),
        *("view", "view-random"),
        *("loader0", "loader2", "open", "build-small", "build-large", "import"),
    ]
    for row in rows.values():
        assert row["errors"] == {}
        is_own = row["name"] in ("import", "view", "view-random")
        expected = {"ours", "before"} if is_own else {"ours", "bare", "before"}
        assert set(row["figures"]) == expected
        assert all(len(figure["rounds"]) == 2 for figure in row["figures"].values())
        assert row["title"].split(",")[0] in run.stdout
    assert told["machine"]["cores"] == os.cpu_count()
    assert set(told["verified"]) == {"small", "large"}
    assert os.listdir(scratch) == []


def test_unknown_row_is_refused_by_name():
    """A misspelt row is an error that lists the rows, not an empty run."""
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "run.py"), "--rows", "smal"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "batch256" in run.stderr


def test_verdicts_follow_from_the_rounds(modules):
    """Ratios are medians of the rounds' ratios; targets are met, missed or left open by them."""
    rows, report = modules
    row = rows.Row(
        name="r",
        title="r",
        kind="items",
        targets=(
            rows.faster("original", 3),
            rows.within("bare", 1.8),
            rows.within("absentee", 2),
            rows.at_most(2.5),
            rows.absent("torch"),
        ),
    )
    seconds = {"ours": [2e-6, 2e-6, 9e-6], "original": [6e-6, 8e-6, 9e-6], "bare": [1e-6, 1e-6, 9e-6]}
    told = report.summarise(row, seconds, {"torch": True}, {})
    assert told["ratios"] == pytest.approx({"original": 3.0, "bare": 0.5})
    assert told["figures"]["ours"]["median"] == pytest.approx(2.0)
    assert [target["met"] for target in told["targets"]] == [True, False, None, True, False]
    assert [target["text"] for target in told["targets"]] == [">= 3x", "<= 1.8x", "<= 2x", "<= 2.5", "no torch"]


def test_shuffle_quality_is_told(tmp_path):
    """`shuffle.py --quick` measures every order, and what must hold of any data holds: a permutation is the best."""
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    run = subprocess.run(
        [
            sys.executable,
            os.path.join(HERE, "shuffle.py"),
            *["--quick", "--locality", "--json"],
            figures,
            "--png",
            picture,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    found = {figure["name"]: figure for figure in told["figures"]}
    assert all(name in run.stdout for name in found)
    best, ours, plain = found["permutation of everything"], found["ours"], found["ours, shuffle=False"]
    assert best["classes"] > ours["classes"] > plain["classes"]
    assert best["neighbours"] < ours["neighbours"] < plain["neighbours"]
    assert plain["chi_square"] > 1.9
    assert ours["chi_square"] < 1.1
    assert found["ours, 1,000 x 1"]["first"] == 1
    assert {row["data"] for row in told["windows"]} == {"small", "large"}
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_scale_is_told(tmp_path):
    """`scale.py --quick` runs every case and saves its figures."""
    figures = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "scale.py"), "--quick", "--json", str(figures)],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(figures.read_text())
    assert len(told["rounds"]) == 9
    assert all(answer["first"] > 0 and answer["each"] > 0 for answers in told["rounds"].values() for answer in answers)
    assert set(map(len, told["indexes"].values())) == {1}
    assert len(told["indexes"]) == 4
    assert len(told["targets"]) == 6


def run_quick(program, *options):
    """Run a benchmark with ``--quick``: what it prints."""
    command = [sys.executable, os.path.join(HERE, program), "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_columns_are_measured():
    """`columns.py --quick` runs every case."""
    assert run_quick("columns.py").count(" MB") == 10


def test_ranges_are_measured():
    """`ranges.py --quick` fetches by every number and length of ranges, and says that it was quick."""
    said = run_quick("ranges.py")
    assert said.count("chosen") == 5
    assert "too small" in said


def test_a_crowded_cache_is_told():
    """`crowd.py --quick` downloads beside few and many shards."""
    said = run_quick("crowd.py")
    assert "1,000" in said
    assert "too small" in said


def test_batches_are_planned_and_judged(tmp_path):
    """`batches.py --quick` judges ours, resumes it, and finds it within its targets."""
    figures = tmp_path / "figures.json"
    said = run_quick("batches.py", "--only", "ours", "--json", str(figures))
    assert "too small" in said
    told = json.loads(figures.read_text())
    ours = told["contenders"]["ours"]
    assert ours["resume"] == {"same": "exact", "half": "exact"}
    assert {world: found["largest"] <= 1 <= found["padding"] for world, found in ours["ranks"].items()} == {
        "4": True,
        "8": True,
    }
    assert [target for target, is_met in told["targets"].items() if not is_met] == []


def test_batches_under_two_budgets(tmp_path):
    """`batches.py --images` judges both: neither is exceeded, and the fuller one is used to nine tenths."""
    figures = tmp_path / "figures.json"
    run_quick("batches.py", "--only", "ours", "--images", "264", "--cost", "sum", "--json", str(figures))
    told = json.loads(figures.read_text())
    assert {found["most_images"] <= 1 for found in told["contenders"]["ours"]["ranks"].values()} == {True}
    assert [target for target, is_met in told["targets"].items() if not is_met] == []


def test_packs_are_judged(tmp_path):
    """`batches.py --packs` judges ours: each token once, none again, also resumed on half as many ranks."""
    figures = tmp_path / "figures.json"
    said = run_quick("batches.py", "--packs", "--only", "ours-cut,ours-whole", "--json", str(figures))
    assert "100,000 documents" in said
    told = json.loads(figures.read_text())
    for name, broken in (("ours-cut", True), ("ours-whole", False)):
        ours = told["contenders"][name]
        assert ours["resume"] == {"same": "exact", "half": "exact"}
        for found in ours["ranks"].values():
            assert (found["lost"], found["repeated"], found["uneven"]) == (0, 0, 0)
            assert (found["broken"] > 0) is broken
            assert found["empty"] < 1 / 64
    assert set(told["scale"]) == {"first_cpu", "loaded_cpu", "bytes"}


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="only root mounts file systems")
def test_far_files_are_told():
    """`far.py --quick` mounts a file system, and reads all samples from it in both ways."""
    tools.program("fusermount3")
    said = run_quick("far.py")
    assert "True" in said
    assert "too small" in said


def test_training_on_an_accelerator(tmp_path):
    """`accelerator.py --cpu` runs all parts of it without one."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, os.path.join(HERE, "accelerator.py"), "--cpu", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    rows = [row["workers"].partition(" ")[2] for row in found["training loop"]]
    assert rows == ["one batch in memory", "processes", "threads"]
    assert all(row["samples"] > 0 and row["utilisation"] > 0 for row in found["training loop"])
    assert {name: row["most_different"] for name, row in found["JPEG"].items()} == dict.fromkeys(found["JPEG"], 0)
    assert found["notebooks/train_ddp.py"]["backend"] == "gloo"
    assert "| 2 threads |" in done.stdout


def test_one_sample_is_told():
    """`one.py --quick` reads a sample in each way, and sees that it is the right one."""
    said = run_quick("one.py")
    assert said.count("saved table") == 2
    assert "too small" in said


def test_films_are_timed():
    """`videos.py --quick` reads frames and clips in each way, and sees that they are the same."""
    said = run_quick("videos.py")
    assert "lazy, PyAV" in said
    assert "whole members, PyAV" in said


def test_windows_are_timed():
    """`windows.py --quick` reads windows in each way, and sees that they are the right ones."""
    said = run_quick("windows.py")
    assert said.count("remote") == 2
    assert "too small" in said


def test_companions_are_timed():
    """`companions.py --quick` reads joined sets in each way, and sees that they are the right ones."""
    said = run_quick("companions.py")
    assert said.count("joined by key") == 2


def test_new_fields_are_timed():
    """`map.py --quick` computes them in each way."""
    said = run_quick("map.py")
    assert said.count("threads 1, batches of 64") == 2
    assert "too small" in said


def test_the_first_grid_is_timed():
    """`serve.py --quick` asks for a grid as its page does, from a new process and from a running server."""
    said = run_quick("serve.py")
    assert said.count("process start") == 2
    assert "too small" in said


def test_indexing_is_measured(tmp_path):
    """`index.py --quick` measures local and remote shards, says what was read of them, and leaves no files behind."""
    figures, scratch = tmp_path / "figures.json", tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "index.py"), "--quick", "--only-ours", "--json", figures],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row for row in json.loads(figures.read_text())["rows"]}
    assert len(rows) == 8
    assert rows["remote films"]["fraction"] < 0.5
    assert rows["remote films --md5"]["fraction"] == pytest.approx(1, abs=0.01)
    assert "too small" in done.stdout
    assert os.listdir(scratch) == []


def test_changed_data():
    """What is due comes, and nothing else; loaders that are not installed are left out."""
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "changed.py")], capture_output=True, text=True, env={**os.environ}
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (row,) = [line.split() for line in run.stdout.splitlines() if line.split()[:1] == ["wids"]]
    assert row == ["wids", "480", "0", "0", "0"]
