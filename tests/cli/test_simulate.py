"""`wids simulate`: its tables, JSON, page and picture, and what it says of wrong input."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from tests.support import columns
from tests.support.cli import in_one_line, run, run_apart
from tests.support.shards import mixture_index, write_index, write_json
from wids import BucketBatchSampler, DistributedChunkedSampler, PackSampler, ShardListDataset
from wids.core.order.layout import ShardCounts

SMALL = ("--shards", "24", "--samples", "50", "--shard-size", "1MB")


class Documents(ShardCounts):
    """Shards of samples that may be read in pieces."""

    takes_marked_indices = True


def simulate(*args):
    """Run ``wids simulate``."""
    return run("simulate", *args)


def values_of(*args, code=0):
    """What it prints as JSON."""
    done = simulate(*args, "--json")
    assert (done.code, done.err) == (code, "")
    return json.loads(done.out)


def test_a_table_for_people():
    """Counts, room, time and traffic are told in words, without a line on stderr."""
    done = simulate(
        *SMALL, "--world-size", "4", "--ranks-per-node", "2", "--epochs", "2", "--show-open", "--show-splits"
    )
    assert (done.code, done.err) == (0, "")
    lines = {line[:22].strip(): line[22:].strip() for line in done.out.splitlines()}
    assert done.out.startswith("24 shards, 1,200 samples, 24 MB; 4 ranks on 2 nodes, batches of 32, 2 epochs\n")
    assert lines["batches of a rank"] == "20, the same on all"
    assert lines["samples read"] == "2,400 (left out 0, repeated 0)"
    assert lines["shards split"].startswith("0 read by several ranks")
    assert re.search(r"^ +1 +1 +12 +12 MB|^ +1 +1 +0 +0 B +0", done.out, re.MULTILINE)
    assert "rank  to step" in done.out
    assert "Approximated: " in done.out


def test_an_index(tmp_path):
    """The shards of an index are simulated: as many batches as the sampler gives, each shard once."""
    index = write_index(tmp_path, (30, 41, 22, 9))
    found = values_of(index, "--world-size", "3", "--batch-size", "4", "--tail", "drop", "--chunksize", "10")
    sampler = DistributedChunkedSampler(ShardCounts([30, 41, 22, 9]), num_replicas=3, rank=0, tail="drop")
    assert found["batches"] == [[-(-len(sampler) // 4)]] * 3
    assert found["samples"] == {"samples": 102, "read": 102, "left_out": 0, "repeated": 0}
    assert [traffic["shards"] for [traffic] in found["traffic"]] == [4]
    assert found["size_bytes"] == sum(os.stat(tmp_path / f"s{k}.tar").st_size for k in range(4))


def test_a_mixture(tmp_path):
    """An index whose sub-datasets have weights: nominal epochs in their shares; what is not read costs nothing."""
    parts = {"web": ([50] * 8, 0.75), "books": ([50] * 2, 0.25), "rest": ([50] * 4, 0)}
    index = write_json(tmp_path / "mix.json", mixture_index(parts))
    found = values_of(index, "--world-size", "2", "--batch-size", "10", "--chunksize", "10", "--epochs", "2")
    assert found["batches"] == [[35, 35]] * 2
    # Of 400, 100 and 200 samples 1,050, 350 and none are read.
    assert found["samples"] == {"samples": 700, "read": 1400, "left_out": 200, "repeated": 900}
    assert sum(traffic["shards"] for [traffic] in found["traffic"]) == 10
    some = values_of(index, "--nbatches", "7", "--batch-size", "10")
    assert (some["batches"], some["samples"]["read"]) == ([[7]], 70)
    huge = write_json(tmp_path / "huge.json", mixture_index({"a": ([10**6] * 9, 1), "b": ([5], 1)}))
    assert "sample by sample" in in_one_line(simulate(huge).err)
    assert simulate(huge, "--by-shards").code == 2


def test_batches_of_like_length(tmp_path):
    """Padding, balance and use of the budget are those of a sampler's batches; what is too long is counted."""
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 1200)).clip(1, 2000).astype(int)
    np.save(tmp_path / "lengths.npy", lengths)
    rule = ("--lengths", tmp_path / "lengths.npy", "--max-tokens", "1500", "--too-long", "skip")
    found = values_of(*SMALL, "--world-size", "3", *rule)
    ranks = []
    for rank in range(3):
        sampler = DistributedChunkedSampler(ShardCounts([50] * 24), num_replicas=3, rank=rank)
        ranks.append(list(BucketBatchSampler(sampler, lengths=lengths, max_tokens=1500, too_long="skip")))
    costs = np.array([[lengths[batch].max() * len(batch) for batch in batches] for batches in ranks])
    sizes = [len(batch) for batches in ranks for batch in batches]
    too_long = int((lengths > 1500).sum())
    read = sum(sizes)
    assert found["batches"] == [[len(batches)] for batches in ranks]
    assert found["samples"]["read"] == read
    assert found["samples"]["left_out"] == too_long > 0
    told = found["batching"]
    real = sum(lengths[batch].sum() for batches in ranks for batch in batches)
    assert told["padding"] == pytest.approx(costs.sum() / real)
    ratios = costs.max(axis=0) / costs.mean(axis=0)
    assert (told["imbalance_mean"], told["imbalance_worst"]) == pytest.approx((ratios.mean(), ratios.max()))
    assert (told["used_mean"], told["used_least"]) == pytest.approx((costs.mean() / 1500, costs.min() / 1500))
    assert [told[name] for name in ("smallest", "median", "largest")] == [min(sizes), np.median(sizes), max(sizes)]
    assert (told["batches"], told["max_tokens"], told["too_long"]) == (len(sizes), 1500, too_long)
    assert found["curves"]["costs"] == costs.tolist()
    done = simulate(*SMALL, "--world-size", "3", *rule, "--plot", tmp_path / "job.png", "--html", tmp_path / "job.html")
    assert (done.code, done.err) == (0, "")
    lines = {line[:22].strip(): line[22:].strip() for line in done.out.splitlines()}
    assert "batches of at most 1,500 tokens" in done.out
    assert lines["a batch"] == f"{min(sizes)} to {max(sizes)} samples, median {np.median(sizes):g}"
    assert lines["padding"] == f"with it, batches have {told['padding']:.3f} x the tokens of their samples"
    assert f"{ratios.mean():.3f} x the mean of the ranks, {ratios.max():.3f} x at worst" in lines["balance of a step"]
    assert lines["too long"] == f"{too_long} samples of more than 1,500 tokens, left out"
    assert "batch, tokens" in (tmp_path / "job.html").read_text(encoding="utf-8")
    assert values_of(*SMALL)["batching"] is None
    summed = simulate(*SMALL, *rule, "--cost", "sum").out
    assert "none if they are packed" in summed
    assert "balance of a step" not in summed  # there is one rank


