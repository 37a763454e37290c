"""Time to index shards: `wids index create` against `widsindex create` of the original, and on remote shards.

    python benchmarks/index.py --data DIR           2 GB, three rounds; minutes
    python benchmarks/index.py --quick              seconds; the figures are meaningless

Local shards are in the page cache. Remote ones come from the server of cold.py (30 ms to the first byte, 40 MB/s a
connection): pictures of 60 kB, where one read of the whole shard is faster than a request for each header, and films of
4 MB, where only the headers are read.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jpegs
import report
import typer
from envs import CONTENDERS, default_directory, interpreter
from rich.table import Table
from slow_server import SlowServer

ROOT = str(Path(__file__).parents[1])
PICTURES = jpegs.Shape(shards=136, samples=244)
FILMS = {"shards": 16, "samples": 20, "size": 4_000_000}
QUICK_FILMS = {"shards": 2, "samples": 3, "size": 1_500_000}


def make_films(root: str, *, shards: int, samples: int, size: int) -> list[str]:
    """Write shards with samples of about ``size`` bytes under ``root`` unless they exist; returns their paths."""
    directory = Path(root, f"films-{shards}x{samples}-{size}")
    paths = [directory / f"films-{number:04d}.tar" for number in range(shards)]
    directory.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.exists():
            continue
        part = path.with_suffix(".part")
        with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as archive:
            for sample in range(samples):
                for name, length in ((f"{sample:06d}.mp4", size), (f"{sample:06d}.json", 300)):
                    info = tarfile.TarInfo(name)
                    info.size = length
                    archive.addfile(info, io.BytesIO(bytes(length)))
        part.rename(path)
    return [str(path) for path in paths]


def ours(sources: list[str], directory: str, *args: str) -> tuple[float, dict[str, Any]]:
    """Make an index without an earlier one; returns (seconds of the whole command, its summary)."""
    output = os.path.join(directory, "ours.json")
    for path in (output, output + ".state"):
        Path(path).unlink(missing_ok=True)
    return run_ours(sources, output, *args)


def run_ours(sources: list[str], output: str, *args: str) -> tuple[float, dict[str, Any]]:
    """Run ``wids index create``; returns (seconds, summary)."""
    command = [sys.executable, "-m", "wids.tools.cli", "index", "create", *sources, "-o", output, "--json", *args]
    seconds, out = run(command, env={**os.environ, "PYTHONPATH": ROOT})
    return seconds, json.loads(out)


def run(command: list[str], **options: Any) -> tuple[float, str]:
    """Run a program that must succeed; returns (seconds, stdout)."""
    start = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, **options)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ... failed:\n{done.stderr}")
    return seconds, done.stdout


def measure_local(shards: list[str], original: str | None, rounds: int) -> list[dict[str, Any]]:
    """Seconds of each contender in each round; they take turns."""
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            taken.setdefault("wids index create", []).append(ours(shards, directory)[0])
            taken.setdefault("wids index create, nothing changed", []).append(
                run_ours(shards, os.path.join(directory, "ours.json"))[0]
            )
            taken.setdefault("wids index create --members", []).append(ours(shards, directory, "--members")[0])
            taken.setdefault("wids index create --md5", []).append(ours(shards, directory, "--md5")[0])
            if original:
                command = [original, "-m", "wids.wids_index", "create", *shards, "-o", "theirs.json"]
                taken.setdefault("widsindex create of the original (md5)", []).append(run(command, cwd=directory)[0])
        if original:
            check_same(os.path.join(directory, "ours.json"), os.path.join(directory, "theirs.json"))
    for shard in shards:
        Path(shard + ".widx").unlink(missing_ok=True)
    size = sum(os.path.getsize(shard) for shard in shards)
    return [
        {"what": what, "seconds": median(each), "rounds": each, "mbps": size / 1e6 / median(each)}
        for what, each in taken.items()
    ]


def check_same(mine: str, theirs: str) -> None:
    """Exit unless both indexes have the same facts for each shard."""
    facts = [
        {
            os.path.basename(shard["url"]): (shard["nsamples"], shard["filesize"], shard["md5sum"])
            for shard in json.loads(Path(path).read_text())["shardlist"]
        }
        for path in (mine, theirs)
    ]
    if facts[0] != facts[1]:
        raise SystemExit("the indexes differ")


def measure_remote(what: str, shards: list[str], rounds: int) -> list[dict[str, Any]]:
    """Seconds, requests and bytes of the same shards behind a slow server."""
    size = sum(os.path.getsize(shard) for shard in shards)
    rows = []
    with (
        tempfile.TemporaryDirectory() as directory,
        SlowServer(os.path.dirname(shards[0]), delay_ms=30, mbps=40) as server,
    ):
        urls = [f"{server.url}/{os.path.basename(shard)}" for shard in shards]
        for args in ((), ("--md5",)):
            taken, stats = [], {}
            for _ in range(rounds):
                server.stats()
                taken.append(ours(urls, directory, *args)[0])
                stats = server.stats()
            rows.append(
                {
                    "what": " ".join(["remote", what, *args]),
                    "seconds": median(taken),
                    "rounds": taken,
                    "mbps": size / 1e6 / median(taken),
                    "requests": stats["requests"],
                    "fraction": stats["bytes"] / size,
                }
            )
    return rows


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    data: Annotated[str, typer.Option(help="Keep the shards in this directory, for other runs.")] = "",
    envs: Annotated[str, typer.Option(help="The directory for environments, kept for other runs.")] = "",
    python: Annotated[str, typer.Option(help="The original's interpreter; nothing is installed then.")] = "",
    only_ours: Annotated[bool, typer.Option("--only-ours", help="Without the original.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Save all figures here.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny data, one round: tests the benchmark only.")] = False,
) -> None:
    """Measure the time to make indexes, and the bytes read."""
    rounds = 1 if quick else rounds
    original = None
    if not only_ours:
        original = python or interpreter(CONTENDERS["original"], envs or default_directory())
    with tempfile.TemporaryDirectory() as scratch:
        root = data or scratch
        made = jpegs.make(root, jpegs.QUICK if quick else PICTURES)
        pictures = [os.path.join(made["directory"], name) for name in made["urls"]]
        films = make_films(root, **(QUICK_FILMS if quick else FILMS))
        rows = measure_local(pictures, original, rounds)
        rows += measure_remote("pictures", pictures[:64], rounds) + measure_remote("films", films, rounds)
    figures = {"machine": report.machine(), "revision": report.revision(ROOT), "bytes": made["bytes"], "rows": rows}
    if json_path is not None:
        json_path.write_text(json.dumps(figures, indent=2))
    table = Table("what", "s", "MB/s", "requests", "bytes / size")
    for row in rows:
        counts = [str(row["requests"]), f"{row['fraction']:.3f}"] if "requests" in row else ["", ""]
        table.add_row(row["what"], f"{row['seconds']:.3g}", f"{row['mbps']:,.0f}", *counts)
    report.show_table(
        table, f"local: {made['bytes'] / 1e9:.2f} GB in {len(pictures)} shards", repository=ROOT, is_quick=quick
    )


if __name__ == "__main__":
    typer.run(main)
