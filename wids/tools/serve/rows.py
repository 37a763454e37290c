"""Samples as rows of values, for pages that show many: ``/api/rows``. No member is read, only member tables.

Rules: a table is requested once and kept; one that cannot be read is an error of its rows, and one that takes long is
waited for without holding the others up. The indices that a predicate gives are kept for a few predicates.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wids.columns.apart import SqlProcesses
from wids.columns.kinds import writable
from wids.columns.plain import rows_of, to_plain
from wids.columns.sql import within
from wids.core.readers.lru import SizedLRUCache
from wids.errors import InputError, SelectionError, WidsError, shorten, shown, without_secrets
from wids.tools.serve.previews import main_field
from wids.tools.serve.waiting import WATCH_SECONDS, acquire, check_waited_for, is_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wids.core.collection.shard_collection import ShardCollection
    from wids.core.index.selection import Integers
    from wids.core.tables.table import MemberTable
    from wids.dataset import ShardListDataset

MAX_ROWS = 200
_TABLE_BYTES, _MATCH_BYTES = 128 << 20, 256 << 20  # that are kept
_THREADS = 16
_QUERIES = 2  # at a time: each may take 512 MiB
_QUERY_SECONDS = 60.0
_LETTERS = 300  # of a value in a row
_EXACT = 1 << 53  # beyond, JavaScript has not all integers
_INTEGER = re.compile(r"[0-9]{1,18}")


class RowLimits(NamedTuple):
    """Times of waits for tables; tests put others in their place.

    Attributes:
        wait_seconds: rows whose table is not here by then are pending, and asked for again.
        error_seconds: so long a table that could not be read is not requested again.
    """

    wait_seconds: float = 2.0
    error_seconds: float = 10.0


class ServedRows:
    """Values of samples, and which samples a predicate chooses.

    Args:
        dataset: of the samples.
        collection: its samples and shards.
        tags_of: the tags of samples, by their indices.
    """

    limits: RowLimits = RowLimits()

    def __init__(
        self,
        dataset: ShardListDataset[dict[str, Any]],
        collection: ShardCollection,
        tags_of: Callable[[Sequence[int]], list[list[int]]],
    ) -> None:
        self._dataset, self._collection, self._tags_of = dataset, collection, tags_of
        self._lock = threading.Lock()
        self._tables: SizedLRUCache[int, MemberTable] = SizedLRUCache(_TABLE_BYTES)
        self._matches: SizedLRUCache[tuple[str, str], Integers] = SizedLRUCache(_MATCH_BYTES)
        self._errors: dict[int, tuple[float, WidsError]] = {}
        self._asked: dict[Any, Future[Any]] = {}
        self._queries = threading.BoundedSemaphore(_QUERIES)
        self._pool = ThreadPoolExecutor(_THREADS, "wids-serve-tables")
        self._processes = SqlProcesses()

    # --- which samples

    def find(self, where: str) -> Integers | None:
        """The indices of the samples for which a predicate is true, ascending; None: it is empty, and all are.

        Raises:
            QueryError, ColumnsError, DependencyError: see `wids.ShardListDataset.find_rows`.
        """
        where = where.strip()
        if not where:
            return None

        return self._indices("where", where, lambda: self._dataset.find_rows(where))

    def order(self, where: str, by: str) -> Integers:
        """The indices of the samples that `find` gives, in an order.

        Args:
            where: checked by `find`; "": all.
            by: what stands after ORDER BY.

        Raises:
            QueryError, ColumnsError, DependencyError: see `wids.ShardListDataset.query`.
        """
        chosen = f"where (\n{where}\n)" if where else ""
        sql = f'select "index" from samples {chosen} order by {by}'  # noqa: S608 - checked, and quoted
        return self._indices("order", sql, lambda: self._dataset.query(sql).column(0).to_numpy())

    def _indices(self, kind: str, text: str, query: Callable[[], Integers]) -> Integers:
        """The answer to a query of indices, which is kept."""

        def find() -> Integers:
            found = self.ask(query)
            is_narrow = len(self._dataset) < 1 << 32
            narrow: Any = np.uint32 if is_narrow else np.int64
            kept: Integers = found.astype(narrow, copy=False)
            return kept

        with self._lock:
            kept = self._matches.use((kind, text))
        if kept is not None:
            return kept
        found: Integers = self._once((kind, text), find)
        with self._lock:
            self._matches.keep((kind, text), found, found.nbytes)
        return found

    def ask(self, query: Callable[[], Any]) -> Any:
        """Result of a query of the columns; two run at a time, each for a minute at most, in processes of their own.

        Raises:
            QueryError: it took too long or too much, or no request waits for it any more; see
            `wids.tools.serve.waiting`.
        """
        acquire(self._queries)
        try:
            with within(_QUERY_SECONDS), self._processes.running():
                return query()
        finally:
            self._queries.release()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a SELECT gives, as JSON has them.

        Raises:
            QueryError, ColumnsError, DependencyError: see `wids.ShardListDataset.query`.
        """
        found = self.ask(lambda: self._dataset.query(sql))
        return [tuple(map(as_json, row)) for row in rows_of(found)]

    def _once(self, what: Any, work: Callable[[], Any]) -> Any:
        """Result of ``work``; those who ask for the same meanwhile wait for it, and do it if its asker has left."""
        while True:
            with self._lock:
                asked = self._asked.get(what)
                if asked is None:
                    own = self._asked[what] = Future()
                    break
            while not wait([asked], WATCH_SECONDS).done:
                check_waited_for()
            if not asked.cancelled():
                return asked.result()
        try:
            own.set_result(work())
        except BaseException as error:
            if is_left():
                own.cancel()
                own.set_running_or_notify_cancel()  # or who waits would not hear of it
            else:
                own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asked[what]
        return own.result()

    # --- their values

    def table(self, k: int) -> MemberTable:
        """The member table of shard ``k``.

        Raises:
            WidsError: it cannot be read.
        """
        found: MemberTable = self._table_soon(k).result()
        return found

    def table_apart(self, k: int) -> MemberTable:
        """The same for those who go through all shards: it is not kept.

        Raises:
            WidsError: it cannot be read.
        """
        with self._lock:
            table = self._tables.peek(k)
        return self._collection.open(k).table if table is None else table

    def _table_soon(self, k: int) -> Future[MemberTable]:
        with self._lock:
            table, asked = self._tables.use(k), self._asked.get(k)
            if table is None and asked is not None:
                return asked
            done: Future[MemberTable] = Future()
            failed = self._errors.get(k)
            if table is not None:
                done.set_result(table)
            elif failed is not None and failed[0] > time.monotonic():
                done.set_exception(failed[1])
            else:
                self._asked[k] = done = self._pool.submit(self._load, k)
            return done

    def _load(self, k: int) -> MemberTable:
        try:
            table: MemberTable = self._collection.open(k).table
        except BaseException as error:
            with self._lock:
                if isinstance(error, WidsError):
                    self._errors[k] = time.monotonic() + self.limits.error_seconds, error
                    while len(self._errors) > MAX_ROWS:
                        del self._errors[next(iter(self._errors))]
                del self._asked[k]
            raise
        with self._lock:
            self._errors.pop(k, None)
            self._tables.keep(k, table, table.nbytes)
            del self._asked[k]
        return table

    def describe(self, indices: Sequence[int], *, field: str = "", columns: Sequence[str] = ()) -> list[dict[str, Any]]:
        """A row for each sample, in the order given.

        ``index``, ``shard`` (number), ``row`` (in it), ``dataset`` (name of the sub-dataset, or ``""``), ``tags``,
        and ``key``, ``fields`` (extension -> bytes), ``main`` (``field`` and ``kind``, as
        `wids.tools.serve.previews.main_field` has them, and ``number``, its place among the fields; None: it has none),
        ``columns`` (name -> value). Instead of these four ``error`` where the table cannot be read, ``is_pending``
        where it is not here yet.

        Args:
            indices: in range.
            field: the main field of the samples that have it.
            columns: whose values are returned, too.

        Raises:
            QueryError, ColumnsError: the columns cannot be read.
        """
        places = [self._collection.locate(index) for index in indices]
        tables = {k: self._table_soon(k) for k in dict.fromkeys(k for k, _ in places)}
        values = self._values(indices, columns) if columns and indices else {}
        wait(tables.values(), self.limits.wait_seconds)
        found = []
        for index, (k, row), tags in zip(indices, places, self._tags_of(indices), strict=True):
            position = {
                "index": index,
                "shard": k,
                "row": int(row),
                "dataset": self._collection.name_of(k),
                "tags": tags,
            }
            found.append(position | _values_of(tables[k], int(row), field) | {"columns": values.get(index, {})})
        return found

    def _values(self, indices: Sequence[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        numbers = ", ".join(map(str, sorted(set(indices))))
        rows = self.query(f'select "index", {quoted} from samples where "index" in ({numbers})')  # noqa: S608 - quoted
        return {row[0]: dict(zip(columns, map(_short, row[1:]), strict=True)) for row in rows}

    def close(self) -> None:
        """Wait for no more tables, and end the queries."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._processes.close()


def _values_of(asked: Future[MemberTable], row: int, field: str) -> dict[str, Any]:
    if not asked.done():
        return {"is_pending": True}
    try:
        table = asked.result()
    except Exception as error:  # noqa: BLE001 - any error of this row
        return {"error": words_of(error)}
    row %= max(len(table), 1)  # of a shard that has fewer samples than the index says
    names = [name for name, _, _ in table.members(row)]
    sizes = {str(writable(name)): size for name, _, size in table.members(row)}
    main = next(
        (main_field([name]) for name in names if field and str(writable(name)).casefold() == field.casefold()), None
    )
    if main is None and not field and names:
        main = main_field(names)
    shown = None
    if main is not None:
        shown = {"field": writable(main[0]), "kind": main[1], "number": names.index(main[0])}
    return {"key": writable(table.key(row)), "fields": sizes, "main": shown}


def _short(value: Any) -> Any:
    """A value of a column, as much of it as one line shows."""
    if isinstance(value, (dict, list)):
        value = json.dumps(value)
    return shorten(value, most=_LETTERS) if isinstance(value, str) else value


def words_of(error: BaseException) -> str:
    """The reason why a sample cannot be shown, without secrets."""
    return shorten(without_secrets(str(error)) or type(error).__name__, most=500)


def as_json(value: Any) -> Any:
    """A value of a column as a page can have it: integers that JavaScript has not, and no numbers, as text."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        return {name: as_json(part) for name, part in plain.items()}
    if isinstance(plain, list):
        return [as_json(part) for part in plain]
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
    return str(plain) if isinstance(plain, int) and abs(plain) > _EXACT else plain


# --- answers


def parse_integer(query: Mapping[str, str], name: str, default: int | None = None, *, most: int | None = None) -> int:
    """A number from 0 on out of a request.

    Raises:
        InputError: it is none, or more than ``most``.
    """
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not _INTEGER.fullmatch(text) or (most is not None and int(text) > most):
        said = "missing" if text is None else shown(text)
        raise InputError(f"{name} is {said}; it is an integer, 0 or more" + (f", {most} at most" if most else ""))
    return int(text)


def parse_indices(text: str, total: int) -> list[int]:
    """Indices, separated by commas.

    Raises:
        InputError: they are not; or too many. SelectionError: one is no sample's.
    """
    found = [each.strip() for each in text.split(",") if each.strip()]
    if len(found) > MAX_ROWS:
        raise InputError(f"{len(found)} indices; a request has {MAX_ROWS} at most")
    if bad := [each for each in found if not _INTEGER.fullmatch(each)]:
        raise InputError(f"{shown(bad[0])} is no index: an integer, 0 or more")
    numbers = list(map(int, found))
    check_indices(numbers, total)
    return numbers


def check_indices(numbers: Sequence[int], total: int) -> None:
    """Check that indices are those of samples.

    Raises:
        SelectionError: one is not.
    """
    if numbers and max(numbers) >= total:
        raise SelectionError(f"there is no sample {max(numbers)}; there are {total}, counted from 0")
