"""Indexes made by the library: what is read of shards, what a second run reads, and what is written."""

import json
import os
import pickle
from pathlib import Path

import fsspec
import pytest

import wids
from tests.support import backends
from tests.support.cache_shards import pack
from tests.support.cli import run
from tests.support.range_faults import WEAK, replaced, said
from tests.support.servers import status, whole
from tests.support.shards import digests, serve, survey_shard, write_json, write_shard, write_shards
from wids import ShardListDataset, jobs
from wids.core.index import checksums, writing
from wids.core.index.discovery import look_local
from wids.core.readers.header_reader import FIRST_BYTES, Window
from wids.core.tables import table as tables
from wids.core.tables import tar
from wids.core.transport import urls
from wids.core.transport.session import Session
from wids.errors import (
    CountMismatchError,
    FetchError,
    InputError,
    JobError,
    OutputError,
    ShardError,
    ShardNotFoundError,
    SpecError,
    WidsError,
    WrongContentError,
)
from wids.jobs import index_create, scan
from wids.jobs.index_create import IndexSettings, create_index
from wids.jobs.index_edit import convert_index, merge_indexes, rebase_index, split_index, update_index
from wids.jobs.journal import KnownShards
from wids.jobs.runner import RunOptions
from wids.jobs.scan import ScanTask, scan_shard


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def urls_in(path):
    """The URLs that an index lists, as written."""
    return [entry["url"] for entry in read(path)["shardlist"]]


@pytest.fixture
def ranged(server):
    """A server that gives ranges."""
    server.has_ranges = True
    return server


@pytest.fixture
def bucket(tmp_path):
    """A directory of fsspec's memory: (URL, file system)."""
    filesystem = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    yield f"memory:/{root}", filesystem
    filesystem.rm(root, recursive=True)


# --- what sources name


@pytest.mark.parametrize("place", [1, 2, 4])
@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_checksums_are_of_one_version(ranged, headers, place, monkeypatch):
    """From a server without strong versions a shard comes in one stream: its sums, size and table are of one file."""
    monkeypatch.setattr(scan, "_REMOTE_BYTES", 2000)
    old, new = (pack([(f"{k}.txt", tag * 700) for k in range(9)]) for tag in (b"o", b"n"))
    faults = [*[whole] * place, replaced(new), whole]
    url = ranged.add("/a.tar", old, *(said(fault, **headers) for fault in faults))
    facts = scan_shard(ScanTask(url=url, checksums=checksums.KEYS))
    assert {key: getattr(facts, key) for key in checksums.KEYS} in (digests(old), digests(new))


# --- one shard


def scanned(data, **options):
    """(members, reads) of an archive through a window."""
    reads = []

    def read_at(offset, count):
        assert offset + count <= len(data)
        reads.append((offset, count))
        return data[offset : offset + count]

    window = Window(read_at, len(data), **options)
    members = list(tar.scan(window.read, len(data), shard="s.tar"))
    return members, reads, window


def test_small_members_are_read_through():
    """Thousands of small members cost few reads, each byte once, and give what a plain scan gives."""
    data = pack([(f"{k:05d}.txt", b"x" * 3000) for k in range(3000)])
    members, reads, _ = scanned(data)
    assert members == list(tar.scan(lambda at, n: data[at : at + n], len(data), shard="s.tar"))
    assert len(reads) <= 6
    ends = [lo + n for lo, n in reads]
    assert all(end <= lo for end, (lo, _) in zip(ends, reads[1:], strict=False))


def test_large_members_are_skipped():
    """Of members of 3 MB, with a small one beside each, a hundredth is read, in a read for each."""
    data = pack([(f"{k}.{ext}", bytes(n)) for k in range(8) for ext, n in (("mp4", 3_000_000), ("json", 200))])
    members, reads, _ = scanned(data)
    assert len(members) == 16
    assert len(reads) <= 11
    assert sum(n for _, n in reads) < len(data) / 25


def test_a_checksum_reads_every_byte_once():
    """For checksums all pieces follow each other, whatever the members' sizes."""
    data = pack([(f"{k}.bin", bytes([k]) * size) for k, size in enumerate((10, 100_000, 0, 70_000, 512, 200_000))])
    members, reads, window = scanned(data, summed_bytes=30_000, checksums=checksums.KEYS, first=data[:10_000])
    assert len(members) == 6
    assert window.digests() == digests(data)
    assert sum(n for _, n in reads) == len(data) - 10_000


def test_a_shard_that_becomes_shorter_is_truncated():
    """A source that ends before its size is an error with the shard's name, not a loop."""
    data = pack([(f"{k}.bin", bytes(300_000)) for k in range(4)])
    window = Window(lambda at, n: data[at : min(at + n, 600_000)], len(data))
    with pytest.raises(ShardError, match=r"s\.tar: truncated"):
        list(tar.scan(window.read, len(data), shard="s.tar"))


def test_scan_agrees_everywhere(tmp_path, ranged, bucket, no_waits):
    """Local, by ranges, from fsspec and without ranges: the same entry but for the URL, with and without checksums;
    a CRC-32 costs nothing where all bytes pass in one request, or are of one version for sure.
    """
    path = write_shard(tmp_path / "s.tar", 5)
    data = Path(path).read_bytes()
    url, filesystem = bucket
    filesystem.pipe_file(f"{url}/s.tar", data)
    with serve(tmp_path) as plain:
        places = [path, ranged.add("/s.tar", data), f"{url}/s.tar", f"{plain.url}/s.tar", f"file://{path}"]
        for place in places:
            assert survey_shard(place) == {"url": place, "nsamples": 5, "filesize": len(data), **digests(data)}
            is_passing = place.startswith(("http", "memory"))
            passing = {"crc32": digests(data)["crc32"]} if is_passing else {}
            assert survey_shard(place, checksums=()) == {"url": place, "nsamples": 5, "filesize": len(data), **passing}


