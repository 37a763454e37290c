import logging
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest

from wids import events
from wids.core.collection.stats import Stats
from wids.events import (
    AlikeKeys,
    BytesUnread,
    Closed,
    Event,
    Evicted,
    Fetched,
    Hit,
    MergedNames,
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
    Retried(url="u", attempt=1, cause="c", pause_seconds=0.5),
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
    AlikeKeys(url="u", count=2),
    BytesUnread(url="u", size_bytes=1),
    MergedNames(url="u", key="k", fields=(".0.jpg", ".1.jpg")),
    SampleSubstituted(index=1, by=2, shard="u", row=1, key="k", field=".jpg", cause="c"),
]


def test_the_list_is_complete():
    """Every event that the module has is tested below."""
    assert {type(event) for event in ALL} == set(Event.__subclasses__())


def test_events_count_in_fields_that_exist():
    """Each figure that an event adds to is a field of `Stats`; each field is one that some event adds to."""
    assert {name for each in ALL for name, _ in each.counts()} == set(Stats.__struct_fields__)


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
    monkeypatch.setattr("wids.events._retries", {})
    monkeypatch.setattr("wids.events._told", set())
    caplog.set_level(logging.DEBUG, logger="wids")
    emit((), event)
    [record] = caplog.records
    assert record.getMessage().startswith(type(event).__name__ + ": ")
    shown = {name: repr(getattr(event, name)) for name in event.__struct_fields__}
    if shown.pop("seconds", None):
        shown["time"] = "0.5 s"
    if shown.pop("pause_seconds", None):
        shown["pause"] = "0.5 s"
    for name in {"size_bytes", "cache_size"} & set(shown):
        shown[name.removesuffix("_bytes")] = f"{shown.pop(name)} B"
    for name, text in shown.items():
        assert f" {name}={text}" in record.getMessage()
    loud = dict.fromkeys([Retried, Rejected, RepeatedKeys, AlikeKeys, BytesUnread, MergedNames], "WARNING")
    loud |= dict.fromkeys([Fetched, NotFetchedAhead], "INFO")
    assert record.levelname == loud.get(type(event), "DEBUG")
    assert record.levelname != "WARNING" or record.getMessage().endswith(f"; {event.advice}")


def test_a_warning_says_what_to_do():
    """Each event that is logged as a warning has a sentence of its consequence or remedy, and no other one has."""
    assert {type(event) for event in ALL if event.advice} == {
        type(event) for event in ALL if event.level >= logging.WARNING
    }


def test_oddities_of_a_shard_are_one_warning(caplog, events, monkeypatch):
    """A shard is opened again and again: hooks are told each time, and one line of each URL is a warning."""
    monkeypatch.setattr("wids.events._told", set())
    caplog.set_level(logging.WARNING, logger="wids")
    told = [RepeatedKeys(url=url, count=2) for url in ("a.tar", "b.tar", "a.tar", "a.tar")]
    for event in told:
        emit([events], event)
    assert events == told
    assert [message.split(", ")[0] for message in caplog.messages] == [
        "RepeatedKeys: url='a.tar'",
        "RepeatedKeys: url='b.tar'",
    ]
    assert all('group="key" makes one of them' in message for message in caplog.messages)


def test_figures_are_rounded_and_have_units(caplog):
    """Bytes and seconds are for people; the event itself has them exactly."""
    caplog.set_level(logging.DEBUG, logger="wids")
    event = Fetched(url="u", path="p", size_bytes=123_456_789, seconds=0.123456, requests=16)
    emit((), event)
    assert caplog.messages == [
        "Fetched: url='u', path='p', size=123 MB, time=0.123 s, is_ahead=False, requests=16",
    ]
    assert "seconds=0.123456" in repr(event)
    emit((), PrefetchBegun(cache_size=None))
    assert caplog.messages[1] == "PrefetchBegun: cache_size=None"


