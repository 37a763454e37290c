"""Joined indexes that are damaged, of others, or from elsewhere: typed errors, no field of another sample, no leak."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import wids
from tests.io.collection.test_joining import opened, plain, write_set
from tests.support.servers import Server
from tests.support.shards import write_json, write_tar
from wids import jobs
from wids.errors import (
    ChangedShardError,
    CountMismatchError,
    InputError,
    NotAllowedError,
    OutputExistsError,
    SelectionError,
    SpecError,
    WidsError,
)

KEYS = [f"k{n:02d}" for n in range(12)]
SECRET = {"headers": {"X-Secret": "a secret"}}
STRANGE = [
    *(None, 0, -1, 1 << 70, 1e308, float("nan"), "", "a\nb", [], {}, [None], ["cap"], {"crc32": 1}, "nope.json"),
    *("joined.json", "base.json", "base-0.tar", "/dev/null", "/"),
]


@pytest.fixture
def sets(tmp_path):
    """A directory with a base of 12 samples, and a companion of them in another order."""
    write_set(tmp_path, "base", KEYS, (".txt",), (7, 5))
    write_set(tmp_path, "cap", KEYS[::-1], (".cap",), (4, 4, 4))
    opened(tmp_path / "base.json").with_fields(tmp_path / "cap.json", on="key").save(tmp_path / "joined.json")
    return tmp_path


def with_entry(directory, changes, name="joined.json"):
    """The path of a joined index whose one companion has these keys changed; ``...``: it lacks them."""
    index = json.loads((directory / "joined.json").read_text())
    entry = {**index["companions"][0], **changes}
    index["companions"] = [{key: value for key, value in entry.items() if value is not ...}]
    return write_json(directory / name, index)


def read_all(path):
    """The (key, caption, text) of all samples."""
    return [(sample["__key__"], sample.get(".cap"), sample[".txt"]) for sample in opened(path)]


def test_strange_values(sets):
    """Each value of an entry, and of the list, is refused by a typed error, or changes no field to another sample's."""
    wanted = read_all(sets / "joined.json")
    keys = [*json.loads((sets / "joined.json").read_text())["companions"][0], "fields"]
    for key in keys:
        for value in (*STRANGE, ...):
            path = with_entry(sets, {key: value}, "strange.json")
            try:
                read = read_all(path)
            except WidsError:
                continue
            if key == "prefix" or value == []:  # the fields have other names, or there are none
                read = [(key, wanted[n][1], text) for n, (key, _, text) in enumerate(read)]
            assert read == wanted, (key, value)
    index = json.loads((sets / "joined.json").read_text())
    for value in (0, "", {}, False, [0], "cap.json"):
        with pytest.raises(SpecError, match=r"companions"):
            opened(write_json(sets / "strange.json", {**index, "companions": value}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": ..., "rows_checksum": ...}, r"companions\[0\].rows is missing"),
        ({"nsamples": ...}, r"companions\[0\].nsamples is missing"),
        ({"fields": ["cap"]}, r"companions\[0\].fields\[0\] is 'cap'; extensions have their dot"),
        ({"prefix": "a/b"}, r"companions\[0\].prefix is 'a/b'"),
    ],
)
def test_what_would_join_others(sets, changes, words):
    """An entry by key that lost its rows is not read by row; nor do names that match nothing lose fields unseen."""
    with pytest.raises(SpecError, match=words):
        opened(with_entry(sets, changes))


def test_a_companion_with_fewer_samples(sets):
    """Rows beyond it are an error at opening, also where nothing says what it was."""
    path = with_entry(sets, {"fingerprint": ..., "contents": ...})
    write_set(sets, "cap", KEYS[:6], (".cap",), (6,))
    with pytest.raises(SpecError, match=r"had 12 samples when it was joined by key, and has 6"):
        opened(path)


def test_files_of_companions_stay(sets):
    """A join replaces neither the index of its companion nor the rows that it is read from."""
    joined = opened(sets / "joined.json")
    [rows] = sets.glob("joined.*.joined")
    for path in (sets / "cap.json", rows):
        before = path.read_bytes()
        with pytest.raises(OutputExistsError, match=r"of the companion cap.json"):
            joined.save(path, overwrite=True)
        assert path.read_bytes() == before
    joined.save(sets / "joined.json")
    assert read_all(sets / "joined.json")[3] == ("k03", b"cap.cap k03", b"base.txt k03")


def test_a_view_of_an_index_that_has_companions(sets, monkeypatch):
    """Its companions lie beside that index, however the path of the view is written."""
    (sets / "inner").mkdir()
    index = json.loads((sets / "base.json").read_text())
    cap = write_set(sets, "same", KEYS, (".cap",), (12,))
    write_json(sets / "base.json", {**index, "companions": [{"index": os.path.basename(cap)}]})
    monkeypatch.chdir(sets.parent)
    opened(f"{sets.name}/base.json").select([2, 5]).save(sets / "inner" / "view.json")
    saved = json.loads((sets / "inner" / "view.json").read_text())
    for view in (saved, {key: value for key, value in saved.items() if key != "companions"}):
        write_json(sets / "inner" / "view.json", view)
        for path in (f"{sets.name}/inner/view.json", sets / "inner" / "view.json"):
            wanted = {"__key__": "k02", ".txt": b"base.txt k02", ".cap": b"same.cap k02"}
            assert plain(opened(path)[0]) == wanted


