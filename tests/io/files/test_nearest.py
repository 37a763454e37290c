"""The name that was meant by a path that does not exist."""

import pytest

from wids.core.files.nearest import name_nearest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with some files."""
    for name in ("train.json", "shards/train-000000.tar", "shards/train-000001.tar", "my data/Ä.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("trian.json", "train.json"),
        ("./train.jsn", "./train.json"),
        ("TRAIN.JSON", "train.json"),
        ("shrads/train-000000.tar", "shards/train-000000.tar"),
        ("shrads/other.tar", "shards"),
        ("shards/train-00001.tar", "shards/train-000001.tar"),
        ("my_data/Ä.txt", "my data/Ä.txt"),
        ("shard/", "shards"),
        ("shards/train-000007.tar", ""),
        ("nothing/like.it", ""),
        ("", ""),
        ("/nowhere-at-all/x", ""),
    ],
)
def test_the_nearest_name(folder, path, near):
    """A typo, another case, a digit less; of a series, no other member was meant."""
    assert name_nearest(path) == (f"; there is {near}" if near else "")


def test_in_a_large_directory(folder, monkeypatch):
    """Not all names are looked at: an error comes soon."""
    monkeypatch.setattr("wids.core.files.nearest._MAX_NAMES", 0)
    assert name_nearest("trian.json") == ""
