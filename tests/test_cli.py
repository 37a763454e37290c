"""The command line as a whole: help, version, exit codes, errors in one line, and what it must not import."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import wids
from tests.shards import serve, write_index
from wids import cli
from wids.cli import main

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A command line with commands that fail in every way.
FAILING = """
import sys
from wids import cli, errors

@cli.app.command()
def fetch():
    raise errors.FetchError("http://h/x.tar: gone\\nfor good")

@cli.app.command()
def stop():
    raise KeyboardInterrupt

@cli.app.command()
def leave():
    raise SystemExit(143)

@cli.app.command()
def show():
    print("h\\xe9ron" + "\\udcff")

cli.main()
"""


def run(*args, code=None, **env):
    """Run the command line, or a program, in a process of its own."""
    program = ["-m", "wids.cli"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *program, *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, "COLUMNS": "100", **env},
        timeout=60,
    )


def test_version():
    """`wids --version` prints the package's version and nothing else."""
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wids {wids.__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(args, capsys, monkeypatch):
    """`wids` alone, --help and -h show the same help with every command, and succeed."""
    monkeypatch.setattr(sys, "argv", ["wids", *args])
    with pytest.raises(SystemExit) as left:
        main()
    shown = capsys.readouterr().out
    assert not left.value.code
    assert "Usage: wids" in shown
    assert "demo" in shown
    assert "--debug" in shown


def test_help_is_light():
    """The command line and its help bring in neither torch nor numpy nor PIL nor fsspec."""
    done = run(
        code="import atexit, sys; from wids.cli import main; sys.argv = ['wids', '--help']; "
        "atexit.register(lambda: print('heavy:', {'torch', 'numpy', 'PIL', 'fsspec', 'aiohttp'} & set(sys.modules))); "
        "main()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: set()"


def test_unknown_command_is_wrong_usage():
    """A misspelt command is exit code 2 and names itself."""
    done = run("demmo")
    assert done.returncode == 2
    assert "demmo" in done.stderr


def test_error_is_one_line():
    """A WidsError becomes one line on stderr and exit code 1, without a traceback."""
    done = run("fetch", code=FAILING)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "wids: http://h/x.tar: gone for good\n")


@pytest.mark.parametrize(
    ("args", "env"), [(("--debug", "fetch"), {}), (("fetch", "--debug"), {}), (("fetch",), {"WIDS_DEBUG": "1"})]
)
def test_debug_shows_the_traceback(args, env):
    """--debug before or behind the command, or $WIDS_DEBUG, lets the traceback through."""
    done = run(*args, code=FAILING, **env)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "in fetch" in done.stderr


def test_interrupt_is_130():
    """Ctrl-C in any command is exit code 130 and one line."""
    done = run("stop", code=FAILING)
    assert (done.returncode, done.stderr) == (130, "wids: interrupted\n")


def test_an_interrupt_before_the_command_runs(monkeypatch, capsys):
    """Ctrl-C while the commands' options are made ends as it does in a command: a line, no traceback."""

    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setenv("WIDS_DEBUG", "0")
    with pytest.raises(SystemExit) as left:
        main()
    assert (left.value.code, capsys.readouterr().err) == (130, "wids: interrupted\n")


# Says so when the commands are loaded: a signal before that is Python's own, while it starts.
STARTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from wids.cli import main
os.write(int(sys.argv.pop(1)), b"x")
main()
"""
# Command -> its arguments; {source} is a directory with an index, {url} the same behind HTTP.
COMMANDS = {
    "create": "index create {source} -o {out}/i.json",
    "create remote": "index create {url}/s0.tar {url}/s1.tar -o {out}/i.json --members",
    "update": "index update {out}/copy/index.json --add {source}/s1.tar",
    "merge": "index merge {source}/index.json {source}/index.json -o {out}/m.json",
    "split": "index split {source}/index.json --by 1 -o {out}/part-{{}}.json",
    "rebase": "index rebase {out}/copy/index.json -b gs://x/",
    "info": "info {url}/index.json --fetch",
    "ls": "ls {url}/index.json --fetch",
    "show": "show {url}/index.json 5",
    "cat": "cat {url}/index.json 5 txt",
    "locate": "locate {source}/index.json 5",
    "at": "at {source}/index.json --step 1",
    "when": "when {source}/index.json 5",
    "verify": "verify {source}/index.json --decode",
    "simulate": "simulate {source}/index.json",
    "pack": "pack {source}/index.json -o {out}/p-%d.tar --samples 1 --jobs 2",
    "warm": "cache warm {url}/index.json",
    "clean": "cache clean {out}/copy --all",
    "cache ls": "cache ls {out}/copy",
    "daemon": "cache daemon {out}/copy --max-size 1GB",
}


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


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="sees processes through /proc")
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 1) for name in ("create remote", "ls", "verify", "pack", "warm", "daemon")),
        *(pytest.param(name, 20, marks=pytest.mark.long) for name in COMMANDS),
    ],
)
def test_a_signal_at_any_moment(tmp_path, name, rounds):
    """SIGINT and SIGTERM end a command soon, without a traceback, half a file, or a process that goes on."""
    seed = random.randrange(10**9)
    random_ = random.Random(seed)
    write_index(tmp_path / "source", (9,) * 6)
    with serve(tmp_path / "source") as server:
        for round_ in range(rounds):
            place, mark = tmp_path / str(round_), f"mark-{seed}-{round_}"
            for directory in ("out", "tmp", "cache"):
                (place / directory).mkdir(parents=True)
            shutil.copytree(tmp_path / "source", place / "out/copy")
            given = {"source": tmp_path / "source", "out": place / "out", "url": server.url}
            args = [part.format(**given) for part in COMMANDS[name].split()]
            seen, told = os.pipe()
            process = subprocess.Popen(
                [sys.executable, "-c", STARTED, str(told), *args],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=[told],
                env={
                    **os.environ,
                    "PYTHONPATH": ROOT,
                    "WIDS_DEBUG": "0",
                    "WIDS_CACHE": str(place / "cache"),
                    "TMPDIR": str(place / "tmp"),
                    "MARK": mark,
                },
            )
            os.close(told)
            os.read(seen, 1)
            os.close(seen)
            number = random_.choice([signal.SIGINT, signal.SIGTERM])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(random_.random() * 1.5)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            # It may have been done; or Python was starting to run it, or had begun to end, and died of the signal.
            assert process.returncode in (0, 128 + number, -number), (seed, round_, out, err)
            assert not [word for word in ("Traceback", "Exception ignored") if word in err], (seed, round_, err)
            end = time.monotonic() + 30
            while (left := living(mark)) and time.monotonic() < end:  # who was left alone notices, and ends
                time.sleep(0.05)
            assert left == [], (seed, round_)
            assert os.listdir(place / "tmp") == [], (seed, round_)
            names = [file.name for file in place.rglob("*")]
            assert not [file for file in names if file.endswith((".part", ".tmp"))], (seed, round_)
            for file in place.rglob("*.json"):
                json.loads(file.read_text())


def test_names_that_stdout_cannot_show():
    """A file name that the encoding of stdout lacks is shown escaped, and the command goes on."""
    done = run("show", code=FAILING, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "h\\xe9ron\\udcff\n", "")


def test_exit_code_of_a_command_stands():
    """A command that leaves by SystemExit keeps its exit code."""
    assert run("leave", code=FAILING).returncode == 143


# Source the script that the command line shows, and complete a line whose last word the cursor is on, as bash does.
COMPLETE = """
script="$(wids --show-completion)" || exit 3
eval "$script"
complete -p wids || exit 4
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_wids_completion wids
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def program(tmp_path):
    """A directory with the program ``wids``, for $PATH."""
    path = tmp_path / "bin" / "wids"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wids.cli "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.parent)


def shell(script, *words, path, **env):
    """Run a script of bash, with ``wids`` in its $PATH; its arguments are words."""
    return subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, "PATH": f"{path}:{os.environ['PATH']}", **env},
        timeout=60,
    )


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("wids ind", ["index"]),
        ("wids index cr", ["create"]),
        ("wids verify --no-d", ["--no-digest"]),
        ("wids show train.json 7 --pre", ["--preview"]),
        ("wids show train.json -1 --pre", ["--preview"]),
        ("wids index create x.tar --engine th", ["threads"]),
        ("wids pack photos --format f", ["folder", "files"]),
        ("wids verify --key-rule last", ["last-dot"]),
        ("wids cache clean --max-size much --dry", ["--dry-run"]),
        ("wids --version ve", ["verify"]),
        ("wids verify tr", []),
    ],
)
def test_bash_completes(line, offered, program):
    """Bash offers commands, options and choices, whatever stands before; where there are none, files."""
    done = shell(COMPLETE, *line.split(), path=program, WIDS_STORAGE_OPTIONS="not JSON")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n", 1)[0] == "complete -o default -F _wids_completion wids"
    assert done.stdout.split()[6:] == offered