def test_remote_headers_alone_are_read(ranged):
    """Of a shard with large members, a small part comes."""
    data = pack([(f"{k}.mp4", bytes(2_000_000)) for k in range(6)])
    found = scan_shard(ScanTask(url=ranged.add("/v.tar", data)))
    assert found.nsamples == 6
    assert found.read_bytes < len(data) / 20
    assert found.requests <= 9


def test_shards_that_cannot_be_scanned(tmp_path, ranged, no_waits):
    """Not there, not a tar, a page: each says so in words with the URL."""
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"x" * 2000)
    ranged.add("/page.tar", b"<!doctype html><html>" + b" " * 600)
    ranged.add("/gone.tar", b"", status(404))
    for url, kind, words in (
        (str(tmp_path / "no.tar"), ShardNotFoundError, "there is no file"),
        (str(junk), ShardError, "not a tar header"),
        (ranged.url + "/page.tar", WrongContentError, "web page"),
        (ranged.url + "/gone.tar", ShardNotFoundError, r"gone\.tar"),
    ):
        with pytest.raises(kind, match=words):
            scan_shard(ScanTask(url=url))


# --- member tables


@pytest.mark.parametrize("has_md5", [False, True])
def test_tables_are_published_beside_local_shards(tmp_path, has_md5):
    """SHARD.widx is there, belongs to the shard as it is, and a dataset opens it."""
    shards = write_shards(tmp_path / "d", (3, 2))
    wanted = IndexSettings(has_tables=True, has_md5=has_md5)
    told = create_index([str(tmp_path / "d")], str(tmp_path / "d/i.json"), settings=wanted)
    assert told.tables == {}
    path = shards[0]["url"]
    table = tables.parse_table(Path(path + ".widx").read_bytes(), shard=path)
    facts = os.stat(path)
    assert (table.identity.size, table.identity.mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    assert list(table.keys()) == ["s0-000", "s0-001", "s0-002"]
    assert len(ShardListDataset(str(tmp_path / "d/i.json"))) == 5


def test_tables_go_beside_the_index_where_a_place_cannot_be_written(tmp_path, ranged, bucket):
    """A bucket takes them beside its shards; a web server does not, and two of one name do not meet."""
    url, filesystem = bucket
    data = pack([("a.txt", b"1")])
    filesystem.pipe_file(f"{url}/s.tar", data)
    places = [ranged.add("/a/s.tar", data), ranged.add("/b/s.tar", data), f"{url}/s.tar"]
    told = create_index(places, str(tmp_path / "i.json"), settings=IndexSettings(has_tables=True))
    assert filesystem.exists(f"{url}/s.tar.widx")
    assert list(told.tables) == places[:2]
    assert os.path.basename(told.tables[places[0]]) == "s.tar.widx"
    assert len(set(told.tables.values())) == 2
    for path in told.tables.values():
        assert tables.parse_table(Path(path).read_bytes(), shard="s").nsamples == 1


# --- incremental, resumable


def test_only_what_changed_is_read_again(tmp_path):
    """By size and mtime; a broken state only costs reading; md5 sums and tables are had where they are wanted."""
    shards = write_shards(tmp_path / "d", (3, 2, 1))
    output = str(tmp_path / "d/i.json")
    sources = [str(tmp_path / "d")]
    assert create_index(sources, output).surveyed == 3
    told = create_index(sources, output)
    assert (told.surveyed, told.unchanged, told.samples) == (0, 3, 6)
    write_shard(shards[1]["url"], 7)
    told = create_index(sources, output)
    assert (told.surveyed, told.unchanged, told.samples) == (1, 2, 11)
    assert create_index(sources, output, settings=IndexSettings(has_md5=True)).surveyed == 3
    assert all("md5sum" in entry for entry in read(output)["shardlist"])
    assert create_index(sources, output).unchanged == 3
    assert not any("md5sum" in entry for entry in read(output)["shardlist"])
    assert create_index(sources, output, settings=IndexSettings(has_tables=True)).surveyed == 3
    assert create_index(sources, output, settings=IndexSettings(has_tables=True)).unchanged == 3
    os.unlink(shards[0]["url"] + ".widx")
    assert create_index(sources, output, settings=IndexSettings(has_tables=True)).surveyed == 1
    Path(output + ".state").write_bytes(b'{"url": 3}\n[]\n\xff\n')
    assert create_index(sources, output).surveyed == 3


def test_the_state_moves_with_its_directory(tmp_path):
    """Shards below the index are known by their relative place."""
    write_shards(tmp_path / "d", (3, 2))
    create_index([str(tmp_path / "d")], str(tmp_path / "d/i.json"))
    (tmp_path / "d").rename(tmp_path / "e")
    assert create_index([str(tmp_path / "e")], str(tmp_path / "e/i.json")).unchanged == 2


def test_unchanged_remote_shards_cost_a_request(tmp_path, ranged):
    """What the server says of size and version decides; another version is read."""
    urls = [ranged.add(f"/s{k}.tar", pack([(f"{j}.txt", b"x") for j in range(k + 1)])) for k in range(3)]
    output = str(tmp_path / "i.json")
    assert create_index(urls, output).samples == 6
    del ranged.requests[:]
    told = create_index(urls, output)
    assert (told.unchanged, len(ranged.requests)) == (3, 3)
    ranged.add("/s1.tar", pack([(f"{j}.txt", b"y") for j in range(2)]))
    told = create_index(urls, output)
    assert (told.surveyed, told.unchanged) == (1, 2)


def test_a_server_without_ranges_is_read_as_a_whole(tmp_path, no_waits):
    """Each shard once; what it says of their age still tells which are unchanged."""
    write_shards(tmp_path / "d", (2, 1))
    with serve(tmp_path / "d") as server:
        urls = [f"{server.url}/s{k}.tar" for k in range(2)]
        output = str(tmp_path / "i.json")
        assert create_index(urls, output, settings=IndexSettings(has_md5=True)).samples == 3
        assert create_index(urls, output).unchanged == 2
        os.utime(tmp_path / "d/s1.tar", (1, 1))
        told = create_index(urls, output)
        assert (told.surveyed, told.unchanged) == (1, 1)


def test_checksums_by_default(tmp_path, ranged):
    """Of local shards, and of remote ones that are read whole for their headers; or of all, or of none."""
    write_shards(tmp_path / "d", (1, 2))
    wide = pack([(f"{k}.mp4", bytes(2_000_000)) for k in range(3)])
    sources = [str(tmp_path / "d"), ranged.add("/small.tar", pack([("a.txt", b"1")])), ranged.add("/wide.tar", wide)]

    def crcs(checksums=None, **settings):
        output = str(tmp_path / f"{checksums}.json")
        create_index(sources, output, settings=IndexSettings(checksums=checksums, **settings))
        return [entry.get("crc32") for entry in read(output)["shardlist"]]

    wanted = [digests(Path(tmp_path / f"d/s{k}.tar").read_bytes())["crc32"] for k in range(2)]
    small = digests(ranged.files["/small.tar"])["crc32"]
    assert crcs() == [*wanted, small, None]
    assert crcs(True) == [*wanted, small, digests(wide)["crc32"]]
    assert crcs(False) == [None] * 4
    assert crcs() == [*wanted, small, None]  # from the last run
    assert "md5sum" not in read(tmp_path / "None.json")["shardlist"][0]


ODD = {
    "behind": pack([("a.txt", b"1")]) + pack([("b.txt", b"2")]),
    "empty": pack([]),
    "unnamed": pack([("README", b"1"), ("._a.jpg", b"2"), ("d/.hidden.txt", b"3")]),
    "zeros": pack([("a.txt", b"1")])[:1024] + bytes(30_000),
    "forms": pack([("\u00e9.jpg", b"1"), ("e\u0301.txt", b"1")]),
    "sound": pack([("a.txt", b"1"), ("README", b"1"), ("b.txt", b"1"), ("a.txt", b"2")]),
}


@pytest.mark.parametrize("checksums", [None, False])
@pytest.mark.parametrize("is_local", [True, False])
def test_what_is_in_no_sample_is_counted(tmp_path, ranged, is_local, checksums):
    """Bytes behind the end marker, shards without a sample, files without an extension, keys that repeat; also of
    shards that have counts are not read again.
    """
    output, sources = str(tmp_path / "i.json"), []
    for name, data in ODD.items():
        (tmp_path / f"{name}.tar").write_bytes(data)
        sources.append(str(tmp_path / f"{name}.tar") if is_local else ranged.add(f"/{name}.tar", data))
    for count in (6, 0):
        told = create_index(sources, output, settings=IndexSettings(checksums=checksums))
        assert told.surveyed == count
        assert told.behind == {sources[0]: len(ODD["behind"]) // 2}
        assert told.empty == {sources[1]: 0, sources[2]: 3}
        assert told.zeros == {sources[3]: 30_000}
        assert (told.left_files, told.repeated_keys, told.alike_keys, told.samples) == (4, 1, 1, 7)


@pytest.mark.parametrize("validators", [("ETag",), ("Last-Modified",)], ids=["strong", "weak"])
@pytest.mark.parametrize("size", [20_000, 300_000, 700_000])
def test_a_shard_that_is_nearly_read_is_read_whole(tmp_path, ranged, validators, size):
    """Where members are short, ranges have nearly all bytes: the rest comes, too, and the index has a checksum."""
    ranged.validators = validators
    data = pack([(f"{k:03d}.jpg", bytes([k % 251]) * size) for k in range(6_000_000 // size)])
    url = ranged.add("/a.tar", data)
    del ranged.requests[:]
    told = create_index(url, str(tmp_path / "i.json"))
    [entry] = read(tmp_path / "i.json")["shardlist"]
    assert entry["crc32"] == digests(data)["crc32"]
    assert entry["nsamples"] == told.samples == 6_000_000 // size
    assert len(ranged.requests) <= 8
    assert told.read_bytes <= len(data) + FIRST_BYTES


@pytest.mark.parametrize("validators", [("ETag",), ("Last-Modified",)], ids=["strong", "weak"])
def test_long_payloads_are_passed_over(tmp_path, ranged, validators):
    """Of long members, headers alone come, and no checksum; so it is without checksums of any server."""
    ranged.validators = validators
    wide = pack([(f"{k}.mp4", bytes(2_500_000)) for k in range(4)])
    dense = pack([(f"{k:03d}.jpg", bytes(20_000)) for k in range(100)])
    url = ranged.add("/w.tar", wide)
    create_index(url, str(tmp_path / "i.json"))
    assert "crc32" not in read(tmp_path / "i.json")["shardlist"][0]
    assert ranged.sent_bytes["/w.tar"] < len(wide) / 4
    url = ranged.add("/d.tar", dense)
    create_index(url, str(tmp_path / "d.json"), settings=IndexSettings(checksums=False))
    assert "crc32" not in read(tmp_path / "d.json")["shardlist"][0]


# --- counts of other tools


@pytest.fixture
def claimed(tmp_path):
    """Shards that cannot be read, and counts of two of them: the sources, and a function of settings -> the index."""
    for name in ("00000.tar", "00001.tar", "00002.tar"):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"not read")

    def create(counts, **settings):
        settings = IndexSettings(counts=tuple(map(str, counts)), **settings)
        return create_index([str(tmp_path / "d")], str(tmp_path / "i.json"), settings=settings)

    return tmp_path / "d", create


def test_counts_of_other_tools(claimed):
    """``sizes.json`` with numbers or digits, img2dataset's stats, from one directory, are taken without a look at the
    shards; how many came from where is told, as are those that are of no shard. Shards without a count are read.
    """
    directory, create = claimed
    write_json(directory / "sizes.json", {"00000.tar": 10, "./00001.tar": "20", "00009.tar": 7})
    write_json(directory / "00002_stats.json", {"count": 40, "successes": 30, "failed_to_download": 10})
    told = create([directory])
    assert (told.counted, told.surveyed, told.samples, told.unused_counts) == (3, 0, 60, ["00009.tar"])
    assert told.counts == {str(directory / "sizes.json"): 2, str(directory / "00002_stats.json"): 1}
    entries = read(directory.parent / "i.json")["shardlist"]
    assert [entry["nsamples"] for entry in entries] == [10, 20, 30]
    assert entries[0] == {"url": "d/00000.tar", "nsamples": 10, "filesize": 8}
    with pytest.raises(ShardError, match=r"00002\.tar"):  # read, for it has no count
        create([directory / "sizes.json"])
    with pytest.raises(ShardError, match=r"0000[0-2]\.tar"):  # what was taken by its count is not known
        create([])


def test_a_wrong_count_is_an_error_when_the_shard_is_opened(tmp_path):
    """A count is a claim."""
    write_shard(tmp_path / "a.tar", 3)
    counts = write_json(tmp_path / "sizes.json", {"a.tar": 4})
    output = str(tmp_path / "i.json")
    told = create_index([str(tmp_path / "a.tar")], output, settings=IndexSettings(counts=(counts,)))
    assert (told.counted, told.samples) == (1, 4)
    with pytest.raises(CountMismatchError):
        ShardListDataset(output)[0]


def test_remote_shards_are_asked_nothing_where_there_are_counts(ranged, bucket, tmp_path):
    """An index of shards on servers, by a file there or here, is made of the counts alone."""
    ranged.add("/d/sizes.json", json.dumps({f"{k:05}.tar": k for k in range(50)}).encode())
    settings = IndexSettings(counts=(f"{ranged.url}/d/sizes.json",))
    told = create_index([f"{ranged.url}/d/{{00000..00049}}.tar"], str(tmp_path / "i.json"), settings=settings)
    assert (told.counted, told.samples) == (50, sum(range(50)))
    assert not [path for path in ranged.requests if path.endswith(".tar")]
    assert read(tmp_path / "i.json")["shardlist"][7] == {"url": f"{ranged.url}/d/00007.tar", "nsamples": 7}
    url, filesystem = bucket
    filesystem.pipe_file(f"{url}/x.tar", b"not read")
    filesystem.pipe_file(f"{url}/x_stats.json", b'{"successes": 5}')
    told = create_index([f"{url}/"], str(tmp_path / "j.json"), settings=IndexSettings(counts=(f"{url}/",)))
    assert (told.counted, told.samples, told.bytes) == (1, 5, 8)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"sizes.json": {}}, "has no counts"),
        ({"sizes.json": {"00000.tar": -1}}, "no number of samples"),
        ({"sizes.json": {"00000.tar": 1.5}}, "no number of samples"),
        ({"sizes.json": {"00000.tar": True}}, "no number of samples"),
        ({"sizes.json": {"00000.tar": "many" * 1000}}, "no number of samples"),
        ({"00000_stats.json": {"successes": None}}, "no number of samples"),
        ({"00000_stats.json": {"count": 3}}, None),
        ({"sizes.json": {"00000.tar": 1}, "00000_stats.json": {"successes": 2}}, "give one of them"),
        ({"notes.json": {"00000.tar": 1}}, r"there is no sizes\.json"),
    ],
)
def test_counts_that_are_none_are_refused(claimed, files, words):
    """By file and name, shortened."""
    directory, create = claimed
    for name, value in files.items():
        write_json(directory / name, value)
    with pytest.raises(WidsError, match=words) as refused:
        create([directory])
    if words:
        assert type(refused.value) is InputError
    assert len(str(refused.value)) < 500


