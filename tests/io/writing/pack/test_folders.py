"""Folders to pack: files by key, images by class, and which of the two a folder is."""

import os
import re

import pytest

from tests.support.packing import keys_of, labels_of, list_files, list_images, pack, pack_files, pack_rows, put, shown
from wids.errors import InputError, SampleError, WidsError
from wids.writing.pack import folders


def test_files(tmp_path):
    """Files of one key are one sample, in order of keys and extensions; hidden ones, and such without one, not."""
    put(
        tmp_path / "in",
        {"b.txt": "1", "a/x.seg.png": "2", "a/x.txt": "3", "a.1/y.txt": "4", ".z.txt": "5", "README": "6"},
    )
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert shown(outcome.index) == [
        ("a.1/y", {".txt": b"4"}),
        ("a/x", {".seg.png": b"2", ".txt": b"3"}),
        ("b", {".txt": b"1"}),
    ]
    assert (outcome.samples, outcome.ignored) == (3, 1)


def test_listing_follows_links_but_not_in_circles(tmp_path):
    """A link to a folder is followed; one to a folder above it does not go round for ever."""
    put(tmp_path / "in", {"a/0.txt": "0"})
    os.symlink(tmp_path / "in", tmp_path / "in/a/up")
    os.symlink(tmp_path / "in/a", tmp_path / "in/b")
    outcome = pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert keys_of(outcome.index) == ["a/0", "b/0"]


def test_files_of_no_bytes_are_told(tmp_path):
    """An image or a label of no bytes cannot be meant; an empty text can."""
    put(tmp_path / "in", {"a/1.jpg": "", "a/2.jpg": "x", "a/2.txt": ""})
    with pytest.raises(SampleError, match=r"a/1.jpg: is empty, which no .jpg is"):
        pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar")
    assert pack_files(tmp_path / "in", tmp_path / "out/f-%d.tar", skips_errors=True).samples == 1
    put(tmp_path, {"r.csv": "p\nin/a/1.jpg\n"})
    with pytest.raises(SampleError, match=r"r.csv, line 2: .*a/1.jpg: is empty, which no .jpg is"):
        pack_rows(tmp_path / "r.csv", tmp_path / "out/m-%d.tar", ".jpg=p")


@pytest.mark.parametrize(("names", "words"), [("0 1 10 2", "folder 10 is class 2"), ("1 2", "folder 1 is class 0")])
def test_class_folders_with_numbers_for_names(tmp_path, names, words):
    """They are numbered as all folders are, by their texts, and it is said where the numbers are others."""
    for name in names.split():
        put(tmp_path, {f"h/{name}/x.jpg": "x"})
    (note,) = list_images(tmp_path / "h").notes
    assert words in note
    put(tmp_path, {f"good/{k:02d}/x.jpg": "x" for k in range(11)})
    assert list_images(tmp_path / "good").notes == []


def test_what_systems_leave_in_folders_is_no_class(tmp_path):
    """Thumbnails and copies of attributes are hidden files, whatever their names."""
    put(tmp_path, {"h/cat/0.jpg": "x", "h/cat/@eaDir/0.jpg/THUMB.jpg": "x", "h/__MACOSX/cat/0.jpg": "x"})
    (tmp_path / "h/lost+found").mkdir()
    listing = list_images(tmp_path / "h")
    assert listing.info == {"classes": ["cat"]}
    assert [item.key for item in listing.items] == ["cat/0"]


def test_keys_in_two_forms_of_unicode_are_told(tmp_path):
    """Files of one sample that a Mac and another machine named are two samples, and it is said."""
    put(tmp_path, {"h/\u00e9.txt": "x", "h/e\u0301.cls": "1", "h/a.txt": "x", "h/a.cls": "1"})
    listing = list_files(tmp_path / "h")
    assert len(listing.items) == 3
    (note,) = listing.notes
    assert "1 key looks like another one, in a different form of Unicode (first '\\xe9')" in note


@pytest.mark.parametrize(
    "names",
    [("a/0.jpg", "a/0.json"), ("a/0.jpg", "a/0.txt", "b/1.jpg", "b/1.txt"), ("0.jpg", "1.jpg"), ("a/0.wav", "a/0.txt")],
)
def test_images_with_files_of_their_names_are_files(tmp_path, names):
    """So are images in no folder, and what is no image."""
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    assert folders.guess_format(str(tmp_path / "h")) == "files"


