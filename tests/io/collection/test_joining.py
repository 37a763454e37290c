"""Joined data sets against a join in Python: cuts, keys, missing ones, views, mixtures, fields, saved and opened."""

from __future__ import annotations

import json
import os
import pickle
import random

import numpy as np
import pytest

import wids
from tests.support.examples import some
from tests.support.shards import write_json, write_tar
from wids.core.collection import key_join
from wids.errors import InputError, SelectionError, SpecError

BASE, OTHER = (".jpg", ".txt"), (".npy", ".seg.png")


def write_set(directory, stem, keys, extensions, counts, *, empty=()):
    """Shards of samples with these keys, and their index; those in ``empty`` have nothing. Returns its path."""
    rows, first = [], 0
    for k, count in enumerate(counts):
        members = []
        for key in keys[first : first + count]:
            names = [".empty"] if key in empty else extensions
            members += [(key + name, b"" if name == ".empty" else f"{stem}{name} {key}".encode()) for name in names]
        path = write_tar(os.path.join(directory, f"{stem}-{k}.tar"), members)
        rows.append({"url": os.path.basename(path), "nsamples": count, "filesize": os.path.getsize(path)})
        first += count
    return write_json(os.path.join(directory, f"{stem}.json"), {"wids_version": 1, "shardlist": rows})


def cut(rng, total):
    """Counts of shards, some of which may be 0, that add up to a total."""
    edges = sorted(rng.choices(range(total + 1), k=rng.randrange(4)))
    return [b - a for a, b in zip([0, *edges], [*edges, total], strict=True) if b > a]


def opened(index, **options):
    """The data set of an index, its members as bytes."""
    return wids.ShardListDataset(index, transformations="raw", **options)


def plain(sample):
    """The key and the members of a sample."""
    return {name: value for name, value in sample.items() if name.startswith(".") or name == "__key__"}


def expected(key, base, others):
    """The joined sample, by a join in Python; ``others``: (stem, prefix, keys that it has, extensions)."""
    sample = {"__key__": key, **{name: f"base{name} {key}".encode() for name in base}}
    for stem, prefix, keys, extensions in others:
        if key in keys:
            sample |= {f"{prefix and '.'}{prefix}{name}": f"{stem}{name} {key}".encode() for name in extensions}
    return sample


class Pair:
    """A random base, what is joined to it, and the samples that a join in Python has.

    Attributes:
        base: the data set.
        joined: with its companions.
        is_left_out: some of the samples are.
        prefix: of the fields of the first companion, with its dot.
        wanted: the samples.
    """

    def __init__(self, rng, directory, cache_dir):
        total = rng.randrange(1, 24)
        folder = "a/rather/long/folder/" if rng.random() < 0.3 else ""
        keys = [f"{folder}{rng.randrange(3)}k{n:04d}" for n in range(total)]
        self.base = opened(write_set(directory, "base", keys, BASE, cut(rng, total)), cache_dir=cache_dir)
        prefix, on = rng.choice(["", "x", "clip.l"]), rng.choice(["row", "key"])
        self.prefix = prefix and f".{prefix}"
        empty = set(rng.sample(keys, rng.randrange(total)) if rng.random() < 0.3 else ())
        missing, there = "error", list(keys)
        if on == "key":
            missing = rng.choice(["skip", "none"])
            there = rng.sample(keys, rng.randrange(1, total + 1)) + [f"z{n}" for n in range(rng.randrange(3))]
            rng.shuffle(there)
        other = opened(write_set(directory, "other", there, OTHER, cut(rng, len(there)), empty=empty))
        if rng.random() < 0.4:  # of a view
            picked = sorted(
                {*rng.sample(range(total), rng.randrange(1, total + 1)), keys.index(min({*keys} & {*there}))}
            )
            keys, self.base = [keys[n] for n in picked], self.base.select(picked)
            other = other.select(picked) if on == "row" else other
        has = [("other", prefix, set(there) - empty, OTHER)]
        self.joined = self.base.with_fields(other, on=on, prefix=prefix, missing=missing)
        self.is_left_out = missing == "skip"
        keys = [key for key in keys if key in there] if self.is_left_out else keys
        if rng.random() < 0.3:  # a second companion
            third = write_set(directory, "third", sorted(keys), (".cap",), cut(rng, len(keys)))
            self.joined = self.joined.with_fields(third, on="key")
            has.append(("third", "", set(keys), (".cap",)))
        self.wanted = [expected(key, BASE, has) for key in keys]