def test_a_count_that_is_there_twice(claimed):
    """Is one where both are the same, and else an error, as in two files."""
    directory, create = claimed
    path = directory / "sizes.json"
    path.write_text('\ufeff{"00000.tar": 7, "00000.tar": "7", "00001.tar": 2, "00002.tar": 0}', "utf-8")
    assert create([path]).counts == {str(path): 3}
    path.write_text('{"00000.tar": 7, "00001.tar": 2, "00000.tar": 8}')
    with pytest.raises(InputError, match=r"says that 00000\.tar has 8 samples, .* says 7; give one of them"):
        create([path])


def test_counts_of_a_name_that_several_shards_have(tmp_path):
    """Each takes the count beside it; one that could be of either is refused."""
    for part, count in (("train", 10), ("val", 3)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "0.tar").write_bytes(b"not read")
        write_json(tmp_path / part / "sizes.json", {"0.tar": count})
    sources, output = [str(tmp_path / "train"), str(tmp_path / "val")], str(tmp_path / "i.json")
    create_index(sources, output, settings=IndexSettings(counts=tuple(sources)))
    assert [entry["nsamples"] for entry in read(output)["shardlist"]] == [10, 3]
    whole = write_json(tmp_path / "sizes.json", {"train/0.tar": 10, "val/0.tar": 3})
    create_index(sources, output, settings=IndexSettings(counts=(whole,)))
    assert [entry["nsamples"] for entry in read(output)["shardlist"]] == [10, 3]
    other = write_json(tmp_path / "sizes.json", {"0.tar": 10})
    with pytest.raises(InputError, match="2 shards have this name"):
        create_index(sources, output, settings=IndexSettings(counts=(other,)))
    for setting in ({"has_md5": True}, {"checksums": True}, {"has_tables": True}):
        with pytest.raises(InputError, match="shards that have counts are not read"):
            create_index(sources, output, settings=IndexSettings(counts=(whole,), **setting))


