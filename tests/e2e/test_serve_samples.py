"""The samples in a real browser: a grid and a table, filtered, sorted, tagged; what has a tag trains a model."""

import io
import re
import threading
import time
import wave as wavfile
import zipfile

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

import wids
from tests.support.browser import Visit
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.columns import make_columns
from tests.support.shards import write_json, write_tar
from wids.columns.spec import parse_spec
from wids.serve import start
from wids.testing import Server

pytestmark = pytest.mark.outside

HUGE = 1_000_000_000


def picture(number):
    """A picture of one colour."""
    data = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, 80, 120)).save(data, "JPEG")
    return data.getvalue()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """600 pictures with a label and a caption, in three shards, and their columns."""
    folder = tmp_path_factory.mktemp("pictures")
    shards = []
    for k in range(3):
        members = {}
        for g in range(200 * k, 200 * k + 200):
            members |= {f"p{g:04d}.jpg": picture(g), f"p{g:04d}.cls": b"%d" % (g % 3)}
            members[f"p{g:04d}.txt"] = b"<b>caption</b> of %d" % g
        write_tar(folder / f"{k}.tar", members)
        shards.append({"url": f"{k}.tar", "nsamples": 200})
    index = {"wids_version": 1, "shardlist": shards, "info": {"classes": ["ant", "bee", "cow"]}}
    path = write_json(folder / "train.json", index)
    make_columns(path, spec=parse_spec(fields=[".cls=label"]))
    return path


