"""Making the index of many shards: unchanged shards are not read again, a killed run continues where it stopped.

One function for each shard (`wids.jobs.scan`), run by `wids.jobs.runner`. The result depends only on the shards
and their order, not on the engine or the order of completion. The complete index is published in one step.
``INDEX.state`` has a line for each shard of the last run, ``INDEX.journal`` those of a killed run.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, Any

import msgspec

from wids.core.files import atomic
from wids.core.files.replaced import ReplacedFile
from wids.core.index import checksums, writing
from wids.core.index.discovery import look_for_shards, refuse_indexes
from wids.core.index.paths import check_index_replaceable, check_output
from wids.core.index.shardlist import GROUPING_KEYS, parse_grouping, said_grouping
from wids.core.place import Place
from wids.core.tables.member_tables import check_table_replaceable
from wids.core.tables.table import SUFFIX as TABLE_SUFFIX
from wids.core.tables.table import check_grouping, is_standard
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError, JobError, OutputError, ShardNotFoundError, SpecError
from wids.jobs.arguments import Text, check_by, check_job, check_value, text_of, texts_of
from wids.jobs.counts import match_counts
from wids.jobs.job import ShardJob, choose_engine
from wids.jobs.journal import KnownShards, shards_before, unwritten
from wids.jobs.outcome import JobOutcome
from wids.jobs.scan import ScanTask, ShardResult, scan_shard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
    from os import PathLike

    from wids.core.index.discovery import FoundShard, Sources
    from wids.core.index.earlier import EarlierIndex
    from wids.jobs.progress import Progress
    from wids.jobs.runner import Engine, RunOptions

# Processes take half a second to start; in that time, threads read the headers of shards of about so many bytes.
_PROCESSES_PAY_BYTES = 16 << 30
_MAX_NAME_BYTES = 200


class IndexSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Settings of indexing.

    Attributes:
        has_md5: store an md5 and a CRC-32 of each shard.
        checksums: store a CRC-32 of each shard; None: of local shards, and of remote ones that are read completely
            anyway; False: of none.
        has_tables: publish their member tables.
        is_skipping: leave out and list shards that cannot be read; otherwise the first one ends the job.
        is_dropping_missing: also leave out shards that do not exist any more, without listing them.
        rule: of the members' keys: ``"first-dot"`` or ``"last-dot"``; kept in the index, for datasets and commands.
            None: as an index that is replaced or updated says, else the first.
        group: of members as samples: ``"adjacent"`` or ``"key"``; likewise.
        counts: places of sample counts, which replace reading the shards; see `wids.jobs.counts`.
        session: opens URLs.

    Example:
        >>> settings = jobs.IndexSettings(has_md5=True)
        >>> outcome = jobs.create_index("train-*.tar", "new.json", settings=settings)
        >>> len(wids.ShardListDataset("new.json").shards[0]["md5sum"])
        32
    """

    has_md5: bool = False
    checksums: bool | None = None
    has_tables: bool = False
    is_skipping: bool = False
    is_dropping_missing: bool = False
    rule: Any = None
    group: Any = None
    counts: tuple[Text, ...] = ()
    session: Session = PLAIN