def test_tables_of_long_names_are_kept_beside_the_index(tmp_path):
    """A name of 252 bytes has no room for the table's ending, nor 240 for that of a file that is being written."""
    for length in (252, 240, 220):
        write_shard(tmp_path / "d/s.tar", 2)
        os.rename(tmp_path / "d/s.tar", tmp_path / "d" / ("n" * (length - 4) + ".tar"))
    told = create_index([str(tmp_path / "d")], str(tmp_path / "i.json"), settings=IndexSettings(has_tables=True))
    assert (told.shards, len(told.tables)) == (3, 2)
    for path in told.tables.values():
        assert len(tables.parse_table(Path(path).read_bytes(), shard="s.tar")) == 2


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    """What was read before is not read again, though the last line was cut; at the end the journal is gone."""
    shards = write_shards(tmp_path / "d", (1, 2, 3))
    output = str(tmp_path / "d/i.json")
    journal = KnownShards(output, scan.ShardResult, writer="wids index")
    for shard in shards[:2]:
        facts = scan_shard(ScanTask(url=shard["url"], checksums=("crc32",)))
        journal.add(facts.kept(facts.url))
    journal.close()
    with open(output + ".journal", "ab") as file:
        file.write(b'{"url": "s2.t')
    told = create_index([str(tmp_path / "d")], output)
    assert (told.surveyed, told.unchanged, told.samples) == (1, 2, 6)
    assert sorted(os.listdir(tmp_path / "d")) == ["i.json", "i.json.state", "s0.tar", "s1.tar", "s2.tar"]


