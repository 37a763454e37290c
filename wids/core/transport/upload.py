"""Outputs: files in a local directory, or in any store that fsspec knows.

A file is published complete or not at all. A local file is renamed from a part file; an object store shows an object
after its upload; other stores get the file under another name, and rename it. A local output replaces an earlier one of
its kind, recognised by its content, or an empty file. It replaces any other file only with ``overwrite``, and never one
of its inputs, by any path.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
from typing import TYPE_CHECKING, Any

from wids.core.files import atomic
from wids.core.place import Place
from wids.core.transport import filesystems
from wids.core.transport.download import read_bytes
from wids.core.transport.failures import missing_advice, public_cause
from wids.core.transport.session import PLAIN, Session
from wids.errors import DependencyError, OutputError, OutputExistsError, ShardNotFoundError, WidsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# In these stores, an object does not exist until its upload is complete.
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "oss", "oci", "memory"})


class Target:
    """Files by URL or path, to be written.

    Args:
        session: opens URLs.
    """

    def __init__(self, session: Session = PLAIN) -> None:
        self.session = session

    def make_directory(self, url: str) -> None:
        """Make the directory in which ``url`` will be; a store makes its own.

        Raises:
            OutputError: it cannot be made.
        """
        if (place := Place(url)).is_local:
            with explained(url):
                os.makedirs(os.path.dirname(place.absolute.path), exist_ok=True)

    def put_file(self, part: str, url: str) -> None:
        """Move a local file to a URL, under its name once it is complete.

        Raises:
            OutputError: it cannot be written there.
        """
        if (place := Place(url)).is_local:
            with explained(url):
                os.replace(part, place.absolute.path)
            return
        size = os.stat(part).st_size
        with self._written(url) as (filesystem, name):
            filesystem.put_file(part, name)
        with explained(url):
            filesystem, name = self._fresh(url)
            uploaded_bytes = filesystem.info(name)["size"]
        if uploaded_bytes != size:
            raise OutputError(f"{url}: has {uploaded_bytes} of {size} bytes after the upload; run it again", url=url)
        os.unlink(part)

    def put_bytes(self, data: bytes, url: str) -> None:
        """Write a small file.

        Raises:
            OutputError: it cannot be written.
        """
        if (place := Place(url)).is_local:
            with explained(url):
                atomic.write_atomically(place.absolute.path, data)
            return
        with self._written(url) as (filesystem, name):
            filesystem.pipe_file(name, data)

    def get_bytes(self, url: str) -> bytes | None:
        """Read a small file; None if it does not exist.

        Raises:
            FetchError: it cannot be read.
        """
        try:
            return read_bytes(url, session=self.session)
        except ShardNotFoundError:
            return None

    def describe(self, url: str) -> tuple[int, int] | None:
        """(size in bytes, modification time in nanoseconds, or 0 if unknown); None if the file does not exist.

        Raises:
            OutputError: the store does not answer.
        """
        with explained(url), contextlib.suppress(FileNotFoundError):
            if (place := Place(url)).is_local:
                status = os.stat(place.absolute.path)
                return status.st_size, status.st_mtime_ns
            filesystem, name = filesystems.open_filesystem(url, self.session)
            return int(filesystem.info(name)["size"]), 0
        return None

    def list_beside(self, url: str) -> list[str]:
        """The names of the files in the directory of a URL; empty without such a directory.

        Raises:
            OutputError: the store does not answer.
        """
        with explained(url), contextlib.suppress(FileNotFoundError):
            if (place := Place(url)).is_local:
                return os.listdir(os.path.dirname(place.absolute.path))
            filesystem, name = self._fresh(url)
            paths = filesystem.ls(filesystem._parent(name), detail=False)  # noqa: SLF001 - its name for all to use
            return [posixpath.basename(path.rstrip("/")) for path in paths]
        return []

    def remove(self, url: str) -> None:
        """Remove a file, if it exists.

        Raises:
            OutputError: it cannot be removed.
        """
        with explained(url), contextlib.suppress(FileNotFoundError):
            if (place := Place(url)).is_local:
                os.unlink(place.absolute.path)
            else:
                filesystem, name = self._fresh(url)
                if filesystem.exists(name):
                    filesystem.rm_file(name)

    def _fresh(self, url: str) -> tuple[Any, str]:
        """The file system, with its cache of the store dropped, and the name in it."""
        filesystem, name = filesystems.open_filesystem(url, self.session)
        filesystem.invalidate_cache()
        return filesystem, name

    @contextlib.contextmanager
    def _written(self, url: str) -> Iterator[tuple[Any, str]]:
        """(file system, the name to write to): at the end, the file has its own name, or does not exist."""
        with explained(url):
            filesystem, final = filesystems.open_filesystem(url, self.session)
            if Place(url).scheme in _WHOLE:
                yield filesystem, final
                return
            name = f"{final}.{secrets.token_hex(4)}.part"
            try:
                yield filesystem, name
                filesystem.mv(name, final)
            except BaseException:
                with contextlib.suppress(Exception):
                    filesystem.rm_file(name)
                raise


def check_place(output: str, what: str, name: str) -> str:
    """The absolute path of an output file.

    Args:
        output: a path.
        what: it is, in words.
        name: of such a file.

    Raises:
        OutputError: it is a URL, a directory, or in a directory that does not exist.
    """
    place = Place(output)
    if not place.is_local:
        raise OutputError(f"{output}: {what} is written to a local file; copy it there afterwards", url=output)
    path = place.absolute.path
    if os.path.isdir(path):
        raise OutputError(f"{output}: is a directory; give a file, like {os.path.join(output, name)}", path=path)
    if not os.path.isdir(os.path.dirname(path)):
        raise OutputError(f"{output}: there is no directory {os.path.dirname(path)}; make it first", path=path)
    return path


def check_no_device(path: str, output: str) -> None:
    """Check that a file at a path, if any, can be replaced: ``output`` is how the caller wrote it.

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
    other: Callable[[], str | None] = lambda: None,
    inputs: Iterable[tuple[str, str]] = (),
    shards: Iterable[str] = (),
    overwrite: bool | None = False,
) -> None:
    """Check that an output may replace the existing file, if any.

    Args:
        path: of the output, absolute.
        what: it is, in words.
        is_such: True if the file at a path is such an output, by its content; an error of reading means no.
        other: words for such an output that is not an earlier version of this one, but of other data; None: it is one.
        inputs: (URL or path, words for it) of the files that the output is made from, or needs.
        shards: URLs or paths of the shards; compared only if the file is no such output.
        overwrite: allow to replace any other file; None: the caller has no such option.

    Raises:
        OutputExistsError: it is one of the inputs; or something else, or of other data, and ``overwrite`` is not set.
        OutputError: it is a device or a FIFO.
    """
    check_no_device(path, path)
    try:
        status = os.stat(path)
    except OSError:  # it does not exist
        return
    is_own = False
    with contextlib.suppress(OSError, ValueError, RecursionError):
        is_own = is_such(path)
    needed = [*inputs] if is_own else [*inputs, *((url, "one of the shards") for url in shards)]
    for name, words in needed:
        if _is_file(name, status):
            raise OutputExistsError(f"{path}: is {words}; give the output another name", path=path)
    objection = other() if is_own else f"exists, and is no {what}"
    if objection is not None and not overwrite and status.st_size:
        words, hint = (", or pass overwrite=True", "overwrite") if overwrite is not None else ("", None)
        raise OutputExistsError(f"{path}: {objection}; write elsewhere{words}", path=path, hint=hint)


def _is_file(url: str, status: os.stat_result) -> bool:
    """True if a URL or path leads to a file, also by links."""
    place = Place(url)
    try:
        return place.is_local and os.path.samestat(os.stat(place.path), status)
    except (OSError, ValueError):  # it does not exist, or cannot be the name of a file
        return False


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Write to a URL in the block.

    Raises:
        OutputError: the write failed. DependencyError: a package is missing.
    """
    try:
        yield
    except WidsError:
        raise
    except Exception as error:  # noqa: BLE001 - raised again, explained
        raise _explain(url, error) from public_cause(error, url)


def _explain(url: str, error: Exception) -> WidsError:
    cause = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        return DependencyError(f"{url}: {cause}. {missing_advice(error, url)}", url=url)
    advice = "check the path and its permissions" if Place(url).is_local else "check the URL, credentials and options"
    return OutputError(f"{url}: cannot be written ({cause}); {advice}", url=url)
