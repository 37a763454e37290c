"""``wids serve``: what it prints and refuses, and where it would open a browser.

The pages are tested in tests/io/serve and tests/e2e.
"""

import os
import signal
import sys
import urllib.request

import pytest

from tests.support.cli import complaint, spawn
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.shards import write_index
from wids.tools.cli import serve


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


BROWSER = """#!{python}
import os, re, stat, sys, urllib.request
from pathlib import Path
from urllib.parse import unquote, urlsplit
place, found = sys.argv[1], ""
if place.startswith("file:"):
    path = Path(unquote(urlsplit(place).path))
    found = oct(stat.S_IMODE(path.stat().st_mode)) + oct(stat.S_IMODE(path.parent.stat().st_mode)) + path.read_text()
Path({out!r} + ".part").write_text(place + "\\n" + found)
os.replace({out!r} + ".part", {out!r})
"""


@pytest.mark.parametrize("has_token", [True, False])
def test_the_browser_is_not_told_the_token(tmp_path, has_token):
    """Its arguments are seen by all: they name a file that only its user can read, and that goes with the server."""
    program, out = tmp_path / "browser", tmp_path / "told"
    program.write_text(BROWSER.format(python=sys.executable, out=str(out)))
    program.chmod(0o755)
    env = {"BROWSER": str(program), "DISPLAY": ":9", "SSH_CONNECTION": ""}
    more = ["--token"] if has_token else []
    with spawn("serve", write_index(tmp_path), "--port", "0", "--cache", tmp_path / "cache", *more, env=env) as process:
        url = process.stdout.readline().split()[-1]
        wait_until(out.exists)
        place, _, found = out.read_text().partition("\n")
        token = url.partition("?token=")[2]
        assert len(token) > 20 if has_token else not token
        if has_token:
            assert token not in place
            assert found.startswith("0o6000o700<meta")
            assert url in found
        else:
            assert place == url
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    if has_token:
        assert not os.path.exists(place.removeprefix("file://"))


def test_a_file_of_tags_that_is_something_else(tmp_path):
    """It is refused before a page is served, and stays."""
    index = write_index(tmp_path, (3, 4))
    labels = tmp_path / "labels.npy"
    labels.write_text("do not lose this\n")
    words = complaint(1, "serve", index, "--tags", labels, "--no-open", "--port", "0")
    assert "labels.npy" in words
    assert "no file of tags" in words
    assert "it is no array of numbers" in words
    assert labels.read_text() == "do not lose this\n"
    words = complaint(1, "serve", index, "--marks", index, "--no-open", "--port", "0")
    assert "give the file a name that ends in .npy" in words
