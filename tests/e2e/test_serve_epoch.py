"""The page of an epoch in a real browser."""

import bisect
import itertools
from collections import Counter

import pytest

from tests.support import columns
from tests.support.browser import Visit
from tests.support.shards import write_mixture
from wids import BucketBatchSampler, DistributedChunkedSampler, PackSampler, ShardListDataset
from wids.serve import start
from wids.tools.serve import epoch
from wids.tools.serve.running import PageServer
from wids.tools.serve.served import Served

pytestmark = pytest.mark.outside

QUERY = "/epoch?world_size=2&batch_size=5&seed=3"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """The path of an index with columns."""
    index = columns.write_dataset(tmp_path_factory.mktemp("served"), (30, 0, 12, 21))
    columns.make_columns(index)
    return index


@pytest.fixture(scope="module")
def server(index):
    """Its pages."""
    with start(str(index)) as found:
        yield found


def batches_of(index, rank, **rule):
    """The batches of a rank of two, with the settings of QUERY."""
    sampler = DistributedChunkedSampler(ShardListDataset(index), num_replicas=2, rank=rank, seed=3)
    if rule:
        return list(BucketBatchSampler(sampler, **rule))
    return [list(one) for one in itertools.zip_longest(*[iter(sampler)] * 5)]


def wait_for(page, step, rank, batch):
    """Wait until a batch is shown."""
    indices = ",".join(str(index) for index in batch if index is not None)
    page.wait_for_selector(f'#cells[data-step="{step}"][data-rank="{rank}"][data-indices="{indices}"]')
    page.wait_for_selector("#cells:not([aria-busy])")


def values(page, plot, name, attribute="data-values"):
    """The numbers of a line or an area of a plot, once there is one for each step."""
    text = page.wait_for_selector(f'#{plot} path[data-name="{name}"]', state="attached").get_attribute(attribute)
    return [float(word) for word in text.split()]


def test_packs(browser, server, index):
    """A bar for each pack, with its pieces, which are the sampler's; a sample is found in its packs."""
    sampler = DistributedChunkedSampler(ShardListDataset(index), num_replicas=2, rank=0, seed=3)
    batches = list(PackSampler(sampler, lengths="bytes", pack_tokens=150, batch_size=2))
    with Visit(browser, server.url) as visit:
        page = visit.go("/epoch?world_size=2&seed=3&batch_size=2")
        page.wait_for_selector("#cells:not([aria-busy])")
        assert page.is_hidden("#packs")
        page = visit.go("/epoch?world_size=2&seed=3&batch_size=2&lengths=bytes&pack_tokens=150")
        wait_for(page, 0, 0, batches[0])
        page.click("#after")
        wait_for(page, 1, 0, batches[1])
        bars = [
            [part.get_attribute("title") for part in pack.query_selector_all("a")]
            for pack in page.query_selector_all("#packs .pack")
        ]
        expected = [[], []]
        for one in batches[1]:
            number, first, last, length = one.piece
            expected[number].append(f"sample {int(one)}: tokens {first} to {last} of {length}")
        assert bars == expected
        widths = page.evaluate(
            "[...document.querySelectorAll('#packs .pack')].map((p) => [p, ...p.children].map((e) => e.offsetWidth))"
        )
        assert all(sum(parts) <= 1.02 * whole for whole, *parts in widths)
        tokens = sum(one.piece[2] - one.piece[1] for one in batches[1])
        assert f"2 packs · {len(batches[1])} pieces of" in page.inner_text("#says")
        assert f"{tokens} tokens of 300" in page.inner_text("#says")
        assert values(page, "plot-costs", "rank 0")[1] == tokens
        page.fill('[name="sample"]', str(int(batches[1][0])))
        page.press('[name="sample"]', "Enter")
        first, last = batches[1][0].piece[1:3]
        page.wait_for_selector(f"#found li:has-text('step 1 · place 0 · pack 0, tokens {first} to {last} of')")
        assert not visit.said


