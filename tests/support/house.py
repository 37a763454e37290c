"""The size of the package: `python -m tests.support.house` prints the table of .github/CONTRIBUTING.md.

Code lines have no blank ones, comments or docstrings.
"""

import ast
from pathlib import Path

from tests.support.paths import ROOT

WIDS = ROOT / "wids"
# The rings that are folders.
RINGS = ("core", "tools")
# What PyTorch sees; all other modules beside the folders are doors of wings.
FACE = frozenset(
    (
        "__init__",
        "dataset",
        "windows",
        "samplers",
        "batch_samplers",
        "packs",
        "mixtures",
        "loaders",
        "loader_threads",
        "errors",
        "events",
    )
)


def code_lines(text):
    """The number of code lines of a module."""
    no_code = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node, clean=False
        ):
            no_code.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and k not in no_code for k, line in lines)


def place_of(path):
    """(ring, folder) of a module."""
    parts = path.relative_to(WIDS).with_suffix("").parts
    if len(parts) == 1:
        return ("face", "wids") if parts[0] in FACE else ("wings", "wids")
    if parts[0] not in RINGS:
        return "wings", f"wids/{parts[0]}"
    return parts[0], "/".join(("wids", *parts[: min(len(parts) - 1, 2)]))


def measure(root=WIDS):
    """(ring, folder) -> (number of modules, code lines)."""
    found = {}
    for path in sorted(Path(root).rglob("*.py")):
        place = place_of(path)
        modules, lines = found.get(place, (0, 0))
        found[place] = modules + (path.stem != "__init__"), lines + code_lines(path.read_text(encoding="utf-8"))
    return found


def table():
    """The rows of the table: each ring, then its folders."""
    found = measure()
    rows = ["| | modules | code lines |", "|---|--:|--:|"]
    for ring in ("face", "core", "wings", "tools"):
        own = {folder: counts for (other, folder), counts in found.items() if other == ring}
        modules, lines = (sum(counts) for counts in zip(*own.values(), strict=True))
        rows.append(f"| **{ring}** | **{modules}** | **{lines:,}** |")
        if len(own) > 1:
            rows += [f"| `{folder}` | {modules} | {lines:,} |" for folder, (modules, lines) in sorted(own.items())]
    return rows


if __name__ == "__main__":
    print("\n".join(table()))
