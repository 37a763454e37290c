"""Endpoints that may work for long: they end when the browser waits no more.

Rules: a filter is SQL, and SQL may be endless: while it runs, it takes a thread, and a query's place. Who has left a
page, or its filter, leaves nothing behind that runs.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.concurrency import run_in_threadpool

from wids.columns.sql import REASON_TO_STOP
from wids.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")

# Between looks whether the browser still waits.
WATCH_SECONDS = 0.25


async def work_for(request: Request, work: Callable[[], T]) -> T:
    """The result of ``work`` in a thread; its queries end when no request waits for it.

    Raises:
        QueryError: a query has ended so.
    """
    gone = threading.Event()
    outer = REASON_TO_STOP.set(lambda: "no request waits for it any more" if gone.is_set() else "")
    try:
        task = asyncio.ensure_future(run_in_threadpool(work))
    finally:
        REASON_TO_STOP.reset(outer)
    try:
        while not (await asyncio.wait([task], timeout=WATCH_SECONDS))[0]:
            if await request.is_disconnected():
                gone.set()
        return task.result()
    finally:
        gone.set()


def watched(show: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint that works in a thread, and ends its queries when the browser has left."""

    async def run(request: Request) -> Response:
        return await work_for(request, lambda: show(request))

    return run


def is_left() -> bool:
    """True if no request waits for the work of this thread."""
    return bool(REASON_TO_STOP.get()())


def check_waited_for() -> None:
    """Continue if a request waits.

    Raises:
        QueryError: no request waits.
    """
    if reason := REASON_TO_STOP.get()():
        raise QueryError(reason)


def acquire(lock: Any) -> None:
    """Wait for a lock as long as a request waits for this thread.

    Raises:
        QueryError: no request waits.
    """
    while not lock.acquire(timeout=WATCH_SECONDS):
        check_waited_for()
