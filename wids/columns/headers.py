"""Properties of pictures, sounds and videos, from their headers.

The readers take a file, and read of it what they need. No pixel and no value of a waveform is decoded; of a video in
some formats, FFmpeg looks at the first frame.
"""

from __future__ import annotations

import io
import struct
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from wids.columns.packages import import_av, import_soundfile
from wids.core.codecs.decoders import NO_FRAMES, open_image
from wids.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The list is closed because FFmpeg goes by content: a .mp4 that is a playlist would have it open what that names.
_VIDEO_FORMATS = "mov,matroska,avi,mpegts,mpeg,ogg,flv,asf,gif"
# Bytes that FFmpeg reads to find out which of these a file is, and what its streams are where no header says it.
_VIDEO_OPTIONS = {"format_whitelist": _VIDEO_FORMATS, "formatprobesize": str(64 << 10), "probesize": str(256 << 10)}
_BOX_BYTES = 8  # at least: its length and its name
_MICROSECONDS = 1_000_000


def find_reader(how: str) -> Callable[[IO[bytes]], Mapping[str, Any]]:
    """The function that reads the header of a ``"picture"``, ``"sound"`` or ``"video"``: file -> property -> value.

    It raises ValueError where the file is no such thing.

    Raises:
        DependencyError: it takes a package that is not installed.
    """
    if how == "sound":
        return partial(_read_sound, import_soundfile())
    return partial(_read_video, import_av()) if how == "video" else _read_picture


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