def test_steps_and_ranks(browser, server, index):
    """The slider, the arrows, keys and fields choose the batch, which is the sampler's; the address holds them."""
    first, second = (batches_of(index, rank) for rank in range(2))
    with Visit(browser, server.url) as visit:
        page = visit.go(QUERY)
        wait_for(page, 0, 0, first[0])
        assert page.get_attribute("nav a[aria-current]", "href") == "./epoch"
        assert "7 steps on each of 2 ranks" in page.inner_text("#summary")
        page.click("#after")
        wait_for(page, 1, 0, first[1])
        page.locator("#slider").fill("4")
        wait_for(page, 4, 0, first[4])
        page.locator("h1").click()
        page.keyboard.press("ArrowLeft")
        wait_for(page, 3, 0, first[3])
        page.keyboard.press("n")
        wait_for(page, 3, 1, second[3])
        page.fill("#step", "6")
        page.press("#step", "Enter")
        wait_for(page, 6, 1, second[6])
        assert page.evaluate("location.search") == "?world_size=2&batch_size=5&seed=3&rank=1&step=6"
        repeated = page.locator("#cells .repeated")
        assert repeated.get_attribute("data-index") == str(second[6][1])
        assert "repeated" in repeated.inner_text()
        assert "1 repeated, to fill up the tail" in page.inner_text("#says")
        page.fill("#step", "7")
        page.press("#step", "Enter")
        assert "steps are 0 to 6" in page.wait_for_selector("#place-error:not([hidden])").inner_text()
        page.reload()
        wait_for(page, 6, 1, second[6])
        assert (visit.left, visit.said) == ([], [])


def test_classes(browser, server, index):
    """How many samples of a batch are of which class, at each step, for the rank that is chosen."""
    labels = ShardListDataset(index).read_column("label").tolist()
    with Visit(browser, server.url) as visit:
        page = visit.go(f"{QUERY}&rank=1")
        batches = [[labels[k] for k in batch if k is not None] for batch in batches_of(index, 1)]
        assert values(page, "plot-distinct", "classes") == [len(set(batch)) for batch in batches]
        assert values(page, "plot-classes", "2") == [100 * Counter(batch)[2] / len(batch) for batch in batches]
        svg = page.locator("#plot-classes svg")
        assert svg.locator("title").first.text_content() == "Classes in a batch: label"
        assert "Each step; the batches of rank 1." in svg.locator("desc").text_content()
        svg.focus()
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#plot-classes .plot-says").startswith("step 0 · ")
        bands = page.wait_for_selector("#open svg")
        assert bands.query_selector("desc").text_content().startswith("step 0 to 7.")
        ends = [30, 30, 42, 63]
        shards = [{bisect.bisect(ends, k) for k in batch if k is not None} for batch in batches_of(index, 1)]
        covered = [set() for _ in shards]
        for band in bands.query_selector_all("rect.band"):
            number = int(band.get_attribute("data-name").split(",")[0].removeprefix("shard "))
            first, last = (int(band.get_attribute(f"data-{name}")) for name in ("first", "last"))
            assert number in shards[first] & shards[last]
            for step in range(first, last + 1):
                covered[step].add(number)
        assert all(found <= there for found, there in zip(shards, covered, strict=True))


def test_batches_of_like_length(browser, server, index):
    """The form is filled in, and costs, padding and lengths are drawn; what is wrong stands beside its field."""
    sizes = ShardListDataset(index).read_column("bytes")
    ranks = [batches_of(index, rank, lengths=sizes, max_tokens=300) for rank in range(2)]
    with Visit(browser, server.url) as visit:
        page = visit.go("/epoch?world_size=2&seed=3")
        page.click("#by-length summary")
        page.fill('[name="batch_size"]', "")
        page.select_option('[name="lengths"]', "bytes")
        page.fill('[name="max_tokens"]', "3")
        page.press('[name="max_tokens"]', "Enter")
        assert "too_long='skip'" in page.wait_for_selector('label:has([name="max_tokens"]) .why').inner_text()
        assert page.get_attribute('[name="max_tokens"]', "aria-invalid") == "true"
        page.fill('[name="max_tokens"]', "300")
        page.press('[name="max_tokens"]', "Enter")
        wait_for(page, 0, 0, ranks[0][0])
        assert page.locator(".why").count() == 0
        costs = [[sizes[batch].max() * len(batch) for batch in of_rank] for of_rank in ranks]
        for rank in range(2):
            assert values(page, "plot-costs", f"rank {rank}") == costs[rank]
        balance = [max(pair) / (sum(pair) / 2) for pair in zip(*costs, strict=True)]
        assert values(page, "plot-balance", "most / mean") == pytest.approx(balance)
        assert values(page, "plot-lengths", "mean") == pytest.approx([sizes[batch].mean() for batch in ranks[0]])
        longest = [sizes[batch].max() for batch in ranks[0]]
        assert values(page, "plot-lengths", "shortest to longest", "data-high") == longest
        assert values(page, "plot-samples", "samples") == [len(batch) for batch in ranks[0]]
        assert "lengths=bytes&max_tokens=300" in page.evaluate("location.search")
        labels = ShardListDataset(index).read_column("label")
        limits = {"label": int(labels.max()) * 2}
        ranks = [batches_of(index, rank, lengths=sizes, max_tokens=300, limits=limits) for rank in range(2)]
        page.fill('[name="limits"]', f"label={limits['label']}")
        page.press('[name="limits"]', "Enter")
        wait_for(page, 0, 0, ranks[0][0])
        assert f"{labels[ranks[0][0]].sum()} of {limits['label']} label" in page.inner_text("#says")
        shares = [
            sum(100 * labels[batch].sum() / limits["label"] for batch in step) / 2 for step in zip(*ranks, strict=True)
        ]
        assert values(page, "plot-limits", f"label, of {limits['label']}") == pytest.approx(shares)