def check_reads(pair, rng, directory):
    """Compare single samples, batches, parts of members, and the join as it is saved."""
    joined, wanted = pair.joined, pair.wanted
    assert [plain(sample) for sample in joined] == wanted
    indices = rng.choices(range(len(wanted)), k=8)
    assert [plain(sample) for sample in joined.__getitems__(indices)] == [wanted[n] for n in indices]
    joined.save(directory / "joined.json")
    again = opened(directory / "joined.json")
    assert [plain(sample) for sample in pickle.loads(pickle.dumps(again))] == wanted
    assert again.fingerprint == pair.base.fingerprint or pair.is_left_out
    parts = [(n, name, 2, 5) for n in indices for name in wanted[n] if name.startswith(".")]
    assert joined.read_parts(parts) == [wanted[n][name][2:5] for n, name, _, _ in parts]
    return again


def check_views(pair, again, rng, directory):
    """Compare a view, its file, some of its fields, and a mixture with it."""
    wanted, prefix = pair.wanted, pair.prefix
    part = sorted(rng.sample(range(len(wanted)), rng.randrange(len(wanted) + 1)))
    view = again.select(part)
    assert [plain(sample) for sample in view] == [wanted[n] for n in part]
    view.save(directory / "view.json")
    fields = rng.choice([[".txt"], [".txt", f"{prefix}.npy"], [f"{prefix}.seg.png"]])
    named, kept = opened(directory / "view.json", fields=fields), {"__key__", *fields}
    few = [{name: value for name, value in wanted[n].items() if name in kept} for n in part]
    assert [plain(sample) for sample in named] == few
    mixture = wids.mix([pair.joined, view])
    assert [plain(sample) for sample in mixture] == [*wanted, *(wanted[n] for n in part)]


@pytest.mark.parametrize("seed", some(range(100), every=7))
def test_random_pairs(tmp_path, seed, monkeypatch):
    """Each sample of a join is that of a join in Python, however it is read."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        monkeypatch.setattr(key_join, "LIMITS", key_join.JoinLimits(part_keys=4, held_keys=3))
    for turn in range(10):
        directory = tmp_path / str(turn)
        directory.mkdir()
        pair = Pair(rng, directory, tmp_path / "cache")
        check_views(pair, check_reads(pair, rng, directory), rng, directory)


@pytest.fixture
def sets(tmp_path):
    """(directory, base of 12 samples in 2 shards, other of these in 3)."""
    keys = [f"k{n:02d}" for n in range(12)]
    base = opened(write_set(tmp_path, "base", keys, BASE, (7, 5)))
    return tmp_path, base, opened(write_set(tmp_path, "other", keys, OTHER, (4, 4, 4)))


def test_another_number_of_samples(sets):
    """By row, that is an error which names both numbers; a view is told to join before."""
    directory, base, other = sets
    with pytest.raises(InputError, match=r"11 samples, and the dataset 12"):
        base.with_fields(other.exclude([3]))
    with pytest.raises(InputError, match=r"join before you make the view"):
        base.select([1, 2]).with_fields(other)
    few = write_set(directory, "few", ["k00"], (".cap",), (1,))
    listed = {"index": os.path.basename(few)}
    write_json(directory / "said.json", {**json.loads((directory / "base.json").read_text()), "companions": [listed]})
    with pytest.raises(SpecError, match=r"has 1 samples, and the samples that it is joined to by row are 12"):
        opened(directory / "said.json")


def test_missing_and_repeated_keys(sets, caplog):
    """Those that are missing are named and counted; repeated ones are refused by name."""
    directory, base, _ = sets
    few = write_set(directory, "few", ["k03", "k01", "z"], (".cap",), (2, 1))
    with pytest.raises(InputError, match=r"10 of 12 samples have no sample with their key in few.json, such as 'k00'"):
        base.with_fields(few, on="key")
    assert len(base.with_fields(few, on="key", missing="skip")) == 2
    assert "10 of 12 samples" in caplog.text
    none = write_set(directory, "none", ["a", "b"], (".cap",), (2,))
    with pytest.raises(InputError, match=r"its keys are like 'a'. If sample i belongs to sample i, join by row"):
        base.with_fields(none, on="key", missing="none")
    twice = write_set(directory, "twice", ["k03", "k01", "k03"], (".cap",), (2, 1))
    with pytest.raises(InputError, match=r"several samples have one key, such as 'k03'"):
        base.with_fields(twice, on="key", missing="none")


def test_fields_of_one_name(sets):
    """They are refused where that is known, and where it is read; a prefix, or named fields, keep them apart."""
    directory, base, other = sets
    twin = write_set(directory, "twin", [f"k{n:02d}" for n in range(12)], (".txt", ".cap"), (12,))
    with pytest.raises(InputError, match=r"has .[.]txt. twice, once of twin.json; give"):
        base.with_fields(twin)[0]
    assert base.with_fields(twin, fields=".cap")[2][".cap"] == b"twin.cap k02"
    assert base.with_fields(twin, prefix=".t.")[2][".t.txt"] == b"twin.txt k02"
    with pytest.raises(InputError, match=r"both have"):
        base.with_fields(twin, fields="cap").with_fields(twin, fields=[".cap"])
    assert base.with_fields(other)[1][".npy"] == b"other.npy k01"


def test_alternatives_in_both(sets):
    """Of a field with alternatives the first that the joined sample has counts, wherever it lies."""
    _, base, other = sets
    joined = base.with_fields(other)
    for text, first in ((".npy;.txt", ".npy"), (".txt;.npy", ".txt"), (".none;.seg.png;.jpg", ".seg.png")):
        joined.fields = [text]
        assert [name for name in joined[3] if name.startswith(".")] == [first]
        assert joined.read(3, text).endswith(f"{first} k03".encode())
    joined.fields = {"array": "npy", "caption": "txt"}
    assert joined[3]["array"], joined[3]["caption"] == (b"other.npy k03", b"base.txt k03")
    with pytest.raises(SelectionError):
        joined.read(3, ".none")


def test_lazy_members(sets):
    """Files of companions are those of the companion's shards."""
    _, base, other = sets
    joined = base.with_fields(other, prefix="o").add_transform(wids.lazy(".o.npy"))
    for sample in (joined[4], joined.__getitems__([4])[0], pickle.loads(pickle.dumps(joined[4]))):
        assert sample[".o.npy"].read() == b"other.npy k04"
        assert sample[".o.seg.png"] == b"other.seg.png k04"


