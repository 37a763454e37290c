"""The command line as a whole: help, version, exit codes, errors in one line, and what it must not import."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

import wids
from tests.support import paths, tools
from tests.support.cli import PATIENCE_SECONDS, living, run, run_apart, run_ok, spawn
from tests.support.clocks import wait_until
from tests.support.launch import run_script
from tests.support.shards import serve, write_index, write_shard
from wids.errors import FetchError
from wids.tools import cli
from wids.tools.cli.signals import EndedBySignal, Signals

ROOT = str(paths.ROOT)


@pytest.fixture
def failing(monkeypatch):
    """Commands that fail in every way are there, too."""

    def fetch():
        raise FetchError("http://h/x.tar: gone\nfor good")

    def stop():
        raise KeyboardInterrupt

    def leave():
        raise SystemExit(143)

    def show():
        print("h\xe9ron" + "\udcff")  # noqa: T201 - as commands do

    monkeypatch.setattr(cli.app, "registered_commands", cli.app.registered_commands[:])
    for command in (fetch, stop, leave, show):
        cli.app.command()(command)


def test_version():
    """`wids --version` prints the package's version and nothing else."""
    assert run("--version") == (0, f"wids {wids.__version__}\n", "")


@pytest.mark.parametrize("module", ["wids", "wids.tools.cli"])
def test_as_a_module(module):
    """`python -m wids` is `wids`, where no script was installed."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wids {wids.__version__}\n", "")


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(args):
    """`wids` alone, --help and -h show the same help with every command, and succeed."""
    shown = run_ok(*args)
    assert "Usage: wids" in shown
    assert "demo" in shown
    assert "--debug" in shown


def test_help_is_light():
    """The command line and its help bring in neither torch nor numpy nor PIL nor fsspec, nor a command's own module."""
    modules = {f"wids.tools.cli.{module}" for module, _ in cli.COMMANDS.values()}
    heavy = f"{ ({'torch', 'numpy', 'PIL', 'fsspec', 'aiohttp'} | modules)!r} & set(sys.modules)"
    before = f"import atexit, sys; atexit.register(lambda: print('heavy:', {heavy}))"
    code, out, err = run_apart("--help", before=before)
    assert (code, out.splitlines()[-1], err) == (0, "heavy: set()", "")


def test_unknown_command_is_wrong_usage():
    """A misspelt command is exit code 2 and names itself."""
    code, _, err = run("demmo")
    assert code == 2
    assert "demmo" in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("columns create INDEX --json caption", "--json: 'caption' names no keys"),
        ("columns create INDEX --json .json:", "--json: '.json:' names no keys"),
        ("columns create INDEX --json :a", "--json: ':a' names no field"),
        ("columns create INDEX --field =x", "--field: '=x' names no field"),
        ("columns create INDEX --text .", "--text: '.' names no field"),
        ("columns create INDEX --field .cls=shard", "two columns would be called 'shard'"),
        ("columns create INDEX --field .cls=a --text .txt=A", "two columns would be called 'A'"),
        ("columns create INDEX -o x.tar", "x.tar: give a file whose name ends in .parquet"),
        ("index create s0.tar -o q1.tar", "q1.tar: an index is a JSON file"),
        ("index create s0.tar -o q1.widsx", "q1.widsx: this is the name of a compiled index"),
        ("index merge INDEX -o m.tar", "m.tar: an index is a JSON file"),
        ("index convert INDEX -o m.tar", "m.tar: an index is a JSON file"),
        ("index split INDEX --fractions 0.9,0.3", "--fractions [0.9, 0.3] are not positive"),
        ("index split INDEX --fractions nan,1", "--fractions [nan, 1.0] are not positive"),
        ("index split INDEX --fractions -1,2", "--fractions [-1.0, 2.0] are not positive"),
    ],
)
def test_a_malformed_value_is_wrong_usage(command, words, tmp_path, monkeypatch):
    """A value that is wrong whatever the data are is exit code 2, and the message has it."""
    monkeypatch.chdir(tmp_path)
    write_index(".", [3])
    code, out, err = run(*command.replace("INDEX", "index.json").split())
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
    assert sorted(os.listdir()) == ["index.json", "s0.tar"]


def test_error_is_one_line(failing):
    """A WidsError becomes one line on stderr and exit code 1, without a traceback."""
    assert run("fetch") == (1, "", "wids: http://h/x.tar: gone for good\n")


@pytest.mark.parametrize(
    ("args", "env"), [(("--debug", "fetch"), {}), (("fetch", "--debug"), {}), (("fetch",), {"WIDS_DEBUG": "1"})]
)
def test_debug_shows_the_traceback(args, env, failing):
    """--debug before or behind the command, or $WIDS_DEBUG, lets the traceback through."""
    code, _, err = run(*args, env=env, has_traceback=True)
    assert code == 1
    assert "in fetch" in err


