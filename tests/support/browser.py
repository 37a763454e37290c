"""A real browser for tests of pages: Debian's Chromium, driven by Playwright; what it asked of other hosts is kept."""

import contextlib
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

from tests.support.clocks import PATIENCE_SECONDS
from tests.support.tools import program


@contextlib.contextmanager
def open_browser():
    """A browser without a window, for as long as the block lasts."""
    path = program("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page of a browser at a server.

    Args:
        browser: which. url: of the server. options: of Playwright's ``new_context``, as ``color_scheme="dark"``.

    Attributes:
        page: Playwright's. left: requests for other hosts. said: errors on the page's console, and uncaught ones.
    """

    def __init__(self, browser, url, **options):
        self._context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self._context.set_default_timeout(PATIENCE_SECONDS * 1000)
        self.page, self._url, self.left, self.said = self._context.new_page(), url.rstrip("/"), [], []
        self.page.on("request", self._note)
        self.page.on("console", lambda line: self.said.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def _note(self, request):
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and f"{parts.scheme}://{parts.netloc}" != self._url:
            self.left.append(request.url)

    def go(self, path="/"):
        """Open a path of the server; returns the page."""
        self.page.goto(self._url + path)
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._context.close()
