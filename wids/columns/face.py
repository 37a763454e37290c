"""What a dataset says of its columns: the methods that `wids.ShardListDataset` has from here."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from wids.columns.join import JoinRequest
from wids.columns.samples import SampleColumns
from wids.order.validation import suggest_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from typing_extensions import Self

    from wids.collection.shard_collection import ShardCollection
    from wids.columns.join import Missing, On
    from wids.columns.samples import Fields


class WithColumns:
    """A dataset with columns: values for each sample that are known without reading it."""

    _collection: ShardCollection
    _columns: SampleColumns = SampleColumns()
    _transformations: list[Any]

    def query(self, sql: str) -> Any:
        """What one SELECT statement over the table ``samples`` gives; it has one row for each sample.

        ``dataset.query("select label, count(*) from samples group by label order by 2 desc")``. The columns are those
        of the file that ``wids columns create`` wrote beside the index, and of joined tables; at least ``index``
        (int64). ``has_jpg`` (bool), and without the file also ``jpg_bytes``, ``bytes``, ``key``, ``shard`` and ``row``,
        come from member tables where they are named (`wids.columns.members`); no shard is downloaded. It is DuckDB's
        SQL. No other file, no network and no variable of the program can be read, and nothing is written.

        Args:
            sql: the statement.

        Returns:
            A ``pyarrow.Table``; its rows are in no order unless the statement says one.

        Raises:
            QueryError: it is not one SELECT, has an unknown name, or takes more than 512 MiB and the temporary
                directory. KeyboardInterrupt: Ctrl-C, after which DuckDB has stopped. ColumnsError: there are no
                columns, or of another index, or a member table is neither here nor published; what to do.
                InputError: two fields would be one ``has_FIELD``. FetchError, ShardError: a table cannot be read.
            DependencyError: duckdb or pyarrow is not installed (``pip install 'wids[views]'``).
        """
        return self._columns.query(self._collection, sql)

    def find_rows(self, predicate: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices of the samples for which an SQL expression is true, like ``"width >= 512 and label in (3, 7)"``.

        Args:
            predicate: what would stand after WHERE, over the columns that `query` sees. Where it is null a sample is
                left out; a number is true where it is not 0.

        Returns:
            int64, ascending, each once.

        Raises:
            QueryError: it is no such expression. ColumnsError, DependencyError: see `query`.
        """
        return self._columns.find_rows(self._collection, predicate)

    def read_column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A column as an array: (n,), a value for each sample, in order; missing ones are NaN or None.

        Integers of which some are missing are floats, or where these would be others (beyond 2**53) Python's.

        Raises:
            QueryError, ColumnsError, DependencyError: see `query`.
        """
        return self._columns.read(self._collection, name)

    @property
    def column_names(self) -> list[str]:
        """The columns that `query` sees, in their order.

        Raises:
            ColumnsError: the table beside the index cannot be used.
        """
        return self._columns.names(self._collection)

    @suggest_names
    def with_table(
        self,
        table: Any,
        *,
        on: On,
        columns: Sequence[str] | None = None,
        missing: Missing = "null",
        fields: Fields = False,
    ) -> Self:
        """The same dataset with more columns, joined from a table of yours; nothing else of it is read or written.

        Of a view it gives the same view with more columns: a table's keys and indices are those of its samples. It
        shares the open shards, the cache and the settings with this one, and begins with its transformations. The
        joined columns lie in a temporary file ($TMPDIR) of this process, which its workers map.

        Args:
            table: path or URL of a Parquet file, a ``pyarrow.Table``, or a pandas ``DataFrame``.
            on: ``"key"``: its column ``key`` (strings) is the samples' ``__key__``; ``"index"``: its column ``index``
                (integers) their ``__index__``, which is a view's own, as `query` of that view has it.
            columns: which of its columns; default: all but ``key`` and ``index``.
            missing: of samples that have no row in the table: ``"null"``, with one warning that counts them, or
                ``"error"``. Rows of the table that are no sample's are left out when joined by key; a warning (of a
                view, a line at INFO) counts them.
            fields: columns that come into the samples, under their names, before the transformations: ``True`` (all of
                the table), or names. Their values are Python's; null is None. Names that samples have themselves
                (``__key__``, or any that begins with a dot) cannot be theirs.

        Raises:
            ColumnsError: the table cannot be read; keys repeat, in it or among the samples; an index is out of range;
                a sample has no row and ``missing="error"``. InputError: it lacks a column, or has it of the wrong type,
                or of one that SQL has not; two columns would have one name. DependencyError: see `query`.
        """
        request = JoinRequest(table=table, on=on, columns=columns, missing=missing)
        return self._with(self._columns.join(request, fields, self._collection))

    @suggest_names
    def with_columns(
        self,
        fields: Fields = True,  # noqa: FBT002 - or names
        *,
        place: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The same dataset with columns of the index's own table in its samples, before the transformations.

        Args:
            fields: which: ``True`` (all), or names; False: none, to name only the ``place``. ``index`` is the sample's
                ``__index__``, also in views.
            place: path or URL of the table; default: beside the index, as ``wids columns create`` puts it.

        Raises:
            ColumnsError: there is no such table, or it is of another index. InputError: it has no such column.
            DependencyError: see `query`.
        """
        columns = self._columns.at(None if place is None else os.fspath(place), self._collection)
        return self._with(columns.show(fields, self._collection) if fields else columns)

    def _with(self, columns: SampleColumns) -> Self:
        found = copy.copy(self)
        found._columns = columns  # noqa: SLF001 - one of our own
        found._transformations = list(self._transformations)  # noqa: SLF001
        return found
