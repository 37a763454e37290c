"""`wids info`, `ls`, `show`, `cat`, `locate`: looking into a dataset, as a user has it."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shlex
import signal

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tests.support.cache_dirs import files_in
from tests.support.cache_shards import pack
from tests.support.cli import PATIENCE_SECONDS, complaint, run, run_ok, run_on_terminal, spawn
from tests.support.clocks import wait_until
from tests.support.servers import Server
from tests.support.shards import (
    mixture_index,
    serve,
    write_index,
    write_json,
    write_mixture,
    write_shard,
    write_tar,
)
from wids import ShardListDataset
from wids.core.index import compiled_files
from wids.core.readers.provider import AutoProvider
from wids.core.shard import Shard
from wids.testing import Server as FileServer
from wids.tools.cli.look.show import can_draw, draw
from wids.tools.describe import describe
from wids.tools.key_search import near_keys, rows_of

REPEATED = [("a/x.txt", b"0"), ("y.txt", b"1"), ("a/x.txt", b"2"), ("héron.txt", b"3"), ("000007.txt", b"4")]


def encoded(image, form):
    """An image as a file's bytes."""
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def saved(array, save=np.save):
    """An array as a .npy file's bytes."""
    stream = io.BytesIO()
    save(stream, array)
    return stream.getvalue()


def fields():
    """A field of each kind."""
    return {
        ".jpg": encoded(Image.new("RGB", (30, 20), (200, 10, 10)), "JPEG"),
        ".npy": saved(np.zeros((2, 3), np.float32)),
        ".txt": "one\ntwo \x1b[31m é".encode(),
        ".json": b'{"label": 3}',
        ".cls": b"7",
        ".pkl": pickle.dumps([1]),
        ".mp4": bytes(range(200)),
    }


@pytest.fixture
def kinds(tmp_path):
    """A tar with one sample, that has a field of each kind; beside it a sample that is damaged."""
    members = [(f"k{name}", data) for name, data in fields().items()]
    return write_tar(tmp_path / "kinds.tar", [*members, ("broken.jpg", b"no image"), ("broken.cls", b"1")])


@pytest.fixture
def repeated(tmp_path):
    """Two tars with keys that come again, a key beyond ASCII, and one like a number."""
    for k in range(2):
        write_tar(tmp_path / f"r{k}.tar", REPEATED)
    return str(tmp_path / "r{0..1}.tar")


# --- info


def test_info(tmp_path, index):
    """Counts, sizes, averages, first and last shard, and the fields of the first sample."""
    told = json.loads(run_ok("info", index, "--json"))
    shards = json.loads((tmp_path / "data" / "index.json").read_text())["shardlist"]
    size = sum(shard["filesize"] for shard in shards)
    assert (told["shards"], told["samples"], told["bytes"]) == (3, 9, size)
    assert (told["samples_per_shard"], told["bytes_per_sample"]) == (3, size / 9)
    assert told["first_shard"].endswith("/s0.tar")
    assert told["last_shard"].endswith("/s2.tar")
    assert (told["with_filesize"], told["with_md5sum"], told["datasets"]) == (3, 0, [])
    assert told["first_sample"] == {"key": "s0-000", "fields": {".txt": 6, ".cls": 1, ".bin": 40}}
    words = run_ok("info", index)
    for part in ("samples      9, on average 3 a shard", "sizes        all", "md5          none", "s0-000: .txt (6 B)"):
        assert part in words


def test_info_of_parts_and_of_tars_without_an_index(tmp_path):
    """Sub-datasets are told one by one; tars without an index are counted; what is not known is said to be so."""
    write_index(tmp_path / "a", (2, 2), name="a.json")
    parts = [
        {"name": "a", "source_url": "a/a.json", "weight": 2.0},
        {"name": "b", "shardlist": [{"url": "b.tar", "nsamples": 5}]},
    ]
    joined = write_json(tmp_path / "all.json", {"wids_version": 1, "name": "both", "datasets": parts})
    told = json.loads(run_ok("info", joined, "--json"))
    assert [(part["name"], part["shards"], part["samples"]) for part in told["datasets"]] == [("a", 2, 4), ("b", 1, 5)]
    assert (told["bytes"], told["with_filesize"], told["datasets"][1]["bytes"]) == (None, 2, None)
    assert "2 of 3" in run_ok("info", joined)
    size, pattern = os.path.getsize(tmp_path / "a" / "s1.tar"), tmp_path / "a" / "s{0..1}.tar"
    assert run_ok("ls", pattern, "--shards").splitlines()[2].split()[:3] == ["1", "2", "2"]
    told = [json.loads(line) for line in run_ok("ls", pattern, "--shards", "--json").splitlines()]
    assert [(shard["first"], shard["nsamples"]) for shard in told] == [(0, 2), (2, 2)]
    assert told[1]["filesize"] == size
    tars = json.loads(run_ok("info", tmp_path / "a" / "s{0..1}.tar", "--json"))
    assert (tars["samples"], tars["with_filesize"]) == (4, 2)


