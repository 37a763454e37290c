import copy
import errno
import io
import mmap
import os
import pickle
import random
import tarfile
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wids
from tests.support import cache_shards, clocks
from tests.support import cache_shards as shards
from tests.support.children import PATIENCE_SECONDS, call_in_child
from tests.support.examples import examples
from wids import errors
from wids.core.files import atomic, forks, open_file, system
from wids.core.files.open_file import OpenFile
from wids.core.readers import local
from wids.core.readers.local import LIMITS, Blocks, LocalReader
from wids.core.tables import member_tables
from wids.core.tables.table import build_table
from wids.errors import ChangedShardError, ShardError, ShardReadError, TruncatedShardError


def open_shard(path, *, group="adjacent", url="shard-url", **options):
    """A reader of a local shard, its table built as for the first open."""
    file, facts = OpenFile.open(path)
    table = member_tables.scan_table(file.fd, url, facts, group=group)
    return LocalReader(file, table=table, url=url, path=path, **options)


def values(sample):
    """A sample with the bytes of its members."""
    return {name: value.getvalue() if name.startswith(".") else value for name, value in sample.items()}


def read_rows(shard, rows):
    """What `LocalReader.read_rows` gives for ``rows``, in their order."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    found = dict(zip(order, shard.read_rows([rows[place] for place in order]), strict=True))
    return [found[place] for place in range(len(rows))]


# Blocks of 1 KiB that are read at the second sample, four in memory; samples of more than 256 bytes apart.
SMALL = {"shift": 10, "span_bytes": 256, "worth_reads": 2, "memory_reads": 20, "max_blocks": 4, "max_age": 2}
SPAN = LIMITS.span_bytes


@pytest.fixture
def small_blocks(set_limits):
    """See `SMALL`."""
    set_limits(local, **SMALL)


@pytest.fixture
def preads(monkeypatch):
    """(size, offset) of each read that reaches the file."""
    calls = []
    real = os.pread

    def pread(fd, size, offset):
        calls.append((size, offset))
        return real(fd, size, offset)

    monkeypatch.setattr(system, "pread", pread)
    return calls


@pytest.fixture
def path(tmp_path):
    """A shard of 20 samples."""
    return shards.write(tmp_path / "a.tar", shards.shard("a", 20))


def test_a_sample_is_its_members_and_its_key(path):
    """Members come as io.BytesIO at their start, under their extensions, with the key."""
    shard = open_shard(path)
    assert len(shard) == 20
    sample = shard[3]
    assert list(sample) == [".txt", ".bin", "__key__"]
    assert (sample[".txt"].tell(), sample[".txt"].read()) == (0, b"a3")
    assert values(sample) == {".txt": b"a3", ".bin": b"a0003" * 20, "__key__": "a0003"}
    assert shards.texts(shard) == shards.texts_of("a", 20)
    assert path in repr(shard)


@pytest.mark.parametrize("row", [-1, 20, 10**9])
def test_rows_outside_are_index_errors(path, row):
    """A row that is not there is an IndexError that says how many there are."""
    with pytest.raises(IndexError, match="of 20"):
        _ = open_shard(path)[row]


def test_rows_are_samples(path):
    """Several rows are the samples of each, repeated ones too, which are not the same object."""
    rows = [7, 0, 19, 7]
    found = read_rows(open_shard(path), rows)
    alone = open_shard(path)
    assert [values(sample) for sample in found] == [values(alone[row]) for row in rows]
    assert found[0] is not found[3]


def test_fields_touch_no_other_byte(path, preads):
    """Only the members asked for are read, in the order of the archive; fields that are not there are left out."""
    shard = open_shard(path)
    preads.clear()
    assert values(shard.read(2, (".bin", ".nosuch"))) == {".bin": b"a0002" * 20, "__key__": "a0002"}
    [(extension, offset, size)] = [member for member in shard.table.members(2) if member[0] == ".bin"]
    assert (extension, preads) == (".bin", [(size, offset)])


def test_keys_that_are_no_text_survive(tmp_path):
    """A name in another encoding comes as surrogate escapes, also among samples of a block."""
    name = b"\xe9t\xe9".decode("utf-8", "surrogateescape")
    data = shards.pack([(f"{name}{row}.txt", b"%d" % row) for row in range(40)])
    shard = open_shard(shards.write(tmp_path / "a.tar", data))
    for row in range(40):
        assert values(shard.read(row)) == {".txt": b"%d" % row, "__key__": f"{name}{row}"}
        assert read_rows(shard, [row])[0]["__key__"] == f"{name}{row}"


# --- whose descriptor it is


def test_the_last_user_closes(path, tmp_path):
    """The descriptor lives as long as the reader, and no longer."""
    shard = open_shard(path)
    assert shards.files_open_in(tmp_path) == [path]
    again = shard
    del shard
    assert shards.texts(again) == shards.texts_of("a", 20)
    del again
    assert shards.files_open_in(tmp_path) == []


def test_close_is_final_and_may_be_repeated(path, tmp_path):
    """After close() reads are typed errors that name the shard, never reads of some other file."""
    shard = open_shard(path)
    shard.close()
    shard.close()
    assert shards.files_open_in(tmp_path) == []
    with pytest.raises(ShardError, match=r"shard-url.*was closed"):
        shard.read(0)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_reader_has_no_copies(path, duplicate):
    """Two readers of one descriptor would close it under one another, so copies are refused."""
    with pytest.raises(TypeError, match="copy the dataset"):
        duplicate(open_shard(path))


def test_a_use_that_an_interrupt_kept_from_ending_leaks_nothing(path, tmp_path):
    """A file whose last user never said so is closed with the last reference to it."""
    reader = open_shard(path)
    assert reader.pin()  # an interrupt comes here: nobody drops it
    reader.close()
    assert shards.files_open_in(tmp_path) == [path]
    del reader
    assert shards.files_open_in(tmp_path) == []


def test_no_fork_comes_while_a_file_is_being_closed(path, monkeypatch):
    """A child would have a copy of a descriptor that counts as closed, and keep its lease as long as it lives."""
    real, could_fork = os.close, []

    def try_to_fork():
        could_fork.append(forks.lock.acquire(blocking=False))
        if could_fork[-1]:
            forks.lock.release()

    def close(fd):
        thread = threading.Thread(target=try_to_fork)  # of another thread than the one that closes
        thread.start()
        thread.join(PATIENCE_SECONDS)
        real(fd)

    reader = open_shard(path)
    monkeypatch.setattr(os, "close", close)
    reader.close()
    monkeypatch.undo()
    assert could_fork == [False]


def test_a_reader_that_was_never_made_is_no_trouble():
    """An object whose constructor never ran is collected without a word."""
    OpenFile.__new__(OpenFile).__del__()


# --- files that change under their reader


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("length", [0, 1, 700, 5000])
def test_a_truncated_shard_is_a_typed_error(path, length, is_mapped):
    """Reading what is gone names shard, place and sizes; the process lives."""
    shard = open_shard(path, use_mmap=is_mapped)
    size = os.stat(path).st_size
    os.truncate(path, length)
    with pytest.raises(TruncatedShardError) as caught:
        shard.read(19)
    error = caught.value
    assert (error.shard, error.expected, error.found) == ("shard-url", size, length)
    assert error.offset == shard.table.offsets[38]
    assert "restart" in str(error)
    with pytest.raises(TruncatedShardError):
        read_rows(shard, [19])
    with pytest.raises(TruncatedShardError):
        shard.read(19, (".txt",))


def test_nothing_is_read_from_what_is_left_of_a_truncated_shard(tmp_path):
    """Samples before the cut raise as well: someone may be writing another archive over them."""
    path = shards.write(tmp_path / "a.tar", shards.shard("a", 40))
    shard = open_shard(path)
    os.truncate(path, shard.table.offsets[60])
    for row in (0, 29, 30, 39):
        with pytest.raises(TruncatedShardError, match="bytes when it was opened"):
            shard.read(row)


def test_garbage_written_over_an_open_shard_is_told(tmp_path):
    """What is no archive any more, at the same size, is a changed shard."""
    path = shards.write(tmp_path / "a.tar", shards.shard("a", 3))
    shard = open_shard(path)
    size, stamp = os.stat(path).st_size, os.stat(path).st_mtime_ns + 10**9
    with open(path, "r+b") as file:
        file.write(b"x" * size)
    os.utime(path, ns=(stamp, stamp))
    with pytest.raises(ChangedShardError, match="not where they were"):
        shard.read(0)


def test_a_shard_cut_and_regrown_is_a_changed_one(path, monkeypatch):
    """A read that comes up short of a file as long as ever says that it changed."""
    shard = open_shard(path)
    monkeypatch.setattr(system, "pread", lambda fd, size, offset: b"")
    with pytest.raises(ChangedShardError, match="came up short"):
        shard.read(0)


def test_a_replaced_shard_is_read_as_it_was(path):
    """Who has a shard open goes on with the old file when another one takes its name, or when it is deleted."""
    shard = open_shard(path)
    atomic.write_atomically(path, shards.shard("b", 20))
    assert shards.texts(shard) == shards.texts_of("a", 20)
    os.unlink(path)
    assert shards.texts(shard) == shards.texts_of("a", 20)


def test_a_disk_that_fails_is_a_typed_error(path, monkeypatch):
    """What the kernel says of a read comes with the shard and the place."""
    shard = open_shard(path)

    def pread(fd, size, offset):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(system, "pread", pread)
    with pytest.raises(ShardError, match="Input/output error") as caught:
        shard.read(2)
    assert (caught.value.shard, caught.value.offset) == ("shard-url", shard.table.offsets[4])


def lose(monkeypatch, path, error=errno.ESTALE, times=10**9):
    """A network file system that has lost the file that had the path until now; returns its failures."""
    lost, real, failures = os.stat(path).st_ino, os.pread, []

    def pread(fd, size, offset):
        if os.fstat(fd).st_ino == lost and len(failures) < times:
            failures.append(offset)
            raise OSError(error, os.strerror(error))
        return real(fd, size, offset)

    monkeypatch.setattr(system, "pread", pread)
    return failures


def put_copy(path, *, is_dated=True):
    """Put a copy of a file in its place, with its time or a new one."""
    status = os.stat(path)
    with open(path, "rb") as file:
        atomic.write_atomically(path, file.read())
    when = status.st_mtime_ns if is_dated else status.st_mtime_ns + 10**9
    os.utime(path, ns=(when, when))


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
@pytest.mark.parametrize("is_dated", [True, False])
def test_a_file_that_was_lost_is_opened_again(path, monkeypatch, caplog, error, is_dated):
    """One error of a network file system, and the name leads to the same shard: reading goes on, with a warning."""
    shard, wanted = open_shard(path), shards.texts_of("a", 20)
    descriptor = shard.fileno()
    failures = lose(monkeypatch, path, error)
    put_copy(path, is_dated=is_dated)
    assert shards.texts(shard) == wanted
    assert len(failures) == 1
    assert shard.fileno() == descriptor
    assert os.fstat(descriptor).st_ino == os.stat(path).st_ino
    assert not os.get_inheritable(descriptor)
    assert "opened again" in caplog.text
    assert caplog.text.count("WARNING") == 1
    put_copy(path)
    assert shards.texts(shard) == wanted


def test_an_error_that_passes_is_tried_once_more(path, monkeypatch):
    """Also where the file is as it was."""
    shard = open_shard(path)
    failures = lose(monkeypatch, path, times=1)
    assert shards.texts(shard) == shards.texts_of("a", 20)
    assert len(failures) == 1


@pytest.mark.parametrize("what", ["other", "longer", "gone", "directory", "same"])
def test_another_file_does_not_take_the_place_of_a_lost_one(path, monkeypatch, what):
    """One of other members or another size is the error of before, and so is a file that fails all the same."""
    shard = open_shard(path)
    lose(monkeypatch, path)
    if what != "same":
        os.unlink(path)
    if what == "other":
        shards.write(
            path, shards.pack([(f"b{row:04d}.txt", b"x" * 3) for row in range(60)])[: shard.table.identity.size]
        )
    elif what == "longer":
        shards.write(path, shards.shard("a", 40))
    elif what == "directory":
        os.mkdir(path)
    for row in (2, 2, 5):
        with pytest.raises(ShardReadError, match=os.strerror(errno.ESTALE)) as caught:
            shard.read(row)
    assert caught.value.shard == "shard-url"


def test_reads_that_come_in_parts_are_put_together(path, monkeypatch):
    """The kernel returns at most 2 GiB at a time; the rest is read on."""
    shard = open_shard(path)
    wanted = [values(sample) for sample in open_shard(path)]
    real = os.pread
    monkeypatch.setattr(system, "pread", lambda fd, size, offset: real(fd, min(size, 7), offset))
    assert [values(sample) for sample in shard] == wanted


# --- memory maps


def test_a_map_gives_the_same_samples(path):
    """Through a map: whole samples, fields and batches."""
    plain, mapped = open_shard(path), open_shard(path, use_mmap=True)
    for row in range(20):
        assert values(mapped.read(row)) == values(plain.read(row))
        assert values(mapped.read(row, (".bin",))) == values(plain.read(row, (".bin",)))
    assert [values(s) for s in read_rows(mapped, [4, 2])] == [values(s) for s in read_rows(plain, [4, 2])]


def test_a_map_of_a_shard_cut_before(path):
    """A shard truncated before it is mapped is the same typed error."""
    file, facts = OpenFile.open(path)
    table = member_tables.scan_table(file.fd, "s", facts)
    os.truncate(path, 512)
    with pytest.raises(TruncatedShardError):
        LocalReader(file, table=table, url="s", path=path, use_mmap=True)
    assert file.is_closed


def test_without_maps_reads_go_on(path, monkeypatch):
    """A file system that has no maps is read without."""

    def refuse(*args, **options):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(open_file, "mmap", SimpleNamespace(mmap=refuse, ACCESS_READ=mmap.ACCESS_READ))
    shard = open_shard(path, use_mmap=True)
    assert shards.texts(shard) == shards.texts_of("a", 20)


# --- reading ahead


def sized(sizes, group=("a",)):
    """Shard bytes, and per sample its members: sizes -> samples whose bytes differ everywhere."""
    members = []
    for row, size in enumerate(sizes):
        for part in group:
            noise = random.Random(row * 31 + ord(part)).randbytes(size)
            members.append((f"{row:05d}.{part}", noise))
    return members


def expected(members):
    """What a shard of these members must give: key -> values."""
    found = {}
    for name, data in members:
        key, _, extension = name.partition(".")
        found.setdefault(key, {"__key__": key})[f".{extension}"] = data
    return list(found.values())


def check_all(shard, wanted, order):
    """Every way to read gives the bytes that were packed."""
    for row in order:
        assert values(shard.read(row)) == wanted[row]
    for row, sample in zip(order, read_rows(shard, order), strict=True):
        assert {k: v for k, v in values(sample).items() if k in wanted[row]} == wanted[row]


def test_close_reads_become_one(tmp_path, preads):
    """Samples of one block are read one by one at first, then by a single read for all the rest."""
    members = sized([200] * 1000)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)))
    preads.clear()
    check_all(shard, expected(members), list(range(1000)))
    assert len(preads) == 2 * LIMITS.worth_reads  # of two blocks
    assert max(size for size, _ in preads) <= (1 << LIMITS.shift) + LIMITS.span_bytes


def test_scattered_reads_stay_small(tmp_path, set_limits, preads):
    """Blocks that are read from now and then only are never read ahead: their counts are forgotten in time."""
    set_limits(local, memory_reads=4)
    members = sized([200] * 100)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)))
    preads.clear()
    check_all(shard, expected(members), [*range(100)])
    assert max(size for size, _ in preads) == 200


@pytest.mark.parametrize("size", [SPAN - 1, SPAN, SPAN + 1])
def test_samples_about_as_long_as_a_span(tmp_path, size):
    """Samples of one byte less or more than a span are whole, wherever in a block they begin and end."""
    members = sized([size, *[77] * 30] * 40)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)))
    wanted = expected(members)
    assert max(shard.table.offsets) > 1 << LIMITS.shift
    check_all(shard, wanted, list(range(len(wanted))))
    check_all(shard, wanted, random.Random(0).sample(range(len(wanted)), len(wanted)))


def test_a_span_across_a_block_end(tmp_path, small_blocks):
    """A sample that begins on the last byte of a block, or ends in the next one, comes whole."""
    wanted_offsets = set()
    for lead in range(0, 1200, 64):
        members = [("00000.a", bytes(lead)), *sized([0, 200, 256, 100, 1])[1:]]
        shard = open_shard(shards.write(tmp_path / f"{lead}.tar", shards.pack(members)))
        wanted_offsets.update(offset % 1024 for offset in shard.table.offsets)
        check_all(shard, expected(members), [1, 2, 3, 4] * 3)
    assert len(wanted_offsets) > 1


def test_blocks_one_after_another(tmp_path, set_limits):
    """Kept blocks hold all of the samples that begin in them, and what begins right behind one is in the next."""
    set_limits(local, **{**SMALL, "span_bytes": 1024, "max_blocks": 100, "max_age": 100})
    members = sized([900, 10, 1000, 700, 400] * 30)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)))
    check_all(shard, expected(members), [*range(150)] * 3)


def test_hard_links_among_small_samples(tmp_path, set_limits):
    """Data of a link are anywhere before it: samples with links, read together and one by one, have their own bytes."""
    set_limits(local, **{**SMALL, "span_bytes": 4096, "max_blocks": 100, "max_age": 100})
    file, wanted = io.BytesIO(), []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for row in range(40):
            info, data = tarfile.TarInfo(f"{row:05d}.a"), f"{row}".encode() * 40
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
            wanted.append({"__key__": f"{row:05d}", ".a": data})
            if row % 2 and row > 2:
                link = tarfile.TarInfo(f"{row:05d}.b")
                link.type, link.linkname = tarfile.LNKTYPE, f"{row - 2:05d}.a"
                archive.addfile(link)
                wanted[-1][".b"] = wanted[row - 2][".a"]
    shard = open_shard(shards.write(tmp_path / "a.tar", file.getvalue()))
    assert shard.table.links
    check_all(shard, wanted, [*range(40), *range(39, -1, -1)] * 2)


def test_members_without_bytes(tmp_path, small_blocks):
    """Empty members and samples of nothing but empty members, also as the last of the shard."""
    members = sized([0, 3, 0, 0, 5, 0], group=("a", "b"))
    path = shards.write(tmp_path / "a.tar", shards.pack(members))
    check_all(open_shard(path), expected(members), [0, 5, 1, 4, 2, 3] * 5)


def test_an_empty_sample_at_the_end_of_the_last_block(tmp_path, small_blocks):
    """An empty member whose offset is the file's size, on a block boundary, is served."""
    path = shards.write(tmp_path / "a.tar", bytes(1024))
    file, facts = OpenFile.open(path)
    members = [(b"a.txt", 0, 1000, 24), (b"b.txt", 1024, 1024, 0)]
    table = build_table(members, identity=facts, shard="s")
    shard = LocalReader(file, table=table, url="s", path=path)
    for _ in range(5):
        assert values(shard.read(1)) == {".txt": b"", "__key__": "b"}
        assert values(shard.read(0)) == {".txt": bytes(24), "__key__": "a"}


