"""What holds for all jobs: failures, kills, cancellation, engines. What a job does is in the test of its own module."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support import columns as made
from tests.support.children import child, kill, receive, stop_here
from wids import jobs
from wids.columns import create as columns_create
from wids.errors import ShardError, WidsError
from wids.jobs import cache_warm, index_create, index_tables, index_verify
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.outcome import JobOutcome
from wids.jobs.runner import RunOptions
from wids.testing import Server
from wids.writing import map as map_module
from wids.writing import rewrite
from wids.writing.pack import run as pack_run

COUNTS = (3, 1, 5, 2)
ONE = RunOptions(engine="threads", jobs=1)


class Job(NamedTuple):
    """One of the jobs on a dataset of four shards.

    Attributes:
        start: (its directory, keywords of a job) -> outcome. result: (directory, outcome) -> what it made.
        known: the attribute of the outcome that counts what an earlier run had done.
        work: (what holds the function that is done with one shard, its name).
        kept: shards that a run knows after one whose second shard failed.
    """

    start: Callable[..., Any]
    result: Callable[[Path, Any], Any]
    known: str
    work: tuple[Any, str]
    kept: int


def start_index(home, **how):
    """The index of all shards."""
    return jobs.create_index(f"{home}/s*.tar", str(home / "out.json"), name="n", **how)


def start_verify(home, **how):
    """All that can be compared."""
    return jobs.verify(str(home / "train.json"), **how)


def start_tables(home, **how):
    """The pack of all tables."""
    return jobs.create_tables(str(home / "train.json"), str(home / "out.tables"), **how)


def start_columns(home, **how):
    """The columns of the tests' samples."""
    return jobs.create_columns(str(home / "train.json"), str(home / "out.parquet"), made.SPEC, **how)


def start_pack(home, **how):
    """The dataset again, in other shards."""
    return jobs.pack(str(home / "train.json"), jobs.PackSettings(output=f"{home}/out/p-%d.tar", samples=3), **how)


def start_rewrite(home, **how):
    """The dataset without the first sample of each shard that has others."""
    np.save(home / "out.npy", [0, 4, 9])
    settings = jobs.RewriteSettings(exclude=(f"{home}/out.npy",))
    return jobs.rewrite_shards(str(home / "train.json"), f"{home}/out.json", settings=settings, **how)


def start_reshard(home, **how):
    """All samples in another order, in other shards."""
    settings = jobs.RewriteSettings(samples=3, seed=1)
    return jobs.rewrite_shards(str(home / "train.json"), f"{home}/out/p.json", settings=settings, **how)


def start_map(home, **how):
    """New fields of all samples."""
    return jobs.map(str(home / "train.json"), "tests.support.mapped:name_all", str(home / "new"), **how)


def start_values(home, **how):
    """New values of all samples."""
    settings = jobs.MapSettings(columns=True)
    function = "tests.support.mapped:name_all"
    return jobs.map(str(home / "train.json"), function, str(home / "out.parquet"), settings=settings, **how)


def findings(_home, outcome):
    """Without what an earlier run alone has."""
    return [(each.number, each.nsamples, each.size_bytes, each.problems) for each in outcome.findings]


def packed(home, _outcome):
    """Shards and index; their tables say when the shards were written."""
    return {path.name: path.read_bytes() for path in (home / "out").iterdir() if path.suffix != ".widx"}


def rewritten(home, _outcome):
    """New shards, and their index."""
    return {path.name: path.read_bytes() for path in (*home.glob("s*-*.tar"), home / "out.json")}


def mapped(home, _outcome):
    """New shards, and their index; the joined one names the place of the dataset."""
    places = [*(home / "new").glob("*.tar"), home / "new/index.json"]
    return {path.name: path.read_bytes() for path in places}


