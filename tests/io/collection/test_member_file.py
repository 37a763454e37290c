"""Members as files, and parts of members: the bytes of any store, what is read, evicted and replaced shards, copies."""

import contextlib
import copy
import errno
import gc
import io
import itertools
import os
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import wids
from tests.support.cache_shards import pack
from tests.support.children import PATIENCE_SECONDS, call_in_child, child, kill, stop_here
from tests.support.range_faults import WEAK, said
from tests.support.servers import status, whole
from tests.support.tars import publish
from wids.core.collection import member_file
from wids.core.files import system
from wids.core.readers import pool
from wids.core.readers.pool import OpenShards
from wids.core.tables.fields import Alternatives
from wids.core.transport import filesystems
from wids.errors import ChangedShardError, FetchError, InputError, SelectionError, WidsError
from wids.events import RangesRead
from wids.testing.promises import files_open_in

pytestmark = pytest.mark.usefixtures("own_cache", "no_waits")

SIZES = (0, 1, 100, 70_000, 3_000_000, 16_384)
VALUES = [random.Random(k).randbytes(size) for k, size in enumerate(SIZES)]
MEMBERS = [
    (f"s{k}.{name}", data) for k, film in enumerate(VALUES) for name, data in (("mp4", film), ("cls", b"%d" % k))
]
ACCESS = ("local", "fetch", "range", "auto")


