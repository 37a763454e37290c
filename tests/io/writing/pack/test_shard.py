"""One shard that is packed."""

import pytest

from tests.support.packing import pack, put
from wids.writing.pack.shard import cut


@pytest.mark.parametrize(
    ("count", "bounds", "expected"),
    [
        (0, {"samples": 3}, []),
        (7, {"samples": 3}, [(0, 3), (3, 6), (6, 7)]),
        (4, {"size": 10_240, "sizes": [4096, 4096, 8192, 99_999]}, [(0, 2), (2, 3), (3, 4)]),
        (4, {"size": 1 << 20, "samples": 3, "sizes": [512] * 4}, [(0, 3), (3, 4)]),
    ],
)
def test_cut(count, bounds, expected):
    """Shards are full, by samples or by bytes, and nothing is lost."""
    assert cut(count, **{"samples": None, "size": None, "sizes": None, **bounds}) == expected


def test_pages_that_were_saved_as_pictures(tmp_path):
    """What a server answered that had no picture: packed as it is, and counted."""
    put(tmp_path / "in", {"cat/0.jpg": "<!doctype html><p>", "dog/1.JPG": '  {"error": 404}', "dog/2.jpg": "x"})
    [note] = pack(tmp_path / "in", tmp_path / "x-%d.tar", keeps_order=True).notes
    assert note.startswith("2 pictures are web pages or JSON by the first bytes, as cat/0.jpg; `wids verify --decode`")
