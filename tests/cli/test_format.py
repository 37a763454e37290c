"""Tables and JSON as commands print them."""

import io
import json
import sys

import pytest

from tests.support.cli import run
from wids.jobs.index_create import IndexOutcome
from wids.tools.cli.format import print_outcome, print_table, print_text, to_json


def test_a_table_on_a_terminal_without_columns_tells_all(monkeypatch):
    """A terminal that says it has no columns, or very few, gets a table all the same."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in ("0", "5"):
        monkeypatch.setenv("COLUMNS", columns)
        print_table(("shard", "what", "where", "what to do"), [("a.tar", "bad", "x", "mend it")])
    assert out.getvalue().count("a.tar") == 2


def test_json_has_no_infinity(tmp_path):
    """Numbers that JSON has no word for are null in what is printed as JSON."""
    text = '{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 5, "x": [1e999, 2.5], "y": NaN}]}'
    (tmp_path / "i.json").write_text(text)
    _, out, _ = run("ls", tmp_path / "i.json", "--shards", "--json")

    def refuse(word):
        raise AssertionError(word)

    found = json.loads(out, parse_constant=refuse)
    assert (found["x"], found["y"]) == ([None, 2.5], None)
    assert json.loads(to_json({"a": (float("inf"), "x")})) == {"a": [None, "x"]}


def test_an_outcome_names_what_there_is(capsys):
    """Members that are 0 or empty have no words; counts follow a head with a colon, else they have a line."""
    found = IndexOutcome(output="x", shards=3, failed={"a": "why"}, surveyed=1200, seconds=1.5, left_files=2)
    counts = {"surveyed": "read", "unchanged": "unchanged", "failed": "left out"}
    lines = {"repeated_keys": "twice", "left_files": "2 files left", "counts": ["never"], "shards": ["one", "two"]}
    print_outcome(found, "x: 3 shards", is_json=False, counts=counts, lines=lines)
    assert capsys.readouterr().out == "x: 3 shards\n1,200 read, 1 left out in 1.5 s\n2 files left\none\ntwo\n"
    none = IndexOutcome(output="x", requests=2, read_bytes=3000)
    print_outcome(none, "x:", is_json=False, counts=counts)
    assert capsys.readouterr().out == "x: nothing to do in 0 s; 3 kB came in 2 requests\n"
    print_outcome(none, "x: none", is_json=False, lines=lines)
    assert capsys.readouterr().out == "x: none\n"


def test_an_outcome_has_words_for_members_of_its_json(capsys):
    """As JSON it is the whole structure; words for a member that it lacks are a mistake."""
    found = IndexOutcome(output="x", shards=3)
    print_outcome(found, "x", is_json=True, counts={"surveyed": "read"}, lines={"shards": "three"})
    told = json.loads(capsys.readouterr().out)
    assert list(told) == list(IndexOutcome.__struct_fields__)
    assert (told["shards"], told["surveyed"]) == (3, 0)
    for words in ({"counts": {"reads": "read"}}, {"lines": {"reads": "read"}}):
        with pytest.raises(KeyError, match="reads"):
            print_outcome(found, "x", is_json=False, **words)


def test_nothing_printed_acts_on_a_terminal(capsys):
    """Lines, outcomes and tables, whatever file their texts are from."""
    evil = "a\x1b[2J"
    print_text(evil)
    print_table((f"{evil}",), [(evil,)])
    print_outcome({"n": 1}, evil, is_json=False, lines={"n": evil})
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("a\\x1b[2J") == 5
