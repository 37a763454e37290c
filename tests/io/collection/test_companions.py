"""Joined indexes that are damaged, of others, or from elsewhere: typed errors, no field of another sample, no leak."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import wids
from tests.io.collection.test_joining import opened, plain, write_set
from tests.support.servers import Server
from tests.support.shards import write_json
from wids import jobs
from wids.errors import NotAllowedError, OutputExistsError, SpecError, WidsError

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
