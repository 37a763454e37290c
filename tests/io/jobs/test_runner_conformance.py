"""Every engine keeps the promises of `wids.testing.RunnerSuite`: this thread, threads, processes, and Ray."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from tests.support import paths
from tests.support.children import PATIENCE_SECONDS
from wids.errors import ClusterError, InputError, JobError, TruncatedShardError, WorkerError
from wids.jobs import engines
from wids.jobs.engines import run
from wids.jobs.outcome import raise_failure
from wids.jobs.runner import RunOptions, SerialRunner
from wids.testing import RunnerSuite
from wids.testing.runners import double


def options(engine, jobs=2):
    """The options that choose an engine."""
    return RunOptions().resolve(engine, jobs) if engine != "ray" else RunOptions(engine="ray", jobs=jobs)


class Engine(RunnerSuite):
    """The suite, for the engine that a name leads to."""

    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch):
        """On a busy machine, tasks that are cancelled take their time: none is killed for that."""
        monkeypatch.setattr("wids.jobs.runner.END_SECONDS", PATIENCE_SECONDS)
        monkeypatch.setattr("wids.jobs.processes._END_SECONDS", PATIENCE_SECONDS)

    def start(self, function, on_report):
        """As `run` does it."""
        return engines._start(function, options(self.engine), on_report, None)


class TestHere(Engine):
    """This thread."""

    engine = "here"
    is_in_process, can_cancel, has_processes = True, False, False


class TestThreads(Engine):
    """Threads of this process."""

    engine = "threads"
    is_in_process, has_processes = True, False


class TestProcesses(Engine):
    """Processes of this machine."""

    engine = "processes"


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


@pytest.mark.outside
@pytest.mark.usefixtures("cluster")
class TestRay(Engine):
    """A cluster."""

    engine = "ray"
    cleans_up = False

    @pytest.fixture(autouse=True)
    def _begin(self, monkeypatch):
        self._patch, self._starts = monkeypatch, 0

    def start(self, function, on_report):
        """It interrupts one task after the other: on a busy machine the time was up before all had ended."""
        if self._starts:  # a task that is interrupted in its first moment, at the end of the first run, is killed soon
            self._patch.setattr("wids.jobs.ray_cluster.END_SECONDS", PATIENCE_SECONDS)
        self._starts += 1
        return super().start(function, on_report)


def test_an_engine_that_is_none():
    """It is refused."""
    with pytest.raises(InputError, match="engine='horses': give 'auto', 'threads'"):
        next(run(double, [1], RunOptions(engine="horses")))


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


@pytest.mark.outside
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


PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from wids.jobs.engines import run
from wids.jobs.runner import RunOptions
from wids.testing.runners import touch_and_wait
if __name__ == "__main__":
    engine, *names = sys.argv[1:]
    try:
        list(run(touch_and_wait, names, RunOptions().resolve(engine, 2)))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("how", ["interrupt", "kill"])
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