class IndexOutcome(JobOutcome, kw_only=True):
    """The results for the shards, so far or at the end.

    Attributes:
        output: the index's path.
        samples: of the shards in the index.
        members: of these shards.
        bytes: of these shards.
        surveyed: shards that were read.
        unchanged: shards known from an earlier run.
        counted: shards indexed by their counts, not read.
        counts: file of counts -> number of counts from it.
        unused_counts: shards that these files name and the sources do not.
        added: by an update.
        dropped: by an update, or not named by a new run any more.
        gone: the shards of the earlier index that are not in this one, without those in ``failed`` and those that an
            update was told to drop.
        kept: keys of the earlier index that stay, because wids does not compute them.
        kept_of_shards: likewise, keys of its shards.
        dropped_keys: keys of the earlier index that do not stay.
        requests: number of byte ranges of remote shards.
        read_bytes: their bytes.
        tables: member tables that could not be written beside their shards: place -> path.
        repeated: further name of a file that the index already has -> its first name.
        behind: shard with bytes after its end marker, which are not read -> the offset of these bytes.
        zeros: shard that ends with more zeros than any writer appends -> their number; the samples there were lost.
        empty: shard without a sample -> the number of its files.
        left_files: files of all shards that are part of no sample.
        repeated_keys: samples whose key an earlier sample of their shard has.
        rule: of the members' keys, as the index says.
        group: of members as samples, as the index says.
        merged: shard -> (key, field, field): two fields of one sample that look like two samples, whose names have a
            dot in them; none where a key rule is given.
        apart: shard -> (key, key, number): by the key rule ``"last-dot"``, samples that look like parts of others: the
            keys of the first two, and how many there are.
        alike_keys: samples whose key another one of their shard has in a second Unicode form (NFC, NFD).

    Example:
        >>> outcome = jobs.create_index(["train-000000.tar", "train-000001.tar"], "new.json")
        >>> outcome.shards, outcome.samples, outcome.members
        (2, 8, 16)
    """

    output: str
    samples: int = 0
    members: int = 0
    bytes: int = 0
    surveyed: int = 0
    unchanged: int = 0
    counted: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    unused_counts: list[str] = msgspec.field(default_factory=list)
    added: int = 0
    dropped: int = 0
    gone: list[str] = msgspec.field(default_factory=list)
    kept: list[str] = msgspec.field(default_factory=list)
    kept_of_shards: list[str] = msgspec.field(default_factory=list)
    dropped_keys: list[str] = msgspec.field(default_factory=list)
    requests: int = 0
    read_bytes: int = 0
    tables: dict[str, str] = msgspec.field(default_factory=dict)
    repeated: dict[str, str] = msgspec.field(default_factory=dict)
    behind: dict[str, int] = msgspec.field(default_factory=dict)
    zeros: dict[str, int] = msgspec.field(default_factory=dict)
    empty: dict[str, int] = msgspec.field(default_factory=dict)
    left_files: int = 0
    repeated_keys: int = 0
    alike_keys: int = 0
    rule: str = "first-dot"
    group: str = "adjacent"
    merged: dict[str, tuple[str, str, str]] = msgspec.field(default_factory=dict)
    apart: dict[str, tuple[str, str, int]] = msgspec.field(default_factory=dict)