@pytest.fixture
def place(server, tmp_path, monkeypatch):
    """A function: (access, members) -> a dataset of one shard, and the events of its reads by ranges.

    A request costs as much as 10 kB, however slow this machine is at the moment.
    """
    server.has_ranges = True
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda *_: 10_000)

    def make(access, members=MEMBERS, *, name="a.tar", faults=(), **options):
        data, events = pack(members), []
        if access == "local":
            path = tmp_path / name
            path.write_bytes(data)
            shards = [(str(path), None)]
        else:
            shards = [(server.add(f"/{name}", data, *faults), len(members) // 2)]
            publish(server, f"/{name}")
            options["access"] = access
        shards = [(url, count or len(members) // 2) for url, count in shards]
        options = {"transformations": None, "hooks": [events.append], **options}
        return wids.ShardListDataset(shards, **options), events

    return make


def read_bytes(events):
    """The bytes that reads by ranges got."""
    return sum(event.size_bytes for event in events if isinstance(event, RangesRead))


# --- parts


@pytest.mark.parametrize("access", ACCESS)
def test_parts_are_slices(place, access):
    """Alone and many at once, in any order, of one shard."""
    dataset, _ = place(access)
    rng = random.Random(7)
    spans = [(0, None), (0, 0), (5, 5), (1 << 40, 1 << 41), (69_999, 70_001), (2, 1 << 50)]
    spans += [(lo := rng.randrange(80_000), lo + rng.randrange(50_000)) for _ in range(30)]
    parts = [(rng.randrange(-6, 6), rng.choice([".mp4", "MP4", "webm;mp4"]), *span) for span in spans]
    assert dataset.read_parts(parts) == [VALUES[i][lo:hi] for i, _, lo, hi in parts]
    assert [dataset.read(*part) for part in parts[:6]] == [VALUES[i][lo:hi] for i, _, lo, hi in parts[:6]]
    assert dataset.read(torch.tensor(3), ".cls") == b"3"
    assert dataset.read_parts([]) == []


def test_parts_of_many_shards(server, tmp_path):
    """Each shard's are read at once; also through a view, and through names of fields."""
    server.has_ranges = True
    shards = []
    for k in range(5):
        shards.append((server.add(f"/{k}.tar", pack([(f"{k}-{j}.bin", b"%d%d" % (k, j) * 50) for j in range(4)])), 4))
        publish(server, f"/{k}.tar")
    dataset = wids.ShardListDataset(shards, access="range", fields={"data": "bin"})
    parts = [(i, "data", 3, 9) for i in (19, 0, 7, 3, 7, 12)]
    wanted = [(b"%d%d" % divmod(i, 4) * 50)[3:9] for i, *_ in parts]
    assert dataset.read_parts(parts) == wanted
    view = dataset.select([3, 7, 12, 19])
    assert view.read_parts([(2, ".bin", 0, 4), (0, "data", 0, 2)]) == [b"3030", b"03"]


def test_parts_cost_what_they_have(place):
    """Of a long member no more is read than was asked for and its header, once."""
    dataset, events = place("range")
    dataset.read(4, ".mp4", 10, 20)
    before = read_bytes(events)
    assert dataset.read_parts([(4, ".mp4", k * 500_000, k * 500_000 + 100) for k in range(1, 6)])
    assert read_bytes(events) - before == 500


def test_bad_parts(place):
    """Each is an error that says what is wrong."""
    dataset, _ = place("local")
    with pytest.raises(IndexError):
        dataset.read(6, ".mp4")
    with pytest.raises(SelectionError, match=r"sample 's1' \(index 1\) in shard .* has no \.jpg, but '\.mp4', '\.cls'"):
        dataset.read(1, ".jpg")
    for lo, hi in ((-1, 5), (5, 4), (0, -1), (0.5, 2), ("0", 1)):
        with pytest.raises(InputError):
            dataset.read(1, ".mp4", lo, hi)
    with pytest.raises(InputError, match="empty"):
        dataset.read(1, "")
    with pytest.raises(TypeError):
        dataset.read(1, 5)
    for bad in ((0, ".mp4"), 5, "text", (0, ".mp4", 0, 1, 2)):
        with pytest.raises(InputError, match=r"each of them is \(index, field, lo, hi\)"):
            dataset.read_parts([bad])
    both, _ = place("local", [("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(SelectionError, match="differ in case alone"):
        both.read(0, ".jpg")


class _Own(wids.ShardListDataset):
    """A dataset whose shards are dicts of its own."""

    def get_shard(self, index):
        return [{"__key__": "k", ".mp4": io.BytesIO(b"film %d" % index), ".cls": b"1"}], 0, {"url": "mine"}


class _Backwards(wids.ShardListDataset):
    """A dataset that reads other samples of the same shards."""

    def get_shard(self, index):
        return super().get_shard(len(self) - 1 - index)


def test_subclasses_with_shards_of_their_own(place, tmp_path):
    """Parts and files are of the sample that their method gives; what it holds in memory stays as it is."""
    place("local")
    shards = [(str(tmp_path / "a.tar"), 6)]
    own = _Own(shards, transformations=None, fields={"film": wids.lazy("mp4"), "label": "cls"})
    assert own.read(3, ".mp4", 0, 6) == b"film 3"
    assert own[2]["film"].read() == b"film 2"
    back = _Backwards(shards, transformations=[wids.lazy(".mp4")])
    assert back.read(1, ".mp4") == VALUES[4] == back[1][".mp4"].read()
    assert [sample[".mp4"].read() for sample in back.__getitems__([0, 3])] == [VALUES[5], VALUES[2]]


def test_values_that_are_no_bytes(place, tmp_path):
    """A subclass's own samples may have any: what has no bytes has no parts."""
    place("local")

    class Decoded(wids.ShardListDataset):
        def get_shard(self, index):
            return [{"__key__": "k", ".cls": 5, ".list": [1, 2], ".txt": memoryview(b"text")}], 0, {"url": "mine"}

    decoded = Decoded([(str(tmp_path / "a.tar"), 6)])
    assert decoded.read(0, ".txt", 1) == b"ext"
    for field, kind in ((".cls", "an int"), (".list", "a list")):
        with pytest.raises(SelectionError, match=f"has {kind} as its {field}, and no bytes"):
            decoded.read(0, field)


# --- files


def play(file, reference, rng, steps):
    """Do the same to a file and to the bytes that it should have; the file, which may be another one then."""
    for _ in range(steps):
        step = rng.choice("rrrssticp")
        if step == "r":
            count = rng.choice([0, 1, 10, 5000, 20_000, 100_000, 2_000_000, -1, None])
            assert file.read(count) == reference.read(count)
        elif step == "s":
            offset, whence = rng.choice(
                [(rng.randrange(4_000_000), 0), (-rng.randrange(1, 50_000), 2), (rng.randrange(9000), 1)]
            )
            if whence != 2 or file.size + offset >= 0:
                assert file.seek(offset, whence) == reference.seek(offset, whence)
        elif step == "t":
            assert file.tell() == reference.tell()
        elif step == "i":
            ours, theirs = bytearray(size := rng.choice([0, 7, 30_000])), bytearray(size)
            assert file.readinto(ours) == reference.readinto(theirs)
            assert ours == theirs
        else:
            file = copy.copy(file) if step == "c" else pickle.loads(pickle.dumps(file))
    return file


@pytest.mark.parametrize("access", ACCESS)
def test_files_are_as_their_bytes(place, access):
    """Random reads, seeks, copies and pickles of all members, against `io.BytesIO`."""
    dataset, _ = place(access, fields={"film": wids.lazy("webm;mp4"), "label": "cls"})
    for seed in range(60):
        rng = random.Random(seed)
        k = rng.randrange(len(SIZES))
        sample = dataset[k]
        assert list(sample)[:2] == ["film", "label"]
        assert sample["label"].read() == b"%d" % k
        file = sample["film"]
        assert (file.size, file.name, file.url) == (SIZES[k], f"s{k}.mp4", sample["__shard__"])
        play(file, io.BytesIO(VALUES[k]), rng, 12)


def test_small_pieces_of_all_sizes(place, set_limits):
    """Reads that overlap, touch and leave gaps; little is kept, so that pieces are forgotten in the middle."""
    set_limits(member_file, whole_bytes=0, least_bytes=64, ahead_bytes=100, kept_bytes=3000)
    dataset, _ = place("range", fields=[wids.lazy("mp4")])
    rng, file = random.Random(3), dataset[3][".mp4"]
    for _ in range(3000):
        lo = rng.randrange(9000)
        count = rng.choice([1, 3, 70, 500, 4000])
        file.seek(lo)
        assert file.read(count) == VALUES[3][lo : lo + count]
        assert sum(map(len, file._pieces._data.values())) <= 3000
        spans = sorted((start, start + len(data)) for start, data in file._pieces._data.items())
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


def test_positions_of_any_integer_type(place):
    """Those of numpy do not overflow; a float is none; a buffer that takes no bytes is refused before the read."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")])
    file = dataset[3][".mp4"]
    file.seek(np.uint8(200))
    assert file.read(np.uint8(100)) == VALUES[3][200:300]
    assert type(file.tell()) is int
    assert file.seek(np.int32(-5), 2) == len(VALUES[3]) - 5
    for call in (lambda: file.seek(1.5), lambda: file.read(2.5), lambda: file.read("5"), lambda: file.readinto(b"abc")):
        with pytest.raises(TypeError):
            call()
    assert file.tell() == len(VALUES[3]) - 5
    with pytest.raises(TypeError, match="datasets make these"):
        wids.MemberFile(file.url)
    assert file.readinto(np.empty(0)) == 0
    file.seek(0)
    pixels = np.zeros((2, 3), np.float32)
    assert file.readinto(pixels) == 24
    assert pixels.tobytes() == VALUES[3][:24]


def test_a_name_that_is_no_utf8(place):
    """It is escaped where it is shown."""
    members = [("a.cls", b"1"), ("a.mp4", b"film")]
    dataset, _ = place("local", members, fields=[wids.lazy("mp4")], key_rule=_undecodable)
    file = dataset[0][".mp4"]
    assert file.name == "a\udcff.mp4"
    assert repr(file) == r"<wids.MemberFile a\udcff.mp4 of 4 bytes>"
    file.close()
    with pytest.raises(ValueError, match=r"a\\udcff\.mp4 is closed"):
        file.read()


def _undecodable(name):
    return name[:1] + "\udcff", name[1:]


def test_a_file_is_a_raw_file(place):
    """What `io` promises: buffered readers, text, errors of closed files and of bad positions."""
    dataset, _ = place("local", [("a.txt", b"one\ntwo\nthree"), ("a.cls", b"1")], fields=[wids.lazy("txt")])
    with dataset[0][".txt"] as file:
        assert (file.readable(), file.seekable(), file.writable(), file.isatty()) == (True, True, False, False)
        assert io.BufferedReader(copy.copy(file)).readlines() == [b"one\n", b"two\n", b"three"]
        assert [*io.TextIOWrapper(io.BufferedReader(copy.copy(file)))] == ["one\n", "two\n", "three"]
        assert [*file] == [b"one\n", b"two\n", b"three"]
        for bad in ((-1,), (0, 3), (-20, 2)):
            with pytest.raises(ValueError, match="seek"):
                file.seek(*bad)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        assert repr(file) == "<wids.MemberFile a.txt of 13 bytes>"
    file.close()
    for call in (file.read, file.tell, file.readable, file.seekable, lambda: file.seek(0), lambda: pickle.dumps(file)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_as_a_transformation(place):
    """All other members are read, and decoders leave the file as it is; also for batches, and taken away again."""
    dataset, _ = place("local", transformations=[wids.lazy(".MP4"), "PIL"])
    sample = dataset[2]
    assert (type(sample[".mp4"]), sample[".cls"]) == (wids.MemberFile, 2)
    assert [each[".mp4"].read() for each in dataset.__getitems__([5, 0, 3])] == [VALUES[5], VALUES[0], VALUES[3]]
    dataset.transformations = "raw"
    assert dataset[2][".mp4"] == VALUES[2]
    dataset.add_transform(wids.lazy("mp4"))
    assert type(dataset[2][".mp4"]) is wids.MemberFile
    view = dataset.select([4, 5])
    assert view[1][".mp4"].read() == VALUES[5]
    raw = wids.lazy("mp4")
    assert raw({"a": 1}) == {"a": 1}
    assert (raw, hash(raw), repr(raw)) == (wids.lazy(".mp4"), hash(wids.lazy(".mp4")), "lazy('.mp4')")


def test_which_members_are_lazy(place):
    """Alternatives, a field that a transformation names, samples without one; what contradicts is an error."""
    dataset, _ = place("local", [("a.webm", b"web"), ("a.mp4", b"mp4"), ("b.mp4", b"b"), ("b.cls", b"1")])
    assert len(dataset) == 2
    dataset.fields = None
    path = dataset[0]["__shard__"]

    def open_dataset(**options):
        return wids.ShardListDataset([(path, 2)], **options)

    one = open_dataset(fields=[wids.lazy("mp4;webm")])
    assert {k: v.read() for k, v in one[0].items() if k[0] == "."} == {".mp4": b"mp4"}
    two = open_dataset(transformations=[wids.lazy("mp4;webm"), "raw"])
    assert {k: v.read() for k, v in two[0].items() if k[0] == "."} == {".webm": b"web", ".mp4": b"mp4"}
    three = open_dataset(fields=("mp4", "cls"), transformations=[wids.lazy("mp4")])
    assert (three[1][".mp4"].read(), type(three[1][".cls"])) == (b"b", io.BytesIO)
    assert ".cls" not in three[0]
    names = open_dataset(fields={"film": wids.lazy(["webm", "mp4"]), "label": "cls"}, on_error="raise")
    assert names.fields.names == ("film", "label")
    assert names[1]["film"].read() == b"b"
    with pytest.raises(SelectionError, match="'label'"):
        names[0]
    with pytest.raises(InputError, match=r"lazy\('\.mp4'\) is none of fields"):
        open_dataset(fields="cls", transformations=[wids.lazy("mp4")])
    plain = open_dataset(fields="cls")
    with pytest.raises(InputError):
        plain.add_transform(wids.lazy("mp4"))
    assert plain.transformations == open_dataset(fields="cls").transformations
    for bad, error in (("", InputError), ([], InputError), (5, TypeError), (b"mp4", TypeError)):
        with pytest.raises(error):
            wids.lazy(bad)


def test_fields_that_are_assigned(place):
    """They may be all that the argument may be, and names go with them; so may those of another dataset."""
    dataset, _ = place("local", transformations="raw")
    names = [{"film": wids.lazy("mp4"), "label": "cls"}, {"class": "cls;txt"}, wids.lazy("MP4"), "cls", None]
    keys = [["film", "label"], ["class"], [".mp4"], [".cls"], [".mp4", ".cls"]]
    for fields, wanted in zip(names, keys, strict=True):
        dataset.fields = fields
        assert [name for name in dataset[3] if not name.startswith("__")] == wanted
        assert len(dataset.transformations) == 1 + isinstance(fields, dict)
    with pytest.raises(InputError):
        dataset.fields = {"film": "mp4", "again": "mp4"}
    assert dataset.fields is None
    dataset.fields = names[0]
    other = wids.ShardListDataset(dataset.shards, fields=dataset.fields)
    assert (other[3]["film"].read(), other[3]["label"]) == (VALUES[3], 3)


def test_substitutes_have_files_too(place):
    """A sample that fails is replaced by one whose file is its own."""

    def fail(sample):
        if sample["__index__"] == 3:
            raise ValueError("bad")
        return sample

    dataset, _ = place("local", transformations=[wids.lazy("mp4"), fail], on_error="substitute", max_errors=1.0)
    sample = dataset[3]
    assert sample["__substitute_for__"] == 3
    assert sample[".mp4"].read() == VALUES[sample["__index__"]]


# --- what is read


@pytest.mark.parametrize("access", ["range", "auto"])
def test_a_decoder_that_reads_on(place, access):
    """In pieces of 32 KiB; at most a fifth more is read than it asks for, in few requests."""
    dataset, events = place(access, fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    before = read_bytes(events)
    file.seek(1_000_000)
    asked = sum(len(file.read(32 << 10)) for _ in range(20))
    assert file.tell() == 1_000_000 + asked
    reads = [event for event in events if isinstance(event, RangesRead)]
    assert asked <= read_bytes(events) - before <= max(1.2 * asked, asked + (128 << 10)) + 1024
    assert len(reads) <= 9
    file.seek(1_000_000)
    assert file.read(asked) == VALUES[4][1_000_000 : 1_000_000 + asked]
    assert [event for event in events if isinstance(event, RangesRead)] == reads


def test_bytes_that_are_read_again_count_once(place):
    """A decoder that looks at the header again and again has no more read ahead by that."""
    dataset, events = place("range", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    for _ in range(1000):
        file.seek(0)
        file.read(4096)
    before = read_bytes(events)
    file.seek(1_000_000)
    asked = sum(len(file.read(8192)) for _ in range(6))
    assert read_bytes(events) - before <= asked + (128 << 10) + 1024


def test_small_reads_are_kept(place, set_limits):
    """Of a header, byte by byte: one request; and so at random in a member that fits into memory."""
    set_limits(member_file, whole_bytes=0)
    dataset, events = place("range", fields=[wids.lazy("mp4")])
    file = dataset[3][".mp4"]
    assert b"".join(file.read(1) for _ in range(16 << 10)) == VALUES[3][: 16 << 10]
    assert len([event for event in events if isinstance(event, RangesRead)]) == 1
    for seed in range(300):
        lo = random.Random(seed).randrange(70_000)
        file.seek(lo)
        assert file.read(50) == VALUES[3][lo : lo + 50]
    assert read_bytes(events) <= 70_000 + 2000


def test_a_short_member_is_read_at_once(place):
    """By one request, whatever is asked for first, and once."""
    dataset, events = place("range", fields=[wids.lazy("mp4")])
    file = dataset[3][".mp4"]
    for lo in (60_000, 5, 69_999, 0):
        file.seek(lo)
        assert file.read(20_000) == VALUES[3][lo : lo + 20_000]
    reads = [event for event in events if isinstance(event, RangesRead)]
    assert [(event.requests, event.size_bytes) for event in reads] == [(1, 70_000 + 512)]


def test_other_members_are_not_read(place):
    """With ``access="range"`` a sample with a file costs its other members alone."""
    dataset, events = place("range", fields={"film": wids.lazy("mp4"), "label": "cls"})
    assert dataset[4]["label"].read() == b"4"
    assert read_bytes(events) <= 2048


def test_auto_counts_what_is_read(place):
    """Reads of a file turn into a download once they cost as much; from then on it is read from the disk."""
    dataset, events = place("auto", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    file.read(100)
    assert dataset.stats().fetches == 0
    for _ in range(5):
        file.seek(0)
        copy.copy(file).read()
    assert dataset.stats().fetches == 1
    before = read_bytes(events)
    file.seek(5)
    assert file.read() == VALUES[4][5:]
    assert read_bytes(events) == before


# --- the shard under it


def test_evicted_and_opened_again(server, place, tmp_path):
    """A cache that holds one shard of two: reads in turn evict the other's, and go on."""
    server.has_ranges = True
    shards = []
    for k in range(2):
        data = pack([(f"{k}.bin", bytes([k]) * 300_000), (f"{k}.cls", b"1")])
        shards.append({"url": server.add(f"/{k}.tar", data), "nsamples": 1, "filesize": len(data)})
    dataset = wids.ShardListDataset(
        shards, fields=[wids.lazy("bin")], cache_dir=tmp_path / "c", cache_size=400_000, early_reads=False, lru_size=1
    )
    files = [dataset[k][".bin"] for k in (0, 1)]
    for step in range(4):
        k = step % 2
        assert files[k].read(60_000) == bytes([k]) * 60_000
        tars = [name for *_, names in os.walk(tmp_path / "c") for name in names if name.endswith(".tar")]
        assert len(tars) == 1
    assert dataset.stats().fetches >= 4


@pytest.mark.parametrize("access", ["range", "auto", "fetch"])
def test_replaced_at_its_server(server, place, access):
    """By one of the same layout: the bytes of one version, or an error; never of both."""
    members = [("a.bin", b"o" * 900_000), ("a.cls", b"1")]
    dataset, _ = place(access, members, fields=[wids.lazy("bin")])
    file = dataset[0][".bin"]
    data = file.read(30_000)
    server.add("/a.tar", pack([("a.bin", b"n" * 900_000), ("a.cls", b"1")]))
    with contextlib.suppress(ChangedShardError):
        for _ in range(4):
            data += file.read(90_000)
            dataset.close()
    assert set(data) == {ord("o")}


@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_moved_at_a_server_that_marks_no_versions(server, place, headers):
    """The member's header, which is read with each part, is not there any more: an error."""
    faults = [said(whole, **headers)] * 40
    members = [("a.bin", b"o" * 900_000), ("a.cls", b"1")]
    dataset, _ = place("range", members, fields=[wids.lazy("bin")], faults=faults)
    file = dataset[0][".bin"]
    assert file.read(30_000) == b"o" * 30_000
    server.add("/a.tar", pack([("b.cls", b"1"), ("b.bin", b"n" * 900_000)]), *faults)
    with pytest.raises(ChangedShardError):
        file.read(200_000)


@pytest.mark.parametrize("is_same_layout", [True, False])
def test_replaced_on_the_disk(place, tmp_path, is_same_layout):
    """A file that was open is read to its end; one that was opened again is not mixed with it."""
    dataset, _ = place("local", [("a.bin", b"o" * 900_000), ("a.cls", b"1")], fields=[wids.lazy("bin")])
    file = dataset[0][".bin"]
    assert file.read(30_000) == b"o" * 30_000
    name = "a.bin" if is_same_layout else "b.bin"
    (tmp_path / "new.tar").write_bytes(pack([(name, b"n" * 900_000), ("a.cls" if is_same_layout else "b.cls", b"1")]))
    os.replace(tmp_path / "new.tar", tmp_path / "a.tar")
    assert file.read(30_000) == b"o" * 30_000
    dataset.close()
    with pytest.raises(ChangedShardError, match=r"a\.tar: it was replaced while a\.bin was read"):
        file.read(30_000)
    assert file.tell() == 60_000
    if is_same_layout:
        assert dataset[0][".bin"].read(5) == b"nnnnn"


@pytest.mark.parametrize("access", ACCESS)
def test_replaced_before_the_first_read(server, place, tmp_path, access):
    """A file is of the version of its sample, of which other members were read."""
    members = [("a.bin", b"o" * 400_000), ("a.cls", b"1")]
    dataset, _ = place(access, members, fields=[wids.lazy("bin"), "cls"], cache_dir=tmp_path / "cache")
    sample = dataset[0]
    assert sample[".cls"].read() == b"1"
    data = pack([("a.bin", b"n" * 400_000), ("a.cls", b"2")])
    if access == "local":
        (tmp_path / "new.tar").write_bytes(data)
        os.replace(tmp_path / "new.tar", tmp_path / "a.tar")
    else:
        server.add("/a.tar", data)
    dataset.close()
    if access == "fetch":
        wids.keep_most_recent_files(tmp_path / "cache", maxsize=1)
    with pytest.raises(ChangedShardError):
        sample[".bin"].read(30_000)


@pytest.mark.parametrize("members", [[("b.bin", b"n" * 50), ("b.cls", b"2"), ("a.bin", b"o"), ("a.cls", b"1")], []])
def test_replaced_while_a_sample_is_read(place, tmp_path, members):
    """Its file is not of another sample that has its row now."""

    def replace(sample):
        (tmp_path / "new.tar").write_bytes(pack(members))
        os.replace(tmp_path / "new.tar", tmp_path / "a.tar")
        dataset.close()
        return sample

    old = [("a.bin", b"o"), ("a.cls", b"1"), ("b.bin", b"o"), ("b.cls", b"2")]
    dataset, _ = place("local", old, fields=["cls"], on_count_mismatch="warn")
    sample = replace(dataset[0])
    with pytest.raises(ChangedShardError, match=r"a\.tar: it was replaced while sample 'a' was read"):
        member_file.open_lazily(dataset.cache, sample, Alternatives([(".bin",)]), is_foreign=False)


def test_lost_by_a_network_file_system(place, tmp_path, monkeypatch):
    """A file of the same layout that took the shard's place is opened, but not read as the rest of a member."""
    dataset, _ = place("local", [("a.bin", b"o" * 400_000), ("a.cls", b"1")], fields=[wids.lazy("bin")])
    file = dataset[0][".bin"]
    assert file.read(30_000) == b"o" * 30_000
    lost, real = os.stat(tmp_path / "a.tar").st_ino, os.pread

    def pread(fd, size, offset):
        if os.fstat(fd).st_ino == lost:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(fd, size, offset)

    monkeypatch.setattr(system, "pread", pread)
    (tmp_path / "new.tar").write_bytes(pack([("a.bin", b"n" * 400_000), ("a.cls", b"1")]))
    os.replace(tmp_path / "new.tar", tmp_path / "a.tar")
    with pytest.raises(ChangedShardError, match="it was replaced while"):
        file.read(30_000)
    assert dataset[0][".bin"].read(5) == b"nnnnn"


def test_gone_from_the_disk(place, tmp_path):
    """Whoever has it open reads on; then it is the error of any read."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    os.remove(tmp_path / "a.tar")
    assert file.read(50_000) == VALUES[4][:50_000]
    dataset.close()
    with pytest.raises(WidsError):
        file.read(50_000)


def test_a_lease_only_while_it_is_read(place):
    """Files that are not read keep no shard: an idle pool gives its leases back, and closes its descriptors."""
    dataset, _ = place("fetch", fields=[wids.lazy("mp4")], early_reads=False)
    files = [dataset[k][".mp4"] for k in range(6)]
    [file.read(10) for file in files]
    path = dataset.localname(files[0].url)
    assert files_open_in(os.path.dirname(path))
    assert dataset.cache.release_idle()
    assert not files_open_in(os.path.dirname(path))
    assert files[4].read(100) == VALUES[4][10:110]


def test_nothing_is_left(place):
    """A file that is dropped while open holds nothing; one that outlives its dataset reads on."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    file.read(10)
    home = os.path.dirname(file.url)
    del dataset
    gc.collect()
    assert file.read(100) == VALUES[4][10:110]
    del file
    gc.collect()
    assert not files_open_in(home)


# --- threads and processes


def test_threads_with_a_file_each(place):
    """Copies of one file, read at the same time, while another thread closes the shard again and again."""
    dataset, _ = place("auto", fields=[wids.lazy("mp4")])
    file, errors, done = dataset[4][".mp4"], [], threading.Event()

    def read(seed):
        try:
            play(copy.copy(file), io.BytesIO(VALUES[4]), random.Random(seed), 60)
        except BaseException as error:
            errors.append(error)

    def close():
        while not done.is_set():
            dataset.close()

    closer = threading.Thread(target=close)
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in (closer, *threads):
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    done.set()
    closer.join(PATIENCE_SECONDS)
    assert not errors, errors[0]


def test_threads_that_share_a_file(place):
    """They get each other's positions; whoever reads it alone afterwards gets the right bytes."""
    dataset, _ = place("range", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]

    def read(seed):
        rng = random.Random(seed)
        for _ in range(60):
            with contextlib.suppress(InputError):
                file.seek(rng.randrange(300_000))
                file.read(rng.choice([5, 300, 20_000]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    file.seek(0)
    with contextlib.suppress(InputError):
        file.read(320_000)
    file.seek(0)
    assert file.read(320_000) == VALUES[4][:320_000]


def test_pieces_that_do_not_fit(place):
    """They are an error, and forgotten."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")])
    file = dataset[3][".mp4"]
    file.read(100)
    file._pieces._data[0] = file._pieces._data[0][:60]
    file.seek(40)
    file._pieces.gaps = lambda lo, hi: []
    with pytest.raises(InputError, match="several threads"):
        file.read(50)
    assert file.read(50) == VALUES[3][40:90]


def lists(samples):
    """A collate function."""
    return samples


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("access", ["local", "auto"])
def test_from_workers(place, access, context):
    """Files come out of workers, and are read in the process of the loader, by the dataset there; a batch is small."""
    dataset, _ = place(access, fields={"film": wids.lazy("mp4"), "label": "cls"}, hooks=())
    loader = DataLoader(dataset, batch_size=2, num_workers=2, collate_fn=lists, multiprocessing_context=context)
    samples = [sample for batch in loader for sample in batch]
    assert [sample["film"].read() for sample in samples] == VALUES
    assert {sample["film"]._place.pool for sample in samples} == {dataset.cache}
    one, two = (len(pickle.dumps([sample["film"] for sample in samples[:k]])) for k in (1, 6))
    assert one < 4000
    assert two - one < 5 * 300


def test_of_a_dataset_that_cannot_be_pickled(place, monkeypatch):
    """Its workers return files all the same; where the dataset does not live, the error says why they are none."""
    hooks = [lambda event: None]
    dataset, _ = place("local", fields=[wids.lazy("mp4")], hooks=hooks)
    loader = DataLoader(dataset, batch_size=3, num_workers=1, collate_fn=lists, multiprocessing_context="fork")
    assert [sample[".mp4"].read() for batch in loader for sample in batch] == VALUES
    data = pickle.dumps(dataset[3][".mp4"])
    monkeypatch.setattr(pool, "_live", list)
    with pytest.raises(InputError, match=r"s3\.mp4 of .*a\.tar cannot be opened in this process: .*lambda"):
        pickle.loads(data)


def test_where_no_dataset_is(place):
    """Another process has one pool for all files of a dataset, of each pickle."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")], hooks=())
    data = [pickle.dumps(dataset[k][".mp4"]) for k in (3, 5)]
    assert call_in_child(_read_all, data) == (VALUES[3], VALUES[5], 1)


def _read_all(data):
    one, two = map(pickle.loads, data)
    return one.read(), two.read(), len({one._place.pool, two._place.pool})


def test_a_forked_process_reads_for_itself(place):
    """With the position of the fork; the parent's stays."""
    dataset, _ = place("local", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    file.read(1000)
    assert call_in_child(lambda: file.read(2000)) == VALUES[4][1000:3000]
    assert file.read(10) == VALUES[4][1000:1010]


def test_killed_while_it_reads(place):
    """The lease ends with the process, and the shard can be evicted."""
    dataset, _ = place("fetch", fields=[wids.lazy("mp4")], early_reads=False)
    dataset[0]
    directory = os.path.dirname(dataset.localname(dataset.shards[0]["url"]))
    dataset.close()

    def read(connection):
        file = dataset[4][".mp4"]
        with dataset.get_shard(4)[0].pinned():
            file.read(10)
            stop_here(connection)

    with child(read) as (process, connection):
        assert connection.recv() == "here"
        kill(process)
    wids.keep_most_recent_files(directory, maxsize=1)
    assert not [name for name in os.listdir(directory) if name.endswith(".tar")]
    assert dataset[4][".mp4"].read(100) == VALUES[4][:100]


def test_pools_are_told_apart(place):
    """Two datasets of the same shard have their own."""
    one, _ = place("local", fields=[wids.lazy("mp4")])
    two, _ = place("local", fields=[wids.lazy("mp4")])
    assert isinstance(one.cache, OpenShards)
    assert one.cache.token != two.cache.token
    assert pickle.loads(pickle.dumps(one)).cache.token == one.cache.token


# --- reads that fail


def break_server(server):
    """Have the server find no shard any more."""
    server.add("/a.tar", pack(MEMBERS), *[status(404)] * 20)


class _Dropping:
    """A decoder that drops errors of files, as libsndfile does, and then fails by itself, or goes on."""

    def __init__(self, server, *, goes_on):
        self.server, self.goes_on = server, goes_on

    def __call__(self, sample):
        """Bytes of the film, which cannot be read, or none."""
        break_server(self.server)
        sample[".mp4"].seek(1_000_000)
        try:
            sample[".mp4"] = sample[".mp4"].read(100)
        except WidsError:
            sample[".mp4"] = b""
        if not self.goes_on:
            raise ValueError("unknown format")
        return sample


def test_a_read_that_failed_fails_again(server, place):
    """Whatever is asked for, so that no decoder goes on behind a gap; a copy reads again."""
    dataset, _ = place("range", fields=[wids.lazy("mp4")])
    file = dataset[4][".mp4"]
    assert file.read(100) == VALUES[4][:100]
    break_server(server)
    file.seek(2_000_000)
    with pytest.raises(FetchError) as first:
        file.read(100_000)
    server.faults["/a.tar"].clear()
    for _ in range(2):
        with pytest.raises(type(first.value), match="does not exist"):
            file.read(100_000)
    assert type(file.error) is type(first.value)
    file.seek(0)
    assert file.read(100) == VALUES[4][:100]  # which is in memory
    again = copy.copy(file)
    again.seek(2_000_000)
    assert again.read(100_000) == VALUES[4][2_000_000:2_100_000]
    assert again.error is None


def test_an_error_that_a_decoder_drops_is_raised(server, place):
    """It, and not the decoder's, which would be taken for a bad sample, and another one for it."""
    dataset, _ = place("range", transformations=[wids.lazy("mp4")], on_error="substitute", max_errors=1.0)
    dataset.add_transform(_Dropping(server, goes_on=False))
    with pytest.raises(FetchError) as raised:
        dataset[4]
    assert isinstance(raised.value.__cause__, ValueError)
    assert any("sample 4, key 's4'" in note for note in raised.value.__notes__)


def test_a_sample_that_is_made_behind_a_gap_is_warned_of(server, place, caplog):
    """The program has decided so, or its decoder."""
    dataset, _ = place("range", transformations=[wids.lazy("mp4")])
    dataset.add_transform(_Dropping(server, goes_on=True))
    assert dataset[4][".mp4"] == b""
    assert "a read failed, and a sample was made all the same" in caplog.text
