"""Files on network file systems: which those are, and what is read ahead of them."""

import os
import sys

import pytest

from wids.core.files import page_cache

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the calls are Linux's")

KINDS = [("nfs4", True), ("lustre", True), ("fuse.sshfs", True), ("fuse", True), ("fuseblk", False), ("ext4", False)]


@pytest.fixture
def mounts(monkeypatch, tmp_path):
    """A function that makes the file system of this test's directory one of a kind."""

    def mount(kind):
        device = os.stat(tmp_path).st_dev
        own = f"{os.major(device)}:{os.minor(device)}"
        lines = ["22 1 0:999 / /other rw - nfs server:/a rw", f"23 1 {own} / / rw shared:1 master:2 - {kind} source rw"]
        (tmp_path / "mountinfo").write_text("\n".join([*lines, ""]))
        monkeypatch.setattr(page_cache, "_MOUNTS", str(tmp_path / "mountinfo"))

    return mount


@pytest.fixture
def advice(monkeypatch):
    """The (offset, bytes) that were asked for."""
    found = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, offset, size, _kind: found.append((offset, size)))
    return found


@pytest.mark.parametrize(("kind", "is_far"), KINDS)
def test_kinds_of_file_systems(tmp_path, mounts, kind, is_far):
    """NFS, cluster file systems and FUSE; a disk that FUSE reads is one of this machine."""
    mounts(kind)
    assert page_cache.is_network(str(tmp_path)) is is_far


def test_what_is_not_known_is_near(tmp_path, monkeypatch, mounts):
    """A file that is not there, a machine without a list of mounts, or with one that says nothing of this device."""
    mounts("nfs")
    assert not page_cache.is_network(str(tmp_path / "missing"))
    (tmp_path / "mountinfo").write_text("nonsense\n\n23 1\n")
    assert not page_cache.is_network(str(tmp_path))
    monkeypatch.setattr(page_cache, "_MOUNTS", str(tmp_path / "none"))
    assert not page_cache.is_network(str(tmp_path))
    monkeypatch.delattr(os, "posix_fadvise")
    assert not page_cache.is_network(str(tmp_path))


@pytest.mark.parametrize(("begin", "end"), [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (0.999, 1.0), (0.0, 0.0)])
def test_all_of_a_part_is_asked_for(tmp_path, advice, begin, end):
    """In steps that the kernel takes whole; nothing beyond a step more than the part."""
    path, size = tmp_path / "a.tar", 1_000_000
    path.write_bytes(bytes(size))
    page_cache.read_ahead(str(path), begin, end, is_cancelled=lambda: False)
    asked = {byte for offset, length in advice for byte in range(offset, offset + length)}
    assert asked >= set(range(int(begin * size), int(end * size)))
    assert sum(length for _, length in advice) < (end - begin) * size + (128 << 10)
    assert all(length <= 128 << 10 for _, length in advice)


def test_a_cancelled_one_ends(tmp_path, advice):
    """Between two steps."""
    (tmp_path / "a.tar").write_bytes(bytes(1_000_000))
    page_cache.read_ahead(str(tmp_path / "a.tar"), 0.0, 1.0, is_cancelled=lambda: len(advice) == 3)
    assert len(advice) == 3


def test_it_is_read_for_real(tmp_path):
    """The calls are as the kernel takes them; an empty file and a missing one."""
    for size in (0, 1, 300_000):
        (tmp_path / "a.tar").write_bytes(bytes(size))
        page_cache.read_ahead(str(tmp_path / "a.tar"), 0.0, 1.0, is_cancelled=lambda: False)
    with pytest.raises(FileNotFoundError):
        page_cache.read_ahead(str(tmp_path / "none"), 0.0, 1.0, is_cancelled=lambda: False)


def test_memory():
    """What is free is more than nothing and less than this machine has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < page_cache.free_memory() <= total or sys.platform != "linux"


@pytest.mark.parametrize(
    ("limit", "stat", "found"),
    [
        ("1000000", "anon 300000\nfile 500000\n", 700_000),
        ("1000000", "file 500000\n", 1_000_000),
        ("200000", "anon 300000\n", 0),
    ],
)
def test_memory_of_a_container(tmp_path, monkeypatch, limit, stat, found):
    """Its limit, less what programs take; what the page cache takes may be taken again."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.stat").write_text(stat)
    monkeypatch.setattr(page_cache, "_control_groups", lambda: [(str(tmp_path), "memory.max", "anon")])
    assert page_cache.free_memory() == found


def test_a_container_without_a_limit(tmp_path, monkeypatch):
    """Has the machine's memory."""
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(page_cache, "_control_groups", lambda: [(str(tmp_path), "memory.max", "anon")])
    machine = page_cache.free_memory()
    monkeypatch.setattr(page_cache, "_control_groups", list)
    assert machine == pytest.approx(page_cache.free_memory(), rel=0.5)


def test_limits_of_groups_around_a_group_count(tmp_path, monkeypatch):
    """A batch system limits a job in a group of its own, which is not the root, and has its steps in others."""
    (tmp_path / "groups").write_text("4:memory,cpu:/slurm/job_1\n1:name=systemd:/x\n0::/slurm/job_1/step_0\n")
    (tmp_path / "v1/slurm/job_1").mkdir(parents=True)
    (tmp_path / "v2/slurm/job_1/step_0").mkdir(parents=True)
    (tmp_path / "v1/slurm/job_1/memory.limit_in_bytes").write_text("3000\n")
    (tmp_path / "v2/slurm/job_1/memory.max").write_text("2000\n")
    (tmp_path / "v2/slurm/job_1/memory.stat").write_text("anon 500\n")
    (tmp_path / "v2/slurm/job_1/step_0/memory.max").write_text("max\n")
    monkeypatch.setattr(page_cache, "_CGROUPS", str(tmp_path / "groups"))
    limited = {key: (str(tmp_path / f"v{2 - len(key) // 6}"), *rest) for key, (_, *rest) in page_cache._LIMITED.items()}
    monkeypatch.setattr(page_cache, "_LIMITED", limited)
    assert page_cache.free_memory() == 1500
    (tmp_path / "v1/slurm/job_1/memory.limit_in_bytes").write_text("1000\n")
    assert page_cache.free_memory() == 1000
    (tmp_path / "groups").write_text("nothing of the kind\n")
    assert page_cache.free_memory() > 3000
