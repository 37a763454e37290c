"""The columns of the samples, and how their values are distributed among those that a predicate chooses.

A column of few values has a count for each; of many numbers a histogram. Each value and each range comes with the SQL
that chooses it. Without a file of columns there are those that member tables give: which fields samples have.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from wids.columns.members import HAS
from wids.columns.spec import CLASS_COLUMNS, OWN_COLUMNS, fold, stem_of
from wids.errors import InputError, SelectionError, WidsError, shown
from wids.tools.serve.answers import answer
from wids.tools.serve.rows import as_json, words_of
from wids.tools.serve.waiting import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from wids.tools.serve.served import Served

MOST_VALUES, _BINS = 50, 24
# They number samples, or tell them apart.
_NAMES = frozenset({"index", "row", "key"})
# The member tables of so many shards on this machine are read without being asked for.
_FEW_SHARDS = 200
# Of so many samples different values are counted exactly.
_COUNTED = 1_000_000
_OTHERS = {"bytes": "int64", "key": "string", "shard": "int32", "row": "int32"}
_NESTED = re.compile("(large_|fixed_size_)?(list|binary)|struct|map|[a-z_]*union")
_UNSORTABLE = "to sort by this, the member tables of all shards would be read; a file of columns has it at hand"
_UNSORTABLE += ": wids columns create"


def describe_columns(served: Served) -> dict[str, Any]:
    """Names for SQL: ``columns``, and ``words``, a sentence where there are few.

    Each has ``name``, ``type``, ``has_facet``, ``is_cheap`` and ``unsortable``: why samples cannot be sorted by it; "".
    """
    columns = served.columns()
    if columns:
        found = [
            {
                "name": name,
                "type": kind,
                "has_facet": name not in _NAMES,
                "is_cheap": True,
                "unsortable": f"{name} is of type {kind}, which has no order" if _NESTED.match(kind) else "",
            }
            for name, kind in columns.items()
        ]
        found.sort(key=lambda each: each["name"] in OWN_COLUMNS or str(each["name"]).endswith("_bytes"))
        return {"columns": found, "words": ""}
    collection = served.collection
    is_cheap = not collection.has_remote() and len(collection.ends) <= _FEW_SHARDS
    fields = first_fields(served)
    kinds = {f"{HAS}{stem_of(name)}": "bool" for name in fields}
    kinds |= {f"{stem_of(name)}_bytes": "int64" for name in fields} | _OTHERS
    unsortable = "" if is_cheap else _UNSORTABLE
    found = [
        {
            "name": name,
            "type": kind,
            "has_facet": kind == "bool",
            "is_cheap": is_cheap and kind == "bool",
            "unsortable": unsortable,
        }
        for name, kind in kinds.items()
    ]
    words = (
        "These come from member tables. For labels, sizes of pictures and texts make columns: "
        f"wids columns create {served.name} --field .cls=label --json .json:width"
    )
    return {"columns": found, "words": words}


def first_fields(served: Served) -> list[str]:
    """The fields of the first shard that has samples, in lower case; none where its table cannot be read."""
    first = next((k for k, count in enumerate(served.collection.lengths) if count), None)
    if first is None:
        return []
    try:
        return sorted({fold(name) for name in served.rows.table(first).extensions})
    except (WidsError, OSError):
        return []


def count_values(served: Served, name: str, where: str) -> dict[str, Any]:
    """The distribution of the values of a column.

    Returns:
        ``name``, and ``values``: each with ``value``, ``words``, ``count`` and ``sql``; or ``bins``: each with ``lo``,
        ``hi``, ``count`` and ``sql``, beside ``others`` (null, and no numbers); or ``distinct``,
        how many there are, and ``is_about``.

    Raises:
        SelectionError: no such column exists. QueryError, ColumnsError: see `wids.ShardListDataset.query`.
    """
    kinds = {each["name"]: each["type"] for each in describe_columns(served)["columns"]}
    if name not in kinds:
        raise SelectionError(f"there is no column {shown(name)}")
    served.rows.find(where)  # which sees that it is a predicate, and nothing more
    column, chosen = quoted(name), f"where (\n{where}\n)" if where.strip() else ""
    if kinds[name] != "bool":
        sql = f"select approx_count_distinct({column}), count({column}) from samples {chosen}"  # noqa: S608 - checked
        about, total = served.rows.query(sql)[0]
        if about > 2 * MOST_VALUES:
            return _spread(served, name, kinds[name], chosen) or _distinct(served, name, chosen, about, total)
    sql = f"select {column}, count(*) from samples {chosen} group by 1 order by 2 desc, 1 limit {MOST_VALUES + 1}"  # noqa: S608
    values = served.rows.query(sql)
    if len(values) > MOST_VALUES:
        return _spread(served, name, kinds[name], chosen) or _distinct(served, name, chosen, len(values), 0)
    names = class_names(served, name, [value for value, _ in values])
    return {
        "name": name,
        "values": [
            {
                "value": value,
                "count": count,
                "words": words_for(value, names),
                "sql": f"{column} is null" if value is None else _equals(column, value, kinds[name]),
            }
            for value, count in values
        ],
    }


def _distinct(served: Served, name: str, chosen: str, about: int, total: int) -> dict[str, Any]:
    """The number of different values among ``total``; ``is_about``: it is an estimate, for there are many."""
    is_about = total > _COUNTED
    if not is_about:
        sql = f"select count(distinct {quoted(name)}) from samples {chosen}"  # noqa: S608 - as above
        about = served.rows.query(sql)[0][0]
    return {"name": name, "distinct": min(about, total) if is_about else about, "is_about": is_about}


def words_for(value: Any, names: Sequence[str]) -> str:
    """A value, for people."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value < len(names):
        return f"{names[value]} ({value})"
    return str(value)


