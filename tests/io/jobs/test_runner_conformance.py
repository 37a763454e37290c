"""What every runner does, be it in this thread, in threads, in processes or on Ray: `run` and its promises."""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.support import paths
from wids.errors import ClusterError, InputError, JobError, TruncatedShardError, WorkerError
from wids.jobs.outcome import raise_failure
from wids.jobs.runner import RunOptions, SerialRunner, run

PATIENCE_SECONDS = 60
LOCAL = ["here", "threads", "processes"]


def options(engine, jobs=2):
    """The options that choose an engine."""
    return RunOptions().resolve(engine, jobs) if engine != "ray" else RunOptions(engine="ray", jobs=jobs)


@pytest.fixture(params=[*LOCAL, pytest.param("ray", marks=pytest.mark.e2e)])
def engine(request):
    """Each engine; that of Ray in a cluster of its own, for as long as a test's module."""
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, to which runners connect; its processes ignore SIGINT, as those of a background job do."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    place = {"PYTHONPATH": str(paths.ROOT)}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": place},
        _temp_dir="/tmp/wids-ray",
    )
    signal.signal(signal.SIGINT, before)
    yield ray
    ray.shutdown()


def double(number, context):
    """A task."""
    assert not context.is_cancelled()
    return 2 * number


@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_task_has_its_result_once(engine, count):
    """Whatever ends first, each task's number comes with its value; there are fewer jobs than tasks, or more."""
    assert sorted((found.k, found.get()) for found in run(double, range(count), options(engine))) == [
        (k, 2 * k) for k in range(count)
    ]


class StubbornError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")
        self.lock = threading.Lock()


def fail_sometimes(number, context):
    """A task that fails, by an error or by a value that no other process can have."""
    if number == 1:
        raise ValueError("one")
    if number == 2:
        raise StubbornError("two", 2)
    if number == 3:
        return threading.Lock()
    return number


def test_a_failure_costs_its_own_task(engine):
    """Errors are results, those that cannot be pickled by their words; other tasks go on."""
    found = {result.k: result for result in run(fail_sometimes, range(8), options(engine))}
    assert [found[k].get() for k in (0, 4, 5, 6, 7)] == [0, 4, 5, 6, 7]
    assert isinstance(found[1].error, ValueError)
    with pytest.raises((StubbornError, JobError), match="two 2"):
        found[2].get()
    assert (found[3].error is None) == (engine in ("here", "threads"))


class Unpicklable:
    """A task that no other process can have."""

    def __reduce__(self):
        raise TypeError("stays here")


def name_of(task, context):
    """A task of any type."""
    return type(task).__name__


def test_a_task_that_cannot_be_pickled_fails_alone():
    """It is not sent, and the worker that was to have it takes the next one."""
    found = sorted(run(name_of, [1, Unpicklable(), 3], options("processes")), key=lambda result: result.k)
    assert [found[0].get(), found[2].get()] == ["int", "int"]
    assert "stays here" in str(found[1].error)


def test_an_engine_that_is_none():
    """It is refused."""
    with pytest.raises(InputError, match="none of threads"):
        next(run(double, [1], RunOptions(engine="horses")))


def test_no_result_is_waited_for_in_vain(engine):
    """They come one by one: a task is taken from the list when an earlier one has ended, not before."""
    taken = []

    def tasks():
        for k in range(6):
            taken.append(k)
            yield k

    with contextlib.closing(run(double, tasks(), options(engine, jobs=1))) as results:
        for count, result in enumerate(results, 1):
            assert result.get() == 2 * result.k
            assert len(taken) == count


def touch_and_wait(path, context):
    """A task that says that it has begun, waits to be ended, and cleans up after itself."""
    if path is None:
        return None
    until = PATIENCE_SECONDS * 20
    try:
        with open(f"{path}.begun", "w"):
            pass
        while until and not context.is_cancelled():
            until -= 1
            threading.Event().wait(0.05)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{path}.begun")
        with open(f"{path}.ended", "w"):
            pass
    return until


@pytest.mark.parametrize("engine", ["threads", "processes", pytest.param("ray", marks=pytest.mark.e2e)], indirect=True)
def test_closing_cancels_what_runs(engine, tmp_path, monkeypatch):
    """Tasks under way are ended and clean up, and when `close` returns they have; others never begin."""
    names = [str(tmp_path / str(k)) for k in range(4)]
    results = run(touch_and_wait, [None, *names], options(engine))
    assert next(results).get() is None
    results.close()
    if (
        engine == "ray"
    ):  # one that is interrupted in its first moment may not notice; it is killed, and cleans nothing up
        for path in tmp_path.glob("*.begun"):
            path.unlink()
    assert list(tmp_path.glob("*.begun")) == []

    class EnoughError(Exception):
        """All that can begin have."""

    def tick():
        if len(list(tmp_path.glob("*.begun"))) == 2:
            raise EnoughError

    if engine == "ray":  # it interrupts one after the other: on a busy machine the time was up before they had ended
        monkeypatch.setattr("wids.jobs.ray_cluster.END_SECONDS", PATIENCE_SECONDS)
    results = run(touch_and_wait, names, options(engine), tick=tick)
    with pytest.raises(EnoughError), contextlib.closing(results):
        next(results)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.ended", "1.ended"]
    assert multiprocessing.active_children() == []


