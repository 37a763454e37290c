"""Indexes made by the library: what is found, what is read of it, what a second run reads, and what is written."""

import gzip
import hashlib
import json
import os
import re
from pathlib import Path

import fsspec
import pytest

from tests.support import backends
from tests.support.cache_shards import pack
from tests.support.range_faults import WEAK, replaced, said
from tests.support.servers import status, whole
from tests.support.shards import digests, serve, survey_shard, write_index, write_json, write_shard, write_shards
from wids import ShardListDataset
from wids.errors import (
    CountMismatchError,
    FetchDeniedError,
    FetchError,
    InputError,
    JobError,
    OutputError,
    SelectionError,
    ShardError,
    ShardNotFoundError,
    SpecError,
    WidsError,
    WrongContentError,
)
from wids.index import checksums, discovery, writing
from wids.index.discovery import find_shards, look_local
from wids.jobs import index_create, scan
from wids.jobs.index_create import IndexSettings, KnownShards, create_index
from wids.jobs.index_edit import merge_indexes, rebase_index, split_index, update_index
from wids.jobs.runner import RunOptions
from wids.jobs.scan import ScanTask, scan_shard
from wids.readers.header_reader import Window
from wids.tables import table as tables
from wids.tables import tar
from wids.transport import urls


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def urls_in(path):
    """The URLs that an index lists, as written."""
    return [entry["url"] for entry in read(path)["shardlist"]]


def names(found):
    """The last parts of what was found."""
    return [os.path.basename(shard.url) for shard in found]


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


def test_sources_give_shards_in_natural_order(tmp_path, monkeypatch):
    """Directories, globs and braces in natural order, sources as given, each shard once; other files do not count."""
    monkeypatch.chdir(tmp_path)
    for name in ("d/s10.tar", "d/s2.tar", "d/deep/s1.tar", "e/x.tar", "d/notes.txt", "d/.hidden.tar"):
        write_shard(name, 1)
    assert names(find_shards(["d"])) == ["s1.tar", "s2.tar", "s10.tar"]
    assert names(find_shards(["d/s*.tar"])) == ["s2.tar", "s10.tar"]
    assert names(find_shards(["d/s{10,2}.tar", "d/s2.tar", "e/"])) == ["s10.tar", "s2.tar", "x.tar"]
    found = find_shards(["e/x.tar"])[0]
    assert (found.url, found.size) == (str(tmp_path / "e/x.tar"), os.stat("e/x.tar").st_size)


def test_a_name_with_braces_or_stars_is_a_name_first(tmp_path):
    """A file that is really called so is that file."""
    for name in ("a{1,2}.tar", "b[1].tar"):
        path = write_shard(tmp_path / name, 1)
        assert [shard.url for shard in find_shards([path])] == [path]


def test_links_are_followed_each_file_once(tmp_path):
    """Directories and files that are links, links in circles, two names of one file: each file comes once, by the name
    that is no link, and the others are named.
    """
    write_shard(tmp_path / "elsewhere/far.tar", 1)
    for name in ("s2.tar", "S3.TAR", "deep/s1.tar"):
        write_shard(tmp_path / "d" / name, 1)
    os.symlink("../elsewhere", tmp_path / "d/linked")
    os.symlink("..", tmp_path / "d/deep/loop")
    os.symlink("s2.tar", tmp_path / "d/a-link.tar")
    os.link(tmp_path / "d/s2.tar", tmp_path / "d/same.tar")
    named = discovery.look_for_shards([str(tmp_path / "d")])
    assert [url.removeprefix(f"{tmp_path}/d/") for url in named.found] == [
        *("S3.TAR", "deep/s1.tar", "linked/far.tar", "s2.tar")
    ]
    assert set(map(os.path.basename, named.repeated)) == {"a-link.tar", "same.tar"}
    assert set(named.repeated.values()) == {str(tmp_path / "d/s2.tar")}
    assert set(names(find_shards([str(tmp_path / "*")]))) == {"S3.TAR", "s1.tar", "far.tar", "s2.tar"}


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.tar.zst", "x.TAR.XZ", "dangling.tar"])
@pytest.mark.parametrize("source", ["d", "d/*"])
def test_what_looks_like_a_shard_and_is_none_is_named(tmp_path, name, source):
    """Compressed archives and links to nothing: an error, or left out and listed."""
    write_shard(tmp_path / "d/s0.tar", 2)
    if name.startswith("x"):
        (tmp_path / "d" / name).write_bytes(gzip.compress(Path(tmp_path / "d/s0.tar").read_bytes()))
    else:
        os.symlink("gone.tar", tmp_path / "d" / name)
    (tmp_path / "d/._s0.tar").write_bytes(b"of macOS")
    output = str(tmp_path / "i.json")
    if source == "d/*":
        os.unlink(tmp_path / "d/._s0.tar")
    with pytest.raises(WidsError, match=re.escape(name)):
        create_index([str(tmp_path / source)], output)
    told = create_index([str(tmp_path / source)], output, settings=IndexSettings(is_skipping=True))
    assert (told.shards, list(map(os.path.basename, told.failed))) == (1, [name])
    assert ("gzip" if name.startswith("x") else "link to gone.tar") in str(told.failed)


