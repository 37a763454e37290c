"""Marked samples, and the file that they are kept in: a view, or a list as ``exclude`` takes it.

Rules: a change is in the file before it is answered. The file is replaced as a whole; one that is not of marks of this
dataset is refused at the start, and one that another program has written since is not replaced. A list of keys means
all samples that have one of them: marked with one are the others of its shard, and of all shards those that a list
names when it is read.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import zipfile
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import Response
from starlette.routing import Route

from wids.columns.kinds import writable
from wids.core.files import atomic, json_text
from wids.core.files.replaced import ReplacedFile
from wids.core.index import view_file
from wids.core.index.fingerprint import fingerprint
from wids.core.index.spec import parse_json
from wids.core.transport.place import Place
from wids.core.transport.upload import check_place, check_replaceable, explained
from wids.dataset import ShardListDataset
from wids.errors import (
    InputError,
    JsonError,
    OutputExistsError,
    SelectionError,
    SpecError,
    WidsError,
    shown,
)
from wids.tools.serve.answers import answer
from wids.tools.serve.places import read_tables, stream
from wids.tools.serve.rows import check_indices, parse_indices
from wids.tools.serve.waiting import work_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from starlette.requests import Request

    from wids.core.index.selection import Integers
    from wids.tools.serve.served import Served

MAX_MARKS = 1_000_000
_MAX_BODY = 8 << 20
_ASKED, _SOME = 5000, 3  # keys in a query, and in an answer
_ADVICE = "start this wids serve again, and it reads the present file"
_KINDS = {".json": "view", ".npy": "indices"}  # of any other suffix, keys


class Marks:
    """The marked samples of a dataset.

    Args:
        served: the dataset.
        path: of the file that they are kept in, a local one: ``.json``: a view; ``.npy``: indices; any other: a text
            with a key a line. "": they are in memory.

    Attributes:
        path: the same, absolute. kind: its contents: ``"view"``, ``"indices"``, ``"keys"``; "": no file.

    Raises:
        OutputError: the file cannot be. OutputExistsError: the file exists and holds no marks of this dataset.
        InputError: it has more marks than there may be, or of other samples. WidsError: keys cannot be looked up.
    """

    path: str
    kind: str

    def __init__(self, served: Served, path: str = "") -> None:
        self._served = served
        self._marked = set[int]()
        self._keys = dict[int, str]()  # of those that are marked, where keys are kept
        self._lock = threading.Lock()
        self.path, self.kind = "", ""
        if path:
            self.kind = _KINDS.get(os.path.splitext(path)[1].lower(), "keys")
            self.path = check_place(path, "a file of marks", "marks.json")
            if os.path.islink(self.path):  # its target is kept up to date, for readers of the target
                self.path = check_place(os.path.realpath(self.path), "a file of marks", "marks.json")
            self._open()

    def __len__(self) -> int:
        return len(self._marked)

    def has(self, index: int) -> bool:
        """Whether a sample is marked."""
        return index in self._marked

    def indices(self) -> Integers:
        """Those that are: int64, ascending."""
        with self._lock:
            return self._sorted(self._marked)

    @staticmethod
    def _sorted(marked: set[int]) -> Integers:
        return np.array(sorted(marked), np.int64)

    def change(self, indices: Iterable[int], *, is_marked: bool) -> list[int]:
        """Mark samples, or no longer.

        Args:
            indices: of the samples, in range.
            is_marked: which of both.

        Returns:
            Others that are changed with them: those of the same key, where keys are kept.

        Raises:
            InputError: too many are marked, or a key cannot be in a list. WidsError: a key cannot be had.
            OutputError: the file cannot be written; nothing has changed.
        """
        given = set(indices)
        found = self._equal_keys(given) if self.kind == "keys" and is_marked else {}
        with self._lock:
            keys = self._keys | found
            changed = given
            if self.kind == "keys":
                changed = set(found) if is_marked else self._of_equal_keys(given)
            marked = self._marked | changed if is_marked else self._marked - changed
            if len(marked) > MAX_MARKS:
                raise InputError(
                    f"{len(marked):,} samples would be marked, and {MAX_MARKS:,} can be; of so many make a view: "
                    "wids view --where"
                )
            if marked != self._marked:
                keys = {index: key for index, key in keys.items() if index in marked}
                self._write(marked, keys)
                self._marked, self._keys = marked, keys
        return sorted(changed - given)

    def _equal_keys(self, given: set[int]) -> dict[int, str]:
        """Those samples, and the others of their shards that have a key of theirs: index -> key.

        Raises:
            InputError: a key cannot be in a list. WidsError: it cannot be had.
        """
        collection, found = self._served.collection, dict[int, str]()
        rows = defaultdict[int, list[int]](list)
        for index in given:
            k, row = collection.locate(index)
            rows[k].append(row)
        for k, chosen in rows.items():
            table = self._served.rows.table(k)
            keys = {table.key(row % len(table)) for row in chosen}
            for key in keys:
                _check_key(key, collection.urls[k])
            equal = {row: key for key in keys for row in table.rows_of(key)}
            own = np.asarray(collection.rows_of(k)) % len(table)
            first = collection.ends[k] - collection.lengths[k]
            for at in np.flatnonzero(np.isin(own, list(equal))).tolist():
                found[first + at] = equal[int(own[at])]
        return found

    def _of_equal_keys(self, given: set[int]) -> set[int]:
        gone = {self._keys[index] for index in given if index in self._keys}
        return {index for index, key in self._keys.items() if key in gone}

    # --- the file

    def view(self) -> ShardListDataset[dict[str, Any]]:
        """A view of those that are marked."""
        return self._served.dataset.select(self.indices())

    def keys(self) -> list[str]:
        """The keys of the marked samples, each once.

        Raises:
            InputError: one cannot be in a list. WidsError: a key cannot be had.
        """
        found = dict[str, None]()
        for index in self.indices().tolist():
            k, row = self._served.collection.locate(index)
            table = self._served.rows.table(k)
            key = table.key(row % len(table))
            _check_key(key, self._served.collection.urls[k])
            found[key] = None
        return list(found)

    def _write(self, marked: set[int], keys: dict[int, str]) -> None:
        if not self.path:
            return
        indices = self._sorted(marked)
        with explained(self.path):
            if self.kind == "view":
                self._served.dataset.select(indices)._save(self.path, file=self._file)  # noqa: SLF001 - as `save`
                return
            data = pack_indices(indices)
            if self.kind == "keys":
                data = pack_keys(dict.fromkeys(keys[index] for index in indices.tolist()))
            with self._file.alone():
                atomic.write_atomically(self.path, data, is_synced=True)

    def _open(self) -> None:
        """Read the file that is there, if there is one.

        Raises:
            WidsError: see the class.
        """
        self._file = ReplacedFile(self.path, advice=_ADVICE)
        served, read = self._served, {"view": self._read_view, "indices": self._read_indices, "keys": self._read_keys}
        found: list[Integers] = []
        reasons: list[Exception] = []

        def is_such(path: str) -> bool:
            try:
                found[:] = [read[self.kind](path)] if os.path.getsize(path) else []
            except (OSError, ValueError, RecursionError) as error:
                reasons.append(error)
            return not reasons

        columns = served.dataset._own_columns().place  # noqa: SLF001 - these pages look at all of it
        inputs = {
            served.collection.place: "the index that this is a view of",
            columns: "the table of its columns",
            served.index: "the index that is looked at",
        }
        named = [(place, words) for place, words in inputs.items() if place is not None]
        try:
            check_replaceable(self.path, f"file of marks of {served.name}", is_such, inputs=named, overwrite=None)
        except OutputExistsError as error:
            if not reasons:
                raise
            if isinstance(reasons[0], WidsError) and not isinstance(
                reasons[0], SpecError
            ):  # whether it is, is not known
                raise reasons[0] from None
            raise OutputExistsError(f"{error} ({reasons[0]})", path=self.path) from error
        marked = set(found[0].tolist()) if found else set[int]()
        if len(marked) > MAX_MARKS:
            raise InputError(f"{self.path}: has {len(marked):,} samples, and {MAX_MARKS:,} can be marked")
        if self.kind == "keys":
            self._keys = self._equal_keys(marked)
        self._marked = marked

    def _read_view(self, path: str) -> Integers:
        served = self._served
        shards = served.collection.shards
        with open(path, "rb") as file:
            view = view_file.parse_view(parse_json(file.read(), path), path)
        if view is None or view.view_of_fingerprint != fingerprint(shards):
            raise SpecError("it is no view of these samples", path=path)
        options = served.dataset._own_columns().session.storage_options  # noqa: SLF001 - those of its index
        opened = ShardListDataset[Any](
            path, cache_dir=served.cache_dir, storage_options=options, transformations=[], access="range"
        )
        whole = opened._collection.whole_indices()  # noqa: SLF001 - as the dataset's own
        opened.close()
        own = served.collection.whole_indices()
        if whole is None or own is None:
            return np.zeros(0, np.int64) if whole is None else whole
        places = np.searchsorted(own, whole)
        if (own[np.minimum(places, len(own) - 1)] != whole).any():
            raise SpecError("it has samples that this view lacks", path=path)
        return places

    def _read_indices(self, path: str) -> Integers:
        found = np.array(
            np.load(path, mmap_mode="r", allow_pickle=False)
        )  # see `wids.core.collection.views.read_samples`
        total = len(self._served.dataset)
        if found.ndim != 1 or found.dtype != np.int64 or (found[1:] <= found[:-1]).any():
            raise SpecError("it has no ascending indices", path=path)
        if len(found) and not 0 <= found[0] <= found[-1] < total:
            raise SpecError(f"it has indices beyond {total} samples", path=path)
        return found

    def _read_keys(self, path: str) -> Integers:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
        keys = set(text.split("\n")[:-1])
        if text and (not text.endswith("\n") or not all(map(_may_be_listed, keys))):
            raise SpecError("it has not a key a line", path=path)
        found, missing = _find_keys(self._served, keys)
        if missing:
            some = shown(min(missing))
            words = f"{len(missing):,} of its {len(keys):,} lines are the key of no sample, such as {some}"
            raise SpecError(words, path=path)
        return found


def _find_keys(served: Served, keys: set[str]) -> tuple[Integers, set[str]]:
    """The indices of all samples with one of the keys, and the keys that no sample has."""
    found, missing = list[int](), set(keys)
    for index, key in enumerate(served.dataset.keys if keys else ()):
        if key in keys:
            found.append(index)
            missing.discard(key)
    return np.array(found, np.int64), missing


def _may_be_listed(key: str) -> bool:
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in key)
    return is_text and bool(key) and "\n" not in key and "\r" not in key and not key.startswith("\ufeff")


def _check_key(key: str, url: str) -> None:
    """See that a list can have a key.

    Raises:
        InputError: it would not be read as it was written.
    """
    if not _may_be_listed(key):
        raise InputError(
            f"{Place(url).public}: the key {shown(writable(key))} cannot stand in a list, which has a line "
            "of UTF-8 for each; keep marks as indices or as a view: --marks FILE.npy or FILE.json"
        )


def pack_indices(indices: Integers) -> bytes:
    """A ``.npy``."""
    data = io.BytesIO()
    np.save(data, indices)
    return data.getvalue()


def pack_keys(keys: Iterable[str]) -> bytes:
    """A text with a key a line."""
    return "".join(f"{key}\n" for key in keys).encode()


def pack_view(marks: Marks) -> bytes:
    """A saved view of the marked samples, as a zip of its two files that may be unpacked anywhere on this machine."""
    data = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="wids-view-") as folder, zipfile.ZipFile(data, "w") as packed:
        path = os.path.join(folder, "marked.json")
        marks.view().save(path)
        with open(path, "rb") as file:
            index = json_text.parse(file.read())
        rows = os.path.basename(index["rows"])
        packed.writestr("marked.json", json.dumps(index, indent=1))
        packed.write(os.path.join(folder, rows), rows)
    return data.getvalue()


def find_repeats(served: Served) -> Iterator[dict[str, Any]]:
    """Look for other samples with the keys of the marked ones; each step says how far it is.

    Yields:
        ``done`` of ``total``; the last has ``keys`` (how many are of several samples), ``some`` of them, and ``errors``
        (shards that could not be read, of which it is not known).

    Raises:
        WidsError: a marked sample's key cannot be had.
    """
    keys, errors = served.marks.keys(), 0
    counts = Counter[str]()
    if "key" in served.columns():
        for at in range(0, len(keys), _ASKED):
            some = ", ".join("'" + str(writable(key)).replace("'", "''") + "'" for key in keys[at : at + _ASKED])
            sql = f"select key, count(*) from samples where key in ({some}) group by 1"  # noqa: S608 - quoted
            counts.update(dict(served.rows.query(sql)))
            yield {"done": at, "total": len(keys)}
    else:
        wanted, total = set(keys), len(served.collection.ends)
        for k, table in read_tables(served):
            if isinstance(table, WidsError):
                errors += 1
            elif table is None:
                yield {"done": k, "total": total}
            else:
                chosen = served.collection.rows_of(k)
                counts.update(key for row in chosen if (key := table.key(row % len(table))) in wanted)
    repeated = sorted(key for key, count in counts.items() if count > 1)
    yield {"keys": len(repeated), "some": [writable(key) for key in repeated[:_SOME]], "errors": errors}


# --- answers


def routes(served: Served) -> list[Route]:
    """``/api/marks``: the marks, and marking; files to download."""
    marks = served.marks

    async def respond(request: Request) -> Response:
        if request.method != "POST":
            asked = parse_indices(request.query_params.get("indices", ""), len(served.dataset))
            return answer({**_facts_of(marks), "marked": [index for index in asked if marks.has(index)]})
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY:
                raise InputError(f"a request has {_MAX_BODY} bytes at most")
        return answer(await work_for(request, lambda: _change(served, bytes(body))))

    def give(make: Callable[[], bytes], name: str, kind: str) -> Callable[[Request], Response]:
        def give(_: Request) -> Response:
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return Response(make(), media_type=kind, headers=headers)

        return give

    files: list[tuple[Callable[[], bytes], str, str]] = [
        (lambda: pack_view(marks), "marked.zip", "application/zip"),
        (lambda: pack_indices(marks.indices()), "marked.npy", "application/octet-stream"),
        (lambda: pack_keys(marks.keys()), "marked.txt", "text/plain; charset=utf-8"),
    ]
    return [
        Route("/api/marks", respond, methods=["GET", "POST"]),
        Route("/api/marks/repeats", lambda _: stream(find_repeats(served))),
        *(Route(f"/api/marks/{name}", give(make, name, kind)) for make, name, kind in files),
    ]


def _facts_of(marks: Marks) -> dict[str, Any]:
    return {"count": len(marks), "file": os.path.basename(marks.path), "kind": marks.kind}


def _change(served: Served, body: bytes) -> dict[str, Any]:
    """Mark what a request names: ``index``, ``indices``; or ``start`` to ``end`` of the list that a page shows.

    Raises:
        InputError: it names nothing. SelectionError: a sample is not there. WidsError: see `Marks.change`.
    """
    try:
        asked = json_text.parse(body)
    except JsonError:
        asked = None
    if not isinstance(asked, dict) or not isinstance(asked.get("is_marked"), bool):
        raise InputError('a request to mark is {"index": 5, "is_marked": true}')
    total = len(served.dataset)
    if "start" in asked:
        start, end = _numbers([asked.get("start"), asked.get("end")])
        chosen = served.choose(str(asked.get("where") or ""), is_marked=asked.get("marked") is True)
        count = total if chosen is None else len(chosen)
        if not start <= end <= count:
            raise SelectionError(f"{start} to {end} is no range of {count} samples")
        if end - start > MAX_MARKS:
            raise InputError(f"{end - start:,} samples at once; {MAX_MARKS:,} can be marked: use wids view --where")
        found = list(range(start, end)) if chosen is None else chosen[start:end].tolist()
    else:
        given = asked.get("indices", [asked.get("index")])
        found = _numbers(given if isinstance(given, list) else [given])
        check_indices(found, total)
    also = served.marks.change(found, is_marked=asked["is_marked"])
    return {**_facts_of(served.marks), "changed": len(found), "also": also[:1000]}


def _numbers(values: list[Any]) -> list[int]:
    if bad := [value for value in values if type(value) is not int or value < 0]:
        raise InputError(f"{bad[0]!r:.50} is no index: an integer, 0 or more")
    return values
