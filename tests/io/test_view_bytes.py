"""How many bytes an epoch over a small part of a remote dataset fetches: counted by the server."""

import random

import numpy as np
import pytest

import wids
from tests.support import cache_shards
from tests.support.servers import Server
from tests.support.tars import publish
from wids.transport import filesystems

pytestmark = pytest.mark.usefixtures("own_cache")

SHARDS, ROWS, MEMBER_BYTES = 20, 40, 8000


@pytest.fixture(scope="module")
def shards():
    """Shards whose bytes cannot be guessed: path -> bytes."""
    rng = random.Random(3)
    return {
        f"/s{k:02d}.tar": cache_shards.pack(
            [(f"{k:02d}{row:02d}.bin", rng.randbytes(MEMBER_BYTES)) for row in range(ROWS)]
        )
        for k in range(SHARDS)
    }


@pytest.fixture
def web(shards):
    """A server of these shards and their member tables."""
    with Server(has_ranges=True) as server:
        for path, data in shards.items():
            server.add(path, data)
            publish(server, path)
        yield server


def clustered(n):
    """5 % of the samples, in three shards: one of them whole, two in part."""
    return np.arange(n // 2 + ROWS // 2, n // 2 + ROWS // 2 + n // 20)


def spread(n):
    """5 % of the samples, two in each shard."""
    return np.arange(n).reshape(SHARDS, ROWS)[:, [11, 29]].ravel()


@pytest.mark.parametrize(
    ("choose", "access", "share"),
    [(clustered, "fetch", 0.15), (clustered, "auto", 0.15), (clustered, "range", 0.08), (spread, "auto", 0.15)],
)
def test_an_epoch_over_a_twentieth(web, shards, tmp_path, monkeypatch, choose, access, share):
    """It fetches what it reads, and not the rest."""
    # On a network where a request costs as much as half a sample.
    monkeypatch.setattr(filesystems.Connections, "request_bytes", lambda self, host: MEMBER_BYTES // 2)
    listed = [{"url": web.url + path, "nsamples": ROWS, "filesize": len(data)} for path, data in shards.items()]
    dataset = wids.ShardListDataset(listed, cache_dir=tmp_path / "cache", access=access, transformations="raw")
    view = dataset.select(choose(len(dataset)))
    assert len(view) == len(dataset) // 20
    sampler, seen = wids.DistributedChunkedSampler(view, num_replicas=1, rank=0), []
    batch = []
    for index in sampler:
        batch.append(index)
        if len(batch) == 8:
            seen += [sample["__key__"] for sample in view.__getitems__(batch)]
            batch.clear()
    view.close()
    assert sorted(seen) == [f"{i // ROWS:02d}{i % ROWS:02d}" for i in choose(len(dataset))]
    whole = sum(map(len, shards.values()))
    assert web.sent_bytes.total() < share * whole