def test_compressed_objects_at_a_prefix_are_named(bucket, tmp_path):
    """As in a directory."""
    url, filesystem = bucket
    data = pack([("a.txt", b"1")])
    for name, body in (("a.tar", data), ("b.TAR", data), ("c.tgz", gzip.compress(data)), ("notes.txt", b"x")):
        filesystem.pipe_file(f"{url}/{name}", body)
    told = create_index([f"{url}/"], str(tmp_path / "i.json"), settings=IndexSettings(is_skipping=True))
    assert (told.shards, list(map(os.path.basename, told.failed))) == (2, ["c.tgz"])


def test_a_directory_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    """It is no empty one."""
    write_shard(tmp_path / "d/s0.tar", 1)
    write_shard(tmp_path / "d/closed/s1.tar", 1)
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(FetchDeniedError, match="closed: this directory cannot be read"):
        create_index([str(tmp_path / "d")], str(tmp_path / "i.json"))
    with pytest.raises(FetchDeniedError):
        find_shards([str(tmp_path / "d")])
    told = create_index([str(tmp_path / "d")], str(tmp_path / "i.json"), settings=IndexSettings(is_skipping=True))
    assert (told.shards, list(told.failed)) == (1, [str(tmp_path / "d/closed")])


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


def test_marks_of_a_listing(bucket, monkeypatch):
    """They are those that a look at the object gives, so that a second run reads nothing again."""
    url, filesystem = bucket
    filesystem.pipe(f"{url.removeprefix('memory:/')}/a.tar", pack([("x.txt", b"x")]))
    real = type(filesystem).info
    tagged = lambda self, path, **options: {**real(self, path, **options), "ETag": 'W/"1"'}  # noqa: E731
    monkeypatch.setattr(type(filesystem), "info", tagged)
    monkeypatch.setattr(type(filesystem), "find", lambda self, path, **_: {f"{path}/a.tar": self.info(f"{path}/a.tar")})
    (found,) = find_shards([f"{url}/"])
    assert found.mark == scan.look_remote(found.url).mark == '"1"'


def test_a_remote_name_with_stars_is_a_name_first(bucket):
    """The object that is really called so; where there is none, it is a pattern."""
    url, filesystem = bucket
    objects = ("a[1].tar", "a1.tar", "b*.tar", "b2.tar", "c?.tar", "c3.tar")
    for name in objects:
        filesystem.pipe(f"{url.removeprefix('memory:/')}/{name}", pack([("x.txt", name.encode())]))
    for name in ("a[1].tar", "b*.tar", "c?.tar"):
        (found,) = find_shards([f"{url}/{name}"])
        assert (found.url, found.size) == (f"{url}/{name}", 10240)
        filesystem.rm_file(f"{url.removeprefix('memory:/')}/{name}")
    patterns = [f"{url}/{name}" for name in ("a[1].tar", "b*.tar", "c?.tar")]
    assert names(find_shards(patterns)) == list(objects[1::2])


