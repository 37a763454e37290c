"""Shards at ``hf://``, from the notebooks' stand-in for the Hub, which is the Hub to huggingface_hub, too."""

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

CLIENT = f"""
import json, os, sys
sys.path.insert(0, {str(paths.ROOT)!r})
from notebooks.hub import Hub
stand_in = Hub(name="user/name")
os.environ["HF_ENDPOINT"] = stand_in.url
stand_in.page_size = 3
old = stand_in.put({{"README.md": b"# Title", **{{f"train/{{k}}.tar": b"%d" % k * 100 for k in range(7)}}}})
new = stand_in.put({{"train/0.tar": b"new"}})
stand_in.put({{"a/b.tar": b"bucket"}}, "buckets/user/bucket")
stand_in.put({{"x": b"x"}}, "datasets/user/gated")
gated = stand_in.repositories["datasets/user/gated"]
gated.is_gated, gated.token = True, "secret"
import huggingface_hub as client
files, api = client.HfFileSystem(), client.HfApi()
from wids.hub import source as hub
there = client.get_hf_file_metadata(client.hf_hub_url("user/name", "train/3.tar", repo_type="dataset"))
listing = hub.list_files("hf://datasets/user/name")
def refused(name, revision=None):
    try:
        api.dataset_info(name, revision=revision)
    except Exception as error:
        return type(error).__name__
found = {{
    "same": set(files.find("datasets/user/name")) == {{f"datasets/user/name/{{path}}" for path in listing.files}},
    "folder": [entry["name"].rpartition("/")[2] for entry in files.ls("datasets/user/name")],
    "bytes": [files.cat(f"datasets/user/name{{at}}/train/0.tar").decode()[:4] for at in ("", f"@{{old}}")],
    "range": files.cat_file("datasets/user/name/train/3.tar", 5, 9).decode(),
    "commit": api.dataset_info("user/name").sha == there.commit_hash == listing.commit == new,
    "facts": (there.size, there.etag) == listing.files["train/3.tar"][:2],
    "bucket": [list(files.find("buckets/user/bucket")), files.cat("buckets/user/bucket/a/b.tar").decode()],
    "refused": [refused("user/gated"), refused("user/none"), refused("user/name", "v9")],
}}
print(json.dumps(found))
"""

WRITER = f"""
import json, os, sys
sys.path.insert(0, {str(paths.ROOT)!r})
from notebooks.hub import Hub
stand_in = Hub(name="user/name")
os.environ["HF_ENDPOINT"] = stand_in.url
stand_in.put({{"README.md": b"# Title"}})
stand_in.repository.write_token = "t0ken"
import wids
with wids.ShardWriter("hf://datasets/user/name/train-%06d.tar", samples=3) as writer:
    for row in range(5):
        writer.write({{"__key__": f"{{row:03d}}", ".txt": b"%d" % row}})
dataset = wids.ShardListDataset("hf://datasets/user/name", transformations="raw")
print(json.dumps([dataset[row][".txt"].decode() for row in range(len(dataset))]))
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


def test_the_stand_in_is_the_hub_to_its_own_client(tmp_path):
    """What huggingface_hub reads there, and what it makes of refusals, is what the Hub has; wids lists the same."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        capture_output=True,
        text=True,
        env=environment(HF_HUB_DISABLE_TELEMETRY="1", HF_HOME=str(tmp_path / "hf"), WIDS_CACHE=str(tmp_path / "cache")),
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "same": True,
        "folder": ["README.md", "train"],
        "bytes": ["new", "0000"],
        "range": "3333",
        "commit": True,
        "facts": True,
        "bucket": [["buckets/user/bucket/a/b.tar"], "bucket"],
        "refused": ["GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError"],
    }


def test_what_is_written_to_the_hub_opens_by_name(tmp_path):
    """Shards, their tables and an index, each of which the Hub's client commits."""
    hub = {"HF_TOKEN": "t0ken", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WRITER],
        capture_output=True,
        text=True,
        env=environment(WIDS_CACHE=str(tmp_path / "cache"), **hub),
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0", "1", "2", "3", "4"]
