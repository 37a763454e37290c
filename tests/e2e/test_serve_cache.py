"""The cache page in a real browser, while a job uses the directory."""

import contextlib
import os
import time

import pytest

from tests.support.browser import Visit
from tests.support.cache_dirs import put_shard
from tests.support.shards import write_index
from wids.core.cache.directory import CacheDirectory
from wids.core.cache.usage_hints import PlanFile
from wids.core.files import atomic, locks, system
from wids.serve import start

pytestmark = pytest.mark.outside

DIGEST = "0123456789abcdef0123456789abcdef"


def test_it_shows_what_happens(browser, tmp_path):
    """First nothing, then a download, a shard that is read, a limit, and a shard that goes."""
    home = str(tmp_path / "cache")
    index = write_index(tmp_path / "data")
    with start(index, cache_dir=home) as server, Visit(browser, server.url) as visit, contextlib.ExitStack() as stack:
        page = visit.go("/cache")
        page.wait_for_selector("text=does not exist yet")
        assert not os.path.exists(home)
        os.mkdir(home)
        path = put_shard(home, f"{DIGEST}-<b>a.tar", 1000)
        put_shard(home, "b.tar", 1000)
        reader = os.open(path, os.O_RDONLY)
        stack.callback(os.close, reader)
        assert locks.lease(reader)
        _, part = atomic.make_part(CacheDirectory(home).staging("c.tar"))
        stack.callback(os.close, part)
        system.write_all(part, bytes(4096), 0)
        os.ftruncate(part, 16384)
        plan = stack.enter_context(contextlib.closing(PlanFile(home)))
        plan.write({"b.tar": time.time() + 900}, {}, {"d": {"hits": 3, "fetches": 1, "cache_size": 50_000}})
        page.wait_for_selector("tr:has-text('<b>a.tar') .tag")
        page.wait_for_selector("tr:has-text('b.tar'):has-text('in 15 min')")
        assert "4.10 kB of 16.4 kB" in page.inner_text("#downloads")
        assert page.get_attribute("#downloads [role=progressbar]", "aria-valuenow") == "25"
        facts = page.inner_text("#summary")
        assert "50.0 kB" in facts
        assert "75 %" in facts
        page.wait_for_selector("#usage path.line")
        os.unlink(f"{home}/b.tar")
        page.wait_for_selector("#changes li:has-text('deleted'):has-text('b.tar')")
        page.wait_for_selector("#rows tr:has-text('b.tar')", state="detached")
        assert page.locator("#rows tr").count() == 1
        assert (visit.left, visit.said) == ([], [])


def test_it_rests_while_it_is_not_seen(browser, tmp_path):
    """A hidden page asks for nothing, and goes on when it is seen again."""
    with start(write_index(tmp_path), cache_dir=tmp_path / "cache") as server, Visit(browser, server.url) as visit:
        page = visit.go("/cache")
        page.wait_for_selector("text=live")
        hide = "Object.defineProperty(document, 'hidden', { configurable: true, get: () => %s })"
        page.evaluate(hide % "true")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_selector("text=paused")
        page.wait_for_load_state("networkidle")
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("new Promise((done) => setTimeout(done, 1500))")
        assert asked == []
        page.evaluate(hide % "false")
        with page.expect_request("**/api/cache?*"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_selector("text=live")
