"""The packages that the pages take, imported when pages are requested: Starlette, uvicorn, Jinja2; IPython."""

from __future__ import annotations

import importlib
from typing import Any

from wids.errors import DependencyError


def require_packages() -> None:
    """See that the pages can be served.

    Raises:
        DependencyError: a package is not installed.
    """
    for name in ("starlette", "uvicorn", "jinja2"):
        _import(name, "pip install 'wids[serve]'")


def import_ipython() -> Any:
    """The package IPython, with its module ``display``.

    Raises:
        DependencyError: it is not installed.
    """
    _import("IPython.display", "it is a part of every notebook; elsewhere open the server's url")
    return importlib.import_module("IPython")


def _import(name: str, advice: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(f"the pages take {name.partition('.')[0]}; {advice}") from error
