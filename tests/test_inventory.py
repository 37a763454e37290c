"""What is in a cache directory, against a model of one; and names made to be taken for something else."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache_dirs import put_file, put_garbage, put_shard
from wids.cache import files, inventory
from wids.cache.evict import Entry

HEX = "0123456789abcdef"
STEMS = [
    "a.tar",
    "b",
    "a.tar\n",
    "two\nlines.tar",
    os.fsdecode(b"latin-\xe9.tar"),
    "ä.tar",
    "x" * 200,
    ".",
    "",
    "..tar",
    "$(rm -rf ~).tar",
    "a.lock",
    "a.keep",
    "a.widx",
    "a.1-0123abcd.part",
    ".1-0123abcd.wids-plan",
]
SUFFIXES = [
    "",
    ".lock",
    ".widx",
    ".keep",
    ".1-0123abcd.part",
    "-1-0123abcd.part",
    ".1-0123ABCD.part",
    ".1-0123abcd.part\n",
    ".\u0661-0123abcd.part",
    ".1-0123abc.part",
    ".7-0123abcd.wids-plan",
    ".wids-plan",
]
KINDS = ["file", "file", "file", "file", "sparse", "symlink", "dangling", "fifo", "directory", "second name"]


@st.composite
def trees(draw):
    """Names of things -> (kind, size). Shards that are whole are frequent, and so are those that lack something."""
    tree = {}
    for stem in draw(st.lists(st.sampled_from(STEMS), max_size=6, unique=True)):
        for suffix in draw(st.sets(st.sampled_from(["", ".lock", ".widx", ".keep"]))):
            tree[stem + suffix] = "file", draw(st.integers(0, 3))
    for stem, first, second, kind, size in draw(
        st.lists(
            st.tuples(
                st.sampled_from(STEMS),
                st.sampled_from(SUFFIXES),
                st.sampled_from(SUFFIXES),
                st.sampled_from(KINDS),
                st.integers(0, 9000),
            ),
            max_size=8,
        )
    ):
        tree[stem + first + second] = kind, size
    return {
        name: found for name, found in tree.items() if name not in ("", ".", "..") and len(os.fsencode(name)) <= 255
    }


def plant(directory, tree):
    """Make it so."""
    for number, (name, (kind, size)) in enumerate(tree.items()):
        path = os.path.join(directory, name)
        if kind == "file":
            put_file(directory, name, bytes(size))
        elif kind == "sparse":
            os.truncate(put_file(directory, name), size)
        elif kind == "symlink":
            os.symlink(put_file(f"{directory}-beside", str(number), bytes(size)), path)
        elif kind == "dangling":
            os.symlink("nothing is there", path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            os.mkdir(path)
        else:
            os.link(put_file(f"{directory}-beside", str(number), bytes(size)), path)
        if kind in ("file", "sparse", "second name"):
            os.utime(path, ns=(0, number * 1_000_000_000 + 1))


def is_mark(text):
    """Whether it is ``.<pid>-<random>``."""
    pid, dash, random = text.removeprefix(".").partition("-")
    is_pid = pid != "" and all(letter in "0123456789" for letter in pid)
    return (
        text.startswith(".") and is_pid and dash == "-" and len(random) == 8 and all(letter in HEX for letter in random)
    )


def is_part(name):
    """Whether a name is ``NAME.<pid>-<random>.part``."""
    stem, dot, mark = name.removesuffix(".part").rpartition(".")
    return name.endswith(".part") and stem != "" and is_mark(dot + mark)


def is_plan(name):
    """Whether a name is ``.<pid>-<random>.wids-plan``."""
    return name.endswith(".wids-plan") and is_mark(name.removesuffix(".wids-plan"))


def expected_of(directory, tree):
    """The inventory by definition: sets of names, each taken from what the ones before it left."""
    status = {name: os.lstat(os.path.join(directory, name)) for name, _ in tree.items()}
    rest = {name for name, (kind, _) in tree.items() if kind in ("file", "sparse", "second name")}
    every = frozenset(rest)

    def take(definition):
        found = {name for name in rest if definition(name)}
        rest.difference_update(found)
        return found

    shards = take(lambda name: name + ".lock" in every and name + ".widx" in every)
    parts = take(is_part)
    plans = take(is_plan)
    take(lambda name: name.endswith((".lock", ".keep")))
    tables = take(lambda name: name.endswith(".widx") and name.removesuffix(".widx") + ".lock" in every)
    orphans = {name for name in tables if name.removesuffix(".widx") not in every}
    entries = [
        Entry(
            name=name,
            size_bytes=status[name].st_size + status[name + ".widx"].st_size,
            used_ns=max(status[name].st_mtime_ns, status[name + ".widx"].st_mtime_ns),
            is_kept=name + ".keep" in every,
        )
        for name in sorted(shards)
    ]
    return {
        "entries": entries,
        "parts": sorted(parts),
        "orphans": sorted(orphans),
        "plans": sorted(plans),
        "used_bytes": sum(entry.size_bytes for entry in entries)
        + sum(status[name].st_size for name in [*parts, *orphans]),
        "promised_bytes": sum(max(status[name].st_size - status[name].st_blocks * 512, 0) for name in parts),
        "stranger_bytes": sum(status[name].st_size for name in rest),
    }


def taken(directory):
    """What `inventory.take` gives, each list in order of names."""
    found = inventory.take(str(directory))
    lists = {name: sorted(getattr(found, name)) for name in ("parts", "orphans", "plans")}
    numbers = {name: getattr(found, name) for name in ("used_bytes", "promised_bytes", "stranger_bytes")}
    return {"entries": sorted(found.entries, key=lambda entry: entry.name), **lists, **numbers}


@settings(deadline=None)
@given(trees())
def test_an_inventory_is_what_the_definitions_say(tree):
    """Oracle: the definitions of shard, part, plan and table, over hostile names and things that are no file."""
    with tempfile.TemporaryDirectory() as home:
        directory = os.path.join(home, "cache")
        os.mkdir(directory)
        os.mkdir(f"{directory}-beside")
        plant(directory, tree)
        assert taken(directory) == expected_of(directory, tree)


def test_a_shard_with_all_that_is_beside_it(tmp_path):
    """Size and last use are those of the shard and its table together; a lock and a mark weigh nothing."""
    put_shard(tmp_path, "a.tar", 10, table_size=3, used=5, is_kept=True)
    os.utime(tmp_path / "a.tar.widx", ns=(0, 7_000_000_001))
    put_shard(tmp_path, "b.tar", 20, used=9)
    found = inventory.take(str(tmp_path))
    assert sorted(found.entries, key=lambda entry: entry.name) == [
        Entry(name="a.tar", size_bytes=13, used_ns=7_000_000_001, is_kept=True),
        Entry(name="b.tar", size_bytes=20, used_ns=9_000_000_000, is_kept=False),
    ]
    assert (found.used_bytes, found.stranger_bytes) == (33, 0)


@pytest.mark.parametrize("missing", [".lock", ".widx"])
def test_a_shard_that_lacks_something_is_a_stranger(tmp_path, missing):
    """Without its lock, or without its table, nobody can tell that a file was fetched: it may be the user's."""
    put_shard(tmp_path, "a.tar", 10, table_size=3)
    os.unlink(tmp_path / f"a.tar{missing}")
    found = inventory.take(str(tmp_path))
    assert (found.entries, found.orphans, found.used_bytes) == ([], [], 0)
    assert found.stranger_bytes == (10 if missing == ".widx" else 13)


