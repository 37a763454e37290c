"""Computes new fields for each sample of a dataset, in shards beside those that it has, or as a table.

A shard of new fields, a *companion*, has the rows and keys of its base shard, in its order. A row without fields has
one member, ``KEY.empty``, of no bytes: of a sample that was not chosen, that failed, or for which the function returned
None. The base shards are read, and stay as they are. A finished shard is written down, with a digest of what it was
computed from, and a later run computes only the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from wids.core.collection import error_log
from wids.core.collection.joining import parse_request
from wids.core.files import atomic, locks, tempdirs
from wids.core.files.own_folder import default_cache_dir
from wids.core.index import writing
from wids.core.index.paths import absolute
from wids.core.index.shardlist import grouping_keys
from wids.core.place import Place, cache_directory, relative_name
from wids.core.tables.table import SUFFIX as TABLE_SUFFIX
from wids.core.tables.table import is_standard
from wids.core.transport.session import PLAIN, Session
from wids.errors import (
    InputError,
    JobError,
    OutputError,
    OutputExistsError,
    TooManyErrorsError,
    WorkerError,
    a_kind,
    printable,
    shown,
)
from wids.events import format_size, logger
from wids.jobs.arguments import Text, check_index, check_job, text_of
from wids.jobs.functions import JobFunction
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.journal import JobJournal, format_record, parse_records
from wids.jobs.outcome import JobOutcome
from wids.jobs.runner import run_options
from wids.writing.map_shard import (
    MapJob,
    MappedShard,
    MapTask,
    compute,
    describe_failure,
    encode_fields,
    fields_of,
    map_shard,
    tried,
)
from wids.writing.map_values import plain_values, write_table
from wids.writing.output import ShardTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from wids.core.collection.shard_collection import ShardCollection, Shards
    from wids.core.index.shardlist import ShardList
    from wids.dataset import ShardListDataset
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine, RunOptions
    from wids.writing.map_shard import SampleFailure

SUFFIX, STATE_SUFFIX, PARTS_SUFFIX = ".mapping", ".state", ".parts"
_HEADER = b'{"what": "shards that wids map has finished; run it again to go on"}'
_FORMAT = 1  # of shards' bytes; raised when the same results give other ones
_INDEX, _JOINED, _ERRORS, _TABLE = "index.json", "joined.json", "errors.jsonl", ".parquet"
# Processes take seconds to start, in which threads of one interpreter decode so many samples.
_PROCESSES_PAY_SAMPLES = 10_000
# With fewer failures, their share means nothing; see `wids.core.collection.substitutes`.
_MIN_FAILURES = 10
MAX_ERRORS = 0.001


class MapSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of computing new fields.

    Attributes:
        fields: of the samples, which the function gets: as of `wids.ShardListDataset`; None: all. Nothing else is read.
        decode: the format in which it gets them: ``"PIL"``, ``"numpy"``, ``"torch"``, ``"raw"`` (bytes), or ``"none"``
            (``io.BytesIO``); as ``transformations`` of `wids.ShardListDataset`.
        batch_size: the function takes a list of so many samples at most, all of one shard, and returns a list of as
            many results; None: it takes a sample, and returns a result.
        where: SQL over the columns of the dataset: only samples for which all of these are true are computed.
        columns: results are numbers, texts and vectors, and become columns of a table in place of members of shards.
        prefix: of the new fields where they are joined to the samples: with ``"clip"``, a ``.npy`` is ``.clip.npy``.
        max_errors: the share of the samples that may fail; not looked at before ten have.
        retries_errors: compute shards anew in which samples failed in an earlier run.
        overwrite: begin anew, and replace what an earlier run with another function or other settings has written.
        trial: compute so many samples, and write nothing; None: compute all.
        cache_dir: where remote shards are kept; None: as for reading.
        session: opens URLs.

    Example:
        >>> def count_letters(sample):
        ...     return {".letters.json": len(sample[".txt"])}
        >>> settings = jobs.MapSettings(fields=(".txt",))
        >>> jobs.map("train.json", count_letters, "letters", settings=settings).fields
        {'.letters.json': 12}
    """

    fields: tuple[Text, ...] | dict[str, Text] | None = None
    decode: Literal["PIL", "numpy", "torch", "raw", "none"] = "PIL"
    batch_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    where: tuple[Text, ...] = ()
    columns: bool = False
    prefix: str = ""
    max_errors: Annotated[float, msgspec.Meta(ge=0, le=1)] = MAX_ERRORS
    retries_errors: bool = False
    overwrite: bool = False
    trial: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cache_dir: Text | None = None
    session: Session = PLAIN


