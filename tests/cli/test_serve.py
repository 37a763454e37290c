"""``wids serve``: what it prints and refuses, and where it would open a browser.

The pages are tested in tests/io/serve and tests/e2e.
"""

import os
import signal
import urllib.request

import pytest

from tests.support.cli import complaint, spawn
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_index
from wids.cli import serve


@pytest.mark.parametrize("is_far", [True, False])
def test_the_address(tmp_path, is_far):
    """It is printed; to who came by ssh, also what brings the port to where they are. Ctrl-C ends it."""
    env = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 22" if is_far else "", "DISPLAY": "", "BROWSER": "false"}
    index = write_index(tmp_path)
    with spawn("serve", index, "--port", "0", "--cache", tmp_path / "cache", env=env) as process:
        address = process.stdout.readline()
        assert address.startswith(f"{index}: http://127.0.0.1:")
        port = address.rsplit(":", 1)[1].strip().strip("/")
        if is_far:
            line = process.stdout.readline()
            assert f"ssh -L {port}:127.0.0.1:{port} " in line
            assert line.endswith("@10.0.0.2\n")
        urllib.request.urlopen(address.split()[1], timeout=PATIENCE_SECONDS).close()
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=PATIENCE_SECONDS)
    assert (rest, complaints, process.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("variables", "opens"),
    [
        ({}, False),
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "w"}, True),
        ({"BROWSER": "firefox"}, True),
        ({"SSH_CONNECTION": "1 2 3 4", "BROWSER": "lynx"}, False),
        ({"SSH_CONNECTION": "1 2 3 4", "DISPLAY": ":10"}, True),
    ],
)
def test_where_there_is_a_screen(monkeypatch, variables, opens):
    """A browser for terminals would take the one that the command runs in."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", "linux")
    assert serve._has_screen() is opens
    assert os.environ.get("DISPLAY", "") == variables.get("DISPLAY", "")


def test_a_file_of_marks_that_is_something_else(tmp_path):
    """It is refused before a page is served, and stays."""
    index = write_index(tmp_path, (3, 4))
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose this\n")
    words = complaint(1, "serve", index, "--marks", notes, "--no-open", "--port", "0")
    assert "notes.txt" in words
    assert "no file of marks" in words
    assert "do not lose this" in words
    assert notes.read_text() == "do not lose this\n"
    assert "the index that is looked at" in complaint(1, "serve", index, "--marks", index, "--no-open", "--port", "0")
