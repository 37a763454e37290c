"""The page of a sample: where it is, each of its fields, its columns, and the code that reads it.

Rules: the page itself reads nothing but the member table. Each field is described by itself, so that a damaged one, one
that could run code and one that is too large for it say so in their own place. A value of JSON is sent a level at a
time; no picture, sound or video is decoded for that.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from wids.core.codecs import pictures
from wids.core.codecs.html import class_name
from wids.core.place import Place
from wids.core.readers.lru import SizedLRUCache, deep_size
from wids.errors import (
    ColumnsError,
    DecodeError,
    DependencyError,
    SelectionError,
    WidsError,
    printable,
    shorten,
)
from wids.events import format_size
from wids.tools.describe import Field, describe, describe_value
from wids.tools.serve import masks
from wids.tools.serve.answers import answer
from wids.tools.serve.facets import class_names, words_for
from wids.tools.serve.fields import refuse
from wids.tools.serve.measures import measure
from wids.tools.serve.members import open_member, open_members
from wids.tools.serve.previews import NoPreviewError, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.templating import Jinja2Templates

    from wids.tools.serve.members import Member
    from wids.tools.serve.served import Served

_THREADS = 4
# The most bytes that are decoded for a description: of a member, and of its unpacked contents. Less text: a value of
# JSON takes many times as much, and while it is parsed no other thread runs.
_MAX_BYTES, _MAX_TEXT_BYTES = 64 << 20, 2 << 20
_FULL_SIDE = 4096
# What a browser draws as it is: formats, up to so many pixels.
_DRAWN = frozenset({"JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "AVIF"})
_DRAWN_NAMES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "avif"})
_DRAWN_PIXELS = 25_000_000
_MEDIA = frozenset({"image", "video", "audio"})
_TAGS, _TAG_LETTERS = 40, 200
_ARRAYS = 32
_CHILDREN, _LETTERS = 100, 500
# Of values whose parts were requested last, in memory.
_KEPT_BYTES = 64 << 20
_CELL_LETTERS = 2_000


def routes(served: Served, templates: Jinja2Templates) -> list[Route]:
    """``/sample/{index}`` and what its script asks for."""
    page = _Page(served, templates)
    return [
        Route("/sample/{index:index}", page.show),
        Route("/picture/{index:index}/{field:path}", page.draw),
        Route("/api/sample/{index:index}", page.tell),
        Route("/api/field/{index:index}/{field:path}", page.describe),
        Route("/api/tree/{index:index}/{field:path}", page.branch),
        Route("/api/columns/{index:index}", page.columns),
    ]


class _Page:
    def __init__(self, served: Served, templates: Jinja2Templates) -> None:
        self._served, self._templates = served, templates
        self._pool = ThreadPoolExecutor(_THREADS, "wids-sample")
        # By the places of their members.
        self._values: SizedLRUCache[tuple[str, str, int, int], Any] = SizedLRUCache(_KEPT_BYTES)
        self._lock = threading.Lock()
        served.closing.append(lambda: self._pool.shutdown(wait=False, cancel_futures=True))

    def show(self, request: Request) -> Response:
        """The page; its script fetches the contents."""
        index, count = request.path_params["index"], len(self._served.dataset)
        if index >= count:
            raise SelectionError(f"there is no sample {shorten(str(index), most=30)}; the dataset has {count:,}")
        return self._templates.TemplateResponse(request, "sample.html", {"index": index, "count": count})

    async def draw(self, request: Request) -> Response:
        """A picture of a size for a page, of what a browser does not draw itself."""
        index, field = request.path_params["index"], request.path_params["field"]
        try:
            made = await self._served.previews.get(request, index, field, _FULL_SIDE)
        except (NoPreviewError, WidsError) as error:
            return refuse(error)
        return Response(made.data, media_type=made.media_type)

    async def tell(self, request: Request) -> Response:
        """The place of the sample, and the names, kinds and places of its fields."""
        return await self._answer(lambda: self._tell(request.path_params["index"]))

    async def describe(self, request: Request) -> Response:
        """One field, decoded."""
        return await self._answer(lambda: self._with(request, self._describe))

    async def branch(self, request: Request) -> Response:
        """Some parts of a value: ``?at=0.3`` of the fourth part of its first one, ``&from=100`` from there on."""
        try:
            path = [int(part) for part in request.query_params.get("at", "").split(".") if part]
            first = int(request.query_params.get("from", 0))
        except ValueError:
            path, first = [], -1
        if first < 0 or min(path, default=0) < 0:
            return answer({"error": "at is numbers with dots between them, and from a number"}, 400)
        return await self._answer(lambda: self._with(request, lambda member: self._branch(member, path, first)))

    async def columns(self, request: Request) -> Response:
        """The sample's columns: names and values; none where the dataset has none."""
        return await self._answer(lambda: self._columns(request.path_params["index"]))

    async def _answer(self, work: Callable[[], Any]) -> Response:
        try:
            return answer(await asyncio.get_running_loop().run_in_executor(self._pool, work))
        except WidsError as error:
            return refuse(error)

    def _with(self, request: Request, work: Callable[[Member], Any]) -> Any:
        with open_member(self._served.dataset, request.path_params["index"], request.path_params["field"]) as member:
            return work(member)

    def _tell(self, index: int) -> dict[str, Any]:
        dataset = self._served.dataset
        if not 0 <= index < len(dataset):
            raise SelectionError(f"there is no sample {shorten(str(index), most=30)}; the dataset has {len(dataset):,}")
        shard, row, _ = dataset.get_shard(index)
        k, _ = dataset.locate(index)
        with open_members(dataset, index) as members:
            listed = [(member.name, member.offset, member.size) for member in members]
        opening = self._served.opening
        return {
            "index": index,
            "count": len(dataset),
            "key": shard.table.key(row),
            "shard": k,
            "row": row,
            "url": Place(shard.url).public,
            "dataset": self._served.collection.shards.dataset_of(k),
            "code": f"dataset = {opening}\nsample = dataset[{index}]" if opening else f"sample = dataset[{index}]",
            "fields": [
                {"at": f"@{m}", "name": name, "kind": kind_of(name), "offset": offset, "size": size}
                for m, (name, offset, size) in enumerate(listed)
            ],
        }

    def _describe(self, member: Member) -> dict[str, Any]:
        kind = kind_of(member.name)
        if kind in ("video", "audio"):
            return {"kind": kind, "words": format_size(member.size)}
        most = _MAX_TEXT_BYTES if kind == "text" else _MAX_BYTES
        if member.size > most:
            words = f"not decoded here: it has {format_size(member.size)}, and up to {format_size(most)} are"
            return {"kind": "large", "words": words}
        if kind == "image":
            return _describe_picture(member)
        field = describe(member.name, member.read(), key=member.key, shard=member.url, max_inflate_bytes=most)
        label = class_name(member.name, field.value, self._served.collection.shards.class_names)
        return {
            **_finite(field.details),
            "kind": field.kind,
            "words": shorten(field.words, most=_CELL_LETTERS),
            **({} if label is None else {"class": label}),
            **_measures(field),
        }

    def _branch(self, member: Member, path: list[int], first: int) -> dict[str, Any]:
        value = self._value(member)
        for part in path:
            parts = _Parts(value)
            if part >= len(parts):
                raise SelectionError("there is no such part")
            value = parts.at(part)[1]
        return _describe_node(value, first)

    def _value(self, member: Member) -> Any:
        with self._lock:
            if (found := self._values.use(member.place)) is not None:
                return found
        if (kind := kind_of(member.name)) in _MEDIA:
            raise SelectionError(f"it has no parts: it is {kind} by its name")
        if member.size > _MAX_TEXT_BYTES:
            raise DecodeError(f"it has {format_size(member.size)}, and up to {format_size(_MAX_TEXT_BYTES)} are parsed")
        field = describe(
            member.name, member.read(), key=member.key, shard=member.url, max_inflate_bytes=_MAX_TEXT_BYTES
        )
        if field.kind in ("damaged", "unopened"):
            raise DecodeError(field.words)
        if isinstance(field.value, (dict, list, tuple)) and (size := deep_size(field.value)) <= _KEPT_BYTES:
            with self._lock:
                self._values.keep(member.place, field.value, size)
        return field.value

    def _columns(self, index: int) -> dict[str, Any]:
        dataset = self._served.dataset
        try:
            sql = f'select * from samples where "index" = {index:d}'  # noqa: S608 - a number
            table = self._served.rows.ask(lambda: dataset.query(sql))
        except (ColumnsError, DependencyError):
            return {"columns": []}
        row = table.to_pylist()[:1]
        cells = [(name, value) for name, value in (row[0].items() if row else ()) if name != "index"]
        return {"columns": [[name, self._cell(name, value)] for name, value in cells]}

    def _cell(self, name: str, value: Any) -> str | None:
        names = class_names(self._served, name, [value])
        return words_for(value, names) if names and value is not None else _cell(value)


