"""SQL over the columns of a dataset, by DuckDB: one table, ``samples``, one row for each sample in index order.

Rules:
- A query can read these columns and nothing else. Only a single SELECT is run. Files, the network, extensions, other
  databases and the program's variables are inaccessible, and no setting can be changed (``enable_external_access``,
  ``lock_configuration``).
- A predicate is one expression. Its text is parsed as the WHERE of a fixed statement, and refused if it is more.
- Memory is limited; data that do not fit go to a temporary directory during the query.
- DuckDB does not verify the checksums of pages. pyarrow reads the columns of a statement in advance, once for each
  version of the file in a process.
- Only `within` and `REASON_TO_STOP` limit time. DuckDB works in a thread, so that Ctrl-C reaches the caller's thread,
  which stops it. It does not hear it while it makes one value, which may take all memory: text of others is for
  `RUNNER`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
import time
from concurrent.futures import Future, wait
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import msgspec
import numpy as np

from wids.columns.file import check_values
from wids.columns.packages import import_arrow, import_duckdb
from wids.columns.spec import CLASS_COLUMNS, nearest
from wids.core.files import tempdirs
from wids.errors import QueryError, is_harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

T = TypeVar("T")
P = ParamSpec("P")
# Runs the function of this module that is named, with these arguments.
Runner: TypeAlias = "Callable[[str, tuple[Any, ...], dict[str, Any]], Any]"

# Asked now and then while a query runs: why it should end, in words; "": it should not.
REASON_TO_STOP: ContextVar[Callable[[], str]] = ContextVar("wids-sql-stop", default=str)
# Runs all SQL of users, as `wids.columns.apart.SqlProcesses`; None: this process does.
RUNNER: ContextVar[Runner | None] = ContextVar("wids-sql-runner", default=None)
# That a query may write to its temporary directory; 0: most of the disk.
SPILL_BYTES: ContextVar[int] = ContextVar("wids-sql-spill", default=0)

DEFAULT_MEMORY_BYTES = 512 << 20
# Functions whose value is another one at each call, or in each process.
_VARYING = frozenset(
    {
        *("random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval", "currval"),
        *("now", "today", "current_date", "current_time", "current_timestamp", "current_localtime", "localtime"),
        *(
            "current_localtimestamp",
            "get_current_time",
            "get_current_timestamp",
            "transaction_timestamp",
            "txid_current",
        ),
    }
)
_DESCRIBE = "DESCRIBE samples"
_FIND = 'SELECT "index" FROM samples WHERE\n'
_ORDER = 'SELECT "index" FROM samples ORDER BY\n'
_BATCH_ROWS = 1 << 17
_GLOB = frozenset("*?[")
_MAX_NAMES, _MAX_LETTERS = 100, 2000
# A join has the keys in memory besides.
_JOIN_MEMORY_BYTES = 128 << 20
# Keys that repeat, named in errors.
_SOME = 5
# DuckDB's words for a column that is not there.
_NO_COLUMN = re.compile(r'Referenced column "(.*?)" not found|does not have a column named "(.*?)"')
# How often DuckDB is asked to stop, which it does not hear before it has begun.
_STOP_SECONDS = 0.02
_SIGNAL_SECONDS = 0.5


# The parts of a statement from whose names it is known which columns it reads; of any other part, it is all.
_PLAIN_PARTS = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "CTE_NODE", "BASE_TABLE", "JOIN", "SUBQUERY", "EMPTY"})
_MODIFIERS = frozenset({"ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER"})
_ORDERS = frozenset({"ASCENDING", "DESCENDING", "ORDER_DEFAULT"})
_PLAIN = _PLAIN_PARTS | _MODIFIERS | _ORDERS
# Comparisons of a column of classes with the name of one; a text in the bytes of a statement.
_EQUALITIES = frozenset({"COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_IN", "COMPARE_NOT_IN"})
_EQUALITIES |= {"COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"}
_TEXT = re.compile(rb"'((?:[^']|'')*)'")
# Where a statement gives names.
_ALIASES = ("alias", "aliases", "column_name_alias")
_WHOLE_ROWS = frozenset({"STAR", "POSITIONAL_REFERENCE"})


class _RefusedError(Exception):
    """A refusal of SQL, by DuckDB's parser or by wids."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the time of this thread's queries in the block; a QueryError ends them."""
    outer, end = REASON_TO_STOP.get(), time.monotonic() + seconds
    late = f"it took longer than {seconds:g} seconds and was ended"
    before = REASON_TO_STOP.set(lambda: late if time.monotonic() >= end else outer())
    try:
        yield
    finally:
        REASON_TO_STOP.reset(before)


def _where_asked(function: Callable[P, T]) -> Callable[P, T]:
    """A function that `RUNNER` runs, if there is one."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        runner = RUNNER.get()
        if runner is None:
            return function(*args, **options)
        found: T = runner(function.__name__, args, options)
        return found

    return run