def test_interleaved_samples(tmp_path, small_blocks):
    """Under group="key" a sample's members lie apart, with others between: each gets its own bytes."""
    near = [(f"{row:05d}.{part}", f"{row}{part}".encode()) for part in "ab" for row in range(3)]
    far = [(f"{row:05d}.{part}", f"{row}{part}".encode() * 9) for part in "ab" for row in range(100, 150)]
    members = near + far
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)), group="key")
    check_all(shard, expected(members), [*range(53), *range(52, -1, -1)] * 2)


def test_old_blocks_make_room(tmp_path, small_blocks):
    """No more blocks are kept than allowed, the oldest goes first, and what comes back is read anew."""
    members = sized([200] * 100)
    blocks = Blocks()
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)), blocks=blocks)
    for row in range(100):
        for _ in range(3):
            shard.read(row)
        assert len(blocks.kept) + len(blocks._leaving) <= 4
    newest = max(blocks.kept)
    assert newest == shard.tag + (shard.table.offsets[-1] >> local.LIMITS.shift)
    check_all(shard, expected(members), [0, 99, 50, 0, 99, 50] * 4)


def test_more_blocks_in_use_than_fit(tmp_path, small_blocks, set_limits, preads):
    """Blocks that are all read from do not replace each other; once the order moves on, those it reads from now do."""
    set_limits(local, max_age=30)
    members = sized([200] * 100)
    blocks, chance = Blocks(), random.Random(0)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)), blocks=blocks)
    preads.clear()
    for _ in range(3000):
        shard.read(chance.randrange(6))
    assert sum(size > 200 for size, _ in preads) <= 6
    for row in [90, 91, 92] * 200:
        shard.read(row)
    assert {shard.tag + (shard.table.offsets[row] >> local.LIMITS.shift) for row in (90, 91, 92)} <= {
        *blocks.kept,
        *blocks._leaving,
    }