@pytest.mark.parametrize("beside", ["symlink", "directory", "fifo"])
@pytest.mark.parametrize("suffix", ["", ".lock", ".widx"])
def test_what_is_no_file_makes_no_shard(tmp_path, suffix, beside):
    """A link, a directory or a FIFO in the place of the shard, its lock or its table."""
    path = put_shard(tmp_path, "a.tar", 10) + suffix
    os.rename(path, tmp_path / "elsewhere")
    if beside == "symlink":
        os.symlink("elsewhere", path)
    elif beside == "directory":
        os.mkdir(path)
    else:
        os.mkfifo(path)
    assert inventory.take(str(tmp_path)).entries == []


@pytest.mark.parametrize("name", ["a.lock", "a.keep", "a.widx", "a.1-0123abcd.part", ".1-0123abcd.wids-plan"])
def test_a_shard_may_have_any_name(tmp_path, name):
    """A shard whose URL ends as our own files do is a shard all the same, and weighs what it weighs."""
    put_shard(tmp_path, name, 10, table_size=2)
    found = inventory.take(str(tmp_path))
    assert [(entry.name, entry.size_bytes) for entry in found.entries] == [(name, 12)]
    assert (found.parts, found.plans, found.orphans, found.used_bytes) == ([], [], [], 12)