@pytest.fixture(scope="module")
def server(index):
    """The pages of that."""
    with start(index) as found:
        yield found


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    """The pages of 10^9 samples in shards that are nowhere."""
    shards = [{"url": f"gone-{k}.tar", "nsamples": HUGE // 100} for k in range(100)]
    with start(
        write_json(tmp_path_factory.mktemp("huge") / "huge.json", {"wids_version": 1, "shardlist": shards})
    ) as found:
        yield found


def until(page, expression):
    """Wait until a script's expression is true; Playwright's own way is stopped by the pages' policy."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def cell(page, index):
    """The cell of a sample."""
    return page.locator(f'.cell[data-index="{index}"]')


def test_open_filter_tag_save_train(browser, index, server, tmp_path):
    """Pictures are seen, a class is chosen among the values, some get a tag, are saved as a view, and trained on."""
    with Visit(browser, server.url, accept_downloads=True) as visit:
        page = visit.go("/samples")
        until(page, "document.querySelector('.cell[data-index=\"0\"] img')?.naturalWidth > 0")
        assert cell(page, 0).inner_text() == "p0000"
        page.get_by_role("button", name="bee (1) 200").click()
        until(page, "document.getElementById('count').textContent == '200 of 600 match'")
        assert page.input_value("#where") == '"label" = 1'
        cell(page, 4).wait_for()
        assert cell(page, 0).count() == 0
        page.locator("#grid").focus()
        page.keyboard.press("Space")
        until(page, "document.getElementById('tagged').textContent == '1 tagged'")
        cell(page, 7).hover()
        cell(page, 7).locator(".corner").click(modifiers=["Shift"])
        until(page, "document.getElementById('tagged').textContent == '3 tagged'")
        page.wait_for_selector('.cell[data-index="7"][aria-selected=true]')
        assert [cell(page, k).get_attribute("aria-selected") for k in (1, 4, 7, 10)] == [
            "true",
            "true",
            "true",
            "false",
        ]
        page.click("#tags summary")
        page.fill("[aria-label='Name of tag 1']", "good <b>bee</b>")
        page.keyboard.press("Tab")
        page.get_by_role("button", name="Show only good <b>bee</b>").click()
        until(page, "document.getElementById('count').textContent == '3 of 600 good <b>bee</b>'")
        assert "tag=1" in page.url
        with page.expect_download() as download:
            page.click("#as-view")
        zipfile.ZipFile(download.value.path()).extractall(tmp_path)
        with page.expect_download() as download:
            page.click("#as-indices")
        assert np.load(download.value.path()).tolist() == [1, 4, 7]
        page.go_back()
        until(page, "document.getElementById('count').textContent == '200 of 600 match'")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Show only good <b>bee</b>").click()
        page.click("#untag")
        until(page, "document.getElementById('told').textContent == 'No sample with this tag matches this filter.'")
        assert (visit.left, visit.said) == ([], [])
    view = tmp_path / "good-b-bee-b.json"
    dataset = wids.ShardListDataset(view, transformations="numpy", fields=(".jpg", ".cls"))
    loader = DataLoader(dataset, batch_size=2, sampler=wids.ChunkedSampler(dataset, shuffle=True))
    assert sorted(label for batch in loader for label in batch[".cls"].tolist()) == [1, 1, 1]


def test_the_address_is_what_is_shown(browser, server):
    """A filter and a place come back by their address, by Back and Forward, and from a sample's page."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples?where=label+%3D+2&at=90")
        page.click("#filter .main")
        cell(page, 272).wait_for()
        assert page.input_value("#where") == "label = 2"
        page.reload()
        cell(page, 272).wait_for()
        cell(page, 272).locator(".link").click()
        page.wait_for_url("**/sample/272")
        page.go_back()
        cell(page, 272).wait_for()
        page.fill("#where", "label = 1")
        page.keyboard.press("Enter")
        cell(page, 1).wait_for()
        page.go_back()
        cell(page, 272).wait_for()
        assert page.input_value("#where") == "label = 2"
        assert visit.left == []


def test_a_wrong_filter(browser, server):
    """The samples that were shown stay, the column that was meant is named; after a right one keys go to the grid."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples?where=labl+%3D+2")
        page.click("#filter .main")
        page.wait_for_selector("#why .error")
        cell(page, 0).wait_for()
        assert page.get_attribute("#where", "placeholder") == "label >= 3"
        page.fill("#where", "label = 2")
        page.click("#filter .main")
        cell(page, 2).wait_for()
        until(page, "document.activeElement.id == 'grid'")
        page.fill("#where", "labl = 0")
        page.keyboard.press("Enter")
        page.wait_for_selector("#why .error")
        assert page.inner_text("#why") == "there is no column 'labl' (did you mean 'label'?)"
        assert page.inner_text("#count") == "200 of 600 match"
        cell(page, 5).wait_for()
        page.locator("#grid").focus()
        page.keyboard.press("End")
        cell(page, 599).wait_for()
        page.fill("#where", "label = 'bee'")
        page.keyboard.press("Enter")
        cell(page, 1).wait_for()
        page.fill("#where", "label = 9")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('told').textContent == 'No sample matches this filter.'")
        assert visit.left == []


def test_a_link_from_another_site(browser, server, tmp_path, monkeypatch):
    """The filter in it stands in the box and waits for a click; pictures and requests of that site run nothing."""
    rows, where, asked, requests = server._served.rows, "where=label+%3D+2", [], []
    find = rows.find
    monkeypatch.setattr(rows, "find", lambda sql: asked.append(sql) or find(sql))
    (tmp_path / "evil.html").write_text(
        f"<a href='{server.url}samples?{where}'>look</a><img src='{server.url}api/rows?{where}'>"
        f"<script>fetch('{server.url}api/rows?{where}', {{mode: 'no-cors'}}).catch(() => 0)</script>"
    )
    with Server(tmp_path) as evil, Visit(browser, server.url) as visit:
        page = visit.page
        page.on("request", lambda one: requests.append(one.url.removeprefix(server.url)))
        page.goto(f"{evil.url}/evil.html", wait_until="networkidle")
        assert requests.count(f"api/rows?{where}") == 2
        for load in (lambda: page.click("a"), page.reload):
            load()
            page.wait_for_selector("#why [role=status]")
            cell(page, 0).wait_for()
            assert page.input_value("#where") == "label = 2"
        assert set(asked) <= {""}
        page.click("#filter .main")
        until(page, "document.getElementById('count').textContent == '200 of 600 match'")
        page.wait_for_selector("#why [role=status]", state="detached")


def test_what_is_shown_of_a_sample(browser, server):
    """Another field, as text and never as HTML; a column below it; the choice is remembered."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples")
        cell(page, 0).wait_for()
        page.click("#view summary")
        page.select_option("#field", ".txt")
        page.select_option("#caption", "label")
        until(page, "document.querySelector('.cell[data-index=\"4\"] .words')?.textContent == '<b>caption</b> of 4'")
        assert cell(page, 4).locator(".caption").inner_text() == "label: bee"
        page.reload()
        until(page, "document.querySelector('.cell[data-index=\"0\"] .words')")
        assert page.locator(".cell b").count() == 0
        assert (visit.left, visit.said) == ([], [])


def test_jumps(browser, server):
    """To an index, a shard, and a key: by columns here."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples")
        cell(page, 0).wait_for()
        for by, to, there in (("index", "412", 412), ("shard", "2", 400), ("key", "p0123", 123)):
            page.select_option("#by", by)
            page.fill("#to", to)
            page.click("#jump button")
            page.wait_for_selector(f'.cell.current[data-index="{there}"]')
        page.select_option("#by", "key")
        page.fill("#to", "nobody")
        page.click("#jump button")
        page.wait_for_selector("#told .error")
        assert 'no sample has the key "nobody"' in page.inner_text("#told")
        page.select_option("#by", "index")
        page.fill("#to", "600")
        page.click("#jump button")
        page.get_by_text("there is no sample 600").wait_for()
        assert visit.left == []


def test_slow_samples(browser, server):
    """Those that do not come stop neither the others, nor tags, nor a filter."""
    with Visit(browser, server.url) as visit:
        visit.page.route(re.compile("/thumb/[012]/"), lambda _: None)  # never answered
        page = visit.go("/samples")
        until(page, "document.querySelector('.cell[data-index=\"9\"] img')?.naturalWidth > 0")
        assert cell(page, 0).locator("img").count() == 0
        page.locator("#grid").focus()
        page.keyboard.press("End")
        cell(page, 599).locator("img").wait_for()
        page.keyboard.press("Space")
        until(page, "document.querySelector('.cell[data-index=\"599\"]').classList.contains('tagged')")
        page.keyboard.press("Space")
        page.fill("#where", "label = 0")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('count').textContent == '200 of 600 match'")
        assert visit.left == []


def first(page):
    """The first and the last place in sight."""
    return page.evaluate(
        "(() => { const all = [...document.querySelectorAll('.stage .cell')].map((e) => Number(e.dataset.at));"
        "return [Math.min(...all), Math.max(...all)]; })()"
    )


def test_a_thousand_million(browser, huge):
    """By wheel, keys, slider and jumps to exact places, to the last one; rows that cannot be read are errors."""
    with Visit(browser, huge.url) as visit:
        page = visit.go("/samples")
        page.wait_for_selector('.cell[data-at="0"] .error')
        assert "gone-0.tar" in page.inner_text('.cell[data-at="0"]')
        columns = page.evaluate(
            "(() => { const at = (k) => document.querySelector(`.cell[data-at='${k}']`).style.transform.split(',')[1];"
            "let k = 1; while (at(k) === at(0)) k += 1; return k; })()"
        )
        page.locator("#grid").focus()
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(f'.cell.current[data-at="{columns}"]')
        page.keyboard.press("End")
        page.wait_for_selector(f'.cell.current[data-at="{HUGE - 1}"]')
        assert first(page)[1] == HUGE - 1
        page.keyboard.press("Home")
        page.wait_for_selector('.cell.current[data-at="0"]')
        page.select_option("#by", "index")
        page.fill("#to", "512,345,678")
        page.click("#jump button")
        page.wait_for_selector('.cell.current[data-index="512345678"]')
        before = first(page)[0]
        page.locator("#grid").hover()
        page.mouse.wheel(0, 400)  # some rows, and not some millions
        until(
            page,
            f"Math.min(...[...document.querySelectorAll('.stage .cell')].map((e) => Number(e.dataset.at))) > {before}",
        )
        assert first(page)[0] - before <= 4 * columns
        page.evaluate("document.getElementById('grid').scrollTop = 4e6")  # a scroll bar that is drawn
        until(page, "Math.abs(Number([...document.querySelectorAll('.stage .cell')][0].dataset.at) - 5e8) < 2e6")
        page.evaluate("document.getElementById('grid').scrollTop = 1e9")
        page.wait_for_selector(f'.cell[data-at="{HUGE - 1}"]')
        page.locator("#slider").fill("999999998")
        page.wait_for_selector('.cell.current[data-at="999999998"]')
        until(page, "new URLSearchParams(location.search).get('at') > 9e8")
        page.reload()
        page.wait_for_selector('.cell[data-at="999999998"] .error')
        assert page.inner_text("#count") == "1,000,000,000 samples"
        assert (visit.left, visit.said) == ([], [])


def test_a_narrow_screen(browser, server):
    """Nothing is wider than it; the filter opens over the grid, and closes."""
    with Visit(browser, server.url, viewport={"width": 390, "height": 800}) as visit:
        page = visit.go("/samples")
        cell(page, 0).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert not page.is_visible("#where")
        page.keyboard.press("/")
        page.fill("#where", "label = 0")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('count').textContent == '200 of 600 match'")
        page.click("#hide")
        assert not page.is_visible("#where")
        assert (visit.left, visit.said) == ([], [])


def test_a_key_is_looked_for_in_all_tables(browser, tmp_path):
    """Without columns: how far it is, and a way to stop; then the samples that have it."""
    members = {f"{key}.txt": b"x" for key in ("a", "b")}
    for k in range(40):
        write_tar(tmp_path / f"{k}.tar", members)
    shards = [{"url": f"{k}.tar", "nsamples": 2} for k in range(40)]
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": shards})
    gate = threading.Event()
    with start(index) as server, Visit(browser, server.url) as visit:
        rows = server._served.rows
        load = rows.table_apart
        rows.table_apart = lambda k: (gate.wait() if k == 30 else None, load(k))[1]
        page = visit.go("/samples")
        cell(page, 0).wait_for()
        page.select_option("#by", "key")
        page.fill("#to", "b")
        page.click("#jump button")
        page.get_by_text("reading the member tables of all shards").wait_for()
        page.get_by_role("button", name="Cancel").click()
        assert page.inner_text("#told") == ""
        page.click("#jump button")
        page.get_by_text("reading the member tables of all shards").wait_for()
        gate.set()
        page.get_by_text("40 samples have this key:").wait_for()
        page.wait_for_selector('.cell.current[data-index="1"]')
        page.get_by_role("button", name="7", exact=True).click()
        page.wait_for_selector('.cell.current[data-index="7"]')
        assert (visit.left, visit.said) == ([], [])


def test_fields_of_all_kinds(browser, tmp_path):
    """A waveform, an array as a picture, a text, a list of what cannot be shown, an error where it belongs."""
    wave, array = io.BytesIO(), io.BytesIO()
    sound = np.sin(np.arange(4000) / 5) * 20000
    with wavfile.open(wave, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(sound.astype("<i2").tobytes())
    np.save(array, np.zeros((8, 8), np.float32))
    members = {
        "0.wav": wave.getvalue(),
        "1.npy": array.getvalue(),
        "2.txt": b"<img src=x>",
        "3.bin": bytes(1234),
        "4.jpg": b"none",
        "5.mp4": b"none",
    }
    write_tar(tmp_path / "a.tar", members)
    index = write_json(tmp_path / "a.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 6}]})
    with start(index) as server, Visit(browser, server.url) as visit:
        page = visit.go("/samples")
        cell(page, 0).locator("svg.wave path").wait_for(state="attached")
        assert "0.5 s" in cell(page, 0).inner_text()
        cell(page, 1).locator("img").wait_for()
        cell(page, 2).get_by_text("<img src=x>").wait_for()
        cell(page, 3).get_by_text(".bin 1.23 kB").wait_for()
        cell(page, 4).locator(".error").wait_for()
        cell(page, 5).get_by_text(".mp4 4 bytes").wait_for()
        assert visit.left == []


def test_save_a_filter(browser, server, tmp_path):
    """What it chooses is a view that opens; without a match there is nothing to save."""
    with Visit(browser, server.url, accept_downloads=True) as visit:
        page = visit.go("/samples")
        cell(page, 0).wait_for()
        assert not page.is_visible("#as-filtered")
        page.fill("#where", "label = 'bee' and shard = 1")
        page.keyboard.press("Enter")
        with page.expect_download() as download:
            page.click("#as-filtered")
        zipfile.ZipFile(download.value.path()).extractall(tmp_path)
        page.fill("#where", "label = 9")
        page.keyboard.press("Enter")
        page.wait_for_selector("#as-filtered", state="hidden")
        assert (visit.left, visit.said) == ([], [])
    dataset = wids.ShardListDataset(tmp_path / "filtered.json", transformations="numpy", fields=(".cls",))
    assert len(dataset) == 66
    assert {dataset[k][".cls"] for k in range(66)} == {1}


def line(page, index):
    """The line of a sample in the table."""
    return page.locator(f'.line[data-index="{index}"]')


def lines_of(page):
    """The samples in sight, from the top."""
    return page.evaluate(
        "[...document.querySelectorAll('.line')].sort((a, b) => a.dataset.at - b.dataset.at)"
        ".map((e) => Number(e.dataset.index))"
    )


def test_a_table(browser, server):
    """Values and names of classes in lines; a click on a name sorts up, down, and not; the address has all of it."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples?at=3")
        cell(page, 3).wait_for()
        page.keyboard.press("v")
        line(page, 4).get_by_text("<b>caption</b> of 4").wait_for()
        until(page, "document.querySelector('.line[data-index=\"4\"] img')?.naturalWidth > 0")
        assert [text for text in line(page, 4).inner_text().split("\n") if text][:3] == ["4", "p0004", "bee (1)"]
        assert "view=table" in page.url
        header = page.get_by_role("columnheader", name="label")
        for words, first in (("ascending", 0), ("descending", 2), ("none", 0)):
            header.get_by_role("button").click()
            page.wait_for_selector(f'[aria-sort="{words}"] [title^="label:"]')
            page.wait_for_selector(f'.line[data-at="0"][data-index="{first}"]')
            assert ("sort=label" in page.url, "desc=1" in page.url) == (words != "none", words == "descending")
        page.go_back()
        page.wait_for_selector('.line[data-at="0"][data-index="2"]')
        page.fill("#where", "label != 2")
        page.keyboard.press("Enter")
        page.wait_for_selector('.line[data-at="0"][data-index="1"]')
        assert page.inner_text("#count") == "400 of 600 match"
        assert lines_of(page)[:3] == [1, 4, 7]
        page.reload()
        page.wait_for_selector('.line[data-at="0"][data-index="1"]')
        page.fill("#where", "labl = 1")
        page.keyboard.press("Enter")
        page.wait_for_selector("#why .error")
        assert page.inner_text("#why") == "there is no column 'labl' (did you mean 'label'?)"
        assert lines_of(page)[:3] == [1, 4, 7]
        page.locator(".head button", has_text=".txt").click(force=True)
        page.get_by_text("so they have no order").wait_for()
        page.click("#as-grid")
        page.wait_for_selector('.cell[data-at="1"][data-index="4"]')
        page.click("#sorted")
        page.wait_for_selector('.cell[data-at="1"][data-index="1"]')
        assert visit.left == []


