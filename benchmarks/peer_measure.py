"""The work of peers.py: each kind of row, measured in rounds in which the contenders take turns."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from children import Child, ChildError
from cold_watch import directory_bytes
from peer_cases import MANY_SHARDS, Row
from slow_server import SlowServer
from tree_memory import TreeMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    import envs
    from forks import ForkServer

_SAVED_WORLD = 2
# What takes longer to open has one round.
_SLOW_SECONDS = 15.0
START = Row(name="start", title="", unit="", kind="")


@dataclass(kw_only=True)
class Bench:
    """What is measured, where, and what was found.

    Attributes:
        sets: see `peer_data.make`.
        root: the directory of data and formats; the server serves it.
        scratch: deleted after the run.
        server: the slow server. speed: its latency and bandwidth.
        batch: samples in a batch.
        other_world: ranks that a job of two ranks is also resumed on.
        entries, interpreters: of the contenders, by name.
        reply_seconds: for one request to a contender.
        forks: of a quick run.
        figures: by row and contender, of each round, scaled to the row's unit.
        texts: by row and contender, what is not a figure.
        errors: by row and contender.
        about: by contender: versions, settings, notes, kinds.
    """

    sets: dict[str, dict]
    root: str
    scratch: str
    server: SlowServer
    speed: dict[str, float]
    batch: int
    other_world: int
    entries: dict[str, envs.Entry]
    interpreters: dict[str, str]
    reply_seconds: float
    forks: ForkServer | None
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    errors: dict[str, dict[str, str]] = field(default_factory=dict)
    about: dict[str, dict] = field(default_factory=dict)

    def home(self, name: str) -> str:
        """The directory of a contender's own format."""
        return os.path.join(self.root, "formats", name)

    @contextmanager
    def child(self, name: str, **environ: str) -> Iterator[Child]:
        """A fresh process of a contender; what it wrote outside of its home is deleted at the end."""
        directory = tempfile.mkdtemp(dir=self.scratch)
        manifest = os.path.join(directory, "manifest.json")
        given = {"sets": self.sets, "root": self.root, "home": self.home(name), "url": self.server.url}
        with open(manifest, "w", encoding="utf-8") as stream:
            json.dump({**given, "batch": self.batch}, stream)
        entry = self.entries[name]
        # curl, boto3 and others would use a proxy for loopback addresses too.
        own = {"no_proxy": "127.0.0.1,localhost", "AWS_EC2_METADATA_DISABLED": "true", "TMPDIR": directory}
        environ = {**own, **entry.environ, **environ}
        entry = replace(entry, environ=environ)
        try:
            about = {"reply_seconds": self.reply_seconds, "forks": self.forks}
            with Child(entry, self.interpreters[name], manifest, directory, **about) as child:
                yield child
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def can(self, name: str, kind: str) -> bool:
        """Whether a contender has this kind of work."""
        return kind in self.about[name]["kinds"]

    def add(self, row: Row, name: str, reply: dict) -> None:
        """Keep the figure of one round."""
        self.figures.setdefault(row.name, {}).setdefault(name, []).append(reply[row.figure] * row.scale)

    def fail(self, rows: list[Row], name: str, failure: Exception) -> None:
        """Leave a contender out of rows."""
        print(failure, file=sys.stderr, flush=True)
        for row in rows:
            self.errors.setdefault(row.name, {})[name] = str(failure).split("\n", 1)[0]
            self.figures.get(row.name, {}).pop(name, None)

    def able(self, rows: list[Row], kind: str) -> list[str]:
        """The contenders that have this kind of work and have not failed in one of ``rows``."""
        failed = {name for row in rows for name in self.errors.get(row.name, {})}
        return [name for name in self.about if self.can(name, kind) and name not in failed]


