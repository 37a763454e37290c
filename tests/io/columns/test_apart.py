"""SQL in processes of their own: the same results, limits that hold whatever a query does, and their end."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from tests.support import columns as made
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from wids.columns.apart import SqlProcesses
from wids.columns.mapped import write_mapped
from wids.columns.sql import SampleTable, count_nulls, find_rows, names_in, names_of, run_query, within
from wids.errors import ColumnsError, QueryError

ENDLESS = "index >= 0 and (select count(*) from range(100000000000000) t(n) where n % 7 = 3) > 0"
LARGE = [
    "length(repeat('x', 1500000000)) > 3",
    "length(repeat('x', 1500000000 + index)) > 3",
    "list_sum(range(1000000000 + index)) > 3",
    "(select length(string_agg(repeat('x', 10000 + range))) from range(1000000)) > index",
]


@pytest.fixture(scope="module")
def processes():
    """One process, which most tests share."""
    found = SqlProcesses()
    yield found
    found.close()


@pytest.fixture
def table():
    """Fifty rows, with a column in memory and one that is mapped, and every other row chosen."""
    batch = pa.record_batch({"b": pa.array(range(100, 150))})
    joined = [pa.table({"a": pa.array([None, *range(1, 50)])}), write_mapped(batch.schema, [batch])]
    return SampleTable(samples=50, joined=joined, chosen=np.arange(0, 50, 2))


def ids(processes):
    """The ids of the processes that are kept."""
    return [process._process.pid for process in processes._idle]


def test_the_same_results(processes, table):
    """Of all that takes SQL of others."""

    def ask():
        return [
            find_rows(table, "a > 10 and b < 140").tolist(),
            count_nulls(table, "a > 10"),
            run_query(table, "select sum(a), max(b) from samples").to_pylist(),
            names_of(table),
            names_in("a > 10 and b < 140"),
        ]

    with processes.running():
        found = ask()
    assert found == ask()
    assert found[1] == 1
    assert len(ids(processes)) == 1


@pytest.mark.parametrize("predicate", LARGE)
def test_a_value_that_takes_all_memory(processes, table, predicate):
    """It is an error of its query alone: the process, and the one that asks, go on."""
    with processes.running():
        find_rows(table, "true")
        before = ids(processes)
        with pytest.raises(QueryError, match=r"(?i)memory") as caught:
            find_rows(table, predicate)
        assert caught.value.found == predicate
        assert len(find_rows(table, "true")) == 25
    assert ids(processes) == before


def test_errors_are_those_of_the_query(processes, table, tmp_path):
    """With their class and what they name."""
    with processes.running():
        with pytest.raises(QueryError, match="nowhere") as caught:
            find_rows(table, "nowhere > 3")
        assert caught.value.found == "nowhere > 3"
        path = made.write_dataset(tmp_path, (3, 4))
        file = tmp_path / "train.columns.parquet"
        made.make_columns(path)
        file.write_bytes(file.read_bytes()[:-40])
        with pytest.raises((ColumnsError, QueryError)):
            find_rows(SampleTable(samples=7, path=str(file)), "bytes > 3")


def test_a_result_that_is_too_large(processes, table):
    """It does not come to the process that asks."""
    with processes.running(), pytest.raises(QueryError, match=r"the result has|(?i:memory)"):
        run_query(table, "select repeat('x', 20000000) || index from samples")


def test_little_of_the_disk(processes, table):
    """A query has a limited part of the temporary directory, and what reaches beyond the columns stays refused."""
    with processes.running():
        found = run_query(table, "select current_setting('max_temp_directory_size') as size").to_pylist()
        assert found == [{"size": "8.0 GiB"}]
        for statement in ("select * from read_csv('/etc/passwd')", "set memory_limit = '9GB'", "install httpfs"):
            with pytest.raises(QueryError):
                run_query(table, statement)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_query_that_should_end(table, is_stopped):
    """Its process is killed, even one that hears nothing; the next query has another one."""
    processes = SqlProcesses()
    with processes.running():
        find_rows(table, "true")
        (before,) = ids(processes)
        if is_stopped:
            os.kill(before, signal.SIGSTOP)
        with within(0.1), pytest.raises(QueryError, match="it took longer than"):
            find_rows(table, ENDLESS)
        assert ids(processes) == []
        assert len(find_rows(table, "true")) == 25
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    processes.close()


def test_a_process_that_dies(table):
    """Its query fails in words, as does one whose processes are ended meanwhile."""
    processes, errors = SqlProcesses(), []

    def ask():
        with processes.running(), pytest.raises(QueryError) as caught:
            find_rows(table, ENDLESS)
        errors.append(str(caught.value))

    for end in (lambda: os.kill(next(iter(processes._busy))._process.pid, signal.SIGABRT), processes.close):
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: processes._busy)
        end()
        asking.join(PATIENCE_SECONDS)
    assert ["by SIGABRT" in errors[0], "by SIGKILL" in errors[1]] == [True, True]
    assert (processes._idle, processes._busy) == ([], set())


PROGRAM = """
import os, sys, threading
from wids.columns.apart import SqlProcesses
from wids.columns.sql import SampleTable, find_rows
processes = SqlProcesses()
with processes.running():
    find_rows(SampleTable(samples=3), "true")
    print(processes._idle[0]._process.pid, flush=True)
    if sys.argv[1] == "busy":
        sys.stdin.readline()
        threading.Timer(0.1, os._exit, (0,)).start()
        find_rows(SampleTable(samples=3), sys.argv[2])
os._exit(0)
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_the_end_of_the_program(state):
    """Nothing runs on, whatever it does then."""
    command = [sys.executable, "-c", PROGRAM, state, ENDLESS]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    wait_until(lambda: is_gone(int(done.stdout)))


def is_gone(pid):
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # a zombie, where nobody adopts
        return file.read().rpartition(")")[2].split()[0] == "Z"
