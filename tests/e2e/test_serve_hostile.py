"""Samples that want to do harm, in a real browser: they are looked at, and nothing of them runs or leaves."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Error

from tests.support.browser import Visit
from tests.support.hostile import fields
from tests.support.shards import write_json

pytestmark = pytest.mark.outside

# Torch and the like take 0.5 GB, eight small pictures at a time up to 1.4 GB. A picture of 10^9 pixels takes 3 GB more,
# the gzip of zeros 2 GB more.
MOST_KB = 2_200_000
SERVER = """
import resource, sys
from wids.serve import start
with start(sys.argv[1]) as server:
    print(server.url, flush=True)
    sys.stdin.read()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1), flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(its URL, how many samples) of a process that serves them; what it took of memory is looked at in the end."""
    place = tmp_path_factory.mktemp("hostile")
    count = fields.write(place / "a.tar")
    header = {"wids_version": 1, "name": fields.MARKUP, "info": {"classes": [fields.MARKUP]}}
    index = write_json(place / "index.json", {**header, "shardlist": [{"url": "a.tar", "nsamples": count}]})
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().strip(), count
    finally:
        last, _ = process.communicate()
    assert process.returncode == 0
    assert int(last.split()[-1]) < MOST_KB


@contextlib.contextmanager
def watched(browser, server):
    """A visit that must end without a script of a sample, a dialog, or a request for another host."""
    marker = Path(tempfile.gettempdir(), "wids-hacked")
    with Visit(browser, server[0]) as visit:
        dialogs, page = [], visit.page
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        yield visit
        assert not any(frame.evaluate("'hacked' in globalThis") for frame in page.frames)
        assert (dialogs, visit.left) == ([], [])
        assert not marker.exists()


def test_the_pages(browser, server):
    """Each sample is shown, in words where there is no picture; the pages live on."""
    with watched(browser, server) as visit:
        for path in ("/", "/samples"):
            visit.go(path).wait_for_load_state("networkidle")
        for index in range(server[1]):
            page = visit.go(f"/sample/{index}")
            page.wait_for_selector("#fields .field")
            for k in range(page.locator("#fields .field").count()):
                page.locator("#fields .field").nth(k).scroll_into_view_if_needed()
            page.wait_for_selector("main [aria-busy]", state="detached")
            assert not page.evaluate("'hacked' in globalThis")
            assert not page.locator("main script, main iframe, main svg script, main [onerror], main [onload]").count()
        assert not [said for said in visit.said if "TypeError" in said or "ReferenceError" in said]


def test_what_pages_say(browser, server):
    """Of what cannot be shown, why, in its own place."""
    words = {
        b"huge-png": "pixels",
        b"huge-jpg": "pixels",
        b"huge-gif": "pixels",
        b"huge-tif": "pixels",
        b"scans": "scans",
        b"cut-jpg": "damaged",
        b"npy": "promises shape",
        b"objects": "not opened",
        b"npz": "inflates to more",
        b"gz": "inflates to more",
        b"deep": "damaged",
        b"long": "not decoded here",
        b"svg-as-png": "damaged",
        b"html-as-mp4": "cannot play",
        b"frames-gif": "An animation",
        b"frames-png": "An animation",
        b"exif": "not turned",
        b"text": "are no UTF-8",
    }
    keys = [key for key, _ in fields.samples()]
    with watched(browser, server) as visit:
        for key, said in words.items():
            page = visit.go(f"/sample/{keys.index(key)}")
            page.wait_for_selector(f"#fields :text({said!r})")


@pytest.mark.parametrize("kind", ["field", "thumb", "picture", "api/text", "api/field", "api/tree"])
def test_each_by_itself(browser, server, kind):
    """Also as a page of its own: in a sandbox, or saved; and each is answered."""
    with watched(browser, server) as visit:
        for index, (_, members) in enumerate(fields.samples()):
            for k in range(len(members)):
                with contextlib.suppress(Error):  # it is saved
                    visit.go(f"/{kind}/{index}/@{k}").wait_for_load_state()
                assert not any(frame.evaluate("'hacked' in globalThis") for frame in visit.page.frames)


def test_names_in_addresses(browser, server):
    """Whatever a name is, its address names no file of the machine, and the answer is words or that field."""
    with watched(browser, server) as visit:
        request = visit.page.request
        for name in ["..", "%2e%2e", "../../etc/passwd", "\0", "@9999", "@-1", "x" * 9000, "\u202e", "%ff"]:
            for kind in ("field", "thumb", "api/text", "api/field", "api/tree"):
                address = f"{server[0].rstrip('/')}/{kind}/1/{quote(name, safe='')}"
                answer = request.get(address, headers={"X-Wids": "1"})
                assert answer.status in (400, 404, 415), (kind, name)
                assert b"root:" not in answer.body()
