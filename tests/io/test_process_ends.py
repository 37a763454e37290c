"""A process ends at once and without a word, whatever it has open or half done."""

import subprocess
import sys

import pytest

from tests.support.launch import LIMIT_SECONDS, PROGRAMS, environment
from tests.support.shards import write_json, write_shards


@pytest.mark.parametrize(("end", "code", "last"), [("7", 7, ""), ("raise", 1, "ValueError: the program's own")])
def test_what_is_left_open_is_not_told_of(tmp_path, end, code, last):
    """Open shards, views, columns, mixtures, loaders, epochs half-way with downloads that would take minutes."""
    shards = write_shards(tmp_path, [6] * 4)
    write_json(tmp_path / "local.json", {"wids_version": 1, "shardlist": shards})
    remote = [{**shard, "url": f"s{k}.tar"} for k, shard in enumerate(shards)]
    write_json(tmp_path / "remote.json", {"wids_version": 1, "shardlist": remote})
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "left_open.py"), str(tmp_path / "local.json"), str(tmp_path), end],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,  # it imports torch and pandas, perhaps on a busy machine
    )
    told = done.stderr.splitlines()
    assert (done.returncode, told[-1] if told else "") == (code, last), done.stderr
    assert (done.stdout, "ignored" in done.stderr) == ("", False), done.stderr
    assert last or not told, done.stderr
