"""Selections of samples, their file, and the index of a view, as values."""

import random

import numpy as np
import pytest

from wids.core.index import writing
from wids.core.index.selection import Selection, parse_indices, pick
from wids.core.index.view_file import pack_rows, unpack_rows
from wids.errors import SpecError


@pytest.mark.parametrize("seed", range(20))
def test_whole_indices(seed):
    """Of a view's samples among all those of the shards: what they were picked by, also through the file of rows."""
    rng = random.Random(seed)
    counts = [rng.randrange(5) for _ in range(rng.randrange(1, 8))]
    indices = np.array(sorted(rng.sample(range(sum(counts)), sum(counts) // 2)), np.int64)
    ends, rows = pick(indices, np.cumsum(counts).tolist())
    assert Selection(ends, rows).whole_indices(counts).tolist() == indices.tolist()
    data = b"".join(pack_rows(ends, rows))
    for known in (counts, None):
        assert Selection(*unpack_rows(data, counts=known, file_url="x.rows")[:2]).digest == Selection(ends, rows).digest
    with pytest.raises(SpecError, match="damaged"):
        unpack_rows(data[:-1] + bytes([data[-1] ^ 1]), counts=None, file_url="x.rows")


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_the_shards(seed):
    """It has their rows, and the digest of a selection that never had others: samplers know a part by it."""
    rng = random.Random(seed)
    kept = [sorted(rng.sample(range(9), rng.randrange(1, 6))) for _ in range(6)]
    first, last = sorted(rng.sample(range(7), 2))

    def of(shards):
        return Selection(np.cumsum([len(rows) for rows in shards]), np.concatenate(shards))

    part = of(kept).between(first, last)
    assert [part.rows_of(k).tolist() for k in range(last - first)] == kept[first:last]
    assert part.digest == of(kept[first:last]).digest


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([-1, 0, -5], ([0, 5, 9], 0)),
        ([-10, 9, -1], ([0, 9], 1)),
        (slice(-3, None), ([7, 8, 9], 0)),
        (np.array([-2, 8]), ([8], 1)),
    ],
)
def test_negative_indices_count_from_the_end(given, found):
    """-1 is the last sample, and one that is named both ways counts once."""
    indices, repeated = parse_indices(given, 10)
    assert (indices.tolist(), repeated) == found


@pytest.mark.parametrize(
    ("before", "base", "after"),
    [
        ("train.json", "https://host/data", "https://host/data/train.json"),
        ("data/train.json", "https://host/data/", "https://host/data/train.json"),
        ("/nas/train.json", "moved", "moved/train.json"),
        ("s3://bucket/a/train.json", "", "train.json"),
        ("https://host/a/train.json", "/nas/b", "/nas/b/train.json"),
    ],
)
def test_rebase_of_a_view(before, base, after):
    """Its index lies below the base, under its own name; all else stays."""
    view = {"view_of": before, "rows": "v.rows", "nsamples": 3, "x": [1]}
    assert writing.rebase(view, base) == {**view, "view_of": after}
