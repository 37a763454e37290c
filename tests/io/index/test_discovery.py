"""Paths, directories, globs, prefixes and pages, and the shards that are found there."""

import gzip
import os
import re
from pathlib import Path

import fsspec
import pytest

import wids
from tests.support.cache_shards import pack
from tests.support.packing import put
from tests.support.shards import serve, write_shard, write_shards
from wids.core.index import discovery
from wids.core.index.discovery import find_shards
from wids.errors import FetchDeniedError, ShardNotFoundError, SpecError, WidsError
from wids.jobs import scan
from wids.jobs.index_create import IndexSettings, create_index


def names(found):
    """The last parts of what was found."""
    return [os.path.basename(shard.url) for shard in found]


@pytest.fixture
def bucket(tmp_path):
    """A directory of fsspec's memory: (URL, file system)."""
    filesystem = fsspec.filesystem("memory")
    root = f"/{tmp_path.name}"
    yield f"memory:/{root}", filesystem
    filesystem.rm(root, recursive=True)


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
    os.symlink("itself", tmp_path / "d/itself")
    os.symlink("s2.tar", tmp_path / "d/a-link.tar")
    os.link(tmp_path / "d/s2.tar", tmp_path / "d/same.tar")
    named = discovery.look_for_shards([str(tmp_path / "d")])
    assert [url.removeprefix(f"{tmp_path}/d/") for url in named.shards] == [
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


def test_what_stands_beside_shards_is_none_of_a_glob(bucket, tmp_path, monkeypatch):
    """Indexes, member tables, columns and journals, here and in a store; a name in full is that file."""
    url, filesystem = bucket
    monkeypatch.chdir(tmp_path)
    beside = (
        "i.json",
        "i.widsx",
        "i.json.state",
        "i.json.journal",
        "s1.tar.widx",
        "s1.tar.idx",
        "i.tables",
        "i.parquet",
    )
    write_shard("d/s1.tar", 1)
    for name in beside:
        (tmp_path / "d" / name).write_text("{}")
        filesystem.pipe_file(f"{url}/{name}", b"{}")
    filesystem.pipe_file(f"{url}/s1.tar", pack([("a.txt", b"1")]))
    assert names(find_shards(["d/*"])) == names(find_shards([f"{url}/*"])) == ["s1.tar"]
    assert names(find_shards(["d/i.json"])) == names(find_shards([f"{url}/i.json"])) == ["i.json"]
    for place in ("d", url):
        with pytest.raises(SpecError, match=r"names indexes, not shards: 'i\.json', 'i\.widsx'; give an index alone"):
            find_shards([f"{place}/i.[jw]*[nx]"])
        with pytest.raises(SpecError, match=r"only files that belong to shards \('i\.parquet', 'i\.tables'\)"):
            find_shards([f"{place}/i.[pt]*"])


def test_a_pattern_that_matches_nothing_names_what_is_there(bucket, tmp_path, monkeypatch):
    """The first files of its directory and their number; or that there is no such directory."""
    url, filesystem = bucket
    monkeypatch.chdir(tmp_path)
    for k in range(1, 12):
        write_shard(f"d/s{k}.tar", 0)
        filesystem.pipe_file(f"{url}/d/s{k}.tar", b"")
    (tmp_path / "e").mkdir()
    there = r"no file has a name like this; the directory has 's1\.tar', 's2\.tar', 's3\.tar' and 8 more"
    for source in ("d/x*.tar", "d/*/s1.tar", f"{url}/d/x*.tar"):
        with pytest.raises(SpecError, match=there):
            find_shards([source])
    for source in ("gone/*.tar", f"{url}/gone/*.tar"):
        with pytest.raises(SpecError, match="no file has a name like this; that directory does not exist"):
            find_shards([source])
    with pytest.raises(SpecError, match="the directory is empty"):
        find_shards(["e/*.tar"])
    filesystem.pipe_file(f"{url}/f/readme.md", b"")
    with pytest.raises(SpecError, match=r"no \.tar files at this prefix; it has 'readme\.md'"):
        find_shards([f"{url}/f/"])


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
        with pytest.raises(ShardNotFoundError, match=r"does not exist \(HTTP knows no globs; name a directory"):
            create_index([f"{server.url}/d/s*.tar"], str(tmp_path / "i.json"))
        with pytest.raises(ShardNotFoundError, match="does not exist; check the URL"):
            create_index([f"{server.url}/d/s7.tar"], str(tmp_path / "i.json"))


def test_what_an_owner_excludes_from_a_directory_is_left_out(tmp_path, caplog):
    """By Energon's files beside the shards, and named; an empty list is nothing, and a pattern has all shards."""
    write_shards(tmp_path, [1, 2, 3])
    splits = tmp_path / ".nv-meta" / "split.yaml"
    splits.parent.mkdir()
    splits.write_text("exclude: []")
    assert len(find_shards([str(tmp_path)])) == 3
    assert caplog.text == ""
    splits.write_text("exclude: [s1.tar, gone.tar]")
    assert [os.path.basename(found.url) for found in find_shards([str(tmp_path)])] == ["s0.tar", "s2.tar"]
    assert f"{splits}: excludes 1 of 3 shards of this directory, which are left out: 's1.tar'; a pattern" in caplog.text
    assert "exclude leaves out 1 shards or samples that do not exist" in caplog.text
    assert len(find_shards([str(tmp_path / "*.tar")])) == 3
    assert len(wids.ShardListDataset(str(tmp_path))) == 4
    for text, words in (
        ("exclude: [s1.tar/000003]", "exclude leaves out 1 single samples"),
        ("exclude: ['s{0..2}.tar']", "its owner excludes all 3 shards"),
        ("exclude: {a: b}", "exclude"),
    ):
        splits.write_text(text)
        with pytest.raises(SpecError, match=words):
            find_shards([str(tmp_path)])


# Format -> the files of a dataset, and words of the way from it.
FOREIGN = {
    "mosaicml": ({"index.json": '{"shards": [], "version": 2}', "shard.00000.mds": "x"}, "streaming.StreamingDataset"),
    "mosaicml in parts": ({"train/index.json": "{}", "train/shard.00000.mds.zstd": "x"}, "streaming.StreamingDataset"),
    "litdata": ({"index.json": '{"chunks": [], "config": {}}', "chunk-0-0.bin": "x"}, "litdata.StreamingDataset"),
    "arrow in splits": ({"dataset_dict.json": "{}", "train/state.json": "{}"}, "the folder of each"),
    "arrow in a cache": ({"imdb-train.arrow": "x", "dataset_info.json": "{}"}, "wids pack 'FOLDER/*.arrow'"),
    "array_record": ({"a.array_record-00000-of-00002": "x"}, "package array_record"),
    "tfrecord": ({"a.tfrecord-00000-of-00002": "x"}, "tf.data.TFRecordDataset"),
    "lance": ({"_versions/1.manifest": "x", "data/1.lance": "x"}, "lance.dataset"),
    "ffcv": ({"train.beton": "x"}, "ffcv"),
    "lmdb": ({"data.mdb": "x", "lock.mdb": "x"}, "package lmdb"),
    "megatron": ({"a_text_document.bin": "x", "a_text_document.idx": "x"}, "indexed_dataset.IndexedDataset"),
    "mxnet": ({"train.rec": "x", "train.idx": "x", "train.lst": "x"}, "mxnet.recordio.MXIndexedRecordIO"),
    "zarr 2": ({".zgroup": "{}", "image/.zarray": "{}", "image/0.0": "x"}, "zarr.open"),
    "zarr 2, an array": ({"image/.zarray": "{}", "image/0.0": "x"}, "zarr.open"),
    "zarr 3": ({"x.zarr/zarr.json": "{}", "x.zarr/image/c/0": "x"}, "zarr.open"),
    "avro": ({"part-0.avro": "x"}, "package fastavro"),
    "parquet": ({"a.parquet": "x", "b.parquet": "x", "README.md": "x"}, "wids pack 'FOLDER/*.parquet'"),
}


@pytest.mark.parametrize(("files", "words"), FOREIGN.values(), ids=FOREIGN)
def test_datasets_of_other_tools_are_recognised(tmp_path, files, words):
    """They are refused with the way to shards, by their folder and by their index, as a dataset and as a source."""
    put(tmp_path / "h", files)
    with pytest.raises(SpecError, match=re.escape(words)) as caught:
        find_shards([str(tmp_path / "h")])
    assert "which wids does not read" in str(caught.value)
    assert "give its file" not in str(caught.value)
    for name in ("", *(files.keys() & {"index.json", "a_text_document.bin", "train.rec", "part-0.avro"})):
        assert words in discovery.recognise_foreign(str(tmp_path / "h" / name))
        if name in ("", "index.json"):
            with pytest.raises(WidsError, match=re.escape(words)):
                wids.ShardListDataset(tmp_path / "h" / name)


@pytest.mark.parametrize("files", [{"a.bin": "x", "b.bin": "y", "b.idx": "z"}, {"a.rec": "x"}, {"a.zattrs": "x"}])
def test_files_that_only_look_like_those_of_other_tools(tmp_path, files):
    """A .bin or .rec without its .idx is any other file."""
    put(tmp_path / "h", files)
    assert [discovery.recognise_foreign(str(tmp_path / "h" / name)) for name in ("", min(files))] == ["", ""]
