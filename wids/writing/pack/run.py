"""A whole run of packing: listing -> plan -> shards -> index.

Shards of an earlier run are kept if their sources and the shards themselves have not changed. The index is published
after all shards are complete.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from wids.core.order.permutation import PACKING, permutation
from wids.core.place import Place
from wids.core.tables.fields import Alternatives
from wids.core.tables.table import SUFFIX as TABLE_SUFFIX
from wids.errors import InputError, JobError, OutputError, SampleError, WorkerError, shorten
from wids.jobs.job import ShardJob
from wids.jobs.journal import JobJournal
from wids.jobs.outcome import JobOutcome
from wids.jobs.runner import RunOptions, run_options
from wids.writing.output import ShardTarget, index_json, parse_pattern, sweep
from wids.writing.pack.listing import SampleProblem, take
from wids.writing.pack.shard import PackedShard, PackJob, PackSettings, PackTask, cut, number_key, write_shard
from wids.writing.writer import DEFAULT_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine
    from wids.writing.output import ShardPattern
    from wids.writing.pack.listing import SourceListing

_FORMAT = 1  # of shards' bytes; raised when the same inputs give other ones
_MAX_JOBS = 8
_NAMED = 5  # fields in a line
_MEASURED = 1 << 16  # samples whose sizes are looked up together
SUFFIX = ".packing"
_HEADER = b'{"what": "shards that wids pack has finished; run it again to go on"}'


class PackOutcome(JobOutcome, kw_only=True):
    """The result of a run.

    Attributes:
        index: its URL.
        sources: the files that were packed, or the folder.
        form: their kind, as in `PackSource`.
        samples: in the ``shards`` that exist now.
        bytes: of these shards.
        kept: number of shards from an earlier run.
        removed: conflicting shards of an earlier dataset.
        ignored: number of files that are not part of any sample; ``ignored_files``: paths of the first.
        unmatched: number of unwanted samples.
        skipped: samples that were left out, with reasons.
        seed: of the shuffle; None: samples were not shuffled.
        facts: other properties of the dataset, such as its classes.
        notes: oddities, a sentence each.

    Example:
        >>> import os
        >>> settings = jobs.PackSettings(output="packed/train-%06d.tar")
        >>> outcome = jobs.pack("photos", settings, engine=jobs.RunOptions(jobs=1))
        >>> os.path.relpath(outcome.index), outcome.seed, outcome.skipped
        ('packed/train.json', 0, [])
    """

    index: str
    samples: int = 0
    bytes: int = 0
    kept: int = 0
    removed: int = 0
    ignored: int = 0
    unmatched: int = 0
    skipped: list[SampleProblem] = msgspec.field(default_factory=list)
    seed: int | None = None
    ignored_files: list[str] = msgspec.field(default_factory=list)
    facts: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    sources: list[str] = msgspec.field(default_factory=list)
    form: str = ""


class PackWords(NamedTuple):
    """The words of a run.

    Attributes:
        command: that writes, for messages.
        verb: the work, for the bar.
    """

    command: str = "wids pack"
    verb: str = "packing"


class PackPlan(NamedTuple):
    """The samples and shards of a run.

    Attributes:
        items: all samples, in their order.
        cuts: half-open ranges of them, one for each shard.
        sizes: bytes of each sample in an archive, at most; None: shards are not cut by size.
    """

    items: Sequence[Any]
    cuts: list[tuple[int, int]]
    sizes: np.ndarray[Any, np.dtype[np.int64]] | None


def plan_shards(listing: SourceListing, settings: PackSettings) -> PackPlan:
    """Choose and order the samples of a listing, and cut them into shards. Nothing is written.

    Raises:
        WidsError: there are no samples, or the size of one is not known.
    """
    items = _select(listing, settings)
    samples = DEFAULT_SAMPLES if settings.samples is None and settings.size is None else settings.samples
    sizes = None if settings.size is None else _measure(listing, items, settings)
    return PackPlan(items, cut(len(items), samples=samples, sizes=sizes, size=settings.size), sizes)


def _measure(
    listing: SourceListing, items: Sequence[Any], settings: PackSettings
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each sample in an archive; those of a dataset are looked up shard by shard, whatever their order."""
    sizes = np.zeros(len(items), np.int64)
    order = np.argsort(np.asarray(items), kind="stable") if isinstance(items, array) else np.arange(len(items))
    for first in range(0, len(items), _MEASURED):
        positions = order[first : first + _MEASURED]
        keys = [number_key(position) for position in positions.tolist()] if settings.numbers_keys else None
        sizes[positions] = listing.reader.measure_each(listing.dressed(take(items, positions)), keys)
    return sizes


