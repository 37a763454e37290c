"""Makes the table of columns of an index: each shard is read once, and again only if it has changed.

One function for each shard (`wids.columns.extract`), run by `wids.jobs.runner`. The rows depend only on the
shards and the index, not on the engine or the order of completion. The parts are merged in the index's order, one row
group at a time, so that memory does not grow with the data. The complete table is published in one step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from wids.columns import kinds
from wids.columns.extract import ExtractTask, Part, extract_part
from wids.columns.file import (
    METADATA_KEY,
    SUFFIX,
    VERSION,
    TableHeader,
    is_table,
    open_table,
    place_beside,
    table_schema,
)
from wids.columns.headers import find_reader
from wids.columns.packages import import_arrow, import_parquet
from wids.columns.parts import KnownParts, digest_state
from wids.columns.spec import HEADER_KEYS, MAX_SIZES, ColumnSpec, size_names
from wids.core.collection.shard_collection import lists_shards, load_shards
from wids.core.files import atomic
from wids.core.index.companion_file import parse_companions
from wids.core.index.fingerprint import contents, fingerprint, fingerprint_of
from wids.core.index.paths import absolute
from wids.core.index.view_file import is_view
from wids.core.place import Place
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.upload import check_no_device, check_place, check_replaceable
from wids.errors import ColumnsError, DecodeError, InputError, JobError, OutputError
from wids.events import logger
from wids.jobs.arguments import check_index, check_job, check_session, check_value, text_of, texts_of
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.journal import shards_before, unwritten
from wids.jobs.outcome import JobOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from os import PathLike

    from wids.columns.extract import PartRecord
    from wids.columns.spec import ColumnRule
    from wids.core.collection.shard_collection import Shards
    from wids.core.index.shardlist import ShardList
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine

# Processes take half a second to start, in which threads of one interpreter parse the members of so many samples.
_PROCESSES_PAY_SAMPLES = 100_000
# Rows of a row group: whole shards as long as they are small.
_GROUP_ROWS = 1 << 17
# What may be replaced.
_TABLE = "table that `wids columns create` made"


class ColumnsOutcome(JobOutcome, kw_only=True):
    """The results for the shards.

    Attributes:
        output: the table's path.
        samples: its rows.
        columns: name -> type (``int64``, ``int32``, ``double``, ``bool``, ``string``, of vectors ``float32[512]``, or
            ``json``: JSON text).
        kept: columns of the earlier table that were not asked for again, and are there as before.
        changed: column -> its rule in the earlier table, where it has another one now.
        dropped: columns of the earlier table that are left out, as was asked.
        empty: columns for which no sample has a value -> their rules; fields or keys may be misspelt.
        surveyed: shards that were read.
        unchanged: shards known from an earlier run.
        nulls: name of a column that was asked for -> number of samples without a value, if any.
        nans: name of a column that was asked for -> number of samples with NaN, if any, also within JSON.
        doubled: samples that have a field twice, in upper and in lower case; the sizes are added.
        unparsed: members that could not be parsed, and are null.
        troubles: URL of a shard -> the reason for its first unparsed member.
        warnings: sentences about the above that were logged.
        requests: number sent to servers.
        read_bytes: number of bytes received from servers.

    Example:
        >>> outcome = jobs.create_columns("train.json")
        >>> outcome.samples, outcome.surveyed, outcome.columns["key"]
        (12, 3, 'string')
    """

    output: str
    samples: int = 0
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    kept: list[str] = msgspec.field(default_factory=list)
    changed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: list[str] = msgspec.field(default_factory=list)
    empty: dict[str, str] = msgspec.field(default_factory=dict)
    surveyed: int = 0
    unchanged: int = 0
    nulls: dict[str, int] = msgspec.field(default_factory=dict)
    nans: dict[str, int] = msgspec.field(default_factory=dict)
    doubled: int = 0
    unparsed: int = 0
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)
    requests: int = 0
    read_bytes: int = 0

    def warn(self, words: str) -> None:
        """Log a warning, and keep it: a command shows no log lines in its bar.

        Args:
            words: of the warning.
        """
        self.warnings.append(words)
        logger.warning("%s", words)


def create_columns(
    index: Shards,
    output: str | PathLike[str] | None = None,
    spec: ColumnSpec = ColumnSpec(),  # noqa: B008 - frozen
    *,
    drop: str | Iterable[str] = (),
    overwrite: bool = False,
    session: Session = PLAIN,
    engine: Engine = "auto",
    progress: Progress = None,
) -> ColumnsOutcome:
    """Write the table of columns of an index, one row for each sample in the index's order.

    The columns of an earlier table stay, by their rules, also for shards that are new or changed. Of the other shards,
    only members that new rules need are read. A column that is asked for again with another rule has the new one, and
    a warning says which it had.

    A run that ends early (KeyboardInterrupt, a kill) leaves its journal and parts: the next run reads the other shards.

    Args:
        index: as the first argument of a dataset: the path or URL of an index, or shards.
        output: path of the Parquet file; None: beside a local index, ``train.columns.parquet`` of ``train.json``.
            Beside it is its ``.state``, and until the end of the job ``.journal`` and ``.parts``.
        spec: the rules of the columns, beside those from member tables and those of an earlier table; see
            `wids.columns.spec.parse_spec`.
        drop: columns of the earlier table that are left out.
        overwrite: also replace a file that is no such table, or one of other shards, unless it is a shard or the index.
        session: opens URLs.
        engine: runs the tasks; by default threads, and processes where many local samples are parsed.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        Counts, and what the columns are.

    Raises:
        InputError: an argument is of another type; names it.
        ColumnsError: the earlier table has columns without rules, or is damaged.
        JobError: some shards could not be read; ``found`` names them (URL -> reason). The next run does not read the
            other shards again. An earlier table stays.
        OutputError: the table cannot be written. OutputExistsError: there is another table; or another process makes
            this one. DependencyError: pyarrow is not installed, or for columns of sounds soundfile,
            of videos av.
        SpecError, FetchError: the index is malformed, or cannot be read. InputError: it is a view of another one.

    Example:
        >>> spec = jobs.parse_spec(fields=[".cls=label"])
        >>> jobs.create_columns("train.json", spec=spec).columns["label"]
        'int64'
        >>> len(wids.ShardListDataset("train.json").where("label = 0"))
        4
    """
    spec = check_job(spec, ColumnSpec, engine, progress, name="spec").check()
    check_index(index)
    check_session("session", session)
    drop = texts_of("drop", drop)
    check_value("overwrite", overwrite, bool)
    import_parquet()
    output = check_output(place_of_table(index) if output is None else text_of("output", output))
    _, shards, narrowed = load_shards(index, session=session)
    inputs = [(os.fspath(index), "the index itself")] if isinstance(index, (str, os.PathLike)) else []
    check_replaceable(
        output,
        _TABLE,
        is_table,
        other=lambda: _other_shards(output, shards),
        inputs=inputs,
        shards=shards.urls,
        overwrite=overwrite,
    )
    if is_view(shards) and (parent := shards.header.get("view_of")) is not None:
        entry = next(iter(parse_companions(shards.header, None)), None)
        way = f"; for fields of {entry.index}, make its columns, and join that table (with_table)" if entry else ""
        raise InputError(
            f"{index}: is a view of {parent}, and has the columns of that index; make those: wids columns create "
            f"{parent}{way}"
        )
    with _Creating(shards, output, progress) as creating:
        creating.plan(spec, drop)
        creating.read(narrowed, engine)
        creating.publish()
    return creating.outcome


def _other_shards(output: str, shards: ShardList) -> str | None:
    """Words for a table that has none of these shards, by its state; None for one that has, or is damaged."""
    before = shards_before(output)
    if not before or not before.isdisjoint(map(absolute, shards.urls)):
        return None
    try:
        table = open_table(output)
    except ColumnsError:
        return None
    table.close()
    is_moved = table.header.fingerprint == fingerprint(shards)
    return None if is_moved else f"is a table of the columns of {len(before):,} other shards"


def place_of_table(index: Shards) -> str:
    """The path of the table of an index.

    Raises:
        InputError: only a local index has a place for it.
    """
    place = os.fspath(index) if isinstance(index, (str, os.PathLike)) else ""
    table = None if not place or not Place(place).is_local or lists_shards(place) else place_beside(place)
    if table is None:
        way = ", or make an index of these shards first (wids index create)" if place and lists_shards(place) else ""
        raise InputError(
            f"say where the table goes (-o FILE){way}: only beside a local index has it a place of its own"
        )
    return table


def check_output(output: str) -> str:
    """The absolute path of an output table.

    Raises:
        OutputError: it is a URL, a directory or device, not called .parquet, no UTF-8, or in a directory that does not
            exist.
    """
    path = check_place(output, "a table", f"train{SUFFIX}")
    check_no_device(path, output)
    if not path.endswith(".parquet"):
        raise OutputError(f"{output}: give a file whose name ends in .parquet", path=path, parameter="output")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise OutputError(f"{output}: a table's path has to be UTF-8; choose another name", path=path) from error
    return path


class _Creating(ShardJob[int, Part, ColumnsOutcome]):
    """Collects shards into one table. Until the table exists, shards that were read stay known for the next run."""

    def __init__(self, shards: ShardList, output: str, progress: Progress) -> None:
        super().__init__(ColumnsOutcome(output=output, shards=len(shards)), progress, "reading")
        self._shards, self._output, self._spec = shards, output, ColumnSpec()
        self._parts = KnownParts(output)
        self.close_at_end(self._parts.close)
        self._done: dict[int, PartRecord] = {}
        self._hint: str | None = None

    def plan(self, spec: ColumnSpec, drop: Sequence[str]) -> None:
        """Add the rules of the earlier table.

        Args:
            spec: the rules that are asked for.
            drop: columns that are not.

        Raises:
            InputError: there is no such column. ColumnsError: the rules are not known.
            DependencyError: a rule takes a package that is not installed.
        """
        for how in {rule.how for rule in spec.rules} & HEADER_KEYS.keys():
            find_reader(how)
        rules, outcome = self._earlier_rules({rule.name.casefold() for rule in spec.rules}), self.outcome
        self._spec = spec.added_to(rules, drop)
        now = {rule.name.casefold(): rule for rule in self._spec.rules}
        asked = {rule.name.casefold() for rule in spec.rules}
        for was in rules:
            rule = now.get(was.name.casefold())
            if rule is None:
                outcome.dropped.append(was.name)
            elif was.name.casefold() not in asked:
                outcome.kept.append(was.name)
            elif rule.digest != was.digest:
                outcome.changed[rule.name] = was.source
                outcome.warn(f"the column {rule.name!r} is now {rule.source}; it was {was.source}")

    def _earlier_rules(self, asked: AbstractSet[str]) -> Sequence[ColumnRule]:
        """The rules of the earlier table.

        Raises:
            ColumnsError: it has columns without a rule, and they are not asked for.
        """
        earlier = self._parts.earlier
        if earlier is None:
            if os.path.isfile(self._output):
                words = "is replaced; which columns it has cannot be read, and none is kept"
                self.outcome.warn(f"{self._output}: {words}")
            return []
        lost = [name for name in earlier.columns if name.casefold() not in asked]
        if lost and not earlier.rules:
            raise ColumnsError(
                f"{self._output}: does not say from what its columns {', '.join(lost)} were made; give their rules, "
                "too, or delete the file",
                path=self._output,
            )
        return earlier.rules

    def read(self, session: Session, engine: Engine) -> None:
        """Read the shards.

        Raises:
            JobError: some cannot be read.
        """
        shards, known = self._shards, self._parts.records
        grouping = shards.grouping
        places = list(map(absolute, shards.urls))  # now, wherever the program goes meanwhile
        tasks = (
            (
                k,
                ExtractTask(
                    shard=msgspec.structs.replace(shards[k], url=place),
                    spec=self._spec,
                    known=known.get(place),
                    **grouping,
                    session=session,
                ),
            )
            for k, place in enumerate(places)
        )
        is_much = bool(self._spec.rules) and sum(shards.nsamples) > _PROCESSES_PAY_SAMPLES
        is_remote = not all(Place(url).is_local for url in shards.urls)
        self.run(extract_part, tasks, choose_engine(engine, is_remote=is_remote, pays=is_much and len(shards) > 1))
        self.outcome.sort_failed(shards.urls)
        if failed := self.outcome.failed:
            count, total, first = len(failed), len(shards), next(iter(failed.values()))
            raise JobError(
                f"{self._output}: not written, for {count:,} of {total:,} shards could not be read; the first: {first}",
                found=failed,
                path=self._output,
                hint=self._hint,
            )

    def publish(self) -> None:
        """Merge the parts into the table.

        Raises:
            OutputError: it cannot be written; shards that were read stay known.
        """
        parts = [self._done[k] for k in range(len(self._shards))]
        state = self._parts.format_state(_in_order(parts, self._spec))
        layout = _ColumnLayout(self._spec, parts)
        header = TableHeader(
            version=VERSION,
            fingerprint=fingerprint_of(self._shards.urls, [part.nsamples for part in parts]),
            samples=sum(part.nsamples for part in parts),
            contents=contents(self._shards),
            columns=[rule.name for rule in self._spec.rules],
            rules=list(self._spec.rules),
            kinds=layout.kinds,
            sizes=layout.sizes,
            state=digest_state(state),
        )
        try:
            if not self._parts.is_current(header):
                with atomic.part_file(self._output) as (path, fd):
                    self._write(path, layout, parts, header)
                    os.fsync(fd)  # a full disk of a server may be an error here alone, and the parts go next
                    self._parts.put_state(state)
                    os.replace(path, self._output)
            self._parts.finish()
        except OSError as error:
            raise unwritten(self._output, error) from error
        self.outcome.samples, self.outcome.columns = header.samples, layout.types()
        self.outcome.doubled = sum(part.doubled for part in parts)
        self._count(parts)
        if not layout.has_sizes:
            self.outcome.warn(f"the samples have more than {MAX_SIZES} different fields: no columns of their sizes")
        if header.samples:
            self._tell_empty(layout)

    def _count(self, parts: Sequence[PartRecord]) -> None:
        """Count samples without a value and with NaN, and members that could not be parsed, in all parts."""
        outcome, members = self.outcome, {(rule.extension, rule.how): rule for rule in self._spec.rules}
        for rule in self._spec.rules:
            values = [part.columns[rule.digest] for part in parts]
            for counts, count in (
                (outcome.nulls, sum(each.nulls for each in values)),
                (outcome.nans, sum(each.nans for each in values)),
            ):
                counts.update({rule.name: count} if count else {})
            if members[rule.extension, rule.how] is rule:  # others read the same members
                outcome.unparsed += sum(each.unparsed for each in values)

    def _tell_empty(self, layout: _ColumnLayout) -> None:
        """Warn of columns for which no sample has a value."""
        for rule, of in zip(self._spec.rules, layout.kinds, strict=True):
            if not of:
                self.outcome.empty[rule.name] = rule.source
                self.outcome.warn(
                    f"no sample has a value for the column {rule.name!r} ({rule.source}): all of it is null"
                )

    def _write(self, path: str, layout: _ColumnLayout, parts: Sequence[PartRecord], header: TableHeader) -> None:
        pa, pq = import_arrow(), import_parquet()
        schema = layout.schema().with_metadata({METADATA_KEY: msgspec.json.encode(header)})
        waiting: list[Any] = []
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            for table in self._tables(layout, parts):
                waiting.append(table)
                if sum(map(len, waiting)) >= _GROUP_ROWS:
                    writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)
                    waiting.clear()
            if waiting:
                writer.write_table(pa.concat_tables(waiting), row_group_size=_GROUP_ROWS)

    def _tables(self, layout: _ColumnLayout, parts: Sequence[PartRecord]) -> Iterator[Any]:
        """The rows of each shard that is not empty."""
        first = 0
        for k, part in enumerate(parts):
            if part.nsamples:
                yield layout.rows(k, first, part, *self._parts.load(part))
            first += part.nsamples

    def take(self, name: int, found: Part) -> None:
        """Keep the columns of a shard, for this table and the next run."""
        outcome, record = self.outcome, found.record
        if found.data is None:
            outcome.unchanged += 1
        else:
            outcome.surveyed += 1
            try:
                record = self._parts.add_part(found)
            except OSError as error:
                raise unwritten(self._output, error) from error
        self._done[name] = record
        if found.trouble:
            outcome.troubles[self.url_of(name)] = found.trouble
        outcome.requests += found.requests
        outcome.read_bytes += found.read_bytes
        self.progress.bytes += found.read_bytes

    def fail(self, name: int, error: BaseException) -> None:
        """Note that a shard could not be read."""
        super().fail(name, error)
        self._hint = "missing" if isinstance(error, DecodeError) else self._hint

    def url_of(self, name: int) -> str:
        """The shard's URL in the index."""
        return self._shards.urls[name]