def test_batches_under_limits(tmp_path):
    """The share of each budget that batches use, and their balance in the fullest, are those of a sampler's batches."""
    numbers = np.random.default_rng(0)
    lengths, images = numbers.integers(1, 400, 1200), numbers.integers(0, 9, 1200)
    images[7] = 40
    for name, values in (("lengths", lengths), ("images", images)):
        np.save(tmp_path / f"{name}.npy", values)
    rule = ("--lengths", tmp_path / "lengths.npy", "--max-tokens", "1500", "--too-long", "skip")
    rule += ("--limit", f"images={tmp_path / 'images.npy'}:20")
    told = values_of(*SMALL, "--world-size", "3", *rule)["batching"]
    ranks = []
    for rank in range(3):
        sampler = DistributedChunkedSampler(ShardCounts([50] * 24), num_replicas=3, rank=rank)
        options = {"lengths": lengths, "max_tokens": 1500, "too_long": "skip", "limits": {"images": (images, 20)}}
        ranks.append(list(BucketBatchSampler(sampler, **options)))
    used = np.array([[(lengths[b].max() * len(b) / 1500, images[b].sum() / 20) for b in batches] for batches in ranks])
    fullest = used.max(axis=2)
    assert told["used_mean"] == pytest.approx(used[:, :, 0].mean())
    assert told["limits"] == {"images": pytest.approx(used[:, :, 1].mean())}
    assert told["fullest_mean"] == pytest.approx(fullest.mean())
    assert told["imbalance_mean"] == pytest.approx((fullest.max(axis=0) / fullest.mean(axis=0)).mean())
    done = simulate(*SMALL, "--world-size", "3", *rule)
    assert "batches of at most 1,500 tokens and at most 20 images" in done.out
    lines = {line[:22].strip(): line[22:].strip() for line in done.out.splitlines()}
    assert lines["limit used"] == f"{used[:, :, 1].mean():.0%} of 20 images on average"
    assert lines["fullest budget"] == f"{fullest.mean():.0%} on average, of the budget that is fullest in a batch"
    assert lines["too long"] == "1 sample of more than 1,500 tokens or 20 images, left out"
    alone = values_of(*SMALL, "--limit", f"images={tmp_path / 'images.npy'}:60")["batching"]
    assert alone["padding"] is None
    assert alone["limits"]["images"] > 0.8
    for limit, words in (
        ("images", "is no limit; write NAME=NUMBER"),
        ("images=3", "no INDEX that could have a column"),
        (f"images={tmp_path / 'images.npy'}:many", "it must be a number above 0"),
        (f"images={tmp_path / 'images.npy'}:20", "sample 7 has 40, more than the 20 of a whole batch"),
    ):
        assert words in simulate(*SMALL, "--limit", limit).err
    twice = [flag for most in (50, 60) for flag in ("--limit", f"images={tmp_path / 'images.npy'}:{most}")]
    assert "two --limit have the same name" in simulate(*SMALL, *twice).err