def create_index(
    sources: str | PathLike[str] | Iterable[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    name: str | None = None,
    info: str | None = None,
    base: str | PathLike[str] | None = None,
    default_name: str | None = None,
    overwrite: bool = False,
    settings: IndexSettings = IndexSettings(),  # noqa: B008 - frozen
    engine: Engine = "auto",
    progress: Progress = None,
) -> IndexOutcome:
    """Write the index of the shards that ``sources`` name.

    An earlier index of these shards at the output is replaced. Of it, keys that wids does not compute stay, those of
    the index and those of shards that are still named, and so do its name and info where none are given.

    A run that ends early (KeyboardInterrupt, a kill) leaves its journal: the next run reads only the other shards.

    Args:
        sources: tars, directories of tars, patterns (``s/*.tar``, ``s-{000..009}.tar``) or URLs: one, or several.
        output: path of the index. Beside it is its ``.state``, and until the end of the job its ``.journal``.
        name: of the dataset. "": none.
        info: a description of the dataset.
        base: of relative URLs: a directory or URL, itself relative to the index's directory. "": none.
        default_name: the name, where neither ``name`` nor the earlier index says one.
        overwrite: also replace a file that is no index, a view, or an index of other shards.
        settings: of the job.
        engine: runs the tasks: ``"threads"``, ``"processes"``, ``"ray"``, or `RunOptions`; by default threads, and
            processes where there is much to do for the processor.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        Counts, and in ``failed`` the shards that were left out (URL -> reason).

    Raises:
        InputError: an argument is of another type, or the sources name no shards.
        OutputError: the output cannot be written. OutputExistsError: a file exists that must not be replaced.
        WidsError: a shard cannot be read, and failures are not skipped.

    Example:
        >>> outcome = jobs.create_index("train-*.tar", "new.json", name="train")
        >>> outcome.shards, outcome.samples, outcome.failed
        (3, 12, {})
    """
    settings = check_job(settings, IndexSettings, engine, progress)
    check_counts(settings)
    check_index_grouping(settings)
    output, named_by = check_output(text_of("output", output)), texts_of("sources", sources)
    base = base if base in (None, "") else text_of("base", base)
    for parameter, text in {"name": name, "info": info, "default_name": default_name}.items():
        check_value(parameter, text, str | None)
    check_value("overwrite", overwrite, bool)
    named = look_for_shards(named_by, session=settings.session)
    refuse_indexes(named, is_skipping=settings.is_skipping)
    found = list(named.shards.values())
    if not (found or named.failed):
        raise InputError(f"sources={sources!r:.200}: no shards to index; give tars, directories, patterns or URLs")
    check_earlier = _check_of(output, [shard.url for shard in found], base=base, overwrite=overwrite)
    before = _grouping_of(check_earlier())
    settings, grouping = choose_grouping(settings, before)
    with Indexing(output, settings, engine, progress) as indexing:
        indexing.note(named)
        indexing.has_rule = "key_rule" in grouping
        scanned = indexing.scan(found)
        file = ReplacedFile(output)
        earlier = check_earlier(inputs=((source, "one of the files of counts") for source in indexing.outcome.counts))
        if _grouping_of(earlier) != before:
            words = "another program has written it meanwhile, with other rules for samples; run it again"
            raise OutputError(f"{output}: {words}", path=output)
        said = earlier.keys.get("name") if name is None else name
        named_now = said if isinstance(said, str) else default_name
        head = writing.make_head(name=named_now or None, info=info, base=base or None)
        index = indexing.compose({**head, **grouping}, scanned, earlier, base)
        indexing.outcome.kept += ["name"] * (name is None and named_now != default_name)
        indexing.publish(index, scanned, file)
    return indexing.outcome


def _check_of(output: str, urls: list[str], *, base: str | None, overwrite: bool) -> Callable[..., EarlierIndex]:
    """A function that checks that an index of these shards may replace the output, before the work and after it.

    Raises:
        SpecError: no index with this base can name them.
    """
    home = os.path.dirname(output)
    root = Place(home).join(base or "")
    shards = [*urls, *(str(root.join(name)) for name in writing.place_entries(urls, home=home, base=base))]

    def is_later(earlier: EarlierIndex) -> bool:
        return bool(earlier.find(urls)) and not shards_before(output).isdisjoint(urls)

    return functools.partial(check_index_replaceable, output, shards=shards, is_later=is_later, overwrite=overwrite)


def choose_grouping(settings: IndexSettings, before: Mapping[str, Any]) -> tuple[IndexSettings, dict[str, str]]:
    """The settings with rule and group, and the keys of the index that say them.

    Args:
        settings: of the caller.
        before: top-level keys of the index that is replaced or updated.

    Raises:
        InputError: a member table would hold another grouping than saved ones do.
    """
    keys = said_grouping({key: getattr(settings, name) or before.get(key) for name, key in GROUPING_KEYS.items()})
    found = parse_grouping(keys)
    if settings.has_tables and not is_standard(**found):
        raise InputError(
            f"settings: rule={found['rule']!r}, group={found['group']!r}: saved member tables hold the standard "
            "grouping alone, so that readers of this index would not use them; leave them out"
        )
    return msgspec.structs.replace(settings, **found), keys


def _grouping_of(earlier: EarlierIndex) -> dict[str, Any]:
    """The keys by which an index says how members become samples; {}: none does."""
    try:
        return said_grouping(earlier.keys)
    except SpecError:  # another program's
        return {}


def check_index_grouping(settings: IndexSettings) -> None:
    """Check that an index can keep rule and group.

    Raises:
        InputError: one is none, or a function.
    """
    if callable(settings.rule):
        raise InputError(
            f"settings: rule={settings.rule!r:.200}: an index cannot keep a function; give 'first-dot' or 'last-dot', "
            "or list the shards with your own counts, (url, nsamples), and pass key_rule= to the dataset"
        )
    check_by("settings: ", lambda: check_grouping(settings.rule, settings.group))


def check_counts(settings: IndexSettings) -> None:
    """Check that no settings need the content of shards that ``counts`` leaves unread.

    Raises:
        InputError: some do.
    """
    if settings.counts and (settings.has_md5 or settings.has_tables or settings.checksums):
        raise InputError(
            f"settings: counts={settings.counts!r:.200}: shards that have counts are not read, and checksums and "
            "member tables are made by reading them; ask for one of these"
        )


class Indexing(ShardJob[str, ShardResult, IndexOutcome]):
    """Collects shards into one index. The next run does not read unchanged shards again.

    Attributes:
        summed: remote shards that also need a CRC-32.
        listed: shards of the existing index.
        has_rule: a key rule was given, now or before.
    """

    def __init__(self, output: str, settings: IndexSettings, engine: Engine, progress: Progress) -> None:
        verb = "summing" if settings.has_md5 else "indexing"
        super().__init__(IndexOutcome(output=output), progress, verb, is_skipping=settings.is_skipping)
        self._output, self._settings, self._engine = output, settings, engine
        self._done: dict[str, ShardResult] = {}
        self._table_names: dict[str, str] = {}
        self.summed: Container[str] = ()
        self.has_rule = False
        self.listed: Container[str] = ()
        self._known_shards = KnownShards(output, ShardResult, writer="wids index", is_current=lambda _: True)
        self.close_at_end(self._known_shards.close)

    def note(self, named: Sources) -> None:
        """Record sources that are left out.

        Raises:
            FetchDeniedError: a directory cannot be read, and failures are not skipped.
        """
        self.outcome.repeated = named.repeated
        for place, error in named.failed.items():
            if not self._settings.is_skipping:
                raise error
            self.outcome.fail(place, error)

    def scan(self, found: Sequence[FoundShard]) -> list[ShardResult]:
        """Read the shards; unreadable ones are left out, if the settings say so.

        Raises:
            WidsError: one cannot be read, and failures are not skipped.
            JobError: none can be read.
        """
        self._name_tables(found)
        self.progress.shards = len(found)
        done, tasks = self._done, dict[str, ScanTask]()
        counts = self._read_counts(found)
        for shard in found:
            before = self._known(shard)
            if before is not None and shard.mark and (shard.size, shard.mark) == before.version():
                self.progress.ended += 1
                self.take(shard.url, msgspec.structs.replace(before, is_unchanged=True))
            elif shard.url in counts:
                self._claim(shard, counts[shard.url])
            else:
                tasks[shard.url] = self._task(shard, before)
        self.run(scan_shard, tasks.items(), self._choose_engine(tasks.values(), found))
        places = [shard.url for shard in found]
        outcome = self.outcome
        outcome.sort_failed([*outcome.failed, *places])
        outcome.tables = {place: outcome.tables[place] for place in places if place in outcome.tables}
        if not done:
            first = next(iter(outcome.failed.values()), "they do not exist")
            raise JobError(f"none of {len(found):,} shards can be read; the first: {first}")
        scanned = [done[place] for place in places if place in done]
        outcome.behind = {each.url: each.behind for each in scanned if each.behind is not None}
        outcome.zeros = {each.url: each.zeros for each in scanned if each.zeros}
        outcome.empty = {each.url: each.nleft for each in scanned if not (each.nsamples or each.is_claimed)}
        outcome.left_files = sum(each.nleft for each in scanned)
        outcome.repeated_keys = sum(each.nrepeated for each in scanned)
        outcome.alike_keys = sum(each.nalike for each in scanned)
        outcome.rule, outcome.group = self._settings.rule, self._settings.group
        outcome.apart = {each.url: each.apart for each in scanned if each.apart is not None}
        if not self.has_rule:
            outcome.merged = {each.url: each.merged for each in scanned if each.merged is not None}
        return scanned

    def _read_counts(self, found: Sequence[FoundShard]) -> dict[str, int]:
        settings, outcome = self._settings, self.outcome
        if not settings.counts:
            return {}
        check_counts(settings)
        counts = match_counts(settings.counts, [each.url for each in found], session=settings.session)
        outcome.counts, outcome.unused_counts = counts.sources, counts.unused
        return counts.nsamples

    def _claim(self, shard: FoundShard, nsamples: int) -> None:
        """Add a shard with a claimed count; the next run does not reuse it."""
        self.outcome.counted += 1
        self.progress.ended += 1
        size = shard.size or 0
        self._done[shard.url] = ShardResult(url=shard.url, nsamples=nsamples, filesize=size, is_claimed=True)

    def entry(self, found: ShardResult, place: str) -> dict[str, Any]:
        """The entry of a shard, with ``place`` for its URL."""
        settings, entry = self._settings, {**found.entry(), "url": place}
        if not settings.has_md5:
            entry.pop("md5sum", None)
            if settings.checksums is False:
                entry.pop("crc32", None)
        return entry

    def compose(
        self, head: Mapping[str, Any], scanned: Sequence[ShardResult], earlier: EarlierIndex, base: str | None
    ) -> dict[str, Any]:
        """The index of these shards; notes the keys and shards of its earlier version that stay, and those that go.

        Args:
            head: its own top-level keys.
            scanned: its shards.
            earlier: the earlier version.
            base: see `create_index`.
        """
        outcome = self.outcome
        urls = [each.url for each in scanned]
        carried = earlier.carry_over(urls, others=[*outcome.failed, *outcome.repeated], taken=head)
        places = writing.place_entries(urls, home=os.path.dirname(self._output), base=base)
        entries = [
            {**self.entry(each, place), **carried.shard_keys.get(each.url, {})}
            for each, place in zip(scanned, places, strict=True)
        ]
        outcome.gone, outcome.dropped = carried.gone, len(carried.gone)
        outcome.dropped_keys = ["base"] * bool(earlier.base and base is None)
        outcome.kept = list(carried.keys)
        outcome.kept_of_shards = list(dict.fromkeys(itertools.chain.from_iterable(carried.shard_keys.values())))
        return {**head, **carried.keys, **carried.packs, "shardlist": entries}

    def publish(self, index: dict[str, Any], scanned: Sequence[ShardResult], file: ReplacedFile) -> None:
        """Write the index, and the state for the next run.

        Args:
            index: to write.
            scanned: its shards.
            file: that the index replaces, as it was read.

        Raises:
            OutputError: they cannot be written, or another program has written the file; shards that were read stay
                known.
        """
        try:
            with file.alone():
                atomic.write_atomically(self._output, writing.dump_index(index))
            kept = (each.kept(each.url) for each in scanned if not each.is_claimed)
            self._known_shards.put_state(self._known_shards.format_state(kept))
            self._known_shards.finish()
        except OutputError:
            raise
        except OSError as error:
            raise unwritten(self._output, error) from error
        outcome, entries = self.outcome, index["shardlist"]
        outcome.shards = len(entries)
        outcome.samples, outcome.bytes = (sum(each.get(key, 0) for each in entries) for key in ("nsamples", "filesize"))
        outcome.members = sum(each.nmembers for each in scanned)

    def _known(self, shard: FoundShard) -> ShardResult | None:
        """Its result of an earlier run, if that is complete."""
        known = self._known_shards.records.get(shard.url)
        if known is None or (known.rule, known.group) != (self._settings.rule, self._settings.group):
            return None
        if any(getattr(known, key) is None for key in self._checksums(shard.url)):
            return None
        if not self._settings.has_tables:
            return known
        if not known.has_table:  # an existing table may belong to an earlier shard
            return None
        place = Place(shard.url)
        places = (self._table_names[shard.url], place.path + TABLE_SUFFIX)
        if place.is_local and not any(map(os.path.exists, places)):
            return None
        return known

    def _checksums(self, url: str) -> tuple[str, ...]:
        """The checksums to compute for a shard."""
        settings = self._settings
        if settings.has_md5:
            return checksums.KEYS
        is_wanted = Place(url).is_local or url in self.summed if settings.checksums is None else settings.checksums
        return ("crc32",) if is_wanted else ()

    def _task(self, shard: FoundShard, known: ShardResult | None) -> ScanTask:
        settings = self._settings
        return ScanTask(
            url=shard.url,
            known=None if Place(shard.url).is_local else known,
            checksums=self._checksums(shard.url),
            has_table=settings.has_tables,
            keeps_sum=settings.checksums is None,
            rule=settings.rule,
            group=settings.group,
            session=settings.session,
        )

    def take(self, name: str, found: ShardResult) -> None:
        """Keep the result of a shard, for this index and the next run."""
        outcome, progress = self.outcome, self.progress
        if found.unpublished is not None:
            self._keep_table(found)
        if not found.is_unchanged:
            self._known_shards.add(found.kept(found.url))
        outcome.unchanged += found.is_unchanged
        outcome.surveyed += not found.is_unchanged
        outcome.requests += found.requests
        outcome.read_bytes += found.read_bytes
        progress.bytes += found.filesize
        self._done[name] = found

    def fail(self, name: str, error: BaseException) -> None:
        """Note a failure, as all jobs do; an update may leave out a missing shard."""
        is_gone = name in self.listed and isinstance(error, ShardNotFoundError)
        if not (is_gone and self._settings.is_dropping_missing):
            super().fail(name, error)

    def _name_tables(self, found: Sequence[FoundShard]) -> None:
        """Name places beside the index for member tables that cannot be written beside their shards."""
        home, taken = os.path.dirname(self._output), set()
        for shard in found:
            place = Place(shard.url)
            name = place.name
            # A name of 230 bytes leaves no room for the endings of a table and of its part file.
            if name in taken or len(name.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES:
                name = place.cache_name()
            taken.add(name)
            self._table_names[shard.url] = os.path.join(home, name + TABLE_SUFFIX)

    def _keep_table(self, result: ShardResult) -> None:
        """Put a member table beside the index."""
        path = self._table_names[result.url]
        check_table_replaceable(path)
        atomic.write_atomically(path, result.unpublished or b"")
        result.unpublished, result.has_table = None, True
        self.outcome.tables[result.url] = path

    def _choose_engine(self, tasks: Collection[ScanTask], found: Sequence[FoundShard]) -> RunOptions:
        size, is_summed = sum(shard.size or 0 for shard in found), any(task.checksums for task in tasks)
        return choose_engine(
            self._engine,
            is_remote=any(not Place(task.url).is_local for task in tasks),
            pays=not is_summed and size > _PROCESSES_PAY_BYTES and len(tasks) > 1,
        )
