"""Options that several commands have: --storage-options, from the line, a file or the environment."""

from __future__ import annotations

import json
import os

import pytest

from tests.support.cli import in_one_line, run, run_ok
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


# Commands that take an index, with words that each prints of two shards of two samples.
LOOKS = [
    ("info TARS", "samples      4,"),
    ("ls TARS", "s1-0"),
    ("ls TARS --shards", "s1.tar"),
    ("show TARS 2", "sample 2: s1-0"),
    ("cat TARS 2 txt", "of s1-0"),
    ("locate TARS s1-1", "s1.tar"),
    ("at TARS --step 0 --batch-size 2", "epoch 0, step 0"),
    ("when TARS 3 --batch-size 2", "epoch 0: 2 steps"),
    ("verify TARS", "2 shards of"),
    ("simulate TARS --batch-size 2", "tars: 2 shards, 4 samples"),
    ("cache warm TARS", "2 local"),
    ("view TARS --select 1:3 -o view.json", "2 of 4 samples, in 2 shards"),
    ("columns create TARS -o c.parquet", "c.parquet: 4 rows"),
]


@pytest.mark.parametrize(("command", "words"), LOOKS)
@pytest.mark.parametrize("tars", ["tars", "tars/*.tar", "tars/s{0..1}.tar"])
def test_commands_take_what_the_dataset_takes(tars, command, words, tmp_path, monkeypatch):
    """A directory of tars, a glob or a brace pattern stands where an index may, and nothing is written into it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tars").mkdir()
    for k in range(2):
        members = [(f"s{k}-{row}.txt", f"of s{k}-{row}".encode()) for row in range(2)]
        write_tar(tmp_path / "tars" / f"s{k}.tar", members)
    line = [tars if word == "TARS" else word for word in command.split()]
    words = words.replace("tars:", f"{tars}:")
    assert words in run_ok(*line, env={"WIDS_CACHE": str(tmp_path / "cache")})
    assert sorted(os.listdir(tmp_path / "tars")) == ["s0.tar", "s1.tar"]


@pytest.mark.parametrize("command", ["verify", "cache warm", "info", "ls", "simulate", "columns create -o x.parquet"])
def test_a_directory_without_tars(command, tmp_path):
    """The message is one line, and names the directory and the index in it."""
    (tmp_path / "train.json").write_text("{}")
    code, out, err = run(*command.split(), tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith(
        f"wids: {tmp_path}: there are no .tar files in this directory; for an index give its file, as "
    )
    assert err.rstrip().endswith("/train.json")
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
