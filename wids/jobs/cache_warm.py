"""Downloads many shards into a cache before a job needs them: on this machine, or on each node of a Ray cluster.

Shards are downloaded, checked and given space as for a sampler. A usage hint marks all of these shards as needed, so
that none of them is evicted for another, and no shard that a live job will need. At any end of the job, its downloads
end first and delete their part files.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from wids.core.cache import usage_hints
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.space import table_allowance
from wids.core.files import atomic, system
from wids.core.files.own_folder import default_cache_dir
from wids.core.place import cache_directory
from wids.core.readers.provider import AutoProvider, open_in_place
from wids.core.shard import Shard  # noqa: TC001 - msgspec reads the annotations
from wids.core.tables.table import is_standard
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import PLAIN, Session
from wids.errors import CacheError, CacheFull, InputError, WidsError, without_secrets
from wids.events import Fetched, Hit, Retried
from wids.jobs.arguments import Text, check_job, texts_of
from wids.jobs.job import ShardJob, load_selected
from wids.jobs.outcome import JobOutcome, JobProgress, sum_progress
from wids.jobs.runner import RunOptions, run_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from typing import Any

    from wids.core.cache.located import Located
    from wids.core.collection.shard_collection import Shards
    from wids.events import Event
    from wids.jobs.progress import Progress
    from wids.jobs.ray_cluster import ClusterNode
    from wids.jobs.runner import Engine, TaskContext, TaskResult

# The hint says that these shards are needed in an hour; shards needed within two hours are not evicted for them.
_LATER_SECONDS, _HINT_SECONDS = 3600.0, 600.0
# For so long after the last success, other processes may still release shards.
_FULL_SECONDS, _AGAIN_SECONDS = 3.0, 0.25
DEFAULT_JOBS = 8


class WarmOutcome(JobOutcome, kw_only=True):
    """The results for the shards; each counts once, and on a cluster once for each node.

    Attributes:
        directory: of the cache.
        fetched: downloaded shards.
        fetched_bytes: their bytes.
        cached: shards that were already cached, complete and current, or that other processes downloaded meanwhile.
        in_place: local shards, which are read in place; they exist and have the size that the index has.
        retries: of failed requests.
        node: on a cluster, the address of the node.
        nodes: on a cluster, the results of each node.

    Example:
        >>> outcome = jobs.warm("train.json", jobs.WarmSettings(directory="cache"))
        >>> outcome.shards, outcome.cached, outcome.failed
        (3, 0, {})
    """

    directory: str
    fetched: int = 0
    fetched_bytes: int = 0
    cached: int = 0
    in_place: int = 0
    retries: int = 0
    node: str = ""
    nodes: list[WarmOutcome] = msgspec.field(default_factory=list)


class WarmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The cache that receives the shards.

    Attributes:
        directory: of the cache; None: the default of the machine that downloads.
        cache_size: bytes that it may hold; None: the free disk space is the limit.
        session: opens URLs.

    Example:
        >>> settings = jobs.WarmSettings(directory="cache", cache_size=10**9)
        >>> jobs.warm("train.json", settings, shards=slice(0, 2)).shards
        2
    """

    directory: Text | None = None
    cache_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    session: Session = PLAIN


def warm(
    index: Shards,
    settings: WarmSettings = WarmSettings(),  # noqa: B008 - frozen
    *,
    shards: slice = slice(None),
    excluded: Collection[str] = (),
    engine: Engine = "auto",
    progress: Progress = None,
) -> WarmOutcome:
    """Download the shards of an index into a cache, before a job needs them; cached shards are checked.

    A run that ends early (KeyboardInterrupt, a kill) leaves complete shards; the next run downloads the others.

    Args:
        index: as the first argument of a dataset: the path or URL of an index, or shards.
        settings: of the cache.
        shards: the chosen shards of the index, as ``slice(0, 10)``.
        excluded: nodes of a cluster to leave out: ids, addresses or host names.
        engine: ``"threads"``, ``"ray"`` (each node of the cluster fetches all of them), or `RunOptions`, whose ``jobs``
            are shards at a time; default: 8.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Returns:
        The results for the shards; failed downloads are in ``failed``.

    Raises:
        InputError: an argument is of another type; names it.
        SelectionError: there are no such shards. FetchError, SpecError: the index cannot be read, or is malformed.
        CacheError: the cache cannot be used, or the shards do not fit; ``found`` is then the slice of those that fit.
        ClusterError: no Ray cluster, or no such node, exists.

    Example:
        >>> outcome = jobs.warm("train.json", jobs.WarmSettings(directory="cache"))
        >>> outcome.fetched, outcome.in_place  # local shards are read in place
        (0, 3)
    """
    settings = check_job(settings, WarmSettings, engine, progress)
    excluded = texts_of("excluded", excluded)
    _check_engine(run_options(engine), excluded)
    cache_directory(settings.directory or "")  # before the index is read
    chosen = load_selected(index, shards, settings.session)
    settings = msgspec.structs.replace(settings, session=chosen.session)
    wanted = {shard.url: shard for _, shard in chosen.shards}
    if not is_standard(**chosen.grouping):  # the cache's own tables have the standard one, and other counts
        wanted = {url: msgspec.structs.replace(shard, nsamples=None) for url, shard in wanted.items()}
    try:
        return warm_cache([*wanted.values()], settings, engine=engine, excluded=excluded, progress=progress)
    except CacheError as error:
        if error.hint == "fewer_shards":
            first = chosen.numbers.start
            error.found = slice(first, first + error.found)
        raise


