"""Paths of indexes and other outputs that are written, and of the shards in them.

Rules: an output replaces an earlier one of its kind, known by its content, or an empty file; any other file only where
``overwrite`` says so; and never a file that it is made of, by any path.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from wids.errors import OutputError, OutputExistsError
from wids.index import compiled, container, urls, writing
from wids.index.spec import PACKS, is_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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


def check_replaceable(
    path: str,
    what: str,
    is_such: Callable[[str], bool],
    *,
    inputs: Iterable[tuple[str, str]] = (),
    shards: Iterable[str] = (),
    overwrite: bool | None = False,
) -> None:
    """See that an output may take the place of the file that is there, if there is one.

    Args:
        path: of the output, absolute.
        what: it is, in words.
        is_such: whether the file at a path is such an output, by its content; errors in reading it say no.
        inputs: (URL or path, words for it) of what the output is made of, or needs.
        shards: URLs or paths of the shards; compared only where the file is no such output.
        overwrite: any other file may be replaced; None: no caller can say so.

    Raises:
        OutputExistsError: it is one of the inputs; or something else, and ``overwrite`` is not set.
        OutputError: it is a device or a FIFO.
    """
    check_no_device(path, path)
    try:
        status = os.stat(path)
    except OSError:  # there is none
        return
    is_own = False
    with contextlib.suppress(OSError, ValueError, RecursionError):
        is_own = is_such(path)
    needed = [*inputs] if is_own else [*inputs, *((url, "one of the shards") for url in shards)]
    for place, words in needed:
        if _is_file(place, status):
            raise OutputExistsError(f"{path}: is {words}; give the output another name", path=path)
    if not (is_own or overwrite) and status.st_size:
        words, hint = (", or pass overwrite=True", "overwrite") if overwrite is not None else ("", None)
        raise OutputExistsError(f"{path}: exists, and is no {what}; write elsewhere{words}", path=path, hint=hint)


def _is_file(place: str, status: os.stat_result) -> bool:
    """Whether a URL or path leads to a file, also by links."""
    if not urls.is_local(place):
        return False
    try:
        return os.path.samestat(os.stat(os.path.expanduser(urls.local_path(place))), status)
    except (OSError, ValueError):  # it is not there, or no name of a file
        return False


def check_index_replaceable(
    path: str, *, inputs: Iterable[tuple[str, str]] = (), shards: Iterable[str] = (), overwrite: bool | None = False
) -> None:
    """See that an index that is written, JSON or compiled, replaces nothing but such an index; see `check_replaceable`.

    Raises:
        OutputExistsError, OutputError: see there.
    """
    is_binary = compiled.is_compiled(path)
    what, is_such = ("compiled index", _is_compiled) if is_binary else ("index", _is_json_index)
    check_replaceable(path, what, is_such, inputs=inputs, shards=shards, overwrite=overwrite)


def check_table_replaceable(path: str, what: str = "member table") -> None:
    """See that a member table, or several one after another, replaces or deletes nothing but such a file.

    Raises:
        OutputExistsError, OutputError: see `check_replaceable`.
    """
    check_replaceable(path, what, _is_table, overwrite=None)


def _is_table(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(len(container.MAGIC))
    # Earlier versions have another letter behind these; zeros are what a disk leaves of a file.
    return head.startswith(container.MAGIC[:4]) or not head.strip(b"\0")


def _is_compiled(path: str) -> bool:
    with open(path, "rb") as file:
        return container.kind_of(file.read(container.START_BYTES)) == compiled.KIND


def _is_json_index(path: str) -> bool:
    with open(path, "rb") as file:
        if not file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):  # a shard is not read to its end
            return False
        file.seek(0)
        return is_index(file.read())


def named_packs(packs: Iterable[str], home: str) -> dict[str, str | list[str]]:
    """The key that names packs of member tables, as an index in the directory ``home`` has it; {}: there are none."""
    names = names_of(packs, home)
    return {PACKS: names[0] if len(names) == 1 else names} if names else {}


def names_of(packs: Iterable[str], home: str) -> list[str]:
    """How packs, each once, are written in an index that lies in the directory ``home``."""
    return [writing.written(absolute(url), home) for url in dict.fromkeys(packs)]
