"""Whole runs of packing: the same bytes however they run, what is kept of an earlier run, and what ends one."""

import os
import signal

import fsspec
import pytest

from tests.support.packing import (
    content,
    keys_of,
    labels_of,
    list_files,
    pack,
    pack_dataset,
    pack_files,
    pack_rows,
    photos,
    put,
    shown,
)
from tests.support.shards import write_index
from wids.errors import InputError, SampleError, WidsError
from wids.jobs.runner import RunOptions
from wids.writing.pack import folders
from wids.writing.pack.listing import read_one_by_one
from wids.writing.pack.run import SUFFIX, pack_listing
from wids.writing.pack.shard import PackSettings


def test_same_bytes_whatever_the_jobs(tmp_path):
    """One process and three write the same shards, index and tables, by samples and by size, shuffled too."""
    photos(tmp_path / "photos", 40)
    for jobs in (1, 3):
        options = {"seed": 5, "size": 20_480, "engine": RunOptions(jobs=jobs)}
        outcome = pack(tmp_path / "photos", tmp_path / f"{jobs}/p-%d.tar", **options)
        assert (outcome.samples, outcome.skipped, outcome.kept) == (40, [], 0)
    assert content(tmp_path / "1") == content(tmp_path / "3")
    sizes = [len(data) for name, data in content(tmp_path / "1").items() if name.endswith(".tar")]
    assert len(sizes) > 3
    assert max(sizes) <= 20_480
    keys = keys_of(tmp_path / "1/p.json")
    assert len({*keys}) == 40
    assert keys != sorted(keys)


def test_memory_output(tmp_path):
    """Shards go to a remote place; what was finished there before is kept, and the journal goes."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(5)})
    listing = list_files(tmp_path / "in")
    settings = PackSettings(output="memory://pack-out/f-%d.tar", samples=2)
    outcome = pack_listing(listing, settings, engine=RunOptions(jobs=3))
    assert shown(outcome.index, cache_dir=tmp_path / "cache") == [(str(k), {".txt": b"%d" % k}) for k in range(5)]
    names = [os.path.basename(name) for name in fsspec.filesystem("memory").ls("/pack-out", detail=False)]
    assert sorted(names) == sorted([f"f-{k}.tar{end}" for k in range(3) for end in ("", ".widx")] + ["f.json"])
    with pytest.raises(WidsError, match="exists"):
        pack_files(tmp_path / "in", "memory://pack-out/f-%d.tar")


def test_remote_journal(tmp_path, monkeypatch):
    """A run to a remote place that fails leaves a journal there, and the next one goes on from it."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    os.rename(tmp_path / "in/3.txt", tmp_path / "3.txt")
    os.symlink(tmp_path / "3.txt", tmp_path / "in/3.txt")
    listing = list_files(tmp_path / "in")
    settings = PackSettings(output="memory://pack-again/f-%d.tar", samples=1)
    os.rename(tmp_path / "3.txt", tmp_path / "away.txt")
    with pytest.raises(WidsError, match=r"3.txt: cannot be read"):
        pack_listing(listing, settings)
    os.rename(tmp_path / "away.txt", tmp_path / "3.txt")
    assert pack_listing(listing, settings).kept == 3
    assert not fsspec.filesystem("memory").exists(f"/pack-again/f.json{SUFFIX}")


def test_what_changed_is_written_again(tmp_path):
    """Of an unfinished run, only shards whose files are the same, and that nobody touched, are kept."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    broken = tmp_path / "in/5.txt"
    os.symlink(tmp_path / "gone", broken)
    listing = list_files(tmp_path / "in")
    assert [problem.why for problem in listing.problems] == [f"{broken}: cannot be read (No such file or directory)"]
    os.unlink(broken)
    put(tmp_path / "in", {"5.txt": "5"})

    def attempt():
        return pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=1)

    stopped = list_files(tmp_path / "in")
    os.unlink(tmp_path / "in/5.txt")
    with pytest.raises(WidsError, match=r"5.txt: cannot be read"):
        pack_listing(stopped, PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=1))
    put(tmp_path / "in", {"5.txt": "5", "1.txt": "one"})
    put(tmp_path / "out", {"f-2.tar": "junk"})
    with open(tmp_path / "out" / f"f.json{SUFFIX}", "ab") as file:
        file.write(b'{"k": 3, "inp')  # cut short
    outcome = attempt()
    assert outcome.kept == 2
    assert shown(outcome.index)[1:3] == [("1", {".txt": b"one"}), ("2", {".txt": b"2"})]
    with pytest.raises(WidsError, match="exists"):
        attempt()


def test_fewer_shards_than_before(tmp_path):
    """What an unfinished run wrote, and this one does not, goes; so does an earlier dataset with --overwrite."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=1)
    os.unlink(tmp_path / "in/3.txt")
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", samples=2, overwrite=True)
    assert outcome.removed == 2
    assert sorted(os.listdir(tmp_path / "out")) == ["f-0.tar", "f-0.tar.widx", "f-1.tar", "f-1.tar.widx", "f.json"]
    assert len(shown(outcome.index)) == 3


