"""What a caller gives a job: an error names it before any work is done; text, a `Path`, or several of them."""

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shards import write_shards
from wids import jobs
from wids.errors import InputError

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
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"engine": "baz"}, "engine 'baz'"),
        ({"engine": ["threads"]}, r"engine \['threads'\]"),
        ({"engine": jobs.RunOptions(jobs=-1)}, "jobs=-1"),
        ({"engine": jobs.RunOptions(jobs="4")}, "jobs='4'"),
        ({"progress": "baz"}, "progress='baz'"),
        ({"settings": {"session": None}}, "settings={"),
    ],
)
def test_what_all_jobs_are_given(name, how, message, home):
    """Nothing is written."""
    before = sorted(home.iterdir())
    if name == "create_columns" and "settings" in how:
        how, message = {"spec": how["settings"]}, "spec={"
    with pytest.raises(InputError, match=message):
        JOBS[name](**how)
    assert sorted(home.iterdir()) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jobs.create_index(3, "a.json"), "sources=3"),
        (lambda: jobs.create_index([b"x"], "a.json"), "sources=b'x'"),
        (lambda: jobs.create_index("", "a.json"), "sources=''"),
        (lambda: jobs.create_index("*.tar", None), "output=None"),
        (lambda: jobs.create_index("*.tar", "a\0b"), "output='a"),
        (lambda: jobs.create_index("*.tar", "a.json", name=3), "name=3"),
        (lambda: jobs.create_index("*.tar", "a.json", base=3), "base=3"),
        (lambda: jobs.update_index(3), "place=3"),
        (lambda: jobs.update_index(INDEX, drop=[3]), "drop=3"),
        (lambda: jobs.verify(INDEX, shards=3), "shards=3"),
        (lambda: jobs.verify(INDEX, max_keys="x"), "max_keys='x'"),
        (lambda: jobs.verify(INDEX, decode="PIL"), "decode='PIL'"),
        (lambda: jobs.verify(INDEX, journal=3), "journal=3"),
        (lambda: jobs.verify(INDEX, jobs.VerifySettings(session={"anon": True})), "session={'anon': True}"),
        (lambda: jobs.warm(INDEX, jobs.WarmSettings(cache_size="10GB")), "cache_size='10GB'"),
        (lambda: jobs.warm(INDEX, jobs.WarmSettings(directory=3)), "directory=3"),
        (lambda: jobs.pack([], OUT), "nothing to pack"),
        (lambda: jobs.pack(INDEX, jobs.PackSettings(output="p-%d.tar", samples=True)), "samples=True"),
        (lambda: jobs.pack(INDEX, jobs.PackSettings(output="p-%d.tar", selected=3)), "selected=3"),
        (lambda: jobs.pack(INDEX, OUT, source=jobs.PackSource(form="baz")), "form='baz'"),
        (lambda: jobs.pack(INDEX, OUT, source=None), "source=None"),
        (lambda: jobs.create_columns(INDEX, 3), "output=3"),
        (lambda: jobs.create_columns(INDEX, session=None), "session=None"),
        (lambda: jobs.create_tables(INDEX, 4), "output=4"),
        (lambda: jobs.parse_spec(fields=3), "fields=3"),
        (lambda: jobs.parse_spec(texts=[3]), "texts=3"),
    ],
)
def test_an_error_names_the_argument(call, message):
    """Also one within settings."""
    with pytest.raises(InputError, match=message):
        call()


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
