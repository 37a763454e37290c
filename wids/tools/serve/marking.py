"""The marks in answers: which samples are marked, marking, and files to download."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from wids.core.files import json_text
from wids.errors import InputError, JsonError, SelectionError
from wids.tools.serve.answers import answer
from wids.tools.serve.listing import Listing, choose
from wids.tools.serve.marks import MAX_MARKS, pack_indices, pack_view
from wids.tools.serve.rows import check_indices, parse_indices
from wids.tools.serve.waiting import watched, work_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from wids.tools.serve.marks import Marks
    from wids.tools.serve.served import Served

_MAX_BODY = 8 << 20


def routes(served: Served) -> list[Route]:
    """``/api/marks``: the marks, and marking; files to download; ``/api/filtered.zip``: what a filter chooses."""
    marks = served.marks

    async def respond(request: Request) -> Response:
        if request.method != "POST":
            asked = parse_indices(request.query_params.get("indices", ""), len(served.dataset))
            return answer({**_state_of(marks), "marked": [index for index in asked if marks.has(index)]})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                raise InputError(f"a request has {_MAX_BODY} bytes at most")
        return answer(await work_for(request, lambda: _change(served, bytes(body))))

    def give(make: Callable[[], bytes], name: str, kind: str) -> Callable[[Request], Response]:
        def give(_: Request) -> Response:
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return Response(make(), media_type=kind, headers=headers)

        return give

    def give_filtered(request: Request) -> Response:
        """The samples of ``where=`` as a view."""
        where = request.query_params.get("where", "")
        chosen = choose(served, Listing(where))
        if chosen is None or not len(chosen):
            raise InputError("where has no filter, or one that no sample matches: there is no view to save")
        headers = {"content-disposition": 'attachment; filename="filtered.zip"'}
        data = pack_view(served.dataset.select(chosen.astype("int64")), "filtered.json")
        return Response(data, media_type="application/zip", headers=headers)

    files: list[tuple[Callable[[], bytes], str, str]] = [
        (lambda: pack_view(marks.view(), "marked.json"), "marked.zip", "application/zip"),
        (lambda: pack_indices(marks.indices()), "marked.npy", "application/octet-stream"),
    ]
    return [
        Route("/api/marks", respond, methods=["GET", "POST"]),
        Route("/api/filtered.zip", watched(give_filtered)),
        *(Route(f"/api/marks/{name}", give(make, name, kind)) for make, name, kind in files),
    ]


def _state_of(marks: Marks) -> dict[str, Any]:
    return {"count": len(marks), "file": os.path.basename(marks.path)}


def _change(served: Served, body: bytes) -> dict[str, Any]:
    """Mark what a request names: ``index``, ``indices``; or ``start`` to ``end`` of the list that a page shows.

    Raises:
        InputError: it names nothing. SelectionError: a sample is not there. WidsError: see `Marks.change`.
    """
    try:
        asked = json_text.parse(body)
    except JsonError:
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("is_marked"), bool):
        raise InputError('a request to mark is {"index": 5, "is_marked": true}')
    total = len(served.dataset)
    if "start" in asked:
        start, end = _numbers([asked.get("start"), asked.get("end")])
        chosen = choose(served, Listing(str(asked.get("where") or ""), asked.get("marked") is True))
        count = total if chosen is None else len(chosen)
        if not start <= end <= count:
            raise SelectionError(f"{start} to {end} is no range of {count} samples")
        if end - start > MAX_MARKS:
            raise InputError(f"{end - start:,} samples at once; {MAX_MARKS:,} can be marked: use wids view --where")
        found = list(range(start, end)) if chosen is None else chosen[start:end].tolist()
    else:
        given = asked.get("indices", [asked.get("index")])
        found = _numbers(given if isinstance(given, list) else [given])
        check_indices(found, total)
    served.marks.change(found, is_marked=asked["is_marked"])
    return {**_state_of(served.marks), "changed": len(found)}


def _numbers(values: list[Any]) -> list[int]:
    if bad := [value for value in values if type(value) is not int or value < 0]:
        raise InputError(f"{bad[0]!r:.50} is no index: an integer, 0 or more")
    return values
