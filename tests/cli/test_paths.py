"""Every parameter that is a path, of the public functions and of the commands: ``~``, spaces, `Path`, ``file://``.

The parameters are found by their annotations, and by what the help of a command calls them: one without a case fails.
"""

import inspect
import os
import pathlib
import re
import shlex
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wids
from tests.support import mapped
from tests.support.cli import run, spawn, whole_command
from tests.support.clocks import wait_until
from tests.support.shards import write_index, write_json, write_shard
from wids import jobs, serve, testing

FOLDER = "my data"
# What the help of a command calls a parameter that is a path, or may be one.
WORDS = {
    *("DIR", "FILE", "PATTERN", "SOURCE", "INDEX", "OLD", "NEW", "OUT", "PACK", "URL", "DIR_OR_PATTERN"),
    *("COLUMN|SQL|FILE.npy", "NAME=[VALUES:]N", "NAME=FILE.npy", "A:B|FILE"),
}
# Names of shards in an index.
NO_PATHS = {("index update", "--drop")}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with a folder of all kinds of files, whose name has a space; the working directory is empty."""
    folder = tmp_path / "home" / FOLDER
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    index = write_index(folder, (4, 3, 2), name="train.json")
    jobs.create_columns(index, spec=jobs.parse_spec(fields=[".cls"]))
    write_shard(str(folder / "extra.tar"), 2)
    pq.write_table(pa.table({"index": range(9), "more": range(9)}), folder / "more.parquet")
    (folder / "other.json").write_text('{"wids_version": 1, "shardlist": [{"url": "extra.tar", "nsamples": 2}]}')
    sampler = wids.DistributedChunkedSampler(wids.ShardListDataset(index), num_replicas=1, rank=0)
    write_json(folder / "state.json", sampler.state_dict())
    (folder / "keys.txt").write_text("s0-001\n")
    (folder / "bad.jsonl").write_text('{"shard": "s0.tar", "row": 0}\n')
    np.save(folder / "some.npy", np.array([1, 3]))
    np.save(folder / "ones.npy", np.ones(9, np.int64))
    write_json(folder / "sizes.json", {f"s{k}.tar": count for k, count in enumerate((4, 3, 2))})
    (folder / "about.txt").write_text("nine samples")
    (folder / "classes.txt").write_text("a\nb\n")
    (folder / "x.txt").write_text("x")
    (folder / "rows.csv").write_text("file,label\nx.txt,a\n")
    (folder / "cache").mkdir()
    yield folder
    assert os.listdir() == []  # no folder of the name ~, and nothing beside it


# --- commands


ORDER = "--weights H/ones.npy"
LENGTHS = (
    "--lengths H/ones.npy --buckets H/ones.npy --max-tokens 4 --limit ones=H/ones.npy:4 "
    "--columns H/train.columns.parquet"
)
PACKS = "--lengths H/ones.npy --pack-tokens 4 --columns H/train.columns.parquet"
SAVED = "--state H/state.json --old H/train.json --old-lengths H/ones.npy --old-limit ones=H/ones.npy"
VIEWED = "--columns H/train.columns.parquet --cache-dir H/cache -o H/view.json"
LINES = [
    "pack H/rows.csv --base H --classes H/classes.txt --field .txt=file --field .cls=label -o H/a/p-%06d.tar",
    "pack H/train.json --cache-dir H/cache -o H/b/p-%06d.tar",
    "index create H/s0.tar H/s1.tar --counts H/sizes.json --info H/about.txt --base H -o H/new.json",
    "index diff H/train.json H/train.json --state H/state.json --old-lengths H/ones.npy --old-limit ones=H/ones.npy",
    "view H/train.json --unseen H/state.json --old H/train.json -o H/rest.json",
    "map H/train.json tests.support.mapped:name_all --cache-dir H/cache -o H/mapped",
    "rewrite H/train.json --exclude H/keys.txt --cache-dir H/cache -o H/rewritten",
    "rewrite H/train.json --exclude H/keys.txt --samples 3 --cache-dir H/cache -o H/anew",
    "index update H/train.json --counts H/sizes.json --add H/extra.tar",
    "index merge H/train.json H/other.json -o H/merged.json",
    "index split H/train.json --by 2 -o H/part-{}.json",
    (
        "index split H/train.json --fractions 1,1 --by cls --columns H/train.columns.parquet "
        "-o H/g{}.json --cache-dir H/cache"
    ),
    "index join H/train.json H/train.json --prefix twin --cache-dir H/cache -o H/joined.json",
    "index rebase H/train.json --base H -o H/rebased.json",
    "index convert H/train.json -o H/train.widsx",
    "index tables H/train.json -o H/train.tables",
    "info H/train.json --cache-dir H/cache",
    "ls H/train.json --cache-dir H/cache",
    "show H/train.json 0 --cache-dir H/cache",
    "cat H/train.json 0 .cls --cache-dir H/cache",
    "locate H/train.json s0-001 --cache-dir H/cache",
    f"at H/train.json --step 0 {ORDER} --cache-dir H/cache",
    f"at H/train.json --step 0 {LENGTHS}",
    f"at H/train.json --step 0 {SAVED}",
    f"when H/train.json 0 {SAVED}",
    f"simulate H/train.json --world-size 1 {SAVED}",
    f"when H/train.json 0 {ORDER} --cache-dir H/cache",
    f"when H/train.json 0 {LENGTHS}",
    f"when H/train.json 0 {PACKS}",
    "verify H/train.json --decode --report H/report.jsonl --journal H/journal.json",
    "columns create H/train.json --field .cls -o H/new.columns.parquet",
    "query H/train.json 'select count(*) from samples' --columns H/train.columns.parquet -o H/count.parquet",
    f"view H/train.json --select H/some.npy --exclude H/keys.txt --where 'cls >= 0' {VIEWED}",
    f"simulate H/train.json --world-size 1 {ORDER} --html H/page.html --plot H/picture.png",
    f"simulate H/train.json --world-size 1 {LENGTHS}",
    "cache ls H/cache",
    "cache clean H/cache --max-size 1GB",
    "cache warm H/train.json --cache-dir H/cache",
]
PROGRAMS = [
    "demo --ranks 1 --workers 0 --epochs 3 --keep H/demo",
    f"bench H/train.json --step 0.001 --steps 2 --seconds 5 --warmup 0 --batch-size 1 {ORDER} --cache-dir H/cache",
    f"bench H/train.json --step 0.001 --steps 2 --seconds 5 --warmup 0 {PACKS} --cache-dir H/cache",
    f"bench H/train.json --step 0.001 --steps 2 --seconds 5 --warmup 0 {LENGTHS} --cache-dir H/cache",
]
SERVERS = {
    "serve H/train.json --no-open --cache-dir H/cache --tags H/tags.npy": "",
    "cache daemon H/cache --max-size 1GB --every 0.1 --metrics H/numbers.prom": "numbers.prom",
}


def parameters(command, name=""):
    """(words of the command, the parameter) of each parameter that is a path."""
    for each, inner in getattr(command, "commands", {}).items():
        yield from parameters(inner, f"{name} {each}".strip())
    for parameter in command.params if not getattr(command, "commands", None) else ():
        if parameter.metavar in WORDS or parameter.name == "info":
            yield name, parameter


def test_all_paths_of_commands_have_a_case():
    """A new option that is a path is to be tried as the others are."""
    lines = [*LINES, *PROGRAMS, *SERVERS]
    lacking = []
    for name, parameter in parameters(whole_command()):
        own = [line for line in lines if line.startswith(f"{name} ")]
        is_option = parameter.param_type_name == "option"
        if is_option and not any(f" {option} " in line for line in own for option in parameter.opts):
            lacking.append((name, parameter.opts[-1]))
        elif not is_option and not own:
            lacking.append((name, parameter.name))
    assert set(lacking) == NO_PATHS


def words_of(line):
    """The words of a command, in which H is the folder."""
    return [re.sub(r"(?:^|(?<==))H(?=/|$)", f"~/{FOLDER}", word) for word in shlex.split(line)]


def check(home, line):
    """Run a command whose paths begin with ~ and have a space; all that it wrote is in the home directory."""
    done = run(*words_of(line))
    assert done.code == 0, done.err
    for word in shlex.split(line):
        if word.startswith("H/") and "%" not in word and "{" not in word and "journal" not in word:
            assert (home / word[2:]).exists(), word
    if "--info" in line:
        assert "nine samples" in (home / "new.json").read_text()


@pytest.mark.parametrize("line", LINES)
def test_paths_of_commands(home, line):
    """A shell leaves ~ in --option=~/x, and a program that starts a command anywhere."""
    check(home, line)


@pytest.mark.parametrize("line", [pytest.param(PROGRAMS[0], marks=pytest.mark.thorough), PROGRAMS[1]])
def test_paths_of_programs(home, line):
    """Likewise for what starts processes."""
    check(home, line)


@pytest.mark.parametrize("line", SERVERS)
def test_paths_of_servers(home, line):
    """Likewise for what runs until it is ended."""
    with spawn(*words_of(line)) as process:
        if name := SERVERS[line]:
            wait_until(lambda: (home / name).exists() or process.poll() is not None)
            assert (home / name).exists(), process.stderr.read()
        else:
            assert "http://127.0.0.1:" in process.stdout.readline()


# --- functions


class Own(os.PathLike):
    """A path that is neither str nor Path."""

    def __init__(self, text):
        self.text = text

    def __fspath__(self):
        return self.text


def sampled(dataset):
    """Samples of a dataset, to see that it is there."""
    assert len(dataset) > 0
    return dataset


def opened(**options):
    """A dataset of the index."""
    return wids.ShardListDataset(f"~/{FOLDER}/train.json", **options)


def write(pattern):
    """A shard of one sample."""
    with wids.ShardWriter(pattern) as writer:
        writer.write({"__key__": "a", ".txt": "a"})


def served(index, **options):
    """Pages, and their end."""
    with serve.start(index, **options) as server:
        assert server.url


def got(path):
    """A file of a server's directory."""
    with testing.Server(path) as server:
        assert wids.ShardListDataset(f"{server.url}/train.json")[0]