def warm_cache(
    shards: Sequence[Shard],
    settings: WarmSettings = WarmSettings(),  # noqa: B008 - frozen
    *,
    engine: Engine = "auto",
    excluded: Collection[str] = (),
    progress: Progress = None,
) -> WarmOutcome:
    """Download shards into a cache; on Ray, into the cache of each node.

    Args:
        shards: each once.
        settings: of the cache.
        engine: runs the tasks; ``jobs`` are shards at a time, on each node.
        excluded: nodes of a cluster to leave out: ids, addresses or host names.
        progress: called regularly with the progress; "bar": a bar in a terminal or a notebook.

    Raises:
        InputError: the directory is a URL.
        CacheError: the shards do not fit, or the directory cannot be used; on Ray a node's failure is in the outcome.
        ClusterError: no cluster can be reached.
    """
    options = run_options(engine)
    if options.is_ray:
        return _warm_nodes(shards, settings, options, excluded, progress)
    return _warm_here(shards, settings, options.jobs or DEFAULT_JOBS, progress)


def _check_engine(options: RunOptions, excluded: Collection[str]) -> None:
    if excluded and not options.is_ray:
        raise InputError(f"excluded={excluded!r:.200}: names nodes of a Ray cluster, which engine='ray' uses")
    if options.engine == "processes":
        raise InputError("engine='processes': give threads, or ray; shards are downloaded in threads")


def _warm_here(shards: Sequence[Shard], settings: WarmSettings, jobs: int, progress: Progress) -> WarmOutcome:
    with _Warming(shards, settings, progress) as warming:
        warming.check_fits()
        warming.fetch(jobs)
    return warming.outcome


def _warm_node(
    shards: Sequence[Shard], settings: WarmSettings, jobs: int, node: ClusterNode, context: TaskContext
) -> WarmOutcome:
    """In a worker of Ray."""
    return msgspec.structs.replace(_warm_here(shards, settings, jobs, context.report), node=node.address)


def _warm_nodes(
    shards: Sequence[Shard],
    settings: WarmSettings,
    options: RunOptions,
    excluded: Collection[str],
    progress: Progress,
) -> WarmOutcome:
    from wids.jobs.ray_cluster import alive_nodes, connect

    with connect(options.ray_address) as ray, _WarmingNodes(shards, settings, progress) as warming:
        nodes = [(node.node_id, node) for node in alive_nodes(ray, excluded)]
        warming.nodes = dict(nodes)
        warming.parts = {name: JobProgress(shards=len(shards)) for name in warming.nodes}
        work = partial(_warm_node, shards, settings, options.jobs or DEFAULT_JOBS)
        options = msgspec.structs.replace(options, jobs=len(nodes))
        warming.run(work, nodes, options, node_of=lambda node: node.node_id)
    outcome = warming.outcome
    outcome.nodes = [warming.done[name] for name in warming.nodes if name in warming.done]
    for name in ("fetched", "fetched_bytes", "cached", "in_place", "retries"):
        setattr(outcome, name, sum(getattr(one, name) for one in outcome.nodes))
    for one in outcome.nodes:
        outcome.failed |= {f"{one.node} {url}": f"{one.node}: {why}" for url, why in one.failed.items()}
    return outcome


