"""Paths of indexes and other outputs to be written, and of the shards in them.

Rules: an output replaces an earlier version of itself (`wids.core.index.earlier`), recognised by its content, or an
empty file. It replaces any other file only with ``overwrite``, and never one of its inputs, by any path.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from wids.core.files import container
from wids.core.index import compiled, writing
from wids.core.index.earlier import EarlierIndex, other_compiled
from wids.core.index.spec import PACKS, is_index
from wids.core.place import Place
from wids.core.transport.upload import check_place, check_replaceable
from wids.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class ViewShards(NamedTuple):
    """The shards of a view.

    Attributes:
        parent: URL or path of the index that lists them; None: the view lists them itself.
        digest: their fingerprint.
    """

    parent: str | None
    digest: str


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
        is_compiled: it is compiled, as its name shows; False: JSON.

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
    path: str,
    *,
    inputs: Iterable[tuple[str, str]] = (),
    shards: Iterable[str] = (),
    is_later: Callable[[EarlierIndex], bool] = lambda _: False,
    view: ViewShards | None = None,
    is_view: bool = False,
    has_parts: bool = False,
    overwrite: bool | None = False,
) -> EarlierIndex:
    """Check that a new index, JSON or compiled, replaces only an earlier version of itself; see `check_replaceable`.

    Args:
        path: of the output, absolute.
        inputs: files that the output is made from; see there.
        shards: URLs or paths of its shards.
        is_later: the output is a later version of an index that lists none of ``shards``.
        view: the shards of a view.
        is_view: the output is a view, whose shards are not known yet.
        has_parts: the output lists its shards as sub-datasets.
        overwrite: also replace any other file; see there.

    Returns:
        The earlier version; without keys if there is none.

    Raises:
        OutputExistsError, OutputError: see there. OutputExistsError: it is a view and the output is none, or the
            reverse; or it has other shards.
    """
    shards = list(shards)
    if compiled.is_compiled(path):
        what, other = "compiled index", functools.partial(other_compiled, path, shards)
        check_replaceable(path, what, _is_compiled, other=other, inputs=inputs, shards=shards, overwrite=overwrite)
        return EarlierIndex(path, {})
    replaced: list[EarlierIndex] = []

    def other_index() -> str | None:
        earlier = EarlierIndex.read(path)
        words = earlier.other_kind(is_view=is_view or view is not None, has_parts=has_parts)
        if words is None and view is not None:
            words = earlier.other_parent(view.parent, view.digest, shards)
        elif words is None and not is_view and earlier.entries:
            words = None if earlier.lists(shards) or is_later(earlier) else earlier.other_shards()
        replaced.extend([earlier] if words is None else [])
        return words

    check_replaceable(
        path, "index", _is_json_index, other=other_index, inputs=inputs, shards=shards, overwrite=overwrite
    )
    return replaced[0] if replaced else EarlierIndex(path, {})


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
