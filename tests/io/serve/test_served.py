"""A data set of the Hugging Face Hub in a browser: by its name, and by byte ranges."""

import io
import random

import numpy as np
from PIL import Image

from tests.support.cache_shards import pack

NAME = "hf://datasets/org/set"


def picture(shade):
    """A PNG of one color."""
    stream = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), shade, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def sound(row):
    """The bytes of a field that no page shows by itself."""
    return random.Random(row).randbytes(1 << 20)


def shard(rows):
    """Samples of a picture, a label and a field of a MiB."""
    fields = [((".png", picture(9 * row)), (".cls", b"%d" % (row % 2)), (".wav", sound(row))) for row in rows]
    return pack([(f"{row:03d}{name}", data) for row, each in zip(rows, fields, strict=True) for name, data in each])


def test_a_data_set_of_the_hub(stand_in, serve_index):
    """Its pages are those of any other; of its shards come the bytes that are shown, and no whole one."""
    split = {"val-0.tar": shard(range(5)), "val-1.tar": shard(range(5, 8))}
    stand_in.put({"train-0.tar": shard(range(2)), **split})
    pages = serve_index(f"{NAME}?split=validation")
    assert pages.served.name == f"{NAME}?split=validation"
    assert pages.served.opening == f"wids.ShardListDataset('{NAME}?split=validation')"
    said = pages.get("/api/overview")
    assert (said["samples"], said["shards"], said["name"]) == (8, 2, "org/set validation")
    for page in ("/", "/samples", "/sample/6", "/epoch", "/cache"):
        answer = pages.client.get(page)
        assert answer.status_code == 200
        assert f"{NAME}?split=validation" in answer.text
    rows = pages.get("/api/rows", start=0, count=8)
    assert "007" in str(rows)
    assert len(pages.get("/api/epoch/batch", rank=0, step=0, batch_size=4)["samples"]) == 4
    pages.get("/api/cache")
    sample = pages.get("/api/sample/6")
    assert f"{NAME}/val-1.tar" in str(sample)
    assert pages.client.get("/field/6/.png").content == picture(54)
    part = pages.client.get("/field/6/.wav", headers={"range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, sound(6)[1000:2000])
    assert stand_in.sent_bytes < sum(map(len, split.values())) / 4
    assert pages.client.get("/field/6/.wav").content == sound(6)


def test_the_address_of_a_page_is_the_data_set(stand_in, serve_index):
    """It is shown as the name that a program opens."""
    stand_in.put({"train-0.tar": shard(range(2))})
    pages = serve_index("https://huggingface.co/datasets/org/set?split=train")
    assert pages.served.opening == f"wids.ShardListDataset('{NAME}?split=train')"
    assert len(pages.served.dataset) == 2