@pytest.mark.parametrize("stray", ["h/cat/notes.txt", "h/cat/1.json", "h/cat/9.heic", "h/readme.md"])
def test_a_stray_file_does_not_undo_classes(tmp_path, stray):
    """Folders of images stay class folders, and the file that is left out is named."""
    put(tmp_path, {f"h/{name}/{k}.jpg": "x" for name in ("cat", "dog") for k in range(2)} | {stray: "x"})
    outcome = pack(tmp_path / "h", tmp_path / "out/h-%d.tar")
    assert (outcome.form, outcome.samples, outcome.ignored_files) == ("folder", 4, [f"{tmp_path}/{stray}"])
    assert sorted(labels_of(outcome.index)) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("names", "words", "hint"),
    [
        (
            ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "0.jpg"),
            "h/0.jpg: is in no class folder; put it into one, ",
            "skip_errors",
        ),
        (
            ("images/0.jpg", "images/1.jpg", "labels/0.txt", "labels/1.txt"),
            "h: holds 2 images in folders (images/0.jpg), 2 other files in folders (labels/0.txt); say whether ",
            "format_either",
        ),
        (
            ("a/0.jpg", "a/0.txt", "a/1.jpg", "a/1.txt", "b/2.jpg", "b/3.jpg"),
            "h: holds 4 images in folders (a/0.jpg), 2 of them with other files of the same name, 2 other files in ",
            "format_either",
        ),
        (
            ("a/0.jpg", "a/1.jpg", "2.jpg", "3.jpg"),
            "h: holds 2 images in folders (a/0.jpg), 2 images in no folder; say whether ",
            "format_either",
        ),
    ],
)
def test_what_may_be_classes_or_files_is_asked(tmp_path, names, words, hint):
    """Neither labels nor files are dropped by a guess."""
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    with pytest.raises(WidsError) as caught:
        pack(tmp_path / "h", tmp_path / "out/x-%d.tar")
    assert str(caught.value).startswith(f"{tmp_path}/{words}")
    assert caught.value.hint == hint
    assert not (tmp_path / "out").exists()
    assert pack(tmp_path / "h", tmp_path / "out/x-%d.tar", form="files").form == "files"


@pytest.mark.parametrize(
    ("names", "form", "words"),
    [
        (
            ("train/cat/0.jpg", "val/cat/0.jpg"),
            "auto",
            "h: train, val are parts of a dataset, not classes; did you mean ",
        ),
        (("val/0.jpg", "Train/0.jpg"), "auto", "h: Train, val are parts of a dataset, not classes; did "),
        (("train/cat/0.jpg", "val/cat/0.jpg"), "folder", "h: train, val are parts of a dataset, not "),
        (
            ("train/cat/0.jpg",),
            "auto",
            "h: train is a part of a dataset, not a class; did you mean h/train? If this is ",
        ),
        (
            ("in/cat/0.jpg", "in/dog/0.jpg"),
            "auto",
            "h: in is the only folder in it, and has folders with images in it; ",
        ),
    ],
)
def test_parts_of_a_dataset_are_no_classes(tmp_path, names, form, words):
    """A folder with train and val in it, and one around the class folders, are refused: it is said what is meant."""
    put(tmp_path / "h", dict.fromkeys(names, "x"))
    with pytest.raises(InputError) as caught:
        pack(tmp_path / "h", tmp_path / "out/x-%d.tar", form=form)
    told = str(caught.value).replace(f"{tmp_path}/", "")
    assert told.startswith(words)
    assert "did you mean h/" in told
    put(tmp_path, {"classes.txt": "train\nval\nTrain\nin\n"})
    pack(tmp_path / "h", tmp_path / "out/x-%d.tar", form=form, classes=f"{tmp_path}/classes.txt")


def test_two_folders_number_their_classes_alike(tmp_path):
    """What val lacks does not shift the rest: by train's index, and by an empty folder."""
    put(tmp_path, {"train/cat/0.jpg": "x", "train/dog/0.jpg": "x", "train/eel/0.jpg": "x"})
    put(tmp_path, {"val/cat/1.jpg": "x", "val/eel/1.jpg": "x"})
    first = pack(tmp_path / "train", tmp_path / "t/train-%d.tar").index
    outcome = pack(tmp_path / "val", tmp_path / "v/val-%d.tar", classes=first)
    assert sorted(labels_of(outcome.index)) == [0, 2]
    (tmp_path / "val/dog").mkdir()
    listing = list_images(tmp_path / "val")
    assert listing.info == {"classes": ["cat", "dog", "eel"]}
    assert listing.notes == [f"{tmp_path}/val: 1 of 3 classes has no images; it is numbered all the same (dog)"]