@pytest.mark.parametrize("on", ["row", "key"])
def test_a_changed_companion_is_named(sets, on, caplog):
    """By row its samples are taken, with a warning; by key the rows may be others. States stay valid."""
    directory, base, _ = sets
    joined = base.with_fields(directory / "other.json", on=on)
    joined.save(directory / "joined.json")
    sampler = wids.ChunkedSampler(joined)
    indices = iter(sampler)
    read = [next(indices) for _ in range(3)]
    state = sampler.state_dict()
    write_set(directory, "other", [f"k{n:02d}" for n in range(12)], (".npy", ".a.png", ".b.png"), (4, 4, 4))
    if on == "key":
        with pytest.raises(SpecError, match=r"other.json has changed since it was joined by key"):
            opened(directory / "joined.json")
        again = base.with_fields(directory / "other.json", on=on)
    else:
        again = opened(directory / "joined.json")
        assert "other.json has changed since it was joined" in caplog.text
    caplog.clear()
    resumed = wids.ChunkedSampler(again)
    resumed.load_state_dict(state)
    assert sorted([*read, *resumed]) == list(range(12))
    assert "the companion other.json has changed since the state was saved (filesize)" in caplog.text
    alone = wids.ChunkedSampler(base)
    alone.load_state_dict(state)
    assert sorted([*read, *alone]) == list(range(12))


def test_companions_of_one_name(sets, caplog):
    """States tell companions apart whose indexes have one name: a second one is no change of the first."""
    directory, base, _ = sets
    keys = [f"k{n:02d}" for n in range(12)]
    for folder, extension in (("one", ".npy"), ("two", ".a.png"), ("three", ".b.png")):
        os.makedirs(directory / folder)
        for name in ("index", "more"):
            write_set(directory / folder, name, keys, [f".{name}{extension}"], (4, 8))
    for name in ("index", "more"):
        joined = base.with_fields(directory / "one" / f"{name}.json")
        state = wids.ChunkedSampler(joined).state_dict()
        both = joined.with_fields(opened(directory / "two" / f"{name}.json")).with_fields(
            directory / "three" / f"{name}.json"
        )
        both.save(directory / "joined.json")
        for dataset in (both, opened(directory / "joined.json")):
            resumed = wids.ChunkedSampler(dataset)
            resumed.load_state_dict(state)
            assert (
                resumed.state_dict()["order"]["companions"].keys()
                == {
                    "index": {"one/index.json", "two/index.json", "three/index.json"},
                    "more": {"more.json", "more.json (2)", "more.json (3)"},
                }[name]
            )
    assert "has changed" not in caplog.text


