import logging
import pickle
from types import SimpleNamespace

import pytest

from wids import events
from wids.events import (
    Closed,
    Event,
    Evicted,
    Fetched,
    Hit,
    NotFetchedAhead,
    Opened,
    PrefetchBegun,
    RangesRead,
    Rejected,
    RepeatedKeys,
    Retried,
    SampleSubstituted,
    Swept,
    TableRead,
    Waited,
    WaitedForRoom,
    emit,
    log_event,
)

ALL = [
    Fetched(url="u", path="p", size_bytes=1, seconds=0.5),
    Hit(url="u", path="p"),
    Opened(url="u", path="p", nsamples=1, has_saved_table=True, seconds=0.5),
    Closed(url="u"),
    Retried(url="u", attempt=1, cause="c"),
    Rejected(url="u", path="p", cause="c"),
    Waited(path="p", seconds=0.5),
    WaitedForRoom(url="u", path="p", seconds=0.5),
    Evicted(path="p", size_bytes=1),
    Swept(path="p", size_bytes=1),
    NotFetchedAhead(url="u", cause="c"),
    PrefetchBegun(cache_size=1),
    RangesRead(url="u", requests=2, size_bytes=10, seconds=0.5),
    TableRead(url="u", requests=2, size_bytes=10, seconds=0.5),
    RepeatedKeys(url="u", count=2),
    SampleSubstituted(index=1, by=2, shard="u", row=1, key="k", field=".jpg", cause="c"),
]


def test_the_list_is_complete():
    """Every event that the module has is tested below."""
    assert {type(event) for event in ALL} == set(Event.__subclasses__())


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_events_are_values(event):
    """An event compares by value, hashes, survives a pickle, and cannot be changed."""
    assert pickle.loads(pickle.dumps(event)) == event
    assert len({event, pickle.loads(pickle.dumps(event))}) == 1
    with pytest.raises(AttributeError):
        event.url = "other"


@pytest.mark.parametrize("event", ALL, ids=lambda event: type(event).__name__)
def test_events_are_logged(event, caplog, monkeypatch):
    """Each event is one line with all its facts; trouble is a warning, a download is information."""
    monkeypatch.setattr("wids.events._waits", {})
    caplog.set_level(logging.DEBUG, logger="wids")
    emit((), event)
    [record] = caplog.records
    assert record.getMessage().startswith(type(event).__name__ + ": ")
    for name in event.__struct_fields__:
        assert f"{name}={getattr(event, name)!r}" in record.getMessage()
    loud = dict.fromkeys([Retried, Rejected, RepeatedKeys, WaitedForRoom], "WARNING")
    loud |= dict.fromkeys([Fetched, Waited, NotFetchedAhead], "INFO")
    assert record.levelname == loud.get(type(event), "DEBUG")


def test_waits_for_space_are_warned_of_rarely(caplog, events, monkeypatch):
    """Of the waits in one directory the first is a warning, then one in five minutes with the number of the others.

    Hooks are told of each, and at DEBUG each is logged.
    """
    now = 10.0
    monkeypatch.setattr("wids.events._waits", {})
    monkeypatch.setattr("wids.events.time", SimpleNamespace(monotonic=lambda: now))
    caplog.set_level(logging.DEBUG, logger="wids")
    waits = [WaitedForRoom(url=f"u{k}", path="p", seconds=0.5) for k in range(400)]
    for wait in waits:
        emit([events], wait)
        now += 1.0
    emit([events], WaitedForRoom(url="u", path="q", seconds=0.5))
    assert events[:-1] == waits
    assert len(caplog.records) == 401
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(", ")[0] for text in warned] == [f"WaitedForRoom: url={url!r}" for url in ("u0", "u300", "u")]
    assert ["299 more" in text for text in warned] == [False, True, False]


def test_a_level_that_nobody_wants_costs_nothing(caplog):
    """An event below the logger's level makes no record."""
    caplog.set_level(logging.WARNING, logger="wids")
    log_event(Hit(url="u", path="p"))
    assert caplog.records == []


def test_hooks_are_told_in_order(events):
    """Each hook gets the very event, in the order of the hooks."""
    order = []
    event = Hit(url="u", path="p")
    emit([lambda e: order.append((1, e)), events, lambda e: order.append((2, e))], event)
    assert order == [(1, event), (2, event)]
    assert events == [event]


def test_a_hook_that_fails_harms_nobody(events, caplog):
    """An exception from a hook is logged with the event; later hooks are told all the same."""

    def broken(event):
        raise KeyError("mine")

    emit([broken, events], Closed(url="u"))
    assert events == [Closed(url="u")]
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "broken" in record.getMessage()
    assert "Closed" in record.getMessage()
    assert record.exc_info[0] is KeyError


def test_a_hook_may_stop_the_program():
    """What is no Exception, as Ctrl-C, goes through."""

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        events.emit([stop], Closed(url="u"))
