"""All jobs on a Ray cluster of two nodes on this machine, one after the other; prints what became of them as JSON.

A program of its own, for Ray warns, and leaves threads behind, in whatever process it is used. In the directory where
it runs there are the shards and files that `tests/e2e/test_jobs_ray.py` makes.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import msgspec
import psutil
import ray
from ray.cluster_utils import Cluster

from wids import jobs, testing
from wids.core.collection.shard_collection import load_shards
from wids.jobs.cache_warm import warm_cache
from wids.jobs.index_create import create_index
from wids.jobs.index_verify import verify_shards
from wids.jobs.ray_cluster import alive_nodes
from wids.jobs.runner import RunOptions
from wids.tools import cli
from wids.writing.pack.folders import list_files
from wids.writing.pack.listing import SourceListing, read_one_by_one
from wids.writing.pack.run import pack_listing as pack
from wids.writing.pack.shard import PackSettings

PATIENCE_SECONDS = 60
COMMAND = (sys.executable, "-m", "wids.tools.cli")


def run(*args):
    """(exit code, stdout) of the command line, in this process; its errors are shown if a test fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            cli.app(args=list(args), prog_name="wids")
        except SystemExit as end:
            return end.code or 0, out.getvalue()
    return 0, out.getvalue()


def content(directory):
    """The digest of each shard and index in a directory; member tables and states have times in them, joins places."""
    found = {}
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        found[name] = "" if name.endswith((".widx", ".state", "joined.json")) else hashlib.md5(data).hexdigest()
    return found


class NodeReader:
    """Reads numbers; writes down where, and on one node never ends with those from `first` on.

    Other nodes wait with these until that has begun, so that it has one of them.
    """

    def __init__(self, log, victim, first):
        self.log, self.victim, self.first = log, victim, first

    def read(self, item):
        """A sample."""
        node = ray.get_runtime_context().get_node_id()
        is_victim = node == self.victim
        with open(self.log, "a") as file:
            file.write(f"{item} {'victim' if is_victim else 'other'}\n")
        until = time.monotonic() + PATIENCE_SECONDS
        if item >= self.first and is_victim:
            with open(f"{self.log}.stuck", "w"):
                pass
        while item >= self.first and (is_victim or not os.path.exists(f"{self.log}.stuck")):
            assert time.monotonic() < until
            time.sleep(0.02)
        return str(item), [(".txt", b"%d" % item)]

    read_each = read_one_by_one

    def measure_each(self, items, keys):
        """As of any source."""
        return [1024] * len(items)

    def identify(self, items):
        """As of any source."""
        return repr(items)


def indexes(options):
    """An index with a bad shard, by the library and by the command."""
    outcome = create_index(["d"], "ray.json", name="n", engine=options)
    with open("d/s9.tar", "wb") as file:
        file.write(b"x" * 2000)
    flags = ("--engine", "ray", "--ray-address", options.ray_address, "--skip-errors", "--json")
    code, out = run("index", "create", "d", "-o", "c.json", *flags)
    os.unlink("d/s9.tar")
    return {"shards": outcome.shards, "code": code, "failed": [os.path.basename(u) for u in json.loads(out)["failed"]]}


def same_files(command, asked, names, suffixes):
    """What a command prints as JSON, here and on the cluster, each with an output of its own; whether these are equal.

    Args:
        command: its words.
        asked: its arguments and options.
        names: of the outputs, here and on the cluster.
        suffixes: of the files that each of them is.
    """
    told = []
    for name, engine in zip(names, ("threads", "ray"), strict=True):
        code, out = run(*command, *asked, "-o", name, "--engine", engine)
        told.append({"code": code, **json.loads(out)})
    is_same = [read(names[0] + suffix) == read(names[1] + suffix) for suffix in suffixes]
    return told, all(is_same)


def read(path):
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def columns():
    """Columns of the shards, from the cluster and from threads, by the command; a second run on the cluster."""
    flags = ("here.json", "--field", ".cls=label", "--text", ".txt=caption", "--report-json")
    names = ("here.parquet", "ray.parquet")
    told, is_same = same_files(("columns", "create"), flags, names, ("", ".state"))
    again, is_same_again = same_files(("columns", "create"), flags, names, ("", ".state"))
    return {
        "codes": [each["code"] for each in told + again],
        "is_same": is_same and is_same_again,
        "rows": told[1]["samples"],
        "surveyed": [each["surveyed"] for each in told + again],
    }