def test_readers_that_share_blocks_are_told_apart(tmp_path, small_blocks):
    """Shards of equal layout and other bytes, one closed and another opened, never see one another's blocks."""
    blocks = Blocks()
    for tag in "abcabc":
        shard = open_shard(shards.write(tmp_path / f"{tag}.tar", shards.shard(tag, 20)), blocks=blocks)
        for _ in range(3):
            assert shards.texts(shard) == shards.texts_of(tag, 20)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_layout_in_any_order(data, tmp_path_factory):
    """Whatever the sizes, grouping and order of reads, the bytes are those that were packed (oracle: a dict)."""
    with pytest.MonkeyPatch.context() as patch:
        clocks.set_limits(local, patch=patch.setattr, **SMALL)
        sizes = data.draw(
            st.lists(st.sampled_from([0, 1, 50, 100, 128, 200, 255, 256, 257, 600]), min_size=1, max_size=25)
        )
        group = data.draw(st.sampled_from(["adjacent", "key"]))
        members = sized(sizes, group=("a", "b"))
        if group == "key":
            members = data.draw(st.permutations(members))
        path = tmp_path_factory.mktemp("layout") / "a.tar"
        shard = open_shard(shards.write(path, shards.pack(members)), group=group)
        order = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=60))
        check_all(shard, expected(members), order)


