"""An operating system in memory: a disk, a clock, processes and their threads, all in one thread of this one.

Each simulated thread is a greenlet. It runs until it makes a call (`Machine.step`), waits for a lock, or sleeps; who
runs next, who is killed, and which call fails is drawn from one `random.Random`, so that a seed repeats all of it. The
clock goes on a little with each call, and to the next one who sleeps where nobody can run.

A process has a copy of the library of its own (`Process`): its modules are imported once more, and ``os``, ``time``,
``threading`` and the like in them are the simulated ones. A name that is not simulated raises `NotImplementedError`.
"""

import contextlib
import errno
import fcntl
import functools
import heapq
import importlib
import itertools
import logging
import os
import posixpath
import queue
import random
import resource
import secrets
import stat
import sys
import time
import types
import weakref

from greenlet import greenlet

_BLOCK = 4096
_SECOND = 1_000_000_000
# So long at most does a thread that could run not run, in simulated time.
_MOST_DELAY = 1 * _SECOND
# When the simulation begins, in nanoseconds since 1970.
_START = 1_750_000_000 * _SECOND


class Killed(BaseException):
    """Raised in the threads of a process that was killed, at the call at which it was, so that they end."""


class SimulationError(AssertionError):
    """The library, or the simulation, did what it must not."""


_WORDS = {number: os.strerror(number) for number in errno.errorcode}


def _fault(number, *path):
    return OSError(number, _WORDS[number], *path)


# --- the disk


class File:
    """A file: its bytes, names and locks.

    Attributes:
        blocks: numbers of the blocks that take space. locks: open file description -> whether its lock is shared.
        place: (path of its directory, name); None: it has no name any more.
        is_deleted: its last name was deleted; not: given to another file.
        is_synced: its bytes outlive a power cut.
    """

    __slots__ = ("blocks", "data", "is_deleted", "is_synced", "locks", "mode", "mtime", "number", "place")

    def __init__(self, number, mode, mtime):
        self.number, self.mode, self.mtime = number, stat.S_IFREG | mode, mtime
        self.data, self.blocks, self.locks = bytearray(), set(), {}
        self.place = None
        self.is_deleted = False
        self.is_synced = True

    @property
    def nlink(self):
        """How many names it has."""
        return int(self.place is not None)


class Directory:
    """A directory: name -> file or directory."""

    __slots__ = ("entries", "mode", "mtime", "nlink", "number", "path")

    def __init__(self, path, number, mtime):
        self.path, self.number, self.mode, self.mtime, self.nlink = path, number, stat.S_IFDIR | 0o755, mtime, 2
        self.entries = {}


class Status:
    """As `os.stat_result`, of what is simulated."""

    __slots__ = ("st_blocks", "st_ino", "st_mode", "st_mtime_ns", "st_nlink", "st_size")
    st_dev, st_uid, st_gid = 1, 1000, 1000

    def __init__(self, node):
        self.st_ino, self.st_mode, self.st_nlink, self.st_mtime_ns = node.number, node.mode, node.nlink, node.mtime
        if type(node) is File:
            self.st_size, self.st_blocks = len(node.data), len(node.blocks) * 8
        else:
            self.st_size, self.st_blocks = _BLOCK, 8

    @property
    def st_mtime(self):
        """Seconds since 1970."""
        return self.st_mtime_ns / _SECOND


