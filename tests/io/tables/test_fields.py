"""Alternatives for fields, and names for them: ``fields={"image": "jpg;jpeg;png", "label": "cls"}``."""

import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import wids
from tests.support.shards import write_tar
from wids.core.tables.fields import parse_fields
from wids.errors import DuplicateMemberError, InputError, SelectionError
from wids.events import RangesRead, SampleSubstituted
from wids.testing import Server

pytestmark = pytest.mark.usefixtures("own_cache")

NAMED = {"image": "jpg;jpeg;png", "label": "cls"}
KINDS = (".jpg", ".JPEG", ".png", ".Jpg")


def picture(color, form="PNG"):
    """A picture of 2 x 2 that is all of one color, as a file."""
    stream = io.BytesIO()
    Image.new("RGB", (2, 2), (color, color, color)).save(stream, form)
    return stream.getvalue()


@pytest.fixture
def place(tmp_path):
    """Four samples, each with another extension of its picture, a label, and a text that nobody asks for."""
    members = {}
    for k, kind in enumerate(KINDS):
        form = "PNG" if kind == ".png" else "JPEG"
        members |= {f"{k}{kind}": picture(50 * k, form), f"{k}.cls": b"%d" % k, f"{k}.txt": b"text"}
    return write_tar(tmp_path / "d/a.tar", members)


def bytes_of(sample):
    """The fields of a sample, as bytes."""
    return {
        name: value.getvalue() if isinstance(value, io.BytesIO) else value
        for name, value in sample.items()
        if not name.startswith("__")
    }


def to_pair(sample):
    """A function of a program: an array's first value, and the label."""
    return int(np.asarray(sample["image"]).ravel()[0]), sample["label"]


def first_byte(sample):
    """A function of a program, of members that are not decoded."""
    return sample["image"].getvalue()[:1], sample["label"].getvalue()


@pytest.mark.parametrize("form", ["PIL", "numpy", "torch", "raw", [], wids.SampleDecoder("numpy")])
def test_names_after_decoding(place, form):
    """Decoders go by extensions, in whatever form they are asked for; what is not asked for is not there."""
    dataset = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=form)
    for samples in ([*dataset], dataset.__getitems__([0, 1, 2, 3])):
        for k, sample in enumerate(samples):
            assert [*sample][:2] == ["image", "label"]
            assert {name for name in sample if not name.startswith("__")} == {*NAMED}
            assert sample["__key__"] == str(k)
            assert sample["__index__"] == k
    image, label = dataset[2]["image"], dataset[2]["label"]
    assert bytes_of({"label": label}) == {"label": b"2" if form in ("raw", []) else 2}
    if form == "PIL":
        assert image.getpixel((0, 0)) == (100, 100, 100)
    elif form in ("raw", []):
        assert bytes_of(dataset[2]) == {"image": picture(100), "label": b"2"}
    else:
        assert image.shape == ((3, 2, 2) if form == "torch" else (2, 2, 3))
        assert int(image.ravel()[0]) == 100


def test_functions_get_the_names(place):
    """After decoders, wherever they were given; without any, the members as they are."""
    expected = [(0, 0), (50, 1), (100, 2), (150, 3)]
    named = {"fields": NAMED, "transformations": ["PIL", to_pair]}
    assert [*wids.ShardListDataset([(place, 4)], **named)] == expected
    built = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=None)
    steps = built.transformations
    assert built.add_transform("numpy").add_transform(to_pair) is built
    assert built.transformations is steps
    assert [*built] == expected
    bare = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=first_byte)
    assert bare[2] == (b"\x89", b"2")
    again = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=built.transformations)
    assert again[2] == built[2] == (100, 2)
    again.transformations = [*again.transformations, list]
    assert again[2] == [100, 2]


def test_a_decoder_after_a_function_is_refused(place):
    """It would find no extension, and leave the bytes; the dataset stays as it was."""
    with pytest.raises(InputError, match="comes after a function"):
        wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=[first_byte, "PIL"])
    dataset = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=first_byte)
    with pytest.raises(InputError, match="put it first"):
        dataset.add_transform("PIL")
    assert dataset[0] == (b"\xff", b"0")


def test_a_name_may_be_an_extension(place):
    """So programs that ask for ``.jpg`` read other pictures."""
    dataset = wids.ShardListDataset([(place, 4)], fields={".jpg": ["jpg", "jpeg", ".png"]})
    assert [sample[".jpg"].format for sample in dataset] == ["JPEG", "JPEG", "PNG", "JPEG"]


