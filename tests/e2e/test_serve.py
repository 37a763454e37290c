"""The pages of ``wids serve`` in a real browser."""

import contextlib
import http.client
import http.server
import signal
import threading
import urllib.request
from urllib.parse import urlsplit

import pytest

import wids
from tests.support.browser import Visit
from tests.support.cli import complaint, spawn
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_index
from wids.serve import start
from wids.tools.serve.running import PageServer
from wids.tools.serve.served import Served

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The pages of a small dataset."""
    index = write_index(tmp_path_factory.mktemp("served"), (3, 4), name="train.json")
    with start(str(index)) as found:
        yield found


def test_the_overview(browser, server):
    """What the index says; nothing is asked of another host, and nothing is said on the console."""
    with Visit(browser, server.url) as visit:
        page = visit.go()
        assert page.inner_text("#summary").split()[:4] == ["samples", "7", "shards", "2"]
        assert page.get_attribute("nav a[aria-current]", "href") == "./"
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
        assert (visit.left, visit.said) == ([], [])


def test_keys(browser, server):
    """``?`` lists them, with the version; Escape closes the list, and other keys do nothing meanwhile."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/")
        page.keyboard.press("?")
        assert wids.__version__ in page.wait_for_selector("#help[open]").inner_text()
        before = page.evaluate("document.documentElement.dataset.theme")
        page.keyboard.press("t")
        page.keyboard.press("Escape")
        page.wait_for_selector("#help:not([open])", state="attached")
        assert page.evaluate("document.documentElement.dataset.theme") == before
        assert (visit.left, visit.said) == ([], [])


class Proxy(http.server.BaseHTTPRequestHandler):
    """Publishes a server below ``/user/me/``, without that path, as JupyterHub does."""

    target = ""

    def do_GET(self):
        """Ask the server, and hand its answer on."""
        assert self.path.startswith("/user/me/")
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        with contextlib.closing(http.client.HTTPConnection(self.target)) as connection:
            connection.request("GET", self.path.removeprefix("/user/me"), headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


def test_below_the_path_of_a_proxy(browser, tmp_path):
    """All pages, what they ask for, and the token's cookie stay below it."""
    served = Served(str(write_index(tmp_path, (3, 4), name="train.json")))
    with PageServer(served, port=0, has_token=True).start() as server:
        url = urlsplit(server.url)
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("", (Proxy,), {"target": url.netloc}))
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        with Visit(browser, f"http://127.0.0.1:{proxy.server_port}") as visit:
            page = visit.go(f"/user/me/?{url.query}")
            page.wait_for_selector("#strip .cell")
            assert [one["path"] for one in page.context.cookies()] == ["/user/me"]
            for name in ("Samples", "Epoch", "Cache", "Overview"):
                page.get_by_role("link", name=name, exact=True).click()
                page.wait_for_load_state("networkidle" if name != "Cache" else "load")
                assert urlsplit(page.url).path == f"/user/me/{'' if name == 'Overview' else name.lower()}"
            page.click("#strip .cell >> nth=2")
            page.wait_for_selector("#fields section")
            assert urlsplit(page.url).path == "/user/me/sample/2"
            page.click("#after")
            page.wait_for_url("**/user/me/sample/3")
            assert (visit.left, visit.said) == ([], [])
        proxy.shutdown()
        proxy.server_close()


def test_what_is_not_there(browser, server):
    """A page says so, in words."""
    with Visit(browser, server.url) as visit:
        assert "there is no such page" in visit.go("/nowhere").inner_text("main")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command(tmp_path, number):
    """It says its address, answers there, and ends by a signal without a word."""
    index = write_index(tmp_path, (3,), name="train.json")
    with spawn("serve", index, "--port", "0", "--no-open") as process:
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            assert b"<title>" in answer.read()
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, said) == ({signal.SIGINT: 0, signal.SIGTERM: -signal.SIGTERM}[number], "")


def test_a_port_in_use(server, tmp_path):
    """A line that names another way."""
    port = server.url.rstrip("/").rpartition(":")[2]
    words = complaint(1, "serve", str(write_index(tmp_path, (3,), name="train.json")), "--port", port, "--no-open")
    assert f"port {port} of 127.0.0.1 is not available" in words
