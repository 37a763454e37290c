"""Shards at ``hf://``, by the real huggingface_hub, from the stand-in for the Hub that the notebooks use."""

import json
import subprocess
import sys

import pytest

from tests.support import paths
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.launch import environment

HERE = paths.ROOT / "notebooks"
SIZE, COUNT = 100_000, 30
PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(HERE)!r})
import os, hub, wids
directory, cache, access = sys.argv[1:]
with wids.ShardWriter(os.path.join(directory, "t-%06d.tar"), samples={COUNT}) as writer:
    for i in range({COUNT} + 5):
        writer.write({{"__key__": f"{{i:03d}}", ".bin": bytes([i]) * {SIZE}}})
stand_in = hub.Hub(directory, "user/name")
os.environ["HF_ENDPOINT"] = stand_in.url
url = "hf://datasets/user/name/t.json"
settings = {{"prefetch": False, "early_reads": False, "transformations": []}}  # nothing hangs on the time
dataset = wids.ShardListDataset(url, cache_dir=cache, access=access, **settings)
first = dataset[0][".bin"].read()
before = stand_in.sent_bytes
later = dataset[{COUNT} // 2][".bin"].read()
middle = stand_in.sent_bytes
last = dataset[{COUNT} + 4]
print(json.dumps({{
    "length": len(dataset),
    "right": [first == bytes({SIZE}), later == bytes([{COUNT} // 2]) * {SIZE}],
    "last": [last["__key__"], last["__shard__"]],
    "sent": middle - before,
    "fetches": dataset.stats().fetches,
}}))
"""


@pytest.mark.parametrize(("access", "sent", "fetches"), [("range", (SIZE, SIZE + 2048), 0), ("fetch", (0, 0), 2)])
def test_a_dataset_on_the_hub(tmp_path, access, sent, fetches):
    """Index, relative URLs and samples come from there: by ranges no more than the member, else each shard once."""
    (tmp_path / "data").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "data", tmp_path / "cache", access],
        capture_output=True,
        text=True,
        env=environment(HF_HUB_DISABLE_TELEMETRY="1", HF_HOME=str(tmp_path / "hf")),
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["length"] == COUNT + 5
    assert found["right"] == [True, True]
    assert found["last"] == [f"{COUNT + 4:03d}", "hf://datasets/user/name/t-000001.tar"]
    assert sent[0] <= found["sent"] <= sent[1]
    assert found["fetches"] == fetches
