"""Paths of indexes and other outputs to be written, and of the shards in them.

Rules: an output replaces an earlier one of its kind, recognised by its content, or an empty file. It replaces any other
file only with ``overwrite``, and never one of its inputs, by any path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wids.errors import OutputError
from wids.files import container
from wids.index import compiled, writing
from wids.index.spec import PACKS, is_index
from wids.transport.place import Place
from wids.transport.upload import check_place, check_replaceable

if TYPE_CHECKING:
    from collections.abc import Iterable


def absolute(url: str) -> str:
    """A local path as an absolute one; any other URL as it is."""
    return str(Place(url).absolute)


def public_place(url: str) -> str:
    """The name of a file in files for others: a local path is absolute, a URL has no credentials."""
    return Place(url).absolute.unsigned


def check_output(output: str, *, is_compiled: bool = False) -> str:
    """The absolute path of an index to be written.

    Args:
        output: a path.
        is_compiled: whether it is compiled, which its name shows, or JSON.

    Raises:
        OutputError: it is a URL, a directory, a shard, in a directory that does not exist, or has the name of the other
            kind of index.
    """
    path = check_place(output, "an index", "train.json")
    if path.endswith(".tar"):
        raise OutputError(
            f"{output}: an index is a JSON file, and this is the name of a shard", path=path, parameter="output"
        )
    if is_compiled != compiled.is_compiled(path):
        what = (
            f"a compiled index has a name that ends in {compiled.SUFFIX}"
            if is_compiled
            else "this is the name of a compiled index; write a JSON file, and compile it (wids index convert)"
        )
        raise OutputError(f"{output}: {what}", path=path, parameter="output")
    return path


def check_index_replaceable(
    path: str, *, inputs: Iterable[tuple[str, str]] = (), shards: Iterable[str] = (), overwrite: bool | None = False
) -> None:
    """Check that a new index, JSON or compiled, replaces only such an index; see `check_replaceable`.

    Raises:
        OutputExistsError, OutputError: see there.
    """
    is_binary = compiled.is_compiled(path)
    what, is_such = ("compiled index", _is_compiled) if is_binary else ("index", _is_json_index)
    check_replaceable(path, what, is_such, inputs=inputs, shards=shards, overwrite=overwrite)


def _is_compiled(path: str) -> bool:
    with open(path, "rb") as file:
        return container.kind_of(file.read(container.START_BYTES)) == compiled.KIND


def _is_json_index(path: str) -> bool:
    with open(path, "rb") as file:
        start = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start.startswith(b"{"):  # a shard, which is not read completely
            return False
        file.seek(0)
        return is_index(file.read())


def named_packs(packs: Iterable[str], home: str) -> dict[str, str | list[str]]:
    """The key for packs of member tables, as in an index in the directory ``home``; {}: no packs exist."""
    names = names_of(packs, home)
    return {PACKS: names[0] if len(names) == 1 else names} if names else {}


def names_of(packs: Iterable[str], home: str) -> list[str]:
    """The form of packs, each once, in an index in the directory ``home``."""
    return [writing.written(absolute(url), home) for url in dict.fromkeys(packs)]
