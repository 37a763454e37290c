"""Paths of indexes that are written, and of the shards in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wids.errors import OutputError
from wids.index import compiled, urls, writing
from wids.index.spec import PACKS

if TYPE_CHECKING:
    from collections.abc import Iterable


def absolute(url: str) -> str:
    """A local path as an absolute one; any other URL as it is."""
    if not urls.is_local(url):
        return url
    return writing.writable(os.path.abspath(os.path.expanduser(urls.local_path(url))))


def public_place(url: str) -> str:
    """How files that are given to others name a file: a local path is absolute, a URL without what gives access."""
    return absolute(url) if urls.is_local(url) else urls.without_access(url)


def check_output(output: str, *, is_compiled: bool = False) -> str:
    """The absolute path of an index that is to be written.

    Args:
        output: a path.
        is_compiled: it is to be a compiled one, which is known by its name; else it is JSON.

    Raises:
        OutputError: it is a URL, a directory, a shard, in a directory that does not exist, or has the name of the other
            kind of index.
    """
    path = check_place(output, "an index", "train.json")
    if path.endswith(".tar"):
        raise OutputError(f"{output}: an index is a JSON file, and this is the name of a shard", path=path)
    if is_compiled != compiled.is_compiled(path):
        what = (
            f"a compiled index has a name that ends in {compiled.SUFFIX}"
            if is_compiled
            else "this is the name of a compiled index; write a JSON file, and compile it (wids index convert)"
        )
        raise OutputError(f"{output}: {what}", path=path)
    return path


def check_place(output: str, what: str, name: str) -> str:
    """The absolute path of a file that is to be written.

    Args:
        output: a path.
        what: it is, in words.
        name: of such a file.

    Raises:
        OutputError: it is a URL, a directory, or in a directory that does not exist.
    """
    if not urls.is_local(output):
        raise OutputError(f"{output}: {what} is written to a local file; copy it there afterwards", url=output)
    path = os.path.abspath(os.path.expanduser(urls.local_path(output)))
    if os.path.isdir(path):
        raise OutputError(f"{output}: is a directory; give a file, like {os.path.join(output, name)}", path=path)
    if not os.path.isdir(os.path.dirname(path)):
        raise OutputError(f"{output}: there is no directory {os.path.dirname(path)}; make it first", path=path)
    return path


def check_no_device(path: str, output: str) -> None:
    """See that a file at a path, if there is one, can be replaced: ``output`` is how the caller wrote it.

    Raises:
        OutputError: it is a device or a FIFO.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"{output}: is a device, not a file; choose another name", path=path)


def named_packs(packs: Iterable[str], home: str) -> dict[str, str | list[str]]:
    """The key that names packs of member tables, as an index in the directory ``home`` has it; {}: there are none."""
    names = names_of(packs, home)
    return {PACKS: names[0] if len(names) == 1 else names} if names else {}


def names_of(packs: Iterable[str], home: str) -> list[str]:
    """How packs, each once, are written in an index that lies in the directory ``home``."""
    return [writing.writable(writing.relative_to(absolute(url), home)) for url in dict.fromkeys(packs)]
