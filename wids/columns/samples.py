"""The columns of one dataset: the index's own table, joined tables, and the columns that are added to samples.

The value is immutable: `join` and `show` return another one. Nothing is read before it is requested, and what reads it
is imported then: most datasets never use columns. A pickle holds paths: the receiving process maps the files again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from wids.core.collection.shard_collection import lists_shards
from wids.core.index.fingerprint import fingerprint
from wids.core.index.view_file import is_view
from wids.core.tables.fields import Alternatives
from wids.core.transport.session import PLAIN, Session
from wids.errors import ColumnsError, InputError, MissingTableError, QueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wids.columns import sql
    from wids.columns.join import JoinRequest
    from wids.columns.mapped import MappedTable
    from wids.core.collection.shard_collection import ShardCollection

T = TypeVar("T")

# Which columns come into the samples: all, none, or these.
Fields: TypeAlias = "bool | str | Sequence[str]"
# Integers beyond are not all floats.
_EXACT = 1 << 53
# What samples have besides fields, whose names begin with a dot.
_SAMPLE_NAMES = frozenset(
    f"__{name}__" for name in ("key", "index", "shard", "shardindex", "dataset", "valid", "seed", "substitute_for")
)


class SampleColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a dataset.

    Attributes:
        index: the index that its own table is beside; None: no such table is looked for.
        table: path or URL of the index's own table, if it is elsewhere.
        cache_dir: for a remote one.
        session: likewise.
        joined: tables with one row for each sample.
        shown: (column, its table) of the columns that are added to samples.
        fields: the dataset's names of fields: name -> their alternatives, as extensions.
        companions: of the dataset, whose member tables have columns, too.
        checked: digests of the states of own tables that were compared with the shards (see
            `wids.columns.parts.check_versions`), and need no second check. All values made from one share it.
    """

    index: str | None = None
    table: str | None = None
    cache_dir: str | None = None
    session: Session = PLAIN
    joined: tuple[Any, ...] = ()
    shown: tuple[tuple[str, Any], ...] = ()
    fields: Mapping[str, tuple[str, ...]] = {}
    companions: tuple[Any, ...] = ()
    checked: set[str] = msgspec.field(default_factory=set)

    @property
    def place(self) -> str | None:
        """Path or URL of the index's own table; None: no such table is looked for."""
        if self.table is not None or self.index is None:
            return self.table
        from wids.columns.file import place_beside

        return place_beside(self.index)

    def beside_companions(self, companions: tuple[Any, ...]) -> SampleColumns:
        """The same columns, with those of member tables of companions."""
        return msgspec.structs.replace(self, companions=companions)

    def unshown(self) -> SampleColumns:
        """The same columns, none of them added to samples."""
        return msgspec.structs.replace(self, shown=())

    def add_to(self, sample: Any, collection: ShardCollection) -> None:
        """Put the values of the shown columns into a sample, by its ``__index__``."""
        index = sample["__index__"]
        row = collection.whole_index(index)
        for name, table in self.shown:  # a view counts anew, here as in SQL
            sample[name] = index if name == "index" else table.value(name, row)

    def at(self, place: str | None, collection: ShardCollection) -> SampleColumns:
        """The same, with the index's own table at ``place``; None: at its default place.

        Raises:
            ColumnsError: it does not exist, or cannot be used. FetchError: it cannot be downloaded.
        """
        if place is None:
            return self
        found = msgspec.structs.replace(self, table=place)
        if found.own_path(collection) is None:
            raise ColumnsError(f"{place}: there is no such file; make it: wids columns create")
        return found

    def names(self, collection: ShardCollection) -> list[str]:
        """The columns that SQL sees, in order.

        Raises:
            ColumnsError: the index's own table cannot be used.
        """
        return self._names(self.own_path(collection))

    def types(self, collection: ShardCollection) -> dict[str, str]:
        """The columns of the index's own table: name -> Arrow's name of the type; empty without a table.

        Raises:
            ColumnsError: the table cannot be used.
        """
        from wids.columns.file import open_table

        path = self.own_path(collection)
        if path is None:
            return {}
        table = open_table(path)
        try:
            return {field.name: str(field.type) for field in table.schema}
        finally:
            table.close()

    def _names(self, path: str | None) -> list[str]:
        own = ["index"] if path is None else _names_of(path)
        return [*own, *itertools.chain.from_iterable(table.names for table in self.joined)]

    def own_path(self, collection: ShardCollection) -> str | None:
        """The local path of the index's own table, checked; None: no such table exists.

        Raises:
            ColumnsError: it is damaged, of another index, or of other versions of its shards. FetchError: it cannot be
                had.
        """
        from wids.columns.file import check_contents, check_of_index, fetch_table, open_table
        from wids.columns.parts import check_versions

        place = self.place
        if place is None:
            return None
        try:
            path = fetch_table(
                place,
                cache_dir=self.cache_dir,
                session=self.session,
                samples=collection.whole_length,
            )
        except MissingTableError:
            return None
        table = open_table(path)
        try:
            check_of_index(table, collection.shards, fingerprint(collection.shards))
            if table.header.state not in self.checked:
                check_versions(table, collection.shards)
                self.checked.add(table.header.state)
            check_contents(table, collection.shards)  # after what names the shards
        finally:
            table.close()
        return path

    def find_table(self, collection: ShardCollection) -> sql.SampleTable | None:
        """The existing columns; None: no columns exist."""
        path = self.own_path(collection)
        return self._table(collection, path) if self.joined or path is not None else None

    def _table(self, collection: ShardCollection, path: str | None, *, has_more: bool = False) -> sql.SampleTable:
        """The table that SQL queries.

        Args:
            collection: of the samples.
            path: of the index's own table.
            has_more: member tables provide more columns.

        Raises:
            ColumnsError: no columns exist, or they are not of these samples.
        """
        from wids.columns import members, sql

        if path is None and not (self.joined or has_more):
            if not collection.is_grouped_as_indexed:
                raise ColumnsError(
                    "columns are made of samples as the index says, and this dataset has a key_rule "
                    "or group of its own; if its samples are the same, name the file: with_columns(place=...)"
                )
            raise ColumnsError(
                f"there are no columns of these samples{f' ({self.place})' if self.place else ''}; {self._way()}, or "
                f"attach a table by with_table ({members.KNOWN})"
            )
        return sql.SampleTable(
            samples=collection.whole_length,
            path=path,
            joined=self.joined,
            chosen=collection.whole_indices(),
            classes=collection.shards.class_names,
        )

    def _ask(
        self, collection: ShardCollection, text: str, work: Callable[[sql.SampleTable], T], *, is_query: bool = False
    ) -> T:
        """The result of ``work`` for the columns, and for those of member tables that the SQL names.

        Raises:
            QueryError: the SQL is invalid, or has an unknown name. ColumnsError: no columns exist, or not these.
        """
        from wids.columns import members, sql
        from wids.columns.packages import import_arrow

        path = self.own_path(collection)
        names, there, wanted, own = frozenset[str](), set[str](), frozenset[str](), frozenset[str]()
        folded = str(text).casefold()
        if path is None or members.HAS in folded or (self.companions and "_bytes" in folded):
            names, own = sql.names_in(text, is_query=is_query)
            there = {name.casefold() for name in self._names(path)}
            wanted = members.of_members(names - there)
        table = self._table(collection, path, has_more=bool(wanted))
        if not wanted:
            return work(table)
        asked = members.MemberNames(names=wanted, own=own & wanted, fields=self.fields)
        sizes = {} if path is None else _sizes_of(path)
        if not (sizes or is_query or names <= wanted | there):
            self._check_without(table, text, wanted)
        theirs = members.CompanionColumns(self.companions, collection, asked)
        columns: dict[str, Any] = {}
        if sizes:
            asked = theirs.rest(sizes)
            found = members.presence(sizes, asked)
            present = {name: [sizes[extension] for extension in of] for name, of in found.items()}
            shared = frozenset(present) & frozenset(theirs.columns({}))  # of which some lie in the base
            if shared:
                some = msgspec.structs.replace(asked, names=shared, own=frozenset())
                more, _ = members.read_columns(collection, some)
                columns = {name: more.column(name) for name in more.column_names}
            present = {name: of for name, of in present.items() if name not in shared}
            table = msgspec.structs.replace(table, present=present)
            extensions = list(sizes)
        else:
            rest = theirs.rest(members.first_extensions(collection)) if theirs.sizes else asked
            more, extensions = members.read_columns(collection, rest)
            columns = {name: more.column(name) for name in more.column_names}
        columns |= theirs.columns(columns)
        if columns:
            table = msgspec.structs.replace(table, joined=[*table.joined, import_arrow().table(columns)])
        extensions += theirs.sizes
        try:
            return work(table)
        except QueryError as error:
            more = "" if path is not None else "; other columns: wids columns create"
            raise QueryError(f"{error}; {members.describe_fields(extensions)}{more}", found=text) from error

    def _check_without(self, table: sql.SampleTable, predicate: str, wanted: frozenset[str]) -> None:
        """Check that a predicate has no unknown names, before member tables are read: run it on no samples.

        Raises:
            QueryError, ColumnsError: it has.
        """
        from wids.columns import members, sql
        from wids.columns.packages import import_arrow

        pa = import_arrow()
        kinds = {name: pa.bool_() if name.startswith(members.HAS) else pa.int64() for name in wanted}
        empty = pa.table({name: pa.array([], pa.string() if name == "key" else kinds[name]) for name in wanted})
        none = np.zeros(0, np.int64)
        try:
            sql.find_rows(msgspec.structs.replace(table, joined=[*table.joined, empty], chosen=none), predicate)
        except QueryError as error:
            if table.path is not None or table.joined:
                raise
            raise ColumnsError(
                f"{error}; there are no other columns of these samples; {self._way()}, or attach a table by with_table"
            ) from error

    def _way(self) -> str:
        """Advice on how to make columns; tars without an index have none, because the table is beside the index."""
        if self.place:
            return "make them: wids columns create"
        return "make an index and them (wids index create, wids columns create) and give the index"

    def check_unused(self) -> None:
        """Check that no table is joined to the samples, before they are replaced by others.

        Raises:
            ColumnsError: some are.
        """
        if self.joined or self.shown:
            raise ColumnsError("tables are joined to the samples of these shards; assign shards before they are")

    def find_rows(self, collection: ShardCollection, predicate: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows that a predicate chooses; see `wids.columns.sql.find_rows`."""
        from wids.columns import sql

        return self._ask(collection, predicate, lambda table: sql.find_rows(table, predicate))

    def choose(self, collection: ShardCollection, predicate: str) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
        """`find_rows` with the number of samples for which the predicate is null."""
        from wids.columns import sql

        def choose(table: sql.SampleTable) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
            rows = sql.find_rows(table, predicate)
            return rows, sql.count_nulls(table, predicate) if len(rows) < table.count else 0

        return self._ask(collection, predicate, choose)

    def query(self, collection: ShardCollection, text: str) -> Any:
        """The rows of a query; see `wids.columns.sql.run_query`."""
        from wids.columns import sql

        return self._ask(collection, text, lambda table: sql.run_query(table, text), is_query=True)

    def read(self, collection: ShardCollection, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The values of a column; see `wids.ShardListDataset.read_column`."""
        from wids.columns import join
        from wids.columns.spec import unknown_column

        there = self.names(collection)
        if there != ["index"] and not _is_column(name, there):
            raise unknown_column(name, there)
        rows = collection.whole_indices()
        path = self.own_path(collection)
        vectors = [table.read_vectors(name, rows) for table in self.joined]
        vectors += [] if path is None else [join.read_vectors(path, name, rows)]
        for array in vectors:
            if array is not None:
                return np.asarray(array)
        quoted = name.replace('"', '""')
        found = self.query(collection, f'select "{quoted}" from samples order by "index"')  # noqa: S608
        return _to_array(found.column(0))

    def evaluate(self, collection: ShardCollection, text: str) -> np.ndarray[Any, np.dtype[Any]]:
        """The values of a column, or of an SQL expression over columns: (n,), a value for each sample, in order.

        A text that is the name of a column is that column, whatever letters it has.

        Raises:
            InputError: there is no such column. QueryError: it is no such expression; see `wids.columns.sql.compute`.
        """
        from wids.columns import sql

        if text.isidentifier() or text in self.names(collection):
            return self.read(collection, text)
        values = self._ask(collection, text, lambda table: sql.compute(table, text)).column(0)
        if len(values) != len(collection):
            raise QueryError(f"{text} has {len(values):,} values for {len(collection):,} samples", found=text)
        return _to_array(values.cast("double") if str(values.type).startswith("decimal") else values)

    def join(self, request: JoinRequest, fields: Fields, collection: ShardCollection) -> SampleColumns:
        """The same, with the columns of a table.

        Raises:
            WidsError: see `wids.columns.join.join_table`. InputError: two columns would have one name.
        """
        from wids.columns import sql
        from wids.columns.join import join_table
        from wids.columns.spec import check_names

        path = self.own_path(collection)
        source = sql.SampleTable(samples=collection.whole_length, path=path, chosen=collection.whole_indices())
        request = msgspec.structs.replace(request, cache_dir=self.cache_dir, session=self.session)
        keys = None if path is not None else _keys_of(collection)
        table = self._check_whole(join_table(request, source, keys), collection)
        check_names([*self.names(collection), *table.names])
        shown = _choose(fields, table.names)
        return msgspec.structs.replace(self, joined=(*self.joined, table), shown=self._shown_with(shown, table))

    def show(self, fields: Fields, collection: ShardCollection) -> SampleColumns:
        """The same, with columns of the index's own table added to samples.

        Raises:
            ColumnsError: the table does not exist, or cannot be used. InputError: it lacks the column.
        """
        from wids.columns.join import copy_columns

        path = self.own_path(collection)
        if path is None:
            self._table(collection, path)  # which says what to do
            raise ColumnsError(f"{self.place or 'the index'}: there are no columns; make them: wids columns create")
        names = _choose(fields, _names_of(path))
        if not names:
            return self
        shown = self._shown_with(names, self._check_whole(copy_columns(path, names), collection))
        return msgspec.structs.replace(self, shown=shown)

    def _check_whole(self, table: MappedTable, collection: ShardCollection) -> MappedTable:
        """The same table, checked to have a row for each sample.

        Raises:
            ColumnsError: rows are missing, because the index's own table, its source, is damaged.
        """
        count = collection.whole_length
        if table.nrows != count:
            what = f"is damaged: it gives {table.nrows:,} rows for {count:,} samples"
            raise ColumnsError(f"{self.place}: {what}; make it again: wids columns create")
        return table

    def _shown_with(self, names: list[str], table: MappedTable) -> tuple[tuple[str, Any], ...]:
        _check_fields(names)
        there = {name for name, _ in self.shown}
        if repeated := there.intersection(names):
            raise InputError(f"the samples have a column {min(repeated)!r} already")
        return (*self.shown, *((name, table) for name in names))


def _to_array(values: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A column of Arrow as an array; see `wids.ShardListDataset.read_column`."""
    column: np.ndarray[Any, np.dtype[Any]] = values.to_numpy()
    if values.null_count and str(values.type).removeprefix("u").startswith("int"):
        known = values.drop_null().to_numpy()
        if len(known) and max(-int(known.min()), int(known.max())) > _EXACT:
            return np.array(values.to_pylist(), object)
    return column


def beside(
    shards: Any, collection: ShardCollection, *, cache_dir: str | None, fields: Sequence[str] | None = None
) -> SampleColumns:
    """The columns of a dataset that was made of ``shards`` and has these ``fields``; no file is opened yet.

    A view has the columns of its index, or its own if it lists its shards itself. A dataset that groups samples in
    another way than ``wids columns create`` has none.
    """
    index = None
    if is_view(collection.shards):
        shards = collection.shards.header.get("view_of", shards)
    if isinstance(shards, (str, os.PathLike)) and collection.is_grouped_as_indexed:
        name = os.fspath(shards)
        if isinstance(name, str) and not lists_shards(name):
            index = name
    named = fields if isinstance(fields, Alternatives) and fields.names is not None else Alternatives((), ())
    return SampleColumns(
        index=index,
        cache_dir=cache_dir,
        session=collection.provider.session.with_hooks(()),
        fields=dict(zip(named.names or (), named.groups, strict=True)),
    )


def _choose(fields: Fields, names: Sequence[str]) -> list[str]:
    from wids.columns.join import parse_names
    from wids.columns.spec import unknown_column

    if isinstance(fields, bool):
        return list(names) if fields else []
    wanted = [fields] if isinstance(fields, str) else parse_names("fields", fields)
    for name in wanted:
        if name not in names:
            raise unknown_column(name, names, "fields")
    return list(dict.fromkeys(wanted))


def _is_column(name: Any, names: Sequence[str]) -> bool:
    """True if a name, in any case, is one of these, or may be that of a column from member tables."""
    from wids.columns import members

    if not isinstance(name, str):
        return False
    return name.casefold() in map(str.casefold, names) or bool(members.of_members([name.casefold()]))


def _check_fields(names: Sequence[str]) -> None:
    """Check that columns do not replace the samples' own fields.

    Raises:
        InputError: one would.
    """
    for name in names:
        if name.startswith(".") or name in _SAMPLE_NAMES:
            raise InputError(f"fields: samples have a {name!r} of their own; give the column another name")


def _names_of(path: str) -> list[str]:
    from wids.columns.file import open_table

    table = open_table(path)
    try:
        return list(table.schema.names)
    finally:
        table.close()


def _sizes_of(path: str) -> dict[str, str]:
    """Extension -> the column of its sizes."""
    from wids.columns.file import open_table

    table = open_table(path)
    try:
        return table.header.sizes
    finally:
        table.close()


def _keys_of(collection: ShardCollection) -> Iterator[list[str]]:
    """The keys of the samples, shard by shard, from member tables of local shards.

    Raises:
        ColumnsError: shards are remote.
    """
    from wids.columns.kinds import writable

    if collection.has_remote():
        raise ColumnsError(
            "the keys of remote shards are not known without columns, and there are none beside the index; make them: "
            "wids columns create, name a file of them: with_columns(fields=False, place=...), or join on='index'"
        )
    for k, count in enumerate(collection.lengths):
        if count:
            table = collection.open(k).table
            keys = [str(writable(table.key(row))) for row in range(len(table))]
            yield [keys[row % len(keys)] for row in collection.rows_of(k)]
