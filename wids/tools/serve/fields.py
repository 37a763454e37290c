"""Fields of samples as a browser asks for them: a small picture, the bytes or a part of them, the beginning of a text.

A field is named by its extension, or as ``@3``, the fourth of the sample: "." and ".." and names that are no UTF-8
have no place in a URL. Bytes out of a shard are of a type that a browser only looks at, and in a sandbox; of all other
types it saves them. Nothing holds a member as a whole: it goes out in pieces, of which the next one is read when the
browser has taken the last.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from wids.columns.kinds import writable
from wids.core.codecs.html import class_name
from wids.errors import ChangedShardError, DecodeError, SelectionError, UnsafeFormatError, WidsError, without_secrets
from wids.tools.serve.answers import answer
from wids.tools.serve.guard import SANDBOX
from wids.tools.serve.members import open_member, open_members
from wids.tools.serve.previews import NoPreviewError, kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from wids.tools.serve.members import Member
    from wids.tools.serve.served import Served

T = TypeVar("T")

_THREADS = 8
_PIECE_BYTES = 512 << 10
_TYPES = {
    **dict.fromkeys(("jpg", "jpeg"), "image/jpeg"),
    **{name: f"image/{name}" for name in ("png", "webp", "gif", "bmp", "avif")},
    **{name: f"video/{name}" for name in ("mp4", "webm")},
    "m4v": "video/mp4",
    "mov": "video/quicktime",
    "mkv": "video/x-matroska",
    "ogv": "video/ogg",
    **{name: f"audio/{name}" for name in ("wav", "flac", "aac")},
    "mp3": "audio/mpeg",
    "m4a": "audio/mp4",
    **dict.fromkeys(("ogg", "oga", "opus"), "audio/ogg"),
}
_TEXT, _SVG = "text/plain; charset=utf-8", "image/svg+xml"
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")
_LETTERS, _MAX_LETTERS = 2_000, 1_000_000
# Of a sample: fields that are read for a line of a table, and letters of each.
_VALUES, _VALUE_LETTERS = 24, 200
_LABEL = re.compile(r"[0-9]{1,18}", re.ASCII)
_BROKEN = re.compile("[\udc80-\udcff]")
_GZIP = 31  # zlib's wbits for a gzip header and trailer


def routes(served: Served) -> list[Route]:
    """The answers about a field; errors are ``{"error": "..."}``."""
    fields = _Fields(served)
    return [
        Route("/thumb/{index:index}/{field:path}", fields.draw),
        Route("/field/{index:index}/{field:path}", fields.send),
        Route("/api/text/{index:index}/{field:path}", fields.tell),
        Route("/api/values/{index:index}", fields.list_values),
    ]


class _Fields:
    def __init__(self, served: Served) -> None:
        self._served = served
        self._pool = ThreadPoolExecutor(_THREADS, "wids-fields")
        served.closing.append(lambda: self._pool.shutdown(wait=False, cancel_futures=True))

    async def _apart(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a separate thread: a slow shard does not stop the pages."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _read(self, request: Request, work: Callable[[Member], T]) -> T:
        """Run ``work`` on a field."""
        index, field = request.path_params["index"], request.path_params["field"]

        def run() -> T:
            with open_member(self._served.dataset, index, field) as member:
                return work(member)

        return await self._apart(run)

    async def draw(self, request: Request) -> Response:
        """A small picture."""
        index, field = request.path_params["index"], request.path_params["field"]
        try:
            made = await self._served.previews.get(request, index, field)
        except (NoPreviewError, WidsError) as error:
            return refuse(error)
        return Response(made.data, media_type=made.media_type)

    async def send(self, request: Request) -> Response:
        """The bytes, or a range of them."""
        try:
            name, place = await self._read(request, lambda member: (member.name, member.place))
        except WidsError as error:
            return refuse(error)
        size, wanted = place[-1], request.headers.get("range")
        if "if-range" in request.headers:  # of a version, and no version of ours was said
            wanted = None
        found = None if wanted is None else parse_range(wanted, size)
        lo, hi = found or (0, size)
        is_image = request.headers.get("sec-fetch-dest") == "image"
        headers = {**_headers(name, is_image=is_image), "accept-ranges": "bytes", "content-length": str(hi - lo)}
        if found is not None and lo >= hi:
            return Response(None, 416, {**headers, "content-range": f"bytes */{size}", "content-length": "0"})
        if found is not None:
            headers["content-range"] = f"bytes {lo}-{hi - 1}/{size}"
        status = 200 if found is None else 206
        if request.method == "HEAD":
            return Response(None, status, headers)
        return StreamingResponse(self._pieces(request, place, lo, hi), status, headers)

    async def _pieces(self, request: Request, place: Any, lo: int, hi: int) -> AsyncIterator[bytes]:
        for at in range(lo, hi, _PIECE_BYTES):
            yield await self._read(request, partial(_part, place=place, lo=at, hi=min(at + _PIECE_BYTES, hi)))

    async def tell(self, request: Request) -> Response:
        """The beginning of a text; ``?letters=`` so many."""
        try:
            most = min(max(int(request.query_params.get("letters", _LETTERS)), 1), _MAX_LETTERS)
        except ValueError:
            most = _LETTERS
        try:
            return answer(await self._read(request, lambda member: begin_text(member, most)))
        except WidsError as error:
            return refuse(error)

    async def list_values(self, request: Request) -> Response:
        """The beginning of the texts of a sample, and the names of its labels: field -> text."""

        def work() -> dict[str, str]:
            with open_members(self._served.dataset, request.path_params["index"]) as members:
                return {str(writable(each.name)): self._value_of(each) for each in members[:_VALUES] if _is_value(each)}

        try:
            return answer(await self._apart(work))
        except WidsError as error:
            return refuse(error)

    def _value_of(self, member: Member) -> str:
        text: str = begin_text(member, _VALUE_LETTERS)["text"]
        label = int(text) if _LABEL.fullmatch(text.strip()) else None
        words = class_name(member.name, label, self._served.collection.shards.class_names)
        return text if words is None else f"{words} ({label})"


def _is_value(member: Member) -> bool:
    return kind_of(member.name) == "text" and not member.name.casefold().endswith((".gz", ".svg"))


def refuse(error: NoPreviewError | WidsError) -> Response:
    """The reason why something cannot be shown, in words."""
    if isinstance(error, NoPreviewError):
        return answer({"error": str(error)}, error.status)
    if isinstance(error, UnsafeFormatError):
        return answer({"error": "not opened: opening it could run code from the file"}, 415)
    status = 404 if isinstance(error, SelectionError) else 422 if isinstance(error, DecodeError) else 502
    return answer({"error": without_secrets(str(error))}, status)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """The range (lo, hi) of a Range header, hi excluded; lo >= hi: outside of the field. None: all, as without one.

    Several ranges at once, and anything that is not a range of bytes, are answered with all, which is allowed.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        return max(size - int(suffix), 0), size if int(suffix) else 0
    lo, hi = int(first), int(last) + 1 if last else size
    if hi <= lo and last:
        return None
    return (lo, min(hi, size)) if lo < size else (size, size)


