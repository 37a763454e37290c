"""Who asks for pages in tests."""

import json

import pytest
from starlette.testclient import TestClient

from wids.serve.app import make_app
from wids.serve.served import Served


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
