"""The first page in a real browser."""

import pytest

from tests.support.browser import Visit
from tests.support.shards import write_json, write_tar
from wids.serve import start

pytestmark = pytest.mark.outside

HOSTILE = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The pages of two sub-datasets with weights and labels, whose names are hostile."""
    place = tmp_path_factory.mktemp("served")
    datasets = []
    for name, weight in ((HOSTILE, 1), ("b", 3)):
        file = f"{name[:1] == 'b'}.tar"
        write_tar(place / file, [(f"{k:02d}{end}", b"%d" % (k % 2)) for k in range(30) for end in (".cls", ".a<b>")])
        datasets.append({"name": name, "weight": weight, "shardlist": [{"url": file, "nsamples": 30}]})
    index = {"wids_version": 1, "datasets": datasets, "info": {"classes": [HOSTILE, "dog"]}}
    with start(write_json(place / "train.json", index)) as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_what_it_shows(browser, server, width, scheme):
    """Fields, classes, shares and the index; hostile names are text, and nothing is wider than the window."""
    with Visit(browser, server.url, viewport={"width": width, "height": 800}, color_scheme=scheme) as visit:
        page = visit.go()
        page.wait_for_selector("#fields:not([aria-busy]) article")
        assert page.locator("#fields h3 .mono").all_inner_texts() == [".cls", ".a<b>"]
        assert "60 samples" in page.inner_text("#looked")
        assert HOSTILE in page.inner_text("#classes")
        assert "dog (1)" in page.inner_text("#classes")
        assert page.locator("#mixture .number").all_inner_texts() == ["25 %, 0.500 passes", "75 %, 1.50 passes"]
        assert page.locator("#datasets tbody tr").count() == 2
        assert "first shard" in page.inner_text("#index")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#strip .cell").count() == 12
        assert page.title().startswith("Overview")
        assert (visit.left, visit.said) == ([], [])