def _headers(name: str, *, is_image: bool) -> dict[str, str]:
    """Headers that tell a browser how to treat a field; ``is_image``: it is requested by a picture on a page."""
    extension = name.casefold().rpartition(".")[2]
    # As a picture on a page it neither runs scripts nor loads anything; as a page of its own it is a program.
    kind = _SVG if is_image and extension == "svg" else _TYPES.get(extension)
    if kind is None and kind_of(name) == "text" and extension != "gz":
        kind = _TEXT
    # All other types are saved, under a name of letters only.
    letters = re.sub(r"[^A-Za-z0-9._-]", "_", name.lstrip("."))[-60:].lstrip(".")
    saved = {} if kind else {"content-disposition": f'attachment; filename="field.{quote(letters) or "bin"}"'}
    return {
        "content-type": kind or "application/octet-stream",
        "content-security-policy": SANDBOX,
        "x-content-type-options": "nosniff",
        **saved,
    }


def _part(member: Member, place: Any, lo: int, hi: int) -> bytes:
    if member.place != place:
        raise ChangedShardError(f"{member.url}: it was rewritten while it was read", shard=member.url)
    return member.read_part(lo, hi)


def begin_text(member: Member, most: int) -> dict[str, Any]:
    """The beginning of a text, for a script.

    Args:
        member: its field; of a packed one (``.gz``) as much is unpacked as is shown.
        most: letters.

    Returns:
        ``text``; ``is_whole``: it is all of it; ``size``: bytes of the member; ``damaged``: bytes of the beginning that
        are no UTF-8, shown as U+FFFD.

    Raises:
        DecodeError: it is packed, and damaged.
    """
    most_bytes = 4 * most + 4
    data = member.read_part(0, most_bytes)
    is_whole = len(data) == member.size
    if member.name.casefold().endswith(".gz"):
        data, is_done = _unpack(data, most_bytes)
        is_whole = is_whole and is_done
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(data, final=is_whole)
    found, count = _BROKEN.subn("\ufffd", text[:most])
    return {"text": found, "is_whole": is_whole and len(found) == len(text), "size": member.size, "damaged": count}


def _unpack(data: bytes, most: int) -> tuple[bytes, bool]:
    """The first bytes of what the beginning of a gzip file unpacks to, and whether that is all of it.

    Raises:
        DecodeError: it is damaged.
    """
    found = b""
    while data.rstrip(b"\0") and len(found) < most:
        stream = zlib.decompressobj(_GZIP)
        try:
            found += stream.decompress(data, most - len(found))
        except zlib.error as error:
            raise DecodeError(f"it is damaged ({error})") from error
        if not stream.eof:
            return found, False
        data = stream.unused_data
    return found, not data.rstrip(b"\0")
