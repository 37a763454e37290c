"""Transfers: every byte in its place, asked for once, whatever the server does on the way."""

import asyncio
import functools
import os
import random
import socket
import ssl
import threading

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import _registry
from fsspec.spec import AbstractBufferedFile

from tests.support import cache_shards as shards
from tests.support.cache_dirs import files_in
from tests.support.clocks import PATIENCE_SECONDS, wait_until
from tests.support.range_faults import (
    WEAK,
    held,
    ignored,
    marked_anew,
    part,
    replaced,
    said,
    short,
    too_long,
    unsaid,
    unsized,
    within,
)
from tests.support.servers import Server, cut, mute, reset, stall, status, whole, whole_unannounced, write_certificate
from wids.core.readers.provider import AutoProvider
from wids.core.transport import concurrency, download, filesystems, retrying, stores
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.session import Session
from wids.core.transport.source import Precedence
from wids.errors import (
    CacheFull,
    CorruptHeaderError,
    DigestMismatchError,
    FetchDeniedError,
    FetchError,
    ShardNotFoundError,
    SizeMismatchError,
    UnreachableError,
    WrongContentError,
)
from wids.events import Retried

pytestmark = pytest.mark.usefixtures("no_waits", "small_ranges", "nothing_left")

RANGE = 1000
COUNT = concurrency.LIMITS.connections
PATH = "/a.tar"


def make(size, seed=0):
    """Bytes that tell where they belong."""
    return random.Random(seed).randbytes(size)


BODY, OTHER = make(20 * RANGE + 7), make(20 * RANGE + 7, seed=1)


@pytest.fixture
def small_ranges(set_limits):
    """All ranges have RANGE bytes, whatever was seen of the server."""
    set_limits(concurrency, first_range_bytes=RANGE, min_range_bytes=RANGE, max_range_bytes=RANGE)


@pytest.fixture
def ranges(server):
    """The server, with ranges."""
    server.has_ranges = True
    return server


@pytest.fixture
def target(tmp_path):
    """The file to fill; it exists, as download_to asks."""
    return shards.write(tmp_path / "target", b"")


@pytest.fixture
def nothing_left(tmp_path):
    """When a test is over, no slot is taken, no task runs and no file is open."""
    yield
    wait_until(lambda: is_idle() and shards.files_open_in(tmp_path) == [])


def is_idle():
    """Whether nothing of a transfer is under way in fsspec's thread."""

    async def look():
        return asyncio.all_tasks() - {asyncio.current_task()}

    connections = filesystems.connections()
    running = asyncio.run_coroutine_threadsafe(look(), filesystems.loop()).result(PATIENCE_SECONDS)
    return not running and connections.slots.free == connections.count


def fetch_body(url, target, *, size=None, check=lambda: None, **options):
    """The bytes that a fetch of ``url`` wrote."""
    download.download_to(url, target, check=check, size=size, **options)
    with open(target, "rb") as file:
        return file.read()


def asked_bytes(server):
    """How many bytes were asked for in ranges, of those that there are."""
    return sum(max(min(hi, len(server.files[path])) - lo, 0) for path, lo, hi in server.ranges)


# --- what comes right


SIZES = [0, 1, RANGE - 1, RANGE, RANGE + 1, 8 * RANGE - 1, 8 * RANGE, 8 * RANGE + 1, 20 * RANGE + 7]


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_once(ranges, target, events, size, is_known):
    """Bodies of all lengths arrive byte for byte, each byte asked for once, known to the index or not."""
    body = make(size)
    reserved = []
    url = ranges.add(PATH, body)
    assert (
        fetch_body(
            url, target, size=size if is_known else None, reserve=reserved.append, session=Session(hooks=[events])
        )
        == body
    )
    assert asked_bytes(ranges) == size
    assert all(hi - lo <= RANGE for _, lo, hi in ranges.ranges)
    assert reserved == [size]
    assert events == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("answer", [whole, whole_unannounced], ids=["length", "no length"])
def test_servers_without_ranges(server, target, size, answer):
    """Where there are no ranges, or nobody even says how much will come, one request brings all."""
    body = make(size)
    assert fetch_body(server.add(PATH, body, answer), target) == body
    assert len(server.requests) == 1


