"""Connections of browsers: how many there may be, and how long one may wait without a request.

Rules: shards take file descriptors too, so connections have a share of them. Where all are taken, the one that has
waited longest makes room; those whose requests run stay, unless the browser takes nothing of the answer, or goes on
sending the request, for long. A connection that sends no whole request in time is closed, however often it sends a part
of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from wids.core.files import system

if TYPE_CHECKING:
    import asyncio

_SHARE = 4  # of all descriptors, a part in so many


class LimitedProtocol(H11Protocol):
    """A connection, as uvicorn serves it. Headers have an end, which not all of uvicorn's protocols see to.

    Attributes:
        most: connections at a time.
        seconds: that one may wait for a request, or for more of its body.
    """

    most: int = min(100, system.descriptor_limit() // _SHARE)
    seconds: float = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; who has waited longest may have to leave."""
        super().connection_made(transport)
        self._waits_since = self._heard = self.loop.time()
        self._full_since: float | None = None  # so long the browser takes nothing
        self._is_ended = False
        self._look_later()
        others: set[Any] = self.connections
        living = [each for each in others if not each._is_ended]  # noqa: SLF001 - of this class
        if len(living) > self.most:
            waiting = {each: since for each in living if (since := each._waiting_since()) is not None}  # noqa: SLF001
            min(waiting, key=lambda each: waiting[each])._end()  # noqa: SLF001 - maybe this one

    def data_received(self, data: bytes) -> None:
        """Go on."""
        self._heard = self.loop.time()
        super().data_received(data)

    def pause_writing(self) -> None:
        """Wait until the browser has taken all bytes that were sent."""
        self._full_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._full_since = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._is_ended = True
        self._looking.cancel()
        super().connection_lost(exc)

    def _is_running(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _waiting_since(self) -> float | None:
        """Since when it waits for the browser; None: the browser waits, or has not let it wait for long."""
        if not self._is_running():
            return self._waits_since
        since = self._waits_since if self.cycle.more_body else self._full_since
        return None if since is None or self.loop.time() - since < self.seconds else since

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(self.seconds / 2, self._look)

    def _look(self) -> None:
        """Close a connection that waits for too long."""
        since = self._waits_since
        if self._is_running():
            since = self._heard if self.cycle.more_body else self.loop.time()
        if self.loop.time() - since >= self.seconds:
            self._end()
        else:
            self._look_later()

    def _end(self) -> None:
        self._is_ended = True
        self.transport.abort()
