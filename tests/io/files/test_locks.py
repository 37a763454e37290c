import errno
import fcntl
import itertools
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cache_dirs import put_file
from tests.support.chaos import open_files
from tests.support.children import PATIENCE_SECONDS, call_in_child, child, kill, receive, stop_here
from wids.core.files import forks, locks, system
from wids.errors import CacheError
from wids.events import Waited


def is_free(path):
    """Whether another process could take the lock right now."""
    return call_in_child(_try_lock, path)


def _try_lock(path):
    if not os.path.exists(path):
        return True
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def hold_and_stop(connection, path):
    """Hold the lock until killed."""
    with locks.acquire(path):
        stop_here(connection)


def test_a_lock_excludes_while_it_is_held(tmp_path):
    """Another process cannot take the lock in the block, and can after it; also when the block fails."""
    path = str(tmp_path / "a.tar")
    with locks.acquire(path):
        assert not is_free(path)
    assert is_free(path)
    with pytest.raises(ZeroDivisionError), locks.acquire(path):
        _ = 1 // 0
    assert is_free(path)


def test_lock_files_do_not_pile_up(tmp_path):
    """The file is there only while the lock is held; one that is asked to stay is the same inode ever after."""
    path, kept = str(tmp_path / "a.lock"), str(tmp_path / "kept")
    with locks.acquire(path), locks.acquire(kept, is_kept=True):
        inode = os.stat(kept).st_ino
        assert sorted(os.listdir(tmp_path)) == ["a.lock", "kept"]
    with locks.acquire(kept, is_kept=True), locks.try_acquire(path) as held:
        assert held is not None
        assert os.stat(kept).st_ino == inode
    assert os.listdir(tmp_path) == ["kept"]


def count_up(path, counter, rounds):
    """Read a number from a file and write one more, many times, each time under the lock."""
    for _ in range(rounds):
        with locks.acquire(path):
            with open(counter) as file:
                number = int(file.read())
            with open(counter, "w") as file:
                file.write(str(number + 1))
    return True


def test_a_lock_file_that_is_deleted_all_the_time_excludes_all_the_same(tmp_path):
    """Four processes lose no count among 600, though each deletes the lock file whenever it is done."""
    path, counter = str(tmp_path / "a.lock"), str(tmp_path / "counter")
    put_file(tmp_path, "counter", b"0")
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: call_in_child(count_up, path, counter, 150), range(4)))
    with open(counter) as file:
        assert file.read() == "600"


def test_a_stopped_process_stops_nobody(tmp_path, caplog):
    """Its lock is taken away after a while, and the log names it; when it goes on, the next holder loses nothing."""
    path = str(tmp_path / "a.lock")
    with child(hold_until_told, path) as (process, connection):
        assert receive(connection) == "here"
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with locks.acquire(path, stopped_seconds=0.2):
                assert f"process {process.pid} on" in caplog.text
                os.kill(process.pid, signal.SIGCONT)
                connection.send("release")
                assert receive(connection) == "released"
                assert not is_free(path)
        finally:
            os.kill(process.pid, signal.SIGCONT)
    assert not os.path.exists(path)


def hold_until_told(connection, path):
    """Hold the lock until a word comes."""
    with locks.acquire(path):
        connection.send("here")
        connection.recv()
    connection.send("released")
    stop_here(connection)


def test_a_holder_that_runs_keeps_its_lock(tmp_path, monkeypatch, set_limits, caplog):
    """However long it takes: as long as it touches the lock, another process waits for it."""
    path = str(tmp_path / "a.lock")
    set_limits(locks, touch_seconds=0.0)
    looks = []
    real = locks._Wait.should_end

    def look(self):
        looks.append(held.touch())
        if len(looks) == 30:
            is_done.set()
        return real(self)

    monkeypatch.setattr(locks._Wait, "should_end", look)
    is_done = threading.Event()

    def second():
        with locks.acquire(path, stopped_seconds=0.1):
            pass

    thread = threading.Thread(target=second)
    with locks.acquire(path) as held:
        thread.start()
        assert is_done.wait(PATIENCE_SECONDS)
        assert not is_free(path)
    thread.join(PATIENCE_SECONDS)
    assert "has not run" not in caplog.text


def test_a_stopped_process_whose_lock_cannot_be_deleted(tmp_path, monkeypatch, caplog):
    """Where only its owner may delete it, the others go on without the lock: publishing is atomic anyway."""
    path = str(tmp_path / "a.lock")

    def refusing(name):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)

    with child(hold_and_stop, path) as (process, connection):
        assert receive(connection) == "here"
        monkeypatch.setattr(os, "unlink", refusing)
        with locks.acquire(path, stopped_seconds=0.1):
            monkeypatch.undo()
            assert not is_free(path)
        kill(process)