@pytest.mark.parametrize("on", ["row", "key"])
def test_options_stay_with_the_index_server(sets, on):
    """A remote index that names a companion, or rows, on another server hands it none of the program's options."""
    [rows] = sets.glob("joined.*.joined")
    with Server(has_ranges=True) as own, Server(has_ranges=True) as other:
        for path in sets.iterdir():
            own.add(f"/{path.name}", path.read_bytes())
            other.add(f"/{path.name}", path.read_bytes())
        there = {"index": f"{other.url}/cap.json", "rows": f"{other.url}/{rows.name}"}
        changes = there if on == "key" else {**there, "on": "row", "rows": ...}
        with_entry(sets, changes, "far.json")
        own.add("/far.json", (sets / "far.json").read_bytes())
        options = {"cache_dir": sets / "cache", "storage_options": SECRET}
        dataset = opened(f"{own.url}/far.json", **options)
        assert plain(dataset[4])[".cap"] == (b"cap.cap k04" if on == "key" else b"cap.cap k07")
        jobs.verify(f"{own.url}/far.json", jobs.VerifySettings(session=jobs.Session(SECRET)))
        assert other.headers
        assert not [headers for headers in other.headers if "a secret" in str(headers)]
        assert [headers for headers in own.headers if "a secret" in str(headers)]
        shutil.rmtree(sets / "cache")
        other.headers.clear()
        index = json.loads((sets / "far.json").read_text())
        write_json(sets / "near.json", {**index, "view_of": f"{other.url}/base.json"})
        assert plain(opened(sets / "near.json", **options)[4])[".txt"] == b"base.txt k04"
        assert [headers for headers in other.headers if "a secret" in str(headers)]  # which a local index names


def test_a_remote_index_names_no_local_file(sets):
    """Neither a companion nor its rows, nor the shards of a companion."""
    with Server() as server:
        for path in sets.iterdir():
            server.add(f"/{path.name}", path.read_bytes())
        index = json.loads((sets / "base.json").read_text())
        local = {**json.loads((sets / "cap.json").read_text()), "base": f"file://{sets}"}
        server.add("/local.json", json.dumps(local).encode())
        for entry in ({"index": f"file://{sets}/cap.json"}, {"index": "pipe:cat cap.json"}, {"index": "local.json"}):
            server.add("/far.json", json.dumps({**index, "companions": [entry]}).encode())
            with pytest.raises(NotAllowedError):
                opened(f"{server.url}/far.json", cache_dir=sets / "cache")
    assert wids.ShardListDataset(sets / "joined.json")[1][".txt"]


@pytest.mark.parametrize("substitutes", [{}, {"on_error": "substitute", "max_errors": 1.0}])
def test_a_companion_that_was_rewritten_unseen(sets, substitutes):
    """Shards of other keys with the same names, counts and sizes: the keys that are read say so; no rows are kept."""
    joined = sets / "joined.json"
    assert read_all(joined)[0] == ("k00", b"cap.cap k00", b"base.txt k00")
    write_set(sets, "cap", KEYS, (".cap",), (4, 4, 4))
    for read in (lambda dataset: dataset[0], lambda dataset: dataset.__getitems__([3, 0])):
        with pytest.raises(ChangedShardError, match=r"its sample for '.*' has the key '.*' now; join again"):
            read(opened(joined, **substitutes))
    again = opened(sets / "base.json", **substitutes).with_fields(sets / "cap.json", on="key")
    assert [sample[".cap"][-3:].decode() for sample in again] == KEYS


def test_rows_of_a_function_are_not_kept(sets):
    """Two rules that look the same may make other keys."""

    class Rule:
        def __init__(self, rule):
            self.rule = rule

        def __repr__(self):
            return "<Rule>"

        def __call__(self, name):
            return self.rule(name)

    write_tar(sets / "a.tar", [("x.jpg", b"x"), ("y.jpg", b"y")])
    write_tar(sets / "b.tar", [("x.cap", b"x"), ("y.cap", b"y")])
    jobs.create_index([sets / "a.tar"], sets / "a.json")
    jobs.create_index([sets / "b.tar"], sets / "b.json")
    base = opened(sets / "a.json", cache_dir=sets / "cache")
    for keys in ({"x": "x", "y": "y"}, {"x": "y", "y": "x"}):
        rule = Rule(lambda name, keys=keys: (keys[name[0]], name[1:]))
        other = opened(sets / "b.json", cache_dir=sets / "cache", key_rule=rule)
        assert [sample[".cap"].decode() for sample in base.with_fields(other, on="key")] == list(keys.values())