@pytest.mark.parametrize("size", SIZES)
def test_other_sources(target, tmp_path, monkeypatch, size):
    """Local files and file systems without asynchronous reads come in blocks, of whatever length they are."""
    monkeypatch.setattr(stores, "BLOCK_BYTES", RANGE)
    body = make(size)
    assert fetch_body(shards.write(tmp_path / "source", body), target) == body
    fsspec.filesystem("memory").pipe("/a.tar", body)
    try:
        assert fetch_body("memory://a.tar", target, size=size) == body
    finally:
        fsspec.filesystem("memory").rm("/a.tar")


def test_what_was_in_the_file_goes(ranges, target):
    """A file that was longer is as long as what came."""
    shards.write(target, make(30 * RANGE, seed=2))
    assert fetch_body(ranges.add(PATH, BODY), target) == BODY


def test_ranges_come_side_by_side(ranges, target):
    """As many as there are connections at once, and not one more."""
    meeting = ranges.meeting(COUNT)
    assert fetch_body(ranges.add(PATH, BODY, meeting), target) == BODY
    assert meeting.missing <= 0
    assert ranges.max_open == COUNT


def test_transfers_share_the_connections(ranges, tmp_path):
    """Several transfers at a time have no more connections than one."""
    meeting, found = ranges.meeting(COUNT), {}
    bodies = {f"/{n}.tar": make(12 * RANGE, seed=n) for n in range(4)}

    def work(path, body):
        found[path] = fetch_body(ranges.add(path, body, meeting), shards.write(tmp_path / path[1:], b""))

    run_threads(*(functools.partial(work, *item) for item in bodies.items()))
    assert found == bodies
    assert meeting.missing <= 0
    assert ranges.max_open == COUNT


