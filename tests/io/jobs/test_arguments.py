"""What a caller gives a job: an error names it before any work is done; text, a `Path`, or several of them."""

import contextlib
import os
import pydoc
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

import wids
from tests.support.shards import write_shards
from wids import jobs
from wids.columns.spec import ColumnRule
from wids.errors import InputError, WidsError

INDEX = "train.json"
OUT = jobs.PackSettings(output="out/p-%d.tar", samples=2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The working directory: three shards and their index."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path, (1, 2, 3))
    jobs.create_index("*.tar", INDEX)
    return tmp_path


JOBS = {
    "create_index": lambda **how: jobs.create_index("*.tar", "new.json", **how),
    "update_index": lambda **how: jobs.update_index(INDEX, **how),
    "verify": lambda **how: jobs.verify(INDEX, **how),
    "warm": lambda **how: jobs.warm(INDEX, **how),
    "pack": lambda **how: jobs.pack(INDEX, **{"settings": OUT, **how}),
    "create_columns": lambda **how: jobs.create_columns(INDEX, **how),
    "create_tables": lambda **how: jobs.create_tables(INDEX, **how),
    "map": lambda **how: jobs.map(INDEX, print, "new", **how),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"engine": jobs.RunOptions(jobs=10**30)}, r"engine: jobs=10+: (expected `int` <=|[Ii]nteger).*"),
        ({"engine": "baz"}, "engine='baz': give 'auto'"),
        ({"engine": ["threads"]}, r"engine=\['threads'\]"),
        ({"engine": jobs.RunOptions(jobs=0)}, "engine: jobs=0: expected `int` >= 1"),
        ({"progress": "baz"}, "progress='baz'"),
        ({"settings": {"session": None}}, "settings is a dict: give "),
    ],
)
def test_what_all_jobs_are_given(name, how, message, home):
    """Nothing is written."""
    before = sorted(home.iterdir())
    if name == "create_columns" and "settings" in how:
        how, message = {"spec": how["settings"]}, "spec is a dict: give "
    with pytest.raises(InputError, match=message):
        JOBS[name](**how)
    assert sorted(home.iterdir()) == before


def _packing(**how):
    return lambda: jobs.pack(INDEX, jobs.PackSettings(**{"output": "p-%d.tar", **how}))


def _from_source(**how):
    return lambda: jobs.pack(INDEX, OUT, source=jobs.PackSource(**how))


def _indexing(**how):
    return lambda: jobs.create_index("*.tar", "new.json", settings=jobs.IndexSettings(**how))


def _checking(**how):
    return lambda: jobs.verify(INDEX, jobs.VerifySettings(**how))


def _warming(**how):
    return lambda: jobs.warm(INDEX, jobs.WarmSettings(**how))


def _with_session(**how):
    return lambda: jobs.create_columns(INDEX, session=jobs.Session(**how))


def _with_spec(**how):
    return lambda: jobs.create_columns(INDEX, spec=jobs.ColumnSpec(**how))


def _packing_tables(**how):
    return lambda: jobs.create_tables(INDEX, settings=jobs.TablesSettings(**how))


def _rewriting(**how):
    settings = {"exclude": ("o.txt",), **how}
    return lambda: jobs.rewrite_shards(INDEX, "new.json", settings=jobs.RewriteSettings(**settings))


def _mapping(**settings):
    return lambda: jobs.map(INDEX, print, "new", settings=jobs.MapSettings(**settings))


def _with_rule(**how):
    rule = {"name": "label", "extension": ".cls", "how": "field", **how}
    return lambda: jobs.create_columns(INDEX, spec=jobs.ColumnSpec(rules=(ColumnRule(**rule),)))


QUICK = jobs.VerifySettings(is_quick=True)


