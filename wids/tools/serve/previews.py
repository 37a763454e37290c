"""Small pictures of fields: read and decoded by threads of their own, and kept in memory.

Rules: a picture is refused by its size before it is decoded. A slow or failing sample takes one thread, and its answer
is text. A preview that is requested twice is made once; one without a waiting request is not begun.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from wids.core.codecs import pictures
from wids.core.codecs.decode import UNASKED, SampleDecoder
from wids.core.readers.lru import SizedLRUCache
from wids.errors import DecodeError, WidsError, shown
from wids.events import format_size
from wids.tools.serve import masks
from wids.tools.serve.members import open_member
from wids.tools.serve.waiting import WATCH_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from wids.dataset import ShardListDataset

SIDE = 256
_IMAGES = ("jpg", "jpeg", "png", "webp", "avif", "gif", "bmp", "tif", "tiff", "jp2", "ppm", "pgm", "pbm", "pnm")
_KINDS: dict[str, tuple[str, ...]] = {
    "image": _IMAGES,
    "video": ("mp4", "webm", "m4v", "mov", "mkv", "ogv"),
    "audio": ("wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "oga"),
    "text": (
        *("txt", "text", "caption", "json", "md", "jsonl", "csv", "tsv", "xml", "html", "htm", "svg", "srt", "vtt"),
        *("yaml", "yml", "toml", "log", "cls", "cls2", "id", "index"),
    ),
    "array": ("npy", "npz", "ten", "pt", "pth", "safetensors"),
}
_KIND_OF = {extension: kind for kind, extensions in _KINDS.items() for extension in extensions}
_ORDER = ("image", "video", "audio", "array", "text", "other")
# Of labels and numbers there is always something better to show, unless they are alone.
_LAST = frozenset({"cls", "cls2", "id", "index"})

_THREADS = 8
# Bytes of pictures that are kept; of a member that is read for one; of what a packed one may unpack to.
_KEPT_BYTES, _MAX_BYTES, _MAX_UNPACKED_BYTES = 64 << 20, 256 << 20, 64 << 20
_LARGE_BYTES = 8 << 20
_DECODE = SampleDecoder("numpy", also=UNASKED, max_inflate_bytes=_MAX_UNPACKED_BYTES)
_LARGE_PIXELS = 16_000_000
_SMALL = 128  # an array of fewer numbers a side is drawn with larger squares


def kind_of(name: str) -> str:
    """``image``, ``video``, ``audio``, ``array``, ``text`` or ``other``, by the extension of a field alone."""
    parts = name.casefold().split(".")
    return _KIND_OF.get(parts[-2] if parts[-1] == "gz" and len(parts) > 1 else parts[-1], "other")


def main_field(names: Iterable[str]) -> tuple[str, str]:
    """The field that stands for a sample, and its kind.

    The first kind that there is of image, video, audio, array, text and other; of several fields the one with the
    fewest dots (``.jpg`` before ``.seg.png``), then the one whose extension is first in the list of its kind.

    Args:
        names: of the sample's fields.

    Returns:
        (name, kind); of a sample without fields, ``("", "other")``.
    """
    return min(((name, kind_of(name)) for name in names), key=_rank, default=("", "other"))


def _rank(field: tuple[str, str]) -> tuple[int, bool, int, int]:
    name, kind = field
    extension = name.casefold().removesuffix(".gz").rpartition(".")[2]
    among = _KINDS.get(kind, ())
    place = among.index(extension) if extension in among else len(among)
    return _ORDER.index(kind), extension in _LAST, name.count("."), place


class Preview(NamedTuple):
    """A picture.

    Attributes:
        data: its bytes.
        media_type: ``"image/jpeg"`` or ``"image/png"``.
    """

    data: bytes
    media_type: str


class NoPreviewError(Exception):
    """There is no picture of a field; ``status`` is the one of HTTP."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words)
        self.status = status