@pytest.mark.parametrize(
    ("source", "words"),
    [("empty", "no .tar files in this directory"), ("x*.tar", "no file has a name like this"), ("a{.tar", "brace")],
)
def test_sources_that_name_nothing_are_refused(tmp_path, monkeypatch, source, words):
    """A sentence, not an empty index."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=words):
        find_shards([source])


def test_remote_prefixes_and_patterns_are_listed(bucket):
    """A prefix gives all shards below it, a glob those it matches, with sizes; an empty one is refused."""
    url, filesystem = bucket
    for name in ("s10.tar", "s2.tar", "deep/s1.tar", "readme.md"):
        filesystem.pipe_file(f"{url}/{name}", pack([("a.txt", b"1")]))
    found = find_shards([f"{url}/"])
    assert names(found) == ["s1.tar", "s2.tar", "s10.tar"]
    assert found[1].size == len(pack([("a.txt", b"1")]))
    assert names(find_shards([f"{url}/s*.tar"])) == ["s2.tar", "s10.tar"]
    with pytest.raises(SpecError, match=r"no \.tar files at this prefix"):
        find_shards([f"{url}/nowhere/"])


def test_a_web_directory_is_listed_by_its_links(tmp_path):
    """A page with links gives the shards it links to; braces need no page."""
    write_shards(tmp_path / "d", (1, 1))
    with serve(tmp_path) as server:
        server.add("/d/", b'<a href="s0.tar">s0.tar</a> <a href="s1.tar">s1.tar</a>')
        assert names(find_shards([f"{server.url}/d/"])) == ["s0.tar", "s1.tar"]
        assert names(find_shards([f"{server.url}/d/s{{0..1}}.tar"])) == ["s0.tar", "s1.tar"]
        with pytest.raises(ShardNotFoundError, match=r"nothing there \(HTTP knows no globs; name a directory"):
            create_index([f"{server.url}/d/s*.tar"], str(tmp_path / "i.json"))
        with pytest.raises(ShardNotFoundError, match="nothing there; check the URL"):
            create_index([f"{server.url}/d/s7.tar"], str(tmp_path / "i.json"))


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
    a CRC-32 costs nothing where all bytes pass, and all are of one version.
    """
    path = write_shard(tmp_path / "s.tar", 5)
    data = Path(path).read_bytes()
    url, filesystem = bucket
    filesystem.pipe_file(f"{url}/s.tar", data)
    with serve(tmp_path) as plain:
        places = [path, ranged.add("/s.tar", data), f"{url}/s.tar", f"{plain.url}/s.tar", f"file://{path}"]
        for place in places:
            assert survey_shard(place) == {"url": place, "nsamples": 5, "filesize": len(data), **digests(data)}
            is_passing = place.startswith("http")
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


@pytest.mark.parametrize("checksums", [None, False])
def test_update_has_the_checksums_of_the_index(tmp_path, checksums):
    """New shards as those that are there: with them, or without; an index of md5s has both."""
    write_shards(tmp_path / "d", (1, 2))
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "d")], output, settings=IndexSettings(checksums=checksums))
    write_shard(tmp_path / "d/s9.tar", 3)
    update_index(output, add=[str(tmp_path / "d")])
    assert ["crc32" in entry for entry in read(output)["shardlist"]] == [checksums is None] * 3
    update_index(output, settings=IndexSettings(has_md5=True))
    os.utime(tmp_path / "d/s0.tar", (1, 1))
    update_index(output)
    assert all({"crc32", "md5sum"} <= entry.keys() for entry in read(output)["shardlist"])


def test_update_adds_no_file_twice(tmp_path):
    """A shard that is there by another name is not added, and named."""
    write_shards(tmp_path / "d", (1, 2))
    output = str(tmp_path / "i.json")
    create_index([str(tmp_path / "d")], output)
    os.symlink("d", tmp_path / "e")
    told = update_index(output, add=[str(tmp_path / "e")])
    assert (told.shards, told.added, len(told.repeated)) == (2, 0, 2)
    os.symlink("gone.tar", tmp_path / "x.tar")
    with pytest.raises(ShardNotFoundError):  # it was never in the index
        update_index(output, add=[str(tmp_path / "x.tar")], settings=IndexSettings(is_dropping_missing=True))


