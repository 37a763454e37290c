"""Programs as sources: their output or their file, and their end, whichever way it comes."""

import functools
import os
import random
import shlex
import threading

import pytest

from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in
from tests.support.chaos import open_files
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from wids.core.readers.provider import AutoProvider
from wids.core.transport import download, retrying
from wids.core.transport.download import Transfer
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import Session
from wids.errors import FetchError, NotAllowedError, ShardNotFoundError, SizeMismatchError

BODY = random.Random(0).randbytes(3 << 20)
WAYS = pytest.mark.parametrize("way", ["output", "file"])


@pytest.fixture
def target(tmp_path):
    """The file to fill."""
    return shards.write(tmp_path / "target", b"")


@pytest.fixture
def pids(tmp_path):
    """A file to which programs of the test write their process ids, and a function: the ids."""
    path = tmp_path / "pids"
    yield str(path), lambda: [int(word) for word in path.read_text().split()] if path.exists() else []
    for pid in [int(word) for word in path.read_text().split()] if path.exists() else []:
        wait_until(functools.partial(is_gone, pid))


def is_gone(pid):
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def shell(script, way="output"):
    """The URL of a script; ``way``: whether it writes its output or a file of its own."""
    return f"pipe:sh -c {shlex.quote(script)}" + (" {local}" if way == "file" else "")


def run(url, target, **options):
    """One try; what it wrote."""
    Transfer(url, target, **options).run()
    with open(target, "rb") as file:
        return file.read()


# --- what comes right


@pytest.mark.parametrize("size", [0, 1, 65_536, len(BODY)])
@WAYS
def test_every_byte(tmp_path, target, size, way):
    """Output of any length, and files of any length, arrive byte for byte over what was in the file before."""
    source = shlex.quote(shards.write(tmp_path / "a b", BODY[:size]))
    shards.write(target, b"before" * 100)
    url = f"pipe:cat {source}" if way == "output" else f"pipe:cp {source} {{local}}"
    assert run(url, target) == BODY[:size]


def test_a_program_that_replaces_its_file(tmp_path, target):
    """A program may put another file in the place of the one that it is given."""
    source = shards.write(tmp_path / "a", BODY)
    assert run(f"pipe:mv {source} {{local}}", target) == BODY


def test_room_is_made_before_bytes_come(target):
    """In steps, for nobody knows how many will come."""
    reserved = []

    def reserve(size):
        assert os.path.getsize(target) < size
        reserved.append(size)

    assert run(f"pipe:head -c {len(BODY)} /dev/zero", target, reserve=reserve) == bytes(len(BODY))
    assert reserved == sorted(reserved)
    assert reserved[-1] >= len(BODY)


def test_a_program_has_no_input(target):
    """It does not wait for the terminal."""
    assert run("pipe:cat", target) == b""


@WAYS
def test_loud_programs(target, way):
    """Megabytes of complaints neither stop a program nor go into the error: its last words do."""
    noise = "head -c 20000000 /dev/zero | tr '\\0' x >&2; echo THE END >&2; exit 7"
    with pytest.raises(FetchError, match=r"exit code 7; it said: x+THE END$") as caught:
        run(shell(noise, way), target)
    assert len(str(caught.value)) < 1000
    run(shell(noise.replace("exit 7", "exit 0"), way), target)


# --- what does not


@pytest.mark.parametrize(
    ("script", "code"), [("exit 1", 1), ("exit 255", 255), ("kill -9 $$", -9), ("kill -15 $$", -15)]
)
@WAYS
def test_exit_codes(target, way, script, code):
    """Whatever it wrote: a program that fails has failed, by itself or by a signal."""
    with pytest.raises(FetchError, match=f"exit code {code};"):
        run(shell(f"echo all of it; {script}", way), target)


@WAYS
def test_a_silent_program_is_ended(target, pids, set_limits, way):
    """A program from which nothing comes is ended, with all that it started."""
    set_limits(retrying, silent_seconds=0.3)
    file, started = pids
    script = f"sleep 1000 & echo $! >> {file}; echo $$ >> {file}; echo begun; sleep 1000"
    with pytest.raises(FetchError, match=r"no output for|not done after"):
        run(shell(script, way), target)
    assert len(started()) == 2
    wait_until(lambda: all(map(is_gone, started())))