def test_threads_share_one_reader(tmp_path, small_blocks):
    """Threads that read one shard through few blocks, evicting one another's, all get the right bytes."""
    members = sized([100, 300, 0, 256] * 25)
    wanted = expected(members)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)))
    wrong = []
    barrier = threading.Barrier(4)

    def work(seed):
        chance = random.Random(seed)
        barrier.wait(PATIENCE_SECONDS)
        try:
            for _ in range(1500):
                row = min(99, max(0, int(chance.gauss(50, 20))))
                if values(shard.read(row)) != wanted[row]:
                    wrong.append(row)
        except BaseException as error:
            wrong.append(error)
            raise

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert wrong == []


@pytest.mark.parametrize("moment", ["StopIteration", "KeyError", "RuntimeError"])
def test_blocks_while_another_thread_makes_room(tmp_path, small_blocks, moment):
    """What another thread does between two steps of making room (empties, deletes, inserts) is no error."""
    members = sized([200] * 40)

    class Meddled(dict):
        def __iter__(self):
            if moment == "StopIteration":
                return iter(())
            if moment == "KeyError":
                return iter([-1])
            raise RuntimeError("dictionary changed size during iteration")

    blocks = Blocks()
    blocks.kept = Meddled()
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)), blocks=blocks)
    check_all(shard, expected(members), list(range(40)) * 2)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_fork_reads_on(tmp_path, small_blocks, is_mapped):
    """A process forked in the middle reads the same shard at the same time, through the descriptor that both have."""
    members = sized([200] * 60)
    wanted = expected(members)
    shard = open_shard(shards.write(tmp_path / "a.tar", shards.pack(members)), use_mmap=is_mapped)
    check_all(shard, wanted, list(range(30)))
    assert call_in_child(lambda: [values(sample) for sample in shard]) == wanted
    check_all(shard, wanted, list(range(60)))


