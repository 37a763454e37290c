import pickle

import pytest

from wids.core.place import Place
from wids.core.transport.session import PLAIN, Session

OWN, THEIRS = {"headers": {"a": "1"}}, {"headers": {"b": "2"}}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://own/x", OWN),
        ("https://own:444/x", {}),
        ("http://own/x", {}),
        ("https://theirs/x", THEIRS),
        ("https://stranger/x", {}),
        ("https://own@stranger/x", {}),
        ("https://own\\@stranger/x", {}),
        ("s3://bucket/x", OWN),
        ("simplecache::https://own/x", OWN),
        ("simplecache::https://stranger/x", {}),
        ("zip://https://own::https://stranger/x", {}),
        ("https://stranger/https://own::https://own", {}),
    ],
)
def test_narrowed_options(url, expected):
    """What is given for one server goes to no other, however a URL is spelt."""
    session = Session({**OWN, "https://theirs/dir": THEIRS}).narrowed(["https://own"])
    assert session.options_for(Place(url)) == expected


def test_options():
    """Without a server's name they hold everywhere; with it, instead of the others; and they are dicts."""
    session = Session({**OWN, "https://theirs": THEIRS})
    assert session.options_for(Place("https://any/x")) == OWN
    assert session.options_for(Place("https://theirs/x")) == THEIRS
    assert PLAIN.options_for(Place("https://any/x")) == {}
    assert PLAIN.narrowed(["https://own"]) == PLAIN
    with pytest.raises(ValueError, match="not a dict") as caught:
        Session({"https://u:s3cr3t@h": "s3cr3t"}).options_for(Place("https://any/x"))
    assert "s3cr3t" not in str(caught.value)


def test_what_else_a_session_has_is_kept():
    """Hooks and leave for programs are not narrowed; other hooks change nothing else."""
    heard = [print]
    session = Session(OWN, hooks=heard, allow_pipe=True)
    narrowed = session.narrowed(["https://own"])
    assert (narrowed.hooks, narrowed.allow_pipe) == (heard, True)
    assert session.with_hooks(()) == Session(OWN, allow_pipe=True)


def test_sessions_are_values():
    """Equal ones are one key, also after pickling; what they are printed as holds no credentials."""
    one, other = Session({"key": "s3cr3t", "anon": False}), Session({"anon": False, "key": "s3cr3t"})
    assert len({one, other, pickle.loads(pickle.dumps(one)), PLAIN}) == 2
    assert "s3cr3t" not in repr(one)


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [
        (None, ""),
        ({"endpoint_url": "http://a"}, "http://a"),
        ({"client_kwargs": {"endpoint_url": "http://b"}}, "http://b"),
        ({"s3://": {"endpoint_url": "http://c"}, "endpoint_url": "http://d"}, "http://c"),
    ],
)
def test_endpoints(options, endpoint):
    """The server that a bucket's URL does not say; the same name on two servers is two shards."""
    assert Session(options).endpoint_of(Place("s3://bucket/a.tar")) == endpoint
