"""`wids bench`: figures of real ranks and workers on tiny data, errors, and processes that end with the command."""

import json
import os
import signal
import sys

import numpy as np
import pytest

import wids
from tests.support.cli import complaint, living, run, run_ok, spawn
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.shards import serve, write_index
from wids.errors import JobError
from wids.tools.cli import bench as command
from wids.tools.cli.bench import rank

FUNCTIONS = """
import os, signal

def squares(sample):
    return sum(i * i for i in range(20_000)), int(sample[".cls"])

def lengths(samples):
    return [len(samples)]

def bad(sample):
    raise ValueError(f"no use for {sample['.txt']}")

def die(sample):
    os.kill(os.getpid(), signal.SIGKILL)

def leave(sample):
    os._exit(5)

def call(sample):
    return lambda: sample

def thread(sample):
    import multiprocessing, threading
    assert threading.current_thread().name == "wids-loader" and not multiprocessing.active_children()
    return lambda: sample

def note(sample):
    open("began", "w").close()

number = 3
"""
TALKING = """
print("imported")

def talk(sample):
    print("a sample")
    return int(sample[".cls"])
"""
PARTS = ["read", "decode", "transform", "collate", "cross", "rest"]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """96 samples in 4 shards; the current directory has modules of functions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "talking.py").write_text(TALKING)
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)")
    yield write_index(tmp_path / "data", (24,) * 4)
    for name in ("functions", "talking"):
        sys.modules.pop(name, None)


@pytest.fixture
def here(monkeypatch):
    """The passes of one rank are made in the tests' process, which has torch; a rank begins by importing it."""
    monkeypatch.setattr(command, "_measure", lambda plan, _: [[run()] for run in rank.passes_of(0, plan)])


@pytest.fixture
def unstarted(monkeypatch):
    """No process can be started."""
    monkeypatch.setattr(command, "torchrun", None)


def bench(index, *args):
    """The figures of a run that lasts some steps."""
    return json.loads(run_ok("bench", index, "--batch-size", 4, "--step", 0.001, "--json", *args))