def rewrite(path, members):
    """Write an archive over a file in place, as a careless tool does: the inode stays."""
    data = cache_shards.pack(members)
    with open(path, "r+b") as file:
        file.write(data)
    stamp = os.stat(path).st_mtime_ns + 1_000_000  # file systems with coarse clocks
    os.utime(path, ns=(stamp, stamp))


@pytest.mark.parametrize("size", [200, 30_000])
def test_members_moved_within_an_open_shard_are_not_mistaken_for_one_another(tmp_path, size):
    """A shard rewritten in place with the same size but in another order raises; one that is touched goes on."""
    path = tmp_path / "a.tar"
    members = [(f"{letter}.x", letter.encode() * size) for letter in "abcd"]
    path.write_bytes(cache_shards.pack(members))
    dataset = wids.ShardListDataset([(str(path), 4)], transformations="raw")
    assert dataset[0][".x"] == members[0][1]
    stamp = os.stat(path).st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))
    assert dataset[1][".x"] == members[1][1]
    rewrite(path, [members[1], members[0], members[3], members[2]])
    with pytest.raises(errors.ChangedShardError, match="not where they were"):
        _ = dataset[2]
    with pytest.raises(errors.ChangedShardError):
        dataset.__getitems__([3, 1])
    dataset.close()
    assert [sample["__key__"] for sample in dataset] == ["b", "a", "d", "c"]
