"""Files that are read, changed and replaced: each order of two programs that change one file at once."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.support.interleave import Actor, play, watch_calls
from tests.support.shards import write_index
from wids.dataset import ShardListDataset
from wids.errors import OutputError
from wids.jobs.index_create import create_index
from wids.jobs.index_edit import rebase_index, update_index
from wids.jobs.index_tables import create_tables
from wids.legacy.wids_index import AtomicJsonUpdate
from wids.serve.served import Served

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


def test_a_view_is_saved_onto_marks(tmp_path, monkeypatch):
    """Who saves a view comes last, or marking is refused: the view is never lost."""
    index = write_index(tmp_path / "d")
    watch_calls(monkeypatch)
    stop, calls = 0, 1
    while stop <= calls:
        path = str(tmp_path / f"{stop}.json")
        served, view = Served(index, marks=path), ShardListDataset(index).select([2])
        found, _ = collide(partial(served.marks.change, [1], is_marked=True), partial(view.save, path), stop_at=stop)
        calls = found if not stop else calls
        assert ShardListDataset(path)[0]["__shardindex__"] == 2, stop
        with pytest.raises(OutputError, match="another program"):
            served.marks.change([4], is_marked=True)
        served.close()
        stop += 1