def test_a_large_index_is_to_be_published_compiled(tmp_path, set_limits):
    """From 20,000 shards on, info and verify name the command for a JSON index; not for a small one, tars, a view."""
    assert compiled_files.LIMITS.min_shards == 20_000
    index = write_index(tmp_path, (2, 2), name="my train.json")
    output, view = tmp_path / "my train.widsx", tmp_path / "view.json"
    command = f"wids index convert '{index}' -o '{output}'"
    assert "convert" not in run_ok("info", index) + run_ok("verify", index)
    ShardListDataset(index).select([0, 2]).save(view)
    set_limits(compiled_files, min_shards=2)
    for words in (run_ok("info", index), run_ok("verify", index)):
        (line,) = [line for line in words.splitlines() if "convert" in line]
        assert line.endswith(
            f"each machine compiles this index before its first sample; publish it compiled: {command}"
        )
    run_ok(*shlex.split(command)[1:])
    for other in (output, tmp_path / "s{0..1}.tar", tmp_path, view):
        assert "convert" not in run_ok("info", other) + run_ok("verify", other)
    with FileServer(tmp_path) as server:
        url = f"{server.url}/my%20train.json"
        words = run_ok("info", url, "--cache-dir", tmp_path / "cache")
    assert words.rstrip().endswith(f"wids index convert {url} -o my%20train.widsx")


def test_info_of_a_mixture(tmp_path):
    """Sub-datasets with weights: their shares, and how often a nominal epoch reads them; without weights neither."""
    parts = {"web": ([30, 70], 0.75), "books": ([100], 0.25), "rest": ([7], 0)}
    said = run_ok("info", index := write_mixture(tmp_path, parts))
    assert said.rstrip().endswith(
        "mixed by their weights:\n"
        "source  weight   share  passes\n"
        "web       0.75  75.00%    1.55\n"
        "books     0.25  25.00%   0.517\n"
        "rest         0   0.00%       0"
    )
    assert json.loads(run_ok("info", index, "--json"))["mixture"][1] == {
        "name": "books",
        "samples": 100,
        "weight": 0.25,
        "share": 0.25,
    }
    plain = write_mixture(tmp_path, {name: (counts, None) for name, (counts, _) in parts.items()}, name="plain.json")
    found = json.loads(run_ok("info", plain, "--json"))
    assert (len(found["datasets"]), found["mixture"]) == (3, None)
    bad = write_json(tmp_path / "bad.json", mixture_index({**parts, "rest": ([7], -1)}))
    assert "weight of source 'rest' is -1" in complaint(1, "info", bad)


def test_samples_of_a_mixture(tmp_path):
    """`ls` and `show` take an index whose sub-datasets have weights as any other: its samples, one after another."""
    index = write_mixture(tmp_path, {"a": ((3, 2), 0.9), "b": ((4,), 0.1)})
    assert [json.loads(line)["index"] for line in run_ok("ls", index, "--json").splitlines()] == list(range(9))
    assert "sample 5: b-0-000" in run_ok("show", index, "5")


def test_info_of_several(tmp_path, index):
    """Several indexes are a table; one that cannot be read is told, the others are shown, and the exit code is 1."""
    other = write_index(tmp_path / "other", (1,), name="o.json", name_=1, info="x")
    lines = run_ok("info", index, other).splitlines()
    assert [line.split()[1:3] for line in lines[1:]] == [["3", "9"], ["1", "1"]]
    code, out, err = run("info", index, tmp_path / "none.json", other, "--json")
    assert code == 1
    assert [told["samples"] for told in json.loads(out)] == [9, 1]
    assert "none.json: does not exist" in err
    assert "1 of 3 indexes cannot be read" in err


def test_info_of_a_first_shard_that_is_broken(tmp_path):
    """What the index says is told, and what is wrong with the first shard; the exit code is 1."""
    path = write_index(tmp_path, (3, 2))
    (tmp_path / "s0.tar").write_bytes(b"no tar" * 1000)
    code, out, err = run("info", path)
    assert code == 1
    assert "sample 0     cannot be read" in out
    assert "s0.tar" in err


# --- ls


