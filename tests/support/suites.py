"""Runs files of tests as their author would, in a process of its own."""

import os
import subprocess
import sys
from xml.etree import ElementTree as ET

from tests.support.paths import ROOT


def run_suites(directory, text):
    """What becomes of the tests in a file of that text.

    Args:
        directory: an empty one.
        text: Python; it may import from `tests.support`.

    Returns:
        Two dicts, class -> test -> message: of the tests that failed, and of those that were skipped; each class is in
        both.
    """
    (directory / "test_mine.py").write_text(text, encoding="utf-8")
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--rootdir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--junitxml", "found.xml", "test_mine.py"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failed, skipped = {}, {}
    for case in ET.parse(directory / "found.xml").iter("testcase"):
        name = case.get("classname").rpartition(".")[2]
        for found, tags in ((failed, ("failure", "error")), (skipped, ("skipped",))):
            of_class = found.setdefault(name, {})
            of_class.update({case.get("name"): part.get("message") for tag in tags for part in case.iter(tag)})
    assert failed, done.stdout
    return failed, skipped
