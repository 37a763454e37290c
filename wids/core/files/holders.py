"""The processes that hold locks on files, for people: from /proc on Linux, from lsof and ps elsewhere.

Rules: an answer may be incomplete, for the processes of other containers are not seen, and nothing is decided by it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec

from wids.errors import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_PROC = "/proc"
# "1: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF"; a line with "->" is of a process that waits for the lock.
_LOCK = re.compile(rb"[0-9]+: FLOCK +\S+ +\S+ +([0-9]+) ([0-9a-f]+):([0-9a-f]+):([0-9]+) ")
# A command line has an end; the holders of other files are mostly the same.
_MAX_FILES, _MAX_PROGRAM, _TOOL_SECONDS = 256, 60, 10.0


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds locks on files.

    Attributes:
        pid: its number.
        program: its command line, shortened; "": not known.
        started_seconds: time of its start, in seconds since 1970; None: not known.
        is_orphan: its parent is process 1: the program that started it has ended (a job that was killed leaves its
            loader's workers behind), or is process 1 itself.
        files: the files, by the paths that were asked about.
    """

    pid: int
    program: str
    started_seconds: float | None
    is_orphan: bool
    files: list[str]

    def __str__(self) -> str:
        words = [f"process {self.pid}" + (f" ({self.program})" if self.program else "")]
        if self.started_seconds is not None:
            words.append(time.strftime("started %Y-%m-%d %H:%M", time.localtime(self.started_seconds)))
        if self.is_orphan:
            words.append("whose parent is process 1: what started it has ended, or is that")
        return ", ".join(words)


def find_holders(paths: Iterable[str]) -> list[Holder]:
    """The processes that hold locks on some of these files, as far as they can be seen; by their numbers."""
    chosen = list(paths)
    if not chosen:
        return []
    if os.path.exists(f"{_PROC}/locks"):
        return [describe(pid, files) for pid, files in sorted(_listed_locks(chosen).items())]
    return list(_ask_tools(chosen))


def list_locks(path: str) -> dict[int, list[int]] | None:
    """The processes that hold locks on files of a path's file system: inode -> ids; None: the kernel lists none.

    Raises:
        OSError: no such path exists.
    """
    if not os.path.exists(f"{_PROC}/locks"):
        return None
    file_device = os.stat(path).st_dev
    pids: dict[int, list[int]] = {}
    for pid, device, inode in _read_locks():
        if _is_on(file_device, device) and pid not in pids.setdefault(inode, []):
            pids[inode].append(pid)
    return pids


def _listed_locks(paths: Sequence[str]) -> dict[int, list[str]]:
    """The files that each process has locked, by its number, from the kernel's list of locks."""
    by_inode: dict[int, list[tuple[str, int]]] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            by_inode.setdefault(status.st_ino, []).append((path, status.st_dev))
    by_pid: dict[int, list[str]] = {}
    for pid, device, inode in _read_locks():
        for path, file_device in by_inode.get(inode, ()):
            if _is_on(file_device, device):
                held = by_pid.setdefault(pid, [])
                held += [] if path in held else [path]
    return by_pid


def _read_locks() -> Iterator[tuple[int, int, int]]:
    """(id of the process, device, inode) of each lock."""
    try:
        with open(f"{_PROC}/locks", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for match in filter(None, map(_LOCK.match, lines)):
        yield int(match[1]), os.makedev(int(match[2], 16), int(match[3], 16)), int(match[4])


def _is_on(file_device: int, device: int) -> bool:
    """True if a file's device is that of the list, which lacks the numbers of subvolumes and overlays."""
    return file_device == device or not os.major(file_device)


def describe(pid: int, files: list[str]) -> Holder:
    """A process that holds locks on these files, as far as it can be seen, from /proc."""
    program, started, parent = "", None, None
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
        program, fields = os.fsdecode(name), rest.split()
        parent = int(fields[1])
        with open(f"{_PROC}/stat", "rb") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):
        with open(f"{_PROC}/{pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
        program = os.fsdecode(b" ".join(words)) or program
    return Holder(pid=pid, program=_shown(program), started_seconds=started, is_orphan=parent == 1, files=sorted(files))


def _ask_tools(paths: Sequence[str]) -> Iterator[Holder]:
    """The same from the programs that macOS and the BSDs have; every process that has a file open counts."""
    real = {os.path.realpath(path): path for path in paths[:_MAX_FILES]}
    held: dict[int, list[str]] = {}
    pid = 0
    for line in _run(["lsof", "-w", "-F", "pn", "--", *real]):
        if line.startswith("p"):
            pid = int(line[1:])
        elif line.startswith("n") and line[1:] in real:
            held.setdefault(pid, []).append(real[line[1:]])
    held.pop(os.getpid(), None)
    processes = dict(_list_processes(held))
    for number, files in sorted(held.items()):
        parent, started, program = processes.get(number, (0, None, ""))
        yield Holder(
            pid=number,
            program=_shown(program),
            started_seconds=started,
            is_orphan=parent == 1,
            files=sorted(set(files)),
        )


def _list_processes(pids: Mapping[int, object]) -> Iterator[tuple[int, tuple[int, float | None, str]]]:
    if not pids:
        return
    # Each has its parent, then when it was started in five words: "Tue Nov 25 03:12:57 2025".
    for line in _run(["ps", "-ww", "-o", "pid=,ppid=,lstart=,command=", "-p", ",".join(map(str, pids))]):
        with contextlib.suppress(ValueError):
            pid, parent, *day, program = line.split(None, 7)
            yield int(pid), (int(parent), time.mktime(time.strptime(" ".join(day), "%a %b %d %H:%M:%S %Y")), program)


def _run(command: Sequence[str]) -> list[str]:
    """The lines that a program prints; none if the program does not exist."""
    try:
        done = subprocess.run(  # noqa: S603 - of the system, without a shell
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TOOL_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return os.fsdecode(done.stdout).splitlines()


def _shown(program: str) -> str:
    """A command line as a log may have it: in one line, short, without the secrets of URLs."""
    text = without_secrets("".join(letter if letter.isprintable() else "?" for letter in program))
    return text if len(text) <= _MAX_PROGRAM else text[: _MAX_PROGRAM - 3] + "..."