def test_two_runs_to_one_place(tmp_path):
    """While one run writes a dataset, another one is refused."""
    put(tmp_path / "in", {"0.txt": "0", "1.txt": "1"})
    told = []

    def show(_):
        if not told:
            with pytest.raises(WidsError, match="another wids pack is writing there") as caught:
                pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
            told.append(caught.value)

    listing = list_files(tmp_path / "in")
    assert pack_listing(listing, PackSettings(output=str(tmp_path / "out/f-%d.tar")), progress=show).samples == 2
    assert told


def test_what_cannot_be_read_later(tmp_path):
    """A file that changes after it was listed ends the run, or is left out; a shard of none but those is not there."""
    put(tmp_path / "in", {f"{k}.txt": str(k) for k in range(4)})
    listing = list_files(tmp_path / "in")
    put(tmp_path / "in", {"0.txt": "longer"})
    os.unlink(tmp_path / "in/1.txt")
    with pytest.raises(WidsError, match=r"0.txt: had 1 bytes when it was listed, has 6 now"):
        pack_listing(listing, PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=2), engine=RunOptions(jobs=2))
    outcome = pack_listing(
        listing,
        PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=2, skips_errors=True),
        engine=RunOptions(jobs=2),
    )
    assert [problem.place for problem in outcome.skipped] == ["sample 0", "sample 1"]
    assert keys_of(outcome.index) == ["2", "3"]
    assert sorted(os.listdir(tmp_path / "out")) == ["f-1.tar", "f-1.tar.widx", "f.json"]


def test_files_that_are_something_else_by_the_time(tmp_path):
    """A FIFO, a device without end, a directory, other bytes of the same number: none hangs, or is packed."""
    source, output = tmp_path / "in", str(tmp_path / "out/f-%d.tar")

    def other(path):
        path.write_text("b")
        os.utime(path, ns=(1, 1))

    changes = {
        "0": os.mkfifo,
        "1": lambda path: os.symlink("/dev/zero", path),
        "2": os.mkdir,
        "3": lambda path: os.symlink(path, path),
        "4": other,
    }
    put(source, {f"{k}.txt": "a" for k in range(6)})
    listing = list_files(source)
    for name, change in changes.items():
        os.unlink(source / f"{name}.txt")
        change(source / f"{name}.txt")
    outcome = pack_listing(listing, PackSettings(output=output, samples=1, skips_errors=True))
    assert [problem.place for problem in outcome.skipped] == [f"sample {k}" for k in range(5)]
    assert shown(outcome.index) == [("5", {".txt": b"a"})]


class _Killer:
    """A reader whose process is killed while it reads."""

    def read(self, item):
        os.kill(os.getpid(), signal.SIGKILL)

    read_each = read_one_by_one

    def measure_each(self, items, keys):
        return [1] * len(items)

    def identify(self, items):
        return ""


def test_a_killed_process_is_told(tmp_path):
    """When a process is killed (for its memory, say), the run ends with the shard's name and what to do."""
    listing = folders.SourceListing(items=[1, 2], reader=_Killer())
    with pytest.raises(WidsError, match=r"k-\d.tar: a process ended with exit code -9.*fewer jobs"):
        pack_listing(listing, PackSettings(output=str(tmp_path / "k-%d.tar"), samples=1), engine=RunOptions(jobs=2))
    assert os.listdir(tmp_path) == []


def test_nothing_is_written_over_what_is_packed(tmp_path):
    """Neither into the folder that is packed, nor over a dataset's own shards or index, not even with --overwrite."""
    put(tmp_path / "in", {"0.txt": "0"})
    for output in ("in/f-%d.tar", "in/more/f-%d.tar"):
        with pytest.raises(WidsError, match="into, or over, the files to be packed"):
            pack_files(tmp_path / "in", tmp_path / output, overwrite=True)
    index = write_index(tmp_path / "data", (3, 4))
    before = shown(index)
    for output in ("data/s%d.tar", "data/index-%d.tar"):
        with pytest.raises(WidsError, match="into, or over, the files to be packed"):
            pack_dataset(index, tmp_path / output, overwrite=True)
    assert shown(index) == before
    assert pack_dataset(index, tmp_path / "data/t%d.tar").samples == 7