# (call, words of its error)
REFUSED = [
    # create_index, update_index
    (lambda: jobs.create_index(3, "a.json"), "sources=3: give a path, a URL or other text, or several"),
    (lambda: jobs.create_index(b"x", "a.json"), "sources=b'x': give a path"),
    (lambda: jobs.create_index("", "a.json"), "sources='': give"),
    (lambda: jobs.verify([]), "index=[]: there are no shards; give at least one"),
    (lambda: jobs.warm(()), "index=(): there are no shards; give at least one"),
    (lambda: jobs.create_index([], "a.json"), "sources=[]: no shards to index; give tars"),
    (lambda: jobs.create_index("*.tar", None), "output=None: give a path"),
    (lambda: jobs.create_index("*.tar", "a\0b"), "output='a\\x00b': give"),
    (lambda: jobs.create_index("*.tar", "a.json", name=3), "name=3: expected `str | None`, got `int`"),
    (lambda: jobs.create_index("*.tar", "a.json", base=3), "base=3: give a path"),
    (lambda: jobs.create_index("*.tar", "a.json", overwrite="no"), "overwrite='no': expected `bool`"),
    (_indexing(has_md5="no"), "settings: has_md5='no': expected `bool`, got `str`"),
    (_indexing(counts=("",)), "settings: counts=('',): expected `str` of length >= 1"),
    (_indexing(counts=("c",), has_md5=True), "settings: counts=('c',): shards that have counts are not read"),
    (_indexing(session={"anon": True}), "settings: session is a dict: give a wids.jobs.Session"),
    (lambda: jobs.update_index(3), "place=3: give"),
    (lambda: jobs.update_index(INDEX, add=3), "add=3: give"),
    (lambda: jobs.update_index(INDEX, drop=[3]), "drop=3: give"),
    *[
        (call, message)
        for call in (jobs.verify, jobs.warm, jobs.create_columns)
        for call, message in [
            (partial(call, 3), "index=3: give an index (a path, a URL or an open file) or a list of shards"),
            (partial(call, None), "index=None: give an index"),
            (partial(call, b"x"), "index=b'x': give an index"),
            (partial(call, {}), "index=a dict: give an index"),
            (partial(call, ""), "index='': give a path"),
            (partial(call, "a\0b"), "index='a\\x00b': give a path"),
        ]
    ],
    (_warming(directory="a\0b"), "settings: directory='a\\x00b': it has a NUL"),
    # verify
    (_checking(is_quick="no"), "settings: is_quick='no': expected `bool`"),
    (_checking(rule="baz"), "settings: key_rule is 'baz'; it must be one of ['first-dot', 'last-dot']"),
    (_checking(group="baz"), "settings: group is 'baz'; it must be 'adjacent' or 'key'"),
    (_checking(group=["key"]), "settings: group is ['key']; it must be"),
    (lambda: jobs.verify(INDEX, shards=3), "shards=3: expected `slice`"),
    (lambda: jobs.verify(INDEX, shards=slice(0, 2, 0)), "shards=slice(0, 2, 0): the step of a slice is not 0"),
    (lambda: jobs.verify(INDEX, max_keys=-1), "max_keys=-1: expected `int` >= 0"),
    (lambda: jobs.verify(INDEX, decode="PIL"), "decode='PIL': give"),
    (lambda: jobs.verify(INDEX, journal=3), "journal=3: give"),
    (lambda: jobs.verify(INDEX, journal=""), "journal='': give"),
    (
        lambda: jobs.verify(INDEX, QUICK, decode=dict),
        "decode is for checks that read shards, and settings.is_quick",
    ),
    (lambda: jobs.verify(INDEX, QUICK, max_keys=9), "max_keys is for checks that read shards"),
    (lambda: jobs.verify(INDEX, QUICK, journal="j"), "journal is for checks that read shards"),
    # warm
    (_warming(cache_size=-1), "settings: cache_size=-1: expected `int` >= 0"),
    (_warming(directory=""), "settings: directory='': expected `str` of length >= 1"),
    (_warming(directory="https://host/cache"), "cache_dir is 'https://host/cache'; it must be a directory"),
    (lambda: jobs.warm(INDEX, excluded=3), "excluded=3: give"),
    (lambda: jobs.warm(INDEX, excluded="host"), "excluded=['host']: names nodes of a Ray cluster"),
    (lambda: jobs.warm(INDEX, engine="processes"), "engine='processes': give threads, or ray"),
    # pack
    (lambda: jobs.pack([], OUT), "sources=[]: nothing to pack; give a folder"),
    (lambda: jobs.pack(3, OUT), "sources=3: give"),
    (_packing(output=3), "settings: output=3: expected `str`, got `int`"),
    (_packing(samples=0), "settings: samples=0: expected `int` >= 1"),
    (_packing(selected=slice(0.5, None)), "settings: selected=slice(0.5, None, None): 'float' object"),
    (_packing(seed=3, keeps_order=True), "settings: seed=3: shuffles, and keeps_order does not"),
    (lambda: jobs.pack(INDEX, OUT, source=None), "source is None: give PackSource"),
    (_from_source(form="baz"), "source: form='baz': give one of 'auto', 'folder', 'files', 'manifest', 'dataset'"),
    (_from_source(fields=[".jpg=a", ".jpg=b"]), "fields=['.jpg=a', '.jpg=b']: give different extensions"),
    (_from_source(keep_fields=()), "source: keep_fields=(): expected `list` of length >= 1"),
    (_from_source(where=""), "source: where='': give"),
    (_from_source(form="dataset", key="a"), "key is for manifests, and the source is taken as dataset"),
    # create_columns, parse_spec
    (lambda: jobs.create_columns(INDEX, 3), "output=3: give"),
    (lambda: jobs.create_columns(INDEX, ""), "output='': give"),
    (lambda: jobs.create_columns(INDEX, overwrite="no"), "overwrite='no': expected `bool`"),
    (lambda: jobs.create_columns(INDEX, session=None), "session is None: give a wids.jobs.Session"),
    (_with_session(storage_options=3), "session: storage_options is an int: give a dict"),
    (_with_session(storage_options={3: 4}), "session: storage_options is a dict: give a dict, with texts for keys"),
    (_with_session(storage_options={"https://h": 1}), "session: storage_options['https://h'] is not a dict"),
    (_with_session(hooks=print), "session: hooks=<built-in function print>: give a list of functions"),
    (_with_session(hooks=["x"]), "session: hooks=['x']: give a list of functions"),
    (_with_session(allow_pipe="no"), "session: allow_pipe='no': give True or False"),
    (_with_session(cache_dir=""), "session: cache_dir='': give text or None"),
    (_with_spec(rules=".cls"), "spec: rules='.cls': expected `list`"),
    (lambda: jobs.create_columns(INDEX, drop=3), "drop=3: give a path, a URL or other text, or several"),
    (_with_rule(name="key"), "two columns would be called 'key'"),
    (_with_rule(extension="cls"), "spec: rules[0]: extension='cls': give extensions that begin with a dot"),
    (_with_rule(how="baz"), "spec: rules[0]: how='baz': give one of 'field', 'json', 'text'"),
    (_with_rule(how="json"), "spec: rules[0]: keys=(): give at least 1 for how='json', and none for others"),
    (_with_rule(keys=("a",)), "spec: rules[0]: keys=('a',): give at least 1 for how='json', and none for others"),
    (lambda: jobs.parse_spec(fields=3), "fields=3: give"),
    (lambda: jobs.parse_spec(jsons=""), "jsons='': give"),
    (lambda: jobs.parse_spec(texts=[3]), "texts=3: give"),
    (lambda: jobs.parse_spec(missing="baz"), "missing='baz': give one of 'error', 'null'"),
    (
        lambda: jobs.verify(wids.ShardListDataset([("a.tar", 1)])),
        "index is a ShardListDataset, not its index",
    ),
    (
        lambda: jobs.verify(DataLoader([1])),
        "index is a DataLoader, and no list of shards",
    ),
    # create_tables
    (lambda: jobs.create_tables(4), "place=4: give"),
    (lambda: jobs.create_tables(INDEX, 4), "output=4: give"),
    (lambda: jobs.create_tables(INDEX, ""), "output='': give"),
    (
        lambda: jobs.create_tables(INDEX, settings=jobs.TablesSettings(is_skipping="no")),
        "settings: is_skipping='no'",
    ),
    (_packing_tables(overwrite=1), "settings: overwrite=1: expected `bool`"),
    # rewrite_shards
    (lambda: jobs.rewrite_shards(3, "new.json"), "view=3: give"),
    (lambda: jobs.rewrite_shards(INDEX, ""), "output='': give"),
    (_rewriting(exclude=(3,)), "settings: exclude=(3,): expected `str`"),
    (_rewriting(is_trial="no"), "settings: is_trial='no': expected `bool`"),
    # map
    (lambda: jobs.map(3, print, "new"), "index=3: give an index"),
    (lambda: jobs.map(INDEX, print, ""), "output='': give"),
    (lambda: jobs.map(INDEX, 3, "new"), "function is an int: give a function, a class, or the name of one"),
    (lambda: jobs.map(INDEX, "print", "new"), "function='print': write it as module:function"),
    (
        lambda: jobs.map(INDEX, print, "new", engine=jobs.RunOptions(num_gpus=1)),
        "num_gpus is of a Ray cluster: give engine='ray' too",
    ),
    (_mapping(fields=(3,)), "settings: fields=(3,): expected `str"),
    (_mapping(decode="jpg"), "settings: decode='jpg': give one of 'PIL'"),
    (_mapping(batch_size=0), "settings: batch_size=0: expected `int` >= 1"),
    (_mapping(where="a = 1"), "settings: where='a = 1': expected `list`, got `str`"),
    (_mapping(max_errors=2), "settings: max_errors=2: expected `float` <= 1.0"),
    (_mapping(trial=0), "settings: trial=0: expected `int` >= 1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_error_names_the_argument(call, message, home):
    """Its value and what fits too, before anything is read: the index is no longer one. Nothing is written."""
    (home / INDEX).write_bytes(b"no index")
    before = sorted(home.iterdir())
    with pytest.raises(InputError) as refused:
        call()
    assert message in str(refused.value)
    assert sorted(home.iterdir()) == before


def test_paths_and_single_texts(home):
    """A `Path` is as its text; one text is one source, pattern or rule, not its letters."""
    assert jobs.create_index(home / "s0.tar", home / "one.json", base=home).shards == 1
    assert jobs.update_index(home / "one.json", add=home / "s1.tar").shards == 2
    assert jobs.update_index(home / "one.json", drop="s1.tar").shards == 1
    assert jobs.verify(Path(INDEX), journal=home / "j").shards == 3
    assert not jobs.create_tables(Path(INDEX), home / "t.tables").failed
    settings = jobs.PackSettings(output=home / "out" / "p-%d.tar")
    source = jobs.PackSource(where="index = 0")
    assert jobs.pack(Path(INDEX), settings, source=source, engine=jobs.RunOptions(jobs=1)).samples == 1
    assert jobs.parse_spec(fields=".cls=label") == jobs.parse_spec(fields=[".cls=label"])


def test_integers_of_another_library(home):
    """They are as Python's."""
    settings = {"samples": np.int64(2), "selected": slice(np.int64(1), None), "seed": np.uint8(3)}
    settings = jobs.PackSettings(output="p-%d.tar", **settings)
    assert jobs.pack(INDEX, settings, engine=jobs.RunOptions(jobs=np.int64(1))).samples == 5


ODD = (Path("x"), [Path("x")], 10**30, -(10**30), np.int64(3), float("nan"), "a\0b", b"x", object())
KINDS = {
    jobs.IndexSettings: _indexing,
    jobs.VerifySettings: _checking,
    jobs.WarmSettings: _warming,
    jobs.PackSettings: _packing,
    jobs.PackSource: _from_source,
    jobs.TablesSettings: _packing_tables,
    jobs.RewriteSettings: _rewriting,
    jobs.MapSettings: _mapping,
    jobs.ColumnSpec: _with_spec,
    ColumnRule: _with_rule,
    jobs.RunOptions: lambda **how: lambda: jobs.verify(INDEX, engine=jobs.RunOptions(**how)),
}


def test_all_settings_are_tried():
    """Each class of settings that a job takes."""
    structs = [each for name in jobs.__all__ if isinstance(each := getattr(jobs, name), type)]
    settings = {each for each in structs if issubclass(each, msgspec.Struct) and each.__struct_config__.frozen}
    assert settings - {jobs.Finding, jobs.Problem} == KINDS.keys() - {ColumnRule}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_odd_value_of_any_setting(kind, home):
    """It works, or is an error of wids."""
    for field in kind.__struct_fields__:
        for value in ODD:
            write_shards(home, (1, 2, 3))
            jobs.create_index("s?.tar", INDEX, overwrite=True)
            with contextlib.suppress(WidsError):
                KINDS[kind](**{field: value})()


@pytest.mark.parametrize("settings", [{"key": "s3cret"}, jobs.VerifySettings(session={"key": "s3cret"})])
def test_a_value_that_may_be_secret_is_not_shown(settings):
    """Storage options, given in the wrong place."""
    with pytest.raises(InputError, match="is a dict: give") as refused:
        jobs.verify(INDEX, settings)
    assert "s3cret" not in str(refused.value)


def test_a_script_without_a_guard_is_told(home):
    """Its processes do not begin its jobs again."""
    script = home / "script.py"
    script.write_text(
        "from wids import jobs\n"
        f"print(jobs.create_index('*.tar', '{INDEX}').shards, 'shards', flush=True)\n"
        f"jobs.verify('{INDEX}', engine='processes')\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.stdout.count("3 shards") == 1
    assert ended.returncode
    assert "JobError: no process could begin its work: a script that uses processes needs `if __name__" in ended.stderr


@pytest.mark.parametrize("name", jobs.__all__)
def test_help_of_each_name(name):
    """Its text can be had: the types in annotations are there."""
    assert name in pydoc.render_doc(getattr(jobs, name))


SECRET = {"key": "AKIA", "secret": "hunter2"}


@pytest.mark.parametrize(
    "call",
    [
        lambda: jobs.create_tables("d.json", SECRET),
        lambda: jobs.create_columns("d.json", SECRET),
        lambda: jobs.create_index([SECRET], "d.json"),
        lambda: jobs.update_index("d.json", drop=[SECRET]),
        lambda: jobs.verify(SECRET),
        lambda: jobs.warm("d.json", jobs.WarmSettings(directory=SECRET)),
    ],
    ids=range(6),
)
def test_options_in_another_place_are_not_shown(call):
    """A dict may have secrets."""
    with pytest.raises((InputError, TypeError)) as caught:
        call()
    assert "hunter2" not in str(caught.value)


def test_values_that_look_right():
    """A path of bytes, and a set, which has no order."""
    with os.scandir(b".") as entries, pytest.raises(InputError, match="expected `str"):
        jobs.warm("d.json", jobs.WarmSettings(directory=next(entries)))
    with pytest.raises(InputError, match="got a set, which has no order"):
        jobs.create_index(["a.tar"], output="d.json", settings=jobs.IndexSettings(counts={"a", "b"}))
