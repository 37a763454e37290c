"""Files that are read, changed and replaced: each order of two programs that change one file at once."""

import json
from functools import partial
from pathlib import Path

import pytest

import wids
from tests.support.interleave import Actor, play, watch_calls
from tests.support.shards import write_index
from wids.core.files import atomic
from wids.core.files.replaced import ReplacedFile
from wids.dataset import ShardListDataset
from wids.errors import OutputError
from wids.jobs.index_create import create_index
from wids.jobs.index_edit import merge_indexes, rebase_index, split_index, update_index
from wids.jobs.index_tables import create_tables
from wids.legacy.wids_index import AtomicJsonUpdate

pytestmark = pytest.mark.usefixtures("own_cache")


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


def set_key(path):
    """Change an index as wids 0.1 does."""
    with AtomicJsonUpdate(path) as index:
        index["note"] = "kept"


# name -> (a change of an index, whether an index has it)
CHANGES = {
    "tables": (create_tables, lambda index: "member_tables" in index),
    "update": (lambda path: update_index(path, drop="s2.tar"), lambda index: len(index["shardlist"]) == 2),
    "rebase": (
        lambda path: rebase_index(path, str(Path(path).parent)),
        lambda index: "base" in index,
    ),
    "legacy": (set_key, lambda index: "note" in index),
}


def collide(first, second, *, stop_at):
    """Run two actions, the first one stopped before a call; (calls of the first one, who was told of the other)."""
    told = set()

    def telling(act, name):
        def run():
            try:
                act()
            except OutputError:
                told.add(name)

        return run

    actors = Actor("first", telling(first, "first"), stop_at=stop_at), Actor("second", telling(second, "second"))
    play(*actors)
    return len(actors[0].calls), told


@pytest.mark.parametrize(
    ("first", "second"),
    [("tables", "legacy"), ("legacy", "tables"), ("update", "rebase"), ("rebase", "legacy"), ("legacy", "update")],
)
def test_two_changes_of_an_index(tmp_path, monkeypatch, first, second):
    """The index has both, or one of the two is told of the other."""
    watch_calls(monkeypatch)
    stop, calls = 0, 1
    while stop <= calls:
        path = write_index(tmp_path / str(stop))
        found, told = collide(*(partial(CHANGES[name][0], path) for name in (first, second)), stop_at=stop)
        calls = found if not stop else calls
        lost = [name for name in (first, second) if not CHANGES[name][1](read(path))]
        assert len(lost) == len(told), (stop, lost, told)
        stop += 1


def write_key(path):
    """Add a key to an index or a view, as an editor does that notices other programs."""
    file = ReplacedFile(path)
    index = {**read(path), "note": "kept"}
    with file.alone():
        atomic.write_atomically(path, json.dumps(index).encode())


def view_of(folder):
    """Makes a view at a path."""
    return ShardListDataset(write_index(folder)).select([2]).save


def mixture_of(folder):
    """Makes a mixture at a path."""
    return wids.mix([ShardListDataset(write_index(folder / name)) for name in "ab"]).save


def merge_of(folder):
    """Merges two indexes to a path."""
    return partial(merge_indexes, [write_index(folder / name) for name in "ab"])


def merge_of_views(folder):
    """Merges a view and an index to a path."""
    view_of(folder / "a")(f"{folder}/view.json")
    return partial(merge_indexes, [f"{folder}/view.json", write_index(folder / "b")])


def part_of(folder):
    """Has a path as the only part of an index."""
    index = write_index(folder)
    return lambda path: split_index(index, [path], parts=lambda counts: [range(len(counts))])


@pytest.mark.parametrize("prepare", [view_of, mixture_of, merge_of, merge_of_views, part_of])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_key_that_is_written_by_hand_meanwhile(tmp_path, monkeypatch, prepare, is_first):
    """It is in the index that is made anew, or one of the two programs is told of the other."""
    path, make = str(tmp_path / "made.json"), prepare(tmp_path / "inputs")
    make(path)
    before = Path(path).read_bytes()
    watch_calls(monkeypatch)
    stop, calls = 0, 1
    while stop <= calls:
        Path(path).write_bytes(before)
        acts = partial(make, path), partial(write_key, path)
        found, told = collide(*acts[:: 1 if is_first else -1], stop_at=stop)
        calls = found if not stop else calls
        assert told or "note" in read(path), stop
        assert {*read(path)} >= {*json.loads(before)}
        stop += 1


def test_an_index_that_is_made_again_keeps_its_tables(tmp_path, monkeypatch):
    """Also those that are named while its shards are read."""
    watch_calls(monkeypatch)
    stop, calls, refused = 0, 1, 0
    while stop <= calls:
        path = write_index(tmp_path / str(stop))
        made = partial(create_index, str(Path(path).parent), path)
        found, told = collide(made, partial(create_tables, path), stop_at=stop)
        calls = found if not stop else calls
        assert told or "member_tables" in read(path), stop
        refused += bool(told)
        stop += 1
    assert refused < calls / 4  # only from the last look on