def test_a_failed_run_keeps_what_it_read_and_the_old_index(tmp_path):
    """The first shard that cannot be read ends it; the index is as before; the next run has the rest already."""
    write_shards(tmp_path / "d", (1, 2))
    output = str(tmp_path / "d/i.json")
    create_index([str(tmp_path / "d")], output)
    old = Path(output).read_bytes()
    write_shard(tmp_path / "d/s2.tar", 3)
    (tmp_path / "d/s3.tar").write_bytes(b"x" * 5000)
    with pytest.raises(WidsError, match=r"s3\.tar"):
        create_index([str(tmp_path / "d")], output, engine=RunOptions(jobs=1))
    assert Path(output).read_bytes() == old
    assert "s2.tar" in Path(output + ".journal").read_text()
    told = create_index([str(tmp_path / "d")], output, settings=IndexSettings(is_skipping=True))
    assert (told.surveyed, told.unchanged, list(told.failed)) == (0, 3, [str(tmp_path / "d/s3.tar")])
    assert urls_in(output) == ["s0.tar", "s1.tar", "s2.tar"]
    assert not os.path.exists(output + ".journal")


def test_none_readable_is_a_failure(tmp_path):
    """An index of nothing is not written, even if errors are skipped."""
    (tmp_path / "a.tar").write_bytes(b"")
    with pytest.raises(JobError, match="none of 1 shards can be read"):
        create_index([str(tmp_path)], str(tmp_path / "i.json"), settings=IndexSettings(is_skipping=True))
    assert sorted(os.listdir(tmp_path)) == ["a.tar"]


@pytest.mark.parametrize(
    ("output", "words"), [("d", "is a directory"), ("x.tar", "name of a shard"), ("no/i.json", "no directory")]
)
def test_outputs_that_cannot_be(tmp_path, output, words):
    """Refused before anything is read."""
    write_shards(tmp_path / "d", (1,))
    with pytest.raises(OutputError, match=words):
        create_index([str(tmp_path / "d")], str(tmp_path / output))
    with pytest.raises(OutputError, match="written to a local file"):
        create_index([str(tmp_path / "d")], "s3://b/i.json")


# --- engines


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_the_index_does_not_depend_on_the_engine(tmp_path, engine):
    """The same bytes, whatever ran it."""
    write_shards(tmp_path / "d", (3, 1, 2))
    create_index([str(tmp_path / "d")], str(tmp_path / "a.json"), name="n")
    options = RunOptions(engine=engine, jobs=2)
    create_index([str(tmp_path / "d")], str(tmp_path / "b.json"), name="n", engine=options)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


# --- what is written


def test_urls_are_relative_where_they_can_be(tmp_path, ranged):
    """Below the index's directory; other paths are absolute, other URLs whole; a dataset reads them all."""
    inside, outside = write_shard(tmp_path / "out/d/a.tar", 1), write_shard(tmp_path / "b.tar", 2)
    far = ranged.add("/c.tar", Path(outside).read_bytes())
    odd = write_shard(tmp_path / "out/x::y.tar", 1)
    output = str(tmp_path / "out/i.json")
    create_index([inside, outside, far, odd], output)
    assert urls_in(output) == ["d/a.tar", outside, far, "./x::y.tar"]
    dataset = ShardListDataset(output, cache_dir=str(tmp_path / "cache"))
    assert len([dataset[i] for i in range(len(dataset))]) == 6


def test_a_base_is_where_the_shards_will_lie(tmp_path):
    """URLs are relative to it: as the shards lie below their common directory, or below the base itself."""
    write_shard(tmp_path / "d/x/a.tar", 1)
    write_shard(tmp_path / "d/b.tar", 2)
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "d")], output, base="gs://b/train", info="words")
    index = read(output)
    assert (index["base"], index["info"], sorted(urls_in(output))) == ("gs://b/train", "words", ["b.tar", "x/a.tar"])
    create_index([str(tmp_path / "d")], output, base="d")
    assert sorted(urls_in(output)) == ["b.tar", "x/a.tar"]
    assert len(ShardListDataset(output)) == 3


def test_natural_order_and_names():
    """Numbers by value; words of a name once."""
    wanted = ["s1.tar", "s2.tar", "s10.tar", "t.tar"]
    assert sorted(["s10.tar", "t.tar", "s2.tar", "s1.tar"], key=urls.natural_key) == wanted
    assert writing.shorten_name("gs://b/train-000") == "gs-b-train"
    assert writing.common_directory(["s3://b/x/1.tar", "s3://b/x/y/2.tar"]) == "s3://b/x"
    assert writing.common_directory(["/a/b/1", "/a/bc/2"]) == "/a"
    assert writing.common_directory(["s3://b/1", "gs://b/1"]) == ""