def run_threads(*functions):
    """Run functions side by side to their ends."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


# --- what breaks on the way


BREAKS = {"reset": reset, "cut": cut, "short": short, "503": status(503), "429": status(429)}


@pytest.mark.parametrize("place", [0, 1, 5, 20], ids=lambda place: f"range {place}")
@pytest.mark.parametrize("fault", BREAKS.values(), ids=BREAKS)
def test_only_what_is_missing_is_asked_for_again(ranges, target, events, fault, place):
    """After a break, in whichever range, the next try asks for what that range did not bring, and for nothing else."""
    url = ranges.add(PATH, BODY, *[whole] * place, fault, whole)
    assert fetch_body(url, target, size=len(BODY), session=Session(hooks=[events])) == BODY
    assert [type(event) for event in events] == [Retried]
    assert asked_bytes(ranges) <= len(BODY) + RANGE
    assert len(ranges.ranges) <= len(range(0, len(BODY), RANGE)) + 1
    if fault is short:
        assert asked_bytes(ranges) <= len(BODY) + RANGE // 2 + 1


def test_many_breaks(ranges, target):
    """All connections break at once, more than once: still no byte that came is asked for again."""
    url = ranges.add(PATH, BODY, *[short] * 2 * COUNT, whole)
    assert fetch_body(url, target) == BODY
    assert asked_bytes(ranges) <= len(BODY) + 2 * COUNT * (RANGE // 2 + 1)


def test_a_transfer_that_gets_on_is_not_given_up(ranges, target, events):
    """Each try brings a little: there may be any number of them."""
    body = make(RANGE)
    assert fetch_body(ranges.add(PATH, body, part(10)), target, session=Session(hooks=[events])) == body
    assert len(events) > 12
    assert [lo for _, lo, _ in ranges.ranges] == sorted({lo for _, lo, _ in ranges.ranges})


def test_a_transfer_that_does_not_get_on_is_given_up(ranges, target, events, no_waits):
    """Five minutes of tries that brought nothing are the end, after one that did."""
    url = ranges.add(PATH, BODY, whole, status(503))
    with pytest.raises(FetchError, match=r"503.*tries: 2\d\b"):
        fetch_body(url, target, session=Session(hooks=[events]))
    assert 285 <= sum(no_waits) <= 300


def test_a_transfer_takes_its_time_and_no_more(ranges, target, events, set_limits):
    """When the time for all tries is over, there is not another one, however well they go."""
    set_limits(retrying, total_seconds=0.0)
    with pytest.raises(FetchError, match="tries: 1"):
        fetch_body(ranges.add(PATH, BODY, part(10)), target, session=Session(hooks=[events]))
    assert events == []


@pytest.mark.parametrize("place", [0, 3], ids=["first", "later"])
@pytest.mark.parametrize("fault", [stall, held, mute], ids=["body", "no body", "no answer"])
def test_a_stall_ends(ranges, target, events, set_limits, fault, place):
    """A range that stops coming ends by the read time-out, and is asked for again from where it stopped."""
    set_limits(filesystems, read_seconds=0.3)
    url = ranges.add(PATH, BODY, *[whole] * place, fault, whole)
    assert fetch_body(url, target, session=Session(hooks=[events])) == BODY
    assert len(events) == 1
    assert asked_bytes(ranges) <= len(BODY) + RANGE
    if fault is stall:
        assert asked_bytes(ranges) == len(BODY) + RANGE // 2


def test_damage_is_fetched_anew(ranges, target):
    """A check that fails on what came begins with nothing."""
    tries = []

    def check():
        tries.append(1)
        if len(tries) == 1:
            raise WrongContentError("damaged")

    assert fetch_body(ranges.add(PATH, BODY), target, check=check) == BODY
    assert asked_bytes(ranges) == 2 * len(BODY)


# --- servers that change their minds


@pytest.mark.parametrize("place", [1, 2, 9, 20], ids=lambda place: f"range {place}")
@pytest.mark.parametrize(
    ("marks", "new"),
    [
        (("ETag",), OTHER),
        (("Last-Modified",), OTHER),
        (("ETag", "Last-Modified"), OTHER),
        ((), OTHER + b"more"),
        ((), OTHER[:-3]),
        (("ETag",), OTHER[:RANGE]),
        (("ETag",), OTHER[: RANGE // 2]),
        ((), b""),
    ],
    ids=["etag", "time", "both", "longer", "shorter", "one range", "half a range", "empty"],
)
def test_versions_are_never_mixed(ranges, target, marks, new, place):
    """A file that is replaced under way, in whichever range, arrives in its new version, and no byte of the old one.

    From a server without strong validators it is one stream, which had ended before, or is the new one.
    """
    ranges.validators = marks
    url = ranges.add(PATH, BODY, *[whole] * place, replaced(new), whole)
    found = fetch_body(url, target)
    if len(ranges.requests) <= place:  # ranges are longer where answers are slow: all was read before
        assert found == BODY
    else:
        assert found == (new if "ETag" in marks or place < 2 else BODY)


@pytest.mark.parametrize("place", [1, 2, 3, 9], ids=lambda place: f"answer {place}")
@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_versions_that_nothing_tells_apart_are_never_mixed(ranges, target, headers, place):
    """Without a strong validator and a checksum, a file is one stream, begun anew after a break; nothing is kept."""
    faults = [whole, cut, reset, replaced(OTHER), reset, *[whole] * 10]
    url = ranges.add(PATH, BODY, *(said(fault, **headers) for fault in [*[whole] * (place - 1), *faults]))
    assert fetch_body(url, target) in (BODY, OTHER)
    assert len(ranges.ranges) == 1
    before = len(ranges.requests)
    assert fetch_body(ranges.add("/b.tar", OTHER, said(whole, **headers)), target) == OTHER
    assert len(ranges.requests) == before + 1  # it is known of the server, and one request is all


@pytest.mark.parametrize("size", [len(BODY), None], ids=["ranges", "one stream"])
def test_the_first_bytes_are_looked_at_when_they_are_there(ranges, target, size):
    """However few come at a time; once for each try, and of a shorter file not at all."""
    seen = []

    def drip(reply, body):
        data = reply.begin(body)
        for at in range(0, len(data), 100):
            reply.send(data[at : at + 100])

    ranges.has_ranges = size is not None
    url = ranges.add(PATH, BODY, drip)
    assert fetch_body(url, target, size=size, look=seen.append) == BODY
    assert fetch_body(ranges.add("/short", BODY[:511]), target, look=seen.append) == BODY[:511]
    assert seen == [BODY[:512]]


def test_a_look_that_finds_damage_ends_all_ranges(ranges, target):
    """Other requests have bytes of the same file, which is another one; the next try starts anew."""
    looks = []

    def look(head):
        looks.append(head)
        if len(looks) == 1:
            raise CorruptHeaderError("no shard")

    assert fetch_body(ranges.add(PATH, BODY), target, size=len(BODY), look=look) == BODY
    assert looks == [BODY[:512]] * 2
    assert asked_bytes(ranges) < 2 * len(BODY)


@pytest.mark.parametrize("headers", WEAK.values(), ids=WEAK)
def test_a_checksum_lets_versions_that_nothing_tells_apart_come_in_ranges(ranges, target, headers):
    """All at the same time, and resumed; bytes of two versions do not pass, and then it is one stream."""
    url = ranges.add(PATH, BODY, *[said(whole, **headers)] * 3, said(reset, **headers), said(whole, **headers))
    assert fetch_body(url, target, has_checksum=True) == BODY
    assert len(BODY) < asked_bytes(ranges) <= len(BODY) + RANGE
    assert len(ranges.requests) == len(ranges.ranges)
    before, tries = len(ranges.ranges), []

    def check():
        with open(target, "rb") as file:
            tries.append(file.read())
        if tries[-1] != OTHER:
            raise DigestMismatchError("mixed")

    faults = [*[whole] * 5, replaced(OTHER), whole]
    url = ranges.add(PATH, BODY, *(said(fault, **headers) for fault in faults))
    assert fetch_body(url, target, check=check, has_checksum=True) == OTHER
    assert [len(body) for body in tries] == [len(BODY)] * 2
    assert len(ranges.ranges) - before == -(-len(BODY) // RANGE)


def test_entity_tags_that_differ_in_their_strength_alone(ranges, target):
    """Of two replicas, or through a proxy: with a checksum nothing comes twice; without, one stream at a time."""
    tags = [said(whole, ETag=tag) for tag in ('"1"', 'W/"1"', '"1"', '"1"', 'W/"1"') * 10]
    url = ranges.add(PATH, BODY, *tags)
    assert fetch_body(url, target, has_checksum=True) == BODY
    assert asked_bytes(ranges) == len(BODY)
    assert fetch_body(ranges.add(PATH, BODY, *tags), target) == BODY
    before = len(ranges.requests)
    assert fetch_body(ranges.add(PATH, BODY, *tags), target) == BODY
    assert len(ranges.requests) == before + 1


def test_versions_are_never_mixed_over_tries(ranges, target):
    """Nor one that is replaced between two tries, or twice."""
    url = ranges.add(PATH, BODY, *[whole] * 3, reset, replaced(OTHER), whole)
    assert fetch_body(url, target) == OTHER
    third = make(len(BODY), seed=3)
    url = ranges.add(PATH, BODY, *[whole] * 3, replaced(OTHER), *[whole] * 12, replaced(third), whole)
    assert fetch_body(url, target) == ranges.files[PATH]


def test_after_one_change_there_are_ranges_again(ranges, target):
    """A file that was replaced once is fetched in ranges like any other, also when all connections saw it at once."""
    asked, blocked, answered = threading.Barrier(COUNT - 1), threading.Event(), threading.Barrier(COUNT)

    def block():
        blocked.set()
        answered.wait(PATIENCE_SECONDS)

    def together(handler, body):
        if asked.wait(PATIENCE_SECONDS) == 0:
            ranges.add(PATH, OTHER)
            filesystems.loop().call_soon_threadsafe(block)
        blocked.wait(PATIENCE_SECONDS)
        data = handler.begin(OTHER)
        answered.wait(PATIENCE_SECONDS)
        handler.end(data)

    gate = ranges.gate()  # the first range takes a connection until the others are seen
    url = ranges.add(PATH, BODY, gate, *[together] * (COUNT - 1), whole)
    assert fetch_body(url, target) == OTHER
    assert len(ranges.requests) == len(ranges.ranges)


def test_a_server_that_never_says_the_same_is_read_in_one_go(ranges, target):
    """Where each answer claims another version, ranges cannot be trusted, and one stream brings all."""
    assert fetch_body(ranges.add(PATH, BODY, marked_anew), target) == BODY
    assert len(ranges.requests) == len(ranges.ranges) + 1


WRONG = {
    "all of it": ignored,
    "416": status(416),
    "a range within, cut in front": within(10, 0),
    "a range within, cut behind": within(0, 10),
    "too long": too_long,
}
UNCLEAR = {"no total": unsized, "no Content-Range": unsaid}


def of_ranges(fault):
    """A fault of ranges alone; without one all is well."""

    def odd(handler, body):
        (fault if handler.span else whole)(handler, body)

    return odd


@pytest.mark.parametrize("place", [0, 1, 9], ids=lambda place: f"range {place}")
@pytest.mark.parametrize("fault", [*WRONG.values(), *UNCLEAR.values()], ids=[*WRONG, *UNCLEAR])
def test_an_odd_answer(ranges, target, fault, place):
    """Whatever a server answers to one range instead of it, all bytes come right in the end."""
    url = ranges.add(PATH, BODY, *[whole] * place, of_ranges(fault), whole)
    assert fetch_body(url, target) == BODY


@pytest.mark.parametrize("place", [0, 1, 9], ids=lambda place: f"range {place}")
@pytest.mark.parametrize("fault", WRONG.values(), ids=WRONG)
def test_odd_answers(ranges, target, fault, place):
    """And if it does so from then on, for ever."""
    assert fetch_body(ranges.add(PATH, BODY, *[whole] * place, of_ranges(fault)), target) == BODY


def test_index_and_server_disagree(ranges, target, events):
    """Another size than the index has is found by the head of the first answer, before any body comes."""
    ranges.add(PATH, BODY, held)
    for has_ranges in (True, False):
        ranges.has_ranges = has_ranges
        with pytest.raises(SizeMismatchError, match=f"{len(BODY)} bytes are there.*filesize 77") as caught:
            fetch_body(ranges.url + PATH, target, size=77, session=Session(hooks=[events]))
        assert (caught.value.expected, caught.value.found) == (77, len(BODY))
    assert len(events) == 2
    assert os.path.getsize(target) == 0


def test_without_room_nothing_comes(ranges, target):
    """Who cannot have room is told so before any byte is written, and no slot stays taken."""

    def refuse(size):
        raise CacheFull(f"no room for {size}")

    ranges.add(PATH, BODY, held)
    with pytest.raises(CacheFull, match=f"no room for {len(BODY)}"):
        fetch_body(ranges.url + PATH, target, reserve=refuse)
    assert os.path.getsize(target) == 0


# --- cancelled


SHARD = shards.shard(count=20)


def ask_nothing(server):
    """No answer."""
    server.add(PATH, SHARD, mute)
    return lambda: PATH in server.requests


def hold_head(server):
    """A head, and no body."""
    server.add(PATH, SHARD, held)
    return lambda: PATH in server.requests


def hold_first(server):
    """The first range is half there."""
    gate = server.gate()
    server.add(PATH, SHARD, gate)
    return gate.entered.is_set


def hold_later(server):
    """The first ranges are there, and all connections wait for others."""
    gates = [server.gate() for _ in range(COUNT)]
    server.add(PATH, SHARD, whole, whole, *gates)
    return lambda: all(gate.entered.is_set() for gate in gates)


def hold_stream(server):
    """Half of what a server without ranges sends."""
    server.has_ranges = False
    return hold_first(server)


def hold_unannounced(server):
    """Half of what comes without a length."""

    def fault(handler, body):
        handler.start(Connection="close")
        handler.wfile.write(body[: len(body) // 2])
        is_there.set()
        server.closing.wait(PATIENCE_SECONDS)
        handler.close_connection = True

    is_there = threading.Event()
    server.add(PATH, SHARD, fault)
    return is_there.is_set


PHASES = [ask_nothing, hold_head, hold_first, hold_later, hold_stream, hold_unannounced]


@pytest.fixture
def cancelled_later(tmp_path, set_limits):
    """A function: fetch ahead, cancel when a condition holds; the transfer has ended then, and left nothing."""
    set_limits(filesystems, read_seconds=10 * PATIENCE_SECONDS)  # no time-out is to end it

    def run(url, condition, *, size=None):
        cancelled, caught = threading.Event(), []
        cache = tmp_path / "cache"

        def work():
            shard = shards.described(url, SHARD, filesize=size)
            try:
                there = AutoProvider(cache_dir=str(cache)).cache
                there.download_ahead(there.locate(shard), after=0.0, is_cancelled=cancelled.is_set)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        wait_until(condition)
        cancelled.set()
        thread.join(PATIENCE_SECONDS / 2)
        assert not thread.is_alive()
        assert [type(error) for error in caught] == [CancelledTransferError]
        assert files_in(cache) == []

    return run


@pytest.mark.parametrize("size", [len(SHARD), None], ids=["known", "unknown"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_cancelled(ranges, cancelled_later, phase, size):
    """A transfer that nobody wants any more ends at once, wherever it is, with no file, no slot and no task left."""
    condition = phase(ranges)
    cancelled_later(ranges.url + PATH, condition, size=size)
    wait_until(is_idle)


def test_cancelled_while_others_have_all_connections(ranges, tmp_path, cancelled_later):
    """One that waits for a connection ends as well, and takes none from the one that has them."""
    gates = [ranges.gate() for _ in range(COUNT)]
    url, found = ranges.add("/other.tar", BODY, *gates, whole), []
    target = shards.write(tmp_path / "other", b"")
    thread = threading.Thread(target=lambda: found.append(fetch_body(url, target)))
    thread.start()
    wait_until(lambda: all(gate.entered.is_set() for gate in gates))
    ranges.add(PATH, SHARD)
    cancelled_later(ranges.url + PATH, lambda: len(filesystems.connections().slots._waiting) > COUNT)
    for gate in gates:
        gate.go.set()
    thread.join(PATIENCE_SECONDS)
    assert found == [BODY]
    assert PATH not in ranges.requests


def test_slots_are_given_in_turn():
    """Also where some that waited were cancelled, one of them at the moment at which it got its slot."""

    async def run():
        connections, got = filesystems.Connections(), []

        async def take(name, turn):
            give_back = await connections.acquire(turn)
            got.append(name)
            return give_back

        async def begin(name, turn):
            task = asyncio.ensure_future(take(name, turn))
            await asyncio.sleep(0)
            return task

        turns = [Precedence(is_ahead) for is_ahead in (True, True, True, False)]
        held = [await connections.acquire(turns[0]) for _ in range(COUNT)]
        order = (("second", 1), ("third", 2), ("gone", 0), ("first", 0), ("lost", 3), ("urgent", 3))
        tasks = {name: await begin(name, turns[number]) for name, number in order}
        tasks["gone"].cancel()
        held.pop()()
        tasks["lost"].cancel()  # the slot is its own already
        for give_back in held[:3]:
            give_back()
        await asyncio.wait([task for name, task in tasks.items() if name not in ("gone", "lost")])
        for name in ("first", "second", "third", "urgent"):
            tasks[name].result()()
        for give_back in held[3:]:
            give_back()
        return got, connections.slots.free

    assert asyncio.run(run()) == (["urgent", "first", "second", "third"], COUNT)


def test_free_connections_go_to_downloads_in_turn(ranges, tmp_path):
    """One that a reader waits for comes before one that began earlier."""
    gates = [ranges.gate() for _ in range(COUNT)]
    names = ["/first.tar", "/second.tar", "/urgent.tar"]
    threads, waiting = [], filesystems.connections().slots._waiting
    for number, (name, faults) in enumerate(zip(names, (gates, [], []), strict=True)):
        url = ranges.add(name, BODY, *faults, whole)
        target = shards.write(tmp_path / name[1:], b"")
        threads.append(threading.Thread(target=fetch_body, args=(url, target), kwargs={"is_ahead": "u" not in name}))
        threads[-1].start()
        wait_until(lambda number=number: len(waiting) == COUNT + number)
    for gate in gates:
        gate.go.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert ranges.requests.index("/urgent.tar") < ranges.requests.index("/second.tar")
    assert [(tmp_path / name[1:]).read_bytes() for name in names] == [BODY] * 3


def test_a_failure_lets_later_downloads_go_first(ranges, tmp_path):
    """What a download has not asked for yet when a part of it fails waits behind the others: its server may hang."""
    gates = [ranges.gate() for _ in range(3 * COUNT)]
    url, found = ranges.add("/first.tar", BODY, *gates[: COUNT - 1], reset, *gates[COUNT:], whole), []
    target = shards.write(tmp_path / "first", b"")
    thread = threading.Thread(target=lambda: found.append(fetch_body(url, target, is_ahead=True)))
    thread.start()
    wait_until(lambda: ranges.requests.count("/first.tar") == COUNT)
    second = fetch_body(ranges.add("/second.tar", BODY), shards.write(tmp_path / "second", b""), is_ahead=True)
    assert ranges.requests.count("/first.tar") == COUNT
    for gate in gates:
        gate.go.set()
    thread.join(PATIENCE_SECONDS)
    assert [second, *found] == [BODY, BODY]


def test_cancelled_before_it_begins(ranges, target):
    """A transfer that is cancelled already asks for nothing."""
    with pytest.raises(CancelledTransferError):
        fetch_body(ranges.add(PATH, BODY), target, is_cancelled=lambda: True)
    assert ranges.requests == []


def test_cancelled_local(tmp_path, target, monkeypatch):
    """Local files and file systems without asynchronous reads are left between two blocks."""
    monkeypatch.setattr(stores, "BLOCK_BYTES", RANGE)
    fsspec.filesystem("memory").pipe(PATH, BODY)
    for url in (shards.write(tmp_path / "source", BODY), "memory://a.tar"):
        shards.write(target, b"")
        answers = iter([False] * 5)  # one before the try, one before each block
        with pytest.raises(CancelledTransferError):
            fetch_body(url, target, is_cancelled=lambda answers=answers: next(answers, True))
        with open(target, "rb") as file:
            assert file.read().rstrip(b"\0") == BODY[: 4 * RANGE]
    fsspec.filesystem("memory").rm(PATH)


# --- typed errors


@pytest.mark.parametrize("place", [0, 3], ids=["first", "later"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(404, ShardNotFoundError), (410, ShardNotFoundError), (401, FetchDeniedError), (403, FetchDeniedError)],
)
def test_final_answers(ranges, target, events, code, kind, place):
    """A status that is final ends all ranges, at the first one or later."""
    url = ranges.add(PATH, BODY, *[whole] * place, status(code))
    with pytest.raises(kind) as caught:
        fetch_body(url, target, session=Session(hooks=[events]))
    assert type(caught.value) is kind
    assert caught.value.url == url
    assert events == []


def test_no_such_host(target, monkeypatch):
    """A name that cannot be resolved is said so."""

    def resolve(host, *args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnreachableError, match=r"name cannot be resolved.*network"):
        fetch_body("http://wids-test.invalid/a.tar", target)


def test_nobody_listens(target):
    """Nor does anybody at a port where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match="connection refused"):
            fetch_body(f"http://127.0.0.1:{free.getsockname()[1]}/a.tar", target)


