"""The promises of `wids.core.transport.source.ByteSource` as a class of tests, for the author of a store."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from wids.core.transport import download, filesystems, range_client, retrying, stores
from wids.core.transport.failures import CancelledTransferError
from wids.core.transport.range_client import ShardBytes
from wids.core.transport.scheduler import read_spans
from wids.core.transport.session import Session
from wids.core.transport.source import ByteSource, Sink, Stat
from wids.core.transport.spans import Span
from wids.errors import ChangedShardError, FetchDeniedError, FetchError, ShardNotFoundError, SizeMismatchError
from wids.testing.promises import PATIENCE_SECONDS, check, promised, refused, skip_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

DATA = bytes(k * k % 251 for k in range(20_000))
_OTHER = DATA[::-1] + b"more"
_SOME = [Span(0, 1), Span(7, 600), Span(600, 700), Span(9000, 9001), Span(len(DATA) - 1, len(DATA))]
_PARTS = {*ByteSource.__annotations__, *(name for name in vars(ByteSource) if name[0] != "_")}
_HOOKS = {"remove", "deny", "shorten", "stop"}
_ERRORS = (OSError, FetchError, aiohttp.ClientError)


class ByteSourceSuite:
    """The promises of every `ByteSource`; a subclass in a file of tests makes pytest run it against a store.

    - ``stat()`` says the object's size, version and whether it has ranges: the same each time, and another version of
      another object. What a store cannot say is None, and the subclass declares it (``has_size = False``).
    - ``read(span, sink)`` writes the bytes of the span, all and no other, each once and from the first on. The sink
      learns of another version than ``stat()`` returned before the read bytes count: by its ``learn``, or by a later
      ``stat()`` if ``answers_have_stat`` is False. Bytes of two versions never pass for one object.
    - ``stream(end)`` gives the object's first ``end`` bytes, or all, in blocks.
    - Bytes that are not there, or stop coming, are an error, and so is an object that is not there or may not be read;
      the errors of `wids.errors` are made of OSErrors and of those that ``wids.core.transport.failures`` knows.
    - ``go_on()`` is called now and then; what it raises ends the call.
    - ``close()`` leaves no descriptor and no connection.

    Downloads and reads by position are tried, too: they open the object by `open_source` of the subclass. A subclass
    has ``url`` and `put`, and `open_source` unless the URL's scheme is known to wids or fsspec; and the hooks `remove`,
    `deny`, `shorten` and `stop`, or names in ``cannot`` those that its author has no means for.

    Attributes:
        url: of the one object.
        storage_options: for the default of `open_source`.
        has_ranges: spans can be read.
        has_size: the size is known before the bytes.
        has_version: so is the version.
        missing: the error where there is no object.
        cannot: names of hooks that are left out; the tests that need them are skipped and say so.
    """

    url: str
    storage_options: dict[str, Any] | None = None
    has_ranges: bool = True
    has_size: bool = True
    has_version: bool = True
    missing: type[FetchError] = ShardNotFoundError
    cannot: Collection[str] = ()

    # --- hooks

    def put(self, data: bytes) -> None:
        """Make ``data`` the object, as a new version of it if there is one.

        Args:
            data: its bytes.
        """
        raise NotImplementedError("override `put`: it makes bytes the object at `url`")

    def open_source(self, **options: Any) -> ByteSource:
        """The object's source; ``options``: ``go_on``, ``path``, ``precedence``, as of `wids.core.transport.stores`.

        Args:
            **options: ``go_on``, ``path`` and ``precedence``, as of `wids.core.transport.stores`.
        """
        return stores.open_source(self.url, Session(self.storage_options), **options)

    def remove(self) -> None:
        """Let there be no object."""
        raise _left_out("remove")

    def deny(self) -> AbstractContextManager[Any]:
        """Deny every read of the object, within a context."""
        raise _left_out("deny")

    def shorten(self) -> None:
        """Give half of the bytes that are requested, from now on."""
        raise _left_out("shorten")

    def stop(self) -> None:
        """Give nothing more, or only a beginning, and wait. A blocking store may give all: then there is no wait."""

    # --- the promises

    @pytest.fixture
    def target(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """Let `DATA` be the object; gives the path of a file for downloads. No connection stays taken."""
        check(set(self.cannot) <= _HOOKS, f"`cannot` names hooks of {sorted(_HOOKS)}", self.cannot)
        skip_waits(monkeypatch.setattr)
        unsaid: dict[str, Any] = {"go_on": lambda: None, "path": None, "precedence": None}
        for module in (download, range_client):
            monkeypatch.setattr(module, "open_source", lambda *_, **said: self.open_source(**{**unsaid, **said}))
        self.put(DATA)
        yield tmp_path / "target"
        connections, pause = filesystems.connections(), threading.Event()
        for _ in range(100 * PATIENCE_SECONDS):
            if connections.slots.free == connections.count:
                return
            pause.wait(0.01)
        check(is_kept=False, promise="a read gives back the connection that it took")

    # --- what all of them give

    def test_size_and_version(self, target: Path) -> None:
        """The store's answer about an object: the same each time, and another one of another object."""
        with _opened(self, target) as source:
            first = source.stat()
            check(source.stat() == first, "`stat` says the same of the same object each time", first)
        size = len(DATA) if self.has_size else None
        check(first.size == size, f"`stat` says the size of the object, {size} (has_size = {self.has_size})", first)
        check((first.version is not None) == self.has_version, f"has_version = {self.has_version}", first)
        check(first.has_ranges == self.has_ranges, f"has_ranges = {self.has_ranges}", first)
        check(first.version is not None or not first.is_strong, "only a version is strong", first)
        self.put(_OTHER[: len(DATA)])
        with _opened(self, target) as source:
            other = source.stat()
        words = "`stat` says another version of another object of the same size"
        check((other != first) == self.has_version, f"{words} (has_version = {self.has_version})", (first, other))

    @pytest.mark.parametrize("data", [b"", b"x", DATA, 3 * DATA], ids=len)
    def test_all_of_it(self, target: Path, data: bytes) -> None:
        """In blocks, or a beginning of it, with or without a look at it before; and by a download into a file."""
        self.put(data)
        for end in (None, 1, 10, len(data), len(data) + 10):
            for has_looked in (False, True):
                promise = f"`stream({end})` gives the bytes up to there of an object of {len(data)}"
                with promised(promise), _opened(self, target) as source:
                    if has_looked:
                        source.stat()
                    found = b"".join(source.stream(end))
                check(
                    found == data[:end], promise, f"{len(found)} bytes" if len(found) != len(data[:end]) else "others"
                )
        for size in (None, len(data)):
            with promised("a download brings the object"):
                found = _downloaded(self, target, size=size)
            check(found == data, "a download brings the object", f"{len(found)} bytes of {len(data)}")

    def test_spans(self, target: Path) -> None:
        """The first byte and the last one, one in the middle, several, all; where none exist, that is said."""
        for spans in ([], *([span] for span in _SOME), _SOME, [Span(0, len(DATA))]):
            with _opened(self, target) as source:
                if self.has_ranges:
                    _check_spans(source, spans)
                elif self.has_size and spans == [Span(0, len(DATA))]:  # all of it is a range, too
                    written = _read(source, spans, refuse=True)
                    written.check_holds(spans)
                elif spans:
                    with refused(FetchError, "a source without ranges refuses to read some bytes"):
                        _read(source, spans, refuse=True)

    @pytest.mark.usefixtures("target")
    def test_any_pieces(self) -> None:
        """Overlapping, empty, past the end, near one another and far: what a slice of the bytes would be."""
        draw = random.Random(7)  # noqa: S311 - pieces of all kinds, the same each time
        for count in range(9):
            pieces = [(draw.randint(0, len(DATA) + 100), draw.choice((0, 1, 10, 3000))) for _ in range(count)]
            self.check_pieces(pieces, gap=draw.choice((0, 100, 2000)))

    def check_pieces(self, pieces: Sequence[tuple[int, int]], *, gap: int) -> None:
        """Check that pieces are read as slices.

        Args:
            pieces: positions and counts.
            gap: bytes between two pieces that may be read with them.
        """
        wanted = [(lo, lo + count) for lo, count in pieces]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filesystems.Connections, "gap_bytes", lambda *_: gap)
            if not self.has_ranges:
                with refused(FetchError, "reads by position are refused where there are no ranges", naming=" no "):
                    _shard(self).read_many([*wanted, (0, 1)])
                return
            promise = "reads by position give what slices of the bytes are"
            with promised(promise), _shard(self) as shard:
                together = shard.read_many(wanted)
                alone = [shard.read(lo, hi - lo) for lo, hi in wanted]
            slices = [DATA[lo:hi] for lo, hi in wanted]
            check(together == slices, promise, f"others, of {wanted}")
            check(alone == slices, promise, f"others, of {wanted} one by one")

    @pytest.mark.parametrize("span", [Span(len(DATA), len(DATA) + 9), Span(len(DATA) - 9, len(DATA) + 9)], ids=str)
    def test_past_the_end(self, target: Path, span: Span) -> None:
        """A source gives no byte that is not there, and what it gives of more than there is does not pass for whole."""
        written = _ReceivedBytes(refuse=True)
        promise = f"`read` of {span} is an error of an object of {len(DATA)} bytes"
        with _opened(self, target) as source, refused((OSError, ValueError, FetchError), promise):
            read_spans(source, [span], written.sink)
        written.check_true()

    def test_an_empty_object(self, target: Path) -> None:
        """No bytes, and no error."""
        self.put(b"")
        with promised("an object of no bytes is read as such"):
            with _opened(self, target) as source:
                size = source.stat().size
                blocks = list(source.stream())
            check(size == (0 if self.has_size else None), "`stat` says that an empty object has size 0", size)
            check(blocks in ([], [b""]), "`stream` of an empty object gives nothing", blocks)
            if self.has_ranges:
                with _shard(self) as shard:
                    found = (shard.size, shard.read(0, 10), shard.read_many([(0, 5)]))
                check(found == (0, b"", [b""]), "pieces of an empty object are empty", found)

    # --- faults

    def test_no_object(self, target: Path) -> None:
        """A typed error that names it, of a look and of a read."""
        _needs(self, "remove")
        self.remove()

        def look() -> Stat:
            with _opened(self, target) as source:
                return source.stat()

        def read() -> list[bytes]:
            with _opened(self, target) as source:
                return list(source.stream())

        once: Callable[[], Any]
        for once in (look, read):
            if once is look and not self.has_size:  # a program says nothing before it runs
                found = _tried(self, once)
                check(found == Stat(None, None, has_ranges=False), "`stat` says nothing before the bytes", found)
                continue
            promise = f"{once.__name__} of an object that is not there is a {self.missing.__name__}"
            with refused(self.missing, promise, naming=_name_of(self)) as caught:
                _tried(self, once)
            check(type(caught[0]) is self.missing, promise, caught[0])

    def test_no_permission(self, target: Path) -> None:
        """The same."""
        _needs(self, "deny")

        def once() -> list[bytes]:
            with _opened(self, target) as source:
                source.stat()
                return list(source.stream())

        promise = "an object that may not be read is a FetchDeniedError"
        with self.deny(), refused(FetchDeniedError, promise, naming=_name_of(self)):
            _tried(self, once)

    def test_another_object_between_look_and_read(self, target: Path) -> None:
        """No bytes of two versions: those of the first one, or the sink learns that it is another one."""
        with _opened(self, target) as source:
            before = source.stat(Span(0, 100) if self.has_ranges else None)
            self.put(_OTHER)
            if not self.has_ranges:
                found = b"".join(source.stream())
                promise = "`stream` after `stat` gives the object of `stat`, or the present one"
                check(found == (DATA if self.has_size else _OTHER), promise, f"{len(found)} bytes of neither")
                return
            with promised("another version is something for the sink to learn"):
                written = _read(source, [Span(0, 100), Span(100, len(DATA))])
        is_told = bool(set(written.stats) - {before})
        promise = "bytes of another version than that of `stat` do not pass for it: `sink.learn` gets the read version"
        check(written.holds([Span(0, len(DATA))]) or is_told, promise, f"bytes of both, and only {before}")

    def test_another_object_between_two_reads(self, target: Path) -> None:
        """A reader refuses it; a download brings the new one."""
        if self.has_ranges:
            with _shard(self) as shard:
                check(shard.read(5, 5) == DATA[5:10], "a read by position gives the bytes there")
                self.put(_OTHER)
                with refused(ChangedShardError, "a read of another version than the last read is refused"):
                    shard.read(5, 5)
        self.put(_OTHER)
        found = _downloaded(self, target)
        check(found == _OTHER, "a download brings the object that is there", f"{len(found)} other bytes")

    def test_an_index_that_is_wrong(self, target: Path) -> None:
        """Another size than the index says is found by all."""
        with refused(SizeMismatchError, "a download of another size than expected is refused", naming="filesize 77"):
            _downloaded(self, target, size=77)
        if self.has_ranges:
            with refused(ChangedShardError, "a read by position of an object of another size is refused"):
                _shard(self, size=77).read(0, 5)

    def test_half_of_it(self, target: Path) -> None:
        """A truncated answer is an error, and the bytes before it are right."""
        _needs(self, "shorten")
        self.shorten()
        written = _ReceivedBytes(refuse=True)
        with refused(_ERRORS, "bytes that end early are an error"), _opened(self, target) as source:
            if self.has_ranges:
                read_spans(source, [Span(0, len(DATA))], written.sink)
            else:
                at = 0
                for block in source.stream():
                    written.write(at, block)
                    at += len(block)
        written.check_true()
        with contextlib.suppress(FetchError):  # or it continues where it ended
            check(_downloaded(self, target, size=len(DATA)) == DATA, "a download brings the object or is an error")

    # --- the end

    @pytest.mark.parametrize("count", [0, 1], ids=["at once", "in the middle"])
    def test_cancelled(self, target: Path, count: int) -> None:
        """A read ends soon after the caller wants it no more, and the bytes before it are right."""
        _needs(self, "stop")
        self.stop()
        answers = iter([None] * count)

        def go_on() -> None:
            if next(answers, "no") == "no":
                raise CancelledTransferError

        written = _ReceivedBytes()
        spans = [Span(lo, lo + 1000) for lo in range(0, len(DATA), 1000)]
        promise = "`go_on` is called now and then, and what it raises ends the read"
        with refused(CancelledTransferError, promise), _opened(self, target, go_on) as source:
            read_spans(source, spans, written.sink) if self.has_ranges else list(source.stream())
        written.check_true()
        check(len(written.data) < len(DATA), promise, "all bytes were read")

    def test_a_download_cancelled(self, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same, of all the ways to fetch a file."""
        _needs(self, "stop")
        monkeypatch.setattr(stores, "BLOCK_BYTES", 1000)
        count = 2
        with _opened(self, target) as source:
            if source.is_blocking:  # it is cancelled between two blocks, or before the only one
                count = min(count, len(list(source.stream())) - 1)
        self.stop()
        answers = iter([False] * count)
        target.write_bytes(b"")
        transfer = download.Transfer(
            self.url,
            str(target),
            session=Session(self.storage_options),
            is_cancelled=lambda: next(answers, True),
        )
        with refused(CancelledTransferError, "a download that is cancelled ends"):
            transfer.run()
        check(transfer.kept_bytes < len(DATA), "a download that is cancelled ends", "all bytes were read")

    def test_nothing_stays_open(self, target: Path) -> None:
        """A source that is closed has no descriptor and no connection, read or not."""
        with _opened(self, target) as source:
            source.stat()
            list(source.stream())
        before = len(os.listdir("/dev/fd"))
        reads: tuple[Callable[[ByteSource], object], ...] = (
            lambda _: None,
            lambda source: source.stat(),
            lambda source: next(iter(source.stream())),
        )
        for read in 4 * reads:
            with _opened(self, target) as source:
                read(source)
        left = len(os.listdir("/dev/fd")) - before
        # Connections of a client's pool, not one for each source.
        check(left <= 3, "`close` releases files and connections", f"{left} descriptors more after 12 sources")


def _left_out(hook: str) -> NotImplementedError:
    return NotImplementedError(f"override `{hook}`, or declare that there is no means: cannot = ({hook!r},)")


def _needs(suite: ByteSourceSuite, hook: str) -> None:
    if hook in suite.cannot:
        pytest.skip(f"{type(suite).__name__}.cannot names {hook!r}")


def _name_of(suite: ByteSourceSuite) -> str:
    return suite.url.rpartition("/")[2]


def _opened(suite: ByteSourceSuite, target: Path, go_on: Callable[[], None] = lambda: None) -> ByteSource:
    source = suite.open_source(go_on=go_on, path=str(target), precedence=None)
    lacks = sorted(name for name in _PARTS if not hasattr(source, name))
    check(not lacks, f"a source is whole: derive {type(source).__name__} from `ByteSource`", f"none of {lacks}")
    return source


def _shard(suite: ByteSourceSuite, **options: Any) -> ShardBytes:
    """The object, by position."""
    return ShardBytes(suite.url, session=Session(suite.storage_options), **options)


def _downloaded(suite: ByteSourceSuite, target: Path, **options: Any) -> bytes:
    """The object in a file."""
    target.write_bytes(b"before" * 10)
    download.download_to(
        suite.url,
        str(target),
        check=lambda: None,
        session=Session(suite.storage_options, allow_pipe=True),
        **options,
    )
    return target.read_bytes()


def _tried(suite: ByteSourceSuite, function: Callable[[], Any]) -> Any:
    """The result of a function, with the retries and the typed errors of all that fetches."""
    return retrying.try_repeatedly(function, url=suite.url, path=None, hooks=())


def _check_spans(source: ByteSource, spans: Sequence[Span]) -> None:
    """Read spans of a source that has ranges."""
    stat = source.stat(spans[0] if spans else Span(0, 1))
    written = _read(source, spans)
    written.check_holds(spans)
    check(set(written.stats) <= {stat}, "a read says of the object what `stat` says", written.stats)
    says_it = bool(written.stats) or (source.answers_have_stat and not spans)
    check(says_it, "a read tells `sink.learn` of its object (answers_have_stat = True)", written.stats)


class _ReceivedBytes:
    """A sink that keeps what it gets.

    Attributes:
        stats: the store's, with the bytes.
        data: position -> byte.
    """

    def __init__(self, *, refuse: bool = False) -> None:
        self.stats: list[Stat] = []
        self.data: dict[int, int] = {}
        self._refuses = refuse
        self.sink = Sink(self._learn, self.write)

    def _learn(self, stat: Stat) -> None:
        self.stats.append(stat)
        if self._refuses and not stat.has_ranges:
            raise FetchError("no ranges")

    def write(self, at: int, data: bytes) -> None:
        """Each byte once."""
        positions = dict(enumerate(data, at))
        check(not positions.keys() & self.data.keys(), "each byte is written once", Span(at, at + len(data)))
        self.data.update(positions)

    def holds(self, spans: Sequence[Span]) -> bool:
        """True if it has the bytes of these spans, and no other."""
        return self.data == {k: DATA[k] for lo, hi in spans for k in range(lo, hi)}

    def check_holds(self, spans: Sequence[Span]) -> None:
        """Fail unless it has the bytes of these spans, and no other."""
        found = f"{len(self.data)} bytes at {min(self.data)} to {max(self.data) + 1}" if self.data else "none"
        check(self.holds(spans), f"`read` writes the bytes of {spans} and no other", found)

    def check_true(self) -> None:
        """Fail unless all it has are bytes of the object."""
        wrong = [at for at, byte in self.data.items() if DATA[at : at + 1] != bytes([byte])]
        check(not wrong, "bytes before an error are bytes of the object", f"others at {wrong[:3]}")


def _read(source: ByteSource, spans: Sequence[Span], *, refuse: bool = False) -> _ReceivedBytes:
    """Read spans of a source, which is no error unless the sink refuses it."""
    written = _ReceivedBytes(refuse=refuse)
    try:
        read_spans(source, spans, written.sink)
    except FetchError:
        check(not written.data, "a source without ranges writes nothing", len(written.data))
        raise
    except OSError as error:
        raise AssertionError(
            f"broken promise: `read` writes the bytes of {spans} and no other; found {error}"
        ) from error
    return written