def test_packs(tmp_path):
    """How full packs are, and what a step has, are those of the samplers of all ranks."""
    lengths = np.exp(np.random.default_rng(0).normal(5, 1, 1200)).clip(0, 3000).astype(int)
    np.save(tmp_path / "lengths.npy", lengths)
    rule = ("--lengths", tmp_path / "lengths.npy", "--pack-tokens", "1024", "--batch-size", "2", "--world-size", "3")
    for flags, options in (((), {}), (("--no-cut", "--too-long", "skip"), {"cut": False, "too_long": "skip"})):
        ranks = []
        for rank in range(3):
            sampler = DistributedChunkedSampler(Documents([50] * 24), num_replicas=3, rank=rank)
            packs = PackSampler(sampler, lengths=lengths, pack_tokens=1024, batch_size=2, **options)
            ranks.append(list(packs))
        sizes = Counter()
        for rank, batches in enumerate(ranks):
            for step, batch in enumerate(batches):
                for index in batch:
                    number, first, last, _ = index.piece
                    sizes[rank, step, number] += last - first
        tokens = np.array([[sum(i.piece[2] - i.piece[1] for i in batch) for batch in batches] for batches in ranks])
        found = values_of(*SMALL, *rule, *flags)
        told = found["packing"]
        assert found["batches"] == [[len(batches)] for batches in ranks]
        assert (found["batching"], found["curves"]["costs"]) == (None, tokens.tolist())
        assert (told["packs"], told["batches"]) == (len(sizes), sum(map(len, ranks)))
        assert (told["tokens"], told["fill"]) == (tokens.sum(), tokens.sum() / 1024 / len(sizes))
        assert told["short"] == sum(size < 1024 for size in sizes.values())
        assert told["fill_least"] == min(sizes.values()) / 1024
        assert told["step_tokens"] == pytest.approx(tokens.sum(axis=0).mean())
        assert told["imbalance_worst"] == pytest.approx((tokens.max(axis=0) / tokens.mean(axis=0)).max())
        assert found["samples"]["left_out"] == told["skipped"] == packs.skipped
        assert found["samples"]["repeated"] == 0
        assert (told["cut"] > 0) is not bool(options)
    plotted = ("--plot", tmp_path / "job.png", "--html", tmp_path / "job.html")
    done = simulate(*SMALL, *rule, *flags, *plotted)
    assert (done.code, done.err) == (0, "")
    assert "batches of 2 packs of 1,024 tokens" in done.out
    lines = {line[:22].strip(): line[22:].strip() for line in done.out.splitlines()}
    many = f"{len(sizes):,} in {sum(map(len, ranks))} batches; {100 - 100 * told['fill']:.2g}% of their room is empty, "
    assert lines["packs"].startswith(f"{many}{told['short']} are not full")
    assert lines["left out"] == f"{packs.skipped} samples without a token, or with more than 1,024"
    assert "documents cut" not in lines
    assert lines["tokens"] == f"{tokens.sum():,}, {tokens.sum(axis=0).mean():,.0f} in a step of all ranks"
    assert "batch, tokens" in (tmp_path / "job.html").read_text(encoding="utf-8")
    assert "documents cut" in simulate(*SMALL, *rule).out
    assert "packs are cut in lanes" in simulate(*SMALL, *rule, "--by-shards").err


