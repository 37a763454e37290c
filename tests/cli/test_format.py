"""Tables and JSON as commands print them."""

import io
import json
import sys

from tests.support.cli import run
from wids.cli.format import print_table, to_json


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
