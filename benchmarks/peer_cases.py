"""The contenders and rows of peers.py.

To add a loader: write ``contenders/peer_NAME.py`` (see ``contenders/peer_worker.py``), and name it in `PEERS` with its
pip requirements.
"""

from __future__ import annotations

from dataclasses import dataclass

import envs

# One installation of torch for all: each environment sees this one's packages behind its own. Not pinned, for pip of
# some machines may install one version alone (constraints, wheels without CUDA): the results have the versions.
BASE = envs.Entry(name="peers-base", requirements=("torch", "torchvision", "numpy", "pillow"))


def _peer(name: str, *requirements: str, worker: str = "", **environ: str) -> envs.Entry:
    environ = {"PEER": f"peer_{worker or name}", **environ}
    return envs.Entry(name=name, requirements=requirements, worker="peer_main", environ=environ, base=BASE)


# aiohttp and requests are for URLs. Its cache is in the process's own directory, which is deleted.
_HF = ("datasets==5.2.0", "aiohttp==3.14.5", "requests==2.34.2")
_HF_ENVIRON = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": "huggingface"}
PEERS = {
    entry.name: entry
    for entry in (
        _peer("wids", "-e", envs.REPOSITORY),
        _peer("webdataset", "webdataset==1.0.2"),
        _peer("bare"),
        _peer("mosaicml", "mosaicml-streaming==0.13.0"),
        _peer("litdata", "litdata==0.2.76"),
        _peer("energon", "megatron-energon[s3]==7.4.1"),
        _peer("webshart", "webshart==0.4.6"),
        _peer("hf-stream", *_HF, "torchdata==0.11.0", worker="hf_stream", **_HF_ENVIRON),
        _peer("hf-arrow", *_HF, worker="hf_arrow", **_HF_ENVIRON),
        _peer("grain", "grain==0.2.18", "array-record==0.8.6"),
        _peer("imagefolder"),
    )
}
# Loaders with threads over a dataset of this package; they run where they are named.
THREADED = {
    entry.name: entry
    for entry in (
        _peer("wids-threads", "-e", envs.REPOSITORY, worker="wids_threads"),
        _peer("nodes", "-e", envs.REPOSITORY, "torchdata==0.11.0"),
        _peer("spdl", "-e", envs.REPOSITORY, "spdl==0.8.0"),
        _peer("grain-wids", "-e", envs.REPOSITORY, "grain==0.2.18", worker="grain_wids"),
    )
}
ALL = {**PEERS, **THREADED}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: for ``--rows``.
        title: for the table.
        unit: of the figures.
        kind: what is done: "items", "loader" (a round each), "prepare", "cold", "hub", "memory", "open", "resume".
        data: the set that is read.
        workers, is_decoded: of a loader.
        draws: single samples in a round.
        figure: the figure of those that this kind of work gives.
        scale: the figure is multiplied by it.
    """

    name: str
    title: str
    unit: str
    kind: str
    data: str = ""
    workers: int = 0
    is_decoded: bool = False
    draws: int = 0
    figure: str = "unit_seconds"
    scale: float = 1e6


_SIZES = {"text": "texts, 1 kB", "jpeg20": "20 kB", "jpeg82": "82 kB"}
_DRAWS = {"text": 20_000, "jpeg20": 8_000, "jpeg82": 4_000}
MANY_SHARDS = 100_000

ROWS = (
    *(
        Row(
            name=f"random-{data}",
            title=f"ds[i], random, {size}",
            unit="us",
            kind="items",
            data=data,
            draws=_DRAWS[data],
        )
        for data, size in _SIZES.items()
    ),
    *(
        Row(
            name=f"epoch{workers}-{data}",
            title=f"shuffled epoch, {workers} workers, {size}",
            unit="us/sample",
            kind="loader",
            data=data,
            workers=workers,
        )
        for workers in (0, 2)
        for data, size in _SIZES.items()
    ),
    *(
        Row(
            name=f"decode{workers}",
            title=f"shuffled epoch, {workers} workers, 82-kB JPEG decoded and cropped",
            unit="us/sample",
            kind="loader",
            data="jpeg82",
            workers=workers,
            is_decoded=True,
        )
        for workers in (0, 2)
    ),
    *(
        Row(name=name, title=title, unit=unit, kind="cold", data="jpeg82", figure=figure, scale=1)
        for name, title, unit, figure in (
            ("first-cold", "first batch, remote, nothing cached", "s", "first"),
            ("epoch-cold", "epoch, remote, nothing cached", "s", "seconds"),
            ("bytes-cold", "bytes from the server, of those of the tars", "x", "bytes"),
            ("requests-cold", "requests to the server", "", "requests"),
            ("first-warm", "first batch, remote, all cached before", "s", "first_warm"),
        )
    ),
    *(
        Row(name=name, title=title, unit=unit, kind="hub", data="jpeg82", figure=figure, scale=1)
        for name, title, unit, figure in (
            ("first-hub", "first batch, from the Hub, nothing cached", "s", "first"),
            ("epoch-hub", "epoch, from the Hub, nothing cached", "s", "seconds"),
            ("bytes-hub", "bytes from the Hub and its store, of those of the tars", "x", "bytes"),
            ("requests-hub", "requests to the Hub and its store", "", "requests"),
            ("first-hub-warm", "first batch, from the Hub, all cached before", "s", "first_warm"),
        )
    ),
    Row(
        name="memory",
        title="memory, 2 workers, 82-kB JPEG",
        unit="MB",
        kind="memory",
        data="jpeg82",
        figure="bytes",
        scale=1e-6,
    ),
    Row(name="prepare", title="from tars to its format", unit="s", kind="prepare", figure="seconds", scale=1),
    Row(
        name="prepare-bytes", title="its format on disk, of the tars", unit="x", kind="prepare", figure="bytes", scale=1
    ),
    *(
        Row(name=name, title=title, unit=unit, kind="open", figure=figure, scale=scale)
        for name, title, unit, figure, scale in (
            ("open", "open 100,000 shards", "s", "seconds", 1),
            ("open-again", "the same in the next process", "s", "seconds_again", 1),
            ("open-memory", "memory that it takes there", "MB", "bytes_again", 1e-6),
        )
    ),
    Row(
        name="resume",
        title="mid-epoch state to first batch",
        unit="s",
        kind="resume",
        data="text",
        figure="seconds",
        scale=1,
    ),
)
