"""The page of many samples, and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from wids.tools.serve.answers import answer
from wids.tools.serve.listing import choose, parse_listing
from wids.tools.serve.rows import MAX_ROWS, parse_indices, parse_integer
from wids.tools.serve.waiting import watched

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.tools.serve.served import Served


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """``/samples``, ``/api/rows``."""
    rows = served.rows

    def show_samples(request: Request) -> Response:
        context = {"samples": len(served.dataset), "shards": len(served.collection.ends)}
        return templates.TemplateResponse(request, "samples.html", context)

    def show(request: Request) -> Response:
        """``indices=``, or ``start=`` and ``count=`` within a list, as `parse_listing` has it."""
        query = request.query_params
        field, columns = query.get("field", ""), [*filter(None, query.getlist("columns"))]
        if "indices" in query:
            indices = parse_indices(query["indices"], len(served.dataset))
            places, total = range(len(indices)), len(indices)
        else:
            start = parse_integer(query, "start", 0)
            count = parse_integer(query, "count", 50, most=MAX_ROWS)
            chosen = choose(served, parse_listing(query))
            total = len(served.dataset) if chosen is None else len(chosen)
            places = range(start, max(start, min(start + count, total)))
            indices = list(places) if chosen is None else chosen[places.start : places.stop].tolist()
        found = rows.describe(indices, field=field, columns=columns)
        return answer({"total": total, "rows": [{"at": at, **row} for at, row in zip(places, found, strict=True)]})

    return [Route("/samples", show_samples), Route("/api/rows", watched(show))]
