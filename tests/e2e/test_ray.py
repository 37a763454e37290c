"""``wids index create --engine ray`` on a cluster of two nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.shards import write_shards
from wids.jobs.index_create import create_index

# With a cluster of its own, for Ray warns and leaves threads in whatever process it is used.
PROGRAM = """
import json, os, subprocess, sys
import ray
from ray.cluster_utils import Cluster
from wids.jobs.index_create import create_index
from wids.jobs.runner import RunOptions

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
try:
    options = RunOptions(engine="ray", ray_address=cluster.address)
    told = create_index(["d"], "b.json", name="n", options=options)
    open("d/s4.tar", "wb").write(b"x" * 2000)
    command = [sys.executable, "-m", "wids.cli", "index", "create", "d", "-o", "c.json", "--engine", "ray"]
    command += ["--ray-address", cluster.address, "--skip-errors", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    failed = [os.path.basename(place) for place in json.loads(done.stdout)["failed"]]
    nodes = len(cluster.list_all_nodes())
finally:
    cluster.shutdown()
print(json.dumps({"nodes": nodes, "shards": told.shards, "failed": failed, "code": done.returncode}))
"""


def test_ray_runs_the_same_function(tmp_path, monkeypatch):
    """On a cluster of two nodes: the same index as by threads, and a bad shard is told with its name."""
    monkeypatch.chdir(tmp_path)
    write_shards("d", (3, 1, 2, 4))
    create_index(["d"], "a.json", name="n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        # Short, for a socket's name has 107 bytes at most.
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"nodes": 2, "shards": 4, "failed": ["s4.tar"], "code": 0}
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
