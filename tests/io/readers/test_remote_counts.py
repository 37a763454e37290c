"""How many samples remote shards hold that no index lists: counted once for a machine, anew when they change."""

import io
import sys
import threading
from collections import Counter

import pytest

import wids
from tests.support import cache_shards as shards
from tests.support.servers import status, whole
from tests.support.tars import publish
from wids.core.collection.shard_collection import ShardCollection, load_shards
from wids.core.files.shared_files import SharedFiles
from wids.core.index.spec import list_shards
from wids.core.readers import remote_counts
from wids.core.readers.provider import AutoProvider
from wids.core.readers.remote_counts import SUFFIX, RemoteCounts, ShardCount
from wids.errors import NoRangesError, ShardNotFoundError, TarError

NAMES = ("/a.tar", "/b.tar", "/c.tar")


def pack(rows, size=3000):
    """A shard of samples of two members."""
    return shards.pack([(f"{row:03d}.{kind}", bytes(size)) for row in range(rows) for kind in ("txt", "bin")])


@pytest.fixture
def web(server):
    """A server that gives ranges, with shards of 3, 1 and 2 samples."""
    server.has_ranges = True
    for name, rows in zip(NAMES, (3, 1, 2), strict=True):
        server.add(name, pack(rows))
    return server


def listed(server, names=NAMES):
    """These shards, without counts."""
    found = list_shards([f"{server.url}{name}" for name in names])
    return [found[k] for k in range(len(found))]


def headers_read(server):
    """The shards of which headers were read since the last call; for its version each is asked for a byte or less."""
    sent, server.sent_bytes = server.sent_bytes, Counter()
    return sorted(name for name, size in sent.items() if name.endswith(".tar") and size > 512)


def test_counts_are_kept_for_all_processes(web, tmp_path, caplog):
    """The next one reads no header; a shard that was replaced is counted anew, as is a list of other shards."""
    cache_dir = str(tmp_path)
    wanted = [ShardCount(rows, len(web.files[name])) for name, rows in zip(NAMES, (3, 1, 2), strict=True)]
    assert RemoteCounts(cache_dir=cache_dir).count(listed(web)) == wanted
    assert f"{web.url}/a.tar and 2 more: no index says how many samples" in caplog.text
    assert "wids index create" in caplog.text
    assert headers_read(web) == [*NAMES]
    caplog.clear()
    assert RemoteCounts(cache_dir=cache_dir).count(listed(web)) == wanted
    assert (headers_read(web), caplog.text) == ([], "")
    web.add("/b.tar", pack(5))
    assert [each.nsamples for each in RemoteCounts(cache_dir=cache_dir).count(listed(web))] == [3, 5, 2]
    assert [each.nsamples for each in RemoteCounts(cache_dir=cache_dir).count(listed(web, NAMES[1:]))] == [5, 2]


def test_a_long_count_says_how_far_it_is(web, tmp_path, set_limits, caplog):
    """Now and then, not for each shard."""
    RemoteCounts(cache_dir=str(tmp_path / "a")).count(listed(web))
    assert "shards are counted" not in caplog.text
    set_limits(remote_counts, told_seconds=0.0)
    RemoteCounts(cache_dir=str(tmp_path / "b")).count(listed(web))
    assert [record.getMessage() for record in caplog.records if "are counted" in record.getMessage()] == [
        f"{k} of 3 shards are counted" for k in (1, 2)
    ]