def set_up(bench: Bench, names: list[str], rows: list[Row]) -> None:
    """Ask each contender what it can do, have it make its own format of each set, and check what it yields.

    A contender that cannot do that is left out. A set that it cannot take (folders of pictures hold no texts) is one
    that its ``prepare`` refuses with NotImplementedError.
    """
    for name in names:
        print(f"{name} prepares its data ...", file=sys.stderr, flush=True)
        try:
            with bench.child(name) as child:
                bench.about[name] = child.ask("hello")
                made = _prepare(bench, name, child)
                bench.about[name]["sets"] = list(made or bench.sets)
                _check(bench, name, child, {row.data for row in rows})
        except ChildError as failure:
            bench.fail([START], name, failure)
            bench.about.pop(name, None)
            continue
        if made:
            tars = sum(bench.sets[data]["bytes"] for data in made)
            found = {"seconds": sum(one["seconds"] for one in made.values())}
            found["bytes"] = sum(one["bytes"] for one in made.values()) / tars
            for row in rows:
                if row.kind == "prepare":
                    bench.add(row, name, found)


def _prepare(bench: Bench, name: str, child: Child) -> dict[str, dict]:
    """Seconds and bytes by set; they are kept beside the formats, with the versions that made them."""
    if not bench.can(name, "prepare"):
        return {}
    record = os.path.join(bench.home(name), "prepared.json")
    wanted = {"versions": bench.about[name]["versions"], "sets": {}}
    done = wanted
    if os.path.exists(record):
        with open(record, encoding="utf-8") as stream:
            done = json.load(stream)
        if done["versions"] != wanted["versions"]:
            done = wanted
    for data in bench.sets:
        if data in done["sets"]:
            continue
        own = os.path.join(bench.home(name), data)
        shutil.rmtree(own, ignore_errors=True)
        os.makedirs(own)
        reply = child.ask("prepare", set=data)
        os.sync()
        size = directory_bytes(own) if reply["bytes"] is None else reply["bytes"]
        done["sets"][data] = {**reply, "bytes": size}
        with open(record, "w", encoding="utf-8") as stream:
            json.dump(done, stream)
    return {data: done["sets"][data] for data in bench.sets if done["sets"][data]["is_possible"]}


def _check(bench: Bench, name: str, child: Child, wanted: set[str]) -> None:
    """Raise unless each key, payload and label comes once, in an epoch and by single samples."""
    for data, found in bench.sets.items():
        if data not in wanted or not has_set(bench, name, data):
            continue
        told = child.ask("check", set=data, workers=2)["found"]
        for kind, (count, digest) in told.items():
            if (count, digest) != (found["samples"], found["digest"]):
                raise ChildError(f"{name}, {kind}: {count} samples of {data}, which are not those of the tars")


def has_set(bench: Bench, name: str, data: str) -> bool:
    """Whether a contender could make its format of a set, or needs none."""
    return data in bench.about[name]["sets"]


def run_timed(bench: Bench, rows: list[Row], rounds: int) -> None:
    """Rounds of single samples and of whole epochs, by one process of each contender."""
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for row in rows:
            print(f"{row.name} ...", file=sys.stderr, flush=True)
            kind = "items" if row.kind == "items" else "loader"
            names = [name for name in bench.able([row], kind) if has_set(bench, name, row.data)]
            for name in list(names):
                if name not in children:
                    children[name] = stack.enter_context(bench.child(name))
                options = {"set": row.data, "workers": row.workers, "is_decoded": row.is_decoded, "draws": row.draws}
                if not _try(bench, row, name, children, "start", kind=kind, **options):
                    names.remove(name)
            for number in range(min(rounds, 3) if row.is_decoded else rounds):
                for name in list(names):
                    reply = _try(bench, row, name, children, "run", seed=number + 1)
                    if reply:
                        bench.add(row, name, {"unit_seconds": reply["seconds"] / reply["units"]})
                    else:
                        names.remove(name)
            for name in names:
                _try(bench, row, name, children, "stop")


