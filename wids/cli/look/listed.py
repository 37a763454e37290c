"""An index that is looked into: its shards, where each sample lies, and the shards' member tables.

Rules: nothing is fetched that need not be. A table comes from the shard in place or in the cache, else from the
``.widx`` file beside a remote shard, whose members are then read by byte ranges. Only a shard without one is read as a
whole, headers or all, and a second one only with leave.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from wids.cli.format import count_of, format_size
from wids.cli.look.arriving import arriving
from wids.cli.look.keys import Search
from wids.cli.options import check_index
from wids.cli.signals import Signals
from wids.collection import load_shards
from wids.errors import CountMismatchError, FetchError, SpecError, TableError, WidsError
from wids.events import logger
from wids.index import urls
from wids.index.table import SUFFIX, parse_table
from wids.readers.store import Store, default_cache_dir
from wids.transport import retrying

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from wids.index.spec import Shard
    from wids.index.table import MemberTable

# Otherwise a key: 000123 is one that many datasets have.
_INDEX = re.compile(r"-?(0|[1-9][0-9]*)")


class Reader(Protocol):
    """An open shard."""

    @property
    def table(self) -> MemberTable:
        """Its member table."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> dict[str, Any]:
        """A sample, its members as streams."""

    def read_fields(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """A sample, only some of its members."""

    def close(self) -> None:
        """Close it."""


class Listed:
    """The shards of an index.

    Args:
        index: as the dataset takes it, as text.
        cache_dir: of remote shards; "": the default one.
        may_fetch: fetch more than one shard.
        storage_options: for fsspec.

    Attributes:
        name: the index, as given. shards: the shard list; -1 samples: not counted yet.
        store: opens shards.
        has_bar: a bar tells of what is under way already.
    """

    def __init__(
        self,
        index: str,
        *,
        cache_dir: str = "",
        may_fetch: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.name = index
        check_index(index)
        _, self.shards, self._storage_options = load_shards(index, storage_options=storage_options)
        # Keys that come again and the like are what is looked into here, not something to be warned of.
        logger.addHandler(logging.NullHandler())
        directory = os.path.abspath(os.path.expanduser(cache_dir)) if cache_dir else default_cache_dir()
        self.store = Store(cache_dir=directory, access="auto", storage_options=self._storage_options)
        self._fetches_left = len(self.shards) if may_fetch else 1
        self.has_bar = self._is_given_up = False
        self._last: tuple[int, MemberTable] | None = None
        self._ends: list[int] | None = None

    @property
    def ends(self) -> list[int]:
        """Where each shard's samples end; shards without a count in the index are counted first.

        Raises:
            SpecError: such shards are remote.
        """
        if self._ends is None:
            self.count()
            self._ends = list(accumulate(self.shards.nsamples))
        return self._ends

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def count(self) -> None:
        """Count the samples of shards of which no index says; see `ends`."""
        counts, names = self.shards.nsamples, self.shards.urls
        unknown = [k for k, count in enumerate(counts) if count < 0]
        for k in unknown:
            if len(unknown) > 1 and not urls.is_local(names[k]):
                raise SpecError(
                    f"{self.name}: {count_of(len(unknown), 'shard')} without a count of samples, and to count them "
                    "would be to fetch them all; make an index (wids index create) and look into that",
                    path=f"shards[{k}]",
                )
            table = self.table(k)
            counts[k], self.shards.filesizes[k] = table.nsamples, table.identity.size

    def start_of(self, k: int) -> int:
        """The index of the first sample of shard ``k``."""
        return self.ends[k - 1] if k else 0

    def locate(self, index: int) -> tuple[int, int]:
        """(number of the shard, row in it) of a sample, 0 <= index < len."""
        k = bisect_right(self.ends, index)
        return k, index - self.start_of(k)

    def check_shard(self, k: int) -> int:
        """The number of a shard, -1 being the last one.

        Raises:
            WidsError: there is no such shard.
        """
        count = len(self.shards)
        if not -count <= k < count:
            raise WidsError(f"{self.name}: there is no shard {k}; shards are 0 to {count - 1} (-1 is the last one)")
        return k % count

    def check_index(self, index: int, *, is_written: bool = False) -> int:
        """An index, -1 being the last one, counted from 0.

        Args:
            index: which.
            is_written: it was written where a key may stand, too.

        Raises:
            WidsError: there is no such sample.
        """
        n = len(self)
        if not -n <= index < n:
            right = f"indices are 0 to {n - 1} (-1 is the last one)" if n else "the dataset has none"
            hint = f"; for the key {str(index)!r} add --key" if is_written else ""
            raise WidsError(f"{self.name}: there is no sample {index}; {right}{hint}")
        return index % n

    def resolve(self, samples: Sequence[str], *, is_key: bool, is_first: bool) -> list[list[int]]:
        """The indices of each sample that is named by its index or its key.

        Args:
            samples: as they were written.
            is_key: they are keys, whatever they look like.
            is_first: the first sample with a key will do.

        Raises:
            WidsError: there is no such index or key; says what there is.
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

    # --- what is in a shard

    def table(self, k: int) -> MemberTable:
        """The member table of shard ``k``.

        Raises:
            CountMismatchError: it does not hold as many samples as the index says.
            WidsError: the shard cannot be had or read, or may not be fetched.
        """
        if self._last is None or self._last[0] != k:
            table = self._published(self.shards[k]) if self.is_absent(k) else None
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
        if self.is_absent(k):
            if self._published(self.shards[k]) is None:
                if not self._fetches_left:
                    self._refuse(k)
                self._fetches_left -= 1
            with Signals(), self._arriving(k):  # a signal: what has come of it by then goes
                reader: Reader = self.store.open(self.shards[k])
        else:
            reader = self.store.open(self.shards[k])
        expected = self.shards.nsamples[k]
        if expected not in (-1, len(reader)):
            found = len(reader)
            reader.close()
            raise CountMismatchError(
                f"{self.shards.urls[k]}: holds {count_of(found, 'sample')}, and the index says {expected} (shard {k}); "
                "write the index again",
                shard=self.shards.urls[k],
                expected=expected,
                found=found,
            )
        return reader

    def is_absent(self, k: int) -> bool:
        """Whether a shard is remote and not in the cache."""
        url = self.shards.urls[k]
        return not urls.is_local(url) and not self.store.has(url)

    def has_table(self, k: int) -> bool:
        """Whether a shard's table can be had without fetching the shard."""
        if not self.is_absent(k):
            return True
        table = self._published(self.shards[k])
        if table is not None:
            self._last = k, table
        return table is not None

    def _arriving(self, k: int) -> AbstractContextManager[None]:
        return arriving(self.shards[k], self.store.cache_dir or "", is_shown=not self.has_bar)

    def _published(self, shard: Shard) -> MemberTable | None:
        """The table that lies beside a remote shard; None where there is none that is certain to be its own."""
        url = shard.url
        if self._is_given_up or urls.scheme_of(url) == "pipe" or urls.without_query(url) != url:
            return None
        if shard.filesize is None:  # nothing to hold it against
            return None
        try:
            data = retrying.read_bytes(
                url + SUFFIX, storage_options=self._storage_options, seconds=retrying.FIRST_SECONDS
            )
            table = parse_table(data, shard=url)
        except FetchError:
            self._is_given_up = True  # who publishes tables publishes them all: not a question for each shard
            return None
        except TableError:
            return None
        md5 = table.identity.md5
        is_same = table.identity.size == shard.filesize and not (md5 and shard.md5sum and md5 != shard.md5sum)
        return table if is_same and shard.nsamples in (None, table.nsamples) else None

    def _refuse(self, k: int) -> None:
        absent = [j for j in range(len(self.shards)) if self.is_absent(j)]
        size = sum(max(self.shards.filesizes[j], 0) for j in absent)
        raise WidsError(
            f"{self.shards.urls[k]}: to look into it, it must be fetched, and {count_of(len(absent), 'shard')}"
            f" of the index {'is' if len(absent) == 1 else 'are'} not here"
            f"{f' ({format_size(size)})' if size else ''}; --fetch allows that, --cache-dir says where they are or go"
        )
