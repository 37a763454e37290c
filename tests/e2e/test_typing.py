"""The public API has the types that tests/typing_api.py expects, as a type checker sees it there."""

import subprocess
import sys

from tests.support.paths import ROOT


def test_a_program_that_uses_all_of_it():
    """Mypy, strict as the project has it, finds nothing to complain of."""
    command = [sys.executable, "-m", "mypy", "tests/typing_api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