def test_ls(index):
    """A line for each sample: index, shard, row, key, fields and their sizes in bytes."""
    lines = run_ok("ls", index).splitlines()
    assert lines[0].split() == ["index", "shard", "row", "key", "fields=bytes"]
    assert lines[1].split() == ["0", "0", "0", "s0-000", ".txt=6", ".cls=1", ".bin=40"]
    assert [line.split()[3] for line in lines[4:]] == [f"s1-00{k}" for k in range(4)] + ["s2-000", "s2-001"]
    assert len({line.index("s") for line in lines[1:]}) == 1  # a column


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--shard", "1"), [3, 4, 5, 6]),
        (("--shard", "-1"), [7, 8]),
        (("--range", "2:4"), [2, 3]),
        (("--range", "-2:"), [7, 8]),
        (("--range", ":1"), [0]),
        (("--range", "8:100"), [8]),
    ],
)
def test_ls_of_some(index, flags, expected):
    """--shard and --range choose samples, also counted from the end."""
    told = [json.loads(line) for line in run("ls", index, *flags, "--json")[1].splitlines()]
    assert [sample["index"] for sample in told] == expected
    assert told[0].keys() == {"index", "key", "shard", "row", "url", "fields"}


def test_ls_shards(tmp_path, index):
    """--shards lists the shards, as words or JSON lines, with what the index says of them; no shard is opened."""
    for name in ("s0.tar", "s1.tar", "s2.tar"):
        (tmp_path / "data" / name).unlink()
    lines = run_ok("ls", index, "--shards").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["0", "0", "3"], ["1", "3", "4"], ["2", "7", "2"]]
    told = [json.loads(line) for line in run_ok("ls", index, "--shards", "--range", "3:8", "--json").splitlines()]
    assert [(shard["shard"], shard["first"], shard["nsamples"]) for shard in told] == [(1, 3, 4), (2, 7, 2)]
    assert told[0]["filesize"] > 0


def test_ls_opens_what_it_needs(tmp_path):
    """Of a hundred thousand shards, the two that hold the range are read: there are no others."""
    rows = [{"url": f"s{k}.tar", "nsamples": 3} for k in range(100_000)]
    index = write_json(tmp_path / "many.json", {"wids_version": 1, "shardlist": rows})
    for k in (70_000, 70_001):
        write_shard(tmp_path / f"s{k}.tar", 3)
    told = [json.loads(line) for line in run_ok("ls", index, "--range", "210002:210004", "--json").splitlines()]
    assert [sample["key"] for sample in told] == ["s70000-002", "s70001-000"]
    assert run_ok("ls", index, "--shards").count("\n") == 100_001


def test_ls_into_a_pipe_that_closes(tmp_path):
    """A reader that has seen enough, as `head`, ends it without a word."""
    members = [(f"{k:05d}.txt", b"") for k in range(8000)]
    with spawn("ls", write_tar(tmp_path / "x.tar", members)) as process:
        assert process.stdout.readline().split() == ["index", "shard", "row", "key", "fields=bytes"]
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("code", "args", "words"),
    [
        (1, ("--shard", "3"), "shards are 0 to 2"),
        (1, ("--range", "9:"), "indices are 0 to 8"),
        (2, ("--range", "x"), "is no range of samples"),
        (2, ("--range", "0:1", "--shard", "1"), "give one of them"),
    ],
)
def test_ls_of_what_is_not_there(index, code, args, words):
    """A shard or range that is not there is told with what there is."""
    done, out, err = run("ls", index, *args)
    assert (done, out) == (code, "")
    assert words in err


# --- show and cat


def test_show(kinds):
    """Types, sizes and shapes of the fields, and how they begin; no control character, no picture in a pipe."""
    words = run_ok("show", kinds, "k")
    assert words.splitlines()[0] == "sample 0: k"
    rows = {line.split()[0]: " ".join(line.split()[3:]) for line in words.splitlines() if line.startswith(".")}
    assert rows == {
        ".jpg": "image 30 x 20 RGB JPEG",
        ".npy": "array (2, 3) float32",
        ".txt": r"text 15 characters: one\ntwo \x1b[31m é",
        ".json": 'json dict of 1: {"label": 3}',
        ".cls": "number 7",
        ".pkl": "unopened not opened: opening it could run code from the file",
        ".mp4": "bytes begins 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f",
    }
    assert "\x1b" not in words


