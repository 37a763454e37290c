"""Jobs on a Ray cluster of two nodes give what they give on one machine; a node that dies costs its own work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import paths
from tests.support.launch import LIMIT_SECONDS
from tests.support.servers import Server
from tests.support.shards import write_json, write_shards
from wids.jobs.index_create import create_index

pytestmark = pytest.mark.outside

PROGRAM = paths.ROOT / "tests/support/programs/with_ray.py"
COUNTS = [1 + k % 4 for k in range(9)]


def remote_index():
    """The index of the shards, for a URL beside them."""
    shards = [{"url": f"s{k}.tar", "nsamples": count} for k, count in enumerate(COUNTS)]
    return {"wids_version": 1, "shardlist": shards}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The directory in which all happens: shards, a damaged dataset, files to be packed."""
    place = tmp_path_factory.mktemp("jobs")
    write_shards(place / "d", COUNTS)
    create_index([str(place / "d")], str(place / "here.json"), name="n")
    write_json(place / "remote.json", remote_index())
    shards = write_shards(place / "damaged", COUNTS * 2)
    for k, shard in enumerate(shards):
        path = Path(shard["url"])
        if k % 5 == 1:
            path.write_bytes(path.read_bytes()[:700])
        if k % 5 == 2:
            path.unlink()
        shard["url"] = f"damaged/{path.name}"
    write_json(place / "damaged.json", {"wids_version": 1, "shardlist": shards})
    (place / "in").mkdir()
    for k in range(40):
        (place / "in" / f"{k:02d}.txt").write_text(str(k) * 100)
    return place


@pytest.fixture(scope="module")
def server(place):
    """The shards behind a URL, and their index."""
    with Server() as server:
        index = remote_index()
        for shard in index["shardlist"]:
            server.add(f"/{shard['url']}", (place / "d" / shard["url"]).read_bytes())
        server.add("/i.json", json.dumps(index).encode())
        yield server


@pytest.fixture(scope="module")
def told(place, server):
    """What the program says."""
    done = subprocess.run(
        [sys.executable, PROGRAM, f"{server.url}/i.json"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "PYTHONPATH": str(paths.ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_index(told, place):
    """The same index as by threads, and a bad shard is listed with its name."""
    assert told["nodes"] == 2
    assert told["index"] == {"shards": 9, "failed": ["s9.tar"], "code": 0}
    assert (place / "here.json").read_bytes() == (place / "ray.json").read_bytes()


def test_columns(told):
    """The same table and state as by threads, byte for byte; a second run reads nothing."""
    expected = {"codes": [0] * 4, "is_same": True, "rows": sum(COUNTS), "surveyed": [9, 9, 0, 0]}
    assert told["columns"] == expected


def test_tables(told):
    """The pack of member tables is the same as by threads, byte for byte."""
    assert told["tables"] == {"codes": [0, 0], "is_same": True, "shards": 9}


def test_verify(told):
    """Findings and report are the same as those of one machine, byte for byte."""
    assert told["verify"] == {"is_same": True, "is_same_report": True, "wrong": 8, "codes": [1, 1]}


def test_pack(told):
    """Shards and index are the same, byte for byte, and nothing else is there; so is what is shown of it last."""
    assert told["pack"] == {"is_same": True, "is_same_progress": True, "names": 2 * 14 + 1}


def test_map(told):
    """Shards and table are the same, byte for byte, also of a run that was ended; a worker keeps its instance."""
    made = told["map"].pop("made")
    assert told["map"] == {"is_same": True, "is_same_table": True, "goes_on": True}
    assert 1 <= made < len(COUNTS)


def test_warm(told, server):
    """Each node's own cache has the shards, fetched once for each node; then they are found there."""
    both, again, head = told["warm"]["runs"]
    assert both == {"nodes": ["cache-head", "cache-node"], "fetched": 18, "cached": 0, "failed": {}}
    assert again == {"nodes": ["cache-head", "cache-node"], "fetched": 0, "cached": 18, "failed": {}}
    assert head == {"nodes": ["cache-head"], "fetched": 0, "cached": 9, "failed": {}}
    assert (told["warm"]["code"], told["warm"]["lines"]) == (0, 2)
    assert told["warm"]["ended"] == [18, 9]  # the progress is of shards, over all nodes
    assert [server.requests.count(f"/s{k}.tar") for k in range(9)] == [2] * 9


def test_a_node_that_dies(told):
    """The shard that it was at is written again on the other node; no other one is, and all are as they would be."""
    assert told["survived"] == {
        "killed": 1,
        "shards": 12,
        "is_same": True,
        "again": ["victim", "other"],
        "once": 11,
    }


def test_a_worker_that_is_killed(told):
    """It costs a try of one shard: the job goes on, and nothing but its result is on stdout."""
    assert told["killed"] == {"index": [0, "", 9], "columns": 0, "cache": 0}


def test_a_signal(told):
    """It ends a command as on one machine: by its own exit code, with a line, and without a stack of Ray's."""
    code, out, err = told["ended"]
    assert (code, out, err.partition("; run it again to continue")[0].strip()) == (143, "", "wids: ended by SIGTERM")