def test_index_text_is_json_with_a_line_a_shard():
    """It reads back, strange names too."""
    entries = [{"url": "h\xe9\udcff.tar", "nsamples": 1}, {"url": "b", "nsamples": 2}]
    text = writing.dump_index(writing.make_index(entries, name="n"))
    assert json.loads(text)["shardlist"] == entries
    assert len(text.splitlines()) == 9


# --- update, merge, split, rebase


def test_malformed_indexes_are_refused_by_place(tmp_path):
    """The path to the bad value and the index it stands in."""
    path = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": [{"url": "a", "nsamples": "x"}]})
    with pytest.raises(SpecError, match=r"i\.json: shardlist\[0\]\.nsamples"):
        update_index(path)
    with pytest.raises(SpecError, match="it has no shardlist"):
        rebase_index(write_json(tmp_path / "j.json", {"wids_version": 1}), "x")
    with pytest.raises(FetchError):
        update_index(str(tmp_path / "none.json"))
    with pytest.raises(OutputError, match="cannot be written"):
        index_create.Indexing(str(tmp_path / "no/i.json"), IndexSettings(), RunOptions(jobs=2), None)
    assert look_local(str(tmp_path / "none.tar")).size is None
    assert scan.ShardResult(url="a", nsamples=1, filesize=2).entry() == {"url": "a", "nsamples": 1, "filesize": 2}


@pytest.mark.parametrize("store", [backends.s3, backends.gs])
def test_a_bucket(tmp_path, no_waits, store):
    """A prefix is listed, tables lie beside the shards, and what the listing says is unchanged is asked for nothing."""
    output = str(tmp_path / "i.json")
    with store() as buckets:
        place = buckets.place()
        found = [place.add(f"d/s{k}.tar", pack([(f"{j}.txt", b"x") for j in range(k + 1)])) for k in (10, 2)]
        place.add("d/notes.txt", b"x")
        wanted = IndexSettings(has_tables=True, session=Session(place.options))
        told = create_index([f"{place.url}/d/"], output, settings=wanted)
        assert (told.samples, told.surveyed, told.tables) == (14, 2, {})
        assert urls_in(output) == [found[1], found[0]]
        before = len(place.requests(found[0]))
        told = create_index([f"{place.url}/d/"], output, settings=wanted)
        assert (told.unchanged, len(place.requests(found[0])) - before) == (2, 0)
        place.add("d/s2.tar", pack([(f"{j}.txt", b"y") for j in range(3)]))
        told = create_index(found, output, settings=wanted)
        assert (told.surveyed, told.unchanged) == (1, 1)


def test_member_tables_of_a_shard_that_was_replaced_are_made_again(tmp_path):
    """--members makes the table of a changed shard anew, although a run without it has read the shard already."""
    shard, output = tmp_path / "a.tar", str(tmp_path / "i.json")
    write_shard(shard, 2)
    create_index([str(shard)], output, settings=IndexSettings(has_tables=True))
    write_shard(shard, 40)
    create_index([str(shard)], output)
    create_index([str(shard)], output, settings=IndexSettings(has_tables=True))
    assert run("verify", output)[0] == 0
    assert create_index([str(shard)], output, settings=IndexSettings(has_tables=True)).unchanged == 1


def test_a_full_disk_is_told_with_the_name_of_the_index(tmp_path, monkeypatch):
    """When the journal cannot be written, the error says of which index, and what to do."""
    write_shard(tmp_path / "a.tar", 3)

    def fail(*_):
        raise OSError(28, "No space left on device")

    log = KnownShards(str(tmp_path / "i.json"), scan.ShardResult, writer="wids index")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(OutputError, match=r"i\.json: cannot be written .*free space"):
            log.add(scan.ShardResult(url="a.tar", nsamples=0, filesize=0))
    log.close()
    monkeypatch.setattr(writing, "dump_index", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match=r"i\.json: cannot be written .*free space"):
        create_index([str(tmp_path / "a.tar")], str(tmp_path / "i.json"))


# --- key rules

DOTTED = pack([(f"sp0.{k}-BAC{k}.{kind}", b"%d" % k) for k in range(5) for kind in ("wav", "txt")])
APART = pack([(f"{k}.{kind}", b"%d" % k) for kind in ("txt", "cls") for k in range(3)])


def put(path, data):
    """A shard of these bytes: its path."""
    path.write_bytes(data)
    return str(path)


@pytest.fixture
def ruled(tmp_path):
    """Shards whose names have dots, and an index with the rule for them: its path."""
    put(tmp_path / "s0.tar", DOTTED)
    put(tmp_path / "s1.tar", DOTTED)
    told = create_index(str(tmp_path / "s*.tar"), str(tmp_path / "i.json"), settings=IndexSettings(rule="last-dot"))
    assert (told.samples, told.rule, told.group, told.merged) == (10, "last-dot", "adjacent", {})
    return tmp_path / "i.json"


FIRST = jobs.VerifySettings(rule="first-dot")


def keys_of(index, **options):
    """The keys of a dataset."""
    return [sample["__key__"] for sample in ShardListDataset(str(index), transformations="raw", **options)]


WANTED = [f"sp0.{k}-BAC{k}" for k in range(5)] * 2