def test_a_lock_file_that_another_user_made_for_himself(tmp_path, monkeypatch):
    """The error says whose it is, and what to do."""
    path = put_file(tmp_path, "a.lock")

    def refusing(name, *args, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    monkeypatch.setattr(locks, "open", refusing, raising=False)
    with pytest.raises(CacheError, match=rf"user {os.getuid()} .* chmod a\+w"), locks.acquire(path):
        pass


@pytest.mark.parametrize("acquire", [locks.acquire, locks.try_acquire])
def test_a_lock_file_that_another_user_is_making(tmp_path, monkeypatch, acquire):
    """For a moment it has the permissions of that user's umask: no reason to end a training."""
    path, real = put_file(tmp_path, "a.lock"), open
    denied = [path] * 4

    def refusing(name, *args, **options):
        if name in denied:
            denied.remove(name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(name, *args, **options)

    monkeypatch.setattr(locks, "open", refusing, raising=False)
    with acquire(path) as held:
        assert held is not None
        assert not is_free(path)
    assert denied == []


def test_threads_exclude_each_other(tmp_path, events, set_limits, caplog):
    """A second thread waits, says so in the log, tells how long, and goes on when the first is done."""
    set_limits(locks, report_seconds=0.0)
    path = str(tmp_path / "a.tar")
    is_waiting, order = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record):
            is_waiting.set()

    def second():
        with locks.acquire(path, hooks=[events]):
            order.append("second")

    handler = Handler()
    locks.logger.addHandler(handler)
    try:
        thread = threading.Thread(target=second)
        with locks.acquire(path):
            thread.start()
            assert is_waiting.wait(PATIENCE_SECONDS)
            order.append("first")
        thread.join(PATIENCE_SECONDS)
    finally:
        locks.logger.removeHandler(handler)
    assert order == ["first", "second"]
    [event] = events
    assert isinstance(event, Waited)
    assert event.path == path
    assert event.seconds > 0
    assert f"the lock of process {os.getpid()} on" in caplog.text


def test_no_wait_is_no_event(tmp_path, events):
    """A free lock is taken without an event."""
    with locks.acquire(str(tmp_path / "a.tar"), hooks=[events]):
        assert events == []


def test_the_wait_is_reported_only_now_and_then(tmp_path, monkeypatch, caplog):
    """A wait shorter than the interval leaves no line in the log."""
    path = str(tmp_path / "a.tar")
    polls = []
    waited = threading.Event()

    real = locks._Wait.should_end

    def look(self):
        polls.append(real(self))
        waited.set()
        return polls[-1]

    monkeypatch.setattr(locks._Wait, "should_end", look)
    with child(hold_and_stop, path) as (process, connection):
        receive(connection)
        thread = threading.Thread(target=_hold_once, args=[path])
        thread.start()
        assert waited.wait(PATIENCE_SECONDS)
        kill(process)
        thread.join(PATIENCE_SECONDS)
    assert polls[0] is False
    assert caplog.text == ""


def test_a_killed_holder_is_no_obstacle(tmp_path):
    """A lock is free as soon as its holder is killed (SIGKILL)."""
    path = str(tmp_path / "a.tar")
    with child(hold_and_stop, path) as (process, connection):
        assert receive(connection) == "here"
        assert not is_free(path)
        kill(process)
        with locks.acquire(path):
            pass


def test_a_fork_neither_keeps_nor_drops_the_lock(tmp_path):
    """A process forked under the lock ends without freeing it; one that lives on does not keep it held."""
    path = str(tmp_path / "a.tar")
    with locks.acquire(path):
        call_in_child(os.getpid)
        assert not is_free(path)
        lasting = child(stop_here)
        _, connection = lasting.__enter__()
        receive(connection)
    try:
        assert is_free(path)
    finally:
        lasting.__exit__(None, None, None)


def test_a_fork_works_while_a_thread_waits(tmp_path, monkeypatch, set_limits):
    """A process forked while another thread waits for a lock can take locks itself."""
    set_limits(locks, report_seconds=0.0)
    path, other = str(tmp_path / "a.tar"), str(tmp_path / "b.tar")
    is_waiting = threading.Event()
    monkeypatch.setattr(locks.logger, "warning", lambda *args: is_waiting.set())

    def second():
        with locks.acquire(path):
            pass

    thread = threading.Thread(target=second)
    with locks.acquire(path):
        thread.start()
        assert is_waiting.wait(PATIENCE_SECONDS)
        call_in_child(_hold_once, other)
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def _hold_once(path):
    with locks.acquire(path):
        return True


def test_a_fork_does_not_wait_for_a_slow_lock(tmp_path, monkeypatch):
    """A file system that does not answer one thread holds up no fork: neither the parent nor the child's own locks."""
    is_waiting, may_go_on, real = threading.Event(), threading.Event(), fcntl.flock

    def slow(fd, operation):
        if threading.current_thread() is thread:
            is_waiting.set()
            may_go_on.wait()
        return real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    thread = threading.Thread(target=_hold_once, args=[str(tmp_path / "a.tar")])
    thread.start()
    try:
        assert is_waiting.wait(PATIENCE_SECONDS)
        assert call_in_child(_hold_once, str(tmp_path / "b.tar"))
        assert thread.is_alive()
    finally:
        may_go_on.set()
        thread.join(PATIENCE_SECONDS)


def test_waiting_for_oneself_is_an_error(tmp_path):
    """The thread that holds the lock is told so instead of waiting for ever."""
    path = str(tmp_path / "a.tar")
    with locks.acquire(path), pytest.raises(CacheError, match="holds the lock already"), locks.acquire(path):
        pass
    assert is_free(path)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_work_goes_on(tmp_path, monkeypatch, caplog, code):
    """On a file system without locks the block runs all the same; the log says so once for each directory."""

    def flock(fd, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    ran = []
    for name in ("a.tar", "b.tar"):
        with locks.acquire(str(tmp_path / name)):
            ran.append(name)
    assert ran == ["a.tar", "b.tar"]
    [record] = [record for record in caplog.records if record.name == "wids"]
    assert str(tmp_path) in record.getMessage()
    assert "no locks" in record.getMessage()
    with open(tmp_path / "part", "wb") as file:
        system.try_lock(file.fileno(), is_shared=False)
        system.unlock(file.fileno())


def test_a_place_for_no_lock(tmp_path):
    """Where no lock file can be made, the error is typed and says where."""
    (tmp_path / "file").write_bytes(b"")
    path = str(tmp_path / "file" / "a.tar")
    with pytest.raises(CacheError, match="writable") as caught, locks.acquire(path):
        pass
    assert path in str(caught.value)


def test_a_marked_file_is_seen_by_others(tmp_path):
    """A locked file cannot be locked by another process; unlocked it can, though a forked process has a copy."""
    path = str(tmp_path / "a.part")
    with open(path, "wb") as file:
        system.try_lock(file.fileno(), is_shared=False)
        assert not is_free(path)
        with child(stop_here) as (_, connection):
            receive(connection)
            system.unlock(file.fileno())
            assert is_free(path)


def test_a_mark_dies_with_its_process(tmp_path):
    """A file is unlocked as soon as its writer is killed (SIGKILL)."""
    path = str(tmp_path / "a.part")
    with child(_lock_and_stop, path) as (process, connection):
        receive(connection)
        assert not is_free(path)
        kill(process)
        assert is_free(path)


def _lock_and_stop(connection, path):
    with open(path, "wb") as file:
        system.try_lock(file.fileno(), is_shared=False)
        stop_here(connection)


def test_a_lock_in_a_directory_that_is_not_there(tmp_path):
    """It is made, as one that was deleted just now; a second try finds the lock taken."""
    path = str(tmp_path / "own" / "a.lock")
    with locks.try_acquire(path) as held:
        assert held is not None
        with locks.try_acquire(path) as other:
            assert other is None
        assert not is_free(path)
    assert is_free(path)


def test_a_link_in_the_place_of_a_lock_file_is_not_followed(tmp_path):
    """It could lead to a file of the user's own, which would be written to."""
    target = put_file(tmp_path, "precious", b"precious")
    os.symlink(target, tmp_path / "a.lock")
    with pytest.raises(CacheError, match=r"a\.lock"), locks.acquire(str(tmp_path / "a.lock")):
        pass
    with open(target, "rb") as file:
        assert file.read() == b"precious"


def test_a_place_where_no_file_can_be_made_is_no_endless_wait():
    """As in /proc: the directory is there, and a new file in it is not found."""
    with pytest.raises(CacheError, match="writable"), locks.acquire("/proc/self/fdinfo/a.lock"):
        pass


def interrupt_at(moment, path, *, is_kept):
    """Take a lock and give it back, with an interrupt at so many lines from the first; False: there were fewer."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename != locks.__file__:
            return None
        # The event of a with statement's end comes before its lock is released, where Python handles no signal.
        if event == "call" or forks.lock._is_owned():
            return trace
        count += 1
        if count == moment:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with locks.acquire(path, is_kept=is_kept):
            pass
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the finalizer closed the file
@pytest.mark.parametrize("is_kept", [False, True])
def test_an_interrupt_at_any_line_leaves_no_lock_held(tmp_path, is_kept):
    """Ctrl-C while a lock is taken or given back: it is free afterwards, and no file stays, or stays open."""
    path = str(tmp_path / "a.lock")
    for moment in itertools.count(1):
        was_interrupted = interrupt_at(moment, path, is_kept=is_kept)
        assert not [name for name in open_files() if str(tmp_path) in name]
        assert is_kept or not os.path.exists(path)
        with locks.try_acquire(path) as held:
            assert held is not None, f"it is still held after an interrupt at line {moment}"
        assert not forks.lock._is_owned()
        if not was_interrupted:
            break
    assert moment > 25


def test_a_forked_child_keeps_no_lock_of_its_parent(tmp_path):
    """Were its copy of the file open, the lock of a parent that is killed would be held as long as the child lives."""
    path = str(tmp_path / "a.lock")

    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        with locks.acquire(path):
            os.write(writing, b"%d " % (os.fork() or os.getpid()))
            signal.pause()
            os._exit(0)
    said = b""
    while said.count(b" ") < 2:
        said += os.read(reading, 100)
    forked = next(pid for pid in map(int, said.split()) if pid != holder)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with locks.try_acquire(path) as held:
        os.kill(forked, signal.SIGKILL)
        assert held is not None
