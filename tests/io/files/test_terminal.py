"""The progress bar: where it is drawn, and that one is shown at a time."""

import io
import sys

import pytest

from wids.core.files import terminal


class Screen(io.StringIO):
    """A terminal that keeps what is drawn."""

    def isatty(self):
        """It is one."""
        return True


@pytest.fixture
def see(monkeypatch):
    """A function: make stderr a terminal, and give it. The test calls it, for pytest has a stderr of its own there."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")

    def see():
        found = Screen()
        monkeypatch.setattr(sys, "stderr", found)
        return found

    return see


@pytest.mark.parametrize("unit", ["items", "bytes"])
def test_a_terminal_sees_how_far_it_is(see, unit):
    """With words, of which secrets are left out; the terminal is as before in the end."""
    screen = see()
    with terminal.progress(unit) as bar:
        assert bar.is_shown
        bar.update(3, total=7, words="reading https://h/a.tar?sig=s3cr3t \x1b]0;x\x07")
    shown = screen.getvalue()
    assert "reading https://h/a.tar " in shown
    assert "3/7" in shown
    assert "\x1b[?25h" in shown  # the cursor is there again
    assert "s3cr3t" not in shown
    assert "\x1b]0;x" not in shown


def test_elsewhere_nothing_is_drawn(monkeypatch, see):
    """In a pipe, without stderr, and where none is wanted."""
    screen = see()
    with terminal.progress(is_shown=False) as bar:
        bar.update(1, total=2)
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with terminal.progress() as bar:
            assert not bar.is_shown
            bar.update(1, total=2)
        assert stream is None or not stream.getvalue()
    assert screen.getvalue() == ""


def test_one_is_shown_at_a_time(see):
    """Work within work has none; after an error the next one is shown again."""
    see()

    def work():
        with terminal.progress() as outer, terminal.progress() as inner:
            assert (outer.is_shown, inner.is_shown) == (True, False)
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            work()