class _WarmingNodes(ShardJob[str, WarmOutcome, WarmOutcome]):
    """Nodes of a cluster that download the same shards; each is named by its id.

    Attributes:
        nodes: all of them.
        parts: the progress of each.
        done: the nodes that succeeded.
    """

    def __init__(self, shards: Sequence[Shard], settings: WarmSettings, progress: Progress) -> None:
        outcome = WarmOutcome(directory=settings.directory or "", shards=len(shards))
        super().__init__(outcome, progress, "fetching", unit="bytes")
        self.nodes: dict[str, ClusterNode] = {}
        self.parts: dict[str, JobProgress] = {}
        self.done: dict[str, WarmOutcome] = {}

    def show(self) -> None:
        """Show the progress of all nodes together."""
        self.progress = sum_progress(self.parts.values())
        super().show()

    def report(self, name: str, *state: Any) -> None:
        """Take the progress of a node."""
        (self.parts[name],) = state

    def end(self, name: str, result: TaskResult[WarmOutcome]) -> None:
        """Record that a node has ended, successfully or not."""
        last = self.parts[name]
        self.parts[name] = msgspec.structs.replace(last, ended=last.shards, total=last.done)
        super().end(name, result)

    def take(self, name: str, found: WarmOutcome) -> None:
        """Keep the results of a node."""
        self.done[name] = found

    def url_of(self, name: str) -> str:
        """The node, for messages."""
        return f"node {self.nodes[name].address} ({name[:8]})"


