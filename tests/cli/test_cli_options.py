"""Options that several commands have: --storage-options, from the line, a file or the environment."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import in_one_line, run
from tests.support.shards import write_tar
from wids.testing import Server

OPTIONS = json.dumps({"client_kwargs": {"headers": {"X-Key": "secret"}}})


@pytest.fixture
def url(tmp_path):
    """The URL of an index of one shard, for those who have the key."""
    place = tmp_path / "data"
    place.mkdir()
    write_tar(place / "s0.tar", {"a.txt": b"one", "b.txt": b"two"})
    index = {"wids_version": 1, "shardlist": [{"url": "s0.tar", "nsamples": 2}]}
    (place / "train.json").write_text(json.dumps(index))
    with Server(place, has_ranges=False, required_headers={"X-Key": "secret"}) as server:
        yield f"{server.url}/train.json"


@pytest.mark.parametrize(
    "command",
    [
        "info URL",
        "ls URL",
        "show URL 1",
        "cat URL 1 txt",
        "locate URL b",
        "at URL --step 0 --keys",
        "when URL b",
        "verify URL",
        "cache warm URL",
        "pack URL -o out/x-%d.tar",
        "index create SHARD -o new.json",
    ],
)
def test_every_command_that_reads_urls_takes_them(command, url, tmp_path, monkeypatch):
    """With the options of the environment it is read, without them refused in a line that names it."""
    monkeypatch.chdir(tmp_path)
    line = [{"URL": url, "SHARD": url.replace("train.json", "s0.tar")}.get(word, word) for word in command.split()]
    cache = {"WIDS_CACHE": str(tmp_path / "cache"), "WIDS_STORAGE_OPTIONS": ""}
    code, out, err = run(*line, env=cache)
    assert (code, out) == (1, "")
    assert "127.0.0.1" in err
    assert "403" in err
    code, _, err = run(*line, env={**cache, "WIDS_STORAGE_OPTIONS": OPTIONS})
    assert (code, err) == (0, "")


@pytest.mark.parametrize("command", ["verify", "cache warm", "info", "ls"])
def test_a_directory_is_no_index(command, tmp_path):
    """The message is one line, and names the directory."""
    code, out, err = run(*command.split(), tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith(f"wids: {tmp_path}: is a directory")
    assert err.count("\n") == 1


def test_from_the_line_and_from_a_file(url, tmp_path):
    """They may stand in the line, where they win over the environment, or in a file."""
    (tmp_path / "options.json").write_text(OPTIONS)
    for given in (OPTIONS, f"@{tmp_path}/options.json"):
        code, out, err = run("cat", url, 0, "txt", "--storage-options", given, env={"WIDS_STORAGE_OPTIONS": "{}"})
        assert (code, out, err) == (0, "one", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ('{"key": "secret"', "not JSON (Expecting"),
        ("[1]", "a JSON list, not an object"),
        ("@none.json", "none.json: cannot be read (No such file or directory)"),
        ("@.", ".: cannot be read (Is a directory)"),
        ("@broken.json", "broken.json: not JSON"),
    ],
)
def test_what_is_no_object_is_wrong_usage(given, words, tmp_path, monkeypatch):
    """One sentence that says where, exit code 2, and nothing of what may be a secret."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"key": secret}')
    for options, env in ((["--storage-options", given], ""), ([], given)):
        code, out, err = run("info", "x.json", *options, env={"WIDS_STORAGE_OPTIONS": env})
        assert (code, out) == (2, "")
        assert words in in_one_line(err)
        assert "secret" not in err


def test_an_option_that_the_file_system_does_not_know(url):
    """It is named, and where it comes from."""
    code, out, err = run("cat", url, 0, "txt", "--storage-options", '{"client_kwargs": {"colour": 1}}')
    assert (code, out) == (1, "")
    assert "unexpected keyword argument 'colour'; check the URL's scheme and storage_options" in err


def test_a_pipe_sees_no_progress_whatever_the_environment_says(tmp_path):
    """Notebooks and CI set $FORCE_COLOR, which does not make a terminal of a pipe."""
    write_tar(tmp_path / "a.tar", [("one.txt", b"one")])
    code, _, err = run("index", "create", tmp_path / "a.tar", "-o", tmp_path / "i.json", env={"FORCE_COLOR": "1"})
    assert (code, err) == (0, "")
