"""What is a place on the Hugging Face Hub, and whose token goes there."""

import pytest
from huggingface_hub import constants

from tests.support.hub import forget_login
from wids.core.place import Place
from wids.core.transport.session import Session
from wids.errors import InputError, ShardNotFoundError
from wids.hub import source as hub

HUB = "https://huggingface.co"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    forget_login(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("url", "kind", "repository", "revision", "path"),
    [
        ("hf://datasets/org/set/a/b.tar", "datasets", "org/set", "", "a/b.tar"),
        ("hf://datasets/org/set@v1.0/a@b.tar", "datasets", "org/set", "v1.0", "a@b.tar"),
        ("hf://datasets/org/set/a@b.tar", "datasets", "org/set", "", "a@b.tar"),
        ("hf://datasets/org/set@refs/convert/parquet/a.tar", "datasets", "org/set", "refs/convert/parquet", "a.tar"),
        ("hf://datasets/org/set@refs%2Fpr%2F1/a.tar", "datasets", "org/set", "refs/pr/1", "a.tar"),
        ("hf://datasets/org/set", "datasets", "org/set", "", ""),
        ("hf://org/model/a b%20#?.tar", "models", "org/model", "", "a b%20#?.tar"),
        ("hf://buckets/org/b/a@v1.tar", "buckets", "org/b", "", "a@v1.tar"),
        (f"{HUB}/datasets/org/set/resolve/main/a%20b.tar?download=true", "datasets", "org/set", "main", "a b.tar"),
        (f"{HUB}/org/model/resolve/refs%2Fpr%2F1/a.tar", "models", "org/model", "refs/pr/1", "a.tar"),
        (f"{HUB}/buckets/org/b/resolve/a/b.tar", "buckets", "org/b", "", "a/b.tar"),
    ],
)
def test_places(url, kind, repository, revision, path):
    """Both ways to write one."""
    assert hub.locate(Place(url)) == hub.HubPlace(HUB, kind, repository, revision, path)


@pytest.mark.parametrize(
    "url",
    [
        *("https://example.com/datasets/org/set/resolve/main/a.tar", f"{HUB}.example.com/org/m/resolve/main/a.tar"),
        *(f"{HUB}/datasets/org/set/raw/main/a.tar", f"{HUB}/docs/a.tar", "s3://org/set/resolve/main/a.tar"),
    ],
)
def test_other_places(url):
    """Other servers, and other pages of it."""
    assert hub.locate(Place(url)) is None


@pytest.mark.parametrize("url", ["hf://", "hf://datasets", "hf://datasets/org", "hf://gpt2", "hf://datasets/org/@v1/a"])
def test_places_without_a_repository(url):
    """They are refused in words."""
    with pytest.raises(ShardNotFoundError, match="names a repository: hf://datasets/ORG/NAME"):
        hub.locate(Place(url))


def test_endpoints(monkeypatch):
    """That of the options, then that of the environment."""
    place = Place("hf://datasets/o/n/a.tar")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert hub.locate(place).endpoint == "https://mirror.example"
    assert hub.locate(Place("https://mirror.example/datasets/o/n/resolve/main/a.tar")) is not None
    assert hub.locate(place, Session({"endpoint": "https://own.example"})).endpoint == "https://own.example"


def test_tokens(monkeypatch, tmp_path):
    """As huggingface_hub finds its own; it is for the endpoint in force alone."""

    def found(given=None, endpoint=HUB):
        return hub.find_token(endpoint, {"token": given})

    assert found() is None
    (tmp_path / "token").write_text("filed\n")
    assert found() == found(given=True) == "filed"
    monkeypatch.setenv("HF_TOKEN", " set ")
    assert (found(), found(given="given"), found(given=False)) == ("set", "given", None)
    assert found(endpoint="https://other.example") is None
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert (found(), found(given=True)) == (None, "set")


@pytest.mark.parametrize("token", [b"s3cret", 7])
def test_a_token_that_is_no_text(token):
    """It is not left out as if none was given."""
    with pytest.raises(InputError, match="it must be a text") as caught:
        hub.find_token(HUB, {"token": token})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["hf-mirror.example", "file:///tmp", "/tmp", "huggingface.co:443/x"])
def test_an_endpoint_that_is_no_url(monkeypatch, endpoint):
    """A scheme was forgotten; it is no path of this machine."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(InputError, match=r"HF_ENDPOINT must be an http\(s\) URL"):
        hub.locate(Place("hf://datasets/org/set/a.tar"))


def test_names_of_repositories_are_quoted():
    """What follows # or ? is a part of the name, not of another repository's page."""
    where = hub.locate(Place("hf://datasets/org/a#b?c/a.tar"))
    assert where.api == f"{HUB}/api/datasets/org/a%23b%3Fc"
    assert where.page == f"{HUB}/datasets/org/a%23b%3Fc"
    assert hub.locate(Place(f"{where.page}/resolve/main/a.tar")).repository == "org/a#b?c"
