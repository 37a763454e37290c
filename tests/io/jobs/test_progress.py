"""How far a job is, as its caller sees it: by a function, or by a bar in a notebook (terminals: tests/cli)."""

import sys
import types

import pytest
from rich import console

from tests.support.shards import write_shards
from wids import jobs
from wids.errors import InputError


def test_a_function_is_called_until_all_shards_have_ended(tmp_path):
    """In the caller's thread, with all shards at the end."""
    write_shards(tmp_path, (1, 2, 3))
    seen = []
    jobs.create_index(f"{tmp_path}/*.tar", str(tmp_path / "i.json"), progress=lambda job: seen.append(job.ended))
    assert seen[0] == 0
    assert seen[-1] == 3
    with pytest.raises(InputError, match='progress=5: give a function that takes a JobProgress, "bar", or None'):
        jobs.create_index(f"{tmp_path}/*.tar", str(tmp_path / "i.json"), progress=5)


def test_a_bar_in_a_notebook(tmp_path, monkeypatch):
    """It is displayed once and updated in its place, without ipywidgets; at the end it is gone."""
    shown = []

    class Handle:
        def update(self, what, **_):
            shown.append(what)

    def display(what, *, display_id):
        assert display_id
        shown.append(what)
        return Handle()

    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    notebook = types.ModuleType("IPython.display")
    notebook.display = display
    package = types.ModuleType("IPython")
    package.display = notebook
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr("wids.core.files.terminal._DRAW_SECONDS", -1)
    write_shards(tmp_path, (1, 2, 3))
    jobs.create_index(f"{tmp_path}/*.tar", str(tmp_path / "i.json"), progress="bar")
    first, *_, last = shown
    assert "indexing 3 of 3 shards" in first._repr_mimebundle_([], [])["text/plain"]
    assert last == {"text/plain": ""}


def test_a_bar_in_no_terminal_shows_nothing(tmp_path, capfd):
    """As in a log."""
    write_shards(tmp_path, (1,))
    jobs.create_index(f"{tmp_path}/*.tar", str(tmp_path / "i.json"), progress="bar")
    assert capfd.readouterr() == ("", "")