def test_an_address_of_an_order_that_is_not_there(browser, server):
    """It is said why, and the samples are shown in theirs."""
    with Visit(browser, server.url) as visit:
        page = visit.go("/samples?view=table&sort=labl")
        page.get_by_text("there is no column 'labl' to sort by (did you mean 'label'?)").wait_for()
        line(page, 0).get_by_text("p0000").wait_for()
        assert visit.left == []


def test_keys_of_a_table(browser, server):
    """Arrows go to lines and across, Enter opens a sample, space tags it; Tab comes to the names, which sort."""
    with Visit(browser, server.url, viewport={"width": 700, "height": 800}) as visit:
        page = visit.go("/samples?view=table")
        line(page, 0).get_by_text("p0000").wait_for()
        for key, at in (("ArrowDown", 1), ("End", 599), ("Home", 0), ("ArrowDown", 1)):
            page.keyboard.press(key)
            page.wait_for_selector(f'.line.current[data-at="{at}"]')
        page.keyboard.press("ArrowRight")
        until(page, "document.getElementById('grid').scrollLeft > 50")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Space")
        until(page, "document.getElementById('tagged').textContent == '1 tagged'")
        page.wait_for_selector(".line.current .badge")
        page.keyboard.press("Space")
        until(page, "document.getElementById('tagged').textContent == '0 tagged'")
        for key in ("Tab", "Tab", "Tab", "Enter"):
            page.keyboard.press(key)
        until(page, "new URLSearchParams(location.search).get('sort') == 'key'")
        page.locator("#grid").focus()
        page.keyboard.press("End")
        line(page, 599).get_by_text("p0599").wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url("**/sample/599")
        page.go_back()
        line(page, 599).get_by_text("p0599").wait_for()
        assert (visit.left, visit.said) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_table(browser, server, scheme):
    """It scrolls within itself, its head with it; the page is as wide as the screen."""
    with Visit(browser, server.url, viewport={"width": 390, "height": 800}, color_scheme=scheme) as visit:
        page = visit.go("/samples?view=table")
        line(page, 0).get_by_text("p0000").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.evaluate("document.getElementById('grid').scrollLeft = 1e4")
        boxes = [page.locator(each).last.bounding_box() for each in (".head > *", ".line > [role=gridcell]")]
        assert boxes[0]["x"] == pytest.approx(boxes[1]["x"], abs=1)
        assert boxes[0]["x"] + boxes[0]["width"] <= 391
        page.mouse.move(200, 500)
        page.mouse.wheel(0, 3000)
        until(page, "Number(document.querySelector('.line').dataset.at) > 20")
        assert page.locator(".head").bounding_box()["y"] == pytest.approx(boxes[0]["y"], abs=1)
        assert (visit.left, visit.said) == ([], [])


