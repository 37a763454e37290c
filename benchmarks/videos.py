"""Frames of long films and clips of many episodes: bytes and time, by parts of members and by whole members.

    python benchmarks/videos.py                minutes; a film of 500 MB, 10,000 episodes
    python benchmarks/videos.py --quick        seconds; the figures are meaningless
    python benchmarks/videos.py --environment lance=PYTHON --environment lerobot=PYTHON    beside these, where they are

The film is a member of a tar on the server of cold.py (30 ms to the first byte, 40 MB/s a connection). An episode is
64 frames of 160 x 120; a clip is 8 frames from a random place of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import typer
from clips import CLIP, FRAMES, encode, frames_by_torchcodec, frames_of, read_clips
from rich.console import Console
from rich.table import Table
from slow_server import SlowServer

import wids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTENDERS = Path(__file__).parent / "contenders"


def costs(work: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Medians of the seconds and CPU seconds of some work."""
    taken = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    return median(wall for wall, _ in taken), median(cpu for _, cpu in taken)


def has_torchcodec() -> bool:
    """True if it is here, with FFmpeg."""
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError):
        return False
    return True


def film_rows(home: str, *, megabytes: int, rounds: int) -> Iterator[list[str]]:
    """A frame at a random place of a film behind a slow server, by each way."""
    path, repeats = f"{home}/film.mp4", 1
    encode(path, 50, size=(320, 240), seed=0)
    repeats = max(megabytes * 10**6 // os.path.getsize(path), 1)
    encode(path, 50, size=(320, 240), seed=0, repeats=repeats)
    size, count = os.path.getsize(path), 50 * repeats
    with tarfile.open(f"{home}/film.tar", "w") as tar:
        tar.add(path, "film.mp4")
    os.unlink(path)
    rng = np.random.default_rng(1)
    ways: dict[str, Any] = {"lazy, PyAV": wids.lazy("mp4"), "whole member, PyAV": None}
    if has_torchcodec():
        ways["lazy, torchcodec"] = wids.lazy("mp4")
    with SlowServer(home, delay_ms=30, mbps=40) as server:
        for name, step in ways.items():
            dataset = wids.ShardListDataset([(f"{server.url}/film.tar", 1)], access="range", transformations=step)
            dataset.get_shard(0)  # the shard's table is read once
            server.stats()

            def work(name: str = name, dataset: Any = dataset) -> None:
                first = int(rng.integers(count - 1))
                file = dataset[0][".mp4"]
                read = frames_by_torchcodec if "torchcodec" in name else frames_of
                if (shape := read(file, first, 1).shape) != (1, 240, 320, 3):
                    raise SystemExit(f"{name}: a frame of {shape}")

            times = 1 if "whole" in name else rounds
            wall, cpu = costs(work, times)
            figures = server.stats()
            read = figures["bytes"] / times
            requests = figures["requests"] / times
            yield [name, f"{size / 1e6:,.0f}", f"{read / 1e6:,.2f}", f"{requests:.0f}", f"{wall:.2f}", f"{cpu:.3f}"]


def write_episodes(home: str, *, episodes: int, shard: int) -> str:
    """Tars of episodes as MP4 and JSON, and their index; twenty films, each with a name of its own many times."""
    films = []
    for k in range(20):
        encode(f"{home}/one.mp4", FRAMES, size=(160, 120), seed=k, grain=5)
        films.append(Path(f"{home}/one.mp4").read_bytes())
    with wids.ShardWriter(f"{home}/episodes-%05d.tar", samples=shard) as writer:
        for k in range(episodes):
            writer.write({"__key__": f"{k:06d}", ".mp4": films[k % 20], ".json": {"frames": FRAMES}})
    return str(writer.index)


def read_elsewhere(name: str, python: str, task: dict[str, Any]) -> dict[str, Any]:
    """The figures of another loader, in an interpreter that has it."""
    command, environ = [python, str(CONTENDERS / f"clips_{name}.py")], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, env=environ, input=json.dumps(task), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reply


def clip_rows(home: str, *, episodes: int, clips: int, rounds: int, others: dict[str, str]) -> Iterator[list[str]]:
    """Random clips of random episodes, on the disk and behind a slow server."""
    shard = max(episodes // 20, 1)
    index = write_episodes(home, episodes=episodes, shard=shard)
    rng = np.random.default_rng(2)
    ways: dict[str, tuple[Any, Callable[..., np.ndarray]]] = {
        "lazy, PyAV": (wids.lazy("mp4"), frames_of),
        "whole members, PyAV": (None, frames_of),
    }
    if has_torchcodec():
        ways["lazy, torchcodec"] = wids.lazy("mp4"), frames_by_torchcodec
    warm = [(k, 0) for k in range(0, episodes, shard)]
    with SlowServer(home, delay_ms=30, mbps=40) as server:
        url = f"{server.url}/{os.path.basename(index)}"
        for place, shards, options in (("disk", index, {}), ("server", url, {"access": "range"})):
            readers = {}
            for name, (step, read) in ways.items():
                dataset = wids.ShardListDataset(shards, fields=("mp4",), transformations=step, **options)
                readers[name] = lambda k, first, dataset=dataset, read=read: read(dataset[k][".mp4"], first, CLIP)
                read_clips(readers[name], warm)
            count = clips if place == "disk" else max(clips // 10, 1)
            taken: dict[str, list[tuple[float, float, float]]] = {}
            for _ in range(rounds):
                picks = [(int(rng.integers(episodes)), int(rng.integers(FRAMES - CLIP))) for _ in range(count)]
                means = []
                for name, reader in readers.items():
                    server.stats()
                    wall, cpu = time.perf_counter(), time.process_time()
                    means.append(read_clips(reader, picks))
                    figures = (time.perf_counter() - wall, time.process_time() - cpu, server.stats()["bytes"])
                    taken.setdefault(name, []).append(figures)
                for name, python in others.items() if place == "disk" else ():
                    reply = read_elsewhere(name, python, {"home": home, "picks": picks, "warm": warm})
                    means.append(reply["mean"])
                    taken.setdefault(f"{name} {reply['version']}", []).append((reply["wall"], reply["cpu"], 0))
                if max(means) - min(means) > 1:  # of 255: the decoders round in their own ways
                    raise SystemExit(f"the ways differ in their frames: {means}")
            for name, figures in taken.items():
                wall, cpu, read = (median(column) for column in zip(*figures, strict=True))
                text = "" if place == "disk" else f"{read / count / 1e3:,.0f}"
                yield [place, name, f"{count / wall:,.1f}", f"{1e3 * cpu / count:.2f}", text]


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 5,
    megabytes: Annotated[int, typer.Option(min=1, help="MB of the film.")] = 500,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 10_000,
    clips: Annotated[int, typer.Option(min=1, help="Clips of a round; a tenth from the server.")] = 400,
    environment: Annotated[
        list[str] | None, typer.Option(help="lance=PYTHON, lerobot=PYTHON: interpreters that have these, and av.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Little data, one round: tests the benchmark only.")] = False,
) -> None:
    """Measure frames of a long film and clips of episodes, by parts and by whole members."""
    if quick:
        rounds, megabytes, episodes, clips = 1, 5, 40, 10
    others = dict(each.split("=", 1) for each in environment or ())
    home = tempfile.mkdtemp(prefix="videos")
    try:
        table = Table("a frame of a film", "MB of it", "MB read", "requests", "s", "CPU s")
        for row in film_rows(home, megabytes=megabytes, rounds=rounds):
            table.add_row(*row)
        Console().print(table)
        table = Table("episodes on", "8 frames of one", "clips/s", "CPU ms a clip", "kB read a clip")
        for row in clip_rows(home, episodes=episodes, clips=clips, rounds=rounds, others=others):
            table.add_row(*row)
        Console().print(table)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    typer.run(main)