def test_figures_of_ranks_with_workers(index):
    """Each rank counts its steps but the first of each epoch; shares are those of the whole time of a sample."""
    found = bench(index, "--ranks", 2, "--workers", 1, "--epochs", 2, "--persistent-workers", "--prefetch-factor", 3)
    assert found["steps"] == [2 * (96 // 2 // 4 - 1)] * 2
    assert 0 < min(found["utilisation_of_ranks"]) <= found["utilisation"] <= max(found["utilisation_of_ranks"]) <= 100
    assert found["samples_per_second_in_memory"] == pytest.approx(2 * 4 / 0.001)
    assert found["samples_per_second"] == pytest.approx(
        sum(found["utilisation_of_ranks"]) / 100 * 4 / 0.001
    )  # a rank's share of its steps is its share of the samples
    waits = [found["wait_seconds"][name] for name in ("p50", "p95", "p99", "max")]
    assert waits == sorted(waits)
    assert found["first_batch_seconds"] > 0
    assert found["headroom"] == pytest.approx(
        found["samples_per_second_without_steps"] / found["samples_per_second_in_memory"]
    )
    assert list(found["sample_percent"]) == PARTS
    assert sum(found["sample_percent"].values()) == pytest.approx(100)
    assert found["sample_seconds"]["cross"] > 0
    assert found["sample_seconds"]["transform"] == 0
    assert found["timed_samples"] == 2 * 2 * 4 * (96 // 2 // 4 - 1)
    sizes = [len(f"text {g}") + len(f"{g}") + 40 for g in range(96)]
    assert min(sizes) <= found["bytes_per_sample"] <= max(sizes)
    assert found["bytes_per_second"] == pytest.approx(found["samples_per_second"] * found["bytes_per_sample"])


@pytest.mark.usefixtures("here")
def test_workers_that_are_threads(index):
    """They make the batches, and no process is started; what a batch is need not be sent. One has the parts' times."""
    found = bench(index, "--workers", 2, "--threads", "--transform", "functions:thread", "--collate", "list")
    assert (found["has_threads"], found["steps"]) == (True, [23])
    assert found["sample_seconds"]["cross"] > 0
    work = sum(found["sample_seconds"][part] for part in ("read", "decode", "transform", "collate"))
    assert found["workers_to_saturate"] == pytest.approx(work * 4 / 0.001)


@pytest.mark.usefixtures("here")
def test_the_loop_reads_itself_without_workers(index):
    """Nothing then crosses between processes; a transformation that works hard has most of the time."""
    found = bench(index, "--transform", "functions:squares", "--collate", "functions:lengths", "--steps", 5)
    assert found["steps"] == [4]
    assert found["sample_seconds"]["cross"] == 0
    assert found["sample_percent"]["transform"] > 50
    assert sum(found["sample_percent"].values()) == pytest.approx(100)


def test_what_functions_print_is_not_in_the_report(index):
    """It is on stderr, so that the report stays JSON. Tensors are made of what they return, which takes time."""
    args = ("--batch-size", 4, "--step", 0.001, "--json", "--steps", 3, "--transform", "talking:talk")
    code, out, err = run("bench", index, *args, "--workers", 2)
    assert (code, json.loads(out)["sample_seconds"]["collate"] > 0) == (0, True)
    assert ("imported" in err, "a sample" in err) == (True, True)


def test_what_is_printed_of_remote_shards(index, tmp_path):
    """Tables of the figures, and of the parts of a sample. Shards are downloaded once, for all passes and ranks."""
    args = ("--batch-size", 4, "--step", 0.001, "--ranks", 2, "--seconds", 60, "--chunksize", 8)
    with serve(tmp_path / "data") as server:
        shown = run_ok("bench", f"{server.url}/index.json", *args, "--cache-dir", tmp_path / "cache")
    assert sum(name.endswith(".tar") for name in os.listdir(tmp_path / "cache")) == 4
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == "2 ranks with 0 workers each, batches of 4, 0.001 s a step; 22 steps counted"
    names = ["utilisation", "samples", "with batches in memory", "without steps", "workers to saturate", "first batch"]
    assert [line[:24].strip() for line in lines[2:9]] == [*names, "waits for a batch"]
    assert "p50 " in lines[8]
    assert [line.rsplit(maxsplit=2)[0] for line in lines[11:]] == [
        "reading its bytes",
        "decoding",
        "transformation",
        "collation",
        "from the worker to the loop",
        "the loader (indices, requests to the worker)",
    ]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--batch-size", 0), 2, "--batch-size"),
        (("--batch-size", "a=3"), 2, "--batch-size is missing, a number; or --max-tokens"),
        (("--pack-tokens", 4), 2, "--pack-tokens counts tokens of --lengths"),
        (("--limit", "a=lengths.npy:4"), 1, "lengths.npy: --limit cannot be read"),
        (("--step", 0), 2, "--step"),
        (("--ranks", 0), 2, "--ranks"),
        (("--threads",), 2, "--threads says what --workers are, of which there are none"),
        (("--prefetch-factor", 2), 2, "--prefetch-factor and --persistent-workers are of --workers"),
        (("--steps", 1), 2, "--steps 1: the first 1 (--warmup) do not count"),
        (("--ranks", 97), 1, "97 ranks are more than the 96 samples of"),
        (("--ranks", 2, "--batch-size", 49), 1, "a rank has 48 samples in an epoch, which are 0 whole batches of 49"),
        (("--warmup", 24), 1, "which are 24 whole batches of 4, and the first 24 do not count"),
        (("--source-batch", 2), 2, "source_batch is 2"),
        (("--weights", "nowhere.npy"), 1, "nowhere.npy"),
        (("--transform", "functions"), 1, "transform 'functions' cannot be imported (AttributeError"),
        (("--transform", "default"), 1, "transform 'default' cannot be imported (ModuleNotFoundError"),
        (("--transform", "leaving:f"), 1, "transform 'leaving:f' cannot be imported (SystemExit: 3"),
        (("--transform", "functions:number"), 1, "transform 'functions:number' is not a function, but of type int"),
        (("--collate", "defaults"), 1, "collate 'defaults' cannot be imported"),
    ],
)
@pytest.mark.usefixtures("unstarted")
def test_what_the_command_sees(index, args, code, words):
    """Is an error that says what, before any process is started; what a module changed of the path is undone."""
    before = sys.path[:]
    found = complaint(code, "bench", index, "--batch-size", 4, "--step", 0.001, *args)
    assert words in found
    assert sys.path == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("flags", "kind", "rule"),
    [
        (("--pack-tokens", 40, "--batch-size", 2, "--separators", 1), wids.PackSampler,
         {"pack_tokens": 40, "batch_size": 2, "separators": 1}),
        (("--pack-tokens", 40, "--no-cut", "--block", 20), wids.PackSampler,
         {"pack_tokens": 40, "cut": False, "block": 20}),
        (("--max-tokens", 60), wids.BucketBatchSampler, {"max_tokens": 60}),
    ],
    ids=str,
)  # fmt: skip
def test_batches_of_samplers(index, tmp_path, flags, kind, rule):
    """A loader of packs, or of batches of like length: its samples or pieces, and tokens, are those of its sampler."""
    lengths = np.random.default_rng(0).integers(1, 30, 96)
    np.save(tmp_path / "lengths.npy", lengths)
    args = ("--step", 0.001, "--lengths", tmp_path / "lengths.npy", *flags)
    found = json.loads(run_ok("bench", index, *args, "--json"))
    sampler = wids.DistributedChunkedSampler(wids.ShardListDataset(index), num_replicas=1, rank=0)
    batches = list(kind(sampler, lengths=lengths, **rule))[1:]
    assert found["steps"] == [len(batches)]
    assert found["samples_per_batch"] == pytest.approx(sum(map(len, batches)) / len(batches))
    assert found["timed_samples"] == sum(map(len, batches))
    ideal = found["samples_per_second_in_memory"]
    assert ideal == pytest.approx(found["samples_per_batch"] / 0.001)
    if kind is wids.BucketBatchSampler:
        assert found["tokens_per_second"] is None
        return
    tokens = sum(one.piece[2] - one.piece[1] for batch in batches for one in batch)
    each = found["tokens_per_second"] / found["samples_per_second"]
    assert each == pytest.approx(tokens / sum(map(len, batches)))
    said = run_ok("bench", index, *args)
    assert f"batches of {found['samples_per_batch']:,.3g} pieces, 0.001 s a step" in said
    assert "\ntokens " in said


