"""The page of many samples: a grid, a filter in SQL, what the columns have, marks. Its script asks for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.serve.served import Served


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """The page at ``/samples``."""

    def show(request: Request) -> Response:
        facts = {"samples": len(served.dataset), "shards": len(served.collection.ends)}
        return templates.TemplateResponse(request, "samples.html", facts)

    return [Route("/samples", show)]