class Disk:
    """The one file system.

    Args:
        capacity: bytes that it holds.
        note: called with (path of a directory, name, bytes of its file) after each change; None: the name is gone.
        stamp: the time for what is changed now, in nanoseconds; as coarse as the file system's clock.
    """

    def __init__(self, capacity, note, stamp):
        self.capacity, self._note, self._stamp = capacity, note, stamp
        self._numbers = itertools.count(2)
        self.used_blocks = 0
        self.directories = {"/": Directory("/", 1, stamp())}

    @property
    def free(self):
        """Bytes that may still be written."""
        return self.capacity - self.used_blocks * _BLOCK

    def look_up(self, path):
        """The file or directory at ``path``; None: there is nothing."""
        home, _, name = path.rpartition("/")
        directory = self.directories.get(home or "/")
        if directory is None and path[:1] != "/":
            raise self._missing(path, home)
        return None if directory is None else directory.entries.get(name) if name else directory

    def find(self, path):
        """As `look_up`.

        Raises:
            OSError: there is nothing.
        """
        node = self.look_up(path)
        if node is None:
            raise self._missing(path, path.rpartition("/")[0])
        return node

    def _missing(self, path, home):
        if not path.startswith("/"):
            raise NotImplementedError(f"the simulation has no relative paths: {path!r}")
        while home not in self.directories and home:
            home, _, name = home.rpartition("/")
            if name in getattr(self.directories.get(home or "/"), "entries", ()):
                return _fault(errno.ENOTDIR, path)
        return _fault(errno.ENOENT, path)

    def home_of(self, path):
        """The directory that holds, or will hold, ``path``, and the name in it."""
        home, _, name = path.rpartition("/")
        directory = self.directories.get(home or "/")
        if directory is None:
            raise self._missing(path, home)
        return directory, name

    def make_directory(self, path):
        """An empty one."""
        home, name = self.home_of(path)
        if name in home.entries or not name:
            raise _fault(errno.EEXIST, path)
        home.entries[name] = self.directories[path] = Directory(path, next(self._numbers), self._stamp())
        home.mtime = self._stamp()

    def make_file(self, path, mode=0o644):
        """An empty one, in the place of nothing."""
        home, name = self.home_of(path)
        file = File(next(self._numbers), mode, self._stamp())
        self._link(home, name, file)
        return file

    def _link(self, home, name, file):
        home.entries[name] = file
        home.mtime = self._stamp()
        file.place = home.path, name
        self._note(home.path, name, len(file.data))

    def unlink(self, path):
        """Remove a name; the file goes with its last one, for those who have it open later."""
        home, name = self.home_of(path)
        file = self.find(path)
        if type(file) is Directory:
            raise _fault(errno.EISDIR, path)
        file.is_deleted = True
        self._unlink(home, name)
        self._note(home.path, name, None)

    def _unlink(self, home, name):
        home.entries.pop(name).place = None
        home.mtime = self._stamp()

    def replace(self, old, new):
        """Give the file ``old`` the name ``new``, whose file loses it."""
        file, (home, name), (target, other) = self.find(old), self.home_of(old), self.home_of(new)
        before = target.entries.get(other)
        if Directory in (type(file), type(before)):
            raise NotImplementedError("the simulation renames no directories")
        if before is file:
            return
        if before is not None:
            self._unlink(target, other)
        self._unlink(home, name)
        self._note(home.path, name, None)
        self._link(target, other, file)

    def write(self, file, data, offset):
        """Write bytes, or as many as there is space for; how many."""
        end = offset + len(data)
        new = {*range(offset // _BLOCK, -(-end // _BLOCK))} - file.blocks
        if len(new) * _BLOCK > self.free:
            kept = [number for number in sorted(new) if number < min(new) + self.free // _BLOCK]
            end = min(min(number for number in new if number not in kept) * _BLOCK, end)
            if end <= offset:
                raise _fault(errno.ENOSPC)
            data, new = data[: end - offset], set(kept)
        file.blocks |= new
        self.used_blocks += len(new)
        if end > len(file.data):
            self._resize(file, end)
        file.data[offset:end] = data
        file.is_synced = False
        file.mtime = self._stamp()
        return len(data)

    def truncate(self, file, size):
        """Make a file longer, with zeros that take no space, or shorter."""
        gone = {number for number in file.blocks if number * _BLOCK >= size}
        file.blocks -= gone
        self.used_blocks -= len(gone)
        self._resize(file, size)
        file.mtime = self._stamp()

    def _resize(self, file, size):
        growth = size - len(file.data)
        if growth > 0:
            file.data.extend(bytes(growth))
        else:
            del file.data[size:]
        if growth and file.place is not None:
            self._note(*file.place, size)

    def drop(self, file):
        """The blocks of a file that is gone are free."""
        self.used_blocks -= len(file.blocks)
        file.blocks = set()

    def cut_power(self, random):
        """Names are as they were; of files that were not synced, the last blocks may be zeros, or missing."""
        for _, file in self.files(""):
            if not file.is_synced and random.random() < 0.5:
                at = _BLOCK * random.randrange(len(file.data) // _BLOCK + 1)
                if random.random() < 0.8:
                    file.data[at:] = bytes(len(file.data) - at)
                else:
                    self._resize(file, at)
            file.is_synced = True

    def put(self, path, data):
        """Write a whole file, as somebody outside of the simulation; its directory is made."""
        home = posixpath.dirname(path)
        parts = home.split("/")[1:] if home != "/" else []
        for number in range(len(parts)):
            with contextlib.suppress(FileExistsError):
                self.make_directory("/" + "/".join(parts[: number + 1]))
        file = self.make_file(path)
        self.write(file, data, 0)
        file.is_synced = True

    def files(self, directory):
        """(path, file) of all below a directory; of all, below ``""``."""
        for path, each in list(self.directories.items()):
            if f"{path}/".startswith(f"{directory}/"):
                for name, node in list(each.entries.items()):
                    if type(node) is File:
                        yield f"{path}/{name}", node


class Description:
    """An open file description: what descriptors, and their copies, have in common."""

    __slots__ = ("file", "flags", "position", "references")

    def __init__(self, file, flags):
        self.file, self.flags, self.position, self.references = file, flags, 0, 0


# --- threads, and who runs


class Task:
    """One simulated thread, of a process or (``process`` None) of the world outside."""

    __slots__ = ("error", "greenlet", "is_done", "joining", "name", "process", "ready_since", "token")

    def __init__(self, machine, process, name, act):
        self.process, self.name, self.error, self.is_done, self.joining = process, name, None, False, []
        self.token, self.ready_since = 0, machine.now

        def main():
            try:
                act()
            except Killed:
                pass
            except BaseException as error:
                machine.fail_with(error, f"{name}: {type(error).__name__}: {error}")
            finally:
                self.is_done = True

        self.greenlet = greenlet(main, parent=machine._hub)


class Machine:
    """The clock, and who runs.

    Args:
        random: a `random.Random`, from which all is drawn that is left to chance.
        switch_rate: at how many of all calls another thread may go on.
        jump_rate: at how many of these who sleeps comes before those who could run.
        short_rate: how many writes write half of what they are given, and say so.
        max_calls: more than so many are no progress.
        tick: nanoseconds that a call takes.

    Attributes:
        now: nanoseconds since 1970. calls: how many were made. trace: a list of what happens, or None.
        events: (call number, function) of what happens at certain calls, the latest first.
    """

    def __init__(
        self,
        random,
        *,
        switch_rate=0.1,
        jump_rate=0.02,
        short_rate=0.0,
        max_calls=400_000,
        tick=20_000,
        trace=None,
    ):
        self.random, self.trace, self.tick, self.short_rate = random, trace, tick, short_rate
        self._switch_rate, self._jump_rate, self._max_calls = switch_rate, jump_rate, max_calls
        self.now, self.calls = _START, 0
        self.tasks, self.events, self.processes = [], [], []
        self.faults = {}  # name of a call -> what its next one does instead
        self.disk = None
        self.failure = None
        self.current = None
        self._runnable, self._sleeping, self._numbers = [], [], itertools.count()
        self._doomed = []
        self._hub = greenlet.getcurrent()
        self._next_switch = self._draw_switch()
        self.next_event = self._next_switch

    # --- what happens when

    def _draw_switch(self):
        return self.calls + 1 + int(self.random.random() * 2 / self._switch_rate)

    def plan(self, call, event):
        """Have ``event()`` happen at call number ``call``."""
        self.events.append((call, len(self.events), event))
        self.events.sort(key=lambda each: -each[0])
        self.next_event = min(self._next_switch, self.events[-1][0])

    def step(self, name, about):
        """What may happen before a call: others run first, the process is killed, the call fails."""
        if self.trace is not None:
            self.note(name, about)
        if self.calls >= self.next_event:
            self._reach_event()
        if name in self.faults:
            self.faults.pop(name)()

    def _reach_event(self):
        if self.calls > self._max_calls:
            self.fail(f"no progress within {self._max_calls} calls")
        while self.events and self.calls >= self.events[-1][0]:
            self.events.pop()[2]()
        if self.current.process in self._doomed:
            self._leave()
        if self.calls >= self._next_switch:
            self._next_switch = self._draw_switch()
            self._set_ready(self.current)
            self._leave()
        self.next_event = min(self._next_switch, self.events[-1][0] if self.events else self._next_switch)

    def note(self, name, about=""):
        """Write down what happens."""
        if self.trace is not None:
            who = "world" if self.current is None else self.current.name
            self.trace.append(f"{(self.now - _START) / _SECOND:11.6f} {self.calls:6} {who:16} {name} {about}")

    def fail(self, words):
        """What must not happen has happened: the simulation ends."""
        if self.failure is None:
            self.note("FAILS", words)
            self.failure = SimulationError(words)
        self._leave_for_good()

    def fail_with(self, error, words):
        """Likewise, by an error that nobody has handled."""
        if self.failure is None:
            self.note("FAILS", words)
            self.failure = SimulationError(words)
            self.failure.__cause__ = error

    def _leave_for_good(self):
        if greenlet.getcurrent() is self._hub:
            raise self.failure
        self._leave()

    def _leave(self):
        """Let others run until it is this thread's turn again."""
        self._hub.switch()

    def _set_ready(self, task):
        task.token += 1
        task.ready_since = self.now
        home = self._runnable if task.process is None or task.process.stopped is None else task.process.stopped
        home.append(task)

    def stop(self, process):
        """A process does not run until `go_on`, as after SIGSTOP: it keeps its files and locks."""
        if process.is_alive and process.stopped is None:
            self.note("STOPPED", process.name)
            process.stopped = [task for task in self._runnable if task.process is process]
            self._runnable = [task for task in self._runnable if task.process is not process]
            if self.current is not None and self.current.process is process:
                self._set_ready(self.current)
                self._leave()

    def go_on(self, process):
        """It runs again."""
        if process.is_alive and process.stopped is not None:
            self.note("GOES ON", process.name)
            tasks, process.stopped = process.stopped, None
            for task in tasks:
                self._set_ready(task)

    def sleep(self, seconds):
        """The current thread sleeps."""
        self.block(None, seconds)

    def block(self, waiting, seconds=None):
        """Wait until another thread calls `wake` with ``waiting``, a list, or for so long; whether it was woken."""
        task = self.current
        token = task.token
        if seconds is not None:
            ends = self.now + max(int(seconds * _SECOND), 1)
            heapq.heappush(self._sleeping, (ends, next(self._numbers), task, token))
        if waiting is None:
            self._leave()
            return False
        entry = task, token
        waiting.append(entry)
        self._leave()
        if entry in waiting:
            waiting.remove(entry)
            return False
        return True

    def wake(self, waiting):
        """Let all who wait in a list go on."""
        for task, token in waiting:
            if task.token == token:  # it has not gone on by itself
                self._set_ready(task)
        waiting.clear()

    def spawn(self, process, name, act):
        """A new thread."""
        task = Task(self, process, name, act)
        self.tasks.append(task)
        self._set_ready(task)
        return task

    def run(self, tasks, seconds):
        """Let threads run until these have ended, which is to be within so many seconds.

        Raises:
            SimulationError: nobody can run any more, or somebody did what must not be.
        """
        ends = self.now + int(seconds * _SECOND)
        while self.failure is None and not all(task.is_done for task in tasks):
            self._run_until_one_ends(ends)
        if self.failure is not None:
            raise self.failure

    def _run_until_one_ends(self, ends):
        """Until a thread has ended, or a process was killed."""
        task = None
        while self.failure is None and not self._doomed and (task is None or not task.is_done):
            if self.now > ends:
                waiting = ", ".join(task.name for task in self.tasks)
                self.fail_with(None, f"too much time has passed, and these have not ended: {waiting}")
            self.current = task = self._choose()
            task.greenlet.switch()
        self.current = None
        if task.is_done:
            self.tasks.remove(task)
            self.wake(task.joining)
        while self._doomed:
            process = self._doomed.pop()
            self.note("KILLED", process.name)
            process.end()

    def _choose(self):
        ready, asleep = self._runnable, self._sleeping
        while asleep and (asleep[0][0] <= self.now or asleep[0][2].token != asleep[0][3]):
            _, _, task, token = heapq.heappop(asleep)
            if task.token == token:
                self._set_ready(task)
        if asleep and (not ready or self._jumps(asleep[0][0])):
            self.now, _, task, _ = heapq.heappop(asleep)
            self._set_ready(task)
            if task.process is None or task.process.stopped is None:
                return ready.pop()
            return self._choose()
        if not ready:
            waiting = ", ".join(task.name for task in self.tasks)
            self.note("FAILS", "deadlock")
            raise SimulationError(f"nobody can run any more; these wait for ever: {waiting}")
        return ready.pop(int(self.random.random() * len(ready)))

    def _jumps(self, when):
        """Whether who sleeps until ``when`` comes before those who could run: they are slow."""
        if not self._jump_rate or self.random.random() >= self._jump_rate:
            return False
        return when - min(task.ready_since for task in self._runnable) <= _MOST_DELAY

    def doom(self, process):
        """Kill a process once this thread leaves, which it does at once if it is one of it."""
        if process.is_alive:
            self._doomed.append(process)

    def cut_power(self):
        """All processes end at once; see `Disk.cut_power`."""
        self.note("POWER CUT")
        self.disk.cut_power(self.random)
        for process in self.processes:
            self.doom(process)

    def doom_current(self):
        """Kill the process that makes this call, before it is made."""
        if self.current.process is not None:
            self.doom(self.current.process)
            self._leave()

    def end_tasks(self, process):
        """The threads of a process (None: all) never run again; what they would do on their way out does nothing."""
        ended = [task for task in self.tasks if process is None or task.process is process]
        self.tasks = [task for task in self.tasks if task not in ended]
        self._runnable = [task for task in self._runnable if task not in ended]
        for task in ended:
            task.token += 1
            if task.greenlet:  # it has begun
                task.greenlet.throw(Killed)
            task.is_done = True
        self._sleeping = [each for each in self._sleeping if each[2].token == each[3]]
        heapq.heapify(self._sleeping)

    def wait_for(self, task):
        """Until a thread has ended, called by another."""
        while not task.is_done:
            self.block(task.joining)


# --- one process, as the library in it sees it


class Process:
    """A process with its own copy of the library; it begins anew in each machine.

    Args:
        modules: of the library, imported.

    Attributes:
        name, pid: it has in this machine. is_alive: it runs. open: descriptor -> `Description`.
        stopped: its threads that could run and do not, as after SIGSTOP; None: it runs.
    """

    def __init__(self, modules):
        self.machine, self.name, self.pid, self.is_alive, self.open = None, "", 0, False, {}
        self.stopped = None
        self.modules = _import_again(modules)
        self._fakes, self._patched, self._places = self._make_fakes(), [], {}
        _replace(self.modules.values(), self._fakes)
        self._state = _state_of(self.modules.values())

    def __getitem__(self, name):
        """A module of this process's copy of the library."""
        return self.modules[name]

    def patch(self, module, path, value):
        """Put ``value`` in the place of something in its copy of the library, until it begins anew.

        Args:
            module: its name.
            path: of the thing in it: a function's name, or a class and a method: ``Class.method``.
            value: a function of what is there now.
        """
        *homes, name = path.split(".")
        home = functools.reduce(getattr, homes, self[module])
        before = vars(home)[name]
        self._patched.append((home, name, before))
        setattr(home, name, value(before))

    def put_in_place_of(self, real, fake):
        """Put ``fake`` in the place of ``real`` wherever its copy of the library has it, until it begins anew."""
        if real not in self._places:
            self._places[real] = [
                (name, key)
                for name, module in self.modules.items()
                for key, value in vars(module).items()
                if value is real
            ]
        for name, key in self._places[real]:
            self.patch(name, key, lambda before: fake)

    def begin(self, machine, name, pid):
        """Begin to run, as a process that has just imported the library."""
        self.machine, self.name, self.pid, self.is_alive, self.open = machine, name, pid, True, {}
        self.stopped = None
        self._descriptors = itertools.count(3)
        machine.processes.append(self)
        while self._patched:
            setattr(*self._patched.pop())
        for put_back in self._state:
            put_back()
        self["wids.core.files.forks"].lock = self._fakes[id(_threading)].RLock()
        for function in self["wids.core.files.forks"]._functions:
            if function.__module__ != "wids.core.transport.filesystems":  # whose loop is this real process's
                function()

    def end(self):
        """It ends, or is killed: its files are closed, which frees their locks, and its threads do not run any more."""
        self.is_alive = False
        for fd in list(self.open):
            self._close(fd)
        self.machine.end_tasks(self)

    def spawn(self, act, name=""):
        """A thread of this process."""
        return self.machine.spawn(self, f"{self.name}{name and '/'}{name}", act)

    def step(self, name, about=""):
        """A thread of it is about to make a call: others may run first, it may be killed, the call may fail."""
        if not self.is_alive:
            raise Killed
        machine = self.machine
        machine.now += machine.tick
        machine.calls += 1
        if machine.calls >= machine.next_event or machine.faults or machine.trace is not None:
            machine.step(name, about)

    # --- files

    def _description(self, fd):
        found = self.open.get(fd)
        if found is None:
            raise _fault(errno.EBADF)
        return found

    def _close(self, fd):
        description = self.open.pop(fd)
        description.references -= 1
        if not description.references and type(description.file) is File:
            description.file.locks.pop(description, None)
            self._drop_unused(description.file)

    def _drop_unused(self, file):
        """The blocks of a file are free that has no name, and that nobody has open."""
        if not file.nlink and not any(
            each.file is file for process in self.machine.processes for each in process.open.values()
        ):
            self.machine.disk.drop(file)

    def open_file(self, path, flags, mode=0o777, *, dir_fd=None):
        """As `os.open`."""
        path = os.fspath(path)
        if "\0" in path:
            raise ValueError("embedded null byte")
        self.step("open", path)
        disk = self.machine.disk
        home, name = disk.home_of(path)
        file = home.entries.get(name) if name else home
        if file is None:
            if not flags & os.O_CREAT:
                raise _fault(errno.ENOENT, path)
            file = disk.make_file(path, mode & ~0o022)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise _fault(errno.EEXIST, path)
        elif type(file) is Directory and flags & (os.O_WRONLY | os.O_RDWR):
            raise _fault(errno.EISDIR, path)
        elif flags & os.O_TRUNC:
            disk.truncate(file, 0)
        return self._give_descriptor(Description(file, flags))

    def _give_descriptor(self, description):
        fd = next(self._descriptors)
        self.open[fd] = description
        description.references += 1
        return fd

    def close(self, fd):
        """As `os.close`; of a process that is dead it does nothing, for finalizers come late."""
        if not self.is_alive:
            return
        self.step("close", fd)
        self._description(fd)
        self._close(fd)

    def dup2(self, fd, other, inheritable=True):
        """As `os.dup2`."""
        self.step("dup2", fd)
        description = self._description(fd)
        if other in self.open:
            self._close(other)
        self.open[other] = description
        description.references += 1

    def pread(self, fd, count, offset):
        """As `os.pread`."""
        self.step("pread", fd)
        return bytes(self._description(fd).file.data[offset : offset + count])

    def pwrite(self, fd, data, offset):
        """As `os.pwrite`."""
        self.step("pwrite", fd)
        description, machine = self._description(fd), self.machine
        if not description.flags & (os.O_RDWR | os.O_WRONLY):
            raise _fault(errno.EBADF)
        if machine.short_rate and machine.random.random() < machine.short_rate:
            data = data[: (len(data) + 1) // 2]
        return machine.disk.write(description.file, bytes(data), offset)

    def ftruncate(self, fd, size):
        """As `os.ftruncate`."""
        self.step("ftruncate", fd)
        self.machine.disk.truncate(self._description(fd).file, size)

    def fsync(self, fd):
        """As `os.fsync`; it takes some time."""
        self.step("fsync", fd)
        self.machine.now += 1_000_000
        file = self._description(fd).file
        if type(file) is File:
            file.is_synced = True

    def lseek(self, fd, offset, whence):
        """As `os.lseek`."""
        description = self._description(fd)
        base = {os.SEEK_SET: 0, os.SEEK_CUR: description.position, os.SEEK_END: len(description.file.data)}[whence]
        description.position = base + offset
        return description.position

    def fstat(self, fd):
        """As `os.fstat`."""
        self.step("fstat", fd)
        return Status(self._description(fd).file)

    def stat(self, path, *, follow_symlinks=True, dir_fd=None):
        """As `os.stat`."""
        if type(path) is int:
            return self.fstat(path)
        self.step("stat", path)
        return Status(self.machine.disk.find(path))

    def exists(self, path):
        """As `os.path.exists`."""
        if type(path) is int:
            return path in self.open
        self.step("stat", path)
        return self.machine.disk.look_up(path) is not None

    def isdir(self, path):
        """As `os.path.isdir`."""
        self.step("stat", path)
        return type(self.machine.disk.look_up(path)) is Directory

    def isfile(self, path):
        """As `os.path.isfile`."""
        self.step("stat", path)
        return type(self.machine.disk.look_up(path)) is File

    def utime(self, path, times=None, *, ns=None):
        """As `os.utime`."""
        self.step("utime", path)
        node = self._description(path).file if type(path) is int else self.machine.disk.find(path)
        if times is None and ns is None:
            node.mtime = self.machine.disk._stamp()
        else:
            node.mtime = int(times[1] * _SECOND) if ns is None else ns[1]

    def unlink(self, path):
        """As `os.unlink`."""
        self.step("unlink", path)
        disk = self.machine.disk
        file = disk.find(path)
        disk.unlink(path)
        self._drop_unused(file)

    def replace(self, old, new):
        """As `os.replace`."""
        self.step("replace", f"{old} -> {new}")
        disk = self.machine.disk
        home, name = disk.home_of(new)
        before = home.entries.get(name)
        disk.replace(old, new)
        if before is not None:
            self._drop_unused(before)

    def mkdir(self, path, mode=0o777):
        """As `os.mkdir`."""
        self.step("mkdir", path)
        self.machine.disk.make_directory(path)

    def makedirs(self, path, mode=0o777, exist_ok=False):
        """As `os.makedirs`."""
        if not self.isdir(posixpath.dirname(path)):
            self.makedirs(posixpath.dirname(path), exist_ok=True)
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def listdir(self, path):
        """As `os.listdir`."""
        self.step("listdir", path)
        node = self.machine.disk.find(path)
        if type(node) is File:
            raise _fault(errno.ENOTDIR, path)
        return list(node.entries)

    @contextlib.contextmanager
    def scandir(self, path):
        """As `os.scandir`, in a block."""
        yield (_Entry(self, path, name) for name in self.listdir(path))

    def chmod(self, path, mode):
        """As `os.chmod` and `os.fchmod`."""
        self.step("chmod", path)
        node = self._description(path).file if type(path) is int else self.machine.disk.find(path)
        node.mode = stat.S_IFMT(node.mode) | mode

    def access(self, path, mode):
        """As `os.access`: nothing is forbidden."""
        return self.exists(path)

    def statvfs(self, path):
        """As `os.statvfs`."""
        self.step("statvfs", path)
        disk = self.machine.disk
        disk.find(path)
        return types.SimpleNamespace(
            f_bavail=max(disk.free, 0) // _BLOCK, f_frsize=_BLOCK, f_blocks=disk.capacity // _BLOCK
        )

    def flock(self, fd, operation):
        """As `fcntl.flock`, without waiting."""
        self.step("flock", fd)
        description = self._description(fd)
        locks = description.file.locks
        if operation & fcntl.LOCK_UN:
            locks.pop(description, None)
            return
        if not operation & fcntl.LOCK_NB:
            raise NotImplementedError("the simulation has no flock that waits")
        is_shared = bool(operation & fcntl.LOCK_SH)
        if locks.get(description) is is_shared:
            return
        locks.pop(description, None)  # a lock that is to be of the other kind goes first, as in Linux
        if locks and not (is_shared and all(locks.values())):
            raise _fault(errno.EWOULDBLOCK)
        locks[description] = is_shared

    def open_stream(self, file, mode="r", buffering=-1, encoding=None, errors=None, closefd=True):
        """As the built-in `open`, of bytes."""
        if mode not in ("rb", "r+b", "x+b") or (encoding is not None and not str(file).startswith(("/proc", "/sys"))):
            raise NotImplementedError(f"the simulation opens no file as {mode!r}")
        if type(file) is not int:
            flags = {"rb": os.O_RDONLY, "r+b": os.O_RDWR, "x+b": os.O_RDWR | os.O_CREAT | os.O_EXCL}[mode]
            file = self.open_file(file, flags, 0o666)
        return _Stream(self, file, closefd)

    # --- the modules

    def _make_fakes(self):
        """Identity of a module, or of a function that modules have taken from one -> what stands for it here."""
        path = _Fake(
            "os.path",
            {
                **_pick(posixpath, "join split dirname basename splitext commonpath isabs normpath sep"),
                **_pick(self, "exists isdir isfile"),
                **dict.fromkeys(("abspath", "realpath", "expanduser"), _same_path),
                "lexists": self.exists,
                "islink": lambda path: False,
                "getsize": lambda path: self.stat(path).st_size,
                "samestat": lambda one, other: one.st_ino == other.st_ino,
            },
        )
        calls = "close dup2 pread pwrite ftruncate fsync lseek fstat stat utime unlink replace mkdir makedirs listdir"
        system = _Fake(
            "os",
            {
                **_constants(os),
                **_pick(os, "fspath fsencode fsdecode strerror PathLike stat_result major minor sep"),
                **_pick(self, calls + " scandir chmod access statvfs"),
                "open": self.open_file,
                "fchmod": self.chmod,
                "lstat": self.stat,
                "rename": self.replace,
                "remove": self.unlink,
                "path": path,
                "environ": {},
                "getcwd": lambda: "/",
                "getpid": lambda: self.pid,
                "getppid": lambda: 1,
                **dict.fromkeys(("getuid", "geteuid"), _user),
                "cpu_count": lambda: 2,
                "uname": lambda: types.SimpleNamespace(nodename="simulated"),
            },
        )
        clock = _Fake(
            "time",
            {
                "time": lambda: self._tell() / _SECOND,
                "time_ns": self._tell,
                "monotonic": lambda: (self._tell() - _START) / _SECOND + 1000.0,
                "monotonic_ns": lambda: self._tell() - _START + 1000 * _SECOND,
                "perf_counter": lambda: (self._tell() - _START) / _SECOND,
                "sleep": self._sleep,
            },
        )
        threads = _Threads(self)
        fakes = {
            os: system,
            time: clock,
            fcntl: _Fake("fcntl", {**_constants(fcntl), "flock": self.flock}),
            _threading: threads.module,
            queue: _Fake("queue", {"SimpleQueue": threads.queue, "Queue": threads.queue, "Empty": queue.Empty}),
            _multiprocessing: _Fake("multiprocessing", {"parent_process": lambda: None}),
            secrets: _Fake("secrets", {"token_hex": self._draw_hex}),
            random: _Fake("random", {"uniform": lambda lo, hi: lo + (hi - lo) * self.machine.random.random()}),
            resource: _Fake("resource", {**_constants(resource), "getrlimit": lambda which: (64, 64)}),
            _tempfile: _Fake("tempfile", {"gettempdir": lambda: "/tmp"}),
            _atexit: _Fake("atexit", {"register": lambda function: None, "unregister": lambda function: None}),
            _mmap: _Fake("mmap", {**_constants(_mmap), "mmap": _no_maps}),
            _shutil: _Fake("shutil", {}),
            _glob: _Fake("glob", {"has_magic": _glob.has_magic}),
            os.pread: self.pread,
            os.pwrite: self.pwrite,
            os.getuid: _user,
            open: self.open_stream,
            logging.getLogger("wids"): _SILENT,
        }
        return {id(real): fake for real, fake in fakes.items()}

    def _tell(self):
        self.machine.now += 1000
        return self.machine.now

    def _draw_hex(self, count):
        return f"{self.machine.random.getrandbits(8 * count):0{2 * count}x}"

    def _sleep(self, seconds):
        self.step("sleep", seconds)
        self.machine.sleep(seconds)


def _user():
    return 1000


def _same_path(path):
    path = os.fspath(path)
    if not path.startswith("/") or path.startswith("~"):
        raise NotImplementedError(f"the simulation has no relative paths: {path!r}")
    return path


def _pick(home, names):
    return {name: getattr(home, name) for name in names.split()}


def _constants(module):
    return {name: getattr(module, name) for name in dir(module) if name.isupper() or name[:2] == "O_"}


def _no_maps(*args, **options):
    raise _fault(errno.ENODEV)


class _Fake:
    """What stands for a module; it has what is given, and nothing else."""

    def __init__(self, name, members):
        self.__dict__.update(members)
        self.__dict__["_name"] = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(f"the simulation has no {self._name}.{name}")


class _Entry:
    """As `os.DirEntry`."""

    def __init__(self, process, home, name):
        self._process, self.path, self.name = process, f"{home}/{name}", name

    def stat(self, *, follow_symlinks=True):
        """See `os.DirEntry.stat`."""
        return self._process.stat(self.path)

    def is_file(self, *, follow_symlinks=True):
        """See `os.DirEntry.is_file`."""
        return self._process.isfile(self.path)

    def is_dir(self, *, follow_symlinks=True):
        """See `os.DirEntry.is_dir`."""
        return self._process.isdir(self.path)


class _Stream:
    """As `io.FileIO`, for reading; it closes its descriptor when it goes."""

    def __init__(self, process, fd, closefd):
        self._process, self._fd, self._owns = process, fd, closefd

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def fileno(self):
        """Its descriptor."""
        return self._fd

    def read(self, size=-1):
        """From where it stands."""
        description = self._process._description(self._fd)
        data = self._process.pread(self._fd, len(description.file.data) if size < 0 else size, description.position)
        description.position += len(data)
        return data

    def seek(self, offset, whence=os.SEEK_SET):
        """Stand elsewhere."""
        return self._process.lseek(self._fd, offset, whence)

    def close(self):
        """Close its descriptor, if it owns it."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._owns:
            self._process.close(fd)


class _Threads:
    """``threading`` and ``queue`` of a process."""

    def __init__(self, process):
        self.process = process
        make = functools.partial
        self.queue = make(_Queue, process)
        self.module = _Fake(
            "threading",
            {
                "Thread": make(_Thread, process),
                "Lock": make(_Lock, process),
                "RLock": make(_Lock, process, is_reentrant=True),
                "Event": make(_Event, process),
                "Condition": make(_Condition, process),
                "get_ident": lambda: id(process.machine.current),
                "current_thread": lambda: _Current(process.machine.current),
            },
        )


class _Current:
    """The thread that asks who it is."""

    def __init__(self, task):
        self._task = task

    def __eq__(self, other):
        return getattr(other, "_task", None) is self._task

    def __hash__(self):
        return hash(self._task)


class _Thread(_Current):
    """As `threading.Thread`."""

    def __init__(self, process, group=None, target=None, name="", args=(), kwargs=None, *, daemon=None):
        super().__init__(None)
        self._process, self._act = process, functools.partial(target, *args, **(kwargs or {}))
        self.name, self.daemon, self.ident = name, daemon, None

    def start(self):
        """See `threading.Thread.start`."""
        self._process.step("thread", self.name)
        self._task = self._process.spawn(self._act, self.name)
        self.ident = id(self._task)

    def is_alive(self):
        """See `threading.Thread.is_alive`."""
        return self._task is not None and not self._task.is_done

    def join(self, timeout=None):
        """See `threading.Thread.join`."""
        self._process.step("join", self.name)
        if self.is_alive() and (timeout is None or timeout > 0):
            self._process.machine.block(self._task.joining, timeout)


_NOBODY = object()


class _Lock:
    """As `threading.Lock` and `threading.RLock`."""

    def __init__(self, process, *, is_reentrant=False):
        self._process, self._is_reentrant = process, is_reentrant
        self._owner, self._count, self._waiting = _NOBODY, 0, []

    def acquire(self, blocking=True, timeout=-1):
        """See `threading.Lock.acquire`."""
        process = self._process
        if not process.is_alive:
            return True
        machine = process.machine
        me = machine.current
        if self._owner is me and self._is_reentrant:
            self._count += 1
            return True
        ends = None if timeout < 0 else machine.now + int(timeout * _SECOND)
        while self._owner is not _NOBODY:
            if not blocking or (ends is not None and machine.now >= ends):
                return False
            machine.block(self._waiting, None if ends is None else (ends - machine.now) / _SECOND)
        self._owner, self._count = me, 1
        return True

    def release(self):
        """See `threading.Lock.release`."""
        if not self._process.is_alive:
            return
        if self._owner is _NOBODY:
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = _NOBODY
            self._process.machine.wake(self._waiting)

    def locked(self):
        """See `threading.Lock.locked`."""
        return self._owner is not _NOBODY

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class _Event:
    """As `threading.Event`, with the lock that it has: what comes in the middle of a wait may not set it."""

    def __init__(self, process):
        self._process, self._is_set, self._waiting = process, False, []
        self._lock = _Lock(process)

    def is_set(self):
        """See `threading.Event.is_set`."""
        return self._is_set

    def set(self):
        """See `threading.Event.set`."""
        with self._lock:
            if self._process.is_alive:
                self._is_set = True
                self._process.machine.wake(self._waiting)

    def clear(self):
        """See `threading.Event.clear`."""
        self._is_set = False

    def wait(self, timeout=None):
        """See `threading.Event.wait`."""
        with self._lock:
            self._process.step("wait")
        if not self._is_set:
            self._process.machine.block(self._waiting, timeout)
        return self._is_set


class _Condition:
    """As `threading.Condition`."""

    def __init__(self, process, lock=None):
        self._process, self._waiting = process, []
        self._lock = _Lock(process, is_reentrant=True) if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self):
        return self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()

    def wait(self, timeout=None):
        """See `threading.Condition.wait`."""
        self._process.step("wait")
        count, self._lock._count = self._lock._count, 1
        self._lock.release()
        is_woken = self._process.machine.block(self._waiting, timeout)
        self._lock.acquire()
        self._lock._count = count
        return is_woken

    def wait_for(self, predicate, timeout=None):
        """See `threading.Condition.wait_for`."""
        machine = self._process.machine
        ends = None if timeout is None else machine.now + int(timeout * _SECOND)
        while not (found := predicate()):
            left = None if ends is None else (ends - machine.now) / _SECOND
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n=1):
        """See `threading.Condition.notify`."""
        woken, self._waiting[:n] = self._waiting[:n], []
        self._process.machine.wake(woken)

    def notify_all(self):
        """See `threading.Condition.notify_all`."""
        self._process.machine.wake(self._waiting)


class _Queue:
    """As `queue.SimpleQueue`."""

    def __init__(self, process):
        self._process, self._items, self._waiting = process, [], []

    def put(self, item):
        """See `queue.SimpleQueue.put`."""
        self._items.append(item)
        if self._process.is_alive:
            self._process.machine.wake(self._waiting)

    def get(self, block=True, timeout=None):
        """See `queue.SimpleQueue.get`."""
        self._process.step("get")
        while not self._items:
            if not block or (timeout is not None and not self._process.machine.block(self._waiting, timeout)):
                raise queue.Empty
            if timeout is None:
                self._process.machine.block(self._waiting)
        return self._items.pop(0)

    def get_nowait(self):
        """See `queue.SimpleQueue.get_nowait`."""
        return self.get(block=False)

    def empty(self):
        """See `queue.SimpleQueue.empty`."""
        return not self._items

    def qsize(self):
        """See `queue.SimpleQueue.qsize`."""
        return len(self._items)


# --- copies of the library

_threading, _multiprocessing, _tempfile = (
    importlib.import_module(name) for name in ("threading", "multiprocessing", "tempfile")
)
_atexit, _mmap, _shutil, _glob = (importlib.import_module(name) for name in ("atexit", "mmap", "shutil", "glob"))
_SILENT = logging.getLogger("simulated")
_SILENT.setLevel(logging.CRITICAL + 1)


def _is_ours(name):
    return name == "wids" or name.startswith("wids.")


def _import_again(names):
    """Name -> module of the library, in a copy that has nothing in common with those that were imported before."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    logger = logging.getLogger("wids")
    handlers, filters = logger.handlers[:], logger.filters[:]
    try:
        for name in names:
            importlib.import_module(name)
        found = {name: module for name, module in sys.modules.items() if _is_ours(name)}
    finally:
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
        logger.handlers[:], logger.filters[:] = handlers, filters
    for name in found:  # msgspec looks for the names in a struct's annotations in the module of this name
        importlib.import_module(name)
    return found


def _replace(modules, fakes):
    """Put what stands for them in the place of modules and functions of the system."""
    for module in modules:
        module.open = fakes[id(open)]
        for name, value in list(vars(module).items()):
            if id(value) in fakes and value is not fakes[id(value)]:
                setattr(module, name, fakes[id(value)])


def _state_of(modules):
    """Functions that put what modules keep in variables of their own back into the state that it has now."""
    found = []
    for value in {id(value): value for module in modules for value in vars(module).values()}.values():
        if isinstance(value, (set, dict, list)):
            found.append(functools.partial(_refill, value, value.copy()))
        elif isinstance(value, (weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
            found.append(value.clear)
        elif isinstance(value, functools._lru_cache_wrapper):
            found.append(value.cache_clear)
    return found


def _refill(value, kept):
    if value != kept:
        value.clear()
        value.extend(kept) if isinstance(value, list) else value.update(kept)