def notice_the_second(path, context):
    """A task whose first interruption is lost."""
    lost = 0
    while lost < 2:
        try:
            with open(f"{path}.{lost}", "w"):
                pass
            for _ in range(PATIENCE_SECONDS * 20):
                threading.Event().wait(0.05)
        except KeyboardInterrupt:
            lost += 1
    with open(f"{path}.ended", "w"):
        pass


@pytest.mark.e2e
def test_an_interruption_that_was_lost_is_repeated(cluster, tmp_path, monkeypatch):
    """A task of Ray has several chances to clean up before its process is killed."""
    monkeypatch.setattr("wids.jobs.ray_cluster.END_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr("wids.jobs.ray_cluster._AGAIN_SECONDS", 0.5)

    def tick():
        if (tmp_path / "task.0").exists():
            raise InterruptedError

    results = run(notice_the_second, [str(tmp_path / "task")], options("ray"), tick=tick)
    with pytest.raises(InterruptedError), contextlib.closing(results):
        next(results)
    assert (tmp_path / "task.ended").exists()


def test_reports_come_while_a_task_is_under_way(engine, tmp_path):
    """To the thread that takes results, with the task's number; the last word of a task stands for those before it."""
    seen, threads = {}, set()

    def note(k, path, word):
        assert word == "b" or seen.get(k) != (path, "b")
        seen[k] = path, word
        threads.add(threading.get_ident())
        if word == "b":
            (tmp_path / path).touch()

    tasks = [(str(tmp_path / name), name) for name in ("x", "y", "z")]
    with contextlib.closing(run(report_twice, tasks, options(engine, jobs=2), on_report=note)) as results:
        assert all(result.get() for result in results)
    assert seen == {0: ("x", "b"), 1: ("y", "b"), 2: ("z", "b")}
    assert threads == {threading.get_ident()}


def report_twice(task, context):
    """A task that says how far it is, until that was heard."""
    path, name = task
    context.report(name, "a")
    context.report(name, "b")
    until = time.monotonic() + PATIENCE_SECONDS
    while not (is_heard := os.path.exists(path)) and time.monotonic() < until:
        threading.Event().wait(0.02)
    return is_heard


def end_at_two(number, context):
    """A task whose process is killed."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.e2e)], indirect=True)
def test_a_worker_that_is_killed_costs_its_own_task(engine):
    """The next tasks go on in another process; the error says how it ended."""
    found = {result.k: result for result in run(end_at_two, range(6), options(engine))}
    assert [found[k].get() for k in (0, 1, 3, 4, 5)] == [0, 1, 3, 4, 5]
    with pytest.raises((WorkerError, ClusterError)):
        found[2].get()
    assert engine == "ray" or found[2].error.found == -signal.SIGKILL


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tests.io.jobs.test_runner_conformance import options, touch_and_wait
from wids.jobs.runner import run
if __name__ == "__main__":
    engine, *names = sys.argv[1:]
    try:
        list(run(touch_and_wait, names, options(engine)))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("how", ["interrupt", "kill"])
@pytest.mark.e2e
def test_ctrl_c_and_a_killed_parent(engine, how, tmp_path):
    """Ctrl-C reaches all processes of a terminal: tasks clean up. A parent that is killed takes its workers along."""
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    begun = [f"{name}.begun" for name in names]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, engine, *names],
        env={**os.environ, "PYTHONPATH": str(paths.ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not all(map(os.path.exists, begun)):
            assert process.poll() is None
            threading.Event().wait(0.02)
        if how == "kill":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)  # until no process has its end of the pipe
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if how == "interrupt":
        assert process.returncode == 130
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ended", "b.ended"]
    else:
        assert process.returncode == -signal.SIGKILL


def test_a_serial_runner_ends_at_once():
    """There is nothing to wait for, and an interrupt of the function comes through."""

    def interrupt(task, context):
        raise KeyboardInterrupt

    runner = SerialRunner(interrupt, lambda *_: None)
    runner.give(0, 1)
    with pytest.raises(KeyboardInterrupt):
        runner.take(1)
    runner.close()


@pytest.mark.parametrize(
    "error", [WorkerError("a process ended", found=-9), ClusterError("a task was lost"), OSError("x")]
)
def test_the_failure_of_a_shard_names_it(error):
    """A runner knows of tasks alone; the kind and the facts of its error stay."""
    with pytest.raises(
        JobError, match=re.escape(f"http://h/a.tar: {'OSError: ' * (type(error) is OSError)}{error}")
    ) as caught:
        raise_failure("http://h/a.tar", error)
    assert type(caught.value) is (JobError if type(error) is OSError else type(error))
    assert (caught.value.url, caught.value.found) == ("http://h/a.tar", getattr(error, "found", None))
    own = TruncatedShardError("b.tar: is cut short")
    with pytest.raises(TruncatedShardError, match=r"^b\.tar: is cut short$"):
        raise_failure("http://h/a.tar", own)
