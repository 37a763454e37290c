"""Which columns a user asks for, by text."""

import pytest

from wids.columns.spec import ColumnRule, ColumnSpec, check_names, parse_spec, size_names
from wids.errors import InputError


def test_what_is_asked_for():
    """Members decoded, keys of JSON objects, texts; each names its column or takes the last word."""
    spec = parse_spec(fields=[".cls=label", "cls2"], jsons=[".json:width, meta.size=size"], texts=[".seg.txt"])
    assert spec.rules == (
        ColumnRule(name="label", extension=".cls", how="field"),
        ColumnRule(name="cls2", extension=".cls2", how="field"),
        ColumnRule(name="width", extension=".json", how="json", keys=("width",)),
        ColumnRule(name="size", extension=".json", how="json", keys=("meta", "size")),
        ColumnRule(name="seg_txt", extension=".seg.txt", how="text"),
    )
    assert spec.extensions == (".cls", ".cls2", ".json", ".seg.txt")
    label, renamed, lenient, text = (
        parse_spec(**asked).rules[0]
        for asked in (
            {"fields": [".cls=label"]},
            {"fields": [".cls=number"]},
            {"fields": [".cls=label"], "missing": "null"},
            {"texts": [".cls=label"]},
        )
    )
    assert label.digest == renamed.digest
    assert len({label.digest, lenient.digest, text.digest}) == 3


def test_properties_of_pictures():
    """Three columns of one member; a name goes before theirs."""
    spec = parse_spec(pictures=[".jpg;.png", ".seg.png=mask"])
    names = ["width", "height", "mode", "mask_width", "mask_height", "mask_mode"]
    assert [rule.name for rule in spec.rules] == names
    assert spec.rules[0] == ColumnRule(name="width", extension=".jpg;.png", how="picture", keys=("width",))
    assert spec.extensions == (".jpg", ".png", ".seg.png")
    spec.check()
    with pytest.raises(InputError, match="give one of width, height, mode"):
        ColumnSpec(rules=(ColumnRule(name="a", extension=".jpg", how="picture", keys=("size",)),)).check()


def test_properties_of_sounds():
    """Three columns of one member, as of pictures."""
    spec = parse_spec(sounds=[".wav;.flac", ".mp3=speech"])
    names = ["duration", "sample_rate", "channels", "speech_duration", "speech_sample_rate", "speech_channels"]
    assert [rule.name for rule in spec.rules] == names
    assert spec.rules[1] == ColumnRule(name="sample_rate", extension=".wav;.flac", how="sound", keys=("sample_rate",))
    spec.check()
    with pytest.raises(InputError, match="give one of duration, sample_rate, channels"):
        ColumnSpec(rules=(ColumnRule(name="a", extension=".wav", how="sound", keys=("width",)),)).check()


def test_properties_of_videos():
    """Six columns of one member, as of pictures."""
    spec = parse_spec(videos=[".mp4;.webm", ".cam.mp4=cam"])
    names = ["width", "height", "frames", "fps", "duration", "codec"]
    assert [rule.name for rule in spec.rules] == [*names, *(f"cam_{name}" for name in names)]
    assert spec.rules[5] == ColumnRule(name="codec", extension=".mp4;.webm", how="video", keys=("codec",))
    spec.check()
    with pytest.raises(InputError, match="give one of width, height, frames, fps, duration, codec"):
        ColumnSpec(rules=(ColumnRule(name="a", extension=".mp4", how="video", keys=("mode",)),)).check()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"fields": ["=label"]}, "names no field"),
        ({"fields": ["."]}, "names no field"),
        ({"jsons": [".json"]}, "names no keys"),
        ({"jsons": [".json:"]}, "names no keys"),
        ({"jsons": [".json:a,,b"]}, "names no keys"),
        ({"jsons": [".json:a..b"]}, "names no keys"),
        ({"fields": [".json:width=width"]}, "':' in an extension; give keys of a JSON object to jsons"),
        ({"texts": [".json:width"]}, "texts: .* give keys of a JSON object to jsons"),
        (
            {"fields": [".cls,.label=l"]},
            "',' in an extension; write it like .cls=label; alternatives are",
        ),
        ({"fields": [".cls=label,.txt=caption"]}, "is more than one column; give a text for each"),
        ({"texts": ["*.txt"]}, "has '\\*' in an extension"),
        ({"jsons": [".json=w:width"]}, "has '=' in an extension; write it like .json:width"),
        ({"fields": [".cls=Key"]}, "would be called 'Key'"),
        ({"fields": [".cls=a"], "texts": [".txt=A"]}, "would be called 'A'"),
        ({"pictures": [".jpg", ".png"]}, "two columns would be called 'mode'"),
        ({"pictures": [".jpg:width"]}, "':' in an extension"),
        ({"sounds": [".wav", ".mp3"]}, "two columns would be called 'channels'"),
        ({"pictures": [".jpg"], "videos": [".mp4"]}, "two columns would be called 'height'"),
        ({"missing": "drop"}, "give one of 'error', 'null'"),
    ],
)
def test_what_cannot_be_asked_for(asked, words):
    """The message has the text; names are told apart without regard to case, as SQL does."""
    with pytest.raises(InputError, match=words):
        parse_spec(**asked)


def test_an_empty_name():
    """Is no name."""
    with pytest.raises(InputError, match="empty"):
        check_names(["a", ""])


def test_names_of_sizes():
    """Words of SQL that need no quotes, in sorted order; one that is taken gets a number."""
    assert size_names([".seg.png", ".jpg", ".JPG", ".b-c", "."], ["jpg_bytes"]) == {
        ".": "field_bytes",
        ".JPG": "JPG_bytes_2",
        ".b-c": "b_c_bytes",
        ".jpg": "jpg_bytes_3",
        ".seg.png": "seg_png_bytes",
    }
