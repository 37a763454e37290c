"""The table of stores that have versions and data sets by name, and the modules that know them.

A module is imported for the first place that may be its store's. No other module of the core names one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from wids.core.files import forks
from wids.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wids.core.place import Place
    from wids.core.transport.session import Session
    from wids.core.transport.source import ByteSource, Precedence


class KnownFile(NamedTuple):
    """The entry of a file in a listing.

    Attributes:
        size: in bytes.
        sha256: of its bytes, in hexadecimal digits; None: unknown.
        tag: files with equal tags have equal bytes.
    """

    size: int
    sha256: str | None
    tag: str


class Store(Protocol):
    """The functions of a store's module."""

    def open_source(
        self, url: str, session: Session, *, go_on: Callable[[], None], precedence: Precedence | None
    ) -> ByteSource | None:
        """The source of a file; see `wids.core.transport.stores.open_source`. None: the URL is of another store."""

    def known_file(self, url: str, session: Session) -> KnownFile | None:
        """The known entry of a file in the version that this process reads, or None; sends no request."""

    def read_once(self, url: str, session: Session, read: Callable[[], bytes]) -> bytes:
        """The bytes of a small file, which ``read`` returns, unless this machine has read it before."""

    def pins(self) -> Mapping[Any, Any]:
        """The versions that this process reads, to be passed to a new process."""

    def note_pins(self, versions: Mapping[Any, Any]) -> None:
        """Use these versions, except where this process already reads another one."""


class _Scheme(NamedTuple):
    """The modules of a scheme.

    Attributes:
        store: a `Store`.
        catalog: its data sets by name; see `wids.hub.datasets`.
        names: a data set's name begins with one of these.
        mark: in the path of http(s) URLs that may be of the store.
        package: the package that the store needs. Without it, http(s) URLs are read as those of any server.
    """

    store: str
    catalog: str
    names: tuple[str, ...]
    mark: str
    package: str


_HUB = _Scheme(
    "wids.hub.source",
    "wids.hub.datasets",
    ("hf://datasets/", "https://huggingface.co/datasets/"),
    "/resolve/",
    "huggingface_hub",
)
_SCHEMES = {"hf": _HUB}


def find_store(place: Place) -> Store | None:
    """The store that a place may be in; None: there is none but that of its bytes."""
    registered = _SCHEMES.get(place.scheme)
    if registered is None and place.scheme in ("http", "https"):
        text = str(place)
        registered = next(
            (each for each in _SCHEMES.values() if each.mark in text and _is_installed(each.package)), None
        )
    return None if registered is None else cast("Store", _load(registered.store))


def find_catalog(name: str) -> Any:
    """The module that opens what a text names, if it is the name of a data set; else None."""
    module = next((_load(each.catalog) for each in _SCHEMES.values() if name.startswith(each.names)), None)
    return module if module is not None and module.parse_name(name) is not None else None


def find_listing(place: Place) -> Any:
    """The module that lists the files of a place's store; None: fsspec does."""
    registered = _SCHEMES.get(place.scheme)
    return None if registered is None else _load(registered.catalog)


def with_split(name: Any, *, split: str | None, revision: str | None, config: str | None) -> Any:
    """The name of a data set with its split, revision and configuration; see `wids.hub.repository.with_split`."""
    return _load(_HUB.catalog).with_split(name, split=split, revision=revision, config=config)


def pins() -> dict[str, Mapping[Any, Any]]:
    """Scheme -> the versions that this process reads, to be passed to a new process."""
    loaded = {scheme: sys.modules.get(each.store) for scheme, each in _SCHEMES.items()}
    versions: dict[str, Mapping[Any, Any]] = {scheme: getattr(each, "pins", dict)() for scheme, each in loaded.items()}
    return {scheme: each for scheme, each in versions.items() if each}


def note_pins(versions: Mapping[str, Mapping[Any, Any]]) -> None:
    """Use these versions; see `pins`."""
    for scheme, each in versions.items():
        cast("Store", _load(_SCHEMES[scheme].store)).note_pins(each)


@functools.cache
def _is_installed(package: str) -> bool:
    with forks.lock:
        is_there = importlib.util.find_spec(package) is not None
    if not is_there:
        logger.warning("without %s, URLs that may be the Hub's are read as any server's: no commit is kept", package)
    return is_there


def _load(name: str) -> Any:
    with forks.lock:
        return importlib.import_module(name)
