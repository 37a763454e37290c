"""The first grid of `wids serve` over a remote set of 100,000 shards of 1 GB: seconds, requests and bytes.

    python benchmarks/serve.py              half a minute
    python benchmarks/serve.py --quick      a few small shards; the figures are meaningless

The set is on the server of cold.py (30 ms to the first byte, 40 MB/s a connection): a JSON index, and a pack of member
tables that it names. A shard has 10,000 samples, a JPEG of 100 kB and a label each. The pack's directory is whole. Of
the shards, two are there, as sparse files: the headers of all their members, and the pictures that are looked at; of
the tables, theirs. A grid is what a browser asks for: the page, two blocks of rows, and 60 small pictures, eight at a
time. It is measured from the start of the process, the first time on a machine and with the index compiled in its cache
directory, and from a server that runs, at the first sample and at one in the middle. With a browser (Playwright, and a
Chromium on the path or its own) the same page is timed until it shows its pictures.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import report
import typer
from PIL import Image
from rich.table import Table
from slow_server import SlowServer

from wids.core.files import atomic
from wids.core.tables import member_tables, pack_format

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = str(Path(__file__).parents[1])
PICTURES, BLOCK, AT_ONCE = 60, 40, 8
# What a grid may cost: seconds, and bytes beyond those of its samples, for each of them.
MOST_SECONDS, MORE_BYTES = 2.0, 64_000
MOST_WAIT_SECONDS = 60.0
SERVE = "import sys; from wids.tools.cli import main; sys.argv[0] = 'wids'; sys.exit(main())"


class Cost(NamedTuple):
    """What a grid took: seconds until it is whole, requests to the data's server, bytes of its answers."""

    seconds: float
    requests: int
    bytes: int


def picture(size: int) -> bytes:
    """A JPEG of about so many bytes."""
    side = 16
    while True:
        noise = Image.frombytes("RGB", (side, side), random.randbytes(3 * side * side))
        image = noise.resize((4 * side, 4 * side))
        data = io.BytesIO()
        image.save(data, "JPEG", quality=90)
        if data.tell() >= size:
            return data.getvalue()
        side += 8