# (function, parameter) -> (a file or directory in the folder, what takes it); "url": a file: URL is taken, too.
CASES = {
    ("ShardListDataset", "shards"): ("train.json", lambda path: sampled(wids.ShardListDataset(path)), "url"),
    ("ShardListDataset", "cache_dir"): ("cache/", lambda path: opened(cache_dir=path), ""),
    ("ShardListDataset", "base"): ("", lambda path: wids.ShardListDataset([("s0.tar", 4)], base=path)[0], "url"),
    ("ShardListDataset", "error_log"): (
        "log.jsonl",
        lambda path: opened(on_error="substitute", error_log=path),
        "",
    ),
    ("ShardListDataset.save", "path"): ("v.json", lambda path: opened().select([0]).save(path), ""),
    ("Mixture.save", "path"): ("m.json", lambda path: wids.mix({"one": opened(), "more": opened()}).save(path), ""),
    ("ShardListDataset.select", "samples"): ("keys.txt", lambda path: sampled(opened().select(path)), "url"),
    ("ShardListDataset.exclude", "samples"): ("some.npy", lambda path: sampled(opened().exclude(path)), "url"),
    ("ShardListDataset.with_columns", "place"): (
        "train.columns.parquet",
        lambda path: sampled(opened().with_columns(["cls"], place=path)),
        "url",
    ),
    ("ShardListDataset.with_table", "table"): (
        "more.parquet",
        lambda path: sampled(opened().with_table(path, on="index")),
        "url",
    ),
    ("ShardWriter", "pattern"): ("w-%06d.tar", write, ""),
    ("keep_most_recent_files", "pattern"): ("cache/*", lambda path: wids.keep_most_recent_files(path, 1 << 30), ""),
    ("jobs.Session", "cache_dir"): ("cache/", lambda path: jobs.Session(cache_dir=os.fspath(path)).kept_in(None), ""),
    ("jobs.create_columns", "index"): ("train.json", lambda path: jobs.create_columns(path, "~/c.parquet"), "url"),
    ("jobs.create_columns", "output"): (
        "d.parquet",
        lambda path: jobs.create_columns(f"~/{FOLDER}/train.json", path),
        "",
    ),
    ("jobs.create_index", "sources"): ("s0.tar", lambda path: jobs.create_index(path, "~/i.json"), "url"),
    ("jobs.create_index", "output"): ("i.json", lambda path: jobs.create_index(f"~/{FOLDER}/s0.tar", path), ""),
    ("jobs.create_index", "base"): (
        "",
        lambda path: jobs.create_index(f"~/{FOLDER}/s0.tar", "~/j.json", base=path),
        "url",
    ),
    ("jobs.create_tables", "place"): ("train.json", lambda path: jobs.create_tables(path, "~/t.tables"), ""),
    ("jobs.create_tables", "output"): (
        "t.tables",
        lambda path: jobs.create_tables(f"~/{FOLDER}/train.json", path),
        "",
    ),
    ("jobs.map", "index"): ("train.json", lambda path: jobs.map(path, mapped.name_all, "~/mapped"), "url"),
    ("jobs.map", "output"): ("mapped", lambda path: jobs.map(f"~/{FOLDER}/train.json", mapped.name_all, path), ""),
    ("jobs.pack", "sources"): (
        "train.json",
        lambda path: jobs.pack(path, jobs.PackSettings(output="~/p-%06d.tar")),
        "url",
    ),
    ("jobs.rewrite_shards", "view"): (
        "train.json",
        lambda path: jobs.rewrite_shards(
            path, "~/w.json", settings=jobs.RewriteSettings(exclude=(f"~/{FOLDER}/keys.txt",))
        ),
        "url",
    ),
    ("jobs.rewrite_shards", "output"): (
        "w.json",
        lambda path: jobs.rewrite_shards(
            f"~/{FOLDER}/train.json", path, settings=jobs.RewriteSettings(exclude=(f"~/{FOLDER}/keys.txt",))
        ),
        "",
    ),
    ("jobs.update_index", "place"): ("other.json", jobs.update_index, ""),
    ("jobs.diff_indexes", "old"): ("train.json", lambda path: jobs.diff_indexes(path, f"~/{FOLDER}/train.json"), ""),
    ("jobs.diff_indexes", "new"): ("train.json", lambda path: jobs.diff_indexes(f"~/{FOLDER}/train.json", path), ""),
    ("jobs.update_index", "add"): (
        "s2.tar",
        lambda path: jobs.update_index(f"~/{FOLDER}/other.json", add=path),
        "url",
    ),
    ("jobs.verify", "index"): ("train.json", jobs.verify, "url"),
    ("jobs.verify", "journal"): ("k.json", lambda path: jobs.verify(f"~/{FOLDER}/train.json", journal=path), ""),
    ("jobs.warm", "index"): ("train.json", jobs.warm, "url"),
    ("serve.start", "index"): ("train.json", served, "url"),
    ("serve.start", "cache_dir"): (
        "cache/",
        lambda path: served(f"~/{FOLDER}/train.json", cache_dir=path),
        "",
    ),
    ("serve.start", "tags"): ("m.npy", lambda path: served(f"~/{FOLDER}/train.json", tags=path), ""),
    ("testing.Server", "directory"): ("", got, ""),
}
# A process of its own, which `keep_most_recent_files` is the work of.
APART = {("create_cleanup_background_process", "pattern")}


