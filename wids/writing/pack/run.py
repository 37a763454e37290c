"""A whole run: listing -> plan -> shards -> index.

Rules: shards that an earlier run finished are kept when all that they are made from is the same, and they are as they
were left. The index appears when all shards are whole, and not before.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import WidsError
from wids.index import urls
from wids.index.pattern import index_json, parse_pattern
from wids.index.table import SUFFIX
from wids.order.permutation import permutation
from wids.osfiles import tempdirs
from wids.transport.upload import Target, local_path, sweep
from wids.writing.pack.journal import Journal
from wids.writing.pack.listing import Problem  # noqa: TC001 - msgspec reads the annotations
from wids.writing.pack.plan import Task, cut, number_key
from wids.writing.pack.shard import Done, Job
from wids.writing.pack.workers import write_shards
from wids.writing.writer import DEFAULT_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wids.index.pattern import ShardPattern
    from wids.writing.pack.listing import Listing

_STREAM = 4  # of permutations; 1 to 3 are those of `wids.order.permutation`
_FORMAT = 1  # of shards' bytes; raised when the same inputs give other ones


class Outcome(msgspec.Struct, kw_only=True):
    """What a run did.

    Attributes:
        index: its URL.
        shards, samples, bytes: what is there now.
        kept: of the shards, those that an earlier run had finished.
        removed: shards of an earlier dataset that were in the way.
        ignored: files that are no part of any sample.
        unmatched: samples that were not wanted.
        skipped: samples that were left out, and why.
        seconds: that it took.
    """

    index: str
    shards: int = 0
    samples: int = 0
    bytes: int = 0
    kept: int = 0
    removed: int = 0
    ignored: int = 0
    unmatched: int = 0
    skipped: list[Problem] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to pack.

    Attributes:
        output: the pattern, ``out/train-%06d.tar``.
        samples, size: bounds of a shard, as for `wids.writing.writer.ShardWriter`.
        selected: which samples of the listing.
        seed: shuffle with it; None: the listing's order.
        numbers_keys: call samples by their number.
        skips_errors: leave out what cannot be read.
        jobs: processes.
        md5, tables, name, overwrite, storage_options: as for `wids.writing.writer.ShardWriter`.
    """

    output: str
    samples: int | None = None
    size: int | None = None
    selected: slice = slice(None)
    seed: int | None = None
    numbers_keys: bool = False
    skips_errors: bool = False
    jobs: int = 1
    md5: bool = True
    tables: bool = True
    name: str | None = None
    overwrite: bool = False
    storage_options: dict[str, Any] | None = None


class Progress(msgspec.Struct):
    """How far a run is: samples and bytes that were written, of so many samples."""

    total: int = 0
    samples: int = 0
    bytes: int = 0


def pack(listing: Listing, settings: Settings, show: Callable[[Progress], None] = lambda _: None) -> Outcome:
    """Pack a source; ``show`` is called now and then.

    Raises:
        SpecError: the output is no pattern. SampleError: a sample cannot be packed, and is not to be skipped.
        WidsError: the output is taken or cannot be written; what was finished is kept for the next run.
    """
    start = time.monotonic()
    pattern = parse_pattern(settings.output)
    _check_apart(listing.places, pattern)
    if listing.problems and not settings.skips_errors:
        raise _of_problems(listing.problems)
    items = _select(listing, settings)
    target = Target(settings.storage_options)
    target.make_directory(pattern.index_url)
    journal = Journal(target, pattern.index_url)
    try:
        if not _Run(listing, settings, pattern, target, journal).is_finished(items):
            target.check_free(pattern, allows_shards=journal.was_there, overwrite=settings.overwrite)
        journal.begin()
        sweep(pattern)
        outcome = _Run(listing, settings, pattern, target, journal).write(items, show)
        outcome.skipped = [*listing.problems, *outcome.skipped]
        outcome.ignored, outcome.unmatched = listing.ignored, listing.unmatched
        journal.remove()
    except BaseException:
        # Without a journal, a shard that was published and not yet written down would be taken for a stranger's.
        if journal.is_begun and not journal.before and not target.find_shards(pattern):
            journal.remove()
        raise
    finally:
        journal.close()
    outcome.seconds = time.monotonic() - start
    return outcome