def class_names(served: Served, name: str, values: Sequence[Any]) -> Sequence[str]:
    """The names of the classes that a column's values are; none where they are no classes of the index."""
    names: Sequence[str] = served.collection.shards.class_names
    numbers = [value for value in values if value is not None]
    is_label = name.casefold() in CLASS_COLUMNS and all(
        type(each) is int and 0 <= each < len(names) for each in numbers
    )
    return names if is_label else ()


def _equals(column: str, value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return column if value else f"not {column}"
    if kind == "double":
        return f"isnan({column})" if value == "nan" else f"{column} = '{value}'::double"
    if kind.startswith("int"):
        return f"{column} = {value}"
    return f"{column} = {_text(str(value))}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _spread(served: Served, name: str, kind: str, chosen: str) -> dict[str, Any] | None:
    """The histogram of a column of numbers; None: it has none."""
    column, is_whole = quoted(name), kind.startswith("int")
    if not is_whole and kind != "double":
        return None
    finite = "" if is_whole else f" and isfinite({column})"
    numbers = f"filter (where {column} is not null{finite})"
    lo, hi, count, total = served.rows.query(
        f"select min({column}) {numbers}, max({column}) {numbers}, count(*) {numbers}, count(*) from samples {chosen}"  # noqa: S608
    )[0]
    if not count:
        return None
    if is_whole:
        lo, hi = int(lo), int(hi)
        width = max(-(-(hi - lo + 1) // _BINS), 1)
        edges: list[Any] = [lo + k * width for k in range((hi - lo) // width + 2)]
    else:
        edges = [*(lo + (hi / _BINS - lo / _BINS) * k for k in range(_BINS)), hi]
    inner = ", ".join(f"({column} >= {edge!r})::int" for edge in edges[1:-1])
    number = f"list_sum([0, {inner}])" if inner else "0"
    rest = f"{chosen} and" if chosen else "where"
    sql = f"select {number}, count(*) from samples {rest} {column} is not null{finite} group by 1"  # noqa: S608
    counts = {int(k): count for k, count in served.rows.query(sql)}
    bins = []
    for k, (first, end) in enumerate(itertools.pairwise(edges)):
        is_last = k == len(edges) - 2
        upper = f"{column} <= {end!r}" if is_last and not is_whole else f"{column} < {end!r}"
        bins.append(
            {
                "lo": as_json(first),
                "hi": as_json(end),
                "count": counts.get(k, 0),
                "from": f"{column} >= {first!r}",
                "to": upper,
            }
        )
    return {"name": name, "bins": bins, "others": total - count, "is_whole": is_whole}


def routes(served: Served) -> list[Route]:
    """``/api/columns`` and ``/api/facet``."""

    def columns(_: Request) -> Response:
        try:
            found = describe_columns(served)
        except WidsError as error:  # of a file that is not of these samples: the page says so, and lives
            found = {"columns": [], "words": words_of(error)}
        return answer({**found, "fields": first_fields(served), "classes": served.collection.shards.class_names})

    def facet(request: Request) -> Response:
        name = request.query_params.get("column")
        if not name:
            raise InputError("column is missing")
        return answer(count_values(served, name, request.query_params.get("where", "")))

    return [Route("/api/columns", columns), Route("/api/facet", watched(facet))]