def test_show_json(kinds):
    """The same facts for programs."""
    told = json.loads(run_ok("show", kinds, "0", "--json"))
    assert (told["index"], told["key"], told["shard"], told["row"], told["url"]) == (0, "k", 0, 0, kinds)
    facts = {field["name"]: field for field in told["fields"]}
    assert {name: field["size"] for name, field in facts.items()} == {k: len(v) for k, v in fields().items()}
    assert (facts[".jpg"]["width"], facts[".jpg"]["mode"], facts[".npy"]["shape"]) == (30, "RGB", [2, 3])
    assert facts[".txt"]["text"].startswith("one\ntwo")


def test_show_what_is_damaged(kinds):
    """A field that cannot be decoded is told as such, the others as ever; the exit code is 1."""
    code, out, err = run("show", kinds, "broken")
    assert code == 1
    assert "damaged  its 8 bytes are not a JPEG" in out
    assert "number   1" in out
    assert ".jpg cannot be decoded" in err


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (("0", "-1"), [0, 8]),
        (("3:6",), [3, 4, 5]),
        (("-2:",), [7, 8]),
        (("8", "s1-001", ":2", "8"), [8, 4, 0, 1, 8]),
        (("8:9",), [8]),
    ],
)
def test_show_of_several(index, samples, expected):
    """Indices, keys and ranges, in the order in which they stand; one after the other, or an object on each line."""
    lines = run_ok("show", index, *samples, "--json").splitlines()
    told = [json.loads(line) for line in lines]
    assert [sample["index"] for sample in told] == expected
    assert [sample["fields"][0]["text"] for sample in told] == [f"text {each}" for each in expected]
    words = run_ok("show", index, *samples)
    parts = words.split("\n\nsample ")  # a blank line before each but the first
    assert [int(part.removeprefix("sample ").partition(":")[0]) for part in parts] == expected
    assert all(run_ok("show", index, str(each)).rstrip() in words for each in expected)


@pytest.mark.parametrize(
    ("samples", "code", "words"),
    [
        (("0", "9"), 1, "indices are 0 to 8"),
        (("0", "s1-00x"), 1, "no sample has the key 's1-00x'"),
        (("0", "5:5"), 1, "there are no samples 5:5; indices are 0 to 8"),
        (("9:",), 1, "there are no samples 9:"),
        (("--key", "3:6"), 1, "no sample has the key '3:6'"),
    ],
)
def test_show_of_several_that_are_not_there(index, samples, code, words):
    """Each is looked for before the first is shown."""
    assert words in complaint(code, "show", index, *samples)


def test_show_of_several_with_damage(kinds):
    """The others are shown, and the damaged one is named at the end."""
    code, out, err = run("show", kinds, "broken", "k")
    assert code == 1
    assert "sample 0: k\n" in out
    assert "sample 1 ('broken') in" in err
    assert ".jpg cannot be decoded" in err


def test_show_of_several_by_byte_ranges(tmp_path):
    """A shard that is come back to needs no second leave, though its samples came by byte ranges and it is not here."""
    for name in "ab":
        members = [(f"{name}{k}.bin", bytes([k]) * 3_000_000) for k in range(4)]
        write_tar(tmp_path / "www" / f"{name}.tar", members)
    rows = [{"url": f"{name}.tar", "nsamples": 4} for name in "ab"]
    write_json(tmp_path / "www" / "i.json", {"wids_version": 1, "shardlist": rows})
    with FileServer(tmp_path / "www") as server:
        flags = ("--json", "--fetch", "--cache-dir", tmp_path / "cache")
        # A slow machine has waits to tell.
        code, out, _ = run("show", server.url + "/i.json", "0", "7", "1", "2", *flags)
    assert code == 0
    lines = out.splitlines()
    assert [json.loads(line)["fields"][0]["begins"][:2] for line in lines] == ["00", "03", "01", "02"]


def test_show_opens_a_shard_again_that_closed_itself(index, monkeypatch):
    """As one does that is read by byte ranges, once its download is cheaper: at its first read too."""
    opens, opened = AutoProvider.open, []

    def open_closed(self, shard):
        reader = opens(self, shard)
        if len(opened) % 3:
            reader.close()
        opened.append(reader)
        return reader

    expected = run_ok("show", index, "0", "1", "4", "0")
    monkeypatch.setattr(AutoProvider, "open", open_closed)
    assert run_ok("show", index, "0", "1", "4", "0") == expected
    assert len(opened) > 4