def functions():
    """(name, function) of all that is public and may take a path."""
    for name in wids.__all__:
        value = getattr(wids, name)
        if inspect.isclass(value):
            yield name, value.__init__
            members = inspect.getmembers(value, inspect.isfunction)
            yield from ((f"{name}.{method}", each) for method, each in members if not method.startswith("_"))
        elif inspect.isfunction(value):
            yield name, value
    for name in jobs.__all__:
        if inspect.isfunction(getattr(jobs, name)):
            yield f"jobs.{name}", getattr(jobs, name)
    yield "serve.start", serve.start
    yield "testing.Server", testing.Server.__init__


def test_all_paths_of_functions_have_a_case():
    """Those whose annotation says that it may be a path, and those that are texts or anything."""
    found = {
        (name, parameter.name)
        for name, function in functions()
        for parameter in inspect.signature(function).parameters.values()
        if "PathLike" in str(parameter.annotation) or str(parameter.annotation) == "Shards"
    }
    texts = {
        ("ShardListDataset.select", "samples"),
        ("ShardListDataset.exclude", "samples"),
        ("ShardListDataset.with_table", "table"),
        ("jobs.Session", "cache_dir"),
    }
    assert found | texts == set(CASES) | APART


# What stays unwritten where nothing fails and nothing is tagged, and what is deleted at the end.
UNWRITTEN = {("ShardListDataset", "error_log"), ("serve.start", "tags"), ("jobs.verify", "journal")}
FORMS = {
    "text": lambda place, name: f"~/{FOLDER}/{name}",
    "Path": lambda place, name: pathlib.Path(f"~/{FOLDER}/{name}"),
    "PathLike": lambda place, name: Own(f"~/{FOLDER}/{name}"),
    "url": lambda place, name: f"file://{quote(str(place / name), safe='/%')}",
}


PAIRS = [(case, form) for case, (_, _, kind) in CASES.items() for form in FORMS if form != "url" or kind == "url"]


@pytest.mark.parametrize(("case", "form"), PAIRS, ids=[f"{'.'.join(case)}-{form}" for case, form in PAIRS])
def test_paths_of_functions(home, case, form):
    """Each takes ~, spaces, a Path, any path-like, and a file: URL where URLs are taken."""
    name, call, _ = CASES[case]
    call(FORMS[form](home, name))
    if "%" not in name and "*" not in name and case not in UNWRITTEN:
        assert (home / name).exists()
