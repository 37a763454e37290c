"""The golden files: see tests/goldens."""

import json

from tests.support.paths import ROOT

GOLDENS = ROOT / "tests" / "goldens"
VERSIONS = sorted(path.name for path in GOLDENS.iterdir() if (path / "states.json").exists())


def read_golden(name, version="1.0"):
    """The content of a JSON file."""
    return json.loads((GOLDENS / version / name).read_text("utf-8"))


def golden_lines(name, version="1.0"):
    """The lines of a text file but its comments."""
    return [line for line in (GOLDENS / version / name).read_text("utf-8").splitlines() if not line.startswith("#")]
