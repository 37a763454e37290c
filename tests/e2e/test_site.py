"""The documentation site as it is built, in a real browser: searches, pages on a narrow screen, signatures."""

import ast
import functools
import html
import http.server
import re
import subprocess
import sys
import threading
from urllib.parse import quote

import pytest

from tests.support.browser import Visit
from tests.support.paths import ROOT
from tests.support.readmes import GUIDES

pytestmark = pytest.mark.outside

# What people type -> the page that comes first.
SEARCHES = {
    "accelerate": "guides/hugging-face.html#accelerate",
    "access was refused": "guides/troubleshooting.html#access-was-refused",
    "aspect ratio": "guides/batches.html",
    "augmentation seed": "wids/core/order/index.html#augmentation-that-repeats-exactly",
    "bad samples": "guides/filter.html#bad-samples",
    "bucket by length": "guides/batches.html",
    "cache limit": "guides/shared-caches.html",
    "checksum": "wids/core/index/index.html#index-format",
    "class balance": "guides/filter.html#class-balance",
    "CSV": "guides/your-data.html#which-command-for-which-data",
    "DDP hang": "guides/troubleshooting.html#a-ddp-job-hangs-all-ranks-wait-for-ever",
    "DistributedChunkedSampler": "reference/samplers.html#wids.DistributedChunkedSampler",
    "disk full": "guides/troubleshooting.html#more-bytes-are-needed-for-and-its-file-system-has",
    "fork": "guides/troubleshooting.html#a-loader-with-workers-hangs-when-it-starts-fork",
    "FSDP": "guides/resume.html#fsdp-and-torchtitan",
    "gated": "wids/hub/index.html",
    "GCS": "guides/stores.html#which-store",
    "HF datasets": "guides/coming-from.html#hf-datasets",
    "ImageFolder": "guides/coming-from.html#imagefolder",
    "how to resume training": "guides/resume.html",
    "imagenet folder": "guides/coming-from.html#imagefolder",
    "install": "guides/quickstart.html",
    "Lightning": "guides/lightning.html",
    "LitData": "guides/coming-from.html#litdata",
    "max_tokens": "reference/batches.html#wids.BucketBatchSampler(max_tokens)",
    "MinIO": "guides/stores.html#which-store",
    "mixture weights": "guides/mix.html",
    "MosaicML": "guides/coming-from.html#mosaicml-streaming",
    "NFS": "guides/shared-caches.html",
    "opt-out": "guides/filter.html",
    "out of memory": "guides/troubleshooting.html#dataloader-worker-pid-s-exited-unexpectedly",
    "packing": "guides/your-data.html#which-command-for-which-data",
    "proxy": "guides/stores.html#proxies-and-certificates",
    "quickstart": "guides/quickstart.html",
    "R2": "guides/stores.html#which-store",
    "Ray": "guides/resume.html#ray-train",
    "resume": "guides/resume.html",
    "S3 endpoint": "guides/stores.html#which-store",
    "segmentation mask": "guides/your-data.html#segmentation-masks",
    "shuffle quality": "wids/core/order/index.html#how-large-a-window",
    "threads": "wids/index.html#workers-processes-or-threads",
    "token": "wids/hub/index.html",
    "torchrun": "guides/resume.html#torchrun",
    "video": "guides/your-data.html#video-and-audio",
    "webdataset": "guides/coming-from.html#webdataset",
    "wids serve": "wids/tools/serve/index.html",
}
RESULTS = "#search-results li > a"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site; a warning of its build is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-c", ".docs", ".", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return place


class Server(http.server.ThreadingHTTPServer):
    """Whose browser may leave a page while it is sent."""

    def handle_error(self, *_):
        """Write nothing."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Without a line for each request."""

    def log_message(self, *_):
        """Write nothing."""


@pytest.fixture(scope="module")
def url(site):
    """Where the site is served."""
    with Server(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def first_result(page):
    """The address of the first result, without the words that it is to mark."""
    address = page.locator(RESULTS).first.get_attribute("href")
    return re.sub(r"\?highlight=[^#]*", "", address)


def test_searches(browser, url):
    """Each finds the page that explains it first, by the site's own index and ranks."""
    found = {}
    with Visit(browser, url) as visit:
        for words in SEARCHES:
            page = visit.go(f"/search.html?q={quote(words)}")
            page.locator(RESULTS).first.wait_for()
            found[words] = first_result(page)
        assert visit.left == []
    assert found == SEARCHES


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_guides_on_a_narrow_screen(browser, url, scheme):
    """Nothing is wider than the window: tables and code scroll by themselves."""
    with Visit(browser, url, viewport={"width": 390, "height": 800}, color_scheme=scheme) as visit:
        for name in ("index", *(f"guides/{path.stem}" for path in GUIDES), "reference/dataset"):
            page = visit.go(f"/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        assert visit.said == []


def test_signatures_show_values(site):
    """A default is a number, a text, an object of a public class; never a name of the inside. Types have no checks."""
    wrong = []
    for path in sorted((site / "reference").glob("*.html")):
        text = path.read_text(encoding="utf-8")
        wrong += [f"{path.name}: Annotated"] if "Annotated" in text else []
        for shown in re.findall(r'<span class="default_value">(.*?)</span></em>', text):
            default = html.unescape(re.sub("<.*?>", "", shown))
            if not re.fullmatch(r"math\.inf|slice\(.*\)|[A-Z]\w+\(\)", default):
                try:
                    ast.literal_eval(default)
                except (ValueError, SyntaxError):
                    wrong.append(f"{path.name}: {default}")
    assert not wrong, "\n".join(wrong)


def test_each_page_is_in_the_navigation(site):
    """Guides, READMEs of folders that have a page, the reference."""
    index = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_" not in path.parts[0]]
    others = {"index.html", "genindex.html", "search.html", "py-modindex.html"}
    assert [name for name in pages if f'href="{name}"' not in index and name not in others] == []
