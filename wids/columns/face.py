"""The methods of `wids.ShardListDataset` that use columns."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from wids.columns.samples import SampleColumns
from wids.core.files.lazy import Computed
from wids.core.order.validation import suggest_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from typing_extensions import Self

    from wids.columns.join import Missing, On
    from wids.columns.samples import Fields
    from wids.core.collection.shard_collection import ShardCollection


class WithColumns:
    """A dataset with columns: values for each sample that need no read of the sample."""

    _collection: ShardCollection
    _columns: SampleColumns = SampleColumns()
    _transformations: list[Any]

    def query(self, sql: str) -> Any:
        """The result of one SELECT statement over the table ``samples``, which has one row for each sample.

        ``dataset.query("select label, count(*) from samples group by label order by 2 desc")``. The table has
        the columns of the file that ``wids columns create`` wrote beside the index, and of joined tables; at least
        ``index`` (int64). If the statement names ``has_jpg`` (bool), or without the file ``jpg_bytes``, ``bytes``,
        ``key``, ``shard`` or ``row``, their values come from member tables (`wids.columns.members`); no shard is
        downloaded. ``has_jpg`` of a field that no sample has is false for all, with a warning. The SQL is DuckDB's. It
        can read no other file, no network and no variable of the program, and writes nothing.

        Args:
            sql: the statement.

        Returns:
            A ``pyarrow.Table``; its rows have no order unless the statement sets one.

        Raises:
            QueryError: it is not one SELECT, has an unknown name, or takes more than 512 MiB and the temporary
                directory. KeyboardInterrupt: Ctrl-C; DuckDB has stopped then. ColumnsError: no columns exist, they
                are of another index, or a member table is neither local nor published; the message has advice.
                InputError: two fields have the same ``has_FIELD``. FetchError, ShardError: a table cannot be read.
            DependencyError: duckdb or pyarrow is not installed (``pip install 'wids[views]'``).
        """
        return self._columns.query(self._collection, sql)

    def find_rows(self, predicate: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices of the samples for which an SQL expression is true, like ``"width >= 512 and label in (3, 7)"``.

        Args:
            predicate: a condition as after WHERE, over the columns of `query`. A sample for which it is null is left
                out; a number is true unless it is 0.

        Returns:
            int64, ascending, each once.

        Raises:
            QueryError: it is not such an expression. ColumnsError, DependencyError: see `query`.
        """
        return self._columns.find_rows(self._collection, predicate)

    def read_column(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """A column as an array: (n,), a value for each sample, in order; missing ones are NaN or None.

        Integers with missing values become floats, or Python integers if floats would change them (beyond 2**53).
        A column of vectors is (n, d), with rows of NaN for missing ones of floats; of vectors of several
        lengths, or of integers of which some are missing, it is (n,) of arrays and None.

        Args:
            name: of the column.

        Raises:
            InputError: there is no such column; the message lists all. QueryError, ColumnsError, DependencyError: see
                `query`.
        """
        return self._columns.read(self._collection, name)

    @Computed
    def column_names(self) -> list[str]:
        """The columns of `query`, in order.

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
        """The same dataset with more columns, joined from your table; nothing else of the dataset is read or written.

        For a view it returns the same view with more columns; the table's keys and indices are those of the view's
        samples. The result shares the open shards, the cache and the settings with this dataset, and starts with its
        transformations. Joined columns are stored in a temporary file ($TMPDIR) of this process; its workers map it.

        Args:
            table: path or URL of a Parquet file or of JSON lines (``.jsonl``, ``.jsonl.gz``), or of a folder or pattern
                of such parts; a ``pyarrow.Table``, a pandas ``DataFrame``, or whatever has ``__arrow_c_stream__`` (a
                frame of polars, a relation of DuckDB, a ``RecordBatchReader``); or a dict of arrays, where one of
                shape (n, d) is a column of vectors.
            on: ``"key"``: its column ``key`` (strings) is the samples' ``__key__``; ``"index"``: its column ``index``
                (integers) is their ``__index__``; in a view, it counts the view's samples, as in `query`.
            columns: which of its columns; default: all but ``key`` and ``index``.
            missing: for samples without a row in the table: ``"null"``, with one warning that counts them, or
                ``"error"``. A join by key leaves out rows of the table without a sample; a warning (for a view, a
                line at INFO) counts them.
            fields: columns to add to the samples, under their names, before the transformations: ``True`` (all of the
                table), or names. Values are Python values, lists of numbers are arrays; null is None. Names that
                samples use themselves (``__key__``, or any that begins with a dot) are not allowed.

        Raises:
            ColumnsError: the table cannot be read; keys repeat, in it or among the samples; an index is out of range;
                a sample has no row and ``missing="error"``. InputError: it lacks a column; a column has the wrong
                type, or one that SQL lacks; two columns would have the same name. DependencyError: see `query`.
        """
        from wids.columns.join import JoinRequest

        request = JoinRequest(table=table, on=on, columns=columns, missing=missing)
        return self._with(self._columns.join(request, fields, self._collection))

    @suggest_names
    def with_columns(
        self,
        fields: Fields = True,  # noqa: FBT002 - or names
        *,
        place: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The same dataset, with columns of the index's table added to its samples, before the transformations.

        Args:
            fields: ``True`` (all columns), or names; False: no columns, only the ``place``. ``index`` is the sample's
                ``__index__``, also in views.
            place: path or URL of the table; default: beside the index, where ``wids columns create`` writes it.

        Raises:
            ColumnsError: the table does not exist, or is of another index. InputError: it lacks the column.
            DependencyError: see `query`.
        """
        columns = self._columns.at(None if place is None else os.fspath(place), self._collection)
        return self._with(columns.show(fields, self._collection) if fields else columns)

    def _with(self, columns: SampleColumns) -> Self:
        found = copy.copy(self)
        found._columns = columns  # noqa: SLF001 - one of our own
        found._transformations = list(self._transformations)  # noqa: SLF001
        return found
