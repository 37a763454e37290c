"""Files that commands leave for a while, under faults: temporary directories, journals.

Forked processes, names that are not UTF-8, lines that a disk made, numbers no float holds, addresses of nobody.
"""

import contextlib
import json
import os
import re
import signal
import tempfile

import numpy as np
import pytest

from tests.support.children import call_in_child
from tests.support.cli import run
from wids.columns.sql import SampleTable, find_rows
from wids.core.files import tempdirs
from wids.errors import CacheError, ClusterError, JobError, QueryError, SpecError, WidsError
from wids.jobs import ray_cluster
from wids.jobs.index_edit import update_index
from wids.jobs.journal import KnownShards
from wids.jobs.scan import ShardResult
from wids.tools.simulate.job import TrainingJob, read_epochs
from wids.tools.simulate.node_cache import NodeCache
from wids.tools.simulate.run import Simulation
from wids.writing.writer import ShardWriter


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary directory, which is the test's."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def leave(place):
    """End a block that another process began."""
    place.close()


def test_a_forked_process_that_leaves_the_block_takes_nothing_with_it(temporary):
    """The directory and its lock are those of the process that made it."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempdirs.directory("verify"))
        call_in_child(leave, stack)
        assert os.path.isdir(place)
        call_in_child(tempdirs.sweep, str(temporary))
        assert os.path.isdir(place)
    assert os.listdir(temporary) == []


def test_a_forked_process_that_discards_a_writer_takes_nothing_with_it(temporary):
    """Nor when it has a copy of a writer to a remote place."""
    with ShardWriter("memory://forked-writer/x-%06d.tar") as writer:
        writer.write({"__key__": "a", ".txt": b"x"})
        call_in_child(writer.discard)
        assert len(os.listdir(temporary)) == 2
    assert os.listdir(temporary) == []
    assert [shard["nsamples"] for shard in writer.shards] == [1]


def test_a_directory_that_somebody_planted_stays(temporary, monkeypatch):
    """Who takes the name first, in a place where all may write, is told and not cleaned up after."""
    make_part = tempdirs.atomic.make_part

    def slowly(prefix):
        mark, fd = make_part(prefix)
        os.makedirs(os.path.join(mark.removesuffix(".part"), "theirs"))
        return mark, fd

    monkeypatch.setattr(tempdirs.atomic, "make_part", slowly)
    with pytest.raises(CacheError, match="TMPDIR"), tempdirs.directory("verify"):
        pass
    [place] = os.listdir(temporary)
    assert os.listdir(temporary / place) == ["theirs"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_packing_to_a_name_that_is_not_utf_8(tmp_path, jobs):
    """It is written down as it is, and a second run finds all done."""
    (tmp_path / "in").mkdir()
    for k in range(4):
        (tmp_path / "in" / f"{k}.txt").write_text(str(k))
    pattern = os.fsdecode(os.fsencode(tmp_path) + b"/out/a\xff-%06d.tar")
    code, out, _ = run("pack", tmp_path / "in", "--format", "files", "--samples", 2, "--jobs", jobs, "-o", pattern)
    assert (code, "4 samples in 2 shards" in out) == (0, True)
    assert not [name for name in os.listdir(tmp_path / "out") if "packing" in name]


LINES = [
    b"\xff\xfe",
    b"\0" * 50,
    b"[" * 100_000,
    b'{"k": 0, "inputs": "\xff", "entry": null}',
    b'{"k": 1e999}',
    b"null",
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_journals_that_a_disk_made_something_of(tmp_path, line):
    """Lines that are none are passed over, behind one that was cut."""
    line = b'{"k": \n' + line
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.json.packing").write_bytes(line + b"\n")
    code, out, _ = run("pack", tmp_path / "in", "--format", "files", "-o", tmp_path / "out/a-%06d.tar")
    assert (code, "1 sample in 1 shard" in out) == (0, True)
    for suffix in (".state", ".journal"):
        (tmp_path / f"i.json{suffix}").write_bytes(line + b"\n")
    with contextlib.closing(
        KnownShards(str(tmp_path / "i.json"), ShardResult, writer="wids index", is_current=lambda _: True)
    ) as known:
        assert known.records == {}


@pytest.mark.parametrize(
    "predicate", ["(" * 5000 + "true" + ")" * 5000, "not " * 900 + "true", "regexp_matches('x', 'x{99999999999}')"]
)
def test_predicates_that_are_too_much(predicate):
    """They are refused as others that are none, or are answered."""
    with contextlib.suppress(QueryError):
        assert find_rows(SampleTable(samples=1), predicate).tolist() in ([0], [])


@pytest.mark.parametrize("base", [3, {"a": 1}, ["x"]])
@pytest.mark.parametrize("name", ["base", "base_path"])
def test_update_of_an_index_with_a_base_that_is_none(tmp_path, name, base):
    """The error names it."""
    place = tmp_path / "i.json"
    place.write_text(json.dumps({"wids_version": 1, name: base, "shardlist": [{"url": "a.tar", "nsamples": 1}]}))
    with pytest.raises(SpecError, match=f"{name}: Expected"):
        update_index(str(place))


def test_info_of_shards_whose_dataset_is_no_name(tmp_path):
    """A list or an object there is shown as it is written."""
    shards = [{"url": f"{k}.tar", "nsamples": 1, "dataset": name} for k, name in enumerate([[1, 2], {"a": 1}, "b"])]
    (tmp_path / "i.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    code, out, _ = run("info", tmp_path / "i.json")
    assert '{"a": 1}' in out
    assert code == 1  # its shards are not there


ADDRESSES = ["ray://", ":6379", "127.0.0.1:-1", "127.0.0.1:99999", "127.0.0.1:x", "foo", "[::1:5", "ray://h:x"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_ray_addresses_that_are_none(address):
    """They are refused at once, and an example says what one is."""
    with pytest.raises(WidsError, match=r"is no address of a Ray cluster.*10\.0\.0\.1:6379"):
        ray_cluster.check_reachable(address, lambda: "127.0.0.1")


@pytest.mark.parametrize("address", [None, "auto", "local", "http://127.0.0.1:1", "anyscale://x"])
def test_ray_addresses_that_ray_knows(address, monkeypatch):
    """Whatever Ray itself finds, or explains, is left to it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_cluster.check_reachable(address, lambda: "127.0.0.1")


