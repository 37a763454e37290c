"""The pages as one ASGI application: a module for each part of the site makes its routes, this one puts them together.

Rules: a page is a template with what it says at once; what takes time it asks for by ``/api/...``, whose answers are
JSON. An error is an answer where it belongs: ``{"error": "..."}`` to a script, a page to a person.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from wids import __version__
from wids.columns.sql import shorten_sql
from wids.errors import NotAllowedError, QueryError, SelectionError, WidsError, without_secrets
from wids.events import logger
from wids.tools.serve import cache, epoch, facets, fields, overview, places, sample, samples, tagging
from wids.tools.serve.answers import answer
from wids.tools.serve.guard import LOOPBACK, Guard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from wids.tools.serve.served import Served

_HERE = Path(__file__).parent
# How DuckDB begins what it says.
_KIND = re.compile(r"[A-Z][A-Za-z ]* Error: ")
_DOCUMENTATION = "https://github.com/wids-project/wids/blob/main/wids/tools/serve/README.md"
# (path, title) of what the head of each page leads to.
PAGES: Sequence[tuple[str, str]] = (
    ("/", "Overview"),
    ("/samples", "Samples"),
    ("/epoch", "Epoch"),
    ("/cache", "Cache"),
)
# (keys, what they do) of all pages.
_KEYS: Sequence[tuple[str, str]] = (
    ("← → ↑ ↓", "move: samples, steps of an epoch"),
    ("Home End", "the first, the last one"),
    ("Enter", "open the sample"),
    ("1 ... 9", "set a tag, or remove it; with shift, on all from the last tagged one; space: tag 1"),
    ("u U", "undo, redo a change of tags; also Ctrl+Z, Ctrl+Y"),
    ("v", "grid or table"),
    ("/", "to the filter; on the page of an epoch, to the search for a sample"),
    ("n p", "next rank, rank before"),
    ("+ - 0 x", "on a picture: larger, smaller, all of it, one to one"),
    ("t", "light or dark"),
    ("?", "this list"),
)


def make_app(served: Served, *, token: str | None = None, has_frames: bool = False, root_path: str = "") -> ASGIApp:
    """The pages of a dataset.

    Args:
        served: the dataset.
        token: see `wids.tools.serve.guard.Guard`; with one, any host name will do.
        has_frames: see there.
        root_path: see there.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_writable,
    )
    environment.globals |= {
        "pages": PAGES,
        "version": __version__,
        "name": served.name,
        "documentation": _DOCUMENTATION,
        "keys": _KEYS,
    }
    templates = Jinja2Templates(env=environment, context_processors=[_place_of])

    routes: list[Route | Mount] = [
        *overview.routes(served, templates),
        *fields.routes(served),
        *samples.routes(served, templates),
        *facets.routes(served),
        *places.routes(served),
        *tagging.routes(served),
        *epoch.routes(served, templates),
        *sample.routes(served, templates),
        *cache.routes(served, templates),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]

    async def refuse(request: Request, error: Exception) -> Response:
        status, words = _status_of(error), _words_of(error)
        if request.url.path.startswith("/api/"):
            return answer({"error": words}, status)
        return templates.TemplateResponse(request, "error.html", {"words": words, "status": status}, status)

    async def fail(request: Request, error: Exception) -> Response:
        logger.error("%s: %s", request.url.path, without_secrets(repr(error)), exc_info=error)
        return await refuse(request, error)

    pages = Starlette(routes=routes, exception_handlers={HTTPException: refuse, WidsError: refuse, Exception: fail})
    return Guard(pages, hosts=None if token else LOOPBACK, token=token, has_frames=has_frames, root_path=root_path)


def _place_of(request: Request) -> dict[str, Any]:
    """Values for each template: ``at``, the path of the page, and ``root``, the relative way from it to the first page.

    Links are relative because a proxy may publish the pages below a path of its own.
    """
    path = request.scope["path"]
    depth = request.scope.get("raw_path", path.encode()).partition(b"?")[0].count(b"/") - 1
    return {"at": path, "root": "../" * depth or "./"}


def _status_of(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, SelectionError):
        return 404
    if isinstance(error, NotAllowedError):
        return 403
    return 400 if isinstance(error, (WidsError, ValueError)) else 500


def _writable(value: Any) -> Any:
    """A value for a page, which is UTF-8: names of files may have letters that it lacks."""
    return value.encode("utf-8", "backslashreplace").decode() if type(value) is str else value


def _words_of(error: Exception) -> Any:
    if isinstance(error, HTTPException):
        return "there is no such page" if error.status_code == 404 and error.detail == "Not Found" else error.detail
    words = str(error)
    if isinstance(error, QueryError) and isinstance(error.found, str):  # a page shows the SQL and the columns itself
        words = _KIND.sub("", words.partition(f"; in: {shorten_sql(error.found)}")[0])
    return without_secrets(words) or type(error).__name__