def test_classes_have_names(tmp_path):
    """Where the index says names of classes, show and ls name those of labels that are one of them."""
    names = ["cat", "dog\x1b", "owl", "fox"]
    index = write_index(tmp_path, (3, 2), info={"classes": names})
    assert "number  1 (dog\\x1b)" in run_ok("show", index, "1")
    assert "number  4 (none of the index's 4 classes)" in run_ok("show", index, "4")
    fields = [json.loads(line)["fields"][1] for line in run_ok("show", index, ":", "--json").splitlines()]
    assert [(field["value"], field["class"]) for field in fields] == list(enumerate([*names, None]))
    lines = [line.split() for line in run_ok("ls", index).splitlines()]
    assert [line[4] for line in lines] == ["class", "cat", "dog\\x1b", "owl", "fox", "-"]
    assert lines[1][5:] == [".txt=6", ".cls=1", ".bin=40"]
    told = [json.loads(line) for line in run_ok("ls", index, "--range", "3:", "--json").splitlines()]
    assert [sample["class"] for sample in told] == ["fox", None]


def test_labels_of_shards_that_are_not_here_are_not_read(tmp_path):
    """Ls of remote shards needs their tables alone, and names no class."""
    write_tar(tmp_path / "www" / "a.tar", {"x.cls": b"0", "y.txt": b"1", "z.cls": b"?"})
    run_ok("index", "create", tmp_path / "www" / "a.tar", "-o", tmp_path / "www" / "i.json", "--members")
    described = json.loads((tmp_path / "www" / "i.json").read_text())
    write_json(tmp_path / "www" / "i.json", {**described, "info": {"classes": ["cat"]}})
    with FileServer(tmp_path / "www") as server:
        told = run_ok("ls", server.url + "/i.json", "--json", env={"WIDS_CACHE": str(tmp_path / "c")})
        assert [json.loads(line)["class"] for line in told.splitlines()] == [None] * 3
        assert not [path for path in server.requests if path.endswith(".tar")]
    told = run_ok("ls", tmp_path / "www" / "i.json", "--json")
    assert [json.loads(line)["class"] for line in told.splitlines()] == ["cat", None, None]


def test_show_draws_on_a_terminal_with_colours(kinds):
    """An image is drawn where there are colours, unless --no-preview; not in a terminal without."""
    code, shown = run_on_terminal("show", kinds, "0", env={"COLORTERM": "truecolor", "NO_COLOR": None})
    assert code == 0
    assert shown.count("▀") == 30 * 10
    assert "38;2;" in shown
    assert "▀" not in run_on_terminal("show", kinds, "0", "--no-preview", env={"COLORTERM": "truecolor"})[1]
    assert "▀" not in run_on_terminal("show", kinds, "0", env={"TERM": "dumb"})[1]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_any_image_can_be_drawn(mode):
    """Images of every mode are drawn, no larger than fits, odd heights too; deep ones by their own range."""
    console = Console(force_terminal=True, color_system="truecolor", width=40, file=io.StringIO())
    drawn = draw(Image.new(mode, (501, 301)), console)
    assert len(drawn.plain.split("\n")) <= 20
    assert {len(line) for line in drawn.plain.split("\n")} == {39}
    deep = Image.fromarray(np.array([[0, 40_000]], np.uint16))
    assert [str(span.style) for span in draw(deep, console).spans] == ["#000000", "#ffffff"]


def test_a_terminal_that_lacks_the_character_gets_no_picture():
    """Nothing is drawn where the encoding, or the colours, are not there."""

    class Narrow(io.StringIO):
        encoding = "ascii"

    wide = {"force_terminal": True, "color_system": "truecolor"}
    assert can_draw(Console(**wide, file=io.StringIO()))
    assert not can_draw(Console(**wide, file=Narrow()))
    assert not can_draw(Console(**wide, file=io.StringIO(), no_color=True))
    assert not can_draw(Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (
            ".npz",
            saved({"a": 1}, lambda stream, _: np.savez(stream, a=np.zeros(3), b=np.zeros((1, 2), "i4"))),
            "arrays",
        ),
        (".txt.gz", b"junk", "damaged"),
        (".json", b"null", "json"),
        (".json", b"true", "json"),
        (".json", b"NaN", "number"),
        (".json", b"[1, 2]", "json"),
        (".jsonl", b'{"a": 1}\n{"a": 2}\n', "json"),
        (".cls", b"9" * 400, "number"),
        (".bin", b"", "bytes"),
        (".weird", b"plain text", "bytes"),
        (".npy", saved(np.array([{}]), lambda stream, array: np.save(stream, array, allow_pickle=True)), "unopened"),
        (".txt", b"\xff\xfe", "damaged"),
        (".msgpack", b"\x81\xa1a\xc4\x02hi", "json"),
    ],
)
def test_descriptions(name, data, expected):
    """Whatever is in a field has a description that is a line, and JSON that is JSON."""
    field = describe(name, data, key="k", shard="s.tar")
    assert field.kind == expected
    assert field.words.isprintable()
    assert field.words
    assert json.loads(json.dumps(field.as_json(), allow_nan=False))["size"] == len(data)