@WAYS
def test_a_cancelled_program_is_ended(tmp_path, pids, way):
    """With all that it started, whatever it is doing; no file stays."""
    file, started = pids
    script = f"sleep 1000 & echo $! >> {file}; echo $$ >> {file}; echo begun; wait"
    cancelled, caught, cache = threading.Event(), [], str(tmp_path / "cache")

    def work():
        shard = shards.described(shell(script, way), b"", filesize=None)
        try:
            there = AutoProvider(cache_dir=cache, session=Session(allow_pipe=True)).cache
            there.download_ahead(there.locate(shard), after=0.0, is_cancelled=cancelled.is_set)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(started()) == 2)
    cancelled.set()
    thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in caught] == [CancelledTransferError]
    wait_until(lambda: all(map(is_gone, started())))
    assert files_in(cache) == []


def test_without_room_a_program_is_ended(target, pids):
    """Where its output has no room, it does not run on."""
    file, started = pids

    def refuse(size):
        raise FetchError("no room")

    with pytest.raises(FetchError, match="no room"):
        run(shell(f"echo $$ >> {file}; echo begun; sleep 1000"), target, reserve=refuse)
    wait_until(lambda: len(started()) == 1 and is_gone(started()[0]))


def test_nothing_stays_open(target, tmp_path):
    """Neither pipes nor files of complaints."""
    before = open_files()
    for way in ("output", "file"):
        run(shell("echo fine", way), target)
        with pytest.raises(FetchError, match="it said: no"):
            run(shell("echo half; echo no >&2; exit 1", way), target)
    assert open_files() == before


def fetch_body(url, target, *, expected=BODY, **options):
    """Fetch ``url``; each try is checked for size."""

    def check():
        found = os.path.getsize(target)
        if found != len(expected):
            raise SizeMismatchError(f"{found} bytes", expected=len(expected), found=found)

    download.download_to(url, target, check=check, **options)
    with open(target, "rb") as file:
        return file.read()


def test_pipe_is_refused_by_default(target, tmp_path):
    """Without leave no program runs."""
    with pytest.raises(NotAllowedError, match="allow_pipe=True"):
        fetch_body(f"pipe:touch {tmp_path}/ran", target)
    assert not (tmp_path / "ran").exists()


def test_pipe_output_is_the_shard(target, tmp_path):
    """With leave, what the program writes is the shard."""
    path = shards.write(tmp_path / "a b.tar", BODY)
    assert fetch_body(f"pipe:cat '{path}'", target, session=Session(allow_pipe=True)) == BODY


def test_pipe_local(target, tmp_path):
    """``{local}`` stands for the file to write; then output is not the shard."""
    path = shards.write(tmp_path / "a.tar", BODY)
    assert fetch_body(f"pipe:cp -v {path} {{local}}", target, session=Session(allow_pipe=True)) == BODY


def test_pipe_is_no_shell(target, tmp_path):
    """No letter means anything to a shell: the words reach the program as they are."""
    words = "$(touch {ran}) `touch {ran}` ; touch {ran} | tee {ran} && x > {ran} * ~".format(ran=tmp_path / "ran")
    expected = f"{words}\n".encode()
    assert fetch_body(f"pipe:echo {words}", target, session=Session(allow_pipe=True), expected=expected) == expected
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.usefixtures("no_waits")
def test_pipe_that_fails(target, events):
    """A program that fails is tried again, and its last words are in the error."""
    with pytest.raises(FetchError, match=r"exit code 3; it said: .*no luck"):
        fetch_body("pipe:sh -c 'echo no luck >&2; exit 3'", target, session=Session(hooks=[events], allow_pipe=True))
    assert len(events) == 5


@pytest.mark.usefixtures("no_waits")
def test_pipe_that_fails_once(target, tmp_path):
    """What a failed try wrote is gone at the next one."""
    path = shards.write(tmp_path / "a.tar", BODY)
    script = f"cat {path}; if test -e {tmp_path}/ran; then exit 0; fi; touch {tmp_path}/ran; exit 1"
    assert fetch_body(f'pipe:sh -c "{script}"', target, session=Session(allow_pipe=True)) == BODY


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("pipe:", "no command"),
        ("pipe:   ", "no command"),
        ("pipe:cat 'a", "No closing quotation"),
        ("pipe:/nosuch/program x", "'/nosuch/program' cannot be started"),
        ("pipe:/etc x", "'/etc' cannot be started"),
    ],
)
def test_pipe_without_a_program(target, events, url, says):
    """A command that cannot be run is final, and not mistaken for a shard that is not there."""
    with pytest.raises(FetchError, match=says) as caught:
        fetch_body(url, target, session=Session(hooks=[events], allow_pipe=True))
    assert not isinstance(caught.value, ShardNotFoundError)
    assert events == []
