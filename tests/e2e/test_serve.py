"""The pages of ``wids serve`` in a real browser."""

import signal
import urllib.request

import pytest

from tests.support.browser import Visit
from tests.support.cli import complaint, spawn
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_index
from wids.serve import start

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
        assert page.get_attribute("nav a[aria-current]", "href") == "/"
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
        assert (visit.left, visit.said) == ([], [])


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