@pytest.mark.usefixtures("here")
def test_no_step_that_counts(index):
    """Is an error that says how long the ranks had."""
    found = complaint(1, "bench", index, "--batch-size", 4, "--step", 0.001, "--seconds", 0.001)
    assert "a rank came to no step that counts (the first 1 of an epoch do not) within 0.001 s;" in found


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--transform", "functions:bad"), "ValueError: no use for text "),
        (("--transform", "functions:bad", "--workers", 1), "ValueError: no use for text "),
        (("--transform", "functions:die", "--workers", 1), "DataLoader worker (pid"),
        (
            ("--transform", "functions:call", "--collate", "list", "--workers", 1),
            "TypeError: the batch cannot be sent from a worker to the loop (",
        ),
    ],
)
def test_an_error_in_words(index, monkeypatch, args, words):
    """It is a line that says what; of a sample, also which one it was."""
    failed = []

    def measure(plan, _):
        try:
            rank.passes_of(0, plan)[0]()
        except Exception as error:
            failed.append(rank.in_words(error))
            raise JobError(failed[0]) from None

    monkeypatch.setattr(command, "_measure", measure)
    complaint(1, "bench", index, "--batch-size", 4, "--step", 0.001, *args)
    assert failed[0].startswith(words)
    assert "\n" not in failed[0]
    assert "no use" not in words or "key 's" in failed[0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--transform", "functions:bad"), "rank 0 failed: ValueError: no use for text "),
        pytest.param(
            ("--transform", "functions:die"), "rank 0 was killed by SIGKILL in mid-run", marks=pytest.mark.thorough
        ),
        pytest.param(
            ("--transform", "functions:leave"), "rank 0 ended with exit code 5 in mid-run", marks=pytest.mark.thorough
        ),
    ],
)
def test_what_a_rank_comes_to(index, args, words):
    """Is an error that names the rank."""
    assert words in complaint(1, "bench", index, "--batch-size", 4, "--step", 0.001, *args)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="sees processes through /proc")
@pytest.mark.parametrize(("number", "code", "ranks"), [(signal.SIGINT, 130, 1), (signal.SIGKILL, -9, 2)])
def test_ranks_and_workers_end_with_the_command(index, tmp_path, number, code, ranks):
    """However it ends, in the middle of its steps."""
    args = ("--batch-size", 4, "--step", 1, "--ranks", ranks, "--workers", 1, "--transform", "functions:note")
    mark = f"mark-{tmp_path}-{number}"
    with spawn("bench", index, *args, "--collate", "list", env={"MARK": mark}) as process:
        wait_until(lambda: os.path.exists("began"))
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == code
    assert "Traceback" not in err
    wait_until(lambda: living(mark) == [])