@pytest.mark.parametrize(
    ("name", "answer", "files"),
    [
        ("zsh", """_arguments '*: :(("create":"Write the index of a dataset''s shards."))'""", "_files"),
        ("fish", "create\tWrite the index of a dataset's shards.", ""),
    ],
)
def test_other_shells_complete(name, answer, files):
    """Scripts for zsh and fish call the program, and what it answers to them is theirs."""
    shown = run("--show-completion", name, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"_WIDS_COMPLETE=complete_{name}" in shown.stdout
    asked = {"_WIDS_COMPLETE": f"complete_{name}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert run(_TYPER_COMPLETE_ARGS="wids index cr", **asked).stdout.strip() == answer
    assert run(_TYPER_COMPLETE_ARGS="wids info ", **asked).stdout.strip() == files


def test_completion_is_installed(program, tmp_path):
    """--install-completion puts the script where the shell finds it, and a new shell completes."""
    home = {"HOME": str(tmp_path), "path": program}
    done = shell("wids --install-completion; echo $?", **home)
    assert (done.stdout.split()[-1], done.stderr) == ("0", "")
    again = 'source ~/.bashrc; COMP_WORDS=(wids ver) COMP_CWORD=1; _wids_completion wids; echo "${COMPREPLY[@]}"'
    assert shell(again, **home).stdout == "verify\n"


def test_completion_that_cannot_be_installed(program, tmp_path):
    """It is one line, and exit code 1."""
    (tmp_path / ".bashrc").mkdir()
    done = shell("wids --install-completion; exit $?", path=program, HOME=str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("wids: ")