JOBS = {
    "index": Job(
        start_index, lambda home, _: (home / "out.json").read_bytes(), "unchanged", (index_create, "scan_shard"), 1
    ),
    "verify": Job(start_verify, findings, "known", (index_verify, "check_shard"), 0),
    "tables": Job(
        start_tables,
        lambda home, _: len((home / "out.tables").read_bytes()),
        "known",
        (index_tables, "find_table"),
        1,
    ),
    "columns": Job(
        start_columns,
        lambda home, _: pq.read_table(home / "out.parquet").to_pylist(),
        "unchanged",
        (columns_create, "extract_part"),
        3,
    ),
    "pack": Job(start_pack, packed, "kept", (pack_run, "write_shard"), 1),
    "reshard": Job(start_reshard, packed, "known", (pack_run, "write_shard"), 1),
    "rewrite": Job(start_rewrite, rewritten, "known", (rewrite, "rewrite_shard"), 1),
    "map": Job(start_map, mapped, "known", (map_module, "map_shard"), 1),
    "values": Job(
        start_values, lambda home, _: (home / "out.parquet").read_bytes(), "known", (map_module, "map_shard"), 1
    ),
}
EACH = pytest.mark.parametrize("name", JOBS)


@pytest.fixture
def home(tmp_path):
    """A dataset, as `fresh` makes them."""
    return fresh(tmp_path / "d")


def fresh(directory):
    """A directory with the dataset, as on each machine and at any time."""
    made.write_dataset(directory, COUNTS)
    for path in directory.glob("*.tar"):
        os.utime(path, (1.7e9, 1.7e9))
    return directory


def whole(name, tmp_path):
    """What a job makes that is not disturbed, beside another copy of the dataset."""
    job, home = JOBS[name], fresh(tmp_path / "whole")
    return job.result(home, job.start(home, engine=ONE))


@EACH
def test_an_engine_does_not_change_the_result(name, home, tmp_path):
    """Threads, several at a time, and processes make the same."""
    job = JOBS[name]
    for k, engine in enumerate([RunOptions(engine="threads", jobs=3), RunOptions(engine="processes", jobs=2)]):
        place = fresh(tmp_path / f"{k}")
        assert job.result(place, job.start(place, engine=engine)) == whole(name, tmp_path / f"of{k}")


@pytest.mark.parametrize("engine", ["threads", "processes"])
@EACH
def test_relative_names_hold_wherever_the_program_goes(name, home, tmp_path, monkeypatch, engine):
    """They mean what they meant when the job was called, in its processes too, if the program changes its directory."""
    monkeypatch.chdir(home.parent)
    gone = tmp_path / "elsewhere"
    gone.mkdir()
    outcome = JOBS[name].start(
        Path(home.name), engine=RunOptions(engine=engine, jobs=2), progress=lambda _: os.chdir(gone)
    )
    monkeypatch.chdir(home.parent)
    assert JOBS[name].result(home, outcome) == whole(name, tmp_path)
    assert list(gone.iterdir()) == []


def run_until(connection, name, home, count):
    """Run a job, and stop when so many shards have ended."""

    def progress(job):
        if job.ended >= count:
            stop_here(connection)

    JOBS[name].start(Path(home), engine=ONE, progress=progress)


@EACH
def test_a_killed_run_is_continued(name, home, tmp_path):
    """The next one makes the same, and repeats only what was not done."""
    job = JOBS[name]
    with child(run_until, name, str(home), 2) as (process, connection):
        assert receive(connection) == "here"
        kill(process)
    outcome = job.start(home, engine=ONE)
    assert getattr(outcome, job.known) == 2
    assert job.result(home, outcome) == whole(name, tmp_path)


@EACH
def test_a_cancelled_run_leaves_nothing_behind(name, home, tmp_path):
    """No thread, no part of a file, no output; the next one continues."""
    job, before = JOBS[name], {path.name for path in home.iterdir()}

    def progress(state):
        if state.ended >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.start(home, engine=ONE, progress=progress)
    assert not [thread for thread in threading.enumerate() if thread.name == "wids-job"]
    left = {path.name for path in home.rglob("*") if path.is_file()} - before
    assert not [name for name in left if name.endswith(".part")]
    assert not left & {"out.json", "out.tables", "out.parquet", "p.json", "index.json"}
    outcome = job.start(home, engine=ONE)
    assert getattr(outcome, job.known) == 2
    assert job.result(home, outcome) == whole(name, tmp_path)
    assert not [
        path
        for path in home.rglob("*")
        if path.name.endswith((".journal", ".packing", ".mapping", ".verifying", ".spool"))
    ]