def test_a_table_of_a_thousand_million(browser, huge):
    """Its first and last lines; it is not sorted, and the page says why."""
    with Visit(browser, huge.url) as visit:
        page = visit.go("/samples?view=table")
        page.get_by_text("gone-0.tar").first.wait_for()
        page.locator("#grid").focus()
        page.keyboard.press("End")
        page.wait_for_selector(f'.line.current[data-at="{HUGE - 1}"]')
        page.get_by_role("columnheader", name="index").get_by_role("button").click()
        page.get_by_role("columnheader", name="index").get_by_role("button").click()
        page.get_by_text("are too many to sort").wait_for()
        assert visit.left == []


def wait_for_badges(page, *expected):
    """Wait until the first cells show these tags, a string each: a page tells of a change before it asks for them."""
    shown = "[...document.querySelectorAll('.cell[data-index=\"{}\"] .badge')].map((badge) => badge.innerText).join('')"
    for k, tags in enumerate(expected):
        until(page, f"{shown.format(k)} === '{tags}'")


@pytest.fixture
def own(index):
    """The same samples, served for one test."""
    with start(index) as found:
        yield found


def test_tags_are_undone(browser, own):
    """By keys and buttons, one at a time, also after another page of the tab; what another tab has changed stays."""
    with Visit(browser, own.url) as visit:
        page = visit.go("/samples")
        cell(page, 0).get_by_text("p0000").wait_for()
        page.keyboard.press("2")
        cell(page, 0).locator("[data-tag='2']").wait_for()
        page.keyboard.press("3")
        cell(page, 0).locator("[data-tag='3']").wait_for()
        page.keyboard.press("2")
        cell(page, 0).locator("[data-tag='2']").wait_for(state="detached")
        other = page.context.new_page()
        other.goto(f"{own.url}samples")
        cell(other, 0).locator(".badge").wait_for()
        other.locator("#grid").press("5")
        cell(page, 0).locator("[data-tag='5']").wait_for()
        page.keyboard.press("u")
        cell(page, 0).locator("[data-tag='2']").wait_for()
        wait_for_badges(page, "235")
        page.keyboard.press("Control+z")
        cell(page, 0).locator("[data-tag='3']").wait_for(state="detached")
        page.keyboard.press("4")
        cell(page, 0).locator("[data-tag='4']").wait_for()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+Digit4")
        cell(page, 2).locator("[data-tag='4']").wait_for()
        wait_for_badges(page, "245", "4", "4", "")
        page.goto(f"{own.url}sample/1")
        page.wait_for_selector("#tags [data-of='4'][aria-pressed=true]")
        page.keyboard.press("u")
        page.wait_for_selector("#tags [data-of='4'][aria-pressed=false]")
        page.go_back()
        cell(page, 0).locator("[data-tag='5']").wait_for()
        wait_for_badges(page, "245", "", "", "")
        page.click("#tags summary")
        page.click("#redo")
        cell(page, 2).locator("[data-tag='4']").wait_for()
        until(page, "document.getElementById('redo').disabled")
        for _ in range(4):
            page.keyboard.press("u")
        page.get_by_text("Nothing to undo in this tab").wait_for()
        wait_for_badges(page, "5")
        assert (visit.left, visit.said) == ([], [])


