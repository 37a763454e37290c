"""Make notebooks from their paired texts and execute them: ``python notebooks/make.py [NAME ...]``; default: all."""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def make(name: str) -> None:
    """Write ``NAME.ipynb`` with the cells of ``text/NAME.py`` and their outputs."""
    notebook = jupytext.read(HERE / "text" / f"{name}.py")
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for k, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{k}"  # random by default, which would change the file in each run
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # timestamps, which would change the file in each run
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, HERE / f"{name}.ipynb")


if __name__ == "__main__":
    for each in sys.argv[1:] or sorted(path.stem for path in (HERE / "text").glob("*.py")):
        print(each, flush=True)
        make(each)