def _in_order(parts: Iterable[PartRecord], spec: ColumnSpec) -> Iterator[PartRecord]:
    """The records of a table's shards, each with its first row."""
    first, digests = 0, list(dict.fromkeys(rule.digest for rule in spec.rules))
    for part in parts:
        columns = {digest: part.columns[digest] for digest in digests}
        yield msgspec.structs.replace(part, url=absolute(part.url), columns=columns, first=first)
        first += part.nsamples


class _ColumnLayout:
    """The columns of a whole table.

    Attributes:
        kinds: the kinds of values in each column of a rule.
        sizes: extension -> name of the column of its sizes.
        has_sizes: they are not too many.
    """

    def __init__(self, spec: ColumnSpec, parts: Sequence[PartRecord]) -> None:
        self._spec = spec
        self.kinds = [kinds.join_kinds(part.columns[rule.digest].kinds for part in parts) for rule in spec.rules]
        extensions = {extension for part in parts for extension in part.extensions}
        self.has_sizes = len(extensions) <= MAX_SIZES and all(part.extensions or not part.nsamples for part in parts)
        self.sizes = size_names(extensions if self.has_sizes else (), spec.names)

    def schema(self) -> Any:
        """The Arrow schema."""
        asked = {rule.name: of for rule, of in zip(self._spec.rules, self.kinds, strict=True)}
        return table_schema(asked, self.sizes.values())

    def types(self) -> dict[str, str]:
        """Name of each column -> its type in words."""
        found = {field.name: str(field.type) for field in self.schema()}
        found.update({rule.name: kinds.type_name(of) for rule, of in zip(self._spec.rules, self.kinds, strict=True)})
        return found

    def rows(self, shard: int, first: int, part: PartRecord, columns: Any, of: Mapping[str, int]) -> Any:
        """The rows of one shard, from its part, whose columns have the types of a whole with the kinds ``of``."""
        pa = import_arrow()
        count = part.nsamples
        if len(columns) != count:
            raise InputError(f"{part.url}: its part has {len(columns)} rows for {count} samples; delete the parts")
        arrays = [
            pa.array(np.arange(first, first + count)),
            pa.array(np.full(count, shard, np.int32)),
            pa.array(np.arange(count, dtype=np.int32)),
            columns["key"],
            columns["bytes"],
        ]
        for rule, to in zip(self._spec.rules, self.kinds, strict=True):
            own = part.columns[rule.digest].kinds
            arrays.append(kinds.convert(columns[f"rule {rule.digest}"], own, of=of[rule.digest], to=to))
        for extension in self.sizes:
            has = extension in part.extensions
            arrays.append(columns[f"size {extension}"] if has else pa.nulls(count, pa.int64()))
        return pa.table(arrays, schema=self.schema())
