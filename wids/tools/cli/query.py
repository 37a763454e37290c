"""``wids query``: SQL over the columns of a dataset's samples.

This module is light; heavy ones are imported when the command runs, and torch never. The work is done by
`wids.columns.sql`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from wids.core.transport.session import PLAIN
from wids.tools.cli.options import Columns, Index, JsonLines, Overwrite, SessionFlag
from wids.tools.cli.plain_help import App, examples

# So many rows are printed as a table.
_MAX_ROWS = 200
# In the metadata of a file that this command wrote, and may replace.
_MARK = b"wids query"


@dataclass(frozen=True)
class QueryFlags:
    """The columns, and the form of the answer."""

    columns: Columns = None
    is_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False
    is_json: JsonLines = False
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write a Parquet file instead.", show_default=False),
    ] = None
    overwrite: Overwrite = False
    session: SessionFlag = PLAIN


app: App = App()


@app.command(
    "query",
    epilog=examples(
        "wids query train.json \\\n  'select label, count(*) from samples group by label order by 2 desc'",
        "wids query train.json \\\n  'select key from samples where width >= 512' --csv > \\\n  wide.csv",
    ),
)
def run_query(
    index: Index,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement over the table `samples`.")],
    flags: QueryFlags,
) -> None:
    """Ask the columns of a dataset's samples by SQL, as `wids columns create` wrote them beside the index.

    It is DuckDB's SQL (pip install 'wids[views]'). Nothing but these columns can be read, and nothing is changed. Which
    fields samples have (has_jpg), their sizes (jpg_bytes) and keys need no such file.
    """
    if flags.is_csv + flags.is_json + (flags.output is not None) > 1:
        raise typer.BadParameter("--csv, --json and -o exclude each other")
    from wids.columns.plain import rows_of, to_plain
    from wids.tools.cli.format import count_of, print_table, printable, shown_path, to_json

    path = None if flags.output is None else _check_output(flags.output, index, flags)
    found = _ask(index, sql, flags)
    if path is not None or flags.is_json:
        _check_names(found.column_names, sql)
    if path is not None:
        _write(found, path, sql)
        print(f"{shown_path(path)}: {count_of(found.num_rows, 'row')}, {count_of(found.num_columns, 'column')}")
    elif flags.is_csv:
        _print_csv(found)
    elif flags.is_json:
        for row in rows_of(found):
            print(to_json({name: to_plain(value) for name, value in zip(found.column_names, row, strict=True)}))
    else:
        import pyarrow as pa

        numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in found.schema.types]
        heads = [
            f"{'>' * is_number}{printable(name)}" for name, is_number in zip(found.column_names, numeric, strict=True)
        ]
        print_table(heads, ([_shown(value) for value in row] for row in rows_of(found.slice(0, _MAX_ROWS))))
        if found.num_rows > _MAX_ROWS:
            print(f"and {found.num_rows - _MAX_ROWS:,} more rows; --csv prints all")


def _check_output(output: str, index: str, flags: QueryFlags) -> str:
    """The absolute path of the file that is to be written.

    Raises:
        OutputError: it cannot be written. OutputExistsError: there is a file that is not to be replaced.
    """
    import pyarrow.parquet as pq

    from wids.columns.create import check_output
    from wids.columns.file import place_beside
    from wids.core.transport.upload import check_replaceable

    def is_result(path: str) -> bool:
        return _MARK in (pq.read_schema(path).metadata or {})

    path = check_output(output)
    columns = flags.columns or place_beside(index)
    inputs = [
        (index, "the index itself"),
        *([] if columns is None else [(columns, "the table of columns that is asked")]),
    ]
    check_replaceable(path, "result of `wids query`", is_result, inputs=inputs, overwrite=flags.overwrite)
    return path


def _ask(index: str, sql: str, flags: QueryFlags) -> Any:
    from wids.columns.samples import beside
    from wids.core.collection.shard_collection import ShardCollection, load_shards
    from wids.core.files.own_folder import default_cache_dir
    from wids.core.place import cache_directory
    from wids.core.readers.provider import AutoProvider
    from wids.errors import QueryError

    cache_dir = cache_directory(default_cache_dir())
    _, shards, narrowed = load_shards(index, session=flags.session, cache_dir=cache_dir)
    provider = AutoProvider(cache_dir=cache_dir, session=narrowed, **shards.grouping)
    collection = ShardCollection(shards, provider)
    collection.count_unknown()
    columns = beside(index, collection, cache_dir=cache_dir).at(flags.columns, collection)
    try:
        return columns.query(collection, sql)
    except QueryError as error:
        if not re.match(r"\W*(select|with|from|values|describe|summarize|show|pivot|explain)\b", sql, re.IGNORECASE):
            error.hint = "condition"
        raise


def _check_names(names: list[str], sql: str) -> None:
    """Check that the names tell columns apart.

    Raises:
        QueryError: they are not.
    """
    from wids.errors import QueryError

    if repeated := {name for name in names if names.count(name) > 1}:
        raise QueryError(f"several columns are called {min(repeated)!r}: name them with AS; in: {sql}", found=sql)


def _shown(value: Any) -> str:
    from wids.tools.cli.format import printable

    return "" if value is None else printable(str(value))


def _print_csv(table: Any) -> None:
    import csv
    import sys

    from wids.columns.plain import rows_of

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(rows_of(table))


def _write(table: Any, path: str, sql: str) -> None:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    from wids.core.files import atomic
    from wids.errors import QueryError
    from wids.jobs.journal import unwritten

    try:
        with atomic.part_file(path) as (part, fd):
            marked = table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: b""})
            pq.write_table(marked, part, compression="zstd")
            os.fsync(fd)  # a full disk of a server may be an error here alone
            os.replace(part, path)
    except OSError as error:
        raise unwritten(path, error) from error
    except pa.ArrowException as error:
        raise QueryError(f"Parquet cannot hold it ({error}); cast it to varchar; in: {sql}", found=sql) from error
