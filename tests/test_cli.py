"""The command line as a whole: help, version, exit codes, errors in one line, and what it must not import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import wids
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


def test_names_that_stdout_cannot_show():
    """A file name that the encoding of stdout lacks is shown escaped, and the command goes on."""
    done = run("show", code=FAILING, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "h\\xe9ron\\udcff\n", "")


def test_exit_code_of_a_command_stands():
    """A command that leaves by SystemExit keeps its exit code."""
    assert run("leave", code=FAILING).returncode == 143
