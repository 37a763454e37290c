"""Decodes all samples of a shard, member by member, to find members that cannot be decoded."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from wids.core.files.open_file import OpenFile
from wids.core.readers.local import LocalReader
from wids.errors import ChangedShardError, DecodeError, JobError, ShardError, UnsafeFormatError
from wids.jobs.problems import Problem, problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from wids.core.tables.table import MemberTable

    Sample: TypeAlias = dict[str, Any]
    Decode: TypeAlias = Callable[[Sample], Sample]

_ADVICE = "repair or leave out the member, or register a decoder for it"


def decode_file(
    path: str, table: MemberTable, url: str, decode: Decode, rows: Sequence[int] | None = None
) -> tuple[list[Problem], int]:
    """Decode each member of a local file, or only of the samples in ``rows``; see `decode_samples`."""
    chosen = range(table.nsamples) if rows is None else [int(row) for row in rows if row < table.nsamples]
    try:
        file, _ = OpenFile.open(path)
        with contextlib.closing(LocalReader(file, table=table, url=url, path=path)) as reader:
            return decode_samples(((row, reader.read(row)) for row in chosen), decode, url)
    except (ShardError, OSError) as error:
        return [problem_of(ChangedShardError(f"{url}: changed or failed while it was decoded ({error})", shard=url))], 0


def decode_samples(samples: Iterable[tuple[int, Sample]], decode: Decode, url: str) -> tuple[list[Problem], int]:
    """Decode each member separately: (failures, number of members not decoded because that could run code).

    Args:
        samples: (row, sample as a `LocalReader` gives it).
        decode: takes a sample, raises DecodeError.
        url: of their shard.
    """
    problems: list[Problem] = []
    undecoded = 0
    for row, sample in samples:
        key = sample.pop("__key__")
        for field, value in sample.items():
            try:
                decode({"__key__": key, "__shard__": url, field: value})
            except UnsafeFormatError:
                undecoded += 1
            except DecodeError as error:
                problems.append(_problem(key, field, row, error.__cause__ or error, str(error)))
            except MemoryError as error:
                problems.append(_problem(key, field, row, error, "it takes more memory than the process has"))
    return problems, undecoded


def crash_of(error: JobError) -> Problem:
    """The problem of a shard whose decoding ended the process."""
    code = error.found
    how = "on a Ray cluster" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
    what = f"decoding its samples ended the process ({how})"
    return Problem(kind="decode", what=what, advice="look for the sample in this shard alone", detail=str(error))


def _problem(key: str, field: str, row: int, cause: BaseException, detail: str) -> Problem:
    is_ours = isinstance(cause, DecodeError)  # reports have its advice in a column of its own
    words = str(cause).partition("; ")[0] if is_ours else f"{type(cause).__name__}: {cause}"
    return Problem(
        kind="decode",
        what=f"cannot be decoded ({words})",
        where=f"sample {key!r} {field}",
        advice=_ADVICE,
        detail=detail,
        key=key,
        field=field,
        row=row,
    )
