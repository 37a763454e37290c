"""The page of a sample in a real browser: pictures, players, trees, tensors, keys, tags."""

import io
import json
import tarfile
import time
import wave

import numpy as np
import pytest
from PIL import Image

from tests.support.browser import Visit
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import write_json
from wids.serve import start

pytestmark = pytest.mark.outside

SECONDS = 120


def fields():
    """The fields of each sample."""
    jpg, npy, wav = io.BytesIO(), io.BytesIO(), io.BytesIO()
    Image.new("RGB", (1600, 1000), (20, 90, 200)).save(jpg, "JPEG")
    np.save(npy, np.arange(12.0).reshape(3, 4))
    with wave.open(wav, "wb") as sound:
        sound.setparams((1, 2, 22_050, 0, "NONE", ""))
        sound.writeframes(bytes(2 * 22_050 * SECONDS))
    value = {"inner": {"big": 12345678901234567890}, "many": list(range(150))}
    return {
        ".jpg": jpg.getvalue(),
        ".wav": wav.getvalue(),
        ".txt": b"word " * 1000,
        ".cls": b"1",
        ".json": json.dumps(value).encode(),
        ".npy": npy.getvalue(),
        ".svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
        ".pkl": b"\x80\x04N.",
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The pages of three samples."""
    place = tmp_path_factory.mktemp("served")
    with tarfile.open(place / "a.tar", "w") as archive:
        for k in range(3):
            for name, data in fields().items():
                info = tarfile.TarInfo(f"s{k}{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    index = {"wids_version": 1, "info": {"classes": ["cat", "dog"]}, "shardlist": [{"url": "a.tar", "nsamples": 3}]}
    with start(str(write_json(place / "index.json", index))) as found:
        yield found


def see_all(page):
    """Bring all fields into sight, and wait for what they show."""
    page.wait_for_selector("#fields .field")
    for k in range(page.locator("#fields .field").count()):
        page.locator("#fields .field").nth(k).scroll_into_view_if_needed()
    page.wait_for_selector("main [aria-busy]", state="detached")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_what_it_shows(browser, server, width, scheme):
    """Each field in its way; nothing is wider than the window, said on the console, or asked of another host."""
    with Visit(browser, server.url, viewport={"width": width, "height": 800}, color_scheme=scheme) as visit:
        page = visit.go("/sample/1")
        see_all(page)
        words = page.inner_text("main")
        for said in ("s1", "word word", "1600 x 1000 RGB JPEG", "1 · dog", "(3, 4)", "5.5", "not opened", "dataset[1]"):
            assert said in words
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelector('.view img').naturalWidth") == 1600
        until(page, "document.querySelector('.drawing img').naturalWidth > 0")
        assert (visit.left, visit.said) == ([], [])


def until(page, expression):
    """Wait until an expression is true; the page's policy lets no text be run within it."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < ends, expression
        page.wait_for_timeout(20)


def scale(page):
    """How large the picture is shown, in percent."""
    return int(page.inner_text(".view-bar output").removesuffix(" %"))


def test_a_picture_is_looked_at_closely(browser, server):
    """By buttons, keys, the wheel and a double click; it is dragged."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/sample/1")
        page.wait_for_selector(".view-bar output:not(:empty)")
        whole = scale(page)
        page.click("text=100 %")
        assert scale(page) == 100
        page.focus(".view")
        page.keyboard.press("+")
        assert scale(page) == 125
        page.keyboard.press("0")
        assert scale(page) == whole
        page.hover(".view")
        page.mouse.wheel(0, -100)
        until(page, f"parseInt(document.querySelector('.view-bar output').textContent) > {whole}")
        page.keyboard.press("0")
        page.dblclick(".view")
        assert scale(page) == 100
        before = page.locator(".view img").bounding_box()
        page.hover(".view")
        page.mouse.down()
        page.mouse.move(before["x"] + 300, before["y"] + 300)
        page.mouse.up()
        assert page.locator(".view img").bounding_box() != before
        assert visit.said == []


def test_a_player_seeks_by_ranges(browser, server):
    """What is played from its middle is not read from its beginning."""
    with Visit(browser, server.url) as visit:
        page, ranges = visit.page, []
        page.on("response", lambda a: ranges.append(a.headers.get("content-range")) if a.status == 206 else None)
        visit.go("/sample/1")
        page.locator("audio").scroll_into_view_if_needed()
        until(page, "document.querySelector('audio')?.readyState > 0")
        assert abs(page.evaluate("document.querySelector('audio').duration") - SECONDS) < 1
        page.evaluate("document.querySelector('audio').currentTime = 100")
        until(page, "!document.querySelector('audio').seeking")
        assert page.evaluate("document.querySelector('audio').currentTime") == 100
        assert ranges


def test_a_tree_opens_a_level_at_a_time(browser, server):
    """Numbers are as they are written, and more parts come when they are asked for; a text, too."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/sample/1")
        see_all(page)
        page.wait_for_selector(".tree :text('12345678901234567890')")
        page.click(".tree summary:has-text('many')")
        page.click(".tree button:has-text('50 more')")
        page.wait_for_selector(".tree .name:text-is('149')")
        short = len(page.inner_text(".text >> nth=0"))
        page.click("button:has-text('More') >> nth=0")
        until(page, f"document.querySelector('.text').textContent.length > {short} + 100")
        assert visit.said == []


def test_keys_and_tags(browser, server):
    """Arrows go to the samples beside it, as far as there are some; a tag stays, gets a name elsewhere, goes."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/sample/1")
        page.wait_for_selector("#tags [data-of='1']")
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**/sample/2")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        page.wait_for_url("**/sample/1")
        page.wait_for_selector("#tags [data-of='1']")
        page.keyboard.press(" ")
        page.wait_for_selector("#tags [data-of='1'][aria-pressed=true]")
        page.wait_for_selector("#tags [data-of='2'][aria-pressed=false]")
        page.keyboard.press("7")
        page.wait_for_selector("#tags [data-of='7'][aria-pressed=true]")
        page.reload()
        page.wait_for_selector("#tags [data-of='7'][aria-pressed=true]")
        server._served.tags.rename(7, "<b>bad</b>")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.get_by_role("button", name="7 <b>bad</b>").click()
        page.wait_for_selector("#tags [data-of='7'][aria-pressed=false]")
        page.keyboard.press("u")
        page.wait_for_selector("#tags [data-of='7'][aria-pressed=true]")
        page.click("#tags [data-of='1']")
        page.wait_for_selector("#tags [data-of='1'][aria-pressed=false]")
        assert (visit.left, visit.said) == ([], [])