@pytest.mark.parametrize("access", ["local", "fetch", "range"])
def test_the_first_one_is_read(tmp_path, access):
    """Of several alternatives, in the order of the argument; a tuple keeps members' names, and lacks what they lack."""
    write_tar(tmp_path / "a.tar", {"a.png": b"P", "a.jpg": b"J", "b.PNG": b"p", "b.cls": b"0", "c.cls": b"1"})
    with Server(str(tmp_path)) as server:
        url, options = str(tmp_path / "a.tar"), {}
        if access != "local":
            url, options = f"{server.url}/a.tar", {"access": access}
        for fields, expected in (
            ((".jpg;.png", "cls"), [{".jpg": b"J"}, {".PNG": b"p", ".cls": b"0"}, {".cls": b"1"}]),
            ("png; jpg", [{".png": b"P"}, {".PNG": b"p"}, {}]),
        ):
            dataset = wids.ShardListDataset([(url, 3)], fields=fields, transformations=[], **options)
            assert [*map(bytes_of, dataset)] == [*map(bytes_of, dataset.__getitems__([0, 1, 2]))] == expected
        named = wids.ShardListDataset([(url, 3)], fields={"image": "png;jpg"}, transformations=[], **options)
        assert [bytes_of(sample) for sample in named.__getitems__([0, 1])] == [{"image": b"P"}, {"image": b"p"}]


def test_only_the_chosen_member_is_requested(tmp_path):
    """By byte ranges: no byte of the alternative that comes later, nor of what has no name."""
    size = 1 << 20
    write_tar(tmp_path / "a.tar", {"a.jpg": bytes(size), "a.png": b"P", "a.cls": b"1", "a.txt": bytes(size)})
    events = []
    with Server(str(tmp_path)) as server:
        url = f"{server.url}/a.tar"
        dataset = wids.ShardListDataset(
            [(url, 1)], fields={"image": "png;jpg"}, transformations=[], access="range", hooks=[events.append]
        )
        assert bytes_of(dataset[0]) == {"image": b"P"}
    assert 0 < sum(event.size_bytes for event in events if isinstance(event, RangesRead)) < size // 2


def test_a_sample_without_any(tmp_path):
    """Is an error that names sample and field; with ``on_error``, another sample takes its place."""
    write_tar(tmp_path / "a.tar", {"a.png": picture(1), "b.gif": b"", "b.txt": b"x", "c.jpg": picture(3, "JPEG")})
    shards, events = [(str(tmp_path / "a.tar"), 3)], []
    dataset = wids.ShardListDataset(shards, fields={"image": "jpg;png"})
    with pytest.raises(
        SelectionError, match=r"sample 'b' \(index 1\) in .*a\.tar has none of \.jpg, \.png for 'image'"
    ) as caught:
        dataset[1]
    assert (caught.value.key, caught.value.field, caught.value.shard) == ("b", "image", shards[0][0])
    dataset = wids.ShardListDataset(
        shards, fields={"image": "jpg;png"}, on_error="substitute", max_errors=1, hooks=[events.append]
    )
    for sample in (dataset[1], dataset.__getitems__([1])[0]):
        assert sample["__substitute_for__"] == 1
        assert sample["__key__"] in "ac"
        assert sample["image"].size == (2, 2)
    assert [event.field for event in events if isinstance(event, SampleSubstituted)] == ["image", "image"]


def test_two_that_differ_in_case_alone(tmp_path):
    """Which of them has the name nobody knows: an error; a tuple has both."""
    write_tar(tmp_path / "a.tar", {"a.JPG": b"1", "a.jpg": b"2", "a.png": b"3", "b.jpg": b"4", "b.JPEG": b"5"})
    shards = [(str(tmp_path / "a.tar"), 2)]
    dataset = wids.ShardListDataset(shards, fields={"image": "png;jpg"}, transformations=[])
    assert [bytes_of(sample) for sample in dataset] == [{"image": b"3"}, {"image": b"4"}]
    dataset = wids.ShardListDataset(shards, fields={"image": "JPEG;jpg"}, transformations=[])
    assert bytes_of(dataset[1]) == {"image": b"5"}
    with pytest.raises(SelectionError, match=r"'\.JPG' and '\.jpg', of which 'image' can be one"):
        dataset[0]
    both = wids.ShardListDataset(shards, fields="jpg;png", transformations=[])
    assert bytes_of(both[0]) == {".JPG": b"1", ".jpg": b"2"}


