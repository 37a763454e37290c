"""The pictures of wids/tools/serve/README.md: `wids serve` in Chromium, over patches of scikit-learn's two photographs.

    python benchmarks/serve_pictures.py             writes wids/tools/serve/pictures/*.png; a minute
    python benchmarks/serve_pictures.py --all DIR   writes each page at 1280 and 390 pixels, light and dark, to look at

A job trains from a slow server meanwhile, through a bounded cache: the cache page is a picture of it.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "notebooks"))

import bucket
from PIL import Image
from playwright.sync_api import sync_playwright

from wids.serve import start

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "wids" / "tools" / "serve" / "pictures"
MOST_BYTES = 150_000
# (file, path, what has to be there, seconds to look on)
PAGES = (
    ("samples", "/samples?at=12", ".cell img", 3),
    ("table", "/samples?view=table&sort=jpg_bytes&desc=1", ".line img", 3),
    ("sample", "/sample/150", "main img", 2),
    ("epoch", "/epoch?batch_size=16&world_size=2&window=4&step=2", ".cell", 4),
    ("cache", "/cache", "#rows tr", 14),
)
# Those that are written with --all, too.
MORE = (
    ("overview", "/", ".cell img", 3),
    ("filtered", "/samples?where=label+%3D+1&sort=width&desc=1", ".cell img", 3),
    ("nothing", "/samples?tag=9", "#told .none", 2),
    ("tags", "/samples?view=table&tag=any", ".line img", 3),
    ("long", "/epoch?batch_size=4&epochs=40&step=100", ".cell", 4),
    ("error", "/nowhere", "main", 1),
)
# Of tags 1, 2 and 4, which few pixels have.
TAG_COLOURS = ((0xC2, 0x41, 0x0C), (0x1D, 0x4E, 0xD8), (0xA1, 0x62, 0x07))
TAGGED = ((1, "bad label", (14, 19, 30)), (2, "blurred", (16, 19, 22, 150)), (4, "keep", (27,)))
JOB = """\
import sys, time, torch, wids
dataset = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], cache_size=600_000, transformations=[])
while True:
    sampler = wids.DistributedChunkedSampler(dataset, num_replicas=1, rank=0, window=2)
    for index in sampler:
        dataset[index]
        time.sleep(0.01)
"""


def save(data: bytes, name: str) -> None:
    """Write a picture with as many colours as its limit has space for."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    for colours in (256, 128, 64, 32):
        small = io.BytesIO()
        few = picture.quantize(colours - len(TAG_COLOURS), dither=Image.Dither.NONE)
        palette = Image.new("P", (1, 1))
        palette.putpalette([*(few.getpalette() or []), *itertools.chain.from_iterable(TAG_COLOURS)])
        few = picture.quantize(palette=palette, dither=Image.Dither.NONE)
        few.save(small, "PNG", optimize=True)
        if small.tell() < MOST_BYTES:
            break
    (PICTURES / f"{name}.png").write_bytes(small.getvalue())
    print(f"{name}.png: {small.tell():,} bytes, {colours} colours")


def main(folder: str) -> None:
    """Write the pictures; with a folder, those of all pages there."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.chdir(place)  # whose name is then in no picture
        photos = bucket.photos("photos", step=40, latency=0.03, rate=150_000)
        # Found by PATH, so that the cache page shows a short name.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = ["python", "-c", JOB, photos.train, cache]
        with subprocess.Popen(command, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}) as job:
            try:
                run(
                    "pack", "photos/train.json", "-o", "photographs/train-%04d.tar", "--shuffle", "3", "--samples", "64"
                )
                columns = ("--field", ".cls=label", "--pictures", ".jpg")
                run("columns", "create", "photographs/train.json", *columns)
                draw("photographs/train.json", cache, folder)
            finally:
                job.kill()


def run(*arguments: str) -> None:
    """Run a command of wids."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "wids.tools.cli", *arguments], env=environ, check=True)


def draw(index: str, cache: str, folder: str) -> None:
    """Write a picture of each page."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with start(index, cache_dir=cache) as server, sync_playwright() as driver:
        for tag, name, samples in TAGGED:
            server._served.tags.change(tag, samples, is_set=True)  # noqa: SLF001 - as somebody has looked at them
            server._served.tags.rename(tag, name)  # noqa: SLF001
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for width, theme in itertools.product((1280, 390), ("light", "dark")) if folder else [(1280, "light")]:
            context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
            page = context.new_page()
            for name, path, there, seconds in (*PAGES, *MORE) if folder else PAGES:
                page.goto(server.url.rstrip("/") + path)
                page.wait_for_selector(there, state="attached")
                if page.locator("#why [role=status]").count():  # a filter in a link waits
                    page.evaluate("document.getElementById('filter').requestSubmit()")
                time.sleep(min(seconds, 4) if folder else seconds)
                while page.locator("#facets [aria-busy]").count():
                    time.sleep(0.1)
                if folder:
                    page.screenshot(path=f"{folder}/{name}-{width}-{theme}.png", full_page=True)
                else:
                    save(page.screenshot(), name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[2]) if sys.argv[1:2] == ["--all"] else "")