def tables():
    """The pack of member tables, from the cluster and from threads, by the command."""
    shutil.copy("here.json", "packed.json")  # which comes to name the pack
    told, is_same = same_files(("index", "tables"), ("packed.json", "--json"), ("here.tables", "ray.tables"), ("",))
    return {"codes": [each["code"] for each in told], "is_same": is_same, "shards": told[1]["shards"]}


def findings(options):
    """What verify finds, here and on the cluster; once by the command."""
    _, shards, _ = load_shards("damaged.json")
    chosen = list(enumerate(shards))
    here, there = (
        msgspec.to_builtins(verify_shards(chosen, engine=each).findings) for each in (RunOptions(jobs=2), options)
    )
    reports = [run("verify", "damaged.json", "--json", *more) for more in ((), ("--engine", "ray"))]
    texts = [json.dumps({**json.loads(out), "seconds": 0}) for _, out in reports]
    return {"is_same": here == there, "wrong": sum(bool(each["problems"]) for each in there)} | {
        "codes": [code for code, _ in reports],
        "is_same_report": texts[0] == texts[1],
    }


def packed(options):
    """A folder packed here and on the cluster."""
    shown = {}
    for name, each in (("here", RunOptions(jobs=1)), ("there", options)):

        def show(progress, name=name):
            shown[name] = msgspec.to_builtins(progress)

        listing = list_files("in", numbers_keys=False, keep_fields=None, tell=lambda _: None)
        pack(listing, PackSettings(output=f"{name}/p-%d.tar", samples=3), engine=each, progress=show)
    return {
        "is_same": content("here") == content("there"),
        "is_same_progress": shown["here"] == shown["there"],
        "names": len(os.listdir("there")),
    }


def mapped(options):
    """New fields by a class, here and on the cluster, where each task has an accelerator; a run that is ended twice."""
    on_gpus = msgspec.structs.replace(options, num_gpus=1)
    model = "tests.support.mapped:Model"

    def run(engine, count):
        def end(progress):
            if progress.ended >= count:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            jobs.map("here.json", model, "mapped/new", engine=engine, progress=end)

    jobs.map("here.json", model, "mapped-here/new", engine="threads")
    run(msgspec.structs.replace(on_gpus, jobs=2), 2)
    run(RunOptions(engine="processes", jobs=1), 4)
    outcome = jobs.map("here.json", model, "mapped/new", engine=on_gpus)
    settings = jobs.MapSettings(columns=True)
    for name, engine in (("here-values.parquet", "threads"), ("values.parquet", options)):
        jobs.map("here.json", "tests.support.mapped:measure", name, settings=settings, engine=engine)
    made = read("models").split()
    return {
        "is_same": content("mapped-here/new") == content("mapped/new"),
        "is_same_table": read("here-values.parquet") == read("values.parquet"),
        "goes_on": 4 <= outcome.known < 9,
        "made": len(made),
    }


def warmed(options, url, excluded):
    """A cache on each node, twice, and then with one node left out."""
    _, shards, _ = load_shards(url)
    found, shown = [], []
    for more in ((), (), (excluded,)):
        outcome = warm_cache(list(shards), engine=options, excluded=more, progress=shown.append)
        found.append(
            {
                "nodes": sorted(os.path.basename(one.directory) for one in outcome.nodes),
                "fetched": outcome.fetched,
                "cached": outcome.cached,
                "failed": outcome.failed,
            }
        )
    code, out = run("cache", "warm", url, "--engine", "ray", "--ray-address", options.ray_address, "--shards", "0:1")
    ended = [each.ended for each in shown if each.ended == each.shards]
    return {"runs": found, "code": code, "lines": len(out.splitlines()), "ended": [ended[0], ended[-1]]}