def test_views_and_mixtures(place, tmp_path):
    """Have the names of their datasets; a mixture's sources may have their own alternatives."""
    dataset = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations="numpy")
    view = dataset.select([2, 3]).add_transform(to_pair)
    assert view[0] == (100, 2)
    assert wids.mix({"x": view}).datasets[0].exclude([1])[0] == (100, 2)
    assert dataset[2].keys() == {"image", "label", *(name for name in dataset[2] if name.startswith("__"))}
    view.save(tmp_path / "view.json")
    assert wids.ShardListDataset(tmp_path / "view.json", fields=NAMED, transformations=["numpy", to_pair])[0] == view[0]
    other = write_tar(tmp_path / "b.tar", {"x.WEBP": picture(7, "WEBP"), "x.class.cls": b"5"})
    mixed = wids.mix(
        {
            "a": dataset.add_transform(to_pair),
            "b": wids.ShardListDataset(
                [(other, 1)], fields={"image": "webp", "label": "class.cls"}, transformations=["numpy", to_pair]
            ),
        }
    )
    assert [mixed[k][1] for k in range(5)] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(place, method):
    """Have the names, too, however they are started."""
    dataset = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations="torch")
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=method)
    batches = [*loader]
    assert torch.cat([batch["label"] for batch in batches]).tolist() == [0, 1, 2, 3]
    assert batches[1]["image"].shape == (2, 3, 2, 2)
    copy = pickle.loads(pickle.dumps(dataset)).add_transform(to_pair)
    assert copy.fields == dataset.fields
    assert repr(copy.fields) == "{'image': '.jpg;.jpeg;.png', 'label': '.cls'}"
    assert copy[2] == (100, 2)


def test_columns_of_the_same_name_are_refused(place):
    """A column and a field would have one key."""
    pa = pytest.importorskip("pyarrow")
    dataset = wids.ShardListDataset([(place, 4)], fields=NAMED, transformations=[])
    table = pa.table({"index": [0, 1, 2, 3], "label": [5, 6, 7, 8], "score": [0.5] * 4})
    with pytest.raises(InputError, match="'label' is a field of the samples already"):
        dataset.with_table(table, on="index", fields=True)
    sample = dataset.with_table(table, on="index", fields=["score"])[1]
    assert (sample["score"], sample["label"].getvalue()) == (0.5, b"1")


def test_get_shard_of_a_subclass(place):
    """Its own shards are dicts; their members are chosen in the same way."""

    class Own(wids.ShardListDataset):
        def get_shard(self, index):
            return [{"__key__": "k", ".png": b"p", ".jpg": b"j", ".cls": b"1", ".txt": b"t"}], 0, {"url": "u"}

    assert bytes_of(Own([(place, 4)], fields={"image": "gif;jpg;png"}, transformations=[])[0]) == {"image": b"j"}
    assert bytes_of(Own([(place, 4)], fields=("png;jpg", "cls"), transformations=[])[0]) == {".png": b"p", ".cls": b"1"}


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({}, InputError, "fields is empty"),
        ({"": "jpg"}, InputError, "cannot be the name"),
        ({"__key__": "jpg"}, InputError, "cannot be the name"),
        ({3: "jpg"}, TypeError, "names are texts"),
        ({"image": ""}, InputError, "empty extension"),
        ({"image": "jpg;;png"}, InputError, "empty extension"),
        ({"image": []}, InputError, "empty extension"),
        ({"image": 3}, TypeError, "holds extensions"),
        ({"image": ["jpg", 3]}, TypeError, "holds extensions"),
        ({"image": "jpg;png", "mask": "PNG"}, InputError, "two of the fields"),
        (("jpg;png", ".png"), InputError, "two of the fields"),
        ((".jpg;",), InputError, "empty extension"),
    ],
)
def test_what_is_refused(place, fields, error, words):
    """When the dataset is made."""
    with pytest.raises(error, match=words):
        wids.ShardListDataset([(place, 4)], fields=fields)


def test_what_is_understood():
    """With dots and without, spaces, lists; one spelling of each."""
    assert parse_fields({"a": " jpg ; .jpeg;JPG", "b": ["seg.png"]}).groups == ((".jpg", ".jpeg"), (".seg.png",))
    assert type(parse_fields(("jpg", ".cls"))) is tuple
    assert parse_fields(("jpg", ".cls")) == (".jpg", ".cls")


def test_a_field_of_which_no_sample_has_any_is_told(place, caplog):
    """Misspelt ones; an alternative that does not occur is none."""
    dataset = wids.ShardListDataset([(place, 4)], fields={"image": "jepg;pgn", "label": "cls;label"})
    with pytest.raises(SelectionError):
        dataset[0]
    (record,) = caplog.records
    assert "no sample of" in record.getMessage()
    assert "has '.jepg' or '.pgn'; its samples have" in record.getMessage()
    assert "did you mean .jpg?" in record.getMessage() or "did you mean .JPEG?" in record.getMessage()


def test_a_repeated_member_is_an_error_still(tmp_path):
    """Two members of the very same name are refused when the shard is opened."""
    write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.jpg", b"2")])
    with pytest.raises(DuplicateMemberError):
        wids.ShardListDataset([(str(tmp_path / "a.tar"), 1)], fields=NAMED)[0]