def test_closing_ends_the_processes(tmp_path):
    """Whoever closes the iterator in the middle ends the processes, and their part files go."""
    put(tmp_path / "in", {f"{k:03d}.txt": str(k) for k in range(200)})
    told = []

    def show(progress):
        told.append(progress.done)
        if progress.done:
            raise KeyboardInterrupt

    listing = list_files(tmp_path / "in")
    os.makedirs(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        pack_listing(
            listing,
            PackSettings(output=str(tmp_path / "out/f-%d.tar"), samples=50),
            progress=show,
            engine=RunOptions(jobs=2),
        )
    assert told[-1]
    assert [name for name in os.listdir(tmp_path / "out") if name.endswith((".part", ".json"))] == []


def test_why_nothing_is_left_is_told(tmp_path):
    """Where all samples are left out, the first one's reason is the error, and not that there are none."""
    put(tmp_path, {"r.csv": "a\nfolder\\\\0.jpg\nb.jpg\n", "r.json": '{"a": "x"}\n{"a": "y"}\n'})
    with pytest.raises(
        SampleError, match=r"line 2: column 'a' names a file, .*it has backslashes.*\(1 more sample cann"
    ):
        pack_rows(tmp_path / "r.csv", tmp_path / "o/x-%d.tar", ".jpg=a", skips_errors=True)
    assert pack_rows(tmp_path / "r.json", tmp_path / "o/x-%d.tar", ".txt=a").samples == 2


def test_what_only_some_samples_have_is_counted(tmp_path):
    """Fields that samples lack, and fields to keep that none has, are in the report."""
    put(tmp_path / "in", {"a.JPG": "x", "b.jpg": "x", "a.txt": "1", "b.txt": "", "c.txt": "3"})
    outcome = pack(tmp_path / "in", tmp_path / "out/f-%d.tar", keep_fields=[".jpg", "txt", ".jepg"], samples=2)
    assert outcome.facts == ["not all samples have all fields: .JPG in 1, .jpg in 1"]
    assert outcome.notes == ["no sample has the field .jepg that is to be kept"]
    for size in (10_240, None):
        options = {"keep_fields": ["JPG"], "selected": slice(2), "size": size}
        found = shown(pack(outcome.index, tmp_path / f"c{size}/f-%d.tar", **options).index)
        assert found == [("a", {".JPG": b"x"}), ("b", {".jpg": b"x"})]
    with pytest.raises(SampleError, match="sample 'a' has none of the fields to keep"):
        pack(outcome.index, tmp_path / "b/f-%d.tar", keep_fields=[".tiff"])


def test_of_alternatives_to_keep_the_first_is_packed(tmp_path):
    """As in ``fields=``, of files and of datasets, cut by size too; a field of which no sample has any is told."""
    put(tmp_path / "in", {"a.jpg": "1", "a.PNG": "2", "b.PNG": "3", "b.txt": "x", "c.txt": "x"})
    expected = [("a", {".jpg": b"1"}), ("b", {".PNG": b"3", ".txt": b"x"}), ("c", {".txt": b"x"})]
    outcome = pack(tmp_path / "in", tmp_path / "f/f-%d.tar", keep_fields=["jpg;png", ".txt"])
    assert outcome.ignored_files == [f"{tmp_path}/in/a.PNG"]
    assert shown(outcome.index) == expected
    whole = pack(tmp_path / "in", tmp_path / "all/f-%d.tar").index
    for size in (10_240, None):
        outcome = pack(whole, tmp_path / f"d{size}/f-%d.tar", keep_fields=[".jpg;.png", ".txt"], size=size)
        assert shown(outcome.index) == expected
    outcome = pack(whole, tmp_path / "g/f-%d.tar", keep_fields=["txt", "tif;webp"], selected=slice(1, None))
    assert outcome.notes == ["no sample has the field .tif or .webp that is to be kept"]
    for wrong in (["jpg;"], ["jpg", "png;jpg"]):
        with pytest.raises(InputError, match="keep_fields: ") as caught:
            pack(tmp_path / "in", tmp_path / "x-%d.tar", keep_fields=wrong)
        assert caught.value.parameter == "keep_fields"


def test_class_folders_are_shuffled(tmp_path):
    """By default with seed 0, which is said; ``keeps_order`` keeps the order, as of other sources."""
    put(tmp_path / "h", {f"{name}/{k}.jpg": "x" for name in ("cat", "dog") for k in range(20)})
    outcome = pack(tmp_path / "h", tmp_path / "a/h-%d.tar")
    assert (outcome.seed, outcome.facts[-1]) == (0, "shuffled with seed 0")
    assert sum(map(int, labels_of(outcome.index)[:20])) in range(4, 17)
    kept = pack(tmp_path / "h", tmp_path / "b/h-%d.tar", keeps_order=True, samples=20)
    assert (kept.seed, [fact for fact in kept.facts if "shuffled" in fact]) == (None, [])
    assert labels_of(kept.index) == [0] * 20 + [1] * 20
    pack(tmp_path / "h", tmp_path / "c/h-%d.tar", seed=0)
    assert content(tmp_path / "c") == content(tmp_path / "a")
    again = pack(kept.index, tmp_path / "d/h-%d.tar")
    assert (again.seed, labels_of(again.index)) == (None, [0] * 20 + [1] * 20)
