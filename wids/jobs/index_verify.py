"""Verifies many shards: all are checked, even if some are faulty; a killed run continues where it stopped."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from wids.core.collection.shard_collection import lists_shards
from wids.core.index.checksums import promised
from wids.core.place import Place
from wids.core.shard import Shard  # noqa: TC001 - msgspec reads the annotations
from wids.core.tables.table import check_grouping
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.upload import Target
from wids.errors import CacheError, ClusterError, InputError, OutputError, WorkerError, without_secrets
from wids.events import logger
from wids.jobs.arguments import check_by, check_job, check_value, text_of
from wids.jobs.check import CheckTask, check_shard
from wids.jobs.decode import crash_of
from wids.jobs.job import ShardJob, load_selected
from wids.jobs.journal import JobJournal
from wids.jobs.outcome import JobOutcome
from wids.jobs.problems import Finding, Problem, VerifySettings, grouping_of
from wids.jobs.runner import run_options

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    import numpy.typing as npt

    from wids.core.collection.shard_collection import Shards
    from wids.core.index.selection import Selection
    from wids.jobs.decode import Decode
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine, TaskResult

DEFAULT_JOBS, _MAX_PROCESSES = 8, 64
_FORMAT = 4  # of findings; raised when the same shards give other ones
# Faults that stay as long as a shard and its tables do; others (no connection, say) may be over in the next run.
_LASTING = frozenset({"size", "digest", "tar", "empty", "keys", "count", "table", "decode"})


class VerifyOutcome(JobOutcome, kw_only=True):
    """The findings of all shards.

    Attributes:
        findings: of each shard, by number.
        known: unchanged shards that an earlier run had checked.
        unsaid: fact that the index lacks, so that it is not compared -> number of shards.
        keys: keys that several samples have, if requested.
        is_view: the index is a view.

    Example:
        >>> outcome = jobs.verify("train.json")
        >>> len(outcome.findings), outcome.wrong
        (3, [])
    """

    findings: list[Finding] = msgspec.field(default_factory=list)
    known: int = 0
    unsaid: dict[str, int] = msgspec.field(default_factory=dict)
    keys: KeyCensus | None = None
    is_view: bool = False

    @property
    def wrong(self) -> list[Finding]:
        """The findings with problems."""
        return [finding for finding in self.findings if finding.problems]


class KeyCensus:
    """Finds keys that several samples have. Keys are compared by hashes of 64 bits: 12 bytes of memory a sample.

    Args:
        limit: the number of samples whose keys are compared.

    Attributes:
        repeated: samples whose key an earlier sample has. The number does not depend on the order of the shards.
        example: (key, number of the shard, number of the other shard) of the first one; None: all keys are distinct.
        left: samples whose keys are not compared: those above the limit, and those of shards that an earlier run
            checked.
    """

    limit: int
    repeated: int
    left: int

    def __init__(self, limit: int) -> None:
        self.limit, self.repeated, self.left = limit, 0, 0
        self.example: tuple[str, int, int] | None = None
        self._compared = 0
        # Runs (distinct hashes, ascending; the shard of each), each longer than the next.
        self._runs: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]] = []

    def add(self, number: int, keys: Sequence[str]) -> None:
        """Compare the keys of a shard with each other and with those before."""
        if not keys or self._compared + len(keys) > self.limit:
            self.left += len(keys)
            return
        self._compared += len(keys)
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        distinct, firsts = np.unique(hashes, return_index=True)
        owners = np.full(len(distinct), number, np.int32)
        is_new = np.ones(len(distinct), np.bool_)
        for known, numbers in self._runs:
            at = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
            is_there = known[at] == distinct
            owners[is_there], is_new[is_there] = numbers[at][is_there], False
        repeated = len(keys) - int(is_new.sum())
        if repeated and self.example is None:
            is_first = np.zeros(len(keys), np.bool_)
            is_first[firsts[is_new]] = True
            row = int(np.argmin(is_first))
            self.example = keys[row], number, int(owners[np.searchsorted(distinct, hashes[row])])
        self.repeated += repeated
        self._insert(distinct[is_new], owners[is_new])

    def _insert(self, hashes: npt.NDArray[np.int64], owners: npt.NDArray[np.int32]) -> None:
        while self._runs and len(self._runs[-1][0]) <= len(hashes):
            known, numbers = self._runs.pop()
            hashes, owners = np.concatenate([known, hashes]), np.concatenate([numbers, owners])
            order = np.argsort(hashes, kind="stable")
            hashes, owners = hashes[order], owners[order]
        if len(hashes):
            self._runs.append((hashes, owners))


class CheckedShard(msgspec.Struct, kw_only=True, frozen=True):
    """The journal's record of a checked shard.

    Attributes:
        how: the settings, as text.
        shard: its entry in the index.
        finding: of the shard, with its version.
    """

    how: str
    shard: Shard
    finding: Finding


JOURNAL_SUFFIX = ".verifying"


def verify(
    index: Shards,
    settings: VerifySettings = VerifySettings(),  # noqa: B008 - frozen
    *,
    shards: slice = slice(None),
    decode: Decode | None = None,
    max_keys: int = 0,
    journal: str | PathLike[str] | None = None,
    engine: Engine = "auto",
    progress: Progress = None,
) -> VerifyOutcome:
    """Find faults of shards; all shards are checked, even after a faulty one.

    A run that ends early (KeyboardInterrupt, a kill) leaves its journal: the next run checks only the other shards.

    Args:
        index: as the first argument of a dataset: the path or URL of an index, or shards.
        settings: the kinds of checks.
        shards: the chosen shards of the index, as ``slice(0, 10)``.
        decode: decodes each sample, as ``wids.SampleDecoder("PIL")``; None: members are not decoded.
        max_keys: the most keys of samples to compare, 12 bytes of memory for each; 0: keys are not compared.
        journal: its path or URL; None: beside a local index, if its directory is writable.
        engine: runs the tasks: ``"threads"``, ``"processes"``, ``"ray"``, or `RunOptions`. At most ``jobs`` remote
            shards are on the disk at a time.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        The finding of each shard; ``wrong`` and ``failed`` have those with problems.

    Raises:
        InputError: an argument is of another type; names it.
        SelectionError: no such shards exist. FetchError, SpecError: the index cannot be read, or is malformed.
        OutputError: the requested journal cannot be written. CacheError: no space for a remote shard.

    Example:
        >>> outcome = jobs.verify("train.json", decode=wids.SampleDecoder("PIL"))
        >>> outcome.shards, outcome.wrong
        (3, [])
    """
    settings = check_job(settings, VerifySettings, engine, progress)
    check_by("settings: ", lambda: check_grouping(settings.rule, settings.group))
    check_value("max_keys", max_keys, Annotated[int, msgspec.Meta(ge=0)])
    journal = None if journal is None else text_of("journal", journal)
    if decode is not None and not callable(decode):
        raise InputError(f"decode={decode!r}: give a function that decodes a sample, like wids.SampleDecoder, or None")
    given = {"decode": decode is not None, "max_keys": max_keys, "journal": journal is not None}
    if settings.is_quick and (unused := [name for name, is_given in given.items() if is_given]):
        raise InputError(f"{unused[0]} is for checks that read shards, and settings.is_quick reads none; leave one out")
    chosen = load_selected(index, shards, settings.session)
    said = chosen.grouping
    rule, group = settings.rule or said["rule"], settings.group or said["group"]
    settings = msgspec.structs.replace(settings, session=chosen.session, rule=rule, group=group)
    kept: contextlib.AbstractContextManager[JobJournal[CheckedShard] | None] = contextlib.nullcontext()
    if journal is not None:
        kept = contextlib.closing(open_journal(journal, chosen.session))
    elif (place := find_journal(index, settings)) is not None:
        with contextlib.suppress(OutputError):  # another run is writing it
            kept = contextlib.closing(open_journal(place))
    with kept as opened:
        return verify_shards(
            chosen.shards,
            settings,
            decode=decode,
            selection=chosen.selection,
            count=chosen.own_shards,
            max_keys=max_keys,
            engine=engine,
            journal=opened,
            progress=progress,
        )


def find_journal(index: Shards, settings: VerifySettings) -> str | None:
    """The default place of a journal, beside a local index; None: the index is remote, or its directory read-only.

    A quick check tests all shards each time, and has no journal.
    """
    if not isinstance(index, (str, os.PathLike)) or settings.is_quick:
        return None
    place = os.fspath(index)
    if not Place(place).is_local or lists_shards(place):
        return None
    path = Place(place + JOURNAL_SUFFIX).absolute.path
    return path if os.access(os.path.dirname(path), os.W_OK) else None


def open_journal(place: str, session: Session = PLAIN) -> JobJournal[CheckedShard]:
    """Open the journal of a verify; the caller closes it.

    Args:
        place: its path or URL.
        session: opens URLs.

    Raises:
        OutputError: it cannot be written. OutputExistsError: another process is writing it.
    """
    return JobJournal(place, "", CheckedShard, writer="wids verify", target=Target(session))


def verify_shards(
    shards: Sequence[tuple[int, Shard]],
    settings: VerifySettings = VerifySettings(),  # noqa: B008 - frozen
    *,
    decode: Decode | None = None,
    selection: Selection | None = None,
    count: int | None = None,
    max_keys: int = 0,
    engine: Engine = "auto",
    journal: JobJournal[CheckedShard] | None = None,
    progress: Progress = None,
) -> VerifyOutcome:
    """Check all shards.

    Args:
        shards: each with its number in the index.
        settings: the kinds of checks.
        decode: decodes a sample; picklable. Shards are then checked in processes, so that a decoder which crashes is a
            problem of its shard. None: samples are not decoded.
        selection: the samples of a view, to which decoding and the comparison of keys are limited; None: all samples.
        count: number of the index's own shards; those behind them are of companions, whose samples are checked as a
            whole, and have the keys of others. None: all are its own.
        max_keys: the most keys of samples to compare, 12 bytes of memory for each; see `KeyCensus`.
        engine: runs the tasks. At most ``jobs`` remote shards are on the disk at a time.
        journal: records the checked shards for the run after an interrupted one, and is removed when all are checked.
            It tells decoders apart by their names.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Raises:
        CacheError: the disk has no space for a remote shard.
        JobError: no shard can be checked.
    """
    with _Verifying(shards, settings, decode, selection, max_keys, journal, progress, count) as verifying:
        verifying.look(shards, decode, engine)
        if verifying.crashed:  # look for their other faults
            verifying.look([task for task in shards if task[0] in verifying.crashed], None, engine)
        outcome = verifying.outcome
        outcome.findings.sort(key=lambda finding: finding.number)
        outcome.failed = {finding.url: finding.problems[0].what for finding in outcome.wrong}
        if journal is not None:
            with contextlib.suppress(OutputError):  # the findings are still valid
                journal.remove()
    return outcome


class _Verifying(ShardJob[CheckTask, Finding, VerifyOutcome]):
    """Checks shards.

    Attributes:
        crashed: shards whose decoding ended the process, so nothing else is known about them.
    """

    def __init__(
        self,
        shards: Sequence[tuple[int, Shard]],
        settings: VerifySettings,
        decode: Decode | None,
        selection: Selection | None,
        max_keys: int,
        journal: JobJournal[CheckedShard] | None,
        progress: Progress,
        count: int | None,
    ) -> None:
        self._count = sys.maxsize if count is None else count
        # The sizes of the index, so that missing shards count as well.
        sizes = [shard.filesize for _, shard in shards if not settings.is_quick]
        has_sizes = bool(sizes) and None not in sizes
        unit: Literal["bytes", "items"] = "bytes" if has_sizes else "items"
        super().__init__(
            VerifyOutcome(shards=len(shards), is_view=selection is not None), progress, "verifying", unit=unit
        )
        self.progress.total = sum(filter(None, sizes)) if has_sizes else None
        self.outcome.unsaid = _unsaid([shard for _, shard in shards], settings)
        self.crashed = dict[int, Problem]()
        self._settings, self._journal, self._decode = settings, journal, decode
        self.outcome.keys = KeyCensus(max_keys) if max_keys else None
        self._selection, self._chosen = None if decode is None else selection, selection
        decoder = getattr(decode, "__qualname__", type(decode).__qualname__)
        rows = "" if self._selection is None else self._selection.digest
        self._how = repr((_FORMAT, settings.has_digest, *grouping_of(settings).values(), decoder, rows))
        before = [] if journal is None else journal.before
        self._before = {each.shard.url: each for each in before if each.how == self._how}

    def look(self, shards: Sequence[tuple[int, Shard]], decode: Decode | None, engine: Engine) -> None:
        """Check shards. Afterwards, each has a finding or is in ``crashed``."""
        self._decode = decode
        tasks = [self._task(number, shard) for number, shard in shards]
        jobs = DEFAULT_JOBS if decode is None else min(os.cpu_count() or 1, _MAX_PROCESSES)
        options = run_options(engine).resolve("threads" if decode is None else "processes", jobs)
        check = partial(check_shard, settings=self._settings, decode=decode)
        self.run(check, ((task, task) for task in tasks), options)

    def end(self, name: CheckTask, result: TaskResult[Finding]) -> None:
        """Take the finding of a shard, or the error that prevented the check."""
        if isinstance(result.error, CacheError):  # the disk is full, for all shards
            words = f"{result.error} (remote shards are checked in $TMPDIR)"
            raise CacheError(words, **result.error.__dict__) from result.error
        if self._decode is not None and isinstance(result.error, (WorkerError, ClusterError)):
            self.crashed[name.number] = crash_of(result.error)
            self.progress.ended -= 1
        else:
            self.take(name, _finding(name, result, self.crashed.get(name.number)))

    def _task(self, number: int, shard: Shard) -> CheckTask:
        is_companion = number >= self._count
        rows = None if self._selection is None or is_companion else self._selection.rows_of(number)
        has_keys = self.outcome.keys is not None and not is_companion
        if self._journal is None or number in self.crashed:
            return CheckTask(number=number, shard=shard, rows=rows, has_keys=has_keys)
        before = self._before.get(shard.url)
        known = None if before is None or before.shard != shard else before.finding
        known = known and msgspec.structs.replace(known, number=number)
        return CheckTask(number=number, shard=shard, rows=rows, has_version=True, has_keys=has_keys, known=known)

    def take(self, name: CheckTask, found: Finding) -> None:
        """Take the finding of a shard."""
        task, progress = name, self.progress
        finding = self._compare_keys(found)
        self.outcome.findings.append(finding)
        if finding == task.known:
            self.outcome.known += 1
        else:
            progress.bytes += finding.size_bytes or 0
            self._remember(task.shard, finding)
        progress.failed += bool(finding.problems)
        progress.done += task.shard.filesize or 0

    def _compare_keys(self, finding: Finding) -> Finding:
        """Compare the keys of a finding, and return it without them."""
        census, keys = self.outcome.keys, finding.keys
        if census is None or finding.number >= self._count:
            return finding
        if keys is None:
            census.left += finding.nsamples or 0
        else:
            rows = None if self._chosen is None else self._chosen.rows_of(finding.number)
            census.add(finding.number, keys if rows is None else [keys[row] for row in rows if row < len(keys)])
        return msgspec.structs.replace(finding, keys=None)

    def _remember(self, shard: Shard, finding: Finding) -> None:
        is_lasting = _LASTING.issuperset(problem.kind for problem in finding.problems)
        if self._journal is None or finding.version is None or not is_lasting:
            return
        try:
            self._journal.add(CheckedShard(how=self._how, shard=shard, finding=finding))
        except OutputError as error:
            logger.warning("%s; this run continues without it", error)
            self._journal = None


def _finding(task: CheckTask, result: TaskResult[Finding], known: Problem | None) -> Finding:
    if result.error is None:
        finding = result.get()
    else:
        what = f"could not be looked at ({type(result.error).__name__}: {result.error})"
        problem = Problem(kind="error", what=without_secrets(what, task.shard.url), detail=str(result.error))
        finding = Finding(number=task.number, url=task.shard.url, problems=(problem,))
    return finding if known is None else msgspec.structs.replace(finding, problems=(*finding.problems, known))


def _unsaid(shards: Sequence[Shard], settings: VerifySettings) -> dict[str, int]:
    """Fact -> number of shards for which the index lacks it."""
    missing = {"size": sum(shard.filesize is None for shard in shards)}
    if not settings.is_quick:
        missing["number of samples"] = sum(shard.nsamples is None for shard in shards)
        if settings.has_digest:
            missing["checksum"] = sum(not promised(shard) for shard in shards)
    return {what: count for what, count in missing.items() if count}
