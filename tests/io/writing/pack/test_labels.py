"""Labels and classes: numbers that texts say, words in order, lists of classes, and what is neither."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.packing import labels_of, list_images, pack, pack_rows, put
from wids.errors import InputError, SampleError, WidsError
from wids.writing.pack.labels import read_classes


def pack_labels(directory, labels, *, kind="csv", **settings):
    """Pack rows of texts with these labels; in this process."""
    path = directory / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["x"] * len(labels), "label": labels}), path)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps({"text": "x", "label": label}) for label in labels))
    else:
        path.write_text("\n".join(["text,label", *(f"x,{label}" for label in labels)]))
    return pack_rows(path, directory / "out/x-%d.tar", ".txt=text", ".cls=label", **settings)


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("csv", [f"{k}.0" for k in range(12)], [*range(12)]),
        ("csv", ["0", " 2", "10 ", "02", "-1", "+3", "1e1", "4."], [0, 2, 10, 2, -1, 3, 10, 4]),
        ("csv", [*range(12)], [*range(12)]),
        ("jsonl", [0, 1.0, "2", "10", True], [0, 1, 2, 10, 1]),
        ("parquet", [0.0, 10.0, 2.0], [0, 10, 2]),
        ("parquet", [b"10", b"2"], [10, 2]),
        ("csv", ["b", " a", "b ", "10a"], [2, 1, 2, 0]),
        ("csv", ["\uff12", "\u0661\u0660", "3"], [2, 10, 3]),
        ("csv", [f"{2**70}", f"{2**53}.0"], [2**70, 2**53]),
    ],
)
def test_labels_are_the_numbers_that_they_say(tmp_path, kind, labels, expected):
    """Whole floats and padded numbers are numbers; only a column of words alone is numbered, in sorted order."""
    outcome = pack_labels(tmp_path, labels, kind=kind)
    assert labels_of(outcome.index) == expected
    assert outcome.facts == (
        ["label: 3 classes, numbered in sorted order from 0 (10a, a, b)"] if " a" in labels else []
    )


@pytest.mark.parametrize(
    ("labels", "row", "words"),
    [
        ([*range(7), "unknown", *range(8, 12)], 7, "'unknown' is a word, and most labels are numbers"),
        ([0, "2.5", 1], 1, "'2.5' is not a whole number"),
        ([0, "", 1], 1, "column 'label' is empty"),
        (["a", "NaN", "b"], 1, "column 'label' is empty"),
        (["cat", "dog", "7", "cat"], 2, "'7' is a number, and most labels are words"),
        ([0, 1, "x" * 5000], 2, f"'{'x' * 100}'... (4,900 more) is a word"),
        ([0, 1, "1.2345678901234568e+18"], 2, "is a float, too large to have all its digits"),
        ([0, ".5", 1], 1, "'.5' is not a whole number"),
        ([0, "1e-05", 1], 1, "'1e-05' is not a whole number"),
        ([0, '"1,000"', 2], 1, "'1,000' is several values, or a number with separators"),
        (["cat", "1|2", "dog"], 1, "'1|2' is several values"),
        (["cat", "1 000", "dog"], 1, "'1 000' is several values"),
        (["cat", "\"['cat', 'dog']\"", "dog"], 1, "is several values"),
        (["cat", "[]", "dog"], 1, "is several values"),
    ],
)
def test_a_label_that_does_not_fit(tmp_path, labels, row, words):
    """It is an error that names its row, and the others keep their numbers where it is left out."""
    with pytest.raises(SampleError) as caught:
        pack_labels(tmp_path, labels)
    assert f"rows.csv, line {row + 2}: " in str(caught.value)
    assert words in str(caught.value)
    assert not os.path.exists(tmp_path / "out")
    outcome = pack_labels(tmp_path, labels, skips_errors=True)
    assert [problem.place for problem in outcome.skipped] == [f"line {row + 2}"]
    rest = [label for k, label in enumerate(labels) if k != row]
    words = sorted(label for label in {*rest} if isinstance(label, str))
    assert labels_of(outcome.index) == [words.index(label) if label in words else label for label in rest]


def test_labels_that_differ_in_case_alone(tmp_path):
    """One of them is hardly meant, so they are no two classes, unless a list says so."""
    with pytest.raises(InputError, match="the classes 'Cat' and 'cat' differ in case alone"):
        pack_labels(tmp_path, ["cat", "Cat", "dog"])
    put(tmp_path, {"h/cat/1.jpg": "x", "h/Cat/1.jpg": "x"})
    with pytest.raises(InputError, match="the classes 'Cat' and 'cat' differ in case alone"):
        list_images(tmp_path / "h")


@pytest.mark.parametrize(
    ("one", "other"),
    [("caf\u00e9", "cafe\u0301"), ("cat", "cat\u200b"), ("big cat", "big  cat"), ("\uff21", "A"), ("x\u00a0y", "x y")],
)
def test_classes_that_look_alike(tmp_path, one, other):
    """One of them is hardly meant; both are written so that the difference is seen, and one that a list lacks, too."""
    with pytest.raises(InputError, match="look alike; make them one") as caught:
        pack_labels(tmp_path, [one, other, "dog"])
    assert all(ascii(name)[1:-1] in str(caught.value) for name in (one, other))
    put(tmp_path, {f"h/{one}/1.jpg": "x", f"h/{other}/1.jpg": "x"})
    with pytest.raises(InputError, match="look alike"):
        list_images(tmp_path / "h")
    with pytest.raises(SampleError, match="is none of the 2 classes") as caught:
        pack_labels(tmp_path, [one], classes=[other, "dog"])
    assert str(caught.value).endswith(f"; it looks like {other!a}, and is {one!a}")
    with pytest.raises(InputError, match="; it looks like"):
        list_images(tmp_path / "h", classes=[one])
    assert labels_of(pack_labels(tmp_path, [other, one], classes=[one, other]).index) == [1, 0]


@pytest.mark.parametrize(("labels", "expected"), [(["True", "true", "False"], [1, 1, 0]), (["TRUE", "True"], [1, 1])])
def test_truth_is_one(tmp_path, labels, expected):
    """True and False in a CSV are what they are in JSON, also where one of them is missing."""
    outcome = pack_labels(tmp_path, labels)
    assert labels_of(outcome.index) == expected
    assert outcome.facts == ["label: 2 classes, numbered in sorted order from 0 (False, True)"]


def test_several_labels_in_a_text_are_told(tmp_path):
    """A class whose parts are classes is one of its own, which is said."""
    (note,) = pack_labels(tmp_path, ["cat|dog", "cat", "dog", "a-b"]).notes
    assert note.startswith("label: 'cat|dog' is a class of its own, beside its parts")
    assert pack_labels(tmp_path, ["cat|dog", "cat"], overwrite=True).notes == []


def test_lines_of_a_list_end_where_text_files_end_them(tmp_path):
    """Other marks of Unicode, and spaces around, change no number."""
    put(tmp_path, {"names.txt": "a\u2028b\rc\x0bd \r\n e\n"})
    assert read_classes(str(tmp_path / "names.txt")) == ["a\u2028b", "c\x0bd", "e"]
    with pytest.raises(InputError, match=r"ids.csv: is a table; a list of classes is a text with a name a line"):
        read_classes(str(tmp_path / "ids.csv"))


LISTS = {
    "names.txt": "\ufeffeel\r\ncat\ndog\n\n",
    "names.json": '["eel", "cat", "dog"]',
    "index.json": '{"info": {"classes": ["eel", "cat", "dog"]}, "shardlist": []}',
    "top.json": '{"classes": ["eel", "cat", "dog"]}',
}


@pytest.mark.parametrize("name", LISTS)
def test_classes_by_a_list(tmp_path, name):
    """Folders and words have the numbers that a list, or another index, gives; those that are not there count."""
    put(tmp_path, {**LISTS, "in/dog/0.jpg": "x", "in/cat/1.jpg": "x", "rows.csv": "text, label\nx, dog\ny,eel\n"})
    classes = f"{tmp_path}/{name}"
    images = pack(tmp_path / "in", tmp_path / "a/x-%d.tar", classes=classes, keeps_order=True)
    assert images.facts == ["3 classes, numbered as given from 0 (eel, cat, dog)"]
    assert labels_of(images.index) == [1, 2]
    rows = pack(tmp_path / "rows.csv", tmp_path / "b/x-%d.tar", fields=[".txt=text", ".cls=label"], classes=classes)
    assert labels_of(rows.index) == [2, 0]
    for outcome in (images, rows):
        assert json.loads(Path(outcome.index).read_text())["info"] == {"classes": ["eel", "cat", "dog"]}


@pytest.mark.parametrize(
    ("names", "source", "options", "words"),
    [
        ("cat\n", "h", {}, "h/dog: is none of the 1 class (cat)"),
        ("cat\nunknown\n", "rows.csv", {}, "line 3: column 'label': 'dog' is none of the 2"),
        ("cat\ndog\ncat\n", "h", {}, "'cat' is class 0 and class 2"),
        ("cat\n\ndog\n", "h", {}, "class 1 is ''; each is a name"),
        ('["cat", 3]', "h", {}, "class 1 is 3; each is a name"),
        ('{"shardlist": []}', "h", {}, "has no classes"),
        ("", "h", {}, "has no classes"),
        ("[", "h", {}, "is no list of classes that can be read"),
        ("cat\ndog", "h", {"form": "files"}, "classes is for class folders and manifests"),
        ("cat\ndog", "rows.csv", {"fields": [".txt=label"]}, "for one field like .cls=label, and there are 0"),
        ("a\nb", "numbers.csv", {}, "line 4: column 'label': '2' is none of the 2 classes"),
    ],
)
def test_classes_that_do_not_fit(tmp_path, names, source, options, words):
    """A list that is none, and what it lacks, is told, and nothing is written."""
    put(tmp_path, {"h/cat/0.jpg": "x", "h/dog/0.jpg": "x", "names": names, "rows.csv": "label\ncat\ndog\n"})
    put(tmp_path, {"numbers.csv": "label\n0\n1\n2\n"})
    options = {"fields": [".cls=label"] if source.endswith(".csv") else [], **options}
    with pytest.raises(WidsError) as caught:
        pack(tmp_path / source, tmp_path / "out/x-%d.tar", classes=f"{tmp_path}/names", **options)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_classes_of_two_fields(tmp_path):
    """Both are in the index, by their fields."""
    put(tmp_path, {"r.csv": "a,b\nx,red\ny,blue\n"})
    outcome = pack_rows(tmp_path / "r.csv", tmp_path / "out/x-%d.tar", ".cls=a", ".hue.cls=b")
    assert json.loads(Path(outcome.index).read_text())["info"] == {
        "classes": ["x", "y"],
        "classes_of": {".cls": ["x", "y"], ".hue.cls": ["blue", "red"]},
    }
