"""Fields of samples as a browser asks for them: ``/thumb/{index}/{field}``.

A field is named by its extension, or as ``@3``, the fourth of the sample: "." and ".." and names that are no UTF-8
have no place in a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from wids.errors import DecodeError, SelectionError, UnsafeFormatError, WidsError, without_secrets
from wids.serve.answers import answer
from wids.serve.previews import NoPreviewError

if TYPE_CHECKING:
    from starlette.requests import Request

    from wids.serve.served import Served


def routes(served: Served) -> list[Route]:
    """What is answered of a field: a picture, or ``{"error": "..."}``."""

    async def draw(request: Request) -> Response:
        index, field = request.path_params["index"], request.path_params["field"]
        try:
            made = await served.previews.get(request, index, field)
        except (NoPreviewError, WidsError) as error:
            return _refuse(error)
        return Response(made.data, media_type=made.media_type)

    return [Route("/thumb/{index:int}/{field:path}", draw)]


def _refuse(error: NoPreviewError | WidsError) -> Response:
    """Why something cannot be shown, in words."""
    if isinstance(error, NoPreviewError):
        return answer({"error": str(error)}, error.status)
    if isinstance(error, UnsafeFormatError):
        return answer({"error": "not opened: opening it could run code from the file"}, 415)
    status = 404 if isinstance(error, SelectionError) else 422 if isinstance(error, DecodeError) else 502
    return answer({"error": without_secrets(str(error))}, status)