class MapTrial(msgspec.Struct, kw_only=True):
    """The result of one sample.

    Attributes:
        index: of the sample, in the dataset with ``where``.
        key: of the sample.
        fields: name -> type, shape and size of its value, in words; without names, the row is empty.
        error: why it failed; None: it did not.
        trace: the last lines of the traceback.

    Example:
        >>> outcome = jobs.map("train.json", lambda sample: {"a.txt": "one"}, "new", settings=jobs.MapSettings(trial=1))
        >>> outcome.trial[0].index, outcome.trial[0].fields
        (0, {'.a.txt': "str 'one', 3 B"})
    """

    index: int
    key: str
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    error: str | None = None
    trace: tuple[str, ...] = ()


class MapOutcome(JobOutcome, kw_only=True):
    """The result of a run.

    Attributes:
        output: URL or path of the index of the new shards, or of the table.
        joined: path of the index that joins the new fields to the samples of ``index``; None: there is none, because
            the output is a table, or no local directory.
        samples: rows of the output: those of all base shards.
        computed: samples that were computed, by this run and by earlier ones.
        empty: rows without fields.
        errors: samples that failed; their rows are empty.
        error_log: the file that names them, for `wids.ShardListDataset.exclude`; None: none failed.
        first_error: what the first one failed with, and the last lines of its traceback.
        fields: extension -> number of rows that have it.
        columns: of a table: name -> type, as in `ColumnsOutcome`.
        known: shards that an earlier run had written.
        bytes: of the output.
        trial: the results of a trial.

    Example:
        >>> def measure(samples):
        ...     return [{"letters": len(each[".txt"])} for each in samples]
        >>> settings = jobs.MapSettings(batch_size=8, columns=True)
        >>> outcome = jobs.map("train.json", measure, "letters.parquet", settings=settings)
        >>> outcome.samples, outcome.columns
        (12, {'letters': 'int64'})
        >>> dataset = wids.ShardListDataset("train.json").with_table("letters.parquet", on="index")
        >>> len(dataset.where("letters > 3"))
        12
    """

    output: str
    joined: str | None = None
    samples: int = 0
    computed: int = 0
    empty: int = 0
    errors: int = 0
    error_log: str | None = None
    first_error: str = ""
    fields: dict[str, int] = msgspec.field(default_factory=dict)
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    known: int = 0
    bytes: int = 0
    trial: list[MapTrial] = msgspec.field(default_factory=list)