def test_interrupt_is_130(failing):
    """Ctrl-C in any command is exit code 130 and one line."""
    assert run("stop") == (130, "", "wids: interrupted\n")


def test_an_interrupt_before_the_command_runs(monkeypatch):
    """Ctrl-C while the commands' options are made ends as it does in a command: a line, no traceback."""

    def interrupted(**options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    assert run() == (130, "", "wids: interrupted\n")


# The signal comes when so many functions of C have returned, or where the daemon begins to wait: at the same place each
# time, however busy the machine is. It counts from when `main` is loaded: before that, a signal is Python's own.
STARTED = """
import os, select, sys
from wids.tools.cli import main
left, number = int(sys.argv.pop(1)), int(sys.argv.pop(1))
def count(frame, event, function):
    global left
    left -= event == "c_return"
    if left == 0 or (event == "c_call" and function is select.select):
        sys.setprofile(None)
        os.kill(os.getpid(), number)
sys.setprofile(count)
"""
# A command has 160,000 to 310,000; the first 150,000 are of imports.
MOST_RETURNS = 250_000
# Command -> its arguments; {source} is a directory with an index, {url} the same behind HTTP.
COMMANDS = {
    "create": "index create {source} -o {out}/i.json",
    "create remote": "index create {url}/s0.tar {url}/s1.tar -o {out}/i.json --members",
    "update": "index update {out}/copy/index.json --add {source}/s1.tar",
    "merge": "index merge {source}/index.json {source}/index.json -o {out}/m.json",
    "split": "index split {source}/index.json --by 1 -o {out}/part-{{}}.json",
    "join": "index join {source}/index.json {source}/index.json --prefix twin -o {out}/j.json",
    "rebase": "index rebase {out}/copy/index.json -b gs://x/",
    "info": "info {url}/index.json --fetch",
    "ls": "ls {url}/index.json --fetch",
    "show": "show {url}/index.json 5",
    "cat": "cat {url}/index.json 5 txt",
    "locate": "locate {source}/index.json s0-005",
    "at": "at {source}/index.json --step 1",
    "when": "when {source}/index.json 5",
    "verify": "verify {source}/index.json --decode",
    "simulate": "simulate {source}/index.json",
    "pack": "pack {source}/index.json -o {out}/p-%d.tar --samples 1 --jobs 2",
    "bench": "bench {url}/index.json --batch-size 2 --step 0.1 --ranks 2 --workers 1",
    "warm": "cache warm {url}/index.json",
    "clean": "cache clean {out}/copy --all",
    "cache ls": "cache ls {out}/copy",
    "daemon": "cache daemon {out}/copy --max-size 1GB",
}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="sees processes through /proc")
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        *((name, 2) for name in ("create remote", "ls", "verify", "pack", "bench", "warm", "daemon")),
        *(pytest.param(name, 20, marks=pytest.mark.long) for name in COMMANDS),
    ],
)
def test_a_signal_at_any_moment(tmp_path, name, rounds):
    """SIGINT and SIGTERM end a command soon, without a traceback, half a file, or a process that goes on."""
    choose, pid = random.Random(name), os.getpid()
    write_index(tmp_path / "source", (9,) * 6)
    with serve(tmp_path / "source") as server:
        for round_ in range(rounds):
            place, mark = tmp_path / str(round_), f"mark-{pid}-{round_}"
            for directory in ("out", "tmp", "cache"):
                (place / directory).mkdir(parents=True)
            shutil.copytree(tmp_path / "source", place / "out/copy")
            given = {"source": tmp_path / "source", "out": place / "out", "url": server.url}
            args = [part.format(**given) for part in COMMANDS[name].split()]
            env = {"WIDS_CACHE": str(place / "cache"), "TMPDIR": str(place / "tmp"), "MARK": mark}
            returns, number = choose.randrange(1, MOST_RETURNS), (signal.SIGINT, signal.SIGTERM)[round_ % 2]
            with spawn(returns, int(number), *args, before=STARTED, env=env) as process:
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
            # It may have been done; or Python was starting to run it, or had begun to end, and died of the signal.
            assert process.returncode in (0, 128 + number, -number), (round_, out, err)
            if "_get_module_lock.<locals>.cb" not in err:  # Python loses an interrupt in this callback of its imports
                assert not [word for word in ("Traceback", "Exception ignored") if word in err], (round_, err)
            wait_until(lambda mark=mark: living(mark) == [])  # who was left alone notices, and ends
            assert os.listdir(place / "tmp") == [], round_
            names = [file.name for file in place.rglob("*")]
            assert not [file for file in names if file.endswith((".part", ".tmp"))], round_
            for file in place.rglob("*.json"):
                json.loads(file.read_text())


def test_names_that_stdout_cannot_show(failing):
    """A file name that the encoding of stdout lacks is shown escaped, and the command goes on."""
    assert run("show", env={"PYTHONIOENCODING": "ascii"}) == (0, "h\\xe9ron\\udcff\n", "")