def test_samples_with_weights(tmp_path):
    """They are a column, or an array: batches, shards and what is left out are those of a sampler that has them."""
    index = columns.write_dataset(tmp_path, [30, 12])
    columns.make_columns(index)
    values = ShardListDataset(index).read_column("label")
    np.save(tmp_path / "values.npy", values)
    read = []
    for rank in range(2):
        sampler = DistributedChunkedSampler(
            ShardCounts([30, 12]), num_replicas=2, rank=rank, weights=values, epoch_size=90
        )
        read += list(sampler)
    order = (index, "--world-size", "2", "--batch-size", "4", "--epoch-size", "90")
    table = f"{index.removesuffix('.json')}.columns.parquet"
    by_array = ("--weights", tmp_path / "values.npy")
    for flags in (("--weights", "label"), ("--weights", "label", "--columns", table), by_array):
        found = values_of(*order, *flags)
        assert found["batches"] == [[-(-len(read) // 2 // 4)]] * 2
        left_out, repeated = 42 - len(set(read)), len(read) - len(set(read))
        assert found["samples"] == {"samples": 42, "read": len(read), "left_out": left_out, "repeated": repeated}
    assert f"{len(read)} (left out {left_out}, repeated {repeated})" in simulate(*order, "--weights", "label").out
    assert values_of(*order)["samples"]["left_out"] == 0 < left_out


def test_a_bound_on_the_cache_costs_downloads():
    """Below what is needed shards come again, and steps wait; with what is said to be enough none does."""
    job = (*SMALL, "--workers", "1", "--chunksize", "10", "--step-seconds", "0.01", "--no-early-reads")
    free = values_of(*job)
    smallest = free["cache"]["smallest_without_downloads_again"]
    assert free["cache"]["needed_in_an_epoch"] <= smallest
    enough, tight = (values_of(*job, "--cache-size", size) for size in (smallest, smallest // 3))
    assert (enough["traffic"][0][0]["shards"], enough["traffic"][0][0]["again"]) == (24, 0)
    assert tight["traffic"][0][0]["again"] > 0
    assert tight["traffic"][0][0]["evicted"] > 0
    assert tight["stalled_seconds"] > enough["stalled_seconds"]
    assert any("shards go while they are read" in note for note in tight["approximated"])
    assert not any("shards go while they are read" in note for note in enough["approximated"])


def test_a_limit_is_held_against_the_window_and_the_block(tmp_path):
    """In the words of a training job's warning, also for people; it names a block that fits."""
    job = ("--shards", "24", "--samples", "50", "--shard-size", "2MB", "--batch-size", "8", "--window", "3")
    batches = (*job, "--buckets", tmp_path / "b.npy")
    np.save(tmp_path / "b.npy", np.zeros(24 * 50, int))
    words = "cache_size (7 MB) has space for 3 shards of about 2 MB, and 1 rank(s) of this node read 3 at a time"
    for limit, expected in (("8MB", None), ("7MB", words)):
        said = values_of(*job, "--cache-size", limit)["cache_shortage"]
        assert said is None if expected is None else said.startswith(expected)
    for block, limit, end in ((150, "20MB", None), (150, "16MB", "or block=100"), (100, "16MB", None)):
        said = values_of(*batches, "--block", block, "--cache-size", limit)["cache_shortage"]
        assert said is None if end is None else said.endswith(end)
    assert "or block=100" in " ".join(simulate(*batches, "--cache-size", "16MB").out.split())


def test_early_reads():
    """Samples whose shard is not here are read by ranges, and counted; without member tables shards are waited for."""
    job = (*SMALL, "--batch-size", "10", "--bandwidth", "10", "--step-seconds", "0.1", "--cache-size", "0.5MB")
    early, waiting = (values_of(*job, *how) for how in ((), ("--no-early-reads",)))
    traffic = early["traffic"][0][0]
    assert (traffic["shards"], traffic["range_requests"], traffic["range_bytes"]) == (0, 1200, 24_000_000)
    assert early["first_batch_seconds"][0] == pytest.approx(0.03 + 10 * 20_000 / 10e6)
    assert waiting["first_batch_seconds"][0] > 0.1
    assert waiting["traffic"][0][0]["range_requests"] == 0
    assert early["cache"] == waiting["cache"]
    assert any("member tables" in note for note in early["approximated"])
    assert not any("member tables" in note or "by ranges" in note for note in waiting["approximated"])
    said, other = simulate(*job).out, simulate(*job, "--no-early-reads").out
    assert re.search(r"first batch +after 0.05 s, its samples by byte ranges *\n", said)
    assert re.search(r"samples by ranges +range bytes *\n.* 1,200 +24 MB *\n", said)
    assert re.search(r"stalls .* for samples *\n", said)
    assert "ranges" not in other
    assert re.search(r"stalls .* for shards *\n", other)


def test_slow_links_show_in_time():
    """An epoch takes what its bytes take, where that is longer than computing; first batches and stalls say so."""
    fast, slow = (values_of(*SMALL, "--bandwidth", rate, "--step-seconds", "0.001") for rate in (1e5, 1))
    assert fast["epoch_seconds"][0] < 1
    assert 20 < slow["epoch_seconds"][0] < 30
    assert slow["first_batch_seconds"][0] > fast["first_batch_seconds"][0]
    assert slow["stalled_seconds"] == pytest.approx(slow["epoch_seconds"][0] - slow["compute_seconds"][0])
    assert max(slow["curves"]["bandwidth"][0]) <= 1.01e6


def test_unequal_ranks_are_exit_code_1():
    """Ranks that read shards of their own have unequal batches if their shards do not divide: said, and exit code 1."""
    assert values_of(*SMALL, "--world-size", "5", "--by-shards", code=1)["ranks_are_equal"] is False
    done = simulate(*SMALL, "--world-size", "5", "--by-shards")
    assert (done.code, done.err) == (1, "")
    assert "NOT EQUAL" in done.out
    assert values_of(*SMALL, "--world-size", "4", "--by-shards")["ranks_are_equal"] is True


def test_fixed_numbers_of_batches_and_passes():
    """--nbatches gives each rank so many, --repeat so many passes without a tail between them."""
    found = values_of(*SMALL, "--world-size", "2", "--nbatches", "7", "--epochs", "3")
    assert found["batches"] == [[7, 7, 7]] * 2
    assert found["samples"]["read"] == 7 * 3 * 2 * 32
    again = values_of(*SMALL, "--world-size", "7", "--repeat", "3")
    assert again["samples"] == {"samples": 1200, "read": 3605, "left_out": 0, "repeated": 2405}
    said = simulate(*SMALL, "--world-size", "7", "--repeat", "3").out
    assert "3,605 (each 3 to 4 times)" in said


def test_a_page_that_needs_nothing_else(tmp_path):
    """--html writes one page: its figures are well-formed SVG, no script and no address in it, names escaped."""
    index = write_json(tmp_path / "<b>&.json", [])
    os.unlink(index)
    index = write_index(tmp_path, (30, 41), name="<b>&.json")
    page = tmp_path / "job.html"
    assert simulate(index, "--html", page, "--cache-size", "1MB").code == 0
    text = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;.json: 2 shards" in text
    assert "<b>" not in text
    assert "<script" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert text.count(">step, over all epochs<") == 3
    assert text.count("--cache-size: 0.001 GB") == 1  # the dashed line; that of the link is far above, and is not drawn
    assert "--bandwidth: " not in text
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(figures) == 3
    assert sum("stroke-dasharray" in figure for figure in figures) == 1
    for figure in figures:
        root = ET.fromstring(figure)
        _, _, width, height = map(float, root.get("viewBox").split())
        lines = [path for path in root.iter("path") if "stroke: #0072b2" in path.get("style", "")]
        assert len(lines) == 1
        for x, y in re.findall(r"[ML] (\S+) (\S+)", lines[0].get("d")):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_a_page_without_matplotlib(tmp_path, monkeypatch):
    """Where nothing draws curves, --html writes the tables, and says what to install."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    page = tmp_path / "job.html"
    assert simulate(*SMALL, "--html", page).code == 0
    text = page.read_text(encoding="utf-8")
    assert "<svg" not in text
    assert "wids[bench]" in text
    assert "<h2>fetched</h2>" in text


def test_a_page_is_of_its_job_alone(tmp_path):
    """Equal jobs give equal pages: no date, and no id by chance."""
    pages = [tmp_path / name for name in ("a.html", "b.html")]
    for page in pages:
        assert simulate(*SMALL, "--html", page, "--world-size", "16").code == 0
    assert pages[0].read_text() == pages[1].read_text()


def test_a_picture(tmp_path):
    """--plot draws a PNG; an ending that no picture has is one sentence."""
    assert simulate(*SMALL, "--plot", tmp_path / "job.png", "--world-size", "16").code == 0
    assert (tmp_path / "job.png").read_bytes().startswith(b"\x89PNG")
    done = simulate(*SMALL, "--plot", tmp_path / "job.nothing")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "the picture cannot be written" in done.err
    assert os.listdir(tmp_path) == ["job.png"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 2, "--shards"),
        (("--shards", "3"), 2, "--samples"),
        ((*SMALL, "--world-size", "9", "--nodes", "2", "--ranks-per-node", "4"), 2, "no place"),
        ((*SMALL, "--ahead", "1GB", "--no-prefetch"), 2, "contradict"),
        ((*SMALL, "--repeat", "2", "--nbatches", "3"), 2, "one of them"),
        ((*SMALL, "--cache-size", "much"), 2, "not a size"),
        (("/nowhere/index.json",), 1, "/nowhere/index.json"),
        ((*SMALL, "--world-size", "0"), 2, ("greater than or equal to 1", "not in the range 1<=x")),
        ((*SMALL, "--epochs", "-3"), 2, ("greater than or equal to 1", "not in the range 1<=x")),
        ((*SMALL, "--epochs", "1e12"), 2, "valid integer"),
        ((*SMALL, "--epochs", "1000000000000"), 2, ("less than or equal to", "not in the range")),
        ((*SMALL, "--epochs", "50000", "--world-size", "8"), 2, "more than the 50,000 that can be simulated"),
        ((*SMALL, "--nbatches", "1000000000000"), 2, "fewer epochs or batches"),
        ((*SMALL, "--repeat", "1000000000"), 2, "more than 4,000,000 times"),
        ((*SMALL, "--samples", "1000000000000", "--shards", "4000000"), 2, "samples, or 4 EB"),
        ((*SMALL, "--samples", "1000000000000"), 2, "larger chunks"),
        ((*SMALL, "--shards", "1000000000"), 2, ("less than or equal to", "not in the range")),
        ((*SMALL, "--step-seconds", "inf"), 2, ("less than or equal to", "not in the range")),
        ((*SMALL, "--bandwidth", "nan"), 2, ("than or equal to", "cannot convert float NaN")),
        ((*SMALL, "--html", "/nowhere/job.html"), 1, "no file can be made in /nowhere"),
        ((*SMALL, "--html", "/"), 1, "is a directory or a device"),
        ((*SMALL, "--plot", "/nowhere/job.png"), 1, "no file can be made in /nowhere"),
        ((*SMALL, "--plot", "job.nothing"), 1, "the picture cannot be written as nothing"),
        ((*SMALL, "--weights", "label"), 2, "there is no INDEX that could have a column 'label'; give FILE.npy"),
        ((*SMALL, "--weights", "/nowhere/w.npy"), 1, "/nowhere/w.npy: --weights cannot be read"),
    ],
    ids=str,
)
def test_wrong_input(args, code, words):
    """What cannot be simulated is one sentence that says what to do, at once, and no traceback.

    Of two ``words`` the second ones are those of typer before 0.29.
    """
    done = simulate(*args)
    assert done.out == ""
    assert done.code == code
    assert any(word in in_one_line(done.err) for word in ([words] if isinstance(words, str) else words))


def test_sizes_that_nobody_knows(tmp_path):
    """An index without file sizes says so, and --shard-size helps."""
    index = write_json(tmp_path / "index.json", {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 9}]})
    done = simulate(index)
    assert (done.code, done.out) == (1, "")
    assert "--shard-size" in done.err
    assert values_of(index, "--shard-size", "3kB")["size_bytes"] == 3000


@pytest.mark.parametrize(
    ("shards", "samples", "ranks", "most"),
    [(1000, 100_000, 4, 300_000), pytest.param(100_000, 10_000, 64, 1_000_000, marks=pytest.mark.thorough)],
)
def test_a_billion_samples_fit(shards, samples, ranks, most):
    """1e9 samples in 1e5 shards on 64 ranks are simulated in less than 1 GB of memory, and it is said how.

    A tenth of them takes less than their indices would.
    """
    # Its own peak: ru_maxrss begins with that of the process which started it.
    peak = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))"
    job = f"--shards {shards} --samples {samples} --shard-size 500MB --world-size {ranks} --workers 8 --batch-size 256"
    code, out, err = run_apart(
        *("simulate", *job.split(), "--cache-size", "2TB", "--step-seconds", "0.5"),
        before=f"import atexit; atexit.register(lambda: print({peak}))",
    )
    assert code == 0, err
    assert int(out.split()[-1]) < most  # kB
    assert f"samples read           {shards * samples:,} (left out 0, repeated 0)" in out
    assert "beyond 4,000,000 samples" in out


@pytest.mark.parametrize(
    ("option", "number", "words"),
    [
        ("--batch-size", 10**21, "--batch-size"),
        ("--window", 10**22, "--window"),
        ("--samples", 10**20, "--samples"),
        ("--shard-size", "1e99P", "cannot be simulated"),
    ],
)
def test_a_simulation_of_absurd_numbers_is_refused(option, number, words):
    """Numbers that no array holds are wrong usage, and told in a sentence."""
    usual = {"--shards": 3, "--samples": 10, "--shard-size": "1MB"}
    args = [part for pair in {**usual, option: number}.items() for part in pair]
    code, _, told = run("simulate", *args)
    assert code == 2
    assert words in told


@pytest.mark.parametrize("command", ["when", "at", "simulate"])
def test_more_ranks_than_there_will_ever_be_are_refused(tmp_path, command):
    """A number of ranks that would be gone through for hours, or fill the memory, is wrong usage."""
    index = write_index(tmp_path)
    rest = {"when": ["0"], "at": ["--step", "0", "--rank", "0"], "simulate": []}[command]
    code, _, told = run(command, index, *rest, "--world-size", 10**12)
    assert code == 2
    assert "--world-size" in told


def test_what_needs_more_memory_than_there_is_is_told_in_a_line(tmp_path):
    """An index that promises absurdly many samples ends in a sentence where they would be laid out."""
    shards = [{"url": "a.tar", "nsamples": 10**17, "filesize": 1}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": shards})
    code, _, told = run("when", index, "0", "--world-size", 7)
    assert code == 1
    assert "memory" in told