@pytest.mark.parametrize(("seconds", "level"), [(0.02, "DEBUG"), (2.9, "DEBUG"), (3.0, "WARNING"), (90.0, "WARNING")])
def test_short_waits_are_no_warnings(seconds, level, caplog, monkeypatch):
    """Some seconds are worth one; a wait for another process's lock is news from there on, and never trouble."""
    monkeypatch.setattr("wids.events._waits", {})
    caplog.set_level(logging.DEBUG, logger="wids")
    emit((), WaitedForRoom(url="u", path="p", seconds=seconds))
    emit((), Waited(path="p", seconds=seconds))
    assert [record.levelname for record in caplog.records] == [level, level.replace("WARNING", "INFO")]


def test_retries_of_one_server_are_one_warning_in_ten_seconds(caplog, monkeypatch):
    """All shards of a server fail together; what was not said then is counted in the next line."""
    monkeypatch.setattr("wids.events._retries", {})
    caplog.set_level(logging.WARNING, logger="wids")
    for seconds in (100.0, 101.0, 109.0, 110.0, 112.0):
        monkeypatch.setattr("wids.events.time.monotonic", lambda seconds=seconds: seconds)
        for url in ("s3://bucket/a.tar", "s3://bucket/b.tar", "https://host/a.tar"):
            emit((), Retried(url=url, attempt=1, cause="c"))
    found = [(message.partition("'")[2].partition("'")[0], message.partition("; ")[2]) for message in caplog.messages]
    others = " other retries of this server since the last such line"
    assert found == [
        ("s3://bucket/a.tar", Retried.advice),
        ("https://host/a.tar", Retried.advice),
        ("s3://bucket/a.tar", f"{Retried.advice}; 5{others}"),
        ("https://host/a.tar", f"{Retried.advice}; 2{others}"),
    ]


def test_waits_for_space_are_warned_of_rarely(caplog, events, monkeypatch):
    """Waits in one directory are a warning when they come to three seconds, once in five minutes, with their number.

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
    emit([events], WaitedForRoom(url="u", path="q", seconds=5))
    assert events[:-1] == waits
    assert len(caplog.records) == 401
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.split(", ")[0] for text in warned] == [f"WaitedForRoom: url={url!r}" for url in ("u5", "u305", "u")]
    assert [text.endswith("; 6 such waits in the last minutes, 3 s together") for text in warned] == [True, True, False]


UNCONFIGURED = """
import logging, sys
from wids.events import fallback, logger
{}
logger.info("of no matter")
logger.warning("%s: is full", "s3://bucket/x?signature=secret")
try:
    raise KeyError("mine")
except KeyError:
    logger.exception("it failed")
"""
SHOWN = ["wids: s3://bucket/x: is full", "wids: it failed", "Traceback (most recent call last):"]


@pytest.mark.parametrize(
    ("setup", "shown"),
    [
        ("", SHOWN),
        ("logging.getLogger('other').addHandler(logging.StreamHandler())", SHOWN),
        ("fallback.setLevel(logging.INFO); logger.setLevel(logging.INFO)", ["wids: of no matter", *SHOWN]),
        ("logging.basicConfig()", ["WARNING:wids:s3://bucket/x: is full", "ERROR:wids:it failed", SHOWN[2]]),
        ("logger.addHandler(logging.NullHandler())", []),
        ("logger.propagate = False; logging.basicConfig()", SHOWN),
        ("logging.lastResort = None", []),
        ("logging.raiseExceptions = False; sys.stderr.close()", []),
        ("sys.stderr = None", []),
    ],
)
def test_without_logging_set_up_lines_say_whose_they_are(setup, shown):
    """Warnings go to stderr with "wids: " before them, until the program sets up logging in whatever way."""
    done = subprocess.run([sys.executable, "-c", UNCONFIGURED.format(setup)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    assert [line for line in done.stderr.splitlines() if not line.startswith((" ", "KeyError"))] == shown


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


def test_the_log_has_nothing_that_acts_on_a_terminal(caplog):
    """Whatever file a line quotes."""
    events.logger.warning("card: %s", "\x1b]0;title\x07")
    assert caplog.messages == ["card: \\x1b]0;title\\x07"]