def pack_listing(
    listing: SourceListing,
    settings: PackSettings,
    *,
    engine: Engine = RunOptions(jobs=1),  # noqa: B008 - frozen
    progress: Progress = None,
    replaces_index: bool = False,
    words: PackWords = PackWords(),  # noqa: B008 - frozen
) -> PackOutcome:
    """Pack a listed source.

    Args:
        listing: of the source.
        settings: of the output.
        replaces_index: an existing index may be replaced, at the end; existing shards never are.
        words: of the run.
        engine: runs the tasks: processes, or for one job this thread. ``jobs=None``: one for each CPU, 8 at most.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Raises:
        SpecError: the output is not a pattern. SampleError: a sample cannot be packed, and is not to be skipped.
        OutputError: the output exists or cannot be written; finished shards are kept for the next run.
        WidsError: the source cannot be read.
    """
    pattern = parse_pattern(settings.output)
    _check_apart(listing.places, pattern)
    if listing.problems and not settings.skips_errors:
        raise _of_problems(listing.problems)
    plan = plan_shards(listing, settings)
    target = ShardTarget(settings.session)
    target.make_directory(pattern.index_url)
    journal = JobJournal(pattern.index_url, SUFFIX, PackedShard, writer=words.command, target=target, header=_HEADER)
    try:
        with _Packing(listing, plan, settings, pattern, target, journal, progress, words.verb) as packing:
            if replaces_index:
                if not journal.was_there:
                    target.check_new(pattern)
            elif not packing.is_finished():
                target.check_free(pattern, allows_shards=journal.was_there, overwrite=settings.overwrite)
            journal.begin()
            sweep(pattern)
            packing.write_shards(engine)
            packing.write_index()
            journal.remove()
    except BaseException:
        # Without a journal, a shard that was published and not yet written down would be taken for a stranger's.
        if journal.is_begun and not journal.before and not target.find_shards(pattern):
            journal.remove()
        raise
    finally:
        journal.close()
    return packing.outcome


def _check_apart(places: Sequence[str], pattern: ShardPattern) -> None:
    """Refuse to write into a source folder, or over source shards and a source index."""
    directory, index = _real(pattern.directory), _real(pattern.index_url)
    for place in places:
        own = Place(place)
        is_folder = own.is_local and os.path.isdir(own.absolute.path)
        is_within = is_folder and f"{directory}/".startswith(f"{_real(place)}/")
        is_shard = pattern.number_of(own.name) is not None and _real(str(own.directory)) == directory
        if is_within or is_shard or _real(place) == index:
            raise OutputError(
                f"{pattern.url(0)}: would be written into, or over, the files to be packed ({place}); write elsewhere",
                url=pattern.url(0),
            )


def _real(url: str) -> str:
    place = Place(url)
    if not place.is_local:
        return url
    try:
        return os.path.realpath(place.absolute.path)
    except ValueError:  # no file can have this name, as reading it will say
        return place.absolute.path


def _of_problems(problems: Sequence[SampleProblem]) -> SampleError:
    more = len(problems) - 1
    rest = f" ({more:,} more sample{'' if more == 1 else 's'} cannot be packed)" if more else ""
    is_key = problems[0].why.endswith(("number the keys", "choose another key"))
    return SampleError(f"{problems[0].why}{rest}", hint="number_keys" if is_key else "skip_errors")


def _select(listing: SourceListing, settings: PackSettings) -> Sequence[Any]:
    items = listing.items[settings.selected]
    if not items and not listing.items and listing.problems:
        raise _of_problems(listing.problems)
    if not items:
        raise InputError("there are no samples to pack" + (" in this range" if listing.items else ""))
    if settings.seed is not None:
        items = take(items, permutation(len(items), seed=settings.seed, epoch=0, stream=PACKING))
    return items


