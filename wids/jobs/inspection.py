"""Looking at many shards: threads for what is read and fetched, a process each for what is decoded.

Rules: all shards are looked at, whatever is wrong with some. Of remote ones there are never more on the disk than
threads. However it ends, its processes are gone and its directory with them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from wids.errors import CacheError, without_secrets
from wids.events import logger
from wids.index import urls
from wids.jobs.check import verify_shard
from wids.jobs.decode_worker import Decoder
from wids.jobs.problems import Finding, Looks, Problem
from wids.osfiles import tempdirs
from wids.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wids.index.spec import Shard

_SHOW_SECONDS, _END_SECONDS = 0.25, 10.0


class Inspection:
    """Shards that are being looked at.

    Args:
        shards: each with its number in the index.
        looks: how closely.
        decode: what decodes a sample, to be pickled; None: nothing is decoded.

    Attributes:
        findings: of the shards that were looked at, in no order before `run` has ended, then by number.
        promised: number -> bytes of a shard, as the index has it (0 where it does not say).
        is_quick: nothing is read.
        seconds: that it took.
    """

    def __init__(
        self, shards: Sequence[tuple[int, Shard]], *, looks: Looks, decode: Callable[[Any], Any] | None = None
    ) -> None:
        self.findings: list[Finding] = []
        self.seconds = 0.0
        self.promised = {number: shard.filesize or 0 for number, shard in shards}
        self.is_quick = looks.is_quick
        self._shards, self._looks, self._decode = shards, looks, decode
        self._waiting = deque(shards)
        self._cancelled = threading.Event()
        self._failure: Exception | None = None

    def run(self, jobs: int, show: Callable[[], None] = lambda: None) -> list[Finding]:
        """Look at all of them; ``show`` is called now and then. An exception ends the threads, too.

        Args:
            jobs: shards to look at at a time.
            show: called now and then.

        Raises:
            CacheError: there is no room for a remote shard.
        """
        start = time.monotonic()
        # Not by joining them: a join that an exception ends takes its thread for ended from then on (Python 3.11).
        ends: list[threading.Event] = []
        with self._make_directory() as directory:
            try:
                for _ in range(min(jobs, len(self._shards))):
                    ends.append(threading.Event())
                    arguments = (ends[-1], directory)
                    threading.Thread(target=self._work, args=arguments, daemon=True, name="wids-verify").start()
                for end in ends:
                    while not end.wait(_SHOW_SECONDS):
                        show()
                show()
            finally:
                self._cancelled.set()
                until = time.monotonic() + _END_SECONDS
                for end in ends:
                    end.wait(max(until - time.monotonic(), 0.0))
        if self._failure is not None:
            raise self._failure
        self.findings.sort(key=lambda finding: finding.number)
        self.seconds = time.monotonic() - start
        return self.findings

    def _make_directory(self) -> Any:
        is_remote = not self.is_quick and any(not urls.is_local(shard.url) for _, shard in self._shards)
        return tempdirs.directory("verify") if is_remote else contextlib.nullcontext()

    def _work(self, end: threading.Event, directory: str | None) -> None:
        """In a thread of its own: look at what is waiting."""
        decoder = None
        if self._decode is not None and not self.is_quick:
            decoder = Decoder(self._decode, self._looks, is_cancelled=self._cancelled.is_set)
        try:
            while not self._cancelled.is_set() and self._waiting:
                try:
                    number, shard = self._waiting.popleft()
                except IndexError:
                    return
                self._look(number, shard, directory, decoder)
        finally:
            if decoder is not None:
                decoder.close()
            end.set()

    def _look(self, number: int, shard: Shard, directory: str | None, decoder: Decoder | None) -> None:
        try:
            finding = verify_shard(
                shard,
                number=number,
                looks=self._looks,
                directory=directory,
                decode=decoder,
                is_cancelled=self._cancelled.is_set,
            )
        except CancelledTransferError:
            return
        except CacheError as error:  # of the disk, not of this shard: the others would fail alike
            self._failure = CacheError(f"{error} (shards that are looked at go to $TMPDIR)", **error.__dict__)
            self._cancelled.set()
            return
        except Exception as error:  # noqa: BLE001 - the edge of a thread; it is told with the others
            logger.debug("%s", shard.url, exc_info=True)
            what = without_secrets(f"could not be looked at ({type(error).__name__}: {error})", shard.url)
            finding = Finding(number=number, url=shard.url, problems=(Problem(kind="error", what=what),))
        self.findings.append(finding)