def test_a_list_of_a_tag(browser, own):
    """A sample that loses its tag leaves it, the next one has its place; undone, it is back; also in a table."""
    with Visit(browser, own.url) as visit:
        page = visit.go("/samples?tag=2&view=table")
        until(page, "document.getElementById('told').textContent == 'No sample has this tag.'")
        page.click("#tags summary")
        page.click("#only")
        page.locator("#grid").focus()
        line(page, 0).get_by_text("p0000").wait_for()
        page.keyboard.press("2")
        line(page, 0).locator("[data-tag='2']").wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+Digit2")
        line(page, 2).locator("[data-tag='2']").wait_for()
        page.goto(f"{own.url}samples?tag=2&view=table&sort=index&desc=1")
        until(page, "document.getElementById('count').textContent == '3 of 600 tag 2'")
        line(page, 2).get_by_text("p0002").wait_for()
        assert lines_of(page) == [2, 1, 0]
        page.keyboard.press("2")
        until(page, "document.getElementById('count').textContent == '2 of 600 tag 2'")
        line(page, 1).get_by_text("p0001").wait_for()
        assert lines_of(page) == [1, 0]
        page.keyboard.press("u")
        line(page, 2).get_by_text("p0002").wait_for()
        assert lines_of(page) == [2, 1, 0]
        assert (visit.left, visit.said) == ([], [])
