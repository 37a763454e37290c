"""The command line as tests run it: `run` in this process, `spawn` in one of its own.

`run` is the rule. `spawn` is for what only a process has: signals, closed descriptors, being killed, what it imports.
Both give a program the same surroundings: a width, no $WIDS_DEBUG, SIGINT and SIGHUP that end it, although whatever
launched the tests (nohup, a shell's background) may ignore them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import NamedTuple

import typer.main

from tests.support.clocks import PATIENCE_SECONDS
from tests.support.paths import ROOT
from wids.tools import cli
from wids.tools.cli import main

# To make all commands from their functions, for each that runs, took half of the time of the tests that use `run`. They
# are what they were; processes of their own make them anew.
typer.main.get_command_from_info = functools.cache(typer.main.get_command_from_info)

# What a spawned program begins with.
_START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
{before}
if __name__ == "__main__":  # not in the processes that it spawns
    from wids.tools.cli import main
    main()
"""
_SURROUNDINGS = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "WIDS_DEBUG": "0"}


def whole_command():
    """The command ``wids`` with all commands in it, none of them as its group has them before they are asked for."""
    command = typer.main.get_command(cli.app)
    command.commands = {name: cli.load(name) for name in cli.COMMANDS}
    return command


class Done(NamedTuple):
    """How a command ended and what it printed; ``out`` is bytes where a test asks for these."""

    code: int
    out: str | bytes
    err: str


def run(*args, env=None, given=b"", is_text=True, has_traceback=False) -> Done:
    """Run a command in this process, which is afterwards as before; there is never a traceback unless one is expected.

    Args:
        args: the command line after ``wids``.
        env: more environment variables.
        given: what it reads from stdin.
        is_text: False: its output as bytes.
        has_traceback: whether it shows one.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given if isinstance(given, bytes) else given.encode())
        stdin.seek(0)
        with _surroundings(args, env or {}), _standard_files(stdin.fileno(), stdout.fileno(), stderr.fileno()):
            code = _run_main()
        out, err = (_read(file) for file in (stdout, stderr))
    err = err.decode(errors="backslashreplace")
    assert ("Traceback" in err) == has_traceback, err
    return Done(code, out.decode(errors="backslashreplace") if is_text else out, err)


def run_ok(*args, **options) -> str:
    """What a command prints that succeeds and has nothing to complain of."""
    code, out, err = run(*args, **options)
    assert (code, err) == (0, "")
    return out


def complaint(code, *args, **options) -> str:
    """What a command complains of, in one line, when it ends with ``code`` and prints nothing."""
    done, out, err = run(*args, **options)
    assert (done, out) == (code, "")
    return in_one_line(err)


def in_one_line(err) -> str:
    """The words of a complaint, without the frame that wrong usage has around it."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())


def run_on_terminal(*args, env=None, stdout=None) -> tuple[int, str]:
    """Run a command in this process, with a terminal (but ``stdout``, if given): its exit code, and what is shown.

    ``env``: variables that are set, or unset (None).
    """
    ours, its = pty.openpty()
    shown = []
    reader = threading.Thread(target=_read_terminal, args=(ours, shown))
    try:
        reader.start()
        try:
            out = its if stdout is None else stdout.fileno()
            with _surroundings(args, {"TERM": "xterm-256color", **(env or {})}), _standard_files(its, out, its):
                code = _run_main()
        finally:
            os.close(its)
            reader.join(PATIENCE_SECONDS)
    finally:
        os.close(ours)
    text = b"".join(shown).decode()
    assert "Traceback" not in text
    return code, text


@contextlib.contextmanager
def spawn(*args, before="", env=None, **options):
    """Start a command in a process of its own, give the process, and end it with the block.

    Args:
        args: the command line after ``wids``.
        before: lines that stand before the command line.
        env: more environment variables.
        options: for `subprocess.Popen`.
    """
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", _START.format(before=before), *map(str, args)],
        env={**os.environ, **_SURROUNDINGS, **(env or {})},
        **{"stdin": subprocess.DEVNULL, "text": True, **pipes, **options},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_apart(*args, **options) -> Done:
    """`run` in a process of its own; takes the options of `spawn`."""
    with spawn(*args, **options) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err
    return Done(process.returncode, out, err)


def living(mark):
    """The command lines of the processes that have this in their environment, zombies aside."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            place = Path("/proc", number)
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark.encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes())
    return found


def _run_main() -> int:
    try:
        try:
            main()
        except SystemExit as left:
            code = left.code
        except BaseException:
            traceback.print_exc()
            code = 1
        else:
            code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code or 0


@contextlib.contextmanager
def _surroundings(args, env):
    """The arguments, environment, directory, signals and log of a fresh process; afterwards those of the tests."""
    argv, environment, directory, temporary = sys.argv, dict(os.environ), os.getcwd(), tempfile.tempdir
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    # pytest's handlers would keep warnings from stderr, where a program without any has them.
    root, log_handlers = logging.getLogger(), logging.getLogger().handlers[:]
    sys.argv = ["wids", *map(str, args)]
    for name, value in {**_SURROUNDINGS, **env}.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None  # as $TMPDIR says by now
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = log_handlers
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv, tempfile.tempdir = argv, temporary


@contextlib.contextmanager
def _standard_files(*descriptors):
    """Descriptors 0, 1 and 2 are these, for child processes too, and what ``sys`` has of them."""
    files = sys.stdin, sys.stdout, sys.stderr
    for file in files[1:]:
        file.flush()
    saved = [os.dup(number) for number in range(3)]
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        options = {"encoding": os.environ.get("PYTHONIOENCODING", "utf-8"), "closefd": False}
        with (
            open(0, **options) as sys.stdin,
            open(1, "w", **options) as sys.stdout,
            open(2, "w", buffering=1, errors="backslashreplace", **options) as sys.stderr,
        ):
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = files
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _read(file) -> bytes:
    file.seek(0)
    return file.read()


def _read_terminal(descriptor, shown) -> None:
    """What comes until the other side is closed, which is an OSError (EIO)."""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 65536):
            shown.append(data)