class _Packing(ShardJob[PackTask, PackedShard, PackOutcome]):
    """Collects shards into one dataset.

    Attributes:
        done: finished shards, by number.
    """

    def __init__(
        self,
        listing: SourceListing,
        plan: PackPlan,
        settings: PackSettings,
        pattern: ShardPattern,
        target: ShardTarget,
        journal: JobJournal[PackedShard],
        progress: Progress,
        verb: str,
    ) -> None:
        super().__init__(PackOutcome(index=pattern.index_url), progress, verb, is_skipping=False)
        self.listing, self.items, self.settings, self.pattern = listing, plan.items, settings, pattern
        self.target, self.journal = target, journal
        self.before = {packed.k: packed for packed in journal.before}
        self.cuts = plan.cuts
        self.done: dict[int, PackedShard] = {}
        self._counted: dict[int, tuple[int, int]] = {}  # (samples, bytes) of the shards under way

    def is_finished(self) -> bool:
        """True if an earlier run wrote all of these shards and the index, and was killed before it removed its journal.

        The journal of a run that wrote other shards is removed now: it cannot be continued.
        """
        if (
            not self.journal.was_there
            or self.settings.overwrite
            or self.target.describe(self.pattern.index_url) is None
        ):
            return False
        kept = {task.k for task in self.tasks() if self.find_kept(task) is not None}
        is_same = len(kept) == len(self.cuts) and self.target.find_shards(self.pattern).keys() == kept
        if not is_same:
            self.journal.remove()
            self.before.clear()
        return is_same

    def write_shards(self, engine: Engine) -> None:
        """Write all missing shards."""
        self.progress.shards, self.progress.total = len(self.cuts), len(self.items)
        work = partial(write_shard, PackJob(self.listing.reader, self.pattern, self.settings))
        try:
            self.run(work, self.unfinished(), self.choose_engine(run_options(engine)))
        finally:
            sweep(self.pattern)  # part files of processes that were killed
        self.check_inputs()

    def unfinished(self) -> Iterator[tuple[PackTask, PackTask]]:
        """The shards that an earlier run has not finished in their present form."""
        for task in self.tasks():
            kept = self.find_kept(task)
            if kept is None:
                yield task, task
                continue
            self.done[task.k] = kept
            self.outcome.kept += 1
            self.progress.shards -= 1
            self.progress.total = (self.progress.total or 0) - len(task.items)

    def report(self, name: PackTask, *state: Any) -> None:
        """Report the number of samples and bytes written for a shard."""
        before = self._counted.get(name.k, (0, 0))
        self._counted[name.k] = samples, size = state
        self.progress.done += samples - before[0]
        self.progress.bytes += size - before[1]

    def take(self, name: PackTask, found: PackedShard) -> None:
        """Record a finished shard."""
        self.done[name.k] = found
        if not found.skipped:  # what could not be read may be there the next time
            self.journal.add(found)
        self.report(name, len(name.items), (found.entry or {}).get("filesize", 0))
        del self._counted[name.k]

    def fail(self, name: PackTask, error: BaseException) -> None:
        """End the job: a dataset needs all its shards."""
        url = self.url_of(name)
        if isinstance(error, WorkerError):
            raise JobError(
                f"{url}: {error} Run it again, with fewer jobs: finished shards stay",
                url=url,
                hint="jobs",
            ) from error
        super().fail(name, error)

    def url_of(self, name: PackTask) -> str:
        """The URL of a shard."""
        return self.pattern.url(name.k)

    def write_index(self) -> None:
        """Remove older shards, and write the index.

        Raises:
            SampleError: no samples were written. OutputError: it cannot be written.
        """
        shards = [packed for _, packed in sorted(self.done.items())]
        skipped = [problem for packed in shards for problem in packed.skipped]
        entries = [packed.entry for packed in shards if packed.entry is not None]
        if not entries:
            raise _of_problems(skipped)
        outcome, listing = self.outcome, self.listing
        outcome.shards = len(entries)
        outcome.samples, outcome.bytes = (sum(entry[key] for entry in entries) for key in ("nsamples", "filesize"))
        outcome.ignored, outcome.ignored_files = listing.ignored, listing.ignored_files
        outcome.unmatched, outcome.skipped = listing.unmatched, [*listing.problems, *skipped]
        outcome.seed, outcome.facts, outcome.notes = self.settings.seed, list(listing.properties), listing.notes
        if self.settings.seed is not None:
            outcome.facts.append(f"shuffled with seed {self.settings.seed}")
        self.note_fields(outcome, shards)
        if count := sum(packed.no_pictures for packed in shards):
            first = next(packed.no_picture for packed in shards if packed.no_pictures)
            words = "picture is a web page or JSON" if count == 1 else "pictures are web pages or JSON"
            note = f"{count:,} {words} by the first bytes, as {shorten(first)}; `wids verify --decode` names all"
            outcome.notes = [*outcome.notes, note]
        if self.settings.overwrite or self.journal.was_there:
            there = frozenset(packed.k for packed in shards if packed.entry is not None)
            outcome.removed = self.target.remove_others(self.pattern, there)
        name = self.pattern.name if self.settings.name is None else self.settings.name
        text = index_json(entries, name=name, info=self.listing.info, keys=self.listing.keys)
        self.target.put_bytes(text.encode(), self.pattern.index_url)

    def note_fields(self, outcome: PackOutcome, shards: Sequence[PackedShard]) -> None:
        """Note fields that only some samples have, and requested fields that none has."""
        if any(packed.fields is None for packed in shards):  # of a run before there were such counts
            return
        counts: dict[str, int] = {}
        for packed in shards:
            for extension, count in (packed.fields or {}).items():
                counts[extension] = counts.get(extension, 0) + count
        few = [(extension, count) for extension, count in sorted(counts.items()) if count < outcome.samples]
        if few:
            listed = ", ".join(f"{shorten(extension)} in {count:,}" for extension, count in few[:_NAMED])
            rest = f", and {len(few) - _NAMED:,} more such fields" if len(few) > _NAMED else ""
            outcome.facts = [*outcome.facts, f"not all samples have all fields: {listed}{rest}"]
        there = {extension.casefold() for extension in counts}
        kept = self.listing.keep_fields or ()
        groups = kept.groups if isinstance(kept, Alternatives) else [(extension,) for extension in kept]
        for group in sorted(set(groups)):
            if there.isdisjoint(map(str.casefold, group)):
                named = " or ".join(map(shorten, group))
                outcome.notes = [*outcome.notes, f"no sample has the field {named} that is to be kept"]

    def choose_engine(self, options: RunOptions) -> RunOptions:
        """The engine that runs it: a remote place that is this process's own memory is written by this process."""
        if Place(self.pattern.url(0)).scheme == "memory":
            return RunOptions().resolve("here", 1)
        chosen = options.resolve("processes", min(os.cpu_count() or 1, _MAX_JOBS))
        jobs = min(chosen.jobs or 1, len(self.cuts))
        engine = "here" if options.is_automatic and jobs == 1 else chosen.engine
        return msgspec.structs.replace(chosen, jobs=jobs, engine=engine)

    def tasks(self) -> Iterator[PackTask]:
        """Tasks for all shards, from the current sources."""
        for k, (first, last) in enumerate(self.cuts):
            own = self.listing.dressed(self.items[first:last])
            yield PackTask(k=k, first=first, items=own, inputs=self.inputs(own, first))

    def inputs(self, own: Sequence[Any], first: int) -> str:
        """A digest of all current inputs of a shard; ``first``: the position of its first sample."""
        settings = self.settings
        how = (_FORMAT, settings.md5, settings.tables, settings.numbers_keys)
        parts = (how, first if settings.numbers_keys else 0, self.listing.reader.identify(own))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def check_inputs(self) -> None:
        """Refuse a source that was replaced meanwhile: samples could be missing or packed twice.

        Raises:
            InputError: the source was replaced.
        """
        for task in self.tasks():
            if task.inputs != self.done[task.k].inputs:
                url = self.pattern.url(task.k)
                raise InputError(
                    f"{url}: what it is made from was written to in the meantime; run it again, which keeps the shards "
                    "whose sources stayed as they were",
                    url=url,
                )

    def find_kept(self, task: PackTask) -> PackedShard | None:
        """The shard of an earlier run, if its inputs and the shard have not changed."""
        packed = self.before.get(task.k)
        if packed is None or packed.entry is None or packed.inputs != task.inputs:
            return None
        url = self.pattern.url(packed.k)
        if self.settings.tables and self.target.describe(url + TABLE_SUFFIX) is None:
            return None
        return packed if self.target.describe(url) == (packed.entry["filesize"], packed.mtime_ns) else None
