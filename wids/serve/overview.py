"""The first page: what the index says of the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.templating import Jinja2Templates

    from wids.serve.served import Served


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """The page at ``/``."""

    def show(request: Request) -> Response:
        shards = served.dataset.shards
        return templates.TemplateResponse(
            request, "overview.html", {"samples": len(served.dataset), "shards": len(shards)}
        )

    return [Route("/", show)]
