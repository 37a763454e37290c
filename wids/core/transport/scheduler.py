"""The one scheduler of byte ranges: reads the spans of an object into a sink, as many at a time as its store allows.

The sink keeps the bytes of each try; `wids.core.transport.retrying` repeats tries.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from wids.core.place import Place
from wids.core.transport import filesystems
from wids.core.transport.failures import DAMAGE, InterruptedTransferError, StalledTransferError, is_transient
from wids.core.transport.source import Sink

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from wids.core.transport.source import ByteSource
    from wids.core.transport.spans import Span

T = TypeVar("T")


def read_spans(source: ByteSource, spans: Iterable[Span], sink: Sink, *, is_for_samples: bool = False) -> None:
    """Write the bytes of some spans to a sink, and verify that all are of the version that the sink knows.

    After a transient error, running requests finish and other connections continue, because their bytes would
    otherwise be requested again. After a final error, or one that makes the received bytes useless, all requests end.

    Args:
        source: of the object.
        spans: the bytes; none is empty.
        sink: gets each byte once; the bytes of one span in order, spans in any order.
        is_for_samples: a reader waits for the bytes: many concurrent requests are sent, and downloads give way.

    Raises:
        Exception: the first error of the source or the sink; the received bytes are in the sink.
    """
    waiting = deque(spans)
    if source.is_blocking:
        _run_here(_work(source, waiting, sink))
    else:
        work = _request_together(source, waiting, sink) if is_for_samples else _download_together(source, waiting, sink)
        filesystems.run(work, go_on=source.go_on)
    if not source.answers_have_stat:
        sink.learn(source.stat())


async def _work(source: ByteSource, waiting: deque[Span], sink: Sink, *, gives_way: bool = False) -> None:
    """Read one span after the other."""
    while waiting:
        if source.is_blocking:
            source.go_on()
        elif gives_way:
            await filesystems.connections().give_way()
            if not waiting:
                return
        span = waiting.popleft()
        written = _Written(source.url, span, sink)
        try:
            await source.read(span, Sink(sink.learn, written.write))
        except Exception:
            if source.precedence is not None:
                source.precedence.has_failed = True  # at once: a waiting part may already have the connection
            raise
        written.check_end()


async def _request_together(source: ByteSource, waiting: deque[Span], sink: Sink) -> None:
    connections = filesystems.connections()
    count = connections.requests_at_a_time(Place(source.url).host)
    with connections.requesting():
        await _together(_work(source, waiting, sink) for _ in range(min(len(waiting), count)))


async def _download_together(source: ByteSource, waiting: deque[Span], sink: Sink) -> None:
    # Twice as many tasks as connections: the next ones already wait, so that no later download precedes them.
    count = 2 * filesystems.connections().count
    await _together(_work(source, waiting, sink, gives_way=True) for _ in range(min(len(waiting), count)))


async def _together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    workers = [asyncio.ensure_future(work) for work in works]
    error: Exception | None = None
    try:
        for done in asyncio.as_completed(workers):
            try:
                await done
            except Exception as failure:  # noqa: BLE001 - raised below, when the others have done what they can
                error = error or failure
                if isinstance(failure, (InterruptedTransferError, *DAMAGE)) or not is_transient(failure, None):
                    break
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if error is not None:
        raise error


class _Written:
    """Checks that a read returns exactly its span."""

    def __init__(self, url: str, span: Span, sink: Sink) -> None:
        self._url, self._span, self._sink = url, span, sink
        self._at = span.lo

    def write(self, at: int, data: bytes) -> None:
        if at != self._at or at + len(data) > self._span.hi:
            raise InterruptedTransferError(f"{self._url}: the server sent other bytes than the requested ones")
        self._sink.write(at, data)
        self._at += len(data)

    def check_end(self) -> None:
        if self._at < self._span.hi:
            came = self._at - self._span.lo
            raise StalledTransferError(f"{self._url}: {came} of {self._span.size} bytes arrived")


def _run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as in blocking sources; run in this thread, without a loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a source that says it is blocking waits for an event loop")