def survived(options, cluster, node):
    """A node is killed in the middle of packing: shards that it was at are written again, others are not."""
    listing = SourceListing(items=range(12), reader=NodeReader(os.path.abspath("log"), node.node_id, 4))
    killed = []

    def show(_):
        if not killed and os.path.exists("log.stuck"):
            killed.append(True)
            cluster.remove_node(node, allow_graceful=False)

    outcome = pack(listing, PackSettings(output="survived/p-%d.tar", samples=1), progress=show, engine=options)
    whole = SourceListing(items=range(12), reader=NodeReader(os.path.abspath("log2"), "", 99))
    pack(whole, PackSettings(output="whole/p-%d.tar", samples=1), engine=options)
    with open("log") as file:
        log = [line.split() for line in file]
    reads = {int(item): [where for number, where in log if number == item] for item, _ in log}
    return {
        "killed": len(killed),
        "shards": outcome.shards,
        "is_same": content("survived") == content("whole"),
        "again": [where for item in reads for where in reads[item] if len(reads[item]) > 1],
        "once": sum(len(where) == 1 for where in reads.values()),
    }


def workers():
    """The processes of this cluster that are at a task; other tests may have clusters of their own."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "ray::_call_on_node" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


@contextlib.contextmanager
def disturbing(act):
    """An index at a URL, of shards whose last one comes half; then ``act()`` is called, and all comes.

    Gives the index's URL, and those of the shards.
    """
    with testing.Server("d") as server:
        server.add("/i.json", read("remote.json"))
        gate = testing.Gate()
        server.faults["/s8.tar"] = [gate]

        def disturb():
            assert gate.entered.wait(PATIENCE_SECONDS)
            act()
            gate.go.set()

        thread = threading.Thread(target=disturb)
        thread.start()
        yield f"{server.url}/i.json", [f"{server.url}/s{k}.tar" for k in range(9)]
        thread.join()


def kill_workers():
    """Kill those that are at a task, of which there is one."""
    for number in workers():
        os.kill(number, signal.SIGKILL)


def with_a_killed_worker():
    """Jobs whose worker is killed in the middle of a shard: exit codes, and what was done."""
    codes = {}
    with disturbing(kill_workers) as (_, urls):
        command = [*COMMAND, "index", "create", *urls, "-o", "k.json", "--engine", "ray", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        codes["index"] = done.returncode, done.stderr, json.loads(done.stdout)["surveyed"]
    for name, verb, *words in (
        ("columns", "create", "--field", ".cls=label", "-o", "k.parquet"),
        ("cache", "warm", "--cache-dir", os.path.abspath("cache-killed")),
    ):
        with disturbing(kill_workers) as (index, _):
            codes[name] = run(name, verb, index, *words, "--engine", "ray")[0]
    return codes


def ended_by_a_signal():
    """What a command says (exit code, stdout, stderr) that SIGTERM ends in the middle of a shard."""
    started = []
    with disturbing(lambda: started[-1].send_signal(signal.SIGTERM)) as (index, _):
        command = [*COMMAND, "verify", index, "--engine", "ray"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        out, err = started[-1].communicate(timeout=PATIENCE_SECONDS)
    return started[-1].returncode, out, err


def main(url):
    """All of it on one cluster."""
    os.makedirs("/tmp/ray", exist_ok=True)  # Ray writes the cluster's address there, wherever the rest is
    place = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short, for a socket's name has 107 bytes at most
    lean = {"num_cpus": 1, "num_gpus": 1, "include_log_monitor": False, "object_store_memory": 100 << 20}
    head = {**lean, "include_dashboard": False, "no_monitor": True, "temp_dir": place}
    log = {"WIDS_TEST_LOG": os.path.abspath("models")}
    head["env_vars"] = {"WIDS_CACHE": os.path.abspath("cache-head"), **log}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        caches = {"WIDS_CACHE": os.path.abspath("cache-node"), **log}
        node = cluster.add_node(**lean, env_vars=caches)
        cluster.wait_for_nodes()
        options = RunOptions(engine="ray", ray_address=cluster.address)
        os.environ["RAY_ADDRESS"] = cluster.address
        told = {"index": indexes(options)}
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        told["nodes"] = len(alive_nodes(ray))
        told |= {"verify": findings(options), "pack": packed(options)}
        told |= {"columns": columns(), "tables": tables(), "map": mapped(options)}
        told["warm"] = warmed(options, url, node.node_id)
        told["killed"], told["ended"] = with_a_killed_worker(), ended_by_a_signal()
        told["survived"] = survived(options, cluster, node)
        ray.shutdown()
    finally:
        cluster.shutdown()
        shutil.rmtree(place, ignore_errors=True)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