class _Warming(ShardJob[str, None, WarmOutcome]):
    """Downloads shards into a cache of this machine.

    Attributes:
        missing: the shards whose names are not in the cache.
    """

    def __init__(self, shards: Sequence[Shard], settings: WarmSettings, progress: Progress) -> None:
        self.directory = os.path.abspath(cache_directory(settings.directory or default_cache_dir()))
        self.provider = AutoProvider(
            cache_dir=self.directory,
            cache_size=settings.cache_size,
            session=settings.session.with_hooks([self._count]),
        )
        outcome = WarmOutcome(directory=self.directory, shards=len(shards))
        super().__init__(outcome, progress, "fetching", unit="bytes")
        self._urls = [shard.url for shard in shards]
        located = list(map(self.provider.cache.locate, shards))
        self.cacheable = [each for each in located if not each.is_in_place]
        self._local = [each for each in located if each.is_in_place]
        self.missing = [each.shard for each in self.cacheable if not each.exists()]
        self._known = [shard.filesize for shard in self.missing if shard.filesize is not None]
        self._is_full = False
        self._hint: usage_hints.PlanFile | None = None
        self._succeeded, self._hinted = time.monotonic(), -math.inf
        self._lock = threading.Lock()

    def check_fits(self) -> None:
        """Refuse shards that cannot fit, before any download.

        Raises:
            CacheError: the shards are larger than the limit or the disk space (the first ``found`` shards would
                fit); or the directory cannot be listed.
        """
        sizes = [each.shard.filesize or 0 for each in self.cacheable]
        tables = min((_table_bytes(shard) for shard in self.missing), default=0)  # when the last shard arrives
        limit = self.provider.cache.cache_size
        if limit is not None and sum(sizes) + tables > limit:
            whole = [size + _table_bytes(each.shard) for size, each in zip(sizes, self.cacheable, strict=True)]
            fitting = bisect.bisect_right(list(itertools.accumulate(whole)), limit)
            raise CacheError(
                f"{self.directory}: {len(sizes):,} shard{'s' * (len(sizes) != 1)} of {sum(sizes):,} bytes and their "
                f"member tables do not fit into a cache_size of {limit:,} bytes",
                path=self.directory,
                hint="fewer_shards" if fitting else "cache_size",
                found=fitting,
            )
        if not os.path.isdir(self.directory):
            return
        missing = sum(self._known)
        try:
            used = CacheDirectory(self.directory).inventory().used_bytes
            free, _ = system.free_bytes(self.directory)
        except OSError as error:
            raise _unusable(self.directory, "listed", error) from error
        if missing > free + used:
            raise CacheError(
                f"{missing:,} bytes are to be downloaded, and the disk of {self.directory} has {free:,} free, {used:,} "
                "more if all that is cached there is evicted",
                path=self.directory,
                hint="disk",
            )

    def fetch(self, jobs: int) -> None:
        """Check local shards, and download the others in threads, ``jobs`` at a time."""
        with ThreadPoolExecutor(jobs, "wids-look") as pool:
            for each, error in zip(self._local, pool.map(_find_fault, self._local), strict=True):
                if error is None:
                    self.outcome.in_place += 1
                else:
                    self.outcome.fail(each.url, error)
        if not self.cacheable:
            self.show()
            return
        try:
            atomic.make_directory(self.directory, is_private=self.directory == atomic.private_dir())
        except OSError as error:
            raise _unusable(self.directory, "made", error) from error
        # Cached shards first: they need no space, and a full cache ends the job.
        waiting = sorted(self.cacheable, key=lambda each: not each.exists())
        self._hint = usage_hints.PlanFile(self.directory)
        try:
            self.run(self._bring, self._while_there_is_space(waiting), RunOptions(engine="threads", jobs=jobs))
        finally:
            self._hint.close()
        self.outcome.sort_failed(self._urls)

    def show(self) -> None:
        """Show the progress, and renew the hint that these shards are needed."""
        if time.monotonic() - self._hinted > _HINT_SECONDS and self._hint is not None:
            self._hinted = time.monotonic()
            later = time.time() + _LATER_SECONDS
            self._hint.write({each.name: later for each in self.cacheable})
        self.progress = self._progress()
        super().show()

    def take(self, name: str, found: None) -> None:  # noqa: ARG002 - events count them
        """Record a finished shard."""
        self._succeeded = time.monotonic()

    def fail(self, name: str, error: BaseException) -> None:
        """Record a failed shard."""
        self._is_full = self._is_full or isinstance(error, CacheFull)
        super().fail(name, error)

    def _progress(self) -> JobProgress:
        """The progress; a shard without a size in the index counts as much as any other."""
        outcome, known = self.outcome, self._known
        typical = sum(known) / len(known) if known else outcome.fetched_bytes / max(outcome.fetched, 1)
        arrived = outcome.fetched_bytes + part_bytes(self.directory)
        return JobProgress(
            shards=outcome.shards,
            ended=outcome.fetched + outcome.cached + outcome.in_place + len(outcome.failed),
            failed=len(outcome.failed),
            retries=outcome.retries,
            bytes=arrived,
            total=sum(known) + (len(self.missing) - len(known)) * typical or None,
            done=arrived,
        )

    def _count(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Fetched):
                self.outcome.fetched += 1
                self.outcome.fetched_bytes += event.size_bytes
            elif isinstance(event, Hit):
                self.outcome.cached += 1
            elif isinstance(event, Retried):
                self.outcome.retries += 1

    def _while_there_is_space(self, waiting: Sequence[Located]) -> Iterator[tuple[str, Located]]:
        """The shards to download, until the cache is full: each further one would send a request, wait, and fail."""
        for each in waiting:
            if self._is_full:
                words = f"{each.url}: not tried, because the cache is full"
                self.outcome.failed[each.url] = without_secrets(words, each.url)
            else:
                yield each.url, each

    def _bring(self, located: Located, context: TaskContext) -> None:
        """Bring one shard into the cache; another process may download it."""
        while True:
            after = time.time() + 2 * _LATER_SECONDS
            try:
                if self.provider.cache.download_ahead(located, after=after, is_cancelled=context.is_cancelled):
                    return
                if not self.provider.cache.is_downloading(located):
                    break
            except CacheFull:
                if time.monotonic() - self._succeeded > _FULL_SECONDS:
                    raise
            if context.wait_cancelled(_AGAIN_SECONDS):
                raise CancelledTransferError
        # Opening it marks it as used. If it differs from its table, its md5 decides, and it is downloaded again.
        self.provider.open(located.shard).close()


def _find_fault(local: Located) -> WidsError | None:
    """The error of a local shard that cannot be read in place; None: it can."""
    try:
        open_in_place(local.shard, local.path)[0].close()
    except WidsError as error:
        return error
    return None


def part_bytes(directory: str) -> int:
    """Bytes that this process has downloaded into a cache so far; part files are sparse, so their blocks count."""
    mark = f".{os.getpid()}-"
    count = 0
    with contextlib.suppress(OSError), os.scandir(CacheDirectory(directory).folder) as found:
        for item in found:
            if item.name.endswith(".part") and mark in item.name:
                with contextlib.suppress(OSError):
                    count += getattr(item.stat(), "st_blocks", 0) * 512
    return count


def _table_bytes(shard: Shard) -> int:
    """Bytes kept free for a shard's member table while the shard is fetched."""
    return table_allowance(shard.filesize or 0, shard.nsamples)


def _unusable(directory: str, what: str, error: OSError) -> CacheError:
    return CacheError(
        f"{directory}: cannot be {what} ({error}); choose another directory", path=directory, hint="cache_dir"
    )
