"""Columns under faults: forks while DuckDB works in other threads, workers of every start method."""

import threading

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

import wids
from tests.support import columns as made
from tests.support.children import call_in_child
from wids.columns import mapped, packages
from wids.core.files import forks

COUNTS = (30, 0, 90)
ROWS = made.rows_of(COUNTS)
TABLE = pa.table({"key": [row["key"] for row in ROWS], "score": [row["index"] * 2 for row in ROWS]})


@pytest.fixture
def dataset(tmp_path):
    """A dataset with columns."""
    index = made.write_dataset(tmp_path / "d", COUNTS)
    made.make_columns(index)
    return wids.ShardListDataset(index, transformations=[])


def ask(dataset):
    """What SQL and a join say of a dataset."""
    joined = dataset.with_table(TABLE, on="key", fields=True)
    return dataset.find_rows("label = 1").tolist(), joined.find_rows("score > 200").tolist(), joined[7]["score"]


EXPECTED = [row["index"] for row in ROWS if row["label"] == 1], list(range(101, 120)), 14


def test_forks_while_threads_ask(dataset):
    """A forked process asks and joins by itself, whatever DuckDB was at in the process that it was forked from."""
    is_over = threading.Event()
    wrong = []

    def work():
        while not is_over.is_set():
            if (found := ask(dataset)) != EXPECTED:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [call_in_child(ask, dataset) for _ in range(2)] == [EXPECTED] * 2
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_no_fork_while_a_package_is_imported(monkeypatch):
    """By any thread: the forked process would wait for the package for ever."""
    seen = []
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: seen.append((name, forks.lock._is_owned())))
    packages._import_later.cache_clear()
    packages.import_duckdb()
    packages.import_parquet()
    assert {"duckdb", "pyarrow.parquet", "pandas"} <= {name for name, _ in seen}
    assert all(is_locked for _, is_locked in seen)


def test_a_fork_while_another_thread_makes_the_directory(dataset, monkeypatch):
    """Of joined columns: the forked process has one of its own, and waits for nobody."""
    monkeypatch.setattr(mapped, "_home", home := mapped._Home())
    with home._lock:
        assert call_in_child(ask, dataset) == EXPECTED


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_of_views(dataset, method):
    """Have the columns of tables that were joined to the view; none of their rows is sent to them."""
    view = dataset.select(range(3, 60, 2)).with_table(
        pa.table({"index": list(range(29)), "score": [f"s{i}" for i in range(29)]}), on="index", fields=True
    )
    part = view.where("score <> 's4'").with_columns(["label", "index"])
    expected = [(i, f"s{k}", ROWS[3 + 2 * k]["label"]) for i, k in enumerate(k for k in range(29) if k != 4)]
    loader = DataLoader(part, batch_size=4, num_workers=2, multiprocessing_context=method, collate_fn=list)
    found = [(sample["index"], sample["score"], sample["label"]) for batch in loader for sample in batch]
    assert found == expected
    assert call_in_child(part.find_rows, "score = 's5'", method=method).tolist() == [4]