def write_shard(path: str, samples: int, data: bytes) -> None:
    """Write a shard whose first pictures are there, and the others holes in the file."""
    with open(path, "wb") as file:
        at = 0
        for number in range(samples):
            for name, body in ((f"{number:06d}.jpg", data), (f"{number:06d}.cls", b"%d" % (number % 10))):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                file.seek(at)
                file.write(info.tobuf(tarfile.USTAR_FORMAT))
                if number < PICTURES + BLOCK:
                    file.write(body)
                at += 512 + -(-len(body) // 512) * 512
        file.truncate(at + 1024)


def write_set(directory: str, shards: int, samples: int, size: int) -> int:
    """Write the set; returns the bytes of the 60 pictures."""
    data, there = picture(size), (0, shards // 2)
    names = [f"train-{k:06d}.tar" for k in range(shards)]
    path = os.path.join(directory, names[0])
    write_shard(path, samples, data)
    os.link(path, os.path.join(directory, names[there[1]]))
    fd, facts = atomic.open_file(path)
    table = member_tables.scan_table(fd, path, facts).to_bytes()
    os.close(fd)
    rows = [{"url": name, "nsamples": samples, "filesize": facts.size} for name in names]
    index = {"wids_version": 1, "name": "train", "member_tables": ["train.tables"], "shardlist": rows}
    Path(directory, "train.json").write_text(json.dumps(index))
    pack = os.path.join(directory, "train.tables")
    head = pack_format.pack_head(names, [len(table)] * shards, url=pack)
    whole = len(head) + shards * (-(-len(table) // 8) * 8)
    found = pack_format.unpack(head, url=pack, size=whole)
    with open(pack, "wb") as file:
        file.write(head)
        for k in there:
            offset, _ = found.find(os.path.join(directory, names[k]))
            file.seek(offset)
            file.write(table)
        file.truncate(whole)
    return PICTURES * len(data)


@contextlib.contextmanager
def serving(url: str, cache: str) -> Iterator[str]:
    """`wids serve` in a process of its own, for as long as the block lasts: its address."""
    command = [sys.executable, "-c", SERVE, "serve", url, "--port", "0", "--no-open", "--cache", cache]
    env = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            line = process.stdout.readline()
            if "http://127" not in line:
                raise SystemExit("wids serve did not start")
            yield line.split()[-1]
        finally:
            process.terminate()


def get(address: str) -> bytes:
    """The body of an answer."""
    with urllib.request.urlopen(urllib.request.Request(address, headers={"X-Wids": "1"}), timeout=60) as answer:
        return answer.read()


def ask_for_grid(address: str, first: int) -> None:
    """Ask for a grid as the page does; its pictures are looked at."""
    get(f"{address}samples")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = range(first, first + PICTURES, BLOCK)
        found = pool.map(lambda at: get(f"{address}api/rows?start={at}&count={BLOCK}"), rows)
        indices = [row for block in found for row in json.loads(block)["rows"]][:PICTURES]
        if [row["index"] for row in indices] != list(range(first, first + PICTURES)) or "fields" not in indices[0]:
            raise SystemExit(f"the rows are not those of the grid: {indices[:1]}")
        thumbs = pool.map(lambda row: get(f"{address}thumb/{row['index']}/@{row['main']['number']}"), indices)
        for thumb in thumbs:
            Image.open(io.BytesIO(thumb)).load()


def look_with_browser(address: str, first: int) -> float | None:
    """Seconds until a browser shows the grid; None: there is no browser."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None
    with sync_playwright() as driver:
        path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        except Error:
            return None
        page = browser.new_page(viewport={"width": 1280, "height": 2200})
        page.goto("about:blank")
        begin = time.perf_counter()
        page.goto(f"{address}samples?at={first}" if first else f"{address}samples")
        shown = f"[...document.querySelectorAll('.cell img')].filter((each) => each.naturalWidth).length >= {PICTURES}"
        while not page.evaluate(shown):  # the pages' policy forbids what Playwright waits by
            time.sleep(0.02)
            if time.perf_counter() - begin > MOST_WAIT_SECONDS:
                raise SystemExit("the browser shows no grid")
        seconds = time.perf_counter() - begin
        browser.close()
    return seconds


def measure(server: SlowServer, middle: int) -> dict[str, Cost | None]:
    """One round: what each grid costs."""
    found: dict[str, Cost | None] = {}
    url = f"{server.url}/train.json"

    def note(title: str, begin: float, seconds: float | None = None) -> None:
        counts = server.stats()
        took = time.perf_counter() - begin if seconds is None else seconds
        found[title] = Cost(took, counts["requests"], counts["bytes"])

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        for title in ("process start, first time", "process start, index compiled"):
            server.stats()
            begin = time.perf_counter()
            with serving(url, cache) as address:
                ask_for_grid(address, 0)
                note(title, begin)
        with serving(url, cache) as address:
            for title, first in (("running server, sample 0", 0), ("running server, the middle", middle)):
                server.stats()
                begin = time.perf_counter()
                ask_for_grid(address, first)
                note(title, begin)
        for title, first in (("Chromium, sample 0", 0), ("Chromium, the middle", middle)):
            with serving(url, cache) as address:
                get(address)
                server.stats()
                seconds = look_with_browser(address, first)
                if seconds is None:
                    found[title] = None
                else:
                    note(title, 0.0, seconds)
    return found


def main(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; medians are shown.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Small shards, one round: tests the benchmark only.")] = False,
) -> None:
    """Time the first grid of pictures of a large remote set."""
    shards, samples, size, rounds = (50, 100, 2_000, 1) if quick else (100_000, 10_000, 100_000, rounds)
    table = Table("60 pictures", "seconds", "requests", "MB", "allowed: seconds", "MB")
    random.seed(0)
    with tempfile.TemporaryDirectory() as served:
        data = write_set(served, shards, samples, size)
        with SlowServer(served, delay_ms=30, mbps=40) as server:
            found = [measure(server, shards // 2 * samples) for _ in range(rounds)]
    allowed = data + PICTURES * MORE_BYTES
    for title in found[0]:
        costs = [cost for each in found if (cost := each[title]) is not None]
        if not costs:
            table.add_row(title, *["-"] * 5)
            continue
        seconds, requests, size = (median(figures) for figures in zip(*costs, strict=True))
        most = "" if title.startswith("Chromium") else f"{MOST_SECONDS:g}"
        table.add_row(title, f"{seconds:.2f}", f"{requests:.0f}", f"{size / 1e6:.2f}", most, f"{allowed / 1e6:.2f}")
    about = f"{shards:,} shards of {samples:,} samples; 60 pictures have {data / 1e6:.2f} MB"
    report.show_table(table, about, repository=ROOT, is_quick=quick)


if __name__ == "__main__":
    typer.run(main)