def test_on_a_terminal_a_bar_says_how_far_it_is(web, set_limits, caplog, monkeypatch):
    """In the place of log lines."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    set_limits(remote_counts, told_seconds=0.0)
    assert [each.nsamples for each in RemoteCounts(cache_dir=None).count(listed(web))] == [3, 1, 2]
    assert "counting samples of shards" in screen.getvalue()
    assert "3/3" in screen.getvalue()
    assert "are counted" not in caplog.text


def test_processes_that_start_together_count_once(web, tmp_path):
    """The others wait for the one that counts."""
    found = []
    counts = [RemoteCounts(cache_dir=str(tmp_path)) for _ in range(4)]
    threads = [threading.Thread(target=lambda each=each: found.append(each.count(listed(web)))) for each in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[each.nsamples for each in counted] for counted in found] == [[3, 1, 2]] * 4
    assert sum(web.sent_bytes[name] for name in NAMES) < 1.5 * sum(len(web.files[name]) for name in NAMES)


@pytest.mark.parametrize("damage", [b"[3,1]", b"{}", b"[3,1,-2]", b"[3,"])
def test_damaged_counts_are_made_again(web, tmp_path, damage):
    """They are no longer than the list, and counts."""
    counts = RemoteCounts(cache_dir=str(tmp_path))
    counts.count(listed(web))
    (path,) = (tmp_path / ".wids/indexes").glob(f"*{SUFFIX}")
    SharedFiles(str(tmp_path), SUFFIX).put(path.name.removesuffix(SUFFIX), damage)
    assert [each.nsamples for each in counts.count(listed(web))] == [3, 1, 2]


def test_without_versions_or_a_directory_nothing_is_kept(web, tmp_path):
    """A server that does not tell versions apart, a dataset without a cache, another grouping: counted each time."""
    rule = lambda name: (name.split(".")[0][:2], name)  # noqa: E731
    for options in ({"cache_dir": None}, {"cache_dir": str(tmp_path), "rule": rule}):
        counts = RemoteCounts(**options)
        for _ in range(2):
            nsamples = [each.nsamples for each in counts.count(listed(web))]
            assert nsamples == ([1, 1, 1] if "rule" in options else [3, 1, 2])
            assert headers_read(web) == [*NAMES]
    web.validators = ()
    for _ in range(2):
        assert [each.nsamples for each in RemoteCounts(cache_dir=str(tmp_path)).count(listed(web))] == [3, 1, 2]
        assert headers_read(web) == [*NAMES]
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_published_tables_are_enough(web, tmp_path):
    """Where they are, no header is read."""
    for name in NAMES:
        publish(web, name)
    assert [each.nsamples for each in RemoteCounts(cache_dir=str(tmp_path)).count(listed(web))] == [3, 1, 2]
    assert headers_read(web) == []


def test_what_cannot_be_counted_is_an_error_and_nothing_is_kept(web, tmp_path):
    """A shard that is not there, one that is none, a server without ranges; the others are not waited for."""
    counts = RemoteCounts(cache_dir=str(tmp_path))
    with pytest.raises(ShardNotFoundError, match=r"gone\.tar"):
        counts.count(listed(web, (*NAMES, "/gone.tar")))
    web.add("/odd.tar", b"<html>" * 500)
    with pytest.raises(TarError, match=r"odd\.tar"):
        counts.count(listed(web, (*NAMES, "/odd.tar")))
    web.has_ranges = False
    with pytest.raises(NoRangesError, match="no byte ranges to count them by; make an index"):
        counts.count(listed(web))
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_a_count_survives_a_server_that_fails_now_and_then(web, tmp_path):
    """As any read does."""
    web.add("/b.tar", pack(5), status(503), whole)
    assert [each.nsamples for each in RemoteCounts(cache_dir=str(tmp_path)).count(listed(web))] == [3, 5, 2]


def test_a_dataset_of_counted_shards_reads_them(web, tmp_path):
    """By ranges and whole, also beside shards with a count."""
    given = [f"{web.url}/a.tar", (f"{web.url}/b.tar", 1), f"{web.url}/c.tar"]
    for access in ("range", "fetch"):
        dataset = wids.ShardListDataset(given, cache_dir=tmp_path, access=access, transformations=[])
        assert [*dataset.lengths] == [3, 1, 2]
        assert [dataset[k]["__key__"] for k in (2, 3, 5)] == ["002", "000", "001"]


def test_a_collection_without_a_cache_counts_by_ranges_too(web):
    """As `wids simulate` has it, which reads nothing else."""
    _, shards, _ = load_shards([f"{web.url}/a.tar", f"{web.url}/b.tar"])
    collection = ShardCollection(shards, AutoProvider(cache_dir=None))
    collection.count_unknown(has_sizes=True)
    assert [*collection.shards.nsamples] == [3, 1]
    assert [*collection.shards.filesizes] == [len(web.files[name]) for name in NAMES[:2]]


@pytest.mark.parametrize("way", ["local", "fetch", "range", "counted"])
@pytest.mark.parametrize(
    ("rows", "lost", "wanted"),
    [
        ([("\u00e9.jpg", b"1"), ("e\u0301.txt", b"2")], 0, {"AlikeKeys"}),
        ([("a.jpg", b"1")], 50_000, {"BytesUnread"}),
        ([("a.jpg", b"1"), ("b.jpg", b"1"), ("a.txt", b"2")], 0, {"RepeatedKeys"}),
    ],
    ids=["forms", "zeros", "repeated"],
)
def test_oddities_of_shards_are_warnings(server, tmp_path, events, caplog, way, rows, lost, wanted):
    """However a shard without a count is counted, or downloaded: names that look the same, bytes that nothing reads,
    members apart.
    """
    data = shards.pack(rows)
    data = data[: 512 * 2 * len(rows)] + bytes(lost) if lost else data
    place, count = server.add("/odd.tar", data), -1 if way == "counted" else len(rows)
    server.has_ranges = True
    if way == "local":
        (tmp_path / "odd.tar").write_bytes(data)
        place, count = str(tmp_path / "odd.tar"), -1
    options = {} if way == "local" else {"cache_dir": tmp_path / "c"}
    options |= {"access": "range"} if way == "range" else {}
    given = [place] if count < 0 else [(place, len(rows))]
    dataset = wids.ShardListDataset(given, hooks=[events], transformations="raw", **options)
    if way != "counted" or wanted == {"RepeatedKeys"}:  # that is told when it is opened
        assert dataset[0]["__key__"]
    odd = {"AlikeKeys", "BytesUnread", "RepeatedKeys"}
    assert {type(event).__name__ for event in events} & odd == wanted
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().split(":")[0] in odd]
    assert line.split(":")[0] in wanted
    assert "; " in line
