"""On Windows the package imports, fetches, reads, and keeps its bound; a program stands in for the system."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_as_on_windows(web, tmp_path):
    """Without fcntl, resource, pread and fork, where nothing that is open can be renamed or deleted."""
    program = ROOT / "tests" / "programs" / "as_on_windows.py"
    done = subprocess.run(
        [sys.executable, str(program), f"{web.url}/index.json", str(tmp_path / "cache")],
        # Without HOME, expanduser asks the user database by os.getuid, which Windows does not have.
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    samples, fetched, evicted, left = done.stdout.split(maxsplit=3)
    assert (samples, left.strip()) == ("9", "[]")
    assert int(fetched) >= 6
    assert int(evicted) >= 1
