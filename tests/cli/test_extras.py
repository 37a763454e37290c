"""Each command, and each door for programs, without the packages of each extra: it works, or a line names the extra.

A process imports wids and forks for each extra; in a fork the packages of the extra cannot be imported.
"""

import json
import socket
import subprocess
import sys

import pytest

from tests.support.cli import whole_command
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.paths import ROOT
from tests.support.shards import write_index

EXTRAS = {
    "gcs": ["gcsfs", "google"],
    "s3": ["s3fs", "aiobotocore", "botocore"],
    "hub": ["huggingface_hub"],
    "parquet": ["pyarrow"],
    "views": ["duckdb", "pyarrow"],
    "sounds": ["soundfile"],
    "videos": ["av"],
    "ray": ["ray"],
    "otel": ["opentelemetry"],
    "prometheus": ["prometheus_client"],
    "lightning": ["lightning", "pytorch_lightning"],
    "serve": ["starlette", "uvicorn", "jinja2"],
}
# What each leaf of the command line is run with. What takes seconds, or another one's server, is asked for its help,
# which imports its module; $PORT is in use.
COMMANDS = {
    "demo": "--help",
    "bench": "--help",
    "pack": "$INDEX -o packed/x-%d.tar",
    "index create": "s0.tar s1.tar -o new.json",
    "index update": "$INDEX",
    "index diff": "$INDEX $INDEX",
    "index merge": "$INDEX $INDEX -o merged.json",
    "index split": "$INDEX --by 1",
    "index join": "$INDEX $INDEX --prefix twin -o joined.json",
    "index rebase": "$INDEX --base . -o rebased.json",
    "index convert": "$INDEX -o converted.widsx",
    "index tables": "$INDEX",
    "info": "$INDEX",
    "ls": "$INDEX",
    "show": "$INDEX 1",
    "cat": "$INDEX 1 txt",
    "locate": "$INDEX s0-001",
    "at": "$INDEX --step 0",
    "when": "$INDEX 1",
    "serve": "$INDEX --port $PORT --no-open",
    "verify": "$INDEX",
    "columns create": "$INDEX -o columns.parquet",
    "query": "$INDEX 'select count(*) from samples where has_txt'",
    "view": "$INDEX -o view.json --where has_txt",
    "map": "$INDEX logging:debug -o mapped",
    "rewrite": "$INDEX --exclude out.txt -o rewritten.json",
    "simulate": "$INDEX",
    "cache ls": "../cache",
    "cache clean": "../cache --max-size 1GB",
    "cache warm": "$INDEX",
    "cache daemon": "../cache --max-size 1GB --metrics nowhere/x.prom",
}
DOORS = {
    "where": "wids.ShardListDataset({index!r}).where('has_txt')",
    "training": "next(iter(torch.utils.data.DataLoader(wids.ShardListDataset({index!r}, transformations='raw'))))",
}
# Of each extra: what must complain.
NEEDS = {
    "gcs": {"info gs://bucket/train.json", "a dataset on Google's"},
    "s3": {"info s3://bucket/train.json", "a dataset on S3"},
    "hub": {"info hf://datasets/org/name", "a data set of the Hub", "a commit to the Hub"},
    "parquet": {
        "pack rows.parquet -o rows/r-%d.tar --field .txt=a",
        "query",
        "view",
        "columns create",
        "map $INDEX logging:debug -o mapped.parquet --columns",
        "where",
        "with_table",
    },
    "views": {
        "query",
        "map $INDEX logging:debug -o mapped.parquet --columns",
        "view",
        "columns create",
        "where",
        "with_table",
    },
    "sounds": {"columns create $INDEX -o sounds.parquet --sounds .wav", "a decoder of sounds"},
    "videos": {"columns create $INDEX -o videos.parquet --videos .mp4"},
    "ray": {"verify $INDEX --engine ray", "verify on Ray"},
    "otel": {"wids.otel"},
    "prometheus": {"cache daemon"},
    "lightning": {"wids.lightning"},
    "serve": {"serve", "wids.serve.start"},
}
# Doors that take long where the packages are there: without them alone.
MORE = {
    "a dataset on Google's": "wids.ShardListDataset('gs://bucket/train.json')",
    "a dataset on S3": "wids.ShardListDataset('s3://bucket/train.json')",
    "a data set of the Hub": "wids.ShardListDataset('hf://datasets/org/name')",
    "a commit to the Hub": "from wids.hub.upload import Branch; Branch('hf://datasets/org/name')",
    "a decoder of sounds": "import wids; wids.SampleDecoder(also='.wav')({{'.wav': b''}})",
    "with_table": "wids.ShardListDataset({index!r}).with_table({{'index': [0], 'a': [1]}}, on='index')",
    "verify on Ray": "import wids.jobs; wids.jobs.verify({index!r}, engine='ray')",
    "wids.lightning": "import wids.lightning; wids.lightning.DataModule({index!r}, batch_size=2)",
    "wids.otel": "import wids.otel; wids.otel.OpenTelemetryHook()",
    "wids.serve.start": "import wids.serve; wids.serve.start({index!r}).close()",
}

PROGRAM = ROOT / "tests" / "support" / "programs" / "without_extras.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Extra -> name of what ran -> (exit code, what it complained of)."""
    folder = tmp_path_factory.mktemp("extras")
    index = write_index(folder, (3, 4))
    (folder / "cache").mkdir()
    (folder / "out.txt").write_text("s0-001\n")
    (folder / "rows.parquet").write_bytes(b"PAR1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        plans = {}
        for extra, packages in EXTRAS.items():
            lines = {name: f"{name} {words}" for name, words in COMMANDS.items()}
            lines |= {line: line for line in NEEDS[extra] if line not in {*COMMANDS, *DOORS, *MORE}}
            doors = DOORS | {name: code for name, code in MORE.items() if name in NEEDS[extra]}
            plans[extra] = {
                "packages": packages,
                "lines": {name: line.replace("$INDEX", index).replace("$PORT", port) for name, line in lines.items()},
                "doors": {name: code.format(index=index) for name, code in doors.items()},
            }
        done = subprocess.run(
            [sys.executable, PROGRAM],
            input=json.dumps(plans),
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_commands_are_tried():
    """A new one has to be added above."""

    def leaves(command, path):
        if not hasattr(command, "commands"):
            return {" ".join(path)}
        return set().union(*(leaves(each, [*path, name]) for name, each in command.commands.items()))

    assert leaves(whole_command(), []) == set(COMMANDS)


@pytest.mark.parametrize("extra", EXTRAS)
def test_without(extra, found):
    """What needs the extra says so in a line, with its name; all else does its work."""
    assert NEEDS[extra] <= found[extra].keys()
    for name, (code, words) in found[extra].items():
        if name in NEEDS[extra]:
            assert code == 1, (name, words)
            assert "pip install 'wids[" in words, (name, words)
            assert any(f"wids[{other}]" in words for other in EXTRAS if {*EXTRAS[other]} & {*EXTRAS[extra]}), words
            assert words.count("\n") == 1, (name, words)
        elif name in ("serve", "cache daemon"):
            assert (code, "cannot be" in words or "is not available" in words) == (1, True), (name, words)
        else:
            assert (code, words) == (0, ""), name