def test_how_bytes_begin():
    """Bytes of an unknown format begin as text where they are text, wherever that is cut, else in hexadecimal."""
    assert describe(".srt", "é".encode() * 400, key="k", shard="s").words == "begins " + "é" * 150
    assert describe(".x", b"a" + "é".encode() * 400, key="k", shard="s").words == "begins a" + "é" * 149
    assert describe(".srt", b"1\nhi", key="k", shard="s").words == "begins 1\\nhi"
    assert describe(".mp4", b"\x00ab", key="k", shard="s").words == "begins 00 61 62"


def test_cat(kinds):
    """The bytes of a field as they are, binary or not, with or without its dot."""
    for name, data in (item for item in fields().items() if item[0] in (".mp4", ".txt")):
        assert run("cat", kinds, "0", name, is_text=False) == (0, data, "")
    assert run("cat", kinds, "k", "jpg", is_text=False).out == fields()[".jpg"]


def test_cat_to_a_terminal(kinds):
    """A terminal gets text, and binary data by --force alone; a text that could drive it is binary."""
    for name in ("jpg", "txt"):
        code, shown = run_on_terminal("cat", kinds, "0", name)
        assert code == 1
        assert "is binary" in shown
    assert run_on_terminal("cat", kinds, "0", "json") == (0, '{"label": 3}\r\n')
    assert run_on_terminal("cat", kinds, "0", "txt", "--force") == (0, "one\r\ntwo \x1b[31m é\r\n")


def test_a_field_that_is_not_there(kinds):
    """Its name is told with those that there are."""
    assert "it has .jpg, .cls" in complaint(1, "cat", kinds, "broken", "png")


# --- indices and keys


def test_what_is_an_index_and_what_a_key(repeated):
    """A number without leading zeros is an index, with them a key; --key makes everything one."""
    for args, value in ((("1",), "1"), (("-1",), "4"), (("000007",), "4"), (("a/x",), "0"), (("héron",), "3")):
        assert run("cat", repeated, *args, "txt") == (0, value, "")
    assert run("cat", repeated, "000007", ".txt", "--key")[1] == "4"
    for args, words in (
        (("10",), "for the key '10' add --key"),
        (("--", "-11"), "indices are 0 to 9"),
        (("1", "--key"), "no sample has the key '1'"),
    ):
        code, out, err = run("show", repeated, *args)
        assert (code, out) == (1, "")
        assert words in err


def test_locate(repeated):
    """Every sample that has one of the keys: index, shard, row; keys beyond ASCII too."""
    told = json.loads(run("locate", repeated, "a/x", "héron", "--json")[1])
    assert [(found["key"], [place["index"] for place in found["found"]]) for found in told] == [
        ("a/x", [0, 2, 5, 7]),
        ("héron", [3, 8]),
    ]
    assert [(place["shard"], place["row"]) for place in told[0]["found"]] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    lines = run("locate", repeated, "000007")[1].splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [["000007", "4", "0", "4"], ["000007", "9", "1", "4"]]


def test_locate_what_is_not_there(index):
    """A key that no sample has is told with those near to it, after what was found; the exit code is 1."""
    code, out, err = run("locate", index, "s1-002", "s1-0002", "zebra")
    assert code == 1
    assert out.split()[-5:-1] == ["s1-002", "5", "1", "2"]
    assert "no sample has the key 's1-0002' (near: 's1-002'" in err
    assert "no sample has the key 'zebra'" in err
    told = json.loads(run("locate", index, "S2-001", "--json")[1])
    assert told[0]["found"] == []
    assert "s2-001" in told[0]["near"]


def test_keys_are_found_in_the_text_of_all(tmp_path):
    """A key is not found within another one, across two, or where it only begins; as the table itself says."""
    names = ["ab", "abc", "c", "cab", "ab", "b"]
    path = write_tar(tmp_path / "x.tar", [(f"{name}.txt", b"") for name in names])
    reader = AutoProvider(cache_dir=None).open(Shard(url=path, nsamples=None))
    for key in (*names, "a", "bc", "abab", "cc"):
        assert list(rows_of(reader.table, key)) == reader.table.rows_of(key)
    assert "abc" in near_keys(reader.table, "abcd")
    assert "cab" in near_keys(reader.table, "xcab")
    assert near_keys(reader.table, "zzz") == set()
    reader.close()


