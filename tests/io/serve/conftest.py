"""What the tests of pages share."""

import io
import tarfile

import pytest
from starlette.testclient import TestClient

from tests.support.shards import write_json
from wids.serve.app import make_app
from wids.serve.served import Served


@pytest.fixture
def pages(tmp_path):
    """A function: fields of one sample -> what a browser has at its pages."""
    opened = []

    def open_pages(fields, **header):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
            for name, data in fields.items():
                info = tarfile.TarInfo(f"s{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        index = {"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 1}], **header}
        write_json(tmp_path / "index.json", index)
        opened.append(Served(str(tmp_path / "index.json")))
        return TestClient(make_app(opened[-1]), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)

    yield open_pages
    for served in opened:
        served.close()
