"""An index that is looked into: its shards, where each sample lies, and the shards' member tables.

Rules: nothing is fetched that need not be. A table comes from the shard in place or in the cache, else from the
``.widx`` file beside a remote shard, whose members are then read by byte ranges. Only a shard without one is read as a
whole, headers or all, and a second one only with leave.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from wids.core.collection.arguments import OpeningOptions, parse_cache
from wids.core.collection.joined_fields import Owners, Wishes
from wids.core.collection.joining import open_listed
from wids.core.collection.shard_collection import ShardCollection, load_shards
from wids.core.files.lazy import Lazy
from wids.core.files.own_folder import default_cache_dir
from wids.core.files.terminal import progress
from wids.core.index.view_file import KEY as COMPANIONS
from wids.core.place import Place, cache_directory
from wids.core.readers.provider import AutoProvider
from wids.core.tables.fields import EMPTY
from wids.core.tables.published_tables import PublishedTables
from wids.errors import CountMismatchError, InputError, SelectionError
from wids.jobs.cache_warm import part_bytes
from wids.tools.cli.format import count_of, format_size, printable
from wids.tools.cli.signals import Signals
from wids.tools.key_search import near_keys, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from wids.core.collection.companions import Companion
    from wids.core.index.shardlist import ShardList
    from wids.core.order.layout import SourceSpan
    from wids.core.readers.base import Reader, Sample
    from wids.core.shard import Shard
    from wids.core.tables.table import MemberTable
    from wids.tools.cli.options import BatchOptions, ReadFlags

_UPDATE_SECONDS = 0.2

_SUGGESTIONS = 3
_MAX_MESSAGES = 10
# Fewer shards are searched before a progress bar could be read.
_MIN_SHARDS_FOR_BAR = 50


@contextlib.contextmanager
def download_bar(shard: Shard, directory: str, *, is_shown: bool) -> Iterator[None]:
    """Show how much of a shard is downloaded while the block runs, where stderr is a terminal.

    Args:
        shard: the shard that the block may download.
        directory: the cache directory.
        is_shown: False for no bar, because another one is shown already.
    """
    with progress("bytes", is_shown=is_shown) as bar:
        if not bar.is_shown:
            yield
            return
        is_over = threading.Event()
        words = f"fetching {printable(Place(shard.url).name)}"

        def watch() -> None:
            while not is_over.wait(_UPDATE_SECONDS):
                bar.update(part_bytes(directory), total=shard.filesize, words=words)

        watcher = threading.Thread(target=watch, daemon=True, name="wids-bar")
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


# Otherwise a key: 000123 is one that many datasets have.
_INDEX = re.compile(r"-?(0|[1-9][0-9]*)")


class Listed:
    """The shards of an index.

    Args:
        index: as the dataset takes it, as text.
        flags: where remote shards are kept, and whether more than one may be fetched.

    Attributes:
        name: the index, as given.
        collection: the shards, opened one at a time.
        has_bar: a bar is shown already.
    """

    collection: ShardCollection

    def __init__(self, index: str, flags: ReadFlags) -> None:
        self.name = index
        self._directory = directory = os.path.abspath(cache_directory(flags.cache_dir or default_cache_dir()))
        _, shards, session = load_shards(index, session=flags.session, cache_dir=directory)
        self._provider = AutoProvider(cache_dir=directory, access="auto", session=session, **shards.grouping)
        self._session = flags.session
        self._tables = PublishedTables(cache_dir=directory, session=session)
        self.collection = ShardCollection(shards, self._provider, capacity=1)
        self._fetches_left = len(shards) if flags.may_fetch else 1
        self._begun: set[int] = set()
        self.has_bar = self._is_given_up = self._has_counted = False
        self._last: tuple[int, MemberTable] | None = None
        self._companion_tables: dict[Companion, tuple[int, MemberTable]] = {}

    @property
    def shards(self) -> ShardList:
        """The shard list; -1 samples: not counted yet."""
        return self.collection.shards

    @property
    def ends(self) -> Sequence[int]:
        """End of each shard's samples; shards without a count in the index are counted first.

        Raises:
            SpecError: such a shard is the output of a program. FetchError, ShardError: it cannot be read.
        """
        if not self._has_counted:
            self.count()
        return self.collection.ends

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def count(self, *, may_fetch: bool = True) -> None:
        """Count the samples of shards of which no index says; see `ends`.

        Args:
            may_fetch: also the one that is remote, if it is alone.
        """
        is_alone = len(self.shards.unknown_counts()) == 1
        open_remote = self.open if may_fetch and is_alone else None
        self.collection.count_unknown(open_remote=open_remote, has_sizes=True)
        self._has_counted = True

    def counted(self) -> ShardList:
        """The shard list, in which each shard has a count; see `ends`."""
        _ = self.ends
        return self.shards

    def mixed_parts(self) -> list[SourceSpan] | None:
        """The sub-datasets as the sources of a mixture; None: the index has no weights for them.

        Raises:
            SpecError: the weights are bad.
        """
        self.ends  # noqa: B018 - counts
        return self.collection.mixed_parts()

    def reader_of(self, batches: BatchOptions) -> Callable[[str], Any]:
        """A function that reads a column."""
        return batches.reader_of(self.name, self.collection, self._directory)

    def start_of(self, k: int) -> int:
        """The index of the first sample of shard ``k``."""
        ends = self.ends
        return ends[k - 1] if k else 0

    def locate(self, index: int) -> tuple[int, int]:
        """(number of the shard, row in it) of a sample, 0 <= index < len."""
        self.ends  # noqa: B018 - counts
        return self.collection.locate(index)

    def place(self, index: int) -> dict[str, Any]:
        """Place of a sample, for a program."""
        k, row = self.locate(index)
        return {"index": index, "shard": k, "row": row, "url": self.shards.urls[k]}

    def check_shard(self, k: int) -> int:
        """The number of a shard, -1 being the last one.

        Raises:
            SelectionError: there is no such shard.
        """
        count = len(self.shards)
        if not -count <= k < count:
            raise SelectionError(
                f"{self.name}: there is no shard {k}; shards are 0 to {count - 1} (-1 is the last one)"
            )
        return k % count

    def check_index(self, index: int, *, is_written: bool = False) -> int:
        """An index, -1 being the last one, counted from 0.

        Args:
            index: which.
            is_written: it was written where a key may stand, too.

        Raises:
            SelectionError: there is no such sample.
        """
        n = len(self)
        if not -n <= index < n:
            right = f"indices are 0 to {n - 1} (-1 is the last one)" if n else "the dataset has none"
            hint = f"; for the key {str(index)!r} add --key" if is_written else ""
            raise SelectionError(f"{self.name}: there is no sample {index}; {right}{hint}")
        return index % n

    def resolve(self, samples: Sequence[str], *, is_key: bool, is_first: bool) -> list[list[int]]:
        """The indices of each sample that is named by its index or its key.

        Args:
            samples: as they were written.
            is_key: they are keys, even if they look like numbers.
            is_first: the first sample with a key will do.

        Raises:
            SelectionError: there is no such index or key; says what there is.
        """
        numbers = {text: int(text) for text in samples if not is_key and _INDEX.fullmatch(text)}
        found = {text: [self.check_index(index, is_written=True)] for text, index in numbers.items()}
        keys = [text for text in samples if text not in numbers]
        if keys:
            search = Search(self, keys, is_first=is_first)
            search.run()
            search.check()
            found |= search.found
        return [found[text] for text in samples]

    # --- fields of companions

    @Lazy
    def owners(self) -> Owners:
        """The places of fields: the index's shards, or its companions."""
        options = OpeningOptions(
            cache=parse_cache(
                cache_dir=self._directory, localname=None, cache_size=None, keep=False, cache_local=False
            ),
            reading={"access": "auto", "early_reads": True, "use_mmap": False},
            indexing={"base": None, "options": None, "session": self._session, "allow_local": False},
            hooks=(),
            capacity=1,
            on_count_mismatch="error",
            is_prefetching=bool,
        )
        return Owners(open_listed(self.collection, options, None, f"{self.name}: "), self.collection)

    def add_companions(self, members: Sample, index: int) -> None:
        """Add the members that companions have of a sample to those that its shard has.

        Raises:
            WidsError: they cannot be read.
        """
        if self.shards.header.get(COMPANIONS):
            place = {"__index__": index, "__shardindex__": self.locate(index)[1]}
            members |= place
            Wishes(self.owners, None, None).add_to(members, self.collection)
            for name in place:
                del members[name]

    def companion_sizes(self, index: int) -> dict[str, int]:
        """The bytes of the members that companions have of a sample, by field.

        Raises:
            WidsError: a member table cannot be read.
        """
        sizes: dict[str, int] = {}
        for companion in self.owners.companions if self.shards.header.get(COMPANIONS) else ():
            place = companion.row_of(self.collection.whole_index(index))
            if place >= 0:
                k, row = companion.collection.locate(place)
                table = self._companion_table(companion, k)
                members = table.members(row % len(table))
                sizes |= {companion.name_of(name): size for name, _, size in members if name != EMPTY}
        return sizes

    def _companion_table(self, companion: Companion, k: int) -> MemberTable:
        known = self._companion_tables.get(companion)
        if known is None or known[0] != k:
            table = next(iter(companion.collection.member_tables([k])))[1]
            if table is None:
                with companion.collection.pinned(k) as reader:
                    table = reader.table
            self._companion_tables[companion] = known = k, table
        return known[1]

    # --- the members of a shard

    def table(self, k: int) -> MemberTable:
        """The member table of shard ``k``.

        Raises:
            CountMismatchError: it does not hold as many samples as the index says.
            WidsError: the shard cannot be read, or may not be fetched.
        """
        if self._last is None or self._last[0] != k:
            table = self._published(k)
            if table is None:
                with contextlib.closing(self.open(k)) as reader:
                    table = reader.table
            self._last = k, table
        return self._last[1]

    def open(self, k: int) -> Reader:
        """Shard ``k``, open: where it is, or fetched first if that is cheaper; the caller closes.

        Raises:
            WidsError: as `table`.
        """
        with contextlib.ExitStack() as stack:
            if self.is_absent(k):
                if k not in self._begun and self._published(k) is None:
                    if not self._fetches_left:
                        self._refuse(k)
                    self._fetches_left -= 1
                    self._begun.add(k)
                stack.enter_context(Signals())  # a signal: its part file goes
                stack.enter_context(self._arriving(k))
            reader = self._provider.open(self.shards[k])
        try:
            self.collection.check_count(k, reader.table)
        except CountMismatchError:
            reader.close()
            raise
        return reader

    def is_absent(self, k: int) -> bool:
        """True if a shard is remote and not in the cache."""
        located = self._provider.cache.locate(self.shards[k])
        return not (located.place.is_local or located.exists())

    def has_table(self, k: int) -> bool:
        """True if a shard's table can be read without fetching the shard."""
        table = self._published(k)
        if table is not None:
            self._last = k, table
        return table is not None or not self.is_absent(k)

    def _arriving(self, k: int) -> AbstractContextManager[None]:
        return download_bar(self.shards[k], self._provider.cache.placement.cache_dir or "", is_shown=not self.has_bar)

    def _published(self, k: int) -> MemberTable | None:
        """The table that lies beside a remote shard; None where there is none that is certain to be its own."""
        shard = self.shards[k]
        if self._is_given_up or shard.filesize is None or not self.is_absent(k):  # nothing to hold it against
            return None
        table = self._tables.load(shard, shard_bytes=shard.filesize)
        # Where one is published all are: that is not asked for each shard.
        self._is_given_up = table is None
        return table

    def _refuse(self, k: int) -> None:
        absent = [j for j in range(len(self.shards)) if self.is_absent(j)]
        size = sum(max(self.shards.filesizes[j], 0) for j in absent)
        raise InputError(
            f"{self.shards.urls[k]}: to look into it, it must be fetched, and {count_of(len(absent), 'shard')}"
            f" of the index {'is' if len(absent) == 1 else 'are'} not here{f' ({format_size(size)})' if size else ''}",
            hint="fetch",
        )


