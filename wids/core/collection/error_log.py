"""Files of samples that failed: ``error_log=`` and ``wids verify --report`` write them, and `exclude` reads them.

A line of JSON for each failure, ASCII; ``index`` (in the dataset or view that was read) only where a dataset wrote it::

    {"index": 17, "shard": "/data/train-003.tar", "row": 5, "key": "0017", "field": ".jpg", "error": "DecodeError: ..."}

A sample is known by its shard's name and its row, the same in a dataset and its views: local shards by their absolute
path, others by their URL without its credentials. The same sample may be there many times.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import msgspec

from wids.core.files import atomic, json_text
from wids.core.place import Place
from wids.core.shard import Count  # noqa: TC001 - msgspec reads the annotations
from wids.errors import InputError, JsonError, OutputError, without_secrets
from wids.events import logger

if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".jsonl"
# A message may have a whole sample in it.
_MAX_READ, _MAX_WORDS = 1 << 16, 1000


class _Line(msgspec.Struct):
    shard: str | None
    row: Count | None


def describe(error: BaseException) -> str:
    """The class and the message of an error, in at most 1,000 characters, without the secrets of URLs."""
    try:
        text = str(error)[:_MAX_READ]
    except Exception as failure:  # noqa: BLE001 - of a class that is not ours
        text = f"its message cannot be read ({type(failure).__name__})"
    return without_secrets(f"{type(error).__name__}: {text}")[:_MAX_WORDS]


def format_line(url: str, **details: Any) -> bytes:
    """The line of a failure: ``row``, ``key``, ``field``, ``error`` and perhaps ``index`` of a sample of a shard."""
    index = {"index": details.pop("index")} if "index" in details else {}
    return json.dumps({**index, "shard": Place(url).absolute.unsigned, **details}).encode() + b"\n"


def check(path: str, what: str, *, overwrite: bool | None = None) -> str:
    """The absolute path of a log that is to be written, or added to.

    Args:
        path: of the file.
        what: it is, in words.
        overwrite: another file may be replaced; None: no caller can say so.

    Raises:
        OutputError: it is a URL, a directory or a device, in a directory that does not exist, or has another suffix.
        OutputExistsError: there is a file that is no such log.
    """
    from wids.core.transport.upload import check_place, check_replaceable

    absolute = check_place(path, what, f"bad{SUFFIX}")
    if not absolute.endswith(SUFFIX):
        raise OutputError(f"{path}: the name of {what} ends in {SUFFIX}, by which `exclude` knows it", path=absolute)
    check_replaceable(absolute, "log of samples that failed", _is_log, overwrite=overwrite)
    return absolute


def _is_log(path: str) -> bool:
    with open(path, "rb") as file:
        return any(_has_sample(line) for line in file.read(_MAX_READ).split(b"\n"))


def _has_sample(line: bytes) -> bool:
    """True if a line is that of a sample; one that a killed writer cut is not."""
    with contextlib.suppress(ValueError, msgspec.MsgspecError):  # before 0.19, the second is not the first
        msgspec.convert(json_text.parse(line), _Line)
        return True
    return False


def read_rows(path: str) -> dict[str, set[int]]:
    """The samples that a log names: name of a shard -> rows in it.

    Lines that are no JSON (one that was cut, when its writer was killed), or that name no sample, are left out, and
    counted in a warning.

    Raises:
        InputError: it cannot be read, or is no such log.
    """
    rows, damaged, nameless = dict[str, set[int]](), 0, 0
    error = JsonError("it has no line of one")
    try:
        with open(atomic.open_file(path)[0], "rb") as file:
            for line in filter(bytes.strip, file):
                try:
                    raw = json_text.parse(line)
                except JsonError as failure:
                    damaged, error = damaged + 1, failure
                    continue
                entry = msgspec.convert(raw, _Line)
                if entry.shard is None or entry.row is None:
                    nameless += 1
                else:
                    rows.setdefault(entry.shard, set()).add(entry.row)
        if damaged and not rows:
            raise error
    except (OSError, ValueError, msgspec.MsgspecError) as failure:
        raise InputError(f"{path}: cannot be read as a log of errors ({failure})", path=path) from failure
    if damaged:
        logger.warning("%s: %d of its lines are cut or damaged, and are skipped", path, damaged)
    if nameless:
        logger.warning("%s: %d of its lines name no sample of a shard, and are left out", path, nameless)
    return rows
