"""The shards that an index need not read again: those of its last run, and of one that was killed.

``INDEX.state`` holds a line for each shard of the last index that was finished, ``INDEX.journal`` one for each that was
read since. Neither is needed: without them, shards are read again.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from wids.files import atomic
from wids.index import writing
from wids.jobs.journal import JobJournal, check_state, format_record, parse_records
from wids.jobs.scan import ShardFacts
from wids.transport.upload import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_SUFFIX, JOURNAL_SUFFIX = ".state", ".journal"


class KnownShards:
    """The shards that are known; to be closed.

    Args:
        output: the path of the index.

    Attributes:
        facts: place of a shard -> its facts then, to be compared with the shard of now.

    Raises:
        OutputError: the index's directory cannot be written.
        OutputExistsError: another process is making this index, or there are other files in these places.
    """

    def __init__(self, output: str) -> None:
        self._output, self._home = output, os.path.dirname(output)
        check_state(output + STATE_SUFFIX, ShardFacts)
        self._journal = JobJournal(output, JOURNAL_SUFFIX, ShardFacts, writer="wids index", target=Target())
        self.facts: dict[str, ShardFacts] = {}
        with contextlib.suppress(OSError), open(output + STATE_SUFFIX, "rb") as file:
            self._learn(parse_records(file.read().splitlines(), ShardFacts))
        self._learn(self._journal.before)

    def add(self, facts: ShardFacts) -> None:
        """Keep the facts of one shard.

        Raises:
            OutputError: it cannot be written down.
        """
        self._journal.add(self._record(facts))

    def finish(self, found: Iterable[ShardFacts]) -> None:
        """The index is there, and these are its shards.

        Raises:
            OSError: that cannot be written down.
        """
        lines = [format_record(self._record(facts)) + b"\n" for facts in found]
        atomic.write_atomically(self._output + STATE_SUFFIX, b"".join(lines))
        self._journal.remove()

    def close(self) -> None:
        """Leave the journal for the next run, if there is anything in it."""
        self._journal.close()

    def _record(self, facts: ShardFacts) -> ShardFacts:
        """A line of a file. Its place is relative to the index's directory where it lies below it: both may move."""
        return facts.kept(writing.relative_to(facts.url, self._home))

    def _learn(self, records: Iterable[ShardFacts]) -> None:
        for record in records:
            place = record.url if "://" in record.url else os.path.join(self._home, record.url)
            self.facts[place] = record.kept(place)