class Search:
    """A search for keys in the member tables of an index.

    Args:
        listed: the index.
        keys: the keys; repeats are ignored.
        is_first: stop at the first sample of each key.

    Attributes:
        found: key -> the indices of the samples that have it, in order.
    """

    listed: Listed
    is_first: bool

    def __init__(self, listed: Listed, keys: list[str], *, is_first: bool) -> None:
        self.listed, self.is_first = listed, is_first
        self.found: dict[str, list[int]] = {key: [] for key in keys}
        self._near: dict[str, set[str]] = {key: set() for key in keys}

    def run(self) -> None:
        """Search for all keys.

        Raises:
            WidsError: a member table cannot be read.
        """
        ends, start = self.listed.ends, 0
        with progress(is_shown=len(ends) > _MIN_SHARDS_FOR_BAR) as bar:
            self.listed.has_bar = bar.is_shown
            for k, end in enumerate(ends):
                if end > start:
                    self._search(k, start)
                start = end
                if self.is_first and all(self.found.values()):
                    break
                bar.update(k + 1, total=len(ends), words="searching shards")

    def nearest(self, key: str) -> list[str]:
        """Return the keys that are most similar to one that was not found; best first."""
        return difflib.get_close_matches(key, sorted(self._near[key]), n=_SUGGESTIONS, cutoff=0.5)

    def check(self) -> None:
        """Raise unless all keys were found.

        Raises:
            SelectionError: a key was not found; suggests similar keys.
        """
        missing = [key for key, indices in self.found.items() if not indices]
        if missing:
            messages = "; ".join(self._message(key) for key in missing[:_MAX_MESSAGES])
            more = f"; and {len(missing) - _MAX_MESSAGES:,} more" if len(missing) > _MAX_MESSAGES else ""
            raise SelectionError(f"{self.listed.name}: {messages}{more}")

    def _message(self, key: str) -> str:
        near = ", ".join(repr(printable(name)) for name in self.nearest(key))
        return f"no sample has the key {printable(key)!r}" + (f" (near: {near})" if near else "")

    def _search(self, k: int, start: int) -> None:
        table, is_view = self.listed.table(k), self.listed.shards.selection is not None
        chosen = self.listed.collection.rows_of(k)
        for key, indices in self.found.items():
            if self.is_first and indices:
                continue
            for row in rows_of(table, key):
                at = bisect_left(chosen, row) if is_view else row
                if at < len(chosen) and chosen[at] == row:
                    indices.append(start + at)
            if not indices:
                near = self._near[key]
                near |= near_keys(table, key)
                if len(near) > 100:
                    self._near[key] = set(difflib.get_close_matches(key, sorted(near), n=20, cutoff=0.0))