class SampleTable(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that SQL queries.

    Attributes:
        samples: number of rows, before a choice.
        path: of the Parquet file with the index's own columns; None: only ``index`` exists.
        joined: Arrow tables of as many rows, or `MappedTable`s, which other processes map; their columns follow.
        present: more columns, each true where one of some columns is not null: name -> names of these.
        chosen: the rows of a view: int64, ascending; None: all. SQL counts them from 0.
        classes: their names; SQL may compare a column of their numbers with them: ``label = 'dog'``.
    """

    samples: int
    path: str | None = None
    joined: Sequence[Any] = ()
    present: Mapping[str, Sequence[str]] = {}
    chosen: np.ndarray[Any, np.dtype[np.int64]] | None = None
    classes: Sequence[str] = ()

    @property
    def count(self) -> int:
        """Number of rows that SQL sees."""
        return self.samples if self.chosen is None else len(self.chosen)

    def spread(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Row numbers of another table, one for each row that SQL sees, as one for each of `samples`; -1: none."""
        if self.chosen is None:
            return rows
        found = np.full(self.samples, -1, rows.dtype)
        found[self.chosen] = rows
        return found


@_where_asked
def find_rows(
    table: SampleTable, predicate: str, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The indices of the samples for which a predicate is true.

    Args:
        table: of which columns.
        predicate: an SQL expression, the condition after WHERE: ``width >= 512 and caption ilike '%cat%'``. A name that
            is a keyword of SQL needs double quotes.
        memory_bytes: that DuckDB may use; the result takes 8 for each index.

    Returns:
        int64, ascending, each once.

    Raises:
        QueryError: it is not such an expression, names an unknown column, or needs too much.
        ColumnsError: a column that it names is damaged in the file.
        DependencyError: duckdb or pyarrow is not installed.
    """
    _check_text(predicate, "a predicate: write one as text, like 'width >= 512'")

    def find(connection: Any) -> list[np.ndarray[Any, Any]]:
        _check_predicate(connection, predicate)
        reader = _reader_of(connection.sql(_number_classes(connection, _FIND + predicate, table.classes)))
        return [_indices_of(table, batch.column(0)) for batch in reader]

    parts = _ask(table, predicate, find, memory_bytes, statement=_FIND + predicate)
    found: np.ndarray[Any, np.dtype[np.int64]] = np.concatenate([np.zeros(0, np.int64), *parts])
    return np.unique(found) if (found[1:] <= found[:-1]).any() else found


@_where_asked
def count_nulls(table: SampleTable, predicate: str, *, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> int:
    """The number of samples for which a predicate is null, neither true nor false; see `find_rows`."""

    def count(connection: Any) -> int:
        _check_predicate(connection, predicate)
        counting = f"SELECT count(*) FROM samples WHERE (\n{predicate}\n) IS NULL"  # noqa: S608 - checked
        found = connection.sql(_number_classes(connection, counting, table.classes)).fetchall()
        return int(found[0][0])

    return _ask(table, predicate, count, memory_bytes, statement=_FIND + predicate)


def _indices_of(table: SampleTable, column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A part of the column index.

    Raises:
        _RefusedError: a value is not the index of a sample.
    """
    if not column.null_count:
        found: np.ndarray[Any, np.dtype[np.int64]] = column.to_numpy()
        if not len(found) or 0 <= found.min() <= found.max() < table.count:
            return found
    raise _RefusedError(f"{table.path}: its column index has numbers that no sample has; make it again")


def order_query(order: str, ties: str = "index") -> str:
    """The SELECT of `sort_rows`."""
    return f"{_ORDER}{order}\n, {_quoted(ties)}"


@_where_asked
def sort_rows(
    table: SampleTable, order: str, *, ties: str = "index", memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The indices of all samples, in the order of SQL expressions.

    Args:
        table: of which columns.
        order: what stands after ORDER BY: ``label, score DESC``. Missing values are last.
        ties: the column that orders samples for which it is equal.
        memory_bytes: as for `find_rows`.

    Returns:
        int64, each index once.

    Raises:
        QueryError: it is no such text, names an unknown column, or needs too much.
        ColumnsError, DependencyError: see `find_rows`.
    """
    _check_text(order, "an order: write one as text, like 'label, score DESC'")
    statement = order_query(order, ties)

    def sort(connection: Any) -> list[np.ndarray[Any, Any]]:
        _check_order(connection, order)
        reader = _reader_of(connection.sql(_number_classes(connection, statement, table.classes)))
        return [_indices_of(table, batch.column(0)) for batch in reader]

    parts = _ask(table, order, sort, memory_bytes, statement=statement)
    found: np.ndarray[Any, np.dtype[np.int64]] = np.concatenate([np.zeros(0, np.int64), *parts])
    return found


@_where_asked
def run_query(table: SampleTable, sql: str, *, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Any:
    """The result of a SELECT over ``samples``, a ``pyarrow.Table``; its rows have no order unless the SELECT sets one.

    Args:
        table: the columns.
        sql: one SELECT statement.
        memory_bytes: that DuckDB may use; the result is not counted.

    Raises:
        QueryError: it is not such a statement, has an unknown name, or needs too much.
        ColumnsError: a column that it reads is damaged in the file.
        DependencyError: duckdb or pyarrow is not installed.
    """
    _check_text(sql, "SQL: write a SELECT statement as text")

    def read(connection: Any) -> Any:
        kinds = [_kind_of(statement) for statement in connection.extract_statements(sql)]
        if kinds != ["SELECT"]:
            words = " and ".join(kinds) or "nothing"
            raise _RefusedError(f"one SELECT statement is run, and this is {words}")
        return _reader_of(connection.sql(_number_classes(connection, sql, table.classes))).read_all()

    return _ask(table, sql, read, memory_bytes, statement=sql)


@_where_asked
def compute(table: SampleTable, expression: str, *, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Any:
    """The value of an expression for each sample, in order: a ``pyarrow.Table`` with one column.

    Args:
        table: the columns.
        expression: SQL over them: ``tokens + (width / 28) * (height / 28)``.
        memory_bytes: that DuckDB may use; the result is not counted.

    Raises:
        QueryError: it is not such an expression, names an unknown column, or needs too much.
        ColumnsError: a column that it names is damaged in the file.
        DependencyError: duckdb or pyarrow is not installed.
    """
    _check_text(expression, "an expression: write one as text, like 'width * height'")
    statement = f'SELECT (\n{expression}\n) AS result FROM samples ORDER BY "index"'  # noqa: S608 - checked

    def read(connection: Any) -> Any:
        _check_predicate(connection, expression)
        return _reader_of(connection.sql(_number_classes(connection, statement, table.classes))).read_all()

    return _ask(table, expression, read, memory_bytes, statement=statement)


def _check_text(sql: Any, what: str) -> None:
    """Check that SQL is text that DuckDB accepts.

    Raises:
        QueryError: it is not; ``what`` describes the expected text.
    """
    if not isinstance(sql, str):
        raise QueryError(f"{sql!r:.50} is not {what}", found=sql)
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"{sql!r:.{_MAX_LETTERS}} has letters that UTF-8 lacks ({error.reason})", found=sql) from error


def _kind_of(statement: Any) -> str:
    try:
        name: str = statement.type.name
    except ValueError:  # DuckDB's own list of them has gaps
        name = "another statement"
    return name


@_where_asked
def names_of(table: SampleTable) -> list[str]:
    """The columns of a table, in their order."""
    return _ask(table, _DESCRIBE, _describe)


class SqlNames(NamedTuple):
    """The names in SQL, in lower case.

    Attributes:
        names: of columns, and of fields in them.
        own: those of them that are columns of ``samples``, and nothing that the statement itself calls so.
    """

    names: frozenset[str]
    own: frozenset[str]


@_where_asked
def names_in(text: str, *, is_query: bool = False) -> SqlNames:
    """The names in a predicate.

    Args:
        text: the predicate.
        is_query: the text is a SELECT statement; its own names are included; an invalid statement has none.

    Raises:
        QueryError: it is not an expression.
    """
    _check_text(text, "SQL: write a SELECT statement as text" if is_query else "a predicate: write one as text")

    def find(connection: Any) -> SqlNames:
        if not is_query:
            _check_predicate(connection, text)
        parts = [part for part in _parts_of(_parse(connection, text if is_query else _FIND + text)) if _is_dict(part)]
        refs = [
            [name.casefold() for name in part["column_names"]] for part in parts if part.get("class") == "COLUMN_REF"
        ]
        own = {ref[-1] for ref in refs if len(ref) == 1 or ref[:-1] == ["samples"]}
        aliases = {each.casefold() for part in parts for key in _ALIASES for each in _texts_of(part.get(key))}
        return SqlNames(frozenset(name for ref in refs for name in ref), frozenset(own - aliases))

    return _ask(SampleTable(samples=0), text, find)


def _is_dict(part: Any) -> bool:
    return isinstance(part, dict)


def _texts_of(value: Any) -> list[str]:
    """The texts in a value of a parsed statement: one, or a list of some."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _columns_read(connection: Any, statement: str, names: Sequence[str]) -> Collection[str]:
    """The columns among ``names`` that a statement may read: those that it names, or all if that is uncertain."""
    tree = _parse(connection, statement)
    if tree["error"]:
        return names
    own = {name.casefold(): name for name in names}
    parts = list(_parts_of(tree["statements"]))
    expressions = [part for part in parts if isinstance(part, dict) and "class" in part]
    known = own.keys() | {expression.get("alias", "").casefold() for expression in expressions} - {""}
    is_certain = all(_is_plain(part, known) for part in parts)
    words = {part.casefold() for part in parts if isinstance(part, str)}
    return [own[word] for word in words & own.keys()] if is_certain else names


def _parts_of(tree: Any) -> Iterator[Any]:
    """A parsed statement, and all its parts: dicts, texts, numbers."""
    if isinstance(tree, list):
        for value in tree:
            yield from _parts_of(value)
        return
    yield tree
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _parts_of(value)


def _is_plain(part: Any, known: Collection[str]) -> bool:
    """True if a part of a statement reads only columns that it names.

    Args:
        part: see `_parts_of`.
        known: names of columns and of expressions, in lower case; any other may be a table's, which is a whole row.
    """
    if not isinstance(part, dict):
        return True
    if "class" in part:
        is_row = part["class"] == "COLUMN_REF" and not any(name.casefold() in known for name in part["column_names"])
        return not is_row and part["class"] not in _WHOLE_ROWS
    kind = part.get("type")
    if isinstance(kind, str) and kind not in _PLAIN:
        return False
    renames = part.get("alias", "").casefold() in known or part.get("column_name_alias")
    return not renames and part.get("ref_type") != "NATURAL"


class KeyJoin(NamedTuple):
    """A table joined to samples by their keys.

    Attributes:
        rows: the row of the table for each sample that SQL sees, int32 or int64; -1: none.
        repeated: (number of repeated keys in the table, some of them).
        repeated_samples: likewise of samples.
    """

    rows: np.ndarray[Any, Any]
    repeated: tuple[int, list[str]]
    repeated_samples: tuple[int, list[str]]


def run_join(table: SampleTable, given: Any, own: Any = None, *, memory_bytes: int = _JOIN_MEMORY_BYTES) -> KeyJoin:
    """Find the row of each sample in a table by its key.

    Args:
        table: the samples, with a column ``key``.
        given: an Arrow table with a column ``key`` of strings.
        own: an Arrow table with the keys of the samples that SQL sees, in order, if ``table`` has none.
        memory_bytes: that DuckDB may use.

    Raises:
        QueryError: it takes more than this memory and the temporary directory.
        DependencyError: duckdb or pyarrow is not installed.
    """
    pa = import_arrow()
    kind = np.int32 if max(len(given), table.count) < 1 << 31 else np.int64
    numbered = given.append_column("row", pa.array(np.arange(len(given), dtype=kind)))
    source = table if own is None else SampleTable(samples=table.count, joined=(own,))
    rows = np.full(table.count, -1, kind)

    def repeated(connection: Any, name: str) -> tuple[int, list[str]]:
        groups = f"SELECT key FROM {name} GROUP BY key HAVING count(*) > 1"  # noqa: S608 - ours
        sql = f"SELECT count(*), min(key, {_SOME}) FROM ({groups})"  # noqa: S608
        count, some = connection.execute(sql).fetchall()[0]
        return count, some or []

    def join(connection: Any) -> KeyJoin:
        in_table, in_samples = repeated(connection, "given"), repeated(connection, "samples")
        if not (in_table[0] or in_samples[0]):
            sql = 'SELECT s."index", g.row FROM samples s JOIN given g ON s.key = g.key'
            for batch in _reader_of(connection.sql(sql)):
                rows[_indices_of(source, batch.column(0))] = batch.column(1).to_numpy()
        return KeyJoin(rows, in_table, in_samples)

    return _ask(source, "a join by key", join, memory_bytes, given=numbered, statement="SELECT key FROM samples")


def _reader_of(relation: Any) -> Any:
    """The rows of a relation as Arrow batches; older releases of DuckDB have another name for it."""
    make = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return make(_BATCH_ROWS)


def _ask(
    table: SampleTable,
    sql: str,
    work: Callable[[Any], T],
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    *,
    given: Any = None,
    statement: str = "",
) -> T:
    """The result of ``work`` for a connection with only the view ``samples``; errors of DuckDB become wids errors.

    Args:
        table: the columns.
        sql: for errors.
        work: what to do.
        memory_bytes: see `find_rows`.
        given: another Arrow table, available as ``given``.
        statement: reads the same columns as ``work``; "": none.

    Raises:
        QueryError, ColumnsError: see above.
    """
    duckdb, pa = import_duckdb(), import_arrow()
    names: list[str] = []
    with tempdirs.directory("sql") as scratch:
        connection = duckdb.connect(":memory:", config=_settings(memory_bytes, scratch))
        is_stopped = threading.Event()

        def stop() -> None:
            is_stopped.set()
            connection.interrupt()

        def ask() -> T:
            with contextlib.closing(connection):
                if given is not None:
                    connection.register("given", given)
                _make_view(connection, table, scratch)
                names.extend(_describe(connection))
                if statement and table.path is not None:
                    read = _columns_read(connection, statement, names)
                    check_values(
                        table.path,
                        {each for name in read for each in table.present.get(name, [name])},
                        is_stopped.is_set,
                    )
                return work(connection)

        try:
            return _run_apart(ask, stop)
        except (duckdb.Error, pa.ArrowException, _RefusedError, RecursionError) as error:
            story = _explain(" ".join(str(error).split("\n\n")[0].split())[:_MAX_LETTERS], sql, names)
            there = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
            words = f"{story}; in: {shorten_sql(sql)}; the columns of samples are {there}"
            # A traceback shows the text of the cause, which may have letters of samples that act on a terminal.
            raise QueryError(words, found=sql) from (error if is_harmless(str(error)) else None)


def shorten_sql(text: str) -> str:
    """SQL for a message."""
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} ..."


def _explain(story: str, sql: str, names: Sequence[str]) -> str:
    """DuckDB's words, or those of wids for a column that is not there."""
    found = _NO_COLUMN.search(story)
    if found is None:
        return story
    name = found[1] or found[2]
    near = nearest(name, names)
    quoted = f"; a text has single quotes: '{name}'" if f'"{name}"' in sql and not near else ""
    return f"there is no column {name!r}{near}{quoted}"


def _settings(memory_bytes: int, scratch: str) -> dict[str, Any]:
    return {
        "memory_limit": f"{max(memory_bytes, 1 << 24) >> 10}KiB",
        "temp_directory": os.path.join(scratch, "spilled"),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        **({"max_temp_directory_size": f"{spill >> 10}KiB"} if (spill := SPILL_BYTES.get()) else {}),
    }


def _describe(connection: Any) -> list[str]:
    """The names of the columns of ``samples``."""
    return [row[0] for row in connection.execute(_DESCRIBE).fetchall()]


def _run_apart(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """Return or raise the result of ``work``, run in a thread; if the wait ends early (Ctrl-C, `within`), interrupt it.

    A thread that runs DuckDB itself would handle signals only after DuckDB has finished.
    """
    future: Future[T] = Future()

    def run(future: Future[T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    thread = threading.Thread(target=run, args=(future,), daemon=True, name="wids-sql")
    try:
        thread.start()
        _wait_for(future)
        return future.result()
    except BaseException:
        if not future.cancel():  # it has begun
            while not future.done():
                with contextlib.suppress(Exception):  # it is done by now
                    interrupt()
                wait([future], _STOP_SECONDS)
        raise
    finally:
        if thread.ident is not None:
            thread.join()
        del future  # its error's traceback holds this frame


def _wait_for(future: Future[Any]) -> None:
    """Wait until a query is done.

    Raises:
        _RefusedError: it must end earlier; see `REASON_TO_STOP`.
    """
    while not future.done():  # a signal that comes to another thread does not end the wait of this one
        wait([future], _SIGNAL_SECONDS)
        if (reason := REASON_TO_STOP.get()()) and not future.done():
            raise _RefusedError(reason)


def _make_view(connection: Any, table: SampleTable, scratch: str) -> None:
    connection.execute("SET enable_progress_bar = false")  # it is on where Python is interactive
    parts = [f'(SELECT range AS "index" FROM range({table.samples:d}))']  # noqa: S608 - a number
    allowed = ""
    if table.path is not None:
        path = table.path
        if not _GLOB.isdisjoint(path):  # it would be taken for a pattern
            path = os.path.join(scratch, "samples.parquet")
            os.symlink(table.path, path)
        allowed = "'" + path.replace("'", "''") + "'"
        parts = [f"read_parquet({allowed}, hive_partitioning = false)"]
    for k, joined in enumerate(table.joined):
        connection.register(f"joined_{k}", getattr(joined, "table", joined))
        parts.append(f"joined_{k}")
    more = "".join(
        f", ({' OR '.join(f'{_quoted(column)} IS NOT NULL' for column in columns) or 'false'}) AS {_quoted(name)}"
        for name, columns in table.present.items()
    )
    whole = f"SELECT *{more} FROM {' POSITIONAL JOIN '.join(parts)}"  # noqa: S608 - ours
    if table.chosen is not None:  # not joined by index: three times as slow
        kind = np.int32 if table.samples < 1 << 31 else np.int64
        numbers = table.spread(np.arange(table.count, dtype=kind))
        connection.register("chosen", import_arrow().table({"number": numbers}))
        whole = (
            'SELECT w.* REPLACE (c.number::BIGINT AS "index") '  # noqa: S608
            f"FROM ({whole}) w POSITIONAL JOIN chosen c WHERE c.number >= 0"
        )
    connection.execute(f"CREATE VIEW samples AS {whole}")
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _check_predicate(connection: Any, predicate: str) -> None:
    """Check that a text is one expression and nothing else.

    Raises:
        _RefusedError: it is not.
    """
    if not predicate.strip():
        raise _RefusedError("an expression of columns is needed, like width >= 512, and this is empty")
    _check_alone(connection, _FIND, predicate, "one expression is needed, as after WHERE, and this is more")


def _check_order(connection: Any, order: str) -> None:
    """Check that a text is what may stand after ORDER BY, and nothing else.

    Raises:
        _RefusedError: it is not.
    """
    if not order.strip():
        raise _RefusedError("expressions of columns are needed, like label, score DESC, and this is empty")
    _check_alone(connection, _ORDER, order, "expressions are needed, as after ORDER BY, and this is more")


def _check_alone(connection: Any, start: str, text: str, words: str) -> None:
    """Check that a text is only the end of a statement, and that it has one value.

    Args:
        connection: parses it.
        start: of the statement, up to its WHERE or ORDER BY.
        text: the rest.
        words: of the error if it is more.

    Raises:
        _RefusedError: it is not.
    """
    given, plain = (_parse(connection, start + each) for each in (text, "true"))
    parts = [part for part in _parts_of(given) if _is_dict(part)]
    called = {name.casefold() for part in parts for name in _texts_of(part.get("function_name"))}
    # Without brackets they are read as columns, if there are none of these names.
    refs = {name.casefold() for part in parts for name in _texts_of(part.get("column_names"))} & _VARYING
    if refs:
        called |= refs - {str(name).casefold() for name, *_ in connection.execute(_DESCRIBE).fetchall()}
    error = given.get("error_message", "")
    if error and not error.startswith("Only SELECT statements"):  # which is said of several statements, too
        raise _RefusedError(error)
    if error or _without_end(given) != _without_end(plain):
        raise _RefusedError(words)
    if varying := sorted(called & _VARYING):
        raise _RefusedError(
            f"{varying[0]} has another value each time, and all processes of a job need the same samples; write what "
            "depends on columns alone, such as hash(key) % 10 = 0, or a date"
        )


def _parse(connection: Any, sql: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])
    return found


def _number_classes(connection: Any, statement: str, classes: Sequence[str]) -> str:
    """A statement with numbers in place of the names of classes that a column of their numbers is compared with.

    Raises:
        _RefusedError: no class, or more than one, has such a name.
    """
    if not classes or "'" not in statement:
        return statement
    kinds = {name.casefold(): kind for name, kind, *_ in connection.execute(_DESCRIBE).fetchall()}
    columns = {name for name in CLASS_COLUMNS if kinds.get(name, "").endswith("INT") or kinds.get(name) == "INTEGER"}
    if not columns or (tree := _parse(connection, statement))["error"]:
        return statement
    parts = [part for part in _parts_of(tree["statements"]) if _is_dict(part)]
    columns -= {each.casefold() for part in parts for key in _ALIASES for each in _texts_of(part.get(key))}
    data, numbers = statement.encode(), dict[tuple[int, int], bytes]()
    for part in parts:
        if part.get("type") not in _EQUALITIES:
            continue
        sides = [*part.get("children", ()), *filter(_is_dict, (part.get("left"), part.get("right")))]
        if any(side["class"] == "COLUMN_REF" and side["column_names"][-1].casefold() in columns for side in sides):
            found = [_TEXT.match(data, side["query_location"]) for side in sides if side["class"] == "CONSTANT"]
            numbers |= {text.span(): _number_of(text[1], classes) for text in found if text is not None}
    for (start, end), number in sorted(numbers.items(), reverse=True):
        data = data[:start] + number + data[end:]
    return data.decode()


def _number_of(text: bytes, classes: Sequence[str]) -> bytes:
    """The number of a class; of a text that is none's name and a number, the text in its quotes.

    Raises:
        _RefusedError: no class, or more than one, has such a name.
    """
    name = text.decode().replace("''", "'")
    if (count := classes.count(name)) == 1:
        return str(classes.index(name)).encode()
    if count:
        raise _RefusedError(f"{count} classes are called {name!r}; write their numbers")
    if name.strip().isdecimal():
        return b"'" + text + b"'"
    raise _RefusedError(f"there is no class {name!r}{nearest(name, classes)}")


def _without_end(tree: Any) -> Any:
    """A parsed statement without its outermost WHERE and orders, and without positions in the text."""
    statements = tree["statements"]
    for statement in statements:
        statement["node"].pop("where_clause", None)
        for modifier in statement["node"].get("modifiers", ()):
            modifier.pop("orders", None)
    return _without_places(statements)


def _without_places(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_places(value) for key, value in tree.items() if not key.startswith("query_location")}
    return [_without_places(value) for value in tree] if isinstance(tree, list) else tree