def test_an_index_keeps_how_it_was_counted(ruled, tmp_path, caplog):
    """The dataset, its pickles and views, a second run, updates and a compiled index heed the key rule."""
    assert read(ruled)["key_rule"] == "last-dot"
    assert "group" not in read(ruled)
    assert keys_of(ruled) == WANTED
    dataset = ShardListDataset(str(ruled), transformations="raw")
    assert pickle.loads(pickle.dumps(dataset))[7]["__key__"] == WANTED[7]
    dataset.select([3, 8]).save(tmp_path / "view.json")
    assert keys_of(tmp_path / "view.json") == [WANTED[3], WANTED[8]]
    convert_index(str(ruled), str(tmp_path / "i.widsx"))
    assert keys_of(tmp_path / "i.widsx") == WANTED
    [rest, _] = split_index(str(ruled), [str(tmp_path / "p-{}.json")], parts=lambda _: [range(1), range(1, 2)])
    assert keys_of(rest.output) == WANTED[:5]
    merge_indexes([str(ruled)], str(tmp_path / "m.json"))
    assert keys_of(tmp_path / "m.json") == WANTED
    again = create_index(str(tmp_path / "s*.tar"), str(ruled))
    assert (again.samples, again.unchanged, again.rule) == (10, 2, "last-dot")
    put(tmp_path / "s2.tar", DOTTED)
    assert update_index(str(ruled), add=str(tmp_path / "s2.tar")).samples == 15
    assert caplog.text == ""


def test_another_rule_counts_again(ruled, tmp_path):
    """A second run with another rule takes no count of the first, and the index says the new one."""
    told = update_index(str(ruled), settings=IndexSettings(rule="first-dot"))
    assert (told.samples, told.surveyed, told.unchanged, told.merged) == (2, 2, 0, {})
    assert read(ruled)["key_rule"] == "first-dot"
    assert len(keys_of(ruled)) == 2
    apart = put(tmp_path / "apart.tar", APART)
    assert create_index(apart, str(tmp_path / "a.json")).repeated_keys == 3
    told = create_index(apart, str(tmp_path / "a.json"), settings=IndexSettings(group="key"))
    assert (told.samples, told.repeated_keys, read(tmp_path / "a.json")["group"]) == (3, 0, "key")
    assert keys_of(tmp_path / "a.json") == ["0", "1", "2"]


def test_an_argument_that_contradicts_the_index(ruled, caplog):
    """It wins, and is said; the error of the counts says how the index is written with it."""
    dataset = ShardListDataset(str(ruled), key_rule="first-dot", transformations="raw")
    assert "key_rule='first-dot' is given, and the index says 'last-dot'" in caplog.text
    with pytest.raises(CountMismatchError, match="with key_rule='last-dot' it would be as many"):
        dataset[0]
    caplog.clear()
    assert keys_of(ruled, key_rule="last-dot") == WANTED
    dataset = ShardListDataset(str(ruled), group="key", transformations="raw")
    assert [sample["__key__"] for sample in dataset] == WANTED
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key_rule": "last-dot"}, r"\(wids index create --key-rule last-dot\)"),
        ({"group": "key", "key_rule": "last-dot"}, r"\(wids index create --key-rule last-dot --group key\)"),
        ({}, r"\(wids index create\)"),
        ({"key_rule": lambda name: (name, ".x")}, r"it cannot keep a function as key_rule"),
    ],
)
def test_advice_about_counts_names_the_rule(tmp_path, options, words):
    """An index that is written again as the message says has the counts of this dataset."""
    path = put(tmp_path / "s.tar", DOTTED)
    with pytest.raises(CountMismatchError, match=words):
        ShardListDataset([(path, 99)], **options)[0]


def test_jobs_heed_the_rule_of_an_index(ruled, tmp_path):
    """Verify, columns, queries, packing and downloads; what cannot be is refused with the reason."""
    verified = jobs.verify(str(ruled))
    assert (verified.wrong, sum(each.nsamples for each in verified.findings)) == ([], 10)
    [count] = {problem.kind for each in jobs.verify(str(ruled), FIRST).wrong for problem in each.problems}
    assert count == "count"
    jobs.create_columns(str(ruled), spec=jobs.parse_spec(texts=[".txt=t"]))
    dataset = ShardListDataset(str(ruled))
    assert dataset.read_column("t").tolist() == [str(k) for k in range(5)] * 2
    how = jobs.PackSettings(output=str(tmp_path / "out/p-%d.tar"), numbers_keys=True)
    assert jobs.pack(str(ruled), how, engine=RunOptions(jobs=1)).samples == 10
    assert len(ShardListDataset(str(tmp_path / "out/p.json"))) == 10
    with pytest.raises(SpecError, match="'last-dot' and 'adjacent'; saved member tables hold the standard grouping"):
        jobs.create_tables(str(ruled))
    with pytest.raises(InputError, match="saved member tables hold the standard grouping alone"):
        create_index(str(tmp_path / "s0.tar"), str(ruled), settings=IndexSettings(has_tables=True))
    with pytest.raises(InputError, match="an index cannot keep a function"):
        create_index(str(tmp_path / "s0.tar"), str(ruled), settings=IndexSettings(rule=str.split))
    with pytest.raises(InputError, match="last_dot"):
        update_index(str(ruled), settings=IndexSettings(rule="last_dot"))


def test_columns_follow_another_rule(ruled):
    """Parts of shards that were grouped otherwise are not used again, though the shards have not changed."""
    spec = jobs.parse_spec(texts=[".txt=t"])
    assert jobs.create_columns(str(ruled), spec=spec).samples == 10
    update_index(str(ruled), settings=IndexSettings(rule="first-dot"))
    assert (told := jobs.create_columns(str(ruled), spec=spec)).samples == 2
    assert (told.surveyed, told.unchanged) == (2, 0)


def test_warming_heeds_the_rule(tmp_path, ranged):
    """The counts of an index with another rule are not compared with the cache's own tables."""
    url = ranged.add("/dotted.tar", DOTTED)
    create_index(url, str(tmp_path / "i.json"), settings=IndexSettings(rule="last-dot"))
    warmed = jobs.warm(str(tmp_path / "i.json"), jobs.WarmSettings(directory=str(tmp_path / "c")))
    assert (warmed.failed, warmed.fetched) == ({}, 1)
    assert keys_of(tmp_path / "i.json", cache_dir=tmp_path / "c") == WANTED[:5]
    assert keys_of(tmp_path / "i.json", cache_dir=tmp_path / "d", access="range") == WANTED[:5]


