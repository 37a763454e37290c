"""Films of moving noise, and clips of them decoded by PyAV: what videos.py and its contenders share. Without wids."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import av
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FRAMES, CLIP, RATE = 64, 8, 25


def encode(path: str, count: int, *, size: tuple[int, int], seed: int, grain: int = 1, repeats: int = 1) -> None:
    """Write a film of ``repeats`` times the same ``count`` frames, with a key frame at each 16th.

    Args:
        path: of the MP4.
        count: frames.
        size: width and height.
        seed: of the noise.
        grain: pixels along each side of its squares, which divides ``size``.
        repeats: see above.
    """
    packets = []
    noise = np.random.default_rng(seed).integers(0, 255, (size[1] // grain, size[0] // grain, 3), dtype=np.uint8)
    noise = np.kron(noise, np.ones((grain, grain, 1), np.uint8))
    with av.open(path, "w") as film:
        stream = film.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size, stream.bit_rate = *size, "yuv420p", 16, 20_000_000
        stream.codec_context.max_b_frames = 0
        for k in range(count):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 7 * k, axis=(0, 1)), format="rgb24")
            packets += stream.encode(frame)
        packets += stream.encode()
        kept = [(bytes(packet), packet.is_keyframe) for packet in packets]
        for k in range(repeats * len(kept)):
            packet = av.Packet(kept[k % len(kept)][0])
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, k, k, kept[k % len(kept)][1]
            packet.time_base = stream.codec_context.time_base
            film.mux(packet)


def frames_of(file: Any, first: int, count: int) -> np.ndarray:
    """Frames ``first .. first + count``: (count, H, W, 3) uint8."""
    frames: list[np.ndarray] = []
    with av.open(file) as film:
        video = film.streams.video[0]
        film.seek(int(first / RATE / video.time_base), stream=video)
        for frame in film.decode(video):
            if round(frame.time * RATE) >= first:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == count:
                break
    return np.stack(frames)


def read_clips(read: Callable[[int, int], np.ndarray], picks: Sequence[tuple[int, int]]) -> float:
    """Read clips of `CLIP` frames, each of an episode from a frame on; the mean of some pixels."""
    return float(np.mean([read(episode, first)[:, 0, 0].mean(dtype=np.float64) for episode, first in picks]))


def frames_by_torchcodec(file: Any, first: int, count: int) -> np.ndarray:
    """The same by torchcodec, which finds frames by the index of the film."""
    from torchcodec.decoders import VideoDecoder

    film = VideoDecoder(file, seek_mode="approximate")
    return film.get_frames_in_range(first, first + count).data.permute(0, 2, 3, 1).numpy()


def join(path: str, films: Sequence[bytes]) -> None:
    """Write films one after another as one, without coding them anew."""
    with av.open(path, "w") as out:
        stream, offset = None, 0
        for film in films:
            with av.open(io.BytesIO(film)) as source:
                video = source.streams.video[0]
                stream = stream or out.add_stream_from_template(video)
                for packet in source.demux(video):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + offset, packet.dts + offset
                        packet.stream = stream
                        out.mux(packet)
                offset += round(FRAMES / RATE / video.time_base)