def test_names_with_dots_that_are_one_sample_are_noted(tmp_path):
    """Pictures that a number after a dot tells apart become one sample, and the note shows two of them."""
    put(tmp_path / "h", {"20.00.wav": "x", "20.25.wav": "y", "21.00.wav": "z"})
    outcome = pack(tmp_path / "h", tmp_path / "o/x-%d.tar")
    assert outcome.samples == 2
    [note] = [note for note in outcome.notes if "one sample" in note]
    assert "20.00.wav and 20.25.wav are one sample, because a key ends at the first dot of a name" in note


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_the_table_of_an_imagefolder_is_no_sample(tmp_path, name):
    """What it says of pictures is packed by that table, which the error names; asked for files, it is left out."""
    text = '{"file_name": "0.jpg", "text": "a"}\n' if name.endswith("jsonl") else "file_name,text\n0.jpg,a\n"
    put(tmp_path / "h", {"0.jpg": "x", "1.jpg": "y", name: text})
    with pytest.raises(InputError, match=rf"wids pack {tmp_path}/h/{name} --field \.jpg=file_name"):
        pack(tmp_path / "h", tmp_path / "o/x-%d.tar")
    assert not (tmp_path / "o").exists()
    outcome = pack(tmp_path / "h", tmp_path / "o/x-%d.tar", form="files")
    assert (outcome.samples, outcome.ignored, outcome.ignored_files) == (2, 1, [f"{tmp_path}/h/{name}"])
    assert "is a table of the files beside it" in outcome.notes[0]
    outcome = pack(tmp_path / "h" / name, tmp_path / "p/x-%d.tar", fields=[".jpg=file_name", ".txt=text"])
    assert shown(outcome.index) == [("000000000", {".jpg": b"x", ".txt": b"a"})]


def test_a_table_without_file_names_is_a_file(tmp_path):
    """Other files that are called metadata.csv are what they were."""
    put(tmp_path / "h", {"0.wav": "x", "metadata.csv": "0|a text\n"})
    outcome = pack(tmp_path / "h", tmp_path / "o/x-%d.tar")
    assert (outcome.samples, outcome.ignored) == (2, 0)


def test_ignored_files_are_counted(tmp_path):
    """The first thousand of them have their paths in the outcome, and all are in the number."""
    put(tmp_path / "in", {"a/0.jpg": "x", **{f"a/{k}.txt": "x" for k in range(1100)}})
    listing = list_images(tmp_path / "in")
    assert (listing.ignored, len(listing.ignored_files)) == (1100, 1000)
    assert {*listing.ignored_files} <= {f"{tmp_path}/in/a/{k}.txt" for k in range(1100)}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["train.csv"],
            "holds train.csv, and no other files; pack its rows: wids pack {}/train.csv --field .jpg=COLUMN",
        ),
        (["data.jsonl", "README.md", ".x"], "data.jsonl, and no other files; pack its rows: wids pack {}/data.jsonl"),
        (["a/x.TSV", "b/x.ndjson", "c/x.csv"], "holds a/x.TSV (and 2 more), and no other files; pack its rows"),
        (["x.csv", "y.parquet"], "holds x.csv (and 1 more), and no"),
        (["x.csv.gz", "y.jsonl.zst"], "holds x.csv.gz (and 1 more), and no"),
    ],
)
def test_a_folder_of_tables_is_not_packed_file_by_file(tmp_path, files, words):
    """Their rows may be meant: the error says how these are packed, and how the files are."""
    put(tmp_path / "h", dict.fromkeys(files, "x,y\n1,2\n"))
    with pytest.raises(InputError, match=re.escape(words.format(tmp_path / "h"))) as caught:
        pack(tmp_path / "h", tmp_path / "o/x-%d.tar")
    assert caught.value.hint == "format_files_each"
    assert not (tmp_path / "o").exists()
    assert pack(tmp_path / "h", tmp_path / "o/x-%d.tar", form="files").form == "files"
    put(tmp_path / "h", {"0.json": "{}"})
    assert pack(tmp_path / "h", tmp_path / "p/x-%d.tar").form == "files"