def _cell(value: Any) -> str | None:
    return None if value is None else shorten(value if isinstance(value, str) else repr(value), most=_CELL_LETTERS)


def _describe_picture(member: Member) -> dict[str, Any]:
    try:
        image = pictures.open_picture(member.read_unpacked(_MAX_BYTES))
        is_moving = bool(getattr(image, "is_animated", False))
        is_large = image.width * image.height > _DRAWN_PIXELS
        if not is_large:  # a browser draws the beginning of a picture that is cut short, and says nothing
            image.load()
        is_mask = not is_large and masks.is_mask(image, member.name)
    except DecodeError as error:
        return {"kind": "damaged", "words": str(error)}
    except Exception as error:  # noqa: BLE001 - a header can cause any error in PIL
        return {"kind": "damaged", "words": printable(f"{type(error).__name__}: {error}")}
    kind, words, details = describe_value(image)
    extension = member.name.casefold().rpartition(".")[2]
    is_drawn = image.format in _DRAWN and extension in _DRAWN_NAMES and not pictures.is_deep(image)
    return {
        **details,
        "kind": kind,
        "words": words,
        "is_drawn": is_drawn and not is_large and not is_moving and not is_mask,
        "is_moving": is_moving,
        "is_scaled": pictures.is_deep(image) and not is_mask,
        "classes": masks.count_classes(image) if is_mask else None,
        "is_see_through": pictures.is_see_through(image),
        "exif": _tags(image),
    }