class Previews:
    """The small pictures of a dataset's fields.

    Args:
        dataset: undecoded.
        kept_bytes: of pictures that are kept in memory.
    """

    def __init__(self, dataset: ShardListDataset[dict[str, Any]], *, kept_bytes: int = _KEPT_BYTES) -> None:
        self._dataset = dataset
        self._pool = ThreadPoolExecutor(_THREADS, "wids-previews")
        self._lock = threading.Lock()
        self._kept: SizedLRUCache[tuple[int, str, int], Preview] = SizedLRUCache(kept_bytes)
        self._begun: dict[tuple[int, str, int], tuple[Future[Preview], list[object]]] = {}
        self._decoding = threading.BoundedSemaphore(max(2, min(os.cpu_count() or 1, _THREADS - 2)))
        self._large = threading.Lock()

    async def get(self, request: Request, index: int, field: str, side: int = SIDE) -> Preview:
        """The picture of a field, of at most ``side`` pixels a side.

        Raises:
            NoPreviewError: none exists.
            WidsError: no such field exists, it cannot be read or decoded.
        """
        key, waiter = (index, field, side), object()
        with self._lock:
            if (found := self._kept.use(key)) is not None:
                return found
            future, waiters = self._begun.get(key) or (None, [])
            if future is None:
                future = self._pool.submit(self._make, key)
                self._begun[key] = future, waiters
                future.add_done_callback(lambda _: self._begun.pop(key, None))
            waiters.append(waiter)
        made = asyncio.wrap_future(future)
        try:
            while not (await asyncio.wait([made], timeout=WATCH_SECONDS))[0]:
                if await request.is_disconnected():
                    raise NoPreviewError("no request waits for it any more", 499)
            return made.result()
        finally:
            with self._lock:
                waiters.remove(waiter)
                is_left = not waiters
            if is_left:
                future.cancel()  # which does nothing to one that has begun

    def _make(self, key: tuple[int, str, int]) -> Preview:
        index, field, side = key
        with open_member(self._dataset, index, field) as member:
            kind = kind_of(member.name)
            if kind not in ("image", "array"):
                raise NoPreviewError(f"{shown(member.name)} is no picture by its name", 415)
            if member.size > _MAX_BYTES:
                words = f"it has {format_size(member.size)}; of up to {format_size(_MAX_BYTES)} a picture is made"
                raise NoPreviewError(words, 413)
            place = {"__key__": member.key, "__shard__": member.url}
            try:
                data = member.read_unpacked(_MAX_UNPACKED_BYTES) if kind == "image" else member.read()
            except (zlib.error, EOFError) as error:
                raise DecodeError(f"it is damaged ({error})") from error
        try:
            made = self._draw(kind, member.name, data, side, place)
        except (WidsError, NoPreviewError):
            raise
        except Exception as error:
            raise DecodeError(f"it is damaged ({type(error).__name__}: {error})") from error
        with self._lock:
            self._kept.keep(key, made, len(made.data))
        return made

    def _draw(self, kind: str, name: str, data: bytes, side: int, place: dict[str, str]) -> Preview:
        image = pictures.open_picture(data) if kind == "image" else None
        is_large = len(data) > _LARGE_BYTES or (image is not None and image.width * image.height > _LARGE_PIXELS)
        with self._large if is_large else self._decoding:
            if image is not None and masks.is_mask(image, name):
                # A large one may be laid over the picture that it belongs to.
                return _encode(masks.paint(image, side), is_photo=False, transparency=None if side <= SIDE else 0)
            if image is not None:
                is_photo = image.mode in ("RGB", "L", "CMYK", "YCbCr") and image.format not in ("PNG", "GIF", "BMP")
                is_small = max(image.size) <= side
                return _encode(pictures.draw_small(image, side), is_photo=is_photo or not is_small)
            value = _DECODE({name: data, **place})[name]
            return _encode(_enlarge(pictures.from_array(first_array(value)), side), is_photo=False)

    def close(self) -> None:
        """End the threads; what they have begun is finished."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def first_array(value: Any) -> Any:
    """The first array of a decoded value: an array, a tensor, or several in a list or by names.

    Raises:
        DecodeError: none exists.
    """
    import numpy as np

    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(part, np.ndarray):
            return part
        if hasattr(part, "dtype") and hasattr(part, "detach"):
            tensor = part.detach()
            return (tensor if tensor.dtype.itemsize != 2 else tensor.float()).numpy()
    raise DecodeError("there is no array in it")


def _enlarge(image: Any, side: int) -> Any:
    from PIL import Image

    factor = max(1, min(_SMALL, side) // max(image.size))
    if factor > 1:
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    return pictures.shrink(image, side, side)


def _encode(image: Any, *, is_photo: bool, transparency: int | None = None) -> Preview:
    stream = io.BytesIO()
    if is_photo:
        image.convert("RGB").save(stream, "JPEG", quality=82)
    else:
        image.save(stream, "PNG", compress_level=3, transparency=transparency)
    return Preview(stream.getvalue(), "image/jpeg" if is_photo else "image/png")