@pytest.mark.parametrize(
    "name",
    [
        "a.tar.1-0123abcd.part\n",
        "a.tar.\u0661-0123abcd.part",
        "a.tar.1-0123ABCD.part",
        ".1-0123abcd.part",
        "notes.wids-plan",
        ".1-0123abcd.wids-plan\n",
        ".1-0123abcd.wids-plan.bak",
    ],
)
def test_what_only_looks_like_ours_is_the_user_s(tmp_path, name):
    """A name that we would never give is a stranger's, however near it comes: what is ours may be deleted."""
    put_file(tmp_path, name, b"mine")
    found = inventory.take(str(tmp_path))
    assert (found.parts, found.plans, found.used_bytes, found.stranger_bytes) == ([], [], 0, 4)


def test_the_names_that_we_give_are_known(tmp_path):
    """Part files of any shard's name, of its table and of a plan are parts."""
    shards = ["a.tar", "a.tar\n", os.fsdecode(b"\xe9"), "a.1-0123abcd.part", ".1-0123abcd.wids-plan"]
    parts = [put_garbage(str(tmp_path / name)) for shard in shards for name in (shard, f"{shard}.widx")]
    assert sorted(inventory.take(str(tmp_path)).parts) == sorted(map(os.path.basename, parts))


def test_what_a_part_file_is_promised(tmp_path):
    """Bytes that a download will have count as used at once, and as promised until they are written."""
    with files.part_file(str(tmp_path / "a.tar")) as (_, fd):
        os.truncate(fd, 1 << 20)
        found = inventory.take(str(tmp_path))
        assert (found.used_bytes, found.promised_bytes) == (1 << 20, 1 << 20)
        os.pwrite(fd, b"x" * (1 << 20), 0)
        os.fsync(fd)
        found = inventory.take(str(tmp_path))
        assert (found.used_bytes, found.promised_bytes) == (1 << 20, 0)


def test_where_files_have_no_blocks(tmp_path, monkeypatch):
    """A system that does not say how much of a file is written counts all of it as promised."""
    put_garbage(str(tmp_path / "a.tar"), 100)

    class Status:
        """What Windows tells of a file."""

        def __init__(self, found):
            self.st_size, self.st_mtime_ns, self.st_mode = found.st_size, found.st_mtime_ns, found.st_mode

    real = inventory._list
    monkeypatch.setattr(
        inventory, "_list", lambda directory: ((name, Status(found)) for name, found in real(directory))
    )
    assert inventory.take(str(tmp_path)).promised_bytes == 100


def test_directories_that_cannot_be_looked_at(tmp_path):
    """One that is not there is empty; what is no directory is an error."""
    empty = {"entries": [], "parts": [], "orphans": [], "plans": []}
    numbers = {"used_bytes": 0, "promised_bytes": 0, "stranger_bytes": 0}
    assert taken(tmp_path / "none") == {**empty, **numbers}
    assert taken(tmp_path) == {**empty, **numbers}
    put_file(tmp_path, "file")
    with pytest.raises(NotADirectoryError):
        inventory.take(str(tmp_path / "file"))


@pytest.mark.parametrize("victim", ["a.tar", "a.tar.widx", "a.tar.lock"])
def test_files_that_go_while_the_directory_is_read(tmp_path, monkeypatch, victim):
    """What is deleted between the listing and the look at it is not there; the rest is."""
    put_shard(tmp_path, "a.tar", 10)
    put_shard(tmp_path, "b.tar", 20)
    real = os.scandir

    @contextlib.contextmanager
    def late(directory):
        with real(directory) as found:
            items = list(found)
            Path(directory, victim).unlink()
            yield items

    monkeypatch.setattr(inventory.os, "scandir", late)
    assert [entry.name for entry in inventory.take(str(tmp_path)).entries] == ["b.tar"]