def _tags(image: Any) -> list[list[str]]:
    """Names and values of EXIF, as texts."""
    from PIL import ExifTags

    try:
        found = list(image.getexif().items())[:_TAGS]
        return [
            [str(ExifTags.TAGS.get(tag, tag)), shorten(printable(str(value)[: 4 * _TAG_LETTERS]), most=_TAG_LETTERS)]
            for tag, value in found
        ]
    except Exception:  # noqa: BLE001 - damaged tags are no reason not to show the picture
        return []


def _measures(field: Field) -> dict[str, Any]:
    """Statistics of arrays, by their names."""
    if field.kind == "array":
        arrays = {"": field.value}
    elif field.kind == "arrays":
        arrays = dict(list(field.value.items())[:_ARRAYS])
    elif isinstance(field.value, list) and field.value and all(hasattr(part, "dtype") for part in field.value):
        arrays = {str(k): part for k, part in enumerate(field.value[:_ARRAYS])}
    else:
        return {}
    return {"measures": [{"name": str(name), **_finite(measure(value))} for name, value in arrays.items()]}


def _finite(value: Any) -> Any:
    """A value for JSON: NaN and infinities as their names."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class _Parts:
    """The parts of a value, each with its name, made on access."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, (dict, list, tuple)):
            raise SelectionError("it has no parts")
        self._value: Any = value
        self._names = list(value) if isinstance(value, dict) else None

    def __len__(self) -> int:
        return len(self._value)

    def at(self, k: int) -> tuple[Any, Any]:
        """(name, value) of a part; of a list, its number is its name."""
        name = k if self._names is None else self._names[k]
        return name, self._value[name]


def _describe_node(value: Any, first: int) -> dict[str, Any]:
    """A value: its kind, its text, and if it has parts, some of them."""
    found = _describe_leaf(value)
    if isinstance(value, (dict, list, tuple)):
        parts = _Parts(value)
        some = [parts.at(k) for k in range(first, min(first + _CHILDREN, len(parts)))]
        found["parts"] = [
            {"name": shorten(str(name), most=_LETTERS), "at": first + k, **_describe_leaf(part)}
            for k, (name, part) in enumerate(some)
        ]
    return found


def _describe_leaf(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"kind": "object", "count": len(value)}
    if isinstance(value, (list, tuple)):
        return {"kind": "array", "count": len(value)}
    if isinstance(value, str):
        return {"kind": "string", "text": value[:_LETTERS], "more": max(len(value) - _LETTERS, 0)}
    if value is None or isinstance(value, (bool, int, float)):
        text = _number(value) if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)
        return {"kind": "number" if text.lstrip("-")[0].isdigit() or text[:2] == "a " else "word", "text": text}
    return {"kind": "other", "text": shorten(printable(describe_value(value)[1]), most=_LETTERS)}


def _number(value: int) -> str:
    return str(value) if value.bit_length() < 4 * _LETTERS else f"a number of {value.bit_length():,} bits"