def test_answers_that_take_long(browser, index, set_limits):
    """Each answer comes to one block, or step: the page asks until all is there, and for no rank that was left."""
    set_limits(epoch.Answers, seconds=0.0)
    sizes = ShardListDataset(index).read_column("bytes")
    ranks = [batches_of(index, rank, lengths=sizes, max_tokens=300, block=8) for rank in range(2)]
    server = PageServer(Served(str(index)), port=0)  # start would close the other one of this index
    with server.start(), Visit(browser, server.url) as visit:
        asked = []
        query = "/epoch?world_size=2&seed=3&batch_size=&lengths=bytes&max_tokens=300&block=8"
        page = visit.go(query)
        wait_for(page, 0, 0, ranks[0][0])
        assert f"{len(ranks[0])} steps on each of 2 ranks" in page.inner_text("#summary")
        page.on("request", lambda request: asked.append(request.url) if "/looks" in request.url else None)
        page.fill("#rank", "1")
        page.press("#rank", "Enter")
        page.wait_for_selector("#plot-samples .plot-note:text-is('Each step; the batches of rank 1.')")
        assert values(page, "plot-lengths", "mean") == pytest.approx([sizes[batch].mean() for batch in ranks[1]])
        of_rank = [url for url in asked if "rank=1" in url]
        assert len(of_rank) == len(ranks[1])
        assert all("rank=1" in url for url in asked[asked.index(of_rank[0]) :])
        assert visit.said == []


def test_find_a_sample(browser, server, index):
    """By its index or key; a click shows its batch, and so does the address that a sample's page leads to."""
    batches = batches_of(index, 1)
    step = next(k for k, batch in enumerate(batches) if 40 in batch)
    with Visit(browser, server.url) as visit:
        page = visit.go(QUERY)
        wait_for(page, 0, 0, batches_of(index, 0)[0])
        page.keyboard.press("/")
        page.keyboard.type("k0040")
        page.keyboard.press("Enter")
        link = page.wait_for_selector("#found a.button")
        assert link.inner_text() == f"rank 1 · step {step} · place {batches[step].index(40)}"
        link.click()
        wait_for(page, step, 1, batches[step])
        assert page.get_attribute("#cells .found", "data-index") == "40"
        page = visit.go(f"{QUERY}&sample=40")
        wait_for(page, step, 1, batches[step])
        page = visit.go("/sample/40")
        page.click("text=When is it read?")
        assert page.wait_for_selector("#cells .found").get_attribute("data-index") == "40"
        page.fill("#find input", "k9999")
        page.press("#find input", "Enter")
        assert "no sample has the key" in page.wait_for_selector("#found .error").inner_text()


def test_sources_of_a_mixture(browser, tmp_path):
    """Their shares over the steps, beside those that are asked for; narrow windows need no scrolling to the side."""
    index = write_mixture(tmp_path, {"web": ((20, 11), 0.75), "books": ((9,), 0.25)})
    with start(str(index)) as server, Visit(browser, server.url, viewport={"width": 390, "height": 800}) as visit:
        page = visit.go("/epoch?batch_size=4")
        sampler = DistributedChunkedSampler(ShardListDataset(index), num_replicas=1, rank=0)
        batches = [list(one) for one in itertools.zip_longest(*[iter(sampler)] * 4)]
        assert values(page, "plot-sources", "books") == [100 * sum(k >= 31 for k in batch) / 4 for batch in batches]
        assert "asked for are web 75 %, books 25 %" in page.inner_text("#plot-sources .plot-note")
        wait_for(page, 0, 0, batches[0])
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert (visit.left, visit.said) == ([], [])