def test_indexes_of_different_rules_do_not_become_one(ruled, tmp_path):
    """Merged, or as sub-datasets: one dataset has one way to group; a mixture of both goes."""
    other = str(tmp_path / "other.json")
    create_index(str(tmp_path / "s0.tar"), other)
    with pytest.raises(SpecError, match="groups members by 'last-dot' and 'adjacent', and "):
        merge_indexes([other, str(ruled)], str(tmp_path / "m.json"))
    write_json(
        tmp_path / "m.json", {"wids_version": 1, "datasets": [{"source_url": other}, {"source_url": str(ruled)}]}
    )
    with pytest.raises(SpecError, match="a dataset has one way: open both, and mix them"):
        ShardListDataset(str(tmp_path / "m.json"))
    write_json(tmp_path / "m.json", {"wids_version": 1, "datasets": [{"source_url": str(ruled)}] * 2})
    assert keys_of(tmp_path / "m.json") == WANTED * 2
    assert len(wids.mix([ShardListDataset(other), ShardListDataset(str(ruled))])) == 11


def test_a_view_keeps_the_rule_of_its_dataset(tmp_path, caplog):
    """Also where the index does not say it, and where there is none; a function cannot be kept, which is said."""
    path = put(tmp_path / "s.tar", DOTTED)
    ShardListDataset([path], key_rule="last-dot").select([1]).save(tmp_path / "a.json")
    assert keys_of(tmp_path / "a.json") == WANTED[1:2]
    ShardListDataset([path], key_rule=lambda name: (name, ".x")).select([1]).save(tmp_path / "b.json")
    assert "a function is not kept in an index" in caplog.text


def test_a_rule_that_is_none(tmp_path):
    """An index with an unknown rule is not read by another one."""
    put(tmp_path / "s.tar", DOTTED)
    index = {"wids_version": 1, "key_rule": "middle-dot", "shardlist": [{"url": "s.tar", "nsamples": 1}]}
    write_json(tmp_path / "i.json", index)
    with pytest.raises(SpecError, match="key_rule is 'middle-dot'; it must be"):
        ShardListDataset(str(tmp_path / "i.json"))
    assert len(ShardListDataset(str(tmp_path / "i.json"), options={"key_rule": None})) == 1


@pytest.mark.parametrize("group", ["imagenet", ["a"], 5])
def test_a_group_of_somebody_else(tmp_path, caplog, group):
    """An index may have the key for something else: a warning says that it is ignored, and it is kept."""
    put(tmp_path / "s.tar", DOTTED)
    shard = {"url": "s.tar", "nsamples": 1}
    parts = [{"group": group, "shardlist": [shard]}, {"group": "b", "shardlist": [shard]}]
    path, two = str(tmp_path / "i.json"), str(tmp_path / "two.json")
    write_json(tmp_path / "i.json", {"wids_version": 1, "group": group, "shardlist": [shard]})
    write_json(tmp_path / "two.json", {"wids_version": 1, "datasets": parts})
    assert [len(ShardListDataset(each)) for each in (path, two)] == [1, 2]
    convert_index(path, str(tmp_path / "i.widsx"))
    caplog.clear()
    assert len(ShardListDataset(str(tmp_path / "i.widsx"), group="key")) == 1
    [record] = caplog.records
    assert f"group is {group!r}, which is no way to group members" in record.getMessage()
    update_index(path)
    assert read(path)["group"] == group
    merge_indexes([path], str(tmp_path / "merged.json"))
    create_index(str(tmp_path / "s.tar"), path)
    for place in ("merged.json", "i.json"):
        assert "group" not in read(tmp_path / place)


@pytest.mark.parametrize("way", ["list", "index", "remote"])
def test_names_with_dots_are_hinted_at(tmp_path, ranged, caplog, events, way):
    """Where samples are counted, a warning shows two names that became one sample; a rule that is given ends it."""
    place = ranged.add("/d.tar", DOTTED) if way == "remote" else put(tmp_path / "d.tar", DOTTED)
    if way == "index":
        told = create_index(place, str(tmp_path / "i.json"))
        assert told.merged == {place: ("sp0", ".0-BAC0.wav", ".1-BAC1.wav")}
        assert create_index(place, str(tmp_path / "i.json"), settings=IndexSettings(rule="first-dot")).merged == {}
        assert create_index(place, str(tmp_path / "i.json")).merged == {}
        return
    assert len(ShardListDataset([place], hooks=[events], cache_dir=tmp_path / "c")) == 1
    [event] = [event for event in events if type(event).__name__ == "MergedNames"]
    assert (event.key, event.fields) == ("sp0", (".0-BAC0.wav", ".1-BAC1.wav"))
    assert "key_rule='last-dot' takes them apart" in caplog.text
    caplog.clear()
    for rule, count in (("first-dot", 1), ("last-dot", 5)):
        assert len(ShardListDataset([place], key_rule=rule, cache_dir=tmp_path / rule)) == count
    assert "MergedNames" not in caplog.text


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_rule_that_takes_samples_apart_is_told(tmp_path, ranged, is_remote):
    """By the last dot, a mask is a sample of its own: the outcome says so, also of unchanged shards; else not."""
    data = pack([(f"{k}.{kind}", b"1") for k in "ab" for kind in ("jpg", "seg.png")])
    place = ranged.add("/d.tar", data) if is_remote else put(tmp_path / "d.tar", data)
    told = create_index(place, str(tmp_path / "i.json"), settings=IndexSettings(rule="last-dot"))
    assert (told.samples, told.apart) == (4, {place: ("a", "a.seg", 2)})
    again = create_index(place, str(tmp_path / "i.json"))
    assert (again.unchanged, again.apart) == (1, told.apart)
    told = create_index(place, str(tmp_path / "i.json"), settings=IndexSettings(rule="first-dot"))
    assert (told.samples, told.apart) == (2, {})