def _check_apart(places: Sequence[str], pattern: ShardPattern) -> None:
    """Refuse to write into a folder that is packed, or over shards and an index that are."""
    directory, index = _real(pattern.directory), _real(pattern.index_url)
    for place in places:
        is_folder = urls.is_local(place) and os.path.isdir(local_path(place))
        is_within = is_folder and f"{directory}/".startswith(f"{_real(place)}/")
        is_shard = (
            pattern.number_of(urls.basename_of(place)) is not None and _real(urls.directory_of(place)) == directory
        )
        if is_within or is_shard or _real(place) == index:
            raise WidsError(
                f"{pattern.url(0)}: would be written into, or over, what is to be packed ({place}); write elsewhere"
            )


def _real(url: str) -> str:
    if not urls.is_local(url):
        return url
    try:
        return os.path.realpath(local_path(url))
    except ValueError:  # no file can have this name; whoever reads it says so
        return local_path(url)


def _of_problems(problems: Sequence[Problem]) -> WidsError:
    rest = f" ({len(problems) - 1:,} more samples cannot be packed)" if len(problems) > 1 else ""
    return WidsError(f"{problems[0].why}{rest}; --skip-errors leaves out what cannot be packed")


def _select(listing: Listing, settings: Settings) -> Sequence[Any]:
    items = listing.items[settings.selected]
    if not items:
        raise WidsError("there are no samples to pack" + (" in this range" if listing.items else ""))
    if settings.seed is not None:
        order = permutation(len(items), seed=settings.seed, epoch=0, stream=_STREAM)
        items = [items[k] for k in order.tolist()]
    return items


