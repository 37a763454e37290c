"""Properties of pictures, sounds and videos, from their headers.

The readers take a file, and read of it what they need. No pixel and no value of a waveform is decoded; of a video in
some formats, FFmpeg looks at the first frame.
"""

from __future__ import annotations

import io
import struct
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from wids.columns.packages import import_av, import_soundfile
from wids.core.codecs.decoders import NO_FRAMES, open_image
from wids.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wids.core.collection.member_file import MemberFile

# The list is closed because FFmpeg goes by content: a .mp4 that is a playlist would have it open what that names.
_VIDEO_FORMATS = "mov,matroska,avi,mpegts,mpeg,ogg,flv,asf,gif"
# Bytes that FFmpeg reads to find out which of these a file is, and what its streams are where no header says it.
_VIDEO_OPTIONS = {"format_whitelist": _VIDEO_FORMATS, "formatprobesize": str(64 << 10), "probesize": str(512 << 10)}
_BUFFER_BYTES = 16 << 10
_BOX_BYTES = 8  # at least: its length and its name
_MICROSECONDS = 1_000_000


HeaderReader: TypeAlias = "Callable[[IO[bytes]], Mapping[str, Any]]"


def find_reader(how: str) -> HeaderReader:
    """The function that reads the header of a ``"picture"``, ``"sound"`` or ``"video"``: file -> property -> value.

    It raises ValueError where the file is no such thing, and of a `PartFile` the error of its reads.

    Raises:
        DependencyError: it takes a package that is not installed.
    """
    if how == "sound":
        return partial(_read, partial(_read_sound, import_soundfile()))
    return partial(_read, partial(_read_video, import_av()) if how == "video" else _read_picture)


class PartFile(io.RawIOBase):
    """A file whose beginning is in memory; the rest is opened if it is asked for.

    Attributes:
        error: the first error of a read, which gives no bytes then: what a decoder does with errors is its own affair
            (libsndfile and FFmpeg print them, and go on as if the file ended there).

    Args:
        head: its beginning.
        size: of all, in bytes.
        open_rest: opens all of it.
    """

    error: BaseException | None = None

    def __init__(self, head: bytes, size: int, open_rest: Callable[[], MemberFile]) -> None:
        super().__init__()
        self._head, self._size, self._open_rest = head, size, open_rest
        self._rest: MemberFile | None = None
        self._position = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read, in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position: from the beginning, from here (``whence=1``) or from the end (``whence=2``)."""
        start = (0, self._position, self._size)[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Read into a writable buffer, as much as it holds; the number of bytes, fewer only at the end."""
        view = memoryview(buffer).cast("B")
        lo, hi = self._position, min(self._position + len(view), self._size)
        data = self._head[lo:hi]
        if lo + len(data) < hi and self.error is None:
            try:
                data += self._read_rest(lo + len(data), hi)
            except BaseException as error:  # noqa: BLE001 - raised where the decoder has returned
                self.error = error
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read_rest(self, lo: int, hi: int) -> bytes:
        if self._rest is None:
            self._rest = self._open_rest()
        self._rest.seek(lo)
        return self._rest.read(hi - lo)


def _read(read: HeaderReader, file: IO[bytes]) -> Mapping[str, Any]:
    file.seek(0)
    if not isinstance(file, PartFile):
        return read(file)
    buffered = io.BufferedReader(file, _BUFFER_BYTES)  # Pillow reads bytes one by one
    try:
        return read(buffered)
    finally:
        buffered.detach()  # or it would close the file
        if file.error is not None:
            raise file.error


def _read_picture(file: IO[bytes]) -> Mapping[str, Any]:
    try:
        image = open_image(file)
    except (DecodeError, OSError, SyntaxError, TypeError, IndexError, struct.error) as error:  # of Pillow's readers
        raise ValueError(f"{error}") from error
    return {"width": image.width, "height": image.height, "mode": image.mode}


def _read_sound(soundfile: Any, file: IO[bytes]) -> Mapping[str, Any]:
    """A duration that the header does not say is None."""
    try:
        with soundfile.SoundFile(file) as sound:
            duration = sound.frames / sound.samplerate if sound.frames < NO_FRAMES else None
            return {"duration": duration, "sample_rate": sound.samplerate, "channels": sound.channels}
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error


def _read_video(av: Any, file: IO[bytes]) -> Mapping[str, Any]:
    """The first stream of pictures; what the header does not say is None."""
    try:
        container = av.open(file, container_options=_VIDEO_OPTIONS)
    except av.FFmpegError as error:
        raise ValueError(f"{error.strerror}; formats are {_VIDEO_FORMATS}") from error
    with container:
        if container.format.name.startswith("mov"):
            _check_boxes(file)
        cover = av.stream.Disposition.attached_pic
        streams = [stream for stream in container.streams.video if not stream.disposition & cover]
        if not streams:
            raise ValueError("it has sound alone" if container.streams.audio else "it has no streams")
        stream = streams[0]
        if stream.codec_context is None:
            raise ValueError("FFmpeg does not know its codec")
        if not stream.width or not stream.height:
            raise ValueError("its header gives no size")
        duration = None if container.duration is None else container.duration / _MICROSECONDS  # the longest stream's
        if stream.duration is not None:
            duration = float(stream.duration * stream.time_base)
        return {
            "width": stream.width,
            "height": stream.height,
            "frames": stream.frames or None,
            "fps": float(stream.average_rate) if stream.average_rate else None,
            "duration": duration,
            "codec": stream.codec_context.codec.canonical_name,
        }


def _check_boxes(file: IO[bytes]) -> None:
    """Raise if the header of an MP4, its box ``moov``, is cut short, of which FFmpeg reads what there is."""
    size, position = file.seek(0, io.SEEK_END), 0
    while position < size:
        file.seek(position)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:  # it does not fit there
            length = int.from_bytes(head[8:], "big")
        if head[4:8] == b"moov" and position + length > size:
            raise ValueError(f"its header is cut short, after {size - position:,} of {length:,} bytes")
        if head[4:8] == b"moov" or length < _BOX_BYTES:
            return
        position += length
