"""``wids serve``: what is said before any page is served. The pages are tested in tests/io/serve and tests/e2e."""

from tests.support.cli import complaint
from tests.support.shards import write_index


def test_a_file_of_marks_that_is_something_else(tmp_path):
    """It is refused before a page is served, and stays."""
    index = write_index(tmp_path, (3, 4))
    notes = tmp_path / "notes.txt"
    notes.write_text("do not lose this\n")
    words = complaint(1, "serve", index, "--marks", notes, "--no-open", "--port", "0")
    assert "notes.txt" in words
    assert "no file of marks" in words
    assert "do not lose this" in words
    assert notes.read_text() == "do not lose this\n"
    assert "the index that is looked at" in complaint(1, "serve", index, "--marks", index, "--no-open", "--port", "0")