class _Run:
    """One run.

    Attributes:
        done: shards that are there, by number. kept: of them, those of an earlier run. progress: of the others.
    """

    def __init__(
        self, listing: Listing, settings: Settings, pattern: ShardPattern, target: Target, journal: Journal
    ) -> None:
        self.listing, self.settings, self.pattern = listing, settings, pattern
        self.target, self.journal = target, journal
        self.done: dict[int, Done] = {}
        self.kept = 0
        self.progress = Progress()

    def is_finished(self, items: Sequence[Any]) -> bool:
        """Whether an earlier run wrote all of these shards and the index, and was killed before its journal went.

        The journal of one that wrote others goes now: there is nothing to go on with.
        """
        if (
            not self.journal.was_there
            or self.settings.overwrite
            or self.target.describe(self.pattern.index_url) is None
        ):
            return False
        has_all = next(self.tasks(items, self.cut(items)), None) is None
        is_same = has_all and self.target.find_shards(self.pattern).keys() == self.done.keys()
        if not is_same:
            self.journal.remove()
        return is_same

    def write(self, items: Sequence[Any], show: Callable[[Progress], None]) -> Outcome:
        """Write all shards that are not there yet, remove what is in the way, and write the index."""
        self.progress.total = len(items)

        def tell(samples: int, size: int) -> None:
            self.progress.samples += samples
            self.progress.bytes += size
            show(self.progress)

        show(self.progress)
        cuts = self.cut(items)
        jobs = min(self.settings.jobs, len(cuts))
        if urls.scheme_of(self.pattern.url(0)) == "memory":
            jobs = 1  # it is this process's own
        with (
            self.job() as job,
            contextlib.closing(write_shards(job, self.tasks(items, cuts), jobs=jobs, tell=tell)) as written,
        ):
            for done in written:
                self.done[done.k] = done
                if not done.skipped:  # what could not be read may be there the next time
                    self.journal.add(done)
        self.check_inputs(items, cuts)
        shards = [done for _, done in sorted(self.done.items())]
        skipped = [problem for done in shards for problem in done.skipped]
        entries = [done.entry for done in shards if done.entry is not None]
        if not entries:
            raise _of_problems(skipped)
        outcome = Outcome(index=self.pattern.index_url, skipped=skipped, shards=len(entries), kept=self.kept)
        outcome.samples = sum(entry["nsamples"] for entry in entries)
        outcome.bytes = sum(entry["filesize"] for entry in entries)
        if self.settings.overwrite or self.journal.was_there:
            there = frozenset(done.k for done in shards if done.entry is not None)
            outcome.removed = self.target.remove_others(self.pattern, there)
        name = self.pattern.name if self.settings.name is None else self.settings.name
        text = index_json(entries, name=name, info=self.listing.info)
        self.target.put_bytes(text.encode(), self.pattern.index_url)
        return outcome

    def cut(self, items: Sequence[Any]) -> list[tuple[int, int]]:
        """Ranges of ``items``, one for each shard."""
        settings = self.settings
        samples = DEFAULT_SAMPLES if settings.samples is None and settings.size is None else settings.samples
        return cut(len(items), samples=samples, sizes=self.sizes(items), size=settings.size)

    def sizes(self, items: Sequence[Any]) -> Iterator[int]:
        """What each sample takes in an archive; asked for only where shards are cut by size."""
        for position, item in enumerate(items):
            key = number_key(position) if self.settings.numbers_keys else None
            yield self.listing.reader.measure(item, key)

    def tasks(self, items: Sequence[Any], cuts: list[tuple[int, int]]) -> Iterator[Task]:
        """The shards that are still to be written."""
        for k, (first, last) in enumerate(cuts):
            own = items[first:last]
            inputs = self.inputs(own, first)
            before = self.journal.before.get(k)
            if before is not None and before.inputs == inputs and self.is_there(before):
                self.done[k] = before
                self.kept += 1
                self.progress.total -= len(own)
            else:
                yield Task(k=k, first=first, items=own, inputs=inputs)

    def inputs(self, own: Sequence[Any], first: int) -> str:
        """A digest of all that a shard's bytes depend on, as it is now; ``first``: the position of its first sample."""
        settings = self.settings
        how = (_FORMAT, settings.md5, settings.tables, settings.numbers_keys)
        facts = (how, first if settings.numbers_keys else 0, self.listing.reader.identify(own))
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def check_inputs(self, items: Sequence[Any], cuts: list[tuple[int, int]]) -> None:
        """Raise WidsError if a source was replaced meanwhile: some samples could be there twice, or not at all."""
        for k, (first, last) in enumerate(cuts):
            if self.inputs(items[first:last], first) != self.done[k].inputs:
                raise WidsError(
                    f"{self.pattern.url(k)}: what it is made from was written to in the meantime; run it again, which "
                    "keeps the shards whose sources stayed as they were"
                )

    def is_there(self, done: Done) -> bool:
        """Whether a shard of an earlier run is as that left it."""
        if done.entry is None:
            return False
        url = self.pattern.url(done.k)
        if self.settings.tables and self.target.describe(url + SUFFIX) is None:
            return False
        found = self.target.describe(url)
        return found == (done.entry["filesize"], done.mtime_ns)

    @contextlib.contextmanager
    def job(self) -> Iterator[Job]:
        """What the processes are told; for a remote place, with a directory for shards under way."""
        settings = self.settings
        with contextlib.ExitStack() as stack:
            directory = None
            if not urls.is_local(self.pattern.url(0)):
                directory = stack.enter_context(tempdirs.directory("pack"))
            yield Job(
                reader=self.listing.reader,
                pattern=self.pattern,
                directory=directory,
                numbers_keys=settings.numbers_keys,
                skips_errors=settings.skips_errors,
                md5=settings.md5,
                tables=settings.tables,
                storage_options=settings.storage_options,
            )