def map(  # noqa: A001 - its name for users: `wids.jobs.map`
    index: Shards,
    function: Callable[..., Any] | str,
    output: str | PathLike[str],
    *,
    settings: MapSettings = MapSettings(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> MapOutcome:
    """Compute new fields for each sample of a dataset, and write them into shards beside those that it has.

    The function takes a sample, decoded as in training, with ``__key__``, ``__index__`` and so on, and returns a dict
    of its new fields, extension -> value, or None. Values are encoded by their extensions, as `wids.ShardWriter` does.
    Each new shard has the rows and the keys of its base shard, in its order: also where ``index`` is a view, whose
    other samples have empty rows then. ``joined.json`` is an index of the samples of ``index`` with the new fields.

    A run that ends early (KeyboardInterrupt, a kill) leaves finished shards, and the next one computes the others, as
    it does where base shards have changed or are new. What is written does not depend on the engine.

    Args:
        index: as the first argument of a dataset: the path or URL of an index, or shards.
        function: a function, a class, or the name of one: ``"module:name"`` or ``"path/to/file.py:name"``, also in the
            working directory. Of a class, each process makes one instance, without arguments, which takes the samples.
            The body of a function is not compared: after a change of it, ``overwrite`` computes finished shards anew.
        output: a directory or its URL; with ``columns``, a Parquet file. Beside the shards are their index,
            ``index.json``, of a local directory ``joined.json``, and ``errors.jsonl``, which names samples that failed.
        settings: of the job.
        engine: runs the tasks; by default processes for thousands of samples, and threads for few. On Ray, a task has
            ``num_gpus`` of `RunOptions`.
        progress: called regularly with the progress, of samples; "bar": a bar in a terminal or a notebook.

    Raises:
        InputError: an argument is of another type; the function cannot be imported, or returns a field that samples
            have already. TooManyErrorsError: more samples fail than ``max_errors`` allows.
        OutputExistsError: there is the output of another function, or a file that must not be replaced.
        OutputError: the output cannot be written. WidsError: a shard cannot be read; finished ones stay.

    Example:
        >>> def count_letters(sample):
        ...     return {".letters.json": len(sample[".txt"])}
        >>> outcome = jobs.map("train.json", count_letters, "letters")
        >>> outcome.samples, outcome.fields, outcome.errors
        (12, {'.letters.json': 12}, 0)
        >>> sample = wids.ShardListDataset("letters/joined.json")[5]
        >>> sample[".txt"], sample[".letters.json"]
        ('text 5', 6)
    """
    settings = check_job(settings, MapSettings, engine, progress)
    check_index(index)
    home = absolute(text_of("output", output).rstrip("/") or "/")
    job_function = JobFunction("function", function)
    try:
        parse_request(on="row", prefix=settings.prefix, missing="error", fields=None)
        whole = dataset = _open(index, settings)
        for predicate in settings.where:
            dataset = dataset.where(predicate)
        if not len(dataset):
            raise InputError("there are no samples to compute", parameter="where" if settings.where else "index")
        place = _check_output(home, is_table=settings.columns)
        job = MapJob(
            dataset=dataset,
            function=job_function,
            batch_size=settings.batch_size,
            is_table=settings.columns,
            prefix=settings.prefix.strip("."),
            others=_names_of_companions(dataset),
            session=settings.session,
        )
        outcome = MapOutcome(output=place)
        if settings.trial is not None:
            outcome.trial = list(_try(job, settings.trial))
            outcome.computed = len(outcome.trial)
            outcome.errors = sum(each.error is not None for each in outcome.trial)
            return outcome
        if not run_options(engine).is_ray:  # whose nodes may have what this machine lacks
            job_function.check()
        _run(job, settings, outcome, engine, progress, whole)
        return outcome
    finally:
        job_function.release()


def _open(index: Shards, settings: MapSettings, *, is_part: bool = False) -> ShardListDataset[Any]:
    """The samples that are computed, their shards by absolute paths; ``is_part``: they are some of their shards."""
    from wids.dataset import ShardListDataset

    base = None
    if isinstance(index, (str, os.PathLike)):
        index = absolute(os.fspath(index))
    elif not hasattr(index, "read"):
        index, base = list(index), os.getcwd()
    dataset: ShardListDataset[Any] = ShardListDataset(
        index,
        base=base,
        fields=settings.fields,
        transformations=None if settings.decode == "none" else settings.decode,
        cache_dir=cache_directory(settings.cache_dir or default_cache_dir()),
        storage_options=settings.session.storage_options,
        access="fetch" if settings.fields is None and not settings.where and not is_part else "auto",
    )
    collection = dataset._collection  # noqa: SLF001 - of the face
    can_reopen = not (is_part or hasattr(index, "read"))
    if can_reopen and collection.shards.selection is not None and collection.has_remote():
        return _open(index, settings, is_part=True)
    return dataset


def _names_of_companions(dataset: ShardListDataset[Any]) -> tuple[str, ...]:
    """The fields that samples have of companions, as far as an index says which."""
    companions = dataset._companions  # noqa: SLF001 - of the face
    return tuple(each.name_of(name) for each in companions for name in each.fields or each.stated_fields() or ())


def _check_output(home: str, *, is_table: bool) -> str:
    """The URL of the index or table.

    Raises:
        OutputError: a directory has the name of a file, or the reverse.
    """
    is_file = home.endswith((_TABLE, ".json", ".tar"))
    if is_table and not home.endswith(_TABLE):
        raise OutputError(f"{home}: columns are written to a file whose name ends in {_TABLE}", parameter="output")
    if is_file and not is_table:
        advice = "; or give columns too" if home.endswith(_TABLE) else ""
        raise OutputError(f"{home}: is the name of a file, and shards are written to a directory{advice}", url=home)
    if Place(home).is_local and os.path.exists(home) and os.path.isdir(home) == is_table:
        raise OutputError(f"{home}: is a {'directory' if is_table else 'file'}; give another name", path=home)
    return home if is_table else f"{home.rstrip('/')}/{_INDEX}"


def _try(job: MapJob, most: int) -> Iterator[MapTrial]:
    """The results of the first samples; nothing is written."""
    dataset, at = job.dataset, 0
    collection = dataset._collection  # noqa: SLF001 - of the face
    for k in range(len(collection.shards)):
        if at >= most or not collection.lengths[k]:
            continue
        with collection.pinned(k) as reader:
            for row, result in compute(job, k, most=most - at):
                trial = MapTrial(index=at, key=reader.table.key(row))
                is_error = isinstance(result, Exception)
                fields = result if is_error else tried(partial(_describe, job, key=trial.key), result)
                if isinstance(fields, Exception):
                    failure = describe_failure(fields, row, trial.key)
                    trial.error, trial.trace = failure.error, failure.trace
                else:
                    trial.fields = fields
                yield trial
                at += 1


def _describe(job: MapJob, result: Any, key: str) -> dict[str, str]:
    """Field -> its value in words, and its size as a member."""
    fields = fields_of(result, key)
    if job.is_table:
        return {name: describe_value(value) for name, value in plain_values(fields, key).items()}
    rule = job.dataset._collection.shards.grouping["rule"]  # noqa: SLF001 - of the face
    members = encode_fields(result, key, rule=rule)
    return {
        extension: f"{describe_value(value)}, {format_size(len(data))}"
        for (extension, data), value in zip(members.items(), fields.values(), strict=True)
    }


def describe_value(value: Any) -> str:
    """The type of a value, its shape if it has one, and its beginning if it is short, in words."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{a_kind(value).partition(' ')[2]} {value.dtype} {tuple(value.shape)}"
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"{value.mode} picture {value.size[0]} x {value.size[1]}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return type(value).__name__
    return f"{type(value).__name__} {shown(value)}"


def _run(
    job: MapJob,
    settings: MapSettings,
    outcome: MapOutcome,
    engine: Engine,
    progress: Progress,
    whole: ShardListDataset[Any],
) -> None:
    """Compute and write all shards, and the index or table.

    Raises:
        WidsError: see `map`.
    """
    target, place = ShardTarget(settings.session), outcome.output
    plan = _Plan(job, settings, place)
    outcome.shards, outcome.samples = len(plan.tasks), job.dataset._collection.whole_length  # noqa: SLF001 - of the face
    plan.check_apart()
    target.make_directory(place)
    if Place(place).is_local:
        error_log.check(plan.errors, "a log of errors", overwrite=settings.overwrite)
    journal = _open_journal(place, target, overwrite=settings.overwrite)
    try:
        with _Mapping(outcome, progress, plan, journal, target) as mapping:
            tasks = mapping.unfinished()
            is_known = journal.was_there or bool(mapping.before)
            plan.check_free(tasks, target, is_known=is_known)
            target.make_directory(plan.tasks[0].url)
            journal.begin()
            if tasks and not settings.columns:
                target.remove(place)  # it tells of shards that are replaced
            try:
                mapping.compute(tasks, engine)
            finally:
                mapping.write_errors()
            mapping.check_errors(is_end=True)
            if settings.columns:
                mapping.write_table()
            else:
                mapping.write_index()
                if plan.joined is not None:
                    _join(whole, place, plan.joined, settings.prefix, overwrite=settings.overwrite or is_known)
                    outcome.joined = plan.joined
        journal.remove()
    finally:
        journal.close()


def _join(base: ShardListDataset[Any], place: str, joined: str, prefix: str, *, overwrite: bool) -> None:
    """Write the index of samples with their new fields.

    Args:
        base: the samples, of a whole data set or of a view.
        place: of the index of the new shards, which have a row for each sample of the whole.
        joined: path of the new index.
        prefix: of the new fields.
        overwrite: replace a file that is there.
    """
    from wids.dataset import ShardListDataset

    other: ShardListDataset[Any] = ShardListDataset(place, transformations=[])
    chosen = base._collection.whole_indices()  # noqa: SLF001 - of the face
    if chosen is not None:
        other = other.select(chosen)
    base.with_fields(other, prefix=prefix).save(joined, overwrite=overwrite)


def _open_journal(place: str, target: ShardTarget, *, overwrite: bool) -> JobJournal[MappedShard]:
    def open_one() -> JobJournal[MappedShard]:
        return JobJournal(place, SUFFIX, MappedShard, writer="wids map", target=target, header=_HEADER)

    journal = open_one()
    if overwrite and journal.was_there:
        journal.remove()
        journal = open_one()
    return journal


class _Plan:
    """The shards to compute.

    Attributes:
        tasks: one for each base shard that has samples, in order.
        how: the function's name, and a digest of it and of the settings.
        errors: URL of the log of errors.
        joined: path of the index of samples with their new fields; None: there is none.
    """

    def __init__(self, job: MapJob, settings: MapSettings, place: str) -> None:
        self.job, self.settings, self.place = job, settings, place
        self.home = str(Place(place).directory)
        stem = place.removesuffix(_TABLE)
        self.errors = f"{stem}.{_ERRORS}" if settings.columns else f"{self.home.rstrip('/')}/{_ERRORS}"
        is_joined = not settings.columns and Place(place).is_local
        self.joined = f"{self.home.rstrip('/')}/{_JOINED}" if is_joined else None
        text = job.function.text
        parts = (_FORMAT, text, settings.fields, settings.decode, settings.batch_size is None, settings.columns)
        self.how = f"{text} {hashlib.sha256(repr(parts).encode('utf-8', 'backslashreplace')).hexdigest()[:16]}"
        shards = self.collection.shards
        numbers = [k for k, count in enumerate(shards.nsamples) if count]
        folder, suffix = (f"{place}{PARTS_SUFFIX}", ".arrow") if settings.columns else (self.home.rstrip("/"), ".tar")
        self._marks = self._marks_of_companions()
        names = names_of([shards.urls[k] for k in numbers], suffix)
        self.tasks = [
            MapTask(k, f"{folder}/{relative_name(name)}", self._inputs(k))
            for k, name in zip(numbers, names, strict=True)
        ]

    @property
    def collection(self) -> ShardCollection:
        """The samples that are computed."""
        return self.job.dataset._collection  # noqa: SLF001 - of the face

    def _inputs(self, k: int) -> str:
        """A digest of what a shard is computed from."""
        shards: ShardList = self.collection.shards
        said = {key: value for key, value in shards.describe(k).items() if key != "url"}
        parts: list[Any] = [self.how, Place(shards.urls[k]).name, said, *self._marks]
        if (shard := Place(shards.urls[k])).is_local:
            with contextlib.suppress(OSError, ValueError):  # reading it says so
                status = os.stat(shard.path)
                parts += [status.st_size, status.st_mtime_ns]
        if shards.selection is not None:
            rows = np.asarray(shards.selection.rows_of(k), np.int64)
            parts.append(hashlib.sha256(rows.tobytes()).hexdigest() if len(rows) < shards.nsamples[k] else None)
        return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()

    def _marks_of_companions(self) -> list[Any]:
        """Digests of the companions whose fields are read."""
        fields = self.job.dataset.fields
        return [
            (each.name, each.prefix, each.fields, each.marks())
            for each in self.job.dataset._companions  # noqa: SLF001 - of the face
            if fields is None or any(each.extension_of(name) is not None for name in fields)
        ]

    def samples_of(self, tasks: Sequence[MapTask]) -> int:
        """The number of samples that are computed in some shards."""
        return sum(self.collection.lengths[task.k] for task in tasks)

    def check_apart(self) -> None:
        """Check that nothing is written over a base shard, or the index.

        Raises:
            OutputError: it is.
        """
        urls = [*self.collection.shards.urls, *filter(None, [self.collection.index_url])]
        inputs = {_real(url) for url in urls}
        for url in (self.place, *(task.url for task in self.tasks)):
            if _real(url) in inputs:
                raise OutputError(f"{url}: is a part of the dataset that is computed; write elsewhere", url=url)

    def check_free(self, tasks: Sequence[MapTask], target: ShardTarget, *, is_known: bool) -> None:
        """Check that no other files are replaced.

        Args:
            tasks: the shards to write.
            target: tells what exists.
            is_known: an earlier run of this job was here.

        Raises:
            OutputExistsError: some would be, and ``overwrite`` is not set.
        """
        if self.settings.overwrite:
            return
        places = [self.place, self.joined] if not is_known else [self.place] if self.settings.columns else []
        there = [each for each in places if each is not None and target.describe(each) is not None]
        if not is_known and tasks:
            names = set(target.list_beside(tasks[0].url))
            there += [task.url for task in tasks if Place(task.url).name in names]
        if there:
            more = f" and {len(there) - 1:,} more" if len(there) > 1 else ""
            raise OutputExistsError(
                f"{there[0]}{more}: exists; write elsewhere, or pass overwrite=True", url=there[0], hint="overwrite"
            )


def _real(url: str) -> str:
    place = Place(url)
    return os.path.realpath(place.absolute.path) if place.is_local else url


def names_of(urls: Sequence[str], suffix: str) -> list[str]:
    """A name for the output of each shard: the shard's own, with a number before it where several have one name."""
    names = [Place(url).name.removesuffix(".tar") + suffix for url in urls]
    if len({name.casefold() for name in names}) == len(names):
        return names
    width = len(str(len(names) - 1))
    return [f"{k:0{width}d}-{name}" for k, name in enumerate(names)]


class _Mapping(ShardJob[MapTask, MappedShard, MapOutcome]):
    """Collects the shards.

    Attributes:
        before: shards that an earlier run has finished, by the names of their files.
        done: finished ones, likewise.
    """

    def __init__(
        self,
        outcome: MapOutcome,
        progress: Progress,
        plan: _Plan,
        journal: JobJournal[MappedShard],
        target: ShardTarget,
    ) -> None:
        super().__init__(outcome, progress, "mapping", is_skipping=False)
        self._plan, self._journal, self._target = plan, journal, target
        self.done = dict[str, MappedShard]()
        self._under_way = dict[int, tuple[int, int, int, Any]]()
        self._ended = [0, 0]  # samples and failures of the finished ones
        self.before = self._read_before()

    def _read_before(self) -> dict[str, MappedShard]:
        """The shards of earlier runs.

        Raises:
            OutputExistsError: another function computed some, or other settings did.
        """
        plan = self._plan
        if plan.settings.overwrite:
            return {}
        lines = b"" if plan.settings.columns else self._target.get_bytes(plan.place + STATE_SUFFIX) or b""
        records = [*parse_records(lines.split(b"\n"), MappedShard), *self._journal.before]
        before = {each.url: each for each in records}
        others = [each for each in before.values() if each.how != plan.how]
        if others:
            earlier = others[0].how.rpartition(" ")[0]
            what = f"{shown(earlier)}" if earlier != plan.job.function.text else "the same function with other settings"
            raise OutputExistsError(
                f"{plan.place}: {len(others):,} of its shards were computed by {what}; run it again as it was, write "
                "elsewhere, or pass overwrite=True",
                url=plan.place,
                hint="overwrite",
            )
        return before

    def unfinished(self) -> list[MapTask]:
        """The shards that no earlier run has computed from what they are computed from now."""
        rest = []
        for task in self._plan.tasks:
            name = Place(task.url).name
            if (known := self._find_known(name, task)) is None:
                rest.append(task)
                continue
            self._keep(known)
            self.outcome.known += 1
            self.progress.ended += 1
        self.progress.total = self._plan.samples_of(rest)
        return rest

    def _find_known(self, name: str, task: MapTask) -> MappedShard | None:
        known, settings = self.before.get(name), self._plan.settings
        if known is None or known.inputs != task.inputs or (known.failures and settings.retries_errors):
            return None
        is_standard_one = is_standard(**self._plan.collection.shards.grouping) and not settings.columns
        if is_standard_one and self._target.describe(task.url + TABLE_SUFFIX) is None:
            return None
        return known if self._target.describe(task.url) == (known.entry["filesize"], known.mtime_ns) else None

    def compute(self, tasks: Sequence[MapTask], engine: Engine) -> None:
        """Compute shards.

        Raises:
            WidsError: one cannot be computed.
        """
        if tasks:
            work, options = partial(map_shard, self._plan.job), self._engine(tasks, engine)
            try:
                self.run(work, [(task, task) for task in tasks], options)
            finally:
                if (folder := Place(tasks[0].url).directory).is_local:  # part files of processes that were killed
                    locks.remove_parts(os.path.join(folder.absolute.path, ""), more=r".*\.(?:tar|tar\.widx|arrow)")
        else:
            self.show()

    def _engine(self, tasks: Sequence[MapTask], engine: Engine) -> RunOptions:
        options, function = run_options(engine), self._plan.job.function
        if options.engine == "processes" and not function.travels:
            raise InputError(
                f"function {function.text!r} cannot be sent to other processes: define it at the top of a module, give "
                "its name ('module:function'), or give engine='threads'",
                parameter="function",
            )
        urls = [self._plan.place, *self._plan.collection.shards.urls[:1]]
        is_here = any(Place(url).scheme == "memory" for url in urls)
        is_much = self._plan.samples_of(tasks) > _PROCESSES_PAY_SAMPLES
        is_several = min(len(tasks), options.jobs or len(tasks)) > 1
        pays = is_much and is_several and function.travels and not is_here
        chosen = choose_engine(engine, is_remote=False, pays=pays)
        return msgspec.structs.replace(chosen, jobs=min(chosen.jobs or 1, len(tasks)))

    def report(self, name: MapTask, *state: Any) -> None:
        """Take the samples, bytes, number of failures and first failures of a shard so far."""
        before = self._under_way.get(name.k, (0, 0, 0, ()))
        self._under_way[name.k] = samples, size, _, failures = state
        self.progress.done += samples - before[0]
        self.progress.bytes += size - before[1]
        if failures:
            self._tell_first(name, failures[0])
        self.check_errors()

    def take(self, name: MapTask, found: MappedShard) -> None:
        """Record a finished shard."""
        self.report(name, found.samples, found.entry["filesize"], len(found.failures), found.failures)
        del self._under_way[name.k]
        found.url, found.how = Place(name.url).name, self._plan.how
        self._journal.add(found)
        self._keep(found)

    def _keep(self, shard: MappedShard) -> None:
        self.done[shard.url] = shard
        self._ended[0] += shard.samples
        self._ended[1] += len(shard.failures)

    def fail(self, name: MapTask, error: BaseException) -> None:
        """End the job: a dataset needs all its shards."""
        url = self.url_of(name)
        if isinstance(error, WorkerError):
            raise JobError(
                f"{url}: {error} Run it again, with fewer jobs: finished shards stay", url=url, hint="jobs"
            ) from error
        super().fail(name, error)

    def url_of(self, name: MapTask) -> str:
        """The URL of a base shard."""
        return self._plan.collection.shards.urls[name.k]

    def _tell_first(self, task: MapTask, failure: SampleFailure) -> None:
        """Log the first failure, once."""
        if not self.outcome.first_error:
            self.outcome.first_error = self._words_of(task, failure)
            logger.warning(
                "a sample failed, and its row is empty (said once): %s",
                self.outcome.first_error,
                extra={"is_reported": True},
            )

    def _words_of(self, task: MapTask, failure: SampleFailure) -> str:
        url = Place(self.url_of(task)).public
        who = f"row {failure.row}" if failure.key is None else f"{printable(failure.key)} (row {failure.row})"
        return "\n".join([f"{who} of {url}: {failure.error}", *failure.trace])

    def _failures(self) -> Iterator[tuple[MapTask, SampleFailure]]:
        """All failures, in the order of the samples."""
        for task in self._plan.tasks:
            done = self.done.get(Place(task.url).name)
            failures = self._under_way.get(task.k, (0, 0, 0, ()))[3] if done is None else done.failures
            yield from ((task, failure) for failure in failures)

    def check_errors(self, *, is_end: bool = False) -> None:
        """Check how many samples have failed.

        Args:
            is_end: all samples were computed.

        Raises:
            TooManyErrorsError: more than may; or, at the end, all.
        """
        samples = self._ended[0] + sum(each[0] for each in self._under_way.values())
        count = self._ended[1] + sum(each[2] for each in self._under_way.values())
        most = self._plan.settings.max_errors
        if (count >= _MIN_FAILURES and count > most * samples) or (is_end and count == samples > 0 and most < 1):
            first = self.outcome.first_error or self._words_of(*next(self._failures()))
            raise TooManyErrorsError(
                f"{count:,} of {samples:,} samples failed, more than max_errors={most:g}; {self._plan.errors} names "
                f"them. The first one: {'; '.join(first.splitlines())}",
                path=self._plan.errors,
                hint="max_errors",
            )

    def write_errors(self) -> None:
        """Write the log of failures, if there are some; else remove that of an earlier run."""
        lines = [
            error_log.format_line(
                self.url_of(task), row=failure.row, key=failure.key, field=failure.field, error=failure.error
            )
            for task, failure in self._failures()
        ]
        if lines:
            self._target.put_bytes(b"".join(lines), self._plan.errors)
        else:
            self._target.remove(self._plan.errors)

    def _end(self) -> list[MappedShard]:
        """Fill in the outcome; return the shards, in order."""
        outcome, shards = self.outcome, [self.done[Place(task.url).name] for task in self._plan.tasks]
        outcome.computed = sum(each.samples for each in shards)
        outcome.empty = outcome.samples - sum(each.rows for each in shards)
        outcome.errors = sum(len(each.failures) for each in shards)
        outcome.first_error = next((self._words_of(*each) for each in self._failures()), "")
        outcome.error_log = self._plan.errors if outcome.errors else None
        return shards

    def write_index(self) -> None:
        """Write the index, and the state for the next run.

        Raises:
            OutputError: it cannot be written.
        """
        shards, plan, outcome = self._end(), self._plan, self.outcome
        counts = dict[str, int]()
        for each in shards:
            for extension, count in each.fields.items():
                counts[extension] = counts.get(extension, 0) + count
        outcome.fields = dict(sorted(counts.items()))
        outcome.bytes = sum(each.entry["filesize"] for each in shards)
        head = writing.make_head(name=writing.stem_of(plan.home))
        text = writing.dump_index(
            {
                **head,
                "fields": list(outcome.fields),
                **grouping_keys(plan.collection.shards.grouping),
                "shardlist": [{"url": relative_name(each.url), **each.entry} for each in shards],
            }
        )
        state = b"\n".join([_HEADER, *(format_record(each) for each in shards), b""])
        self._target.put_bytes(state, plan.place + STATE_SUFFIX)
        self._target.put_bytes(text, plan.place)

    def write_table(self) -> None:
        """Write the table, and remove its parts.

        Raises:
            OutputError: it cannot be written. ColumnsError: a part is damaged.
        """
        shards, plan = self._end(), self._plan
        urls = [task.url for task in plan.tasks]
        parts = [(partial(self._read_part, url), each.fields) for url, each in zip(urls, shards, strict=True)]
        with contextlib.ExitStack() as stack:
            if (place := Place(plan.place)).is_local:
                path, _ = stack.enter_context(atomic.part_file(place.absolute.path))
            else:
                path = os.path.join(stack.enter_context(tempdirs.directory("map")), place.name)
            self.outcome.columns = write_table(path, parts)
            self.outcome.bytes = os.stat(path).st_size
            self._target.put_file(path, plan.place)
        for url in urls:
            self._target.remove(url)
        if place.is_local:
            with contextlib.suppress(OSError):
                os.rmdir(place.absolute.path + PARTS_SUFFIX)

    def _read_part(self, url: str) -> bytes:
        data = self._target.get_bytes(url)
        if data is None:
            raise OutputError(f"{url}: was deleted meanwhile; run it again", url=url)
        return data