@pytest.mark.outside
@pytest.mark.parametrize(
    "error", [Exception("The current node timed out during startup"), OSError("no port"), KeyError(1)]
)
def test_a_ray_that_does_not_start(error, monkeypatch):
    """Whatever Ray raises for that is a typed error with Ray's words, and nothing of it stays."""
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before, handler = ray._private.worker.print_to_stdstream, signal.getsignal(signal.SIGTERM)

    def init(**_):
        raise error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError, match=f"no Ray cluster at this machine .*{re.escape(str(error))}"):
        ray_cluster.connect().__enter__()
    assert ray._private.worker.print_to_stdstream is before
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.outside
def test_errors_of_handlers_are_none_of_ray(monkeypatch):
    """A program's own handler may raise while Ray starts."""
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    raised = JobError("stopped")

    def init(**_):
        raise raised

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(JobError) as caught:
        ray_cluster.connect().__enter__()
    assert caught.value is raised


def test_simulating_hundreds_who_wait_for_room_looks_once_for_all_of_them(monkeypatch):
    """A small job through a far too small cache is figured out, not gone through for each who waits at each moment."""
    looks = 0
    reserve = NodeCache.reserve

    def counted(node, *args, **options):
        nonlocal looks
        looks += 1
        return reserve(node, *args, **options)

    monkeypatch.setattr(NodeCache, "reserve", counted)
    lengths = np.full(100, 20)
    job = TrainingJob(
        lengths=lengths,
        sizes=lengths * 0 + 1_000_000,
        footprints=lengths * 0 + 1_010_000,
        world=32,
        batch_size=4,
        workers=8,
        lanes=5,
        cache_size=10_000_000,
    )
    found = Simulation(job, read_epochs(job, job.courses())).run()
    assert found.stopped_at is None
    assert looks < 20 * found.total("shards")
