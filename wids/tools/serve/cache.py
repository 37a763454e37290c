"""The cache page: a cache directory while the jobs of this machine use it.

All pages that are open share one watch, which looks at the directory at most once in `LiveLimits.pause_seconds`, and
only while some page asks. An answer has the rows that have changed since the page asked last, and at most `ROWS`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.routing import Route

from wids.core.place import Place
from wids.errors import CacheError, InputError
from wids.tools.serve.answers import answer
from wids.tools.serve.watching import CacheWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.tools.serve.served import Served
    from wids.tools.serve.watching import Look

ROWS, _OTHERS = 200, 50
_NAMED = 200_000  # shards whose URLs are shown: each takes some microseconds, once


class LiveLimits(NamedTuple):
    """Intervals of looks at a directory; the default is in force, and tests put another one in its place.

    Attributes:
        pause_seconds: from one look to the next, for all pages together.
        jitter_seconds: an estimate of the next use that moves by no more is no news.
    """

    pause_seconds: float = 0.8
    jitter_seconds: float = 2.0


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """The page at ``/cache``, and what it asks for."""
    directory = served.cache_dir
    live = None if directory is None else Live(str(directory), functools.cache(lambda: _names_in_cache(served)))

    def show(request: Request) -> Response:
        return templates.TemplateResponse(request, "cache.html", {"directory": directory})

    def look(request: Request) -> Response:
        if live is None:
            raise InputError("this dataset has no cache directory: its localname decides where each shard is")
        since = [_number(request, name) for name in ("since", "changes")]
        return answer(live.describe(request.query_params.get("boot", ""), *since))

    return [Route("/cache", show), Route("/api/cache", look)]


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    if not (text.isdecimal() and text.isascii() and len(text) < 16):
        raise InputError(f"{name} is a number")
    return int(text)


def _names_in_cache(served: Served) -> dict[str, str]:
    """The names that the first shards of a dataset have in its cache: file name -> URL, without secrets."""
    placement = served.collection.provider.cache.placement
    urls = [shard["url"] for shard in itertools.islice(served.dataset.shards, _NAMED)]
    home, found = os.path.abspath(str(served.cache_dir)), dict[str, str]()
    for url in urls:
        folder, name = os.path.split(placement.local_path(url))
        if folder == home:  # not one that is read in place
            found[name] = Place(url).public
    return found


class Live:
    """Data of a cache directory for the pages, which may ask from any thread.

    Args:
        directory: which; it may not exist.
        urls: gives file name -> URL of the shards that are known.
    """

    limits: LiveLimits = LiveLimits()

    def __init__(self, directory: str, urls: Callable[[], Mapping[str, str]] = dict) -> None:
        self._urls = urls
        self._directory, self._watch = directory, CacheWatch(directory, most=ROWS)
        self._lock = threading.Lock()
        self._boot, self._revision = secrets.token_hex(4), 0
        self._look: Look | None = None
        self._looked = -math.inf
        self._rows: dict[int, tuple[int, dict[str, Any]]] = {}  # by number: (the revision that changed it, as shown)
        self._order: tuple[int, list[int]] = 0, []

    def describe(self, boot: str, since: int, changes: int) -> dict[str, Any]:
        """The cache directory, as JSON.

        Args:
            boot: what the last answer said; another one: all rows are sent.
            since: the revision of the last answer.
            changes: the number of the last change that it had.

        Raises:
            CacheError: the directory cannot be listed.
        """
        with self._lock:
            if time.monotonic() - self._looked >= self.limits.pause_seconds:
                self._look = self._watch.look()
                self._looked = time.monotonic()
                self._update(self._look)
            look = self._look
            if look is None:  # another page's look has failed just now
                raise CacheError(f"{self._directory}: cannot be listed", path=self._directory)
            if boot != self._boot:
                since = changes = 0
            revised, order = self._order
            rows = [row for revision, row in self._rows.values() if revision > since]
            came = [msgspec.to_builtins(change) for change in look.changes if change.number > changes]
            downloads = msgspec.to_builtins(look.downloads[:_OTHERS])
            urls = self._urls()
            return {
                "boot": self._boot,
                "revision": self._revision,
                "now": look.seconds,
                "exists": look.exists,
                "shards": look.shards,
                "used_bytes": look.used_bytes,
                "strangers": look.strangers,
                "free_bytes": look.free_bytes,
                "disk_bytes": look.disk_bytes,
                "sees_all": look.sees_all,
                "open": len(look.readers),
                "plans": look.plans,
                "rows": rows,
                "urls": {name: urls[name] for each in (*rows, *came, *downloads) if (name := each["name"]) in urls},
                "order": order if revised > since else None,
                "downloads": downloads,
                "downloads_left": max(len(look.downloads) - _OTHERS, 0),
                "holders": [
                    {
                        "pid": holder.pid,
                        "program": holder.program,
                        "started": holder.started_seconds,
                        "is_orphan": holder.is_orphan,
                        "shards": len(holder.files),
                    }
                    for holder in look.holders[:_OTHERS]
                ],
                "holders_left": max(len(look.holders) - _OTHERS, 0),
                "changes": came,
                "jobs": msgspec.to_builtins(look.jobs[:_OTHERS]),
            }

    def _update(self, look: Look) -> None:
        """Find out which rows have changed."""
        revision, rows = self._revision + 1, dict[int, tuple[int, dict[str, Any]]]()
        for shard in look.shown:
            before = self._rows.get(shard.number)
            use = look.uses.get(shard.name)
            row = {
                "number": shard.number,
                "name": shard.name,
                "size_bytes": shard.size_bytes,
                "arrived": shard.arrived_seconds,
                "used": shard.used_seconds,
                "is_kept": shard.is_kept,
                "next": None if use is None else round(use),
                "pids": look.readers.get(shard.name, []),
            }
            if before is not None:
                then = before[1]["next"]
                if use is not None and then is not None and abs(use - then) <= self.limits.jitter_seconds:
                    row["next"] = then  # an estimate that moves a little is no news
            rows[shard.number] = before if before is not None and before[1] == row else (revision, row)
        order = list(rows)
        if order != self._order[1]:
            self._order = revision, order
        self._rows, self._revision = rows, revision