def test_a_certificate_that_does_not_hold(tmp_path, target, events):
    """A certificate that nobody vouches for is said so, at once; one that the program trusts is taken."""
    file = write_certificate(tmp_path / "certificate.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    secure = Server(tls=context)
    try:
        secure.has_ranges = True
        url = secure.add(PATH, BODY)
        with pytest.raises(UnreachableError, match="certificate or TLS was not accepted"):
            fetch_body(url, target, session=Session(hooks=[events]))
        assert (secure.requests, events) == ([], [])
        trusting = ssl.create_default_context(cafile=file)
        assert fetch_body(url, target, session=Session({"ssl": trusting})) == BODY
    finally:
        secure.close()


def test_a_page_instead_of_a_shard(ranges, tmp_path):
    """A log-in page with status 200 is no shard, in one range or in many, and is not kept."""
    page = b"\n<!DOCTYPE html>" + b"<p>who are you?" * 500
    cache = tmp_path / "cache"
    with pytest.raises(WrongContentError, match="web page came instead"):
        AutoProvider(cache_dir=str(cache)).open(
            shards.described(ranges.add(PATH, page), page, md5sum=None, filesize=None)
        )
    assert files_in(cache) == []


# --- other asynchronous file systems


class Bucket(AsyncFileSystem):
    """An asynchronous store of one object, which does what the test says."""

    protocol = "bucket"
    cachable = False
    body, tag, has_size = BODY, "1", True
    faults, asked = (), ()
    open = most_open = 0

    async def _info(self, path, **kwargs):
        return {"name": path, "size": len(self.body) if self.has_size else None, "type": "file", "ETag": self.tag}

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        cls = type(self)
        cls.asked.append((start, end))
        cls.open += 1
        cls.most_open = max(cls.open, cls.most_open)
        try:
            await asyncio.sleep(0)
            fault = cls.faults.pop(0) if cls.faults else None
            data = self.body[start:end]
            return data if fault is None else await fault(data)
        finally:
            cls.open -= 1


@pytest.fixture
def bucket(monkeypatch):
    """A new store, under the scheme ``bucket``."""
    found = type("OneBucket", (Bucket,), {"faults": [], "asked": []})
    monkeypatch.setitem(_registry, "bucket", found)
    return found


URL = "bucket://b/a.tar"


async def fail(data):
    """A time-out, which is what these clients raise."""
    raise asyncio.TimeoutError


async def shorten(data):
    """Half of what was asked for."""
    return data[: len(data) // 2]


async def say_nothing(data):
    """No answer."""
    await asyncio.sleep(10 * PATIENCE_SECONDS)


@pytest.mark.parametrize("has_size", [True, False], ids=["size", "no size"])
@pytest.mark.parametrize("size", SIZES)
def test_a_bucket(bucket, target, size, has_size):
    """Other asynchronous file systems give ranges side by side, each byte once, or all at once without a size."""
    bucket.body, bucket.has_size = make(size), has_size
    assert fetch_body(URL, target) == bucket.body
    if has_size:
        assert sum(hi - lo for lo, hi in bucket.asked) == size
        assert bucket.most_open == min(COUNT, -(-size // RANGE))
    else:
        assert bucket.asked == [(None, None)]


@pytest.mark.parametrize("fault", [fail, shorten, say_nothing], ids=lambda fault: fault.__name__)
def test_a_bucket_that_fails_at_times(bucket, target, events, monkeypatch, fault):
    """What did not come is asked for again, and nothing else."""
    monkeypatch.setattr(filesystems, "limit_of", lambda size: 0.2)
    bucket.faults = [None, fault, None, fault]
    assert fetch_body(URL, target, session=Session(hooks=[events])) == BODY
    assert len(bucket.asked) == len(range(0, len(BODY), RANGE)) + 2
    assert len(events) == 1


def test_a_bucket_whose_object_is_replaced(bucket, target):
    """Versions are not mixed here either; the last look tells."""

    async def replace(data):
        bucket.body, bucket.tag = OTHER, "2"
        return data

    for place in (0, 5, 20):
        bucket.body, bucket.tag, bucket.faults = BODY, "1", [*[None] * place, replace]
        assert fetch_body(URL, target) == OTHER


def test_a_bucket_without_strong_versions(bucket, target):
    """One request brings the whole; with a checksum there are ranges."""
    bucket.tag = None
    assert fetch_body(URL, target) == BODY
    assert bucket.asked == [(0, len(BODY))]
    assert fetch_body(URL, target, has_checksum=True) == BODY
    assert len(bucket.asked) == 1 + -(-len(BODY) // RANGE)


class Blocks(AbstractBufferedFile):
    """A file each of whose blocks is a request, as of FTP; the object is replaced after the first."""

    def _fetch_range(self, start, end):
        data = self.fs.body[start:end]
        type(self.fs).body = OTHER
        return data


class Blocking(fsspec.AbstractFileSystem):
    """A store of one object, which blocks, and tells no versions."""

    protocol = "blocking"
    cachable = False
    body = BODY

    def info(self, path, **_):
        """As fsspec asks for."""
        return {"name": path, "size": len(self.body), "type": "file"}

    def _open(self, path, mode="rb", **options):
        return Blocks(self, path, mode, block_size=RANGE, size=len(self.body))


def test_a_store_that_blocks_without_versions(target, monkeypatch):
    """One request brings the whole: its client would make one for each block."""
    monkeypatch.setattr(stores, "BLOCK_BYTES", RANGE)
    monkeypatch.setitem(_registry, "blocking", type("OneBlocking", (Blocking,), {}))
    assert fetch_body("blocking://b/a.tar", target) == BODY


def test_a_bucket_and_its_index_disagree(bucket, target):
    """Another size is found before anything is read."""
    with pytest.raises(SizeMismatchError, match="filesize 77"):
        fetch_body(URL, target, size=77)
    assert bucket.asked == []


@pytest.mark.parametrize("place", [0, 5])
def test_a_bucket_cancelled(bucket, tmp_path, cancelled_later, place):
    """A transfer from there ends as soon."""
    bucket.body, bucket.faults = SHARD, [*[None] * place, *[say_nothing] * COUNT]
    cancelled_later(URL, lambda: bucket.open >= COUNT)
    assert bucket.open == 0
