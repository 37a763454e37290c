"""Sources by name: of which kind they are, what goes together, and what is asked of one that it has not."""

import os
import re

import pytest

from tests.support.packing import pack, put
from wids.errors import InputError, WidsError


@pytest.mark.parametrize(
    ("name", "parameter", "given", "words"),
    [
        ("in", "fields", [".a=b"], "fields is for manifests, and the source is taken as files"),
        ("in", "classes", "names", "classes is for class folders and manifests, and the source is taken as files"),
        (
            "r.csv",
            "fields",
            [],
            "fields: say which columns of the table become which fields, like .jpg=COLUMN and .cls=COLUMN",
        ),
        (
            "r.csv",
            "fields",
            [".a=b", "a=c"],
            "fields=['.a=b', 'a=c']: give different extensions; one field would hide the other",
        ),
        ("in", "keep_fields", ["a", ""], "keep_fields: '' has an empty extension; give them like 'jpg;png'"),
    ],
)
def test_a_program_is_told_its_argument(tmp_path, name, parameter, given, words):
    """The library names the parameter, in words and as an attribute; only the command names an option."""
    put(tmp_path, {"in/a.txt": "x", "r.csv": "b\n1\n"})
    with pytest.raises(InputError) as caught:
        pack(tmp_path / name, tmp_path / "out/x-%d.tar", **{parameter: given})
    assert (str(caught.value), caught.value.parameter) == (words, parameter)


def test_an_outcome_says_what_was_packed(tmp_path):
    """A program learns the files that a glob stands for, and their kind."""
    put(tmp_path, {"r1.csv": "b\n1\n", "r2.csv": "b\n2\n"})
    outcome = pack(f"{tmp_path}/r*.csv", tmp_path / "out/x-%d.tar", fields=[".cls=b"], engine="threads")
    assert (outcome.form, outcome.sources) == ("manifest", [f"{tmp_path}/r1.csv", f"{tmp_path}/r2.csv"])


@pytest.mark.parametrize(
    ("source", "options", "words", "hint"),
    [
        ("in/a.txt", {}, "in/a.txt: is no folder, manifest", "form"),
        ("in", {"selected": slice(5, None)}, "there are no samples to pack in this range", None),
        ("in", {"key": "b"}, "key is for manifests, and the source is taken as files", "manifest"),
        ("in/r.csv", {"fields": [".a"]}, "'.a' does not say which column", None),
        ("in/r.csv", {"fields": [".a=c"]}, "there is no column 'c'", None),
        ("in", {"output": "file/x-%d.tar"}, "check the path", None),
        ("in/broken.json", {}, "not valid JSON", None),
        ("empty", {}, "empty: there are no files in it", None),
        ("in/x.tgz", {}, "gzip", None),
        ("in", {"form": "folder"}, "no images in class folders", "format_files"),
        ("r.csv.gz", {}, "r.csv.gz: is compressed; unpack it first", None),
        ("r.xlsx", {}, "r.xlsx: is a spreadsheet; store it as CSV, in UTF-8", None),
        ("h", {}, "key 'c/a.b' has a dot in its basename, where the extension would begin", "number_keys"),
    ],
)
def test_what_cannot_be_packed(tmp_path, source, options, words, hint):
    """It is one sentence, with what helps if an option does, and nothing is written."""
    put(tmp_path, {"in/a.txt": "x", "in/r.csv": "b\n1\n", "in/broken.json": "{", "file": "", "h/c/a.b.jpg": "x"})
    put(tmp_path, {"in/x.tgz": b"\x1f\x8b" + bytes(600), "r.csv.gz": "x", "r.xlsx": "x"})
    os.makedirs(tmp_path / "empty")
    options = {"output": "o/x-%d.tar", **options}
    with pytest.raises(WidsError, match=re.escape(words)) as caught:
        pack(tmp_path / source, tmp_path / options.pop("output"), **options)
    assert caught.value.hint == hint
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a.csv", "b.csv"), "b.csv: has other columns than a.csv (only b.csv has 'more'); make them agree"),
        (("a.csv", "c.csv"), "c.csv: there is no column 'x'; it has y"),
        (("a.csv", "./a.csv"), "a.csv: is named twice"),
        (("*.tsv",), "*.tsv: there are no files with such names"),
        (("a.csv", "gone.csv"), "gone.csv: does not exist"),
        (("a.csv", "d"), "d: is taken as files key.ext, and a.csv as a manifest; pack one kind"),
        (("d", "e"), "e: several folders are not packed at once"),
        (("i.json", "j.json"), "j.json: several indexes are one by `wids index merge`"),
        (("f.csv", "f2.csv"), "f.csv: has no rows"),
    ],
)
def test_sources_that_do_not_go_together(tmp_path, monkeypatch, names, words):
    """They are refused by name."""
    put(tmp_path, {"a.csv": "x\n1\n", "b.csv": "x,more\n1,2\n", "c.csv": "y\n1\n", "d/1.txt": "", "e/1.txt": ""})
    put(tmp_path, {"i.json": "{}", "j.json": "{}", "f.csv": "x\n", "f2.csv": "x\n"})
    monkeypatch.chdir(tmp_path)
    fields = [] if names[0] in ("d", "i.json") else [".txt=x"]
    with pytest.raises(WidsError) as caught:
        pack(names, "out/x-%d.tar", fields=fields)
    assert words in str(caught.value).replace(f"{tmp_path}/", "")