# --- what is remote


def test_remote_shards_are_not_fetched_unasked(tmp_path, index):
    """What the index knows costs nothing; one shard is fetched if it must be, and more of them only with --fetch."""
    with serve(tmp_path / "data") as server:
        url, cache = f"{server.url}/index.json", {"WIDS_CACHE": str(tmp_path / "cache")}
        assert "--fetch downloads it" in run_ok("info", url, env=cache)
        run_ok("ls", url, "--shards", env=cache)
        assert not [path for path in server.requests if path.endswith(".tar")]
        code, _, err = run("locate", url, "s2-001", env=cache)
        assert code == 1
        assert "s1.tar: to look into it, it must be fetched, and 2 shards of the index are not here" in err
        assert "; --fetch allows that, --cache-dir says where they are" in err
        assert "s0-002" in run_ok("show", url, "2", env=cache)  # it is in the cache by now
        assert run_ok("locate", url, "s2-001", "--fetch", env=cache).split()[-4:-1] == ["8", "2", "1"]
        assert "s0-000: .txt" in run_ok("info", url, env=cache)


def test_tables_beside_remote_shards(tmp_path):
    """Where tables are published beside the shards, keys and fields come from them, and samples by byte ranges."""
    server = Server()
    server.has_ranges = True
    try:
        rows = []
        for k in range(3):
            path = write_shard(tmp_path / f"s{k}.tar", 4, first=4 * k)
            reader = AutoProvider(cache_dir=None).open(Shard(url=path, nsamples=None))
            server.add(f"/s{k}.tar.widx", reader.table.to_bytes())
            reader.close()
            data = (tmp_path / f"s{k}.tar").read_bytes()
            server.add(f"/s{k}.tar", data)
            rows.append({"url": f"s{k}.tar", "nsamples": 4, "filesize": len(data)})
        url = server.add("/index.json", json.dumps({"wids_version": 1, "shardlist": rows}).encode())
        cache = {"WIDS_CACHE": str(tmp_path / "cache")}
        told = [json.loads(line) for line in run_ok("ls", url, "--json", env=cache).splitlines()]
        assert [sample["key"] for sample in told] == [f"s{k}-00{row}" for k in range(3) for row in range(4)]
        assert run_ok("locate", url, "s2-003", env=cache).split()[-4:-1] == ["11", "2", "3"]
        assert not [path for path in server.requests if path.endswith(".tar")]
        assert run("cat", url, "11", "txt", env=cache)[:2] == (0, "text 11")
        assert not os.path.exists(tmp_path / "cache")
    finally:
        server.close()


def part_files(directory):
    """Downloads under way."""
    return [name for name in files_in(directory) if name.endswith(".part")]


def test_a_fetch_is_shown_on_a_terminal(tmp_path, index):
    """While a shard comes, a terminal shows so; afterwards what is left is the answer."""
    with serve(tmp_path / "data") as server:
        code, shown = run_on_terminal(
            "cat", f"{server.url}/index.json", "0", "txt", env={"WIDS_CACHE": str(tmp_path / "cache")}
        )
    assert code == 0
    assert "text 0" in shown
    assert "\x1b[2K" in shown  # the bar's line, erased


def test_sigterm_leaves_nothing_half(tmp_path):
    """A command that is ended while it fetches a shard takes its part file along."""
    server = Server()
    try:
        write_shard(tmp_path / "s0.tar", 50)
        server.add("/s0.tar", (tmp_path / "s0.tar").read_bytes(), server.gate())
        rows = [{"url": "s0.tar", "nsamples": 50}]
        url = server.add("/index.json", json.dumps({"wids_version": 1, "shardlist": rows}).encode())
        with spawn("show", url, "0", env={"WIDS_CACHE": str(tmp_path / "cache")}) as process:
            wait_until(lambda: part_files(tmp_path / "cache") or process.poll() is not None)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, out) == (143, "")
        assert "Traceback" not in err
        assert not part_files(tmp_path / "cache")
    finally:
        server.close()


# --- wrong input


@pytest.mark.parametrize(
    "command", [("info",), ("ls",), ("show", "0"), ("cat", "0", "txt"), ("locate", "k"), ("when", "0")]
)
def test_wrong_input_is_a_sentence(tmp_path, command):
    """A path that is nothing, a directory, a file that is no JSON, a tar that is none: a line, exit code 1."""
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "x.tar").write_bytes(b"no tar" * 1000)
    (tmp_path / "d").mkdir()
    name, *rest = command
    for place, words in ((tmp_path / "none.json", "does not exist"), (tmp_path / "d", "there are no .tar files"),
                         (tmp_path / "x.json", "not valid JSON"), (tmp_path / "x.tar", "x.tar")):  # fmt: skip
        code, out, err = run(name, place, *rest)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert words in err
        assert err.startswith("wids: ")


