"""The tags in answers: which samples have which, changes and their undoing; lists of samples as files to download."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from wids.core.files import json_text
from wids.errors import InputError, JsonError, SelectionError
from wids.tools.serve.answers import answer
from wids.tools.serve.listing import choose, parse_listing
from wids.tools.serve.rows import check_indices, parse_indices
from wids.tools.serve.tags import MAX_TAGGED, TAGS, pack_arrays, pack_view
from wids.tools.serve.waiting import watched, work_for

if TYPE_CHECKING:
    from starlette.requests import Request

    from wids.core.index.selection import Integers
    from wids.tools.serve.served import Served
    from wids.tools.serve.tags import Tags

_MAX_BODY = 8 << 20
_EXAMPLE = '{"tag": 1, "is_set": true, "indices": [5]}'


def routes(served: Served) -> list[Route]:
    """``/api/tags``: the tags, and changes of them; ``/api/list.zip`` and ``/api/list.npy``: a list as a file."""
    tags = served.tags

    async def respond(request: Request) -> Response:
        if request.method != "POST":
            asked = parse_indices(request.query_params.get("indices", ""), len(served.dataset))
            of = dict(zip(map(str, asked), tags.of(asked), strict=True))
            return answer({**_state_of(tags), "of": of})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                raise InputError(f"a request has {_MAX_BODY} bytes at most")
        return answer(await work_for(request, lambda: _change(served, bytes(body))))

    def give_view(request: Request) -> Response:
        """A view of the samples of a list."""
        name, chosen = _to_save(served, request)
        data = pack_view(served.dataset.select(chosen), f"{name}.json")
        return _download(data, f"{name}.zip", "application/zip")

    def give_indices(request: Request) -> Response:
        """Their indices, as ``select`` and ``exclude`` take them."""
        name, chosen = _to_save(served, request)
        return _download(pack_arrays(chosen), f"{name}.npy", "application/octet-stream")

    return [
        Route("/api/tags", respond, methods=["GET", "POST"]),
        Route("/api/list.zip", watched(give_view)),
        Route("/api/list.npy", watched(give_indices)),
    ]


def _download(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


def _to_save(served: Served, request: Request) -> tuple[str, Integers]:
    """(name of a file, indices, ascending) of the list of a request.

    Raises:
        InputError: it is empty, or the whole dataset. WidsError: see `choose`.
    """
    listing = parse_listing(request.query_params)._replace(sort="")
    chosen = choose(served, listing)
    if chosen is None or not len(chosen):
        raise InputError("there is no tag and no filter, or no sample has it: there is nothing to save")
    name = "filtered" if listing.tag is None else f"tag-{listing.tag}" if listing.tag else "tagged"
    words = re.sub(r"[^A-Za-z0-9._]+", "-", served.tags.names[listing.tag - 1]).strip("-.") if listing.tag else ""
    return words or name, chosen.astype("int64")


def _state_of(tags: Tags) -> dict[str, Any]:
    """``tags``, each ``name`` and ``count``; ``count`` of samples with any; ``file``, where they are kept."""
    each = [{"name": name, "count": tags.count(k)} for k, name in enumerate(tags.names, 1)]
    return {"tags": each, "count": len(tags), "file": os.path.basename(tags.path)}


def _change(served: Served, body: bytes) -> dict[str, Any]:
    """Do what a request says: ``undo`` a change, ``name`` a ``tag``, or set it if ``is_set`` is true, else remove it.

    The samples are ``indices``, or of a ``list`` (as queries have it) all from ``first`` to ``last``, or all.

    Raises:
        InputError: it says nothing of these. SelectionError: a sample is not there. WidsError: see `Tags.change`.
    """
    try:
        asked = json_text.parse(body)
    except JsonError:
        asked = None
    if not isinstance(asked, dict):
        raise InputError(f"a request to tag is {_EXAMPLE}")
    if isinstance(asked.get("undo"), str):
        change = served.tags.undo(asked["undo"])
    else:
        tag = asked.get("tag")
        if type(tag) is not int or not 1 <= tag <= TAGS:
            raise InputError(f"{tag!r:.50} is no tag: 1 to {TAGS}")
        if isinstance(asked.get("name"), str):
            served.tags.rename(tag, asked["name"])
            return _state_of(served.tags)
        if not isinstance(asked.get("is_set"), bool):
            raise InputError(f"a request to tag is {_EXAMPLE}")
        change = served.tags.change(tag, _samples_of(served, asked), is_set=asked["is_set"])
    told = {"change": change.number, "tag": change.tag, "is_set": change.is_set, "changed": len(change.indices)}
    return {**_state_of(served.tags), **told}


def _samples_of(served: Served, asked: dict[str, Any]) -> list[int]:
    total = len(served.dataset)
    if not isinstance(asked.get("list"), dict):
        given = asked.get("indices")
        found = _numbers(given if isinstance(given, list) else [given])
        check_indices(found, total)
        return found
    listing = parse_listing({str(name): str(value) for name, value in asked["list"].items()})
    chosen = choose(served, listing)
    count = total if chosen is None else len(chosen)
    lo, hi = 0, count - 1
    if "first" in asked:
        ends = _numbers([asked["first"], asked.get("last")])
        check_indices(ends, total)
        lo, hi = sorted(ends if chosen is None else [_place_of(each, chosen) for each in ends])
    if hi - lo >= MAX_TAGGED:
        raise InputError(f"{hi - lo + 1:,} samples at once; {MAX_TAGGED:,} can have a tag: use wids view --where")
    return [*range(lo, hi + 1)] if chosen is None else [*map(int, chosen[lo : hi + 1])]


def _place_of(index: int, chosen: Integers) -> int:
    places = (chosen == index).nonzero()[0]
    if not len(places):
        raise SelectionError(f"sample {index} is not in this list any more; look at it again")
    return int(places[0])


def _numbers(values: list[Any]) -> list[int]:
    if bad := [value for value in values if type(value) is not int or value < 0]:
        raise InputError(f"{bad[0]!r:.50} is no index: an integer, 0 or more")
    return values
