"""Decoding all samples of shards, in processes of their own: to use all cores, and because a decoder may crash.

Rules: one process, one shard at a time; whoever asks waits in a thread. A process that dies costs its shard a problem,
and another one takes its place.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import warnings
from typing import TYPE_CHECKING, Any

from wids.errors import DecodeError, ShardError, UnsafeFormatError
from wids.jobs.problems import Looks, Problem
from wids.osfiles import atomic
from wids.readers import member_tables
from wids.readers.local import ShardReader
from wids.transport.failures import CancelledTransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection
    from typing import TypeAlias

    from wids.index.spec import Shard

    Sample: TypeAlias = dict[str, Any]
    Decode: TypeAlias = Callable[[Sample], Sample]

_POLL_SECONDS = 0.2
_ADVICE = "repair or leave out the member, or register a decoder for it"


def decode_samples(samples: Iterable[Sample], decode: Decode, url: str) -> tuple[list[Problem], int]:
    """Decode each member by itself: (what failed, how many members were not decoded because that could run code).

    Args:
        samples: as a `ShardReader` gives them.
        decode: takes a sample, raises DecodeError.
        url: of their shard.
    """
    problems: list[Problem] = []
    undecoded = 0
    for sample in samples:
        key = sample.pop("__key__")
        for field, value in sample.items():
            try:
                decode({"__key__": key, "__shard__": url, field: value})
            except UnsafeFormatError:
                undecoded += 1
            except DecodeError as error:
                problems.append(_problem(key, field, error.__cause__ or error, str(error)))
            except MemoryError as error:
                problems.append(_problem(key, field, error, "it takes more memory than there is"))
    return problems, undecoded


def _problem(key: str, field: str, cause: BaseException, detail: str) -> Problem:
    words = str(cause) if isinstance(cause, DecodeError) else f"{type(cause).__name__}: {cause}"
    return Problem(
        kind="decode",
        what=f"cannot be decoded ({words})",
        where=f"sample {key!r} {field}",
        advice=_ADVICE,
        detail=detail,
        key=key,
        field=field,
    )


class Decoder:
    """A process that decodes shards; not to be shared by threads.

    Args:
        decode: what decodes a sample; it is pickled.
        looks: how members become samples.
        is_cancelled: asked now and then; True ends the waiting.
    """

    def __init__(self, decode: Decode, looks: Looks, *, is_cancelled: Callable[[], bool]) -> None:
        self._decode, self._looks, self._is_cancelled = decode, looks, is_cancelled
        self._process: Any = None
        self._end: Connection | None = None

    def __call__(self, path: str, shard: Shard) -> tuple[list[Problem], int]:
        """Decode a file; see `decode_samples`."""
        end = self._end or self._start()
        try:
            end.send((path, shard.url))
            while not end.poll(_POLL_SECONDS):
                if self._is_cancelled():
                    raise CancelledTransferError
            found: tuple[list[Problem], int] = end.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.close()
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            what = f"decoding its samples ended the process ({how})"
            return [Problem(kind="decode", what=what, advice="look for the sample with fewer shards and --jobs 1")], 0
        return found

    def close(self) -> None:
        """End the process."""
        process, end = self._process, self._end
        self._process = self._end = None
        if end is not None:
            end.close()
        if process is not None:
            process.kill()
            process.join()
            process.close()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._end, its = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(its, self._decode, self._looks), daemon=True, name="wids-decode"
        )
        self._process.start()
        its.close()
        return self._end


def _serve(end: Connection, decode: Decode, looks: Looks) -> None:
    """In a process of its own: decode what is asked for until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that asks ends this one
    warnings.simplefilter("ignore")
    with contextlib.suppress(EOFError, OSError):
        while True:
            path, url = end.recv()
            end.send(_decode_file(path, url, decode, looks))


def _decode_file(path: str, url: str, decode: Decode, looks: Looks) -> tuple[list[Problem], int]:
    try:
        fd, facts = atomic.open_file(path)
        with atomic.closing_on_error(fd):
            table = member_tables.scan_table(fd, url, facts, rule=looks.rule, group=looks.group)
        with contextlib.closing(ShardReader(fd, table=table, url=url, path=os.fspath(path))) as reader:
            return decode_samples(reader, decode, url)
    except (ShardError, OSError) as error:
        what = "changed or failed while it was decoded"
        return [Problem(kind="changed", what=what, advice="look again when nobody writes it", detail=str(error))], 0
