"""Folders that Hugging Face's ``datasets`` saved."""

import json
from pathlib import Path

import pytest

from tests.support.foreign import FEATURES, save_dataset
from tests.support.packing import PICTURES, pack, picture_rows, put, shown
from wids.errors import InputError
from wids.jobs.runner import RunOptions


def test_a_saved_dataset(tmp_path):
    """Its rows are packed in their order, without the package that saved it; what else there is, is JSON."""
    folder = save_dataset(tmp_path / "saved", picture_rows())
    outcome = pack(folder, tmp_path / "out/x-%d.tar", samples=4, engine=RunOptions(jobs=2))
    assert outcome.facts[0] == "fields of its columns: .png=image .cls=label .txt=text"
    assert shown(outcome.index) == [
        (f"{k:09d}", {".png": data, ".cls": b"%d" % (k % 2), ".txt": b"abcdefg"[k : k + 1]})
        for k, data in enumerate(PICTURES)
    ]
    outcome = pack(folder, tmp_path / "named/x-%d.tar", classes=f"{folder}/dataset_info.json", form="manifest")
    assert json.loads(Path(outcome.index).read_text())["info"]["classes"] == ["cat", "dog"]
    table = picture_rows(mask=picture_rows()["image"], score=[k / 2 for k in range(7)])
    wide = save_dataset(tmp_path / "wide", table, features={**FEATURES, "mask": {"_type": "Image"}})
    outcome = pack(wide, tmp_path / "wide-out/x-%d.tar")
    key, fields = shown(outcome.index)[3]
    assert (key, {*fields}) == ("000000003", {".png", ".mask.png", ".cls", ".json"})
    assert json.loads(fields[".json"]) == {"text": "d", "score": 1.5}
    outcome = pack(folder, tmp_path / "own/x-%d.tar", fields=[".jpg=image"])  # one's own have precedence
    assert shown(outcome.index)[6] == ("000000006", {".jpg": PICTURES[6]})


def test_a_saved_dataset_that_cannot_be_packed(tmp_path):
    """What would be packed in another order, under a wrong name or out of another folder is an error that helps."""
    sounds = save_dataset(tmp_path / "sounds", picture_rows(), features={"image": {"_type": "Audio"}})
    with pytest.raises(
        InputError, match=r"column 'image' holds bytes that are no pictures \(Audio\).* like \.wav=image"
    ):
        pack(sounds, tmp_path / "out/x-%d.tar")
    files = [{"filename": "data-b.arrow"}]
    states = ({}, [], {"_data_files": []}, {"_data_files": [{"filename": "../b.arrow"}]})
    for k, state in enumerate((*states, {"_data_files": files, "_indices_data_files": files})):
        folder = save_dataset(tmp_path / str(k), picture_rows(), state=state)
        with pytest.raises(InputError, match=r"names no Arrow files with its rows in order; save it again"):
            pack(folder, tmp_path / "out/x-%d.tar")
    put(tmp_path / "0", {"state.json": "{"})
    with pytest.raises(InputError, match=r"state\.json"):
        pack(tmp_path / "0", tmp_path / "out/x-%d.tar")
