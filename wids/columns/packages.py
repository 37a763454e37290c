"""Imports the packages that columns need when they are requested: pyarrow, duckdb for SQL, soundfile, PyAV (`av`)."""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

from wids.core.files import forks
from wids.errors import DependencyError


def import_arrow() -> Any:
    """The package pyarrow.

    Raises:
        DependencyError: it is not installed.
    """
    return _import("pyarrow", "columns take")


def import_parquet() -> Any:
    """The module ``pyarrow.parquet``.

    Raises:
        DependencyError: pyarrow is not installed.
    """
    return import_part("pyarrow.parquet")


def import_part(name: str) -> Any:
    """A module of pyarrow, such as ``pyarrow.dataset``.

    Raises:
        DependencyError: pyarrow is not installed.
    """
    return _import(name, "columns take")


def import_duckdb() -> Any:
    """The package duckdb.

    Raises:
        DependencyError: it is not installed.
    """
    duckdb = _import("duckdb", "SQL takes")
    _import_later()
    return duckdb


def import_soundfile() -> Any:
    """The package soundfile.

    Raises:
        DependencyError: it is not installed, or finds no libsndfile.
    """
    return _import("soundfile", "columns of sounds take", extra="sounds")


def import_av() -> Any:
    """The package av.

    Raises:
        DependencyError: it is not installed.
    """
    return _import("av", "columns of videos take", extra="videos")


@functools.cache
def _import_later() -> None:
    """Import now what duckdb and pyarrow would import at first use, when another thread may fork."""
    for name in ("pyarrow.compute", "pyarrow.pandas_compat", "pandas"):
        with contextlib.suppress(Exception), forks.lock:
            importlib.import_module(name)


def _import(name: str, what: str, *, extra: str = "views") -> Any:
    try:
        with forks.lock:  # a process that is forked meanwhile would wait for the module's lock for ever
            return importlib.import_module(name)
    except (ImportError, OSError) as error:
        package = name.partition(".")[0]
        raise DependencyError(f"{what} {package}; install it: pip install 'wids[{extra}]'") from error