@pytest.mark.parametrize("on", ["row", "key"])
@pytest.mark.parametrize("count", [3, 5])
def test_a_companion_with_another_count(sets, on, count):
    """Its samples are repeated for no other ones, also where those of the base are; the last of more are left out."""
    path = write_set(sets, "same", KEYS, (".cap",), (4, 4, 4))
    rows = [
        {"url": row["url"], "nsamples": row["nsamples"]}
        for row in json.loads((sets / "same.json").read_text())["shardlist"]
    ]
    write_json(path, {"wids_version": 1, "shardlist": rows})
    write_tar(sets / "same-1.tar", [(f"{key}.cap", f"same.cap {key}".encode()) for key in [*KEYS[4:8], "z"][:count]])

    def read():
        base = opened(sets / "base.json", on_count_mismatch="warn")
        return [sample[".cap"] for sample in base.with_fields(path, on=on, missing="none")]

    if count == 5:
        assert read() == [f"same.cap {key}".encode() for key in KEYS]
    else:
        with pytest.raises(CountMismatchError, match=r"holds 3 samples, and the index says 4 .*they are not repeated"):
            read()


def test_a_get_shard_of_a_subclass(sets):
    """One that gives samples of other shards has no companion's fields for them; its own order in a shard holds."""

    class Reversed(wids.ShardListDataset):
        is_within = False

        def get_shard(self, index):
            if self.is_within:
                first = self.locate(index).shard and 7
                return super().get_shard(first + self.lengths[self.locate(index).shard] - 1 - (index - first))
            return super().get_shard(len(self) - 1 - index)

    path = write_set(sets, "same", KEYS, (".cap",), (4, 4, 4))
    joined = Reversed(sets / "base.json", transformations="raw").with_fields(path)
    with pytest.raises(InputError, match=r"is of the shard .*base-0.tar, and get_shard of Reversed gives .*base-1.tar"):
        joined[0]
    joined.is_within = True
    for sample in joined.__getitems__([0, 6, 7, 11]):
        assert sample[".cap"][-3:].decode() == sample["__key__"]


def test_a_prefix_takes_no_field_of_the_base(sets):
    """Fields of the base that begin with a prefix, and those of one name in another case, are read where they are."""
    base = write_set(sets, "wide", KEYS, (".jpg", ".seg.png"), (6, 6))
    other = write_set(sets, "other", KEYS, (".npy", ".JPG"), (12,))
    for fields in (None, (".jpg", ".seg.png", ".seg.npy")):
        joined = opened(base, fields=fields).with_fields(other, prefix="seg", fields=".npy")
        wanted = {
            "__key__": "k03",
            ".jpg": b"wide.jpg k03",
            ".seg.png": b"wide.seg.png k03",
            ".seg.npy": b"other.npy k03",
        }
        assert plain(joined[3]) == wanted
        assert joined.read(3, ".seg.png") == b"wide.seg.png k03"
    both = opened(base, fields=(".jpg",)).with_fields(other)
    assert plain(both[3]) == {"__key__": "k03", ".jpg": b"wide.jpg k03", ".JPG": b"other.JPG k03"}
    with pytest.raises(SelectionError, match=r"can be one"):
        opened(base, fields={"image": "jpg"}).with_fields(other)[3]
    with pytest.raises(InputError, match=r"twice, once of wide.json"):
        opened(base, fields=(".jpg",)).with_fields(base)[3]


def test_fields_of_the_other_data_set(sets):
    """Extensions alone are taken over; names and alternatives, which would be lost, are refused."""
    joined = opened(sets / "base.json").with_fields(opened(sets / "cap.json", fields=(".cap",)), on="key")
    assert joined[1][".cap"] == b"cap.cap k01"
    for fields in ({"caption": "cap"}, ("cap;txt",), (wids.lazy("cap"),)):
        with pytest.raises(InputError, match=r"give them to that"):
            joined.with_fields(opened(sets / "cap.json", fields=fields), prefix="x")


def test_a_preview_has_fields_of_companions(sets, caplog):
    """Those whose shard is on the disk, too; fields of companions are not missed in the base."""
    joined = opened(sets / "joined.json")
    assert [sample[".cap"].read()[-3:].decode() for sample in joined.preview(3)] == KEYS[:3]
    assert ".cap" in joined._repr_html_()
    with Server() as server:
        for path in sets.iterdir():
            server.add(f"/{path.name}", path.read_bytes())
        far = opened(sets / "base.json", cache_dir=sets / "cache").with_fields(f"{server.url}/cap.json", prefix="far")
        assert [plain(sample).keys() for sample in far.preview(1)] == [{"__key__", ".txt"}]
        assert not [target for target in server.requests if target.endswith(".tar")]
    assert opened(sets / "base.json", fields=(".txt", ".cap")).with_fields(sets / "cap.json", on="key")[2][".cap"]
    assert "no sample of" not in caplog.text
