"""Where shards are written to: a local directory, or any store that fsspec knows.

A file appears whole or not at all. Locally it is renamed from a part file; a store of
objects shows an object when its upload is done; elsewhere it is uploaded under another name, and then renamed. Nothing
is deleted but what matches the output pattern.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from wids.errors import DependencyError, OutputError, OutputExistsError, ShardNotFoundError, WidsError
from wids.index import urls
from wids.index.table import SUFFIX
from wids.osfiles import atomic, system
from wids.osfiles.index_paths import check_table_replaceable
from wids.transport import filesystems
from wids.transport.download import read_bytes
from wids.transport.failures import missing_advice, public_cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wids.index.pattern import ShardPattern
    from wids.index.table import MemberTable

# In these an object is not there until all of it is.
_WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "oss", "oci", "memory"})


class Target:
    """Files by URL or path, to be written.

    Args:
        storage_options: for fsspec.
    """

    def __init__(self, storage_options: dict[str, Any] | None = None) -> None:
        self.storage_options = storage_options

    def make_directory(self, url: str) -> None:
        """Make the directory in which ``url`` will be; a store makes its own.

        Raises:
            OutputError: it cannot be made.
        """
        if urls.is_local(url):
            with _explained(url):
                os.makedirs(os.path.dirname(local_path(url)), exist_ok=True)

    def put_shard(self, part: str, url: str, table: MemberTable | None) -> None:
        """Publish a local file as a shard, its table first; the file is gone afterwards.

        A table beside no shard, or beside another one, is not used: it knows its shard's size and md5.

        Raises:
            OutputError: it cannot be put there. OutputExistsError: in the place of its table is another file.
        """
        if urls.is_local(url):
            path = local_path(url)
            check_table_replaceable(path + SUFFIX)
            with _explained(url):
                if table is not None:
                    atomic.write_atomically(path + SUFFIX, table.to_bytes())
                else:  # that of an earlier shard
                    self.remove(url + SUFFIX)
                os.replace(part, path)
            return
        if table is not None:
            # When a copy of it is made, and so what its time is, is not known yet.
            identity = msgspec.structs.replace(table.identity, mtime_ns=None)
            self.put_bytes(table.with_identity(identity).to_bytes(), url + SUFFIX)
        size = os.stat(part).st_size
        with self._written(url) as (filesystem, name):
            filesystem.put_file(part, name)
        with _explained(url):
            filesystem, name = self._fresh(url)
            found = filesystem.info(name)["size"]
        if found != size:
            raise OutputError(f"{url}: has {found} of {size} bytes after the upload; run it again", url=url)
        os.unlink(part)

    def put_bytes(self, data: bytes, url: str) -> None:
        """Write a small file.

        Raises:
            OutputError: it cannot be written.
        """
        if urls.is_local(url):
            with _explained(url):
                atomic.write_atomically(local_path(url), data)
            return
        with self._written(url) as (filesystem, name):
            filesystem.pipe_file(name, data)

    def get_bytes(self, url: str) -> bytes | None:
        """Read a small file; None if there is none.

        Raises:
            FetchError: it cannot be read.
        """
        try:
            return read_bytes(url, storage_options=self.storage_options)
        except ShardNotFoundError:
            return None

    def describe(self, url: str) -> tuple[int, int] | None:
        """(size in bytes, modification time in nanoseconds or 0 where that is not known); None if there is no file.

        Raises:
            OutputError: the store does not answer.
        """
        with _explained(url), contextlib.suppress(FileNotFoundError):
            if urls.is_local(url):
                status = os.stat(local_path(url))
                return status.st_size, status.st_mtime_ns
            filesystem, name = filesystems.open_filesystem(url, self.storage_options)
            return int(filesystem.info(name)["size"]), 0
        return None

    def find_shards(self, pattern: ShardPattern) -> dict[int, str]:
        """The shards of a pattern that exist: number -> URL.

        Raises:
            OutputError: the store does not answer.
        """
        url = pattern.url(0)
        names: list[str] = []
        with _explained(url), contextlib.suppress(FileNotFoundError):
            if urls.is_local(url):
                names = os.listdir(os.path.dirname(local_path(url)))
            else:
                filesystem, name = self._fresh(url)
                found = filesystem.ls(filesystem._parent(name), detail=False)  # noqa: SLF001 - its name for all to use
                names = [posixpath.basename(path.rstrip("/")) for path in found]
        numbers = (pattern.number_of(name) for name in names)
        return {number: pattern.url(number) for number in sorted(k for k in numbers if k is not None)}

    def check_free(self, pattern: ShardPattern, *, allows_shards: bool = False, overwrite: bool) -> None:
        """Refuse to write over an earlier dataset; or, with ``overwrite``, remove its index, which no longer holds.

        Args:
            pattern: of what will be written.
            allows_shards: there may be shards, of a run that was ended; an index may not.
            overwrite: allow it.

        Raises:
            OutputExistsError: there is one of them, and ``overwrite`` is not set.
        """
        index = pattern.index_url
        if overwrite:
            self.remove(index)
            return
        found = [] if allows_shards else [*self.find_shards(pattern).values()]
        if self.describe(index) is not None:
            found.append(index)
        if found:
            what = found[-1] if len(found) == 1 else f"{found[-1]} and {len(found) - 1} more"
            raise OutputExistsError(
                f"{what}: exists; write elsewhere, or pass overwrite=True", url=found[-1], hint="overwrite"
            )

    def remove_others(self, pattern: ShardPattern, kept: frozenset[int]) -> int:
        """Remove the shards of a pattern that are not among ``kept``, and their tables; how many there were."""
        others = [url for k, url in self.find_shards(pattern).items() if k not in kept]
        for url in others:
            with contextlib.suppress(OutputExistsError):  # another file
                if urls.is_local(url):
                    check_table_replaceable(local_path(url) + SUFFIX)
                self.remove(url + SUFFIX)
            self.remove(url)
        return len(others)

    def remove(self, url: str) -> None:
        """Remove a file, if it is there.

        Raises:
            OutputError: it cannot be removed.
        """
        with _explained(url), contextlib.suppress(FileNotFoundError):
            if urls.is_local(url):
                os.unlink(local_path(url))
            else:
                filesystem, name = self._fresh(url)
                if filesystem.exists(name):
                    filesystem.rm_file(name)

    def _fresh(self, url: str) -> tuple[Any, str]:
        """The file system, which forgets what it knows of the store, and the name in it."""
        filesystem, name = filesystems.open_filesystem(url, self.storage_options)
        filesystem.invalidate_cache()
        return filesystem, name

    @contextlib.contextmanager
    def _written(self, url: str) -> Iterator[tuple[Any, str]]:
        """(file system, the name to write to): in the end, the file has its own name, or there is none."""
        with _explained(url):
            filesystem, final = filesystems.open_filesystem(url, self.storage_options)
            if urls.scheme_of(url) in _WHOLE:
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


def local_path(url: str) -> str:
    """The absolute path behind a local URL or path."""
    return os.path.abspath(os.path.expanduser(urls.local_path(url)))


def sweep(pattern: ShardPattern) -> None:
    """Remove part files of a local pattern that no process is writing: of runs that were killed."""
    if not urls.is_local(pattern.url(0)):
        return
    directory = os.path.dirname(local_path(pattern.url(0)))
    index = urls.basename_of(pattern.index_url) + "."
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            stem, _, rest = name.partition(".tar.")
            shard = stem + ".tar"
            is_ours = name.startswith(index) or (rest and pattern.number_of(shard) is not None)
            if is_ours and name.endswith(".part"):
                _remove_unlocked(os.path.join(directory, name))


def _remove_unlocked(path: str) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, system.WRITE_FLAGS)
        try:
            if system.try_lock(fd, is_shared=False) is not False:
                os.unlink(path)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
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
    advice = "check the path and its permissions" if urls.is_local(url) else "check the URL, credentials and options"
    return OutputError(f"{url}: cannot be written ({cause}); {advice}", url=url)
