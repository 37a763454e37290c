"""Targets of a page's jumps: the place of an index, of a shard, or of a key, among the samples that it shows.

Rules: by key, the columns are asked where they have keys; else the member tables of all shards are read, from the first
on, and the answer comes a line at a time, with how far it is: who asked may leave at any line.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import StreamingResponse
from starlette.routing import Route

from wids.columns.kinds import writable
from wids.errors import InputError, SelectionError, WidsError
from wids.tools.key_search import rows_of
from wids.tools.serve.answers import answer
from wids.tools.serve.listing import choose, parse_listing
from wids.tools.serve.rows import check_indices, parse_integer, words_of
from wids.tools.serve.waiting import watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from starlette.requests import Request
    from starlette.responses import Response

    from wids.core.tables.table import MemberTable
    from wids.tools.serve.served import Served

_AHEAD = 16  # tables that are requested at a time
_LINE_SECONDS = 0.5
_MOST = 1000  # samples of a key that are listed
_NAMED = 3  # shards that cannot be read


def find_key(served: Served, key: str) -> Iterator[dict[str, Any]]:
    """Look for the samples with a key; each step reports its progress, the last one the result.

    Args:
        served: the dataset.
        key: as pages show it.

    Yields:
        ``done`` of ``shards``, and ``found`` so far, how many; the last has ``indices`` (the first 1,000), ``way``
        (``"columns"`` or ``"tables"``), ``errors`` (shards that could not be read) and ``why`` (of some of them).
    """
    total = len(served.collection.ends)
    if "key" in served.columns():
        quoted = key.replace("'", "''")
        sql = f"select \"index\" from samples where key = '{quoted}' order by 1"  # noqa: S608 - quoted
        found = [row[0] for row in served.rows.query(sql)]
        yield {"done": total, "shards": total, "way": "columns", **_result(found, [])}
        return
    found, errors = list[int](), list[str]()
    for k, table in read_tables(served):
        if isinstance(table, WidsError):
            errors.append(words_of(table))
        elif table is not None:
            found += _in_table(served, k, table, key)
        else:
            yield {"done": k, "shards": total, "found": len(found)}
    yield {"done": total, "shards": total, "way": "tables", **_result(found, errors)}


def read_tables(served: Served) -> Iterator[tuple[int, MemberTable | WidsError | None]]:
    """The numbers of the shards that have samples, each with its member table, or the error of reading it.

    Now and then, at least once in half a second or between two tables, a number with None: so far it is.
    """
    numbers = iter([k for k, count in enumerate(served.collection.lengths) if count])
    reported = time.monotonic()
    pool = ThreadPoolExecutor(_AHEAD, "wids-serve-keys")
    asked: dict[int, Future[MemberTable]] = {}
    try:
        while True:
            while len(asked) < 2 * _AHEAD and (k := next(numbers, None)) is not None:
                asked[k] = pool.submit(served.rows.table_apart, k)
            if not asked:
                return
            first = next(iter(asked))
            wait([asked[first]], _LINE_SECONDS)
            if asked[first].done():
                try:
                    yield first, asked.pop(first).result()
                except WidsError as error:
                    yield first, error
            if time.monotonic() > reported + _LINE_SECONDS:
                reported = time.monotonic()
                yield first, None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def stream(steps: Iterator[dict[str, Any]]) -> Response:
    """An answer of a line of JSON for each step; an error is one, too."""

    def lines() -> Iterator[str]:
        try:
            for step in steps:
                yield f"{json.dumps(step)}\n"
        except WidsError as error:
            yield f"{json.dumps({'error': words_of(error)})}\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _result(found: list[int], errors: list[str]) -> dict[str, Any]:
    return {"found": len(found), "indices": found[:_MOST], "errors": len(errors), "why": errors[:_NAMED]}


def _in_table(served: Served, k: int, table: MemberTable, key: str) -> list[int]:
    """The indices of the samples of a shard that have a key, as pages show it."""
    rows = [*rows_of(table, key)]
    if "\\" in key:  # which may stand for a letter that is no text
        rows = [row for row, each in enumerate(table.keys()) if writable(each) == key]
    if not rows:
        return []
    first = served.collection.ends[k] - served.collection.lengths[k]
    chosen = np.asarray(served.collection.rows_of(k)) % len(table)
    return [first + int(at) for at in np.flatnonzero(np.isin(chosen, rows))]


def routes(served: Served) -> list[Route]:
    """``/api/place`` and ``/api/find``."""

    def place(request: Request) -> Response:
        """``at``: of ``index=``, or of the first sample of ``shard=``, or of the first one shown behind it."""
        query = request.query_params
        total = len(served.dataset)
        if "shard" in query:
            number, count = parse_integer(query, "shard"), len(served.collection.ends)
            if number >= count:
                raise SelectionError(f"there is no shard {number}; there are {count}, counted from 0")
            index = served.collection.ends[number] - served.collection.lengths[number]
        else:
            index = parse_integer(query, "index")
            check_indices([index], total)
        chosen = choose(served, parse_listing(query))
        if chosen is None:
            at, there = min(index, max(total - 1, 0)), index
        else:  # in any order
            there = int(chosen[chosen >= index].min(initial=total))
            at = int(np.argmax(chosen == there)) if there < total else len(chosen)
        is_empty = "shard" in query and served.collection.lengths[parse_integer(query, "shard")] == 0
        return answer({"at": at, "index": index, "is_shown": there == index and not is_empty})

    def find(request: Request) -> Response:
        """The samples of ``key=``, a line of JSON at a time."""
        key = request.query_params.get("key", "")
        if not key:
            raise InputError("key is missing")

        return stream(find_key(served, key))

    return [Route("/api/place", watched(place)), Route("/api/find", find)]