def test_counts_that_are_wrong(tmp_path):
    """An index that promises another number of samples than a shard holds is told where the shard is opened."""
    write_shard(tmp_path / "s.tar", 3)
    rows = [{"url": "s.tar", "nsamples": 4}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": rows})
    assert "holds 3 samples, and the index says 4" in complaint(1, "show", index, "0")


def test_shards_without_counts_elsewhere(tmp_path):
    """Remote tars without an index are not fetched to be counted; one alone is."""
    write_index(tmp_path, (2, 2))
    with serve(tmp_path) as server:
        cache = {"WIDS_CACHE": str(tmp_path / "cache")}
        assert "make an index" in complaint(1, "ls", f"{server.url}/s{{0..1}}.tar", env=cache)
        assert run_ok("ls", f"{server.url}/s0.tar", env=cache).count("\n") == 3


@pytest.mark.parametrize("command", ["info", "ls", "show", "cat", "locate", "at", "when"])
def test_help_teaches(command):
    """Each command's help has an example."""
    code, words, _ = run(command, "--help")
    assert code == 0
    assert "Example" in words
    assert f"wids {command} " in words.partition("Example")[2]


# --- data sets of the Hub by name

HUB = "hf://datasets/org"


@pytest.fixture
def hub(stand_in):
    """Repositories that open, and such that do not."""
    shard = pack([("a.txt", b"1"), ("b.txt", b"2")])
    for name, files in {
        "set": {"train-0.tar": shard, "train-1.tar": shard, "val-0.tar": shard},
        "gated": {"a.tar": shard},
        "empty": {".gitattributes": b""},
        "parquet": {"README.md": b"# x", "data/a.parquet": b"x"},
        "files": {"a.txt": b"x"},
        "gz": {"a.tar.gz": b"\x1f\x8b"},
    }.items():
        stand_in.put(files, f"datasets/org/{name}")
    stand_in.repositories["datasets/org/gated"].is_gated = True
    return stand_in


@pytest.mark.parametrize("command", ["info", "verify"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", r"there is no data set org/missing at http\S+, or it is private and no token was given; check the"),
        ("gated", r"the repository is gated; accept its terms at http\S+/datasets/org/gated, and log in \(hf auth"),
        ("set@odd", r"datasets/org/set has no revision odd, or .*; check the name"),
        (
            "set?split=odd",
            r"split=odd: there is no split 'odd'; its splits and .*: train \(2\), validation \(1\); choose",
        ),
        ("set?split", r"only \?split=SPLIT or \?config=CONFIG&split=SPLIT may follow the name of a data set"),
        ("empty", "this repository is empty; upload shards"),
        ("parquet", r"no \.tar files .* wids pack 'hf://datasets/org/parquet/\*\*/\*\.parquet' --field .jpg=COLUMN -o"),
        ("files", r"no \.tar files in this repository; its files end in \.txt; wids pack makes shards"),
    ],
)
def test_a_data_set_that_cannot_be_opened(hub, command, name, words):
    """One sentence says why, and what to do; the exit code is that of any error."""
    code, out, err = run(command, f"{HUB}/{name}")
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"wids: {re.escape(HUB)}/.*{words}.*\n", err), err


def test_commands_name_the_split(hub, tmp_path):
    """As it was given, or as the address of the page says it; and it is packed as any other data set."""
    for given in (f"{HUB}/set?split=val", "https://huggingface.co/datasets/org/set?split=val"):
        assert json.loads(run_ok("info", given, "--json"))["samples"] == 2
    assert run_ok("verify", f"{HUB}/set?split=val").startswith(f"{HUB}/set?split=val: 1 shard of")
    assert "taken as a dataset: 2 samples" in run_ok("pack", f"{HUB}/set?split=val", "-o", tmp_path / "p" / "%03d.tar")


def test_a_terminal_sees_the_count_of_remote_shards(hub):
    """A bar, and then what would spare others the count; in a pipe, no bar."""
    code, shown = run_on_terminal("info", f"{HUB}/set")
    assert code == 0
    assert "counting samples of shards" in shown
    assert "2/2" in shown
    assert f"(wids index create '{HUB}/set' --upload)" in shown
    assert "counting" not in run("info", f"{HUB}/set?split=val")[2]