def test_a_changed_base(sets):
    """A saved join says that the base has changed."""
    directory, base, other = sets
    base.with_fields(other.dataset_name and directory / "other.json").save(directory / "joined.json")
    write_set(directory, "base", [f"k{n:02d}" for n in range(11)], BASE, (7, 4))
    with pytest.raises(SpecError, match=r"view_of: .* has changed since the view was saved"):
        opened(directory / "joined.json")


def test_damaged_rows(sets):
    """Rows that are cut, of another join, or out of range are refused by name."""
    directory, base, _ = sets
    joined = base.with_fields(directory / "other.json", on="key")
    joined.save(directory / "joined.json")
    [rows] = directory.glob("joined.*.joined")
    data = rows.read_bytes()
    for bad in (data[:-8], data[:-8] + bytes(8), b""):
        rows.write_bytes(bad)
        with pytest.raises(SpecError, match=r"joined\.[0-9a-f]+\.joined"):
            opened(directory / "joined.json")
    rows.unlink()
    with pytest.raises(SpecError, match=r"cannot be read"):
        opened(directory / "joined.json")
    joined.save(directory / "joined.json")
    base.with_fields(directory / "other.json").save(directory / "joined.json")
    assert not list(directory.glob("joined.*.joined"))
    assert opened(directory / "joined.json")[5][".npy"] == b"other.npy k05"


def test_arguments(sets):
    """What does not fit is an error that says what would."""
    directory, base, other = sets
    for bad in ({"on": "keys"}, {"missing": "null"}, {"prefix": "a/b"}, {"prefix": 3}, {"fields": {"a": "b"}}):
        with pytest.raises(InputError):
            base.with_fields(other, **bad)
    with pytest.raises(InputError, match=r"has transformations"):
        base.with_fields(opened(directory / "other.json").add_transform(dict))
    with pytest.raises(InputError, match=r"give a ShardListDataset, or an index"):
        base.with_fields([1, 2])
    with pytest.raises(InputError, match=r"no index lists these shards"):
        base.with_fields(opened([str(path) for path in sorted(directory.glob("other-*.tar"))])).save(
            directory / "j.json"
        )
    with pytest.raises(SpecError, match=r"companions are joined"):
        base.with_fields(other).shards = base.shards[:1]


def test_many_keys_in_parts(tmp_path, monkeypatch):
    """Parts in temporary files give the same rows as one in memory."""
    rng = np.random.default_rng(5)
    keys = [f"{n:x}" * int(rng.integers(1, 6)) + f"-{n}" for n in range(3000)]
    base = opened(write_set(tmp_path, "base", keys, (".txt",), (1000, 1500, 500)))
    there = [keys[n] for n in rng.permutation(3000)[:2000]]
    other = opened(write_set(tmp_path, "other", there, (".npy",), (900, 1100)))
    place = {key: n for n, key in enumerate(there)}
    for limits in (key_join.LIMITS, key_join.JoinLimits(part_keys=100, held_keys=333)):
        monkeypatch.setattr(key_join, "LIMITS", limits)
        rows = key_join.find_rows(base._collection, other._collection, name="other")
        assert rows.astype(np.int32).tolist() == [place.get(key, -1) for key in keys]


def test_joins_of_one_base(sets):
    """A join of the same shards gives its companions, to the whole and to a view; by hand, it is no companion."""
    directory, base, _ = sets
    third = write_set(directory, "third", [f"k{n:02d}" for n in range(12)], (".cap",), (12,))
    base.with_fields(directory / "other.json").save(directory / "first.json")
    base.with_fields(third).select([1, 2, 9]).save(directory / "second.json")
    joined = opened(directory / "first.json").with_fields(directory / "second.json", prefix="x")
    assert set(plain(joined[3])) == {"__key__", ".jpg", ".txt", ".npy", ".seg.png", ".x.cap"}
    assert joined[3][".x.cap"] == b"third.cap k03"
    joined = opened(directory / "second.json").with_fields(opened(directory / "first.json"))
    assert (len(joined), joined[2][".npy"], joined[2][".cap"]) == (3, b"other.npy k09", b"third.cap k09")
    joined.save(directory / "both.json")
    assert plain(opened(directory / "both.json")[1]) == plain(joined[1])
    listed = {**json.loads((directory / "base.json").read_text()), "companions": [{"index": "first.json"}]}
    write_json(directory / "said.json", listed)
    with pytest.raises(SpecError, match="has companions of its own"):
        opened(directory / "said.json")