ODD = {
    "behind": pack([("a.txt", b"1")]) + pack([("b.txt", b"2")]),
    "empty": pack([]),
    "unnamed": pack([("README", b"1"), ("._a.jpg", b"2"), ("d/.hidden.txt", b"3")]),
    "sound": pack([("a.txt", b"1"), ("README", b"1"), ("b.txt", b"1"), ("a.txt", b"2")]),
}


@pytest.mark.parametrize("checksums", [None, False])
@pytest.mark.parametrize("is_local", [True, False])
def test_what_is_in_no_sample_is_counted(tmp_path, ranged, is_local, checksums):
    """Bytes behind the end marker, shards without a sample, files without an extension, keys that repeat; also of
    shards that are not read again.
    """
    output, sources = str(tmp_path / "i.json"), []
    for name, data in ODD.items():
        (tmp_path / f"{name}.tar").write_bytes(data)
        sources.append(str(tmp_path / f"{name}.tar") if is_local else ranged.add(f"/{name}.tar", data))
    for count in (4, 0):
        told = create_index(sources, output, settings=IndexSettings(checksums=checksums))
        assert told.surveyed == count
        assert told.behind == {sources[0]: len(ODD["behind"]) // 2}
        assert told.empty == {sources[1]: 0, sources[2]: 3}
        assert (told.left_files, told.repeated_keys, told.samples) == (4, 1, 4)


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
    with pytest.raises(ShardError, match=r"00000\.tar"):  # what was taken by its count is not known
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
        with pytest.raises(InputError, match="shards that are not read"):
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
    journal = KnownShards(output)
    for shard in shards[:2]:
        journal.add(scan_shard(ScanTask(url=shard["url"], checksums=("crc32",))))
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
        create_index([str(tmp_path / "d")], output, options=RunOptions(jobs=1))
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
    create_index([str(tmp_path / "d")], str(tmp_path / "b.json"), name="n", options=options)
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


def test_update_reads_what_changed_and_keeps_the_rest(tmp_path):
    """Own keys of index and shards stay; changed counts are new; what is added comes last; what is dropped goes."""
    path = write_index(tmp_path / "d", (3, 4, 2), name="i.json", other=1)
    index = read(path)
    index["shardlist"][0]["weight"] = 2
    write_json(path, index)
    write_shard(tmp_path / "d/s1.tar", 9)
    extra = write_shard(tmp_path / "d/more/s9.tar", 1)
    told = update_index(path, add=[extra, str(tmp_path / "d/s1.tar")], drop=["s2*"])
    assert (told.added, told.dropped, told.samples) == (1, 1, 13)
    index = read(path)
    assert index["other"] == 1
    assert [(e["url"], e["nsamples"], e.get("weight")) for e in index["shardlist"]] == [
        ("s0.tar", 3, 2),
        ("s1.tar", 9, None),
        ("more/s9.tar", 1, None),
    ]
    told = update_index(path)
    assert (told.unchanged, told.surveyed) == (3, 0)


def test_update_keeps_a_shard_that_is_listed_twice(tmp_path):
    """Some weigh shards so; both entries are brought up to date."""
    path = write_index(tmp_path, (3, 4))
    index = read(path)
    write_json(path, {**index, "shardlist": [*index["shardlist"], {**index["shardlist"][0], "extra": 1}]})
    write_shard(tmp_path / "s0.tar", 5)
    told = update_index(path)
    assert (told.shards, told.samples, told.surveyed, told.dropped) == (3, 14, 2, 0)
    assert [(e["url"], e["nsamples"], e.get("extra")) for e in read(path)["shardlist"]][::2] == [
        ("s0.tar", 5, None),
        ("s0.tar", 5, 1),
    ]


def test_update_of_shards_that_are_gone(tmp_path):
    """An error that leaves the index alone, unless they are to be dropped."""
    path = write_index(tmp_path, (3, 4))
    old = Path(path).read_bytes()
    os.unlink(tmp_path / "s0.tar")
    with pytest.raises(WidsError, match="there is no file"):
        update_index(path)
    assert Path(path).read_bytes() == old
    told = update_index(path, settings=IndexSettings(is_dropping_missing=True))
    assert (told.dropped, told.failed, urls_in(path)) == (1, {}, ["s1.tar"])
    with pytest.raises(SelectionError, match="no shard of the index has a name like"):
        update_index(path, drop=["x"])
    with pytest.raises(SelectionError, match="no shards would be left"):
        update_index(path, drop=["*"])


def test_update_keeps_checksums(tmp_path):
    """An index with md5 sums has them afterwards, of the new bytes and of new shards."""
    path = write_index(tmp_path, (3,))
    update_index(path, settings=IndexSettings(has_md5=True))
    write_shard(tmp_path / "s0.tar", 5)
    update_index(path, add=[write_shard(tmp_path / "s1.tar", 1)])
    for entry in read(path)["shardlist"]:
        assert entry["md5sum"] == hashlib.md5((tmp_path / entry["url"]).read_bytes()).hexdigest()


def test_merge(tmp_path):
    """Shards of all, once, in order; URLs still lead there; each knows its dataset; sub-datasets are taken apart."""
    one = write_index(tmp_path / "a", (3, 4))
    two = write_index(tmp_path / "b", (2,))
    write_json(one, {**read(one), "name": "cats"})
    parts = write_json(
        tmp_path / "parts.json", {"wids_version": 1, "datasets": [{"source_url": "b/index.json", "name": "dogs"}]}
    )
    told = merge_indexes([one, parts, two], str(tmp_path / "all.json"))
    assert (told.shards, told.samples, told.repeated) == (3, 9, 1)
    assert urls_in(told.output) == ["a/s0.tar", "a/s1.tar", "b/s0.tar"]
    assert [entry["dataset"] for entry in read(told.output)["shardlist"]] == ["cats", "cats", "dogs"]
    dataset = ShardListDataset(told.output)
    assert [dataset[i]["__dataset__"] for i in (0, 8)] == ["cats", "dogs"]
    with pytest.raises(SpecError, match="make one first"):
        merge_indexes([str(tmp_path / "a/s0.tar")], str(tmp_path / "x.json"))


def test_split(tmp_path):
    """By number and by fractions of the samples; parts hold every shard once, in order, and can be read."""
    path = write_index(tmp_path / "d", (5, 1, 2, 2), name="i.json", info="words")
    told = split_index(path, [str(tmp_path / "p-{}.json")], parts=lambda counts: writing.split_every(len(counts), 3))
    assert [(each.shards, each.samples) for each in told] == [(3, 8), (1, 2)]
    assert urls_in(tmp_path / "p-1.json") == ["d/s3.tar"]
    assert read(tmp_path / "p-0.json")["info"] == "words"
    assert len(ShardListDataset(str(tmp_path / "p-0.json"))) == 8
    outputs = [str(tmp_path / "train.json"), str(tmp_path / "val.json")]
    told = split_index(path, outputs, parts=lambda counts: writing.split_by_fractions(counts, [0.8, 0.2]))
    assert [(each.shards, each.samples) for each in told] == [(3, 8), (1, 2)]
    with pytest.raises(InputError, match="there are 2 parts, and 1 outputs"):
        split_index(path, outputs[:1], parts=lambda counts: writing.split_by_fractions(counts, [0.8, 0.2]))


@pytest.mark.parametrize(
    ("counts", "fractions", "wanted"),
    [
        ([10] * 10, [0.9, 0.1], [9, 1]),
        ([1, 1, 98], [0.5, 0.5], [2, 1]),
        ([0, 0, 0], [0.5, 0.5], [2, 1]),
        ([100, 1, 1], [0.1, 0.1, 0.8], [1, 1, 1]),
        ([5], [1.0], [1]),
    ],
)
def test_fractions(counts, fractions, wanted):
    """Each part has a shard at least, all of them together everything."""
    parts = writing.split_by_fractions(counts, fractions)
    assert [k for part in parts for k in part] == list(range(len(counts)))
    assert [len(part) for part in parts] == wanted


@pytest.mark.parametrize("fractions", [[0.5, 0.6], [1.5, -0.5], [], [0.25] * 4])
def test_fractions_that_cannot_be(fractions):
    """They are positive, add up to 1, and there are shards enough."""
    with pytest.raises(SpecError):
        writing.split_by_fractions([1, 1, 1], fractions)


def test_rebase(tmp_path):
    """Absolute URLs lose what they have in common, relative ones stay; without a base they are beside the index."""
    shards = [{"url": f"gs://b/d/{name}.tar", "nsamples": 1} for name in ("x/a", "b")]
    path = write_json(tmp_path / "i.json", {"wids_version": 1, "name": "n", "shardlist": shards})
    rebase_index(path, "https://h/e")
    assert (read(path)["base"], urls_in(path), read(path)["name"]) == ("https://h/e", ["x/a.tar", "b.tar"], "n")
    rebase_index(path, "", output=str(tmp_path / "j.json"))
    assert "base" not in read(tmp_path / "j.json")
    assert urls_in(tmp_path / "j.json") == ["x/a.tar", "b.tar"]
    path = write_json(tmp_path / "k.json", {**read(path), "shardlist": [{"url": "/d/e/a.tar", "nsamples": 1}]})
    rebase_index(path, "https://h/e")
    assert urls_in(path) == ["a.tar"]
    write_json(path, {"wids_version": 1, "shardlist": [*shards, {"url": "c.tar", "nsamples": 1}]})
    with pytest.raises(SpecError, match="some of the index's URLs are absolute") as refused:
        rebase_index(path, "x")
    assert refused.value.hint == "base"


def test_merging_indexes_that_contradict_each_other(tmp_path):
    """What both say of a shard has to be the same; what one of them does not say is none."""
    shard = write_shard(tmp_path / "s.tar", 3)
    entry = {"url": shard, "nsamples": 3, "filesize": os.stat(shard).st_size}
    one = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [entry]})
    two = write_json(tmp_path / "b.json", {"wids_version": 1, "shardlist": [{**entry, "filesize": None}]})
    assert merge_indexes([one, two], str(tmp_path / "m.json")).repeated == 1
    for key, value in (("nsamples", 4), ("filesize", 5)):
        write_json(tmp_path / "b.json", {"wids_version": 1, "shardlist": [{**entry, key: value}]})
        with pytest.raises(SpecError, match=rf"b\.json: says that {key} of .*s\.tar is {value}, .* says {entry[key]}"):
            merge_indexes([one, two], str(tmp_path / "n.json"))


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
        index_create.Indexing(str(tmp_path / "no/i.json"), IndexSettings(), RunOptions(jobs=2), lambda *_: None)
    assert look_local(str(tmp_path / "none.tar")).size is None
    assert scan.ShardFacts(url="a", nsamples=1, filesize=2).entry() == {"url": "a", "nsamples": 1, "filesize": 2}


@pytest.mark.parametrize("store", [backends.s3, backends.gs])
def test_a_bucket(tmp_path, no_waits, store):
    """A prefix is listed, tables lie beside the shards, and what the listing says is unchanged is asked for nothing."""
    output = str(tmp_path / "i.json")
    with store() as buckets:
        place = buckets.place()
        found = [place.add(f"d/s{k}.tar", pack([(f"{j}.txt", b"x") for j in range(k + 1)])) for k in (10, 2)]
        place.add("d/notes.txt", b"x")
        wanted = IndexSettings(has_tables=True, storage_options=place.options)
        told = create_index([f"{place.url}/d/"], output, settings=wanted)
        assert (told.samples, told.surveyed, told.tables) == (14, 2, {})
        assert urls_in(output) == [found[1], found[0]]
        before = len(place.requests(found[0]))
        told = create_index([f"{place.url}/d/"], output, settings=wanted)
        assert (told.unchanged, len(place.requests(found[0])) - before) == (2, 0)
        place.add("d/s2.tar", pack([(f"{j}.txt", b"y") for j in range(3)]))
        told = create_index(found, output, settings=wanted)
        assert (told.surveyed, told.unchanged) == (1, 1)
