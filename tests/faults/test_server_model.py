"""Servers that change their minds and fail, at random: a sample is of one version of its shard, or there is an error.

Now and then the shard is evicted, and read early by the table that the cache remembers, whatever is served by then.

What is random follows from a seed, which a failure shows; the test that is marked ``long`` is the same with more seeds:
``pytest -m long tests/faults/test_server_model.py``.
"""

import functools
import hashlib
import os
import random
import time
import zlib
from collections import Counter

import pytest

import wids
from tests.support import tars
from tests.support.cache_shards import md5, pack
from tests.support.chaos import left_behind
from tests.support.clocks import wait_until
from tests.support.range_faults import (
    WEAK,
    all_as_range,
    chunked,
    elsewhere,
    ignored,
    of_longer,
    said,
    short,
    too_long,
    unsaid,
    unsized,
    within,
    zipped_range,
)
from tests.support.servers import cut, cut_chunked, instead, redirect, reset, status, whole, whole_unannounced, zipped
from wids.core.cache.space import Space, evict_from
from wids.core.cache.store import ShardCache
from wids.core.transport import concurrency, filesystems
from wids.errors import WidsError

pytestmark = pytest.mark.usefixtures("no_waits")

ROWS, VERSIONS = 5, (1, 2, 3)
# How the versions of a shard differ: in their bytes alone; in keys; in where members lie; in length.
KINDS = ("bytes", "keys", "places", "length")
OF_RANGES = (short, within(512, 0), within(0, 512), unsized, unsaid, too_long, elsewhere, of_longer, all_as_range)
FAULTS = [
    *OF_RANGES,
    *(cut, cut_chunked, reset, chunked, whole_unannounced, ignored, zipped, zipped_range),
    *(status(503), status(500), status(429, Retry_After=0), status(403), status(404), status(304)),
    *(instead(b"<html>log in</html>"), instead(b""), instead(bytes(10240)), redirect("/b.tar")),
]


def noise(version, row, size):
    """What member ``.bin`` of a sample holds."""
    return hashlib.shake_128(b"%d %d" % (version, row)).digest(size)


@functools.cache
def shard(kind, version):
    """A version of the shard: each of its members tells version and row."""
    members = []
    for row in range(ROWS):
        key = f"{row:03d}{'abcd'[version] if kind == 'keys' else 'x'}"
        size = 3000 + 512 * {"places": (row + version) % ROWS, "length": version}.get(kind, 0)
        text = b"%d %d" % (version, row)
        members += [(f"{key}.txt", text), (f"{key}.bin", noise(version, row, size)), (f"{key}.cls", text)]
    return pack(members)


class World:
    """A server with one shard that is replaced now and then, by a seed; and what was asked for.

    Attributes:
        url: of the shard. promised: what an index says of it. requests: how many there were.
    """

    def __init__(self, server, seed):
        self.choose = choose = random.Random(seed)
        self.kind = choose.choice(KINDS)
        self.requests = 0
        self._strong = choose.random() < 0.5
        self._marks = choose.sample(sorted(WEAK), choose.randrange(1, 3))
        # Replicas may be of two versions for a while.
        self._versions = [1] * choose.randrange(1, 3)
        self._lags = choose.random() < 0.3
        self._faults = choose.sample(FAULTS, choose.randrange(1, 4))
        self._failing, self._changing = choose.choice((0, 0.1, 0.3)), choose.choice((0, 0.05, 0.2))
        self.promised = choose.choice(("nothing", "size", "md5", "crc32", "both"))
        server.has_ranges = choose.random() < 0.9
        self.url = server.add("/a.tar", b"-", self.answer)
        server.add("/b.tar", b"-", self.answer)
        table = choose.choice((None, 1, 1, 2))
        if table:
            server.add("/a.tar.widx", tars.table_of(shard(self.kind, table)).to_bytes())

    def answer(self, handler, _):
        """A good answer or a fault, of the version of the replica that gives it."""
        choose = self.choose
        with handler.owner.lock:
            self.requests += 1
            if choose.random() < self._changing:
                new = min(max(self._versions) + 1, VERSIONS[-1])
                self._versions[choose.randrange(len(self._versions))] = new
                if not self._lags:
                    self._versions[:] = [new] * len(self._versions)
            version, mark = choose.choice(self._versions), choose.choice(self._marks)
            fault = choose.choice(self._faults) if choose.random() < self._failing else whole
        handler.version, body = version, shard(self.kind, version)
        if handler.span and handler.span[0] >= len(body):
            handler.span = None
        if handler.span is None and fault in (*OF_RANGES, zipped_range):
            fault = whole
        headers = {"ETag": f'"{md5(body)}"'} if self._strong else WEAK[mark]
        said(fault, **headers)(handler, body)

    def entry(self, version):
        """The shard as an index of that time lists it."""
        body = shard(self.kind, version)
        facts = {
            "size": {"filesize": len(body)},
            "md5": {"md5sum": md5(body)},
            "crc32": {"filesize": len(body), "crc32": f"{zlib.crc32(body):08x}"},
            "both": {"md5sum": md5(body), "crc32": f"{zlib.crc32(body):08x}"},
        }
        return {"url": self.url, "nsamples": ROWS, **facts.get(self.promised, {})}

    def check(self, sample, row):
        """See that a sample is that row of one version; gives the version."""
        version, found = map(int, sample[".txt"].split())
        body = shard(self.kind, version)
        assert found == row
        assert sample[".cls"] == sample[".txt"]
        assert sample[".bin"] == noise(version, row, len(sample[".bin"]))
        assert sample[".bin"] + bytes(-len(sample[".bin"]) % 512) in body
        assert f"{sample['__key__']}.txt".encode() in body
        return version