def test_exit_code_of_a_command_stands(failing):
    """A command that leaves by SystemExit keeps its exit code."""
    assert run("leave").code == 143


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
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wids.tools.cli "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.parent)


def shell(script, *words, path, **env):
    """Run a script of bash, with ``wids`` in its $PATH; its arguments are words."""
    return subprocess.run(
        [tools.program("bash"), "--norc", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, "PATH": f"{path}:{os.environ['PATH']}", **env},
        timeout=PATIENCE_SECONDS,
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
def test_words_that_complete_a_line(line, offered):
    """Commands, options and choices are offered, whatever stands before."""
    asked = {"_WIDS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert run_ok(env={**asked, "WIDS_STORAGE_OPTIONS": "not JSON"}).split() == offered


@pytest.mark.parametrize(("line", "offered"), [("wids verify --no-d", ["--no-digest"]), ("wids verify tr", [])])
def test_bash_completes(line, offered, program):
    """Bash sources the script, and offers what the program does; where that is nothing, files."""
    done = shell(COMPLETE, *line.split(), path=program)
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
    shown = run_ok("--show-completion", name, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"})
    assert f"_WIDS_COMPLETE=complete_{name}" in shown
    asked = {"_WIDS_COMPLETE": f"complete_{name}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert run(env={**asked, "_TYPER_COMPLETE_ARGS": "wids index cr"}).out.strip() == answer
    assert run(env={**asked, "_TYPER_COMPLETE_ARGS": "wids info "}).out.strip() == files


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_told_whatever_became_of_its_exception(number):
    """A library may make another one of it, as Ray does; an exception without a signal stays."""

    def end():
        try:
            os.kill(os.getpid(), number)
        except SystemExit:
            sys.exit(1)

    before = signal.signal(number, signal.SIG_DFL)  # a session under nohup ignores SIGHUP
    try:
        with pytest.raises(EndedBySignal) as caught, Signals():
            end()
    finally:
        signal.signal(number, before)
    assert (caught.value.code, caught.value.name) == (128 + number, number.name)
    with pytest.raises(ZeroDivisionError), Signals():
        raise ZeroDivisionError


def test_the_line_of_an_error_is_shown_and_not_obeyed(tmp_path):
    """A shard's name with escape sequences does nothing to the terminal when an error names it."""
    bad = tmp_path / "a\x1b]0;x\x07\x1b[31m.tar"
    bad.write_bytes(b"no tar" * 500)
    code, _, told = run("index", "create", tmp_path, "-o", tmp_path / "i.json")
    assert code == 1
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "\\x1b[31m.tar" in told


def test_a_closed_stdout_is_no_error(tmp_path):
    """With stdout closed a command does its work and says nothing."""
    write_shard(tmp_path / "a.tar", 3)
    before = "import sys; sys.stdout = None  # as Python has it when 1 is closed"
    assert run_apart("index", "create", tmp_path, "-o", tmp_path / "i.json", before=before) == (0, "", "")
    assert (tmp_path / "i.json").exists()


@pytest.mark.parametrize("args", [(), ("--help",), ("--version",)])
def test_help_on_a_full_disk_is_one_line(args):
    """What is printed before a command runs fails in a line, too."""
    with open("/dev/full", "wb") as full:
        code, _, told = run_apart(*args, stdout=full)
    assert code == 1
    assert told.count("\n") == 1


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_packages_of_the_command_line(package):
    """A sentence names the extra, and `wids` itself works."""
    code = f"""
        import runpy, sys
        sys.modules[{package!r}] = None
        import wids.jobs
        assert wids.ShardListDataset([("a.tar", 3)])
        sys.argv = ["wids", "info", "train.json"]
        runpy.run_module("wids", run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    words = f"wids: the commands need {package}, which is not installed: pip install 'wids[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_the_command_line_works_with_its_standard_files_closed():
    """``wids demo >&-``: a pipe to the ranks got number 1, and a rank that redirected its output ended itself."""
    run_script("""
        import os
        from wids.tools import cli
        os.close(1)
        os.close(0)
        cli._open_standard_files()
        assert all(os.get_inheritable(fd) and os.fstat(fd) for fd in range(3))
    """)


def test_a_program_that_used_ray_ends_by_its_exit_code(tmp_path):
    """Whatever happens while Python shuts down; what it printed, and what is to be done at its exit, is done."""
    program = """
import atexit, os, signal, sys, types

class Crash:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGSEGV)

sys.modules["ray"] = types.SimpleNamespace(crash=Crash())
atexit.register(print, "at exit")
sys.argv = ["wids", *sys.argv[1:]]
from wids.tools.cli import run_program
run_program()
"""
    for words, code in ((["--version"], 0), (["info", str(tmp_path / "none.json")], 1)):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, "at exit")