@EACH
def test_a_failing_task_costs_its_own_result(name, home, tmp_path, monkeypatch):
    """What the others found is there for the next run; a job that needs all shards says which one failed."""
    job = JOBS[name]
    real, calls = getattr(*job.work), []

    def fail_second(*args, **more):
        calls.append(args)
        if len(calls) == 2:
            raise ShardError("s1.tar: is broken", shard="s1.tar")
        return real(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(*job.work, fail_second)
        try:
            failed = job.start(home, engine=ONE).failed
        except WidsError as error:
            failed = {"": str(error)}
    assert "s1.tar: is broken" in "".join(failed.values())
    assert len(failed) == 1
    outcome = job.start(home, engine=ONE)
    assert getattr(outcome, job.known) == job.kept
    assert job.result(home, outcome) == whole(name, tmp_path)


def test_a_server_s_shards_are_warmed_the_same_way(home, monkeypatch):
    """One that fails is in the outcome; a run that was cancelled continues with the others."""
    real, calls = cache_warm._Warming._bring, []

    def fail_second(self, task, context):
        calls.append(task)
        if len(calls) == 2:
            raise ShardError("s1.tar: is broken", shard="s1.tar")
        real(self, task, context)

    def cancel(state):
        if state.ended >= 1:
            raise KeyboardInterrupt

    with Server(home) as server:
        shards = [(f"{server.url}/s{k}.tar", count) for k, count in enumerate(COUNTS)]
        settings = jobs.WarmSettings(directory=str(home / "cache"))
        with pytest.raises(KeyboardInterrupt):
            jobs.warm(shards, settings, engine=ONE, progress=cancel)
        assert not [path for path in (home / "cache").rglob("*") if path.name.endswith(".part")]
        with monkeypatch.context() as patched:
            patched.setattr(cache_warm._Warming, "_bring", fail_second)
            told = jobs.warm(shards, settings, engine=ONE)
        assert (told.cached, told.fetched, list(told.failed.values())) == (1, 2, ["s1.tar: is broken"])
        told = jobs.warm(shards, settings, engine=ONE)
        assert (told.cached, told.fetched, told.failed) == (3, 1, {})


def test_shards_that_need_no_download_are_reported(home):
    """Once at least, as by every job."""
    states = []
    jobs.warm(
        str(home / "train.json"), jobs.WarmSettings(directory=str(home / "cache")), engine=ONE, progress=states.append
    )
    assert (states[-1].shards, states[-1].ended, states[-1].failed) == (len(COUNTS), len(COUNTS), 0)


def test_what_runs_a_job_is_chosen_where_the_caller_leaves_it_open():
    """Threads wait for networks; processes where they pay; what the caller says holds."""
    cores = os.cpu_count() or 1
    assert choose_engine("auto", is_remote=True, pays=True) == RunOptions(engine="threads", jobs=16)
    assert choose_engine("auto", is_remote=False) == RunOptions(engine="threads", jobs=cores)
    assert choose_engine("processes", is_remote=True) == RunOptions(engine="processes", jobs=cores)
    assert choose_engine("ray", is_remote=False, pays=True) == RunOptions(engine="ray", jobs=64)
    assert choose_engine(RunOptions(jobs=3), is_remote=True).jobs == 3


def test_reports_after_the_end_of_a_task_are_passed_over():
    """They come from another process, and may be late."""

    class Reporting(ShardJob[str, int, JobOutcome]):
        def take(self, name, found):
            self.progress.bytes += found

        def report(self, name, *state):
            seen.append((name, *state))

    def work(task, context):
        context.report(task)
        return task

    seen: list[tuple[Any, ...]] = []
    with Reporting(JobOutcome(shards=2), None, "adding") as job:
        job.run(work, [("a", 1), ("b", 2)], ONE)
    assert (job.progress.bytes, job.progress.ended, sorted(seen)) == (3, 2, [("a", 1), ("b", 2)])


def test_the_face_of_jobs():
    """Its names are found where they are defined, in its list and in `dir`; another one is an attribute error."""
    assert all(getattr(jobs, name).__name__ == name for name in jobs.__all__)
    assert set(jobs.__all__) <= set(dir(jobs))
    assert sorted(name for names in jobs._NAMES.values() for name in names.split()) == sorted(jobs.__all__)
    with pytest.raises(AttributeError, match=r"'wids\.jobs' has no attribute 'create_indexes'"):
        _ = jobs.create_indexes
