"""Who asks for pages in tests."""

import io
import json
import tarfile

import pytest
from starlette.testclient import TestClient

from tests.support.shards import write_json
from wids.columns.apart import SqlProcesses
from wids.tools.serve import rows
from wids.tools.serve.app import make_app
from wids.tools.serve.served import Served


class KeptProcesses(SqlProcesses):
    """Processes for SQL of which the idle ones stay for other tests: to begin, each imports DuckDB and pyarrow."""

    def close(self):
        """End those that run a query."""
        kept, self._idle = self._idle, []
        super().close()
        self._idle = kept


@pytest.fixture(scope="session")
def kept_processes():
    """For all tests of this process of pytest."""
    found = KeptProcesses()
    yield found
    SqlProcesses.close(found)


@pytest.fixture(autouse=True)
def few_processes(kept_processes, monkeypatch):
    """Pages of all tests run their queries in the same processes."""
    monkeypatch.setattr(rows, "SqlProcesses", lambda: kept_processes)


class Asking:
    """Asks for the pages of a dataset, as its own pages do."""

    def __init__(self, served):
        self.served = served
        self.client = TestClient(make_app(served), base_url="http://127.0.0.1", headers={"x-wids": "1"})

    def get(self, path, status=200, **query):
        """The JSON of an answer."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path, body, status=200):
        """The JSON of the answer to a request that changes something."""
        answer = self.client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def lines(self, path, **query):
        """The steps of an answer that comes a line at a time."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def serve_index():
    """Serve an index: its pages are asked by what this gives."""
    opened = []

    def serve_index(index, **options):
        opened.append(Served(str(index), **options))
        return Asking(opened[-1])

    yield serve_index
    for served in opened:
        served.close()


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
        return TestClient(
            make_app(opened[-1]),
            base_url="http://127.0.0.1:8000",
            headers={"x-wids": "1"},
            raise_server_exceptions=False,
        )

    yield open_pages
    for served in opened:
        served.close()
