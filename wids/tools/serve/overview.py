"""The first page: what the index says of the dataset, and what member tables and labels of some shards add.

What an index says is there at once, of a million shards, too. Tables and labels are looked at by a thread that begins
with the first page: of some shards spread over the set, on this machine or published. No shard is downloaded.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from wids.core.place import Place
from wids.errors import WidsError, shorten, without_secrets
from wids.tools import summary
from wids.tools.serve.answers import answer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.core.collection.shard_collection import ShardCollection
    from wids.tools.serve.served import Served

_PARTS = 200  # sub-datasets that the page lists
_TABLES, _SECONDS = 16, 20.0  # shards that are looked at, and for how long
_ERRORS, _LABELS, _FIELDS = 3, 24, 64  # that are shown


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """The page at ``/``, and what it asks for."""
    survey = Survey(served.collection)
    served.closing.append(survey.close)
    described: list[dict[str, Any]] = []

    def show(request: Request) -> Response:
        shards = served.dataset.shards
        return templates.TemplateResponse(
            request, "overview.html", {"samples": len(served.dataset), "shards": len(shards)}
        )

    def describe(_: Request) -> Response:
        if not described:
            described.append(_describe(served.collection))
        return answer(described[0])

    def look(_: Request) -> Response:
        survey.start()
        return answer(survey.describe())

    return [
        Route("/", show),
        Route("/api/overview", describe),
        Route("/api/overview/samples", look),
    ]


def _describe(collection: ShardCollection) -> dict[str, Any]:
    """The output of ``wids info`` about the index, without the secrets of URLs."""
    shards = collection.shards
    parts = summary.describe_datasets(shards)
    mixture = summary.describe_mixture(collection.mixed_parts())
    found: dict[str, Any] = _public(
        {
            **summary.describe_index(shards),
            "datasets": parts[:_PARTS],
            "datasets_left": max(len(parts) - _PARTS, 0),
            "mixture": mixture and mixture[:_PARTS],
            "mixture_left": max(len(mixture or ()) - _PARTS, 0),
            "packs": len(shards.all_packs()),
        }
    )
    return found


def _public(value: Any) -> Any:
    """A JSON value whose texts have no passwords, and an end."""
    if isinstance(value, str):
        return shorten(Place(value).public, most=500)
    if isinstance(value, dict):
        return {str(key): _public(each) for key, each in value.items()}
    return [_public(each) for each in value] if isinstance(value, list) else value


class Survey:
    """A look at member tables and labels of some shards, in a separate thread."""

    def __init__(self, collection: ShardCollection) -> None:
        self._collection = collection
        self._lock, self._is_closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._fields = summary.FieldSummary()
        self._classes: summary.Classes | None = None
        self._is_done, self._chosen, self._absent = False, 0, 0
        self._errors: list[str] = []
        self._failed = 0

    def start(self) -> None:
        """Begin, unless it has begun."""
        with self._lock:
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(target=self._run, daemon=True, name="wids-serve-survey")
                self._thread.start()

    def close(self) -> None:
        """End after the table that is being read."""
        self._is_closed.set()

    def describe(self) -> dict[str, Any]:
        """The results so far.

        ``samples`` and ``shards`` were looked at, of ``chosen`` shards; ``absent`` ones have no table here, and none
        that is published.
        """
        with self._lock:
            fields, samples = list(self._fields.fields.values()), self._fields.samples
            described = [
                {
                    "name": shorten(field.name),
                    "samples": field.samples,
                    "share": field.samples / samples,
                    "bytes": field.bytes,
                    "mean": field.bytes / field.samples,
                    "least": field.least,
                    "largest": field.largest,
                    "bins": field.bins(),
                }
                for field in fields[:_FIELDS]
            ]
            return {
                "is_done": self._is_done,
                "chosen": self._chosen,
                "shards": self._fields.shards,
                "samples": samples,
                "absent": self._absent,
                "failed": self._failed,
                "errors": self._errors,
                "fields": described,
                "fields_left": max(len(fields) - _FIELDS, 0),
                "classes": self._describe_classes(),
            }

    def _describe_classes(self) -> dict[str, Any] | None:
        found, names = self._classes, self._collection.shards.class_names
        if found is None:
            return {"count": len(names), "labels": [], "samples": 0} if names else None
        labels = []
        for label, count in found.labels[:_LABELS]:
            text = label.decode(errors="replace")
            number = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else -1
            name = names[number] if 0 <= number < len(names) else ""
            labels.append({"label": shorten(text), "name": shorten(name), "samples": count})
        return {
            "count": found.count,
            "samples": found.samples,
            "shards": found.shards,
            "per_shard": found.per_shard,
            "is_sorted": found.is_sorted,
            "labels": labels,
            "labels_left": max(len(found.labels) - _LABELS, 0),
        }

    def _run(self) -> None:
        ends = time.monotonic() + _SECONDS
        try:
            numbers = summary.spread_over(summary.held_shards(self._collection.shards), _TABLES)
            with self._lock:
                self._chosen = len(numbers)
            for k in dict.fromkeys(numbers):
                if self._is_closed.is_set() or time.monotonic() > ends:
                    break
                self._look_at(k)
            if ".cls" in self._fields.fields and not self._is_closed.is_set():
                found = summary.find_classes(self._collection, self._open_here)
                with self._lock:
                    self._classes = found
        except Exception as error:  # noqa: BLE001 - the edge of a thread: the page says it
            self._note(error)
        finally:
            with self._lock:
                self._is_done = True

    def _look_at(self, k: int) -> None:
        collection = self._collection
        try:
            table = collection.provider.find_table(collection.shards[k])
        except WidsError as error:
            self._note(error)
            return
        with self._lock:
            if table is None:
                self._absent += 1
            else:
                self._fields.add(table, collection.rows_of(k))

    def _open_here(self, k: int) -> Any:
        provider, shard = self._collection.provider, self._collection.shards[k]
        return provider.open(shard) if provider.is_here(shard) else None

    def _note(self, error: Exception) -> None:
        with self._lock:
            self._failed += 1
            if len(self._errors) < _ERRORS:
                self._errors.append(without_secrets(str(error)) or type(error).__name__)
