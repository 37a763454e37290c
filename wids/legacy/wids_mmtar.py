"""``wids.wids_mmtar`` of the original: the members of one local tar by number or name."""

from __future__ import annotations

import contextlib
import os
from io import BytesIO
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from wids.core.tables import member_tables, table
from wids.errors import TruncatedShardError
from wids.legacy import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, KeysView

    from wids.core.tables.tar import Member

_HEADERS = "MMIndexedTar(path).by_index has (name, header offset, size) of each member, for all forms of headers"
__getattr__: Callable[[str], NoReturn] = refuse(
    __name__, dict.fromkeys(("TarHeader", "parse_tar_header", "next_header"), _HEADERS)
)


class MMIndexedTar:
    """Members of a tar: ``by_index[i]`` is (name, header offset, size in bytes). Owns the stream it is given."""

    members: list[Member]
    fname: str | None
    by_index: list[tuple[str, int, int]]
    by_name: dict[str, int]

    def __init__(
        self,
        fname: str | os.PathLike[str] | BinaryIO,
        index_file: object = None,  # noqa: ARG002 - programs pass it; the original ignored it too
        verbose: bool = True,  # noqa: ARG002 - nothing is printed
        cleanup_callback: Callable[[str | None, int, str], None] | None = None,
    ) -> None:
        is_path = isinstance(fname, (str, os.PathLike))
        self.fname = os.fspath(fname) if isinstance(fname, (str, os.PathLike)) else None
        self.stream: BinaryIO = open(fname, "rb") if is_path else fname  # type: ignore[arg-type, assignment]  # noqa: SIM115
        self.cleanup_callback = cleanup_callback
        if cleanup_callback:
            cleanup_callback(self.fname, self.stream.fileno(), "start")
        fd = self.stream.fileno()
        try:
            name = self.fname or str(getattr(self.stream, "name", "stream"))
            self.members = list(member_tables.scan_members(fd, name, os.fstat(fd).st_size))
        except BaseException:
            self.stream.close()
            raise
        self.by_index = [(table.decode_name(name), header, size) for name, header, _, size in self.members]
        self.by_name = {name: header for name, header, _ in self.by_index}
        self._rows = {member[1]: row for row, member in enumerate(self.members)}

    def __del__(self) -> None:
        # Programs that read one member, or a count, just drop it; there must be no warning of an open file.
        if getattr(self, "fname", None) is not None and hasattr(self, "stream"):
            try:  # noqa: SIM105 - at the interpreter's end a module's names are None
                self.stream.close()
            except OSError:
                pass

    def names(self) -> KeysView[str]:
        """Each name once, as dict keys; as many as ``by_index`` and in its order, unless a name repeats."""
        return self.by_name.keys()

    def get_at_index(self, index: int) -> tuple[str, bytes]:
        _, _, offset, size = self.members[index]
        data = os.pread(self.stream.fileno(), size, offset)
        if len(data) != size:
            raise TruncatedShardError(f"{self.fname}: member {index} at byte {offset} was cut off", offset=offset)
        return self.by_index[index][0], data

    def get_at_offset(self, offset: int) -> tuple[str, bytes]:
        return self.get_at_index(self._rows[offset])

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        return self.get_at_offset(self.by_name[name])

    def get_file(self, i: int) -> tuple[str, BytesIO]:
        name, data = self.get_at_index(i)
        return name, BytesIO(data)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return map(self.get_at_index, range(len(self)))

    def __getitem__(self, key: int | str) -> tuple[str, bytes]:
        return self.get_at_index(key) if isinstance(key, int) else self.get_by_name(key)

    def __len__(self) -> int:
        return len(self.by_index)

    def close(self, dispose: bool = False) -> None:
        """Close the stream; ``dispose`` deletes the file too."""
        if self.stream.closed:
            return
        if self.cleanup_callback:
            self.cleanup_callback(self.fname, self.stream.fileno(), "end")
        self.stream.close()
        if dispose and self.fname is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.fname)


def keep_while_reading(fname: str | None, fd: int, phase: str, delay: float = 0.0) -> None:
    """A ``cleanup_callback``: readers share a lock on the file, and the last one to end deletes it."""
    import fcntl

    if delay:
        raise ValueError(f"delay is {delay}; only 0 is supported")
    if phase not in ("start", "end"):
        raise ValueError(f"phase is {phase!r}; it must be 'start' or 'end'")
    if fd < 0 or fname is None:
        return
    if phase == "start":
        fcntl.flock(fd, fcntl.LOCK_SH)
        return
    with contextlib.suppress(BlockingIOError, FileNotFoundError):  # others still read it, or deleted it already
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(fname)