def _try(bench: Bench, row: Row, name: str, children: dict[str, Child], op: str, **request: object) -> dict | None:
    """A contender's reply, checked; None if it failed: then its next row has a new process."""
    try:
        reply = children[name].ask(op, **request)
        if op == "run":
            check_round(bench, row, name, reply)
    except ChildError as failure:
        bench.fail([row], name, failure)
        del children[name]
        return None
    return reply or {"is_done": True}


def check_round(bench: Bench, row: Row, name: str, reply: dict) -> None:
    found = bench.sets[row.data or "jpeg82"]
    count = found["samples"]
    if row.kind == "items":
        return  # which samples they are was checked before
    if reply["units"] != count:
        raise ChildError(f"{name} yielded {reply['units']} samples of {count} in an epoch")
    if reply.get("labels", count * (count - 1) // 2) != count * (count - 1) // 2:
        raise ChildError(f"{name} yielded some samples twice")
    if reply.get("payload", found["payload"]) != found["payload"]:
        raise ChildError(f"{name} handed out {reply['payload']} bytes of {found['payload']}")


def run_cold(bench: Bench, rows: list[Row], rounds: int) -> None:
    """An epoch through the server with an empty cache directory, then a first batch from what that has left there."""
    _run_cold(bench, rows, rounds, "remote_loader", bench.server)


def run_hub(bench: Bench, rows: list[Row], rounds: int) -> None:
    """The same from the Hub's stand-in: a data set with a card, the tars, and what wids puts beside them."""
    found = bench.sets[rows[0].data]
    with tempfile.TemporaryDirectory(dir=bench.root) as root:
        for name in os.listdir(found["directory"]):
            os.link(os.path.join(found["directory"], name), os.path.join(root, name))
        with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as card:
            card.write(
                '---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: "*.tar"\n---\n'
            )
        with SlowServer(root, hub=f"bench/{rows[0].data}", **bench.speed) as hub:
            _run_cold(bench, rows, rounds, "hub_loader", hub, HF_ENDPOINT=hub.url)


def _run_cold(bench: Bench, rows: list[Row], rounds: int, kind: str, server: SlowServer, **environ: str) -> None:
    data = rows[0].data
    for number in range(rounds):
        for name in bench.able(rows, kind):
            print(f"{rows[0].kind}, round {number + 1}: {name} ...", file=sys.stderr, flush=True)
            cache = os.path.join(bench.scratch, "turn", "cache")
            shutil.rmtree(os.path.dirname(cache), ignore_errors=True)
            os.makedirs(os.path.dirname(cache))
            try:
                with bench.child(name, **environ) as child:
                    child.greet()
                    server.stats()
                    cold = child.ask("cold", kind=kind, set=data, cache=cache, is_whole=True)
                sent = server.stats()
                check_round(bench, rows[0], name, cold)
                with bench.child(name, **environ) as child:
                    child.greet()
                    warm = child.ask("cold", kind=kind, set=data, cache=cache, is_whole=False)
            except ChildError as failure:
                bench.fail(rows, name, failure)
                continue
            finally:
                shutil.rmtree(os.path.dirname(cache), ignore_errors=True)
                os.sync()  # else this contender's files would be flushed in the turn of the next
            figures = {**cold, "bytes": sent["bytes"] / bench.sets[data]["bytes"], "requests": sent["requests"]}
            for row in rows:
                bench.add(row, name, {**figures, "first_warm": warm["first"]})


def run_memory(bench: Bench, row: Row, rounds: int) -> None:
    """The peak of an epoch by 2 workers: memory of the process and of all its children, without pages of files."""
    print(f"{row.name} ...", file=sys.stderr, flush=True)
    for _ in range(rounds):
        for name in bench.able([row], "loader"):
            if not has_set(bench, name, row.data):
                continue
            try:
                with bench.child(name) as child:
                    child.greet()
                    with TreeMemory(child.pid) as seen:
                        child.ask("start", kind="loader", set=row.data, workers=2, is_decoded=True)
                bench.add(row, name, {"bytes": seen.peak_bytes})
            except ChildError as failure:
                bench.fail([row], name, failure)


def run_open(bench: Bench, rows: list[Row], rounds: int) -> None:
    """Open a dataset of very many shards, in a fresh process; twice, for what the first one leaves for the next."""
    for name in bench.able(rows, "open_many"):
        print(f"open: {name} ...", file=sys.stderr, flush=True)
        try:
            with bench.child(name) as child:
                child.ask("prepare_many", count=MANY_SHARDS)
            for number in range(rounds):
                with tempfile.TemporaryDirectory(dir=bench.scratch) as cache:
                    replies = []
                    for _ in range(2):
                        with bench.child(name, WIDS_CACHE=cache) as child:
                            child.greet()
                            replies.append(child.ask("open", count=MANY_SHARDS))
                first, again = replies
                told = {**first, "seconds_again": again["seconds"], "bytes_again": again["bytes"]}
                for row in rows:
                    bench.add(row, name, told)
                if number + 1 < rounds and again["seconds"] > _SLOW_SECONDS:
                    break
        except ChildError as failure:
            bench.fail(rows, name, failure)


def run_resume(bench: Bench, row: Row) -> None:
    """Save two ranks in the middle of an epoch; resume them on as many and on others. What is read, and how soon."""
    for name in bench.able([row], "job"):
        print(f"resume: {name} ...", file=sys.stderr, flush=True)
        half = bench.sets[row.data]["samples"] // bench.batch // _SAVED_WORLD // 2
        try:
            before = _run_ranks(bench, name, row.data, _SAVED_WORLD, [None] * _SAVED_WORLD, half)
        except ChildError as failure:
            bench.fail([row], name, failure)
            continue
        states = [reply["state"] for reply in before]
        seen = [label for reply in before for label in reply["labels"]]
        for row_name, world in ((f"{row.name}-same", _SAVED_WORLD), (f"{row.name}-other", bench.other_world)):
            given = states if world == _SAVED_WORLD else [states[0]] * world
            try:
                after = _run_ranks(bench, name, row.data, world, given, None)
            except ChildError as failure:
                told = str(failure).split("\n", 1)[0].partition(": ")[2]
                bench.texts.setdefault(row_name, {})[name] = f"refused: {told}"
                print(failure, file=sys.stderr, flush=True)
                continue
            rest = [label for reply in after for label in reply["labels"]]
            bench.texts.setdefault(row_name, {})[name] = _compare(seen, rest, bench.sets[row.data]["samples"])
            # A loader that forgot all that was left has no first batch.
            if world == _SAVED_WORLD and all(reply["first"] is not None for reply in after):
                bench.add(row, name, {"seconds": max(reply["first"] for reply in after)})


def _compare(seen: list[int], rest: list[int], samples: int) -> str:
    counts = Counter(seen + rest)
    lost = samples - len(counts)
    repeated = sum(counts.values()) - len(counts)
    return "exact" if not lost and not repeated else f"{lost} lost, {repeated} again, of {samples - len(set(seen))}"


def _run_ranks(bench: Bench, name: str, data: str, world: int, states: list, limit: int | None) -> list[dict]:
    with ExitStack() as stack, ThreadPoolExecutor(world) as pool:
        port = str(_free_port())
        children = [
            stack.enter_context(
                bench.child(
                    name,
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(world),
                    LOCAL_WORLD_SIZE=str(world),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=port,
                )
            )
            for rank in range(world)
        ]
        list(pool.map(Child.greet, children))
        asked = [
            pool.submit(child.ask, "resume", set=data, rank=rank, world=world, state=states[rank], limit=limit)
            for rank, child in enumerate(children)
        ]
        return [one.result() for one in asked]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