def live(server, cache, seed):
    """Read from one world by the indexes of three times; gives how many samples came, and the errors."""
    world = World(server, seed)
    choose, found = world.choose, Counter()
    for _ in range(3):
        if choose.random() < 0.7 and os.path.isdir(cache):
            evict_from([Space(cache, limit=None)], limit=10**9, maximum=0)  # with space for its table
        version = choose.choice((1, 1, 2, 3))
        options = {"access": choose.choice(("fetch", "fetch", "range", "auto")), "early_reads": choose.random() < 0.5}
        is_checked = world.promised in ("md5", "crc32", "both")
        is_whole = options["access"] == "fetch" and not options["early_reads"]
        dataset = wids.ShardListDataset([world.entry(version)], cache_dir=cache, transformations="raw", **options)
        for _ in range(4):
            rows = choose.choices(range(ROWS), k=choose.randrange(1, 5))
            before = world.requests
            try:
                samples = dataset.__getitems__(rows) if choose.random() < 0.5 else [dataset[row] for row in rows]
            except WidsError as error:
                found[type(error).__name__ if "/a.tar" in str(error) else repr(error)] += 1
            else:
                seen = {world.check(sample, row) for sample, row in zip(samples, rows, strict=True)}
                assert seen == {version} or not (is_checked and is_whole)
                found["samples"] += len(samples)
            assert world.requests - before < 200
        dataset.close()
        wait_until(lambda: left_behind(cache) == [])  # the shard may be on its way
        for name in os.listdir(cache) if os.path.isdir(cache) else ():
            if name.endswith(".tar"):
                with open(os.path.join(cache, name), "rb") as file:
                    assert file.read() in [shard(world.kind, version) for version in VERSIONS]
    return found


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(20), id="few"),
        pytest.param(None, id="many", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_servers_at_random(server, tmp_path, monkeypatch, set_limits, request, seeds):
    """No sample and no cached shard is made of two versions; what waits for checked shards gets no other version."""
    recall, recalled = ShardCache.remembered_table, []

    def remembered_table(*args):
        recalled.append(recall(*args))
        return recalled[-1]

    monkeypatch.setattr(ShardCache, "remembered_table", remembered_table)
    monkeypatch.setattr(filesystems.Connections, "gap_bytes", lambda self, host: 600)
    set_limits(concurrency, min_range_bytes=4000, first_range_bytes=4000)
    found = Counter()
    start = time.time_ns() % 1_000_000
    for seed in range(start, start + 2000) if seeds is None else seeds:
        monkeypatch.setattr(filesystems.connections(), "weak_hosts", set())
        try:
            found += live(server, str(tmp_path / f"cache-{seed}"), seed)
        except BaseException:
            request.node.add_report_section("call", "model", f"seed {seed}")
            raise
    assert all(name.isidentifier() for name in found)
    assert any(table is not None for table in recalled)  # some were read by a table that the cache remembered
    assert found["samples"] > sum(count for name, count in found.items() if name != "samples")
